//! What is still under way but can change nothing any more. States that differ in nothing else are
//! one.

use std::sync::Arc;

use base::Term;
use consensus::{Connection, Effect, Event, Message};

use super::state::{Envelope, Member, State, id_of};
use super::step::NOW;

/// Drops what its receiver is bound to ignore for ever: read-backs of chains that their leader
/// has forgotten, and answers to a candidacy or leadership that is over.
pub(super) fn forget_stale(state: &mut State) {
    for from in 0..state.count() {
        for to in 0..state.count() {
            let member = &state.members[from];
            let is_stale = |id| member.place_of_chain(to, id) == 0;
            let link = state.link(from, to);
            let has_stale = link.chains.iter().any(|it| !it.is_dead && is_stale(it.id))
                || link.sampled.iter().any(|it| is_stale(it.id));
            if !has_stale {
                continue;
            }
            let mut link = link.clone();
            link.sampled.retain(|sampled| !is_stale(sampled.id));
            for posted in link.chains.iter_mut().filter(|it| !it.is_dead && is_stale(it.id)) {
                posted.end();
            }
            link.chains.retain(|posted| !posted.is_dead || posted.first != 0);
            *state.link_mut(from, to) = link;
        }
    }
    let members = &state.members;
    state.mail.retain(|envelope| !is_void(members, envelope));
}

/// Whether a message comes too late to change anything, now and for ever: it is about a term in
/// which its receiver is nothing any more, and terms do not come back. That it changes nothing is
/// tried out.
fn is_void(members: &[Arc<Member>], envelope: &Envelope) -> bool {
    let member = &members[envelope.to];
    let is_late = match &envelope.message {
        Message::Granted(granted) => is_over(member, granted.word.term()),
        Message::Refused { asked, .. } => is_over(member, *asked),
        Message::Committed { word, .. } => *word != member.core.grant_word(),
        Message::Vote { term, .. } | Message::Follow { term, .. } => {
            is_over(&members[envelope.from], *term)
                && *term < member.core.grant_word().term()
                && member.core.grant_word().term() == member.disk.term
        }
        Message::MoreRoom { .. }
        | Message::Install { .. }
        | Message::Installed { .. }
        | Message::FetchChunk { .. }
        | Message::Chunk { .. }
        | Message::Campaign { .. } => false,
    };
    if !is_late {
        return false;
    }
    let mut core = (*member.core).clone();
    let mut effects = Vec::new();
    let Envelope { from, to, connection, message } = envelope.clone();
    let event = Event::Received { peer: id_of(from), connection: Connection(connection), message };
    core.step(NOW, event, &member.log, &mut effects);
    let is_void_answer = |effect: &Effect| {
        let Effect::Send { message: message @ Message::Refused { .. }, .. } = effect else {
            return false;
        };
        let (from, to, message) = (to, from, message.clone());
        is_void(members, &Envelope { from, to, connection, message })
    };
    core == *member.core && effects.iter().all(is_void_answer)
}

/// Whether a member is neither candidate nor leader of `term`, and will not be again.
fn is_over(member: &Member, term: Term) -> bool {
    let is_active = !matches!(member.core.role(), consensus::Role::Follower);
    !is_active || member.core.term() != term
}
