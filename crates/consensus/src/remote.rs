//! Where in a follower's granted segments the next entry goes.

use base::{Index, mutant};
use logfmt::{
    Shape,
    place::{FIRST_OFFSET, payload_max, place},
};

use crate::{effect::Run, message::Room, view::LogView, wire};

/// The leader's cursor in the segments of one grant.
///
/// Invariants: `rooms` are ascending and consecutive ordinals, the first is the one being filled;
/// `offset` is where the previous entry in it ended. It lives and dies with one grant: a leader
/// forgets it when the word it belongs to is no longer the member's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Remote {
    rooms: Vec<Room>,
    offset: u64,
    /// An entry has been laid out.
    has_begun: bool,
}

/// What fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) run: Run,
    pub(crate) bytes: u64,
}

/// Why there is no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBatch {
    /// The member has granted no segment for it yet: it lags, it is not dead.
    NoRoom,
    /// The leader's log no longer has the entry.
    Trimmed,
}

impl Remote {
    pub(crate) fn new(rooms: Vec<Room>) -> Self {
        Self { rooms, offset: FIRST_OFFSET, has_begun: false }
    }

    /// More segments of the same grant. Those already known, or out of sequence, are ignored.
    pub(crate) fn add(&mut self, rooms: &[Room], next_ordinal: &mut u32) {
        for room in rooms {
            if room.ordinal == *next_ordinal && self.rooms.len() < wire::ROOMS_MAX {
                *next_ordinal += 1;
                self.rooms.push(*room);
            }
        }
    }

    /// The key of the segment being filled, once it holds an entry of this grant.
    pub(crate) fn key(&self) -> Option<u64> {
        let tells = self.has_begun || mutant!("commit_word_clamped_to_own_tail");
        self.rooms.first().filter(|_| tells).map(|room| room.key)
    }

    pub(crate) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Lays out entries from `next` to at most `tail`, at most `bytes_max` of them (but one in any
    /// case) and all in one segment, and moves the cursor behind them.
    pub(crate) fn fit<L: LogView>(
        &mut self,
        log: &L,
        next: Index,
        tail: Index,
        bytes_max: u64,
    ) -> Result<Batch, NoBatch> {
        let mut shape = log.shape_at(next).ok_or(NoBatch::Trimmed)?;
        let mut room = *self.rooms.first().ok_or(NoBatch::NoRoom)?;
        // Its reader would refuse it. (Members of one group have one layout.)
        let max = payload_max(room.len);
        let is_too_large = |shape: Shape| u64::from(shape.payload_len) > max;
        if is_too_large(shape) {
            return Err(NoBatch::NoRoom);
        }
        if place(self.offset, shape).end > room.len {
            // The segment is full. The next one takes whatever is not too large for any.
            room = *self.rooms.get(1).ok_or(NoBatch::NoRoom)?;
            self.rooms.remove(0);
            self.offset = FIRST_OFFSET;
        }
        let offset = self.offset;
        let mut last = next;
        self.offset = place(offset, shape).end;
        while last < tail {
            shape = log.shape_at(last.next()).ok_or(NoBatch::Trimmed)?;
            let end = place(self.offset, shape).end;
            if end > room.len || end - offset > bytes_max || is_too_large(shape) {
                break;
            }
            self.offset = end;
            last = last.next();
        }
        self.has_begun = true;
        let run = Run { key: room.key, offset, first: next, last };
        Ok(Batch { run, bytes: self.offset - offset })
    }
}
