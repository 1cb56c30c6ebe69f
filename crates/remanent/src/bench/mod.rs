//! Measurements: what a commit costs, and what it would cost without a protocol.

pub(crate) mod commit;
pub(crate) mod raw;
mod stamping;
