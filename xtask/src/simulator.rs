//! How the simulator is built and run, with and without planted faults.

use std::process::Command;

use anyhow::Result;

use crate::process::{Finished, Runner, is_result};
use crate::workspace;

/// Runs the simulator with these arguments; with `--mutant` among them, the build that holds the
/// faults.
pub(crate) fn run(runner: &Runner, arguments: &[String]) -> Result<()> {
    let wants_mutant =
        arguments.iter().any(|word| word == "--mutant" || word.starts_with("--mutant="));
    let build = if wants_mutant { Build::Mutants } else { Build::Ordinary };
    runner.run(command(build).args(arguments))
}

/// Plants every fault in turn; fails if one is not caught.
pub(crate) fn mutants(runner: &Runner) -> Result<()> {
    runner.run(command(Build::Mutants).arg("mutants"))
}

/// Compiles the simulator, so that a later measurement of time does not include it.
pub(crate) fn compile(runner: &Runner, build: Build) -> Result<()> {
    let mut command = Command::new(workspace::cargo());
    command.args(["build", "--profile", PROFILE, "--quiet", "--package", "sim"]);
    configure(build, &mut command);
    runner.run(&mut command)
}

/// Runs the simulator and keeps its `RESULT` lines, whatever its exit status.
pub(crate) fn measure(runner: &Runner, build: Build, arguments: &[&str]) -> Result<Finished> {
    runner.run_keeping(command(build).args(arguments), is_result)
}

/// As release, but a panic of the code under test is a verdict and not the end of the run.
const PROFILE: &str = "sim";

/// Which simulator: the ordinary one, or the one with every fault built in and one planted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Build {
    Ordinary,
    Mutants,
}

fn command(build: Build) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.args(["run", "--profile", PROFILE, "--quiet", "--package", "sim"]);
    configure(build, &mut command);
    command.arg("--");
    command
}

fn configure(build: Build, command: &mut Command) {
    match build {
        Build::Ordinary => {}
        Build::Mutants => {
            // Its own directory: other flags would throw away the ordinary build each time.
            command
                .env("CARGO_TARGET_DIR", workspace::target_directory().join("mutants"))
                .env("RUSTFLAGS", "--cfg mutant=\"all\"");
        }
    }
}
