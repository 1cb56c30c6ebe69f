//! The path of a replicated byte allocates nothing.
#![expect(unsafe_code, reason = "counts allocations")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "it/place.rs"]
mod place;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use base::{Durability, Incarnation, MemberId};
use fabric::shm::{Config, Shm};
use fabric::{
    Access, Completion, Fabric, FabricEvent, Piece, Qp, Remote, Request, Status, WorkRequest,
};

use place::Place;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn shm(place: &Place, member: u32) -> Shm {
    let config = Config {
        dir: place.path().to_owned(),
        member: MemberId(member),
        incarnation: Incarnation(1),
        may_kill_writers: false,
    };
    let mut shm = Shm::create(config).unwrap();
    shm.attach(&place.file(&format!("{member}.region"), 65536), Durability::Process).unwrap();
    shm
}

fn connect(leader: &mut Shm, voter: &mut Shm) -> (Qp, Qp) {
    leader.connect(MemberId(2));
    let (mut ours, mut theirs) = (None, None);
    let mut bytes = Vec::new();
    while ours.is_none() || theirs.is_none() {
        if let Some(FabricEvent::Connected { qp, .. }) = leader.next_event(&mut bytes) {
            ours = Some(qp);
        }
        if let Some(FabricEvent::Connected { qp, .. }) = voter.next_event(&mut bytes) {
            theirs = Some(qp);
        }
    }
    (ours.unwrap(), theirs.unwrap())
}

/// Goal: posting, polling, messages and events allocate nothing in `process` mode. Method: count
/// the allocations of this thread over many rounds, after one that opens the windows.
#[test]
fn posting_and_polling_do_not_allocate() {
    let place = Place::new("no-allocation");
    let (mut leader, mut voter) = (shm(&place, 1), shm(&place, 2));
    let (qp, from_leader) = connect(&mut leader, &mut voter);
    let region = fabric::RegionId(0);
    let log = voter.register(region, 0..32768, Access::Write(from_leader)).unwrap();
    let page = voter.register(region, 32768..65536, Access::Read).unwrap();
    let mut bytes = Vec::with_capacity(4096);
    let mut round = |offset: u64| {
        let local = Piece::Local { region, offset: 0, len: 1000 };
        let pieces = &[Piece::Inline(b"header"), local];
        let to = Remote { key: log, offset };
        let chain = [
            WorkRequest { id: 1, request: Request::Write { pieces, to } },
            WorkRequest {
                id: 2,
                request: Request::ReadWord { from: Remote { key: page, offset: 0 } },
            },
            WorkRequest { id: 3, request: Request::Send { bytes: b"a message" } },
        ];
        leader.post(qp, &chain).unwrap();
        let mut done = [Completion { qp, id: 0, status: Status::Flushed, word: 0 }; 4];
        assert_eq!(leader.poll(&mut done), 1);
        assert_eq!(done[0].status, Status::Ok);
        let received = voter.next_event(&mut bytes);
        assert_eq!(received, Some(FabricEvent::Received { qp: from_leader }));
        leader.next_event(&mut bytes);
    };
    round(0);
    let before = COUNT.get();
    (0..1000).for_each(|at| round(at * 8));
    assert_eq!(COUNT.get(), before);
}
