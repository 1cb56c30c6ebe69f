//! `testkit`: runs one case, prints what it found, and a line that begins with `RESULT`.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user through these"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Parser, Subcommand, ValueEnum};
use testkit::cases::{disks, idle, kills, minority, parked, power, sigterm, snapshot};

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
    /// A member that missed ten times the log comes back by a snapshot, with kills on the way; disk,
    /// memory and the waits of clients stay bounded.
    Snapshot {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// Bytes that are alive at any time. 256MiB, with 4 segments and a rate of 64MiB, is a run of
        /// a minute.
        #[arg(long, default_value = "1GiB")]
        live_bytes: ByteSize,
        /// Bytes of one value.
        #[arg(long, default_value = "1MiB")]
        value_bytes: ByteSize,
        /// Bytes of one segment of the log.
        #[arg(long, default_value = "64MiB")]
        segment_size: ByteSize,
        /// Segments of the log.
        #[arg(long, default_value_t = 6)]
        segments: u32,
        /// Bytes a second that overwrite the live state: no more than checkpoints can free log for.
        #[arg(long, default_value = "16MiB")]
        rate: ByteSize,
    },
    /// Every follower is stopped: commits go on at their rate, without their processors.
    Parked {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// How many clients.
        #[arg(long, default_value_t = 4)]
        clients: u32,
        /// How often the followers are stopped.
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// How long.
        #[arg(long, default_value_t = 10)]
        seconds: u32,
        /// Where the members' directories are made, with 768 MiB each.
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
    /// With f members down the rest goes on; with one more it refuses, until one returns.
    Minority {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
    },
    /// The leader is told to end under load, again and again: no call fails.
    Sigterm {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// How often.
        #[arg(long, default_value_t = 20)]
        times: u32,
    },
    /// Bad disks, one row each: full, read-only, truncated, damaged, of another cluster or program.
    /// Needs root.
    Disks {
        /// Where the members' directories are made, with 256 MiB each.
        #[arg(long, default_value = "/tmp")]
        dir: PathBuf,
        /// Only rows that have this in their name.
        #[arg(long)]
        only: Option<String>,
    },
    /// Power goes under load and while members restart, again and again: nothing acknowledged is
    /// lost. Needs root.
    Power {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// How often power goes.
        #[arg(long, default_value_t = 20)]
        cuts: u32,
        /// How many clients, beside one that writes large values.
        #[arg(long, default_value_t = 8)]
        clients: u32,
        /// Where the moments of the cuts come from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Where the disks are made, as sparse files.
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
    /// Connected clients that ask nothing cost the members nothing.
    Idle {
        /// How many members.
        #[arg(short = 'n', long, default_value_t = 3)]
        members: u32,
        /// How many clients.
        #[arg(long, default_value_t = 50)]
        clients: u32,
        /// How long the members are watched.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
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
    let plant = arguments.plant;
    match arguments.case {
        Case::Kills { members, fault, times } => run_kills(members, fault, times, plant),
        Case::Snapshot { members, live_bytes, value_bytes, segment_size, segments, rate } => {
            let plan = snapshot::Plan {
                members,
                live_bytes: live_bytes.0,
                value_bytes: value_bytes.0,
                segment_bytes: segment_size.0,
                segments,
                rate: rate.0,
                plant,
            };
            let found = snapshot::run(plan)?;
            found.print(&plan);
            Ok(found.holds(&plan))
        }
        Case::Parked { members, clients, rounds, seconds, ref dir } => {
            let (time, dir) = (Duration::from_secs(seconds.into()), dir.clone());
            let plan = parked::Plan { members, clients, rounds, time, dir, plant };
            let found = parked::run(&plan)?;
            println!("{found}");
            found.holds()
        }
        Case::Minority { members } => {
            let found = minority::run(minority::Plan { members, plant })?;
            println!("{found}");
            Ok(found.holds())
        }
        Case::Sigterm { members, times } => {
            let found = sigterm::run(sigterm::Plan { members, times, plant })?;
            println!("{found}");
            Ok(found.holds())
        }
        Case::Disks { ref dir, ref only } => {
            let plan = disks::Plan { dir: dir.clone(), only: only.clone(), plant };
            let found = disks::run(&plan)?;
            println!("{found}");
            Ok(found.holds())
        }
        Case::Power { members, cuts, clients, seed, ref dir } => {
            let dir = dir.clone();
            let found = power::run(&power::Plan { members, cuts, clients, seed, dir, plant })?;
            println!("{found}");
            Ok(found.holds())
        }
        Case::Idle { members, clients, seconds } => {
            let time = Duration::from_secs(seconds.into());
            let found = idle::run(idle::Plan { members, clients, time, plant })?;
            println!("{found}");
            Ok(found.holds())
        }
    }
}

fn run_kills(members: u32, fault: Fault, times: u32, plant: bool) -> Result<bool> {
    let fault = match fault {
        Fault::Kill => kills::Fault::Kill,
        Fault::Stop => kills::Fault::Stop,
        Fault::KillAll => kills::Fault::KillAll,
    };
    let found = kills::run(kills::Plan { members, fault, times, plant })?;
    if let Some(violation) = &found.violation {
        println!("{violation}");
    }
    let violations = u32::from(found.violation.is_some());
    let is_open_enough = found.unknown * 100 >= found.operations;
    println!("longest time without an answer: {:.1?}", found.gap);
    println!(
        "RESULT operations={} unknown={} violations={violations}",
        found.operations, found.unknown
    );
    Ok(violations == 0 && is_open_enough)
}
