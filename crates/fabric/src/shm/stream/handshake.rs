//! How a stream comes to be: the member's welcome, and the memory that comes with it.
//!
//! ```text
//!   client                      member (the porter's thread)
//!   connect  ----------------->
//!            <-----------------  magic u64 | version u32 | verdict u32 | member u32 | 0 u32
//!                                | incarnation u64 | ring bytes u64 | instance u64
//!                                + descriptor of the memory
//!   (the socket stays open)
//! ```
//! The member reads nothing from the socket, so no client can make it wait.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::{Incarnation, MemberId};
use pmem::Mapping;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::super::board::{PeerBoard, Ringer, random};
use super::super::futex::FutexPage;
use super::ring::{Consumer, Producer};
use super::{ANSWERS, ASKS, End, RINGS_AT, Stream, StreamError, porter};

const MAGIC: u64 = u64::from_le_bytes(*b"RMNTSTRM");
const VERSION: u32 = 1;
pub(super) const WELCOME_LEN: usize = 48;
/// Bytes of a ring that a client believes; the member's own limit is lower.
const RING_LEN_MAX: u64 = 1 << 30;
/// The longest time that a welcome is waited for, whatever was asked: what can be added to a clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// What a member says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) is_full: bool,
    pub(super) member: MemberId,
    pub(super) incarnation: Incarnation,
    pub(super) ring_bytes: u64,
    /// Which life of the member's process: what its board shows.
    pub(super) instance: u64,
}

impl Welcome {
    pub(super) fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = [0; WELCOME_LEN];
        let verdict = u32::from(self.is_full);
        let fields: [&[u8]; 8] = [
            &MAGIC.to_le_bytes(),
            &VERSION.to_le_bytes(),
            &verdict.to_le_bytes(),
            &self.member.0.to_le_bytes(),
            &0_u32.to_le_bytes(),
            &self.incarnation.0.to_le_bytes(),
            &self.ring_bytes.to_le_bytes(),
            &self.instance.to_le_bytes(),
        ];
        let mut rest = bytes.as_mut_slice();
        for field in fields {
            let (to, behind) = rest.split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = behind;
        }
        bytes
    }

    /// What `bytes` say, or `None` when they are no welcome of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.len() != WELCOME_LEN || word(0)? != MAGIC || half(8)? != VERSION {
            return None;
        }
        Some(Self {
            is_full: half(12)? != 0,
            member: MemberId(half(16)?),
            incarnation: Incarnation(word(24)?),
            ring_bytes: word(32)?,
            instance: word(40)?,
        })
    }
}

/// Bytes of the memory of one stream.
const fn memory_len(ring_bytes: u64) -> u64 {
    RINGS_AT + 2 * ring_bytes
}

/// The member's end, and what the client needs for its own.
pub(super) fn make(
    welcome: &Welcome,
    is_gone: Arc<AtomicBool>,
) -> Result<(Stream, OwnedFd), StreamError> {
    let map = Mapping::memfd("remanent-stream", memory_len(welcome.ring_bytes))?;
    let system = |doing| {
        move |source| StreamError::System {
            path: PathBuf::from("a stream's memory"),
            doing,
            source,
        }
    };
    let fd = map.fd().ok_or_else(|| io::Error::other("it has no descriptor"));
    let fd = fd.and_then(|fd| fd.try_clone_to_owned()).map_err(system("duplicate"))?;
    let page = FutexPage::map(&File::from(fd.try_clone().map_err(system("duplicate"))?))
        .map_err(system("map"))?;
    let (len, answers_at) = (welcome.ring_bytes, RINGS_AT + welcome.ring_bytes);
    let stream = Stream {
        map: Arc::new(map),
        page,
        out: Producer::new(ANSWERS, answers_at, len),
        input: Consumer::new(ASKS, RINGS_AT, len),
        bell: 0,
        is_broken: false,
        member: welcome.member,
        incarnation: welcome.incarnation,
        end: End::Member { is_gone },
    };
    Ok((stream, fd))
}

/// Sends the welcome; the socket is new, so there is room for it.
pub(super) fn welcome(
    socket: &UnixStream,
    welcome: &Welcome,
    memory: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = welcome.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = memory.into_iter().collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a welcome was cut off")) }
}

/// The client's end.
pub(super) fn connect(
    dir: &Path,
    member: MemberId,
    timeout: Duration,
) -> Result<Stream, StreamError> {
    let path = porter::socket_path(dir, member)?;
    let socket = dial(&path, member)?;
    let (welcome, memory) = hear(&socket, &path, member, timeout)?;
    if welcome.is_full {
        return Err(StreamError::Full(member));
    }
    let len = welcome.ring_bytes;
    let is_sane = len.is_power_of_two() && len <= RING_LEN_MAX && welcome.member == member;
    let (true, Some(memory)) = (is_sane, memory) else {
        return Err(StreamError::Version(member));
    };
    let board = PeerBoard::open(dir, member)?;
    // Replaced between its welcome and our look at its board: nobody would tell us of its end.
    if board.instance != welcome.instance {
        return Err(StreamError::Silent(member));
    }
    let system = |doing| {
        let path = path.clone();
        move |source| StreamError::System { path, doing, source }
    };
    let copy = memory.try_clone().map_err(system("duplicate the memory of"))?;
    let page = FutexPage::map(&File::from(copy)).map_err(system("map the memory of"))?;
    let map = Mapping::open_peer_fd(memory, "a member's stream", 0..memory_len(len))?;
    let start = random().map_err(system("draw a random number for"))?;
    let start = u32::try_from(start & u64::from(u32::MAX)).unwrap_or(0);
    Ok(Stream {
        map: Arc::new(map),
        page,
        out: Producer::new(ASKS, RINGS_AT, len),
        input: Consumer::new(ANSWERS, RINGS_AT + len, len),
        bell: 0,
        is_broken: false,
        member,
        incarnation: welcome.incarnation,
        end: End::Client {
            board: Box::new(board),
            ringer: Ringer::new(start),
            _socket: UnixStream::from(socket),
        },
    })
}

fn dial(path: &Path, member: MemberId) -> Result<OwnedFd, StreamError> {
    let not_running = |source: rustix::io::Errno| StreamError::NotRunning {
        member,
        path: path.to_owned(),
        source: source.into(),
    };
    let address = SocketAddrUnix::new(path).map_err(not_running)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(not_running)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(socket),
        // The queue of those not let in yet is full.
        Err(rustix::io::Errno::AGAIN) => Err(StreamError::Silent(member)),
        Err(error) => Err(not_running(error)),
    }
}

fn hear(
    socket: &OwnedFd,
    path: &Path,
    member: MemberId,
    timeout: Duration,
) -> Result<(Welcome, Option<OwnedFd>), StreamError> {
    let system = |doing| {
        let path = path.to_owned();
        move |source: rustix::io::Errno| StreamError::System { path, doing, source: source.into() }
    };
    let until = Instant::now() + timeout.min(TIMEOUT_MAX);
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(StreamError::Silent(member)),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("wait for")(error)),
        }
    }
    let mut bytes = [0; WELCOME_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let heard = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut control, flags);
    let heard = heard.map_err(system("hear"))?;
    if heard.bytes == 0 {
        return Err(StreamError::Silent(member));
    }
    let mut memory = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            memory = fds.into_iter().next();
        }
    }
    let welcome = Welcome::decode(&bytes[..heard.bytes]).ok_or(StreamError::Version(member))?;
    Ok((welcome, memory))
}
