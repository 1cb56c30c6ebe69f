//! What sessions promise, as scenarios. Log time is in seconds here.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic; the decoders under test must not"
)]

use base::Random;

use super::*;

const SMALL: Limits = Limits {
    sessions_max: 3,
    window: 4,
    unacknowledged_max: 6,
    reply_bytes_max: 8,
    ttl: Duration::from_secs(60),
};

fn seconds(seconds: u64) -> LogTime {
    LogTime(0).after(Duration::from_secs(seconds))
}

fn open(table: &mut SessionTable, index: u64, at: u64) -> Verdict {
    table.admit(Index(index), &Envelope { time: seconds(at), act: Act::Open })
}

/// A table with one session, 1, opened at log time 0.
fn one_session() -> (SessionTable, SessionId) {
    let mut table = SessionTable::new(SMALL);
    assert_eq!(open(&mut table, 1, 0), Verdict::Opened(SessionId(1)));
    (table, SessionId(1))
}

fn call(session: SessionId, sequence: u64, acknowledged_through: u64, at: u64) -> Envelope {
    Envelope { time: seconds(at), act: Act::Call { session, sequence, acknowledged_through } }
}

/// Admits a call and, if it is to be executed, records `reply`.
fn run(table: &mut SessionTable, envelope: Envelope, reply: &[u8]) -> Verdict {
    let verdict = table.admit(Index(100), &envelope);
    if let (Verdict::Execute, Act::Call { session, sequence, .. }) = (&verdict, envelope.act) {
        table.record(session, sequence, reply);
    }
    verdict
}

fn duplicate(reply: &[u8]) -> Verdict {
    Verdict::Duplicate(KeptReply::Reply(Arc::from(reply)))
}

fn stored(table: &SessionTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    bytes
}

#[test]
fn a_retry_after_failover_is_answered_not_executed() {
    let (mut table, session) = one_session();
    assert_eq!(run(&mut table, call(session, 1, 0, 1), b"first"), Verdict::Execute);

    let mut next_leader = SessionTable::decode(&stored(&table)).unwrap();

    assert_eq!(run(&mut next_leader, call(session, 1, 0, 2), b"again"), duplicate(b"first"));
    assert_eq!(run(&mut next_leader, call(session, 1, 0, 3), b"again"), duplicate(b"first"));
}

#[test]
fn pipelined_commands_run_in_whatever_order_they_reach_the_log() {
    let (mut table, session) = one_session();
    assert_eq!(run(&mut table, call(session, 3, 0, 1), b"three"), Verdict::Execute);
    assert_eq!(run(&mut table, call(session, 1, 0, 1), b"one"), Verdict::Execute);
    assert_eq!(run(&mut table, call(session, 3, 0, 2), b"-"), duplicate(b"three"));
    assert_eq!(run(&mut table, call(session, 1, 0, 2), b"-"), duplicate(b"one"));
    assert_eq!(run(&mut table, call(session, 2, 0, 2), b"two"), Verdict::Execute);
}

#[test]
fn a_copy_in_the_same_batch_waits_for_the_reply() {
    let (mut table, session) = one_session();
    let command = call(session, 1, 0, 1);
    assert_eq!(table.admit(Index(2), &command), Verdict::Execute);
    assert_eq!(table.admit(Index(3), &command), Verdict::ApplyFirst);
    table.record(session, 1, b"reply");
    assert_eq!(table.admit(Index(3), &command), duplicate(b"reply"));
}

#[test]
fn acknowledged_replies_are_dropped_and_older_sequences_refused() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 1), b"one");
    run(&mut table, call(session, 2, 0, 1), b"two");
    let before = stored(&table).len();

    run(&mut table, call(session, 3, 2, 1), b"three");

    assert!(stored(&table).len() < before, "two replies went, one came");
    let refused = Verdict::Refused(Refusal::Acknowledged);
    assert_eq!(run(&mut table, call(session, 1, 0, 1), b"-"), refused);
    assert_eq!(run(&mut table, call(session, 2, 2, 1), b"-"), refused);
    assert_eq!(run(&mut table, call(session, 3, 2, 1), b"-"), duplicate(b"three"));
}

#[test]
fn a_sequence_never_executed_but_acknowledged_is_refused_too() {
    let (mut table, session) = one_session();
    let command = call(session, 5, 5, 1);
    assert_eq!(run(&mut table, command, b"-"), Verdict::Refused(Refusal::Acknowledged));
    let everything = call(session, 7, u64::MAX, 1);
    assert_eq!(run(&mut table, everything, b"-"), Verdict::Refused(Refusal::Acknowledged));
}

#[test]
fn a_sequence_above_the_window_is_not_done_and_may_be_sent_later() {
    let (mut table, session) = one_session();
    let far = call(session, 5, 0, 1);
    assert_eq!(run(&mut table, far, b"-"), Verdict::Refused(Refusal::TooFarAhead));
    assert_eq!(run(&mut table, call(session, 4, 0, 1), b"four"), Verdict::Execute);
    assert_eq!(run(&mut table, call(session, 5, 1, 1), b"five"), Verdict::Execute);
}

#[test]
fn a_session_expires_by_log_time_alone() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 10), b"one");
    assert_eq!(table.next_expiry(), Some(seconds(70)));

    table.advance(seconds(69));
    assert_eq!(run(&mut table, call(session, 1, 0, 69), b"-"), duplicate(b"one"));
    assert_eq!(table.next_expiry(), Some(seconds(129)), "a retry is activity");

    table.advance(seconds(129));
    assert!(table.is_empty());
    assert_eq!(table.next_expiry(), None);
}

#[test]
fn what_was_sent_in_an_expired_session_is_unknown_and_never_executed() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 0), b"one");
    let unknown = Verdict::Refused(Refusal::SessionUnknown);
    assert_eq!(run(&mut table, call(session, 1, 0, 60), b"-"), unknown);
    assert_eq!(run(&mut table, call(session, 2, 0, 60), b"-"), unknown);
    let never_opened = SessionId(77);
    assert_eq!(run(&mut table, call(never_opened, 1, 0, 60), b"-"), unknown);
}

#[test]
fn keeping_alive_postpones_expiry_and_closing_ends_it_at_once() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 0), b"one");
    let keep = Envelope { time: seconds(50), act: Act::Keep { session, acknowledged_through: 1 } };
    assert_eq!(table.admit(Index(2), &keep), Verdict::Alive);
    table.advance(seconds(100));
    assert_eq!(table.len(), 1);
    assert_eq!(
        run(&mut table, call(session, 1, 1, 100), b"-"),
        Verdict::Refused(Refusal::Acknowledged)
    );

    let close = Envelope { time: seconds(101), act: Act::Close { session } };
    assert_eq!(table.admit(Index(3), &close), Verdict::Closed);
    assert_eq!(table.admit(Index(4), &close), Verdict::Refused(Refusal::SessionUnknown));
    assert_eq!(table, {
        let mut empty = SessionTable::new(SMALL);
        empty.advance(seconds(101));
        empty
    });
}

#[test]
fn a_session_beyond_the_limit_throws_nobody_out() {
    let (mut table, first) = one_session();
    assert_eq!(open(&mut table, 2, 30), Verdict::Opened(SessionId(2)));
    assert_eq!(open(&mut table, 3, 30), Verdict::Opened(SessionId(3)));
    assert_eq!(open(&mut table, 4, 59), Verdict::Refused(Refusal::TooManySessions));
    assert_eq!(table.len(), 3);
    assert_eq!(open(&mut table, 5, 60), Verdict::Opened(SessionId(5)), "session 1 expired");
    assert_eq!(
        run(&mut table, call(first, 1, 0, 60), b"-"),
        Verdict::Refused(Refusal::SessionUnknown)
    );
}

#[test]
fn unacknowledged_commands_of_all_sessions_are_bounded() {
    let (mut table, one) = one_session();
    open(&mut table, 2, 0);
    let two = SessionId(2);
    for sequence in 1..=3 {
        assert_eq!(run(&mut table, call(one, sequence, 0, 1), b""), Verdict::Execute);
        assert_eq!(run(&mut table, call(two, sequence, 0, 1), b""), Verdict::Execute);
    }
    let full = Verdict::Refused(Refusal::TooManyUnacknowledged);
    assert_eq!(run(&mut table, call(one, 4, 0, 1), b""), full);
    assert_eq!(run(&mut table, call(two, 4, 1, 1), b""), Verdict::Execute, "one was acknowledged");
    assert_eq!(run(&mut table, call(one, 4, 0, 1), b""), full);
    let close = Envelope { time: seconds(1), act: Act::Close { session: two } };
    table.admit(Index(9), &close);
    assert_eq!(run(&mut table, call(one, 4, 0, 1), b""), Verdict::Execute, "a refusal is not done");
}

#[test]
fn a_reply_too_large_to_keep_still_prevents_execution() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 1), b"12345678");
    run(&mut table, call(session, 2, 0, 1), b"123456789");
    assert_eq!(run(&mut table, call(session, 1, 0, 1), b"-"), duplicate(b"12345678"));
    assert_eq!(
        run(&mut table, call(session, 2, 0, 1), b"-"),
        Verdict::Duplicate(KeptReply::TooLarge)
    );
}

#[test]
fn a_command_without_a_session_is_executed_each_time() {
    let (mut table, _) = one_session();
    let before = table.clone();
    let plain = Envelope { time: seconds(0), act: Act::Plain };
    assert_eq!(table.admit(Index(2), &plain), Verdict::Execute);
    assert_eq!(table.admit(Index(3), &plain), Verdict::Execute);
    assert_eq!(table, before);
}

/// Two members cut the same entries into different batches: their tables stay equal, although one
/// records replies only after it has admitted later entries that drop or expire them.
#[test]
fn how_entries_are_cut_into_batches_leaves_no_trace() {
    let (mut one_by_one, session) = one_session();
    let mut batched = one_by_one.clone();
    let entries = [
        call(session, 1, 0, 1),
        call(session, 2, 0, 2),
        call(session, 3, 1, 3),
        call(session, 4, 1, 3),
    ];
    for entry in entries {
        assert_eq!(run(&mut one_by_one, entry, b"reply"), Verdict::Execute);
    }
    for entry in entries {
        assert_eq!(batched.admit(Index(100), &entry), Verdict::Execute);
    }
    for sequence in 1..=4 {
        batched.record(session, sequence, b"reply");
    }
    assert_eq!(one_by_one, batched);
    assert_eq!(stored(&one_by_one), stored(&batched));
}

#[test]
fn log_time_never_goes_back_even_if_an_envelope_does() {
    let (mut table, session) = one_session();
    run(&mut table, call(session, 1, 0, 50), b"one");
    run(&mut table, call(session, 2, 0, 20), b"two");
    assert_eq!(table.time(), seconds(50));
    assert_eq!(table.next_expiry(), Some(seconds(110)));
}

#[test]
fn a_leader_counts_on_from_the_last_log_time() {
    let boot = Instant(7_000_000);
    let mut clock = LeaderClock::new(LogTime(500), boot);
    assert_eq!(clock.stamp(boot), LogTime(500));
    assert_eq!(clock.stamp(boot + Duration::from_nanos(30)), LogTime(530));
    assert_eq!(clock.stamp(boot + Duration::from_nanos(10)), LogTime(530), "never back");
    assert_eq!(clock.stamp(Instant(0)), LogTime(530));
    assert_eq!(clock.stamp(Instant(u64::MAX)).0, u64::MAX - 7_000_000 + 500);
}

#[test]
fn envelopes_come_back_as_they_were_written() {
    let session = SessionId(9);
    let acts = [
        Act::Plain,
        Act::Open,
        Act::Keep { session, acknowledged_through: 4 },
        Act::Call { session, sequence: 5, acknowledged_through: 4 },
        Act::Call { session, sequence: u64::MAX - 1, acknowledged_through: u64::MAX },
        Act::Close { session },
    ];
    for act in acts {
        let envelope = Envelope { time: LogTime(3), act };
        let payload = [&envelope.encode()[..], b"command"].concat();
        assert_eq!(Envelope::decode(&payload), Ok((envelope, &b"command"[..])));
    }
}

#[test]
fn the_bytes_of_an_envelope_are_these() {
    let act = Act::Call { session: SessionId(0x0102), sequence: 3, acknowledged_through: 2 };
    let bytes = Envelope { time: LogTime(0xaabb), act }.encode();
    let golden = "bbaa000000000000\
                  0201000000000000\
                  0300000000000000\
                  0200000000000000";
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
}

#[test]
fn a_torn_envelope_is_refused_at_every_length() {
    let act = Act::Call { session: SessionId(1), sequence: 1, acknowledged_through: 0 };
    let bytes = Envelope { time: LogTime(1), act }.encode();
    for len in 0..ENVELOPE_LEN {
        assert_eq!(Envelope::decode(&bytes[..len]), Err(EnvelopeError::Short { len }));
    }
    let mut without_session = bytes;
    without_session[8] = 0;
    without_session[16] = 2;
    assert_eq!(Envelope::decode(&without_session), Err(EnvelopeError::NoSession { sequence: 2 }));
}

/// A table after a few hundred random entries equals its decoded stored form, and goes on equally.
#[test]
fn a_table_equals_its_stored_form() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut table = SessionTable::new(SMALL);
        let mut at = 0;
        for index in 1..300 {
            at += random.below(5);
            random_entry(&mut table, &mut random, index, at);
            let decoded = SessionTable::decode(&stored(&table)).unwrap();
            assert_eq!(decoded, table, "seed {seed}, index {index}");
        }
    }
}

fn random_entry(table: &mut SessionTable, random: &mut Random, index: u64, at: u64) {
    let open: Vec<SessionId> = table.sessions.keys().copied().collect();
    let pick = random.below(open.len() as u64 + 1);
    let Some(&session) = open.get(usize::try_from(pick).unwrap()) else {
        table.admit(Index(index), &Envelope { time: seconds(at), act: Act::Open });
        return;
    };
    let acknowledged = table.sessions[&session].acknowledged_through + random.below(2);
    let sequence = acknowledged + 1 + random.below(5);
    let reply = vec![7; usize::try_from(random.below(10)).unwrap()];
    run(table, call(session, sequence, acknowledged, at), &reply);
}

#[test]
fn a_damaged_table_is_refused_or_is_another_valid_table() {
    let (mut table, session) = one_session();
    open(&mut table, 2, 5);
    run(&mut table, call(session, 1, 0, 5), b"one");
    run(&mut table, call(session, 3, 0, 5), b"123456789");
    let bytes = stored(&table);
    for len in 0..bytes.len() {
        assert_eq!(SessionTable::decode(&bytes[..len]), Err(TableError::Short));
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(SessionTable::decode(&longer), Err(TableError::Trailing { len: 1 }));
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
        damaged[at] = random.next().to_le_bytes()[0];
        if let Ok(other) = SessionTable::decode(&damaged) {
            assert_eq!(stored(&other), damaged, "one state, one stored form");
        }
    }
}

#[test]
fn arbitrary_bytes_are_decoded_without_harm() {
    let mut random = Random::new(11);
    for _ in 0..20_000 {
        let len = usize::try_from(random.below(200)).unwrap();
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
        if let Ok((envelope, _)) = Envelope::decode(&bytes) {
            assert_eq!(envelope.encode()[..8], bytes[..8]);
        }
        SessionTable::decode(&bytes).unwrap_err();
        if let Some(version) = bytes.first_chunk_mut() {
            *version = VERSION.to_le_bytes();
        }
        SessionTable::decode(&bytes).unwrap_err();
    }
}
