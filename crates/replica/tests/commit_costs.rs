//! What one commit costs the leader, counted: no allocation, one WRITE and one READ for each
//! follower, and the bytes of the entry once for each.
//!
//! Three members share one thread until somebody leads; after that only the leader takes turns.
#![expect(unsafe_code, reason = "counts allocations")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "shm/files.rs"]
mod files;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use base::{
    ClusterId, Configuration, Digest, Durability, GroupId, Incarnation, Index, Instant, Member,
    MemberId,
};
use consensus::session::{Act, ENVELOPE_LEN, Limits, SessionTable};
use consensus::{Event, Params};
use fabric::shm::{Config, Shm};
use fabric::{
    Access, Caps, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId,
    RegisterError, Request as Verb, WorkRequest,
};
use files::PlainFiles;
use logfmt::{Identity, RegionLayout};
use pmem::{MappedRegion, Mapping};
use replica::machine::{
    ChunkEnd, Committed, Installer, LogTime, NoSuchChunk, Replies, StateMachine, View,
};
use replica::{
    Answer, Answered, CONTROL_BYTES, Env, Founding, Opening, Request, Resources, Shard, Token,
    landing_len,
};

const GROUP: GroupId = GroupId(1);
const MEMBERS: u32 = 3;
/// Bytes of each command.
const COMMAND_LEN: usize = 8;
/// Commits before counting begins. Buffers have their size then; and the log's own list of its
/// entries, which doubles when it is full, has room for as many as are counted.
const WARM_UP: u64 = 20_000;
const COMMITS: u64 = 10_000;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What was posted.
#[derive(Debug, Default)]
struct Posted {
    writes: Cell<u64>,
    reads: Cell<u64>,
    others: Cell<u64>,
    bytes: Cell<u64>,
}

/// Shared memory that counts what goes through it.
#[derive(Debug)]
struct CountingFabric {
    shm: Shm,
    posted: Rc<Posted>,
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get() + count);
}

impl Fabric for CountingFabric {
    fn caps(&self) -> Caps {
        self.shm.caps()
    }

    fn connect(&mut self, peer: MemberId) {
        self.shm.connect(peer);
    }

    fn set_greeting(&mut self, greeting: &[u8]) {
        self.shm.set_greeting(greeting);
    }

    fn disconnect(&mut self, qp: Qp) {
        self.shm.disconnect(qp);
    }

    fn register(
        &mut self,
        region: RegionId,
        range: Range<u64>,
        access: Access,
    ) -> Result<Key, RegisterError> {
        self.shm.register(region, range, access)
    }

    fn deregister(&mut self, key: Key) {
        self.shm.deregister(key);
    }

    fn is_quiesced(&mut self) -> bool {
        self.shm.is_quiesced()
    }

    fn post(&mut self, qp: Qp, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.shm.post(qp, chain)?;
        for work in chain {
            match work.request {
                Verb::Write { pieces, .. } => {
                    add(&self.posted.writes, 1);
                    for piece in pieces {
                        let len = match piece {
                            Piece::Local { len, .. } => u64::from(*len),
                            Piece::Inline(bytes) => bytes.len() as u64,
                        };
                        add(&self.posted.bytes, len);
                    }
                }
                Verb::ReadWord { .. } => add(&self.posted.reads, 1),
                Verb::Read { .. } | Verb::Send { .. } => add(&self.posted.others, 1),
            }
        }
        Ok(())
    }

    fn ring(&mut self, qp: Qp) {
        self.shm.ring(qp);
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.shm.poll(into)
    }

    fn next_event(&mut self, bytes: &mut Vec<u8>) -> Option<FabricEvent> {
        self.shm.next_event(bytes)
    }
}

/// A machine without state: what it does is not the commit's cost.
#[derive(Debug, Default)]
struct Nothing(Index, LogTime);

impl StateMachine for Nothing {
    type View = NothingFrozen;
    type Installer = NothingThawing;

    fn apply(&mut self, batch: &[Committed<'_>], replies: &mut Replies) {
        for committed in batch {
            (self.0, self.1) = (committed.index, committed.time);
            replies.push(committed.command);
        }
    }

    fn advance(&mut self, index: Index, time: LogTime) {
        (self.0, self.1) = (index, time);
    }

    fn applied(&self) -> (Index, LogTime) {
        (self.0, self.1)
    }

    fn read(&self, _query: &[u8], _reply: &mut Vec<u8>) {}

    fn next_expiry(&self) -> Option<LogTime> {
        None
    }

    fn checkpoint(&mut self, _chunk_bytes: u32) -> NothingFrozen {
        NothingFrozen(self.0, self.1)
    }

    fn installer(&self) -> NothingThawing {
        NothingThawing
    }

    fn digest(&self) -> Digest {
        Digest(self.0.0)
    }

    fn state_bytes(&self) -> u64 {
        0
    }

    fn lowest_referenced(&self) -> Option<Index> {
        None
    }

    fn backlog(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
struct NothingFrozen(Index, LogTime);

impl View for NothingFrozen {
    fn applied(&self) -> (Index, LogTime) {
        (self.0, self.1)
    }

    fn chunk(&mut self, _number: u32, _out: &mut Vec<u8>) -> Result<ChunkEnd, NoSuchChunk> {
        Ok(ChunkEnd::Last)
    }
}

#[derive(Debug)]
struct NothingThawing;

impl Installer for NothingThawing {
    type Machine = Nothing;
    type Error = Infallible;

    fn next(&self) -> u32 {
        0
    }

    fn chunk(&mut self, _bytes: &[u8]) -> Result<ChunkEnd, Infallible> {
        Ok(ChunkEnd::Last)
    }

    fn finish(self) -> Result<Nothing, Infallible> {
        Ok(Nothing::default())
    }
}

struct CostEnv;

impl Env for CostEnv {
    type Fabric = CountingFabric;
    type Region = MappedRegion;
    type Files = PlainFiles;
    type Machine = Nothing;
}

struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

fn member(id: u32) -> Member {
    Member { id: MemberId(id), incarnation: Incarnation(0x1000 + u64::from(id)) }
}

fn mapped(path: &Path, len: u64) -> MappedRegion {
    let mapping = Mapping::create(path, len).unwrap();
    MappedRegion::new(Arc::new(mapping), Durability::Process, || ()).unwrap()
}

/// Founds and opens a member.
fn shard(
    place: &Place,
    id: u32,
    layout: RegionLayout,
    now: Instant,
) -> (Shard<CostEnv>, Rc<Posted>) {
    let dir = place.0.join(id.to_string());
    std::fs::create_dir_all(&dir).unwrap();
    let mut shm = Shm::create(Config {
        dir: place.0.clone(),
        member: MemberId(id),
        incarnation: member(id).incarnation,
        may_kill_writers: false,
    })
    .unwrap();
    let files = ["control", "landing", "region"].map(|name| dir.join(name));
    let landing = landing_len(layout.segment_len());
    let lens = [CONTROL_BYTES, landing, layout.region_len().next_multiple_of(4096)];
    let [control, landing, mut region] = [0, 1, 2].map(|at| mapped(&files[at], lens[at]));
    let ids = files.each_ref().map(|path| shm.attach(path, Durability::Process).unwrap());
    let identity = Identity {
        cluster: ClusterId(0xc1),
        group: GROUP,
        member: MemberId(id),
        incarnation: member(id).incarnation,
    };
    let boot = pmem::boot_id().unwrap();
    let configuration = Configuration::of_voters((1..=MEMBERS).map(member));
    let mode = Durability::Process;
    replica::found(&mut region, &Founding { identity, configuration, mode, layout, boot });
    let posted = Rc::new(Posted::default());
    let fabric = CountingFabric { shm, posted: Rc::clone(&posted) };
    let resources = Resources { member: MemberId(id), fabric, control, landing, seed: id.into() };
    let mut shard = Shard::new(resources, (ids[0], ids[1])).unwrap();
    let params = Params { suspicion_timeout: Duration::from_secs(3_600), ..Params::default() };
    let opening = Opening {
        region,
        files: PlainFiles::open(&dir.join("state")),
        machine: Nothing::default(),
        sessions: SessionTable::new(Limits::default()),
        in_flight_window: params.window_bytes_max,
        params,
        identity,
        boot,
        seed: id.into(),
    };
    shard.join(opening, ids[2], now).unwrap();
    (shard, posted)
}

#[test]
fn a_commit_allocates_nothing_and_costs_one_write_and_one_read_for_each_follower() {
    let place = Place(std::env::temp_dir().join(format!("commit-costs-{}", std::process::id())));
    std::fs::create_dir_all(&place.0).unwrap();
    let clock = Clock::now();
    let now = || Instant(u64::try_from(clock.elapsed().as_nanos()).unwrap());
    // All that is counted fits what is granted before, so that no follower is needed meanwhile.
    let layout = RegionLayout::new(8 << 20, 4).unwrap();
    let mut shards: Vec<_> = (1..=MEMBERS).map(|id| shard(&place, id, layout, now())).collect();
    let follows = |shard: &Shard<CostEnv>| {
        shard.core(GROUP).unwrap().followers().filter(|follower| follower.is_replicating).count()
    };
    let mut has_asked = false;
    while follows(&shards[0].0) + 1 < MEMBERS as usize {
        for (shard, _) in &mut shards {
            shard.turn(now());
        }
        // Once everybody has found everybody.
        if !has_asked && clock.elapsed() > Duration::from_millis(500) {
            has_asked = true;
            shards[0].0.operate(GROUP, Event::Campaign { overrules: true }, now());
        }
    }
    let (leader, posted) = &mut shards[0];
    let mut answers: Vec<Answered> = Vec::new();
    let mut buffer = Vec::with_capacity(64);
    let mut commit = |leader: &mut Shard<CostEnv>| {
        buffer.clear();
        buffer.extend_from_slice(&[7; COMMAND_LEN]);
        let command = std::mem::take(&mut buffer);
        leader.request(GROUP, Token(1), Request::Write { act: Act::Plain, command });
        while answers.is_empty() {
            leader.turn(now());
            leader.take_answers(&mut answers);
        }
        for answered in answers.drain(..) {
            let Answer::Done(reply) = answered.answer else { panic!("{answered:?}") };
            buffer = reply;
        }
    };
    for _ in 0..WARM_UP {
        commit(leader);
    }
    let counts = |posted: &Posted| {
        [&posted.writes, &posted.reads, &posted.others, &posted.bytes].map(Cell::get)
    };
    let (before, allocations) = (counts(posted), ALLOCATIONS.get());
    for _ in 0..COMMITS {
        commit(leader);
    }
    let allocations = ALLOCATIONS.get() - allocations;
    let [writes, reads, others, bytes] = {
        let after = counts(posted);
        [0, 1, 2, 3].map(|at| after[at] - before[at])
    };
    let followers = u64::from(MEMBERS) - 1;
    let entry = logfmt::place::HEADER_LEN + (ENVELOPE_LEN + COMMAND_LEN) as u64;
    assert_eq!(allocations, 0, "of {COMMITS} commits");
    assert_eq!(writes, COMMITS * followers);
    assert_eq!(reads, COMMITS * followers);
    assert_eq!(others, 0);
    assert_eq!(bytes, COMMITS * followers * entry);
}
