//! Each test states one obligation of the verbs model, mostly over many seeds: what must never be
//! seen, and what must be seen in some seed because real hardware shows it.

use std::collections::BTreeSet;

use base::{Durability, Duration, Instant, MemberId};
use fabric::{
    Access, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId, RegisterError,
    Remote, Request, Status, WorkRequest,
};
use pmem::Region;

use super::{FabricOptions, SimFabric};
use crate::memory::{MemoryOptions, SimRegion};
use crate::world::{HostId, SharedWorld, Step, World};

const MEMORY_BYTES: u64 = 32_768;
const WRITER: MemberId = MemberId(1);
const OWNER: MemberId = MemberId(2);

struct Node {
    host: HostId,
    fabric: SimFabric,
    region: SimRegion,
    id: RegionId,
    qp: Qp,
}

/// A writer that is connected to the owner of some memory. `segment` may be written, `control`
/// (the first 64 bytes) may be read.
struct Pair {
    world: SharedWorld,
    writer: Node,
    owner: Node,
    segment: Key,
    control: Key,
}

fn node(world: &SharedWorld, member: MemberId, mode: Durability) -> Node {
    let host = world.borrow_mut().add_host(member);
    let memory = world.borrow_mut().add_memory(host, MEMORY_BYTES, MemoryOptions::of(mode));
    let mut fabric = World::restart(world, host);
    let region = World::region(world, memory);
    let id = fabric.attach(&region);
    Node { host, fabric, region, id, qp: Qp(0) }
}

impl Node {
    fn events(&mut self) -> Vec<(FabricEvent, Vec<u8>)> {
        let mut bytes = Vec::new();
        std::iter::from_fn(|| {
            self.fabric.next_event(&mut bytes).map(|event| (event, bytes.clone()))
        })
        .collect()
    }

    fn completions(&mut self) -> Vec<Completion> {
        let none = Completion { qp: Qp(0), id: 0, status: Status::Ok, word: 0 };
        let mut into = [none; 64];
        let count = self.fabric.poll(&mut into);
        into[..count].to_vec()
    }

    fn ends(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|completion| (completion.id, completion.status)).collect()
    }

    fn send(&mut self, bytes: &[u8]) {
        let chain = [WorkRequest { id: 0, request: Request::Send { bytes } }];
        self.fabric.post(self.qp, &chain).unwrap();
    }
}

fn pair_with(seed: u64, mode: Durability, options: FabricOptions) -> Pair {
    let world = World::shared(seed, options);
    let mut writer = node(&world, WRITER, mode);
    let mut owner = node(&world, OWNER, mode);
    writer.fabric.set_greeting(b"I write");
    owner.fabric.set_greeting(b"I own");
    writer.fabric.connect(OWNER);
    while world.borrow_mut().step() != Step::Idle {}
    let connected = |node: &mut Node| match node.events().as_slice() {
        [(FabricEvent::Connected { qp, .. }, _)] => *qp,
        other => panic!("{other:?}"),
    };
    writer.qp = connected(&mut writer);
    owner.qp = connected(&mut owner);
    let rights = Access::Write(owner.qp);
    let segment = owner.fabric.register(owner.id, 4096..MEMORY_BYTES, rights).unwrap();
    let control = owner.fabric.register(owner.id, 0..64, Access::Read).unwrap();
    Pair { world, writer, owner, segment, control }
}

fn pair(seed: u64, mode: Durability) -> Pair {
    pair_with(seed, mode, FabricOptions::default())
}

impl Pair {
    fn step(&self) -> bool {
        self.world.borrow_mut().step() != Step::Idle
    }

    fn finish(&self) {
        while self.step() {}
    }

    fn steps(&self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Some steps, as many as the world's randomness says.
    fn random_steps(&self, below: u64) {
        let count = self.world.borrow_mut().random().below(below);
        self.steps(count);
    }

    fn to(&self, offset: u64) -> Remote {
        Remote { key: self.segment, offset }
    }

    /// Posts a WRITE of `bytes` at `offset` and a READ of the control word behind it.
    fn append(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), PostError> {
        let pieces = [Piece::Inline(bytes)];
        let write = Request::Write { pieces: &pieces, to: self.to(offset) };
        let read = Request::ReadWord { from: Remote { key: self.control, offset: 0 } };
        let chain =
            [WorkRequest { id: id + 1000, request: write }, WorkRequest { id, request: read }];
        self.writer.fabric.post(self.writer.qp, &chain)
    }

    fn landed(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.owner.region.copy_out(4096 + offset, &mut bytes);
        bytes
    }
}

#[test]
fn both_sides_learn_of_a_queue_pair_and_of_the_other_ones_greeting() {
    let world = World::shared(1, FabricOptions::default());
    let mut one = node(&world, WRITER, Durability::Sync);
    let mut two = node(&world, OWNER, Durability::Sync);
    one.fabric.set_greeting(b"one");
    two.fabric.set_greeting(b"two");
    one.fabric.connect(OWNER);
    two.fabric.connect(WRITER);
    one.fabric.connect(OWNER);
    while world.borrow_mut().step() != Step::Idle {}
    let (at_one, at_two) = (one.events(), two.events());
    assert!(matches!(at_one[..], [(FabricEvent::Connected { peer: OWNER, .. }, _)]), "{at_one:?}");
    assert!(matches!(at_two[..], [(FabricEvent::Connected { peer: WRITER, .. }, _)]));
    assert_eq!((&at_one[0].1[..], &at_two[0].1[..]), (&b"two"[..], &b"one"[..]));
}

#[test]
fn a_good_read_back_proves_that_the_write_before_it_is_placed() {
    for seed in 0..200 {
        let mut pair = pair(seed, Durability::Process);
        pair.owner.region.store(0, 77);
        pair.append(1, 100, &[5; 300]).unwrap();
        while pair.writer.fabric.world_has_no_completion() {
            assert!(pair.step());
        }
        assert_eq!(pair.landed(100, 300), [5; 300], "seed {seed}");
        let completion = pair.writer.completions()[0];
        assert_eq!((completion.id, completion.status, completion.word), (1, Status::Ok, 77));
    }
}

impl SimFabric {
    fn world_has_no_completion(&self) -> bool {
        let world = self.world_for_tests();
        let world = world.borrow();
        world.hosts[self.host().place()].process.completions.is_empty()
    }
}

#[test]
fn lines_of_one_write_land_at_separate_times_and_in_any_order() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let mut pair = pair(seed, Durability::Process);
        pair.append(1, 0, &[5; 128]).unwrap();
        while pair.step() {
            let bytes = pair.landed(0, 128);
            seen.insert((bytes[0], bytes[127]));
        }
    }
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 5), (5, 0), (5, 5)]));
}

#[test]
fn a_later_write_lands_after_all_of_an_earlier_one() {
    for seed in 0..200 {
        let mut pair = pair(seed, Durability::Process);
        pair.append(1, 0, &[1; 500]).unwrap();
        pair.append(2, 1000, &[2; 500]).unwrap();
        while pair.step() {
            if pair.landed(1000, 500).contains(&2) {
                assert_eq!(pair.landed(0, 500), [1; 500], "seed {seed}");
            }
        }
    }
}

#[test]
fn a_good_read_back_in_a_durable_mode_proves_durability() {
    for mode in [Durability::Sync, Durability::ReadBack, Durability::Flush, Durability::TargetCpu] {
        for seed in 0..100 {
            let mut pair = pair(seed, mode);
            pair.append(1, 30, &[5; 300]).unwrap();
            while pair.writer.fabric.world_has_no_completion() {
                assert!(pair.step());
            }
            let owner = pair.owner.host;
            pair.world.borrow_mut().power_cut(owner);
            assert_eq!(pair.landed(30, 300), [5; 300], "{mode:?} seed {seed}");
        }
    }
}

#[test]
fn placed_is_not_durable() {
    for mode in [Durability::Sync, Durability::ReadBack] {
        let lost = (0..100).filter(|seed| {
            let mut pair = pair(*seed, mode);
            pair.append(1, 0, &[5; 64]).unwrap();
            while pair.landed(0, 64) != [5; 64] {
                assert!(pair.step());
            }
            let owner = pair.owner.host;
            pair.world.borrow_mut().power_cut(owner);
            pair.landed(0, 64) != [5; 64]
        });
        assert!(lost.count() > 10, "{mode:?}: a cut between landing and flush loses lines");
    }
}

#[test]
fn a_failed_sync_answers_remote_sync_and_breaks_the_queue_pair() {
    let mut pair = pair(3, Durability::Sync);
    let memory = pair.owner.region.memory();
    pair.world.borrow_mut().memory(memory).fail_syncs(1);
    pair.append(1, 0, &[5; 64]).unwrap();
    pair.append(2, 64, &[5; 64]).unwrap();
    pair.finish();
    let ends = pair.writer.ends();
    assert_eq!(ends, [(1, Status::RemoteSync), (1002, Status::Flushed), (2, Status::Flushed)]);
    assert!(matches!(pair.writer.events()[..], [(FabricEvent::Disconnected { .. }, _)]));
    assert!(matches!(pair.owner.events()[..], [(FabricEvent::Disconnected { .. }, _)]));
    assert!(pair.owner.region.durable().is_err(), "the owner learns of its failed sync too");
}

#[test]
fn a_disconnect_follows_the_completions_of_its_queue_pair() {
    let mut pair = pair(3, Durability::Process);
    pair.append(1, MEMORY_BYTES, &[5; 64]).unwrap();
    pair.finish();
    assert_eq!(pair.writer.events(), []);
    assert_eq!(pair.writer.ends(), [(1001, Status::RemoteAccess), (1, Status::Flushed)]);
    assert_eq!(pair.writer.events().len(), 1);
    assert_eq!(pair.append(2, 0, &[5; 64]), Err(PostError::NotConnected(pair.writer.qp)));
}

#[test]
fn rights_keys_and_ranges_are_checked_where_the_memory_is() {
    let wrong = |choose: fn(&Pair) -> Remote| {
        let mut pair = pair(3, Durability::Process);
        let pieces = [Piece::Inline(&[9; 8])];
        let request = Request::Write { pieces: &pieces, to: choose(&pair) };
        pair.writer.fabric.post(pair.writer.qp, &[WorkRequest { id: 1, request }]).unwrap();
        pair.finish();
        assert_eq!(pair.owner.region.load(0), 0);
        pair.writer.ends()
    };
    let refused = [(1, Status::RemoteAccess)];
    assert_eq!(wrong(|pair| Remote { key: pair.control, offset: 0 }), refused);
    assert_eq!(wrong(|_| Remote { key: Key(0), offset: 0 }), refused);
    assert_eq!(wrong(|_| Remote { key: Key(99), offset: 0 }), refused);
    assert_eq!(wrong(|pair| pair.to(u64::MAX - 3)), refused);
    assert_eq!(wrong(|pair| pair.to(MEMORY_BYTES - 4096 - 7)), refused);
    assert_eq!(wrong(|pair| pair.to(MEMORY_BYTES - 4096 - 8)), []);
}

#[test]
fn a_segment_of_one_queue_pair_is_closed_to_every_other() {
    let pair = pair(3, Durability::Process);
    let mut third = node(&pair.world, MemberId(3), Durability::Process);
    third.fabric.connect(OWNER);
    pair.finish();
    let Some((FabricEvent::Connected { qp, .. }, _)) = third.events().pop() else {
        panic!("not connected");
    };
    let pieces = [Piece::Inline(&[9; 8])];
    let write = Request::Write { pieces: &pieces, to: pair.to(0) };
    third.fabric.post(qp, &[WorkRequest { id: 1, request: write }]).unwrap();
    pair.finish();
    assert_eq!(third.ends(), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.landed(0, 8), [0; 8]);
}

#[test]
fn local_pieces_are_read_when_the_request_goes_onto_the_wire() {
    let mut pair = pair(3, Durability::Process);
    pair.writer.region.copy_in(0, b"early");
    let local = Piece::Local { region: pair.writer.id, offset: 0, len: 5 };
    let pieces = [Piece::Inline(b"it is "), local];
    let request = Request::Write { pieces: &pieces, to: pair.to(3) };
    pair.writer.fabric.post(pair.writer.qp, &[WorkRequest { id: 1, request }]).unwrap();
    pair.writer.region.copy_in(0, b"later");
    pair.finish();
    assert_eq!(pair.landed(3, 11), b"it is later");
}

#[test]
fn a_read_copies_the_peers_bytes_into_local_memory() {
    let mut pair = pair(3, Durability::Process);
    let all = pair.owner.fabric.register(pair.owner.id, 0..MEMORY_BYTES, Access::Read).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    pair.owner.region.copy_in(7000, &bytes);
    let from = Remote { key: all, offset: 7000 };
    let request = Request::Read { from, into: (pair.writer.id, 11), len: 1000 };
    pair.writer.fabric.post(pair.writer.qp, &[WorkRequest { id: 4, request }]).unwrap();
    pair.finish();
    assert_eq!(pair.writer.ends(), [(4, Status::Ok)]);
    let mut copied = vec![0; 1000];
    pair.writer.region.copy_out(11, &mut copied);
    assert_eq!(copied, bytes);
}

#[test]
fn a_word_is_sampled_before_and_delivered_after_anything_else() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let mut pair = pair(seed, Durability::Process);
        pair.append(1, 0, &[5; 8]).unwrap();
        let mut time = 0;
        while pair.writer.fabric.world_has_no_completion() {
            time += 1;
            pair.owner.region.store(0, time);
            assert!(pair.step());
        }
        seen.insert(time - pair.writer.completions()[0].word);
    }
    assert!(!seen.contains(&0), "a sample and its delivery are different moments");
    assert!(seen.contains(&1));
}

#[test]
fn a_read_that_is_executed_again_returns_the_newer_word() {
    let often = FabricOptions { reexecute_one_in: 2, ..FabricOptions::default() };
    let never = FabricOptions { reexecute_one_in: 0, ..FabricOptions::default() };
    let newest = |options| {
        let last = (0..50).map(|seed| {
            let mut pair = pair_with(seed, Durability::Process, options);
            pair.append(1, 0, &[5; 8]).unwrap();
            let landed_at = loop {
                pair.step();
                if pair.landed(0, 8) == [5; 8] {
                    break pair.world.borrow().events();
                }
            };
            while pair.writer.fabric.world_has_no_completion() {
                let events = pair.world.borrow().events();
                pair.owner.region.store(0, events - landed_at);
                assert!(pair.step());
            }
            pair.writer.completions()[0].word
        });
        last.max().unwrap()
    };
    assert!(newest(never) < newest(often));
}

#[test]
fn messages_arrive_in_order_and_whole() {
    for seed in 0..50 {
        let mut pair = pair(seed, Durability::Process);
        for number in 0..100_u8 {
            pair.writer.send(&[number; 33]);
            pair.random_steps(4);
        }
        pair.finish();
        let received: Vec<Vec<u8>> =
            pair.owner.events().into_iter().map(|(_, bytes)| bytes).collect();
        let sent: Vec<Vec<u8>> = (0..100).map(|number| vec![number; 33]).collect();
        assert_eq!(received, sent);
        assert_eq!(pair.writer.ends(), [], "a good message has no completion");
    }
}

#[test]
fn messages_are_lost_only_from_some_point_on_and_only_with_the_queue_pair() {
    let mut counts = BTreeSet::new();
    for seed in 0..100 {
        let mut pair = pair(seed, Durability::Process);
        for number in 0..20_u8 {
            pair.writer.send(&[number]);
        }
        pair.random_steps(30);
        let qp = pair.writer.qp;
        pair.writer.fabric.disconnect(qp);
        pair.finish();
        let mut events = pair.owner.events();
        assert!(matches!(events.pop(), Some((FabricEvent::Disconnected { .. }, _))));
        let received: Vec<u8> = events.iter().map(|(_, bytes)| bytes[0]).collect();
        let sent: Vec<u8> = (0..20).take(received.len()).collect();
        assert_eq!(received, sent, "seed {seed}");
        counts.insert(received.len());
    }
    assert!(counts.len() > 3, "{counts:?}");
}

#[test]
fn a_full_queue_pair_refuses_and_takes_again_after_a_poll() {
    let mut pair = pair(3, Durability::Process);
    for id in 0..16 {
        pair.append(id, 0, &[1]).unwrap();
    }
    assert_eq!(pair.append(16, 0, &[1]), Err(PostError::Full));
    pair.finish();
    assert_eq!(pair.writer.completions().len(), 16);
    assert_eq!(pair.append(16, 0, &[1]), Ok(()));
}

#[test]
fn malformed_requests_are_refused_and_nothing_of_the_chain_is_executed() {
    let mut pair = pair(3, Durability::Process);
    let inline = [Piece::Inline(&[1; 8])];
    let good = Request::Write { pieces: &inline, to: pair.to(0) };
    let local = [Piece::Local { region: RegionId(0), offset: MEMORY_BYTES - 4, len: 8 }];
    let unknown = [Piece::Local { region: RegionId(7), offset: 0, len: 8 }];
    let large = [Piece::Inline(&[0; 5000])];
    let bad = [
        Request::Write { pieces: &local, to: pair.to(0) },
        Request::Write { pieces: &unknown, to: pair.to(0) },
        Request::Write { pieces: &large, to: pair.to(0) },
        Request::ReadWord { from: pair.to(4) },
        Request::Read { from: pair.to(0), into: (RegionId(0), u64::MAX), len: 8 },
        Request::Send { bytes: &[0; 5000] },
    ];
    for request in bad {
        let chain = [WorkRequest { id: 1, request: good }, WorkRequest { id: 2, request }];
        let posted = pair.writer.fabric.post(pair.writer.qp, &chain);
        assert!(matches!(posted, Err(PostError::Invalid(_))), "{request:?}: {posted:?}");
    }
    pair.finish();
    assert_eq!(pair.landed(0, 8), [0; 8]);
}

#[test]
fn memory_is_registered_only_inside_a_region_and_for_a_queue_pair_that_lives() {
    let mut pair = pair(3, Durability::Process);
    let (id, qp) = (pair.owner.id, pair.owner.qp);
    let outside = pair.owner.fabric.register(id, 0..MEMORY_BYTES + 1, Access::Read);
    assert!(matches!(outside, Err(RegisterError::OutOfRange { .. })));
    let unknown = pair.owner.fabric.register(RegionId(9), 0..8, Access::Read);
    assert!(matches!(unknown, Err(RegisterError::OutOfRange { .. })));
    pair.owner.fabric.disconnect(qp);
    let dead = pair.owner.fabric.register(id, 0..8, Access::Write(qp));
    assert!(matches!(dead, Err(RegisterError::Refused(_))));
}

#[test]
fn after_a_disconnect_a_prefix_may_land_late_and_nothing_is_delivered() {
    let mut landed = BTreeSet::new();
    for seed in 0..300 {
        let mut pair = pair(seed, Durability::Process);
        for id in 0..4_u64 {
            pair.append(id, id * 64, &[1; 64]).unwrap();
        }
        pair.random_steps(20);
        let qp = pair.writer.qp;
        pair.writer.fabric.disconnect(qp);
        let before = (0..4).filter(|id| pair.landed(id * 64, 64) == [1; 64]).count();
        pair.finish();
        assert_eq!((pair.writer.ends(), pair.writer.events()), (vec![], vec![]));
        assert!(matches!(pair.owner.events()[..], [(FabricEvent::Disconnected { .. }, _)]));
        let whole: Vec<bool> = (0..4).map(|id| pair.landed(id * 64, 64) == [1; 64]).collect();
        assert!(whole.is_sorted_by(|one, two| one >= two), "seed {seed}: {whole:?} has a hole");
        landed.insert(whole.iter().filter(|is_whole| **is_whole).count() - before);
    }
    assert!(landed.contains(&0) && landed.iter().any(|late| 1 < *late), "{landed:?}");
}

#[test]
fn after_the_owner_drops_it_the_writer_may_go_on_until_it_learns_of_it() {
    let mut late = 0;
    let mut refused = 0;
    for seed in 0..200 {
        let mut pair = pair(seed, Durability::Process);
        let qp = pair.owner.qp;
        pair.owner.fabric.disconnect(qp);
        pair.append(1, 0, &[1; 64]).unwrap();
        pair.finish();
        assert!(pair.owner.events().is_empty());
        let status = pair.writer.ends()[0].1;
        assert!(matches!(status, Status::Ok | Status::PeerGone), "{status:?}");
        late += u32::from(status == Status::Ok);
        refused += u32::from(status == Status::PeerGone);
        assert!(matches!(pair.writer.events()[..], [(FabricEvent::Disconnected { .. }, _)]));
    }
    assert!(late > 10 && refused > 10, "{late} {refused}");
}

/// Runs one deregistration against a writer that posts all the time; returns whether anything
/// landed between the request and its end, and whether anything landed after.
fn recycle(seed: u64) -> (bool, bool) {
    let mut pair = pair(seed, Durability::Process);
    for id in 0..8_u64 {
        pair.append(id, id * 100, &[1; 100]).unwrap();
    }
    pair.random_steps(30);
    let before = pair.landed(0, 800);
    pair.owner.fabric.deregister(pair.segment);
    let gone = FabricEvent::Deregistered { key: pair.segment };
    while !pair.owner.events().iter().any(|(event, _)| *event == gone) {
        assert!(pair.step(), "a deregistration ends");
    }
    let late = pair.landed(0, 800) != before;
    pair.owner.region.copy_in(4096, &[0xee; 800]);
    pair.finish();
    (late, pair.landed(0, 800) != [0xee; 800])
}

#[test]
fn nothing_lands_through_a_key_once_its_deregistration_has_ended() {
    let outcomes: Vec<(bool, bool)> = (0..300).map(recycle).collect();
    assert!(outcomes.iter().all(|(_, after)| !after));
    assert!(outcomes.iter().any(|(late, _)| *late), "until then landings go on");
}

#[test]
fn a_deregistration_waits_for_a_stopped_writer_where_the_provider_must() {
    let mut pair = pair(3, Durability::Process);
    let writer = pair.writer.host;
    pair.world.borrow_mut().stop(writer);
    pair.owner.fabric.deregister(pair.segment);
    pair.steps(1000);
    assert_eq!(pair.owner.events(), []);
    pair.world.borrow_mut().cont(writer);
    pair.finish();
    assert_eq!(pair.owner.events()[0].0, FabricEvent::Deregistered { key: pair.segment });
}

#[test]
fn the_card_of_a_stopped_process_answers() {
    let mut pair = pair(3, Durability::Sync);
    let owner = pair.owner.host;
    pair.world.borrow_mut().stop(owner);
    pair.append(1, 0, &[1; 64]).unwrap();
    pair.finish();
    assert_eq!(pair.writer.ends(), [(1, Status::Ok)]);
}

#[test]
fn peers_of_a_crashed_process_learn_of_it_and_their_writes_may_still_land() {
    let (mut known, mut late_while_gone, mut late_after_restart) = (0, 0, 0);
    for seed in 0..300 {
        let mut pair = pair(seed, Durability::Process);
        for id in 0..4_u64 {
            pair.append(id, id * 64, &[1; 64]).unwrap();
        }
        pair.random_steps(16);
        let owner = pair.owner.host;
        pair.world.borrow_mut().crash(owner);
        let at_crash = pair.landed(0, 256);
        pair.random_steps(8);
        let at_restart = pair.landed(0, 256);
        pair.owner.fabric = World::restart(&pair.world, owner);
        while !pair.owner.fabric.is_quiesced() {
            assert!(pair.step());
        }
        let at_quiet = pair.landed(0, 256);
        pair.finish();
        assert_eq!(at_quiet, pair.landed(0, 256), "seed {seed}: landed after it was quiet");
        late_while_gone += u32::from(at_crash != at_restart);
        late_after_restart += u32::from(at_restart != pair.landed(0, 256));
        assert!(pair.owner.fabric.is_quiesced(), "all of it ends");
        pair.writer.completions();
        let events = pair.writer.events();
        let [(FabricEvent::Disconnected { exited, .. }, _)] = events[..] else {
            panic!("{events:?}");
        };
        known += u32::from(exited);
    }
    assert!(known > 50 && late_while_gone > 10 && late_after_restart > 10);
}

#[test]
fn a_card_that_forgets_lands_nothing_after_a_restart() {
    let options = FabricOptions { late_after_restart: false, ..FabricOptions::default() };
    for seed in 0..100 {
        let mut pair = pair_with(seed, Durability::Process, options);
        for id in 0..4_u64 {
            pair.append(id, id * 64, &[1; 64]).unwrap();
        }
        pair.random_steps(16);
        let owner = pair.owner.host;
        pair.world.borrow_mut().crash(owner);
        pair.owner.fabric = World::restart(&pair.world, owner);
        let at_restart = pair.landed(0, 256);
        assert!(!pair.world.borrow().has_late_writes(owner));
        pair.finish();
        assert_eq!(at_restart, pair.landed(0, 256));
    }
}

#[test]
fn nothing_lands_after_a_power_cut_and_the_writer_times_out() {
    for seed in 0..100 {
        let mut pair = pair(seed, Durability::ReadBack);
        for id in 0..4_u64 {
            pair.append(id, id * 64, &[1; 64]).unwrap();
        }
        pair.random_steps(6);
        let owner = pair.owner.host;
        pair.world.borrow_mut().power_cut(owner);
        let at_cut = pair.landed(0, 256);
        pair.finish();
        let ends = pair.writer.ends();
        assert!(
            ends.iter().any(|(_, status)| *status == Status::PeerGone),
            "seed {seed}: {ends:?}"
        );
        assert!(matches!(
            pair.writer.events()[..],
            [(FabricEvent::Disconnected { exited: false, .. }, _)]
        ));
        pair.owner.fabric = World::restart(&pair.world, owner);
        pair.finish();
        assert_eq!(at_cut, pair.landed(0, 256), "seed {seed}");
    }
}

#[test]
fn an_idle_peer_of_a_host_without_power_learns_of_it_when_the_host_is_back() {
    let mut pair = pair(3, Durability::ReadBack);
    let owner = pair.owner.host;
    pair.world.borrow_mut().power_cut(owner);
    pair.finish();
    assert_eq!(pair.writer.events(), []);
    pair.owner.fabric = World::restart(&pair.world, owner);
    pair.finish();
    assert!(matches!(pair.writer.events()[..], [(FabricEvent::Disconnected { .. }, _)]));
    assert_eq!(pair.world.borrow().boot(owner), 2);
}

#[test]
fn a_cut_link_stalls_requests_and_then_fails_them() {
    let mut pair = pair(3, Durability::Process);
    let (writer, owner) = (pair.writer.host, pair.owner.host);
    pair.world.borrow_mut().cut(writer, owner);
    pair.append(1, 0, &[1; 64]).unwrap();
    pair.finish();
    assert_eq!(pair.writer.ends(), [(1001, Status::PeerGone), (1, Status::Flushed)]);
    assert!(pair.world.borrow().now() >= Instant(0) + Duration::from_millis(40));
    assert_eq!(pair.writer.events().len(), 1);
    assert_eq!(pair.owner.events(), [], "an idle side hears nothing through a cut");
    pair.world.borrow_mut().heal(writer, owner);
    pair.finish();
    assert_eq!(pair.owner.events().len(), 1, "one side first, later the other");
}

#[test]
fn a_link_that_heals_in_time_loses_nothing() {
    let mut pair = pair(3, Durability::Sync);
    let (writer, owner) = (pair.writer.host, pair.owner.host);
    pair.world.borrow_mut().cut(writer, owner);
    pair.append(1, 0, &[1; 64]).unwrap();
    pair.steps(2);
    pair.world.borrow_mut().heal(writer, owner);
    pair.finish();
    assert_eq!(pair.writer.ends(), [(1, Status::Ok)]);
}

#[test]
fn through_a_one_way_cut_writes_may_land_but_nothing_completes() {
    let mut pair = pair(3, Durability::Process);
    let (writer, owner) = (pair.writer.host, pair.owner.host);
    pair.world.borrow_mut().cut_one_way(owner, writer);
    pair.append(1, 0, &[1; 64]).unwrap();
    pair.finish();
    assert_eq!(pair.landed(0, 64), [1; 64]);
    assert_eq!(pair.writer.ends(), [(1001, Status::PeerGone), (1, Status::Flushed)]);
}

#[test]
fn a_new_queue_pair_replaces_the_one_that_only_the_other_side_still_has() {
    let mut pair = pair(3, Durability::Process);
    let (writer, owner) = (pair.writer.host, pair.owner.host);
    pair.world.borrow_mut().cut(writer, owner);
    pair.append(1, 0, &[1; 64]).unwrap();
    pair.finish();
    pair.writer.completions();
    pair.writer.events();
    pair.world.borrow_mut().heal(writer, owner);
    pair.writer.fabric.connect(OWNER);
    pair.finish();
    let events: Vec<FabricEvent> =
        pair.owner.events().into_iter().map(|(event, _)| event).collect();
    let [FabricEvent::Disconnected { qp: old, .. }, FabricEvent::Connected { qp: new, .. }] =
        events[..]
    else {
        panic!("{events:?}");
    };
    assert!(old == pair.owner.qp && new != old);
}

#[test]
fn an_attempt_to_reach_nobody_ends_in_silence_and_may_be_repeated() {
    let world = World::shared(1, FabricOptions::default());
    let mut one = node(&world, WRITER, Durability::Sync);
    let host = world.borrow_mut().add_host(OWNER);
    one.fabric.connect(OWNER);
    one.fabric.connect(MemberId(77));
    while world.borrow_mut().step() != Step::Idle {}
    assert_eq!(one.events(), []);
    let mut two = World::restart(&world, host);
    one.fabric.connect(OWNER);
    while world.borrow_mut().step() != Step::Idle {}
    assert_eq!(one.events().len(), 1);
    assert!(two.next_event(&mut Vec::new()).is_some());
}

#[test]
fn the_handle_of_an_ended_process_does_nothing() {
    let mut pair = pair(3, Durability::Process);
    let writer = pair.writer.host;
    pair.world.borrow_mut().crash(writer);
    let next = World::restart(&pair.world, writer);
    assert_eq!(pair.append(1, 0, &[1]), Err(PostError::NotConnected(pair.writer.qp)));
    pair.finish();
    assert_eq!((pair.writer.ends(), pair.writer.events()), (vec![], vec![]));
    assert_ne!(next.host(), pair.owner.host);
}

#[test]
fn a_ring_reaches_the_peer_once_for_many() {
    let mut pair = pair(3, Durability::Process);
    let qp = pair.writer.qp;
    pair.writer.fabric.ring(qp);
    pair.writer.fabric.ring(qp);
    pair.finish();
    let rang = FabricEvent::Rang { qp: pair.owner.qp };
    assert_eq!(pair.owner.events(), [(rang, vec![])]);
}

mod litmus;
