//! WRITE, READ, keys and rights.

use super::script::{A, B, C, Script, read, read_word, send, write};
use super::{Harness, Outcome, REGION_LEN};
use crate::{Access, Fabric, FabricEvent, Key, Piece, PostError, RegionId, RegisterError, Status};

/// Where the page that anybody may read starts in its owner's region.
const PAGE: u64 = REGION_LEN / 2;

pub(super) fn a_read_back_follows_its_writes<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    script.harness.store(B, PAGE, 77);
    let completion = script.write(A, a, (log, 24, b"entry of 16 byte"), page);
    assert_eq!((completion.qp, completion.id), (a, 2));
    assert_eq!((completion.status, completion.word), (Status::Ok, 77));
    assert_eq!(script.harness.load(B, 24), u64::from_le_bytes(*b"entry of"));
    assert_eq!(script.harness.load(B, 32), u64::from_le_bytes(*b" 16 byte"));
    assert_eq!((script.harness.load(B, 16), script.harness.load(B, 40)), (0, 0));
    Outcome::Passed
}

pub(super) fn pieces_are_concatenated<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    script.harness.store(A, 4096, u64::from_le_bytes(*b"payload!"));
    let region = script.harness.region(A);
    let local = Piece::Local { region, offset: 4097, len: 7 };
    let pieces = [Piece::Inline(b"head:"), local, Piece::Inline(b""), Piece::Inline(b"end.")];
    assert_eq!(script.post(A, a, &[write(1, &pieces, log, 0), read_word(2, page, 0)]), Ok(()));
    assert_eq!(script.completions(A, 1)[0].status, Status::Ok);
    assert_eq!(script.harness.load(B, 0), u64::from_le_bytes(*b"head:ayl"));
    assert_eq!(script.harness.load(B, 8), u64::from_le_bytes(*b"oad!end."));
    Outcome::Passed
}

pub(super) fn a_read_copies_bytes<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, _) = script.connect(A, B);
    let page = script.register_page(B);
    script.harness.store(B, PAGE + 8, u64::from_le_bytes(*b"suffix!!"));
    let region = script.harness.region(A);
    assert_eq!(script.post(A, a, &[read(5, (page, 8), (region, 256), 6)]), Ok(()));
    let completion = script.completions(A, 1)[0];
    assert_eq!((completion.id, completion.status, completion.word), (5, Status::Ok, 0));
    assert_eq!(script.harness.load(A, 256), u64::from_le_bytes(*b"suffix\0\0"));
    Outcome::Passed
}

pub(super) fn completions_come_in_the_order_of_posting<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    let region = script.harness.region(A);
    let chains = u64::from(script.fabric(A).caps().reads_max / 2);
    for id in 0..chains {
        let bytes = id.to_le_bytes();
        let pieces = [Piece::Inline(&bytes)];
        let chain = [
            write(99, &pieces, log, id * 8),
            read_word(id * 2, page, 0),
            read(id * 2 + 1, (page, 0), (region, 0), 8),
        ];
        assert_eq!(script.post(A, a, &chain), Ok(()));
    }
    let done = script.completions(A, usize::try_from(chains * 2).expect("a small number"));
    assert!(done.iter().map(|completion| completion.id).eq(0..chains * 2));
    assert!(done.iter().all(|completion| completion.status == Status::Ok));
    assert_eq!(script.harness.load(B, (chains - 1) * 8), chains - 1);
    Outcome::Passed
}

pub(super) fn a_full_queue_pair_refuses_and_recovers<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, _) = script.connect(A, B);
    let page = script.register_page(B);
    let reads_max = script.fabric(A).caps().reads_max;
    for id in 0..u64::from(reads_max) {
        assert_eq!(script.post(A, a, &[read_word(id, page, 0)]), Ok(()));
    }
    assert_eq!(script.post(A, a, &[read_word(1000, page, 0)]), Err(PostError::Full));
    let done = script.completions(A, reads_max as usize);
    assert!(done.iter().all(|completion| completion.id != 1000));
    assert_eq!(script.post(A, a, &[read_word(1001, page, 0)]), Ok(()));
    assert_eq!(script.completions(A, 1)[0].id, 1001);
    Outcome::Passed
}

pub(super) fn a_refused_chain_has_done_nothing<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    let caps = script.fabric(A).caps();
    let region = script.harness.region(A);
    let good = [Piece::Inline(b"unwanted")];
    let first = write(1, &good, log, 0);
    let beyond = [Piece::Local { region, offset: REGION_LEN - 4, len: 8 }];
    let nowhere = [Piece::Local { region: RegionId(u32::MAX), offset: 0, len: 8 }];
    let inline = vec![0; caps.inline_max as usize + 1];
    let inline = [Piece::Inline(&inline)];
    let pieces = vec![Piece::Inline(b"x"); caps.pieces_max as usize + 1];
    let long = vec![first; caps.chain_max as usize + 1];
    let bad = [
        read_word(2, page, 4),
        write(2, &beyond, log, 0),
        write(2, &nowhere, log, 0),
        write(2, &inline, log, 0),
        write(2, &pieces, log, 0),
        read(2, (page, 0), (region, REGION_LEN - 4), 8),
        read(2, (page, 0), (region, u64::MAX), 8),
    ];
    for request in bad {
        let posted = script.post(A, a, &[first, request]);
        assert!(matches!(posted, Err(PostError::Invalid(_))), "{request:?} gave {posted:?}");
    }
    assert!(matches!(script.post(A, a, &long), Err(PostError::Invalid(_))));
    script.idle();
    assert_eq!((script.done(A), script.told(A)), (&[][..], &[][..]));
    assert_eq!(script.harness.load(B, 0), 0);
    assert_eq!(script.write(A, a, (log, 0, b"wanted.."), page).status, Status::Ok);
    Outcome::Passed
}

pub(super) fn a_revoked_word_is_seen_by_the_next_read_back<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    for grant in 1..100_u64 {
        script.harness.store(B, PAGE, grant);
        let completion = script.write(A, a, (log, grant * 8, &grant.to_le_bytes()), page);
        assert_eq!((completion.status, completion.word), (Status::Ok, grant));
        assert_eq!(script.harness.load(B, grant * 8), grant);
    }
    Outcome::Passed
}

/// Posts `key` at `offset` on a fresh queue pair, as a WRITE, and expects it to break.
fn breaks<H: Harness>(script: &mut Script<'_, H>, key: Key, offset: u64) {
    let (a, b) = script.connect(A, B);
    let page = script.register_page(B);
    let pieces = [Piece::Inline(b"forbid")];
    let chain = [write(1, &pieces, key, offset), read_word(2, page, 0)];
    assert_eq!(script.post(A, a, &chain), Ok(()));
    let done = script.completions(A, 2);
    assert_eq!((done[0].id, done[0].status), (1, Status::RemoteAccess));
    assert_eq!((done[1].id, done[1].status), (2, Status::Flushed));
    assert!(!script.disconnected(A, a));
    assert!(!script.disconnected(B, b));
    assert_eq!(script.post(A, a, &[read_word(3, page, 0)]), Err(PostError::NotConnected(a)));
}

pub(super) fn a_key_that_never_was_breaks_the_queue_pair<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    for key in [0, 1, 0x3ff, u64::MAX] {
        breaks(&mut script, Key(key), 0);
    }
    Outcome::Passed
}

pub(super) fn a_range_that_passes_the_end_breaks_the_queue_pair<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    for offset in [4096 - 5, 4096, u64::MAX - 2] {
        let (a, b) = script.connect(A, B);
        let short = script.register(B, 4096..8192, Access::Write(b));
        let pieces = [Piece::Inline(b"forbid")];
        assert_eq!(script.post(A, a, &[write(1, &pieces, short, offset)]), Ok(()));
        assert_eq!(script.completions(A, 1)[0].status, Status::RemoteAccess);
        script.disconnected(A, a);
        script.disconnected(B, b);
        assert_eq!((script.harness.load(B, 8184), script.harness.load(B, 8192)), (0, 0));
    }
    let (a, b) = script.connect(A, B);
    let (short, page) = (script.register(B, 4096..8192, Access::Write(b)), script.register_page(B));
    let last = script.write(A, a, (short, 4096 - 6, b"permit"), page);
    assert_eq!(last.status, Status::Ok, "up to the very end it works");
    Outcome::Passed
}

pub(super) fn memory_for_reading_cannot_be_written<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let page = script.register_page(B);
    breaks(&mut script, page, 0);
    assert_eq!(script.harness.load(B, PAGE), 0);
    Outcome::Passed
}

pub(super) fn a_key_works_for_its_queue_pair_alone<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (_, from_c) = script.connect(C, B);
    let of_c = script.register_log(B, from_c);
    breaks(&mut script, of_c, 0);
    assert_eq!(script.harness.load(B, 0), 0);
    let (a, b) = script.connect(A, B);
    assert_eq!(script.post(A, a, &[read_word(1, of_c, 0)]), Ok(()));
    assert_eq!(script.completions(A, 1)[0].status, Status::RemoteAccess, "nor can it be read");
    script.disconnected(A, a);
    script.disconnected(B, b);
    Outcome::Passed
}

pub(super) fn a_key_of_an_old_queue_pair_does_not_fit_a_new_one<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let old = script.register_log(B, b);
    script.fabric(A).disconnect(a);
    script.disconnected(B, b);
    breaks(&mut script, old, 0);
    assert_eq!(script.harness.load(B, 0), 0);
    Outcome::Passed
}

pub(super) fn what_is_behind_a_failure_is_flushed<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    let pieces = [Piece::Inline(b"good")];
    let chain = [
        read_word(1, page, 0),
        read_word(2, Key(12345), 0),
        write(3, &pieces, log, 0),
        read_word(4, page, 0),
        send(5, b"never"),
    ];
    assert_eq!(script.post(A, a, &chain), Ok(()));
    let done = script.completions(A, 5);
    let ends: Vec<_> = done.iter().map(|completion| (completion.id, completion.status)).collect();
    let flushed = Status::Flushed;
    let expected =
        [(1, Status::Ok), (2, Status::RemoteAccess), (3, flushed), (4, flushed), (5, flushed)];
    assert_eq!(ends, expected);
    script.disconnected(A, a);
    script.disconnected(B, b);
    let is_message = |told: &(FabricEvent, _)| matches!(told.0, FabricEvent::Received { .. });
    assert!(!script.told(B).iter().any(is_message));
    Outcome::Passed
}

pub(super) fn a_deregistered_key_is_told_and_does_not_work<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let (log, page) = (script.register_log(B, b), script.register_page(B));
    assert_eq!(script.write(A, a, (log, 0, b"in time."), page).status, Status::Ok);
    script.fabric(B).deregister(log);
    script.deregistered(B, log);
    let pieces = [Piece::Inline(b"too late")];
    assert_eq!(script.post(A, a, &[write(1, &pieces, log, 0)]), Ok(()));
    assert_eq!(script.completions(A, 1)[0].status, Status::RemoteAccess);
    assert_eq!(script.harness.load(B, 0), u64::from_le_bytes(*b"in time."));
    script.fabric(B).deregister(log);
    script.fabric(B).deregister(page);
    script.deregistered(B, page);
    script.disconnected(B, b);
    script.idle();
    assert_eq!(script.told(B), [], "a key is told gone once");
    Outcome::Passed
}

pub(super) fn keys_are_not_reused<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let mut keys = Vec::new();
    for _ in 0..50 {
        let key = script.register_page(B);
        assert!(!keys.contains(&key));
        keys.push(key);
        script.fabric(B).deregister(key);
        script.deregistered(B, key);
    }
    Outcome::Passed
}

pub(super) fn bad_registrations_are_refused<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (_, b) = script.connect(A, B);
    let region = script.harness.region(B);
    let fabric = script.fabric(B);
    let out_of_range = |result| matches!(result, Err(RegisterError::OutOfRange { .. }));
    assert!(out_of_range(fabric.register(region, 0..REGION_LEN + 1, Access::Read)));
    assert!(out_of_range(fabric.register(region, 8..8, Access::Read)));
    assert!(out_of_range(fabric.register(RegionId(u32::MAX), 0..8, Access::Read)));
    let stranger = Access::Write(crate::Qp(b.0 ^ 1));
    let refused = fabric.register(region, 0..8, stranger);
    assert!(matches!(refused, Err(RegisterError::Refused(_))));
    fabric.deregister(Key(77));
    script.idle();
    assert_eq!(script.told(B), []);
    Outcome::Passed
}
