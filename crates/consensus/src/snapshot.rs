//! Checkpoints, what they let go of, and how a member that is too far behind gets one.

use base::{GrantWord, Index, MemberId, check, mutant};
use logfmt::{Checkpoint, SegmentRecord};

use crate::{
    core::{Core, Io, Role},
    effect::Effect,
    message::{Connection, Message},
    peer::Stage,
    slots::RECORDS_MAX,
    view::LogView,
};

/// Free slots below which segments at or below the checkpoint are let go.
const FREE_SLOTS_MIN: usize = 3;
/// Terms in the log above which a checkpoint is due, so that term boundaries stay few.
const BOUNDARIES_MAX: usize = 512;

/// A checkpoint that this member is fetching, or that its superblock is about to name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Install {
    word: GrantWord,
    from: (MemberId, Connection),
    index: Index,
    /// The checkpoint with its local state file, and the generation that will name it.
    ready: Option<(u64, Box<Checkpoint>)>,
}

impl Install {
    /// Whether the superblock is about to name it: it can no longer be dropped.
    pub(crate) const fn is_ready(&self) -> bool {
        self.ready.is_some()
    }
}

impl Core {
    pub(crate) fn on_applied<L: LogView>(&mut self, through: Index, io: &mut Io<'_, L>) {
        check!(through <= self.commit, "only committed entries are applied");
        self.applied = self.applied.max(through);
        self.maybe_checkpoint(io);
    }

    /// The background walk found entries of the leader, or learned what is committed.
    pub(crate) fn on_observed<L: LogView>(&mut self, believed: Index, io: &mut Io<'_, L>) {
        if matches!(self.role, Role::Follower) && self.fence.is_none() {
            if self.watch.leader.is_none() && io.log.tail().term == self.stored.current.term {
                // An entry of this term: the candidate that this member voted for leads.
                self.watch.leader = self.stored.current.granted_to;
            }
            self.commit_to(believed.min(io.log.tail().index), io);
            self.grant_more(io);
        }
    }

    /// Takes a checkpoint when the pool, the superblock or the list of terms fills up.
    ///
    /// Segments that the checkpoint in force covers are as good as free, but for the pool they stay
    /// where they are until it is short. While a member is being given that checkpoint they are held
    /// back, and the next one would not free them either: it has to cover one more, or checkpoints
    /// would follow each other without end.
    pub(crate) fn maybe_checkpoint<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if self.is_checkpointing || self.install.is_some() || self.naming.is_some() {
            return;
        }
        let stored = &self.stored.current;
        let is_short = self.slots.free() < FREE_SLOTS_MIN;
        let fills = |count: usize| {
            count * 2 > self.slots.count()
                || count * 4 > RECORDS_MAX * 3
                || io.log.boundaries().len() > BOUNDARIES_MAX
        };
        // This is asked at every commit; the rest looks at each segment.
        if !is_short && !fills(stored.segments.len()) {
            return;
        }
        let at = stored.checkpoint.at.index;
        let last_of = |record: &SegmentRecord| {
            record.seal.map(|seal| seal.last).or_else(|| io.log.completed(record.slot))
        };
        let lasts = || stored.segments.iter().filter_map(last_of);
        let needed = stored.segments.len() - lasts().filter(|&last| last <= at).count();
        let frees_one = at < self.applied
            && stored.segments.first().and_then(last_of).is_some_and(|last| last <= self.applied);
        let covers_one_more = lasts().any(|last| at < last && last <= self.applied);
        let is_held_back = self.offered_files().next().is_some();
        let is_due = (is_short && frees_one && !is_held_back)
            || ((is_short || fills(needed)) && covers_one_more);
        if is_due {
            self.is_checkpointing = true;
            io.out.push(Effect::TakeCheckpoint);
        }
    }

    pub(crate) fn on_checkpoint_taken<L: LogView>(
        &mut self,
        checkpoint: Checkpoint,
        io: &mut Io<'_, L>,
    ) {
        self.is_checkpointing = false;
        if self.install.as_ref().is_some_and(Install::is_ready) {
            return;
        }
        if checkpoint.at.index <= self.stored.current.checkpoint.at.index {
            return;
        }
        check!(checkpoint.at.index <= self.applied);
        self.stored.current.checkpoint = checkpoint.clone();
        self.naming = Some((self.stored.write(io.out), Box::new(checkpoint)));
    }

    pub(crate) fn finish_naming<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let is_durable =
            self.naming.as_ref().is_some_and(|(generation, _)| self.stored.is_written(*generation));
        if is_durable && let Some((_, checkpoint)) = self.naming.take() {
            io.out.push(Effect::CheckpointNamed(checkpoint));
            self.grant_more(io);
        }
    }

    /// Lets the oldest segments go while slots are short: those whose entries are all in the named
    /// checkpoint, that nobody refers to, and that no member is about to need.
    pub(crate) fn reclaim<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if self.slots.free() >= FREE_SLOTS_MIN
            || self.naming.is_some()
            || self.install.as_ref().is_some_and(Install::is_ready)
        {
            return;
        }
        let mut limit = self.stored.current.checkpoint.at.index.min(io.log.unreferenced());
        if let Role::Leader(leader) = &self.role {
            for peer in &leader.peers {
                // A chain in flight still gathers its entries from the own log.
                if let Some(first) = peer.oldest_in_flight() {
                    limit = limit.min(first.previous());
                }
                if let Some(offered) = peer.offered.as_ref().filter(|_| self.slots.free() > 0) {
                    limit = limit.min(offered.at.index);
                }
            }
        }
        while self.slots.free() < FREE_SLOTS_MIN {
            let Some(record) = self.stored.current.segments.first().copied() else { return };
            let last = record.seal.map(|seal| seal.last).or_else(|| io.log.completed(record.slot));
            if last.is_none_or(|last| last > limit) {
                return;
            }
            self.stored.current.segments.remove(0);
            self.slots.leave(record.slot);
            io.out.push(Effect::Trim(record.slot));
            if self.slots.revoke(record.slot) {
                io.out.push(Effect::Revoke(record.slot));
            }
            if !self.slots_are_asked(io) {
                return;
            }
        }
    }

    /// Whether letting go of more can still help now: a revoked slot comes back later.
    fn slots_are_asked<L: LogView>(&self, _io: &Io<'_, L>) -> bool {
        self.stored.current.segments.len() + FREE_SLOTS_MIN > self.slots.count()
    }

    /// Offers a member the checkpoint instead of the log that is gone.
    pub(crate) fn send_snapshot<L: LogView>(&mut self, id: MemberId, io: &mut Io<'_, L>) {
        // One that is being named may not be there after a crash: the next tick offers it.
        let newest = self.naming.is_none().then(|| self.stored.current.checkpoint.clone());
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peer(id) else { return };
        let Some(connection) = peer.connection else { return };
        let word = peer.word;
        peer.stage = Stage::Snapshot;
        if peer.offered.is_none() {
            peer.offered = newest.map(Box::new);
        }
        // The same one is offered until it is installed or the grant ends: a transfer that takes
        // longer than a checkpoint lasts would otherwise never come to its end.
        let Some(checkpoint) = peer.offered.clone() else { return };
        if mutant!("member_counted_before_snapshot") {
            peer.next = checkpoint.at.index.next();
            peer.stage = Stage::Replicate;
        }
        io.send(id, connection, Message::Install { word, checkpoint });
        if mutant!("member_counted_before_snapshot") {
            self.replicate(id, io);
        }
    }

    /// State files that members are being offered: they must stay.
    pub fn offered_files(&self) -> impl Iterator<Item = u64> + '_ {
        let peers = match &self.role {
            Role::Leader(leader) => leader.peers.as_slice(),
            Role::Follower | Role::Candidate(_) => &[],
        };
        peers.iter().filter_map(|peer| peer.offered.as_ref()).map(|offered| offered.state.id)
    }

    /// A leader offers its checkpoint. It is installed only if it reaches past this log, or this
    /// log says something else there; a log that holds it is never shortened.
    pub(crate) fn on_install<L: LogView>(
        &mut self,
        peer: MemberId,
        connection: Connection,
        (word, checkpoint): (GrantWord, Checkpoint),
        io: &mut Io<'_, L>,
    ) {
        if self.grantee != Some((peer, connection)) || word != self.word || self.fence.is_some() {
            return;
        }
        let at = checkpoint.at;
        let own = self.stored.current.checkpoint.at.index;
        if at.index <= own || io.log.term_at(at.index) == Some(at.term) {
            let is_installing = self.install.as_ref().is_some_and(Install::is_ready);
            if !is_installing {
                io.send(peer, connection, Message::Installed { word, index: at.index });
            }
            return;
        }
        if self.install.as_ref().is_some_and(|install| install.word == word) {
            return;
        }
        let from = (peer, connection);
        self.install = Some(Install { word, from, index: at.index, ready: None });
        let checkpoint = Box::new(checkpoint);
        io.out.push(Effect::FetchState { peer, connection, word, checkpoint });
    }

    /// The state is here: the superblock names it, in one atomic switch.
    pub(crate) fn on_state_fetched<L: LogView>(
        &mut self,
        checkpoint: Checkpoint,
        io: &mut Io<'_, L>,
    ) {
        let word = self.word;
        let is_naming = self.naming.is_some();
        let Some(install) = &mut self.install else { return };
        if is_naming
            || install.word != word
            || install.index != checkpoint.at.index
            || self.fence.is_some()
        {
            self.install = None;
            return;
        }
        let stored = &mut self.stored.current;
        // The open segments go as well: what they hold comes from before the gap that the
        // checkpoint closes, and slots that this very grant has used before may hold more of it.
        // The leader is given fresh ones with its next grant.
        let gone: Vec<_> = stored.segments.drain(..).map(|record| record.slot).collect();
        self.pending.clear();
        stored.checkpoint = checkpoint.clone();
        for slot in gone {
            self.slots.leave(slot);
            if self.slots.revoke(slot) {
                io.out.push(Effect::Revoke(slot));
            }
        }
        let generation = self.stored.write(io.out);
        install.ready = Some((generation, Box::new(checkpoint)));
    }

    pub(crate) fn finish_install<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Some(install) = &self.install else { return };
        let Some((generation, checkpoint)) = &install.ready else { return };
        if !self.stored.is_written(*generation) {
            return;
        }
        let (checkpoint, from, word) = (checkpoint.clone(), install.from, install.word);
        let index = checkpoint.at.index;
        self.install = None;
        self.is_checkpointing = false;
        self.commit = self.commit.max(index);
        self.applied = self.applied.max(index);
        self.durable = self.durable.max(index);
        io.out.push(Effect::InstallState(checkpoint));
        if self.grantee == Some(from) && self.word == word {
            io.send(from.0, from.1, Message::Installed { word, index });
        }
        // Nothing more is granted under this word.
        self.grantee = None;
    }

    /// A member holds the checkpoint durably: it is asked for a fresh grant and then takes the log.
    pub(crate) fn on_installed<L: LogView>(
        &mut self,
        id: MemberId,
        word: GrantWord,
        index: Index,
        io: &mut Io<'_, L>,
    ) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peer(id) else { return };
        let was_offered = peer.offered.as_ref().is_some_and(|offered| offered.at.index == index);
        if peer.word != word || peer.stage != Stage::Snapshot || !was_offered {
            return;
        }
        peer.tail = index;
        peer.counted = peer.counted.max(index);
        // The segments of this grant may hold entries from before the gap that the checkpoint
        // closed. The log goes on in fresh ones, so that no segment ever has a gap in it.
        self.probe(id, io);
        self.advance_commit(index, io);
    }
}
