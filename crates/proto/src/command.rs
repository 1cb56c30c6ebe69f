//! Commands and their bytes in the log.
//!
//! Version 1, little-endian; `bytes` is a `u32` length and that many bytes:
//!
//! ```text
//!   version u8 = 1 | form u8 |
//!   form 1, batch:  compares u16 | writes u16 | reads u16 | compare* | write* | read*
//!     compare:      kind u8 | key bytes |        1 present: -     2 absent: -
//!                                                3 equals: value bytes
//!                                                4 revision: index u64 (0: the key is absent)
//!     write:        kind u8 | key bytes |        1 put: ttl u64 (ns, 0: for ever) | value bytes
//!                                                2 delete: -
//!                                                3 increment: by i64
//!     read:         key bytes
//!   form 2, limit:  state_bytes_max u64
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::Index;

use crate::codec::{Fault, Reader, put_bytes, put_i64, put_u16, put_u64};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// The most compares of one batch; also the most writes and the most reads.
pub const OPERATIONS_MAX: usize = 1_024;

const VERSION: u8 = 1;
const FORM_BATCH: u8 = 1;
const FORM_LIMIT: u8 = 2;

/// What a log entry tells the store to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Compare, write, read back.
    Batch(Batch<'a>),
    /// From here on, refuse writes that would grow the state above this many bytes.
    Limit {
        /// In bytes, as the state machine counts them.
        state_bytes_max: u64,
    },
}

/// Writes that happen together, if every compare holds; get, put, delete, compare-and-set,
/// increment and optimistic transactions are all batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch<'a> {
    /// What must hold before the writes.
    pub compares: Vec<Compare<'a>>,
    /// Done in order; each sees those before it. None is done if one of them fails.
    pub writes: Vec<Write<'a>>,
    /// Keys whose values the reply gives, as the compares saw them: what they are afterwards the
    /// client knows from its own writes and their results.
    pub reads: Vec<&'a [u8]>,
}

/// One condition on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What must hold of it.
    pub condition: Condition<'a>,
}

/// What can be asked of a key. A key whose time has run out is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// It has a value.
    Present,
    /// It has none.
    Absent,
    /// It has this value.
    Equals(&'a [u8]),
    /// It was last written by the entry at this index, or is absent if the index is 0: nobody has
    /// touched it since it was read, not even to write the same value.
    Revision(Index),
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a value, and its time to live anew.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// How long it lives from the log time of this entry, in nanoseconds; 0 is for ever.
        ttl_ns: u64,
    },
    /// Removes a key; one that is absent stays so.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Adds to an integer, kept as decimal text; an absent key counts as 0. Keeps the time to live.
    Increment {
        /// The key.
        key: &'a [u8],
        /// What to add.
        by: i64,
    },
}

impl<'a> Write<'a> {
    /// The key it writes.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::Increment { key, .. } => key,
        }
    }
}

impl<'a> Command<'a> {
    /// Appends its bytes.
    ///
    /// # Errors
    /// [`Fault::KeyTooLong`], [`Fault::ValueTooLong`] or [`Fault::TooMany`]: what
    /// [`decode`](Self::decode) would refuse; `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = out.len();
        out.push(VERSION);
        let written = match self {
            Self::Batch(batch) => {
                out.push(FORM_BATCH);
                batch.encode(out)
            }
            Self::Limit { state_bytes_max } => {
                out.push(FORM_LIMIT);
                put_u64(out, *state_bytes_max);
                Ok(())
            }
        };
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    /// The command that `bytes` are, all of them.
    ///
    /// # Errors
    /// [`Fault`] when they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(Fault::Version);
        }
        let command = match reader.u8()? {
            FORM_BATCH => Self::Batch(Batch::decode(&mut reader)?),
            FORM_LIMIT => Self::Limit { state_bytes_max: reader.u64()? },
            _ => return Err(Fault::Form),
        };
        reader.end()?;
        Ok(command)
    }
}

impl<'a> Batch<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        for len in [self.compares.len(), self.writes.len(), self.reads.len()] {
            let count = u16::try_from(len).map_err(|_| Fault::TooMany)?;
            put_u16(out, checked_count(count)?);
        }
        for compare in &self.compares {
            compare.encode(out)?;
        }
        for write in &self.writes {
            write.encode(out)?;
        }
        for key in &self.reads {
            put_bytes(out, checked_key(key)?);
        }
        Ok(())
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let compares = checked_count(reader.u16()?)?;
        let writes = checked_count(reader.u16()?)?;
        let reads = checked_count(reader.u16()?)?;
        let compares = (0..compares).map(|_| Compare::decode(reader)).collect::<Result<_, _>>()?;
        let writes = (0..writes).map(|_| Write::decode(reader)).collect::<Result<_, _>>()?;
        let reads = (0..reads).map(|_| reader.key()).collect::<Result<_, _>>()?;
        Ok(Self { compares, writes, reads })
    }
}

impl<'a> Compare<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(match self.condition {
            Condition::Present => 1,
            Condition::Absent => 2,
            Condition::Equals(_) => 3,
            Condition::Revision(_) => 4,
        });
        put_bytes(out, checked_key(self.key)?);
        match self.condition {
            Condition::Present | Condition::Absent => {}
            Condition::Equals(value) => put_bytes(out, checked_value(value)?),
            Condition::Revision(index) => put_u64(out, index.0),
        }
        Ok(())
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let kind = reader.u8()?;
        let key = reader.key()?;
        let condition = match kind {
            1 => Condition::Present,
            2 => Condition::Absent,
            3 => Condition::Equals(reader.value()?),
            4 => Condition::Revision(Index(reader.u64()?)),
            _ => return Err(Fault::Form),
        };
        Ok(Self { key, condition })
    }
}

impl<'a> Write<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(match self {
            Self::Put { .. } => 1,
            Self::Delete { .. } => 2,
            Self::Increment { .. } => 3,
        });
        put_bytes(out, checked_key(self.key())?);
        match *self {
            Self::Put { value, ttl_ns, .. } => {
                put_u64(out, ttl_ns);
                put_bytes(out, checked_value(value)?);
            }
            Self::Delete { .. } => {}
            Self::Increment { by, .. } => put_i64(out, by),
        }
        Ok(())
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let kind = reader.u8()?;
        let key = reader.key()?;
        match kind {
            1 => {
                let ttl_ns = reader.u64()?;
                Ok(Self::Put { key, value: reader.value()?, ttl_ns })
            }
            2 => Ok(Self::Delete { key }),
            3 => Ok(Self::Increment { key, by: reader.i64()? }),
            _ => Err(Fault::Form),
        }
    }
}

fn checked_count(count: u16) -> Result<u16, Fault> {
    if OPERATIONS_MAX < usize::from(count) { Err(Fault::TooMany) } else { Ok(count) }
}

const fn checked_key(key: &[u8]) -> Result<&[u8], Fault> {
    if KEY_BYTES_MAX < key.len() { Err(Fault::KeyTooLong) } else { Ok(key) }
}

const fn checked_value(value: &[u8]) -> Result<&[u8], Fault> {
    if VALUE_BYTES_MAX < value.len() { Err(Fault::ValueTooLong) } else { Ok(value) }
}
