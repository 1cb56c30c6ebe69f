//! One simulated member: a host, its memories and files, and the shard that its process runs.

use base::{
    BootId, ClusterId, Configuration, Durability, Duration, GroupId, Incarnation, Instant, Member,
    MemberId,
};
use consensus::{
    Params,
    session::{Limits, SessionTable},
};
use fabric::Fabric;
use logfmt::{CONTROL_LEN, Identity, RegionLayout};
use pmem::{Region, Ticket};
use replica::{
    Env, FETCH_BYTES_MIN, FileError, Founding, JoinError, Opening, Resources, Shard, StateFiles,
};
use store::Store;

use crate::{
    fabric::SimFabric,
    files::SimFiles,
    memory::{MemoryOptions, SimRegion},
    world::{HostId, SharedWorld, World},
};

/// The one group of a simulated cluster.
pub const GROUP: GroupId = GroupId(1);
/// Bytes that the state machine may hold.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// Groups that a shard's control memory has lines for.
const LINES: u64 = 64;

/// The environment of a simulated member.
#[derive(Debug)]
pub struct SimEnv;

impl Env for SimEnv {
    type Fabric = SimFabric;
    type Region = SimRegion;
    type Files = NodeFiles;
    type Machine = Store;
}

/// State files as blobs of the host's directory.
#[derive(Debug)]
pub struct NodeFiles(SimFiles);

fn name(id: u64) -> String {
    format!("state-{id}")
}

fn failed(id: u64) -> impl Fn(crate::files::FileError) -> FileError {
    move |error| FileError { id, what: error.to_string() }
}

impl StateFiles for NodeFiles {
    fn create(&mut self, id: u64) -> Result<(), FileError> {
        if self.0.len(&name(id)).is_ok() {
            self.0.remove(&name(id)).map_err(failed(id))?;
        }
        self.0.create(&name(id)).map_err(failed(id))
    }

    fn append(&mut self, id: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.0.append(&name(id), bytes).map_err(failed(id))
    }

    fn sync(&mut self, id: u64) -> Result<Ticket, FileError> {
        self.0.sync(&name(id)).map_err(failed(id))
    }

    fn synced(&mut self) -> Result<Ticket, FileError> {
        self.0.durable().map_err(failed(0))
    }

    fn len(&self, id: u64) -> Option<u64> {
        self.0.len(&name(id)).ok()
    }

    fn read(&self, id: u64, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        self.0.read(&name(id), offset, into).map_err(failed(id))
    }

    fn remove(&mut self, id: u64) {
        if self.0.len(&name(id)).is_ok() {
            // It is there: removing cannot fail.
            let _gone = self.0.remove(&name(id));
        }
    }

    fn list(&self) -> Vec<u64> {
        let names = self.0.names();
        names.iter().filter_map(|name| name.strip_prefix("state-")?.parse().ok()).collect()
    }
}

/// What all members of a simulated cluster have in common.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What durable means.
    pub mode: Durability,
    /// The region's layout.
    pub layout: RegionLayout,
    /// Timing and windows.
    pub params: Params,
    /// How long sessions live.
    pub session_ttl: Duration,
    /// The founding members.
    pub configuration: Configuration,
}

/// The cluster id of every simulated cluster.
const CLUSTER: ClusterId = ClusterId(0xc1);

/// Member `id` in its first life.
#[must_use]
pub const fn member(id: u32) -> Member {
    Member { id: MemberId(id), incarnation: Incarnation(0x1000 + id as u64) }
}

/// One member.
#[derive(Debug)]
pub struct Node {
    /// Its host.
    pub host: HostId,
    /// Its id.
    pub id: MemberId,
    /// Its region's memory.
    pub memory: u32,
    control: u32,
    landing: u32,
    /// What its process runs, while there is one.
    pub shard: Option<Shard<SimEnv>>,
    /// Counts timers, so that an old one wakes nobody.
    pub timer: u64,
    /// When its next timer rings.
    pub wake_at: Option<Instant>,
}

impl Node {
    /// Adds a member's host to the world and founds its region there.
    pub fn found(world: &SharedWorld, id: u32, setup: &Setup) -> Self {
        let member = member(id);
        let region_len = setup.layout.region_len().next_multiple_of(4096);
        let landing_len = LINES * CONTROL_LEN as u64 * 16 + FETCH_BYTES_MIN;
        let (host, memory, control, landing) = {
            let mut world = world.borrow_mut();
            let host = world.add_host(member.id);
            let memory = world.add_memory(host, region_len, MemoryOptions::of(setup.mode));
            let shared = MemoryOptions::of(Durability::Process);
            let control = world.add_memory(host, LINES * CONTROL_LEN as u64, shared);
            let landing = world.add_memory(host, landing_len.next_multiple_of(4096), shared);
            (host, memory, control, landing)
        };
        let boot = BootId(u128::from(world.borrow().boot(host)));
        let founding = Founding {
            identity: identity(id),
            configuration: setup.configuration.clone(),
            mode: setup.mode,
            layout: setup.layout,
            boot,
        };
        let mut region = World::region(world, memory);
        let ticket = replica::found(&mut region, &founding);
        // Founding happens before the story begins: let it become durable.
        while region.durable().is_ok_and(|durable| durable < ticket) {
            world.borrow_mut().step();
        }
        Self { host, id: member.id, memory, control, landing, shard: None, timer: 0, wake_at: None }
    }

    /// Starts a process: it opens the region and joins it to a shard.
    ///
    /// # Errors
    /// What a person would read on the terminal.
    pub fn start(&mut self, world: &SharedWorld, setup: &Setup) -> Result<(), JoinError> {
        let mut fabric = World::restart(world, self.host);
        let region = World::region(world, self.memory);
        let control = World::region(world, self.control);
        let landing = World::region(world, self.landing);
        let control_id = fabric.attach(&control);
        let landing_id = fabric.attach(&landing);
        let region_id = fabric.attach(&region);
        let _caps = fabric.caps();
        let (now, seed, boot) = {
            let mut world = world.borrow_mut();
            let boot = BootId(u128::from(world.boot(self.host)));
            (world.now(), world.random().next(), boot)
        };
        let resources = Resources { member: self.id, fabric, control, landing, seed };
        let mut shard = Shard::new(resources, (control_id, landing_id))?;
        let limits = Limits { ttl: setup.session_ttl, ..Limits::default() };
        let opening = Opening {
            region,
            files: NodeFiles(SimFiles::open(world, self.host)),
            machine: Store::new(STATE_BYTES_MAX),
            sessions: SessionTable::new(limits),
            params: setup.params.clone(),
            identity: identity(self.id.0),
            boot,
            in_flight_window: setup.params.window_bytes_max,
            seed,
        };
        shard.join(opening, region_id, now)?;
        self.shard = Some(shard);
        Ok(())
    }
}

fn identity(id: u32) -> Identity {
    let member = member(id);
    Identity { cluster: CLUSTER, group: GROUP, member: member.id, incarnation: member.incarnation }
}
