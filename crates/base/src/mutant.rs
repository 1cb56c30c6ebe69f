//! Switches that plant one fault each, to prove that the checkers would see it.
//!
//! A rule of the protocol reads `if !mutant!("name") { the rule }`. In an ordinary build the macro
//! is the constant `false` and the compiler removes it. `--cfg 'mutant="name"'` plants that one
//! fault; `--cfg 'mutant="all"'` builds every fault in and lets `plant` choose one at run time,
//! which spares a build per fault.

/// `true` when the fault of this name is planted in this build.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_set(cfg!(mutant = $name), $name)
    };
}

/// What [`mutant!`](crate::mutant!) asks: `in_build` tells whether this very fault was built in.
#[inline(always)]
#[must_use]
#[expect(clippy::inline_always, reason = "an ordinary build must find the constant `false` here")]
pub fn is_set(in_build: bool, name: &str) -> bool {
    in_build || is_planted(name)
}

#[cfg(mutant = "all")]
std::thread_local! {
    static PLANTED: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Plants the fault `name` for the calling thread; `""` plants none.
#[cfg(mutant = "all")]
pub fn plant(name: &'static str) {
    PLANTED.set(name);
}

/// Whether the fault `name` is planted for the calling thread.
#[cfg(mutant = "all")]
#[must_use]
pub fn is_planted(name: &str) -> bool {
    PLANTED.get() == name
}

/// Whether the fault `name` is planted for the calling thread: never, in this build.
#[cfg(not(mutant = "all"))]
#[inline(always)]
#[must_use]
#[expect(clippy::inline_always, reason = "an ordinary build must find the constant `false` here")]
pub const fn is_planted(_name: &str) -> bool {
    false
}
