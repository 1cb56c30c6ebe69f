//! Who the members of a group are, and what a quorum of them is.

use crate::{Incarnation, MemberId};

/// The most members (voters, outgoing voters and learners together) of one group.
pub const MEMBERS_MAX: usize = 16;

/// A member as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// The life of its region; a region with another one is refused under this id.
    pub incarnation: Incarnation,
}

/// A sorted set of members without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberSet(Vec<Member>);

impl MemberSet {
    /// The set of `members`, in whatever order they come; of two with one id the first stays.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut sorted: Vec<Member> = members.into_iter().collect();
        sorted.sort_by_key(|member| member.id);
        sorted.dedup_by_key(|member| member.id);
        Self(sorted)
    }

    /// The members in ascending order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = Member> + '_ {
        self.0.iter().copied()
    }

    /// The ids in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.0.iter().map(|member| member.id)
    }

    /// Whether `id` is in the set.
    #[must_use]
    pub fn contains(&self, id: MemberId) -> bool {
        self.find(id).is_some()
    }

    /// The member with this id.
    #[must_use]
    pub fn find(&self, id: MemberId) -> Option<Member> {
        self.0.iter().find(|member| member.id == id).copied()
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many members a quorum has: `floor(n/2) + 1`.
    #[must_use]
    pub const fn quorum(&self) -> usize {
        self.0.len() / 2 + 1
    }
}

/// Voters, the voters that a joint change is replacing, and learners.
///
/// While `outgoing` is not empty the configuration is joint: a decision needs a quorum of `voters`
/// and a quorum of `outgoing`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// The voters; during a joint change the incoming ones.
    pub voters: MemberSet,
    /// The voters before the joint change; empty when the configuration is not joint.
    pub outgoing: MemberSet,
    /// Members that get the log but are not counted.
    pub learners: MemberSet,
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// There is no voter.
    NoVoter,
    /// More than [`MEMBERS_MAX`] members.
    TooMany,
    /// A learner that also votes.
    LearnerVotes(MemberId),
    /// The id 0, or one id under two incarnations.
    BadMember(MemberId),
}

impl Configuration {
    /// A configuration of these voters and nobody else.
    #[must_use]
    pub fn of_voters(members: impl IntoIterator<Item = Member>) -> Self {
        Self { voters: MemberSet::new(members), ..Self::default() }
    }

    /// Whether a change is half done.
    #[must_use]
    pub const fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether `id` votes, in either half.
    #[must_use]
    pub fn is_voter(&self, id: MemberId) -> bool {
        self.voters.contains(id) || self.outgoing.contains(id)
    }

    /// The member with this id, whatever its part.
    #[must_use]
    pub fn find(&self, id: MemberId) -> Option<Member> {
        self.voters.find(id).or_else(|| self.outgoing.find(id)).or_else(|| self.learners.find(id))
    }

    /// Every member, in ascending order of ids.
    #[must_use]
    pub fn all(&self) -> MemberSet {
        MemberSet::new(self.voters.iter().chain(self.outgoing.iter()).chain(self.learners.iter()))
    }

    /// Whether the members for which `counts` holds are a quorum of every half in force.
    pub fn is_quorum(&self, mut counts: impl FnMut(MemberId) -> bool) -> bool {
        let mut has_quorum =
            |set: &MemberSet| set.ids().filter(|&id| counts(id)).nth(set.quorum() - 1).is_some();
        has_quorum(&self.voters) && (!self.is_joint() || has_quorum(&self.outgoing))
    }

    /// The highest value that a quorum of every half in force has reached, where `value` tells
    /// how far each member is. The commit rule: minimum over the halves of the quorum-th largest.
    pub fn quorum_value<T: Ord + Copy + Default>(&self, mut value: impl FnMut(MemberId) -> T) -> T {
        let incoming = quorum_th(&self.voters, &mut value);
        if self.is_joint() { incoming.min(quorum_th(&self.outgoing, &mut value)) } else { incoming }
    }

    /// Checks what every stored or received configuration must satisfy.
    ///
    /// # Errors
    /// The first violation found.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        if self.voters.is_empty() {
            return Err(ConfigurationError::NoVoter);
        }
        let all = self.all();
        if all.len() > MEMBERS_MAX {
            return Err(ConfigurationError::TooMany);
        }
        for member in self.voters.iter().chain(self.outgoing.iter()).chain(self.learners.iter()) {
            if member.id.0 == 0 || all.find(member.id) != Some(member) {
                return Err(ConfigurationError::BadMember(member.id));
            }
        }
        for learner in self.learners.ids() {
            if self.voters.contains(learner) {
                return Err(ConfigurationError::LearnerVotes(learner));
            }
        }
        Ok(())
    }
}

fn quorum_th<T: Ord + Copy + Default>(set: &MemberSet, value: &mut impl FnMut(MemberId) -> T) -> T {
    let mut values = [T::default(); MEMBERS_MAX];
    let mut count = 0;
    // Inserted in order: cheaper than a sort for so few.
    for id in set.ids().take(MEMBERS_MAX) {
        let value = value(id);
        let mut at = count;
        while at > 0 && value < values[at - 1] {
            values[at] = values[at - 1];
            at -= 1;
        }
        values[at] = value;
        count += 1;
    }
    count.checked_sub(set.quorum()).map_or_else(T::default, |place| values[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(ids: &[u32]) -> Vec<Member> {
        ids.iter().map(|&id| Member { id: MemberId(id), incarnation: Incarnation(9) }).collect()
    }

    #[test]
    fn quorum_is_half_plus_one_for_every_size() {
        for (n, quorum) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
            let ids: Vec<u32> = (1..=n).collect();
            let configuration = Configuration::of_voters(members(&ids));
            assert_eq!(configuration.voters.quorum(), quorum);
            assert!(configuration.is_quorum(|id| id.0 <= u32::try_from(quorum).unwrap()));
            assert!(!configuration.is_quorum(|id| id.0 < u32::try_from(quorum).unwrap()));
        }
    }

    #[test]
    fn a_joint_decision_needs_both_halves() {
        let joint = Configuration {
            voters: MemberSet::new(members(&[1, 4, 5])),
            outgoing: MemberSet::new(members(&[1, 2, 3])),
            learners: MemberSet::default(),
        };
        assert!(!joint.is_quorum(|id| [1, 4, 5].contains(&id.0)));
        assert!(joint.is_quorum(|id| [1, 2, 4].contains(&id.0)));
        let tails = |id: MemberId| match id.0 {
            1 => 10_u64,
            4 => 9,
            2 => 3,
            _ => 0,
        };
        assert_eq!(joint.quorum_value(tails), 3, "the slower half decides");
    }

    #[test]
    fn a_learner_that_votes_is_refused() {
        let mut configuration = Configuration::of_voters(members(&[1, 2]));
        configuration.learners = MemberSet::new(members(&[2]));
        assert_eq!(configuration.validate(), Err(ConfigurationError::LearnerVotes(MemberId(2))));
    }
}
