//! What stands in a member's region, as values. The bytes are drawn in the modules that encode
//! them; these types are shared by everything that reads or decides about a log.

use base::{
    BootId, ClusterId, Configuration, Digest, Durability, GrantWord, GroupId, Incarnation, Index,
    MemberId, Nonce, SlotId, Term,
};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The first entry of a leader: nothing commits in its term before it.
    NoOp,
    /// A command for the state machine.
    Command,
    /// A configuration; in force from the moment it is in a log.
    Configuration,
    /// Log time moves on without a command (a leader writes it when an expiry is due).
    Tick,
}

impl Kind {
    /// The number that stands on media; never 0, so that zeroed memory is no entry.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::NoOp => 1,
            Self::Command => 2,
            Self::Configuration => 3,
            Self::Tick => 4,
        }
    }

    /// The kind with this number.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::NoOp),
            2 => Some(Self::Command),
            3 => Some(Self::Configuration),
            4 => Some(Self::Tick),
            _ => None,
        }
    }
}

/// A position in a log with what certifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The entry's index; 0 before the first.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// Its digest, which certifies the whole log up to it.
    pub digest: Digest,
}

/// The first index of a term in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boundary {
    /// The term.
    pub term: Term,
    /// The first index that has it (of a checkpoint: the checkpoint's own index).
    pub first: Index,
}

/// Where a sealed segment ends. What is written behind a seal is never looked at again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seal {
    /// Index of the last entry in it.
    pub last: Index,
    /// Offset behind that entry, in bytes from the segment's start.
    pub end: u64,
}

/// One segment as the superblock names it. One writer per segment, ever: it belongs to one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentRecord {
    /// Its place in the pool.
    pub slot: SlotId,
    /// The grant it belongs to.
    pub word: GrantWord,
    /// Its number within that grant, from 0: the writer fills them in this order.
    pub ordinal: u32,
    /// The nonce of the (term, leader) it was granted to.
    pub nonce: Nonce,
    /// Index of the first entry in it; 0 while it is open and nobody has looked.
    pub first: Index,
    /// Its end, once it has one.
    pub seal: Option<Seal>,
}

/// The state file that a checkpoint stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateFile {
    /// Its number within the member's directory; 0 is "the empty state".
    pub id: u64,
    /// Its length in bytes.
    pub length: u64,
    /// `H64` over its bytes.
    pub digest: Digest,
}

/// A position up to which the log has become state, with all that a log needs to start there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// The last entry that is in the state.
    pub at: Position,
    /// Index of the configuration entry in force there (0: the founding one).
    pub configuration_index: Index,
    /// The configuration in force there.
    pub configuration: Configuration,
    /// The state, sessions included.
    pub state: StateFile,
}

/// A gap in what this member may have acknowledged: damage, or a tail that its medium lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hole {
    /// The first index that is missing.
    pub from: Index,
    /// The last index that somebody is known to have counted; 0 when nobody can say.
    pub until: Index,
    /// The member's term when it was found: a log of a later leader that reaches past it fills it.
    pub term: Term,
}

/// Who a member is. Never changes within one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its group.
    pub group: GroupId,
    /// Its id.
    pub member: MemberId,
    /// The life of its region.
    pub incarnation: Incarnation,
}

/// All that a member must remember. Every change is one write of one of two copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Superblock {
    /// Grows by one with every write; of two valid copies the higher one counts.
    pub generation: u64,
    /// Who this is.
    pub identity: Identity,
    /// The boot (or tmpfs region life) in which this was written.
    pub boot: BootId,
    /// What durable means here.
    pub mode: Durability,
    /// Bytes of one segment.
    pub segment_len: u64,
    /// Segments in the pool.
    pub slot_count: u32,
    /// The highest term this member has been in.
    pub term: Term,
    /// Whom it voted for in `term`.
    pub vote: Option<MemberId>,
    /// The last grant it made.
    pub grant: GrantWord,
    /// To whom.
    pub granted_to: Option<MemberId>,
    /// What it may have acknowledged and lost.
    pub hole: Option<Hole>,
    /// Where its log starts.
    pub checkpoint: Checkpoint,
    /// Its segments in grant order: sealed ones first, the open ones of the last grant behind.
    pub segments: Vec<SegmentRecord>,
}
