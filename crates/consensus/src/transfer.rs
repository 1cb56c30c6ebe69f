//! Handing leadership over: no new proposals, the target catches up, then it is asked to campaign.

use base::{Instant, MemberId};

use crate::{
    core::{Core, Io, Role},
    message::Message,
    view::LogView,
};

/// A hand-over under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transfer {
    to: MemberId,
    gives_up: Instant,
    is_asked: bool,
}

impl Transfer {
    /// Whether the target has been asked to campaign.
    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }
}

impl Core {
    pub(crate) fn on_transfer<L: LogView>(&mut self, to: MemberId, io: &mut Io<'_, L>) {
        let gives_up = io.now + self.params.suspicion_timeout;
        let is_voter = Self::configuration(io.log).voters.contains(to);
        let Role::Leader(leader) = &mut self.role else {
            return Self::refuse_change("this member does not lead", io);
        };
        if to == self.me {
            return;
        }
        if !is_voter || leader.peer(to).is_none_or(|peer| !peer.is_replicating()) {
            return Self::refuse_change("the target is no voter that follows this leader", io);
        }
        if leader.transfer.is_some() || leader.change.is_some() {
            return Self::refuse_change("a transfer or a change is under way", io);
        }
        leader.transfer = Some(Transfer { to, gives_up, is_asked: false });
        self.continue_transfer(io);
    }

    /// Asks the target to campaign once it holds everything and all of it is committed.
    pub(crate) fn continue_transfer<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        let (commit, tail) = (self.commit, io.log.tail().index);
        let Role::Leader(leader) = &mut self.role else { return };
        let term = leader.term;
        let Some(Transfer { to, is_asked: false, .. }) = leader.transfer else { return };
        let Some(peer) = leader.peer(to) else { return };
        let Some(connection) = peer.connection else { return };
        if peer.tail == tail && commit == tail {
            io.send(to, connection, Message::Campaign { term, transfer: true });
            if let Some(transfer) = &mut leader.transfer {
                transfer.is_asked = true;
            }
        }
    }

    /// Goes on leading when the target did not take over in time.
    pub(crate) fn tick_transfer<L: LogView>(&mut self, io: &mut Io<'_, L>) {
        self.continue_transfer(io);
        let Role::Leader(leader) = &mut self.role else { return };
        if leader.transfer.is_some_and(|transfer| io.now >= transfer.gives_up) {
            leader.transfer = None;
            Self::refuse_change("the target did not take over in time", io);
        }
    }
}
