//! How a client finds its group, and how patient it is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{GroupId, MemberId};

use crate::{ClusterFile, ClusterFileError};

/// How a client finds its group, and how patient it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the members' boards and sockets lie.
    pub run_dir: PathBuf,
    /// The members to talk to.
    pub members: Vec<MemberId>,
    /// The group.
    pub group: GroupId,
    /// How long a request may take, retries included.
    pub deadline: Duration,
    /// How long one member may be silent before another is asked too.
    pub patience: Duration,
    /// How long to look for an answer before sleeping.
    pub spin: Duration,
}

impl Options {
    /// The options for the cluster whose directory is `dir`: 10 s for a request, half a second for
    /// a member.
    ///
    /// # Errors
    /// [`ClusterFileError`].
    pub fn of_cluster(dir: &Path) -> Result<Self, ClusterFileError> {
        ClusterFile::read(dir).map(|file| Self::of_file(&file))
    }

    /// The options for a cluster file that was read.
    #[must_use]
    pub fn of_file(file: &ClusterFile) -> Self {
        Self {
            run_dir: file.run_dir.clone(),
            members: file.members.iter().map(|member| member.id).collect(),
            group: file.group,
            deadline: Duration::from_secs(10),
            patience: Duration::from_millis(500),
            spin: Duration::from_micros(20),
        }
    }
}
