//! Posting a chain: WRITE the entries, WRITE the idle commit word, READ the grant word.
//!
//! Entries that this leader itself appended in this term stand in its own log as they go to every
//! follower: same nonce, same headers, so a run is one WRITE gathered from the log. Older entries,
//! and those whose place in the follower's segment differs, get a header made anew; the payload is
//! gathered from the log all the same.

use base::{Index, Nonce};
use consensus::{Chain, Event, Run};
use fabric::{Caps, Fabric, Key, Piece, PostError, Qp, Remote, Request, WorkRequest};
use logfmt::place::{BLOCK, FIRST_OFFSET, HEADER_LEN, place};

use crate::{
    env::Env,
    group::Group,
    shared::{Purpose, Queued, Shared, request_id},
    view::RegionBytes,
};

/// READs of a queue pair that chains leave for control lines and logs of others.
const READS_KEPT: u32 = 2;

/// A stretch of own log that is a stretch of the follower's segment, byte for byte.
struct Straight {
    local: u64,
    remote: u64,
    len: u32,
}

/// An entry with a header made anew.
struct Framed {
    /// The header, padded up to where the payload starts.
    header: Vec<u8>,
    local: u64,
    len: u32,
    remote: u64,
}

/// Whether a chain puts the first entry into a segment.
fn begins_segment(chain: &Chain) -> bool {
    chain.runs.iter().flatten().any(|run| run.offset == FIRST_OFFSET)
}

impl<E: Env> Group<E> {
    pub(crate) fn post_or_queue(&mut self, chain: Chain, shared: &mut Shared<E>) {
        let line = self.line;
        let Some(link) = shared.link(chain.peer, chain.connection) else { return };
        if !link.queued.is_empty() {
            link.queued.push_back(Queued::Chain(line, chain));
            return;
        }
        let qp = link.qp;
        if self.post_chain(&chain, qp, shared) == Err(PostError::Full)
            && let Some(link) = shared.link(chain.peer, chain.connection)
        {
            link.queued.push_back(Queued::Chain(line, chain));
        }
    }

    /// Posts a chain. `Full` means that it is to be posted again; after any other error the core is
    /// told that it failed.
    pub(crate) fn post_chain(
        &mut self,
        chain: &Chain,
        qp: Qp,
        shared: &mut Shared<E>,
    ) -> Result<(), PostError> {
        // Votes and control lines share the queue pair: a few READs are kept for them.
        let room = shared.fabric.caps().reads_max.saturating_sub(READS_KEPT).max(1);
        let reads = |shared: &mut Shared<E>| {
            shared.link(chain.peer, chain.connection).map(|link| link.reads)
        };
        if reads(shared).is_some_and(|reads| reads >= room) {
            return Err(PostError::Full);
        }
        let posted = self.try_chain(chain, qp, shared);
        if posted.is_ok() && begins_segment(chain) {
            // It grants segments ahead of the one being filled. Everything else in its memory can
            // wait until it looks there by itself.
            shared.fabric.ring(qp);
        }
        if posted.is_ok()
            && let Some(link) = shared.link(chain.peer, chain.connection)
        {
            link.reads += 1;
        }
        if posted.is_err_and(|error| error != PostError::Full) {
            let (peer, connection) = (chain.peer, chain.connection);
            self.later.push_back(Event::ChainFailed { peer, connection });
        }
        posted
    }

    fn try_chain(
        &mut self,
        chain: &Chain,
        qp: Qp,
        shared: &mut Shared<E>,
    ) -> Result<(), PostError> {
        let not_connected = PostError::NotConnected(qp);
        let link = shared.link(chain.peer, chain.connection).ok_or(not_connected)?;
        let theirs = link.greeting.group(self.id).ok_or(not_connected)?;
        let word = Remote {
            key: Key(link.greeting.control_key),
            offset: u64::from(theirs.line) * logfmt::CONTROL_LEN as u64,
        };
        let nonce = chain.nonce;
        let id = request_id(Purpose::Chain(chain.id), self.line);
        let idle_line = logfmt::encode_idle(chain.commit, nonce);
        let idle_pieces = [Piece::Inline(&idle_line)];
        let idle = chain.idle.map(|key| WorkRequest {
            id,
            request: Request::Write {
                pieces: &idle_pieces,
                to: Remote { key: Key(key), offset: 0 },
            },
        });
        let read = WorkRequest { id, request: Request::ReadWord { from: word } };
        let straight = chain.runs.map(|run| run.map(|run| (run, self.straight(run, nonce))));
        if straight.iter().flatten().all(|(_, straight)| straight.is_some()) {
            let runs = straight.map(|run| run.and_then(|(run, straight)| Some((run, straight?))));
            return self.post_straight(&runs, idle, read, (qp, &mut shared.fabric));
        }
        self.post_framed(chain, (nonce, idle, read), qp, shared)
    }

    /// Where a run lies in the own log, if it can be copied as it is.
    fn straight(&self, run: Run, nonce: Nonce) -> Option<Straight> {
        let (first, last) = (self.log.location(run.first)?, self.log.location(run.last)?);
        let extent_nonce = self.log.nonce_of(first.slot);
        let remote = place(run.offset, first.shape);
        let shift = remote.header.wrapping_sub(first.header);
        if first.slot != last.slot || extent_nonce != nonce || !shift.is_multiple_of(BLOCK) {
            return None;
        }
        let local = self.layout.slot(first.slot).start + first.header;
        let end = last.payload + u64::from(last.shape.payload_len);
        let len = u32::try_from(end - first.header).ok()?;
        Some(Straight { local, remote: remote.header, len })
    }

    fn post_straight(
        &self,
        runs: &[Option<(Run, Straight)>; 2],
        idle: Option<WorkRequest<'_>>,
        read: WorkRequest<'_>,
        (qp, fabric): (Qp, &mut E::Fabric),
    ) -> Result<(), PostError> {
        let piece = |run: &Option<(Run, Straight)>| {
            run.as_ref().map_or(Piece::Inline(&[]), |(_, straight)| Piece::Local {
                region: self.region_id,
                offset: straight.local,
                len: straight.len,
            })
        };
        let pieces = [[piece(&runs[0])], [piece(&runs[1])]];
        let mut chain = [read; 4];
        let mut count = 0;
        let leads = idle.filter(|_| base::mutant!("commit_word_clamped_to_own_tail"));
        if let Some(idle) = leads {
            chain[count] = idle;
            count += 1;
        }
        for (run, pieces) in runs.iter().zip(&pieces) {
            if let Some((run, straight)) = run {
                let to = Remote { key: Key(run.key), offset: straight.remote };
                let request = Request::Write { pieces, to };
                chain[count] = WorkRequest { id: read.id, request };
                count += 1;
            }
        }
        if let Some(idle) = idle.filter(|_| leads.is_none()) {
            chain[count] = idle;
            count += 1;
        }
        chain[count] = read;
        fabric.post(qp, &chain[..=count])
    }

    /// Posts entries with headers made anew, in as many posts as the provider's chains need; only
    /// the last one reads. Order on the queue pair makes them one chain.
    fn post_framed(
        &mut self,
        chain: &Chain,
        (nonce, idle, read): (Nonce, Option<WorkRequest<'_>>, WorkRequest<'_>),
        qp: Qp,
        shared: &mut Shared<E>,
    ) -> Result<(), PostError> {
        let mut framed = Vec::new();
        for run in chain.runs.into_iter().flatten() {
            if !self.frame(run, (nonce, chain.commit), &mut framed) {
                return Err(PostError::Invalid("the log has moved on under a queued chain"));
            }
        }
        let Caps { chain_max, reads_max: _, .. } = shared.fabric.caps();
        let batch = usize::try_from(chain_max).unwrap_or(usize::MAX).saturating_sub(2).max(1);
        let pieces: Vec<[Piece<'_>; 2]> = framed
            .iter()
            .map(|(_, entry)| {
                let region = self.region_id;
                let payload = Piece::Local { region, offset: entry.local, len: entry.len };
                [Piece::Inline(&entry.header), payload]
            })
            .collect();
        let mut writes: Vec<WorkRequest<'_>> = framed
            .iter()
            .zip(&pieces)
            .map(|((key, entry), pieces)| WorkRequest {
                id: read.id,
                request: Request::Write {
                    pieces: if entry.len == 0 { &pieces[..1] } else { &pieces[..] },
                    to: Remote { key: *key, offset: entry.remote },
                },
            })
            .collect();
        writes.extend(idle);
        // A first read-less post that is refused for want of room leaves nothing behind.
        while writes.len() > batch {
            let rest = writes.split_off(batch);
            shared.fabric.post(qp, &writes)?;
            writes = rest;
        }
        writes.push(read);
        shared.fabric.post(qp, &writes)
    }

    fn frame(
        &mut self,
        run: Run,
        (nonce, commit): (Nonce, Index),
        framed: &mut Vec<(Key, Framed)>,
    ) -> bool {
        let mut offset = run.offset;
        let mut index = run.first;
        while index <= run.last {
            let Some(from) = self.log.location(index) else { return false };
            let old = self.log.header_of(index, &RegionBytes(&mut self.region));
            let Some(old) = old else { return false };
            let to = place(offset, from.shape);
            let header = logfmt::Header { commit: commit.min(index.previous()), ..old };
            let mut bytes = header.encode(nonce).to_vec();
            let pad = usize::try_from(to.payload - to.header - HEADER_LEN).unwrap_or(0);
            bytes.resize(bytes.len() + pad, 0);
            let entry = Framed {
                header: bytes,
                local: self.layout.slot(from.slot).start + from.payload,
                len: from.shape.payload_len,
                remote: to.header,
            };
            framed.push((Key(run.key), entry));
            offset = to.end;
            index = index.next();
        }
        true
    }
}
