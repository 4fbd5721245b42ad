//! Kernels and their host program in one package: what the package's build script calls.
//!
//! A file of kernels is a module of the host program, which type-checks it and takes its launches from it. For the device it is a
//! crate of its own: [`KernelFiles`] writes a package around it, compiles that with [`Builder`], and leaves the PTX in
//! `OUT_DIR`, where `warpsmith::include_kernels!` finds it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::sources::{KernelCrate, metadata, package};
use crate::toolchain::{CARGO_VARIABLE, RUSTC_VARIABLE};
use crate::{Arch, Artefact, Builder, Error, PTXAS_VARIABLE};

/// The device library, on which every file of kernels depends.
const DEVICE_LIBRARY: &str = "warpsmith-dsl";

/// Builds files of kernels in the sources of a host program.
///
/// Each file is compiled by itself: it may have submodules, and use the package's dependencies that are named by
/// [`dependency`](Self::dependency), but no other part of the host program. Versions of dependencies are those of the
/// package's lock file.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct KernelFiles {
    files: Vec<(PathBuf, Vec<Arch>)>,
    dependencies: BTreeSet<String>,
}

impl KernelFiles {
    /// No file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file of kernels, relative to the package's folder, for `sm_80` and all later architectures.
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.file_for(path, [Arch::SM_80])
    }

    /// Adds a file of kernels for these architectures. A program takes the latest of them that its device runs.
    pub fn file_for(mut self, path: impl Into<PathBuf>, archs: impl IntoIterator<Item = Arch>) -> Self {
        self.files.push((path.into(), archs.into_iter().collect()));
        self
    }

    /// Lets the kernels use a dependency of the package, which must be `no_std`. `warpsmith-dsl` is always among them.
    pub fn dependency(mut self, name: impl Into<String>) -> Self {
        self.dependencies.insert(name.into());
        self
    }

    /// Compiles and checks every file, writes its PTX to `OUT_DIR`, and tells Cargo when to run the build script again.
    /// Warnings are left to the host's compilation of the same file.
    ///
    /// # Errors
    ///
    /// [`Error::NoToolchain`] with the commands that install a device toolchain; [`Error::BuildScript`] outside a build
    /// script, for a file that is not there or a dependency that the package lacks; errors of [`Builder::build`].
    pub fn build(&self) -> Result<(), Error> {
        for name in [RUSTC_VARIABLE, CARGO_VARIABLE, PTXAS_VARIABLE] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let folder = variable("CARGO_MANIFEST_DIR")?;
        let out = variable("OUT_DIR")?;
        let manifest = folder.join("Cargo.toml");
        let manifest = manifest.canonicalize().map_err(Error::io("find", &manifest))?;
        let files = self.files.iter().map(|(path, archs)| KernelFile::find(&folder, path, archs));
        let files: Vec<KernelFile> = files.collect::<Result<_, _>>()?;
        expect_different_names(&files)?;
        let intermediate = target_folder(&out).join("warpsmith-builder");
        let workspace = DeviceWorkspace::of(&manifest, intermediate.clone());
        workspace.write(&manifest, &files, &self.dependencies)?;
        for file in &files {
            let member = workspace.folder.join(&file.name);
            let artefacts = Builder::new(&member).out_dir(&out).target_dir(&intermediate).build()?;
            write_if_changed(&out.join(format!("{}.modules.rs", file.name)), &modules(&artefacts))?;
            // Versions and features of dependencies are in the manifests and in the lock file.
            let folders = KernelCrate::read(&member)?.source_folders();
            let manifests: Vec<PathBuf> =
                folders.iter().map(|folder| folder.with_file_name("Cargo.toml")).collect();
            let locks =
                folder.ancestors().map(|folder| folder.join("Cargo.lock")).find(|lock| lock.is_file());
            let all = file.sources().into_iter().chain(folders).chain(manifests).chain(locks);
            let sources = all.chain([manifest.clone()]);
            for path in sources.filter(|path| !path.starts_with(&workspace.folder)) {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
        Ok(())
    }
}

/// Each file is a module of its own name.
fn expect_different_names(files: &[KernelFile]) -> Result<(), Error> {
    for (index, second) in files.iter().enumerate() {
        if let Some(first) = files[..index].iter().find(|first| first.name == second.name) {
            let path =
                |file: &KernelFile| file.folder.join(format!("{}.rs", file.name)).display().to_string();
            let (first, second) = (path(first), path(second));
            let reason = format!("`{second}` has the name of `{first}`: expected files of different names");
            return Err(Error::BuildScript { reason });
        }
    }
    Ok(())
}

/// A file of kernels.
struct KernelFile {
    /// Its module's name.
    name: String,
    /// The folder that it is in.
    folder: PathBuf,
    archs: Vec<Arch>,
}

impl KernelFile {
    fn find(package: &Path, path: &Path, archs: &[Arch]) -> Result<Self, Error> {
        let refused = |reason: &str| Error::BuildScript { reason: format!("`{}` {reason}", path.display()) };
        let full = package.join(path);
        let full = full.canonicalize().map_err(Error::io("find", &full))?;
        let stem = full.file_stem().and_then(|stem| stem.to_str()).filter(|_| full.is_file());
        let name = stem.filter(|name| is_module_name(name)).ok_or_else(|| {
            refused("is no module: expected a Rust file named by lower-case letters, digits and `_`")
        })?;
        if archs.is_empty() {
            return Err(refused("has no architecture to be built for: expected one or more"));
        }
        let folder = full.parent().unwrap_or(package).to_owned();
        Ok(Self { name: name.to_owned(), folder, archs: archs.to_vec() })
    }

    /// The file, and the folder of its submodules if it has any.
    fn sources(&self) -> Vec<PathBuf> {
        let (file, folder) = (self.folder.join(format!("{}.rs", self.name)), self.folder.join(&self.name));
        if folder.is_dir() { vec![file, folder] } else { vec![file] }
    }

    /// The manifest of the package that is made of it.
    fn manifest(&self, dependencies: &str) -> String {
        let name = &self.name;
        let archs: Vec<String> = self.archs.iter().map(|arch| format!("\"{arch}\"")).collect();
        let submodules = if self.folder.join(name).is_dir() { format!(", {name:?}") } else { String::new() };
        format!(
            "[package]\nname = \"device-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
             [features]\n{name} = []\n\n\
             [package.metadata.warpsmith]\nptx = {{ {name} = [{}] }}\n\
             sources = {{ root = {:?}, paths = [\"{name}.rs\"{submodules}] }}\n\n\
             [dependencies]\n{dependencies}",
            archs.join(", "),
            self.folder,
        )
    }

    /// The root of the crate that is made of it. The file is a module as on the host, so that paths mean the same there.
    fn root(&self) -> String {
        let name = &self.name;
        format!(
            "//! Written by warpsmith-builder.\n#![no_std]\n#![allow(dead_code)]\n\
             #![feature(abi_ptx, asm_experimental_arch)]\n\n\
             warpsmith_dsl::device_crate!();\n\n\
             #[path = {:?}]\nmod sources {{\n    pub mod {name};\n}}\npub use sources::{name};\n",
            self.folder,
        )
    }
}

/// Whether a module and a package can be called so.
fn is_module_name(name: &str) -> bool {
    let allowed =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.chars().all(allowed)
}

/// The packages that are made of a package's files of kernels. They share what is compiled of their dependencies.
struct DeviceWorkspace {
    folder: PathBuf,
}

impl DeviceWorkspace {
    /// Its place is the same for all profiles of the package.
    fn of(manifest: &Path, intermediate: PathBuf) -> Self {
        let digest = Sha256::digest(manifest.as_os_str().as_encoded_bytes());
        let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { folder: intermediate.join(format!("kernels-{digits}")) }
    }

    fn write(&self, manifest: &Path, files: &[KernelFile], wanted: &BTreeSet<String>) -> Result<(), Error> {
        let metadata = metadata(manifest)?;
        let host = package(&metadata, manifest).ok_or_else(|| Error::Manifest {
            path: manifest.to_owned(),
            reason: "it is a workspace only".into(),
        })?;
        let dependencies = dependencies(host, wanted)?;
        let members: Vec<String> = files.iter().map(|file| format!("{:?}", file.name)).collect();
        let workspace = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n", members.join(", "));
        for file in files {
            let member = self.folder.join(&file.name);
            write_if_changed(&member.join("Cargo.toml"), &file.manifest(&dependencies))?;
            write_if_changed(&member.join("src/lib.rs"), &file.root())?;
        }
        write_if_changed(&self.folder.join("Cargo.toml"), &workspace)?;
        // The host's versions, where there is none yet: Cargo drops from it what nobody here uses.
        let lock = metadata["workspace_root"].as_str().map(|root| Path::new(root).join("Cargo.lock"));
        let own = self.folder.join("Cargo.lock");
        if let Some(lock) = lock.filter(|lock| lock.is_file() && is_newer(lock, &own)) {
            std::fs::copy(&lock, &own).map_err(Error::io("copy", &lock))?;
        }
        Ok(())
    }
}

/// Whether `path` was written after `other`, or the other is not there.
fn is_newer(path: &Path, other: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    time(other).is_none_or(|other| time(path).is_some_and(|own| own > other))
}

/// The lines of a manifest for the package's dependencies that kernels use.
fn dependencies(host: &Value, wanted: &BTreeSet<String>) -> Result<String, Error> {
    let mut lines = String::new();
    for name in wanted.iter().map(String::as_str).chain([DEVICE_LIBRARY]).collect::<BTreeSet<_>>() {
        let declared = host["dependencies"].as_array().into_iter().flatten();
        let found = declared.filter(|dependency| dependency["kind"].is_null());
        let Some(found) = found.into_iter().find(|dependency| dependency["name"] == name) else {
            let package = host["name"].as_str().unwrap_or_default();
            let reason = format!("`{package}` does not depend on `{name}`: add it to its `[dependencies]`");
            return Err(Error::BuildScript { reason });
        };
        let text = |key: &str| found[key].as_str();
        let place = match (text("path"), text("source").and_then(|source| source.strip_prefix("git+"))) {
            (Some(path), _) => format!("path = {path:?}"),
            (None, Some(source)) => git(source),
            (None, None) => format!("version = {:?}", text("req").unwrap_or("*")),
        };
        let features = found["features"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let features: Vec<String> = features.map(|feature| format!("{feature:?}")).collect();
        let defaults = found["uses_default_features"].as_bool().unwrap_or(true);
        let _ = writeln!(
            lines,
            "{name} = {{ {place}, default-features = {defaults}, features = [{}] }}",
            features.join(", ")
        );
    }
    Ok(lines)
}

/// `https://host/repository?branch=main` as the keys of a dependency.
fn git(source: &str) -> String {
    let source = source.split('#').next().unwrap_or(source);
    let (address, query) = source.split_once('?').unwrap_or((source, ""));
    let mut keys = format!("git = {address:?}");
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let _ = write!(keys, ", {key} = {value:?}");
    }
    keys
}

/// What `warpsmith::include_kernels!` includes: the texts, each with its architecture.
fn modules(artefacts: &[Artefact]) -> String {
    let modules = artefacts.iter().map(|artefact| {
        let path = artefact.path.display().to_string();
        format!("(\"{}\", include_str!({path:?})),\n", artefact.arch)
    });
    format!("&[\n{}]\n", modules.collect::<String>())
}

/// The target folder that a build script's `OUT_DIR` is in; that itself, where no folder above is known for one.
fn target_folder(out: &Path) -> PathBuf {
    let found = out.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    found.unwrap_or(out).to_owned()
}

fn variable(name: &'static str) -> Result<PathBuf, Error> {
    let reason = || format!("the variable `{name}`, which Cargo sets for build scripts, is missing");
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| Error::BuildScript { reason: reason() })
}

fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    std::fs::write(path, text).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(dependency: &str) -> Value {
        serde_json::from_str(&format!(r#"{{ "name": "program", "dependencies": [{dependency}] }}"#)).unwrap()
    }

    fn lines(dependency: &str) -> String {
        dependencies(&host(dependency), &BTreeSet::new()).unwrap()
    }

    #[test]
    fn the_device_library_comes_from_where_the_host_has_it() {
        let version = r#"{ "name": "warpsmith-dsl", "kind": null, "req": "^0.1", "features": [],
            "uses_default_features": true, "source": "registry+https://github.com/rust-lang/crates.io-index" }"#;
        assert!(lines(version).starts_with("warpsmith-dsl = { version = \"^0.1\", default-features = true"));
        let path = r#"{ "name": "warpsmith-dsl", "kind": null, "req": "*", "path": "/w/dsl", "source": null,
            "features": ["a"], "uses_default_features": false }"#;
        let expected =
            "warpsmith-dsl = { path = \"/w/dsl\", default-features = false, features = [\"a\"] }\n";
        assert_eq!(lines(path), expected);
        let git = r#"{ "name": "warpsmith-dsl", "kind": null, "req": "*",
            "source": "git+https://example.org/w?branch=main#0123", "features": [] }"#;
        assert!(lines(git).contains("git = \"https://example.org/w\", branch = \"main\""));
    }

    #[test]
    fn a_dependency_that_the_host_lacks_is_named() {
        for lacking in ["", r#"{ "name": "warpsmith-dsl", "kind": "build", "req": "*" }"#] {
            let error = dependencies(&host(lacking), &BTreeSet::new()).unwrap_err().to_string();
            assert!(error.contains("`program`") && error.contains("`warpsmith-dsl`"), "{error}");
        }
    }

    #[test]
    fn files_that_are_no_modules_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["kernels.rs", "Kernels.rs", "a-b.rs", "2d.rs"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let find = |name: &str, archs: &[Arch]| KernelFile::find(folder.path(), Path::new(name), archs);
        assert_eq!(
            find("kernels.rs", &[Arch::SM_80]).map_err(|error| error.to_string()).unwrap().name,
            "kernels"
        );
        for name in ["Kernels.rs", "a-b.rs", "2d.rs", ""] {
            let error = find(name, &[Arch::SM_80]).err().unwrap().to_string();
            assert!(error.contains("is no module"), "{error}");
        }
        assert!(find("kernels.rs", &[]).err().unwrap().to_string().contains("architecture"));
        assert!(find("other.rs", &[Arch::SM_80]).err().unwrap().to_string().contains("other.rs"));
    }

    #[test]
    fn the_target_folder_is_the_one_that_cargo_has_marked() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("target/debug/build/program-0123/out");
        std::fs::create_dir_all(&out).unwrap();
        assert_eq!(target_folder(&out), out);
        std::fs::write(folder.path().join("target/CACHEDIR.TAG"), "").unwrap();
        assert_eq!(target_folder(&out), folder.path().join("target"));
    }
}
