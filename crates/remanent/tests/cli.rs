//! The binary as its user meets it: a cluster is made, run, used, looked at and ended.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// How long members may take to find a leader on a busy machine.
const LEADER_MAX: Duration = Duration::from_secs(60);

/// A directory of its own with everything that a test leaves there.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("remanent-cli-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).unwrap_or(());
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_remanent"))
            .current_dir(&self.0)
            .env("REMANENT_CLUSTER", "cluster")
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs what must succeed, and answers what it prints.
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {} {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs what must fail with this code, and answers what it says.
    fn bad(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }

    /// A cluster of small members that are durable as far as any file system allows.
    fn init(&self, members: &str) {
        let run_dir = self.0.join("run");
        self.good(&[
            "init",
            "--members",
            members,
            "--durability",
            "process",
            "--segment-size",
            "64MiB",
            "--segments",
            "4",
            "--run-dir",
            run_dir.to_str().unwrap(),
        ]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join("cluster").join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

/// `up`, ended with everything below it.
struct Up(Child);

impl Up {
    fn start(place: &Place) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_remanent"))
            .current_dir(&place.0)
            .args(["up", "cluster", "--log", "error"])
            .spawn()
            .unwrap();
        let up = Self(child);
        let began = Instant::now();
        while !place.run(&["status"]).status.success() {
            assert!(began.elapsed() < LEADER_MAX, "nobody leads");
            std::thread::yield_now();
        }
        up
    }

    /// SIGTERM; it must end well.
    fn end(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "every member ended in order");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Its members end with it.
        self.0.kill().unwrap_or(());
        let _ended = self.0.wait();
    }
}

#[test]
fn a_cluster_is_made_run_used_and_ended() {
    let place = Place::new("use");
    place.init("3");
    let up = Up::start(&place);
    place.good(&["put", "greeting", "hello"]);
    assert_eq!(place.good(&["get", "greeting"]), "hello");
    place.good(&["cas", "greeting", "--expect", "hello", "--set", "bye"]);
    place.bad(1, &["cas", "greeting", "--expect", "hello", "--set", "again"]);
    assert_eq!(place.good(&["incr", "visits", "5"]), "5\n");
    assert_eq!(place.good(&["incr", "visits", "-2"]), "3\n");
    assert_eq!(place.good(&["scan", "--values"]), "greeting\tbye\nvisits\t3\n");
    assert_eq!(place.good(&["scan", "--prefix", "v"]), "visits\n");
    place.good(&["del", "greeting"]);
    assert!(place.bad(1, &["get", "greeting"]).contains("no such key"));
    place.good(&["put", "short", "lived", "--ttl", "1ms"]);

    place.good(&["limit", "500B"]);
    let large = "x".repeat(600);
    let said = place.bad(1, &["put", "large", &large]);
    assert!(said.contains("the store is full"), "{said}");
    assert_eq!(place.good(&["get", "visits"]), "3", "reads go on");
    place.good(&["put", "small", "x"]);
    place.good(&["del", "small"]);
    place.good(&["limit", "1GiB"]);
    place.good(&["put", "large", &large]);
    place.good(&["del", "large"]);

    let status: serde_json::Value =
        serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
    let leader = status["leader"].as_u64().unwrap();
    assert_eq!(status["members"].as_array().unwrap().len(), 3);
    let other = (1..=3).find(|&id| id != leader).unwrap().to_string();
    assert!(place.good(&["transfer", "--to", &other]).contains(&format!("member {other} leads")));
    assert_eq!(place.good(&["get", "visits"]), "3");
    assert!(place.good(&["doctor", "--deep"]).contains("nothing is broken"));
    up.end();

    let up = Up::start(&place);
    assert_eq!(place.good(&["get", "visits"]), "3", "it is still there after a restart");
    assert!(place.bad(1, &["get", "short"]).contains("no such key"), "its time is over");
    up.end();
    let left: Vec<_> = std::fs::read_dir(place.0.join("run")).unwrap().collect();
    let is_passing =
        |name: &Path| name.extension().is_some_and(|kind| kind == "sock" || kind == "board");
    assert!(!left.iter().any(|entry| is_passing(&entry.as_ref().unwrap().path())), "{left:?}");
}

#[test]
fn a_cluster_is_founded_once_and_never_by_a_node() {
    let place = Place::new("found");
    let said = place.bad(1, &["node", "--member", "1"]);
    assert!(said.contains("remanent init"), "{said}");
    place.init("1");
    let said = place.bad(1, &["init", "--members", "1"]);
    assert!(said.contains("a cluster is there already"), "{said}");
    let said = place.bad(1, &["node", "--member", "7"]);
    assert!(said.contains("there is no member 7; there are 1"), "{said}");
    let said = place.bad(1, &["get", "key", "--deadline", "100ms"]);
    assert!(said.contains("refused") && said.contains("does not run"), "{said}");
    place.bad(2, &["put"]);
}

#[test]
fn a_region_that_is_not_the_members_own_is_refused() {
    let place = Place::new("foreign");
    place.init("2");
    std::fs::rename(place.path("1/region"), place.path("1/kept")).unwrap();
    let said = place.bad(1, &["node", "--member", "1"]);
    assert!(said.contains("there is no region"), "{said}");
    std::fs::copy(place.path("2/region"), place.path("1/region")).unwrap();
    let said = place.bad(1, &["node", "--member", "1"]);
    assert!(said.contains("belongs to member 2"), "{said}");
    std::fs::copy(place.path("1/kept"), place.path("1/region")).unwrap();
    let file = std::fs::File::options().write(true).open(place.path("1/region")).unwrap();
    file.set_len(80 << 20).unwrap();
    let said = place.bad(1, &["node", "--member", "1"]);
    assert!(said.contains("is it truncated?"), "{said}");
    let said = place.bad(1, &["doctor"]);
    assert!(said.is_empty(), "what doctor finds is its output: {said}");
}

#[test]
fn what_stands_in_a_region_can_be_looked_at() {
    let place = Place::new("inspect");
    place.init("1");
    let up = Up::start(&place);
    place.good(&["put", "key", "value"]);
    up.end();
    assert!(place.good(&["inspect", "superblock", "cluster/1"]).contains("mode process"));
    let log = place.good(&["inspect", "log", "cluster/1"]);
    assert!(log.contains("log"), "{log}");
    assert!(!place.good(&["inspect", "segment", "cluster/1/region", "0"]).is_empty());
    let said = place.bad(1, &["inspect", "segment", "cluster/1", "3"]);
    assert!(said.contains("slot 3 holds no segment; in use are"), "{said}");
    let said = place.bad(1, &["inspect", "superblock", "cluster/cluster.toml"]);
    assert!(said.contains("no superblock that can be used"), "{said}");
}

#[test]
fn every_shell_gets_its_completions() {
    let place = Place::new("shells");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.good(&["completions", shell]).contains("remanent"), "{shell}");
    }
}
