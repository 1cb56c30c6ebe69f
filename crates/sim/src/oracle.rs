//! The checkers that stand outside the code under test. They look at every member after each of
//! its turns, at its memory as power cuts would leave it, and at what clients were told.
//!
//! | checker | what must hold |
//! |---|---|
//! | one log | two members that hold an index for committed hold the same entry there |
//! | completeness | a new leader's log holds everything that was ever committed |
//! | durability | what a leader holds for committed is in the durable memory of a quorum |
//! | one leader | a term has one leader |
//! | one writer | bytes before a seal never change while the superblock names it |
//! | equal state | two members that have applied the same index have the same state |
//! | linearizable | the clients' history is that of one register per key; this is also exactly once |
//! | progress | once faults end, a leader is found, everybody catches up, a write commits |

use std::collections::BTreeMap;
use std::fmt;

use base::{Configuration, Digest, Durability, Index, Instant, MemberId, Nonce, SlotId, Term};
use logfmt::{Bytes, COPY_LEN, MemberLog, RegionLayout, Seal, Superblock, choose};
use replica::machine::StateMachine;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    memory::Memory,
    node::{GROUP, Node},
    world::SharedWorld,
};

/// Which checker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checker {
    /// Two members disagree about a committed entry.
    OneLog,
    /// A leader lacks a committed entry.
    Completeness,
    /// A committed entry is not durable on a quorum.
    Durability,
    /// Two leaders in one term.
    OneLeader,
    /// Bytes before a seal changed.
    OneWriter,
    /// Two members applied the same log to different states.
    EqualState,
    /// The clients' history is not linearizable.
    Linearizable,
    /// No progress after the faults ended.
    Progress,
    /// A member did not start, or gave up.
    Running,
    /// The code under test panicked.
    Panicked,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it.
    pub checker: Checker,
    /// When.
    pub at: Instant,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.checker, self.at.0 / 1_000, self.what)
    }
}

/// What the oracle has seen of one member's process.
#[derive(Debug, Default)]
struct Seen {
    commit: Index,
    applied: Index,
    leading: Option<Term>,
    seals: BTreeMap<(SlotId, Nonce), (Seal, u64)>,
    looks: u64,
}

/// All protocol checkers.
#[derive(Debug, Default)]
pub struct Oracle {
    committed: BTreeMap<Index, Digest>,
    /// The last index that the leader of a term has committed.
    committed_in: BTreeMap<Term, Index>,
    states: BTreeMap<Index, Digest>,
    leaders: BTreeMap<Term, MemberId>,
    seen: BTreeMap<MemberId, Seen>,
    /// How many elections were won.
    pub elections: u64,
}

/// A memory as somebody sees it.
struct Image<'a> {
    memory: &'a Memory,
    is_durable: bool,
}

impl Bytes for Image<'_> {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        let range = at..at + into.len() as u64;
        let bytes = if self.is_durable {
            self.memory.durable_bytes(range)
        } else {
            self.memory.visible(range)
        };
        into.copy_from_slice(bytes);
    }
}

impl Image<'_> {
    fn superblock(&self) -> Option<Superblock> {
        let copy = |at: u64| {
            let mut bytes = vec![0; usize::try_from(COPY_LEN).unwrap_or(0)];
            self.copy_out(at, &mut bytes);
            bytes
        };
        choose(&copy(0), &copy(COPY_LEN)).ok().map(|(superblock, _)| superblock)
    }

    /// Whether a member that restarted from this image would hold the entry.
    fn holds(&self, index: Index, digest: Digest, window: u64) -> bool {
        let Some(superblock) = self.superblock() else { return false };
        if superblock.checkpoint.at.index >= index {
            return true;
        }
        let layout = RegionLayout::new(superblock.segment_len, superblock.slot_count);
        let Ok(layout) = layout else { return false };
        let Ok((log, _)) = MemberLog::restore(layout, &superblock, self, false, window) else {
            return false;
        };
        log.position_at(index, self).is_some_and(|position| position.digest == digest)
    }
}

/// One member in so many turns, its sealed segments are looked at.
const LOOK_EVERY: u64 = 32;

impl Oracle {
    /// A member's process has ended: the next one begins anew.
    pub fn restarted(&mut self, member: MemberId) {
        self.seen.remove(&member);
    }

    /// Looks at a member after its turn. `nodes` are all members.
    ///
    /// # Errors
    /// The first violation.
    pub fn observe(
        &mut self,
        at: usize,
        nodes: &[Node],
        world: &SharedWorld,
    ) -> Result<(), Violation> {
        let now = world.borrow().now();
        let node = &nodes[at];
        let Some(shard) = &node.shard else { return Ok(()) };
        let (Some(core), Some(log)) = (shard.core(GROUP), shard.log(GROUP)) else { return Ok(()) };
        let violation = |checker, what| Violation { checker, at: now, what };
        let mut seen = self.seen.remove(&node.id).unwrap_or_default();
        let commit = core.commit_index();
        let term = core.leading_term();
        if commit > seen.commit || term != seen.leading {
            let guard = world.borrow();
            let image = Image { memory: guard.look(node.memory), is_durable: false };
            let found = self.check_committed(node.id, (seen.commit, commit), log, &image);
            found.map_err(|what| violation(Checker::OneLog, what))?;
            if let Some(term) = term.filter(|_| term != seen.leading) {
                self.elections += 1;
                let other = *self.leaders.entry(term).or_insert(node.id);
                if other != node.id {
                    let what = format!("{other} and {} both lead in {term:?}", node.id);
                    return Err(violation(Checker::OneLeader, what));
                }
                let found = self.check_complete(node.id, term, log, &image);
                found.map_err(|what| violation(Checker::Completeness, what))?;
            }
            if let Some(term) = term.filter(|_| commit > seen.commit) {
                let last = self.committed_in.entry(term).or_insert(commit);
                *last = commit.max(*last);
                let found = self.check_durable(commit, log.configuration().1, nodes, &guard);
                found.map_err(|what| violation(Checker::Durability, what))?;
            }
        }
        (seen.commit, seen.leading) = (commit, term);
        let applied = shard.applied(GROUP).unwrap_or_default();
        if let Some(machine) = shard.machine(GROUP).filter(|_| applied > seen.applied) {
            seen.applied = applied;
            let digest = machine.digest();
            let other = *self.states.entry(applied).or_insert(digest);
            if other != digest {
                let what = format!("{} applied up to {applied} and differs", node.id);
                return Err(violation(Checker::EqualState, what));
            }
        }
        seen.looks += 1;
        if seen.looks.is_multiple_of(LOOK_EVERY) {
            let guard = world.borrow();
            let memory = guard.look(node.memory);
            let found = check_seals(&mut seen, core.superblock(), memory);
            found.map_err(|what| violation(Checker::OneWriter, format!("{}: {what}", node.id)))?;
        }
        self.seen.insert(node.id, seen);
        Ok(())
    }

    /// What a member newly holds for committed is what everybody holds for committed.
    fn check_committed(
        &mut self,
        member: MemberId,
        (from, to): (Index, Index),
        log: &MemberLog,
        image: &Image<'_>,
    ) -> Result<(), String> {
        let mut index = from.next();
        while index <= to {
            if let Some(position) = log.position_at(index, image) {
                let known = *self.committed.entry(index).or_insert(position.digest);
                if known != position.digest {
                    let digest = position.digest;
                    return Err(format!(
                        "{member} holds {index} for committed as {digest}, it was {known}"
                    ));
                }
            }
            index = index.next();
        }
        Ok(())
    }

    fn check_complete(
        &self,
        member: MemberId,
        term: Term,
        log: &MemberLog,
        image: &Image<'_>,
    ) -> Result<(), String> {
        // A leader of a lower term may yet win what no longer matters: it cannot commit.
        let earlier = self.committed_in.range(..term).map(|(_, &index)| index).max();
        let Some(last) = earlier else { return Ok(()) };
        let Some(&digest) = self.committed.get(&last) else { return Ok(()) };
        let tail = log.tail().index;
        if tail < last {
            return Err(format!("{member} leads {term:?} up to {tail}, {last} was committed"));
        }
        match log.position_at(last, image) {
            Some(position) if position.digest != digest => {
                Err(format!("{member} leads {term:?} with another entry at {last}"))
            }
            _ => Ok(()),
        }
    }

    /// What a leader holds for committed is on a quorum, as a power cut could leave it now.
    fn check_durable(
        &self,
        commit: Index,
        configuration: &Configuration,
        nodes: &[Node],
        world: &crate::world::World,
    ) -> Result<(), String> {
        let Some(&digest) = self.committed.get(&commit) else { return Ok(()) };
        let holds = |id: MemberId| {
            nodes.iter().find(|node| node.id == id).is_some_and(|node| {
                let memory = world.look(node.memory);
                let is_durable =
                    !matches!(memory.mode(), Durability::Volatile | Durability::Process);
                Image { memory, is_durable }.holds(commit, digest, memory.len())
            })
        };
        if configuration.is_quorum(holds) {
            return Ok(());
        }
        let holders: Vec<String> =
            configuration.all().ids().filter(|&id| holds(id)).map(|id| id.to_string()).collect();
        Err(format!("{commit} is committed, durable only on members [{}]", holders.join(", ")))
    }

    /// Whether every committed index that was ever seen is at or below `index`.
    #[must_use]
    pub fn committed(&self) -> Index {
        self.committed.last_key_value().map_or(Index(0), |(&index, _)| index)
    }
}

/// Bytes before a seal are what they were.
fn check_seals(seen: &mut Seen, superblock: &Superblock, memory: &Memory) -> Result<(), String> {
    let layout = RegionLayout::new(superblock.segment_len, superblock.slot_count);
    let Ok(layout) = layout else { return Err("the layout is not allowed".to_owned()) };
    let mut seals = BTreeMap::new();
    for record in &superblock.segments {
        let Some(seal) = record.seal else { continue };
        let start = layout.slot(record.slot).start;
        let bytes = memory.visible(start + logfmt::place::FIRST_OFFSET..start + seal.end);
        let hash = xxh3_64(bytes);
        let key = (record.slot, record.nonce);
        let (known, expected) = *seen.seals.get(&key).unwrap_or(&(seal, hash));
        if known == seal && hash != expected {
            return Err(format!(
                "segment {:?} changed before its seal at {}",
                record.slot, seal.end
            ));
        }
        seals.insert(key, (seal, hash));
    }
    seen.seals = seals;
    Ok(())
}
