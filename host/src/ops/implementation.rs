//! Which implementation an operation runs.

use std::fmt;

use crate::device::{Device, DeviceKind};

/// What runs an operation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// A kernel on a GPU.
    Cuda {
        /// The kernel's entry point.
        kernel: &'static str,
        /// Blocks of the launch.
        blocks: u32,
    },
    /// The same kernel in the emulator.
    Emulator {
        /// The kernel's entry point.
        kernel: &'static str,
        /// Blocks of the launch.
        blocks: u32,
    },
    /// The CPU implementation.
    Cpu,
    /// Nothing runs: the result has no elements.
    Empty,
}

impl Implementation {
    /// The kernel `kernel` on `device`.
    pub(crate) fn kernel(device: &Device, kernel: &'static str, blocks: u32) -> Self {
        match device.kind() {
            DeviceKind::Emulator => Self::Emulator { kernel, blocks },
            _ => Self::Cuda { kernel, blocks },
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda { kernel, blocks } => write!(formatter, "kernel {kernel} on the GPU, {blocks} blocks"),
            Self::Emulator { kernel, blocks } => {
                write!(formatter, "kernel {kernel} in the emulator, {blocks} blocks")
            }
            Self::Cpu => formatter.write_str("CPU implementation"),
            Self::Empty => formatter.write_str("nothing to run"),
        }
    }
}
