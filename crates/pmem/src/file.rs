//! The file under a region: made whole or not at all, owned by one process.
//!
//! # Making one
//! ```text
//! region.new:  open, lock, allocate in full, sync ──rename, never over another──> region
//! ```
//! A file of the region's own name is therefore complete and stays so after a crash. What a crash
//! leaves under `.new` is taken over by the next attempt, under the same lock.
//!
//! # Owning one
//! The owner holds an exclusive `flock`; the kernel drops it with the process, however it ends.
//! Peers that map the file to write into it take no lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};

use crate::MapError;

/// The owner may read and write; nobody else.
const MODE: u32 = 0o600;
/// Bytes of `/proc/locks` that are looked at for the holder of a lock: some 10,000 locks.
const LOCKS_LEN_MAX: u64 = 1 << 20;
/// How often an attempt starts over because another one has just renamed or removed the file.
const ATTEMPTS_MAX: u32 = 8;

/// An open file, locked if this process owns the region in it.
#[derive(Debug)]
pub(crate) struct RegionFile {
    pub(crate) file: File,
    is_owned: bool,
}

impl RegionFile {
    /// A file that somebody else owns, if anybody does.
    pub(crate) const fn shared(file: File) -> Self {
        Self { file, is_owned: false }
    }
}

impl Drop for RegionFile {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a child process between its fork and its exec. An
        // error leaves no more than that: closing follows.
        if self.is_owned {
            self.file.unlock().unwrap_or(());
        }
    }
}

/// A file that does not have its name yet; removed when dropped before [`Self::publish`].
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    is_published: bool,
}

/// Creates the file that shall become `path`, allocated in full and durable, and owns it.
pub(crate) fn create(path: &Path, len: u64) -> Result<(RegionFile, Unfinished), MapError> {
    let name = path.display().to_string();
    if path.symlink_metadata().is_ok() {
        return Err(MapError::Exists { path: name });
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let file = RegionFile { file: open_unfinished(&unfinished)?, is_owned: true };
    let unfinished = Unfinished { path: unfinished, is_published: false };
    allocate(&file.file, &name, len)?;
    Ok((file, unfinished))
}

impl Unfinished {
    /// Gives the file its name, unless another file has it, and makes the name durable.
    pub(crate) fn publish(mut self, path: &Path) -> Result<(), MapError> {
        let name = path.display().to_string();
        renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE).map_err(|error| {
            if error == rustix::io::Errno::EXIST {
                MapError::Exists { path: name }
            } else {
                MapError::system(&name, "rename the finished file", error)
            }
        })?;
        // What is removed if the directory cannot be synced.
        path.clone_into(&mut self.path);
        sync_directory(path)?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_published {
            // The error on the way is the one to report; what stays is taken over by the next
            // attempt, or reported by it.
            std::fs::remove_file(&self.path).unwrap_or(());
        }
    }
}

/// Opens `path` for creation and locks it.
fn open_unfinished(path: &Path) -> Result<File, MapError> {
    let name = path.display().to_string();
    for _ in 0..ATTEMPTS_MAX {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let file = options.open(path).map_err(|error| MapError::system(&name, "create", error))?;
        lock(&file, &name)?;
        // Another attempt may have renamed its finished file between our open and our lock: that
        // one is a region by now and must not be touched.
        if is_same_file(&file, path) {
            return Ok(file);
        }
    }
    Err(MapError::InUse { path: name, pid: None })
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Gives the file all its blocks, zeroed, and makes that durable.
fn allocate(file: &File, name: &str, len: u64) -> Result<(), MapError> {
    file.set_len(0).map_err(|error| MapError::system(name, "empty", error))?;
    fallocate(file, FallocateFlags::empty(), 0, len).map_err(|error| match error {
        rustix::io::Errno::NOSPC | rustix::io::Errno::FBIG | rustix::io::Errno::DQUOT => {
            MapError::NoSpace { path: name.to_owned(), len }
        }
        rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS => {
            MapError::CannotAllocate { path: name.to_owned() }
        }
        other => MapError::system(name, "allocate", other),
    })?;
    file.sync_all().map_err(|error| MapError::system(name, "sync", error))
}

/// Makes the file's name durable.
fn sync_directory(path: &Path) -> Result<(), MapError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or_else(|| Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| {
        MapError::system(&directory.display().to_string(), "sync the directory", error)
    })
}

/// Opens the file of a region and owns it.
pub(crate) fn open_owned(path: &Path) -> Result<RegionFile, MapError> {
    let file = open(path)?;
    lock(&file, &path.display().to_string())?;
    Ok(RegionFile { file, is_owned: true })
}

/// Opens the file of another member's region.
pub(crate) fn open_shared(path: &Path) -> Result<RegionFile, MapError> {
    open(path).map(RegionFile::shared)
}

fn open(path: &Path) -> Result<File, MapError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| MapError::system(&path.display().to_string(), "open", error))
}

fn lock(file: &File, name: &str) -> Result<(), MapError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            MapError::InUse { path: name.to_owned(), pid: lock_holder(file) }
        }
        TryLockError::Error(error) => MapError::system(name, "lock", error),
    })
}

/// The process that holds the lock, where `/proc/locks` shows it: not across pid namespaces, not on
/// file systems whose device number there differs from that of `stat`.
fn lock_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    parse_lock_holder(&read_locks().ok()?, &wanted)
}

fn read_locks() -> io::Result<String> {
    let mut text = String::new();
    File::open("/proc/locks")?.take(LOCKS_LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Finds the holder in lines like `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
fn parse_lock_holder(locks: &str, wanted: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_flock = fields.next() == Some("FLOCK");
        let pid = fields.nth(2)?.parse().ok().filter(|pid| *pid != 0);
        let is_wanted = fields.next() == Some(wanted);
        if is_flock && is_wanted { pid } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 08:01:78 0 EOF\n";
        assert_eq!(parse_lock_holder(locks, "08:01:77"), Some(13), "neither POSIX nor waiting");
        assert_eq!(parse_lock_holder(locks, "08:01:78"), None, "a pid of another namespace");
        assert_eq!(parse_lock_holder(locks, "08:01:79"), None);
        assert_eq!(parse_lock_holder("3: FLOCK\n\n", "08:01:77"), None, "short lines");
    }
}
