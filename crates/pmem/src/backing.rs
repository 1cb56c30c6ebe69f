//! What lies under a file, and which boot of the host this is.
//!
//! In `process` mode a region is as old as its memory: a file on disk loses unsynced pages with the
//! boot, so its superblock holds the [`boot_id`]. A file in tmpfs may go earlier (unmount) and its
//! content is always of one life: there the superblock holds a random id, drawn by the caller when
//! it creates the region. [`backing`] tells which of the two applies.
//!
//! What no program can see is not guessed: a loop device over tmpfs, an overlay whose upper layer
//! is memory, a disk that lies about its cache.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use base::BootId;
use rustix::fs::{StatFs, fstatfs, statfs};

/// What a file system keeps files on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Memory (tmpfs, ramfs, hugetlbfs): a sync does nothing, a reboot or unmount loses all.
    Memory,
    /// A file system that passes a sync on to storage, as far as it tells.
    Disk,
    /// A network file system: what a sync means is the server's matter.
    Network,
}

/// Magic numbers of file systems in memory. Source: `linux/magic.h`.
const MEMORY_MAGICS: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
/// Magic numbers of NFS, SMB1, SMB2, CIFS, AFS, Ceph, 9p. Source: `linux/magic.h`.
const NETWORK_MAGICS: [u64; 7] =
    [0x6969, 0x517b, 0xfe53_4d42, 0xff53_4d42, 0x5346_414f, 0x00c3_6400, 0x0102_1997];

/// What the file system under `path` (which must exist) keeps files on.
///
/// # Errors
/// The operating system's, when it cannot look at `path`.
pub fn backing(path: &Path) -> io::Result<Backing> {
    Ok(classify(&statfs(path)?))
}

/// What the file system of an open file keeps files on.
pub(crate) fn backing_of_file(file: impl AsFd) -> io::Result<Backing> {
    Ok(classify(&fstatfs(file)?))
}

fn classify(file_system: &StatFs) -> Backing {
    // The kernel's field is a signed word in which magics of 32 bits may come sign-extended.
    let magic = u64::from_le_bytes(file_system.f_type.to_le_bytes()) & 0xffff_ffff;
    if MEMORY_MAGICS.contains(&magic) {
        Backing::Memory
    } else if NETWORK_MAGICS.contains(&magic) {
        Backing::Network
    } else {
        Backing::Disk
    }
}

/// The id of this boot of the host.
///
/// # Errors
/// The operating system's, or `InvalidData` when it is not 32 hexadecimal digits with hyphens.
pub fn boot_id() -> io::Result<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    parse_boot_id(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "boot_id of the kernel is not a UUID")
    })
}

fn parse_boot_id(text: &str) -> Option<BootId> {
    let digits: String = text.trim_end().chars().filter(|digit| *digit != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_uuid { u128::from_str_radix(&digits, 16).ok().map(BootId) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_uuids() {
        let text = "4f1c2a30-0000-4000-8000-0000000000ff\n";
        assert_eq!(parse_boot_id(text), Some(BootId(0x4f1c_2a30_0000_4000_8000_0000_0000_00ff)));
        assert_eq!(parse_boot_id("4f1c2a30"), None, "too short");
        assert_eq!(parse_boot_id(&"+".repeat(32)), None, "not hexadecimal");
    }

    #[test]
    fn boot_id_stays_the_same_within_a_boot() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }

    #[test]
    fn shared_memory_is_memory_and_nothing_is_an_error() {
        assert_eq!(backing(Path::new("/dev/shm")).unwrap(), Backing::Memory);
        let missing = backing(Path::new("/no/such/file")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
