//! Replication, the commit rule and check-quorum.
//!
//! ```text
//!  proposals --> Append (own log) --> per follower one chain: WRITE.., READ grant word
//!                   |                                  |
//!               Persisted                          ReadBack: word equal, connection current
//!                   |                                  |
//!                own tail ----> quorum-th largest <-- that member's tail
//!                                     |
//!                          of this term? --> commit
//! ```

use base::{GrantWord, Index, Instant, MemberId, Nonce, Term, check, mutant};
use logfmt::Progress;

use crate::{
    boundaries::{Outline, match_point},
    core::{Core, Io, Role},
    effect::{Append, Chain, Effect, Refusal, Run},
    membership::Change,
    message::{Connection, Granted, Message, Room},
    peer::{InFlight, Peer, Stage},
    reads::Reads,
    remote::{NoBatch, Remote},
    transfer::Transfer,
    view::LogView,
};

/// A leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    pub(crate) term: Term,
    pub(crate) nonce: Nonce,
    pub(crate) peers: Vec<Peer>,
    /// Index of the no-op, once it is in the log.
    pub(crate) noop: Option<Index>,
    /// Chains posted so far.
    pub(crate) sequence: u64,
    pub(crate) reads: Reads,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) change: Option<Change>,
    counter: u16,
    beat_at: Instant,
    since: Instant,
    /// The no-op is being appended.
    noop_asked: bool,
    /// A member has shown a higher term; chains posted after this one tell who still follows.
    contested: Option<u64>,
}

impl Leader {
    pub(crate) const fn progress(&self) -> Progress {
        Progress { term: self.term, counter: self.counter }
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.beat_at
    }

    pub(crate) fn peer(&mut self, id: MemberId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    /// Durable tails of the other members as this leader counts them.
    pub fn tails(&self) -> impl Iterator<Item = (MemberId, Index)> + '_ {
        self.peers.iter().map(|peer| (peer.id, peer.tail))
    }

    pub(crate) fn assert_invariants(&self, tail: Index) {
        for peer in &self.peers {
            assert!(peer.tail <= tail, "nobody holds more of this term than its leader");
            assert!(peer.next > peer.tail || !peer.is_replicating());
        }
    }
}

/// The highest chain number: numbers wrap, so that they fit a work request's id beside what else
/// must stand in it. They tell the few chains in flight apart.
const CHAIN_ID_MAX: u64 = (1 << 40) - 1;

impl Core {
    pub(crate) fn lead<L: LogView>(&mut self, term: Term, nonce: Nonce, io: &mut Io<'_, L>) {
        check!(self.durable == io.log.tail().index, "the adopted log is durable before anything");
        self.role = Role::Leader(Box::new(Leader {
            term,
            nonce,
            peers: Vec::new(),
            noop: None,
            sequence: 0,
            reads: Reads::default(),
            transfer: None,
            change: None,
            counter: 1,
            beat_at: io.now + self.params.beat_interval(),
            since: io.now,
            noop_asked: false,
            contested: None,
        }));
        self.watch.leader = None;
        self.sync_peers(io);
        self.append_noop(io);
        io.out.push(Effect::Leads { term });
    }

    fn append_noop<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &mut self.role else { return };
        if mutant!("no_noop") || mutant!("any_term_commit_no_noop") {
            leader.noop = Some(Index(0));
            return;
        }
        leader.noop_asked = true;
        self.append(Append::NoOp, io);
    }

    pub(crate) fn append<L: LogView>(&self, what: Append, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        let (term, nonce) = (leader.term, leader.nonce);
        io.out.push(Effect::Append { term, nonce, commit: self.commit, what });
    }

    /// Makes the list of peers what the configuration says.
    pub(crate) fn sync_peers<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let members = Self::configuration(io.log).all();
        let (me, connections) = (self.me, &self.connections);
        let Role::Leader(leader) = &mut self.role else { return };
        leader.peers.retain(|peer| members.contains(peer.id));
        for id in members.ids().filter(|&id| id != me) {
            if leader.peer(id).is_none() {
                let connection = connections.iter().find(|&&(peer, _)| peer == id).map(|c| c.1);
                leader.peers.push(Peer::new(id, connection, io.now));
            }
        }
    }

    /// Room has come to the own log.
    pub(crate) fn on_own_room<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        if leader.noop.is_none() && !leader.noop_asked {
            self.append_noop(io);
        }
    }

    pub(crate) fn on_proposed<L: LogView>(&mut self, count: u32, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else {
            let why = Refusal::NotLeader(self.leader());
            io.out.push(Effect::ProposalsRefused { why });
            return;
        };
        let waiting = io.log.tail().index.0.saturating_sub(self.commit.0);
        let why = if leader.noop.is_none() || waiting >= self.params.uncommitted_max {
            Refusal::Overloaded
        } else if leader.transfer.is_some() {
            Refusal::Transferring
        } else if self.is_out_of_room(io) {
            Refusal::Overloaded
        } else {
            io.out.append((leader.term, leader.nonce, self.commit), count);
            return;
        };
        io.out.push(Effect::ProposalsRefused { why });
    }

    /// Whether the own log has no segment to begin and none is on its way: what is accepted now
    /// could not be appended.
    fn is_out_of_room<L: LogView>(&self, io: &Io<'_, L>) -> bool {
        io.log.unopened() == 0 && self.pending.is_empty() && self.slots.free() == 0
    }

    /// The own log has grown: posts it to everybody who takes it.
    pub(crate) fn on_appended<L: LogView>(&mut self, durable: Index, io: &mut Io<'_, L>) {
        let tail = io.log.tail();
        let Role::Leader(leader) = &mut self.role else { return };
        leader.noop_asked = false;
        if leader.noop.is_none() && tail.term == leader.term {
            leader.noop = Some(tail.index);
        }
        self.on_configuration_appended(io);
        let durable = if mutant!("own_copy_before_persist") { tail.index } else { durable };
        self.durable = self.durable.max(durable.min(tail.index));
        if self.replicate_first(io) {
            io.out.spread();
        } else {
            self.after_append(io);
        }
    }

    /// The followers that a commit does not need.
    pub(crate) fn on_spread<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        for at in 0..leader.peers.len() {
            self.replicate_at(at, io);
        }
        self.after_append(io);
    }

    fn after_append<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        // No other member has told anything that was not looked at when it came.
        if Self::configuration(io.log).is_quorum(|id| id == self.me) {
            self.advance_commit(self.durable, io);
        }
        self.grant_more(io);
    }

    pub(crate) fn on_persisted<L: LogView>(&mut self, through: Index, io: &mut Io<'_, L>) {
        if matches!(self.role, Role::Leader(_)) {
            self.durable = self.durable.max(through.min(io.log.tail().index));
            self.advance_commit(self.durable, io);
        }
    }

    pub(crate) fn on_peer_connected<L: LogView>(
        &mut self,
        id: MemberId,
        connection: Connection,
        io: &mut Io<'_, L>,
    ) {
        let Role::Leader(leader) = &mut self.role else { return };
        if let Some(peer) = leader.peer(id) {
            peer.connection = Some(connection);
            peer.probe(io.now);
            self.probe(id, io);
        }
    }

    pub(crate) fn on_peer_lost<L: LogView>(&mut self, id: MemberId, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &mut self.role else { return };
        if let Some(peer) = leader.peer(id) {
            peer.connection = None;
            if !mutant!("old_connection_completions") {
                peer.probe(io.now);
            }
        }
    }

    /// Asks a member for a grant.
    pub(crate) fn probe<L: LogView>(&mut self, id: MemberId, io: &mut Io<'_, L>) {
        let retry = self.params.sample_interval();
        let Role::Leader(leader) = &mut self.role else { return };
        let (term, nonce) = (leader.term, leader.nonce);
        let Some(peer) = leader.peer(id) else { return };
        let Some(connection) = peer.connection else { return };
        peer.stage = Stage::Probe(io.now + retry);
        io.send(id, connection, Message::Follow { term, nonce, counted: peer.counted });
    }

    /// A member has granted this leader its log.
    pub(crate) fn on_follower<L: LogView>(
        &mut self,
        id: MemberId,
        connection: Connection,
        granted: &Granted,
        io: &mut Io<'_, L>,
    ) {
        let own = Outline { boundaries: io.log.boundaries(), last: io.log.tail().index };
        let theirs = Outline { boundaries: &granted.boundaries, last: granted.tail.index };
        let point = match_point(own, theirs).filter(|point| point.next() >= io.log.first());
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peer(id) else { return };
        let is_older = peer.word.term() == granted.word.term() && granted.word <= peer.word;
        if peer.connection != Some(connection) || is_older {
            return;
        }
        let (old_next, in_flight) = (peer.next, std::mem::take(&mut peer.in_flight));
        io.out.push(Effect::ForgetChains { peer: id });
        peer.probe(io.now);
        peer.word = granted.word;
        peer.remote = Remote::new(granted.rooms.clone());
        peer.next_ordinal = u32::try_from(granted.rooms.len()).unwrap_or(u32::MAX);
        if mutant!("old_connection_completions") || mutant!("no_count_in_word") {
            peer.in_flight = in_flight;
        }
        let Some(point) = point else {
            self.send_snapshot(id, io);
            return;
        };
        peer.stage = Stage::Replicate;
        peer.tail = point;
        peer.next = point.next();
        peer.told = granted.commit.min(point);
        plant_base_faults(peer, granted.tail.index, old_next);
        peer.counted = peer.counted.max(peer.tail);
        let tail = peer.tail;
        self.replicate(id, io);
        self.beat(id, true, io);
        self.advance_commit(tail, io);
    }

    pub(crate) fn on_more_room<L: LogView>(
        &mut self,
        id: MemberId,
        word: GrantWord,
        rooms: &[Room],
        io: &mut Io<'_, L>,
    ) {
        let Role::Leader(leader) = &mut self.role else { return };
        let term = leader.term;
        let Some(peer) = leader.peer(id) else { return };
        if peer.word == word && word.term() == term {
            let Peer { remote, next_ordinal, .. } = peer;
            remote.add(rooms, next_ordinal);
            self.replicate(id, io);
        }
    }

    /// Posts what is new to as many followers as a majority needs beside this member. The others
    /// follow after a look at what has come back: where a chain is over once it is posted, no
    /// commit waits for more stores than it needs. Whether there are others.
    fn replicate_first<L: LogView>(&mut self, io: &mut Io<'_, L>) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let count = leader.peers.len();
        let mut missing = count.div_ceil(2);
        for at in 0..count {
            if missing == 0 {
                return true;
            }
            missing -= usize::from(self.replicate_at(at, io));
        }
        false
    }

    pub(crate) fn replicate<L: LogView>(&mut self, id: MemberId, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        if let Some(at) = leader.peers.iter().position(|peer| peer.id == id) {
            self.replicate_at(at, io);
        }
    }

    /// Posts what a follower's window and rooms take; whether all that is in the log now is on its
    /// way.
    fn replicate_at<L: LogView>(&mut self, at: usize, io: &mut Io<'_, L>) -> bool {
        let tail = io.log.tail().index;
        let Role::Leader(leader) = &mut self.role else { return false };
        loop {
            let peer = &mut leader.peers[at];
            let is_full = peer.in_flight.len() >= self.params.chains_max
                || peer.bytes_in_flight >= self.params.window_bytes_max;
            if !peer.is_replicating() || is_full || peer.next > tail {
                return peer.is_replicating() && peer.next > tail;
            }
            let batch = peer.remote.fit(io.log, peer.next, tail, self.params.batch_bytes_max);
            let batch = match batch {
                Ok(batch) => batch,
                Err(NoBatch::NoRoom) => {
                    peer.starved.get_or_insert(io.now);
                    return false;
                }
                Err(NoBatch::Trimmed) => {
                    let id = peer.id;
                    self.send_snapshot(id, io);
                    return false;
                }
            };
            peer.next = batch.run.last.next();
            peer.starved = None;
            let content = (Some(batch.run), batch.run.last, batch.bytes);
            post(leader, at, content, (self.commit, &mut self.next_chain), io);
        }
    }

    /// Proves leadership to this follower's memory and tells it the commit index, when no chain
    /// with entries did lately. `is_due` posts in any case.
    pub(crate) fn beat<L: LogView>(&mut self, id: MemberId, is_due: bool, io: &mut Io<'_, L>) {
        let interval = self.params.beat_interval();
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(at) = leader.peers.iter().position(|peer| peer.id == id) else { return };
        let peer = &mut leader.peers[at];
        let known = self.commit.min(peer.tail);
        if peer.is_replicating() && !peer.remote.has_begun() && peer.told < known {
            peer.told = known;
            let (word, connection) = (peer.word, peer.connection);
            if let Some(connection) = connection {
                io.send(id, connection, Message::Committed { word, index: known });
            }
        }
        let peer = &leader.peers[at];
        let is_quiet = peer.in_flight.is_empty()
            && (peer.told < self.commit.min(peer.next.previous())
                || io.now >= peer.posted_at + interval);
        if !peer.is_granted()
            || !(is_due || is_quiet)
            || peer.in_flight.len() >= self.params.chains_max
        {
            return;
        }
        let content = (None, peer.next.previous(), 0);
        post(leader, at, content, (self.commit, &mut self.next_chain), io);
    }

    pub(crate) fn on_read_back<L: LogView>(
        &mut self,
        id: MemberId,
        connection: Connection,
        (chain, word): (u64, GrantWord),
        io: &mut Io<'_, L>,
    ) {
        let mut deposed = None;
        let retry = self.params.sample_interval();
        let leader = match &mut self.role {
            Role::Leader(leader) => leader,
            Role::Follower | Role::Candidate(_) => return,
        };
        let term = leader.term;
        let Some(peer) = leader.peer(id) else { return };
        let is_oldest = peer.in_flight.front().is_some_and(|oldest| oldest.id == chain);
        if !is_oldest {
            // One of a grant that is no more is not in flight here.
            let at = peer.in_flight.iter().position(|posted| posted.id == chain);
            check!(at.is_none(), "read-backs arrive in the order they were posted");
            let Some(at) = at else { return };
            peer.in_flight.drain(..at);
        }
        let Some(posted) = peer.in_flight.pop_front() else { return };
        peer.bytes_in_flight = peer.bytes_in_flight.saturating_sub(posted.bytes);
        let is_current = peer.connection == Some(connection) && posted.connection == connection;
        let is_good = if mutant!("any_term_readback") {
            true
        } else if mutant!("no_count_in_word") {
            word.term() == posted.word.term()
        } else {
            word == posted.word && peer.word == posted.word
        };
        if !(is_current || mutant!("old_connection_completions")) {
            return;
        }
        if is_good {
            let counts = matches!(peer.stage, Stage::Replicate)
                || mutant!("member_counted_before_snapshot")
                || mutant!("old_connection_completions");
            if counts {
                peer.tail = peer.tail.max(posted.last);
                peer.counted = peer.counted.max(peer.tail);
                peer.told = peer.told.max(posted.commit);
            }
            peer.confirmed = peer.confirmed.max(posted.sequence);
            peer.confirmed_at = peer.confirmed_at.max(posted.posted);
        } else if word.term() > term {
            deposed = Some(word.term());
            peer.probe(io.now + retry);
        } else if peer.word == posted.word {
            // It revoked this grant: it restarted, or a newer grant is on its way here.
            peer.probe(io.now + retry);
            io.out.push(Effect::ForgetChains { peer: id });
        }
        let (tail, is_behind) = (peer.tail, peer.next <= io.log.tail().index);
        if let Some(term) = deposed {
            self.saw_term(term);
            self.on_higher_term(io);
            return;
        }
        // First what a client waits for.
        self.advance_commit(tail, io);
        if is_behind {
            self.replicate(id, io);
        }
        self.confirm_reads(io);
        self.settle_contest(io);
    }

    /// A member shows a higher term. If a quorum still follows, that member was led astray by a
    /// candidate that lost: this leader re-elects itself above it. Otherwise it is deposed. What a
    /// quorum said before the sighting does not count: two leaders that do not see each other would
    /// depose each other for ever.
    pub(crate) fn on_higher_term<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &mut self.role else { return };
        if leader.transfer.is_some_and(|transfer| transfer.is_asked()) {
            return self.step_down(io);
        }
        if leader.contested.is_some() {
            return;
        }
        leader.contested = Some(leader.sequence);
        let members: Vec<MemberId> = leader.peers.iter().map(|peer| peer.id).collect();
        for id in members {
            self.beat(id, true, io);
        }
        self.settle_contest(io);
    }

    /// Re-elects this leader once a quorum has followed it after the sighting of a higher term.
    /// If that never comes true, check-quorum ends its term.
    #[inline]
    fn settle_contest<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if let Role::Leader(leader) = &self.role
            && let Some(after) = leader.contested
        {
            self.settle(after, io);
        }
    }

    /// What came back on chains posted after `after` counts.
    fn settle<L: LogView>(&mut self, after: u64, io: &mut Io<'_, L>) {
        let me = self.me;
        let Role::Leader(leader) = &self.role else { return };
        let follows = |id: MemberId| {
            id == me || leader.peers.iter().any(|peer| peer.id == id && peer.confirmed > after)
        };
        if Self::configuration(io.log).is_quorum(follows) {
            self.campaign(false, io);
        }
    }

    pub(crate) fn on_chain_failed<L: LogView>(
        &mut self,
        id: MemberId,
        connection: Connection,
        io: &mut Io<'_, L>,
    ) {
        if !self.is_current(id, connection) {
            return;
        }
        let Role::Leader(leader) = &mut self.role else { return };
        if let Some(peer) = leader.peer(id) {
            peer.probe(io.now + self.params.sample_interval());
            io.out.push(Effect::Reconnect { peer: id, connection });
        }
    }

    /// The commit rule: the quorum-th largest tail, if the entry there is of this term. `moved` is
    /// the tail because of which it is asked.
    #[inline]
    pub(crate) fn advance_commit<L: LogView>(&mut self, moved: Index, io: &mut Io<'_, L>) {
        if moved > self.commit {
            self.count_commit(moved, io);
        }
    }

    fn count_commit<L: LogView>(&mut self, moved: Index, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        let (me, durable) = (self.me, self.durable);
        let tail = |id| {
            if id == me {
                return durable;
            }
            let peer = leader.peers.iter().find(|peer| peer.id == id);
            peer.map_or(Index(0), |peer| peer.tail)
        };
        let configuration = Self::configuration(io.log);
        // Mostly this tail is the one that a quorum was missing: telling that takes no sorting.
        let reached = if configuration.is_quorum(|id| tail(id) >= moved) {
            moved
        } else {
            configuration.quorum_value(tail)
        };
        let any_term = mutant!("any_term_commit") || mutant!("any_term_commit_no_noop");
        let is_own_term = io.log.term_at(reached) == Some(leader.term);
        if reached > self.commit && (is_own_term || any_term) {
            self.commit_to(reached, io);
            self.on_commit_moved(io);
        }
    }

    fn on_commit_moved<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        self.confirm_reads(io);
        self.continue_change(io);
        self.continue_transfer(io);
    }

    /// Whether a follower's oldest chain has been on its way for absurdly long.
    fn is_stuck<L: LogView>(&self, id: MemberId, io: &Io<'_, L>) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let limit = self.params.suspicion_timeout * 8;
        let peer = leader.peers.iter().find(|peer| peer.id == id);
        let oldest = peer.and_then(|peer| peer.in_flight.front());
        oldest.is_some_and(|posted| posted.posted + limit < io.now)
    }

    /// Whether a quorum read back well within the suspicion timeout, this member included.
    fn has_quorum<L: LogView>(&self, io: &Io<'_, L>) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let timeout = self.params.suspicion_timeout;
        Self::configuration(io.log).is_quorum(|id| {
            id == self.me
                || leader
                    .peers
                    .iter()
                    .any(|peer| peer.id == id && peer.confirmed_at + timeout > io.now)
        })
    }

    pub(crate) fn tick_leader<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let beat_interval = self.params.beat_interval();
        let Role::Leader(leader) = &mut self.role else { return };
        if io.now < leader.beat_at {
            return;
        }
        leader.beat_at = io.now + beat_interval;
        leader.counter = leader.counter.wrapping_add(1);
        let since = leader.since;
        if io.now >= since + self.params.suspicion_timeout && !self.has_quorum(io) {
            self.step_down(io);
            return;
        }
        self.tick_transfer(io);
        let Role::Leader(leader) = &self.role else { return };
        let patience = self.params.suspicion_timeout * 2;
        let is_starved = |peer: &Peer| peer.starved.is_some_and(|since| io.now >= since + patience);
        let peers: Vec<(MemberId, Stage)> = leader
            .peers
            .iter()
            .map(|peer| {
                // What it granted may have got lost on the way: a new grant names fresh segments.
                let stage = if is_starved(peer) { Stage::Probe(io.now) } else { peer.stage };
                (peer.id, stage)
            })
            .collect();
        for (id, stage) in peers {
            match stage {
                Stage::Probe(at) if io.now >= at => self.probe(id, io),
                Stage::Probe(_) => {}
                Stage::Replicate | Stage::Snapshot if self.is_stuck(id, io) => {
                    // Its queue pair answers nothing: what its chains gather from must not be kept
                    // for ever, and a new connection heals what an old one has lost.
                    if let Some(connection) = self.connection(id) {
                        self.on_chain_failed(id, connection, io);
                    }
                }
                Stage::Replicate => {
                    self.replicate(id, io);
                    self.beat(id, false, io);
                }
                Stage::Snapshot => {
                    self.send_snapshot(id, io);
                    self.beat(id, false, io);
                }
            }
        }
        self.on_own_room(io);
        self.grant_more(io);
    }
}

/// Posts one chain to the peer at `at`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a part of every commit, which passes much by value")]
fn post<L: LogView>(
    leader: &mut Leader,
    at: usize,
    (run, last, bytes): (Option<Run>, Index, u64),
    (commit, next_chain): (Index, &mut u64),
    io: &mut Io<'_, L>,
) {
    leader.sequence += 1;
    let sequence = leader.sequence;
    let peer = &mut leader.peers[at];
    let Some(connection) = peer.connection else { return };
    let id = *next_chain;
    *next_chain = next_chain.wrapping_add(1) & CHAIN_ID_MAX;
    // An idle line is believed up to the last entry of its segment: the last one sent.
    let tellable = commit.min(last);
    let clamps_wide = mutant!("commit_word_clamped_to_own_tail");
    let tells_idle = clamps_wide || (run.is_none() && peer.told < tellable);
    let idle = if tells_idle { peer.remote.key() } else { None };
    let tells = if idle.is_some() { tellable } else { peer.told };
    peer.in_flight.push_back(InFlight {
        id,
        word: peer.word,
        connection,
        first: run.map(|run| run.first),
        last,
        bytes,
        sequence,
        posted: io.now,
        commit: tells,
    });
    peer.bytes_in_flight += bytes;
    peer.posted_at = io.now;
    let nonce = peer.word.nonce(leader.nonce);
    io.out.post(&Chain { peer: peer.id, connection, id, run, nonce, commit, idle });
}

/// The planted faults about where a leader begins to stream.
fn plant_base_faults(peer: &mut Peer, reported: Index, old_next: Index) {
    if mutant!("base_two_too_low") {
        peer.next = Index(peer.next.0.saturating_sub(2).max(1));
    }
    if mutant!("base_tail_plus_one") {
        peer.next = reported.next();
        peer.tail = peer.tail.max(reported.min(peer.next.previous()));
    }
    if mutant!("per_entry_counting") && old_next > peer.next {
        peer.next = old_next;
    }
}
