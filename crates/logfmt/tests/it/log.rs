//! Checkpoints, trimming and sealing.

use base::{Index, SlotId, Term};
use logfmt::{MemberLog, Position, ReadError, Seal};

use crate::world::{
    Pen, checkpoint, configuration, founding, layout, record, region, three_sealed, walk,
};

#[test]
fn sealing_drops_what_is_empty_and_ends_the_grant() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(4, 1, 0));
    log.open(&record(2, 1, 1));
    Pen::new(layout(), record(4, 1, 0), Position::default()).command(&mut region, 1, b"x");
    walk(&mut log, &region);
    let seal = Seal { last: Index(1), end: 128 };
    assert_eq!(log.seal(), [(SlotId(4), Index(1), Some(seal)), (SlotId(2), Index(0), None)]);
    assert_eq!((log.unopened(), log.records().count()), (0, 1));
    assert_eq!(log.seal(), []);
    log.open(&record(2, 2, 0));
    log.assert_invariants();
}

#[test]
fn the_base_moves_up_and_the_entries_below_stay_readable_until_trimmed() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let second = log.position_at(Index(2), &region).unwrap();
    log.checkpoint_moved(&checkpoint(second));
    log.assert_invariants();
    assert_eq!(log.trimmable(), None, "entry 3 is needed");
    let mut payload = Vec::new();
    log.read_payload(Index(1), &region, &mut payload).unwrap();
    assert_eq!(payload, b"one");
    assert_eq!((log.term_at(Index(1)), log.term_at(Index(2))), (None, Some(Term(1))));
    log.checkpoint_moved(&checkpoint(tail));
    assert_eq!(log.trimmable(), Some(SlotId(0)));
    log.trim(SlotId(0));
    log.assert_invariants();
    assert_eq!(log.first_index(), Index(4));
    assert_eq!(
        log.read_payload(Index(1), &region, &mut payload),
        Err(ReadError::NotHere(Index(1)))
    );
}

#[test]
fn an_entry_whose_predecessor_was_trimmed_is_not_readable_any_more() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), tail);
    pen.command(&mut region, 2, b"four");
    pen.command(&mut region, 2, b"five");
    walk(&mut log, &region);
    log.checkpoint_moved(&checkpoint(pen.previous));
    log.trim(SlotId(0));
    log.assert_invariants();
    assert_eq!(log.first_index(), Index(5), "nothing certifies entry 4");
    assert_eq!(log.extents(Index(1))[0].first, Index(5));
    assert!(log.trimmable().is_none(), "its writer may still be writing");
}

#[test]
fn an_open_segment_that_its_writer_has_left_can_be_trimmed() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    log.open(&record(1, 1, 1));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"one");
    let one = pen.previous;
    let mut next = Pen::new(layout(), record(1, 1, 1), one);
    next.command(&mut region, 1, b"two");
    walk(&mut log, &region);
    log.checkpoint_moved(&checkpoint(one));
    log.trim(SlotId(0));
    log.assert_invariants();
    next.command(&mut region, 1, b"three");
    assert_eq!(walk(&mut log, &region).accepted, 1);
    let mut payload = Vec::new();
    log.read_payload(Index(2), &region, &mut payload).unwrap();
    assert_eq!(payload, b"two");
}

#[test]
fn installing_forgets_everything_below_and_around() {
    let mut region = region(layout());
    let (mut log, _) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    let far = Position { index: Index(100), term: Term(2), digest: base::Digest(7) };
    let mut installed = checkpoint(far);
    installed.configuration = configuration(&[4, 5, 6]);
    installed.configuration_index = Index(90);
    assert_eq!(log.install(&installed), [SlotId(0)], "the superblock drops it in the same write");
    log.assert_invariants();
    assert_eq!((log.tail(), log.first_index(), log.unopened()), (far, Index(101), 1));
    assert_eq!(log.configuration(), (Index(90), &configuration(&[4, 5, 6])));
    Pen::new(layout(), record(1, 2, 0), far).command(&mut region, 2, b"101");
    assert_eq!(walk(&mut log, &region).accepted, 1);
}
