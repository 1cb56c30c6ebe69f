//! The walk over one component with the set of its configurations.

use std::collections::{BTreeMap, VecDeque};

use super::compile::{Effect, Known, Test, Unknown, is_known, known, unknown};
use super::{Instant, Key, Limits, Operation, Value};

/// Running operations with a known answer at one time: the bits of a word.
const RUNNING_MAX: usize = 64;
/// Unknown operations in a row that one missing value is explained by.
const CHAIN_MAX: usize = 64;
/// Ways in which one missing value is explained.
const CHAINS_MAX: usize = 256;
/// Configurations that the first and the second attempt keep.
const FEW: usize = 32;
const MANY: usize = 1_024;
/// Configurations that a counterexample shows.
const STATES_SHOWN: usize = 4;

pub(super) enum Found {
    Order,
    Contradiction { operation: usize, states: Vec<Vec<Value>> },
    Limit(String),
}

/// How many of each class of unknown operations took effect, by class; none is zero.
type Used = Vec<(u32, u32)>;

/// What the registers may be in.
#[derive(Clone, Debug)]
struct Configuration {
    /// Running operations that have taken effect.
    done: u64,
    state: Vec<Value>,
    used: Used,
}

/// Configurations, of which none is as good as another that used up less.
#[derive(Debug, Default)]
struct Set {
    by_state: BTreeMap<(u64, Vec<Value>), Vec<Used>>,
    len: usize,
}

impl Set {
    /// Adds one unless it is no better than what is there; tells whether it was added.
    fn add(&mut self, one: Configuration) -> bool {
        let known = self.by_state.entry((one.done, one.state)).or_default();
        if known.iter().any(|used| is_within(used, &one.used)) {
            return false;
        }
        let before = known.len();
        known.retain(|used| !is_within(&one.used, used));
        known.push(one.used);
        self.len = self.len + known.len() - before;
        true
    }

    fn into_configurations(self) -> Vec<Configuration> {
        let flat = self.by_state.into_iter().flat_map(|((done, state), used)| {
            used.into_iter().map(move |used| Configuration { done, state: state.clone(), used })
        });
        flat.collect()
    }
}

/// Whether `small` uses up no more of any class than `large`.
fn is_within(small: &Used, large: &Used) -> bool {
    small.iter().all(|(class, count)| *count <= count_of(large, *class))
}

fn count_of(used: &Used, class: u32) -> u32 {
    used.binary_search_by_key(&class, |(class, _)| *class).map_or(0, |place| used[place].1)
}

fn use_up(used: &mut Used, class: u32) {
    match used.binary_search_by_key(&class, |(class, _)| *class) {
        Ok(place) => used[place].1 += 1,
        Err(place) => used.insert(place, (class, 1)),
    }
}

/// A class of equal unknown operations.
#[derive(Debug)]
struct Class {
    what: Unknown,
    /// How many were called so far and are not used up in every configuration.
    called: u32,
}

/// A moment in the history of a component.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Invoked(usize),
    Called(u32),
    Completed(usize),
}

struct Search<'a> {
    limits: Limits,
    operations: &'a [&'a Operation],
    knowns: Vec<Option<Known>>,
    classes: Vec<Class>,
    /// Classes on one slot alone, by slot and by what they set; `None` stands for those that add.
    simple: Vec<BTreeMap<Option<Value>, Vec<u32>>>,
    /// Until when an answer or an unknown test may speak of a slot's value.
    mentioned: BTreeMap<(usize, Value), Instant>,
    now: Instant,
    /// Classes on several slots that some known operation can have seen.
    wide: Vec<u32>,
    /// The running operations by their bit.
    running: Vec<Option<usize>>,
    configurations: Vec<Configuration>,
    steps: u64,
    /// When this many configurations are found, no more are looked for.
    enough: usize,
    /// A bound of the chains was met: a contradiction proves nothing any more.
    is_incomplete: bool,
}

/// First keeps few configurations, which finds an order quickly where there is one; only when that
/// ends in nothing keeps all.
pub(super) fn check_component(keys: &[Key], operations: &[&Operation], limits: Limits) -> Found {
    for enough in [FEW, MANY] {
        if let Found::Order = walk(keys, operations, limits, enough) {
            return Found::Order;
        }
    }
    walk(keys, operations, limits, usize::MAX)
}

/// Walks over all moments; stops looking for more configurations at one when there are `enough`.
fn walk(keys: &[Key], operations: &[&Operation], limits: Limits, enough: usize) -> Found {
    let (mut search, moments) = Search::prepare(keys, operations, limits);
    search.enough = enough;
    for moment in moments {
        let ended = match moment {
            Moment::Called(class) => {
                search.classes[class as usize].called += 1;
                None
            }
            Moment::Invoked(operation) => search.invoked(operation).err(),
            Moment::Completed(operation) => search.completed(operation).err(),
        };
        if let Some(found) = ended {
            return found;
        }
    }
    Found::Order
}

impl<'a> Search<'a> {
    /// Sorts the moments; at one time invocations come before completions, so that what touches
    /// counts as simultaneous.
    fn prepare(
        keys: &[Key],
        operations: &'a [&'a Operation],
        limits: Limits,
    ) -> (Self, Vec<Moment>) {
        let mut numbers: BTreeMap<Unknown, u32> = BTreeMap::new();
        let mut moments = Vec::new();
        let mut knowns = Vec::new();
        for (place, operation) in operations.iter().enumerate() {
            if is_known(operation) {
                let complete = operation.complete.expect("known operations have an end");
                assert!(operation.invoke <= complete, "{operation} ends before it begins");
                moments.push((operation.invoke, 0, Moment::Invoked(place)));
                moments.push((complete, 1, Moment::Completed(place)));
                knowns.push(Some(known(keys, operation)));
                continue;
            }
            knowns.push(None);
            if let Some(what) = unknown(keys, operation) {
                let next = u32::try_from(numbers.len()).expect("fewer than 2^32 operations");
                let class = *numbers.entry(what).or_insert(next);
                moments.push((operation.invoke, 0, Moment::Called(class)));
            }
        }
        moments.sort_by_key(|(at, rank, _)| (*at, *rank));
        let mut numbered: Vec<(u32, Unknown)> =
            numbers.into_iter().map(|(what, class)| (class, what)).collect();
        numbered.sort_by_key(|(class, _)| *class);
        let classes: Vec<Class> =
            numbered.into_iter().map(|(_, what)| Class { what, called: 0 }).collect();
        let mut search = Self {
            limits,
            operations,
            knowns,
            classes,
            simple: vec![BTreeMap::new(); keys.len()],
            mentioned: BTreeMap::new(),
            now: Instant(0),
            wide: Vec::new(),
            running: vec![None; RUNNING_MAX],
            configurations: vec![Configuration {
                done: 0,
                state: vec![None; keys.len()],
                used: Vec::new(),
            }],
            steps: 0,
            enough: usize::MAX,
            is_incomplete: false,
        };
        search.sort_classes();
        (search, moments.into_iter().map(|(_, _, moment)| moment).collect())
    }

    fn sort_classes(&mut self) {
        for (class, number) in self.classes.iter().zip(0..) {
            let Some(slot) = class.what.only_slot() else {
                self.wide.push(number);
                continue;
            };
            let sets = class.what.effects.last().and_then(|(_, effect)| match effect {
                Effect::Set(value) => Some(*value),
                Effect::Add(_) => None,
            });
            self.simple[slot].entry(sets).or_default().push(number);
        }
        self.note_mentions();
        let wide = std::mem::take(&mut self.wide);
        self.wide = wide.into_iter().filter(|class| self.may_be_seen(*class)).collect();
    }

    /// Notes how long each value matters to anybody.
    fn note_mentions(&mut self) {
        let mut note = |slot: usize, value: Value, until: Instant| {
            let known = self.mentioned.entry((slot, value)).or_insert(until);
            *known = (*known).max(until);
        };
        for class in &self.classes {
            for (slot, value) in &class.what.tests {
                note(*slot, *value, Instant(u64::MAX));
            }
        }
        for (known, operation) in self.knowns.iter().zip(self.operations) {
            let Some(known) = known else {
                continue;
            };
            let until = operation.complete.expect("known operations have an end");
            for (slot, test) in known.all.iter().chain(known.any.iter().flatten()) {
                match *test {
                    Test::Is(value) | Test::IsNot(value) => note(*slot, value, until),
                    Test::Counts(number) => note(*slot, Some(number), until),
                    Test::Present => {}
                }
            }
        }
    }

    /// Whether a class sets a value of which nobody will speak any more: all such are alike.
    fn is_idle(&self, class: u32, slot: usize) -> bool {
        match self.classes[class as usize].what.effects.last() {
            Some((_, Effect::Set(value))) => {
                self.mentioned.get(&(slot, *value)).is_none_or(|until| *until < self.now)
            }
            Some((_, Effect::Add(_))) | None => false,
        }
    }

    /// Whether any known answer could come from what this class sets. If none, it may as well
    /// never have taken effect.
    fn may_be_seen(&self, class: u32) -> bool {
        let effects = &self.classes[class as usize].what.effects;
        let sees = |(slot, test): &(usize, Test)| {
            effects.iter().any(|(set, effect)| {
                set == slot
                    && match (effect, test) {
                        (Effect::Set(value), test) => test.holds(*value),
                        (Effect::Add(_), _) => true,
                    }
            })
        };
        let feeds_unknown = self.classes.iter().any(|other| {
            other.what.tests.iter().any(|(slot, value)| sees(&(*slot, Test::Is(*value))))
                || other.what.effects.iter().any(|(slot, effect)| {
                    matches!(effect, Effect::Add(_)) && effects.iter().any(|(set, _)| set == slot)
                })
        });
        feeds_unknown
            || self
                .knowns
                .iter()
                .flatten()
                .any(|known| known.all.iter().any(sees) || known.any.iter().flatten().any(sees))
    }

    fn known(&self, operation: usize) -> &Known {
        self.knowns[operation].as_ref().expect("only known operations run")
    }

    fn invoked(&mut self, operation: usize) -> Result<(), Found> {
        let Some(bit) = self.running.iter().position(Option::is_none) else {
            return Err(Found::Limit(format!("more than {RUNNING_MAX} operations ran at once")));
        };
        self.running[bit] = Some(operation);
        let known = self.knowns[operation].as_ref().expect("only known operations run");
        if known.sets.is_empty() {
            for configuration in &mut self.configurations {
                if known.fits(&configuration.state) {
                    configuration.done |= 1 << bit;
                }
            }
        }
        Ok(())
    }

    /// Keeps the configurations in which `operation` has taken effect.
    fn completed(&mut self, operation: usize) -> Result<(), Found> {
        let bit = self.running.iter().position(|running| *running == Some(operation));
        let bit = bit.expect("it was invoked");
        self.now = self.operations[operation].complete.expect("it completes");
        let before = std::mem::take(&mut self.configurations);
        let shown: Vec<Vec<Value>> =
            before.iter().take(STATES_SHOWN).map(|one| one.state.clone()).collect();
        let (mut next, mut seen, mut open) = (Set::default(), Set::default(), VecDeque::new());
        for one in before {
            if one.done >> bit & 1 == 1 {
                next.add(without(one, bit));
            } else if seen.add(one.clone()) {
                open.push_back(one);
            }
        }
        while let Some(one) = open.pop_front() {
            if self.enough <= next.len {
                break;
            }
            for follower in self.followers(&one) {
                if follower.done >> bit & 1 == 1 {
                    next.add(without(follower, bit));
                } else if seen.add(follower.clone()) {
                    open.push_back(follower);
                }
            }
            self.steps += 1;
            if self.limits.configurations_max < next.len + seen.len
                || self.limits.steps_max < self.steps
            {
                return Err(Found::Limit(format!(
                    "{} configurations and {} steps at: {}",
                    next.len + seen.len,
                    self.steps,
                    self.operations[operation]
                )));
            }
        }
        self.running[bit] = None;
        self.configurations = next.into_configurations();
        if self.configurations.is_empty() {
            return Err(self.contradiction(operation, shown));
        }
        self.forget_used();
        Ok(())
    }

    fn contradiction(&self, operation: usize, states: Vec<Vec<Value>>) -> Found {
        if self.is_incomplete {
            let at = self.operations[operation];
            return Found::Limit(format!("too many ways to explain a value before: {at}"));
        }
        Found::Contradiction { operation, states }
    }

    /// What every configuration has used up is not worth remembering in each.
    fn forget_used(&mut self) {
        let Some(first) = self.configurations.first() else {
            return;
        };
        let mut common = first.used.clone();
        for configuration in &self.configurations[1..] {
            common.retain_mut(|(class, count)| {
                *count = (*count).min(count_of(&configuration.used, *class));
                *count > 0
            });
            if common.is_empty() {
                return;
            }
        }
        for (class, count) in common {
            self.classes[class as usize].called -= count;
            for configuration in &mut self.configurations {
                configuration.used.retain_mut(|(used, times)| {
                    *times -= if *used == class { count } else { 0 };
                    *times > 0
                });
            }
        }
    }

    /// The configurations that one running operation, with the unknown ones that it needs, or one
    /// wide unknown operation leads to.
    fn followers(&mut self, from: &Configuration) -> Vec<Configuration> {
        let mut followers = Vec::new();
        for bit in 0..RUNNING_MAX {
            let Some(operation) = self.running[bit] else {
                continue;
            };
            if from.done >> bit & 1 == 1 {
                continue;
            }
            for mut ready in self.make_fit(from, operation) {
                for (slot, value) in &self.known(operation).sets {
                    ready.state[*slot] = *value;
                }
                ready.done |= 1 << bit;
                followers.push(self.read_on(ready));
            }
        }
        for place in 0..self.wide.len() {
            let class = self.wide[place];
            if self.is_free(from, class) {
                let tests = &self.classes[class as usize].what.tests;
                let goals = tests.iter().map(|(slot, value)| (*slot, Test::Is(*value))).collect();
                for mut ready in self.reach(from, goals) {
                    self.apply(&mut ready, class);
                    followers.push(self.read_on(ready));
                }
            }
        }
        followers
    }

    /// Lets every running operation that only reads take effect if it can.
    fn read_on(&self, mut one: Configuration) -> Configuration {
        for (bit, running) in self.running.iter().enumerate() {
            if let Some(operation) = *running
                && one.done >> bit & 1 == 0
                && self.known(operation).sets.is_empty()
                && self.known(operation).fits(&one.state)
            {
                one.done |= 1 << bit;
            }
        }
        one
    }

    fn is_free(&self, from: &Configuration, class: u32) -> bool {
        count_of(&from.used, class) < self.classes[class as usize].called
    }

    fn apply(&self, to: &mut Configuration, class: u32) {
        for (slot, effect) in &self.classes[class as usize].what.effects {
            to.state[*slot] = effect.on(to.state[*slot]);
        }
        use_up(&mut to.used, class);
    }

    /// The configurations, after as few unknown operations as needed, in which an operation's
    /// answer is right.
    fn make_fit(&mut self, from: &Configuration, operation: usize) -> Vec<Configuration> {
        let known = self.known(operation);
        if known.fits(&from.state) {
            return vec![from.clone()];
        }
        let all = known.all.clone();
        match known.any.clone() {
            None => self.reach(from, all),
            Some(any) if any.iter().any(|(slot, test)| test.holds(from.state[*slot])) => {
                self.reach(from, all)
            }
            Some(any) => any
                .into_iter()
                .flat_map(|one| self.reach(from, all.iter().copied().chain([one]).collect()))
                .collect(),
        }
    }

    /// The configurations, after as few simple unknown operations as needed, in which all goals
    /// hold.
    fn reach(&mut self, from: &Configuration, goals: Vec<(usize, Test)>) -> Vec<Configuration> {
        let mut reached = vec![from.clone()];
        for (slot, test) in goals.iter().copied() {
            let mut further = Vec::new();
            for one in reached {
                if test.holds(one.state[slot]) {
                    further.push(one);
                    continue;
                }
                for chain in self.chains(&one, slot, test) {
                    let mut after = one.clone();
                    for class in chain.iter().rev() {
                        self.apply(&mut after, *class);
                    }
                    further.push(after);
                }
            }
            reached = further;
            if CHAINS_MAX < reached.len() {
                self.is_incomplete = true;
                reached.truncate(CHAINS_MAX);
            }
        }
        let holds =
            |one: &Configuration| goals.iter().all(|(slot, test)| test.holds(one.state[*slot]));
        reached.retain(holds);
        reached
    }

    /// Sequences of unknown operations on one slot, last first, that make a test hold.
    fn chains(&mut self, from: &Configuration, slot: usize, test: Test) -> Vec<Vec<u32>> {
        match test {
            Test::Is(value) => self.chains_to(from, slot, &[value]),
            Test::Counts(0) => self.chains_to(from, slot, &[Some(0), None]),
            Test::Counts(number) => self.chains_to(from, slot, &[Some(number)]),
            Test::IsNot(_) | Test::Present => self.any_change(from, slot, test),
        }
    }

    /// Single unknown operations that make a test hold to which many values are right. Of those
    /// that set values nobody speaks of, one stands for all (with the same tests).
    fn any_change(&self, from: &Configuration, slot: usize, test: Test) -> Vec<Vec<u32>> {
        let now = from.state[slot];
        let mut idle: Vec<&[(usize, Value)]> = Vec::new();
        let mut chains = Vec::new();
        for class in self.simple[slot].values().flatten().copied() {
            let what = &self.classes[class as usize].what;
            let after = what.effects.iter().fold(now, |value, (_, effect)| effect.on(value));
            if !(self.is_free(from, class) && what.fits(&from.state) && test.holds(after)) {
                continue;
            }
            if self.is_idle(class, slot) {
                if idle.contains(&what.tests.as_slice()) {
                    continue;
                }
                idle.push(&what.tests);
            }
            chains.push(vec![class]);
        }
        chains
    }

    /// Backwards from the values that are wanted to the one that is there.
    fn chains_to(&mut self, from: &Configuration, slot: usize, wanted: &[Value]) -> Vec<Vec<u32>> {
        let now = from.state[slot];
        let mut chains = Vec::new();
        let mut open: Vec<(Value, Vec<u32>)> =
            wanted.iter().map(|value| (*value, Vec::new())).collect();
        while let Some((target, chain)) = open.pop() {
            if CHAIN_MAX <= chain.len() || CHAINS_MAX <= open.len() + chains.len() {
                self.is_incomplete = true;
                break;
            }
            let by_value = &self.simple[slot];
            let setting = by_value.get(&Some(target)).into_iter().flatten();
            for class in setting.chain(by_value.get(&None).into_iter().flatten()).copied() {
                let taken = chain.iter().filter(|one| **one == class).count() as u64;
                let used = u64::from(count_of(&from.used, class)) + taken;
                let what = &self.classes[class as usize].what;
                if u64::from(what_is_called(&self.classes, class)) <= used {
                    continue;
                }
                let mut longer = chain.clone();
                longer.push(class);
                for before in sources(what, target) {
                    match before {
                        Source::Anything => chains.push(longer.clone()),
                        Source::Value(value) if value == now => chains.push(longer.clone()),
                        Source::Value(value) => open.push((value, longer.clone())),
                    }
                }
            }
        }
        chains
    }
}

fn what_is_called(classes: &[Class], class: u32) -> u32 {
    classes[class as usize].called
}

/// What a slot must hold before an unknown operation so that it holds a given value after.
enum Source {
    Anything,
    Value(Value),
}

/// For classes on one slot alone.
fn sources(what: &Unknown, target: Value) -> Vec<Source> {
    let Some((_, effect)) = what.effects.last() else {
        return Vec::new();
    };
    let test = what.tests.first().map(|(_, value)| *value);
    let is_possible = what.tests.iter().all(|(_, value)| Some(*value) == test);
    match (effect, test, target) {
        _ if !is_possible => Vec::new(),
        (Effect::Set(value), None, _) if *value == target => vec![Source::Anything],
        (Effect::Set(value), Some(before), _) if *value == target => vec![Source::Value(before)],
        (Effect::Set(_), _, _) | (Effect::Add(_), _, None) => Vec::new(),
        (Effect::Add(by), _, Some(sum)) => {
            let before = sum.wrapping_sub(*by);
            let empty = (before == 0).then_some(Source::Value(None));
            [Source::Value(Some(before))].into_iter().chain(empty).collect()
        }
    }
}

fn without(mut one: Configuration, bit: usize) -> Configuration {
    one.done &= !(1 << bit);
    one
}
