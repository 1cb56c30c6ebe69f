//! Everything that builds, checks or measures Remanent: `cargo xtask <command>`.
//!
//! Invariants: a command fails if and only if what it checked does not hold or could not be
//! checked; the output of every child is passed on as it comes; nothing outside the target
//! directory is written, except a page under `docs/acceptance/` when `accept --write` asks for it.
//!
//! Deliberately absent: any logic of the product. What is measured is measured by running the real
//! command and reading its `RESULT` line (see [`process`]).
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user through these"
)]

mod accept;
mod lint;
mod process;
mod readme;
mod simulator;
mod skips;
mod stage;
mod tests_stage;
mod tiers;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::process::Runner;
use crate::stage::Stage;

/// Builds, checks and measures Remanent.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every stage in order; prints a table of stage, seconds and budget.
    Ci {
        /// Leaves a stage out; may be given more than once.
        #[arg(long, value_enum)]
        skip: Vec<Stage>,
    },
    /// Compiles everything that later stages run.
    Build,
    /// Format, clippy, documentation, and the project's own rules.
    Lint {
        /// Only the project's own rules, which need no compiler.
        #[arg(long)]
        own: bool,
    },
    /// All tests, then the names of the skipped ones with their reasons.
    Test,
    /// The simulator; every argument is passed on to it.
    #[command(disable_help_flag = true)]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Plants each known fault into the core in turn; the simulator's checkers must see it.
    Mutants,
    /// The exhaustive search of small configurations.
    Search,
    /// Replays the corpus of the parsers of outside bytes.
    FuzzReplay,
    /// The tests of the crates with unsafe code under AddressSanitizer.
    Sanitize,
    /// Measures the acceptance lines of one name; fails if one misses its bound.
    Accept(accept::Arguments),
    /// Prints a command of README.md (`main` or `test`), for `.ci/run`.
    Readme {
        /// The name in the marker comment that stands before the command.
        name: String,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    std::env::set_current_dir(workspace::root()?)?;
    let runner = Runner::without_deadline();
    match command {
        Command::Ci { skip } => return stage::run_all(&skip),
        Command::Build => Stage::Build.run(&runner)?,
        Command::Lint { own: true } => lint::own_rules()?,
        Command::Lint { own: false } => Stage::Lint.run(&runner)?,
        Command::Test => Stage::Tests.run(&runner)?,
        Command::Sim { arguments } => simulator::run(&runner, &arguments)?,
        Command::Mutants => simulator::mutants(&runner)?,
        Command::Search => Stage::Search.run(&runner)?,
        Command::FuzzReplay => Stage::FuzzReplay.run(&runner)?,
        Command::Sanitize => Stage::Sanitizer.run(&runner)?,
        Command::Accept(arguments) => return accept::run(&runner, &arguments),
        Command::Readme { name } => println!("{}", readme::command_in_file(&name)?),
    }
    Ok(ExitCode::SUCCESS)
}
