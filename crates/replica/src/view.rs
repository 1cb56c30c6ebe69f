//! The log as the core may see it.

use base::{Configuration, Index, SlotId, Term};
use consensus::LogView;
use logfmt::{Boundary, Bytes, BytesMut, Extent, MemberLog, Position, Shape};
use pmem::Region;

use crate::machine::StateMachine;

/// A region as the log reads and writes it.
#[derive(Debug)]
pub(crate) struct RegionBytes<'a, R>(pub(crate) &'a mut R);

impl<R: Region> Bytes for RegionBytes<'_, R> {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.0.copy_out(at, into);
    }
}

impl<R: Region> BytesMut for RegionBytes<'_, R> {
    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self.0.copy_in(at, from);
    }
}

/// A member's log, with what its state machine still refers to.
#[derive(Debug)]
pub(crate) struct View<'a, M> {
    pub(crate) log: &'a MemberLog,
    pub(crate) machine: &'a M,
}

impl<M: StateMachine> LogView for View<'_, M> {
    fn tail(&self) -> Position {
        self.log.tail()
    }

    fn first(&self) -> Index {
        self.log.first_index()
    }

    fn term_at(&self, index: Index) -> Option<Term> {
        self.log.term_at(index)
    }

    fn shape_at(&self, index: Index) -> Option<Shape> {
        if index < self.log.first_index() { None } else { self.log.shape_at(index) }
    }

    fn boundaries(&self) -> &[Boundary] {
        self.log.boundaries()
    }

    fn configuration(&self) -> (Index, &Configuration) {
        self.log.configuration()
    }

    fn unopened(&self) -> usize {
        self.log.unopened()
    }

    fn completed(&self, slot: SlotId) -> Option<Index> {
        let record = self.log.records().find(|record| record.slot == slot)?;
        record.seal.map(|seal| seal.last)
    }

    fn extents(&self, from: Index) -> Vec<Extent> {
        self.log.extents(from)
    }

    fn unreferenced(&self) -> Index {
        self.machine.lowest_referenced().map_or(Index(u64::MAX), Index::previous)
    }
}
