//! The replication protocol as a pure state machine.
//!
//! One [`Core`] decides for one member of one group. It has no clock, no randomness of its own, no
//! thread and no I/O: [`Core::step`] takes the time, one [`Event`] and a view of the member's log,
//! and appends [`Effect`]s. The order of the effects is the contract: whoever runs them runs them
//! in that order. Payload bytes never pass through here.
//!
//! ```text
//!              Event                                Effect
//!   completions, messages,      +------+     store grant, walk, flush, write superblock,
//!   walks, ticks, proposals --> | Core | --> append, chain (WRITE.. READ grant word), send,
//!                               +------+     commit, reads ready, take checkpoint, ...
//!                                   ^
//!                               LogView (terms, shapes, tail, configuration)
//! ```
//!
//! # How to read it
//! `fence` is the one way in: every vote, follow and re-grant of a member runs through it.
//! `election` is suspicion, pre-vote, candidacy and adoption of the best log. `leader` is
//! replication, the commit rule and check-quorum, with `peer` holding what the leader knows of one
//! follower and `remote` where in that follower's segments the next entry goes. `reads`,
//! `membership`, `transfer` and `snapshot` are what their names say. `slots` gives segments out.
//!
//! # Invariants
//! - A member replies to a vote, follow or re-grant only after it has, in this order: stored the
//!   new grant word, fenced, walked, made durable what the walk found, and written the superblock.
//! - A leader counts an entry at a follower only when a read-back returned exactly the word under
//!   which the chain was posted, on the connection that is still current for that member.
//! - Commit moves only to entries of the leader's own term, and never back.
//! - One fence-and-grant runs at a time; a leader stops leading before it begins one.
#![forbid(unsafe_code)]

mod boundaries;
mod core;
mod effect;
mod election;
mod event;
mod fence;
mod leader;
mod membership;
pub mod message;
mod params;
mod peer;
mod reads;
mod remote;
pub mod session;
mod slots;
mod snapshot;
mod superblock;
mod transfer;
mod view;
pub mod wire;

pub use boundaries::{Outline, match_point};
pub use core::{Core, Follower, Role, Start};
pub use effect::{Append, Chain, Effect, Fetch, Output, Refusal, Run};
pub use event::{Event, SegmentEnd};
pub use message::{Connection, Granted, Message, Room, VoteRefusal};
pub use params::Params;
pub use view::LogView;
