//! The store by example. Log time is in nanoseconds, as it is everywhere.

mod checkpoint;
mod codec;
mod model;

use base::Index;
use replica::machine::{Committed, LogTime, Replies, StateMachine};

use crate::{
    Batch, Command, Compare, Condition, ENTRY_OVERHEAD_BYTES, EXPIRIES_PER_ENTRY_MAX, Fault, Found,
    KEY_BYTES_MAX, Query, Refusal, Reply, SCAN_ENTRIES_MAX, Store, VALUE_BYTES_MAX, Write,
    WriteResult,
};

const ROOMY: u64 = 1 << 30;

/// A store and the bytes of its last reply.
struct Member {
    store: Store,
    reply: Vec<u8>,
}

impl Member {
    fn new() -> Self {
        Self::with_limit(ROOMY)
    }

    fn with_limit(state_bytes_max: u64) -> Self {
        Self { store: Store::new(state_bytes_max), reply: Vec::new() }
    }

    /// Applies `bytes` as the next entry, at log time `at`.
    fn apply_bytes(&mut self, at: u64, bytes: &[u8]) -> Reply<'_> {
        let index = self.store.applied().0.next();
        let mut replies = Replies::new();
        let committed = Committed { index, time: LogTime(at), command: bytes };
        self.store.apply(&[committed], &mut replies);
        assert_eq!(replies.len(), 1);
        self.reply = replies.at(0).unwrap().to_vec();
        self.store.entries.assert_invariants();
        Reply::decode(&self.reply).unwrap()
    }

    fn batch(&mut self, at: u64, batch: Batch<'_>) -> Reply<'_> {
        let bytes = encoded(&Command::Batch(batch));
        self.apply_bytes(at, &bytes)
    }

    fn write(&mut self, at: u64, write: Write<'_>) -> Reply<'_> {
        self.batch(at, Batch { writes: vec![write], ..Batch::default() })
    }

    fn put(&mut self, key: &str, value: &str) {
        let (_, time) = self.store.applied();
        let reply = self.write(time.0, put(key, value, 0));
        assert!(matches!(reply, Reply::Done { held: true, .. }), "{reply:?}");
    }

    fn query(&mut self, query: Query<'_>) -> Reply<'_> {
        let mut bytes = Vec::new();
        query.encode(&mut bytes).unwrap();
        self.reply.clear();
        self.store.read(&bytes, &mut self.reply);
        Reply::decode(&self.reply).unwrap()
    }

    fn get(&mut self, key: &str) -> Option<Found<'_>> {
        let Reply::Value(found) = self.query(Query::Get { key: key.as_bytes() }) else {
            panic!("a get gives a value")
        };
        found
    }

    fn value(&mut self, key: &str) -> Option<String> {
        self.get(key).map(|found| String::from_utf8(found.value.to_vec()).unwrap())
    }

    /// Keys of a page and where it goes on, as text.
    fn page(&mut self, from: &str, to: Option<&str>, limit: u32) -> (String, Option<String>) {
        let scan = Query::Scan { from: from.as_bytes(), to: to.map(str::as_bytes), limit };
        let Reply::Page(page) = self.query(scan) else { panic!("a scan gives a page") };
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        let keys: Vec<String> = page.entries.iter().map(|(key, _)| text(key)).collect();
        (keys.join(" "), page.next.map(text))
    }
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes).unwrap();
    bytes
}

fn put<'a>(key: &'a str, value: &'a str, ttl_ns: u64) -> Write<'a> {
    Write::Put { key: key.as_bytes(), value: value.as_bytes(), ttl_ns }
}

fn delete(key: &str) -> Write<'_> {
    Write::Delete { key: key.as_bytes() }
}

fn increment(key: &str, by: i64) -> Write<'_> {
    Write::Increment { key: key.as_bytes(), by }
}

fn compare<'a>(key: &'a str, condition: Condition<'a>) -> Compare<'a> {
    Compare { key: key.as_bytes(), condition }
}

fn done(results: &[WriteResult]) -> Reply<'static> {
    Reply::Done { held: true, results: results.to_vec(), reads: Vec::new() }
}

#[test]
fn a_value_put_is_the_value_read_until_it_is_deleted() {
    let mut member = Member::new();
    assert_eq!(member.write(7, put("k", "v", 0)), done(&[WriteResult::Put { existed: false }]));
    let found = Found { value: b"v", revision: Index(1), ttl_ns: 0 };
    assert_eq!(member.get("k"), Some(found));
    assert_eq!(member.write(7, put("k", "w", 0)), done(&[WriteResult::Put { existed: true }]));
    assert_eq!(member.value("k"), Some("w".to_owned()));
    assert_eq!(member.write(8, delete("k")), done(&[WriteResult::Deleted { existed: true }]));
    assert_eq!(member.write(8, delete("k")), done(&[WriteResult::Deleted { existed: false }]));
    assert_eq!(member.get("k"), None);
    assert_eq!(member.store.state_bytes(), 0);
    assert_eq!(member.store.applied(), (Index(4), LogTime(8)));
}

#[test]
fn compare_and_set_succeeds_once_and_shows_the_loser_what_is_there() {
    let mut member = Member::new();
    member.put("lock", "free");
    let take = |owner| Batch {
        compares: vec![compare("lock", Condition::Equals(b"free"))],
        writes: vec![put("lock", owner, 0)],
        reads: vec![b"lock"],
    };

    let Reply::Done { held, results, reads } = member.batch(1, take("ann")) else { panic!() };
    assert!(held);
    assert_eq!(results, [WriteResult::Put { existed: true }]);
    assert_eq!(reads[0].unwrap().value, b"free", "reads are from before the writes");

    let Reply::Done { held, results, reads } = member.batch(2, take("bob")) else { panic!() };
    assert!(!held);
    assert_eq!(results, []);
    assert_eq!(reads[0].unwrap().value, b"ann");
    assert_eq!(member.value("lock"), Some("ann".to_owned()));
}

#[test]
fn a_revision_notices_even_a_write_of_the_same_value() {
    let mut member = Member::new();
    member.put("k", "v");
    let watched = member.get("k").unwrap().revision;
    member.put("k", "v");
    let transaction = Batch {
        compares: vec![compare("k", Condition::Revision(watched))],
        writes: vec![put("k", "mine", 0)],
        reads: vec![],
    };
    let Reply::Done { held, .. } = member.batch(0, transaction) else { panic!() };
    assert!(!held);
    let absent = Batch {
        compares: vec![compare("other", Condition::Revision(Index(0)))],
        ..Batch::default()
    };
    let Reply::Done { held, .. } = member.batch(0, absent) else { panic!() };
    assert!(held, "revision 0 is absent");
}

#[test]
fn a_batch_with_several_compares_needs_all_of_them() {
    let mut member = Member::new();
    member.put("a", "1");
    let batch = |second| Batch {
        compares: vec![compare("a", Condition::Present), second],
        writes: vec![put("c", "3", 0), delete("a")],
        reads: vec![],
    };
    let Reply::Done { held, .. } = member.batch(0, batch(compare("b", Condition::Present))) else {
        panic!()
    };
    assert!(!held);
    assert_eq!(member.value("c"), None);
    let Reply::Done { held, .. } = member.batch(0, batch(compare("b", Condition::Absent))) else {
        panic!()
    };
    assert!(held);
    assert_eq!(member.page("", None, 10), ("c".to_owned(), None));
}

#[test]
fn increments_count_from_zero_and_see_the_writes_before_them() {
    let mut member = Member::new();
    let batch = Batch {
        writes: vec![increment("n", 5), increment("n", -7), put("m", "40", 0), increment("m", 2)],
        ..Batch::default()
    };
    let expected = [
        WriteResult::Incremented { now: 5 },
        WriteResult::Incremented { now: -2 },
        WriteResult::Put { existed: false },
        WriteResult::Incremented { now: 42 },
    ];
    assert_eq!(member.batch(0, batch), done(&expected));
    assert_eq!(member.value("n"), Some("-2".to_owned()));
    assert_eq!(member.value("m"), Some("42".to_owned()));
}

#[test]
fn a_failed_increment_undoes_its_whole_batch() {
    let mut member = Member::new();
    member.put("text", "abc");
    member.put("padded", "007");
    member.put("full", "9223372036854775807");
    let before = member.store.digest();
    let batch = |bad| Batch { writes: vec![put("new", "x", 0), bad], ..Batch::default() };
    let refused = Reply::Refused(Refusal::NotAnInteger { write: 1 });
    assert_eq!(member.batch(0, batch(increment("text", 1))), refused);
    assert_eq!(member.batch(0, batch(increment("padded", 1))), refused);
    let overflow = Reply::Refused(Refusal::Overflow { write: 1 });
    assert_eq!(member.batch(0, batch(increment("full", 1))), overflow);
    assert_eq!(member.value("new"), None);
    assert_eq!(member.store.digest(), before);
}

#[test]
fn a_value_lives_until_its_log_time_has_come() {
    let mut member = Member::new();
    member.write(100, put("k", "v", 50));
    assert_eq!(member.store.next_expiry(), Some(LogTime(150)));
    member.store.advance(Index(2), LogTime(149));
    assert_eq!(member.get("k").unwrap().ttl_ns, 1);
    member.store.advance(Index(3), LogTime(150));
    assert_eq!(member.get("k"), None);
    assert_eq!(member.store.next_expiry(), None);
    assert_eq!(member.store.state_bytes(), 0);
}

#[test]
fn an_expired_key_is_absent_to_every_operation_of_the_entry_that_meets_it() {
    let mut member = Member::new();
    member.write(0, put("k", "5", 10));
    let batch = Batch {
        compares: vec![
            compare("k", Condition::Absent),
            compare("k", Condition::Revision(Index(0))),
        ],
        writes: vec![increment("k", 1), delete("k")],
        reads: vec![b"k"],
    };
    let results = vec![WriteResult::Incremented { now: 1 }, WriteResult::Deleted { existed: true }];
    assert_eq!(member.batch(10, batch), Reply::Done { held: true, results, reads: vec![None] });
}

#[test]
fn an_increment_keeps_the_time_to_live_and_a_put_sets_it_anew() {
    let mut member = Member::new();
    member.write(0, put("k", "1", 100));
    member.write(50, increment("k", 1));
    assert_eq!(member.get("k").unwrap().ttl_ns, 50);
    member.write(60, put("k", "1", 100));
    assert_eq!(member.get("k").unwrap().ttl_ns, 100);
    member.write(70, put("k", "1", 0));
    assert_eq!(member.get("k").unwrap().ttl_ns, 0);
    member.write(80, put("k", "1", u64::MAX));
    assert_eq!(member.get("k").unwrap().ttl_ns, 0, "longer than time itself");
}

#[test]
fn a_wave_of_expiries_is_absent_at_once_and_removed_entry_by_entry() {
    let mut member = Member::new();
    for key in 0..EXPIRIES_PER_ENTRY_MAX + 10 {
        member.write(0, put(&format!("{key:04}"), "v", 5));
    }
    member.put("z", "stays");
    member.store.advance(member.store.applied().0.next(), LogTime(5));
    assert_eq!(member.page("", None, 100), ("z".to_owned(), None));
    assert_eq!(member.store.entries.accounts().0, 11, "ten are yet to be removed");
    assert_eq!(member.write(5, put("0137", "w", 0)), done(&[WriteResult::Put { existed: false }]));
    assert_eq!(member.store.entries.accounts().0, 2);
}

#[test]
fn log_time_does_not_go_back_with_an_entry_that_claims_it() {
    let mut member = Member::new();
    member.write(100, put("k", "v", 10));
    member.write(50, put("l", "v", 10));
    assert_eq!(member.get("l").unwrap().ttl_ns, 10);
}

#[test]
fn a_scan_goes_on_where_its_page_ended() {
    let mut member = Member::new();
    for key in ["a", "b", "c", "d", "e"] {
        member.put(key, "v");
    }
    assert_eq!(member.page("", None, 2), ("a b".to_owned(), Some("c".to_owned())));
    assert_eq!(member.page("c", None, 2), ("c d".to_owned(), Some("e".to_owned())));
    assert_eq!(member.page("e", None, 2), ("e".to_owned(), None));
    assert_eq!(member.page("b", Some("d"), 10), ("b c".to_owned(), None));
    assert_eq!(member.page("b", Some("d"), 2), ("b c".to_owned(), None));
    assert_eq!(member.page("bb", Some("dd"), 1), ("c".to_owned(), Some("d".to_owned())));
    assert_eq!(member.page("x", None, 1), (String::new(), None));
    assert_eq!(member.page("d", Some("b"), 1), (String::new(), None));
    assert_eq!(member.page("a", None, 0), ("a".to_owned(), Some("b".to_owned())));
}

#[test]
fn a_page_ends_at_its_bytes_but_never_empty() {
    let mut member = Member::new();
    let large = "x".repeat(700 << 10);
    for key in ["a", "b", "c"] {
        member.put(key, &large);
    }
    assert_eq!(member.page("", None, 10), ("a b".to_owned(), Some("c".to_owned())));
    member.put("a", &"x".repeat(VALUE_BYTES_MAX));
    assert_eq!(member.page("", None, 10), ("a".to_owned(), Some("b".to_owned())));
}

#[test]
fn a_page_has_a_greatest_length_whatever_is_asked() {
    let mut member = Member::new();
    let entries = SCAN_ENTRIES_MAX + 1;
    for first in (0..entries).step_by(1_000) {
        let keys: Vec<String> =
            (first..entries.min(first + 1_000)).map(|key| format!("{key:05}")).collect();
        let writes = keys.iter().map(|key| put(key, "", 0)).collect();
        member.batch(0, Batch { writes, ..Batch::default() });
    }
    let (keys, next) = member.page("", None, u32::MAX);
    assert_eq!(keys.split(' ').count(), 4_096);
    assert_eq!(next, Some("04096".to_owned()));
}

#[test]
fn a_full_store_refuses_growth_and_goes_on_reading_and_deleting() {
    let two_entries = 2 * (1 + 4 + ENTRY_OVERHEAD_BYTES);
    let mut member = Member::with_limit(two_entries);
    member.put("a", "1234");
    member.put("b", "1234");
    let full = Refusal::Full { state_bytes: two_entries, state_bytes_max: two_entries };

    assert_eq!(member.write(0, put("c", "", 0)), Reply::Refused(full));
    assert_eq!(member.write(0, put("a", "12345", 0)), Reply::Refused(full));
    assert_eq!(member.value("a"), Some("1234".to_owned()));
    member.put("a", "4321");
    let swap = Batch { writes: vec![delete("b"), put("c", "1234", 0)], ..Batch::default() };
    assert!(matches!(member.batch(0, swap), Reply::Done { held: true, .. }), "no growth");
    member.write(0, delete("a"));
    member.put("d", "12");
}

#[test]
fn the_limit_is_changed_through_the_log() {
    let mut member = Member::with_limit(0);
    assert!(matches!(member.write(0, put("a", "", 0)), Reply::Refused(Refusal::Full { .. })));
    let raise = encoded(&Command::Limit { state_bytes_max: 1_000 });
    assert_eq!(member.apply_bytes(0, &raise), Reply::LimitSet);
    member.put("a", "1234");
    let lower = encoded(&Command::Limit { state_bytes_max: 1 });
    member.apply_bytes(0, &lower);
    assert_eq!(member.value("a"), Some("1234".to_owned()), "what is there stays");
    member.put("a", "12");
    assert!(matches!(member.write(0, put("a", "123", 0)), Reply::Refused(Refusal::Full { .. })));
}

#[test]
fn values_above_the_reply_limit_are_not_read_back() {
    let mut member = Member::new();
    let large = "x".repeat(VALUE_BYTES_MAX);
    for key in ["a", "b", "c"] {
        member.put(key, &large);
    }
    let two = Batch { reads: vec![b"a", b"b"], ..Batch::default() };
    assert!(matches!(member.batch(0, two), Reply::Done { .. }));
    let three =
        Batch { reads: vec![b"a", b"b", b"c"], writes: vec![delete("a")], ..Batch::default() };
    assert_eq!(member.batch(0, three), Reply::Refused(Refusal::ReadBackTooLarge));
    assert!(member.get("a").is_some(), "nothing was done");
}

#[test]
fn bytes_that_are_no_command_get_a_reply_and_change_nothing() {
    let mut member = Member::new();
    member.put("k", "v");
    let before = member.store.digest();
    let bad = |fault| Reply::Refused(Refusal::BadRequest(fault));
    assert_eq!(member.apply_bytes(0, b""), bad(Fault::Short));
    assert_eq!(member.apply_bytes(0, &[9, 1]), bad(Fault::Version));
    assert_eq!(member.apply_bytes(0, &[1, 9]), bad(Fault::Form));
    let trailing = [encoded(&Command::Limit { state_bytes_max: 5 }), vec![0]].concat();
    assert_eq!(member.apply_bytes(0, &trailing), bad(Fault::Trailing));
    assert_eq!(member.store.digest(), before);
    let mut reply = Vec::new();
    member.store.read(&[1, 7], &mut reply);
    assert_eq!(Reply::decode(&reply), Ok(bad(Fault::Form)));
}

#[test]
fn the_longest_keys_and_values_are_taken() {
    let mut member = Member::new();
    let key = "k".repeat(KEY_BYTES_MAX);
    let value = "v".repeat(VALUE_BYTES_MAX);
    member.put(&key, &value);
    assert_eq!(member.get(&key).unwrap().value.len(), VALUE_BYTES_MAX);
    member.put("", "the empty key is a key");
    assert!(member.get("").is_some());
}

#[test]
fn equal_states_have_equal_digests_whatever_the_way() {
    let mut one = Member::new();
    one.put("a", "1");
    one.put("b", "2");
    let mut other = Member::new();
    other.put("a", "1");
    other.put("b", "2");
    other.put("c", "3");
    assert_ne!(one.store.digest(), other.store.digest());
    other.write(0, delete("c"));
    assert_eq!(one.store.digest(), other.store.digest());
    other.put("b", "2");
    assert_ne!(one.store.digest(), other.store.digest(), "the revision is part of the state");
}

#[test]
fn how_entries_are_cut_into_batches_leaves_no_trace() {
    let commands: Vec<Vec<u8>> = (0..400_u64)
        .map(|n| {
            encoded(&Command::Batch(Batch {
                writes: vec![put(&format!("{}", n * 7 % 300), "v", 1 + n % 50)],
                ..Batch::default()
            }))
        })
        .collect();
    let entries: Vec<Committed<'_>> = (1..)
        .zip(&commands)
        .map(|(n, command)| Committed { index: Index(n), time: LogTime(n / 10), command })
        .collect();
    let mut whole = Store::new(ROOMY);
    let mut replies_whole = Replies::new();
    whole.apply(&entries, &mut replies_whole);
    let mut cut = Store::new(ROOMY);
    let mut replies_cut = Replies::new();
    for batch in entries.chunks(7) {
        cut.apply(batch, &mut replies_cut);
    }
    assert_eq!(whole.digest(), cut.digest());
    assert!(replies_whole.iter().eq(replies_cut.iter()));
}
