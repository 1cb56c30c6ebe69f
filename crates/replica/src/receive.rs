//! Fetching a checkpoint's state from the leader, chunk by chunk, and serving the same to others.
//!
//! ```text
//!   receiver                                          leader
//!     asks for chunks n .. n + 7    --FetchChunk-->   reads each from its state file
//!     appends to a file, and feeds  <--Chunk-------
//!     the machine that will be
//!     .. the whole file is durable: the superblock names it, and the machine is exchanged
//! ```
//!
//! The receiver pulls: a few chunks are under way at a time, asked for again when they do not come,
//! and only while its own disk keeps up. The machine is built as the chunks come, so that no turn
//! of the loop loads a whole state. Until it is exchanged both the old and the new one are in
//! memory; on the leader a transfer takes a few chunks.

use base::{GrantWord, Instant, MemberId};
use consensus::{Connection, Event, Message};
use logfmt::{Checkpoint, StateFile};
use pmem::Ticket;

use crate::{
    env::{Env, StateFiles},
    group::Group,
    machine::StateMachine,
    shared::Shared,
    state_file::{Loaded, Loader},
};

/// Bytes of a chunk on the wire.
pub(crate) const CHUNK: u64 = 32 << 10;
/// Chunks that may be under way: enough that neither side waits for the other's loop to wake.
const UNDER_WAY_MAX: u64 = 8;

/// How far a state file is.
enum Stage<M: StateMachine> {
    Taking(Box<Loader<M::Installer>>),
    /// All of it is here; its durability is not.
    Syncing(Ticket, Loaded<M>),
}

/// A state file on its way here.
pub(crate) struct Receiving<M: StateMachine> {
    from: (MemberId, Connection),
    word: GrantWord,
    checkpoint: Checkpoint,
    /// Its number here.
    id: u64,
    /// The chunk that is expected.
    next: u64,
    /// The chunk that is to be asked for. Invariant: `next <= asked <= next + UNDER_WAY_MAX`.
    asked: u64,
    /// When one came last, or all were asked for again.
    heard_at: Instant,
    stage: Stage<M>,
}

impl<M: StateMachine> Receiving<M> {
    pub(crate) const fn file(&self) -> u64 {
        self.id
    }

    /// The next chunk to ask for now, if there is one.
    const fn to_ask(&self) -> Option<u64> {
        let is_taking = matches!(self.stage, Stage::Taking(_));
        let has_more = self.asked * CHUNK < self.checkpoint.state.length;
        if is_taking && has_more && self.asked < self.next + UNDER_WAY_MAX {
            Some(self.asked)
        } else {
            None
        }
    }
}

impl<E: Env> Group<E> {
    pub(crate) fn begin_receive(
        &mut self,
        from: (MemberId, Connection),
        word: GrantWord,
        checkpoint: Checkpoint,
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        self.drop_receiving();
        if let Some(writing) = self.writing.take() {
            // The state on its way here is newer: the disk need not hold both.
            self.files.remove(writing.file());
            self.later.push_back(Event::CheckpointFailed);
        }
        let id = self.next_file_id();
        if self.files.create(id).is_err() {
            return self.later.push_back(Event::StateFetchFailed);
        }
        let state = StateFile { id, ..checkpoint.state };
        let loader = Loader::new(state, self.machine.installer());
        self.receiving = Some(Receiving {
            from,
            word,
            checkpoint,
            id,
            next: 0,
            asked: 0,
            heard_at: now,
            stage: Stage::Taking(Box::new(loader)),
        });
        self.ask_chunks(shared);
    }

    fn drop_receiving(&mut self) {
        if let Some(receiving) = self.receiving.take() {
            self.files.remove(receiving.id);
        }
    }

    fn receive_failed(&mut self) {
        self.drop_receiving();
        self.later.push_back(Event::StateFetchFailed);
    }

    /// Asks for as many chunks as may be under way.
    fn ask_chunks(&mut self, shared: &mut Shared<E>) -> bool {
        let mut worked = false;
        while self.files.has_room()
            && let Some(receiving) = &mut self.receiving
            && let Some(number) = receiving.to_ask()
        {
            worked = true;
            let (word, state) = (receiving.word, receiving.checkpoint.state.id);
            let (peer, connection) = receiving.from;
            let Some(qp) = shared.qp(peer, connection) else {
                self.receive_failed();
                break;
            };
            receiving.asked += 1;
            shared.send(self.id, qp, &Message::FetchChunk { word, state, number });
        }
        worked
    }

    /// A peer asks for a chunk of a state file of this member.
    pub(crate) fn on_fetch_chunk(
        &mut self,
        (peer, connection): (MemberId, Connection),
        (word, state, number): (GrantWord, u64, u64),
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        let len = self.files.len(state).unwrap_or(0);
        let offset = number.saturating_mul(CHUNK).min(len);
        let size = usize::try_from((len - offset).min(CHUNK)).unwrap_or(0);
        let mut bytes = vec![0; size];
        if self.files.read(state, offset, &mut bytes).is_err() {
            bytes.clear();
        }
        self.serving.files.retain(|&(id, _)| id != state);
        if len > 0 {
            self.serving.files.push((state, now));
        }
        if let Some(qp) = shared.qp(peer, connection) {
            shared.send(self.id, qp, &Message::Chunk { word, state, number, bytes });
        }
    }

    /// A chunk arrived.
    pub(crate) fn on_chunk(
        &mut self,
        from: (MemberId, Connection),
        (word, state, number): (GrantWord, u64, u64),
        bytes: &[u8],
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        let Some(receiving) = &mut self.receiving else { return };
        let Stage::Taking(loader) = &mut receiving.stage else { return };
        let wanted = receiving.checkpoint.state;
        let is_wanted = receiving.from == from
            && receiving.word == word
            && wanted.id == state
            && receiving.next == number;
        if !is_wanted {
            return;
        }
        let is_sane = !bytes.is_empty() && loader.take(bytes).is_ok();
        if !is_sane || self.files.append(receiving.id, bytes).is_err() {
            return self.receive_failed();
        }
        receiving.heard_at = now;
        receiving.next += 1;
        receiving.asked = receiving.asked.max(receiving.next);
        if loader.taken() < wanted.length {
            self.ask_chunks(shared);
        } else {
            self.all_taken();
        }
    }

    /// The last chunk is here.
    fn all_taken(&mut self) {
        let Some(mut receiving) = self.receiving.take() else { return };
        let id = receiving.id;
        let Stage::Taking(loader) = receiving.stage else { return };
        let (Ok(loaded), Ok(ticket)) = (loader.finish(), self.files.sync(id)) else {
            self.files.remove(id);
            return self.receive_failed();
        };
        receiving.stage = Stage::Syncing(ticket, loaded);
        self.receiving = Some(receiving);
    }

    /// Asks again for what did not come, gives up with the connection, and sees whether the whole
    /// file is durable.
    pub(crate) fn continue_receive(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let Some(receiving) = &self.receiving else { return false };
        if self.core.grant_word() != receiving.word {
            self.receive_failed();
            return true;
        }
        if self.files.health(receiving.id).is_err() {
            self.receive_failed();
            return true;
        }
        let Stage::Syncing(ticket, _) = receiving.stage else {
            return self.continue_asking(shared, now);
        };
        match self.files.synced() {
            Ok(synced) if synced >= ticket => {}
            Ok(_) => return false,
            Err(error) => {
                self.fail(error.to_string(), shared, now);
                return true;
            }
        }
        self.hand_over(shared, now);
        true
    }

    fn continue_asking(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let retry = self.retry_interval();
        if let Some(receiving) = &mut self.receiving
            && receiving.next < receiving.asked
            && receiving.heard_at + retry <= now
        {
            receiving.asked = receiving.next;
            receiving.heard_at = now;
        }
        self.ask_chunks(shared)
    }

    /// The state is here for good: the superblock may name it.
    fn hand_over(&mut self, shared: &mut Shared<E>, now: Instant) {
        let Some(receiving) = self.receiving.take() else { return };
        let Stage::Syncing(_, loaded) = receiving.stage else { return };
        let id = receiving.id;
        self.received = Some((id, loaded));
        let state = StateFile { id, ..receiving.checkpoint.state };
        let checkpoint = Checkpoint { state, ..receiving.checkpoint };
        self.feed(Event::StateFetched(Box::new(checkpoint)), shared, now);
        let is_named = self.core.superblock().checkpoint.state.id == id;
        if !is_named {
            // Its grant has ended: whoever leads now offers its own.
            self.received = None;
            self.files.remove(id);
        }
    }
}
