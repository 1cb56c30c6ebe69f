//! Messages from one peer to the owner of a board: one producer, one consumer, bounded.
//!
//! Positions count bytes since the queue pair was made and never wrap; a place in the ring is the
//! position modulo its length.
//!
//! ```text
//!      head (consumer)                 tail (producer)
//!        v                               v
//! +------+-------------------------------+---------------+
//! | free | frame | frame | frame | frame | free          |
//! +------+-------------------------------+---------------+
//!          <------ at most RING_LEN ----->
//! ```
//! The producer stores a frame first and `tail` behind it; the consumer copies a frame out, checks
//! the copy, and stores `head` behind that. Both distrust the other's number.

use pmem::Mapping;

use super::layout::{
    self, FRAME_HEADER_LEN, FrameHeader, FrameKind, HEAD, LayoutError, RING_LEN, TAIL, frame_len,
};

/// Why a ring cannot be used any more; its queue pair is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RingError {
    /// The other side's position is not one it can have.
    #[error("ring position {other} does not go with {own}")]
    Position {
        /// Our position.
        own: u64,
        /// The other side's.
        other: u64,
    },
    /// The frame's header cannot be.
    #[error("message header: {0}")]
    Header(#[from] LayoutError),
    /// The frame is longer than what was produced.
    #[error("message of {needed} bytes where {produced} were produced")]
    Torn {
        /// Bytes of the frame.
        needed: u64,
        /// Bytes that are there.
        produced: u64,
    },
    /// The frame is not the next one of this queue pair, or its bytes do not fit its checksum.
    #[error("message is not the one that follows")]
    Foreign,
}

/// The producer's side: writes into the ring of slot `slot` of the *consumer's* board.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Producer {
    slot: usize,
    sender: u64,
    tail: u64,
    sequence: u64,
}

impl Producer {
    /// Empties the ring for a new queue pair, of which `sender` is our number.
    pub(crate) fn reset(board: &Mapping, slot: usize, sender: u64) -> Self {
        board.store(layout::slot_at(slot, TAIL), 0);
        Self { slot, sender, tail: 0, sequence: 0 }
    }

    /// Free bytes.
    ///
    /// # Errors
    /// [`RingError::Position`].
    pub(crate) fn room(&self, board: &Mapping) -> Result<u64, RingError> {
        let head = board.load(layout::slot_at(self.slot, HEAD));
        let used = self.tail.wrapping_sub(head);
        if used > RING_LEN {
            return Err(RingError::Position { own: self.tail, other: head });
        }
        Ok(RING_LEN - used)
    }

    /// Adds a message; the caller has seen that there is [`Self::room`] for its [`frame_len`].
    pub(crate) fn push(&mut self, board: &Mapping, kind: FrameKind, bytes: &[u8]) {
        let header = FrameHeader::of(bytes, kind, self.sequence, self.sender);
        assert!(header.len <= layout::MESSAGE_MAX, "messages are bounded before they get here");
        put(board, self.slot, self.tail, &header.encode());
        put(board, self.slot, self.tail + FRAME_HEADER_LEN, bytes);
        self.tail += header.frame_len();
        self.sequence += 1;
        // x86-64 keeps the order of stores, and `Mapping` stores by volatile accesses.
        board.store(layout::slot_at(self.slot, TAIL), self.tail);
    }
}

/// The consumer's side: reads the ring of slot `slot` of its *own* board.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Consumer {
    slot: usize,
    head: u64,
    sequence: u64,
}

impl Consumer {
    /// Empties the ring for a new queue pair.
    pub(crate) fn reset(board: &Mapping, slot: usize) -> Self {
        board.store(layout::slot_at(slot, HEAD), 0);
        Self { slot, head: 0, sequence: 0 }
    }

    /// Takes the next message from `sender` into `bytes`, which is cleared first.
    ///
    /// # Errors
    /// [`RingError`]; nothing in the ring can be used after it.
    pub(crate) fn pop(
        &mut self,
        board: &Mapping,
        sender: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<FrameKind>, RingError> {
        let tail = board.load(layout::slot_at(self.slot, TAIL));
        if tail == self.head {
            return Ok(None);
        }
        bytes.clear();
        let produced = tail.wrapping_sub(self.head);
        if !(FRAME_HEADER_LEN..=RING_LEN).contains(&produced) {
            return Err(RingError::Position { own: self.head, other: tail });
        }
        let mut header = [0; 32];
        take(board, self.slot, self.head, &mut header);
        let header = FrameHeader::decode(&header)?;
        let needed = frame_len(header.len);
        if needed > produced {
            return Err(RingError::Torn { needed, produced });
        }
        bytes.resize(header.len as usize, 0);
        take(board, self.slot, self.head + FRAME_HEADER_LEN, bytes);
        let follows = header.sequence == self.sequence && header.sender == sender;
        if !follows || !header.fits(bytes) {
            bytes.clear();
            return Err(RingError::Foreign);
        }
        self.head += needed;
        self.sequence += 1;
        board.store(layout::slot_at(self.slot, HEAD), self.head);
        Ok(Some(header.kind))
    }
}

/// Splits `len` bytes at `position` where the ring ends: {place, bytes before the end}.
fn split(position: u64, len: usize) -> (u64, usize) {
    let place = position % RING_LEN;
    let before_end = usize::try_from(RING_LEN - place).unwrap_or(usize::MAX);
    (place, len.min(before_end))
}

fn put(board: &Mapping, slot: usize, position: u64, bytes: &[u8]) {
    let (place, first) = split(position, bytes.len());
    let (first, rest) = bytes.split_at(first);
    board.copy_in(layout::ring_at(slot) + place, first);
    board.copy_in(layout::ring_at(slot), rest);
}

fn take(board: &Mapping, slot: usize, position: u64, into: &mut [u8]) {
    let (place, first) = split(position, into.len());
    let (first, rest) = into.split_at_mut(first);
    board.copy_out(layout::ring_at(slot) + place, first);
    board.copy_out(layout::ring_at(slot), rest);
}

#[cfg(test)]
mod tests {
    use base::Random;

    use super::*;

    const SLOT: usize = 2;
    const SENDER: u64 = 77;

    fn ring() -> (Mapping, Producer, Consumer) {
        let board = Mapping::anonymous(layout::BOARD_LEN).unwrap();
        let producer = Producer::reset(&board, SLOT, SENDER);
        let consumer = Consumer::reset(&board, SLOT);
        (board, producer, consumer)
    }

    #[test]
    fn messages_arrive_whole_and_in_order_around_the_end() {
        let (board, mut producer, mut consumer) = ring();
        let mut random = Random::new(5);
        let mut bytes = Vec::new();
        for round in 0..500_u64 {
            let len = usize::try_from(random.below(u64::from(layout::MESSAGE_MAX) + 1)).unwrap();
            let message = vec![round.to_le_bytes()[0]; len];
            producer.push(&board, FrameKind::Message, &message);
            let kind = consumer.pop(&board, SENDER, &mut bytes).unwrap();
            assert_eq!((kind, &bytes), (Some(FrameKind::Message), &message));
        }
        assert_eq!(consumer.pop(&board, SENDER, &mut bytes), Ok(None));
    }

    #[test]
    fn a_full_ring_has_no_room() {
        let (board, mut producer, _) = ring();
        let message = [7; 1000];
        let frame = frame_len(1000);
        while producer.room(&board).unwrap() >= frame {
            producer.push(&board, FrameKind::Message, &message);
        }
        assert!(producer.room(&board).unwrap() < frame);
        assert_eq!(producer.tail, RING_LEN / frame * frame);
    }

    #[test]
    fn a_message_of_another_queue_pair_is_not_delivered() {
        let (board, mut producer, mut consumer) = ring();
        producer.push(&board, FrameKind::Message, b"old");
        let popped = consumer.pop(&board, SENDER + 1, &mut Vec::new());
        assert_eq!(popped, Err(RingError::Foreign));
    }

    /// Goal: a ring with any content whatever never makes its consumer panic or deliver a message
    /// that was not sent. Method: damage the ring and its tail at random after one good message.
    #[test]
    fn damaged_rings_deliver_nothing_false() {
        let mut random = Random::new(9);
        let mut bytes = Vec::new();
        let mut refused = 0;
        let (board, ..) = ring();
        for _ in 0..20_000 {
            let mut producer = Producer::reset(&board, SLOT, SENDER);
            let mut consumer = Consumer::reset(&board, SLOT);
            producer.push(&board, FrameKind::Message, b"grant 7.1");
            let at = layout::ring_at(SLOT) + random.below(6) * 8;
            board.store(at, board.load(at) ^ (1 << random.below(64)));
            if random.one_in(3) {
                board.store(layout::slot_at(SLOT, TAIL), random.next() >> random.below(64));
            }
            match consumer.pop(&board, SENDER, &mut bytes) {
                Ok(Some(_)) => assert_eq!(bytes, b"grant 7.1", "only padding was damaged"),
                Ok(None) | Err(_) => refused += 1,
            }
        }
        assert!(refused > 15_000);
    }
}
