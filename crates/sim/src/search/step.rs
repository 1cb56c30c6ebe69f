//! What each choice of the scheduler does: the hardware's part, one event for one core, and the
//! effects that follow from it.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{BootId, Durability, GrantWord, Index, Instant, Term};
use consensus::{Append, Connection, Core, Effect, Event, Fetch, Message, Start};

use logfmt::{Checkpoint, Identity, Superblock};

use super::Bounds;
use super::actions::landings;
use super::check::{self, Broken};
use super::fingerprint::Shapes;
use super::log::ModelLog;
use super::path::{Content, Path, small, small_term};
use super::stale::forget_stale;
use super::state::{
    Action, Envelope, Ghost, Left, Link, Member, Place, Sampled, State, id_of, place_of,
};
use super::wire::{end_link, is_mere, land_all, post, sample, send};

/// Time stands still: no timer fires, and elections are choices.
pub(super) const NOW: Instant = Instant(0);
/// The moment at which a leader that is chosen to lapse looks back on a period without read-backs.
const LATER: Instant = Instant(1 << 50);

/// Applies actions within bounds.
#[derive(Debug)]
pub(super) struct Stepper<'a> {
    pub(super) bounds: &'a Bounds,
    pub(super) shapes: Shapes,
}

/// Why there is no next state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It lies outside the bounds.
    Outside,
    /// An invariant does not hold.
    Broken(Broken),
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl Stepper<'_> {
    /// The state in which everybody is connected and nobody has campaigned.
    pub(super) fn first(&mut self) -> Result<State, Stop> {
        let count = self.bounds.members;
        let configurations: Arc<[_]> = Arc::from(self.bounds.configurations.as_slice());
        let members = (0..count).map(|m| {
            let disk = self.founding(m);
            let core = self.core(m, disk.clone());
            Arc::new(Member {
                shape: self.shapes.of(&core),
                core: Arc::new(core),
                marks: Vec::new(),
                log: ModelLog::new(Arc::clone(&configurations)),
                word: disk.grant,
                disk: Arc::new(disk),
                writing: None,
                walks: false,
                has_stored: false,
                flushes: false,
                walked: None,
                fetch: None,
                connections: vec![0; count],
                read: None,
            })
        });
        let mut state = State {
            members: members.collect(),
            mail: Vec::new(),
            links: (0..count * count).map(|_| Arc::new(Link::default())).collect(),
            lives: vec![0; count * count],
            ghost: Ghost::default(),
            left: Left {
                campaigns: self.bounds.campaigns,
                crashes: self.bounds.crashes,
                resets: self.bounds.resets,
                entries: self.bounds.entries,
                reads: self.bounds.reads,
                changes: self.bounds.changes,
            },
        };
        for m in 0..count {
            self.feed(&mut state, m, Event::Tick)?;
        }
        for a in 0..count {
            for b in a + 1..count {
                self.reconnect(&mut state, a, b)?;
            }
        }
        for m in 0..count {
            self.mark(&mut state, m);
        }
        Ok(state)
    }

    /// The superblock of a member that has never done anything.
    fn founding(&self, m: Place) -> Superblock {
        Superblock {
            generation: 1,
            identity: Identity { member: id_of(m), ..Identity::default() },
            boot: BootId(0),
            mode: Durability::ReadBack,
            segment_len: 1 << 20,
            slot_count: 12,
            term: Term(0),
            vote: None,
            grant: GrantWord::default(),
            granted_to: None,
            hole: None,
            checkpoint: Checkpoint {
                configuration: self.bounds.configurations[0].clone(),
                ..Checkpoint::default()
            },
            segments: Vec::new(),
        }
    }

    /// The state behind `action`, checked.
    pub(super) fn apply(&mut self, state: &State, action: &Action) -> Result<State, Stop> {
        let mut next = state.clone();
        self.act(&mut next, action)?;
        self.rush(&mut next)?;
        check::invariants(&next, self.bounds)?;
        for (m, old) in state.members.iter().enumerate() {
            if !Arc::ptr_eq(old, &next.members[m]) {
                self.mark(&mut next, m);
            }
        }
        Ok(next)
    }

    fn mark(&self, state: &mut State, m: Place) {
        let marks = state.members[m].marks(&self.shapes.namings);
        state.member_mut(m).marks = marks;
    }

    /// Does at once what nobody could tell from doing it later: the walk behind a stored word when
    /// there is one way for writes to have landed, and the superblock when no chain and no power
    /// cut can come between.
    fn rush(&mut self, state: &mut State) -> Result<(), Stop> {
        let mut m = 0;
        while self.bounds.merges_fences && m < state.count() {
            let member = &state.members[m];
            let is_fenced = member.has_stored;
            if is_fenced && member.walks {
                let mut ends = landings(state, m);
                if let (Some(ends), true) = (ends.pop(), ends.is_empty()) {
                    self.walk(state, m, &ends)?;
                    continue;
                }
            } else if is_fenced && member.writing.is_some() && !is_watched(state, m) {
                self.written(state, m)?;
                m = 0;
                continue;
            }
            m += 1;
        }
        forget_stale(state);
        Ok(())
    }

    fn act(&mut self, state: &mut State, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Campaign(m) => self.feed(state, *m, Event::Campaign { overrules: true }),
            Action::Lapse(m) => self.feed(state, *m, Event::Tick),
            Action::Walk(m, ends) => self.walk(state, *m, ends),
            Action::Observe(m, ends) => {
                land_all(state, *m, ends);
                let believed = Index(u64::from(state.member_mut(*m).log.walk()));
                self.feed(state, *m, Event::Observed { believed })
            }
            Action::Walked(m) => self.walked(state, *m),
            Action::Flush(m) => {
                let member = state.member_mut(*m);
                member.flushes = false;
                member.log.flush();
                self.feed(state, *m, Event::Flushed)
            }
            Action::Written(m) => self.written(state, *m),
            Action::Persist(m) => {
                let event = persist(state, *m);
                self.feed(state, *m, event)
            }
            Action::Propose(m) => {
                state.left.entries -= 1;
                self.feed(state, *m, Event::Proposed { count: 1 })
            }
            Action::Deliver(at) => {
                let envelope = Arc::unwrap_or_clone(state.mail.remove(*at));
                let Envelope { from, to, connection, message } = envelope;
                let (peer, connection) = (id_of(from), Connection(connection));
                self.feed(state, to, Event::Received { peer, connection, message })
            }
            Action::Sample(a, b) => {
                sample(state, *a, *b);
                while self.bounds.reads == 0 && is_mere(state, *a, *b) {
                    sample(state, *a, *b);
                }
                Ok(())
            }
            Action::Complete(a, b) => self.complete(state, *a, *b),
            Action::Fetch(m) => self.fetched(state, *m),
            Action::Restart(m, ends) => self.restart(state, *m, ends),
            Action::Reconnect(a, b) => self.reconnect(state, *a, *b),
            Action::Reset(a, b) => {
                state.left.resets -= 1;
                self.reconnect(state, *a, *b)
            }
            Action::Read(m) => {
                let upto = u64::from(self.bounds.reads - state.left.reads) + 1;
                state.left.reads -= 1;
                state.member_mut(*m).read = Some(state.ghost.committed.len());
                self.feed(state, *m, Event::ReadsWaiting { upto })
            }
            Action::Change(m, number) => {
                state.left.changes -= 1;
                let target = self.bounds.configurations[usize::from(*number)].clone();
                self.feed(state, *m, Event::ChangeMembers(Box::new(target)))
            }
        }
    }

    fn walk(&mut self, state: &mut State, m: Place, ends: &[(GrantWord, u8)]) -> Result<(), Stop> {
        land_all(state, m, ends);
        let member = state.member_mut(m);
        member.walks = false;
        let believed = Index(u64::from(member.log.walk()));
        let ends = member.log.seal();
        if member.has_stored && self.bounds.merges_fences {
            return self.feed(state, m, Event::Walked { believed, ends });
        }
        // What it will report is settled, and the word may still be the old one.
        member.walked = Some((small(believed), ends));
        Ok(())
    }

    fn walked(&mut self, state: &mut State, m: Place) -> Result<(), Stop> {
        let Some((believed, ends)) = state.member_mut(m).walked.take() else { return Ok(()) };
        let believed = Index(u64::from(believed));
        self.feed(state, m, Event::Walked { believed, ends })
    }

    fn written(&mut self, state: &mut State, m: Place) -> Result<(), Stop> {
        let member = state.member_mut(m);
        let Some(superblock) = member.writing.take() else { return Ok(()) };
        check::superblock(&member.disk, &superblock)?;
        let generation = superblock.generation;
        member.disk = superblock;
        self.feed(state, m, Event::SuperblockWritten { generation })?;
        let member = state.member_mut(m);
        let disk = Arc::clone(&member.disk);
        let core = Arc::clone(&member.core);
        member.log.settle(&disk, core.superblock());
        state.forget_vain_writes(m);
        Ok(())
    }

    /// Delivers the read-back in front, and with it those of chains without writes behind it.
    fn complete(&mut self, state: &mut State, a: Place, b: Place) -> Result<(), Stop> {
        loop {
            let Sampled { id, connection, word, .. } = state.link_mut(a, b).sampled.remove(0);
            let (peer, connection) = (id_of(b), Connection(connection));
            self.feed(state, a, Event::ReadBack { peer, connection, chain: id, word })?;
            let next = state.link(a, b).sampled.first();
            if !next.is_some_and(|next| next.is_mere && self.bounds.reads == 0) {
                return Ok(());
            }
        }
    }

    fn fetched(&mut self, state: &mut State, m: Place) -> Result<(), Stop> {
        let member = state.member_mut(m);
        let Some(fetch) = member.fetch.take() else { return Ok(()) };
        let Fetch { from, through, .. } = *fetch;
        let is_placed = member.log.adopt(small(from), Path(through.digest.0));
        if let (true, Some(at)) = (is_placed, member.log.own()) {
            let own = &mut member.log.segments[at];
            own.durable = own.landed.len();
        }
        self.feed(state, m, if is_placed { Event::Fetched } else { Event::FetchFailed })
    }

    fn restart(
        &mut self,
        state: &mut State,
        m: Place,
        ends: &[(GrantWord, u8)],
    ) -> Result<(), Stop> {
        state.left.crashes -= 1;
        land_all(state, m, ends);
        let count = state.count();
        let member = state.member_mut(m);
        let left = |word| ends.iter().find(|(known, _)| *known == word).map_or(0, |end| end.1);
        member.log = member.log.restored(&member.disk, |segment| left(segment.word));
        member.core = Arc::new(self.core(m, (*member.disk).clone()));
        member.word = member.disk.grant.revoked();
        (member.writing, member.fetch, member.read) = (None, None, None);
        (member.walks, member.walked, member.flushes) = (false, None, false);
        member.connections = vec![0; count];
        state.mail.retain(|envelope| envelope.to != m);
        for peer in (0..count).filter(|&peer| peer != m) {
            end_link(state, m, peer);
            state.link_mut(m, peer).sampled.clear();
            end_link(state, peer, m);
        }
        self.feed(state, m, Event::Tick)?;
        state.forget_vain_writes(m);
        for peer in (0..count).filter(|&peer| peer != m && self.bounds.reconnects_at_once) {
            self.reconnect(state, m, peer)?;
        }
        Ok(())
    }

    /// A core that starts from this superblock.
    fn core(&self, m: Place, superblock: Superblock) -> Core {
        let start = Start { superblock, damaged: None, seed: m as u64 };
        Core::new(Bounds::params(), start, NOW)
    }

    /// Gives two members a new connection; whoever still has the old one loses it.
    pub(super) fn reconnect(&mut self, state: &mut State, a: Place, b: Place) -> Result<(), Stop> {
        for (from, to) in [(a, b), (b, a)] {
            end_link(state, from, to);
            if !self.bounds.late_completions {
                state.link_mut(from, to).sampled.clear();
            }
        }
        state.mail.retain(|mail| (mail.from, mail.to) != (a, b) && (mail.from, mail.to) != (b, a));
        for (side, other) in [(a, b), (b, a)] {
            let old = std::mem::take(&mut state.member_mut(side).connections[other]);
            if old == 0 {
                continue;
            }
            let (peer, connection) = (id_of(other), Connection(old));
            self.feed(state, side, Event::Disconnected { peer, connection, exited: true })?;
            if state.members[side].fetch.as_ref().is_some_and(|fetch| fetch.peer == peer) {
                state.member_mut(side).fetch = None;
                self.feed(state, side, Event::FetchFailed)?;
            }
        }
        let number = state.next_connection(a, b);
        state.member_mut(a).connections[b] = number;
        state.member_mut(b).connections[a] = number;
        for (side, other) in [(a, b), (b, a)] {
            let (peer, connection) = (id_of(other), Connection(number));
            self.feed(state, side, Event::Connected { peer, connection })?;
        }
        for m in [a, b] {
            state.forget_vain_writes(m);
        }
        Ok(())
    }

    /// One event for one core, then its effects and the events that answer themselves.
    pub(super) fn feed(&mut self, state: &mut State, m: Place, event: Event) -> Result<(), Stop> {
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        while let Some(event) = events.pop_front() {
            // A fence that nobody asked for is the member's own.
            let is_asked = matches!(
                event,
                Event::SuperblockWritten { .. }
                    | Event::Received {
                        message: Message::Vote { .. } | Message::Follow { .. },
                        ..
                    }
            );
            let member = state.member_mut(m);
            let before = member.core.commit_index();
            let led = member.core.leading_term();
            step_core(Arc::make_mut(&mut member.core), event, &member.log, &mut effects)?;
            check::commit_order(before, member.core.commit_index())?;
            if !is_asked && effects.contains(&Effect::Walk) {
                let left = state.left.campaigns.checked_sub(1);
                state.left.campaigns = left.ok_or(Stop::Outside)?;
            }
            for effect in effects.drain(..) {
                if let Effect::Commit { through } = effect {
                    // Who commits its own removal leads no more when the step is over.
                    let leads = led.or_else(|| state.members[m].core.leading_term());
                    check::committed(state, m, (leads, small(through)))?;
                    continue;
                }
                self.run(state, m, effect, &mut events)?;
            }
        }
        let member = state.member_mut(m);
        member.shape = self.shapes.of(&member.core);
        let term = small_term(member.core.grant_word().term());
        if term > self.bounds.terms { Err(Stop::Outside) } else { Ok(()) }
    }

    fn run(
        &self,
        state: &mut State,
        m: Place,
        effect: Effect,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Stop> {
        let member = state.member_mut(m);
        match effect {
            Effect::StoreGrant { word } => member.word = word,
            Effect::Walk => {
                member.has_stored = member.word == member.core.grant_word();
                member.walks = true;
                member.fetch = None;
            }
            Effect::FlushLog if self.bounds.split_flush => member.flushes = true,
            Effect::FlushLog => {
                member.log.flush();
                events.push_back(Event::Flushed);
            }
            Effect::WriteSuperblock(superblock) => member.writing = Some(Arc::from(superblock)),
            Effect::Open(record) => {
                let is_own = member.core.superblock().granted_to == Some(id_of(m));
                member.log.open(&record, is_own);
            }
            Effect::Revoke(slot) => events.push_back(Event::Released { slot }),
            Effect::Append { term, commit, what, .. } => {
                append(state, m, (small_term(term), small(commit)), &what)?;
                events.push_back(Event::Appended { durable: Index(0) });
                if self.bounds.merges_fences && state.left.crashes == 0 {
                    events.push_back(persist(state, m));
                }
            }
            Effect::Spread => events.push_back(Event::Spread),
            Effect::Chain(chain) => {
                post(state, m, &chain);
                let to = place_of(chain.peer);
                let is_alone = state.link(m, to).sampled.is_empty() && is_mere(state, m, to);
                if self.bounds.reads == 0 && is_alone {
                    // Nothing depends on when it is executed but how soon a leader is deposed.
                    sample(state, m, to);
                    if let Some(Sampled { id, connection, word, .. }) =
                        state.link_mut(m, to).sampled.pop()
                    {
                        let (peer, connection) = (chain.peer, Connection(connection));
                        events.push_back(Event::ReadBack { peer, connection, chain: id, word });
                    }
                }
            }
            Effect::Send { peer, connection, message } => {
                send(state, m, place_of(peer), connection, message);
            }
            Effect::Fetch(fetch) => member.fetch = Some(Arc::from(fetch)),
            Effect::ReadsReady { index, .. } => check::read(state, m, small(index))?,
            Effect::ReadsRefused { .. } => member.read = None,
            Effect::Leads { term } => check::leads(state, m, small_term(term))?,
            Effect::TakeCheckpoint => events.push_back(Event::CheckpointFailed),
            // Nothing is trimmed or installed within the bounds; connections break by choice, and
            // refusals change nothing; commits are checked where they are met.
            Effect::Trim(_)
            | Effect::ReadControl { .. }
            | Effect::Commit { .. }
            | Effect::Reconnect { .. }
            | Effect::ForgetChains { .. }
            | Effect::ProposalsRefused { .. }
            | Effect::ChangeRefused { .. }
            | Effect::Deposed { .. }
            | Effect::CheckpointNamed(_)
            | Effect::FetchState { .. }
            | Effect::InstallState(_) => {}
        }
        Ok(())
    }
}

/// Steps a core. An assertion of its own that fails is a violation like any other, where the build
/// unwinds.
fn step_core(
    core: &mut Core,
    event: Event,
    log: &ModelLog,
    effects: &mut Vec<Effect>,
) -> Result<(), Stop> {
    let now = if event == Event::Tick && core.leading_term().is_some() { LATER } else { NOW };
    let step = std::panic::AssertUnwindSafe(|| core.step(now, event, log, effects));
    std::panic::catch_unwind(step).map_err(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Stop::Broken(Broken::new("an assertion of the core", text.to_owned()))
    })
}

/// The own entries are durable.
fn persist(state: &mut State, m: Place) -> Event {
    let member = state.member_mut(m);
    if let Some(at) = member.log.own() {
        let own = &mut member.log.segments[at];
        own.durable = own.landed.len();
    }
    Event::Persisted { through: Index(u64::from(member.log.path.len())) }
}

/// Whether somebody can notice that the superblock of this fence is not durable yet: a chain that
/// reads the new word, before a power cut takes it back.
fn is_watched(state: &State, m: Place) -> bool {
    let reads = |from| state.link(from, m).chains.iter().any(|posted| !posted.is_dead);
    state.left.crashes > 0 && (0..state.count()).any(reads)
}

fn append(
    state: &mut State,
    m: Place,
    (term, commit): (u8, u8),
    what: &Append,
) -> Result<(), Stop> {
    let member = state.member_mut(m);
    let (content, tag, count) = match what {
        Append::NoOp => (Content::NoOp, 0, 1),
        Append::Commands(count) => (Content::Command, 0, *count),
        Append::Configuration(configuration) => {
            let number = member.log.number_of(configuration).ok_or(Stop::Outside)?;
            (Content::Configuration, number, 1)
        }
    };
    for _ in 0..count {
        let path = member.log.path.push(term, content, tag).ok_or(Stop::Outside)?;
        member.log.append(path, commit);
    }
    Ok(())
}
