//! One module for each promise.

pub mod kills;
