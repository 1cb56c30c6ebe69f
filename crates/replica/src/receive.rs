//! Fetching a checkpoint's state from the leader, chunk by chunk, and serving the same to others.
//!
//! The receiver pulls: one chunk is under way at a time, asked for again when it does not come.
//! Memory on both sides is one chunk.

use base::{GrantWord, Instant, MemberId};
use consensus::{Connection, Event, Message};
use logfmt::{Checkpoint, StateFile};
use pmem::Ticket;

use crate::{
    env::{Env, StateFiles},
    group::Group,
    shared::Shared,
    state_file::FileDigest,
};

/// Bytes of a chunk on the wire.
const CHUNK: u64 = 32 << 10;

/// A state file on its way here.
pub(crate) struct Receiving {
    from: (MemberId, Connection),
    word: GrantWord,
    checkpoint: Checkpoint,
    /// Its number here.
    id: u64,
    next: u64,
    received: u64,
    digest: FileDigest,
    asked_at: Instant,
    ticket: Option<Ticket>,
}

impl Receiving {
    pub(crate) const fn file(&self) -> u64 {
        self.id
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
        let id = self.next_file_id();
        if self.files.create(id).is_err() {
            return self.later.push_back(Event::StateFetchFailed);
        }
        self.receiving = Some(Receiving {
            from,
            word,
            checkpoint,
            id,
            next: 0,
            received: 0,
            digest: FileDigest::default(),
            asked_at: now,
            ticket: None,
        });
        self.ask_chunk(shared, now);
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

    fn ask_chunk(&mut self, shared: &mut Shared<E>, now: Instant) {
        let Some(receiving) = &mut self.receiving else { return };
        receiving.asked_at = now;
        let message = Message::FetchChunk {
            word: receiving.word,
            state: receiving.checkpoint.state.id,
            number: receiving.next,
        };
        let (peer, connection) = receiving.from;
        if let Some(qp) = shared.qp(peer, connection) {
            shared.send(self.id, qp, &message);
        } else {
            self.receive_failed();
        }
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
        let wanted = &receiving.checkpoint.state;
        let is_wanted = receiving.from == from
            && receiving.word == word
            && wanted.id == state
            && receiving.next == number
            && receiving.ticket.is_none();
        if !is_wanted {
            return;
        }
        let received = receiving.received + bytes.len() as u64;
        let is_sane = !bytes.is_empty() && received <= wanted.length;
        if !is_sane || self.files.append(receiving.id, bytes).is_err() {
            return self.receive_failed();
        }
        receiving.digest.update(bytes);
        receiving.received = received;
        receiving.next += 1;
        if received < wanted.length {
            return self.ask_chunk(shared, now);
        }
        let is_right = receiving.digest.digest() == wanted.digest;
        match self.files.sync(receiving.id) {
            Ok(ticket) if is_right => receiving.ticket = Some(ticket),
            Ok(_) | Err(_) => self.receive_failed(),
        }
    }

    /// Asks again for what did not come, gives up with the connection, and sees whether the whole
    /// file is durable.
    pub(crate) fn continue_receive(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let retry = self.retry_interval();
        let Some(receiving) = &self.receiving else { return false };
        if self.core.grant_word() != receiving.word {
            self.receive_failed();
            return true;
        }
        if self.files.health(receiving.id).is_err() {
            self.receive_failed();
            return true;
        }
        let Some(ticket) = receiving.ticket else {
            if now < receiving.asked_at + retry {
                return false;
            }
            self.ask_chunk(shared, now);
            return true;
        };
        match self.files.synced() {
            Ok(synced) if synced >= ticket => {}
            Ok(_) => return false,
            Err(error) => {
                self.fail(error.to_string(), shared, now);
                return true;
            }
        }
        let Some(receiving) = self.receiving.take() else { return false };
        let state = StateFile { id: receiving.id, ..receiving.checkpoint.state };
        let checkpoint = Checkpoint { state, ..receiving.checkpoint };
        self.feed(Event::StateFetched(Box::new(checkpoint)), shared, now);
        true
    }
}
