//! Ends that keep to no rule: each costs the other nothing but that stream.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;

use super::*;

const RING: u64 = 4096;

impl Member {
    /// A client that knows of sockets alone. It has been answered when this returns.
    fn raw_client(&self) -> UnixStream {
        let path = porter::socket_path(&self.place.0, MEMBER).unwrap();
        let mut socket = UnixStream::connect(path).unwrap();
        socket.read_exact(&mut [0; handshake::WELCOME_LEN]).unwrap();
        socket
    }

    /// A new client is served.
    fn serves(&mut self) {
        let (mut client, mut server) = self.pair();
        client.send(&[b"honest"]).unwrap();
        assert_eq!(receive(&mut server, &mut client), b"honest");
        server.send(&[b"answer"]).unwrap();
        assert_eq!(receive(&mut client, &mut server), b"answer");
    }
}

/// Goal: clients that come and go while the member's thread does something else take no more
/// memory than `streams_max` streams. Method: it accepts nothing until a thousand have been there.
#[test]
fn clients_that_come_and_go_are_bounded_while_nobody_accepts() {
    let mut member = Member::new("flood", 8, RING);
    for _ in 0..1_000 {
        drop(member.raw_client());
    }
    assert!(matches!(member.dial(), Err(StreamError::Full(MEMBER))));
    let mut left = Vec::new();
    while let Some(stream) = member.porter.accept() {
        left.push(stream);
    }
    assert_eq!(left.len(), 8);
    drop(left);
    member.serves();
}

/// Goal: a client that was sent away keeps nobody else out. Method: each holds on to its socket.
#[test]
fn a_place_is_free_once_the_member_has_dropped_the_stream() {
    let mut member = Member::new("places", 2, RING);
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(member.raw_client());
        drop(member.accept());
    }
    member.serves();
}

#[test]
fn a_client_that_talks_on_its_socket_is_gone_and_others_are_not() {
    let mut member = Member::new("talker", 4, RING);
    let (mut client, mut server) = member.pair();
    let mut talker = member.raw_client();
    let mut heard = member.accept();
    talker.write_all(&[0xff; 1000]).unwrap();
    let mut bytes = Vec::new();
    loop {
        member.shm.arm();
        if heard.receive(&mut bytes) == Err(Closed) {
            break;
        }
        member.shm.wait(LONG);
    }
    client.send(&[b"still here"]).unwrap();
    assert_eq!(receive(&mut server, &mut client), b"still here");
}

#[test]
fn a_client_that_never_reads_costs_its_ring_and_one_message() {
    let mut member = Member::new("deaf", 4, RING);
    let (_client, mut server) = member.pair();
    let sent = (0..100).take_while(|_| server.send(&[&[1; 1016]]).is_ok()).count();
    assert_eq!(sent, 5, "four fit into the ring, one waits");
    assert_eq!(server.send(&[b"more"]), Err(SendError::Full));
    assert!(!server.flush(), "and nothing moves");
    member.serves();
}

/// Stores words of all kinds at all places that either end looks at, until `is_over`; but never
/// that an end has closed, so that a stream ends by its faults alone.
fn scribble(map: &Mapping, seed: u64, is_over: &AtomicBool) {
    const { assert!(MEMBER_CLOSED_AT == 576 && CLIENT_CLOSED_AT == 640) };
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        let word = match random.below(5) {
            0 => random.next(),
            1 => random.below(2 * RING),
            2 => random.below(2 * RING) / 8 * 8,
            3 => random.below(64) * 8,
            _ => MESSAGE_MAX - random.below(16),
        };
        let at = match random.below(3) {
            0 => 64 + 64 * random.below(8),
            _ => RINGS_AT + 8 * random.below(2 * RING / 8),
        };
        map.store(at, word);
    }
}

/// Uses `stream` as its owner would, until it is closed.
fn use_up(stream: &mut Stream) {
    let mut bytes = Vec::new();
    for turn in 1_u64.. {
        match stream.receive(&mut bytes) {
            Ok(_) => assert!(bytes.len() as u64 <= turn * RING, "memory for what has arrived"),
            Err(Closed) => return,
        }
        // Full and closed are both fine: the next look tells which it is.
        let _sent = stream.send(&[&[1; 100]]);
        stream.flush();
    }
}

/// Goal: no panic and no memory by a claim, though words change between two looks of one call; the
/// stream ends. Method: a thread scribbles all over the memory while one end is used, each in turn;
/// the seeds are fixed, what the two threads make of them is not.
#[test]
fn either_end_survives_memory_that_changes_under_it() {
    let mut member = Member::new("scribble", 4, RING);
    for seed in 0..200 {
        let (client, server) = member.pair();
        let (mut used, other) = if seed % 2 == 0 { (server, client) } else { (client, server) };
        let (map, is_over) = (Arc::clone(&other.map), AtomicBool::new(false));
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                scribble(&map, seed, &is_over);
            });
            start.wait();
            use_up(&mut used);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(used.is_closed());
    }
    member.serves();
}

/// One who listens in place of a member: says `bytes`, passes `memory`, and hangs up.
fn impostor(place: &Place, bytes: &[u8], memory: Option<&Mapping>) -> StreamError {
    let path = porter::socket_path(&place.0, MEMBER).unwrap();
    std::fs::remove_file(&path).unwrap_or(());
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Stream::connect(&place.0, MEMBER, LONG).unwrap_err());
        let (mut socket, _) = listener.accept().unwrap();
        match memory {
            Some(map) => {
                let said = handshake::Welcome::decode(bytes).unwrap();
                handshake::welcome(&socket, &said, Some(map.fd().unwrap().as_fd())).unwrap();
            }
            None => socket.write_all(bytes).unwrap(),
        }
        drop(socket);
        client.join().unwrap()
    })
}

#[test]
fn a_welcome_that_cannot_be_right_is_refused() {
    let member = Member::new("impostor", 4, RING);
    let Member { porter, shm, place } = member;
    drop(porter);
    let right = handshake::Welcome {
        is_full: false,
        member: MEMBER,
        incarnation: Incarnation(9),
        instance: shm.own.instance,
        ring_bytes: RING,
    };
    let whole = right.encode();
    let says = |bytes: &[u8]| impostor(&place, bytes, None);
    assert!(matches!(says(b""), StreamError::Silent(_)), "hung up");
    assert!(matches!(says(&whole[..20]), StreamError::Version(_)), "cut off");
    assert!(matches!(says(&[0xff; 100]), StreamError::Version(_)), "noise");
    assert!(matches!(says(&whole), StreamError::Version(_)), "no memory comes with it");

    let memory = Mapping::memfd("a test's stream", RINGS_AT + 2 * RING).unwrap();
    let passes = |said: handshake::Welcome| impostor(&place, &said.encode(), Some(&memory));
    let zero = handshake::Welcome { ring_bytes: 0, ..right };
    assert!(matches!(passes(zero), StreamError::Version(_)));
    let huge = handshake::Welcome { ring_bytes: 1 << 62, ..right };
    assert!(matches!(passes(huge), StreamError::Version(_)));
    let longer = handshake::Welcome { ring_bytes: 2 * RING, ..right };
    assert!(matches!(passes(longer), StreamError::Map(_)), "longer than the memory");
    let other = handshake::Welcome { member: MemberId(4), ..right };
    assert!(matches!(passes(other), StreamError::Version(_)));
}

/// Goal: a client never watches the life of one instance while it talks to another. Method: the
/// board that it finds is not of the instance that welcomed it, as when the member was replaced
/// between the two.
#[test]
fn a_welcome_of_another_instance_than_the_boards_is_refused() {
    let Member { porter, shm, place } = Member::new("instance", 4, RING);
    drop(porter);
    let memory = Mapping::memfd("a test's stream", RINGS_AT + 2 * RING).unwrap();
    let earlier = handshake::Welcome {
        is_full: false,
        member: MEMBER,
        incarnation: Incarnation(9),
        instance: shm.own.instance ^ 1,
        ring_bytes: RING,
    };
    let refused = impostor(&place, &earlier.encode(), Some(&memory));
    assert!(matches!(refused, StreamError::Silent(MEMBER)));
}

#[test]
fn one_who_never_answers_is_waited_for_no_longer_than_asked() {
    let place = Place::new("mute");
    let _listener = UnixListener::bind(porter::socket_path(&place.0, MEMBER).unwrap()).unwrap();
    let silent = Stream::connect(&place.0, MEMBER, Duration::from_millis(1));
    assert!(matches!(silent, Err(StreamError::Silent(MEMBER))));
}
