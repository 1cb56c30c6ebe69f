//! A state machine without state: it remembers when it was last told of a committed entry.
//!
//! That moment is when the commit index moved, so what a commit costs can be told from what a store
//! makes of it.

use std::convert::Infallible;
use std::time::Instant;

use base::{Digest, Index};
use replica::machine::{
    ChunkEnd, Committed, Installer, LogTime, NoSuchChunk, Replies, StateMachine, View,
};

/// The machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamping {
    applied: (Index, LogTime),
    stamped: Option<Instant>,
}

impl Stamping {
    /// When it was last told of a committed command.
    pub(crate) const fn stamped(&self) -> Option<Instant> {
        self.stamped
    }
}

impl StateMachine for Stamping {
    type View = Frozen;
    type Installer = Thawing;

    fn applied(&self) -> (Index, LogTime) {
        self.applied
    }

    fn apply(&mut self, batch: &[Committed<'_>], replies: &mut Replies) {
        self.stamped = Some(Instant::now());
        for committed in batch {
            self.applied = (committed.index, committed.time);
            replies.push(b"");
        }
    }

    fn advance(&mut self, index: Index, time: LogTime) {
        self.applied = (index, time);
    }

    fn read(&self, _query: &[u8], _reply: &mut Vec<u8>) {}

    fn next_expiry(&self) -> Option<LogTime> {
        None
    }

    fn checkpoint(&mut self, _chunk_bytes: u32) -> Frozen {
        Frozen(self.applied)
    }

    fn installer(&self) -> Thawing {
        Thawing(None)
    }

    fn digest(&self) -> Digest {
        Digest(self.applied.0.0)
    }

    fn state_bytes(&self) -> u64 {
        0
    }

    fn lowest_referenced(&self) -> Option<Index> {
        None
    }

    fn backlog(&self) -> u64 {
        0
    }
}

/// What it was at one index: the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen((Index, LogTime));

impl View for Frozen {
    fn applied(&self) -> (Index, LogTime) {
        self.0
    }

    fn chunk(&mut self, number: u32, out: &mut Vec<u8>) -> Result<ChunkEnd, NoSuchChunk> {
        if number > 0 {
            return Err(NoSuchChunk { number, next: 0 });
        }
        out.extend_from_slice(&self.0.0.0.to_le_bytes());
        out.extend_from_slice(&self.0.1.0.to_le_bytes());
        Ok(ChunkEnd::Last)
    }
}

/// Its way back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thawing(Option<(Index, LogTime)>);

impl Installer for Thawing {
    type Machine = Stamping;
    type Error = Infallible;

    fn next(&self) -> u32 {
        u32::from(self.0.is_some())
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<ChunkEnd, Infallible> {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
        let (index, time) = (word(0).unwrap_or_default(), word(8).unwrap_or_default());
        self.0 = Some((Index(u64::from_le_bytes(index)), LogTime(u64::from_le_bytes(time))));
        Ok(ChunkEnd::Last)
    }

    fn finish(self) -> Result<Stamping, Infallible> {
        Ok(Stamping { applied: self.0.unwrap_or_default(), stamped: None })
    }
}
