//! A member's log as the search sees it: the semantics of `logfmt::MemberLog` without the bytes.
//!
//! ```text
//!    base                 segments not yet sealed by a durable superblock
//!  +--------------------+-----------------+----------------------------------+
//!  | sealed, durable,   | sealed in RAM   | open: first .. durable .. landed |
//!  | named so on disk   | only (a fence   |                  taken ^         |
//!  |                    | is under way)   |                                  |
//!  +--------------------+-----------------+----------------------------------+
//! ```
//!
//! Invariant: `path` is what the reader's rule makes of `base` and then of the taken part of each
//! segment in grant order.
//!
//! A segment whose seal a durable superblock names, and whose entries are durable up to it, is
//! merged into `base`: what is written behind the seal is never looked at, and walking sealed
//! segments again gives the same log each time, so nothing can tell the difference.

use std::sync::Arc;

use base::{Configuration, GrantWord, Index, SlotId, Term};
use consensus::{LogView, SegmentEnd};
use logfmt::{Boundary, Extent, Position, Seal, SegmentRecord, Shape, Superblock};

use super::path::{Path, small};

/// Commit indexes in entry headers, four bits per index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Commits(u64);

impl Commits {
    pub(super) fn set(&mut self, index: u8, commit: u8) {
        let shift = 4 * u32::from(index);
        self.0 = self.0 & !(15 << shift) | u64::from(commit.min(15)) << shift;
    }

    pub(super) fn get(self, index: u8) -> u8 {
        u8::try_from(self.0 >> (4 * u32::from(index)) & 15).unwrap_or(0)
    }
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Segment {
    pub(super) word: GrantWord,
    pub(super) slot: SlotId,
    pub(super) ordinal: u32,
    /// Granted to this member itself.
    pub(super) is_own: bool,
    /// The first entry in it; 0 when it is empty.
    pub(super) first: u8,
    /// The writer's log up to the last entry that has landed.
    pub(super) landed: Path,
    /// The last entry that would survive a power cut.
    pub(super) durable: u8,
    pub(super) commits: Commits,
    /// The commit index in the idle line.
    pub(super) idle: u8,
    /// The last entry that the reader has taken.
    pub(super) taken: u8,
    /// The last entry below the seal, once it is sealed in memory.
    pub(super) sealed: Option<u8>,
}

impl Segment {
    /// Entries `first..=landed.len()` of the writer's log stand in it.
    pub(super) fn land(&mut self, first: u8, content: Path, commits: Commits) {
        if self.first == 0 {
            self.first = first;
        }
        for index in first..=content.len() {
            self.commits.set(index, commits.get(index));
        }
        self.landed = content;
    }

    /// A slot is used again; a grant's ordinal is not.
    pub(super) fn is_named_by(&self, record: &SegmentRecord) -> bool {
        (self.word, self.ordinal) == (record.word, record.ordinal)
    }

    fn keep(&mut self, last: u8) {
        if self.first == 0 || last < self.first {
            self.first = 0;
            self.landed = Path::default();
            self.commits = Commits::default();
            self.durable = 0;
            return;
        }
        self.landed = self.landed.prefix(last);
        for index in last + 1..=super::path::ENTRIES_MAX {
            self.commits.set(index, 0);
        }
        self.durable = self.durable.min(last);
    }

    /// What the entries taken say about what is committed.
    fn believed(&self) -> u8 {
        let carried = if self.taken == 0 { 0 } else { self.commits.get(self.taken) };
        carried.max(self.idle.min(self.taken))
    }
}

/// The reader's rule: what `path` becomes when entries `first..=upto` of `content` are read.
fn read(path: Path, (first, content, upto): (u8, Path, u8), has_begun: bool) -> Option<Path> {
    if first == 0 || upto < first {
        return None;
    }
    let chains = first <= path.len() + 1 && path.prefix(first - 1) == content.prefix(first - 1);
    if !has_begun && !chains {
        return None;
    }
    let read = content.prefix(upto);
    Some(if path.holds(read) { path } else { read })
}

/// A member's log. See the module.
#[derive(Clone, Debug)]
pub(super) struct ModelLog {
    pub(super) base: Path,
    /// What the entries of `base` say about what is committed.
    pub(super) base_believed: u8,
    pub(super) path: Path,
    pub(super) segments: Vec<Segment>,
    believed: u8,
    boundaries: Vec<Boundary>,
    configurations: Arc<[Configuration]>,
}

impl ModelLog {
    pub(super) fn new(configurations: Arc<[Configuration]>) -> Self {
        Self {
            base: Path::default(),
            base_believed: 0,
            path: Path::default(),
            segments: Vec::new(),
            believed: 0,
            boundaries: Path::default().boundaries(),
            configurations,
        }
    }

    fn set_path(&mut self, path: Path) {
        if path != self.path {
            self.path = path;
            self.boundaries = path.boundaries();
        }
    }

    /// The number of a configuration that may stand in a log.
    pub(super) fn number_of(&self, configuration: &Configuration) -> Option<u8> {
        let at = self.configurations.iter().position(|known| known == configuration)?;
        u8::try_from(at).ok()
    }

    pub(super) fn open(&mut self, record: &SegmentRecord, is_own: bool) {
        self.segments.push(Segment {
            word: record.word,
            slot: record.slot,
            ordinal: record.ordinal,
            is_own,
            first: 0,
            landed: Path::default(),
            durable: 0,
            commits: Commits::default(),
            idle: 0,
            taken: 0,
            sealed: None,
        });
    }

    /// The first open segment of the grant `word`.
    pub(super) fn of_grant(&mut self, word: GrantWord) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.word == word && segment.ordinal == 0)
    }

    /// The open segment that this member itself fills.
    pub(super) fn own(&self) -> Option<usize> {
        self.segments
            .iter()
            .position(|segment| segment.is_own && segment.ordinal == 0 && segment.sealed.is_none())
    }

    /// Reads segment `at` to its end, or to its seal.
    fn take(&mut self, at: usize) {
        let segment = &mut self.segments[at];
        let upto = segment.sealed.unwrap_or(u8::MAX).min(segment.landed.len());
        let content = (segment.first, segment.landed, upto);
        let Some(path) = read(self.path, content, segment.taken != 0) else { return };
        segment.taken = upto;
        self.believed = self.believed.max(segment.believed());
        self.set_path(path);
    }

    /// Walks the open segments to their ends. Returns the commit index that the log proves.
    pub(super) fn walk(&mut self) -> u8 {
        for at in 0..self.segments.len() {
            if self.segments[at].sealed.is_none() {
                self.take(at);
            }
        }
        self.believed
    }

    /// Seals every open segment in memory.
    pub(super) fn seal(&mut self) -> Vec<SegmentEnd> {
        let open = self.segments.iter_mut().filter(|segment| segment.sealed.is_none());
        open.map(|segment| {
            segment.sealed = Some(segment.taken);
            let seal = (segment.taken != 0).then(|| Seal {
                last: Index(u64::from(segment.taken)),
                end: 64 * u64::from(segment.taken - segment.first + 2),
            });
            let first = if seal.is_some() { segment.first } else { 0 };
            SegmentEnd { slot: segment.slot, first: Index(u64::from(first)), seal }
        })
        .collect()
    }

    /// All that was taken becomes durable.
    pub(super) fn flush(&mut self) {
        for segment in &mut self.segments {
            segment.durable = segment.durable.max(segment.taken);
        }
    }

    /// Appends an own entry. Returns whether there was room.
    pub(super) fn append(&mut self, path: Path, commit: u8) -> bool {
        let Some(at) = self.own() else { return false };
        let index = path.len();
        let segment = &mut self.segments[at];
        if segment.first != 0 && segment.landed != path.prefix(index - 1) {
            return false;
        }
        let mut commits = Commits::default();
        commits.set(index, commit.min(index - 1));
        segment.land(index, path, commits);
        self.take(at);
        true
    }

    /// Copies entries behind `from`, where both logs are equal, up to all of `content`. Returns
    /// whether the own grant's stream goes on where the copy begins.
    pub(super) fn adopt(&mut self, from: u8, content: Path) -> bool {
        let Some(at) = self.own() else { return false };
        let segment = &mut self.segments[at];
        let chains = self.path.prefix(from) == content.prefix(from);
        if !chains || (segment.first != 0 && segment.landed.len() != from) {
            return false;
        }
        if from < content.len() {
            segment.land(from + 1, content, Commits::default());
            self.take(at);
        }
        true
    }

    /// A superblock became durable: merges what it seals, forgets what nobody names.
    pub(super) fn settle(&mut self, disk: &Superblock, current: &Superblock) {
        let is_named = |segment: &Segment| {
            let mut records = disk.segments.iter().chain(&current.segments);
            records.any(|record| segment.is_named_by(record))
        };
        self.segments.retain(|segment| segment.sealed.is_none() || is_named(segment));
        while let Some(segment) = self.segments.first() {
            let on_disk = disk.segments.iter().find(|record| segment.is_named_by(record));
            let seal = on_disk.and_then(|record| record.seal).map(|seal| small(seal.last));
            let Some(last) = seal.filter(|&last| segment.sealed == Some(last)) else { break };
            if segment.durable < last {
                break;
            }
            let content = (segment.first, segment.landed, last);
            self.base = read(self.base, content, false).unwrap_or(self.base);
            self.base_believed = self.base_believed.max(segment.believed());
            self.segments.remove(0);
        }
    }

    /// What a restart finds when of each segment that `disk` names only the entries up to
    /// `survives` are there.
    pub(super) fn restored(&self, disk: &Superblock, survives: impl Fn(&Segment) -> u8) -> Self {
        let mut log = Self::new(Arc::clone(&self.configurations));
        log.base = self.base;
        log.base_believed = self.base_believed;
        log.believed = self.base_believed;
        log.set_path(self.base);
        for record in &disk.segments {
            let Some(old) = self.segments.iter().find(|old| old.is_named_by(record)) else {
                continue;
            };
            let mut segment = old.clone();
            segment.taken = 0;
            segment.sealed = record.seal.map(|seal| small(seal.last));
            segment.keep(survives(old));
            log.segments.push(segment);
            log.take(log.segments.len() - 1);
        }
        log
    }

    /// The log that would be left by a power cut now.
    pub(super) fn floor(&self, disk: &Superblock) -> Path {
        let mut path = self.base;
        for record in &disk.segments {
            let Some(segment) = self.segments.iter().find(|old| old.is_named_by(record)) else {
                continue;
            };
            let limit = record.seal.map_or(u8::MAX, |seal| small(seal.last));
            let content = (segment.first, segment.landed, segment.durable.min(limit));
            path = read(path, content, false).unwrap_or(path);
        }
        path
    }

    fn configuration_place(&self) -> (u8, u8) {
        let places = (1..=self.path.len()).rev();
        let mut found =
            places.filter_map(|at| self.path.configuration_at(at).map(|number| (at, number)));
        found.next().unwrap_or((0, 0))
    }
}

impl LogView for ModelLog {
    fn tail(&self) -> Position {
        self.path.position(self.path.len())
    }

    fn first(&self) -> Index {
        Index(1)
    }

    fn term_at(&self, index: Index) -> Option<Term> {
        let at = small(index);
        (at <= self.path.len()).then(|| Term(u64::from(self.path.term_at(at))))
    }

    fn shape_at(&self, index: Index) -> Option<Shape> {
        let at = small(index);
        let is_there = at != 0 && at <= self.path.len();
        is_there.then_some(Shape { payload_len: 8, aligned: false })
    }

    fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    fn configuration(&self) -> (Index, &Configuration) {
        let (at, number) = self.configuration_place();
        (Index(u64::from(at)), &self.configurations[usize::from(number)])
    }

    /// Always two: room is not what is searched here.
    fn unopened(&self) -> usize {
        2
    }

    fn completed(&self, _slot: SlotId) -> Option<Index> {
        None
    }

    fn extents(&self, _from: Index) -> Vec<Extent> {
        Vec::new()
    }

    fn unreferenced(&self) -> Index {
        Index(0)
    }
}
