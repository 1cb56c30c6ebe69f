//! Clients that never pause for a fault, and the history of what they were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result, bail};
use base::{Instant, Random};
use client::blocking::Client;
use client::{Batch, CallError, Compare, Condition, Options, Write};
use sim::linear::{Call, History, Key, Operation, Outcome, Value};

/// One call in so many gets a deadline too short for an answer, so that its outcome stays unknown.
const HASTY_ONE_IN: u64 = 8;
/// The longest pause of a client after a refusal, so that it does not spin while nobody leads.
const PAUSE: Duration = Duration::from_millis(2);

/// What a load is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Clients, each a thread.
    pub clients: u32,
    /// Keys that they share.
    pub keys: u64,
    /// The least time between two calls of a client: a history of millions of calls cannot be
    /// checked.
    pub pace: Duration,
    /// Where randomness starts.
    pub seed: u64,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    stop: AtomicBool,
    /// When the last call of any client was answered, in nanoseconds of `clock`.
    last: AtomicU64,
    gap: AtomicU64,
    answered: AtomicU64,
}

/// A load under way.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Result<History>>>,
}

impl Load {
    /// Starts the clients.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start(options: &Options, shape: Shape) -> Result<Self> {
        let shared = Arc::new(Shared {
            clock: Clock::now(),
            stop: AtomicBool::new(false),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let clients = (0..shape.clients)
            .map(|number| {
                let (shared, options) = (Arc::clone(&shared), options.clone());
                std::thread::Builder::new()
                    .name(format!("client-{number}"))
                    .spawn(move || run(&shared, &options, shape, number))
                    .context("cannot start a client")
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { shared, clients })
    }

    /// Calls answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Acquire)
    }

    /// Waits for `count` more answers.
    ///
    /// # Errors
    /// When they do not come within `limit`.
    pub fn wait_for(&self, count: u64, limit: Duration) -> Result<()> {
        let (began, wanted) = (Clock::now(), self.answered() + count);
        while self.answered() < wanted {
            if began.elapsed() > limit {
                bail!("{count} more answers did not come within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The longest time without an answer since this was asked last.
    #[must_use]
    pub fn take_gap(&self) -> Duration {
        Duration::from_nanos(self.shared.gap.swap(0, Ordering::AcqRel))
    }

    /// Stops the clients and gathers their history.
    ///
    /// # Errors
    /// When a client met what it must never meet.
    pub fn finish(self) -> Result<History> {
        self.shared.stop.store(true, Ordering::Release);
        let mut history = History::new();
        for client in self.clients {
            match client.join() {
                Ok(own) => history.extend(own?),
                Err(_) => bail!("a client panicked"),
            }
        }
        Ok(history)
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn note_answer(&self, now: Instant) {
        self.answered.fetch_add(1, Ordering::AcqRel);
        let before = self.last.fetch_max(now.0, Ordering::AcqRel);
        self.gap.fetch_max(now.0.saturating_sub(before), Ordering::AcqRel);
    }
}

fn run(shared: &Shared, options: &Options, shape: Shape, number: u32) -> Result<History> {
    let mut random = Random::new(shape.seed ^ (u64::from(number) << 32));
    let mut client = Client::connect(options.clone())?;
    let mut history = History::new();
    let mut count = 0_i64;
    while !shared.stop.load(Ordering::Acquire) {
        count += 1;
        let call = draw(&mut random, shape.keys, i64::from(number) * 1_000_000_000 + count);
        let invoke = shared.now();
        let result = if random.below(HASTY_ONE_IN) == 0 {
            client.set_deadline(Duration::from_micros(5 + random.below(120)));
            let result = perform(&mut client, &call);
            client.set_deadline(options.deadline);
            result
        } else {
            perform(&mut client, &call)
        };
        let complete = shared.now();
        match result {
            Ok(outcome) => {
                shared.note_answer(complete);
                let complete = Some(complete);
                history.push(Operation { client: number, invoke, complete, call, outcome });
            }
            Err(CallError::Unknown(_)) => {
                let outcome = Outcome::Unknown;
                history.push(Operation { client: number, invoke, complete: None, call, outcome });
            }
            Err(CallError::Refused(_)) => std::thread::sleep(PAUSE),
            Err(error @ CallError::Bad(_)) => return Err(error.into()),
        }
        std::thread::sleep(shape.pace);
    }
    Ok(history)
}

/// A call; `fresh` is a value that nobody else writes.
fn draw(random: &mut Random, keys: u64, fresh: i64) -> Call {
    let key = random.below(keys);
    match random.below(10) {
        0..=3 => Call::Get(key),
        4..=5 => Call::Put(key, fresh),
        6 => Call::Delete(key),
        7 => Call::CompareAndSet(key, None, Some(fresh)),
        8 => Call::Increment(key, 1),
        _ => {
            // Pairs of keys, so that batches tie only those together.
            let other = key ^ 1;
            let writes = vec![(key, Some(fresh)), (other, Some(fresh))];
            Call::Batch { compares: Vec::new(), writes }
        }
    }
}

/// The name of a key.
#[must_use]
pub fn key_name(key: Key) -> Vec<u8> {
    format!("key-{key:02}").into_bytes()
}

fn text(value: i64) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Performs a call.
///
/// # Errors
/// As the client.
pub fn perform(client: &mut Client, call: &Call) -> Result<Outcome, CallError> {
    match call {
        Call::Get(key) => {
            let found = client.get(&key_name(*key))?;
            Ok(Outcome::Value(found.and_then(|found| number(&found.value))))
        }
        Call::Put(key, value) => client.put(&key_name(*key), &text(*value)).map(|()| Outcome::Done),
        Call::Delete(key) => client.delete(&key_name(*key)).map(Outcome::Existed),
        Call::CompareAndSet(key, old, new) => {
            let (old, new) = (old.map(text), new.map(text));
            client
                .compare_and_set(&key_name(*key), old.as_deref(), new.as_deref())
                .map(Outcome::Applied)
        }
        Call::Increment(key, by) => client.increment(&key_name(*key), *by).map(Outcome::Number),
        Call::Batch { compares, writes } => batch(client, compares, writes),
    }
}

fn batch(
    client: &mut Client,
    compares: &[(Key, Value)],
    writes: &[(Key, Value)],
) -> Result<Outcome, CallError> {
    let named = |list: &[(Key, Value)]| -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        list.iter().map(|&(key, value)| (key_name(key), value.map(text))).collect()
    };
    let (compares, writes) = (named(compares), named(writes));
    let compares = compares.iter().map(|(key, value)| Compare {
        key,
        condition: value.as_deref().map_or(Condition::Absent, Condition::Equals),
    });
    let writes = writes.iter().map(|(key, value)| match value {
        Some(value) => Write::Put { key, value, ttl_ns: 0 },
        None => Write::Delete { key },
    });
    let batch = Batch { compares: compares.collect(), writes: writes.collect(), reads: Vec::new() };
    client.batch(batch).map(|reply| Outcome::Applied(reply.held))
}
