//! `remanent inspect`: what stands in a region, for people.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use base::SlotId;
use clap::Subcommand;
use logfmt::{
    Bytes, COPY_LEN, MemberLog, RegionLayout, Superblock, choose, dump_log, dump_segment,
    dump_superblock,
};

/// Prints what stands in a region. It only reads, and may do so while the member runs: what it
/// shows is then of no single moment.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The superblock in force.
    Superblock {
        /// A region file, or a member's directory.
        path: PathBuf,
    },
    /// One segment: its entries, and what lies behind them.
    Segment {
        /// A region file, or a member's directory.
        path: PathBuf,
        /// The slot's number.
        slot: u32,
    },
    /// The log as a restart would find it.
    Log {
        /// A region file, or a member's directory.
        path: PathBuf,
    },
}

/// A file as the bytes of a region.
pub(crate) struct FileBytes {
    file: File,
    path: PathBuf,
}

impl Bytes for FileBytes {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        if self.file.read_exact_at(into, at).is_err() {
            // Behind the end of a truncated file there is nothing valid.
            into.fill(0);
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let text = match &arguments.what {
        What::Superblock { path } => {
            let region = open(path)?;
            dump_superblock(&superblock(&region)?)
        }
        What::Segment { path, slot } => {
            let region = open(path)?;
            let superblock = superblock(&region)?;
            let record = superblock.segments.iter().find(|record| record.slot == SlotId(*slot));
            let Some(record) = record else {
                let used: Vec<_> =
                    superblock.segments.iter().map(|record| record.slot.to_string()).collect();
                bail!(
                    "{}: slot {slot} holds no segment; in use are {}",
                    region.path.display(),
                    if used.is_empty() { "none".to_owned() } else { used.join(", ") }
                )
            };
            dump_segment(&region, layout(&superblock)?, record)
        }
        What::Log { path } => {
            let region = open(path)?;
            let superblock = superblock(&region)?;
            let window = consensus::Params::default().window_bytes_max;
            let layout = layout(&superblock)?;
            let restored = MemberLog::restore(layout, &superblock, &region, false, window);
            let (log, restored) = restored.with_context(|| format!("{}", region.path.display()))?;
            let mut text = dump_log(&log);
            if let Some(damage) = restored.damage {
                text += &format!("damage: {damage:?}\n");
            }
            text
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn open(path: &Path) -> Result<FileBytes> {
    let path = if path.is_dir() { path.join("region") } else { path.to_owned() };
    let file = File::open(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
    ensure!(file.metadata()?.is_file(), "{}: is no region file", path.display());
    Ok(FileBytes { file, path })
}

pub(crate) fn superblock(region: &FileBytes) -> Result<Superblock> {
    let copy = |at: u64| {
        let mut bytes = vec![0; usize::try_from(COPY_LEN).unwrap_or_default()];
        region.copy_out(at, &mut bytes);
        bytes
    };
    let chosen = choose(&copy(0), &copy(COPY_LEN));
    chosen
        .map(|(superblock, _)| superblock)
        .with_context(|| format!("{}: no superblock that can be used", region.path.display()))
}

pub(crate) fn layout(superblock: &Superblock) -> Result<RegionLayout> {
    Ok(RegionLayout::new(superblock.segment_len, superblock.slot_count)?)
}
