//! A frozen store as a stream of chunks, and back.
//!
//! The stream is one run of bytes, cut anywhere; all integers are little-endian:
//!
//! ```text
//!   head   | applied u64 | log time u64 | limit u64 | entries u64 | state bytes u64 | hash u64 |
//!   entry* | key len u32 | value len u32 | revision u64 | expires u64 | key | value |
//!
//!   chunk     0       4         6       8        12            16         24      32
//!             | magic | version | flags | number | payload len | previous | check | payload ...
//! ```
//!
//! `check` covers everything before it and the payload. `previous` is the check of the chunk
//! before, so that chunks of two views never mix; 0 in the first one. Flag 1 marks the last chunk.
//! Keys ascend. What `head` announces is compared with what came out.
//!
//! Memory: the view keeps one mark per chunk and shares its entries with the store; the installer
//! keeps at most one chunk and the part of an entry before it.

mod install;
mod view;

use replica::machine::ChunkEnd;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub use install::{InstallError, StoreInstaller};
pub use view::{CHUNK_BYTES_MIN, StoreView};

const MAGIC: u32 = u32::from_le_bytes(*b"RKVC");
const VERSION: u16 = 1;
const FLAG_LAST: u16 = 1;
/// Bytes of the chunk header that come before `check`.
const CHECKED_LEN: usize = 24;
const CHUNK_HEADER_LEN: usize = 32;
const HEAD_LEN: usize = 48;
const ENTRY_HEAD_LEN: usize = 24;

/// Writes the header before the payload of `chunk` and returns its check.
fn seal(chunk: &mut [u8], number: u32, end: ChunkEnd, previous: u64) -> u64 {
    let (header, payload) = chunk.split_at_mut(CHUNK_HEADER_LEN);
    let payload_len = u32::try_from(payload.len()).expect("chunk_bytes is a u32");
    let flags = if end == ChunkEnd::Last { FLAG_LAST } else { 0 };
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&flags.to_le_bytes());
    header[8..12].copy_from_slice(&number.to_le_bytes());
    header[12..16].copy_from_slice(&payload_len.to_le_bytes());
    header[16..24].copy_from_slice(&previous.to_le_bytes());
    let check = check(&header[..CHECKED_LEN], payload);
    header[24..].copy_from_slice(&check.to_le_bytes());
    check
}

fn check(header: &[u8], payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64(header))
}

/// The last and only chunk of a stream, with a right check around whatever `payload` is.
#[cfg(test)]
pub(crate) fn forged(payload: &[u8]) -> Vec<u8> {
    let mut chunk = [&[0; CHUNK_HEADER_LEN], payload].concat();
    seal(&mut chunk, 0, ChunkEnd::Last, 0);
    chunk
}
