//! The [`Region`] that production uses: a [`Mapping`] and a durability mode.
//!
//! | mode | backing it needs | `persist` does | durable |
//! |---|---|---|---|
//! | `volatile` | any | nothing | at once |
//! | `process` | a file with a name | nothing: the page cache outlives the process | at once |
//! | `sync` | such a file, not in memory | asks the syncer | once a sync behind it is done |
//! | others | directly mapped persistent memory | | refused: there is none here |
//!
//! # Invariants
//! - `durable` says `Ok` only while no byte of the mapping was found missing.
//! - `persist`, `durable` and the copies allocate nothing while all is well.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use base::Durability;

use crate::syncer::Syncer;
use crate::{Backing, MapError, Mapping, Region, RegionError, Ticket};

/// A region in mapped memory. One thread owns it; its [`Mapping`] may be shared.
#[derive(Debug)]
pub struct MappedRegion {
    // Invariant: dropped first, so that what waits is synced while all is mapped.
    syncer: Option<Syncer>,
    mapping: Arc<Mapping>,
    mode: Durability,
    issued: Ticket,
}

impl MappedRegion {
    /// Makes a region of `mapping` that promises `mode`. `on_progress` is called on another thread
    /// whenever `durable` has news, good or bad, so that a sleeping owner wakes; in modes that are
    /// durable at once it is never called. It must not block.
    ///
    /// # Errors
    /// [`MapError::Mode`] when the mapping cannot back the mode, [`MapError::System`] when no
    /// thread can be started.
    pub fn new(
        mapping: Arc<Mapping>,
        mode: Durability,
        on_progress: impl Fn() + Send + 'static,
    ) -> Result<Self, MapError> {
        Self::with_sync(mapping, mode, Mapping::sync, on_progress)
    }

    /// As [`Self::new`], with another way to make the mapping durable in `sync` mode: for tests
    /// that need a sync to fail or to wait. Once it has returned an error it is not called again.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_sync(
        mapping: Arc<Mapping>,
        mode: Durability,
        mut sync: impl FnMut(&Mapping) -> Result<(), RegionError> + Send + 'static,
        on_progress: impl Fn() + Send + 'static,
    ) -> Result<Self, MapError> {
        if let Some(why) = why_not(&mapping, mode)? {
            return Err(MapError::Mode { path: mapping.name().to_owned(), mode, why });
        }
        let syncer = if mode == Durability::Sync {
            let theirs = Arc::clone(&mapping);
            let started = Syncer::start(Box::new(move || sync(&theirs)), Box::new(on_progress));
            Some(started.map_err(|error| {
                MapError::system(mapping.name(), "start the sync thread of", error)
            })?)
        } else {
            None
        };
        Ok(Self { syncer, mapping, mode, issued: Ticket::default() })
    }

    /// The memory of the region.
    #[must_use]
    pub const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl Region for MappedRegion {
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn durability(&self) -> Durability {
        self.mode
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }

    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self.mapping.copy_in(at, from);
    }

    fn copy_in_unordered(&mut self, at: u64, from: &[u8]) {
        self.mapping.copy_in_unordered(at, from);
    }

    fn load(&self, at: u64) -> u64 {
        self.mapping.load(at)
    }

    fn store(&mut self, at: u64, value: u64) {
        self.mapping.store(at, value);
    }

    fn fence(&self) {
        self.mapping.fence();
    }

    #[inline]
    fn persist(&mut self, range: Range<u64>) -> Ticket {
        self.mapping.check_range(&range);
        self.mapping.spend_write_delay();
        self.issued = Ticket(self.issued.0 + 1);
        if let Some(syncer) = &self.syncer {
            syncer.request(self.issued);
        }
        self.issued
    }

    #[inline]
    fn durable(&mut self) -> Result<Ticket, RegionError> {
        let durable = match &self.syncer {
            Some(syncer) => syncer.durable()?,
            None => self.issued,
        };
        self.mapping.health()?;
        Ok(durable)
    }
}

/// What stands against `mode` on this mapping.
fn why_not(mapping: &Mapping, mode: Durability) -> Result<Option<&'static str>, MapError> {
    let path = mapping.name();
    match mode {
        Durability::Volatile => Ok(None),
        Durability::Process | Durability::Sync => {
            let Some(fd) = mapping.fd() else {
                return Ok(Some("anonymous memory is gone with the process"));
            };
            if !has_name(path, fd)? {
                return Ok(Some("a file without a name is gone with its last process"));
            }
            let is_memory = mapping.backing() == Some(Backing::Memory);
            Ok((is_memory && mode == Durability::Sync)
                .then_some("the file lies in memory (tmpfs), where a sync does nothing"))
        }
        Durability::ReadBack | Durability::Platform | Durability::Flush => {
            Ok(Some("it needs directly mapped (DAX) persistent memory, and the page cache is none"))
        }
        Durability::TargetCpu => {
            Ok(Some("it is a promise of the fabric's target, not of a mapping; map it as sync"))
        }
    }
}

fn has_name(path: &str, fd: BorrowedFd<'_>) -> Result<bool, MapError> {
    rustix::fs::fstat(fd)
        .map(|stat| stat.st_nlink > 0)
        .map_err(|error| MapError::system(path, "look at", error))
}
