//! The commands: one module each.

mod bench;
mod completions;
mod demo;
mod doctor;
mod init;
mod inspect;
mod keys;
mod node;
mod status;
mod up;

pub(crate) use init::{Arguments as InitArguments, init};

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// A command did what it should, and the answer is no: the key is not there, the compare failed.
pub(crate) const NO: u8 = 1;
/// Whether the write was done is not known.
const UNKNOWN: u8 = 3;

/// Replicated storage: what it acknowledged, stays.
///
/// A cluster is a directory, made once with `init`. Its members are run with `up` (all of them,
/// here) or `node` (one of them); `get`, `put` and the others talk to them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "\
Begin with:
  remanent init demo          three members in the directory demo
  remanent up demo &          run them
  remanent -C demo put greeting hello
  remanent -C demo get greeting
  remanent -C demo status

Exit codes: 0 done; 1 not done, or the answer is no; 2 wrong usage; 3 outcome unknown."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// The cluster directory.
    #[arg(
        short = 'C',
        long,
        global = true,
        value_name = "DIR",
        env = "REMANENT_CLUSTER",
        default_value = "remanent-data"
    )]
    pub(crate) cluster: PathBuf,
    /// How long a request may take before its outcome is given up on.
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        env = "REMANENT_DEADLINE",
        default_value = "10s",
        value_parser = humantime::parse_duration
    )]
    pub(crate) deadline: std::time::Duration,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a cluster directory: id, members, their regions. Once.
    Init(init::Arguments),
    /// Runs all members of a cluster on this machine, one process each, until SIGTERM.
    Up(up::Arguments),
    /// Runs one member until SIGTERM.
    Node(node::Arguments),
    /// Prints the value of a key.
    Get(keys::Get),
    /// Sets a key.
    Put(keys::Put),
    /// Removes keys.
    Del(keys::Del),
    /// Lists keys in order.
    Scan(keys::Scan),
    /// Sets or removes a key if it has the value that was expected.
    Cas(keys::Cas),
    /// Adds to an integer and prints what it is now.
    Incr(keys::Incr),
    /// Changes how much state the group holds.
    Limit(keys::Limit),
    /// Shows every member: role, term, log, room, clients.
    Status(status::Arguments),
    /// Asks the leader to hand over.
    Transfer(status::Transfer),
    /// Prints what stands in a region, for people.
    Inspect(inspect::Arguments),
    /// Looks at this machine and at a cluster, and says what is wrong and what to do.
    Doctor(doctor::Arguments),
    /// Measures commits, and what they would cost without a protocol.
    Bench(bench::Arguments),
    /// Runs a cluster through its paces: loads files, kills the leader, stops a follower, and
    /// checks every acknowledged write on every member.
    Demo(demo::Arguments),
    /// Prints a completion script for a shell.
    Completions(completions::Arguments),
}

/// Runs a command.
pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { global, command } = arguments;
    match command {
        Command::Init(arguments) => init::run(&global, &arguments),
        Command::Up(arguments) => up::run(&global, &arguments),
        Command::Node(arguments) => node::run(&global, &arguments),
        Command::Get(arguments) => keys::get(&global, &arguments),
        Command::Put(arguments) => keys::put(&global, &arguments),
        Command::Del(arguments) => keys::del(&global, &arguments),
        Command::Scan(arguments) => keys::scan(&global, &arguments),
        Command::Cas(arguments) => keys::cas(&global, &arguments),
        Command::Incr(arguments) => keys::incr(&global, &arguments),
        Command::Limit(arguments) => keys::limit(&global, &arguments),
        Command::Status(arguments) => status::run(&global, &arguments),
        Command::Transfer(arguments) => status::transfer(&global, &arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&global, &arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}

/// The exit code that an error stands for.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<client::CallError>() {
        Some(client::CallError::Unknown(_)) => ExitCode::from(UNKNOWN),
        Some(client::CallError::Refused(_) | client::CallError::Bad(_)) | None => {
            ExitCode::from(NO)
        }
    }
}
