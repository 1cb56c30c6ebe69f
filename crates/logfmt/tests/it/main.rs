//! Examples of the log on media.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod append;
mod below;
mod bytes;
mod corpus;
mod dump;
mod entry;
mod extent;
mod history;
mod log;
mod restore;
mod superblock;
mod walk;
mod world;
