//! Random histories of one member's log, after each step of which a restart must find what the live
//! log holds: the superblock is kept in step as the protocol keeps it, leaders write the entries of
//! their own logs into the member's segments, and nothing of the log under test decides what they
//! write.

use base::{Index, Nonce, Random, SlotId, Term};
use logfmt::place::{FIRST_OFFSET, place};
use logfmt::{
    AppendError, BytesMut, Checkpoint, Header, Kind, MemberLog, NewEntry, Position, Restored,
    SegmentRecord, Superblock, encode_configuration,
};

use crate::world::{byte, configuration, founding, layout, region, superblock};

const WINDOW: u64 = 512;
const STEPS: u64 = 60;
/// Enough for each of the named tests in `below.rs` to be met, in a few seconds.
const SEEDS: u64 = 1000;

/// A leader's own log, entry `i` at place `i - 1`.
struct Leader {
    term: Term,
    nonce: Nonce,
    entries: Vec<(Header, Vec<u8>)>,
}

impl Leader {
    fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    fn position(&self, index: u64) -> Option<Position> {
        match usize::try_from(index).unwrap().checked_sub(1) {
            None => Some(Position::default()),
            Some(at) => self.entries.get(at).map(|(header, _)| header.position()),
        }
    }

    fn add(&mut self, kind: Kind, payload: Vec<u8>) {
        let previous = self.position(self.last()).unwrap();
        let header = Header {
            kind,
            aligned: false,
            term: self.term,
            index: previous.index.next(),
            commit: Index(0),
            payload_len: u32::try_from(payload.len()).unwrap(),
            digest: base::Digest(0),
        };
        let digest = header.digest_over(previous.digest, &payload);
        self.entries.push((Header { digest, ..header }, payload));
    }
}

/// A member, whoever leads it, and what its superblock says.
struct History {
    random: Random,
    region: Vec<u8>,
    log: MemberLog,
    /// The superblock with changes that are not durable yet.
    current: Superblock,
    durable: Superblock,
    leaders: Vec<Leader>,
    /// The leader of the grant in force, and whether it is this member itself.
    leader: usize,
    is_own: bool,
    /// The next entry that it writes, and where: ordinal and offset.
    next: u64,
    pen: (u32, u64),
    next_ordinal: u32,
}

impl History {
    fn new(seed: u64) -> Self {
        let current = superblock(layout(), founding(), Vec::new());
        let leader = Leader { term: Term(0), nonce: Nonce(0), entries: Vec::new() };
        let mut history = Self {
            random: Random::new(seed),
            region: region(layout()),
            log: MemberLog::new(layout(), &founding()),
            durable: current.clone(),
            current,
            leaders: vec![leader],
            leader: 0,
            is_own: false,
            next: 1,
            pen: (0, FIRST_OFFSET),
            next_ordinal: 0,
        };
        history.elect();
        history
    }

    fn payload(&mut self) -> (Kind, Vec<u8>) {
        if self.random.one_in(8) {
            let mut payload = Vec::new();
            let third = 3 + u32::try_from(self.random.below(4)).unwrap();
            encode_configuration(&configuration(&[1, 2, third]), &mut payload);
            return (Kind::Configuration, payload);
        }
        let bound = if self.random.one_in(2) { 448 } else { 24 };
        let len = usize::try_from(self.random.below(bound)).unwrap();
        let byte = self.random.next().to_le_bytes()[0];
        (Kind::Command, vec![byte; len])
    }

    fn extend_leader(&mut self) {
        let (kind, payload) = self.payload();
        self.leaders[self.leader].add(kind, payload);
    }

    /// A leader of a new term: its log is that of an earlier leader up to anywhere behind the
    /// checkpoint, which is committed, and a no-op.
    fn elect(&mut self) {
        let base = self.current.checkpoint.at;
        let holders: Vec<usize> = (0..self.leaders.len())
            .filter(|&at| self.leaders[at].position(base.index.0) == Some(base))
            .collect();
        let choice = self.random.below(holders.len() as u64);
        let parent = &self.leaders[holders[usize::try_from(choice).unwrap()]];
        let most = parent.last() - base.index.0;
        let less = self.random.below(most.min(6) + 1);
        let kept = usize::try_from(parent.last() - less).unwrap();
        let entries = parent.entries[..kept].to_vec();
        let term = Term(self.leaders.len() as u64);
        let mut leader = Leader { term, nonce: Nonce(self.random.next()), entries };
        leader.add(Kind::NoOp, Vec::new());
        self.leaders.push(leader);
        self.leader = self.leaders.len() - 1;
        self.is_own = self.random.one_in(3);
        self.fence();
    }

    fn regrant(&mut self) {
        if self.is_own {
            self.elect();
        } else {
            self.fence();
        }
    }

    /// Fence-and-grant for the present leader.
    fn fence(&mut self) {
        walk_to_end(&mut self.log, &self.region);
        for (slot, first, seal) in self.log.seal() {
            let at = self.current.segments.iter().position(|record| record.slot == slot).unwrap();
            match seal {
                Some(_) => {
                    self.current.segments[at].first = first;
                    self.current.segments[at].seal = seal;
                }
                None => drop(self.current.segments.remove(at)),
            }
        }
        self.current.segments.retain(|record| record.seal.is_some());
        self.check();
        while self.free().count() < 3 && self.trim() {}
        self.current.term = self.leaders[self.leader].term;
        self.current.grant = self.current.grant.next_in(self.current.term).unwrap();
        self.next_ordinal = 0;
        self.pen = (0, FIRST_OFFSET);
        self.grant_more(2);
        self.next = self.match_point() + 1;
    }

    /// The last index at which the leader's log is this one; now and then a remote writer begins
    /// lower than it might.
    fn match_point(&mut self) -> u64 {
        let base = self.log.checkpoint().index.0;
        let mut at = self.log.tail().index.0.min(self.leaders[self.leader].last());
        while self.log.position_at(Index(at), &self.region)
            != self.leaders[self.leader].position(at)
        {
            assert!(base < at, "the checkpoint is committed");
            at -= 1;
        }
        let is_low = !self.is_own && self.random.one_in(6);
        if is_low { at - self.random.below((at - base).min(4) + 1) } else { at }
    }

    fn free(&self) -> impl Iterator<Item = SlotId> {
        (0..layout().slot_count()).map(SlotId).filter(|slot| {
            self.current.segments.iter().all(|record| record.slot != *slot)
                && self.log.records().all(|record| record.slot != *slot)
        })
    }

    fn grant_more(&mut self, count: usize) -> bool {
        let nonce = self.current.grant.nonce(self.leaders[self.leader].nonce);
        let slots: Vec<_> = self.free().take(count).collect();
        let mut records = Vec::new();
        for slot in slots {
            let (word, ordinal) = (self.current.grant, self.next_ordinal);
            let first = Index(0);
            records.push(SegmentRecord { slot, word, ordinal, nonce, first, seal: None });
            self.next_ordinal += 1;
        }
        self.current.segments.extend_from_slice(&records);
        self.write_superblock();
        for record in &records {
            self.log.open(record);
        }
        !records.is_empty()
    }

    fn write_superblock(&mut self) {
        self.current.generation += 1;
        self.durable = self.current.clone();
        self.check();
    }

    /// The leader writes one more entry; `false` when there is no room for it.
    fn write(&mut self) -> bool {
        while self.leaders[self.leader].last() < self.next {
            if self.is_own && self.log.stream().is_some() {
                return self.append();
            }
            self.extend_leader();
        }
        let at = usize::try_from(self.next - 1).unwrap();
        let (header, payload) = &self.leaders[self.leader].entries[at];
        let (header, payload) = (*header, payload.clone());
        if !self.is_own {
            return self.place(header, &payload);
        }
        let commit = Index(0);
        match self.log.append_copy(&mut self.region, &header, commit, &[&payload]) {
            Ok(placed) => assert_eq!(placed.position, header.position()),
            Err(error) => return self.no_room(error),
        }
        self.next += 1;
        true
    }

    fn append(&mut self) -> bool {
        let (kind, payload) = self.payload();
        let term = self.leaders[self.leader].term;
        let pieces: [&[u8]; 1] = [&payload];
        let entry = NewEntry { kind, term, commit: Index(0), aligned: false, payload: &pieces };
        if let Err(error) = self.log.append(&mut self.region, entry) {
            return self.no_room(error);
        }
        self.leaders[self.leader].add(kind, payload);
        self.next += 1;
        true
    }

    fn no_room(&mut self, error: AppendError) -> bool {
        assert!(matches!(error, AppendError::NoRoom { .. }), "{error}");
        self.grant_more(1) && self.write()
    }

    /// One entry as a remote writer places it.
    fn place(&mut self, header: Header, payload: &[u8]) -> bool {
        let mut placed = place(self.pen.1, header.shape());
        if layout().segment_len() < placed.end {
            self.pen = (self.pen.0 + 1, FIRST_OFFSET);
            placed = place(FIRST_OFFSET, header.shape());
        }
        while self.next_ordinal <= self.pen.0 {
            if !self.grant_more(1) {
                return false;
            }
        }
        let (word, ordinal) = (self.current.grant, self.pen.0);
        let records = &self.current.segments;
        let record = records.iter().find(|r| r.word == word && r.ordinal == ordinal).unwrap();
        let start = layout().slot(record.slot).start;
        self.region.copy_in(start + placed.payload, payload);
        self.region.copy_in(start + placed.header, &header.encode(record.nonce));
        self.pen.1 = placed.end;
        self.next += 1;
        true
    }

    /// What the leader has of this member's log may become state: it is committed then.
    fn checkpoint(&mut self) {
        let base = self.log.checkpoint().index.0;
        let mut at = base + self.random.below(self.log.tail().index.0 - base + 1);
        while self.log.position_at(Index(at), &self.region)
            != self.leaders[self.leader].position(at)
        {
            at -= 1;
        }
        let position = self.log.position_at(Index(at), &self.region).unwrap();
        let (index, configuration) = self.log.configuration_at(Index(at)).unwrap();
        self.current.checkpoint = Checkpoint {
            at: position,
            configuration_index: index,
            configuration: configuration.clone(),
            ..Checkpoint::default()
        };
        self.write_superblock();
        self.log.checkpoint_moved(&self.current.checkpoint.clone());
    }

    fn trim(&mut self) -> bool {
        let Some(slot) = self.log.trimmable() else { return false };
        assert_eq!(self.current.segments[0].slot, slot, "log and superblock name the same oldest");
        self.current.segments.remove(0);
        self.log.trim(slot);
        true
    }

    /// The member has fallen behind: it gets a checkpoint of the leader's log, while what was in
    /// flight to it still arrives, and then a fresh grant.
    fn install(&mut self) {
        if self.is_own {
            return;
        }
        let before = self.next;
        for _ in 0..self.random.below(12) + 1 {
            self.extend_leader();
        }
        let leader = &self.leaders[self.leader];
        let at = leader.position(leader.last()).unwrap();
        if self.log.term_at(at.index) == Some(at.term) {
            return;
        }
        let entries = leader.entries.iter().rev();
        let last = entries.clone().find(|(header, _)| header.kind == Kind::Configuration);
        let (index, configuration) = last.map_or_else(
            || (Index(0), founding().configuration),
            |last| (last.0.index, logfmt::decode_configuration(&last.1).unwrap()),
        );
        self.current.segments.retain(|record| record.seal.is_none());
        self.current.checkpoint =
            Checkpoint { at, configuration_index: index, configuration, ..Checkpoint::default() };
        self.current.generation += 1;
        self.durable = self.current.clone();
        self.log.install(&self.current.checkpoint.clone());
        self.check();
        for _ in 0..self.random.below(at.index.0 - before + 1).min(3) {
            let at = usize::try_from(self.next - 1).unwrap();
            let (header, payload) = self.leaders[self.leader].entries[at].clone();
            self.place(header, &payload);
        }
        self.check();
        self.fence();
    }

    fn restart(&mut self) {
        self.log = restore(&self.durable, &self.region).0;
        self.current = self.durable.clone();
        self.check();
        self.is_own = false;
        if self.random.one_in(2) { self.elect() } else { self.regrant() }
    }

    /// An entry that arrives behind a seal.
    fn write_late(&mut self) {
        let sealed: Vec<_> = self.current.segments.iter().filter(|r| r.seal.is_some()).collect();
        let Some(record) = sealed.first() else { return };
        let seal = record.seal.unwrap();
        let leader = &self.leaders[self.leader];
        let at = usize::try_from(seal.last.0).unwrap();
        let Some((header, payload)) = leader.entries.get(at) else { return };
        let placed = place(seal.end, header.shape());
        if placed.end <= layout().segment_len() {
            let start = layout().slot(record.slot).start;
            self.region.copy_in(start + placed.payload, payload);
            self.region.copy_in(start + placed.header, &header.encode(record.nonce));
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..9 => {
                for _ in 0..self.random.below(6) + 1 {
                    self.write();
                }
            }
            9..12 => {
                self.log.walk(&self.region, 100);
            }
            12..15 => self.elect(),
            15 => self.regrant(),
            16 => drop(self.grant_more(1)),
            17..20 => self.checkpoint(),
            20 => drop(self.trim()),
            21 => self.install(),
            22 => self.restart(),
            _ => self.write_late(),
        }
        self.log.assert_invariants();
        self.check();
    }

    /// Where the headers of the live log lie that were taken from sealed segments.
    fn sealed_entries(&self) -> Vec<(Index, usize)> {
        let sealed = self.current.segments.iter().filter(|record| record.seal.is_some());
        let sealed: Vec<_> = sealed.map(|record| record.slot).collect();
        let entries = (0..=self.log.tail().index.0).map(Index);
        let at = entries.filter_map(|at| Some((at, self.log.location(at)?)));
        at.filter(|(_, at)| sealed.contains(&at.slot))
            .map(|(index, at)| (index, byte(layout(), at.slot.0, at.header)))
            .collect()
    }

    fn lose(&mut self, entries: &[(Index, usize)]) -> Option<Index> {
        let choice = self.random.below(entries.len().max(1) as u64);
        let (index, at) = entries.get(usize::try_from(choice).unwrap())?;
        self.region[*at] ^= 1;
        Some(*index)
    }

    fn lose_one_below(mut self) {
        walk_to_end(&mut self.log, &self.region);
        let base = self.log.checkpoint().index;
        let below: Vec<_> = self.sealed_entries().into_iter().filter(|e| e.0 <= base).collect();
        let before = positions(&self.log, base, &self.region);
        self.lose(&below);
        let (again, restored) = restore(&self.current, &self.region);
        assert_eq!(restored.damage, None);
        assert!(positions(&again, base, &self.region).starts_with(&before));
    }

    fn lose_one_above(mut self) {
        walk_to_end(&mut self.log, &self.region);
        let base = self.log.checkpoint().index;
        let above: Vec<_> = self.sealed_entries().into_iter().filter(|e| base < e.0).collect();
        let tail = self.log.tail();
        let Some(lost) = self.lose(&above) else { return };
        let (again, restored) = restore(&self.current, &self.region);
        let is_told = restored
            .damage
            .is_some_and(|damage| damage.from <= lost || damage.from <= again.tail().index.next());
        // A later grant may have repeated the entry: then nothing is lost.
        assert!(
            is_told || (restored.tail == tail && again.position_at(lost, &self.region).is_some())
        );
    }

    /// A restart finds what the live log would hold once it has walked to its end.
    fn check(&self) {
        let mut live = self.log.clone();
        walk_to_end(&mut live, &self.region);
        live.assert_invariants();
        for superblock in [&self.durable, &self.current] {
            let (again, restored) = restore(superblock, &self.region);
            assert_eq!(restored, Restored { tail: live.tail(), damage: None });
            assert_eq!(again.configuration(), live.configuration());
            let from = again.checkpoint().index.max(live.checkpoint().index);
            assert_eq!(positions(&again, from, &self.region), positions(&live, from, &self.region));
            assert_eq!(boundaries(&again, from), boundaries(&live, from));
        }
    }
}

fn boundaries(log: &MemberLog, from: Index) -> Vec<logfmt::Boundary> {
    log.boundaries().iter().copied().filter(|boundary| from < boundary.first).collect()
}

fn positions(log: &MemberLog, from: Index, region: &Vec<u8>) -> Vec<Option<Position>> {
    (from.0..=log.tail().index.0).map(|at| log.position_at(Index(at), region)).collect()
}

fn walk_to_end(log: &mut MemberLog, region: &Vec<u8>) {
    while !log.walk(region, u64::MAX).at_end {}
}

fn restore(superblock: &Superblock, region: &Vec<u8>) -> (MemberLog, Restored) {
    let (log, restored) = MemberLog::restore(layout(), superblock, region, false, WINDOW).unwrap();
    log.assert_invariants();
    (log, restored)
}

fn run(seed: u64) -> History {
    let mut history = History::new(seed);
    for _ in 0..STEPS {
        history.step();
    }
    history
}

/// Runs each history so that a failure names its seed.
fn for_each_seed(seeds: std::ops::Range<u64>, mut test: impl FnMut(u64)) {
    for seed in seeds {
        let name = Seed(seed);
        test(seed);
        drop(name);
    }
}

struct Seed(u64);

impl Drop for Seed {
    #[expect(clippy::print_stderr, reason = "the seed is what a failure is repeated with")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

#[test]
fn a_restart_finds_the_live_log_whatever_has_happened() {
    for_each_seed(0..SEEDS, |seed| drop(run(seed)));
}

#[test]
fn a_lost_header_at_or_below_the_checkpoint_takes_nothing_from_the_log() {
    for_each_seed(0..SEEDS, |seed| run(seed).lose_one_below());
}

#[test]
fn a_lost_sealed_entry_behind_the_checkpoint_is_never_passed_over() {
    for_each_seed(0..SEEDS, |seed| run(seed).lose_one_above());
}
