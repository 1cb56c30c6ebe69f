//! Running what the core wants done, as a member's own loop does it: at once where it is a store
//! to memory, as a job where its end is an event of its own.

use std::collections::VecDeque;

use base::{Index, MemberId, Term};
use consensus::{
    Append, Effect, Event, Message,
    message::Connection,
    session::{Envelope, LeaderClock},
};
use logfmt::{Checkpoint, Kind, NewEntry};

use crate::{
    member::Job,
    net::Mail,
    text,
    world::{Loud, World},
};

impl World {
    pub(crate) fn run(&mut self, id: MemberId, effect: Effect, ready: &mut VecDeque<Event>) {
        match effect {
            Effect::StoreGrant { word } => {
                self.member(id).word = word;
                self.say(Loud::Detail, format!("{id:?}: store grant {word}"));
            }
            Effect::Walk => self.begin_walk(id),
            Effect::FlushLog => self.member(id).jobs.push_back(Job::Flush),
            Effect::WriteSuperblock(block) => {
                self.member(id).jobs.push_back(Job::Superblock(block));
            }
            Effect::Open(record) => {
                self.member(id).log.open(&record);
                let (slot, word) = (record.slot, record.word);
                self.say(Loud::Noise, format!("{id:?}: open {slot:?} under {word}"));
            }
            Effect::Trim(slot) => {
                self.member(id).log.trim(slot);
                let first = self.members[&id].log.first_index();
                self.say(Loud::Headline, format!("{id:?}: trim {slot:?}, log from {first}"));
            }
            Effect::Revoke(slot) => self.member(id).jobs.push_back(Job::Deregister(slot)),
            Effect::Append { term, commit, what, .. } => {
                self.append(id, (term, commit), what);
                ready.push_back(Event::Appended { durable: Index(0) });
            }
            Effect::Chain(chain) => self.post(id, chain),
            Effect::Spread => ready.push_back(Event::Spread),
            // Every chain is posted at once here: none waits.
            Effect::ForgetChains { .. } => {}
            Effect::ReadControl { peer, connection } => self.read_control(id, peer, connection),
            Effect::Send { peer, connection, message } => self.send(id, peer, connection, message),
            Effect::Reconnect { peer, .. } => {
                self.say(Loud::Headline, format!("{id:?}: drops its connection to {peer:?}"));
                self.disconnect(id, peer, false);
            }
            Effect::Fetch(fetch) => self.member(id).jobs.push_back(Job::Fetch(fetch)),
            Effect::Commit { through } => self.commit(id, through),
            Effect::TakeCheckpoint => self.member(id).jobs.push_back(Job::Checkpoint),
            Effect::CheckpointNamed(checkpoint) => self.name_checkpoint(id, &checkpoint),
            Effect::FetchState { peer, connection, checkpoint, .. } => {
                // It replaces one that is under way, whose answer nobody waits for any more.
                let jobs = &mut self.member(id).jobs;
                jobs.retain(|job| !matches!(job, Job::State(..)));
                jobs.push_back(Job::State(peer, connection, checkpoint));
            }
            Effect::InstallState(checkpoint) => self.install(id, &checkpoint),
            Effect::Leads { term } => self.on_leads(id, term),
            Effect::Deposed { term } => {
                let member = self.member(id);
                member.clock = None;
                member.proposals.clear();
                self.say(Loud::Headline, format!("{id:?}: no longer leads in {term:?}"));
            }
            Effect::ReadsReady { upto, index } => {
                let line = format!("reads up to #{upto} may be answered once {index} is applied");
                self.say(Loud::Headline, format!("{id:?}: {line}"));
            }
            Effect::ReadsRefused { upto, why } => {
                let why = text::refusal(why);
                self.say(Loud::Headline, format!("{id:?}: reads up to #{upto} are refused: {why}"));
            }
            Effect::ProposalsRefused { why } => {
                self.member(id).proposals.clear();
                let why = text::refusal(why);
                self.say(Loud::Headline, format!("{id:?}: proposals are refused: {why}"));
            }
            Effect::ChangeRefused { why } => {
                self.say(Loud::Headline, format!("{id:?}: refused: {}", text::refusal(why)));
            }
        }
    }

    /// A fence ends what was under way: its answers are for a leadership or candidacy that is no
    /// more, and the flush that follows covers what they would have told.
    fn begin_walk(&mut self, id: MemberId) {
        let jobs = &mut self.member(id).jobs;
        jobs.retain(|job| {
            !matches!(job, Job::Persist(..) | Job::Fetch(_) | Job::Tell(Event::FetchFailed))
        });
        jobs.push_back(Job::Walk);
    }

    fn append(&mut self, id: MemberId, (term, commit): (Term, Index), what: Append) {
        let before = self.members[&id].log.tail().index;
        match what {
            Append::NoOp => self.append_one(id, (term, commit), Kind::NoOp, &[]),
            Append::Configuration(configuration) => {
                let mut payload = Vec::new();
                logfmt::encode_configuration(&configuration, &mut payload);
                self.append_one(id, (term, commit), Kind::Configuration, &payload)
            }
            Append::Commands(count) => self.append_commands(id, (term, commit), count),
        };
        let tail = self.members[&id].log.tail().index;
        if before < tail {
            self.member(id).jobs.push_back(Job::Persist(before.next(), tail));
        }
    }

    fn append_commands(&mut self, id: MemberId, at: (Term, Index), count: u32) -> bool {
        for _ in 0..count {
            let now = self.now;
            let member = self.member(id);
            let Some((act, command)) = member.proposals.front().cloned() else { break };
            let Some(clock) = &mut member.clock else { break };
            let mut payload = Envelope { time: clock.stamp(now), act }.encode().to_vec();
            payload.extend_from_slice(command.as_bytes());
            if !self.append_one(id, at, Kind::Command, &payload) {
                return false;
            }
            self.member(id).proposals.pop_front();
        }
        true
    }

    fn append_one(
        &mut self,
        id: MemberId,
        (term, commit): (Term, Index),
        kind: Kind,
        payload: &[u8],
    ) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        let entry = NewEntry { kind, term, commit, aligned: false, payload: &[payload] };
        let (is_done, line) = match member.log.append(&mut member.region, entry) {
            Ok(placed) => {
                let index = placed.position.index;
                let slot = placed.slot;
                let what = text::entry(kind, payload);
                (
                    true,
                    format!("{id:?}: append {index} {what} in {slot:?} at {}", placed.place.header),
                )
            }
            Err(error) => {
                (false, format!("{id:?}: cannot append {}: {error}", text::entry(kind, payload)))
            }
        };
        self.say(if is_done { Loud::Detail } else { Loud::Headline }, line);
        is_done
    }

    fn read_control(&mut self, id: MemberId, peer: MemberId, connection: Connection) {
        if !self.is_connected(id, peer, connection) || self.held.contains(&(id, peer)) {
            return;
        }
        let other = &self.members[&peer];
        let mut line = other.core.control_line(&other.view());
        line.grant = other.word;
        let job = Job::Tell(Event::Control { peer, connection, line });
        self.member(id).jobs.push_back(job);
    }

    fn send(&mut self, from: MemberId, to: MemberId, connection: Connection, message: Message) {
        if !self.is_connected(from, to, connection) {
            return;
        }
        let mut message = message;
        match &mut message {
            Message::Granted(granted) => self.register_rooms(from, &mut granted.rooms),
            Message::MoreRoom { rooms, .. } => self.register_rooms(from, rooms),
            Message::Vote { .. }
            | Message::Follow { .. }
            | Message::Refused { .. }
            | Message::Install { .. }
            | Message::Installed { .. }
            | Message::Committed { .. }
            | Message::FetchChunk { .. }
            | Message::Chunk { .. }
            | Message::Campaign { .. } => {}
        }
        self.say(Loud::Detail, format!("{from:?} -> {to:?}: {}", text::message(&message)));
        self.mail.push(Mail { lane: (from, to), connection, message });
    }

    fn commit(&mut self, id: MemberId, through: Index) {
        let member = self.member(id);
        member.commit = member.commit.max(through);
        member.jobs.push_back(Job::Apply);
        let leads = member.core.leading_term().is_some();
        let loud = if leads { Loud::Headline } else { Loud::Detail };
        self.say(loud, format!("{id:?}: commit {through}"));
        self.witness_commit(id, through);
    }

    fn name_checkpoint(&mut self, id: MemberId, checkpoint: &Checkpoint) {
        self.member(id).log.checkpoint_moved(checkpoint);
        let index = checkpoint.at.index;
        self.say(Loud::Headline, format!("{id:?}: checkpoint {index} is named"));
    }

    fn install(&mut self, id: MemberId, checkpoint: &Checkpoint) {
        let member = self.member(id);
        member.log.seal();
        member.log.install(checkpoint);
        member.machine = member.files[&checkpoint.state.id].clone();
        member.commit = member.commit.max(checkpoint.at.index);
        let index = checkpoint.at.index;
        self.say(Loud::Headline, format!("{id:?}: starts from checkpoint {index}"));
    }

    fn on_leads(&mut self, id: MemberId, term: Term) {
        let now = self.now;
        let member = self.member(id);
        member.clock = Some(LeaderClock::new(member.machine.time(), now));
        self.witness_leader(id, term);
        self.say(Loud::Headline, format!("{id:?}: leads in {term:?}"));
    }
}
