//! The syncer: groups, order, failure, end. The sync itself is the test's, so that it can wait and
//! fail; the memory is a file as in production.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use base::Durability;
use pmem::{Backing, MappedRegion, Mapping, Region, RegionError, Ticket};

use crate::support::{Directory, LEN, PAGE, Progress, progress};

/// A region whose every sync reports its begin and then waits for its result.
struct Bench {
    // Dropped before the region, whose syncer may still wait for a result when a test fails.
    results: Sender<Result<(), RegionError>>,
    region: MappedRegion,
    progress: Progress,
    begun: Receiver<()>,
    _directory: Directory,
}

/// `None` where the build directory lies in memory, for which `sync` is refused.
fn bench(test: &str) -> Option<Bench> {
    let directory = Directory::new(test);
    let mapping = Mapping::create(&directory.file("region"), LEN).unwrap();
    if mapping.backing() == Some(Backing::Memory) {
        println!("SKIPPED {test}: the build directory lies in memory");
        return None;
    }
    let (begin, begun) = channel();
    let (results, result) = channel();
    let sync = move |_: &Mapping| {
        begin.send(()).unwrap();
        result.recv().unwrap()
    };
    let (on_progress, progress) = progress();
    let mapping = Arc::new(mapping);
    let region = MappedRegion::with_sync(mapping, Durability::Sync, sync, on_progress).unwrap();
    Some(Bench { results, region, progress, begun, _directory: directory })
}

fn disk_error() -> RegionError {
    RegionError::Sync { path: "region".to_owned(), what: "Input/output error".to_owned() }
}

/// While one sync runs, any number of ranges wait; the next sync takes them all.
#[test]
fn one_sync_takes_everything_that_waits() {
    let Some(mut bench) = bench("one_sync_takes_everything_that_waits") else { return };
    assert_eq!(bench.region.persist(0..8), Ticket(1));
    bench.begun.recv().unwrap();
    assert_eq!(bench.region.persist(8..16), Ticket(2));
    assert_eq!(bench.region.persist(16..24), Ticket(3));
    assert_eq!(bench.region.durable(), Ok(Ticket(0)), "the first sync is not done");

    bench.results.send(Ok(())).unwrap();
    bench.progress.wait();
    assert_eq!(bench.region.durable(), Ok(Ticket(1)), "2 and 3 came after the sync began");

    bench.begun.recv().unwrap();
    bench.results.send(Ok(())).unwrap();
    bench.progress.wait();
    assert_eq!(bench.region.durable(), Ok(Ticket(3)));
    drop(bench.region);
    assert_eq!(bench.begun.try_iter().count(), 0, "there was no third sync");
}

/// After a failed sync nothing becomes durable, nothing is tried again, and the owner is told.
#[test]
fn failed_sync_is_final() {
    let Some(mut bench) = bench("failed_sync_is_final") else { return };
    bench.region.persist(0..8);
    bench.begun.recv().unwrap();
    bench.results.send(Ok(())).unwrap();
    bench.progress.wait();
    assert_eq!(bench.region.durable(), Ok(Ticket(1)));

    bench.region.persist(8..16);
    bench.begun.recv().unwrap();
    bench.results.send(Err(disk_error())).unwrap();
    bench.progress.wait();
    assert_eq!(bench.region.durable(), Err(disk_error()));

    // The syncer has dropped its ends: no sync can begin any more.
    assert_eq!(bench.region.persist(16..24), Ticket(3));
    assert!(bench.begun.recv().is_err(), "a sync began after a failure");
    assert_eq!(bench.region.durable(), Err(disk_error()));
    assert_eq!(bench.region.durable(), Err(disk_error()), "the error stays");
}

/// Dropping a region syncs what waits and ends the thread.
#[test]
fn dropping_syncs_what_waits() {
    let Some(mut bench) = bench("dropping_syncs_what_waits") else { return };
    bench.region.persist(0..8);
    bench.results.send(Ok(())).unwrap();
    drop(bench.region);
    assert_eq!(bench.begun.iter().count(), 1, "one sync, and then the thread's end is gone");
}

/// The real sync of a truncated file reports it, though the operating system has no error.
#[test]
fn sync_of_a_truncated_file_fails() {
    let directory = Directory::new("sync_of_a_truncated_file_fails");
    let path = directory.file("region");
    let mapping = Arc::new(Mapping::create(&path, LEN).unwrap());
    if mapping.backing() == Some(Backing::Memory) {
        println!("SKIPPED sync_of_a_truncated_file_fails: the build directory lies in memory");
        return;
    }
    let (on_progress, progress) = progress();
    let mut region = MappedRegion::new(mapping, Durability::Sync, on_progress).unwrap();
    region.copy_in(0, &[1; 65536]);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(PAGE).unwrap();
    region.persist(0..LEN);
    progress.wait();
    let gone = RegionError::Gone { path: path.display().to_string(), at: PAGE };
    assert_eq!(region.durable(), Err(gone));
}

/// Modes that are durable at once start no thread and call nobody.
#[test]
fn other_modes_never_sync() {
    let directory = Directory::new("other_modes_never_sync");
    let mapping = Arc::new(Mapping::create(&directory.file("region"), LEN).unwrap());
    let calls = Arc::new(AtomicU64::new(0));
    let (syncs, progresses) = (Arc::clone(&calls), Arc::clone(&calls));
    let sync = move |_: &Mapping| {
        syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let on_progress = move || {
        progresses.fetch_add(1, Ordering::SeqCst);
    };
    let mut region =
        MappedRegion::with_sync(mapping, Durability::Process, sync, on_progress).unwrap();
    let ticket = region.persist(0..8);
    assert_eq!(region.durable(), Ok(ticket));
    drop(region);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&calls), 1, "nobody holds the callbacks any more");
}
