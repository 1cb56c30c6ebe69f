//! Where entries lie in a segment: a pure function of what came before, so that a writer on
//! another machine and a reader that only sees bytes agree without asking.
//!
//! ```text
//! offset 0     64          128                    4032   4096
//!        +-----+-----------+----------+-- ... ----+------+----------- ...
//!        |idle | entry     | entry    |  (gap)    |header| 4 KiB-aligned payload
//!        +-----+-----------+----------+-- ... ----+------+----------- ...
//! ```
//!
//! Every entry starts on a line, so that one line has one entry and a small entry is one line. The
//! header of an `aligned` entry is the last line before a 4 KiB boundary (of the segment, which
//! starts on one itself): its payload begins on the boundary, and what lies between is skipped.

/// Bytes that become visible and durable together; entries start on multiples of it.
pub const LINE: u64 = 64;
/// Bytes of an entry header.
pub const HEADER_LEN: u64 = 40;
/// Where the first entry of a segment may start: behind the idle line.
pub const FIRST_OFFSET: u64 = LINE;
/// What an `aligned` payload is aligned to.
pub const BLOCK: u64 = 4096;

/// What placing an entry needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Bytes of payload.
    pub payload_len: u32,
    /// Whether the payload begins on a 4 KiB boundary.
    pub aligned: bool,
}

/// A placed entry, in bytes from the segment's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Where its header starts.
    pub header: u64,
    /// Where its payload starts.
    pub payload: u64,
    /// Where the next entry may start.
    pub end: u64,
}

/// Where an entry goes when the previous one (or the idle line) ended at `offset`, which is a
/// multiple of [`LINE`].
#[must_use]
#[inline]
pub fn place(offset: u64, shape: Shape) -> Place {
    debug_assert!(offset.is_multiple_of(LINE));
    let (header, payload) = if shape.aligned {
        let header = aligned_header(offset);
        (header, header + LINE)
    } else {
        (offset, offset + HEADER_LEN)
    };
    let end = up_to(payload + u64::from(shape.payload_len), LINE);
    Place { header, payload, end }
}

/// The first multiple of `unit`, a power of two, that is not below `at`: a mask instead of the
/// division that `next_multiple_of` comes to.
#[inline]
const fn up_to(at: u64, unit: u64) -> u64 {
    (at + (unit - 1)) & !(unit - 1)
}

/// The only place behind `offset` where the header of an aligned entry may stand.
#[must_use]
pub fn aligned_header(offset: u64) -> u64 {
    up_to(offset + LINE, BLOCK) - LINE
}

/// The most payload bytes of one entry in segments of `segment_len` bytes: an eighth of one,
/// header included, so that a segment is never left more than an eighth empty.
#[must_use]
pub const fn payload_max(segment_len: u64) -> u64 {
    segment_len / 8 - LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_entries_take_one_line() {
        let place = place(64, Shape { payload_len: 24, aligned: false });
        assert_eq!(place, Place { header: 64, payload: 104, end: 128 });
    }

    #[test]
    fn aligned_payloads_begin_on_a_block() {
        let shape = Shape { payload_len: 4096, aligned: true };
        assert_eq!(place(64, shape), Place { header: 4032, payload: 4096, end: 8192 });
        assert_eq!(place(4032, shape).header, 4032, "a header that just fits is not moved");
        assert_eq!(place(4096, shape).header, 8128);
    }
}
