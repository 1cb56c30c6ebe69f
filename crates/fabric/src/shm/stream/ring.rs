//! One direction of a stream: one producer, one consumer, bounded, and neither believes the other.
//!
//! ```text
//!      consumed                        produced
//!        v                               v
//! +------+-------------------------------+---------------+
//! | free | message | message | part of a message | free  |
//! +------+-------------------------------+---------------+
//! ```

use pmem::Mapping;

use super::MESSAGE_MAX;

const HEAD_LEN: u64 = 8;

/// Where the words of a ring lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) produced: u64,
    pub(super) consumed: u64,
    /// 1 while the producer waits for room.
    pub(super) stuck: u64,
}

/// Why something could not be sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Full,
    TooLong,
    /// The other end says what it cannot say.
    Broken,
}

/// The bytes of a ring.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    at: u64,
    len: u64,
}

impl Bytes {
    fn put(self, map: &Mapping, position: u64, bytes: &[u8]) {
        let (start, first) = self.split(position, bytes.len());
        map.copy_in(start, &bytes[..first]);
        if first < bytes.len() {
            map.copy_in(self.at, &bytes[first..]);
        }
    }

    fn get(self, map: &Mapping, position: u64, into: &mut [u8]) {
        let (start, first) = self.split(position, into.len());
        map.copy_out(start, &mut into[..first]);
        if first < into.len() {
            map.copy_out(self.at, &mut into[first..]);
        }
    }

    /// Where `position` lies, and how many of `len` bytes come before the ring's end.
    fn split(self, position: u64, len: usize) -> (u64, usize) {
        let offset = position % self.len;
        let first = usize::try_from(self.len - offset).unwrap_or(usize::MAX).min(len);
        (self.at + offset, first)
    }
}

fn padded(len: u64) -> u64 {
    len.next_multiple_of(8)
}

/// The producer's side.
#[derive(Debug)]
pub(super) struct Producer {
    place: Place,
    bytes: Bytes,
    produced: u64,
    consumed: u64,
    /// A framed message of which the bytes from `unsent_at` on are not in the ring yet.
    unsent: Vec<u8>,
    unsent_at: usize,
}

impl Producer {
    pub(super) const fn new(place: Place, at: u64, len: u64) -> Self {
        let bytes = Bytes { at, len };
        Self { place, bytes, produced: 0, consumed: 0, unsent: Vec::new(), unsent_at: 0 }
    }

    pub(super) const fn has_unsent(&self) -> bool {
        self.unsent_at < self.unsent.len()
    }

    /// Whether there is any room, as far as the consumer says.
    pub(super) fn has_room(&self, map: &Mapping) -> bool {
        map.load(self.place.consumed) != self.consumed || self.room() > 0
    }

    const fn room(&self) -> u64 {
        self.bytes.len - (self.produced - self.consumed)
    }

    fn look(&mut self, map: &Mapping) -> Result<u64, Fault> {
        let consumed = map.load(self.place.consumed);
        if consumed < self.consumed || self.produced < consumed || !consumed.is_multiple_of(8) {
            return Err(Fault::Broken);
        }
        self.consumed = consumed;
        Ok(self.room())
    }

    fn publish(&mut self, map: &Mapping, count: u64) {
        self.produced += count;
        // x86-64 keeps the order of stores, and `Mapping` stores by volatile accesses.
        map.store(self.place.produced, self.produced);
    }

    /// Sends a message. Whether something of it is in the ring now.
    pub(super) fn send(&mut self, map: &Mapping, parts: &[&[u8]]) -> Result<bool, Fault> {
        if self.has_unsent() {
            return Err(Fault::Full);
        }
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if len > MESSAGE_MAX {
            return Err(Fault::TooLong);
        }
        let needed = HEAD_LEN + padded(len);
        if self.room() < needed && self.look(map)? < needed {
            self.hold_back(parts, len);
            return self.flush(map);
        }
        self.bytes.put(map, self.produced, &len.to_le_bytes());
        let mut at = self.produced + HEAD_LEN;
        for part in parts {
            self.bytes.put(map, at, part);
            at += part.len() as u64;
        }
        self.publish(map, needed);
        Ok(true)
    }

    fn hold_back(&mut self, parts: &[&[u8]], len: u64) {
        self.unsent.clear();
        self.unsent_at = 0;
        self.unsent.extend_from_slice(&len.to_le_bytes());
        for part in parts {
            self.unsent.extend_from_slice(part);
        }
        self.unsent.resize(self.unsent.len().next_multiple_of(8), 0);
    }

    /// Moves what waits into the ring, as far as there is room. Whether something moved.
    pub(super) fn flush(&mut self, map: &Mapping) -> Result<bool, Fault> {
        let mut moved = false;
        while self.has_unsent() {
            let room = usize::try_from(self.look(map)?).unwrap_or(usize::MAX);
            let count = room.min(self.unsent.len() - self.unsent_at);
            if count == 0 {
                // Said first and looked again after it: the consumer looks after it has moved.
                map.store(self.place.stuck, 1);
                map.fence();
                if self.look(map)? == 0 {
                    return Ok(moved);
                }
                continue;
            }
            let part = &self.unsent[self.unsent_at..self.unsent_at + count];
            self.bytes.put(map, self.produced, part);
            self.publish(map, count as u64);
            self.unsent_at += count;
            moved = true;
        }
        map.store(self.place.stuck, 0);
        self.unsent = Vec::new();
        self.unsent_at = 0;
        Ok(moved)
    }
}

/// What a look into the ring brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// A whole message stands in the caller's buffer.
    pub(super) is_whole: bool,
    /// Room was made that the producer waits for.
    pub(super) is_stuck: bool,
}

/// The consumer's side.
#[derive(Debug)]
pub(super) struct Consumer {
    place: Place,
    bytes: Bytes,
    produced: u64,
    consumed: u64,
    /// A message that comes in pieces: its bytes so far, and how many it will have.
    partial: Option<(Vec<u8>, u64)>,
}

impl Consumer {
    pub(super) const fn new(place: Place, at: u64, len: u64) -> Self {
        let bytes = Bytes { at, len };
        Self { place, bytes, produced: 0, consumed: 0, partial: None }
    }

    /// Whether there is something that was not looked at.
    pub(super) fn has_more(&self, map: &Mapping) -> bool {
        map.load(self.place.produced) != self.consumed
    }

    fn look(&mut self, map: &Mapping) -> Result<u64, Fault> {
        let produced = map.load(self.place.produced);
        let is_possible = produced >= self.produced
            && produced - self.consumed <= self.bytes.len
            && produced.is_multiple_of(8);
        if !is_possible {
            return Err(Fault::Broken);
        }
        self.produced = produced;
        Ok(produced - self.consumed)
    }

    /// Frees `count` bytes. Whether the producer waits for them.
    fn free(&mut self, map: &Mapping, count: u64) -> bool {
        self.consumed += count;
        map.store(self.place.consumed, self.consumed);
        map.fence();
        map.load(self.place.stuck) != 0
    }

    /// Takes the next message into `into`, if it is there.
    pub(super) fn receive(&mut self, map: &Mapping, into: &mut Vec<u8>) -> Result<Taken, Fault> {
        into.clear();
        let there = match self.produced - self.consumed {
            0 => self.look(map)?,
            there => there,
        };
        if there == 0 {
            return Ok(Taken { is_whole: false, is_stuck: false });
        }
        if self.partial.is_some() {
            return self.go_on(map, into);
        }
        let mut head = [0; 8];
        self.bytes.get(map, self.consumed, &mut head);
        let len = u64::from_le_bytes(head);
        if len > MESSAGE_MAX {
            return Err(Fault::Broken);
        }
        let needed = HEAD_LEN + padded(len);
        if there < needed && self.look(map)? < needed {
            self.partial = Some((Vec::new(), len));
            let is_stuck = self.free(map, HEAD_LEN);
            let taken = self.go_on(map, into)?;
            return Ok(Taken { is_stuck: is_stuck || taken.is_stuck, ..taken });
        }
        into.resize(usize::try_from(len).map_err(|_| Fault::Broken)?, 0);
        self.bytes.get(map, self.consumed + HEAD_LEN, into);
        let is_stuck = self.free(map, needed);
        Ok(Taken { is_whole: true, is_stuck })
    }

    /// Takes more of a message that comes in pieces.
    fn go_on(&mut self, map: &Mapping, into: &mut Vec<u8>) -> Result<Taken, Fault> {
        let there = self.look(map)?;
        let Some((bytes, len)) = &mut self.partial else {
            return Ok(Taken { is_whole: false, is_stuck: false });
        };
        let so_far = bytes.len() as u64;
        let wanted = padded(*len) - so_far;
        let count = there.min(wanted);
        let old = bytes.len();
        // Grows by what has arrived, whatever the length claims.
        bytes.resize(old + usize::try_from(count).map_err(|_| Fault::Broken)?, 0);
        self.bytes.get(map, self.consumed, &mut bytes[old..]);
        let (is_whole, len) = (count == wanted, *len);
        let is_stuck = count > 0 && self.free(map, count);
        if is_whole && let Some((mut bytes, _)) = self.partial.take() {
            bytes.truncate(usize::try_from(len).map_err(|_| Fault::Broken)?);
            *into = bytes;
        }
        Ok(Taken { is_whole, is_stuck })
    }
}
