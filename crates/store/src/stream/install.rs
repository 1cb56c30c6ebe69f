//! The receiving side: verifies chunks and builds a store from them.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use base::Index;
use replica::machine::{ChunkEnd, Installer, LogTime};

use super::{CHECKED_LEN, FLAG_LAST, HEAD_LEN, MAGIC, VERSION, check};
use crate::entries::Entries;
use crate::machine::Store;
use proto::codec::{Fault, Reader};
use proto::command::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a chunk or a stream was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// No chunk of a store, or one of another version, or cut short: ask for it again.
    #[error("the bytes are no store chunk of version 1, or are cut short")]
    NotAChunk,
    /// Damaged on its way or where it was stored: ask for it again.
    #[error("chunk {number} is damaged: its check is {got:016x}, expected {expected:016x}")]
    Damaged {
        /// Its number, as far as it can be trusted.
        number: u32,
        /// The check it carries.
        got: u64,
        /// The check of its bytes.
        expected: u64,
    },
    /// Not the next one.
    #[error("chunk {got} came, chunk {expected} is next")]
    OutOfOrder {
        /// Its number.
        got: u32,
        /// The number awaited.
        expected: u32,
    },
    /// It follows another chunk than the one before: it is of another view. Begin anew.
    #[error("chunk {number} is of another checkpoint than the chunks before it: begin anew")]
    OtherView {
        /// Its number.
        number: u32,
    },
    /// The chunk is intact but breaks a rule of the stream: whoever wrote it erred. Final.
    #[error("the stream is malformed: {rule}")]
    Malformed {
        /// Which rule.
        rule: &'static str,
    },
    /// The stream has not ended.
    #[error("the stream is incomplete: chunk {next} is missing")]
    Incomplete {
        /// The chunk awaited.
        next: u32,
    },
    /// The entries are not those that the head announces. Final.
    #[error("{what}: the stream announced {expected}, it holds {got}")]
    Mismatch {
        /// Which account.
        what: &'static str,
        /// As announced.
        expected: u64,
        /// As counted.
        got: u64,
    },
}

/// Builds a store from chunks.
#[derive(Debug, Default)]
pub struct StoreInstaller {
    next: u32,
    previous: u64,
    head: Option<Head>,
    entries: Entries,
    /// The part of the head or of an entry whose rest is in the next chunk.
    pending: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    Complete,
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Head {
    applied: Index,
    time: LogTime,
    state_bytes_max: u64,
    accounts: (u64, u64, u64),
}

impl StoreInstaller {
    /// An installer that awaits chunk 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the payload of a verified chunk.
    fn take(&mut self, payload: &[u8]) -> Result<(), &'static str> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(payload);
        let mut reader = Reader::new(&pending);
        loop {
            let rest = reader.rest().len();
            let taken = match self.head {
                None => self.take_head(&mut reader),
                Some(_) => self.take_entry(&mut reader)?,
            };
            if taken.is_none() {
                pending.drain(..pending.len().saturating_sub(rest));
                self.pending = pending;
                return Ok(());
            }
        }
    }

    /// Takes the head; none when it is not whole yet.
    fn take_head(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let mut words = Reader::new(reader.take(HEAD_LEN).ok()?);
        let mut word = || words.u64().ok();
        self.head = Some(Head {
            applied: Index(word()?),
            time: LogTime(word()?),
            state_bytes_max: word()?,
            accounts: (word()?, word()?, word()?),
        });
        Some(())
    }

    /// Takes an entry; none when it is not whole yet.
    fn take_entry(&mut self, reader: &mut Reader<'_>) -> Result<Option<()>, &'static str> {
        let Some((key_len, value_len)) = lengths(reader.rest()) else { return Ok(None) };
        // Judged before the rest has come, so that no claim makes the installer wait for more
        // bytes than an entry may have.
        let key_len = bounded(key_len, KEY_BYTES_MAX).ok_or("a key is too long")?;
        let value_len = bounded(value_len, VALUE_BYTES_MAX).ok_or("a value is too long")?;
        let Some(entry) = whole_entry(reader, key_len, value_len) else { return Ok(None) };
        if self.entries.last_key().is_some_and(|last| entry.key <= &**last) {
            return Err("keys do not ascend");
        }
        let value = Arc::from(entry.value);
        self.entries.put(entry.key, value, entry.revision, entry.expires_at);
        Ok(Some(()))
    }

    fn awaits(&self) -> Result<(), InstallError> {
        match self.state {
            State::Open => Ok(()),
            State::Complete => Err(InstallError::Malformed { rule: "a chunk behind the last" }),
            State::Broken(rule) => Err(InstallError::Malformed { rule }),
        }
    }
}

impl Installer for StoreInstaller {
    type Machine = Store;
    type Error = InstallError;

    fn next(&self) -> u32 {
        self.next
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<ChunkEnd, InstallError> {
        self.awaits()?;
        let chunk = Chunk::verify(bytes)?;
        if chunk.number != self.next {
            return Err(InstallError::OutOfOrder { got: chunk.number, expected: self.next });
        }
        if chunk.previous != self.previous {
            return Err(InstallError::OtherView { number: chunk.number });
        }
        if let Err(rule) = self.take(chunk.payload) {
            self.state = State::Broken(rule);
            return Err(InstallError::Malformed { rule });
        }
        self.previous = chunk.check;
        self.next = self.next.saturating_add(1);
        if chunk.end == ChunkEnd::Last {
            self.state = State::Complete;
        }
        Ok(chunk.end)
    }

    fn finish(self) -> Result<Store, InstallError> {
        match self.state {
            State::Open => return Err(InstallError::Incomplete { next: self.next }),
            State::Broken(rule) => return Err(InstallError::Malformed { rule }),
            State::Complete => {}
        }
        let head = self.head.filter(|_| self.pending.is_empty());
        let head = head.ok_or(InstallError::Malformed { rule: "it ends in the middle" })?;
        let (count, bytes, hash) = self.entries.accounts();
        let accounts = [
            ("entries", head.accounts.0, count),
            ("state bytes", head.accounts.1, bytes),
            ("hash", head.accounts.2, hash),
        ];
        for (what, expected, got) in accounts {
            if expected != got {
                return Err(InstallError::Mismatch { what, expected, got });
            }
        }
        Ok(Store {
            entries: self.entries,
            applied: head.applied,
            time: head.time,
            state_bytes_max: head.state_bytes_max,
        })
    }
}

/// A chunk whose check is right.
struct Chunk<'a> {
    number: u32,
    end: ChunkEnd,
    previous: u64,
    check: u64,
    payload: &'a [u8],
}

impl<'a> Chunk<'a> {
    fn verify(bytes: &'a [u8]) -> Result<Self, InstallError> {
        let not_a_chunk = |_: Fault| InstallError::NotAChunk;
        let mut reader = Reader::new(bytes);
        let magic = reader.u32().map_err(not_a_chunk)?;
        let version = reader.u16().map_err(not_a_chunk)?;
        let flags = reader.u16().map_err(not_a_chunk)?;
        let number = reader.u32().map_err(not_a_chunk)?;
        let payload_len = reader.u32().map_err(not_a_chunk)?;
        let previous = reader.u64().map_err(not_a_chunk)?;
        let got = reader.u64().map_err(not_a_chunk)?;
        let payload = reader.rest();
        let header = bytes.get(..CHECKED_LEN).ok_or(InstallError::NotAChunk)?;
        if magic != MAGIC || version != VERSION || u32::try_from(payload.len()) != Ok(payload_len) {
            return Err(InstallError::NotAChunk);
        }
        let expected = check(header, payload);
        if got != expected {
            return Err(InstallError::Damaged { number, got, expected });
        }
        let end = match flags {
            0 => ChunkEnd::More,
            FLAG_LAST => ChunkEnd::Last,
            _ => return Err(InstallError::NotAChunk),
        };
        Ok(Self { number, end, previous, check: got, payload })
    }
}

struct WholeEntry<'a> {
    key: &'a [u8],
    value: &'a [u8],
    revision: Index,
    expires_at: LogTime,
}

/// The lengths of key and value that `bytes` begin with; none when they are not there yet.
fn lengths(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut reader = Reader::new(bytes);
    Some((reader.u32().ok()?, reader.u32().ok()?))
}

/// The next entry; none when it is not whole yet.
fn whole_entry<'a>(
    reader: &mut Reader<'a>,
    key_len: usize,
    value_len: usize,
) -> Option<WholeEntry<'a>> {
    reader.u64().ok()?;
    let revision = Index(reader.u64().ok()?);
    let expires_at = LogTime(reader.u64().ok()?);
    let key = reader.take(key_len).ok()?;
    let value = reader.take(value_len).ok()?;
    Some(WholeEntry { key, value, revision, expires_at })
}

fn bounded(len: u32, len_max: usize) -> Option<usize> {
    usize::try_from(len).ok().filter(|len| *len <= len_max)
}
