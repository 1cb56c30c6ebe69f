//! Checks of the protocol itself: in the simulator, by search, and on two threads.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Measured;
use crate::process::{Runner, is_result, number};
use crate::simulator::{self, Build};
use crate::workspace;

/// New seeds that `sim-seeds` runs.
const SEEDS: u64 = 200;

/// States that the search must visit to count as one.
const SEARCH_STATES_MIN: u64 = 1_000_000;

/// Time that the search may take, compilation aside.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(300);

/// Rounds of the litmus test of the read-back: a missing fence showed itself in some ten thousand
/// of eight million rounds, so ten million leave no doubt.
const LITMUS_ROUNDS: u64 = 10_000_000;

/// The fault for `--plant`: a leader that counts its own copy before it is durable. The shortest way
/// to lose a committed entry: five steps.
const PLANTED_MUTANT: &str = "own_copy_before_persist";

pub(super) fn measure_sim_seeds(runner: &Runner, plant: bool) -> Result<Measured> {
    let seeds = SEEDS.to_string();
    let ordinary = ["--schedules", seeds.as_str()];
    let planted = ["--schedules", seeds.as_str(), "--mutant", PLANTED_MUTANT];
    let finished = if plant {
        simulator::measure(runner, Build::Mutants, &planted)?
    } else {
        simulator::measure(runner, Build::Ordinary, &ordinary)?
    };
    let result = finished.result()?;
    let (schedules, violations) = (number(&result, "schedules")?, number(&result, "violations")?);
    Ok(Measured {
        value: format!("{schedules} seeds, {violations} violations"),
        holds: schedules >= SEEDS && violations == 0 && finished.status.success(),
    })
}

/// Planted: the ordinary build, in which no fault is there to be caught.
pub(super) fn measure_mutants(runner: &Runner, plant: bool) -> Result<Measured> {
    let build = if plant { Build::Ordinary } else { Build::Mutants };
    let finished = simulator::measure(runner, build, &["mutants"])?;
    let result = finished.result()?;
    let (planted, caught) = (number(&result, "mutants")?, number(&result, "caught")?);
    Ok(Measured {
        value: format!("{caught} of {planted} caught"),
        holds: planted > 0 && caught == planted && finished.status.success(),
    })
}

pub(super) fn measure_search(runner: &Runner, plant: bool) -> Result<Measured> {
    let build = if plant { Build::Mutants } else { Build::Ordinary };
    let arguments: &[&str] =
        if plant { &["search", "--mutant", PLANTED_MUTANT] } else { &["search"] };
    simulator::compile(runner, build)?;
    let start = Instant::now();
    let finished = simulator::measure(runner, build, arguments)?;
    let taken = start.elapsed();
    let result = finished.result()?;
    let (states, violations) = (number(&result, "states")?, number(&result, "violations")?);
    let ended = result.get("finished").is_some_and(|value| value == "true");
    let how = if ended { "finished" } else { "not finished" };
    Ok(Measured {
        value: format!("{states} states, {how}, {violations} violations, {} s", taken.as_secs()),
        holds: states > SEARCH_STATES_MIN
            && ended
            && violations == 0
            && taken <= SEARCH_TIME_MAX
            && finished.status.success(),
    })
}

/// Planted: the read-back without its fence between the store and the load.
pub(super) fn measure_litmus(runner: &Runner, plant: bool) -> Result<Measured> {
    let mut command = Command::new(workspace::cargo());
    command.args(["run", "--release", "--quiet", "--package", "fabric", "--example", "litmus"]);
    command.args(["--", "--rounds", &LITMUS_ROUNDS.to_string()]);
    if plant {
        command.arg("--no-fence");
    }
    let finished = runner.run_keeping(&mut command, is_result)?;
    let result = finished.result()?;
    let (rounds, forbidden) = (number(&result, "rounds")?, number(&result, "forbidden")?);
    Ok(Measured {
        value: format!("{rounds} rounds, {forbidden} forbidden"),
        holds: rounds >= LITMUS_ROUNDS && forbidden == 0 && finished.status.success(),
    })
}
