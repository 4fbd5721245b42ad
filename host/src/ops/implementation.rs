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
    /// Two kernels, one after the other, because none does it all.
    Sequence {
        /// The kernels' entry points.
        kernels: [&'static str; 2],
        /// Blocks of their launches.
        blocks: [u32; 2],
        /// Whether they run in the emulator, not on a GPU.
        emulated: bool,
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

    /// Two implementations on one device, one after the other.
    pub(crate) fn sequence(first: Self, second: Self) -> Self {
        let part = |part| match part {
            Self::Cuda { kernel, blocks } => Some((kernel, blocks, false)),
            Self::Emulator { kernel, blocks } => Some((kernel, blocks, true)),
            _ => None,
        };
        match (part(first), part(second)) {
            (Some((first, of_first, emulated)), Some((second, of_second, _))) => {
                Self::Sequence { kernels: [first, second], blocks: [of_first, of_second], emulated }
            }
            (Some(_), None) => first,
            _ => second,
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
            Self::Sequence { kernels: [first, second], blocks: [of_first, of_second], emulated } => {
                let place = if *emulated { "in the emulator" } else { "on the GPU" };
                write!(formatter, "kernels {first} and {second} {place}, {of_first} and {of_second} blocks")
            }
            Self::Cpu => formatter.write_str("CPU implementation"),
            Self::Empty => formatter.write_str("nothing to run"),
        }
    }
}
