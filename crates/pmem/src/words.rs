//! Copies between private buffers and memory that others may write meanwhile.
//!
//! # Invariants
//! - Every access is volatile: the compiler neither drops, repeats, merges nor reorders them, and
//!   no reference into the shared memory ever exists.
//! - A word (8 bytes at a multiple of 8) that lies wholly in a copy is moved by one access, so it
//!   is never torn. Only the up to 7 bytes at each edge are moved one by one.
//! - Accesses go in ascending order. x86-64 keeps the order of ordinary stores among themselves and
//!   of ordinary loads among themselves, so the order in the program is the order others see.

/// Bytes of one word.
const WORD: usize = 8;

/// Copies `from` to `to`, in ascending order.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes of memory that no reference covers.
pub(crate) unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let (head, rest) = from.split_at(to.align_offset(WORD).min(from.len()));
    let mut place = to;
    for byte in head {
        // SAFETY: `place` lies in the `from.len()` bytes that the caller vouches for.
        unsafe { place.write_volatile(*byte) };
        place = place.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks::<WORD>();
    for word in words {
        let value = u64::from_le_bytes(*word).to_le();
        // SAFETY: a whole word of `from` is left, so 8 bytes at `place` lie in the caller's range;
        // `place` is aligned, since `head` ended at the first multiple of 8.
        unsafe { place.cast::<u64>().write_volatile(value) };
        place = place.wrapping_add(WORD);
    }
    for byte in tail {
        // SAFETY: `place` lies in the `from.len()` bytes that the caller vouches for.
        unsafe { place.write_volatile(*byte) };
        place = place.wrapping_add(1);
    }
}

/// Copies `from` into `into`, in ascending order.
///
/// # Safety
/// `from` must be valid for reads of `into.len()` bytes of memory that no reference covers.
pub(crate) unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    let edge = from.align_offset(WORD).min(into.len());
    let (head, rest) = into.split_at_mut(edge);
    let mut place = from;
    for byte in head {
        // SAFETY: `place` lies in the `into.len()` bytes that the caller vouches for.
        *byte = unsafe { place.read_volatile() };
        place = place.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for word in words {
        // SAFETY: a whole word of `into` is left, so 8 bytes at `place` lie in the caller's range;
        // `place` is aligned, since `head` ended at the first multiple of 8.
        let value = unsafe { place.cast::<u64>().read_volatile() };
        *word = u64::from_le(value).to_le_bytes();
        place = place.wrapping_add(WORD);
    }
    for byte in tail {
        // SAFETY: `place` lies in the `into.len()` bytes that the caller vouches for.
        *byte = unsafe { place.read_volatile() };
        place = place.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every alignment of both ends, with and without a whole word between them: the bytes arrive
    /// and the bytes beside them stay.
    #[test]
    fn copies_at_every_alignment_and_touches_nothing_else() {
        let source: Vec<u8> = (1..=40).collect();
        for (start, len) in (0..16).flat_map(|start| (0..=24).map(move |len| (start, len))) {
            let mut memory = [0u8; 48];
            let at = memory.as_mut_ptr().wrapping_add(start);
            // SAFETY: `start + len <= 40` bytes of `memory`, which nothing borrows meanwhile.
            unsafe { copy_in(at, &source[..len]) };
            let mut expected = [0u8; 48];
            expected[start..start + len].copy_from_slice(&source[..len]);
            assert_eq!(memory, expected, "{len} bytes in at {start}");

            let mut back = vec![0u8; len];
            let at = memory.as_ptr().wrapping_add(start);
            // SAFETY: `start + len <= 40` bytes of `memory`, which nothing writes meanwhile.
            unsafe { copy_out(at, &mut back) };
            assert_eq!(back, source[..len], "{len} bytes out at {start}");
        }
    }
}
