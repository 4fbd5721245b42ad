//! The errors of the public functions.
//!
//! Their `Debug` is their `Display`: a `main` or a test that returns one prints the whole diagnostic.

use std::fmt;

use crate::check::Finding;

/// Gives errors their `Display` as `Debug`, on a line of its own where it has several.
macro_rules! shown_when_debugged {
    ($($error:ty),*) => {
        $(
            impl std::fmt::Debug for $error {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    $crate::error::debug(self, f)
                }
            }
        )*
    };
}
pub(crate) use shown_when_debugged;

/// What `main` prints stands behind `Error: `, where the columns of a diagnostic would not fit.
pub(crate) fn debug(error: &dyn fmt::Display, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = error.to_string();
    if text.trim_end().contains('\n') { write!(f, "\n{text}") } else { f.write_str(&text) }
}

shown_when_debugged!(ParseError, MemoryError, LaunchError);

/// Why a text is not a module that the emulator can run.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
#[non_exhaustive]
pub struct ParseError {
    /// The name that was given with the text.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What was found, and what was expected.
    pub message: String,
}

/// Why an operation on the machine's memory was refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The allocation does not fit in the machine's memory.
    #[error("out of memory: {requested} bytes asked for, {available} of {capacity} left")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes left.
        available: u64,
        /// Bytes of the whole machine.
        capacity: u64,
    },
    /// The range is not inside one live allocation.
    #[error("{operation} of {bytes} bytes at {address:#x}: {what}")]
    BadRange {
        /// What was attempted: read, write, fill or copy.
        operation: &'static str,
        /// Its first byte.
        address: u64,
        /// Its length.
        bytes: u64,
        /// What is there instead.
        what: String,
    },
    /// The address is not the start of a live allocation.
    #[error("free of {address:#x}: {what}")]
    BadFree {
        /// The address.
        address: u64,
        /// What is there instead.
        what: String,
    },
}

/// How an argument is named: "argument 1, `y`".
pub(crate) fn argument(index: usize, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("argument {}, `{name}`", index + 1),
        None => format!("argument {}", index + 1),
    }
}

/// Why a launch failed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The module has no entry of that name.
    #[error("no kernel `{name}` in {file}; it has {available}")]
    UnknownKernel {
        /// The name asked for.
        name: String,
        /// The module.
        file: String,
        /// The entries that there are.
        available: String,
    },
    /// The number of arguments is not the number of parameters.
    #[error("kernel `{kernel}` takes {expected} arguments, got {actual}")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Its parameters.
        expected: usize,
        /// The arguments given.
        actual: usize,
    },
    /// An argument has not the size of its parameter.
    #[error("{} of kernel `{kernel}` has {actual} bytes, the parameter has {expected}", argument(*index, name.as_deref()))]
    ArgumentSize {
        /// The kernel.
        kernel: String,
        /// The parameter's position, from 0. People are told it from 1.
        index: usize,
        /// Its name, if the text has it.
        name: Option<String>,
        /// Bytes of the parameter.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// The cluster does not have the shape that the kernel requires, or does not divide the grid.
    #[error("kernel `{kernel}`: expected a cluster of {expected}, got {actual:?}")]
    ClusterShape {
        /// The kernel.
        kernel: String,
        /// What it declares, or what the grid allows.
        expected: String,
        /// The shape given.
        actual: [u32; 3],
    },
    /// The block does not have the shape that the kernel requires.
    #[error("kernel `{kernel}` requires a block of {expected}, got {actual:?}")]
    BlockShape {
        /// The kernel.
        kernel: String,
        /// What it declares.
        expected: String,
        /// The shape given.
        actual: [u32; 3],
    },
    /// A quantity of the launch exceeds what the machine has, or is 0.
    #[error("launch of `{kernel}`: {what} is {actual}, the limit is {limit}")]
    Limit {
        /// The kernel.
        kernel: String,
        /// The quantity.
        what: &'static str,
        /// Its value.
        actual: u64,
        /// The largest value.
        limit: u64,
    },
    /// The module is for a GPU that the machine does not stand for.
    #[error("{file} is for {target}, the machine is sm_{}{}", machine.0, machine.1)]
    Architecture {
        /// The module.
        file: String,
        /// What its `.target` says.
        target: String,
        /// The machine's compute capability.
        machine: (u32, u32),
    },
    /// The module's variables do not fit in the machine's memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A check found an error in the kernel.
    #[error("{0}")]
    Finding(Box<Finding>),
    /// The threads to run on could not be started.
    #[error("cannot start the emulator's threads: {0}")]
    Threads(String),
}
