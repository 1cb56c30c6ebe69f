//! What members take: files on disk and memory of their own, by phase.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result};

use super::Phase;
use crate::cluster::Cluster;

/// The greatest values seen.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Bytes on disk of a running member's directory.
    pub(super) dir_bytes_max: u64,
    /// Memory of each member's own in each phase, in bytes.
    anonymous: BTreeMap<(Phase, u32), u64>,
}

impl Watch {
    /// Looks at every running member.
    pub(super) fn look(&mut self, cluster: &Cluster, phase: Phase) -> Result<()> {
        for id in cluster.running() {
            let bytes = disk_bytes(&cluster.member_dir(id))?;
            self.dir_bytes_max = self.dir_bytes_max.max(bytes);
            let bytes = cluster.anonymous_bytes(id)?;
            let most = self.anonymous.entry((phase, id)).or_default();
            *most = bytes.max(*most);
        }
        Ok(())
    }

    /// How far a member's memory was above its steady size, in bytes.
    pub(super) fn growth(&self, id: u32, phases: &[Phase]) -> u64 {
        let seen = |phase: Phase| self.anonymous.get(&(phase, id)).copied();
        let most = phases.iter().filter_map(|&phase| seen(phase)).max();
        match (most, seen(Phase::Steady)) {
            (Some(most), Some(steady)) => most.saturating_sub(steady),
            (Some(_) | None, _) => 0,
        }
    }
}

/// Bytes that the files below a directory take on disk.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            let entry = entry?;
            // A file may be removed between being listed and being looked at.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}

/// A state file of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateFile {
    pub(super) bytes: u64,
    pub(super) written_at: SystemTime,
}

/// The state files of a member, in no order.
pub(super) fn state_files(member_dir: &Path) -> Result<Vec<StateFile>> {
    let dir = member_dir.join("state");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
        // A file may be removed between being listed and being looked at.
        if let Ok(metadata) = entry?.metadata() {
            files.push(StateFile { bytes: metadata.len(), written_at: metadata.modified()? });
        }
    }
    Ok(files)
}
