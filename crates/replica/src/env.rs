//! What a shard needs from the world. The binary gives it hardware, the simulator a world of its
//! own; the code between is the same.

use base::MemberId;
use fabric::Fabric;
use pmem::{Region, Ticket};

use crate::machine::StateMachine;

/// The types that one deployment is made of.
pub trait Env {
    /// How members reach each other.
    type Fabric: Fabric;
    /// Where a member's log lies.
    type Region: Region;
    /// Where its state files lie.
    type Files: StateFiles;
    /// What its commands mean.
    type Machine: StateMachine;
}

/// What went wrong with a state file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("state file {id}: {what}")]
pub struct FileError {
    /// The file's number.
    pub id: u64,
    /// The storage's words.
    pub what: String,
}

/// Numbered files in a member's directory, each written once, front to back.
///
/// Nothing here blocks for longer than a copy into memory: durability comes later, by ticket.
pub trait StateFiles {
    /// Makes an empty file, replacing one of the same number.
    ///
    /// # Errors
    /// [`FileError`] when there is no room.
    fn create(&mut self, id: u64) -> Result<(), FileError>;

    /// Whether to append now. An implementation that hands the bytes to a thread of its own says no
    /// while that is behind; the caller comes again.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether all that was appended to the file could be written so far: for an implementation
    /// whose `append` cannot know yet.
    ///
    /// # Errors
    /// [`FileError`] when not, as from a full disk: the file is of no use then.
    fn health(&self, _id: u64) -> Result<(), FileError> {
        Ok(())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`FileError`] when the file is not there or there is no room.
    fn append(&mut self, id: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Begins to make the file and its name durable.
    ///
    /// # Errors
    /// [`FileError`] when the file is not there.
    fn sync(&mut self, id: u64) -> Result<Ticket, FileError>;

    /// The latest ticket that, with all before it, is durable.
    ///
    /// # Errors
    /// [`FileError`] once a sync has failed; it stays.
    fn synced(&mut self) -> Result<Ticket, FileError>;

    /// The file's length in bytes, if there is such a file.
    fn len(&self, id: u64) -> Option<u64>;

    /// Reads exactly `into.len()` bytes at `offset`.
    ///
    /// # Errors
    /// [`FileError`] when they are not all there.
    fn read(&self, id: u64, offset: u64, into: &mut [u8]) -> Result<(), FileError>;

    /// Removes a file, if it is there.
    fn remove(&mut self, id: u64);

    /// The numbers of all files.
    fn list(&self) -> Vec<u64>;
}

/// What one shard is given.
#[derive(Debug)]
pub struct Resources<E: Env> {
    /// Which member this is, in every group of the shard.
    pub member: MemberId,
    /// The way to the others.
    pub fabric: E::Fabric,
    /// Memory with one control line per group, the same for the life of the region's incarnation;
    /// peers read it.
    pub control: E::Region,
    /// Memory that READs land in; of nobody else's concern.
    pub landing: E::Region,
    /// Fresh randomness.
    pub seed: u64,
}
