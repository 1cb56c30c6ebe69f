//! Where things lie on a board, and how they are read without being believed.
//!
//! ```text
//! 0        header (one page)      owner, once; +128 alive, closed; +192 doorbell; +256 generation
//! 4 KiB    regions                owner: 72 records of 512 bytes
//! 40 KiB   registrations          owner: 4096 records of 64 bytes
//! 296 KiB  knocks (one page)      peers: 64 words, a member that wants a queue pair
//! 300 KiB  slots                  32, one per peer: a page of words, then its ring
//!
//! slot   +0   owner: peer mine theirs revoked acked holds     +64  owner: head
//!        +128 peer: tail                                    +192 peer: rang
//!        +4096 peer: ring, 256 KiB of frames
//! frame  0        4        8        16       24       32
//!        +--------+--------+--------+--------+--------+---------------------+
//!        | length | kind   |sequence| sender | check  | bytes, padded to 8  |
//!        +--------+--------+--------+--------+--------+---------------------+
//! ```
//! Numbers are little-endian words of 8 bytes, `length` and `kind` of 4.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::{Durability, MemberId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// `b"RMNTBRD\0"`: the first word of every board.
const MAGIC: u64 = u64::from_le_bytes(*b"RMNTBRD\0");
/// Boards live no longer than their owner's process, so only equal versions talk to each other.
pub(crate) const VERSION: u64 = 2;

/// Encoded bytes of a [`Header`].
pub(crate) const HEADER_LEN: usize = 88;
/// The word that the owner's life hangs on (a robust futex).
pub(crate) const ALIVE_AT: u64 = 128;
/// 1 once the owner has closed the board in order.
pub(crate) const CLOSED_AT: u64 = 136;
/// Changes with every ring (a futex).
pub(crate) const DOORBELL_AT: u64 = 192;
/// 1 while the owner may sleep.
pub(crate) const ASLEEP_AT: u64 = 200;
/// Changes with every registration.
pub(crate) const GENERATION_AT: u64 = 256;

/// Regions of one instance: the logs of 64 groups, control and landing memory, client rings, and
/// room.
pub(crate) const REGIONS_MAX: usize = 72;
/// Encoded bytes of a [`RegionRecord`].
pub(crate) const REGION_LEN: usize = 512;
const REGIONS_AT: u64 = 4096;
const PATH_AT: usize = 64;
/// Bytes of a region file's path.
pub(crate) const PATH_MAX: usize = 448;

/// Registrations of one instance at a time. A segment that a leader was granted stays registered
/// until it is trimmed or another grant is made, so that a group may need one for every slot of its
/// pool: this is 64 groups with 62 each, besides their logs.
pub(crate) const REGISTRATIONS_MAX: usize = 1 << PLACE_BITS;
/// Bits of a key that name its place in the table.
pub(crate) const PLACE_BITS: u32 = 12;
const REGISTRATION_STRIDE: u64 = 64;
const REGISTRATIONS_AT: u64 = 40 * 1024;

/// Places for knocks; two members that share one repeat themselves until both are heard.
pub(crate) const KNOCKS_MAX: u64 = 64;
const KNOCKS_AT: u64 = 296 * 1024;

/// Peers of one instance at a time: twice the members that a group can have.
pub(crate) const PEERS_MAX: usize = 32;
const SLOTS_AT: u64 = 300 * 1024;
const SLOT_STRIDE: u64 = 260 * 1024;
/// Owner: the member that the slot is for.
pub(crate) const PEER: u64 = 0;
/// Owner: its number of this queue pair; 0 when there is none.
pub(crate) const MINE: u64 = 8;
/// Owner: the peer's number that it has adopted; 0 when none.
pub(crate) const THEIRS: u64 = 16;
/// Owner: how many revocations the peer has been told.
pub(crate) const REVOKED: u64 = 24;
/// Owner: how many of the peer's revocations it has obeyed.
pub(crate) const ACKED: u64 = 32;
/// Owner: the instance of the peer into whose memory it has, or may open, windows; 0 when none.
pub(crate) const HOLDS: u64 = 40;
/// Owner: bytes of the ring that it has consumed.
pub(crate) const HEAD: u64 = 64;
/// Peer: bytes of the ring that it has produced.
pub(crate) const TAIL: u64 = 128;
/// Peer: how often it has rung.
pub(crate) const RANG: u64 = 192;
const RING: u64 = 4096;
/// Bytes of a ring: five of the largest messages, or hundreds of small ones.
pub(crate) const RING_LEN: u64 = 256 * 1024;
/// Bytes of the largest message: a fifth of a ring, so that one never waits for an empty ring; and
/// enough for the longest list of segments and terms that a member answers a vote with.
pub(crate) const MESSAGE_MAX: u32 = 48 * 1024;
/// Bytes in front of every message.
pub(crate) const FRAME_HEADER_LEN: u64 = 32;
/// Bytes of a board.
pub(crate) const BOARD_LEN: u64 = 8620 * 1024;
/// Bytes in front of everything that versions differ in: every board of any version has them.
pub(crate) const HEADER_PAGE_LEN: u64 = REGIONS_AT;

const _: () = assert!(region_at(REGIONS_MAX) == REGISTRATIONS_AT);
const _: () = assert!(registration_at(REGISTRATIONS_MAX) == KNOCKS_AT);
const _: () = assert!(knock_place(KNOCKS_MAX) <= SLOTS_AT);
const _: () = assert!(SLOTS_AT + 32 * SLOT_STRIDE == BOARD_LEN);
const _: () = assert!(PEERS_MAX == 32);
const _: () = assert!(BOARD_LEN.is_multiple_of(4096));
const _: () = assert!(RING + RING_LEN == SLOT_STRIDE);

/// Where region record `index` starts.
pub(crate) const fn region_at(index: usize) -> u64 {
    REGIONS_AT.wrapping_add((index as u64).wrapping_mul(REGION_LEN as u64))
}

/// Where registration `index` starts.
pub(crate) const fn registration_at(index: usize) -> u64 {
    REGISTRATIONS_AT.wrapping_add((index as u64).wrapping_mul(REGISTRATION_STRIDE))
}

/// Where `member` knocks.
pub(crate) fn knock_at(member: MemberId) -> u64 {
    knock_place(u64::from(member.0) % KNOCKS_MAX)
}

/// The word of knock `place`.
pub(crate) const fn knock_place(place: u64) -> u64 {
    KNOCKS_AT.wrapping_add(place.wrapping_mul(8))
}

/// Where `field` of slot `index` lies.
pub(crate) const fn slot_at(index: usize, field: u64) -> u64 {
    SLOTS_AT.wrapping_add((index as u64).wrapping_mul(SLOT_STRIDE)).wrapping_add(field)
}

/// Where the ring of slot `index` starts.
pub(crate) const fn ring_at(index: usize) -> u64 {
    slot_at(index, RING)
}

/// Why bytes of a board cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Not a board.
    #[error("magic number is {0:#x}: not a board")]
    Magic(u64),
    /// A board of another version of this program.
    #[error("board version is {0}, expected {VERSION}: run the same version on both sides")]
    Version(u64),
    /// Bytes do not fit their checksum.
    #[error("checksum of {what} is {found:#x}, expected {expected:#x}")]
    Check {
        /// Which bytes.
        what: &'static str,
        /// Computed.
        expected: u64,
        /// Stored.
        found: u64,
    },
    /// A field has a value that it cannot have.
    #[error("{what} is {value}, which cannot be")]
    Value {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let at = index.saturating_mul(8);
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u64::from_le_bytes)
}

fn put(bytes: &mut [u8], index: usize, value: u64) {
    let at = index.saturating_mul(8);
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value.to_le_bytes();
    }
}

fn check(what: &'static str, expected: u64, found: u64) -> Result<(), LayoutError> {
    if expected == found { Ok(()) } else { Err(LayoutError::Check { what, expected, found }) }
}

/// Whose board this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) member: MemberId,
    /// Random, not 0: another for every board that was ever made.
    pub(crate) instance: u64,
    pub(crate) incarnation: u64,
    pub(crate) pid: u32,
    /// When that process began, in the kernel's ticks since boot.
    pub(crate) start_time: u64,
    /// The inode of its pid namespace.
    pub(crate) pid_namespace: u64,
    pub(crate) boot: u128,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let [low, high] = halves(self.boot);
        let words = [
            MAGIC,
            VERSION,
            u64::from(self.member.0),
            self.instance,
            self.incarnation,
            u64::from(self.pid),
            self.start_time,
            self.pid_namespace,
            low,
            high,
        ];
        for (index, value) in words.into_iter().enumerate() {
            put(&mut bytes, index, value);
        }
        let sum = xxh3_64(bytes.get(..80).unwrap_or_default());
        put(&mut bytes, 10, sum);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, LayoutError> {
        let is_board = word(bytes, 0) == MAGIC;
        if is_board && word(bytes, 1) != VERSION {
            return Err(LayoutError::Version(word(bytes, 1)));
        }
        Self::decode_any_version(bytes)
    }

    /// Who owns a board, whatever its version: all versions share the header.
    pub(crate) fn decode_any_version(bytes: &[u8; HEADER_LEN]) -> Result<Self, LayoutError> {
        if word(bytes, 0) != MAGIC {
            return Err(LayoutError::Magic(word(bytes, 0)));
        }
        check("board header", xxh3_64(bytes.get(..80).unwrap_or_default()), word(bytes, 10))?;
        let narrow = |what, value| u32::try_from(value).map_err(|_| bad(what, value));
        Ok(Self {
            member: MemberId(narrow("member", word(bytes, 2))?),
            instance: nonzero("instance", word(bytes, 3))?,
            incarnation: word(bytes, 4),
            pid: narrow("pid", nonzero("pid", word(bytes, 5))?)?,
            start_time: word(bytes, 6),
            pid_namespace: word(bytes, 7),
            boot: u128::from(word(bytes, 8)) | (u128::from(word(bytes, 9)) << 64),
        })
    }
}

const fn halves(value: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = value.to_le_bytes();
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p])]
}

const fn bad(what: &'static str, value: u64) -> LayoutError {
    LayoutError::Value { what, value }
}

const fn nonzero(what: &'static str, value: u64) -> Result<u64, LayoutError> {
    if value == 0 { Err(bad(what, value)) } else { Ok(value) }
}

/// A file whose ranges may be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionRecord {
    pub(crate) len: u64,
    pub(crate) durability: Durability,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// At most [`PATH_MAX`] bytes.
    pub(crate) path: Vec<u8>,
}

impl RegionRecord {
    pub(crate) fn encode(&self) -> [u8; REGION_LEN] {
        let mut bytes = [0; REGION_LEN];
        let path_len = self.path.len().min(PATH_MAX);
        for (place, byte) in bytes.iter_mut().skip(PATH_AT).zip(self.path.iter().take(PATH_MAX)) {
            *place = *byte;
        }
        put(&mut bytes, 1, self.len);
        put(&mut bytes, 2, u64::from(self.durability.code()));
        put(&mut bytes, 3, self.device);
        put(&mut bytes, 4, self.inode);
        put(&mut bytes, 5, path_len as u64);
        let sum = xxh3_64(bytes.get(8..).unwrap_or_default());
        put(&mut bytes, 0, sum);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; REGION_LEN]) -> Result<Self, LayoutError> {
        check("region record", xxh3_64(bytes.get(8..).unwrap_or_default()), word(bytes, 0))?;
        let code = word(bytes, 2);
        let durability = u8::try_from(code).ok().and_then(Durability::from_code);
        let path = usize::try_from(word(bytes, 5))
            .ok()
            .and_then(|len| bytes.get(PATH_AT..)?.get(..len))
            .ok_or_else(|| bad("path length", word(bytes, 5)))?;
        Ok(Self {
            len: nonzero("region length", word(bytes, 1))?,
            durability: durability.ok_or_else(|| bad("durability", code))?,
            device: word(bytes, 3),
            inode: word(bytes, 4),
            path: path.to_vec(),
        })
    }
}

/// What a key stands for. The key itself is the first word of the record, `Registration` the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Which region record.
    pub(crate) region: usize,
    /// The writer's number of its queue pair; 0 when any peer may read.
    pub(crate) writer: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Registration {
    /// Words behind the key.
    pub(crate) const WORDS: usize = 4;

    pub(crate) const fn encode(&self) -> [u64; Self::WORDS] {
        [self.region as u64, self.writer, self.offset, self.len]
    }

    #[inline(always)]
    pub(crate) fn decode(words: [u64; Self::WORDS]) -> Result<Self, LayoutError> {
        let [region, writer, offset, len] = words;
        let index = usize::try_from(region).ok().filter(|&index| index < REGIONS_MAX);
        if offset.checked_add(len).is_none() {
            return Err(bad("registration length", len));
        }
        Ok(Self { region: index.ok_or_else(|| bad("region", region))?, writer, offset, len })
    }
}

/// The table place that a key names.
pub(crate) const fn place_of_key(key: u64) -> usize {
    // Twelve bits: below `REGISTRATIONS_MAX`.
    (key & 0xfff) as usize
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// The first frame of a queue pair.
    Greeting,
    /// A SEND.
    Message,
}

/// What stands in front of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the message, at most [`MESSAGE_MAX`].
    pub(crate) len: u32,
    pub(crate) kind: FrameKind,
    /// Counts the frames of a queue pair from 0.
    pub(crate) sequence: u64,
    /// The sender's number of the queue pair.
    pub(crate) sender: u64,
    check: u64,
}

impl FrameHeader {
    /// The header of `bytes`.
    pub(crate) fn of(bytes: &[u8], kind: FrameKind, sequence: u64, sender: u64) -> Self {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut header = Self { len, kind, sequence, sender, check: 0 };
        header.check = header.check_of(bytes);
        header
    }

    fn check_of(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, xxh3_64(self.encode().first_chunk::<24>().unwrap_or(&[0; 24])))
    }

    /// Whether this is the header of `bytes`.
    pub(crate) fn fits(&self, bytes: &[u8]) -> bool {
        self.check == self.check_of(bytes)
    }

    /// Bytes that the frame takes in a ring.
    pub(crate) fn frame_len(&self) -> u64 {
        frame_len(self.len)
    }

    pub(crate) fn encode(&self) -> [u8; 32] {
        let kind: u64 = match self.kind {
            FrameKind::Greeting => 1,
            FrameKind::Message => 2,
        };
        let mut bytes = [0; 32];
        put(&mut bytes, 0, u64::from(self.len) | (kind << 32));
        put(&mut bytes, 1, self.sequence);
        put(&mut bytes, 2, self.sender);
        put(&mut bytes, 3, self.check);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; 32]) -> Result<Self, LayoutError> {
        let first = word(bytes, 0);
        let len = u32::try_from(first & 0xffff_ffff).unwrap_or(u32::MAX);
        if len > MESSAGE_MAX {
            return Err(bad("message length", u64::from(len)));
        }
        let kind = match first >> 32 {
            1 => FrameKind::Greeting,
            2 => FrameKind::Message,
            other => return Err(bad("message kind", other)),
        };
        let (sequence, sender, check) = (word(bytes, 1), word(bytes, 2), word(bytes, 3));
        Ok(Self { len, kind, sequence, sender, check })
    }
}

/// Bytes that a message of `len` bytes takes in a ring.
pub(crate) fn frame_len(len: u32) -> u64 {
    FRAME_HEADER_LEN.saturating_add(u64::from(len)).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use base::Random;

    use super::*;

    fn header() -> Header {
        Header {
            member: MemberId(3),
            instance: 0x0102_0304_0506_0708,
            incarnation: 9,
            pid: 77,
            start_time: 12,
            pid_namespace: 4_026_531_836,
            boot: 5 << 64 | 6,
        }
    }

    fn noise<const N: usize>(random: &mut Random) -> [u8; N] {
        std::array::from_fn(|_| random.next().to_le_bytes()[0])
    }

    fn flip<const N: usize>(mut bytes: [u8; N], bit: u64) -> [u8; N] {
        for (at, byte) in (0..).zip(&mut bytes) {
            *byte ^= u8::from(at == bit / 8) << (bit % 8);
        }
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
        let record = RegionRecord {
            len: 8192,
            durability: Durability::Sync,
            device: 1,
            inode: 2,
            path: b"/data/log".to_vec(),
        };
        assert_eq!(RegionRecord::decode(&record.encode()), Ok(record));
        let registration =
            Registration { region: REGIONS_MAX - 1, writer: 5, offset: 4096, len: 64 };
        assert_eq!(Registration::decode(registration.encode()), Ok(registration));
        let frame = FrameHeader::of(b"vote", FrameKind::Message, 8, 9);
        assert_eq!(FrameHeader::decode(&frame.encode()), Ok(frame));
        assert!(frame.fits(b"vote"));
        assert!(!frame.fits(b"veto"));
    }

    /// Goal: no bytes of a board, however bad, make a reader panic, and none pass for another's.
    /// Method: flip one bit anywhere in valid bytes, then read pure noise.
    #[test]
    fn bad_bytes_are_refused_without_panic() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let bit = random.below(HEADER_LEN as u64 * 8);
            let damaged = flip(header().encode(), bit);
            assert_eq!(Header::decode(&damaged).ok(), None, "bit {bit} went unnoticed");
            assert!(matches!(Header::decode(&noise(&mut random)), Err(LayoutError::Magic(_))));
            let record = RegionRecord::decode(&noise(&mut random));
            assert!(matches!(record, Err(LayoutError::Check { .. })));
            let words = std::array::from_fn(|_| random.next() >> random.below(64));
            if let Ok(registration) = Registration::decode(words) {
                assert!(registration.region < REGIONS_MAX);
            }
            if let Ok(frame) = FrameHeader::decode(&noise(&mut random)) {
                assert!(!frame.fits(b""));
            }
        }
    }
}
