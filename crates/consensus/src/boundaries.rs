//! Where two logs part, from nothing but the first index of each term in them.

use base::Index;
use logfmt::Boundary;

/// A log as its term boundaries show it.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a> {
    /// The first index of each term, ascending; the first of them is the checkpoint's.
    pub boundaries: &'a [Boundary],
    /// The last index.
    pub last: Index,
}

impl Outline<'_> {
    /// The last index of the term at `place` in the list.
    fn last_of(&self, place: usize) -> Index {
        self.boundaries.get(place + 1).map_or(self.last, |next| next.first.previous())
    }
}

/// The highest index at which both logs have the same term, hence the same entry and the same log
/// up to it. `None` when the lists do not reach down to a common term: the caller must then not
/// guess, because a match point two too low can take a committed entry from every member at once.
///
/// A term has one leader, whose log any two members hold prefixes of as far as they have entries of
/// that term. So for the newest term that both have, the smaller of the two last indexes is the
/// point.
#[must_use]
pub fn match_point(a: Outline<'_>, b: Outline<'_>) -> Option<Index> {
    let (mut i, mut j) = (a.boundaries.len(), b.boundaries.len());
    while i > 0 && j > 0 {
        let (left, right) = (a.boundaries[i - 1], b.boundaries[j - 1]);
        if left.term == right.term {
            return Some(a.last_of(i - 1).min(b.last_of(j - 1)));
        }
        if left.term > right.term {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Term;

    fn log(boundaries: &[(u64, u64)]) -> Vec<Boundary> {
        boundaries
            .iter()
            .map(|&(term, first)| Boundary { term: Term(term), first: Index(first) })
            .collect()
    }

    fn at(a: (&[(u64, u64)], u64), b: (&[(u64, u64)], u64)) -> Option<u64> {
        let (left, right) = (log(a.0), log(b.0));
        let point = match_point(
            Outline { boundaries: &left, last: Index(a.1) },
            Outline { boundaries: &right, last: Index(b.1) },
        );
        point.map(|index| index.0)
    }

    #[test]
    fn the_newest_common_term_decides() {
        let empty: &[(u64, u64)] = &[(0, 0)];
        assert_eq!(at((empty, 0), (empty, 0)), Some(0), "two empty logs match at zero");
        assert_eq!(at((&[(0, 0), (1, 1)], 5), (empty, 0)), Some(0));
        assert_eq!(at((&[(0, 0), (1, 1)], 5), (&[(0, 0), (1, 1)], 3)), Some(3));
        assert_eq!(
            at((&[(0, 0), (1, 1), (3, 4)], 6), (&[(0, 0), (1, 1), (2, 3)], 9)),
            Some(2),
            "term 1 ends at 3 in one log and at 2 in the other"
        );
    }

    #[test]
    fn a_checkpoint_stands_for_what_it_covers() {
        let trimmed: &[(u64, u64)] = &[(4, 100), (5, 103)];
        assert_eq!(at((trimmed, 110), (&[(0, 0), (4, 50)], 99)), Some(99));
        assert_eq!(
            at((trimmed, 110), (&[(0, 0), (3, 50)], 60)),
            None,
            "nothing in common is known"
        );
    }
}
