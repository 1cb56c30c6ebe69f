//! The key-value state machine: ordered keys, conditional atomic batches, time to live, pages.
//!
//! ```text
//!   Command --encode--> log --apply--> Entries (ordered, persistent) --read--> Reply
//!   Query   --------------------------------^        |
//!                                               checkpoint: O(1) clone
//!                                                    v
//!                                             StoreView --chunks--> StoreInstaller
//! ```
//!
//! Invariants:
//! - The state is a function of the log: time to live counts log time, and even the limit on the
//!   state's size is a command ([`Command::Limit`]) and travels with checkpoints.
//! - A batch is applied whole or not at all.
//! - Nothing in bytes from outside makes it panic; nothing is allocated because a length claims it.
//!
//! Deliberately absent: sessions (a duplicate command never gets here), files, threads, clocks.
#![forbid(unsafe_code)]

mod entries;
mod machine;
mod stream;

#[cfg(test)]
mod tests;

pub use entries::ENTRY_OVERHEAD_BYTES;
pub use machine::{EXPIRIES_PER_ENTRY_MAX, READ_BACK_BYTES_MAX, Store};
pub use proto::{
    Batch, Command, Compare, Condition, Fault, Found, KEY_BYTES_MAX, OPERATIONS_MAX, Page, Query,
    Refusal, Reply, SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, VALUE_BYTES_MAX, Write, WriteResult,
};
pub use stream::{CHUNK_BYTES_MIN, InstallError, StoreInstaller, StoreView};
