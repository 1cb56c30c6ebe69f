//! Regions on real files, with real faults, processes and threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![expect(
    clippy::print_stdout,
    reason = "a test that is skipped says so, a child says where it is"
)]
#![expect(unsafe_code, reason = "a child maps memory that is not a region")]

mod files;
mod lost_memory;
mod regions;
mod support;
mod sync;
