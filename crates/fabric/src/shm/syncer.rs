//! One thread per peer that syncs the peer's files, for everything that waits at once.
//!
//! ```text
//! owner                             thread
//! store, mark(region) ... submit -> requested = n
//!                                   r = requested; sync each marked file; done = r
//! done >= n: fence, load the word <- ring
//! ```
//! The thread touches no mapped memory. After one failure nothing of this peer instance is ever
//! called synced again: the kernel has forgotten which pages were lost.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::board::{Doorbell, Ringer};
use super::layout::REGIONS_MAX;

/// How a file is synced: `File::sync_data`, but for tests of failure.
pub(crate) type SyncFile = fn(&File) -> io::Result<()>;

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    wake: Condvar,
    /// The highest ticket that is synced.
    done: AtomicU64,
    has_failed: AtomicBool,
}

/// Files to be synced, by the number of their region.
type Marked = [Option<Arc<File>>; REGIONS_MAX];

const fn nothing() -> Marked {
    [const { None }; REGIONS_MAX]
}

#[derive(Debug)]
struct Work {
    requested: u64,
    /// Files with stores that no sync has begun after.
    marked: Marked,
    must_stop: bool,
}

/// The syncer of one peer instance.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    /// Files stored to since the last `submit`.
    marked: Marked,
    submitted: u64,
    /// Tickets up to this one were of queue pairs that are gone: nobody counts on them.
    abandoned: u64,
}

impl Syncer {
    /// Starts the thread; `doorbell` is the owner's own.
    ///
    /// # Errors
    /// When there is no thread.
    pub(crate) fn start(doorbell: Doorbell, sync: SyncFile) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            work: Mutex::new(Work { requested: 0, marked: nothing(), must_stop: false }),
            wake: Condvar::new(),
            done: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("shm-sync".to_owned())
            .spawn(move || run(&theirs, &doorbell, sync))?;
        Ok(Self { shared, marked: nothing(), submitted: 0, abandoned: 0 })
    }

    /// Notes that `file`, region `region`, was stored to.
    pub(crate) fn mark(&mut self, region: usize, file: Arc<File>) {
        self.marked[region] = Some(file);
    }

    /// The ticket after which all stores until now are synced.
    pub(crate) fn submit(&mut self) -> u64 {
        if self.marked.iter().any(Option::is_some) {
            self.submitted += 1;
            let mut work = lock(&self.shared.work);
            work.requested = self.submitted;
            for (place, file) in work.marked.iter_mut().zip(&mut self.marked) {
                *place = file.take().or_else(|| place.take());
            }
            drop(work);
            self.shared.wake.notify_one();
        }
        self.submitted
    }

    /// Whether `ticket` is synced, or stands for nothing that a queue pair could wait for.
    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        ticket <= self.abandoned || self.shared.done.load(Ordering::Acquire) >= ticket
    }

    /// The queue pair is gone, and with it everything that waited: the next one's reads do not
    /// depend on its stores, whose fate the member itself will report.
    pub(crate) fn abandon(&mut self) {
        self.marked = nothing();
        self.abandoned = self.submitted;
    }

    /// Whether a sync has failed, ever.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }
}

impl Drop for Syncer {
    /// The thread ends by itself, after the sync in hand: waiting for that could take seconds.
    fn drop(&mut self) {
        lock(&self.shared.work).must_stop = true;
        self.shared.wake.notify_one();
    }
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(shared: &Shared, doorbell: &Doorbell, sync: SyncFile) {
    let mut ringer = Ringer::new(0);
    while let Some((ticket, files)) = next_work(shared) {
        let is_synced = files.iter().flatten().all(|file| sync(file).is_ok());
        if is_synced {
            shared.done.store(ticket, Ordering::Release);
        } else {
            shared.has_failed.store(true, Ordering::Release);
        }
        doorbell.ring(ringer.next(Ringer::SELF));
        if !is_synced {
            return;
        }
    }
}

/// All that waits, once something does; `None` when it is over.
fn next_work(shared: &Shared) -> Option<(u64, Marked)> {
    let mut work = lock(&shared.work);
    loop {
        if work.must_stop {
            return None;
        }
        if work.requested > shared.done.load(Ordering::Acquire) {
            return Some((work.requested, std::mem::replace(&mut work.marked, nothing())));
        }
        work = shared.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
    }
}
