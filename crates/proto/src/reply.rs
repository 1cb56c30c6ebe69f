//! Replies and their bytes.
//!
//! Little-endian; `bytes` is a `u32` length and that many bytes:
//!
//! ```text
//!   code u8 |
//!     0 done:           held u8 | results u16 | result* | reads u16 | maybe*
//!     1 value:          maybe
//!     2 page:           entries u32 | (key bytes | found)* | has_next u8 | [next bytes]
//!     3 limit set
//!   128 bad request:    fault u8
//!   129 full:           state_bytes u64 | state_bytes_max u64
//!   130 not an integer: write u16
//!   131 overflow:       write u16
//!   132 too much to read back
//!
//!   result:  kind u8 |  1 put: existed u8     2 deleted: existed u8     3 incremented: now i64
//!   maybe:   0 u8, or 1 u8 | found
//!   found:   revision u64 | ttl u64 (ns, 0: for ever) | value bytes
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::Index;

use crate::codec::{Fault, Reader, put_bytes, put_i64, put_u16, put_u32, put_u64};

/// The answer to a command or a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// To a batch.
    Done {
        /// Whether every compare held, and so the writes were done.
        held: bool,
        /// One per write; empty if they were not done.
        results: Vec<WriteResult>,
        /// One per read of the batch, from before its writes.
        reads: Vec<Option<Found<'a>>>,
    },
    /// To a get.
    Value(Option<Found<'a>>),
    /// To a scan.
    Page(Page<'a>),
    /// To a limit.
    LimitSet,
    /// Nothing was done.
    Refused(Refusal),
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// A value was set.
    Put {
        /// Whether the key had one before.
        existed: bool,
    },
    /// A key was removed.
    Deleted {
        /// Whether there was something to remove.
        existed: bool,
    },
    /// An integer was added to.
    Incremented {
        /// What it is now.
        now: i64,
    },
}

/// A value and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The index of the entry that wrote it.
    pub revision: Index,
    /// How long it lives on from the log time of the last applied entry, in nanoseconds; 0 is for
    /// ever.
    pub ttl_ns: u64,
}

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<'a> {
    /// Keys with their values, in ascending order.
    pub entries: Vec<(&'a [u8], Found<'a>)>,
    /// Where the next page begins; none when the range is through. There may be a next page
    /// though this one has fewer entries than were asked for, or none.
    pub next: Option<&'a [u8]>,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The bytes are no command or query.
    #[error("bad request: {0}")]
    BadRequest(Fault),
    /// The state would grow above its limit.
    #[error(
        "the store is full: {state_bytes} bytes of {state_bytes_max}; delete keys or raise the limit"
    )]
    Full {
        /// Bytes of state now.
        state_bytes: u64,
        /// The limit.
        state_bytes_max: u64,
    },
    /// An increment of what is no integer.
    #[error("write {write} increments a value that is no 64-bit decimal integer")]
    NotAnInteger {
        /// The position of the write in its batch.
        write: u16,
    },
    /// An increment beyond 64 bits.
    #[error("write {write} increments beyond 64 bits")]
    Overflow {
        /// The position of the write in its batch.
        write: u16,
    },
    /// The values to read back are too large for one reply.
    #[error("the values to read back are above 16 MiB together: read fewer keys at once")]
    ReadBackTooLarge,
}

impl<'a> Reply<'a> {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done { held, results, reads } => {
                out.extend_from_slice(&[0, u8::from(*held)]);
                put_u16(out, u16::try_from(results.len()).expect("at most OPERATIONS_MAX"));
                results.iter().for_each(|result| result.encode(out));
                put_u16(out, u16::try_from(reads.len()).expect("at most OPERATIONS_MAX"));
                reads.iter().for_each(|read| encode_maybe(read.as_ref(), out));
            }
            Self::Value(found) => {
                out.push(1);
                encode_maybe(found.as_ref(), out);
            }
            Self::Page(page) => {
                out.push(2);
                page.encode(out);
            }
            Self::LimitSet => out.push(3),
            Self::Refused(refusal) => refusal.encode(out),
        }
    }

    /// The reply that `bytes` are, all of them.
    ///
    /// # Errors
    /// [`Fault`] when they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8()? {
            0 => Self::decode_done(&mut reader)?,
            1 => Self::Value(decode_maybe(&mut reader)?),
            2 => Self::Page(Page::decode(&mut reader)?),
            3 => Self::LimitSet,
            code => Self::Refused(Refusal::decode(code, &mut reader)?),
        };
        reader.end()?;
        Ok(reply)
    }

    fn decode_done(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let held = reader.flag()?;
        let results = reader.u16()?;
        let results =
            (0..results).map(|_| WriteResult::decode(reader)).collect::<Result<_, _>>()?;
        let reads = reader.u16()?;
        let reads = (0..reads).map(|_| decode_maybe(reader)).collect::<Result<_, _>>()?;
        Ok(Self::Done { held, results, reads })
    }
}

impl WriteResult {
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Put { existed } => out.extend_from_slice(&[1, u8::from(existed)]),
            Self::Deleted { existed } => out.extend_from_slice(&[2, u8::from(existed)]),
            Self::Incremented { now } => {
                out.push(3);
                put_i64(out, now);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        match reader.u8()? {
            1 => Ok(Self::Put { existed: reader.flag()? }),
            2 => Ok(Self::Deleted { existed: reader.flag()? }),
            3 => Ok(Self::Incremented { now: reader.i64()? }),
            _ => Err(Fault::Form),
        }
    }
}

impl<'a> Found<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.revision.0);
        put_u64(out, self.ttl_ns);
        put_bytes(out, self.value);
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let revision = Index(reader.u64()?);
        let ttl_ns = reader.u64()?;
        Ok(Self { value: reader.value()?, revision, ttl_ns })
    }
}

fn encode_maybe(found: Option<&Found<'_>>, out: &mut Vec<u8>) {
    out.push(u8::from(found.is_some()));
    if let Some(found) = found {
        found.encode(out);
    }
}

fn decode_maybe<'a>(reader: &mut Reader<'a>) -> Result<Option<Found<'a>>, Fault> {
    if reader.flag()? { Found::decode(reader).map(Some) } else { Ok(None) }
}

impl<'a> Page<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, u32::try_from(self.entries.len()).expect("at most SCAN_ENTRIES_MAX"));
        for (key, found) in &self.entries {
            put_bytes(out, key);
            found.encode(out);
        }
        out.push(u8::from(self.next.is_some()));
        if let Some(next) = self.next {
            put_bytes(out, next);
        }
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let mut page = Self::default();
        for _ in 0..reader.u32()? {
            let key = reader.key()?;
            page.entries.push((key, Found::decode(reader)?));
        }
        page.next = if reader.flag()? { Some(reader.key()?) } else { None };
        Ok(page)
    }
}

impl Refusal {
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::BadRequest(fault) => out.extend_from_slice(&[128, fault.code()]),
            Self::Full { state_bytes, state_bytes_max } => {
                out.push(129);
                put_u64(out, state_bytes);
                put_u64(out, state_bytes_max);
            }
            Self::NotAnInteger { write } => {
                out.push(130);
                put_u16(out, write);
            }
            Self::Overflow { write } => {
                out.push(131);
                put_u16(out, write);
            }
            Self::ReadBackTooLarge => out.push(132),
        }
    }

    fn decode(code: u8, reader: &mut Reader<'_>) -> Result<Self, Fault> {
        match code {
            128 => Ok(Self::BadRequest(Fault::from_code(reader.u8()?)?)),
            129 => {
                let state_bytes = reader.u64()?;
                Ok(Self::Full { state_bytes, state_bytes_max: reader.u64()? })
            }
            130 => Ok(Self::NotAnInteger { write: reader.u16()? }),
            131 => Ok(Self::Overflow { write: reader.u16()? }),
            132 => Ok(Self::ReadBackTooLarge),
            _ => Err(Fault::Form),
        }
    }
}
