//! A cluster of real processes on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use client::blocking::Client;
use client::{ClusterFile, Options};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// How long members may take to find a leader, on a busy machine.
pub const LEADER_MAX: Duration = Duration::from_secs(30);

/// The binary under test: `REMANENT_BIN`, or the one beside this program.
///
/// # Errors
/// When it is not there.
pub fn program() -> Result<PathBuf> {
    let path = match std::env::var_os("REMANENT_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let own = std::env::current_exe().context("cannot find this program's own file")?;
            own.with_file_name("remanent")
        }
    };
    ensure!(
        path.exists(),
        "{}: there is no such binary; build it with `cargo build --release -p remanent`",
        path.display()
    );
    Ok(path)
}

/// A directory that is removed with everything in it when it is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory below the system's temporary one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        Self::new_in(&std::env::temp_dir(), name)
    }

    /// Makes a directory below `parent`, on the medium that a case wants.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_in(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.join(format!("remanent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// Members as processes. Dropping it kills them and removes the run directory.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    file: ClusterFile,
    program: PathBuf,
    children: BTreeMap<u32, Child>,
    /// More arguments for `node`, of every member.
    arguments: Vec<String>,
}

impl Cluster {
    /// Runs `remanent init DIR --members N ARGUMENTS` and starts nobody.
    ///
    /// # Errors
    /// What `init` says.
    pub fn init(dir: &Path, members: u32, arguments: &[&str]) -> Result<Self> {
        let program = program()?;
        let output = Command::new(&program)
            .arg("init")
            .arg(dir)
            .args(["--members", &members.to_string()])
            .args(arguments)
            .output()
            .context("cannot run remanent init")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "remanent init: {said}");
        Self::open(dir)
    }

    /// A cluster directory that is there already.
    ///
    /// # Errors
    /// When it is none.
    pub fn open(dir: &Path) -> Result<Self> {
        let file = ClusterFile::read(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            file,
            program: program()?,
            children: BTreeMap::new(),
            arguments: Vec::new(),
        })
    }

    /// Gives more arguments to every member that is started from now on.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    }

    /// The cluster directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A member's directory.
    #[must_use]
    pub fn member_dir(&self, id: u32) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// What the cluster is.
    #[must_use]
    pub const fn file(&self) -> &ClusterFile {
        &self.file
    }

    /// The ids of all members.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.file.members.iter().map(|member| member.id.0).collect()
    }

    /// The ids of the members that run.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        self.children.keys().copied().collect()
    }

    /// How clients find it.
    #[must_use]
    pub fn options(&self) -> Options {
        Options::of_file(&self.file)
    }

    /// Starts a member.
    ///
    /// # Errors
    /// When it cannot be started; it may still end by itself at once, see [`Self::ended`].
    pub fn start(&mut self, id: u32) -> Result<()> {
        self.start_logging(id, Stdio::inherit())
    }

    /// Starts a member whose log goes to `log`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_logging(&mut self, id: u32, log: Stdio) -> Result<()> {
        ensure!(!self.children.contains_key(&id), "member {id} runs already");
        let is_level_given = self.arguments.iter().any(|argument| argument == "--log");
        let level: &[&str] = if is_level_given { &[] } else { &["--log", "error"] };
        let child = Command::new(&self.program)
            .arg("--cluster")
            .arg(&self.dir)
            .args(["node", "--die-with-parent", "--member"])
            .arg(id.to_string())
            .args(level)
            .args(&self.arguments)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start member {id}"))?;
        self.children.insert(id, child);
        Ok(())
    }

    /// Starts every member that does not run.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_all(&mut self) -> Result<()> {
        for id in self.ids() {
            if !self.children.contains_key(&id) {
                self.start(id)?;
            }
        }
        Ok(())
    }

    fn child(&mut self, id: u32) -> Result<&mut Child> {
        self.children.get_mut(&id).with_context(|| format!("member {id} does not run"))
    }

    /// The process of a member.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self, id: u32) -> Result<u32> {
        self.children.get(&id).map(Child::id).with_context(|| format!("member {id} does not run"))
    }

    /// How a member ended by itself, if it did; it counts as not running then.
    ///
    /// # Errors
    /// When it was not started.
    pub fn ended(&mut self, id: u32) -> Result<Option<std::process::ExitStatus>> {
        let status = self.child(id)?.try_wait().context("cannot look after a member")?;
        if status.is_some() {
            self.children.remove(&id);
        }
        Ok(status)
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self, id: u32) -> Result<()> {
        let child = self.child(id)?;
        child.kill().with_context(|| format!("cannot kill member {id}"))?;
        child.wait().with_context(|| format!("cannot wait for member {id}"))?;
        self.children.remove(&id);
        Ok(())
    }

    /// kill -9 of all at once, then waits for all.
    ///
    /// # Errors
    /// When one cannot be killed.
    pub fn kill_all(&mut self) -> Result<()> {
        for (id, child) in &mut self.children {
            child.kill().with_context(|| format!("cannot kill member {id}"))?;
        }
        for (id, mut child) in std::mem::take(&mut self.children) {
            child.wait().with_context(|| format!("cannot wait for member {id}"))?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end, which must be in order.
    ///
    /// # Errors
    /// When it ended otherwise.
    pub fn terminate(&mut self, id: u32) -> Result<()> {
        self.signal(id, Signal::TERM)?;
        let status = self.child(id)?.wait().context("cannot wait for a member")?;
        self.children.remove(&id);
        ensure!(status.success(), "member {id} ended after SIGTERM: {status}");
        Ok(())
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// When it does not run.
    pub fn stop(&mut self, id: u32) -> Result<()> {
        self.signal(id, Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it does not run.
    pub fn go_on(&mut self, id: u32) -> Result<()> {
        self.signal(id, Signal::CONT)
    }

    fn signal(&self, id: u32, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid(id)?).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        rustix::process::kill_process(pid, signal)
            .with_context(|| format!("cannot signal member {id}"))
    }

    /// What a member says of itself, if it answers within `patience`.
    #[must_use]
    pub fn status_of(&self, id: u32, patience: Duration) -> Option<Value> {
        let id = base::MemberId(id);
        let options = Options { members: vec![id], deadline: patience, ..self.options() };
        let text = Client::connect(options).ok()?.status(id).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Who leads now, as the members say that answer at once.
    #[must_use]
    pub fn leader(&self) -> Option<u32> {
        let said = self.running().into_iter().filter_map(|id| {
            let said = self.status_of(id, Duration::from_millis(150))?;
            (said["role"] == "leader").then(|| (said["term"].as_u64(), id))
        });
        said.max().map(|(_, id)| id)
    }

    /// Waits until somebody leads.
    ///
    /// # Errors
    /// When nobody does within [`LEADER_MAX`].
    pub fn wait_for_leader(&self) -> Result<u32> {
        let began = Instant::now();
        while began.elapsed() < LEADER_MAX {
            if let Some(leader) = self.leader() {
                return Ok(leader);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nobody leads after {LEADER_MAX:?}")
    }

    /// Waits until a leader replicates to every other member that runs; who that leader is.
    ///
    /// # Errors
    /// When that does not come true within [`LEADER_MAX`].
    pub fn wait_until_all_follow(&self) -> Result<u32> {
        let (began, others) = (Instant::now(), self.running().len().saturating_sub(1));
        while began.elapsed() < LEADER_MAX {
            let leader = self.leader();
            let said = leader.and_then(|leader| self.status_of(leader, Duration::from_secs(1)));
            let followers = said.as_ref().and_then(|said| said["followers"].as_array());
            let follows = |follower: &&Value| follower["replicating"] == true;
            let count = followers.map_or(0, |followers| followers.iter().filter(follows).count());
            match leader {
                Some(leader) if count >= others => return Ok(leader),
                Some(_) | None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        bail!("not every member follows a leader after {LEADER_MAX:?}")
    }

    /// Hands leadership to a member, and waits until it leads.
    ///
    /// # Errors
    /// When it does not come to lead within [`LEADER_MAX`].
    pub fn make_leader(&self, id: u32) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < LEADER_MAX {
            if self.leader() == Some(id) {
                return Ok(());
            }
            // Refused while that member is not far enough: it is asked again.
            let options = Options { deadline: Duration::from_secs(1), ..self.options() };
            let _asked = Client::connect(options)
                .and_then(|mut client| client.transfer(Some(base::MemberId(id))));
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("member {id} did not come to lead within {LEADER_MAX:?}")
    }

    /// Processor time that a member has used, all threads together.
    ///
    /// # Errors
    /// When it does not run.
    pub fn cpu_time(&self, id: u32) -> Result<Duration> {
        process_time(self.pid(id)?)
    }

    /// Memory of a member that is its own: anonymous pages, in bytes.
    ///
    /// # Errors
    /// When it does not run.
    pub fn anonymous_bytes(&self, id: u32) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid(id)?))?;
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
        Ok(number.context("RssAnon in /proc/PID/status")?.parse::<u64>()? * 1024)
    }
}

/// Processor time that a process has used, all threads together, by the ten milliseconds.
///
/// # Errors
/// When there is no such process.
pub fn process_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("a line of /proc/PID/stat")?;
    let field = |at: usize| -> Result<u64> {
        let text = fields.split_ascii_whitespace().nth(at).context("a field")?;
        text.parse().context("a number")
    };
    // utime and stime, in ticks of which Linux has 100 a second for user space.
    Ok(Duration::from_millis((field(11)? + field(12)?) * 10))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            // It may have ended; nobody is left to be told.
            let _killed = child.kill();
            let _ended = child.wait();
        }
        let _removed = std::fs::remove_dir_all(&self.file.run_dir);
    }
}
