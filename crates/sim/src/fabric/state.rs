//! What the network remembers: ends of queue pairs, their pipes, registrations, links.

use std::collections::VecDeque;
use std::ops::Range;

use base::{Duration, Random};
use fabric::{Caps, Completion, FabricEvent, Key, Qp, Status};

use crate::memory::Snapshot;
use crate::world::Delay;

/// Events that wait for one process; at this bound a sender waits, as without posted receives.
pub(super) const EVENTS_WAITING_MAX: usize = 4_096;
/// Requests of one queue pair that are posted and not known to be executed.
pub(super) const OUTSTANDING_MAX: usize = 4_096;
/// Messages of one queue pair that are posted and not known to be delivered.
pub(super) const MESSAGES_MAX: usize = 256;
/// Registrations that one process may hold at a time.
pub(super) const REGISTRATIONS_MAX: usize = 65_536;
/// Ranges of one queue pair that wait for a flush, apart from one for each further memory.
const UNFLUSHED_MAX: usize = 64;
/// Emptied buffers that are kept for the next request.
const SPARE_MAX: usize = 1_024;

/// How the network behaves. All probabilities are "one in so many"; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct FabricOptions {
    /// The limits that every process sees.
    pub caps: Caps,
    /// From the doorbell to the moment when local pieces are read.
    pub transmit: Delay,
    /// One way over the wire, for pairs without a delay of their own.
    pub flight: Delay,
    /// Between two landings of one queue pair.
    pub land: Delay,
    /// Between the flush and the sample of a READ.
    pub sample: Delay,
    /// From the end of a queue pair at one side until the other side learns of it.
    pub notice: Delay,
    /// How long requests of a dead queue pair may wait before they land.
    pub late: Delay,
    /// From `deregister` to its event.
    pub deregister: Delay,
    /// From a stalled request to `PeerGone`; drawn up to twice as long.
    pub retry_timeout: Duration,
    /// How often a READ is executed again before its completion is delivered.
    pub reexecute_one_in: u64,
    /// How often the sender pauses after a request of a chain.
    pub split_chain_one_in: u64,
    /// How often the other side's requests go on being executed, until it learns that the queue
    /// pair is gone, after this side dropped it or ended (as in shared memory). Otherwise only
    /// what is on the wire may land.
    pub half_open_one_in: u64,
    /// Whether what was sent to an earlier process of a host may land after the next one started,
    /// as in shared memory. A card forgets it when the process ends.
    pub late_after_restart: bool,
    /// Whether a deregistration waits for a stopped or cut-off writer, as in shared memory.
    pub deregister_waits_for_writer: bool,
    /// How often the end of a process is told as such (`exited`).
    pub exit_known_one_in: u64,
}

impl Default for FabricOptions {
    fn default() -> Self {
        Self {
            caps: Caps {
                reads_max: 16,
                chain_max: 64,
                pieces_max: 16,
                inline_max: 4_096,
                message_max: 4_096,
            },
            transmit: Delay::with_tail(100, 1_000, 200, 200_000),
            flight: Delay::with_tail(1_000, 6_000, 200, 2_000_000),
            land: Delay::with_tail(20, 400, 200, 300_000),
            sample: Delay::with_tail(20, 1_000, 100, 500_000),
            notice: Delay::with_tail(10_000, 500_000, 20, 20_000_000),
            late: Delay::with_tail(1_000, 3_000_000, 10, 60_000_000),
            deregister: Delay::with_tail(5_000, 300_000, 20, 20_000_000),
            retry_timeout: Duration::from_millis(40),
            reexecute_one_in: 50,
            split_chain_one_in: 8,
            half_open_one_in: 2,
            late_after_restart: true,
            deregister_waits_for_writer: true,
            exit_known_one_in: 2,
        }
    }
}

/// What waits for the process of a host. Emptied when the process ends.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<Waiting>,
    /// Attached regions: the memory behind each `RegionId`.
    pub(super) regions: Vec<u32>,
    pub(super) greeting: Vec<u8>,
    /// Per host, the end of the queue pair with it that is opening or open.
    pub(super) current: Vec<Option<u32>>,
    /// Per host, whether an attempt to connect is under way.
    pub(super) attempts: Vec<bool>,
    pub(super) registrations: usize,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) event: FabricEvent,
    pub(super) bytes: Vec<u8>,
}

/// The life of one side of a queue pair as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Made, but the owner does not know yet.
    Opening,
    /// Known to the owner.
    Open,
    /// Gone for the owner.
    Closed,
}

/// One side of a queue pair, and the requests that this side posted. The other side's number
/// differs in the lowest bit.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: u16,
    pub(super) life: u32,
    pub(super) phase: Phase,
    /// The owner must still learn that the queue pair is gone, and cannot be reached.
    pub(super) notice_waits: bool,
    pub(super) notice_scheduled: bool,
    pub(super) exited: bool,
    pub(super) rings: bool,
    pub(super) greeting: Vec<u8>,
    pub(super) pipe: Pipe,
}

/// Requests of one side on their way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) queue: VecDeque<Work>,
    /// How many of `queue`, from the front, are on the wire.
    pub(super) on_wire: usize,
    pub(super) stage: Stage,
    /// At most so many of the requests on the wire may still be executed; `None`: all.
    pub(super) limit: Option<usize>,
    /// The owner's side is dead: nothing is answered.
    pub(super) orphan: bool,
    /// How long the next execution still waits, once.
    pub(super) late: Option<Duration>,
    pub(super) transmit_scheduled: bool,
    pub(super) execute_scheduled: bool,
    pub(super) execute_stalled: bool,
    pub(super) answers: VecDeque<Answer>,
    pub(super) deliver_scheduled: bool,
    pub(super) deliver_stalled: bool,
    pub(super) timer_scheduled: bool,
    /// Counts deliveries, so that a timer sees whether anything moved.
    pub(super) progress: u64,
    pub(super) progress_at_timer: u64,
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) signaled: u32,
    pub(super) messages: usize,
    pub(super) posted: u64,
    /// What landed through this pipe and was not made durable by a READ of it.
    pub(super) unflushed: Vec<(u32, Range<u64>)>,
}

impl Pipe {
    /// Remembers that a range needs the flush of a READ. At the bound ranges are joined: more than
    /// was asked for becomes durable then, which a card may do at any time.
    pub(super) fn note_unflushed(&mut self, memory: u32, range: Range<u64>) {
        let is_full = UNFLUSHED_MAX <= self.unflushed.len();
        let joins = |known: &Range<u64>| is_full || known.end == range.start;
        let known = self.unflushed.iter_mut().rev();
        match known.into_iter().find(|(number, known)| *number == memory && joins(known)) {
            Some((_, known)) => {
                known.start = known.start.min(range.start);
                known.end = known.end.max(range.end);
            }
            None => self.unflushed.push((memory, range)),
        }
    }
}

/// Where the execution of the front request stands.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Begin,
    /// Chunks of a WRITE that have not landed, in the order in which they will, last first.
    Landing(Vec<Chunk>),
    /// A sync by the landing provider is under way.
    Syncing(Vec<(u32, Snapshot)>),
    /// All before is placed and as durable as the mode says.
    Flushed,
}

/// A piece of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A posted request.
#[derive(Debug)]
pub(super) struct Work {
    /// Its number on this pipe.
    pub(super) number: u64,
    pub(super) operation: Operation,
}

#[derive(Debug)]
pub(super) enum Operation {
    Write {
        key: Key,
        offset: u64,
        bytes: Vec<u8>,
        /// Local pieces, read at transmission: place in `bytes`, memory, offset there, length.
        gather: Vec<(u32, u32, u64, u32)>,
    },
    ReadWord {
        key: Key,
        offset: u64,
        /// A word loaded before its time by a planted fault.
        early: Option<u64>,
    },
    Read {
        key: Key,
        offset: u64,
        memory: u32,
        at: u64,
        len: u32,
        bytes: Vec<u8>,
    },
    Send {
        bytes: Vec<u8>,
    },
}

/// What comes back for request `number`; acknowledges all before it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) status: Status,
    pub(super) word: u64,
    /// Where the word can be loaded again by a second execution.
    pub(super) again: Option<(Key, u64)>,
    /// Bytes of a READ: local memory, offset there, bytes.
    pub(super) data: Option<(u32, u64, Vec<u8>)>,
}

/// A request whose owner does not know its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) is_signaled: bool,
    pub(super) is_message: bool,
}

/// A registration. Its key is its place in the list plus one.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) host: u16,
    pub(super) life: u32,
    pub(super) memory: u32,
    pub(super) range: Range<u64>,
    /// The end that may write; `None`: everybody may read.
    pub(super) writer: Option<u32>,
    pub(super) phase: KeyPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPhase {
    Valid,
    /// `deregister` was called: landings go on until it ends.
    Ending,
    Gone,
}

/// All of the network.
#[derive(Debug)]
pub(crate) struct Network {
    pub(super) options: FabricOptions,
    pub(super) ends: Vec<End>,
    pub(super) registrations: Vec<Registration>,
    hosts: usize,
    blocked: Vec<bool>,
    flight: Vec<Option<Delay>>,
    spare: Vec<Vec<u8>>,
}

impl Network {
    pub(crate) const fn new(options: FabricOptions) -> Self {
        Self {
            options,
            ends: Vec::new(),
            registrations: Vec::new(),
            hosts: 0,
            blocked: Vec::new(),
            flight: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Makes room for hosts; those that were there keep their links.
    pub(crate) fn grow(&mut self, hosts: usize) {
        let (old, blocked, flight) = (self.hosts, self.blocked.clone(), self.flight.clone());
        self.hosts = hosts;
        self.blocked = vec![false; hosts * hosts];
        self.flight = vec![None; hosts * hosts];
        for (place, (was_blocked, delay)) in blocked.into_iter().zip(flight).enumerate() {
            let link = self.link(place / old, place % old);
            self.blocked[link] = was_blocked;
            self.flight[link] = delay;
        }
    }

    const fn link(&self, from: usize, to: usize) -> usize {
        from * self.hosts + to
    }

    pub(super) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.blocked[self.link(from, to)]
    }

    pub(super) fn block(&mut self, from: usize, to: usize, blocked: bool) {
        let link = self.link(from, to);
        self.blocked[link] = blocked;
    }

    pub(super) fn set_flight(&mut self, from: usize, to: usize, delay: Delay) {
        let link = self.link(from, to);
        self.flight[link] = Some(delay);
    }

    pub(super) fn draw_flight(&self, from: usize, to: usize, random: &mut Random) -> Duration {
        self.flight[self.link(from, to)].unwrap_or(self.options.flight).draw(random)
    }

    pub(super) fn end(&self, end: u32) -> &End {
        &self.ends[end as usize]
    }

    pub(super) fn end_mut(&mut self, end: u32) -> &mut End {
        &mut self.ends[end as usize]
    }

    pub(super) fn pipe(&mut self, end: u32) -> &mut Pipe {
        &mut self.ends[end as usize].pipe
    }

    /// An empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Finds the memory behind a peer's name for it, as the card at `target`'s host would.
    pub(super) fn resolve(
        &self,
        target: u32,
        key: Key,
        range: Range<u64>,
        writes: bool,
    ) -> Option<(u32, u64)> {
        let place = usize::try_from(key.0.checked_sub(1)?).ok()?;
        let registration = self.registrations.get(place)?;
        let end = self.end(target);
        let is_valid = registration.phase != KeyPhase::Gone
            && registration.host == end.host
            && registration.life == end.life;
        let has_right = match registration.writer {
            Some(writer) => writer == target,
            None => !writes,
        };
        let len = registration.range.end - registration.range.start;
        let is_inside = range.start <= range.end && range.end <= len;
        (is_valid && has_right && is_inside)
            .then(|| (registration.memory, registration.range.start + range.start))
    }
}

/// The other side of a queue pair.
pub(super) const fn other(end: u32) -> u32 {
    end ^ 1
}

pub(super) const fn handle_of(end: u32) -> Qp {
    Qp(end as u64 + 1)
}

/// The end behind a handle, if it can be one.
pub(super) fn end_of(qp: Qp) -> Option<u32> {
    u32::try_from(qp.0.checked_sub(1)?).ok()
}
