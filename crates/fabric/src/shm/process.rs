//! Which process owns a board, and whether it is gone.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::layout::Header;

/// Longer than any `/proc/PID/stat` line.
const STAT_LEN_MAX: u64 = 4096;

/// What a header says about the process that makes a board.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) pid_namespace: u64,
    pub(crate) boot: u128,
}

impl Origin {
    /// This process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub(crate) fn here() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            start_time: start_time(pid)?,
            pid_namespace: pid_namespace()?,
            boot: pmem::boot_id()?.0,
        })
    }
}

fn pid_namespace() -> io::Result<u64> {
    Ok(rustix::fs::stat("/proc/self/ns/pid")?.st_ino)
}

fn start_time(pid: u32) -> io::Result<u64> {
    let mut stat = String::new();
    File::open(format!("/proc/{pid}/stat"))?.take(STAT_LEN_MAX).read_to_string(&mut stat)?;
    parse_start_time(&stat).ok_or_else(|| io::Error::other("no start time in /proc/PID/stat"))
}

/// Field 22. The name, field 2, may hold blanks and parentheses, but the last one ends it.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Why a board's owner cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// No such process any more.
    #[error("the owner of the board, pid {0}, is gone")]
    Gone(u32),
    /// A pid means something else here.
    #[error("the owner of the board runs in another pid namespace: its end cannot be seen")]
    OtherNamespace,
    /// The operating system said no.
    #[error("cannot watch pid {pid}: {source}")]
    System {
        /// The owner's process.
        pid: u32,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// A peer's process, pinned: the number cannot come to mean another one.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// The process that wrote `header`.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub(crate) fn of(header: &Header) -> Result<Self, OwnerError> {
        let pid = header.pid;
        let system = |source: io::Error| OwnerError::System { pid, source };
        if header.boot != pmem::boot_id().map_err(system)?.0 {
            return Err(OwnerError::Gone(pid));
        }
        if header.pid_namespace != pid_namespace().map_err(system)? {
            return Err(OwnerError::OtherNamespace);
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(OwnerError::Gone(pid))?;
        let pidfd = match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Err(OwnerError::Gone(pid)),
            Err(error) => return Err(system(error.into())),
        };
        // The descriptor pins whoever has the number now; only then its start is asked for.
        let process = Self { pid, pidfd };
        if start_time(pid).ok() != Some(header.start_time) {
            return Err(OwnerError::Gone(pid));
        }
        Ok(process)
    }

    /// Whether every thread of it has ended, so that no store of it can follow. A system call.
    pub(crate) fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1))
    }

    /// Whether it is this very process.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Ends it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4711 1 2 3";
        assert_eq!(parse_start_time(stat), Some(4711));
        assert_eq!(parse_start_time("7 (a"), None);
        assert_eq!(parse_start_time("7 (a) S 1"), None);
    }

    #[test]
    fn a_number_that_means_another_process_is_gone() {
        let origin = Origin::here().unwrap();
        let header = Header {
            pid: origin.pid,
            start_time: origin.start_time,
            pid_namespace: origin.pid_namespace,
            boot: origin.boot,
            ..Header::default()
        };
        let process = Process::of(&header).unwrap();
        assert!(process.is_own());
        assert!(!process.is_gone());
        let other_start = Header { start_time: origin.start_time + 1, ..header };
        assert!(matches!(Process::of(&other_start), Err(OwnerError::Gone(_))));
        let other_boot = Header { boot: origin.boot ^ 1, ..header };
        assert!(matches!(Process::of(&other_boot), Err(OwnerError::Gone(_))));
        let elsewhere = Header { pid_namespace: 0, ..header };
        assert!(matches!(Process::of(&elsewhere), Err(OwnerError::OtherNamespace)));
    }
}
