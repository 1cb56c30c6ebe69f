//! Identifiers. Each is a newtype over the integer that stands on media and wire.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }
    };
}

hex_id!(
    /// A cluster, drawn at random by `init`. Zero is "none".
    ClusterId, u128, "32"
);
id!(
    /// One replicated log inside a cluster.
    GroupId, u32, "g"
);
id!(
    /// A replica of one group. Never reused, never zero.
    MemberId, u32, "m"
);
hex_id!(
    /// One life of a member's region, drawn at random when the region is made. A blank disk under
    /// an old member id has another incarnation and is refused.
    Incarnation, u64, "16"
);
hex_id!(
    /// One boot of the host (or, on tmpfs, one life of the region): in `process` mode another boot
    /// id means that what was acknowledged may be gone.
    BootId, u128, "32"
);
hex_id!(
    /// What makes the entries of one (term, leader) recognisable: drawn at random by the candidate,
    /// persisted with each segment, hashed into every entry's `check`.
    Nonce, u64, "16"
);
hex_id!(
    /// `H64(previous digest, kind, term, index, length, payload)`: equal for equal logs.
    Digest, u64, "16"
);
id!(
    /// A place for one segment in a member's pool, counted from 0.
    SlotId, u32, "s"
);
id!(
    /// A leadership epoch, below 2^48. Zero is "before any election".
    Term, u64, "t"
);
id!(
    /// A position in the replicated log, counted from 1, never reused. Zero is "before the first".
    Index, u64, ""
);

impl Term {
    /// The highest term that a grant word can hold.
    pub const MAX: Self = Self((1 << 48) - 1);

    /// The term after this one.
    ///
    /// # Panics
    /// At 2^48 terms, which one election per microsecond reaches after nine years.
    #[must_use]
    pub fn next(self) -> Self {
        assert!(self < Self::MAX, "terms are used up");
        Self(self.0 + 1)
    }
}

impl Index {
    /// The index after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The index before this one, or zero.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// Who may write a member's log: `{term: 48 bits, count: 16 bits}` in one 8-byte word.
///
/// The count grows with every grant that the member makes in a term, to whomever, and is
/// persisted. Count 0 never is a grant: it is the word of a member that has revoked everything and
/// granted nothing yet. Words are compared for equality when they prove a right, and ordered only
/// when a member chooses its next one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantWord(pub u64);

impl GrantWord {
    /// The word for the `count`-th grant in `term`.
    #[must_use]
    pub fn new(term: Term, count: u16) -> Self {
        assert!(term <= Term::MAX);
        Self((term.0 << 16) | u64::from(count))
    }

    /// The term of the grant.
    #[must_use]
    pub const fn term(self) -> Term {
        Term(self.0 >> 16)
    }

    /// Which grant of that term this is; 0 when it is none.
    #[must_use]
    pub const fn count(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// Whether this word grants nothing.
    #[must_use]
    pub const fn is_revoked(self) -> bool {
        self.count() == 0
    }

    /// The word that revokes every grant up to `self`'s term without granting anything.
    #[must_use]
    pub const fn revoked(self) -> Self {
        Self(self.0 & !0xffff)
    }

    /// The nonce of the entries under this grant, when `nonce` is its leader's.
    ///
    /// The first grant of a term uses the leader's nonce as it is, so that one buffer serves the
    /// WRITEs to all followers. A later one must not: slots of the pool may still hold entries of
    /// an earlier grant of the same term and leader, which would then pass for entries of this one.
    #[must_use]
    pub const fn nonce(self, nonce: Nonce) -> Nonce {
        if self.count() == 1 {
            return nonce;
        }
        let mut mixed = nonce.0 ^ self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Nonce(mixed ^ (mixed >> 31))
    }

    /// The next word this member may grant in `term`, or `None` when the term's counts are used
    /// up: the member then grants nothing more in that term.
    #[must_use]
    pub fn next_in(self, term: Term) -> Option<Self> {
        if self.term() < term {
            return Some(Self::new(term, 1));
        }
        if self.term() > term {
            return None;
        }
        self.count().checked_add(1).map(|count| Self::new(term, count))
    }
}

impl fmt::Debug for GrantWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term().0, self.count())
    }
}

impl fmt::Display for GrantWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term().0, self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_words_never_repeat() {
        let first = GrantWord::default().next_in(Term(7)).unwrap();
        assert_eq!((first.term(), first.count()), (Term(7), 1));
        assert_eq!(first.next_in(Term(7)), Some(GrantWord::new(Term(7), 2)));
        assert_eq!(first.next_in(Term(8)), Some(GrantWord::new(Term(8), 1)));
        assert_eq!(first.next_in(Term(6)), None, "an earlier term is never granted again");
        assert_eq!(GrantWord::new(Term(7), u16::MAX).next_in(Term(7)), None);
        assert!(first.revoked().is_revoked());
        assert!(first.revoked() < first);
    }
}
