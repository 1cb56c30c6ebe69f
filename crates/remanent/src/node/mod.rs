//! A member: what it is made of, its loop, its door, and what it says of itself.

mod door;
mod env;
mod files;
mod looping;
mod status;

pub(crate) use env::{Parts, Running, boot_id, fill_random, open, random_seed as random};
pub(crate) use looping::run;
