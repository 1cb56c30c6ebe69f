//! What commands do to the entries, and queries see of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Digest, Index, check};
use replica::machine::{Committed, LogTime, Replies, StateMachine};
use xxhash_rust::xxh3::xxh3_64;

use crate::entries::{Entries, Entry, NEVER, charge};
use crate::stream::{StoreInstaller, StoreView};
use proto::command::{Batch, Command, Compare, Condition, Write};
use proto::query::{Query, SCAN_BYTES_MAX, SCAN_ENTRIES_MAX};
use proto::reply::{Found, Page, Refusal, Reply, WriteResult};

/// Keys whose time has run out that one log entry removes. What is left over is absent to every
/// command and query all the same, and goes with later entries.
pub const EXPIRIES_PER_ENTRY_MAX: u32 = 128;
/// Bytes of values that one batch reads back, so that a small command has no enormous reply.
pub const READ_BACK_BYTES_MAX: usize = 16 << 20;
/// Entries one scan looks at. Only expired ones, which are passed over, make it more than a page.
const SCAN_VISITS_MAX: u32 = 2 * SCAN_ENTRIES_MAX;

/// An ordered key-value store in memory.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) entries: Entries,
    pub(crate) applied: Index,
    pub(crate) time: LogTime,
    pub(crate) state_bytes_max: u64,
}

impl Store {
    /// An empty store that refuses to grow above `state_bytes_max` bytes.
    ///
    /// Every member of a group must begin with the same limit; later it is changed by
    /// [`Command::Limit`], and a store installed from chunks has the limit of its origin.
    #[must_use]
    pub fn new(state_bytes_max: u64) -> Self {
        Self { entries: Entries::default(), applied: Index(0), time: LogTime(0), state_bytes_max }
    }

    /// The limit in force, in bytes.
    #[must_use]
    pub const fn state_bytes_max(&self) -> u64 {
        self.state_bytes_max
    }

    /// Loses a key behind the log's back, so that a checker can show that it sees it. Whether it
    /// was there.
    #[doc(hidden)]
    pub fn lose_for_faults(&mut self, key: &[u8]) -> bool {
        let was_there = self.entries.entry(key).is_some();
        self.entries.remove(key);
        was_there
    }

    /// The entry of `key`, if its time has not run out.
    fn live(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.entry(key).filter(|entry| self.time < entry.expires_at)
    }

    /// An entry as clients see it: they know no log time, so they get what is left of it.
    fn found<'a>(&self, entry: &'a Entry) -> Found<'a> {
        let ttl_ns = match entry.expires_at {
            NEVER => 0,
            LogTime(at) => at.saturating_sub(self.time.0),
        };
        Found { value: &entry.value, revision: entry.revision, ttl_ns }
    }

    fn execute(&mut self, command: &[u8], out: &mut Vec<u8>) {
        match Command::decode(command) {
            Ok(Command::Batch(batch)) => self.batch(&batch, out),
            Ok(Command::Limit { state_bytes_max }) => {
                self.state_bytes_max = state_bytes_max;
                Reply::LimitSet.encode(out);
            }
            Err(fault) => Reply::Refused(Refusal::BadRequest(fault)).encode(out),
        }
    }

    fn batch(&mut self, batch: &Batch<'_>, out: &mut Vec<u8>) {
        // Kept alive by its reference counts while the writes replace it.
        let seen: Vec<Option<Entry>> =
            batch.reads.iter().map(|key| self.live(key).cloned()).collect();
        let read_bytes: usize = seen.iter().flatten().map(|entry| entry.value.len()).sum();
        if READ_BACK_BYTES_MAX < read_bytes {
            return Reply::Refused(Refusal::ReadBackTooLarge).encode(out);
        }
        let held = batch.compares.iter().all(|compare| self.holds(compare));
        let results = if held { self.write(&batch.writes) } else { Ok(Vec::new()) };
        match results {
            Ok(results) => {
                let reads = seen
                    .iter()
                    .map(|entry| entry.as_ref().map(|entry| self.found(entry)))
                    .collect();
                Reply::Done { held, results, reads }.encode(out);
            }
            Err(refusal) => Reply::Refused(refusal).encode(out),
        }
    }

    fn holds(&self, compare: &Compare<'_>) -> bool {
        let entry = self.live(compare.key);
        match compare.condition {
            Condition::Present => entry.is_some(),
            Condition::Absent => entry.is_none(),
            Condition::Equals(value) => entry.is_some_and(|entry| *entry.value == *value),
            Condition::Revision(index) => entry.map_or(Index(0), |entry| entry.revision) == index,
        }
    }

    /// Does all of `writes` or none: they are staged beside the state first.
    fn write(&mut self, writes: &[Write<'_>]) -> Result<Vec<WriteResult>, Refusal> {
        let mut stage = Stage { store: self, staged: BTreeMap::new() };
        let results = (0..).zip(writes).map(|(at, write)| stage.write(at, write));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        let Stage { staged, .. } = stage;
        self.check_growth(&staged)?;
        for (key, staged) in staged {
            match staged {
                Some(Staged { value, expires_at }) => {
                    let value = Arc::from(value.as_ref());
                    self.entries.put(key, value, self.applied, expires_at);
                }
                None => self.entries.remove(key),
            }
        }
        Ok(results)
    }

    fn check_growth(&self, staged: &BTreeMap<&[u8], Option<Staged<'_>>>) -> Result<(), Refusal> {
        let before: u64 = staged.keys().map(|key| self.entries.charged(key)).sum();
        let after: u64 = staged
            .iter()
            .map(|(key, staged)| staged.as_ref().map_or(0, |staged| charge(key, &staged.value)))
            .sum();
        let state_bytes = self.entries.bytes();
        check!(before <= state_bytes);
        if before < after && self.state_bytes_max < state_bytes - before + after {
            let state_bytes_max = self.state_bytes_max;
            return Err(Refusal::Full { state_bytes, state_bytes_max });
        }
        Ok(())
    }

    fn scan<'a>(&'a self, from: &'a [u8], to: Option<&[u8]>, limit: u32) -> Page<'a> {
        let limit = usize::try_from(limit.clamp(1, SCAN_ENTRIES_MAX)).unwrap_or(usize::MAX);
        let mut page = Page::default();
        let mut bytes = 0;
        for ((key, entry), visits) in self.entries.range_from(from).zip(0..) {
            if to.is_some_and(|to| to <= &**key) {
                break;
            }
            let is_full = limit <= page.entries.len() || SCAN_BYTES_MAX <= bytes;
            if is_full || visits == SCAN_VISITS_MAX {
                page.next = Some(key);
                break;
            }
            if self.time < entry.expires_at {
                bytes += key.len() + entry.value.len();
                page.entries.push((key, self.found(entry)));
            }
        }
        page
    }

    /// Moves to the next entry of the log.
    fn enter(&mut self, index: Index, time: LogTime) {
        check!(index == self.applied.next(), "entry {index} came after entry {}", self.applied);
        self.applied = index;
        self.time = self.time.max(time);
        self.entries.expire(self.time, EXPIRIES_PER_ENTRY_MAX);
    }
}

/// A value about to be written.
struct Staged<'a> {
    value: Cow<'a, [u8]>,
    expires_at: LogTime,
}

/// Writes of one batch that are not yet in the store; none is a removal.
struct Stage<'s, 'a> {
    store: &'s Store,
    staged: BTreeMap<&'a [u8], Option<Staged<'a>>>,
}

impl<'a> Stage<'_, 'a> {
    fn write(&mut self, at: u16, write: &Write<'a>) -> Result<WriteResult, Refusal> {
        let (value, expires_at) = match self.staged.get(write.key()) {
            Some(Some(staged)) => (Some(&*staged.value), staged.expires_at),
            Some(None) => (None, NEVER),
            None => match self.store.live(write.key()) {
                Some(entry) => (Some(&*entry.value), entry.expires_at),
                None => (None, NEVER),
            },
        };
        let existed = value.is_some();
        let (staged, result) = match *write {
            Write::Put { value, ttl_ns, .. } => {
                let expires_at = self.expiry(ttl_ns);
                let staged = Staged { value: Cow::Borrowed(value), expires_at };
                (Some(staged), WriteResult::Put { existed })
            }
            Write::Delete { .. } => (None, WriteResult::Deleted { existed }),
            Write::Increment { by, .. } => {
                let now = value
                    .map_or(Some(0), parse_integer)
                    .ok_or(Refusal::NotAnInteger { write: at })?
                    .checked_add(by)
                    .ok_or(Refusal::Overflow { write: at })?;
                let value = Cow::Owned(now.to_string().into_bytes());
                (Some(Staged { value, expires_at }), WriteResult::Incremented { now })
            }
        };
        self.staged.insert(write.key(), staged);
        Ok(result)
    }

    const fn expiry(&self, ttl_ns: u64) -> LogTime {
        if ttl_ns == 0 { NEVER } else { LogTime(self.store.time.0.saturating_add(ttl_ns)) }
    }
}

/// A 64-bit integer in the one way this store writes it: no plus sign, no leading zeros.
fn parse_integer(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

impl StateMachine for Store {
    type View = StoreView;
    type Installer = StoreInstaller;

    fn apply(&mut self, batch: &[Committed<'_>], replies: &mut Replies) {
        for committed in batch {
            self.enter(committed.index, committed.time);
            replies.push_with(|out| self.execute(committed.command, out));
        }
    }

    fn advance(&mut self, index: Index, time: LogTime) {
        self.enter(index, time);
    }

    fn applied(&self) -> (Index, LogTime) {
        (self.applied, self.time)
    }

    fn read(&self, query: &[u8], reply: &mut Vec<u8>) {
        match Query::decode(query) {
            Ok(Query::Get { key }) => {
                Reply::Value(self.live(key).map(|entry| self.found(entry))).encode(reply)
            }
            Ok(Query::Scan { from, to, limit }) => {
                Reply::Page(self.scan(from, to, limit)).encode(reply);
            }
            Err(fault) => Reply::Refused(Refusal::BadRequest(fault)).encode(reply),
        }
    }

    fn next_expiry(&self) -> Option<LogTime> {
        self.entries.next_expiry()
    }

    fn checkpoint(&mut self, chunk_bytes: u32) -> StoreView {
        StoreView::new(self, chunk_bytes)
    }

    fn installer(&self) -> StoreInstaller {
        StoreInstaller::new()
    }

    fn digest(&self) -> Digest {
        let (count, bytes, hash) = self.entries.accounts();
        let words = [count, bytes, hash, self.state_bytes_max].map(u64::to_le_bytes);
        Digest(xxh3_64(words.as_flattened()))
    }

    fn state_bytes(&self) -> u64 {
        self.entries.bytes()
    }

    fn lowest_referenced(&self) -> Option<Index> {
        None
    }

    fn backlog(&self) -> u64 {
        0
    }
}
