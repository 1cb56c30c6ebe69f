//! The handle of one process: what it may ask of its card.

use std::ops::Range;

use base::{MemberId, mutant};
use fabric::{
    Access, Caps, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId,
    RegisterError, Request, WorkRequest,
};

use super::state::{
    KeyPhase, MESSAGES_MAX, OUTSTANDING_MAX, Operation, Outstanding, Phase, REGISTRATIONS_MAX,
    Registration, Waiting, Work, end_of, handle_of,
};
use crate::memory::SimRegion;
use crate::world::{Event, HostId, SharedWorld, World};

/// The fabric as the process of one life of a host sees it. After that life it does nothing.
#[derive(Debug)]
pub struct SimFabric {
    world: SharedWorld,
    host: HostId,
    life: u32,
}

impl SimFabric {
    pub(crate) fn new(world: &SharedWorld, host: HostId, life: u32) -> Self {
        Self { world: SharedWorld::clone(world), host, life }
    }

    /// The host it runs on.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Makes a region of this host known to the card.
    ///
    /// # Panics
    /// When the region belongs to another host.
    pub fn attach(&mut self, region: &SimRegion) -> RegionId {
        let mut world = self.world.borrow_mut();
        let host = &mut world.hosts[self.host.place()];
        assert!(host.memories.contains(&region.memory()), "a card attaches its own host's memory");
        let id = RegionId(u32::try_from(host.process.regions.len()).expect("few regions"));
        host.process.regions.push(region.memory());
        id
    }

    #[cfg(test)]
    pub(super) const fn world_for_tests(&self) -> &SharedWorld {
        &self.world
    }

    /// Runs `how` if the process is still there.
    fn living<T>(&self, how: impl FnOnce(&mut World, usize) -> T) -> Option<T> {
        let mut world = self.world.borrow_mut();
        let place = self.host.place();
        world.hosts[place].lives(self.life).then(|| how(&mut world, place))
    }
}

impl World {
    /// The end behind `qp` if it belongs to this host's process.
    fn own_end(&self, place: usize, qp: Qp) -> Option<u32> {
        let end = end_of(qp)?;
        let found = self.network.ends.get(end as usize)?;
        let host = &self.hosts[place];
        (usize::from(found.host) == place && found.life == host.life).then_some(end)
    }

    fn open_end(&self, place: usize, qp: Qp) -> Option<u32> {
        self.own_end(place, qp).filter(|end| self.network.end(*end).phase == Phase::Open)
    }

    /// How many bytes a local piece has behind it, or why it is not there.
    fn check_piece(&self, place: usize, piece: &Piece<'_>) -> Result<(), PostError> {
        let Piece::Local { region, offset, len } = *piece else {
            return Ok(());
        };
        self.check_local(place, region, offset, len).map(drop)
    }

    fn check_local(
        &self,
        place: usize,
        region: RegionId,
        offset: u64,
        len: u32,
    ) -> Result<u32, PostError> {
        let memory = self.hosts[place].process.regions.get(region.0 as usize);
        let memory = *memory.ok_or(PostError::Invalid("the region is not attached"))?;
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| self.memories[memory as usize].len() < end) {
            return Err(PostError::Invalid("local bytes outside the region"));
        }
        Ok(memory)
    }

    fn check_request(&self, place: usize, request: &Request<'_>) -> Result<(), PostError> {
        let caps = self.network.options.caps;
        match request {
            Request::Write { pieces, .. } => {
                if (caps.pieces_max as usize) < pieces.len() {
                    return Err(PostError::Invalid("more pieces than the provider gathers"));
                }
                let inline: usize = pieces.iter().map(inline_len).sum();
                if (caps.inline_max as usize) < inline {
                    return Err(PostError::Invalid("more inline bytes than the provider takes"));
                }
                let total: u64 = pieces.iter().map(piece_len).sum();
                if u32::try_from(total).is_err() {
                    return Err(PostError::Invalid("a WRITE of 4 GiB or more"));
                }
                pieces.iter().try_for_each(|piece| self.check_piece(place, piece))
            }
            Request::ReadWord { from } if !from.offset.is_multiple_of(8) => {
                Err(PostError::Invalid("a word is aligned"))
            }
            Request::ReadWord { .. } => Ok(()),
            Request::Read { into: (region, offset), len, .. } => {
                self.check_local(place, *region, *offset, *len).map(drop)
            }
            Request::Send { bytes } if (caps.message_max as usize) < bytes.len() => {
                Err(PostError::Invalid("the message is too long"))
            }
            Request::Send { .. } => Ok(()),
        }
    }

    /// Whether the chain fits into what the queue pair has left.
    fn check_room(&self, end: u32, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let caps = self.network.options.caps;
        let signaled = chain.iter().filter(|work| is_signaled(&work.request)).count();
        let messages =
            chain.iter().filter(|work| matches!(work.request, Request::Send { .. })).count();
        if (caps.chain_max as usize) < chain.len() {
            return Err(PostError::Invalid("the chain is too long"));
        }
        if (caps.reads_max as usize) < signaled || MESSAGES_MAX < messages {
            return Err(PostError::Invalid("more signaled requests than a queue pair holds"));
        }
        let pipe = &self.network.end(end).pipe;
        let is_full = (caps.reads_max as usize) < pipe.signaled as usize + signaled
            || MESSAGES_MAX < pipe.messages + messages
            || OUTSTANDING_MAX < pipe.outstanding.len() + chain.len();
        if is_full { Err(PostError::Full) } else { Ok(()) }
    }

    fn take_in(&mut self, place: usize, end: u32, work: &WorkRequest<'_>) {
        let operation = self.operation_of(place, &work.request);
        let pipe = self.network.pipe(end);
        pipe.posted += 1;
        let number = pipe.posted;
        let is_signaled = is_signaled(&work.request);
        let is_message = matches!(operation, Operation::Send { .. });
        pipe.signaled += u32::from(is_signaled);
        pipe.messages += usize::from(is_message);
        pipe.outstanding.push_back(Outstanding { number, id: work.id, is_signaled, is_message });
        pipe.queue.push_back(Work { number, operation });
    }

    fn operation_of(&mut self, place: usize, request: &Request<'_>) -> Operation {
        match *request {
            Request::Write { pieces, to } => {
                let mut bytes = self.network.buffer();
                let mut gather = Vec::new();
                for piece in pieces {
                    match *piece {
                        Piece::Inline(inline) => bytes.extend_from_slice(inline),
                        Piece::Local { region, offset, len } => {
                            let at = u32::try_from(bytes.len()).expect("checked: below 4 GiB");
                            let memory = self.hosts[place].process.regions[region.0 as usize];
                            gather.push((at, memory, offset, len));
                            bytes.resize(bytes.len() + len as usize, 0);
                        }
                    }
                }
                Operation::Write { key: to.key, offset: to.offset, bytes, gather }
            }
            Request::ReadWord { from } => {
                Operation::ReadWord { key: from.key, offset: from.offset, early: None }
            }
            Request::Read { from, into: (region, at), len } => {
                let memory = self.hosts[place].process.regions[region.0 as usize];
                let bytes = self.network.buffer();
                Operation::Read { key: from.key, offset: from.offset, memory, at, len, bytes }
            }
            Request::Send { bytes: message } => {
                let mut bytes = self.network.buffer();
                bytes.extend_from_slice(message);
                Operation::Send { bytes }
            }
        }
    }
}

const fn is_signaled(request: &Request<'_>) -> bool {
    match request {
        Request::ReadWord { .. } | Request::Read { .. } => true,
        Request::Write { .. } | Request::Send { .. } => false,
    }
}

const fn inline_len(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Inline(bytes) => bytes.len(),
        Piece::Local { .. } => 0,
    }
}

const fn piece_len(piece: &Piece<'_>) -> u64 {
    match piece {
        Piece::Inline(bytes) => bytes.len() as u64,
        Piece::Local { len, .. } => *len as u64,
    }
}

impl Fabric for SimFabric {
    fn caps(&self) -> Caps {
        self.world.borrow().network.options.caps
    }

    fn connect(&mut self, peer: MemberId) {
        self.living(|world, place| world.connect(place, peer));
    }

    fn set_greeting(&mut self, greeting: &[u8]) {
        let message_max = self.caps().message_max as usize;
        assert!(greeting.len() <= message_max, "a greeting is at most as long as a message");
        self.living(|world, place| {
            let own = &mut world.hosts[place].process.greeting;
            own.clear();
            own.extend_from_slice(greeting);
        });
    }

    fn disconnect(&mut self, qp: Qp) {
        self.living(|world, place| {
            if let Some(end) = world.own_end(place, qp) {
                world.drop_end(end);
            }
        });
    }

    fn register(
        &mut self,
        region: RegionId,
        range: Range<u64>,
        access: Access,
    ) -> Result<Key, RegisterError> {
        let gone = || Err(RegisterError::Refused("the process has ended".to_owned()));
        self.living(|world, place| {
            let host = &world.hosts[place];
            let memory = host.process.regions.get(region.0 as usize).copied();
            let len = memory.map_or(0, |memory| world.memories[memory as usize].len());
            let (Some(memory), true) = (memory, range.start < range.end && range.end <= len) else {
                return Err(RegisterError::OutOfRange { region, range });
            };
            if host.process.registrations == REGISTRATIONS_MAX {
                return Err(RegisterError::Exhausted);
            }
            let writer = match access {
                Access::Read => None,
                Access::Write(qp) => Some(world.open_end(place, qp).ok_or_else(|| {
                    RegisterError::Refused(format!("queue pair {qp:?} is not connected"))
                })?),
            };
            let owner = u16::try_from(place).expect("below HOSTS_MAX");
            let life = host.life;
            world.hosts[place].process.registrations += 1;
            let phase = KeyPhase::Valid;
            let registration = Registration { host: owner, life, memory, range, writer, phase };
            world.network.registrations.push(registration);
            Ok(Key(world.network.registrations.len() as u64))
        })
        .unwrap_or_else(gone)
    }

    fn deregister(&mut self, key: Key) {
        self.living(|world, place| {
            let life = world.hosts[place].life;
            let found = key.0.checked_sub(1).and_then(|at| usize::try_from(at).ok());
            let registrations = &mut world.network.registrations;
            let Some(own) = found.and_then(|at| registrations.get_mut(at)) else {
                return;
            };
            let is_own = usize::from(own.host) == place && own.life == life;
            if !is_own || own.phase != KeyPhase::Valid {
                return;
            }
            own.phase = KeyPhase::Ending;
            let delay = world.network.options.deregister.draw(&mut world.random);
            world.clock.after(delay, Event::Deregister(key.0));
            if mutant!("recycle_early") {
                world.push_event(place, FabricEvent::Deregistered { key }, &[]);
            }
        });
    }

    fn is_quiesced(&mut self) -> bool {
        let host = self.host;
        self.living(|world, _| !world.has_late_writes(host)).unwrap_or(false)
    }

    fn post(&mut self, qp: Qp, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.living(|world, place| {
            let end = world.open_end(place, qp).ok_or(PostError::NotConnected(qp))?;
            chain.iter().try_for_each(|work| world.check_request(place, &work.request))?;
            world.check_room(end, chain)?;
            for work in chain {
                world.take_in(place, end, work);
            }
            world.schedule_transmit(end);
            Ok(())
        })
        .unwrap_or(Err(PostError::NotConnected(qp)))
    }

    fn ring(&mut self, qp: Qp) {
        self.living(|world, place| {
            if let Some(end) = world.open_end(place, qp) {
                world.ring(end);
            }
        });
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.living(|world, place| {
            let waiting = &mut world.hosts[place].process.completions;
            let count = waiting.len().min(into.len());
            for (slot, completion) in into.iter_mut().zip(waiting.drain(..count)) {
                *slot = completion;
            }
            count
        })
        .unwrap_or(0)
    }

    /// A `Disconnected` is held back until the completions of its queue pair were polled: it
    /// follows them.
    fn next_event(&mut self, bytes: &mut Vec<u8>) -> Option<FabricEvent> {
        bytes.clear();
        self.living(|world, place| {
            let process = &mut world.hosts[place].process;
            let completions = &process.completions;
            let waits_for = |waiting: &Waiting| match waiting.event {
                FabricEvent::Disconnected { qp, .. } => Some(qp),
                FabricEvent::Connected { .. }
                | FabricEvent::Received { .. }
                | FabricEvent::Deregistered { .. }
                | FabricEvent::Rang { .. } => None,
            };
            let next = process.events.iter().position(|waiting| {
                let qp = waits_for(waiting);
                completions.iter().all(|completion| Some(completion.qp) != qp)
            })?;
            let Waiting { event, bytes: message } = process.events.remove(next)?;
            bytes.extend_from_slice(&message);
            world.network.give_back(message);
            Some(event)
        })
        .flatten()
    }
}

/// The queue pair an event speaks of.
pub(super) const fn qp_of(event: &FabricEvent) -> Option<Qp> {
    match event {
        FabricEvent::Connected { qp, .. }
        | FabricEvent::Disconnected { qp, .. }
        | FabricEvent::Received { qp }
        | FabricEvent::Rang { qp } => Some(*qp),
        FabricEvent::Deregistered { .. } => None,
    }
}

impl World {
    /// Forgets what waits for the owner of an end.
    pub(super) fn purge(&mut self, end: u32) {
        let qp = handle_of(end);
        let process = &mut self.hosts[usize::from(self.network.end(end).host)].process;
        process.completions.retain(|completion| completion.qp != qp);
        process.events.retain(|waiting| qp_of(&waiting.event) != Some(qp));
    }

    pub(super) fn push_event(&mut self, place: usize, event: FabricEvent, bytes: &[u8]) {
        let mut message = self.network.buffer();
        message.extend_from_slice(bytes);
        self.hosts[place].process.events.push_back(Waiting { event, bytes: message });
        self.wake(place);
    }
}
