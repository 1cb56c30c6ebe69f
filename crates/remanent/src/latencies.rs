//! How long operations took.

use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The longest time that is told apart; what takes longer counts as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// How long operations took.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        Histogram::new_with_max(LONGEST_NS, 3).map(Self).context("a histogram of three digits")
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same range.
        let _added = self.0.add(&other.0);
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(quantile))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// `count`, and `p50_ns` to `max_ns`.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "count": self.len(),
            "p50_ns": self.0.value_at_quantile(0.5),
            "p99_ns": self.0.value_at_quantile(0.99),
            "p999_ns": self.0.value_at_quantile(0.999),
            "max_ns": self.0.max(),
        })
    }
}
