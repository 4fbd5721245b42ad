//! `xtask ptx`: compiles the kernels to the PTX files that ship, or checks that the committed files are what the sources give.
//!
//! The check is in two steps. The hash of the sources stands in each file's header, and comparing it needs no device toolchain:
//! `xtask test` does it everywhere, and only warns, since a changed comment changes the hash too. A rebuild compares the text
//! itself, which only means something with the compiler that the header names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use warpsmith_builder::{Arch, Artefact, Builder, Header, Ptxas, Target, Toolchain, toolchain};

/// Compile the kernels to the PTX files that ship, or check those.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Compare with the committed files instead of writing them.
    #[arg(long)]
    check: bool,
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
    if args.check { check(args) } else { build(args) }
}

impl Args {
    fn builder(&self) -> Builder {
        let mut builder = Builder::new(&self.kernels);
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
    for artefact in &artefacts {
        println!("{} ({} KiB)", artefact.path.display(), artefact.text.len().div_ceil(1024));
    }
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

/// What is wrong with a committed file.
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

/// One committed file that is up to date by its hash.
struct Committed {
    target: Target,
    text: String,
    header: Header,
}

fn check(args: &Args) -> Result<ExitCode> {
    let mut complaints = Vec::new();
    let committed = committed(&args.builder(), &mut complaints)?;
    let stale_files = complaints.len();
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
        println!("{} PTX files are up to date", committed.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "{} of {} PTX files are stale: run `cargo xtask ptx`",
        complaints.len(),
        committed.len() + stale_files
    );
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
    for file in compile(args.builder().out_dir(folder.path()), toolchain)? {
        let target = Target { family: file.family.clone(), arch: file.arch };
        let Some(committed) = committed.iter().find(|committed| committed.target == target) else { continue };
        if committed.text != file.text {
            let difference = difference(&committed.text, &file.text);
            complaints.push(Complaint::Wrong(format!(
                "{} is not what its sources give:\n{difference}",
                target.file_name()
            )));
        }
    }
    Ok(())
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

/// Compares the hashes in the committed files with the sources: cheap, and needs no device toolchain.
///
/// Returns a complaint for every file that is missing, stale, or there without a reason.
pub(crate) fn check_hashes() -> Result<(usize, Vec<Complaint>)> {
    let mut complaints = Vec::new();
    let committed = committed(&Builder::new(kernel_crate()), &mut complaints)?;
    Ok((committed.len(), complaints))
}

/// Reads the committed files; those that are up to date by their hash are returned, of the others there is a complaint.
fn committed(builder: &Builder, complaints: &mut Vec<Complaint>) -> Result<Vec<Committed>> {
    let folder = builder.output_folder()?;
    let targets = builder.targets()?;
    if targets.is_empty() {
        bail!("the kernel crate has no kernel family");
    }
    let mut committed = Vec::new();
    for target in &targets {
        let name = target.file_name();
        let Ok(text) = std::fs::read_to_string(folder.join(&name)) else {
            complaints.push(Complaint::Wrong(format!("{name} is missing")));
            continue;
        };
        let Some(header) = Header::parse(&text) else {
            complaints
                .push(Complaint::Wrong(format!("{name} has no header that says what it was made from")));
            continue;
        };
        let expected = builder.source_hash(target)?;
        if header.sources != expected {
            complaints.push(Complaint::Stale(format!(
                "{name} was made from other sources ({}; now {expected})",
                header.sources
            )));
            continue;
        }
        committed.push(Committed { target: target.clone(), text, header });
    }
    complaints.extend(strays(&folder, builder)?.into_iter().map(Complaint::Wrong));
    Ok(committed)
}

/// PTX files that no family and architecture of the kernel crate accounts for.
fn strays(folder: &Path, builder: &Builder) -> Result<Vec<String>> {
    let expected: Vec<String> = builder.declared_targets()?.iter().map(Target::file_name).collect();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut strays: Vec<String> =
        names.filter(|name| name.ends_with(".ptx") && !expected.contains(name)).collect();
    strays.sort();
    Ok(strays
        .into_iter()
        .map(|name| format!("{name} belongs to no family and architecture of the kernel crate"))
        .collect())
}
