//! The store-load litmus: a leader's chain {WRITE, read the word back} against a voter's {store the
//! word, fence, read the entry}.
//!
//! ```text
//! leader: entry = i; fence; read word         voter: word = i; fence; read entry
//! ```
//! Forbidden: the leader reads the word of before while the voter reads the entry of before. Then
//! the leader would count an entry that the voter does not know of.
//!
//! `cargo run --release -p fabric --example litmus -- [--rounds N] [--no-fence]` prints how often
//! that happened and ends with 1 if it did. With `--no-fence` it must.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that shows a result")]

#[path = "../tests/it/dekker.rs"]
mod dekker;
#[path = "../tests/it/place.rs"]
mod place;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut rounds = 10_000_000;
    let mut is_fenced = true;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--no-fence" => is_fenced = false,
            "--rounds" => rounds = arguments.next().unwrap().parse().unwrap(),
            other => {
                println!("unknown argument {other}: try [--rounds N] [--no-fence]");
                return ExitCode::from(2);
            }
        }
    }
    let forbidden = dekker::run(rounds, is_fenced);
    println!("RESULT rounds={rounds} forbidden={forbidden}");
    if forbidden == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
