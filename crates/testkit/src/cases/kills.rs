//! Leaders are killed and stopped, all members are killed at once, under a load that never pauses:
//! every history is linearizable.

use std::time::Duration;

use anyhow::{Result, bail};
use sim::linear::{Call, History, Limits, Outcome, Verdict, check};

use crate::cluster::{Cluster, Scratch};
use crate::load::{Load, Shape};

/// How the leader is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9.
    Kill,
    /// SIGSTOP, and SIGCONT once another leads.
    Stop,
    /// kill -9 of all members at once.
    KillAll,
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// How the leader is hurt.
    pub fault: Fault,
    /// How often.
    pub times: u32,
    /// Whether one answer is replaced by an older one, which the check must see.
    pub plant: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Operations in the history.
    pub operations: usize,
    /// Of those, with unknown outcome.
    pub unknown: usize,
    /// The contradiction, if there is one.
    pub violation: Option<String>,
    /// The longest time without an answer.
    pub gap: Duration,
}

/// Runs a plan.
///
/// # Errors
/// When the cluster does not come back, or the history cannot be decided.
pub fn run(plan: Plan) -> Result<Found> {
    let scratch = Scratch::new("kills")?;
    let dir = scratch.path().join("cluster");
    let mut cluster =
        Cluster::init(&dir, plan.members, &["--durability", "process", "--segment-size", "64MiB"])?;
    cluster.start_all()?;
    cluster.wait_for_leader()?;
    let shape = Shape { clients: 16, keys: 16, pace: Duration::from_millis(4), seed: 1 };
    let load = Load::start(&cluster.options(), shape)?;
    load.wait_for(200, Duration::from_secs(30))?;
    let mut gap = Duration::ZERO;
    for _ in 0..plan.times {
        let _before = load.take_gap();
        hurt(&mut cluster, &load, plan.fault)?;
        gap = gap.max(load.take_gap());
    }
    let mut history = load.finish()?;
    drop(cluster);
    if plan.plant {
        plant_stale_read(&mut history)?;
    }
    let operations = history.len();
    let unknown = history.iter().filter(|one| one.outcome == Outcome::Unknown).count();
    let violation = match check(&history, Limits::default()) {
        Verdict::Linearizable => None,
        Verdict::Violation(example) => Some(example.to_string()),
        Verdict::Undecided { keys, why } => bail!("undecided for the keys {keys:?}: {why}"),
    };
    Ok(Found { operations, unknown, violation, gap })
}

fn hurt(cluster: &mut Cluster, load: &Load, fault: Fault) -> Result<()> {
    let limit = Duration::from_secs(60);
    let leader = cluster.wait_for_leader()?;
    match fault {
        Fault::Kill => {
            cluster.kill(leader)?;
            load.wait_for(50, limit)?;
            cluster.start(leader)?;
        }
        Fault::Stop => {
            cluster.stop(leader)?;
            load.wait_for(50, limit)?;
            cluster.go_on(leader)?;
        }
        Fault::KillAll => {
            cluster.kill_all()?;
            cluster.start_all()?;
        }
    }
    load.wait_for(100, limit)
}

/// Replaces the answer of a read by a value that was overwritten before the read began.
fn plant_stale_read(history: &mut History) -> Result<()> {
    history.sort_by_key(|one| one.invoke);
    let reads: Vec<usize> = (0..history.len())
        .filter(|&at| {
            matches!(
                (&history[at].call, history[at].outcome),
                (Call::Get(_), Outcome::Value(Some(_)))
            )
        })
        .collect();
    for pair in reads.windows(40).rev() {
        let (first, last) = (pair[0], pair[pair.len() - 1]);
        for &later in &pair[1..] {
            let (old, new) = (&history[first], &history[later]);
            let is_later = old.complete < Some(new.invoke);
            if old.call == new.call && old.outcome != new.outcome && is_later && later <= last {
                history[later].outcome = history[first].outcome;
                return Ok(());
            }
        }
    }
    bail!("the history has no two reads that differ")
}
