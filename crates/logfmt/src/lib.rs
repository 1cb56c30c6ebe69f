//! Superblock, segment, entry and control-page bytes, and the walk over them.
//!
//! Everything that stands in a member's region has its one home here: the bytes are drawn in the
//! modules that encode them and in `docs/formats/`. Pure: it copies bytes through [`Bytes`], and
//! has no I/O, clock, thread, randomness or hash order.
#![forbid(unsafe_code)]

mod bytes;
mod configuration;
mod control;
mod dump;
pub mod entry;
mod extent;
#[doc(hidden)]
pub mod fuzz;
mod idle;
mod layout;
mod log;
mod model;
pub mod place;
mod superblock;
mod wire;

pub use bytes::{Bytes, BytesMut};
pub use configuration::{CONFIGURATION_LEN_MAX, decode_configuration, encode_configuration};
pub use control::{
    CONTROL_ACCEPTED, CONTROL_APPLIED, CONTROL_COMMIT, CONTROL_GRANT, CONTROL_LEADER,
    CONTROL_LEADING, CONTROL_LEN, CONTROL_SUSPECT, ControlLine, Progress,
};
pub use dump::{dump_log, dump_segment, dump_superblock};
pub use entry::Header;
pub use extent::{Extent, ExtentEntries, Parsed, parse_extent};
pub use idle::{IDLE_LEN, decode_idle, encode_idle};
pub use layout::{
    LayoutError, RegionLayout, SEGMENT_LEN_FLOOR, SEGMENT_LEN_MAX, SEGMENT_LEN_MIN, SLOTS_MIN,
};
pub use log::{
    AppendError, Damage, DamageKind, Location, MemberLog, NewEntry, Placed, ReadError,
    RestoreError, Restored, Walk,
};
pub use model::{
    Boundary, Checkpoint, Hole, Identity, Kind, Position, Seal, SegmentRecord, StateFile,
    Superblock,
};
pub use place::{Place, Shape};
pub use superblock::{COPY_LEN, FORMAT_VERSION, MAGIC, SEGMENTS_MAX, SuperblockError, choose};
