//! `remanent node`: one member in this process.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result};
use base::MemberId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Global;
use crate::config::Flags;
use crate::layout::Cluster;
use crate::node;

/// Runs one member until SIGTERM or SIGINT; a leader hands over before it ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which member of the cluster.
    #[arg(short, long, env = "REMANENT_MEMBER")]
    pub(crate) member: u32,
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// What to log, as `info`, `warn` or `remanent=debug`.
    #[arg(long, default_value = "info", env = "REMANENT_LOG")]
    pub(crate) log: String,
    /// Ends with the process that started it.
    #[arg(long, hide = true)]
    pub(crate) die_with_parent: bool,
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode> {
    start_log(&arguments.log)?;
    if arguments.die_with_parent {
        // A stopped process would never see SIGTERM; a member survives being killed.
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal)
            .context("cannot ask to end with the parent")?;
    }
    let cluster = Cluster::read(&global.cluster)?;
    let id = MemberId(arguments.member);
    let running = arguments.flags.resolve(&cluster.paths(id)?.config)?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let waker = Arc::new(OnceLock::<fabric::shm::Waker>::new());
    let woken = Arc::clone(&waker);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for (count, _) in (&mut signals).into_iter().enumerate() {
                if count > 0 {
                    // Asked twice: whoever asks cannot wait for a hand-over.
                    std::process::abort();
                }
                theirs.store(true, Ordering::Release);
                if let Some(waker) = woken.get() {
                    waker.wake();
                }
            }
        })
        .context("cannot start the thread for signals")?;
    node::run(&cluster, id, &running, &stop, move |opened| {
        waker.get_or_init(|| opened);
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Logs to the standard error stream, a line per event.
fn start_log(filter: &str) -> Result<()> {
    use std::io::IsTerminal as _;
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .with_context(|| format!("--log {filter}: cannot be understood"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
