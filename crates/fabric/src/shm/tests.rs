//! What only the provider itself can arrange: failing syncs, restarts, boards of noise, sleepers.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::{Durability, Incarnation, MemberId, Random};

use super::layout::{BOARD_LEN, RANG, TAIL, knock_place, registration_at, slot_at};
use super::{Config, KillError, PeerError, Shm, ShmError};
use crate::{
    Access, Completion, Fabric, FabricEvent, Key, Piece, PostError, Qp, RegionId, Remote, Request,
    Sleep, Status, WorkRequest,
};

const REGION_LEN: u64 = 16 * 4096;

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shm-unit-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn config(&self, member: u32) -> Config {
        Config {
            dir: self.0.clone(),
            member: MemberId(member),
            incarnation: Incarnation(1),
            may_kill_writers: true,
        }
    }

    /// An instance with a region, new or that of its last life.
    fn shm(&self, member: u32, durability: Durability) -> Shm {
        let path = self.0.join(format!("{member}.region"));
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .unwrap()
            .set_len(REGION_LEN)
            .unwrap();
        let mut shm = Shm::create(self.config(member)).unwrap();
        shm.attach(&path, durability).unwrap();
        shm
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn until<T>(shms: &mut [&mut Shm], at: usize, find: impl Fn(FabricEvent) -> Option<T>) -> T {
    let mut bytes = Vec::new();
    for _ in 0..1_000_000 {
        for (index, shm) in shms.iter_mut().enumerate() {
            let found = shm.next_event(&mut bytes).and_then(&find);
            if let Some(found) = found.filter(|_| index == at) {
                return found;
            }
        }
        std::thread::yield_now();
    }
    panic!("it never happened");
}

fn connected(event: FabricEvent) -> Option<Qp> {
    if let FabricEvent::Connected { qp, .. } = event { Some(qp) } else { None }
}

fn disconnected(event: FabricEvent) -> Option<bool> {
    if let FabricEvent::Disconnected { exited, .. } = event { Some(exited) } else { None }
}

/// Connects `a` with `b`, member 2; the handles.
fn connect(a: &mut Shm, b: &mut Shm) -> (Qp, Qp) {
    a.connect(MemberId(2));
    let at_a = until(&mut [a, b], 0, connected);
    let link = b.links.iter().flatten().find(|link| link.peer == MemberId(1)).unwrap();
    // B may have been told already, while A was waited for; its greeting is read in any case.
    let at_b = link.qp();
    let mut bytes = Vec::new();
    while b.link_of(at_b).is_none() {
        b.next_event(&mut bytes);
    }
    (at_a, at_b)
}

/// Goal: nobody has to wait for the other's timer when a peer appears that was looked for in vain.
/// Method: an instance takes a step only when its doorbell was rung since the last one.
#[test]
fn a_peer_that_appears_connects_with_one_that_sleeps() {
    let place = Place::new();
    let mut first = place.shm(1, Durability::Process);
    first.connect(MemberId(2));
    assert_eq!(first.next_event(&mut Vec::new()), None);
    assert!(first.why_not_connected(MemberId(2)).is_some(), "it is not there");
    let mut second = place.shm(2, Durability::Process);
    second.connect(MemberId(1));
    let (mut pair, mut seen) = ([first, second], [0, 1]);
    let (mut connections, mut bytes) = (0, Vec::new());
    for turn in 0..100 {
        let (shm, seen) = (&mut pair[turn % 2], &mut seen[turn % 2]);
        let number = shm.own.doorbell.number();
        if number == std::mem::replace(seen, number) {
            continue;
        }
        while let Some(event) = shm.next_event(&mut bytes) {
            connections += u32::from(connected(event).is_some());
        }
    }
    assert_eq!(connections, 2, "each was told");
}

#[test]
fn an_instance_attaches_the_regions_of_sixty_four_groups_and_no_end_of_them() {
    let place = Place::new();
    let mut shm = place.shm(1, Durability::Process);
    let path = place.0.join("1.region");
    for count in 1..super::layout::REGIONS_MAX {
        let region = shm.attach(&path, Durability::Process).unwrap();
        assert_eq!(region, RegionId(u32::try_from(count).unwrap()));
    }
    const { assert!(super::layout::REGIONS_MAX >= 64 + 4) };
    let one_more = shm.attach(&path, Durability::Process);
    assert!(matches!(one_more, Err(ShmError::TooManyRegions)));
}

fn keys(b: &mut Shm, qp: Qp) -> (Key, Key) {
    let log = b.register(RegionId(0), 0..8192, Access::Write(qp)).unwrap();
    let page = b.register(RegionId(0), 8192..REGION_LEN, Access::Read).unwrap();
    (log, page)
}

/// Posts a WRITE and a read-back; the status of what completes first.
fn write(a: &mut Shm, qp: Qp, (log, page): (Key, Key)) -> Result<Status, PostError> {
    let pieces = &[Piece::Inline(b"entry")];
    let to = Remote { key: log, offset: 0 };
    let from = Remote { key: page, offset: 0 };
    let chain = [
        WorkRequest { id: 1, request: Request::Write { pieces, to } },
        WorkRequest { id: 2, request: Request::ReadWord { from } },
    ];
    a.post(qp, &chain)?;
    let mut done = [Completion { qp, id: 0, status: Status::Ok, word: 0 }];
    while a.poll(&mut done) == 0 {
        std::thread::yield_now();
    }
    Ok(done[0].status)
}

fn read_word(a: &mut Shm, qp: Qp, page: Key) -> Status {
    let from = Remote { key: page, offset: 0 };
    a.post(qp, &[WorkRequest { id: 3, request: Request::ReadWord { from } }]).unwrap();
    let mut done = [Completion { qp, id: 0, status: Status::Flushed, word: 0 }];
    assert_eq!(a.poll(&mut done), 1, "nothing is waited for");
    done[0].status
}

fn fail(_: &File) -> io::Result<()> {
    Err(io::Error::other("the disk is gone"))
}

/// Goal: after a failed sync nothing of that instance is acknowledged again, over reconnects, though
/// a second sync would succeed.
#[test]
fn a_failed_sync_is_final() {
    let place = Place::new();
    let mut a = place.shm(1, Durability::Sync);
    let mut b = place.shm(2, Durability::Sync);
    let (qp, at_b) = connect(&mut a, &mut b);
    let before = keys(&mut b, at_b);
    a.sync = fail;
    assert_eq!(write(&mut a, qp, before), Ok(Status::RemoteSync));
    a.sync = File::sync_data;
    let mut rest = [Completion { qp, id: 0, status: Status::Ok, word: 0 }; 4];
    while a.poll(&mut rest) > 0 {}
    assert!(!until(&mut [&mut a, &mut b], 0, disconnected), "its owner is alive");
    let (qp, at_b) = connect(&mut a, &mut b);
    let again = keys(&mut b, at_b);
    assert_eq!(read_word(&mut a, qp, again.1), Status::Ok, "reading is not writing");
    assert_eq!(write(&mut a, qp, again), Ok(Status::RemoteSync));
}

#[test]
fn one_member_lives_once() {
    let place = Place::new();
    let first = place.shm(1, Durability::Process);
    let second = Shm::create(place.config(1));
    assert!(matches!(second, Err(ShmError::InUse { member: MemberId(1), .. })));
    drop(first);
    place.shm(1, Durability::Process);
}

/// Goal: a member that comes back is another instance: the old queue pair ends, old keys do not fit,
/// and the new one knows when nobody can write through its earlier life any more.
#[test]
fn a_restarted_member_is_another_instance() {
    let place = Place::new();
    let mut a = place.shm(1, Durability::Process);
    let mut b = place.shm(2, Durability::Process);
    assert!(b.is_quiesced());
    let (qp, at_b) = connect(&mut a, &mut b);
    let old = keys(&mut b, at_b);
    assert_eq!(write(&mut a, qp, old), Ok(Status::Ok));
    drop(b);
    let mut b = place.shm(2, Durability::Process);
    assert!(!b.is_quiesced(), "A has not looked, it still has the old range mapped");
    assert_eq!(write(&mut a, qp, old), Ok(Status::PeerGone));
    assert!(until(&mut [&mut a], 0, disconnected), "a closed board counts as exited");
    assert!(b.is_quiesced());
    let (qp, at_b) = connect(&mut a, &mut b);
    let new = keys(&mut b, at_b);
    assert_eq!(write(&mut a, qp, new), Ok(Status::Ok));
    assert!(b.is_quiesced(), "windows of this life are not those of an earlier one");
    assert_eq!(write(&mut a, qp, (old.0, new.1)), Ok(Status::RemoteAccess));
}

#[test]
fn a_writer_within_this_process_is_not_killed() {
    let place = Place::new();
    let mut a = place.shm(1, Durability::Process);
    let mut b = place.shm(2, Durability::Process);
    let (_, at_b) = connect(&mut a, &mut b);
    let (log, page) = keys(&mut b, at_b);
    b.deregister(log);
    assert!(matches!(b.kill_stuck_writer(log), Err(KillError::Oneself(_))));
    assert!(matches!(b.kill_stuck_writer(page), Err(KillError::NotStuck(_))));
    b.config.may_kill_writers = false;
    assert!(matches!(b.kill_stuck_writer(log), Err(KillError::NotAllowed)));
}

/// Goal: a ring between arming and waiting, or while waiting, is never lost. Method: the sleeper
/// would sleep for an hour if it were.
#[test]
fn a_sleeper_is_woken_by_every_ring() {
    let place = Place::new();
    let mut a = place.shm(1, Durability::Process);
    let mut b = place.shm(2, Durability::Process);
    let (qp, _) = connect(&mut a, &mut b);
    let sleeper = std::thread::spawn(move || {
        for _ in 0..2000 {
            next_ring(&mut b);
            let link = b.links.iter_mut().flatten().next().unwrap();
            link.ring();
        }
        // Kept until the last ring was heard: a ring of one that is gone is not told.
        b
    });
    for _ in 0..2000 {
        a.ring(qp);
        next_ring(&mut a);
    }
    drop(sleeper.join().unwrap());
}

fn next_ring(shm: &mut Shm) {
    let mut bytes = Vec::new();
    loop {
        shm.arm();
        match shm.next_event(&mut bytes) {
            Some(FabricEvent::Rang { .. }) => return,
            Some(_) => {}
            None => shm.wait(Duration::from_secs(3600)),
        }
    }
}

#[test]
fn files_that_are_no_boards_are_refused_with_the_reason() {
    let place = Place::new();
    let mut a = place.shm(1, Durability::Process);
    let mut bytes = Vec::new();
    a.connect(MemberId(2));
    assert_eq!(a.next_event(&mut bytes), None);
    assert!(matches!(a.why_not_connected(MemberId(2)), Some(PeerError::System { .. })));
    let noise: Vec<u8> = (0..BOARD_LEN).map(|at| at.to_le_bytes()[0]).collect();
    std::fs::write(place.0.join("3.board"), noise).unwrap();
    a.connect(MemberId(3));
    assert_eq!(a.next_event(&mut bytes), None);
    assert!(matches!(a.why_not_connected(MemberId(3)), Some(PeerError::Layout { .. })));
    std::os::unix::fs::symlink(place.0.join("1.board"), place.0.join("4.board")).unwrap();
    a.connect(MemberId(4));
    assert_eq!(a.next_event(&mut bytes), None);
    assert!(matches!(a.why_not_connected(MemberId(4)), Some(PeerError::System { .. })));
}

/// Goal: no content of a peer's board, and nothing that a peer may store into ours, makes us panic
/// or touch memory that was not registered for us. Method: damage words of both at random between
/// calls, connected and not, and look at every byte outside the granted range at the end.
#[test]
fn a_hostile_peer_harms_only_its_connection() {
    let place = Place::new();
    let mut random = Random::new(11);
    let mut breaks = 0;
    for round in 0..40 {
        let mut a = place.shm(1, Durability::Process);
        let mut b = place.shm(2, Durability::Process);
        let (qp, at_b) = connect(&mut a, &mut b);
        let keys = keys(&mut b, at_b);
        for _ in 0..500 {
            damage(&a, &b, &mut random);
            let mut bytes = Vec::new();
            a.next_event(&mut bytes);
            breaks += u32::from(write_anyhow(&mut a, qp, keys, &mut random).is_err());
        }
        let outside = b.locals[0].load(8192 + 8);
        assert_eq!(outside, 0, "round {round} stored outside of the granted range");
    }
    assert!(breaks > 0);
}

/// Damages one word that `b` may store: of its own board, or of its slot in `a`'s.
fn damage(a: &Shm, b: &Shm, random: &mut Random) {
    let value = random.next() >> random.below(64);
    let slot = usize::try_from(random.below(2)).unwrap();
    match random.below(6) {
        0 => a.own.map.store(slot_at(slot, TAIL), value),
        1 => a.own.map.store(slot_at(slot, RANG), value),
        2 => a.own.map.store(knock_place(random.below(64)), value),
        3 => a.own.map.store(slot_at(slot, 4096 + random.below(64) * 8), value),
        4 => b.own.map.store(slot_at(slot, random.below(6) * 8 + random.below(2) * 64), value),
        // The first word is the key: another one is tried under it seldom enough.
        _ => b.own.map.store(registration_at(2) + random.below(5) * 8, value),
    }
}

fn write_anyhow(
    a: &mut Shm,
    qp: Qp,
    keys: (Key, Key),
    random: &mut Random,
) -> Result<(), PostError> {
    let pieces = &[Piece::Inline(b"eight ch")];
    let key = if random.one_in(50) { Key(random.next()) } else { keys.0 };
    let to = Remote { key, offset: random.below(9000) };
    let posted = a.post(qp, &[WorkRequest { id: 1, request: Request::Write { pieces, to } }]);
    let mut done = [Completion { qp, id: 0, status: Status::Ok, word: 0 }; 8];
    a.poll(&mut done);
    posted
}
