//! A member's logical log: its checkpoint, its sealed segments in grant order, and the open
//! segments of the current grant.
//!
//! ```text
//!   checkpoint   sealed (grant 1)   sealed (grant 2)      open (current grant)
//!   ....... 40 | 41 42 43 44 45   | 44' 45' 46'         | 47 48 _ _ | _ _ _ _ |
//!                        \________cut by grant 2            ^    ^
//!                                                       stream  next place
//! ```
//!
//! # Invariants
//! - The log is what one reader's rule makes of the segments in grant order, from the checkpoint's
//!   digest on; walking again from the start gives the same log each time.
//! - An entry is taken only with its check under the segment's nonce, the next index, the chained
//!   digest over its payload and a term that does not fall; never from behind a seal.
//! - Entries of the current grant that equal the sealed ones change nothing. The first that
//!   differs, or lies past the sealed tail, cuts the sealed log there: from then on the end of the
//!   *stream* (the current grant's last entry) is the tail.
//! - An entry once taken is never hashed again by a walk: the stream's position is kept.
//!
//! # Below the checkpoint
//! Segments may begin below the checkpoint, where the digest of the predecessor is gone. Such
//! entries are scanned by their checks and chained among themselves; they are no part of the log.
//! The one at the checkpoint's index must have its digest, or nothing behind it in its grant is the
//! log: a later grant had cut it before it became state. A restart goes past what it cannot read
//! there (see `below.rs`).
//!
//! What is kept in memory per entry is one word: slot, place, length.

mod append;
mod below;
mod restore;
mod ring;
mod view;
mod walk;

pub use append::{AppendError, NewEntry, Placed};
pub use restore::{Damage, DamageKind, RestoreError, Restored};
pub use view::{Location, ReadError};
pub use walk::Walk;

use base::{Configuration, Index, Nonce, SlotId};

use crate::layout::RegionLayout;
use crate::place::FIRST_OFFSET;
use crate::{Boundary, Checkpoint, Position, Seal, SegmentRecord};
use ring::Ring;

/// One segment as the log knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Segment {
    record: SegmentRecord,
    /// The first entry taken from it; 0: none.
    first: Index,
    /// The last entry taken from it; 0: none.
    last: Index,
    /// Where the next entry may start. Invariant: a multiple of a line, at most `limit`.
    end: u64,
    /// What is never read past: the seal, or the segment's length.
    limit: u64,
}

impl Segment {
    fn new(record: SegmentRecord, segment_len: u64) -> Self {
        let limit = match record.seal {
            // Not a bug: the switch that proves that bytes behind a seal would be noticed.
            Some(seal) if !base::mutant!("no_seal") => seal.end,
            Some(_) | None => segment_len,
        };
        Self { record, first: Index(0), last: Index(0), end: FIRST_OFFSET, limit }
    }

    const fn is_begun(&self) -> bool {
        self.last.0 != 0
    }

    fn seal(&self) -> Option<Seal> {
        self.is_begun().then_some(Seal { last: self.last, end: self.end })
    }
}

/// A member's log. See the module for what it is and its invariants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberLog {
    layout: RegionLayout,
    base: Position,
    tail: Position,
    /// The last entry of the current grant; `None` before its first.
    stream: Option<Position>,
    ring: Ring,
    /// What stands before the ring's first entry, as long as it is known.
    before: Option<Position>,
    /// Invariant: never empty; the first is the checkpoint.
    boundaries: Vec<Boundary>,
    /// Invariant: never empty; the first is the one in force at the checkpoint.
    configurations: Vec<(Index, Configuration)>,
    /// In grant order.
    segments: Vec<Segment>,
    /// Of `segments`, the first that is not sealed.
    open_from: usize,
    /// Of `segments`, the one the writer is filling; their number when none is open.
    fill: usize,
    /// The nonce of the segment in each slot.
    nonces: Vec<Nonce>,
    /// The highest commit index that the log itself proves.
    believed: Index,
}

impl MemberLog {
    /// A log that is nothing but a checkpoint.
    #[must_use]
    pub fn new(layout: RegionLayout, checkpoint: &Checkpoint) -> Self {
        let slots = usize::try_from(layout.slot_count()).expect("a pool has at most SEGMENTS_MAX");
        let mut log = Self {
            layout,
            base: checkpoint.at,
            tail: checkpoint.at,
            stream: None,
            ring: Ring::new(checkpoint.at.index.next()),
            before: Some(checkpoint.at),
            boundaries: Vec::new(),
            configurations: Vec::new(),
            segments: Vec::new(),
            open_from: 0,
            fill: 0,
            nonces: vec![Nonce(0); slots],
            believed: checkpoint.at.index,
        };
        log.start_at(checkpoint);
        log
    }

    fn start_at(&mut self, checkpoint: &Checkpoint) {
        self.base = checkpoint.at;
        self.tail = checkpoint.at;
        self.stream = None;
        self.ring = Ring::new(checkpoint.at.index.next());
        self.before = Some(checkpoint.at);
        self.boundaries.clear();
        self.boundaries.push(Boundary { term: checkpoint.at.term, first: checkpoint.at.index });
        self.configurations.clear();
        let configuration = checkpoint.configuration.clone();
        self.configurations.push((checkpoint.configuration_index, configuration));
        self.believed = self.believed.max(checkpoint.at.index);
    }

    /// A freshly granted segment joins. Ordinal 0 starts a grant, which needs every segment before
    /// it sealed; further ordinals follow one by one.
    ///
    /// # Panics
    /// When the record does not follow the segments that are there, or its slot is taken.
    pub fn open(&mut self, record: &SegmentRecord) {
        base::check!(record.seal.is_none(), "a sealed segment is not granted");
        if record.ordinal == 0 {
            base::check!(self.open_from == self.segments.len(), "seal before the next grant");
        } else {
            base::check!(self.open_from < self.segments.len(), "ordinal 0 starts a grant");
        }
        self.join(record);
    }

    /// As [`Self::open`], for records that come from a superblock and may start or end anywhere.
    fn join(&mut self, record: &SegmentRecord) {
        let last = self.segments.last();
        base::check!(!self.holds(record.slot), "one writer per segment, ever");
        if let Some(last) = last.filter(|last| last.record.word == record.word) {
            base::check!(last.record.ordinal + 1 == record.ordinal);
            base::check!(last.record.nonce == record.nonce);
        }
        let mut segment = Segment::new(*record, self.layout.segment_len());
        if let Some(seal) = record.seal.filter(|seal| seal.last <= self.base.index) {
            // All of it is state already: nothing to read.
            (segment.first, segment.last, segment.end) = (record.first, seal.last, seal.end);
        }
        self.nonces[slot_place(record.slot)] = record.nonce;
        self.segments.push(segment);
    }

    fn holds(&self, slot: SlotId) -> bool {
        self.segments.iter().any(|segment| segment.record.slot == slot)
    }

    /// Seals every open segment: `(slot, first index, seal)` of each in ordinal order, with no seal
    /// for an empty one, which is dropped. Walk to the end first: what was not walked is lost.
    pub fn seal(&mut self) -> Vec<(SlotId, Index, Option<Seal>)> {
        let mut sealed = Vec::with_capacity(self.segments.len() - self.open_from);
        for segment in &mut self.segments[self.open_from..] {
            let seal = segment.seal();
            sealed.push((segment.record.slot, segment.first, seal));
            if let Some(seal) = seal {
                segment.record.first = segment.first;
                segment.record.seal = Some(seal);
                segment.limit = seal.end;
            }
        }
        self.segments.retain(|segment| segment.record.seal.is_some());
        self.close();
        sealed
    }

    /// From here on nothing is open.
    fn close(&mut self) {
        self.open_from = self.segments.len();
        self.fill = self.open_from;
        self.stream = None;
    }

    /// Forgets everything and starts at a checkpoint that was installed. Open segments stay: their
    /// next entry chains from the checkpoint. The sealed ones leave and are returned: the
    /// superblock that names the checkpoint must not name them any more, or the next start would
    /// walk a log that is not this one.
    pub fn install(&mut self, checkpoint: &Checkpoint) -> Vec<SlotId> {
        let dropped = self.segments[..self.open_from].iter().map(|segment| segment.record.slot);
        let dropped: Vec<SlotId> = dropped.collect();
        self.segments.drain(..self.open_from);
        self.fill -= self.open_from;
        self.open_from = 0;
        self.start_at(checkpoint);
        dropped
    }

    /// The log starts later: its entries up to `checkpoint` have become state. They can still be
    /// read until their segments are trimmed.
    ///
    /// # Panics
    /// When the checkpoint is not a position of this log at or above the current one.
    pub fn checkpoint_moved(&mut self, checkpoint: &Checkpoint) {
        let at = checkpoint.at;
        base::check!(self.base.index <= at.index && at.index <= self.tail.index);
        base::check!(self.term_at(at.index) == Some(at.term), "not a position of this log");
        self.base = at;
        let kept = self.boundaries.partition_point(|boundary| boundary.first <= at.index);
        self.boundaries.drain(..kept);
        self.boundaries.insert(0, Boundary { term: at.term, first: at.index });
        let kept = self.configurations.partition_point(|(index, _)| *index <= at.index);
        self.configurations.drain(..kept);
        let founding = (checkpoint.configuration_index, checkpoint.configuration.clone());
        self.configurations.insert(0, founding);
        self.believed = self.believed.max(at.index);
    }

    /// A segment leaves. It is the oldest, no writer fills it any more, and all its entries are at
    /// or below the checkpoint.
    ///
    /// # Panics
    /// When it is not so.
    pub fn trim(&mut self, slot: SlotId) {
        base::check!(self.trimmable() == Some(slot), "only the oldest, below the checkpoint");
        self.segments.remove(0);
        self.open_from = self.open_from.saturating_sub(1);
        self.fill -= 1;
        self.ring.drop_slot(slot);
        let before = self.ring.first().previous();
        let base = Some(self.base).filter(|base| base.index == before);
        self.before = base.or_else(|| self.before.filter(|known| known.index == before));
    }

    /// The segment that may be trimmed next.
    #[must_use]
    pub fn trimmable(&self) -> Option<SlotId> {
        let oldest = self.segments.first().filter(|oldest| oldest.last <= self.base.index)?;
        (0 < self.fill).then_some(oldest.record.slot)
    }

    /// Takes the entries from `index` on away; `previous` is the position before it.
    fn cut_at(&mut self, index: Index, previous: Position) {
        base::check!(self.base.index < index && previous.index.next() == index);
        self.ring.truncate_to(previous.index);
        while self.boundaries.len() > 1 && self.boundaries.last().is_some_and(|b| index <= b.first)
        {
            self.boundaries.pop();
        }
        while self.configurations.len() > 1
            && self.configurations.last().is_some_and(|(at, _)| index <= *at)
        {
            self.configurations.pop();
        }
        self.tail = previous;
    }
}

fn slot_place(slot: SlotId) -> usize {
    usize::try_from(slot.0).expect("a slot is below SEGMENTS_MAX")
}
