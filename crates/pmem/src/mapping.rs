//! Memory of a file, of a passed descriptor or of nobody, mapped, and what may be done with it.
//!
//! # Invariants
//! - No reference into the memory exists, ever: another thread or process may store at any moment.
//!   Bytes are copied in and out ([`crate::words`]).
//! - Every access is inside the mapping: checked with assertions that stay on in release builds.
//! - A store or load never ends the process ([`crate::sigbus`]). If memory was missing, what was
//!   read is zeros and what was stored is lost; [`Mapping::health`] says so from then on. Trust
//!   neither before it has said `Ok` *behind* the access.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::backing::backing_of_file;
use crate::file::RegionFile;
use crate::lines::NON_TEMPORAL_LEN_MIN;
use crate::sigbus::{PAGE, Watch};
use crate::{Backing, LINE, MapError, RegionError, WriteBack, file, lines, words};

/// Mapped memory, shared by whoever holds it (usually in an `Arc`); unmapped with the last of them.
#[derive(Debug)]
pub struct Mapping {
    // Invariant: dropped before `pages`, see `sigbus`.
    watch: Watch,
    pages: Pages,
    name: String,
    backing: Option<Backing>,
    file: Option<RegionFile>,
    /// Where the mapping starts in the file, in bytes.
    file_offset: u64,
    write_back: WriteBack,
    write_delay_ns: u32,
}

impl Mapping {
    /// Creates a file of `len` bytes, allocated in full and durable, and owns it.
    ///
    /// # Errors
    /// [`MapError`]; a file of this name does not exist then, or is not ours.
    pub fn create(path: &Path, len: u64) -> Result<Self, MapError> {
        let name = path.display().to_string();
        check_len(&name, len)?;
        let (file, unfinished) = file::create(path, len)?;
        let mapping = Self::of_file(file, name, 0..len)?;
        unfinished.publish(path)?;
        Ok(mapping)
    }

    /// Opens the first `len` bytes of an existing file and owns it.
    ///
    /// # Errors
    /// [`MapError`], among them `Truncated` and `InUse`.
    pub fn open(path: &Path, len: u64) -> Result<Self, MapError> {
        Self::of_file(file::open_owned(path)?, path.display().to_string(), 0..len)
    }

    /// Opens `range` of a file that another member owns, to store into it and to read it. Offsets
    /// of the mapping count from `range.start`: no other byte of the file can be reached. A
    /// descriptor of another process may be named as `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// [`MapError`], among them `Truncated`.
    pub fn open_peer(path: &Path, range: Range<u64>) -> Result<Self, MapError> {
        Self::of_file(file::open_shared(path)?, path.display().to_string(), range)
    }

    /// As [`Self::open_peer`], for a descriptor that was passed; `name` stands in errors.
    ///
    /// # Errors
    /// [`MapError`], among them `Truncated`.
    pub fn open_peer_fd(fd: OwnedFd, name: &str, range: Range<u64>) -> Result<Self, MapError> {
        Self::of_file(RegionFile::shared(File::from(fd)), name.to_owned(), range)
    }

    /// `len` bytes of memory that only this process can reach. Pages are taken at first use.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn anonymous(len: u64) -> Result<Self, MapError> {
        let name = "anonymous memory".to_owned();
        let pages = Pages::anonymous(&name, check_len(&name, len)?)?;
        Self::of_pages(pages, name)
    }

    /// `len` bytes of memory behind a descriptor ([`Self::fd`]) that another process may map.
    /// Taken in full now, and sealed: nobody can truncate it.
    ///
    /// # Errors
    /// [`MapError`], among them `NoSpace`.
    pub fn memfd(name: &str, len: u64) -> Result<Self, MapError> {
        check_len(name, len)?;
        let system = |doing| move |error| MapError::system(name, doing, error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags).map_err(system("create"))?;
        fallocate(&fd, FallocateFlags::empty(), 0, len)
            .map_err(|_| MapError::NoSpace { path: name.to_owned(), len })?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(system("seal"))?;
        Self::of_file(RegionFile::shared(File::from(fd)), name.to_owned(), 0..len)
    }

    /// Adds a delay of `ns` nanoseconds to every range that is persisted or written back: the
    /// write latency of memory slower than what is there, as the paper emulates it with 150 ns.
    /// Spent spinning. Off (0) by default; for measurements only.
    #[must_use]
    pub const fn with_write_delay_ns(mut self, ns: u32) -> Self {
        self.write_delay_ns = ns;
        self
    }

    fn of_file(file: RegionFile, name: String, range: Range<u64>) -> Result<Self, MapError> {
        let len = range.end.saturating_sub(range.start);
        let map_len = check_len(&name, len)?;
        if !range.start.is_multiple_of(PAGE as u64) {
            return Err(MapError::Length { path: name, start: range.start, len });
        }
        let system = |doing| {
            let name = &name;
            move |error| MapError::system(name, doing, error)
        };
        let metadata = file.file.metadata().map_err(system("look at"))?;
        if !metadata.is_file() {
            return Err(MapError::NotAFile { path: name });
        }
        if metadata.len() < range.end {
            return Err(MapError::Truncated {
                path: name,
                expected: range.end,
                found: metadata.len(),
            });
        }
        let backing = backing_of_file(&file.file).map_err(system("look at the file system of"))?;
        let pages = Pages::of_file(&name, &file.file, range.start, map_len)?;
        let mapping = Self::of_pages(pages, name)?;
        Ok(Self { file: Some(file), file_offset: range.start, backing: Some(backing), ..mapping })
    }

    fn of_pages(pages: Pages, name: String) -> Result<Self, MapError> {
        let watch = Watch::new(pages.base.as_ptr(), pages.len)
            .map_err(|error| MapError::system(&name, "install the SIGBUS handler for", error))?;
        let Some(watch) = watch else { return Err(MapError::TooMany { path: name }) };
        Ok(Self {
            watch,
            pages,
            name,
            backing: None,
            file: None,
            file_offset: 0,
            write_back: WriteBack::detect(),
            write_delay_ns: 0,
        })
    }

    /// Bytes mapped.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.pages.len as u64
    }

    /// Whether no byte is mapped: never, but asked where there is a `len`.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pages.len == 0
    }

    /// The file's path, or what the memory is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the file lies on; `None` for anonymous memory.
    #[must_use]
    pub const fn backing(&self) -> Option<Backing> {
        self.backing
    }

    /// The descriptor of the file, to pass it to a peer; `None` for anonymous memory.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.file.as_fd())
    }

    /// The instruction that [`Self::write_back`] uses.
    #[must_use]
    pub const fn write_back_instruction(&self) -> WriteBack {
        self.write_back
    }

    /// Copies bytes out; aligned 8-byte words come out whole.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn copy_out(&self, at: u64, into: &mut [u8]) {
        let from = self.place(at, into.len() as u64);
        // SAFETY: `place` has checked that the range is mapped, and `self` keeps it so; no reference
        // into a mapping exists.
        unsafe { words::copy_out(from, into) };
    }

    /// Copies bytes in, by stores in ascending order; aligned 8-byte words go in whole.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn copy_in(&self, at: u64, from: &[u8]) {
        let to = self.place(at, from.len() as u64);
        // SAFETY: as in `copy_out`; the memory is mapped writable.
        unsafe { words::copy_in(to, from) };
    }

    /// Copies bytes in, in any order, all of them visible before any later store of this thread:
    /// for payloads, which nobody looks at before something stored behind them says so. From
    /// 4 KiB on the stores go past the cache.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn copy_in_unordered(&self, at: u64, from: &[u8]) {
        if from.len() < NON_TEMPORAL_LEN_MIN {
            return self.copy_in(at, from);
        }
        let to = self.place(at, from.len() as u64);
        // SAFETY: as in `copy_in`.
        unsafe { lines::copy_in_unordered(to, from) };
    }

    /// One aligned 8-byte load, never torn.
    ///
    /// # Panics
    /// When the word is not inside the mapping or `at` is no multiple of 8.
    #[must_use]
    pub fn load(&self, at: u64) -> u64 {
        let place = self.word(at);
        // SAFETY: `word` has checked that the aligned word is mapped, and `self` keeps it so.
        u64::from_le(unsafe { place.read_volatile() })
    }

    /// One aligned 8-byte store, never torn.
    ///
    /// # Panics
    /// When the word is not inside the mapping or `at` is no multiple of 8.
    pub fn store(&self, at: u64, value: u64) {
        let place = self.word(at);
        // SAFETY: as in `load`; the memory is mapped writable.
        unsafe { place.write_volatile(value.to_le()) };
    }

    /// Begins to write back every line that `range` touches. They are written back once a
    /// [`Self::fence`] behind this is done.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn write_back(&self, range: Range<u64>) {
        self.check_range(&range);
        let mut at = range.start - range.start % LINE;
        while at < range.end {
            let line = self.place(at, 1);
            // SAFETY: `place` has checked the address; the instruction was detected.
            unsafe { self.write_back.line(line) };
            at += LINE;
        }
        self.spend_write_delay();
    }

    /// A full fence: every earlier store and write-back of this thread is done before any later
    /// load.
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Makes everything stored so far durable as the file system means it; blocks. Nothing to do
    /// for anonymous memory.
    ///
    /// A failed sync must not be repeated: the kernel has dropped the pages' dirty marks, so the
    /// next one would succeed without having written them.
    ///
    /// # Errors
    /// [`RegionError::Sync`] when the file system could not, [`RegionError::Gone`] when the file
    /// has become shorter.
    pub fn sync(&self) -> Result<(), RegionError> {
        if let Some(file) = &self.file {
            file.file.sync_data().map_err(|error| self.sync_error(&error))?;
        }
        // The file may have been truncated behind stores that were already done: those raise no
        // fault, and a sync of what is left succeeds.
        self.check_len()
    }

    /// Looks whether the file still has all bytes of the mapping: one system call. Where nobody
    /// syncs, this finds a truncation before a page of it is touched.
    ///
    /// # Errors
    /// [`RegionError::Gone`], also from earlier; [`RegionError::Sync`] when the file cannot be
    /// looked at.
    pub fn check_len(&self) -> Result<(), RegionError> {
        if let Some(file) = &self.file {
            let found = file.file.metadata().map_err(|error| self.sync_error(&error))?.len();
            if found < self.file_offset + self.len() {
                self.watch.mark_gone(found.saturating_sub(self.file_offset));
            }
        }
        self.health()
    }

    /// Whether no byte was found missing up to now. No system call. Accesses of this thread before
    /// this call are covered.
    ///
    /// # Errors
    /// [`RegionError::Gone`], for ever once it came.
    pub fn health(&self) -> Result<(), RegionError> {
        self.watch
            .gone()
            .map_or(Ok(()), |at| Err(RegionError::Gone { path: self.name.clone(), at }))
    }

    fn sync_error(&self, error: &io::Error) -> RegionError {
        RegionError::Sync { path: self.name.clone(), what: error.to_string() }
    }

    /// Spins for the write delay, if there is one.
    pub(crate) fn spend_write_delay(&self) {
        if self.write_delay_ns == 0 {
            return;
        }
        let delay = Duration::from_nanos(u64::from(self.write_delay_ns));
        let start = Instant::now();
        while start.elapsed() < delay {
            std::hint::spin_loop();
        }
    }

    pub(crate) fn check_range(&self, range: &Range<u64>) {
        assert!(range.start <= range.end, "{}: {range:?} runs backwards", self.name);
        self.place(range.start, range.end - range.start);
    }

    /// The address of `at`, with `len` mapped bytes from there.
    fn place(&self, at: u64, len: u64) -> *mut u8 {
        let all = self.len();
        assert!(at <= all, "{}: offset {at} is behind the end {all}", self.name);
        assert!(len <= all - at, "{}: {len} bytes at {at} pass the end {all}", self.name);
        self.pages.base.as_ptr().wrapping_add(host_len(at))
    }

    fn word(&self, at: u64) -> *mut u64 {
        assert!(at.is_multiple_of(8), "{}: word at {at} is not aligned", self.name);
        self.place(at, 8).cast()
    }
}

/// The owned address range.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    /// Bytes. Invariant: a positive multiple of `PAGE`.
    len: usize,
}

// SAFETY: the pages belong to the process, not to a thread; all accesses through the address are
// volatile and made for memory that others write at the same time.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn of_file(name: &str, file: &File, offset: u64, len: usize) -> Result<Self, MapError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address without MAP_FIXED: the kernel picks a range that nobody has.
        let base =
            unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) };
        Self::new(name, base.map_err(|error| MapError::system(name, "map", error))?.cast(), len)
    }

    fn anonymous(name: &str, len: usize) -> Result<Self, MapError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address without MAP_FIXED: the kernel picks a range that nobody has.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        Self::new(name, base.map_err(|error| MapError::system(name, "map", error))?.cast(), len)
    }

    fn new(name: &str, base: *mut u8, len: usize) -> Result<Self, MapError> {
        NonNull::new(base)
            .map(|base| Self { base, len })
            .ok_or_else(|| MapError::system(name, "map", io::Error::other("mapped at address 0")))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is what this value mapped, and no reference into it exists.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        assert!(unmapped.is_ok(), "a whole mapping can be unmapped: {unmapped:?}");
    }
}

/// Checks a length from outside.
fn check_len(name: &str, len: u64) -> Result<usize, MapError> {
    usize::try_from(len)
        .ok()
        .filter(|len| *len > 0 && len.is_multiple_of(PAGE) && *len <= isize::MAX.unsigned_abs())
        .ok_or_else(|| MapError::Length { path: name.to_owned(), start: 0, len })
}

fn host_len(len: u64) -> usize {
    usize::try_from(len).expect("a length inside a mapping is an address's difference")
}
