//! Applying what is committed, and answering who waits for it.

use base::Index;
use consensus::session::{Act, Envelope, LogTime, Verdict};
use logfmt::{Header, Kind};

use crate::{
    door::Answer,
    env::Env,
    group::Group,
    machine::{Committed, Replies, StateMachine},
    proposals::Proposal,
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
            self.apply_one(index, shared, now);
        }
        let through = self.applied();
        if through > before {
            self.step(Event::Applied { through }, shared, now);
        }
        self.answer_reads(shared);
        through > before
    }

    fn apply_one(&mut self, index: Index, shared: &mut Shared<E>, now: Instant) {
        let own = self.proposals.take(index);
        let token = own.as_ref().and_then(|own| own.token);
        let envelope = own.as_ref().and_then(Proposal::envelope);
        let answer = match (&own, envelope) {
            (Some(own), Some(envelope)) => {
                Some(self.apply_command(index, envelope, &own.command, shared))
            }
            _ => self.apply_from_log(index, shared, now),
        };
        if let Some(own) = own {
            shared.recycle(own.command);
        }
        if let Some(token) = token {
            // No answer: it could not be read, and the storage is no longer trusted.
            shared.answer(self.id, token, answer.unwrap_or(Answer::Unknown));
        }
    }

    fn apply_from_log(
        &mut self,
        index: Index,
        shared: &mut Shared<E>,
        now: Instant,
    ) -> Option<Answer> {
        let mut payload = std::mem::take(&mut self.applying.payload);
        let read = self.log.read_payload(index, &RegionBytes(&mut self.region), &mut payload);
        let answer = match read {
            Ok(header) => self.apply_entry(&header, &payload, shared),
            Err(error) => {
                self.fail(error.to_string(), shared, now);
                None
            }
        };
        self.applying.payload = payload;
        answer
    }

    fn apply_entry(
        &mut self,
        header: &Header,
        payload: &[u8],
        shared: &mut Shared<E>,
    ) -> Option<Answer> {
        let index = header.index;
        let (_, last_time) = self.machine.applied();
        match header.kind {
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
            Kind::Command => Some(match Envelope::decode(payload) {
                Ok((envelope, command)) => self.apply_command(index, envelope, command, shared),
                Err(_) => {
                    self.machine.advance(index, last_time);
                    Answer::Bad("the entry has no envelope")
                }
            }),
        }
    }

    fn apply_command(
        &mut self,
        index: Index,
        mut envelope: Envelope,
        command: &[u8],
        shared: &mut Shared<E>,
    ) -> Answer {
        let (_, last_time) = self.machine.applied();
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
        if self.clock.is_none() || self.has_tick || self.proposals.waiting() > 0 {
            return;
        }
        let due = [self.machine.next_expiry(), self.sessions.next_expiry()].into_iter().flatten();
        let Some(due) = due.min() else { return };
        let Some(clock) = &mut self.clock else { return };
        if clock.stamp(now) >= due {
            self.has_tick = true;
            self.proposals.push(None, Act::Plain, Vec::new());
        }
    }
}

fn tick_time(payload: &[u8]) -> Option<LogTime> {
    Some(LogTime(u64::from_le_bytes(payload.get(..8)?.try_into().ok()?)))
}
