//! Peers that stop or die.

use super::script::{A, B, Script, read_word, send, write};
use super::{Harness, Outcome, REGION_LEN, TargetKeys};
use crate::{Fabric, FabricEvent, Key, Piece, Qp, Status};

const NO_TARGET: Outcome = Outcome::Skipped("the harness has no peer that runs by itself");
/// Where a page that anybody may read starts.
const PAGE: u64 = REGION_LEN / 2;

/// Connects A with a fresh target, and takes the keys that it offers.
fn meet<H: Harness>(script: &mut Script<'_, H>) -> Option<(Qp, TargetKeys)> {
    let target = script.harness.start_target()?;
    let qp = script.connect_target(A, target);
    let offer = script.received(A, qp);
    Some((qp, TargetKeys::decode(&offer).expect("a target's first message has its keys")))
}

/// Has the target write into A's memory; the keys it was given.
fn be_written<H: Harness>(script: &mut Script<'_, H>, qp: Qp) -> TargetKeys {
    let keys = TargetKeys { log: script.register_log(A, qp), page: script.register_page(A) };
    script.harness.store(A, PAGE, 4711);
    assert_eq!(script.post(A, qp, &[send(1, &keys.encode())]), Ok(()));
    assert_eq!(script.received(A, qp), 4711_u64.to_le_bytes());
    assert_eq!(script.harness.load(A, 0), u64::from_le_bytes(*b"written!"));
    keys
}

fn is_told_gone<H: Harness>(script: &Script<'_, H>, key: Key) -> bool {
    script.told(A).iter().any(|told| told.0 == FabricEvent::Deregistered { key })
}

pub(super) fn a_stopped_peer_stays_connected_and_writable<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let Some((qp, keys)) = meet(&mut script) else { return NO_TARGET };
    script.harness.stop_target();
    for round in 0..100_u64 {
        let completion =
            script.write(A, qp, (keys.log, round * 8, &round.to_le_bytes()), keys.page);
        assert_eq!(completion.status, Status::Ok);
    }
    script.idle();
    assert_eq!(script.told(A), []);
    script.harness.resume_target();
    be_written(&mut script, qp);
    Outcome::Passed
}

pub(super) fn a_killed_peer_fails_work_and_is_seen_to_have_exited<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let Some((qp, keys)) = meet(&mut script) else { return NO_TARGET };
    script.harness.kill_target();
    let pieces = [Piece::Inline(b"in vain.")];
    let chain = [write(1, &pieces, keys.log, 0), read_word(2, keys.page, 0)];
    assert_eq!(script.post(A, qp, &chain), Ok(()), "nobody has looked yet");
    let done = script.completions(A, 1);
    assert_eq!(done[0].status, Status::PeerGone);
    assert!(script.disconnected(A, qp), "a killed process has exited");
    assert!(script.post(A, qp, &chain).is_err());
    Outcome::Passed
}

pub(super) fn a_stopped_writer_holds_its_own_range_back_and_no_other<H: Harness>(
    harness: &mut H,
) -> Outcome {
    let mut script = Script::new(harness);
    let Some((qp, _)) = meet(&mut script) else { return NO_TARGET };
    let keys = be_written(&mut script, qp);
    let (_, to_b) = script.connect(B, A);
    let other = script.register_log(A, to_b);
    script.harness.stop_target();
    script.fabric(A).deregister(keys.log);
    script.fabric(A).deregister(other);
    script.deregistered(A, other);
    script.fabric(A).disconnect(qp);
    script.idle();
    assert!(!is_told_gone(&script, keys.log), "a stopped writer may be in the middle of a WRITE");
    script.harness.resume_target();
    script.deregistered(A, keys.log);
    Outcome::Passed
}

pub(super) fn a_killed_writer_lets_go<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let Some((qp, _)) = meet(&mut script) else { return NO_TARGET };
    let keys = be_written(&mut script, qp);
    script.harness.stop_target();
    script.fabric(A).deregister(keys.log);
    script.idle();
    assert!(!is_told_gone(&script, keys.log));
    script.harness.kill_target();
    script.deregistered(A, keys.log);
    assert!(script.disconnected(A, qp));
    Outcome::Passed
}

pub(super) fn a_running_writer_lets_go_when_asked<H: Harness>(harness: &mut H) -> Outcome {
    let mut script = Script::new(harness);
    let Some((qp, _)) = meet(&mut script) else { return NO_TARGET };
    let keys = be_written(&mut script, qp);
    script.fabric(A).deregister(keys.log);
    script.deregistered(A, keys.log);
    script.idle();
    assert_eq!(script.told(A), [], "and stays connected");
    Outcome::Passed
}
