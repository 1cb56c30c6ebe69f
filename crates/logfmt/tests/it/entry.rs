//! Entry headers and digests, byte by byte.

use base::{Digest, Index, Nonce, Random, Term};
use logfmt::entry::{digest_of, digest_of_pieces};
use logfmt::{Header, Kind};

use crate::bytes::hex;

const NONCE: Nonce = Nonce(0x0123_4567_89ab_cdef);

fn header() -> Header {
    Header {
        kind: Kind::Command,
        aligned: true,
        term: Term(0x0102_0304_0506),
        index: Index(0x1112_1314_1516_1718),
        commit: Index(0x2122_2324_2526_2728),
        payload_len: 0x3132_3334,
        digest: Digest(0x4142_4344_4546_4748),
    }
}

#[test]
fn the_bytes_of_a_header_are_these() {
    assert_eq!(hex(&header().encode(NONCE)), include_str!("../../testdata/entry_header.hex"));
}

#[test]
fn a_header_is_read_back_under_its_nonce_only() {
    let bytes = header().encode(NONCE);
    assert_eq!(Header::decode(&bytes, NONCE), Some(header()));
    assert_eq!(Header::decode(&bytes, Nonce(1)), None);
}

#[test]
fn zeroed_memory_is_no_entry() {
    assert_eq!(Header::decode(&[0; 40], NONCE), None);
}

#[test]
fn every_changed_bit_of_a_header_is_noticed() {
    let bytes = header().encode(NONCE);
    for bit in 0..320 {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Header::decode(&changed, NONCE), None, "bit {bit}");
    }
}

#[test]
fn digests_are_these() {
    let one = digest_of(Digest(0), Kind::NoOp, Term(1), Index(1), b"");
    let two = digest_of(one, Kind::Command, Term(1), Index(2), b"remanent");
    assert_eq!(format!("{one}\n{two}\n"), include_str!("../../testdata/digests.txt"));
}

#[test]
fn a_digest_depends_on_everything_that_it_names() {
    let base = digest_of(Digest(1), Kind::Command, Term(2), Index(3), b"x");
    let others = [
        digest_of(Digest(2), Kind::Command, Term(2), Index(3), b"x"),
        digest_of(Digest(1), Kind::Tick, Term(2), Index(3), b"x"),
        digest_of(Digest(1), Kind::Command, Term(3), Index(3), b"x"),
        digest_of(Digest(1), Kind::Command, Term(2), Index(4), b"x"),
        digest_of(Digest(1), Kind::Command, Term(2), Index(3), b"y"),
        digest_of(Digest(1), Kind::Command, Term(2), Index(3), b"x\0"),
    ];
    assert!(!others.contains(&base));
}

#[test]
fn a_payload_in_pieces_has_the_digest_of_the_whole() {
    // Lengths around the hash's own limits, cut at a random place.
    let mut random = Random::new(1);
    let whole: Vec<u8> = (0..70_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    for len in [0, 1, 8, 16, 17, 128, 129, 240, 241, 255, 256, 257, 1024, 4096, 4097, 70_000] {
        let payload = &whole[..len];
        let expected = digest_of(Digest(5), Kind::Command, Term(2), Index(3), payload);
        let cut = usize::try_from(random.below(len as u64 + 1)).unwrap();
        let (head, tail) = payload.split_at(cut);
        let in_pieces =
            digest_of_pieces(Digest(5), Kind::Command, Term(2), Index(3), &[head, tail]);
        assert_eq!(in_pieces, expected, "{len} cut at {cut}");
        let header = Header {
            aligned: false,
            term: Term(2),
            index: Index(3),
            payload_len: u32::try_from(len).unwrap(),
            ..header()
        };
        let mut stream = header.digest_stream(Digest(5));
        payload.chunks(997).for_each(|piece| stream.update(piece));
        assert_eq!(stream.finish(), expected, "{len} streamed");
    }
}
