//! What the scheduler may do next.
//!
//! Choices that nobody could notice are not offered:
//! - A WRITE lands silently. Whether it has is asked only where somebody looks: at a walk, at the
//!   READ behind it, and at a restart. There every number of landed entries is offered.
//! - A lost message is one that is never delivered, so no choice loses it.
//! - A member that is down is one that takes no step, so crash and start are one choice.

use base::GrantWord;
use consensus::LogView as _;

use super::Bounds;
use super::log::Segment;
use super::state::{Action, Member, Place, State};

/// Where each of some segments may end.
type Ends = Vec<(GrantWord, u8)>;

/// Every action that is possible in `state`.
pub(super) fn actions(state: &State, bounds: &Bounds) -> Vec<Action> {
    let mut found = Vec::new();
    let is_urgent = |m: &Place| {
        let member = &state.members[*m];
        bounds.merges_fences && member.walks && member.has_stored
    };
    if let Some(m) = (0..state.count()).find(is_urgent) {
        // What could come between the stored word and the walk could as well come behind it.
        return landings(state, m).into_iter().map(|ends| Action::Walk(m, ends)).collect();
    }
    for m in 0..state.count() {
        local(state, m, &mut found);
        client(state, m, bounds, &mut found);
        if state.left.crashes > 0 {
            let ends = survivals(state, m);
            found.extend(ends.into_iter().map(|ends| Action::Restart(m, ends)));
        }
    }
    for (at, envelope) in state.mail.iter().enumerate() {
        if state.members[envelope.to].connections[envelope.from] == envelope.connection {
            found.push(Action::Deliver(at));
        }
    }
    for a in 0..state.count() {
        for b in 0..state.count() {
            pair(state, a, b, &mut found);
        }
    }
    found
}

/// What a member's own hardware answers.
fn local(state: &State, m: Place, found: &mut Vec<Action>) {
    let member = &state.members[m];
    if member.walks {
        let ends = landings(state, m);
        found.extend(ends.into_iter().map(|ends| Action::Walk(m, ends)));
    }
    if member.walked.is_some() {
        found.push(Action::Walked(m));
    }
    if member.flushes {
        found.push(Action::Flush(m));
    }
    if member.writing.is_some() {
        found.push(Action::Written(m));
    }
    if let Some(fetch) = &member.fetch
        && state.is_connected(m, super::state::place_of(fetch.peer))
    {
        found.push(Action::Fetch(m));
    }
    let own = member.log.own().map(|at| &member.log.segments[at]);
    let persists = own.is_some_and(|own| own.durable < own.landed.len());
    if persists && member.core.leading_term().is_some() {
        found.push(Action::Persist(m));
    }
}

/// What clients, operators and timers ask for.
fn client(state: &State, m: Place, bounds: &Bounds, found: &mut Vec<Action>) {
    let member = &state.members[m];
    if member.core.leading_term().is_some() {
        found.push(Action::Lapse(m));
        if state.left.entries > 0 {
            found.push(Action::Propose(m));
        }
        if state.left.reads > 0 && member.read.is_none() {
            found.push(Action::Read(m));
        }
        if state.left.changes > 0 {
            let numbers = 1..u8::try_from(bounds.configurations.len()).unwrap_or(u8::MAX);
            let targets = numbers.filter(|&at| !bounds.configurations[usize::from(at)].is_joint());
            found.extend(targets.map(|number| Action::Change(m, number)));
        }
        return;
    }
    if state.left.campaigns > 0 && !is_busy(member) && may_begin(state, m, bounds) {
        found.push(Action::Campaign(m));
    }
    if bounds.observes && !is_busy(member) {
        let ends = landings(state, m).into_iter();
        let is_new = |ends: &Ends| {
            member.log.segments.iter().any(|segment| {
                let upto = ends.iter().find(|end| end.0 == segment.word).map_or(0, |end| end.1);
                segment.sealed.is_none() && segment.taken < upto
            })
        };
        found.extend(ends.filter(is_new).map(|ends| Action::Observe(m, ends)));
    }
}

const fn is_busy(member: &Member) -> bool {
    member.walks || member.walked.is_some() || member.flushes || member.writing.is_some()
}

/// Whether a member may campaign. A learner is not asked to: it could win, and then steps down.
///
/// All members are alike before anybody campaigned: the first to do so is called the first.
fn may_begin(state: &State, m: Place, bounds: &Bounds) -> bool {
    let has_begun = state.members.iter().any(|member| member.core.grant_word().0 != 0);
    let (_, configuration) = state.members[m].log.configuration();
    let is_voter = configuration.is_voter(super::state::id_of(m));
    is_voter && (has_begun || m == 0 || !bounds.is_symmetric)
}

/// What lies between two members.
fn pair(state: &State, a: Place, b: Place, found: &mut Vec<Action>) {
    if a == b {
        return;
    }
    let link = state.link(a, b);
    if link.chains.iter().any(|posted| !posted.is_dead) {
        found.push(Action::Sample(a, b));
    }
    if !link.sampled.is_empty() {
        found.push(Action::Complete(a, b));
    }
    if a < b {
        if !state.is_connected(a, b) {
            found.push(Action::Reconnect(a, b));
        } else if state.left.resets > 0 {
            found.push(Action::Reset(a, b));
        }
    }
}

/// The last index that outstanding chains can still bring to a segment, 0 for none, and the first.
fn outstanding(state: &State, to: Place, grant: GrantWord) -> (u8, u8) {
    let links = (0..state.count()).map(|from| state.link(from, to));
    let chains = links.flat_map(|link| &link.chains);
    let due = chains.filter(|posted| posted.grant == grant && posted.first != 0);
    due.fold((0, 0), |(first, last), posted| {
        let first = if first == 0 { posted.first } else { first.min(posted.first) };
        (first, last.max(posted.content.len()))
    })
}

/// Every way in which the outstanding writes may have landed in the open segments.
pub(super) fn landings(state: &State, m: Place) -> Vec<Ends> {
    let segments = state.members[m].log.segments.iter();
    let open = segments.filter(|segment| segment.sealed.is_none() && segment.ordinal == 0);
    product(open.map(|segment| ends_of(state, m, segment, segment.landed.len())))
}

/// Every part of what is not durable, landed or not, that a power cut may leave.
fn survivals(state: &State, m: Place) -> Vec<Ends> {
    let segments = state.members[m].log.segments.iter().filter(|segment| segment.ordinal == 0);
    product(segments.map(|segment| ends_of(state, m, segment, segment.durable)))
}

fn ends_of(state: &State, m: Place, segment: &Segment, least: u8) -> Ends {
    let (first, last) = outstanding(state, m, segment.word);
    let begin = if segment.first == 0 { first } else { segment.first };
    let last = last.max(segment.landed.len());
    let more = (least + 1..=last).filter(|&upto| begin != 0 && begin <= upto);
    std::iter::once(least).chain(more).map(|upto| (segment.word, upto)).collect()
}

fn product(choices: impl Iterator<Item = Ends>) -> Vec<Ends> {
    choices.fold(vec![Vec::new()], |all, ends| {
        let longer = all.iter().flat_map(|begin| {
            ends.iter().map(|&end| begin.iter().copied().chain(std::iter::once(end)).collect())
        });
        longer.collect()
    })
}
