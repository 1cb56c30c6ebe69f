//! Ends in processes of their own, which are killed.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::*;

const DIR: &str = "FABRIC_TEST_STREAM_DIR";
const ROLE: &str = "FABRIC_TEST_STREAM_ROLE";
const RING: u64 = 4096;
const LONG_MESSAGE: usize = 300_000;

/// A process that is killed and reaped with its owner, also when that panics.
struct Reaped(Child);

impl Reaped {
    /// Starts this test binary again, as `role` in `place`; it is ready when this returns.
    fn start(place: &Place, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shm::stream::tests::processes::other_process", "--nocapture"])
            .env(DIR, &place.0)
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let child = Self(child);
        let is_ready = lines.any(|line| line.unwrap().contains("the other is ready"));
        assert!(is_ready, "the other process ended before it was ready");
        child
    }

    /// By SIGKILL; it is gone when this returns.
    fn kill(&mut self) {
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

/// Not a test: what the other process runs. Without its environment it is over at once.
#[test]
fn other_process() {
    let (Ok(dir), Ok(role)) = (std::env::var(DIR), std::env::var(ROLE)) else { return };
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    assert_eq!(rustix::process::getppid(), parent, "the parent ended before it could be watched");
    match role.as_str() {
        "member" => be_member(PathBuf::from(dir)),
        "client" => be_client(&PathBuf::from(dir), b"hello"),
        _ => be_client(&PathBuf::from(dir), &vec![7; LONG_MESSAGE]),
    }
}

/// Answers every message with itself, until it is killed.
fn be_member(dir: PathBuf) {
    let mut member = Member::at(Place(dir), 4, RING);
    println!("the other is ready");
    let mut server = member.accept();
    let mut bytes = Vec::new();
    loop {
        member.shm.arm();
        match server.receive(&mut bytes).unwrap() {
            true => server.send(&[&bytes]).unwrap(),
            false => member.shm.wait(LONG),
        }
    }
}

/// Sends `bytes` as far as they go without help, and sleeps until it is killed.
fn be_client(dir: &Path, bytes: &[u8]) {
    let mut client = Stream::connect(dir, MEMBER, LONG).unwrap();
    client.send(&[bytes]).unwrap();
    println!("the other is ready");
    loop {
        client.wait(LONG);
    }
}

impl Member {
    /// Sleeps until somebody rings after it showed `before`.
    fn sleep_until_rung(&mut self, before: u64) {
        while self.shm.own.doorbell.number() == before {
            self.shm.arm();
            self.shm.wait(LONG);
        }
    }
}

/// Goal: a client that is killed wakes its member, which still gets what was sent and then sees the
/// end. Method: what the doorbell shows has to change, which only the porter can cause.
#[test]
fn a_killed_client_is_seen_by_a_member_that_sleeps() {
    let mut member = Member::new("killed-client", 4, RING);
    let mut child = Reaped::start(&member.place, "client");
    let mut server = member.accept();
    let mut bytes = Vec::new();
    assert_eq!(server.receive(&mut bytes), Ok(true));
    assert_eq!(bytes, b"hello");
    assert_eq!(server.receive(&mut bytes), Ok(false), "it lives");
    let before = member.shm.own.doorbell.number();
    child.kill();
    member.sleep_until_rung(before);
    assert_eq!(server.receive(&mut bytes), Err(Closed));
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_message_leaves_no_part_of_it() {
    let mut member = Member::new("cut-off", 4, RING);
    let mut child = Reaped::start(&member.place, "client of a long message");
    let mut server = member.accept();
    let mut bytes = Vec::new();
    assert_eq!(server.receive(&mut bytes), Ok(false), "the beginning of it");
    let before = member.shm.own.doorbell.number();
    child.kill();
    member.sleep_until_rung(before);
    assert_eq!(server.receive(&mut bytes), Err(Closed));
    assert!(bytes.is_empty());
    let (mut client, mut other) = member.pair();
    client.send(&[b"next"]).unwrap();
    assert_eq!(receive(&mut other, &mut client), b"next");
}

/// Goal: the end of a killed member is seen without a system call, and what it leaves behind keeps
/// the next one from nothing.
#[test]
fn a_killed_member_is_seen_by_its_client_and_can_be_replaced() {
    let place = Place::new("killed-member");
    let mut child = Reaped::start(&place, "member");
    let mut client = Stream::connect(&place.0, MEMBER, LONG).unwrap();
    client.send(&[b"ball"]).unwrap();
    let mut bytes = Vec::new();
    while !client.receive(&mut bytes).unwrap() {
        client.wait(LONG);
    }
    assert_eq!(bytes, b"ball");
    child.kill();
    assert!(client.is_closed());
    assert_eq!(client.receive(&mut bytes), Err(Closed));
    assert_eq!(client.send(&[b"ball"]), Err(SendError::Closed));

    let socket = porter::socket_path(&place.0, MEMBER).unwrap();
    assert!(socket.exists(), "nobody removed it");
    let refused = Stream::connect(&place.0, MEMBER, LONG);
    assert!(matches!(refused, Err(StreamError::NotRunning { .. })));
    let mut next = Member::at(place, 4, RING);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "its user's alone");
    let (mut client, mut server) = next.pair();
    client.send(&[b"again"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"again");
    assert!(!client.is_closed());
}
