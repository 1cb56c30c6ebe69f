//! Asks and answers: the messages of a client's stream.
//!
//! Version 1, little-endian:
//!
//! ```text
//!   ask:     version u8 = 1 | kind u8 | 0 u16 | group u32 | id u64 |
//!     kind 1, write:     session u64 | sequence u64 | acknowledged through u64 | command ..
//!     kind 2, read:      query ..
//!     kind 3, status:    -
//!     kind 4, transfer:  to member u32 (0: whoever is best)
//!
//!   answer:  version u8 = 1 | code u8 | 0 u16 | 0 u32 | id u64 |
//!      0 done:           reply ..
//!      1 duplicate:      the reply of back then ..
//!      2 duplicate whose reply was too large to keep
//!      3 opened:         session u64
//!      4 noted
//!      5 not executed:   why u8 (1 session unknown, 2 acknowledged, 3 too far ahead,
//!                                4 too many unacknowledged, 5 too many sessions)
//!      6 not leader:     leader u32 (0: not known)
//!      7 overloaded
//!      8 bad:            text, UTF-8 ..
//!      9 unknown
//!     10 status:         JSON, UTF-8 ..
//!     11 stopping
//! ```
//!
//! The three words of a write mean what they mean in the envelope of a log entry: (0, 0) a command
//! outside every session, (0, 1) open a session, (s, 0) keep s alive, (s, n) call n of s,
//! (s, 2^64 - 1) close s.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use base::{GroupId, MemberId};

use crate::codec::{Fault, Reader, put_u16, put_u32, put_u64};

const VERSION: u8 = 1;
const WRITE: u8 = 1;
const READ: u8 = 2;
const STATUS: u8 = 3;
const TRANSFER: u8 = 4;

/// What a client asks of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The client's name for it; comes back with the answer.
    pub id: u64,
    /// Of which group.
    pub group: GroupId,
    /// What it wants.
    pub what: AskKind<'a>,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskKind<'a> {
    /// A command in the log.
    Write {
        /// In which session; see the module.
        session: u64,
        /// The client's number for it in the session.
        sequence: u64,
        /// The client has every reply of the session up to this sequence.
        acknowledged_through: u64,
        /// The command.
        command: &'a [u8],
    },
    /// A linearizable read.
    Read {
        /// The query.
        query: &'a [u8],
    },
    /// How the member is.
    Status,
    /// That leadership goes to another member.
    Transfer {
        /// To this one; otherwise to whoever is best.
        to: Option<MemberId>,
    },
}

/// What a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The client's name for the request.
    pub id: u64,
    /// What became of it.
    pub what: AnswerKind<'a>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind<'a> {
    /// Executed: the reply.
    Done(&'a [u8]),
    /// Executed before: the reply of back then.
    Duplicate(&'a [u8]),
    /// Executed before; the reply was too large to keep.
    DuplicateTooLarge,
    /// A session is open.
    Opened(u64),
    /// Done, and there is nothing to say.
    Noted,
    /// The session layer did not execute it.
    NotExecuted(NotExecuted),
    /// Not done: this member does not lead. Who does, if it knows.
    NotLeader(Option<MemberId>),
    /// Not done: too much is waiting. Retry later.
    Overloaded,
    /// Not done: it can never be, as it is.
    Bad(&'a str),
    /// It may or may not be done.
    Unknown,
    /// How the member is, as JSON.
    Status(&'a str),
    /// Not done: this member is about to end. Ask another.
    Stopping,
}

/// Why the session layer did not execute a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotExecuted {
    /// No such session: what became of earlier attempts in it is not known.
    SessionUnknown,
    /// The client has said that it has this reply.
    Acknowledged,
    /// The sequence is too far above what was acknowledged.
    TooFarAhead,
    /// Too many replies are being kept.
    TooManyUnacknowledged,
    /// No session was opened: there are too many.
    TooManySessions,
}

impl NotExecuted {
    const fn code(self) -> u8 {
        match self {
            Self::SessionUnknown => 1,
            Self::Acknowledged => 2,
            Self::TooFarAhead => 3,
            Self::TooManyUnacknowledged => 4,
            Self::TooManySessions => 5,
        }
    }

    const fn from_code(code: u8) -> Result<Self, Fault> {
        match code {
            1 => Ok(Self::SessionUnknown),
            2 => Ok(Self::Acknowledged),
            3 => Ok(Self::TooFarAhead),
            4 => Ok(Self::TooManyUnacknowledged),
            5 => Ok(Self::TooManySessions),
            _ => Err(Fault::Form),
        }
    }
}

impl<'a> Ask<'a> {
    /// Appends all but the bytes that end it, and returns those: a large command need not be
    /// copied.
    pub fn head(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let (kind, tail): (u8, &[u8]) = match self.what {
            AskKind::Write { command, .. } => (WRITE, command),
            AskKind::Read { query } => (READ, query),
            AskKind::Status => (STATUS, &[]),
            AskKind::Transfer { .. } => (TRANSFER, &[]),
        };
        out.extend_from_slice(&[VERSION, kind]);
        put_u16(out, 0);
        put_u32(out, self.group.0);
        put_u64(out, self.id);
        match self.what {
            AskKind::Write { session, sequence, acknowledged_through, .. } => {
                put_u64(out, session);
                put_u64(out, sequence);
                put_u64(out, acknowledged_through);
            }
            AskKind::Transfer { to } => put_u32(out, to.map_or(0, |to| to.0)),
            AskKind::Read { .. } | AskKind::Status => {}
        }
        tail
    }

    /// The ask that `bytes` are, all of them.
    ///
    /// # Errors
    /// [`Fault`] when they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        let kind = head(&mut reader)?;
        let group = GroupId(reader.u32()?);
        let id = reader.u64()?;
        let what = match kind {
            WRITE => AskKind::Write {
                session: reader.u64()?,
                sequence: reader.u64()?,
                acknowledged_through: reader.u64()?,
                command: reader.take_rest(),
            },
            READ => AskKind::Read { query: reader.take_rest() },
            STATUS => AskKind::Status,
            TRANSFER => AskKind::Transfer { to: member(reader.u32()?) },
            _ => return Err(Fault::Form),
        };
        reader.end()?;
        Ok(Self { id, group, what })
    }
}

impl<'a> Answer<'a> {
    /// Appends all but the bytes that end it, and returns those.
    pub fn head(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let (code, tail): (u8, &[u8]) = match self.what {
            AnswerKind::Done(reply) => (0, reply),
            AnswerKind::Duplicate(reply) => (1, reply),
            AnswerKind::DuplicateTooLarge => (2, &[]),
            AnswerKind::Opened(_) => (3, &[]),
            AnswerKind::Noted => (4, &[]),
            AnswerKind::NotExecuted(_) => (5, &[]),
            AnswerKind::NotLeader(_) => (6, &[]),
            AnswerKind::Overloaded => (7, &[]),
            AnswerKind::Bad(why) => (8, why.as_bytes()),
            AnswerKind::Unknown => (9, &[]),
            AnswerKind::Status(text) => (10, text.as_bytes()),
            AnswerKind::Stopping => (11, &[]),
        };
        out.extend_from_slice(&[VERSION, code]);
        put_u16(out, 0);
        put_u32(out, 0);
        put_u64(out, self.id);
        match self.what {
            AnswerKind::Opened(session) => put_u64(out, session),
            AnswerKind::NotExecuted(why) => out.push(why.code()),
            AnswerKind::NotLeader(leader) => put_u32(out, leader.map_or(0, |leader| leader.0)),
            AnswerKind::Done(_)
            | AnswerKind::Duplicate(_)
            | AnswerKind::DuplicateTooLarge
            | AnswerKind::Noted
            | AnswerKind::Overloaded
            | AnswerKind::Bad(_)
            | AnswerKind::Unknown
            | AnswerKind::Status(_)
            | AnswerKind::Stopping => {}
        }
        tail
    }

    /// The answer that `bytes` are, all of them.
    ///
    /// # Errors
    /// [`Fault`] when they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes);
        let code = head(&mut reader)?;
        if reader.u32()? != 0 {
            return Err(Fault::Form);
        }
        let id = reader.u64()?;
        let what = match code {
            0 => AnswerKind::Done(reader.take_rest()),
            1 => AnswerKind::Duplicate(reader.take_rest()),
            2 => AnswerKind::DuplicateTooLarge,
            3 => AnswerKind::Opened(reader.u64()?),
            4 => AnswerKind::Noted,
            5 => AnswerKind::NotExecuted(NotExecuted::from_code(reader.u8()?)?),
            6 => AnswerKind::NotLeader(member(reader.u32()?)),
            7 => AnswerKind::Overloaded,
            8 => AnswerKind::Bad(text(reader.take_rest())?),
            9 => AnswerKind::Unknown,
            10 => AnswerKind::Status(text(reader.take_rest())?),
            11 => AnswerKind::Stopping,
            _ => return Err(Fault::Form),
        };
        reader.end()?;
        Ok(Self { id, what })
    }
}

/// Version, kind, and two bytes of zero.
fn head(reader: &mut Reader<'_>) -> Result<u8, Fault> {
    if reader.u8()? != VERSION {
        return Err(Fault::Version);
    }
    let kind = reader.u8()?;
    if reader.u16()? == 0 { Ok(kind) } else { Err(Fault::Form) }
}

fn member(id: u32) -> Option<MemberId> {
    (id != 0).then_some(MemberId(id))
}

fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Form)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded_ask(ask: &Ask<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tail = ask.head(&mut bytes);
        bytes.extend_from_slice(tail);
        bytes
    }

    fn encoded_answer(answer: &Answer<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tail = answer.head(&mut bytes);
        bytes.extend_from_slice(tail);
        bytes
    }

    #[test]
    fn every_ask_is_read_back() {
        let write = AskKind::Write {
            session: 7,
            sequence: 3,
            acknowledged_through: 2,
            command: b"command",
        };
        let transfers = [None, Some(MemberId(2))].map(|to| AskKind::Transfer { to });
        let kinds = [write, AskKind::Read { query: b"query" }, AskKind::Status];
        for what in kinds.into_iter().chain(transfers) {
            let ask = Ask { id: 9, group: GroupId(1), what };
            let bytes = encoded_ask(&ask);
            assert_eq!(Ask::decode(&bytes), Ok(ask));
        }
    }

    #[test]
    fn the_bytes_of_an_ask_are_these() {
        let what = AskKind::Read { query: b"q" };
        let bytes = encoded_ask(&Ask { id: 0x0102, group: GroupId(5), what });
        assert_eq!(bytes, [1, 2, 0, 0, 5, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, b'q']);
    }

    #[test]
    fn every_answer_is_read_back() {
        let kinds = [
            AnswerKind::Done(b"reply"),
            AnswerKind::Duplicate(b""),
            AnswerKind::DuplicateTooLarge,
            AnswerKind::Opened(77),
            AnswerKind::Noted,
            AnswerKind::NotExecuted(NotExecuted::SessionUnknown),
            AnswerKind::NotExecuted(NotExecuted::TooManySessions),
            AnswerKind::NotLeader(None),
            AnswerKind::NotLeader(Some(MemberId(3))),
            AnswerKind::Overloaded,
            AnswerKind::Bad("too long"),
            AnswerKind::Unknown,
            AnswerKind::Status("{}"),
            AnswerKind::Stopping,
        ];
        for what in kinds {
            let answer = Answer { id: u64::MAX, what };
            let bytes = encoded_answer(&answer);
            assert_eq!(Answer::decode(&bytes), Ok(answer));
        }
    }

    #[test]
    fn another_version_is_refused_as_such() {
        let bytes = encoded_ask(&Ask { id: 1, group: GroupId(1), what: AskKind::Status });
        let bytes: Vec<u8> = std::iter::once(2).chain(bytes.into_iter().skip(1)).collect();
        assert_eq!(Ask::decode(&bytes), Err(Fault::Version));
    }

    #[test]
    fn what_follows_the_end_is_refused() {
        let mut bytes = encoded_ask(&Ask { id: 1, group: GroupId(1), what: AskKind::Status });
        bytes.push(0);
        assert_eq!(Ask::decode(&bytes), Err(Fault::Trailing));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(ask) = Ask::decode(&bytes) {
                prop_assert_eq!(encoded_ask(&ask), bytes.clone());
            }
            if let Ok(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(encoded_answer(&answer), bytes);
            }
        }
    }
}
