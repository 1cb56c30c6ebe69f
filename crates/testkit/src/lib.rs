//! Clusters of real processes under faults, and the checks of what they promise.
//!
//! - [`cluster`]: members as processes that are killed, stopped and started again.
//! - [`load`]: clients that never pause for a fault, and the history of what they were told.
//! - [`media`]: file systems in files, to be cloned and spoiled.
//! - [`writers`]: clients at full rate, and what must be there in the end.
//! - [`cases`]: one module for each promise; each measures, and can plant the fault that it must
//!   see.
//!
//! What is measured is measured on the release binary, as its user would run it.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user through these"
)]

pub mod cases;
pub mod cluster;
pub mod load;
pub mod media;
pub mod writers;
