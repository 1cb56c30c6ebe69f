//! Entry points for fuzzing: any bytes may come, nothing may panic, and what comes out must hold
//! its invariants.

use base::{GrantWord, Nonce, SlotId, Term};

use crate::bytes::Bytes as _;
use crate::entry::{HEADER_BYTES, Header};
use crate::place::{FIRST_OFFSET, LINE, payload_max, place};
use crate::{
    COPY_LEN, Checkpoint, ControlLine, DamageKind, Extent, Kind, MemberLog, Position, RegionLayout,
    SEGMENT_LEN_FLOOR, SegmentRecord, Superblock, choose, decode_configuration,
    encode_configuration, parse_extent,
};

/// The nonce of the segments that the targets read.
pub const FUZZ_NONCE: Nonce = Nonce(0x6e6f_6e63_655f_6675);

/// The configuration and superblock decoders, once as the bytes are and once with the checksum
/// repaired, and the choice between two copies.
pub fn superblock(data: &[u8]) {
    if let Some(configuration) = decode_configuration(data) {
        let mut bytes = Vec::new();
        encode_configuration(&configuration, &mut bytes);
        assert_eq!(bytes, data, "a configuration has one encoding");
    }
    check_superblock(data);
    let mut repaired = data.to_vec();
    crate::superblock::repair_checksum(&mut repaired);
    check_superblock(&repaired);
    if let Ok((chosen, which)) = choose(&repaired, data) {
        assert!(which < 2 && chosen.segments.len() <= crate::SEGMENTS_MAX as usize);
    }
}

fn check_superblock(data: &[u8]) {
    let Ok(decoded) = Superblock::decode(data) else { return };
    let again = decoded.encode();
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&decoded), "what was read can be written");
    assert!(again.len() as u64 <= COPY_LEN);
}

/// The walk over two open segments with these bytes; lines whose first byte is odd are made
/// entries of the nonce, so that the bytes get past the checks.
pub fn entries(data: &[u8]) {
    let layout = RegionLayout::new(SEGMENT_LEN_FLOOR, 4).expect("the floor is allowed");
    let mut region = vec![0; usize::try_from(layout.region_len()).expect("a small region")];
    let start = usize::try_from(layout.slot(SlotId(0)).start).expect("a small region");
    let len = data.len().min(2 * 4096);
    region[start..start + len].copy_from_slice(&data[..len]);
    repair_entries(&mut region[start..start + 2 * 4096]);

    let mut log = MemberLog::new(layout, &Checkpoint::default());
    let records = [0, 1].map(|ordinal| SegmentRecord {
        slot: SlotId(ordinal),
        word: GrantWord::new(Term(3), 1),
        ordinal,
        nonce: FUZZ_NONCE,
        first: base::Index(0),
        seal: None,
    });
    records.iter().for_each(|record| log.open(record));
    let mut taken = 0;
    while taken <= 2 * 4096 / LINE {
        let walk = log.walk(&region, 1);
        taken += u64::from(walk.accepted);
        assert!(walk.believed_commit <= log.tail().index);
        log.assert_invariants();
        if walk.at_end {
            break;
        }
    }
    assert!(taken <= 2 * 4096 / LINE, "an entry takes a line at least");
    check_restored(&log, &region, records.to_vec());
    check_extents(&log, &region);
}

/// A restart finds the same log.
fn check_restored(log: &MemberLog, region: &Vec<u8>, segments: Vec<SegmentRecord>) {
    let layout = log.layout();
    let superblock = Superblock {
        generation: 1,
        identity: <_>::default(),
        boot: <_>::default(),
        mode: <_>::default(),
        segment_len: layout.segment_len(),
        slot_count: layout.slot_count(),
        term: Term(3),
        vote: None,
        grant: GrantWord::new(Term(3), 1),
        granted_to: None,
        hole: None,
        checkpoint: Checkpoint::default(),
        segments,
    };
    let restored = MemberLog::restore(layout, &superblock, region, false, 4096);
    let (again, found) = restored.expect("the records are in order");
    again.assert_invariants();
    assert_eq!(again.tail(), log.tail());
    assert!(found.damage.is_none_or(|damage| damage.kind != DamageKind::Sealed));
}

/// Who READs the log gets the log.
fn check_extents(log: &MemberLog, region: &Vec<u8>) {
    let mut position = log.checkpoint();
    for extent in log.extents(position.index.next()) {
        let len = usize::try_from(extent.end - extent.start).expect("within a small segment");
        let mut bytes = vec![0; len];
        region.copy_out(log.layout().slot(extent.slot).start + extent.start, &mut bytes);
        let mut parsed = parse_extent(&bytes, extent, position);
        while parsed.next().is_some() {}
        position = parsed.position();
        assert_eq!(parsed.rest(), None);
    }
    assert_eq!(position, log.tail());
}

/// Makes lines with an odd first byte entries: fields that would never fit are brought into range,
/// index, digest and check are made right.
fn repair_entries(segments: &mut [u8]) {
    let mut previous = Position::default();
    for segment in segments.chunks_exact_mut(4096) {
        let mut offset = FIRST_OFFSET;
        while let Some((header, end)) = repaired_header(segment, offset, previous) {
            let at = usize::try_from(offset).expect("within a small segment");
            segment[at..at + HEADER_BYTES].copy_from_slice(&header.encode(FUZZ_NONCE));
            previous = header.position();
            offset = end;
        }
    }
}

fn repaired_header(segment: &[u8], offset: u64, previous: Position) -> Option<(Header, u64)> {
    let at = usize::try_from(offset).ok()?;
    let line = segment.get(at..at + HEADER_BYTES)?;
    if line[0] & 1 == 0 {
        return None;
    }
    let len_max = u8::try_from(payload_max(SEGMENT_LEN_FLOOR).min(255)).unwrap_or(u8::MAX);
    let mut header = Header {
        kind: Kind::from_code(line[14] % 5)?,
        aligned: false,
        term: Term(previous.term.0 + u64::from(line[8] & 1)),
        index: base::Index(previous.index.0 + 1),
        commit: base::Index(u64::from(line[24])),
        payload_len: u32::from(line[4].min(len_max)),
        digest: base::Digest(0),
    };
    let place = place(offset, header.shape());
    let from = usize::try_from(place.payload).ok()?;
    let len = usize::try_from(header.payload_len).ok()?;
    let payload = segment.get(from..from + len)?;
    header.digest = header.digest_over(previous.digest, payload);
    (place.end <= SEGMENT_LEN_FLOOR).then_some((header, place.end))
}

/// The parser of what was READ from a peer, under an extent that the bytes choose.
pub fn extent(data: &[u8]) {
    let Some((claim, bytes)) = data.split_first_chunk::<32>() else { return };
    let word = |at: usize| {
        claim[at..at + 8].iter().rev().fold(0_u64, |word, &byte| (word << 8) | u64::from(byte))
    };
    let extent = Extent {
        slot: SlotId(0),
        nonce: FUZZ_NONCE,
        first: base::Index(1),
        last: base::Index(word(0)),
        start: word(8),
        end: word(16),
    };
    let mut bytes = bytes.to_vec();
    let previous = Position::default();
    if let Some((header, _)) = repaired_header(&bytes, 0, previous) {
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode(FUZZ_NONCE));
    }
    let mut parsed = parse_extent(&bytes, extent, previous);
    let mut count = 0;
    while parsed.next().is_some() {
        count += 1;
        assert!(count <= bytes.len(), "an entry takes bytes");
    }
    assert!(parsed.position().index <= extent.last || count == 0);
}

/// The control line: every line says something and says it again.
pub fn control(data: &[u8]) {
    let Some(line) = data.first_chunk() else { return };
    let decoded = ControlLine::decode(line);
    assert_eq!(ControlLine::decode(&decoded.encode()), decoded);
}
