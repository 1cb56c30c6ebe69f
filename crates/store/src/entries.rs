//! The ordered map with its accounts: bytes, hash, expiries.
//!
//! Invariants, after every method:
//! - `bytes` is the sum of [`charge`] over all entries, `hash` the wrapping sum of their hashes. A
//!   sum does not depend on the order in which entries came, and one entry can be taken out of it.
//! - `expiries` holds exactly the keys whose entries expire.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use base::Index;
use imbl::OrdMap;
use replica::machine::LogTime;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The expiry of a value that stays.
pub(crate) const NEVER: LogTime = LogTime(u64::MAX);

/// What an entry costs above the bytes of its key and value: two reference-counted allocations
/// (32 bytes each with their counts and the allocator's rounding), the entry and its share of a
/// tree node, and a place among the expiries. An estimate, but the same on every member.
pub const ENTRY_OVERHEAD_BYTES: u64 = 160;

pub(crate) type Key = Arc<[u8]>;
pub(crate) type Map = OrdMap<Key, Entry>;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Arc<[u8]>,
    /// The index of the log entry that wrote it.
    pub(crate) revision: Index,
    pub(crate) expires_at: LogTime,
    /// Over key, value, revision and expiry.
    hash: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    map: Map,
    expiries: BTreeSet<(LogTime, Key)>,
    bytes: u64,
    hash: u64,
}

impl Entries {
    /// What the accounting says: entries, bytes, hash.
    pub(crate) fn accounts(&self) -> (u64, u64, u64) {
        (length(self.map.len()), self.bytes, self.hash)
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The map as it is now, in O(1); later writes do not show in it.
    pub(crate) fn frozen(&self) -> Map {
        self.map.clone()
    }

    pub(crate) fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.map.get(key)
    }

    pub(crate) fn range_from(&self, from: &[u8]) -> impl Iterator<Item = (&Key, &Entry)> {
        self.map.range::<_, [u8]>((Bound::Included(from), Bound::Unbounded))
    }

    /// What the entry of `key` is charged with, expired or not.
    pub(crate) fn charged(&self, key: &[u8]) -> u64 {
        self.entry(key).map_or(0, |entry| charge(key, &entry.value))
    }

    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: Arc<[u8]>,
        revision: Index,
        expires_at: LogTime,
    ) {
        let key: Key = Arc::from(key);
        let hash = hash(&key, &value, revision, expires_at);
        self.bytes += charge(&key, &value);
        self.hash = self.hash.wrapping_add(hash);
        let entry = Entry { value, revision, expires_at, hash };
        if let Some(before) = self.map.insert(Arc::clone(&key), entry) {
            self.forget(&key, &before);
        }
        if expires_at < NEVER {
            self.expiries.insert((expires_at, key));
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Some((key, entry)) = self.map.remove_with_key(key) {
            self.forget(&key, &entry);
        }
    }

    /// Takes an entry that has left the map out of the accounts.
    fn forget(&mut self, key: &Key, entry: &Entry) {
        let charge = charge(key, &entry.value);
        base::check!(charge <= self.bytes);
        self.bytes -= charge;
        self.hash = self.hash.wrapping_sub(entry.hash);
        if entry.expires_at < NEVER {
            let was_there = self.expiries.remove(&(entry.expires_at, Arc::clone(key)));
            base::check!(was_there);
        }
    }

    pub(crate) fn last_key(&self) -> Option<&Key> {
        self.map.get_max().map(|(key, _)| key)
    }

    pub(crate) fn next_expiry(&self) -> Option<LogTime> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Removes up to `count_max` entries that are due at `now`, the earliest first.
    pub(crate) fn expire(&mut self, now: LogTime, count_max: u32) {
        for _ in 0..count_max {
            let Some((at, key)) = self.expiries.first().cloned() else { return };
            if now < at {
                return;
            }
            self.remove(&key);
        }
    }

    /// Counts everything anew and compares.
    #[cfg(test)]
    pub(crate) fn assert_invariants(&self) {
        let bytes: u64 = self.map.iter().map(|(key, entry)| charge(key, &entry.value)).sum();
        assert_eq!(self.bytes, bytes);
        let hash = self.map.iter().fold(0_u64, |sum, (key, entry)| {
            sum.wrapping_add(hash(key, &entry.value, entry.revision, entry.expires_at))
        });
        assert_eq!(self.hash, hash);
        let expiries: BTreeSet<(LogTime, Key)> = self
            .map
            .iter()
            .filter(|(_, entry)| entry.expires_at < NEVER)
            .map(|(key, entry)| (entry.expires_at, Arc::clone(key)))
            .collect();
        assert_eq!(self.expiries, expiries);
    }
}

/// What an entry is charged with, in bytes.
pub(crate) fn charge(key: &[u8], value: &[u8]) -> u64 {
    length(key.len()) + length(value.len()) + ENTRY_OVERHEAD_BYTES
}

fn hash(key: &[u8], value: &[u8], revision: Index, expires_at: LogTime) -> u64 {
    let mut stamps = [0; 16];
    stamps[..8].copy_from_slice(&revision.0.to_le_bytes());
    stamps[8..].copy_from_slice(&expires_at.0.to_le_bytes());
    // Chained by seeds, so that the border between key and value counts.
    xxh3_64_with_seed(value, xxh3_64_with_seed(key, xxh3_64(&stamps)))
}

fn length(len: usize) -> u64 {
    u64::try_from(len).expect("a length in memory is below 2^64")
}
