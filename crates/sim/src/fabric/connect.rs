//! How queue pairs come and go, keys end, and doorbells ring.

use base::MemberId;
use fabric::{Completion, FabricEvent, Key, Status};

use super::state::{End, KeyPhase, Phase, Pipe, Stage, handle_of, other};
use crate::world::{Event, HostState, World};
use base::mutant;

impl World {
    pub(super) fn connect(&mut self, place: usize, peer: MemberId) {
        let Some(target) = self.host_of(peer).map(crate::world::HostId::place) else {
            return;
        };
        let host = &mut self.hosts[place];
        let exists = host.process.current[target].is_some() || host.process.attempts[target];
        if exists || target == place {
            return;
        }
        host.process.attempts[target] = true;
        let life = host.life;
        let (from, to) = (short(place), short(target));
        let delay = self.network.draw_flight(place, target, &mut self.random);
        let timeout = self.network.options.retry_timeout;
        self.clock.after(delay, Event::ConnectArrives { from, to, life });
        self.clock.after(timeout, Event::AttemptEnds { from, to, life });
    }

    pub(crate) fn attempt_ends(&mut self, from: u16, to: u16, life: u32) {
        let host = &mut self.hosts[usize::from(from)];
        if host.lives(life) {
            host.process.attempts[usize::from(to)] = false;
        }
        self.wake(usize::from(from));
    }

    /// Whether both directions between two hosts carry packets at the moment.
    fn is_linked(&self, one: usize, two: usize) -> bool {
        !self.network.is_blocked(one, two)
            && !self.network.is_blocked(two, one)
            && self.hosts[one].state != HostState::Off
            && self.hosts[two].state != HostState::Off
    }

    pub(crate) fn connect_arrives(&mut self, from: u16, to: u16, life: u32) {
        let (asker, target) = (usize::from(from), usize::from(to));
        let is_answered = self.hosts[asker].lives(life)
            && self.hosts[target].state == HostState::Running
            && self.is_linked(asker, target)
            && self.hosts[asker].process.current[target].is_none();
        if !is_answered {
            return;
        }
        if let Some(stale) = self.hosts[target].process.current[asker] {
            let exited = self.network.end(other(stale)).life != life;
            self.close_end(stale, Status::PeerGone, exited);
        }
        self.make_pair(asker, target);
    }

    fn make_pair(&mut self, asker: usize, target: usize) {
        let first = u32::try_from(self.network.ends.len()).expect("fewer than 2^31 queue pairs");
        for (end, place, peer) in [(first, asker, target), (first + 1, target, asker)] {
            let greeting = self.hosts[peer].process.greeting.clone();
            let host = &mut self.hosts[place];
            host.process.current[peer] = Some(end);
            host.process.attempts[peer] = false;
            let life = host.life;
            self.network.ends.push(End {
                host: short(place),
                life,
                phase: Phase::Opening,
                notice_waits: false,
                notice_scheduled: false,
                exited: false,
                rings: false,
                greeting,
                pipe: Pipe::default(),
            });
            let delay = self.network.draw_flight(peer, place, &mut self.random);
            self.clock.after(delay, Event::Opened(end));
        }
    }

    pub(crate) fn opened(&mut self, end: u32) {
        let peer = self.peer_of(end);
        let own = self.network.end_mut(end);
        let place = usize::from(own.host);
        if own.phase != Phase::Opening || !self.hosts[place].lives(own.life) {
            return;
        }
        own.phase = Phase::Open;
        let greeting = std::mem::take(&mut own.greeting);
        self.push_event(place, FabricEvent::Connected { qp: handle_of(end), peer }, &greeting);
    }

    fn peer_of(&self, end: u32) -> MemberId {
        self.hosts[usize::from(self.network.end(other(end)).host)].member
    }

    /// The queue pair is dead for the owner of `end`: everything outstanding fails, the first with
    /// `status`. The other side learns of it later.
    pub(super) fn close_end(&mut self, end: u32, status: Status, exited: bool) {
        let (qp, peer) = (handle_of(end), self.peer_of(end));
        let own = self.network.end_mut(end);
        let was = std::mem::replace(&mut own.phase, Phase::Closed);
        let (place, life) = (usize::from(own.host), own.life);
        if was == Phase::Closed {
            return;
        }
        self.forget_current(end);
        if was == Phase::Open && self.hosts[place].lives(life) {
            let completions = &mut self.hosts[place].process.completions;
            let mut status = status;
            for request in self.network.pipe(end).outstanding.drain(..) {
                completions.push_back(Completion { qp, id: request.id, status, word: 0 });
                status = Status::Flushed;
            }
            self.push_event(place, FabricEvent::Disconnected { qp, peer, exited }, &[]);
        }
        self.orphan(end);
        self.schedule_notice(other(end), false);
    }

    /// The owner of `end` drops it: it hears nothing more.
    pub(super) fn drop_end(&mut self, end: u32) {
        self.purge(end);
        let own = self.network.end_mut(end);
        if own.phase == Phase::Closed {
            return;
        }
        own.phase = Phase::Closed;
        self.forget_current(end);
        self.orphan(end);
        self.half_open(other(end));
        self.schedule_notice(other(end), false);
    }

    pub(super) fn forget_current(&mut self, end: u32) {
        let peer = usize::from(self.network.end(other(end)).host);
        let own = self.network.end(end);
        let host = &mut self.hosts[usize::from(own.host)];
        if host.lives(own.life) && host.process.current[peer] == Some(end) {
            host.process.current[peer] = None;
        }
    }

    /// Nobody waits for the requests of `end` any more. What is not on the wire is never sent; of
    /// what is, a random number may still land, perhaps much later.
    pub(super) fn orphan(&mut self, end: u32) {
        let on_wire = self.network.end(end).pipe.on_wire;
        let rest = self.random.below(on_wire as u64 + 1);
        let rest = usize::try_from(rest).expect("not above on_wire");
        let delay = self.network.options.late.draw(&mut self.random);
        let pipe = self.network.pipe(end);
        pipe.orphan = true;
        pipe.late = Some(delay);
        pipe.outstanding.clear();
        pipe.answers.clear();
        pipe.signaled = 0;
        pipe.messages = 0;
        pipe.queue.truncate(on_wire);
        pipe.limit = Some(pipe.limit.map_or(rest, |limit| limit.min(rest)));
        if pipe.limit == Some(0) {
            self.clear_pipe(end);
        }
    }

    /// Nothing that is under way on this pipe lands any more.
    pub(super) fn clear_pipe(&mut self, end: u32) {
        let pipe = self.network.pipe(end);
        pipe.queue.clear();
        pipe.on_wire = 0;
        pipe.stage = Stage::Begin;
        pipe.unflushed.clear();
    }

    /// The side that `end` sends to is gone: either its requests go on until its owner learns of
    /// it, or only some of those on the wire are executed.
    pub(super) fn half_open(&mut self, end: u32) {
        if self.random.one_in(self.network.options.half_open_one_in) {
            return;
        }
        let on_wire = self.network.end(end).pipe.on_wire;
        let rest = self.random.below(on_wire as u64 + 1);
        let rest = usize::try_from(rest).expect("not above on_wire");
        let pipe = self.network.pipe(end);
        pipe.limit = Some(pipe.limit.map_or(rest, |limit| limit.min(rest)));
    }

    pub(super) fn schedule_notice(&mut self, end: u32, exited: bool) {
        let own = self.network.end_mut(end);
        own.exited |= exited;
        if own.phase == Phase::Closed || own.notice_scheduled {
            return;
        }
        own.notice_scheduled = true;
        own.notice_waits = false;
        let delay = self.network.options.notice.draw(&mut self.random);
        self.clock.after(delay, Event::Notice(end));
    }

    /// The owner of `end` learns that the other side is gone, if word can reach it.
    pub(crate) fn notice(&mut self, end: u32) {
        let peer = usize::from(self.network.end(other(end)).host);
        let own = self.network.end(end);
        let (place, exited) = (usize::from(own.host), own.exited);
        let arrives = self.is_linked(peer, place);
        let own = self.network.end_mut(end);
        own.notice_scheduled = false;
        if arrives {
            self.close_end(end, Status::PeerGone, exited);
        } else {
            own.notice_waits = true;
        }
    }

    /// A deregistration ends: from now on nothing lands through the key.
    pub(crate) fn deregister_ends(&mut self, key: u64) {
        let at = usize::try_from(key - 1).expect("keys are places in a list");
        let registration = &self.network.registrations[at];
        let (place, life) = (usize::from(registration.host), registration.life);
        if registration.phase != KeyPhase::Ending {
            return;
        }
        if registration.writer.is_some_and(|writer| self.writer_holds(writer)) {
            let delay = self.network.options.deregister.draw(&mut self.random);
            self.clock.after(delay, Event::Deregister(key));
            return;
        }
        self.network.registrations[at].phase = KeyPhase::Gone;
        if self.hosts[place].lives(life) {
            self.hosts[place].process.registrations -= 1;
            if !mutant!("recycle_early") {
                self.push_event(place, FabricEvent::Deregistered { key: Key(key) }, &[]);
            }
        }
    }

    /// Whether the writer at the other side of `end` may be in the middle of a store and cannot
    /// answer.
    fn writer_holds(&self, end: u32) -> bool {
        let writer = self.network.end(other(end));
        let (place, owner) = (usize::from(writer.host), usize::from(self.network.end(end).host));
        let cannot_answer = self.hosts[place].lives(writer.life)
            && (self.hosts[place].state == HostState::Stopped || !self.is_linked(place, owner));
        let may_store = writer.phase != Phase::Closed || writer.pipe.on_wire > 0;
        self.network.options.deregister_waits_for_writer && cannot_answer && may_store
    }

    pub(super) fn ring(&mut self, end: u32) {
        let (place, peer) = self.ends_of(end);
        let target = self.network.end_mut(other(end));
        if target.rings {
            return;
        }
        target.rings = true;
        let delay = self.network.draw_flight(place, peer, &mut self.random);
        self.clock.after(delay, Event::Ring(other(end)));
    }

    pub(crate) fn ring_arrives(&mut self, end: u32) {
        let (place, peer) = self.ends_of(end);
        let arrives = self.is_linked(peer, place);
        let own = self.network.end_mut(end);
        own.rings = false;
        if arrives && own.phase == Phase::Open && self.hosts[place].lives(own.life) {
            self.push_event(place, FabricEvent::Rang { qp: handle_of(end) }, &[]);
        }
    }

    /// The hosts of `end` and of its other side.
    pub(super) fn ends_of(&self, end: u32) -> (usize, usize) {
        let own = self.network.end(end);
        (usize::from(own.host), usize::from(self.network.end(other(end)).host))
    }
}

fn short(place: usize) -> u16 {
    u16::try_from(place).expect("below HOSTS_MAX")
}
