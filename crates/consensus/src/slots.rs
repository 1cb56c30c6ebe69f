//! Which slots of the pool may be given to a new segment.

use base::{SlotId, check};

/// Segments that one superblock can name.
pub(crate) const RECORDS_MAX: usize = logfmt::SEGMENTS_MAX as usize;

/// A slot's two conditions for reuse, which are reached in either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    /// A segment of the log lies in it.
    in_log: bool,
    /// Nobody can write it.
    is_released: bool,
    /// Its release has been asked for.
    is_revoking: bool,
}

impl Slot {
    const fn is_free(&self) -> bool {
        !self.in_log && self.is_released
    }
}

/// The pool.
///
/// Invariant: a slot is given out only when it is in no log and nobody can write it. At the start
/// nothing is released: whoever could write this region before the member restarted may still be
/// at it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// How many may be given out; asked at every commit.
    free: usize,
}

impl Slots {
    /// A pool in which `used` hold segments; the rest waits for its release.
    pub(crate) fn new(count: u32, used: impl Iterator<Item = SlotId>) -> Self {
        let unknown = Slot { in_log: false, is_released: false, is_revoking: true };
        let mut slots = vec![unknown; usize::try_from(count).expect("u32 fits usize")];
        for slot in used {
            slots[place(slot)].in_log = true;
        }
        Self { slots, free: 0 }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).map(SlotId)
    }

    pub(crate) const fn free(&self) -> usize {
        self.free
    }

    pub(crate) const fn count(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot for a segment that `is_foreign`ly written by a peer, or by this member.
    pub(crate) fn take(&mut self, is_foreign: bool) -> Option<SlotId> {
        let at = self.slots.iter().position(Slot::is_free)?;
        self.slots[at] = Slot { in_log: true, is_released: !is_foreign, is_revoking: false };
        self.free -= 1;
        u32::try_from(at).ok().map(SlotId)
    }

    /// The segment in `slot` has left the log.
    pub(crate) fn leave(&mut self, slot: SlotId) {
        let slot = &mut self.slots[place(slot)];
        check!(slot.in_log, "a segment leaves the log once");
        let was_free = slot.is_free();
        slot.in_log = false;
        self.free += usize::from(slot.is_free() && !was_free);
    }

    /// Whether the writer's right to `slot` must now be withdrawn: true once.
    pub(crate) fn revoke(&mut self, slot: SlotId) -> bool {
        let slot = &mut self.slots[place(slot)];
        let is_due = !slot.is_released && !slot.is_revoking;
        slot.is_revoking |= is_due;
        is_due
    }

    /// Nobody can write `slot` any more.
    pub(crate) fn released(&mut self, slot: SlotId) {
        let slot = &mut self.slots[place(slot)];
        let was_free = slot.is_free();
        slot.is_released = true;
        self.free += usize::from(slot.is_free() && !was_free);
    }
}

fn place(slot: SlotId) -> usize {
    usize::try_from(slot.0).expect("u32 fits usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_only_after_trim_and_release() {
        let mut slots = Slots::new(2, std::iter::empty());
        assert_eq!(slots.take(true), None, "writers of an earlier life may still be at it");
        slots.released(SlotId(1));
        assert_eq!(slots.take(true), Some(SlotId(1)));
        slots.leave(SlotId(1));
        assert_eq!(slots.take(true), None, "trimmed, but its writer can still reach it");
        assert!(slots.revoke(SlotId(1)));
        assert!(!slots.revoke(SlotId(1)), "asked once");
        slots.released(SlotId(1));
        assert_eq!(slots.take(false), Some(SlotId(1)));
        assert!(!slots.revoke(SlotId(1)), "nobody else was given it");
    }
}
