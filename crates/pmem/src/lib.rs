//! Mapped regions of persistent memory: files, shared memory, anonymous memory.
//!
//! ```text
//!   Region           what the rest of the project sees: copies, words, tickets
//!     MappedRegion     a durability mode over a
//!       Mapping          file | passed descriptor | memfd | anonymous memory, never a SIGBUS
//!       (syncer)         the thread behind `sync`
//! ```
//!
//! # Invariants
//! - Memory that a peer may write is copied in and out; no reference into it exists.
//! - A file is allocated in full before it has its name; a full disk is an error then, not later.
//! - Missing memory (a truncated file, a media error) is a [`RegionError`], never the process's end.
//! - A failed sync is final.
//!
//! The design is argued in `docs/design/003-regions.md`.
//!
//! # Deliberately absent
//! Directly mapped (DAX) files and the modes that need them; growing or shrinking a region.
#![expect(unsafe_code, reason = "maps memory, copies to and from it, writes back cache lines")]

mod backing;
pub mod conformance;
mod error;
mod file;
mod lines;
mod mapped;
mod mapping;
mod region;
mod sigbus;
mod syncer;
mod words;

pub use backing::{Backing, backing, boot_id};
pub use error::MapError;
pub use lines::WriteBack;
pub use mapped::MappedRegion;
pub use mapping::Mapping;
pub use region::{LINE, Region, RegionError, Ticket};
pub use sigbus::MAPPINGS_MAX;
