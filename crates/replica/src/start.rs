//! Founding a member's region, and opening it again.

use base::{BootId, Configuration, Digest, Durability, GrantWord, Index, Instant, Term};
use consensus::{Core, Params, Start, session::SessionTable};
use logfmt::{
    Checkpoint, DamageKind, Identity, LayoutError, MemberLog, Position, RegionLayout, RestoreError,
    StateFile, Superblock, SuperblockError, choose,
};
use pmem::{Region, Ticket};

use crate::{
    env::{Env, StateFiles},
    group::Parts,
    state_file::{StateFileError, load},
    view::RegionBytes,
};

/// What a member is founded with; the same on every member but for the identity.
#[derive(Clone, Debug)]
pub struct Founding {
    /// Who it is.
    pub identity: Identity,
    /// The first members of the group.
    pub configuration: Configuration,
    /// What durable means in this group.
    pub mode: Durability,
    /// The region's layout.
    pub layout: RegionLayout,
    /// The boot (or tmpfs region life) it is founded in.
    pub boot: BootId,
}

/// Why a member cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The superblock cannot be read.
    #[error("{0}")]
    Superblock(#[from] SuperblockError),
    /// Superblock and region do not go together.
    #[error("{0}")]
    Restore(#[from] RestoreError),
    /// The superblock's layout is not allowed.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The region belongs to another member.
    #[error("this region belongs to {found:?}, not to {expected:?}: a member id is never reused")]
    OtherMember {
        /// Who was asked for.
        expected: Identity,
        /// Whose it is.
        found: Identity,
    },
    /// The region has another length than its layout.
    #[error("the region has {found} bytes, its superblock needs {expected}: is it truncated?")]
    Truncated {
        /// Bytes needed.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// What it acknowledged may be gone: the host or the region's memory has another life.
    #[error("mode {} lost what it acknowledged with the last boot: this member may come back only as a new member", .0.name())]
    LostWithBoot(Durability),
    /// The checkpoint's state cannot be read.
    #[error("{0}")]
    State(#[from] StateFileError),
}

/// Writes the first superblock of a member. The region must be this member's alone. Durable once
/// the ticket is reached.
pub fn found<R: Region>(region: &mut R, founding: &Founding) -> Ticket {
    let at = Position { index: Index(0), term: Term(0), digest: Digest(0) };
    let superblock = Superblock {
        generation: 1,
        identity: founding.identity,
        boot: founding.boot,
        mode: founding.mode,
        segment_len: founding.layout.segment_len(),
        slot_count: founding.layout.slot_count(),
        term: Term(0),
        vote: None,
        grant: GrantWord::default(),
        granted_to: None,
        hole: None,
        checkpoint: Checkpoint {
            at,
            configuration_index: Index(0),
            configuration: founding.configuration.clone(),
            state: StateFile::default(),
        },
        segments: Vec::new(),
    };
    let bytes = superblock.encode();
    let start = founding.layout.superblock_copy(superblock.copy_index()).start;
    region.copy_in(start, &bytes);
    region.persist(start..start + bytes.len() as u64)
}

/// Reads the valid superblock of a region.
///
/// # Errors
/// [`SuperblockError`] when there is none that this program can use.
pub fn read_superblock<R: Region>(region: &R) -> Result<Superblock, SuperblockError> {
    let len = usize::try_from(logfmt::COPY_LEN).unwrap_or(usize::MAX);
    let copy = |at: u64| {
        let mut bytes = vec![0; len];
        if at + logfmt::COPY_LEN <= region.len() {
            region.copy_out(at, &mut bytes);
        }
        bytes
    };
    choose(&copy(0), &copy(logfmt::COPY_LEN)).map(|(superblock, _)| superblock)
}

/// What a member is opened with.
#[derive(Debug)]
pub struct Opening<E: Env> {
    /// Its region.
    pub region: E::Region,
    /// Its state files.
    pub files: E::Files,
    /// A machine in the empty state.
    pub machine: E::Machine,
    /// A session table in the empty state.
    pub sessions: SessionTable,
    /// Timing and windows.
    pub params: Params,
    /// Whom the caller believes to open.
    pub identity: Identity,
    /// The present boot (or life of the tmpfs region).
    pub boot: BootId,
    /// Bytes of one follower's log that may have been in flight when power went.
    pub in_flight_window: u64,
    /// Fresh randomness.
    pub seed: u64,
}

/// A member ready to join a shard, and how its restart went.
pub(crate) struct Opened<E: Env> {
    pub(crate) core: Core,
    pub(crate) log: MemberLog,
    pub(crate) layout: RegionLayout,
    pub(crate) region: E::Region,
    pub(crate) files: E::Files,
    pub(crate) machine: E::Machine,
    pub(crate) sessions: SessionTable,
    pub(crate) damage: Option<logfmt::Damage>,
}

impl<E: Env> Opened<E> {
    pub(crate) fn parts(
        self,
        line: u32,
        (region_id, log_key): (fabric::RegionId, fabric::Key),
    ) -> Parts<E> {
        Parts {
            id: self.core.superblock().identity.group,
            line,
            core: self.core,
            log: self.log,
            layout: self.layout,
            region: self.region,
            region_id,
            log_key,
            files: self.files,
            machine: self.machine,
            sessions: self.sessions,
            damage: self.damage,
        }
    }
}

/// Reads the superblock, before anything else may happen to the region: the caller stores the
/// revoked word between this and [`restore`].
pub(crate) fn check<E: Env>(opening: &Opening<E>) -> Result<Superblock, OpenError> {
    let superblock = read_superblock(&opening.region)?;
    if superblock.identity != opening.identity {
        let (expected, found) = (opening.identity, superblock.identity);
        return Err(OpenError::OtherMember { expected, found });
    }
    let layout = RegionLayout::new(superblock.segment_len, superblock.slot_count)?;
    let (expected, found) = (layout.region_len(), opening.region.len());
    if found < expected {
        return Err(OpenError::Truncated { expected, found });
    }
    let is_fresh = superblock.generation == 1;
    let survives_boot =
        !matches!(superblock.mode, Durability::Volatile | Durability::Process) || is_fresh;
    if !survives_boot && superblock.boot != opening.boot {
        return Err(OpenError::LostWithBoot(superblock.mode));
    }
    Ok(superblock)
}

/// Walks the log and loads the state. The revoked word has been stored and fenced before.
pub(crate) fn restore<E: Env>(
    mut opening: Opening<E>,
    mut superblock: Superblock,
    now: Instant,
) -> Result<Opened<E>, OpenError> {
    let layout = RegionLayout::new(superblock.segment_len, superblock.slot_count)?;
    let (log, restored) = MemberLog::restore(
        layout,
        &superblock,
        &RegionBytes(&mut opening.region),
        false,
        opening.in_flight_window,
    )?;
    let damage = restored.damage;
    if damage.is_some() {
        // The seals are moved before the damage, so that the next start does not find it again;
        // the hole remembers it. What was open stays open until a fence has made it durable.
        let open: Vec<_> =
            superblock.segments.iter().filter(|record| record.seal.is_none()).collect();
        let records = log.records().map(|record| {
            let was_open = open.iter().find(|open| open.slot == record.slot);
            was_open.map_or(record, |open| **open)
        });
        superblock.segments = records.collect();
    }
    let hole = damage.filter(|damage| damage.kind != DamageKind::Torn);
    let state = superblock.checkpoint.state;
    // What an earlier life was writing or receiving when it ended is of no use. Older files stay
    // until this superblock is known to be durable: the copy before it may name one of them.
    for id in opening.files.list().into_iter().filter(|&id| id > state.id) {
        opening.files.remove(id);
    }
    let (machine, sessions) = if state.id == 0 {
        (opening.machine, opening.sessions)
    } else {
        load(&opening.files, state, &opening.machine)?
    };
    superblock.boot = opening.boot;
    let damaged = hole.map(|damage| damage.from);
    let core = Core::new(opening.params, Start { superblock, damaged, seed: opening.seed }, now);
    let (region, files) = (opening.region, opening.files);
    Ok(Opened { core, log, layout, region, files, machine, sessions, damage })
}
