//! Many schedules, on all processors, and what they add up to.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::{
    cluster::{self, Report},
    mutants,
    oracle::{Checker, Violation},
    plan::{Fault, Focus, Plan},
};

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How many schedules.
    pub schedules: u64,
    /// The first seed; from the clock when `None`.
    pub seed: Option<u64>,
    /// Founding members; from the seed when `None`.
    pub members: Option<u32>,
    /// What the schedules are bent towards.
    pub focus: Focus,
    /// The fault to plant.
    pub mutant: Option<String>,
    /// Whether to tell what happens in each schedule.
    pub verbose: bool,
    /// Threads; one per processor when `None`.
    pub threads: Option<u32>,
}

/// What schedules add up to.
#[derive(Debug, Default)]
struct Sum {
    schedules: u64,
    violations: u64,
    events: u64,
    operations: u64,
    unknown: u64,
    elections: u64,
    committed: u64,
    checkpoints: u64,
    installs: u64,
    simulated_ms: u128,
    faults: BTreeMap<Fault, u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.schedules += 1;
        self.violations += u64::from(report.violation.is_some());
        self.events += report.events;
        self.operations += report.operations;
        self.unknown += report.unknown;
        self.elections += report.elections;
        self.committed += report.committed;
        self.checkpoints += report.checkpoints;
        self.installs += report.installs;
        self.simulated_ms += report.simulated.as_millis();
        for fault in &report.faults {
            *self.faults.entry(*fault).or_default() += 1;
        }
    }
}

/// Runs schedules and says what came of them. Answers whether none had a violation.
pub fn run(options: &Options, say: &mut dyn FnMut(String)) -> bool {
    let mutant = match mutants::named(options.mutant.as_deref()) {
        Ok(mutant) => mutant,
        Err(why) => {
            say(why);
            return false;
        }
    };
    let first = options.seed.unwrap_or_else(seed_of_the_clock);
    say(format!("schedules {} to {}", first, first + options.schedules.saturating_sub(1)));
    let begun = Instant::now();
    let mut sum = Sum::default();
    let mut on_report = |seed: u64, plan: &Plan, report: Report, told: Vec<String>| {
        sum.add(&report);
        told.into_iter().for_each(&mut *say);
        if options.verbose || report.violation.is_some() {
            say(describe(seed, plan, &report));
        }
        if sum.schedules.is_multiple_of(1000) {
            say(format!("{} schedules, {} violations", sum.schedules, sum.violations));
        }
        true
    };
    each(options, (first, options.schedules), mutant, &mut on_report);
    let seconds = begun.elapsed().as_secs_f64();
    say_sum(&sum, seconds, say);
    say(format!("RESULT schedules={} violations={}", sum.schedules, sum.violations));
    sum.violations == 0
}

fn seed_of_the_clock() -> u64 {
    // Microseconds: runs that follow each other have seeds of their own.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX >> 1)
}

fn describe(seed: u64, plan: &Plan, report: &Report) -> String {
    let verdict = report.violation.as_ref().map_or_else(|| "ok".to_owned(), ToString::to_string);
    format!(
        "seed {seed}: {} members, {}, {} operations, {} elections, {} faults, trace {:016x}: {verdict}",
        plan.members,
        plan.setup.mode.name(),
        report.operations,
        report.elections,
        report.faults.len(),
        report.trace,
    )
}

fn say_sum(sum: &Sum, seconds: f64, say: &mut dyn FnMut(String)) {
    say(format!(
        "{} schedules in {seconds:.1} s ({:.0} events/s), {} ms of simulated time",
        sum.schedules,
        per_second(sum.events, seconds),
        sum.simulated_ms,
    ));
    say(format!(
        "{} operations ({} of unknown outcome), {} entries committed, {} elections won, {} checkpoints, {} installed from a peer",
        sum.operations, sum.unknown, sum.committed, sum.elections, sum.checkpoints, sum.installs,
    ));
    let faults: Vec<String> =
        sum.faults.iter().map(|(fault, count)| format!("{fault:?} {count}")).collect();
    say(format!("faults: {}", faults.join(", ")));
    say("checked: one log, completeness, durability, one leader, one writer, equal state, linearizable, progress".to_owned());
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

/// The report of a schedule that ended in a panic of the code under test.
fn panicked(panic: &(dyn Any + Send)) -> Report {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    let violation =
        Violation { checker: Checker::Panicked, at: base::Instant(0), what: text.to_owned() };
    Report { violation: Some(violation), ..Report::default() }
}

/// Takes a seed, its plan, what came of it and what was told on the way; answers whether to go on.
type OnReport<'a> = dyn FnMut(u64, &Plan, Report, Vec<String>) -> bool + 'a;

/// Runs schedules on all processors and hands over each report as it comes, until it is told to
/// stop.
pub(crate) fn each(
    options: &Options,
    (first, count): (u64, u64),
    mutant: Option<&'static str>,
    on_report: &mut OnReport<'_>,
) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.map_or(processors, |threads| threads as usize);
    let next = AtomicU64::new(0);
    let stops = AtomicBool::new(false);
    let (send, receive) = mpsc::sync_channel(threads * 4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next, stops) = (send.clone(), &next, &stops);
            scope.spawn(move || {
                mutants::plant(mutant.unwrap_or(""));
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || stops.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = first.wrapping_add(at);
                    let plan = Plan::focused(seed, options.members, options.focus);
                    let mut told = Vec::new();
                    let mut tell = |line: String| told.push(line);
                    let say: Option<&mut dyn FnMut(String)> =
                        if options.verbose { Some(&mut tell) } else { None };
                    let report = catch_unwind(AssertUnwindSafe(|| cluster::run(&plan, say)))
                        .unwrap_or_else(|panic| panicked(panic.as_ref()));
                    if send.send((seed, plan, report, told)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (seed, plan, report, told) in receive {
            if !on_report(seed, &plan, report, told) {
                stops.store(true, Ordering::Relaxed);
                break;
            }
        }
    });
}
