//! The shard loop: one thread owns some groups, steps their consensus cores, and runs what the
//! cores want done on a fabric and on regions of persistent memory.
//!
//! ```text
//!   door --request--> Shard::turn --answers--> door
//!                       |
//!            Group { Core, MemberLog, Region, StateMachine, sessions }
//!                       |
//!                Fabric: WRITE.. READ grant word, READ, SEND
//! ```
//!
//! # Invariants
//! - One thread owns everything here; nothing blocks, sleeps or reads a clock.
//! - Effects of the core are run in their order. What answers a walk or a fence comes in a later
//!   turn, what answers an append in the same one.
//! - A committed entry is read from the log where it lies, verified again, and applied once.
//! - Every queue has a limit; a full one refuses, it does not grow.
//!
//! Deliberately absent: threads, sockets, files. [`Env`] brings them.
#![forbid(unsafe_code)]

mod apply;
mod chain;
mod checkpoint;
mod door;
mod env;
mod fetch;
mod greeting;
mod group;
mod limits;
pub mod machine;
mod proposals;
mod receive;
mod shard;
mod shared;
mod start;
mod state_file;
mod view;

pub use door::{Answer, Answered, Notice, Request, Token};
pub use env::{Env, FileError, Resources, StateFiles};
pub use limits::{CONTROL_BYTES, FETCH_BYTES_MIN, landing_len};
pub use shard::{JoinError, Shard, Turn};
pub use start::{Founding, OpenError, Opening, found, read_superblock};
pub use state_file::{FileDigest as StateDigest, StateFileError};
