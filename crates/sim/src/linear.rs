//! A checker for linearizability: could one register per key, changed by one operation at a time,
//! have given these answers?
//!
//! # The method
//! A history is cut into components of keys that batches tie together (a history is linearizable
//! exactly when each component is). In a component the invocations and completions are walked in
//! the order of time with the set of all *configurations* the registers may be in: values, which
//! of the running operations have taken effect, which unknown ones were used up. At a completion
//! only those configurations go on in which the operation has taken effect, at the latest now.
//! When none is left, that completion is the contradiction.
//!
//! The naive way keeps every subset of the operations whose end nobody knows, which doubles the
//! set with each of them. Three observations keep it small:
//! - An operation that only reads takes effect as soon as it can: that never costs anything.
//! - An unknown operation on one key takes effect directly before a known one that could not give
//!   its answer without it, or not at all. (If the next known operation can do without: when it
//!   overwrites the key, the unknown one might as well not have been; when it does not, the
//!   unknown one might as well come later.) So the value that is missing says which are tried.
//! - Of two configurations that differ only in what they used up, the thriftier one suffices.
//!
//! # Limits
//! Memory is bounded by [`Limits::configurations_max`]. At a limit the verdict is
//! [`Verdict::Undecided`], never a guess: a reported violation always is one.

mod compile;
mod search;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::Instant;

/// A key.
pub type Key = u64;

/// What a key holds: nothing, or a number.
pub type Value = Option<i64>;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The value of a key; answered by [`Outcome::Value`].
    Get(Key),
    /// Sets a key; answered by [`Outcome::Done`].
    Put(Key, i64),
    /// Empties a key; answered by [`Outcome::Done`] or [`Outcome::Existed`].
    Delete(Key),
    /// Sets a key to the second value if it holds the first; answered by [`Outcome::Applied`].
    CompareAndSet(Key, Value, Value),
    /// Adds to a key, which counts from zero when it is empty; answered by [`Outcome::Number`]
    /// with the sum.
    Increment(Key, i64),
    /// Sets all keys of `writes` if every key of `compares` holds what stands beside it; answered
    /// by [`Outcome::Applied`].
    Batch {
        /// What must hold.
        compares: Vec<(Key, Value)>,
        /// What is set then. No key twice.
        writes: Vec<(Key, Value)>,
    },
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value that was there.
    Value(Value),
    /// It is done.
    Done,
    /// It is done; whether there was a value before.
    Existed(bool),
    /// Whether the comparison held, and so the writes were done.
    Applied(bool),
    /// The sum.
    Number(i64),
    /// Nothing, or that nobody knows: it takes effect at any time after the call, or never.
    Unknown,
}

/// One operation of one client. What was surely refused stands in no history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked.
    pub client: u32,
    /// When.
    pub invoke: Instant,
    /// When the answer came; `None` is the same as [`Outcome::Unknown`].
    pub complete: Option<Instant>,
    /// What was asked.
    pub call: Call,
    /// What was answered.
    pub outcome: Outcome,
}

/// Operations in any order.
pub type History = Vec<Operation>;

/// When to give up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most configurations that are kept for one moment, some 100 bytes each.
    pub configurations_max: usize,
    /// The most steps of the search in one component.
    pub steps_max: u64,
}

impl Default for Limits {
    /// Some 50 MB, and a minute.
    fn default() -> Self {
        Self { configurations_max: 500_000, steps_max: 200_000_000 }
    }
}

/// What the checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order in which every answer is right.
    Linearizable,
    /// There is none.
    Violation(Box<Counterexample>),
    /// A limit was reached before it was clear.
    Undecided {
        /// The keys of the component.
        keys: Vec<Key>,
        /// Which limit, and where.
        why: String,
    },
}

/// Where a history contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// The keys of the component.
    pub keys: Vec<Key>,
    /// The operation that cannot have taken effect by the time it was answered.
    pub operation: Operation,
    /// What the keys (in the order of `keys`) may have held just before that answer; the first few.
    pub states: Vec<Vec<Value>>,
    /// The operations that ran at the same time, and the last few on these keys that had ended or
    /// are unknown; by their invocation.
    pub window: Vec<Operation>,
}

/// How many ended and how many unknown operations before the contradiction a counterexample shows.
const WINDOW_BEFORE: usize = 12;

/// Checks a history of registers that are empty at first.
///
/// # Panics
/// When an answer is none that its call can have, or an operation ends before it begins.
#[must_use]
pub fn check(history: &[Operation], limits: Limits) -> Verdict {
    let components = components(history);
    let homes: BTreeMap<Key, usize> = (0..)
        .zip(&components)
        .flat_map(|(home, keys)| keys.iter().map(move |key| (*key, home)))
        .collect();
    let mut parts: Vec<Vec<&Operation>> = vec![Vec::new(); components.len()];
    for operation in history {
        parts[homes[&first_key(&operation.call)]].push(operation);
    }
    let mut undecided = None;
    for (keys, operations) in components.into_iter().zip(parts) {
        let keys: Vec<Key> = keys.into_iter().collect();
        match search::check_component(&keys, &operations, limits) {
            search::Found::Order => {}
            search::Found::Contradiction { operation, states } => {
                return Verdict::Violation(Box::new(explain(keys, &operations, operation, states)));
            }
            search::Found::Limit(why) => undecided = Some(Verdict::Undecided { keys, why }),
        }
    }
    undecided.unwrap_or(Verdict::Linearizable)
}

fn keys_of(call: &Call) -> Vec<Key> {
    match call {
        Call::Get(key)
        | Call::Put(key, _)
        | Call::Delete(key)
        | Call::CompareAndSet(key, _, _)
        | Call::Increment(key, _) => vec![*key],
        Call::Batch { compares, writes } => {
            compares.iter().chain(writes).map(|(key, _)| *key).collect()
        }
    }
}

fn first_key(call: &Call) -> Key {
    *keys_of(call).first().expect("a batch names a key")
}

/// The sets of keys that batches tie together.
fn components(history: &[Operation]) -> Vec<BTreeSet<Key>> {
    let mut label: BTreeMap<Key, usize> = BTreeMap::new();
    let mut sets: Vec<BTreeSet<Key>> = Vec::new();
    for operation in history {
        let keys = keys_of(&operation.call);
        let first = keys[0];
        let home = *label.entry(first).or_insert(sets.len());
        if home == sets.len() {
            sets.push(BTreeSet::from([first]));
        }
        for key in &keys[1..] {
            let Some(from) = label.insert(*key, home) else {
                sets[home].insert(*key);
                continue;
            };
            if from != home {
                let moved = std::mem::take(&mut sets[from]);
                for key in &moved {
                    label.insert(*key, home);
                }
                sets[home].extend(moved);
            }
        }
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Puts the surroundings of a contradiction together.
fn explain(
    keys: Vec<Key>,
    operations: &[&Operation],
    place: usize,
    states: Vec<Vec<Value>>,
) -> Counterexample {
    let operation = operations[place].clone();
    let end = operation.complete.expect("only an answered operation can contradict");
    let started = operations.iter().copied().filter(|one| one.invoke <= end);
    let (mut answered, mut open): (Vec<&Operation>, Vec<&Operation>) =
        started.partition(|one| compile::is_known(one));
    answered.sort_by_key(|one| one.complete);
    open.sort_by_key(|one| one.invoke);
    let ended = answered.partition_point(|one| one.complete < Some(operation.invoke));
    let answered = answered.split_off(ended.saturating_sub(WINDOW_BEFORE));
    let open = open.split_off(open.len().saturating_sub(WINDOW_BEFORE));
    let mut window: Vec<Operation> = answered.into_iter().chain(open).cloned().collect();
    window.sort_by_key(|one| one.invoke);
    Counterexample { keys, operation, states, window }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:>3}  [{:>12} ", self.client, self.invoke.0)?;
        match self.complete {
            Some(complete) => write!(f, "{:>12}]", complete.0)?,
            None => write!(f, "         ...]")?,
        }
        write!(f, "  {:?} -> {:?}", self.call, self.outcome)
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keys {:?}: no order explains", self.keys)?;
        writeln!(f, "  {}", self.operation)?;
        writeln!(f, "before its answer the keys may have held: {:?}", self.states)?;
        writeln!(f, "around it:")?;
        for operation in &self.window {
            writeln!(f, "  {operation}")?;
        }
        Ok(())
    }
}
