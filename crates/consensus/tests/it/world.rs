//! The world of one script: members, the network between them, virtual time, and a witness that
//! knows what has been committed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Configuration, Duration, Index, Instant, Member as Named, MemberId, Term};
use consensus::{Event, Params, Role};
use logfmt::{Position, RegionLayout};

use crate::{
    member::{Job, Member, Power, Shape0, named},
    net::{Key, Lane, Link, Mail, Posted},
    text,
};

/// How much of what happens a command tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loud {
    /// Who leads, what commits, what is refused.
    Headline,
    /// Every step of the protocol.
    Detail,
    /// What goes on all the time.
    Noise,
}

/// Rounds after which a world that does not come to rest is a bug.
const ROUNDS_MAX: u32 = 200;

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) members: BTreeMap<MemberId, Member>,
    pub(crate) links: BTreeMap<Lane, Link>,
    pub(crate) keys: Vec<Key>,
    pub(crate) mail: Vec<Mail>,
    pub(crate) chains: Vec<Posted>,
    /// Directions in which nothing moves by itself.
    pub(crate) held: BTreeSet<Lane>,
    /// Jobs, by name, that do not run by themselves.
    pub(crate) held_jobs: BTreeSet<(MemberId, String)>,
    pub(crate) last_connection: u64,
    pub(crate) last_key: u64,
    pub(crate) has_sessions: bool,
    /// The script takes single steps: each is told.
    pub(crate) steps: bool,
    pub(crate) loud: Loud,
    pub(crate) out: String,
    shape: Shape0,
    /// What was committed, and in which term.
    committed: BTreeMap<Index, (Position, Term)>,
    leaders: BTreeMap<Term, MemberId>,
}

/// What of a core is told when it changes.
#[derive(PartialEq, Eq)]
struct Seen {
    role: &'static str,
    is_suspecting: bool,
    tails: Vec<(MemberId, Index)>,
}

impl World {
    pub(crate) fn new() -> Self {
        let layout = RegionLayout::new(4096, 16).unwrap();
        Self {
            now: Instant(0),
            members: BTreeMap::new(),
            links: BTreeMap::new(),
            keys: Vec::new(),
            mail: Vec::new(),
            chains: Vec::new(),
            held: BTreeSet::new(),
            held_jobs: BTreeSet::new(),
            last_connection: 0,
            last_key: 0,
            has_sessions: false,
            steps: false,
            loud: Loud::Detail,
            out: String::new(),
            shape: Shape0 { layout, params: Params::default() },
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
        }
    }

    /// Makes a group of `voters` members and connects them.
    pub(crate) fn group(&mut self, voters: u32, slots: u32, params: Params) {
        let layout = RegionLayout::new(self.shape.layout.segment_len(), slots).unwrap();
        self.shape = Shape0 { layout, params };
        let ids = (1..=voters).map(MemberId);
        let configuration = Configuration::of_voters(ids.clone().map(named));
        ids.for_each(|id| self.found(id, &configuration));
        self.connect_all();
        self.settle();
    }

    /// Adds a member that belongs to no group yet.
    pub(crate) fn spare(&mut self, id: MemberId) {
        self.found(id, &Configuration::default());
        self.connect_all();
        self.settle();
    }

    fn found(&mut self, id: MemberId, configuration: &Configuration) {
        let member = Member::found(id, configuration, &self.shape);
        self.members.insert(id, member);
    }

    pub(crate) fn member(&mut self, id: MemberId) -> &mut Member {
        self.members.get_mut(&id).unwrap()
    }

    pub(crate) fn say(&mut self, loud: Loud, line: impl AsRef<str>) {
        if loud <= self.loud {
            self.out.push_str(line.as_ref());
            self.out.push('\n');
        }
    }

    /// Gives a core an event and runs what it wants done, and what follows at once.
    pub(crate) fn feed(&mut self, id: MemberId, event: Event) {
        let mut ready = VecDeque::from([event]);
        while let Some(event) = ready.pop_front() {
            let now = self.now;
            let member = self.members.get_mut(&id).unwrap();
            let before = seen(member);
            let mut effects = Vec::new();
            let view = crate::member::View::of(&member.log);
            member.core.step(now, event, &view, &mut effects);
            let after = seen(member);
            self.tell_changes(id, &before, &after);
            for effect in effects {
                self.run(id, effect, &mut ready);
            }
        }
        self.members[&id].log.assert_invariants();
    }

    pub(crate) fn feed_later(&mut self, id: MemberId, event: Event) {
        self.member(id).jobs.push_back(Job::Tell(event));
    }

    fn tell_changes(&mut self, id: MemberId, before: &Seen, after: &Seen) {
        let term = self.members[&id].core.term();
        match (before.role, after.role) {
            (from, "candidate") if from != "candidate" => {
                self.say(Loud::Headline, format!("{id:?}: is a candidate in {term:?}"));
            }
            ("candidate", "follower") => {
                self.say(Loud::Headline, format!("{id:?}: ends its candidacy"));
            }
            _ => {}
        }
        if after.is_suspecting && !before.is_suspecting {
            let leader = self.members[&id].core.leader();
            let whom = leader.map_or_else(|| "that nobody leads".to_owned(), |m| format!("{m:?}"));
            self.say(Loud::Headline, format!("{id:?}: suspects {whom}"));
        }
        for &(peer, tail) in &after.tails {
            let old = before.tails.iter().find(|(other, _)| *other == peer);
            let old = old.map_or(Index(0), |&(_, tail)| tail);
            if tail != old {
                self.say(Loud::Detail, format!("{id:?}: counts {peer:?} up to {tail}"));
                self.witness_counted(id, peer, tail);
            }
        }
    }

    /// Runs the first job of a member, or the first of that name.
    pub(crate) fn step(&mut self, id: MemberId, name: Option<&str>) -> Result<(), String> {
        let jobs = &mut self.member(id).jobs;
        let at = jobs.iter().position(|job| name.is_none_or(|name| job.name() == name));
        let job = at.and_then(|at| jobs.remove(at)).ok_or("no such job")?;
        self.finish(id, job);
        Ok(())
    }

    fn run_jobs(&mut self, id: MemberId) -> bool {
        let mut moved = false;
        while self.members[&id].runs() {
            let held = &self.held_jobs;
            let mut jobs = self.members[&id].jobs.iter();
            let at = jobs.position(|job| !held.contains(&(id, job.name().to_owned())));
            let Some(job) = at.and_then(|at| self.member(id).jobs.remove(at)) else { break };
            self.finish(id, job);
            moved = true;
        }
        moved
    }

    /// Lets everything happen that is not held, without time passing.
    pub(crate) fn settle(&mut self) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for &id in &ids {
                moved |= self.run_jobs(id);
            }
            self.connect_all();
            moved |= self.move_net();
            for &id in &ids {
                if self.members[&id].observes() {
                    self.observe(id);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
        panic!("the world does not come to rest:\n{}", self.head());
    }

    /// The beginning of what has been told.
    fn head(&self) -> String {
        self.out.lines().take(60).collect::<Vec<_>>().join("\n")
    }

    /// Lets time pass: everybody's deadlines are met in order.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..ROUNDS_MAX {
            self.settle();
            let running = self.members.values().filter(|member| member.runs());
            let next = running.map(|member| member.core.deadline()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            let due: Vec<MemberId> = self
                .members
                .values()
                .filter(|member| member.runs() && member.core.deadline() <= self.now)
                .map(|member| member.id)
                .collect();
            for id in due {
                self.tick(id);
            }
        }
        panic!("time does not pass:\n{}", self.head());
    }

    pub(crate) fn tick(&mut self, id: MemberId) {
        self.now = self.now.max(self.members[&id].core.deadline());
        self.feed(id, Event::Tick);
        self.offer(id);
    }

    /// Shows the core the commands that wait.
    pub(crate) fn offer(&mut self, id: MemberId) {
        let waiting = u32::try_from(self.members[&id].proposals.len()).unwrap();
        if waiting > 0 {
            self.feed(id, Event::Proposed { count: waiting });
        }
    }

    /// The process ends; its memory stays.
    pub(crate) fn crash(&mut self, id: MemberId, exited: bool) {
        let peers: Vec<MemberId> = self.members.keys().copied().filter(|&m| m != id).collect();
        self.member(id).power = Power::Down;
        self.member(id).jobs.clear();
        self.keys.retain(|key| key.owner != id);
        for peer in peers {
            self.disconnect(id, peer, exited);
            self.run_tells(peer);
        }
        self.chains.retain(|posted| posted.lane.0 != id && posted.lane.1 != id);
    }

    /// What was not persisted is gone.
    pub(crate) fn lose_power(&mut self, id: MemberId) {
        self.crash(id, false);
        let member = self.member(id);
        member.region = member.durable.clone();
    }

    pub(crate) fn start(&mut self, id: MemberId) {
        let old = self.members.remove(&id).unwrap();
        let (member, damage) = Member::open(id, old.region, old.files, &old.shape, self.now);
        let (word, log, term) = (member.word, text::log(&member.log), member.core.term());
        self.members.insert(id, member);
        self.say(Loud::Headline, format!("{id:?}: starts in {term:?}, word {word}, {log}"));
        if let Some(damage) = damage {
            let (kind, from) = (damage.kind, damage.from);
            self.say(
                Loud::Headline,
                format!("{id:?}: its log is damaged from {from} on: {kind:?}"),
            );
        }
        self.connect_all();
    }

    /// Runs what a member has been told already.
    pub(crate) fn run_tells(&mut self, id: MemberId) {
        while self.members[&id].runs() && self.step(id, Some("tell")).is_ok() {}
    }

    /// What one member commits, every other has committed as well, or will.
    pub(crate) fn witness_commit(&mut self, id: MemberId, through: Index) {
        let member = &self.members[&id];
        let term = member.core.term();
        let mut index = member.log.checkpoint().index.max(Index(1));
        while index <= through {
            if let Some(position) = member.log.position_at(index, &member.region) {
                let (known, _) = *self.committed.entry(index).or_insert((position, term));
                assert_eq!(known, position, "{id:?} commits another entry {index}\n{}", self.out);
            }
            index = index.next();
        }
    }

    /// One leader per term, with all that was committed in earlier ones.
    pub(crate) fn witness_leader(&mut self, id: MemberId, term: Term) {
        let leader = *self.leaders.entry(term).or_insert(id);
        assert_eq!(leader, id, "two leaders in {term:?}\n{}", self.out);
        let member = &self.members[&id];
        for (&index, &(position, committed_in)) in &self.committed {
            if committed_in < term && member.log.checkpoint().index <= index {
                let own = member.log.position_at(index, &member.region);
                assert_eq!(own, Some(position), "{id:?} leads without {index}\n{}", self.out);
            }
        }
    }

    /// What a leader counts at a member that grants it, that member would find.
    fn witness_counted(&self, id: MemberId, peer: MemberId, tail: Index) {
        let (leader, member) = (&self.members[&id], &self.members[&peer]);
        let granted = member.core.superblock();
        let is_granted = granted.granted_to == Some(id)
            && Some(member.word.term()) == leader.core.leading_term()
            && granted.grant == member.word;
        if !is_granted || member.is_lying || tail < leader.log.checkpoint().index {
            return;
        }
        let mut log = member.log.clone();
        while !log.walk(&member.region, u64::MAX).at_end {}
        let own = leader.log.position_at(tail, &leader.region);
        let has_it = tail < log.checkpoint().index || log.position_at(tail, &member.region) == own;
        let theirs = text::log(&log);
        assert!(has_it, "{id:?} counts {tail} at {peer:?}, which has {theirs}\n{}", self.out);
    }

    pub(crate) fn all_named(&self, ids: &[MemberId]) -> Vec<Named> {
        ids.iter().map(|&id| named(id)).collect()
    }
}

fn seen(member: &Member) -> Seen {
    let (role, tails) = match member.core.role() {
        Role::Follower => ("follower", Vec::new()),
        Role::Candidate(_) => ("candidate", Vec::new()),
        Role::Leader(leader) => ("leader", leader.tails().collect()),
    };
    let line = member.core.control_line(&member.view());
    Seen { role, is_suspecting: line.suspect.counter != 0, tails }
}
