//! Reading another member's log.

use base::{Index, SlotId};
use logfmt::{Bytes, Extent, MemberLog, Position, parse_extent};

use crate::world::{Pen, layout, record, region, three_sealed, walk};

fn bytes_of(region: &Vec<u8>, extent: &Extent) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(extent.end - extent.start).unwrap()];
    region.copy_out(layout().slot(extent.slot).start + extent.start, &mut bytes);
    bytes
}

/// 1, 2 in slot 0 (with a 3 that was cut), 3', 4' in slot 1.
fn two_grants(region: &mut Vec<u8>) -> MemberLog {
    let (mut log, _) = three_sealed(region);
    let fork = log.position_at(Index(2), region).unwrap();
    log.open(&record(1, 2, 0));
    let mut pen = Pen::new(layout(), record(1, 2, 0), fork);
    pen.command(region, 2, b"three'");
    pen.command(region, 2, &[4; 200]);
    walk(&mut log, region);
    log
}

#[test]
fn extents_hold_the_effective_entries_only() {
    let mut region = region(layout());
    let log = two_grants(&mut region);
    let extents = log.extents(Index(2));
    let spans: Vec<_> =
        extents.iter().map(|e| (e.slot.0, e.first.0, e.last.0, e.start, e.end)).collect();
    assert_eq!(spans, [(0, 2, 2, 128, 192), (1, 3, 4, 64, 384)]);
    let mut position = log.position_at(Index(1), &region).unwrap();
    let mut payloads = Vec::new();
    for extent in extents {
        let bytes = bytes_of(&region, &extent);
        let mut parsed = parse_extent(&bytes, extent, position);
        payloads.extend(parsed.by_ref().map(|entry| entry.payload.to_vec()));
        position = parsed.position();
    }
    assert_eq!(payloads, [b"two".to_vec(), b"three'".to_vec(), vec![4; 200]]);
    assert_eq!(position, log.tail());
}

#[test]
fn a_part_of_an_extent_is_parsed_as_far_as_it_goes() {
    let mut region = region(layout());
    let log = two_grants(&mut region);
    let extent = log.extents(Index(3))[0];
    let bytes = bytes_of(&region, &extent);
    let previous = log.position_at(Index(2), &region).unwrap();
    let mut parsed = parse_extent(&bytes[..100], extent, previous);
    assert_eq!(parsed.by_ref().count(), 1);
    let rest = parsed.rest().unwrap();
    assert_eq!((rest.first, rest.start), (Index(4), 128));
    let position = parsed.position();
    let mut parsed = parse_extent(&bytes[64..], rest, position);
    assert_eq!(parsed.by_ref().count(), 1);
    assert_eq!((parsed.rest(), parsed.position()), (None, log.tail()));
}

#[test]
fn bytes_that_changed_since_the_reply_end_the_parse() {
    let mut region = region(layout());
    let log = two_grants(&mut region);
    let extent = log.extents(Index(3))[0];
    let previous = log.position_at(Index(2), &region).unwrap();
    let mut bytes = bytes_of(&region, &extent);
    bytes[64 + 45] ^= 1;
    assert_eq!(parse_extent(&bytes, extent, previous).count(), 1);
    let elsewhere = Position { digest: base::Digest(3), ..previous };
    assert_eq!(parse_extent(&bytes, extent, elsewhere).count(), 0);
}

#[test]
fn a_claim_that_makes_no_sense_yields_nothing() {
    let honest = Extent {
        slot: SlotId(0),
        nonce: base::Nonce(1),
        first: Index(1),
        last: Index(9),
        start: 64,
        end: 4096,
    };
    let bytes = [0xff; 256];
    for extent in [
        honest,
        Extent { start: 65, ..honest },
        Extent { start: 0, ..honest },
        Extent { start: u64::MAX - 63, end: u64::MAX, ..honest },
        Extent { end: 0, ..honest },
    ] {
        assert_eq!(parse_extent(&bytes, extent, Position::default()).count(), 0);
    }
}
