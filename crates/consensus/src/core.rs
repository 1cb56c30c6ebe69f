//! The core: its state, and which part of it an event is for.

use std::mem::ManuallyDrop;

use base::{Configuration, GrantWord, Index, Instant, MemberId, Random, Term, check};
use logfmt::{Checkpoint, ControlLine, Hole, Progress, SegmentRecord, Superblock};

use crate::{
    effect::{Effect, Output, Refusal},
    election::{Candidate, Watch},
    event::Event,
    fence::{FenceRun, Request},
    leader::Leader,
    message::{Connection, Message, Room},
    params::Params,
    slots::{RECORDS_MAX, Slots},
    snapshot::Install,
    superblock::Stored,
    view::LogView,
};

/// What a leader knows of another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Which one.
    pub id: MemberId,
    /// Whether there is a queue pair to it.
    pub is_connected: bool,
    /// Whether the leader may write its log, and it is not behind what the leader still has.
    pub is_replicating: bool,
    /// The last entry known to be durable there.
    pub tail: Index,
}

/// What a member is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It holds a log and answers.
    Follower,
    /// It has voted for itself and gathers votes and the best log.
    Candidate(Box<Candidate>),
    /// It leads.
    Leader(Box<Leader>),
}

/// What a member starts from.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its superblock as it was read.
    pub superblock: Superblock,
    /// The first index that restoring the log found damaged.
    pub damaged: Option<Index>,
    /// Fresh randomness, for nonces and back-off.
    pub seed: u64,
}

/// The protocol for one member of one group. See the crate's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    pub(crate) params: Params,
    pub(crate) random: Random,
    pub(crate) me: MemberId,
    pub(crate) stored: Stored,
    pub(crate) slots: Slots,
    /// The grant word as it stands in memory; at or above the stored one.
    pub(crate) word: GrantWord,
    pub(crate) role: Role,
    pub(crate) fence: Option<FenceRun>,
    /// The request that waits for the fence to end: the one of the highest term.
    pub(crate) deferred: Option<Request>,
    /// The connection on which the grant in force was made.
    pub(crate) grantee: Option<(MemberId, Connection)>,
    pub(crate) commit: Index,
    pub(crate) applied: Index,
    /// Own entries up to here are durable.
    pub(crate) durable: Index,
    pub(crate) watch: Watch,
    pub(crate) connections: Vec<(MemberId, Connection)>,
    /// The highest term seen in any word or refusal.
    pub(crate) highest_term: Term,
    /// Segments in the superblock from this generation on, not yet open.
    pub(crate) pending: Vec<(u64, SegmentRecord)>,
    pub(crate) next_ordinal: u32,
    pub(crate) next_chain: u64,
    pub(crate) is_checkpointing: bool,
    /// A checkpoint that the superblock will name from this generation on.
    pub(crate) naming: Option<(u64, Box<Checkpoint>)>,
    pub(crate) install: Option<Install>,
    pub(crate) is_failed: bool,
    has_started: bool,
}

/// What a step works with besides the core itself.
pub(crate) struct Io<'a, L> {
    pub(crate) now: Instant,
    pub(crate) log: &'a L,
    pub(crate) out: &'a mut dyn Output,
}

impl<L> Io<'_, L> {
    pub(crate) fn send(&mut self, peer: MemberId, connection: Connection, message: Message) {
        self.out.push(Effect::Send { peer, connection, message });
    }
}

impl Core {
    /// A member that has just started: it follows nobody and its grant word is revoked.
    ///
    /// Before this, whoever starts it has stored the revoked word ([`GrantWord::revoked`] of the
    /// superblock's), fenced, and walked its log from the checkpoint.
    #[must_use]
    pub fn new(params: Params, start: Start, now: Instant) -> Self {
        let mut superblock = start.superblock;
        let me = superblock.identity.member;
        check!(me.0 != 0, "member ids start at 1");
        if let Some(from) = start.damaged {
            // An older hole may have been filled since: what is missing now is as of now.
            let from = superblock.hole.map_or(from, |old| old.from.min(from));
            superblock.hole = Some(Hole { from, until: Index(0), term: superblock.term });
        }
        if base::mutant!("vote_lost_at_restart") {
            superblock.vote = None;
            superblock.term = Term(superblock.term.0.saturating_sub(1));
            superblock.grant = superblock.grant.revoked();
        }
        let checkpoint = superblock.checkpoint.at.index;
        let used = superblock.segments.iter().map(|record| record.slot);
        Self {
            random: Random::new(start.seed),
            me,
            slots: Slots::new(superblock.slot_count, used),
            word: superblock.grant.revoked(),
            role: Role::Follower,
            fence: None,
            deferred: None,
            grantee: None,
            commit: checkpoint,
            applied: checkpoint,
            durable: checkpoint,
            watch: Watch::new(now, params.sample_interval()),
            connections: Vec::new(),
            highest_term: superblock.term,
            pending: Vec::new(),
            next_ordinal: 0,
            next_chain: 1,
            is_checkpointing: false,
            naming: None,
            install: None,
            is_failed: false,
            has_started: false,
            stored: Stored::new(superblock),
            params,
        }
    }

    /// Takes one event and appends what is to be done about it.
    ///
    /// Inlined, for the events that every commit consists of: where they are told, nothing is left
    /// of the event but a call.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "where the event is told, nothing is left of it")]
    pub fn step<L: LogView>(&mut self, now: Instant, event: Event, log: &L, out: &mut dyn Output) {
        let mut io = Io { now, log, out };
        // The events that every commit consists of own nothing that would have to be dropped.
        let event = ManuallyDrop::new(event);
        #[expect(clippy::wildcard_enum_match_arm, reason = "`dispatch` has them all")]
        match *event {
            _ if self.is_failed || !self.has_started => {
                return self.on_rare(ManuallyDrop::into_inner(event), &mut io);
            }
            Event::Proposed { count } => return self.on_proposed(count, &mut io),
            Event::Appended { durable } => self.on_appended(durable, &mut io),
            Event::ReadBack { peer, connection, chain, word } => {
                self.on_read_back(peer, connection, (chain, word), &mut io);
            }
            Event::Spread => self.on_spread(&mut io),
            Event::Applied { through } => self.on_applied(through, &mut io),
            _ => return self.on_other(ManuallyDrop::into_inner(event), &mut io),
        }
        if base::ASSERTIONS {
            self.assert_leads_rightly(log);
        }
    }

    /// The first event, and those after the last.
    #[cold]
    fn on_rare<L: LogView>(&mut self, event: Event, io: &mut Io<'_, L>) {
        if self.is_failed {
            return;
        }
        self.has_started = true;
        for slot in self.slots.all() {
            io.out.push(Effect::Revoke(slot));
        }
        if base::mutant!("leader_resumes_term") {
            self.resume_leading(io);
        }
        self.on_other(event, io);
    }

    /// Everything that is not a part of every commit.
    fn on_other<L: LogView>(&mut self, event: Event, io: &mut Io<'_, L>) {
        self.dispatch(event, io);
        if base::ASSERTIONS {
            self.assert_invariants(io.log);
        }
    }

    fn dispatch<L: LogView>(&mut self, event: Event, io: &mut Io<'_, L>) {
        match event {
            Event::Tick => self.on_tick(io),
            Event::Connected { peer, connection } => self.on_connected(peer, connection, io),
            Event::Disconnected { peer, connection, exited } => {
                self.on_disconnected(peer, connection, exited, io);
            }
            Event::Received { peer, connection, message } => {
                if self.is_current(peer, connection) {
                    self.on_message(peer, connection, message, io);
                }
            }
            Event::Control { peer, connection, line } => {
                if self.is_current(peer, connection) {
                    self.on_control(peer, line, io);
                }
            }
            Event::Walked { believed, ends } => self.on_walked(believed, ends, io),
            Event::Observed { believed } => self.on_observed(believed, io),
            Event::Flushed => self.on_flushed(io),
            Event::SuperblockWritten { generation } => self.on_written(generation, io),
            Event::Proposed { count } => self.on_proposed(count, io),
            Event::Appended { durable } => self.on_appended(durable, io),
            Event::Spread => self.on_spread(io),
            Event::Persisted { through } => self.on_persisted(through, io),
            Event::ReadBack { peer, connection, chain, word } => {
                self.on_read_back(peer, connection, (chain, word), io);
            }
            Event::ChainFailed { peer, connection } => {
                self.on_chain_failed(peer, connection, io);
            }
            Event::Fetched => self.on_fetched(io),
            Event::RoomWanted => self.grant_more(io),
            Event::FetchFailed => self.on_fetch_failed(io),
            Event::ReadsWaiting { upto } => self.on_reads_waiting(upto, io),
            Event::Applied { through } => self.on_applied(through, io),
            Event::CheckpointTaken(checkpoint) => self.on_checkpoint_taken(*checkpoint, io),
            Event::CheckpointFailed => self.is_checkpointing = false,
            Event::StateFetched(checkpoint) => self.on_state_fetched(*checkpoint, io),
            // One that the superblock is about to name is no longer anybody's to drop.
            Event::StateFetchFailed => self.install = self.install.take().filter(Install::is_ready),
            Event::Released { slot } => {
                self.slots.released(slot);
                self.grant_more(io);
                self.evaluate(io);
            }
            Event::Campaign { overrules } => self.campaign(overrules, io),
            Event::Transfer { to } => self.on_transfer(to, io),
            Event::ChangeMembers(configuration) => self.on_change(*configuration, io),
            Event::StorageFailed => {
                self.step_down(io);
                // Its memory still answers one-sided reads: nothing may be counted there any more.
                self.word = self.word.revoked();
                io.out.push(Effect::StoreGrant { word: self.word });
                self.is_failed = true;
            }
        }
    }

    fn on_message<L: LogView>(
        &mut self,
        peer: MemberId,
        connection: Connection,
        message: Message,
        io: &mut Io<'_, L>,
    ) {
        match message {
            Message::Vote { term, nonce, transfer } => {
                self.on_request(Request::vote(peer, connection, (term, nonce), transfer), io);
            }
            Message::Follow { term, nonce, counted } => {
                self.on_request(Request::follow(peer, connection, (term, nonce), counted), io);
            }
            Message::Granted(granted) => self.on_granted(peer, connection, *granted, io),
            Message::Refused { asked, term, why } => self.on_refused(asked, (term, why), io),
            Message::MoreRoom { word, rooms } => match &self.role {
                Role::Follower => {}
                Role::Candidate(_) => self.on_voter_room(peer, word, &rooms),
                Role::Leader(_) => self.on_more_room(peer, word, &rooms, io),
            },
            Message::Install { word, checkpoint } => {
                self.on_install(peer, connection, (word, *checkpoint), io);
            }
            Message::Committed { word, index } => {
                if self.grantee == Some((peer, connection)) && word == self.word {
                    self.on_observed(index, io);
                }
            }
            Message::Installed { word, index } => self.on_installed(peer, word, index, io),
            Message::Campaign { term, transfer } => {
                if term >= self.stored.current.term {
                    self.campaign(transfer, io);
                }
            }
            // Chunks of state files are between whoever stores them.
            Message::FetchChunk { .. } | Message::Chunk { .. } => {}
        }
    }

    fn on_written<L: LogView>(&mut self, generation: u64, io: &mut Io<'_, L>) {
        self.stored.on_written(generation, io.out);
        self.finish_naming(io);
        self.finish_install(io);
        self.finish_fence(io);
        self.open_pending(io);
        self.run_deferred(io);
    }

    /// Opens the segments that the superblock now names and tells the leader of those that are for
    /// it.
    fn open_pending<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let mut rooms = Vec::new();
        while let Some(&(generation, record)) = self.pending.first() {
            if !self.stored.is_written(generation) {
                break;
            }
            self.pending.remove(0);
            io.out.push(Effect::Open(record));
            rooms.push(self.room(&record));
        }
        let has_opened = !rooms.is_empty();
        if let (Some((peer, connection)), true) = (self.grantee, has_opened) {
            io.send(peer, connection, Message::MoreRoom { word: self.word, rooms });
        }
        match &self.role {
            Role::Follower => {}
            Role::Candidate(_) if has_opened => self.on_candidate_room(io),
            Role::Candidate(_) => {}
            Role::Leader(_) => self.on_own_room(io),
        }
    }

    pub(crate) const fn room(&self, record: &SegmentRecord) -> Room {
        let len = self.stored.current.segment_len;
        Room { ordinal: record.ordinal, slot: record.slot, key: 0, len }
    }

    /// Keeps two segments granted ahead of whoever fills them.
    pub(crate) fn grant_more<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        const AHEAD: usize = 2;
        let leads = matches!(self.role, Role::Leader(_) | Role::Candidate(_));
        let is_busy = self.is_busy();
        if is_busy || (!leads && self.grantee.is_none()) || self.word.is_revoked() {
            return;
        }
        self.reclaim(io);
        let missing = AHEAD.saturating_sub(io.log.unopened() + self.pending.len());
        if missing == 0 {
            return;
        }
        let records = self.take_segments(missing, !leads);
        if records.is_empty() {
            return;
        }
        self.stored.current.segments.extend_from_slice(&records);
        let generation = self.stored.write(io.out);
        self.pending.extend(records.into_iter().map(|record| (generation, record)));
    }

    /// Takes up to `count` free slots as the next segments of the grant in force.
    pub(crate) fn take_segments(&mut self, count: usize, is_foreign: bool) -> Vec<SegmentRecord> {
        let room = RECORDS_MAX.saturating_sub(self.stored.current.segments.len());
        let mut records = Vec::new();
        for _ in 0..count.min(room) {
            let Some(slot) = self.slots.take(is_foreign) else { break };
            records.push(SegmentRecord {
                slot,
                word: self.word,
                ordinal: self.next_ordinal,
                nonce: self.word.nonce(self.nonce()),
                first: Index(0),
                seal: None,
            });
            self.next_ordinal += 1;
        }
        records
    }

    fn on_connected<L: LogView>(
        &mut self,
        peer: MemberId,
        connection: Connection,
        io: &mut Io<'_, L>,
    ) {
        check!(peer != self.me);
        self.connections.retain(|&(id, _)| id != peer);
        self.connections.push((peer, connection));
        match &self.role {
            Role::Follower => {}
            // Only this one: a second request to a peer whose answer is on its way would make it
            // fence again, and its first grant would be void before it is used.
            Role::Candidate(candidate) => {
                if let Some(vote) = candidate.asks(peer) {
                    io.send(peer, connection, vote);
                }
            }
            Role::Leader(_) => self.on_peer_connected(peer, connection, io),
        }
    }

    fn on_disconnected<L: LogView>(
        &mut self,
        peer: MemberId,
        connection: Connection,
        exited: bool,
        io: &mut Io<'_, L>,
    ) {
        if !self.is_current(peer, connection) {
            return;
        }
        self.connections.retain(|&(id, _)| id != peer);
        self.watch_disconnected(peer, exited, io);
        match &self.role {
            Role::Follower => {}
            Role::Candidate(_) => self.on_voter_lost(peer, io),
            Role::Leader(_) => self.on_peer_lost(peer, io),
        }
    }

    fn on_tick<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        match &self.role {
            Role::Follower => self.tick_watch(io),
            Role::Candidate(_) => self.tick_candidate(io),
            Role::Leader(_) => self.tick_leader(io),
        }
        self.maybe_checkpoint(io);
    }

    /// When [`Event::Tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        if self.is_failed {
            return Instant(u64::MAX);
        }
        match &self.role {
            Role::Follower => self.watch.deadline(),
            Role::Candidate(candidate) => candidate.deadline(),
            Role::Leader(leader) => leader.deadline(),
        }
    }

    /// The control line as it should stand in memory, but for the grant word, which only
    /// [`Effect::StoreGrant`] changes.
    #[must_use]
    pub fn control_line<L: LogView>(&self, log: &L) -> ControlLine {
        let (leading, accepted) = match &self.role {
            Role::Leader(leader) => (leader.progress(), log.tail().index),
            Role::Follower | Role::Candidate(_) => (Progress::default(), Index(0)),
        };
        ControlLine {
            grant: self.word,
            leader: self.leader(),
            leading,
            suspect: self.watch.suspect(self.stored.current.term),
            accepted,
            commit: self.commit,
            applied: self.applied,
        }
    }

    /// Who leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        if matches!(self.role, Role::Leader(_)) { Some(self.me) } else { self.watch.leader }
    }

    /// What this member is doing.
    #[must_use]
    pub const fn role(&self) -> &Role {
        &self.role
    }

    /// The term this member leads in, if it does.
    #[must_use]
    pub fn leading_term(&self) -> Option<Term> {
        match &self.role {
            Role::Leader(leader) => Some(leader.term),
            Role::Follower | Role::Candidate(_) => None,
        }
    }

    /// What a leader knows of the others; nothing when this member does not lead.
    pub fn followers(&self) -> impl Iterator<Item = Follower> + '_ {
        let peers = match &self.role {
            Role::Leader(leader) => leader.peers.as_slice(),
            Role::Follower | Role::Candidate(_) => &[],
        };
        peers.iter().map(|peer| Follower {
            id: peer.id,
            is_connected: peer.connection.is_some(),
            is_replicating: peer.is_replicating(),
            tail: peer.tail,
        })
    }

    /// Whether this member leads and is handing that over.
    #[must_use]
    pub fn is_transferring(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.transfer.is_some())
    }

    /// The highest term this member has been in.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.stored.current.term
    }

    /// The last index this member knows to be committed.
    #[must_use]
    pub const fn commit_index(&self) -> Index {
        self.commit
    }

    /// The last index its state machine has applied.
    #[must_use]
    pub const fn applied_index(&self) -> Index {
        self.applied
    }

    /// The superblock with changes that may not be durable yet.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.stored.current
    }

    /// Timing and window limits.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// Whether the region failed: the member acknowledges nothing until it is restarted.
    #[must_use]
    pub const fn is_failed(&self) -> bool {
        self.is_failed
    }

    pub(crate) fn is_current(&self, peer: MemberId, connection: Connection) -> bool {
        self.connection(peer) == Some(connection)
    }

    pub(crate) fn connection(&self, peer: MemberId) -> Option<Connection> {
        self.connections.iter().find(|&&(id, _)| id == peer).map(|&(_, connection)| connection)
    }

    /// Moves the commit index to `index`, which is in the log; never back.
    pub(crate) fn commit_to<L: LogView>(&mut self, index: Index, io: &mut Io<'_, L>) {
        if index > self.commit {
            check!(index <= io.log.tail().index, "only what is in the log is committed");
            self.commit = index;
            io.out.commit(index);
        }
    }

    pub(crate) fn refuse_change<L>(why: &'static str, io: &mut Io<'_, L>) {
        io.out.push(Effect::ChangeRefused { why: Refusal::ChangeRefused(why) });
    }

    /// The nonce of the grant in force.
    pub(crate) fn nonce(&self) -> base::Nonce {
        match &self.role {
            Role::Leader(leader) => leader.nonce,
            Role::Candidate(candidate) => candidate.nonce,
            Role::Follower => self.watch.nonce,
        }
    }

    /// What must hold between two steps.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants<L: LogView>(&self, log: &L) {
        let superblock = &self.stored.current;
        assert!(self.word >= superblock.grant.revoked(), "a grant word never goes back");
        if self.is_failed {
            return;
        }
        assert!(superblock.grant.term() <= superblock.term);
        assert!(superblock.segments.len() <= RECORDS_MAX);
        if let Role::Leader(leader) = &self.role {
            assert!(self.fence.is_none(), "a leader stops leading before it fences");
            assert_eq!(leader.term, superblock.term, "a leader leads in the term it stored");
            assert_eq!(self.word, superblock.grant, "and under its own grant word");
        }
        self.assert_leads_rightly(log);
        let open: Option<GrantWord> =
            superblock.segments.iter().rev().find(|record| record.seal.is_none()).map(|r| r.word);
        assert!(open.is_none_or(|word| word <= superblock.grant));
    }

    /// The part of the invariants that a commit can break.
    fn assert_leads_rightly<L: LogView>(&self, log: &L) {
        assert!(self.applied <= self.commit, "only committed entries are applied");
        if let Role::Leader(leader) = &self.role {
            leader.assert_invariants(log.tail().index);
        }
    }

    /// The configuration in force: the last one in the log.
    pub(crate) fn configuration<L: LogView>(log: &L) -> &Configuration {
        log.configuration().1
    }
}
