//! Groups of members that are threads of one process: the shard loop over shared memory as fabric,
//! mapped files as regions and plain files as checkpoints, with nothing simulated but the hosts.
//!
//! Nothing here waits for time to pass: a test waits for what it wants to see, and the members sleep
//! until somebody rings or their own deadline comes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod client;
mod cluster;
mod files;
mod node;
mod notes;

use std::path::PathBuf;

use base::{Durability, Duration, GroupId, MemberId};
use client::{Client, value_of};
use cluster::{Cluster, Options};
use logfmt::RegionLayout;
use replica::Notice;

const GROUP: GroupId = GroupId(1);

/// So far away that no deadline comes: only a ring wakes anybody.
const HOURS: Duration = Duration::from_secs(24 * 60 * 60);

/// Segments that hold all that a test writes.
fn roomy() -> RegionLayout {
    RegionLayout::new(1 << 20, 16).unwrap()
}

#[test]
fn three_members_elect_a_leader_and_agree_on_what_is_put() {
    let cluster = Cluster::start(roomy());
    let mut client = Client::new(GROUP, u64::MAX);
    client.put_all(&cluster, 0..1_000);
    assert_eq!(client.acknowledged.len(), 1_000);
    client.get_all(&cluster, 0..1_001);
    for number in 0..1_000 {
        assert_eq!(client.found[&number], Some(value_of(number)));
    }
    assert_eq!(client.found[&1_000], None, "nobody has put it");
    let index = cluster.assert_equal(GROUP);
    assert!(index.0 > 1_000, "every put is an entry, and the leader's first one is another");
}

/// Goal: a commit needs the memories of a majority and the processor of the leader alone. Method:
/// the threads of both followers stand still while the leader goes on.
#[test]
fn a_leader_commits_while_no_follower_takes_a_turn() {
    let cluster = Cluster::start(roomy());
    let mut client = Client::new(GROUP, u64::MAX);
    let (leader, parked) = loop {
        client.put_all(&cluster, 0..1_000);
        let leader = cluster.leader(GROUP);
        let index = cluster.assert_equal(GROUP);
        let followers = cluster.setup.ids().filter(|&id| id != leader);
        let parked: Vec<_> = followers.map(|id| cluster.park(id)).collect();
        let is_settled = cluster.wait_for("the leader", |page| {
            let (_, seen) = page.of(GROUP).find(|&(id, _)| id == leader)?;
            Some(seen.leads.is_some() && seen.commit == index)
        });
        if is_settled {
            break (leader, parked);
        }
    };
    let others = |page: &mut notes::Page| {
        page.of(GROUP).filter(|&(id, _)| id != leader).map(|(_, seen)| seen).collect::<Vec<_>>()
    };
    let before = cluster.wait_for("the followers", |page| Some(others(page)));
    client.put_all(&cluster, 1_000..2_000);
    assert_eq!(client.acknowledged.len(), 2_000);
    let after = cluster.wait_for("the followers", |page| Some(others(page)));
    assert_eq!(before, after, "no follower has taken a turn");
    drop(parked);
    client.assert_nothing_lost(&cluster);
    cluster.assert_equal(GROUP);
}

/// Goal: a follower that sleeps does not hold its leader back when the segments that it has granted
/// are used up. Method: every deadline lies hours away, so that only a ring wakes anybody, and ten
/// times what a follower grants ahead is written.
#[test]
fn a_follower_that_sleeps_is_woken_before_the_leader_runs_out_of_room() {
    let layout = RegionLayout::new(16 << 10, 64).unwrap();
    let cluster = Cluster::start_with(Options {
        members: 2,
        suspicion_timeout: HOURS,
        ..Options::new(layout)
    });
    cluster.campaign(MemberId(2), GROUP);
    let mut client = Client::new(GROUP, u64::MAX);
    let count = 20 * layout.segment_len() / value_of(0).len() as u64;
    client.put_all(&cluster, 0..count);
    client.assert_nothing_lost(&cluster);
}

/// Goal: an idle member costs no processor. Method: with every deadline hours away, a member takes
/// two turns for each order of the test, one before it announces its sleep and one after, and hardly
/// any of its own.
#[test]
fn a_member_with_nothing_to_do_sleeps() {
    let cluster = Cluster::start_with(Options {
        members: 2,
        suspicion_timeout: HOURS,
        ..Options::new(roomy())
    });
    cluster.campaign(MemberId(1), GROUP);
    let mut client = Client::new(GROUP, u64::MAX);
    client.put_all(&cluster, 0..100);
    for id in cluster.setup.ids() {
        let turns = |orders| {
            (1..orders).for_each(|_| cluster.with(id, |_| ()));
            cluster.with(id, |node| node.turns)
        };
        // The last that was put may still be being applied.
        let before = turns(100);
        let taken = turns(1_000) - before;
        assert!(taken <= 2 * 1_000 + 100, "{id} took {taken} turns");
    }
}

/// Synced members on the disk that the build lies on; `None` if that is none.
fn synced(options: Options) -> Option<Cluster> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    if pmem::backing(&dir).unwrap() == pmem::Backing::Memory {
        println!("skipped: {} lies in memory, which cannot be synced", dir.display());
        return None;
    }
    Some(Cluster::start_with(Options { mode: Durability::Sync, dir, ..options }))
}

#[test]
fn a_synced_group_keeps_what_it_acknowledged() {
    let Some(mut cluster) = synced(Options::new(roomy())) else { return };
    let mut client = Client::new(GROUP, u64::MAX);
    client.put(0..600);
    client.run(&cluster, |client| client.acknowledged.len() >= 200);
    let old = cluster.leader(GROUP);
    cluster.stop_member(old);
    client.give_up_on(&cluster, old);
    client.run(&cluster, |client| client.acknowledged.len() >= 400);
    cluster.start_member(old);
    cluster.stop_all();
    for id in cluster.setup.ids() {
        client.give_up_on(&cluster, id);
        cluster.start_member(id);
    }
    client.assert_nothing_lost(&cluster);
    client.run(&cluster, Client::is_idle);
    cluster.assert_equal(GROUP);
}

/// Goal: a member sleeps while a disk works, and goes on when the disk is done. Method: no deadline
/// comes; what ends a sync must wake whoever waits for it, the leader and the member alike.
#[test]
fn the_end_of_a_sync_wakes_who_waits_for_it() {
    let options = Options { members: 2, suspicion_timeout: HOURS, ..Options::new(roomy()) };
    let Some(cluster) = synced(options) else { return };
    cluster.campaign(MemberId(1), GROUP);
    let mut client = Client::new(GROUP, u64::MAX);
    for number in 0..50 {
        client.put_all(&cluster, number..=number);
    }
    client.assert_nothing_lost(&cluster);
}

#[test]
fn another_member_takes_over_and_the_old_leader_comes_back_with_its_files() {
    let mut cluster = Cluster::start(roomy());
    let mut client = Client::new(GROUP, u64::MAX);
    client.put(0..1_500);
    client.run(&cluster, |client| client.acknowledged.len() >= 500);
    let old = cluster.leader(GROUP);
    cluster.stop_member(old);
    client.give_up_on(&cluster, old);
    client.run(&cluster, Client::is_idle);
    assert_ne!(cluster.leader(GROUP), old);
    cluster.start_member(old);
    client.put_all(&cluster, 1_500..1_600);
    let index = cluster.assert_equal(GROUP);
    assert!(index.0 > 1_600, "the old leader has all of it");
    client.assert_nothing_lost(&cluster);
}

#[test]
fn nothing_acknowledged_is_lost_when_the_whole_group_ends_at_once() {
    let mut cluster = Cluster::start(roomy());
    let mut client = Client::new(GROUP, u64::MAX);
    for round in 1..=3 {
        client.put(round * 1_000..(round + 1) * 1_000);
        let enough = usize::try_from(round).unwrap() * 500;
        client.run(&cluster, |client| client.acknowledged.len() >= enough);
        cluster.stop_all();
        for id in cluster.setup.ids() {
            client.give_up_on(&cluster, id);
        }
        for id in cluster.setup.ids() {
            cluster.start_member(id);
        }
        client.assert_nothing_lost(&cluster);
    }
    client.run(&cluster, Client::is_idle);
    cluster.assert_equal(GROUP);
}

#[test]
fn one_thread_runs_three_groups_that_do_not_mix() {
    let mut cluster = Cluster::start_with(Options { groups: 3, ..Options::new(roomy()) });
    let mut clients: Vec<_> =
        cluster.setup.groups().map(|group| Client::new(group, u64::MAX)).collect();
    for (client, base) in clients.iter_mut().zip([0, 10_000, 20_000]) {
        client.put(base..base + 600);
    }
    for enough in [200, 400] {
        for client in &mut clients {
            client.run(&cluster, |client| client.acknowledged.len() >= enough);
        }
    }
    let victim = cluster.leader(GROUP);
    cluster.stop_member(victim);
    for client in &mut clients {
        client.give_up_on(&cluster, victim);
        client.run(&cluster, Client::is_idle);
    }
    cluster.start_member(victim);
    for (client, group) in clients.iter_mut().zip(cluster.setup.groups()) {
        client.assert_nothing_lost(&cluster);
        cluster.assert_equal(group);
    }
    let digests = |group| cluster.with(victim, move |node| node.state(group).1);
    assert_ne!(digests(GroupId(1)), digests(GroupId(2)));
    assert_ne!(digests(GroupId(2)), digests(GroupId(3)));
}

/// Goal: a member's board, greeting and control memory hold as many groups as a shard takes, and
/// windows are made again when there are too many. Method: every group fills a few segments.
#[test]
fn a_shard_takes_sixty_four_groups() {
    let layout = RegionLayout::new(4096, 8).unwrap();
    let cluster = Cluster::start_with(Options { members: 2, groups: 64, ..Options::new(layout) });
    for group in cluster.setup.groups() {
        let mut client = Client::new(group, u64::MAX);
        client.put_all(&cluster, 0..60);
        client.assert_nothing_lost(&cluster);
    }
    for group in cluster.setup.groups() {
        cluster.assert_equal(group);
    }
}

/// Goal: a pool is used again and again, and what was trimmed is had from a checkpoint. Method:
/// ten times the pool is written while one member is away.
#[test]
fn a_small_pool_is_written_over_and_a_member_that_was_away_gets_the_state() {
    let layout = RegionLayout::new(16 << 10, 12).unwrap();
    let mut cluster = Cluster::start(layout);
    let mut client = Client::new(GROUP, 50);
    client.put_all(&cluster, 0..100);
    let index = cluster.assert_equal(GROUP);
    let leader = cluster.leader(GROUP);
    let away = cluster.setup.ids().find(|&id| id != leader).unwrap();
    cluster.stop_member(away);
    client.give_up_on(&cluster, away);
    let pool = layout.segment_len() * u64::from(layout.slot_count());
    let count = 10 * pool / value_of(100).len() as u64;
    client.put_all(&cluster, 100..100 + count);
    cluster.wait_for("checkpoints", |page| {
        let is_taken = |id: MemberId| {
            page.notices.iter().any(|(of, _, notice)| {
                *of == id && matches!(notice, Notice::Checkpoint(at) if *at > index)
            })
        };
        page.of(GROUP).all(|(id, _)| is_taken(id)).then_some(())
    });
    cluster.start_member(away);
    cluster.wait_for("the state", |page| {
        let is_installed = |(of, _, notice): &(MemberId, GroupId, Notice)| {
            *of == away && matches!(notice, Notice::Installed(at) if *at > index)
        };
        page.notices.iter().any(is_installed).then_some(())
    });
    client.put_all(&cluster, 200 + count..400 + count);
    let end = cluster.assert_equal(GROUP);
    assert!(end.0 > count, "all that was written was an entry");
}
