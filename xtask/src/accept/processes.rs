//! Checks of members that run: the release binary, as its user would run it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::Measured;
use crate::process::{Runner, is_result};
use crate::workspace;

/// How many times longer than storing the same bytes without a protocol a commit may take, in
/// thousandths.
const COMMIT_RATIO_MAX: u64 = 1_500;

/// Compiles the binary and the cases, so that no measurement includes it.
fn compile(runner: &Runner) -> Result<()> {
    let mut command = Command::new(workspace::cargo());
    command.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "remanent",
        "--package",
        "testkit",
    ]);
    runner.run(&mut command)
}

fn program(name: &str) -> PathBuf {
    workspace::target_directory().join("release").join(name)
}

/// Runs a case of `testkit`, which measures, knows its bound, and says by its exit status whether
/// it holds.
pub(super) fn case(runner: &Runner, arguments: &[&str], plant: bool) -> Result<Measured> {
    compile(runner)?;
    let mut command = Command::new(program("testkit"));
    command.args(arguments);
    if plant {
        command.arg("--plant");
    }
    let finished = runner.run_keeping(&mut command, is_result)?;
    let result = finished.result()?;
    let pairs = result.iter().map(|(name, value)| format!("{name} {value}"));
    // 2 is "could not be measured", which prints no RESULT line.
    Ok(Measured { value: pairs.collect::<Vec<_>>().join(", "), holds: finished.status.success() })
}

/// Planted: one acknowledged write is removed on one member before the check.
pub(super) fn measure_demo(runner: &Runner, plant: bool) -> Result<Measured> {
    compile(runner)?;
    let mut command = Command::new(program("remanent"));
    command.arg("demo");
    if plant {
        command.arg("--plant-loss");
    }
    let finished = runner.run_keeping(&mut command, |line| line.starts_with("lost writes"))?;
    let line = finished.lines.last().context("the demo did not come to its report")?;
    let lost = line.trim_start_matches("lost writes").trim().to_owned();
    Ok(Measured { holds: lost == "0" && finished.status.success(), value: format!("{lost} lost") })
}

pub(super) fn measure_commit_3(runner: &Runner, plant: bool) -> Result<Measured> {
    measure_commit(runner, plant, "3")
}

pub(super) fn measure_commit_5(runner: &Runner, plant: bool) -> Result<Measured> {
    measure_commit(runner, plant, "5")
}

/// Planted: the leader wastes some microseconds before each commit.
fn measure_commit(runner: &Runner, plant: bool, members: &str) -> Result<Measured> {
    compile(runner)?;
    let mut command = Command::new(program("remanent"));
    // Long enough that a neighbour's burst does not decide what the median is.
    command.args(["bench", "commit", "--json", "--members", members, "--count", "2000000"]);
    command.arg("--dir").arg(workspace::target_directory());
    if plant {
        command.arg("--plant-delay");
    }
    let finished = runner.run_keeping(&mut command, |line| line.starts_with('{'))?;
    let line = finished.lines.last().context("the bench printed no JSON")?;
    let found: serde_json::Value = serde_json::from_str(line)?;
    let median = |name: &str| found[name]["p50_ns"].as_u64().context("a median");
    let (commit, raw) = (median("commit")?, median("raw")?);
    let ratio = commit.saturating_mul(1_000) / raw.max(1);
    Ok(Measured {
        value: format!(
            "{commit} ns against {raw} ns: {}.{:02} times",
            ratio / 1_000,
            ratio % 1_000 / 10
        ),
        holds: ratio <= COMMIT_RATIO_MAX && finished.status.success(),
    })
}
