//! Which implementation an operation runs.

use std::fmt;
use std::ops::Deref;

use crate::device::{Device, DeviceKind};

/// What runs an operation on a device.
// A list behind a pointer could not be copied as the others are.
#[allow(clippy::large_enum_variant)]
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
    /// Several kernels, one after the other, because none does it all.
    Sequence {
        /// The kernels in the order of their first launches, each once.
        launches: Launches,
        /// Whether they run in the emulator, not on a GPU.
        emulated: bool,
        /// Operands that are first copied into rows that the kernels can read, of all together.
        copies: u32,
    },
    /// The CPU implementation.
    Cpu,
    /// Nothing runs: the result has no elements.
    Empty,
}

impl Implementation {
    /// The kernel `kernel` on `device`, which reads all operands in place.
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

    /// Operands that a kernel does not read in place: they are copied first. 0 where no kernel runs.
    #[must_use]
    pub fn copies(&self) -> u32 {
        match *self {
            Self::Cuda { copies, .. } | Self::Emulator { copies, .. } | Self::Sequence { copies, .. } => {
                copies
            }
            Self::Cpu | Self::Empty => 0,
        }
    }

    /// This and then another one, on the same device.
    #[must_use]
    pub fn then(self, second: Self) -> Self {
        let first = self;
        let (of_first, of_second) = (first.launches(), second.launches());
        if of_second.is_empty() {
            return first;
        }
        if of_first.is_empty() {
            return second;
        }
        let emulated = matches!(first, Self::Emulator { .. } | Self::Sequence { emulated: true, .. });
        let launches = of_first.and(&of_second);
        Self::Sequence { launches, emulated, copies: first.copies() + second.copies() }
    }

    /// The kernels that run in the order of their first launches, but for copies of operands; none on the CPU. One that is launched again, for other columns
    /// or tokens, is there once.
    #[must_use]
    pub fn launches(&self) -> Launches {
        match *self {
            Self::Cuda { kernel, blocks, .. } | Self::Emulator { kernel, blocks, .. } => {
                Launches::default().and(&[Launch { kernel, blocks }])
            }
            Self::Sequence { launches, .. } => launches,
            Self::Cpu | Self::Empty => Launches::default(),
        }
    }
}

/// A kernel that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's entry point.
    pub kernel: &'static str,
    /// Blocks of the launch.
    pub blocks: u32,
}

/// Kernels that run one after the other, each with the blocks of its first launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    all: [Launch; Self::MOST],
    count: usize,
}

impl Launches {
    /// The most that are told: a selection of ever fewer parts has no more.
    const MOST: usize = 8;

    /// These, then those; what is more than there is room for is left out.
    fn and(mut self, then: &[Launch]) -> Self {
        for (place, &launch) in self.all[self.count..].iter_mut().zip(then) {
            *place = launch;
            self.count += 1;
        }
        self
    }
}

impl Deref for Launches {
    type Target = [Launch];

    fn deref(&self) -> &[Launch] {
        &self.all[..self.count]
    }
}

/// Writes words as `a`, `a and b` or `a, b and c`.
fn write_list<T: fmt::Display>(
    formatter: &mut fmt::Formatter<'_>,
    words: impl ExactSizeIterator<Item = T>,
) -> fmt::Result {
    let count = words.len();
    words.enumerate().try_for_each(|(index, word)| match index {
        0 => write!(formatter, "{word}"),
        _ if index + 1 == count => write!(formatter, " and {word}"),
        _ => write!(formatter, ", {word}"),
    })
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
            Self::Sequence { launches, emulated, .. } => {
                let place = if *emulated { "in the emulator" } else { "on the GPU" };
                formatter.write_str("kernels ")?;
                write_list(formatter, launches.iter().map(|launch| launch.kernel))?;
                write!(formatter, " {place}, ")?;
                write_list(formatter, launches.iter().map(|launch| launch.blocks))?;
                formatter.write_str(" blocks")?;
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

#[cfg(test)]
mod tests {
    use super::{Implementation, Launch};
    use crate::Device;

    #[test]
    fn a_sequence_names_its_kernels_in_their_order() {
        let device = Device::emulator();
        let kernel = |name, blocks| Implementation::kernel(&device, name, blocks);
        let one = kernel("a", 1).with_copies(1);
        assert_eq!(*one.launches(), [Launch { kernel: "a", blocks: 1 }]);
        let two = one.then(kernel("b", 2));
        assert_eq!(
            two.to_string(),
            "kernels a and b in the emulator, 1 and 2 blocks, 1 operand copied first"
        );
        let three = two.then(kernel("c", 3).with_copies(1));
        let expected = "kernels a, b and c in the emulator, 1, 2 and 3 blocks, 2 operands copied first";
        assert_eq!(three.to_string(), expected);
        assert_eq!(three.launches().len(), 3);
        assert_eq!(Implementation::Empty.then(one), one);
        assert_eq!(two.then(Implementation::Cpu), two);
        assert!(Implementation::Cpu.launches().is_empty());
    }
}
