//! The road of a request: onto the wire, line by line into memory, and back to its owner.

use base::mutant;
use fabric::{Completion, FabricEvent, Key, Status};

use super::state::{
    Answer, Chunk, EVENTS_WAITING_MAX, Operation, Phase, Stage, Work, handle_of, other,
};
use crate::memory::Snapshot;
use crate::world::{Event, HostState, World};

const LINE_BYTES: u64 = pmem::LINE;

/// What became of the front request in one step.
enum Outcome {
    /// It goes on later.
    Again(After),
    /// It is executed; its owner learns so.
    Done { status: Status, word: u64, again: Option<(Key, u64)> },
    /// It failed: nothing behind it is executed.
    Failed(Status),
}

/// What the next step of an execution waits for.
enum After {
    Land,
    Sample,
    Sync(base::Duration),
    /// The receiver has no room, or is not open yet.
    Receiver,
}

impl World {
    pub(super) fn schedule_transmit(&mut self, end: u32) {
        let pipe = self.network.pipe(end);
        if pipe.transmit_scheduled || pipe.queue.len() == pipe.on_wire {
            return;
        }
        pipe.transmit_scheduled = true;
        let delay = self.network.options.transmit.draw(&mut self.random);
        self.clock.after(delay, Event::Transmit(end));
    }

    /// Puts requests on the wire; local pieces are read now.
    pub(crate) fn transmit(&mut self, end: u32) {
        let (own, peer) = self.ends_of(end);
        let pipe = &mut self.network.ends[end as usize].pipe;
        pipe.transmit_scheduled = false;
        if pipe.orphan {
            return;
        }
        while let Some(work) = pipe.queue.get_mut(pipe.on_wire) {
            if let Operation::Write { bytes, gather, .. } = &mut work.operation {
                for (at, memory, offset, len) in gather.drain(..) {
                    let (start, len) = (at as usize, u64::from(len));
                    let source = self.memories[memory as usize].visible(offset..offset + len);
                    bytes[start..start + source.len()].copy_from_slice(source);
                }
            }
            pipe.on_wire += 1;
            if self.random.one_in(self.network.options.split_chain_one_in) {
                break;
            }
        }
        let is_stalled = pipe.execute_stalled;
        self.schedule_transmit(end);
        if is_stalled {
            self.arm_timer(end);
        } else {
            let delay = self.network.draw_flight(own, peer, &mut self.random);
            self.schedule_execute(end, delay);
        }
    }

    pub(super) fn schedule_execute(&mut self, end: u32, delay: base::Duration) {
        let pipe = self.network.pipe(end);
        if !pipe.execute_scheduled && pipe.on_wire > 0 {
            pipe.execute_scheduled = true;
            self.clock.after(delay, Event::Execute(end));
        }
    }

    /// Moves the front request of a pipe one step on.
    pub(crate) fn execute(&mut self, end: u32) {
        let (own, peer) = self.ends_of(end);
        let arrives =
            !self.network.is_blocked(own, peer) && self.hosts[peer].state != HostState::Off;
        let pipe = self.network.pipe(end);
        pipe.execute_scheduled = false;
        let late = pipe.late.take();
        if pipe.on_wire == 0 {
            return;
        }
        if pipe.limit == Some(0) && pipe.orphan {
            self.clear_pipe(end);
        } else if let Some(delay) = late {
            self.schedule_execute(end, delay);
        } else if pipe.limit == Some(0) || !arrives {
            pipe.execute_stalled = true;
            self.arm_timer(end);
        } else {
            let mut work = pipe.queue.pop_front().expect("on the wire");
            let outcome = self.execute_front(end, &mut work);
            self.conclude(end, work, outcome);
        }
    }

    fn execute_front(&mut self, end: u32, work: &mut Work) -> Outcome {
        match &mut work.operation {
            Operation::Write { key, offset, bytes, .. } => self.land(end, *key, *offset, bytes),
            Operation::ReadWord { key, offset, early } => {
                let (key, offset) = (*key, *offset);
                match self.prepare_read(end, key, offset..offset.saturating_add(8)) {
                    Err(outcome) => outcome,
                    Ok(()) => early.map_or_else(|| self.sample(end, key, offset), Ok).map_or_else(
                        Outcome::Failed,
                        |word| {
                            let again = early.is_none().then_some((key, offset));
                            Outcome::Done { status: Status::Ok, word, again }
                        },
                    ),
                }
            }
            Operation::Read { key, offset, len, bytes, .. } => {
                let (key, range) = (*key, *offset..offset.saturating_add(u64::from(*len)));
                match self.prepare_read(end, key, range.clone()) {
                    Err(outcome) => outcome,
                    Ok(()) => self.read_lines(end, key, range, bytes),
                }
            }
            Operation::Send { bytes } => self.arrive(end, bytes),
        }
    }

    /// Puts the front request back or takes it off, and lets the pipe go on.
    fn conclude(&mut self, end: u32, work: Work, outcome: Outcome) {
        let number = work.number;
        match outcome {
            Outcome::Again(after) => {
                self.network.pipe(end).queue.push_front(work);
                let options = self.network.options;
                let delay = match after {
                    After::Land => options.land.draw(&mut self.random),
                    After::Sample => options.sample.draw(&mut self.random),
                    After::Sync(delay) => delay,
                    After::Receiver => options.notice.draw(&mut self.random),
                };
                self.schedule_execute(end, delay);
            }
            Outcome::Done { status, word, again } => {
                let pipe = self.network.pipe(end);
                pipe.on_wire -= 1;
                pipe.stage = Stage::Begin;
                pipe.limit = pipe.limit.map(|limit| limit - 1);
                let is_last = pipe.on_wire == 0;
                let is_read =
                    !matches!(work.operation, Operation::Write { .. } | Operation::Send { .. });
                let data = self.retire(work);
                if is_read || is_last {
                    self.answer(end, Answer { number, status, word, again, data });
                }
                let delay = self.network.options.land.draw(&mut self.random);
                self.schedule_execute(end, delay);
            }
            Outcome::Failed(status) => {
                self.clear_pipe(end);
                self.network.pipe(end).limit = Some(0);
                self.answer(end, Answer { number, status, word: 0, again: None, data: None });
            }
        }
    }

    /// Gives a request's buffer back, or turns it into what the owner gets.
    fn retire(&mut self, work: Work) -> Option<(u32, u64, Vec<u8>)> {
        match work.operation {
            Operation::Write { bytes, .. } | Operation::Send { bytes } => {
                self.network.give_back(bytes);
                None
            }
            Operation::ReadWord { .. } => None,
            Operation::Read { memory, at, bytes, .. } => Some((memory, at, bytes)),
        }
    }

    /// Lands some lines of a WRITE.
    fn land(&mut self, end: u32, key: Key, offset: u64, bytes: &[u8]) -> Outcome {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let Some((memory, at)) = self.network.resolve(other(end), key, range, true) else {
            return Outcome::Failed(Status::RemoteAccess);
        };
        if matches!(self.network.end(end).pipe.stage, Stage::Begin) {
            self.plant_early_reads(end);
            let chunks = self.chunks_of(at, bytes.len());
            let pipe = self.network.pipe(end);
            pipe.stage = Stage::Landing(chunks);
            let landing = &self.memories[memory as usize];
            if landing.read_flushes() || landing.read_syncs() {
                pipe.note_unflushed(memory, at..at + bytes.len() as u64);
            }
        }
        let Stage::Landing(chunks) = &mut self.network.ends[end as usize].pipe.stage else {
            unreachable!("a WRITE is landing");
        };
        let count = 1 + self.random.below(1 + chunks.len() as u64 / 4);
        for _ in 0..count {
            let Some(Chunk { start, len }) = chunks.pop() else {
                break;
            };
            let from = start as usize;
            let line = &bytes[from..from + len as usize];
            self.memories[memory as usize].put(at + u64::from(start), line);
        }
        if chunks.is_empty() {
            Outcome::Done { status: Status::Ok, word: 0, again: None }
        } else {
            Outcome::Again(After::Land)
        }
    }

    /// The lines of a WRITE (now and then in two parts) in the order in which they will land.
    fn chunks_of(&mut self, at: u64, len: usize) -> Vec<Chunk> {
        let end = at + len as u64;
        let mut chunks = Vec::with_capacity(len / 64 + 2);
        let mut from = at;
        while from < end {
            let line_end = end.min((from / LINE_BYTES + 1) * LINE_BYTES);
            let word = (from / 8 + 1 + self.random.below(7)) * 8;
            let to = if word < line_end && self.random.one_in(6) { word } else { line_end };
            let start = u32::try_from(from - at).expect("a WRITE is shorter than 4 GiB");
            let len = u32::try_from(to - from).expect("a line");
            chunks.push(Chunk { start, len });
            from = to;
        }
        for place in (1..chunks.len()).rev() {
            let with = self.random.below(place as u64 + 1);
            chunks.swap(place, usize::try_from(with).expect("not above place"));
        }
        chunks
    }

    /// Does what must be done before a READ may look: access, flush or sync.
    fn prepare_read(
        &mut self,
        end: u32,
        key: Key,
        range: std::ops::Range<u64>,
    ) -> Result<(), Outcome> {
        if self.network.end(end).pipe.orphan {
            return Err(Outcome::Done { status: Status::Ok, word: 0, again: None });
        }
        if self.network.resolve(other(end), key, range, false).is_none() {
            return Err(Outcome::Failed(Status::RemoteAccess));
        }
        match std::mem::take(&mut self.network.pipe(end).stage) {
            Stage::Begin => self.flush(end),
            Stage::Syncing(snapshots) => {
                for (memory, snapshot) in snapshots {
                    self.settle(memory, snapshot)?;
                }
                self.network.pipe(end).stage = Stage::Flushed;
                Err(Outcome::Again(After::Sample))
            }
            Stage::Flushed => {
                self.network.pipe(end).stage = Stage::Flushed;
                Ok(())
            }
            Stage::Landing(_) => unreachable!("a WRITE ends before a READ begins"),
        }
    }

    /// Makes durable what landed through this pipe, as the mode of its memory says.
    fn flush(&mut self, end: u32) -> Result<(), Outcome> {
        let mut landed = std::mem::take(&mut self.network.pipe(end).unflushed);
        let mut waiting: Vec<(u32, Snapshot)> = Vec::new();
        let mut delay = base::Duration::ZERO;
        let mut was_flushed = false;
        for (number, range) in landed.drain(..) {
            let memory = &mut self.memories[number as usize];
            if memory.read_flushes() {
                was_flushed = true;
                let snapshot = memory.snapshot(range);
                self.settle(number, snapshot)?;
            } else if memory.read_syncs() {
                match waiting.iter_mut().find(|(waits, _)| *waits == number) {
                    Some((_, snapshot)) => memory.add_to(snapshot, range),
                    None => {
                        delay = delay.max(memory.sync_delay());
                        waiting.push((number, memory.snapshot(range)));
                    }
                }
            }
        }
        let pipe = self.network.pipe(end);
        pipe.unflushed = landed;
        if !waiting.is_empty() {
            pipe.stage = Stage::Syncing(waiting);
            return Err(Outcome::Again(After::Sync(delay)));
        }
        pipe.stage = Stage::Flushed;
        if was_flushed { Err(Outcome::Again(After::Sample)) } else { Ok(()) }
    }

    fn settle(&mut self, memory: u32, snapshot: Snapshot) -> Result<(), Outcome> {
        let settled = self.memories[memory as usize].settle(snapshot);
        settled.map_err(|_| Outcome::Failed(Status::RemoteSync))
    }

    /// Loads a word at the other side.
    fn sample(&self, end: u32, key: Key, offset: u64) -> Result<u64, Status> {
        let range = offset..offset.saturating_add(8);
        let resolved = self.network.resolve(other(end), key, range, false);
        resolved
            .filter(|(_, at)| at.is_multiple_of(8))
            .map(|(memory, at)| self.memories[memory as usize].word(at))
            .ok_or(Status::RemoteAccess)
    }

    /// Copies some lines of a READ; others are copied later and may be newer.
    fn read_lines(
        &mut self,
        end: u32,
        key: Key,
        range: std::ops::Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Outcome {
        let resolved = self.network.resolve(other(end), key, range.clone(), false);
        let Some((memory, at)) = resolved else {
            return Outcome::Failed(Status::RemoteAccess);
        };
        let len = range.end - range.start;
        let done = bytes.len() as u64;
        let lines = 1 + self.random.below(1 + (len - done) / LINE_BYTES);
        let to = len.min(done + lines * LINE_BYTES);
        let source = self.memories[memory as usize].visible(at + done..at + to);
        bytes.extend_from_slice(source);
        if to == len {
            Outcome::Done { status: Status::Ok, word: 0, again: None }
        } else {
            Outcome::Again(After::Land)
        }
    }

    /// Delivers a message; to a side that is gone it is lost with the queue pair.
    fn arrive(&mut self, end: u32, bytes: &[u8]) -> Outcome {
        let target = self.network.end(other(end));
        let place = usize::from(target.host);
        let done = Outcome::Done { status: Status::Ok, word: 0, again: None };
        match target.phase {
            Phase::Closed => return done,
            Phase::Opening => return Outcome::Again(After::Sample),
            Phase::Open => {}
        }
        if self.hosts[place].process.events.len() == EVENTS_WAITING_MAX {
            return Outcome::Again(After::Receiver);
        }
        self.push_event(place, FabricEvent::Received { qp: handle_of(other(end)) }, bytes);
        done
    }

    /// The planted faults that let a READ look before its time.
    fn plant_early_reads(&mut self, end: u32) {
        let (no_fence, passes) = (mutant!("shm_no_fence"), mutant!("read_before_write"));
        if !(no_fence || passes) || self.random.one_in(2) {
            return;
        }
        // The WRITE at the front is in execution and not in the queue.
        let on_wire = self.network.end(end).pipe.on_wire;
        let queue = self.network.end(end).pipe.queue.iter().take(on_wire.saturating_sub(1));
        let found = queue.enumerate().find_map(|(place, work)| match work.operation {
            Operation::ReadWord { key, offset, early: None } => Some((place, key, offset)),
            Operation::ReadWord { early: Some(_), .. }
            | Operation::Write { .. }
            | Operation::Read { .. }
            | Operation::Send { .. } => None,
        });
        let Some((place, key, offset)) = found else {
            return;
        };
        let Ok(word) = self.sample(end, key, offset) else {
            return;
        };
        if no_fence {
            let work = &mut self.network.pipe(end).queue[place];
            work.operation = Operation::ReadWord { key, offset, early: Some(word) };
        } else {
            let pipe = self.network.pipe(end);
            let work = pipe.queue.remove(place).expect("just found");
            pipe.on_wire -= 1;
            let number = work.number;
            let status = Status::Ok;
            self.answer(end, Answer { number, status, word, again: None, data: None });
        }
    }

    fn answer(&mut self, end: u32, answer: Answer) {
        if self.network.end(end).phase != Phase::Open {
            return;
        }
        self.network.pipe(end).answers.push_back(answer);
        self.schedule_deliver(end);
    }

    pub(super) fn schedule_deliver(&mut self, end: u32) {
        let (own, peer) = self.ends_of(end);
        let delay = self.network.draw_flight(peer, own, &mut self.random);
        let pipe = self.network.pipe(end);
        if !pipe.deliver_scheduled && !pipe.deliver_stalled && !pipe.answers.is_empty() {
            pipe.deliver_scheduled = true;
            self.clock.after(delay, Event::Deliver(end));
        }
    }

    /// Brings answers to their owner, in order.
    pub(crate) fn deliver(&mut self, end: u32) {
        let (own, peer) = self.ends_of(end);
        let passes =
            !self.network.is_blocked(peer, own) && self.hosts[peer].state != HostState::Off;
        let is_open = self.network.end(end).phase == Phase::Open;
        let pipe = self.network.pipe(end);
        pipe.deliver_scheduled = false;
        if !is_open {
            pipe.answers.clear();
            return;
        }
        if !passes {
            pipe.deliver_stalled = true;
            self.arm_timer(end);
            return;
        }
        while let Some(mut answer) = self.network.pipe(end).answers.pop_front() {
            if let Some((key, offset)) = answer.again.take()
                && self.random.one_in(self.network.options.reexecute_one_in)
                && let Ok(word) = self.sample(end, key, offset)
            {
                answer.word = word;
                self.network.pipe(end).answers.push_front(answer);
                break;
            }
            self.complete(own, end, answer);
            if self.random.one_in(2) {
                break;
            }
        }
        self.schedule_deliver(end);
    }

    fn complete(&mut self, own: usize, end: u32, answer: Answer) {
        let pipe = self.network.pipe(end);
        pipe.progress += 1;
        let good_until = answer.number + u64::from(answer.status == Status::Ok);
        while let Some(first) = pipe.outstanding.front().copied() {
            if good_until <= first.number {
                break;
            }
            pipe.outstanding.pop_front();
            pipe.signaled -= u32::from(first.is_signaled);
            pipe.messages -= usize::from(first.is_message);
            if first.number == answer.number && first.is_signaled {
                if let Some((memory, at, bytes)) = &answer.data {
                    self.memories[*memory as usize].put(*at, bytes);
                }
                let completion = Completion {
                    qp: handle_of(end),
                    id: first.id,
                    status: Status::Ok,
                    word: answer.word,
                };
                self.hosts[own].process.completions.push_back(completion);
            }
        }
        if answer.status != Status::Ok {
            self.close_end(end, answer.status, false);
        }
        self.wake(own);
        if let Some((_, _, bytes)) = answer.data {
            self.network.give_back(bytes);
        }
    }

    /// Lets the owner give up if nothing moves for long enough.
    pub(super) fn arm_timer(&mut self, end: u32) {
        let is_open = self.network.end(end).phase == Phase::Open;
        let timeout = place_ns(self.network.options.retry_timeout);
        let pipe = self.network.pipe(end);
        if !is_open || pipe.timer_scheduled || pipe.outstanding.is_empty() {
            return;
        }
        pipe.timer_scheduled = true;
        pipe.progress_at_timer = pipe.progress;
        let delay = timeout + self.random.below(timeout + 1);
        self.clock.after(base::Duration::from_nanos(delay), Event::Timeout(end));
    }

    pub(crate) fn timeout(&mut self, end: u32) {
        let pipe = self.network.pipe(end);
        pipe.timer_scheduled = false;
        if !(pipe.execute_stalled || pipe.deliver_stalled) {
            return;
        }
        if pipe.progress != pipe.progress_at_timer {
            self.arm_timer(end);
        } else if !pipe.outstanding.is_empty() {
            self.close_end(end, Status::PeerGone, false);
        }
    }

    /// Lets everything go on that waited for the link to come back.
    pub(super) fn resume(&mut self, end: u32) {
        let (own, peer) = self.ends_of(end);
        let delay = self.network.draw_flight(own, peer, &mut self.random);
        let waits = self.network.end(end).notice_waits;
        let pipe = self.network.pipe(end);
        pipe.progress += 1;
        if std::mem::take(&mut pipe.execute_stalled) {
            self.schedule_execute(end, delay);
        }
        if std::mem::take(&mut self.network.pipe(end).deliver_stalled) {
            self.schedule_deliver(end);
        }
        if waits {
            self.schedule_notice(end, false);
        }
    }
}

fn place_ns(duration: base::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
