//! `xtask ptx`: compiles the kernels to the PTX that ships, checks that what is committed is what the sources give, or shows it.
//!
//! The PTX is a [`store`](mod@store): a folder for each family and architecture, and a text for each entry, those of a family compressed
//! together.
//!
//! The check is in two steps. The hash of the sources stands in each folder's index, and comparing it needs no device toolchain:
//! `xtask test` does it everywhere, and only warns, since a changed comment changes the hash too. A rebuild compares the files
//! themselves, which only means something with the compiler that the index names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use warpsmith_builder::store::{self, Index, Kernel};
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
    /// Compress the committed texts anew instead, by this version's compressor, and compile nothing.
    #[arg(long, conflicts_with_all = ["check", "show", "out"])]
    repack: bool,
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
        None if args.repack => repack(args),
        None => build(args),
    }
}

/// The folder of the PTX that ships.
pub(crate) fn store() -> PathBuf {
    kernel_crate().join("ptx")
}

/// The folders of a store that are for one of `archs`, or for any if there are none, with their indices.
pub(crate) fn folders(store: &Path, archs: &[Arch]) -> Result<Vec<(PathBuf, Index)>> {
    let unread = || format!("cannot read the folder `{}`", store.display());
    let mut folders = Vec::new();
    for folder in std::fs::read_dir(store).with_context(unread)? {
        let folder = folder.with_context(unread)?.path();
        let index = store::index(&folder)?;
        if archs.is_empty() || archs.contains(&index.header.arch.parse()?) {
            folders.push((folder, index));
        }
    }
    folders.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(folders)
}

fn show(args: &Args, entry: &str) -> Result<ExitCode> {
    let mut folders = folders(&args.builder().output_folder()?, &args.arch)?;
    folders.retain(|(_, index)| args.family.is_empty() || args.family.contains(&index.header.family));
    let has_entry = |(_, index): &&(PathBuf, Index)| index.entries.iter().any(|listed| listed.name == entry);
    let named: Vec<PathBuf> =
        folders.iter().filter(has_entry).map(|(folder, _)| folder.join(format!("{entry}.ptx"))).collect();
    match &named[..] {
        [path] => {
            print!("{}", store::read(path)?);
            Ok(ExitCode::SUCCESS)
        }
        [] => {
            let names =
                folders.iter().flat_map(|(_, index)| &index.entries).map(|listed| listed.name.as_str());
            let mut alike: Vec<&str> = names.filter(|name| name.contains(entry)).collect();
            alike.sort_unstable();
            bail!(
                "no entry `{entry}`, nor a longer name with that in it{}{}",
                if alike.is_empty() { "" } else { " but " },
                alike.join(", ")
            )
        }
        _ => {
            let paths: Vec<String> = named.iter().map(|path| format!("  {}", path.display())).collect();
            bail!("`{entry}` is there more than once; say which with `--arch`:\n{}", paths.join("\n"))
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

/// Writes the folders with the texts and headers that they have. Those of a family are compressed together, whatever `--arch` says.
fn repack(args: &Args) -> Result<ExitCode> {
    let store = args.builder().output_folder()?;
    let mut families: BTreeSet<String> =
        folders(&store, &args.arch)?.into_iter().map(|(_, index)| index.header.family).collect();
    families.retain(|family| args.family.is_empty() || args.family.contains(family));
    if families.is_empty() {
        bail!("no folder is of the families {:?} and the architectures {:?}", args.family, args.arch);
    }
    let size = || -> Result<usize> {
        let of_families = folders(&store, &[])?.into_iter();
        let of_families = of_families.filter(|(_, index)| families.contains(&index.header.family));
        of_families.map(|(folder, _)| Ok(store::files(&folder)?.values().map(Vec::len).sum::<usize>())).sum()
    };
    let before = size()?;
    for family in &families {
        store::repack(&store, family)?;
    }
    println!("{:.2} MB, {:.2} MB before", size()? as f64 * 1e-6, before as f64 * 1e-6);
    Ok(ExitCode::SUCCESS)
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
    index: Index,
    kernels: Vec<Kernel>,
}

fn check(args: &Args) -> Result<ExitCode> {
    let mut complaints = Vec::new();
    let committed = committed(&args.builder(), &mut complaints)?;
    if let Some(first) = committed.first() {
        let found = toolchain_like(&first.index.header, args.toolchain.clone())?;
        let recorded = format!("rustc {}, LLVM {}", first.index.header.rustc, first.index.header.llvm);
        if found.version() == first.index.header.rustc && found.llvm == first.index.header.llvm {
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
        let entries: usize = committed.iter().map(|committed| committed.kernels.len()).sum();
        println!("the PTX of {entries} kernels in {} folders is up to date", committed.len());
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
        let folder = target.folder_name();
        let (index, kernels) = store::kernels(&built.path)?;
        let built = Committed { target, index, kernels };
        let differences = differences(committed, &built);
        complaints.extend(
            differences.into_iter().map(|difference| Complaint::Wrong(format!("{folder}/{difference}"))),
        );
    }
    let families = committed.iter().map(|committed| &committed.target.family);
    complaints.extend(packed_otherwise(&args.builder().output_folder()?, families));
    Ok(())
}

/// A complaint for each file that holds the right texts, but not as they are written now.
fn packed_otherwise<'a>(store: &Path, families: impl IntoIterator<Item = &'a String>) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for family in families.into_iter().collect::<BTreeSet<_>>() {
        match store::packed_otherwise(store, family) {
            Ok(paths) => complaints.extend(paths.into_iter().map(|path| {
                Complaint::Wrong(format!(
                    "{} was packed by another version: `cargo xtask ptx --repack` does it anew",
                    path.strip_prefix(store).unwrap_or(&path).display()
                ))
            })),
            Err(error) => complaints.push(Complaint::Wrong(format!("{family}: {error}"))),
        }
    }
    complaints
}

/// How a committed folder differs from the one that was built.
fn differences(committed: &Committed, built: &Committed) -> Vec<String> {
    let mut differences = Vec::new();
    let headers = [committed, built].map(|folder| folder.index.header.to_string());
    if headers[0] != headers[1] {
        differences.push(format!(
            "{} is not what the sources give:\n{}",
            store::INDEX,
            difference(&headers[0], &headers[1])
        ));
    }
    let texts = |folder: &'_ Committed| -> BTreeMap<String, String> {
        folder.kernels.iter().map(|kernel| (kernel.name.clone(), kernel.text.clone())).collect()
    };
    let (mut old, new) = (texts(committed), texts(built));
    for (name, new) in &new {
        match old.remove(name) {
            None => differences.push(format!("{name}.ptx is missing")),
            Some(old) if old != *new => differences
                .push(format!("{name}.ptx is not what its sources give:\n{}", difference(&old, new))),
            Some(_) => {}
        }
    }
    differences.extend(old.keys().map(|name| format!("{name}.ptx is not built from the sources")));
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
        let Ok(mut files) = store::files(&folder.join(&name)) else {
            complaints.push(Complaint::Wrong(format!("{name} is missing")));
            continue;
        };
        let (index, kernels) = match opened(&folder.join(&name), &mut files) {
            Ok(opened) => opened,
            Err(error) => {
                complaints.push(Complaint::Wrong(format!("{name}: {error}")));
                continue;
            }
        };
        let left_over = files.keys().map(|file| format!("{name}/{file} belongs to no store"));
        complaints.extend(left_over.map(Complaint::Wrong));
        let expected = builder.source_hash(target)?;
        if index.header.sources != expected {
            complaints.push(Complaint::Stale(format!(
                "{name} was made from other sources ({}; now {expected})",
                index.header.sources
            )));
            continue;
        }
        committed.push(Committed { target: target.clone(), index, kernels });
    }
    complaints.extend(strays(&folder, builder)?.into_iter().map(Complaint::Wrong));
    Ok(committed)
}

/// Takes what makes a store out of the files of a folder, and reads it; else says what is wrong.
fn opened(
    folder: &Path,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(Index, Vec<Kernel>), warpsmith_builder::Error> {
    files.remove(store::INDEX);
    // Of the folders of a family only the first has texts.
    files.remove(store::TEXTS);
    store::kernels(folder)
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
    use warpsmith_builder::store::Content;

    use super::*;

    fn header(sources: &str) -> Header {
        let text = "// warpsmith.family: f\n// warpsmith.arch: sm_80\n// warpsmith.rustc: r\n// warpsmith.llvm: l\n\
                    // warpsmith.builder: b\n// warpsmith.recipe: r\n";
        Header::parse(&format!("{text}// warpsmith.sources: {sources}\n")).unwrap()
    }

    fn folder(sources: &str, kernels: &[(&str, &str)]) -> Committed {
        let kernel = |(name, text): &(&str, &str)| Kernel { name: (*name).into(), text: (*text).into() };
        let kernels: Vec<Kernel> = kernels.iter().map(kernel).collect();
        let content = Content { header: header(sources), kernels };
        let index = store::pack([&content]).0.remove(0);
        Committed {
            target: Target { family: "f".into(), arch: Arch::SM_80 },
            index,
            kernels: content.kernels,
        }
    }

    #[test]
    fn every_entry_that_differs_is_named_with_what_differs() {
        let built = folder("s", &[("a", "one\n"), ("b", "two\n")]);
        assert!(differences(&built, &built).is_empty());
        let found = differences(&folder("s", &[("a", "three\n"), ("c", "")]), &built);
        let [changed, missing, left_over] = &found[..] else { panic!("{found:?}") };
        assert!(changed.contains("a.ptx is not") && changed.contains("- three"), "{changed}");
        assert!(missing.contains("b.ptx is missing"), "{missing}");
        assert!(left_over.contains("c.ptx"), "{left_over}");

        let found = differences(&folder("t", &[("a", "one\n"), ("b", "two\n")]), &built);
        let [header] = &found[..] else { panic!("{found:?}") };
        assert!(header.contains(store::INDEX) && header.contains("- // warpsmith.sources: t"), "{header}");
    }

    /// A store with a family for two architectures.
    fn store_of_two() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let kernels = vec![Kernel { name: "a".into(), text: "one\n".into() }];
        let contents = ["sm_80", "sm_90"].map(|arch| Content {
            header: Header { arch: arch.into(), ..header("s") },
            kernels: kernels.clone(),
        });
        store::write(folder.path(), &contents).unwrap();
        folder
    }

    #[test]
    fn a_folder_is_opened_whole_or_says_what_is_wrong() {
        let folder = store_of_two();
        let [first, later] = ["f.sm_80", "f.sm_90"].map(|name| folder.path().join(name));
        for folder in [&first, &later] {
            std::fs::write(folder.join("old.ptx"), "").unwrap();
            let mut files = store::files(folder).unwrap();
            assert!(opened(folder, &mut files).is_ok_and(|(_, kernels)| kernels.len() == 1));
            assert_eq!(files.into_keys().collect::<Vec<_>>(), ["old.ptx"]);
        }
        let texts = std::fs::read(first.join(store::TEXTS)).unwrap();
        let index = std::fs::read(first.join(store::INDEX)).unwrap();
        // Without its index the first folder is none: then no stream is before that of the second.
        for (file, bytes, [of_first, of_later]) in [
            (store::INDEX, None, ["f.sm_80/index.txt", "f.sm_90/entries.lzma"]),
            (store::TEXTS, None, ["f.sm_80/entries.lzma"; 2]),
            (store::INDEX, Some("a 4 00\n"), ["f.sm_80/index.txt`: it is no index"; 2]),
            (store::TEXTS, Some("no stream"), ["f.sm_80/entries.lzma`: it is no LZMA stream"; 2]),
        ] {
            let path = first.join(file);
            match bytes {
                None => std::fs::remove_file(&path).unwrap(),
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            }
            for (folder, reason) in [(&first, of_first), (&later, of_later)] {
                let found = opened(folder, &mut BTreeMap::new()).unwrap_err().to_string();
                assert!(found.contains(reason), "{found}");
            }
            std::fs::write(first.join(store::TEXTS), &texts).unwrap();
            std::fs::write(first.join(store::INDEX), &index).unwrap();
        }
    }

    #[test]
    fn texts_that_are_not_packed_as_now_are_named() {
        let folder = store_of_two();
        let family = "f".to_owned();
        let found =
            |complaints: Vec<Complaint>| complaints.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(packed_otherwise(folder.path(), [&family]).is_empty());
        // Each folder with a stream of its own.
        for arch in ["sm_80", "sm_90"] {
            let own = tempfile::tempdir().unwrap();
            let name = format!("f.{arch}");
            let (index, kernels) = store::kernels(&folder.path().join(&name)).unwrap();
            store::write(own.path(), &[Content { header: index.header, kernels }]).unwrap();
            let stream = std::fs::read(own.path().join(&name).join(store::TEXTS)).unwrap();
            std::fs::write(folder.path().join(&name).join("other"), stream).unwrap();
        }
        for arch in ["sm_80", "sm_90"] {
            let folder = folder.path().join(format!("f.{arch}"));
            std::fs::rename(folder.join("other"), folder.join(store::TEXTS)).unwrap();
        }
        let complaints = found(packed_otherwise(folder.path(), [&family, &family]));
        let [first, later] = &complaints[..] else { panic!("{complaints:?}") };
        assert!(first.starts_with("f.sm_80/entries.lzma was packed by another version"), "{first}");
        assert!(later.starts_with("f.sm_90/entries.lzma was packed by another version"), "{later}");

        std::fs::write(folder.path().join("f.sm_90").join(store::TEXTS), "no stream").unwrap();
        let complaints = found(packed_otherwise(folder.path(), [&family]));
        assert!(complaints.len() == 1 && complaints[0].contains("it is no LZMA stream"), "{complaints:?}");
    }
}
