//! The rows: each spoils something of one member and says what must come of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use client::{ClusterFile, MemberFile};
use xxhash_rust::xxh3::Xxh3;

use super::bench::{Bench, COPY_BYTES, SOON, fill, find, flip, small_key, truncate};
use crate::cluster::Cluster;
use crate::media::{self, Extent, Mount};

/// A name, and what is done.
pub(super) type Row = (&'static str, fn(&mut Bench) -> Result<()>);

/// The member whose disk is spoiled.
const BAD: u32 = 3;
/// A member whose disk is good.
const GOOD: u32 = 1;

pub(super) const ROWS: [Row; 25] = [
    ("disk full, follower", |bench| disk_full(bench, GOOD)),
    ("disk full, leader", |bench| disk_full(bench, BAD)),
    ("directory read-only", read_only),
    ("region truncated to half", |bench| truncated(bench, HALF_BYTES, &["region", "truncated"])),
    ("region truncated in the superblock", |bench| {
        truncated(bench, 4096, &["region", "truncated"])
    }),
    ("region truncated to nothing", |bench| truncated(bench, 0, &["region", "truncated"])),
    ("region truncated while running, follower", |bench| truncated_running(bench, GOOD)),
    ("region truncated while running, leader", |bench| truncated_running(bench, BAD)),
    ("byte flipped, superblock copy 0", |bench| superblock_copy(bench, 0)),
    ("byte flipped, superblock copy 1", |bench| superblock_copy(bench, 1)),
    ("byte flipped, both superblock copies", both_superblock_copies),
    ("byte flipped, entry", entry),
    ("byte flipped, control file", control),
    ("byte flipped, state file", state_file),
    ("byte flipped, cluster.toml, version", |bench| toml(bench, "version = ", &["version = 0"])),
    ("byte flipped, cluster.toml, syntax", |bench| toml(bench, "\n[", &["cluster.toml"])),
    ("byte flipped, cluster.toml, cluster id", |bench| toml(bench, "cluster = \"", &["region"])),
    ("byte flipped, cluster.toml, incarnation", |bench| {
        toml(bench, "incarnation = \"", &["region", "incarnation"])
    }),
    ("newer format, superblock", newer_superblock),
    ("newer format, cluster.toml", newer_toml),
    ("two processes, one run directory", two_processes),
    ("two processes, two run directories", two_run_dirs),
    ("region of a new cluster under an old id", |bench| founded_anew(bench, false)),
    ("region of another incarnation under an old id", |bench| founded_anew(bench, true)),
    ("blank disk under an old id", blank),
];

/// A quorum goes back to the day it was founded, and forgets what it promised: no group can
/// survive that, and the case must see it.
pub(super) const PLANTED: Row = ("planted: a quorum is put back", put_quorum_back);

/// Half of a region of four segments of 64 MiB.
const HALF_BYTES: u64 = 128 << 20;
/// The disk of the state files: room for two states of three large values.
const STATE_DISK: Extent = Extent { offset: 0, len: 64 << 20 };
/// Large writes that fill the log more than once.
const LOG_WRITES: u64 = 96;

fn region(bench: &Bench, id: u32) -> PathBuf {
    bench.cluster.member_dir(id).join("region")
}

fn disk_full(bench: &mut Bench, leader: u32) -> Result<()> {
    let image = bench.place("state-disk");
    media::make_ext4(&image, STATE_DISK)?;
    let state = bench.cluster.member_dir(BAD).join("state");
    bench.mounts.push(Mount::of_file(&image, None, &state)?);
    bench.start_all()?;
    bench.cluster.make_leader(leader)?;
    let filler = fill(&state)?;
    bench.did(format!("member {leader} leads; the disk of member {BAD}'s state files is full"));
    let patience = Duration::from_secs(10);
    let said = "cannot write a checkpoint";
    let (written, refused) =
        bench.write_large(LOG_WRITES, patience, |bench| Ok(bench.hear(BAD)?.contains(said)))?;
    ensure!(bench.hear(BAD)?.contains(said), "after {written} writes, {refused:?}: no word of it");
    bench.goes_on()?;
    bench.did(format!("{written} writes of 4 MiB until it said so; the group went on"));
    let (more, refused) = bench.write_large(LOG_WRITES, Duration::from_secs(3), |_| Ok(false))?;
    match &refused {
        None => bench.did(format!("{more} more writes of 4 MiB, all acknowledged")),
        Some(error) if leader == BAD => {
            bench.did(format!("{more} more writes of 4 MiB, then the log was full: {error}"));
        }
        Some(error) => bail!("a follower's full disk holds the group back: {error}"),
    }
    std::fs::remove_file(&filler)?;
    bench.checkpoint(BAD, 1)?;
    bench.cluster.wait_until_all_follow()?;
    bench.did("the disk has room again: writes and checkpoints go on");
    bench.leads_with_everything(BAD)
}

fn read_only(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let dir = bench.cluster.member_dir(BAD);
    let mount = Mount::read_only(&dir)?;
    bench.did(format!("member {BAD} is stopped, its directory mounted read-only"));
    bench.is_refused(BAD, &[&format!("/{BAD}/"), "Read-only"])?;
    drop(mount);
    bench.comes_back(BAD)
}

fn truncated(bench: &mut Bench, len: u64, wanted: &[&str]) -> Result<()> {
    bench.run_and_kill(BAD)?;
    truncate(&region(bench, BAD), len)?;
    bench.did(format!("member {BAD} is stopped, its region cut to {len} bytes"));
    bench.is_refused(BAD, wanted)
}

fn truncated_running(bench: &mut Bench, leader: u32) -> Result<()> {
    bench.start_all()?;
    bench.cluster.make_leader(leader)?;
    bench.goes_on()?;
    truncate(&region(bench, BAD), COPY_BYTES * 2)?;
    bench.did(format!("member {leader} leads; the region of member {BAD} is cut while it runs"));
    // Of some of these nobody may ever know: the leader may be the one that fails.
    let (written, stopped) = bench.write_large(16, SOON, |_| Ok(false))?;
    let stopped = stopped.map_or_else(String::new, |error| format!(", then: {error}"));
    bench.did(format!("{written} writes of 4 MiB acknowledged{stopped}"));
    bench.fails_alone(BAD, &["region", "truncated"])?;
    if bench.cluster.running().contains(&BAD) {
        bench.cluster.kill(BAD)?;
    }
    bench.is_refused(BAD, &["region", "truncated"])
}

fn superblock_copy(bench: &mut Bench, copy: u64) -> Result<()> {
    bench.run_and_kill(BAD)?;
    flip(&region(bench, BAD), copy * COPY_BYTES + 100)?;
    bench.did(format!("member {BAD} is stopped, a byte of superblock copy {copy} flipped"));
    bench.comes_back(BAD)
}

fn both_superblock_copies(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    for copy in [0, 1] {
        flip(&region(bench, BAD), copy * COPY_BYTES + 100)?;
    }
    bench.did(format!("member {BAD} is stopped, a byte of either superblock copy flipped"));
    bench.is_refused(BAD, &["region", "superblock"])
}

fn entry(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let path = region(bench, BAD);
    let key = small_key(5);
    let at = find(&path, key.as_bytes())?;
    flip(&path, at + key.len() as u64 + 20)?;
    bench.did(format!("member {BAD} is stopped, a byte of the value of {key} in its log flipped"));
    bench.comes_back(BAD)
}

fn control(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let path = bench.cluster.member_dir(BAD).join("control");
    for word in 0..8 {
        flip(&path, word * 8 + 2)?;
    }
    bench.did(format!("member {BAD} is stopped, a byte of every word of its control line flipped"));
    bench.comes_back(BAD)
}

fn state_file(bench: &mut Bench) -> Result<()> {
    bench.start_all()?;
    bench.checkpoint(BAD, 1)?;
    bench.cluster.kill(BAD)?;
    bench.goes_on()?;
    let mut files = std::fs::read_dir(bench.cluster.member_dir(BAD).join("state"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    ensure!(!files.is_empty(), "a checkpoint has a file");
    // Which of them the superblock names is the member's matter: all are spoiled.
    for path in &files {
        flip(path, path.metadata()?.len() / 2)?;
    }
    bench.did(format!(
        "member {BAD} is stopped, a byte flipped in each of {} state files",
        files.len()
    ));
    bench.is_refused(BAD, &["state file", "restore the member from its peers"])
}

fn toml(bench: &mut Bench, before: &str, wanted: &[&str]) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let path = bench.cluster.dir().join("cluster.toml");
    let text = std::fs::read_to_string(&path)?;
    // The last place: of members it is the bad one's.
    let at = text.rfind(before).context("cluster.toml has such a line")? + before.len();
    let mut bytes = text.clone().into_bytes();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes)?;
    let line = String::from_utf8_lossy(&bytes)
        .lines()
        .find(|line| !text.contains(line))
        .map(str::to_owned);
    bench.did(format!(
        "member {BAD} is stopped, a bit of cluster.toml flipped: {}",
        line.unwrap_or_default()
    ));
    bench.is_refused(BAD, wanted)?;
    std::fs::write(&path, text)?;
    bench.comes_back(BAD)
}

fn newer_superblock(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    change_superblock(&region(bench, BAD), 0, |copy| copy[8] += 1)?;
    bench.did(format!("member {BAD} is stopped, superblock copy 0 is of a newer format"));
    bench.is_refused(BAD, &["region", "format 2", "upgrade"])?;
    change_superblock(&region(bench, BAD), 0, |copy| copy[8] -= 1)?;
    bench.comes_back(BAD)
}

fn newer_toml(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let path = bench.cluster.dir().join("cluster.toml");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{}\nfresh = 1\n", text.replace("version = 1", "version = 2")))?;
    bench.did(format!("member {BAD} is stopped, cluster.toml has version 2 and an unknown field"));
    bench.is_refused(BAD, &["cluster.toml", "version 2", "newer"])?;
    std::fs::write(&path, text)?;
    bench.comes_back(BAD)
}

fn two_processes(bench: &mut Bench) -> Result<()> {
    bench.start_all()?;
    bench.did(format!("member {BAD} runs and is started once more"));
    bench.is_refused(BAD, &["running already"])?;
    bench.cluster.wait_until_all_follow()?;
    bench.leads_with_everything(BAD)
}

/// As after copying cluster.toml with another run directory: the boards do not show it.
fn two_run_dirs(bench: &mut Bench) -> Result<()> {
    bench.start_all()?;
    let other = bench.place("other");
    std::fs::create_dir_all(&other)?;
    let file = bench.cluster.file();
    let dir = |id: u32| std::path::absolute(bench.cluster.member_dir(id));
    let members = file
        .members
        .iter()
        .map(|member| Ok(MemberFile { dir: dir(member.id.0)?, ..member.clone() }))
        .collect::<Result<Vec<_>>>()?;
    ClusterFile { run_dir: other.join("run"), members, ..file.clone() }.write_new(&other)?;
    bench.did(format!("member {BAD} runs and is started once more with another run directory"));
    bench.is_refused_in(&other, BAD, &["region", "already in use by pid"])?;
    bench.cluster.wait_until_all_follow()?;
    bench.leads_with_everything(BAD)
}

fn founded_anew(bench: &mut Bench, in_this_cluster: bool) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let fresh = Cluster::init(&bench.place("fresh"), 3, &Bench::ARGUMENTS)?;
    let (own, path) = (region(bench, BAD), bench.place("own-region"));
    std::fs::rename(&own, &path)?;
    std::fs::rename(fresh.member_dir(BAD).join("region"), &own)?;
    let whose = if in_this_cluster {
        let id = bench.cluster.file().cluster.0.to_le_bytes();
        change_superblock(&own, 1, |copy| copy[32..48].copy_from_slice(&id))?;
        "with incarnation"
    } else {
        "of cluster"
    };
    bench.did(format!("member {BAD} is stopped and given a fresh region, {whose} .."));
    bench.is_refused(BAD, &["region", "belongs to", whose])?;
    std::fs::rename(&path, &own)?;
    bench.did("its own region is put back");
    bench.comes_back(BAD)
}

fn blank(bench: &mut Bench) -> Result<()> {
    bench.run_and_kill(BAD)?;
    let dir = bench.cluster.member_dir(BAD);
    std::fs::remove_dir_all(&dir)?;
    std::fs::create_dir(&dir)?;
    bench.did(format!("member {BAD} is stopped, its directory emptied"));
    bench.is_refused(BAD, &["region", "no region", "initialised"])
}

fn put_quorum_back(bench: &mut Bench) -> Result<()> {
    let founded = |bench: &Bench, id: u32| bench.place(&format!("founded-{id}"));
    for id in bench.cluster.ids() {
        media::run(
            "cp",
            &["--sparse=always".as_ref(), region(bench, id).as_ref(), founded(bench, id).as_ref()],
        )?;
    }
    bench.start_all()?;
    bench.goes_on()?;
    bench.cluster.kill_all()?;
    for id in [GOOD, 2] {
        std::fs::rename(founded(bench, id), region(bench, id))?;
    }
    bench.did("the regions of members 1 and 2 are put back as `init` made them");
    for id in [GOOD, 2] {
        bench.start(id)?;
    }
    bench.cluster.wait_until_all_follow()?;
    bench.goes_on()
}

/// Changes a copy of the superblock and makes its checksum right, as only a program would.
fn change_superblock(path: &Path, copy: u64, change: impl Fn(&mut [u8])) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let mut bytes = vec![0; usize::try_from(COPY_BYTES)?];
    file.read_exact_at(&mut bytes, copy * COPY_BYTES)?;
    change(&mut bytes);
    let length = u32::from_le_bytes(*bytes[12..].first_chunk().context("a length")?);
    let used = bytes.get_mut(..usize::try_from(length)?).context("a length within the copy")?;
    ensure!(used.len() > 64, "{}: there is no superblock copy {copy}", path.display());
    used[16..24].fill(0);
    let mut hash = Xxh3::new();
    hash.update(used);
    used[16..24].copy_from_slice(&hash.digest().to_le_bytes());
    file.write_all_at(&bytes, copy * COPY_BYTES)?;
    Ok(())
}
