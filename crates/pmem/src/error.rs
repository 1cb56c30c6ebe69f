//! Why a region could not be made or opened.

use std::io;

use base::Durability;

use crate::sigbus::MAPPINGS_MAX;

/// Why there is no mapping or no region. Nothing was promised, and a file that the call created is
/// removed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0, or the length or the start is no multiple of 4096, or beyond what can be
    /// addressed.
    #[error(
        "{path}: a region of {len} bytes from {start} on is not possible: both are multiples of \
         4096, and the length is not 0"
    )]
    Length {
        /// What was to be mapped.
        path: String,
        /// Where the region was to start in it, in bytes.
        start: u64,
        /// The length asked for, in bytes.
        len: u64,
    },
    /// There is a file of this name already; it was left alone.
    #[error("{path}: exists already: open it, or remove it if its content may be lost")]
    Exists {
        /// The file.
        path: String,
    },
    /// The file system has no room for the whole region.
    #[error("{path}: no room for {len} bytes: free space or choose a smaller region")]
    NoSpace {
        /// The file.
        path: String,
        /// The length asked for, in bytes.
        len: u64,
    },
    /// The file system cannot allocate a file in full, so that a later store could fail.
    #[error("{path}: the file system cannot allocate files in full (fallocate): use another one")]
    CannotAllocate {
        /// The file.
        path: String,
    },
    /// The file is shorter than the region that should lie in it.
    #[error("{path}: truncated: expected at least {expected} bytes, found {found}")]
    Truncated {
        /// The file.
        path: String,
        /// Bytes that should be there.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Not a regular file.
    #[error("{path}: not a regular file")]
    NotAFile {
        /// What was to be opened.
        path: String,
    },
    /// Another owner has the region open.
    #[error("{path}: already in use by {}", holder(*pid))]
    InUse {
        /// The file.
        path: String,
        /// The owner's process, where the system tells.
        pid: Option<u32>,
    },
    /// The process has as many mappings as the SIGBUS handler can watch.
    #[error("{path}: this process has {MAPPINGS_MAX} regions mapped already, which is the limit")]
    TooMany {
        /// What was to be mapped.
        path: String,
    },
    /// The memory behind the mapping cannot back the durability mode.
    #[error("{path}: cannot back durability mode {}: {why}", .mode.name())]
    Mode {
        /// The region's file, or what it is called.
        path: String,
        /// The mode asked for.
        mode: Durability,
        /// What stands against it.
        why: &'static str,
    },
    /// The operating system said no.
    #[error("{path}: cannot {doing}: {source}")]
    System {
        /// The file, or what the region is called.
        path: String,
        /// What was tried.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl MapError {
    /// The operating system's `source` to `doing` something with `path`.
    pub(crate) fn system(path: &str, doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { path: path.to_owned(), doing, source: source.into() }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"))
}
