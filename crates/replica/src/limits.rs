//! How much a shard needs of what it is given.
//!
//! ```text
//!   control memory   line of group 0 | line of group 1 | .. | line of group 63
//!   landing memory   control lines of the peers: 16 per group | suffixes of other logs
//!   a message        at least as much as the longest grant, chunk and greeting take
//! ```

use logfmt::CONTROL_LEN;
use logfmt::place::{BLOCK, payload_max};

use crate::{greeting::GROUPS_MAX, shared::PEERS_MAX};

/// Bytes of the longest message: a grant that names as many segments and terms as there may be.
pub(crate) const MESSAGE_MIN: u32 = 48 << 10;

/// Bytes of landing memory for suffixes of other logs; at least the largest entry must fit.
pub const FETCH_BYTES_MIN: u64 = 64 << 10;

/// Bytes of a shard's control memory.
pub const CONTROL_BYTES: u64 = GROUPS_MAX as u64 * CONTROL_LEN as u64;

/// Bytes of landing memory that a shard needs for groups with segments of `segment_len` bytes; a
/// multiple of a page.
#[must_use]
pub const fn landing_len(segment_len: u64) -> u64 {
    let entry_max = payload_max(segment_len) + BLOCK;
    let fetch = if entry_max > FETCH_BYTES_MIN { entry_max } else { FETCH_BYTES_MIN };
    (CONTROL_BYTES * PEERS_MAX + fetch).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use base::{
        ClusterId, Configuration, Digest, GrantWord, GroupId, Incarnation, Index, Member, MemberId,
        Nonce, SlotId, Term,
    };
    use consensus::wire::{BOUNDARIES_MAX, EXTENTS_MAX, ROOMS_MAX};
    use consensus::{Granted, Message, Room, wire};
    use logfmt::{
        Boundary, CONFIGURATION_LEN_MAX, Checkpoint, Extent, Hole, Position, StateFile,
        encode_configuration,
    };

    use super::*;
    use crate::greeting::{Greeting, GroupGreeting};
    use crate::receive::CHUNK;

    fn configuration() -> Configuration {
        let member = |id| Member { id: MemberId(id), incarnation: Incarnation(u64::MAX) };
        Configuration::of_voters((1..=16).map(member))
    }

    /// Bytes of a message if its configuration were as long as any.
    fn longest(message: &Message) -> usize {
        let (mut bytes, mut known) = (Vec::new(), Vec::new());
        wire::encode(GroupId(u32::MAX), message, &mut bytes);
        encode_configuration(&configuration(), &mut known);
        bytes.len() - known.len() + CONFIGURATION_LEN_MAX
    }

    #[test]
    fn a_grant_of_as_many_segments_and_terms_as_there_may_be_is_one_message() {
        let word = GrantWord::new(Term::MAX, u16::MAX);
        let terms = u64::try_from(BOUNDARIES_MAX).unwrap();
        let slots = 0..u32::try_from(EXTENTS_MAX).unwrap();
        let extent = |slot: u32| {
            let index = Index(u64::from(slot) + 1);
            let (first, last, nonce) = (index, index, Nonce(u64::MAX));
            Extent { slot: SlotId(slot), nonce, first, last, start: 64, end: 128 }
        };
        let rooms = 0..u32::try_from(ROOMS_MAX).unwrap();
        let room = |at| Room { ordinal: at, slot: SlotId(at), key: u64::MAX, len: 1 << 20 };
        let granted = Granted {
            word,
            tail: Position { index: Index(1 << 60), term: Term(terms), digest: Digest(1) },
            boundaries: (1..=terms)
                .map(|term| Boundary { term: Term(term), first: Index(term) })
                .collect(),
            complete: false,
            commit: Index(1 << 60),
            first: Index(1),
            configuration: (Index(1), configuration()),
            hole: Some(Hole { from: Index(2), until: Index(3), term: Term(1) }),
            extents: slots.map(extent).collect(),
            log_key: u64::MAX,
            rooms: rooms.map(room).collect(),
        };
        let len = longest(&Message::Granted(Box::new(granted)));
        let lists = BOUNDARIES_MAX * 16 + EXTENTS_MAX * 48 + ROOMS_MAX * 24;
        assert_eq!(len, 16 + 112 + CONFIGURATION_LEN_MAX + lists);
        assert!(len <= MESSAGE_MIN as usize, "{len} bytes");
    }

    #[test]
    fn an_offered_checkpoint_and_a_chunk_of_its_state_are_one_message_each() {
        let word = GrantWord::new(Term::MAX, u16::MAX);
        let checkpoint = Checkpoint {
            at: Position { index: Index(1 << 60), term: Term(1), digest: Digest(1) },
            configuration_index: Index(1),
            configuration: configuration(),
            state: StateFile { id: u64::MAX, length: u64::MAX, digest: Digest(u64::MAX) },
        };
        let install = longest(&Message::Install { word, checkpoint: Box::new(checkpoint) });
        assert!(install <= MESSAGE_MIN as usize, "{install} bytes");
        let bytes = vec![0xab; usize::try_from(CHUNK).unwrap()];
        let chunk = Message::Chunk { word, state: u64::MAX, number: u64::MAX, bytes };
        let mut encoded = Vec::new();
        wire::encode(GroupId(u32::MAX), &chunk, &mut encoded);
        assert!(encoded.len() <= MESSAGE_MIN as usize, "{} bytes", encoded.len());
    }

    #[test]
    fn the_greeting_of_a_full_shard_is_one_message() {
        let group = GroupGreeting {
            group: GroupId(1),
            line: 0,
            incarnation: Incarnation(1),
            cluster: ClusterId(1),
            log_key: 1,
            segment_len: 1 << 20,
            mode: 1,
        };
        let greeting = Greeting { control_key: 1, groups: vec![group; GROUPS_MAX] };
        let bytes = greeting.encode();
        assert!(bytes.len() <= MESSAGE_MIN as usize, "{} bytes", bytes.len());
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
    }

    #[test]
    fn landing_memory_holds_every_line_and_the_largest_entry() {
        for segment_len in [4096, 1 << 20, 64 << 20] {
            let fetch = landing_len(segment_len) - 64 * 16 * CONTROL_LEN as u64;
            assert!(fetch >= FETCH_BYTES_MIN && fetch >= payload_max(segment_len) + BLOCK);
        }
    }
}
