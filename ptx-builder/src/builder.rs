//! The builder: a kernel crate in, checked PTX files out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::arch::Arch;
use crate::check::{Report, check};
use crate::compile::{Compilation, recipe};
use crate::header::Header;
use crate::module::Module;
use crate::ptxas::{Assembly, Ptxas};
use crate::sources::KernelCrate;
use crate::store::Kernel;
use crate::toolchain::{Search, Toolchain};
use crate::{Error, module, store};

/// Compiles a kernel crate to PTX files.
///
/// What is not set is taken from the crate: its manifest may list families and architectures,
///
/// ```toml
/// [package.metadata.warpsmith.ptx]
/// linear = ["sm_80", "sm_90a"]
/// ```
///
/// and without such a list every Cargo feature but `default` is a family, for `sm_80`.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest_dir: PathBuf,
    families: Option<Vec<String>>,
    archs: Option<Vec<Arch>>,
    toolchain: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    ptxas: PtxasChoice,
    by_entry: bool,
}

#[derive(Clone, Debug)]
enum PtxasChoice {
    Find,
    This(Ptxas),
    None,
}

/// One PTX file to build.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The kernel family: a Cargo feature of the kernel crate.
    pub family: String,
    /// The architecture.
    pub arch: Arch,
}

/// A PTX file that was built.
#[derive(Clone, Debug)]
pub struct Artefact {
    /// The kernel family.
    pub family: String,
    /// The architecture.
    pub arch: Arch,
    /// Where the file is, or the folder of a [store](Builder::by_entry).
    pub path: PathBuf,
    /// The text, of all entries.
    pub text: String,
    /// What the header records.
    pub header: Header,
    /// Its entries; without violations, or the build would have failed.
    pub report: Report,
    /// What ptxas says, for this architecture first and then for later ones that the file runs on; empty when there is no ptxas,
    /// so that spills and stacks are not known.
    pub assemblies: Vec<Assembly>,
    /// The compiler's warnings.
    pub warnings: String,
}

impl Builder {
    /// A builder for the kernel crate in `manifest_dir`.
    pub fn new(manifest_dir: impl Into<PathBuf>) -> Self {
        Self {
            manifest_dir: manifest_dir.into(),
            families: None,
            archs: None,
            toolchain: None,
            out_dir: None,
            target_dir: None,
            ptxas: PtxasChoice::Find,
            by_entry: false,
        }
    }

    /// The kernel families to build: Cargo features of the kernel crate.
    #[must_use]
    pub fn families<S: Into<String>>(mut self, families: impl IntoIterator<Item = S>) -> Self {
        self.families = Some(families.into_iter().map(Into::into).collect());
        self
    }

    /// The architectures to build for.
    #[must_use]
    pub fn archs(mut self, archs: impl IntoIterator<Item = Arch>) -> Self {
        self.archs = Some(archs.into_iter().collect());
        self
    }

    /// The rustc to compile with, or the folder of a toolchain; without it, one is searched for.
    #[must_use]
    pub fn toolchain(mut self, rustc: Option<PathBuf>) -> Self {
        self.toolchain = rustc;
        self
    }

    /// Where the files go; by default the folder `ptx` beside the crate's manifest.
    #[must_use]
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(folder.into());
        self
    }

    /// Where the compiler's intermediate files go; by default a folder in the crate's own target folder.
    ///
    /// Each workspace has a folder of its own in it: in one, Cargo would take a crate for that of the same name in another workspace.
    #[must_use]
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(folder.into());
        self
    }

    /// The assembler to check with, or `None` to check without; by default one is searched for.
    #[must_use]
    pub fn ptxas(mut self, ptxas: Option<Ptxas>) -> Self {
        self.ptxas = ptxas.map_or(PtxasChoice::None, PtxasChoice::This);
        self
    }

    /// Has [`Builder::build`] write a folder for each family and architecture, with a text for each entry, those of a family compressed
    /// together: see [`store`].
    ///
    /// Otherwise it writes one text for each, with all entries in it.
    #[must_use]
    pub fn by_entry(mut self, by_entry: bool) -> Self {
        self.by_entry = by_entry;
        self
    }

    /// The files that [`Builder::build`] writes.
    ///
    /// # Errors
    ///
    /// [`Error::Family`] when the crate lacks a family that was asked for; errors of reading its manifest.
    pub fn targets(&self) -> Result<Vec<Target>, Error> {
        self.targets_of(&KernelCrate::read(&self.manifest_dir)?)
    }

    /// The files that the crate asks for, whatever families and architectures this builder was told.
    ///
    /// # Errors
    ///
    /// Errors of reading the crate's manifest.
    pub fn declared_targets(&self) -> Result<Vec<Target>, Error> {
        Self::new(&self.manifest_dir).targets()
    }

    /// The hash that an up-to-date file for `target` has in its header. Needs no device toolchain.
    ///
    /// # Errors
    ///
    /// Errors of reading the crate's manifest and sources.
    pub fn source_hash(&self, target: &Target) -> Result<String, Error> {
        let sources = KernelCrate::read(&self.manifest_dir)?;
        sources.hash(&target.recipe(&target.features(&sources)))
    }

    /// Compiles, checks and writes every file, as many families at a time as there are cores, up to eight.
    ///
    /// # Errors
    ///
    /// No toolchain, a compile error, PTX that must not be used, or a file that cannot be written. No file is written for a
    /// target that fails, nor, in a [store](Builder::by_entry), for its family; files of targets before it are. Of several errors, that of
    /// the first family is returned.
    pub fn build(&self) -> Result<Vec<Artefact>, Error> {
        let sources = KernelCrate::read(&self.manifest_dir)?;
        let targets = self.targets_of(&sources)?;
        let toolchain = Search::default().with_setting(self.toolchain.clone()).find()?;
        let ptxas = match &self.ptxas {
            PtxasChoice::Find => Ptxas::find(),
            PtxasChoice::This(ptxas) => Some(ptxas.clone()),
            PtxasChoice::None => None,
        };
        let folder = self.folder(&sources);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let intermediate =
            self.target_dir.clone().unwrap_or_else(|| sources.target_dir.join("warpsmith-builder"));
        let intermediate = intermediate.join(sources.workspace_name());
        let build = Build {
            sources: &sources,
            toolchain: &toolchain,
            ptxas: ptxas.as_ref(),
            intermediate,
            folder,
            by_entry: self.by_entry,
        };
        let families: Vec<&[Target]> = targets.chunk_by(|one, next| one.family == next.family).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let done = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for worker in 0..cores.min(families.len()) {
                let (build, families, next, has_failed, done) =
                    (&build, &families, &next, &has_failed, &done);
                scope.spawn(move || {
                    while !has_failed.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(family) = families.get(number) else { break };
                        let built = build.family(family, worker);
                        has_failed.fetch_or(built.is_err(), Ordering::Relaxed);
                        done.lock().unwrap_or_else(PoisonError::into_inner).insert(number, built);
                    }
                });
            }
        });
        let mut artefacts = Vec::new();
        for built in done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values() {
            artefacts.extend(built?);
        }
        Ok(artefacts)
    }

    /// Where the files go.
    ///
    /// # Errors
    ///
    /// Errors of reading the crate's manifest.
    pub fn output_folder(&self) -> Result<PathBuf, Error> {
        Ok(self.folder(&KernelCrate::read(&self.manifest_dir)?))
    }

    fn folder(&self, sources: &KernelCrate) -> PathBuf {
        let beside = || sources.manifest.with_file_name("ptx");
        self.out_dir.clone().unwrap_or_else(beside)
    }

    fn targets_of(&self, sources: &KernelCrate) -> Result<Vec<Target>, Error> {
        let declared: Vec<Target> = if sources.declared.is_empty() {
            let all = sources.features.iter().filter(|feature| *feature != TURING_FEATURE);
            all.map(|family| Target { family: family.clone(), arch: Arch::SM_80 }).collect()
        } else {
            sources
                .declared
                .iter()
                .map(|(family, arch)| Target { family: family.clone(), arch: *arch })
                .collect()
        };
        let families = match &self.families {
            Some(families) => families.clone(),
            None => {
                let mut families: Vec<String> = declared.iter().map(|target| target.family.clone()).collect();
                families.dedup();
                families
            }
        };
        let mut targets = Vec::new();
        let mut seen = BTreeSet::new();
        // Two workers must not write the files of one family.
        for family in families.into_iter().filter(|family| seen.insert(family.clone())) {
            if !sources.features.contains(&family) {
                return Err(Error::Family {
                    package: sources.package.clone(),
                    family,
                    features: sources.features.clone(),
                });
            }
            let mut archs: Vec<Arch> = match &self.archs {
                Some(archs) => archs.clone(),
                None => declared
                    .iter()
                    .filter(|target| target.family == family)
                    .map(|target| target.arch)
                    .collect(),
            };
            if archs.is_empty() {
                archs.push(Arch::SM_80);
            }
            targets.extend(archs.into_iter().map(|arch| Target { family: family.clone(), arch }));
        }
        Ok(targets)
    }
}

/// Families that are compiled at a time: each has a target folder of its own, with `core` in it.
const MOST_WORKERS: usize = 8;

/// The feature that a kernel crate has for architectures before sm_80, in which it names `warpsmith-dsl/turing`.
const TURING_FEATURE: &str = "turing";

impl Target {
    /// The file's name, e.g. `linear.sm_80.ptx`.
    pub fn file_name(&self) -> String {
        format!("{}.ptx", self.folder_name())
    }

    /// The name of the folder of a [`store`], e.g. `linear.sm_80`.
    pub fn folder_name(&self) -> String {
        format!("{}.{}", self.family, self.arch)
    }

    /// The kernel crate's features that it is built with: its family, and for architectures before sm_80 [`TURING_FEATURE`], if the
    /// crate has that.
    fn features(&self, sources: &KernelCrate) -> String {
        let has_turing = sources.features.iter().any(|feature| feature == TURING_FEATURE);
        match has_turing && self.arch < Arch::SM_80 {
            true => format!("{},{TURING_FEATURE}", self.family),
            false => self.family.clone(),
        }
    }

    /// The error that its text is not what it should be.
    fn not_ptx(&self, reason: String) -> Error {
        Error::Ptx { family: self.family.clone(), arch: self.arch.to_string(), reason }
    }

    fn recipe(&self, features: &str) -> String {
        format!("--features {features} {}", recipe(self.arch, self.arch.ptx_version()))
    }
}

/// Finds entries that are declared to be of another family than the one that is compiled: a host would look for them in its PTX.
fn check_families(ptx: &str, family: &str) -> Result<(), String> {
    let module = Module::parse(ptx)?;
    match module.families().iter().find(|(_, stated)| *stated != family) {
        Some((entry, stated)) => Err(format!(
            "entry `{entry}` is declared with `family = {stated}`, and is compiled by the Cargo feature `{family}`: give both \
             one name"
        )),
        None => Ok(()),
    }
}

/// What the builds of all targets share.
struct Build<'a> {
    sources: &'a KernelCrate,
    toolchain: &'a Toolchain,
    ptxas: Option<&'a Ptxas>,
    /// Has the compiler's target folders.
    intermediate: PathBuf,
    /// Where the results go.
    folder: PathBuf,
    by_entry: bool,
}

/// A target that rustc is done with.
struct Text<'a> {
    target: &'a Target,
    header: Header,
    body: String,
    warnings: String,
}

impl Build<'_> {
    /// Compiles the targets of a family, checks them and writes them. Each worker has a target folder of its own, since Cargo locks
    /// the one it works in.
    fn family(&self, targets: &[Target], worker: usize) -> Result<Vec<Artefact>, Error> {
        let folder = self.intermediate.join(worker.to_string());
        let texts = targets.iter().map(|target| self.compile(target, &folder));
        self.judge_and_write(texts.collect::<Result<_, _>>()?)
    }

    fn compile<'t>(&self, target: &'t Target, target_dir: &Path) -> Result<Text<'t>, Error> {
        let Self { sources, toolchain, .. } = self;
        let features = target.features(sources);
        let recipe = target.recipe(&features);
        let hash = sources.hash(&recipe)?;
        let compiled = Compilation {
            toolchain,
            package: &sources.package,
            manifest: &sources.manifest,
            workspace: &sources.workspace,
            target_dir,
            features: &features,
            sources: &hash,
            arch: target.arch,
            ptx_version: target.arch.ptx_version(),
        }
        .run()?;
        let header = Header {
            family: target.family.clone(),
            arch: target.arch.to_string(),
            rustc: toolchain.version(),
            llvm: toolchain.llvm.clone(),
            builder: env!("CARGO_PKG_VERSION").to_owned(),
            sources: hash,
            recipe,
        };
        check_families(&compiled.ptx, &target.family).map_err(|reason| target.not_ptx(reason))?;
        let body =
            module::finish(&compiled.ptx, &sources.folders()).map_err(|reason| target.not_ptx(reason))?;
        Ok(Text { target, header, body, warnings: compiled.warnings })
    }

    /// Checks the targets of a family, and writes them.
    fn judge_and_write(&self, texts: Vec<Text<'_>>) -> Result<Vec<Artefact>, Error> {
        let built = texts.into_iter().map(|text| self.judge(text)).collect::<Result<Vec<_>, _>>()?;
        let contents: Vec<store::Content> = built
            .iter()
            .filter_map(|(Artefact { header, .. }, kernels)| {
                Some(store::Content { header: header.clone(), kernels: kernels.clone()? })
            })
            .collect();
        // The texts of a family's architectures are compressed together.
        store::write(&self.folder, &contents)?;
        Ok(built.into_iter().map(|(artefact, _)| artefact).collect())
    }

    /// Checks a target. Writes its file, or returns the kernels that are to go to a store.
    fn judge(&self, text: Text<'_>) -> Result<(Artefact, Option<Vec<Kernel>>), Error> {
        let Self { ptxas, intermediate, folder, by_entry, .. } = self;
        let Text { target, header, body, warnings } = text;
        let text = format!("{header}\n{body}");
        let report = check(&text);
        let mut violations = report.violations.clone();
        let mut assemblies = Vec::new();
        if let Some(ptxas) = ptxas {
            for arch in ptxas.architectures(target.arch) {
                assemblies.push(ptxas.assemble(&text, arch)?);
            }
        }
        violations.extend(assemblies.iter().flat_map(|assembly| assembly.violations.clone()));
        if !violations.is_empty() {
            // The text that the line numbers refer to, for whoever has to find out why.
            let rejected = intermediate.join(target.file_name());
            std::fs::write(&rejected, &text).map_err(Error::io("write", &rejected))?;
            return Err(Error::Refused {
                family: target.family.clone(),
                arch: target.arch.to_string(),
                rejected,
                violations,
            });
        }
        let (path, kernels) = if *by_entry {
            let module = Module::parse(&body).map_err(|reason| target.not_ptx(reason))?;
            (folder.join(target.folder_name()), Some(module.kernels()))
        } else {
            let path = folder.join(target.file_name());
            std::fs::write(&path, &text).map_err(Error::io("write", &path))?;
            (path, None)
        };
        let artefact = Artefact {
            family: target.family.clone(),
            arch: target.arch,
            path,
            text,
            header,
            report,
            assemblies,
            warnings,
        };
        Ok((artefact, kernels))
    }
}
