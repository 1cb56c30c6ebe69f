//! What a client knows and decides, without clock, thread or memory of its own: who leads, which
//! calls are under way, in which session, what to retry, and what an outcome is.
//!
//! ```text
//!           begin            send               answer: done
//!   caller ------> waiting ------> under way ------------------> finished
//!                     ^  not leader, overloaded, stopping |  |
//!                     +-----------------------------------+  | deadline
//!                     +--- stream closed, member silent --+  v
//!                          (may have been taken)        refused, if no attempt may have been
//!                                                       taken; unknown otherwise
//! ```
//!
//! # Invariants
//! - A write keeps its session and sequence over all its attempts, so that it is executed at most
//!   once; it gets another session only if no attempt of it may have been taken.
//! - What is acknowledged to the members are sequences whose calls have finished.
//! - A write is called refused only if every attempt is known not to have been taken.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{GroupId, Instant, MemberId};
use fabric::shm::stream::MESSAGE_MAX;
use proto::door::{Answer, AnswerKind, Ask, AskKind, NotExecuted};

use crate::CallError;

/// Writes that may be under way: what a member's session table takes, with some room.
const WRITES_MAX: u64 = 1_000;
/// A session that was silent for so long is not relied on: it lives a minute of log time.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(20);
const BACK_OFF_MIN: Duration = Duration::from_millis(1);
const BACK_OFF_MAX: Duration = Duration::from_millis(50);
/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_millis(100);
/// Opens a session.
const OPEN: u64 = 1;
/// At least what stands before a command or query in a message.
const HEAD_LEN: u64 = 64;

/// A connection to a member, as the engine sees it.
pub trait Wire {
    /// Sends one message; `false` when there is no room now.
    fn send(&mut self, parts: &[&[u8]]) -> bool;
    /// Moves on what waits for room.
    fn flush(&mut self);
    /// Takes the next message; `false` when there is none.
    ///
    /// # Errors
    /// [`Ended`] once all that came before the end was taken.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, Ended>;
}

/// A connection is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// The way to the members.
pub trait Network {
    /// A connection.
    type Wire: Wire;
    /// Connects to a member within `timeout`.
    ///
    /// # Errors
    /// Why not, in words.
    fn connect(&mut self, member: MemberId, timeout: Duration) -> Result<Self::Wire, String>;
}

/// A caller's name for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A command in the log.
    Write(Vec<u8>),
    /// A linearizable read.
    Read(Vec<u8>),
    /// How a member is.
    Status(MemberId),
    /// That leadership goes to a member, or to whoever is best.
    Transfer(Option<MemberId>),
    /// A session of the engine's own.
    Session,
}

/// How a call ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The state machine's reply.
    Bytes(Vec<u8>),
    /// A member's status, as JSON.
    Status(String),
    /// Done.
    Noted,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    id: u64,
    member: MemberId,
    at: Instant,
    is_given_up: bool,
}

#[derive(Debug)]
struct Call {
    work: Work,
    deadline: Instant,
    /// Of a write: its session and its number there; zero while it has none.
    session: u64,
    sequence: u64,
    /// When it is to be sent, if it is not under way.
    send_at: Instant,
    back_off: Duration,
    attempts: Vec<Attempt>,
    maybe_taken: bool,
    trouble: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    None,
    Opening,
    Open(u64),
}

/// The engine. See the module.
#[derive(Debug)]
pub struct Engine<N: Network> {
    network: N,
    members: Vec<MemberId>,
    group: GroupId,
    patience: Duration,
    deadline: Duration,
    wires: Vec<(MemberId, N::Wire)>,
    /// Who is believed to lead.
    target: MemberId,
    calls: BTreeMap<CallId, Call>,
    /// The call of every attempt that may still be answered.
    asks: BTreeMap<u64, CallId>,
    finished: BTreeMap<CallId, Result<Reply, CallError>>,
    last_call: u64,
    last_ask: u64,
    session: Session,
    last_sequence: u64,
    acknowledged_through: u64,
    /// Sequences above it that have finished.
    ended: BTreeSet<u64>,
    last_write: Instant,
    /// Members that took nothing when something was last sent, since when.
    stuck: BTreeMap<MemberId, Instant>,
    /// Members that were silent or took nothing for too long, until when nobody's word sends us
    /// there.
    silent: BTreeMap<MemberId, Instant>,
    bytes: Vec<u8>,
    head: Vec<u8>,
}

impl<N: Network> Engine<N> {
    /// An engine that knows nobody yet. `members` are asked in their order.
    ///
    /// # Errors
    /// [`CallError::Bad`] when there is no member.
    pub fn new(
        network: N,
        members: &[MemberId],
        group: GroupId,
        (deadline, patience): (Duration, Duration),
    ) -> Result<Self, CallError> {
        let target =
            *members.first().ok_or_else(|| CallError::Bad("no member to ask".to_owned()))?;
        Ok(Self {
            network,
            members: members.to_vec(),
            group,
            patience,
            deadline,
            wires: Vec::new(),
            target,
            calls: BTreeMap::new(),
            asks: BTreeMap::new(),
            finished: BTreeMap::new(),
            last_call: 0,
            last_ask: 0,
            session: Session::None,
            last_sequence: 0,
            acknowledged_through: 0,
            ended: BTreeSet::new(),
            last_write: Instant(0),
            stuck: BTreeMap::new(),
            silent: BTreeMap::new(),
            bytes: Vec::new(),
            head: Vec::new(),
        })
    }

    /// Begins a call; [`Self::poll`] carries it on.
    pub fn begin(&mut self, work: Work, now: Instant) -> CallId {
        let is_write = matches!(work, Work::Write(_));
        let others = self.calls.values().any(|call| matches!(call.work, Work::Write(_)));
        if is_write && !others && now.since(self.last_write) > SESSION_IDLE_MAX {
            self.forget_session();
        }
        let len = match &work {
            Work::Write(bytes) | Work::Read(bytes) => bytes.len() as u64,
            Work::Status(_) | Work::Transfer(_) | Work::Session => 0,
        };
        let deadline = now + self.deadline;
        let id = self.add(work, deadline, now);
        if len + HEAD_LEN > MESSAGE_MAX {
            let why = format!("{len} bytes are more than a message can have");
            self.finish(id, Err(CallError::Bad(why)), now);
        }
        id
    }

    /// How long calls that begin from now on may take.
    pub const fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    fn add(&mut self, work: Work, deadline: Instant, now: Instant) -> CallId {
        self.last_call += 1;
        let id = CallId(self.last_call);
        let call = Call {
            work,
            deadline,
            session: 0,
            sequence: 0,
            send_at: now,
            back_off: Duration::ZERO,
            attempts: Vec::new(),
            maybe_taken: false,
            trouble: "no member answered".to_owned(),
        };
        self.calls.insert(id, call);
        id
    }

    /// How a call ended, once it has.
    pub fn take(&mut self, id: CallId) -> Option<Result<Reply, CallError>> {
        self.finished.remove(&id)
    }

    /// Any call that has ended, and how.
    pub fn take_any(&mut self) -> Option<(CallId, Result<Reply, CallError>)> {
        self.finished.pop_first()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// When [`Self::poll`] has something to do although nothing comes.
    #[must_use]
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let patience = self.patience;
        let due = |call: &Call| {
            if matches!(call.work, Work::Write(_)) && call.session == 0 && call.send_at <= now {
                // It waits for a session: an answer, not the time, brings that.
                return call.deadline;
            }
            let waiting = call.attempts.iter().filter(|attempt| !attempt.is_given_up);
            let resend = waiting.map(|attempt| attempt.at + patience).min();
            resend.unwrap_or(call.send_at).min(call.deadline)
        };
        self.calls.values().map(due).min()
    }

    /// The connection on which an answer is expected next, to sleep on.
    pub fn wire(&mut self) -> Option<&mut N::Wire> {
        let last = self.calls.values().flat_map(|call| call.attempts.last());
        let member = last.max_by_key(|attempt| attempt.id)?.member;
        self.wires.iter_mut().find(|(of, _)| *of == member).map(|(_, wire)| wire)
    }

    /// Takes what came, sends what is due, gives up what is late. Whether anything came.
    pub fn poll(&mut self, now: Instant) -> bool {
        let came = self.receive_all(now);
        self.open_session(now);
        let ids: Vec<CallId> = self.calls.keys().copied().collect();
        for id in ids {
            self.go_on(id, now);
        }
        came
    }

    fn receive_all(&mut self, now: Instant) -> bool {
        let mut came = false;
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut at = 0;
        while at < self.wires.len() {
            let (member, wire) = &mut self.wires[at];
            let member = *member;
            wire.flush();
            match wire.receive(&mut bytes) {
                Ok(true) => {
                    came = true;
                    match Answer::decode(&bytes) {
                        Ok(answer) => self.on_answer(member, &answer, now),
                        Err(_) => self.on_ended(at, now),
                    }
                }
                Ok(false) => at += 1,
                Err(Ended) => {
                    came = true;
                    self.on_ended(at, now);
                }
            }
        }
        self.bytes = bytes;
        came
    }

    /// A connection ended: what was under way on it may have been taken.
    fn on_ended(&mut self, at: usize, now: Instant) {
        let (member, _) = self.wires.remove(at);
        self.pass_over(member);
        let mut hit = Vec::new();
        for (id, call) in &mut self.calls {
            let asks = &mut self.asks;
            let before = call.attempts.len();
            call.attempts.retain(|attempt| {
                let stays = attempt.member != member;
                if !stays {
                    asks.remove(&attempt.id);
                }
                stays
            });
            if call.attempts.len() < before {
                call.maybe_taken = true;
                hit.push(*id);
            }
        }
        for id in hit {
            self.retry(id, format!("the connection to member {member} ended"), now);
        }
    }

    /// Asks others than `member` for a while.
    fn avoid(&mut self, member: MemberId, now: Instant) {
        self.silent.insert(member, now + self.patience);
        self.pass_over(member);
    }

    /// Believes somebody else than `member` to lead.
    fn pass_over(&mut self, member: MemberId) {
        if self.target == member {
            let at = self.members.iter().position(|&own| own == member).unwrap_or(0);
            self.target = self.members[(at + 1) % self.members.len()];
        }
    }

    fn on_answer(&mut self, member: MemberId, answer: &Answer<'_>, now: Instant) {
        self.silent.remove(&member);
        let Some(id) = self.asks.remove(&answer.id) else { return };
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.attempts.retain(|attempt| attempt.id != answer.id);
        match answer.what {
            AnswerKind::Done(reply) | AnswerKind::Duplicate(reply) => {
                self.finish(id, Ok(Reply::Bytes(reply.to_vec())), now);
            }
            AnswerKind::DuplicateTooLarge => {
                let why = "it is done, but its reply was lost and too large to be kept";
                self.finish(id, Err(CallError::Unknown(why.to_owned())), now);
            }
            AnswerKind::Opened(session) => {
                self.session = Session::Open(session);
                self.last_write = now;
                self.finish(id, Ok(Reply::Noted), now);
            }
            AnswerKind::Noted => self.finish(id, Ok(Reply::Noted), now),
            AnswerKind::Status(text) => self.finish(id, Ok(Reply::Status(text.to_owned())), now),
            AnswerKind::Bad(why) => self.on_bad(id, why, now),
            AnswerKind::NotExecuted(why) => self.on_not_executed(id, why, now),
            AnswerKind::Unknown => {
                call.maybe_taken = true;
                self.retry(id, "the leader was deposed".to_owned(), now);
            }
            AnswerKind::Overloaded => {
                self.retry(id, format!("member {member} is overloaded"), now);
            }
            AnswerKind::NotLeader(Some(leader)) if self.may_lead(leader, now) => {
                if self.target == member {
                    self.target = leader;
                }
                self.retry(id, format!("member {member} does not lead"), now);
            }
            AnswerKind::NotLeader(_) | AnswerKind::Stopping => {
                self.pass_over(member);
                self.retry(id, format!("member {member} does not lead"), now);
            }
        }
    }

    /// Whether to believe that `leader` leads: it is one of ours and was not silent just now.
    fn may_lead(&self, leader: MemberId, now: Instant) -> bool {
        let is_silent = self.silent.get(&leader).is_some_and(|&until| now < until);
        self.members.contains(&leader) && !is_silent
    }

    /// Senseless as it is; unless another attempt may have been executed.
    fn on_bad(&mut self, id: CallId, why: &str, now: Instant) {
        let Some(call) = self.calls.get(&id) else { return };
        let is_open = call.maybe_taken || !call.attempts.is_empty();
        let is_session = call.work == Work::Session;
        let error = if is_open && !is_session {
            CallError::Unknown(format!("an earlier attempt is open, a later one was bad: {why}"))
        } else {
            CallError::Bad(why.to_owned())
        };
        if is_session {
            // What waits for it would wait in vain.
            let waits = |call: &Call| matches!(call.work, Work::Write(_)) && call.session == 0;
            let waiting = self.calls.iter().filter(|(_, call)| waits(call)).map(|(&id, _)| id);
            for id in waiting.collect::<Vec<_>>() {
                self.finish(id, Err(error.clone()), now);
            }
        }
        self.finish(id, Err(error), now);
    }

    fn on_not_executed(&mut self, id: CallId, why: NotExecuted, now: Instant) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        match why {
            NotExecuted::SessionUnknown if call.maybe_taken || !call.attempts.is_empty() => {
                let why = "the session expired before the outcome was known";
                self.lose_session_of(id);
                self.finish(id, Err(CallError::Unknown(why.to_owned())), now);
            }
            NotExecuted::SessionUnknown => {
                self.lose_session_of(id);
                if let Some(call) = self.calls.get_mut(&id) {
                    (call.session, call.sequence) = (0, 0);
                }
                self.retry(id, "the session expired".to_owned(), now);
            }
            NotExecuted::Acknowledged => {
                let why = "the members no longer know what became of it";
                self.finish(id, Err(CallError::Unknown(why.to_owned())), now);
            }
            NotExecuted::TooFarAhead | NotExecuted::TooManyUnacknowledged => {
                self.retry(id, "too many calls are under way".to_owned(), now);
            }
            NotExecuted::TooManySessions => {
                self.retry(id, "the group has as many sessions as it takes".to_owned(), now);
            }
        }
    }

    fn lose_session_of(&mut self, id: CallId) {
        let session = self.calls.get(&id).map_or(0, |call| call.session);
        if self.session == Session::Open(session) {
            self.forget_session();
        }
    }

    fn forget_session(&mut self) {
        if self.session != Session::Opening {
            self.session = Session::None;
        }
        self.last_sequence = 0;
        self.acknowledged_through = 0;
        self.ended.clear();
    }

    /// Sends a call again, a while later each time.
    fn retry(&mut self, id: CallId, trouble: String, now: Instant) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.trouble = trouble;
        call.send_at = now + call.back_off;
        call.back_off = (call.back_off * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
    }

    fn finish(&mut self, id: CallId, result: Result<Reply, CallError>, now: Instant) {
        let Some(call) = self.calls.remove(&id) else { return };
        for attempt in &call.attempts {
            self.asks.remove(&attempt.id);
        }
        match call.work {
            Work::Session => {
                if self.session == Session::Opening {
                    self.session = Session::None;
                }
                return;
            }
            Work::Write(_) => {
                self.last_write = now;
                if call.sequence != 0 && self.session == Session::Open(call.session) {
                    self.acknowledge(call.sequence);
                }
            }
            Work::Read(_) | Work::Status(_) | Work::Transfer(_) => {}
        }
        self.finished.insert(id, result);
    }

    fn acknowledge(&mut self, sequence: u64) {
        self.ended.insert(sequence);
        while self.ended.remove(&(self.acknowledged_through + 1)) {
            self.acknowledged_through += 1;
        }
    }

    /// Opens a session when a write waits for one.
    fn open_session(&mut self, now: Instant) {
        let waits = |call: &Call| matches!(call.work, Work::Write(_)) && call.session == 0;
        if self.session == Session::None && self.calls.values().any(waits) {
            self.session = Session::Opening;
            let deadline = now + self.deadline;
            self.add(Work::Session, deadline, now);
        }
    }

    fn go_on(&mut self, id: CallId, now: Instant) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if call.deadline <= now {
            return self.give_up(id, now);
        }
        let patience = self.patience;
        let mut silent = None;
        for attempt in call.attempts.iter_mut().filter(|attempt| !attempt.is_given_up) {
            if attempt.at + patience > now {
                return;
            }
            attempt.is_given_up = true;
            silent = Some(attempt.member);
        }
        if let Some(member) = silent {
            call.maybe_taken = true;
            call.trouble = format!("member {member} does not answer");
            call.send_at = now;
            self.avoid(member, now);
        }
        let Some(call) = self.calls.get(&id) else { return };
        if call.send_at <= now {
            self.send(id, now);
        }
    }

    fn give_up(&mut self, id: CallId, now: Instant) {
        let Some(call) = self.calls.get(&id) else { return };
        let is_open = call.maybe_taken || !call.attempts.is_empty();
        let changes = matches!(call.work, Work::Write(_) | Work::Transfer(_));
        let why = format!("no answer in time: {}", self.trouble_of(call));
        let error =
            if is_open && changes { CallError::Unknown(why) } else { CallError::Refused(why) };
        self.finish(id, Err(error), now);
    }

    /// What keeps a call from its answer; of a write that waits for a session, what keeps that.
    fn trouble_of<'a>(&'a self, call: &'a Call) -> &'a str {
        let waits = matches!(call.work, Work::Write(_)) && call.session == 0;
        let opening = self.calls.values().find(|other| waits && other.work == Work::Session);
        &opening.unwrap_or(call).trouble
    }

    /// Gives a write its session and sequence. Whether it has them.
    fn number(&mut self, id: CallId) -> bool {
        let Some(call) = self.calls.get_mut(&id) else { return false };
        if !matches!(call.work, Work::Write(_)) || call.session != 0 {
            return true;
        }
        let Session::Open(session) = self.session else { return false };
        if self.last_sequence - self.acknowledged_through >= WRITES_MAX {
            return false;
        }
        self.last_sequence += 1;
        (call.session, call.sequence) = (session, self.last_sequence);
        true
    }

    fn send(&mut self, id: CallId, now: Instant) {
        if !self.number(id) {
            return;
        }
        let Some(call) = self.calls.get(&id) else { return };
        let member = match call.work {
            Work::Status(member) => member,
            Work::Write(_) | Work::Read(_) | Work::Transfer(_) | Work::Session => self.target,
        };
        let timeout = CONNECT_MAX.min(call.deadline.since(now));
        if let Err(trouble) = self.connect(member, timeout) {
            self.pass_over(member);
            return self.retry(id, trouble, now);
        }
        let Some(call) = self.calls.get(&id) else { return };
        let ask = self.last_ask + 1;
        let acknowledged = match self.session {
            Session::Open(session) if session == call.session => self.acknowledged_through,
            Session::Open(_) | Session::None | Session::Opening => 0,
        };
        let what = match &call.work {
            Work::Write(command) => AskKind::Write {
                session: call.session,
                sequence: call.sequence,
                acknowledged_through: acknowledged,
                command,
            },
            Work::Read(query) => AskKind::Read { query },
            Work::Status(_) => AskKind::Status,
            Work::Transfer(to) => AskKind::Transfer { to: *to },
            Work::Session => {
                AskKind::Write { session: 0, sequence: OPEN, acknowledged_through: 0, command: &[] }
            }
        };
        self.head.clear();
        let body = Ask { id: ask, group: self.group, what }.head(&mut self.head);
        let wire = self.wires.iter_mut().find(|(of, _)| *of == member);
        let Some((_, wire)) = wire else { return };
        if !wire.send(&[&self.head, body]) {
            // No room, or at its end: the next look at the wire tells which.
            let since = *self.stuck.entry(member).or_insert(now);
            if now >= since + self.patience {
                self.avoid(member, now);
            }
            return self.retry(id, format!("member {member} takes nothing now"), now);
        }
        self.stuck.remove(&member);
        self.last_ask = ask;
        self.asks.insert(ask, id);
        if let Some(call) = self.calls.get_mut(&id) {
            call.attempts.push(Attempt { id: ask, member, at: now, is_given_up: false });
        }
    }

    fn connect(&mut self, member: MemberId, timeout: Duration) -> Result<(), String> {
        if self.wires.iter().any(|(of, _)| *of == member) {
            return Ok(());
        }
        let wire = self.network.connect(member, timeout)?;
        self.wires.push((member, wire));
        Ok(())
    }
}
