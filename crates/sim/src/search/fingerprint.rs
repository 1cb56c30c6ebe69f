//! What makes two states the same.
//!
//! A core holds numbers that only count up (chain ids, generations, nonces, its random state) and
//! never decide anything but equality. Two states that differ in nothing else have the same future,
//! so they count as one. The core's fields are private; its `Debug` text is a stable view of them by
//! name, and is parsed once per distinct core and remembered.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use base::MemberId;
use consensus::{Core, Message};

use super::state::{Member, Place, State, place_of};

/// A 64-bit fingerprint: multiply and rotate per word, mixed at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }

    fn finish(&self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What a core comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// All of it but the counters, once for each way of naming the members.
    hashes: Vec<u64>,
    /// Per peer, the ids of the chains in flight, oldest first.
    chains: Vec<(Place, Vec<u64>)>,
}

/// A way of naming the members: what each place is called.
pub(super) type Naming = Vec<Place>;

/// Every naming of `count` members if they are alike, otherwise the one they have.
pub(super) fn namings(count: usize, is_symmetric: bool) -> Vec<Naming> {
    if !is_symmetric {
        return vec![(0..count).collect()];
    }
    let mut all: Vec<Naming> = vec![Vec::new()];
    for next in 0..count {
        let inserted = all.iter().flat_map(|naming| {
            (0..=next).map(|at| {
                let mut longer = naming.clone();
                longer.insert(at, next);
                longer
            })
        });
        all = inserted.collect();
    }
    all
}

/// Fields that decide nothing within the search, with the reason.
const SKIPPED: [&str; 13] = [
    "next_sample", // a time, likewise
    "params",      // the same for all
    "random",      // feeds nonces and back-off; no timer ever fires here
    "gives_up",    // a random time
    "nonce",       // only carried along; segments are told apart by their grant word
    "stored",      // its values are taken from the superblock; at most one write is in flight
    "slots",       // which free slot a segment gets is a matter of names
    "slot",        // likewise
    "records",     // the fence's fresh segments: implied by its word
    "ends",        // what a fence sealed: only revoked later
    "next_chain",  // names of chains
    "has_started",
    "boundaries", // of a log whose digest, which is all of it, stands beside
];
/// Fields that matter to reads alone.
const FOR_READS: [&str; 3] = ["sequence", "confirmed", "after"];

/// Computes shapes, and remembers them.
#[derive(Debug)]
pub(super) struct Shapes {
    known: HashMap<u64, Arc<Shape>, BuildHasherDefault<Mix>>,
    text: String,
    pub(super) namings: Vec<Naming>,
    with_reads: bool,
}

/// Shapes remembered at one time, per thread.
const KNOWN_MAX: usize = 1 << 20;

impl Shapes {
    pub(super) fn new(namings: Vec<Naming>, with_reads: bool) -> Self {
        Self { known: HashMap::default(), text: String::new(), namings, with_reads }
    }

    pub(super) fn of(&mut self, core: &Core) -> Arc<Shape> {
        let mut raw = Mix::default();
        core.hash(&mut raw);
        let key = raw.finish();
        if let Some(shape) = self.known.get(&key) {
            return Arc::clone(shape);
        }
        self.text.clear();
        write!(self.text, "{core:?}").expect("a string takes everything");
        let text = self.text.as_bytes();
        let current = connections_in(text);
        let mut shape = Shape::default();
        for naming in &self.namings {
            let mut reader = Reader {
                naming,
                current: &current,
                with_reads: self.with_reads,
                chains: Vec::new(),
            };
            let mut hash = Mix::default();
            reader.read(text, &mut hash);
            shape.hashes.push(hash.finish());
            shape.chains = reader.chains;
        }
        let shape = Arc::new(shape);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&shape));
        shape
    }
}

/// The numbers of the connections that a core has now.
fn connections_in(text: &[u8]) -> Vec<u64> {
    const FIELD: &[u8] = b" connections: ";
    let Some(at) = text.windows(FIELD.len()).position(|window| window == FIELD) else {
        return Vec::new();
    };
    let value = at + FIELD.len();
    let list = &text[value..skip_value(text, value)];
    let name: &[u8] = b"Connection(";
    let places = list.windows(name.len()).enumerate().filter(|(_, window)| *window == name);
    places.map(|(at, _)| number_at(list, at + name.len()).0).collect()
}

/// Reads the `Debug` text of a core under one naming.
struct Reader<'a> {
    naming: &'a [Place],
    current: &'a [u64],
    with_reads: bool,
    chains: Vec<(Place, Vec<u64>)>,
}

impl Reader<'_> {
    fn read(&mut self, text: &[u8], hash: &mut Mix) {
        let mut at = 0;
        let mut in_chain = false;
        while at < text.len() {
            let start = at;
            while at < text.len() && (text[at].is_ascii_alphanumeric() || text[at] == b'_') {
                at += 1;
            }
            if at == start {
                if !matches!(text[at], b' ' | b',') {
                    hash.write_u8(text[at]);
                }
                at += 1;
                continue;
            }
            let word = std::str::from_utf8(&text[start..at]).unwrap_or_default();
            let value = at + 2;
            if text[at..].starts_with(b": ") {
                let end = skip_value(text, value);
                if self.is_skipped(word, &text[value..end]) {
                    at = end;
                } else if matches!(word, "peers" | "connections") {
                    self.read_set(&text[value..end], hash);
                    at = end;
                } else if word == "id" && in_chain {
                    let (number, _) = number_at(text, value);
                    if let Some((_, ids)) = self.chains.last_mut() {
                        ids.push(number);
                    }
                    in_chain = false;
                    at = end;
                } else {
                    hash.write(word.as_bytes());
                }
                continue;
            }
            match (word, member_in(word)) {
                ("Connection", _) => {
                    let (number, end) = number_at(text, at + 1);
                    hash.write_u8(u8::from(self.current.contains(&number)));
                    at = end;
                }
                ("Writing", _) => at = skip_value(text, at + 1),
                (_, Some(place)) => {
                    hash.write_usize(self.naming.get(place).copied().unwrap_or(place));
                }
                _ => {
                    in_chain |= word == "InFlight";
                    hash.write(word.as_bytes());
                }
            }
        }
    }

    fn is_skipped(&self, field: &str, value: &[u8]) -> bool {
        SKIPPED.contains(&field)
            || (!self.with_reads && FOR_READS.contains(&field))
            // That of a log, likewise; a change under way has no index before it.
            || (field == "configuration" && value.starts_with(b"("))
    }

    /// A list whose order decides nothing: of peers or connections.
    fn read_set(&mut self, list: &[u8], hash: &mut Mix) {
        let mut sum = 0_u64;
        let mut at = 1;
        while at < list.len() && list[at] != b']' {
            let end = skip_value(list, at);
            let element = &list[at..end];
            if let Some(id) = element.strip_prefix(b"Peer { id: m") {
                let (number, _) = number_at(id, 0);
                let id = MemberId(u32::try_from(number).unwrap_or(0));
                self.chains.push((place_of(id), Vec::new()));
            }
            let mut one = Mix::default();
            self.read(element, &mut one);
            sum = sum.wrapping_add(one.finish());
            at = end;
            while at < list.len() && matches!(list[at], b',' | b' ') {
                at += 1;
            }
        }
        hash.write_u64(sum);
    }
}

/// The place of the member whose id this word is.
fn member_in(word: &str) -> Option<Place> {
    let id = word.strip_prefix('m')?.parse().ok()?;
    Some(place_of(MemberId(id)))
}

fn number_at(text: &[u8], mut at: usize) -> (u64, usize) {
    let mut number = 0;
    while at < text.len() && text[at].is_ascii_digit() {
        number = number * 10 + u64::from(text[at] - b'0');
        at += 1;
    }
    (number, at)
}

/// The end of the value that begins at `at`.
fn skip_value(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0_u32;
    while at < text.len() {
        match text[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => break,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => break,
            _ => {}
        }
        at += 1;
    }
    at
}

impl Member {
    /// The member's part of the fingerprint under each naming.
    pub(super) fn marks(&self, namings: &[Naming]) -> Vec<u64> {
        let mut hash = Mix::default();
        let log = &self.log;
        (log.base.0, log.base_believed, log.path.0, log.segments.len()).hash(&mut hash);
        for segment in &log.segments {
            let grant = (segment.word, segment.ordinal, segment.is_own, segment.sealed);
            let content = (segment.first, segment.landed.0, segment.commits, segment.idle);
            (grant, content, segment.durable, segment.taken).hash(&mut hash);
            // How the disk names it, and how the core's superblock does.
            for superblock in [&*self.disk, self.core.superblock()] {
                let record = superblock.segments.iter().find(|r| segment.is_named_by(r));
                let seal = record.map(|record| record.seal.map(|seal| seal.last));
                seal.hash(&mut hash);
            }
        }
        for superblock in [&*self.disk, self.core.superblock()] {
            (superblock.term, superblock.grant, superblock.hole).hash(&mut hash);
        }
        let under_way = (self.writing.is_some(), self.walks, self.flushes, self.has_stored);
        self.walked.is_some().hash(&mut hash);
        (under_way, self.word, self.read).hash(&mut hash);
        if let Some(fetch) = &self.fetch {
            (fetch.from, fetch.through).hash(&mut hash);
        }
        let under = |(naming, shape): (&Naming, &u64)| {
            let name = |id: MemberId| naming.get(place_of(id)).copied();
            let mut hash = hash.clone();
            hash.write_u64(*shape);
            for superblock in [&*self.disk, self.core.superblock()] {
                let (vote, to) = (superblock.vote.map(name), superblock.granted_to.map(name));
                (vote, to).hash(&mut hash);
            }
            self.fetch.as_ref().map(|fetch| name(fetch.peer)).hash(&mut hash);
            hash.finish()
        };
        namings.iter().zip(&self.shape.hashes).map(under).collect()
    }

    /// The place of a chain among those in flight to a peer, counted from 1; 0: forgotten.
    pub(super) fn place_of_chain(&self, peer: Place, id: u64) -> usize {
        let known = self.shape.chains.iter().find(|(place, _)| *place == peer);
        let at = known.and_then(|(_, ids)| ids.iter().position(|&known| known == id));
        at.map_or(0, |at| at + 1)
    }
}

fn hash_message(message: &Message, hash: &mut Mix) {
    match message {
        Message::Vote { term, transfer, .. } => (0, term, transfer).hash(hash),
        Message::Follow { term, counted, .. } => (1, term, counted).hash(hash),
        Message::Granted(granted) => {
            (2, granted.word, granted.tail, granted.commit, granted.hole).hash(hash);
            granted.rooms.len().hash(hash);
        }
        other @ (Message::Refused { .. }
        | Message::Committed { .. }
        | Message::MoreRoom { .. }
        | Message::Install { .. }
        | Message::Installed { .. }
        | Message::FetchChunk { .. }
        | Message::Chunk { .. }
        | Message::Campaign { .. }) => (3, other).hash(hash),
    }
}

/// The fingerprint of a state: the same whatever its members are called, if they are alike.
pub(super) fn fingerprint(state: &State, namings: &[Naming]) -> u64 {
    // Mail is a set: the order in which it was sent decides nothing.
    let letters: Vec<_> = state
        .mail
        .iter()
        .map(|envelope| {
            let mut one = Mix::default();
            hash_message(&envelope.message, &mut one);
            (envelope.from, envelope.to, one.finish())
        })
        .collect();
    let mut rest = Mix::default();
    state.ghost.hash(&mut rest);
    state.left.hash(&mut rest);
    let count = state.count();
    let links: Vec<u64> = (0..count * count).map(|at| link_mark(state, at)).collect();
    let mut least = u64::MAX;
    for (at, naming) in namings.iter().enumerate() {
        let mut hash = rest.clone();
        let mut places = vec![0; naming.len()];
        for (place, &name) in naming.iter().enumerate() {
            places[name] = place;
        }
        for &place in &places {
            hash.write_u64(state.members[place].marks[at]);
        }
        let mut mail = 0_u64;
        for &(from, to, letter) in &letters {
            let mut one = Mix::default();
            (naming[from], naming[to], letter).hash(&mut one);
            mail = mail.wrapping_add(one.finish());
        }
        hash.write_u64(mail);
        for &from in &places {
            for &to in &places {
                hash.write_u64(links[from * count + to]);
            }
        }
        least = least.min(hash.finish());
    }
    least
}

fn link_mark(state: &State, at: usize) -> u64 {
    let (from, to) = (at / state.count(), at % state.count());
    let mut hash = Mix::default();
    let member = &state.members[from];
    let view = member.connections[to];
    hash.write_u8(u8::from(view != 0) + 2 * u8::from(state.is_connected(from, to)));
    let link = &state.links[at];
    hash.write_usize(link.chains.len());
    for posted in &link.chains {
        let place = member.place_of_chain(to, posted.id);
        let content = (posted.grant, posted.first, posted.content.0, posted.commits, posted.idle);
        (place, posted.is_dead, posted.is_mere, content).hash(&mut hash);
    }
    for sampled in &link.sampled {
        let place = member.place_of_chain(to, sampled.id);
        (place, sampled.connection == view, sampled.word, sampled.is_mere).hash(&mut hash);
    }
    hash.finish()
}
