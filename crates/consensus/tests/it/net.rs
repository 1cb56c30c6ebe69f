//! The network between members: connections, messages in flight, chains in flight, and the keys
//! that let a chain write a segment.

use base::{GrantWord, Index, MemberId, SlotId};
use consensus::{
    Chain, Event, Message, Run,
    message::{Connection, Room},
};
use logfmt::{BytesMut, encode_idle, place::place};

use crate::{
    member::{Member, Power},
    text,
    world::{Loud, World},
};

/// One direction between two members.
pub(crate) type Lane = (MemberId, MemberId);

/// The connection of a pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Its present life, while it is up.
    pub(crate) connection: Option<Connection>,
    /// It can come up.
    pub(crate) is_cut: bool,
}

/// A right to write one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) key: u64,
    pub(crate) owner: MemberId,
    pub(crate) slot: SlotId,
}

/// Bytes for a segment of the receiver.
#[derive(Clone, Debug)]
struct Write {
    key: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// How far a chain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Posted,
    /// Its bytes are in the receiver's memory.
    Placed,
    /// The grant word has been read.
    Sampled(GrantWord),
    Failed,
}

/// A chain in flight.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) lane: Lane,
    pub(crate) chain: Chain,
    pub(crate) progress: Progress,
    /// Its connection is gone. It may still land, by the script's will alone.
    pub(crate) is_late: bool,
    writes: Vec<Write>,
}

impl Posted {
    pub(crate) fn is_beat(&self) -> bool {
        self.chain.run.is_none() && self.chain.idle.is_none()
    }

    fn loud(&self) -> Loud {
        if self.is_beat() { Loud::Noise } else { Loud::Detail }
    }
}

/// A message in flight.
#[derive(Clone, Debug)]
pub(crate) struct Mail {
    pub(crate) lane: Lane,
    pub(crate) connection: Connection,
    pub(crate) message: Message,
}

impl World {
    pub(crate) fn link(&mut self, a: MemberId, b: MemberId) -> &mut Link {
        self.links.entry((a.min(b), a.max(b))).or_default()
    }

    pub(crate) fn is_connected(&self, a: MemberId, b: MemberId, connection: Connection) -> bool {
        let link = self.links.get(&(a.min(b), a.max(b)));
        link.is_some_and(|link| link.connection == Some(connection))
    }

    /// Connects every pair that can be and is not.
    pub(crate) fn connect_all(&mut self) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for (at, &a) in ids.iter().enumerate() {
            for &b in &ids[at + 1..] {
                let are_up = self.members[&a].runs() && self.members[&b].runs();
                let link = *self.link(a, b);
                if are_up && !link.is_cut && link.connection.is_none() {
                    self.connect(a, b);
                }
            }
        }
    }

    fn connect(&mut self, a: MemberId, b: MemberId) {
        self.last_connection += 1;
        let connection = Connection(self.last_connection);
        self.link(a, b).connection = Some(connection);
        self.feed(a, Event::Connected { peer: b, connection });
        self.feed(b, Event::Connected { peer: a, connection });
    }

    /// Ends the connection of a pair. Messages are lost; chains that were posted may still land.
    pub(crate) fn disconnect(&mut self, a: MemberId, b: MemberId, exited: bool) {
        let Some(connection) = self.link(a, b).connection.take() else { return };
        self.mail.retain(|mail| mail.connection != connection);
        for posted in &mut self.chains {
            posted.is_late |= posted.chain.connection == connection;
        }
        for (member, peer) in [(a, b), (b, a)] {
            if self.members[&member].power != Power::Down {
                self.feed_later(member, Event::Disconnected { peer, connection, exited });
            }
        }
    }

    /// Registers segments for the peer that they are granted to.
    pub(crate) fn register_rooms(&mut self, owner: MemberId, rooms: &mut [Room]) {
        for room in rooms {
            self.last_key += 1;
            room.key = self.last_key;
            self.keys.push(Key { key: room.key, owner, slot: room.slot });
        }
    }

    pub(crate) fn key(&self, key: u64) -> Option<Key> {
        self.keys.iter().copied().find(|registered| registered.key == key)
    }

    /// Frames a chain's entries from the sender's log and posts it.
    pub(crate) fn post(&mut self, from: MemberId, chain: Chain) {
        if !self.is_connected(from, chain.peer, chain.connection) {
            return;
        }
        let member = &self.members[&from];
        let mut writes = Vec::new();
        if let Some(run) = chain.run {
            frame(member, run, (chain.nonce, chain.commit), &mut writes);
        }
        if let Some(key) = chain.idle {
            let bytes = encode_idle(chain.commit, chain.nonce).to_vec();
            writes.push(Write { key, offset: 0, bytes });
        }
        let what = text::chain(&chain, |key| self.key(key).map(|key| key.slot));
        let posted = Posted {
            lane: (from, chain.peer),
            chain,
            progress: Progress::Posted,
            is_late: false,
            writes,
        };
        self.say(posted.loud(), format!("{from:?} => {:?}: {what}", chain.peer));
        self.chains.push(posted);
    }

    fn find(&self, lane: Lane, is_due: impl Fn(Progress) -> bool) -> Option<usize> {
        self.chains.iter().position(|posted| posted.lane == lane && is_due(posted.progress))
    }

    /// The oldest chain of a lane that has not landed lands in the receiver's memory.
    pub(crate) fn place(&mut self, lane: Lane) -> Result<(), String> {
        let at = self.find(lane, |progress| progress == Progress::Posted);
        self.place_at(at.ok_or("nothing to place")?);
        Ok(())
    }

    /// The oldest chain of a lane that has landed reads the receiver's grant word.
    pub(crate) fn sample(&mut self, lane: Lane) -> Result<(), String> {
        let at = self.find(lane, |progress| progress == Progress::Placed);
        self.sample_at(at.ok_or("nothing to sample")?);
        Ok(())
    }

    /// The oldest chain of a lane that is through is told to its sender.
    pub(crate) fn complete(&mut self, lane: Lane) -> Result<(), String> {
        let is_done = |progress| !matches!(progress, Progress::Posted | Progress::Placed);
        let at = self.find(lane, is_done).ok_or("nothing to complete")?;
        self.complete_at(at);
        Ok(())
    }

    fn place_at(&mut self, at: usize) {
        let (from, to) = self.chains[at].lane;
        let loud = if self.steps { Loud::Headline } else { Loud::Noise };
        let writes = std::mem::take(&mut self.chains[at].writes);
        for write in &writes {
            let key = self.key(write.key).filter(|key| key.owner == to);
            let Some(key) = key.filter(|_| self.members[&to].power != Power::Down) else {
                self.chains[at].progress = Progress::Failed;
                self.say(
                    loud,
                    format!("{from:?} => {to:?}: the WRITE is refused, its key is gone"),
                );
                return;
            };
            let member = self.members.get_mut(&to).unwrap();
            let start = member.shape.layout.slot(key.slot).start;
            member.region.copy_in(start + write.offset, &write.bytes);
            member.is_dirty = true;
        }
        self.chains[at].progress = Progress::Placed;
        self.chains[at].writes = writes;
        let run = text::run(&self.chains[at].chain);
        self.say(loud, format!("{from:?} => {to:?}: {run} placed"));
    }

    /// The READ of the word makes durable what the chain wrote.
    fn sample_at(&mut self, at: usize) {
        let (from, to) = self.chains[at].lane;
        let posted = self.chains[at].clone();
        let member = self.members.get_mut(&to).unwrap();
        let word = member.word;
        let kept = if member.is_lying { &[][..] } else { &posted.writes[..] };
        for write in kept {
            if let Some(key) = self.keys.iter().find(|key| key.key == write.key) {
                let start = member.shape.layout.slot(key.slot).start;
                member.persist_bytes(start + write.offset, write.bytes.len() as u64);
            }
        }
        self.chains[at].progress = Progress::Sampled(word);
        let loud = if self.steps { Loud::Headline } else { Loud::Noise };
        self.say(loud, format!("{from:?} => {to:?}: READ takes {word}"));
    }

    fn complete_at(&mut self, at: usize) {
        let posted = self.chains.remove(at);
        let (from, peer) = posted.lane;
        let (connection, chain) = (posted.chain.connection, posted.chain.id);
        let late = if posted.is_late { " (of a connection that is gone)" } else { "" };
        match posted.progress {
            Progress::Sampled(word) => {
                let line = format!("{from:?}: {peer:?}'s word is {word}{late}");
                self.say(posted.loud(), line);
                self.feed(from, Event::ReadBack { peer, connection, chain, word });
            }
            Progress::Failed | Progress::Posted | Progress::Placed => {
                self.say(Loud::Detail, format!("{from:?}: a chain to {peer:?} failed{late}"));
                if !posted.is_late {
                    self.feed(from, Event::ChainFailed { peer, connection });
                }
            }
        }
    }

    /// Delivers the oldest message of a lane.
    pub(crate) fn deliver(&mut self, lane: Lane) -> Result<(), String> {
        let at = self.mail.iter().position(|mail| mail.lane == lane).ok_or("no message")?;
        let Mail { lane: (from, to), connection, message } = self.mail.remove(at);
        self.feed(to, Event::Received { peer: from, connection, message });
        Ok(())
    }

    /// One step of everything that is on its way and not held. Answers whether anything moved.
    pub(crate) fn move_net(&mut self) -> bool {
        let mail: Vec<Lane> = self.mail.iter().map(|mail| mail.lane).collect();
        let mut moved = false;
        for lane in mail {
            if !self.held.contains(&lane) && self.members[&lane.1].runs() {
                moved |= self.deliver(lane).is_ok();
            }
        }
        let ids: Vec<(Lane, u64)> =
            self.chains.iter().filter(|p| !p.is_late).map(|p| (p.lane, p.chain.id)).collect();
        for (lane, id) in ids {
            if !self.held.contains(&lane) {
                moved |= self.move_chain(lane, id);
            }
        }
        moved
    }

    /// Takes one chain as far as it gets.
    fn move_chain(&mut self, lane: Lane, id: u64) -> bool {
        let sender_runs = self.members[&lane.0].runs();
        let find = |world: &Self| {
            world.chains.iter().position(|p| p.lane == lane && p.chain.id == id && !p.is_late)
        };
        let Some(at) = find(self) else { return false };
        let before = self.chains[at].progress;
        if self.chains[at].progress == Progress::Posted {
            self.place_at(at);
        }
        if self.chains[at].progress == Progress::Placed {
            self.sample_at(at);
        }
        let moved = self.chains[at].progress != before;
        if sender_runs {
            self.complete_at(at);
        }
        moved || sender_runs
    }
}

/// The writes of one run: each entry with its header made anew under the sender's nonce.
fn frame(
    member: &Member,
    run: Run,
    (nonce, commit): (base::Nonce, Index),
    writes: &mut Vec<Write>,
) {
    let mut offset = run.offset;
    let mut index = run.first;
    let mut payload = Vec::new();
    while index <= run.last {
        let old = member.log.read_payload(index, &member.region, &mut payload).unwrap();
        let to = place(offset, old.shape());
        let header = logfmt::Header { commit: commit.min(index.previous()), ..old };
        let mut bytes = header.encode(nonce).to_vec();
        bytes.extend_from_slice(&payload);
        writes.push(Write { key: run.key, offset: to.header, bytes });
        offset = to.end;
        index = index.next();
    }
}
