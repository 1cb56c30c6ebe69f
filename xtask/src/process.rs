//! Child commands: their output streams through, and they end with us.
//!
//! A program that is measured ends with one line for us among its lines for people:
//!
//! ```text
//! RESULT schedules=200 violations=0
//! ```
//!
//! Keys and values hold no space and no `=`. The last such line counts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Lines kept from one child; later ones are only passed on.
const KEPT_LINES_MAX: usize = 10_000;

/// How often a child with a deadline is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs children one after another, all of them before the deadline if there is one.
#[derive(Debug)]
pub(crate) struct Runner {
    deadline: Option<Instant>,
}

/// What a finished child left: its exit status and the lines that were asked for.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) lines: Vec<String>,
}

impl Runner {
    /// Waits for each child as long as it takes; an interrupt from the terminal reaches it.
    pub(crate) const fn without_deadline() -> Self {
        Self { deadline: None }
    }

    /// Kills a child, with everything it started, that is not done after `budget` from now.
    /// For that it leads a process group of its own, which an interrupt from the terminal misses.
    pub(crate) fn with_budget(budget: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(budget) }
    }

    /// Runs the command; a status other than success is an error.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let shown = announce(command);
        let mut child = self.spawn(command, &shown)?;
        let status = self.wait(&mut child, &shown)?;
        ensure!(status.success(), "`{shown}` failed ({status}): its output above says why");
        Ok(())
    }

    /// Runs the command and keeps the lines of its standard output that `wanted` picks.
    pub(crate) fn run_keeping(
        &self,
        command: &mut Command,
        wanted: fn(&str) -> bool,
    ) -> Result<Finished> {
        let shown = announce(command);
        let mut child = self.spawn(command.stdout(Stdio::piped()), &shown)?;
        let output = child.stdout.take().context("a piped child has a standard output")?;
        let reader = std::thread::spawn(move || pass_on(BufReader::new(output), wanted));
        let status = self.wait(&mut child, &shown);
        let kept = reader.join();
        let status = status?;
        let lines = match kept {
            Ok(lines) => lines.with_context(|| format!("reading the output of `{shown}`"))?,
            Err(_) => bail!("the thread that reads the output of `{shown}` panicked"),
        };
        Ok(Finished { status, lines })
    }

    fn spawn(&self, command: &mut Command, shown: &str) -> Result<Child> {
        if self.deadline.is_some() {
            command.process_group(0);
        }
        command.spawn().with_context(|| format!("`{shown}` does not start: is it installed?"))
    }

    fn wait(&self, child: &mut Child, shown: &str) -> Result<ExitStatus> {
        let Some(deadline) = self.deadline else {
            return child.wait().with_context(|| format!("waiting for `{shown}`"));
        };
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                kill_group(child)?;
                bail!("`{shown}` was stopped: its stage is over its budget");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Finished {
    /// The last `RESULT` line as keys and values; a child that failed without one is an error.
    pub(crate) fn result(&self) -> Result<BTreeMap<String, String>> {
        let Some(line) = self.lines.iter().rev().find(|line| is_result(line)) else {
            bail!("the command ended ({}) without a RESULT line", self.status);
        };
        parse_result(line)
    }
}

/// Whether the line is a `RESULT` line.
pub(crate) fn is_result(line: &str) -> bool {
    line.starts_with("RESULT ")
}

fn parse_result(line: &str) -> Result<BTreeMap<String, String>> {
    let pairs = line.split_whitespace().skip(1);
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').with_context(|| {
                format!("`{pair}` in the line `{line}` is not of the form key=value")
            })?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The number under `key` in a `RESULT` line.
pub(crate) fn number(result: &BTreeMap<String, String>, key: &str) -> Result<u64> {
    let value = result.get(key).with_context(|| format!("the RESULT line has no `{key}=`"))?;
    value.parse().with_context(|| format!("`{key}={value}` in the RESULT line is not a number"))
}

fn announce(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let program = words[0].rsplit('/').next().unwrap_or(&words[0]).to_owned();
    let shown = std::iter::once(program.as_str())
        .chain(words[1..].iter().map(AsRef::as_ref))
        .collect::<Vec<_>>()
        .join(" ");
    eprintln!("+ {shown}");
    shown
}

fn pass_on(output: impl BufRead, wanted: fn(&str) -> bool) -> std::io::Result<Vec<String>> {
    let mut kept = Vec::new();
    for line in output.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if wanted(&line) && kept.len() < KEPT_LINES_MAX {
            kept.push(line.into_owned());
        }
    }
    Ok(kept)
}

/// Kills the process group that the child leads, and reaps the child.
fn kill_group(child: &mut Child) -> Result<()> {
    let group = format!("-{}", child.id());
    let status = Command::new("kill").args(["-KILL", "--", &group]).status();
    if !status.is_ok_and(|status| status.success()) {
        child.kill().context("a child over its budget cannot be killed")?;
    }
    child.wait().context("waiting for a killed child")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_last_result_line_counts() {
        let mut command = sh("echo RESULT n=1; echo for people; echo RESULT n=2 violations=0");
        let finished = Runner::without_deadline().run_keeping(&mut command, is_result).unwrap();
        let result = finished.result().unwrap();
        assert_eq!(number(&result, "n").unwrap(), 2);
        assert_eq!(number(&result, "violations").unwrap(), 0);
    }

    #[test]
    fn a_missing_key_and_a_wrong_number_are_named() {
        let result = parse_result("RESULT n=many").unwrap();
        assert!(number(&result, "violations").unwrap_err().to_string().contains("`violations=`"));
        assert!(number(&result, "n").unwrap_err().to_string().contains("n=many"));
        assert!(parse_result("RESULT n").unwrap_err().to_string().contains("key=value"));
    }

    #[test]
    fn a_child_that_fails_without_a_result_is_an_error_with_its_status() {
        let finished =
            Runner::without_deadline().run_keeping(&mut sh("exit 3"), is_result).unwrap();
        assert!(finished.result().unwrap_err().to_string().contains('3'));
    }

    #[test]
    fn a_failing_child_is_an_error_that_shows_the_command() {
        let error = Runner::without_deadline().run(&mut sh("exit 1")).unwrap_err();
        assert!(error.to_string().contains("`sh -c exit 1` failed"));
    }

    #[test]
    fn a_child_over_its_budget_is_killed_with_everything_it_started() {
        // The grandchild holds the pipe open: the call returns only if it was killed too.
        let runner = Runner::with_budget(Duration::ZERO);
        let error = runner.run_keeping(&mut sh("sleep 600 & wait"), is_result).unwrap_err();
        assert!(error.to_string().contains("over its budget"));
    }
}
