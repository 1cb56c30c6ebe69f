//! The shared-memory provider against the conformance suite, within one process and across
//! processes, and the litmus.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod dekker;
mod harness;
mod place;
mod suite;
