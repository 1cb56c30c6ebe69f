//! Where things lie in a region.
//!
//! ```text
//! 0              32 KiB         64 KiB          64 KiB + segment_len
//! +--------------+--------------+---------------+---------------+-- ... --+
//! | superblock 0 | superblock 1 | slot 0        | slot 1        |         |
//! +--------------+--------------+---------------+---------------+-- ... --+
//! ```
//!
//! Segment lengths are powers of two of at least 4 KiB, so every slot starts on a 4 KiB boundary
//! and what is aligned in a segment is aligned in the region.

use std::ops::Range;

use base::SlotId;

use crate::superblock::{COPY_LEN, SEGMENTS_MAX};

/// The smallest segment that the arithmetic allows: one block. Only tests and the simulator go
/// below [`SEGMENT_LEN_MIN`], to reach the ends of segments with few entries.
pub const SEGMENT_LEN_FLOOR: u64 = 4096;
/// The smallest segment of a product: its eighth, 32 KiB, still holds everyday values.
pub const SEGMENT_LEN_MIN: u64 = 256 << 10;
/// The largest segment: an 8 MiB value plus a 64 KiB key must fit an eighth of one, and an eighth
/// of 64 MiB is 8 MiB.
pub const SEGMENT_LEN_MAX: u64 = 128 << 20;
/// The fewest slots: two granted ahead, one sealed and still needed, one to turn around.
pub const SLOTS_MIN: u32 = 4;

/// What is wrong with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The segment length is not allowed.
    #[error("segment length {found} is not a power of two from {min} to {max} bytes")]
    SegmentLen {
        /// What was asked for, in bytes.
        found: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// The number of slots is not allowed.
    #[error("{found} segments are not from {min} to {max}")]
    SlotCount {
        /// What was asked for.
        found: u32,
        /// The least allowed.
        min: u32,
        /// The most allowed.
        max: u32,
    },
}

/// The shape of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionLayout {
    segment_len: u64,
    slot_count: u32,
}

impl RegionLayout {
    /// A region of `slot_count` segments of `segment_len` bytes each.
    ///
    /// # Errors
    /// When the arithmetic does not allow it; a product also asks [`Self::check_product_limits`].
    pub const fn new(segment_len: u64, slot_count: u32) -> Result<Self, LayoutError> {
        if !allowed(segment_len, SEGMENT_LEN_FLOOR) {
            return Err(LayoutError::SegmentLen {
                found: segment_len,
                min: SEGMENT_LEN_FLOOR,
                max: SEGMENT_LEN_MAX,
            });
        }
        if slot_count < SLOTS_MIN || SEGMENTS_MAX < slot_count {
            return Err(LayoutError::SlotCount {
                found: slot_count,
                min: SLOTS_MIN,
                max: SEGMENTS_MAX,
            });
        }
        Ok(Self { segment_len, slot_count })
    }

    /// Checks what a region outside tests must satisfy.
    ///
    /// # Errors
    /// When segments are smaller than [`SEGMENT_LEN_MIN`].
    pub const fn check_product_limits(&self) -> Result<(), LayoutError> {
        if allowed(self.segment_len, SEGMENT_LEN_MIN) {
            return Ok(());
        }
        Err(LayoutError::SegmentLen {
            found: self.segment_len,
            min: SEGMENT_LEN_MIN,
            max: SEGMENT_LEN_MAX,
        })
    }

    /// Bytes of one segment.
    #[must_use]
    pub const fn segment_len(&self) -> u64 {
        self.segment_len
    }

    /// Segments in the pool.
    #[must_use]
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Where a copy of the superblock lies, in bytes from the region's start.
    ///
    /// # Panics
    /// When `which` is neither 0 nor 1.
    #[must_use]
    pub fn superblock_copy(&self, which: u32) -> Range<u64> {
        assert!(which < 2);
        let start = u64::from(which) * COPY_LEN;
        start..start + COPY_LEN
    }

    /// Where a slot lies, in bytes from the region's start.
    ///
    /// # Panics
    /// When there is no such slot.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> Range<u64> {
        assert!(slot.0 < self.slot_count);
        let start = 2 * COPY_LEN + u64::from(slot.0) * self.segment_len;
        start..start + self.segment_len
    }

    /// Bytes of the whole region.
    #[must_use]
    pub fn region_len(&self) -> u64 {
        2 * COPY_LEN + u64::from(self.slot_count) * self.segment_len
    }
}

const fn allowed(segment_len: u64, min: u64) -> bool {
    segment_len.is_power_of_two() && min <= segment_len && segment_len <= SEGMENT_LEN_MAX
}
