//! Whole schedules as tests: the simulator is deterministic, and a few of its seeds stay green.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use sim::{
    cluster::{self, Report},
    plan::{Focus, Plan},
};

fn run(seed: u64, members: u32) -> Report {
    let plan = Plan::of_seed(seed, Some(members));
    let report = cluster::run(&plan, None);
    let told = report.violation.as_ref().map(ToString::to_string);
    assert_eq!(told, None, "seed {seed}, {members} members");
    report
}

/// Goal: a failing seed fails again. Method: one seed twice, and another one.
#[test]
fn a_seed_is_a_whole_course() {
    let (once, again, other) = (run(7, 3), run(7, 3), run(8, 3));
    assert_eq!((once.trace, once.events), (again.trace, again.events));
    assert_ne!(once.trace, other.trace);
}

/// Goal: groups of every size lose nothing and go on. Method: one schedule each; every one of them
/// must have done something.
#[test]
fn groups_of_one_to_seven_members_survive_their_faults() {
    for members in 1..=7 {
        let report = run(100 + u64::from(members), members);
        assert!(report.elections >= 1 && report.committed > 0, "{members} members: {report:?}");
    }
}

/// Goal: members come and go while leaders change. Method: schedules bent towards that.
#[test]
fn members_come_and_go_under_changing_leaders() {
    for seed in 1..=6 {
        let plan = Plan::focused(seed, Some(3), Focus::Membership);
        let report = cluster::run(&plan, None);
        assert_eq!(report.violation.map(|violation| violation.to_string()), None, "seed {seed}");
    }
}

/// Goal: a queue pair that takes few READs at a time delays chains and stops none. Method: no
/// faults, a window of eight chains, a queue pair that takes three READs, so that chains wait
/// behind each other for room. What waited for ever would be given up, with its connection, only
/// when the course is over: a handful of operations.
#[test]
fn a_narrow_queue_pair_delays_chains_and_stops_none() {
    let mut plan = Plan::of_seed(1, Some(3));
    plan.trouble = Duration::from_millis(300);
    plan.fault_every = plan.trouble * 2;
    plan.fabric.caps.reads_max = 3;
    plan.setup.params.chains_max = 8;
    plan.setup.params.batch_bytes_max = 256;
    plan.setup.params.suspicion_timeout = Duration::from_millis(50);
    (plan.clients, plan.habits.rest) = (8, Duration::from_micros(100));
    let report = cluster::run(&plan, None);
    assert_eq!(report.violation.map(|violation| violation.to_string()), None);
    assert!(report.operations > 1_000, "{} operations", report.operations);
}
