//! Clients at full rate, and what they were told: each overwrites its own keys with ever greater
//! numbers, so that what must be there in the end is known without a history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use client::blocking::Client;
use client::{CallError, Options};

/// Failures whose text is kept, of each client.
const TEXTS_MAX: usize = 4;
/// The pause after a failure, so that a client does not spin while nobody leads.
const PAUSE: Duration = Duration::from_millis(2);

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Clients, each a thread with one call at a time.
    pub clients: u32,
    /// Keys of each client.
    pub keys_each: u64,
    /// Whether each put is followed by a get of the same key.
    pub reads: bool,
}

/// What the clients were told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that were not done, for sure.
    pub refused: u64,
    /// Calls that may have been done.
    pub unknown: u64,
    /// Some of the failures, in words.
    pub texts: Vec<String>,
    /// The greatest acknowledged number of every key.
    pub acknowledged: BTreeMap<String, u64>,
    /// What a read said that an acknowledged write contradicts.
    pub stale: Option<String>,
}

impl Told {
    /// Calls that did not do what was asked.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.refused + self.unknown
    }

    /// The acknowledged writes that are not there, read through `client`. A greater number than the
    /// acknowledged one is a write whose outcome was unknown.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub fn lost(&self, client: &mut Client) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for (key, &expected) in &self.acknowledged {
            let found = number(client, key)?;
            if found.is_none_or(|found| found < expected) {
                lost.push(format!("{key}: {expected} was acknowledged, found {found:?}"));
            }
        }
        Ok(lost)
    }

    /// Puts `number` under `key` and remembers it if it is acknowledged.
    ///
    /// # Errors
    /// As the client; the failure is counted.
    pub fn put(&mut self, client: &mut Client, key: &str, number: u64) -> Result<(), CallError> {
        let result = client.put(key.as_bytes(), number.to_string().as_bytes());
        match &result {
            Ok(()) => {
                self.answered += 1;
                self.acknowledged.insert(key.to_owned(), number);
            }
            Err(error) => self.note_failure(error),
        }
        result
    }

    /// Reads `key` and compares it with what was acknowledged.
    fn check_read(&mut self, client: &mut Client, key: &str) -> Result<(), CallError> {
        let found = match client.get(key.as_bytes()) {
            Ok(found) => found.and_then(|found| parse(&found.value)),
            Err(error) => {
                self.note_failure(&error);
                return Err(error);
            }
        };
        self.answered += 1;
        if found.unwrap_or(0) < self.acknowledged.get(key).copied().unwrap_or(0) {
            let expected = self.acknowledged.get(key);
            self.stale = Some(format!("{key}: read {found:?} after {expected:?} was acknowledged"));
        }
        Ok(())
    }

    fn note_failure(&mut self, error: &CallError) {
        match error {
            CallError::Unknown(_) => self.unknown += 1,
            CallError::Refused(_) | CallError::Bad(_) => self.refused += 1,
        }
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(error.to_string());
        }
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.texts.extend(other.texts);
        self.acknowledged.extend(other.acknowledged);
        self.stale = self.stale.take().or(other.stale);
    }
}

/// The number that a key holds.
fn number(client: &mut Client, key: &str) -> Result<Option<u64>> {
    let found = client.get(key.as_bytes()).with_context(|| format!("cannot read {key}"))?;
    Ok(found.and_then(|found| parse(&found.value)))
}

fn parse(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

#[derive(Debug)]
struct Shared {
    clock: Instant,
    stop: AtomicBool,
    answered: AtomicU64,
    /// When any client was answered last, in nanoseconds of `clock`.
    last: AtomicU64,
    gap: AtomicU64,
}

impl Shared {
    fn note_answer(&self) {
        let now = u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.answered.fetch_add(1, Ordering::AcqRel);
        let before = self.last.fetch_max(now, Ordering::AcqRel);
        self.gap.fetch_max(now.saturating_sub(before), Ordering::AcqRel);
    }
}

/// Clients under way. Dropping it stops them.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Result<Told>>>,
}

impl Writers {
    /// Starts the clients.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start(options: &Options, shape: Shape) -> Result<Self> {
        let shared = Arc::new(Shared {
            clock: Instant::now(),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        });
        let mut writers = Self { shared, clients: Vec::new() };
        for own in 0..shape.clients {
            let (shared, options) = (Arc::clone(&writers.shared), options.clone());
            let client = std::thread::Builder::new()
                .name(format!("client-{own}"))
                .spawn(move || run(&shared, options, shape, own))
                .context("cannot start a client")?;
            writers.clients.push(client);
        }
        Ok(writers)
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
        let (began, wanted) = (Instant::now(), self.answered() + count);
        while self.answered() < wanted {
            if began.elapsed() > limit {
                bail!("{count} more answers did not come within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The longest time without an answer to any client since this was asked last.
    #[must_use]
    pub fn take_gap(&self) -> Duration {
        Duration::from_nanos(self.shared.gap.swap(0, Ordering::AcqRel))
    }

    /// Stops the clients and gathers what they were told.
    ///
    /// # Errors
    /// When a client could not begin.
    pub fn finish(mut self) -> Result<Told> {
        self.shared.stop.store(true, Ordering::Release);
        let mut told = Told::default();
        for client in std::mem::take(&mut self.clients) {
            match client.join() {
                Ok(own) => told.add(own?),
                Err(_) => bail!("a client panicked"),
            }
        }
        Ok(told)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for client in std::mem::take(&mut self.clients) {
            // The case has failed already, and says why.
            let _told = client.join();
        }
    }
}

fn run(shared: &Shared, options: Options, shape: Shape, own: u32) -> Result<Told> {
    let mut client = Client::connect(options)?;
    let mut told = Told::default();
    let mut count = 0_u64;
    while !shared.stop.load(Ordering::Acquire) {
        count += 1;
        let key = format!("writer-{own}-{}", count % shape.keys_each);
        let mut result = told.put(&mut client, &key, count);
        if result.is_ok() {
            shared.note_answer();
            if shape.reads {
                result = told.check_read(&mut client, &key);
                if result.is_ok() {
                    shared.note_answer();
                }
            }
        }
        if result.is_err() {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(told)
}
