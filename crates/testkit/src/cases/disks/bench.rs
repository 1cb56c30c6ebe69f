//! A cluster of three whose disks are spoiled, and what its members say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use client::blocking::Client;
use client::{CallError, Options};

use crate::cluster::{Cluster, Scratch, program};
use crate::media::Mount;

/// How long anything may take that a member does by itself.
pub(super) const SOON: Duration = Duration::from_secs(30);
/// Small writes in each step that shows that the group goes on.
const SMALL_WRITES: u64 = 25;
/// Keys that large writes overwrite, so that the state stays small, and bytes of their values:
/// about the most that a segment of 64 MiB takes.
const LARGE_KEYS: u64 = 3;
const LARGE_BYTES: usize = 4 << 20;
const SMALL_BYTES: usize = 64;
/// Bytes of the superblock's two copies: at the start of a region, one behind the other.
pub(super) const COPY_BYTES: u64 = 32 << 10;

/// The cluster, and the story of a row.
pub(super) struct Bench {
    // Invariant: dropped before the mounts that its processes use.
    pub(super) cluster: Cluster,
    pub(super) mounts: Vec<Mount>,
    scratch: Scratch,
    /// The number under every key that was acknowledged.
    expected: BTreeMap<String, u64>,
    written: u64,
    did: Vec<String>,
    said: Vec<String>,
    /// Lines that are in `said` already.
    told: BTreeSet<String>,
}

impl Bench {
    /// Makes a cluster of three; nobody runs yet.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let scratch = Scratch::new_in(dir, "disks")?;
        let mut cluster = Cluster::init(&scratch.path().join("cluster"), 3, &Self::ARGUMENTS)?;
        cluster.set_arguments(&["--log", "warn"]);
        Ok(Self {
            cluster,
            mounts: Vec::new(),
            scratch,
            expected: BTreeMap::new(),
            written: 0,
            did: Vec::new(),
            said: Vec::new(),
            told: BTreeSet::new(),
        })
    }

    /// What clusters are made with: a log that large values fill in a moment.
    pub(super) const ARGUMENTS: [&str; 6] =
        ["--durability", "process", "--segment-size", "64MiB", "--segments", "4"];

    /// A place for a row's own files.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Notes what a row does.
    pub(super) fn did(&mut self, what: impl Into<String>) {
        self.did.push(what.into());
    }

    /// What was done and said.
    pub(super) fn story(self) -> (Vec<String>, Vec<String>) {
        (self.did, self.said)
    }

    fn log_path(&self, id: u32) -> PathBuf {
        self.place(&format!("log-{id}"))
    }

    /// What a member has written to its standard error stream so far; new lines go into the story.
    pub(super) fn hear(&mut self, id: u32) -> Result<String> {
        let path = self.log_path(id);
        let text = if path.exists() { std::fs::read_to_string(&path)? } else { String::new() };
        for line in text.lines() {
            // A line begins with its time.
            let line = line.split_once("Z ").map_or(line, |(_, line)| line.trim());
            let line = format!("member {id}: {line}");
            if self.told.insert(line.clone()) {
                self.said.push(line);
            }
        }
        Ok(text)
    }

    /// Starts a member.
    pub(super) fn start(&mut self, id: u32) -> Result<()> {
        let log = File::options().append(true).create(true).open(self.log_path(id))?;
        self.cluster.start_logging(id, log.into())
    }

    /// Starts all, and waits until all follow a leader.
    pub(super) fn start_all(&mut self) -> Result<()> {
        for id in self.cluster.ids() {
            self.start(id)?;
        }
        self.cluster.wait_until_all_follow()?;
        Ok(())
    }

    /// All run, `leader` leads, something is written, and `stopped` is killed.
    pub(super) fn run_and_kill(&mut self, stopped: u32) -> Result<()> {
        self.start_all()?;
        self.goes_on()?;
        self.cluster.wait_until_all_follow()?;
        self.cluster.kill(stopped)?;
        self.goes_on()
    }

    fn client(&self) -> Result<Client> {
        Ok(Client::connect(Options { deadline: SOON, ..self.cluster.options() })?)
    }

    fn put(&mut self, client: &mut Client, key: String, bytes: usize) -> Result<(), CallError> {
        self.written += 1;
        client.put(key.as_bytes(), &value(self.written, bytes))?;
        self.expected.insert(key, self.written);
        Ok(())
    }

    /// The group acknowledges writes.
    pub(super) fn goes_on(&mut self) -> Result<()> {
        let mut client = self.client()?;
        for _ in 0..SMALL_WRITES {
            let key = small_key(self.written + 1);
            self.put(&mut client, key, SMALL_BYTES).context("the group does not go on")?;
        }
        Ok(())
    }

    /// Large writes until `is_enough`, at most `count`; how many, and what stopped them if one was
    /// refused within `patience`.
    pub(super) fn write_large(
        &mut self,
        count: u64,
        patience: Duration,
        mut is_enough: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<(u64, Option<CallError>)> {
        let mut client = self.client()?;
        client.set_deadline(patience);
        for done in 0..count {
            if is_enough(self)? {
                return Ok((done, None));
            }
            let key = format!("large-{}", self.written % LARGE_KEYS);
            if let Err(error) = self.put(&mut client, key, LARGE_BYTES) {
                return Ok((done, Some(error)));
            }
        }
        Ok((count, None))
    }

    /// The acknowledged writes that are not there.
    pub(super) fn lost(&self) -> Result<Vec<String>> {
        let mut client = self.client()?;
        let mut lost = Vec::new();
        for (key, &expected) in &self.expected {
            let found = client.get(key.as_bytes()).with_context(|| format!("cannot read {key}"))?;
            let number = found.and_then(|found| number_of(&found.value));
            if number.is_none_or(|number| number < expected) {
                lost.push(format!("{key}: {expected} was acknowledged, found {number:?}"));
            }
        }
        Ok(lost)
    }

    /// The damaged member returns, follows, leads, and has everything.
    pub(super) fn comes_back(&mut self, id: u32) -> Result<()> {
        self.start(id)?;
        let followed = self.cluster.wait_until_all_follow();
        self.hear(id)?;
        followed?;
        self.leads_with_everything(id)
    }

    /// The member takes the lead, and everything is read from it.
    pub(super) fn leads_with_everything(&mut self, id: u32) -> Result<()> {
        self.cluster.make_leader(id)?;
        let lost = self.lost()?;
        self.hear(id)?;
        ensure!(lost.is_empty(), "member {id} leads and does not have {}", lost.join("; "));
        self.goes_on()?;
        self.did(format!("member {id} is back, leads, and everything was read from it"));
        Ok(())
    }

    /// Starting member `id` is refused, in words that have all of `wanted` in them; the others go on.
    pub(super) fn is_refused(&mut self, id: u32, wanted: &[&str]) -> Result<()> {
        let dir = self.cluster.dir().to_owned();
        self.is_refused_in(&dir, id, wanted)?;
        self.goes_on().context("while a member was refused")
    }

    /// As [`Self::is_refused`], for a member of the cluster directory `dir`.
    pub(super) fn is_refused_in(&mut self, dir: &Path, id: u32, wanted: &[&str]) -> Result<()> {
        let path = self.place("refused");
        let mut child = Command::new(program()?)
            .arg("--cluster")
            .arg(dir)
            .args(["node", "--die-with-parent", "--log", "warn", "--member", &id.to_string()])
            .stderr(Stdio::from(File::create(&path)?))
            .spawn()?;
        let ended = wait_for("the end of a member that cannot run", || Ok(child.try_wait()?));
        if ended.is_err() {
            child.kill()?;
            child.wait()?;
        }
        let text = std::fs::read_to_string(&path)?;
        self.said.extend(text.lines().map(|line| format!("member {id}: {line}")));
        check_end(id, ended?, &text)?;
        for wanted in wanted {
            ensure!(text.contains(wanted), "it should say \"{wanted}\"");
        }
        Ok(())
    }

    /// A running member has failed alone: it says so, or has ended with an error.
    pub(super) fn fails_alone(&mut self, id: u32, wanted: &[&str]) -> Result<()> {
        wait_for("a member to fail", || {
            if let Some(status) = self.cluster.ended(id)? {
                let text = self.hear(id)?;
                return check_end(id, status, &text).map(Some);
            }
            let said = self.cluster.status_of(id, Duration::from_secs(1));
            Ok(said.is_some_and(|said| said["failed"] == true).then_some(()))
        })?;
        let text = self.hear(id)?;
        for wanted in wanted {
            ensure!(text.contains(wanted), "it should say \"{wanted}\"");
        }
        self.did(format!("member {id} takes part no more"));
        self.goes_on()
    }

    /// No member has ended by itself, and none has panicked.
    pub(super) fn check_processes(&mut self) -> Result<()> {
        for id in self.cluster.running() {
            if let Some(status) = self.cluster.ended(id)? {
                let text = self.hear(id)?;
                bail!("member {id} ended: {status}: {text}");
            }
        }
        for id in self.cluster.ids() {
            ensure!(!self.hear(id)?.contains("panicked"), "member {id} panicked");
        }
        Ok(())
    }

    /// Waits until a member has taken `count` checkpoints, under large writes.
    pub(super) fn checkpoint(&mut self, id: u32, count: u64) -> Result<()> {
        let has = |bench: &mut Self| {
            let said = bench.cluster.status_of(id, Duration::from_secs(1));
            Ok(said.and_then(|said| said["checkpoints"].as_u64()).unwrap_or_default() >= count)
        };
        let began = Instant::now();
        while !has(self)? {
            ensure!(began.elapsed() < SOON * 2, "member {id} takes no checkpoint");
            self.write_large(16, Duration::from_secs(2), has)?;
        }
        Ok(())
    }
}

/// Asks `look` until it has an answer.
pub(super) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    while began.elapsed() < SOON {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("waited {SOON:?} for {what}")
}

fn check_end(id: u32, status: ExitStatus, text: &str) -> Result<()> {
    ensure!(!text.contains("panicked"), "member {id} panicked");
    ensure!(status.code().is_some_and(|code| code != 0), "member {id} ended: {status}");
    ensure!(!text.trim().is_empty(), "member {id} ended without a word");
    Ok(())
}

/// A key that stands in a region's bytes as it is.
pub(super) fn small_key(number: u64) -> String {
    format!("small-{number:08}")
}

/// A number and as many bytes that follow from it.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![number.to_le_bytes()[0]; bytes];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    (bytes == value(number, bytes.len())).then_some(number)
}

/// Changes every bit of one byte.
pub(super) fn flip(path: &Path, at: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| format!("{}", path.display()))?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[!byte[0]], at)?;
    Ok(())
}

/// Cuts a file to `len` bytes.
pub(super) fn truncate(path: &Path, len: u64) -> Result<()> {
    let file = File::options().write(true).open(path);
    let file = file.with_context(|| format!("{}", path.display()))?;
    file.set_len(len).with_context(|| format!("{}", path.display()))
}

/// Where `wanted` stands first in a file.
pub(super) fn find(path: &Path, wanted: &[u8]) -> Result<u64> {
    let mut file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let len = file.read(&mut bytes)?;
        if let Some(found) = bytes[..len].windows(wanted.len()).position(|part| part == wanted) {
            return Ok(at + found as u64);
        }
        ensure!(len > wanted.len(), "{}: not found in it", path.display());
        at += (len - wanted.len()) as u64;
    }
}

/// Fills the file system that `dir` lies in, to the last byte that it gives.
pub(super) fn fill(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("filler");
    let mut file = File::create(&path)?;
    for part in [1 << 20, 4096, 1] {
        let bytes = vec![1; part];
        while file.write_all(&bytes).is_ok() {}
    }
    Ok(path)
}
