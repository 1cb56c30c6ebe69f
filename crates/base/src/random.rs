//! Randomness as a seed.

/// `SplitMix64`: a small generator whose whole state is one word, so that a state machine that
/// owns one stays cheap to copy. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random(u64);

impl Random {
    /// A generator that yields the same sequence for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero. The bias is below `bound / 2^64`.
    ///
    /// # Panics
    /// When `bound` is zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        self.next() % bound
    }

    /// `true` once in `n` times on average; never when `n` is 0.
    pub const fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
}
