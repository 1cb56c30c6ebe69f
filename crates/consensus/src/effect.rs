//! What the core wants done. Effects are run in the order they stand.

use base::{Configuration, GrantWord, Index, MemberId, Nonce, SlotId, Term};
use logfmt::{Checkpoint, Extent, Position, SegmentRecord, Superblock};

use crate::message::{Connection, Message};

/// What to append to the own log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Append {
    /// The leader's first entry.
    NoOp,
    /// A configuration.
    Configuration(Box<Configuration>),
    /// Up to this many of the commands that wait, as far as there is room.
    Commands(u32),
}

/// Consecutive entries that go into one segment of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The segment's key.
    pub key: u64,
    /// Where the previous entry ended: [`logfmt::place::place`] says where this one goes.
    pub offset: u64,
    /// The first entry.
    pub first: Index,
    /// The last entry.
    pub last: Index,
}

/// One chain to one follower: WRITE the run, WRITE the idle commit word, READ the grant word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// To whom.
    pub peer: MemberId,
    /// On which life of the connection.
    pub connection: Connection,
    /// Its number, unique for the life of this core.
    pub id: u64,
    /// The entries; none for a mere read-back. What crosses into the next segment goes in a chain
    /// of its own.
    pub run: Option<Run>,
    /// The nonce that entries under this member's grant are checked with.
    pub nonce: Nonce,
    /// The commit index for headers that are framed anew; an entry carries the smaller of this and
    /// its own index minus one.
    pub commit: Index,
    /// The segment whose idle line tells `commit`, when no entry will soon.
    pub idle: Option<u64>,
}

/// A suffix of another member's log to be copied into the own one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// From whom.
    pub peer: MemberId,
    /// On which life of the connection.
    pub connection: Connection,
    /// The key for reading that member's log.
    pub key: u64,
    /// Both logs are equal up to here; the own log ends here before the copy begins.
    pub from: Index,
    /// The last entry to copy; the digest certifies all of them.
    pub through: Position,
    /// Where they lie.
    pub extents: Vec<Extent>,
}

/// Why proposals or reads are refused: nothing was done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// This member does not lead; here is who might.
    NotLeader(Option<MemberId>),
    /// Leadership is being handed over.
    Transferring,
    /// Too much stands uncommitted, or the log has no room.
    Overloaded,
    /// A membership change is under way, or the asked one makes no sense now.
    ChangeRefused(&'static str),
}

/// Where effects go, in the order in which they are to be run.
pub trait Output {
    /// One more.
    fn push(&mut self, effect: Effect);

    /// One more that is a chain. Nothing of the core depends on when it is posted, so whoever has
    /// run everything before it may post it at once.
    fn post(&mut self, chain: &Chain) {
        self.push(Effect::Chain(*chain));
    }

    /// One more that is an `Append` of commands.
    fn append(&mut self, (term, nonce, commit): (Term, Nonce, Index), count: u32) {
        self.push(Effect::Append { term, nonce, commit, what: Append::Commands(count) });
    }

    /// One more that is a `Spread`.
    fn spread(&mut self) {
        self.push(Effect::Spread);
    }

    /// One more that is a commit index.
    fn commit(&mut self, through: Index) {
        self.push(Effect::Commit { through });
    }
}

impl Output for Vec<Effect> {
    fn push(&mut self, effect: Effect) {
        self.push(effect);
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Store the grant word, then a full fence: from here on no earlier grant's chain counts.
    StoreGrant {
        /// The word.
        word: GrantWord,
    },
    /// Walk every open segment to its end and seal it in memory; answer `Walked`.
    Walk,
    /// Make all that was walked durable by the region's own means; answer `Flushed`.
    FlushLog,
    /// Write this superblock; answer `SuperblockWritten` when it is durable.
    WriteSuperblock(Box<Superblock>),
    /// A segment joins the log as an open one.
    Open(SegmentRecord),
    /// A segment leaves the log; its entries are in the checkpoint.
    Trim(SlotId),
    /// Withdraw every right to write this slot; answer `Released` when no write can land.
    Revoke(SlotId),
    /// Append to the own log in this term, with this commit index in the headers, and begin to
    /// persist it; answer `Appended` at once, and `Persisted` later unless it already was durable
    /// then.
    Append {
        /// The leader's term.
        term: Term,
        /// Its nonce.
        nonce: Nonce,
        /// The commit index that the entries carry.
        commit: Index,
        /// What.
        what: Append,
    },
    /// Post a chain with one doorbell; answer `ReadBack` or `ChainFailed`.
    Chain(Chain),
    /// As many followers as a majority needs have what is new on its way to them. Look at what has
    /// come back from them, if that takes no time; answer `Spread` in any case, for the others.
    Spread,
    /// Chains to this peer that are not posted yet need not be: the grant they were for is no more.
    ForgetChains {
        /// To whom.
        peer: MemberId,
    },
    /// Read a peer's control line; answer `Control`, or nothing when it cannot be read.
    ReadControl {
        /// Whose.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
    },
    /// Send a message. Rooms in it are registered for the peer's connection before it leaves.
    Send {
        /// To whom.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
        /// What.
        message: Message,
    },
    /// Drop this connection and make a new one.
    Reconnect {
        /// With whom.
        peer: MemberId,
        /// Which life of the connection.
        connection: Connection,
    },
    /// Copy a suffix of a peer's log into the own one; answer `Fetched` or `FetchFailed`.
    Fetch(Box<Fetch>),
    /// Everything up to here is committed: apply it.
    Commit {
        /// The last committed entry.
        through: Index,
    },
    /// Reads up to this ticket may be answered once `index` is applied.
    ReadsReady {
        /// The greatest ticket.
        upto: u64,
        /// What must have been applied.
        index: Index,
    },
    /// Reads up to this ticket are refused.
    ReadsRefused {
        /// The greatest ticket.
        upto: u64,
        /// Why.
        why: Refusal,
    },
    /// The proposals that wait are refused; none of them is in the log.
    ProposalsRefused {
        /// Why.
        why: Refusal,
    },
    /// A membership change or transfer is refused.
    ChangeRefused {
        /// Why.
        why: Refusal,
    },
    /// This member leads: its no-op is in its log.
    Leads {
        /// In which term.
        term: Term,
    },
    /// This member no longer leads: what it appended and has not seen committed is unknown.
    Deposed {
        /// In which term it led.
        term: Term,
    },
    /// Write the state at the applied index to a state file; answer `CheckpointTaken`.
    TakeCheckpoint,
    /// The superblock names this checkpoint: older state files may go.
    CheckpointNamed(Box<Checkpoint>),
    /// Fetch this checkpoint's state from a peer; answer `StateFetched`.
    FetchState {
        /// From whom.
        peer: MemberId,
        /// On which life of the connection.
        connection: Connection,
        /// The grant under which it was offered.
        word: GrantWord,
        /// The checkpoint, its state file numbered as the sender numbers it.
        checkpoint: Box<Checkpoint>,
    },
    /// The superblock names this checkpoint and no segment: the log and the state machine start
    /// from it, and nothing that was granted is looked at again.
    InstallState(Box<Checkpoint>),
}
