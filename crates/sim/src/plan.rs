//! What a schedule does, drawn from its seed.

use base::{Durability, Duration, Random};
use consensus::Params;
use logfmt::RegionLayout;

use crate::{
    client::Habits,
    fabric::FabricOptions,
    node::{Setup, member},
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `SIGKILL`, and a restart later.
    Kill,
    /// `SIGSTOP`, and `SIGCONT` later.
    Stop,
    /// Power off, and on later.
    Power,
    /// Power off everywhere at once, and on later.
    PowerAll,
    /// A link is cut, and mended later.
    Cut,
    /// One direction of a link is cut, and mended later.
    CutOneWay,
    /// The members fall into two parts that do not see each other; link by link they meet again.
    Split,
    /// A disk is slow for a while.
    SlowDisk,
    /// A member campaigns although nobody is gone.
    Campaign,
    /// Leadership is handed over.
    Transfer,
    /// Members are added, promoted or removed.
    Change,
}

/// A whole schedule but for what chance decides on the way.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed it was drawn from, and everything else will be.
    pub seed: u64,
    /// What the members have in common.
    pub setup: Setup,
    /// Founding members; ids count from 1.
    pub members: u32,
    /// Hosts that may join later.
    pub spares: u32,
    /// How the network behaves.
    pub fabric: FabricOptions,
    /// Clients.
    pub clients: u32,
    /// How they behave.
    pub habits: Habits,
    /// How long faults happen.
    pub trouble: Duration,
    /// How long they take to make way for the next, on average.
    pub fault_every: Duration,
    /// Which faults.
    pub faults: Vec<Fault>,
    /// How often a loop that found nothing to do looks again.
    pub poll: Duration,
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Plan {
    /// The schedule of a seed; with `members` given, for so many.
    #[must_use]
    pub fn of_seed(seed: u64, members: Option<u32>) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let usual = [3, 3, 3, 3, 3, 5, 5, 5, 1, 2, 4, 7];
        let members = members.unwrap_or_else(|| *pick(&mut random, &usual));
        let mode = *pick(
            &mut random,
            &[Durability::Sync, Durability::ReadBack, Durability::Platform, Durability::Process],
        );
        let spares = if random.one_in(3) { 2 } else { 0 };
        let slots = 10 + 2 * u32::try_from(random.below(8)).unwrap_or(0);
        let segment_len = *pick(&mut random, &[4096, 8192, 16384]);
        let layout = RegionLayout::new(segment_len, slots).expect("within the simulator's limits");
        let params = Params {
            suspicion_timeout: ms(4 + random.below(12)),
            chains_max: 1 + usize::try_from(random.below(8)).unwrap_or(0),
            window_bytes_max: 4096 << random.below(5),
            batch_bytes_max: 1024 << random.below(4),
            uncommitted_max: 64,
        };
        let founders = (1..=members).map(member);
        let configuration = base::Configuration::of_voters(founders);
        let session_ttl = if random.one_in(4) { ms(30) } else { Duration::from_secs(60) };
        let mut fabric = FabricOptions::default();
        fabric.caps.message_max = 256 << 10;
        fabric.caps.reads_max = 4 + u32::try_from(random.below(28)).unwrap_or(0);
        fabric.late_after_restart = random.one_in(2);
        Self {
            seed,
            setup: Setup { mode, layout, params, session_ttl, configuration },
            members,
            spares,
            fabric,
            clients: 3 + u32::try_from(random.below(4)).unwrap_or(0),
            habits: Habits {
                keys: 1 + random.below(6),
                patience: ms(8),
                rest: Duration::from_micros(20 + random.below(400)),
                plain_one_in: 4,
            },
            trouble: ms(120 + random.below(120)),
            fault_every: ms(2 + random.below(12)),
            faults: faults(&mut random, mode, spares > 0),
            poll: Duration::from_micros(40 + random.below(100)),
        }
    }
}

/// What a plan is bent towards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// Nothing in particular.
    #[default]
    All,
    /// Changes of members while elections go on.
    Membership,
    /// Leader upon leader, each cut off before it gets far.
    Elections,
}

impl Plan {
    /// The schedule of a seed, bent towards something.
    #[must_use]
    pub fn focused(seed: u64, members: Option<u32>, focus: Focus) -> Self {
        // Three that may become five: with one change, two majorities can miss each other.
        let founders = if focus == Focus::Membership { members.or(Some(3)) } else { members };
        let mut plan = Self::of_seed(seed, founders);
        if focus == Focus::Elections {
            plan.fault_every = Duration::from_micros(150 + 100 * (seed % 8));
            plan.trouble = ms(60);
            // One entry a chain: leaders die between an entry and the next.
            plan.setup.params.batch_bytes_max = 64;
            plan.setup.params.chains_max = 1;
            plan.faults = vec![Fault::Campaign, Fault::Campaign, Fault::Cut, Fault::CutOneWay];
            if seed.is_multiple_of(2) {
                plan.faults.push(Fault::Kill);
            }
        }
        if focus == Focus::Membership {
            plan.spares = 2;
            plan.fault_every = ms(1 + seed % 3);
            plan.faults = vec![Fault::Change, Fault::Change, Fault::Campaign, Fault::Split];
            if seed.is_multiple_of(2) {
                plan.faults.push(Fault::Kill);
            }
        }
        plan
    }
}

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[usize::try_from(random.below(from.len() as u64)).unwrap_or(0)]
}

/// A few kinds of faults, so that each schedule tries their combinations more deeply than all
/// kinds at once would.
fn faults(random: &mut Random, mode: Durability, has_spares: bool) -> Vec<Fault> {
    let mut kinds = vec![
        Fault::Kill,
        Fault::Stop,
        Fault::Cut,
        Fault::CutOneWay,
        Fault::SlowDisk,
        Fault::Campaign,
        Fault::Transfer,
    ];
    if mode != Durability::Process {
        kinds.extend([Fault::Power, Fault::PowerAll]);
    }
    if has_spares {
        kinds.push(Fault::Change);
    }
    let wanted = 2 + usize::try_from(random.below(5)).unwrap_or(0);
    while kinds.len() > wanted {
        let at = usize::try_from(random.below(kinds.len() as u64)).unwrap_or(0);
        kinds.swap_remove(at);
    }
    if has_spares && !kinds.contains(&Fault::Change) {
        kinds.push(Fault::Change);
    }
    kinds
}
