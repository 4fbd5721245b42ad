//! NVIDIA's assembler, where there is one: does it take the PTX, and what does each kernel then use?
//!
//! Its answers bind the PTX to no machine: it runs without a GPU, and the driver's own assembler is the same code.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::arch::Arch;
use crate::check::Violation;
use crate::nvidia;

/// Environment variable that names the ptxas to use.
pub const PTXAS_VARIABLE: &str = "WARPSMITH_PTXAS";

/// An assembler that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    /// The program.
    pub path: PathBuf,
    /// Its version, e.g. `13.0.88`.
    pub version: String,
}

/// What came of assembling one PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The architecture that it was assembled for.
    pub arch: Arch,
    /// What each kernel uses, in the order in which ptxas compiled them.
    pub kernels: Vec<KernelUsage>,
    /// Reasons not to use the file.
    pub violations: Vec<Violation>,
}

/// What one kernel uses on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUsage {
    /// The entry's name.
    pub name: String,
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block, in bytes.
    pub static_shared: u32,
    /// Stack a thread, in bytes.
    pub stack: u32,
    /// Bytes of spilled registers stored.
    pub spill_stores: u32,
    /// Bytes of spilled registers loaded.
    pub spill_loads: u32,
}

/// One architecture of each generation after Ampere, and the CUDA release since which ptxas knows it.
const LATER: &[(Arch, (u32, u32))] = &[
    (Arch::SM_80, (11, 0)),
    (Arch { major: 8, minor: 9, specific: false }, (11, 8)),
    (Arch { major: 9, minor: 0, specific: false }, (11, 8)),
    (Arch { major: 10, minor: 0, specific: false }, (12, 8)),
    (Arch { major: 12, minor: 0, specific: false }, (12, 8)),
];

impl Ptxas {
    /// Finds an assembler: what [`PTXAS_VARIABLE`] names, then `PATH`, then a CUDA toolkit, then a PyPI wheel; `None` where there
    /// is none that runs.
    pub fn find() -> Option<Self> {
        nvidia::candidates("ptxas", PTXAS_VARIABLE, "cuda_nvcc").into_iter().find_map(|path| Self::at(&path))
    }

    /// The assembler at `path`, when it runs.
    pub fn at(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), version: nvidia::version(path)? })
    }

    /// The architectures that PTX for `arch` should be assembled for: that one, and where it runs on later ones (it does unless
    /// it is architecture-specific) one of each later generation that this ptxas knows. The driver assembles for those when
    /// the kernel is loaded, and registers are handed out differently on each.
    pub fn architectures(&self, arch: Arch) -> Vec<Arch> {
        let mut all = vec![arch];
        if !arch.specific {
            let later = LATER.iter().filter(|(later, since)| *later > arch && self.release() >= *since);
            all.extend(later.map(|(later, _)| *later));
        }
        all
    }

    fn release(&self) -> (u32, u32) {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Assembles a PTX text for an architecture.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the program cannot be started, [`Error::Io`] when the text cannot be handed to it. What it says
    /// *about* the text is in the result.
    pub fn assemble(&self, ptx: &str, arch: Arch) -> Result<Assembly, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let (_, succeeded, messages) = self.start(folder.path(), ptx, arch)?;
        let mut assembly = read(&messages, arch);
        if !succeeded {
            assembly.violations.insert(0, Violation::Rejected { arch, message: messages.trim().to_owned() });
        }
        Ok(assembly)
    }

    /// The machine code of a PTX text for an architecture: the bytes of a cubin file.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the program cannot be started or refuses the text, [`Error::Io`] when the text cannot be handed to it
    /// or its output not read.
    pub fn machine_code(&self, ptx: &str, arch: Arch) -> Result<Vec<u8>, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let (output, succeeded, messages) = self.start(folder.path(), ptx, arch)?;
        if !succeeded {
            let command = format!("{} -arch={arch} module.ptx", self.path.display());
            return Err(Error::Command { command, output: messages });
        }
        std::fs::read(&output).map_err(Error::io("read", output))
    }

    /// Runs the assembler in a folder: the file it writes, whether it succeeded, what it said.
    fn start(&self, folder: &Path, ptx: &str, arch: Arch) -> Result<(PathBuf, bool, String), Error> {
        let (input, output) = (folder.join("module.ptx"), folder.join("module.cubin"));
        std::fs::write(&input, ptx).map_err(Error::io("write", &input))?;
        let mut command = Command::new(&self.path);
        command.arg(format!("-arch={arch}")).arg("-v").arg(&input).arg("-o").arg(&output);
        let result = command.output().map_err(|error| Error::Command {
            command: crate::compile::display(&command),
            output: error.to_string(),
        })?;
        let messages =
            format!("{}{}", String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
        let messages = messages.replace(&*input.to_string_lossy(), "module.ptx");
        Ok((output, result.status.success(), messages))
    }
}

/// Reads what `ptxas -v` writes.
fn read(messages: &str, arch: Arch) -> Assembly {
    let mut kernels: Vec<KernelUsage> = Vec::new();
    let mut violations = Vec::new();
    for line in messages.lines() {
        // Spills of functions that are no entries are refused by name of the function.
        let quoted = || line.split('\'').nth(1).unwrap_or_default().to_owned();
        if line.contains("Compiling entry function") {
            kernels.push(KernelUsage { name: quoted(), ..KernelUsage::default() });
        } else if line.contains("bytes stack frame") {
            if let Some(kernel) = kernels.last_mut() {
                kernel.stack = number_before(line, " bytes stack frame").unwrap_or(0);
                kernel.spill_stores = number_before(line, " bytes spill stores").unwrap_or(0);
                kernel.spill_loads = number_before(line, " bytes spill loads").unwrap_or(0);
            }
        } else if line.contains(": Used ") {
            if let Some(kernel) = kernels.last_mut() {
                kernel.registers = number_before(line, " registers").unwrap_or(0);
                kernel.static_shared = number_before(line, " bytes smem").unwrap_or(0);
            }
        } else if is_warning(line) {
            violations.push(Violation::Warning { arch, message: line.trim().to_owned() });
        }
    }
    for kernel in &kernels {
        if kernel.stack > 0 {
            violations.push(Violation::Stack { arch, entry: kernel.name.clone(), bytes: kernel.stack });
        }
        if kernel.spill_stores > 0 || kernel.spill_loads > 0 {
            violations.push(Violation::Spill {
                arch,
                entry: kernel.name.clone(),
                stores: kernel.spill_stores,
                loads: kernel.spill_loads,
            });
        }
    }
    Assembly { arch, kernels, violations }
}

/// Warnings; and the notes C7508 to C7519 and their like (`wgmma` serialised, `setmaxnreg` ignored), which ptxas calls
/// information and which cost a kernel half its speed.
fn is_warning(line: &str) -> bool {
    let serialised = line.split("(C75").nth(1).is_some_and(|rest| rest.as_bytes().get(2) == Some(&b')'));
    line.contains("warning") || serialised || line.contains("Potential Performance Loss")
}

fn number_before(line: &str, unit: &str) -> Option<u32> {
    let before = &line[..line.find(unit)?];
    before.rsplit(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_for_each_kernel() {
        let assembly = read(
            "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'small' for 'sm_80'\n\
             ptxas info    : Function properties for small\n    \
             0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 12 registers, used 0 barriers, 372 bytes cmem[0]\n\
             ptxas info    : Compiling entry function 'large' for 'sm_80'\n\
             ptxas info    : Function properties for large\n    \
             48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n\
             ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 4096 bytes smem\n",
            Arch::SM_80,
        );
        let [small, large] = assembly.kernels.as_slice() else { panic!("{:?}", assembly.kernels) };
        assert_eq!(small, &KernelUsage { name: "small".into(), registers: 12, ..KernelUsage::default() });
        assert_eq!((large.registers, large.static_shared), (255, 4096));
        assert_eq!((large.stack, large.spill_stores, large.spill_loads), (48, 40, 44));
        assert_eq!(
            assembly.violations,
            [
                Violation::Stack { arch: Arch::SM_80, entry: "large".into(), bytes: 48 },
                Violation::Spill { arch: Arch::SM_80, entry: "large".into(), stores: 40, loads: 44 },
            ]
        );
    }

    #[test]
    fn portable_ptx_is_assembled_for_later_generations_that_ptxas_knows() {
        let names = |version: &str, arch: Arch| -> Vec<String> {
            let ptxas = Ptxas { path: PathBuf::new(), version: version.into() };
            ptxas.architectures(arch).iter().map(Arch::to_string).collect()
        };
        assert_eq!(names("13.0.88", Arch::SM_80), ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]);
        assert_eq!(names("13.0.88", Arch::SM_75)[..2], ["sm_75", "sm_80"]);
        assert_eq!(names("12.4.131", Arch::SM_80), ["sm_80", "sm_89", "sm_90"]);
        assert_eq!(names("11.4.48", Arch::SM_80), ["sm_80"]);
        assert_eq!(names("13.0.88", Arch::SM_90A), ["sm_90a"]);
    }

    #[test]
    fn warnings_and_serialisation_notes_are_violations_and_other_notes_are_not() {
        let lines = [
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to …",
            "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register …",
            "ptxas module.ptx, line 7; warning : Value of threads per SM for entry k is out of range",
            "ptxas warning : Unresolved extern variable",
        ];
        for line in lines {
            let violations = read(line, Arch::SM_80).violations;
            assert_eq!(violations, [Violation::Warning { arch: Arch::SM_80, message: line.into() }]);
        }
        assert_eq!(
            read("ptxas info    : Compile time = 2.188 ms\nptxas info    : (C8000) something", Arch::SM_80)
                .violations,
            []
        );
    }
}
