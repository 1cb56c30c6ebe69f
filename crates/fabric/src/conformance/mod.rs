//! The obligations of a provider, each a named case, to be run on every provider there is.
//!
//! A provider implements [`Harness`] and runs [`cases`]. Endpoints are driven turn by turn within
//! the test; a *target* is a peer that runs by itself (another process, where there are processes)
//! and can be stopped and killed. A case that needs what the harness does not have says so as
//! [`Outcome::Skipped`]; it never passes silently.
//!
//! Invariant: every wait is bounded by [`TURNS_MAX`] turns, so a provider that hangs fails.

mod link_cases;
mod memory_cases;
mod script;
mod target;
mod target_cases;

use base::MemberId;

use crate::{Fabric, RegionId};

pub use target::{Target, TargetKeys};

/// Endpoints that a harness has.
pub const ENDPOINTS: usize = 3;
/// Bytes of the region of each.
pub const REGION_LEN: u64 = 64 * 1024;
/// Turns after which something that should have happened has not.
pub const TURNS_MAX: u32 = 200_000;

/// What a provider's tests bring.
pub trait Harness {
    /// The provider.
    type Fabric: Fabric;

    /// The endpoint of this number, below [`ENDPOINTS`].
    fn fabric(&mut self, endpoint: usize) -> &mut Self::Fabric;

    /// Its member.
    fn member(&self, endpoint: usize) -> MemberId;

    /// Its region, of [`REGION_LEN`] zero bytes.
    fn region(&self, endpoint: usize) -> RegionId;

    /// The word of its region at `at`, as its owner sees it.
    fn load(&self, endpoint: usize, at: u64) -> u64;

    /// Stores a word into its region, visible to every later load, as its owner does.
    fn store(&mut self, endpoint: usize, at: u64, value: u64);

    /// Lets time pass: whatever is under way may come a step nearer.
    fn pass(&mut self);

    /// Starts a target with a region of its own, which runs [`Target`] by itself; `None` if the
    /// harness has none.
    fn start_target(&mut self) -> Option<MemberId> {
        None
    }

    /// Stops the target in the middle of whatever it does.
    fn stop_target(&mut self) {}

    /// Lets it go on.
    fn resume_target(&mut self) {}

    /// Ends it without a chance to say goodbye.
    fn kill_target(&mut self) {}
}

/// How a case ended, if it did not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The obligation holds.
    Passed,
    /// The harness cannot arrange it, for this reason.
    Skipped(&'static str),
}

/// One obligation.
#[derive(Debug)]
pub struct Case<H> {
    /// What is claimed.
    pub name: &'static str,
    /// Checks it on a fresh harness.
    pub run: fn(&mut H) -> Outcome,
}

macro_rules! cases {
    ($($module:ident: $($name:ident)+;)+) => {
        vec![$($(Case { name: stringify!($name), run: $module::$name::<H> }),+),+]
    };
}

/// Every case.
#[must_use]
pub fn cases<H: Harness>() -> Vec<Case<H>> {
    cases! {
        link_cases:
            both_sides_connect_and_greet
            asking_twice_makes_one_queue_pair
            both_may_ask_at_once
            messages_arrive_whole_and_in_order
            a_full_queue_of_messages_refuses_more
            a_message_that_is_too_long_is_refused
            a_ring_is_told_once_and_to_the_right_one
            a_dropped_queue_pair_is_told_and_takes_no_work
            a_reconnect_has_another_handle_and_no_old_messages
            an_unknown_queue_pair_takes_no_work
            work_in_flight_of_a_dropped_queue_pair_is_not_delivered;
        memory_cases:
            a_read_back_follows_its_writes
            pieces_are_concatenated
            a_read_copies_bytes
            completions_come_in_the_order_of_posting
            a_full_queue_pair_refuses_and_recovers
            a_refused_chain_has_done_nothing
            a_revoked_word_is_seen_by_the_next_read_back
            a_key_that_never_was_breaks_the_queue_pair
            a_range_that_passes_the_end_breaks_the_queue_pair
            memory_for_reading_cannot_be_written
            a_key_works_for_its_queue_pair_alone
            a_key_of_an_old_queue_pair_does_not_fit_a_new_one
            what_is_behind_a_failure_is_flushed
            a_deregistered_key_is_told_and_does_not_work
            keys_are_not_reused
            bad_registrations_are_refused;
        target_cases:
            a_stopped_peer_stays_connected_and_writable
            a_killed_peer_fails_work_and_is_seen_to_have_exited
            a_stopped_writer_holds_its_own_range_back_and_no_other
            a_killed_writer_lets_go
            a_running_writer_lets_go_when_asked;
    }
}
