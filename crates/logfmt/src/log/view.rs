//! Reading the log.

use base::{Configuration, Index, Nonce, SlotId, Term};

use super::MemberLog;
use crate::bytes::Bytes;
use crate::entry::Header;
use crate::extent::Extent;
use crate::layout::RegionLayout;
use crate::{Boundary, Position, SegmentRecord, Shape};

/// Where an entry lies, in bytes from its segment's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The segment's slot.
    pub slot: SlotId,
    /// Where its header starts.
    pub header: u64,
    /// Where its payload starts.
    pub payload: u64,
    /// Where the next entry may start.
    pub end: u64,
    /// Length and alignment.
    pub shape: Shape,
}

/// Why an entry could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is below the oldest or above the tail.
    #[error("entry {0} is not in this log")]
    NotHere(Index),
    /// Its bytes, or the digest before them, are not those that were accepted: the medium lost
    /// them.
    #[error(
        "entry {index} in segment slot {slot} at byte {offset} is damaged: repair it from a peer"
    )]
    Damaged {
        /// The entry.
        index: Index,
        /// Its segment's slot.
        slot: SlotId,
        /// Where its header starts, in bytes from the segment's start.
        offset: u64,
    },
}

impl MemberLog {
    /// The region's layout.
    #[must_use]
    pub const fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// The checkpoint's position.
    #[must_use]
    pub const fn checkpoint(&self) -> Position {
        self.base
    }

    /// The last entry.
    #[must_use]
    pub const fn tail(&self) -> Position {
        self.tail
    }

    /// The last entry of the current grant, if it has one.
    #[must_use]
    pub const fn stream(&self) -> Option<Position> {
        self.stream
    }

    /// The oldest index that can still be read; above the tail when none can. It may lie at or
    /// below the checkpoint, until the segment is trimmed. An entry whose predecessor was trimmed
    /// does not count: nothing certifies its payload any more.
    #[must_use]
    pub const fn first_index(&self) -> Index {
        if self.before.is_some() { self.ring.first() } else { self.ring.first().next() }
    }

    /// The highest commit index that the log itself proves.
    #[must_use]
    pub const fn believed_commit(&self) -> Index {
        self.believed
    }

    /// The position at `index`: from memory for checkpoint and tail, otherwise read again. `None`
    /// when it is not in the log or cannot be read any more.
    #[must_use]
    pub fn position_at(&self, index: Index, bytes: &impl Bytes) -> Option<Position> {
        if index == self.tail.index {
            return Some(self.tail);
        }
        if index == self.base.index {
            return Some(self.base);
        }
        if let Some(before) = self.before.filter(|before| before.index == index) {
            return Some(before);
        }
        self.header_at(index, bytes).map(|header| header.position())
    }

    /// The term at an index from the checkpoint to the tail.
    #[must_use]
    pub fn term_at(&self, index: Index) -> Option<Term> {
        if self.tail.index < index {
            return None;
        }
        let newest = self.boundaries.last().filter(|newest| newest.first <= index);
        if let Some(newest) = newest {
            return Some(newest.term);
        }
        let after = self.boundaries.partition_point(|boundary| boundary.first <= index);
        self.boundaries.get(after.checked_sub(1)?).map(|boundary| boundary.term)
    }

    /// The first index of every term, from the checkpoint on, which is the first of them.
    #[must_use]
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// The shape of an entry that can be read.
    #[must_use]
    pub fn shape_at(&self, index: Index) -> Option<Shape> {
        self.ring.spot(index).map(|spot| spot.shape)
    }

    /// Where an entry that can be read lies.
    #[must_use]
    pub fn location(&self, index: Index) -> Option<Location> {
        let spot = self.ring.spot(index)?;
        let place = spot.place();
        Some(Location {
            slot: spot.slot,
            header: place.header,
            payload: place.payload,
            end: place.end,
            shape: spot.shape,
        })
    }

    /// The nonce of the segment in a slot of this log.
    #[must_use]
    pub fn nonce_of(&self, slot: SlotId) -> Nonce {
        self.nonces[super::slot_place(slot)]
    }

    /// The header of an entry that can be read, verified by its check.
    #[must_use]
    pub fn header_of(&self, index: Index, bytes: &impl Bytes) -> Option<Header> {
        self.header_at(index, bytes)
    }

    /// The last configuration in the log, committed or not, and its index.
    #[must_use]
    pub fn configuration(&self) -> (Index, &Configuration) {
        let (index, configuration) =
            self.configurations.last().expect("the first is the checkpoint's");
        (*index, configuration)
    }

    /// The configuration in force at an index from the checkpoint on: the last one at or before it.
    #[must_use]
    pub fn configuration_at(&self, index: Index) -> Option<(Index, &Configuration)> {
        if index < self.base.index || self.tail.index < index {
            return None;
        }
        let after = self.configurations.partition_point(|(at, _)| *at <= index);
        let (at, configuration) = self.configurations.get(after.checked_sub(1)?)?;
        Some((*at, configuration))
    }

    /// Copies the payload of an entry into `into`, which is cleared first, and verifies header and
    /// digest over the copy.
    ///
    /// # Errors
    /// [`ReadError`]; what then stands in `into` is not to be used.
    pub fn read_payload(
        &self,
        index: Index,
        bytes: &impl Bytes,
        into: &mut Vec<u8>,
    ) -> Result<Header, ReadError> {
        if index < self.first_index() {
            return Err(ReadError::NotHere(index));
        }
        let at = self.location(index).ok_or(ReadError::NotHere(index))?;
        let damaged = ReadError::Damaged { index, slot: at.slot, offset: at.header };
        let header = self.header_at(index, bytes).ok_or(damaged)?;
        let len = usize::try_from(at.shape.payload_len).expect("bounded by payload_max");
        into.clear();
        into.resize(len, 0);
        bytes.copy_out(self.layout.slot(at.slot).start + at.payload, into);
        let previous = self.position_at(index.previous(), bytes).ok_or(damaged)?;
        if header.digest_over(previous.digest, into) != header.digest {
            return Err(damaged);
        }
        Ok(header)
    }

    /// How many open segments nobody has begun to fill.
    #[must_use]
    pub fn unopened(&self) -> usize {
        // They are filled in order: those behind the one being filled.
        let filling = self.segments.get(self.fill);
        let begun = filling.is_some_and(super::Segment::is_begun);
        self.segments.len() - self.fill - usize::from(begun)
    }

    /// The segments in grant order, as a superblock names them. An open segment whose writer has
    /// begun the next one stands with its end: nothing will be written to it any more.
    pub fn records(&self) -> impl Iterator<Item = SegmentRecord> + '_ {
        self.segments.iter().enumerate().map(|(at, segment)| {
            let seal = if at < self.fill { segment.seal() } else { segment.record.seal };
            SegmentRecord { first: segment.first, seal, ..segment.record }
        })
    }

    /// Which byte ranges hold the log from `from` on, oldest first; at most one per segment.
    #[must_use]
    pub fn extents(&self, from: Index) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut index = from.max(self.first_index());
        while let Some(at) = self.location(index) {
            match extents.last_mut() {
                Some(extent) if extent.slot == at.slot => {
                    extent.last = index;
                    extent.end = at.end;
                }
                Some(_) | None => extents.push(Extent {
                    slot: at.slot,
                    nonce: self.nonces[super::slot_place(at.slot)],
                    first: index,
                    last: index,
                    start: at.header,
                    end: at.end,
                }),
            }
            index = index.next();
        }
        extents
    }

    /// Checks everything that must hold between the parts of this value. O(entries).
    ///
    /// # Panics
    /// When something does not hold.
    pub fn assert_invariants(&self) {
        assert_eq!(self.ring.next(), self.tail.index.next(), "the ring ends at the tail");
        assert!(self.ring.first() <= self.base.index.next());
        assert!(self.base.index <= self.tail.index && self.base.term <= self.tail.term);
        let checkpoint = Boundary { term: self.base.term, first: self.base.index };
        assert_eq!(self.boundaries.first(), Some(&checkpoint));
        assert_eq!(self.boundaries.last().map(|boundary| boundary.term), Some(self.tail.term));
        assert!(self.boundaries.is_sorted_by(|a, b| a.term < b.term && a.first < b.first));
        assert!(self.boundaries.iter().all(|boundary| boundary.first <= self.tail.index));
        assert!(self.configurations.is_sorted_by(|a, b| a.0 < b.0));
        assert!(self.configurations.last().is_some_and(|(at, _)| *at <= self.tail.index));
        assert!(self.open_from <= self.segments.len() && self.open_from <= self.fill);
        assert!(self.fill <= self.segments.len());
        for (at, segment) in self.segments.iter().enumerate() {
            assert_eq!(segment.is_begun(), segment.first.0 != 0);
            assert!(segment.first <= segment.last && segment.end <= segment.limit);
            assert!(segment.is_begun() || self.fill <= at, "segments are filled in order");
        }
        self.assert_ring_order();
    }

    /// Entries lie in grant order, one behind the other, within what their segments hold.
    fn assert_ring_order(&self) {
        let mut at = 0;
        let mut end = 0;
        let mut index = self.ring.first();
        while let Some(location) = self.location(index) {
            while self.segments[at].record.slot != location.slot {
                at += 1;
                end = 0;
            }
            assert!(end <= location.header && location.end <= self.segments[at].end);
            assert!(self.segments[at].first <= index && index <= self.segments[at].last);
            end = location.end;
            index = index.next();
        }
    }
}
