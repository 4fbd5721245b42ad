//! The search for a device toolchain, in folders with stand-ins for rustc and cargo.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};

use warpsmith_builder::Error;
use warpsmith_builder::toolchain::{Origin, Search};

/// A machine with nothing on it.
struct Machine {
    root: tempfile::TempDir,
    search: Search,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let search = Search {
            setting: None,
            rustc_variable: None,
            cargo_variable: None,
            rustup_home: Some(root.path().join("rustup")),
            system: vec![root.path().join("system/bin")],
        };
        Self { root, search }
    }

    /// Puts a toolchain into a folder; returns that.
    fn install(&self, folder: &str, release: &str) -> PathBuf {
        let root = self.root.path().join(folder);
        fs::create_dir_all(root.join("bin")).unwrap();
        // Links to a script that stays as it is: a file that has just been written may still be open in another
        // thread's child, and cannot be run then.
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake-tool");
        for name in ["rustc", "cargo"] {
            std::os::unix::fs::symlink(&tool, root.join("bin").join(name)).unwrap();
        }
        let version = format!(
            "rustc {release}\ncommit-hash: 0123456789abcdef\ncommit-date: 2026-05-25\nrelease: {release}\nLLVM version: 22.1.8\n"
        );
        fs::write(root.join("version"), version).unwrap();
        let core = root.join("lib/rustlib/src/rust/library/core");
        fs::create_dir_all(&core).unwrap();
        fs::write(core.join("Cargo.toml"), "").unwrap();
        root
    }

    fn install_without_sources(&self, folder: &str, release: &str) -> PathBuf {
        let root = self.install(folder, release);
        fs::remove_dir_all(root.join("lib/rustlib/src")).unwrap();
        root
    }

    fn error(&self) -> String {
        self.search.find().unwrap_err().to_string()
    }
}

#[test]
fn an_explicit_setting_comes_before_everything_else() {
    let mut machine = Machine::new();
    machine.install("rustup/toolchains/nightly", "1.99.0-nightly");
    machine.install("system", "1.96.0");
    let environment = machine.install("environment", "1.97.0");
    let setting = machine.install("setting", "1.95.0");
    machine.search.rustc_variable = Some(environment.join("bin/rustc"));

    let found = machine.search.find().unwrap();
    assert_eq!((found.release.as_str(), found.origin), ("1.97.0", Origin::Environment));

    // A folder and the rustc in it name the same toolchain.
    for path in [setting.clone(), setting.join("bin/rustc")] {
        let found = machine.search.clone().with_setting(Some(path)).find().unwrap();
        assert_eq!((found.release.as_str(), found.origin), ("1.95.0", Origin::Setting));
        assert_eq!(found.cargo, setting.join("bin/cargo"));
    }
}

#[test]
fn a_setting_that_will_not_do_is_an_error_and_no_other_toolchain_is_taken() {
    let mut machine = Machine::new();
    machine.install("system", "1.96.0");
    let bare = machine.install_without_sources("bare", "1.96.0");

    machine.search.rustc_variable = Some(bare.join("bin/rustc"));
    let error = machine.error();
    assert!(
        error.contains("WARPSMITH_DEVICE_RUSTC") && error.contains("sources of `core` are missing"),
        "{error}"
    );

    machine.search.setting = Some(machine.root.path().join("nowhere"));
    let error = machine.error();
    assert!(error.contains("the caller") && error.contains("nowhere"), "{error}");
}

#[test]
fn the_newest_rustup_toolchain_with_sources_comes_before_the_systems() {
    let machine = Machine::new();
    machine.install("system", "1.99.0");
    assert_eq!(machine.search.find().unwrap().origin, Origin::System);

    machine.install("rustup/toolchains/1.96.0-x86_64-unknown-linux-gnu", "1.96.0");
    machine.install("rustup/toolchains/1.100.0-x86_64-unknown-linux-gnu", "1.100.0");
    machine.install_without_sources("rustup/toolchains/stable-x86_64-unknown-linux-gnu", "1.101.0");
    let found = machine.search.find().unwrap();
    assert_eq!((found.release.as_str(), found.origin), ("1.100.0", Origin::Rustup));
    assert_eq!(found.version(), "1.100.0 (012345678 2026-05-25)");
    assert_eq!(found.llvm, "22.1.8");

    let all: Vec<String> = machine.search.all().into_iter().map(|toolchain| toolchain.release).collect();
    assert_eq!(all, ["1.100.0", "1.96.0", "1.99.0"]);
}

#[test]
fn the_environment_names_another_cargo() {
    let mut machine = Machine::new();
    machine.install("system", "1.96.0");
    let other = machine.install("other", "1.96.0").join("bin/cargo");
    machine.search.cargo_variable = Some(other.clone());
    assert_eq!(machine.search.find().unwrap().cargo, other);
}

#[test]
fn without_a_toolchain_the_error_lists_reasons_and_the_commands_to_install_one() {
    let machine = Machine::new();
    let error = machine.error();
    for command in [
        "rustup toolchain install 1.96.0 --profile minimal --component rust-src",
        "apt-get install --no-install-recommends rustc-web cargo-web rust-web-src",
        "WARPSMITH_DEVICE_RUSTC",
    ] {
        assert!(error.contains(command), "`{command}` is not in: {error}");
    }
    assert!(!error.contains("Looked at"), "{error}");

    let old = machine.install("rustup/toolchains/old", "1.80.0");
    let bare = machine.install_without_sources("rustup/toolchains/stable", "1.96.0");
    let system = machine.install("system", "1.96.0");
    fs::write(system.join("no-nvptx"), "").unwrap();
    let error = machine.error();
    for (rustc, reason) in [
        (old, "it is 1.80.0, and 1.95 or later is needed"),
        (bare, "the sources of `core` are missing"),
        (system, "its LLVM cannot compile for nvptx64-nvidia-cuda"),
    ] {
        let line = format!("{}: {reason}", rustc.join("bin/rustc").display());
        assert!(error.contains(&line), "`{line}` is not in: {error}");
    }
    assert!(matches!(machine.search.find(), Err(Error::NoToolchain { refused }) if refused.len() == 3));
}
