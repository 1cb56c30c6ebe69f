//! The bytes are pinned by one file per kind in `corpus/`, eight bytes a row as in
//! `docs/formats/messages.md`. Everything random comes from fixed seeds.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

mod generate;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base::{
    Configuration, Digest, GrantWord, GroupId, Incarnation, Index, Member, MemberId, MemberSet,
    Nonce, Random, SlotId, Term,
};
use logfmt::{Boundary, Checkpoint, Extent, Hole, Position, StateFile};

use self::generate::{below, random_message};
use super::*;
use crate::message::{Granted, Message, Room, VoteRefusal};

const GROUP: GroupId = GroupId(7);

/// One message of every kind, each with its successor: a new kind does not compile until it has an
/// example here and bytes in [`golden`].
fn example_after(previous: &Message) -> Option<Message> {
    let word = GrantWord::new(Term(9), 2);
    let (term, nonce) = (Term(9), Nonce(0x1122_3344_5566_7788));
    Some(match previous {
        Message::Vote { .. } => Message::Follow { term, nonce, counted: Index(41) },
        Message::Follow { .. } => Message::Granted(Box::new(granted())),
        Message::Granted(_) => {
            Message::Refused { asked: term, term: Term(10), why: VoteRefusal::Exhausted }
        }
        Message::Refused { .. } => Message::MoreRoom { word, rooms: vec![room(2, 5), room(3, 1)] },
        Message::MoreRoom { .. } => Message::Install { word, checkpoint: Box::new(checkpoint()) },
        Message::Install { .. } => Message::Installed { word, index: Index(40) },
        Message::Installed { .. } => Message::FetchChunk { word, state: 3, number: 1 },
        Message::FetchChunk { .. } => {
            Message::Chunk { word, state: 3, number: 1, bytes: b"eleven byte".to_vec() }
        }
        Message::Chunk { .. } => Message::Campaign { term, transfer: true },
        Message::Campaign { .. } => Message::Committed { word, index: Index(39) },
        Message::Committed { .. } => return None,
    })
}

fn golden(message: &Message) -> &'static str {
    match message {
        Message::Vote { .. } => include_str!("../../corpus/vote.hex"),
        Message::Follow { .. } => include_str!("../../corpus/follow.hex"),
        Message::Granted(_) => include_str!("../../corpus/granted.hex"),
        Message::Refused { .. } => include_str!("../../corpus/refused.hex"),
        Message::MoreRoom { .. } => include_str!("../../corpus/more_room.hex"),
        Message::Install { .. } => include_str!("../../corpus/install.hex"),
        Message::Installed { .. } => include_str!("../../corpus/installed.hex"),
        Message::FetchChunk { .. } => include_str!("../../corpus/fetch_chunk.hex"),
        Message::Chunk { .. } => include_str!("../../corpus/chunk.hex"),
        Message::Campaign { .. } => include_str!("../../corpus/campaign.hex"),
        Message::Committed { .. } => include_str!("../../corpus/committed.hex"),
    }
}

fn examples() -> Vec<Message> {
    let vote = Message::Vote { term: Term(9), nonce: Nonce(0xaabb_ccdd), transfer: true };
    std::iter::successors(Some(vote), example_after).collect()
}

fn granted() -> Granted {
    let boundary = |term, first| Boundary { term: Term(term), first: Index(first) };
    Granted {
        word: GrantWord::new(Term(9), 2),
        tail: Position { index: Index(44), term: Term(8), digest: Digest(0xd1) },
        boundaries: vec![boundary(3, 40), boundary(5, 42), boundary(8, 44)],
        complete: true,
        commit: Index(43),
        first: Index(41),
        configuration: (Index(42), configuration()),
        hole: Some(Hole { from: Index(45), until: Index(46), term: Term(9) }),
        extents: vec![extent(6, (41, 43), (64, 256)), extent(2, (44, 44), (4032, 8192))],
        log_key: 0x10c,
        rooms: vec![room(0, 4), room(1, 5)],
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        at: Position { index: Index(40), term: Term(3), digest: Digest(0xd0) },
        configuration_index: Index(12),
        configuration: configuration(),
        state: StateFile { id: 3, length: 300_000, digest: Digest(0x57) },
    }
}

fn configuration() -> Configuration {
    Configuration {
        voters: members(&[1, 2, 4]),
        outgoing: members(&[1, 2, 3]),
        learners: members(&[5]),
    }
}

fn members(ids: &[u32]) -> MemberSet {
    let incarnation = |id| Incarnation(u64::from(id) << 32);
    MemberSet::new(ids.iter().map(|&id| Member { id: MemberId(id), incarnation: incarnation(id) }))
}

fn extent(slot: u32, (first, last): (u64, u64), (start, end): (u64, u64)) -> Extent {
    let (first, last) = (Index(first), Index(last));
    Extent { slot: SlotId(slot), nonce: Nonce(0xaa), first, last, start, end }
}

fn room(ordinal: u32, slot: u32) -> Room {
    Room { ordinal, slot: SlotId(slot), key: 0xcafe, len: 1 << 20 }
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(GROUP, message, &mut bytes);
    bytes
}

/// Eight bytes a row.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for row in bytes.chunks(8) {
        let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", row.join(" ")).unwrap();
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// Makes length and checksum true again after the rest was changed.
fn repair(bytes: &mut [u8]) {
    let length = u32::try_from(bytes.len() - HEADER_LEN).unwrap();
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(bytes[..12].try_into().unwrap(), &bytes[HEADER_LEN..]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// What decoding says when `field` stands at byte `at` instead of what `message` has there.
fn with_u64(message: &Message, at: usize, field: u64) -> Result<(GroupId, Message), WireError> {
    let mut bytes = encoded(message);
    bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
    repair(&mut bytes);
    decode(&bytes)
}

fn with_u32(message: &Message, at: usize, field: u32) -> Result<(GroupId, Message), WireError> {
    let mut bytes = encoded(message);
    bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
    repair(&mut bytes);
    decode(&bytes)
}

fn malformed(what: &'static str, at: u32) -> Result<(GroupId, Message), WireError> {
    Err(WireError::Malformed { what, at })
}

#[test]
fn every_kind_has_the_bytes_it_always_had() {
    let kinds: BTreeSet<&str> = examples().iter().map(golden).collect();
    assert_eq!(kinds.len(), 11, "each example is of another kind");
    for message in examples() {
        assert_eq!(to_hex(&encoded(&message)), golden(&message), "{message:?}");
        assert_eq!(decode(&from_hex(golden(&message))), Ok((GROUP, message)));
    }
}

#[test]
fn encoding_appends() {
    let message = Message::Installed { word: GrantWord::new(Term(1), 1), index: Index(0) };
    let mut bytes = b"before".to_vec();
    encode(GROUP, &message, &mut bytes);
    assert_eq!(bytes[..6], *b"before");
    assert_eq!(decode(&bytes[6..]), Ok((GROUP, message)));
}

#[test]
fn a_frame_cut_anywhere_is_truncated() {
    for message in examples() {
        let bytes = encoded(&message);
        for got in 0..bytes.len() {
            let expected = if got < HEADER_LEN { HEADER_LEN } else { bytes.len() };
            assert_eq!(decode(&bytes[..got]), Err(WireError::Truncated { expected, got }));
        }
    }
}

#[test]
fn a_body_cut_anywhere_is_malformed_even_if_its_checksum_holds() {
    let cut = |message: &Message, len: usize| {
        let mut bytes = encoded(message);
        bytes.truncate(len);
        repair(&mut bytes);
        decode(&bytes)
    };
    for message in examples() {
        // The text of a chunk is whatever is left of the body, so that a cut in it is not seen.
        let is_chunk = matches!(message, Message::Chunk { .. });
        let end =
            if is_chunk { HEADER_LEN + put::CHUNK_FIXED_LEN } else { encoded(&message).len() };
        for len in HEADER_LEN..end {
            let result = cut(&message, len);
            assert!(matches!(result, Err(WireError::Malformed { .. })), "{len}: {result:?}");
        }
    }
}

#[test]
fn a_flipped_bit_never_goes_unnoticed() {
    for message in examples() {
        let mut bytes = encoded(&message);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit} of {message:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[12] ^= 1;
        assert!(matches!(decode(&bytes), Err(WireError::BadChecksum { .. })));
    }
}

/// Goal: whatever comes in, nothing panics, and what is accepted has no second encoding.
#[test]
fn mutated_frames_are_refused_or_mean_exactly_their_bytes() {
    let mut random = Random::new(0x5eed);
    let examples = examples();
    let (mut accepted, mut refused) = (0_u32, 0_u32);
    for _ in 0..20_000 {
        let mut bytes = encoded(&examples[below(&mut random, examples.len())]);
        mutate(&mut bytes, &mut random);
        repair(&mut bytes);
        match decode(&bytes) {
            Ok((group, message)) => {
                let mut again = Vec::new();
                encode(group, &message, &mut again);
                assert_eq!(to_hex(&again), to_hex(&bytes), "{message:?}");
                accepted += 1;
            }
            Err(WireError::Truncated { .. } | WireError::BadChecksum { .. }) => {
                panic!("the frame is whole: {}", to_hex(&bytes))
            }
            Err(
                WireError::Version { .. } | WireError::Kind { .. } | WireError::Malformed { .. },
            ) => refused += 1,
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

/// Changes one to three bytes, or words, or the length.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = below(random, bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at.max(HEADER_LEN)),
            1 => bytes.extend_from_slice(&random.next().to_le_bytes()),
            2 => bytes[at] = 0xff,
            3 => bytes[at] = 0,
            4 => {
                let (from, to) = (at / 8 * 8, below(random, bytes.len()) / 8 * 8);
                let word: Vec<u8> = bytes[from..].iter().copied().take(8).collect();
                for (place, byte) in bytes[to..].iter_mut().zip(word) {
                    *place = byte;
                }
            }
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
}

#[test]
fn random_messages_come_back_as_they_were_sent() {
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let message = random_message(&mut random);
        let group = GroupId(u32::try_from(random.below(1 << 32)).unwrap());
        let mut bytes = Vec::new();
        encode(group, &message, &mut bytes);
        assert!(bytes.len() <= MESSAGE_LEN_MAX);
        assert_eq!(decode(&bytes), Ok((group, message)), "seed {seed}");
    }
}

#[test]
fn the_largest_messages_fit_a_receive_buffer() {
    let word = GrantWord::new(Term::MAX, u16::MAX);
    let chunk = Message::Chunk { word, state: 1, number: 0, bytes: vec![0xab; CHUNK_LEN_MAX] };
    let largest = encoded(&chunk);
    assert_eq!(largest.len(), MESSAGE_LEN_MAX);
    assert_eq!(decode(&largest), Ok((GROUP, chunk)));

    let mut reply = granted();
    let count = u64::try_from(BOUNDARIES_MAX).unwrap();
    reply.word = word;
    reply.tail = Position { index: INDEX_MAX, term: Term(count), digest: Digest(1) };
    let boundary = |at| Boundary { term: Term(at), first: Index(at * 10) };
    reply.boundaries = (1..=count).map(boundary).collect();
    let slots = 0..SEGMENTS_MAX;
    let place = |slot| (u64::from(slot) + 41, u64::from(slot) + 41);
    reply.extents = slots.map(|slot| extent(slot, place(slot), (64, 128))).collect();
    let rooms = u32::try_from(ROOMS_MAX).unwrap();
    reply.rooms = (0..rooms).map(|at| room(at, at)).collect();
    let message = Message::Granted(Box::new(reply));
    assert_eq!(decode(&encoded(&message)), Ok((GROUP, message)));
}

#[test]
fn other_versions_and_kinds_are_named() {
    let mut bytes = encoded(&examples()[0]);
    bytes[1] = 2;
    repair(&mut bytes);
    assert_eq!(decode(&bytes), Err(WireError::Version { found: 0x0252 }));
    bytes[1] = 1;
    bytes[2] = 12;
    repair(&mut bytes);
    assert_eq!(decode(&bytes), Err(WireError::Kind { found: 12 }));
}

#[test]
fn a_length_that_is_not_the_frames_is_malformed() {
    let mut bytes = encoded(&examples()[0]);
    bytes.push(0);
    assert_eq!(decode(&bytes), malformed("length", 8), "bytes behind the frame");
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&bytes), malformed("length", 8), "longer than any message");
    bytes.truncate(HEADER_LEN + 24);
    bytes.extend_from_slice(&[0; 8]);
    repair(&mut bytes);
    assert_eq!(decode(&bytes), malformed("trailing bytes", 40), "bytes behind the body");
}

#[test]
fn terms_and_words_that_nobody_can_lead_in_are_malformed() {
    let [vote, follow] = [&examples()[0], &examples()[1]];
    assert_eq!(with_u64(vote, 16, 0), malformed("term", 16));
    assert_eq!(with_u64(vote, 16, 1 << 48), malformed("term", 16));
    assert_eq!(with_u64(vote, 32, 2), malformed("transfer", 32));
    assert_eq!(with_u64(follow, 32, u64::MAX), malformed("counted", 32));
    let installed = &examples()[6];
    assert_eq!(with_u64(installed, 16, 9 << 16), malformed("grant word", 16), "a revoked word");
    assert_eq!(with_u64(installed, 16, 1), malformed("grant word", 16), "a grant in term 0");
    assert_eq!(with_u64(&examples()[3], 32, 4), malformed("refusal", 32));
    assert_eq!(with_u64(&examples()[7], 24, 0), malformed("state file", 24));
}

#[test]
fn a_grant_that_contradicts_itself_is_malformed() {
    let message = Message::Granted(Box::new(granted()));
    assert_eq!(with_u64(&message, 24, 0), malformed("tail index", 40), "a term without an index");
    assert_eq!(with_u64(&message, 32, 10), malformed("tail", 40), "above its grant");
    assert_eq!(with_u64(&message, 56, 46), malformed("first", 56), "more than one above the tail");
    assert_eq!(with_u64(&message, 64, 45), malformed("configuration index", 64));
    assert_eq!(with_u64(&message, 72, 0), malformed("hole", 88));
    assert_eq!(with_u32(&message, 104, 2), malformed("complete", 104));
    assert_eq!(with_u32(&message, 124, 1), malformed("reserved", 124));
    let configuration_at = 128;
    assert_eq!(with_u32(&message, configuration_at + 8, 0), malformed("configuration", 128));
    let boundaries_at = configuration_at + 8 + 7 * 16;
    assert_eq!(boundaries_at, 248);
    assert_eq!(with_u64(&message, 248 + 16, 3), malformed("boundary", 272), "terms ascend");
    assert_eq!(with_u64(&message, 248 + 24, 40), malformed("boundary", 272), "indexes ascend");
    assert_eq!(
        with_u64(&message, 248 + 32, 7),
        malformed("boundaries", 288),
        "not the tail's term"
    );
}

#[test]
fn extents_and_rooms_that_contradict_themselves_are_malformed() {
    let message = Message::Granted(Box::new(granted()));
    let (first, second) = (296, 296 + 48);
    assert_eq!(with_u32(&message, first, 512), malformed("extent slot", 296));
    assert_eq!(with_u64(&message, first + 24, 40), malformed("extent last", 320), "ends before 41");
    assert_eq!(with_u64(&message, first + 32, 0), malformed("extent start", 328), "the idle line");
    assert_eq!(with_u64(&message, first + 40, 192), malformed("extent end", 336), "3 in 2 lines");
    assert_eq!(with_u64(&message, first + 40, 1 << 40), malformed("extent end", 336));
    assert_eq!(with_u64(&message, second + 16, 43), malformed("extent first", 360), "43 twice");
    assert_eq!(with_u64(&message, second + 24, 45), malformed("extent last", 368), "past the tail");
    let rooms_at = second + 48;
    assert_eq!(with_u32(&message, rooms_at, 3), malformed("room ordinal", 416));
    assert_eq!(with_u32(&message, rooms_at + 28, 4), malformed("room slot", 420), "4 twice");
    assert_eq!(with_u64(&message, rooms_at + 16, 4097), malformed("room length", 408));
}

#[test]
fn counts_are_checked_before_anything_is_allocated() {
    let message = Message::Granted(Box::new(granted()));
    assert_eq!(with_u32(&message, 108, 777), malformed("configuration length", 108));
    assert_eq!(with_u32(&message, 112, 1025), malformed("boundary count", 112));
    assert_eq!(with_u32(&message, 116, u32::MAX), malformed("extent count", 116));
    assert_eq!(with_u32(&message, 120, 17), malformed("room count", 120));
    assert_eq!(with_u32(&message, 112, 1024), malformed("boundaries", 248), "not that many bytes");
    let word = GrantWord::new(Term(1), 1);
    let mut bytes = encoded(&Message::Chunk { word, state: 1, number: 0, bytes: Vec::new() });
    bytes.resize(MESSAGE_LEN_MAX + 1, 0);
    repair(&mut bytes);
    assert_eq!(decode(&bytes), malformed("length", 8));
}

#[test]
fn a_member_that_waits_to_be_taken_in_can_reply() {
    let reply = Granted {
        word: GrantWord::new(Term(1), 1),
        tail: Position::default(),
        boundaries: vec![Boundary { term: Term(0), first: Index(0) }],
        complete: true,
        commit: Index(0),
        first: Index(1),
        configuration: (Index(0), Configuration::default()),
        hole: None,
        extents: Vec::new(),
        log_key: 0,
        rooms: Vec::new(),
    };
    let message = Message::Granted(Box::new(reply));
    assert_eq!(decode(&encoded(&message)), Ok((GROUP, message)));
}
