//! The conformance suite on every kind of memory and in every mode there is.

use std::sync::Arc;

use base::Durability;
use pmem::{Backing, MapError, MappedRegion, Mapping, Region, conformance};

use crate::support::{Directory, LEN, progress};

/// Runs the whole suite on a region over `mapping`.
fn conforms(mapping: Mapping, mode: Durability) {
    let (on_progress, progress) = progress();
    let mapping = Arc::new(mapping);
    let mut region = MappedRegion::new(Arc::clone(&mapping), mode, on_progress).unwrap();
    assert_eq!(region.len(), LEN);
    assert_eq!(region.durability(), mode);
    conformance::copies_keep_bytes(&mut region);
    conformance::words_are_little_endian(&mut region);
    conformance::ranges_outside_panic(&mut region);
    conformance::tickets_become_durable(&mut region, || progress.wait());
    let at = conformance::AREA_AT;
    conformance::words_are_whole(&region, |word| mapping.store(at, word));
    conformance::copies_ascend(&region, |bytes| mapping.copy_in(at, bytes));
    region.durable().unwrap();
}

#[test]
fn anonymous_memory_conforms() {
    conforms(Mapping::anonymous(LEN).unwrap(), Durability::Volatile);
}

#[test]
fn memfd_conforms() {
    conforms(Mapping::memfd("test", LEN).unwrap(), Durability::Volatile);
}

#[test]
fn file_conforms_in_process_mode() {
    let directory = Directory::new("file_conforms_in_process_mode");
    conforms(Mapping::create(&directory.file("region"), LEN).unwrap(), Durability::Process);
}

#[test]
fn file_conforms_in_sync_mode() {
    let directory = Directory::new("file_conforms_in_sync_mode");
    let mapping = Mapping::create(&directory.file("region"), LEN).unwrap();
    if mapping.backing() == Some(Backing::Memory) {
        println!("SKIPPED file_conforms_in_sync_mode: the build directory lies in memory");
        return;
    }
    conforms(mapping, Durability::Sync);
}

#[test]
fn write_delay_changes_no_result() {
    let mapping = Mapping::anonymous(LEN).unwrap().with_write_delay_ns(150);
    mapping.copy_in(60, &[1; 100]);
    mapping.write_back(60..160);
    mapping.write_back(0..0);
    mapping.fence();
    conforms(mapping, Durability::Volatile);
}

/// A mode that the memory cannot back is refused, and the error says why.
#[test]
fn modes_without_backing_are_refused() {
    let anonymous = Arc::new(Mapping::anonymous(LEN).unwrap());
    let refused = |mode| MappedRegion::new(Arc::clone(&anonymous), mode, || ()).unwrap_err();
    assert_eq!(
        refused(Durability::Sync).to_string(),
        "anonymous memory: cannot back durability mode sync: anonymous memory is gone with the \
         process"
    );
    for mode in [Durability::Process, Durability::ReadBack, Durability::Platform] {
        assert!(matches!(refused(mode), MapError::Mode { mode: named, .. } if named == mode));
    }
    for mode in [Durability::Flush, Durability::TargetCpu] {
        assert!(matches!(refused(mode), MapError::Mode { mode: named, .. } if named == mode));
    }
    let memfd = Arc::new(Mapping::memfd("test", LEN).unwrap());
    let error = MappedRegion::new(memfd, Durability::Process, || ()).unwrap_err();
    assert!(error.to_string().contains("without a name"), "{error}");
}

/// A peer maps a part of the owner's file: what it stores there the owner sees, and it reaches
/// nothing else.
#[test]
fn peer_reaches_its_range_of_the_owners_file() {
    let directory = Directory::new("peer_reaches_its_range_of_the_owners_file");
    let path = directory.file("region");
    let owner = Mapping::create(&path, LEN).unwrap();
    let peer = Mapping::open_peer(&path, 8192..16384).unwrap();
    assert_eq!(peer.len(), 8192);
    peer.copy_in_unordered(0, &[5; 8192]);
    peer.write_back(0..8192);
    peer.fence();
    let mut seen = vec![0; 8194];
    owner.copy_out(8191, &mut seen);
    assert_eq!(seen[0], 0);
    assert_eq!(seen[1..8193], [5; 8192]);
    assert_eq!(seen[8193], 0);
}

/// A memfd is mapped by its path in `/proc`, as another process would do it, and by descriptor.
#[test]
fn peer_maps_a_memfd() {
    let owner = Mapping::memfd("test", LEN).unwrap();
    let fd = owner.fd().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let by_path = Mapping::open_peer(path.as_ref(), 0..LEN).unwrap();
    let passed = fd.try_clone_to_owned().unwrap();
    let by_fd = Mapping::open_peer_fd(passed, "passed", 0..LEN).unwrap();
    by_path.store(8, 21);
    by_fd.store(16, 42);
    assert_eq!((owner.load(8), owner.load(16)), (21, 42));
}

/// What one owner stored the next one finds.
#[test]
fn content_stays_when_the_owner_goes() {
    let directory = Directory::new("content_stays_when_the_owner_goes");
    let path = directory.file("region");
    let first = Mapping::create(&path, LEN).unwrap();
    assert_eq!(first.load(LEN - 8), 0, "a new region is zeros");
    first.store(LEN - 8, 77);
    drop(first);
    assert_eq!(Mapping::open(&path, LEN).unwrap().load(LEN - 8), 77);
}
