//! What a commit costs the leader: from taking the command to the commit index behind it.
//!
//! The members are real (regions, boards, shards) and run in threads of this process; the leader's
//! shard is turned by the thread that measures. No client and no door take part, so that what is
//! measured beside `raw-n` is the protocol and nothing else. The two take turns every thousand
//! operations: what disturbs the machine disturbs both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base::{Durability, MemberId};
use consensus::Event;
use consensus::session::Act;
use replica::{Answer, Answered, Request, Token};

use super::raw::{self, RawN};
use super::stamping::Stamping;
use crate::commands::{InitArguments, init};
use crate::latencies::Latencies;
use crate::layout::Cluster;
use crate::node::{Parts, Running, open};

/// How long the members may take to find a leader.
const ELECT_MAX: Duration = Duration::from_secs(30);
/// How long followers sleep after they found something, and otherwise.
const FOLLOWER_REST: Duration = Duration::from_millis(1);
const FOLLOWER_SLEEP: Duration = Duration::from_millis(50);
/// What a planted fault wastes.
const PLANTED_DELAY: Duration = Duration::from_micros(5);

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// A directory for the members, on the medium that shall be measured.
    pub(crate) dir: PathBuf,
    /// How many members.
    pub(crate) members: u32,
    /// Bytes of each value.
    pub(crate) bytes: u32,
    /// What durable means.
    pub(crate) mode: Durability,
    /// Commits at least.
    pub(crate) count: u64,
    /// Time at most.
    pub(crate) time_max: Duration,
    /// Whether the leader wastes time before each commit.
    pub(crate) plant_delay: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// One command at a time, until the commit index is behind it.
    pub(crate) latencies: Latencies,
    /// The same, until every member has been written and the leader is ready for the next.
    pub(crate) turns: Latencies,
    /// `raw-n` of as many bytes.
    pub(crate) raw: Latencies,
    /// Bytes that one commit stores on a member.
    pub(crate) entry_bytes: u32,
}

/// Measures; leaves nothing in the directory.
pub(crate) fn measure(commit: &Commit) -> Result<Found> {
    let dir = commit.dir.join(format!(".commit-{}", std::process::id()));
    let measured = run(commit, &dir);
    let removed = remove(&dir);
    let measured = measured?;
    removed?;
    Ok(measured)
}

fn remove(dir: &Path) -> Result<()> {
    if let Ok(cluster) = Cluster::read(dir) {
        let run_dir = cluster.run_dir();
        if run_dir.exists() {
            std::fs::remove_dir_all(run_dir)
                .with_context(|| format!("{}: cannot be removed", run_dir.display()))?;
        }
    }
    if dir.exists() {
        std::fs::remove_dir_all(dir)
            .with_context(|| format!("{}: cannot be removed", dir.display()))?;
    }
    Ok(())
}

fn run(commit: &Commit, dir: &Path) -> Result<Found> {
    init(
        dir,
        &InitArguments {
            members: commit.members,
            durability: commit.mode,
            segment_size: bytesize::ByteSize::mib(64),
            ..InitArguments::default()
        },
    )?;
    let cluster = Cluster::read(dir)?;
    let stop = Arc::new(AtomicBool::new(false));
    let followers = (2..=commit.members)
        .map(|id| follower(&cluster, MemberId(id), &stop))
        .collect::<Result<Vec<_>>>()?;
    let measured = lead(&cluster, commit);
    stop.store(true, Ordering::Release);
    for follower in followers {
        match follower.join() {
            Ok(ended) => ended?,
            Err(_) => bail!("a follower panicked"),
        }
    }
    measured
}

fn now(clock: Instant) -> base::Instant {
    base::Instant(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn follower(
    cluster: &Cluster,
    id: MemberId,
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<Result<()>>> {
    let (cluster, stop) = (cluster.clone(), Arc::clone(stop));
    let body = move || {
        let clock = Instant::now();
        let Parts { mut shard, .. } =
            open(&cluster, (id, &Running::default()), Stamping::default(), now(clock))?;
        while !stop.load(Ordering::Acquire) {
            shard.arm();
            let turn = shard.turn(now(clock));
            let until = turn.wake_at.since(now(clock));
            // As a member's own loop: a follower does not chase its leader's tail.
            let max = if turn.worked { FOLLOWER_REST } else { FOLLOWER_SLEEP };
            shard.wait(until.min(max));
        }
        drop(shard.into_fabric());
        Ok(())
    };
    std::thread::Builder::new().name(format!("member-{id}")).spawn(body).context("cannot start")
}

/// What the log entry of a command of so many bytes takes.
fn entry_bytes(command_len: usize) -> Result<u32> {
    let payload = consensus::session::ENVELOPE_LEN + command_len;
    let shape = logfmt::Shape { payload_len: u32::try_from(payload)?, aligned: false };
    Ok(u32::try_from(logfmt::place::place(0, shape).end)?)
}

fn lead(cluster: &Cluster, commit: &Commit) -> Result<Found> {
    let clock = Instant::now();
    let id = MemberId(1);
    let Parts { mut shard, group, .. } =
        open(cluster, (id, &Running::default()), Stamping::default(), now(clock))?;
    let began = Instant::now();
    let leads = |shard: &replica::Shard<_>| {
        let core: Option<&consensus::Core> = shard.core(group);
        core.is_some_and(|core| {
            let all = core.followers().filter(|follower| follower.is_replicating).count();
            core.leading_term().is_some() && all + 1 == commit.members as usize
        })
    };
    let mut asked = None;
    while !leads(&shard) {
        ensure!(began.elapsed() < ELECT_MAX, "no leader was found");
        // Connections first: a campaign without them only costs a term.
        let is_time = began.elapsed() > Duration::from_millis(300)
            && asked.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(2));
        if is_time && shard.core(group).is_some_and(|core| core.leading_term().is_none()) {
            asked = Some(Instant::now());
            shard.operate(group, Event::Campaign { overrules: false }, now(clock));
        }
        shard.turn(now(clock));
    }
    let command = vec![0x5a; commit.bytes as usize];
    let entry_bytes = entry_bytes(command.len())?;
    let mut floor = raw::Running::start(&RawN {
        dir: commit.dir.clone(),
        members: commit.members,
        bytes: entry_bytes,
        mode: commit.mode,
        count: commit.count,
        time_max: commit.time_max,
    })?;
    let (mut latencies, mut turns, mut raw) =
        (Latencies::new()?, Latencies::new()?, Latencies::new()?);
    let mut answers: Vec<Answered> = Vec::new();
    let began = Instant::now();
    while latencies.len() < commit.count && began.elapsed() < commit.time_max {
        if latencies.len().is_multiple_of(raw::SLICE) {
            floor.measure(raw::SLICE, &mut raw)?;
            // What has become due meanwhile is no part of the next commit.
            while shard.turn(now(clock)).worked {}
        }
        let request = Request::Write { act: Act::Plain, command: command.clone() };
        // A loop looks at the clock once a turn, whether there is a command or not.
        let mut turns_at = now(clock);
        let start = Instant::now();
        if commit.plant_delay {
            while start.elapsed() < PLANTED_DELAY {
                std::hint::spin_loop();
            }
        }
        shard.request(group, Token(0), request);
        loop {
            shard.turn(turns_at);
            shard.take_answers(&mut answers);
            if !answers.is_empty() {
                break;
            }
            ensure!(began.elapsed() < commit.time_max + ELECT_MAX, "a commit did not come");
            turns_at = now(clock);
        }
        let turned = Instant::now();
        let is_done = answers.drain(..).all(|answered| matches!(answered.answer, Answer::Done(_)));
        ensure!(is_done, "the leader lost its leadership while measuring");
        let committed = shard.machine(group).and_then(Stamping::stamped);
        latencies.record(committed.context("it was applied")?.duration_since(start));
        turns.record(turned.duration_since(start));
    }
    drop(shard.into_fabric());
    floor.stop()?;
    Ok(Found { latencies, turns, raw, entry_bytes })
}
