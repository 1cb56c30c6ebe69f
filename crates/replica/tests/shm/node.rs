//! One member: a thread with a shard on shared memory and files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant as Clock;

use base::{ClusterId, Configuration, Durability, GroupId, Incarnation, Instant, Member, MemberId};
use consensus::session::{Limits, SessionTable};
use consensus::{Event, Params};
use fabric::shm::{Config, Shm};
use logfmt::{Identity, RegionLayout};
use pmem::{MappedRegion, Mapping};
use replica::machine::StateMachine as _;
use replica::{
    Answered, CONTROL_BYTES, Env, Founding, Opening, Resources, Shard, Turn, landing_len,
};
use store::Store;

use crate::files::PlainFiles;
use crate::notes::{Notes, Seen};

/// Bytes that the state machine may hold.
const STATE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct ShmEnv;

impl Env for ShmEnv {
    type Fabric = Shm;
    type Region = MappedRegion;
    type Files = PlainFiles;
    type Machine = Store;
}

/// What all members have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) dir: PathBuf,
    pub(crate) members: u32,
    pub(crate) groups: u32,
    pub(crate) layout: RegionLayout,
    pub(crate) mode: Durability,
    pub(crate) params: Params,
    /// When time began.
    pub(crate) clock: Clock,
}

impl Setup {
    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        (1..=self.members).map(MemberId)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (1..=self.groups).map(GroupId)
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap())
    }

    fn identity(id: MemberId, group: GroupId) -> Identity {
        let incarnation = member(id).incarnation;
        Identity { cluster: ClusterId(0xc1), group, member: id, incarnation }
    }

    fn region_len(&self) -> u64 {
        self.layout.region_len().next_multiple_of(4096)
    }

    fn member_dir(&self, id: MemberId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Makes what a member has before it starts for the first time.
    pub(crate) fn found(&self, id: MemberId) {
        let dir = self.member_dir(id);
        std::fs::create_dir_all(&dir).unwrap();
        Mapping::create(&dir.join("control"), CONTROL_BYTES).unwrap();
        let landing = landing_len(self.layout.segment_len()).next_multiple_of(4096);
        Mapping::create(&dir.join("landing"), landing).unwrap();
        for group in self.groups() {
            let path = dir.join(format!("region-{group}"));
            let mapping = Mapping::create(&path, self.region_len()).unwrap();
            let founding = Founding {
                identity: Self::identity(id, group),
                configuration: Configuration::of_voters(self.ids().map(member)),
                mode: self.mode,
                layout: self.layout,
                boot: pmem::boot_id().unwrap(),
            };
            let mut region = region(mapping, Durability::Process, || {});
            replica::found(&mut region, &founding);
            region.mapping().sync().unwrap();
        }
    }
}

/// A member in its only life.
fn member(id: MemberId) -> Member {
    Member { id, incarnation: Incarnation(0x1000 + u64::from(id.0)) }
}

fn region(
    mapping: Mapping,
    mode: Durability,
    on_progress: impl Fn() + Send + 'static,
) -> MappedRegion {
    MappedRegion::new(Arc::new(mapping), mode, on_progress).unwrap()
}

/// Opens the whole of a file.
fn open(path: &Path) -> Mapping {
    Mapping::open(path, path.metadata().unwrap().len()).unwrap()
}

/// What a test asks the thread of a member to do.
pub(crate) type Order = Box<dyn FnOnce(&mut Node) + Send>;

pub(crate) struct Node {
    pub(crate) shard: Shard<ShmEnv>,
    /// Turns taken, also those that did nothing.
    pub(crate) turns: u64,
    id: MemberId,
    setup: Setup,
    notes: Arc<Notes>,
}

impl Node {
    /// Opens a member's files; `shm` is its place among the others.
    pub(crate) fn open(id: MemberId, setup: Setup, notes: Arc<Notes>, mut shm: Shm) -> Self {
        let dir = setup.member_dir(id);
        let waker = shm.waker();
        let mut attach = |name: &str, mode| shm.attach(&dir.join(name), mode).unwrap();
        let process = Durability::Process;
        let ids = (attach("control", process), attach("landing", process));
        let regions: Vec<_> =
            setup.groups().map(|group| attach(&format!("region-{group}"), setup.mode)).collect();
        let seed = u64::from(id.0) + setup.now().0;
        let shared = |name: &str| region(open(&dir.join(name)), process, || {});
        let (control, landing) = (shared("control"), shared("landing"));
        let resources = Resources { member: id, fabric: shm, control, landing, seed };
        let mut shard = Shard::new(resources, ids).unwrap();
        for (group, region_id) in setup.groups().zip(regions) {
            let mapping = open(&dir.join(format!("region-{group}")));
            let waker = waker.clone();
            let opening = Opening {
                region: region(mapping, setup.mode, move || waker.wake()),
                files: PlainFiles::open(&dir.join(format!("state-{group}"))),
                machine: Store::new(STATE_BYTES_MAX),
                sessions: SessionTable::new(Limits::default()),
                params: setup.params.clone(),
                identity: Setup::identity(id, group),
                boot: pmem::boot_id().unwrap(),
                in_flight_window: setup.params.window_bytes_max,
                seed: seed ^ u64::from(group.0) << 32,
            };
            shard.join(opening, region_id, setup.now()).unwrap();
        }
        Self { shard, turns: 0, id, setup, notes }
    }

    pub(crate) fn shm(id: MemberId, setup: &Setup) -> Shm {
        let dir = setup.dir.join("run");
        std::fs::create_dir_all(&dir).unwrap();
        let incarnation = member(id).incarnation;
        Shm::create(Config { dir, member: id, incarnation, may_kill_writers: false }).unwrap()
    }

    /// Runs until nobody can give orders any more.
    pub(crate) fn run(mut self, orders: &Receiver<Order>) {
        self.note(Vec::new());
        while self.obey(orders) {
            if self.turn().worked {
                continue;
            }
            self.shard.arm();
            if !self.obey(orders) {
                return;
            }
            let turn = self.turn();
            if !turn.worked {
                self.shard.wait(turn.wake_at.since(self.setup.now()));
            }
        }
    }

    /// Does what is asked; whether there is somebody who may ask for more.
    fn obey(&mut self, orders: &Receiver<Order>) -> bool {
        loop {
            match orders.try_recv() {
                Ok(order) => order(self),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn turn(&mut self) -> Turn {
        self.turns += 1;
        let turn = self.shard.turn(self.setup.now());
        // Some requests are answered before any turn.
        let mut answers = Vec::new();
        self.shard.take_answers(&mut answers);
        if turn.worked || !answers.is_empty() {
            self.note(answers);
        }
        turn
    }

    /// Tells the test how things are here.
    fn note(&mut self, answers: Vec<Answered>) {
        let mut notices = Vec::new();
        self.shard.take_notices(&mut notices);
        let seen: Vec<_> = self.setup.groups().map(|group| (group, self.look(group))).collect();
        self.notes.write(self.id, seen, answers, notices);
    }

    fn look(&self, group: GroupId) -> Seen {
        let core = self.shard.core(group).unwrap();
        Seen {
            leads: core.leading_term(),
            term: core.term(),
            tail: self.shard.log(group).unwrap().tail().index,
            commit: core.commit_index(),
            applied: self.shard.applied(group).unwrap(),
            is_failed: core.is_failed(),
        }
    }

    /// Passes on an operator's event.
    pub(crate) fn operate(&mut self, group: GroupId, event: Event) {
        self.shard.operate(group, event, self.setup.now());
    }

    /// The last applied entry, and a hash of the state that it led to.
    pub(crate) fn state(&self, group: GroupId) -> (base::Index, base::Digest) {
        let machine = self.shard.machine(group).unwrap();
        (machine.applied().0, machine.digest())
    }
}
