//! What the search finds, and that the ways to make it smaller do not hide anything.

use super::{Bounds, Outcome, run};

fn search(bounds: &Bounds) -> Outcome {
    run(bounds, 2, |_| true)
}

/// One leader and a command: small enough for a build that is not optimised.
fn small() -> Bounds {
    Bounds { crashes: 0, ..Bounds::power_cuts() }
}

#[test]
fn one_leader_with_a_power_cut_is_safe() {
    let outcome = search(&Bounds { crashes: 1, ..Bounds::power_cuts() });
    assert_eq!(outcome.violation, None);
    assert!(outcome.finished && outcome.states > 5_000, "{} states", outcome.states);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (one, two) = (run(&small(), 1, |_| true), run(&small(), 2, |_| true));
    assert_eq!((one.states, one.transitions), (two.states, two.transitions));
    assert_eq!(one.depth, two.depth);
}

#[test]
fn a_fence_in_single_steps_is_safe_too() {
    let single = Bounds { merges_fences: false, split_flush: true, ..small() };
    let (merged, single) = (search(&small()), search(&single));
    assert_eq!((merged.violation, single.violation), (None, None));
    assert!(merged.states < single.states);
}

#[test]
fn naming_members_by_their_part_saves_states() {
    let alike = search(&small());
    let named = search(&Bounds { is_symmetric: false, ..small() });
    assert_eq!((alike.violation, named.violation), (None, None));
    assert!(alike.states * 2 < named.states);
}

#[test]
fn a_search_that_is_stopped_says_so() {
    let outcome = run(&small(), 1, |progress| progress.depth < 5);
    assert!(!outcome.finished);
}

#[cfg(mutant = "all")]
mod planted {
    //! Every fault that lies within these bounds is found, with a shortest trace.

    use super::*;

    fn rule_broken(planted: &'static str, bounds: Bounds) -> &'static str {
        let outcome = search(&Bounds { planted, ..bounds });
        outcome.violation.expect("the fault is caught").broken.rule
    }

    #[test]
    fn a_tail_reported_before_it_is_durable() {
        let bounds = Bounds { entries: 0, ..Bounds::default() };
        let rule = rule_broken("no_flush_before_report", bounds);
        assert_eq!(rule, "what is counted is durable there");
    }

    #[test]
    fn a_walk_before_the_word_is_stored() {
        let bounds = Bounds { entries: 0, crashes: 0, ..Bounds::default() };
        let rule = rule_broken("walk_before_store", bounds);
        assert_eq!(rule, "a quorum holds durably what is committed");
    }

    #[test]
    fn an_old_read_back_that_counts() {
        let rule = rule_broken("no_count_in_word", Bounds::regrants());
        assert_eq!(rule, "a quorum holds durably what is committed");
    }

    #[test]
    fn a_read_without_a_quorum() {
        let rule = rule_broken("read_without_quorum", Bounds::reads());
        assert_eq!(rule, "reads are linearizable");
    }
}
