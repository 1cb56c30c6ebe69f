//! Checkpoints: one applied index, chunks that can be asked for again, nothing damaged gets in.

use base::Random;
use replica::machine::{ChunkEnd, Installer, NoSuchChunk, StateMachine, View};

use super::*;
use crate::{CHUNK_BYTES_MIN, InstallError, StoreInstaller, StoreView};

/// A store of `entries` entries with values of 0 to 999 bytes, some of which expire.
fn filled(entries: u64) -> Member {
    let mut member = Member::new();
    let mut random = Random::new(entries);
    for n in 0..entries {
        let value = "v".repeat(usize::try_from(random.below(1_000)).unwrap());
        let ttl_ns = if random.one_in(3) { 1_000_000 + n } else { 0 };
        member.write(n, put(&format!("key-{n}"), &value, ttl_ns));
    }
    member
}

fn chunks(view: &mut StoreView) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    for number in 0.. {
        let mut chunk = Vec::new();
        let end = view.chunk(number, &mut chunk).unwrap();
        chunks.push(chunk);
        if end == ChunkEnd::Last {
            break;
        }
    }
    chunks
}

fn install(chunks: &[Vec<u8>]) -> Result<Store, InstallError> {
    let mut installer = StoreInstaller::new();
    for chunk in chunks {
        installer.chunk(chunk)?;
    }
    installer.finish()
}

#[test]
fn an_installed_store_is_equal_and_goes_on_equally() {
    let mut member = filled(200);
    let chunks = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    assert!(10 < chunks.len());
    let mut installed = Member { store: install(&chunks).unwrap(), reply: Vec::new() };
    installed.store.entries.assert_invariants();
    assert_eq!(installed.store.digest(), member.store.digest());
    assert_eq!(installed.store.applied(), member.store.applied());
    assert_eq!(installed.store.state_bytes(), member.store.state_bytes());
    assert_eq!(installed.store.state_bytes_max(), ROOMY);
    assert_eq!(installed.store.next_expiry(), member.store.next_expiry());

    let late = 1_000_100;
    assert_eq!(member.write(late, put("k", "v", 5)), installed.write(late, put("k", "v", 5)));
    assert_eq!(installed.store.digest(), member.store.digest());
}

#[test]
fn an_empty_store_is_one_chunk() {
    let chunks = chunks(&mut Store::new(77).checkpoint(0));
    assert_eq!(chunks.len(), 1);
    let store = install(&chunks).unwrap();
    assert_eq!(store.digest(), Store::new(77).digest());
}

#[test]
fn the_bytes_of_a_small_checkpoint_are_these() {
    let mut member = Member::with_limit(0x500);
    member.write(3, put("k", "val", 4));
    let chunk = chunks(&mut member.store.checkpoint(0)).remove(0);
    let golden = "524b5643 0100 0100 00000000 4c000000 0000000000000000 81a8c3bd567222fe \
                  0100000000000000 0300000000000000 0005000000000000 \
                  0100000000000000 a400000000000000 3ed0601aa87200ae \
                  01000000 03000000 0100000000000000 0700000000000000 6b 76616c";
    let hex: String = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""));
}

#[test]
fn a_view_shows_one_applied_index_while_apply_goes_on() {
    let mut member = filled(100);
    let at_checkpoint = (member.store.applied(), member.store.digest());
    let mut view = member.store.checkpoint(CHUNK_BYTES_MIN);
    assert_eq!(view.applied(), at_checkpoint.0);

    let mut installer = member.store.installer();
    let mut chunk = Vec::new();
    while view.chunk(installer.next(), &mut chunk).unwrap() == ChunkEnd::More {
        installer.chunk(&chunk).unwrap();
        chunk.clear();
        let key = format!("key-{}", installer.next() * 3);
        member.write(0, delete(&key));
        member.put(&format!("new-{}", installer.next()), "v");
    }
    installer.chunk(&chunk).unwrap();

    let installed = installer.finish().unwrap();
    assert_eq!((installed.applied(), installed.digest()), at_checkpoint);
    assert_ne!(member.store.digest(), at_checkpoint.1);
}

#[test]
fn a_chunk_asked_for_again_is_the_same() {
    let mut member = filled(50);
    let mut view = member.store.checkpoint(CHUNK_BYTES_MIN);
    let first_time = chunks(&mut view);
    assert_eq!(first_time, chunks(&mut view));
    let last = u32::try_from(first_time.len() - 1).unwrap();
    let mut again = Vec::new();
    assert_eq!(view.chunk(last, &mut again), Ok(ChunkEnd::Last));
    assert_eq!(again, first_time[first_time.len() - 1]);
}

#[test]
fn a_chunk_that_is_not_there_is_refused() {
    let mut view = filled(50).store.checkpoint(CHUNK_BYTES_MIN);
    let mut out = Vec::new();
    assert_eq!(view.chunk(1, &mut out), Err(NoSuchChunk { number: 1, next: 0 }), "not yet");
    let count = u32::try_from(chunks(&mut view).len()).unwrap();
    let behind = NoSuchChunk { number: count, next: count - 1 };
    assert_eq!(view.chunk(count, &mut out), Err(behind));
    assert_eq!(view.chunk(u32::MAX, &mut out).unwrap_err().next, count - 1);
    assert_eq!(out, b"");
}

#[test]
fn chunks_have_the_asked_size_even_with_values_larger_than_them() {
    let mut member = Member::new();
    member.put("large", &"x".repeat(100_000));
    member.put("small", "x");
    let chunks = chunks(&mut member.store.checkpoint(10_000));
    let header = 32;
    let (last, others) = chunks.split_last().unwrap();
    assert!(others.iter().all(|chunk| chunk.len() == header + 10_000));
    assert!(last.len() <= header + 10_000);
    assert_eq!(install(&chunks).unwrap().digest(), member.store.digest());
}

#[test]
fn a_stream_that_broke_off_goes_on_with_the_next_chunk() {
    let mut member = filled(50);
    let chunks = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    let mut installer = StoreInstaller::new();
    installer.chunk(&chunks[0]).unwrap();
    installer.chunk(&chunks[1]).unwrap();

    let twice = InstallError::OutOfOrder { got: 1, expected: 2 };
    assert_eq!(installer.chunk(&chunks[1]), Err(twice));
    let skipped = InstallError::OutOfOrder { got: 3, expected: 2 };
    assert_eq!(installer.chunk(&chunks[3]), Err(skipped));
    assert_eq!(installer.next(), 2);

    for chunk in &chunks[2..] {
        installer.chunk(chunk).unwrap();
    }
    assert_eq!(installer.finish().unwrap().digest(), member.store.digest());
}

#[test]
fn a_damaged_chunk_is_refused_wherever_the_damage_is_and_can_be_sent_again() {
    let mut member = filled(10);
    let chunks = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    let mut installer = StoreInstaller::new();
    for at in 0..chunks[0].len() {
        let mut damaged = chunks[0].clone();
        damaged[at] ^= 0x10;
        assert!(installer.chunk(&damaged).is_err(), "byte {at}");
    }
    for len in 0..chunks[0].len() {
        assert_eq!(installer.chunk(&chunks[0][..len]), Err(InstallError::NotAChunk));
    }
    for chunk in &chunks {
        installer.chunk(chunk).unwrap();
    }
    assert_eq!(installer.finish().unwrap().digest(), member.store.digest());
}

#[test]
fn chunks_of_two_views_never_mix() {
    let mut member = filled(50);
    let before = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    member.put("key-1", "other");
    let after = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    let mut installer = StoreInstaller::new();
    installer.chunk(&before[0]).unwrap();
    assert_eq!(installer.chunk(&after[1]), Err(InstallError::OtherView { number: 1 }));
    installer.chunk(&before[1]).unwrap();
}

#[test]
fn an_incomplete_stream_yields_no_store() {
    let mut member = filled(50);
    let chunks = chunks(&mut member.store.checkpoint(CHUNK_BYTES_MIN));
    let missing = InstallError::Incomplete { next: u32::try_from(chunks.len() - 1).unwrap() };
    assert_eq!(install(&chunks[..chunks.len() - 1]).unwrap_err(), missing);
    assert_eq!(install(&[]).unwrap_err(), InstallError::Incomplete { next: 0 });
}

/// Chunks with a right check around wrong contents, as a faulty writer would make them.
#[test]
fn an_intact_chunk_with_impossible_contents_is_refused_for_good() {
    let member = filled(5);
    let store = &member.store;
    let refused = |forge: &dyn Fn(&mut Vec<u8>)| {
        let mut chunk = Vec::new();
        StoreView::new(store, u32::MAX).chunk(0, &mut chunk).unwrap();
        let mut payload = chunk.split_off(32);
        forge(&mut payload);
        let chunk = crate::stream::forged(&payload);
        install(&[chunk]).unwrap_err()
    };
    let entry = 48;
    let malformed = |rule| InstallError::Malformed { rule };
    assert_eq!(refused(&|payload| payload[entry + 3] = 1), malformed("a key is too long"));
    assert_eq!(refused(&|payload| payload[entry + 7] = 1), malformed("a value is too long"));
    assert_eq!(refused(&|payload| payload[entry + 24] = b'z'), malformed("keys do not ascend"));
    assert_eq!(refused(&|payload| payload.truncate(60)), malformed("it ends in the middle"));
    assert_eq!(refused(&|payload| payload.truncate(20)), malformed("it ends in the middle"));
    let fewer = InstallError::Mismatch { what: "entries", expected: 5, got: 0 };
    assert_eq!(refused(&|payload| payload.truncate(entry)), fewer);
    let changed = refused(&|payload| payload[entry + 8] ^= 1);
    assert!(matches!(changed, InstallError::Mismatch { what: "hash", .. }));
}

#[test]
fn arbitrary_chunks_are_refused_without_harm() {
    let mut random = Random::new(5);
    let mut installer = StoreInstaller::new();
    for _ in 0..5_000 {
        let len = usize::try_from(random.below(200)).unwrap();
        let payload: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
        assert_eq!(installer.chunk(&payload), Err(InstallError::NotAChunk));
        install(&[crate::stream::forged(&payload)]).unwrap_err();
    }
}
