//! The bytes of a state file: sessions, then the machine's own numbered chunks.
//!
//! ```text
//!   0  magic "REMSTATE"
//!   8  version u16 (1) | 0 u16 | sessions length u32
//!  16  index u64                the last entry in the state
//!  24  sessions ..
//!      then, until the file ends: chunk length u32 | chunk ..
//! ```
//!
//! The checkpoint that names a file holds its length and the hash over all its bytes; the machine's
//! chunks certify themselves besides.

use base::{Digest, Index};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"REMSTATE";
const VERSION: u16 = 1;
const HEAD_LEN: usize = 24;
/// Bytes that one READ of a file takes.
const PART: usize = 256 << 10;
/// The longest chunk that a reader believes; machines make chunks of 256 KiB, or one record.
const CHUNK_LEN_MAX: usize = 16 << 20;

/// The head of a file, sessions included.
pub(crate) fn head(index: Index, sessions: &[u8]) -> Vec<u8> {
    let len = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD_LEN + sessions.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0_u16.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&index.0.to_le_bytes());
    bytes.extend_from_slice(sessions);
    bytes
}

/// The hash over a state file's bytes as they come.
#[derive(Clone, Default)]
pub struct FileDigest(Xxh3);

impl std::fmt::Debug for FileDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileDigest({:016x})", self.0.digest())
    }
}

impl FileDigest {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash over all bytes so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(self.0.digest())
    }
}

/// Why a state file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// It could not be read.
    #[error("{0}")]
    Read(#[from] crate::env::FileError),
    /// Its bytes are not those that the checkpoint names.
    #[error(
        "state file {id}: its bytes are not those the checkpoint names; restore the member from its peers"
    )]
    Digest {
        /// The file's number.
        id: u64,
    },
    /// It is no state file, or of a newer version.
    #[error("state file {id}: {what}")]
    Malformed {
        /// The file's number.
        id: u64,
        /// What is wrong.
        what: String,
    },
}

/// Reads a state file front to back, verifying as it goes.
pub(crate) struct Reader<'a, F> {
    files: &'a F,
    id: u64,
    len: u64,
    offset: u64,
    buffer: Vec<u8>,
    digest: FileDigest,
}

impl<'a, F: crate::env::StateFiles> Reader<'a, F> {
    pub(crate) fn new(files: &'a F, id: u64, len: u64) -> Self {
        Self { files, id, len, offset: 0, buffer: Vec::new(), digest: FileDigest::default() }
    }

    /// Makes at least `wanted` bytes of the rest stand in the buffer, if there are so many.
    fn fill(&mut self, wanted: usize) -> Result<(), StateFileError> {
        while self.buffer.len() < wanted && self.offset < self.len {
            let left = usize::try_from(self.len - self.offset).unwrap_or(usize::MAX);
            let old = self.buffer.len();
            let part = left.min(PART);
            self.buffer.resize(old + part, 0);
            self.files.read(self.id, self.offset, &mut self.buffer[old..])?;
            self.digest.update(&self.buffer[old..]);
            self.offset += part as u64;
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> Result<Option<Vec<u8>>, StateFileError> {
        self.fill(len)?;
        if self.buffer.len() < len {
            return Ok(None);
        }
        let rest = self.buffer.split_off(len);
        Ok(Some(std::mem::replace(&mut self.buffer, rest)))
    }

    fn malformed(&self, what: &str) -> StateFileError {
        StateFileError::Malformed { id: self.id, what: what.to_owned() }
    }

    /// The index and the encoded sessions.
    pub(crate) fn head(&mut self) -> Result<(Index, Vec<u8>), StateFileError> {
        let head = self.take(HEAD_LEN)?.ok_or_else(|| self.malformed("it is too short"))?;
        if &head[..8] != MAGIC {
            return Err(self.malformed("it is no state file"));
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            let what = format!("it has version {version}, this program reads {VERSION}");
            return Err(self.malformed(&what));
        }
        let word = |at: usize| head.get(at..at + 8).and_then(|word| word.try_into().ok());
        let index = Index(u64::from_le_bytes(word(16).unwrap_or_default()));
        let len = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if u64::from(u32::try_from(len).unwrap_or(u32::MAX)) > self.len {
            return Err(self.malformed("its sessions are longer than the file"));
        }
        let sessions = self.take(len)?.ok_or_else(|| self.malformed("it is too short"))?;
        Ok((index, sessions))
    }

    /// The next chunk, or `None` at the end.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, StateFileError> {
        let Some(len) = self.take(4)? else {
            let is_end = self.buffer.is_empty();
            return if is_end { Ok(None) } else { Err(self.malformed("a chunk is cut off")) };
        };
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > CHUNK_LEN_MAX {
            return Err(self.malformed("a chunk is absurdly long"));
        }
        self.take(len)?.ok_or_else(|| self.malformed("a chunk is cut off")).map(Some)
    }

    /// The hash over all that has been read.
    pub(crate) fn digest(&self) -> Digest {
        self.digest.digest()
    }
}
