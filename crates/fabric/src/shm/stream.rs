//! Streams: how a process of this host talks to a member, by stores into shared memory.
//!
//! A client's request is a store into memory that the member's loop looks at, the answer a store
//! into memory that the client looks at; no system call while neither sleeps. The memory is made
//! by the member, which so bounds it, and passed over a Unix socket that stays open afterwards: its
//! end tells the end of either process.
//!
//! ```text
//!   client                                                         member
//!   Stream --asks-->  [ ring ]  ------------------------------->   Stream   (shard thread)
//!          <-answers- [ ring ]  <-------------------------------
//!          .......... socket: welcome, then only its end ......    Porter's own thread
//!
//! 0        magic, version, ring bytes               member, once
//! 64       asks: produced        client             192      answers: produced      member
//! 128      asks: consumed        member             256      answers: consumed      client
//! 320      client may sleep      client             384      bell (a futex)         member
//! 448      member waits for room member             512      client waits for room  client
//! 576      member has closed     member             640      client has closed      client
//! 4096     ring of asks, then ring of answers
//! ```
//! Positions count bytes since the stream was made; a place is the position modulo the ring. In a
//! ring a message is `length u32 | 0 u32 | bytes | padding to 8`; one longer than the ring goes
//! through it piece by piece.
//!
//! # Invariants
//! - Every word has one writer. What the other end says is checked against what it can say, and a
//!   stream on which it cannot be is closed: never a panic, never memory by a claimed length.
//! - No wake-up is lost: a sender stores, fences, and looks whether the other sleeps; a sleeper
//!   says so, fences, and looks once more.
//! - Nothing here blocks, except [`Stream::connect`] and [`Stream::wait`], which have a limit.

mod handshake;
mod porter;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Incarnation, MemberId};
use pmem::Mapping;

use super::board::{PeerBoard, PeerError, Ringer};
use super::futex::FutexPage;
pub use porter::{Porter, PorterConfig};
use ring::{Consumer, Producer};

/// Bytes of the longest message: the largest reply, and what stands around it.
pub const MESSAGE_MAX: u64 = (16 << 20) + (128 << 10);

const ASKS: ring::Place = ring::Place { produced: 64, consumed: 128, stuck: 512 };
const ANSWERS: ring::Place = ring::Place { produced: 192, consumed: 256, stuck: 448 };
const ASLEEP_AT: u64 = 320;
const BELL_AT: u64 = 384;
const MEMBER_CLOSED_AT: u64 = 576;
const CLIENT_CLOSED_AT: u64 = 640;
const RINGS_AT: u64 = 4096;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Nobody listens there.
    #[error("member {member} does not run here ({}: {source})", path.display())]
    NotRunning {
        /// Which member.
        member: MemberId,
        /// Its socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// It did not answer in time, or was replaced meanwhile: it is stopped, or starts just now.
    #[error("member {0} does not answer: is it stopped?")]
    Silent(MemberId),
    /// It has as many clients as it takes.
    #[error("member {0} has as many clients as it takes; raise clients_max or close some")]
    Full(MemberId),
    /// What it said is no welcome of this version.
    #[error("member {0} speaks another version: use the client of its release")]
    Version(MemberId),
    /// Its board cannot be used.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The path of a socket is longer than the system allows.
    #[error("{}: too long for a socket ({} bytes at most): choose a shorter run directory", path.display(), porter::SOCKET_PATH_MAX)]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The operating system said no.
    #[error("{}: cannot {doing}: {source}", path.display())]
    System {
        /// Which socket.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Map(#[from] pmem::MapError),
}

/// The stream is at its end: the other process ended it, ended, or broke its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct Closed;

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// An earlier message still waits for room.
    #[error("an earlier message still waits for room")]
    Full,
    /// It will never be taken.
    #[error("the stream is closed")]
    Closed,
    /// It is above [`MESSAGE_MAX`].
    #[error("a message has at most {MESSAGE_MAX} bytes")]
    TooLong,
}

/// What only one end has.
#[derive(Debug)]
enum End {
    Member {
        /// Set by the porter's thread when the client's socket has ended.
        is_gone: Arc<AtomicBool>,
    },
    Client {
        board: Box<PeerBoard>,
        ringer: Ringer,
        /// Open for as long as this end lives.
        _socket: UnixStream,
    },
}

/// One end of a stream. One thread owns it.
#[derive(Debug)]
pub struct Stream {
    map: Arc<Mapping>,
    page: FutexPage,
    out: Producer,
    input: Consumer,
    bell: u64,
    is_broken: bool,
    member: MemberId,
    incarnation: Incarnation,
    end: End,
}

impl Stream {
    /// Connects to `member`, whose board and socket lie in `dir`. Takes at most `timeout`, and a
    /// day.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn connect(dir: &Path, member: MemberId, timeout: Duration) -> Result<Self, StreamError> {
        handshake::connect(dir, member, timeout)
    }

    /// The member at one end.
    #[must_use]
    pub const fn member(&self) -> MemberId {
        self.member
    }

    /// The life of that member's region.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Sends one message: `parts`, one after the other. What finds no room in the ring waits here,
    /// and [`Self::flush`] moves it on.
    ///
    /// # Errors
    /// [`SendError`]: nothing of the message was taken.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        if self.is_closed() {
            return Err(SendError::Closed);
        }
        let sent = self.out.send(&self.map, parts);
        match sent {
            Ok(true) => self.tell(),
            Ok(false) => {}
            Err(ring::Fault::Full) => return Err(SendError::Full),
            Err(ring::Fault::TooLong) => return Err(SendError::TooLong),
            Err(ring::Fault::Broken) => {
                self.close();
                return Err(SendError::Closed);
            }
        }
        Ok(())
    }

    /// Moves on what waits for room. Whether something moved.
    pub fn flush(&mut self) -> bool {
        if !self.out.has_unsent() || self.is_closed() {
            return false;
        }
        match self.out.flush(&self.map) {
            Ok(true) => {
                self.tell();
                true
            }
            Ok(false) => false,
            Err(_) => {
                self.close();
                false
            }
        }
    }

    /// Whether something waits for room.
    #[must_use]
    pub const fn has_unsent(&self) -> bool {
        self.out.has_unsent()
    }

    /// Takes the next whole message into `into`, which is cleared first; `false` when there is none
    /// yet.
    ///
    /// # Errors
    /// [`Closed`] once the stream is at its end and all that arrived before has been taken.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, Closed> {
        // Looked at before the ring: what was sent before the end is then still found.
        let is_closed = self.is_closed();
        if self.is_broken {
            return Err(Closed);
        }
        match self.input.receive(&self.map, into) {
            Ok(taken) => {
                if taken.is_stuck {
                    self.wake();
                }
                match taken.is_whole {
                    true => Ok(true),
                    false if is_closed => Err(Closed),
                    false => Ok(false),
                }
            }
            Err(_) => {
                self.close();
                Err(Closed)
            }
        }
    }

    /// Whether the other end is known to be gone, or this one was closed. No system call.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_broken
            || match &self.end {
                End::Member { is_gone } => {
                    is_gone.load(Ordering::Acquire) || self.map.load(CLIENT_CLOSED_AT) != 0
                }
                End::Client { board, .. } => {
                    self.map.load(MEMBER_CLOSED_AT) != 0 || !board.is_alive()
                }
            }
    }

    /// Ends the stream for both.
    pub fn close(&mut self) {
        self.is_broken = true;
        let at = match self.end {
            End::Member { .. } => MEMBER_CLOSED_AT,
            End::Client { .. } => CLIENT_CLOSED_AT,
        };
        self.map.store(at, 1);
        self.tell();
    }

    /// Sleeps until the member has something to say, or `timeout` has passed. For the client's end;
    /// the member's sleeps with its fabric. A member that is killed rings nobody: its end is seen
    /// after the timeout.
    pub fn wait(&mut self, timeout: Duration) {
        let seen = self.map.load(BELL_AT);
        self.map.store(ASLEEP_AT, 1);
        self.map.fence();
        let may_move = self.out.has_unsent() && self.out.has_room(&self.map);
        if !self.input.has_more(&self.map) && !self.is_closed() && !may_move {
            let shown = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
            self.page.wait(BELL_AT, shown, timeout);
        }
        self.map.store(ASLEEP_AT, 0);
    }

    /// After a store: wakes the other end if it sleeps.
    fn tell(&mut self) {
        self.map.fence();
        self.wake();
    }

    fn wake(&mut self) {
        match &mut self.end {
            End::Member { .. } => {
                if self.map.load(ASLEEP_AT) != 0 {
                    self.bell = (self.bell + 1) & u64::from(u32::MAX);
                    self.map.store(BELL_AT, self.bell);
                    self.page.wake(BELL_AT);
                }
            }
            End::Client { board, ringer, .. } => {
                if board.doorbell.may_sleep() {
                    board.doorbell.ring(ringer.next(Ringer::STRANGER));
                }
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}
