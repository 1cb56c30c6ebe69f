//! The leader is told to end, again and again, under load: it hands over first, and no client's call
//! fails.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use client::Options;
use client::blocking::Client;

use crate::cluster::{Cluster, Scratch};
use crate::writers::{Shape, Told, Writers};

/// How long answers may be missing before the case gives up.
const ANSWERS_MAX: Duration = Duration::from_secs(60);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// How often the leader is told to end.
    pub times: u32,
    /// Whether it is killed instead, under clients that wait less than an election takes: calls
    /// fail then, which the case must see.
    pub plant: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What the clients were told.
    pub told: Told,
    /// Acknowledged writes that are not there.
    pub lost: Vec<String>,
    /// The longest time without an answer to any client, of every round.
    pub gaps: Vec<Duration>,
}

impl Found {
    /// Whether nothing failed and nothing is lost.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.told.failed() == 0 && self.told.stale.is_none() && self.lost.is_empty()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for text in self.told.texts.iter().chain(&self.told.stale).chain(&self.lost) {
            writeln!(f, "{text}")?;
        }
        let mut gaps = self.gaps.clone();
        gaps.sort();
        let longest = gaps.last().copied().unwrap_or_default();
        let median = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
        write!(
            f,
            "RESULT rounds={} answered={} refused={} unknown={} stale={} lost={} \
             gap_median_ms={:.1} gap_longest_ms={:.1}",
            gaps.len(),
            self.told.answered,
            self.told.refused,
            self.told.unknown,
            u32::from(self.told.stale.is_some()),
            self.lost.len(),
            median.as_secs_f64() * 1e3,
            longest.as_secs_f64() * 1e3,
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// When the cluster does not come back, or a member does not end in order.
pub fn run(plan: Plan) -> Result<Found> {
    let scratch = Scratch::new("sigterm")?;
    let dir = scratch.path().join("cluster");
    let mut cluster = Cluster::init(&dir, plan.members, &["--durability", "process"])?;
    cluster.start_all()?;
    cluster.wait_until_all_follow()?;
    let deadline = Duration::from_millis(if plan.plant { 100 } else { 10_000 });
    let options = Options { deadline, ..cluster.options() };
    let writers = Writers::start(&options, Shape { clients: 8, keys_each: 32, reads: true })?;
    writers.wait_for(1_000, ANSWERS_MAX)?;
    let mut gaps = Vec::new();
    for _ in 0..plan.times {
        let leader = cluster.wait_until_all_follow()?;
        let _before = writers.take_gap();
        if plan.plant {
            cluster.kill(leader)?;
        } else {
            cluster.terminate(leader)?;
        }
        writers.wait_for(1_000, ANSWERS_MAX)?;
        gaps.push(writers.take_gap());
        cluster.start(leader)?;
    }
    cluster.wait_until_all_follow()?;
    let told = writers.finish()?;
    let lost = told.lost(&mut Client::connect(cluster.options())?)?;
    Ok(Found { told, lost, gaps })
}
