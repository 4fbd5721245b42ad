//! `xtask machine-code`: holds the machine code of the Hopper kernels against the check that no arrival, and no start of a copy,
//! overtakes a load from shared memory.
//!
//! Only ptxas decides how a load and an arrival follow each other, so the check is of one ptxas's code. The driver's is the same
//! program in another version: kernels must be right by the memory model, and this check finds where they are not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use comfy_table::{CellAlignment, Table, presets};
use warpsmith_builder::machine_code::{self, SectionReport};
use warpsmith_builder::store;
use warpsmith_builder::{Arch, NVDISASM_VARIABLE, Nvdisasm, PTXAS_VARIABLE, Ptxas};

/// Find arrivals at barriers, and starts of copies, that overtake loads from shared memory in the kernels' machine code.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The PTX to check, files or `FOLDER/ENTRY.ptx` of a folder of `kernels-gpu/ptx`; by default what is committed for compute
    /// capability 9.0 and later.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Assemble for this architecture instead of the one that each file names as its target.
    #[arg(long, value_name = "sm_XX")]
    arch: Option<Arch>,
}

/// A module to check.
struct Module {
    name: String,
    text: String,
    arch: Arch,
}

/// What came of a module.
struct Checked {
    entries: Vec<SectionReport>,
    seconds: f64,
}

/// Kernels whose only ring that loads read is filled by ordinary stores of a thread that waits for the arrival: no copy comes after it.
const WRITTEN_BY_STORES: &str = "attention_hopper_";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let ptxas = Ptxas::find().ok_or_else(|| missing("ptxas", PTXAS_VARIABLE, "nvidia-cuda-nvcc==13.0.88"))?;
    let nvdisasm = Nvdisasm::find(Some(&ptxas))
        .ok_or_else(|| missing("nvdisasm", NVDISASM_VARIABLE, "nvidia-cuda-nvdisasm==13.2.51"))?;
    println!("ptxas: {} ({})", ptxas.version, ptxas.path.display());
    println!("nvdisasm: {} ({})", nvdisasm.version, nvdisasm.path.display());

    let start = Instant::now();
    let modules = modules(args)?;
    let checked = check(&modules, &ptxas, &nvdisasm)?;
    println!("{}", table(&modules, &checked));
    for name in without_releases(&modules, &checked) {
        println!("`{name}` has no arrival at a barrier and no copy: there is nothing to check");
    }
    if checked.is_empty() {
        bail!("nothing was checked");
    }
    let entries_checked = || checked.values().flat_map(|module| &module.entries);
    let is_ordered = |name: &str| name.starts_with(WRITTEN_BY_STORES);
    let findings: Vec<_> = entries_checked()
        .filter(|entry| !is_ordered(&entry.entry))
        .flat_map(|entry| &entry.findings)
        .collect();
    let ordered: usize =
        entries_checked().filter(|entry| is_ordered(&entry.entry)).map(|entry| entry.findings.len()).sum();
    if ordered > 0 {
        println!(
            "\nLeft out: {ordered} of `{WRITTEN_BY_STORES}…`, since the words that they load are written by ordinary stores, which the arrival orders"
        );
    }
    for finding in &findings {
        println!("\n{finding}");
    }
    let entries: usize = checked.values().map(|module| module.entries.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{entries} entries checked in {seconds:.0} s, {} findings", findings.len());
    if findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "A copy may overwrite what these loads read. Order them: `fence.proxy.async` between the loads and the release."
    );
    Ok(ExitCode::FAILURE)
}

fn missing(program: &str, variable: &str, package: &str) -> anyhow::Error {
    anyhow!(
        "no {program} is named by {variable}, on PATH, in a CUDA toolkit or in a Python environment, and without it machine code \
         cannot be checked. `pip install {package}` in a virtual environment, then set {variable} to the `{program}` in it"
    )
}

/// The modules that may hold arrivals, the longest first, so that the last ones to be checked are short.
fn modules(args: &Args) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    let mut add = |path: &Path, text: String, least: u32| -> Result<()> {
        let target = target(&text).with_context(|| format!("`{}`", path.display()))?;
        if target.major >= least {
            let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let name = file.strip_suffix(".ptx").unwrap_or(&file).to_owned();
            modules.push(Module { name, text, arch: args.arch.unwrap_or(target) });
        }
        Ok(())
    };
    for path in &args.files {
        add(path, store::read(path)?, 0)?;
    }
    if args.files.is_empty() {
        for (folder, _) in crate::ptx::folders(&crate::ptx::store(), &[])? {
            for kernel in store::kernels(&folder)?.1 {
                add(&folder.join(format!("{}.ptx", kernel.name)), kernel.text, 9)?;
            }
        }
    }
    if modules.is_empty() {
        bail!("no PTX for compute capability 9.0 or later to check");
    }
    modules.sort_by_key(|module| std::cmp::Reverse(module.text.len()));
    Ok(modules)
}

/// The architecture in a text's directive `.target`.
fn target(ptx: &str) -> Result<Arch> {
    let names = ptx.lines().find_map(|line| line.trim().strip_prefix(".target"));
    let name = names.and_then(|names| names.split(',').next()).context("has no directive `.target`")?;
    Ok(name.trim().parse()?)
}

/// Whether a module's text has what the check looks for. ptxas makes arrivals and copies of nothing else.
fn releases(ptx: &str) -> bool {
    ["mbarrier.", "cp.async.bulk"].iter().any(|opcode| ptx.contains(opcode))
}

/// Checks the modules that have releases, as many at a time as there are processors.
fn check(modules: &[Module], ptxas: &Ptxas, nvdisasm: &Nvdisasm) -> Result<BTreeMap<usize, Checked>> {
    let next = AtomicUsize::new(0);
    let checked = Mutex::new(Ok(BTreeMap::new()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(module) = modules.get(index) else { return };
            if !releases(&module.text) {
                continue;
            }
            let result = check_one(module, ptxas, nvdisasm).with_context(|| module.name.clone());
            let mut all = checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match (&mut *all, result) {
                (Ok(all), Ok(result)) => {
                    all.insert(index, result);
                }
                (all @ Ok(_), Err(error)) => *all = Err(error),
                (Err(_), _) => return,
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(modules.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    checked.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The modules that have nothing to check.
fn without_releases<'a>(modules: &'a [Module], checked: &BTreeMap<usize, Checked>) -> Vec<&'a str> {
    let unchecked = modules.iter().enumerate().filter(|(index, _)| !checked.contains_key(index));
    unchecked.map(|(_, module)| module.name.as_str()).collect()
}

fn check_one(module: &Module, ptxas: &Ptxas, nvdisasm: &Nvdisasm) -> Result<Checked> {
    let start = Instant::now();
    let cubin = ptxas.machine_code(&module.text, module.arch)?;
    let entries = machine_code::check(&nvdisasm.disassemble(&cubin)?)?;
    Ok(Checked { entries, seconds: start.elapsed().as_secs_f64() })
}

fn table(modules: &[Module], checked: &BTreeMap<usize, Checked>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["module", "arch", "entries", "shared loads", "arrivals", "copies", "findings", "s"]);
    for (index, module) in modules.iter().enumerate() {
        let head = [module.name.clone(), module.arch.to_string()];
        let row = match checked.get(&index) {
            // No arrival and no bulk copy in the PTX: nothing to assemble.
            None => ["–", "–", "0", "0", "0", "–"].map(String::from),
            Some(Checked { entries, seconds }) => {
                let sum = |of: fn(&SectionReport) -> usize| entries.iter().map(of).sum::<usize>();
                let copies = sum(|entry| entry.releases.iter().filter(|release| release.is_copy()).count());
                let releases = sum(|entry| entry.releases.len());
                [
                    entries.len().to_string(),
                    sum(|entry| entry.loads).to_string(),
                    (releases - copies).to_string(),
                    copies.to_string(),
                    sum(|entry| entry.findings.len()).to_string(),
                    format!("{seconds:.1}"),
                ]
            }
        };
        table.add_row(head.into_iter().chain(row));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_arrivals_is_named_and_others_are_not() {
        let module = |name: &str| Module { name: name.into(), text: String::new(), arch: Arch::SM_90A };
        let modules = [module("with"), module("without")];
        let checked = BTreeMap::from([(0, Checked { entries: Vec::new(), seconds: 0.0 })]);
        assert_eq!(without_releases(&modules, &checked), ["without"]);
    }

    /// Where there is no assembler, that is the error.
    #[test]
    fn a_run_that_checks_nothing_fails() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quiet.ptx");
        let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";
        std::fs::write(&file, text).unwrap();
        let error = run(&Args { files: vec![file], arch: None }).unwrap_err().to_string();
        assert!(error.contains("nothing was checked") || error.contains("is named by"), "{error}");
    }

    #[test]
    fn the_target_is_read_from_the_text() {
        let named = |text: &str| target(text).map(|arch| arch.to_string()).map_err(|error| error.to_string());
        assert_eq!(named("// k\n.version 8.0\n.target sm_90a, debug\n"), Ok("sm_90a".into()));
        assert_eq!(named(".version 8.0\n"), Err("has no directive `.target`".into()));
        assert!(named(".target hopper\n").is_err_and(|error| error.contains("hopper")));
    }

    #[test]
    fn committed_modules_with_arrivals_are_checked_and_older_architectures_are_not() {
        let all = modules(&Args { files: Vec::new(), arch: None }).unwrap();
        assert!(all.iter().all(|module| module.arch.major >= 9));
        let with_releases = |name: &str| {
            let module = all.iter().find(|module| module.name == name);
            module.map(|module| releases(&module.text))
        };
        assert_eq!(with_releases("linear_hopper_bf16_bf16_cooperative_128x128"), Some(true));
        assert_eq!(with_releases("linear_narrow_bf16_bf16_16x256"), Some(true));
        assert_eq!(with_releases("linear_strided_bf16_bf16_32x32"), Some(false));
        assert_eq!(with_releases("linear_f16_f16_128x128"), None);
        assert!(all.is_sorted_by(|a, b| a.text.len() >= b.text.len()));
    }
}
