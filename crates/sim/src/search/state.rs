//! One state of the whole group: members, what is on the wire, and what the checkers remember.
//!
//! Parts that a step does not change are shared between states, so that a successor costs little.

use std::fmt;
use std::sync::Arc;

use base::{GrantWord, MemberId};
use consensus::{Core, Fetch, Message, SegmentEnd};
use logfmt::Superblock;

use super::fingerprint::Shape;
use super::log::{Commits, ModelLog};
use super::path::Path;

/// A member's place in a state: its id less one.
pub(super) type Place = usize;

pub(super) fn id_of(place: Place) -> MemberId {
    MemberId(u32::try_from(place + 1).unwrap_or(u32::MAX))
}

pub(super) fn place_of(id: MemberId) -> Place {
    usize::try_from(id.0).unwrap_or(usize::MAX).saturating_sub(1)
}

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) core: Arc<Core>,
    /// The core's part of the fingerprint.
    pub(super) shape: Arc<Shape>,
    /// The member's part of the fingerprint, once for each naming.
    pub(super) marks: Vec<u64>,
    pub(super) log: ModelLog,
    /// The superblock that a restart reads.
    pub(super) disk: Arc<Superblock>,
    /// The superblock write under way.
    pub(super) writing: Option<Arc<Superblock>>,
    /// The grant word as peers read it.
    pub(super) word: GrantWord,
    /// A walk has been asked for.
    pub(super) walks: bool,
    /// The grant word was stored before that, as it must be.
    pub(super) has_stored: bool,
    /// The walk is done and the core not told yet (only when that is a step of its own).
    pub(super) walked: Option<(u8, Vec<SegmentEnd>)>,
    /// A flush has been asked for (only when it is a step of its own).
    pub(super) flushes: bool,
    pub(super) fetch: Option<Arc<Fetch>>,
    /// Each peer's connection as this member sees it; 0: none.
    pub(super) connections: Vec<u64>,
    /// A read that waits: the committed length when it arrived.
    pub(super) read: Option<u8>,
}

/// A message under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) connection: u64,
    pub(super) message: Message,
}

/// A chain that was posted and whose READ has not been executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) connection: u64,
    /// Its connection is gone: its READ will not be executed, its WRITEs may still land.
    pub(super) is_dead: bool,
    /// The grant whose segment its WRITEs go to; zero when none is left to land.
    pub(super) grant: GrantWord,
    /// The first entry that has not landed; 0 when there is none.
    pub(super) first: u8,
    /// The writer's log up to the last entry.
    pub(super) content: Path,
    pub(super) commits: Commits,
    /// The commit index for the idle line; 0: none.
    pub(super) idle: u8,
    /// It was posted without any WRITE.
    pub(super) is_mere: bool,
}

/// A read-back that was sampled and has not been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sampled {
    pub(super) id: u64,
    pub(super) connection: u64,
    pub(super) word: GrantWord,
    /// Its chain had no WRITE.
    pub(super) is_mere: bool,
}

/// What one member has posted to another, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) chains: Vec<Posted>,
    pub(super) sampled: Vec<Sampled>,
}

/// What the checkers remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ghost {
    /// The longest log that was ever committed.
    pub(super) committed: Path,
    /// The highest term in which a leader committed something.
    pub(super) commit_term: u8,
    /// The terms that have had a leader, one bit each.
    pub(super) led: u8,
}

/// What the scheduler may still choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) campaigns: u8,
    pub(super) crashes: u8,
    pub(super) resets: u8,
    pub(super) entries: u8,
    pub(super) reads: u8,
    pub(super) changes: u8,
}

/// A state.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) mail: Vec<Arc<Envelope>>,
    /// From writer to target, row by row.
    pub(super) links: Vec<Arc<Link>>,
    /// How often each pair has been connected; row by row, the lower place first.
    pub(super) lives: Vec<u8>,
    pub(super) ghost: Ghost,
    pub(super) left: Left,
}

impl State {
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn link(&self, from: Place, to: Place) -> &Link {
        &self.links[from * self.count() + to]
    }

    pub(super) fn link_mut(&mut self, from: Place, to: Place) -> &mut Link {
        let at = from * self.count() + to;
        Arc::make_mut(&mut self.links[at])
    }

    pub(super) fn member_mut(&mut self, place: Place) -> &mut Member {
        Arc::make_mut(&mut self.members[place])
    }

    /// Whether both ends hold the same connection.
    pub(super) fn is_connected(&self, a: Place, b: Place) -> bool {
        let (left, right) = (self.members[a].connections[b], self.members[b].connections[a]);
        left != 0 && left == right
    }

    /// Draws the number of the next connection of a pair, which no other pair ever has.
    pub(super) fn next_connection(&mut self, a: Place, b: Place) -> u64 {
        let at = a.min(b) * self.count() + a.max(b);
        self.lives[at] += 1;
        u64::from(self.lives[at]) << 8 | at as u64
    }

    /// Forgets WRITEs whose segment is gone: they land in nothing.
    pub(super) fn forget_vain_writes(&mut self, to: Place) {
        let count = self.count();
        for from in 0..count {
            let at = from * count + to;
            let log = &self.members[to].log;
            let is_vain = |posted: &Posted| {
                let is_there = log.segments.iter().any(|segment| segment.word == posted.grant);
                posted.grant != GrantWord::default() && !is_there
            };
            let is_empty = |posted: &Posted| posted.is_dead && posted.first == 0;
            if !self.links[at].chains.iter().any(|posted| is_vain(posted) || is_empty(posted)) {
                continue;
            }
            let mut link = (*self.links[at]).clone();
            for posted in link.chains.iter_mut().filter(|posted| is_vain(posted)) {
                posted.forget_writes();
            }
            link.chains.retain(|posted| !is_empty(posted));
            self.links[at] = Arc::new(link);
        }
    }
}

impl Posted {
    /// Its connection is gone, or nobody waits for its read-back any more.
    pub(super) fn end(&mut self) {
        self.is_dead = true;
        self.idle = 0;
    }

    pub(super) fn forget_writes(&mut self) {
        self.grant = GrantWord::default();
        self.first = 0;
        self.content = Path::default();
        self.commits = Commits::default();
        self.idle = 0;
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.core.role() {
            consensus::Role::Follower => "follower",
            consensus::Role::Candidate(_) => "candidate",
            consensus::Role::Leader(_) => "leader",
        };
        let core = &self.core;
        write!(f, "{role} t{} word {} log {:?}", core.term().0, self.word, self.log.path)?;
        write!(f, " floor {:?}", self.log.floor(&self.disk))?;
        write!(f, " commit {}", core.commit_index().0)?;
        for segment in &self.log.segments {
            if segment.first == 0 && segment.ordinal != 0 {
                continue;
            }
            let seal = if segment.sealed.is_some() { "sealed" } else { "open" };
            write!(f, " {seal} {}:{:?}", segment.word, segment.landed)?;
            write!(f, "@{} durable {}", segment.first, segment.durable)?;
        }
        Ok(())
    }
}

/// One choice of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A member is asked to campaign.
    Campaign(Place),
    /// A leader finds that no quorum has read back well for the period, and steps down.
    Lapse(Place),
    /// Its walk runs, after the writes of the outstanding chains landed up to these entries.
    Walk(Place, Vec<(GrantWord, u8)>),
    /// Its walk has ended.
    Walked(Place),
    /// What it walked becomes durable.
    Flush(Place),
    /// Its superblock becomes durable.
    Written(Place),
    /// Its own entries become durable.
    Persist(Place),
    /// A client proposes a command.
    Propose(Place),
    /// The message at this place of the mail arrives.
    Deliver(usize),
    /// The chain in front is executed: its writes land, the word is sampled.
    Sample(Place, Place),
    /// The read-back in front reaches the leader.
    Complete(Place, Place),
    /// A candidate's copy of another log is done.
    Fetch(Place),
    /// It loses power and starts again; of each open segment this much is left.
    Restart(Place, Vec<(GrantWord, u8)>),
    /// Two members notice that they need a new connection, and have it.
    Reconnect(Place, Place),
    /// A live connection breaks and is made anew.
    Reset(Place, Place),
    /// A client asks for a linearizable read.
    Read(Place),
    /// The background walker runs.
    Observe(Place, Vec<(GrantWord, u8)>),
    /// An operator changes the members to the configuration of this number.
    Change(Place, u8),
}

/// An action with what makes it readable.
pub(super) fn describe(action: &Action, state: &State) -> String {
    let name = |place: Place| format!("m{}", place + 1);
    let extent = |ends: &[(GrantWord, u8)]| {
        let parts: Vec<String> =
            ends.iter().map(|(word, last)| format!("{word}..{last}")).collect();
        if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
    };
    match action {
        Action::Campaign(m) => format!("{} campaigns", name(*m)),
        Action::Lapse(m) => format!("{} has lost its quorum", name(*m)),
        Action::Walk(m, ends) => format!("{} walks, landed: {}", name(*m), extent(ends)),
        Action::Walked(m) => format!("{} walk ends", name(*m)),
        Action::Flush(m) => format!("{} flushes", name(*m)),
        Action::Written(m) => format!("{} superblock durable", name(*m)),
        Action::Persist(m) => format!("{} own entries durable", name(*m)),
        Action::Propose(m) => format!("{} gets a proposal", name(*m)),
        Action::Deliver(at) => {
            let envelope = &state.mail[*at];
            let message = format!("{:?}", envelope.message);
            let kind: String = message.chars().take_while(char::is_ascii_alphanumeric).collect();
            format!("{} gets {kind} from {}", name(envelope.to), name(envelope.from))
        }
        Action::Sample(a, b) => format!("{} chain executes at {}", name(*a), name(*b)),
        Action::Complete(a, b) => format!("{} gets read-back from {}", name(*a), name(*b)),
        Action::Fetch(m) => format!("{} has fetched", name(*m)),
        Action::Restart(m, ends) => format!("{} restarts, left: {}", name(*m), extent(ends)),
        Action::Reconnect(a, b) => format!("{} and {} reconnect", name(*a), name(*b)),
        Action::Reset(a, b) => format!("{} and {} lose their connection", name(*a), name(*b)),
        Action::Read(m) => format!("{} gets a read", name(*m)),
        Action::Observe(m, ends) => format!("{} observes, landed: {}", name(*m), extent(ends)),
        Action::Change(m, number) => format!("{} changes members to {number}", name(*m)),
    }
}
