//! A whole log in one word.
//!
//! The digest of an entry certifies the log up to it. In the search the digest *is* that log: one
//! byte per entry, lowest first. Two logs are equal up to an index exactly when their digests there
//! are, as in the real format, and whatever a checker wants to know it can read off.
//!
//! ```text
//!  bit  7   6 5    4 3   2 1 0
//!     +---+------+------+-------+
//!     | 1 | tag  | kind | term  |     tag: which configuration
//!     +---+------+------+-------+
//! ```

use std::fmt;

use base::{Digest, Index, Term};
use logfmt::{Boundary, Position};

/// The most entries of one log.
pub(super) const ENTRIES_MAX: u8 = 8;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A leader's first entry.
    NoOp,
    /// A client's command.
    Command,
    /// The configuration of this number.
    Configuration,
}

impl Content {
    const fn code(self) -> u64 {
        match self {
            Self::NoOp => 0,
            Self::Command => 1,
            Self::Configuration => 2,
        }
    }
}

/// A log, entry by entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Path(pub(super) u64);

impl Path {
    /// How many entries it has, which is its last index.
    pub(super) const fn len(self) -> u8 {
        #[expect(clippy::cast_possible_truncation, reason = "at most 8")]
        let zero = (self.0.leading_zeros() / 8) as u8;
        ENTRIES_MAX - zero
    }

    /// The log up to and with index `last`, or all of it.
    pub(super) const fn prefix(self, last: u8) -> Self {
        if last >= ENTRIES_MAX { self } else { Self(self.0 & ((1 << (8 * last)) - 1)) }
    }

    /// Whether this log begins with all of `other`.
    pub(super) const fn holds(self, other: Self) -> bool {
        self.prefix(other.len()).0 == other.0
    }

    const fn byte(self, index: u8) -> u64 {
        if index == 0 || index > ENTRIES_MAX { 0 } else { (self.0 >> (8 * (index - 1))) & 0xff }
    }

    /// The term of the entry at `index`; 0 when there is none.
    pub(super) const fn term_at(self, index: u8) -> u8 {
        (self.byte(index) & 7) as u8
    }

    /// The number of the configuration at `index`, if it is one.
    pub(super) const fn configuration_at(self, index: u8) -> Option<u8> {
        let byte = self.byte(index);
        if byte != 0 && (byte >> 3) & 3 == 2 { Some(((byte >> 5) & 3) as u8) } else { None }
    }

    /// The log with one more entry, unless it is full.
    pub(super) const fn push(self, term: u8, content: Content, tag: u8) -> Option<Self> {
        let len = self.len();
        if len >= ENTRIES_MAX || term > 7 || tag > 3 {
            return None;
        }
        let byte = 0x80 | (tag as u64) << 5 | content.code() << 3 | term as u64;
        Some(Self(self.0 | byte << (8 * len)))
    }

    /// The position of the entry at `index`.
    pub(super) fn position(self, index: u8) -> Position {
        Position {
            index: Index(u64::from(index)),
            term: Term(u64::from(self.term_at(index))),
            digest: Digest(self.prefix(index).0),
        }
    }

    /// The first index of each term, the empty checkpoint first.
    pub(super) fn boundaries(self) -> Vec<Boundary> {
        let mut boundaries = vec![Boundary { term: Term(0), first: Index(0) }];
        for index in 1..=self.len() {
            let term = self.term_at(index);
            if term != self.term_at(index - 1) {
                let first = Index(u64::from(index));
                boundaries.push(Boundary { term: Term(u64::from(term)), first });
            }
        }
        boundaries
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for index in 1..=self.len() {
            let byte = self.byte(index);
            let kind = match (byte >> 3) & 3 {
                0 => 'n',
                1 => 'c',
                _ => 'C',
            };
            let gap = if index == 1 { "" } else { " " };
            write!(f, "{gap}{}{kind}", byte & 7)?;
            if (byte >> 5) & 3 != 0 {
                write!(f, "{}", (byte >> 5) & 3)?;
            }
        }
        f.write_str("]")
    }
}

/// An index of the core as a number here: logs are short.
pub(super) fn small(index: Index) -> u8 {
    u8::try_from(index.0).unwrap_or(u8::MAX)
}

/// A term of the core as a number here: terms are few.
pub(super) fn small_term(term: Term) -> u8 {
    u8::try_from(term.0).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_log_it_certifies() {
        let one = Path::default().push(1, Content::NoOp, 0).unwrap();
        let two = one.push(2, Content::Command, 1).unwrap();
        assert_eq!((two.len(), two.term_at(1), two.term_at(2)), (2, 1, 2));
        assert_eq!(two.prefix(1), one);
        assert!(two.holds(one) && !one.holds(two));
        assert_eq!(format!("{two:?}"), "[1n 2c1]");
        let first: Vec<u64> = two.boundaries().iter().map(|boundary| boundary.first.0).collect();
        assert_eq!(first, [0, 1, 2]);
    }
}
