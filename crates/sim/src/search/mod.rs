//! A bounded, exhaustive search of the consensus core.
//!
//! Every member runs the real [`consensus::Core`]; its log, its medium and the wire are models that
//! keep what the protocol can notice. From the first state every choice of a scheduler is tried,
//! until no new state is found. The design page `docs/design/006-search.md` says what is modelled,
//! what is left out, and why the reductions lose nothing.
//!
//! ```text
//!   state --actions--> action --step--> state' --check--> fingerprint --> known? --> frontier
//!            |                    |
//!       WRITE landed?       Core::step + effects
//!       power cut leaves?   (log, superblock, chains, mail)
//! ```
//!
//! # Invariants
//! - A step is one event for one core and everything that answers itself at once.
//! - The checkers read logs and media, never the core's own opinion of them; they work with the
//!   core's assertions compiled out.
//! - Nothing here depends on time, and the set of states found does not depend on the threads.

mod actions;
mod bounds;
mod check;
mod explore;
mod fingerprint;
mod log;
mod path;
mod stale;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;

pub use bounds::Bounds;
pub use check::Broken;

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Distinct states found.
    pub states: u64,
    /// Steps taken, those into known states included.
    pub transitions: u64,
    /// Steps from the first state to those now looked at.
    pub depth: u32,
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Distinct states found.
    pub states: u64,
    /// Steps taken, those into known states included.
    pub transitions: u64,
    /// The longest of the shortest ways to a state, in steps.
    pub depth: u32,
    /// Whether every state within the bounds was looked at.
    pub finished: bool,
    /// What was found wrong, by a shortest way.
    pub violation: Option<Trace>,
}

impl Outcome {
    const fn none() -> Self {
        Self { states: 0, transitions: 0, depth: 0, finished: false, violation: None }
    }
}

/// The way to a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What was done, and what it changed.
    pub steps: Vec<String>,
    /// What does not hold after the last step.
    pub broken: Broken,
}

impl Trace {
    const fn at_once(broken: Broken) -> Self {
        Self { steps: Vec::new(), broken }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:4}  {step}", at + 1)?;
        }
        write!(f, "      violated: {}", self.broken)
    }
}

/// Searches everything within `bounds` on `threads` threads. `progress` is called now and then, by
/// any of them, and says whether to go on.
pub fn run<P>(bounds: &Bounds, threads: usize, progress: P) -> Outcome
where
    P: Fn(&Progress) -> bool + Sync,
{
    explore::explore(bounds, threads, progress)
}
