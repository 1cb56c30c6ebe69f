//! How the owner of a provider sleeps without losing a wake-up.

use std::time::Duration;

/// A provider whose owner can sleep until a peer wants its attention.
///
/// The order that loses nothing: [`arm`](Self::arm), then look once more at everything (poll,
/// events, memory), and only if there was nothing [`wait`](Self::wait). A ring between `arm` and
/// `wait` makes `wait` return at once.
pub trait Sleep {
    /// From now on a ring ends the next `wait`.
    fn arm(&mut self);

    /// Sleeps until a peer rings, sends, or changes a queue pair, or until `timeout` has passed;
    /// may return early. Returns at once when not armed. With a
    /// timeout of zero it only takes the announcement back: nobody needs to ring any more. A peer that is killed does not ring: its
    /// end is seen after the timeout.
    fn wait(&mut self, timeout: Duration);
}
