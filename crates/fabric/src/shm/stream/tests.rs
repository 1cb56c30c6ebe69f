//! Streams by example, and against a client that keeps to no rule.

mod hostile;
mod processes;

use std::path::PathBuf;
use std::time::Duration;

use base::{Incarnation, MemberId, Random};

use super::*;
use crate::Sleep as _;
use crate::shm::{Config, Shm};

const MEMBER: MemberId = MemberId(3);
const LONG: Duration = Duration::from_secs(20);

/// A directory of its own, gone with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rmnt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

/// A member with a porter.
struct Member {
    porter: Porter,
    shm: Shm,
    place: Place,
}

impl Member {
    fn new(name: &str, streams_max: u32, ring_bytes: u64) -> Self {
        Self::at(Place::new(name), streams_max, ring_bytes)
    }

    fn at(place: Place, streams_max: u32, ring_bytes: u64) -> Self {
        let shm = Shm::create(Config {
            dir: place.0.clone(),
            member: MEMBER,
            incarnation: Incarnation(9),
            may_kill_writers: false,
        })
        .unwrap();
        let config = PorterConfig {
            dir: place.0.clone(),
            member: MEMBER,
            incarnation: Incarnation(9),
            streams_max,
            ring_bytes,
        };
        let porter = Porter::open(config, &shm).unwrap();
        Self { porter, shm, place }
    }

    fn dial(&self) -> Result<Stream, StreamError> {
        Stream::connect(&self.place.0, MEMBER, LONG)
    }

    fn accept(&mut self) -> Stream {
        loop {
            self.shm.arm();
            if let Some(stream) = self.porter.accept() {
                return stream;
            }
            self.shm.wait(LONG);
        }
    }

    fn pair(&mut self) -> (Stream, Stream) {
        let client = self.dial().unwrap();
        (client, self.accept())
    }
}

/// Receives one message, flushing the other end as its owner would.
fn receive(stream: &mut Stream, other: &mut Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !stream.receive(&mut bytes).unwrap() {
        other.flush();
    }
    bytes
}

#[test]
fn messages_arrive_whole_and_in_order_both_ways() {
    let mut member = Member::new("order", 4, 4096);
    let (mut client, mut server) = member.pair();
    assert_eq!((client.member(), client.incarnation()), (MEMBER, Incarnation(9)));
    let mut random = Random::new(5);
    for round in 0..2_000_u64 {
        let len = usize::try_from(random.below(700)).unwrap();
        let bytes: Vec<u8> =
            (0..len).map(|at| at.to_le_bytes()[0] ^ round.to_le_bytes()[0]).collect();
        let (first, rest) = bytes.split_at(len / 3);
        client.send(&[first, rest]).unwrap();
        assert_eq!(receive(&mut server, &mut client), bytes);
        server.send(&[&bytes]).unwrap();
        assert_eq!(receive(&mut client, &mut server), bytes);
    }
}

#[test]
fn a_message_longer_than_the_ring_goes_through_in_pieces() {
    let mut member = Member::new("long", 4, 4096);
    let (mut client, mut server) = member.pair();
    let bytes: Vec<u8> = (0..100_003_u32).map(|at| at.to_le_bytes()[1]).collect();
    client.send(&[&bytes]).unwrap();
    assert!(client.has_unsent());
    assert_eq!(client.send(&[b"next"]), Err(SendError::Full));
    assert_eq!(receive(&mut server, &mut client), bytes);
    assert!(!client.has_unsent());
    client.send(&[b"next"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"next");
}

#[test]
fn a_message_above_the_limit_is_refused_and_harms_nothing() {
    let mut member = Member::new("limit", 4, 4096);
    let (mut client, mut server) = member.pair();
    let bytes = vec![0; usize::try_from(MESSAGE_MAX).unwrap() + 1];
    assert_eq!(client.send(&[&bytes]), Err(SendError::TooLong));
    client.send(&[b"fine"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"fine");
}

#[test]
fn what_was_sent_before_the_end_is_still_received() {
    let mut member = Member::new("end", 4, 4096);
    let (mut client, mut server) = member.pair();
    client.send(&[b"last words"]).unwrap();
    drop(client);
    let mut bytes = Vec::new();
    assert_eq!(server.receive(&mut bytes), Ok(true));
    assert_eq!(bytes, b"last words");
    assert_eq!(server.receive(&mut bytes), Err(Closed));
    assert_eq!(server.send(&[b"too late"]), Err(SendError::Closed));
}

#[test]
fn a_client_sees_the_end_of_its_stream_and_of_its_member() {
    let mut member = Member::new("ends", 4, 4096);
    let (mut client, server) = member.pair();
    drop(server);
    client.wait(LONG);
    assert_eq!(client.receive(&mut Vec::new()), Err(Closed));
    let (client, _server) = member.pair();
    drop(member);
    assert!(client.is_closed());
}

#[test]
fn nobody_listening_is_told_from_a_full_house() {
    let mut member = Member::new("full", 2, 4096);
    let pairs = [member.pair(), member.pair()];
    assert!(matches!(member.dial(), Err(StreamError::Full(MEMBER))));
    drop(pairs);
    // The places are free once the porter has seen the clients go.
    let _pair = loop {
        if let Ok(client) = member.dial() {
            break (client, member.accept());
        }
    };
    let dir = member.place.0.clone();
    let nobody = Stream::connect(&dir, MemberId(77), LONG);
    assert!(matches!(nobody, Err(StreamError::NotRunning { .. })));
}

/// Goal: a porter that is dropped after its member's `Shm` cannot remove the socket of the next
/// one. Method: there is no next one before it is dropped too.
#[test]
fn a_member_is_not_started_again_before_its_porter_has_ended() {
    let Member { porter, shm, place } = Member::new("again", 4, 4096);
    let config = Config {
        dir: place.0.clone(),
        member: MEMBER,
        incarnation: Incarnation(9),
        may_kill_writers: false,
    };
    drop(shm);
    let early = Shm::create(config);
    assert!(matches!(early, Err(crate::shm::ShmError::InUse { .. })));
    drop(porter);
    let mut next = Member::at(place, 4, 4096);
    let (mut client, mut server) = next.pair();
    client.send(&[b"here"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"here");
}

#[test]
fn small_messages_use_the_callers_buffer_again() {
    let mut member = Member::new("buffer", 4, 4096);
    let (mut client, mut server) = member.pair();
    let mut bytes = Vec::with_capacity(512);
    let before = bytes.as_ptr();
    for _ in 0..100 {
        client.send(&[&[1; 200], &[2; 300]]).unwrap();
        assert!(!client.has_unsent(), "straight into the ring");
        assert_eq!(server.receive(&mut bytes), Ok(true));
        assert_eq!((bytes.len(), bytes.as_ptr()), (500, before));
    }
}

#[test]
fn a_timeout_without_end_is_taken() {
    let mut member = Member::new("forever", 4, 4096);
    let client = Stream::connect(&member.place.0, MEMBER, Duration::MAX).unwrap();
    assert!(!client.is_closed());
    assert!(!member.accept().is_closed());
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_by_name() {
    let dir = PathBuf::from("/").join("x".repeat(200));
    let refused = Stream::connect(&dir, MEMBER, LONG);
    assert!(matches!(refused, Err(StreamError::PathTooLong { .. })));
}

/// Goal: neither end sleeps through a message. Method: two threads play ball many times; each
/// sleeps as soon as it finds nothing, with a timeout that a lost wake-up would show as minutes.
#[test]
fn no_wake_up_is_lost() {
    let mut member = Member::new("wake", 4, 4096);
    let (mut client, mut server) = member.pair();
    let rounds = 20_000_u64;
    let thread = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for round in 0..rounds {
            client.send(&[&round.to_le_bytes()]).unwrap();
            while !client.receive(&mut bytes).unwrap() {
                client.wait(LONG);
            }
            assert_eq!(bytes, round.to_le_bytes());
        }
    });
    let mut bytes = Vec::new();
    for _ in 0..rounds {
        loop {
            if server.receive(&mut bytes).unwrap() {
                break;
            }
            member.shm.arm();
            if server.receive(&mut bytes).unwrap() {
                member.shm.wait(Duration::ZERO);
                break;
            }
            member.shm.wait(LONG);
        }
        server.send(&[&bytes]).unwrap();
    }
    thread.join().unwrap();
}

/// Goal: a client that sends faster than it reads, and the other way round, does not hang: whoever
/// waits for room is woken when there is some.
#[test]
fn whoever_waits_for_room_is_woken() {
    let mut member = Member::new("room", 4, 4096);
    let (mut client, mut server) = member.pair();
    let big = vec![7; 300_000];
    let thread = std::thread::spawn(move || {
        client.send(&[&big]).unwrap();
        let mut bytes = Vec::new();
        while !client.receive(&mut bytes).unwrap() {
            if !client.flush() {
                client.wait(LONG);
            }
        }
        bytes.len()
    });
    let mut bytes = Vec::new();
    loop {
        member.shm.arm();
        if server.receive(&mut bytes).unwrap() {
            break;
        }
        member.shm.wait(LONG);
    }
    assert_eq!(bytes.len(), 300_000);
    server.send(&[&bytes]).unwrap();
    while server.has_unsent() {
        member.shm.arm();
        if !server.flush() {
            member.shm.wait(LONG);
        }
    }
    assert_eq!(thread.join().unwrap(), 300_000);
}

/// Goal: whatever a client writes into the shared words and the ring, the member neither panics nor
/// takes memory by a claim; at worst it loses that stream. Method: random words at random places,
/// between honest messages.
#[test]
fn a_client_without_rules_loses_its_stream_and_nothing_else() {
    let mut member = Member::new("noise", 8, 4096);
    let mut random = Random::new(11);
    let mut lost = 0;
    for _ in 0..300 {
        let (client, mut server) = member.pair();
        let mut bytes = Vec::new();
        for _ in 0..20 {
            let word = match random.below(4) {
                0 => random.next(),
                1 => random.below(8192),
                2 => random.below(8192) / 8 * 8,
                _ => MESSAGE_MAX - random.below(16),
            };
            let at = match random.below(3) {
                0 => 64 * random.below(12),
                _ => RINGS_AT + 8 * random.below(1024),
            };
            client.map.store(at, word);
            match server.receive(&mut bytes) {
                Ok(_) => assert!(bytes.len() <= 4096 + 8, "only what arrived takes memory"),
                Err(Closed) => break,
            }
            let _sent = server.send(&[&[1; 100]]);
            server.flush();
        }
        lost += u32::from(server.is_closed());
    }
    assert!(lost > 100, "most of it cannot be right: {lost}");
    let (mut client, mut server) = member.pair();
    client.send(&[b"honest"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"honest");
}

#[test]
fn a_welcome_is_read_whole_or_not_at_all() {
    let welcome = handshake::Welcome {
        is_full: false,
        member: MEMBER,
        incarnation: Incarnation(4),
        instance: 5,
        ring_bytes: 4096,
    };
    let bytes = welcome.encode();
    assert_eq!(handshake::Welcome::decode(&bytes), Some(welcome));
    for len in 0..bytes.len() {
        assert_eq!(handshake::Welcome::decode(&bytes[..len]), None);
    }
    let mut other = bytes;
    other[8] = 2;
    assert_eq!(handshake::Welcome::decode(&other), None, "another version");
}
