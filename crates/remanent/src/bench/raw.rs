//! `raw-n`: what a commit on `n` members costs without a protocol.
//!
//! The same bytes are stored into the own region and made durable, WRITTEN into the regions of the
//! others, and a word is READ back from each; an operation ends when a majority, the own region
//! included, has them. No entry format, no election, no state: the floor under every commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base::{Durability, Incarnation, MemberId};
use fabric::shm::{Config, Shm};
use fabric::{
    Access, Completion, Fabric as _, FabricEvent, Key, Piece, Qp, RegionId, Remote, Request,
    Sleep as _, Status, WorkRequest,
};
use pmem::{MappedRegion, Mapping, Region as _};

use crate::latencies::Latencies;

/// Bytes of each region; it is written round and round.
const REGION_LEN: u64 = 16 << 20;
/// Bytes in front that hold the word that is read back.
const WORD_LEN: u64 = 64;
/// How long making the queue pairs may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct RawN {
    /// A directory for the regions, on the medium that shall be measured.
    pub(crate) dir: PathBuf,
    /// How many hold the bytes, the writer included.
    pub(crate) members: u32,
    /// Bytes of one operation: those that a commit of the same payload stores.
    pub(crate) bytes: u32,
    /// What durable means.
    pub(crate) mode: Durability,
    /// Operations at least.
    pub(crate) count: u64,
    /// Time at most.
    pub(crate) time_max: Duration,
}

/// Measures; leaves nothing in the directory.
pub(crate) fn measure(raw: &RawN) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    let mut running = Running::start(raw)?;
    let began = Instant::now();
    let mut measured = Ok(());
    while measured.is_ok() && latencies.len() < raw.count && began.elapsed() < raw.time_max {
        measured = running.measure(SLICE.min(raw.count - latencies.len()), &mut latencies);
    }
    running.stop()?;
    measured?;
    ensure!(latencies.len() > 0, "no operation ended within {:?}", raw.time_max);
    Ok(latencies)
}

/// Operations that are measured between two looks at whether that was enough.
pub(crate) const SLICE: u64 = 1_000;

/// All that is needed to measure, ready to.
pub(crate) struct Running {
    dir: PathBuf,
    writer: Option<Writer>,
    targets: Vec<Target>,
}

impl Running {
    /// Makes the regions, the targets and the queue pairs.
    pub(crate) fn start(raw: &RawN) -> Result<Self> {
        ensure!(raw.members >= 1, "at least one member");
        ensure!(u64::from(raw.bytes) <= REGION_LEN / 4, "{} bytes are too many", raw.bytes);
        let dir = raw.dir.join(format!(".raw-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        let mut running = Self { dir, writer: None, targets: Vec::new() };
        for id in 2..=raw.members {
            running.targets.push(Target::start(&running.dir, MemberId(id), raw.mode)?);
        }
        let writer = running.writer.insert(Writer::open(&running.dir, raw)?);
        writer.connect(raw.members)?;
        Ok(running)
    }

    /// Measures some operations.
    pub(crate) fn measure(&mut self, count: u64, latencies: &mut Latencies) -> Result<()> {
        let writer = self.writer.as_mut().context("it was started")?;
        writer.measure(count, latencies)
    }

    /// Ends the targets and removes what was made.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.writer = None;
        let ended: Result<Vec<()>> = self.targets.drain(..).map(Target::stop).collect();
        if self.dir.exists() {
            std::fs::remove_dir_all(&self.dir)
                .with_context(|| format!("{}: cannot be removed", self.dir.display()))?;
        }
        ended.map(|_| ())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only after an error, which is what is reported.
        let _unreported = self.end();
    }
}

fn shm(dir: &Path, member: MemberId) -> Result<Shm> {
    let config = Config {
        dir: dir.to_owned(),
        member,
        incarnation: Incarnation(1),
        may_kill_writers: false,
    };
    Ok(Shm::create(config)?)
}

fn region(dir: &Path, member: MemberId, mode: Durability) -> Result<(MappedRegion, PathBuf)> {
    let path = dir.join(format!("{member}.region"));
    let mapping = Arc::new(Mapping::create(&path, REGION_LEN)?);
    Ok((MappedRegion::new(mapping, mode, || ())?, path))
}

/// One that is written to: it makes a queue pair, hands out its key, and does nothing after that.
struct Target {
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Target {
    fn start(dir: &Path, member: MemberId, mode: Durability) -> Result<Self> {
        let (stop, stopped) = channel();
        let dir = dir.to_owned();
        let thread = std::thread::Builder::new()
            .name(format!("raw-{member}"))
            .spawn(move || target(&dir, member, mode, &stopped))
            .context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    fn stop(self) -> Result<()> {
        drop(self.stop);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_) => bail!("a target of the measurement panicked"),
        }
    }
}

fn target(dir: &Path, member: MemberId, mode: Durability, stopped: &Receiver<()>) -> Result<()> {
    let (_region, path) = region(dir, member, mode)?;
    let mut shm = shm(dir, member)?;
    let id = shm.attach(&path, mode)?;
    let mut bytes = Vec::new();
    let began = Instant::now();
    let mut is_told = false;
    while !is_told && began.elapsed() < CONNECT_MAX {
        shm.arm();
        match shm.next_event(&mut bytes) {
            Some(FabricEvent::Connected { qp, .. }) => {
                let key = shm.register(id, 0..REGION_LEN, Access::Write(qp))?;
                let bytes = key.0.to_le_bytes();
                let request = Request::Send { bytes: &bytes };
                shm.post(qp, &[WorkRequest { id: 0, request }])?;
                is_told = true;
            }
            Some(_) => {}
            None => shm.wait(Duration::from_millis(5)),
        }
    }
    // Ends when the sender is dropped; nothing is ever sent.
    let _stopped = stopped.recv();
    Ok(())
}

#[derive(Clone, Copy)]
struct Peer {
    qp: Qp,
    key: Key,
    /// The last operation whose read-back has come.
    done: u64,
}

struct Writer {
    shm: Shm,
    region: MappedRegion,
    region_id: RegionId,
    peers: Vec<Peer>,
    payload: Vec<u8>,
    /// Where the next operation goes.
    at: u64,
    /// The last one's number.
    number: u64,
}

impl Writer {
    fn open(dir: &Path, raw: &RawN) -> Result<Self> {
        let (region, path) = region(dir, MemberId(1), raw.mode)?;
        let mut shm = shm(dir, MemberId(1))?;
        let region_id = shm.attach(&path, raw.mode)?;
        let payload = vec![0x5a; raw.bytes as usize];
        let (peers, at, number) = (Vec::new(), WORD_LEN, 0);
        Ok(Self { shm, region, region_id, peers, payload, at, number })
    }

    fn connect(&mut self, members: u32) -> Result<()> {
        let began = Instant::now();
        let mut bytes = Vec::new();
        while self.peers.len() + 1 < members as usize {
            ensure!(began.elapsed() < CONNECT_MAX, "the targets did not connect");
            for id in 2..=members {
                self.shm.connect(MemberId(id));
            }
            self.shm.arm();
            match self.shm.next_event(&mut bytes) {
                Some(FabricEvent::Received { qp }) => {
                    let key = bytes.as_slice().try_into().context("a key has eight bytes")?;
                    let key = Key(u64::from_le_bytes(key));
                    self.peers.push(Peer { qp, key, done: 0 });
                }
                Some(_) => {}
                None => self.shm.wait(Duration::from_millis(5)),
            }
        }
        Ok(())
    }

    fn measure(&mut self, count: u64, latencies: &mut Latencies) -> Result<()> {
        let payload = std::mem::take(&mut self.payload);
        let step = (payload.len() as u64).next_multiple_of(WORD_LEN);
        let mut measured = Ok(());
        for _ in 0..count {
            if self.at + step > REGION_LEN {
                self.at = WORD_LEN;
            }
            self.number += 1;
            let start = Instant::now();
            measured = self.operation(self.number, self.at, &payload);
            if measured.is_err() {
                break;
            }
            latencies.record(start.elapsed());
            self.at += step;
        }
        self.payload = payload;
        measured
    }

    fn operation(&mut self, number: u64, at: u64, payload: &[u8]) -> Result<()> {
        self.region.copy_in(at, payload);
        let ticket = self.region.persist(at..at + payload.len() as u64);
        let len = u32::try_from(payload.len()).context("checked")?;
        for peer in &self.peers {
            let pieces = [Piece::Local { region: self.region_id, offset: at, len }];
            let to = Remote { key: peer.key, offset: at };
            let from = Remote { key: peer.key, offset: 0 };
            let chain = [
                WorkRequest { id: number, request: Request::Write { pieces: &pieces, to } },
                WorkRequest { id: number, request: Request::ReadWord { from } },
            ];
            // Full: this peer is a whole window behind; a majority of the others goes on.
            match self.shm.post(peer.qp, &chain) {
                Ok(()) | Err(fabric::PostError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let majority = self.peers.len().div_ceil(2);
        let is_done = |peer: &&Peer| peer.done >= number;
        while self.peers.iter().filter(is_done).count() < majority
            || self.region.durable()? < ticket
        {
            self.poll()?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        let blank = Completion { qp: Qp(0), id: 0, status: Status::Flushed, word: 0 };
        let mut completions = [blank; 16];
        let count = self.shm.poll(&mut completions);
        for completion in &completions[..count] {
            ensure!(completion.status == Status::Ok, "a target failed: {:?}", completion.status);
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.qp == completion.qp) {
                peer.done = completion.id;
            }
        }
        Ok(())
    }
}
