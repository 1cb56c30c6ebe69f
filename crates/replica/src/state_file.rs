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
use consensus::session::SessionTable;
use logfmt::StateFile;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    env::StateFiles,
    machine::{Installer, StateMachine},
};

const MAGIC: &[u8; 8] = b"REMSTATE";
const VERSION: u16 = 1;
const HEAD_LEN: usize = 24;
/// Bytes that loading reads at a time.
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
    /// A newer program wrote it.
    #[error("state file {id}: version {found}, this program reads {VERSION}: use a newer one")]
    Newer {
        /// The file's number.
        id: u64,
        /// Its version.
        found: u16,
    },
    /// It is no state file, or damaged.
    #[error("state file {id}: {what}; restore the member from its peers")]
    Malformed {
        /// The file's number.
        id: u64,
        /// What is wrong.
        what: String,
    },
}

/// What a state file holds.
pub(crate) type Loaded<M> = (M, SessionTable);

/// The part of a file that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Sessions(usize),
    ChunkLength,
    Chunk(usize),
}

/// Takes a state file's bytes front to back, as they come, and builds what they hold. Its memory
/// besides that is one chunk.
pub(crate) struct Loader<I: Installer> {
    state: StateFile,
    next: Part,
    /// The beginning of a part that is not whole yet.
    buffer: Vec<u8>,
    taken: u64,
    digest: FileDigest,
    sessions: Option<SessionTable>,
    installer: I,
}

impl<I: Installer> Loader<I> {
    /// A loader of the file that `state` names.
    pub(crate) fn new(state: StateFile, installer: I) -> Self {
        Self {
            state,
            next: Part::Head,
            buffer: Vec::new(),
            taken: 0,
            digest: FileDigest::default(),
            sessions: None,
            installer,
        }
    }

    /// Bytes taken so far.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes the next bytes.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), StateFileError> {
        self.taken += bytes.len() as u64;
        if self.taken > self.state.length {
            return Err(self.malformed("it is longer than the checkpoint says"));
        }
        self.digest.update(bytes);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let mut rest = &buffer[..];
        while let Some((part, behind)) = rest.split_at_checked(self.wanted()) {
            self.take_part(part)?;
            rest = behind;
        }
        let used = buffer.len() - rest.len();
        buffer.drain(..used);
        self.buffer = buffer;
        Ok(())
    }

    const fn wanted(&self) -> usize {
        match self.next {
            Part::Head => HEAD_LEN,
            Part::Sessions(len) | Part::Chunk(len) => len,
            Part::ChunkLength => 4,
        }
    }

    fn take_part(&mut self, part: &[u8]) -> Result<(), StateFileError> {
        match self.next {
            Part::Head => self.next = Part::Sessions(self.sessions_len(part)?),
            Part::Sessions(_) => {
                let table = SessionTable::decode(part);
                self.sessions = Some(table.map_err(|error| self.malformed(&error.to_string()))?);
                self.next = Part::ChunkLength;
            }
            Part::ChunkLength => {
                let len = part.iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte));
                if len > CHUNK_LEN_MAX {
                    return Err(self.malformed("a chunk is absurdly long"));
                }
                self.next = Part::Chunk(len);
            }
            Part::Chunk(_) => {
                let taken = self.installer.chunk(part);
                taken.map_err(|error| self.malformed(&error.to_string()))?;
                self.next = Part::ChunkLength;
            }
        }
        Ok(())
    }

    fn sessions_len(&self, head: &[u8]) -> Result<usize, StateFileError> {
        if !head.starts_with(MAGIC) {
            return Err(self.malformed("it is no state file"));
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err(StateFileError::Newer { id: self.state.id, found: version });
        }
        let len = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        if u64::from(len) > self.state.length {
            return Err(self.malformed("its sessions are longer than the file"));
        }
        usize::try_from(len).map_err(|_| self.malformed("its sessions are too long for this host"))
    }

    /// What the file holds, once all its bytes were taken. The session limits come with the table.
    pub(crate) fn finish(self) -> Result<Loaded<I::Machine>, StateFileError> {
        if self.digest.digest() != self.state.digest {
            return Err(StateFileError::Digest { id: self.state.id });
        }
        let is_cut_off = !self.buffer.is_empty() || self.next != Part::ChunkLength;
        let malformed = |what| StateFileError::Malformed { id: self.state.id, what };
        let (Some(sessions), false) = (self.sessions, is_cut_off) else {
            return Err(malformed("it is cut off".to_owned()));
        };
        let machine = self.installer.finish().map_err(|error| malformed(error.to_string()))?;
        Ok((machine, sessions))
    }

    fn malformed(&self, what: &str) -> StateFileError {
        StateFileError::Malformed { id: self.state.id, what: what.to_owned() }
    }
}

/// Loads the file that `state` names, all of it at once: for a member that does not run yet.
pub(crate) fn load<M: StateMachine, F: StateFiles>(
    files: &F,
    state: StateFile,
    empty: &M,
) -> Result<Loaded<M>, StateFileError> {
    let mut loader = Loader::new(state, empty.installer());
    let mut bytes = Vec::new();
    while loader.taken() < state.length {
        let left = usize::try_from(state.length - loader.taken()).unwrap_or(usize::MAX);
        bytes.resize(left.min(PART), 0);
        files.read(state.id, loader.taken(), &mut bytes)?;
        loader.take(&bytes)?;
    }
    loader.finish()
}

#[cfg(test)]
mod tests {
    use consensus::session::Limits;

    use super::*;
    use crate::machine::ChunkEnd;

    /// A machine whose state is its chunks one behind the other; "bad" is no chunk of it.
    #[derive(Default)]
    struct Chunks {
        taken: Vec<u8>,
        next: u32,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("no chunk")]
    struct NoChunk;

    impl Installer for Chunks {
        type Machine = Vec<u8>;
        type Error = NoChunk;

        fn next(&self) -> u32 {
            self.next
        }

        fn chunk(&mut self, bytes: &[u8]) -> Result<ChunkEnd, NoChunk> {
            if bytes == b"bad" {
                return Err(NoChunk);
            }
            self.taken.extend_from_slice(bytes);
            self.next += 1;
            Ok(ChunkEnd::More)
        }

        fn finish(self) -> Result<Vec<u8>, NoChunk> {
            Ok(self.taken)
        }
    }

    fn file(chunks: &[&[u8]]) -> (StateFile, Vec<u8>) {
        let mut sessions = Vec::new();
        SessionTable::new(Limits::default()).encode(&mut sessions);
        let mut bytes = head(Index(7), &sessions);
        for chunk in chunks {
            bytes.extend_from_slice(&u32::try_from(chunk.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(chunk);
        }
        (named(&bytes), bytes)
    }

    fn named(bytes: &[u8]) -> StateFile {
        let mut digest = FileDigest::default();
        digest.update(bytes);
        StateFile { id: 3, length: bytes.len() as u64, digest: digest.digest() }
    }

    fn load_in_parts(
        state: StateFile,
        bytes: &[u8],
        part: usize,
    ) -> Result<Vec<u8>, StateFileError> {
        let mut loader = Loader::new(state, Chunks::default());
        for part in bytes.chunks(part) {
            loader.take(part)?;
        }
        loader.finish().map(|(machine, _)| machine)
    }

    #[test]
    fn a_file_loads_the_same_however_it_is_cut() {
        let (state, bytes) = file(&[b"one", b"two", b"three"]);
        for part in 1..=bytes.len() {
            let loaded = load_in_parts(state, &bytes, part);
            assert_eq!(loaded, Ok(b"onetwothree".to_vec()), "parts of {part} bytes");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_refused_wherever_it_ends() {
        let (_, bytes) = file(&[b"one"]);
        let borders = [bytes.len() - 7, bytes.len()];
        for len in (0..bytes.len()).filter(|len| !borders.contains(len)) {
            let cut = &bytes[..len];
            let refused = load_in_parts(named(cut), cut, 8).unwrap_err();
            assert!(matches!(refused, StateFileError::Malformed { id: 3, .. }), "{len} bytes");
        }
    }

    #[test]
    fn other_bytes_than_the_checkpoint_names_are_refused() {
        let (state, mut bytes) = file(&[b"one"]);
        *bytes.last_mut().unwrap() ^= 1;
        let refused = load_in_parts(state, &bytes, 8);
        assert_eq!(refused, Err(StateFileError::Digest { id: 3 }));
    }

    #[test]
    fn more_bytes_than_the_checkpoint_names_are_refused_at_once() {
        let (state, bytes) = file(&[b"one"]);
        let mut loader = Loader::new(state, Chunks::default());
        loader.take(&bytes).unwrap();
        assert!(loader.take(b"x").is_err());
    }

    #[test]
    fn a_chunk_that_claims_an_absurd_length_is_refused_before_its_bytes_come() {
        let (_, mut bytes) = file(&[]);
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        let state = StateFile { length: u64::MAX, ..named(&bytes) };
        let refused = load_in_parts(state, &bytes, 64).unwrap_err();
        assert!(refused.to_string().contains("absurdly long"), "{refused}");
    }

    #[test]
    fn what_the_machine_refuses_is_malformed() {
        let (state, bytes) = file(&[b"one", b"bad"]);
        let refused = load_in_parts(state, &bytes, 64).unwrap_err();
        assert!(refused.to_string().contains("no chunk"), "{refused}");
    }
}
