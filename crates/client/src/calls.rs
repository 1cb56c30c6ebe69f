//! What callers give and get: commands and queries to bytes, replies to values that stand alone.

use std::time::Duration;

use base::Index;
use proto::{Batch, Command, Compare, Condition, Query, Reply, Write, WriteResult};

use crate::CallError;
use crate::engine::{self, Work};

/// A value and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The value.
    pub value: Vec<u8>,
    /// The index of the log entry that wrote it.
    pub revision: Index,
    /// How long it lives on; `None` is for ever.
    pub ttl: Option<Duration>,
}

/// A key with its value.
pub type Entry = (Vec<u8>, Found);

/// A part of a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In ascending order.
    pub entries: Vec<Entry>,
    /// Where the next page begins; `None` when the range is through.
    pub next: Option<Vec<u8>>,
}

/// What a batch did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchReply {
    /// Whether every compare held, and so the writes were done.
    pub held: bool,
    /// One per write; empty if they were not done.
    pub results: Vec<WriteResult>,
    /// One per read, from before the writes.
    pub reads: Vec<Option<Found>>,
}

fn found(found: proto::Found<'_>) -> Found {
    Found {
        value: found.value.to_vec(),
        revision: found.revision,
        ttl: (found.ttl_ns != 0).then(|| Duration::from_nanos(found.ttl_ns)),
    }
}

fn bad(fault: proto::Fault) -> CallError {
    CallError::Bad(fault.to_string())
}

fn unexpected() -> CallError {
    CallError::Unknown("the member gave a reply to something else".to_owned())
}

pub(crate) fn batch(batch: Batch<'_>) -> Result<Work, CallError> {
    let mut bytes = Vec::new();
    Command::Batch(batch).encode(&mut bytes).map_err(bad)?;
    Ok(Work::Write(bytes))
}

pub(crate) fn put(key: &[u8], value: &[u8], ttl: Option<Duration>) -> Result<Work, CallError> {
    let ttl_ns = match ttl {
        None => 0,
        Some(ttl) => u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX).max(1),
    };
    let writes = vec![Write::Put { key, value, ttl_ns }];
    batch(Batch { writes, ..Batch::default() })
}

pub(crate) fn delete(key: &[u8]) -> Result<Work, CallError> {
    batch(Batch { writes: vec![Write::Delete { key }], ..Batch::default() })
}

pub(crate) fn increment(key: &[u8], by: i64) -> Result<Work, CallError> {
    batch(Batch { writes: vec![Write::Increment { key, by }], ..Batch::default() })
}

pub(crate) fn compare_and_set(
    key: &[u8],
    expected: Option<&[u8]>,
    new: Option<&[u8]>,
) -> Result<Work, CallError> {
    let condition = expected.map_or(Condition::Absent, Condition::Equals);
    let write = match new {
        Some(value) => Write::Put { key, value, ttl_ns: 0 },
        None => Write::Delete { key },
    };
    let compares = vec![Compare { key, condition }];
    batch(Batch { compares, writes: vec![write], ..Batch::default() })
}

pub(crate) fn limit(state_bytes_max: u64) -> Result<Work, CallError> {
    let mut bytes = Vec::new();
    Command::Limit { state_bytes_max }.encode(&mut bytes).map_err(bad)?;
    Ok(Work::Write(bytes))
}

pub(crate) fn get(key: &[u8]) -> Result<Work, CallError> {
    query(Query::Get { key })
}

pub(crate) fn scan(from: &[u8], to: Option<&[u8]>, limit: u32) -> Result<Work, CallError> {
    query(Query::Scan { from, to, limit })
}

fn query(query: Query<'_>) -> Result<Work, CallError> {
    let mut bytes = Vec::new();
    query.encode(&mut bytes).map_err(bad)?;
    Ok(Work::Read(bytes))
}

/// What the store refuses is surely not done.
fn decoded<T>(
    reply: &engine::Reply,
    convert: impl FnOnce(Reply<'_>) -> Option<T>,
) -> Result<T, CallError> {
    let engine::Reply::Bytes(bytes) = reply else { return Err(unexpected()) };
    match Reply::decode(bytes).map_err(|_| unexpected())? {
        Reply::Refused(proto::Refusal::BadRequest(fault)) => Err(bad(fault)),
        Reply::Refused(refusal @ proto::Refusal::Full { .. }) => {
            Err(CallError::Refused(refusal.to_string()))
        }
        Reply::Refused(refusal) => Err(CallError::Bad(refusal.to_string())),
        reply @ (Reply::Done { .. } | Reply::Value(_) | Reply::Page(_) | Reply::LimitSet) => {
            convert(reply).ok_or_else(unexpected)
        }
    }
}

pub(crate) fn as_batch(reply: &engine::Reply) -> Result<BatchReply, CallError> {
    decoded(reply, |reply| match reply {
        Reply::Done { held, results, reads } => {
            let reads = reads.into_iter().map(|read| read.map(found)).collect();
            Some(BatchReply { held, results, reads })
        }
        Reply::Value(_) | Reply::Page(_) | Reply::LimitSet | Reply::Refused(_) => None,
    })
}

pub(crate) fn as_result(reply: &engine::Reply) -> Result<WriteResult, CallError> {
    as_batch(reply)?.results.first().copied().ok_or_else(unexpected)
}

pub(crate) fn as_existed(reply: &engine::Reply) -> Result<bool, CallError> {
    match as_result(reply)? {
        WriteResult::Put { existed } | WriteResult::Deleted { existed } => Ok(existed),
        WriteResult::Incremented { .. } => Err(unexpected()),
    }
}

pub(crate) fn as_number(reply: &engine::Reply) -> Result<i64, CallError> {
    match as_result(reply)? {
        WriteResult::Incremented { now } => Ok(now),
        WriteResult::Put { .. } | WriteResult::Deleted { .. } => Err(unexpected()),
    }
}

pub(crate) fn as_value(reply: &engine::Reply) -> Result<Option<Found>, CallError> {
    decoded(reply, |reply| match reply {
        Reply::Value(value) => Some(value.map(found)),
        Reply::Done { .. } | Reply::Page(_) | Reply::LimitSet | Reply::Refused(_) => None,
    })
}

pub(crate) fn as_page(reply: &engine::Reply) -> Result<Page, CallError> {
    decoded(reply, |reply| match reply {
        Reply::Page(page) => Some(Page {
            entries: page
                .entries
                .into_iter()
                .map(|(key, value)| (key.to_vec(), found(value)))
                .collect(),
            next: page.next.map(<[u8]>::to_vec),
        }),
        Reply::Done { .. } | Reply::Value(_) | Reply::LimitSet | Reply::Refused(_) => None,
    })
}

pub(crate) fn as_limit(reply: &engine::Reply) -> Result<(), CallError> {
    decoded(reply, |reply| (reply == Reply::LimitSet).then_some(()))
}

pub(crate) fn as_status(reply: engine::Reply) -> Result<String, CallError> {
    match reply {
        engine::Reply::Status(text) => Ok(text),
        engine::Reply::Bytes(_) | engine::Reply::Noted => Err(unexpected()),
    }
}
