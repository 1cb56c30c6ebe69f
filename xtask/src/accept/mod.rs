//! Acceptance: named sets of checks, each with a measured value, a bound and a verdict.
//!
//! Every check runs the real command. With `--plant` it runs the same command with one fault
//! planted, and must then miss its bound: a check that cannot fail says nothing.

mod agree;
mod processes;
mod protocol;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::process::Runner;

/// What `accept` measures.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The set of checks: `agree`.
    name: String,
    /// Only the checks of these names.
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    only: Vec<String>,
    /// Plants one fault for each check; the command then fails if every check misses its bound,
    /// as it must, and succeeds if one did not see its fault.
    #[arg(long, conflicts_with = "write")]
    plant: bool,
    /// Writes what was measured into docs/acceptance/NAME.md, after each check; what was not measured
    /// this time stays as it is there.
    #[arg(long)]
    write: bool,
}

/// A named bound, and how its value is measured.
#[derive(Debug)]
struct Check {
    name: &'static str,
    bound: &'static str,
    how: How,
}

/// How a check is measured.
#[derive(Debug)]
enum How {
    /// By a function, which is told whether to plant its fault.
    Function(fn(&Runner, bool) -> Result<Measured>),
    /// By a case of `testkit` with these arguments: it knows its bound and has `--plant`.
    Case(&'static [&'static str]),
}

impl Check {
    fn measure(&self, runner: &Runner, plant: bool) -> Result<Measured> {
        match self.how {
            How::Function(measure) => measure(runner, plant),
            How::Case(arguments) => processes::case(runner, arguments, plant),
        }
    }
}

#[derive(Debug)]
struct Measured {
    value: String,
    holds: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    Missed,
    /// The command that measures did not get that far; never a pass, with or without `--plant`.
    NotMeasured,
}

#[derive(Debug)]
struct Row {
    check: &'static Check,
    value: String,
    verdict: Verdict,
}

impl Row {
    fn of(check: &'static Check, measured: Measured) -> Self {
        let verdict = if measured.holds { Verdict::Holds } else { Verdict::Missed };
        Self { check, value: measured.value, verdict }
    }
}

/// Measures the set, prints the table; fails if a bound is missed.
pub(crate) fn run(runner: &Runner, arguments: &Arguments) -> Result<ExitCode> {
    let checks = chosen(&arguments.name, &arguments.only)?;
    let mut rows = Vec::new();
    for check in checks {
        println!("\n== {}: {}", check.name, check.bound);
        let row = match check.measure(runner, arguments.plant) {
            Ok(measured) => Row::of(check, measured),
            Err(error) => {
                eprintln!("error: check `{}` could not be measured: {error:#}", check.name);
                Row { check, value: "-".to_owned(), verdict: Verdict::NotMeasured }
            }
        };
        if arguments.write {
            write_row(&arguments.name, &row)?;
        }
        rows.push(row);
    }
    print!("\n{}", table(&rows));
    if arguments.plant {
        return Ok(planted_outcome(&rows));
    }
    let all_hold = rows.iter().all(|row| row.verdict == Verdict::Holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(name: &str, only: &[String]) -> Result<Vec<&'static Check>> {
    ensure!(name == "agree", "there is no acceptance set `{name}`; there is: agree");
    let known: Vec<_> = agree::CHECKS.iter().map(|check| check.name).collect();
    for wanted in only {
        let is_known = known.contains(&wanted.as_str());
        ensure!(is_known, "`{name}` has no check `{wanted}`; it has: {}", known.join(", "));
    }
    let is_wanted = |check: &&Check| only.is_empty() || only.iter().any(|only| only == check.name);
    Ok(agree::CHECKS.iter().filter(is_wanted).collect())
}

/// Failure when each planted fault was seen, so that a check with `--plant` fails as it must.
fn planted_outcome(rows: &[Row]) -> ExitCode {
    let seen = rows.iter().filter(|row| row.verdict == Verdict::Missed).count();
    println!("planted faults seen: {seen} of {}", rows.len());
    if seen == rows.len() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

const HEADING: &str = "| check | bound | measured | verdict |\n|---|---|---|---|\n";

fn table(rows: &[Row]) -> String {
    rows.iter().fold(HEADING.to_owned(), |text, row| text + &line(row))
}

fn line(Row { check, value, verdict }: &Row) -> String {
    let verdict = match verdict {
        Verdict::Holds => "holds",
        Verdict::Missed => "MISSED",
        Verdict::NotMeasured => "NOT MEASURED",
    };
    format!("| {} | {} | {value} | {verdict} |\n", check.name, check.bound)
}

fn write_row(name: &str, row: &Row) -> Result<()> {
    let path = format!("docs/acceptance/{name}.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let page = page(name, &old, row);
    std::fs::write(&path, page).with_context(|| format!("writing {path}"))?;
    println!("written: {path}");
    Ok(())
}

/// The page with one row replaced; the others are those of the old page.
fn page(name: &str, old: &str, new: &Row) -> String {
    let mut text = format!(
        "# Acceptance: {name}\n\nWritten by `cargo xtask accept {name} --write`, each row when it was \
         measured last.\n\n{HEADING}"
    );
    for check in agree::CHECKS {
        let begins = format!("| {} |", check.name);
        let kept = old.lines().find(|line| line.starts_with(&begins));
        if check.name == new.check.name {
            text += &line(new);
        } else if let Some(kept) = kept {
            text += &format!("{kept}\n");
        } else {
            let value = "-".to_owned();
            text += &line(&Row { check, value, verdict: Verdict::NotMeasured });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(check: usize, value: &str, holds: bool) -> Row {
        Row::of(&agree::CHECKS[check], Measured { value: value.to_owned(), holds })
    }

    fn not_measured() -> Row {
        Row { check: &agree::CHECKS[3], value: "-".to_owned(), verdict: Verdict::NotMeasured }
    }

    #[test]
    fn the_table_shows_value_bound_and_verdict() {
        let rows = [
            row(0, "200 seeds, 0 violations", true),
            row(1, "9 of 10 caught", false),
            not_measured(),
        ];
        let expected = "\
| check | bound | measured | verdict |
|---|---|---|---|
| sim-seeds | 200 new seeds, 0 violations | 200 seeds, 0 violations | holds |
| mutants | every planted fault caught | 9 of 10 caught | MISSED |
| litmus | 10,000,000 rounds, 0 forbidden outcomes | - | NOT MEASURED |
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn an_unknown_set_or_check_is_refused_with_the_known_names() {
        assert!(chosen("nothing", &[]).unwrap_err().to_string().contains("there is: agree"));
        let error = chosen("agree", &["nothing".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("sim-seeds, mutants, search, litmus, demo"));
    }

    #[test]
    fn a_page_keeps_the_rows_that_were_not_measured_this_time() {
        let first = page("agree", "", &row(0, "200 seeds, 0 violations", true));
        let second = page("agree", &first, &row(1, "9 of 10 caught", false));
        assert!(second.contains("| 200 seeds, 0 violations | holds |"));
        assert!(second.contains("| 9 of 10 caught | MISSED |"));
        let rows = second.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(rows, agree::CHECKS.len() + 1, "one for each check, and the heading");
    }

    #[test]
    fn with_planted_faults_the_command_fails_only_if_each_was_seen() {
        let all_seen = [row(0, "", false), row(1, "", false)];
        assert_eq!(planted_outcome(&all_seen), ExitCode::FAILURE);
        let one_unseen = [row(0, "", false), row(1, "", true)];
        assert_eq!(planted_outcome(&one_unseen), ExitCode::SUCCESS);
    }

    #[test]
    fn a_check_that_was_not_measured_has_seen_no_planted_fault() {
        assert_eq!(planted_outcome(&[row(0, "", false), not_measured()]), ExitCode::SUCCESS);
    }
}
