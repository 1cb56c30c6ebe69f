//! What a restart makes of entries at or below the checkpoint. They are state, so that they matter
//! only for two questions: where the first entry behind the checkpoint lies, and whether what an
//! earlier grant holds behind the checkpoint was still the log when it became state.
//!
//! ```text
//!   A (term 1)   41 42 43 44 45 46 47 48 49 50 |             49 and 50 look like the log,
//!   B (term 2)               45'46'47'48'49'.. 60'           but 48 is not the checkpoint
//!                                      ^ checkpoint
//! ```
//!
//! The checkpoint's digest certifies the whole log before it. So a grant that holds the checkpoint's
//! index holds either the log up to there, or something that a later grant has cut, together with
//! all behind it. A grant that ends before the checkpoint is asked for its last entry in the same
//! way. When a header that would tell is lost, entries that certify themselves are kept: that a
//! member has once more what it had before is harmless, that it forgets is not.

use base::{Index, SlotId};

use super::walk::{Found, Previous, Step, verify};
use super::{Damage, DamageKind, MemberLog, Segment};
use crate::bytes::Bytes;
use crate::entry::{HEADER_BYTES, Header};
use crate::place::{FIRST_OFFSET, HEADER_LEN, LINE, payload_max, place};
use crate::{Place, SegmentRecord};

/// What was found of a grant whose walk ended at or below the checkpoint.
pub(super) enum Below {
    /// There is nothing to go past: its end is judged as any other.
    Nothing,
    /// The walk may go on: what could not be read is passed.
    GoesOn,
    /// What it holds behind the checkpoint had been cut, if a later grant holds the checkpoint; it has
    /// been passed as a whole. If none does, this is what to report.
    Cut(Damage),
}

impl MemberLog {
    /// Whether a sealed grant that ends at or below the checkpoint had cut the log there, so that
    /// nothing of the grants before it stands behind the checkpoint. `has_lost` says that something
    /// of them is missing.
    pub(super) fn ends_below_cut(
        &self,
        grant: &[SegmentRecord],
        has_lost: bool,
        bytes: &impl Bytes,
    ) -> bool {
        let has_more = has_lost || self.base.index < self.tail.index;
        let Some((record, seal)) = grant.last().and_then(|last| Some((last, last.seal?))) else {
            return false;
        };
        if !has_more || self.base.index < seal.last {
            return false;
        }
        let Some(last) = self.find_below(record, seal.last, bytes) else { return false };
        if seal.last == self.base.index {
            return last.position() != self.base;
        }
        if self.base.term < last.term {
            return true;
        }
        // The newest of the earlier grants that has the index has the log's entry.
        let earlier = &self.segments[..self.open_from];
        let holder = earlier
            .iter()
            .rev()
            .find(|segment| segment.record.first <= seal.last && seal.last <= segment.last);
        let before = holder.and_then(|holder| self.find_below(&holder.record, seal.last, bytes));
        before.is_some_and(|before| before.position() != last.position())
    }

    /// Nothing behind the checkpoint is the log.
    pub(super) fn cut_to_base(&mut self) {
        if self.base.index < self.tail.index {
            self.cut_at(self.base.index.next(), self.base);
        }
    }

    /// The current grant's walk has ended: goes past what is unreadable at or below the checkpoint.
    pub(super) fn go_on_below(&mut self, bytes: &impl Bytes) -> Below {
        if !self.is_below() {
            return Below::Nothing;
        }
        let Some((segment, place, header)) = self.next_below(bytes) else {
            return if self.is_older_than_base() { self.pass_grant() } else { Below::Nothing };
        };
        if header.index == self.base.index && header.position() != self.base {
            let is_sealed = self.segments[segment].record.seal.is_some();
            return if is_sealed { self.pass_grant() } else { Below::Nothing };
        }
        let Some(found) = self.accept_below(segment, place, header, bytes) else {
            return Below::Nothing;
        };
        self.skip_to(segment, header.index);
        let first = self.segments[segment].record.first;
        match self.take(bytes, &found) {
            Step::Taken { .. } => {}
            Step::End | Step::Unreadable(_) => return Below::Nothing,
        }
        if first.0 != 0 {
            let segment = &mut self.segments[segment];
            segment.first = segment.first.min(first);
        }
        Below::GoesOn
    }

    /// Whether the walk of the current grant ended before the checkpoint's index, although its
    /// entries may reach past it.
    fn is_below(&self) -> bool {
        let Some(filling) = self.segments.get(self.fill) else { return false };
        let unread = self.segments[self.open_from..].iter().find(|segment| !segment.is_done());
        let Some(unread) = unread else { return false };
        match self.stream {
            Some(stream) => stream.index < self.base.index,
            None if filling.is_begun() => true,
            None => unread.record.first <= self.base.index,
        }
    }

    /// Terms never fall along a log: a grant of a term before the checkpoint's holds nothing
    /// behind it.
    fn is_older_than_base(&self) -> bool {
        self.segments[self.open_from..].iter().all(|segment| {
            segment.record.seal.is_some() && segment.record.word.term() < self.base.term
        })
    }

    /// The next valid header of the current grant that stands at or just behind the checkpoint's
    /// index or before it, with an index that its stream has not reached.
    fn next_below(&self, bytes: &impl Bytes) -> Option<(usize, Place, Header)> {
        let reached = self.stream.map_or(Index(0), |stream| stream.index);
        for (at, segment) in self.segments.iter().enumerate().skip(self.fill) {
            let mut offset = segment.end;
            while let Some((place, header)) = self.next_header(segment, offset, bytes) {
                let is_certified = header.index <= self.base.index
                    || self.verified_behind_base(segment, place, &header, bytes);
                if reached < header.index && segment.record.first <= header.index && is_certified {
                    return Some((at, place, header));
                }
                offset = place.header + LINE;
            }
        }
        None
    }

    fn verified_behind_base(
        &self,
        segment: &Segment,
        place: Place,
        header: &Header,
        bytes: &impl Bytes,
    ) -> bool {
        let start = self.layout.slot(segment.record.slot).start;
        header.index == self.base.index.next()
            && self.base.term <= header.term
            && verify(bytes, start + place.payload, header, self.base.digest).is_some()
    }

    fn accept_below(
        &self,
        segment: usize,
        place: Place,
        header: Header,
        bytes: &impl Bytes,
    ) -> Option<Found> {
        if header.index <= self.base.index {
            let previous = Previous::Below;
            return Some(Found { segment, header, place, configuration: None, previous });
        }
        let start = self.layout.slot(self.segments[segment].record.slot).start;
        let configuration = verify(bytes, start + place.payload, &header, self.base.digest)?;
        Some(Self::found(segment, header, place, self.base, configuration.map(Box::new)))
    }

    /// The segments of the grant before `segment` that nothing was taken from are passed: all that
    /// was in them lies below `index`.
    fn skip_to(&mut self, segment: usize, index: Index) {
        for passed in &mut self.segments[self.fill..segment] {
            if !passed.is_begun() {
                (passed.first, passed.last) = (index.previous(), index.previous());
            }
        }
    }

    /// The current grant stays as its records say, with nothing behind the checkpoint.
    fn pass_grant(&mut self) -> Below {
        self.cut_to_base();
        let filling = &self.segments[self.fill];
        let disagrees = Damage {
            from: self.base.index.next(),
            kind: DamageKind::Sealed,
            slot: filling.record.slot,
            offset: filling.end,
        };
        for segment in &mut self.segments[self.open_from..] {
            let record = segment.record;
            if let Some(seal) = record.seal {
                (segment.first, segment.last, segment.end) = (record.first, seal.last, seal.end);
            }
        }
        self.stream = None;
        Below::Cut(disagrees)
    }

    /// Whether the current grant reaches the checkpoint's index.
    pub(super) fn reaches_base(&self) -> bool {
        self.segments[self.open_from..].iter().any(|segment| self.base.index <= segment.last)
    }

    /// Whether the current grant begins at or below the checkpoint.
    pub(super) fn begins_below(&self) -> bool {
        let first = self.segments[self.open_from..].iter().find(|segment| segment.is_begun());
        first.is_some_and(|first| first.first <= self.base.index)
    }

    /// Nothing that came later holds the checkpoint: the grant of the segment in `slot` ends at the
    /// checkpoint from now on.
    pub(super) fn end_at_base(&mut self, slot: SlotId) {
        let word = self.segments.iter().find(|s| s.record.slot == slot).map(|s| s.record.word);
        let base = self.base.index;
        let grant = self.segments.iter_mut().filter(|s| Some(s.record.word) == word);
        for segment in grant.filter(|segment| base < segment.last) {
            (segment.first, segment.last) = (segment.first.min(base), base);
            segment.record.first = segment.first;
            segment.record.seal = segment.seal();
        }
    }

    /// The header with this index in a segment.
    fn find_below(
        &self,
        record: &SegmentRecord,
        index: Index,
        bytes: &impl Bytes,
    ) -> Option<Header> {
        let segment = Segment::new(*record, self.layout.segment_len());
        let mut offset = FIRST_OFFSET;
        while let Some((place, header)) = self.next_header(&segment, offset, bytes) {
            if header.index == index {
                return Some(header);
            }
            offset = place.header + LINE;
        }
        None
    }

    /// The first valid header at or behind `offset`, on any line.
    fn next_header(
        &self,
        segment: &Segment,
        offset: u64,
        bytes: &impl Bytes,
    ) -> Option<(Place, Header)> {
        let start = self.layout.slot(segment.record.slot).start;
        let mut at = offset;
        while at + HEADER_LEN <= segment.limit {
            let mut raw = [0; HEADER_BYTES];
            bytes.copy_out(start + at, &mut raw);
            if let Some(header) = Header::decode(&raw, segment.record.nonce)
                && u64::from(header.payload_len) <= payload_max(self.layout.segment_len())
            {
                let placed = place(at, header.shape());
                if placed.header == at && placed.end <= segment.limit {
                    return Some((placed, header));
                }
            }
            at += LINE;
        }
        None
    }
}

impl Segment {
    /// Whether all that its seal covers was taken.
    fn is_done(&self) -> bool {
        self.record.seal.is_some_and(|seal| seal.last <= self.last && seal.end <= self.end)
    }
}
