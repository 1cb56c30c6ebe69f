//! The superblock as the core changes it: one write in flight, later changes join the next one.

use base::check;
use logfmt::Superblock;

use crate::effect::{Effect, Output};

/// The superblock in memory and how much of it is durable.
///
/// Invariant: `current.generation` is that of the last write begun; `written <= generation`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    /// What the member is, with changes that are not durable yet.
    pub(crate) current: Superblock,
    in_flight: Option<u64>,
    is_dirty: bool,
    written: u64,
}

impl Stored {
    pub(crate) const fn new(current: Superblock) -> Self {
        let written = current.generation;
        Self { current, in_flight: None, is_dirty: false, written }
    }

    /// Writes `current` as soon as the write in flight, if any, is done. Returns the generation
    /// that will hold it.
    pub(crate) fn write(&mut self, out: &mut dyn Output) -> u64 {
        if let Some(generation) = self.in_flight {
            self.is_dirty = true;
            return generation + 1;
        }
        self.current.generation += 1;
        self.in_flight = Some(self.current.generation);
        self.is_dirty = false;
        out.push(Effect::WriteSuperblock(Box::new(self.current.clone())));
        self.current.generation
    }

    /// A write is durable; begins the next one if changes wait.
    pub(crate) fn on_written(&mut self, generation: u64, out: &mut dyn Output) {
        check!(self.in_flight == Some(generation), "superblock writes end in the order begun");
        self.in_flight = None;
        self.written = generation;
        if self.is_dirty {
            self.write(out);
        }
    }

    pub(crate) const fn is_written(&self, generation: u64) -> bool {
        generation <= self.written
    }
}
