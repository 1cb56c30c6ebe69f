//! Three endpoints in this process, and targets in processes of their own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::{Durability, Incarnation, MemberId};
use fabric::conformance::{ENDPOINTS, Harness, REGION_LEN, Target};
use fabric::shm::{Config, Shm};
use fabric::{RegionId, Sleep};
use pmem::Mapping;
use rustix::process::{Pid, Signal};

use crate::place::Place;

const DIR: &str = "FABRIC_TEST_TARGET_DIR";
const MEMBER: &str = "FABRIC_TEST_TARGET_MEMBER";

/// An instance of `member` in `place`, with a region of zeros.
pub(crate) fn instance(place: &Place, member: u32, durability: Durability) -> (Shm, Mapping) {
    let path = place.file(&format!("{member}.region"), REGION_LEN);
    let mut shm = Shm::create(config(place, member)).unwrap();
    assert_eq!(shm.attach(&path, durability).unwrap(), RegionId(0));
    (shm, Mapping::open_peer(&path, 0..REGION_LEN).unwrap())
}

/// What an instance of `member` is.
pub(crate) fn config(place: &Place, member: u32) -> Config {
    Config {
        dir: place.path().to_owned(),
        member: MemberId(member),
        incarnation: Incarnation(u64::from(member)),
        may_kill_writers: true,
    }
}

/// A process that is killed and reaped with its owner, also when that panics; and by the kernel
/// when this process ends without a chance to do so.
#[derive(Debug)]
pub(crate) struct Reaped(Child);

impl Reaped {
    /// Starts this test binary again, as the target `member` in `place`.
    pub(crate) fn target(place: &Place, member: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "harness::target_process", "--nocapture"])
            .env(DIR, place.path())
            .env(MEMBER, member.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = lines.by_ref().any(|line| line.unwrap().contains("target is ready"));
        assert!(is_ready, "the target ended before it was ready");
        Self(child)
    }

    /// Its id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until every thread of it has stopped: the kernel says so to the parent.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let options = rustix::process::WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(self.pid()), options).unwrap().unwrap();
        assert!(status.stopped());
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // It may have been killed and reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: what a target process runs. Without its environment it is over at once.
#[test]
fn target_process() {
    let (Ok(dir), Ok(member)) = (std::env::var(DIR), std::env::var(MEMBER)) else { return };
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    assert_eq!(rustix::process::getppid(), parent, "the parent ended before it could be watched");
    let path = std::path::Path::new(&dir).join(format!("{member}.region"));
    let config = Config {
        dir: dir.into(),
        member: MemberId(member.parse().unwrap()),
        incarnation: Incarnation(1),
        may_kill_writers: false,
    };
    let mut shm = Shm::create(config).unwrap();
    let region = shm.attach(&path, Durability::Process).unwrap();
    let mut target = Target::new(shm, region);
    println!("target is ready");
    loop {
        target.fabric().arm();
        if !target.turn() {
            target.fabric().wait(Duration::from_millis(1));
        }
    }
}

/// The harness of the shared-memory provider.
#[derive(Debug)]
pub(crate) struct ShmHarness {
    instances: Vec<(Shm, Mapping)>,
    target: Option<Reaped>,
    place: Place,
}

impl ShmHarness {
    const TARGET: u32 = 9;

    pub(crate) fn new(durability: Durability) -> Self {
        let place = Place::new("suite");
        let members = 1..=u32::try_from(ENDPOINTS).unwrap();
        let instances = members.map(|member| instance(&place, member, durability)).collect();
        Self { instances, target: None, place }
    }
}

impl Harness for ShmHarness {
    type Fabric = Shm;

    fn fabric(&mut self, endpoint: usize) -> &mut Shm {
        &mut self.instances[endpoint].0
    }

    fn member(&self, endpoint: usize) -> MemberId {
        MemberId(u32::try_from(endpoint).unwrap() + 1)
    }

    fn region(&self, _endpoint: usize) -> RegionId {
        RegionId(0)
    }

    fn load(&self, endpoint: usize, at: u64) -> u64 {
        self.instances[endpoint].1.load(at)
    }

    fn store(&mut self, endpoint: usize, at: u64, value: u64) {
        self.instances[endpoint].1.store(at, value);
        self.instances[endpoint].1.fence();
    }

    fn pass(&mut self) {
        std::thread::yield_now();
    }

    fn start_target(&mut self) -> Option<MemberId> {
        self.place.file(&format!("{}.region", Self::TARGET), REGION_LEN);
        self.target = Some(Reaped::target(&self.place, Self::TARGET));
        Some(MemberId(Self::TARGET))
    }

    fn stop_target(&mut self) {
        self.target.as_ref().unwrap().stop();
    }

    fn resume_target(&mut self) {
        self.target.as_ref().unwrap().signal(Signal::CONT);
    }

    fn kill_target(&mut self) {
        self.target.as_mut().unwrap().kill();
    }
}
