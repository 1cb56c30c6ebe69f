//! The checker against the definition: every order of every subset, on small random histories.

use super::*;

/// Executes one call on registers 0..=2.
fn execute(state: &mut [Value; 3], call: &Call) -> Vec<Outcome> {
    let at = |key: &Key| usize::try_from(*key).unwrap();
    match call {
        Call::Get(key) => vec![Outcome::Value(state[at(key)])],
        Call::Put(key, value) => {
            state[at(key)] = Some(*value);
            vec![Outcome::Done]
        }
        Call::Delete(key) => {
            let existed = state[at(key)].take().is_some();
            vec![Outcome::Done, Outcome::Existed(existed)]
        }
        Call::CompareAndSet(key, expected, new) => {
            let applies = state[at(key)] == *expected;
            if applies {
                state[at(key)] = *new;
            }
            vec![Outcome::Applied(applies)]
        }
        Call::Increment(key, by) => {
            let sum = state[at(key)].unwrap_or(0) + by;
            state[at(key)] = Some(sum);
            vec![Outcome::Number(sum)]
        }
        Call::Batch { compares, writes } => {
            let applies = compares.iter().all(|(key, value)| state[at(key)] == *value);
            for (key, value) in writes.iter().filter(|_| applies) {
                state[at(key)] = *value;
            }
            vec![Outcome::Applied(applies)]
        }
    }
}

fn end(operation: &Operation) -> Option<Instant> {
    operation.complete.filter(|_| operation.outcome != Outcome::Unknown)
}

/// Whether the operations not in `done` can follow in some order.
fn can_finish(history: &[Operation], done: u32, state: [Value; 3]) -> bool {
    let open = || (0..history.len()).filter(move |place| done >> place & 1 == 0);
    let first_end = open().filter_map(|place| end(&history[place])).min();
    let Some(first_end) = first_end else {
        return true;
    };
    open().filter(|place| history[*place].invoke <= first_end).any(|place| {
        let operation = &history[place];
        let mut after = state;
        let outcomes = execute(&mut after, &operation.call);
        let fits = end(operation).is_none() || outcomes.contains(&operation.outcome);
        fits && can_finish(history, done | 1 << place, after)
    })
}

fn random_call(random: &mut Random, keys: u64) -> Call {
    let key = random.below(keys);
    let value = |random: &mut Random| i64::try_from(random.below(3)).unwrap();
    let some = |random: &mut Random| (!random.one_in(4)).then_some(value(random));
    match random.below(if keys == 1 { 9 } else { 12 }) {
        0..=2 => Call::Get(key),
        3..=4 => Call::Put(key, value(random)),
        5 => Call::Delete(key),
        6 => Call::CompareAndSet(key, some(random), some(random)),
        7..=8 => Call::Increment(key, 1 + value(random)),
        _ => {
            let other = (key + 1) % keys;
            let compares = (0..random.below(3)).map(|_| (random.below(keys), some(random)));
            let compares = compares.collect();
            Call::Batch { compares, writes: vec![(key, some(random)), (other, some(random))] }
        }
    }
}

/// An answer that the call can have, right in one of two cases.
fn random_outcome(random: &mut Random, state: &mut [Value; 3], call: &Call) -> Outcome {
    let right = execute(state, call);
    let right = right[usize::try_from(random.below(right.len() as u64)).unwrap()];
    if !random.one_in(6) {
        return right;
    }
    let number = i64::try_from(random.below(5)).unwrap();
    match right {
        Outcome::Value(_) => Outcome::Value((number > 0).then_some(number - 1)),
        Outcome::Existed(_) => Outcome::Existed(number > 2),
        Outcome::Applied(_) => Outcome::Applied(number > 2),
        Outcome::Number(_) => Outcome::Number(number),
        Outcome::Done | Outcome::Unknown => right,
    }
}

fn random_history(seed: u64, keys: u64) -> Vec<Operation> {
    let mut random = Random::new(seed);
    let mut state = [None; 3];
    let count = 2 + random.below(7);
    let operations = (0..count).map(|number| {
        let middle = number * 10;
        let invoke = Instant(middle.saturating_sub(random.below(25)));
        let call = random_call(&mut random, keys);
        let outcome = random_outcome(&mut random, &mut state, &call);
        let complete = Instant(middle + random.below(25));
        let complete = (!random.one_in(3)).then_some(complete);
        Operation { client: 0, invoke, complete, call, outcome }
    });
    operations.collect()
}

fn agrees(keys: u64, seeds: std::ops::Range<u64>) -> (usize, usize) {
    let (mut good, mut bad) = (0, 0);
    for seed in seeds {
        let history = random_history(seed, keys);
        let expected = can_finish(&history, 0, [None; 3]);
        assert_eq!(is_good(&history), expected, "seed {seed}, {keys} keys: {history:#?}");
        good += usize::from(expected);
        bad += usize::from(!expected);
    }
    (good, bad)
}

#[test]
fn decides_small_histories_of_one_key_as_the_definition_does() {
    let (good, bad) = agrees(1, 0..30_000);
    assert!(good > 3_000 && bad > 3_000, "{good} good, {bad} bad");
}

#[test]
fn decides_small_histories_with_batches_as_the_definition_does() {
    let (good, bad) = agrees(3, 0..30_000);
    assert!(good > 3_000 && bad > 3_000, "{good} good, {bad} bad");
}
