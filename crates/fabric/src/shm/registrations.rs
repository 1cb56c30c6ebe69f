//! What this instance has registered, and what it is waiting to be rid of.
//!
//! ```text
//!            register             deregister            released
//!   free --------------> in force ----------> revoking ---------> free, Deregistered told
//!            key last             key first
//! ```
//! A place of the table is reused only after it was released: a key's place never changes its
//! meaning under a writer.

use pmem::Mapping;

use super::layout::{
    GENERATION_AT, PLACE_BITS, REGISTRATIONS_MAX, Registration, place_of_key, registration_at,
};
use crate::Key;

/// Who may write a registration: the queue pair that it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Its slot.
    pub(crate) slot: usize,
    /// The writer's instance.
    pub(crate) instance: u64,
    /// The writer's number of the queue pair, and ours.
    pub(crate) numbers: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    writer: Option<Writer>,
}

/// A key whose writer has been told to let go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revoking {
    pub(crate) key: Key,
    /// `None` for memory that was only read.
    pub(crate) writer: Option<Writer>,
    /// The number under which the writer was told; `u64::MAX` when its queue pair was gone.
    pub(crate) revocation: u64,
}

/// The table, as its owner keeps it.
#[derive(Debug)]
pub(crate) struct Registrations {
    /// The upper 20 bits of every key: keys of another instance do not fit.
    salt: u64,
    /// Keys given out.
    count: u32,
    entries: Vec<Option<Entry>>,
    /// Invariant: at most one for each entry, for which there is room from the start.
    revoking: Vec<Revoking>,
}

impl Registrations {
    /// None yet.
    pub(crate) fn new(instance: u64) -> Self {
        Self {
            salt: instance & !((1 << (32 + PLACE_BITS)) - 1),
            count: 0,
            entries: vec![None; REGISTRATIONS_MAX],
            revoking: Vec::with_capacity(REGISTRATIONS_MAX),
        }
    }

    /// Publishes a registration; `None` when the table or the keys are used up.
    pub(crate) fn add(
        &mut self,
        board: &Mapping,
        registration: &Registration,
        writer: Option<Writer>,
    ) -> Option<Key> {
        let place = self.entries.iter().position(Option::is_none)?;
        self.count = self.count.checked_add(1)?;
        let key = self.salt | (u64::from(self.count) << PLACE_BITS) | place as u64;
        let at = registration_at(place);
        for (word, at) in registration.encode().into_iter().zip((at + 8..).step_by(8)) {
            board.store(at, word);
        }
        board.store(at, key);
        board.store(GENERATION_AT, u64::from(self.count));
        self.entries[place] = Some(Entry { key, writer });
        Some(Key(key))
    }

    /// Takes a registration out of force; its writer, if it was in force. The caller tells the
    /// writer and then [`Self::wait_for`].
    pub(crate) fn revoke(&mut self, board: &Mapping, key: Key) -> Option<Option<Writer>> {
        let place = place_of_key(key.0);
        let entry = self.entries[place].filter(|entry| entry.key == key.0)?;
        if board.load(registration_at(place)) != key.0 {
            return None;
        }
        board.store(registration_at(place), 0);
        Some(entry.writer)
    }

    /// Notes that the end of `revoking` is awaited.
    pub(crate) fn wait_for(&mut self, revoking: Revoking) {
        assert!(self.revoking.len() < REGISTRATIONS_MAX, "one for each entry");
        self.revoking.push(revoking);
    }

    /// What is awaited for `key`.
    pub(crate) fn awaited(&self, key: Key) -> Option<&Revoking> {
        self.revoking.iter().find(|revoking| revoking.key == key)
    }

    /// The next key that `is_released`; its place is free again.
    pub(crate) fn next_released(&mut self, is_released: impl Fn(&Revoking) -> bool) -> Option<Key> {
        let index = self.revoking.iter().position(is_released)?;
        let revoking = self.revoking.swap_remove(index);
        self.entries[place_of_key(revoking.key.0)] = None;
        Some(revoking.key)
    }

    /// Whether something is bound to, or awaited from, the peer in `slot`.
    pub(crate) fn concern(&self, slot: usize) -> bool {
        self.entries.iter().flatten().any(|e| e.writer.is_some_and(|w| w.slot == slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::layout;

    fn table() -> (Mapping, Registrations) {
        let board = Mapping::anonymous(layout::BOARD_LEN).unwrap();
        (board, Registrations::new(0xabcd_ef01_2345_6789))
    }

    const RANGE: Registration = Registration { region: 0, writer: 0, offset: 0, len: 4096 };

    #[test]
    fn a_key_is_never_given_twice_though_its_place_is() {
        let (board, mut table) = table();
        let first = table.add(&board, &RANGE, None).unwrap();
        assert_eq!(table.revoke(&board, first), Some(None));
        assert_eq!(table.revoke(&board, first), None, "it is not in force any more");
        table.wait_for(Revoking { key: first, writer: None, revocation: 0 });
        assert_eq!(table.next_released(|_| false), None);
        assert_eq!(table.next_released(|_| true), Some(first));
        let second = table.add(&board, &RANGE, None).unwrap();
        assert_ne!(first, second);
        assert_eq!(place_of_key(first.0), place_of_key(second.0), "the same place");
    }

    #[test]
    fn a_place_is_not_reused_before_it_is_released() {
        let (board, mut table) = table();
        let keys: Vec<Key> = std::iter::from_fn(|| table.add(&board, &RANGE, None)).collect();
        assert_eq!(keys.len(), REGISTRATIONS_MAX, "then it is full");
        table.revoke(&board, keys[5]).unwrap();
        table.wait_for(Revoking { key: keys[5], writer: None, revocation: 0 });
        assert_eq!(table.add(&board, &RANGE, None), None);
        table.next_released(|_| true).unwrap();
        assert!(table.add(&board, &RANGE, None).is_some());
    }
}
