//! What the core may know about the member's own log.

use base::{Configuration, Index, SlotId, Term};
use logfmt::{Boundary, Extent, Position, Shape};

/// A read-only view of the member's log: everything the protocol decides by, no payload.
///
/// The log is the checkpoint followed by the entries of the sealed segments and of the open ones,
/// as far as they have been walked. What effects of this step will do to it shows in the next.
pub trait LogView {
    /// The last entry (the checkpoint when there is none).
    fn tail(&self) -> Position;

    /// The oldest entry that can still be read, `tail().index + 1` when there is none.
    fn first(&self) -> Index;

    /// The term at `index`, for the checkpoint's index and every entry behind it that is there.
    fn term_at(&self, index: Index) -> Option<Term>;

    /// What placing the entry at `index` needs to know; `None` when it cannot be read.
    fn shape_at(&self, index: Index) -> Option<Shape>;

    /// The first index of each term, ascending, complete from the checkpoint, which is the first.
    fn boundaries(&self) -> &[Boundary];

    /// The last configuration in the log, committed or not, and its index.
    fn configuration(&self) -> (Index, &Configuration);

    /// How many open segments nobody has begun to fill.
    fn unopened(&self) -> usize;

    /// The last index of an open segment that its writer has left for the next one.
    fn completed(&self, slot: SlotId) -> Option<Index>;

    /// Where the entries from `from` to the tail lie, for a candidate that will read them.
    fn extents(&self, from: Index) -> Vec<Extent>;

    /// The highest index that may be trimmed as far as the state machine and readers go.
    fn unreferenced(&self) -> Index;
}
