//! A deterministic world from one seed that steps the real code, and its checkers.
//!
//! - [`world`], [`memory`], [`files`], [`fabric`]: time, hosts, persistent memory, disks and a
//!   verbs-exact network, with every fault they may have.
//! - [`node`], [`client`], [`plan`], [`cluster`]: members that run the real shard code, clients,
//!   and schedules of faults.
//! - [`oracle`], [`linear`]: the checkers, which stand outside the code under test.
//! - [`search`]: every course of the core within bounds.
//! - [`mutants`]: the faults that can be planted, each of which a checker must see.
#![forbid(unsafe_code)]

mod bits;
pub mod campaign;
pub mod client;
pub mod cluster;
pub mod exhaust;
pub mod fabric;
pub mod files;
pub mod linear;
pub mod memory;
pub mod mutants;
pub mod node;
pub mod oracle;
pub mod plan;
pub mod search;
pub mod world;
