//! Boards: one's own, and a peer's as it is opened.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Incarnation, MemberId};
use pmem::{MapError, Mapping};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::rand::GetRandomFlags;

use super::elder::Elder;
use super::futex::{FutexPage, Holder, is_alive};
use super::layout::{self, BOARD_LEN, HEADER_LEN, Header, LayoutError};
use super::process::{Origin, OwnerError, Process};

/// Owner only: whoever can open a board can write into its owner's memory.
const MODE: u32 = 0o600;

/// Why the provider could not be made, or a region not be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A living instance has this member's board.
    #[error("{}: member {member} is running already", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// The member.
        member: MemberId,
    },
    /// The operating system said no.
    #[error("{}: cannot {doing}: {source}", path.display())]
    System {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// As many regions are attached as a board can name.
    #[error("{} regions are attached already, which is the limit", layout::REGIONS_MAX)]
    TooManyRegions,
    /// The path of a region does not fit its record.
    #[error("{}: longer than {} bytes", path.display(), layout::PATH_MAX)]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
}

/// Why a peer's board, or a region that it names, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The operating system said no; a peer that has not started yet is `NotFound`.
    #[error("{}: {source}", path.display())]
    System {
        /// Which file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {what}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The bytes are not those of a board.
    #[error("{}: {source}", path.display())]
    Layout {
        /// Which file.
        path: PathBuf,
        /// What is wrong with them.
        source: LayoutError,
    },
    /// Its owner cannot be watched.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// It could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It has no slot for us: it has not looked yet, or has as many peers as it can have.
    #[error("member {0} has not answered yet, or has no room for another peer")]
    NoSlot(MemberId),
}

/// A random number that is not 0.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

fn board_path(dir: &Path, member: MemberId) -> PathBuf {
    dir.join(format!("{}.board", member.0))
}

/// The doorbell of a board, ours or a peer's.
#[derive(Clone, Debug)]
pub(crate) struct Doorbell {
    board: Arc<Mapping>,
    page: Arc<FutexPage>,
}

impl Doorbell {
    /// Rings with a number that nobody else rings with, so that the word always changes: see
    /// [`Ringer`].
    pub(crate) fn ring(&self, number: u32) {
        self.board.store(layout::DOORBELL_AT, u64::from(number));
        self.board.fence();
        if self.board.load(layout::ASLEEP_AT) != 0 {
            self.page.wake(layout::DOORBELL_AT);
        }
    }

    /// Whether the owner may sleep. Whoever has stored something for it fences before it asks.
    pub(crate) fn may_sleep(&self) -> bool {
        self.board.load(layout::ASLEEP_AT) != 0
    }

    /// What the doorbell shows.
    pub(crate) fn number(&self) -> u64 {
        self.board.load(layout::DOORBELL_AT)
    }

    /// Announces that the owner may sleep; returns what the doorbell shows after that.
    pub(crate) fn arm(&self) -> u64 {
        self.board.store(layout::ASLEEP_AT, 1);
        self.board.fence();
        self.number()
    }

    /// Sleeps unless it has been rung since [`Self::arm`] returned `armed`.
    pub(crate) fn wait(&self, armed: u64, timeout: std::time::Duration) {
        let shown = u32::try_from(armed & u64::from(u32::MAX)).unwrap_or(0);
        if !timeout.is_zero() && self.number() == armed {
            self.page.wait(layout::DOORBELL_AT, shown, timeout);
        }
        self.board.store(layout::ASLEEP_AT, 0);
    }
}

/// Draws the numbers of one ringer: 6 bits say who, 26 bits count.
///
/// Two peers that ring at the same time store different numbers, so a sleeper that has seen one
/// still sees a change; a plain store is enough, and nobody adds to a word of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ringer {
    count: u32,
}

impl Ringer {
    /// `who` of one that has no slot at the rung one yet.
    pub(crate) const STRANGER: u32 = 63;
    /// `who` of the owner's syncers.
    pub(crate) const SELF: u32 = 62;
    /// `who` of the owner's other threads.
    pub(crate) const WAKER: u32 = 61;

    pub(crate) const fn new(start: u32) -> Self {
        Self { count: start }
    }

    pub(crate) const fn next(&mut self, who: u32) -> u32 {
        self.count = self.count.wrapping_add(1);
        (who << 26) | (self.count & 0x03ff_ffff)
    }
}

/// This instance's board. Dropping it closes it: nothing is stored by the instance after that.
#[derive(Debug)]
pub(crate) struct OwnBoard {
    pub(crate) map: Arc<Mapping>,
    pub(crate) doorbell: Doorbell,
    pub(crate) instance: u64,
    path: PathBuf,
    holder: Option<Holder>,
    /// Who may still write through our earlier life; found before this one was shown.
    pub(crate) elders: Vec<Elder>,
    /// Held while we live, and while whoever else shares it removes what it has made.
    pub(crate) lock: Arc<File>,
}

impl OwnBoard {
    /// Makes the board of `member` in `dir` and shows it.
    ///
    /// # Errors
    /// [`ShmError`].
    pub(crate) fn create(
        dir: &Path,
        member: MemberId,
        incarnation: Incarnation,
    ) -> Result<Self, ShmError> {
        let lock = Arc::new(lock(dir, member)?);
        let path = board_path(dir, member);
        let aside = dir.join(format!("{}.board.new", member.0));
        let fail = |doing| {
            let path = path.clone();
            move |source: io::Error| ShmError::System { path, doing, source }
        };
        let file = create_file(&aside).map_err(fail("create"))?;
        let name = path.display().to_string();
        let page = Arc::new(FutexPage::map(&file).map_err(fail("map"))?);
        let map = Arc::new(Mapping::open_peer_fd(file.into(), &name, 0..BOARD_LEN)?);
        let instance = random().map_err(fail("draw a random number for"))?;
        let origin = Origin::here().map_err(fail("find out about this process for"))?;
        let header = Header {
            member,
            instance,
            incarnation: incarnation.0,
            pid: origin.pid,
            start_time: origin.start_time,
            pid_namespace: origin.pid_namespace,
            boot: origin.boot,
        };
        map.copy_in(0, &header.encode());
        let elders =
            Elder::find(dir, member, instance).map_err(fail("look for old writers beside"))?;
        let holder = Holder::take(&map, &page, layout::ALIVE_AT).map_err(fail("show life in"))?;
        std::fs::rename(&aside, &path).map_err(fail("rename into place"))?;
        let doorbell = Doorbell { board: Arc::clone(&map), page };
        Ok(Self { map, doorbell, instance, path, holder: Some(holder), elders, lock })
    }
}

impl OwnBoard {
    /// Says that this instance stores nothing any more in any peer's memory.
    pub(crate) fn close(&self) {
        self.map.store(layout::CLOSED_AT, 1);
    }
}

impl Drop for OwnBoard {
    fn drop(&mut self) {
        self.close();
        drop(self.holder.take());
        // Left behind, it is refused for its `closed`; the next instance replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(dir: &Path, member: MemberId) -> Result<File, ShmError> {
    let path = dir.join(format!("{}.lock", member.0));
    let file = OpenOptions::new().read(true).append(true).create(true).mode(MODE).open(&path);
    let fail = |doing| {
        let path = path.clone();
        move |source| ShmError::System { path, doing, source }
    };
    let file = file.map_err(fail("open"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ShmError::InUse { path, member }),
        Err(TryLockError::Error(source)) => Err(fail("lock")(source)),
    }
}

/// A file of zeros that is there in full, so that a store cannot find the file system full.
fn create_file(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BOARD_LEN)?;
    Ok(file)
}

/// Opens a file that another process names: a regular one of our own user, never through a link.
///
/// # Errors
/// [`PeerError`].
pub(crate) fn open_file(path: &Path) -> Result<(File, std::fs::Metadata), PeerError> {
    let system = |source| PeerError::System { path: path.to_owned(), source };
    let no_links = OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(no_links.cast_signed())
        .open(path)
        .map_err(system)?;
    let metadata = file.metadata().map_err(system)?;
    let refuse = |what| PeerError::File { path: path.to_owned(), what };
    if !metadata.is_file() {
        return Err(refuse("not a regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("belongs to another user"));
    }
    Ok((file, metadata))
}

/// A peer's board.
#[derive(Debug)]
pub(crate) struct PeerBoard {
    pub(crate) map: Arc<Mapping>,
    pub(crate) doorbell: Doorbell,
    pub(crate) instance: u64,
    pub(crate) process: Process,
}

impl PeerBoard {
    /// Opens the board of `peer` in `dir`.
    ///
    /// # Errors
    /// [`PeerError`], also when its owner has ended.
    pub(crate) fn open(dir: &Path, peer: MemberId) -> Result<Self, PeerError> {
        let path = board_path(dir, peer);
        let (file, metadata) = open_file(&path)?;
        if metadata.len() < BOARD_LEN {
            return Err(PeerError::File { path, what: "too short for a board" });
        }
        let page = FutexPage::map(&file)
            .map_err(|source| PeerError::System { path: path.clone(), source })?;
        let name = path.display().to_string();
        let map = Arc::new(Mapping::open_peer_fd(file.into(), &name, 0..BOARD_LEN)?);
        let mut header = [0; HEADER_LEN];
        map.copy_out(0, &mut header);
        let header = Header::decode(&header)
            .map_err(|source| PeerError::Layout { path: path.clone(), source })?;
        if header.member != peer {
            return Err(PeerError::File { path, what: "the board of another member" });
        }
        let process = Process::of(&header)?;
        let doorbell = Doorbell { board: Arc::clone(&map), page: Arc::new(page) };
        let board = Self { map, doorbell, instance: header.instance, process };
        if !board.is_alive() {
            return Err(PeerError::File { path, what: "its owner has closed it" });
        }
        Ok(board)
    }

    /// Whether the owner lives, from two words; no system call.
    pub(crate) fn is_alive(&self) -> bool {
        is_alive(self.map.load(layout::ALIVE_AT)) && !self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.map.load(layout::CLOSED_AT) != 0
    }

    /// Whether no store of the owner can follow: it has closed the board, or its process is gone.
    /// A system call, but only when it does not look alive.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_closed() || (!self.is_alive() && self.process.is_gone())
    }

    /// The slot that the owner has made for `member`.
    pub(crate) fn slot_for(&self, member: MemberId) -> Option<usize> {
        let wanted = u64::from(member.0);
        (0..layout::PEERS_MAX)
            .find(|&slot| self.map.load(layout::slot_at(slot, layout::PEER)) == wanted)
    }

    /// Asks the owner to look for us.
    pub(crate) fn knock(&self, member: MemberId, ringer: &mut Ringer) {
        self.map.store(layout::knock_at(member), u64::from(member.0));
        self.doorbell.ring(ringer.next(Ringer::STRANGER));
    }
}
