//! State files as plain files of one directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmem::Ticket;
use replica::{FileError, StateFiles};

/// A directory of files named by their numbers.
#[derive(Debug)]
pub(crate) struct PlainFiles {
    dir: PathBuf,
    synced: Ticket,
}

impl PlainFiles {
    pub(crate) fn open(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        Self { dir: dir.to_owned(), synced: Ticket::default() }
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(id.to_string())
    }
}

fn failed(id: u64) -> impl Fn(std::io::Error) -> FileError {
    move |error| FileError { id, what: error.to_string() }
}

impl StateFiles for PlainFiles {
    fn create(&mut self, id: u64) -> Result<(), FileError> {
        File::create(self.path(id)).map(drop).map_err(failed(id))
    }

    fn append(&mut self, id: u64, bytes: &[u8]) -> Result<(), FileError> {
        let file = OpenOptions::new().append(true).open(self.path(id));
        file.and_then(|mut file| file.write_all(bytes)).map_err(failed(id))
    }

    fn sync(&mut self, id: u64) -> Result<Ticket, FileError> {
        File::open(self.path(id)).and_then(|file| file.sync_all()).map_err(failed(id))?;
        self.synced.0 += 1;
        Ok(self.synced)
    }

    fn synced(&mut self) -> Result<Ticket, FileError> {
        Ok(self.synced)
    }

    fn len(&self, id: u64) -> Option<u64> {
        fs::metadata(self.path(id)).ok().map(|metadata| metadata.len())
    }

    fn read(&self, id: u64, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let file = File::open(self.path(id));
        file.and_then(|file| file.read_exact_at(into, offset)).map_err(failed(id))
    }

    fn remove(&mut self, id: u64) {
        // It may not be there.
        fs::remove_file(self.path(id)).unwrap_or(());
    }

    fn list(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.dir).unwrap();
        entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect()
    }
}
