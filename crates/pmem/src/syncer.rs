//! The thread that makes a region durable, in groups.
//!
//! ```text
//!  shard thread                    syncer thread
//!  requested = ticket ──unpark──>  target = requested
//!                                  sync the file        (everything that waits, in one call)
//!  durable()  <──────────────────  durable = target ──> on_progress (wakes the shard)
//! ```
//!
//! # Invariants
//! - `durable` moves to a ticket only after a sync that *began* after the ticket was requested has
//!   succeeded.
//! - After a failed sync `durable` never moves again: `failure` stays and the thread has ended. A
//!   sync is never tried twice, since the kernel forgets which pages it failed to write.
//! - What waits is one number, not a queue: a file is synced as a whole, so a group commit of any
//!   number of ranges costs one call and no memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use crate::{RegionError, Ticket};

/// How a region's bytes become durable: [`crate::Mapping::sync`], or a test's stand-in.
pub(crate) type Sync = Box<dyn FnMut() -> Result<(), RegionError> + Send>;

/// What is called, on the syncer's thread, when `durable` has something new to say.
pub(crate) type OnProgress = Box<dyn Fn() + Send>;

#[derive(Debug, Default)]
struct Shared {
    /// The latest ticket asked for.
    requested: AtomicU64,
    /// The latest ticket such that it and all before it are durable. Invariant: <= `requested`.
    durable: AtomicU64,
    /// Set once, by the sync that failed.
    failure: OnceLock<RegionError>,
    /// Whether the thread shall end once nothing waits.
    is_closing: AtomicBool,
}

/// Handle of the thread; dropping it syncs what waits and joins the thread.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    /// `None` only while dropping.
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread.
    pub(crate) fn start(sync: Sync, on_progress: OnProgress) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("region-sync".to_owned())
            .spawn(move || run(&theirs, sync, &on_progress))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for everything stored so far to become durable, under this ticket: greater than all
    /// before.
    pub(crate) fn request(&self, ticket: Ticket) {
        debug_assert!(self.shared.requested.load(Ordering::Relaxed) < ticket.0);
        self.shared.requested.store(ticket.0, Ordering::SeqCst);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// How far the syncs got.
    pub(crate) fn durable(&self) -> Result<Ticket, RegionError> {
        match self.shared.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(Ticket(self.shared.durable.load(Ordering::Acquire))),
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        let Some(handle) = self.thread.take() else { return };
        handle.thread().unpark();
        let ended = handle.join();
        assert!(ended.is_ok() || thread::panicking(), "the syncer panicked");
    }
}

fn run(shared: &Shared, mut sync: Sync, on_progress: &OnProgress) {
    let mut done = 0;
    loop {
        // Read before `requested`: what was requested before the closing is then synced.
        let is_closing = shared.is_closing.load(Ordering::SeqCst);
        let target = shared.requested.load(Ordering::SeqCst);
        if target == done {
            if is_closing {
                return;
            }
            // A request since the loads has left its token: this returns at once then.
            thread::park();
            continue;
        }
        if let Err(failure) = sync() {
            shared.failure.get_or_init(|| failure);
            on_progress();
            return;
        }
        done = target;
        shared.durable.store(done, Ordering::Release);
        on_progress();
    }
}
