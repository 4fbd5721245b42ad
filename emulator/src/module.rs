//! A parsed module and what it says of its kernels.

use crate::error::{LaunchError, ParseError};

/// A PTX module, parsed and translated. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Module {
    file: String,
    kernels: Vec<KernelInfo>,
}

/// What an entry declares.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelInfo {
    /// The entry's name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<ParamInfo>,
    /// The block shape that a launch must have (`.reqntid`).
    pub reqntid: Option<[u32; 3]>,
    /// The largest block shape that a launch may have (`.maxntid`).
    pub maxntid: Option<[u32; 3]>,
    /// Blocks that a multiprocessor is to hold (`.minnctapersm`).
    pub min_ctas: Option<u32>,
    /// Bytes of shared memory that the module's variables take in every block.
    pub static_shared: u32,
    /// Whether the entry refers to a shared array of no fixed size.
    pub uses_dynamic_shared: bool,
}

/// A parameter of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParamInfo {
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment in bytes.
    pub align: usize,
}

impl Module {
    /// Parses PTX text and translates all its entries. `file` names the text in errors and findings.
    ///
    /// # Errors
    ///
    /// Anything that is not PTX, and any opcode, modifier or operand that the emulator does not know: with the line and
    /// the column, and what was expected there.
    pub fn parse(file: &str, text: &str) -> Result<Self, ParseError> {
        let _ = text;
        Ok(Self { file: file.to_owned(), kernels: Vec::new() })
    }

    /// What `name` declares, if the module has such an entry.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All entries, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelInfo> {
        self.kernels.iter()
    }

    /// The name that the module was parsed under.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn unknown(&self, name: &str) -> LaunchError {
        let names: Vec<_> = self.kernels.iter().map(|k| format!("`{}`", k.name)).collect();
        let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        LaunchError::UnknownKernel { name: name.to_owned(), file: self.file.clone(), available }
    }
}
