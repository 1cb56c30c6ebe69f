use std::collections::BTreeSet;

use base::MemberId;

use super::*;
use crate::fabric::FabricOptions;
use crate::world::{HostId, World};

struct One {
    world: SharedWorld,
    host: HostId,
    region: SimRegion,
}

fn one(seed: u64, mode: Durability) -> One {
    let world = World::shared(seed, FabricOptions::default());
    let host = world.borrow_mut().add_host(MemberId(1));
    let memory = world.borrow_mut().add_memory(host, 16_384, MemoryOptions::of(mode));
    let region = World::region(&world, memory);
    One { world, host, region }
}

impl One {
    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.copy_out(at, &mut bytes);
        bytes
    }

    fn finish(&self) {
        while self.world.borrow_mut().step() != crate::world::Step::Idle {}
    }
}

#[test]
fn a_store_is_visible_at_once_and_its_ticket_is_reached_only_later() {
    let mut one = one(1, Durability::Sync);
    one.region.copy_in(100, b"hello");
    one.region.store(0, 7);
    assert_eq!((one.bytes(100, 5), one.region.load(0)), (b"hello".to_vec(), 7));
    let ticket = one.region.persist(0..128);
    assert!(one.region.durable().unwrap() < ticket);
    one.finish();
    assert_eq!(one.region.durable(), Ok(ticket));
}

#[test]
fn what_a_reached_ticket_covers_survives_every_power_cut() {
    for mode in [Durability::Sync, Durability::ReadBack, Durability::Flush, Durability::TargetCpu] {
        for seed in 0..50 {
            let mut one = one(seed, mode);
            one.region.copy_in(60, &[1; 200]);
            one.region.persist(0..4096);
            one.finish();
            one.region.copy_in(4096, &[2; 64]);
            one.world.borrow_mut().power_cut(one.host);
            assert_eq!(one.bytes(60, 200), [1; 200], "{mode:?} {seed}");
        }
    }
}

#[test]
fn a_store_during_the_persist_does_not_undo_what_the_persist_covers() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let mut one = one(seed, Durability::Sync);
        one.region.store(0, 1);
        let ticket = one.region.persist(0..64);
        one.region.store(8, 2);
        one.finish();
        assert_eq!(one.region.durable(), Ok(ticket));
        one.world.borrow_mut().power_cut(one.host);
        assert_eq!(one.region.load(0), 1);
        seen.insert(one.region.load(8));
    }
    assert_eq!(seen, BTreeSet::from([0, 2]), "a later store may be durable or not");
}

#[test]
fn a_power_cut_leaves_old_new_intermediate_or_torn_lines() {
    for mode in [Durability::Sync, Durability::ReadBack] {
        let mut seen = BTreeSet::new();
        for seed in 0..2_000 {
            let mut one = one(seed, mode);
            for value in 1..=3 {
                one.region.copy_in(0, &[value; 16]);
            }
            one.world.borrow_mut().power_cut(one.host);
            seen.insert((one.bytes(0, 1)[0], one.bytes(8, 1)[0]));
        }
        for whole in [(0, 0), (1, 1), (2, 2), (3, 3)] {
            assert!(seen.contains(&whole), "{mode:?}: {whole:?} never came");
        }
        for torn in [(0, 3), (3, 0)] {
            assert!(seen.contains(&torn), "{mode:?}: {torn:?} never came");
        }
    }
}

#[test]
fn a_power_cut_keeps_any_subset_of_lines_and_pages() {
    let mut lines = BTreeSet::new();
    let mut pages = BTreeSet::new();
    for seed in 0..500 {
        let mut one = one(seed, Durability::Sync);
        for at in [0, 64, 4096, 4160] {
            one.region.copy_in(at, &[9; 64]);
        }
        one.world.borrow_mut().power_cut(one.host);
        lines.insert((one.region.load(0) != 0, one.region.load(64) != 0));
        pages.insert((one.region.load(0) != 0, one.region.load(4096) != 0));
    }
    assert_eq!((lines.len(), pages.len()), (4, 4));
}

#[test]
fn a_process_crash_keeps_visible_bytes_except_in_volatile_mode() {
    for (mode, expected) in
        [(Durability::Process, 5), (Durability::Sync, 5), (Durability::Volatile, 0)]
    {
        let mut one = one(3, mode);
        drop(World::restart(&one.world, one.host));
        one.region.store(64, 5);
        one.world.borrow_mut().crash(one.host);
        assert_eq!(one.region.load(64), expected, "{mode:?}");
    }
}

#[test]
fn in_platform_mode_what_is_visible_is_durable() {
    let mut one = one(3, Durability::Platform);
    one.region.copy_in(10, &[4; 100]);
    one.world.borrow_mut().power_cut(one.host);
    assert_eq!(one.bytes(10, 100), [4; 100]);
}

#[test]
fn a_failed_sync_is_final_and_reaches_no_later_ticket() {
    let mut one = one(5, Durability::Sync);
    let memory = one.region.memory();
    one.region.store(0, 1);
    one.world.borrow_mut().memory(memory).fail_syncs(1);
    one.region.persist(0..64);
    one.region.persist(0..64);
    one.finish();
    assert!(matches!(one.region.durable(), Err(RegionError::Sync { .. })));
    one.region.persist(0..64);
    one.finish();
    assert!(matches!(one.region.durable(), Err(RegionError::Sync { .. })));
    let mut next = World::region(&one.world, memory);
    let ticket = next.persist(0..64);
    one.finish();
    assert_eq!(next.durable(), Ok(ticket), "the next process does not see the failure");
}

#[test]
fn after_a_failed_sync_the_system_may_have_forgotten_dirty_lines() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let mut one = one(seed, Durability::Sync);
        let memory = one.region.memory();
        one.region.store(0, 1);
        one.world.borrow_mut().memory(memory).fail_syncs(1);
        one.region.persist(0..64);
        one.finish();
        let mut next = World::region(&one.world, memory);
        next.persist(0..64);
        one.finish();
        one.world.borrow_mut().power_cut(one.host);
        seen.insert(next.load(0));
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

#[test]
fn a_lying_device_loses_what_it_acknowledged_and_a_flipped_bit_stays() {
    let mut one = one(5, Durability::ReadBack);
    let memory = one.region.memory();
    one.region.store(0, 1);
    one.region.store(64, 1);
    one.world.borrow_mut().memory(memory).lose_writes(1);
    let ticket = one.region.persist(0..128);
    one.finish();
    assert_eq!(one.region.durable(), Ok(ticket));
    one.world.borrow_mut().memory(memory).flip_bit(64, 1);
    assert_eq!(one.region.load(64), 3);
    one.world.borrow_mut().power_cut(one.host);
    assert_eq!((one.region.load(0), one.region.load(64)), (0, 3));
}

#[test]
fn a_slow_device_takes_as_many_times_as_long() {
    let until = |factor| {
        let mut one = one(9, Durability::Sync);
        let memory = one.region.memory();
        one.world.borrow_mut().memory(memory).slow_down(factor);
        one.region.persist(0..64);
        one.finish();
        let now = one.world.borrow().now();
        now.0
    };
    assert_eq!(until(10), until(1) * 10);
}

#[test]
fn many_waiting_persists_are_taken_together() {
    let mut one = one(9, Durability::Sync);
    let mut last = Ticket(0);
    for value in 0..1_000 {
        one.region.store(value * 8 % 16_384, value + 1);
        last = one.region.persist(0..16_384);
    }
    assert_eq!(last, Ticket(1_000));
    one.finish();
    assert_eq!(one.region.durable(), Ok(last));
    one.world.borrow_mut().power_cut(one.host);
    assert_eq!(one.region.load(999 * 8), 1_000);
}
