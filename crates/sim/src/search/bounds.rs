//! How much of the protocol's behaviour is searched.

use base::{Configuration, Incarnation, Member, MemberId, MemberSet};
use consensus::Params;

/// The bounds of one search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Members; ids from 1.
    pub members: usize,
    /// The highest term.
    pub terms: u8,
    /// Candidacies that begin, in all; a leader that re-elects itself begins one.
    pub campaigns: u8,
    /// Commands that clients propose in all. No-ops come on top.
    pub entries: u8,
    /// Power cuts with a restart, in all.
    pub crashes: u8,
    /// Live connections that break, in all.
    pub resets: u8,
    /// Linearizable reads, in all.
    pub reads: u8,
    /// Membership changes that an operator asks for, in all.
    pub changes: u8,
    /// Whether a follower's background walker runs.
    pub observes: bool,
    /// Whether everybody has a new connection with a restarted member at once.
    pub reconnects_at_once: bool,
    /// Whether the flush behind a walk is a step of its own.
    pub split_flush: bool,
    /// Whether read-backs that were sampled before their connection broke are still delivered.
    pub late_completions: bool,
    /// Whether the steps of a fence that nobody can tell apart are one step.
    pub merges_fences: bool,
    /// Whether all members are alike at first.
    pub is_symmetric: bool,
    /// Every configuration that may stand in a log; the first is the founding one.
    pub configurations: Vec<Configuration>,
    /// The planted fault, in a build that has them all; empty for none.
    pub planted: &'static str,
}

fn set(ids: &[u32]) -> MemberSet {
    MemberSet::new(ids.iter().map(|&id| Member { id: MemberId(id), incarnation: Incarnation(1) }))
}

impl Default for Bounds {
    /// Two terms, a command and a power cut: the search that is meant to be run whole.
    fn default() -> Self {
        Self {
            members: 3,
            terms: 2,
            campaigns: 2,
            entries: 1,
            crashes: 1,
            resets: 0,
            reads: 0,
            changes: 0,
            observes: false,
            reconnects_at_once: true,
            split_flush: false,
            late_completions: true,
            merges_fences: true,
            is_symmetric: true,
            configurations: vec![Configuration { voters: set(&[1, 2, 3]), ..Default::default() }],
            planted: "",
        }
    }
}

impl Bounds {
    /// Three candidacies in up to three terms: three no-ops, nobody loses power.
    #[must_use]
    pub fn elections() -> Self {
        Self { terms: 3, campaigns: 3, entries: 0, crashes: 0, ..Self::default() }
    }

    /// One leader, two power cuts, a command.
    #[must_use]
    pub fn power_cuts() -> Self {
        Self { terms: 1, campaigns: 1, crashes: 2, ..Self::default() }
    }

    /// A leader, its successor and a linearizable read.
    #[must_use]
    pub fn reads() -> Self {
        Self { entries: 0, crashes: 0, reads: 1, ..Self::default() }
    }

    /// A connection breaks under one leader, who is granted the log anew.
    #[must_use]
    pub fn regrants() -> Self {
        Self { terms: 1, campaigns: 1, crashes: 0, resets: 1, ..Self::default() }
    }

    /// Membership: voters 1, 2, 3 become 1, 4, 5, who are learners at first.
    #[must_use]
    pub fn membership() -> Self {
        let first =
            Configuration { voters: set(&[1, 2, 3]), learners: set(&[4, 5]), ..Default::default() };
        let last = Configuration { voters: set(&[1, 4, 5]), ..Default::default() };
        let joint = Configuration { outgoing: set(&[1, 2, 3]), ..last.clone() };
        Self {
            members: 5,
            entries: 0,
            crashes: 0,
            changes: 1,
            is_symmetric: false,
            configurations: vec![first, last, joint],
            ..Self::default()
        }
    }

    /// Limits that never bind: room and windows are not what is searched.
    pub(super) fn params() -> Params {
        Params::default()
    }
}
