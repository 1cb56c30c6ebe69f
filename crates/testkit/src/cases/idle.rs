//! Clients that are connected and ask nothing cost the members nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::blocking::Client;

use crate::cluster::{Cluster, Scratch};

/// The part of a core that a member may use.
const CORE_PERCENT_MAX: f64 = 2.0;
/// How long members may go on with what was asked before.
const SETTLE: Duration = Duration::from_secs(2);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// Clients.
    pub clients: u32,
    /// How long members are watched.
    pub time: Duration,
    /// Whether one more client asks all the time, which the case must see.
    pub plant: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Streams that the leader had.
    pub clients: u64,
    /// How long members were watched.
    pub time: Duration,
    /// Processor time of each member.
    pub used: BTreeMap<u32, Duration>,
}

impl Found {
    fn percent(&self, used: Duration) -> f64 {
        used.as_secs_f64() / self.time.as_secs_f64() * 100.0
    }

    /// Whether every member stayed below its bound.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.used.values().all(|&used| self.percent(used) < CORE_PERCENT_MAX)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RESULT clients={} seconds={:.1}", self.clients, self.time.as_secs_f64())?;
        for (id, &used) in &self.used {
            write!(f, " member_{id}_percent={:.2}", self.percent(used))?;
        }
        Ok(())
    }
}

/// Runs a plan.
///
/// # Errors
/// When the cluster does not run, or a member ends.
pub fn run(plan: Plan) -> Result<Found> {
    let scratch = Scratch::new("idle")?;
    let dir = scratch.path().join("cluster");
    let mut cluster = Cluster::init(&dir, plan.members, &["--durability", "process"])?;
    cluster.start_all()?;
    cluster.wait_until_all_follow()?;
    let mut clients = Vec::new();
    for own in 0..plan.clients {
        let mut client = Client::connect(cluster.options())?;
        let key = format!("idle-{own}");
        client.put(key.as_bytes(), b"here")?;
        let found = client.get(key.as_bytes())?;
        ensure!(found.is_some_and(|found| found.value == b"here"), "{key} is not there");
        clients.push(client);
    }
    let poller = plan.plant.then(|| Poller::start(&cluster)).transpose()?;
    std::thread::sleep(SETTLE);

    let ids = cluster.ids();
    let used = || ids.iter().map(|&id| Ok((id, cluster.cpu_time(id)?))).collect::<Result<_>>();
    let (before, began): (BTreeMap<u32, Duration>, _) = (used()?, Instant::now());
    std::thread::sleep(plan.time);
    let (after, time): (BTreeMap<u32, Duration>, _) = (used()?, began.elapsed());

    let leader = cluster.wait_for_leader()?;
    let status = cluster.status_of(leader, Duration::from_secs(1)).context("no status")?;
    let seen = status["door"]["clients"].as_u64().context("a count of clients")?;
    ensure!(seen >= u64::from(plan.clients), "only {seen} clients are still connected");
    drop((poller, clients));
    let used = after.iter().map(|(&id, &after)| (id, after.saturating_sub(before[&id]))).collect();
    Ok(Found { clients: seen, time, used })
}

/// A client that asks all the time, until it is dropped.
struct Poller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    fn start(cluster: &Cluster) -> Result<Self> {
        let mut client = Client::connect(cluster.options())?;
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let body =
            move || while !theirs.load(Ordering::Acquire) && client.get(b"idle-0").is_ok() {};
        let thread = std::thread::Builder::new().name("poller".to_owned()).spawn(body)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // What it was told does not matter.
            let _ended = thread.join();
        }
    }
}
