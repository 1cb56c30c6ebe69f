//! What clients and members say to each other, as bytes.
//!
//! - [`door`]: asks and answers, the messages of a client's stream.
//! - [`command`], [`query`], [`reply`]: what the key-value store is told and asked, and what it
//!   says. Commands also stand in the log.
//! - [`codec`]: what the encodings share.
//!
//! Invariants: bytes from outside never make a decoder panic, recurse, or allocate by a length that
//! they claim; what an encoder makes, its decoder reads back.
//!
//! Deliberately absent: I/O, clocks, and any notion of how the bytes travel.
#![forbid(unsafe_code)]

pub mod codec;
pub mod command;
pub mod door;
pub mod query;
pub mod reply;

pub use codec::Fault;
pub use command::{
    Batch, Command, Compare, Condition, KEY_BYTES_MAX, OPERATIONS_MAX, VALUE_BYTES_MAX, Write,
};
pub use query::{Query, SCAN_BYTES_MAX, SCAN_ENTRIES_MAX};
pub use reply::{Found, Page, Refusal, Reply, WriteResult};
