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

use super::layout::{
    BOARD_LEN, HEADER_LEN, HEADER_PAGE_LEN, HOLDS, Header, PEER, PEERS_MAX, slot_at,
};
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
        // A board of another version has another length; its header says whose it is all the same.
        let len = match file.metadata()?.len() {
            BOARD_LEN.. => BOARD_LEN,
            HEADER_PAGE_LEN.. => HEADER_PAGE_LEN,
            _ => return Ok(None),
        };
        let name = path.display().to_string();
        let map = Mapping::open_peer_fd(file.into(), &name, 0..len);
        let map = map.map_err(io::Error::other)?;
        let mut bytes = [0; HEADER_LEN];
        map.copy_out(0, &mut bytes);
        let Ok(header) = Header::decode_any_version(&bytes) else { return Ok(None) };
        match Process::of(&header) {
            Ok(process) => {
                let is_readable = len == BOARD_LEN && Header::decode(&bytes).is_ok();
                let board = is_readable.then_some(map);
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

#[cfg(test)]
mod tests {
    use super::super::board::random;
    use super::super::layout::VERSION;
    use super::super::process::Origin;
    use super::*;

    /// The header of a board of this very process.
    fn header() -> [u8; HEADER_LEN] {
        let origin = Origin::here().unwrap();
        Header {
            member: MemberId(2),
            instance: 7,
            incarnation: 1,
            pid: origin.pid,
            start_time: origin.start_time,
            pid_namespace: origin.pid_namespace,
            boot: origin.boot,
        }
        .encode()
    }

    /// Goal: a process that runs another version of this program, whose boards have another length,
    /// is waited for until it ends. Method: boards of a living process, of each length, found by a
    /// member that comes back.
    #[test]
    fn a_writer_of_another_version_is_waited_for_whatever_its_boards_length() {
        let dir = std::env::temp_dir().join(format!("elders-{:016x}", random().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        let mut bytes = header();
        bytes[8..16].copy_from_slice(&(VERSION - 1).to_le_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..80]);
        bytes[80..].copy_from_slice(&sum.to_le_bytes());
        for (len, found) in [(HEADER_PAGE_LEN - 1, 0), (HEADER_PAGE_LEN, 1), (2 * BOARD_LEN, 1)] {
            let path = dir.join("2.board");
            std::fs::write(&path, bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            let elders = Elder::find(&dir, MemberId(1), 9).unwrap();
            assert_eq!(elders.len(), found, "a board of {len} bytes");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
