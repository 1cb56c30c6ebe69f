//! Directories, children and progress signals for the tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Length of the regions in these tests: 16 pages.
pub(crate) const LEN: u64 = 64 * 1024;
pub(crate) const PAGE: u64 = 4096;

/// A wait that takes this long is a hang.
const HANG: Duration = Duration::from_secs(60);

/// A fresh directory on the disk that builds are on; removed when dropped.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("{test}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Names of the files in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A tmpfs in a directory of its own, unmounted when dropped. `None` where mounting is not allowed;
/// the test says so then.
#[derive(Debug)]
pub(crate) struct Tmpfs(Directory);

impl Tmpfs {
    pub(crate) fn mount(test: &str, options: &str) -> Option<Self> {
        let directory = Directory::new(test);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(directory.path());
        let mounted = mount.output().unwrap();
        if mounted.status.success() {
            return Some(Self(directory));
        }
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        println!("SKIPPED {test}: cannot mount a tmpfs: {}", why.trim());
        None
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0.path()).status().unwrap().success());
    }
}

/// Set for a child of this test program: what it shall do.
const ROLE: &str = "PMEM_TEST_ROLE";
/// Set for a child: the file it shall do it to.
const FILE: &str = "PMEM_TEST_FILE";

/// Another process that runs the test `role` of this program and nothing else.
pub(crate) fn child(role: &str, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([role, "--exact", "--nocapture"])
        .env(ROLE, role)
        .env(FILE, file)
        // Where the address sanitizer is built in, it leaves SIGBUS to us.
        .env("ASAN_OPTIONS", "handle_sigbus=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// In a child that was started with `role`: the file. `None` in an ordinary run of the tests.
pub(crate) fn file_of_child(role: &str) -> Option<PathBuf> {
    (std::env::var_os(ROLE)? == role).then(|| PathBuf::from(std::env::var_os(FILE).unwrap()))
}

/// Reads what the child prints up to a line that ends with `word`.
pub(crate) fn read_until(output: ChildStdout, word: &str) {
    let mut lines = BufReader::new(output).lines();
    assert!(lines.any(|line| line.unwrap().ends_with(word)), "the child never said {word}");
}

/// Blocks until the child is told to go on; it never is, so it ends with its parent.
pub(crate) fn wait_for_parent() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A callback for a region and the place to wait for it.
pub(crate) fn progress() -> (impl Fn() + Send + 'static, Progress) {
    let (told, telling) = channel();
    // A test that has seen enough may have dropped its end.
    (move || told.send(()).unwrap_or(()), Progress(telling))
}

#[derive(Debug)]
pub(crate) struct Progress(Receiver<()>);

impl Progress {
    /// Blocks until the region says that there is news.
    pub(crate) fn wait(&self) {
        match self.0.recv_timeout(HANG) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("no progress"),
            Err(RecvTimeoutError::Disconnected) => panic!("no progress can come any more"),
        }
    }
}
