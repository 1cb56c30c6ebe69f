//! Random messages that the core could send: every rule of `take` holds for them.

use base::{Configuration, Digest, GrantWord, Index, Nonce, Random, SlotId, Term};
use logfmt::{Boundary, Checkpoint, Extent, Hole, Position, StateFile};

use super::{INDEX_MAX, extent, members};
use crate::message::{Granted, Message, Room, VoteRefusal};

pub(super) fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(u64::try_from(bound).unwrap())).unwrap()
}

pub(super) fn random_message(random: &mut Random) -> Message {
    let term = Term(1 + random.below(Term::MAX.0));
    let count = u16::try_from(1 + random.below(u64::from(u16::MAX))).unwrap();
    let word = GrantWord::new(term, count);
    let nonce = Nonce(random.next());
    let index = Index(random.below(INDEX_MAX.0));
    let transfer = random.one_in(2);
    let state = 1 + random.below(u64::MAX);
    match random.below(11) {
        0 => Message::Vote { term, nonce, transfer },
        1 => Message::Follow { term, nonce, counted: index },
        2 => Message::Granted(Box::new(random_granted(random, word))),
        3 => {
            let whys = [VoteRefusal::Stale, VoteRefusal::LeaderLives, VoteRefusal::Exhausted];
            let why = whys[below(random, 3)];
            Message::Refused { asked: term, term: Term(random.below(1 << 48)), why }
        }
        4 => {
            let first = u32::try_from(random.below(1000)).unwrap();
            Message::MoreRoom { word, rooms: random_rooms(random, first) }
        }
        5 => Message::Install { word, checkpoint: Box::new(random_checkpoint(random)) },
        6 => Message::Installed { word, index },
        7 => Message::FetchChunk { word, state, number: random.next() },
        8 => {
            let bytes = vec![0xc5; below(random, 5000)];
            Message::Chunk { word, state, number: random.next(), bytes }
        }
        9 => Message::Campaign { term, transfer },
        _ => Message::Committed { word, index },
    }
}

fn random_granted(random: &mut Random, word: GrantWord) -> Granted {
    let (mut term, mut index) = (0, 0);
    let mut boundaries = vec![Boundary { term: Term(0), first: Index(0) }];
    for _ in 0..random.below(20) {
        if term == word.term().0 {
            break;
        }
        term += 1 + random.below(word.term().0 - term);
        index += 1 + random.below(1 << 50);
        boundaries.push(Boundary { term: Term(term), first: Index(index) });
    }
    let tail = Position { index: Index(index), term: Term(term), digest: Digest(random.next()) };
    let first = Index(1 + random.below(index + 1));
    let hole = random.one_in(2).then(|| Hole {
        from: Index(1 + random.below(INDEX_MAX.0)),
        until: Index(random.below(INDEX_MAX.0)),
        term: Term(random.below(1 << 48)),
    });
    Granted {
        word,
        tail,
        boundaries,
        complete: random.one_in(2),
        commit: Index(random.below(INDEX_MAX.0)),
        first,
        configuration: (Index(random.below(index + 1)), random_configuration(random)),
        hole,
        extents: random_extents(random, (first.0, index)),
        log_key: random.next(),
        rooms: random_rooms(random, 0),
    }
}

fn random_extents(random: &mut Random, (mut first, tail): (u64, u64)) -> Vec<Extent> {
    let mut extents = Vec::new();
    while first <= tail && !random.one_in(9) {
        let entries = 1 + random.below((tail - first + 1).min(100));
        let start = 64 * (1 + random.below(1000));
        let end = start + 64 * (entries + random.below(1000));
        let slot = u32::try_from(random.below(512)).unwrap();
        extents.push(extent(slot, (first, first + entries - 1), (start, end)));
        first += entries;
    }
    extents
}

fn random_rooms(random: &mut Random, first: u32) -> Vec<Room> {
    let count = u32::try_from(random.below(17)).unwrap();
    let len = 4096 << random.below(16);
    let room = |at| Room { ordinal: first + at, slot: SlotId(at * 31), key: random.next(), len };
    (0..count).map(room).collect()
}

fn random_configuration(random: &mut Random) -> Configuration {
    if random.one_in(8) {
        return Configuration::default();
    }
    let ids: Vec<u32> = (1..=16).collect();
    let (voters, learners) = ids.split_at(1 + below(random, 16));
    let outgoing = &ids[below(random, 16)..];
    let outgoing = if random.one_in(2) { outgoing } else { &[] };
    Configuration {
        voters: members(voters),
        outgoing: members(outgoing),
        learners: members(learners),
    }
}

fn random_checkpoint(random: &mut Random) -> Checkpoint {
    let index = 1 + random.below(INDEX_MAX.0);
    let term = Term(1 + random.below(Term::MAX.0));
    Checkpoint {
        at: Position { index: Index(index), term, digest: Digest(random.next()) },
        configuration_index: Index(random.below(index + 1)),
        configuration: random_configuration(random),
        state: StateFile {
            id: 1 + random.below(1000),
            length: random.next(),
            digest: Digest(random.next()),
        },
    }
}
