//! Joining and leaving: learners first, then one joint entry, then one final entry; one change at
//! a time. A configuration is in force from the moment it is in a log.

use base::{Configuration, Index, MemberSet, mutant};

use crate::{
    core::{Core, Io, Role},
    effect::Append,
    peer::Stage,
    view::LogView,
};

/// A change whose entry waits to be appended or committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Change {
    /// Its entry, once appended.
    index: Option<Index>,
    /// What the entry says.
    configuration: Configuration,
}

/// How far behind the leader a learner may be when it is made a voter, in entries.
const LEARNER_LAG_MAX: u64 = 4096;

impl Core {
    pub(crate) fn on_change<L: LogView>(&mut self, target: Configuration, io: &mut Io<'_, L>) {
        let overlaps = mutant!("overlapping_changes");
        let (index, current) = io.log.configuration();
        let Role::Leader(leader) = &self.role else {
            return Self::refuse_change("this member does not lead", io);
        };
        if leader.noop.is_none_or(|noop| noop > self.commit) && !overlaps {
            return Self::refuse_change("the leader's first entry is not committed yet", io);
        }
        let in_flight = leader.change.is_some() || index > self.commit || current.is_joint();
        if in_flight && !overlaps {
            return Self::refuse_change("another change is under way", io);
        }
        if leader.transfer.is_some() {
            return Self::refuse_change("leadership is being handed over", io);
        }
        if target.is_joint() || target.validate().is_err() {
            return Self::refuse_change("the configuration asked for is not valid", io);
        }
        let lags = |id| {
            let peer = leader.peers.iter().find(|peer| peer.id == id);
            id != self.me
                && !current.is_voter(id)
                && peer.is_none_or(|peer| {
                    !matches!(peer.stage, Stage::Replicate)
                        || io.log.tail().index.0 - peer.tail.0 > LEARNER_LAG_MAX
                })
        };
        if target.voters.ids().any(lags) && !overlaps {
            return Self::refuse_change("a new voter must first be a learner and catch up", io);
        }
        let configuration = if target.voters == current.voters || overlaps {
            target
        } else {
            Configuration { outgoing: current.voters.clone(), ..target }
        };
        self.begin_change(configuration, io);
    }

    fn begin_change<L: LogView>(&mut self, configuration: Configuration, io: &mut Io<'_, L>) {
        let entry = Append::Configuration(Box::new(configuration.clone()));
        if let Role::Leader(leader) = &mut self.role {
            leader.change = Some(Change { index: None, configuration });
        }
        self.append(entry, io);
    }

    /// The own log has grown; if by the change, its configuration is in force.
    pub(crate) fn on_configuration_appended<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let (index, configuration) = io.log.configuration();
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(change) = &mut leader.change else { return };
        if change.index.is_none() {
            if change.configuration == *configuration && index > self.commit {
                change.index = Some(index);
            } else {
                // There was no room for it: nothing has changed.
                leader.change = None;
                return Self::refuse_change("the log has no room now", io);
            }
        }
        self.sync_peers(io);
    }

    /// The commit index has moved: a committed joint entry is followed by its final one, and a
    /// leader that is no voter any more has done its part. A joint entry of an earlier leader is
    /// finished like an own one.
    pub(crate) fn continue_change<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let (index, configuration) = io.log.configuration();
        let Role::Leader(leader) = &mut self.role else { return };
        let is_settled = !configuration.is_joint() && configuration.is_voter(self.me);
        if leader.change.is_none() && is_settled {
            return;
        }
        if index > self.commit || leader.noop.is_none_or(|noop| noop > self.commit) {
            return;
        }
        let waits = leader.change.as_ref().is_some_and(|change| change.index.is_none());
        if waits {
            return;
        }
        leader.change = None;
        if configuration.is_joint() {
            let outgoing = MemberSet::default();
            let configuration = Configuration { outgoing, ..configuration.clone() };
            self.begin_change(configuration, io);
        } else if !configuration.is_voter(self.me) {
            self.step_down(io);
        }
    }
}
