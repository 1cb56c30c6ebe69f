//! What a leader knows of one other member.

use std::collections::VecDeque;

use base::{GrantWord, Index, Instant, MemberId};
use logfmt::Checkpoint;

use crate::{message::Connection, remote::Remote};

/// A chain that has been posted and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InFlight {
    pub(crate) id: u64,
    /// The word under which it was posted.
    pub(crate) word: GrantWord,
    /// The connection it was posted on.
    pub(crate) connection: Connection,
    /// The first entry it carries, if any.
    pub(crate) first: Option<Index>,
    /// The last entry it carries; what was sent before when it carries none.
    pub(crate) last: Index,
    pub(crate) bytes: u64,
    /// Its place among all chains of this leader.
    pub(crate) sequence: u64,
    pub(crate) posted: Instant,
    /// The commit index it tells.
    pub(crate) commit: Index,
}

/// How far a member's cooperation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// It has not granted anything to this leader; asked again at the given time.
    Probe(Instant),
    /// It takes the log.
    Replicate,
    /// It is being given the checkpoint that was offered to it. It is not counted and gets no log.
    Snapshot,
}

/// One other member, as its leader sees it.
///
/// Invariants: `tail` is contiguous and durable there, and moves only by a good read-back, a grant
/// or an install; `next > tail` while replicating; `in_flight` is in posting order and of one
/// grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) connection: Option<Connection>,
    pub(crate) stage: Stage,
    /// The checkpoint that it was offered under the grant in force.
    pub(crate) offered: Option<Box<Checkpoint>>,
    /// The word of its grant.
    pub(crate) word: GrantWord,
    pub(crate) remote: Remote,
    pub(crate) next_ordinal: u32,
    pub(crate) next: Index,
    pub(crate) tail: Index,
    /// The greatest tail it ever had in this term.
    pub(crate) counted: Index,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) bytes_in_flight: u64,
    /// Since when there are entries for it and no segment to put them in.
    pub(crate) starved: Option<Instant>,
    /// The commit index it has been told, as far as read-backs prove.
    pub(crate) told: Index,
    /// Posting sequence of the last chain that read back well.
    pub(crate) confirmed: u64,
    /// When that chain was posted.
    pub(crate) confirmed_at: Instant,
    /// When a chain was last posted.
    pub(crate) posted_at: Instant,
}

impl Peer {
    pub(crate) fn new(id: MemberId, connection: Option<Connection>, now: Instant) -> Self {
        Self {
            id,
            connection,
            stage: Stage::Probe(now),
            offered: None,
            word: GrantWord::default(),
            remote: Remote::default(),
            next_ordinal: 0,
            next: Index(1),
            tail: Index(0),
            counted: Index(0),
            in_flight: VecDeque::new(),
            bytes_in_flight: 0,
            starved: None,
            told: Index(0),
            confirmed: 0,
            confirmed_at: now,
            posted_at: now,
        }
    }

    /// Forgets the grant: nothing in flight is counted any more. What was counted stays counted,
    /// because it is durable there.
    pub(crate) fn probe(&mut self, at: Instant) {
        self.stage = Stage::Probe(at);
        self.offered = None;
        self.starved = None;
        self.in_flight.clear();
        self.bytes_in_flight = 0;
        self.remote = Remote::default();
        self.next_ordinal = 0;
    }

    /// The lowest entry that a chain in flight still gathers from the leader's own log.
    pub(crate) fn oldest_in_flight(&self) -> Option<Index> {
        self.in_flight.iter().find_map(|posted| posted.first)
    }

    /// Whether it has granted something that chains can be posted under.
    pub(crate) fn is_granted(&self) -> bool {
        !matches!(self.stage, Stage::Probe(_)) && self.connection.is_some()
    }

    pub(crate) fn is_replicating(&self) -> bool {
        matches!(self.stage, Stage::Replicate) && self.connection.is_some()
    }
}
