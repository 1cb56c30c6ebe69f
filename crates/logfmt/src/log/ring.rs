//! Where each entry lies, in one word per entry.
//!
//! ```text
//!  63 62 61      38 37         17 16      1 0
//! +-----+----------+-------------+---------+-+
//! |  0  | length   | header line | slot    |a|   a = aligned
//! +-----+----------+-------------+---------+-+
//! ```
//! An eighth of the largest segment is below 2^24 bytes, and such a segment has 2^21 lines.

use std::collections::VecDeque;

use base::{Index, SlotId};

use crate::layout::SEGMENT_LEN_MAX;
use crate::place::{LINE, payload_max};
use crate::superblock::SEGMENTS_MAX;
use crate::{Place, Shape};

const _: () = assert!(SEGMENTS_MAX <= 1 << 16);
const _: () = assert!(SEGMENT_LEN_MAX / LINE <= 1 << 21);
const _: () = assert!(payload_max(SEGMENT_LEN_MAX) < 1 << 24);

/// An entry's place: slot, header offset in bytes from the segment's start, shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) slot: SlotId,
    pub(super) header: u64,
    pub(super) shape: Shape,
}

impl Spot {
    /// Where its parts lie.
    pub(super) fn place(&self) -> Place {
        crate::place::place(self.header, self.shape)
    }

    fn pack(self) -> u64 {
        u64::from(self.shape.aligned)
            | (u64::from(self.slot.0) << 1)
            | ((self.header / LINE) << 17)
            | (u64::from(self.shape.payload_len) << 38)
    }

    fn unpack(word: u64) -> Self {
        let narrow = |bits: u64| u32::try_from(bits).expect("masked to fewer than 32 bits");
        Self {
            slot: SlotId(narrow((word >> 1) & 0xffff)),
            header: ((word >> 17) & 0x1f_ffff) * LINE,
            shape: Shape { payload_len: narrow((word >> 38) & 0xff_ffff), aligned: word & 1 == 1 },
        }
    }
}

/// The places of the entries `first..first + len`. Grows by amortised doubling, never by claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    first: Index,
    spots: VecDeque<u64>,
}

impl Ring {
    pub(super) const fn new(first: Index) -> Self {
        Self { first, spots: VecDeque::new() }
    }

    /// The oldest index in it, or the next one if there is none.
    pub(super) const fn first(&self) -> Index {
        self.first
    }

    /// The index that the next entry gets.
    pub(super) fn next(&self) -> Index {
        Index(self.first.0 + self.spots.len() as u64)
    }

    pub(super) fn spot(&self, index: Index) -> Option<Spot> {
        let place = usize::try_from(index.0.checked_sub(self.first.0)?).ok()?;
        self.spots.get(place).copied().map(Spot::unpack)
    }

    pub(super) fn push(&mut self, spot: Spot) {
        self.spots.push_back(spot.pack());
    }

    /// Keeps the entries up to `last`.
    pub(super) fn truncate_to(&mut self, last: Index) {
        let keep = last.0.saturating_add(1).saturating_sub(self.first.0);
        self.spots.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Drops the oldest entries as long as they lie in `slot`.
    pub(super) fn drop_slot(&mut self, slot: SlotId) {
        while self.spots.front().is_some_and(|&word| Spot::unpack(word).slot == slot) {
            self.spots.pop_front();
            self.first = self.first.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_survives_its_word_at_every_limit() {
        let spot = Spot {
            slot: SlotId(SEGMENTS_MAX - 1),
            header: SEGMENT_LEN_MAX - LINE,
            shape: Shape {
                payload_len: u32::try_from(payload_max(SEGMENT_LEN_MAX)).unwrap(),
                aligned: true,
            },
        };
        assert_eq!(Spot::unpack(spot.pack()), spot);
    }
}
