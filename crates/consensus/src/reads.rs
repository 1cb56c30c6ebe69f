//! Linearizable reads.
//!
//! A read may be answered from the applied state when, in this order: the leader's own no-op is
//! committed; the read index is taken, after the read arrived; chains posted after that read the
//! held grant words back from a quorum; the leader still leads; the read index is applied. One
//! round serves all reads that wait, and read-backs of replication serve as well.

use std::collections::VecDeque;

use base::{Index, mutant};

use crate::{
    core::{Core, Io, Role},
    effect::{Effect, Output, Refusal},
    leader::Leader,
    message::Connection,
    view::LogView,
};

/// Rounds that wait for their quorum at one time; later reads wait for the next round.
const ROUNDS_MAX: usize = 8;

/// Reads that share one read index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Round {
    /// The greatest ticket in it.
    upto: u64,
    /// The read index.
    index: Index,
    /// Chains posted after this one prove leadership.
    after: u64,
}

/// The reads of one leadership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reads {
    /// The greatest ticket that waits for a round.
    waiting: u64,
    /// The greatest ticket that has a round or an answer.
    taken: u64,
    rounds: VecDeque<Round>,
}

impl Reads {
    /// Whether nobody waits for anything.
    fn are_none(&self) -> bool {
        self.rounds.is_empty() && self.waiting == self.taken
    }
}

impl Leader {
    pub(crate) fn refuse_reads(&self, out: &mut dyn Output) {
        let upto = self.reads.waiting;
        if upto > 0 {
            out.push(Effect::ReadsRefused { upto, why: Refusal::NotLeader(None) });
        }
    }
}

impl Core {
    pub(crate) fn on_reads_waiting<L: LogView>(&mut self, upto: u64, io: &mut Io<'_, L>) {
        let why = Refusal::NotLeader(self.leader());
        let Role::Leader(leader) = &mut self.role else {
            io.out.push(Effect::ReadsRefused { upto, why });
            return;
        };
        leader.reads.waiting = leader.reads.waiting.max(upto);
        self.begin_round(io);
    }

    /// Takes a read index for all that wait and has leadership proved after it.
    fn begin_round<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let commit = self.commit;
        let Role::Leader(leader) = &mut self.role else { return };
        let skips_noop = mutant!("no_noop") || mutant!("any_term_commit_no_noop");
        let is_ready = leader.noop.is_some_and(|noop| noop <= commit) || skips_noop;
        let reads = &mut leader.reads;
        if !is_ready || reads.waiting == reads.taken || reads.rounds.len() >= ROUNDS_MAX {
            return;
        }
        reads.taken = reads.waiting;
        let round = Round { upto: reads.taken, index: commit, after: leader.sequence };
        reads.rounds.push_back(round);
        let voters: Vec<_> = Self::configuration(io.log).all().ids().collect();
        for id in voters {
            self.beat(id, true, io);
        }
        self.confirm_reads(io);
    }

    /// Answers the rounds that a quorum has confirmed.
    #[inline]
    pub(crate) fn confirm_reads<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        if let Role::Leader(leader) = &self.role
            && !leader.reads.are_none()
        {
            self.confirm_rounds(io);
        }
    }

    fn confirm_rounds<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let me = self.me;
        let Role::Leader(leader) = &mut self.role else { return };
        let confirmed = Self::configuration(io.log).quorum_value(|id| {
            if id == me {
                return u64::MAX;
            }
            let peer = leader.peers.iter().find(|peer| peer.id == id);
            peer.map_or(0, |peer| peer.confirmed)
        });
        while let Some(round) = leader.reads.rounds.front().copied() {
            if confirmed <= round.after && !mutant!("read_without_quorum") {
                break;
            }
            leader.reads.rounds.pop_front();
            io.out.push(Effect::ReadsReady { upto: round.upto, index: round.index });
        }
        let waits = leader.reads.waiting > leader.reads.taken;
        if waits && leader.reads.rounds.len() < ROUNDS_MAX {
            self.begin_round(io);
        }
        self.resume_reads(io);
    }

    /// Followers whose window was full when a round began are asked as soon as it is not.
    fn resume_reads<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let Role::Leader(leader) = &self.role else { return };
        let Some(round) = leader.reads.rounds.back().copied() else { return };
        let behind: Vec<_> = leader
            .peers
            .iter()
            .filter(|peer| peer.in_flight.back().is_none_or(|last| last.sequence <= round.after))
            .filter(|peer| peer.confirmed <= round.after)
            .map(|peer| peer.id)
            .collect();
        for id in behind {
            self.beat(id, true, io);
        }
    }

    /// The connection of a peer, for those who answer a read elsewhere.
    #[must_use]
    pub fn connection_to(&self, peer: base::MemberId) -> Option<Connection> {
        self.connection(peer)
    }
}
