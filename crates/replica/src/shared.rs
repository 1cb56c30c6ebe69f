//! What the groups of a shard share: the fabric, the connections, the control memory, and what
//! goes out to doors and operators.

use std::collections::VecDeque;

use base::{GroupId, MemberId};
use consensus::{Chain, Connection, Message, Refusal};
use fabric::{Fabric, PostError, Qp, RegionId, Remote, Request, WorkRequest};
use logfmt::CONTROL_LEN;

use crate::{
    door::{Answer, Answered, Notice, Token},
    env::Env,
    greeting::Greeting,
};

/// A queue pair to a peer's shard.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: MemberId,
    pub(crate) qp: Qp,
    /// Its place among the links; kept for its life.
    pub(crate) place: u64,
    pub(crate) greeting: Greeting,
    /// What waits for room on the queue pair, in order.
    pub(crate) queued: VecDeque<Queued>,
    /// Read-backs of chains in flight.
    pub(crate) reads: u32,
}

/// Something that found its queue pair full.
#[derive(Debug)]
pub(crate) enum Queued {
    /// A chain of the group with this line.
    Chain(u32, Chain),
    /// A message's bytes.
    Message(Vec<u8>),
}

/// Messages and chains that may wait for one queue pair; a peer that takes none of them is
/// connected anew.
const QUEUED_MAX: usize = 4096;

/// What a completion is for: kind, the group's line, and a number of the group's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Chain(u64),
    Control,
    /// With the number of the READ.
    Fetch(u64),
    /// A message: only its failure is ever heard of.
    Message,
}

impl Queued {
    fn is_chain_of(&self, line: u32) -> bool {
        matches!(self, Self::Chain(queued, _) if *queued == line)
    }
}

/// Posts a message.
pub(crate) fn post_message<F: Fabric>(
    fabric: &mut F,
    qp: Qp,
    bytes: &[u8],
) -> Result<(), PostError> {
    let id = request_id(Purpose::Message, 0);
    fabric.post(qp, &[WorkRequest { id, request: Request::Send { bytes } }])
}

const NUMBER_BITS: u32 = 40;

pub(crate) fn request_id(purpose: Purpose, line: u32) -> u64 {
    let (kind, number) = match purpose {
        Purpose::Chain(number) => (0_u64, number),
        Purpose::Control => (1, 0),
        Purpose::Fetch(number) => (2, number),
        Purpose::Message => (3, 0),
    };
    (kind << 56) | (u64::from(line & 0xffff) << NUMBER_BITS) | (number & ((1 << NUMBER_BITS) - 1))
}

pub(crate) fn purpose_of(id: u64) -> (Purpose, u32) {
    let line = u32::try_from((id >> NUMBER_BITS) & 0xffff).unwrap_or(0);
    let purpose = match id >> 56 {
        0 => Purpose::Chain(id & ((1 << NUMBER_BITS) - 1)),
        1 => Purpose::Control,
        2 => Purpose::Fetch(id & ((1 << NUMBER_BITS) - 1)),
        _ => Purpose::Message,
    };
    (purpose, line)
}

/// Peers whose control lines can be on their way at one time, per group.
pub(crate) const PEERS_MAX: u64 = base::MEMBERS_MAX as u64;

/// Shared by the groups of a shard.
pub(crate) struct Shared<E: Env> {
    pub(crate) member: MemberId,
    pub(crate) fabric: E::Fabric,
    pub(crate) control: E::Region,
    pub(crate) landing: E::Region,
    pub(crate) landing_id: RegionId,
    /// Bytes at the end of the landing memory for suffixes of other logs.
    pub(crate) fetch_at: u64,
    /// Whose READ is on its way there; one at a time.
    pub(crate) fetch_owner: Option<u32>,
    /// READs of suffixes so far.
    pub(crate) fetches: u64,
    pub(crate) links: Vec<Link>,
    /// Links that a group wants to be made anew.
    pub(crate) dropped: Vec<(MemberId, Connection)>,
    pub(crate) answers: Vec<Answered>,
    pub(crate) notices: Vec<(GroupId, Notice)>,
    pub(crate) bytes: Vec<u8>,
    /// Empty buffers of commands that went into the log, for replies.
    spare: Vec<Vec<u8>>,
}

/// Buffers that are kept, and the capacity of the largest: an everyday command or reply.
const SPARE_MAX: usize = 1_024;
const SPARE_BYTES_MAX: usize = 4 << 10;

impl<E: Env> Shared<E> {
    pub(crate) fn new(
        member: MemberId,
        fabric: E::Fabric,
        (control, landing, landing_id): (E::Region, E::Region, RegionId),
    ) -> Self {
        Self {
            member,
            fabric,
            control,
            landing,
            landing_id,
            fetch_at: crate::limits::CONTROL_BYTES * PEERS_MAX,
            fetch_owner: None,
            fetches: 0,
            links: Vec::new(),
            dropped: Vec::new(),
            answers: Vec::new(),
            notices: Vec::new(),
            bytes: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// An empty buffer, a used one if there is one.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer that is no longer needed.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Where a group's control line lies in the control memory.
    #[expect(clippy::unused_self, reason = "a place in this shard's memory")]
    pub(crate) fn line_at(&self, line: u32) -> u64 {
        u64::from(line) * CONTROL_LEN as u64
    }

    /// Which of the links is this life of the connection with a peer.
    pub(crate) fn link_at(&self, peer: MemberId, connection: Connection) -> Option<usize> {
        self.links.iter().position(|link| link.qp.0 == connection.0 && link.peer == peer)
    }

    pub(crate) fn qp(&self, peer: MemberId, connection: Connection) -> Option<Qp> {
        self.link_at(peer, connection).map(|at| self.links[at].qp)
    }

    pub(crate) fn drop_link(&mut self, peer: MemberId, connection: Connection) {
        self.dropped.push((peer, connection));
    }

    pub(crate) fn answer(&mut self, group: GroupId, token: Token, answer: Answer) {
        self.answers.push(Answered { group, token, answer });
    }

    pub(crate) fn note_refusal(&mut self, group: GroupId, why: Refusal) {
        let why = match why {
            Refusal::ChangeRefused(why) => why,
            Refusal::NotLeader(_) => "this member does not lead",
            Refusal::Transferring => "leadership is being handed over",
            Refusal::Overloaded => "the log has no room now",
        };
        self.notices.push((group, Notice::ChangeRefused(why)));
    }

    /// Sends a message, behind whatever waits for the queue pair. It is lost only with that.
    pub(crate) fn send(&mut self, group: GroupId, qp: Qp, message: &Message) {
        self.bytes.clear();
        consensus::wire::encode(group, message, &mut self.bytes);
        let Self { fabric, links, bytes, dropped, .. } = self;
        let Some(link) = links.iter_mut().find(|link| link.qp == qp) else { return };
        let is_full =
            !link.queued.is_empty() || post_message(fabric, qp, bytes) == Err(PostError::Full);
        if is_full && link.queued.len() >= QUEUED_MAX {
            dropped.push((link.peer, Connection(qp.0)));
        } else if is_full {
            link.queued.push_back(Queued::Message(bytes.clone()));
        }
    }

    /// Forgets what a group has queued for a peer under a grant that is no more.
    pub(crate) fn forget_chains_to(&mut self, peer: MemberId, line: u32) {
        for link in self.links.iter_mut().filter(|link| link.peer == peer) {
            link.queued.retain(|queued| !queued.is_chain_of(line));
        }
    }

    /// Reads a peer's control line into its place in the landing memory.
    pub(crate) fn read_control(
        &mut self,
        peer: MemberId,
        connection: Connection,
        (group, line): (GroupId, u32),
    ) {
        let Some(at) = self.link_at(peer, connection) else { return };
        let link = &self.links[at];
        let Some(theirs) = link.greeting.group(group) else { return };
        let qp = link.qp;
        let key = fabric::Key(link.greeting.control_key);
        let from = Remote { key, offset: u64::from(theirs.line) * CONTROL_LEN as u64 };
        let Some(at) = self.landing_of(peer, line) else { return };
        let into = (self.landing_id, at);
        let id = request_id(Purpose::Control, line);
        let len = u32::try_from(CONTROL_LEN).unwrap_or(64);
        let request = Request::Read { from, into, len };
        // Not posted is not answered: the sample counts as one without progress.
        let _skipped = self.fabric.post(qp, &[WorkRequest { id, request }]);
    }

    /// Where a peer's control line of a group lands: each pair has a place of its own.
    pub(crate) fn landing_of(&self, peer: MemberId, line: u32) -> Option<u64> {
        let link = self.links.iter().find(|link| link.peer == peer)?;
        let place = u64::from(line) * PEERS_MAX + link.place;
        Some(place * CONTROL_LEN as u64)
    }

    /// The smallest place that no link has.
    pub(crate) fn free_place(&self) -> u64 {
        let is_taken = |place: &u64| self.links.iter().any(|link| link.place == *place);
        (0..PEERS_MAX).find(|place| !is_taken(place)).unwrap_or(PEERS_MAX - 1)
    }

    /// Chains of a group that no longer leads are not worth posting.
    pub(crate) fn forget_chains(&mut self, line: u32) {
        for link in &mut self.links {
            link.queued.retain(|queued| !queued.is_chain_of(line));
        }
    }
}
