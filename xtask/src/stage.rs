//! The stages of `cargo xtask ci`, their budgets, and the table at the end.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::process::Runner;
use crate::{lint, simulator, tests_stage, tiers, workspace};

/// One stage of `ci`; each is also a command of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    Build,
    Lint,
    Tests,
    Simulator,
    Search,
    FuzzReplay,
    Sanitizer,
}

/// Schedules that one CI run simulates from new seeds, and from the first seeds, which stay.
const NEW_SCHEDULES: &str = "200";
const FIXED_SCHEDULES: &str = "20";

/// The sanitizer needs a named target, so that it covers no build script.
const SANITIZER_TARGET: &str = "x86_64-unknown-linux-gnu";

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Lint => "lint",
            Self::Tests => "tests",
            Self::Simulator => "simulator",
            Self::Search => "search",
            Self::FuzzReplay => "fuzz-replay",
            Self::Sanitizer => "sanitizer",
        }
    }

    /// Time that the stage may take on two cores from a clean clone; over it, the stage fails.
    /// Together with the README's commands, all of them end within 40 minutes.
    const fn budget(self) -> Duration {
        let minutes = match self {
            Self::Build => 8,
            Self::Lint | Self::Search => 4,
            Self::Tests => 6,
            Self::Simulator => 10,
            Self::FuzzReplay => 1,
            Self::Sanitizer => 3,
        };
        Duration::from_secs(minutes * 60)
    }

    /// Runs the stage; an error says what does not hold.
    pub(crate) fn run(self, runner: &Runner) -> Result<()> {
        match self {
            Self::Build => build(runner),
            Self::Lint => lint::run(runner),
            Self::Tests => tests_stage::run(runner),
            Self::Simulator => {
                let words =
                    |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
                simulator::run(runner, &words(&["--schedules", FIXED_SCHEDULES, "--seed", "1"]))?;
                simulator::run(runner, &words(&["--schedules", NEW_SCHEDULES]))?;
                simulator::mutants(runner)
            }
            // The whole search takes longer than a stage may: `cargo xtask accept agree` runs it.
            Self::Search => simulator::run(runner, &["search".to_owned(), "--quick".to_owned()]),
            Self::FuzzReplay => tests_stage::replay_corpus(runner),
            Self::Sanitizer => sanitize(runner),
        }
    }
}

/// Runs every stage but the skipped ones, stops at the first that fails, prints the table.
pub(crate) fn run_all(skip: &[Stage]) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut failed = false;
    for &stage in Stage::value_variants() {
        let outcome = if skip.contains(&stage) {
            Outcome::LeftOut
        } else if failed {
            Outcome::NotRun
        } else {
            run_within_budget(stage)
        };
        failed |= matches!(outcome, Outcome::Failed(_));
        rows.push((stage, outcome));
    }
    print!("\n{}", table(&rows));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    LeftOut,
    NotRun,
}

fn run_within_budget(stage: Stage) -> Outcome {
    println!("\n== {} (budget {} s)", stage.name(), stage.budget().as_secs());
    let start = Instant::now();
    let result = stage.run(&Runner::with_budget(stage.budget()));
    let taken = start.elapsed();
    if let Err(error) = &result {
        eprintln!("error: stage {}: {error:#}", stage.name());
    }
    if result.is_ok() && taken <= stage.budget() {
        Outcome::Passed(taken)
    } else {
        Outcome::Failed(taken)
    }
}

fn table(rows: &[(Stage, Outcome)]) -> String {
    let mut text = format!("{:<12} {:>9} {:>9}  outcome\n", "stage", "seconds", "budget");
    for (stage, outcome) in rows {
        let (seconds, word) = match outcome {
            Outcome::Passed(taken) => (taken.as_secs().to_string(), "passed"),
            Outcome::Failed(taken) if *taken > stage.budget() => {
                (taken.as_secs().to_string(), "FAILED: over its budget")
            }
            Outcome::Failed(taken) => (taken.as_secs().to_string(), "FAILED"),
            Outcome::LeftOut => ("-".to_owned(), "left out by --skip"),
            Outcome::NotRun => ("-".to_owned(), "not run: an earlier stage failed"),
        };
        let budget = stage.budget().as_secs();
        text += &format!("{:<12} {seconds:>9} {budget:>9}  {word}\n", stage.name());
    }
    text
}

fn build(runner: &Runner) -> Result<()> {
    runner.run(Command::new(workspace::cargo()).args([
        "test",
        "--workspace",
        "--no-run",
        "--locked",
        "--quiet",
    ]))?;
    runner.run(Command::new(workspace::cargo()).args([
        "build",
        "--package=sim",
        "--profile=sim",
        "--locked",
    ]))
}

fn sanitize(runner: &Runner) -> Result<()> {
    let mut command = Command::new(workspace::cargo());
    command
        .args(["test", "--lib", "--tests", "--target", SANITIZER_TARGET])
        .env("CARGO_TARGET_DIR", workspace::target_directory().join("asan"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address");
    for name in tiers::WITH_UNSAFE {
        command.args(["--package", name]);
    }
    // The instrumented code is too slow for a missing fence to show: without this one the fence is
    // still tested, by the ordinary tests.
    command.args(["--", "--skip", "without_the_fence"]);
    runner.run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_stage_with_its_seconds_and_its_budget() {
        let rows = [
            (Stage::Build, Outcome::Passed(Duration::from_secs(90))),
            (Stage::Tests, Outcome::LeftOut),
            (Stage::Search, Outcome::Failed(Duration::from_secs(3))),
            (Stage::FuzzReplay, Outcome::Failed(Duration::from_secs(61))),
            (Stage::Sanitizer, Outcome::NotRun),
        ];
        let expected = "\
stage          seconds    budget  outcome
build               90       480  passed
tests                -       360  left out by --skip
search               3       240  FAILED
fuzz-replay         61        60  FAILED: over its budget
sanitizer            -       180  not run: an earlier stage failed
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn the_budgets_leave_room_for_the_readme_commands_in_40_minutes() {
        let sum: Duration = Stage::value_variants().iter().map(|stage| stage.budget()).sum();
        assert_eq!(sum, Duration::from_secs(36 * 60));
    }
}
