//! One module for each promise.

pub mod disks;
pub mod idle;
pub mod kills;
pub mod minority;
pub mod parked;
pub mod power;
pub mod sigterm;
pub mod snapshot;
