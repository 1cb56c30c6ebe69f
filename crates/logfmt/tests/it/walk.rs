//! The reader's rule over open segments.

use base::{Index, Nonce, SlotId, Term};
use logfmt::place::LINE;
use logfmt::{BytesMut, Kind, MemberLog, Position, Seal, encode_configuration, encode_idle};

use crate::world::{
    Pen, byte, configuration, founding, layout, record, region, three_sealed, walk, wide_layout,
};

#[test]
fn takes_what_the_writer_placed_and_hashes_only_what_is_new() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    assert_eq!(walk(&mut log, &region).accepted, 0);

    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"first");
    pen.command(&mut region, 1, b"second");
    assert_eq!(walk(&mut log, &region).accepted, 2);
    pen.command(&mut region, 1, b"third");
    assert_eq!(walk(&mut log, &region).accepted, 1);
    assert_eq!(log.tail(), pen.previous);
    let mut payload = Vec::new();
    assert_eq!(log.read_payload(Index(2), &region, &mut payload).unwrap().term, Term(1));
    assert_eq!(payload, b"second");
}

#[test]
fn a_budget_ends_a_walk_early_and_the_next_goes_on() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, &[7; 100]);
    pen.command(&mut region, 1, &[8; 100]);
    let first = log.walk(&region, 10);
    assert_eq!((first.accepted, first.at_end), (1, false));
    assert_eq!(walk(&mut log, &region).accepted, 1);
}

#[test]
fn an_entry_torn_at_any_byte_is_not_taken() {
    // Every prefix of a 3-line entry is what a reader may see while the writer stores it.
    let mut whole = region(layout());
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    let payload: Vec<u8> = (1..=150).collect();
    pen.command(&mut whole, 1, &payload);
    let len = 40 + payload.len();
    for arrived in 0..=len {
        let mut torn = region(layout());
        let start = byte(layout(), 0, LINE);
        torn[start..start + arrived].copy_from_slice(&whole[start..start + arrived]);
        let mut log = MemberLog::new(layout(), &founding());
        log.open(&record(0, 1, 0));
        assert_eq!(walk(&mut log, &torn).accepted, u32::from(arrived == len), "{arrived} bytes");
    }
}

#[test]
fn an_entry_with_any_byte_changed_is_not_taken() {
    let mut whole = region(layout());
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut whole, 1, b"eight by");
    for at in 0..48 {
        let mut broken = whole.clone();
        broken[byte(layout(), 0, LINE + at)] ^= 0x10;
        let mut log = MemberLog::new(layout(), &founding());
        log.open(&record(0, 1, 0));
        assert_eq!(walk(&mut log, &broken).accepted, 0, "byte {at}");
    }
}

#[test]
fn the_walk_goes_on_in_the_next_ordinal() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(3, 1, 0));
    log.open(&record(1, 1, 1));
    log.open(&record(2, 1, 2));
    let mut first = Pen::new(layout(), record(3, 1, 0), Position::default());
    first.command(&mut region, 1, b"a");
    let mut second = Pen::new(layout(), record(1, 1, 1), first.previous);
    second.command(&mut region, 1, b"b");
    assert_eq!(walk(&mut log, &region).accepted, 2);
    assert_eq!((log.tail(), log.unopened()), (second.previous, 1));
    assert_eq!(log.location(Index(2)).unwrap().slot, SlotId(1));
    // The writer has left ordinal 0, so its end is final.
    let seals: Vec<_> = log.records().map(|record| record.seal).collect();
    assert_eq!(seals, [Some(Seal { last: Index(1), end: 128 }), None, None]);
}

#[test]
fn an_ordinal_is_not_begun_before_the_one_before_it() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    log.open(&record(1, 1, 1));
    Pen::new(layout(), record(1, 1, 1), Position::default()).command(&mut region, 1, b"early");
    assert_eq!(walk(&mut log, &region).accepted, 0);
}

#[test]
fn aligned_payloads_are_found_behind_their_gap() {
    let mut region = region(wide_layout());
    let mut log = MemberLog::new(wide_layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(wide_layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"small");
    pen.aligned(&mut region, 1, &[5; 5000]);
    pen.command(&mut region, 1, b"behind");
    // A header that already stands on the last line before a block is not moved.
    let filler = vec![1; usize::try_from(4 * 4096 - LINE - pen.offset).unwrap() - 40];
    pen.command(&mut region, 1, &filler);
    let fits = pen.aligned(&mut region, 1, &[6; 4096]);
    assert_eq!(fits.header, 4 * 4096 - LINE);
    assert_eq!(walk(&mut log, &region).accepted, 5);
    let aligned = log.location(Index(2)).unwrap();
    assert_eq!((aligned.header, aligned.payload, aligned.end), (4032, 4096, 9152));
}

#[test]
fn stale_bytes_of_another_nonce_say_nothing() {
    let mut region = region(layout());
    let old = record(0, 1, 0);
    let mut pen = Pen::new(layout(), old, Position::default());
    pen.command(&mut region, 1, b"old");
    region.copy_in(layout().slot(SlotId(0)).start, &encode_idle(Index(1), old.nonce));
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 2, 0));
    let walk = walk(&mut log, &region);
    assert_eq!((walk.accepted, walk.believed_commit), (0, Index(0)));
}

#[test]
fn stale_bytes_of_the_same_stream_have_lower_indexes() {
    // The slot is granted again to the same (term, leader): its old entries are valid by nonce.
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    log.open(&record(1, 1, 1));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"one");
    pen.command(&mut region, 1, b"two");
    let mut next = Pen::new(layout(), record(1, 1, 1), pen.previous);
    next.command(&mut region, 1, b"three");
    walk(&mut log, &region);
    log.checkpoint_moved(&crate::world::checkpoint(log.tail()));
    log.trim(SlotId(0));
    log.open(&record(0, 1, 2));
    assert_eq!(walk(&mut log, &region).accepted, 0);
    let mut again = Pen::new(layout(), record(0, 1, 2), next.previous);
    again.command(&mut region, 1, b"four");
    assert_eq!(walk(&mut log, &region).accepted, 1, "and nothing of what stood behind it");
    assert_eq!(log.tail().index, Index(4));
}

#[test]
fn absurd_lengths_are_refused_before_anything_is_read() {
    let mut region = region(layout());
    let header = logfmt::Header {
        kind: Kind::Command,
        aligned: false,
        term: Term(1),
        index: Index(1),
        commit: Index(0),
        payload_len: u32::MAX,
        digest: base::Digest(0),
    };
    let start = layout().slot(SlotId(7)).start;
    region.copy_in(start + LINE, &header.encode(record(7, 1, 0).nonce));
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(7, 1, 0));
    assert_eq!(walk(&mut log, &region).accepted, 0);
    // A length that is allowed but would reach past the segment's end, in the region's last slot.
    let mut pen = Pen::new(layout(), record(7, 1, 0), Position::default());
    for _ in 0..31 {
        pen.command(&mut region, 1, &[3; 80]);
    }
    assert_eq!(walk(&mut log, &region).accepted, 31);
    let last = logfmt::Header { index: Index(32), payload_len: 400, ..header };
    region.copy_in(start + 4032, &last.encode(record(7, 1, 0).nonce));
    assert_eq!(walk(&mut log, &region).accepted, 0);
}

#[test]
fn a_term_never_falls() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 5, 0));
    let mut pen = Pen::new(layout(), record(0, 5, 0), Position::default());
    pen.command(&mut region, 5, b"five");
    pen.command(&mut region, 4, b"four");
    assert_eq!(walk(&mut log, &region).accepted, 1);
}

#[test]
fn entries_equal_to_the_sealed_ones_change_nothing() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let second = log.position_at(Index(1), &region).unwrap();
    log.open(&record(1, 2, 0));
    Pen::new(layout(), record(1, 2, 0), second).command(&mut region, 1, b"two");
    let walk = walk(&mut log, &region);
    assert_eq!((walk.accepted, walk.cut, log.tail()), (1, None, tail));
    assert_eq!(log.location(Index(2)).unwrap().slot, SlotId(0), "it stays where it was");
}

#[test]
fn the_first_entry_that_differs_cuts_the_sealed_log() {
    let mut region = region(layout());
    let (mut log, _) = three_sealed(&mut region);
    let first = log.position_at(Index(1), &region).unwrap();
    log.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), first);
    pen.write(&mut region, Kind::NoOp, 2, 0, b"");
    let walk = walk(&mut log, &region);
    assert_eq!((walk.accepted, walk.cut), (1, Some(Index(2))));
    assert_eq!(log.tail(), pen.previous, "the old third entry is gone too");
    let terms: Vec<_> = log.boundaries().iter().map(|b| (b.term.0, b.first.0)).collect();
    assert_eq!(terms, [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn an_entry_past_the_sealed_tail_extends_the_log() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), tail);
    pen.write(&mut region, Kind::NoOp, 2, 0, b"");
    let walk = walk(&mut log, &region);
    assert_eq!((walk.accepted, walk.cut, log.tail()), (1, None, pen.previous));
}

#[test]
fn a_first_entry_above_the_tail_or_off_the_chain_is_not_taken() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    let gap = Position { index: Index(4), ..tail };
    Pen::new(layout(), record(1, 2, 0), gap).command(&mut region, 2, b"five");
    assert_eq!(walk(&mut log, &region).accepted, 0);
    let other = Position { digest: base::Digest(1), ..tail };
    Pen::new(layout(), record(1, 2, 0), other).command(&mut region, 2, b"four");
    assert_eq!(walk(&mut log, &region).accepted, 0);
}

#[test]
fn what_lands_behind_a_seal_is_never_looked_at() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let mut late = Pen::new(layout(), record(0, 1, 0), tail);
    late.offset = 4 * LINE;
    late.command(&mut region, 1, b"late");
    assert_eq!(walk(&mut log, &region).accepted, 0);
    log.open(&record(1, 2, 0));
    assert_eq!(walk(&mut log, &region).accepted, 0);
    assert_eq!(log.tail(), tail);
}

#[test]
fn a_commit_index_is_believed_up_to_the_entry_that_carries_it() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"one");
    pen.write(&mut region, Kind::Command, 1, 1, b"two");
    assert_eq!(walk(&mut log, &region).believed_commit, Index(1));
    pen.write(&mut region, Kind::Command, 1, 99, b"three");
    assert_eq!(walk(&mut log, &region).believed_commit, Index(3));
}

#[test]
fn the_idle_line_is_believed_up_to_the_entries_of_its_segment() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let open = record(1, 2, 0);
    log.open(&open);
    let idle = layout().slot(SlotId(1)).start;
    region.copy_in(idle, &encode_idle(Index(3), open.nonce));
    assert_eq!(walk(&mut log, &region).believed_commit, Index(0), "the segment is empty");
    Pen::new(layout(), open, tail).write(&mut region, Kind::NoOp, 2, 0, b"");
    assert_eq!(walk(&mut log, &region).believed_commit, Index(3));
    region.copy_in(idle, &encode_idle(Index(9), open.nonce));
    assert_eq!(walk(&mut log, &region).believed_commit, Index(4));
    region.copy_in(idle, &encode_idle(Index(9), Nonce(1)));
    assert_eq!(walk(&mut log, &region).believed_commit, Index(4));
}

#[test]
fn configurations_come_and_go_with_their_entries() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.command(&mut region, 1, b"one");
    let fork = pen.previous;
    let mut payload = Vec::new();
    encode_configuration(&configuration(&[1, 2, 3, 4]), &mut payload);
    pen.write(&mut region, Kind::Configuration, 1, 0, &payload);
    walk(&mut log, &region);
    assert_eq!(log.configuration(), (Index(2), &configuration(&[1, 2, 3, 4])));
    assert_eq!(log.configuration_at(Index(1)), Some((Index(0), &configuration(&[1, 2, 3]))));
    log.seal();
    log.open(&record(1, 2, 0));
    Pen::new(layout(), record(1, 2, 0), fork).write(&mut region, Kind::NoOp, 2, 0, b"");
    walk(&mut log, &region);
    assert_eq!(log.configuration(), (Index(0), &configuration(&[1, 2, 3])));
}

#[test]
fn a_configuration_entry_that_is_none_is_not_taken() {
    let mut region = region(layout());
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    pen.write(&mut region, Kind::Configuration, 1, 0, b"nonsense");
    assert_eq!(walk(&mut log, &region).accepted, 0);
}

#[test]
fn a_sealed_entry_that_cannot_be_compared_stops_the_walk() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    let first = log.position_at(Index(1), &region).unwrap();
    region[byte(layout(), 0, 2 * LINE + 20)] ^= 1;
    log.open(&record(1, 2, 0));
    Pen::new(layout(), record(1, 2, 0), first).command(&mut region, 1, b"two");
    let walk = walk(&mut log, &region);
    let damage = walk.damage.unwrap();
    assert_eq!((damage.from, damage.slot, damage.offset), (Index(2), SlotId(0), 2 * LINE));
    assert_eq!((walk.accepted, log.tail()), (0, tail));
}
