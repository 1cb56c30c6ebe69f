//! Posting a chain: WRITE the entries, WRITE the idle commit word, READ the grant word.
//!
//! Entries that this leader itself appended in this term stand in its own log as they go to every
//! follower: same nonce, same headers, so a run is one WRITE gathered from the log. Older entries,
//! and those whose place in the follower's segment differs, get a header made anew; the payload is
//! gathered from the log all the same.

use base::{GroupId, Index, Nonce};
use consensus::{Chain, Event, Run};
use fabric::{Caps, Fabric, Key, Piece, PostError, Qp, RegionId, Remote, Request, WorkRequest};
use logfmt::MemberLog;
use logfmt::place::{BLOCK, FIRST_OFFSET, HEADER_LEN, place};

use crate::{
    env::Env,
    group::Group,
    shared::{Link, Purpose, Queued, Shared, request_id},
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

/// What a chain is made of: the own log, and how the group is named to the peers' shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) group: GroupId,
    pub(crate) line: u32,
    pub(crate) region_id: RegionId,
    pub(crate) log: &'a MemberLog,
}

impl Source<'_> {
    /// Where a run lies in the own log, if it can be copied as it is.
    fn straight(&self, run: Run, nonce: Nonce) -> Option<Straight> {
        let first = self.log.location(run.first)?;
        let last = if run.last == run.first { first } else { self.log.location(run.last)? };
        let extent_nonce = self.log.nonce_of(first.slot);
        let remote = place(run.offset, first.shape);
        let shift = remote.header.wrapping_sub(first.header);
        if first.slot != last.slot || extent_nonce != nonce || !shift.is_multiple_of(BLOCK) {
            return None;
        }
        let local = self.log.layout().slot(first.slot).start + first.header;
        let end = last.payload + u64::from(last.shape.payload_len);
        let len = u32::try_from(end - first.header).ok()?;
        Some(Straight { local, remote: remote.header, len })
    }

    /// The read-back of a chain, which proves what stands before it on the queue pair.
    fn read_back(&self, chain: &Chain, link: &Link) -> Result<WorkRequest<'static>, PostError> {
        let theirs = link.greeting.group(self.group).ok_or(PostError::NotConnected(link.qp))?;
        let key = Key(link.greeting.control_key);
        let offset = u64::from(theirs.line) * logfmt::CONTROL_LEN as u64;
        let id = request_id(Purpose::Chain(chain.id), self.line);
        Ok(WorkRequest { id, request: Request::ReadWord { from: Remote { key, offset } } })
    }

    /// Puts together a chain whose entries, if it has any, can be copied as they stand, and posts it
    /// by `post`. `None`: they cannot.
    #[inline]
    fn post_straight<R>(
        &self,
        chain: &Chain,
        (idle, read): (Option<WorkRequest<'_>>, WorkRequest<'_>),
        post: impl FnOnce(&[WorkRequest<'_>]) -> R,
    ) -> Option<R> {
        let Some(run) = chain.run else {
            return Some(match idle {
                Some(idle) => post(&[idle, read]),
                None => post(&[read]),
            });
        };
        let Straight { local, remote, len } = self.straight(run, chain.nonce)?;
        let pieces = [Piece::Local { region: self.region_id, offset: local, len }];
        let to = Remote { key: Key(run.key), offset: remote };
        let write = WorkRequest { id: read.id, request: Request::Write { pieces: &pieces, to } };
        Some(match idle {
            None => post(&[write, read]),
            Some(idle) if base::mutant!("commit_word_clamped_to_own_tail") => {
                post(&[idle, write, read])
            }
            Some(idle) => post(&[write, idle, read]),
        })
    }

    /// Posts a chain now if nothing stands in the way and nothing of it is to be made anew: what
    /// every commit consists of. `false`: nothing has happened.
    pub(crate) fn post_now<E: Env>(&self, chain: &Chain, shared: &mut Shared<E>) -> bool {
        let Some(at) = shared.link_at(chain.peer, chain.connection) else { return false };
        if chain.idle.is_some() || !shared.takes_chains(at) {
            return false;
        }
        let link = &shared.links[at];
        let Ok(read) = self.read_back(chain, link) else { return false };
        let (qp, fabric) = (link.qp, &mut shared.fabric);
        let posted =
            self.post_straight(chain, (None, read), |chain| fabric.post(qp, chain).is_ok());
        let is_posted = posted == Some(true);
        if is_posted {
            shared.note_posted(chain, at);
        }
        is_posted
    }
}

impl<E: Env> Shared<E> {
    /// Whether a new chain may be posted on a link: nothing waits there.
    fn takes_chains(&self, at: usize) -> bool {
        self.links[at].queued.is_empty() && self.has_room(at)
    }

    /// Whether the queue pair of a link takes one more chain.
    fn has_room(&self, at: usize) -> bool {
        // Votes and control lines share the queue pair: a few READs are kept for them.
        let room = self.fabric.caps().reads_max.saturating_sub(READS_KEPT).max(1);
        self.links[at].reads < room
    }

    fn note_posted(&mut self, chain: &Chain, at: usize) {
        self.links[at].reads += 1;
        if chain.run.is_some_and(|run| run.offset == FIRST_OFFSET) {
            // It grants segments ahead of the one being filled. Everything else in its memory can
            // wait until it looks there by itself.
            self.fabric.ring(self.links[at].qp);
        }
    }
}

impl<E: Env> Group<E> {
    pub(crate) fn post_or_queue(&mut self, chain: &Chain, shared: &mut Shared<E>) {
        let Some(at) = shared.link_at(chain.peer, chain.connection) else { return };
        if !shared.takes_chains(at) || self.post_chain(chain, at, shared) == Err(PostError::Full) {
            shared.links[at].queued.push_back(Queued::Chain(self.line, *chain));
        }
    }

    /// Posts a chain that was queued, whatever waits behind it.
    pub(crate) fn post_queued(
        &mut self,
        chain: &Chain,
        at: usize,
        shared: &mut Shared<E>,
    ) -> Result<(), PostError> {
        if shared.has_room(at) { self.post_chain(chain, at, shared) } else { Err(PostError::Full) }
    }

    /// Posts a chain on the link at a place. `Full` means that it is to be posted again; after any
    /// other error the core is told that it failed.
    fn post_chain(
        &mut self,
        chain: &Chain,
        at: usize,
        shared: &mut Shared<E>,
    ) -> Result<(), PostError> {
        let posted = self.try_chain(chain, &shared.links[at], &mut shared.fabric);
        match posted {
            Ok(()) => shared.note_posted(chain, at),
            Err(PostError::Full) => {}
            Err(_) => {
                let (peer, connection) = (chain.peer, chain.connection);
                self.later.push_back(Event::ChainFailed { peer, connection });
            }
        }
        posted
    }

    fn try_chain(
        &mut self,
        chain: &Chain,
        link: &Link,
        fabric: &mut E::Fabric,
    ) -> Result<(), PostError> {
        let source = self.source();
        let line = logfmt::encode_idle(chain.commit, chain.nonce);
        let pieces = [Piece::Inline(&line)];
        let idle = chain.idle.map(|key| {
            let id = request_id(Purpose::Chain(chain.id), source.line);
            let to = Remote { key: Key(key), offset: 0 };
            WorkRequest { id, request: Request::Write { pieces: &pieces, to } }
        });
        let read = source.read_back(chain, link)?;
        let post = |chain: &[WorkRequest<'_>]| fabric.post(link.qp, chain);
        match (source.post_straight(chain, (idle, read), post), chain.run) {
            (None, Some(run)) => self.post_framed((run, chain), (idle, read), (link.qp, fabric)),
            (posted, _) => posted.unwrap_or(Ok(())),
        }
    }

    /// Posts entries with headers made anew, in as many posts as the provider's chains need; only
    /// the last one reads. Order on the queue pair makes them one chain.
    fn post_framed(
        &mut self,
        (run, chain): (Run, &Chain),
        (idle, read): (Option<WorkRequest<'_>>, WorkRequest<'_>),
        (qp, fabric): (Qp, &mut E::Fabric),
    ) -> Result<(), PostError> {
        let Some(framed) = self.frame(run, (chain.nonce, chain.commit)) else {
            return Err(PostError::Invalid("the log has moved on under a queued chain"));
        };
        let Caps { chain_max, reads_max: _, .. } = fabric.caps();
        let batch = usize::try_from(chain_max).unwrap_or(usize::MAX).saturating_sub(2).max(1);
        let pieces: Vec<[Piece<'_>; 2]> = framed
            .iter()
            .map(|entry| {
                let region = self.region_id;
                let payload = Piece::Local { region, offset: entry.local, len: entry.len };
                [Piece::Inline(&entry.header), payload]
            })
            .collect();
        let mut writes: Vec<WorkRequest<'_>> = framed
            .iter()
            .zip(&pieces)
            .map(|(entry, pieces)| WorkRequest {
                id: read.id,
                request: Request::Write {
                    pieces: if entry.len == 0 { &pieces[..1] } else { &pieces[..] },
                    to: Remote { key: Key(run.key), offset: entry.remote },
                },
            })
            .collect();
        writes.extend(idle);
        // A first read-less post that is refused for want of room leaves nothing behind.
        while writes.len() > batch {
            let rest = writes.split_off(batch);
            fabric.post(qp, &writes)?;
            writes = rest;
        }
        writes.push(read);
        fabric.post(qp, &writes)
    }

    fn frame(&mut self, run: Run, (nonce, commit): (Nonce, Index)) -> Option<Vec<Framed>> {
        let mut framed = Vec::new();
        let mut offset = run.offset;
        let mut index = run.first;
        while index <= run.last {
            let from = self.log.location(index)?;
            let old = self.log.header_of(index, &RegionBytes(&mut self.region))?;
            let to = place(offset, from.shape);
            let header = logfmt::Header { commit: commit.min(index.previous()), ..old };
            let mut bytes = header.encode(nonce).to_vec();
            let pad = usize::try_from(to.payload - to.header - HEADER_LEN).unwrap_or(0);
            bytes.resize(bytes.len() + pad, 0);
            framed.push(Framed {
                header: bytes,
                local: self.layout.slot(from.slot).start + from.payload,
                len: from.shape.payload_len,
                remote: to.header,
            });
            offset = to.end;
            index = index.next();
        }
        Some(framed)
    }
}
