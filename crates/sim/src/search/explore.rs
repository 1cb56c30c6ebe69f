//! Breadth first, level by level, on several threads: the first violation found has a shortest
//! trace.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::actions::actions;
use super::check::Broken;
use super::fingerprint::{Mix, Shapes, fingerprint, namings};
use super::state::{Action, State, describe};
use super::step::{Stepper, Stop};
use super::{Bounds, Outcome, Progress, Trace};

/// States that a worker takes at a time.
const CHUNK: usize = 256;
/// Parts of the set of known states, each with its own lock.
const SHARDS: usize = 256;

/// From each known state to the one it was first reached from.
struct Known(Vec<Mutex<HashMap<u64, u64, BuildHasherDefault<Mix>>>>);

impl Known {
    fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn shard(&self, state: u64) -> &Mutex<HashMap<u64, u64, BuildHasherDefault<Mix>>> {
        &self.0[usize::try_from(state >> 56).unwrap_or(0) % SHARDS]
    }

    /// Whether `state` was not known.
    fn insert(&self, state: u64, parent: u64) -> bool {
        let mut shard = self.shard(state).lock().unwrap_or_else(PoisonError::into_inner);
        let count = shard.len();
        shard.entry(state).or_insert(parent);
        shard.len() > count
    }

    fn parent(&self, state: u64) -> Option<u64> {
        let shard = self.shard(state).lock().unwrap_or_else(PoisonError::into_inner);
        shard.get(&state).copied()
    }
}

/// A violation: the state before it, what was done there, and what broke.
struct Found {
    before: u64,
    action: Action,
    broken: Broken,
}

/// What the workers share.
struct Shared<'a, P> {
    bounds: &'a Bounds,
    known: Known,
    states: AtomicU64,
    transitions: AtomicU64,
    stops: AtomicBool,
    found: Mutex<Option<Found>>,
    progress: P,
}

/// Searches everything within `bounds`.
pub(super) fn explore<P>(bounds: &Bounds, threads: usize, progress: P) -> Outcome
where
    P: Fn(&Progress) -> bool + Sync,
{
    let shared = Shared {
        bounds,
        known: Known::new(),
        states: AtomicU64::new(1),
        transitions: AtomicU64::new(0),
        stops: AtomicBool::new(false),
        found: Mutex::new(None),
        progress,
    };
    let mut frontier = Vec::new();
    let mut depth = 0;
    let first = match begin(bounds) {
        Ok(first) => first,
        Err(broken) => {
            return Outcome { violation: Some(Trace::at_once(broken)), ..Outcome::none() };
        }
    };
    let names = namings(bounds.members, bounds.is_symmetric);
    let root = fingerprint(&first, &names);
    shared.known.insert(root, root);
    frontier.push(vec![(root, first)]);
    let mut steppers: Vec<Stepper<'_>> = (0..threads.max(1)).map(|_| stepper(bounds)).collect();
    while !frontier.is_empty() && !shared.stops.load(Ordering::Relaxed) {
        depth += 1;
        frontier = level(&shared, frontier, depth, &mut steppers);
    }
    let is_stopped = shared.stops.load(Ordering::Relaxed);
    let found = shared.found.lock().unwrap_or_else(PoisonError::into_inner).take();
    Outcome {
        states: shared.states.load(Ordering::Relaxed),
        transitions: shared.transitions.load(Ordering::Relaxed),
        depth,
        finished: !is_stopped,
        violation: found.map(|found| retrace(bounds, &shared.known, root, &found)),
    }
}

/// The state in which everybody is connected and nobody has campaigned.
fn begin(bounds: &Bounds) -> Result<State, Broken> {
    plant(bounds);
    let mut stepper = stepper(bounds);
    match stepper.first() {
        Ok(state) => Ok(state),
        Err(Stop::Broken(broken)) => Err(broken),
        Err(Stop::Outside) => Err(Broken::new("bounds", "the first state is outside".to_owned())),
    }
}

fn stepper(bounds: &Bounds) -> Stepper<'_> {
    let names = namings(bounds.members, bounds.is_symmetric);
    Stepper { bounds, shapes: Shapes::new(names, bounds.reads > 0) }
}

fn plant(bounds: &Bounds) {
    #[cfg(mutant = "all")]
    base::mutant::plant(bounds.planted);
    #[cfg(not(mutant = "all"))]
    let _ = bounds;
}

type Chunk = Vec<(u64, State)>;

/// Expands one level, one thread per stepper, and returns the next.
fn level<P>(
    shared: &Shared<'_, P>,
    frontier: Vec<Chunk>,
    depth: u32,
    steppers: &mut [Stepper<'_>],
) -> Vec<Chunk>
where
    P: Fn(&Progress) -> bool + Sync,
{
    let waiting = Mutex::new(frontier);
    let next = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for stepper in steppers {
            scope.spawn(|| {
                plant(shared.bounds);
                work(shared, depth, stepper, (&waiting, &next));
            });
        }
    });
    next.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Expands chunks until none waits.
fn work<P>(
    shared: &Shared<'_, P>,
    depth: u32,
    stepper: &mut Stepper<'_>,
    (waiting, next): (&Mutex<Vec<Chunk>>, &Mutex<Vec<Chunk>>),
) where
    P: Fn(&Progress) -> bool + Sync,
{
    let mut out = Vec::new();
    while !shared.stops.load(Ordering::Relaxed) {
        let chunk = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(chunk) = chunk else { break };
        expand(shared, stepper, chunk, &mut out);
        // In pieces: chunks that grew with every level would leave one worker with all of it.
        while out.len() >= CHUNK {
            let full = out.split_off(out.len() - CHUNK);
            next.lock().unwrap_or_else(PoisonError::into_inner).push(full);
        }
        report(shared, depth);
    }
    if !out.is_empty() {
        next.lock().unwrap_or_else(PoisonError::into_inner).push(out);
    }
}

fn report<P>(shared: &Shared<'_, P>, depth: u32)
where
    P: Fn(&Progress) -> bool + Sync,
{
    let progress = Progress {
        states: shared.states.load(Ordering::Relaxed),
        transitions: shared.transitions.load(Ordering::Relaxed),
        depth,
    };
    if !(shared.progress)(&progress) {
        shared.stops.store(true, Ordering::Relaxed);
    }
}

fn expand<P>(shared: &Shared<'_, P>, stepper: &mut Stepper<'_>, chunk: Chunk, out: &mut Chunk)
where
    P: Fn(&Progress) -> bool + Sync,
{
    for (before, state) in chunk {
        for action in actions(&state, shared.bounds) {
            let next = match stepper.apply(&state, &action) {
                Ok(next) => next,
                Err(Stop::Outside) => continue,
                Err(Stop::Broken(broken)) => {
                    let found = Found { before, action, broken };
                    let mut first = shared.found.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(found);
                    shared.stops.store(true, Ordering::Relaxed);
                    return;
                }
            };
            shared.transitions.fetch_add(1, Ordering::Relaxed);
            let name = fingerprint(&next, &stepper.shapes.namings);
            if shared.known.insert(name, before) {
                shared.states.fetch_add(1, Ordering::Relaxed);
                out.push((name, next));
            }
        }
    }
}

/// Finds the way to a violation again, from state to state.
fn retrace(bounds: &Bounds, known: &Known, root: u64, found: &Found) -> Trace {
    let mut names = Vec::new();
    let mut name = found.before;
    while name != root {
        names.push(name);
        name = known.parent(name).unwrap_or(root);
    }
    let mut trace = Trace::at_once(found.broken.clone());
    let namings = namings(bounds.members, bounds.is_symmetric);
    let mut stepper = stepper(bounds);
    let Ok(mut state) = stepper.first() else { return trace };
    for &name in names.iter().rev() {
        let next = actions(&state, bounds).into_iter().find_map(|action| {
            let next = stepper.apply(&state, &action).ok()?;
            (fingerprint(&next, &namings) == name).then_some((action, next))
        });
        let Some((action, next)) = next else { return trace };
        trace.steps.push(line(&action, &state, &next));
        state = next;
    }
    trace.steps.push(describe(&found.action, &state));
    trace
}

/// One step as a reader sees it: what was done, and what it changed at which member.
fn line(action: &Action, before: &State, after: &State) -> String {
    let mut text = describe(action, before);
    for (m, (old, new)) in before.members.iter().zip(&after.members).enumerate() {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            text.push_str(&format!("\n      m{}: {new}", m + 1));
        }
    }
    text
}
