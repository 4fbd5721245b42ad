//! Whether Cargo builds the workspace once for xtask and for its tests, or twice.
//!
//! A crate is built for each set of features that it is asked for with, and everything above it with it. What only the tests ask for has to be asked for
//! in `tests/Cargo.toml`, which xtask depends on.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// Says which packages xtask is built with that the tests are built with other features of.
pub(super) fn complaints() -> Result<Vec<String>> {
    let of_xtask = packages(&["--package", "xtask", "--edges", "normal,build"])?;
    let of_tests = packages(&["--workspace", "--edges", "normal,build,dev"])?;
    Ok(differences(&of_xtask, &of_tests))
}

/// Packages, each with its version and its features.
fn packages(selection: &[&str]) -> Result<BTreeSet<String>> {
    let output = cargo()
        .args(["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{f}"])
        .args(selection)
        .output()
        .context("cannot start cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree {}: {}", selection.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn differences(of_xtask: &BTreeSet<String>, of_tests: &BTreeSet<String>) -> Vec<String> {
    let split = |line: &str| {
        let (package, features) = line.split_once('\t').unwrap_or((line, ""));
        (package.to_owned(), features.split(',').map(str::to_owned).collect::<BTreeSet<_>>())
    };
    let mut complaints = Vec::new();
    for line in of_xtask.difference(of_tests) {
        let (package, features) = split(line);
        for (_, others) in of_tests.iter().map(|line| split(line)).filter(|(other, _)| *other == package) {
            let lacks: Vec<_> = others.difference(&features).map(String::as_str).collect();
            if lacks.is_empty() {
                continue;
            }
            complaints.push(format!(
                "{package} is built twice, for the tests with the features `{}` too: turn them on in tests/Cargo.toml",
                lacks.join("`, `")
            ));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_only_the_tests_have_is_named() {
        let set = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        let tests = set(&["half v2\tstd", "either v1\tdefault,std,use_std", "other v1\t"]);
        assert!(differences(&set(&["half v2\tstd", "other v1\t"]), &tests).is_empty());
        let complaints = differences(&set(&["either v1\tdefault"]), &tests);
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("either v1") && complaints[0].contains("`std`, `use_std`"));
    }
}
