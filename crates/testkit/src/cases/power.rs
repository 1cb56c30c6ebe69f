//! Power cuts in durability `sync`: whatever was acknowledged before the cut is there when power
//! returns, cut after cut.
//!
//! ```text
//!   pool/7.img on XFS:  | ext4 of member 1 | ext4 of member 2 | ext4 of member 3 |
//!        |                   mounted at CLUSTER/1, CLUSTER/2 .., each through its own loop device
//!        | cut = one clone of the file (FICLONE) while members and clients go on
//!        v
//!   pool/8.img:         mounted elsewhere (ext4 replays its journal), with a run directory of its
//!                       own: the cluster that power has returned to, and the next to lose it
//! ```
//!
//! # What a clone holds
//! What the disks had taken until then: everything that a sync had returned for, and whatever else
//! ext4 had already written. What was only in the memory of members or in ext4's page cache is gone.
//! A disk here keeps what it took without a flush; that a missing flush is seen is not claimed.
//!
//! # Why all disks are one file
//! One clone is one moment: XFS waits for the writes under way and keeps others out until it is
//! done. Clones of several files, milliseconds apart, would be no power cut: between two of them a
//! leader may count a follower's copy that the follower's clone, taken before, does not have, and
//! its own clone would say "committed" of an entry that no quorum holds. No disks that lose power
//! can show that, and a group may rightly refuse it.
//!
//! So a write acknowledged before the clone began is on the disks of a quorum in it, and must be
//! there. One acknowledged later may be there or not.
//!
//! The boot id stays the same in this test though power went. That is fine for `sync`, which
//! promises the same over any boot.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base::Random;
use client::blocking::Client;
use client::{ClusterFile, Options};
use rustix::fs::{FallocateFlags, fallocate};

use crate::cluster::{Cluster, Scratch};
use crate::media::{self, Extent, Mount};

/// Every so manieth cut falls into the restart after the one before it.
const RESTART_EVERY: u32 = 5;
/// The latest moment of a cut, after the first acknowledgement: well below the seconds after which
/// ext4 writes back and commits by itself, which would hide a missing sync.
const LOAD_MS_MAX: u64 = 1_500;
/// The latest moment of a cut into a restart.
const RESTART_MS_MAX: u64 = 400;
/// How long the first acknowledgement may take.
const FIRST_MAX: Duration = Duration::from_secs(30);
/// Segments of the log, and their length: small, so that checkpoints are cut too.
const SEGMENTS: u32 = 4;
const SEGMENT_BYTES: u64 = 64 << 20;
/// Beside the log, for two state files and ext4's own.
const ROOM_BYTES: u64 = 192 << 20;
/// Keys that the heavy client overwrites, and bytes of their values.
const HEAVY_KEYS: u64 = 4;
const HEAVY_BYTES: u64 = 512 << 10;
/// Losses that are told in words.
const TEXTS_MAX: usize = 8;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Members.
    pub members: u32,
    /// How often power goes.
    pub cuts: u32,
    /// Clients that write keys of their own, each once; one more overwrites large values.
    pub clients: u32,
    /// Of the moments of the cuts.
    pub seed: u64,
    /// Where the disks are made; memory will do, since only the file systems in it lose power.
    pub dir: PathBuf,
    /// Whether the members sync nothing.
    pub plant: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Cuts, and how many of them fell into a restart.
    pub cuts: (u32, u32),
    /// Writes acknowledged before their cut began.
    pub acknowledged: u64,
    /// Those of them that are not there.
    pub lost: u64,
    /// Checkpoints that the members of all generations have taken.
    pub checkpoints: u64,
    /// The longest time from the start of the members to the first read.
    pub returned: Duration,
    /// What went wrong, in words.
    pub wrong: Vec<String>,
}

impl Found {
    /// Whether nothing is lost, and every member came back every time.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.lost == 0 && self.wrong.is_empty()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for text in &self.wrong {
            writeln!(f, "{text}")?;
        }
        write!(
            f,
            "RESULT cuts={} in_restart={} acknowledged={} lost={} checkpoints={} returned_ms={}",
            self.cuts.0,
            self.cuts.1,
            self.acknowledged,
            self.lost,
            self.checkpoints,
            self.returned.as_millis(),
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// When it must be skipped, or the disks cannot be made.
pub fn run(plan: &Plan) -> Result<Found> {
    media::enter("power", &[("mkfs.xfs", "xfsprogs"), ("mkfs.ext4", "e2fsprogs")])?;
    ensure!(plan.members >= 1 && plan.cuts >= 1, "at least one member and one cut");
    let disks = Disks::make(plan)?;
    let mut trial = Trial {
        generation: disks.mount(0, plan)?,
        random: Random::new(plan.seed),
        expected: BTreeMap::new(),
        found: Found::default(),
    };
    trial.generation.cluster.start_all()?;
    for cut in 1..=plan.cuts {
        let moment = trial.cut(cut, plan, &disks)?;
        println!("cut {cut}: {moment}, {} writes must be there", trial.expected.len());
        if let Err(error) = trial.verify() {
            // What cannot be read is lost, as far as anybody can tell.
            trial.found.lost += trial.expected.len() as u64;
            trial.found.wrong.push(format!("after cut {cut}: {error:#}"));
            break;
        }
    }
    let Trial { generation, found, .. } = trial;
    drop(generation);
    drop(disks);
    Ok(found)
}

/// The pool of images, and where they are mounted.
struct Disks {
    pool: Mount,
    places: Scratch,
    file: ClusterFile,
    _pool_file: Scratch,
}

/// A cluster between two cuts.
struct Generation {
    // Invariant: dropped before the mounts that its processes use.
    cluster: Cluster,
    _mounts: Vec<Mount>,
    number: u32,
}

/// The part of an image that is the disk of member `id`.
fn disk_of(id: u32) -> Extent {
    let len = SEGMENT_BYTES * u64::from(SEGMENTS) + ROOM_BYTES;
    Extent { offset: u64::from(id - 1) * len, len }
}

impl Disks {
    /// Makes the pool and in it the first image: a cluster that has never run.
    fn make(plan: &Plan) -> Result<Self> {
        let pool_file = Scratch::new_in(&plan.dir, "power-pool")?;
        let places = Scratch::new("power")?;
        let path = pool_file.path().join("xfs");
        let whole = disk_of(plan.members + 1).offset;
        // The old image and the new one, and slack for XFS; the file is sparse.
        media::make_xfs(&path, 3 * whole + (1 << 30))?;
        let pool = Mount::of_file(&path, None, &places.path().join("pool"))?;
        let plain = pool.path().join("plain");
        let segments = SEGMENTS.to_string();
        let size = format!("{}MiB", SEGMENT_BYTES >> 20);
        let arguments = ["--durability", "sync", "--segments", &segments, "--segment-size", &size];
        let cluster = Cluster::init(&plain, plan.members, &arguments)?;
        let file = cluster.file().clone();
        let disks = Self { pool, places, file, _pool_file: pool_file };
        for id in cluster.ids() {
            disks.fill(&cluster.member_dir(id), id)?;
        }
        drop(cluster);
        std::fs::remove_dir_all(&plain).context("cannot remove what was copied")?;
        Ok(disks)
    }

    /// Makes the disk of member `id` in the first image, with the files in `from`.
    fn fill(&self, from: &Path, id: u32) -> Result<()> {
        media::make_ext4(&self.image(0), disk_of(id))?;
        let disk =
            Mount::of_file(&self.image(0), Some(disk_of(id)), &self.places.path().join("fill"))?;
        let arguments = ["-a", "--sparse=always"].map(OsStr::new);
        let content = from.join(".");
        media::run(
            "cp",
            &[&arguments[..], &[content.as_os_str(), disk.path().as_os_str()]].concat(),
        )?;
        // The copy has holes where `init` had allocated; a member's region never has any.
        let region = std::fs::File::options().write(true).open(disk.path().join("region"))?;
        let len = region.metadata()?.len();
        fallocate(&region, FallocateFlags::empty(), 0, len).context("cannot allocate a region")?;
        Ok(())
    }

    fn image(&self, number: u32) -> PathBuf {
        self.pool.path().join(format!("{number}.img"))
    }

    /// Mounts the disks of an image; nobody runs yet.
    fn mount(&self, number: u32, plan: &Plan) -> Result<Generation> {
        let dir = self.places.path().join(number.to_string());
        let mount = |id: u32| {
            Mount::of_file(&self.image(number), Some(disk_of(id)), &dir.join(id.to_string()))
        };
        let mounts = (1..=plan.members).map(mount).collect::<Result<Vec<_>>>()?;
        let mut run_dir = self.file.run_dir.as_os_str().to_owned();
        run_dir.push(format!("-{number}"));
        ClusterFile { run_dir: run_dir.into(), ..self.file.clone() }.write_new(&dir)?;
        let mut cluster = Cluster::open(&dir)?;
        if plan.plant {
            cluster.set_arguments(&["--plant-no-sync"]);
        }
        Ok(Generation { cluster, _mounts: mounts, number })
    }
}

struct Trial {
    generation: Generation,
    random: Random,
    /// The greatest number of every key that was acknowledged before a cut.
    expected: BTreeMap<String, u64>,
    found: Found,
}

impl Trial {
    /// Cuts the power and mounts what is left; nobody runs then. Says when it was.
    fn cut(&mut self, cut: u32, plan: &Plan, disks: &Disks) -> Result<String> {
        let next = self.generation.number + 1;
        let (from, to) = (disks.image(self.generation.number), disks.image(next));
        let moment = if cut.is_multiple_of(RESTART_EVERY) {
            self.generation.cluster.kill_all()?;
            self.generation.cluster.start_all()?;
            let after = Duration::from_millis(self.random.below(RESTART_MS_MAX));
            std::thread::sleep(after);
            media::clone(&from, &to)?;
            self.found.cuts.1 += 1;
            format!("{} ms into a restart", after.as_millis())
        } else {
            self.generation.cluster.wait_for_leader()?;
            let writers = Writers::start(&self.generation, plan.clients)?;
            writers.wait_for_first()?;
            let after = Duration::from_millis(self.random.below(LOAD_MS_MAX));
            std::thread::sleep(after);
            let began = Instant::now();
            media::clone(&from, &to)?;
            let took = began.elapsed();
            let before = self.expect(writers.finish()?, began);
            format!(
                "{} ms into the load, {before} acknowledged, cloned in {took:.1?}",
                after.as_millis()
            )
        };
        self.found.cuts.0 += 1;
        self.note_checkpoints();
        let new = disks.mount(next, plan)?;
        // The members of before end here, and their disks with them.
        self.generation = new;
        std::fs::remove_file(&from).with_context(|| format!("{}", from.display()))?;
        Ok(moment)
    }

    /// Remembers what was acknowledged before `began`; how many writes that were.
    fn expect(&mut self, told: Vec<Acknowledged>, began: Instant) -> u64 {
        let before = told.into_iter().filter(|one| one.at < began);
        let mut count = 0;
        for Acknowledged { key, number, .. } in before {
            let expected = self.expected.entry(key).or_default();
            *expected = number.max(*expected);
            count += 1;
        }
        self.found.acknowledged += count;
        count
    }

    fn note_checkpoints(&mut self) {
        let cluster = &self.generation.cluster;
        for id in cluster.running() {
            let said = cluster.status_of(id, Duration::from_millis(500));
            let count = said.and_then(|said| said["checkpoints"].as_u64());
            self.found.checkpoints += count.unwrap_or_default();
        }
    }

    /// Starts the members and looks for everything that must be there.
    fn verify(&mut self) -> Result<()> {
        let began = Instant::now();
        let cluster = &mut self.generation.cluster;
        cluster.start_all()?;
        cluster.wait_for_leader()?;
        let mut client = Client::connect(cluster.options())?;
        client.get(b"anything")?;
        self.found.returned = self.found.returned.max(began.elapsed());
        let mut lost = Vec::new();
        for (key, &expected) in &self.expected {
            let value = client.get(key.as_bytes()).with_context(|| format!("cannot read {key}"))?;
            let number = value.as_ref().and_then(|value| number_of(key, &value.value));
            if number.is_none_or(|number| number < expected) {
                let text = match (value, number) {
                    (None, _) => "nothing is there".to_owned(),
                    (Some(_), Some(number)) => format!("{number} is there"),
                    (Some(_), None) => "bytes that nobody wrote are there".to_owned(),
                };
                lost.push((key.clone(), format!("{key}: {expected} was acknowledged, {text}")));
            }
        }
        self.found.lost += lost.len() as u64;
        for (key, text) in lost {
            // Counted once, not after every later cut.
            self.expected.remove(&key);
            if self.found.wrong.len() < TEXTS_MAX {
                self.found.wrong.push(text);
            }
        }
        self.generation.cluster.wait_until_all_follow().context("not all members came back")?;
        Ok(())
    }
}

/// A write that was acknowledged.
#[derive(Clone, Debug)]
struct Acknowledged {
    key: String,
    number: u64,
    /// When the client knew.
    at: Instant,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    acknowledged: AtomicU64,
}

/// Clients under way. Dropping it stops them.
#[derive(Debug)]
struct Writers {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Result<Vec<Acknowledged>>>>,
}

impl Writers {
    fn start(generation: &Generation, count: u32) -> Result<Self> {
        let mut writers = Self { shared: Arc::new(Shared::default()), clients: Vec::new() };
        for own in 0..=count {
            let (shared, options) = (Arc::clone(&writers.shared), generation.cluster.options());
            let (number, is_heavy) = (u64::from(generation.number), own == count);
            let work = move || {
                if is_heavy {
                    // Greater in every generation than in all before.
                    let name = |count: u64| {
                        (format!("heavy-{}", count % HEAVY_KEYS), number << 32 | count)
                    };
                    write(&shared, options, name)
                } else {
                    write(&shared, options, |count| (format!("{number}-{own}-{count}"), count))
                }
            };
            let client = std::thread::Builder::new().name(format!("client-{own}")).spawn(work);
            writers.clients.push(client.context("cannot start a client")?);
        }
        Ok(writers)
    }

    /// Waits for the first acknowledgement.
    fn wait_for_first(&self) -> Result<()> {
        let began = Instant::now();
        while self.shared.acknowledged.load(Ordering::Acquire) == 0 {
            ensure!(began.elapsed() < FIRST_MAX, "nothing was acknowledged within {FIRST_MAX:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Acknowledged>> {
        self.shared.stop.store(true, Ordering::Release);
        let mut all = Vec::new();
        for client in std::mem::take(&mut self.clients) {
            match client.join() {
                Ok(own) => all.append(&mut own?),
                Err(_) => bail!("a client panicked"),
            }
        }
        Ok(all)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for client in std::mem::take(&mut self.clients) {
            // The case has failed already, and says why.
            let _told = client.join();
        }
    }
}

/// Writes under the keys and numbers that `name` gives, until it is told to stop.
fn write(
    shared: &Shared,
    options: Options,
    name: impl Fn(u64) -> (String, u64),
) -> Result<Vec<Acknowledged>> {
    let mut client = Client::connect(options)?;
    let mut told = Vec::new();
    let mut count = 0;
    while !shared.stop.load(Ordering::Acquire) {
        count += 1;
        let (key, number) = name(count);
        if client.put(key.as_bytes(), &value_of(&key, number)).is_ok() {
            told.push(Acknowledged { key, number, at: Instant::now() });
            shared.acknowledged.fetch_add(1, Ordering::AcqRel);
        } else {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(told)
}

/// The value of a key: its number, and bytes that nobody else writes.
fn value_of(key: &str, number: u64) -> Vec<u8> {
    let seed = key.bytes().fold(number, |seed, byte| Random::new(seed ^ u64::from(byte)).next());
    let mut random = Random::new(seed);
    let words = if key.starts_with("heavy") { HEAVY_BYTES / 8 } else { 1 + random.below(256) };
    let filler = (0..words).flat_map(|_| random.next().to_le_bytes());
    number.to_le_bytes().into_iter().chain(filler).collect()
}

/// The number in a value of `key`, if every byte of it is right.
fn number_of(key: &str, value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*value.first_chunk()?);
    (value == value_of(key, number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_number_and_no_other_bytes_do() {
        let mut value = value_of("0-1-7", 7);
        assert_eq!(number_of("0-1-7", &value), Some(7));
        assert_eq!(number_of("0-1-8", &value), None, "the value of another key");
        value[9] ^= 1;
        assert_eq!(number_of("0-1-7", &value), None, "one bit is another");
        assert_eq!(number_of("0-1-7", b"short"), None);
    }
}
