//! The superblock: bytes, errors, and the choice between two copies.

use base::{
    BootId, ClusterId, Digest, Durability, GrantWord, GroupId, Incarnation, Index, MemberId,
    SlotId, Term,
};
use logfmt::{
    COPY_LEN, Checkpoint, Hole, Identity, Position, SEGMENTS_MAX, SegmentRecord, StateFile,
    Superblock, SuperblockError, choose,
};

use crate::bytes::hex;
use crate::world::{configuration, founding, layout, record, sealed, superblock};

pub(crate) fn full() -> Superblock {
    Superblock {
        generation: 41,
        identity: Identity {
            cluster: ClusterId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            group: GroupId(7),
            member: MemberId(2),
            incarnation: Incarnation(0x2122_2324_2526_2728),
        },
        boot: BootId(0x3132_3334_3536_3738_393a_3b3c_3d3e_3f40),
        mode: Durability::Flush,
        segment_len: 4096,
        slot_count: 8,
        term: Term(9),
        vote: Some(MemberId(3)),
        grant: GrantWord::new(Term(8), 1),
        granted_to: Some(MemberId(1)),
        hole: Some(Hole { from: Index(120), until: Index(130), term: Term(8) }),
        checkpoint: Checkpoint {
            at: Position { index: Index(99), term: Term(6), digest: Digest(0x4142_4344) },
            configuration_index: Index(50),
            configuration: configuration(&[1, 2, 3]),
            state: StateFile { id: 5, length: 1000, digest: Digest(0x5152_5354) },
        },
        segments: vec![
            sealed(record(4, 6, 2), 80, 110, 2048),
            sealed(record(0, 8, 0), 111, 119, 640),
            record(1, 8, 1),
        ],
    }
}

/// Makes the checksum right again after a change.
fn repaired(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut bytes);
    bytes[16..24].fill(0);
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
    bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn the_bytes_of_a_superblock_are_these() {
    assert_eq!(hex(&full().encode()), include_str!("../../testdata/superblock.hex"));
}

#[test]
fn what_is_written_is_read_whatever_stands_behind_it() {
    let mut bytes = full().encode();
    assert_eq!(Superblock::decode(&bytes), Ok(full()));
    bytes.resize(usize::try_from(COPY_LEN).unwrap(), 0xee);
    assert_eq!(Superblock::decode(&bytes), Ok(full()));
    let empty = superblock(layout(), founding(), Vec::new());
    assert_eq!(Superblock::decode(&empty.encode()), Ok(empty));
}

#[test]
fn a_region_that_waits_to_be_taken_in_has_no_configuration() {
    let waiting = superblock(layout(), Checkpoint::default(), Vec::new());
    assert_eq!(Superblock::decode(&waiting.encode()), Ok(waiting));
}

#[test]
fn the_largest_superblock_fits_its_copy() {
    let mut largest = full();
    largest.slot_count = SEGMENTS_MAX;
    largest.checkpoint.configuration.voters = configuration(&Vec::from_iter(1..=16)).voters;
    largest.checkpoint.configuration.outgoing = configuration(&Vec::from_iter(1..=16)).voters;
    largest.segments = (0..SEGMENTS_MAX)
        .map(|slot| sealed(record(slot, 8, slot), 1, 1, 128))
        .collect::<Vec<SegmentRecord>>();
    let bytes = largest.encode();
    assert!(bytes.len() as u64 <= COPY_LEN);
    assert_eq!(Superblock::decode(&bytes), Ok(largest));
}

#[test]
fn every_shorter_copy_is_an_error() {
    let bytes = full().encode();
    for len in 0..bytes.len() {
        Superblock::decode(&bytes[..len]).unwrap_err();
    }
}

#[test]
fn every_changed_bit_is_an_error() {
    let bytes = full().encode();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        Superblock::decode(&changed).unwrap_err();
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let decode = |change: fn(&mut [u8])| Superblock::decode(&repaired(full().encode(), change));
    let malformed = |what, at| Err(SuperblockError::Malformed { what, at });
    assert_eq!(Superblock::decode(&[0; 4096]), Err(SuperblockError::NotASuperblock));
    assert_eq!(
        decode(|bytes| bytes[8] = 9),
        Err(SuperblockError::NewerFormat { found: 9, supported: 1 })
    );
    assert_eq!(decode(|bytes| bytes[8] = 0), malformed("version", 8));
    assert_eq!(decode(|bytes| bytes[80] = 1), malformed("layout", 92));
    assert_eq!(decode(|bytes| bytes[92] = 77), malformed("mode", 96));
    assert_eq!(decode(|bytes| bytes[102] = 1), malformed("term", 104));
    assert_eq!(decode(|bytes| bytes[96] = 1), malformed("grant", 120));
    assert_eq!(decode(|bytes| bytes[120..128].fill(0)), malformed("hole", 144));
    assert_eq!(decode(|bytes| bytes[168] = 100), malformed("configuration index", 176));
    assert_eq!(decode(|bytes| bytes[200] = 9), malformed("segment count", 204));
    assert_eq!(decode(|bytes| bytes[200] = 2), malformed("length", 360));
    assert_eq!(decode(|bytes| bytes[208] = 2), malformed("configuration", 264));
    // The records begin at 208 + 56.
    assert_eq!(decode(|bytes| bytes[264] = 8), malformed("segment slot", 268));
    assert_eq!(decode(|bytes| bytes[312] = 4), malformed("segment slot", 316));
    assert_eq!(decode(|bytes| bytes[264 + 40] = 1), malformed("seal", 312));
    assert_eq!(decode(|bytes| bytes[264 + 41] = 17), malformed("seal", 312));
    assert_eq!(decode(|bytes| bytes[360 + 4] = 2), malformed("segment order", 408));
    assert_eq!(decode(|bytes| bytes[360 + 10] = 9), malformed("segment order", 408));
}

#[test]
fn an_absurd_segment_count_allocates_nothing() {
    let bytes = repaired(full().encode(), |bytes| bytes[200..204].fill(0xff));
    let error = SuperblockError::Malformed { what: "segment count", at: 204 };
    assert_eq!(Superblock::decode(&bytes), Err(error));
}

#[test]
fn the_valid_copy_of_the_higher_generation_counts() {
    let at = |generation| Superblock { generation, ..full() };
    let chosen = |a: &[u8], b: &[u8]| choose(a, b).map(|(found, which)| (found.generation, which));
    let (old, new) = (at(41).encode(), at(42).encode());
    assert_eq!(chosen(&new, &old), Ok((42, 0)));
    assert_eq!(chosen(&old, &new), Ok((42, 1)));
    assert_eq!((at(41).copy_index(), at(42).copy_index()), (1, 0));
    let mut torn = new;
    torn[300] ^= 1;
    assert_eq!(chosen(&torn, &old), Ok((41, 1)));
    assert_eq!(chosen(&old, &torn), Ok((41, 0)));
    assert_eq!(chosen(&[0; 64], &old), Ok((41, 1)));
    assert_eq!(chosen(&[0; 64], &torn), Err(SuperblockError::BadChecksum));
    assert_eq!(chosen(&torn, &[0; 64]), Err(SuperblockError::BadChecksum));
    assert_eq!(chosen(&[0; 64], &[]), Err(SuperblockError::NotASuperblock));
}

#[test]
fn a_newer_copy_is_never_passed_over_for_an_older_one() {
    let old = full().encode();
    let newer = repaired(full().encode(), |bytes| bytes[8] = 2);
    let error = SuperblockError::NewerFormat { found: 2, supported: 1 };
    assert_eq!(choose(&old, &newer).unwrap_err(), error);
    assert_eq!(choose(&newer, &old).unwrap_err(), error);
    // Torn, it was never finished and has promised nothing.
    let torn = &newer[..newer.len() - 1];
    assert_eq!(choose(torn, &old).unwrap().1, 1);
}

#[test]
fn a_torn_write_at_any_line_leaves_one_valid_superblock() {
    // The new generation goes over the copy before the last one, 64 bytes at a time.
    let at = |generation, slots| {
        let mut superblock = Superblock { generation, ..full() };
        superblock.checkpoint.configuration = configuration(slots);
        superblock.encode()
    };
    let (before, current, next) = (at(40, &[1]), at(41, &[1, 2]), at(42, &[1, 2, 3]));
    for written in (0..next.len()).step_by(64) {
        let mut copy0 = next[..written].to_vec();
        copy0.extend_from_slice(before.get(written..).unwrap_or_default());
        let (chosen, which) = choose(&copy0, &current).unwrap();
        assert_eq!((chosen.generation, which), (41, 1), "{written} bytes");
    }
}

#[test]
fn slots_are_named_once() {
    let mut twice = full();
    twice.segments[1].slot = SlotId(4);
    let error = SuperblockError::Malformed { what: "segment slot", at: 316 };
    assert_eq!(Superblock::decode(&twice.encode()), Err(error));
}
