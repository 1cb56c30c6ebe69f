//! `testkit`: runs one case, prints what it found, and a line that begins with `RESULT`.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user through these"
)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use testkit::cases::kills;

/// Runs one case against real processes. Each can plant the fault that it must see.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    case: Case,
    /// Plants one fault, which the case must see.
    #[arg(long, global = true)]
    plant: bool,
}

#[derive(Debug, Subcommand)]
enum Case {
    /// The leader is killed or stopped, or all are killed, under load: the history is linearizable.
    Kills {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// How the leader is hurt.
        #[arg(long, value_enum, default_value_t = Fault::Kill)]
        fault: Fault,
        /// How often.
        #[arg(long, default_value_t = 50)]
        times: u32,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fault {
    /// kill -9 of the leader.
    Kill,
    /// SIGSTOP of the leader.
    Stop,
    /// kill -9 of all members at once.
    KillAll,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether the case holds.
fn run(arguments: &Arguments) -> Result<bool> {
    match arguments.case {
        Case::Kills { members, fault, times } => {
            let fault = match fault {
                Fault::Kill => kills::Fault::Kill,
                Fault::Stop => kills::Fault::Stop,
                Fault::KillAll => kills::Fault::KillAll,
            };
            let plan = kills::Plan { members, fault, times, plant: arguments.plant };
            let found = kills::run(plan)?;
            if let Some(violation) = &found.violation {
                println!("{violation}");
            }
            let violations = u32::from(found.violation.is_some());
            println!("longest time without an answer: {:.1?}", found.gap);
            println!(
                "RESULT operations={} unknown={} violations={violations}",
                found.operations, found.unknown
            );
            Ok(found.violation.is_none())
        }
    }
}
