//! Memory that goes away under a live mapping.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::Arc;

use base::Durability;
use pmem::{MAPPINGS_MAX, MapError, MappedRegion, Mapping, Region, RegionError, Ticket};

use crate::support::{Directory, LEN, PAGE, child, file_of_child};

/// The signal's number on Linux.
const SIGBUS: i32 = 7;

fn truncate(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn gone(path: &Path, at: u64) -> RegionError {
    RegionError::Gone { path: path.display().to_string(), at }
}

/// Stores and loads behind the end of a truncated file end nothing: the region reports the first
/// missing byte from then on, for ever, even when the file grows again. Its neighbour is well.
#[test]
fn truncated_file_is_an_error_and_stays_one() {
    let directory = Directory::new("truncated_file_is_an_error_and_stays_one");
    let path = directory.file("region");
    let neighbour = Mapping::create(&directory.file("neighbour"), LEN).unwrap();
    let mapping = Arc::new(Mapping::create(&path, LEN).unwrap());
    let mut region = MappedRegion::new(Arc::clone(&mapping), Durability::Process, || ()).unwrap();
    region.store(0, 1);
    region.store(LEN - 8, 1);
    assert_eq!(region.persist(0..8), Ticket(1));
    assert_eq!(region.durable(), Ok(Ticket(1)));

    truncate(&path, 2 * PAGE);
    region.store(3 * PAGE + 8, 2);
    region.persist(3 * PAGE..4 * PAGE);
    assert_eq!(region.durable(), Err(gone(&path, 3 * PAGE)), "the page of the store");
    assert_eq!(region.load(2 * PAGE), 0, "missing bytes read as zeros");
    assert_eq!(region.durable(), Err(gone(&path, 2 * PAGE)), "the first byte found missing");
    assert_eq!(region.load(0), 1, "what is left can be read");

    truncate(&path, LEN);
    region.copy_in(0, &[3; 8192]);
    region.copy_in_unordered(PAGE, &[3; 16384]);
    mapping.write_back(0..LEN);
    assert_eq!(region.durable(), Err(gone(&path, 2 * PAGE)));
    assert_eq!(mapping.sync(), Err(gone(&path, 2 * PAGE)));

    neighbour.copy_in(0, &[4; 65536]);
    assert_eq!(neighbour.health(), Ok(()));
    assert_eq!(neighbour.sync(), Ok(()));
}

/// Another process truncates the file to nothing while a peer copies into it.
#[test]
fn truncation_by_another_process_does_not_end_the_writer() {
    let directory = Directory::new("truncation_by_another_process_does_not_end_the_writer");
    let path = directory.file("region");
    let owner = Mapping::create(&path, LEN).unwrap();
    let peer = Mapping::open_peer(&path, 2 * PAGE..4 * PAGE).unwrap();
    let truncated = Command::new("truncate").args(["-s", "0"]).arg(&path).status().unwrap();
    assert!(truncated.success());

    peer.copy_in(100, &[1; 8000]);
    assert_eq!(peer.health(), Err(gone(&path, 0)), "offsets count from the mapping's start");
    let mut bytes = [1; 64];
    owner.copy_out(LEN - 64, &mut bytes);
    assert_eq!(bytes, [0; 64]);
    assert_eq!(owner.health(), Err(gone(&path, LEN - PAGE)));
}

/// Two threads store into lost pages at the same time: both live, and both see the error.
#[test]
fn many_threads_may_fault_at_once() {
    let directory = Directory::new("many_threads_may_fault_at_once");
    let path = directory.file("region");
    let mapping = Mapping::create(&path, LEN).unwrap();
    truncate(&path, 0);
    let down = || {
        for page in (0..LEN / PAGE).rev() {
            mapping.store(page * PAGE, page);
            let Err(RegionError::Gone { at, .. }) = mapping.health() else { panic!("no error") };
            assert!(at <= page * PAGE, "the page at {page} went missing unseen");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(down);
        scope.spawn(down);
        down();
    });
    assert_eq!(mapping.health(), Err(gone(&path, 0)));
}

/// Stores that were done before the truncation raise no fault; the sync, or a look, finds it.
#[test]
fn truncation_behind_finished_stores_is_found() {
    let directory = Directory::new("truncation_behind_finished_stores_is_found");
    let path = directory.file("region");
    let mapping = Mapping::create(&path, LEN).unwrap();
    mapping.copy_in(0, &[1; 65536]);
    truncate(&path, LEN - 1);
    assert_eq!(mapping.health(), Ok(()), "nothing was touched since");
    assert_eq!(mapping.check_len(), Err(gone(&path, LEN - 1)));
    assert_eq!(mapping.health(), Err(gone(&path, LEN - 1)));
    assert_eq!(mapping.sync(), Err(gone(&path, LEN - 1)));
}

/// A memfd is sealed: whoever holds its descriptor cannot truncate it.
#[test]
fn memfd_cannot_be_truncated() {
    let mapping = Mapping::memfd("test", LEN).unwrap();
    let file = std::fs::File::from(mapping.fd().unwrap().try_clone_to_owned().unwrap());
    let refused = file.set_len(0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

/// Slots of closed mappings are used again, each without the past of the one before.
#[test]
fn closed_mappings_leave_no_trace() {
    let directory = Directory::new("closed_mappings_leave_no_trace");
    let path = directory.file("region");
    drop(Mapping::create(&path, LEN).unwrap());
    for _ in 0..2 * MAPPINGS_MAX {
        let mapping = Mapping::open_peer(&path, 0..PAGE).unwrap();
        assert_eq!(mapping.health(), Ok(()));
        mapping.store(0, 1);
        truncate(&path, 0);
        mapping.store(0, 1);
        assert_eq!(mapping.health(), Err(gone(&path, 0)));
        truncate(&path, LEN);
    }
}

/// There are as many mappings as the handler can watch and no more; a closed one makes room.
#[test]
fn mappings_have_a_limit() {
    // In a process of its own: the limit is the process's.
    let directory = Directory::new("mappings_have_a_limit");
    let status = end_of("lost_memory::child_maps_too_much", &directory.file("none"));
    assert!(status.success(), "{status}");
}

/// Not a test by itself: see `mappings_have_a_limit`.
#[test]
fn child_maps_too_much() {
    let Some(_) = file_of_child("lost_memory::child_maps_too_much") else { return };
    let all = || (0..MAPPINGS_MAX).map(|_| Mapping::anonymous(PAGE).unwrap());
    let mut mappings: Vec<_> = all().collect();
    let error = Mapping::anonymous(PAGE).unwrap_err();
    assert!(matches!(error, MapError::TooMany { .. }), "{error}");
    mappings.pop();
    Mapping::anonymous(PAGE).unwrap();
}

fn end_of(role: &str, path: &Path) -> ExitStatus {
    child(role, path).wait().unwrap()
}

/// A fault in memory that is no region of ours ends the process as it would without us.
#[test]
fn faults_elsewhere_still_end_the_process() {
    let directory = Directory::new("faults_elsewhere_still_end_the_process");
    let path = directory.file("other");
    std::fs::write(&path, [1; 4096]).unwrap();
    let status = end_of("lost_memory::child_faults_elsewhere", &path);
    assert_eq!(status.signal(), Some(SIGBUS), "{status}");
}

/// Not a test by itself: see `faults_elsewhere_still_end_the_process`.
#[test]
fn child_faults_elsewhere() {
    let Some(path) = file_of_child("lost_memory::child_faults_elsewhere") else { return };
    let _ours = Mapping::anonymous(LEN).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a null address without MAP_FIXED: the kernel picks a range that nobody has.
    let place = unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, protection, flags, &file, 0) };
    let place = place.unwrap().cast::<u8>();
    file.set_len(0).unwrap();
    // SAFETY: the address is mapped for reads; that its page is missing is what the test wants.
    let byte = unsafe { place.read_volatile() };
    panic!("read {byte} from a page that is gone");
}

/// A SIGBUS that somebody sends ends the process, whatever regions it has.
#[test]
fn sent_signal_still_ends_the_process() {
    let directory = Directory::new("sent_signal_still_ends_the_process");
    let status = end_of("lost_memory::child_is_sent_the_signal", &directory.file("none"));
    assert_eq!(status.signal(), Some(SIGBUS), "{status}");
}

/// Not a test by itself: see `sent_signal_still_ends_the_process`.
#[test]
fn child_is_sent_the_signal() {
    let role = "lost_memory::child_is_sent_the_signal";
    let Some(_) = file_of_child(role) else { return };
    let _ours = Mapping::anonymous(LEN).unwrap();
    let own_pid = std::process::id().to_string();
    let sent = Command::new("kill").args(["-BUS", &own_pid]).status().unwrap();
    panic!("alive after the signal: {sent}");
}
