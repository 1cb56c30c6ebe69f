//! The door of a member for the clients of its host: streams on one side, the shard on the other.
//!
//! ```text
//!   client ==ask==> Stream --decode--> Shard::request     token = place in `under_way`
//!   client <=answer= Stream <--encode-- Shard::take_answers
//! ```
//!
//! # Invariants
//! - A client that does not take its answers is not read from; one that lets [`UNSENT_BYTES_MAX`]
//!   pile up loses its stream. So nothing here grows with what a client does.
//! - An answer goes to the stream that asked, never to a later one in the same place.

use std::collections::VecDeque;

use anyhow::Result;
use base::{GroupId, Instant, MemberId};
use consensus::session::{Act, Envelope, KeptReply, LogTime, Refusal as SessionRefusal};
use fabric::shm::stream::{Porter, SendError, Stream};
use proto::door::{Answer as Said, AnswerKind, Ask, AskKind, NotExecuted};
use replica::{Answer, Answered, Request, Token};

use crate::latencies::Latencies;

/// Requests that one client may have under way.
const UNDER_WAY_MAX: u32 = 1_024;
/// Requests taken from one client in one turn.
const ASKS_PER_TURN: u32 = 64;
/// Bytes of answers that may wait for one client.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Buffers that are kept for the next command, and the capacity of the largest.
const SPARE_MAX: usize = 1_024;
const SPARE_BYTES_MAX: usize = 4 << 10;

/// What a client wants of the member rather than of the group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// To know how it is.
    Status,
    /// That leadership goes to this member, or to whoever is best.
    Transfer(Option<MemberId>),
}

/// A request to the member itself, with where its answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errand {
    pub(crate) token: Token,
    pub(crate) group: GroupId,
    pub(crate) what: Wanted,
}

/// What the doors have counted since the member started.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Counts {
    /// Streams that came.
    pub(crate) clients_seen: u64,
    /// Streams that are there.
    pub(crate) clients: u64,
    /// Writes asked for.
    pub(crate) writes: u64,
    /// Reads asked for.
    pub(crate) reads: u64,
    /// Answered as done.
    pub(crate) done: u64,
    /// Refused: not the leader.
    pub(crate) not_leader: u64,
    /// Refused: too much was waiting.
    pub(crate) overloaded: u64,
    /// Whose outcome the member could not tell.
    pub(crate) unknown: u64,
    /// Bytes that were no request; each cost its stream.
    pub(crate) malformed: u64,
    /// Streams closed because their client did not take its answers.
    pub(crate) not_reading: u64,
}

struct Guest {
    stream: Stream,
    /// Tells this guest from an earlier one in the same place.
    visit: u32,
    under_way: u32,
    /// Answers that found the stream full.
    unsent: VecDeque<Vec<u8>>,
    unsent_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    guest: u32,
    visit: u32,
    id: u64,
    asked_at: Instant,
    is_write: bool,
}

/// The streams of a member's clients.
pub(crate) struct Door {
    porter: Porter,
    guests: Vec<Option<Guest>>,
    visits: u32,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    ask: Vec<u8>,
    head: Vec<u8>,
    /// Buffers of answers that left, for commands that come.
    spare: Vec<Vec<u8>>,
    is_stopping: bool,
    pub(crate) counts: Counts,
    /// From taking a write to having its answer.
    pub(crate) writes: Latencies,
    /// From taking a read to having its answer.
    pub(crate) reads: Latencies,
}

impl Door {
    pub(crate) fn new(porter: Porter) -> Result<Self> {
        Ok(Self {
            porter,
            guests: Vec::new(),
            visits: 0,
            under_way: Vec::new(),
            free: Vec::new(),
            ask: Vec::new(),
            head: Vec::new(),
            spare: Vec::new(),
            is_stopping: false,
            counts: Counts::default(),
            writes: Latencies::new()?,
            reads: Latencies::new()?,
        })
    }

    /// From now on every request is answered "stopping".
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Whether every request that was taken has its answer, and every answer has left.
    pub(crate) fn is_quiet(&self) -> bool {
        let idle = |guest: &Guest| guest.unsent.is_empty() && !guest.stream.has_unsent();
        self.free.len() == self.under_way.len() && self.guests.iter().flatten().all(idle)
    }

    /// Takes what clients ask; requests for the shard go to `request`, others to `errands`.
    pub(crate) fn take_asks(
        &mut self,
        now: Instant,
        mut request: impl FnMut(GroupId, Token, Request),
        errands: &mut Vec<Errand>,
    ) -> bool {
        let mut worked = self.admit();
        for at in 0..self.guests.len() {
            for _ in 0..ASKS_PER_TURN {
                let Some(guest) = &mut self.guests[at] else { break };
                worked |= guest.flush();
                if !guest.unsent.is_empty() || guest.under_way >= UNDER_WAY_MAX {
                    // What it does not take any more it will never take.
                    if guest.stream.is_closed() {
                        self.dismiss(at);
                        worked = true;
                    }
                    break;
                }
                let mut bytes = std::mem::take(&mut self.ask);
                let received = guest.stream.receive(&mut bytes);
                if received == Ok(true) {
                    worked = true;
                    self.on_ask((at, now), &bytes, &mut request, errands);
                }
                self.ask = bytes;
                match received {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => {
                        self.dismiss(at);
                        worked = true;
                    }
                }
            }
        }
        worked
    }

    fn admit(&mut self) -> bool {
        let mut worked = false;
        while let Some(stream) = self.porter.accept() {
            worked = true;
            self.visits = self.visits.wrapping_add(1);
            self.counts.clients_seen += 1;
            self.counts.clients += 1;
            let guest = Guest {
                stream,
                visit: self.visits,
                under_way: 0,
                unsent: VecDeque::new(),
                unsent_bytes: 0,
            };
            match self.guests.iter().position(Option::is_none) {
                Some(free) => self.guests[free] = Some(guest),
                None => self.guests.push(Some(guest)),
            }
        }
        worked
    }

    fn dismiss(&mut self, at: usize) {
        if self.guests[at].take().is_some() {
            self.counts.clients -= 1;
        }
    }

    fn on_ask(
        &mut self,
        (at, now): (usize, Instant),
        bytes: &[u8],
        request: &mut impl FnMut(GroupId, Token, Request),
        errands: &mut Vec<Errand>,
    ) {
        let Ok(ask) = Ask::decode(bytes) else {
            self.counts.malformed += 1;
            return self.dismiss(at);
        };
        let is_write = matches!(ask.what, AskKind::Write { .. });
        let Some(token) = self.token(at, (ask.id, now, is_write)) else { return };
        if self.is_stopping && !matches!(ask.what, AskKind::Status) {
            return self.say(token, &AnswerKind::Stopping);
        }
        match ask.what {
            AskKind::Write { session, sequence, acknowledged_through, command } => {
                self.counts.writes += 1;
                match act(session, sequence, acknowledged_through) {
                    Some(act) => {
                        let command = self.copied(command);
                        request(ask.group, token, Request::Write { act, command });
                    }
                    None => self.say(token, &AnswerKind::Bad("a sequence without a session")),
                }
            }
            AskKind::Read { query } => {
                self.counts.reads += 1;
                let query = self.copied(query);
                request(ask.group, token, Request::Read { query });
            }
            AskKind::Status => {
                errands.push(Errand { token, group: ask.group, what: Wanted::Status });
            }
            AskKind::Transfer { to } => {
                errands.push(Errand { token, group: ask.group, what: Wanted::Transfer(to) });
            }
        }
    }

    fn token(
        &mut self,
        at: usize,
        (id, asked_at, is_write): (u64, Instant, bool),
    ) -> Option<Token> {
        let guest = self.guests[at].as_mut()?;
        guest.under_way += 1;
        let place = u32::try_from(at).ok()?;
        let entry = UnderWay { guest: place, visit: guest.visit, id, asked_at, is_write };
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.under_way.push(None);
                u32::try_from(self.under_way.len() - 1).ok()?
            }
        };
        self.under_way[place as usize] = Some(entry);
        Some(Token(u64::from(place)))
    }

    /// Gives the shard's answers to who asked.
    pub(crate) fn give_answers(&mut self, now: Instant, answers: &mut Vec<Answered>) -> bool {
        let worked = !answers.is_empty();
        for answered in answers.drain(..) {
            let what = said(&answered.answer);
            match &answered.answer {
                Answer::NotLeader(_) => self.counts.not_leader += 1,
                Answer::Overloaded => self.counts.overloaded += 1,
                Answer::Unknown => self.counts.unknown += 1,
                Answer::Done(_)
                | Answer::Duplicate(_)
                | Answer::Opened(_)
                | Answer::Noted
                | Answer::NotExecuted(_)
                | Answer::Bad(_) => self.counts.done += 1,
            }
            if matches!(answered.answer, Answer::Done(_)) {
                self.measure(answered.token, now);
            }
            self.say(answered.token, &what);
            if let Answer::Done(buffer) = answered.answer
                && buffer.capacity() <= SPARE_BYTES_MAX
                && self.spare.len() < SPARE_MAX
            {
                self.spare.push(buffer);
            }
        }
        worked
    }

    /// A copy in a buffer that was used before, if there is one.
    fn copied(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn measure(&mut self, token: Token, now: Instant) {
        let place = usize::try_from(token.0).unwrap_or(usize::MAX);
        let Some(Some(entry)) = self.under_way.get(place) else { return };
        let latencies = if entry.is_write { &mut self.writes } else { &mut self.reads };
        latencies.record(now.since(entry.asked_at));
    }

    /// Answers one request.
    pub(crate) fn say(&mut self, token: Token, what: &AnswerKind<'_>) {
        let place = usize::try_from(token.0).unwrap_or(usize::MAX);
        let Some(entry) = self.under_way.get_mut(place).and_then(Option::take) else { return };
        self.free.push(u32::try_from(place).unwrap_or(u32::MAX));
        let at = entry.guest as usize;
        let guest = self.guests.get_mut(at).and_then(Option::as_mut);
        let Some(guest) = guest.filter(|guest| guest.visit == entry.visit) else { return };
        guest.under_way -= 1;
        self.head.clear();
        let said = Said { id: entry.id, what: *what };
        let body = said.head(&mut self.head);
        if !guest.send(&[&self.head, body]) {
            self.counts.not_reading += 1;
            self.dismiss(at);
        }
    }
}

impl Guest {
    /// Whether the stream can go on.
    fn send(&mut self, parts: &[&[u8]]) -> bool {
        if self.unsent.is_empty() {
            match self.stream.send(parts) {
                Ok(()) => return true,
                Err(SendError::Full) => {}
                Err(_) => return false,
            }
        }
        let bytes = parts.concat();
        self.unsent_bytes += bytes.len();
        self.unsent.push_back(bytes);
        self.unsent_bytes <= UNSENT_BYTES_MAX
    }

    fn flush(&mut self) -> bool {
        let mut worked = self.stream.has_unsent() && self.stream.flush();
        while let Some(bytes) = self.unsent.front() {
            if self.stream.send(&[bytes]).is_err() {
                break;
            }
            self.unsent_bytes -= bytes.len();
            self.unsent.pop_front();
            worked = true;
        }
        worked
    }
}

/// What three words of an ask do to sessions; they mean what they mean in an envelope.
fn act(session: u64, sequence: u64, acknowledged_through: u64) -> Option<Act> {
    let mut bytes = [0; consensus::session::ENVELOPE_LEN];
    let words = [LogTime(0).0, session, sequence, acknowledged_through];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Envelope::decode(&bytes).ok().map(|(envelope, _)| envelope.act)
}

fn said(answer: &Answer) -> AnswerKind<'_> {
    match answer {
        Answer::Done(reply) => AnswerKind::Done(reply),
        Answer::Duplicate(KeptReply::Reply(reply)) => AnswerKind::Duplicate(reply),
        Answer::Duplicate(KeptReply::TooLarge) => AnswerKind::DuplicateTooLarge,
        Answer::Opened(session) => AnswerKind::Opened(session.0),
        Answer::Noted => AnswerKind::Noted,
        Answer::NotExecuted(why) => AnswerKind::NotExecuted(not_executed(*why)),
        Answer::NotLeader(leader) => AnswerKind::NotLeader(*leader),
        Answer::Overloaded => AnswerKind::Overloaded,
        Answer::Bad(why) => AnswerKind::Bad(why),
        Answer::Unknown => AnswerKind::Unknown,
    }
}

const fn not_executed(why: SessionRefusal) -> NotExecuted {
    match why {
        SessionRefusal::Acknowledged => NotExecuted::Acknowledged,
        SessionRefusal::TooFarAhead => NotExecuted::TooFarAhead,
        SessionRefusal::TooManyUnacknowledged => NotExecuted::TooManyUnacknowledged,
        SessionRefusal::TooManySessions => NotExecuted::TooManySessions,
        // Whatever a later version adds: the outcome of what was sent in the session is not known.
        SessionRefusal::SessionUnknown | _ => NotExecuted::SessionUnknown,
    }
}
