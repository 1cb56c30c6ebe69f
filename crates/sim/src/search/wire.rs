//! What lies between members: messages, chains of WRITEs with a READ behind them, and how much of
//! them has landed.

use std::sync::Arc;

use base::GrantWord;
use consensus::{Chain, Connection, Message, Room};

use super::log::Commits;
use super::path::{Path, small};
use super::state::{Envelope, Place, Posted, Sampled, State, place_of};

/// Puts a chain on its way.
pub(super) fn post(state: &mut State, from: Place, chain: &Chain) {
    let to = place_of(chain.peer);
    let connection = chain.connection.0;
    if !state.is_connected(from, to) || state.members[from].connections[to] != connection {
        return;
    }
    let log = &state.members[from].log;
    let own = log.own().map(|at| &log.segments[at]);
    let mut posted = Posted {
        id: chain.id,
        connection,
        is_dead: false,
        grant: GrantWord::default(),
        first: 0,
        content: Path::default(),
        commits: Commits::default(),
        idle: 0,
        is_mere: chain.run.is_none() && chain.idle.is_none(),
    };
    if let Some(run) = chain.run {
        posted.grant = GrantWord(run.key);
        posted.first = small(run.first);
        posted.content = log.path.prefix(small(run.last));
        for index in posted.first..=small(run.last) {
            let framed = own.filter(|own| own.first != 0 && own.first <= index);
            let anew = small(chain.commit).min(index - 1);
            posted.commits.set(index, framed.map_or(anew, |own| own.commits.get(index)));
        }
    }
    if let Some(key) = chain.idle {
        posted.grant = GrantWord(key);
        posted.idle = small(chain.commit);
    }
    state.link_mut(from, to).chains.push(posted);
    state.forget_vain_writes(to);
}

/// Sends a message; a segment's key is the grant it belongs to.
pub(super) fn send(
    state: &mut State,
    from: Place,
    to: Place,
    connection: Connection,
    mut message: Message,
) {
    if !state.is_connected(from, to) || state.members[from].connections[to] != connection.0 {
        return;
    }
    let keyed = |word: GrantWord, rooms: &mut Vec<Room>| {
        for room in rooms {
            room.key = word.0 | u64::from(room.ordinal) << 60;
        }
    };
    match &mut message {
        Message::Granted(granted) => keyed(granted.word, &mut granted.rooms),
        Message::MoreRoom { word, rooms } => keyed(*word, rooms),
        Message::Vote { .. }
        | Message::Follow { .. }
        | Message::Refused { .. }
        | Message::Committed { .. }
        | Message::Install { .. }
        | Message::Installed { .. }
        | Message::FetchChunk { .. }
        | Message::Chunk { .. }
        | Message::Campaign { .. } => {}
    }
    let connection = connection.0;
    state.mail.push(Arc::new(Envelope { from, to, connection, message }));
}

/// The connection behind a link is gone: no READ of it is executed any more.
pub(super) fn end_link(state: &mut State, from: Place, to: Place) {
    let link = state.link_mut(from, to);
    link.chains.iter_mut().for_each(Posted::end);
    link.chains.retain(|posted| posted.first != 0);
}

pub(super) fn land_all(state: &mut State, to: Place, ends: &[(GrantWord, u8)]) {
    for &(grant, upto) in ends {
        land(state, to, grant, upto);
    }
}

/// The writes of outstanding chains land in the segment of `grant`, in order, up to entry `upto`.
fn land(state: &mut State, to: Place, grant: GrantWord, upto: u8) {
    for from in 0..state.count() {
        let is_due =
            |posted: &Posted| posted.grant == grant && posted.first != 0 && posted.first <= upto;
        if !state.link(from, to).chains.iter().any(is_due) {
            continue;
        }
        let mut link = state.link(from, to).clone();
        let Some(segment) = state.member_mut(to).log.of_grant(grant) else { return };
        for posted in link.chains.iter_mut().filter(|posted| is_due(posted)) {
            let last = upto.min(posted.content.len());
            segment.land(posted.first, posted.content.prefix(last), posted.commits);
            if last < posted.content.len() {
                posted.first = last + 1;
            } else {
                (posted.first, posted.content) = (0, Path::default());
            }
        }
        link.chains.retain(|posted| !posted.is_dead || posted.first != 0);
        *state.link_mut(from, to) = link;
    }
}

/// Executes the chain in front: its writes land, and what is in that segment is durable. A chain
/// without writes pushes nothing: what chains before it wrote was pushed by their own READs.
pub(super) fn sample(state: &mut State, from: Place, to: Place) {
    let Some(at) = state.link(from, to).chains.iter().position(|posted| !posted.is_dead) else {
        return;
    };
    let posted = state.link_mut(from, to).chains.remove(at);
    let member = state.member_mut(to);
    let word = member.word;
    if let Some(segment) = member.log.of_grant(posted.grant) {
        if posted.first != 0 {
            segment.land(posted.first, posted.content, posted.commits);
        }
        segment.idle = segment.idle.max(posted.idle);
    }
    let Posted { id, connection, grant, is_mere, .. } = posted;
    if let Some(segment) = member.log.of_grant(grant) {
        segment.durable = segment.landed.len();
    }
    state.link_mut(from, to).sampled.push(Sampled { id, connection, word, is_mere });
}

/// Whether the next chain to be executed on this link has no writes.
pub(super) fn is_mere(state: &State, from: Place, to: Place) -> bool {
    let next = state.link(from, to).chains.iter().find(|posted| !posted.is_dead);
    next.is_some_and(|posted| posted.is_mere)
}
