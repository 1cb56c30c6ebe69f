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
            eprintln!("error: {}", told(&error));
            commands::exit_code(&error)
        }
    }
}

/// An error and its causes on one line. Some errors of the libraries tell their cause in their own
/// text, for whoever prints no chain: what was told is not told again.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let denied = std::io::Error::other("denied");
        let error =
            anyhow::Error::new(denied).context("x: cannot open: denied").context("member 3");
        assert_eq!(told(&error), "member 3: x: cannot open: denied");
    }
}
