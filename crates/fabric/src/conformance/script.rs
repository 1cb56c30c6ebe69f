//! What the cases are written in.

use base::MemberId;

use super::{ENDPOINTS, Harness, TURNS_MAX};
use crate::{
    Access, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId, Remote, Request,
    Status, WorkRequest,
};

/// The first endpoint: asks, writes.
pub(super) const A: usize = 0;
/// The second: answers, is written to.
pub(super) const B: usize = 1;
/// The third.
pub(super) const C: usize = 2;

/// An event with its bytes.
pub(super) type Told = (FabricEvent, Vec<u8>);

/// Drives the endpoints of a harness and keeps what they were told.
#[derive(Debug)]
pub(super) struct Script<'h, H> {
    pub(super) harness: &'h mut H,
    told: [Vec<Told>; ENDPOINTS],
    done: [Vec<Completion>; ENDPOINTS],
}

impl<'h, H: Harness> Script<'h, H> {
    pub(super) fn new(harness: &'h mut H) -> Self {
        Self { harness, told: Default::default(), done: Default::default() }
    }

    pub(super) fn fabric(&mut self, at: usize) -> &mut H::Fabric {
        self.harness.fabric(at)
    }

    /// Every endpoint looks once at what is there.
    pub(super) fn turn(&mut self) {
        for at in 0..ENDPOINTS {
            self.turn_of(at);
        }
        self.harness.pass();
    }

    fn turn_of(&mut self, at: usize) {
        let fabric = self.harness.fabric(at);
        let none = Completion { qp: Qp(0), id: 0, status: Status::Flushed, word: 0 };
        let mut completions = [none; 8];
        let count = fabric.poll(&mut completions);
        self.done[at].extend_from_slice(&completions[..count]);
        let mut bytes = Vec::new();
        if let Some(event) = fabric.next_event(&mut bytes) {
            self.told[at].push((event, bytes));
        }
    }

    /// Turns until `at` was told something that `find` picks, which is then taken out.
    pub(super) fn expect<T>(
        &mut self,
        at: usize,
        what: &str,
        find: impl Fn(&Told) -> Option<T>,
    ) -> T {
        for _ in 0..TURNS_MAX {
            if let Some(index) = self.told[at].iter().position(|told| find(told).is_some()) {
                let told = self.told[at].remove(index);
                return find(&told).expect("it was found just now");
            }
            self.turn();
        }
        panic!("endpoint {at} was never told: {what}; it was told {:?}", self.told[at]);
    }

    /// Turns until `at` is connected with `peer`; the handle and the peer's greeting.
    pub(super) fn connected(&mut self, at: usize, peer: MemberId) -> (Qp, Vec<u8>) {
        self.expect(at, "connected", |(event, bytes)| {
            let FabricEvent::Connected { qp, peer: who } = *event else { return None };
            (who == peer).then(|| (qp, bytes.clone()))
        })
    }

    /// Turns until `qp` is told dead; whether the peer had exited.
    pub(super) fn disconnected(&mut self, at: usize, qp: Qp) -> bool {
        self.expect(at, "disconnected", |(event, _)| {
            let FabricEvent::Disconnected { qp: which, exited, .. } = *event else { return None };
            (which == qp).then_some(exited)
        })
    }

    /// Turns until a message has arrived on `qp`.
    pub(super) fn received(&mut self, at: usize, qp: Qp) -> Vec<u8> {
        self.expect(at, "a message", |(event, bytes)| {
            (*event == FabricEvent::Received { qp }).then(|| bytes.clone())
        })
    }

    /// Turns until `key` is told gone.
    pub(super) fn deregistered(&mut self, at: usize, key: Key) {
        self.expect(at, "deregistered", |(event, _)| {
            (*event == FabricEvent::Deregistered { key }).then_some(())
        });
    }

    /// What `at` was told and nobody has taken.
    pub(super) fn told(&self, at: usize) -> &[Told] {
        &self.told[at]
    }

    /// Turns a while, in which nothing in particular has to happen.
    pub(super) fn idle(&mut self) {
        for _ in 0..1000 {
            self.turn();
        }
    }

    /// Connects two endpoints; their handles.
    pub(super) fn connect(&mut self, asks: usize, answers: usize) -> (Qp, Qp) {
        let (asking, answering) = (self.harness.member(asks), self.harness.member(answers));
        self.fabric(asks).connect(answering);
        (self.connected(asks, answering).0, self.connected(answers, asking).0)
    }

    /// Connects an endpoint with a target; its handle.
    pub(super) fn connect_target(&mut self, asks: usize, target: MemberId) -> Qp {
        self.fabric(asks).connect(target);
        self.connected(asks, target).0
    }

    pub(super) fn post(
        &mut self,
        at: usize,
        qp: Qp,
        chain: &[WorkRequest<'_>],
    ) -> Result<(), PostError> {
        self.fabric(at).post(qp, chain)
    }

    /// Turns until `at` has `count` completions; takes them.
    pub(super) fn completions(&mut self, at: usize, count: usize) -> Vec<Completion> {
        for _ in 0..TURNS_MAX {
            if self.done[at].len() >= count {
                return self.done[at].drain(..count).collect();
            }
            self.turn();
        }
        panic!("endpoint {at} never had {count} completions: {:?}", self.done[at]);
    }

    /// Completions that nobody has taken.
    pub(super) fn done(&self, at: usize) -> &[Completion] {
        &self.done[at]
    }

    /// The first half of `at`'s region, for the peer of `qp` to write.
    pub(super) fn register_log(&mut self, at: usize, qp: Qp) -> Key {
        self.register(at, 0..super::REGION_LEN / 2, Access::Write(qp))
    }

    /// The second half of `at`'s region, for anybody to read.
    pub(super) fn register_page(&mut self, at: usize) -> Key {
        self.register(at, super::REGION_LEN / 2..super::REGION_LEN, Access::Read)
    }

    pub(super) fn register(
        &mut self,
        at: usize,
        range: std::ops::Range<u64>,
        access: Access,
    ) -> Key {
        let region = self.harness.region(at);
        let key = self.fabric(at).register(region, range, access);
        key.expect("a region can be registered")
    }

    /// Writes `bytes` and reads the first word of `page` back; the completion of that.
    pub(super) fn write(
        &mut self,
        at: usize,
        qp: Qp,
        (log, offset, bytes): (Key, u64, &[u8]),
        page: Key,
    ) -> Completion {
        let pieces = [Piece::Inline(bytes)];
        let chain = [write(1, &pieces, log, offset), read_word(2, page, 0)];
        assert_eq!(self.post(at, qp, &chain), Ok(()));
        self.completions(at, 1)[0]
    }
}

pub(super) fn write<'a>(
    id: u64,
    pieces: &'a [Piece<'a>],
    key: Key,
    offset: u64,
) -> WorkRequest<'a> {
    WorkRequest { id, request: Request::Write { pieces, to: Remote { key, offset } } }
}

pub(super) fn read_word(id: u64, key: Key, offset: u64) -> WorkRequest<'static> {
    WorkRequest { id, request: Request::ReadWord { from: Remote { key, offset } } }
}

pub(super) fn read(
    id: u64,
    (key, offset): (Key, u64),
    into: (RegionId, u64),
    len: u32,
) -> WorkRequest<'static> {
    WorkRequest { id, request: Request::Read { from: Remote { key, offset }, into, len } }
}

pub(super) fn send(id: u64, bytes: &[u8]) -> WorkRequest<'_> {
    WorkRequest { id, request: Request::Send { bytes } }
}
