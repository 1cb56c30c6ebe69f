//! A fixed set of small numbers, walked in ascending order.

use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    pub(crate) fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// The first member in `range`.
    pub(crate) fn first_in(&self, range: Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            let rest = self.0[at / 64] >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros() as usize;
                return (found < range.end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_members_in_order_and_only_inside_the_range() {
        let mut bits = Bits::new(300);
        for at in [0, 63, 64, 199, 299] {
            bits.add(at);
        }
        bits.remove(63);
        assert!(bits.has(64) && !bits.has(63));
        assert_eq!(bits.first_in(0..300), Some(0));
        assert_eq!(bits.first_in(1..300), Some(64));
        assert_eq!(bits.first_in(65..199), None);
        assert_eq!(bits.first_in(65..200), Some(199));
        assert_eq!(bits.first_in(200..300), Some(299));
    }
}
