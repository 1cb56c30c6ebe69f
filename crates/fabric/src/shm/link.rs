//! One peer: how a queue pair with it is made, watched and dropped.
//!
//! ```text
//!          connect, knock               numbers cross-equal        greeting read
//!   Idle ----------------> Asking ----------------------> Agreed --------------> Connected
//!    ^                       ^  ^                            |                      |
//!    |                       |  +---- peer changed its mind -+                      |
//!    |  told                 +-- connect                                            |
//!   Dropped <-----------------------------------------------------------------------+
//!                         a failure, the peer's number changed, the peer ended
//! ```
//! Every word that the two sides exchange has one writer; the slot's first line of each board is
//! drawn in `layout`. `Dropped` lasts until everything about the queue pair has been told.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use base::MemberId;
use xxhash_rust::xxh3::xxh3_64;

use super::board::{OwnBoard, PeerBoard, PeerError, Ringer};
use super::completions::Completions;
use super::layout::{self, ACKED, FrameKind, HOLDS, MINE, PEER, RANG, REVOKED, THEIRS, slot_at};
use super::ring::{Consumer, Producer};
use super::syncer::Syncer;
use super::window::Windows;
use crate::{Completion, FabricEvent, Qp, RegionId, Remote, Status};

/// Signaled requests in flight on one queue pair.
pub(crate) const READS_MAX: u32 = 64;
/// Work requests in one chain.
pub(crate) const CHAIN_MAX: u32 = 64;

/// How often a board that could not be used is tried again.
const OPEN_INTERVAL: Duration = Duration::from_millis(10);

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is wanted.
    Idle,
    /// Our number is published; the peer's is looked for.
    Asking,
    /// Both have adopted each other's number; our greeting is sent.
    Agreed,
    /// The peer's greeting was read.
    Connected,
    /// Over; messages and completions may be left to deliver.
    Dropped {
        /// Whether the peer had ended.
        exited: bool,
    },
}

/// A request that waits for a sync.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) what: Waiting,
    /// The sync that it waits for.
    pub(crate) ticket: u64,
}

/// What is done once the sync is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Word(Remote),
    Read {
        from: Remote,
        into: (RegionId, u64),
        len: u32,
    },
    /// It failed already; only its turn is awaited.
    Failed(Status),
}

/// What belongs to one instance of the peer. Let go only when that instance cannot store any more.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) board: PeerBoard,
    /// The slot that it has for us, once it has one.
    pub(crate) slot: Option<usize>,
    pub(crate) windows: Windows,
    pub(crate) syncer: Option<Syncer>,
    generation: u64,
}

impl Instance {
    /// A word of its slot for us.
    fn word(&self, field: u64) -> u64 {
        self.slot.map_or(0, |slot| self.board.map.load(slot_at(slot, field)))
    }

    /// Its number and the one that it has adopted, as they were at one moment.
    fn numbers(&self) -> Option<(u64, u64)> {
        let mine = self.word(MINE);
        let theirs = self.word(THEIRS);
        (self.word(MINE) == mine).then_some((mine, theirs))
    }
}

/// What a link needs of its surroundings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    pub(crate) own: &'a OwnBoard,
    pub(crate) dir: &'a Path,
    pub(crate) member: MemberId,
    pub(crate) greeting: &'a [u8],
    pub(crate) now: Instant,
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: MemberId,
    /// Which slot of our board is its.
    slot: usize,
    pub(crate) state: State,
    /// Whether our side asked (or else the peer did).
    pub(crate) is_wanted: bool,
    /// Our number; the queue pair's handle.
    pub(crate) mine: u64,
    /// The peer's number that we have adopted.
    pub(crate) theirs: u64,
    /// The name under which the peer registers memory for us: `pair(mine, theirs)`.
    pub(crate) own_pair: u64,
    pub(crate) instance: Option<Instance>,
    pub(crate) producer: Option<Producer>,
    consumer: Consumer,
    /// Revocations that the peer has been told of.
    revoked: u64,
    /// Revocations of the peer that we have obeyed.
    obeyed: u64,
    rang_seen: u64,
    ringer: Ringer,
    pub(crate) pending: VecDeque<Pending>,
    /// Completions of the queue pair that have not been polled.
    pub(crate) queued: u32,
    /// A request has failed, and its turn has not come: nothing more is accepted.
    pub(crate) is_failing: bool,
    /// When the peer's board was last found of no use.
    refused: Option<Instant>,
    /// Why there is no queue pair, when the peer's board could not be used.
    pub(crate) error: Option<PeerError>,
}

impl Link {
    /// A link to `peer` in slot `slot` of `own`.
    pub(crate) fn new(own: &OwnBoard, slot: usize, peer: MemberId) -> Self {
        own.map.store(slot_at(slot, PEER), u64::from(peer.0));
        Self {
            peer,
            slot,
            state: State::Idle,
            is_wanted: false,
            mine: 0,
            theirs: 0,
            own_pair: 0,
            instance: None,
            producer: None,
            consumer: Consumer::reset(&own.map, slot),
            revoked: 0,
            obeyed: 0,
            rang_seen: 0,
            // Anything will do that another stranger is unlikely to begin with.
            ringer: Ringer::new(u32::try_from(own.instance & 0x03ff_ffff).unwrap_or(0)),
            pending: VecDeque::with_capacity((READS_MAX + CHAIN_MAX) as usize),
            queued: 0,
            is_failing: false,
            refused: None,
            error: None,
        }
    }

    /// Whether the slot may be given to another peer.
    pub(crate) fn is_unused(&self) -> bool {
        self.state == State::Idle && self.instance.is_none()
    }

    /// Gives the slot back.
    pub(crate) fn retire(self, own: &OwnBoard) {
        assert!(self.is_unused(), "a slot in use is not given back");
        own.map.store(slot_at(self.slot, PEER), 0);
    }

    /// Which slot of our board is the peer's.
    pub(crate) const fn slot(&self) -> usize {
        self.slot
    }

    /// Our side wants a queue pair, unless there is one.
    pub(crate) fn want(&mut self) {
        if matches!(self.state, State::Idle | State::Asking | State::Agreed) {
            self.is_wanted = true;
        }
    }

    /// The peer has knocked: it is there now, whatever was found a moment ago.
    pub(crate) const fn heard(&mut self) {
        self.refused = None;
    }

    /// Whether a chain may be posted on `qp`.
    pub(crate) fn takes(&self, qp: Qp) -> bool {
        self.state == State::Connected && self.mine == qp.0 && qp.0 != 0 && !self.is_failing
    }

    /// One completion of `qp` was taken from the queue.
    pub(crate) fn polled(&mut self, qp: Qp) {
        if self.mine == qp.0 {
            assert!(self.queued > 0, "it was counted when it was put in");
            self.queued -= 1;
        }
    }

    /// The queue pair's handle.
    pub(crate) const fn qp(&self) -> Qp {
        Qp(self.mine)
    }

    /// Names the queue pair as its `writer` side's registrations do: no other pair has this name.
    pub(crate) fn pair(writer: u64, owner: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&writer.to_le_bytes());
        bytes[8..].copy_from_slice(&owner.to_le_bytes());
        xxh3_64(&bytes).max(1)
    }

    /// Begins an attempt under `number`, which was never used before.
    pub(crate) fn ask(&mut self, own: &OwnBoard, number: u64) {
        assert_eq!(self.state, State::Idle, "one attempt at a time");
        let at = |field| slot_at(self.slot, field);
        self.consumer = Consumer::reset(&own.map, self.slot);
        self.rang_seen = own.map.load(at(RANG));
        self.revoked = 0;
        own.map.store(at(REVOKED), 0);
        own.map.store(at(THEIRS), 0);
        own.map.store(at(MINE), number);
        (self.mine, self.theirs, self.state) = (number, 0, State::Asking);
        (self.queued, self.is_failing) = (0, false);
        self.pending.clear();
    }

    /// Takes the next steps of an attempt. Opens files; called at a bounded rate.
    pub(crate) fn advance(&mut self, around: &Around<'_>) {
        self.let_go_if_gone(around.own);
        match self.state {
            State::Asking => self.look_for_peer(around),
            State::Connected => self.open_ahead(),
            State::Idle | State::Agreed | State::Dropped { .. } => {}
        }
    }

    /// Forgets an instance that cannot store any more.
    fn let_go_if_gone(&mut self, own: &OwnBoard) {
        let is_over = matches!(self.state, State::Idle | State::Asking);
        if is_over && self.instance.as_ref().is_some_and(|instance| instance.board.is_gone()) {
            self.instance = None;
            self.theirs = 0;
            own.map.store(slot_at(self.slot, THEIRS), 0);
            own.map.store(slot_at(self.slot, HOLDS), 0);
        }
    }

    fn open_ahead(&mut self) {
        let pair = self.own_pair;
        let Some(instance) = &mut self.instance else { return };
        let generation = instance.board.map.load(layout::GENERATION_AT);
        if instance.generation != generation {
            instance.generation = generation;
            instance.windows.open_ahead(pair);
        }
    }

    fn look_for_peer(&mut self, around: &Around<'_>) {
        if self.instance.is_none() && !self.meet(around) {
            return;
        }
        let Some(instance) = &mut self.instance else { return };
        if !instance.board.is_alive() {
            return;
        }
        let is_slot_ours =
            instance.slot.is_some() && instance.word(PEER) == u64::from(around.member.0);
        if !is_slot_ours {
            instance.slot = instance.board.slot_for(around.member);
        }
        let Some((number, adopted)) = instance.numbers() else { return };
        if instance.slot.is_none() {
            self.error = Some(PeerError::NoSlot(self.peer));
        }
        if instance.slot.is_none() || number == 0 {
            if self.is_wanted {
                instance.board.knock(around.member, &mut self.ringer);
            }
            return self.give_up_if_unasked(around.own);
        }
        if self.theirs != number {
            self.adopt(around, number);
        }
        if adopted == self.mine {
            self.agree(around);
        }
    }

    /// Opens the peer's board; `false` when it is of no use now.
    fn meet(&mut self, around: &Around<'_>) -> bool {
        let is_early = |at: Instant| around.now.saturating_duration_since(at) < OPEN_INTERVAL;
        if self.refused.is_some_and(is_early) {
            return false;
        }
        match PeerBoard::open(around.dir, self.peer) {
            Ok(board) => {
                let windows = Windows::new(std::sync::Arc::clone(&board.map));
                self.instance =
                    Some(Instance { board, slot: None, windows, syncer: None, generation: 0 });
                (self.error, self.refused) = (None, None);
                true
            }
            Err(error) => {
                (self.error, self.refused) = (Some(error), Some(around.now));
                self.give_up_if_unasked(around.own);
                false
            }
        }
    }

    /// An attempt that only the peer wanted ends when the peer does not want it any more.
    fn give_up_if_unasked(&mut self, own: &OwnBoard) {
        if !self.is_wanted {
            self.withdraw(own);
            self.state = State::Idle;
        }
    }

    fn adopt(&mut self, around: &Around<'_>, number: u64) {
        let own = around.own;
        let Some(instance) = &self.instance else { return };
        let Some(slot) = instance.slot else { return };
        self.producer = Some(Producer::reset(&instance.board.map, slot, self.mine));
        self.obeyed = 0;
        own.map.store(slot_at(self.slot, ACKED), 0);
        own.map.store(slot_at(self.slot, HOLDS), instance.board.instance);
        self.theirs = number;
        self.own_pair = Self::pair(self.mine, number);
        own.map.store(slot_at(self.slot, THEIRS), number);
        // It may have looked for our board just before there was one.
        instance.board.knock(around.member, &mut self.ringer);
    }

    fn agree(&mut self, around: &Around<'_>) {
        let (Some(instance), Some(producer)) = (&mut self.instance, &mut self.producer) else {
            return;
        };
        producer.push(&instance.board.map, FrameKind::Greeting, around.greeting);
        (self.state, self.error) = (State::Agreed, None);
        self.ring_bell();
    }

    /// Wakes the peer, so that it looks at its board.
    pub(crate) fn ring_bell(&mut self) {
        let Some(instance) = &self.instance else { return };
        let who = instance.slot.and_then(|slot| u32::try_from(slot + 1).ok());
        let number = self.ringer.next(who.unwrap_or(Ringer::STRANGER));
        instance.board.doorbell.ring(number);
    }

    /// Rings on behalf of the caller: the peer reports `Rang`.
    pub(crate) fn ring(&mut self) {
        let Some(instance) = &self.instance else { return };
        let Some(slot) = instance.slot else { return };
        // It goes on where an earlier process of ours may have stopped.
        let word = slot_at(slot, RANG);
        instance.board.map.store(word, instance.board.map.load(word).wrapping_add(1));
        self.ring_bell();
    }

    /// Looks at the few words by which the peer speaks: no system call.
    pub(crate) fn watch(&mut self, own: &OwnBoard, completions: &mut Completions) {
        if !matches!(self.state, State::Agreed | State::Connected) {
            return;
        }
        let Some(instance) = &self.instance else { return };
        if !instance.board.is_alive() {
            return self.drop_pair(own, completions, true);
        }
        let revoked = instance.word(REVOKED);
        let is_same = instance.numbers().is_none_or(|pair| pair == (self.theirs, self.mine));
        if !is_same {
            return self.drop_pair(own, completions, false);
        }
        if revoked != self.obeyed {
            self.obey(own, revoked);
        }
    }

    fn obey(&mut self, own: &OwnBoard, revoked: u64) {
        let Some(instance) = &mut self.instance else { return };
        instance.windows.close_revoked();
        self.obeyed = revoked;
        own.map.store(slot_at(self.slot, ACKED), revoked);
        self.ring_bell();
    }

    /// Ends the queue pair: what is in flight fails.
    pub(crate) fn drop_pair(
        &mut self,
        own: &OwnBoard,
        completions: &mut Completions,
        exited: bool,
    ) {
        let was_connected = self.state == State::Connected;
        let mut status = Status::PeerGone;
        while let Some(pending) = self.pending.pop_front() {
            let status = std::mem::replace(&mut status, Status::Flushed);
            self.complete(completions, pending.id, status, 0);
        }
        self.withdraw(own);
        // Nobody was told of a queue pair that never got connected, so its end is not told either;
        // the attempt begins again if it is still wanted.
        self.state = if was_connected { State::Dropped { exited } } else { State::Idle };
        if was_connected {
            self.is_wanted = false;
        }
    }

    /// Takes back our number, after the windows are closed: the peer may then reuse the memory.
    fn withdraw(&mut self, own: &OwnBoard) {
        self.close_windows();
        if let Some(syncer) = self.instance.as_mut().and_then(|there| there.syncer.as_mut()) {
            syncer.abandon();
        }
        self.producer = None;
        own.map.store(slot_at(self.slot, HOLDS), 0);
        own.map.store(slot_at(self.slot, THEIRS), 0);
        own.map.store(slot_at(self.slot, MINE), 0);
        self.ring_bell();
    }

    /// Lets go of the peer's memory, before the own board says that nothing more will be stored.
    pub(crate) fn close_windows(&mut self) {
        if let Some(instance) = &mut self.instance {
            instance.windows.close_all();
        }
    }

    /// Ends the queue pair without a word to the own side.
    pub(crate) fn disconnect(&mut self, own: &OwnBoard, completions: &mut Completions) {
        completions.forget(self.qp());
        self.pending.clear();
        self.queued = 0;
        self.withdraw(own);
        (self.state, self.is_wanted) = (State::Idle, false);
    }

    /// Puts a completion of the queue pair into the queue.
    pub(crate) fn complete(
        &mut self,
        completions: &mut Completions,
        id: u64,
        status: Status,
        word: u64,
    ) {
        self.queued += 1;
        completions.push(Completion { qp: self.qp(), id, status, word });
    }

    /// Tells the peer of a revocation; returns its number.
    pub(crate) fn revoke(&mut self, own: &OwnBoard) -> u64 {
        self.revoked += 1;
        own.map.store(slot_at(self.slot, REVOKED), self.revoked);
        self.ring_bell();
        self.revoked
    }

    /// Whether the peer's instance `instance` will place nothing more under the queue pair
    /// {its number, ours}, of which revocation `revocation` was told.
    pub(crate) fn is_released(&self, instance: u64, pair: (u64, u64), revocation: u64) -> bool {
        let Some(there) = self.instance.as_ref().filter(|i| i.board.instance == instance) else {
            // Only an instance that cannot store any more is let go.
            return true;
        };
        let has_moved_on = there.numbers().is_some_and(|numbers| numbers != pair);
        has_moved_on || there.word(ACKED) >= revocation || there.board.is_gone()
    }

    /// Takes the next event of the queue pair; its bytes go into `bytes`.
    pub(crate) fn next_event(
        &mut self,
        own: &OwnBoard,
        completions: &mut Completions,
        bytes: &mut Vec<u8>,
    ) -> Option<FabricEvent> {
        match self.state {
            State::Idle | State::Asking => None,
            State::Agreed => match self.consumer.pop(&own.map, self.theirs, bytes) {
                Ok(Some(FrameKind::Greeting)) => {
                    self.state = State::Connected;
                    Some(FabricEvent::Connected { qp: self.qp(), peer: self.peer })
                }
                Ok(Some(FrameKind::Message)) | Err(_) => {
                    self.drop_pair(own, completions, false);
                    None
                }
                Ok(None) => None,
            },
            State::Connected => self.next_of_connected(own, completions, bytes),
            State::Dropped { exited } => self.next_of_dropped(own, exited, bytes),
        }
    }

    fn next_of_connected(
        &mut self,
        own: &OwnBoard,
        completions: &mut Completions,
        bytes: &mut Vec<u8>,
    ) -> Option<FabricEvent> {
        match self.consumer.pop(&own.map, self.theirs, bytes) {
            Ok(Some(FrameKind::Message)) => {
                return Some(FabricEvent::Received { qp: self.qp() });
            }
            Ok(Some(FrameKind::Greeting)) | Err(_) => {
                self.drop_pair(own, completions, false);
                return None;
            }
            Ok(None) => {}
        }
        let rang = own.map.load(slot_at(self.slot, RANG));
        if rang == self.rang_seen {
            return None;
        }
        self.rang_seen = rang;
        bytes.clear();
        Some(FabricEvent::Rang { qp: self.qp() })
    }

    fn next_of_dropped(
        &mut self,
        own: &OwnBoard,
        exited: bool,
        bytes: &mut Vec<u8>,
    ) -> Option<FabricEvent> {
        if let Ok(Some(FrameKind::Message)) = self.consumer.pop(&own.map, self.theirs, bytes) {
            return Some(FabricEvent::Received { qp: self.qp() });
        }
        bytes.clear();
        if self.queued > 0 {
            return None;
        }
        let exited = exited || self.instance.as_ref().is_none_or(|i| !i.board.is_alive());
        self.state = State::Idle;
        Some(FabricEvent::Disconnected { qp: self.qp(), peer: self.peer, exited })
    }
}
