//! The exhaustive searches that a person (or a build) runs, one after the other.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{
    mutants,
    search::{self, Bounds},
};

/// The searches, each of which ends by itself.
fn all() -> Vec<(&'static str, Bounds)> {
    vec![
        ("regrants", Bounds { entries: 1, ..Bounds::regrants() }),
        ("power-cuts", Bounds { crashes: 1, ..Bounds::power_cuts() }),
        ("reads", Bounds::reads()),
        ("elections", Bounds::elections()),
        ("power-cut", Bounds { entries: 0, ..Bounds::default() }),
        ("default", Bounds::default()),
    ]
}

/// The search that takes minutes.
const LONG: &str = "default";

/// How often a search says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Runs the searches (the quick ones only, if asked for) and says what they found. Answers whether all were finished without a
/// violation.
pub fn run(
    (only, is_quick): (Option<&str>, bool),
    mutant: Option<&str>,
    say: &mut dyn FnMut(String),
) -> bool {
    let planted = match mutants::named(mutant) {
        Ok(planted) => planted.unwrap_or(""),
        Err(why) => {
            say(why);
            return false;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut states, mut violations, mut finished) = (0, 0, true);
    let mut ran = 0;
    let is_wanted =
        |name: &str| only.is_none_or(|only| only == name) && !(is_quick && name == LONG);
    for (name, bounds) in all().into_iter().filter(|(name, _)| is_wanted(name)) {
        ran += 1;
        let begun = Instant::now();
        let said = Mutex::new(begun);
        let outcome = search::run(&Bounds { planted, ..bounds }, threads, |progress| {
            // Any thread may come here; whoever finds the lock taken has nothing to add.
            if let Ok(mut last) = said.try_lock()
                && last.elapsed() >= SAY_EVERY
            {
                *last = Instant::now();
                progress_line(name, progress);
            }
            true
        });
        states += outcome.states;
        finished &= outcome.finished || outcome.violation.is_some();
        say(format!(
            "{name:<12} {:>9} states, {:>10} transitions, depth {:>2}, {:.1} s, {}",
            outcome.states,
            outcome.transitions,
            outcome.depth,
            begun.elapsed().as_secs_f64(),
            if outcome.finished { "finished" } else { "not finished" },
        ));
        if let Some(trace) = outcome.violation {
            violations += 1;
            say(trace.to_string());
            break;
        }
    }
    if ran == 0 {
        let names: Vec<&str> = all().into_iter().map(|(name, _)| name).collect();
        say(format!("there are no such bounds; there are: {}", names.join(", ")));
        return false;
    }
    say(format!("RESULT states={states} violations={violations} finished={finished}"));
    violations == 0 && finished
}

#[expect(clippy::print_stderr, reason = "progress is for whoever watches, not for the result")]
fn progress_line(name: &str, progress: &search::Progress) {
    eprintln!(
        "{name}: {} states, {} transitions, depth {}",
        progress.states, progress.transitions, progress.depth
    );
}
