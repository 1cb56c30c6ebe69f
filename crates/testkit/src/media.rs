//! File systems in files, for cases that cut the power or spoil a disk.
//!
//! # Nothing stays behind
//! A case first moves into a mount namespace of its own ([`enter`]) and mounts through loop devices
//! that the kernel frees with their last mount. So mounts and devices end with the process, however
//! it ends; unmounting in order only gives space back sooner.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Set in the environment of a process that has its own mounts.
const MARK: &str = "REMANENT_OWN_MOUNTS";

/// Starts this program again, with the same arguments, where its mounts are its own; returns only
/// there.
///
/// # Errors
/// When `case` must be skipped: not root, or one of `tools` (a program, and the package that has
/// it) is missing.
pub fn enter(case: &str, tools: &[(&str, &str)]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("SKIPPED {case}: mounting needs root");
    }
    let basic = [("unshare", "util-linux"), ("mount", "mount"), ("umount", "mount")];
    for (tool, package) in basic.iter().chain(tools) {
        if !is_program(tool) {
            bail!("SKIPPED {case}: there is no {tool}; install {package}");
        }
    }
    if std::env::var_os(MARK).is_some() {
        return Ok(());
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let failed = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
    bail!("SKIPPED {case}: cannot have mounts of one's own: {failed}")
}

fn is_program(name: &str) -> bool {
    let usual = OsStr::new("/usr/sbin:/sbin").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(std::env::split_paths(&usual))
        .any(|dir| dir.join(name).exists())
}

/// Runs a program to its end.
///
/// # Errors
/// When it fails, with what it said.
pub fn run(program: &str, arguments: &[&OsStr]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {arguments:?}: {}: {}", output.status, said.trim());
    }
    Ok(())
}

/// A part of a file that is a disk.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
}

/// Makes an ext4 file system in a part of `file`, which is made and grown as needed.
///
/// # Errors
/// When it cannot be made.
pub fn make_ext4(file: &Path, extent: Extent) -> Result<()> {
    grow(file, extent.offset + extent.len)?;
    // What is written lazily in the background would only disturb.
    let options = format!("offset={},lazy_itable_init=0,lazy_journal_init=0", extent.offset);
    let size = format!("{}k", extent.len / 1024);
    let (options, size) = (OsStr::new(&options), OsStr::new(&size));
    let arguments = ["-F", "-q", "-m", "0", "-E"].map(OsStr::new);
    run("mkfs.ext4", &[&arguments[..], &[options, file.as_os_str(), size]].concat())
}

/// Makes an XFS whose files can be cloned, in a new sparse file of `len` bytes.
///
/// # Errors
/// When it cannot be made.
pub fn make_xfs(file: &Path, len: u64) -> Result<()> {
    grow(file, len)?;
    let arguments = ["-q", "-m", "reflink=1"].map(OsStr::new);
    run("mkfs.xfs", &[&arguments[..], &[file.as_os_str()]].concat())
}

fn grow(path: &Path, len: u64) -> Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(|| format!("{}", path.display()))?;
    if file.metadata()?.len() < len {
        file.set_len(len).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// Clones a file: both share their blocks until one is written.
///
/// # Errors
/// When the file system cannot do that.
pub fn clone(from: &Path, to: &Path) -> Result<()> {
    let source = File::open(from).with_context(|| format!("{}", from.display()))?;
    let target = File::create_new(to).with_context(|| format!("{}", to.display()))?;
    rustix::fs::ioctl_ficlone(&target, &source)
        .with_context(|| format!("cannot clone {}", from.display()))
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts the file system that lies in `file`, or in a part of it, at `at`, which is made.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn of_file(file: &Path, extent: Option<Extent>, at: &Path) -> Result<Self> {
        let options = extent.map_or_else(
            || "loop,discard".to_owned(),
            |extent| format!("loop,offset={},sizelimit={}", extent.offset, extent.len),
        );
        std::fs::create_dir_all(at).with_context(|| format!("{}", at.display()))?;
        let options = [OsStr::new("-o"), OsStr::new(&options)];
        run("mount", &[&options[..], &[file.as_os_str(), at.as_os_str()]].concat())?;
        Ok(Self(at.to_owned()))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Mounts a directory over itself, read-only for everybody until it is unmounted.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn read_only(dir: &Path) -> Result<Self> {
        run("mount", &["--bind".as_ref(), dir.as_os_str(), dir.as_os_str()])?;
        let mount = Self(dir.to_owned());
        run("mount", &["-o".as_ref(), "remount,bind,ro".as_ref(), dir.as_os_str()])?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if run("umount", &[self.0.as_os_str()]).is_err() {
            // Somebody still holds a file there; it goes with the last of them.
            let _gone = run("umount", &["--lazy".as_ref(), self.0.as_os_str()]);
        }
    }
}
