//! What takes a member a while: walking, persisting, copying a suffix of another log, applying.

use base::{Index, MemberId};
use consensus::{Event, Fetch, SegmentEnd, message::Connection};
use logfmt::{
    Bytes, BytesMut, Checkpoint, Extent, Header, StateFile, Superblock, parse_extent, place::place,
};

use crate::{
    member::{Job, Power},
    text,
    world::{Loud, World},
};

impl World {
    /// Runs a job to its end and gives the core the event that it ends in.
    pub(crate) fn finish(&mut self, id: MemberId, job: Job) {
        let event = match job {
            Job::Walk => self.walk(id),
            Job::Flush => {
                let member = self.member(id);
                let (first, last) = (member.log.first_index(), member.log.tail().index);
                member.persist(first, last);
                self.say(Loud::Detail, format!("{id:?}: flush, durable to {last}"));
                Event::Flushed
            }
            Job::Superblock(block) => self.write_superblock(id, &block),
            Job::Persist(first, through) => {
                self.member(id).persist(first, through);
                self.say(Loud::Detail, format!("{id:?}: own log durable to {through}"));
                Event::Persisted { through }
            }
            Job::Fetch(fetch) => self.fetch(id, &fetch),
            Job::State(peer, connection, checkpoint) => {
                self.fetch_state(id, (peer, connection), *checkpoint)
            }
            Job::Checkpoint => match self.member(id).checkpoint() {
                Some(checkpoint) => {
                    let index = checkpoint.at.index;
                    self.say(Loud::Headline, format!("{id:?}: state at {index} is in a file"));
                    Event::CheckpointTaken(Box::new(checkpoint))
                }
                None => Event::CheckpointFailed,
            },
            Job::Deregister(slot) => {
                self.keys.retain(|key| (key.owner, key.slot) != (id, slot));
                let loud = if self.steps { Loud::Headline } else { Loud::Noise };
                self.say(loud, format!("{id:?}: nobody can write {slot:?} any more"));
                Event::Released { slot }
            }
            Job::Apply => return self.apply(id),
            Job::Tell(event) => event,
        };
        self.feed(id, event);
    }

    fn walk(&mut self, id: MemberId) -> Event {
        let member = self.members.get_mut(&id).unwrap();
        let mut walk = member.log.walk(&member.region, u64::MAX);
        while !walk.at_end {
            walk = member.log.walk(&member.region, u64::MAX);
        }
        member.is_dirty = false;
        let tail = member.log.tail().index;
        let ends: Vec<SegmentEnd> = member
            .log
            .seal()
            .into_iter()
            .map(|(slot, first, seal)| SegmentEnd { slot, first, seal })
            .collect();
        self.say(Loud::Detail, format!("{id:?}: walk to {tail}{}", text::ends(&ends)));
        Event::Walked { believed: walk.believed_commit, ends }
    }

    fn write_superblock(&mut self, id: MemberId, block: &Superblock) -> Event {
        let bytes = block.encode();
        let member = self.member(id);
        let at = member.shape.layout.superblock_copy(block.copy_index()).start;
        member.region.copy_in(at, &bytes);
        member.persist_bytes(at, bytes.len() as u64);
        self.say(Loud::Detail, format!("{id:?}: superblock {}", text::superblock(block)));
        Event::SuperblockWritten { generation: block.generation }
    }

    /// The background walk of a follower.
    pub(crate) fn observe(&mut self, id: MemberId) {
        let member = self.members.get_mut(&id).unwrap();
        member.is_dirty = false;
        let (before, known) = (member.log.tail(), member.log.believed_commit());
        let walk = member.log.walk(&member.region, u64::MAX);
        let (tail, believed) = (member.log.tail(), walk.believed_commit);
        if walk.accepted == 0 && tail == before && believed == known {
            return;
        }
        let cut = walk.cut.map_or_else(String::new, |cut| format!(", its own log cut at {cut}"));
        let log = text::log(&member.log);
        let loud = if walk.cut.is_some() { Loud::Headline } else { Loud::Detail };
        self.say(loud, format!("{id:?}: sees {log}{cut}"));
        self.feed(id, Event::Observed { believed });
    }

    fn fetch(&mut self, id: MemberId, fetch: &Fetch) -> Event {
        let (first, through) = (fetch.from.next(), fetch.through.index);
        let is_done =
            self.copy_suffix(id, fetch).is_some() && self.members[&id].log.tail() == fetch.through;
        let peer = fetch.peer;
        if !is_done {
            self.say(
                Loud::Headline,
                format!("{id:?}: cannot fetch {first}..{through} of {peer:?}"),
            );
            return Event::FetchFailed;
        }
        self.member(id).persist(first, through);
        let log = text::log(&self.members[&id].log);
        let line = format!("{id:?}: fetch {first}..{through} of {peer:?}, durable; {log}");
        self.say(Loud::Headline, line);
        Event::Fetched
    }

    /// Copies verified entries of a peer's log; `None` when one cannot be read or does not fit.
    fn copy_suffix(&mut self, id: MemberId, fetch: &Fetch) -> Option<()> {
        let peer = self.members.get(&fetch.peer).filter(|peer| peer.power != Power::Down)?;
        if !self.is_connected(id, fetch.peer, fetch.connection) {
            return None;
        }
        let theirs = peer.region.clone();
        let member = self.members.get_mut(&id)?;
        let commit = member.core.commit_index();
        let mut previous = member.log.position_at(fetch.from, &member.region)?;
        for extent in &fetch.extents {
            let start = member.shape.layout.slot(extent.slot).start;
            let Some(rest) = skip(&theirs, start, *extent, fetch.from) else { continue };
            let from = usize::try_from(start + rest.start).ok()?;
            let to = usize::try_from(start + rest.end).ok()?;
            let mut entries = parse_extent(&theirs[from..to], rest, previous);
            for entry in entries.by_ref().take_while(|e| e.header.index <= fetch.through.index) {
                let (payload, region) = ([entry.payload], &mut member.region);
                member.log.append_copy(region, &entry.header, commit, &payload).ok()?;
            }
            previous = entries.position();
        }
        Some(())
    }

    fn fetch_state(
        &mut self,
        id: MemberId,
        (peer, connection): (MemberId, Connection),
        checkpoint: Checkpoint,
    ) -> Event {
        let state = checkpoint.state.id;
        let file = self.members[&peer].files.get(&state).cloned();
        let Some(file) = file.filter(|_| self.is_connected(id, peer, connection)) else {
            self.say(Loud::Headline, format!("{id:?}: cannot fetch a state of {peer:?}"));
            return Event::StateFetchFailed;
        };
        let index = checkpoint.at.index;
        self.say(Loud::Headline, format!("{id:?}: has the state at {index} of {peer:?} in a file"));
        let state = StateFile { id: self.member(id).keep_state(file), ..checkpoint.state };
        Event::StateFetched(Box::new(Checkpoint { state, ..checkpoint }))
    }

    fn apply(&mut self, id: MemberId) {
        let mut through = None;
        loop {
            let member = self.members.get_mut(&id).unwrap();
            let index = member.machine.applied.next();
            if member.commit < index {
                break;
            }
            let mut payload = Vec::new();
            let header = member.log.read_payload(index, &member.region, &mut payload).unwrap();
            let reply = member.machine.apply(&header, &payload);
            let leads = member.core.leading_term().is_some();
            through = Some(index);
            if let Some(reply) = reply {
                let loud = if leads && self.has_sessions { Loud::Headline } else { Loud::Noise };
                self.say(loud, format!("{id:?}: apply {index}: {reply}"));
            }
        }
        if let Some(through) = through {
            self.feed(id, Event::Applied { through });
        }
    }
}

impl World {
    /// The entries of a member's log from the first readable one on, with their terms.
    pub(crate) fn entries(&self, id: MemberId) -> Vec<String> {
        let member = &self.members[&id];
        let mut lines = Vec::new();
        let mut index = member.log.first_index();
        while index <= member.log.tail().index {
            let mut payload = Vec::new();
            let header = member.log.read_payload(index, &member.region, &mut payload).unwrap();
            let mark = if index <= member.core.commit_index() { "committed" } else { "" };
            let what = text::entry(header.kind, &payload);
            lines
                .push(format!("{id:?}: {index} {:?} {what} {mark}", header.term).trim().to_owned());
            index = index.next();
        }
        lines
    }
}

/// What of an extent lies behind `from`, found by its headers alone; `None` when nothing does.
fn skip(bytes: &Vec<u8>, start: u64, extent: Extent, from: Index) -> Option<Extent> {
    let mut rest = extent;
    while rest.first <= from && rest.first <= rest.last {
        let mut raw = [0; 40];
        bytes.copy_out(start + rest.start, &mut raw);
        rest.start = place(rest.start, Header::decode(&raw, rest.nonce)?.shape()).end;
        rest.first = rest.first.next();
    }
    (rest.first <= rest.last).then_some(rest)
}
