//! The conformance suite, in every mode that has a path of its own.

use base::Durability;
use fabric::conformance::{Harness, Outcome, REGION_LEN, TargetKeys, cases};
use fabric::shm::KillError;
use fabric::{Access, Fabric, FabricEvent, Key, Request, WorkRequest};

use crate::dekker;
use crate::harness::ShmHarness;

fn run_all(durability: Durability) {
    let cases = cases::<ShmHarness>();
    assert!(cases.len() >= 30);
    for case in cases {
        let mut harness = ShmHarness::new(durability);
        let outcome = (case.run)(&mut harness);
        assert_eq!(outcome, Outcome::Passed, "{} in mode {}", case.name, durability.name());
    }
}

#[test]
fn conforms_in_process_mode() {
    run_all(Durability::Process);
}

#[test]
fn conforms_in_sync_mode() {
    run_all(Durability::Sync);
}

#[test]
fn conforms_in_platform_mode() {
    run_all(Durability::Platform);
}

#[test]
fn no_read_back_passes_its_writes() {
    assert_eq!(dekker::run(300_000, true), 0);
}

/// Goal: the litmus above can fail. Method: the same with the fence taken out, in pieces until it
/// does; an optimized build needs one.
#[test]
fn without_the_fence_read_backs_pass_their_writes() {
    let forbidden = (0..50).map(|_| dekker::run(100_000, false)).find(|&forbidden| forbidden > 0);
    assert!(forbidden.is_some(), "the litmus does not see a missing fence");
}

/// Runs events of endpoint 0 until one is what `find` picks.
fn until<T>(harness: &mut ShmHarness, find: impl Fn(FabricEvent, &[u8]) -> Option<T>) -> T {
    let mut bytes = Vec::new();
    loop {
        let event = harness.fabric(0).next_event(&mut bytes);
        if let Some(found) = event.and_then(|event| find(event, &bytes)) {
            return found;
        }
        harness.pass();
    }
}

/// Goal: a writer that was stopped for good can be ended, on demand, so that its range comes back.
#[test]
fn a_stuck_writer_can_be_killed() {
    let mut harness = ShmHarness::new(Durability::Process);
    let target = harness.start_target().unwrap();
    harness.fabric(0).connect(target);
    let qp = until(&mut harness, |event, _| {
        if let FabricEvent::Connected { qp, .. } = event { Some(qp) } else { None }
    });
    let region = harness.region(0);
    let log = harness.fabric(0).register(region, 0..4096, Access::Write(qp)).unwrap();
    let page = harness.fabric(0).register(region, 4096..REGION_LEN, Access::Read).unwrap();
    let keys = TargetKeys { log, page }.encode();
    let send = WorkRequest { id: 1, request: Request::Send { bytes: &keys } };
    harness.fabric(0).post(qp, &[send]).unwrap();
    until(&mut harness, |_, bytes| (bytes.len() == 8).then_some(()));
    harness.stop_target();
    let too_early = harness.fabric(0).kill_stuck_writer(log);
    assert!(matches!(too_early, Err(KillError::NotStuck(key)) if key == log));
    harness.fabric(0).deregister(log);
    harness.fabric(0).kill_stuck_writer(log).unwrap();
    let gone = until(&mut harness, |event, _| {
        if let FabricEvent::Deregistered { key } = event { Some(key) } else { None }
    });
    assert_eq!(gone, log);
    assert_ne!(gone, Key(0));
}
