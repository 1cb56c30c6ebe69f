//! The reader's rule: from a known-good entry to the next.

use base::{Configuration, Digest, Index};

use super::ring::Spot;
use super::{Damage, DamageKind, MemberLog, slot_place};
use crate::bytes::Bytes;
use crate::configuration::{CONFIGURATION_LEN_MAX, decode_configuration};
use crate::entry::{HEADER_BYTES, Header};
use crate::idle::{IDLE_LEN, decode_idle};
use crate::place::{FIRST_OFFSET, HEADER_LEN, aligned_header, payload_max, place};
use crate::{Boundary, Kind, Place, Position};

/// Payloads up to this many bytes are hashed in one go, from the stack.
const SMALL: usize = 256;
/// Longer ones in pieces of this many bytes: a page keeps the stack small and the copy efficient.
const CHUNK: usize = 4096;

/// What a walk found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Entries taken, those that equal sealed ones included.
    pub accepted: u32,
    /// The highest commit index that the log proves: entries and idle line, each believed only as
    /// far as it may be.
    pub believed_commit: Index,
    /// Whether there was nothing more to take; otherwise the budget ran out.
    pub at_end: bool,
    /// The sealed log was shortened from this index on.
    pub cut: Option<Index>,
    /// A sealed entry that the rule had to compare could not be read any more; the walk ends at it.
    pub damage: Option<Damage>,
}

pub(super) enum Step {
    Taken { cost: u64, cut: Option<Index> },
    End,
    Unreadable(Damage),
}

/// What the digest of an entry is chained to.
#[derive(Clone, Copy)]
pub(super) enum Previous {
    Known(Position),
    /// Below the checkpoint: the digest is gone, and the entry is no part of the log.
    Below,
}

/// An entry that satisfies the rule, and where.
pub(super) struct Found {
    pub(super) segment: usize,
    pub(super) header: Header,
    pub(super) place: Place,
    pub(super) configuration: Option<Box<Configuration>>,
    pub(super) previous: Previous,
}

impl MemberLog {
    /// Takes the entries that the writer has placed since the last walk, until there is none or
    /// about `budget_bytes` were read (at least one entry is always tried).
    pub fn walk(&mut self, bytes: &impl Bytes, budget_bytes: u64) -> Walk {
        let mut walk = Walk::default();
        let mut spent = 0;
        loop {
            match self.step(bytes) {
                Step::Taken { cost, cut } => {
                    walk.accepted = walk.accepted.saturating_add(1);
                    walk.cut = walk.cut.or(cut);
                    spent += cost;
                }
                Step::End => walk.at_end = true,
                Step::Unreadable(damage) => {
                    walk.damage = Some(damage);
                    walk.at_end = true;
                }
            }
            if walk.at_end || budget_bytes <= spent || walk.accepted == u32::MAX {
                break;
            }
        }
        self.believe_idle_line(bytes);
        walk.believed_commit = self.believed;
        walk
    }

    fn step(&mut self, bytes: &impl Bytes) -> Step {
        self.next_found(bytes).map_or(Step::End, |found| self.take(bytes, &found))
    }

    /// The next entry: behind the last one, or at the start of the next ordinal, which is begun
    /// only after the one before it.
    fn next_found(&self, bytes: &impl Bytes) -> Option<Found> {
        let filling = self.segments.get(self.fill)?;
        let behind = self.candidate(bytes, self.fill, filling.end);
        if behind.is_some() || !filling.is_begun() {
            return behind;
        }
        let mut next = self.fill + 1;
        while let Some(segment) = self.segments.get(next) {
            if !segment.is_begun() {
                return self.candidate(bytes, next, FIRST_OFFSET);
            }
            // Below the checkpoint as a whole: it was not read.
            next += 1;
        }
        None
    }

    /// Both places where a header may stand behind `offset`: the next line, and the last line
    /// before a block, which only an aligned entry uses.
    fn candidate(&self, bytes: &impl Bytes, segment: usize, offset: u64) -> Option<Found> {
        let aligned = aligned_header(offset);
        self.candidate_at(bytes, segment, offset, offset).or_else(|| {
            (aligned != offset).then(|| self.candidate_at(bytes, segment, offset, aligned))?
        })
    }

    fn candidate_at(
        &self,
        bytes: &impl Bytes,
        segment: usize,
        offset: u64,
        header_at: u64,
    ) -> Option<Found> {
        let limit = self.segments[segment].limit;
        if limit < header_at + HEADER_LEN {
            return None;
        }
        let record = self.segments[segment].record;
        let start = self.layout.slot(record.slot).start;
        let mut raw = [0; HEADER_BYTES];
        bytes.copy_out(start + header_at, &mut raw);
        let header = Header::decode(&raw, record.nonce)?;
        if payload_max(self.layout.segment_len()) < u64::from(header.payload_len) {
            return None;
        }
        let place = place(offset, header.shape());
        if place.header != header_at || limit < place.end {
            return None;
        }
        let previous = self.previous_of(bytes, header.index)?;
        let mut configuration = None;
        if let Previous::Known(position) = previous {
            if header.term < position.term {
                return None;
            }
            configuration =
                verify(bytes, start + place.payload, &header, position.digest)?.map(Box::new);
        }
        if header.index == self.base.index && header.digest != self.base.digest {
            return None;
        }
        Some(Found { segment, header, place, configuration, previous })
    }

    /// What an entry of this index would have to chain to, if it may come next.
    fn previous_of(&self, bytes: &impl Bytes, index: Index) -> Option<Previous> {
        let Some(stream) = self.stream else {
            if index.0 == 0 {
                return None;
            }
            if index <= self.base.index {
                return Some(Previous::Below);
            }
            return self.position_at(index.previous(), bytes).map(Previous::Known);
        };
        if stream.index.next() == index {
            return Some(Previous::Known(stream));
        }
        // After a checkpoint was installed, or when what was below it was not read.
        let jumps = stream.index < self.base.index && self.base.index.next() == index;
        jumps.then_some(Previous::Known(self.base))
    }

    pub(super) fn take(&mut self, bytes: &impl Bytes, found: &Found) -> Step {
        let index = found.header.index;
        let mut cut = None;
        if self.base.index < index {
            if index <= self.tail.index {
                let Some(sealed) = self.header_at(index, bytes) else {
                    return Step::Unreadable(self.unreadable(index));
                };
                if sealed.position() != found.header.position() {
                    cut = Some(index);
                }
            }
            if cut.is_some() || self.tail.index < index {
                self.extend(found);
            }
        }
        self.note(found);
        let read = match found.previous {
            Previous::Known(_) => u64::from(found.header.payload_len),
            Previous::Below => 0,
        };
        Step::Taken { cost: HEADER_LEN + read, cut }
    }

    /// The entry becomes part of the log; what stood at its index and behind goes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    pub(super) fn extend(&mut self, found: &Found) {
        let header = &found.header;
        if header.index <= self.tail.index {
            let Previous::Known(previous) = found.previous else { return };
            self.cut_at(header.index, previous);
        }
        base::check!(self.ring.next() == header.index && self.tail.index.next() == header.index);
        base::check!(self.tail.term <= header.term);
        let slot = self.segments[found.segment].record.slot;
        self.ring.push(Spot { slot, header: found.place.header, shape: header.shape() });
        if self.tail.term < header.term {
            self.boundaries.push(Boundary { term: header.term, first: header.index });
        }
        if let Some(configuration) = &found.configuration {
            self.configurations.push((header.index, (**configuration).clone()));
        }
        self.tail = header.position();
    }

    /// The stream has moved on to this entry.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    pub(super) fn note(&mut self, found: &Found) {
        let segment = &mut self.segments[found.segment];
        if !segment.is_begun() {
            segment.first = found.header.index;
        }
        segment.last = found.header.index;
        segment.end = found.place.end;
        self.fill = found.segment;
        self.stream = Some(found.header.position());
        self.believed = self.believed.max(found.header.believed_commit());
    }

    pub(super) fn found(
        segment: usize,
        header: Header,
        place: Place,
        previous: Position,
        configuration: Option<Box<Configuration>>,
    ) -> Found {
        Found { segment, header, place, configuration, previous: Previous::Known(previous) }
    }

    /// The idle line of the segment that is being filled, as far as that segment's own entries.
    fn believe_idle_line(&mut self, bytes: &impl Bytes) {
        let Some(filling) = self.segments.get(self.fill) else { return };
        let start = self.layout.slot(filling.record.slot).start;
        let mut line = [0; IDLE_LEN];
        bytes.copy_out(start, &mut line);
        let Some(commit) = decode_idle(&line, filling.record.nonce) else { return };
        // Not a bug: the switch that proves that a too generous clamp would be noticed.
        let clamp = if base::mutant!("commit_word_clamped_to_own_tail") {
            self.tail.index
        } else {
            filling.last
        };
        self.believed = self.believed.max(commit.min(clamp));
    }

    fn unreadable(&self, index: Index) -> Damage {
        let spot = self.ring.spot(index);
        Damage {
            from: index,
            kind: DamageKind::Sealed,
            slot: spot.map_or(base::SlotId(0), |spot| spot.slot),
            offset: spot.map_or(0, |spot| spot.header),
        }
    }

    /// The header of an entry of the log, read again.
    pub(super) fn header_at(&self, index: Index, bytes: &impl Bytes) -> Option<Header> {
        let spot = self.ring.spot(index)?;
        let mut raw = [0; HEADER_BYTES];
        bytes.copy_out(self.layout.slot(spot.slot).start + spot.header, &mut raw);
        let header = Header::decode(&raw, self.nonces[slot_place(spot.slot)])?;
        (header.index == index && header.shape() == spot.shape).then_some(header)
    }
}

/// Hashes the payload at `at` (bytes of the region) and answers whether the digest chains, with the
/// configuration if the entry is one: hashed and decoded from the same copy.
#[expect(clippy::option_option, reason = "outer: verified; inner: is a configuration")]
pub(super) fn verify(
    bytes: &impl Bytes,
    at: u64,
    header: &Header,
    previous: Digest,
) -> Option<Option<Configuration>> {
    let len = usize::try_from(header.payload_len).ok()?;
    if header.kind == Kind::Configuration {
        let mut copy = [0; CONFIGURATION_LEN_MAX];
        let payload = copy.get_mut(..len)?;
        bytes.copy_out(at, payload);
        if header.digest_over(previous, payload) != header.digest {
            return None;
        }
        return decode_configuration(payload).map(Some);
    }
    (digest_at(bytes, at, header, previous) == header.digest).then_some(None)
}

/// The digest over the payload at `at`, in bounded pieces.
fn digest_at(bytes: &impl Bytes, at: u64, header: &Header, previous: Digest) -> Digest {
    let len = usize::try_from(header.payload_len).expect("bounded by payload_max");
    let mut small = [0; SMALL];
    if let Some(payload) = small.get_mut(..len) {
        bytes.copy_out(at, payload);
        return header.digest_over(previous, payload);
    }
    let mut stream = header.digest_stream(previous);
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < len {
        let piece = &mut chunk[..CHUNK.min(len - done)];
        bytes.copy_out(at + done as u64, piece);
        stream.update(piece);
        done += piece.len();
    }
    stream.finish()
}
