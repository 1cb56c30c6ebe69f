//! Fence and grant: the only way in, for a vote, for following and for a new grant in the same
//! term. The candidate runs it on itself first.
//!
//! ```text
//!  request --> store word, fence --> walk + seal --> flush --> ONE superblock write --> reply
//!                    |                                               |
//!              from here on no chain of an                  a crash before this
//!              earlier grant reads back well                has promised nothing
//! ```

use base::{GrantWord, Index, MemberId, Nonce, Term, check, mutant};
use logfmt::{Hole, SegmentRecord};

use crate::{
    core::{Core, Io, Role},
    effect::Effect,
    event::SegmentEnd,
    message::{Connection, Granted, Message, Room, VoteRefusal},
    snapshot::Install,
    view::LogView,
    wire,
};

/// Who asks for a fence, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// This member campaigns.
    Campaign { transfer: bool },
    /// A candidate wants a vote.
    Vote { transfer: bool },
    /// A leader wants to be followed.
    Follow { counted: Index },
}

/// A request for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) from: MemberId,
    pub(crate) connection: Connection,
    pub(crate) term: Term,
    pub(crate) nonce: Nonce,
    pub(crate) cause: Cause,
}

impl Request {
    pub(crate) const fn vote(
        from: MemberId,
        connection: Connection,
        (term, nonce): (Term, Nonce),
        transfer: bool,
    ) -> Self {
        Self { from, connection, term, nonce, cause: Cause::Vote { transfer } }
    }

    pub(crate) const fn follow(
        from: MemberId,
        connection: Connection,
        (term, nonce): (Term, Nonce),
        counted: Index,
    ) -> Self {
        Self { from, connection, term, nonce, cause: Cause::Follow { counted } }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Walking,
    Flushing,
    Writing(u64),
}

/// A fence-and-grant under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FenceRun {
    request: Request,
    stage: Stage,
    ends: Vec<SegmentEnd>,
    records: Vec<SegmentRecord>,
}

impl FenceRun {
    /// Whether its reply will answer `request` as well: a second fence for it would revoke the
    /// grant that the first one is about to tell.
    fn answers(&self, request: &Request) -> bool {
        let own = &self.request;
        (own.from, own.connection, own.term) == (request.from, request.connection, request.term)
    }
}

/// Whether a term may follow another: each election adds one, so that a jump of more than this is
/// damage or malice, and would use the terms up.
pub(crate) fn is_sane(term: Term, own: Term) -> bool {
    const JUMP_MAX: u64 = 1 << 32;
    term.0 <= own.0.saturating_add(JUMP_MAX) && term < Term::MAX
}

impl Core {
    /// A vote or follow request arrived.
    pub(crate) fn on_request<L: LogView>(&mut self, request: Request, io: &mut Io<'_, L>) {
        if self.fence.as_ref().is_some_and(|run| run.answers(&request)) {
            return;
        }
        if self.is_busy() {
            // The sender asks again, so that keeping one is only a matter of speed.
            if self.deferred.is_none_or(|waiting| waiting.term <= request.term) {
                self.deferred = Some(request);
            }
            return;
        }
        if let Some(why) = self.refusal(&request) {
            let term = self.stored.current.term;
            let message = Message::Refused { asked: request.term, term, why };
            io.send(request.from, request.connection, message);
            return;
        }
        self.begin_fence(request, io);
    }

    /// Why a request cannot be granted, if so. A voter does not compare logs, and it does not ask
    /// whether its own configuration lets it, or the candidate, vote.
    fn refusal(&self, request: &Request) -> Option<VoteRefusal> {
        let stored = &self.stored.current;
        if request.term < stored.term || !is_sane(request.term, stored.term) {
            return Some(VoteRefusal::Stale);
        }
        if self.word.max(stored.grant).next_in(request.term).is_none() {
            return Some(VoteRefusal::Exhausted);
        }
        match request.cause {
            Cause::Campaign { .. } => None,
            Cause::Follow { .. } => {
                let leads_it = self.leading_term() == Some(request.term);
                leads_it.then_some(VoteRefusal::Stale)
            }
            Cause::Vote { transfer } => {
                if request.term == stored.term && stored.vote != Some(request.from) {
                    return Some(VoteRefusal::Stale);
                }
                (!transfer && self.is_sticky(request.from)).then_some(VoteRefusal::LeaderLives)
            }
        }
    }

    /// Runs fence-and-grant for this member's own candidacy.
    pub(crate) fn begin_own_fence<L: LogView>(&mut self, transfer: bool, io: &mut Io<'_, L>) {
        let request = Request {
            from: self.me,
            connection: Connection::default(),
            term: self.stored.current.term.max(self.highest_term).next(),
            nonce: Nonce(self.random.next()),
            cause: Cause::Campaign { transfer },
        };
        self.begin_fence(request, io);
    }

    fn begin_fence<L: LogView>(&mut self, request: Request, io: &mut Io<'_, L>) {
        check!(self.fence.is_none(), "one fence runs at a time");
        if !mutant!("leader_counts_after_vote") {
            self.step_down(io);
        }
        let Some(word) = self.word.max(self.stored.current.grant).next_in(request.term) else {
            return;
        };
        self.word = word;
        self.highest_term = self.highest_term.max(request.term);
        self.grantee = None;
        self.install = None;
        self.pending.clear();
        self.next_ordinal = 0;
        if !self.stores_late(&request) {
            io.out.push(Effect::StoreGrant { word });
        }
        io.out.push(Effect::Walk);
        let stage = Stage::Walking;
        self.fence = Some(FenceRun { request, stage, ends: Vec::new(), records: Vec::new() });
    }

    /// Whether a planted fault delays the store of the grant word.
    fn stores_late(&self, request: &Request) -> bool {
        let is_own = request.from == self.me;
        mutant!("walk_before_store")
            || mutant!("reply_before_store")
            || (mutant!("candidate_walks_first") && is_own)
    }

    pub(crate) fn on_walked<L: LogView>(
        &mut self,
        believed: Index,
        ends: Vec<SegmentEnd>,
        io: &mut Io<'_, L>,
    ) {
        let Some(run) = &mut self.fence else { return };
        check!(run.stage == Stage::Walking);
        run.ends = ends;
        run.stage = Stage::Flushing;
        let believed = believed.min(io.log.tail().index);
        self.commit_to(believed, io);
        if mutant!("no_flush_before_report") {
            self.on_flushed(io);
        } else {
            io.out.push(Effect::FlushLog);
        }
    }

    /// All that the walk accepted is durable: writes the one superblock that seals, remembers the
    /// vote and the grant, and names the fresh segments.
    pub(crate) fn on_flushed<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Some(run) = self.fence.take() else { return };
        check!(run.stage == Stage::Flushing);
        let (request, ends) = (run.request, run.ends);
        self.durable = io.log.tail().index;
        if !mutant!("seal_in_ram_only") {
            self.seal(&ends, io);
        }
        let is_own = request.from == self.me;
        let stored = &mut self.stored.current;
        if request.term > stored.term || is_own {
            stored.vote = None;
        }
        if !matches!(request.cause, Cause::Follow { .. }) {
            stored.vote = Some(request.from);
        }
        stored.term = request.term;
        stored.grant = self.word;
        stored.granted_to = Some(request.from);
        self.mark_hole(&request, io);
        self.watch.nonce = request.nonce;
        self.reclaim(io);
        let records = self.take_granted(&request, io);
        let generation = self.stored.write(io.out);
        self.fence = Some(FenceRun { request, stage: Stage::Writing(generation), ends, records });
        if mutant!("segment_list_not_persisted") {
            let records = self.fence.as_ref().map(|run| run.records.clone()).unwrap_or_default();
            self.stored.current.segments.extend(records);
        }
    }

    fn take_granted<L: LogView>(
        &mut self,
        request: &Request,
        _io: &mut Io<'_, L>,
    ) -> Vec<SegmentRecord> {
        let is_foreign = request.from != self.me;
        let mut records = self.take_segments(2, is_foreign);
        for record in &mut records {
            record.nonce = self.word.nonce(request.nonce);
        }
        if !mutant!("segment_list_not_persisted") {
            self.stored.current.segments.extend_from_slice(&records);
        }
        records
    }

    /// Writes the ends that the walk found into the superblock's records. An empty segment is
    /// dropped: a late write into it is a write into nothing.
    fn seal<L: LogView>(&mut self, ends: &[SegmentEnd], io: &mut Io<'_, L>) {
        for end in ends {
            let segments = &mut self.stored.current.segments;
            let Some(at) = segments.iter().position(|record| record.slot == end.slot) else {
                continue;
            };
            if end.seal.is_some() {
                segments[at].first = end.first;
                segments[at].seal = end.seal;
            } else {
                segments.remove(at);
                self.slots.leave(end.slot);
            }
        }
        // A segment that was granted but never opened (its superblock write was overtaken by this
        // fence) is as empty as one that nobody wrote.
        let open: Vec<_> = self
            .stored
            .current
            .segments
            .iter()
            .filter(|record| record.seal.is_none())
            .map(|record| record.slot)
            .collect();
        for slot in open {
            self.stored.current.segments.retain(|record| record.slot != slot);
            self.slots.leave(slot);
        }
        let _ = io;
    }

    /// Remembers a gap between what this member reports and what its leader had counted, and
    /// forgets one that a leader's log has filled.
    fn mark_hole<L: LogView>(&mut self, request: &Request, io: &mut Io<'_, L>) {
        let tail = io.log.tail();
        let stored = &mut self.stored.current;
        if let Some(hole) = stored.hole {
            let is_refilled =
                tail.term == hole.term && hole.until.0 != 0 && tail.index >= hole.until;
            if tail.index >= hole.from && (tail.term > hole.term || is_refilled) {
                stored.hole = None;
            }
        }
        let Cause::Follow { counted } = request.cause else { return };
        if counted > tail.index {
            let hole = Hole { from: tail.index.next(), until: counted, term: request.term };
            let old = stored.hole.unwrap_or(hole);
            let (from, until) = (old.from.min(hole.from), old.until.max(hole.until));
            stored.hole = Some(Hole { from, until, term: hole.term });
        }
        if let Some(hole) = &mut stored.hole
            && hole.term == request.term
        {
            hole.until = hole.until.max(counted);
        }
    }

    /// The superblock is durable: the reply may say what it says.
    pub(crate) fn finish_fence<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let is_done = self.fence.as_ref().is_some_and(
            |run| matches!(run.stage, Stage::Writing(generation) if self.stored.is_written(generation)),
        );
        if !is_done {
            return;
        }
        let Some(run) = self.fence.take() else { return };
        for record in &run.records {
            io.out.push(Effect::Open(*record));
        }
        let request = run.request;
        if self.stores_late(&request) && !mutant!("reply_before_store") {
            io.out.push(Effect::StoreGrant { word: self.word });
        }
        match request.cause {
            Cause::Campaign { transfer } => {
                let has_room = !run.records.is_empty();
                self.begin_candidacy(&request, (transfer, has_room), io);
            }
            Cause::Vote { .. } | Cause::Follow { .. } => self.reply(&request, &run.records, io),
        }
        if mutant!("reply_before_store") {
            io.out.push(Effect::StoreGrant { word: self.word });
        }
        // Off the critical path: the writers of what was sealed. A slot that was empty, and free at
        // once, may be one of those just granted.
        for end in &run.ends {
            let is_granted = run.records.iter().any(|record| record.slot == end.slot);
            if !is_granted && self.slots.revoke(end.slot) {
                io.out.push(Effect::Revoke(end.slot));
            }
        }
        self.revoke_left(io);
    }

    /// Whether a fence, or the switch to a checkpoint that the superblock is about to name, is
    /// under way: either must end before a fence begins.
    pub(crate) fn is_busy(&self) -> bool {
        self.fence.is_some() || self.install.as_ref().is_some_and(Install::is_ready)
    }

    /// Takes up the request that waited.
    pub(crate) fn run_deferred<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if self.is_busy() {
            return;
        }
        if let Some(request) = self.deferred.take()
            && self.is_current(request.from, request.connection)
        {
            self.on_request(request, io);
        }
    }

    fn reply<L: LogView>(
        &mut self,
        request: &Request,
        records: &[SegmentRecord],
        io: &mut Io<'_, L>,
    ) {
        let is_follow = matches!(request.cause, Cause::Follow { .. });
        self.watch.restart(is_follow.then_some(request.from), io.now, &self.params);
        if !self.is_current(request.from, request.connection) {
            return;
        }
        self.grantee = Some((request.from, request.connection));
        let rooms = records.iter().map(|record| self.room(record)).collect();
        let granted = self.granted(rooms, io.log);
        io.send(request.from, request.connection, Message::Granted(Box::new(granted)));
    }

    fn granted<L: LogView>(&self, rooms: Vec<Room>, log: &L) -> Granted {
        // More terms than a message takes are told from the newest down; a leader that finds
        // nothing in common then sends its checkpoint rather than guess.
        let boundaries = log.boundaries();
        let skipped = boundaries.len().saturating_sub(wire::BOUNDARIES_MAX);
        let (index, configuration) = log.configuration();
        Granted {
            word: self.word,
            tail: log.tail(),
            boundaries: boundaries[skipped..].to_vec(),
            complete: skipped == 0,
            commit: self.commit,
            first: log.first(),
            configuration: (index, configuration.clone()),
            hole: self.stored.current.hole,
            extents: log.extents(log.first()),
            log_key: 0,
            rooms,
        }
    }

    /// Withdraws the rights of slots that have left the log while somebody could write them.
    fn revoke_left<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let named = &self.stored.current.segments;
        let left: Vec<_> =
            self.slots.all().filter(|slot| !named.iter().any(|r| r.slot == *slot)).collect();
        for slot in left {
            if self.slots.revoke(slot) {
                io.out.push(Effect::Revoke(slot));
            }
        }
    }

    /// Resumes leading after a restart: never done, but for a planted fault.
    pub(crate) fn resume_leading<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let stored = &self.stored.current;
        let nonce = stored.segments.last().map(|record| record.nonce);
        if let (Some(nonce), Some(to)) = (nonce, stored.granted_to)
            && to == self.me
            && stored.vote == Some(self.me)
        {
            self.word = stored.grant;
            io.out.push(Effect::StoreGrant { word: self.word });
            let term = stored.term;
            self.lead(term, nonce, io);
        }
    }

    /// Ends leading or candidacy, if this member is at either.
    pub(crate) fn step_down<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let role = std::mem::replace(&mut self.role, Role::Follower);
        match role {
            Role::Follower => return,
            Role::Candidate(candidate) => self.watch.nonce = candidate.nonce,
            Role::Leader(leader) => {
                self.watch.nonce = leader.nonce;
                leader.refuse_reads(io.out);
                io.out.push(Effect::Deposed { term: leader.term });
            }
        }
        self.watch.restart(None, io.now, &self.params);
    }

    /// The word under which this member has granted, for those who look from outside.
    #[must_use]
    pub const fn grant_word(&self) -> GrantWord {
        self.word
    }
}
