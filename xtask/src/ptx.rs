//! `xtask ptx`: compiles the kernels to the PTX that ships, checks that what is committed is what the sources give, or shows it.
//!
//! The PTX is a [`store`](mod@store): a folder for each family and architecture, with a compressed module for each entry.
//!
//! The check is in two steps. The hash of the sources stands in each folder's index, and comparing it needs no device toolchain:
//! `xtask test` does it everywhere, and only warns, since a changed comment changes the hash too. A rebuild compares the files
//! themselves, which only means something with the compiler that the index names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use warpsmith_builder::store::{self, Index};
use warpsmith_builder::{Arch, Artefact, Builder, Header, Ptxas, Target, Toolchain, toolchain};

/// Compile the kernels to the PTX that ships, check that, or show it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Compare with the committed files instead of writing them.
    #[arg(long)]
    check: bool,
    /// Print the committed PTX of this entry instead; `--arch` says which, if there are several.
    #[arg(long, value_name = "ENTRY", conflicts_with_all = ["check", "out"])]
    show: Option<String>,
    /// Only these kernel families.
    #[arg(long, value_name = "NAME")]
    family: Vec<String>,
    /// For these architectures instead of those that the kernel crate lists.
    #[arg(long, value_name = "sm_XX")]
    arch: Vec<Arch>,
    /// The rustc to compile with, or the folder of a toolchain.
    #[arg(long, value_name = "PATH")]
    toolchain: Option<PathBuf>,
    /// The kernel crate.
    #[arg(long, value_name = "FOLDER", default_value_os_t = kernel_crate())]
    kernels: PathBuf,
    /// Where the files go; by default the kernel crate's folder `ptx`.
    #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
    out: Option<PathBuf>,
}

/// The folder of the kernels that ship.
fn kernel_crate() -> PathBuf {
    crate::workspace_root().join("kernels-gpu")
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.show {
        Some(entry) => show(args, entry),
        None if args.check => check(args),
        None => build(args),
    }
}

/// The folder of the PTX that ships.
pub(crate) fn store() -> PathBuf {
    kernel_crate().join("ptx")
}

/// Every entry in the folders of a store that are for one of `archs`, or for any if there are none: its name and its file.
pub(crate) fn entries(store: &Path, archs: &[Arch]) -> Result<Vec<(String, PathBuf)>> {
    let unread = || format!("cannot read the folder `{}`", store.display());
    let mut files = Vec::new();
    for folder in std::fs::read_dir(store).with_context(unread)? {
        let folder = folder.with_context(unread)?.path();
        let index = folder.join(store::INDEX);
        let index = Index::parse(&store::read(&index)?)
            .with_context(|| format!("`{}` has no header", index.display()))?;
        if archs.is_empty() || archs.contains(&index.header.arch.parse()?) {
            let file = |name: String| (name.clone(), folder.join(format!("{name}{}", store::SUFFIX)));
            files.extend(index.entries.into_iter().map(file));
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn show(args: &Args, entry: &str) -> Result<ExitCode> {
    let mut entries = entries(&args.builder().output_folder()?, &args.arch)?;
    if !args.family.is_empty() {
        entries.retain(|(_, file)| {
            let folder = file.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            args.family.iter().any(|family| folder.starts_with(&format!("{family}.")))
        });
    }
    let named: Vec<&PathBuf> =
        entries.iter().filter(|(name, _)| name == entry).map(|(_, file)| file).collect();
    match named[..] {
        [file] => {
            print!("{}", store::read(file)?);
            Ok(ExitCode::SUCCESS)
        }
        [] => {
            let alike = entries.iter().map(|(name, _)| name.as_str()).filter(|name| name.contains(entry));
            let alike = alike.collect::<Vec<_>>().join(", ");
            bail!(
                "no entry `{entry}`, nor a longer name with that in it{}{alike}",
                if alike.is_empty() { "" } else { " but " }
            )
        }
        _ => {
            let files: Vec<String> = named.iter().map(|file| format!("  {}", file.display())).collect();
            bail!("`{entry}` is there more than once; say which with `--arch`:\n{}", files.join("\n"))
        }
    }
}

impl Args {
    fn builder(&self) -> Builder {
        let mut builder = Builder::new(&self.kernels).by_entry(true);
        if !self.family.is_empty() {
            builder = builder.families(&self.family);
        }
        if !self.arch.is_empty() {
            builder = builder.archs(self.arch.iter().copied());
        }
        if let Some(out) = &self.out {
            builder = builder.out_dir(out);
        }
        builder
    }
}

fn build(args: &Args) -> Result<ExitCode> {
    let toolchain = toolchain::Search::default().with_setting(args.toolchain.clone()).find()?;
    let artefacts = compile(args.builder(), &toolchain)?;
    let mut total = 0;
    for artefact in &artefacts {
        let bytes: usize = store::files(&artefact.path)?.values().map(Vec::len).sum();
        let text = artefact.text.len().div_ceil(1024);
        println!("{} ({} KiB of {text} KiB)", artefact.path.display(), bytes.div_ceil(1024));
        total += bytes;
    }
    println!("{:.2} MB in all", total as f64 * 1e-6);
    Ok(ExitCode::SUCCESS)
}

/// Builds with a given toolchain, and prints what ptxas says of every kernel.
fn compile(builder: Builder, toolchain: &Toolchain) -> Result<Vec<Artefact>> {
    println!("device toolchain: {toolchain}");
    let ptxas = Ptxas::find();
    match &ptxas {
        Some(ptxas) => println!("ptxas: {} ({})", ptxas.version, ptxas.path.display()),
        None => println!("ptxas: none found. Spills, stack frames and registers are NOT checked."),
    }
    let artefacts = builder.toolchain(Some(toolchain.rustc.clone())).ptxas(ptxas).build()?;
    for artefact in artefacts.iter().filter(|artefact| !artefact.warnings.is_empty()) {
        eprintln!("{}", artefact.warnings);
    }
    println!("{}", usage_table(&artefacts));
    for artefact in artefacts.iter().filter(|artefact| artefact.assemblies.len() > 1) {
        let later: Vec<String> =
            artefact.assemblies.iter().skip(1).map(|assembly| assembly.arch.to_string()).collect();
        println!("{} also assembles without spill or stack for {}", artefact.family, later.join(", "));
    }
    Ok(artefacts)
}

/// Kernel × what it uses. Where ptxas did not run there is a `?`, not a zero.
fn usage_table(artefacts: &[Artefact]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "kernel",
        "arch",
        "threads",
        "registers",
        "static shared",
        "dynamic shared",
        "spills",
        "stack",
        "blocks/SM",
        "warps/SM",
    ]);
    for artefact in artefacts {
        for entry in &artefact.report.entries {
            let kernels = artefact.assemblies.first().into_iter().flat_map(|assembly| &assembly.kernels);
            let usage = kernels.into_iter().find(|usage| usage.name == entry.name);
            let threads = entry.threads.map_or(0, |[x, y, z]| x * y * z);
            let show = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
            // Shared memory that the kernel does not state may be anything: then occupancy is unknown.
            let blocks = usage.zip(artefact.arch.multiprocessor()).zip(entry.dynamic_shared).map(
                |((usage, multiprocessor), dynamic)| {
                    multiprocessor.resident_blocks(
                        threads,
                        usage.registers,
                        usage.static_shared.saturating_add(dynamic),
                    )
                },
            );
            let warps = blocks.zip(artefact.arch.multiprocessor()).map(|(blocks, multiprocessor)| {
                format!("{} of {}", blocks * threads.div_ceil(32), multiprocessor.warps)
            });
            table.add_row([
                entry.name.clone(),
                artefact.arch.to_string(),
                threads.to_string(),
                show(usage.map(|usage| usage.registers)),
                show(usage.map(|usage| usage.static_shared)),
                show(entry.dynamic_shared),
                show(usage.map(|usage| usage.spill_stores + usage.spill_loads)),
                show(usage.map(|usage| usage.stack)),
                show(blocks),
                warps.unwrap_or_else(|| "?".to_owned()),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What is wrong with a committed folder.
pub(crate) enum Complaint {
    /// It was made from other sources than those that are here; its text may be right all the same.
    Stale(String),
    /// It is not what it should be.
    Wrong(String),
}

impl fmt::Display for Complaint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Stale(text) | Self::Wrong(text)) = self;
        formatter.write_str(text)
    }
}

/// One committed folder that is up to date by its hash.
struct Committed {
    target: Target,
    header: Header,
    files: BTreeMap<String, Vec<u8>>,
}

fn check(args: &Args) -> Result<ExitCode> {
    let mut complaints = Vec::new();
    let committed = committed(&args.builder(), &mut complaints)?;
    if let Some(first) = committed.first() {
        let found = toolchain_like(&first.header, args.toolchain.clone())?;
        let recorded = format!("rustc {}, LLVM {}", first.header.rustc, first.header.llvm);
        if found.version() == first.header.rustc && found.llvm == first.header.llvm {
            rebuild(args, &found, &committed, &mut complaints)?;
        } else {
            println!(
                "The committed PTX was made by {recorded}.\nThe device toolchain here is {found}.\nThey differ, so the \
                 text was NOT rebuilt and compared; only the hashes of the sources were."
            );
        }
    }
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() {
        let files: usize = committed.iter().map(|committed| committed.files.len()).sum();
        println!("{files} files of PTX in {} folders are up to date", committed.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} complaints about the committed PTX: run `cargo xtask ptx`", complaints.len());
    Ok(ExitCode::FAILURE)
}

/// The toolchain that the header records, when this machine has it; else the one that a build would take.
fn toolchain_like(header: &Header, setting: Option<PathBuf>) -> Result<Toolchain> {
    let search = toolchain::Search::default().with_setting(setting);
    let recorded =
        |toolchain: &Toolchain| toolchain.version() == header.rustc && toolchain.llvm == header.llvm;
    match search.all().into_iter().find(recorded) {
        Some(toolchain) => Ok(toolchain),
        None => Ok(search.find()?),
    }
}

fn rebuild(
    args: &Args,
    toolchain: &Toolchain,
    committed: &[Committed],
    complaints: &mut Vec<Complaint>,
) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    for built in compile(args.builder().out_dir(folder.path()), toolchain)? {
        let target = Target { family: built.family.clone(), arch: built.arch };
        let Some(committed) = committed.iter().find(|committed| committed.target == target) else { continue };
        let files = store::files(&built.path)?;
        let folder = target.folder_name();
        let differences = differences(&committed.files, &files);
        complaints.extend(
            differences.into_iter().map(|difference| Complaint::Wrong(format!("{folder}/{difference}"))),
        );
    }
    Ok(())
}

/// How the committed files of a folder differ from those that were built.
fn differences(committed: &BTreeMap<String, Vec<u8>>, built: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let text = |name: &str, bytes: &[u8]| match name.ends_with(store::SUFFIX) {
        true => store::decompress(bytes),
        false => Some(String::from_utf8_lossy(bytes).into_owned()),
    };
    let mut differences = Vec::new();
    for (name, new) in built {
        let Some(old) = committed.get(name) else {
            differences.push(format!("{name} is missing"));
            continue;
        };
        if old == new {
            continue;
        }
        differences.push(match (text(name, old), text(name, new)) {
            (Some(old), Some(new)) if old == new => format!("{name} was compressed by another compressor"),
            (Some(old), Some(new)) => {
                format!("{name} is not what its sources give:\n{}", difference(&old, &new))
            }
            _ => format!("{name} is damaged"),
        });
    }
    let left_over = committed.keys().filter(|name| !built.contains_key(*name));
    differences.extend(left_over.map(|name| format!("{name} is not built from the sources")));
    differences
}

/// The first lines in which two texts differ.
fn difference(committed: &str, built: &str) -> String {
    const SHOWN: usize = 10;
    let (mut old, mut new) = (committed.lines(), built.lines());
    let mut lines = Vec::new();
    let mut count = 0;
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                count += 1;
                if count <= SHOWN {
                    lines.extend(old.map(|old| format!("  {number:>6} - {old}")));
                    lines.extend(new.map(|new| format!("  {number:>6} + {new}")));
                }
            }
        }
    }
    if count > SHOWN {
        lines.push(format!("  … and {} more lines", count - SHOWN));
    }
    if count == 0 {
        lines.push("  (line ends only)".into());
    }
    lines.join("\n")
}

/// Compares the hashes in the committed indices with the sources: cheap, and needs no device toolchain.
///
/// Returns the number of folders that are up to date, and a complaint for every folder and file that is missing, stale, or there
/// without a reason.
pub(crate) fn check_hashes() -> Result<(usize, Vec<Complaint>)> {
    let mut complaints = Vec::new();
    let committed = committed(&Builder::new(kernel_crate()), &mut complaints)?;
    Ok((committed.len(), complaints))
}

/// Reads the committed folders; those that are up to date by their hash are returned, of the others there is a complaint.
fn committed(builder: &Builder, complaints: &mut Vec<Complaint>) -> Result<Vec<Committed>> {
    let folder = builder.output_folder()?;
    let targets = builder.targets()?;
    if targets.is_empty() {
        bail!("the kernel crate has no kernel family");
    }
    let mut committed = Vec::new();
    for target in &targets {
        let name = target.folder_name();
        let Ok(files) = store::files(&folder.join(&name)) else {
            complaints.push(Complaint::Wrong(format!("{name} is missing")));
            continue;
        };
        let index = files.get(store::INDEX).and_then(|index| Index::parse(str::from_utf8(index).ok()?));
        let Some(index) = index else {
            complaints.push(Complaint::Wrong(format!("{name} has no index that says what it was made from")));
            continue;
        };
        let wrong = unlisted(&files, &index);
        complaints.extend(wrong.into_iter().map(|file| Complaint::Wrong(format!("{name}/{file}"))));
        let expected = builder.source_hash(target)?;
        if index.header.sources != expected {
            complaints.push(Complaint::Stale(format!(
                "{name} was made from other sources ({}; now {expected})",
                index.header.sources
            )));
            continue;
        }
        committed.push(Committed { target: target.clone(), header: index.header, files });
    }
    complaints.extend(strays(&folder, builder)?.into_iter().map(Complaint::Wrong));
    Ok(committed)
}

/// What is wrong with the files of a folder by its index.
fn unlisted(files: &BTreeMap<String, Vec<u8>>, index: &Index) -> Vec<String> {
    let expected: Vec<String> =
        index.entries.iter().map(|entry| format!("{entry}{}", store::SUFFIX)).collect();
    let missing = expected.iter().filter(|name| !files.contains_key(*name));
    let left_over = files.keys().filter(|name| *name != store::INDEX && !expected.contains(name));
    missing
        .map(|name| format!("{name} is missing"))
        .chain(left_over.map(|name| format!("{name} is not in the index")))
        .collect()
}

/// Folders and files that no family and architecture of the kernel crate accounts for.
fn strays(folder: &Path, builder: &Builder) -> Result<Vec<String>> {
    let expected: Vec<String> = builder.declared_targets()?.iter().map(Target::folder_name).collect();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut strays: Vec<String> = names.filter(|name| !expected.contains(name)).collect();
    strays.sort();
    Ok(strays
        .into_iter()
        .map(|name| format!("{name} belongs to no family and architecture of the kernel crate"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        let file = |(name, text): &(&str, &str)| {
            let bytes = match name.ends_with(store::SUFFIX) {
                true => store::compress(text),
                false => text.as_bytes().to_vec(),
            };
            ((*name).to_owned(), bytes)
        };
        files.iter().map(file).collect()
    }

    #[test]
    fn every_file_that_differs_is_named_with_what_differs() {
        let built = files(&[("a.ptx.z", "one\n"), ("b.ptx.z", "two\n"), ("index.txt", "a\nb\n")]);
        assert!(differences(&built, &built).is_empty());
        let mut committed = files(&[("a.ptx.z", "three\n"), ("c.ptx.z", ""), ("index.txt", "a\nb\n")]);
        let found = differences(&committed, &built);
        let [changed, missing, left_over] = &found[..] else { panic!("{found:?}") };
        assert!(changed.contains("a.ptx.z is not") && changed.contains("- three"), "{changed}");
        assert!(missing.contains("b.ptx.z is missing"), "{missing}");
        assert!(left_over.contains("c.ptx.z"), "{left_over}");

        committed = built.clone();
        committed.insert("a.ptx.z".into(), b"no stream".to_vec());
        assert_eq!(differences(&committed, &built), ["a.ptx.z is damaged"]);
    }

    #[test]
    fn files_and_index_agree() {
        let text = "// warpsmith.family: f\n// warpsmith.arch: sm_80\n// warpsmith.rustc: r\n// warpsmith.llvm: l\n\
                    // warpsmith.builder: b\n// warpsmith.recipe: r\n// warpsmith.sources: s\n\na\nb\n";
        let index = Index::parse(text).unwrap();
        let found = unlisted(&files(&[("a.ptx.z", ""), ("old.ptx", ""), ("index.txt", text)]), &index);
        assert_eq!(found, ["b.ptx.z is missing", "old.ptx is not in the index"]);
    }
}
