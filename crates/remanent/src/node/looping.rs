//! The loop of a member: one thread owns its shard and its door.
//!
//! ```text
//!   asks -> turn -> answers, until nothing is left to do; then look again for a short while,
//!   then arm the doorbell, look once more, and sleep until somebody rings or a timer is due
//! ```
//!
//! # The end
//! When told to stop, a leader first hands its leadership over: clients go on at the new one. Then
//! the door answers "stopping", what was under way gets its answers, and everything is closed in
//! order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use anyhow::Result;
use base::{GroupId, Instant, MemberId};
use consensus::Event;
use proto::door::AnswerKind;
use replica::{Answered, Notice, Shard};
use store::Store;
use tracing::{error, info, warn};

use super::door::{Door, Errand, Wanted};
use super::env::{NodeEnv, Parts, Running, open};
use super::status::{NodeStatus, Seen};
use crate::layout::Cluster;

/// The longest sleep: a peer that was killed does not ring.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// How long a follower lets entries gather before it looks at them.
const REST: Duration = Duration::from_millis(1);
/// How long answers may take to leave once the member stops.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// Runs a member until `stop` is set; whoever sets it calls what `on_open` was given.
///
/// # Errors
/// When the member cannot be opened.
pub(crate) fn run(
    cluster: &Cluster,
    id: MemberId,
    running: &Running,
    stop: &AtomicBool,
    on_open: impl FnOnce(fabric::shm::Waker),
) -> Result<()> {
    pin(running.cpu)?;
    let clock = Clock::now();
    let parts = open(cluster, (id, running), Store::new(cluster.max_state_bytes()), now(clock))?;
    on_open(parts.waker.clone());
    info!(member = id.0, mode = parts.mode.name(), dir = %cluster.dir().display(), "open");
    let mut node = Node::new(parts, cluster, id, running, clock)?;
    node.serve(stop);
    node.close();
    info!(member = id.0, "closed");
    Ok(())
}

fn now(clock: Clock) -> Instant {
    Instant(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    anyhow::ensure!(cpu < rustix::thread::CpuSet::MAX_CPU, "there is no processor {cpu}");
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| anyhow::anyhow!("cannot bind to processor {cpu}: {error}"))
}

/// What a turn did.
#[derive(Clone, Copy, Debug)]
struct Turned {
    is_asked: bool,
    worked: bool,
    wake_at: Instant,
}

struct Node {
    shard: Shard<NodeEnv<Store>>,
    group: GroupId,
    door: Door,
    id: MemberId,
    spin: Duration,
    clock: Clock,
    suspicion_timeout: Duration,
    status: NodeStatus,
    answers: Vec<Answered>,
    errands: Vec<Errand>,
    notices: Vec<(GroupId, Notice)>,
    /// Members that were asked to take over, when this one stops.
    tried: Vec<MemberId>,
    /// A key that this member is to lose, so that a checker can show that it sees it.
    plant_loss: Option<Vec<u8>>,
}

impl Node {
    fn new(
        parts: Parts<Store>,
        cluster: &Cluster,
        id: MemberId,
        running: &Running,
        clock: Clock,
    ) -> Result<Self> {
        Ok(Self {
            status: NodeStatus::new(cluster, id, parts.mode),
            shard: parts.shard,
            group: parts.group,
            door: Door::new(parts.porter)?,
            id,
            spin: running.spin,
            clock,
            suspicion_timeout: running.suspicion_timeout,
            answers: Vec::new(),
            errands: Vec::new(),
            notices: Vec::new(),
            tried: Vec::new(),
            plant_loss: running.plant_loss.clone(),
        })
    }

    /// One turn of everything: whether clients asked, whether there was anything to do at all, and
    /// when to come again.
    fn turn(&mut self) -> Turned {
        let Self { shard, door, errands, answers, .. } = self;
        let asked_at = now(self.clock);
        let is_asked = door.take_asks(
            asked_at,
            |group, token, request| shard.request(group, token, request),
            errands,
        );
        let now = if is_asked { now(self.clock) } else { asked_at };
        let turn = shard.turn(now);
        let mut worked = is_asked || turn.worked;
        shard.take_answers(answers);
        if !answers.is_empty() {
            worked |= door.give_answers(crate::node::looping::now(self.clock), answers);
        }
        worked |= self.run_errands(now);
        self.tell_notices();
        self.lose_planted();
        Turned { is_asked, worked, wake_at: turn.wake_at }
    }

    /// Whether this is a follower that has applied all that it knows to be committed.
    fn trails(&self) -> bool {
        self.shard.core(self.group).is_some_and(|core| {
            matches!(core.role(), consensus::Role::Follower)
                && self.shard.applied(self.group) >= Some(core.commit_index())
        })
    }

    /// Lets entries gather, unless somebody rings. A follower that chases its leader's tail takes a
    /// processor, and the very cache lines that the leader writes, and gains nothing by it.
    fn rest(&mut self) {
        self.shard.arm();
        let turned = self.turn();
        let is_free = !turned.is_asked && self.trails();
        let until = turned.wake_at.since(now(self.clock)).min(REST);
        self.shard.wait(if is_free { until } else { Duration::ZERO });
        self.status.sleeps += u64::from(is_free);
    }

    fn lose_planted(&mut self) {
        if let (Some(key), Some(machine)) =
            (&self.plant_loss, self.shard.machine_mut_for_faults(self.group))
            && machine.lose_for_faults(key)
        {
            warn!(member = self.id.0, "planted fault: a key was lost");
            self.plant_loss = None;
        }
    }

    fn serve(&mut self, stop: &AtomicBool) {
        let mut idle_since = None;
        while !stop.load(Ordering::Acquire) {
            self.go_on(&mut idle_since);
        }
        self.hand_over(&mut idle_since);
    }

    /// A turn, and a rest if there was nothing to do.
    fn go_on(&mut self, idle_since: &mut Option<Clock>) {
        let turned = self.turn();
        if turned.worked {
            *idle_since = None;
            if !turned.is_asked && self.trails() {
                self.rest();
            }
            return;
        }
        let since = *idle_since.get_or_insert_with(Clock::now);
        if since.elapsed() < self.spin {
            return std::hint::spin_loop();
        }
        self.shard.arm();
        let Turned { worked, wake_at, .. } = self.turn();
        let until = wake_at.since(now(self.clock)).min(SLEEP_MAX);
        // With work found it only takes the announcement back.
        self.shard.wait(if worked { Duration::ZERO } else { until });
        self.status.sleeps += u64::from(!worked);
        // After a sleep one look is enough to know; spinning begins again with the next work.
        *idle_since = if worked { None } else { *idle_since };
    }

    fn leads(&self) -> bool {
        self.shard.core(self.group).is_some_and(|core| core.leading_term().is_some())
    }

    /// Gives leadership to another member, if there is one that can take it.
    fn hand_over(&mut self, idle_since: &mut Option<Clock>) {
        let limit = self.suspicion_timeout * 4;
        let began = Clock::now();
        while self.leads() && began.elapsed() < limit {
            if !self.shard.core(self.group).is_some_and(consensus::Core::is_transferring) {
                let Some(to) = self.successor() else { break };
                self.tried.push(to);
                let now = now(self.clock);
                self.shard.operate(self.group, Event::Transfer { to }, now);
            }
            self.go_on(idle_since);
        }
        self.door.stop();
        let began = Clock::now();
        while !self.door.is_quiet() && began.elapsed() < CLOSING_MAX {
            self.go_on(idle_since);
        }
    }

    /// The voter with the longest log among those not asked yet.
    fn successor(&self) -> Option<MemberId> {
        let (core, log) = (self.shard.core(self.group)?, self.shard.log(self.group)?);
        let followers = core.followers().filter(|follower| follower.is_replicating);
        let able = followers.filter(|follower| log.configuration().1.is_voter(follower.id));
        able.filter(|follower| !self.tried.contains(&follower.id))
            .max_by_key(|follower| follower.tail)
            .map(|follower| follower.id)
    }

    fn run_errands(&mut self, now: Instant) -> bool {
        let worked = !self.errands.is_empty();
        while let Some(errand) = self.errands.pop() {
            match errand.what {
                Wanted::Status => {
                    let seen = Seen { shard: &self.shard, group: self.group, now };
                    let text = self.status.render(&seen, &self.door);
                    self.door.say(errand.token, &AnswerKind::Status(&text));
                }
                Wanted::Transfer(to) if self.leads() => {
                    self.tried.clear();
                    match to.or_else(|| self.successor()) {
                        Some(to) => {
                            self.shard.operate(errand.group, Event::Transfer { to }, now);
                            self.door.say(errand.token, &AnswerKind::Noted);
                        }
                        None => {
                            let why = "no other member could take over now";
                            self.door.say(errand.token, &AnswerKind::Bad(why));
                        }
                    }
                }
                Wanted::Transfer(_) => {
                    let leader = self.shard.core(self.group).and_then(consensus::Core::leader);
                    self.door.say(errand.token, &AnswerKind::NotLeader(leader));
                }
            }
        }
        worked
    }

    fn tell_notices(&mut self) {
        self.shard.take_notices(&mut self.notices);
        for (group, notice) in self.notices.drain(..) {
            self.status.note(&notice);
            let (member, group) = (self.id.0, group.0);
            match notice {
                Notice::Leads(term) => info!(member, group, term = term.0, "leads"),
                Notice::Deposed(term) => info!(member, group, term = term.0, "leads no more"),
                Notice::ChangeRefused(why) => info!(member, group, why, "refused"),
                Notice::Checkpoint(at) => info!(member, group, index = at.0, "checkpoint"),
                Notice::Installed(at) => {
                    info!(member, group, index = at.0, "state came from another member");
                }
                Notice::PeerRefused(peer, why) => {
                    warn!(member, group, peer = peer.0, why, "peer refused");
                }
                Notice::Failed(why) => error!(
                    member,
                    group,
                    why,
                    "storage failed: this member takes part no more; find the cause, then restart it"
                ),
                Notice::Damaged(why) => warn!(member, group, why, "damage"),
                Notice::Time(_) => {}
            }
        }
    }

    fn close(self) {
        let Self { shard, door, .. } = self;
        drop(door);
        drop(shard.into_fabric());
    }
}
