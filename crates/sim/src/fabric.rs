//! The simulated provider of the verbs model: every order, delay, loss and late landing that
//! reliable connections, shared memory or a target's I/O thread may show, and no other.
//!
//! ```text
//!   owner's post ─> queue ──transmit──> wire ──execute──> landing, line by line ─┐
//!                   (Local pieces are   (a request of     READ: [sync or flush]  │ one request of
//!                    read here)          a dead queue      then sample the word  │ a queue pair at
//!                                        pair may wait     then answer ──────────┘ a time
//!                                        here for long)             │
//!   owner's poll <──────────────── deliver (later; maybe re-executed first) <────┘
//! ```
//!
//! # Invariants
//! - One direction of a queue pair executes one request at a time, in the order of posting. The
//!   lines of one WRITE land at separate times in any order; a READ is executed after every line
//!   of every WRITE before it has landed and, in modes that say so, is durable.
//! - Landing, durability, sampling and delivery of a completion are separate events, between which
//!   anything else may happen.
//! - Key, range and right are checked at every landing, not at posting.
//! - A dead queue pair delivers nothing to its owner, but a random prefix of what it had on the
//!   wire may land long after, until the key's deregistration has ended or the target lost power.
//! - Keys and handles are never used twice in a world.
//!
//! Planted faults: `shm_no_fence`, `read_before_write`, `recycle_early`.

mod connect;
mod execute;
mod faults;
mod handle;
mod state;
#[cfg(test)]
mod tests;

pub use handle::SimFabric;
pub use state::FabricOptions;
pub(crate) use state::{Network, Process};
