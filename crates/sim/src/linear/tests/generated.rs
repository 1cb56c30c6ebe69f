//! Long histories from real registers, each operation executed at a random moment between its
//! call and its answer; and the same with one answer changed so that no order explains it.

use super::*;

#[derive(Clone, Copy)]
struct Shape {
    operations: usize,
    clients: u64,
    keys: u64,
    /// One in so many answers never comes.
    unknown_one_in: u64,
}

const LARGE: Shape = Shape { operations: 100_000, clients: 16, keys: 16, unknown_one_in: 50 };

struct Generated {
    operation: Operation,
    effect_at: u64,
    happens: bool,
}

fn generate(seed: u64, shape: Shape) -> Vec<Operation> {
    let mut random = Random::new(seed);
    let mut free_at = vec![0; usize::try_from(shape.clients).unwrap()];
    let mut all = Vec::new();
    for number in 0..shape.operations {
        let client = random.below(shape.clients);
        let free = &mut free_at[usize::try_from(client).unwrap()];
        let invoke = *free + random.below(20);
        let effect_at = invoke + 1 + random.below(50);
        let complete = effect_at + 1 + random.below(50);
        *free = complete + 1;
        let is_unknown = random.one_in(shape.unknown_one_in);
        let late = if is_unknown { random.below(5_000) } else { 0 };
        let value = i64::try_from(number).unwrap() * 1_000;
        let key = random.below(shape.keys);
        let call = match random.below(10) {
            0..=4 => Call::Get(key),
            5..=6 => Call::Put(key, value),
            7 => Call::Increment(key, 1),
            8 => Call::CompareAndSet(key, None, Some(value)),
            _ => Call::Delete(key),
        };
        let operation = Operation {
            client: u32::try_from(client).unwrap(),
            invoke: Instant(invoke),
            complete: (!is_unknown).then_some(Instant(complete)),
            call,
            outcome: Outcome::Unknown,
        };
        let happens = !is_unknown || random.one_in(2);
        all.push(Generated { operation, effect_at: effect_at + late, happens });
    }
    all.sort_by_key(|one| one.effect_at);
    let mut registers = vec![None; usize::try_from(shape.keys).unwrap()];
    all.into_iter().map(|one| answer(&mut random, &mut registers, one)).collect()
}

/// Executes an operation and writes its answer down, if it comes.
fn answer(random: &mut Random, registers: &mut [Value], one: Generated) -> Operation {
    let mut operation = one.operation;
    let key = usize::try_from(first_key(&operation.call)).unwrap();
    let register = &mut registers[key];
    if let Call::CompareAndSet(_, expected, _) = &mut operation.call
        && !random.one_in(3)
    {
        *expected = *register;
    }
    if !one.happens {
        return operation;
    }
    let outcome = match &operation.call {
        Call::Get(_) => Outcome::Value(*register),
        Call::Put(_, value) => {
            *register = Some(*value);
            Outcome::Done
        }
        Call::Increment(_, by) => {
            let sum = register.unwrap_or(0) + by;
            *register = Some(sum);
            Outcome::Number(sum)
        }
        Call::CompareAndSet(_, expected, new) => {
            let applies = register == expected;
            if applies {
                *register = *new;
            }
            Outcome::Applied(applies)
        }
        Call::Delete(_) => Outcome::Existed(register.take().is_some()),
        Call::Batch { .. } => unreachable!("not generated"),
    };
    if operation.complete.is_some() {
        operation.outcome = outcome;
    }
    operation
}

/// Changes a read in the last quarter into one of a value that was overwritten before it began.
fn make_stale(history: &mut [Operation]) -> usize {
    let from = history.len() * 3 / 4;
    let is_read = |one: &Operation| {
        matches!((&one.call, one.outcome), (Call::Get(_), Outcome::Value(Some(_))))
    };
    let place = from + history[from..].iter().position(is_read).unwrap();
    let (key, begin) = (first_key(&history[place].call), history[place].invoke);
    let is_put = |one: &&Operation| {
        first_key(&one.call) == key
            && one.complete.is_some_and(|complete| complete < begin)
            && matches!(one.call, Call::Put(..))
    };
    let last = history[..place].iter().filter(is_put).max_by_key(|one| one.invoke).unwrap();
    let before = |one: &&Operation| {
        is_put(one) && one.complete.is_some_and(|complete| complete < last.invoke)
    };
    let stale = history[..place].iter().filter(before).max_by_key(|one| one.invoke).unwrap();
    let Call::Put(_, value) = stale.call else { unreachable!("filtered") };
    history[place].outcome = Outcome::Value(Some(value));
    place
}

#[test]
fn long_good_histories_are_accepted_and_stale_reads_in_them_are_found() {
    for seed in 0..3 {
        let mut history = generate(seed, LARGE);
        let lost = history.iter().filter(|one| one.complete.is_none()).count();
        assert!(LARGE.operations / 100 < lost, "{lost} unknown");
        let begin = std::time::Instant::now();
        assert_eq!(verdict(&history), Verdict::Linearizable, "seed {seed}");
        println!("good: {} operations in {:?}", history.len(), begin.elapsed());
        let place = make_stale(&mut history);
        let begin = std::time::Instant::now();
        let Verdict::Violation(found) = verdict(&history) else {
            panic!("seed {seed}: the stale read was not found");
        };
        println!("bad: {} operations in {:?}", history.len(), begin.elapsed());
        assert_eq!(found.operation, history[place]);
        assert!(found.window.len() < 100 && found.window.contains(&history[place]));
    }
}

#[test]
fn one_key_under_sixteen_clients_is_decided() {
    let shape = Shape { operations: 2_000, keys: 1, ..LARGE };
    let mut history = generate(7, shape);
    let begin = std::time::Instant::now();
    assert_eq!(verdict(&history), Verdict::Linearizable);
    println!("good: {} operations on one key in {:?}", history.len(), begin.elapsed());
    let place = make_stale(&mut history);
    assert!(matches!(verdict(&history), Verdict::Violation(found)
        if found.operation == history[place]));
}

#[test]
fn a_value_from_nowhere_is_found() {
    let shape = Shape { operations: 5_000, ..LARGE };
    let mut history = generate(11, shape);
    let is_whole = |value: &i64| value % 1_000 == 0;
    let value_of = |one: &Operation| match one.outcome {
        Outcome::Value(value) => value.filter(is_whole),
        Outcome::Done
        | Outcome::Existed(_)
        | Outcome::Applied(_)
        | Outcome::Number(_)
        | Outcome::Unknown => None,
    };
    let seen = history.iter().rev().find_map(value_of).unwrap();
    let source = |one: &Operation| match one.call {
        Call::Put(_, value) => value == seen,
        Call::CompareAndSet(_, _, new) => new == Some(seen),
        Call::Get(_) | Call::Delete(_) | Call::Increment(..) | Call::Batch { .. } => false,
    };
    history.retain(|one| !source(one));
    assert!(!is_good(&history));
}
