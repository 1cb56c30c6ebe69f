//! Cache lines: writing them back, and storing past the cache.
//!
//! | need | instruction | ordered by |
//! |---|---|---|
//! | write a line back, keep it cached | `clwb` | `sfence`, `mfence` |
//! | write a line back, evict it | `clflushopt` | `sfence`, `mfence` |
//! | the same on the oldest processors, one line at a time | `clflush` | itself |
//! | store a large payload without reading it into the cache | `movnti` | `sfence` |
//!
//! The choice between the first three is made once, at run time, in this order. The standard
//! library has neither intrinsics nor detection for the first two, hence `asm!` and CPUID.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("pmem relies on x86-64: its store order, its cache line instructions");

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_sfence, _mm_stream_si64};
use std::sync::OnceLock;

use crate::words;

/// From how many bytes on an unordered copy goes past the cache. Measured on one thread of a Xeon
/// with CLWB, copies laid one behind the other through 512 MiB, through the cache and past it:
/// 7.3 and 9.6 GB/s at 4 KiB, 7.4 and 13.4 GB/s at 16 KiB, 5.7 and 10.3 GB/s at 1 MiB. What is
/// smaller is mostly read again at once, and would not pay for the `sfence`.
pub(crate) const NON_TEMPORAL_LEN_MIN: usize = 4096;

/// Bytes of one cache line.
const LINE: usize = 64;
/// Bytes of one word.
const WORD: usize = 8;

const _: () = assert!(LINE as u64 == crate::LINE);
const _: () = assert!(NON_TEMPORAL_LEN_MIN >= 2 * LINE);

/// The instruction that writes a cache line back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteBack {
    /// Writes back and keeps the line.
    Clwb,
    /// Writes back and evicts the line.
    Clflushopt,
    /// Writes back and evicts the line, one after the other.
    Clflush,
}

impl WriteBack {
    /// The best that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        static DETECTED: OnceLock<WriteBack> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::from_features(extended_features()))
    }

    /// The best among what CPUID leaf 7 says in EBX. Bits: Intel SDM volume 2, CPUID.
    const fn from_features(ebx: u32) -> Self {
        if ebx & (1 << 24) != 0 {
            Self::Clwb
        } else if ebx & (1 << 23) != 0 {
            Self::Clflushopt
        } else {
            Self::Clflush
        }
    }

    /// Begins to write back the line that holds `place`; done once a fence behind it is.
    ///
    /// # Safety
    /// `place` must lie in mapped memory, and this processor must have the instruction.
    pub(crate) unsafe fn line(self, place: *const u8) {
        match self {
            // SAFETY: the caller vouches for the address and the instruction; it changes no byte,
            // register or flag.
            Self::Clwb => unsafe {
                asm!("clwb [{}]", in(reg) place, options(nostack, preserves_flags));
            },
            // SAFETY: as above.
            Self::Clflushopt => unsafe {
                asm!("clflushopt [{}]", in(reg) place, options(nostack, preserves_flags));
            },
            // SAFETY: the caller vouches for the address; every x86-64 has CLFLUSH.
            Self::Clflush => unsafe { _mm_clflush(place) },
        }
    }
}

/// EBX of CPUID leaf 7, or 0 where there is no such leaf.
fn extended_features() -> u32 {
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ebx }
}

/// Copies `from` to `to` in no particular order, past the cache where whole lines are written. All
/// of it is visible before any later store of this thread.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes of memory that no reference covers.
pub(crate) unsafe fn copy_in_unordered(to: *mut u8, from: &[u8]) {
    let (head, rest) = from.split_at(to.align_offset(LINE).min(from.len()));
    let (lines, tail) = rest.as_chunks::<LINE>();
    // SAFETY: `head` is a prefix of `from`, so its bytes at `to` lie in the caller's range.
    unsafe { words::copy_in(to, head) };
    let mut place = to.wrapping_add(head.len());
    for line in lines {
        // SAFETY: a whole line of `from` is left, so 64 bytes at `place` lie in the caller's range;
        // `place` is a multiple of 64, since `head` ended at the first one.
        unsafe { stream_line(place, line) };
        place = place.wrapping_add(LINE);
    }
    // SAFETY: `tail` is what is left of `from`, so its bytes at `place` lie in the caller's range.
    unsafe { words::copy_in(place, tail) };
    // Streaming stores wait in write-combining buffers and overtake each other and later stores.
    // SAFETY: SSE is part of every x86-64.
    unsafe { _mm_sfence() };
}

/// Stores one whole line without reading it first.
///
/// # Safety
/// `to` must be a multiple of 64 and valid for writes of 64 bytes; an `sfence` must come before any
/// other access of this thread to them.
unsafe fn stream_line(to: *mut u8, from: &[u8; LINE]) {
    let (words, _) = from.as_chunks::<WORD>();
    let mut place = to.cast::<i64>();
    for word in words {
        let value = i64::from_le_bytes(*word).to_le();
        // SAFETY: `place` is one of the 8 words of the line, aligned to 8; SSE2 is part of every
        // x86-64; the caller sees to the fence.
        unsafe { _mm_stream_si64(place, value) };
        place = place.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_instruction_is_taken() {
        assert_eq!(WriteBack::from_features(1 << 24 | 1 << 23), WriteBack::Clwb);
        assert_eq!(WriteBack::from_features(1 << 23), WriteBack::Clflushopt);
        assert_eq!(WriteBack::from_features(!(1 << 24 | 1 << 23)), WriteBack::Clflush);
    }

    /// The instruction that this processor has, and CLFLUSH that each has, leave the bytes alone.
    #[test]
    fn write_back_changes_no_byte() {
        let memory = [7u8; 2 * LINE];
        // SAFETY: an address inside `memory`; the instruction was detected.
        unsafe { WriteBack::detect().line(memory.as_ptr()) };
        // SAFETY: an address inside `memory`; every x86-64 has the instruction.
        unsafe { WriteBack::Clflush.line(memory.as_ptr().wrapping_add(LINE)) };
        assert_eq!(memory, [7u8; 2 * LINE]);
    }

    #[test]
    fn unordered_copies_at_every_alignment_touch_nothing_else() {
        let source: Vec<u8> = (0..=255).cycle().take(5000).map(|byte| byte | 1).collect();
        let lens = [0, 1, 63, 64, 65, 200, 4096, 4999];
        for (start, len) in (0..=65).flat_map(|start| lens.map(|len| (start, len))) {
            let mut memory = vec![0u8; 5200];
            let at = memory.as_mut_ptr().wrapping_add(start);
            // SAFETY: `start + len <= 5064` bytes of `memory`, which nothing borrows meanwhile.
            unsafe { copy_in_unordered(at, &source[..len]) };
            assert!(memory[..start].iter().all(|byte| *byte == 0), "before {start}");
            assert_eq!(memory[start..start + len], source[..len], "{len} bytes at {start}");
            assert!(memory[start + len..].iter().all(|byte| *byte == 0), "behind {start}+{len}");
        }
    }
}
