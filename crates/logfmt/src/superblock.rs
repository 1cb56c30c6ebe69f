//! The superblock: two copies, written in turn, so that a torn write loses only itself.
//!
//! The fixed part is drawn in `docs/formats/superblock.md`; the first 24 bytes (magic, version,
//! length, checksum) keep their place and meaning in every version, so that an older program can
//! tell "newer" from "broken".
//!
//! Invariant: generation g is written to copy g % 2. The copy that is not being written is whole,
//! whatever happens, so at least one copy always decodes unless the medium lost both.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::{
    BootId, ClusterId, Digest, Durability, GrantWord, GroupId, Incarnation, Index, MemberId, Nonce,
    SlotId, Term,
};
use xxhash_rust::xxh3::Xxh3;

use crate::configuration::{
    CONFIGURATION_LEN_MAX, decode_configuration_or_none, encode_configuration,
};
use crate::layout::RegionLayout;
use crate::place::{FIRST_OFFSET, LINE};
use crate::wire::Reader;
use crate::{Checkpoint, Hole, Identity, Position, Seal, SegmentRecord, StateFile, Superblock};

/// Bytes of one copy, a constant so that both copies are found before anything is known: room for
/// [`SEGMENTS_MAX`] records, a multiple of the block that any device writes.
pub const COPY_LEN: u64 = 32 << 10;
/// The most segment records, and so the most slots of a pool: 512 of 128 MiB are 64 GiB of log
/// memory in one group, and their records leave a quarter of a copy for what later versions add.
pub const SEGMENTS_MAX: u32 = 512;
/// The first 8 bytes of a copy.
pub const MAGIC: [u8; 8] = *b"REMANENT";
/// The version this program writes; it reads this one and every earlier one.
pub const FORMAT_VERSION: u16 = 1;

const FIXED_LEN: usize = 208;
const RECORD_LEN: usize = 48;
const _: () = assert!(
    (FIXED_LEN + CONFIGURATION_LEN_MAX + SEGMENTS_MAX as usize * RECORD_LEN) as u64 <= COPY_LEN
);

/// Why bytes are not a superblock that this program may go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The magic is missing: nothing was ever written here, or something else was.
    #[error("not a superblock: was this region formatted, is it the right file?")]
    NotASuperblock,
    /// A newer program wrote it.
    #[error("superblock has format {found}, this program reads up to {supported}: upgrade it")]
    NewerFormat {
        /// The version on media.
        found: u16,
        /// The highest version this program reads.
        supported: u16,
    },
    /// The bytes are not those that were written.
    #[error("superblock checksum does not match: the copy is torn or damaged")]
    BadChecksum,
    /// The bytes are those that were written, but they make no sense.
    #[error("superblock field {what} at byte {at} makes no sense: please report this")]
    Malformed {
        /// Which field.
        what: &'static str,
        /// Where it stands, in bytes from the start of the copy.
        at: u32,
    },
}

impl Superblock {
    /// The bytes of a copy; what lies behind them in the copy does not matter.
    ///
    /// # Panics
    /// When there are more than [`SEGMENTS_MAX`] segments or the configuration is not valid: a
    /// checkpoint is forced before that.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        base::check!(self.segments.len() <= SEGMENTS_MAX as usize);
        let mut configuration = Vec::with_capacity(CONFIGURATION_LEN_MAX);
        encode_configuration(&self.checkpoint.configuration, &mut configuration);
        let length = FIXED_LEN
            .saturating_add(configuration.len())
            .saturating_add(self.segments.len().saturating_mul(RECORD_LEN));
        let mut bytes = Vec::with_capacity(length);
        self.encode_fixed(&mut bytes, len_u32(length), len_u32(configuration.len()));
        bytes.extend_from_slice(&configuration);
        for record in &self.segments {
            encode_record(record, &mut bytes);
        }
        base::check!(bytes.len() == length);
        repair_checksum(&mut bytes);
        bytes
    }

    fn encode_fixed(&self, bytes: &mut Vec<u8>, length: u32, configuration_len: u32) {
        let id = |member: Option<MemberId>| member.map_or(0, |member| member.0);
        let hole = self.hole.unwrap_or(Hole { from: Index(0), until: Index(0), term: Term(0) });
        let checkpoint = &self.checkpoint;
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&length.to_le_bytes());
        put_u64s(bytes, &[0, self.generation]);
        bytes.extend_from_slice(&self.identity.cluster.0.to_le_bytes());
        put_u32s(bytes, &[self.identity.group.0, self.identity.member.0]);
        put_u64s(bytes, &[self.identity.incarnation.0]);
        bytes.extend_from_slice(&self.boot.0.to_le_bytes());
        put_u64s(bytes, &[self.segment_len]);
        put_u32s(bytes, &[self.slot_count, u32::from(self.mode.code())]);
        put_u64s(bytes, &[self.term.0]);
        put_u32s(bytes, &[id(self.vote), id(self.granted_to)]);
        put_u64s(bytes, &[self.grant.0, hole.from.0, hole.until.0, hole.term.0]);
        put_u64s(bytes, &[checkpoint.at.index.0, checkpoint.at.term.0, checkpoint.at.digest.0]);
        put_u64s(bytes, &[checkpoint.configuration_index.0, checkpoint.state.id]);
        put_u64s(bytes, &[checkpoint.state.length, checkpoint.state.digest.0]);
        put_u32s(bytes, &[len_u32(self.segments.len()), configuration_len]);
        base::check!(bytes.len() == FIXED_LEN);
    }

    /// Which copy this generation is written to.
    #[must_use]
    pub const fn copy_index(&self) -> u32 {
        if self.generation.is_multiple_of(2) { 0 } else { 1 }
    }

    /// The superblock in a copy; `copy` may be longer than what was written.
    ///
    /// # Errors
    /// [`SuperblockError`]. Every error but `NewerFormat` may be the other copy's to answer.
    pub fn decode(copy: &[u8]) -> Result<Self, SuperblockError> {
        let used = verify(copy)?;
        let mut fields = Fields { reader: Reader::new(used), whole: used.len() };
        fields.skip(24, "header")?;
        let mut superblock = decode_fixed(&mut fields)?;
        let segment_count = fields.u32("segment count")?;
        if segment_count > superblock.slot_count {
            return Err(fields.malformed("segment count"));
        }
        let configuration_len = fields.u32("configuration length")?;
        let configuration_len = usize::try_from(configuration_len).unwrap_or(usize::MAX);
        let configuration = fields
            .reader
            .take(configuration_len)
            .and_then(decode_configuration_or_none)
            .ok_or_else(|| fields.malformed("configuration"))?;
        superblock.checkpoint.configuration = configuration;
        for _ in 0..segment_count {
            let record = decode_record(&mut fields, &superblock)?;
            superblock.segments.push(record);
        }
        if fields.reader.remaining() != 0 {
            return Err(fields.malformed("length"));
        }
        Ok(superblock)
    }
}

/// Of two copies the one that counts, and which it is: the valid one of the higher generation.
///
/// # Errors
/// When no copy is valid; and when either copy is of a newer format, even if the other can be
/// read: going on from the older copy would lose what the newer program promised.
pub fn choose(copy0: &[u8], copy1: &[u8]) -> Result<(Superblock, u32), SuperblockError> {
    match (Superblock::decode(copy0), Superblock::decode(copy1)) {
        (Err(newer @ SuperblockError::NewerFormat { .. }), _)
        | (_, Err(newer @ SuperblockError::NewerFormat { .. })) => Err(newer),
        (Ok(first), Ok(second)) if first.generation < second.generation => Ok((second, 1)),
        (Ok(first), _) => Ok((first, 0)),
        (Err(_), Ok(second)) => Ok((second, 1)),
        (Err(SuperblockError::NotASuperblock), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

/// Checks what every version has in common and answers the used part of the copy.
fn verify(copy: &[u8]) -> Result<&[u8], SuperblockError> {
    let mut reader = Reader::new(copy);
    if reader.array::<8>() != Some(MAGIC) {
        return Err(SuperblockError::NotASuperblock);
    }
    let cut_short = SuperblockError::Malformed { what: "length", at: 12 };
    let version = reader.u16().ok_or(cut_short)?;
    let reserved = reader.u16().ok_or(cut_short)?;
    let length = reader.u32().ok_or(cut_short)?;
    let stored = reader.u64().ok_or(cut_short)?;
    let used = usize::try_from(length).ok().and_then(|length| copy.get(..length));
    let used = used.filter(|used| used.len() >= 24).ok_or(cut_short)?;
    if checksum(used) != stored {
        return Err(SuperblockError::BadChecksum);
    }
    if version > FORMAT_VERSION {
        return Err(SuperblockError::NewerFormat { found: version, supported: FORMAT_VERSION });
    }
    if version == 0 || reserved != 0 {
        return Err(SuperblockError::Malformed { what: "version", at: 8 });
    }
    Ok(used)
}

/// Makes the checksum that of the bytes, as far as their length field goes.
pub(crate) fn repair_checksum(bytes: &mut [u8]) {
    let mut length = Reader::new(bytes.get(12..).unwrap_or_default());
    let length = length.u32().and_then(|length| usize::try_from(length).ok());
    let Some(used) = length.and_then(|length| bytes.get_mut(..length)) else { return };
    let checksum = checksum(used).to_le_bytes();
    if let Some(field) = used.get_mut(16..24) {
        field.copy_from_slice(&checksum);
    }
}

/// Over all used bytes but the checksum itself, which counts as zero.
fn checksum(used: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(used.get(..16).unwrap_or_default());
    hash.update(&[0; 8]);
    hash.update(used.get(24..).unwrap_or_default());
    hash.digest()
}

fn decode_fixed(fields: &mut Fields<'_>) -> Result<Superblock, SuperblockError> {
    let generation = fields.u64("generation")?;
    let identity = Identity {
        cluster: ClusterId(fields.u128("cluster")?),
        group: GroupId(fields.u32("group")?),
        member: MemberId(fields.u32("member")?),
        incarnation: Incarnation(fields.u64("incarnation")?),
    };
    let boot = BootId(fields.u128("boot")?);
    let segment_len = fields.u64("segment length")?;
    let slot_count = fields.u32("slot count")?;
    if RegionLayout::new(segment_len, slot_count).is_err() {
        return Err(fields.malformed("layout"));
    }
    let mode = u8::try_from(fields.u32("mode")?).ok().and_then(Durability::from_code);
    let mode = mode.ok_or_else(|| fields.malformed("mode"))?;
    let term = fields.term("term")?;
    let vote = fields.member("vote")?;
    let granted_to = fields.member("granted to")?;
    let grant = GrantWord(fields.u64("grant")?);
    if grant.term() > term {
        return Err(fields.malformed("grant"));
    }
    let hole = Hole {
        from: Index(fields.u64("hole from")?),
        until: Index(fields.u64("hole until")?),
        term: fields.term("hole term")?,
    };
    if hole.from.0 == 0 && (hole.until.0 != 0 || hole.term.0 != 0) {
        return Err(fields.malformed("hole"));
    }
    Ok(Superblock {
        generation,
        identity,
        boot,
        mode,
        segment_len,
        slot_count,
        term,
        vote,
        grant,
        granted_to,
        hole: (hole.from.0 != 0).then_some(hole),
        checkpoint: decode_checkpoint(fields)?,
        segments: Vec::new(),
    })
}

fn decode_checkpoint(fields: &mut Fields<'_>) -> Result<Checkpoint, SuperblockError> {
    let at = Position {
        index: Index(fields.u64("checkpoint index")?),
        term: fields.term("checkpoint term")?,
        digest: Digest(fields.u64("checkpoint digest")?),
    };
    let configuration_index = Index(fields.u64("configuration index")?);
    if configuration_index > at.index {
        return Err(fields.malformed("configuration index"));
    }
    let state = StateFile {
        id: fields.u64("state file")?,
        length: fields.u64("state length")?,
        digest: Digest(fields.u64("state digest")?),
    };
    Ok(Checkpoint { at, configuration_index, configuration: <_>::default(), state })
}

fn encode_record(record: &SegmentRecord, bytes: &mut Vec<u8>) {
    let seal = record.seal.unwrap_or_default();
    put_u32s(bytes, &[record.slot.0, record.ordinal]);
    put_u64s(bytes, &[record.word.0, record.nonce.0, record.first.0, seal.last.0, seal.end]);
}

/// Reads the next record and checks it against what stands before it.
fn decode_record(
    fields: &mut Fields<'_>,
    before: &Superblock,
) -> Result<SegmentRecord, SuperblockError> {
    let slot = SlotId(fields.u32("segment slot")?);
    if slot.0 >= before.slot_count || before.segments.iter().any(|other| other.slot == slot) {
        return Err(fields.malformed("segment slot"));
    }
    let ordinal = fields.u32("segment ordinal")?;
    let word = GrantWord(fields.u64("segment grant")?);
    let nonce = Nonce(fields.u64("segment nonce")?);
    let first = Index(fields.u64("segment first")?);
    let seal = Seal { last: Index(fields.u64("seal last")?), end: fields.u64("seal end")? };
    let record =
        SegmentRecord { slot, word, ordinal, nonce, first, seal: (seal.end != 0).then_some(seal) };
    if !seal_makes_sense(&record, before.segment_len) || (seal.end == 0 && seal.last.0 != 0) {
        return Err(fields.malformed("seal"));
    }
    if word > before.grant || !follows(before.segments.last(), &record) {
        return Err(fields.malformed("segment order"));
    }
    Ok(record)
}

fn seal_makes_sense(record: &SegmentRecord, segment_len: u64) -> bool {
    record.seal.is_none_or(|seal| {
        seal.end.is_multiple_of(LINE)
            && FIRST_OFFSET < seal.end
            && seal.end <= segment_len
            && 0 < record.first.0
            && record.first <= seal.last
    })
}

/// Grants ascend; within one the ordinals ascend by one, and only its last ones are open. An open
/// segment ends the list of grants: the next grant would have sealed it.
pub(crate) fn follows(before: Option<&SegmentRecord>, record: &SegmentRecord) -> bool {
    let Some(before) = before else { return true };
    if before.word == record.word {
        return before.ordinal.checked_add(1) == Some(record.ordinal)
            && before.nonce == record.nonce
            && (before.seal.is_some() || record.seal.is_none());
    }
    before.word < record.word && before.seal.is_some()
}

struct Fields<'a> {
    reader: Reader<'a>,
    whole: usize,
}

impl Fields<'_> {
    /// The field that was just read, or could not be read, makes no sense.
    fn malformed(&self, what: &'static str) -> SuperblockError {
        let at = self.whole.saturating_sub(self.reader.remaining());
        SuperblockError::Malformed { what, at: u32::try_from(at).unwrap_or(u32::MAX) }
    }

    fn skip(&mut self, len: usize, what: &'static str) -> Result<(), SuperblockError> {
        self.reader.take(len).map(|_| ()).ok_or_else(|| self.malformed(what))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, SuperblockError> {
        self.reader.u32().ok_or_else(|| self.malformed(what))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, SuperblockError> {
        self.reader.u64().ok_or_else(|| self.malformed(what))
    }

    fn u128(&mut self, what: &'static str) -> Result<u128, SuperblockError> {
        self.reader.u128().ok_or_else(|| self.malformed(what))
    }

    fn term(&mut self, what: &'static str) -> Result<Term, SuperblockError> {
        let term = Term(self.u64(what)?);
        if term > Term::MAX { Err(self.malformed(what)) } else { Ok(term) }
    }

    fn member(&mut self, what: &'static str) -> Result<Option<MemberId>, SuperblockError> {
        Ok(Some(MemberId(self.u32(what)?)).filter(|member| member.0 != 0))
    }
}

fn put_u32s(bytes: &mut Vec<u8>, values: &[u32]) {
    for value in values {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
}

fn put_u64s(bytes: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("a superblock is at most COPY_LEN bytes")
}
