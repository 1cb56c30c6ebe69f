//! The leader's own appends, and copies of other members' entries.

use base::{Index, SlotId, Term};
use logfmt::place::payload_max;
use logfmt::{AppendError, Header, Kind, MemberLog, NewEntry, Position, ReadError};

use crate::world::{
    Pen, byte, checkpoint, founding, layout, record, region, three_sealed, walk, wide_layout,
};

fn command<'a>(term: u64, commit: u64, payload: &'a [&'a [u8]]) -> NewEntry<'a> {
    NewEntry {
        kind: Kind::Command,
        term: Term(term),
        commit: Index(commit),
        aligned: false,
        payload,
    }
}

/// The entries of a log, to be copied into another.
fn entries(log: &MemberLog, region: &Vec<u8>, from: u64) -> Vec<(Header, Vec<u8>)> {
    (from..=log.tail().index.0)
        .map(|index| {
            let mut payload = Vec::new();
            let header = log.read_payload(Index(index), region, &mut payload).unwrap();
            (header, payload)
        })
        .collect()
}

#[test]
fn what_is_appended_is_what_a_reader_finds() {
    let mut region = region(wide_layout());
    let mut leader = MemberLog::new(wide_layout(), &founding());
    leader.open(&record(0, 1, 0));
    let mut reader = leader.clone();
    leader.append(&mut region, command(1, 0, &[b"in ", b"pieces"])).unwrap();
    let aligned = NewEntry { aligned: true, ..command(1, 1, &[&[9; 9000]]) };
    let placed = leader.append(&mut region, aligned).unwrap();
    assert_eq!((placed.place.header, placed.place.payload), (4032, 4096));
    leader.append(&mut region, command(1, 2, &[])).unwrap();
    leader.append(&mut region, command(1, 2, &[&[8; 300]])).unwrap();
    assert_eq!(walk(&mut reader, &region).accepted, 4);
    assert_eq!(reader, leader);
    let mut payload = Vec::new();
    leader.read_payload(Index(1), &region, &mut payload).unwrap();
    assert_eq!(payload, b"in pieces");
}

#[test]
fn an_entry_of_its_own_carries_a_commit_below_itself() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    log.append(&mut region, command(1, 99, &[b"x"])).unwrap();
    let mut payload = Vec::new();
    assert_eq!(log.read_payload(Index(1), &region, &mut payload).unwrap().commit, Index(0));
}

#[test]
fn fills_ordinals_in_order_and_says_when_they_are_full() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(5, 1, 0));
    log.open(&record(2, 1, 1));
    let payload = [7; 448];
    let mut slots = Vec::new();
    let full = loop {
        match log.append(&mut region, command(1, 0, &[&payload])) {
            Ok(placed) => slots.push(placed.slot.0),
            Err(error) => break error,
        }
    };
    assert_eq!(slots, [5, 5, 5, 5, 5, 5, 5, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(full, AppendError::NoRoom { payload_len: 448 });
    log.assert_invariants();
    log.open(&record(3, 1, 2));
    assert_eq!(log.append(&mut region, command(1, 0, &[&payload])).unwrap().slot, SlotId(3));
}

#[test]
fn a_payload_above_an_eighth_of_a_segment_is_refused() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let max = payload_max(4096);
    let before = log.clone();
    assert_eq!(
        log.append(&mut region, command(1, 0, &[&[0; 400], &[0; 49]])),
        Err(AppendError::TooLarge { payload_len: max + 1, max })
    );
    assert_eq!(log, before);
}

#[test]
fn a_configuration_must_be_one() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let entry = NewEntry { kind: Kind::Configuration, ..command(1, 0, &[b"?"]) };
    assert_eq!(
        log.append(&mut region, entry),
        Err(AppendError::NotAConfiguration { index: Index(1) })
    );
}

#[test]
fn copies_keep_their_digest_and_cut_like_a_reader() {
    // The other member's log: 1, then 2' and 3' of term 2.
    let mut theirs = region(layout());
    let (mut other, _) = three_sealed(&mut theirs);
    let fork = other.position_at(Index(1), &theirs).unwrap();
    other.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    pen.write(&mut theirs, Kind::NoOp, 2, 0, b"");
    pen.command(&mut theirs, 2, b"three'");
    walk(&mut other, &theirs);

    let mut ours = region(layout());
    let (mut log, _) = three_sealed(&mut ours);
    log.open(&record(1, 3, 0));
    for (header, payload) in entries(&other, &theirs, 2) {
        log.append_copy(&mut ours, &header, Index(9), &[&payload]).unwrap();
        log.assert_invariants();
    }
    assert_eq!(log.tail(), other.tail());
    assert_eq!(log.boundaries(), other.boundaries());
    let mut payload = Vec::new();
    let copied = log.read_payload(Index(3), &ours, &mut payload).unwrap();
    assert_eq!((copied.term, copied.commit), (Term(2), Index(2)), "min(commit, index - 1)");
    log.append(&mut ours, command(3, 0, &[b"new"])).unwrap();
    let records = log.records().collect();
    let superblock = crate::world::superblock(layout(), founding(), records);
    let (again, restored) = MemberLog::restore(layout(), &superblock, &ours, true, 0).unwrap();
    assert_eq!((again.tail(), restored.damage), (log.tail(), None));
}

#[test]
fn a_copy_of_what_is_there_changes_nothing_in_the_log() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let copies = entries(&log, &region, 2);
    log.open(&record(1, 2, 0));
    log.append_copy(&mut region, &copies[0].0, Index(0), &[&copies[0].1]).unwrap();
    assert_eq!((log.tail(), log.location(Index(2)).unwrap().slot), (tail, SlotId(0)));
    log.assert_invariants();
    log.append_copy(&mut region, &copies[1].0, Index(0), &[&copies[1].1]).unwrap();
    log.append(&mut region, command(2, 0, &[b"four"])).unwrap();
    log.assert_invariants();
}

#[test]
fn a_copy_that_does_not_chain_is_refused() {
    let mut region = region(layout());
    let (mut log, _) = three_sealed(&mut region);
    let copies = entries(&log, &region, 2);
    log.open(&record(1, 2, 0));
    let before = log.clone();
    let wrong = log.append_copy(&mut region, &copies[0].0, Index(0), &[b"twx"]);
    assert_eq!(wrong, Err(AppendError::BrokenChain { index: Index(2) }));
    let gap = Header { index: Index(6), ..copies[1].0 };
    let gap = log.append_copy(&mut region, &gap, Index(0), &[&copies[1].1]);
    assert_eq!(gap, Err(AppendError::BrokenChain { index: Index(6) }));
    assert_eq!(log, before);
}

#[test]
fn a_damaged_payload_is_not_read() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    region[byte(layout(), 0, 128 + 40)] ^= 1;
    let mut payload = Vec::new();
    assert_eq!(
        log.read_payload(Index(2), &region, &mut payload),
        Err(ReadError::Damaged { index: Index(2), slot: SlotId(0), offset: 128 })
    );
    assert_eq!(
        log.read_payload(Index(4), &region, &mut payload),
        Err(ReadError::NotHere(Index(4)))
    );
}

#[test]
fn random_appends_and_checkpoints_restore_to_the_same_log() {
    // Goal: leader, live reader and restarted member agree whatever the sizes. Seeds are fixed.
    for seed in 0..40 {
        agree_over_random_appends(seed);
    }
}

fn agree_over_random_appends(seed: u64) {
    let mut random = base::Random::new(seed);
    let mut region = region(wide_layout());
    let mut leader = MemberLog::new(wide_layout(), &founding());
    let mut reader = leader.clone();
    let mut at = Position::default();
    for slot in 0..3 {
        leader.open(&record(slot, 1, slot));
        reader.open(&record(slot, 1, slot));
    }
    for _ in 0..60 {
        let len = usize::try_from(random.below(12_000)).unwrap() * usize::from(!random.one_in(3));
        let payload: Vec<u8> = vec![u8::try_from(len % 251).unwrap(); len];
        let pieces = [payload.as_slice()];
        let entry = NewEntry { aligned: random.one_in(2), ..command(1, 0, &pieces) };
        leader.append(&mut region, entry).unwrap();
        if random.one_in(5) {
            walk(&mut reader, &region);
            at = reader.tail();
        }
    }
    walk(&mut reader, &region);
    leader.assert_invariants();
    assert_eq!(reader, leader, "seed {seed}");
    reader.checkpoint_moved(&checkpoint(at));
    reader.assert_invariants();
    let superblock =
        crate::world::superblock(wide_layout(), checkpoint(at), reader.records().collect());
    let (again, restored) =
        MemberLog::restore(wide_layout(), &superblock, &region, false, 4096).unwrap();
    again.assert_invariants();
    assert_eq!((restored.tail, restored.damage), (leader.tail(), None), "seed {seed}");
    assert_eq!(again.extents(at.index.next()), leader.extents(at.index.next()), "seed {seed}");
}
