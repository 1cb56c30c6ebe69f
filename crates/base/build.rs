//! Turns a set `mutant` switch into `cfg(assertions_off)`: a mutated build must be caught by the
//! checkers outside the core, never by the core's own assertions.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(assertions_off)");
    if std::env::var_os("CARGO_CFG_MUTANT").is_some() {
        println!("cargo::rustc-cfg=assertions_off");
    }
}
