//! The verbs model: what a leader may ask of another member's memory, and what it learns.
//!
//! The model is that of reliable connections (InfiniBand specification, volume 1, chapters 9 to
//! 11), reduced to what replication needs:
//!
//! - A **queue pair** joins two shards. Its handle [`Qp`] is never used again: after an error or a
//!   reconnect the same peer has another handle, and nothing of a dropped queue pair is delivered.
//! - Work requests of one queue pair are executed in the order they were posted. A READ is
//!   executed after every earlier WRITE of its queue pair is *placed* (visible to the target's
//!   threads and to every later READ), and, where the region's durability mode says so, *durable*.
//! - A completion tells that a request, and all before it on its queue pair, was executed; the
//!   word of a `ReadWord` was loaded at the target after all that. A WRITE's own completion tells
//!   nothing about placement.
//! - The first failure breaks the queue pair: the failed request and everything behind it complete
//!   with an error, a `Disconnected` event follows. WRITEs behind the failure may nevertheless
//!   have been placed, or may be placed later, until the target's `deregister` has finished.
//! - Nothing here blocks, and every queue has a limit.

use std::ops::Range;

use base::MemberId;

/// A queue pair's handle on this side. Never reused within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qp(pub u64);

/// What a peer needs to name registered memory. Never reused for another registration by the same
/// incarnation of a provider, so that an old key fails rather than reaching something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A local region that has been attached to the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// A place in a peer's registered memory: `offset` bytes behind the start of the registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The registration.
    pub key: Key,
    /// Bytes from its start.
    pub offset: u64,
}

/// A stretch of local memory that a WRITE gathers from.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Bytes of an attached region; they must not change until the chain has completed.
    Local {
        /// The region.
        region: RegionId,
        /// Bytes from its start.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// Bytes copied at posting.
    Inline(&'a [u8]),
}

/// One thing to do on a queue pair.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Place the concatenated pieces at `to`, by stores in ascending order.
    Write {
        /// Where the bytes come from.
        pieces: &'a [Piece<'a>],
        /// Where they go.
        to: Remote,
    },
    /// Load one aligned 8-byte word; its value stands in the completion. Always signaled.
    ReadWord {
        /// Where the word lies.
        from: Remote,
    },
    /// Copy `len` bytes from the peer into a local region. Always signaled.
    Read {
        /// Where the bytes lie.
        from: Remote,
        /// Where they go.
        into: (RegionId, u64),
        /// How many bytes.
        len: u32,
    },
    /// Deliver a message to the peer's event queue. Messages of a queue pair arrive in order, whole
    /// or not at all.
    Send {
        /// At most [`Caps::message_max`] bytes.
        bytes: &'a [u8],
    },
}

/// A request with the caller's name for it.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub request: Request<'a>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Executed.
    Ok,
    /// The key, range or right does not fit a registration of the peer.
    RemoteAccess,
    /// The peer could not make the range durable.
    RemoteSync,
    /// The peer did not answer in time, is gone, or dropped the queue pair.
    PeerGone,
    /// Not executed (or not known to be) because an earlier request of the queue pair failed.
    Flushed,
}

/// The end of a signaled request (`ReadWord`, `Read`), or of any request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The queue pair it was posted on.
    pub qp: Qp,
    /// The request's name.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// The word a `ReadWord` loaded; 0 otherwise.
    pub word: u64,
}

/// Something that happened without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// A queue pair with `peer` is ready. The peer's greeting stands in the caller's buffer.
    Connected {
        /// Its handle.
        qp: Qp,
        /// Who is at the other end.
        peer: MemberId,
    },
    /// The queue pair is dead; it delivers nothing after this.
    Disconnected {
        /// Its handle.
        qp: Qp,
        /// Who was at the other end.
        peer: MemberId,
        /// Whether the peer's process is known to have ended.
        exited: bool,
    },
    /// A message arrived; its bytes stand in the caller's buffer.
    Received {
        /// The queue pair it arrived on.
        qp: Qp,
    },
    /// No WRITE through `key` will be placed any more.
    Deregistered {
        /// The key that is gone.
        key: Key,
    },
    /// The peer rang: there is something to look at in memory that it wrote.
    Rang {
        /// The queue pair it rang on.
        qp: Qp,
    },
}

/// What a registration lets a peer do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any connected peer may READ.
    Read,
    /// The peer at the other end of this queue pair may READ and WRITE.
    Write(Qp),
}

/// The limits of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Signaled requests in flight on one queue pair.
    pub reads_max: u32,
    /// Work requests in one chain.
    pub chain_max: u32,
    /// Pieces in one WRITE.
    pub pieces_max: u32,
    /// Bytes inline in one WRITE.
    pub inline_max: u32,
    /// Bytes of one message.
    pub message_max: u32,
}

/// Why a chain was not posted: nothing of it was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair is dead or never was.
    #[error("queue pair {0:?} is not connected")]
    NotConnected(Qp),
    /// As many signaled requests (or messages) are in flight as the queue pair allows: poll first.
    #[error("queue pair is full: poll for completions first")]
    Full,
    /// The request breaks a limit of [`Caps`] or names local memory that is not there.
    #[error("request is not well formed: {0}")]
    Invalid(&'static str),
}

/// Why memory was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No such region, or the range does not lie inside it.
    #[error("no region {region:?}, or {range:?} does not lie inside it")]
    OutOfRange {
        /// The region asked for.
        region: RegionId,
        /// The range asked for.
        range: Range<u64>,
    },
    /// The provider cannot register more.
    #[error("the provider's registrations are used up")]
    Exhausted,
    /// The provider said no.
    #[error("cannot register memory: {0}")]
    Refused(String),
}

/// A provider of queue pairs for one shard. One thread owns it.
///
/// All methods return at once.
pub trait Fabric {
    /// The provider's limits.
    fn caps(&self) -> Caps;

    /// Asks for a queue pair with `peer`. `greeting` (at most [`Caps::message_max`] bytes) reaches
    /// the other side with its `Connected` event. Asking while an attempt or a queue pair exists
    /// does nothing; the caller asks again with its own back-off after `Disconnected`.
    fn connect(&mut self, peer: MemberId);

    /// What this side says of itself when a queue pair is made, from now on.
    fn set_greeting(&mut self, greeting: &[u8]);

    /// Drops a queue pair: its requests in flight are not delivered any more, the peer sees
    /// `Disconnected`.
    fn disconnect(&mut self, qp: Qp);

    /// Registers `range` of a local region.
    ///
    /// # Errors
    /// [`RegisterError`] says why not; nothing changed then.
    fn register(
        &mut self,
        region: RegionId,
        range: Range<u64>,
        access: Access,
    ) -> Result<Key, RegisterError>;

    /// Withdraws a registration. `Deregistered` follows once no WRITE through it can be placed any
    /// more, which may need the writer's answer or its end.
    fn deregister(&mut self, key: Key);

    /// Whether no WRITE through a registration of an *earlier* life of this member can be placed any
    /// more. A provider whose registrations end with the process that made them, before its end is
    /// seen, keeps this default.
    fn is_quiesced(&mut self) -> bool {
        true
    }

    /// Posts a chain with one doorbell. Requests execute in order; see the module.
    ///
    /// # Errors
    /// [`PostError`]; nothing of the chain was executed then.
    fn post(&mut self, qp: Qp, chain: &[WorkRequest<'_>]) -> Result<(), PostError>;

    /// Wakes the peer's shard if it sleeps, so that it looks at its memory. Best effort.
    fn ring(&mut self, qp: Qp);

    /// Takes completions that are there, at most `into.len()`; returns how many.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Takes the next event; a greeting or message is put into `bytes`, which is cleared first.
    fn next_event(&mut self, bytes: &mut Vec<u8>) -> Option<FabricEvent>;
}
