//! What people see.

use base::Index;
use logfmt::place::LINE;
use logfmt::{BytesMut, Kind, dump_log, dump_segment, dump_superblock, encode_idle};

use crate::world::{Pen, layout, record, region, three_sealed, walk};

#[test]
fn a_superblock_as_text() {
    assert_eq!(
        dump_superblock(&crate::superblock::full()),
        include_str!("../../testdata/superblock.txt")
    );
}

#[test]
fn a_segment_as_text_shows_what_is_out_of_place() {
    let mut region = region(layout());
    let (log, tail) = three_sealed(&mut region);
    let sealed = log.records().next().unwrap();
    let start = layout().slot(sealed.slot).start;
    region.copy_in(start, &encode_idle(Index(2), sealed.nonce));
    let mut late = Pen::new(layout(), record(0, 1, 0), tail);
    late.offset = 4 * LINE;
    late.write(&mut region, Kind::Tick, 1, 3, b"behind the seal");
    late.offset = 6 * LINE;
    late.write(&mut region, Kind::Tick, 1, 3, b"out of place");
    assert_eq!(
        dump_segment(&region, layout(), &sealed),
        include_str!("../../testdata/segment.txt")
    );
}

#[test]
fn a_log_as_text() {
    let mut region = region(layout());
    let (mut log, tail) = three_sealed(&mut region);
    log.open(&record(1, 2, 0));
    log.open(&record(2, 2, 1));
    Pen::new(layout(), record(1, 2, 0), tail).write(&mut region, Kind::NoOp, 2, 3, b"");
    walk(&mut log, &region);
    assert_eq!(dump_log(&log), include_str!("../../testdata/log.txt"));
}
