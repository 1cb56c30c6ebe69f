//! Windows: a peer's registered ranges, each mapped alone.
//!
//! A window is opened when its registration is first seen and unmapped when the registration has
//! been revoked; only then is the revocation acknowledged. Every use checks the registration in
//! the peer's table first, so that a window left over is never used.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use base::Durability;
use pmem::Mapping;

use super::board::{PeerError, open_file};
use super::layout::{
    REGION_LEN, REGIONS_MAX, REGISTRATIONS_MAX, RegionRecord, Registration, place_of_key,
    region_at, registration_at,
};
use crate::Status;

/// Windows that we have open with one peer. A leader needs a handful a group; when there are more,
/// one goes, and comes back at its next use. Sixteen such peers fill `pmem`'s table of mappings.
const WINDOWS_MAX: usize = 256;
const PAGE: u64 = 4096;

/// What a request wants to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Write,
}

/// A mapped registration.
#[derive(Debug)]
pub(crate) struct Window {
    key: u64,
    registration: Registration,
    pub(crate) durability: Durability,
    pub(crate) map: Mapping,
    /// Bytes of the mapping in front of the registration: mappings start on pages.
    lead: u64,
}

impl Window {
    /// Which of the peer's regions it is a part of.
    pub(crate) const fn region(&self) -> usize {
        self.registration.region
    }

    /// Where `offset` of the registration lies in the mapping.
    pub(crate) const fn at(&self, offset: u64) -> u64 {
        self.lead + offset
    }
}

/// A file of the peer's.
#[derive(Clone, Debug)]
struct PeerRegion {
    file: Arc<File>,
    name: String,
    len: u64,
    durability: Durability,
}

/// The windows into one peer instance.
#[derive(Debug)]
pub(crate) struct Windows {
    board: Arc<Mapping>,
    windows: Vec<Window>,
    regions: [Option<PeerRegion>; REGIONS_MAX],
}

impl Windows {
    /// None yet, into the regions that `board` names.
    pub(crate) fn new(board: Arc<Mapping>) -> Self {
        let regions = [const { None }; REGIONS_MAX];
        Self { board, windows: Vec::with_capacity(WINDOWS_MAX), regions }
    }

    /// The window of `key`, if `pair` has the right to do `want` with `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Status::RemoteAccess`].
    pub(crate) fn find(
        &mut self,
        key: u64,
        pair: u64,
        want: Want,
        (offset, len): (u64, u64),
    ) -> Result<&Window, Status> {
        let registration = read_registration(&self.board, key).ok_or(Status::RemoteAccess)?;
        let is_writer = registration.writer == pair;
        let may = is_writer || (want == Want::Read && registration.writer == 0);
        let fits = offset.checked_add(len).is_some_and(|end| end <= registration.len);
        if !may || !fits {
            return Err(Status::RemoteAccess);
        }
        let is_open = |window: &Window| window.key == key && window.registration == registration;
        let index = match self.windows.iter().position(is_open) {
            Some(index) => index,
            None => self.open(key, registration).map_err(|_| Status::RemoteAccess)?,
        };
        Ok(&self.windows[index])
    }

    /// Opens every window that `pair` may use and that there is room for, ahead of its first use.
    pub(crate) fn open_ahead(&mut self, pair: u64) {
        for place in 0..REGISTRATIONS_MAX {
            let key = self.board.load(registration_at(place));
            let Some(registration) = read_registration(&self.board, key) else { continue };
            let is_ours = registration.writer == 0 || registration.writer == pair;
            if is_ours && self.windows.len() < WINDOWS_MAX {
                // A range that cannot be mapped now fails the request that needs it.
                let _ = self.open(key, registration);
            }
        }
    }

    /// Unmaps every window whose registration is gone.
    pub(crate) fn close_revoked(&mut self) {
        let board = &self.board;
        self.windows.retain(|window| {
            read_registration(board, window.key).as_ref() == Some(&window.registration)
        });
    }

    /// Unmaps all.
    pub(crate) fn close_all(&mut self) {
        self.windows.clear();
    }

    /// The file of a region that has a window.
    pub(crate) fn file(&self, region: usize) -> Option<Arc<File>> {
        self.regions.get(region)?.as_ref().map(|region| Arc::clone(&region.file))
    }

    fn open(&mut self, key: u64, registration: Registration) -> Result<usize, PeerError> {
        if let Some(index) = self.windows.iter().position(|window| window.key == key) {
            if self.windows[index].registration == registration {
                return Ok(index);
            }
            self.windows.swap_remove(index);
        }
        if self.windows.len() == WINDOWS_MAX {
            self.close_revoked();
        }
        if self.windows.len() == WINDOWS_MAX {
            // The oldest; not one that was opened just now, for a chain that is under way.
            self.windows.remove(0);
        }
        let region = self.region(registration.region)?;
        let end = registration.offset + registration.len;
        if end > region.len {
            return Err(PeerError::File {
                path: region.name.into(),
                what: "a registration passes the region's end",
            });
        }
        let start = registration.offset / PAGE * PAGE;
        let lead = registration.offset - start;
        let file = region
            .file
            .try_clone()
            .map_err(|source| PeerError::System { path: region.name.clone().into(), source })?;
        let range = start..end.next_multiple_of(PAGE);
        let map = Mapping::open_peer_fd(file.into(), &region.name, range)?;
        let durability = region.durability;
        self.windows.push(Window { key, registration, durability, map, lead });
        Ok(self.windows.len() - 1)
    }

    fn region(&mut self, index: usize) -> Result<PeerRegion, PeerError> {
        if let Some(region) = &self.regions[index] {
            return Ok(region.clone());
        }
        let mut bytes = [0; REGION_LEN];
        self.board.copy_out(region_at(index), &mut bytes);
        let record = RegionRecord::decode(&bytes)
            .map_err(|source| PeerError::Layout { path: self.board.name().into(), source })?;
        let path = Path::new(std::ffi::OsStr::from_bytes(&record.path));
        let (file, metadata) = open_file(path)?;
        let refuse = |what| PeerError::File { path: path.to_owned(), what };
        if (metadata.dev(), metadata.ino()) != (record.device, record.inode) {
            return Err(refuse("not the file that the peer has attached"));
        }
        if metadata.len() < record.len {
            return Err(refuse("shorter than the peer's region"));
        }
        let region = PeerRegion {
            file: Arc::new(file),
            name: path.display().to_string(),
            len: record.len,
            durability: record.durability,
        };
        self.regions[index] = Some(region.clone());
        Ok(region)
    }
}

/// The registration of `key`, if it is in force.
///
/// Inlined, and word by word: a value that goes through memory in words and comes back in vectors
/// makes the processor wait until every store before it, the WRITE's own, has left its buffer.
#[inline(always)]
fn read_registration(board: &Mapping, key: u64) -> Option<Registration> {
    let at = registration_at(place_of_key(key));
    if key == 0 || board.load(at) != key {
        return None;
    }
    let (region, writer) = (board.load(at + 8), board.load(at + 16));
    let (offset, len) = (board.load(at + 24), board.load(at + 32));
    // Unchanged: the words between belong to this key.
    if board.load(at) != key {
        return None;
    }
    Registration::decode([region, writer, offset, len]).ok()
}

#[cfg(test)]
mod tests {
    use base::Random;

    use super::*;
    use crate::shm::layout;

    /// Goal: a table with any content whatever neither panics its reader nor opens a window onto
    /// what is not there. Method: random registrations and region records, every key tried.
    #[test]
    fn a_table_of_noise_opens_nothing() {
        let board = Arc::new(Mapping::anonymous(layout::BOARD_LEN).unwrap());
        let mut windows = Windows::new(Arc::clone(&board));
        let mut random = Random::new(3);
        for round in 0..20_000_u64 {
            let key = random.next();
            let at = registration_at(place_of_key(key));
            board.store(at, key);
            board.store(at + 8, random.below(REGIONS_MAX as u64 + 2));
            board.store(at + 16, random.below(3));
            board.store(at + 24, random.next() >> random.below(64));
            board.store(at + 32, random.next() >> random.below(64));
            board.store(region_at(0) + random.below(64) * 8, random.next());
            let found = windows.find(key, 1, Want::Write, (random.below(1 << 40), round));
            assert!(matches!(found, Err(Status::RemoteAccess)));
        }
        assert!(windows.windows.is_empty());
    }
}
