//! The log of a member that starts again.
//!
//! The sealed segments are walked by the reader's rule in grant order, as if each grant were just
//! being written, up to each seal. What the rule does not accept below a seal is damage for
//! certain. Whatever the lost entries were, the log that is returned is the true one up to
//! [`Damage::from`]: an entry that is lost might have cut the log it was written over, so that log
//! is given up from there on as well. What lies at or below the checkpoint is state already: nothing
//! there is ever damage, whatever its bytes say.

use base::Index;

use super::below::Below;
use super::{MemberLog, Segment, Walk};
use crate::bytes::Bytes;
use crate::entry::{HEADER_BYTES, Header};
use crate::layout::{LayoutError, RegionLayout};
use crate::place::{FIRST_OFFSET, LINE};
use crate::superblock::follows;
use crate::{Position, SegmentRecord, Superblock};
use base::{Nonce, SlotId};

/// How sure it is that entries are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DamageKind {
    /// Below a seal: certain.
    Sealed,
    /// In an open segment after an unclean stop, with nothing valid farther behind than the
    /// in-flight window: bytes that were on their way when the power went, and not damage.
    Torn,
    /// In an open segment, and not to be explained by what was in flight.
    Unknown,
}

/// Entries that a member should have and has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Damage {
    /// The first index that is missing.
    pub from: Index,
    /// How sure it is.
    pub kind: DamageKind,
    /// The slot of the segment in which it was found.
    pub slot: SlotId,
    /// Where, in bytes from the segment's start.
    pub offset: u64,
}

/// What a restart found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The log's end. Below a damage it is complete.
    pub tail: Position,
    /// What is missing, if anything.
    pub damage: Option<Damage>,
}

/// Why a superblock and a region do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The superblock's layout is not allowed.
    #[error("superblock: {0}")]
    Layout(#[from] LayoutError),
    /// The region was opened with another layout than the superblock names.
    #[error("region opened as {opened:?}, superblock says {found:?}")]
    OtherLayout {
        /// What the caller said.
        opened: RegionLayout,
        /// What the superblock says.
        found: RegionLayout,
    },
    /// The records are not in grant order or name a slot that is not there or named twice.
    #[error("segment record {at} of the superblock does not follow those before it")]
    Records {
        /// Counted from 0.
        at: u32,
    },
}

impl MemberLog {
    /// Walks the log from the superblock's checkpoint. The segments of the last grant stay open if
    /// they were: seal them before anything is granted.
    ///
    /// `clean_stop` tells that nothing was in flight when the member stopped;
    /// `in_flight_window` is how many bytes may have been otherwise.
    ///
    /// After a damage the records to be written are [`MemberLog::records`]: with the seals moved
    /// before it, so that the next start does not find it again.
    ///
    /// # Errors
    /// [`RestoreError`]. Damage in the segments is no error but part of the answer.
    pub fn restore(
        layout: RegionLayout,
        superblock: &Superblock,
        bytes: &impl Bytes,
        clean_stop: bool,
        in_flight_window: u64,
    ) -> Result<(Self, Restored), RestoreError> {
        let found = RegionLayout::new(superblock.segment_len, superblock.slot_count)?;
        if found != layout {
            return Err(RestoreError::OtherLayout { opened: layout, found });
        }
        check_records(&superblock.segments, layout)?;
        let mut log = Self::new(layout, &superblock.checkpoint);
        let mut so_far = SoFar::default();
        for grant in superblock.segments.chunk_by(|a, b| a.word == b.word) {
            so_far = log.restore_grant(grant, bytes, so_far);
        }
        let mut damage = so_far.damage;
        if let Some(disagrees) = so_far.disagrees {
            log.end_at_base(disagrees.slot);
            damage = Some(disagrees);
        }
        if damage.is_none() {
            let window = if clean_stop { 0 } else { in_flight_window };
            damage = log.judge_open_end(bytes, window);
        }
        log.keep_records(damage.is_some());
        let restored = Restored { tail: log.tail, damage };
        Ok((log, restored))
    }

    /// Walks the segments of one grant and answers the damage so far.
    fn restore_grant(
        &mut self,
        grant: &[SegmentRecord],
        bytes: &impl Bytes,
        before: SoFar,
    ) -> SoFar {
        for record in grant {
            self.join(record);
        }
        let SoFar { mut damage, mut disagrees, mut holds_base } = before;
        if self.ends_below_cut(grant, damage.is_some(), bytes) {
            self.cut_to_base();
            (damage, holds_base) = (None, false);
        }
        let mut is_own = false;
        loop {
            let walk = self.walk_to_end(bytes);
            damage = self.weigh(damage, walk.cut);
            match self.go_on_below(bytes) {
                Below::GoesOn => continue,
                Below::Cut(found) => {
                    (damage, disagrees, holds_base) = (None, Some(found), false);
                    break;
                }
                Below::Nothing => {}
            }
            if self.reaches_base() && !is_own {
                disagrees = None;
                // A writer begins where its log and this one part. If no grant before this one was
                // seen to hold the checkpoint, all that they had behind it was cut here.
                damage = damage.filter(|_| holds_base || !self.begins_below());
                holds_base |= self.stream.is_some();
            }
            let Some(found) = walk.damage.or_else(|| self.below_a_seal()) else { break };
            is_own = true;
            let from = self.give_up_from(found.from, bytes);
            damage = damage.filter(|damage| damage.from <= from).or(Some(Damage { from, ..found }));
            // What could not be compared is no part of the log any more: the next walk goes past.
            if walk.damage.is_none() {
                break;
            }
        }
        self.settle();
        SoFar { damage, disagrees, holds_base }
    }

    /// What a damage comes to when the entries of a later grant have been taken.
    fn weigh(&self, damage: Option<Damage>, cut: Option<Index>) -> Option<Damage> {
        let damage = damage?;
        // They differ from the log at an index below the damage: what is lost had been cut anyway.
        if cut.is_some_and(|cut| cut < damage.from) {
            return None;
        }
        // They begin where the damage does: they are the log now, but what is lost may have gone
        // on behind them.
        Some(Damage { from: damage.from.max(self.tail.index.next()), ..damage })
    }

    fn walk_to_end(&mut self, bytes: &impl Bytes) -> Walk {
        let mut all = Walk::default();
        while !all.at_end {
            let walk = self.walk(bytes, u64::MAX);
            all = Walk { cut: all.cut.or(walk.cut), ..walk };
        }
        all
    }

    /// The first segment of the current grant whose entries do not reach its seal.
    fn below_a_seal(&self) -> Option<Damage> {
        let segment = self.segments[self.open_from..].iter().find(|segment| {
            segment.record.seal.is_some_and(|seal| {
                // Behind a seal only when the planted fault `no_seal` looked there.
                segment.last < seal.last || segment.end < seal.end
            })
        })?;
        let next = if segment.is_begun() { segment.last.next() } else { segment.record.first };
        Some(Damage {
            from: next,
            kind: DamageKind::Sealed,
            slot: segment.record.slot,
            offset: segment.end,
        })
    }

    /// Cuts the log before `from`, or before the first entry behind the checkpoint that is missing
    /// anyway, and answers from where on it is given up.
    fn give_up_from(&mut self, from: Index, bytes: &impl Bytes) -> Index {
        let mut from = from.max(self.base.index.next()).min(self.tail.index.next());
        while from <= self.tail.index {
            // The base is known without reading: this ends.
            match self.position_at(from.previous(), bytes) {
                Some(previous) => self.cut_at(from, previous),
                None => from = from.previous(),
            }
        }
        from
    }

    /// What is sealed of the grant is closed; what is open stays so.
    fn settle(&mut self) {
        let is_open = self.segments[self.open_from..].iter().any(|s| s.record.seal.is_none());
        if !is_open {
            self.close();
        }
    }

    /// Without damage the segments stand as the superblock names them, those that had been cut as a
    /// whole included. After damage their seals move before it, and what nothing was taken from
    /// goes.
    fn keep_records(&mut self, is_damaged: bool) {
        for segment in &mut self.segments[..self.open_from] {
            if is_damaged {
                segment.record.first = segment.first;
                segment.record.seal = segment.seal();
                segment.limit = segment.end;
            } else if let Some(seal) = segment.record.seal {
                (segment.first, segment.last) = (segment.record.first, seal.last);
                segment.end = seal.end;
            }
        }
        let gone = self.segments[..self.open_from].iter().filter(|s| !s.is_begun()).count();
        let open = self.segments.split_off(self.open_from);
        self.segments.retain(Segment::is_begun);
        self.segments.extend(open);
        self.open_from -= gone;
        self.fill -= gone;
    }

    /// Looks behind the end of the open segments: is there something valid that should not be?
    fn judge_open_end(&mut self, bytes: &impl Bytes, window: u64) -> Option<Damage> {
        let filling = *self.segments.get(self.fill)?;
        let stray = self.stray_entries(bytes)?;
        let kind = if stray.farthest <= window { DamageKind::Torn } else { DamageKind::Unknown };
        let next = self.stream.map_or(stray.lowest, |stream| stream.index.next());
        let mut from = next.max(self.base.index.next()).min(self.tail.index.next());
        if kind == DamageKind::Unknown {
            from = self.give_up_from(from, bytes);
        }
        Some(Damage { from, kind, slot: filling.record.slot, offset: filling.end })
    }

    /// Headers of the current grant behind its end that are valid by themselves, with an index that
    /// the stream has not reached.
    fn stray_entries(&self, bytes: &impl Bytes) -> Option<Stray> {
        let expected = self.stream.map_or(Index(0), |stream| stream.index.next());
        let mut stray: Option<Stray> = None;
        let mut before = 0;
        for (at, segment) in self.segments.iter().enumerate().skip(self.fill) {
            let begin = if at == self.fill { segment.end } else { FIRST_OFFSET };
            let start = self.layout.slot(segment.record.slot).start;
            let mut offset = begin;
            while offset < self.layout.segment_len() {
                let distance = before + (offset - begin);
                let nonce = segment.record.nonce;
                if let Some(index) = header_index(bytes, start + offset, nonce)
                    && expected.max(self.base.index.next()) <= index
                    && expected < index
                {
                    // Every entry between takes a line at least.
                    let lowest = Index(index.0.saturating_sub(distance / LINE));
                    let lowest = stray.as_ref().map_or(lowest, |stray| stray.lowest);
                    stray = Some(Stray { lowest, farthest: distance });
                }
                offset += LINE;
            }
            before += self.layout.segment_len() - begin;
        }
        stray
    }
}

/// What restoring the grants one by one has found.
#[derive(Clone, Copy, Default)]
struct SoFar {
    /// What is missing behind the checkpoint.
    damage: Option<Damage>,
    /// A grant says something else at the checkpoint, and no later one has been seen to hold it.
    disagrees: Option<Damage>,
    /// The log of the grants so far has been read at the checkpoint, or chains from it.
    holds_base: bool,
}

struct Stray {
    /// The lowest index that the first missing entry can have.
    lowest: Index,
    /// How many bytes behind the end the last valid header stands.
    farthest: u64,
}

fn header_index(bytes: &impl Bytes, at: u64, nonce: Nonce) -> Option<Index> {
    let mut raw = [0; HEADER_BYTES];
    bytes.copy_out(at, &mut raw);
    Header::decode(&raw, nonce).map(|header| header.index)
}

fn check_records(records: &[SegmentRecord], layout: RegionLayout) -> Result<(), RestoreError> {
    for (at, record) in records.iter().enumerate() {
        let before = &records[..at];
        let is_free = before.iter().all(|other| other.slot != record.slot);
        let seal_fits = record.seal.is_none_or(|seal| {
            seal.end <= layout.segment_len() && 0 < record.first.0 && record.first <= seal.last
        });
        if record.slot.0 >= layout.slot_count()
            || !is_free
            || !seal_fits
            || !follows(before.last(), record)
        {
            return Err(RestoreError::Records { at: u32::try_from(at).unwrap_or(u32::MAX) });
        }
    }
    Ok(())
}
