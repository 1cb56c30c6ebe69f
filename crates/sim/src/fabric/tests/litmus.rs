//! A small producer and a member that fences it: the heart of the protocol on the fabric alone.
//!
//! The writer appends entries, each with a READ of the grant word behind it. The owner at some
//! moment stores another word, fences and walks, and in the end loses power. An entry whose READ
//! returned the first word is *confirmed*; then
//! 1. the walk saw it, whenever its completion was delivered;
//! 2. in a durable mode it is there after the power cut.

use super::*;

const ENTRIES: u64 = 24;
const ENTRY_BYTES: usize = 150;
const GRANT: u64 = 7;
const REVOKED: u64 = 8;

struct Outcome {
    confirmed: usize,
    unseen_by_walk: Vec<u64>,
    lost_by_cut: Vec<u64>,
    trace: u64,
}

fn run(seed: u64, mode: Durability) -> Outcome {
    let mut pair = pair(seed, mode);
    pair.owner.region.store(0, GRANT);
    let revoke_at = pair.world.borrow_mut().random().below(400);
    let disturb_at = pair.world.borrow_mut().random().below(800);
    let (mut posted, mut confirmed, mut walked) = (0, BTreeSet::new(), None);
    for step in 0_u64.. {
        if posted < ENTRIES && pair.world.borrow_mut().random().one_in(6) {
            let entry = [entry_byte(posted); ENTRY_BYTES];
            posted += u64::from(pair.append(posted, place_of(posted), &entry).is_ok());
        }
        if step == revoke_at {
            pair.owner.region.store(0, REVOKED);
            pair.owner.region.fence();
            walked = Some(walk(&pair));
        }
        if step == disturb_at {
            disturb(&mut pair);
        }
        let goes_on = pair.step();
        let good =
            |completion: &Completion| completion.status == Status::Ok && completion.word == GRANT;
        confirmed
            .extend(pair.writer.completions().iter().filter(|one| good(one)).map(|one| one.id));
        if !goes_on && revoke_at < step && disturb_at < step {
            break;
        }
    }
    let walked = walked.expect("the run goes on until the revocation");
    let owner = pair.owner.host;
    pair.world.borrow_mut().power_cut(owner);
    let kept = walk(&pair);
    let missing = |from: &BTreeSet<u64>| confirmed.difference(from).copied().collect();
    Outcome {
        confirmed: confirmed.len(),
        unseen_by_walk: missing(&walked),
        lost_by_cut: if mode == Durability::Process { Vec::new() } else { missing(&kept) },
        trace: pair.world.borrow().trace(),
    }
}

/// One of the things that may happen to the two.
fn disturb(pair: &mut Pair) {
    let (writer, owner) = (pair.writer.host, pair.owner.host);
    let choice = pair.world.borrow_mut().random().below(6);
    let mut world = pair.world.borrow_mut();
    match choice {
        0 => world.crash(writer),
        1 => world.crash(owner),
        2 => world.stop(owner),
        3 => world.cut(writer, owner),
        4 => world.cut_one_way(owner, writer),
        _ => {}
    }
}

fn entry_byte(entry: u64) -> u8 {
    u8::try_from(entry + 1).unwrap()
}

fn place_of(entry: u64) -> u64 {
    entry * ENTRY_BYTES as u64
}

fn walk(pair: &Pair) -> BTreeSet<u64> {
    let is_whole = |entry: &u64| {
        pair.landed(place_of(*entry), ENTRY_BYTES) == [entry_byte(*entry); ENTRY_BYTES]
    };
    (0..ENTRIES).filter(is_whole).collect()
}

const MODES: [Durability; 4] =
    [Durability::Process, Durability::Sync, Durability::ReadBack, Durability::Platform];

#[test]
fn confirmed_entries_are_walked_and_durable_whatever_happens() {
    let mut confirmed = 0;
    for seed in 0..400 {
        for mode in MODES {
            let outcome = run(seed, mode);
            assert_eq!(outcome.unseen_by_walk, [], "{mode:?} seed {seed}");
            assert_eq!(outcome.lost_by_cut, [], "{mode:?} seed {seed}");
            confirmed += outcome.confirmed;
        }
    }
    assert!(confirmed > 4_000, "only {confirmed} confirmed: the test tests nothing");
}

#[test]
fn the_same_seed_gives_the_same_course() {
    let traces = |from: u64| (from..from + 20).map(|seed| run(seed, MODES[1]).trace);
    assert!(traces(5).eq(traces(5)));
    let different: BTreeSet<u64> = traces(5).collect();
    assert_eq!(different.len(), 20);
}

#[cfg(mutant = "all")]
mod planted {
    use super::*;

    fn finds(fault: &'static str, violates: impl Fn(&Outcome) -> bool) -> bool {
        base::mutant::plant(fault);
        let found = (0..200).any(|seed| MODES.iter().any(|mode| violates(&run(seed, *mode))));
        base::mutant::plant("");
        found
    }

    #[test]
    fn a_missing_fence_between_store_and_load_is_seen() {
        assert!(finds("shm_no_fence", |outcome| !outcome.unseen_by_walk.is_empty()));
    }

    #[test]
    fn a_read_that_passes_its_write_is_seen() {
        assert!(finds("read_before_write", |outcome| !outcome.unseen_by_walk.is_empty()));
        assert!(finds("read_before_write", |outcome| !outcome.lost_by_cut.is_empty()));
    }

    #[test]
    fn a_key_that_ends_too_early_is_seen() {
        base::mutant::plant("recycle_early");
        let after = (0..200).any(|seed| recycle(seed).1);
        base::mutant::plant("");
        assert!(after);
    }
}
