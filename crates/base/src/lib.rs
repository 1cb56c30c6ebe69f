//! Identifiers, time, configurations and the two switches that every other crate shares.
//!
//! Pure: no clock, no randomness, no thread, no I/O. Every id, index and count that could be
//! mistaken for another is a type of its own.
#![forbid(unsafe_code)]
#![cfg_attr(mutant, allow(unexpected_cfgs, reason = "any mutant name may be given"))]

mod configuration;
mod durability;
mod ids;
pub mod mutant;
mod random;
mod time;

pub use configuration::{Configuration, ConfigurationError, MEMBERS_MAX, Member, MemberSet};
pub use durability::Durability;
pub use ids::{
    BootId, ClusterId, Digest, GrantWord, GroupId, Incarnation, Index, MemberId, Nonce, SlotId,
    Term,
};
pub use random::Random;
pub use time::{Duration, Instant};

/// Whether [`check!`] is alive: always, except in a build with a `mutant` switch.
pub const ASSERTIONS: bool = !cfg!(assertions_off);

/// An assertion of the core about itself: aborts with its message when the condition is false.
///
/// It is compiled out in a build with a `mutant` switch, so that a planted fault is caught by a
/// checker that stands outside the code it was planted in.
#[macro_export]
macro_rules! check {
    ($condition:expr $(,)?) => {
        if $crate::ASSERTIONS {
            assert!($condition);
        }
    };
    ($condition:expr, $($message:tt)+) => {
        if $crate::ASSERTIONS {
            assert!($condition, $($message)+);
        }
    };
}
