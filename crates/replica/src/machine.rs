//! What a state machine is to the replica: the interface that key-value stores, tables and volumes
//! implement.
//!
//! ```text
//!   committed entries --> apply / advance --> state at (index, log time) --> read
//!                                               |                 ^
//!                                        checkpoint            finish
//!                                               v                 |
//!                                             View --chunks--> Installer
//!                                   (numbered, checked; apply goes on meanwhile)
//! ```
//!
//! Invariants every implementor keeps:
//! - **Deterministic.** The state and every reply are a function of the entries applied since the
//!   empty state: no clock, no randomness, no hash order, no configuration that could differ
//!   between members, and no trace of how entries were cut into batches.
//! - **Total.** Every command gets exactly one reply, in order; bytes that are no command get a
//!   reply that says so. Nothing a client sends makes a machine panic.
//! - **Bounded.** One call does work in proportion to the bytes it was given plus a named constant.
//!
//! Deliberately absent: sessions (a duplicate never gets here), threads, files, and the wall clock.

use std::fmt;

use base::{Digest, Index};
pub use consensus::session::LogTime;

/// A committed command, with its session envelope taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed<'a> {
    /// Its position in the log.
    pub index: Index,
    /// Its log time; never earlier than that of a lower index.
    pub time: LogTime,
    /// The command in the machine's own encoding, not yet looked at by anybody.
    pub command: &'a [u8],
}

/// A state that committed commands move from one value to the next.
pub trait StateMachine: Send {
    /// A frozen state, streamed to a file or to another member.
    type View: View;
    /// What turns a streamed state back into a machine.
    type Installer: Installer<Machine = Self>;

    /// Applies `batch` in order and adds one reply per command to `replies`.
    ///
    /// Between them, `apply` and [`advance`](Self::advance) see every entry of the log once and in
    /// its order: the first index is the one after [`applied`](Self::applied), and none is left
    /// out. How much expires is counted per entry, so an entry that one member skips is a
    /// difference between members.
    fn apply(&mut self, batch: &[Committed<'_>], replies: &mut Replies);

    /// Moves on to the next entry, which has no command for the machine (a tick, a leader's first
    /// entry, a configuration, a duplicate or refused command): what is due at `time` expires.
    fn advance(&mut self, index: Index, time: LogTime);

    /// The last entry in the state and its log time. An empty machine is at index 0.
    fn applied(&self) -> (Index, LogTime);

    /// Answers `query` from the applied state and appends the answer to `reply`.
    ///
    /// What has expired is judged by the log time of the last applied entry, never by a later
    /// moment: a key that one read found gone must not come back after a change of leader.
    fn read(&self, query: &[u8], reply: &mut Vec<u8>);

    /// When the next thing expires; a leader whose log time passes it appends a tick.
    fn next_expiry(&self) -> Option<LogTime>;

    /// Freezes the state as it is now, in time that does not grow with it. The view's chunks carry
    /// about `chunk_bytes` bytes each; a machine may round that up to a least value of its own.
    fn checkpoint(&mut self, chunk_bytes: u32) -> Self::View;

    /// An installer that will yield a machine like this one (same resources) with another state.
    /// This machine stays as it is until its owner replaces it.
    fn installer(&self) -> Self::Installer;

    /// A hash over the whole logical state: equal for equal states, whatever the order of writes,
    /// checkpoints and installs that led there.
    fn digest(&self) -> Digest;

    /// Bytes of memory the state accounts for.
    fn state_bytes(&self) -> u64;

    /// The lowest log index whose entry the state still refers to: trim must not pass it. `None`
    /// for a machine that owns its values.
    fn lowest_referenced(&self) -> Option<Index>;

    /// Work that `apply` put off (flushes, merges), in bytes: the replica slows proposals down by
    /// it. 0 for a machine that puts nothing off.
    fn backlog(&self) -> u64;
}

/// A state frozen at one applied index, streamed in chunks numbered from 0.
pub trait View: Send {
    /// The last entry that is in this state and its log time.
    fn applied(&self) -> (Index, LogTime);

    /// Appends chunk `number` to `out` and tells whether it is the last one.
    ///
    /// A chunk can be asked for again: its bytes are the same every time. Memory for the whole
    /// stream stays within a few chunks.
    ///
    /// # Errors
    /// [`NoSuchChunk`] when `number` is past the last chunk or more than one past those already
    /// made; `out` is as it was.
    fn chunk(&mut self, number: u32, out: &mut Vec<u8>) -> Result<ChunkEnd, NoSuchChunk>;
}

/// What comes behind a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEnd {
    /// Another chunk.
    More,
    /// Nothing: the stream is complete.
    Last,
}

/// A chunk number that a view cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunk {number} was asked for, the next one is {next}: ask for chunks in order")]
pub struct NoSuchChunk {
    /// The number asked for.
    pub number: u32,
    /// The highest number that may be asked for.
    pub next: u32,
}

/// Takes a view's chunks in order and yields the machine.
pub trait Installer: Send {
    /// What it yields.
    type Machine;
    /// Why a chunk or the stream was refused.
    type Error: std::error::Error + Send + 'static;

    /// The number of the chunk expected next: where a stream that broke off goes on.
    fn next(&self) -> u32;

    /// Verifies a chunk and takes it in.
    ///
    /// # Errors
    /// When the chunk is not the expected one, is damaged, or belongs to another view: the
    /// installer is then as it was, and the right chunk can still be given. When an intact chunk
    /// holds what no machine would write: then the installer refuses everything that follows.
    fn chunk(&mut self, bytes: &[u8]) -> Result<ChunkEnd, Self::Error>;

    /// The machine, once the last chunk has been taken.
    ///
    /// # Errors
    /// When the stream is incomplete, or what it held does not add up to what its head announced.
    fn finish(self) -> Result<Self::Machine, Self::Error>;
}

/// The replies of one batch: bytes one behind the other in an arena that is used again, so that a
/// reply costs no allocation once the arena has grown to its usual size.
#[derive(Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Where each reply ends. Invariant: ascending, the last one is `bytes.len()`.
    ends: Vec<usize>,
}

/// Capacity that [`Replies::clear`] keeps: room for a batch of ordinary replies. One batch of huge
/// ones must not pin its memory for ever.
const RETAINED_BYTES_MAX: usize = 1 << 20;

impl Replies {
    /// An empty arena.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a reply that `write` appends to the vector it is given.
    ///
    /// # Panics
    /// When `write` shortens the vector: it would cut into the replies before.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        assert!(start <= self.bytes.len(), "a reply only appends");
        self.ends.push(self.bytes.len());
    }

    /// Adds a reply.
    pub fn push(&mut self, reply: &[u8]) {
        self.push_with(|out| out.extend_from_slice(reply));
    }

    /// The reply at `position`, counted from 0.
    #[must_use]
    pub fn at(&self, position: usize) -> Option<&[u8]> {
        let end = *self.ends.get(position)?;
        let start = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// The replies in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|position| self.at(position))
    }

    /// How many replies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no reply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets the replies and keeps their memory for the next batch, up to 1 MiB.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.bytes.shrink_to(RETAINED_BYTES_MAX);
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_keep_their_order_and_their_bounds() {
        let mut replies = Replies::new();
        replies.push(b"one");
        replies.push(b"");
        replies.push_with(|out| out.extend_from_slice(b"three"));
        assert_eq!(replies.iter().collect::<Vec<_>>(), [&b"one"[..], b"", b"three"]);
        assert_eq!(replies.at(2), Some(&b"three"[..]));
        assert_eq!(replies.at(3), None);
    }

    #[test]
    fn a_cleared_arena_starts_anew_and_keeps_only_ordinary_memory() {
        let mut replies = Replies::new();
        replies.push(&vec![7; 4 * RETAINED_BYTES_MAX]);
        replies.clear();
        assert!(replies.is_empty());
        assert!(replies.bytes.capacity() <= RETAINED_BYTES_MAX);
        replies.push(b"next");
        assert_eq!(replies.iter().collect::<Vec<_>>(), [b"next"]);
    }
}
