//! Peers that may still store through windows of this member's *earlier* life.
//!
//! A member that was killed has withdrawn nothing: a writer has its ranges mapped until it notices.
//! Each instance shows in its slot for a peer whose instance it holds windows of ([`HOLDS`], set
//! before the first window is opened, cleared after the last one is closed). Only instances that
//! were there before this one was shown can hold an earlier one: they are looked for once.

use std::fs::File;
use std::io;
use std::path::Path;

use base::MemberId;
use pmem::Mapping;

use super::layout::{BOARD_LEN, HEADER_LEN, HOLDS, Header, PEER, PEERS_MAX, VERSION, slot_at};
use super::process::{OwnerError, Process};

/// Boards looked at; more than the members that one host has.
const BOARDS_MAX: usize = 4096;

/// One that was there before.
#[derive(Debug)]
pub(crate) struct Elder {
    /// `None` for a board of another version, whose slots mean nothing to us: only the end of its
    /// process is good enough.
    board: Option<Mapping>,
    process: Process,
}

impl Elder {
    /// All whose boards stand in `dir` and who may hold windows of `member`.
    ///
    /// # Errors
    /// When the directory, a board or an owner cannot be looked at: then nothing is known, and a
    /// member must not start on memory that others may write.
    pub(crate) fn find(dir: &Path, member: MemberId, instance: u64) -> io::Result<Vec<Self>> {
        let mut elders = Vec::new();
        for (count, entry) in dir.read_dir()?.enumerate() {
            if count == BOARDS_MAX {
                return Err(io::Error::other("too many files in the directory of the boards"));
            }
            let path = entry?.path();
            let is_board = path.extension().is_some_and(|extension| extension == "board");
            if is_board && let Some(elder) = Self::open(&path)? {
                elders.push(elder);
            }
        }
        elders.retain(|elder| !elder.has_let_go(member, instance));
        Ok(elders)
    }

    fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < BOARD_LEN {
            return Ok(None);
        }
        let name = path.display().to_string();
        let map = Mapping::open_peer_fd(file.into(), &name, 0..BOARD_LEN);
        let map = map.map_err(io::Error::other)?;
        let mut bytes = [0; HEADER_LEN];
        map.copy_out(0, &mut bytes);
        let Ok(header) = Header::decode_any_version(&bytes) else { return Ok(None) };
        match Process::of(&header) {
            Ok(process) => {
                let board = Header::decode(&bytes).is_ok().then_some(map);
                Ok(Some(Self { board, process }))
            }
            // One of another namespace cannot have opened our board: it was refused there, too.
            Err(OwnerError::Gone(_) | OwnerError::OtherNamespace) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Whether it has no window of a life of `member` other than `instance` any more.
    pub(crate) fn has_let_go(&self, member: MemberId, instance: u64) -> bool {
        if self.process.is_gone() {
            return true;
        }
        let Some(board) = &self.board else { return false };
        if board.load(super::layout::CLOSED_AT) != 0 {
            return true;
        }
        let is_ours = |slot: &usize| board.load(slot_at(*slot, PEER)) == u64::from(member.0);
        let holds = |slot| ![0, instance].contains(&board.load(slot_at(slot, HOLDS)));
        !(0..PEERS_MAX).filter(is_ours).any(holds)
    }
}

const _: () = assert!(VERSION == 1, "a new version keeps the header, or elders are not seen");
