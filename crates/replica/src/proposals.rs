//! Writes that this member was asked for, from their arrival until they are applied.
//!
//! ```text
//!        in the log, not applied        waiting for room in the log
//!      +-------+-------+-------+-------+-------+-------+
//!      |  17   |  18   |  20   |  21   |       |       |
//!      +-------+-------+-------+-------+-------+-------+
//!        `take`                 `first_waiting`             `push`
//! ```
//! Entries that nobody asked for (a no-op, a configuration) have no place here. The command stays
//! until it is applied, so that whoever wrote an entry need not read it again.

use std::collections::VecDeque;

use base::Index;
use consensus::session::{Act, Envelope, LogTime};

use crate::door::Token;

/// One of them.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// Who asked; nobody for a tick.
    pub(crate) token: Option<Token>,
    pub(crate) act: Act,
    pub(crate) command: Vec<u8>,
    /// Its index and its time once it is in the log; 0 before.
    index: Index,
    time: LogTime,
    /// Every reader of the entry finds `act` in it.
    is_as_read: bool,
}

impl Proposal {
    /// What a reader of the entry would find in front of the command; `None` when it is to be read
    /// like anybody else's.
    pub(crate) fn envelope(&self) -> Option<Envelope> {
        let is_whole = self.is_as_read && self.token.is_some();
        is_whole.then_some(Envelope { time: self.time, act: self.act })
    }
}

/// All of them, in the order in which they came.
///
/// Invariants: the first `in_log` have ascending indices; `bytes` is the length of all commands.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    all: VecDeque<Proposal>,
    in_log: usize,
    bytes: usize,
}

impl Proposals {
    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.all.len() - self.in_log
    }

    /// Bytes of all commands, in the log or not.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more that waits.
    pub(crate) fn push(&mut self, token: Option<Token>, act: Act, command: Vec<u8>) {
        self.bytes += command.len();
        let (index, time) = (Index(0), LogTime(0));
        self.all.push_back(Proposal { token, act, command, index, time, is_as_read: false });
    }

    /// The one that is next to go into the log.
    pub(crate) fn first_waiting(&self) -> Option<&Proposal> {
        self.all.get(self.in_log)
    }

    /// It went into the log at `index`, behind `bytes` of an envelope.
    pub(crate) fn note_in_log(&mut self, index: Index, envelope: &Envelope, bytes: &[u8]) {
        let Some(first) = self.all.get_mut(self.in_log) else { return };
        (first.index, first.time) = (index, envelope.time);
        // What the log says is what counts, should an act have two ways to be written.
        first.is_as_read = first.act == Act::Plain
            || Envelope::decode(bytes).is_ok_and(|(read, _)| read == *envelope);
        self.in_log += 1;
    }

    /// Takes the one at `index`, which is being applied, if there is one; those below it are gone.
    pub(crate) fn take(&mut self, index: Index) -> Option<Proposal> {
        while self.in_log > 0 && self.all.front().is_some_and(|first| first.index <= index) {
            let first = self.take_in_log()?;
            if first.index == index {
                return Some(first);
            }
        }
        None
    }

    /// Takes the oldest of those in the log.
    pub(crate) fn take_in_log(&mut self) -> Option<Proposal> {
        if self.in_log == 0 {
            return None;
        }
        let first = self.all.pop_front()?;
        self.in_log -= 1;
        self.bytes -= first.command.len();
        Some(first)
    }

    /// Takes all that wait.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<Proposal> {
        let waiting = self.all.split_off(self.in_log);
        self.bytes -= waiting.iter().map(|one| one.command.len()).sum::<usize>();
        waiting
    }
}
