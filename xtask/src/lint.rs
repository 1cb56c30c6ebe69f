//! The lint stage: the compiler's checks, and the project's own rules on what it tracks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::Runner;
use crate::{tiers, workspace};

/// Directories of one machine; a tracked file that names a path in them works nowhere else.
const MACHINE_DIRECTORIES: [&str; 5] = ["work", "farm", "tmp", "root", "home"];

/// Hosts that a tracked file may name: anybody can reach them. Another one is either private, and
/// then must not be here, or public, and then is added with the change that names it.
const PUBLIC_HOSTS: [&str; 5] =
    ["crates.io", "docs.rs", "github.com", "keepachangelog.com", "www.apache.org"];

/// The only place that Cargo.lock may take crates from.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs the whole stage.
pub(crate) fn run(runner: &Runner) -> Result<()> {
    own_rules()?;
    let cargo = workspace::cargo();
    runner.run(Command::new(&cargo).args(["fmt", "--all", "--check"]))?;
    runner.run(Command::new(&cargo).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-Dwarnings",
    ]))?;
    runner.run(
        Command::new(&cargo)
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-Dwarnings"),
    )
}

/// The rules that need no compiler. All violations are printed before it fails.
pub(crate) fn own_rules() -> Result<()> {
    let crates = tiers::crates(&workspace::metadata()?)?;
    let mut violations = tiers::violations(&crates);
    violations.extend(tiers::without_forbid(&crates)?);
    let tracked = workspace::tracked_files()?;
    violations.extend(unindexed_pages(&tracked));
    for path in &tracked {
        // A file that is not UTF-8 is data of a test, not text of ours.
        if let Ok(text) = std::fs::read_to_string(path) {
            violations.extend(in_text(path, &text));
        }
    }
    for violation in &violations {
        eprintln!("error: {violation}");
    }
    if !violations.is_empty() {
        bail!("{} violations of the project's own rules, listed above", violations.len());
    }
    println!("{} crates and {} tracked files keep the rules", crates.len(), tracked.len());
    Ok(())
}

fn in_text(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(directory) = machine_path(line) {
            found.push(format!(
                "{path}:{number}: names a path in /{directory}, which is one machine's: use a \
                 relative path, or std::env::temp_dir() in a test"
            ));
        }
        if let Some(host) = private_host(line) {
            found.push(format!(
                "{path}:{number}: names the host `{host}`: if anybody can reach it, add it to \
                 PUBLIC_HOSTS in xtask/src/lint.rs, else leave it out"
            ));
        }
        if path.ends_with("Cargo.lock") && is_foreign_source(line) {
            found.push(format!(
                "{path}:{number}: takes a crate from elsewhere than crates.io: run `cargo update` \
                 without a replaced source"
            ));
        }
        if path.ends_with(".md") {
            found.extend(broken_links(path, line).map(|target| {
                format!("{path}:{number}: links to `{target}`, which does not exist")
            }));
        }
    }
    found
}

/// The first machine directory that the line names a path in.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_DIRECTORIES.into_iter().find(|directory| {
        let path = format!("/{directory}/");
        line.match_indices(&path).any(|(at, _)| opens_a_path(&line[..at]))
    })
}

/// Whether a `/` behind this text is the root, not a separator within a longer path.
fn opens_a_path(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"_-.})*$".contains(c))
}

/// The first host in a URL of the line that is not a public one.
fn private_host(line: &str) -> Option<&str> {
    let hosts = line.split("://").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
        &rest[..end.unwrap_or(rest.len())]
    });
    hosts.into_iter().find(|host| host.contains('.') && !PUBLIC_HOSTS.contains(host))
}

fn is_foreign_source(line: &str) -> bool {
    let source = line.strip_prefix("source = \"").and_then(|rest| rest.strip_suffix('"'));
    source.is_some_and(|source| source != CRATES_IO)
}

/// Relative link targets in a line of Markdown that do not exist.
fn broken_links<'a>(path: &'a str, line: &'a str) -> impl Iterator<Item = &'a str> {
    let directory = Path::new(path).parent().unwrap_or_else(|| Path::new(""));
    link_targets(line).filter(move |target| !directory.join(target).exists())
}

fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let files = targets.map(|(target, _)| target.split('#').next().unwrap_or(target));
    files.filter(|target| !target.is_empty() && !target.contains(':'))
}

/// Pages of `docs/design` that its README.md does not link to.
fn unindexed_pages(tracked: &[String]) -> Vec<String> {
    let index = std::fs::read_to_string("docs/design/README.md").unwrap_or_default();
    let linked: BTreeSet<&str> = index.lines().flat_map(link_targets).collect();
    let pages = tracked.iter().filter_map(|path| path.strip_prefix("docs/design/"));
    pages
        .filter(|page| page.ends_with(".md") && *page != "README.md" && !linked.contains(page))
        .map(|page| format!("docs/design/{page}: add a line with a link to it to README.md there"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_one_machine_is_found_wherever_it_opens() {
        // Put together here, so that this file itself keeps the rule.
        for directory in MACHINE_DIRECTORIES {
            assert_eq!(machine_path(&format!("cp /{directory}/a .")), Some(directory));
            assert_eq!(machine_path(&format!("\"/{directory}/a\"")), Some(directory));
        }
    }

    #[test]
    fn a_directory_of_that_name_within_a_path_is_fine() {
        assert_eq!(machine_path("target/tmp/log"), None);
        assert_eq!(machine_path("{root}/home/a, ./work/b, ${X}/tmp/c, /dev/shm/d"), None);
    }

    #[test]
    fn a_host_that_not_everybody_reaches_is_found() {
        let scheme = "https://";
        assert_eq!(
            private_host(&format!("{scheme}docs.rs/x {scheme}a.internal/y")),
            Some("a.internal")
        );
        assert_eq!(private_host(&format!("see {scheme}github.com/o/r")), None);
        assert_eq!(private_host("shm://name"), None);
    }

    #[test]
    fn a_lock_file_takes_crates_from_crates_io_only() {
        assert!(!is_foreign_source(&format!("source = \"{CRATES_IO}\"")));
        assert!(is_foreign_source("source = \"registry+file:///mirror\""));
        assert!(!is_foreign_source("checksum = \"00\""));
    }

    #[test]
    fn links_to_files_are_found_without_anchors_and_urls() {
        let line = "[a](docs/a.md) [b](b.md#part) [c](#here) [d](mailto:d)";
        assert_eq!(link_targets(line).collect::<Vec<_>>(), ["docs/a.md", "b.md"]);
    }

    #[test]
    fn a_link_to_nothing_is_reported_with_its_place() {
        let found = in_text("docs/page.md", "text\n[a](no-such-page.md)");
        assert_eq!(found, ["docs/page.md:2: links to `no-such-page.md`, which does not exist"]);
    }
}
