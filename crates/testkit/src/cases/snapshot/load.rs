//! Who writes: one client overwrites large values at a given rate, one writes small ones all the
//! time and notes how long each waited.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result, bail};
use base::Random;
use client::blocking::Client;
use client::{CallError, Options};

use super::{Phase, Plan};

/// Time between two small writes.
const PROBE_PACE: Duration = Duration::from_millis(3);
/// Keys that small writes go to in turn.
const PROBE_KEYS: u64 = 64;
/// The longest pause of a client after a refusal.
const PAUSE: Duration = Duration::from_millis(2);

/// What the writer of large values does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing.
    Pause,
    /// Overwrites the live state, key after key, at `rate` bytes a second.
    Overwrite { rate: u64 },
    /// Overwrites one key more: the log moves on, the live state stays.
    OneKey { rate: u64 },
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    work: Mutex<Work>,
    written: AtomicU64,
    answered: AtomicU64,
    phase: Mutex<Phase>,
    waits: Mutex<BTreeMap<Phase, Duration>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clients at work.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    began: Clock,
    writer: JoinHandle<Result<(Values, Vec<u64>)>>,
    prober: JoinHandle<Result<Vec<u64>>>,
}

impl Load {
    pub(super) fn start(options: &Options, plan: &Plan) -> Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            work: Mutex::new(Work::Pause),
            written: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            phase: Mutex::new(Phase::Fill),
            waits: Mutex::new(BTreeMap::new()),
        });
        let (values, keys) = (Values::new(plan.value_bytes), plan.keys());
        let (theirs, own) = (Arc::clone(&shared), options.clone());
        let writer = std::thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || write(&theirs, own, values, keys))
            .context("cannot start the writer")?;
        let (theirs, own) = (Arc::clone(&shared), options.clone());
        let prober = std::thread::Builder::new()
            .name("prober".to_owned())
            .spawn(move || probe(&theirs, own))
            .context("cannot start the prober")?;
        Ok(Self { shared, began: Clock::now(), writer, prober })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn begin(&self, work: Work) {
        *lock(&self.shared.work) = work;
    }

    pub(super) fn enter(&self, phase: Phase) {
        *lock(&self.shared.phase) = phase;
    }

    /// Bytes of large values acknowledged so far.
    pub(super) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Small writes acknowledged so far.
    pub(super) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Acquire)
    }

    /// Ends the clients.
    pub(super) fn finish(self) -> Result<Expected> {
        self.shared.stop.store(true, Ordering::Release);
        let (Ok(written), Ok(probed)) = (self.writer.join(), self.prober.join()) else {
            bail!("a client panicked")
        };
        let (values, versions) = written?;
        let waits = lock(&self.shared.waits).clone();
        Ok(Expected { values, versions, probed: probed?, waits })
    }
}

/// What was acknowledged.
pub(super) struct Expected {
    values: Values,
    /// Of each key, the version that was acknowledged last; the last key is the one more.
    versions: Vec<u64>,
    probed: Vec<u64>,
    /// The longest wait of a small write in each phase.
    pub(super) waits: BTreeMap<Phase, Duration>,
}

impl Expected {
    /// Reads every key; how many do not have the value acknowledged last. `plant` expects another
    /// value of one of them.
    pub(super) fn lost(&mut self, options: &Options, plant: bool) -> Result<u64> {
        if plant {
            self.versions[0] += 1;
        }
        let mut client = Client::connect(options.clone())?;
        let mut lost = 0;
        for (key, &version) in (0..).zip(&self.versions) {
            let found = client.get(key_name(key).as_bytes())?;
            let found = found.map(|found| found.value);
            let expected = (version > 0).then(|| self.values.value(key, version));
            lost += u64::from(found.as_deref() != expected);
        }
        for (key, &count) in (0..).zip(&self.probed) {
            let found = client.get(probe_name(key).as_bytes())?;
            let expected = (count > 0).then(|| count.to_le_bytes().to_vec());
            lost += u64::from(found.map(|found| found.value) != expected);
        }
        Ok(lost)
    }
}

fn key_name(key: u64) -> String {
    format!("value-{key:08}")
}

fn probe_name(key: u64) -> String {
    format!("probe-{key:02}")
}

/// Large values that differ in every page.
struct Values(Vec<u8>);

const PAGE: usize = 4096;

impl Values {
    fn new(bytes: u64) -> Self {
        let mut random = Random::new(1);
        Self((0..bytes).map(|_| random.next().to_le_bytes()[0]).collect())
    }

    fn value(&mut self, key: u64, version: u64) -> &[u8] {
        for page in self.0.chunks_mut(PAGE) {
            let stamp = [key.to_le_bytes(), version.to_le_bytes()];
            for (to, from) in page.iter_mut().zip(stamp.as_flattened()) {
                *to = *from;
            }
        }
        &self.0
    }
}

/// Writes until it is done: outcomes that are not known are no outcomes, and the value is the same.
fn put(client: &mut Client, key: &str, value: &[u8], stop: &AtomicBool) -> Result<bool> {
    loop {
        match client.put(key.as_bytes(), value) {
            Ok(()) => return Ok(true),
            Err(CallError::Unknown(_) | CallError::Refused(_)) => std::thread::sleep(PAUSE),
            Err(error @ CallError::Bad(_)) => return Err(error.into()),
        }
        if stop.load(Ordering::Acquire) {
            bail!("a write was not acknowledged before the end");
        }
    }
}

fn write(
    shared: &Shared,
    options: Options,
    mut values: Values,
    keys: u64,
) -> Result<(Values, Vec<u64>)> {
    let mut client = Client::connect(options)?;
    let more = usize::try_from(keys)?;
    let mut versions = vec![0_u64; more + 1];
    let (mut next, mut due) = (0, Clock::now());
    while !shared.stop.load(Ordering::Acquire) {
        let work = *lock(&shared.work);
        let (at, rate) = match work {
            Work::Pause => {
                std::thread::sleep(PAUSE);
                due = Clock::now();
                continue;
            }
            Work::Overwrite { rate } => {
                next = (next + 1) % more;
                (next, rate)
            }
            Work::OneKey { rate } => (more, rate),
        };
        let key = u64::try_from(at)?;
        let value = values.value(key, versions[at] + 1);
        let bytes = u64::try_from(value.len())?;
        put(&mut client, &key_name(key), value, &shared.stop)?;
        versions[at] += 1;
        shared.written.fetch_add(bytes, Ordering::AcqRel);
        let pause = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
        // What was late is not caught up with: that would be another load.
        due = (due + pause).max(Clock::now());
        std::thread::sleep(due.saturating_duration_since(Clock::now()));
    }
    Ok((values, versions))
}

fn probe(shared: &Shared, options: Options) -> Result<Vec<u64>> {
    let mut client = Client::connect(options)?;
    let mut counts = vec![0_u64; usize::try_from(PROBE_KEYS)?];
    let mut count = 0;
    while !shared.stop.load(Ordering::Acquire) {
        count += 1;
        let key = count % PROBE_KEYS;
        let phase = *lock(&shared.phase);
        let began = Clock::now();
        put(&mut client, &probe_name(key), &count.to_le_bytes(), &shared.stop)?;
        let wait = began.elapsed();
        // A write that saw the leader's end waited for that.
        let later = *lock(&shared.phase);
        let phase = if later == Phase::Election { later } else { phase };
        let mut waits = lock(&shared.waits);
        let most = waits.entry(phase).or_default();
        *most = wait.max(*most);
        drop(waits);
        counts[usize::try_from(key)?] = count;
        shared.answered.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(PROBE_PACE);
    }
    Ok(counts)
}
