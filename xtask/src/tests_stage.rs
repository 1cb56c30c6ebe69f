//! The tests stage: doctests, then everything else, then what was skipped and why.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::Runner;
use crate::{skips, workspace};

/// Where nextest writes its report: its store is here wherever the target directory is.
const REPORT: &str = "target/nextest/default/junit.xml";

/// Runs all tests. The runner's own totals come last, so that they close the output of CI too.
///
/// # Errors
/// A test fails; or, with `CI` set, a test skipped itself.
pub(crate) fn run(runner: &Runner) -> Result<()> {
    runner.run(Command::new(workspace::cargo()).args([
        "test",
        "--workspace",
        "--doc",
        "--quiet",
    ]))?;
    let skipped = if has_nextest() { run_nextest(runner)? } else { run_libtest(runner)? };
    for skip in &skipped {
        println!("SKIPPED {}: {}", skip.name, skip.reason);
    }
    ensure!(
        skipped.is_empty() || !is_ci(),
        "{} tests were skipped, and CI skips nothing: give them what they need",
        skipped.len()
    );
    Ok(())
}

/// Runs the tests that replay a corpus; that there is none is an error.
pub(crate) fn replay_corpus(runner: &Runner) -> Result<()> {
    if has_nextest() {
        return runner.run(Command::new(workspace::cargo()).args([
            "nextest",
            "run",
            "--workspace",
            "--no-tests=fail",
            "-E",
            "test(corpus)",
        ]));
    }
    let mut command = Command::new(workspace::cargo());
    command.args(["test", "--workspace", "--lib", "--bins", "--tests", "corpus"]);
    let finished = runner.run_keeping(&mut command, |line| line.starts_with("running "))?;
    ensure!(finished.status.success(), "replaying the corpus failed ({})", finished.status);
    let ran = finished.lines.iter().any(|line| !line.starts_with("running 0 tests"));
    ensure!(ran, "no test has `corpus` in its name: a parser lost its replay test");
    Ok(())
}

fn run_nextest(runner: &Runner) -> Result<Vec<skips::Skip>> {
    // A report that an earlier run left must not be read as this run's.
    let report = Path::new(REPORT);
    if report.exists() {
        std::fs::remove_file(report)
            .with_context(|| format!("removing the old report {}", report.display()))?;
    }
    runner.run(Command::new(workspace::cargo()).args(["nextest", "run", "--workspace"]))?;
    let text = std::fs::read_to_string(report).with_context(|| {
        format!("nextest wrote no report to {}: see .config/nextest.toml", report.display())
    })?;
    Ok(skips::in_junit(&text))
}

fn run_libtest(runner: &Runner) -> Result<Vec<skips::Skip>> {
    let mut command = Command::new(workspace::cargo());
    command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--", "--show-output"]);
    let finished = runner.run_keeping(&mut command, |line| skips::in_line(line).is_some())?;
    ensure!(
        finished.status.success(),
        "`cargo test` failed ({}): its output above says why",
        finished.status
    );
    Ok(finished.lines.iter().filter_map(|line| skips::in_line(line)).collect())
}

fn has_nextest() -> bool {
    let mut command = Command::new(workspace::cargo());
    let output = command.args(["nextest", "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether the environment says that this is a CI run, as the runners of most forges do.
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false")
}
