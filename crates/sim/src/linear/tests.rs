use base::Random;

use super::*;

fn operation(client: u32, from: u64, to: u64, call: Call, outcome: Outcome) -> Operation {
    Operation { client, invoke: Instant(from), complete: Some(Instant(to)), call, outcome }
}

fn unknown(client: u32, from: u64, call: Call) -> Operation {
    Operation { client, invoke: Instant(from), complete: None, call, outcome: Outcome::Unknown }
}

fn get(from: u64, to: u64, value: i64) -> Operation {
    operation(9, from, to, Call::Get(1), Outcome::Value(Some(value)))
}

fn put(from: u64, to: u64, value: i64) -> Operation {
    operation(1, from, to, Call::Put(1, value), Outcome::Done)
}

fn incr(from: u64, to: u64, sum: i64) -> Operation {
    operation(2, from, to, Call::Increment(1, 1), Outcome::Number(sum))
}

fn verdict(history: &[Operation]) -> Verdict {
    check(history, Limits::default())
}

fn is_good(history: &[Operation]) -> bool {
    match verdict(history) {
        Verdict::Linearizable => true,
        Verdict::Violation(_) => false,
        Verdict::Undecided { why, .. } => panic!("undecided: {why}"),
    }
}

#[test]
fn a_read_during_a_write_may_see_either_value_but_not_go_back() {
    assert!(is_good(&[put(0, 1, 5), put(2, 9, 6), get(3, 4, 5), get(5, 6, 6)]));
    assert!(!is_good(&[put(0, 1, 5), put(2, 9, 6), get(3, 4, 6), get(5, 6, 5)]));
}

#[test]
fn a_stale_read_is_a_violation_that_names_the_read_and_its_surroundings() {
    let stale = get(4, 5, 5);
    let Verdict::Violation(found) = verdict(&[put(0, 1, 5), put(2, 3, 6), stale.clone()]) else {
        panic!("not found");
    };
    assert_eq!((found.keys.as_slice(), &found.operation), (&[1][..], &stale));
    assert_eq!(found.states, [[Some(6)]]);
    assert_eq!(found.window, [put(0, 1, 5), put(2, 3, 6), stale]);
    let text = found.to_string();
    assert!(
        text.contains("no order explains") && text.contains("Get(1) -> Value(Some(5))"),
        "{text}"
    );
}

#[test]
fn a_lost_update_is_a_violation() {
    assert!(is_good(&[incr(0, 5, 1), incr(1, 6, 2)]));
    assert!(!is_good(&[incr(0, 5, 1), incr(1, 6, 1)]));
}

#[test]
fn an_operation_that_was_executed_twice_is_a_violation() {
    assert!(!is_good(&[incr(0, 1, 1), get(2, 3, 2)]));
    assert!(!is_good(&[unknown(2, 0, Call::Increment(1, 1)), get(2, 3, 2)]));
}

#[test]
fn an_unknown_operation_may_have_taken_effect_late_or_never() {
    let lost = unknown(1, 2, Call::Put(1, 6));
    assert!(is_good(&[put(0, 1, 5), lost.clone(), get(3, 4, 5), get(5, 6, 6)]));
    assert!(is_good(&[put(0, 1, 5), lost.clone(), get(3, 4, 5), get(5, 6, 5)]));
    assert!(!is_good(&[put(0, 1, 5), lost.clone(), get(3, 4, 6), get(5, 6, 5)]));
    assert!(!is_good(&[put(0, 1, 5), get(1, 1, 6), lost]), "not before it was called");
}

#[test]
fn an_unknown_operation_is_used_once() {
    let lost = unknown(1, 0, Call::Put(1, 6));
    assert!(!is_good(&[lost, get(1, 2, 6), put(3, 4, 5), get(5, 6, 6)]));
}

#[test]
fn a_chain_of_unknown_operations_explains_a_value() {
    let history = |value| {
        vec![
            unknown(1, 0, Call::Put(1, 3)),
            unknown(2, 0, Call::CompareAndSet(1, Some(3), Some(7))),
            unknown(3, 0, Call::Increment(1, 1)),
            unknown(4, 0, Call::Increment(1, 1)),
            get(1, 2, value),
        ]
    };
    for value in [1, 2, 3, 4, 5, 7, 8, 9] {
        assert!(is_good(&history(value)), "{value}");
    }
    for value in [0, 6, 10] {
        assert!(!is_good(&history(value)), "{value}");
    }
}

#[test]
fn comparisons_and_deletions_tell_what_they_saw() {
    let cas = |from, to, applied| {
        let call = Call::CompareAndSet(1, Some(5), Some(6));
        operation(3, from, to, call, Outcome::Applied(applied))
    };
    let delete =
        |from, to, existed| operation(4, from, to, Call::Delete(1), Outcome::Existed(existed));
    assert!(is_good(&[put(0, 1, 5), cas(2, 3, true), get(4, 5, 6), cas(6, 7, false)]));
    assert!(!is_good(&[put(0, 1, 5), cas(2, 3, false)]));
    assert!(!is_good(&[put(0, 1, 5), cas(2, 3, true), cas(4, 5, true)]));
    assert!(is_good(&[delete(0, 1, false), put(2, 3, 5), delete(4, 5, true), delete(6, 7, false)]));
    assert!(!is_good(&[put(0, 1, 5), delete(2, 3, false)]));
    assert!(!is_good(&[delete(2, 3, true)]));
}

#[test]
fn a_batch_takes_effect_on_all_its_keys_at_once() {
    let read =
        |from, key, value| operation(5, from, from + 1, Call::Get(key), Outcome::Value(value));
    let batch = |outcome, complete| Operation {
        client: 6,
        invoke: Instant(0),
        complete,
        call: Call::Batch {
            compares: vec![(1, None)],
            writes: vec![(1, Some(1)), (2, Some(1)), (3, Some(1))],
        },
        outcome,
    };
    let applied = batch(Outcome::Applied(true), Some(Instant(9)));
    assert!(is_good(&[
        applied.clone(),
        read(1, 1, None),
        read(3, 2, Some(1)),
        read(5, 3, Some(1))
    ]));
    assert!(!is_good(&[applied.clone(), read(1, 1, Some(1)), read(3, 2, None)]));
    assert!(!is_good(&[applied, read(10, 3, None)]));
    let lost = batch(Outcome::Unknown, None);
    assert!(is_good(&[lost.clone(), read(1, 2, None), read(3, 2, Some(1)), read(5, 1, Some(1))]));
    assert!(!is_good(&[lost, read(1, 2, Some(1)), read(3, 1, None)]));
    let refused = batch(Outcome::Applied(false), Some(Instant(9)));
    assert!(!is_good(&[refused, read(1, 1, None)]));
}

#[test]
fn more_than_the_limits_allow_is_undecided_and_says_where() {
    let history: Vec<Operation> = (0..70).map(|value| put(0, 9, value)).collect();
    assert!(matches!(verdict(&history), Verdict::Undecided { keys, .. } if keys == [1]));
    let few = Limits { configurations_max: 100, ..Limits::default() };
    let found = check(&history[..20], few);
    let Verdict::Undecided { why, .. } = found else { panic!("{found:?}") };
    assert!(why.contains("configurations"), "{why}");
}

mod generated;
mod naive;
