//! Bodies of messages, read: the layouts of [`super::put`] and what makes sense in them.

use std::collections::BTreeSet;

use base::{Configuration, Digest, GrantWord, Index, Nonce, SlotId, Term};
use logfmt::place::{FIRST_OFFSET, LINE};
use logfmt::{
    Boundary, CONFIGURATION_LEN_MAX, Checkpoint, Extent, Hole, Position, SEGMENT_LEN_FLOOR,
    SEGMENT_LEN_MAX, StateFile, decode_configuration,
};

use super::put::{BOUNDARY_LEN, EXTENT_LEN, ROOM_LEN};
use super::{
    BOUNDARIES_MAX, CAMPAIGN, CHUNK, CHUNK_LEN_MAX, COMMITTED, EXTENTS_MAX, FETCH_CHUNK, FOLLOW,
    GRANTED, HEADER_LEN, INDEX_MAX, INSTALL, INSTALLED, MORE_ROOM, REFUSED, ROOMS_MAX, VOTE,
    WireError,
};
use crate::message::{Granted, Message, Room, VoteRefusal};

/// The encoding of a configuration of nobody: that of a member which waits to be taken in.
const NOBODY: [u8; 8] = [0; 8];

/// The message of this kind that is all of `body`.
pub(super) fn body(kind: u16, body: &[u8]) -> Result<Message, WireError> {
    let mut fields = Fields { rest: body, whole: body.len(), at: 0 };
    let message = match kind {
        VOTE => Message::Vote {
            term: fields.leading_term("term")?,
            nonce: Nonce(fields.u64("nonce")?),
            transfer: fields.flag_u64("transfer")?,
        },
        FOLLOW => Message::Follow {
            term: fields.leading_term("term")?,
            nonce: Nonce(fields.u64("nonce")?),
            counted: fields.index("counted")?,
        },
        GRANTED => Message::Granted(Box::new(take_granted(&mut fields)?)),
        REFUSED => Message::Refused {
            asked: fields.leading_term("asked")?,
            term: fields.term("term")?,
            why: take_refusal(&mut fields)?,
        },
        MORE_ROOM => {
            let word = fields.word()?;
            let rooms = fields.count("room count", ROOMS_MAX)?;
            fields.zero("reserved")?;
            Message::MoreRoom { word, rooms: take_rooms(&mut fields, rooms)? }
        }
        INSTALL => Message::Install {
            word: fields.word()?,
            checkpoint: Box::new(take_checkpoint(&mut fields)?),
        },
        INSTALLED => Message::Installed { word: fields.word()?, index: fields.index("index")? },
        FETCH_CHUNK => Message::FetchChunk {
            word: fields.word()?,
            state: fields.state_file()?,
            number: fields.u64("chunk number")?,
        },
        CHUNK => Message::Chunk {
            word: fields.word()?,
            state: fields.state_file()?,
            number: fields.u64("chunk number")?,
            bytes: fields.rest("chunk bytes", CHUNK_LEN_MAX)?.to_vec(),
        },
        CAMPAIGN => Message::Campaign {
            term: fields.leading_term("term")?,
            transfer: fields.flag_u64("transfer")?,
        },
        COMMITTED => Message::Committed { word: fields.word()?, index: fields.index("index")? },
        found => return Err(WireError::Kind { found }),
    };
    fields.end()?;
    Ok(message)
}

fn take_refusal(fields: &mut Fields<'_>) -> Result<VoteRefusal, WireError> {
    match fields.u64("refusal")? {
        1 => Ok(VoteRefusal::Stale),
        2 => Ok(VoteRefusal::LeaderLives),
        3 => Ok(VoteRefusal::Exhausted),
        _ => Err(fields.malformed("refusal")),
    }
}

fn take_granted(fields: &mut Fields<'_>) -> Result<Granted, WireError> {
    let word = fields.word()?;
    let tail = fields.position(["tail index", "tail term", "tail digest"])?;
    fields.must(tail.term <= word.term(), "tail")?;
    let commit = fields.index("commit")?;
    let first = fields.index("first")?;
    fields.must(first.0 != 0 && first <= tail.index.next(), "first")?;
    let configuration_index = fields.index("configuration index")?;
    fields.must(configuration_index <= tail.index, "configuration index")?;
    let hole = take_hole(fields)?;
    let log_key = fields.u64("log key")?;
    let complete = fields.flag_u32("complete")?;
    let configuration_len = fields.count("configuration length", CONFIGURATION_LEN_MAX)?;
    let boundaries = fields.count("boundary count", BOUNDARIES_MAX)?;
    let extents = fields.count("extent count", EXTENTS_MAX)?;
    let rooms = fields.count("room count", ROOMS_MAX)?;
    fields.zero("reserved")?;
    let configuration = take_configuration(fields, configuration_len)?;
    let granted = Granted {
        word,
        tail,
        boundaries: take_boundaries(fields, boundaries, tail)?,
        complete,
        commit,
        first,
        configuration: (configuration_index, configuration),
        hole,
        extents: take_extents(fields, extents, tail.index)?,
        log_key,
        rooms: take_rooms(fields, rooms)?,
    };
    fields.must(granted.rooms.first().is_none_or(|room| room.ordinal == 0), "rooms")?;
    Ok(granted)
}

/// A hole's `until` may lie below its `from`: then nobody had counted what is missing.
fn take_hole(fields: &mut Fields<'_>) -> Result<Option<Hole>, WireError> {
    let from = fields.index("hole from")?;
    let until = fields.index("hole until")?;
    let term = fields.term("hole term")?;
    if from.0 == 0 {
        fields.must(until.0 == 0 && term.0 == 0, "hole")?;
        return Ok(None);
    }
    Ok(Some(Hole { from, until, term }))
}

/// Terms and first indexes ascend, and the last term is the tail's.
fn take_boundaries(
    fields: &mut Fields<'_>,
    count: usize,
    tail: Position,
) -> Result<Vec<Boundary>, WireError> {
    let mut boundaries: Vec<Boundary> = fields.list(count, BOUNDARY_LEN, "boundaries")?;
    for _ in 0..count {
        let term = fields.term("boundary term")?;
        let first = fields.index("boundary first")?;
        let ascends = boundaries.last().is_none_or(|last| last.term < term && last.first < first);
        let is_below = term <= tail.term && first <= tail.index;
        fields.must(ascends && is_below && (term.0 == 0) == (first.0 == 0), "boundary")?;
        boundaries.push(Boundary { term, first });
    }
    fields.must(boundaries.last().is_none_or(|last| last.term == tail.term), "boundaries")?;
    Ok(boundaries)
}

/// Entries follow one another up to the tail; an entry takes at least a line.
fn take_extents(
    fields: &mut Fields<'_>,
    count: usize,
    tail: Index,
) -> Result<Vec<Extent>, WireError> {
    let mut extents: Vec<Extent> = fields.list(count, EXTENT_LEN, "extents")?;
    for _ in 0..count {
        let slot = fields.slot("extent slot")?;
        fields.zero("reserved")?;
        let nonce = Nonce(fields.u64("extent nonce")?);
        let first = fields.index("extent first")?;
        let follows = extents.last().is_none_or(|before| before.last.next() == first);
        fields.must(first.0 != 0 && follows, "extent first")?;
        let last = fields.index("extent last")?;
        fields.must(first <= last && last <= tail, "extent last")?;
        let start = fields.u64("extent start")?;
        fields.must(FIRST_OFFSET <= start && start.is_multiple_of(LINE), "extent start")?;
        let end = fields.u64("extent end")?;
        fields.must(end <= SEGMENT_LEN_MAX && end.is_multiple_of(LINE), "extent end")?;
        let lines = end.checked_sub(start).map_or(0, |bytes| bytes / LINE);
        let entries = last.0.saturating_sub(first.previous().0);
        fields.must(entries <= lines, "extent end")?;
        extents.push(Extent { slot, nonce, first, last, start, end });
    }
    Ok(extents)
}

/// Ordinals count up by one, and a slot is granted once.
fn take_rooms(fields: &mut Fields<'_>, count: usize) -> Result<Vec<Room>, WireError> {
    let mut rooms: Vec<Room> = fields.list(count, ROOM_LEN, "rooms")?;
    let mut slots = BTreeSet::new();
    for _ in 0..count {
        let ordinal = fields.u32("room ordinal")?;
        let follows =
            rooms.last().is_none_or(|before| before.ordinal.checked_add(1) == Some(ordinal));
        fields.must(follows, "room ordinal")?;
        let slot = fields.slot("room slot")?;
        fields.must(slots.insert(slot), "room slot")?;
        let key = fields.u64("room key")?;
        let len = fields.u64("room length")?;
        let fits = (SEGMENT_LEN_FLOOR..=SEGMENT_LEN_MAX).contains(&len);
        fields.must(fits && len.is_power_of_two(), "room length")?;
        rooms.push(Room { ordinal, slot, key, len });
    }
    Ok(rooms)
}

fn take_checkpoint(fields: &mut Fields<'_>) -> Result<Checkpoint, WireError> {
    let at = fields.position(["checkpoint index", "checkpoint term", "checkpoint digest"])?;
    let configuration_index = fields.index("configuration index")?;
    fields.must(configuration_index <= at.index, "configuration index")?;
    let state = StateFile {
        id: fields.u64("state file")?,
        length: fields.u64("state length")?,
        digest: Digest(fields.u64("state digest")?),
    };
    fields.must(state.id != 0 || state.length == 0, "state length")?;
    fields.must(state.id != 0 || at.index.0 == 0, "state file")?;
    let configuration = take_configuration(fields, fields.rest.len())?;
    Ok(Checkpoint { at, configuration_index, configuration, state })
}

fn take_configuration(fields: &mut Fields<'_>, len: usize) -> Result<Configuration, WireError> {
    let bytes = fields.take(len, "configuration")?;
    if bytes == NOBODY {
        return Ok(Configuration::default());
    }
    decode_configuration(bytes).ok_or_else(|| fields.malformed("configuration"))
}

/// Takes fields from the front of a body and remembers where the last one stood.
struct Fields<'a> {
    rest: &'a [u8],
    whole: usize,
    at: usize,
}

impl<'a> Fields<'a> {
    /// The field that was just read, or could not be read, makes no sense.
    fn malformed(&self, what: &'static str) -> WireError {
        let at = self.at.saturating_add(HEADER_LEN);
        WireError::Malformed { what, at: u32::try_from(at).unwrap_or(u32::MAX) }
    }

    fn must(&self, holds: bool, what: &'static str) -> Result<(), WireError> {
        if holds { Ok(()) } else { Err(self.malformed(what)) }
    }

    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        self.at = self.whole.saturating_sub(self.rest.len());
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.malformed(what))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let bytes = self.take(N, what)?;
        bytes.try_into().map_err(|_| self.malformed(what))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn zero(&mut self, what: &'static str) -> Result<(), WireError> {
        let value = self.u32(what)?;
        self.must(value == 0, what)
    }

    fn flag_u32(&mut self, what: &'static str) -> Result<bool, WireError> {
        let value = self.u32(what)?;
        self.must(value <= 1, what)?;
        Ok(value == 1)
    }

    fn flag_u64(&mut self, what: &'static str) -> Result<bool, WireError> {
        let value = self.u64(what)?;
        self.must(value <= 1, what)?;
        Ok(value == 1)
    }

    fn count(&mut self, what: &'static str, max: usize) -> Result<usize, WireError> {
        let count = usize::try_from(self.u32(what)?).unwrap_or(usize::MAX);
        self.must(count <= max, what)?;
        Ok(count)
    }

    /// An empty list with room for `count` elements, whose bytes are all there.
    fn list<T>(
        &mut self,
        count: usize,
        len: usize,
        what: &'static str,
    ) -> Result<Vec<T>, WireError> {
        self.at = self.whole.saturating_sub(self.rest.len());
        self.must(count.saturating_mul(len) <= self.rest.len(), what)?;
        Ok(Vec::with_capacity(count))
    }

    fn rest(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let bytes = self.take(self.rest.len(), what)?;
        self.must(bytes.len() <= max, what)?;
        Ok(bytes)
    }

    fn end(&mut self) -> Result<(), WireError> {
        self.rest("trailing bytes", 0).map(|_| ())
    }

    fn index(&mut self, what: &'static str) -> Result<Index, WireError> {
        let index = Index(self.u64(what)?);
        self.must(index <= INDEX_MAX, what)?;
        Ok(index)
    }

    fn term(&mut self, what: &'static str) -> Result<Term, WireError> {
        let term = Term(self.u64(what)?);
        self.must(term <= Term::MAX, what)?;
        Ok(term)
    }

    /// A term that somebody leads or campaigns in: not the one before any election.
    fn leading_term(&mut self, what: &'static str) -> Result<Term, WireError> {
        let term = self.term(what)?;
        self.must(term != Term(0), what)?;
        Ok(term)
    }

    /// A word that grants something.
    fn word(&mut self) -> Result<GrantWord, WireError> {
        let word = GrantWord(self.u64("grant word")?);
        self.must(!word.is_revoked() && word.term() != Term(0), "grant word")?;
        Ok(word)
    }

    /// The start of a log has neither index nor term; an entry has both.
    fn position(
        &mut self,
        [index, term, digest]: [&'static str; 3],
    ) -> Result<Position, WireError> {
        let position = Position {
            index: self.index(index)?,
            term: self.term(term)?,
            digest: Digest(self.u64(digest)?),
        };
        self.must((position.index.0 == 0) == (position.term.0 == 0), index)?;
        Ok(position)
    }

    fn slot(&mut self, what: &'static str) -> Result<SlotId, WireError> {
        let slot = SlotId(self.u32(what)?);
        self.must(slot.0 < logfmt::SEGMENTS_MAX, what)?;
        Ok(slot)
    }

    /// A state file that has bytes: 0 is the empty state.
    fn state_file(&mut self) -> Result<u64, WireError> {
        let id = self.u64("state file")?;
        self.must(id != 0, "state file")?;
        Ok(id)
    }
}
