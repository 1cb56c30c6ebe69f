//! `remanent`: runs members of a replicated log, and talks to them.
//!
//! This binary composes and prints; what decides, moves bytes or waits is in the libraries below.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user through these"
)]

mod bench;
mod commands;
mod config;
mod latencies;
mod layout;
mod node;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match commands::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            commands::exit_code(&error)
        }
    }
}
