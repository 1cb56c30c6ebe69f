//! How this crate looks at a region: by copies, because a peer may be writing it meanwhile.
//!
//! Invariant of every reader in this crate: bytes are copied out once, and what was copied is
//! verified and then used. Nothing is looked at a second time in the original.

/// Bytes of a whole region, to be copied out. Offsets are bytes from the region's start.
pub trait Bytes {
    /// Fills `into` with the bytes from `at` on. Bytes that somebody stores meanwhile may come out
    /// old or new, each by itself.
    ///
    /// # Panics
    /// When the range does not lie inside the region: callers check ranges that come from outside.
    fn copy_out(&self, at: u64, into: &mut [u8]);
}

/// Bytes of a whole region that this member may write.
pub trait BytesMut: Bytes {
    /// Stores `from` at `at`, in ascending order.
    ///
    /// # Panics
    /// When the range does not lie inside the region.
    fn copy_in(&mut self, at: u64, from: &[u8]);
}

impl Bytes for Vec<u8> {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        let at = usize::try_from(at).expect("a vector is not longer than memory");
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}

impl BytesMut for Vec<u8> {
    fn copy_in(&mut self, at: u64, from: &[u8]) {
        let at = usize::try_from(at).expect("a vector is not longer than memory");
        self[at..at + from.len()].copy_from_slice(from);
    }
}
