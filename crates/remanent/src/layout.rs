//! Where things lie: the cluster directory and what is in it.
//!
//! ```text
//! CLUSTER/cluster.toml     written once by `init`: id, members, what durable means
//!         1/region         member 1: superblock and segments
//!           control        its control lines: peers read its grant word there
//!           state/N.state  checkpoints
//!           node.toml      how it runs (optional)
//!         2/ ..
//! run directory            boards, sockets and landing memory of members that run; best in tmpfs
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base::{ClusterId, Durability, GroupId, Incarnation, Member, MemberId};
use client::ClusterFile;
use consensus::Params;

/// A cluster directory that was read.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    dir: PathBuf,
    file: ClusterFile,
}

/// The files of one member.
#[derive(Clone, Debug)]
pub(crate) struct MemberPaths {
    pub(crate) member: MemberId,
    pub(crate) dir: PathBuf,
    pub(crate) region: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) config: PathBuf,
}

impl MemberPaths {
    pub(crate) fn new(member: MemberId, dir: PathBuf) -> Self {
        Self {
            member,
            region: dir.join("region"),
            control: dir.join("control"),
            state: dir.join("state"),
            config: dir.join("node.toml"),
            dir,
        }
    }
}

impl Cluster {
    /// Reads `dir/cluster.toml`.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let file = ClusterFile::read(dir)?;
        Ok(Self { dir: dir.to_owned(), file })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn file(&self) -> &ClusterFile {
        &self.file
    }

    pub(crate) fn id(&self) -> ClusterId {
        self.file.cluster
    }

    pub(crate) fn group(&self) -> GroupId {
        self.file.group
    }

    pub(crate) fn run_dir(&self) -> &Path {
        &self.file.run_dir
    }

    pub(crate) fn durability(&self) -> Durability {
        self.file.durability
    }

    pub(crate) fn max_state_bytes(&self) -> u64 {
        self.file.max_state_bytes
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.file.members.iter().map(|member| member.id)
    }

    /// A member as the configuration knows it.
    pub(crate) fn member(&self, id: MemberId) -> Result<Member> {
        let found = self.file.members.iter().find(|member| member.id == id);
        let found = found.with_context(|| {
            let known: Vec<_> = self.ids().map(|id| id.to_string()).collect();
            format!(
                "{}: there is no member {id}; there are {}",
                self.dir.join("cluster.toml").display(),
                known.join(", ")
            )
        })?;
        Ok(Member { id, incarnation: Incarnation(found.incarnation.0) })
    }

    /// Where a member's files lie.
    pub(crate) fn paths(&self, id: MemberId) -> Result<MemberPaths> {
        self.member(id)?;
        let found = self.file.members.iter().find(|member| member.id == id);
        let dir = found.map(|member| self.dir.join(&member.dir)).unwrap_or_default();
        Ok(MemberPaths::new(id, dir))
    }

    /// Timing and windows before a member's own settings. A synced log needs more time: one slow
    /// sync of a busy disk is no reason to suspect a leader.
    #[expect(clippy::unused_self, reason = "a property of the cluster")]
    pub(crate) fn params(&self, _mode: Durability) -> Params {
        Params::default()
    }
}
