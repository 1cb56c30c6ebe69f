//! The sending side: cuts a frozen store into chunks.

use std::ops::Bound;
use std::sync::Arc;

use base::Index;
use replica::machine::{ChunkEnd, LogTime, NoSuchChunk, View};

use super::{CHUNK_HEADER_LEN, ENTRY_HEAD_LEN, HEAD_LEN, seal};
use crate::entries::{Entry, Key, Map};
use crate::machine::Store;

/// The least payload of a chunk that is not the last: below it headers would outweigh entries.
pub const CHUNK_BYTES_MIN: u32 = 4_096;

/// A store frozen at one applied index. Entries that the store has overwritten or removed since
/// stay in memory until the view is dropped: at worst as many bytes as the state had then.
#[derive(Clone, Debug)]
pub struct StoreView {
    map: Map,
    applied: (Index, LogTime),
    head: [u8; HEAD_LEN],
    /// Payload bytes of every chunk but the last.
    chunk_bytes: usize,
    /// Where chunk n begins, for every n that may be asked for. Never empty.
    marks: Vec<Mark>,
}

/// The border before a chunk.
#[derive(Clone, Debug)]
struct Mark {
    at: Position,
    /// The check of the chunk before; 0 before the first.
    previous: u64,
}

/// A place in the stream.
#[derive(Clone, Debug)]
enum Position {
    /// So many bytes into the head.
    Head(usize),
    /// So many bytes into the entry of this key.
    Entry(Key, usize),
    /// Behind the last byte.
    End,
}

impl StoreView {
    pub(crate) fn new(store: &Store, chunk_bytes: u32) -> Self {
        let (count, bytes, hash) = store.entries.accounts();
        let words = [store.applied.0, store.time.0, store.state_bytes_max, count, bytes, hash];
        let mut head = [0; HEAD_LEN];
        head.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        Self {
            map: store.entries.frozen(),
            applied: (store.applied, store.time),
            head,
            chunk_bytes: usize::try_from(chunk_bytes.max(CHUNK_BYTES_MIN)).unwrap_or(usize::MAX),
            marks: vec![Mark { at: Position::Head(0), previous: 0 }],
        }
    }

    /// Appends up to `room` bytes of the stream from `at` on, and tells where it stopped.
    fn fill(&self, at: &Position, mut room: usize, out: &mut Vec<u8>) -> Position {
        let (first, mut skip) = match at {
            Position::Head(skip) => {
                let copied = copy([&self.head, &[], &[]], *skip, room, out);
                if skip + copied < HEAD_LEN {
                    return Position::Head(skip + copied);
                }
                room -= copied;
                (Bound::Unbounded, 0)
            }
            Position::Entry(key, skip) => (Bound::Included(&**key), *skip),
            Position::End => return Position::End,
        };
        for (key, entry) in self.map.range::<_, [u8]>((first, Bound::Unbounded)) {
            let head = entry_head(key, entry);
            let len = ENTRY_HEAD_LEN + key.len() + entry.value.len();
            let copied = copy([&head, key, &entry.value], skip, room, out);
            if skip + copied < len {
                return Position::Entry(Arc::clone(key), skip + copied);
            }
            room -= copied;
            skip = 0;
        }
        Position::End
    }
}

impl View for StoreView {
    fn applied(&self) -> (Index, LogTime) {
        self.applied
    }

    fn chunk(&mut self, number: u32, out: &mut Vec<u8>) -> Result<ChunkEnd, NoSuchChunk> {
        let marks = self.marks.len();
        let no_such_chunk =
            || NoSuchChunk { number, next: u32::try_from(marks - 1).unwrap_or(u32::MAX) };
        let position = usize::try_from(number).map_err(|_| no_such_chunk())?;
        let mark = self.marks.get(position).ok_or_else(no_such_chunk)?;
        let start = out.len();
        out.resize(start + CHUNK_HEADER_LEN, 0);
        let stopped_at = self.fill(&mark.at, self.chunk_bytes, out);
        let end = match stopped_at {
            Position::End => ChunkEnd::Last,
            Position::Head(_) | Position::Entry(..) => ChunkEnd::More,
        };
        let check = seal(&mut out[start..], number, end, mark.previous);
        if end == ChunkEnd::More && position + 1 == marks {
            self.marks.push(Mark { at: stopped_at, previous: check });
        }
        Ok(end)
    }
}

fn entry_head(key: &[u8], entry: &Entry) -> [u8; ENTRY_HEAD_LEN] {
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("keys and values have limits");
    let mut head = [0; ENTRY_HEAD_LEN];
    head[..4].copy_from_slice(&len(key).to_le_bytes());
    head[4..8].copy_from_slice(&len(&entry.value).to_le_bytes());
    head[8..16].copy_from_slice(&entry.revision.0.to_le_bytes());
    head[16..].copy_from_slice(&entry.expires_at.0.to_le_bytes());
    head
}

/// Appends up to `room` bytes of the parts, taken as one run, from `skip` on; tells how many.
fn copy(parts: [&[u8]; 3], mut skip: usize, room: usize, out: &mut Vec<u8>) -> usize {
    let mut left = room;
    for part in parts {
        let skipped = skip.min(part.len());
        let taken = (part.len() - skipped).min(left);
        out.extend_from_slice(&part[skipped..skipped + taken]);
        skip -= skipped;
        left -= taken;
    }
    room - left
}
