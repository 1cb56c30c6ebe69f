//! The set `agree`: a group of members agrees, in the simulator and on one host.

use super::{Check, How, processes, protocol};

const fn function(
    name: &'static str,
    bound: &'static str,
    measure: fn(&crate::process::Runner, bool) -> anyhow::Result<super::Measured>,
) -> Check {
    Check { name, bound, how: How::Function(measure) }
}

const fn case(
    name: &'static str,
    bound: &'static str,
    arguments: &'static [&'static str],
) -> Check {
    Check { name, bound, how: How::Case(arguments) }
}

const LINEARIZABLE: &str = "0 violations, at least 1 % unknown outcomes";
const PARKED: &str = "at least 0.95 of the rate before, 0 ms of the followers' processors";

/// The checks, the quick ones of the protocol first.
pub(super) const CHECKS: &[Check] = &[
    function("sim-seeds", "200 new seeds, 0 violations", protocol::measure_sim_seeds),
    function("mutants", "every planted fault caught", protocol::measure_mutants),
    function(
        "search",
        "more than 1,000,000 states, finished, 0 violations, at most 300 s",
        protocol::measure_search,
    ),
    function("litmus", "10,000,000 rounds, 0 forbidden outcomes", protocol::measure_litmus),
    function("demo", "0 lost writes", processes::measure_demo),
    function("commit-3", "at most 1.5 times raw-3", processes::measure_commit_3),
    function("commit-5", "at most 1.5 times raw-5", processes::measure_commit_5),
    case("parked-3", PARKED, &["parked", "--members", "3"]),
    case("parked-5", PARKED, &["parked", "--members", "5"]),
    case("kills-3", LINEARIZABLE, &["kills", "--members", "3", "--times", "50"]),
    case("kills-5", LINEARIZABLE, &["kills", "--members", "5", "--times", "50"]),
    case("stops-3", LINEARIZABLE, &["kills", "--fault", "stop", "--members", "3", "--times", "50"]),
    case("stops-5", LINEARIZABLE, &["kills", "--fault", "stop", "--members", "5", "--times", "50"]),
    case(
        "all-killed-3",
        LINEARIZABLE,
        &["kills", "--fault", "kill-all", "--members", "3", "--times", "20"],
    ),
    case(
        "all-killed-5",
        LINEARIZABLE,
        &["kills", "--fault", "kill-all", "--members", "5", "--times", "20"],
    ),
    case("minority-3", "commits with 1 down, refuses with 2", &["minority", "--members", "3"]),
    case("minority-5", "commits with 2 down, refuses with 3", &["minority", "--members", "5"]),
    case("sigterm", "20 hand-overs under load, no failed call", &["sigterm", "--times", "20"]),
    case("idle", "50 clients, below 2 % of a processor for each member", &["idle"]),
    case(
        "snapshot",
        "ten times the log; files bounded, memory +64 MiB, waits 50 ms at most",
        &["snapshot"],
    ),
    case("power-3", "20 cuts, 0 lost", &["power", "--members", "3", "--cuts", "20"]),
    case("power-5", "20 cuts, 0 lost", &["power", "--members", "5", "--cuts", "20"]),
    case("disks", "every bad disk an error to act on, 0 lost", &["disks"]),
];
