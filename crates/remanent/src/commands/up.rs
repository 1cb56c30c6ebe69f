//! `remanent up`: every member of a cluster, each a process of its own.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use base::MemberId;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Global;
use crate::layout::Cluster;

/// How often the members are looked after.
const INTERVAL: Duration = Duration::from_millis(20);

/// Runs all members of a cluster on this machine, one process each, until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The cluster directory, made with `init`; as --cluster.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Starts a member again when it ends by itself.
    #[arg(long)]
    restart: bool,
    /// What the members log.
    #[arg(long, default_value = "warn", env = "REMANENT_LOG")]
    log: String,
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode> {
    let dir = arguments.dir.as_deref().unwrap_or(&global.cluster);
    let cluster = Cluster::read(dir)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot listen for signals")?;
    }
    let mut members = cluster
        .ids()
        .map(|id| Ok((id, Some(start(&cluster, id, &arguments.log)?))))
        .collect::<Result<Vec<_>>>()?;
    println!("{} members are starting; log follows", members.len());
    let began = Instant::now();
    let mut is_told = false;
    while !stop.load(Ordering::Acquire) {
        for (id, child) in &mut members {
            let Some(running) = child else { continue };
            let Some(status) = running.try_wait().context("cannot look after a member")? else {
                continue;
            };
            eprintln!("member {id} ended: {status}");
            *child = match arguments.restart {
                true => Some(start(&cluster, *id, &arguments.log)?),
                false => None,
            };
        }
        if members.iter().all(|(_, child)| child.is_none()) {
            anyhow::bail!("no member runs any more");
        }
        if !is_told && began.elapsed() > INTERVAL * 10 {
            is_told = tell_leader(&cluster);
        }
        std::thread::sleep(INTERVAL);
    }
    end(&mut members)
}

/// Says so once there is a leader.
fn tell_leader(cluster: &Cluster) -> bool {
    let leader = super::status::look(cluster, Duration::from_millis(100)).leader();
    let Some(leader) = leader else { return false };
    println!("ready: member {leader} leads");
    println!("try:   remanent -C {} put greeting hello", cluster.dir().display());
    true
}

/// Starts a member as a process that ends with this one.
pub(crate) fn start(cluster: &Cluster, id: MemberId, log: &str) -> Result<Child> {
    start_with(cluster, id, log, &[])
}

/// As [`start`], with more arguments for `node`.
pub(crate) fn start_with(
    cluster: &Cluster,
    id: MemberId,
    log: &str,
    more: &[&str],
) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Command::new(program)
        .args(["node", "--die-with-parent", "--log", log, "--member"])
        .arg(id.to_string())
        .arg("--cluster")
        .arg(cluster.dir())
        .args(more)
        .spawn()
        .with_context(|| format!("cannot start member {id}"))
}

fn end(members: &mut [(MemberId, Option<Child>)]) -> Result<ExitCode> {
    for child in members.iter().filter_map(|(_, child)| child.as_ref()) {
        terminate(child);
    }
    let mut is_clean = true;
    for (id, child) in members {
        let Some(child) = child else { continue };
        let status = child.wait().with_context(|| format!("cannot wait for member {id}"))?;
        if !status.success() {
            eprintln!("member {id} ended: {status}");
            is_clean = false;
        }
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks a member to end in order.
pub(crate) fn terminate(child: &Child) {
    signal(child, rustix::process::Signal::TERM);
}

/// Sends a signal to a member.
pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    if let Ok(pid) = i32::try_from(child.id())
        && let Some(pid) = rustix::process::Pid::from_raw(pid)
    {
        // It may have ended by itself; then there is nobody to ask.
        let _asked = rustix::process::kill_process(pid, signal);
    }
}
