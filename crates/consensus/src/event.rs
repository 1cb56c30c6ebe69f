//! What the core is told.

use base::{Configuration, GrantWord, Index, MemberId, SlotId};
use logfmt::{Checkpoint, ControlLine, Seal};

use crate::message::{Connection, Message};

/// Where an open segment ended when it was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentEnd {
    /// The segment.
    pub slot: SlotId,
    /// Its first entry; 0 when it is empty.
    pub first: Index,
    /// Its end; `None` when it is empty.
    pub seal: Option<Seal>,
}

/// A completion or an observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Time has passed: [`crate::Core::deadline`] was reached.
    Tick,
    /// There is a connection with a peer.
    Connected {
        /// The peer.
        peer: MemberId,
        /// This life of the connection.
        connection: Connection,
    },
    /// A connection is gone.
    Disconnected {
        /// The peer.
        peer: MemberId,
        /// Which life of the connection.
        connection: Connection,
        /// Whether the peer's process is known to have ended.
        exited: bool,
    },
    /// A message arrived.
    Received {
        /// From whom.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
        /// What.
        message: Message,
    },
    /// A peer's control line was read.
    Control {
        /// Whose.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
        /// The line.
        line: ControlLine,
    },
    /// `Effect::Walk` is done: every open segment was walked to its end and sealed in memory.
    Walked {
        /// The commit index that the entries themselves carry; believed.
        believed: Index,
        /// Where each open segment ended, in grant order.
        ends: Vec<SegmentEnd>,
    },
    /// The background walk found entries, or a commit index.
    Observed {
        /// The commit index that the entries themselves carry; believed.
        believed: Index,
    },
    /// `Effect::FlushLog` is done: all that was walked is durable.
    Flushed,
    /// `Effect::WriteSuperblock` is done.
    SuperblockWritten {
        /// Its generation.
        generation: u64,
    },
    /// Commands are waiting to be appended.
    Proposed {
        /// How many.
        count: u32,
    },
    /// `Effect::Append` is done (the log view shows how far).
    Appended {
        /// The last own entry that is durable already, where that takes no time; 0 otherwise.
        durable: Index,
    },
    /// `Effect::Spread` is due.
    Spread,
    /// The own log is durable up to here. None of an earlier leadership arrives once a fence has
    /// begun.
    Persisted {
        /// The last durable entry.
        through: Index,
    },
    /// A chain's read-back arrived.
    ReadBack {
        /// From whose memory.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
        /// The chain.
        chain: u64,
        /// The word that was read.
        word: GrantWord,
    },
    /// A chain failed. Its connection is dropped; chains behind it fail too.
    ChainFailed {
        /// To whose memory.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
    },
    /// `Effect::Fetch` is done: the suffix stands in the own log, verified and durable. A fence that
    /// begins (`Effect::Walk`) cancels the fetch and its answer.
    Fetched,
    /// The own log has no room for what is being copied into it; goes on when a segment is opened.
    RoomWanted,
    /// `Effect::Fetch` cannot be done.
    FetchFailed,
    /// Linearizable reads wait.
    ReadsWaiting {
        /// The greatest of their tickets, which the caller counts up from 1.
        upto: u64,
    },
    /// The state machine has applied this far.
    Applied {
        /// The last applied entry.
        through: Index,
    },
    /// `Effect::TakeCheckpoint` is done: the state file is durable.
    CheckpointTaken(Box<Checkpoint>),
    /// `Effect::TakeCheckpoint` cannot be done now.
    CheckpointFailed,
    /// `Effect::FetchState` is done: the state file is here, verified and durable, under the local
    /// number that the checkpoint now names.
    StateFetched(Box<Checkpoint>),
    /// `Effect::FetchState` cannot be done.
    StateFetchFailed,
    /// Nobody can write this slot any more.
    Released {
        /// The slot.
        slot: SlotId,
    },
    /// An operator (or the simulation) asks this member to campaign.
    Campaign {
        /// Whether voters should vote for it although their leader is alive.
        overrules: bool,
    },
    /// An operator asks the leader to hand over.
    Transfer {
        /// To whom.
        to: MemberId,
    },
    /// An operator asks the leader to change the members to these voters and learners.
    ChangeMembers(Box<Configuration>),
    /// A sync or write-back of the own region failed: nothing is acknowledged any more.
    StorageFailed,
}
