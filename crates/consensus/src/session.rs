//! Replicated sessions: a command that a client sends again is answered, not executed again.
//!
//! # The envelope
//! Every command entry's payload begins with 32 bytes, little-endian:
//!
//! ```text
//!   0         8          16          24                     32
//!   +---------+----------+-----------+----------------------+-- ... --+
//!   | log time| session  | sequence  | acknowledged through | command |
//!   +---------+----------+-----------+----------------------+-- ... --+
//!
//!   session   sequence
//!   0         0          a command without a session: at most once is the client's own concern
//!   0         1          open a session; its id is the index of this entry
//!   s         0          keep session s alive
//!   s         1..        a command of session s
//!   s         2^64 - 1   close session s
//! ```
//!
//! A tick's payload is the envelope of a command without a session, with nothing behind it.
//!
//! # One session
//! ```text
//!        acknowledged through                     acknowledged through + window
//!   -------------|----------------------------------------------|------------->  sequence
//!     "unknown"  |  applied: answered     not applied: executed  |  "too far"
//! ```
//!
//! A client may have several commands under way and they may enter the log in any order: each
//! sequence of the window is remembered by itself. `acknowledged through` says which replies the
//! client has; they are dropped, and a command at or below it is refused, for nobody can tell any
//! more what became of it.
//!
//! # Invariants
//! - A sequence that was executed is never executed again: it is remembered while it lies in the
//!   window and refused below it, and a session that has expired is unknown for ever, because its
//!   id is a log index.
//! - The table is a function of the log alone: it expires by log time, and every limit counts what
//!   the log order decides (never bytes, which arrive whenever a batch has been applied).
//! - It is bounded by [`Limits`].
//!
//! Deliberately absent: the wall clock (a clock that jumps expires nobody) and randomness.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Duration, Index, Instant, check, mutant};

/// A moment of log time, in nanoseconds of leadership since the log began. It stands in the log,
/// never goes back, and stands still while nobody leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogTime(pub u64);

impl LogTime {
    /// The moment `by` later; the end of time if that is out of range.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(by)))
    }
}

/// A leader's log time: the last log time before it led plus the monotonic time it has led since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderClock {
    base: LogTime,
    at: Instant,
    last: LogTime,
}

impl LeaderClock {
    /// The clock of a leader that begins at `at` with a log whose last log time is `base`.
    #[must_use]
    pub const fn new(base: LogTime, at: Instant) -> Self {
        Self { base, at, last: base }
    }

    /// The log time to write into an entry proposed at `now`; never earlier than any before it,
    /// even if `now` is.
    pub fn stamp(&mut self, now: Instant) -> LogTime {
        self.last = self.last.max(self.base.after(now.since(self.at)));
        self.last
    }
}

/// A session: the index of the entry that opened it, so never reused. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Bytes of an envelope.
pub const ENVELOPE_LEN: usize = 32;

const SEQUENCE_OPEN: u64 = 1;
const SEQUENCE_KEEP: u64 = 0;
const SEQUENCE_CLOSE: u64 = u64::MAX;

/// What stands before a command in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The leader's log time when it proposed the entry.
    pub time: LogTime,
    /// What the entry does to sessions.
    pub act: Act,
}

/// What an entry does to sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Runs a command outside every session.
    Plain,
    /// Opens a session. Sent twice it opens two, of which one expires unused.
    Open,
    /// Keeps a session alive.
    Keep {
        /// Which one.
        session: SessionId,
        /// The client has every reply up to this sequence.
        acknowledged_through: u64,
    },
    /// Runs a command once.
    Call {
        /// In which session.
        session: SessionId,
        /// The client's number for it: 1 to 2^64 - 2, each for one command only.
        sequence: u64,
        /// The client has every reply up to this sequence.
        acknowledged_through: u64,
    },
    /// Ends a session.
    Close {
        /// Which one.
        session: SessionId,
    },
}

/// Bytes that are no envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// Too short.
    #[error("a command entry of {len} bytes has no room for its envelope of 32")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// A sequence that means nothing without a session.
    #[error("sequence {sequence} without a session means nothing")]
    NoSession {
        /// The sequence.
        sequence: u64,
    },
}

impl Envelope {
    /// The bytes before the command.
    #[must_use]
    pub fn encode(&self) -> [u8; ENVELOPE_LEN] {
        let (session, sequence, acknowledged) = match self.act {
            Act::Plain => (0, 0, 0),
            Act::Open => (0, SEQUENCE_OPEN, 0),
            Act::Keep { session, acknowledged_through } => {
                (session.0, SEQUENCE_KEEP, acknowledged_through)
            }
            Act::Call { session, sequence, acknowledged_through } => {
                check!(SEQUENCE_KEEP < sequence);
                check!(sequence < SEQUENCE_CLOSE);
                (session.0, sequence, acknowledged_through)
            }
            Act::Close { session } => (session.0, SEQUENCE_CLOSE, 0),
        };
        let mut bytes = [0; ENVELOPE_LEN];
        let words = [self.time.0, session, sequence, acknowledged];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The envelope at the front of `payload`, and the command behind it.
    ///
    /// # Errors
    /// [`EnvelopeError`] when there is none. Such an entry is applied as if it were empty, with
    /// "bad request" as its reply.
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), EnvelopeError> {
        let mut reader = Reader(payload);
        let words = (reader.u64(), reader.u64(), reader.u64(), reader.u64());
        let (Some(time), Some(session), Some(sequence), Some(acknowledged_through)) = words else {
            return Err(EnvelopeError::Short { len: payload.len() });
        };
        let id = SessionId(session);
        let act = match (session, sequence) {
            (0, 0) => Act::Plain,
            (0, SEQUENCE_OPEN) => Act::Open,
            (0, _) => return Err(EnvelopeError::NoSession { sequence }),
            (_, SEQUENCE_KEEP) => Act::Keep { session: id, acknowledged_through },
            (_, SEQUENCE_CLOSE) => Act::Close { session: id },
            (_, _) => Act::Call { session: id, sequence, acknowledged_through },
        };
        Ok((Self { time: LogTime(time), act }, reader.0))
    }
}

/// What bounds a table. Part of the table and of every checkpoint, because two members with
/// different limits would answer differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions open at once. The one that would exceed it is refused; nobody is thrown out.
    pub sessions_max: u32,
    /// How far above `acknowledged through` a sequence may be.
    pub window: u32,
    /// Unacknowledged commands of all sessions together. Above it commands are refused before they
    /// are executed, until clients acknowledge or expire.
    pub unacknowledged_max: u32,
    /// Bytes of one kept reply. A longer one is not kept: a retry learns that the command was
    /// executed, and no more.
    pub reply_bytes_max: u32,
    /// How long a session lives after its last command, in log time.
    pub ttl: Duration,
}

impl Default for Limits {
    /// 65,536 sessions, a window of 1,024 commands, 262,144 unacknowledged commands, replies of
    /// 4 KiB (so at most 1 GiB of them; small counters and flags are the everyday case), 60 s.
    fn default() -> Self {
        Self {
            sessions_max: 65_536,
            window: 1_024,
            unacknowledged_max: 262_144,
            reply_bytes_max: 4_096,
            ttl: Duration::from_secs(60),
        }
    }
}

/// What to do with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Apply its command. For a [`Act::Call`], give the reply to [`SessionTable::record`].
    Execute,
    /// It was executed before: answer with this.
    Duplicate(KeptReply),
    /// It is a copy of a command that was admitted and has no reply yet: apply what has been
    /// collected, record the replies, then ask again.
    ApplyFirst,
    /// A session is open.
    Opened(SessionId),
    /// The session lives on.
    Alive,
    /// The session is no more.
    Closed,
    /// Not executed now.
    Refused(Refusal),
}

/// The answer to a command that was executed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptReply {
    /// Its reply.
    Reply(Arc<[u8]>),
    /// It was executed; its reply was too large to keep.
    TooLarge,
}

/// Why a command was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such session. If the command was sent before, whether it was executed is unknown.
    #[error("session expired or never opened: the outcome of what was sent in it is unknown")]
    SessionUnknown,
    /// The client has said that it has this reply, so it was dropped.
    #[error("sequence was acknowledged before: its outcome is no longer known")]
    Acknowledged,
    /// Not executed, and never was: too far above what the client has acknowledged.
    #[error("not done: sequence is too far above what was acknowledged")]
    TooFarAhead,
    /// Not executed, and never was: too many replies are being kept.
    #[error("not done: too many unacknowledged commands, acknowledge replies and retry")]
    TooManyUnacknowledged,
    /// No session was opened.
    #[error("not done: too many sessions, retry later")]
    TooManySessions,
}

/// What is remembered of one executed command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    /// Admitted; its reply is on the way.
    Pending,
    /// Applied.
    Kept(KeptReply),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    last_active: LogTime,
    acknowledged_through: u64,
    /// Invariant: every key is above `acknowledged_through` and within the window above it.
    slots: BTreeMap<u64, Slot>,
}

/// Every open session of one group. A clone is a frozen copy for a checkpoint; it shares replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTable {
    limits: Limits,
    time: LogTime,
    sessions: BTreeMap<SessionId, Session>,
    /// Every session by its last activity. Invariant: holds exactly the sessions of `sessions`.
    by_activity: BTreeSet<(LogTime, SessionId)>,
    /// Slots of all sessions. Invariant: at most `limits.unacknowledged_max`.
    unacknowledged: u32,
}

impl SessionTable {
    /// A table without sessions at log time zero.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            time: LogTime(0),
            sessions: BTreeMap::new(),
            by_activity: BTreeSet::new(),
            unacknowledged: 0,
        }
    }

    /// What bounds it.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The log time of the last entry: what commands are applied at, even if an envelope claims an
    /// earlier one.
    #[must_use]
    pub const fn time(&self) -> LogTime {
        self.time
    }

    /// How many sessions are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether no session is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// When the next session expires, if nothing happens in it. An idle leader whose log time
    /// reaches it appends a tick.
    #[must_use]
    pub fn next_expiry(&self) -> Option<LogTime> {
        self.by_activity.first().map(|(active, _)| active.after(self.limits.ttl))
    }

    /// Moves log time on and expires what is due.
    pub fn advance(&mut self, time: LogTime) {
        self.time = self.time.max(time);
        while let Some(&(active, id)) = self.by_activity.first() {
            if self.time < active.after(self.limits.ttl) {
                break;
            }
            self.remove(id);
        }
    }

    /// Decides about the entry at `index`. Entries are given in log order, each once (again only
    /// after [`Verdict::ApplyFirst`]).
    pub fn admit(&mut self, index: Index, envelope: &Envelope) -> Verdict {
        self.advance(envelope.time);
        match envelope.act {
            Act::Plain => Verdict::Execute,
            Act::Open => self.open(index),
            Act::Keep { session, acknowledged_through } => {
                if self.touch(session, acknowledged_through) {
                    Verdict::Alive
                } else {
                    Verdict::Refused(Refusal::SessionUnknown)
                }
            }
            Act::Call { session, sequence, acknowledged_through } => {
                if self.touch(session, acknowledged_through) {
                    self.call(session, sequence)
                } else {
                    Verdict::Refused(Refusal::SessionUnknown)
                }
            }
            Act::Close { session } => {
                if self.remove(session) {
                    Verdict::Closed
                } else {
                    Verdict::Refused(Refusal::SessionUnknown)
                }
            }
        }
    }

    /// Keeps the reply of an executed command. Nothing happens if the session has gone or the
    /// sequence was acknowledged since [`admit`](Self::admit).
    pub fn record(&mut self, session: SessionId, sequence: u64, reply: &[u8]) {
        let fits = u32::try_from(reply.len()).is_ok_and(|len| len <= self.limits.reply_bytes_max);
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let Some(slot) = session.slots.get_mut(&sequence) else { return };
        let kept = if fits { KeptReply::Reply(Arc::from(reply)) } else { KeptReply::TooLarge };
        *slot = Slot::Kept(kept);
    }

    fn open(&mut self, index: Index) -> Verdict {
        let id = SessionId(index.0);
        check!(0 < id.0);
        let last = self.sessions.last_key_value().map_or(SessionId(0), |(&last, _)| last);
        check!(last < id, "entries are admitted in log order");
        let count = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        if self.limits.sessions_max <= count {
            return Verdict::Refused(Refusal::TooManySessions);
        }
        let session =
            Session { last_active: self.time, acknowledged_through: 0, slots: BTreeMap::new() };
        self.sessions.insert(id, session);
        self.by_activity.insert((self.time, id));
        Verdict::Opened(id)
    }

    /// Notes activity and drops acknowledged replies; `false` when there is no such session.
    fn touch(&mut self, id: SessionId, acknowledged_through: u64) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        if session.last_active < self.time {
            self.by_activity.remove(&(session.last_active, id));
            self.by_activity.insert((self.time, id));
            session.last_active = self.time;
        }
        if session.acknowledged_through < acknowledged_through {
            session.acknowledged_through = acknowledged_through;
            while let Some(first) = session.slots.first_entry() {
                if acknowledged_through < *first.key() {
                    break;
                }
                first.remove();
                self.unacknowledged = self.unacknowledged.saturating_sub(1);
            }
        }
        true
    }

    fn call(&mut self, id: SessionId, sequence: u64) -> Verdict {
        let window = u64::from(self.limits.window);
        let Some(session) = self.sessions.get_mut(&id) else {
            return Verdict::Refused(Refusal::SessionUnknown);
        };
        if sequence <= session.acknowledged_through {
            return Verdict::Refused(Refusal::Acknowledged);
        }
        if session.acknowledged_through.saturating_add(window) < sequence {
            return Verdict::Refused(Refusal::TooFarAhead);
        }
        match session.slots.get(&sequence) {
            Some(Slot::Kept(kept)) if !mutant!("session_retry_executes") => {
                return Verdict::Duplicate(kept.clone());
            }
            Some(Slot::Kept(_)) => return Verdict::Execute,
            Some(Slot::Pending) => return Verdict::ApplyFirst,
            None => {}
        }
        if self.limits.unacknowledged_max <= self.unacknowledged {
            return Verdict::Refused(Refusal::TooManyUnacknowledged);
        }
        session.slots.insert(sequence, Slot::Pending);
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        Verdict::Execute
    }

    fn remove(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.remove(&id) else { return false };
        let slots = u32::try_from(session.slots.len()).unwrap_or(u32::MAX);
        check!(slots <= self.unacknowledged);
        self.unacknowledged = self.unacknowledged.saturating_sub(slots);
        self.by_activity.remove(&(session.last_active, id))
    }
}

/// Stored form, version 1. Little-endian; sessions and slots in ascending order.
///
/// ```text
///   version u32 | sessions_max u32 | window u32 | unacknowledged_max u32 | reply_bytes_max u32
///   ttl u64 (ns) | log time u64 | session count u32
///   per session:  id u64 | last active u64 | acknowledged through u64 | slot count u32
///   per slot:     sequence u64 | form u8 (0 reply, 1 too large) | length u32 | reply
/// ```
const VERSION: u32 = 1;
const FORM_REPLY: u8 = 0;
const FORM_TOO_LARGE: u8 = 1;

/// Why bytes are no session table. The bytes are checksummed by the checkpoint that holds them, so
/// this is a fault of the program that wrote them, or another version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Another version wrote it.
    #[error("session table has version {got}, this program reads {VERSION}")]
    Version {
        /// The version found.
        got: u32,
    },
    /// The bytes end too early.
    #[error("session table ends in the middle")]
    Short,
    /// There is more than a table.
    #[error("{len} bytes behind the session table")]
    Trailing {
        /// How many.
        len: usize,
    },
    /// A kept reply of a form this program does not know.
    #[error("kept reply has form {form} and {len} bytes")]
    Form {
        /// The form found.
        form: u8,
        /// Its length in bytes.
        len: usize,
    },
    /// A rule of the table is broken.
    #[error("session {session}: {rule}")]
    Rule {
        /// The session's id.
        session: u64,
        /// Which rule.
        rule: &'static str,
    },
}

impl SessionTable {
    /// Appends the stored form.
    ///
    /// # Panics
    /// When a command was admitted and its reply not yet recorded: a checkpoint is taken between
    /// batches.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let limits = &self.limits;
        for word in [
            VERSION,
            limits.sessions_max,
            limits.window,
            limits.unacknowledged_max,
            limits.reply_bytes_max,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&nanoseconds(limits.ttl).to_le_bytes());
        out.extend_from_slice(&self.time.0.to_le_bytes());
        put_length(out, self.sessions.len());
        for (id, session) in &self.sessions {
            for word in [id.0, session.last_active.0, session.acknowledged_through] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            put_length(out, session.slots.len());
            for (sequence, slot) in &session.slots {
                out.extend_from_slice(&sequence.to_le_bytes());
                encode_slot(slot, out);
            }
        }
    }

    /// The table whose stored form `bytes` is, all of it.
    ///
    /// # Errors
    /// [`TableError`] when it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, TableError> {
        let mut reader = Reader(bytes);
        let version = reader.u32().ok_or(TableError::Short)?;
        if version != VERSION {
            return Err(TableError::Version { got: version });
        }
        let mut table = decode_head(&mut reader).ok_or(TableError::Short)?;
        let count = reader.u32().ok_or(TableError::Short)?;
        for _ in 0..count {
            table.decode_session(&mut reader)?;
        }
        if reader.0.is_empty() {
            Ok(table)
        } else {
            Err(TableError::Trailing { len: reader.0.len() })
        }
    }

    fn decode_session(&mut self, reader: &mut Reader<'_>) -> Result<(), TableError> {
        let id = SessionId(reader.u64().ok_or(TableError::Short)?);
        let rule = |holds: bool, rule: &'static str| {
            if holds { Ok(()) } else { Err(TableError::Rule { session: id.0, rule }) }
        };
        let last_active = LogTime(reader.u64().ok_or(TableError::Short)?);
        let acknowledged_through = reader.u64().ok_or(TableError::Short)?;
        let highest = acknowledged_through.saturating_add(u64::from(self.limits.window));
        let before = self.sessions.last_key_value().map_or(SessionId(0), |(&before, _)| before);
        rule(before < id, "ids ascend from 1")?;
        rule(last_active <= self.time, "activity lies in the past")?;
        rule(self.time < last_active.after(self.limits.ttl), "expired ones are gone")?;
        let sessions = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        rule(sessions < self.limits.sessions_max, "more sessions than the limit")?;
        let mut session = Session { last_active, acknowledged_through, slots: BTreeMap::new() };
        let mut previous = acknowledged_through;
        for _ in 0..reader.u32().ok_or(TableError::Short)? {
            let sequence = reader.u64().ok_or(TableError::Short)?;
            rule(previous < sequence, "sequences ascend above what was acknowledged")?;
            rule(sequence <= highest, "sequences lie in the window")?;
            rule(
                self.unacknowledged < self.limits.unacknowledged_max,
                "more slots than the limit",
            )?;
            let reply = decode_reply(reader)?;
            rule(reply_fits(&reply, self.limits.reply_bytes_max), "replies are within the limit")?;
            session.slots.insert(sequence, Slot::Kept(reply));
            self.unacknowledged = self.unacknowledged.saturating_add(1);
            previous = sequence;
        }
        self.sessions.insert(id, session);
        self.by_activity.insert((last_active, id));
        Ok(())
    }
}

fn encode_slot(slot: &Slot, out: &mut Vec<u8>) {
    check!(*slot != Slot::Pending, "a checkpoint is taken between batches");
    let (form, reply): (u8, &[u8]) = match slot {
        Slot::Kept(KeptReply::Reply(reply)) => (FORM_REPLY, reply),
        Slot::Kept(KeptReply::TooLarge) | Slot::Pending => (FORM_TOO_LARGE, &[]),
    };
    out.push(form);
    put_length(out, reply.len());
    out.extend_from_slice(reply);
}

fn decode_head(reader: &mut Reader<'_>) -> Option<SessionTable> {
    let limits = Limits {
        sessions_max: reader.u32()?,
        window: reader.u32()?,
        unacknowledged_max: reader.u32()?,
        reply_bytes_max: reader.u32()?,
        ttl: Duration::from_nanos(reader.u64()?),
    };
    let mut table = SessionTable::new(limits);
    table.time = LogTime(reader.u64()?);
    Some(table)
}

fn decode_reply(reader: &mut Reader<'_>) -> Result<KeptReply, TableError> {
    let form = reader.u8().ok_or(TableError::Short)?;
    let len = reader.u32().and_then(|len| usize::try_from(len).ok()).ok_or(TableError::Short)?;
    match (form, len) {
        (FORM_REPLY, _) => {
            Ok(KeptReply::Reply(Arc::from(reader.take(len).ok_or(TableError::Short)?)))
        }
        (FORM_TOO_LARGE, 0) => Ok(KeptReply::TooLarge),
        (_, _) => Err(TableError::Form { form, len }),
    }
}

fn reply_fits(reply: &KeptReply, reply_bytes_max: u32) -> bool {
    match reply {
        KeptReply::Reply(reply) => {
            u32::try_from(reply.len()).is_ok_and(|len| len <= reply_bytes_max)
        }
        KeptReply::TooLarge => true,
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("bounded by limits that are u32");
    out.extend_from_slice(&length.to_le_bytes());
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
