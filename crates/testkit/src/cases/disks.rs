//! Bad disks, one row each: what a member says of it, that the others go on, and that nothing
//! acknowledged is lost.
//!
//! A row holds if every member that cannot go on says why in words that name the file, none ends by
//! a signal or a panic, a damage that can be repaired from the other copy or from the peers is
//! repaired (the member then leads, and everything is read from it), and every acknowledged write
//! can still be read.

mod bench;
mod rows;

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;

use self::bench::Bench;
use crate::media;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the members' directories are made.
    pub dir: PathBuf,
    /// Only rows whose name has this in it.
    pub only: Option<String>,
    /// Whether one row damages a quorum, which loses what was acknowledged.
    pub plant: bool,
}

/// What a row was, and how it ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// What was done, step by step.
    pub did: Vec<String>,
    /// What the member said.
    pub said: Vec<String>,
    /// Acknowledged writes that are not there.
    pub lost: Vec<String>,
    /// Why it does not hold.
    pub wrong: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The rows.
    pub outcomes: Vec<Outcome>,
}

impl Found {
    fn lost(&self) -> usize {
        self.outcomes.iter().map(|outcome| outcome.lost.len()).sum()
    }

    fn held(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.holds()).count()
    }

    /// Whether every row holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.held() == self.outcomes.len() && !self.outcomes.is_empty()
    }
}

impl Outcome {
    fn holds(&self) -> bool {
        self.wrong.is_none() && self.lost.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, if self.holds() { "HOLDS" } else { "FAILS" })?;
        for text in &self.did {
            writeln!(f, "  did:   {text}")?;
        }
        for text in &self.said {
            writeln!(f, "  said:  {text}")?;
        }
        for text in self.wrong.iter().chain(self.lost.iter().take(4)) {
            writeln!(f, "  wrong: {text}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, held) = (self.outcomes.len(), self.held());
        write!(f, "RESULT rows={rows} held={held} lost={}", self.lost())
    }
}

/// Runs a plan and prints each row as it ends.
///
/// # Errors
/// When it must be skipped, or a cluster cannot be made.
pub fn run(plan: &Plan) -> Result<Found> {
    media::enter("disks", &[("mkfs.ext4", "e2fsprogs")])?;
    let mut found = Found::default();
    let wanted = |name: &str| plan.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let planted = plan.plant.then_some(rows::PLANTED);
    for row in rows::ROWS.iter().chain(planted.as_ref()).filter(|row| wanted(row.0)) {
        let outcome = run_row(plan, *row)?;
        println!("{outcome}");
        found.outcomes.push(outcome);
    }
    Ok(found)
}

fn run_row(plan: &Plan, (name, row): rows::Row) -> Result<Outcome> {
    let mut bench = Bench::new(&plan.dir)?;
    let ended = row(&mut bench).and_then(|()| bench.check_processes());
    let mut wrong = ended.err().map(|error| format!("{error:#}"));
    let lost = bench.lost().unwrap_or_else(|error| {
        wrong.get_or_insert_with(|| format!("what was acknowledged cannot be read: {error:#}"));
        Vec::new()
    });
    let (did, said) = bench.story();
    Ok(Outcome { name, did, said, lost, wrong })
}
