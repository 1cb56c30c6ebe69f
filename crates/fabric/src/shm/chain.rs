//! Checking a chain, and executing it: the path that every replicated byte takes.
//!
//! A chain is checked as a whole before anything of it is executed, so that a refused one has done
//! nothing. What can fail after that is the peer's side: then the queue pair breaks.

use std::io;

use base::Durability;
use pmem::Mapping;

use super::completions::Completions;
use super::layout::{self, FrameKind, MESSAGE_MAX, frame_len};
use super::link::{CHAIN_MAX, Link, Pending, READS_MAX, Waiting};
use super::syncer::{SyncFile, Syncer};
use super::window::{Want, Window};
use super::{board::Doorbell, board::OwnBoard};
use crate::{Caps, Piece, PostError, RegionId, Remote, Request, Status, WorkRequest};

/// Pieces in one WRITE.
const PIECES_MAX: u32 = 64;
/// Inline bytes in one WRITE: headers are inline, payloads are not.
const INLINE_MAX: u32 = 16 * 1024;
/// Bytes moved at once between two mappings.
const BLOCK: usize = 512;
/// As [`BLOCK`], for what fits it.
const SMALL_BLOCK: usize = 128;

/// The limits of the provider.
pub(crate) const CAPS: Caps = Caps {
    reads_max: READS_MAX,
    chain_max: CHAIN_MAX,
    pieces_max: PIECES_MAX,
    inline_max: INLINE_MAX,
    message_max: MESSAGE_MAX,
};

/// What a chain will take of the queue pair's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Signaled requests.
    pub(crate) signaled: u32,
    /// Bytes of the message ring.
    pub(crate) ring: u64,
}

/// Checks a chain against the limits and the local regions.
///
/// # Errors
/// [`PostError::Invalid`].
pub(crate) fn check(locals: &[Mapping], chain: &[WorkRequest<'_>]) -> Result<Cost, PostError> {
    if chain.len() > CHAIN_MAX as usize {
        return Err(PostError::Invalid("more requests than chain_max"));
    }
    let mut cost = Cost::default();
    for work in chain {
        match work.request {
            Request::Write { pieces, .. } => check_pieces(locals, pieces)?,
            Request::ReadWord { from } => {
                if !from.offset.is_multiple_of(8) {
                    return Err(PostError::Invalid("ReadWord of a place that is not aligned"));
                }
                cost.signaled += 1;
            }
            Request::Read { into: (region, offset), len, .. } => {
                check_local(locals, region, offset, len)?;
                cost.signaled += 1;
            }
            Request::Send { bytes } => {
                let len = u32::try_from(bytes.len()).ok().filter(|&len| len <= MESSAGE_MAX);
                let len = len.ok_or(PostError::Invalid("message longer than message_max"))?;
                cost.ring += frame_len(len);
            }
        }
    }
    Ok(cost)
}

fn check_pieces(locals: &[Mapping], pieces: &[Piece<'_>]) -> Result<(), PostError> {
    if pieces.len() > PIECES_MAX as usize {
        return Err(PostError::Invalid("more pieces than pieces_max"));
    }
    let mut inline = 0_usize;
    for piece in pieces {
        match *piece {
            Piece::Local { region, offset, len } => check_local(locals, region, offset, len)?,
            Piece::Inline(bytes) => inline = inline.saturating_add(bytes.len()),
        }
    }
    if inline > INLINE_MAX as usize {
        return Err(PostError::Invalid("more inline bytes than inline_max"));
    }
    Ok(())
}

fn check_local(
    locals: &[Mapping],
    region: RegionId,
    offset: u64,
    len: u32,
) -> Result<(), PostError> {
    let local = locals.get(region.0 as usize);
    let local = local.ok_or(PostError::Invalid("no such local region"))?;
    let end = offset.checked_add(u64::from(len));
    if end.is_some_and(|end| end <= local.len()) {
        Ok(())
    } else {
        Err(PostError::Invalid("range outside the local region"))
    }
}

/// What executing needs besides the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) own: &'a OwnBoard,
    pub(crate) locals: &'a [Mapping],
    pub(crate) is_fenced: bool,
    pub(crate) sync: SyncFile,
}

/// How far a request got.
enum Outcome {
    /// Done, and nothing is said of it.
    Silent,
    /// Done; its completion carries this word.
    Done(u64),
    /// Waits for a sync.
    Later(Waiting, u64),
}

/// Executes a chain that has passed [`check`] on a connected link.
pub(crate) fn execute(
    link: &mut Link,
    around: &Surroundings<'_>,
    completions: &mut Completions,
    chain: &[WorkRequest<'_>],
) {
    let mut has_sent = false;
    for (index, work) in chain.iter().enumerate() {
        has_sent |= matches!(work.request, Request::Send { .. });
        match execute_one(link, around, &work.request) {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Done(word)) => link.complete(completions, work.id, Status::Ok, word),
            Ok(Outcome::Later(what, ticket)) => {
                link.pending.push_back(Pending { id: work.id, what, ticket });
            }
            Err(status) => {
                fail(link, &chain[index..], status);
                settle(link, around, completions);
                return;
            }
        }
    }
    if has_sent {
        link.ring_bell();
    }
}

/// Lines up the failure of `chain` behind what is pending; the first of it failed with `status`.
fn fail(link: &mut Link, chain: &[WorkRequest<'_>], status: Status) {
    link.is_failing = true;
    let mut status = status;
    for work in chain {
        let what = Waiting::Failed(std::mem::replace(&mut status, Status::Flushed));
        link.pending.push_back(Pending { id: work.id, what, ticket: 0 });
    }
}

fn execute_one(
    link: &mut Link,
    around: &Surroundings<'_>,
    request: &Request<'_>,
) -> Result<Outcome, Status> {
    match *request {
        Request::Write { pieces, to } => {
            write(link, around, pieces, to)?;
            Ok(Outcome::Silent)
        }
        Request::ReadWord { from } => match waits_for(link) {
            Some(ticket) => Ok(Outcome::Later(Waiting::Word(from), ticket)),
            None => read_word(link, around, from).map(Outcome::Done),
        },
        Request::Read { from, into, len } => match waits_for(link) {
            Some(ticket) => Ok(Outcome::Later(Waiting::Read { from, into, len }, ticket)),
            None => read(link, around, from, into, len).map(|()| Outcome::Done(0)),
        },
        Request::Send { bytes } => {
            let (Some(instance), Some(producer)) = (&link.instance, &mut link.producer) else {
                return Err(Status::PeerGone);
            };
            producer.push(&instance.board.map, FrameKind::Message, bytes);
            Ok(Outcome::Silent)
        }
    }
}

/// The sync that a signaled request has to wait for, if there is one.
fn waits_for(link: &mut Link) -> Option<u64> {
    let syncer = link.instance.as_mut()?.syncer.as_mut()?;
    let ticket = syncer.submit();
    let must_wait = !link.pending.is_empty() || !syncer.is_done(ticket);
    must_wait.then_some(ticket)
}

fn window(link: &mut Link, place: Remote, want: Want, len: u64) -> Result<&Window, Status> {
    let pair = link.own_pair;
    let instance = link.instance.as_mut().ok_or(Status::PeerGone)?;
    instance.windows.find(place.key.0, pair, want, (place.offset, len))
}

fn write(
    link: &mut Link,
    around: &Surroundings<'_>,
    pieces: &[Piece<'_>],
    to: Remote,
) -> Result<(), Status> {
    let len = pieces.iter().map(|piece| match *piece {
        Piece::Local { len, .. } => u64::from(len),
        Piece::Inline(bytes) => bytes.len() as u64,
    });
    let len = len.sum();
    let window = window(link, to, Want::Write, len)?;
    let start = window.at(to.offset);
    let mut at = start;
    for piece in pieces {
        at += match *piece {
            Piece::Local { region, offset, len } => {
                copy(&around.locals[region.0 as usize], offset, &window.map, at, u64::from(len));
                u64::from(len)
            }
            Piece::Inline(bytes) => {
                window.map.copy_in(at, bytes);
                bytes.len() as u64
            }
        };
    }
    let (durability, region) = (window.durability, window.region());
    match durability {
        Durability::Volatile | Durability::Process | Durability::Sync => {}
        Durability::ReadBack | Durability::Platform | Durability::Flush | Durability::TargetCpu => {
            window.map.write_back(start..at)
        }
    }
    window.map.health().map_err(|_| Status::RemoteAccess)?;
    if durability == Durability::Sync { mark(link, around, region) } else { Ok(()) }
}

/// Leaves `region` to the syncer, starting it if this is the first.
fn mark(link: &mut Link, around: &Surroundings<'_>, region: usize) -> Result<(), Status> {
    let instance = link.instance.as_mut().ok_or(Status::PeerGone)?;
    let file = instance.windows.file(region).ok_or(Status::RemoteSync)?;
    if instance.syncer.is_none() {
        let doorbell: Doorbell = around.own.doorbell.clone();
        let started: io::Result<Syncer> = Syncer::start(doorbell, around.sync);
        instance.syncer = Some(started.map_err(|_| Status::RemoteSync)?);
    }
    let syncer = instance.syncer.as_mut().ok_or(Status::RemoteSync)?;
    if syncer.has_failed() {
        return Err(Status::RemoteSync);
    }
    syncer.mark(region, file);
    Ok(())
}

/// The read-back: everything that the queue pair stored is visible before the word is loaded, and
/// the owner was alive after it.
fn read_word(link: &mut Link, around: &Surroundings<'_>, from: Remote) -> Result<u64, Status> {
    let window = window(link, from, Want::Read, 8)?;
    let at = window.at(from.offset);
    if !at.is_multiple_of(8) {
        return Err(Status::RemoteAccess);
    }
    if around.is_fenced && !base::mutant!("shm_no_fence") {
        window.map.fence();
    }
    let word = window.map.load(at);
    window.map.health().map_err(|_| Status::RemoteAccess)?;
    check_alive(link)?;
    Ok(word)
}

fn read(
    link: &mut Link,
    around: &Surroundings<'_>,
    from: Remote,
    (region, offset): (RegionId, u64),
    len: u32,
) -> Result<(), Status> {
    let window = window(link, from, Want::Read, u64::from(len))?;
    window.map.fence();
    let local = &around.locals[region.0 as usize];
    copy(&window.map, window.at(from.offset), local, offset, u64::from(len));
    window.map.health().map_err(|_| Status::RemoteAccess)?;
    check_alive(link)
}

/// What was read of an owner that has ended does not count: in `volatile` mode its memory is lost.
fn check_alive(link: &Link) -> Result<(), Status> {
    let is_alive = link.instance.as_ref().is_some_and(|instance| instance.board.is_alive());
    if is_alive || base::mutant!("shm_dead_counts") { Ok(()) } else { Err(Status::PeerGone) }
}

/// Copies between two mappings, upwards, through a block of our own: a small one for the everyday
/// entry, so that clearing it does not cost more than the copy.
fn copy(from: &Mapping, from_at: u64, to: &Mapping, to_at: u64, len: u64) {
    if len <= SMALL_BLOCK as u64 {
        copy_by::<SMALL_BLOCK>((from, from_at), (to, to_at), len);
    } else {
        copy_by::<BLOCK>((from, from_at), (to, to_at), len);
    }
}

fn copy_by<const N: usize>(
    (from, from_at): (&Mapping, u64),
    (to, to_at): (&Mapping, u64),
    len: u64,
) {
    let mut block = [0; N];
    let mut done = 0;
    while done < len {
        let part = usize::try_from(len - done).unwrap_or(N).min(N);
        let block = &mut block[..part];
        from.copy_out(from_at + done, block);
        to.copy_in(to_at + done, block);
        done += part as u64;
    }
}

/// Completes what waited for a sync that is done, in order; breaks the queue pair at the first
/// failure.
pub(crate) fn settle(link: &mut Link, around: &Surroundings<'_>, completions: &mut Completions) {
    while let Some(&Pending { id, what, ticket }) = link.pending.front() {
        let result = match what {
            Waiting::Failed(status) => Err(status),
            Waiting::Word(_) | Waiting::Read { .. } => match sync_of(link, ticket) {
                None => return,
                Some(Err(status)) => Err(status),
                Some(Ok(())) => finish(link, around, what),
            },
        };
        link.pending.pop_front();
        match result {
            Ok(word) => link.complete(completions, id, Status::Ok, word),
            Err(status) => {
                link.complete(completions, id, status, 0);
                return flush(link, around, completions);
            }
        }
    }
}

/// How the sync `ticket` ended; `None` while it has not.
fn sync_of(link: &Link, ticket: u64) -> Option<Result<(), Status>> {
    let Some(syncer) = link.instance.as_ref().and_then(|instance| instance.syncer.as_ref()) else {
        return Some(Err(Status::PeerGone));
    };
    if syncer.is_done(ticket) {
        Some(Ok(()))
    } else {
        syncer.has_failed().then_some(Err(Status::RemoteSync))
    }
}

fn finish(link: &mut Link, around: &Surroundings<'_>, what: Waiting) -> Result<u64, Status> {
    match what {
        Waiting::Word(from) => read_word(link, around, from),
        Waiting::Read { from, into, len } => read(link, around, from, into, len).map(|()| 0),
        Waiting::Failed(status) => Err(status),
    }
}

/// Fails everything behind a failure and breaks the queue pair.
fn flush(link: &mut Link, around: &Surroundings<'_>, completions: &mut Completions) {
    while let Some(pending) = link.pending.pop_front() {
        link.complete(completions, pending.id, Status::Flushed, 0);
    }
    let exited = link.instance.as_ref().is_none_or(|instance| !instance.board.is_alive());
    link.drop_pair(around.own, completions, exited);
}

/// Whether the queue pair has room for a chain of this cost.
///
/// # Errors
/// [`PostError::Full`], or [`PostError::NotConnected`] when the peer's ring makes no sense.
pub(crate) fn check_room(link: &Link, cost: Cost) -> Result<(), PostError> {
    let pending = u32::try_from(link.pending.len()).unwrap_or(u32::MAX);
    if pending + link.queued + cost.signaled > READS_MAX {
        return Err(PostError::Full);
    }
    if cost.ring == 0 {
        return Ok(());
    }
    let lost = PostError::NotConnected(link.qp());
    let (Some(instance), Some(producer)) = (&link.instance, &link.producer) else {
        return Err(lost);
    };
    let room = producer.room(&instance.board.map).map_err(|_| lost)?;
    if cost.ring > layout::RING_LEN {
        return Err(PostError::Invalid("messages of one chain pass the ring"));
    }
    if cost.ring > room { Err(PostError::Full) } else { Ok(()) }
}
