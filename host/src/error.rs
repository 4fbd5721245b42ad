//! Everything that can go wrong, one variant a cause.
//!
//! Every variant that concerns an operand names the operation, the operand, what was expected and what came.

use std::fmt;
use std::path::PathBuf;

use crate::tensor::DType;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// `Debug` says the same as `Display`: it is what a `main` or a test that returns an error prints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand's shape does not fit the operation or the other operands.
    #[error("{operation}: `{operand}` has shape {actual:?}, expected {expected}")]
    Shape {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What the operation takes.
        expected: String,
        /// The operand's shape.
        actual: Vec<usize>,
    },

    /// An operand's strides do not allow what was asked for without a copy.
    #[error("{operation}: `{operand}` has strides {actual:?}, expected {expected}")]
    Stride {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What the operation takes.
        expected: String,
        /// The operand's strides, in elements.
        actual: Vec<usize>,
    },

    /// An operand's element type does not fit.
    #[error("{operation}: `{operand}` has elements of type {actual}, expected {expected}")]
    Type {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What the operation takes.
        expected: String,
        /// The operand's element type.
        actual: DType,
    },

    /// Operands, or an operand and a stream or kernel, belong to different devices.
    #[error("{operation}: `{operand}` is on {actual}, expected {expected}")]
    DeviceMismatch {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// The device that the operation runs on.
        expected: String,
        /// The device that the operand is on.
        actual: String,
    },

    /// An output shares memory with an input.
    #[error("{operation}: `{operand}` shares memory with `{other}`, expected separate memory")]
    Overlap {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand that is written.
        operand: &'static str,
        /// The operand that it shares memory with.
        other: &'static str,
    },

    /// An output is of memory that may only be read.
    #[error(
        "{operation}: `{operand}` is read-only, expected memory that may be written, as of `Tensor::from_foreign_mut`"
    )]
    ReadOnly {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand that would be written.
        operand: &'static str,
    },

    /// A device or the host has too little free memory; a device also after its pool was released and the allocation tried
    /// again.
    #[error("{operation}: out of memory on {device}: {requested} bytes requested, {}", free_memory(*free, *total))]
    OutOfMemory {
        /// The operation that was asked for.
        operation: &'static str,
        /// The device that has too little memory.
        device: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes that the device has; 0 if that is not known.
        total: u64,
    },

    /// A size is beyond what can be addressed or what the device takes.
    #[error("{operation}: {quantity} of `{operand}` is {actual}, expected {limit}")]
    SizeLimit {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What is too large.
        quantity: &'static str,
        /// The largest that is taken.
        limit: String,
        /// What came.
        actual: String,
    },

    /// An argument other than a tensor is out of its range.
    #[error("{operation}: {argument} is {actual}, expected {expected}")]
    Argument {
        /// The operation that was asked for.
        operation: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// What the operation takes.
        expected: String,
        /// What came.
        actual: String,
    },

    /// This machine has no usable NVIDIA driver.
    #[error(
        "opening a CUDA device: no NVIDIA driver, expected {expected}: {reason}; install the NVIDIA driver, or use `Device::cpu()` or \
         `Device::emulator()`"
    )]
    NoDriver {
        /// What was looked for.
        expected: String,
        /// What came of it.
        reason: String,
    },

    /// The driver does not know the PTX version that a module is written in.
    #[error(
        "loading `{module}`: PTX ISA {ptx} needs a driver for CUDA {required}, this driver is for CUDA {driver}: \
         update the NVIDIA driver"
    )]
    DriverTooOld {
        /// The module.
        module: String,
        /// The PTX ISA version that it is written in.
        ptx: String,
        /// The CUDA versions whose drivers know it.
        required: String,
        /// The CUDA version of the driver.
        driver: String,
    },

    /// The driver is older than a function that is needed.
    #[error(
        "{operation}: the driver has no `{function}`, expected a driver for CUDA {required} or later, this one is for CUDA {driver}: \
         update the NVIDIA driver"
    )]
    DriverLacksFunction {
        /// The operation that was asked for.
        operation: &'static str,
        /// The driver's function.
        function: &'static str,
        /// The CUDA version from which on drivers have it.
        required: String,
        /// The CUDA version of the driver.
        driver: String,
    },

    /// There is no device of that name or number.
    #[error("opening a device: `{requested}` does not exist, expected {available}")]
    NoSuchDevice {
        /// What was asked for.
        requested: String,
        /// What there is.
        available: String,
    },

    /// The device cannot do what was asked for.
    #[error("{operation}: not supported on {device}: expected {expected}, it has {actual}")]
    UnsupportedDevice {
        /// The operation that was asked for.
        operation: &'static str,
        /// The device.
        device: String,
        /// What the operation needs.
        expected: String,
        /// What the device offers.
        actual: String,
    },

    /// A launch does not fit what the kernel declares, or the device's limits.
    #[error("launching `{kernel}`: {quantity} is {actual}, expected {expected}")]
    LaunchLimit {
        /// The kernel's entry point.
        kernel: String,
        /// What does not fit.
        quantity: &'static str,
        /// What is taken.
        expected: String,
        /// What came.
        actual: String,
    },

    /// A module's text is not valid PTX for the device.
    #[error("loading `{module}` on {device}: invalid PTX: {log}")]
    InvalidPtx {
        /// The module.
        module: String,
        /// The device that refused it.
        device: String,
        /// What the compiler or parser said.
        log: String,
    },

    /// A module does not hold the kernel.
    #[error("kernel `{kernel}` is not in `{module}`, which holds {available}")]
    MissingKernel {
        /// The kernel's entry point.
        kernel: String,
        /// The module that was searched.
        module: String,
        /// The entry points that it holds.
        available: String,
    },

    /// The program was built without a kernel's family.
    #[error(
        "the kernels `{family}` are not in this program: enable the Cargo feature `{feature}` of `warpsmith`"
    )]
    MissingFamily {
        /// The kernel family.
        family: &'static str,
        /// The Cargo feature that has its kernels.
        feature: &'static str,
    },

    /// A kernel's type and the PTX entry that it names disagree.
    #[error("kernel `{kernel}`: {quantity} is {actual} in the PTX, expected {expected}")]
    KernelMismatch {
        /// The kernel's entry point.
        kernel: String,
        /// What disagrees.
        quantity: &'static str,
        /// What the kernel's type declares.
        expected: String,
        /// What the PTX has.
        actual: String,
    },

    /// A tensor map cannot be made of a tensor.
    #[error("making a tensor map: {0}")]
    TensorMap(#[from] warpsmith_emulator::TensorMapError),

    /// The emulator found a defect in a kernel.
    #[error("{0}")]
    Finding(Box<warpsmith_emulator::Finding>),

    /// The emulator could not run a kernel, for a reason that is no defect of it.
    #[error("{operation} on the emulator: {reason}")]
    Emulator {
        /// The operation that was asked for.
        operation: &'static str,
        /// Why it could not be done.
        reason: String,
    },

    /// The driver reported an error that has no variant of its own.
    #[error("{operation}: the driver reports {name} ({code}): {message}")]
    Driver {
        /// The operation that was asked for.
        operation: &'static str,
        /// The driver's error code.
        code: i32,
        /// Its name.
        name: String,
        /// What it means.
        message: String,
    },

    /// A file of weights is damaged, or lacks what a layer needs.
    #[error("loading weights from {source_name}: {}expected {expected}, {actual}", of_tensor(tensor))]
    Weights {
        /// The file or buffer.
        source_name: String,
        /// The tensor at fault; empty if it is the file.
        tensor: String,
        /// What the layer needs.
        expected: String,
        /// What the file holds.
        actual: String,
    },

    /// A file could not be read or written.
    #[error("{operation} {path}: {source}", path = path.display())]
    Io {
        /// The operation that was asked for.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn free_memory(free: u64, total: u64) -> String {
    match total {
        0 => "more than it can give".into(),
        _ => format!("{free} of {total} bytes free"),
    }
}

fn of_tensor(tensor: &str) -> String {
    if tensor.is_empty() { String::new() } else { format!("tensor `{tensor}`: ") }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn out_of_memory_says_no_more_than_is_known() {
        let error = |total| Error::OutOfMemory {
            operation: "test",
            device: "the host".into(),
            requested: 7,
            free: 3,
            total,
        };
        let known = error(5).to_string();
        assert_eq!(known, "test: out of memory on the host: 7 bytes requested, 3 of 5 bytes free");
        assert!(!error(0).to_string().contains("of 0 bytes"));
    }

    #[test]
    fn a_program_that_returns_an_error_prints_what_it_says() {
        let error = Error::ReadOnly { operation: "linear", operand: "y" };
        assert_eq!(format!("{error:?}"), error.to_string());
        let finding = crate::Weights::from_bytes(*b"no weights").unwrap_err();
        assert_eq!(format!("{finding:?}"), finding.to_string());
    }

    #[test]
    fn a_damaged_weights_file_is_not_blamed_on_a_tensor() {
        let error = crate::Weights::from_bytes(*b"no weights").expect_err("it is no such file").to_string();
        assert!(!error.contains("tensor `"), "{error}");
        assert!(error.contains("a buffer of 10 bytes: expected a whole safetensors file"), "{error}");
    }
}
