//! The engine by example: members that answer as the test says, and a clock that the test moves.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;

const MS: u64 = 1_000_000;

/// What a member was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    member: u32,
    id: u64,
    session: u64,
    sequence: u64,
    acknowledged: u64,
    is_read: bool,
}

#[derive(Debug, Default)]
struct Member {
    answers: VecDeque<Vec<u8>>,
    has_ended: bool,
    is_down: bool,
    is_full: bool,
}

#[derive(Debug, Default)]
struct World {
    asked: Vec<Asked>,
    members: BTreeMap<u32, Member>,
}

#[derive(Clone, Debug)]
struct Scripted(Rc<RefCell<World>>);

#[derive(Debug)]
struct ScriptedWire {
    world: Rc<RefCell<World>>,
    member: u32,
}

impl Network for Scripted {
    type Wire = ScriptedWire;

    fn connect(&mut self, member: MemberId, _timeout: Duration) -> Result<ScriptedWire, String> {
        let mut world = self.0.borrow_mut();
        let state = world.members.entry(member.0).or_default();
        if state.is_down {
            return Err(format!("member {member} does not run"));
        }
        state.has_ended = false;
        Ok(ScriptedWire { world: Rc::clone(&self.0), member: member.0 })
    }
}

impl Wire for ScriptedWire {
    fn send(&mut self, parts: &[&[u8]]) -> bool {
        let bytes = parts.concat();
        let ask = Ask::decode(&bytes).expect("the engine sends asks");
        let (session, sequence, acknowledged, is_read) = match ask.what {
            AskKind::Write { session, sequence, acknowledged_through, .. } => {
                (session, sequence, acknowledged_through, false)
            }
            AskKind::Read { .. } | AskKind::Status | AskKind::Transfer { .. } => (0, 0, 0, true),
        };
        let member = self.member;
        if self.world.borrow_mut().members.entry(member).or_default().is_full {
            return false;
        }
        let asked = Asked { member, id: ask.id, session, sequence, acknowledged, is_read };
        self.world.borrow_mut().asked.push(asked);
        true
    }

    fn flush(&mut self) {}

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, Ended> {
        let mut world = self.world.borrow_mut();
        let member = world.members.entry(self.member).or_default();
        if let Some(answer) = member.answers.pop_front() {
            *into = answer;
            return Ok(true);
        }
        if member.has_ended { Err(Ended) } else { Ok(false) }
    }
}

/// An engine of three members, with a clock.
struct Bench {
    engine: Engine<Scripted>,
    world: Rc<RefCell<World>>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let world = Rc::new(RefCell::new(World::default()));
        let members = [1, 2, 3].map(MemberId);
        let times = (Duration::from_secs(10), Duration::from_millis(500));
        let network = Scripted(Rc::clone(&world));
        let engine = Engine::new(network, &members, GroupId(1), times).expect("three members");
        Self { engine, world, now: Instant(0) }
    }

    /// With an open session.
    fn with_session() -> Self {
        let mut bench = Self::new();
        let id = bench.write();
        let open = bench.last();
        assert_eq!((open.session, open.sequence), (0, OPEN), "a session is opened first");
        bench.answer(&open, AnswerKind::Opened(7));
        let call = bench.last();
        assert_eq!((call.session, call.sequence), (7, 1));
        bench.answer(&call, AnswerKind::Done(b"reply"));
        assert_eq!(bench.engine.take(id), Some(Ok(Reply::Bytes(b"reply".to_vec()))));
        bench
    }

    fn write(&mut self) -> CallId {
        let id = self.engine.begin(Work::Write(b"command".to_vec()), self.now);
        self.poll();
        id
    }

    fn read(&mut self) -> CallId {
        let id = self.engine.begin(Work::Read(b"query".to_vec()), self.now);
        self.poll();
        id
    }

    fn poll(&mut self) {
        self.engine.poll(self.now);
    }

    fn pass(&mut self, ms: u64) {
        self.now = Instant(self.now.0 + ms * MS);
        self.poll();
    }

    /// What was asked last.
    fn last(&self) -> Asked {
        self.world.borrow().asked.last().expect("something was asked").clone()
    }

    fn count(&self) -> usize {
        self.world.borrow().asked.len()
    }

    fn answer(&mut self, asked: &Asked, what: AnswerKind<'_>) {
        let mut bytes = Vec::new();
        let tail = Answer { id: asked.id, what }.head(&mut bytes);
        bytes.extend_from_slice(tail);
        let member = asked.member;
        self.world.borrow_mut().members.entry(member).or_default().answers.push_back(bytes);
        self.poll();
    }

    fn end(&mut self, member: u32) {
        self.world.borrow_mut().members.entry(member).or_default().has_ended = true;
        self.poll();
    }
}

#[test]
fn a_call_goes_to_the_leader_that_is_named() {
    let mut bench = Bench::new();
    let id = bench.read();
    let first = bench.last();
    assert_eq!(first.member, 1, "members are asked in their order");
    bench.answer(&first, AnswerKind::NotLeader(Some(MemberId(3))));
    let second = bench.last();
    assert_eq!(second.member, 3);
    bench.answer(&second, AnswerKind::Done(b"value"));
    assert_eq!(bench.engine.take(id), Some(Ok(Reply::Bytes(b"value".to_vec()))));
    bench.read();
    assert_eq!(bench.last().member, 3, "it is remembered");
}

#[test]
fn a_write_whose_connection_ends_is_repeated_in_its_session_at_another_member() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let first = bench.last();
    bench.end(first.member);
    let second = bench.last();
    assert_ne!(second.member, first.member);
    assert_eq!((second.session, second.sequence), (first.session, first.sequence));
    bench.answer(&second, AnswerKind::Duplicate(b"as before"));
    assert_eq!(bench.engine.take(id), Some(Ok(Reply::Bytes(b"as before".to_vec()))));
}

#[test]
fn a_silent_member_is_passed_over_and_its_late_answer_still_counts() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let first = bench.last();
    bench.pass(499);
    assert_eq!(bench.last(), first, "it has patience");
    bench.pass(2);
    let second = bench.last();
    assert_ne!(second.member, first.member);
    assert_eq!((second.session, second.sequence), (first.session, first.sequence));
    bench.answer(&first, AnswerKind::Done(b"late"));
    assert_eq!(bench.engine.take(id), Some(Ok(Reply::Bytes(b"late".to_vec()))));
    bench.answer(&second, AnswerKind::Duplicate(b"late"));
    assert_eq!(bench.engine.take_any(), None, "the other answer is for nobody");
}

#[test]
fn a_write_that_nobody_took_is_refused_in_the_end() {
    let mut bench = Bench::with_session();
    for member in 1..=3 {
        bench.world.borrow_mut().members.entry(member).or_default().is_down = true;
    }
    bench.end(1);
    let id = bench.write();
    for _ in 0..300 {
        bench.pass(50);
    }
    let ended = bench.engine.take(id).expect("its time is over");
    assert!(matches!(ended, Err(CallError::Refused(_))), "{ended:?}");
}

#[test]
fn a_write_that_somebody_may_have_taken_is_unknown_in_the_end() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let first = bench.last();
    for member in 2..=3 {
        bench.world.borrow_mut().members.entry(member).or_default().is_down = true;
    }
    bench.end(first.member);
    bench.world.borrow_mut().members.entry(first.member).or_default().is_down = true;
    for _ in 0..300 {
        bench.pass(50);
    }
    let ended = bench.engine.take(id).expect("its time is over");
    assert!(matches!(ended, Err(CallError::Unknown(_))), "{ended:?}");
}

#[test]
fn a_read_that_runs_out_of_time_changed_nothing_and_is_refused() {
    let mut bench = Bench::new();
    let id = bench.read();
    bench.pass(10_001);
    let ended = bench.engine.take(id).expect("its time is over");
    assert!(matches!(ended, Err(CallError::Refused(_))), "{ended:?}");
}

#[test]
fn a_session_that_expired_is_replaced_only_if_no_attempt_may_have_been_taken() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let first = bench.last();
    bench.answer(&first, AnswerKind::NotExecuted(NotExecuted::SessionUnknown));
    let open = bench.last();
    assert_eq!((open.session, open.sequence), (0, OPEN), "another one is opened");
    bench.answer(&open, AnswerKind::Opened(9));
    bench.pass(100);
    let second = bench.last();
    assert_eq!((second.session, second.sequence), (9, 1));
    bench.answer(&second, AnswerKind::Unknown);
    bench.pass(100);
    let third = bench.last();
    bench.answer(&third, AnswerKind::NotExecuted(NotExecuted::SessionUnknown));
    let ended = bench.engine.take(id).expect("nobody can tell any more");
    assert!(matches!(ended, Err(CallError::Unknown(_))), "{ended:?}");
}

#[test]
fn what_is_acknowledged_are_calls_that_have_ended() {
    let mut bench = Bench::with_session();
    let (first, second) = (bench.write(), bench.write());
    let asked: Vec<Asked> = bench.world.borrow().asked.iter().rev().take(2).cloned().collect();
    assert_eq!(asked[1].acknowledged, 1, "the call before has ended");
    bench.answer(&asked[0], AnswerKind::Done(b""));
    assert!(bench.engine.take(second).is_some());
    bench.write();
    assert_eq!(bench.last().acknowledged, 1, "an earlier one is still under way");
    bench.answer(&asked[1], AnswerKind::Done(b""));
    assert!(bench.engine.take(first).is_some());
    bench.write();
    assert_eq!(bench.last().acknowledged, 3);
}

#[test]
fn overload_is_waited_out_a_little_longer_each_time() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let (asked, count) = (bench.last(), bench.count());
        bench.answer(&asked, AnswerKind::Overloaded);
        let mut pause = 0;
        while bench.count() == count {
            bench.pass(1);
            pause += 1;
        }
        pauses.push(pause);
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!(pauses.last(), Some(&50));
    let last = bench.last();
    assert_eq!(last.sequence, 2, "it is the same call");
    bench.answer(&last, AnswerKind::Done(b""));
    assert!(bench.engine.take(id).is_some());
}

#[test]
fn a_session_that_was_silent_for_long_is_not_relied_on() {
    let mut bench = Bench::with_session();
    bench.pass(21_000);
    bench.write();
    assert_eq!((bench.last().session, bench.last().sequence), (0, OPEN));
}

#[test]
fn nothing_under_way_needs_no_timer() {
    let mut bench = Bench::with_session();
    assert!(bench.engine.is_idle());
    assert_eq!(bench.engine.wake_at(bench.now), None);
    bench.write();
    let patience = Instant(bench.now.0 + 500 * MS);
    assert_eq!(bench.engine.wake_at(bench.now), Some(patience));
}

#[test]
fn bad_is_bad_at_once() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    let asked = bench.last();
    bench.answer(&asked, AnswerKind::Bad("too long"));
    assert_eq!(bench.engine.take(id), Some(Err(CallError::Bad("too long".to_owned()))));
}

/// A write needs a session first. When no member can be reached to open one, the caller is told
/// that, and not that a write which was never sent found no answer.
#[test]
fn a_write_without_a_session_says_what_keeps_the_session() {
    let mut bench = Bench::new();
    for member in 1..=3 {
        bench.world.borrow_mut().members.entry(member).or_default().is_down = true;
    }
    let id = bench.write();
    for _ in 0..300 {
        bench.pass(50);
    }
    let Some(Err(CallError::Refused(why))) = bench.engine.take(id) else { panic!("it is refused") };
    assert!(why.contains("does not run"), "{why}");
}

/// A stopped leader's ring is full, and the followers do not know yet: their word must not send the
/// client back to it again and again.
#[test]
fn a_member_that_takes_nothing_is_passed_over_whatever_others_say() {
    let mut bench = Bench::with_session();
    bench.world.borrow_mut().members.entry(1).or_default().is_full = true;
    let id = bench.write();
    let mut asked = 0;
    for _ in 0..100 {
        bench.pass(50);
        let last = bench.last();
        if last.member != 1 && bench.count() > asked {
            asked = bench.count();
            let word = if asked < 6 { Some(MemberId(1)) } else { Some(MemberId(3)) };
            if last.member == 3 && asked >= 6 {
                bench.answer(&last, AnswerKind::Done(b"at last"));
                break;
            }
            bench.answer(&last, AnswerKind::NotLeader(word));
        }
    }
    assert_eq!(bench.engine.take(id), Some(Ok(Reply::Bytes(b"at last".to_vec()))));
}

#[test]
fn bad_is_no_word_about_an_earlier_attempt() {
    let mut bench = Bench::with_session();
    let id = bench.write();
    bench.end(bench.last().member);
    let second = bench.last();
    bench.answer(&second, AnswerKind::Bad("too long for this member"));
    let ended = bench.engine.take(id).expect("it has ended");
    assert!(matches!(ended, Err(CallError::Unknown(_))), "{ended:?}");
}

#[test]
fn a_session_that_cannot_be_opened_ends_what_waits_for_it() {
    let mut bench = Bench::new();
    let id = bench.write();
    let open = bench.last();
    bench.answer(&open, AnswerKind::Bad("no sessions here"));
    assert_eq!(bench.engine.take(id), Some(Err(CallError::Bad("no sessions here".to_owned()))));
    assert!(bench.engine.is_idle());
}

#[test]
fn what_no_message_can_hold_is_bad_at_once() {
    let mut bench = Bench::with_session();
    let bytes = vec![0; usize::try_from(MESSAGE_MAX).expect("memory is larger")];
    let id = bench.engine.begin(Work::Write(bytes), bench.now);
    assert!(matches!(bench.engine.take(id), Some(Err(CallError::Bad(_)))));
}
