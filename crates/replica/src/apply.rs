//! Applying what is committed, and answering who waits for it.

use base::Index;
use consensus::session::{Act, Envelope, LogTime, Verdict};
use logfmt::{Header, Kind};

use crate::{
    door::{Answer, Token},
    env::Env,
    group::{Group, Proposal},
    machine::{Committed, Replies, StateMachine},
    shared::Shared,
    view::RegionBytes,
};
use base::Instant;
use consensus::Event;

/// Entries applied in one turn: a long backlog must not keep the loop from its other groups.
const ENTRIES_PER_TURN: u32 = 256;

/// Scratch memory of applying.
#[derive(Debug, Default)]
pub(crate) struct Applying {
    payload: Vec<u8>,
    replies: Replies,
    /// The greatest ticket that the core has been shown.
    pub(crate) offered_reads: u64,
}

impl<E: Env> Group<E> {
    /// The last applied index.
    pub(crate) fn applied(&self) -> Index {
        self.machine.applied().0
    }

    /// Applies committed entries, a bounded number of them.
    pub(crate) fn apply(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let before = self.applied();
        for _ in 0..ENTRIES_PER_TURN {
            let index = self.applied().next();
            if index > self.commit || self.core.is_failed() {
                break;
            }
            let mut payload = std::mem::take(&mut self.applying.payload);
            let read = self.log.read_payload(index, &RegionBytes(&mut self.region), &mut payload);
            match read {
                Ok(header) => self.apply_entry(&header, &payload, shared),
                Err(error) => self.fail(error.to_string(), shared, now),
            }
            self.applying.payload = payload;
        }
        let through = self.applied();
        if through > before {
            self.feed(Event::Applied { through }, shared, now);
        }
        self.answer_reads(shared);
        through > before
    }

    fn apply_entry(&mut self, header: &Header, payload: &[u8], shared: &mut Shared<E>) {
        let index = header.index;
        let token = self.take_token(index);
        let (_, last_time) = self.machine.applied();
        let answer = match header.kind {
            Kind::NoOp | Kind::Configuration => {
                self.machine.advance(index, last_time);
                None
            }
            Kind::Tick => {
                let time = tick_time(payload).unwrap_or(last_time).max(last_time);
                self.has_tick = false;
                self.sessions.advance(time);
                self.machine.advance(index, time);
                None
            }
            Kind::Command => Some(self.apply_command(index, payload, last_time, shared)),
        };
        if let (Some(token), Some(answer)) = (token, answer) {
            shared.answer(self.id, token, answer);
        }
    }

    fn apply_command(
        &mut self,
        index: Index,
        payload: &[u8],
        last_time: LogTime,
        shared: &mut Shared<E>,
    ) -> Answer {
        let Ok((mut envelope, command)) = Envelope::decode(payload) else {
            self.machine.advance(index, last_time);
            return Answer::Bad("the entry has no envelope");
        };
        envelope.time = envelope.time.max(last_time);
        let answer = match self.sessions.admit(index, &envelope) {
            Verdict::Execute => return self.execute(index, &envelope, command, shared),
            Verdict::Duplicate(reply) => Answer::Duplicate(reply),
            // Replies are recorded entry by entry, so that nothing is ever half collected.
            Verdict::ApplyFirst => Answer::Unknown,
            Verdict::Opened(session) => Answer::Opened(session),
            Verdict::Alive | Verdict::Closed => Answer::Noted,
            Verdict::Refused(why) => Answer::NotExecuted(why),
        };
        self.machine.advance(index, envelope.time);
        answer
    }

    fn execute(
        &mut self,
        index: Index,
        envelope: &Envelope,
        command: &[u8],
        shared: &mut Shared<E>,
    ) -> Answer {
        let committed = Committed { index, time: envelope.time, command };
        let replies = &mut self.applying.replies;
        replies.clear();
        self.machine.apply(&[committed], replies);
        let reply = replies.at(0).unwrap_or_default();
        if let Act::Call { session, sequence, .. } = envelope.act {
            self.sessions.record(session, sequence, reply);
        }
        let mut buffer = shared.buffer();
        buffer.extend_from_slice(reply);
        Answer::Done(buffer)
    }

    /// The token of the own proposal at `index`, if it is one.
    fn take_token(&mut self, index: Index) -> Option<Token> {
        while let Some(&(at, token)) = self.in_log.front() {
            if at > index {
                break;
            }
            self.in_log.pop_front();
            if at == index {
                return token;
            }
        }
        None
    }

    pub(crate) fn answer_reads(&mut self, shared: &mut Shared<E>) {
        while self.reads_ready.front().is_some_and(|(index, _)| *index <= self.applied()) {
            if let Some((_, read)) = self.reads_ready.pop_front() {
                let mut reply = shared.buffer();
                self.machine.read(&read.query, &mut reply);
                shared.answer(self.id, read.token, Answer::Done(reply));
            }
        }
    }

    /// The log time of the last entry in the log that has one.
    pub(crate) fn last_time(&mut self) -> LogTime {
        let (applied, time) = self.machine.applied();
        let mut payload = Vec::new();
        let mut index = self.log.tail().index;
        while index > applied {
            let bytes = RegionBytes(&mut self.region);
            let Ok(header) = self.log.read_payload(index, &bytes, &mut payload) else { break };
            let stamp = match header.kind {
                Kind::NoOp | Kind::Configuration => None,
                Kind::Tick => tick_time(&payload),
                Kind::Command => Envelope::decode(&payload).ok().map(|(envelope, _)| envelope.time),
            };
            if let Some(stamp) = stamp {
                return time.max(stamp);
            }
            index = index.previous();
        }
        time
    }

    /// A leader whose log time passes an expiry writes a tick, when nothing else carries the time.
    pub(crate) fn tick_if_due(&mut self, now: Instant) {
        let due = [self.machine.next_expiry(), self.sessions.next_expiry()].into_iter().flatten();
        let Some(due) = due.min() else { return };
        let Some(clock) = &mut self.clock else { return };
        if !self.has_tick && self.proposals.is_empty() && clock.stamp(now) >= due {
            self.has_tick = true;
            let tick = Proposal { token: None, act: Act::Plain, command: Vec::new() };
            self.proposals.push_back(tick);
        }
    }
}

fn tick_time(payload: &[u8]) -> Option<LogTime> {
    Some(LogTime(u64::from_le_bytes(payload.get(..8)?.try_into().ok()?)))
}
