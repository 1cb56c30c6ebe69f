//! What the rest of the project may do with a region.
//!
//! A region is memory that a peer may write while we look at it. It is therefore copied in and
//! out and never borrowed: no method returns a reference into it.
//!
//! # The moments of a store
//! `copy_in` and `store` make bytes *visible* to every local thread and every peer. `fence` orders
//! them against later loads. Only when a [`Ticket`] from `persist` has been reached by `durable`
//! are the bytes of its range *durable* as the region's [`Durability`] mode means it.

use std::ops::Range;

use base::Durability;

/// Bytes that one store makes visible at once and one write-back makes durable at once.
pub const LINE: u64 = 64;

/// A place in the sequence of `persist` calls of one region. Later calls have greater tickets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Why a region can no longer be trusted. Every one of these is final for the region: nothing is
/// retried and nothing is acknowledged after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A sync or write-back failed: bytes not yet covered by `durable` may be gone.
    #[error(
        "{path}: sync failed: {what}; what was not acknowledged may be lost, restart the member"
    )]
    Sync {
        /// The region's file, or what it is called.
        path: String,
        /// The operating system's words.
        what: String,
    },
    /// The memory behind the mapping went away (truncated file, media error).
    #[error("{path}: the memory behind the region is gone at byte {at}: was the file truncated?")]
    Gone {
        /// The region's file, or what it is called.
        path: String,
        /// The first byte found missing.
        at: u64,
    },
}

/// One contiguous region: superblock and segment pool of a member.
///
/// Offsets and lengths are in bytes from the start of the region.
///
/// # Panics
/// Every method panics when its range does not lie inside the region, and `load` and `store` when
/// `at` is no multiple of 8: ranges from outside are checked before they get here.
pub trait Region {
    /// The region's length.
    fn len(&self) -> u64;

    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What `durable` promises.
    fn durability(&self) -> Durability;

    /// Copies bytes out. Bytes that somebody stores meanwhile may come out old or new, each by
    /// itself; aligned 8-byte words come out whole.
    fn copy_out(&self, at: u64, into: &mut [u8]);

    /// Copies bytes in, by stores in ascending order.
    fn copy_in(&mut self, at: u64, from: &[u8]);

    /// Copies bytes in, in any order, all of them visible before any later store of this thread.
    /// For payloads, which nobody looks at before something stored behind them says so: an
    /// implementor may then store past the cache, where the order of single stores is not kept.
    fn copy_in_unordered(&mut self, at: u64, from: &[u8]) {
        self.copy_in(at, from);
    }

    /// One aligned 8-byte load, never torn.
    fn load(&self, at: u64) -> u64;

    /// One aligned 8-byte store, never torn.
    fn store(&mut self, at: u64, value: u64);

    /// A full fence: every earlier store of this thread is visible before any later load.
    fn fence(&self);

    /// Begins to make `range` durable and returns its ticket. Modes that write back cache lines do
    /// it here; `sync` hands the range to the region's syncer, which takes everything that waits
    /// in one call.
    fn persist(&mut self, range: Range<u64>) -> Ticket;

    /// The latest ticket such that it and all before it are durable.
    ///
    /// # Errors
    /// [`RegionError`] once anything failed; it stays.
    fn durable(&mut self) -> Result<Ticket, RegionError>;
}
