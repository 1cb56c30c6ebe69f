//! The idle line: the first 64 bytes of a segment, where its one writer says how far it has
//! committed while it has no entry to say it with.
//!
//! ```text
//!   0  | commit u64 |
//!   8  | check u64  |   xxh3_64_with_seed(commit bytes, nonce)
//!  16  | not looked at, up to 64 |
//! ```
//!
//! The check makes what a re-used slot still holds, and half of a torn line, say nothing. Who reads
//! it believes it only up to the last valid entry *of that segment*: beyond, the reader's log need
//! not be the writer's.

use base::{Index, Nonce};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::wire::Reader;

/// Bytes of the idle line that are written.
pub const IDLE_LEN: usize = 16;

/// The idle line that says `commit`.
#[must_use]
pub fn encode_idle(commit: Index, nonce: Nonce) -> [u8; IDLE_LEN] {
    let mut bytes = [0; IDLE_LEN];
    bytes[..8].copy_from_slice(&commit.0.to_le_bytes());
    bytes[8..].copy_from_slice(&check_of(commit, nonce).to_le_bytes());
    bytes
}

/// What an idle line says, or `None` when it says nothing under this nonce.
#[must_use]
pub fn decode_idle(bytes: &[u8; IDLE_LEN], nonce: Nonce) -> Option<Index> {
    let mut reader = Reader::new(bytes);
    let commit = Index(reader.u64()?);
    (reader.u64()? == check_of(commit, nonce)).then_some(commit)
}

fn check_of(commit: Index, nonce: Nonce) -> u64 {
    xxh3_64_with_seed(&commit.0.to_le_bytes(), nonce.0)
}
