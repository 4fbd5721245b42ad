//! NVIDIA's disassembler, where there is one: what did the assembler make of the PTX?

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Ptxas, nvidia};

/// Environment variable that names the nvdisasm to use.
pub const NVDISASM_VARIABLE: &str = "WARPSMITH_NVDISASM";

/// A disassembler that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvdisasm {
    /// The program.
    pub path: PathBuf,
    /// Its version, e.g. `13.2.51`.
    pub version: String,
}

impl Nvdisasm {
    /// Finds a disassembler: what [`NVDISASM_VARIABLE`] names, then beside `ptxas`, then `PATH`, a CUDA toolkit, a PyPI wheel;
    /// `None` where there is none that runs.
    pub fn find(ptxas: Option<&Ptxas>) -> Option<Self> {
        let named = std::env::var_os(NVDISASM_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let beside = ptxas.map(|ptxas| ptxas.path.with_file_name("nvdisasm"));
        let elsewhere = nvidia::candidates("nvdisasm", NVDISASM_VARIABLE, "cuda_nvdisasm");
        named.into_iter().chain(beside).chain(elsewhere).find_map(|path| Self::at(&path))
    }

    /// The disassembler at `path`, when it runs.
    pub fn at(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), version: nvidia::version(path)? })
    }

    /// The code in a cubin file, with encodings: the text that [`machine_code::check`](crate::machine_code::check) reads.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the program cannot be started or refuses the file, [`Error::Io`] when the file cannot be handed to it.
    pub fn disassemble(&self, cubin: &[u8]) -> Result<String, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let input = folder.path().join("module.cubin");
        std::fs::write(&input, cubin).map_err(Error::io("write", &input))?;
        let mut command = Command::new(&self.path);
        command.args(["-c", "-hex"]).arg(&input);
        let failed = |output: String| Error::Command { command: crate::compile::display(&command), output };
        let result = Command::new(&self.path).args(["-c", "-hex"]).arg(&input).output();
        let result = result.map_err(|error| failed(error.to_string()))?;
        if !result.status.success() {
            // nvdisasm may crash without a word.
            let said = String::from_utf8_lossy(&result.stderr).into_owned();
            return Err(failed(if said.trim().is_empty() { result.status.to_string() } else { said }));
        }
        String::from_utf8(result.stdout).map_err(|error| Error::Answer {
            command: crate::compile::display(&command),
            reason: format!("expected UTF-8, found {error}"),
        })
    }
}
