//! What a member says of itself: one JSON object, for people (`status`), programs and tests.

use base::{Durability, GroupId, Instant, MemberId};
use consensus::Role;
use pmem::WriteBack;
use replica::machine::StateMachine as _;
use replica::{Notice, Shard};
use serde::Serialize;
use store::Store;

use super::door::{Counts, Door};
use super::env::NodeEnv;
use crate::layout::Cluster;

/// What is looked at.
pub(crate) struct Seen<'a> {
    pub(crate) shard: &'a Shard<NodeEnv<Store>>,
    pub(crate) group: GroupId,
    pub(crate) now: Instant,
}

/// What a member remembers to tell.
#[derive(Clone, Debug)]
pub(crate) struct NodeStatus {
    cluster: String,
    member: u32,
    durability: &'static str,
    /// Times that the loop went to sleep.
    pub(crate) sleeps: u64,
    elections_won: u64,
    checkpoints: u64,
    states_received: u64,
    refused_peers: u64,
    trouble: Option<String>,
}

#[derive(Debug, Serialize)]
struct Follower {
    member: u32,
    connected: bool,
    replicating: bool,
    /// The last entry known to be durable there.
    durable: u64,
}

#[derive(Debug, Serialize)]
struct Segments {
    bytes_each: u64,
    total: u32,
    used: usize,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'static str,
    cluster: &'a str,
    group: u32,
    member: u32,
    pid: u32,
    uptime_ms: u64,
    durability: &'static str,
    write_back: &'static str,
    role: &'static str,
    term: u64,
    leader: Option<u32>,
    first_index: u64,
    last_index: u64,
    commit_index: u64,
    applied_index: u64,
    checkpoint_index: u64,
    segments: Segments,
    state_bytes: u64,
    state_bytes_max: u64,
    failed: bool,
    trouble: Option<&'a str>,
    followers: Vec<Follower>,
    elections_won: u64,
    checkpoints: u64,
    states_received: u64,
    refused_peers: u64,
    sleeps: u64,
    /// From taking a write to having its answer, on this member.
    writes: serde_json::Value,
    reads: serde_json::Value,
    door: &'a Counts,
}

impl NodeStatus {
    pub(crate) fn new(cluster: &Cluster, member: MemberId, mode: Durability) -> Self {
        Self {
            cluster: cluster.id().to_string(),
            member: member.0,
            durability: mode.name(),
            sleeps: 0,
            elections_won: 0,
            checkpoints: 0,
            states_received: 0,
            refused_peers: 0,
            trouble: None,
        }
    }

    /// Remembers what happened.
    pub(crate) fn note(&mut self, notice: &Notice) {
        match notice {
            Notice::Leads(_) => self.elections_won += 1,
            Notice::Checkpoint(_) => self.checkpoints += 1,
            Notice::Installed(_) => self.states_received += 1,
            Notice::PeerRefused(_, why) => {
                self.refused_peers += 1;
                self.trouble = Some(format!("a peer was refused: {why}"));
            }
            Notice::Failed(why) => self.trouble = Some(format!("storage failed: {why}")),
            Notice::Damaged(why) => self.trouble = Some(why.clone()),
            Notice::Deposed(_) | Notice::ChangeRefused(_) | Notice::Time(_) => {}
        }
    }

    /// The object as text.
    pub(crate) fn render(&self, seen: &Seen<'_>, door: &Door) -> String {
        let (Some(core), Some(log), Some(machine)) = (
            seen.shard.core(seen.group),
            seen.shard.log(seen.group),
            seen.shard.machine(seen.group),
        ) else {
            return "{}".to_owned();
        };
        let superblock = core.superblock();
        let followers = core.followers().map(|follower| Follower {
            member: follower.id.0,
            connected: follower.is_connected,
            replicating: follower.is_replicating,
            durable: follower.tail.0,
        });
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            cluster: &self.cluster,
            group: seen.group.0,
            member: self.member,
            pid: std::process::id(),
            uptime_ms: seen.now.0 / 1_000_000,
            durability: self.durability,
            write_back: match WriteBack::detect() {
                WriteBack::Clwb => "clwb",
                WriteBack::Clflushopt => "clflushopt",
                WriteBack::Clflush => "clflush",
            },
            role: match core.role() {
                Role::Follower => "follower",
                Role::Candidate(_) => "candidate",
                Role::Leader(_) => "leader",
            },
            term: core.term().0,
            leader: core.leader().map(|leader| leader.0),
            first_index: log.first_index().0,
            last_index: log.tail().index.0,
            commit_index: core.commit_index().0,
            applied_index: machine.applied().0.0,
            checkpoint_index: superblock.checkpoint.at.index.0,
            segments: Segments {
                bytes_each: superblock.segment_len,
                total: superblock.slot_count,
                used: superblock.segments.len(),
            },
            state_bytes: machine.state_bytes(),
            state_bytes_max: machine.state_bytes_max(),
            failed: core.is_failed(),
            trouble: self.trouble.as_deref(),
            followers: followers.collect(),
            elections_won: self.elections_won,
            checkpoints: self.checkpoints,
            states_received: self.states_received,
            refused_peers: self.refused_peers,
            sleeps: self.sleeps,
            writes: door.writes.to_json(),
            reads: door.reads.to_json(),
            door: &door.counts,
        };
        serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}
