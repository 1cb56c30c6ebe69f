//! Where things are: the workspace's root, its target directory, its tracked files, its crates.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The directory of the root `Cargo.toml`.
pub(crate) fn root() -> Result<PathBuf> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = own.parent().context("the directory of xtask has no parent: rebuild xtask")?;
    ensure!(
        root.join("Cargo.toml").is_file(),
        "{} is not the workspace any more: rebuild xtask with `cargo build -p xtask`",
        root.display()
    );
    Ok(root.to_path_buf())
}

/// The target directory that Cargo uses when nothing else is asked for.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Paths, relative to the root, of the files that Git tracks and that still exist.
pub(crate) fn tracked_files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .output()
        .context("`git ls-files` does not start: install git")?;
    ensure!(
        output.status.success(),
        "`git ls-files` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    let existing = names.split('\0').filter(|name| !name.is_empty());
    Ok(existing.filter(|name| PathBuf::from(name).is_file()).map(str::to_owned).collect())
}

/// What `cargo metadata` says about the workspace's own crates.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let output = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("`cargo metadata` does not start: is cargo installed?")?;
    ensure!(
        output.status.success(),
        "`cargo metadata` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("the output of `cargo metadata` is not JSON")
}

/// The cargo that runs us, so that children use the same toolchain.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
