//! Simulated persistent memory: what is visible, what is durable, and what lies between.
//!
//! ```text
//!   store / landing         persist: copies the dirty lines            power cut
//!        │                        of its range aside                       │
//!        v                               │                                 v
//!   visible bytes ── eviction, ──> durable bytes          each dirty line: old | new | torn,
//!        │           any time            ^                then visible := durable
//!        └──> snapshot ──(delay)─────────┘ and the ticket is reached
//! ```
//!
//! # Invariants
//! - A ticket is reached only after every byte that was visible in its range at the `persist` is
//!   durable. Bytes stored later may be durable as well, or not: nothing is said about them.
//! - A durable line never goes back to what it held before, whatever ends in whatever order:
//!   every store has a number, and a snapshot replaces only what is older than itself.
//! - A line that is dirty may become durable at any moment (`eviction_one_in`), so that *any*
//!   content which was visible since may be what a power cut leaves.
//! - Tickets are reached in order. After a failed sync none is reached any more in that process.

use std::collections::VecDeque;
use std::ops::Range;

use base::{Durability, Duration, Instant, Random};
use pmem::{LINE, Region, RegionError, Ticket};

use crate::bits::Bits;
use crate::world::{Delay, Event, SharedWorld};

const LINE_BYTES: usize = 64;
const _: () = assert!(LINE == 64);
const PAGE_LINES: usize = 64;

/// Persists that wait at one time; more are taken together with the last that waits, as a group
/// commit would.
const PENDING_MAX: usize = 256;

/// How a memory behaves.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// What it promises.
    pub mode: Durability,
    /// How long a `persist` takes.
    pub persist: Delay,
    /// One in so many stores to a dirty line finds that the line was written back just before; 0
    /// is never.
    pub eviction_one_in: u64,
    /// Whether a power cut decides for pages of 4 KiB first (the page cache) and then for lines,
    /// or for lines alone.
    pub pages: bool,
    /// Whether a failed sync makes the system take the lines for clean, as page caches do: the
    /// next sync then succeeds without them, although they never became durable.
    pub forgets_on_failure: bool,
}

impl MemoryOptions {
    /// What is usual for a mode: microseconds for cache lines, a good part of a millisecond for a
    /// sync.
    #[must_use]
    pub const fn of(mode: Durability) -> Self {
        let sync = Delay::with_tail(20_000, 400_000, 50, 8_000_000);
        let lines = Delay::with_tail(100, 2_000, 50, 50_000);
        let (persist, pages) = match mode {
            Durability::Sync => (sync, true),
            Durability::Process => (lines, true),
            Durability::Volatile
            | Durability::ReadBack
            | Durability::Platform
            | Durability::Flush
            | Durability::TargetCpu => (lines, false),
        };
        Self { mode, persist, eviction_one_in: 8, pages, forgets_on_failure: true }
    }
}

/// The dirty lines of a range as they were visible at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(Vec<Line>);

#[derive(Debug)]
struct Line {
    line: usize,
    stored: u64,
    bytes: [u8; LINE_BYTES],
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    due: Instant,
    snapshot: Snapshot,
}

/// The memory behind a region. Offsets are in bytes from its start.
#[derive(Debug)]
pub struct Memory {
    name: String,
    options: MemoryOptions,
    random: Random,
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Per line, the number of the last store to it.
    stored: Vec<u64>,
    /// Per line, the number of the last store that is durable. Never above `stored`.
    kept: Vec<u64>,
    /// Lines that the system knows to need a write-back.
    dirty: Bits,
    /// Lines whose durable bytes may differ from the visible ones: the dirty ones, and those that
    /// a failed or lying device lost.
    differs: Bits,
    stores: u64,
    pending: VecDeque<Pending>,
    spare: Vec<Snapshot>,
    ticket: Ticket,
    reached: Ticket,
    error: Option<RegionError>,
    syncs_to_fail: u32,
    lines_to_lose: u32,
    slowness: u32,
}

impl Memory {
    pub(crate) fn new(name: String, len: u64, options: MemoryOptions, random: Random) -> Self {
        assert!(len > 0 && len.is_multiple_of(4096), "a memory is made of whole pages");
        let bytes = place(len);
        let lines = bytes / LINE_BYTES;
        Self {
            name,
            options,
            random,
            visible: vec![0; bytes],
            durable: vec![0; bytes],
            stored: vec![0; lines],
            kept: vec![0; lines],
            dirty: Bits::new(lines),
            differs: Bits::new(lines),
            stores: 0,
            pending: VecDeque::new(),
            spare: Vec::new(),
            ticket: Ticket(0),
            reached: Ticket(0),
            error: None,
            syncs_to_fail: 0,
            lines_to_lose: 0,
            slowness: 1,
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.visible.len() as u64
    }

    /// Never: a memory has at least one page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.visible.is_empty()
    }

    /// What it promises.
    #[must_use]
    pub const fn mode(&self) -> Durability {
        self.options.mode
    }

    /// The visible bytes of a range.
    #[must_use]
    pub fn visible(&self, range: Range<u64>) -> &[u8] {
        &self.visible[place(range.start)..place(range.end)]
    }

    /// The durable bytes of a range: what surely is there after a power cut unless stored anew.
    #[must_use]
    pub fn durable_bytes(&self, range: Range<u64>) -> &[u8] {
        &self.durable[place(range.start)..place(range.end)]
    }

    /// One aligned word as it is visible.
    ///
    /// # Panics
    /// When `at` is no multiple of 8 or lies outside.
    #[must_use]
    pub fn word(&self, at: u64) -> u64 {
        assert!(at.is_multiple_of(8), "a word is aligned");
        let bytes = self.visible(at..at + 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Makes bytes visible, whoever stores them.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        let start = place(at);
        let end = start + bytes.len();
        assert!(end <= self.visible.len(), "{}: a store lies outside", self.name);
        let mut from = start;
        while from < end {
            let line = from / LINE_BYTES;
            let to = end.min((line + 1) * LINE_BYTES);
            self.before_store(line);
            self.visible[from..to].copy_from_slice(&bytes[from - start..to - start]);
            if self.options.mode == Durability::Platform {
                self.durable[from..to].copy_from_slice(&bytes[from - start..to - start]);
            }
            from = to;
        }
    }

    fn before_store(&mut self, line: usize) {
        match self.options.mode {
            Durability::Platform | Durability::Volatile => return,
            Durability::Process
            | Durability::Sync
            | Durability::ReadBack
            | Durability::Flush
            | Durability::TargetCpu => {}
        }
        if self.dirty.has(line) && self.random.one_in(self.options.eviction_one_in) {
            let range = line * LINE_BYTES..(line + 1) * LINE_BYTES;
            self.durable[range.clone()].copy_from_slice(&self.visible[range]);
            self.kept[line] = self.stored[line];
        }
        self.stores += 1;
        self.stored[line] = self.stores;
        self.dirty.add(line);
        self.differs.add(line);
    }

    /// Copies the dirty lines of a range aside: a write-back of exactly these bytes begins.
    pub(crate) fn snapshot(&mut self, range: Range<u64>) -> Snapshot {
        let mut snapshot = self.spare.pop().unwrap_or_default();
        self.add_to(&mut snapshot, range);
        snapshot
    }

    pub(crate) fn add_to(&self, snapshot: &mut Snapshot, range: Range<u64>) {
        let lines = place(range.start) / LINE_BYTES..place(range.end).div_ceil(LINE_BYTES);
        let mut from = lines.start;
        while let Some(line) = self.dirty.first_in(from..lines.end) {
            let mut bytes = [0; LINE_BYTES];
            bytes.copy_from_slice(&self.visible[line * LINE_BYTES..(line + 1) * LINE_BYTES]);
            snapshot.0.push(Line { line, stored: self.stored[line], bytes });
            from = line + 1;
        }
    }

    /// The write-back of a snapshot ends: its bytes are durable, unless the device fails or lies.
    ///
    /// # Errors
    /// [`RegionError::Sync`] when the write-back failed: each line may be durable or not.
    pub(crate) fn settle(&mut self, mut snapshot: Snapshot) -> Result<(), RegionError> {
        let failed = self.syncs_to_fail > 0;
        if failed {
            self.syncs_to_fail -= 1;
            let what = "input/output error (planted)".to_owned();
            self.error.get_or_insert_with(|| RegionError::Sync { path: self.name.clone(), what });
        }
        for Line { line, stored, bytes } in snapshot.0.drain(..) {
            let lost = (failed && self.random.one_in(2)) || self.device_lies();
            let forgotten = !(failed && lost) || self.options.forgets_on_failure;
            if stored == self.stored[line] && forgotten {
                self.dirty.remove(line);
            }
            if lost {
                continue;
            }
            if self.kept[line] < stored {
                self.kept[line] = stored;
                self.durable[line * LINE_BYTES..(line + 1) * LINE_BYTES].copy_from_slice(&bytes);
            }
            if self.kept[line] == self.stored[line] {
                self.differs.remove(line);
            }
        }
        self.spare.push(snapshot);
        if failed { Err(self.error.clone().expect("just set")) } else { Ok(()) }
    }

    const fn device_lies(&mut self) -> bool {
        let lies = self.lines_to_lose > 0;
        self.lines_to_lose = self.lines_to_lose.saturating_sub(1);
        lies
    }

    /// How long a sync that begins now takes, by a local `persist` or by the card.
    pub(crate) fn sync_delay(&mut self) -> Duration {
        self.options.persist.draw(&mut self.random).saturating_mul(self.slowness)
    }

    /// Begins a local persist; the second value says when it ends, if it has not ended already.
    fn persist(&mut self, now: Instant, range: Range<u64>) -> (Ticket, Option<Instant>) {
        assert!(range.start <= range.end && range.end <= self.len(), "{}: outside", self.name);
        self.ticket.0 += 1;
        if !self.options.mode_waits() {
            self.reached = self.ticket;
            return (self.ticket, None);
        }
        let due = now + self.sync_delay();
        if self.pending.len() == PENDING_MAX {
            let mut last = self.pending.pop_back().expect("the queue is full");
            self.add_to(&mut last.snapshot, range);
            last.ticket = self.ticket;
            last.due = last.due.max(due);
            let due = last.due;
            self.pending.push_back(last);
            return (self.ticket, Some(due));
        }
        let due = self.pending.back().map_or(due, |last| last.due.max(due));
        let snapshot = self.snapshot(range);
        self.pending.push_back(Pending { ticket: self.ticket, due, snapshot });
        (self.ticket, Some(due))
    }

    pub(crate) fn persist_ends(&mut self, now: Instant) {
        while self.pending.front().is_some_and(|first| first.due <= now) {
            let first = self.pending.pop_front().expect("there is a first");
            let settled = self.settle(first.snapshot);
            if settled.is_ok() && self.error.is_none() {
                self.reached = first.ticket;
            }
        }
    }

    fn reached(&self) -> Result<Ticket, RegionError> {
        self.error.clone().map_or(Ok(self.reached), Err)
    }

    /// A new process opens the memory: the failure that the last one saw is not shown to it, and
    /// what that one began to persist is nothing it may count on.
    pub(crate) fn reopen(&mut self) {
        self.error = None;
    }

    /// Whether a READ of the card makes what landed before it durable at once.
    pub(crate) const fn read_flushes(&self) -> bool {
        matches!(self.options.mode, Durability::ReadBack | Durability::Flush)
    }

    /// Whether a READ of the card waits for a sync of what landed before it.
    pub(crate) const fn read_syncs(&self) -> bool {
        matches!(self.options.mode, Durability::Sync | Durability::TargetCpu)
    }

    /// The process that owns the memory is gone. Shared and page-cached bytes stay.
    pub(crate) fn process_crash(&mut self) {
        if self.options.mode == Durability::Volatile {
            self.visible.fill(0);
        }
    }

    /// Power is lost: see the picture in the module.
    pub(crate) fn power_cut(&mut self) {
        if self.options.mode == Durability::Volatile {
            self.visible.fill(0);
        }
        self.cut_pending();
        let lines = self.stored.len();
        let mut from = 0;
        let mut page = Page { number: usize::MAX, fate: Fate::Torn };
        while let Some(line) = self.differs.first_in(from..lines) {
            from = line + 1;
            if self.dirty.has(line) {
                let fate = self.fate_of(line, &mut page);
                self.cut_line(line, fate);
            }
            let range = line * LINE_BYTES..(line + 1) * LINE_BYTES;
            self.visible[range.clone()].copy_from_slice(&self.durable[range]);
            self.kept[line] = self.stored[line];
            self.dirty.remove(line);
            self.differs.remove(line);
        }
    }

    /// Each line of a write-back under way has arrived or has not.
    fn cut_pending(&mut self) {
        while let Some(mut pending) = self.pending.pop_front() {
            for Line { line, stored, bytes } in pending.snapshot.0.drain(..) {
                if self.kept[line] < stored && self.random.one_in(2) {
                    self.kept[line] = stored;
                    self.durable[line * LINE_BYTES..(line + 1) * LINE_BYTES]
                        .copy_from_slice(&bytes);
                }
            }
        }
    }

    fn fate_of(&mut self, line: usize, page: &mut Page) -> Fate {
        if !self.options.pages {
            return Fate::draw(&mut self.random);
        }
        if page.number != line / PAGE_LINES {
            *page = Page { number: line / PAGE_LINES, fate: Fate::draw(&mut self.random) };
        }
        match page.fate {
            Fate::Torn => Fate::draw(&mut self.random),
            Fate::Old | Fate::New => page.fate,
        }
    }

    fn cut_line(&mut self, line: usize, fate: Fate) {
        let words = match fate {
            Fate::Old => return,
            Fate::New => u64::MAX,
            Fate::Torn => self.random.next(),
        };
        for word in (0..LINE_BYTES / 8).filter(|word| words >> word & 1 == 1) {
            let at = line * LINE_BYTES + word * 8;
            self.durable[at..at + 8].copy_from_slice(&self.visible[at..at + 8]);
        }
    }

    /// Plants a fault: the next `count` syncs (local or by the card) fail.
    pub const fn fail_syncs(&mut self, count: u32) {
        self.syncs_to_fail = count;
    }

    /// Plants a fault: the device acknowledges the next `count` lines and does not keep them.
    pub const fn lose_writes(&mut self, count: u32) {
        self.lines_to_lose = count;
    }

    /// Makes syncs take `factor` times as long; 1 is ordinary.
    pub const fn slow_down(&mut self, factor: u32) {
        self.slowness = factor;
    }

    /// Plants a fault: one bit of one byte is wrong, now and after a power cut.
    ///
    /// # Panics
    /// When `at` lies outside or `bit` is not below 8.
    pub fn flip_bit(&mut self, at: u64, bit: u8) {
        assert!(bit < 8, "a byte has eight bits");
        self.visible[place(at)] ^= 1 << bit;
        self.durable[place(at)] ^= 1 << bit;
    }
}

impl MemoryOptions {
    /// Whether a persist takes time in this mode.
    const fn mode_waits(&self) -> bool {
        match self.mode {
            Durability::Volatile | Durability::Process | Durability::Platform => false,
            Durability::Sync | Durability::ReadBack | Durability::Flush | Durability::TargetCpu => {
                true
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Old,
    New,
    Torn,
}

impl Fate {
    const fn draw(random: &mut Random) -> Self {
        match random.below(3) {
            0 => Self::Old,
            1 => Self::New,
            _ => Self::Torn,
        }
    }
}

struct Page {
    number: usize,
    fate: Fate,
}

pub(crate) fn place(at: u64) -> usize {
    usize::try_from(at).expect("offsets of simulated memories fit the address space")
}

/// A process's handle on a memory: the local side of the region.
#[derive(Debug)]
pub struct SimRegion {
    world: SharedWorld,
    memory: u32,
}

impl SimRegion {
    pub(crate) fn new(world: &SharedWorld, memory: u32) -> Self {
        Self { world: SharedWorld::clone(world), memory }
    }

    /// Which memory of the world this is.
    #[must_use]
    pub const fn memory(&self) -> u32 {
        self.memory
    }

    fn look<T>(&self, at: impl FnOnce(&Memory) -> T) -> T {
        at(&self.world.borrow().memories[self.memory as usize])
    }

    fn change<T>(&mut self, how: impl FnOnce(&mut Memory) -> T) -> T {
        how(&mut self.world.borrow_mut().memories[self.memory as usize])
    }
}

impl Region for SimRegion {
    fn len(&self) -> u64 {
        self.look(Memory::len)
    }

    fn durability(&self) -> Durability {
        self.look(Memory::mode)
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.look(|memory| into.copy_from_slice(memory.visible(at..at + into.len() as u64)));
    }

    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self.change(|memory| memory.put(at, from));
    }

    fn load(&self, at: u64) -> u64 {
        self.look(|memory| memory.word(at))
    }

    fn store(&mut self, at: u64, value: u64) {
        assert!(at.is_multiple_of(8), "a word is aligned");
        self.change(|memory| memory.put(at, &value.to_le_bytes()));
    }

    /// Stores of one turn are visible at once: there is nothing to wait for. (A forgotten fence is
    /// found by the litmus tests of the real memory.)
    fn fence(&self) {}

    fn persist(&mut self, range: Range<u64>) -> Ticket {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        let memory = &mut world.memories[self.memory as usize];
        let (ticket, due) = memory.persist(world.clock.now, range);
        if let Some(due) = due {
            world.clock.schedule(due, Event::Persist(self.memory));
        }
        ticket
    }

    fn durable(&mut self) -> Result<Ticket, RegionError> {
        self.look(Memory::reached)
    }
}

#[cfg(test)]
mod tests;
