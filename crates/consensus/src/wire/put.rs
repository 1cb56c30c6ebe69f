//! Bodies of messages, written. One field a column, in this order, `u64` unless it says otherwise:
//!
//! ```text
//! 1 Vote        term | nonce | transfer (0 or 1)
//! 2 Follow      term | nonce | counted
//! 3 Granted     word | tail index | tail term | tail digest | commit | first
//!               | configuration index | hole from | hole until | hole term | log key
//!               | complete u32 (0 or 1) | configuration bytes u32 | boundaries u32
//!               | extents u32 | rooms u32 | 0 u32
//!               | configuration | boundary.. | extent.. | room..
//! 4 Refused     asked | term | why (1 stale, 2 leader lives, 3 exhausted)
//! 5 MoreRoom    word | rooms u32 | 0 u32 | room..
//! 6 Install     word | index | term | digest | configuration index
//!               | state file | state length | state digest | configuration
//! 7 Installed   word | index
//! 8 FetchChunk  word | state file | number
//! 9 Chunk       word | state file | number | bytes..
//! 10 Campaign   term | transfer (0 or 1)
//! 11 Committed  word | index
//!
//! boundary      term | first
//! extent        slot u32 | 0 u32 | nonce | first | last | start | end
//! room          ordinal u32 | slot u32 | key | len
//! ```
//!
//! A configuration is encoded as in a log entry ([`logfmt::encode_configuration`]). No hole is
//! three zeros.

use base::Index;
use logfmt::{Boundary, Checkpoint, Extent, encode_configuration};

use super::{
    BOUNDARIES_MAX, CAMPAIGN, CHUNK, CHUNK_LEN_MAX, COMMITTED, EXTENTS_MAX, FETCH_CHUNK, FOLLOW,
    GRANTED, INSTALL, INSTALLED, MORE_ROOM, REFUSED, ROOMS_MAX, VOTE,
};
use crate::message::{Granted, Message, Room, VoteRefusal};

pub(super) const GRANTED_FIXED_LEN: usize = 11 * 8 + 6 * 4;
pub(super) const CHUNK_FIXED_LEN: usize = 3 * 8;
pub(super) const BOUNDARY_LEN: usize = 16;
pub(super) const EXTENT_LEN: usize = 48;
pub(super) const ROOM_LEN: usize = 24;

/// Appends the body and answers its kind.
pub(super) fn body(message: &Message, out: &mut Vec<u8>) -> u16 {
    match message {
        Message::Vote { term, nonce, transfer } => {
            u64s(out, &[term.0, nonce.0, u64::from(*transfer)]);
            VOTE
        }
        Message::Follow { term, nonce, counted } => {
            u64s(out, &[term.0, nonce.0, counted.0]);
            FOLLOW
        }
        Message::Granted(granted) => {
            put_granted(granted, out);
            GRANTED
        }
        Message::Refused { asked, term, why } => {
            u64s(out, &[asked.0, term.0, refusal_code(*why)]);
            REFUSED
        }
        Message::MoreRoom { word, rooms } => {
            u64s(out, &[word.0]);
            u32s(out, &[count(rooms.len(), ROOMS_MAX), 0]);
            put_rooms(rooms, out);
            MORE_ROOM
        }
        Message::Install { word, checkpoint } => {
            u64s(out, &[word.0]);
            put_checkpoint(checkpoint, out);
            INSTALL
        }
        Message::Installed { word, index } => {
            u64s(out, &[word.0, index.0]);
            INSTALLED
        }
        Message::FetchChunk { word, state, number } => {
            u64s(out, &[word.0, *state, *number]);
            FETCH_CHUNK
        }
        Message::Chunk { word, state, number, bytes } => {
            base::check!(bytes.len() <= CHUNK_LEN_MAX);
            u64s(out, &[word.0, *state, *number]);
            out.extend_from_slice(bytes);
            CHUNK
        }
        Message::Campaign { term, transfer } => {
            u64s(out, &[term.0, u64::from(*transfer)]);
            CAMPAIGN
        }
        Message::Committed { word, index } => {
            u64s(out, &[word.0, index.0]);
            COMMITTED
        }
    }
}

const fn refusal_code(why: VoteRefusal) -> u64 {
    match why {
        VoteRefusal::Stale => 1,
        VoteRefusal::LeaderLives => 2,
        VoteRefusal::Exhausted => 3,
    }
}

fn put_granted(granted: &Granted, out: &mut Vec<u8>) {
    let (configuration_index, configuration) = &granted.configuration;
    let mut encoded = Vec::new();
    encode_configuration(configuration, &mut encoded);
    let hole = granted.hole.map_or([0; 3], |hole| [hole.from.0, hole.until.0, hole.term.0]);
    base::check!(granted.hole.is_none_or(|hole| hole.from != Index(0)));
    let tail = granted.tail;
    u64s(out, &[granted.word.0, tail.index.0, tail.term.0, tail.digest.0]);
    u64s(out, &[granted.commit.0, granted.first.0, configuration_index.0]);
    u64s(out, &hole);
    u64s(out, &[granted.log_key]);
    u32s(out, &[u32::from(granted.complete), count(encoded.len(), usize::MAX)]);
    u32s(out, &[count(granted.boundaries.len(), BOUNDARIES_MAX)]);
    u32s(out, &[count(granted.extents.len(), EXTENTS_MAX)]);
    u32s(out, &[count(granted.rooms.len(), ROOMS_MAX), 0]);
    out.extend_from_slice(&encoded);
    for Boundary { term, first } in &granted.boundaries {
        u64s(out, &[term.0, first.0]);
    }
    for Extent { slot, nonce, first, last, start, end } in &granted.extents {
        u32s(out, &[slot.0, 0]);
        u64s(out, &[nonce.0, first.0, last.0, *start, *end]);
    }
    put_rooms(&granted.rooms, out);
}

fn put_rooms(rooms: &[Room], out: &mut Vec<u8>) {
    for Room { ordinal, slot, key, len } in rooms {
        u32s(out, &[*ordinal, slot.0]);
        u64s(out, &[*key, *len]);
    }
}

fn put_checkpoint(checkpoint: &Checkpoint, out: &mut Vec<u8>) {
    let Checkpoint { at, configuration_index, configuration, state } = checkpoint;
    u64s(out, &[at.index.0, at.term.0, at.digest.0, configuration_index.0]);
    u64s(out, &[state.id, state.length, state.digest.0]);
    encode_configuration(configuration, out);
}

fn count(len: usize, max: usize) -> u32 {
    base::check!(len <= max);
    u32::try_from(len).expect("every list is bounded")
}

fn u32s(out: &mut Vec<u8>, values: &[u32]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn u64s(out: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}
