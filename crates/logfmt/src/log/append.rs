//! The leader's own append: the same placement and the same cut rule as for a reader, only that
//! this member is the one writer of the segments.

use base::{Configuration, Digest, Index, SlotId, Term};

use super::{MemberLog, slot_place};
use crate::bytes::BytesMut;
use crate::configuration::{CONFIGURATION_LEN_MAX, decode_configuration};
use crate::entry::{HEADER_BYTES, Header, digest_of, digest_of_pieces, gather};
use crate::place::{FIRST_OFFSET, payload_max, place};
use crate::{Kind, Place, Position, Shape};

/// Up to this many bytes, header included, an entry is stored by one copy.
const ONE_COPY: usize = 256;

/// An entry that the leader makes.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// What it is.
    pub kind: Kind,
    /// The leader's term.
    pub term: Term,
    /// The commit index it carries; stored as at most the index before its own.
    pub commit: Index,
    /// Whether the payload begins on a 4 KiB boundary of the segment.
    pub aligned: bool,
    /// The payload in pieces.
    pub payload: &'a [&'a [u8]],
}

/// Where an entry was put, in bytes from its segment's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The entry, as it now stands in the log.
    pub position: Position,
    /// The segment's slot.
    pub slot: SlotId,
    /// Where its parts lie.
    pub place: Place,
}

/// Why an entry was not appended: nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The open segments are full: grant another one.
    #[error("no open segment has room for {payload_len} bytes")]
    NoRoom {
        /// Bytes of payload.
        payload_len: u64,
    },
    /// The payload is larger than any segment takes.
    #[error("a payload of {payload_len} bytes is above the limit of {max}")]
    TooLarge {
        /// Bytes of payload.
        payload_len: u64,
        /// The most that is taken.
        max: u64,
    },
    /// A copied entry does not chain to what stands before it in this log.
    #[error("entry {index} does not chain to the log before it")]
    BrokenChain {
        /// Its index.
        index: Index,
    },
    /// The payload of a configuration entry is not a valid configuration.
    #[error("the payload of entry {index} is not a configuration")]
    NotAConfiguration {
        /// Its index.
        index: Index,
    },
}

/// What was decided about an entry before a byte is stored.
struct Plan {
    segment: usize,
    place: Place,
    configuration: Option<Box<Configuration>>,
}

/// A payload, put together behind room for the header if the whole entry is small.
struct Body<'a> {
    pieces: &'a [&'a [u8]],
    /// Header and payload; empty when the entry is not small.
    line: &'a mut [u8],
}

impl<'a> Body<'a> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn new(pieces: &'a [&'a [u8]], shape: Shape, line: &'a mut [u8; ONE_COPY]) -> Self {
        let len = usize::try_from(shape.payload_len).unwrap_or(usize::MAX);
        match line.get_mut(..len.saturating_add(HEADER_BYTES)) {
            Some(line) if !shape.aligned => {
                gather(pieces, &mut line[HEADER_BYTES..]);
                Self { pieces, line }
            }
            Some(_) | None => Self { pieces, line: &mut [] },
        }
    }

    /// The digest of an entry with this payload.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn digest(&self, previous: Digest, kind: Kind, term: Term, index: Index) -> Digest {
        match self.line.get(HEADER_BYTES..) {
            Some(payload) => digest_of(previous, kind, term, index, payload),
            None => digest_of_pieces(previous, kind, term, index, self.pieces),
        }
    }
}

impl MemberLog {
    /// Appends behind the tail.
    ///
    /// # Errors
    /// [`AppendError`]; nothing changed then.
    ///
    /// # Panics
    /// When the current grant's stream does not end at the tail: adopting was not finished.
    pub fn append(
        &mut self,
        bytes: &mut impl BytesMut,
        entry: NewEntry<'_>,
    ) -> Result<Placed, AppendError> {
        base::check!(self.stream.is_none_or(|stream| stream == self.tail));
        base::check!(self.tail.term <= entry.term);
        let previous = self.tail;
        let index = previous.index.next();
        let shape = self.shape_of(entry.payload, entry.aligned)?;
        let plan = self.plan(index, entry.kind, shape, entry.payload)?;
        let mut line = [0; ONE_COPY];
        let body = Body::new(entry.payload, shape, &mut line);
        let header = Header {
            kind: entry.kind,
            aligned: entry.aligned,
            term: entry.term,
            index,
            commit: entry.commit.min(previous.index),
            payload_len: shape.payload_len,
            digest: body.digest(previous.digest, entry.kind, entry.term, index),
        };
        Ok(self.put(bytes, plan, header, previous, body))
    }

    /// Appends a copy of an entry of another log: kind, term, index and digest stay, the header is
    /// made anew under this grant's nonce. At or below the tail it follows the reader's rule: an
    /// entry that is there already changes nothing in the log, the first that differs cuts it.
    ///
    /// # Errors
    /// [`AppendError`]; nothing changed then.
    pub fn append_copy(
        &mut self,
        bytes: &mut impl BytesMut,
        header: &Header,
        commit: Index,
        payload: &[&[u8]],
    ) -> Result<Placed, AppendError> {
        let index = header.index;
        let broken = AppendError::BrokenChain { index };
        let previous = match self.stream {
            Some(stream) => Some(stream).filter(|stream| stream.index.next() == index),
            None if index <= self.base.index => None,
            None => self.position_at(index.previous(), bytes),
        };
        let previous = previous.filter(|previous| previous.term <= header.term).ok_or(broken)?;
        let shape = self.shape_of(payload, header.aligned)?;
        let mut line = [0; ONE_COPY];
        let body = Body::new(payload, shape, &mut line);
        let digest = body.digest(previous.digest, header.kind, header.term, index);
        if digest != header.digest || shape != header.shape() {
            return Err(broken);
        }
        let differs = index <= self.tail.index
            && self.header_at(index, bytes).ok_or(broken)?.position() != header.position();
        let plan = self.plan(index, header.kind, shape, payload)?;
        let copy = Header { commit: commit.min(index.previous()), ..*header };
        if index <= self.tail.index && !differs {
            return Ok(self.put_beside(bytes, plan, copy, previous, body));
        }
        Ok(self.put(bytes, plan, copy, previous, body))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn shape_of(&self, payload: &[&[u8]], aligned: bool) -> Result<Shape, AppendError> {
        let payload_len: u64 = payload.iter().map(|piece| piece.len() as u64).sum();
        let max = payload_max(self.layout.segment_len());
        match u32::try_from(payload_len) {
            Ok(len) if payload_len <= max => Ok(Shape { payload_len: len, aligned }),
            Ok(_) | Err(_) => Err(AppendError::TooLarge { payload_len, max }),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn plan(
        &self,
        index: Index,
        kind: Kind,
        shape: Shape,
        payload: &[&[u8]],
    ) -> Result<Plan, AppendError> {
        let mut configuration = None;
        if kind == Kind::Configuration {
            let decoded = configuration_in(payload, shape.payload_len);
            let decoded = decoded.ok_or(AppendError::NotAConfiguration { index })?;
            configuration = Some(Box::new(decoded));
        }
        let no_room = AppendError::NoRoom { payload_len: u64::from(shape.payload_len) };
        let (segment, place) = self.room_for(shape).ok_or(no_room)?;
        Ok(Plan { segment, place, configuration })
    }

    /// Where an entry of this shape would go: behind the last one, or at the start of the next
    /// open segment.
    fn room_for(&self, shape: Shape) -> Option<(usize, Place)> {
        let filling = self.segments.get(self.fill)?;
        let behind = place(filling.end, shape);
        if behind.end <= filling.limit {
            return Some((self.fill, behind));
        }
        let next = self.segments.get(self.fill + 1).filter(|_| filling.is_begun())?;
        let first = place(FIRST_OFFSET, shape);
        (first.end <= next.limit).then_some((self.fill + 1, first))
    }

    /// Whether [`Self::append`] would find room for an entry of this shape.
    #[must_use]
    pub fn has_room(&self, shape: Shape) -> bool {
        self.room_for(shape).is_some()
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn put(
        &mut self,
        bytes: &mut impl BytesMut,
        plan: Plan,
        header: Header,
        previous: Position,
        body: Body<'_>,
    ) -> Placed {
        let placed = self.store(bytes, &plan, &header, body);
        let found = Self::found(plan.segment, header, plan.place, previous, plan.configuration);
        self.extend(&found);
        self.note(&found);
        placed
    }

    /// As `put`, for an entry that the log has already: only the stream moves.
    fn put_beside(
        &mut self,
        bytes: &mut impl BytesMut,
        plan: Plan,
        header: Header,
        previous: Position,
        body: Body<'_>,
    ) -> Placed {
        let placed = self.store(bytes, &plan, &header, body);
        let found = Self::found(plan.segment, header, plan.place, previous, plan.configuration);
        self.note(&found);
        placed
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of every append, which passes much by value")]
    fn store(
        &self,
        bytes: &mut impl BytesMut,
        plan: &Plan,
        header: &Header,
        body: Body<'_>,
    ) -> Placed {
        let record = self.segments[plan.segment].record;
        base::check!(self.nonces[slot_place(record.slot)] == record.nonce);
        let start = self.layout.slot(record.slot).start;
        let raw = header.encode(record.nonce);
        let place = plan.place;
        if let Some(front) = body.line.get_mut(..HEADER_BYTES) {
            front.copy_from_slice(&raw);
            bytes.copy_in(start + place.header, body.line);
        } else {
            let mut at = start + place.payload;
            for piece in body.pieces {
                bytes.copy_in(at, piece);
                at += piece.len() as u64;
            }
            bytes.copy_in(start + place.header, &raw);
        }
        Placed { position: header.position(), slot: record.slot, place }
    }
}

fn configuration_in(payload: &[&[u8]], payload_len: u32) -> Option<Configuration> {
    let mut copy = [0; CONFIGURATION_LEN_MAX];
    let whole = copy.get_mut(..usize::try_from(payload_len).ok()?)?;
    gather(payload, whole);
    decode_configuration(whole)
}
