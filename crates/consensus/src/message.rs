//! What members say to each other. The commit path has no message: these are for elections,
//! grants, snapshots and transfers. Their bytes are in [`crate::wire`].

use base::{Configuration, GrantWord, Index, Nonce, SlotId, Term};
use logfmt::{Boundary, Checkpoint, Extent, Hole, Position};

/// One life of the connection to a peer, as this member's fabric numbers it; never reused. A
/// completion or message of another life than the current one is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// A segment that its member has granted to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Its number within the grant; a leader fills rooms in this order.
    pub ordinal: u32,
    /// Its place in the member's pool.
    pub slot: SlotId,
    /// The key that lets the leader write it. The core does not look at it: whoever registers the
    /// segment fills it in before the message leaves.
    pub key: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The answer to a vote, follow or re-grant that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The word that chains under this grant must read back.
    pub word: GrantWord,
    /// The member's last entry, durable.
    pub tail: Position,
    /// The first index of every term in its log, from its checkpoint on.
    pub boundaries: Vec<Boundary>,
    /// Whether `boundaries` reaches down to the checkpoint.
    pub complete: bool,
    /// What the member knows to be committed.
    pub commit: Index,
    /// The oldest entry it can still hand out.
    pub first: Index,
    /// The last configuration in its log and its index.
    pub configuration: (Index, Configuration),
    /// What it may have acknowledged and lost.
    pub hole: Option<Hole>,
    /// Where its entries lie, from the first readable one on.
    pub extents: Vec<Extent>,
    /// The key for reading them, filled in by whoever registers memory.
    pub log_key: u64,
    /// The segments it has granted.
    pub rooms: Vec<Room>,
}

/// Why a vote or follow was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoteRefusal {
    /// The member is in a higher term, or voted for another candidate in this one.
    Stale,
    /// The member's leader is alive.
    LeaderLives,
    /// The member has used up its grants of this term.
    Exhausted,
}

/// A message between two members of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A candidate asks for a vote, and with it for the log.
    Vote {
        /// Its term.
        term: Term,
        /// The nonce of its entries, should it lead.
        nonce: Nonce,
        /// Whether its leader asked it to take over, which overrules stickiness.
        transfer: bool,
    },
    /// An elected leader asks a member to follow it, or to grant it anew.
    Follow {
        /// Its term.
        term: Term,
        /// The nonce of its entries.
        nonce: Nonce,
        /// The index up to which it had counted this member in its term; 0 for none.
        counted: Index,
    },
    /// Yes, to either.
    Granted(Box<Granted>),
    /// No, to either.
    Refused {
        /// The term that was refused.
        asked: Term,
        /// The member's own term.
        term: Term,
        /// Why.
        why: VoteRefusal,
    },
    /// More segments under the grant in force.
    MoreRoom {
        /// The grant.
        word: GrantWord,
        /// The segments.
        rooms: Vec<Room>,
    },
    /// A leader whose log no longer reaches down to the member's offers its checkpoint.
    Install {
        /// The grant in force.
        word: GrantWord,
        /// The checkpoint.
        checkpoint: Box<Checkpoint>,
    },
    /// The member's superblock names that checkpoint (or its log already holds it).
    Installed {
        /// The grant under which it was offered.
        word: GrantWord,
        /// The checkpoint's index.
        index: Index,
    },
    /// What is committed of the log that the member already held when it made the grant: the
    /// leader knows both logs to be equal up to there. Told by message because the granted segments
    /// hold no entry yet whose header, or idle line, could tell it.
    Committed {
        /// The grant in force.
        word: GrantWord,
        /// The index.
        index: Index,
    },
    /// Asks for the next chunk of a state file.
    FetchChunk {
        /// The grant under which the checkpoint was offered.
        word: GrantWord,
        /// The sender's number of the file.
        state: u64,
        /// Which chunk, from 0.
        number: u64,
    },
    /// One chunk of a state file; handled by whoever stores them, not by the core.
    Chunk {
        /// The grant under which it was asked for.
        word: GrantWord,
        /// The sender's number of the file.
        state: u64,
        /// Which chunk.
        number: u64,
        /// Its bytes; empty when the sender no longer has the file.
        bytes: Vec<u8>,
    },
    /// The receiver should campaign now: its leader hands over, or a candidate that cannot adopt
    /// the receiver's log asks it to lead.
    Campaign {
        /// The term of the sender.
        term: Term,
        /// Whether voters should overrule stickiness for it.
        transfer: bool,
    },
}
