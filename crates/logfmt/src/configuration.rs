//! The bytes of a configuration: payload of a `Kind::Configuration` entry, and part of the
//! superblock.
//!
//! ```text
//!   0  | voters u16 | outgoing u16 | learners u16 | 0 u16 |
//!   8  | id u32 | 0 u32 |                                     one member, 16 bytes:
//!  16  | incarnation u64 |                                    voters, outgoing, learners in turn
//! ```
//!
//! There is one encoding of a configuration: ids ascend within each part, so that equal
//! configurations are equal bytes and have equal digests.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::{Configuration, Incarnation, MEMBERS_MAX, Member, MemberId, MemberSet};

use crate::wire::Reader;

const MEMBER_LEN: usize = 16;
/// The most bytes of an encoded configuration: a member may stand in each of the three parts while
/// it moves between them, as far as decoding is concerned.
pub const CONFIGURATION_LEN_MAX: usize = 8 + 3 * MEMBERS_MAX * MEMBER_LEN;

/// Appends the bytes of a configuration.
///
/// # Panics
/// When a part has more than [`MEMBERS_MAX`] members, which a valid configuration has not.
pub fn encode_configuration(configuration: &Configuration, into: &mut Vec<u8>) {
    let parts = [&configuration.voters, &configuration.outgoing, &configuration.learners];
    for part in parts {
        base::check!(part.len() <= MEMBERS_MAX);
        let count = u16::try_from(part.len()).expect("a part has at most MEMBERS_MAX members");
        into.extend_from_slice(&count.to_le_bytes());
    }
    into.extend_from_slice(&[0; 2]);
    for member in parts.into_iter().flat_map(MemberSet::iter) {
        into.extend_from_slice(&member.id.0.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        into.extend_from_slice(&member.incarnation.0.to_le_bytes());
    }
}

/// The configuration that is all of `bytes`, or `None` when they are not the encoding of a valid
/// one.
#[must_use]
pub fn decode_configuration(bytes: &[u8]) -> Option<Configuration> {
    let configuration = decode_unvalidated(bytes)?;
    configuration.validate().ok()?;
    Some(configuration)
}

/// As [`decode_configuration`], but nobody at all is a configuration too: that of a region which
/// waits to be taken into a group.
pub(crate) fn decode_configuration_or_none(bytes: &[u8]) -> Option<Configuration> {
    let configuration = decode_unvalidated(bytes)?;
    if configuration != Configuration::default() {
        configuration.validate().ok()?;
    }
    Some(configuration)
}

fn decode_unvalidated(bytes: &[u8]) -> Option<Configuration> {
    let mut reader = Reader::new(bytes);
    let counts = [reader.u16()?, reader.u16()?, reader.u16()?];
    if reader.u16()? != 0 {
        return None;
    }
    let [voters, outgoing, learners] = counts;
    let configuration = Configuration {
        voters: decode_part(&mut reader, voters)?,
        outgoing: decode_part(&mut reader, outgoing)?,
        learners: decode_part(&mut reader, learners)?,
    };
    (reader.remaining() == 0).then_some(configuration)
}

fn decode_part(reader: &mut Reader<'_>, count: u16) -> Option<MemberSet> {
    if usize::from(count) > MEMBERS_MAX {
        return None;
    }
    let mut members = Vec::with_capacity(usize::from(count));
    let mut above = MemberId(0);
    for _ in 0..count {
        let id = MemberId(reader.u32()?);
        if id <= above || reader.u32()? != 0 {
            return None;
        }
        members.push(Member { id, incarnation: Incarnation(reader.u64()?) });
        above = id;
    }
    Some(MemberSet::new(members))
}
