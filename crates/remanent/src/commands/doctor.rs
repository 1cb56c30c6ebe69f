//! `remanent doctor`: what is wrong with this machine or a cluster, and what to do.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use base::{Durability, MemberId};
use bytesize::ByteSize;
use consensus::Params;
use logfmt::MemberLog;
use pmem::{Backing, WriteBack};

use super::Global;
use super::inspect;
use crate::layout::Cluster;

/// Syncs that are timed.
const SYNCS: usize = 20;

/// Looks at this machine and, if there is one, at the cluster. It changes nothing but one small
/// file that it removes again. Exit code 1 if something is broken.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Reads every byte of the logs and of the checkpoints too.
    #[arg(long)]
    deep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, but.
    Note,
    Broken,
}

#[derive(Debug, Default)]
struct Findings {
    text: String,
    broken: u32,
}

impl Findings {
    fn add(&mut self, verdict: Verdict, what: &str, found: impl std::fmt::Display) {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Note => "note",
            Verdict::Broken => "BAD ",
        };
        self.broken += u32::from(verdict == Verdict::Broken);
        // Writing into a text cannot fail.
        let _written = writeln!(self.text, "{mark}  {what}: {found}");
    }
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode> {
    let mut findings = Findings::default();
    machine(&mut findings);
    let dir = &global.cluster;
    if dir.join("cluster.toml").exists() {
        match Cluster::read(dir) {
            Ok(cluster) => look_at(&cluster, arguments.deep, &mut findings),
            Err(error) => findings.add(Verdict::Broken, "cluster", format!("{error:#}")),
        }
    } else {
        let what = format!("{}: none here; make one with `remanent init`", dir.display());
        findings.add(Verdict::Note, "cluster", what);
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        disk(parent.unwrap_or_else(|| Path::new(".")), 0, &mut findings);
    }
    std::io::stdout().write_all(findings.text.as_bytes())?;
    if findings.broken > 0 {
        println!("{} things are broken", findings.broken);
        return Ok(ExitCode::from(super::NO));
    }
    println!("nothing is broken");
    Ok(ExitCode::SUCCESS)
}

fn machine(findings: &mut Findings) {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let verdict = if count < 3 { Verdict::Note } else { Verdict::Good };
    let advice = if count < 3 { "; members that share one answer later" } else { "" };
    findings.add(verdict, "processors", format!("{count}{advice}"));
    let write_back = match WriteBack::detect() {
        WriteBack::Clwb => "clwb",
        WriteBack::Clflushopt => "clflushopt",
        WriteBack::Clflush => "clflush",
    };
    findings.add(Verdict::Good, "cache line write-back", write_back);
    match pmem::boot_id() {
        Ok(_) => findings.add(Verdict::Good, "boot id", "readable"),
        Err(error) => {
            findings.add(Verdict::Broken, "boot id", format!("{error}: mount /proc"));
        }
    }
    let shared = Path::new("/dev/shm");
    match pmem::backing(shared) {
        Ok(Backing::Memory) => findings.add(
            Verdict::Good,
            "shared memory",
            format!("/dev/shm, {} free", free(shared).display().iec()),
        ),
        Ok(_) | Err(_) => findings.add(
            Verdict::Note,
            "shared memory",
            "/dev/shm is no memory: boards lie on disk then, choose --run-dir at init",
        ),
    }
    let cards = names_in(Path::new("/sys/class/infiniband"));
    let found =
        if cards.is_empty() { "none: members share memory".to_owned() } else { cards.join(", ") };
    findings.add(Verdict::Good, "RDMA cards", found);
    let pmem = names_in(Path::new("/sys/bus/nd/devices"));
    let found =
        if pmem.is_empty() { "none: logs lie in files".to_owned() } else { pmem.join(", ") };
    findings.add(Verdict::Good, "persistent memory", found);
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn free(path: &Path) -> ByteSize {
    let stat = rustix::fs::statvfs(path);
    ByteSize(stat.map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// Room for the next checkpoints, and how long a sync takes.
fn disk(dir: &Path, needed: u64, findings: &mut Findings) {
    let room = free(dir);
    let what = format!("disk of {}", dir.display());
    if room.0 < needed {
        let needed = ByteSize(needed);
        let found = format!(
            "{} free; checkpoints may need {}: free some",
            room.display().iec(),
            needed.display().iec()
        );
        findings.add(Verdict::Note, &what, found);
    } else {
        findings.add(Verdict::Good, &what, format!("{} free", room.display().iec()));
    }
    match time_sync(dir) {
        Ok(median) => {
            let verdict =
                if median > Duration::from_millis(20) { Verdict::Note } else { Verdict::Good };
            let found =
                format!("{median:.1?} (median of {SYNCS}); an acknowledgement waits for one");
            findings.add(verdict, "sync of 4 KiB there", found);
        }
        Err(error) => {
            let found = format!("{error}: can this user write there?");
            findings.add(Verdict::Broken, "sync of 4 KiB there", found);
        }
    }
}

fn time_sync(dir: &Path) -> std::io::Result<Duration> {
    let path = dir.join(format!(".remanent-doctor-{}", std::process::id()));
    let timed = (|| -> std::io::Result<Duration> {
        let mut file = File::create_new(&path)?;
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let began = Instant::now();
            file.write_all(&[0; 4096])?;
            file.sync_data()?;
            times.push(began.elapsed());
        }
        times.sort();
        Ok(times[SYNCS / 2])
    })();
    let removed = std::fs::remove_file(&path);
    let timed = timed?;
    removed.map(|()| timed)
}

fn look_at(cluster: &Cluster, deep: bool, findings: &mut Findings) {
    let what = format!("cluster {}", cluster.id());
    let found =
        format!("{} members, durability {}", cluster.ids().count(), cluster.durability().name());
    findings.add(Verdict::Good, &what, found);
    disk(cluster.dir(), cluster.max_state_bytes(), findings);
    if cluster.durability() == Durability::Sync
        && pmem::backing(cluster.dir()).is_ok_and(|backing| backing == Backing::Memory)
    {
        findings.add(Verdict::Broken, "durability", "sync on a directory that lies in memory");
    }
    for id in cluster.ids() {
        member(cluster, id, deep, findings);
    }
    let sight = super::status::look(cluster, Duration::from_secs(1));
    for (id, said) in &sight.members {
        let what = format!("member {id} running");
        match said {
            Ok(said) if said["failed"] == true => {
                let trouble = said["trouble"].as_str().unwrap_or("storage failed").to_owned();
                findings.add(Verdict::Broken, &what, trouble);
            }
            Ok(said) => {
                let role = said["role"].as_str().unwrap_or("?").to_owned();
                let trouble = said["trouble"].as_str();
                let verdict = if trouble.is_some() { Verdict::Note } else { Verdict::Good };
                let trouble = trouble.map(|trouble| format!("; {trouble}")).unwrap_or_default();
                findings.add(verdict, &what, format!("{role}{trouble}"));
            }
            Err(why) => findings.add(Verdict::Note, &what, format!("no: {why}")),
        }
    }
    let runs = sight.members.iter().any(|(_, said)| said.is_ok());
    if runs && sight.leader().is_none() {
        findings.add(Verdict::Broken, "leader", "nobody leads: does a majority of members run?");
    }
}

fn member(cluster: &Cluster, id: MemberId, deep: bool, findings: &mut Findings) {
    let what = format!("member {id} on disk");
    match examine(cluster, id, deep) {
        Ok(found) => findings.add(Verdict::Good, &what, found),
        Err(error) => findings.add(Verdict::Broken, &what, format!("{error:#}")),
    }
}

/// What stands in a member's files, if it can be used.
fn examine(cluster: &Cluster, id: MemberId, deep: bool) -> Result<String> {
    let paths = cluster.paths(id)?;
    let region = inspect::open(&paths.region)?;
    let superblock = inspect::superblock(&region)?;
    let layout = inspect::layout(&superblock)?;
    let len = std::fs::metadata(&paths.region)?.len();
    anyhow::ensure!(
        len >= layout.region_len(),
        "{}: has {len} bytes of {}: it was truncated; restore it from a copy, or give this member's \
         place to a new member",
        paths.region.display(),
        layout.region_len()
    );
    let identity = superblock.identity;
    let known = cluster.member(id)?;
    anyhow::ensure!(
        identity.cluster == cluster.id()
            && identity.member == id
            && identity.incarnation == known.incarnation,
        "{}: belongs to member {} (incarnation {}) of cluster {}, not to this one",
        paths.region.display(),
        identity.member,
        identity.incarnation,
        identity.cluster
    );
    let mut found = format!(
        "term {}, checkpoint at {}, {} of {} segments in use",
        superblock.term,
        superblock.checkpoint.at.index,
        superblock.segments.len(),
        superblock.slot_count
    );
    if deep {
        let window = Params::default().window_bytes_max;
        let (log, restored) = MemberLog::restore(layout, &superblock, &region, false, window)?;
        if let Some(damage) = restored.damage {
            anyhow::bail!("{}: {damage:?}", paths.region.display());
        }
        let _written = write!(found, ", log through {}", log.tail().index);
        let state = superblock.checkpoint.state;
        if state.id != 0 {
            let path = paths.state.join(format!("{}.state", state.id));
            let bytes = check_state(&path, &state)?;
            let _written =
                write!(found, ", checkpoint of {} good", ByteSize(bytes).display().iec());
        }
    }
    Ok(found)
}

fn check_state(path: &PathBuf, state: &logfmt::StateFile) -> Result<u64> {
    use anyhow::Context as _;
    let mut file = File::open(path)
        .with_context(|| format!("{}: the checkpoint is not there", path.display()))?;
    let mut digest = replica::StateDigest::default();
    let mut bytes = vec![0; 256 << 10];
    let mut len = 0;
    loop {
        let count = file.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        digest.update(&bytes[..count]);
        len += count as u64;
    }
    anyhow::ensure!(
        len == state.length && digest.digest() == state.digest,
        "{}: its bytes are not those that the superblock names; the member takes its state from \
         its peers once this file is gone and a new member has its place",
        path.display()
    );
    Ok(len)
}
