//! The device toolchain: a rustc that can compile for `nvptx64-nvidia-cuda`, and where it is found.
//!
//! A toolchain will do when its sysroot holds the sources of `core` (rustup's component `rust-src`, Debian's package
//! `rust-web-src`), when it is new enough, and when its LLVM has the NVPTX backend. Stable compilers will do:
//! `RUSTC_BOOTSTRAP=1` gives them the unstable flags that the build needs.
//!
//! The search: an explicit setting, then the environment ([`RUSTC_VARIABLE`] and [`CARGO_VARIABLE`]), then rustup's
//! toolchains (the newest first), then the system's rustc. An explicit setting that will not do is an error, not a reason
//! to take another one in silence.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Environment variable that names the rustc to compile kernels with.
pub const RUSTC_VARIABLE: &str = "WARPSMITH_DEVICE_RUSTC";
/// Environment variable that names the cargo to compile kernels with; by default the one beside that rustc.
pub const CARGO_VARIABLE: &str = "WARPSMITH_DEVICE_CARGO";
/// rustc's name for the GPU.
pub const TARGET: &str = "nvptx64-nvidia-cuda";
/// The oldest rustc that has all the flags the build uses.
pub const MINIMUM: (u32, u32) = (1, 95);

/// A compiler that can build kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: PathBuf,
    /// Its cargo.
    pub cargo: PathBuf,
    /// Where its libraries and sources are.
    pub sysroot: PathBuf,
    /// Its release, e.g. `1.96.0`.
    pub release: String,
    /// Its commit and date, e.g. `ac68faa20 2026-05-25`; empty when it does not say.
    pub commit: String,
    /// Its LLVM, e.g. `22.1.8`.
    pub llvm: String,
    /// How it was found.
    pub origin: Origin,
}

/// How a toolchain was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The caller named it.
    Setting,
    /// The environment named it.
    Environment,
    /// It is one of rustup's.
    Rustup,
    /// It is the system's.
    System,
}

/// A compiler that was looked at and will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The compiler.
    pub rustc: PathBuf,
    /// Why it will not do.
    pub reason: String,
}

/// Where to look; [`Search::default`] is what this machine and its environment say.
#[derive(Clone, Debug)]
pub struct Search {
    /// A rustc, or the folder of a toolchain, that the caller asks for.
    pub setting: Option<PathBuf>,
    /// The value of [`RUSTC_VARIABLE`].
    pub rustc_variable: Option<PathBuf>,
    /// The value of [`CARGO_VARIABLE`].
    pub cargo_variable: Option<PathBuf>,
    /// rustup's folder, which holds `toolchains`.
    pub rustup_home: Option<PathBuf>,
    /// Folders that may hold the system's `rustc`.
    pub system: Vec<PathBuf>,
}

impl Default for Search {
    fn default() -> Self {
        let variable =
            |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
        let home = std::env::home_dir();
        let rustup_home = variable("RUSTUP_HOME").or_else(|| home.map(|home| home.join(".rustup")));
        let cargo_bin = variable("CARGO_HOME").map(|home| home.join("bin"));
        // rustup's proxies stand on PATH too, under the names of the tools; they are no system compiler.
        let is_proxy = |folder: &Path| {
            folder.join("rustup").exists()
                || cargo_bin.as_deref() == Some(folder)
                || rustup_home.as_deref().is_some_and(|home| folder.starts_with(home))
        };
        let mut system: Vec<PathBuf> =
            std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
        system.push("/usr/bin".into());
        system.push("/usr/local/bin".into());
        system.retain(|folder| !is_proxy(folder));
        let mut seen = std::collections::HashSet::new();
        system.retain(|folder| seen.insert(folder.clone()));
        Self {
            setting: None,
            rustc_variable: variable(RUSTC_VARIABLE),
            cargo_variable: variable(CARGO_VARIABLE),
            rustup_home,
            system,
        }
    }
}

/// Looks for a device toolchain where this machine and its environment say.
///
/// # Errors
///
/// [`Error::NoToolchain`] lists what was looked at and gives the commands that install one; [`Error::Toolchain`] when the
/// environment names one that will not do.
pub fn find_toolchain() -> Result<Toolchain, Error> {
    Search::default().find()
}

impl Search {
    /// The search, with the caller's own choice of a compiler first.
    #[must_use]
    pub fn with_setting(mut self, setting: Option<PathBuf>) -> Self {
        self.setting = setting;
        self
    }

    /// Finds the first toolchain that will do.
    ///
    /// # Errors
    ///
    /// As [`find_toolchain`].
    pub fn find(&self) -> Result<Toolchain, Error> {
        if let Some(path) = &self.setting {
            return inspect(&rustc_in(path), None, Origin::Setting).map_err(|reason| Error::Toolchain {
                origin: "the caller",
                path: path.clone(),
                reason,
            });
        }
        if let Some(path) = &self.rustc_variable {
            return inspect(&rustc_in(path), self.cargo_variable.as_deref(), Origin::Environment)
                .map_err(|reason| Error::Toolchain { origin: RUSTC_VARIABLE, path: path.clone(), reason });
        }
        let (mut found, refused) = self.installed();
        if found.is_empty() { Err(Error::NoToolchain { refused }) } else { Ok(found.swap_remove(0)) }
    }

    /// Every toolchain that will do, in the order of preference; only the one that is asked for, where one is.
    pub fn all(&self) -> Vec<Toolchain> {
        if self.setting.is_some() || self.rustc_variable.is_some() {
            self.find().into_iter().collect()
        } else {
            self.installed().0
        }
    }

    fn installed(&self) -> (Vec<Toolchain>, Vec<Refused>) {
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        let system = self.system.iter().map(|folder| folder.join("rustc")).filter(|rustc| rustc.is_file());
        let rustup = self.rustup_compilers().into_iter().map(|rustc| (rustc, Origin::Rustup));
        for (rustc, origin) in rustup.chain(system.map(|rustc| (rustc, Origin::System))) {
            match inspect(&rustc, self.cargo_variable.as_deref(), origin) {
                Ok(toolchain) => found.push(toolchain),
                Err(reason) => refused.push(Refused { rustc, reason }),
            }
        }
        // rustup's before the system's, the newest of them first; the system's in the order of PATH.
        found.sort_by_key(|toolchain| match toolchain.origin {
            Origin::System => (1, std::cmp::Reverse(None)),
            _ => (0, std::cmp::Reverse(version(&toolchain.release))),
        });
        (found, refused)
    }

    fn rustup_compilers(&self) -> Vec<PathBuf> {
        let Some(home) = &self.rustup_home else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir(home.join("toolchains")) else { return Vec::new() };
        let mut compilers: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path().join("bin").join("rustc"))
            .filter(|rustc| rustc.is_file())
            .collect();
        compilers.sort();
        compilers
    }
}

impl Toolchain {
    /// The sources of the standard library's crates.
    pub fn library_sources(&self) -> PathBuf {
        library_sources(&self.sysroot)
    }

    /// Release and commit, as the header of a PTX file records them.
    pub fn version(&self) -> String {
        if self.commit.is_empty() {
            self.release.clone()
        } else {
            format!("{} ({})", self.release, self.commit)
        }
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Setting => "as asked for",
            Origin::Environment => "from the environment",
            Origin::Rustup => "rustup",
            Origin::System => "system",
        };
        write!(f, "rustc {}, LLVM {}, {} ({origin})", self.version(), self.llvm, self.rustc.display())
    }
}

fn rustc_in(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("bin").join("rustc") } else { path.to_owned() }
}

fn library_sources(sysroot: &Path) -> PathBuf {
    sysroot.join("lib").join("rustlib").join("src").join("rust")
}

/// Whether the compiler will do; the reason when it will not.
fn inspect(rustc: &Path, cargo: Option<&Path>, origin: Origin) -> Result<Toolchain, String> {
    let verbose = ask(rustc, &["-vV"])?;
    let field = |name: &str| {
        let line = verbose.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.filter(|value| *value != "unknown").unwrap_or_default().trim().to_owned()
    };
    let release = field("release");
    match version(&release) {
        None => return Err(format!("`-vV` does not say its release: {}", verbose.trim())),
        Some((major, minor, _)) if (major, minor) < MINIMUM => {
            return Err(format!("it is {release}, and {}.{} or later is needed", MINIMUM.0, MINIMUM.1));
        }
        Some(_) => {}
    }
    let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?.trim());
    let core = library_sources(&sysroot).join("library").join("core").join("Cargo.toml");
    if !core.is_file() {
        return Err(format!("the sources of `core` are missing ({} does not exist)", core.display()));
    }
    ask(rustc, &["--print", "target-cpus", "--target", TARGET])
        .map_err(|error| format!("its LLVM cannot compile for {TARGET}: {error}"))?;
    let cargo = match cargo {
        Some(cargo) => cargo.to_owned(),
        None => rustc.with_file_name("cargo"),
    };
    ask(&cargo, &["-V"])?;
    let commit = [field("commit-hash").chars().take(9).collect::<String>(), field("commit-date")];
    let commit = commit.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" ");
    Ok(Toolchain {
        rustc: rustc.to_owned(),
        cargo,
        sysroot,
        release,
        commit,
        llvm: field("LLVM version"),
        origin,
    })
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).env("RUSTC_BOOTSTRAP", "1");
    crate::compile::isolate(&mut command);
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{} {}`: {}", program.display(), arguments.join(" "), message.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `1.96.0-nightly` as `(1, 96, 0)`.
fn version(release: &str) -> Option<(u32, u32, u32)> {
    let mut parts = release.split(['-', '+']).next()?.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

pub(crate) fn no_toolchain_message(refused: &[Refused]) -> String {
    let mut text = String::from("no compiler on this machine can build for the GPU.\n");
    if !refused.is_empty() {
        text.push_str("Looked at:\n");
        for Refused { rustc, reason } in refused {
            let _ = writeln!(text, "  {}: {reason}", rustc.display());
        }
    }
    let _ = write!(
        text,
        "Install one. With rustup:\n  {RUSTUP_COMMAND}\nOn Debian:\n  {DEBIAN_COMMAND}\n\
         Or name a rustc that has the sources of `core` in {RUSTC_VARIABLE} (and its cargo in {CARGO_VARIABLE})."
    );
    text
}

/// The command that installs a device toolchain with rustup.
pub const RUSTUP_COMMAND: &str = "rustup toolchain install 1.96.0 --profile minimal --component rust-src";
/// The command that installs a device toolchain on Debian.
pub const DEBIAN_COMMAND: &str = "apt-get install --no-install-recommends rustc-web cargo-web rust-web-src";
