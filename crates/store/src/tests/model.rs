//! The store against the plainest thing that could be it: a `BTreeMap` that is filtered by time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use replica::machine::{ChunkEnd, Installer, View};

use super::*;

/// The expiry of what stays.
const NEVER: LogTime = LogTime(u64::MAX);

/// What a key holds in the model: value, revision, expiry.
type Held = (Vec<u8>, Index, LogTime);

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, value: Vec<u8>, ttl_ns: u64 },
    Delete { key: u8 },
    Increment { key: u8, by: i64 },
}

#[derive(Clone, Debug)]
struct Step {
    elapsed: u64,
    compare: Option<(u8, Option<Vec<u8>>)>,
    ops: Vec<Op>,
    read: u8,
    reinstall: bool,
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"1".to_vec()),
        Just(b"-20".to_vec()),
        Just(i64::MAX.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..8),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..6_u8;
    prop_oneof![
        3 => (key.clone(), value(), prop_oneof![Just(0), 1..30_u64])
            .prop_map(|(key, value, ttl_ns)| Op::Put { key, value, ttl_ns }),
        1 => key.clone().prop_map(|key| Op::Delete { key }),
        2 => (key, -3..4_i64).prop_map(|(key, by)| Op::Increment { key, by }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let compare = proptest::option::of((0..6_u8, proptest::option::of(value())));
    let ops = proptest::collection::vec(op(), 0..4);
    (0..10_u64, compare, ops, 0..6_u8, proptest::bool::weighted(0.1)).prop_map(
        |(elapsed, compare, ops, read, reinstall)| Step { elapsed, compare, ops, read, reinstall },
    )
}

#[derive(Default)]
struct Model {
    map: BTreeMap<Vec<u8>, Held>,
    index: Index,
    time: LogTime,
}

impl Model {
    fn live(&self) -> BTreeMap<Vec<u8>, Held> {
        let alive = |(_, held): &(&Vec<u8>, &Held)| self.time < held.2;
        self.map.iter().filter(alive).map(|(key, held)| (key.clone(), held.clone())).collect()
    }

    /// What a store should show of its keys.
    fn shown(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, Index, u64)> {
        let ttl_ns = |at: LogTime| if at == NEVER { 0 } else { at.0 - self.time.0 };
        let shown = |held: Held| (held.0, held.1, ttl_ns(held.2));
        self.live().into_iter().map(|(key, held)| (key, shown(held))).collect()
    }

    /// Applies a step and says whether its writes were done; `None` is a refusal.
    fn step(&mut self, step: &Step) -> Option<bool> {
        self.index = self.index.next();
        self.time.0 += step.elapsed;
        let mut map = self.live();
        if let Some((key, expected)) = &step.compare
            && map.get(&vec![*key]).map(|held| &held.0) != expected.as_ref()
        {
            return Some(false);
        }
        for op in &step.ops {
            match op {
                Op::Put { key, value, ttl_ns } => {
                    let expires_at = if *ttl_ns == 0 { NEVER.0 } else { self.time.0 + ttl_ns };
                    let held = (value.clone(), self.index, LogTime(expires_at));
                    map.insert(vec![*key], held);
                }
                Op::Delete { key } => {
                    map.remove(&vec![*key]);
                }
                Op::Increment { key, by } => {
                    let zero = (b"0".to_vec(), self.index, NEVER);
                    let (text, _, expires_at) = map.get(&vec![*key]).unwrap_or(&zero);
                    let text = std::str::from_utf8(text).ok()?;
                    let number: i64 = text.parse().ok()?;
                    if number.to_string() != text {
                        return None;
                    }
                    let now = number.checked_add(*by)?.to_string().into_bytes();
                    let held = (now, self.index, *expires_at);
                    map.insert(vec![*key], held);
                }
            }
        }
        self.map = map;
        Some(true)
    }
}

fn run(member: &mut Member, step: &Step, time: LogTime) -> Option<bool> {
    let keys: Vec<[u8; 1]> = (0..6).map(|key| [key]).collect();
    let key = |key: u8| &keys[usize::from(key)][..];
    let compares = step.compare.iter().map(|(at, value)| Compare {
        key: key(*at),
        condition: value.as_deref().map_or(Condition::Absent, Condition::Equals),
    });
    let writes = step.ops.iter().map(|op| match op {
        Op::Put { key: at, value, ttl_ns } => Write::Put { key: key(*at), value, ttl_ns: *ttl_ns },
        Op::Delete { key: at } => Write::Delete { key: key(*at) },
        Op::Increment { key: at, by } => Write::Increment { key: key(*at), by: *by },
    });
    let batch = Batch {
        compares: compares.collect(),
        writes: writes.collect(),
        reads: vec![key(step.read)],
    };
    match member.batch(time.0, batch) {
        Reply::Done { held, .. } => Some(held),
        Reply::Refused(_) => None,
        other @ (Reply::Value(_) | Reply::Page(_) | Reply::LimitSet) => panic!("{other:?}"),
    }
}

fn reinstalled(store: &mut Store) -> Store {
    let mut view = store.checkpoint(0);
    let mut installer = store.installer();
    let mut chunk = Vec::new();
    loop {
        chunk.clear();
        view.chunk(installer.next(), &mut chunk).unwrap();
        if installer.chunk(&chunk).unwrap() == ChunkEnd::Last {
            return installer.finish().unwrap();
        }
    }
}

/// What the store shows of its keys.
fn contents(member: &mut Member) -> BTreeMap<Vec<u8>, (Vec<u8>, Index, u64)> {
    let Reply::Page(page) = member.query(Query::Scan { from: b"", to: None, limit: 100 }) else {
        panic!("a scan gives a page")
    };
    let held = |found: &Found<'_>| (found.value.to_vec(), found.revision, found.ttl_ns);
    page.entries.iter().map(|(key, found)| (key.to_vec(), held(found))).collect()
}

proptest! {
    /// Whatever is done, every answer and every state is the model's; a member that is installed
    /// from a checkpoint now and then stays equal to one that never was.
    #[test]
    fn the_store_is_its_model(steps in proptest::collection::vec(step(), 1..60)) {
        let mut model = Model::default();
        let mut member = Member::new();
        let mut moved = Member::new();
        for step in &steps {
            let expected = model.step(step);
            prop_assert_eq!(run(&mut member, step, model.time), expected);
            prop_assert_eq!(run(&mut moved, step, model.time), expected);
            prop_assert_eq!(contents(&mut member), model.shown());
            if step.reinstall {
                moved.store = reinstalled(&mut moved.store);
            }
            prop_assert_eq!(member.store.digest(), moved.store.digest());
        }
    }
}
