//! Suspicion, pre-vote, candidacy, adoption of the best log.
//!
//! Nobody sends heartbeats. A follower samples its leader's `leading` word with one-sided READs;
//! two samples without progress are a suspicion, which it shows in its own `suspect` word. A
//! member campaigns when a quorum shows fresh suspicion. Samples count, not wall time, so that a
//! member that was stopped does not suspect anybody on waking.

use base::{
    Configuration, Duration, GrantWord, Index, Instant, MemberId, Nonce, Term, check, mutant,
};
use logfmt::{ControlLine, Position, Progress};

use crate::{
    boundaries::{Outline, match_point},
    core::{Core, Io, Role},
    effect::{Effect, Fetch},
    fence::{Request, is_sane},
    message::{Connection, Granted, Message, Room, VoteRefusal},
    params::Params,
    view::LogView,
    wire,
};

/// Samples without progress that make a suspicion.
const UNCHANGED_MAX: u8 = 2;
/// Samples in which the leader had work and committed none of it that make a suspicion.
const STALLED_MAX: u8 = 8;

/// What a member has seen of another's control line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    id: MemberId,
    leading: Progress,
    suspect: Progress,
    /// Its suspicion moved between the last two reads.
    is_suspecting: bool,
    /// It was read since the last sample.
    is_answered: bool,
}

/// What a follower knows of whoever leads, and of the others' suspicion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) leader: Option<MemberId>,
    /// The nonce of the grant in force, for further segments of it.
    pub(crate) nonce: Nonce,
    next_sample: Instant,
    unchanged: u8,
    /// The leader's words were asked for in the interval under way.
    is_asked: bool,
    /// They were read for the first time: there is nothing to compare them with.
    is_first: bool,
    stalled: u8,
    last_progress: Option<Progress>,
    has_moved: bool,
    last_commit: (Index, Index),
    /// Counts this member's own samples while it suspects; 0 when it does not.
    suspicion: u16,
    seen: Vec<Seen>,
    campaign_at: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(now: Instant, sample_interval: Duration) -> Self {
        Self {
            leader: None,
            nonce: Nonce(0),
            next_sample: now + sample_interval,
            unchanged: 0,
            is_asked: false,
            is_first: false,
            stalled: 0,
            last_progress: None,
            has_moved: false,
            last_commit: (Index(0), Index(0)),
            suspicion: 0,
            seen: Vec::new(),
            campaign_at: None,
        }
    }

    /// Begins anew with this leader, or with nobody, who then has a whole timeout to appear.
    pub(crate) fn restart(&mut self, leader: Option<MemberId>, now: Instant, params: &Params) {
        let nonce = self.nonce;
        *self = Self::new(now, params.sample_interval());
        self.leader = leader;
        self.nonce = nonce;
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.campaign_at.map_or(self.next_sample, |at| at.min(self.next_sample))
    }

    /// The `suspect` word.
    pub(crate) fn suspect(&self, term: Term) -> Progress {
        if self.suspicion == 0 {
            return Progress::default();
        }
        Progress { term, counter: self.suspicion }
    }

    fn suspects(&self) -> bool {
        self.unchanged >= UNCHANGED_MAX || self.stalled >= STALLED_MAX
    }

    /// Closes one sampling interval.
    fn sample(&mut self) {
        let tells_nothing = self.leader.is_some() && (!self.is_asked || self.is_first);
        if std::mem::take(&mut self.has_moved) {
            self.unchanged = 0;
        } else if !tells_nothing {
            self.unchanged = self.unchanged.saturating_add(1);
        }
        self.is_asked = false;
        self.is_first = false;
        for seen in &mut self.seen {
            seen.is_suspecting &= seen.is_answered;
            seen.is_answered = false;
        }
        if self.suspects() {
            self.suspicion = self.suspicion.checked_add(1).unwrap_or(1);
        } else {
            self.suspicion = 0;
            self.campaign_at = None;
        }
    }

    /// The leader's words were read.
    fn on_leader(&mut self, line: &ControlLine, term: Term) {
        self.is_first = self.last_progress.is_none();
        let is_leading = line.leading.term >= term && line.leading.term.0 > 0;
        if is_leading && self.last_progress.is_some_and(|last| last != line.leading) {
            self.has_moved = true;
            self.unchanged = 0;
        }
        self.last_progress = Some(line.leading);
        let standing = line.accepted > line.commit && self.last_commit.1 == line.commit;
        self.stalled = if standing { self.stalled.saturating_add(1) } else { 0 };
        self.last_commit = (line.accepted, line.commit);
    }

    /// Anybody's words were read. Returns whether it is seen to lead in `term` or above.
    fn on_line(&mut self, peer: MemberId, line: &ControlLine, term: Term) -> bool {
        let (leading, suspect) = (line.leading, line.suspect);
        let fresh = Seen { id: peer, leading, suspect, is_suspecting: false, is_answered: true };
        let Some(seen) = self.seen.iter_mut().find(|seen| seen.id == peer) else {
            self.seen.push(fresh);
            return false;
        };
        let leads = leading.term >= term && leading.term.0 > 0 && leading != seen.leading;
        let is_suspecting = suspect.counter != 0 && suspect != seen.suspect;
        *seen = Seen { is_suspecting, ..fresh };
        leads
    }

    fn is_suspecting(&self, id: MemberId) -> bool {
        self.seen.iter().any(|seen| seen.id == id && seen.is_suspecting)
    }
}

/// A vote that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reply {
    id: MemberId,
    connection: Connection,
    granted: Granted,
}

/// A candidacy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub(crate) term: Term,
    pub(crate) nonce: Nonce,
    transfer: bool,
    replies: Vec<Reply>,
    /// Whose log is being adopted, from where on.
    fetching: Option<(MemberId, Index)>,
    /// A log was adopted: what this candidacy has placed cannot be taken back.
    has_adopted: bool,
    /// The own grant has a segment to write to.
    has_room: bool,
    ask_at: Instant,
    gives_up: Instant,
}

impl Candidate {
    pub(crate) fn deadline(&self) -> Instant {
        self.ask_at.min(self.gives_up)
    }

    /// The request for the vote of `peer`, unless it has voted.
    pub(crate) fn asks(&self, peer: MemberId) -> Option<Message> {
        let has_voted = self.replies.iter().any(|reply| reply.id == peer);
        let (term, nonce, transfer) = (self.term, self.nonce, self.transfer);
        (!has_voted).then_some(Message::Vote { term, nonce, transfer })
    }

    /// The members that have voted, besides the candidate itself.
    pub fn voters(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.replies.iter().map(|reply| reply.id)
    }
}

fn rank(position: Position) -> (Term, Index) {
    if mutant!("compare_only_index") {
        return (Term(0), position.index);
    }
    (position.term, position.index)
}

impl Core {
    /// Whether a vote for `candidate` would be disloyal: this member has a leader that is alive.
    pub(crate) fn is_sticky(&self, candidate: MemberId) -> bool {
        match &self.role {
            Role::Leader(_) => true,
            Role::Candidate(_) => false,
            Role::Follower => {
                self.watch.leader.is_some_and(|leader| leader != candidate)
                    && !self.watch.suspects()
            }
        }
    }

    pub(crate) fn tick_watch<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if self.fence.is_some() {
            self.watch.next_sample = io.now + self.params.sample_interval();
            self.watch.campaign_at = None;
            return;
        }
        if io.now >= self.watch.next_sample {
            self.watch.sample();
            let interval = self.params.sample_interval();
            let suspects = self.watch.suspects();
            self.watch.next_sample = io.now + if suspects { interval / 4 } else { interval };
            self.read_lines(io);
            self.plan_campaign(io);
        }
        if self.watch.campaign_at.is_some_and(|at| io.now >= at) {
            self.watch.campaign_at = None;
            if self.may_campaign(io) {
                self.campaign(false, io);
            }
        }
    }

    /// Samples the leader; everybody when this member suspects it, or knows none.
    fn read_lines<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        self.watch.is_asked = true;
        let everybody = self.watch.suspects() || self.watch.leader.is_none();
        for &(peer, connection) in &self.connections {
            if everybody || self.watch.leader == Some(peer) {
                io.out.push(Effect::ReadControl { peer, connection });
            }
        }
    }

    /// Whether this member votes and a quorum, itself included, suspects now.
    fn may_campaign<L: LogView>(&self, io: &Io<'_, L>) -> bool {
        let configuration = Self::configuration(io.log);
        self.watch.suspects()
            && configuration.is_voter(self.me)
            && configuration.is_quorum(|id| id == self.me || self.watch.is_suspecting(id))
    }

    fn plan_campaign<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if self.watch.campaign_at.is_none() && self.may_campaign(io) {
            let spread = u64::try_from(self.params.suspicion_timeout.as_nanos() / 2);
            let delay = self.random.below(spread.unwrap_or(1).max(1));
            self.watch.campaign_at = Some(io.now + Duration::from_nanos(delay));
        }
    }

    /// A connection is gone: if the leader's process has ended, its followers need not wait.
    pub(crate) fn watch_disconnected<L: LogView>(
        &mut self,
        peer: MemberId,
        exited: bool,
        io: &mut Io<'_, L>,
    ) {
        if self.watch.leader == Some(peer) {
            if exited {
                self.watch.unchanged = UNCHANGED_MAX;
            }
            self.watch.next_sample = self.watch.next_sample.min(io.now);
        }
    }

    pub(crate) fn on_control<L: LogView>(
        &mut self,
        peer: MemberId,
        line: ControlLine,
        io: &mut Io<'_, L>,
    ) {
        let term = self.stored.current.term;
        for seen in [line.grant.term(), line.leading.term, line.suspect.term] {
            self.saw_term(seen);
        }
        if !matches!(self.role, Role::Follower) {
            return;
        }
        let leads = self.watch.on_line(peer, &line, term);
        if self.watch.leader == Some(peer) {
            self.watch.on_leader(&line, term);
        } else if leads && (self.watch.leader.is_none() || self.watch.suspects()) {
            self.watch.leader = Some(peer);
            self.watch.unchanged = 0;
            self.watch.stalled = 0;
            self.watch.has_moved = true;
            self.watch.last_progress = Some(line.leading);
        }
        self.plan_campaign(io);
    }

    /// Remembers the highest term seen anywhere, unless it cannot be one.
    pub(crate) fn saw_term(&mut self, term: Term) {
        if is_sane(term, self.stored.current.term) {
            self.highest_term = self.highest_term.max(term);
        }
    }

    /// Begins a candidacy: fence-and-grant on this member itself first, only then the others.
    pub(crate) fn campaign<L: LogView>(&mut self, transfer: bool, io: &mut Io<'_, L>) {
        let knows_a_group = !Self::configuration(io.log).voters.is_empty();
        if !self.is_busy() && knows_a_group {
            self.begin_own_fence(transfer, io);
        }
    }

    pub(crate) fn begin_candidacy<L: LogView>(
        &mut self,
        request: &Request,
        (transfer, has_room): (bool, bool),
        io: &mut Io<'_, L>,
    ) {
        let timeout = self.params.suspicion_timeout;
        let spread = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1);
        let patience = timeout + Duration::from_nanos(self.random.below(spread));
        self.role = Role::Candidate(Box::new(Candidate {
            term: request.term,
            nonce: request.nonce,
            transfer,
            replies: Vec::new(),
            fetching: None,
            has_adopted: false,
            has_room,
            ask_at: io.now,
            gives_up: io.now + patience,
        }));
        self.ask_votes(io);
        self.evaluate(io);
    }

    /// Asks every connected member that has not voted. Members of the best log's configuration
    /// that this member's own log does not know are connected like any other.
    pub(crate) fn ask_votes<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        candidate.ask_at = io.now + self.params.sample_interval();
        for &(peer, connection) in &self.connections {
            if let Some(vote) = candidate.asks(peer) {
                io.send(peer, connection, vote);
            }
        }
    }

    pub(crate) fn tick_candidate<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &self.role else { return };
        if io.now >= candidate.gives_up {
            self.give_up(io);
        } else if io.now >= candidate.ask_at {
            self.ask_votes(io);
        }
    }

    /// Ends a candidacy that does not get anywhere; the suspicion stays.
    fn give_up<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        self.step_down(io);
        self.watch.unchanged = UNCHANGED_MAX;
    }

    pub(crate) fn on_granted<L: LogView>(
        &mut self,
        peer: MemberId,
        connection: Connection,
        granted: Granted,
        io: &mut Io<'_, L>,
    ) {
        self.saw_term(granted.word.term());
        match &mut self.role {
            Role::Follower => {}
            Role::Candidate(candidate) => {
                if granted.word.term() == candidate.term {
                    candidate.replies.retain(|reply| reply.id != peer);
                    candidate.replies.push(Reply { id: peer, connection, granted });
                    self.evaluate(io);
                }
            }
            Role::Leader(leader) => {
                if granted.word.term() == leader.term {
                    self.on_follower(peer, connection, &granted, io);
                }
            }
        }
    }

    pub(crate) fn on_refused<L: LogView>(
        &mut self,
        asked: Term,
        (term, why): (Term, VoteRefusal),
        io: &mut Io<'_, L>,
    ) {
        self.saw_term(term);
        match &self.role {
            Role::Follower => {}
            Role::Candidate(candidate) => {
                if asked == candidate.term && why == VoteRefusal::Stale && term > candidate.term {
                    self.give_up(io);
                }
            }
            Role::Leader(leader) => {
                let is_exhausted = why == VoteRefusal::Exhausted;
                if asked == leader.term && (term > leader.term || is_exhausted) {
                    self.on_higher_term(io);
                }
            }
        }
    }

    /// A voter has granted more segments.
    pub(crate) fn on_voter_room(&mut self, peer: MemberId, word: GrantWord, rooms: &[Room]) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        let reply = candidate.replies.iter_mut().find(|reply| reply.id == peer);
        let Some(granted) = reply.map(|reply| &mut reply.granted) else { return };
        for room in rooms.iter().filter(|_| granted.word == word) {
            let next = granted.rooms.last().map_or(0, |last| last.ordinal + 1);
            if room.ordinal == next && granted.rooms.len() < wire::ROOMS_MAX {
                granted.rooms.push(*room);
            }
        }
    }

    /// A voter is out of reach: its reply no longer counts.
    pub(crate) fn on_voter_lost<L: LogView>(&mut self, peer: MemberId, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        candidate.replies.retain(|reply| reply.id != peer);
        let _ = io;
    }

    /// A segment of the own grant is open.
    pub(crate) fn on_candidate_room<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if let Role::Candidate(candidate) = &mut self.role {
            candidate.has_room = true;
            self.evaluate(io);
        }
    }

    /// Looks whether the replies are enough: adopts the best log among them, or leads.
    pub(crate) fn evaluate<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &self.role else { return };
        if candidate.fetching.is_some() || self.fence.is_some() {
            return;
        }
        let own = io.log.tail();
        let best = best_reply(&candidate.replies, own);
        let own_configuration = Self::configuration(io.log);
        let configuration = match best {
            Some(reply) if !mutant!("quorum_by_own_configuration") => {
                &reply.granted.configuration.1
            }
            _ => own_configuration,
        };
        if !self.is_elected(&candidate.replies, configuration) {
            return;
        }
        if !candidate.has_room {
            self.grant_more(io);
            return;
        }
        match best.cloned() {
            Some(reply) => self.adopt(&reply, io),
            None => {
                let (term, nonce) = (candidate.term, candidate.nonce);
                let replies = candidate.replies.clone();
                self.lead(term, nonce, io);
                for reply in replies {
                    self.on_follower(reply.id, reply.connection, &reply.granted, io);
                }
            }
        }
    }

    /// A quorum of the configuration has replied, and enough of the replies have no hole: any
    /// quorum that acknowledged an entry has a member among those, unless everybody replied.
    fn is_elected(&self, replies: &[Reply], configuration: &Configuration) -> bool {
        let own_hole = self.stored.current.hole.is_some();
        let has_replied =
            |id: MemberId| id == self.me || replies.iter().any(|reply| reply.id == id);
        let is_clean = |id: MemberId| {
            if id == self.me {
                !own_hole
            } else {
                replies.iter().any(|reply| reply.id == id && reply.granted.hole.is_none())
            }
        };
        // A region that waits to join a group knows no voters: it elects nobody.
        if configuration.voters.is_empty() {
            return false;
        }
        let halves = [&configuration.voters, &configuration.outgoing];
        halves.into_iter().filter(|half| !half.is_empty()).all(|half| {
            let replied = half.ids().filter(|&id| has_replied(id)).count();
            let clean = half.ids().filter(|&id| is_clean(id)).count();
            let clean_enough = half.len() - half.quorum() + 1;
            replied >= half.quorum() && (clean >= clean_enough || replied == half.len())
        })
    }

    fn adopt<L: LogView>(&mut self, best: &Reply, io: &mut Io<'_, L>) {
        let own = Outline { boundaries: io.log.boundaries(), last: io.log.tail().index };
        let theirs =
            Outline { boundaries: &best.granted.boundaries, last: best.granted.tail.index };
        let point = match_point(own, theirs);
        let Some(from) = point.filter(|from| from.next() >= best.granted.first) else {
            // Its log begins above the end of this one: it can lead, this member cannot.
            let (term, transfer) = (self.stored.current.term, false);
            io.send(best.id, best.connection, Message::Campaign { term, transfer });
            self.give_up(io);
            return;
        };
        check!(from < best.granted.tail.index, "a better log has something to adopt");
        let has_adopted = matches!(&self.role, Role::Candidate(candidate) if candidate.has_adopted);
        if has_adopted && from < io.log.tail().index {
            // What was adopted stands in the grant of this candidacy, which only grows: a better
            // log that parts from it needs a fresh one.
            return self.campaign(false, io);
        }
        let extents = best.granted.extents.iter().filter(|extent| extent.last > from);
        let fetch = Fetch {
            peer: best.id,
            connection: best.connection,
            key: best.granted.log_key,
            from,
            through: best.granted.tail,
            extents: extents.copied().collect(),
        };
        io.out.push(Effect::Fetch(Box::new(fetch)));
        if let Role::Candidate(candidate) = &mut self.role {
            candidate.fetching = Some((best.id, from));
            candidate.has_adopted = true;
        }
    }

    pub(crate) fn on_fetched<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        if candidate.fetching.take().is_some() {
            self.durable = io.log.tail().index;
            self.evaluate(io);
        }
    }

    /// The best log cannot be read: its owner's reply no longer counts, another quorum is needed.
    pub(crate) fn on_fetch_failed<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        if let Some((peer, from)) = candidate.fetching.take() {
            candidate.replies.retain(|reply| reply.id != peer);
            self.durable = self.durable.min(from);
            if self.durable < io.log.tail().index {
                // A part was copied and is not durable: a fence of its own makes it so, before
                // anybody can lead on it.
                self.campaign(false, io);
            } else {
                self.evaluate(io);
            }
        }
    }
}

/// The reply with the best log, if it is better than `own`: highest last term, then last index.
fn best_reply(replies: &[Reply], own: Position) -> Option<&Reply> {
    let mut ranked: Vec<&Reply> = replies.iter().collect();
    ranked.sort_by_key(|reply| std::cmp::Reverse(rank(reply.granted.tail)));
    if mutant!("second_best_log") && !ranked.is_empty() {
        ranked.remove(0);
    }
    ranked.first().copied().filter(|reply| rank(reply.granted.tail) > rank(own))
}
