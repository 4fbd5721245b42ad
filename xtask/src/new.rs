//! `xtask new`: a package of kernels of one's own, from the template in `template/`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace_root;

/// Make a package of kernels, their host program and its test.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The package's name.
    name: String,
    /// The folder that the package's folder is made in.
    #[arg(long, default_value = ".")]
    path: PathBuf,
    /// Depend on published versions of the crates, not on this checkout.
    #[arg(long)]
    published: bool,
}

/// The crates that the template depends on, and their folders here.
const CRATES: [(&str, &str); 3] =
    [("warpsmith", "host"), ("warpsmith-dsl", "dsl"), ("warpsmith-builder", "ptx-builder")];
/// The template's files, but for the one that `cargo generate` reads.
const FILES: [&str; 5] = ["Cargo.toml", "build.rs", "src/kernels.rs", "src/main.rs", ".gitignore"];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace_root();
    let folder = args.path.join(&args.name);
    make(&args.name, &folder, (!args.published).then_some(&*root), &root.join("template"))?;
    println!(
        "{} is a package: `cargo run` and `cargo test` there, kernels in `src/kernels.rs`",
        folder.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes the package; its dependencies are those of the checkout, if one is given.
pub(crate) fn make(name: &str, folder: &Path, checkout: Option<&Path>, template: &Path) -> Result<()> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    ensure!(
        name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(allowed),
        "`{name}` is no name of a package: expected letters, digits, `-` and `_`, a letter first"
    );
    if folder.exists() {
        bail!("`{}` is there already: expected the name of a new folder", folder.display());
    }
    for file in FILES {
        let from = template.join(file);
        let text =
            std::fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        let mut text = text.replace("{{project-name}}", name);
        if let (Some(checkout), "Cargo.toml") = (checkout, file) {
            text = with_paths(&text, checkout)?;
            // Also within a folder that is a workspace, as this checkout is.
            text.push_str("\n[workspace]\n");
        }
        let to = folder.join(file);
        std::fs::create_dir_all(to.parent().unwrap_or(folder))?;
        std::fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))?;
    }
    if let Some(checkout) = checkout {
        // The compiler and the versions of other crates are those that this checkout is tested with.
        for file in ["Cargo.lock", "rust-toolchain.toml"] {
            std::fs::copy(checkout.join(file), folder.join(file))
                .with_context(|| format!("cannot copy {file}"))?;
        }
    }
    Ok(())
}

/// The manifest with paths in the place of versions.
fn with_paths(manifest: &str, checkout: &Path) -> Result<String> {
    let mut manifest = manifest.to_owned();
    for (name, folder) in CRATES {
        let line = format!("\n{name} = {{ version = ");
        let (before, rest) = manifest.split_once(&line).with_context(|| format!("no version of `{name}`"))?;
        let (_, rest) = rest[1..].split_once('"').with_context(|| format!("no version of `{name}`"))?;
        manifest = format!("{before}\n{name} = {{ path = {:?}{rest}", checkout.join(folder));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> PathBuf {
        workspace_root().join("template")
    }

    #[test]
    fn a_package_has_all_files_and_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("own");
        make("own", &package, None, &template()).unwrap();
        for file in FILES {
            let text = std::fs::read_to_string(package.join(file)).unwrap();
            assert!(!text.contains("{{"), "{file}: {text}");
        }
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("name = \"own\"") && manifest.contains("warpsmith = { version"));
        assert!(make("own", &package, None, &template()).unwrap_err().to_string().contains("there already"));
    }

    #[test]
    fn a_package_of_this_checkout_depends_on_its_crates_and_versions() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("own");
        make("own", &package, Some(&workspace_root()), &template()).unwrap();
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap();
        for (name, folder) in CRATES {
            let path = workspace_root().join(folder);
            assert!(manifest.contains(&format!("{name} = {{ path = {path:?}")), "{manifest}");
        }
        assert!(manifest.ends_with("\n[workspace]\n"));
        assert!(!manifest.contains("{ version") && package.join("Cargo.lock").is_file());
    }

    #[test]
    fn the_template_names_this_version() {
        let manifest = std::fs::read_to_string(template().join("Cargo.toml")).unwrap();
        let current = format!("version = {:?}", env!("CARGO_PKG_VERSION"));
        // The package's own comes first.
        assert_eq!(manifest.matches(&current).count(), 1 + CRATES.len(), "{manifest}");
    }

    #[test]
    fn names_that_no_package_can_have_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "2d", "a b", "../x"] {
            let error = make(name, &folder.path().join("x"), None, &template()).unwrap_err().to_string();
            assert!(error.contains("is no name of a package"), "{error}");
        }
    }
}
