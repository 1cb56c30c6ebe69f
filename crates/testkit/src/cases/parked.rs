//! Every follower is stopped under load: commits go on at the same rate, without a single
//! instruction of theirs.
//!
//! ```text
//!   load       |- warm -|--- before ---|       |----- parked -----|           |--- before --- ..
//!   followers  run ---------------------SIGSTOP====================SIGCONT, all catch up
//! ```
//!
//! A stopped follower takes what fits into the segments that it has granted ahead; how much that is
//! is checked against the rate before it is stopped, so that a case without enough room says so
//! instead of measuring the wait for more. The regions lie in shared memory, which is never written
//! back.
//!
//! A rate within some percent can be compared only on a machine that does nothing else: a round in
//! which other processes used more than a little does not count, and if none counts, nothing was
//! measured. Of those that count, the one in the middle does.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use client::blocking::Client;
use serde_json::Value;

use crate::cluster::{Cluster, LEADER_MAX, Scratch, process_time};
use crate::writers::{Shape, Told, Writers};

/// The least part of the rate that must remain.
const RATIO_MIN: f64 = 0.95;
/// Load before anything is measured.
const WARM: Duration = Duration::from_secs(2);
/// How long the rate is measured before.
const BEFORE: Duration = Duration::from_secs(6);

/// The part of the machine's processor time that others may use while a rate is measured.
const OTHERS_MAX: f64 = 0.05;
/// Segments that a follower keeps granted and not begun.
const SEGMENTS_AHEAD: u64 = 2;
/// What a put of these clients takes in a segment at most: 48 bytes of header, 32 of envelope, a
/// key of up to 16 and a value of up to 20 bytes with their lengths, up to 8 of padding.
const ENTRY_BYTES_MAX: u64 = 160;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// Clients.
    pub clients: u32,
    /// How often the followers are stopped.
    pub rounds: u32,
    /// How long.
    pub time: Duration,
    /// Where the members' directories are made.
    pub dir: PathBuf,
    /// Whether one follower is let run on, which the case must see.
    pub plant: bool,
}

/// One time that the followers were stopped.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Commits a second while the followers ran.
    pub rate_before: f64,
    /// Commits a second while they were stopped.
    pub rate_parked: f64,
    /// Processor time of the leader for each commit, before and while they were stopped: a busy
    /// machine lowers the rate, and this not.
    pub leader_cpu: (Duration, Duration),
    /// Processor time of all followers while they were stopped.
    pub follower_cpu: Duration,
    /// How long a follower's room would have lasted at the rate before.
    pub room: Duration,
    /// The part of the machine's processor time that other processes used, in the worse interval.
    pub others: f64,
}

impl Round {
    fn counts(&self) -> bool {
        self.others <= OTHERS_MAX
    }

    fn ratio(&self) -> f64 {
        self.rate_parked / self.rate_before
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rounds, the one with the lowest ratio first.
    pub rounds: Vec<Round>,
    /// What the clients were told.
    pub told: Told,
    /// Acknowledged writes that are not there in the end.
    pub lost: Vec<String>,
}

impl Found {
    /// The round that counts.
    fn middle(&self) -> Option<&Round> {
        let counting: Vec<&Round> = self.rounds.iter().filter(|round| round.counts()).collect();
        counting.get(counting.len() / 2).copied()
    }

    fn follower_cpu(&self) -> Duration {
        self.rounds.iter().map(|round| round.follower_cpu).sum()
    }

    /// Whether commits went on at their rate, without the followers.
    ///
    /// # Errors
    /// When the rate could not be measured, and all else holds.
    pub fn holds(&self) -> Result<bool> {
        if !self.follower_cpu().is_zero() || self.told.failed() > 0 || !self.lost.is_empty() {
            return Ok(false);
        }
        let middle = self.middle().context(
            "other processes used the machine in every round: no rate can be compared; try again \
             when it is quiet",
        )?;
        Ok(middle.ratio() >= RATIO_MIN)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in &self.rounds {
            let (before, parked) = round.leader_cpu;
            writeln!(
                f,
                "{:.0}/s before, {:.0}/s parked, ratio {:.3}; the leader used {before:.2?} a \
                 commit, {parked:.2?} parked; room for {:.1?}; others used {:.0} %",
                round.rate_before,
                round.rate_parked,
                round.ratio(),
                round.room,
                round.others * 100.0,
            )?;
        }
        for text in self.told.texts.iter().chain(&self.lost) {
            writeln!(f, "{text}")?;
        }
        write!(f, "RESULT")?;
        if let Some(middle) = self.middle() {
            let (before, parked) = (middle.rate_before, middle.rate_parked);
            let ratio = middle.ratio();
            write!(f, " rate_before={before:.0} rate_parked={parked:.0} ratio={ratio:.3}")?;
        }
        write!(
            f,
            " follower_cpu_ms={} failed={} lost={} rounds={} rounds_counted={}",
            self.follower_cpu().as_millis(),
            self.told.failed(),
            self.lost.len(),
            self.rounds.len(),
            self.rounds.iter().filter(|round| round.counts()).count(),
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// When the followers had not granted enough room, or leadership moved.
pub fn run(plan: &Plan) -> Result<Found> {
    ensure!(plan.rounds > 0, "at least one round");
    let scratch = Scratch::new_in(&plan.dir, "parked")?;
    let dir = scratch.path().join("cluster");
    let mut cluster = Cluster::init(&dir, plan.members, &["--durability", "process"])?;
    cluster.start_all()?;
    let leader = cluster.wait_until_all_follow()?;
    let shape = Shape { clients: plan.clients, keys_each: 64, reads: false };
    let writers = Writers::start(&cluster.options(), shape)?;
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        std::thread::sleep(WARM);
        rounds.push(park(&mut cluster, leader, plan)?);
    }
    let told = writers.finish()?;
    cluster.wait_until_all_follow()?;
    let lost = told.lost(&mut Client::connect(cluster.options())?)?;
    rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    Ok(Found { rounds, told, lost })
}

fn park(cluster: &mut Cluster, leader: u32, plan: &Plan) -> Result<Round> {
    let followers: Vec<u32> = cluster.ids().into_iter().filter(|&id| id != leader).collect();
    let before = measure(cluster, leader, BEFORE)?;
    let room = room_ahead(&before)?;
    ensure!(
        room >= plan.time,
        "at {:.0} commits/s the room of a follower lasts {room:.1?} only: it cannot be stopped for \
         {:?}",
        before.rate,
        plan.time
    );
    let running = if plan.plant { followers.last() } else { None };
    for &id in followers.iter().filter(|&id| running != Some(id)) {
        cluster.stop(id)?;
        wait_until_stopped(cluster, id)?;
    }
    let cpu = || -> Result<Duration> { followers.iter().map(|&id| cluster.cpu_time(id)).sum() };
    let cpu_before = cpu()?;
    let parked = measure(cluster, leader, plan.time)?;
    let follower_cpu = cpu()?.saturating_sub(cpu_before);
    for &id in &followers {
        cluster.go_on(id)?;
    }
    for &id in &followers {
        wait_until_caught_up(cluster, id, parked.commit)?;
    }
    Ok(Round {
        rate_before: before.rate,
        rate_parked: parked.rate,
        leader_cpu: (before.cpu_each, parked.cpu_each),
        follower_cpu,
        room,
        others: before.others.max(parked.others),
    })
}

struct Measured {
    /// Commits a second.
    rate: f64,
    /// Processor time of the leader for each commit.
    cpu_each: Duration,
    /// The part of the machine's processor time that other processes used.
    others: f64,
    /// Bytes of a segment.
    segment_bytes: u64,
    /// The commit index at the end.
    commit: u64,
}

/// How fast the leader commits.
fn measure(cluster: &Cluster, leader: u32, time: Duration) -> Result<Measured> {
    let look = || -> Result<(Instant, Value)> {
        let said = cluster.status_of(leader, Duration::from_secs(2));
        let said = said.context("the leader does not say how it is")?;
        ensure!(said["role"] == "leader", "member {leader} leads no more");
        Ok((Instant::now(), said))
    };
    let commit = |said: &Value| said["commit_index"].as_u64().context("a commit index");
    let (began, first) = look()?;
    let (cpu, others) = (cluster.cpu_time(leader)?, others_time(cluster)?);
    std::thread::sleep(time);
    let (ended, last) = look()?;
    let cpu = cluster.cpu_time(leader)?.saturating_sub(cpu);
    let others = others_time(cluster)?.saturating_sub(others);
    ensure!(first["term"] == last["term"], "leadership moved while the rate was measured");
    let commits = u32::try_from(commit(&last)? - commit(&first)?)?;
    let seconds = ended.duration_since(began).as_secs_f64();
    let rate = f64::from(commits) / seconds;
    let processors = u32::try_from(std::thread::available_parallelism()?.get())?;
    let others = others.as_secs_f64() / (seconds * f64::from(processors));
    let segment_bytes = last["segments"]["bytes_each"].as_u64().context("a length")?;
    Ok(Measured {
        rate,
        cpu_each: cpu / commits.max(1),
        others,
        segment_bytes,
        commit: commit(&last)?,
    })
}

/// Processor time of this machine that neither the members nor this process used.
fn others_time(cluster: &Cluster) -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let fields = line.context("the first line of /proc/stat")?.split_ascii_whitespace();
    let ticks = fields.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; what guests use is in user already.
    let busy = ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    let busy = Duration::from_millis(busy.map(|(_, ticks)| ticks * 10).sum());
    let members: Duration =
        cluster.running().into_iter().map(|id| cluster.cpu_time(id)).sum::<Result<_>>()?;
    Ok(busy.saturating_sub(members + process_time(std::process::id())?))
}

/// How long what a follower has granted ahead lasts at a rate; all members have one layout.
fn room_ahead(measured: &Measured) -> Result<Duration> {
    let entries = u32::try_from(SEGMENTS_AHEAD * measured.segment_bytes / ENTRY_BYTES_MAX)?;
    Ok(Duration::from_secs_f64(f64::from(entries) / measured.rate))
}

/// Waits until no thread of a member can run.
fn wait_until_stopped(cluster: &Cluster, id: u32) -> Result<()> {
    let began = Instant::now();
    let tasks = format!("/proc/{}/task", cluster.pid(id)?);
    while began.elapsed() < LEADER_MAX {
        let mut are_stopped = true;
        for task in std::fs::read_dir(&tasks)? {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            let (_, rest) = stat.rsplit_once(')').context("a line of /proc/PID/task/TID/stat")?;
            are_stopped &= rest.trim_start().starts_with('T');
        }
        if are_stopped {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("member {id} does not stop within {LEADER_MAX:?}")
}

/// Waits until a member knows what was committed while it was stopped.
fn wait_until_caught_up(cluster: &Cluster, id: u32, commit: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < LEADER_MAX {
        let said = cluster.status_of(id, Duration::from_secs(1));
        if said.and_then(|said| said["commit_index"].as_u64()).is_some_and(|own| own >= commit) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("member {id} does not catch up within {LEADER_MAX:?}")
}
