//! The protocol as scripts that a reader can follow.
//!
//! Each file in `testdata/` is one behaviour: its comments say what is shown and how, its commands
//! move a little world of members (`script` lists them), and what happens is printed below each
//! group of commands. Every member is a real core over a real log in a vector of bytes, so that
//! nonces, digests, seals and walks are those of the product; only the network and the clock are
//! the script's. `UPDATE_GOLDENFILES=1 cargo test -p consensus` writes the outputs anew.
//!
//! Besides the printed output a witness watches: two members never commit different entries at one
//! index, a term has one leader, a leader has all that was committed in earlier terms, and what it
//! counts at a member stands in that member's log.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod effects;
mod jobs;
mod machine;
mod member;
mod net;
mod script;
mod text;
mod world;

fn script(name: &str) {
    let path = format!("{}/testdata/{name}.script", env!("CARGO_MANIFEST_DIR"));
    goldenscript::run(&mut world::World::new(), path).unwrap();
}

#[test]
fn a_fence_is_not_hurried() {
    script("a_fence_is_not_hurried");
}

#[test]
fn a_hole_does_not_vouch() {
    script("a_hole_does_not_vouch");
}

#[test]
fn a_member_leaves_while_it_is_given_a_checkpoint() {
    script("a_member_leaves_while_it_is_given_a_checkpoint");
}

#[test]
fn a_repeated_request_is_answered_again() {
    script("a_repeated_request_is_answered_again");
}

#[test]
fn all_lose_power() {
    script("all_lose_power");
}

#[test]
fn best_log_begins_too_high() {
    script("best_log_begins_too_high");
}

#[test]
fn best_log_is_the_later_term() {
    script("best_log_is_the_later_term");
}

#[test]
fn best_voter_is_lost() {
    script("best_voter_is_lost");
}

#[test]
fn check_quorum_steps_down() {
    script("check_quorum_steps_down");
}

#[test]
fn checkpoint_and_trim() {
    script("checkpoint_and_trim");
}

#[test]
fn commit_is_believed_as_far_as_proved() {
    script("commit_is_believed_as_far_as_proved");
}

#[test]
fn commits_with_f_down_not_with_more() {
    script("commits_with_f_down_not_with_more");
}

#[test]
fn commits_without_the_leaders_own_copy() {
    script("commits_without_the_leaders_own_copy");
}

#[test]
fn crash_before_the_superblock() {
    script("crash_before_the_superblock");
}

#[test]
fn elects_and_commits() {
    script("elects_and_commits");
}

#[test]
fn exactly_once() {
    script("exactly_once");
}

#[test]
fn fence_before_walk() {
    script("fence_before_walk");
}

#[test]
fn flapping_member_does_not_disturb() {
    script("flapping_member_does_not_disturb");
}

#[test]
fn flush_before_report() {
    script("flush_before_report");
}

#[test]
fn hole_after_lost_tail() {
    script("hole_after_lost_tail");
}

#[test]
fn joint_change_3_to_5() {
    script("joint_change_3_to_5");
}

#[test]
fn late_write_into_an_empty_segment() {
    script("late_write_into_an_empty_segment");
}

#[test]
fn learner_does_not_campaign() {
    script("learner_does_not_campaign");
}

#[test]
fn linearizable_read_waits_for_a_quorum() {
    script("linearizable_read_waits_for_a_quorum");
}

#[test]
fn linearizable_read_waits_for_noop() {
    script("linearizable_read_waits_for_noop");
}

#[test]
fn match_point_and_streaming() {
    script("match_point_and_streaming");
}

#[test]
fn n1_to_n7() {
    script("n1_to_n7");
}

#[test]
fn new_leader_adopts_best_log() {
    script("new_leader_adopts_best_log");
}

#[test]
fn no_commit_of_old_terms_before_the_noop() {
    script("no_commit_of_old_terms_before_the_noop");
}

#[test]
fn no_room_is_lagging() {
    script("no_room_is_lagging");
}

#[test]
fn old_and_new_leader_do_not_alternate() {
    script("old_and_new_leader_do_not_alternate");
}

#[test]
fn one_change_at_a_time() {
    script("one_change_at_a_time");
}

#[test]
fn own_copy_counts_when_durable() {
    script("own_copy_counts_when_durable");
}

#[test]
fn partial_partition() {
    script("partial_partition");
}

#[test]
fn pipelining_and_windows() {
    script("pipelining_and_windows");
}

#[test]
fn prevote_needs_a_quorum_of_fresh_suspicion() {
    script("prevote_needs_a_quorum_of_fresh_suspicion");
}

#[test]
fn promoted_member_votes_without_knowing() {
    script("promoted_member_votes_without_knowing");
}

#[test]
fn quorum_by_the_best_logs_configuration() {
    script("quorum_by_the_best_logs_configuration");
}

#[test]
fn read_waits_for_a_full_window() {
    script("read_waits_for_a_full_window");
}

#[test]
fn regrant_in_the_same_term() {
    script("regrant_in_the_same_term");
}

#[test]
fn remove_leader() {
    script("remove_leader");
}

#[test]
fn restart_never_resumes_leading() {
    script("restart_never_resumes_leading");
}

#[test]
fn slow_follower_does_not_gate() {
    script("slow_follower_does_not_gate");
}

#[test]
fn snapshot_for_a_late_member() {
    script("snapshot_for_a_late_member");
}

#[test]
fn stale_bytes_of_the_same_nonce() {
    script("stale_bytes_of_the_same_nonce");
}

#[test]
fn stickiness() {
    script("stickiness");
}

#[test]
fn stopped_leader_wakes() {
    script("stopped_leader_wakes");
}

#[test]
fn storage_failure_acknowledges_nothing() {
    script("storage_failure_acknowledges_nothing");
}

#[test]
fn stuck_higher_term_reelects() {
    script("stuck_higher_term_reelects");
}

#[test]
fn transfer() {
    script("transfer");
}

#[test]
fn transfer_that_fails() {
    script("transfer_that_fails");
}

#[test]
fn uncommitted_change_is_undone() {
    script("uncommitted_change_is_undone");
}

#[test]
fn window_in_bytes() {
    script("window_in_bytes");
}
