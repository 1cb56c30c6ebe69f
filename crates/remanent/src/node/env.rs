//! What a member of the binary is made of, and how its parts are opened.

use std::fs::DirBuilder;
use std::marker::PhantomData;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base::{Durability, GroupId, Instant, MemberId};
use consensus::Params;
use consensus::session::{Limits, SessionTable};
use fabric::shm::stream::{Porter, PorterConfig};
use fabric::shm::{Config as ShmConfig, Shm, Waker};
use logfmt::{Identity, Superblock};
use pmem::{MapError, MappedRegion, Mapping, RegionError};
use replica::machine::StateMachine;
use replica::{CONTROL_BYTES, Env, Opening, Resources, Shard, landing_len};

use super::files::DirectoryFiles;
use crate::layout::{Cluster, MemberPaths};

/// The environment of a real member: shared memory as fabric, mapped files as regions.
#[derive(Debug)]
pub(crate) struct NodeEnv<M>(PhantomData<M>);

impl<M: StateMachine> Env for NodeEnv<M> {
    type Fabric = Shm;
    type Region = MappedRegion;
    type Files = DirectoryFiles;
    type Machine = M;
}

/// How a member runs; everything that may differ from start to start.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// How long a leader may show no progress before it is suspected.
    pub(crate) suspicion_timeout: Duration,
    /// How long the loop looks for work before it sleeps.
    pub(crate) spin: Duration,
    /// The most clients at one time.
    pub(crate) clients_max: u32,
    /// Added to every write into persistent memory, in nanoseconds.
    pub(crate) write_delay_ns: u32,
    /// Whether a stopped process that holds a segment back may be killed.
    pub(crate) may_kill_writers: bool,
    /// The processor that the loop is bound to.
    pub(crate) cpu: Option<usize>,
    /// A key that this member is to lose: a planted fault.
    pub(crate) plant_loss: Option<Vec<u8>>,
    /// Whether no file is ever synced: a planted fault.
    pub(crate) plant_no_sync: bool,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            suspicion_timeout: Duration::from_millis(500),
            spin: Duration::from_micros(20),
            clients_max: 256,
            write_delay_ns: 0,
            may_kill_writers: false,
            cpu: None,
            plant_loss: None,
            plant_no_sync: false,
        }
    }
}

/// A member that is open and not running yet.
pub(crate) struct Parts<M: StateMachine> {
    pub(crate) shard: Shard<NodeEnv<M>>,
    pub(crate) group: GroupId,
    pub(crate) porter: Porter,
    pub(crate) waker: Waker,
    pub(crate) mode: Durability,
}

/// Opens member `id` of `cluster` with `machine`, which must be empty.
///
/// # Errors
/// What a person can act on: what is wrong, with which file, and what to do.
pub(crate) fn open<M: StateMachine>(
    cluster: &Cluster,
    (id, running): (MemberId, &Running),
    machine: M,
    now: Instant,
) -> Result<Parts<M>> {
    let member = cluster.member(id)?;
    let paths = cluster.paths(id)?;
    let run_dir = cluster.run_dir();
    make_run_dir(run_dir)?;
    let mut shm = Shm::create(ShmConfig {
        dir: run_dir.to_owned(),
        member: id,
        incarnation: member.incarnation,
        may_kill_writers: running.may_kill_writers,
    })
    .with_context(|| format!("member {id} of {}", cluster.dir().display()))?;
    if running.plant_no_sync {
        shm.replace_sync_for_faults(|_| Ok(()));
    }
    let waker = shm.waker();

    let region = open_region(&paths, running)?;
    let superblock = replica::read_superblock(&region.0)
        .with_context(|| format!("{}: the superblock cannot be used", paths.region.display()))?;
    check_superblock(&superblock, cluster, &paths)?;
    let mode = superblock.mode;
    let region = promise(region.1, mode, running, &waker).with_context(|| {
        format!("{}: cannot be run in mode {}", paths.region.display(), mode.name())
    })?;

    let control = open_control(&paths)?;
    let landing = make_landing(&landing_path(run_dir, id), landing_len(superblock.segment_len))?;
    let control_id = shm.attach(&paths.control, Durability::Process)?;
    let landing_id = shm.attach(&landing_path(run_dir, id), Durability::Process)?;
    let region_id = shm.attach(&paths.region, mode)?;
    let porter = Porter::open(
        PorterConfig {
            dir: run_dir.to_owned(),
            member: id,
            incarnation: member.incarnation,
            streams_max: running.clients_max,
            ..PorterConfig::default()
        },
        &shm,
    )?;

    let seed = random_seed()?;
    let resources = Resources { member: id, fabric: shm, control, landing, seed };
    let mut shard = Shard::new(resources, (control_id, landing_id))?;
    let params =
        Params { suspicion_timeout: running.suspicion_timeout, ..cluster.params(superblock.mode) };
    let wake = waker.clone();
    let reaches_medium = mode == Durability::Sync && !running.plant_no_sync;
    let files = DirectoryFiles::open(&paths.state, reaches_medium, move || wake.wake())
        .with_context(|| format!("{}: cannot open the state files", paths.state.display()))?;
    let opening = Opening {
        region,
        files,
        machine,
        sessions: SessionTable::new(Limits::default()),
        in_flight_window: params.window_bytes_max,
        params,
        identity: superblock.identity,
        boot: boot_id()?,
        seed,
    };
    let group = shard
        .join(opening, region_id, now)
        .with_context(|| format!("{}: the member cannot start", paths.dir.display()))?;
    Ok(Parts { shard, group, porter, waker, mode })
}

fn open_region(paths: &MemberPaths, running: &Running) -> Result<(MappedRegion, Arc<Mapping>)> {
    let path = &paths.region;
    let len = path
        .metadata()
        .with_context(|| {
            format!("{}: there is no region; was this member initialised here?", path.display())
        })?
        .len();
    ensure!(
        len >= logfmt::COPY_LEN * 2,
        "{}: the region has only {len} bytes, fewer than its superblock: was it truncated?",
        path.display()
    );
    let len = len - len % 4096;
    let mapping = Mapping::open(path, len)?.with_write_delay_ns(running.write_delay_ns);
    let mapping = Arc::new(mapping);
    // Any mode will do for reading the superblock, which says which it is.
    Ok((MappedRegion::new(Arc::clone(&mapping), Durability::Volatile, || ())?, mapping))
}

/// The region in the mode that its superblock says.
fn promise(
    mapping: Arc<Mapping>,
    mode: Durability,
    running: &Running,
    waker: &Waker,
) -> Result<MappedRegion, MapError> {
    let sync: fn(&Mapping) -> Result<(), RegionError> =
        if running.plant_no_sync { |_| Ok(()) } else { Mapping::sync };
    let wake = waker.clone();
    MappedRegion::with_sync(mapping, mode, sync, move || wake.wake())
}

fn check_superblock(superblock: &Superblock, cluster: &Cluster, paths: &MemberPaths) -> Result<()> {
    let member = cluster.member(superblock.identity.member).map(|member| member.incarnation);
    let expected = Identity {
        cluster: cluster.id(),
        group: cluster.group(),
        member: paths.member,
        incarnation: cluster.member(paths.member)?.incarnation,
    };
    if superblock.identity == expected {
        return Ok(());
    }
    let found = superblock.identity;
    let whose = match member {
        Ok(_) if found.cluster == expected.cluster => {
            format!("member {} with incarnation {}", found.member, found.incarnation)
        }
        Ok(_) | Err(_) => format!("member {} of cluster {}", found.member, found.cluster),
    };
    bail!(
        "{}: this region belongs to {whose}, not to member {} of {}; a member runs only on the \
         region that it was given",
        paths.region.display(),
        paths.member,
        cluster.dir().display()
    )
}

/// The control file is the same for the life of the region: a leader of an earlier life that still
/// has it mapped must see its grant revoked.
fn open_control(paths: &MemberPaths) -> Result<MappedRegion> {
    let path = &paths.control;
    let mapping = if path.exists() {
        Mapping::open(path, CONTROL_BYTES)?
    } else {
        Mapping::create(path, CONTROL_BYTES)?
    };
    Ok(MappedRegion::new(Arc::new(mapping), Durability::Process, || ())?)
}

fn make_landing(path: &Path, len: u64) -> Result<MappedRegion> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{}: cannot be replaced", path.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let mapping = Mapping::create(path, len.next_multiple_of(4096))?;
    Ok(MappedRegion::new(Arc::new(mapping), Durability::Process, || ())?)
}

/// Where READs of a member land.
pub(crate) fn landing_path(run_dir: &Path, id: MemberId) -> PathBuf {
    run_dir.join(format!("{id}.landing"))
}

/// Makes the directory of boards and sockets, for its user alone.
pub(crate) fn make_run_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("{}: cannot make the run directory", dir.display()))
}

/// The id of this boot.
pub(crate) fn boot_id() -> Result<base::BootId> {
    pmem::boot_id().context("cannot read the boot id: is /proc mounted?")
}

/// Eight bytes of the system's randomness.
pub(crate) fn random_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Fills `bytes` with the system's randomness.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    use std::io::Read as _;
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(bytes))
        .context("cannot read /dev/urandom")
}
