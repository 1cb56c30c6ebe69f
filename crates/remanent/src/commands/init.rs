//! `remanent init`: makes a cluster, once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use base::{
    ClusterId, Configuration, Durability, GroupId, Incarnation, MEMBERS_MAX, Member, MemberId,
};
use bytesize::ByteSize;
use client::{ClusterFile, MemberFile};
use logfmt::{Identity, RegionLayout};
use pmem::{MappedRegion, Mapping, Region as _};
use replica::Founding;

use super::Global;
use crate::layout::MemberPaths;
use crate::node::{boot_id, fill_random};

/// Makes a cluster directory: the cluster's id, its members, and a region for each, allocated in
/// full. Nothing is ever founded later: a node joins what it was told here.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The directory to make; as --cluster.
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// How many members. An odd number: 3 survive the loss of 1, 5 of 2.
    #[arg(short = 'n', long, default_value_t = 3, env = "REMANENT_MEMBERS")]
    pub(crate) members: u32,
    /// What an acknowledgement survives: `sync` the loss of power, `process` kill -9 but no reboot,
    /// `volatile` only while a quorum of members stays up.
    #[arg(long, default_value = "sync", value_parser = parse_durability, env = "REMANENT_DURABILITY")]
    pub(crate) durability: Durability,
    /// Bytes of one log segment: a power of two from 64 MiB to 128 MiB. 8 MiB values need 128 MiB.
    #[arg(long, default_value = "128MiB", env = "REMANENT_SEGMENT_SIZE")]
    pub(crate) segment_size: ByteSize,
    /// Segments per member. All are allocated now.
    #[arg(long, default_value_t = 6, env = "REMANENT_SEGMENTS")]
    pub(crate) segments: u32,
    /// State beyond which writes that grow it are refused; reads and deletes go on.
    #[arg(long, default_value = "4GiB", env = "REMANENT_MAX_STATE")]
    pub(crate) max_state: ByteSize,
    /// Where boards and sockets of running members lie; best in memory. Default: below /dev/shm.
    #[arg(long, value_name = "DIR", env = "REMANENT_RUN_DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            dir: None,
            members: 3,
            durability: Durability::Sync,
            segment_size: ByteSize::mib(128),
            segments: 6,
            max_state: ByteSize::gib(4),
            run_dir: None,
        }
    }
}

pub(crate) fn parse_durability(name: &str) -> Result<Durability, String> {
    let known = [Durability::Sync, Durability::Process, Durability::Volatile];
    let found = known.into_iter().find(|mode| mode.name() == name);
    found.ok_or_else(|| format!("`{name}` is none of sync, process, volatile"))
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode> {
    let dir = arguments.dir.as_deref().unwrap_or(&global.cluster);
    let file = init(dir, arguments)?;
    let each = ByteSize(arguments.segment_size.0 * u64::from(arguments.segments));
    println!("cluster {} in {}", file.cluster, dir.display());
    println!(
        "{} members, {} of log each, durability {}",
        file.members.len(),
        each.display().iec(),
        file.durability.name()
    );
    println!("run it: remanent up {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes the cluster. Its directory has `cluster.toml` only once everything else is there.
pub(crate) fn init(dir: &Path, arguments: &Arguments) -> Result<ClusterFile> {
    let count = arguments.members;
    ensure!(
        count >= 1 && count as usize <= MEMBERS_MAX,
        "{count} members are not from 1 to {MEMBERS_MAX}"
    );
    let layout = RegionLayout::new(arguments.segment_size.0, arguments.segments)?;
    layout.check_product_limits()?;
    let cluster_toml = dir.join("cluster.toml");
    if cluster_toml.exists() {
        bail!("{}: a cluster is there already; nothing was changed", cluster_toml.display());
    }
    std::fs::create_dir_all(dir)
        .with_context(|| format!("{}: cannot make the directory", dir.display()))?;
    let cluster = ClusterId(random_u128()?);
    let members = (1..=count)
        .map(|id| Ok(Member { id: MemberId(id), incarnation: Incarnation(crate::node::random()?) }))
        .collect::<Result<Vec<_>>>()?;
    let configuration = Configuration::of_voters(members.iter().copied());
    let run_dir = match &arguments.run_dir {
        Some(run_dir) => absolute(run_dir)?,
        None => default_run_dir(dir, cluster)?,
    };
    let made: Vec<PathBuf> = members.iter().map(|member| dir.join(member.id.to_string())).collect();
    for (member, member_dir) in members.iter().zip(&made) {
        let founding = Founding {
            identity: Identity {
                cluster,
                group: GroupId(1),
                member: member.id,
                incarnation: member.incarnation,
            },
            configuration: configuration.clone(),
            mode: arguments.durability,
            layout,
            boot: boot_id()?,
        };
        let founded = found(member_dir, &founding);
        if founded.is_err() {
            // What a first attempt could not finish must not stand in the way of the next.
            for member_dir in &made {
                let _removed = std::fs::remove_dir_all(member_dir);
            }
        }
        founded?;
    }
    let file = ClusterFile {
        version: client::CLUSTER_FILE_VERSION,
        cluster,
        group: GroupId(1),
        run_dir,
        durability: arguments.durability,
        max_state_bytes: arguments.max_state.0,
        members: members
            .iter()
            .map(|member| MemberFile {
                id: member.id,
                incarnation: member.incarnation,
                dir: PathBuf::from(member.id.to_string()),
            })
            .collect(),
    };
    file.write_new(dir)?;
    Ok(file)
}

fn found(dir: &Path, founding: &Founding) -> Result<()> {
    let paths = MemberPaths::new(founding.identity.member, dir.to_owned());
    if dir.exists() {
        bail!("{}: there is something already; nothing was changed", dir.display());
    }
    std::fs::create_dir_all(&paths.state)
        .with_context(|| format!("{}: cannot make the directory", paths.state.display()))?;
    let len = founding.layout.region_len().next_multiple_of(4096);
    let mapping = Arc::new(Mapping::create(&paths.region, len)?);
    let mut region = MappedRegion::new(mapping, founding.mode, || ())
        .with_context(|| format!("{}: durability {}", dir.display(), founding.mode.name()))?;
    let ticket = replica::found(&mut region, founding);
    while region.durable()? < ticket {
        std::thread::yield_now();
    }
    Ok(())
}

fn random_u128() -> Result<u128> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{}: is no path", path.display()))
}

/// In memory if the system has the usual place for it: boards are written all the time and worth
/// nothing after a reboot.
fn default_run_dir(dir: &Path, cluster: ClusterId) -> Result<PathBuf> {
    let shared = Path::new("/dev/shm");
    let is_memory = pmem::backing(shared).is_ok_and(|backing| backing == pmem::Backing::Memory);
    if is_memory {
        return Ok(shared.join(format!("remanent-{cluster}")));
    }
    absolute(&dir.join("run"))
}
