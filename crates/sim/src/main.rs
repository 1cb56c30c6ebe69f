//! `sim`: runs simulated schedules, plants faults to prove the checkers, searches exhaustively.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program speaks on standard output")]

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use sim::{campaign, exhaust, mutants, plan::Focus};

/// Simulated clusters that run the real replication code, deterministic from one seed.
///
/// Without a command it runs schedules: each is a cluster of members with persistent memory,
/// clients, and faults (kills, stops, power cuts, cut links, slow disks, elections, transfers,
/// changes of members), drawn from its seed. Checkers outside the code under test watch all of it.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    schedules: Schedules,
}

#[derive(Debug, Args)]
struct Schedules {
    /// How many schedules to run, with seeds that count up.
    #[arg(long, default_value_t = 200)]
    schedules: u64,
    /// The first seed; drawn from the clock when it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Founding members of every cluster; drawn from the seed when not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=13))]
    members: Option<u32>,
    /// What the schedules are bent towards: all, membership or elections.
    #[arg(long, default_value = "all", value_parser = focus_named)]
    focus: Focus,
    /// Plants this fault (only in a build with `--cfg 'mutant="all"'`).
    #[arg(long)]
    mutant: Option<String>,
    /// Tells what happens in each schedule.
    #[arg(long, short)]
    verbose: bool,
    /// Threads that run schedules; one per processor when not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plants every known fault in turn and looks for a schedule that catches it.
    ///
    /// Needs a build with `RUSTFLAGS='--cfg mutant="all"'`; in an ordinary build nothing is planted
    /// and so nothing is caught.
    Mutants {
        /// Only this fault.
        #[arg(long)]
        only: Option<String>,
        /// Schedules tried for each fault.
        #[arg(long, default_value_t = 5000)]
        schedules: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Searches every course of the consensus core within bounds, to the end.
    Search {
        /// Only these bounds: regrants, power-cuts, reads, elections, power-cut, default.
        #[arg(long)]
        bounds: Option<String>,
        /// Leaves out the long one, `default`: millions of states, some minutes.
        #[arg(long)]
        quick: bool,
        /// Plants this fault (only in a build with `--cfg 'mutant="all"'`).
        #[arg(long)]
        mutant: Option<String>,
    },
}

fn focus_named(name: &str) -> Result<Focus, String> {
    match name {
        "all" => Ok(Focus::All),
        "membership" => Ok(Focus::Membership),
        "elections" => Ok(Focus::Elections),
        other => Err(format!("there is no {other}: all, membership or elections")),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut say = |line: String| println!("{line}");
    let is_good = match cli.command {
        None => {
            let Schedules { schedules, seed, members, focus, mutant, verbose, threads } =
                cli.schedules;
            let options =
                campaign::Options { schedules, seed, members, focus, mutant, verbose, threads };
            campaign::run(&options, &mut say)
        }
        Some(Command::Search { bounds, quick, mutant }) => {
            exhaust::run((bounds.as_deref(), quick), mutant.as_deref(), &mut say)
        }
        Some(Command::Mutants { only, schedules, seed }) => {
            mutants::run(only.as_deref(), (seed, schedules), &mut say)
        }
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
