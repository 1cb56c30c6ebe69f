//! What must hold in every state. Nothing here asks the core whether it is right.

use std::fmt;

use base::{Index, Term};
use consensus::Role;
use logfmt::Superblock;

use super::Bounds;
use super::path::{Path, small, small_term};
use super::state::{Place, State, id_of, place_of};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub rule: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Broken {
    pub(super) const fn new(rule: &'static str, detail: String) -> Self {
        Self { rule, detail }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// The commit index of one life of a member never goes back.
pub(super) fn commit_order(before: Index, after: Index) -> Result<(), Broken> {
    if after < before {
        return Err(Broken::new("commit never goes back", format!("{before} to {after}")));
    }
    Ok(())
}

/// Term, grant and vote never go back on disk.
pub(super) fn superblock(old: &Superblock, new: &Superblock) -> Result<(), Broken> {
    let detail = || {
        let (before, after) = ((old.term, old.vote, old.grant), (new.term, new.vote, new.grant));
        format!("{before:?} to {after:?}")
    };
    if new.term < old.term || new.grant < old.grant {
        return Err(Broken::new("term and grant never go back on disk", detail()));
    }
    if new.term == old.term && old.vote.is_some() && new.vote != old.vote {
        return Err(Broken::new("one vote in a term", detail()));
    }
    Ok(())
}

/// A member says that its log up to `through` is committed, as leader of a term or having been told.
pub(super) fn committed(
    state: &mut State,
    m: Place,
    (leads, through): (Option<Term>, u8),
) -> Result<(), Broken> {
    let member = &state.members[m];
    let own = member.log.path.prefix(through);
    let known = state.ghost.committed;
    if !known.holds(own) && !own.holds(known) {
        let detail = format!("{:?} commits {own:?} where {known:?} was committed", id_of(m));
        return Err(Broken::new("one value per committed index", detail));
    }
    let Some(term) = leads else {
        if known.holds(own) {
            return Ok(());
        }
        let detail = format!("{:?} takes {own:?} for committed, {known:?} is", id_of(m));
        return Err(Broken::new("only what a leader committed is committed", detail));
    };
    if own.len() > known.len() {
        state.ghost.committed = own;
        state.ghost.commit_term = state.ghost.commit_term.max(small_term(term));
    }
    Ok(())
}

/// A member begins to lead: nobody has led in that term before, itself before a restart included.
pub(super) fn leads(state: &mut State, m: Place, term: u8) -> Result<(), Broken> {
    let bit = 1 << term.min(7);
    if state.ghost.led & bit != 0 {
        let detail = format!("{:?} leads term {term}, which had a leader", id_of(m));
        return Err(Broken::new("one leadership per term", detail));
    }
    state.ghost.led |= bit;
    Ok(())
}

/// A read is answered with the state at `index`.
pub(super) fn read(state: &mut State, m: Place, index: u8) -> Result<(), Broken> {
    let member = state.member_mut(m);
    let Some(committed) = member.read.take() else { return Ok(()) };
    if index < committed {
        let detail = format!("answered at {index}, {committed} was committed when it arrived");
        return Err(Broken::new("reads are linearizable", detail));
    }
    Ok(())
}

/// All that must hold between two steps.
pub(super) fn invariants(state: &State, bounds: &Bounds) -> Result<(), Broken> {
    let floors: Vec<Path> =
        state.members.iter().map(|member| member.log.floor(&member.disk)).collect();
    committed_is_durable(state, bounds, &floors)?;
    leaders_are_complete(state)?;
    counted_is_there(state, &floors)?;
    logs_match(state)
}

fn committed_is_durable(state: &State, bounds: &Bounds, floors: &[Path]) -> Result<(), Broken> {
    let committed = state.ghost.committed;
    let last = (1..=committed.len()).rev().find_map(|at| committed.configuration_at(at));
    let configuration = &bounds.configurations[usize::from(last.unwrap_or(0))];
    let has = |id| floors.get(place_of(id)).is_some_and(|floor| floor.holds(committed));
    if configuration.is_quorum(has) {
        return Ok(());
    }
    let detail = format!("{committed:?} is committed, a power cut leaves {floors:?}");
    Err(Broken::new("a quorum holds durably what is committed", detail))
}

/// Each leader of a later term has everything that is committed.
fn leaders_are_complete(state: &State) -> Result<(), Broken> {
    let ghost = &state.ghost;
    for (m, member) in state.members.iter().enumerate() {
        let Some(term) = member.core.leading_term() else { continue };
        let is_later = small_term(term) >= ghost.commit_term;
        if is_later && !member.log.path.holds(ghost.committed) {
            let detail = format!(
                "{:?} leads term {term} with {:?}, {:?} is committed",
                id_of(m),
                member.log.path,
                ghost.committed
            );
            return Err(Broken::new("a leader has all that is committed", detail));
        }
    }
    Ok(())
}

/// What a leader counts at a member is what a power cut would leave there, as long as that member
/// has not granted its log to a later leader, who may cut it.
fn counted_is_there(state: &State, floors: &[Path]) -> Result<(), Broken> {
    for (m, member) in state.members.iter().enumerate() {
        let Role::Leader(leader) = member.core.role() else { continue };
        let term = member.core.leading_term().map_or(0, small_term);
        for (peer, tail) in leader.tails() {
            let counted = member.log.path.prefix(small(tail));
            let Some(floor) = floors.get(place_of(peer)) else { continue };
            let granted = state.members[place_of(peer)].disk.grant.term();
            if small_term(granted) <= term && !floor.holds(counted) {
                let detail = format!(
                    "{:?} counts {counted:?} at {peer:?}, which would be left with {floor:?}",
                    id_of(m)
                );
                return Err(Broken::new("what is counted is durable there", detail));
            }
        }
    }
    Ok(())
}

/// Two logs with the same term at an index are equal up to it.
fn logs_match(state: &State) -> Result<(), Broken> {
    for (a, left) in state.members.iter().enumerate() {
        for right in &state.members[a + 1..] {
            let (left, right) = (left.log.path, right.log.path);
            let shorter = left.len().min(right.len());
            let same = (1..=shorter).rev().find(|&at| left.term_at(at) == right.term_at(at));
            let Some(at) = same else { continue };
            if left.prefix(at) != right.prefix(at) {
                let detail = format!("{left:?} and {right:?} have one term at {at}");
                return Err(Broken::new("logs match", detail));
            }
        }
    }
    Ok(())
}
