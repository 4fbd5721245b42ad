//! Which sources a kernel crate's PTX is made from, and their hash.
//!
//! The sources are the crate and every path dependency that it reaches, procedural macros included: their manifests, build
//! scripts and `src` folders. The hash tells without any device toolchain whether a committed PTX file is stale. It is the same on
//! every machine: file names relative to their package, `/` as separator, line ends as `\n`.
//!
//! A file of the kernel crate that begins with `#![cfg(not(target_arch = "nvptx64"))]`, after comments, is empty for the compiler of the
//! PTX, and no source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::Error;
use crate::arch::Arch;

/// The first line of code in a module of the kernel crate that is compiled for the host only.
const HOST_ONLY: &str = "#![cfg(not(target_arch = \"nvptx64\"))]";

/// A kernel crate and what it is built from.
#[derive(Clone, Debug)]
pub struct KernelCrate {
    /// The package's name.
    pub package: String,
    /// Its manifest.
    pub manifest: PathBuf,
    /// The root of its workspace.
    pub workspace: PathBuf,
    /// Cargo's target folder for it.
    pub target_dir: PathBuf,
    /// Its Cargo features without `default`, in alphabetical order.
    pub features: Vec<String>,
    /// The families and architectures that its manifest lists under `[package.metadata.warpsmith.ptx]`.
    pub declared: Vec<(String, Arch)>,
    files: BTreeMap<String, PathBuf>,
    folders: Vec<(PathBuf, String)>,
}

impl KernelCrate {
    /// Reads the package in `folder` (or of the manifest `folder`), and finds its path dependencies.
    ///
    /// # Errors
    ///
    /// [`Error::Manifest`] when there is no package; [`Error::Command`] when Cargo cannot read a manifest; [`Error::Arch`] when
    /// the manifest lists an architecture that is none.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let manifest =
            if folder.ends_with("Cargo.toml") { folder.to_owned() } else { folder.join("Cargo.toml") };
        let manifest = manifest.canonicalize().map_err(Error::io("find", &manifest))?;
        let metadata = metadata(&manifest)?;
        let text = |value: &Value| value.as_str().map(PathBuf::from);
        let root = package(&metadata, &manifest).ok_or_else(|| Error::Manifest {
            path: manifest.clone(),
            reason: "it is a workspace only".into(),
        })?;
        let name = root["name"].as_str().unwrap_or_default().to_owned();
        let features = root["features"].as_object().into_iter().flat_map(|features| features.keys());
        let mut read = Self {
            package: name,
            workspace: text(&metadata["workspace_root"]).unwrap_or_default(),
            target_dir: text(&metadata["target_directory"]).unwrap_or_default(),
            features: features.filter(|name| *name != "default").cloned().collect(),
            declared: declared(root)?,
            files: BTreeMap::new(),
            folders: Vec::new(),
            manifest: manifest.clone(),
        };
        let mut seen = BTreeSet::new();
        read.collect(&metadata, &manifest, &mut seen)?;
        read.remove_host_only()?;
        read.add_sources(&root["metadata"]["warpsmith"]["sources"])?;
        Ok(read)
    }

    /// Adds the sources that are outside the package, as `[package.metadata.warpsmith.sources]` lists them: files and folders, relative to a
    /// folder `root`.
    fn add_sources(&mut self, sources: &Value) -> Result<(), Error> {
        let Some(root) = sources["root"].as_str().map(PathBuf::from) else { return Ok(()) };
        for path in sources["paths"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let path = root.join(path);
            if path.is_dir() {
                self.add_folder("sources", &root, &path)?;
            } else {
                self.add("sources", &root, &path)?;
            }
        }
        self.folders.push((root, "src/".into()));
        Ok(())
    }

    /// Leaves out what the kernel crate's library has for the host only. A path dependency may be compiled for the host, as a procedural
    /// macro, and still change the PTX; so may what a build script includes.
    fn remove_host_only(&mut self) -> Result<(), Error> {
        let source = self.manifest.with_file_name("src");
        let mut host_only = BTreeSet::new();
        for path in self.files.values().filter(|path| path.starts_with(&source)) {
            let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
            if str::from_utf8(&bytes).is_ok_and(is_host_only) {
                host_only.insert(path.clone());
            }
        }
        self.files.retain(|_, path| !host_only.contains(path));
        Ok(())
    }

    /// A name for the workspace that no other workspace on this machine has: its folder's name and a hash of its path.
    pub fn workspace_name(&self) -> String {
        let folder = self.workspace.file_name().unwrap_or_default().to_string_lossy();
        let digest = Sha256::digest(self.workspace.as_os_str().as_encoded_bytes());
        let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{folder}-{digits}")
    }

    /// Every file that the hash covers.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.values().map(PathBuf::as_path)
    }

    /// The folders of the sources of the package and of the path dependencies that it reaches.
    pub fn source_folders(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|(folder, _)| folder.join("src")).filter(|folder| folder.is_dir()).collect()
    }

    /// The folders that sources are in, with what stands for each in the PTX: nothing for the workspace, the package's name for
    /// a package outside.
    pub fn folders(&self) -> Vec<(PathBuf, String)> {
        let workspace = [(self.workspace.clone(), String::new())];
        workspace.into_iter().chain(self.folders.iter().cloned()).collect()
    }

    /// The hash of the sources and of the recipe (features and flags) they are compiled by, as `sha256:` and 64 digits.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when a source cannot be read.
    pub fn hash(&self, recipe: &str) -> Result<String, Error> {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(recipe.as_bytes());
        for (name, path) in &self.files {
            add(name.as_bytes());
            let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
            add(&without_carriage_returns(&bytes));
        }
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("sha256:{digits}"))
    }

    fn collect(
        &mut self,
        metadata: &Value,
        manifest: &Path,
        seen: &mut BTreeSet<PathBuf>,
    ) -> Result<(), Error> {
        if !seen.insert(manifest.to_owned()) {
            return Ok(());
        }
        // A path dependency outside the workspace is not in its metadata.
        let own;
        let found = match package(metadata, manifest) {
            Some(found) => found,
            None => {
                own = self::metadata(manifest)?;
                package(&own, manifest).ok_or_else(|| Error::Manifest {
                    path: manifest.to_owned(),
                    reason: "it is a path dependency, but no package".into(),
                })?
            }
        };
        let name = found["name"].as_str().unwrap_or_default();
        let folder = manifest.parent().unwrap_or(manifest);
        self.folders.push((folder.to_owned(), format!("{name}/")));
        self.add(name, folder, manifest)?;
        if folder.join("build.rs").is_file() {
            self.add(name, folder, &folder.join("build.rs"))?;
        }
        self.add_folder(name, folder, &folder.join("src"))?;
        for dependency in found["dependencies"].as_array().into_iter().flatten() {
            let (Some(path), false) = (dependency["path"].as_str(), dependency["kind"] == "dev") else {
                continue;
            };
            let manifest = Path::new(path).join("Cargo.toml");
            let manifest = manifest.canonicalize().map_err(Error::io("find", &manifest))?;
            self.collect(metadata, &manifest, seen)?;
        }
        Ok(())
    }

    fn add_folder(&mut self, package: &str, root: &Path, folder: &Path) -> Result<(), Error> {
        for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
            let path = entry.map_err(Error::io("read", folder))?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden {
                continue;
            }
            if path.is_dir() {
                self.add_folder(package, root, &path)?;
            } else {
                self.add(package, root, &path)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, package: &str, root: &Path, file: &Path) -> Result<(), Error> {
        let relative = file.strip_prefix(root).map_err(|_| Error::Manifest {
            path: file.to_owned(),
            reason: format!("it is outside its package's folder {}", root.display()),
        })?;
        let parts: Vec<_> = relative.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        self.files.insert(format!("{package}/{}", parts.join("/")), file.to_owned());
        Ok(())
    }
}

/// `[package.metadata.warpsmith.ptx]`: a family's name and a list of architectures a line.
fn declared(package: &Value) -> Result<Vec<(String, Arch)>, Error> {
    let mut declared = Vec::new();
    for (family, archs) in package["metadata"]["warpsmith"]["ptx"].as_object().into_iter().flatten() {
        for arch in archs.as_array().into_iter().flatten() {
            let text = arch.as_str().map_or_else(|| arch.to_string(), str::to_owned);
            declared.push((family.clone(), text.parse()?));
        }
    }
    Ok(declared)
}

pub(crate) fn package<'a>(metadata: &'a Value, manifest: &Path) -> Option<&'a Value> {
    metadata["packages"].as_array()?.iter().find(|package| {
        let path = package["manifest_path"].as_str().map(Path::new);
        path.is_some_and(|path| path == manifest || path.canonicalize().is_ok_and(|path| path == manifest))
    })
}

/// What the manifests say. Without dependencies Cargo needs no network and writes no lock file.
pub(crate) fn metadata(manifest: &Path) -> Result<Value, Error> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
    let line = crate::compile::display(&command);
    let failed = |output: String| Error::Command { command: line.clone(), output };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Answer { command: line, reason: format!("no JSON: {error}") })
}

/// Whether the first line of code is [`HOST_ONLY`].
fn is_host_only(text: &str) -> bool {
    let mut code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    code.next() == Some(HOST_ONLY)
}

fn without_carriage_returns(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(bytes.len());
    for (index, &byte) in bytes.iter().enumerate() {
        if byte != b'\r' || bytes.get(index + 1) != Some(&b'\n') {
            kept.push(byte);
        }
    }
    kept
}
