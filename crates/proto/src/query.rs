//! Queries: what is read without an entry in the log.
//!
//! Version 1, little-endian; `bytes` is a `u32` length and that many bytes:
//!
//! ```text
//!   version u8 = 1 | form u8 |
//!   form 1, get:    key bytes
//!   form 2, scan:   from bytes | has_to u8 | [to bytes] | limit u32
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::codec::{Fault, Reader, put_bytes, put_u32};
use crate::command::KEY_BYTES_MAX;

/// The most entries of one page.
pub const SCAN_ENTRIES_MAX: u32 = 4_096;
/// Bytes of keys and values after which a page ends; its first entry may alone be larger.
pub const SCAN_BYTES_MAX: usize = 1 << 20;

const VERSION: u8 = 1;
const FORM_GET: u8 = 1;
const FORM_SCAN: u8 = 2;

/// A question about the applied state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query<'a> {
    /// The value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// A page of a range of keys, in ascending order. To go on, ask again from the page's `next`.
    Scan {
        /// The first key of the range, whether or not it has a value.
        from: &'a [u8],
        /// The first key behind the range; none is "to the end".
        to: Option<&'a [u8]>,
        /// Entries wanted: at least one and at most [`SCAN_ENTRIES_MAX`] are given if there are
        /// as many.
        limit: u32,
    },
}

impl<'a> Query<'a> {
    /// Appends its bytes.
    ///
    /// # Errors
    /// [`Fault::KeyTooLong`]; `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let keys = match *self {
            Self::Get { key } => [key, &[]],
            Self::Scan { from, to, .. } => [from, to.unwrap_or_default()],
        };
        if keys.iter().any(|key| KEY_BYTES_MAX < key.len()) {
            return Err(Fault::KeyTooLong);
        }
        out.push(VERSION);
        match *self {
            Self::Get { key } => {
                out.push(FORM_GET);
                put_bytes(out, key);
            }
            Self::Scan { from, to, limit } => {
                out.push(FORM_SCAN);
                put_bytes(out, from);
                out.push(u8::from(to.is_some()));
                if let Some(to) = to {
                    put_bytes(out, to);
                }
                put_u32(out, limit);
            }
        }
        Ok(())
    }

    /// The query that `bytes` are, all of them.
    ///
    /// # Errors
    /// [`Fault`] when they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(Fault::Version);
        }
        let query = match reader.u8()? {
            FORM_GET => Self::Get { key: reader.key()? },
            FORM_SCAN => {
                let from = reader.key()?;
                let to = if reader.flag()? { Some(reader.key()?) } else { None };
                Self::Scan { from, to, limit: reader.u32()? }
            }
            _ => return Err(Fault::Form),
        };
        reader.end()?;
        Ok(query)
    }
}
