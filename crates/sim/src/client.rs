//! Simulated clients: each does one operation after the other against a few keys, retries what may
//! be retried, and writes down what it was told.

use base::{Duration, Instant, Random};
use consensus::session::{Act, KeptReply, Refusal, SessionId};
use replica::{Answer, Request, Token};
use store::{Batch, Command, Compare, Condition, Query, Reply, Write, WriteResult};

use crate::linear::{Call, History, Key, Operation, Outcome, Value};

/// What a client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Send this to the member at this place of the cluster's list.
    Send(usize, Token, Request),
    /// Nothing until the given time.
    Wait(Instant),
}

/// How a client goes about it.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Keys that all clients share.
    pub keys: u64,
    /// How long it waits for an answer before it tries elsewhere.
    pub patience: Duration,
    /// How long it rests between operations, at most.
    pub rest: Duration,
    /// One operation in so many is written outside the session; 0 is never.
    pub plain_one_in: u64,
}

/// An operation under way.
#[derive(Clone, Debug)]
struct Running {
    call: Call,
    invoke: Instant,
    /// Its number in the session, if it is written in one.
    sequence: Option<u64>,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    number: u32,
    random: Random,
    habits: Habits,
    session: Option<SessionId>,
    sequence: u64,
    /// The client has the reply to everything up to here.
    acknowledged: u64,
    running: Option<Running>,
    attempt: u32,
    /// Which member it talks to.
    place: usize,
    /// When it gives up on the present attempt, or begins the next thing.
    pub due: Instant,
    waits: bool,
    next_value: i64,
    /// Whether it begins nothing new.
    pub is_done: bool,
    /// What it was told.
    pub history: History,
}

impl Client {
    /// A client that has not begun.
    #[must_use]
    pub fn new(number: u32, seed: u64, habits: Habits) -> Self {
        Self {
            number,
            random: Random::new(seed),
            habits,
            session: None,
            sequence: 0,
            acknowledged: 0,
            running: None,
            attempt: 0,
            place: 0,
            due: Instant(0),
            waits: false,
            next_value: i64::from(number) << 32,
            is_done: false,
            history: Vec::new(),
        }
    }

    fn token(&self) -> Token {
        Token((u64::from(self.number) << 32) | u64::from(self.attempt))
    }

    /// Whether a token is of this client's present attempt.
    #[must_use]
    pub fn expects(&self, token: Token) -> bool {
        self.waits && self.token() == token
    }

    /// Whether an operation is under way.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Its number is the upper half of its tokens.
    #[must_use]
    pub fn of(token: Token) -> usize {
        usize::try_from(token.0 >> 32).unwrap_or(usize::MAX)
    }

    /// Its time has come: what now? `members` is how many it may talk to.
    pub fn act(&mut self, now: Instant, members: usize) -> Todo {
        if self.waits {
            // No answer: what was sent may be done or not.
            self.waits = false;
            self.place = self.random_place(members);
            if !self.may_retry() {
                self.finish(None, Outcome::Unknown);
                return self.rest(now);
            }
        }
        if self.running.is_none() && self.is_done {
            return Todo::Wait(Instant(u64::MAX));
        }
        self.send(now)
    }

    fn random_place(&mut self, members: usize) -> usize {
        usize::try_from(self.random.below(members as u64)).unwrap_or(0)
    }

    fn may_retry(&self) -> bool {
        self.running.as_ref().is_none_or(|running| {
            running.sequence.is_some() || matches!(running.call, Call::Get(_))
        })
    }

    fn rest(&mut self, now: Instant) -> Todo {
        let most = u64::try_from(self.habits.rest.as_nanos()).unwrap_or(1).max(1);
        self.due = now + Duration::from_nanos(self.random.below(most));
        Todo::Wait(self.due)
    }

    fn send(&mut self, now: Instant) -> Todo {
        let request = if self.session.is_none() && self.needs_session() {
            Request::Write { act: Act::Open, command: Vec::new() }
        } else {
            if self.running.is_none() {
                self.begin(now);
            }
            self.request()
        };
        self.attempt += 1;
        self.waits = true;
        self.due = now + self.habits.patience;
        Todo::Send(self.place, self.token(), request)
    }

    /// Whether the next thing to send needs a session that is not there.
    fn needs_session(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.sequence.is_some())
    }

    fn begin(&mut self, now: Instant) {
        let call = self.choose();
        let is_read = matches!(call, Call::Get(_));
        let is_plain = is_read || self.random.one_in(self.habits.plain_one_in);
        if !is_plain {
            self.sequence += 1;
        }
        let sequence = (!is_plain).then_some(self.sequence);
        self.running = Some(Running { call, invoke: now, sequence });
    }

    fn choose(&mut self) -> Call {
        let key = self.random.below(self.habits.keys);
        self.next_value += 1;
        let value = self.next_value;
        match self.random.below(10) {
            0..=2 => Call::Get(key),
            3 | 4 => Call::Put(key, value),
            5 => Call::Delete(key),
            6 => Call::CompareAndSet(key, self.guess(), Some(value)),
            7 | 8 => Call::Increment(key, 1),
            _ => {
                let other = (key + 1) % self.habits.keys;
                let writes = if other == key {
                    vec![(key, Some(value))]
                } else {
                    vec![(key, Some(value)), (other, Some(value))]
                };
                Call::Batch { compares: vec![(key, self.guess())], writes }
            }
        }
    }

    /// A value that a key may hold: one of this client's last ones, or none.
    fn guess(&mut self) -> Value {
        let back = i64::try_from(self.random.below(8)).unwrap_or(0);
        (back < 6).then_some(self.next_value - back)
    }

    fn request(&self) -> Request {
        let Some(running) = &self.running else {
            return Request::Read { query: Vec::new() };
        };
        if let Call::Get(key) = running.call {
            let mut query = Vec::new();
            let name = name(key);
            Query::Get { key: &name }.encode(&mut query).expect("a short key");
            return Request::Read { query };
        }
        let act = match (self.session, running.sequence) {
            (Some(session), Some(sequence)) => {
                Act::Call { session, sequence, acknowledged_through: self.acknowledged }
            }
            _ => Act::Plain,
        };
        Request::Write { act, command: command(&running.call) }
    }

    /// An answer to the present attempt.
    pub fn answer(&mut self, answer: &Answer, now: Instant, members: usize) {
        self.waits = false;
        self.due = now;
        match answer {
            Answer::Opened(session) => {
                self.session = Some(*session);
                self.sequence = 0;
                self.acknowledged = 0;
                if let Some(running) = &mut self.running {
                    self.sequence = 1;
                    running.sequence = Some(1);
                }
            }
            Answer::Done(reply) => self.replied(reply, now),
            Answer::Duplicate(KeptReply::Reply(reply)) => self.replied(reply, now),
            Answer::Duplicate(KeptReply::TooLarge) | Answer::Unknown => self.unknown(now),
            Answer::NotExecuted(why) => self.not_executed(*why, now),
            Answer::NotLeader(leader) => {
                self.place = match leader {
                    Some(leader) => usize::try_from(leader.0).unwrap_or(1).saturating_sub(1),
                    None => self.random_place(members),
                };
                self.pause(now);
            }
            Answer::Overloaded => self.pause(now),
            Answer::Noted | Answer::Bad(_) => self.finish(Some(now), Outcome::Unknown),
        }
    }

    /// Tries again a little later; nothing was done.
    fn pause(&mut self, now: Instant) {
        let most = u64::try_from(self.habits.patience.as_nanos() / 4).unwrap_or(1).max(1);
        self.due = now + Duration::from_nanos(self.random.below(most));
    }

    fn unknown(&mut self, now: Instant) {
        if self.may_retry() {
            self.pause(now);
        } else {
            self.finish(None, Outcome::Unknown);
        }
    }

    fn not_executed(&mut self, why: Refusal, now: Instant) {
        match why {
            Refusal::SessionUnknown | Refusal::Acknowledged => {
                self.session = None;
                self.finish(None, Outcome::Unknown);
            }
            // Not done, and may be tried again; so may whatever refusals come to be.
            Refusal::TooFarAhead
            | Refusal::TooManyUnacknowledged
            | Refusal::TooManySessions
            | _ => self.pause(now),
        }
    }

    fn replied(&mut self, reply: &[u8], now: Instant) {
        let Some(running) = &self.running else { return };
        let outcome = outcome(&running.call, reply);
        self.finish(Some(now), outcome);
        let most = u64::try_from(self.habits.rest.as_nanos()).unwrap_or(1).max(1);
        self.due = now + Duration::from_nanos(self.random.below(most));
    }

    fn finish(&mut self, complete: Option<Instant>, outcome: Outcome) {
        let Some(running) = self.running.take() else { return };
        if let Some(sequence) = running.sequence {
            self.acknowledged = sequence;
        }
        let Running { call, invoke, .. } = running;
        let complete = if outcome == Outcome::Unknown { None } else { complete };
        self.history.push(Operation { client: self.number, invoke, complete, call, outcome });
    }

    /// The history, with what is still running as unknown.
    pub fn close(&mut self) {
        self.finish(None, Outcome::Unknown);
    }
}

fn name(key: Key) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn text(value: i64) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Keys and what they hold, or shall hold.
type Settings = Vec<(Key, Value)>;

/// A call as the store's command.
fn command(call: &Call) -> Vec<u8> {
    let (compares, writes): (Settings, Settings) = match call {
        Call::Get(_) | Call::Increment(..) => (Vec::new(), Vec::new()),
        Call::Put(key, value) => (Vec::new(), vec![(*key, Some(*value))]),
        Call::Delete(key) => (Vec::new(), vec![(*key, None)]),
        Call::CompareAndSet(key, old, new) => (vec![(*key, *old)], vec![(*key, *new)]),
        Call::Batch { compares, writes } => (compares.clone(), writes.clone()),
    };
    let named = |list: &[(Key, Value)]| -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        list.iter().map(|&(key, value)| (name(key), value.map(text))).collect()
    };
    let (compares, writes) = (named(&compares), named(&writes));
    let mut batch = Batch::default();
    for (key, value) in &compares {
        let condition = value.as_deref().map_or(Condition::Absent, Condition::Equals);
        batch.compares.push(Compare { key, condition });
    }
    for (key, value) in &writes {
        batch.writes.push(match value {
            Some(value) => Write::Put { key, value, ttl_ns: 0 },
            None => Write::Delete { key },
        });
    }
    let incremented = match call {
        Call::Increment(key, by) => Some((name(*key), *by)),
        Call::Get(_)
        | Call::Put(..)
        | Call::Delete(_)
        | Call::CompareAndSet(..)
        | Call::Batch { .. } => None,
    };
    if let Some((key, by)) = &incremented {
        batch.writes.push(Write::Increment { key, by: *by });
    }
    let mut bytes = Vec::new();
    Command::Batch(batch).encode(&mut bytes).expect("short keys and values");
    bytes
}

/// What a reply says about a call. A reply that cannot be read is as none.
fn outcome(call: &Call, reply: &[u8]) -> Outcome {
    let Ok(reply) = Reply::decode(reply) else { return Outcome::Unknown };
    match reply {
        Reply::Value(found) => {
            let number = |found: store::Found<'_>| {
                std::str::from_utf8(found.value).ok().and_then(|text| text.parse().ok())
            };
            Outcome::Value(found.and_then(number))
        }
        Reply::Done { held, results, .. } => match (call, results.first()) {
            (Call::CompareAndSet(..) | Call::Batch { .. }, _) => Outcome::Applied(held),
            (Call::Delete(_), Some(WriteResult::Deleted { existed })) => Outcome::Existed(*existed),
            (Call::Increment(..), Some(WriteResult::Incremented { now })) => Outcome::Number(*now),
            _ => Outcome::Done,
        },
        Reply::Page(_) | Reply::LimitSet | Reply::Refused(_) => Outcome::Unknown,
    }
}
