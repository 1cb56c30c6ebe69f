//! What every implementor of [`Region`] must show: call these from its tests.
//!
//! Each function panics with what went wrong. They overwrite the region and need [`LEN_MIN`] bytes.
//! The last two are for regions that other threads (or a model of them) can write meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::{Region, Ticket};

/// Bytes that a region must have for these checks.
pub const LEN_MIN: u64 = 16 * 1024;
/// `persist` calls in one check.
const PERSISTS: u64 = 100;
/// How often a waiting check asks `durable`: each has waited once, and one sync may serve many.
const POLLS_MAX: u64 = 10 * PERSISTS;
/// How often a reader looks at what a writer changes, at least.
const LOOKS_MIN: u64 = 20_000;
/// How often the writer changes it meanwhile, at least.
const ROUNDS_MIN: u64 = 1_000;
/// Words in the area of [`copies_ascend`].
const AREA_WORDS: usize = 64;
/// Where the areas of the last two checks begin.
pub const AREA_AT: u64 = 4096;

/// Bytes come out as they went in, at any alignment, and those beside them stay.
pub fn copies_keep_bytes(region: &mut impl Region) {
    assert!(region.len() >= LEN_MIN, "the region is too short for the check");
    for (at, len) in [(0, 1), (3, 64), (8, 8), (63, 130), (4090, 20), (64, 4096), (100, 9001)] {
        let pattern: Vec<u8> = (1..=251).cycle().take(len).collect();
        let mut around = vec![0; len + 2 * 16];
        region.copy_in(at + 16, &vec![0; len]);
        region.copy_in(at, &[0xff; 16]);
        region.copy_in(at + 16 + len as u64, &[0xff; 16]);

        region.copy_in(at + 16, &pattern);
        region.copy_out(at, &mut around);
        assert_eq!(around[..16], [0xff; 16], "copy_in changed bytes before {at}");
        assert_eq!(around[16..16 + len], pattern, "copy_in of {len} bytes at {at}");
        assert_eq!(around[16 + len..], [0xff; 16], "copy_in changed bytes behind {at}+{len}");

        let other: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        region.copy_in_unordered(at + 16, &other);
        region.copy_out(at, &mut around);
        assert_eq!(around[..16], [0xff; 16], "copy_in_unordered changed bytes before {at}");
        assert_eq!(around[16..16 + len], other, "copy_in_unordered of {len} bytes at {at}");
        assert_eq!(around[16 + len..], [0xff; 16], "copy_in_unordered wrote behind {at}+{len}");
    }
}

/// Words are little-endian bytes, at both ends of the region.
pub fn words_are_little_endian(region: &mut impl Region) {
    let last = region.len() - 8;
    region.store(0, 0x0807_0605_0403_0201);
    region.copy_in(last, &[8, 7, 6, 5, 4, 3, 2, 1]);
    region.fence();
    let mut bytes = [0; 8];
    region.copy_out(0, &mut bytes);
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8], "store");
    assert_eq!(region.load(last), 0x0102_0304_0506_0708, "load");
}

/// Every access outside the region panics; one that just fits does not.
pub fn ranges_outside_panic(region: &mut impl Region) {
    let len = region.len();
    region.copy_out(len, &mut []);
    region.copy_in(len, &[]);
    region.copy_in(len - 1, &[0]);
    panics("copy_out past the end", || region.copy_out(len - 1, &mut [0; 2]));
    panics("copy_out far outside", || region.copy_out(u64::MAX, &mut [0; 2]));
    panics("load past the end", || region.load(len));
    panics("load unaligned", || region.load(4));
    panics("copy_in past the end", || region.copy_in(len - 1, &[0; 2]));
    panics("copy_in far outside", || region.copy_in(u64::MAX - 1, &[0; 2]));
    panics("copy_in_unordered past the end", || region.copy_in_unordered(len - 1, &[0; 4096]));
    panics("store past the end", || region.store(len, 1));
    panics("store unaligned", || region.store(12, 1));
    panics("persist past the end", || region.persist(len - 1..len + 1));
    let backwards = std::ops::Range { start: 8, end: 0 };
    panics("persist backwards", || region.persist(backwards.clone()));
}

fn panics<T>(what: &str, mut access: impl FnMut() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(&mut access)).is_err(), "{what} did not panic");
}

/// Tickets grow, `durable` grows and never runs ahead of them, and reaches the last one. `wait`
/// returns once `durable` may have something new to say (a simulator steps its clock there).
pub fn tickets_become_durable(region: &mut impl Region, mut wait: impl FnMut()) {
    let mut last = region.durable().expect("the region is healthy");
    for number in 0..PERSISTS {
        region.store(number * 8, number);
        let ticket = region.persist(number * 8..number * 8 + 8);
        assert!(last < ticket, "ticket {ticket:?} does not follow {last:?}");
        assert!(region.durable().expect("the region is healthy") <= ticket, "durable ran ahead");
        last = ticket;
    }
    let mut durable = Ticket::default();
    for _ in 0..POLLS_MAX {
        let next = region.durable().expect("the region is healthy");
        assert!(durable <= next, "durable went back from {durable:?} to {next:?}");
        durable = next;
        if durable == last {
            return;
        }
        wait();
    }
    panic!("durable stopped at {durable:?}, expected {last:?}");
}

/// A word is never seen torn. `store` stores a word at [`AREA_AT`], from another thread.
pub fn words_are_whole(region: &impl Region, mut store: impl FnMut(u64) + Send) {
    store(0);
    while_writing(
        |round| store(spread(round)),
        || {
            let word = region.load(AREA_AT);
            assert_eq!(word, spread(word & 0xff), "torn word {word:#x}");
            let mut bytes = [0; 8];
            region.copy_out(AREA_AT, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn copy {bytes:?}");
        },
    );
}

/// A word all of whose bytes are the lowest of `round`.
fn spread(round: u64) -> u64 {
    (round & 0xff) * 0x0101_0101_0101_0101
}

/// A copy's bytes become visible from the first to the last. `copy_in` copies bytes to
/// [`AREA_AT`], from another thread.
pub fn copies_ascend(region: &impl Region, mut copy_in: impl FnMut(&[u8]) + Send) {
    copy_in(&[0; AREA_WORDS * 8]);
    while_writing(
        |round| copy_in(&round.to_le_bytes().repeat(AREA_WORDS)),
        || {
            let mut behind = 0;
            for word in (0..AREA_WORDS as u64).rev() {
                let round = region.load(AREA_AT + word * 8);
                assert!(behind <= round, "word {word} is of round {round}, behind it {behind}");
                behind = round;
            }
        },
    );
}

/// Runs `write` with 1, 2, .. on another thread while `look` looks, each often enough.
fn while_writing(mut write: impl FnMut(u64) + Send, mut look: impl FnMut()) {
    let is_enough = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        // Also when `look` panics: the scope waits for the writer.
        let _stop = SetOnDrop(&is_enough);
        let writer = scope.spawn(|| {
            while !is_enough.load(Ordering::Relaxed) {
                write(rounds.fetch_add(1, Ordering::Relaxed) + 1);
            }
        });
        let mut looks = 0;
        while looks < LOOKS_MIN || rounds.load(Ordering::Relaxed) < ROUNDS_MIN {
            assert!(!writer.is_finished(), "the writer panicked");
            look();
            looks += 1;
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
