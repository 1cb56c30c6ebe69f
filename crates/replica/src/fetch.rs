//! Adopting the best log: READ the suffix that this member lacks, verify it by its digests, copy it
//! into the own log, persist it. Only then may the candidate write to anybody.

use base::Index;
use consensus::{Event, Fetch};
use fabric::{Fabric, Key, Remote, Request, WorkRequest};
use logfmt::{
    AppendError, Extent, Header, Position, parse_extent,
    place::{aligned_header, place},
};
use pmem::Region;

use crate::{
    env::Env,
    group::{Group, Waits},
    shared::{Purpose, Shared, request_id},
    view::RegionBytes,
};

/// A copy under way.
pub(crate) struct Fetching {
    fetch: Fetch,
    /// Which extent, and where in it, in bytes from its segment's start.
    extent: usize,
    offset: u64,
    /// The entry expected at `offset`.
    next: Index,
    /// The last entry that was verified; the match point at first.
    previous: Position,
    /// Bytes that the READ in flight brings.
    wanted: u32,
    /// The number of the READ in flight; `None` while there is none.
    read: Option<u64>,
    /// The own log has no room for the next entry: goes on when a segment is opened.
    is_stalled: bool,
}

impl<E: Env> Group<E> {
    pub(crate) fn begin_fetch(&mut self, fetch: Fetch, shared: &mut Shared<E>) {
        let previous = self.log.position_at(fetch.from, &RegionBytes(&mut self.region));
        let (Some(previous), Some(extent)) = (previous, fetch.extents.first().copied()) else {
            return self.fetch_failed();
        };
        if extent.first > fetch.from.next() {
            return self.fetch_failed();
        }
        self.lower_flushed(fetch.from);
        let (offset, next) = (extent.start, extent.first);
        self.fetching = Some(Fetching {
            fetch,
            extent: 0,
            offset,
            next,
            previous,
            wanted: 0,
            read: None,
            is_stalled: false,
        });
        self.read_more(shared);
    }

    fn fetch_failed(&mut self) {
        self.fetching = None;
        self.later.push_back(Event::FetchFailed);
    }

    /// Posts the next READ.
    fn read_more(&mut self, shared: &mut Shared<E>) {
        let Some(fetching) = &mut self.fetching else { return };
        if shared.fetch_owner.is_some() {
            // The landing memory is another group's for now; the next turn tries again.
            return;
        }
        let fetch = &fetching.fetch;
        let Some(extent) = fetch.extents.get(fetching.extent) else {
            return self.fetch_failed();
        };
        let segment_len = self.layout.segment_len();
        let is_sane = extent.end <= segment_len && fetching.offset < extent.end;
        let slot_known = extent.slot.0 < self.layout.slot_count();
        if !is_sane || !slot_known {
            return self.fetch_failed();
        }
        let room = shared.landing.len() - shared.fetch_at;
        let wanted = (extent.end - fetching.offset).min(room);
        fetching.wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let offset = self.layout.slot(extent.slot).start + fetching.offset;
        let from = Remote { key: Key(fetch.key), offset };
        let into = (shared.landing_id, shared.fetch_at);
        let request = Request::Read { from, into, len: fetching.wanted };
        shared.fetches = (shared.fetches + 1) & 0xff_ffff_ffff;
        let number = shared.fetches;
        let id = request_id(Purpose::Fetch(number), self.line);
        fetching.read = Some(number);
        let (peer, connection) = (fetch.peer, fetch.connection);
        let posted = shared
            .qp(peer, connection)
            .is_some_and(|qp| shared.fabric.post(qp, &[WorkRequest { id, request }]).is_ok());
        if posted {
            shared.fetch_owner = Some(self.line);
        } else {
            self.fetch_failed();
        }
    }

    /// A READ has landed (or failed): takes the entries in it.
    pub(crate) fn on_fetched_bytes(&mut self, number: u64, is_good: bool, shared: &mut Shared<E>) {
        shared.fetch_owner = None;
        let is_wanted = |fetching: &Fetching| fetching.read == Some(number);
        if !self.fetching.as_ref().is_some_and(is_wanted) {
            // A fence has cancelled what this was for.
            return;
        }
        let Some(mut fetching) = self.fetching.take() else { return };
        fetching.read = None;
        if !is_good {
            return self.fetch_failed();
        }
        let Some(extent) = fetching.fetch.extents.get(fetching.extent).copied() else {
            return self.fetch_failed();
        };
        let mut bytes = vec![0; usize::try_from(fetching.wanted).unwrap_or(0)];
        shared.landing.copy_out(shared.fetch_at, &mut bytes);
        let start = fetching.offset;
        let part = Extent { start, first: fetching.next, ..extent };
        let skipped = skip(&bytes, part, fetching.fetch.from);
        let bytes = bytes.get(usize::try_from(skipped.start - start).unwrap_or(usize::MAX)..);
        let Some(rest) = self.take_entries(bytes.unwrap_or(&[]), skipped, &mut fetching) else {
            return self.fetch_failed();
        };
        if fetching.is_stalled {
            if let Some(rest) = rest {
                (fetching.offset, fetching.next) = (rest.start, rest.first);
            }
            self.fetching = Some(fetching);
            self.later.push_back(Event::RoomWanted);
            return;
        }
        if rest.is_some_and(|rest| rest.start == start) {
            // Nothing in a whole buffer: the bytes are not what their owner said.
            return self.fetch_failed();
        }
        if let Some(rest) = rest {
            (fetching.offset, fetching.next) = (rest.start, rest.first);
        } else {
            fetching.extent += 1;
            if let Some(extent) = fetching.fetch.extents.get(fetching.extent) {
                (fetching.offset, fetching.next) = (extent.start, extent.first);
            }
        }
        let is_done = fetching.fetch.extents.len() <= fetching.extent;
        if is_done {
            return self.finish_fetch(&fetching.fetch);
        }
        self.fetching = Some(fetching);
        self.read_more(shared);
    }

    /// Copies verified entries into the own log. Answers what of the extent is left, or `None` when
    /// one of them does not fit this log.
    fn take_entries(
        &mut self,
        bytes: &[u8],
        part: Extent,
        fetching: &mut Fetching,
    ) -> Option<Option<Extent>> {
        if part.first <= fetching.fetch.from {
            // Still below the match point.
            return Some(if part.first > part.last { None } else { Some(part) });
        }
        let through = fetching.fetch.through.index;
        let commit = self.core.commit_index();
        let mut entries = parse_extent(bytes, part, fetching.previous);
        loop {
            let rest = entries.rest();
            fetching.previous = entries.position();
            let Some(entry) = entries.next().filter(|entry| entry.header.index <= through) else {
                return Some(rest);
            };
            let mut region = RegionBytes(&mut self.region);
            match self.log.append_copy(&mut region, &entry.header, commit, &[entry.payload]) {
                Ok(_) => {}
                Err(AppendError::NoRoom { .. }) => {
                    fetching.is_stalled = true;
                    return Some(rest);
                }
                Err(_) => return None,
            }
        }
    }

    /// A segment of the own log was opened.
    pub(crate) fn unstall_fetch(&mut self) {
        if let Some(fetching) = &mut self.fetching {
            fetching.is_stalled = false;
        }
    }

    /// Posts the next READ, if none is under way and nothing is in the way.
    pub(crate) fn resume_fetch(&mut self, shared: &mut Shared<E>) {
        let waits = |fetching: &Fetching| !fetching.is_stalled && fetching.read.is_none();
        if self.fetching.as_ref().is_some_and(waits) {
            self.read_more(shared);
        }
    }

    fn finish_fetch(&mut self, fetch: &Fetch) {
        if self.log.tail() != fetch.through {
            return self.fetch_failed();
        }
        let ticket = self.persist_unflushed(fetch.from);
        self.persisting.push_back((ticket, Waits::Adopted));
    }

    /// The peer that a suffix is being read from is gone.
    pub(crate) fn fetch_lost(&mut self, peer: base::MemberId, shared: &mut Shared<E>) {
        let (line, is_reading) =
            (Some(self.line), self.fetching.as_ref().map(|f| f.read.is_some()));
        if shared.fetch_owner == line && is_reading != Some(true) {
            // The READ was for a fetch that a fence has cancelled; its queue pair may be this one.
            shared.fetch_owner = None;
        }
        if self.fetching.as_ref().is_some_and(|fetching| fetching.fetch.peer == peer) {
            if shared.fetch_owner == line {
                shared.fetch_owner = None;
            }
            self.fetch_failed();
        }
    }
}

/// Steps over the entries of an extent that lie at or below `from`, by their headers alone: they
/// are equal in both logs, and the digest of the first one behind them certifies the rest.
fn skip(bytes: &[u8], extent: Extent, from: Index) -> Extent {
    let mut rest = extent;
    while rest.first <= from && rest.first <= rest.last {
        let header = [rest.start, aligned_header(rest.start)].into_iter().find_map(|at| {
            let from = usize::try_from(at.checked_sub(extent.start)?).ok()?;
            let raw: &[u8; 40] = bytes.get(from..from.checked_add(40)?)?.try_into().ok()?;
            let header = Header::decode(raw, rest.nonce)?;
            let placed = place(rest.start, header.shape());
            (header.index == rest.first && placed.header == at).then_some(placed.end)
        });
        let Some(end) = header.filter(|&end| end <= extent.end) else { break };
        rest.start = end;
        rest.first = rest.first.next();
    }
    rest
}
