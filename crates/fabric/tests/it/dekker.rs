//! The store-load litmus through the provider's own path; see the example `litmus`.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;

use base::{Durability, Incarnation, MemberId};
use fabric::shm::{Config, Shm};
use fabric::{
    Access, Completion, Fabric, FabricEvent, Key, Piece, Qp, Remote, Request, Status, WorkRequest,
};
use pmem::Mapping;

use crate::place::Place;

const REGION_LEN: u64 = 64 * 1024;
/// The voter's word and the leader's entry: lines far apart, so that none is fetched for another,
/// and not at the same offset of a page, which alone would make the load wait for the stores.
const WORD_AT: u64 = 2048;
const ENTRY_AT: u64 = 32 * 1024;
/// Several lines, each of which the voter's cache holds: their stores wait for a while.
const ENTRY_LEN: usize = 256;
/// What the voter looks at: the word that becomes visible last.
const LAST_WORD: usize = ENTRY_LEN - 8;
/// Steps that the voter waits at most: longer than the leader's way from the start to its stores.
const DELAY_MAX: u64 = 1024;
/// Where the leader exercises, behind the entry.
const WARM_AT: u64 = 2560;
const MEMBER: Incarnation = Incarnation(1);
/// The leader's answer, in the lowest bit: whether the word that it read back was this round's.
const SAW: u64 = 1;
const MISSED: u64 = 0;

fn instance(place: &Place, member: u32) -> Shm {
    Shm::create(Config {
        dir: place.path().to_owned(),
        member: MemberId(member),
        incarnation: MEMBER,
        may_kill_writers: false,
    })
    .unwrap()
}

/// Runs events on both sides until both are connected.
fn connect(leader: &mut Shm, voter: &mut Shm) -> (Qp, Qp) {
    leader.connect(MemberId(2));
    let (mut at_leader, mut at_voter) = (None, None);
    let mut bytes = Vec::new();
    loop {
        if let Some(FabricEvent::Connected { qp, .. }) = leader.next_event(&mut bytes) {
            at_leader = Some(qp);
        }
        if let Some(FabricEvent::Connected { qp, .. }) = voter.next_event(&mut bytes) {
            at_voter = Some(qp);
        }
        if let (Some(leader), Some(voter)) = (at_leader, at_voter) {
            return (leader, voter);
        }
    }
}

fn wait_until(word: &AtomicU64, round: u64) -> u64 {
    let mut spins = 0_u32;
    loop {
        let value = word.load(Ordering::Acquire);
        if value >= round {
            return value;
        }
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(1 << 14) {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

/// Writes an entry of `round` at `at`, and reads the word back.
fn read_back(leader: &mut Shm, qp: Qp, (entry, word): (Key, Key), at: u64, round: u64) -> u64 {
    let mut bytes = [0; ENTRY_LEN];
    bytes[LAST_WORD..].copy_from_slice(&round.to_le_bytes());
    let pieces = &[Piece::Inline(&bytes)];
    let to = Remote { key: entry, offset: at };
    let from = Remote { key: word, offset: 0 };
    let chain = [
        WorkRequest { id: 1, request: Request::Write { pieces, to } },
        WorkRequest { id: 2, request: Request::ReadWord { from } },
    ];
    assert_eq!(leader.post(qp, &chain), Ok(()));
    let mut completions = [Completion { qp, id: 0, status: Status::Flushed, word: 0 }];
    assert_eq!(leader.poll(&mut completions), 1);
    assert_eq!((completions[0].id, completions[0].status), (2, Status::Ok));
    completions[0].word
}

/// Runs `rounds` rounds; how many of them had the forbidden outcome.
pub(crate) fn run(rounds: u64, is_fenced: bool) -> u64 {
    let place = Place::new("litmus");
    let log = place.file("log", REGION_LEN);
    let (mut leader, mut voter) = (instance(&place, 1), instance(&place, 2));
    let region = voter.attach(&log, Durability::Process).unwrap();
    let (qp, to_leader) = connect(&mut leader, &mut voter);
    let entry = ENTRY_AT..ENTRY_AT + 4096;
    let entry = voter.register(region, entry, Access::Write(to_leader)).unwrap();
    let word = voter.register(region, WORD_AT..WORD_AT + 8, Access::Read).unwrap();
    if !is_fenced {
        leader.remove_fence_for_litmus();
    }
    let memory = Mapping::open_peer(&log, 0..REGION_LEN).unwrap();
    let go = Arc::new([const { AtomicU64::new(0) }; 16]);
    let answer = Arc::new([const { AtomicU64::new(0) }; 16]);
    let (their_go, their_answer) = (Arc::clone(&go), Arc::clone(&answer));
    let leading = thread::spawn(move || {
        for round in 1..=rounds {
            // Each side first takes the line that it is going to read into its cache: then its
            // load is fast, and its store, which has to get the line back, is slow.
            wait_until(&their_go[0], round * 2);
            read_back(&mut leader, qp, (entry, word), WARM_AT, round);
            their_answer[8].store(round * 2, Ordering::Release);
            wait_until(&their_go[0], round * 2 + 1);
            let seen = read_back(&mut leader, qp, (entry, word), 0, round);
            let answer = if seen == round { SAW } else { MISSED };
            their_answer[8].store(round * 2 + 1, Ordering::Relaxed);
            their_answer[0].store(round << 1 | answer, Ordering::Release);
        }
    });
    let mut forbidden = 0;
    let line = [0; ENTRY_LEN];
    for round in 1..=rounds {
        go[0].store(round * 2, Ordering::Release);
        wait_until(&answer[8], round * 2);
        memory.copy_in(ENTRY_AT, &line);
        go[0].store(round * 2 + 1, Ordering::Release);
        delay(round % DELAY_MAX);
        memory.store(WORD_AT, round);
        fence(Ordering::SeqCst);
        let has_entry = memory.load(ENTRY_AT + LAST_WORD as u64) == round;
        let has_word = wait_until(&answer[0], round << 1) == (round << 1 | SAW);
        forbidden += u64::from(!has_entry && !has_word);
    }
    leading.join().unwrap();
    forbidden
}

/// Some cycles, so that the two sides of a round move against each other from round to round.
fn delay(steps: u64) {
    for step in 0..steps {
        black_box(step);
    }
}
