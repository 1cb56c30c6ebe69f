//! Calls and outcomes as tests and settings of numbered slots.

use super::{Call, Key, Operation, Outcome, Value};

/// What a slot must hold for an answer to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Is(Value),
    IsNot(Value),
    Present,
    /// This number, or nothing for zero.
    Counts(i64),
}

impl Test {
    pub(super) fn holds(self, value: Value) -> bool {
        match self {
            Self::Is(expected) => value == expected,
            Self::IsNot(expected) => value != expected,
            Self::Present => value.is_some(),
            Self::Counts(number) => value.unwrap_or(0) == number,
        }
    }
}

/// An operation whose answer is known: what it saw and what it left.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// All must hold.
    pub(super) all: Vec<(usize, Test)>,
    /// One must hold, if this is there.
    pub(super) any: Option<Vec<(usize, Test)>>,
    pub(super) sets: Vec<(usize, Value)>,
}

impl Known {
    pub(super) fn fits(&self, state: &[Value]) -> bool {
        let holds = |(slot, test): &(usize, Test)| test.holds(state[*slot]);
        self.all.iter().all(holds) && self.any.as_ref().is_none_or(|any| any.iter().any(holds))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Set(Value),
    Add(i64),
}

impl Effect {
    pub(super) fn on(self, value: Value) -> Value {
        match self {
            Self::Set(new) => new,
            Self::Add(by) => Some(value.unwrap_or(0).wrapping_add(by)),
        }
    }
}

/// An operation whose answer is not known: what it does if it does anything. Equal ones are
/// interchangeable once called, so they are counted and not named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unknown {
    pub(super) tests: Vec<(usize, Value)>,
    pub(super) effects: Vec<(usize, Effect)>,
}

impl Unknown {
    pub(super) fn fits(&self, state: &[Value]) -> bool {
        self.tests.iter().all(|(slot, value)| state[*slot] == *value)
    }

    /// The only slot that it touches, if it is one.
    pub(super) fn only_slot(&self) -> Option<usize> {
        let first = self.effects.first()?.0;
        let all = self.tests.iter().map(|(slot, _)| *slot);
        all.chain(self.effects.iter().map(|(slot, _)| *slot))
            .all(|slot| slot == first)
            .then_some(first)
    }
}

fn slot(keys: &[Key], key: Key) -> usize {
    keys.binary_search(&key).expect("the component has all keys of its operations")
}

/// Whether the end of an operation is known.
pub(super) const fn is_known(operation: &Operation) -> bool {
    operation.complete.is_some() && !matches!(operation.outcome, Outcome::Unknown)
}

/// What a known operation saw and left.
///
/// # Panics
/// When the answer is none that the call can have.
pub(super) fn known(keys: &[Key], operation: &Operation) -> Known {
    let at = |key: &Key| slot(keys, *key);
    let one = |key: &Key, test, sets: Option<Value>| Known {
        all: vec![(at(key), test)],
        any: None,
        sets: sets.map(|value| (at(key), value)).into_iter().collect(),
    };
    let blind = |key: &Key, value| Known { sets: vec![(at(key), value)], ..Known::default() };
    match (&operation.call, operation.outcome) {
        (Call::Get(key), Outcome::Value(value)) => one(key, Test::Is(value), None),
        (Call::Put(key, value), Outcome::Done) => blind(key, Some(*value)),
        (Call::Delete(key), Outcome::Done) => blind(key, None),
        (Call::Delete(key), Outcome::Existed(true)) => one(key, Test::Present, Some(None)),
        (Call::Delete(key), Outcome::Existed(false)) => one(key, Test::Is(None), None),
        (Call::CompareAndSet(key, expected, new), Outcome::Applied(true)) => {
            one(key, Test::Is(*expected), Some(*new))
        }
        (Call::CompareAndSet(key, expected, _), Outcome::Applied(false)) => {
            one(key, Test::IsNot(*expected), None)
        }
        (Call::Increment(key, by), Outcome::Number(sum)) => {
            one(key, Test::Counts(sum.wrapping_sub(*by)), Some(Some(sum)))
        }
        (Call::Batch { compares, writes }, Outcome::Applied(true)) => Known {
            all: compares.iter().map(|(key, value)| (at(key), Test::Is(*value))).collect(),
            any: None,
            sets: writes.iter().map(|(key, value)| (at(key), *value)).collect(),
        },
        (Call::Batch { compares, .. }, Outcome::Applied(false)) => {
            let differs = compares.iter().map(|(key, value)| (at(key), Test::IsNot(*value)));
            Known { any: Some(differs.collect()), ..Known::default() }
        }
        (call, outcome) => panic!("{call:?} cannot be answered by {outcome:?}"),
    }
}

/// What an unknown operation does if it does anything; `None` when it never does.
pub(super) fn unknown(keys: &[Key], operation: &Operation) -> Option<Unknown> {
    let at = |key: &Key| slot(keys, *key);
    let one = |key: &Key, effect| Unknown { tests: vec![], effects: vec![(at(key), effect)] };
    match &operation.call {
        Call::Get(_) => None,
        Call::Put(key, value) => Some(one(key, Effect::Set(Some(*value)))),
        Call::Delete(key) => Some(one(key, Effect::Set(None))),
        Call::CompareAndSet(key, expected, new) => Some(Unknown {
            tests: vec![(at(key), *expected)],
            effects: vec![(at(key), Effect::Set(*new))],
        }),
        Call::Increment(key, by) => Some(one(key, Effect::Add(*by))),
        Call::Batch { compares, writes } => {
            let unknown = Unknown {
                tests: compares.iter().map(|(key, value)| (at(key), *value)).collect(),
                effects: writes.iter().map(|(key, value)| (at(key), Effect::Set(*value))).collect(),
            };
            (!unknown.effects.is_empty()).then_some(unknown)
        }
    }
}
