//! `remanent demo`: a cluster on this machine, loaded with real files, hurt, and checked.
//!
//! ```text
//!   init -> start -> load files ---------------------------> check -> report
//!                        \ keep writing ................ /
//!                            kill -9 the leader, start it again
//!                            SIGSTOP a follower, SIGCONT
//! ```

mod check;
mod load;
mod members;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base::Durability;
use pmem::Backing;

use super::init::parse_durability;
use crate::bench::raw::{self, RawN};
use load::Load;
use members::Members;
use report::Report;

/// Bytes that a commit of the small writes stores on each member.
const ENTRY_BYTES: u32 = 128;

/// Three members on this machine load real files, keep writing while the leader is killed and a
/// follower is stopped, and are checked: every acknowledged write, on every member. Exit code 1 if
/// one was lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The files to load: each is a key. Build output and version control are left out.
    #[arg(long, value_name = "DIR", default_value = ".")]
    input: PathBuf,
    /// How many members.
    #[arg(short = 'n', long, default_value_t = 3)]
    members: u32,
    /// What an acknowledgement survives: sync, process or volatile.
    #[arg(long, default_value = "sync", value_parser = parse_durability)]
    durability: Durability,
    /// Where the cluster lies while it is needed: some 400 MiB for each member [default: the system's
    /// temporary directory; this one if that is in memory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leaves the cluster's directory where it is.
    #[arg(long)]
    keep: bool,
    /// How many clients write.
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// Removes one acknowledged write on one member before the check, which must then fail.
    #[arg(long)]
    plant_loss: bool,
}

/// The system's temporary directory, unless what is promised needs a disk and that is none.
fn on_disk(durability: Durability) -> PathBuf {
    let temporary = std::env::temp_dir();
    let is_memory = pmem::backing(&temporary).is_ok_and(|backing| backing == Backing::Memory);
    if durability == Durability::Sync && is_memory { PathBuf::from(".") } else { temporary }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(arguments.members >= 3, "with fewer than 3 members nobody can be spared");
    ensure!(arguments.clients >= 1, "somebody has to write");
    let parent = arguments.dir.clone().unwrap_or_else(|| on_disk(arguments.durability));
    let dir = parent.join(format!("remanent-demo-{}", std::process::id()));
    let mut members =
        Members::start(&dir, arguments.members, arguments.durability, arguments.keep)?;
    let leader = members.wait_for_leader()?;
    println!("{} members run, member {leader} leads", arguments.members);

    let load = Load::start(members.cluster(), &arguments.input, arguments.clients)?;
    load.wait_until_loaded()?;
    let mut report = Report::new(arguments, load.loaded());
    let pause = Duration::from_secs(1);
    std::thread::sleep(pause);

    let leader = members.wait_for_leader()?;
    println!("kill -9 member {leader}, which leads");
    load.forget_gap();
    members.kill(leader)?;
    load.wait_for_service(Duration::from_secs(30))?;
    std::thread::sleep(pause);
    report.without_leader = load.forget_gap();
    members.restart(leader)?;

    let new_leader = members.wait_for_leader()?;
    let follower = members.ids().find(|id| ![leader, new_leader].contains(id));
    let follower = follower.context("three members have a follower that was not hurt")?;
    println!("stop member {follower}, which follows member {new_leader}");
    load.forget_gap();
    members.stop(follower)?;
    std::thread::sleep(pause * 2);
    report.with_stopped = load.forget_gap();
    members.go_on(follower)?;
    std::thread::sleep(pause);

    let written = load.finish()?;
    report.add_status(&members)?;
    if arguments.plant_loss {
        let key = written.some_key()?;
        let leader = members.wait_for_leader()?;
        let at = members.ids().find(|id| *id != leader).context("there is a follower")?;
        println!("planting: member {at} loses `{}`", String::from_utf8_lossy(&key));
        members.restart_losing(at, &key)?;
    }
    let ids: Vec<_> = members.ids().collect();
    for id in ids {
        members.make_leader(id)?;
        let lost = check::lost_on(members.cluster(), id, &written.acknowledged)?;
        println!("checked member {id}: {lost} lost of {}", written.acknowledged.len());
        report.lost += lost;
    }
    report.raw = Some(raw::measure(&RawN {
        dir,
        members: arguments.members,
        bytes: ENTRY_BYTES,
        mode: arguments.durability,
        count: 20_000,
        time_max: Duration::from_secs(2),
    })?);
    members.end()?;
    report.written = written;
    print!("\n{}", report.text());
    Ok(if report.lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(super::NO) })
}
