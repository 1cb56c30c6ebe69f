//! What a door hands to a shard and gets back.

use base::{GroupId, Index, MemberId};
use consensus::session::{Act, KeptReply, LogTime, Refusal as SessionRefusal, SessionId};

/// A door's name for one request; comes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Put this into the log.
    Write {
        /// What it does to sessions.
        act: Act,
        /// The state machine's command.
        command: Vec<u8>,
    },
    /// A linearizable read.
    Read {
        /// The state machine's query.
        query: Vec<u8>,
    },
}

/// The end of a request. A request that got no answer is as one that got [`Answer::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Executed (or answered from the state): the machine's reply.
    Done(Vec<u8>),
    /// Executed before; this was the reply then.
    Duplicate(KeptReply),
    /// A session is open.
    Opened(SessionId),
    /// A session act without a command is done.
    Noted,
    /// The session layer did not execute it.
    NotExecuted(SessionRefusal),
    /// Not done, and never will be: somebody else leads, or nobody.
    NotLeader(Option<MemberId>),
    /// Not done: no room, or too much is waiting. Retry later.
    Overloaded,
    /// Not done: it can never be, as it is.
    Bad(&'static str),
    /// It may or may not be done.
    Unknown,
}

/// An answer on its way to its door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Of which group.
    pub group: GroupId,
    /// Which request.
    pub token: Token,
    /// What became of it.
    pub answer: Answer,
}

/// Something that operators and tests may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This member leads.
    Leads(base::Term),
    /// It no longer leads.
    Deposed(base::Term),
    /// A change or transfer was refused.
    ChangeRefused(&'static str),
    /// A checkpoint is named by the superblock.
    Checkpoint(Index),
    /// A checkpoint of another member was installed.
    Installed(Index),
    /// A peer was refused: why.
    PeerRefused(MemberId, &'static str),
    /// The region or the state files failed: this member acknowledges nothing any more.
    Failed(String),
    /// An entry or a state file could not be read where it must be readable.
    Damaged(String),
    /// Log time has reached this.
    Time(LogTime),
}
