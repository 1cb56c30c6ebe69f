//! What the scheduler of a test may do to hosts and links.

use super::handle::SimFabric;
use super::state::{KeyPhase, Phase, Process, other};
use crate::world::{Delay, HostId, HostState, SharedWorld, World};

impl World {
    /// Cuts the link between two hosts, silently and in both directions. What is on the wire
    /// waits; after the retry timeout the requests on it fail.
    pub fn cut(&mut self, one: HostId, two: HostId) {
        self.network.block(one.place(), two.place(), true);
        self.network.block(two.place(), one.place(), true);
    }

    /// Cuts one direction. Requests of `from` do not arrive; those of `to` arrive and are
    /// executed, but their completions do not come back.
    pub fn cut_one_way(&mut self, from: HostId, to: HostId) {
        self.network.block(from.place(), to.place(), true);
    }

    /// Mends both directions of the link between two hosts.
    pub fn heal(&mut self, one: HostId, two: HostId) {
        self.network.block(one.place(), two.place(), false);
        self.network.block(two.place(), one.place(), false);
        self.resume_links(|own, peer| {
            (own, peer) == (one.place(), two.place()) || (own, peer) == (two.place(), one.place())
        });
    }

    /// Whether packets from one host reach the other.
    #[must_use]
    pub fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.network.is_blocked(from.place(), to.place())
    }

    /// Gives the link from one host to another a delay of its own.
    pub fn set_flight(&mut self, from: HostId, to: HostId, delay: Delay) {
        self.network.set_flight(from.place(), to.place(), delay);
    }

    fn resume_links(&mut self, concerns: impl Fn(usize, usize) -> bool) {
        let ends = u32::try_from(self.network.ends.len()).expect("fewer than 2^31 queue pairs");
        for end in 0..ends {
            let (own, peer) = self.ends_of(end);
            if concerns(own, peer) {
                self.resume(end);
            }
        }
    }

    /// The state of a host.
    #[must_use]
    pub fn state(&self, host: HostId) -> HostState {
        self.hosts[host.place()].state
    }

    /// How often the host was switched on: what a boot id tells.
    #[must_use]
    pub fn boot(&self, host: HostId) -> u64 {
        self.hosts[host.place()].boot
    }

    /// Stops the process of a host, as `SIGSTOP` does. Its card goes on.
    pub fn stop(&mut self, host: HostId) {
        let state = &mut self.hosts[host.place()].state;
        if *state == HostState::Running {
            *state = HostState::Stopped;
        }
    }

    /// Lets a stopped process go on.
    pub fn cont(&mut self, host: HostId) {
        let state = &mut self.hosts[host.place()].state;
        if *state == HostState::Stopped {
            *state = HostState::Running;
            self.wake(host.place());
        }
    }

    /// Ends the process of a host at once, as `SIGKILL` does. Memory and files live on; what peers
    /// sent may still land.
    pub fn crash(&mut self, host: HostId) {
        let place = host.place();
        let life = self.hosts[place].life;
        if !self.hosts[place].lives(life) {
            return;
        }
        self.hosts[place].state = HostState::Crashed;
        self.hosts[place].process = Process::default();
        for memory in 0..self.hosts[place].memories.len() {
            let memory = self.hosts[place].memories[memory];
            self.memories[memory as usize].process_crash();
        }
        let is_known = self.random.one_in(self.network.options.exit_known_one_in);
        for end in self.ends_at(place) {
            if self.network.end(end).phase != Phase::Closed {
                self.network.end_mut(end).phase = Phase::Closed;
                self.orphan(end);
                self.half_open(other(end));
                self.schedule_notice(other(end), is_known);
            }
        }
    }

    fn ends_at(&self, place: usize) -> Vec<u32> {
        let ends = self.network.ends.iter().zip(0..);
        ends.filter(|(end, _)| usize::from(end.host) == place).map(|(_, number)| number).collect()
    }

    /// Takes the power from a host. Nothing lands there any more; its memories and files keep what
    /// was durable and any part of the rest. The peers learn nothing until they time out.
    pub fn power_cut(&mut self, host: HostId) {
        let place = host.place();
        if self.hosts[place].state == HostState::Off {
            return;
        }
        self.hosts[place].state = HostState::Off;
        self.hosts[place].boot += 1;
        self.hosts[place].process = Process::default();
        for end in self.ends_at(place) {
            if self.network.end(end).phase != Phase::Closed {
                self.network.end_mut(end).phase = Phase::Closed;
                self.orphan(end);
            }
            self.clear_pipe(other(end));
            let pipe = self.network.pipe(other(end));
            pipe.limit = Some(0);
            pipe.execute_stalled = true;
            self.arm_timer(other(end));
            self.schedule_notice(other(end), false);
        }
        self.forget_keys(place);
        for memory in 0..self.hosts[place].memories.len() {
            let memory = self.hosts[place].memories[memory];
            self.memories[memory as usize].power_cut();
        }
        self.hosts[place].files.power_cut();
    }

    fn forget_keys(&mut self, place: usize) {
        for registration in &mut self.network.registrations {
            if usize::from(registration.host) == place {
                registration.phase = KeyPhase::Gone;
            }
        }
    }

    /// Whether anything that was sent to an earlier process of a host may still land there.
    #[must_use]
    pub fn has_late_writes(&self, host: HostId) -> bool {
        let owner = &self.hosts[host.place()];
        self.network.ends.iter().zip(0..).any(|(own, end)| {
            let is_earlier = usize::from(own.host) == host.place() && !owner.lives(own.life);
            let writer = self.network.end(other(end));
            let may_send = writer.phase != Phase::Closed && writer.pipe.limit != Some(0);
            is_earlier && (may_send || writer.pipe.on_wire > 0)
        })
    }

    /// Starts a process on a host that has none; power comes back if it was away. Its memories
    /// must be opened anew with [`World::region`].
    ///
    /// # Panics
    /// When a process is there.
    pub fn restart(world: &SharedWorld, host: HostId) -> SimFabric {
        let life = world.borrow_mut().start(host.place());
        SimFabric::new(world, host, life)
    }

    fn start(&mut self, place: usize) -> u32 {
        let hosts = self.hosts.len();
        let host = &mut self.hosts[place];
        assert!(!host.lives(host.life), "a host has one process at a time: crash it first");
        host.state = HostState::Running;
        host.life += 1;
        let life = host.life;
        host.process = Process::default();
        host.process.current = vec![None; crate::world::HOSTS_MAX];
        host.process.attempts = vec![false; crate::world::HOSTS_MAX];
        debug_assert!(hosts <= crate::world::HOSTS_MAX);
        if !self.network.options.late_after_restart {
            self.forget_keys(place);
        }
        for end in self.ends_at(place) {
            if !self.network.options.late_after_restart {
                self.clear_pipe(other(end));
                self.network.pipe(other(end)).limit = Some(0);
            }
            self.resume(end);
            self.resume(other(end));
            self.schedule_notice(other(end), false);
        }
        self.wake(place);
        life
    }
}
