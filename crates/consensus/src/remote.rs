//! Where in a follower's granted segments the next entry goes.

use base::{Index, mutant};
use logfmt::place::{FIRST_OFFSET, payload_max, place};

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
    pub(crate) runs: [Option<Run>; 2],
    pub(crate) last: Index,
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
    /// case) and at most two runs, and moves the cursor behind them.
    pub(crate) fn fit<L: LogView>(
        &mut self,
        log: &L,
        next: Index,
        tail: Index,
        bytes_max: u64,
    ) -> Result<Batch, NoBatch> {
        let mut batch = Batch { runs: [None, None], last: next.previous(), bytes: 0 };
        let mut part = 0;
        let mut index = next;
        while index <= tail {
            let shape = log.shape_at(index).ok_or(NoBatch::Trimmed)?;
            let Some(room) = self.rooms.first().copied() else { break };
            let placed = place(self.offset, shape);
            if u64::from(shape.payload_len) > payload_max(room.len) {
                // Its reader would refuse it. (Members of one group have one layout.)
                break;
            }
            if placed.end > room.len {
                if batch.runs[part].is_some() {
                    part += 1;
                }
                if part == 2 || self.rooms.len() == 1 {
                    break;
                }
                self.rooms.remove(0);
                self.offset = FIRST_OFFSET;
                continue;
            }
            let size = placed.end - self.offset;
            if batch.bytes > 0 && batch.bytes + size > bytes_max {
                break;
            }
            let run = batch.runs[part].get_or_insert(Run {
                key: room.key,
                offset: self.offset,
                first: index,
                last: index,
            });
            run.last = index;
            self.has_begun = true;
            self.offset = placed.end;
            batch.bytes += size;
            batch.last = index;
            index = index.next();
        }
        if batch.last < next { Err(NoBatch::NoRoom) } else { Ok(batch) }
    }
}
