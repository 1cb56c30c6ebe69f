//! Time, hosts and the event queue: one world, whose whole course follows from one seed.
//!
//! # Invariants
//! - Events happen in the order of (time, number of scheduling); nothing else decides an order, so
//!   a seed gives the same course on every machine. [`World::trace`] is a hash over that course.
//! - Time never goes back, and moves only in [`World::step`].
//! - The world never runs code of a host. [`World::step`] performs what hardware does by itself
//!   (bytes land, a sync ends, a message arrives) and says whom it concerns; whoever drives the
//!   world gives the hosts their turns between two steps.
//!
//! ```text
//!   driver ── step() ──> World { clock, queue, hosts, memories, files, network }
//!     │                     ▲                    ▲                  ▲
//!     └─ turn of a host ─ SimFabric          SimRegion          SimFiles   (handles: Rc<RefCell>)
//! ```
//! Deliberately absent: wall clock, threads, hash order, randomness from outside.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use base::{Duration, Instant, MemberId, Random};

use crate::fabric::{FabricOptions, Network, Process};
use crate::files::Directory;
use crate::memory::{Memory, MemoryOptions, SimRegion};

/// A world that its driver and the handles of all simulated hosts share.
pub type SharedWorld = Rc<RefCell<World>>;

/// The most events that wait at one time. A run that needs more has a loop that feeds itself.
pub const EVENTS_MAX: usize = 1 << 20;

/// The most hosts of one world.
pub const HOSTS_MAX: usize = 64;

/// A simulated machine: one process at a time, its memories and files, one network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    pub(crate) const fn place(self) -> usize {
        self.0 as usize
    }
}

/// A distribution of delays: uniform between two bounds, with a tail of rare long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The shortest, in nanoseconds.
    pub min_ns: u64,
    /// The longest ordinary one, in nanoseconds; not below `min_ns`.
    pub max_ns: u64,
    /// One in so many is drawn from the tail instead; 0 is never.
    pub tail_one_in: u64,
    /// The longest of the tail, in nanoseconds; not below `min_ns`.
    pub tail_ns: u64,
}

impl Delay {
    /// Uniform between two bounds in nanoseconds, without a tail.
    #[must_use]
    pub const fn uniform(min_ns: u64, max_ns: u64) -> Self {
        Self { min_ns, max_ns, tail_one_in: 0, tail_ns: max_ns }
    }

    /// Uniform between two bounds in nanoseconds; one in `one_in` takes up to `tail_ns`.
    #[must_use]
    pub const fn with_tail(min_ns: u64, max_ns: u64, one_in: u64, tail_ns: u64) -> Self {
        Self { min_ns, max_ns, tail_one_in: one_in, tail_ns }
    }

    /// Draws one delay.
    ///
    /// # Panics
    /// When an upper bound lies below `min_ns`.
    #[must_use]
    pub fn draw(self, random: &mut Random) -> Duration {
        let top = if random.one_in(self.tail_one_in) { self.tail_ns } else { self.max_ns };
        assert!(self.min_ns <= top, "a delay's bounds are the wrong way round");
        Duration::from_nanos(self.min_ns + random.below(top - self.min_ns + 1))
    }
}

/// What a host can do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Its process runs.
    Running,
    /// Its process is stopped (`SIGSTOP`): it does nothing, but its card and memory answer.
    Stopped,
    /// Its process is gone; memory that is shared or in the page cache lives on.
    Crashed,
    /// It has no power: nothing lands, nothing answers.
    Off,
}

/// What one step of the world was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is scheduled any more.
    Idle,
    /// Hardware did something; [`World::take_woken`] says who may want a turn because of it.
    Hardware,
    /// A timer of the driver rang.
    Timer(u64),
}

/// What may be scheduled. Small, because the heap moves it about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Timer(u64),
    Persist(u32),
    FileSync(u32),
    Transmit(u32),
    Execute(u32),
    Deliver(u32),
    Timeout(u32),
    Notice(u32),
    ConnectArrives { from: u16, to: u16, life: u32 },
    AttemptEnds { from: u16, to: u16, life: u32 },
    Opened(u32),
    Deregister(u64),
    Ring(u32),
}

impl Event {
    /// A word that tells events apart in the trace.
    fn code(self) -> u64 {
        let pair = |from: u16, to: u16, life: u32| {
            u64::from(from) << 48 | u64::from(to) << 32 | u64::from(life)
        };
        let (kind, what) = match self {
            Self::Timer(token) => (1, token),
            Self::Persist(memory) => (2, u64::from(memory)),
            Self::FileSync(host) => (3, u64::from(host)),
            Self::Transmit(end) => (4, u64::from(end)),
            Self::Execute(end) => (5, u64::from(end)),
            Self::Deliver(end) => (6, u64::from(end)),
            Self::Timeout(end) => (7, u64::from(end)),
            Self::Notice(end) => (8, u64::from(end)),
            Self::ConnectArrives { from, to, life } => (9, pair(from, to, life)),
            Self::AttemptEnds { from, to, life } => (10, pair(from, to, life)),
            Self::Opened(end) => (11, u64::from(end)),
            Self::Deregister(key) => (12, key),
            Self::Ring(end) => (13, u64::from(end)),
        };
        what.rotate_left(8) ^ kind
    }
}

/// An event in the queue; ordered by time and number alone.
#[derive(Debug)]
struct Scheduled {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Virtual time and what waits for it.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) now: Instant,
    number: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
}

impl Clock {
    pub(crate) fn schedule(&mut self, at: Instant, event: Event) {
        assert!(self.now <= at, "an event may not lie in the past");
        assert!(self.queue.len() < EVENTS_MAX, "the event queue is full: something feeds itself");
        self.number += 1;
        self.queue.push(Reverse(Scheduled { at, number: self.number, event }));
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.schedule(self.now + delay, event);
    }
}

/// A machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) member: MemberId,
    pub(crate) state: HostState,
    /// Which process this is, counted from 1. Handles of an earlier one are dead.
    pub(crate) life: u32,
    /// Which power-up this is, counted from 1.
    pub(crate) boot: u64,
    /// Where the memories begin that belong to it.
    pub(crate) memories: Vec<u32>,
    pub(crate) process: Process,
    pub(crate) files: Directory,
    woken: bool,
}

impl Host {
    /// Whether the process of `life` is there (running or stopped).
    pub(crate) const fn lives(&self, life: u32) -> bool {
        self.life == life && matches!(self.state, HostState::Running | HostState::Stopped)
    }
}

/// The whole simulated world. See the module.
#[derive(Debug)]
pub struct World {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) hosts: Vec<Host>,
    pub(crate) memories: Vec<Memory>,
    pub(crate) network: Network,
    woken: VecDeque<HostId>,
    events: u64,
    trace: u64,
}

impl World {
    /// A world without hosts at time zero, whose course follows from `seed`.
    #[must_use]
    pub fn new(seed: u64, options: FabricOptions) -> Self {
        Self {
            clock: Clock { now: Instant(0), number: 0, queue: BinaryHeap::new() },
            random: Random::new(seed),
            hosts: Vec::new(),
            memories: Vec::new(),
            network: Network::new(options),
            woken: VecDeque::new(),
            events: 0,
            trace: seed,
        }
    }

    /// The same, ready to be shared with handles.
    #[must_use]
    pub fn shared(seed: u64, options: FabricOptions) -> SharedWorld {
        Rc::new(RefCell::new(Self::new(seed, options)))
    }

    /// Adds a machine that has power and no process yet; `restart` starts one. Its processes are
    /// reached over the fabric as `member`.
    ///
    /// # Panics
    /// When the world is full or has such a member already.
    pub fn add_host(&mut self, member: MemberId) -> HostId {
        assert!(self.hosts.len() < HOSTS_MAX, "a world has at most {HOSTS_MAX} hosts");
        assert!(self.host_of(member).is_none(), "{member} has a host already");
        let id = HostId(u32::try_from(self.hosts.len()).expect("below HOSTS_MAX"));
        let files = Directory::new(Random::new(self.random.next()));
        self.hosts.push(Host {
            member,
            state: HostState::Crashed,
            life: 0,
            boot: 1,
            memories: Vec::new(),
            process: Process::default(),
            files,
            woken: false,
        });
        self.network.grow(self.hosts.len());
        id
    }

    /// The host whose processes are reached as `member`.
    #[must_use]
    pub fn host_of(&self, member: MemberId) -> Option<HostId> {
        let place = self.hosts.iter().position(|host| host.member == member)?;
        u32::try_from(place).ok().map(HostId)
    }

    /// Gives a host a memory of `len` zero bytes; returns its number for [`World::region`].
    ///
    /// # Panics
    /// When `len` is no multiple of 4096.
    pub fn add_memory(&mut self, host: HostId, len: u64, options: MemoryOptions) -> u32 {
        let number = u32::try_from(self.memories.len()).expect("fewer than 2^32 memories");
        let name = format!("{}/region{}", self.hosts[host.place()].member, number);
        let random = Random::new(self.random.next());
        self.memories.push(Memory::new(name, len, options, random));
        self.hosts[host.place()].memories.push(number);
        number
    }

    /// A process's handle on a memory. Opening forgets the failure that an earlier process saw.
    pub fn region(world: &SharedWorld, memory: u32) -> SimRegion {
        world.borrow_mut().memories[memory as usize].reopen();
        SimRegion::new(world, memory)
    }

    /// A memory, to look into it or to plant a fault.
    #[must_use]
    pub fn memory(&mut self, memory: u32) -> &mut Memory {
        &mut self.memories[memory as usize]
    }

    /// A memory, to look into it.
    #[must_use]
    pub fn look(&self, memory: u32) -> &Memory {
        &self.memories[memory as usize]
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.clock.now
    }

    /// The world's randomness, for decisions of its driver.
    pub const fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// How many events happened.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// A hash over all that happened so far: equal courses have equal traces.
    #[must_use]
    pub const fn trace(&self) -> u64 {
        self.trace
    }

    /// Puts a word of the driver's into the trace.
    pub const fn note(&mut self, word: u64) {
        let mixed = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace = mixed ^ (mixed >> 29);
    }

    /// Lets a timer ring at `at` (now, if that has passed); `token` comes back in [`Step::Timer`].
    pub fn schedule(&mut self, at: Instant, token: u64) {
        self.clock.schedule(at.max(self.clock.now), Event::Timer(token));
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.clock.queue.peek().map(|next| next.0.at)
    }

    /// Moves time to the next event and lets it happen.
    pub fn step(&mut self) -> Step {
        let Some(Reverse(next)) = self.clock.queue.pop() else {
            return Step::Idle;
        };
        assert!(self.clock.now <= next.at, "time went back");
        self.clock.now = next.at;
        self.events += 1;
        self.note(next.at.0);
        self.note(next.event.code());
        match next.event {
            Event::Timer(token) => return Step::Timer(token),
            Event::Persist(memory) => self.persist_ends(memory),
            Event::FileSync(host) => self.file_sync_ends(host),
            Event::Transmit(end) => self.transmit(end),
            Event::Execute(end) => self.execute(end),
            Event::Deliver(end) => self.deliver(end),
            Event::Timeout(end) => self.timeout(end),
            Event::Notice(end) => self.notice(end),
            Event::ConnectArrives { from, to, life } => self.connect_arrives(from, to, life),
            Event::AttemptEnds { from, to, life } => self.attempt_ends(from, to, life),
            Event::Opened(end) => self.opened(end),
            Event::Deregister(key) => self.deregister_ends(key),
            Event::Ring(end) => self.ring_arrives(end),
        }
        Step::Hardware
    }

    /// Takes the next host that has something new to look at (a completion, an event, a ticket).
    /// Bytes that land wake nobody, as on real hardware. The host may have stopped meanwhile.
    pub fn take_woken(&mut self) -> Option<HostId> {
        let host = self.woken.pop_front()?;
        self.hosts[host.place()].woken = false;
        Some(host)
    }

    pub(crate) fn wake(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        if !host.woken {
            host.woken = true;
            self.woken.push_back(HostId(u32::try_from(place).expect("below HOSTS_MAX")));
        }
    }

    fn persist_ends(&mut self, memory: u32) {
        let now = self.clock.now;
        self.memories[memory as usize].persist_ends(now);
        let owner = self.hosts.iter().position(|host| host.memories.contains(&memory));
        self.wake(owner.expect("every memory has a host"));
    }

    fn file_sync_ends(&mut self, place: u32) {
        let now = self.clock.now;
        self.hosts[place as usize].files.sync_ends(now);
        self.wake(place as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_ring_in_order_of_time_and_then_of_scheduling() {
        let mut world = World::new(1, FabricOptions::default());
        world.schedule(Instant(20), 1);
        world.schedule(Instant(10), 2);
        world.schedule(Instant(10), 3);
        assert_eq!(world.step(), Step::Timer(2));
        assert_eq!(world.step(), Step::Timer(3));
        assert_eq!(world.now(), Instant(10));
        world.schedule(Instant(5), 4);
        assert_eq!(world.step(), Step::Timer(4), "the past is now");
        assert_eq!(world.step(), Step::Timer(1));
        assert_eq!((world.now(), world.step()), (Instant(20), Step::Idle));
    }

    #[test]
    fn a_delay_stays_in_its_bounds_and_its_tail_is_rare_but_there() {
        let delay = Delay::with_tail(10, 20, 50, 900);
        let mut random = Random::new(7);
        let drawn: Vec<u128> = (0..10_000).map(|_| delay.draw(&mut random).as_nanos()).collect();
        assert!(drawn.iter().all(|ns| (10..=900).contains(ns)));
        let long = drawn.iter().filter(|ns| **ns > 20).count();
        assert!((50..1_000).contains(&long), "{long} of 10000 came from the tail");
    }
}
