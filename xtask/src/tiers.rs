//! Which crate stands on which tier (ARCHITECTURE.md), and the rule: no crate uses a higher one.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// The crates that hold unsafe code; every other one forbids it.
pub(crate) const WITH_UNSAFE: [&str; 2] = ["fabric", "pmem"];

/// The tier above all others: what tests and builds the product, and is used by nobody.
const TESTS: u8 = 5;

/// Tier of each crate. A new crate is added here and in ARCHITECTURE.md.
const TIERS: [(&str, u8); 13] = [
    ("base", 0),
    ("logfmt", 0),
    ("consensus", 0),
    ("proto", 0),
    ("fabric", 1),
    ("pmem", 1),
    ("replica", 2),
    ("store", 2),
    ("client", 3),
    ("remanent", 4),
    ("sim", TESTS),
    ("testkit", TESTS),
    ("xtask", TESTS),
];

/// One crate of the workspace as `cargo metadata` tells it.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Names of the workspace's crates that it depends on, for whatever purpose.
    uses: Vec<String>,
    /// The root files of its library and its binaries.
    pub(crate) roots: Vec<String>,
}

/// The workspace's crates.
pub(crate) fn crates(metadata: &Value) -> Result<Vec<Crate>> {
    let packages = metadata["packages"].as_array().context("cargo metadata: no `packages`")?;
    packages.iter().map(one_crate).collect()
}

fn one_crate(package: &Value) -> Result<Crate> {
    let name = package["name"].as_str().context("cargo metadata: a package has no `name`")?;
    let dependencies =
        package["dependencies"].as_array().context("cargo metadata: no `dependencies`")?;
    let uses = dependencies.iter().filter(|dependency| dependency["path"].is_string());
    let targets = package["targets"].as_array().context("cargo metadata: no `targets`")?;
    let roots = targets.iter().filter(|target| {
        let kinds = target["kind"].as_array().map_or(&[][..], Vec::as_slice);
        kinds.iter().any(|kind| kind == "lib" || kind == "bin")
    });
    Ok(Crate {
        name: name.to_owned(),
        uses: uses.filter_map(|used| used["name"].as_str()).map(str::to_owned).collect(),
        roots: roots.filter_map(|root| root["src_path"].as_str()).map(str::to_owned).collect(),
    })
}

/// What breaks the rule, one sentence each.
pub(crate) fn violations(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for user in crates {
        let Some(user_tier) = tier(&user.name) else {
            found.push(format!(
                "crate `{}` has no tier: add it to xtask/src/tiers.rs and to ARCHITECTURE.md",
                user.name
            ));
            continue;
        };
        for used in &user.uses {
            if tier(used).is_some_and(|used_tier| used_tier > user_tier) {
                found.push(format!(
                    "crate `{}` must not use `{used}`, which stands on a higher tier: move the \
                     code down, or hand it in from above",
                    user.name
                ));
            }
        }
    }
    found
}

/// Crates that do not forbid unsafe code although they are not among those that may hold it.
pub(crate) fn without_forbid(crates: &[Crate]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for one in crates.iter().filter(|one| !WITH_UNSAFE.contains(&one.name.as_str())) {
        for root in &one.roots {
            let text = std::fs::read_to_string(Path::new(root))
                .with_context(|| format!("reading {root}"))?;
            if !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
                found.push(format!(
                    "{root}: crate `{}` must open with #![forbid(unsafe_code)]; unsafe code \
                     belongs into {}",
                    one.name,
                    WITH_UNSAFE.join(" or ")
                ));
            }
        }
    }
    Ok(found)
}

fn tier(name: &str) -> Option<u8> {
    TIERS.iter().find(|(known, _)| *known == name).map(|(_, tier)| *tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(name: &str, used: &str) -> Crate {
        Crate { name: name.to_owned(), uses: vec![used.to_owned()], roots: Vec::new() }
    }

    #[test]
    fn a_higher_tier_may_use_a_lower_one_and_its_own() {
        let crates = [uses("replica", "pmem"), uses("consensus", "logfmt"), uses("sim", "replica")];
        assert_eq!(violations(&crates), Vec::<String>::new());
    }

    #[test]
    fn a_lower_tier_must_not_use_a_higher_one() {
        let found = violations(&[uses("consensus", "fabric")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`consensus` must not use `fabric`"));
    }

    #[test]
    fn nothing_uses_what_only_tests() {
        assert_eq!(violations(&[uses("store", "sim")]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_tier_is_named() {
        assert!(violations(&[uses("novel", "base")])[0].contains("`novel` has no tier"));
    }

    #[test]
    fn metadata_gives_path_dependencies_and_the_roots_of_libraries_and_binaries() {
        let metadata = serde_json::json!({"packages": [{
            "name": "replica",
            "dependencies": [{"name": "base", "path": "/p/base"}, {"name": "thiserror"}],
            "targets": [
                {"kind": ["lib"], "src_path": "/p/lib.rs"},
                {"kind": ["test"], "src_path": "/p/tests/it/main.rs"},
            ],
        }]});
        let crates = crates(&metadata).unwrap();
        assert_eq!(crates[0].uses, ["base"]);
        assert_eq!(crates[0].roots, ["/p/lib.rs"]);
    }
}
