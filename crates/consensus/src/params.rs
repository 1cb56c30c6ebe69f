//! What an operator or a simulation may choose.

use base::Duration;

/// Timing and window limits of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// How long a leader may show no progress before a follower suspects it. Samples are taken
    /// twice per timeout; two samples without progress are a suspicion.
    pub suspicion_timeout: Duration,
    /// Chains in flight to one follower.
    pub chains_max: usize,
    /// Bytes in flight to one follower.
    pub window_bytes_max: u64,
    /// Bytes of one chain.
    pub batch_bytes_max: u64,
    /// Entries that may stand in the leader's log uncommitted; more proposals are refused.
    pub uncommitted_max: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            suspicion_timeout: Duration::from_millis(500),
            chains_max: 16,
            window_bytes_max: 16 << 20,
            batch_bytes_max: 1 << 20,
            uncommitted_max: 1 << 16,
        }
    }
}

impl Params {
    /// How often a follower looks at its leader.
    #[must_use]
    pub fn sample_interval(&self) -> Duration {
        self.suspicion_timeout / 2
    }

    /// How often a leader shows progress and proves to itself that it still leads: eight times per
    /// timeout, so that a follower's two samples always see several of them.
    #[must_use]
    pub fn beat_interval(&self) -> Duration {
        self.suspicion_timeout / 8
    }
}
