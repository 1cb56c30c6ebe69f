//! The completion queue.

use std::collections::VecDeque;

use super::layout::PEERS_MAX;
use super::link::{CHAIN_MAX, READS_MAX};
use crate::{Completion, Qp};

/// What one queue pair can have in the queue: its signaled requests, and one chain that failed.
const COMPLETIONS_MAX: usize = PEERS_MAX * (READS_MAX + CHAIN_MAX) as usize;

/// Completions of all queue pairs, oldest first.
#[derive(Debug)]
pub(crate) struct Completions {
    /// Invariant: never longer than [`COMPLETIONS_MAX`], for which there is room from the start.
    queue: VecDeque<Completion>,
}

impl Completions {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::with_capacity(COMPLETIONS_MAX) }
    }

    pub(crate) fn push(&mut self, completion: Completion) {
        assert!(self.queue.len() < COMPLETIONS_MAX, "queue pairs are bounded, so is their sum");
        self.queue.push_back(completion);
    }

    pub(crate) fn pop(&mut self) -> Option<Completion> {
        self.queue.pop_front()
    }

    /// Removes what `qp` has in the queue.
    pub(crate) fn forget(&mut self, qp: Qp) {
        self.queue.retain(|completion| completion.qp != qp);
    }
}
