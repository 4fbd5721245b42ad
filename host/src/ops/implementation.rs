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
        /// Operands that are first copied into rows that the kernel can read, which takes a launch or more each, or one for both.
        copies: u32,
    },
    /// The same kernel in the emulator.
    Emulator {
        /// The kernel's entry point.
        kernel: &'static str,
        /// Blocks of the launch.
        blocks: u32,
        /// Operands that are first copied into rows that the kernel can read, which takes a launch or more each, or one for both.
        copies: u32,
    },
    /// Two kernels, one after the other, because none does it all.
    Sequence {
        /// The kernels' entry points.
        kernels: [&'static str; 2],
        /// Blocks of their launches.
        blocks: [u32; 2],
        /// Whether they run in the emulator, not on a GPU.
        emulated: bool,
        /// Operands that are first copied into rows that the kernels can read, of both together.
        copies: u32,
    },
    /// The CPU implementation.
    Cpu,
    /// Nothing runs: the result has no elements.
    Empty,
}

impl Implementation {
    /// The kernel `kernel` on `device`, which reads all operands where they lie.
    pub(crate) fn kernel(device: &Device, kernel: &'static str, blocks: u32) -> Self {
        match device.kind() {
            DeviceKind::Emulator => Self::Emulator { kernel, blocks, copies: 0 },
            _ => Self::Cuda { kernel, blocks, copies: 0 },
        }
    }

    /// The same with so many operands that are copied first.
    pub(crate) fn with_copies(mut self, count: usize) -> Self {
        if let Self::Cuda { copies, .. } | Self::Emulator { copies, .. } | Self::Sequence { copies, .. } =
            &mut self
        {
            *copies = u32::try_from(count).unwrap_or(u32::MAX);
        }
        self
    }

    /// Operands that a kernel does not read where they lie: they are copied first. 0 where no kernel runs.
    #[must_use]
    pub fn copies(&self) -> u32 {
        match *self {
            Self::Cuda { copies, .. } | Self::Emulator { copies, .. } | Self::Sequence { copies, .. } => {
                copies
            }
            Self::Cpu | Self::Empty => 0,
        }
    }

    /// Two implementations on one device, one after the other.
    pub(crate) fn sequence(first: Self, second: Self) -> Self {
        let part = |part| match part {
            Self::Cuda { kernel, blocks, .. } => Some((kernel, blocks, false)),
            Self::Emulator { kernel, blocks, .. } => Some((kernel, blocks, true)),
            _ => None,
        };
        match (part(first), part(second)) {
            (Some((of_first, first_blocks, emulated)), Some((of_second, second_blocks, _))) => {
                Self::Sequence {
                    kernels: [of_first, of_second],
                    blocks: [first_blocks, second_blocks],
                    emulated,
                    copies: first.copies() + second.copies(),
                }
            }
            (Some(_), None) => first,
            _ => second,
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda { kernel, blocks, .. } => {
                write!(formatter, "kernel {kernel} on the GPU, {blocks} blocks")?;
            }
            Self::Emulator { kernel, blocks, .. } => {
                write!(formatter, "kernel {kernel} in the emulator, {blocks} blocks")?;
            }
            Self::Sequence { kernels: [first, second], blocks: [of_first, of_second], emulated, .. } => {
                let place = if *emulated { "in the emulator" } else { "on the GPU" };
                write!(formatter, "kernels {first} and {second} {place}, {of_first} and {of_second} blocks")?;
            }
            Self::Cpu => formatter.write_str("CPU implementation")?,
            Self::Empty => formatter.write_str("nothing to run")?,
        }
        match self.copies() {
            0 => Ok(()),
            1 => formatter.write_str(", 1 operand copied first"),
            copies => write!(formatter, ", {copies} operands copied first"),
        }
    }
}
