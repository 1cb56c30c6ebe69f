//! The shard: one owner of some groups, the connections to the peers' shards, and one loop.
//!
//! [`Shard::turn`] has no thread, clock, sleep or spin in it: whoever owns the shard calls it with
//! the time and learns whether it did anything and when it wants to be called again.
//!
//! ```text
//!  turn:  requests -> completions, each commit applied at once -> followers beyond a majority
//!           -> completions -> durability -> walk -> apply
//!           -> fabric events -> answers to effects -> ticks -> checkpoints and transfers
//!           -> durability -> publish
//! ```

use std::ops::Range;

use base::{GroupId, Index, Instant, MemberId};
use consensus::{Connection, Event, Message, wire};
use fabric::{
    Access, Completion, Fabric, FabricEvent, Key, PostError, RegionId, RegisterError, Sleep, Status,
};
use logfmt::{CONTROL_LEN, ControlLine};
use pmem::Region;

use crate::{
    door::{Answered, Notice, Request, Token},
    env::{Env, Resources},
    greeting::{GROUPS_MAX, Greeting, GroupGreeting},
    group::Group,
    limits::{CONTROL_BYTES, FETCH_BYTES_MIN, MESSAGE_MIN},
    machine::StateMachine,
    shared::{Link, PEERS_MAX, Purpose, Queued, Shared, post_message, purpose_of},
    start::{OpenError, Opening, check, restore},
};

/// Fabric events that one turn takes.
const EVENTS_PER_TURN: u32 = 64;
/// Completions that are taken at once.
const COMPLETIONS_AT_ONCE: usize = 16;
/// How often one turn takes them.
const COMPLETION_ROUNDS: u32 = 4;

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether there was anything to do: call again at once.
    pub worked: bool,
    /// Otherwise, when to call again even if nothing rings.
    pub wake_at: Instant,
}

/// Why a group cannot join a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The member cannot start.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// Memory cannot be registered.
    #[error("{0}")]
    Register(#[from] RegisterError),
    /// The shard is full.
    #[error("a shard has at most {GROUPS_MAX} groups")]
    Full,
    /// The shard's own memory, or what the fabric takes at once, is too small for what it must hold.
    #[error("{what} takes {found} and must take {expected}")]
    TooSmall {
        /// What is too small.
        what: &'static str,
        /// How much it takes.
        found: u64,
        /// How much is needed.
        expected: u64,
    },
}

/// A shard. See the module.
pub struct Shard<E: Env> {
    shared: Shared<E>,
    groups: Vec<Group<E>>,
    control_key: Key,
    connect_at: Instant,
    bytes: Vec<u8>,
    completions: Vec<Completion>,
}

impl<E: Env> std::fmt::Debug for Shard<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("member", &self.shared.member)
            .field("groups", &self.groups.len())
            .finish_non_exhaustive()
    }
}

impl<E: Env> Shard<E> {
    /// A shard without groups. `control_id` and `landing_id` name its two memories to the fabric.
    ///
    /// # Errors
    /// [`JoinError`] when its memories are too small or cannot be registered.
    pub fn new(
        resources: Resources<E>,
        (control_id, landing_id): (RegionId, RegionId),
    ) -> Result<Self, JoinError> {
        let Resources { member, mut fabric, control, landing, .. } = resources;
        let lines = CONTROL_BYTES;
        require("control memory", control.len(), lines)?;
        let fetch_at = lines * PEERS_MAX;
        require("landing memory", landing.len(), fetch_at + FETCH_BYTES_MIN)?;
        let caps = fabric.caps();
        for (what, found, expected) in [
            ("a message", caps.message_max, MESSAGE_MIN),
            ("a chain", caps.chain_max, 4),
            ("a WRITE's list of pieces", caps.pieces_max, 2),
            ("inline data", caps.inline_max, 64),
        ] {
            require(what, u64::from(found), u64::from(expected))?;
        }
        let control_key = fabric.register(control_id, 0..lines, Access::Read)?;
        let shared = Shared::new(member, fabric, (control, landing, landing_id));
        let connect_at = Instant(0);
        let blank = Completion { qp: fabric::Qp(0), id: 0, status: Status::Flushed, word: 0 };
        Ok(Self {
            shared,
            groups: Vec::new(),
            control_key,
            connect_at,
            bytes: Vec::new(),
            completions: vec![blank; COMPLETIONS_AT_ONCE],
        })
    }

    /// Opens a member and takes it into the shard. `region_id` names its region to the fabric.
    ///
    /// The member's revoked grant word is stored, and fenced, before its log is walked.
    ///
    /// # Errors
    /// [`JoinError`]; the shard is as before.
    pub fn join(
        &mut self,
        opening: Opening<E>,
        region_id: RegionId,
        now: Instant,
    ) -> Result<GroupId, JoinError> {
        if self.groups.len() >= GROUPS_MAX {
            return Err(JoinError::Full);
        }
        let line = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let superblock = check(&opening)?;
        let room = self.shared.landing.len() - self.shared.fetch_at;
        let entry_max = logfmt::place::payload_max(superblock.segment_len) + logfmt::place::BLOCK;
        require("landing memory", room, entry_max)?;
        let at = self.shared.line_at(line);
        self.shared.control.store(at, superblock.grant.revoked().0);
        self.shared.control.fence();
        let opened = restore(opening, superblock, now)?;
        let whole: Range<u64> = 0..opened.layout.region_len();
        let log_key = self.shared.fabric.register(region_id, whole, Access::Read)?;
        let mut group = Group::new(opened.parts(line, (region_id, log_key)));
        group.persist_opened();
        let id = group.id;
        if let Some(damage) = group.damage {
            let why = format!("restart found {damage:?}");
            self.shared.notices.push((id, Notice::Damaged(why)));
        }
        self.groups.push(group);
        let greeting = self.greeting().encode();
        self.shared.fabric.set_greeting(&greeting);
        // Peers that were greeted before do not know of this group.
        let links = self.shared.links.iter().map(|link| (link.peer, Connection(link.qp.0)));
        self.shared.dropped.extend(links);
        Ok(id)
    }

    fn greeting(&self) -> Greeting {
        let groups = self.groups.iter().map(|group| {
            let (cluster, incarnation) = group.identity();
            let (line, log_key) = (group.line, group.log_key.0);
            let segment_len = group.layout.segment_len();
            let mode = group.core.superblock().mode.code();
            let group = group.id;
            GroupGreeting { group, line, incarnation, cluster, log_key, segment_len, mode }
        });
        Greeting { control_key: self.control_key.0, groups: groups.collect() }
    }

    /// Does what there is to do, a bounded amount of it.
    ///
    /// What clients want goes first: nothing stands between a request and its commit.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let Self { shared, groups, .. } = self;
        let mut worked = false;
        for group in &mut *groups {
            worked |= group.offer(shared, now);
        }
        // What was just posted may be done already: then it commits and is applied before the
        // followers that it does not need are told.
        worked |= self.take_completions(now);
        for group in &mut self.groups {
            group.spread(&mut self.shared, now);
        }
        worked |= self.take_completions(now);
        let Self { shared, groups, .. } = self;
        for group in &mut *groups {
            group.spread(shared, now);
            worked |= group.poll_durable(shared, now);
            worked |= group.observe(shared, now);
            worked |= group.apply(shared, now);
        }
        worked |= self.take_events(now);
        worked |= self.release_quiesced();
        let Self { shared, groups, .. } = self;
        for group in &mut *groups {
            worked |= group.answer_later(shared, now);
            worked |= group.write_checkpoint(shared, now);
            group.resume_fetch(shared);
            worked |= group.continue_receive(shared, now);
            worked |= group.poll_durable(shared, now);
            group.publish(shared);
        }
        worked |= self.drop_links(now);
        worked |= self.post_queued();
        self.keep_connected(now);
        let deadlines = self.groups.iter().map(|group| group.core.deadline());
        let wake_at = deadlines.chain([self.connect_at]).min().unwrap_or(now);
        Turn { worked, wake_at }
    }

    fn take_events(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for _ in 0..EVENTS_PER_TURN {
            let mut bytes = std::mem::take(&mut self.bytes);
            let event = self.shared.fabric.next_event(&mut bytes);
            if let Some(event) = event {
                worked = true;
                self.on_event(event, &bytes, now);
            }
            self.bytes = bytes;
            if event.is_none() {
                break;
            }
        }
        worked
    }

    fn on_event(&mut self, event: FabricEvent, bytes: &[u8], now: Instant) {
        match event {
            FabricEvent::Connected { qp, peer } => self.on_connected((qp, peer), bytes, now),
            FabricEvent::Disconnected { qp, peer, exited } => {
                self.on_disconnected((peer, Connection(qp.0)), exited, now);
            }
            FabricEvent::Received { qp } => {
                let link = self.shared.links.iter().find(|link| link.qp == qp);
                let Some(peer) = link.map(|link| link.peer) else { return };
                match wire::decode(bytes) {
                    Ok((group, message)) => {
                        self.on_message(group, (peer, Connection(qp.0)), message, now);
                    }
                    Err(_) => self.shared.drop_link(peer, Connection(qp.0)),
                }
            }
            FabricEvent::Deregistered { key } => {
                for group in &mut self.groups {
                    group.on_deregistered(key);
                }
            }
            // The next turn looks at all memory anyway.
            FabricEvent::Rang { .. } => {}
        }
    }

    fn on_connected(&mut self, (qp, peer): (fabric::Qp, MemberId), greeting: &[u8], now: Instant) {
        let Some(greeting) = Greeting::decode(greeting) else {
            self.shared.fabric.disconnect(qp);
            return;
        };
        let connection = Connection(qp.0);
        let old = self.shared.links.iter().find(|link| link.peer == peer).map(|link| link.qp);
        if let Some(old) = old {
            self.shared.fabric.disconnect(old);
            self.on_disconnected((peer, Connection(old.0)), false, now);
        }
        let is_full = self.shared.links.len() >= base::MEMBERS_MAX;
        if peer == self.shared.member || is_full || self.is_stranger(peer, &greeting) {
            self.shared.fabric.disconnect(qp);
            return;
        }
        let groups: Vec<GroupId> = greeting.groups.iter().map(|group| group.group).collect();
        let queued = std::collections::VecDeque::new();
        let place = self.shared.free_place();
        self.shared.links.push(Link { peer, qp, place, greeting, queued, reads: 0 });
        let Self { shared, groups: own, .. } = self;
        for group in own.iter_mut().filter(|group| groups.contains(&group.id)) {
            group.feed(Event::Connected { peer, connection }, shared, now);
        }
    }

    /// Whether a peer is not who the configuration knows under its id: another cluster, or another
    /// life of its region (a blank disk under an old id).
    fn is_stranger(&mut self, peer: MemberId, greeting: &Greeting) -> bool {
        let mut why = None;
        for group in &self.groups {
            let Some(theirs) = greeting.group(group.id) else { continue };
            let known = group.log.configuration().1.find(peer);
            if theirs.cluster != group.identity().0 {
                why = Some((group.id, "it belongs to another cluster"));
            } else if known.is_some_and(|known| known.incarnation != theirs.incarnation) {
                why = Some((group.id, "its region is not the one this id was given to"));
            } else if theirs.segment_len != group.layout.segment_len() {
                why = Some((group.id, "its segments have another length"));
            } else if theirs.mode != group.core.superblock().mode.code() {
                why = Some((group.id, "its durability mode is another one"));
            }
        }
        if let Some((group, why)) = why {
            self.shared.notices.push((group, Notice::PeerRefused(peer, why)));
        }
        why.is_some()
    }

    fn on_disconnected(
        &mut self,
        (peer, connection): (MemberId, Connection),
        exited: bool,
        now: Instant,
    ) {
        let Self { shared, groups, .. } = self;
        let before = shared.links.len();
        shared.links.retain(|link| link.peer != peer || link.qp.0 != connection.0);
        if shared.links.len() == before {
            return;
        }
        for group in groups {
            group.fetch_lost(peer, shared);
            group.feed(Event::Disconnected { peer, connection, exited }, shared, now);
        }
    }

    fn on_message(
        &mut self,
        group: GroupId,
        (peer, connection): (MemberId, Connection),
        message: Message,
        now: Instant,
    ) {
        let Self { shared, groups, .. } = self;
        let Some(group) = groups.iter_mut().find(|own| own.id == group) else { return };
        match message {
            Message::FetchChunk { word, state, number } => {
                group.on_fetch_chunk((peer, connection), (word, state, number), shared, now);
            }
            Message::Chunk { word, state, number, bytes } => {
                let chunk = (word, state, number);
                group.on_chunk((peer, connection), chunk, &bytes, shared, now);
            }
            message @ (Message::Vote { .. }
            | Message::Follow { .. }
            | Message::Granted(_)
            | Message::Refused { .. }
            | Message::MoreRoom { .. }
            | Message::Install { .. }
            | Message::Installed { .. }
            | Message::Committed { .. }
            | Message::Campaign { .. }) => {
                group.feed(Event::Received { peer, connection, message }, shared, now);
            }
        }
    }

    fn take_completions(&mut self, now: Instant) -> bool {
        let mut worked = false;
        // Kept between turns: filling it anew would cost more than taking one completion.
        let mut completions = std::mem::take(&mut self.completions);
        for _ in 0..COMPLETION_ROUNDS {
            let count = self.shared.fabric.poll(&mut completions);
            for completion in &completions[..count] {
                self.on_completion(completion, now);
            }
            worked |= count > 0;
            if count < completions.len() {
                break;
            }
        }
        self.completions = completions;
        worked
    }

    fn on_completion(&mut self, completion: &Completion, now: Instant) {
        let link = self.shared.links.iter_mut().find(|link| link.qp == completion.qp);
        let Some(link) = link else { return };
        let (purpose, line) = purpose_of(completion.id);
        if matches!(purpose, Purpose::Chain(_)) {
            link.reads = link.reads.saturating_sub(1);
        }
        let (peer, connection) = (link.peer, Connection(completion.qp.0));
        let is_good = completion.status == Status::Ok;
        let Self { shared, groups, .. } = self;
        let Some(group) = groups.iter_mut().find(|group| group.line == line) else { return };
        match purpose {
            Purpose::Chain(chain) if is_good => {
                let word = base::GrantWord(completion.word);
                let event = Event::ReadBack { peer, connection, chain, word };
                group.step(event, shared, now);
                group.apply(shared, now);
            }
            Purpose::Chain(_) => {
                group.feed(Event::ChainFailed { peer, connection }, shared, now);
            }
            Purpose::Control if is_good => {
                let Some(at) = shared.landing_of(peer, line) else { return };
                let mut bytes = [0; CONTROL_LEN];
                shared.landing.copy_out(at, &mut bytes);
                let line = ControlLine::decode(&bytes);
                group.feed(Event::Control { peer, connection, line }, shared, now);
            }
            Purpose::Fetch(number) => group.on_fetched_bytes(number, is_good, shared),
            Purpose::Control | Purpose::Message => {}
        }
    }

    fn release_quiesced(&mut self) -> bool {
        let waits = self.groups.iter().any(Group::has_unquiesced);
        if !waits || !self.shared.fabric.is_quiesced() {
            return false;
        }
        for group in &mut self.groups {
            group.release_quiesced();
        }
        true
    }

    /// Drops the links that failed; they are made anew later.
    fn drop_links(&mut self, now: Instant) -> bool {
        let dropped = std::mem::take(&mut self.shared.dropped);
        for &(peer, connection) in &dropped {
            if let Some(qp) = self.shared.qp(peer, connection) {
                self.shared.fabric.disconnect(qp);
                self.on_disconnected((peer, connection), false, now);
            }
        }
        !dropped.is_empty()
    }

    /// Posts what found its queue pair full.
    fn post_queued(&mut self) -> bool {
        let mut worked = false;
        for at in 0..self.shared.links.len() {
            while let Some(queued) = self.shared.links[at].queued.pop_front() {
                let qp = self.shared.links[at].qp;
                let Self { shared, groups, .. } = self;
                let posted = match &queued {
                    Queued::Message(bytes) => post_message(&mut shared.fabric, qp, bytes),
                    Queued::Chain(line, chain) => {
                        let group = groups.iter_mut().find(|group| group.line == *line);
                        group.map_or(Ok(()), |group| group.post_queued(chain, at, shared))
                    }
                };
                if posted == Err(PostError::Full) {
                    self.shared.links[at].queued.push_front(queued);
                    break;
                }
                worked = true;
            }
        }
        worked
    }

    /// Asks for queue pairs with members that have none.
    fn keep_connected(&mut self, now: Instant) {
        if now < self.connect_at {
            return;
        }
        let intervals = self.groups.iter().map(|group| group.retry_interval());
        let Some(interval) = intervals.min() else { return };
        self.connect_at = now + interval;
        let Self { shared, groups, .. } = self;
        let members = groups
            .iter()
            .flat_map(|group| group.log.configuration().1.all().ids().collect::<Vec<_>>());
        for peer in members {
            let has_link = shared.links.iter().any(|link| link.peer == peer);
            if peer != shared.member && !has_link {
                shared.fabric.connect(peer);
            }
        }
    }

    fn group(&self, id: GroupId) -> Option<&Group<E>> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// Hands a client's request to a group. The answer comes through [`Self::take_answers`]; if
    /// there is no such group here, at once and as "nobody leads".
    pub fn request(&mut self, group: GroupId, token: Token, request: Request) {
        let Self { shared, groups, .. } = self;
        match groups.iter_mut().find(|own| own.id == group) {
            Some(own) => own.request(token, request, shared),
            None => shared.answer(group, token, crate::door::Answer::NotLeader(None)),
        }
    }

    /// An operator's event: a campaign, a transfer, a change of members.
    pub fn operate(&mut self, group: GroupId, event: Event, now: Instant) {
        let Self { shared, groups, .. } = self;
        if let Some(own) = groups.iter_mut().find(|own| own.id == group) {
            own.feed(event, shared, now);
        }
    }

    /// Takes the answers that are ready.
    pub fn take_answers(&mut self, into: &mut Vec<Answered>) {
        into.append(&mut self.shared.answers);
    }

    /// Takes what operators may want to know.
    pub fn take_notices(&mut self, into: &mut Vec<(GroupId, Notice)>) {
        into.append(&mut self.shared.notices);
    }

    /// A group's core, to look at.
    #[must_use]
    pub fn core(&self, group: GroupId) -> Option<&consensus::Core> {
        self.group(group).map(|group| &group.core)
    }

    /// A group's log, to look at.
    #[must_use]
    pub fn log(&self, group: GroupId) -> Option<&logfmt::MemberLog> {
        self.group(group).map(|group| &group.log)
    }

    /// A group's state machine, to look at.
    #[must_use]
    pub fn machine(&self, group: GroupId) -> Option<&E::Machine> {
        self.group(group).map(|group| &group.machine)
    }

    /// A group's state machine, to plant a fault in; everything else goes through the log.
    #[doc(hidden)]
    pub fn machine_mut_for_faults(&mut self, group: GroupId) -> Option<&mut E::Machine> {
        self.groups.iter_mut().find(|own| own.id == group).map(|group| &mut group.machine)
    }

    /// The last entry applied to a group's state.
    #[must_use]
    pub fn applied(&self, group: GroupId) -> Option<Index> {
        self.group(group).map(|group| group.machine.applied().0)
    }

    /// Gives the fabric back, when the shard ends.
    #[must_use]
    pub fn into_fabric(self) -> E::Fabric {
        self.shared.fabric
    }
}

impl<E: Env> Shard<E>
where
    E::Fabric: Sleep,
{
    /// From now on a ring ends the next [`Self::wait`]. After it comes one more turn, and only if
    /// that did nothing the wait.
    pub fn arm(&mut self) {
        self.shared.fabric.arm();
    }

    /// Sleeps until a peer rings, or until `timeout` has passed.
    pub fn wait(&mut self, timeout: std::time::Duration) {
        self.shared.fabric.wait(timeout);
    }
}

const fn require(what: &'static str, found: u64, expected: u64) -> Result<(), JoinError> {
    if found < expected { Err(JoinError::TooSmall { what, found, expected }) } else { Ok(()) }
}
