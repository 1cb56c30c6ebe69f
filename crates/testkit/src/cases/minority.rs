//! With f members down the rest elects and commits; with one more down nothing is acknowledged and
//! every caller is told so; when one returns it goes on, and nothing acknowledged is lost.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::blocking::Client;
use client::{CallError, Options};

use crate::cluster::{Cluster, Scratch};
use crate::writers::Told;

/// How long a call may take while too many members are down.
const DEADLINE: Duration = Duration::from_secs(3);
/// By how much a call may miss its deadline on a busy machine.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);
/// Writes in each phase in which the group must work.
const WRITES: u64 = 100;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Members; an odd number, at least three.
    pub members: u32,
    /// Whether a write is expected that was never made, so that the last check must fail.
    pub plant: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What the client was told.
    pub told: Told,
    /// How long the first write took after the leader was killed with f members down.
    pub elected: Duration,
    /// How long the first write took after one member returned to too few.
    pub resumed: Vec<Duration>,
    /// What was answered while too many were down: what was asked, how long it took, the text.
    pub answers: Vec<(&'static str, Duration, String)>,
    /// What was answered then and must not have been.
    pub wrong: Vec<String>,
    /// Acknowledged writes that are not there.
    pub lost: Vec<String>,
}

impl Found {
    /// Whether nothing was answered that must not be, in time, and nothing is lost.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.wrong.is_empty() && self.lost.is_empty()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, took, text) in &self.answers {
            writeln!(f, "{what}, with too few members, after {took:.2?}: {text}")?;
        }
        for text in self.wrong.iter().chain(&self.lost) {
            writeln!(f, "{text}")?;
        }
        let resumed = self.resumed.iter().max().copied().unwrap_or_default();
        write!(
            f,
            "RESULT acknowledged={} refused={} unknown={} wrong={} lost={} elected_ms={} \
             resumed_ms={}",
            self.told.answered,
            self.told.refused,
            self.told.unknown,
            self.wrong.len(),
            self.lost.len(),
            self.elected.as_millis(),
            resumed.as_millis(),
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// When the group does not work although enough of its members run.
pub fn run(plan: Plan) -> Result<Found> {
    ensure!(plan.members >= 3 && plan.members % 2 == 1, "an odd number of members, at least 3");
    let scratch = Scratch::new("minority")?;
    let dir = scratch.path().join("cluster");
    let mut cluster =
        Cluster::init(&dir, plan.members, &["--durability", "process", "--segment-size", "64MiB"])?;
    cluster.start_all()?;
    cluster.wait_until_all_follow()?;
    let client = Client::connect(cluster.options())?;
    let mut trial = Trial { cluster, client, found: Found::default(), written: 0 };
    let down_max = plan.members.div_ceil(2) - 1;

    trial.write("all up")?;
    trial.kill_followers(down_max)?;
    trial.write("f followers down")?;
    trial.bring_all_back()?;

    trial.kill_followers(down_max - 1)?;
    trial.kill_leader()?;
    trial.found.elected = trial.write("f down, the leader among them")?;

    trial.kill_followers(1)?;
    trial.ask_too_few("f + 1 down, the leader up")?;
    trial.resume()?;

    trial.kill_leader()?;
    trial.ask_too_few("f + 1 down, the leader among them")?;
    trial.resume()?;
    trial.bring_all_back()?;

    let Trial { mut client, mut found, .. } = trial;
    if plan.plant {
        found.told.acknowledged.insert("never-written".to_owned(), 1);
    }
    found.lost = found.told.lost(&mut client)?;
    Ok(found)
}

struct Trial {
    cluster: Cluster,
    client: Client,
    found: Found,
    written: u64,
}

impl Trial {
    /// Writes, which must succeed; how long the first took.
    fn write(&mut self, phase: &str) -> Result<Duration> {
        let began = Instant::now();
        let mut first = Duration::ZERO;
        for at in 0..WRITES {
            let key = self.next_key();
            let result = self.found.told.put(&mut self.client, &key, self.written);
            result.with_context(|| format!("{phase}: a write failed"))?;
            if at == 0 {
                first = began.elapsed();
            }
        }
        Ok(first)
    }

    fn next_key(&mut self) -> String {
        self.written += 1;
        format!("key-{}", self.written)
    }

    fn kill_followers(&mut self, count: u32) -> Result<()> {
        let leader = self.cluster.wait_for_leader()?;
        let followers = self.cluster.running().into_iter().filter(|&id| id != leader);
        for id in followers.take(usize::try_from(count)?).collect::<Vec<_>>() {
            self.cluster.kill(id)?;
        }
        Ok(())
    }

    fn kill_leader(&mut self) -> Result<()> {
        let leader = self.cluster.wait_for_leader()?;
        self.cluster.kill(leader)
    }

    /// Asks while too few members run: nothing may be acknowledged, and no read answered.
    fn ask_too_few(&mut self, phase: &'static str) -> Result<()> {
        let options = Options { deadline: DEADLINE, ..self.cluster.options() };
        let mut newcomer = Client::connect(options)?;
        self.client.set_deadline(DEADLINE);
        let (key, began) = (self.next_key(), Instant::now());
        let put = self.found.told.put(&mut self.client, &key, self.written);
        self.judge((phase, "put in a session"), began.elapsed(), put.err());
        self.client.set_deadline(self.cluster.options().deadline);

        let (key, began) = (self.next_key(), Instant::now());
        let put = self.found.told.put(&mut newcomer, &key, self.written);
        self.judge((phase, "put without a session"), began.elapsed(), put.err());

        let began = Instant::now();
        let get = newcomer.get(b"key-1");
        self.judge((phase, "get"), began.elapsed(), get.err());
        Ok(())
    }

    fn judge(
        &mut self,
        (phase, what): (&str, &'static str),
        took: Duration,
        error: Option<CallError>,
    ) {
        let wrong = match &error {
            None => Some("was answered as done".to_owned()),
            Some(CallError::Bad(why)) => Some(format!("was called bad: {why}")),
            Some(CallError::Unknown(why)) if what == "get" => {
                Some(format!("changes nothing and was called unknown: {why}"))
            }
            Some(CallError::Refused(_) | CallError::Unknown(_)) => {
                (took > DEADLINE + DEADLINE_SLACK).then(|| format!("took {took:.1?}"))
            }
        };
        self.found.wrong.extend(wrong.map(|wrong| format!("{phase}: {what} {wrong}")));
        let text = error.map_or_else(|| "done".to_owned(), |error| error.to_string());
        self.found.answers.push((what, took, text));
    }

    /// One member returns, and writes succeed.
    fn resume(&mut self) -> Result<()> {
        let running = self.cluster.running();
        let down = self.cluster.ids().into_iter().find(|id| !running.contains(id));
        self.cluster.start(down.context("a member is down")?)?;
        let first = self.write("one member has returned")?;
        self.found.resumed.push(first);
        Ok(())
    }

    fn bring_all_back(&mut self) -> Result<()> {
        self.cluster.start_all()?;
        self.cluster.wait_until_all_follow()?;
        Ok(())
    }
}
