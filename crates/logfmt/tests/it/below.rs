//! A restart whose checkpoint lies in or behind segments that are still named: each is a history
//! that once was taken for damage, or hid it.

use base::{Index, SlotId};
use logfmt::place::LINE;
use logfmt::{Damage, DamageKind, MemberLog, Position, Restored, SegmentRecord};

use crate::world::{
    Pen, byte, checkpoint, layout, record, region, sealed, superblock, three_sealed,
};

fn restore_at(
    at: Position,
    segments: Vec<SegmentRecord>,
    region: &Vec<u8>,
) -> (MemberLog, Restored) {
    let superblock = superblock(layout(), checkpoint(at), segments);
    let restored = MemberLog::restore(layout(), &superblock, region, false, 512).unwrap();
    restored.0.assert_invariants();
    restored
}

fn three() -> SegmentRecord {
    sealed(record(0, 1, 0), 1, 3, 4 * LINE)
}

/// Entries 1 to 3 of term 1 in slot 0, and of term `term`, in slot 1, from 2 on, `count` of them:
/// the positions before the first and of each.
fn cut_at_two(region: &mut Vec<u8>, term: u64, count: usize) -> Vec<Position> {
    let (log, _) = three_sealed(region);
    let fork = log.position_at(Index(1), region).unwrap();
    let mut pen = Pen::new(layout(), record(1, term, 0), fork);
    let mut positions = vec![fork];
    positions.resize_with(count + 1, || {
        pen.command(region, term, b"cut");
        pen.previous
    });
    positions
}

#[test]
fn a_segment_that_was_cut_below_the_checkpoint_is_whole() {
    let mut region = region(layout());
    let log = cut_at_two(&mut region, 2, 3);
    let segments = vec![three(), sealed(record(1, 2, 0), 2, 4, 4 * LINE)];
    let (again, restored) = restore_at(log[1], segments.clone(), &region);
    assert_eq!(restored, Restored { tail: log[3], damage: None });
    assert_eq!(again.records().collect::<Vec<_>>(), segments, "as the superblock names them");
}

#[test]
fn a_grant_of_an_older_term_than_the_checkpoint_need_not_be_read() {
    let mut region = region(layout());
    let log = cut_at_two(&mut region, 2, 3);
    region[byte(layout(), 0, 2 * LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 2, 4, 4 * LINE)];
    let (_, restored) = restore_at(log[1], segments, &region);
    assert_eq!(restored, Restored { tail: log[3], damage: None });
}

#[test]
fn a_grant_that_hung_on_what_was_cut_is_whole() {
    // Term 2 cut the log at 2, term 3 went on behind it, term 4 brought entry 2 of term 1 back.
    let mut region = region(layout());
    let log = cut_at_two(&mut region, 2, 2);
    let mut hanging = Pen::new(layout(), record(2, 3, 0), log[2]);
    hanging.command(&mut region, 3, b"hangs");
    let mut back = Pen::new(layout(), record(3, 4, 0), log[0]);
    back.command(&mut region, 1, b"two");
    let base = back.previous;
    back.command(&mut region, 4, b"noop");
    let segments = vec![
        three(),
        sealed(record(1, 2, 0), 2, 3, 3 * LINE),
        sealed(record(2, 3, 0), 4, 4, 2 * LINE),
        sealed(record(3, 4, 0), 2, 3, 3 * LINE),
    ];
    let (_, restored) = restore_at(base, segments, &region);
    assert_eq!(restored, Restored { tail: back.previous, damage: None });
}

#[test]
fn a_grant_that_ends_below_the_checkpoint_has_cut_what_lay_behind() {
    // Entry 3 of term 1 looks like the log: but term 2 had cut it at 2, and term 3 brought only
    // entry 2 back.
    let mut region = region(layout());
    let log = cut_at_two(&mut region, 2, 1);
    let mut back = Pen::new(layout(), record(2, 3, 0), log[0]);
    back.command(&mut region, 1, b"two");
    let segments = vec![
        three(),
        sealed(record(1, 2, 0), 2, 2, 2 * LINE),
        sealed(record(2, 3, 0), 2, 2, 2 * LINE),
    ];
    let (_, restored) = restore_at(back.previous, segments, &region);
    assert_eq!(restored, Restored { tail: back.previous, damage: None });
}

#[test]
fn lost_bytes_below_the_checkpoint_are_passed() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let base = log.position_at(Index(2), &region).unwrap();
    region[byte(layout(), 0, LINE)] ^= 1;
    region[byte(layout(), 0, 2 * LINE)] ^= 1;
    let (_, sealed) = restore_at(base, vec![three()], &region);
    assert_eq!(sealed, Restored { tail, damage: None });
    let (_, open) = restore_at(base, vec![record(0, 1, 0)], &region);
    assert_eq!(open, Restored { tail, damage: None });
}

#[test]
fn a_jump_below_the_checkpoint_is_passed() {
    let mut region = region(layout());
    three_sealed(&mut region);
    let far = Position { index: Index(50), term: base::Term(1), digest: base::Digest(77) };
    let mut pen = Pen { offset: 4 * LINE, ..Pen::new(layout(), record(0, 1, 0), far) };
    pen.command(&mut region, 1, b"51");
    let base = pen.previous;
    pen.command(&mut region, 1, b"52");
    let segments = vec![sealed(record(0, 1, 0), 1, 52, 6 * LINE)];
    let (_, restored) = restore_at(base, segments, &region);
    assert_eq!(restored, Restored { tail: pen.previous, damage: None });
}

#[test]
fn an_entry_lost_just_behind_the_checkpoint_is_damage() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let base = log.position_at(Index(2), &region).unwrap();
    region[byte(layout(), 0, 3 * LINE)] ^= 1;
    let (_, restored) = restore_at(base, vec![three()], &region);
    let damage =
        Damage { from: Index(3), kind: DamageKind::Sealed, slot: SlotId(0), offset: 3 * LINE };
    assert_eq!(restored, Restored { tail: base, damage: Some(damage) });
}

#[test]
fn a_later_grant_that_only_repeats_the_checkpoint_hides_no_damage() {
    let mut region = region(layout());
    let (log, _) = three_sealed(&mut region);
    let before = log.position_at(Index(1), &region).unwrap();
    let mut again = Pen::new(layout(), record(1, 2, 0), before);
    again.command(&mut region, 1, b"two");
    region[byte(layout(), 0, 3 * LINE)] ^= 1;
    let segments = vec![three(), sealed(record(1, 2, 0), 2, 2, 2 * LINE)];
    let (_, restored) = restore_at(again.previous, segments, &region);
    assert_eq!(restored.damage.unwrap().from, Index(3));
}

#[test]
fn a_cut_segment_whose_first_entry_is_lost_can_still_be_trimmed() {
    // The superblock goes on naming it, so the log must, or the two trim different ones.
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    Pen::new(layout(), record(1, 2, 0), tail).command(&mut region, 2, b"four");
    let fork = log.position_at(Index(2), &region).unwrap();
    Pen::new(layout(), record(2, 3, 0), fork).command(&mut region, 3, b"three");
    region[byte(layout(), 1, LINE)] ^= 1;
    let segments = vec![
        three(),
        sealed(record(1, 2, 0), 4, 4, 2 * LINE),
        sealed(record(2, 3, 0), 3, 3, 2 * LINE),
    ];
    let (again, restored) = restore_at(Position::default(), segments.clone(), &region);
    assert_eq!((restored.tail.index, restored.damage), (Index(3), None));
    assert_eq!(again.records().collect::<Vec<_>>(), segments);
}
