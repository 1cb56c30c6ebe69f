//! Simulated files: named blobs of one host, such as the state files of checkpoints.
//!
//! # Invariants
//! - What a reached ticket covers survives a power cut, byte for byte, name included.
//! - What it does not cover may survive in part: a file may be missing, shorter, or have holes of
//!   zeroes where bytes were appended; a removed file may be back.
//! - A process crash loses nothing: the page cache lives on.

use std::collections::{BTreeMap, VecDeque};

use base::{Instant, Random};
use pmem::Ticket;

use crate::world::{Delay, Event, HostId, SharedWorld};

/// Files of one directory.
pub const FILES_MAX: usize = 4_096;

/// Syncs that wait at one time.
const SYNCS_MAX: usize = 4_096;

/// Bytes that reach the disk together or not at all.
const SECTOR_BYTES: usize = 512;

/// Why a file operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such file.
    #[error("{name}: no such file")]
    NotFound {
        /// Its name.
        name: String,
    },
    /// There is such a file already.
    #[error("{name}: the file exists already")]
    Exists {
        /// Its name.
        name: String,
    },
    /// The range does not lie inside the file.
    #[error("{name}: bytes {at} to {end} do not lie inside the file of {len} bytes")]
    OutOfRange {
        /// Its name.
        name: String,
        /// First byte asked for.
        at: u64,
        /// Behind the last byte asked for.
        end: u64,
        /// The file's length.
        len: u64,
    },
    /// There is no room: too many files, or too many syncs under way.
    #[error("the directory is full")]
    Full,
    /// A sync failed: what no ticket covered may be gone, for good.
    #[error("sync failed: what was not acknowledged may be lost, restart the member")]
    Sync,
}

#[derive(Debug, Default)]
struct Blob {
    bytes: Vec<u8>,
    /// How many bytes from the start are durable.
    durable: usize,
    /// Whether the name is durable.
    named: bool,
    /// Counted up at every creation, so that a sync of an older file of this name is no sync of
    /// this one.
    birth: u64,
}

#[derive(Debug)]
struct Sync {
    ticket: Ticket,
    due: Instant,
    name: String,
    birth: u64,
    len: usize,
    /// How many removals it makes durable.
    removals: u64,
}

/// The files of one host. Part of the world; reached through [`SimFiles`].
#[derive(Debug)]
pub(crate) struct Directory {
    random: Random,
    files: BTreeMap<String, Blob>,
    /// Removed files whose removal is not durable, with the number of the removal.
    removed: VecDeque<(u64, String, Blob)>,
    removals: u64,
    births: u64,
    syncs: VecDeque<Sync>,
    ticket: Ticket,
    reached: Ticket,
    poisoned: bool,
    syncs_to_fail: u32,
    delay: Delay,
}

impl Directory {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            files: BTreeMap::new(),
            removed: VecDeque::new(),
            removals: 0,
            births: 0,
            syncs: VecDeque::new(),
            ticket: Ticket(0),
            reached: Ticket(0),
            poisoned: false,
            syncs_to_fail: 0,
            delay: Delay::with_tail(20_000, 400_000, 50, 8_000_000),
        }
    }

    fn file(&self, name: &str) -> Result<&Blob, FileError> {
        self.files.get(name).ok_or_else(|| FileError::NotFound { name: name.to_owned() })
    }

    fn create(&mut self, name: &str) -> Result<(), FileError> {
        if self.files.contains_key(name) {
            return Err(FileError::Exists { name: name.to_owned() });
        }
        if self.files.len() + self.removed.len() >= FILES_MAX {
            return Err(FileError::Full);
        }
        self.births += 1;
        let blob = Blob { birth: self.births, ..Blob::default() };
        self.files.insert(name.to_owned(), blob);
        Ok(())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let blob = self
            .files
            .get_mut(name)
            .ok_or_else(|| FileError::NotFound { name: name.to_owned() })?;
        blob.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), FileError> {
        let blob =
            self.files.remove(name).ok_or_else(|| FileError::NotFound { name: name.to_owned() })?;
        self.removals += 1;
        self.removed.push_back((self.removals, name.to_owned(), blob));
        Ok(())
    }

    fn read(&self, name: &str, at: u64, into: &mut [u8]) -> Result<(), FileError> {
        let blob = self.file(name)?;
        let len = blob.bytes.len() as u64;
        let end = at.saturating_add(into.len() as u64);
        if len < end {
            return Err(FileError::OutOfRange { name: name.to_owned(), at, end, len });
        }
        let start = crate::memory::place(at);
        into.copy_from_slice(&blob.bytes[start..start + into.len()]);
        Ok(())
    }

    fn sync(&mut self, now: Instant, name: &str) -> Result<(Ticket, Instant), FileError> {
        if self.syncs.len() == SYNCS_MAX {
            return Err(FileError::Full);
        }
        let blob = self.file(name)?;
        let (birth, len) = (blob.birth, blob.bytes.len());
        self.ticket.0 += 1;
        let due = now + self.delay.draw(&mut self.random);
        let due = self.syncs.back().map_or(due, |last| last.due.max(due));
        let (ticket, removals) = (self.ticket, self.removals);
        self.syncs.push_back(Sync { ticket, due, name: name.to_owned(), birth, len, removals });
        Ok((ticket, due))
    }

    pub(crate) fn sync_ends(&mut self, now: Instant) {
        while self.syncs.front().is_some_and(|first| first.due <= now) {
            let first = self.syncs.pop_front().expect("there is a first");
            if self.syncs_to_fail > 0 {
                self.syncs_to_fail -= 1;
                self.poisoned = true;
            }
            if self.poisoned {
                continue;
            }
            self.reached = first.ticket;
            self.removed.retain(|(number, _, _)| first.removals < *number);
            if let Some(blob) = self.files.get_mut(&first.name)
                && blob.birth == first.birth
            {
                blob.durable = blob.durable.max(first.len);
                blob.named = true;
            }
        }
    }

    /// A new process looks at the directory: the failure that the last one saw is not shown to it.
    pub(crate) const fn reopen(&mut self) {
        self.poisoned = false;
    }

    pub(crate) fn power_cut(&mut self) {
        self.syncs.clear();
        for (_, name, blob) in self.removed.drain(..) {
            if blob.named && !self.files.contains_key(&name) && self.random.one_in(2) {
                self.files.insert(name, blob);
            }
        }
        let random = &mut self.random;
        self.files.retain(|_, blob| {
            let stays = blob.named || random.one_in(2);
            if stays {
                blob.cut(random);
            }
            stays
        });
    }
}

impl Blob {
    /// Keeps the durable bytes, and of the others what may have reached the disk.
    fn cut(&mut self, random: &mut Random) {
        let loose = self.bytes.len() - self.durable;
        let kept = crate::memory::place(random.below(loose as u64 + 1));
        self.bytes.truncate(self.durable + kept);
        let mut at = self.durable;
        while at < self.bytes.len() {
            let end = self.bytes.len().min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
            if random.one_in(3) {
                self.bytes[at..end].fill(0);
            }
            at = end;
        }
        self.durable = self.bytes.len();
        self.named = true;
    }
}

/// A process's handle on the files of its host.
#[derive(Debug)]
pub struct SimFiles {
    world: SharedWorld,
    host: HostId,
}

impl SimFiles {
    /// Opens the directory of `host`. A failure that an earlier process saw is forgotten.
    #[must_use]
    pub fn open(world: &SharedWorld, host: HostId) -> Self {
        world.borrow_mut().hosts[host.place()].files.reopen();
        Self { world: SharedWorld::clone(world), host }
    }

    fn look<T>(&self, at: impl FnOnce(&Directory) -> T) -> T {
        at(&self.world.borrow().hosts[self.host.place()].files)
    }

    fn change<T>(&mut self, how: impl FnOnce(&mut Directory) -> T) -> T {
        how(&mut self.world.borrow_mut().hosts[self.host.place()].files)
    }

    /// The names there are, in ascending order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.look(|directory| directory.files.keys().cloned().collect())
    }

    /// The length of a file in bytes.
    ///
    /// # Errors
    /// [`FileError::NotFound`].
    pub fn len(&self, name: &str) -> Result<u64, FileError> {
        self.look(|directory| directory.file(name).map(|blob| blob.bytes.len() as u64))
    }

    /// Makes an empty file.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Full`].
    pub fn create(&mut self, name: &str) -> Result<(), FileError> {
        self.change(|directory| directory.create(name))
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// [`FileError::NotFound`].
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        self.change(|directory| directory.append(name, bytes))
    }

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::OutOfRange`].
    pub fn read(&self, name: &str, at: u64, into: &mut [u8]) -> Result<(), FileError> {
        self.look(|directory| directory.read(name, at, into))
    }

    /// Begins to make a file, its name, and every removal so far durable.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::Full`].
    pub fn sync(&mut self, name: &str) -> Result<Ticket, FileError> {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        let files = &mut world.hosts[self.host.place()].files;
        let (ticket, due) = files.sync(world.clock.now, name)?;
        world.clock.schedule(due, Event::FileSync(self.host.0));
        Ok(ticket)
    }

    /// The latest ticket such that it and all before it are durable.
    ///
    /// # Errors
    /// [`FileError::Sync`] once a sync failed; it stays.
    pub fn durable(&self) -> Result<Ticket, FileError> {
        self.look(
            |directory| {
                if directory.poisoned { Err(FileError::Sync) } else { Ok(directory.reached) }
            },
        )
    }

    /// Removes a file; the removal is durable with the next sync that ends.
    ///
    /// # Errors
    /// [`FileError::NotFound`].
    pub fn remove(&mut self, name: &str) -> Result<(), FileError> {
        self.change(|directory| directory.remove(name))
    }

    /// Plants a fault: the next `count` syncs fail.
    pub fn fail_syncs(&mut self, count: u32) {
        self.change(|directory| directory.syncs_to_fail = count);
    }
}

#[cfg(test)]
mod tests {
    use base::MemberId;

    use super::*;
    use crate::fabric::FabricOptions;
    use crate::world::World;

    fn directory(seed: u64) -> (SharedWorld, HostId, SimFiles) {
        let world = World::shared(seed, FabricOptions::default());
        let host = world.borrow_mut().add_host(MemberId(1));
        let files = SimFiles::open(&world, host);
        (world, host, files)
    }

    #[test]
    fn what_a_ticket_covers_survives_a_power_cut_and_the_rest_may_be_torn() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let (world, host, mut files) = directory(seed);
            files.create("a").unwrap();
            files.append("a", &[7; 1000]).unwrap();
            let ticket = files.sync("a").unwrap();
            assert_eq!(files.durable(), Ok(Ticket(0)));
            world.borrow_mut().step();
            assert_eq!(files.durable(), Ok(ticket));
            files.append("a", &[8; 2000]).unwrap();
            world.borrow_mut().power_cut(host);
            let mut kept = [0; 1000];
            files.read("a", 0, &mut kept).unwrap();
            assert_eq!(kept, [7; 1000]);
            lengths.insert(files.len("a").unwrap());
        }
        assert!(lengths.len() > 32, "lengths after the cut differ");
        assert!(lengths.iter().all(|len| (1000..=3000).contains(len)));
    }

    #[test]
    fn without_a_sync_a_new_file_may_be_gone_and_a_removed_one_may_be_back() {
        let outcomes: Vec<Vec<String>> = (0..64)
            .map(|seed| {
                let (world, host, mut files) = directory(seed);
                files.create("old").unwrap();
                files.sync("old").unwrap();
                world.borrow_mut().step();
                files.remove("old").unwrap();
                files.create("new").unwrap();
                world.borrow_mut().power_cut(host);
                files.names()
            })
            .collect();
        for expected in [vec![], vec!["new"], vec!["old"], vec!["new", "old"]] {
            assert!(outcomes.iter().any(|names| *names == expected), "{expected:?} never came");
        }
    }

    #[test]
    fn a_failed_sync_is_final_for_the_process() {
        let (world, host, mut files) = directory(1);
        files.create("a").unwrap();
        files.fail_syncs(1);
        files.sync("a").unwrap();
        world.borrow_mut().step();
        files.sync("a").unwrap();
        world.borrow_mut().step();
        assert_eq!(files.durable(), Err(FileError::Sync));
        let mut next = SimFiles::open(&world, host);
        let ticket = next.sync("a").unwrap();
        world.borrow_mut().step();
        assert_eq!(next.durable(), Ok(ticket));
    }

    #[test]
    fn what_does_not_exist_or_lies_outside_is_refused() {
        let (_, _, mut files) = directory(1);
        assert!(matches!(files.len("a"), Err(FileError::NotFound { .. })));
        files.create("a").unwrap();
        assert!(matches!(files.create("a"), Err(FileError::Exists { .. })));
        files.append("a", b"abc").unwrap();
        let read = files.read("a", u64::MAX, &mut [0; 2]);
        assert!(matches!(read, Err(FileError::OutOfRange { len: 3, .. })), "{read:?}");
    }
}
