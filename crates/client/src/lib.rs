//! The client of a group whose members run on this host.
//!
//! ```no_run
//! use client::{Options, blocking::Client};
//!
//! let mut client = Client::connect(Options::of_cluster("remanent-data".as_ref())?)?;
//! client.put(b"greeting", b"hello")?;
//! let found = client.get(b"greeting")?.expect("it was just put");
//! assert_eq!(found.value, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`blocking::Client`] is for one thread and has the shortest way; [`asynchronous::Client`] is a
//! handle that any number of tasks share, on any executor. Both stand on one [`engine`], which
//! knows who leads, retries within a deadline, and runs every write in a session, so that a retry
//! is executed once.
//!
//! # Outcomes
//! An error is one of three: [`CallError::Refused`], not done and never will be; [`CallError::Unknown`], it
//! may or may not be done; [`CallError::Bad`], it can never be done as it is. A write that was handed
//! to a member and got no answer is never called refused.
//!
//! Deliberately absent: other hosts.
#![forbid(unsafe_code)]

pub mod asynchronous;
pub mod blocking;
mod calls;
mod cluster_file;
pub mod engine;
mod options;

pub use calls::{BatchReply, Entry, Found, Page};
pub use cluster_file::{CLUSTER_FILE_VERSION, ClusterFile, ClusterFileError, MemberFile};
pub use options::Options;
pub use proto::{Batch, Compare, Condition, Write, WriteResult};

/// Why a request did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not done, and never will be.
    #[error("refused: {0}")]
    Refused(String),
    /// It may or may not be done.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// It can never be done as it is.
    #[error("bad request: {0}")]
    Bad(String),
}
