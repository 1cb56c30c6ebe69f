//! Clients that load files and then keep writing, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use client::blocking::Client;
use client::{CallError, Options};
use indicatif::{ProgressBar, ProgressStyle};

use crate::latencies::Latencies;
use crate::layout::Cluster;

/// Larger files do not fit an entry of the demo's segments beside their name.
const FILE_BYTES_MAX: u64 = 7 << 20;
/// What marks a directory that can be made anew.
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// What the clients did.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Every acknowledged write: key and value.
    pub(super) acknowledged: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Writes whose outcome the client was not told.
    pub(super) unknown: u64,
    /// Writes that were refused: surely not done.
    pub(super) refused: u64,
    pub(super) bytes: u64,
    /// How long small writes took, as their clients saw it.
    pub(super) latencies: Option<Latencies>,
}

impl Written {
    /// A key that was acknowledged.
    pub(super) fn some_key(&self) -> Result<Vec<u8>> {
        let middle = self.acknowledged.len() / 2;
        let key = self.acknowledged.keys().nth(middle).cloned();
        key.context("nothing was acknowledged")
    }
}

/// What was loaded from files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loaded {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) skipped: u64,
    pub(super) time: Duration,
}

struct Shared {
    files: Vec<PathBuf>,
    root: PathBuf,
    next: AtomicUsize,
    loaded: AtomicUsize,
    loaded_bytes: AtomicU64,
    stop: AtomicBool,
    began: Instant,
    /// Nanoseconds since `began` of the last acknowledgement of any client.
    last: AtomicU64,
    /// The longest time between two of them.
    gap: AtomicU64,
    bar: ProgressBar,
}

impl Shared {
    fn acknowledged(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let before = self.last.fetch_max(now, Ordering::Relaxed);
        self.gap.fetch_max(now.saturating_sub(before), Ordering::Relaxed);
    }
}

/// The clients at work.
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Result<Written>>>,
    loaded: std::cell::Cell<Loaded>,
    skipped: u64,
}

impl Load {
    /// Starts `clients` that load what is in `input`, then write on until [`Self::finish`].
    pub(super) fn start(cluster: &Cluster, input: &Path, clients: u32) -> Result<Self> {
        let (files, bytes, skipped) = files_in(input)?;
        ensure!(!files.is_empty(), "{}: there is no file to load", input.display());
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(bytes)
        } else {
            ProgressBar::hidden()
        };
        let style = "loading {bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style).context("a template of our own")?);
        let shared = Arc::new(Shared {
            files,
            root: input.to_owned(),
            next: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
            loaded_bytes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(0),
            bar,
        });
        let clients = (0..clients)
            .map(|number| {
                let shared = Arc::clone(&shared);
                let options = Options::of_file(cluster.file());
                std::thread::Builder::new()
                    .name(format!("client-{number}"))
                    .spawn(move || write(&shared, options, number))
                    .context("cannot start a client")
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { shared, clients, loaded: std::cell::Cell::default(), skipped })
    }

    /// Waits until every file is loaded.
    pub(super) fn wait_until_loaded(&self) -> Result<()> {
        let shared = &self.shared;
        while shared.loaded.load(Ordering::Acquire) < shared.files.len() {
            ensure!(!self.clients.iter().any(JoinHandle::is_finished), "a client ended early");
            std::thread::sleep(Duration::from_millis(10));
        }
        shared.bar.finish_and_clear();
        self.loaded.set(Loaded {
            files: shared.files.len() as u64,
            bytes: shared.loaded_bytes.load(Ordering::Acquire),
            skipped: self.skipped,
            time: shared.began.elapsed(),
        });
        Ok(())
    }

    pub(super) fn loaded(&self) -> Loaded {
        self.loaded.get()
    }

    /// The longest time without an acknowledgement since this was asked last.
    pub(super) fn forget_gap(&self) -> Duration {
        Duration::from_nanos(self.shared.gap.swap(0, Ordering::AcqRel))
    }

    /// Waits for the next acknowledgement.
    pub(super) fn wait_for_service(&self, limit: Duration) -> Result<()> {
        let last = self.shared.last.load(Ordering::Acquire);
        let began = Instant::now();
        // Two in a row: the first may have been on its way when the fault came.
        while self.shared.last.load(Ordering::Acquire) == last
            || self.shared.gap.load(Ordering::Acquire) < 1_000_000
        {
            if began.elapsed() > limit {
                bail!("no write was acknowledged within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Stops the clients and gathers what they know.
    pub(super) fn finish(self) -> Result<Written> {
        self.shared.stop.store(true, Ordering::Release);
        let mut all = Written::default();
        for client in self.clients {
            let Ok(written) = client.join() else { bail!("a client panicked") };
            let written = written?;
            all.acknowledged.extend(written.acknowledged);
            all.unknown += written.unknown;
            all.refused += written.refused;
            all.bytes += written.bytes;
            match (&mut all.latencies, written.latencies) {
                (Some(all), Some(more)) => all.add(&more),
                (all, more) => *all = more,
            }
        }
        Ok(all)
    }
}

/// The files below `root`, their bytes, and how many were left out for their size.
fn files_in(root: &Path) -> Result<(Vec<PathBuf>, u64, u64)> {
    let (mut files, mut bytes, mut skipped) = (Vec::new(), 0, 0);
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("{}: cannot be read", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                if entry.file_name() != ".git" && !path.join(CACHE_TAG).exists() {
                    folders.push(path);
                }
            } else if kind.is_file() {
                let len = entry.metadata()?.len();
                if len < FILE_BYTES_MAX {
                    files.push(path);
                    bytes += len;
                } else {
                    skipped += 1;
                }
            }
        }
    }
    files.sort();
    Ok((files, bytes, skipped))
}

fn write(shared: &Shared, options: Options, number: u32) -> Result<Written> {
    let mut client = Client::connect(options)?;
    let mut written = Written { latencies: Some(Latencies::new()?), ..Written::default() };
    loop {
        let at = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(path) = shared.files.get(at) else { break };
        let value =
            fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let name = path.strip_prefix(&shared.root).unwrap_or(path);
        let key = [b"file/", name.as_os_str().as_encoded_bytes()].concat();
        shared.bar.inc(value.len() as u64);
        shared.loaded_bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        put(shared, &mut client, &mut written, key, value)?;
        shared.loaded.fetch_add(1, Ordering::Release);
    }
    let mut count = 0_u64;
    while !shared.stop.load(Ordering::Acquire) {
        let key = format!("more/{number}/{count:08}").into_bytes();
        let began = Instant::now();
        put(shared, &mut client, &mut written, key, count.to_le_bytes().to_vec())?;
        if let Some(latencies) = &mut written.latencies {
            latencies.record(began.elapsed());
        }
        count += 1;
    }
    Ok(written)
}

fn put(
    shared: &Shared,
    client: &mut Client,
    written: &mut Written,
    key: Vec<u8>,
    value: Vec<u8>,
) -> Result<()> {
    match client.put(&key, &value) {
        Ok(()) => {
            shared.acknowledged();
            written.bytes += value.len() as u64;
            written.acknowledged.insert(key, value);
        }
        Err(CallError::Unknown(_)) => written.unknown += 1,
        Err(CallError::Refused(_)) => written.refused += 1,
        Err(error @ CallError::Bad(_)) => return Err(error.into()),
    }
    Ok(())
}
