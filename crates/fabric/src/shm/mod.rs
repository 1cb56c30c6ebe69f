//! The provider for members of one host: the poster stores into the other member's memory itself.
//!
//! # What it stands on
//! - Each instance owns a *board*, a shared file that names its regions and registrations and holds
//!   what it says to each peer and a ring for what each peer says to it (`layout`). Every word
//!   has one writer, and nothing read from a board is believed.
//! - A WRITE is a copy into the registered range, mapped alone (`window`); a `ReadWord` is a full
//!   fence, one load, and a look at whether the owner still lives (`chain`). In `volatile` and
//!   `process` mode a chain is over when `post` returns, without allocation or system call.
//! - Life is a word that the kernel marks when the process ends; the end of all stores is known from
//!   the process's descriptor alone (`futex`, `process`).
//!
//! # The calls that open files
//! Making queue pairs opens the peer's board; the first use of a registration maps it, unless
//! `next_event` has found it before. Nothing else makes a system call, except ringing a peer that
//! sleeps, and handing work to the syncer.
//!
//! Deliberately absent: other hosts, and memory that is not kept coherent by the hardware.
#![expect(unsafe_code, reason = "gives the kernel addresses of futexes and a robust list")]

mod board;
mod chain;
mod completions;
mod elder;
mod futex;
mod layout;
mod link;
mod process;
mod registrations;
mod ring;
pub mod stream;
mod syncer;
#[cfg(test)]
mod tests;
mod window;

use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::{Durability, Incarnation, MemberId};
use pmem::Mapping;

pub use board::{PeerError, ShmError};
pub use layout::LayoutError;
pub use process::OwnerError;

use crate::{
    Access, Caps, Completion, Fabric, FabricEvent, Key, PostError, Qp, RegionId, RegisterError,
    Sleep, WorkRequest,
};
use board::{Doorbell, OwnBoard, Ringer};
use chain::Surroundings;
use completions::Completions;
use layout::{KNOCKS_MAX, PEERS_MAX, RegionRecord, Registration, knock_place, region_at};
use link::{Around, Link, State};
use registrations::{Registrations, Revoking, Writer};
use syncer::SyncFile;

/// How often an attempt is taken further, and the end of a dying process looked for, when nobody
/// rings: those steps open files and ask the system.
const ADVANCE_INTERVAL: Duration = Duration::from_millis(2);
/// How many calls of a busy owner share one look at the clock, which costs as much as all the rest
/// of a look for events.
const CLOCK_EVERY: u32 = 32;

/// What an instance is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the boards: one for all members of the host that shall reach each other.
    /// It is best in tmpfs, and writable by their user alone.
    pub dir: PathBuf,
    /// Who this is; no two living instances in one directory have the same id.
    pub member: MemberId,
    /// The life of the member's region; shown on the board.
    pub incarnation: Incarnation,
    /// Whether [`Shm::kill_stuck_writer`] may end a process. Off unless somebody says so.
    pub may_kill_writers: bool,
}

/// Why a writer was not killed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KillError {
    /// The configuration does not allow it.
    #[error("killing writers is not allowed: set may_kill_writers")]
    NotAllowed,
    /// No withdrawn registration waits under this key.
    #[error("nobody holds {0:?} back")]
    NotStuck(Key),
    /// The writer is this very process.
    #[error("the writer of {0:?} is this process itself")]
    Oneself(Key),
    /// The operating system said no.
    #[error("cannot kill the writer: {0}")]
    System(#[from] std::io::Error),
}

/// The shared-memory provider.
#[derive(Debug)]
pub struct Shm {
    /// One for each slot of the board.
    links: Vec<Option<Link>>,
    /// How many of them, from the front, were ever used: only those are looked at.
    used: usize,
    own: OwnBoard,
    config: Config,
    locals: Vec<Mapping>,
    registrations: Registrations,
    completions: Completions,
    greeting: Vec<u8>,
    /// Queue pair numbers drawn.
    number_count: u32,
    /// Which link is asked first for an event.
    cursor: usize,
    doorbell_seen: u64,
    advanced: Option<Instant>,
    /// Calls since the clock was looked at.
    unlooked: u32,
    armed: Option<u64>,
    is_fenced: bool,
    sync: SyncFile,
    wakes: Arc<AtomicU32>,
}

/// Wakes the owner of an [`Shm`] from another thread of its process.
#[derive(Clone, Debug)]
pub struct Waker {
    doorbell: Doorbell,
    count: Arc<AtomicU32>,
}

impl Waker {
    /// Ends the owner's present or next [`Sleep::wait`].
    pub fn wake(&self) {
        let mut ringer = Ringer::new(self.count.fetch_add(1, Ordering::Relaxed));
        self.doorbell.ring(ringer.next(Ringer::WAKER));
    }
}

impl Shm {
    /// Makes an instance and shows its board.
    ///
    /// # Errors
    /// [`ShmError`], among them `InUse` while another instance of the member lives.
    pub fn create(config: Config) -> Result<Self, ShmError> {
        let own = OwnBoard::create(&config.dir, config.member, config.incarnation)?;
        Ok(Self {
            links: std::iter::repeat_with(|| None).take(PEERS_MAX).collect(),
            used: 0,
            registrations: Registrations::new(own.instance),
            own,
            config,
            locals: Vec::new(),
            completions: Completions::new(),
            greeting: Vec::new(),
            number_count: 0,
            cursor: 0,
            doorbell_seen: 0,
            advanced: None,
            unlooked: 0,
            armed: None,
            is_fenced: true,
            sync: File::sync_data,
            wakes: Arc::new(AtomicU32::new(0)),
        })
    }

    /// Attaches the file at `path`, a positive multiple of 4096 bytes long, as a region: local
    /// pieces are gathered from it, and ranges of it can be registered. `durability` tells writers
    /// what they have to do before a read-back means durable.
    ///
    /// # Errors
    /// [`ShmError`].
    pub fn attach(&mut self, path: &Path, durability: Durability) -> Result<RegionId, ShmError> {
        let system =
            |doing| move |source| ShmError::System { path: path.to_owned(), doing, source };
        let index = self.locals.len();
        if index == layout::REGIONS_MAX {
            return Err(ShmError::TooManyRegions);
        }
        let path = &path.canonicalize().map_err(system("find"))?;
        if path.as_os_str().len() > layout::PATH_MAX {
            return Err(ShmError::PathTooLong { path: path.clone() });
        }
        let metadata = path.metadata().map_err(system("look at"))?;
        let map = Mapping::open_peer(path, 0..metadata.len())?;
        let record = RegionRecord {
            len: metadata.len(),
            durability,
            device: metadata.dev(),
            inode: metadata.ino(),
            path: path.as_os_str().as_bytes().to_vec(),
        };
        self.own.map.copy_in(region_at(index), &record.encode());
        self.locals.push(map);
        Ok(RegionId(u32::try_from(index).expect("there are few")))
    }

    /// For other threads of this process that have something for the owner to look at.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { doorbell: self.own.doorbell.clone(), count: Arc::clone(&self.wakes) }
    }

    /// Why there is no queue pair with `peer` yet, when its board could not be used.
    #[must_use]
    pub fn why_not_connected(&self, peer: MemberId) -> Option<&PeerError> {
        self.links.iter().flatten().find(|link| link.peer == peer)?.error.as_ref()
    }

    /// Ends the process that keeps `key` from being deregistered: a writer that was stopped and
    /// cannot say that it has let go.
    ///
    /// # Errors
    /// [`KillError`].
    pub fn kill_stuck_writer(&mut self, key: Key) -> Result<(), KillError> {
        if !self.config.may_kill_writers {
            return Err(KillError::NotAllowed);
        }
        let not_stuck = || KillError::NotStuck(key);
        let revoking = self.registrations.awaited(key).ok_or_else(not_stuck)?;
        let writer = revoking.writer.ok_or_else(not_stuck)?;
        let instance = self.links[writer.slot]
            .as_ref()
            .and_then(|link| link.instance.as_ref())
            .filter(|instance| instance.board.instance == writer.instance)
            .ok_or_else(not_stuck)?;
        if instance.board.process.is_own() {
            return Err(KillError::Oneself(key));
        }
        Ok(instance.board.process.kill()?)
    }

    /// Takes the fence out of every later read-back. For showing that tests see it missing, and
    /// for nothing else: acknowledged entries get lost without it.
    #[doc(hidden)]
    pub fn remove_fence_for_litmus(&mut self) {
        self.is_fenced = false;
    }

    /// Makes later links sync a peer's file by `sync`. For showing that a missing sync is seen, and
    /// for nothing else: acknowledged entries get lost with the power.
    #[doc(hidden)]
    pub fn replace_sync_for_faults(&mut self, sync: fn(&File) -> std::io::Result<()>) {
        self.sync = sync;
    }

    fn link_of(&mut self, qp: Qp) -> Option<&mut Link> {
        let link = self.links.get_mut(slot_of(qp))?.as_mut()?;
        (qp.0 != 0 && link.mine == qp.0 && link.state == State::Connected).then_some(link)
    }

    /// The link to `peer`, made if there is none; `None` when all slots are in use.
    fn link_to(&mut self, peer: MemberId) -> Option<&mut Link> {
        let slot = match self.links.iter().position(|l| l.as_ref().is_some_and(|l| l.peer == peer))
        {
            Some(slot) => slot,
            None => self.make_link(peer)?,
        };
        self.links[slot].as_mut()
    }

    fn make_link(&mut self, peer: MemberId) -> Option<usize> {
        let free = self.links.iter().position(Option::is_none).or_else(|| {
            (0..PEERS_MAX).find(|&slot| {
                let is_unused = self.links[slot].as_ref().is_some_and(Link::is_unused);
                is_unused && !self.registrations.concern(slot)
            })
        })?;
        if let Some(unused) = self.links[free].take() {
            unused.retire(&self.own);
        }
        self.links[free] = Some(Link::new(&self.own, free, peer));
        self.used = self.used.max(free + 1);
        Some(free)
    }

    /// Looks at what the peers say, in a few loads each.
    fn watch(&mut self) {
        let around = Surroundings {
            own: &self.own,
            locals: &self.locals,
            is_fenced: self.is_fenced,
            sync: self.sync,
        };
        for link in self.links[..self.used].iter_mut().flatten() {
            link.watch(&self.own, &mut self.completions);
            chain::settle(link, &around, &mut self.completions);
        }
    }

    /// Whether something in flight waits for more than its turn in the queue of completions.
    fn has_pending(&self) -> bool {
        self.links[..self.used].iter().flatten().any(|link| !link.pending.is_empty())
    }

    /// Takes attempts further, when somebody rang or it is time.
    fn advance(&mut self) {
        let rung = self.own.doorbell.number();
        let is_rung = rung != self.doorbell_seen;
        self.unlooked += 1;
        if !is_rung && self.advanced.is_some() && self.unlooked < CLOCK_EVERY {
            return;
        }
        self.unlooked = 0;
        let is_time = self.advanced.is_none_or(|at| at.elapsed() >= ADVANCE_INTERVAL);
        if !is_rung && !is_time {
            return;
        }
        self.doorbell_seen = rung;
        let now = Instant::now();
        self.advanced = Some(now);
        self.hear_knocks();
        for slot in 0..self.used {
            let Some(link) = &mut self.links[slot] else { continue };
            if link.state == State::Idle && link.is_wanted {
                let Some(number) = next_number(self.own.instance, &mut self.number_count, slot)
                else {
                    continue;
                };
                link.ask(&self.own, number);
            }
            let around = Around {
                own: &self.own,
                dir: &self.config.dir,
                member: self.config.member,
                greeting: &self.greeting,
                now,
            };
            link.advance(&around);
        }
    }

    /// Answers members that want a queue pair.
    fn hear_knocks(&mut self) {
        for place in 0..KNOCKS_MAX {
            let knock = self.own.map.load(knock_place(place));
            if knock == 0 {
                continue;
            }
            self.own.map.store(knock_place(place), 0);
            let Ok(peer) = u32::try_from(knock) else { continue };
            if MemberId(peer) != self.config.member {
                self.answer(MemberId(peer));
            }
        }
    }

    fn answer(&mut self, peer: MemberId) {
        let Some(link) = self.link_to(peer) else { return };
        link.heard();
        if link.state != State::Idle {
            return;
        }
        let slot = link.slot();
        let Some(number) = next_number(self.own.instance, &mut self.number_count, slot) else {
            return;
        };
        if let Some(link) = &mut self.links[slot] {
            link.ask(&self.own, number);
        }
    }

    fn next_deregistered(&mut self) -> Option<FabricEvent> {
        let links = &self.links;
        let key = self.registrations.next_released(|revoking| {
            let Some(writer) = revoking.writer else { return true };
            links[writer.slot].as_ref().is_none_or(|link| {
                link.is_released(writer.instance, writer.numbers, revoking.revocation)
            })
        })?;
        Some(FabricEvent::Deregistered { key })
    }

    fn writer(&mut self, access: Access) -> Result<Option<Writer>, RegisterError> {
        let qp = match access {
            Access::Read => return Ok(None),
            Access::Write(qp) => qp,
        };
        let refused = || RegisterError::Refused(format!("{qp:?} is not connected"));
        let link = self.link_of(qp).ok_or_else(refused)?;
        let instance = link.instance.as_ref().ok_or_else(refused)?.board.instance;
        Ok(Some(Writer { slot: slot_of(qp), instance, numbers: (link.theirs, link.mine) }))
    }
}

impl Drop for Shm {
    /// Closes in order: no window is left when the board says so, and then the peers are told.
    fn drop(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::close_windows);
        self.own.close();
        self.links.iter_mut().flatten().for_each(Link::ring_bell);
    }
}

/// The slot in a queue pair's number.
const fn slot_of(qp: Qp) -> usize {
    // Five bits: below `PEERS_MAX`.
    (qp.0 & 0x1f) as usize
}

/// A number that was never used for a queue pair: {salt of the instance: 27 bits, count: 32,
/// slot: 5}. `None` after 2^32 of them.
fn next_number(instance: u64, count: &mut u32, slot: usize) -> Option<u64> {
    *count = count.checked_add(1)?;
    let salt = instance & !((1 << 37) - 1);
    Some(salt | (u64::from(*count) << 5) | slot as u64)
}

impl Fabric for Shm {
    fn caps(&self) -> Caps {
        chain::CAPS
    }

    /// The attempt goes on until it succeeds; [`Shm::why_not_connected`] tells what it waits for.
    /// Does nothing while all slots hold peers that live, and before `Disconnected` was delivered.
    fn connect(&mut self, peer: MemberId) {
        if peer == self.config.member {
            return;
        }
        self.advanced = None;
        if let Some(link) = self.link_to(peer) {
            link.want();
        }
    }

    fn set_greeting(&mut self, greeting: &[u8]) {
        assert!(greeting.len() <= layout::MESSAGE_MAX as usize, "a greeting is one message");
        self.greeting.clear();
        self.greeting.extend_from_slice(greeting);
    }

    fn disconnect(&mut self, qp: Qp) {
        let Some(link) = self.links.get_mut(slot_of(qp)).and_then(Option::as_mut) else { return };
        let is_there = matches!(link.state, State::Connected | State::Dropped { .. });
        if qp.0 != 0 && link.mine == qp.0 && is_there {
            link.disconnect(&self.own, &mut self.completions);
        }
    }

    fn register(
        &mut self,
        region: RegionId,
        range: Range<u64>,
        access: Access,
    ) -> Result<Key, RegisterError> {
        let local = self.locals.get(region.0 as usize);
        let fits = local.is_some_and(|local| range.start < range.end && range.end <= local.len());
        if !fits {
            return Err(RegisterError::OutOfRange { region, range });
        }
        if !range.start.is_multiple_of(8) {
            return Err(RegisterError::Refused(format!("{range:?} does not start on a word")));
        }
        let writer = self.writer(access)?;
        let registration = Registration {
            region: region.0 as usize,
            writer: writer.map_or(0, |writer| Link::pair(writer.numbers.0, writer.numbers.1)),
            offset: range.start,
            len: range.end - range.start,
        };
        self.registrations.add(&self.own.map, &registration, writer).ok_or(RegisterError::Exhausted)
    }

    fn deregister(&mut self, key: Key) {
        let Some(writer) = self.registrations.revoke(&self.own.map, key) else { return };
        let mut revocation = u64::MAX;
        if let Some(writer) = writer
            && let Some(link) = &mut self.links[writer.slot]
            && link.state == State::Connected
            && (link.theirs, link.mine) == writer.numbers
        {
            revocation = link.revoke(&self.own);
        }
        self.registrations.wait_for(Revoking { key, writer, revocation });
    }

    /// Also `false` while a process that could write the earlier life is stopped; its end counts.
    fn is_quiesced(&mut self) -> bool {
        let (member, instance) = (self.config.member, self.own.instance);
        self.own.elders.retain(|elder| !elder.has_let_go(member, instance));
        self.own.elders.is_empty()
    }

    fn post(&mut self, qp: Qp, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let cost = chain::check(&self.locals, chain)?;
        let around = Surroundings {
            own: &self.own,
            locals: &self.locals,
            is_fenced: self.is_fenced,
            sync: self.sync,
        };
        let link = self.links.get_mut(slot_of(qp)).and_then(Option::as_mut);
        let link = link.filter(|link| link.takes(qp)).ok_or(PostError::NotConnected(qp))?;
        chain::check_room(link, cost)?;
        chain::execute(link, &around, &mut self.completions, chain);
        Ok(())
    }

    fn ring(&mut self, qp: Qp) {
        if let Some(link) = self.link_of(qp) {
            link.ring();
        }
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        // Losses are also seen by `next_event`; here only what waits can still become a completion.
        if self.has_pending() {
            self.watch();
        }
        let mut count = 0;
        for place in into {
            let Some(completion) = self.completions.pop() else { break };
            if let Some(link) = &mut self.links[slot_of(completion.qp)] {
                link.polled(completion.qp);
            }
            *place = completion;
            count += 1;
        }
        count
    }

    fn next_event(&mut self, bytes: &mut Vec<u8>) -> Option<FabricEvent> {
        bytes.clear();
        self.advance();
        self.watch();
        for turn in 0..self.used {
            let slot = self.cursor + turn;
            let slot = if slot < self.used { slot } else { slot - self.used };
            let Some(link) = &mut self.links[slot] else { continue };
            let event = link.next_event(&self.own, &mut self.completions, bytes);
            if event.is_some() {
                self.cursor = if slot + 1 < self.used { slot + 1 } else { 0 };
                return event;
            }
        }
        self.next_deregistered()
    }
}

impl Sleep for Shm {
    fn arm(&mut self) {
        self.armed = Some(self.own.doorbell.arm());
    }

    fn wait(&mut self, timeout: Duration) {
        self.unlooked = CLOCK_EVERY;
        if let Some(armed) = self.armed.take() {
            self.own.doorbell.wait(armed, timeout);
        }
    }
}
