//! What the demo found, on a few lines.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::Durability;
use bytesize::ByteSize;

use super::Arguments;
use super::load::{Loaded, Written};
use super::members::Members;
use crate::commands::status::look;
use crate::latencies::Latencies;

/// The report.
pub(super) struct Report {
    members: u32,
    durability: Durability,
    loaded: Loaded,
    /// The longest time without an acknowledgement when the leader was killed.
    pub(super) without_leader: Duration,
    /// The same while a follower was stopped.
    pub(super) with_stopped: Duration,
    pub(super) written: Written,
    pub(super) raw: Option<Latencies>,
    pub(super) lost: u64,
    commit: Option<(Duration, Duration)>,
    entries: u64,
}

impl Report {
    pub(super) fn new(arguments: &Arguments, loaded: Loaded) -> Self {
        Self {
            members: arguments.members,
            durability: arguments.durability,
            loaded,
            without_leader: Duration::ZERO,
            with_stopped: Duration::ZERO,
            written: Written::default(),
            raw: None,
            lost: 0,
            commit: None,
            entries: 0,
        }
    }

    /// What the leader itself has measured.
    pub(super) fn add_status(&mut self, members: &Members) -> Result<()> {
        let sight = look(members.cluster(), Duration::from_secs(2));
        let leader = sight.leader().context("nobody leads after the load")?;
        let said = sight.members.into_iter().find(|(id, _)| *id == leader);
        let said = said.and_then(|(_, said)| said.ok()).context("the leader says nothing")?;
        let time = |name: &str| {
            said["writes"][name].as_u64().map(Duration::from_nanos).context("no latencies")
        };
        self.commit = Some((time("p50_ns")?, time("p99_ns")?));
        self.entries = said["commit_index"].as_u64().unwrap_or_default();
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing into a text cannot fail.
            let _written = writeln!(text, "{name:<22}{value}");
        };
        let bytes = |count: u64| ByteSize(count).display().iec().to_string();
        line("members", format!("{}, durability {}", self.members, self.durability.name()));
        let skipped = match self.loaded.skipped {
            0 => String::new(),
            count => format!(", {count} of 7 MiB and more left out"),
        };
        let Loaded { files, time, .. } = self.loaded;
        line(
            "loaded",
            format!("{files} files, {} in {time:.1?}{skipped}", bytes(self.loaded.bytes)),
        );
        let acknowledged = self.written.acknowledged.len();
        line("acknowledged writes", format!("{acknowledged}, {}", bytes(self.written.bytes)));
        line("refused, unknown", format!("{}, {}", self.written.refused, self.written.unknown));
        line("log entries", format!("{}", self.entries));
        if let Some((p50, p99)) = self.commit {
            line("commit, on the leader", format!("p50 {p50:.1?}, p99 {p99:.1?}"));
        }
        if let Some(seen) = &self.written.latencies {
            line("write, as clients see", quantiles(seen));
        }
        if let Some(raw) = &self.raw {
            line(&format!("raw-{}, same run", self.members), quantiles(raw));
        }
        line("leader killed", format!("{:.1?} without service", self.without_leader));
        line("follower stopped", format!("{:.1?} without service", self.with_stopped));
        line("lost writes", format!("{}", self.lost));
        text
    }
}

fn quantiles(latencies: &Latencies) -> String {
    format!("p50 {:.1?}, p99 {:.1?}", latencies.quantile(0.5), latencies.quantile(0.99))
}
