//! The client for one thread: the caller's own thread drives everything.

use std::path::PathBuf;
use std::time::{Duration, Instant as Clock};

use base::{Instant, MemberId};
use fabric::shm::stream::Stream;

use crate::calls::{self, BatchReply, Found, Page};
use crate::engine::{CallId, Ended, Engine, Network, Reply, Wire, Work};
use crate::{Batch, CallError, Options};

/// The longest sleep: a member that was killed rings nobody.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The way to members of this host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) run_dir: PathBuf,
}

impl Network for Host {
    type Wire = Stream;

    fn connect(&mut self, member: MemberId, timeout: Duration) -> Result<Stream, String> {
        Stream::connect(&self.run_dir, member, timeout).map_err(|error| error.to_string())
    }
}

impl Wire for Stream {
    fn send(&mut self, parts: &[&[u8]]) -> bool {
        Self::send(self, parts).is_ok()
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, Ended> {
        Self::receive(self, into).map_err(|_| Ended)
    }
}

/// A client. Each call returns when it is done or its deadline has passed; between calls it uses
/// no time at all.
#[derive(Debug)]
pub struct Client {
    engine: Engine<Host>,
    clock: Clock,
    spin: Duration,
}

impl Client {
    /// A client of the group that `options` name. Members are connected when they are needed.
    ///
    /// # Errors
    /// [`CallError::Bad`] when `options` name no member.
    pub fn connect(options: Options) -> Result<Self, CallError> {
        let Options { run_dir, members, group, deadline, patience, spin } = options;
        let engine = Engine::new(Host { run_dir }, &members, group, (deadline, patience))?;
        Ok(Self { engine, clock: Clock::now(), spin })
    }

    /// How long calls may take from now on, retries included.
    pub const fn set_deadline(&mut self, deadline: Duration) {
        self.engine.set_deadline(deadline);
    }

    /// The value of a key, no older than when this was called.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Found>, CallError> {
        calls::as_value(&self.call(calls::get(key)?)?)
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), CallError> {
        calls::as_existed(&self.call(calls::put(key, value, None)?)?).map(drop)
    }

    /// Sets a key for a time; log time, which stands still while nobody leads.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn put_for(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), CallError> {
        calls::as_existed(&self.call(calls::put(key, value, Some(ttl))?)?).map(drop)
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, CallError> {
        calls::as_existed(&self.call(calls::delete(key)?)?)
    }

    /// A page of the keys from `from` up to `to`, at most `limit` of them.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn scan(&mut self, from: &[u8], to: Option<&[u8]>, limit: u32) -> Result<Page, CallError> {
        calls::as_page(&self.call(calls::scan(from, to, limit)?)?)
    }

    /// Compares, and if all hold, writes, at once.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn batch(&mut self, batch: Batch<'_>) -> Result<BatchReply, CallError> {
        calls::as_batch(&self.call(calls::batch(batch)?)?)
    }

    /// Sets `key` to `new`, or removes it, if it has the value `expected`, or none. Whether it had.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, CallError> {
        let reply = self.call(calls::compare_and_set(key, expected, new)?)?;
        calls::as_batch(&reply).map(|reply| reply.held)
    }

    /// Adds to an integer kept as decimal text; an absent key counts as 0. What it is now.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn increment(&mut self, key: &[u8], by: i64) -> Result<i64, CallError> {
        calls::as_number(&self.call(calls::increment(key, by)?)?)
    }

    /// Refuses writes that would grow the state above so many bytes, from now on.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn set_max_state_bytes(&mut self, max: u64) -> Result<(), CallError> {
        calls::as_limit(&self.call(calls::limit(max)?)?)
    }

    /// How a member is, as JSON.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn status(&mut self, member: MemberId) -> Result<String, CallError> {
        calls::as_status(self.call(Work::Status(member))?)
    }

    /// Asks the leader to hand over, to `to` or to whoever is best.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn transfer(&mut self, to: Option<MemberId>) -> Result<(), CallError> {
        self.call(Work::Transfer(to)).map(drop)
    }

    fn now(&self) -> Instant {
        now(self.clock)
    }

    fn call(&mut self, work: Work) -> Result<Reply, CallError> {
        let id = self.engine.begin(work, self.now());
        let mut idle_since = Clock::now();
        loop {
            let came = self.engine.poll(self.now());
            if let Some(result) = self.engine.take(id) {
                return result;
            }
            if came {
                idle_since = Clock::now();
            } else if idle_since.elapsed() < self.spin {
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        let now = self.now();
        let until = self.engine.wake_at(now).map_or(SLEEP_MAX, |at| at.since(now)).min(SLEEP_MAX);
        match self.engine.wire() {
            Some(wire) => wire.wait(until),
            None => std::thread::sleep(until),
        }
    }
}

pub(crate) fn now(clock: Clock) -> Instant {
    Instant(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// For callers that name calls themselves.
pub(crate) type HostEngine = Engine<Host>;

/// Of a call that has ended.
pub(crate) type Ending = (CallId, Result<Reply, CallError>);
