//! One group of a shard: its core, its log, its state, and the effects run between them.

use std::collections::VecDeque;

use base::{ClusterId, GroupId, Incarnation, Index, Instant, MemberId, SlotId};
use consensus::{
    Append, Connection, Core, Effect, Event, Message, Refusal,
    session::{LeaderClock, SessionTable},
};
use fabric::{Access, Fabric, Key, RegionId};
use logfmt::{MemberLog, RegionLayout, Superblock};
use pmem::{Region, Ticket};

use crate::{
    apply::Applying,
    checkpoint::{Serving, Writing},
    door::{Answer, Notice, Request, Token},
    env::Env,
    fetch::Fetching,
    machine::StateMachine,
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

/// A write that is not in the log yet.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) token: Option<Token>,
    pub(crate) act: consensus::session::Act,
    pub(crate) command: Vec<u8>,
}

/// A read on its way.
#[derive(Debug)]
pub(crate) struct WaitingRead {
    pub(crate) ticket: u64,
    pub(crate) token: Token,
    pub(crate) query: Vec<u8>,
}

/// Bytes of commands that may wait for the log at one time.
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
    /// Events that answer effects of this very turn.
    pub(crate) ready: VecDeque<Event>,
    /// Events that answer effects in the next turn.
    pub(crate) later: VecDeque<Event>,
    effects: Vec<Effect>,
    pub(crate) persisting: VecDeque<(Ticket, Waits)>,
    keys: Vec<(SlotId, Key)>,
    /// Slots whose writers of an earlier life may not be done yet.
    unquiesced: Vec<SlotId>,
    pub(crate) proposals: VecDeque<Proposal>,
    proposal_bytes: usize,
    /// Own proposals in the log that are not applied yet.
    pub(crate) in_log: VecDeque<(Index, Option<Token>)>,
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
            ready: VecDeque::new(),
            later: VecDeque::new(),
            effects: Vec::new(),
            persisting: VecDeque::new(),
            keys: Vec::new(),
            unquiesced: Vec::new(),
            proposals: VecDeque::new(),
            proposal_bytes: 0,
            in_log: VecDeque::new(),
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

    pub(crate) fn view(&self) -> View<'_> {
        let lowest = self.machine.lowest_referenced();
        let unreferenced = lowest.map_or(Index(u64::MAX), Index::previous);
        View { log: &self.log, unreferenced }
    }

    /// Gives the core an event and runs what it wants done, and what follows at once.
    pub(crate) fn feed(&mut self, event: Event, shared: &mut Shared<E>, now: Instant) {
        self.ready.push_back(event);
        while let Some(event) = self.ready.pop_front() {
            let mut effects = std::mem::take(&mut self.effects);
            let lowest = self.machine.lowest_referenced();
            let unreferenced = lowest.map_or(Index(u64::MAX), Index::previous);
            let view = View { log: &self.log, unreferenced };
            self.core.step(now, event, &view, &mut effects);
            for effect in effects.drain(..) {
                self.run(effect, shared, now);
            }
            self.effects = effects;
        }
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
                self.append((term, commit), what, shared, now);
            }
            Effect::Chain(chain) => self.post_or_queue(chain, shared),
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

    fn append(
        &mut self,
        (term, commit): (base::Term, Index),
        what: Append,
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        let before = self.log.tail().index;
        match what {
            Append::NoOp => {
                self.append_one(logfmt::Kind::NoOp, term, commit, &[]);
            }
            Append::Configuration(configuration) => {
                let mut payload = Vec::new();
                logfmt::encode_configuration(&configuration, &mut payload);
                self.append_one(logfmt::Kind::Configuration, term, commit, &[&payload]);
            }
            Append::Commands(count) => self.append_commands(count, (term, commit), shared, now),
        }
        let tail = self.log.tail().index;
        if tail > before {
            self.persist_own(before.next(), tail);
        }
        self.ready.push_back(Event::Appended);
    }

    fn append_one(
        &mut self,
        kind: logfmt::Kind,
        term: base::Term,
        commit: Index,
        payload: &[&[u8]],
    ) {
        let entry = logfmt::NewEntry { kind, term, commit, aligned: false, payload };
        let appended = self.log.append(&mut RegionBytes(&mut self.region), entry);
        if let Ok(placed) = appended {
            self.in_log.push_back((placed.position.index, None));
        }
    }

    fn append_commands(
        &mut self,
        count: u32,
        (term, commit): (base::Term, Index),
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        for _ in 0..count {
            let Some(proposal) = self.proposals.front() else { return };
            let Some(clock) = &mut self.clock else { return };
            let (time, act) = (clock.stamp(now), proposal.act);
            let envelope = consensus::session::Envelope { time, act }.encode();
            let kind = match proposal.token {
                Some(_) => logfmt::Kind::Command,
                None => logfmt::Kind::Tick,
            };
            let payload: [&[u8]; 2] = [&envelope, &proposal.command];
            let entry = logfmt::NewEntry { kind, term, commit, aligned: false, payload: &payload };
            match self.log.append(&mut RegionBytes(&mut self.region), entry) {
                Ok(placed) => {
                    self.in_log.push_back((placed.position.index, proposal.token));
                    self.proposal_bytes -= proposal.command.len();
                    if let Some(proposal) = self.proposals.pop_front() {
                        shared.recycle(proposal.command);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Begins to persist own entries, which lie in one segment or in several.
    fn persist_own(&mut self, first: Index, last: Index) {
        let ticket = match (self.log.location(first), self.log.location(last)) {
            (Some(from), Some(to)) if from.slot == to.slot => {
                let start = self.layout.slot(from.slot).start;
                self.region.persist(start + from.header..start + to.end)
            }
            _ => self.persist_extents(first),
        };
        self.persisting.push_back((ticket, Waits::Own(last)));
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
        for (_, token) in self.in_log.drain(..) {
            if let Some(token) = token {
                shared.answer(self.id, token, Answer::Unknown);
            }
        }
        self.refuse_proposals(Refusal::NotLeader(None), shared);
        let waiting = self.last_ticket;
        self.refuse_reads(waiting, Refusal::NotLeader(None), shared);
        shared.notices.push((self.id, Notice::Deposed(term)));
    }

    fn refuse_proposals(&mut self, why: Refusal, shared: &mut Shared<E>) {
        self.proposal_bytes = 0;
        self.has_tick = false;
        for proposal in self.proposals.drain(..) {
            if let Some(token) = proposal.token {
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
                } else if self.proposals.len() >= WAITING_MAX
                    || self.proposal_bytes + command.len() > PROPOSAL_BYTES_MAX
                {
                    shared.answer(self.id, token, Answer::Overloaded);
                } else {
                    self.proposal_bytes += command.len();
                    self.proposals.push_back(Proposal { token: Some(token), act, command });
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

    /// Shows the core what clients wait for.
    pub(crate) fn offer(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let mut worked = false;
        if let Ok(count) = u32::try_from(self.proposals.len())
            && count > 0
        {
            worked = true;
            self.feed(Event::Proposed { count }, shared, now);
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
