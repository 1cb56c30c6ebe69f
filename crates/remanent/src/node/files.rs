//! State files in a member's directory, written by a thread of their own.
//!
//! ```text
//!   shard thread                       writer thread
//!   append(bytes) --bounded queue-->   write, fsync, fsync of the directory
//!   synced()      <--a number-------   tickets done
//! ```
//!
//! Writing gigabytes makes the kernel hold the writer back at times; the shard must not wait with
//! it. What was appended is in memory until the writer has taken it: never more than
//! [`QUEUED_BYTES_MAX`] and one chunk.
//!
//! # Invariants
//! - Jobs are done in order. A ticket is durable once its file and its name are.
//! - The first failed write of a file spoils that file, and no other: every later call for it
//!   returns the error, and its ticket says nothing.
//! - A failed sync is final: `synced` returns it from then on.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use pmem::Ticket;
use replica::{FileError, StateFiles};

/// Bytes that may wait for the writer.
const QUEUED_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a file that may wait in the page cache for the disk. More would be written in one burst,
/// and while the kernel works off such a burst it holds up whoever stores into a mapped log on the
/// same disk, this member's loop among them.
const UNWRITTEN_BYTES_MAX: u64 = 16 << 20;
const SUFFIX: &str = ".state";

enum Job {
    Create(u64),
    Append(u64, Vec<u8>),
    Sync(u64, Ticket),
    Remove(u64),
}

#[derive(Debug, Default)]
struct Shared {
    queued_bytes: AtomicU64,
    durable: AtomicU64,
    sync_failure: OnceLock<FileError>,
    /// Files whose writing failed, and why.
    spoiled: Mutex<HashMap<u64, String>>,
}

/// The state files of one member.
#[derive(Debug)]
pub(crate) struct DirectoryFiles {
    dir: PathBuf,
    /// Whether a sync reaches the medium; otherwise it is done once the bytes are written.
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    issued: Ticket,
    /// Length of every file, with what still waits for the writer.
    lengths: HashMap<u64, u64>,
    /// The file that was read last.
    open: Mutex<Option<(u64, Arc<File>)>>,
}

impl DirectoryFiles {
    /// The files in `dir`, which is made if it is not there. `wake` is called, on another thread,
    /// when `synced` or `has_room` has news.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn open(
        dir: &Path,
        reaches_medium: bool,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut lengths = HashMap::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if let Some(id) = entry.file_name().to_str().and_then(number_of) {
                lengths.insert(id, entry.metadata()?.len());
            }
        }
        let shared = Arc::new(Shared::default());
        let (jobs, queue) = channel();
        let writer = Writer {
            dir: dir.to_owned(),
            reaches_medium,
            shared: Arc::clone(&shared),
            open: None,
            unwritten_bytes: 0,
        };
        let writer = std::thread::Builder::new()
            .name("state-files".to_owned())
            .spawn(move || writer.run(&queue, &wake))?;
        Ok(Self {
            dir: dir.to_owned(),
            shared,
            jobs: Some(jobs),
            writer: Some(writer),
            issued: Ticket(0),
            lengths,
            open: Mutex::new(None),
        })
    }

    fn give(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The writer ends only after the sender has been dropped.
            let _sent = jobs.send(job);
        }
    }

    fn check(&self, id: u64) -> Result<(), FileError> {
        let spoiled = self.shared.spoiled.lock().unwrap_or_else(PoisonError::into_inner);
        match spoiled.get(&id) {
            Some(what) => Err(FileError { id, what: what.clone() }),
            None if self.lengths.contains_key(&id) => Ok(()),
            None => Err(FileError { id, what: "no such file".to_owned() }),
        }
    }

    fn opened(&self, id: u64) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.as_ref().filter(|(of, _)| *of == id) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(path_of(&self.dir, id))?);
        *open = Some((id, Arc::clone(&file)));
        Ok(file)
    }

    fn forget_open(&self, id: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_some_and(|(of, _)| *of == id) {
            *open = None;
        }
    }
}

impl StateFiles for DirectoryFiles {
    fn create(&mut self, id: u64) -> Result<(), FileError> {
        self.forget_open(id);
        self.lengths.insert(id, 0);
        self.give(Job::Create(id));
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.shared.queued_bytes.load(Ordering::Acquire) < QUEUED_BYTES_MAX
    }

    fn health(&self, id: u64) -> Result<(), FileError> {
        self.check(id)
    }

    fn append(&mut self, id: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.check(id)?;
        let len = bytes.len() as u64;
        self.shared.queued_bytes.fetch_add(len, Ordering::AcqRel);
        *self.lengths.entry(id).or_default() += len;
        self.give(Job::Append(id, bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self, id: u64) -> Result<Ticket, FileError> {
        self.check(id)?;
        self.issued = Ticket(self.issued.0 + 1);
        self.give(Job::Sync(id, self.issued));
        Ok(self.issued)
    }

    fn synced(&mut self) -> Result<Ticket, FileError> {
        match self.shared.sync_failure.get() {
            Some(error) => Err(error.clone()),
            None => Ok(Ticket(self.shared.durable.load(Ordering::Acquire))),
        }
    }

    fn len(&self, id: u64) -> Option<u64> {
        self.lengths.get(&id).copied()
    }

    fn read(&self, id: u64, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let read = self.opened(id).and_then(|file| file.read_exact_at(into, offset));
        read.map_err(|error| FileError { id, what: error.to_string() })
    }

    fn remove(&mut self, id: u64) {
        if self.lengths.remove(&id).is_some() {
            self.forget_open(id);
            self.give(Job::Remove(id));
        }
    }

    fn list(&self) -> Vec<u64> {
        self.lengths.keys().copied().collect()
    }
}

impl Drop for DirectoryFiles {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take() {
            let ended = writer.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the state file writer panicked");
        }
    }
}

fn path_of(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(SUFFIX)?.parse().ok()
}

struct Writer {
    dir: PathBuf,
    reaches_medium: bool,
    shared: Arc<Shared>,
    /// The file being written.
    open: Option<(u64, File)>,
    /// Bytes appended since the page cache was written out last.
    unwritten_bytes: u64,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Job>, wake: &dyn Fn()) {
        for job in queue {
            match job {
                Job::Create(id) => {
                    self.spoiled().remove(&id);
                    match self.create(id) {
                        Ok(file) => self.open = Some((id, file)),
                        Err(error) => self.spoil(id, &error),
                    }
                }
                Job::Append(id, bytes) => {
                    if let Err(error) = self.append(id, &bytes) {
                        self.spoil(id, &error);
                    }
                    let len = bytes.len() as u64;
                    let before = self.shared.queued_bytes.fetch_sub(len, Ordering::AcqRel);
                    if before >= QUEUED_BYTES_MAX {
                        wake();
                    }
                }
                Job::Sync(id, ticket) => {
                    self.sync(id, ticket);
                    wake();
                }
                Job::Remove(id) => {
                    self.open.take_if(|(of, _)| *of == id);
                    // What cannot be removed now is swept at the next start.
                    let _gone = std::fs::remove_file(path_of(&self.dir, id));
                    self.spoiled().remove(&id);
                }
            }
        }
    }

    fn create(&self, id: u64) -> io::Result<File> {
        let path = path_of(&self.dir, id);
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
    }

    fn append(&mut self, id: u64, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.open {
            Some((of, file)) if *of == id => file,
            open => {
                let file = OpenOptions::new().append(true).open(path_of(&self.dir, id))?;
                &mut open.insert((id, file)).1
            }
        };
        file.write_all(bytes)?;
        self.unwritten_bytes += bytes.len() as u64;
        if self.unwritten_bytes >= UNWRITTEN_BYTES_MAX {
            // Should this fail, the file is spoiled and no ticket covers it.
            self.unwritten_bytes = 0;
            file.sync_data()?;
        }
        Ok(())
    }

    fn sync(&mut self, id: u64, ticket: Ticket) {
        let is_spoiled = self.spoiled().contains_key(&id);
        let synced =
            if is_spoiled || !self.reaches_medium { Ok(()) } else { self.sync_to_medium(id) };
        match synced {
            Ok(()) => self.shared.durable.store(ticket.0, Ordering::Release),
            Err(error) => {
                let what = format!("cannot be made durable: {error}");
                self.shared.sync_failure.get_or_init(|| FileError { id, what });
            }
        }
    }

    fn sync_to_medium(&mut self, id: u64) -> io::Result<()> {
        match &self.open {
            Some((of, file)) if *of == id => file.sync_all()?,
            Some(_) | None => File::open(path_of(&self.dir, id))?.sync_all()?,
        }
        File::open(&self.dir)?.sync_all()
    }

    fn spoil(&self, id: u64, error: &io::Error) {
        self.spoiled().entry(id).or_insert_with(|| error.to_string());
    }

    fn spoiled(&self) -> std::sync::MutexGuard<'_, HashMap<u64, String>> {
        self.shared.spoiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
