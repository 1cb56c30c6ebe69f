//! Control line, idle line, configuration and layout bytes.

use std::fmt::Write as _;

use base::{Configuration, GrantWord, Incarnation, Index, Member, MemberId, MemberSet, Nonce};
use base::{SlotId, Term};
use logfmt::{
    CONFIGURATION_LEN_MAX, ControlLine, LayoutError, Progress, RegionLayout, SEGMENTS_MAX,
    decode_configuration, decode_idle, encode_configuration, encode_idle,
};

/// Eight bytes a row, as the formats are drawn.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for row in bytes.chunks(8) {
        let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", row.join(" ")).unwrap();
    }
    text
}

#[test]
fn the_bytes_of_a_control_line_are_these() {
    let line = ControlLine {
        grant: GrantWord::new(Term(7), 2),
        leader: Some(MemberId(3)),
        leading: Progress { term: Term(7), counter: 0xabcd },
        suspect: Progress { term: Term(6), counter: 1 },
        accepted: Index(0x0102_0304),
        commit: Index(5),
        applied: Index(4),
    };
    assert_eq!(hex(&line.encode()), include_str!("../../testdata/control_line.hex"));
    assert_eq!(ControlLine::decode(&line.encode()), line);
}

#[test]
fn the_bytes_of_an_idle_line_are_these() {
    let nonce = Nonce(0x0123_4567_89ab_cdef);
    let bytes = encode_idle(Index(0x0102_0304), nonce);
    assert_eq!(hex(&bytes), include_str!("../../testdata/idle_line.hex"));
    assert_eq!(decode_idle(&bytes, nonce), Some(Index(0x0102_0304)));
}

#[test]
fn an_idle_line_of_another_nonce_or_torn_says_nothing() {
    let nonce = Nonce(9);
    let old = encode_idle(Index(100), nonce);
    let new = encode_idle(Index(101), nonce);
    assert_eq!(decode_idle(&old, Nonce(8)), None);
    assert_eq!(decode_idle(&[0; 16], nonce), None);
    let mut torn = old;
    torn[..8].copy_from_slice(&new[..8]);
    assert_eq!(decode_idle(&torn, nonce), None);
}

fn members(ids: std::ops::RangeInclusive<u32>) -> MemberSet {
    let member = |id| Member { id: MemberId(id), incarnation: Incarnation(u64::from(id) << 32) };
    MemberSet::new(ids.map(member))
}

#[test]
fn the_bytes_of_a_configuration_are_these() {
    let joint = Configuration {
        voters: members(1..=3),
        outgoing: members(2..=4),
        learners: members(5..=5),
    };
    let mut bytes = Vec::new();
    encode_configuration(&joint, &mut bytes);
    assert_eq!(hex(&bytes), include_str!("../../testdata/configuration.hex"));
    assert_eq!(decode_configuration(&bytes), Some(joint));
}

#[test]
fn a_configuration_cut_short_or_prolonged_is_none() {
    let mut bytes = Vec::new();
    encode_configuration(&Configuration::of_voters(members(1..=3).iter()), &mut bytes);
    for len in 0..bytes.len() {
        assert_eq!(decode_configuration(&bytes[..len]), None, "{len} bytes");
    }
    bytes.push(0);
    assert_eq!(decode_configuration(&bytes), None);
}

#[test]
fn a_configuration_that_is_not_valid_is_none() {
    let mut nobody = Vec::new();
    encode_configuration(&Configuration::default(), &mut nobody);
    assert_eq!(decode_configuration(&nobody), None);
    let mut twice = Vec::new();
    encode_configuration(&Configuration::of_voters(members(1..=2).iter()), &mut twice);
    twice[24] = 1;
    assert_eq!(decode_configuration(&twice), None, "ids must ascend");
    twice[24] = 2;
    twice[28] = 1;
    assert_eq!(decode_configuration(&twice), None, "reserved bytes are zero");
    let full =
        Configuration { voters: members(1..=16), outgoing: members(1..=16), ..<_>::default() };
    let mut bytes = Vec::new();
    encode_configuration(&full, &mut bytes);
    assert!(bytes.len() <= CONFIGURATION_LEN_MAX);
    assert_eq!(decode_configuration(&bytes), Some(full));
}

#[test]
fn slots_follow_the_two_copies() {
    let layout = RegionLayout::new(256 << 10, 4).unwrap();
    assert_eq!(layout.superblock_copy(0), 0..32 << 10);
    assert_eq!(layout.superblock_copy(1), 32 << 10..64 << 10);
    assert_eq!(layout.slot(SlotId(0)).start, 64 << 10);
    assert_eq!(layout.slot(SlotId(3)).end, layout.region_len());
    assert_eq!(layout.check_product_limits(), Ok(()));
}

#[test]
fn layouts_outside_the_limits_are_refused() {
    RegionLayout::new(128 << 20, SEGMENTS_MAX).unwrap();
    let small = RegionLayout::new(4096, 4).unwrap();
    let (min, max) = (256 << 10, 128 << 20);
    assert_eq!(
        small.check_product_limits(),
        Err(LayoutError::SegmentLen { found: 4096, min, max })
    );
    let min = 4096;
    for found in [0, 2048, 4097, 3 << 20, 256 << 20, u64::MAX] {
        let error = LayoutError::SegmentLen { found, min, max };
        assert_eq!(RegionLayout::new(found, 4), Err(error));
    }
    for found in [0, 3, SEGMENTS_MAX + 1, u32::MAX] {
        let error = LayoutError::SlotCount { found, min: 4, max: SEGMENTS_MAX };
        assert_eq!(RegionLayout::new(4096, found), Err(error));
    }
}
