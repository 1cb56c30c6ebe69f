//! Starting again from superblock and region.

use base::{Index, SlotId};
use logfmt::place::LINE;
use logfmt::{
    BytesMut, Damage, DamageKind, Kind, MemberLog, Position, RestoreError, Restored, SegmentRecord,
};

use crate::world::{
    Pen, byte, checkpoint, founding, layout, record, region, sealed, superblock, three_sealed, walk,
};

const WINDOW: u64 = 512;

fn restore(segments: Vec<SegmentRecord>, region: &Vec<u8>) -> (MemberLog, Restored) {
    restore_at(Position::default(), segments, region)
}

fn restore_at(
    at: Position,
    segments: Vec<SegmentRecord>,
    region: &Vec<u8>,
) -> (MemberLog, Restored) {
    let superblock = superblock(layout(), checkpoint(at), segments);
    let restored = MemberLog::restore(layout(), &superblock, region, false, WINDOW).unwrap();
    restored.0.assert_invariants();
    restored
}

fn three() -> SegmentRecord {
    sealed(record(0, 1, 0), 1, 3, 4 * LINE)
}

#[test]
fn finds_the_log_that_was_there() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let (again, restored) = restore(log.records().collect(), &region);
    assert_eq!(restored, Restored { tail, damage: None });
    assert_eq!(again, log);
}

#[test]
fn finds_the_same_log_through_several_grants() {
    let mut region = region(layout());
    let (mut log, _) = three_sealed(&mut region);
    let fork = log.position_at(Index(2), &region).unwrap();
    log.open(&record(1, 2, 0));
    log.open(&record(2, 2, 1));
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    pen.write(&mut region, Kind::NoOp, 2, 2, b"");
    let mut next = Pen::new(layout(), record(2, 2, 1), pen.previous);
    next.command(&mut region, 2, b"four");
    walk(&mut log, &region);
    log.seal();
    log.open(&record(3, 3, 0));
    let mut last = Pen::new(layout(), record(3, 3, 0), next.previous);
    last.write(&mut region, Kind::NoOp, 3, 4, b"");
    walk(&mut log, &region);
    let (again, restored) = restore(log.records().collect(), &region);
    assert_eq!(restored, Restored { tail: last.previous, damage: None });
    // A record that nobody had looked into says 0 for its first index, so compare what is read.
    assert_eq!(logfmt::dump_log(&again), logfmt::dump_log(&log));
}

#[test]
fn bytes_behind_a_seal_stay_unseen_over_a_restart() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let mut late = Pen::new(layout(), record(0, 1, 0), tail);
    late.offset = 4 * LINE;
    late.command(&mut region, 1, b"late");
    let (_, restored) = restore(log.records().collect(), &region);
    assert_eq!(restored, Restored { tail, damage: None });
}

#[test]
fn anything_invalid_below_a_seal_is_damage() {
    let mut region = region(layout());
    three_sealed(&mut region);
    region[byte(layout(), 0, 2 * LINE + 41)] ^= 1;
    let (log, restored) = restore(vec![three()], &region);
    let damage =
        Damage { from: Index(2), kind: DamageKind::Sealed, slot: SlotId(0), offset: 2 * LINE };
    assert_eq!((restored.damage, restored.tail.index), (Some(damage), Index(1)));
    // Written back as the log says, the next start is clean and goes on from there.
    let records: Vec<_> = log.records().collect();
    assert_eq!(records, [sealed(record(0, 1, 0), 1, 1, 2 * LINE)]);
    assert_eq!(restore(records, &region).1.damage, None);
}

#[test]
fn a_segment_whose_first_entry_is_lost_leaves_the_records() {
    let mut region = region(layout());
    three_sealed(&mut region);
    region[byte(layout(), 0, LINE)] ^= 1;
    let (log, restored) = restore(vec![three()], &region);
    assert_eq!(restored.damage.unwrap().from, Index(1));
    assert_eq!(log.records().count(), 0);
}

#[test]
fn a_lost_entry_gives_up_the_log_that_it_may_have_cut() {
    // Term 2 cut the log at 2; its entry there is lost. The old entries 2 and 3 are not the log.
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let fork = log.position_at(Index(1), &region).unwrap();
    Pen::new(layout(), record(1, 2, 0), fork).write(&mut region, Kind::NoOp, 2, 0, b"");
    region[byte(layout(), 1, LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 2, 2, 2 * LINE)];
    let (log, restored) = restore(segments, &region);
    assert_eq!(restored.damage.unwrap().from, Index(2));
    assert_eq!(log.tail(), fork);
}

#[test]
fn damage_that_a_later_grant_had_cut_away_is_none() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let fork = log.position_at(Index(1), &region).unwrap();
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    pen.write(&mut region, Kind::NoOp, 2, 0, b"");
    region[byte(layout(), 0, 3 * LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 2, 2, 2 * LINE)];
    assert_eq!(restore(segments, &region).1, Restored { tail: pen.previous, damage: None });
}

#[test]
fn damage_that_a_later_grant_writes_over_moves_behind_it() {
    // Entry 3 is lost; term 2 begins there. Whether term 2 cut the log or repeated it cannot be
    // told any more, so what follows its entries is missing.
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let fork = log.position_at(Index(2), &region).unwrap();
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    pen.write(&mut region, Kind::NoOp, 2, 0, b"");
    region[byte(layout(), 0, 3 * LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 3, 3, 2 * LINE)];
    let (log, restored) = restore(segments, &region);
    assert_eq!((log.tail(), restored.damage.unwrap().from), (pen.previous, Index(4)));
}

#[test]
fn a_grant_that_hangs_on_lost_entries_is_lost_with_them() {
    let mut region = region(layout());
    let (_, tail) = three_sealed(&mut region);
    Pen::new(layout(), record(1, 2, 0), tail).write(&mut region, Kind::NoOp, 2, 0, b"");
    region[byte(layout(), 0, 2 * LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 4, 4, 2 * LINE)];
    let (log, restored) = restore(segments, &region);
    assert_eq!((restored.damage.unwrap().from, log.tail().index), (Index(2), Index(1)));
    assert_eq!(log.records().count(), 1);
}

/// Three entries in an open segment of which the second is broken.
fn open_with_a_gap(region: &mut Vec<u8>) -> Vec<SegmentRecord> {
    three_sealed(region);
    region[byte(layout(), 0, 2 * LINE)] ^= 1;
    vec![record(0, 1, 0)]
}

#[test]
fn a_gap_within_the_window_of_an_unclean_stop_is_torn() {
    let mut region = region(layout());
    let segments = open_with_a_gap(&mut region);
    let (_, restored) = restore(segments, &region);
    assert_eq!(restored.tail.index, Index(1));
    let damage = restored.damage.unwrap();
    assert_eq!((damage.kind, damage.from), (DamageKind::Torn, Index(2)));
}

#[test]
fn a_gap_after_a_clean_stop_is_unknown() {
    let mut region = region(layout());
    let superblock = superblock(layout(), founding(), open_with_a_gap(&mut region));
    let (_, restored) = MemberLog::restore(layout(), &superblock, &region, true, WINDOW).unwrap();
    assert_eq!(restored.damage.unwrap().kind, DamageKind::Unknown);
}

#[test]
fn a_gap_with_valid_entries_beyond_the_window_is_unknown() {
    let mut region = region(layout());
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    for _ in 0..12 {
        pen.command(&mut region, 1, b"entry");
    }
    region[byte(layout(), 0, 2 * LINE)] ^= 1;
    let (_, restored) = restore(vec![record(0, 1, 0)], &region);
    let damage = restored.damage.unwrap();
    assert_eq!((damage.kind, damage.from), (DamageKind::Unknown, Index(2)));
}

#[test]
fn an_unknown_gap_at_the_start_of_a_grant_gives_up_what_it_may_have_cut() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let fork = log.position_at(Index(1), &region).unwrap();
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    for _ in 0..12 {
        pen.command(&mut region, 2, b"entry");
    }
    region[byte(layout(), 1, LINE)] ^= 1;
    let (log, restored) = restore(vec![three(), record(1, 2, 0)], &region);
    let damage = restored.damage.unwrap();
    assert_eq!((damage.kind, damage.from), (DamageKind::Unknown, Index(2)));
    assert_eq!(log.tail(), fork);
}

#[test]
fn a_torn_last_entry_is_simply_not_there() {
    let mut region = region(layout());
    three_sealed(&mut region);
    region[byte(layout(), 0, 3 * LINE + 40)] ^= 1;
    let (_, restored) = restore(vec![record(0, 1, 0)], &region);
    assert_eq!((restored.tail.index, restored.damage), (Index(2), None));
}

#[test]
fn starts_at_a_checkpoint_in_the_middle_of_a_segment() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let middle = log.position_at(Index(2), &region).unwrap();
    let (again, restored) = restore_at(middle, vec![three()], &region);
    assert_eq!(restored, Restored { tail, damage: None });
    assert_eq!((again.first_index(), again.location(Index(3))), (Index(3), log.location(Index(3))));
}

#[test]
fn segments_wholly_below_the_checkpoint_are_not_read() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let mut pen = Pen::new(layout(), record(1, 1, 1), tail);
    pen.command(&mut region, 1, b"four");
    region[byte(layout(), 0, LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 1, 1), 4, 4, 2 * LINE)];
    let (again, restored) = restore_at(log.tail(), segments, &region);
    assert_eq!(restored, Restored { tail: pen.previous, damage: None });
    assert_eq!(again.trimmable(), Some(SlotId(0)));
}

#[test]
fn an_open_segment_behind_one_that_its_writer_has_left_is_walked() {
    let mut region = region(layout());
    let (_, tail) = three_sealed(&mut region);
    let mut pen = Pen::new(layout(), record(1, 1, 1), tail);
    pen.command(&mut region, 1, b"four");
    let (_, restored) = restore(vec![three(), record(1, 1, 1)], &region);
    assert_eq!(restored, Restored { tail: pen.previous, damage: None });
}

#[test]
fn a_segment_that_disagrees_with_the_checkpoint_is_damage() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let mut other = log.position_at(Index(2), &region).unwrap();
    other.digest = base::Digest(1);
    let (log, restored) = restore_at(other, vec![three()], &region);
    assert_eq!((log.tail(), restored.damage.unwrap().from), (other, Index(3)));
}

#[test]
fn records_out_of_order_are_refused() {
    let region = region(layout());
    let segments = vec![record(0, 1, 0), record(1, 2, 0)];
    let superblock = superblock(layout(), founding(), segments);
    assert_eq!(
        MemberLog::restore(layout(), &superblock, &region, false, WINDOW).unwrap_err(),
        RestoreError::Records { at: 1 },
        "a grant seals what was open before it"
    );
}

#[test]
fn a_checkpoint_installed_into_a_begun_segment_is_found_again() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), tail);
    pen.write(&mut region, Kind::NoOp, 2, 0, b"");
    walk(&mut log, &region);
    let far = Position { index: Index(50), term: base::Term(2), digest: base::Digest(77) };
    assert_eq!(log.install(&checkpoint(far)), [SlotId(0)]);
    log.assert_invariants();
    pen.previous = far;
    pen.command(&mut region, 2, b"51");
    assert_eq!(walk(&mut log, &region).accepted, 1);
    let (again, restored) = restore_at(far, log.records().collect(), &region);
    assert_eq!(restored, Restored { tail: pen.previous, damage: None });
    assert_eq!(again.extents(Index(51)), log.extents(Index(51)));
}

#[test]
fn a_region_of_zeros_has_no_damage() {
    let mut zeros = region(layout());
    zeros.copy_in(0, &[0; 8]);
    let (log, restored) = restore(vec![record(0, 1, 0), record(1, 1, 1)], &zeros);
    assert_eq!(restored, Restored { tail: Position::default(), damage: None });
    assert_eq!(log.unopened(), 2);
}
