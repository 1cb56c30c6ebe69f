//! The member's end of all streams: a thread that lets clients in and sees them go.
//!
//! The thread sleeps in `poll` and costs nothing while nobody comes or goes. The shard's thread
//! takes new streams with one load when there is none, and never waits for the porter's.
//!
//! # Invariants
//! - A client has its place until the member drops its end of the stream, whatever the client does
//!   with its socket: clients that come and go take no more than `streams_max` places, and those
//!   that were sent away keep nobody out.
//! - The member's lock is held until the socket's file is removed, so it is never a successor's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use base::{Incarnation, MemberId};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::handshake::{Welcome, make, welcome};
use super::{Stream, StreamError};
use crate::shm::{Shm, Waker};

/// Bytes of a socket's path: what `sun_path` holds, without the zero at its end.
pub(super) const SOCKET_PATH_MAX: usize = 107;
/// Owner only: whoever gets in may write keys.
const MODE: u32 = 0o600;

/// How a porter lets clients in.
#[derive(Clone, Debug)]
pub struct PorterConfig {
    /// The directory of the boards.
    pub dir: PathBuf,
    /// Whose clients they are.
    pub member: MemberId,
    /// The life of the member's region.
    pub incarnation: Incarnation,
    /// The most streams at one time, among them those that nobody has accepted yet and those of
    /// clients that are gone and have not been dropped.
    pub streams_max: u32,
    /// Bytes of each of a stream's two rings; a power of two, at least 4096.
    pub ring_bytes: u64,
}

impl Default for PorterConfig {
    /// 256 streams with rings of 256 KiB, of nobody, nowhere.
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            member: MemberId(0),
            incarnation: Incarnation(0),
            streams_max: 256,
            ring_bytes: 256 << 10,
        }
    }
}

/// Where a member's clients connect.
pub(super) fn socket_path(dir: &Path, member: MemberId) -> Result<PathBuf, StreamError> {
    let path = dir.join(format!("{}.sock", member.0));
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(StreamError::PathTooLong { path });
    }
    Ok(path)
}

#[derive(Debug, Default)]
struct Shared {
    arrived: Mutex<Vec<Stream>>,
    /// How many have arrived and not been taken.
    arrived_count: AtomicUsize,
    is_closing: AtomicBool,
}

/// Lets clients in. No other instance of the member starts for as long as it lives. Dropping it
/// turns away whoever comes and ends the sockets of all clients.
#[derive(Debug)]
pub struct Porter {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
    /// The member's: no other instance of it starts, and binds its socket, before this is dropped.
    _lock: Arc<File>,
}

impl Porter {
    /// Listens for clients of the member that has `shm`, and so is the only one of its id here.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn open(config: PorterConfig, shm: &Shm) -> Result<Self, StreamError> {
        let path = socket_path(&config.dir, config.member)?;
        let system = |doing| {
            let path = path.clone();
            move |source| StreamError::System { path, doing, source }
        };
        assert!(config.ring_bytes.is_power_of_two(), "positions are taken modulo the ring");
        assert!(config.ring_bytes >= 4096, "a ring is mapped");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(system("remove the old")(error));
            }
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path).map_err(system("listen at"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(MODE))
            .map_err(system("set the rights of"))?;
        listener.set_nonblocking(true).map_err(system("set up"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| system("make a bell for")(error.into()))?;
        let (shared, stop) = (Arc::new(Shared::default()), Arc::new(stop));
        let door = DoorThread {
            listener,
            stop: Arc::clone(&stop),
            shared: Arc::clone(&shared),
            waker: shm.waker(),
            welcome: Welcome {
                is_full: false,
                member: config.member,
                incarnation: config.incarnation,
                instance: shm.own.instance,
                ring_bytes: config.ring_bytes,
            },
            streams_max: config.streams_max,
            clients: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("porter".to_owned())
            .spawn(move || door.run())
            .map_err(system("start a thread for"))?;
        let lock = Arc::clone(&shm.own.lock);
        Ok(Self { shared, stop, thread: Some(thread), path, _lock: lock })
    }

    /// The next stream of a client that came.
    pub fn accept(&mut self) -> Option<Stream> {
        if self.shared.arrived_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut arrived = match self.shared.arrived.try_lock() {
            Ok(arrived) => arrived,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The porter's thread has it, and rings once it has let go.
            Err(TryLockError::WouldBlock) => return None,
        };
        let stream = arrived.pop();
        self.shared.arrived_count.store(arrived.len(), Ordering::Release);
        stream
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread is awake.
        let _rung = rustix::io::write(&*self.stop, &1_u64.to_le_bytes());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the porter panicked");
        }
        // Left behind, it is replaced by the next porter of this member.
        let _removed = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
struct Client {
    /// `None` once it has ended.
    socket: Option<UnixStream>,
    /// Shared with the member's end of the stream, which drops it last: when nobody shares it any
    /// more, the stream's memory is given back.
    is_gone: Arc<AtomicBool>,
}

impl Client {
    fn has_stream(&self) -> bool {
        Arc::strong_count(&self.is_gone) > 1
    }
}

struct DoorThread {
    listener: UnixListener,
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    waker: Waker,
    welcome: Welcome,
    streams_max: u32,
    clients: Vec<Client>,
}

impl DoorThread {
    fn run(mut self) {
        while !self.shared.is_closing.load(Ordering::Acquire) {
            let mut fds = vec![
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            // A client says nothing on its socket: whatever comes is its end.
            let sockets = self.clients.iter().filter_map(|client| client.socket.as_ref());
            fds.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)));
            let polled = rustix::event::poll(&mut fds, None);
            if polled.is_err() {
                // Interrupted, or out of memory for a moment.
                std::thread::yield_now();
                continue;
            }
            let came = !fds[1].revents().is_empty();
            let gone: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            self.see_off(&gone);
            if came {
                self.let_in();
            }
        }
        for client in &self.clients {
            client.is_gone.store(true, Ordering::Release);
        }
    }

    /// `gone`: of each client that has a socket, in their order.
    fn see_off(&mut self, gone: &[bool]) {
        if !gone.contains(&true) {
            return;
        }
        let connected = self.clients.iter_mut().filter(|client| client.socket.is_some());
        for (client, _) in connected.zip(gone).filter(|(_, is_gone)| **is_gone) {
            client.socket = None;
            client.is_gone.store(true, Ordering::Release);
        }
        self.waker.wake();
    }

    fn let_in(&mut self) {
        match self.listener.accept() {
            Ok((socket, _)) => {
                if self.receive(socket).is_ok() {
                    self.waker.wake();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, as a rule: it stays in the queue and is tried again; not at once,
            // or this thread would turn in circles.
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }

    fn receive(&mut self, socket: UnixStream) -> Result<(), StreamError> {
        let doing = |source| StreamError::System {
            path: PathBuf::from("a client's socket"),
            doing: "welcome",
            source,
        };
        let theirs = rustix::net::sockopt::socket_peercred(&socket);
        let theirs = theirs.map_err(|error| doing(error.into()))?;
        if theirs.uid != rustix::process::geteuid() {
            return Err(doing(io::ErrorKind::PermissionDenied.into()));
        }
        self.clients.retain(Client::has_stream);
        if self.clients.len() >= self.streams_max as usize {
            let full = Welcome { is_full: true, ..self.welcome };
            return welcome(&socket, &full, None).map_err(doing);
        }
        let is_gone = Arc::new(AtomicBool::new(false));
        let (stream, memory) = make(&self.welcome, Arc::clone(&is_gone))?;
        welcome(&socket, &self.welcome, Some(std::os::fd::AsFd::as_fd(&memory))).map_err(doing)?;
        self.clients.push(Client { socket: Some(socket), is_gone });
        let mut arrived = self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.push(stream);
        self.shared.arrived_count.store(arrived.len(), Ordering::Release);
        Ok(())
    }
}
