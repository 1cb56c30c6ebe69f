//! Acceptance: named sets of checks, each with a measured value, a bound and a verdict.
//!
//! Every check runs the real command. With `--plant` it runs the same command with one fault
//! planted, and must then miss its bound: a check that cannot fail says nothing.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{Runner, is_result, number};
use crate::simulator::{self, Build};
use crate::workspace;

/// What `accept` measures.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The set of checks: `agree`.
    name: String,
    /// Only the check of this name.
    #[arg(long)]
    only: Option<String>,
    /// Plants one fault for each check; the command then fails if every check misses its bound,
    /// as it must, and succeeds if one did not see its fault.
    #[arg(long, conflicts_with = "write")]
    plant: bool,
    /// Writes the table to docs/acceptance/NAME.md.
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// New seeds that `sim-seeds` runs.
const SEEDS: u64 = 200;

/// States that the search must visit to count as one.
const SEARCH_STATES_MIN: u64 = 1_000_000;

/// Time that the search may take, compilation aside.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(300);

/// Rounds of the litmus test of the read-back: a missing fence showed itself in some ten thousand
/// of eight million rounds, so ten million leave no doubt.
const LITMUS_ROUNDS: u64 = 10_000_000;

/// The fault for `--plant`: a leader that counts its own copy before it is durable. The shortest way
/// to lose a committed entry: five steps.
const PLANTED_MUTANT: &str = "own_copy_before_persist";

#[derive(Debug)]
struct Check {
    name: &'static str,
    bound: &'static str,
    measure: fn(&Runner, bool) -> Result<Measured>,
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

const AGREE: [Check; 4] = [
    Check { name: "sim-seeds", bound: "200 new seeds, 0 violations", measure: measure_sim_seeds },
    Check { name: "mutants", bound: "every planted fault caught", measure: measure_mutants },
    Check {
        name: "search",
        bound: "more than 1,000,000 states, finished, 0 violations, at most 300 s",
        measure: measure_search,
    },
    Check {
        name: "litmus",
        bound: "10,000,000 rounds, 0 forbidden outcomes",
        measure: measure_litmus,
    },
];

/// Measures the set, prints the table; fails if a bound is missed.
pub(crate) fn run(runner: &Runner, arguments: &Arguments) -> Result<ExitCode> {
    let checks = chosen(&arguments.name, arguments.only.as_deref())?;
    let mut rows = Vec::new();
    for check in checks {
        println!("\n== {}: {}", check.name, check.bound);
        let row = match (check.measure)(runner, arguments.plant) {
            Ok(measured) => Row::of(check, measured),
            Err(error) => {
                eprintln!("error: check `{}` could not be measured: {error:#}", check.name);
                Row { check, value: "-".to_owned(), verdict: Verdict::NotMeasured }
            }
        };
        rows.push(row);
    }
    let table = table(&rows);
    print!("\n{table}");
    if arguments.plant {
        return Ok(planted_outcome(&rows));
    }
    if arguments.write {
        write_page(&arguments.name, &table)?;
    }
    let all_hold = rows.iter().all(|row| row.verdict == Verdict::Holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(name: &str, only: Option<&str>) -> Result<Vec<&'static Check>> {
    ensure!(name == "agree", "there is no acceptance set `{name}`; there is: agree");
    let checks: Vec<_> =
        AGREE.iter().filter(|check| only.is_none_or(|only| only == check.name)).collect();
    let known: Vec<_> = AGREE.iter().map(|check| check.name).collect();
    ensure!(!checks.is_empty(), "`{name}` has no such check; it has: {}", known.join(", "));
    Ok(checks)
}

/// Failure when each planted fault was seen, so that a check with `--plant` fails as it must.
fn planted_outcome(rows: &[Row]) -> ExitCode {
    let seen = rows.iter().filter(|row| row.verdict == Verdict::Missed).count();
    println!("planted faults seen: {seen} of {}", rows.len());
    if seen == rows.len() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn table(rows: &[Row]) -> String {
    let mut text = "| check | bound | measured | verdict |\n|---|---|---|---|\n".to_owned();
    for Row { check, value, verdict } in rows {
        let verdict = match verdict {
            Verdict::Holds => "holds",
            Verdict::Missed => "MISSED",
            Verdict::NotMeasured => "NOT MEASURED",
        };
        text += &format!("| {} | {} | {value} | {verdict} |\n", check.name, check.bound);
    }
    text
}

fn write_page(name: &str, table: &str) -> Result<()> {
    let path = format!("docs/acceptance/{name}.md");
    let page = format!(
        "# Acceptance: {name}\n\nWritten by `cargo xtask accept {name} --write`.\n\n{table}"
    );
    std::fs::write(&path, page).with_context(|| format!("writing {path}"))?;
    println!("written: {path}");
    Ok(())
}

fn measure_sim_seeds(runner: &Runner, plant: bool) -> Result<Measured> {
    let seeds = SEEDS.to_string();
    let ordinary = ["--schedules", seeds.as_str()];
    let planted = ["--schedules", seeds.as_str(), "--mutant", PLANTED_MUTANT];
    let finished = if plant {
        simulator::measure(runner, Build::Mutants, &planted)?
    } else {
        simulator::measure(runner, Build::Ordinary, &ordinary)?
    };
    let result = finished.result()?;
    let (schedules, violations) = (number(&result, "schedules")?, number(&result, "violations")?);
    Ok(Measured {
        value: format!("{schedules} seeds, {violations} violations"),
        holds: schedules >= SEEDS && violations == 0 && finished.status.success(),
    })
}

/// Planted: the ordinary build, in which no fault is there to be caught.
fn measure_mutants(runner: &Runner, plant: bool) -> Result<Measured> {
    let build = if plant { Build::Ordinary } else { Build::Mutants };
    let finished = simulator::measure(runner, build, &["mutants"])?;
    let result = finished.result()?;
    let (planted, caught) = (number(&result, "mutants")?, number(&result, "caught")?);
    Ok(Measured {
        value: format!("{caught} of {planted} caught"),
        holds: planted > 0 && caught == planted && finished.status.success(),
    })
}

fn measure_search(runner: &Runner, plant: bool) -> Result<Measured> {
    let build = if plant { Build::Mutants } else { Build::Ordinary };
    let arguments: &[&str] =
        if plant { &["search", "--mutant", PLANTED_MUTANT] } else { &["search"] };
    simulator::compile(runner, build)?;
    let start = Instant::now();
    let finished = simulator::measure(runner, build, arguments)?;
    let taken = start.elapsed();
    let result = finished.result()?;
    let (states, violations) = (number(&result, "states")?, number(&result, "violations")?);
    let ended = result.get("finished").is_some_and(|value| value == "true");
    let how = if ended { "finished" } else { "not finished" };
    Ok(Measured {
        value: format!("{states} states, {how}, {violations} violations, {} s", taken.as_secs()),
        holds: states > SEARCH_STATES_MIN
            && ended
            && violations == 0
            && taken <= SEARCH_TIME_MAX
            && finished.status.success(),
    })
}

/// Planted: the read-back without its fence between the store and the load.
fn measure_litmus(runner: &Runner, plant: bool) -> Result<Measured> {
    let mut command = Command::new(workspace::cargo());
    command.args(["run", "--release", "--quiet", "--package", "fabric", "--example", "litmus"]);
    command.args(["--", "--rounds", &LITMUS_ROUNDS.to_string()]);
    if plant {
        command.arg("--no-fence");
    }
    let finished = runner.run_keeping(&mut command, is_result)?;
    let result = finished.result()?;
    let (rounds, forbidden) = (number(&result, "rounds")?, number(&result, "forbidden")?);
    Ok(Measured {
        value: format!("{rounds} rounds, {forbidden} forbidden"),
        holds: rounds >= LITMUS_ROUNDS && forbidden == 0 && finished.status.success(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(check: usize, value: &str, holds: bool) -> Row {
        Row::of(&AGREE[check], Measured { value: value.to_owned(), holds })
    }

    fn not_measured() -> Row {
        Row { check: &AGREE[3], value: "-".to_owned(), verdict: Verdict::NotMeasured }
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
        assert!(chosen("nothing", None).unwrap_err().to_string().contains("there is: agree"));
        let error = chosen("agree", Some("nothing")).unwrap_err();
        assert!(error.to_string().contains("sim-seeds, mutants, search, litmus"));
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
