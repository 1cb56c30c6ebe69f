//! Encodings: what is written is read, and nothing else does harm.

use base::Random;

use super::*;
use crate::{OPERATIONS_MAX, Page};

fn every_operation() -> Command<'static> {
    Command::Batch(Batch {
        compares: vec![
            compare("a", Condition::Present),
            compare("", Condition::Absent),
            compare("c", Condition::Equals(b"value")),
            compare("d", Condition::Revision(Index(77))),
        ],
        writes: vec![put("e", "value", 9), delete("f"), increment("g", -1)],
        reads: vec![b"h", b""],
    })
}

fn every_reply() -> Vec<Reply<'static>> {
    let found = Found { value: b"value", revision: Index(3), ttl_ns: 4 };
    let results = vec![
        WriteResult::Put { existed: true },
        WriteResult::Deleted { existed: false },
        WriteResult::Incremented { now: i64::MIN },
    ];
    vec![
        Reply::Done { held: true, results, reads: vec![None, Some(found)] },
        Reply::Value(Some(found)),
        Reply::Value(None),
        Reply::Page(Page { entries: vec![(b"a", found), (b"b", found)], next: Some(b"c") }),
        Reply::Page(Page::default()),
        Reply::LimitSet,
        Reply::Refused(Refusal::BadRequest(Fault::TooMany)),
        Reply::Refused(Refusal::Full { state_bytes: 2, state_bytes_max: 1 }),
        Reply::Refused(Refusal::NotAnInteger { write: 9 }),
        Reply::Refused(Refusal::Overflow { write: 8 }),
        Reply::Refused(Refusal::ReadBackTooLarge),
    ]
}

fn encoded_reply(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

#[test]
fn commands_come_back_as_they_were_written_and_not_from_fewer_bytes() {
    let commands = [every_operation(), Command::Limit { state_bytes_max: u64::MAX }];
    for command in &commands {
        let bytes = encoded(command);
        assert_eq!(Command::decode(&bytes).as_ref(), Ok(command));
        for len in 0..bytes.len() {
            assert_eq!(Command::decode(&bytes[..len]), Err(Fault::Short));
        }
    }
}

#[test]
fn the_bytes_of_a_command_are_these() {
    let command = Command::Batch(Batch {
        compares: vec![compare("k", Condition::Revision(Index(2)))],
        writes: vec![put("k", "vw", 5), increment("n", -1)],
        reads: vec![b"k"],
    });
    let golden = "01 01 0100 0200 0100 \
                  04 01000000 6b 0200000000000000 \
                  01 01000000 6b 0500000000000000 02000000 7677 \
                  03 01000000 6e ffffffffffffffff \
                  01000000 6b";
    let hex: String = encoded(&command).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""));
}

#[test]
fn queries_come_back_as_they_were_written_and_not_from_fewer_bytes() {
    let queries = [
        Query::Get { key: b"k" },
        Query::Scan { from: b"a", to: Some(b"b"), limit: 7 },
        Query::Scan { from: b"", to: None, limit: u32::MAX },
    ];
    for query in &queries {
        let mut bytes = Vec::new();
        query.encode(&mut bytes).unwrap();
        assert_eq!(Query::decode(&bytes).as_ref(), Ok(query));
        for len in 0..bytes.len() {
            assert_eq!(Query::decode(&bytes[..len]), Err(Fault::Short));
        }
    }
}

#[test]
fn replies_come_back_as_they_were_written_and_not_from_fewer_bytes() {
    for reply in &every_reply() {
        let bytes = encoded_reply(reply);
        assert_eq!(Reply::decode(&bytes).as_ref(), Ok(reply));
        for len in 0..bytes.len() {
            assert_eq!(Reply::decode(&bytes[..len]), Err(Fault::Short));
        }
    }
}

#[test]
fn what_would_be_refused_is_not_written() {
    let key = "k".repeat(KEY_BYTES_MAX + 1);
    let value = "v".repeat(VALUE_BYTES_MAX + 1);
    let fault = |batch| {
        let mut bytes = b"before".to_vec();
        let fault = Command::Batch(batch).encode(&mut bytes).unwrap_err();
        assert_eq!(bytes, b"before");
        fault
    };
    let writes = |write| Batch { writes: vec![write], ..Batch::default() };
    assert_eq!(fault(writes(delete(&key))), Fault::KeyTooLong);
    assert_eq!(fault(writes(put("k", &value, 0))), Fault::ValueTooLong);
    let too_many = Batch { reads: vec![b""; OPERATIONS_MAX + 1], ..Batch::default() };
    assert_eq!(fault(too_many), Fault::TooMany);
    let mut bytes = Vec::new();
    let long = key.as_bytes();
    assert_eq!(Query::Get { key: long }.encode(&mut bytes), Err(Fault::KeyTooLong));
    let scan = Query::Scan { from: b"", to: Some(long), limit: 1 };
    assert_eq!(scan.encode(&mut bytes), Err(Fault::KeyTooLong));
    assert_eq!(bytes, b"");
}

#[test]
fn claims_beyond_the_limits_are_refused_before_their_bytes_are_looked_for() {
    let key_of = |len: u32| [&[1, 1, 0, 0, 0, 0, 1, 0][..], &len.to_le_bytes()].concat();
    assert_eq!(Command::decode(&key_of(65_537)), Err(Fault::KeyTooLong));
    assert_eq!(Command::decode(&key_of(65_536)), Err(Fault::Short));
    assert_eq!(Command::decode(&[1, 1, 1, 4, 0, 0, 0, 0]), Err(Fault::TooMany));
}

/// Random bytes, and valid bytes with one byte changed, through every decoder and the machine.
#[test]
fn arbitrary_bytes_do_no_harm() {
    let mut random = Random::new(1);
    let mut member = Member::new();
    let mut seeds: Vec<Vec<u8>> = every_reply().iter().map(encoded_reply).collect();
    seeds.push(encoded(&every_operation()));
    for round in 0..20_000 {
        let mut bytes = if round % 2 == 0 {
            seeds[usize::try_from(random.below(seeds.len() as u64)).unwrap()].clone()
        } else {
            vec![1; 1 + usize::try_from(random.below(60)).unwrap()]
        };
        for _ in 0..1 + random.below(4) {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = random.next().to_le_bytes()[0];
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            assert_eq!(encoded_reply(&reply), bytes, "one reply, one encoding");
        }
        if let Ok(command) = Command::decode(&bytes) {
            assert_eq!(encoded(&command), bytes, "one command, one encoding");
        }
        member.apply_bytes(0, &bytes);
        let mut reply = Vec::new();
        member.store.read(&bytes, &mut reply);
        Reply::decode(&reply).unwrap();
    }
}
