//! Creating, opening and owning files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use base::Durability;
use pmem::{Backing, MapError, MappedRegion, Mapping};
use std::sync::Arc;

use crate::support::{
    Directory, LEN, PAGE, Tmpfs, child, file_of_child, read_until, wait_for_parent,
};

/// A created file is the owner's alone, has all its blocks, and nothing else is left beside it.
#[test]
fn file_is_private_and_allocated_in_full() {
    let directory = Directory::new("file_is_private_and_allocated_in_full");
    let path = directory.file("region");
    let _region = Mapping::create(&path, LEN).unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), LEN);
    assert!(metadata.blocks() * 512 >= LEN, "{} blocks", metadata.blocks());
    assert_eq!(directory.names(), ["region"]);
}

#[test]
fn existing_file_is_left_alone() {
    let directory = Directory::new("existing_file_is_left_alone");
    let path = directory.file("region");
    std::fs::write(&path, "precious").unwrap();
    let error = Mapping::create(&path, LEN).unwrap_err();
    assert!(matches!(error, MapError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(directory.names(), ["region"]);
}

/// A crash during creation leaves a file under another name; the next attempt takes it over.
#[test]
fn unfinished_file_is_taken_over() {
    let directory = Directory::new("unfinished_file_is_taken_over");
    std::fs::write(directory.file("region.new"), "left by a crash").unwrap();
    let region = Mapping::create(&directory.file("region"), LEN).unwrap();
    assert_eq!(region.load(0), 0, "nothing of the old content is left");
    assert_eq!(directory.names(), ["region"]);
}

#[test]
fn impossible_lengths_are_refused() {
    let directory = Directory::new("impossible_lengths_are_refused");
    for len in [0, 100, 4097, 1 << 63] {
        let error = Mapping::create(&directory.file("region"), len).unwrap_err();
        assert!(matches!(error, MapError::Length { len: named, .. } if named == len), "{error}");
    }
    assert!(directory.names().is_empty());

    drop(Mapping::create(&directory.file("region"), LEN).unwrap());
    let error = Mapping::open_peer(&directory.file("region"), 64..64 + PAGE).unwrap_err();
    assert!(matches!(error, MapError::Length { start: 64, .. }), "{error}");
    let backwards = std::ops::Range { start: PAGE, end: 0 };
    let error = Mapping::open_peer(&directory.file("region"), backwards).unwrap_err();
    assert!(matches!(error, MapError::Length { len: 0, .. }), "{error}");
}

/// With no room for the whole region there is an error and no file, and a smaller one fits.
#[test]
fn full_disk_fails_at_creation_and_leaves_nothing() {
    let test = "full_disk_fails_at_creation_and_leaves_nothing";
    let Some(tmpfs) = Tmpfs::mount(test, "size=128k") else { return };
    let path = tmpfs.directory().file("region");
    let error = Mapping::create(&path, 1 << 20).unwrap_err();
    assert!(matches!(error, MapError::NoSpace { len: 0x10_0000, .. }), "{error}");
    assert!(
        error
            .to_string()
            .ends_with("no room for 1048576 bytes: free space or choose a smaller region")
    );
    assert!(tmpfs.directory().names().is_empty());

    // What fits is there in full: every page can be written though the disk is full by then.
    let region = Mapping::create(&path, 64 * 1024).unwrap();
    let filler = vec![1; 128 * 1024];
    std::fs::write(tmpfs.directory().file("filler"), filler).unwrap_err();
    region.copy_in(0, &[9; 64 * 1024]);
    region.sync().unwrap();
}

/// Memory cannot be synced, so the mode that promises it is refused there.
#[test]
fn sync_mode_is_refused_on_tmpfs() {
    let Some(tmpfs) = Tmpfs::mount("sync_mode_is_refused_on_tmpfs", "size=128k") else { return };
    let mapping = Arc::new(Mapping::create(&tmpfs.directory().file("region"), LEN).unwrap());
    assert_eq!(mapping.backing(), Some(Backing::Memory));
    assert_eq!(pmem::backing(tmpfs.directory().path()).unwrap(), Backing::Memory);
    let error = MappedRegion::new(Arc::clone(&mapping), Durability::Sync, || ()).unwrap_err();
    assert!(error.to_string().contains("tmpfs"), "{error}");
    MappedRegion::new(mapping, Durability::Process, || ()).unwrap();
}

#[test]
fn read_only_directory_is_named_in_the_error() {
    let test = "read_only_directory_is_named_in_the_error";
    let Some(tmpfs) = Tmpfs::mount(test, "size=128k,ro") else { return };
    let path = tmpfs.directory().file("region");
    let error = Mapping::create(&path, LEN).unwrap_err();
    let expected =
        format!("{}.new: cannot create: Read-only file system (os error 30)", path.display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn shorter_file_is_an_error() {
    let directory = Directory::new("shorter_file_is_an_error");
    let path = directory.file("region");
    drop(Mapping::create(&path, LEN).unwrap());
    let error = Mapping::open(&path, LEN + PAGE).unwrap_err();
    assert!(
        matches!(error, MapError::Truncated { expected: 0x1_1000, found: 0x1_0000, .. }),
        "{error}"
    );
    let error = Mapping::open_peer(&path, LEN..LEN + PAGE).unwrap_err();
    assert!(matches!(error, MapError::Truncated { .. }), "{error}");
}

#[test]
fn what_is_no_file_is_refused() {
    let error = Mapping::open_peer("/dev/zero".as_ref(), 0..PAGE).unwrap_err();
    assert!(matches!(error, MapError::NotAFile { .. }), "{error}");
    let error = Mapping::open("/no/such/file".as_ref(), PAGE).unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file: cannot open: No such file"), "{error}");
}

/// The second owner on a file is refused and told who the first is; peers are not.
#[test]
fn second_owner_is_refused() {
    let directory = Directory::new("second_owner_is_refused");
    let path = directory.file("region");
    let first = Mapping::create(&path, LEN).unwrap();
    let error = Mapping::open(&path, LEN).unwrap_err();
    let MapError::InUse { pid, .. } = &error else { panic!("{error}") };
    assert!(pid.is_none_or(|pid| pid == std::process::id()), "{error}");
    Mapping::open_peer(&path, 0..LEN).unwrap();
    drop(first);
    Mapping::open(&path, LEN).unwrap();
}

/// A copy of the descriptor, as a child has between fork and exec, does not keep the file owned.
#[test]
fn file_is_released_though_a_copy_of_its_descriptor_is_open() {
    let directory = Directory::new("file_is_released_though_a_copy_of_its_descriptor_is_open");
    let path = directory.file("region");
    let first = Mapping::create(&path, LEN).unwrap();
    let copy = first.fd().unwrap().try_clone_to_owned().unwrap();
    drop(first);
    Mapping::open(&path, LEN).unwrap();
    drop(copy);
}

/// A killed owner gives up the file at once; until then others are told its pid.
#[test]
fn killed_owner_releases_the_file() {
    let directory = Directory::new("killed_owner_releases_the_file");
    let path = directory.file("region");
    drop(Mapping::create(&path, LEN).unwrap());
    let mut owner = child("files::child_owns_the_file", &path);
    read_until(owner.stdout.take().unwrap(), "owning");

    let error = Mapping::open(&path, LEN).unwrap_err();
    let MapError::InUse { pid, .. } = &error else { panic!("{error}") };
    assert!(pid.is_none_or(|pid| pid == owner.id()), "{error}");

    owner.kill().unwrap();
    owner.wait().unwrap();
    let heir = Mapping::open(&path, LEN).unwrap();
    assert_eq!(heir.load(0), 4711, "what the owner stored outlives it");
}

/// Not a test by itself: see `killed_owner_releases_the_file`.
#[test]
fn child_owns_the_file() {
    let Some(path) = file_of_child("files::child_owns_the_file") else { return };
    let region = Mapping::open(&path, LEN).unwrap();
    region.store(0, 4711);
    println!("owning");
    wait_for_parent();
}
