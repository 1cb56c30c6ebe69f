//! Checkpoints: the state at one applied index goes to a file while applying goes on.

use base::{Configuration, Index, Instant};
use consensus::Event;
use logfmt::{Checkpoint, Position, StateFile};
use pmem::Ticket;

use crate::{
    door::Notice,
    env::{Env, StateFiles},
    group::Group,
    machine::{ChunkEnd, StateMachine, View as _},
    shared::Shared,
    state_file::{FileDigest, head},
    view::RegionBytes,
};

/// Bytes of one chunk of the machine's state.
const CHUNK_BYTES: u32 = 256 << 10;

/// A checkpoint being written.
pub(crate) struct Writing<E: Env> {
    id: u64,
    at: Position,
    configuration: (Index, Configuration),
    view: <E::Machine as StateMachine>::View,
    next_chunk: u32,
    digest: FileDigest,
    length: u64,
    /// Set once all is appended.
    ticket: Option<Ticket>,
}

impl<E: Env> Writing<E> {
    pub(crate) const fn file(&self) -> u64 {
        self.id
    }
}

/// Old state files that a member may still be fetching.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Number and last request.
    pub(crate) files: Vec<(u64, Instant)>,
}

impl<E: Env> Group<E> {
    pub(crate) fn next_file_id(&self) -> u64 {
        let named = self.core.superblock().checkpoint.state.id;
        self.files.list().into_iter().max().unwrap_or(0).max(named) + 1
    }

    pub(crate) fn begin_checkpoint(&mut self) {
        let index = self.applied();
        let at = self.log.position_at(index, &RegionBytes(&mut self.region));
        let configuration = self.log.configuration_at(index);
        let (Some(at), Some(configuration)) = (at, configuration) else {
            return self.later.push_back(Event::CheckpointFailed);
        };
        let configuration = (configuration.0, configuration.1.clone());
        let id = self.next_file_id();
        let mut sessions = Vec::new();
        self.sessions.encode(&mut sessions);
        let first = head(index, &sessions);
        let mut digest = FileDigest::default();
        digest.update(&first);
        let is_begun = self.files.create(id).and_then(|()| self.files.append(id, &first));
        if is_begun.is_err() {
            self.files.remove(id);
            return self.later.push_back(Event::CheckpointFailed);
        }
        self.writing = Some(Writing {
            id,
            at,
            configuration,
            view: self.machine.checkpoint(CHUNK_BYTES),
            next_chunk: 0,
            digest,
            length: first.len() as u64,
            ticket: None,
        });
    }

    /// Writes one chunk, or sees whether the file is durable.
    pub(crate) fn write_checkpoint(&mut self, shared: &mut Shared<E>, now: Instant) -> bool {
        let Some(mut writing) = self.writing.take() else { return false };
        let healthy = self.files.health(writing.id);
        if let (Some(ticket), Ok(())) = (writing.ticket, &healthy) {
            match self.files.synced() {
                Ok(synced) if synced >= ticket => self.finish_checkpoint(writing, shared, now),
                Ok(_) => {
                    self.writing = Some(writing);
                    return false;
                }
                Err(error) => self.fail(error.to_string(), shared, now),
            }
            return true;
        }
        if healthy.is_ok() && !self.files.has_room() {
            self.writing = Some(writing);
            return false;
        }
        if healthy.and_then(|()| self.write_chunk(&mut writing)).is_ok() {
            self.writing = Some(writing);
        } else {
            // No room on the disk: the log still has everything; a later try may find room.
            self.files.remove(writing.id);
            let why = "cannot write a checkpoint: is the disk of the state files full?";
            shared.notices.push((self.id, Notice::Damaged(why.to_owned())));
            self.feed(Event::CheckpointFailed, shared, now);
        }
        true
    }

    fn write_chunk(&mut self, writing: &mut Writing<E>) -> Result<(), crate::env::FileError> {
        let mut bytes = vec![0; 4];
        let end = writing.view.chunk(writing.next_chunk, &mut bytes);
        let end =
            end.map_err(|error| crate::env::FileError { id: writing.id, what: error.to_string() })?;
        let len = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        self.files.append(writing.id, &bytes)?;
        writing.digest.update(&bytes);
        writing.length += bytes.len() as u64;
        writing.next_chunk += 1;
        if end == ChunkEnd::Last {
            writing.ticket = Some(self.files.sync(writing.id)?);
        }
        Ok(())
    }

    fn finish_checkpoint(&mut self, writing: Writing<E>, shared: &mut Shared<E>, now: Instant) {
        let state =
            StateFile { id: writing.id, length: writing.length, digest: writing.digest.digest() };
        let checkpoint = Checkpoint {
            at: writing.at,
            configuration_index: writing.configuration.0,
            configuration: writing.configuration.1,
            state,
        };
        self.feed(Event::CheckpointTaken(Box::new(checkpoint)), shared, now);
    }

    /// Starts from a checkpoint that the superblock now names.
    pub(crate) fn install(
        &mut self,
        checkpoint: &Checkpoint,
        shared: &mut Shared<E>,
        now: Instant,
    ) {
        // What was open is of a grant that ends here.
        self.log.seal();
        self.log.install(checkpoint);
        self.named_file = checkpoint.state.id;
        self.lower_flushed(checkpoint.at.index);
        self.forget_in_log(shared);
        if let Some(writing) = self.writing.take() {
            self.files.remove(writing.id);
        }
        let received = self.received.take();
        let Some((_, (machine, sessions))) =
            received.filter(|&(file, _)| file == checkpoint.state.id)
        else {
            let why = format!("state file {} was named but not received", checkpoint.state.id);
            return self.fail(why, shared, now);
        };
        self.machine = machine;
        self.sessions = sessions;
        self.commit = self.commit.max(checkpoint.at.index);
        shared.notices.push((self.id, Notice::Installed(checkpoint.at.index)));
        self.sweep(now);
    }

    /// Removes state files that the superblock does not name and nobody fetches.
    pub(crate) fn sweep_files(&mut self, now: Instant, keep_for: base::Duration) {
        let named = self.named_file;
        let next_named = self.core.superblock().checkpoint.state.id;
        self.serving.files.retain(|&(_, at)| at + keep_for > now);
        let writing = self.writing.as_ref().map(|writing| writing.id);
        let receiving = self.receiving.as_ref().map(crate::receive::Receiving::file);
        for id in self.files.list() {
            let is_served = self.serving.files.iter().any(|&(served, _)| served == id)
                || self.core.offered_files().any(|offered| offered == id);
            // The durable superblock names one, the next one perhaps another; a file above them may
            // be about to be named.
            let is_needed =
                id >= named || id == next_named || Some(id) == writing || Some(id) == receiving;
            if !is_needed && !is_served {
                self.files.remove(id);
            }
        }
    }
}
