//! A simulated cluster: hosts whose processes run the real shard code, clients, faults, checkers.
//!
//! Everything follows from the plan's seed. One loop owns it all: let the world make a step, give
//! a turn to whoever it concerns, look at what came of it.

use base::{Duration, Instant, MemberId, MemberSet, Random};
use consensus::Event;
use replica::{Answered, Notice, Request, Token};

use crate::{
    client::{Client, Todo},
    linear::{self, Verdict},
    node::{GROUP, Node, member},
    oracle::{Checker, Oracle, Violation},
    plan::{Fault, Plan},
    world::{HostState, SharedWorld, Step, World},
};

/// How long a healed cluster may take to be as if nothing had been.
const HEALING: Duration = Duration::from_secs(4);
/// How often it is looked at while it heals.
const LOOK: Duration = Duration::from_millis(2);
/// Events of one schedule; more is a loop that feeds itself.
const EVENTS_MAX: u64 = 20_000_000;

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What must not be, if it was.
    pub violation: Option<Violation>,
    /// Events of the world.
    pub events: u64,
    /// A hash of the whole course.
    pub trace: u64,
    /// Operations that clients saw an end of, known or unknown.
    pub operations: u64,
    /// Those without a known outcome.
    pub unknown: u64,
    /// Elections that were won.
    pub elections: u64,
    /// The last committed index.
    pub committed: u64,
    /// Faults, by kind.
    pub faults: Vec<Fault>,
    /// Checkpoints that were named.
    pub checkpoints: u64,
    /// Checkpoints of others that were installed.
    pub installs: u64,
    /// How long it was in simulated time.
    pub simulated: Duration,
}

/// A request or an answer on its way.
#[derive(Debug)]
enum Parcel {
    ToMember(usize, Token, Request),
    ToClient(Answered),
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Node(usize, u64),
    Client(usize),
    Parcel(usize),
    Fault,
    Undo(usize),
    Look,
}

impl Timer {
    fn encode(self) -> u64 {
        let (kind, at, count) = match self {
            Self::Node(at, count) => (0_u64, at, count),
            Self::Client(at) => (1, at, 0),
            Self::Parcel(at) => (2, at, 0),
            Self::Fault => (3, 0, 0),
            Self::Undo(at) => (4, at, 0),
            Self::Look => (5, 0, 0),
        };
        (kind << 60) | (count << 24) | (at as u64 & 0xff_ffff)
    }

    fn decode(token: u64) -> Self {
        let at = usize::try_from(token & 0xff_ffff).unwrap_or(0);
        match token >> 60 {
            0 => Self::Node(at, (token >> 24) & 0xf_ffff_ffff),
            1 => Self::Client(at),
            2 => Self::Parcel(at),
            3 => Self::Fault,
            4 => Self::Undo(at),
            _ => Self::Look,
        }
    }
}

/// How a fault ends.
#[derive(Clone, Debug)]
enum Undo {
    Start(usize),
    Continue(usize),
    Heal(usize, usize),
    Speed(usize),
}

/// A running schedule.
struct Cluster<'a> {
    plan: &'a Plan,
    world: SharedWorld,
    random: Random,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    parcels: Vec<Option<Parcel>>,
    undos: Vec<Undo>,
    oracle: Oracle,
    report: Report,
    answers: Vec<Answered>,
    notices: Vec<(base::GroupId, Notice)>,
    trouble_ends: Instant,
    verbose: bool,
}

/// Runs the schedule of a plan. With `verbose`, `say` is told what happens.
pub fn run(plan: &Plan, say: Option<&mut dyn FnMut(String)>) -> Report {
    let mut cluster = Cluster::new(plan, say.is_some());
    let result = cluster.story(say);
    let mut report = cluster.report;
    report.violation = result.err();
    let world = cluster.world.borrow();
    (report.events, report.trace) = (world.events(), world.trace());
    report.simulated = world.now().since(Instant(0));
    report.elections = cluster.oracle.elections;
    report.committed = cluster.oracle.committed().0;
    report
}

impl<'a> Cluster<'a> {
    fn new(plan: &'a Plan, verbose: bool) -> Self {
        let world = World::shared(plan.seed, plan.fabric);
        let founders = 1..=plan.members;
        let mut nodes: Vec<Node> =
            founders.map(|id| Node::found(&world, id, &plan.setup)).collect();
        let blank = crate::node::Setup {
            configuration: base::Configuration::default(),
            ..plan.setup.clone()
        };
        let spares = plan.members + 1..=plan.members + plan.spares;
        nodes.extend(spares.map(|id| Node::found(&world, id, &blank)));
        let mut random = Random::new(plan.seed ^ 0xc105_7e12);
        let clients = (0..plan.clients)
            .map(|number| Client::new(number, random.next(), plan.habits.clone()))
            .collect();
        let trouble_ends = world.borrow().now() + plan.trouble;
        Self {
            plan,
            world,
            random,
            nodes,
            clients,
            parcels: Vec::new(),
            undos: Vec::new(),
            oracle: Oracle::default(),
            report: Report::default(),
            answers: Vec::new(),
            notices: Vec::new(),
            trouble_ends,
            verbose,
        }
    }

    fn now(&self) -> Instant {
        self.world.borrow().now()
    }

    fn after(&self, delay: Duration, timer: Timer) {
        let mut world = self.world.borrow_mut();
        let at = world.now() + delay;
        world.schedule(at, timer.encode());
    }

    fn story(&mut self, mut say: Option<&mut dyn FnMut(String)>) -> Result<(), Violation> {
        for at in 0..self.nodes.len() {
            self.start(at)?;
        }
        for at in 0..self.clients.len() {
            let delay = Duration::from_micros(self.random.below(2_000));
            self.after(delay, Timer::Client(at));
        }
        self.plan_fault();
        let healed = loop {
            let step = self.world.borrow_mut().step();
            if self.world.borrow().events() > EVENTS_MAX {
                return Err(self.violation(Checker::Progress, "too many events".to_owned()));
            }
            match step {
                Step::Idle => return Err(self.violation(Checker::Progress, "idle".to_owned())),
                Step::Hardware => {}
                Step::Timer(token) => self.on_timer(Timer::decode(token))?,
            }
            loop {
                let woken = self.world.borrow_mut().take_woken();
                let Some(host) = woken else { break };
                if let Some(at) = self.nodes.iter().position(|node| node.host == host) {
                    self.turn(at)?;
                }
            }
            if let Some(say) = say.as_deref_mut() {
                self.tell(say);
            }
            let now = self.now();
            if now > self.trouble_ends && self.is_healed() {
                break true;
            }
            if now > self.trouble_ends + HEALING {
                break false;
            }
        };
        self.judge(healed)
    }

    /// The end: everybody has caught up, and the history is possible.
    fn judge(&mut self, healed: bool) -> Result<(), Violation> {
        if !healed {
            let what = self.describe();
            return Err(self.violation(Checker::Progress, what));
        }
        let mut history = Vec::new();
        for client in &mut self.clients {
            client.close();
            history.append(&mut client.history);
        }
        self.report.operations = history.len() as u64;
        let unknown = history.iter().filter(|operation| operation.complete.is_none()).count();
        self.report.unknown = unknown as u64;
        match linear::check(&history, linear::Limits::default()) {
            Verdict::Linearizable | Verdict::Undecided { .. } => Ok(()),
            Verdict::Violation(found) => {
                Err(self.violation(Checker::Linearizable, found.to_string()))
            }
        }
    }

    fn violation(&self, checker: Checker, what: String) -> Violation {
        Violation { checker, at: self.now(), what }
    }

    fn describe(&self) -> String {
        let lines = self.nodes.iter().map(|node| {
            let state = self.world.borrow().state(node.host);
            let core = node.shard.as_ref().and_then(|shard| shard.core(GROUP));
            let log = node.shard.as_ref().and_then(|shard| shard.log(GROUP));
            match (core, log) {
                (Some(core), Some(log)) => format!(
                    "m{} {state:?} {:?} tail {} commit {} applied {} leads {:?} follows {:?} free? {}",
                    node.id,
                    core.term(),
                    log.tail().index,
                    core.commit_index(),
                    core.applied_index(),
                    core.leading_term(),
                    core.leader(),
                    log.unopened(),
                ),
                _ => format!("m{} {state:?}", node.id),
            }
        });
        format!("not healed: {}", lines.collect::<Vec<_>>().join("; "))
    }

    fn tell(&mut self, say: &mut dyn FnMut(String)) {
        let now = self.now();
        for (_, notice) in self.notices.drain(..) {
            say(format!("{:>9} us {notice:?}", now.0 / 1_000));
        }
    }

    fn start(&mut self, at: usize) -> Result<(), Violation> {
        let state = self.world.borrow().state(self.nodes[at].host);
        if !matches!(state, HostState::Crashed | HostState::Off) {
            return Ok(());
        }
        self.oracle.restarted(self.nodes[at].id);
        if let Err(error) = self.nodes[at].start(&self.world, &self.plan.setup) {
            let what = format!("m{} does not start: {error}", self.nodes[at].id);
            return Err(self.violation(Checker::Running, what));
        }
        self.wake(at, Duration::ZERO);
        Ok(())
    }

    /// Makes sure a node gets a turn within `delay`.
    fn wake(&mut self, at: usize, delay: Duration) {
        let due = self.now() + delay;
        let node = &mut self.nodes[at];
        if node.wake_at.is_some_and(|planned| planned <= due) {
            return;
        }
        node.wake_at = Some(due);
        node.timer += 1;
        let timer = Timer::Node(at, node.timer);
        self.after(delay, timer);
    }

    fn turn(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now();
        let node = &mut self.nodes[at];
        let is_running = self.world.borrow().state(node.host) == HostState::Running;
        let Some(shard) = node.shard.as_mut().filter(|_| is_running) else { return Ok(()) };
        let turn = shard.turn(now);
        shard.take_answers(&mut self.answers);
        let before = self.notices.len();
        shard.take_notices(&mut self.notices);
        let id = node.id;
        for (_, notice) in &self.notices[before..] {
            match notice {
                Notice::Checkpoint(_) => self.report.checkpoints += 1,
                Notice::Installed(_) => self.report.installs += 1,
                Notice::Failed(why) => {
                    let what = format!("m{id} failed: {why}");
                    return Err(self.violation(Checker::Running, what));
                }
                Notice::Leads(_)
                | Notice::Deposed(_)
                | Notice::ChangeRefused(_)
                | Notice::PeerRefused(..)
                | Notice::Damaged(_)
                | Notice::Time(_) => {}
            }
        }
        if !self.verbose {
            self.notices.clear();
        }
        for answered in std::mem::take(&mut self.answers) {
            let delay = Duration::from_nanos(500 + self.random.below(20_000));
            self.ship(delay, Parcel::ToClient(answered));
        }
        self.oracle.observe(at, &self.nodes, &self.world)?;
        let poll = u64::try_from(self.plan.poll.as_nanos()).unwrap_or(1);
        let idle = Duration::from_nanos(poll / 2 + self.random.below(poll));
        let delay = if turn.worked {
            Duration::from_nanos(300 + self.random.below(2_000))
        } else {
            turn.wake_at.since(now).min(idle).max(Duration::from_nanos(500))
        };
        self.wake(at, delay);
        Ok(())
    }

    fn ship(&mut self, delay: Duration, parcel: Parcel) {
        self.parcels.push(Some(parcel));
        let timer = Timer::Parcel(self.parcels.len() - 1);
        self.after(delay, timer);
    }

    fn on_timer(&mut self, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Node(at, count) => {
                if self.nodes[at].timer == count {
                    self.nodes[at].wake_at = None;
                    self.turn(at)?;
                }
            }
            Timer::Client(at) => self.client_acts(at),
            Timer::Parcel(at) => self.deliver(at)?,
            Timer::Fault => {
                if self.now() < self.trouble_ends {
                    self.fault()?;
                    self.plan_fault();
                } else {
                    self.heal()?;
                }
            }
            Timer::Undo(at) => self.undo(self.undos[at].clone())?,
            Timer::Look => {
                // Somebody may still be asked to finish what the faults kept it from.
                self.after(LOOK, Timer::Look);
            }
        }
        Ok(())
    }

    fn client_acts(&mut self, at: usize) {
        let now = self.now();
        let members = self.nodes.len();
        let client = &mut self.clients[at];
        if now < client.due {
            return;
        }
        match client.act(now, members) {
            Todo::Send(place, token, request) => {
                let due = client.due;
                let delay = Duration::from_nanos(500 + self.random.below(20_000));
                self.ship(delay, Parcel::ToMember(place, token, request));
                self.after(due.since(now), Timer::Client(at));
            }
            Todo::Wait(due) if due < Instant(u64::MAX) => {
                self.after(due.since(now), Timer::Client(at));
            }
            Todo::Wait(_) => {}
        }
    }

    fn deliver(&mut self, at: usize) -> Result<(), Violation> {
        let Some(parcel) = self.parcels[at].take() else { return Ok(()) };
        match parcel {
            Parcel::ToMember(place, token, request) => {
                let Some(node) = self.nodes.get_mut(place) else { return Ok(()) };
                let lives = matches!(
                    self.world.borrow().state(node.host),
                    HostState::Running | HostState::Stopped
                );
                if let Some(shard) = node.shard.as_mut().filter(|_| lives) {
                    shard.request(GROUP, token, request);
                    return self.turn(place);
                }
            }
            Parcel::ToClient(answered) => {
                let (now, members) = (self.now(), self.nodes.len());
                let at = Client::of(answered.token);
                let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
                if client.expects(answered.token) {
                    client.answer(&answered.answer, now, members);
                    let due = client.due;
                    self.after(due.since(now), Timer::Client(at));
                }
            }
        }
        Ok(())
    }

    fn plan_fault(&mut self) {
        let every = u64::try_from(self.plan.fault_every.as_nanos()).unwrap_or(1).max(1);
        let delay = Duration::from_nanos(every / 2 + self.random.below(every));
        self.after(delay, Timer::Fault);
    }

    fn any_node(&mut self) -> usize {
        usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap_or(0)
    }

    /// The leader more often than chance would have it.
    fn victim(&mut self) -> usize {
        let leader = self.nodes.iter().position(|node| {
            node.shard.as_ref().and_then(|shard| shard.core(GROUP)?.leading_term()).is_some()
        });
        match leader {
            Some(leader) if self.random.one_in(2) => leader,
            _ => self.any_node(),
        }
    }

    fn undo_later(&mut self, undo: Undo) {
        let delay = Duration::from_micros(500 + self.random.below(30_000));
        self.undos.push(undo);
        let timer = Timer::Undo(self.undos.len() - 1);
        self.after(delay, timer);
    }

    fn fault(&mut self) -> Result<(), Violation> {
        let at = usize::try_from(self.random.below(self.plan.faults.len() as u64)).unwrap_or(0);
        let fault = self.plan.faults[at];
        if self.verbose {
            let note = Notice::Damaged(format!("--- {fault:?}"));
            self.notices.push((GROUP, note));
        }
        self.report.faults.push(fault);
        let at = self.victim();
        let host = self.nodes[at].host;
        match fault {
            Fault::Kill => self.kill(at),
            Fault::Stop => {
                self.world.borrow_mut().stop(host);
                self.undo_later(Undo::Continue(at));
            }
            Fault::Power => self.power_off(at),
            Fault::PowerAll => (0..self.nodes.len()).for_each(|at| self.power_off(at)),
            Fault::Cut | Fault::CutOneWay => {
                let other = self.any_node();
                if other != at {
                    let peer = self.nodes[other].host;
                    if fault == Fault::Cut {
                        self.world.borrow_mut().cut(host, peer);
                    } else {
                        self.world.borrow_mut().cut_one_way(host, peer);
                    }
                    self.undo_later(Undo::Heal(at, other));
                }
            }
            Fault::Split => {
                let side: Vec<bool> = self.nodes.iter().map(|_| self.random.one_in(2)).collect();
                for one in 0..side.len() {
                    for two in (0..one).filter(|&two| side[two] != side[one]) {
                        let (a, b) = (self.nodes[one].host, self.nodes[two].host);
                        self.world.borrow_mut().cut(a, b);
                        self.undo_later(Undo::Heal(one, two));
                    }
                }
            }
            Fault::SlowDisk => {
                let memory = self.nodes[at].memory;
                self.world.borrow_mut().memory(memory).slow_down(50);
                self.undo_later(Undo::Speed(at));
            }
            Fault::Campaign => {
                let overrules = self.random.one_in(2);
                self.operate(at, Event::Campaign { overrules })?;
            }
            Fault::Transfer => {
                let to = self.any_node();
                let to = self.nodes[to].id;
                self.operate(at, Event::Transfer { to })?;
            }
            Fault::Change => self.change()?,
        }
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].shard = None;
        self.nodes[at].wake_at = None;
        self.world.borrow_mut().crash(self.nodes[at].host);
        self.undo_later(Undo::Start(at));
    }

    fn power_off(&mut self, at: usize) {
        self.nodes[at].shard = None;
        self.nodes[at].wake_at = None;
        self.world.borrow_mut().power_cut(self.nodes[at].host);
        self.undo_later(Undo::Start(at));
    }

    fn operate(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let now = self.now();
        let node = &mut self.nodes[at];
        let is_running = self.world.borrow().state(node.host) == HostState::Running;
        if let Some(shard) = node.shard.as_mut().filter(|_| is_running) {
            shard.operate(GROUP, event, now);
            return self.turn(at);
        }
        Ok(())
    }

    /// Asks whoever leads for another set of members: one learner more, a learner made a voter, or
    /// a voter less.
    fn change(&mut self) -> Result<(), Violation> {
        let leader = self.nodes.iter().position(|node| {
            node.shard.as_ref().and_then(|shard| shard.core(GROUP)?.leading_term()).is_some()
        });
        let Some(at) = leader else { return Ok(()) };
        let Some(log) = self.nodes[at].shard.as_ref().and_then(|shard| shard.log(GROUP)) else {
            return Ok(());
        };
        let mut target = log.configuration().1.clone();
        target.outgoing = MemberSet::default();
        let pick = self.any_node();
        let chosen = member(self.nodes[pick].id.0);
        let without = |set: &MemberSet, id: MemberId| {
            MemberSet::new(set.iter().filter(|member| member.id != id))
        };
        if target.learners.contains(chosen.id) {
            target.learners = without(&target.learners, chosen.id);
            target.voters = MemberSet::new(target.voters.iter().chain([chosen]));
        } else if target.voters.contains(chosen.id) {
            if target.voters.len() > 2 {
                target.voters = without(&target.voters, chosen.id);
            }
        } else {
            target.learners = MemberSet::new(target.learners.iter().chain([chosen]));
        }
        self.operate(at, Event::ChangeMembers(Box::new(target)))
    }

    fn undo(&mut self, undo: Undo) -> Result<(), Violation> {
        match undo {
            Undo::Start(at) => self.start(at)?,
            Undo::Continue(at) => {
                self.world.borrow_mut().cont(self.nodes[at].host);
                self.wake(at, Duration::ZERO);
            }
            Undo::Heal(one, two) => {
                let (one, two) = (self.nodes[one].host, self.nodes[two].host);
                self.world.borrow_mut().heal(one, two);
            }
            Undo::Speed(at) => {
                let memory = self.nodes[at].memory;
                self.world.borrow_mut().memory(memory).slow_down(1);
            }
        }
        Ok(())
    }

    /// The faults are over: everything that was broken works again.
    fn heal(&mut self) -> Result<(), Violation> {
        for one in 0..self.nodes.len() {
            self.undo(Undo::Continue(one))?;
            self.undo(Undo::Speed(one))?;
            self.undo(Undo::Start(one))?;
            for two in 0..one {
                self.undo(Undo::Heal(one, two))?;
            }
        }
        for client in &mut self.clients {
            client.is_done = true;
        }
        self.after(LOOK, Timer::Look);
        Ok(())
    }

    /// Whether somebody leads, all of whose members hold and have applied all that it holds, and
    /// no client waits.
    fn is_healed(&self) -> bool {
        let view = |node: &'_ Node| {
            let shard = node.shard.as_ref()?;
            let (core, log) = (shard.core(GROUP)?, shard.log(GROUP)?);
            Some((
                core.leading_term(),
                core.commit_index(),
                log.tail().index,
                shard.applied(GROUP)?,
            ))
        };
        if self.clients.iter().any(|client| !client.is_done || client.is_busy()) {
            return false;
        }
        let leaders = self.nodes.iter().filter_map(|node| {
            let (term, commit, tail, applied) = view(node)?;
            (term.is_some() && commit == tail && applied == tail).then_some((term, node, tail))
        });
        let Some((_, leader, tail)) = leaders.max_by_key(|(term, ..)| *term) else {
            return false;
        };
        let Some(log) = leader.shard.as_ref().and_then(|shard| shard.log(GROUP)) else {
            return false;
        };
        let members = log.configuration().1.all();
        self.nodes.iter().filter(|node| members.contains(node.id)).all(|node| {
            view(node).is_some_and(|(_, commit, own, applied)| {
                own == tail && commit == tail && applied == tail
            })
        })
    }
}
