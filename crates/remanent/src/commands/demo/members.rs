//! The members of the demo: processes that can be killed, stopped and started again.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base::{Durability, MemberId};
use client::Options;
use client::blocking::Client;
use rustix::process::Signal;

use crate::commands::status::look;
use crate::commands::up::{signal, start_with, terminate};
use crate::commands::{InitArguments, init};
use crate::layout::Cluster;

/// How long the members may take to find a leader.
const LEADER_MAX: Duration = Duration::from_secs(30);
const LOG: &str = "error";

/// The processes, and the directory they live in. Dropping it kills them and removes the directory.
pub(super) struct Members {
    cluster: Cluster,
    dir: PathBuf,
    children: Vec<(MemberId, Child)>,
    keep: bool,
}

impl Members {
    /// Makes a cluster in `dir`, which must not be there, and starts its members.
    pub(super) fn start(dir: &Path, count: u32, mode: Durability, keep: bool) -> Result<Self> {
        ensure!(!dir.exists(), "{}: is there already", dir.display());
        init(dir, &InitArguments { members: count, durability: mode, ..InitArguments::default() })
            .with_context(|| {
                format!(
                    "{}: choose another place with --dir, or --durability process",
                    dir.display()
                )
            })?;
        let cluster = Cluster::read(dir)?;
        let mut members = Self { cluster, dir: dir.to_owned(), children: Vec::new(), keep };
        let ids: Vec<_> = members.cluster.ids().collect();
        for id in ids {
            members.launch(id, &[])?;
        }
        Ok(members)
    }

    fn launch(&mut self, id: MemberId, more: &[&str]) -> Result<()> {
        self.children.push((id, start_with(&self.cluster, id, LOG, more)?));
        Ok(())
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.cluster.ids()
    }

    fn child(&mut self, id: MemberId) -> Result<&mut Child> {
        let found = self.children.iter_mut().find(|(own, _)| *own == id);
        found.map(|(_, child)| child).with_context(|| format!("member {id} does not run"))
    }

    /// Waits until somebody leads.
    pub(super) fn wait_for_leader(&mut self) -> Result<MemberId> {
        let began = Instant::now();
        while began.elapsed() < LEADER_MAX {
            for (id, child) in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    bail!("member {id} ended by itself: {status}");
                }
            }
            if let Some(leader) = look(&self.cluster, Duration::from_millis(200)).leader() {
                return Ok(leader);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("no leader was found within {LEADER_MAX:?}")
    }

    /// kill -9.
    pub(super) fn kill(&mut self, id: MemberId) -> Result<()> {
        let child = self.child(id)?;
        child.kill().with_context(|| format!("cannot kill member {id}"))?;
        child.wait().with_context(|| format!("cannot wait for member {id}"))?;
        self.children.retain(|(own, _)| *own != id);
        Ok(())
    }

    /// Starts a member that was killed.
    pub(super) fn restart(&mut self, id: MemberId) -> Result<()> {
        self.launch(id, &[])
    }

    /// Ends a member in order and starts it again so that it loses `key`.
    pub(super) fn restart_losing(&mut self, id: MemberId, key: &[u8]) -> Result<()> {
        let child = self.child(id)?;
        terminate(child);
        child.wait().with_context(|| format!("cannot wait for member {id}"))?;
        self.children.retain(|(own, _)| *own != id);
        let key = std::str::from_utf8(key).context("the demo's own keys are text")?;
        self.launch(id, &["--plant-loss", key])
    }

    /// SIGSTOP.
    pub(super) fn stop(&mut self, id: MemberId) -> Result<()> {
        signal(self.child(id)?, Signal::STOP);
        Ok(())
    }

    /// SIGCONT.
    pub(super) fn go_on(&mut self, id: MemberId) -> Result<()> {
        signal(self.child(id)?, Signal::CONT);
        Ok(())
    }

    /// Hands leadership to `id` and waits until it leads.
    pub(super) fn make_leader(&mut self, id: MemberId) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < LEADER_MAX {
            if self.wait_for_leader()? == id {
                return Ok(());
            }
            // Refused while the member is not back yet: it is asked again.
            let options = Options {
                deadline: Duration::from_secs(1),
                ..Options::of_file(self.cluster.file())
            };
            let _asked = Client::connect(options).and_then(|mut client| client.transfer(Some(id)));
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("member {id} did not come to lead within {LEADER_MAX:?}")
    }

    /// Ends all members in order.
    pub(super) fn end(&mut self) -> Result<()> {
        for (_, child) in &self.children {
            terminate(child);
        }
        for (id, mut child) in self.children.drain(..) {
            let status = child.wait().with_context(|| format!("cannot wait for member {id}"))?;
            ensure!(status.success(), "member {id} ended: {status}");
        }
        Ok(())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // They may have ended; there is nobody to tell in any case.
            let _killed = child.kill();
            let _ended = child.wait();
        }
        let _removed = std::fs::remove_dir_all(self.cluster.run_dir());
        if !self.keep {
            let _removed = std::fs::remove_dir_all(&self.dir);
        }
    }
}
