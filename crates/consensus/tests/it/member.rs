//! One member: a real core, a real log, and its region as a vector of bytes.

use std::collections::{BTreeMap, VecDeque};

use base::{
    BootId, ClusterId, Configuration, Durability, GrantWord, GroupId, Incarnation, Index, Instant,
    Member as Named, MemberId, SlotId, Term,
};
use consensus::{
    Core, Event, Fetch, LogView, Params, Role, Start,
    message::Connection,
    session::{Act, LeaderClock},
};
use logfmt::{
    Boundary, Bytes, BytesMut, Checkpoint, DamageKind, Extent, Identity, MemberLog, Position,
    RegionLayout, Shape, StateFile, Superblock,
};

use crate::machine::Machine;

/// What the process of a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    Runs,
    /// It executes nothing; its memory can be written and read all the same.
    Stopped,
    Down,
}

/// Something local that an effect has begun; running it ends in an event.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Walk,
    Flush,
    Superblock(Box<Superblock>),
    Persist(Index, Index),
    Fetch(Box<Fetch>),
    State(MemberId, Connection, Box<Checkpoint>),
    Checkpoint,
    Deregister(SlotId),
    Apply,
    /// An observation that has been made already.
    Tell(Event),
}

impl Job {
    /// What a script calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Walk => "walk",
            Self::Flush => "flush",
            Self::Superblock(_) => "superblock",
            Self::Persist(..) => "persist",
            Self::Fetch(_) => "fetch",
            Self::State(..) => "state",
            Self::Checkpoint => "checkpoint",
            Self::Deregister(_) => "deregister",
            Self::Apply => "apply",
            Self::Tell(_) => "tell",
        }
    }
}

/// What every member of a script's group is made with.
#[derive(Clone, Debug)]
pub(crate) struct Shape0 {
    pub(crate) layout: RegionLayout,
    pub(crate) params: Params,
}

/// One member.
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) power: Power,
    /// What loads and stores see.
    pub(crate) region: Vec<u8>,
    /// What is left after a power loss.
    pub(crate) durable: Vec<u8>,
    /// The grant word in the control page.
    pub(crate) word: GrantWord,
    pub(crate) core: Core,
    pub(crate) log: MemberLog,
    pub(crate) shape: Shape0,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) proposals: VecDeque<(Act, String)>,
    pub(crate) clock: Option<LeaderClock>,
    pub(crate) machine: Machine,
    pub(crate) files: BTreeMap<u64, Machine>,
    /// What the core has said to be committed.
    pub(crate) commit: Index,
    pub(crate) reads: u64,
    /// Its medium claims to have persisted what peers write, and has not.
    pub(crate) is_lying: bool,
    /// A peer has placed something since the last walk.
    pub(crate) is_dirty: bool,
}

pub(crate) fn named(id: MemberId) -> Named {
    Named { id, incarnation: Incarnation(u64::from(id.0)) }
}

impl Member {
    /// Writes the first superblock and starts from it.
    pub(crate) fn found(id: MemberId, configuration: &Configuration, shape: &Shape0) -> Self {
        let superblock = Superblock {
            generation: 1,
            identity: Identity {
                cluster: ClusterId(1),
                group: GroupId(1),
                member: id,
                incarnation: Incarnation(u64::from(id.0)),
            },
            boot: BootId(1),
            mode: Durability::ReadBack,
            segment_len: shape.layout.segment_len(),
            slot_count: shape.layout.slot_count(),
            term: Term(0),
            vote: None,
            grant: GrantWord::default(),
            granted_to: None,
            hole: None,
            checkpoint: Checkpoint { configuration: configuration.clone(), ..<_>::default() },
            segments: Vec::new(),
        };
        let mut region = vec![0; usize::try_from(shape.layout.region_len()).unwrap()];
        let at = shape.layout.superblock_copy(superblock.copy_index()).start;
        region.copy_in(at, &superblock.encode());
        let files = BTreeMap::from([(0, Machine::new())]);
        Self::open(id, region, files, shape, Instant(0)).0
    }

    /// Starts from what is in the region; answers what the start found damaged.
    pub(crate) fn open(
        id: MemberId,
        region: Vec<u8>,
        files: BTreeMap<u64, Machine>,
        shape: &Shape0,
        now: Instant,
    ) -> (Self, Option<logfmt::Damage>) {
        let layout = shape.layout;
        let copy = |which| {
            let range = layout.superblock_copy(which);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            region.copy_out(range.start, &mut bytes);
            bytes
        };
        let (mut superblock, _) = logfmt::choose(&copy(0), &copy(1)).unwrap();
        let window = layout.segment_len();
        let restored = MemberLog::restore(layout, &superblock, &region, false, window);
        let (log, restored) = restored.unwrap();
        let damage = restored.damage;
        if damage.is_some() {
            let was_open = |slot| {
                let open = superblock.segments.iter().filter(|record| record.seal.is_none());
                open.copied().find(|record| record.slot == slot)
            };
            superblock.segments =
                log.records().map(|record| was_open(record.slot).unwrap_or(record)).collect();
        }
        let hole = damage.filter(|damage| damage.kind != DamageKind::Torn);
        let machine = files[&superblock.checkpoint.state.id].clone();
        let word = superblock.grant.revoked();
        let commit = superblock.checkpoint.at.index;
        let damaged = hole.map(|damage| damage.from);
        // Fresh randomness with every start, or else nonces would repeat.
        let seed = u64::from(id.0) + (superblock.generation << 8);
        let start = Start { superblock, damaged, seed };
        let core = Core::new(shape.params.clone(), start, now);
        let durable = region.clone();
        let member = Self {
            id,
            power: Power::Runs,
            region,
            durable,
            word,
            core,
            log,
            shape: shape.clone(),
            jobs: VecDeque::new(),
            proposals: VecDeque::new(),
            clock: None,
            machine,
            files,
            commit,
            reads: 0,
            is_lying: false,
            is_dirty: true,
        };
        (member, damage)
    }

    pub(crate) fn view(&self) -> View<'_> {
        View(&self.log)
    }

    pub(crate) fn runs(&self) -> bool {
        self.power == Power::Runs
    }

    /// Whether its background walk has something to look at.
    pub(crate) fn observes(&self) -> bool {
        self.is_dirty && self.runs() && matches!(self.core.role(), Role::Follower)
    }

    /// Makes entries `first..=last` durable.
    pub(crate) fn persist(&mut self, first: Index, last: Index) {
        let mut index = first;
        while index <= last {
            if let Some(at) = self.log.location(index) {
                let start = self.shape.layout.slot(at.slot).start;
                self.persist_bytes(start + at.header, at.end - at.header);
            }
            index = index.next();
        }
    }

    pub(crate) fn persist_bytes(&mut self, at: u64, len: u64) {
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        self.region.copy_out(at, &mut bytes);
        self.durable.copy_in(at, &bytes);
    }

    /// A checkpoint of the state as it is applied now.
    pub(crate) fn checkpoint(&mut self) -> Option<Checkpoint> {
        let index = self.machine.applied;
        let at = self.log.position_at(index, &self.region)?;
        let (configuration_index, configuration) = self.log.configuration_at(index)?;
        let configuration = configuration.clone();
        let id = self.keep_state(self.machine.clone());
        let state = StateFile { id, ..StateFile::default() };
        Some(Checkpoint { at, configuration_index, configuration, state })
    }

    /// Keeps a state under the next number of this member's own.
    pub(crate) fn keep_state(&mut self, machine: Machine) -> u64 {
        let id = self.files.keys().max().map_or(1, |last| last + 1);
        self.files.insert(id, machine);
        id
    }
}

/// The log as the core may see it.
pub(crate) struct View<'a>(&'a MemberLog);

impl<'a> View<'a> {
    pub(crate) const fn of(log: &'a MemberLog) -> Self {
        Self(log)
    }
}

impl LogView for View<'_> {
    fn tail(&self) -> Position {
        self.0.tail()
    }
    fn first(&self) -> Index {
        self.0.first_index()
    }
    fn term_at(&self, index: Index) -> Option<Term> {
        self.0.term_at(index)
    }
    fn shape_at(&self, index: Index) -> Option<Shape> {
        if index < self.0.first_index() { None } else { self.0.shape_at(index) }
    }
    fn boundaries(&self) -> &[Boundary] {
        self.0.boundaries()
    }
    fn configuration(&self) -> (Index, &Configuration) {
        self.0.configuration()
    }
    fn unopened(&self) -> usize {
        self.0.unopened()
    }
    fn completed(&self, slot: SlotId) -> Option<Index> {
        let record = self.0.records().find(|record| record.slot == slot)?;
        record.seal.map(|seal| seal.last)
    }
    fn extents(&self, from: Index) -> Vec<Extent> {
        self.0.extents(from)
    }
    fn unreferenced(&self) -> Index {
        Index(u64::MAX)
    }
}
