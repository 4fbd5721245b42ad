//! One run of the device compiler: a kernel crate, a family and an architecture in, rustc's PTX out.
//!
//! The flags are the recipe that keeps kernels whole. One codegen unit and `immediate-abort` panics leave nothing to link;
//! the unroll threshold keeps arrays that fixed-length loops index in registers. What the surrounding Cargo, rustup or
//! user set for *host* builds must not reach this build: see [`isolate`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Error;
use crate::arch::Arch;
use crate::toolchain::{TARGET, Toolchain};

/// One compilation.
pub(crate) struct Compilation<'a> {
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) package: &'a str,
    pub(crate) manifest: &'a Path,
    pub(crate) workspace: &'a Path,
    pub(crate) target_dir: &'a Path,
    /// Those of the kernel crate.
    pub(crate) features: &'a str,
    /// The hash of the sources.
    pub(crate) sources: &'a str,
    pub(crate) arch: Arch,
    pub(crate) ptx_version: u32,
}

/// What came out of it.
pub(crate) struct Compiled {
    pub(crate) ptx: String,
    pub(crate) warnings: String,
}

/// The profile that device code is built with, whatever the workspace's own says.
///
/// `line-directives-only` gives `.loc` lines and no debug sections, which ptxas would not take.
const PROFILE: &[(&str, &str)] = &[
    ("opt-level", "3"),
    ("codegen-units", "1"),
    ("panic", "\"immediate-abort\""),
    ("debug", "\"line-directives-only\""),
    ("lto", "\"off\""),
    ("debug-assertions", "false"),
    ("overflow-checks", "false"),
    ("incremental", "false"),
    ("strip", "\"none\""),
];

/// Flags of the kernel crate itself, beside the profile.
pub(crate) fn codegen_flags(arch: Arch, ptx_version: u32) -> Vec<String> {
    vec![
        format!("-Ctarget-cpu={arch}"),
        format!("-Ctarget-feature=+ptx{ptx_version}"),
        "-Cllvm-args=-unroll-threshold=20000".into(),
    ]
}

/// Everything that decides the compiler's output besides compiler and sources, in words.
pub(crate) fn recipe(arch: Arch, ptx_version: u32) -> String {
    let profile = PROFILE.iter().map(|(key, value)| format!("-C{key}={}", value.trim_matches('"')));
    profile
        .chain(codegen_flags(arch, ptx_version))
        .collect::<Vec<_>>()
        .join(" ")
        .replace("-Cdebug=", "-Cdebuginfo=")
}

impl Compilation<'_> {
    pub(crate) fn run(&self) -> Result<Compiled, Error> {
        let mut command = Command::new(&self.toolchain.cargo);
        isolate(&mut command);
        command.current_dir(self.workspace);
        command.arg("rustc").arg("--manifest-path").arg(self.manifest);
        command.args(["--package", self.package, "--lib", "--crate-type", "rlib", "--release"]);
        command.args(["--no-default-features", "--features", self.features]);
        command.args(["--target", TARGET, "-Zbuild-std=core", "-Zpanic-immediate-abort"]);
        // Times say nothing of sources that came in the place of others.
        command.arg("-Zchecksum-freshness");
        for (key, value) in PROFILE {
            command.arg("--config").arg(format!("profile.release.{key}={value}"));
        }
        command.arg("--target-dir").arg(self.target_dir);
        command.args(["--message-format", "json", "--color", "never"]);
        command.args(["--", "--emit=asm"]).args(codegen_flags(self.arch, self.ptx_version));
        // What a file of kernels for several architectures has for one of them only.
        command.arg("--cfg").arg(format!("warpsmith_arch=\"{}\"", self.arch));
        if self.arch >= Arch::SM_90 {
            command.arg("--cfg").arg("warpsmith_dependent_launches");
        }
        // A compilation of other sources is another one to Cargo, whatever it makes of the files.
        command.arg(format!("-Cmetadata={}", self.sources));
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", &self.toolchain.rustc);
        // Wrappers cache by command line and may not know about `--emit=asm`.
        command.env("RUSTC_WRAPPER", "").env("RUSTC_WORKSPACE_WRAPPER", "");
        command.env("CARGO_ENCODED_RUSTFLAGS", self.remaps());

        // Cargo's own lock ends with its run; the file must still be this run's when it is read.
        let lock = self.target_dir.join("warpsmith-builder.lock");
        std::fs::create_dir_all(self.target_dir).map_err(Error::io("create", self.target_dir))?;
        let lock = File::create(&lock)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(Error::io("lock", &lock))?;

        let line = display(&command);
        let output = command
            .output()
            .map_err(|error| Error::Command { command: line.clone(), output: error.to_string() })?;
        let messages = messages(&String::from_utf8_lossy(&output.stdout));
        let diagnostics = diagnostics(&messages);
        if !output.status.success() {
            // Where rustc has no error, what is wrong is Cargo's to say.
            let cargo = String::from_utf8_lossy(&output.stderr);
            let is_rustcs = messages.iter().any(|message| message["message"]["level"] == "error");
            let output = if is_rustcs { diagnostics } else { format!("{diagnostics}{cargo}") };
            return Err(Error::Command { command: line, output });
        }
        let assembly = assembly_path(&messages, self.package)
            .map_err(|reason| Error::Answer { command: line, reason })?;
        let ptx = std::fs::read_to_string(&assembly).map_err(Error::io("read", assembly))?;
        drop(lock);
        Ok(Compiled { ptx, warnings: diagnostics })
    }

    /// Paths of the toolchain and of the registry, which differ between machines, under names that do not.
    ///
    /// The workspace's own path must not be here: flags are part of what Cargo knows `core` by, and every checkout would
    /// build it again. [`crate::module::finish`] deals with that path.
    fn remaps(&self) -> OsString {
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let cargo_home = cargo_home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
        let sources = Some((self.toolchain.library_sources(), "rust-src"));
        let mut flags = OsString::new();
        for (from, to) in cargo_home.map(|home| (home, "cargo-home")).into_iter().chain(sources) {
            if !flags.is_empty() {
                flags.push("\u{1f}");
            }
            flags.push("--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        }
        flags
    }
}

/// Takes out of the environment what Cargo, rustup and the user set for host builds.
///
/// Without it a `cargo run` or a build script would hand its own compiler, flags and target folder to the device build.
pub(crate) fn isolate(command: &mut Command) {
    const EXACT: &[&str] = &[
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "RUSTUP_TOOLCHAIN",
        "RUSTUP_TOOLCHAIN_SOURCE",
        "RUST_RECURSION_COUNT",
        "CARGO",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_TARGET_DIR",
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
        "CARGO_MANIFEST_LINKS",
        "CARGO_PRIMARY_PACKAGE",
        "CARGO_CRATE_NAME",
        "CARGO_BIN_NAME",
        "TARGET",
        "HOST",
        "OUT_DIR",
        "OPT_LEVEL",
        "PROFILE",
        "DEBUG",
        "NUM_JOBS",
    ];
    const PREFIXES: &[&str] = &[
        "CARGO_PKG_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_BUILD_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "DEP_",
    ];
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        if EXACT.contains(&text) || PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // `cargo run` and rustup's proxies put the host toolchain's libraries first, which another rustc would then load.
    for variable in ["LD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"] {
        let Some(paths) = std::env::var_os(variable) else { continue };
        let host = |path: &PathBuf| {
            let parts: Vec<_> = path.components().filter_map(|part| part.as_os_str().to_str()).collect();
            parts.contains(&"rustlib")
                || parts.contains(&"toolchains")
                || parts.contains(&"deps")
                || parts.contains(&"release")
                || parts.contains(&"debug")
        };
        let kept = std::env::split_paths(&paths).filter(|path| !host(path));
        match std::env::join_paths(kept) {
            Ok(kept) if !kept.is_empty() => command.env(variable, kept),
            _ => command.env_remove(variable),
        };
    }
}

/// Where rustc put the PTX: beside the library that Cargo reports, under the library's name without `lib`.
fn assembly_path(messages: &[Value], package: &str) -> Result<PathBuf, String> {
    let crate_name = package.replace('-', "_");
    for message in messages {
        if message["reason"] != "compiler-artifact" || message["target"]["name"] != crate_name.as_str() {
            continue;
        }
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
        for file in files.map(Path::new) {
            let Some(stem) = file.file_stem().and_then(OsStr::to_str) else { continue };
            let assembly = file.with_file_name(format!("{}.s", stem.trim_start_matches("lib")));
            if assembly.is_file() {
                return Ok(assembly);
            }
            let in_deps = file.with_file_name("deps").join(format!("{}.s", stem.trim_start_matches("lib")));
            if in_deps.is_file() {
                return Ok(in_deps);
            }
        }
        return Err(format!("no PTX beside {}", message["filenames"]));
    }
    Err(format!("it does not say where the library of `{crate_name}` is"))
}

/// What Cargo says, a JSON value a line.
fn messages(output: &str) -> Vec<Value> {
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// rustc's diagnostics as rustc prints them, but for those that every build has: of the flags that this module sets itself, and counts,
/// which include these.
fn diagnostics(messages: &[Value]) -> String {
    let mut text = String::new();
    for message in messages.iter().filter(|message| message["reason"] == "compiler-message") {
        let diagnostic = &message["message"];
        let what = diagnostic["message"].as_str().unwrap_or_default();
        let own_flag = what.contains("feature specified for `-Ctarget-feature`: `ptx");
        let count = what.ends_with("warning emitted") || what.ends_with("warnings emitted");
        if !own_flag && !count {
            text.push_str(diagnostic["rendered"].as_str().unwrap_or_default());
        }
    }
    text
}

pub(crate) fn display(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostics_are_printed_as_rustc_prints_them() {
        let line = |level: &str, message: &str, rendered: &str| {
            let diagnostic = serde_json::json!({ "level": level, "message": message, "rendered": rendered });
            serde_json::json!({ "reason": "compiler-message", "message": diagnostic }).to_string()
        };
        let unused = "warning: unused variable: `x`\n --> src/lib.rs:3:9\n  |\n3 |     let x = 1;\n\n  = note: with a gap\n\n";
        let output = [
            line(
                "warning",
                "unstable feature specified for `-Ctarget-feature`: `ptx70`",
                "warning: unstable feature specified for `-Ctarget-feature`: `ptx70`\n  |\n\n",
            ),
            "no JSON".into(),
            line("warning", "unused variable: `x`", unused),
            line("warning", "2 warnings emitted", "warning: 2 warnings emitted\n\n"),
            line("error", "aborting due to 1 previous error; 1 warning emitted", "error: aborting\n\n"),
            r#"{"reason":"build-finished","success":true}"#.into(),
        ];
        assert_eq!(diagnostics(&messages(&output.join("\n"))), unused);
    }
}
