//! A member that missed far more than the log holds comes back by a snapshot, although sender and
//! receiver are killed on the way; meanwhile disk, memory and the waits of clients stay bounded.
//!
//! ```text
//!   all run      | one is down  | no load | one key    | the member returns         |
//!   fill         | overwrite    | steady  | checkpoint | transfer  election transfer| verify
//!   the live     | 10 x the log | memory  | live state | receiver  leader   done    | every key
//!   state        | paced        | before  | constant   | killed    killed           | at the member
//! ```
//!
//! A client that writes a small key every few milliseconds goes on through all of it; its longest
//! wait is what a checkpoint or a transfer costs others. The wait for another leader after the kill
//! is counted apart: nobody can answer then.

mod load;
mod watch;

use std::time::{Duration, Instant as Clock, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};

use self::load::{Load, Work};
use self::watch::Watch;
use crate::cluster::{Cluster, Scratch};

/// The most that the leader's own memory may grow for a checkpoint or a transfer, in bytes.
pub const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// The longest that a write may wait for a checkpoint or a transfer.
pub const WAIT_MAX: Duration = Duration::from_millis(50);
/// How often the log's space is written while the member is down.
const TIMES_LOG: u64 = 10;
/// How long any part may take on a slow machine.
const PART_MAX: Duration = Duration::from_secs(900);
/// How long memory is looked at before anything happens to it.
const STEADY: Duration = Duration::from_secs(2);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// Bytes of values that are alive at any time.
    pub live_bytes: u64,
    /// Bytes of one value.
    pub value_bytes: u64,
    /// Bytes of one segment of the log.
    pub segment_bytes: u64,
    /// Segments of the log.
    pub segments: u32,
    /// Bytes a second that overwrite the live state: no more than checkpoints can free log for.
    pub rate: u64,
    /// Whether one key is expected with a value that nobody wrote, which the case must see.
    pub plant: bool,
}

impl Plan {
    const fn log_bytes(&self) -> u64 {
        self.segment_bytes * self.segments as u64
    }

    fn keys(&self) -> u64 {
        (self.live_bytes / self.value_bytes).max(1)
    }

    /// What a member's directory may take: its log, small change, and three state files: the one in
    /// force, the next one while it is written, and one that a late member is still fetching.
    #[must_use]
    pub const fn dir_bytes_bound(&self) -> u64 {
        let state_file = self.live_bytes + self.live_bytes / 64 + 2 * self.value_bytes;
        self.log_bytes() + 3 * state_file + (4 << 20)
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Bytes written while the member was down.
    pub written_bytes: u64,
    /// The most that the directory of a running member took.
    pub dir_bytes_max: u64,
    /// States that the member received, as it says.
    pub received: u64,
    /// What the leader's memory grew by, with the live state constant.
    pub growth_bytes: u64,
    /// The same while the live state was being overwritten: a checkpoint keeps what it has still to
    /// write, old values included.
    pub overwrite_growth_bytes: u64,
    /// The longest wait of a small write but for the leader's kill.
    pub wait_max: Duration,
    /// The longest wait in each part, in its order.
    pub waits: Vec<(&'static str, Duration)>,
    /// How long the transfer took after the last kill.
    pub transfer: Duration,
    /// Keys without their acknowledged value.
    pub lost: u64,
}

impl Found {
    /// Whether every bound holds.
    #[must_use]
    pub fn holds(&self, plan: &Plan) -> bool {
        self.received > 0
            && self.lost == 0
            && self.written_bytes >= TIMES_LOG * plan.log_bytes()
            && self.dir_bytes_max <= plan.dir_bytes_bound()
            && self.growth_bytes < GROWTH_BYTES_MAX
            && self.wait_max <= WAIT_MAX
    }

    /// Tells what was found, and in one line what is judged.
    pub fn print(&self, plan: &Plan) {
        for (name, wait) in &self.waits {
            println!("longest wait of a small write, {name}: {wait:.1?}");
        }
        println!("the transfer after the last kill took {:.1?}", self.transfer);
        println!("memory grew by {} bytes while overwriting", self.overwrite_growth_bytes);
        println!("a member's directory may take {} bytes", plan.dir_bytes_bound());
        println!(
            "RESULT written_bytes={} live_bytes={} dir_bytes_max={} received={} growth_bytes={} \
             wait_max_ms={} lost={}",
            self.written_bytes,
            plan.live_bytes,
            self.dir_bytes_max,
            self.received,
            self.growth_bytes,
            self.wait_max.as_millis(),
            self.lost
        );
    }
}

/// What is being done, for the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Fill,
    Overwrite,
    Steady,
    Checkpoint,
    Transfer,
    Election,
    Resumed,
    Verify,
}

impl Phase {
    const ALL: [Self; 8] = [
        Self::Fill,
        Self::Overwrite,
        Self::Steady,
        Self::Checkpoint,
        Self::Transfer,
        Self::Election,
        Self::Resumed,
        Self::Verify,
    ];
    /// Those in which no write may wait.
    const JUDGED: [Self; 4] = [Self::Overwrite, Self::Checkpoint, Self::Transfer, Self::Resumed];

    const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Overwrite => "overwrite",
            Self::Steady => "steady",
            Self::Checkpoint => "checkpoint",
            Self::Transfer => "transfer",
            Self::Election => "election",
            Self::Resumed => "resumed",
            Self::Verify => "verify",
        }
    }
}

/// Runs a plan.
///
/// # Errors
/// When the cluster does not come back, or a part does not come to its end.
pub fn run(plan: Plan) -> Result<Found> {
    let scratch = Scratch::new("snapshot")?;
    let dir = scratch.path().join("cluster");
    let segment_size = format!("{}B", plan.segment_bytes);
    let max_state = format!("{}B", 2 * plan.live_bytes + (64 << 20));
    let segments = plan.segments.to_string();
    let mut cluster = Cluster::init(
        &dir,
        plan.members,
        &[
            "--durability",
            "process",
            "--segment-size",
            &segment_size,
            "--segments",
            &segments,
            "--max-state",
            &max_state,
        ],
    )?;
    cluster.start_all()?;
    cluster.wait_for_leader()?;
    let load = Load::start(&cluster.options(), &plan)?;
    let mut case = Case { plan, cluster, load, watch: Watch::default(), phase: Phase::Fill };
    let late = case.write_much()?;
    let steady_leader = case.checkpoint_alone()?;
    let received = case.bring_back(late, steady_leader)?;
    case.judge(late, received)
}

struct Received {
    states: u64,
    transfer: Duration,
    growth_bytes: u64,
}

struct Case {
    plan: Plan,
    cluster: Cluster,
    load: Load,
    watch: Watch,
    phase: Phase,
}

impl Case {
    fn enter(&mut self, phase: Phase) {
        println!("{:>10} after {:.1?}", phase.name(), self.load.elapsed());
        self.phase = phase;
        self.load.enter(phase);
    }

    /// Looks at the members until `is_done`.
    fn watch_until(&mut self, mut is_done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let began = Clock::now();
        while !is_done(self)? {
            self.watch.look(&self.cluster, self.phase)?;
            ensure!(
                began.elapsed() < PART_MAX,
                "{} did not come to its end within {PART_MAX:?}",
                self.phase.name()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn said(&self, id: u32, field: &str) -> Option<u64> {
        self.cluster.status_of(id, Duration::from_millis(500))?[field].as_u64()
    }

    /// Writes the live state, stops a follower, and overwrites the live state many times.
    fn write_much(&mut self) -> Result<u32> {
        let live = self.plan.keys() * self.plan.value_bytes;
        self.load.begin(Work::Overwrite { rate: u64::MAX });
        self.watch_until(|case| Ok(case.load.written() >= live))?;
        let leader = self.cluster.wait_for_leader()?;
        let late = self.cluster.running().into_iter().find(|&id| id != leader);
        let late = late.context("a group of one has nobody to come back")?;
        self.cluster.kill(late)?;
        self.load.begin(Work::Overwrite { rate: self.plan.rate });
        self.enter(Phase::Overwrite);
        let through = self.load.written() + TIMES_LOG * self.plan.log_bytes();
        self.watch_until(|case| Ok(case.load.written() >= through))?;
        Ok(late)
    }

    /// Lets the members come to rest, then makes the leader take a checkpoint while one key alone
    /// changes.
    fn checkpoint_alone(&mut self) -> Result<u32> {
        self.load.begin(Work::Pause);
        let leader = self.cluster.wait_for_leader()?;
        let mut still_since = (Clock::now(), None);
        self.watch_until(|case| {
            let bytes = watch::state_files(&case.cluster.member_dir(leader))?;
            if still_since.1.as_ref() != Some(&bytes) {
                still_since = (Clock::now(), Some(bytes));
            }
            Ok(still_since.0.elapsed() > STEADY)
        })?;
        self.enter(Phase::Steady);
        let began = Clock::now();
        self.watch_until(|_| Ok(began.elapsed() > STEADY))?;
        self.enter(Phase::Checkpoint);
        let before = self.said(leader, "checkpoints").context("the leader does not answer")?;
        self.load.begin(Work::OneKey { rate: self.plan.rate });
        self.watch_until(|case| {
            Ok(case.said(leader, "checkpoints").is_some_and(|now| now > before))
        })?;
        self.load.begin(Work::Pause);
        Ok(leader)
    }

    /// Starts the member, kills it while it receives, then the leader while it sends.
    fn bring_back(&mut self, late: u32, leader: u32) -> Result<Received> {
        self.enter(Phase::Transfer);
        self.start_receiving(late, 4)?;
        self.cluster.kill(late)?;
        println!("the receiver was killed while it received");
        self.start_receiving(late, 2)?;
        let growth = self.watch.growth(leader, &[Phase::Checkpoint, Phase::Transfer]);
        self.enter(Phase::Election);
        self.cluster.kill(leader)?;
        println!("the sender was killed while it sent");
        let answered = self.load.answered();
        self.cluster.start(leader)?;
        self.watch_until(|case| Ok(case.load.answered() > answered + 2))?;
        self.enter(Phase::Resumed);
        let began = Clock::now();
        let mut states = 0;
        self.watch_until(|case| {
            states = case.said(late, "states_received").unwrap_or(0);
            Ok(states > 0 && case.has_caught_up(late))
        })?;
        let transfer = began.elapsed();
        let sender = self.cluster.wait_for_leader()?;
        let resumed = self.watch.growth(sender, &[Phase::Resumed]);
        // A leader that was just started again has no memory from before to compare with.
        let growth_bytes = if sender == leader { growth } else { growth.max(resumed) };
        Ok(Received { states, transfer, growth_bytes })
    }

    fn has_caught_up(&self, late: u32) -> bool {
        let Some(leader) = self.cluster.leader() else { return false };
        let commit = self.said(leader, "commit_index");
        commit.is_some_and(|commit| {
            self.said(late, "applied_index") >= Some(commit.saturating_sub(64))
        })
    }

    /// Starts a member and waits until it has received one part in `parts` of the state.
    fn start_receiving(&mut self, id: u32, parts: u64) -> Result<()> {
        let dir = self.cluster.member_dir(id);
        let began = SystemTime::now();
        self.cluster.start(id)?;
        let wanted = self.plan.live_bytes / parts;
        self.watch_until(|case| {
            // By their times: numbers are used again once what an earlier life left is removed.
            let files = watch::state_files(&dir)?.into_iter();
            let bytes = files.filter(|file| file.written_at >= began).map(|file| file.bytes).max();
            let bytes = bytes.unwrap_or(0);
            if bytes >= case.plan.live_bytes {
                bail!("the transfer was over before it was interrupted: use a larger --live-bytes");
            }
            Ok(bytes >= wanted)
        })
    }

    fn judge(mut self, late: u32, received: Received) -> Result<Found> {
        self.enter(Phase::Verify);
        let written_bytes = self.load.written() - self.plan.keys() * self.plan.value_bytes;
        let mut expected = self.load.finish()?;
        // What the member received is what is read: it answers as the leader.
        self.cluster.make_leader(late)?;
        let lost = expected.lost(&self.cluster.options(), self.plan.plant)?;
        let wait = |phase: Phase| expected.waits.get(&phase).copied().unwrap_or_default();
        let leader_growth =
            self.cluster.ids().iter().map(|&id| self.watch.growth(id, &[Phase::Overwrite])).max();
        Ok(Found {
            written_bytes,
            dir_bytes_max: self.watch.dir_bytes_max,
            received: received.states,
            growth_bytes: received.growth_bytes,
            overwrite_growth_bytes: leader_growth.unwrap_or(0),
            wait_max: Phase::JUDGED.iter().map(|&phase| wait(phase)).max().unwrap_or_default(),
            waits: Phase::ALL.iter().map(|&phase| (phase.name(), wait(phase))).collect(),
            transfer: received.transfer,
            lost,
        })
    }
}
