//! Entry headers: 40 bytes that certify themselves.
//!
//! ```text
//!         0      1      2      3      4      5      6      7
//!      +------+------+------+------+------+------+------+------+
//!   0  |           check           |        payload_len        |
//!      +------+------+------+------+------+------+------+------+
//!   8  |                   term                  | kind | flags|   flags: bit 0 = aligned
//!      +------+------+------+------+------+------+------+------+
//!  16  |                         index                         |
//!      +------+------+------+------+------+------+------+------+
//!  24  |                        commit                         |
//!      +------+------+------+------+------+------+------+------+
//!  32  |                        digest                         |
//!      +------+------+------+------+------+------+------+------+
//! ```
//!
//! `digest` names the whole log up to this entry and is equal in every copy for ever; `check` binds
//! this copy to the nonce of the (term, leader) that wrote it and is what a walk tests first:
//!
//! - seed = `xxh3_64`(previous digest u64 | term + (kind << 48) u64 | index u64 | length u64)
//! - digest = `xxh3_64_with_seed`(payload, seed)
//! - check = low 32 bits of `xxh3_64_with_seed`(header bytes 4..40, nonce)

use base::{Digest, Index, Nonce, Term};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::place::HEADER_LEN;
use crate::wire::Reader;
use crate::{Kind, Position, Shape};

/// Bytes of an encoded header, as an array length.
pub const HEADER_BYTES: usize = 40;
const _: () = assert!(HEADER_BYTES as u64 == HEADER_LEN);

const FLAG_ALIGNED: u8 = 1;
/// Up to this many bytes, a payload in pieces is put together before it is hashed.
const GATHERED_MAX: usize = 240;

/// A header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the entry is.
    pub kind: Kind,
    /// Whether its payload begins on a 4 KiB boundary of the segment.
    pub aligned: bool,
    /// Its term.
    pub term: Term,
    /// Its index.
    pub index: Index,
    /// The commit index its writer knew; believed only up to the entry itself.
    pub commit: Index,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Certifies the log up to and with this entry.
    pub digest: Digest,
}

impl Header {
    /// The bytes of this header under `nonce`.
    ///
    /// # Panics
    /// When the term does not fit its 48 bits.
    #[must_use]
    #[inline]
    pub fn encode(&self, nonce: Nonce) -> [u8; HEADER_BYTES] {
        base::check!(self.term <= Term::MAX);
        let flags = if self.aligned { FLAG_ALIGNED } else { 0 };
        let term = self.term.0 | (u64::from(self.kind.code()) << 48) | (u64::from(flags) << 56);
        let mut bytes = [0; HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&term.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.index.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.commit.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.digest.0.to_le_bytes());
        let check = check_of(&bytes, nonce);
        // One store for the first word, so that whoever copies it by words need not wait for two.
        let first = u64::from(check) | u64::from(self.payload_len) << 32;
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes
    }

    /// The header in `bytes`, or `None` when they are not an entry of this nonce: never written,
    /// torn, damaged, or left over from another writer.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES], nonce: Nonce) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let check = reader.u32()?;
        // Not a bug: the switch that proves that stale bytes of a re-used slot would be noticed.
        if check != check_of(bytes, nonce) && !base::mutant!("nonce_not_checked") {
            return None;
        }
        let payload_len = reader.u32()?;
        let word = reader.u64()?;
        let [.., kind, flags] = word.to_le_bytes();
        if flags & !FLAG_ALIGNED != 0 {
            return None;
        }
        Some(Self {
            kind: Kind::from_code(kind)?,
            aligned: flags & FLAG_ALIGNED != 0,
            term: Term(word & Term::MAX.0),
            index: Index(reader.u64()?),
            commit: Index(reader.u64()?),
            payload_len,
            digest: Digest(reader.u64()?),
        })
    }

    /// What placing the entry needs to know of it.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        Shape { payload_len: self.payload_len, aligned: self.aligned }
    }

    /// Where a log stands after this entry.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position { index: self.index, term: self.term, digest: self.digest }
    }

    /// The commit index that may be believed because of this entry.
    #[must_use]
    pub fn believed_commit(&self) -> Index {
        self.commit.min(self.index)
    }

    /// What the digest must be if `payload` is this entry's and `previous` its predecessor's.
    #[must_use]
    pub fn digest_over(&self, previous: Digest, payload: &[u8]) -> Digest {
        digest_of(previous, self.kind, self.term, self.index, payload)
    }

    /// Begins the digest over a payload that comes in pieces.
    #[must_use]
    pub fn digest_stream(&self, previous: Digest) -> DigestStream {
        DigestStream::new(previous, self.kind, self.term, self.index, self.payload_len)
    }
}

/// The digest of an entry behind a log whose digest is `previous`.
#[must_use]
#[inline]
pub fn digest_of(previous: Digest, kind: Kind, term: Term, index: Index, payload: &[u8]) -> Digest {
    let seed = seed_of(previous, kind, term, index, payload.len() as u64);
    Digest(xxh3_64_with_seed(payload, seed))
}

/// [`digest_of`] over a payload in pieces, with the same value. Does not allocate.
#[must_use]
pub fn digest_of_pieces(
    previous: Digest,
    kind: Kind,
    term: Term,
    index: Index,
    pieces: &[&[u8]],
) -> Digest {
    if let [payload] = pieces {
        return digest_of(previous, kind, term, index, payload);
    }
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut whole = [0; GATHERED_MAX];
    if let Some(payload) = whole.get_mut(..len) {
        // Beginning a stream costs many times what hashing so little does.
        gather(pieces, payload);
        return digest_of(previous, kind, term, index, payload);
    }
    let mut hash = Xxh3::with_seed(seed_of(previous, kind, term, index, len as u64));
    for piece in pieces {
        hash.update(piece);
    }
    Digest(hash.digest())
}

/// Copies the pieces one behind the other; together they are as long as `into`.
#[inline]
pub(crate) fn gather(pieces: &[&[u8]], into: &mut [u8]) {
    let mut at = 0;
    for piece in pieces {
        into[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
}

/// A digest over a payload that comes in pieces.
#[derive(Clone)]
pub struct DigestStream(Xxh3);

impl std::fmt::Debug for DigestStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestStream")
    }
}

impl DigestStream {
    /// Begins; `payload_len` bytes must follow.
    #[must_use]
    pub fn new(previous: Digest, kind: Kind, term: Term, index: Index, payload_len: u32) -> Self {
        Self(Xxh3::with_seed(seed_of(previous, kind, term, index, u64::from(payload_len))))
    }

    /// The next bytes.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The digest over all pieces.
    #[must_use]
    pub fn finish(&self) -> Digest {
        Digest(self.0.digest())
    }
}

fn seed_of(previous: Digest, kind: Kind, term: Term, index: Index, len: u64) -> u64 {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&previous.0.to_le_bytes());
    seed[8..16].copy_from_slice(&(term.0 | (u64::from(kind.code()) << 48)).to_le_bytes());
    seed[16..24].copy_from_slice(&index.0.to_le_bytes());
    seed[24..].copy_from_slice(&len.to_le_bytes());
    xxh3_64(&seed)
}

fn check_of(header: &[u8; HEADER_BYTES], nonce: Nonce) -> u32 {
    let [_, _, _, _, covered @ ..] = header;
    let [a, b, c, d, ..] = xxh3_64_with_seed(covered, nonce.0).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
