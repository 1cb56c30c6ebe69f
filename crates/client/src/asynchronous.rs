//! The client that any number of tasks share, on any executor: futures of the standard library, and
//! one thread behind them that sleeps while nothing is under way.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use base::MemberId;

use crate::blocking::{Ending, Host, HostEngine, now};
use crate::calls::{self, BatchReply, Found, Page};
use crate::engine::{CallId, Engine, Reply, Work};
use crate::{Batch, CallError, Options};

/// Calls that may wait for the thread; one more is refused.
const QUEUED_MAX: usize = 4_096;
/// Calls that the thread carries on at one time; others wait in the queue.
const UNDER_WAY_MAX: usize = 1_024;
/// The longest sleep while something is under way: new calls do not ring the thread.
const SLEEP_MAX: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
struct Slot {
    result: Option<Result<Reply, CallError>>,
    waker: Option<Waker>,
}

type Shared = Arc<Mutex<Slot>>;

struct Asked {
    work: Work,
    slot: Shared,
}

/// A call under way.
struct Pending(Shared);

impl Future for Pending {
    type Output = Result<Reply, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn complete(slot: &Shared, result: Result<Reply, CallError>) {
    let waker = {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.result = Some(result);
        slot.waker.take()
    };
    // Not under the lock: an executor may poll the future within this call.
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[derive(Debug)]
struct Driver {
    asks: Option<SyncSender<Asked>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.asks.take());
        // A waker may own the last handle, and is called by that very thread.
        let is_other =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the client's thread panicked");
        }
    }
}

/// A handle; clones share one connection and one session. A future that is dropped gives up its
/// answer, not the call.
#[derive(Clone, Debug)]
pub struct Client(Arc<Driver>);

impl Client {
    /// A client of the group that `options` name. Members are connected when they are needed.
    ///
    /// # Errors
    /// [`CallError::Bad`] when `options` name no member, [`CallError::Refused`] when no thread can be had.
    pub fn connect(options: Options) -> Result<Self, CallError> {
        let Options { run_dir, members, group, deadline, patience, spin } = options;
        let engine = Engine::new(Host { run_dir }, &members, group, (deadline, patience))?;
        let (asks, asked) = sync_channel(QUEUED_MAX);
        let thread = std::thread::Builder::new()
            .name("remanent-client".to_owned())
            .spawn(move || drive(engine, &asked, spin))
            .map_err(|error| CallError::Refused(format!("cannot start a thread: {error}")))?;
        Ok(Self(Arc::new(Driver { asks: Some(asks), thread: Some(thread) })))
    }

    async fn call(&self, work: Work) -> Result<Reply, CallError> {
        let slot = Shared::default();
        let asked = Asked { work, slot: Arc::clone(&slot) };
        let Some(asks) = &self.0.asks else {
            return Err(CallError::Refused("the client is closed".to_owned()));
        };
        match asks.try_send(asked) {
            Ok(()) => Pending(slot).await,
            Err(TrySendError::Full(_)) => {
                Err(CallError::Refused("overloaded: too many calls wait in this client".to_owned()))
            }
            Err(TrySendError::Disconnected(_)) => {
                Err(CallError::Refused("the client's thread has ended".to_owned()))
            }
        }
    }

    /// The value of a key, no older than when this was called.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Found>, CallError> {
        calls::as_value(&self.call(calls::get(key)?).await?)
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), CallError> {
        calls::as_existed(&self.call(calls::put(key, value, None)?).await?).map(drop)
    }

    /// Sets a key for a time; log time, which stands still while nobody leads.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put_for(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), CallError> {
        calls::as_existed(&self.call(calls::put(key, value, Some(ttl))?).await?).map(drop)
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, CallError> {
        calls::as_existed(&self.call(calls::delete(key)?).await?)
    }

    /// A page of the keys from `from` up to `to`, at most `limit` of them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, CallError> {
        calls::as_page(&self.call(calls::scan(from, to, limit)?).await?)
    }

    /// Compares, and if all hold, writes, at once.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn batch(&self, batch: Batch<'_>) -> Result<BatchReply, CallError> {
        calls::as_batch(&self.call(calls::batch(batch)?).await?)
    }

    /// Sets `key` to `new`, or removes it, if it has the value `expected`, or none. Whether it had.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, CallError> {
        let reply = self.call(calls::compare_and_set(key, expected, new)?).await?;
        calls::as_batch(&reply).map(|reply| reply.held)
    }

    /// Adds to an integer kept as decimal text; an absent key counts as 0. What it is now.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn increment(&self, key: &[u8], by: i64) -> Result<i64, CallError> {
        calls::as_number(&self.call(calls::increment(key, by)?).await?)
    }

    /// Refuses writes that would grow the state above so many bytes, from now on.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn set_max_state_bytes(&self, max: u64) -> Result<(), CallError> {
        calls::as_limit(&self.call(calls::limit(max)?).await?)
    }

    /// Asks the leader to hand over, to `to` or to whoever is best.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn transfer(&self, to: Option<MemberId>) -> Result<(), CallError> {
        self.call(Work::Transfer(to)).await.map(drop)
    }

    /// How a member is, as JSON.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn status(&self, member: MemberId) -> Result<String, CallError> {
        calls::as_status(self.call(Work::Status(member)).await?)
    }
}

/// The thread: takes calls, carries them on, and ends once every handle is gone and every call has
/// its answer.
fn drive(mut engine: HostEngine, asked: &Receiver<Asked>, spin: Duration) {
    let clock = Clock::now();
    let mut slots: HashMap<CallId, Shared> = HashMap::new();
    let mut idle_since = Clock::now();
    loop {
        if engine.is_idle() {
            let Ok(Asked { work, slot }) = asked.recv() else { return };
            slots.insert(engine.begin(work, now(clock)), slot);
        }
        let mut worked = false;
        while slots.len() < UNDER_WAY_MAX
            && let Ok(Asked { work, slot }) = asked.try_recv()
        {
            slots.insert(engine.begin(work, now(clock)), slot);
            worked = true;
        }
        worked |= engine.poll(now(clock));
        while let Some((id, result)) = engine.take_any() as Option<Ending> {
            if let Some(slot) = slots.remove(&id) {
                complete(&slot, result);
            }
        }
        if worked {
            idle_since = Clock::now();
        } else if idle_since.elapsed() < spin {
            std::hint::spin_loop();
        } else {
            let now = now(clock);
            let until = engine.wake_at(now).map_or(SLEEP_MAX, |at| at.since(now)).min(SLEEP_MAX);
            match engine.wire() {
                Some(wire) => wire.wait(until),
                None => std::thread::sleep(until),
            }
        }
    }
}
