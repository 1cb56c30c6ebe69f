//! The verbs model and its providers.
//!
//! - [`verbs`]: what a leader may ask of another member's memory; the contract of all providers.
//! - [`shm`]: the provider for members of one host. The poster itself stores into the other
//!   member's mapped memory; no CPU of the other side takes part.
//! - [`conformance`]: the cases that every provider has to pass.
//!
//! Deliberately absent: any knowledge of logs, terms or grants.
#![deny(unsafe_code)]

pub mod conformance;
// The order of a store and a later load of another agent's store is tested on x86-64 only.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod shm;
pub mod sleep;
pub mod verbs;

pub use sleep::Sleep;
pub use verbs::{
    Access, Caps, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId,
    RegisterError, Remote, Request, Status, WorkRequest,
};
