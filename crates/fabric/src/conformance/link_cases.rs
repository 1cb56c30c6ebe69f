//! Queue pairs and messages.

use super::script::{A, B, C, Script, read_word, send};
use super::{Harness, Outcome};
use crate::{Fabric, FabricEvent, PostError, Qp};

pub(super) fn both_sides_connect_and_greet<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = (script.harness.member(A), script.harness.member(B));
    script.fabric(A).set_greeting(b"of A");
    script.fabric(B).set_greeting(b"of B");
    script.fabric(A).connect(b);
    assert_eq!(script.connected(A, b).1, b"of B");
    assert_eq!(script.connected(B, a).1, b"of A");
    Outcome::Passed
}

pub(super) fn asking_twice_makes_one_queue_pair<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let b = script.harness.member(B);
    script.fabric(A).connect(b);
    let (qp, _) = script.connect(A, B);
    script.fabric(A).connect(b);
    script.idle();
    assert_eq!(script.told(A), [], "no second Connected, no Disconnected");
    assert_eq!(script.post(A, qp, &[send(1, b"still there")]), Ok(()));
    Outcome::Passed
}

pub(super) fn both_may_ask_at_once<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = (script.harness.member(A), script.harness.member(B));
    script.fabric(A).connect(b);
    script.fabric(B).connect(a);
    let (at_a, at_b) = (script.connected(A, b).0, script.connected(B, a).0);
    assert_eq!(script.post(A, at_a, &[send(1, b"hello")]), Ok(()));
    assert_eq!(script.received(B, at_b), b"hello");
    script.idle();
    assert_eq!((script.told(A), script.told(B)), (&[][..], &[][..]));
    Outcome::Passed
}

pub(super) fn messages_arrive_whole_and_in_order<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let longest = vec![7; script.fabric(A).caps().message_max as usize];
    for round in 0..20_u8 {
        assert_eq!(script.post(A, a, &[send(1, &[round]), send(2, b"")]), Ok(()));
        assert_eq!(script.post(A, a, &[send(3, &longest)]), Ok(()));
        assert_eq!(script.received(B, b), [round]);
        assert_eq!(script.received(B, b), b"");
        assert_eq!(script.received(B, b), longest);
    }
    assert_eq!(script.done(A), [], "a SEND that worked is not signaled");
    Outcome::Passed
}

pub(super) fn a_full_queue_of_messages_refuses_more<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let mut accepted = 0_u64;
    let refused = loop {
        match script.post(A, a, &[send(accepted, &accepted.to_le_bytes())]) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 1 << 20, "a queue without a limit");
    };
    assert_eq!(refused, PostError::Full);
    for number in 0..accepted {
        assert_eq!(script.received(B, b), number.to_le_bytes());
    }
    assert_eq!(script.post(A, a, &[send(1, b"again")]), Ok(()));
    assert_eq!(script.received(B, b), b"again");
    Outcome::Passed
}

pub(super) fn a_message_that_is_too_long_is_refused<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    let long = vec![0; script.fabric(A).caps().message_max as usize + 1];
    let posted = script.post(A, a, &[send(1, b"first"), send(2, &long)]);
    assert!(matches!(posted, Err(PostError::Invalid(_))));
    assert_eq!(script.post(A, a, &[send(1, b"second")]), Ok(()));
    assert_eq!(script.received(B, b), b"second", "nothing of the refused chain was sent");
    Outcome::Passed
}

pub(super) fn a_ring_is_told_once_and_to_the_right_one<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    script.connect(A, C);
    script.fabric(A).ring(a);
    script.expect(B, "rang", |told| (told.0 == FabricEvent::Rang { qp: b }).then_some(()));
    script.idle();
    assert_eq!((script.told(B), script.told(C)), (&[][..], &[][..]));
    Outcome::Passed
}

pub(super) fn a_dropped_queue_pair_is_told_and_takes_no_work<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    script.fabric(A).disconnect(a);
    assert!(!script.disconnected(B, b), "the peer is alive");
    let lost = Err(PostError::NotConnected(a));
    assert_eq!(script.post(A, a, &[send(1, b"late")]), lost);
    assert_eq!(script.post(B, b, &[send(1, b"late")]), Err(PostError::NotConnected(b)));
    script.idle();
    assert_eq!((script.told(A), script.told(B)), (&[][..], &[][..]));
    Outcome::Passed
}

pub(super) fn a_reconnect_has_another_handle_and_no_old_messages<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let (a, b) = script.connect(A, B);
    assert_eq!(script.post(A, a, &[send(1, b"old")]), Ok(()));
    script.fabric(A).disconnect(a);
    let (new_a, new_b) = script.connect(A, B);
    assert!(new_a != a && new_b != b);
    assert_eq!(script.post(A, new_a, &[send(1, b"new")]), Ok(()));
    assert_eq!(script.received(B, new_b), b"new");
    assert_eq!(script.post(A, a, &[send(1, b"stale")]), Err(PostError::NotConnected(a)));
    Outcome::Passed
}

pub(super) fn an_unknown_queue_pair_takes_no_work<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    script.connect(A, B);
    for qp in [Qp(0), Qp(u64::MAX)] {
        assert_eq!(script.post(A, qp, &[send(1, b"x")]), Err(PostError::NotConnected(qp)));
        script.fabric(A).disconnect(qp);
        script.fabric(A).ring(qp);
    }
    Outcome::Passed
}

pub(super) fn work_in_flight_of_a_dropped_queue_pair_is_not_delivered<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let (a, _) = script.connect(A, B);
    let page = script.register_page(B);
    let chain: Vec<_> = (0..8).map(|id| read_word(id, page, 0)).collect();
    assert_eq!(script.post(A, a, &chain), Ok(()));
    script.fabric(A).disconnect(a);
    let (again, _) = script.connect(A, B);
    assert_eq!(script.post(A, again, &[read_word(9, page, 0)]), Ok(()));
    let completion = script.completions(A, 1)[0];
    assert_eq!((completion.qp, completion.id), (again, 9));
    Outcome::Passed
}
