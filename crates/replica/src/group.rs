//! One group of a shard: its core, its log, its state, and the effects run between them.

use std::collections::VecDeque;

use base::{ClusterId, GroupId, Incarnation, Index, Instant, MemberId, SlotId};
use consensus::{
    Append, Chain, Connection, Core, Effect, Event, Message, Output, Refusal,
    session::{Envelope, LeaderClock, SessionTable},
};
use fabric::{Access, Fabric, Key, RegionId};
use logfmt::{MemberLog, Placed, RegionLayout, Superblock};
use pmem::{Region, Ticket};

use crate::{
    apply::Applying,
    chain::Source,
    checkpoint::{Serving, Writing},
    door::{Answer, Notice, Request, Token},
    env::Env,
    fetch::Fetching,
    proposals::{Proposal, Proposals},
    receive::Receiving,
    shared::Shared,
    state_file::Loaded,
    view::{RegionBytes, View},
};

/// What waits for a ticket of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Own entries up to this one.
    Own(Index),
    /// All that a fence's walk accepted.
    Flush,
    /// What a candidate has adopted.
    Adopted,
    /// The superblock of this generation.
    Superblock(u64),
    /// The superblock that this process started from.
    Opened,
}

/// A read on its way.
#[derive(Debug)]
pub(crate) struct WaitingRead {
    pub(crate) ticket: u64,
    pub(crate) token: Token,
    pub(crate) query: Vec<u8>,
}

/// Bytes of commands that may wait, to be put into the log or to be applied, at one time.
const PROPOSAL_BYTES_MAX: usize = 64 << 20;
/// Requests that may wait at one time, of each kind.
const WAITING_MAX: usize = 1 << 16;
/// Log bytes that one turn walks on a follower.
const WALK_BYTES: u64 = 1 << 20;

/// One group.
pub(crate) struct Group<E: Env> {
    pub(crate) id: GroupId,
    /// Its place in the shard, and the number of its control line.
    pub(crate) line: u32,
    pub(crate) core: Core,
    pub(crate) log: MemberLog,
    pub(crate) layout: RegionLayout,
    pub(crate) region: E::Region,
    pub(crate) region_id: RegionId,
    /// Lets peers read the region.
    pub(crate) log_key: Key,
    pub(crate) files: E::Files,
    pub(crate) machine: E::Machine,
    pub(crate) sessions: SessionTable,
    /// Commands to append, before any other effect: the term, the commit index and how many.
    commands: Option<(base::Term, Index, u32)>,
    /// The log was appended to, and the core is to be told at once: how far it is durable.
    appended: Option<Index>,
    /// Followers beyond a majority are to be told what was appended.
    spreads: bool,
    /// Events that answer effects in the next turn.
    pub(crate) later: VecDeque<Event>,
    effects: Vec<Effect>,
    pub(crate) persisting: VecDeque<(Ticket, Waits)>,
    keys: Vec<(SlotId, Key)>,
    /// Slots whose writers of an earlier life may not be done yet.
    unquiesced: Vec<SlotId>,
    pub(crate) proposals: Proposals,
    pub(crate) clock: Option<LeaderClock>,
    pub(crate) has_tick: bool,
    pub(crate) last_ticket: u64,
    pub(crate) reads_waiting: VecDeque<WaitingRead>,
    pub(crate) reads_ready: VecDeque<(Index, WaitingRead)>,
    pub(crate) commit: Index,
    /// What this member itself made durable of its log.
    flushed: Index,
    published: [u64; 6],
    pub(crate) applying: Applying,
    pub(crate) writing: Option<Writing<E>>,
    pub(crate) serving: Serving,
    /// The state file that the durable superblock names.
    pub(crate) named_file: u64,
    pub(crate) fetching: Option<Fetching>,
    pub(crate) receiving: Option<Receiving<E::Machine>>,
    /// A received state that the superblock is about to name, with its file's number.
    pub(crate) received: Option<(u64, Loaded<E::Machine>)>,
    /// The highest index any walk has seen, for `Observed`.
    seen_tail: Index,
    seen_believed: Index,
    /// The superblock that this process started from is not known to be durable yet.
    is_opening: bool,
    /// The one that waits for that.
    waiting_superblock: Option<Box<Superblock>>,
    /// What the restart found.
    pub(crate) damage: Option<logfmt::Damage>,
}

/// What a group begins with.
pub(crate) struct Parts<E: Env> {
    pub(crate) id: GroupId,
    pub(crate) line: u32,
    pub(crate) core: Core,
    pub(crate) log: MemberLog,
    pub(crate) layout: RegionLayout,
    pub(crate) region: E::Region,
    pub(crate) region_id: RegionId,
    pub(crate) log_key: Key,
    pub(crate) files: E::Files,
    pub(crate) machine: E::Machine,
    pub(crate) sessions: SessionTable,
    pub(crate) damage: Option<logfmt::Damage>,
}

/// Where a step's effects go: a chain onto the fabric, a commit index and commands to append to
/// where they are kept, as long as no other effect stands before them; everything else is gathered.
struct Outlet<'a, E: Env> {
    source: Source<'a>,
    commit: &'a mut Index,
    commands: &'a mut Option<(base::Term, Index, u32)>,
    spreads: &'a mut bool,
    effects: &'a mut Vec<Effect>,
    shared: &'a mut Shared<E>,
}

impl<E: Env> Output for Outlet<'_, E> {
    fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn spread(&mut self) {
        *self.spreads = true;
    }

    fn append(&mut self, (term, nonce, commit): (base::Term, base::Nonce, Index), count: u32) {
        if self.effects.is_empty() {
            *self.commands = Some((term, commit, count));
        } else {
            let what = Append::Commands(count);
            self.effects.push(Effect::Append { term, nonce, commit, what });
        }
    }

    fn commit(&mut self, through: Index) {
        if self.effects.is_empty() {
            *self.commit = (*self.commit).max(through);
        } else {
            self.effects.push(Effect::Commit { through });
        }
    }

    fn post(&mut self, chain: &Chain) {
        let is_posted = self.effects.is_empty() && self.source.post_now(chain, self.shared);
        if !is_posted {
            self.effects.push(Effect::Chain(*chain));
        }
    }
}

impl<E: Env> Group<E> {
    pub(crate) fn new(parts: Parts<E>) -> Self {
        let applied = parts.core.applied_index();
        let named_file = parts.core.superblock().checkpoint.state.id;
        Self {
            id: parts.id,
            line: parts.line,
            core: parts.core,
            log: parts.log,
            layout: parts.layout,
            region: parts.region,
            region_id: parts.region_id,
            log_key: parts.log_key,
            files: parts.files,
            machine: parts.machine,
            sessions: parts.sessions,
            commands: None,
            appended: None,
            spreads: false,
            later: VecDeque::new(),
            effects: Vec::new(),
            persisting: VecDeque::new(),
            keys: Vec::new(),
            unquiesced: Vec::new(),
            proposals: Proposals::default(),
            clock: None,
            has_tick: false,
            last_ticket: 0,
            reads_waiting: VecDeque::new(),
            reads_ready: VecDeque::new(),
            commit: applied,
            flushed: applied,
            published: [u64::MAX; 6],
            applying: Applying::default(),
            writing: None,
            serving: Serving::default(),
            named_file,
            fetching: None,
            receiving: None,
            received: None,
            seen_tail: applied,
            seen_believed: applied,
            is_opening: false,
            waiting_superblock: None,
            damage: parts.damage,
        }
    }

    pub(crate) const fn identity(&self) -> (ClusterId, Incarnation) {
        let identity = self.core.superblock().identity;
        (identity.cluster, identity.incarnation)
    }

    pub(crate) const fn view(&self) -> View<'_, E::Machine> {
        View { log: &self.log, machine: &self.machine }
    }

    /// Gives the core an event and runs what it wants done, and what follows at once.
    #[inline(never)]
    pub(crate) fn feed(&mut self, event: Event, shared: &mut Shared<E>, now: Instant) {
        self.step(event, shared, now);
        self.spread(shared, now);
    }

    /// Tells the followers beyond a majority what was appended, if it has not been done.
    pub(crate) fn spread(&mut self, shared: &mut Shared<E>, now: Instant) {
        if std::mem::take(&mut self.spreads) {
            self.step(Event::Spread, shared, now);
        }
    }

    /// [`Self::feed`], inlined for the events of every commit, and with [`Self::spread`] left to the
    /// caller.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "where the event is told, nothing is left of it")]
    pub(crate) fn step(&mut self, event: Event, shared: &mut Shared<E>, now: Instant) {
        self.step_core(event, shared, now);
        if let Some((term, commit, count)) = self.commands.take() {
            self.append((term, commit), Append::Commands(count), now);
        }
        self.run_effects(shared, now);
        while let Some(durable) = self.appended.take() {
            self.step_core(Event::Appended { durable }, shared, now);
            self.run_effects(shared, now);
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "where the event is told, nothing is left of it")]
    fn step_core(&mut self, event: Event, shared: &mut Shared<E>, now: Instant) {
        let view = View { log: &self.log, machine: &self.machine };
        let (group, line, region_id) = (self.id, self.line, self.region_id);
        let source = Source { group, line, region_id, log: &self.log };
        let mut outlet = Outlet {
            source,
            commit: &mut self.commit,
            commands: &mut self.commands,
            spreads: &mut self.spreads,
            effects: &mut self.effects,
            shared,
        };
        self.core.step(now, event, &view, &mut outlet);
    }

    #[inline]
    fn run_effects(&mut self, shared: &mut Shared<E>, now: Instant) {
        if !self.effects.is_empty() {
            self.run_all(shared, now);
        }
    }

    fn run_all(&mut self, shared: &mut Shared<E>, now: Instant) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.run(effect, shared, now);
        }
        self.effects = effects;
    }

    pub(crate) const fn source(&self) -> Source<'_> {
        let (group, line, region_id) = (self.id, self.line, self.region_id);
        Source { group, line, region_id, log: &self.log }
    }

    fn run(&mut self, effect: Effect, shared: &mut Shared<E>, now: Instant) {
        match effect {
            Effect::StoreGrant { word } => {
                shared.control.store(shared.line_at(self.line), word.0);
                shared.control.fence();
            }
            Effect::Walk => self.walk_and_seal(),
            Effect::FlushLog => self.flush_log(),
            Effect::WriteSuperblock(superblock) if self.is_opening => {
                self.waiting_superblock = Some(superblock);
            }
            Effect::WriteSuperblock(superblock) => self.write_superblock(&superblock),
            Effect::Open(record) => {
                self.log.open(&record);
                self.unstall_fetch();
            }
            Effect::Trim(slot) => self.log.trim(slot),
            Effect::Revoke(slot) => self.revoke(slot, shared),
            Effect::Append { term, commit, what, .. } => {
                self.append((term, commit), what, now);
            }
            Effect::Chain(chain) => self.post_or_queue(&chain, shared),
            Effect::Spread => self.spreads = true,
            Effect::ForgetChains { peer } => shared.forget_chains_to(peer, self.line),
            Effect::ReadControl { peer, connection } => {
                shared.read_control(peer, connection, (self.id, self.line));
            }
            Effect::Send { peer, connection, message } => {
                self.send(peer, connection, message, shared);
            }
            Effect::Reconnect { peer, connection } => shared.drop_link(peer, connection),
            Effect::Fetch(fetch) => self.begin_fetch(*fetch, shared),
            Effect::Commit { through } => self.commit = self.commit.max(through),
            Effect::ReadsReady { upto, index } => self.ready_reads(upto, index),
            Effect::ReadsRefused { upto, why } => self.refuse_reads(upto, why, shared),
            Effect::ProposalsRefused { why } => self.refuse_proposals(why, shared),
            Effect::ChangeRefused { why } => shared.note_refusal(self.id, why),
            Effect::Leads { term } => {
                self.clock = Some(LeaderClock::new(self.last_time(), now));
                self.has_tick = false;
                shared.notices.push((self.id, Notice::Leads(term)));
            }
            Effect::Deposed { term } => self.on_deposed(term, shared),
            Effect::TakeCheckpoint => self.begin_checkpoint(),
            Effect::CheckpointNamed(checkpoint) => {
                self.log.checkpoint_moved(&checkpoint);
                self.named_file = checkpoint.state.id;
                shared.notices.push((self.id, Notice::Checkpoint(checkpoint.at.index)));
                self.sweep(now);
            }
            Effect::FetchState { peer, connection, word, checkpoint } => {
                self.begin_receive((peer, connection), word, *checkpoint, shared, now);
            }
            Effect::InstallState(checkpoint) => self.install(&checkpoint, shared, now),
        }
    }

    fn walk_and_seal(&mut self) {
        // A fence ends what was under way: its answers are for a leadership or candidacy that is
        // no more, and the flush that follows covers what they would have told.
        self.fetching = None;
        self.persisting.retain(|(_, waits)| !matches!(waits, Waits::Own(_) | Waits::Adopted));
        self.later.retain(|event| !matches!(event, Event::FetchFailed));
        let mut walk = self.log.walk(&RegionBytes(&mut self.region), u64::MAX);
        while !walk.at_end {
            walk = self.log.walk(&RegionBytes(&mut self.region), u64::MAX);
        }
        if let Some(cut) = walk.cut {
            self.flushed = self.flushed.min(cut.previous());
        }
        let ends = self.log.seal().into_iter();
        let ends = ends.map(|(slot, first, seal)| consensus::SegmentEnd { slot, first, seal });
        let believed = walk.believed_commit;
        self.later.push_back(Event::Walked { believed, ends: ends.collect() });
    }

    fn flush_log(&mut self) {
        let ticket = self.persist_extents(self.flushed.next());
        self.flushed = self.log.tail().index;
        self.persisting.push_back((ticket, Waits::Flush));
    }

    /// Makes the superblock that this process has read durable. A process that was killed may have
    /// left it visible and not durable; the next write goes over the *other* copy, and a power cut
    /// then could leave neither.
    pub(crate) fn persist_opened(&mut self) {
        let copy = self.layout.superblock_copy(self.core.superblock().copy_index());
        let mut bytes = vec![0; usize::try_from(copy.end - copy.start).unwrap_or(0)];
        self.region.copy_out(copy.start, &mut bytes);
        self.region.copy_in(copy.start, &bytes);
        let ticket = self.region.persist(copy);
        self.is_opening = true;
        self.persisting.push_back((ticket, Waits::Opened));
    }

    fn write_superblock(&mut self, superblock: &Superblock) {
        let bytes = superblock.encode();
        let at = self.layout.superblock_copy(superblock.copy_index()).start;
        self.region.copy_in(at, &bytes);
        let ticket = self.region.persist(at..at + bytes.len() as u64);
        self.persisting.push_back((ticket, Waits::Superblock(superblock.generation)));
    }

    fn revoke(&mut self, slot: SlotId, shared: &mut Shared<E>) {
        if let Some(at) = self.keys.iter().position(|&(named, _)| named == slot) {
            shared.fabric.deregister(self.keys[at].1);
        } else {
            self.unquiesced.push(slot);
        }
    }

    /// A registration is gone for good.
    pub(crate) fn on_deregistered(&mut self, key: Key) {
        if let Some(at) = self.keys.iter().position(|&(_, registered)| registered == key) {
            let (slot, _) = self.keys.remove(at);
            self.later.push_back(Event::Released { slot });
        }
    }

    pub(crate) fn release_quiesced(&mut self) {
        let released = self.unquiesced.drain(..).map(|slot| Event::Released { slot });
        self.later.extend(released);
    }

    pub(crate) fn has_unquiesced(&self) -> bool {
        !self.unquiesced.is_empty()
    }

    fn append(&mut self, (term, commit): (base::Term, Index), what: Append, now: Instant) {
        let placed = match what {
            Append::NoOp => self.append_one(logfmt::Kind::NoOp, term, commit, &[]),
            Append::Configuration(configuration) => {
                let mut payload = Vec::new();
                logfmt::encode_configuration(&configuration, &mut payload);
                self.append_one(logfmt::Kind::Configuration, term, commit, &[&payload])
            }
            Append::Commands(count) => self.append_commands(count, (term, commit), now),
        };
        let mut durable = Index(0);
        if let Some((first, last)) = placed {
            let (ticket, tail) = (self.persist_own(&first, &last), last.position.index);
            // Where it takes no time, it need not be asked for a second time.
            let is_durable = self.region.durable().is_ok_and(|durable| ticket <= durable);
            if is_durable && self.persisting.is_empty() {
                self.flushed = self.flushed.max(tail);
                durable = tail;
            } else {
                self.persisting.push_back((ticket, Waits::Own(tail)));
            }
        }
        self.appended = Some(self.appended.map_or(durable, |already| already.max(durable)));
    }

    /// Appends one entry that nobody waits for; where it lies, as the first and the last.
    fn append_one(
        &mut self,
        kind: logfmt::Kind,
        term: base::Term,
        commit: Index,
        payload: &[&[u8]],
    ) -> Option<(Placed, Placed)> {
        let entry = logfmt::NewEntry { kind, term, commit, aligned: false, payload };
        let placed = self.log.append(&mut RegionBytes(&mut self.region), entry).ok()?;
        Some((placed, placed))
    }

    /// Appends commands that wait, as far as there is room; where the first and the last lie.
    fn append_commands(
        &mut self,
        count: u32,
        (term, commit): (base::Term, Index),
        now: Instant,
    ) -> Option<(Placed, Placed)> {
        let time = self.clock.as_mut()?.stamp(now);
        let mut all: Option<(Placed, Placed)> = None;
        for _ in 0..count {
            let Some(proposal) = self.proposals.first_waiting() else { break };
            let envelope = Envelope { time, act: proposal.act };
            let encoded = envelope.encode();
            let kind = match proposal.token {
                Some(_) => logfmt::Kind::Command,
                None => logfmt::Kind::Tick,
            };
            let payload: [&[u8]; 2] = [&encoded, &proposal.command];
            let entry = logfmt::NewEntry { kind, term, commit, aligned: false, payload: &payload };
            let Ok(placed) = self.log.append(&mut RegionBytes(&mut self.region), entry) else {
                break;
            };
            all = Some((all.map_or(placed, |(first, _)| first), placed));
            self.proposals.note_in_log(placed.position.index, &envelope, &encoded);
        }
        all
    }

    /// Forgets what own entries say: they are read from the log, if they are ever applied.
    pub(crate) fn forget_in_log(&mut self, shared: &mut Shared<E>) {
        while let Some(Proposal { token, command, .. }) = self.proposals.take_in_log() {
            shared.recycle(command);
            if let Some(token) = token {
                shared.answer(self.id, token, Answer::Unknown);
            }
        }
    }

    /// Begins to persist own entries, which lie in one segment or in several.
    fn persist_own(&mut self, first: &Placed, last: &Placed) -> Ticket {
        if first.slot != last.slot {
            return self.persist_extents(first.position.index);
        }
        let start = self.layout.slot(first.slot).start;
        self.region.persist(start + first.place.header..start + last.place.end)
    }

    /// Begins to persist the log from `first` on.
    pub(crate) fn persist_extents(&mut self, first: Index) -> Ticket {
        let mut ticket = Ticket::default();
        for extent in self.log.extents(first) {
            let start = self.layout.slot(extent.slot).start;
            ticket = self.region.persist(start + extent.start..start + extent.end);
        }
        ticket
    }

    /// Takes what the region has made durable.
    pub(crate) fn poll_durable(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let mut worked = false;
        while let Some(&(ticket, waits)) = self.persisting.front() {
            match self.region.durable() {
                Ok(durable) if durable >= ticket => {}
                Ok(_) => break,
                Err(error) => {
                    self.fail(error.to_string(), shared, now);
                    return true;
                }
            }
            self.persisting.pop_front();
            worked = true;
            let event = match waits {
                Waits::Opened => {
                    self.is_opening = false;
                    if let Some(superblock) = self.waiting_superblock.take() {
                        self.write_superblock(&superblock);
                    }
                    continue;
                }
                Waits::Own(through) => {
                    self.flushed = self.flushed.max(through);
                    Event::Persisted { through }
                }
                Waits::Flush => Event::Flushed,
                Waits::Adopted => Event::Fetched,
                Waits::Superblock(generation) => Event::SuperblockWritten { generation },
            };
            self.feed(event, shared, now);
        }
        worked
    }

    /// The member's storage is no longer to be trusted: nothing is acknowledged after this.
    pub(crate) fn fail(&mut self, why: String, shared: &mut Shared<E>, now: Instant) {
        if !self.core.is_failed() {
            self.persisting.clear();
            shared.notices.push((self.id, Notice::Failed(why)));
            self.feed(Event::StorageFailed, shared, now);
            self.refuse_proposals(Refusal::NotLeader(None), shared);
        }
    }

    /// Sends a message; segments that it grants are registered for this connection first.
    fn send(
        &mut self,
        peer: MemberId,
        connection: Connection,
        mut message: Message,
        shared: &mut Shared<E>,
    ) {
        let Some(qp) = shared.qp(peer, connection) else { return };
        let rooms = match &mut message {
            Message::Granted(granted) => {
                granted.log_key = self.log_key.0;
                Some(&mut granted.rooms)
            }
            Message::MoreRoom { rooms, .. } => Some(rooms),
            Message::Vote { .. }
            | Message::Follow { .. }
            | Message::Refused { .. }
            | Message::Install { .. }
            | Message::Installed { .. }
            | Message::Committed { .. }
            | Message::FetchChunk { .. }
            | Message::Chunk { .. }
            | Message::Campaign { .. } => None,
        };
        for room in rooms.into_iter().flatten() {
            let range = self.layout.slot(room.slot);
            match shared.fabric.register(self.region_id, range, Access::Write(qp)) {
                Ok(key) => {
                    room.key = key.0;
                    self.keys.push((room.slot, key));
                }
                // A key that names nothing: the leader's first WRITE fails and it asks again.
                Err(error) => {
                    let why = Notice::Damaged(format!("cannot register a segment: {error}"));
                    shared.notices.push((self.id, why));
                }
            }
        }
        shared.send(self.id, qp, &message);
    }

    fn on_deposed(&mut self, term: base::Term, shared: &mut Shared<E>) {
        self.clock = None;
        self.has_tick = false;
        shared.forget_chains(self.line);
        self.forget_in_log(shared);
        self.refuse_proposals(Refusal::NotLeader(None), shared);
        let waiting = self.last_ticket;
        self.refuse_reads(waiting, Refusal::NotLeader(None), shared);
        shared.notices.push((self.id, Notice::Deposed(term)));
    }

    fn refuse_proposals(&mut self, why: Refusal, shared: &mut Shared<E>) {
        self.has_tick = false;
        for Proposal { token, command, .. } in self.proposals.take_waiting() {
            shared.recycle(command);
            if let Some(token) = token {
                shared.answer(self.id, token, answer_to(why));
            }
        }
    }

    fn refuse_reads(&mut self, upto: u64, why: Refusal, shared: &mut Shared<E>) {
        while self.reads_waiting.front().is_some_and(|read| read.ticket <= upto) {
            if let Some(read) = self.reads_waiting.pop_front() {
                shared.answer(self.id, read.token, answer_to(why));
            }
        }
    }

    fn ready_reads(&mut self, upto: u64, index: Index) {
        while self.reads_waiting.front().is_some_and(|read| read.ticket <= upto) {
            if let Some(read) = self.reads_waiting.pop_front() {
                self.reads_ready.push_back((index, read));
            }
        }
    }

    /// Takes a client's request.
    pub(crate) fn request(&mut self, token: Token, request: Request, shared: &mut Shared<E>) {
        match request {
            Request::Write { act, command } => {
                let max = logfmt::place::payload_max(self.layout.segment_len());
                let len = consensus::session::ENVELOPE_LEN + command.len();
                if len as u64 > max {
                    let answer = Answer::Bad("the command is larger than an entry may be");
                    shared.answer(self.id, token, answer);
                } else if self.proposals.waiting() >= WAITING_MAX
                    || self.proposals.bytes() + command.len() > PROPOSAL_BYTES_MAX
                {
                    shared.answer(self.id, token, Answer::Overloaded);
                } else {
                    self.proposals.push(Some(token), act, command);
                }
            }
            Request::Read { query } => {
                if self.reads_waiting.len() + self.reads_ready.len() >= WAITING_MAX {
                    shared.answer(self.id, token, Answer::Overloaded);
                    return;
                }
                self.last_ticket += 1;
                let ticket = self.last_ticket;
                self.reads_waiting.push_back(WaitingRead { ticket, token, query });
            }
        }
    }

    /// Tells the core what effects of earlier steps have come to, and the time.
    pub(crate) fn answer_later(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let mut worked = false;
        for _ in 0..self.later.len() {
            if let Some(event) = self.later.pop_front() {
                self.feed(event, shared, now);
                worked = true;
            }
        }
        if self.core.deadline() <= now {
            self.feed(Event::Tick, shared, now);
            self.sweep(now);
            worked = true;
        }
        self.tick_if_due(now);
        worked
    }

    /// Shows the core what clients wait for.
    pub(crate) fn offer(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let mut worked = false;
        if let Ok(count) = u32::try_from(self.proposals.waiting())
            && count > 0
        {
            worked = true;
            self.step(Event::Proposed { count }, shared, now);
        }
        if let Some(last) = self.reads_waiting.back() {
            let upto = last.ticket;
            if upto > self.applying.offered_reads || self.core.leading_term().is_none() {
                self.applying.offered_reads = upto;
                worked = true;
                self.feed(Event::ReadsWaiting { upto }, shared, now);
            }
        }
        worked
    }

    /// Walks what a leader has placed since the last turn.
    pub(crate) fn observe(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let follows = matches!(self.core.role(), consensus::Role::Follower);
        if !follows || self.core.is_failed() {
            return false;
        }
        let walk = self.log.walk(&RegionBytes(&mut self.region), WALK_BYTES);
        if let Some(cut) = walk.cut {
            self.flushed = self.flushed.min(cut.previous());
        }
        let tail = self.log.tail().index;
        let believed = walk.believed_commit;
        if walk.accepted == 0 && believed == self.seen_believed && tail == self.seen_tail {
            return false;
        }
        self.seen_tail = tail;
        self.seen_believed = believed;
        self.feed(Event::Observed { believed }, shared, now);
        true
    }

    /// Stores what peers may read of this group, where it has changed.
    pub(crate) fn publish(&mut self, shared: &mut Shared<E>) {
        let line = self.core.control_line(&self.view());
        let words = [
            line.leader.map_or(0, |leader| u64::from(leader.0)),
            line.leading.encode(),
            line.suspect.encode(),
            line.accepted.0,
            line.commit.0,
            line.applied.0,
        ];
        let at = shared.line_at(self.line);
        for (place, (word, published)) in (1_u64..).zip(words.iter().zip(&mut self.published)) {
            if *word != *published {
                shared.control.store(at + place * 8, *word);
                *published = *word;
            }
        }
    }

    /// How often what may have been lost on the way is tried again.
    pub(crate) fn retry_interval(&self) -> base::Duration {
        self.core.params().sample_interval()
    }

    /// Lets state files go that nobody needs. None before the superblock that this process started
    /// from is durable: a power cut could bring back the one before, which may name another file.
    pub(crate) fn sweep(&mut self, now: Instant) {
        if self.is_opening {
            return;
        }
        let keep_for = self.core.params().suspicion_timeout * 4;
        self.sweep_files(now, keep_for);
    }

    /// Begins to persist all that was placed since the last flush, and at least what lies behind
    /// `from`.
    pub(crate) fn persist_unflushed(&mut self, from: Index) -> Ticket {
        self.persist_extents(self.flushed.min(from).next())
    }

    pub(crate) fn lower_flushed(&mut self, through: Index) {
        self.flushed = self.flushed.min(through);
    }
}

const fn answer_to(why: Refusal) -> Answer {
    match why {
        Refusal::NotLeader(leader) => Answer::NotLeader(leader),
        Refusal::Transferring => Answer::NotLeader(None),
        Refusal::Overloaded => Answer::Overloaded,
        Refusal::ChangeRefused(why) => Answer::Bad(why),
    }
}
