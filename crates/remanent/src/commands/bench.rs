//! `remanent bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use base::Durability;
use clap::Subcommand;
use serde_json::json;

use super::init::parse_durability;
use crate::bench::commit::{self, Commit};
use crate::bench::raw::{self, RawN};
use crate::latencies::Latencies;

/// Measures on this machine. Regions lie in the given directory and are removed at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// raw-n: the same bytes stored, made durable and read back on as many members, and nothing
    /// else: the floor under every commit.
    Raw(Settings),
    /// What a commit costs the leader, with raw-n of the same bytes beside it.
    ///
    /// `commit` is from taking the command to the commit index behind it, `turn` until the leader
    /// is ready for the next: a majority of the members is written and looked at before the others
    /// are written, which no commit waits for. `raw-n` is the floor: it writes all members and
    /// then looks for a majority. The two are measured in turns of a thousand operations.
    Commit(Settings),
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// How many members.
    #[arg(short = 'n', long, default_value_t = 3)]
    members: u32,
    /// Bytes of each value.
    #[arg(long, default_value_t = 8)]
    bytes: u32,
    /// What durable means: sync, process or volatile.
    #[arg(long, default_value = "process", value_parser = parse_durability)]
    durability: Durability,
    /// How many operations.
    #[arg(long, default_value_t = 200_000)]
    count: u64,
    /// How long at most.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Where the regions lie: on the medium that shall be measured.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Wastes some microseconds before each commit, to show that a checker sees it.
    #[arg(long, hide = true)]
    plant_delay: bool,
}

impl Settings {
    fn raw(&self, bytes: u32) -> RawN {
        RawN {
            dir: self.dir.clone(),
            members: self.members,
            bytes,
            mode: self.durability,
            count: self.count,
            time_max: self.time,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.what {
        What::Raw(settings) => {
            let raw = raw::measure(&settings.raw(settings.bytes))?;
            if settings.json {
                println!("{}", json!({ "raw": raw.to_json(), "bytes": settings.bytes }));
            } else {
                println!("{}", heading());
                println!("{}", line(&format!("raw-{}", settings.members), settings.bytes, &raw));
            }
        }
        What::Commit(settings) => {
            let found = commit::measure(&Commit {
                dir: settings.dir.clone(),
                members: settings.members,
                bytes: settings.bytes,
                mode: settings.durability,
                count: settings.count,
                time_max: settings.time,
                plant_delay: settings.plant_delay,
            })?;
            let ratio = ratio(&found.latencies, &found.raw);
            if settings.json {
                let object = json!({
                    "commit": found.latencies.to_json(),
                    "turn": found.turns.to_json(),
                    "raw": found.raw.to_json(),
                    "entry_bytes": found.entry_bytes,
                    "ratio_p50": ratio,
                });
                println!("{object}");
            } else {
                println!("{}", heading());
                println!("{}", line("commit", settings.bytes, &found.latencies));
                println!("{}", line("turn", settings.bytes, &found.turns));
                let name = format!("raw-{}", settings.members);
                println!("{}", line(&name, found.entry_bytes, &found.raw));
                println!("commit / raw at p50: {ratio:.2}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How many times longer the median commit takes.
pub(crate) fn ratio(commit: &Latencies, raw: &Latencies) -> f64 {
    commit.quantile(0.5).as_secs_f64() / raw.quantile(0.5).as_secs_f64().max(1e-9)
}

fn heading() -> String {
    format!(
        "{:<8} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "bytes", "count", "p50", "p99", "p99.9", "max"
    )
}

fn line(name: &str, bytes: u32, latencies: &Latencies) -> String {
    let at = |quantile: f64| format!("{:.1?}", latencies.quantile(quantile));
    format!(
        "{name:<8} {bytes:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
        latencies.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        format!("{:.1?}", latencies.max())
    )
}
