//! Byte ranges of a log that a candidate READs from another member, and what is in them.

use base::{Index, Nonce, SlotId};

use crate::Position;
use crate::entry::{HEADER_BYTES, Header};
use crate::place::{BLOCK, FIRST_OFFSET, LINE, aligned_header, place};

/// A byte range of one segment that holds consecutive entries of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The segment's slot.
    pub slot: SlotId,
    /// The nonce under which the entries were written.
    pub nonce: Nonce,
    /// The first entry.
    pub first: Index,
    /// The last entry.
    pub last: Index,
    /// Where the first one's header starts, in bytes from the segment's start.
    pub start: u64,
    /// Where the last one ends.
    pub end: u64,
}

/// An entry found in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: &'a [u8],
}

/// The verified entries in bytes that were copied from an extent. See [`parse_extent`].
#[derive(Clone, Debug)]
pub struct ExtentEntries<'a> {
    bytes: &'a [u8],
    extent: Extent,
    previous: Position,
    /// From the segment's start, as in `extent`.
    offset: u64,
}

/// The entries in `bytes`, which were copied from the start of `extent`, behind `previous`.
///
/// The bytes may be fewer than the extent has. The iterator ends at the first entry that is not
/// whole or does not satisfy the reader's rule, and at the extent's last; [`ExtentEntries::rest`]
/// tells where to go on.
///
/// An extent is what a peer says of itself: every claim in it is checked against the bytes.
#[must_use]
pub const fn parse_extent(bytes: &[u8], extent: Extent, previous: Position) -> ExtentEntries<'_> {
    ExtentEntries { bytes, extent, previous, offset: extent.start }
}

impl<'a> ExtentEntries<'a> {
    /// The last entry that was verified.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.previous
    }

    /// What of the extent was not parsed yet, or `None` when all of it was.
    #[must_use]
    pub fn rest(&self) -> Option<Extent> {
        let first = self.previous.index.next();
        (first <= self.extent.last).then_some(Extent { first, start: self.offset, ..self.extent })
    }

    fn entry_at(&self, header_at: u64) -> Option<(Parsed<'a>, u64)> {
        let raw = self.part(header_at, HEADER_BYTES as u64)?;
        let raw: &[u8; HEADER_BYTES] = raw.try_into().ok()?;
        let header = Header::decode(raw, self.extent.nonce)?;
        let place = place(self.offset, header.shape());
        if place.header != header_at
            || self.extent.end < place.end
            || header.index != self.previous.index.next()
            || header.term < self.previous.term
        {
            return None;
        }
        let payload = self.part(place.payload, u64::from(header.payload_len))?;
        let digest = header.digest_over(self.previous.digest, payload);
        (digest == header.digest).then_some((Parsed { header, payload }, place.end))
    }

    /// `len` bytes from `at`, counted from the segment's start.
    fn part(&self, at: u64, len: u64) -> Option<&'a [u8]> {
        let from = usize::try_from(at.checked_sub(self.extent.start)?).ok()?;
        self.bytes.get(from..from.checked_add(usize::try_from(len).ok()?)?)
    }

    fn is_placed_sensibly(&self) -> bool {
        self.offset.is_multiple_of(LINE)
            && FIRST_OFFSET <= self.offset
            // So far from the end of the numbers that no placement overflows.
            && self.offset <= u64::from(u32::MAX) - BLOCK
    }
}

impl<'a> Iterator for ExtentEntries<'a> {
    type Item = Parsed<'a>;

    fn next(&mut self) -> Option<Parsed<'a>> {
        if self.extent.last <= self.previous.index || !self.is_placed_sensibly() {
            return None;
        }
        let found = self.entry_at(self.offset).or_else(|| {
            let aligned = aligned_header(self.offset);
            (aligned != self.offset).then(|| self.entry_at(aligned))?
        });
        let (parsed, end) = found?;
        self.previous = parsed.header.position();
        self.offset = end;
        Some(parsed)
    }
}
