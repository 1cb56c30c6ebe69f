//! The bytes of a [`Message`], which come from another machine and are believed only as far as
//! they are checked here. Drawn in full in `docs/formats/messages.md`.
//!
//! ```text
//!         0      1      2      3      4      5      6      7
//!      +------+------+------+------+------+------+------+------+
//!   0  | 'R'  |version|     kind    |          group            |
//!      +------+------+------+------+------+------+------+------+
//!   8  |          length           |         checksum          |
//!      +------+------+------+------+------+------+------+------+
//!  16  |  body: `length` bytes, drawn per kind in `put`        ..|
//!      +------+------+------+------+------+------+------+------+
//! ```
//!
//! All numbers are little-endian. The checksum is the low half of the log's own hash
//! ([`logfmt::entry::digest_of_pieces`]) over the rest of the frame: bytes 0..12 and the body. It
//! finds damage; it proves nothing about who sent the bytes.
//!
//! Invariants:
//! - one message has one encoding, and every frame that decodes encodes to the same bytes again;
//! - a list is read only after its count was checked against its limit and against the bytes that
//!   are there: nothing is allocated because a peer claims it;
//! - what decodes does not contradict itself: terms fit a grant word, lists ascend, ranges are not
//!   empty, places lie in a segment. Whether it is *true* is the receiver's to find out.
//!
//! Deliberately absent: a length for the bytes of a chunk (they are what is left of the body), and
//! a rule that a member's commit index or the end of its hole lie at or below its tail: a damaged
//! member reports just that.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod put;
mod take;
#[cfg(test)]
mod tests;

use base::{Digest, GroupId, Index, Term};
use logfmt::entry::digest_of_pieces;
use logfmt::{CONFIGURATION_LEN_MAX, Kind, SEGMENTS_MAX};

use crate::message::Message;

/// Bytes in front of the body.
pub const HEADER_LEN: usize = 16;
/// The first two bytes as a number: `'R'`, then version 1.
pub const MAGIC_VERSION: u16 = u16::from_le_bytes([b'R', 1]);
/// The most term boundaries in one reply: a checkpoint is forced long before a log has more.
pub const BOUNDARIES_MAX: usize = 1024;
/// The most extents in one reply: one for every segment that a superblock can name.
pub const EXTENTS_MAX: usize = SEGMENTS_MAX as usize;
/// The most segments granted in one message; two are kept ahead.
pub const ROOMS_MAX: usize = 16;
/// The most bytes of a state file in one chunk.
pub const CHUNK_LEN_MAX: usize = 256 << 10;
/// No log gets this far: at an entry per nanosecond it takes 292 years. A higher index is damage,
/// and would overflow the arithmetic of whoever believed it.
pub const INDEX_MAX: Index = Index(u64::MAX >> 1);

const GRANTED_LEN_MAX: usize = put::GRANTED_FIXED_LEN
    + CONFIGURATION_LEN_MAX
    + BOUNDARIES_MAX * put::BOUNDARY_LEN
    + EXTENTS_MAX * put::EXTENT_LEN
    + ROOMS_MAX * put::ROOM_LEN;
const CHUNK_MESSAGE_LEN_MAX: usize = put::CHUNK_FIXED_LEN + CHUNK_LEN_MAX;
/// The most bytes of an encoded message, header included: what a receive buffer must hold.
pub const MESSAGE_LEN_MAX: usize = HEADER_LEN
    + if GRANTED_LEN_MAX > CHUNK_MESSAGE_LEN_MAX { GRANTED_LEN_MAX } else { CHUNK_MESSAGE_LEN_MAX };
const _: () = assert!(MESSAGE_LEN_MAX <= u32::MAX as usize);

/// Why bytes are not a message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the frame does.
    #[error("message is cut short: {expected} bytes expected, {got} are there")]
    Truncated {
        /// Bytes that the frame has, as far as can be told.
        expected: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The first two bytes are not those of this version.
    #[error("message starts with {found:#06x}, this program speaks {MAGIC_VERSION:#06x}")]
    Version {
        /// The first two bytes as a number.
        found: u16,
    },
    /// The bytes are not those that were sent.
    #[error("message checksum is {got:08x}, its header says {expected:08x}: damaged on its way")]
    BadChecksum {
        /// What the header says.
        expected: u32,
        /// What the bytes have.
        got: u32,
    },
    /// The bytes are those that were sent, but this version knows no such message.
    #[error("message kind {found} is unknown")]
    Kind {
        /// The number.
        found: u16,
    },
    /// The bytes are those that were sent, but they make no sense.
    #[error("message field {what} at byte {at} makes no sense: the sender is at fault")]
    Malformed {
        /// Which field.
        what: &'static str,
        /// Where it stands, in bytes from the start of the frame.
        at: u32,
    },
}

/// What a message is, as its number on the wire; never 0.
const VOTE: u16 = 1;
const FOLLOW: u16 = 2;
const GRANTED: u16 = 3;
const REFUSED: u16 = 4;
const MORE_ROOM: u16 = 5;
const INSTALL: u16 = 6;
const INSTALLED: u16 = 7;
const FETCH_CHUNK: u16 = 8;
const CHUNK: u16 = 9;
const CAMPAIGN: u16 = 10;
const COMMITTED: u16 = 11;

/// Appends the frame of a message to members of `group`.
///
/// # Panics
/// When a list is longer than its limit, and with debug assertions also when the message
/// contradicts itself: the other end would refuse the bytes.
pub fn encode(group: GroupId, message: &Message, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    let kind = put::body(message, out);
    let frame = out.get_mut(start..).unwrap_or_default();
    base::check!(frame.len() <= MESSAGE_LEN_MAX);
    let Some((header, body)) = frame.split_first_chunk_mut::<HEADER_LEN>() else { return };
    let length = u32::try_from(body.len()).expect("every list is bounded");
    base::check!(!cfg!(debug_assertions) || take::body(kind, body).as_ref() == Ok(message));
    let [a, b] = MAGIC_VERSION.to_le_bytes();
    let [c, d] = kind.to_le_bytes();
    let [e, f, g, h] = group.0.to_le_bytes();
    let [i, j, k, l] = length.to_le_bytes();
    let checked = [a, b, c, d, e, f, g, h, i, j, k, l];
    let [m, n, o, p] = checksum(&checked, body).to_le_bytes();
    *header = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
}

/// The message that is all of `bytes`, and the group it is for.
///
/// # Errors
/// [`WireError`]. `Version` and `Kind` may be a newer program's; all others are damage or a
/// defect of the sender, and nothing else that it sends on this connection can be trusted.
pub fn decode(bytes: &[u8]) -> Result<(GroupId, Message), WireError> {
    let cut_short = |expected| WireError::Truncated { expected, got: bytes.len() };
    let (header, body) =
        bytes.split_first_chunk::<HEADER_LEN>().ok_or_else(|| cut_short(HEADER_LEN))?;
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *header;
    let found = u16::from_le_bytes([a, b]);
    if found != MAGIC_VERSION {
        return Err(WireError::Version { found });
    }
    let length = usize::try_from(u32::from_le_bytes([i, j, k, l])).unwrap_or(usize::MAX);
    let expected = HEADER_LEN.saturating_add(length);
    if expected > MESSAGE_LEN_MAX || body.len() > length {
        return Err(WireError::Malformed { what: "length", at: 8 });
    }
    if body.len() < length {
        return Err(cut_short(expected));
    }
    let expected = u32::from_le_bytes([m, n, o, p]);
    let got = checksum(&[a, b, c, d, e, f, g, h, i, j, k, l], body);
    if got != expected {
        return Err(WireError::BadChecksum { expected, got });
    }
    let message = take::body(u16::from_le_bytes([c, d]), body)?;
    Ok((GroupId(u32::from_le_bytes([e, f, g, h])), message))
}

/// Over the header in front of the checksum and the body. No entry has index 0, so that no entry's
/// digest is a message's checksum.
fn checksum(checked: &[u8; 12], body: &[u8]) -> u32 {
    let pieces = [checked.as_slice(), body];
    let digest = digest_of_pieces(Digest(0), Kind::NoOp, Term(0), Index(0), &pieces);
    let [a, b, c, d, ..] = digest.0.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
