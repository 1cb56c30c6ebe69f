//! `remanent completions`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory as _;

/// Prints a completion script for a shell, to be sourced or put where the shell looks.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// For which shell.
    shell: clap_complete::Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = super::Arguments::command();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "remanent", &mut script);
    use std::io::Write as _;
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
