//! `xtask validate --sanitize TOOL`: every operation's quick cases under a tool of NVIDIA's compute-sanitizer, a judge that shares nothing with the emulator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::{Args, Operation};

/// A tool of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Accesses beyond allocations, and misaligned ones.
    Memcheck,
    /// Accesses of shared memory that nothing orders.
    Racecheck,
    /// Reads of memory that nothing has written.
    Initcheck,
    /// Barriers that some threads never come to.
    Synccheck,
}

/// What a tool misreads: the part of a kernel's name, and why the report is wrong. Such kernels are left out.
const MISREAD: &[(Tool, &str, &str)] = &[
    (
        Tool::Racecheck,
        "linear_update_hopper_f16_16x64",
        "it takes `bar.arrive 0` for a wait, and so loses who has waited at barrier 1",
    ),
    (
        Tool::Racecheck,
        "linear_update_hopper_bf16_16x64",
        "it takes `bar.arrive 0` for a wait, and so loses who has waited at barrier 1",
    ),
    (
        Tool::Synccheck,
        "linear_update_hopper_f16_16x64",
        "its warps wait at one barrier in two places of the program",
    ),
    (
        Tool::Synccheck,
        "linear_update_hopper_bf16_16x64",
        "its warps wait at one barrier in two places of the program",
    ),
    (
        Tool::Synccheck,
        "generated_update_cluster_f32_rank16",
        "its warps wait at one barrier in two places of the program",
    ),
    (Tool::Synccheck, "linear_skinny", "its warps wait at one barrier in two places of the program"),
    (Tool::Synccheck, "linear_modulated", "its warps wait at one barrier in two places of the program"),
    (Tool::Synccheck, "linear_joined", "its warps wait at one barrier in two places of the program"),
];

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
            Self::Initcheck => "initcheck",
            Self::Synccheck => "synccheck",
        }
    }

    /// The kernels that it misreads.
    fn misread(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        MISREAD.iter().filter(move |(tool, ..)| *tool == self).map(|(_, kernel, why)| (*kernel, *why))
    }
}

/// The program, from `PATH` or where CUDA's toolkit is.
fn program() -> Result<PathBuf> {
    const NAME: &str = "compute-sanitizer";
    if let Ok(found) = which::which(NAME) {
        return Ok(found);
    }
    let folders = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut folders = folders.chain([PathBuf::from("/usr/local/cuda")]);
    folders.find_map(|folder| which::which(folder.join("bin").join(NAME)).ok()).with_context(|| {
        format!(
            "there is no {NAME}: expected it on PATH, or in `bin` of CUDA_HOME, CUDA_PATH or /usr/local/cuda"
        )
    })
}

/// What one run reported.
struct Reported {
    operation: String,
    /// The tool's last line.
    summary: String,
    /// Reports by what they say, and how often.
    reports: BTreeMap<String, usize>,
    passed: bool,
}

/// Runs the quick cases of each operation in a process of its own.
pub(super) fn run(tool: Tool, args: &Args) -> Result<ExitCode> {
    let program = program()?;
    let own = std::env::current_exe().context("finding this program")?;
    let operations: Vec<Operation> = match args.op {
        Some(operation) => vec![operation],
        None => Operation::value_variants().to_vec(),
    };
    for (kernel, why) in tool.misread() {
        println!("Left out: kernels `{kernel}…`, since {}: {why}", tool.name());
    }
    let mut all = Vec::new();
    for operation in operations {
        let name =
            operation.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let mut command = Command::new(&program);
        command.args(["--tool", tool.name(), "--print-limit", "20", "--error-exitcode", "9"]);
        for (kernel, _) in tool.misread() {
            command.args(["--kernel-name-exclude", &format!("kernel_substring={kernel}")]);
        }
        command.arg(&own).args(["validate", "--quick", "--device", &args.device, "--op", &name]);
        command.args(["--seed", &args.seed.to_string()]);
        // The device pads allocations, so that no copy with a short source is taken for a longer one.
        command.env("WARPSMITH_SANITIZER", "1");
        let output = command.output().with_context(|| format!("starting {}", program.display()))?;
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let reported = read(name, &text, output.status.success());
        println!("{} {}: {}", tool.name(), reported.operation, reported.summary);
        for (report, times) in &reported.reports {
            println!("    {times} × {report}");
        }
        if !reported.passed && reported.reports.is_empty() {
            println!("{text}");
        }
        all.push(reported);
    }
    let failed: Vec<_> = all.iter().filter(|one| !one.passed).map(|one| one.operation.as_str()).collect();
    if !failed.is_empty() {
        bail!("{} is not clean over {}", tool.name(), failed.join(", "));
    }
    println!("{} is clean over {} operations", tool.name(), all.len());
    Ok(ExitCode::SUCCESS)
}

/// What a tool's output says. Reports are told apart by what they say and by the kernel, not by thread and address.
fn read(operation: String, text: &str, succeeded: bool) -> Reported {
    let lines = || text.lines().filter_map(|line| line.strip_prefix("========= "));
    let summary = lines().rev().find(|line| line.contains("SUMMARY")).unwrap_or("no summary").to_owned();
    let mut reports = BTreeMap::new();
    let is_heading = |line: &&str| {
        !line.trim().is_empty()
            && !line.starts_with(' ')
            && !line.contains("SUMMARY")
            && !line.starts_with("COMPUTE-SANITIZER")
    };
    let mut lines = lines().peekable();
    while let Some(line) = lines.next() {
        if !is_heading(&line) {
            continue;
        }
        let place =
            lines.peek().filter(|next| next.trim_start().starts_with("at ")).map(|next| next.trim_start());
        let place = place.map(|place| place.split('+').next().unwrap_or(place));
        let report = [Some(line), place].into_iter().flatten().collect::<Vec<_>>().join(" ");
        *reports.entry(report).or_default() += 1;
    }
    let is_clean = summary.contains("SUMMARY: 0 ");
    Reported { operation, summary, passed: succeeded && is_clean && reports.is_empty(), reports }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_clean_run_passes_and_others_do_not() {
        let clean = "========= COMPUTE-SANITIZER\nall cases passed\n========= ERROR SUMMARY: 0 errors\n";
        let reported = read("linear".into(), clean, true);
        assert!(reported.passed && reported.reports.is_empty());
        assert_eq!(reported.summary, "ERROR SUMMARY: 0 errors");
        assert!(!read("linear".into(), clean, false).passed, "the cases failed");
        assert!(!read("linear".into(), "", true).passed, "the tool has said nothing");
        let races = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";
        assert!(read("linear".into(), races, true).passed);
    }

    #[test]
    fn reports_are_counted_by_kernel() {
        let text = "\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at linear_f32_f32_16x64+0x2c20 in sync.rs:18
=========     by thread (0,0,0) in block (0,0,0)
========= Invalid __global__ read of size 16 bytes
=========     at linear_f32_f32_16x64+0x2d10 in sync.rs:18
=========     by thread (1,0,0) in block (0,0,0)
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719)
========= ERROR SUMMARY: 3 errors
";
        let reported = read("linear".into(), text, false);
        let expected = "Invalid __global__ read of size 16 bytes at linear_f32_f32_16x64";
        assert_eq!(reported.reports[expected], 2);
        assert_eq!(reported.reports.len(), 2);
        assert!(!reported.passed);
    }
}
