//! The control line: what a member shows to every peer, read remotely and never written remotely.
//!
//! ```text
//!   0  | grant      {term: 48 | count: 16}    who may write this member's log
//!   8  | leader     member id, 0 = nobody     a hint
//!  16  | leading    {term: 48 | counter: 16}  moves only while this member leads
//!  24  | suspect    {term: 48 | counter: 16}  moves only while it suspects its leader
//!  32  | accepted   index                     the leader's last accepted entry
//!  40  | commit     index
//!  48  | applied    index
//!  56  | reserved   0
//! ```
//!
//! One word is one aligned store: a word never tears, two words may be of different moments. So no
//! rule needs two of them to agree, and `grant`, which proves a right, stands alone.

use base::{GrantWord, Index, MemberId, Term};

use crate::wire::Reader;

/// Bytes of the control line: one cache line, so that one READ brings all of it.
pub const CONTROL_LEN: usize = 64;
/// Where `grant` stands, in bytes.
pub const CONTROL_GRANT: u64 = 0;
/// Where `leader` stands.
pub const CONTROL_LEADER: u64 = 8;
/// Where `leading` stands.
pub const CONTROL_LEADING: u64 = 16;
/// Where `suspect` stands.
pub const CONTROL_SUSPECT: u64 = 24;
/// Where `accepted` stands.
pub const CONTROL_ACCEPTED: u64 = 32;
/// Where `commit` stands.
pub const CONTROL_COMMIT: u64 = 40;
/// Where `applied` stands.
pub const CONTROL_APPLIED: u64 = 48;

/// A term with a counter that moves while something goes on in it: `{term: 48 | counter: 16}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The term.
    pub term: Term,
    /// Wraps; only "moved since the last look" means something.
    pub counter: u16,
}

impl Progress {
    /// The word that is stored.
    ///
    /// # Panics
    /// When the term does not fit its 48 bits.
    #[must_use]
    pub fn encode(self) -> u64 {
        base::check!(self.term <= Term::MAX);
        (self.term.0 << 16) | u64::from(self.counter)
    }

    /// What a word says.
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        let [low, high, ..] = word.to_le_bytes();
        Self { term: Term(word >> 16), counter: u16::from_le_bytes([low, high]) }
    }
}

/// The control line as a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ControlLine {
    /// Who may write this member's log.
    pub grant: GrantWord,
    /// Whom this member believes to lead; a hint.
    pub leader: Option<MemberId>,
    /// Moves while this member leads.
    pub leading: Progress,
    /// Moves while this member suspects its leader.
    pub suspect: Progress,
    /// The last entry accepted, of a leader.
    pub accepted: Index,
    /// The commit index.
    pub commit: Index,
    /// The applied index.
    pub applied: Index,
}

impl ControlLine {
    /// The bytes of the line.
    #[must_use]
    pub fn encode(&self) -> [u8; CONTROL_LEN] {
        let words = [
            self.grant.0,
            self.leader.map_or(0, |leader| u64::from(leader.0)),
            self.leading.encode(),
            self.suspect.encode(),
            self.accepted.0,
            self.commit.0,
            self.applied.0,
            0,
        ];
        let mut bytes = [0; CONTROL_LEN];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What a line says. Total: every line says something, and a `leader` that is no member id is
    /// a hint of nobody.
    #[must_use]
    pub fn decode(bytes: &[u8; CONTROL_LEN]) -> Self {
        let mut reader = Reader::new(bytes);
        let mut word = || reader.u64().expect("64 bytes hold eight words");
        Self {
            grant: GrantWord(word()),
            leader: u32::try_from(word()).ok().filter(|&id| id != 0).map(MemberId),
            leading: Progress::decode(word()),
            suspect: Progress::decode(word()),
            accepted: Index(word()),
            commit: Index(word()),
            applied: Index(word()),
        }
    }
}
