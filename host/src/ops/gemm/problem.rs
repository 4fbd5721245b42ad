//! What the choice of a kernel depends on: the problem, and what it needs to know of a device.

use crate::DType;
use crate::ops::Products;

/// The first compute capability that kernels run on, of one tile.
pub(crate) const TURING: (u32, u32) = (7, 5);
/// The first compute capability with all portable tiles.
pub(super) const AMPERE: (u32, u32) = (8, 0);
/// The first compute capability whose `mma.sync` multiplies 8-bit floating-point types.
pub(super) const ADA: (u32, u32) = (8, 9);

/// The compute capability of Hopper's kernels, which run on no other.
pub(super) const HOPPER: (u32, u32) = (9, 0);

/// Whether a device of this compute capability has kernels that round f32 to TF32.
pub(crate) fn has_tf32(compute_capability: (u32, u32)) -> bool {
    compute_capability >= AMPERE
}

/// Whether Hopper's kernels run on a device of this compute capability.
pub(crate) fn is_hopper(compute_capability: (u32, u32)) -> bool {
    compute_capability == HOPPER
}

/// Whether a type is one of 8-bit floating-point numbers.
pub(super) const fn is_fp8(input: DType) -> bool {
    matches!(input, DType::F8E4M3 | DType::F8E5M2)
}

/// How a kernel reads x and w.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// In chunks of 16 bytes along K: base addresses and row strides are multiples of 16 bytes.
    Aligned,
    /// In chunks of 16 bytes, of x along its columns: x is stored as K × M, and w as N × K or K × N.
    Across,
    /// In chunks of 16 bytes, of w alone along its columns: x is stored as M × K, and w as K × N.
    WAcross,
    /// In words of 4, 8 or 16 bytes along K: base addresses and row strides are multiples of 4 bytes.
    Words,
    /// Of x many rows at a time, of w single elements. x and y are one matrix each, whose rows follow each other without gaps
    /// from a multiple of 16 bytes on. w is a matrix with any strides. Nothing is done to the products but scaling by one
    /// number, a bias and the activation.
    Dense,
    /// One element at a time: x and w have any strides.
    Strided,
}

impl Access {
    /// Every access.
    pub const ALL: [Self; 6] =
        [Self::Aligned, Self::Across, Self::WAcross, Self::Words, Self::Dense, Self::Strided];
}

/// What is done to products before they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fused {
    /// Nothing but scaling by one number, a bias, and ReLU or no activation.
    Floor,
    /// The same with another activation.
    Activation,
    /// A ReLU mask, beside what the others are.
    Mask,
    /// More: a residual, scales of rows or columns, or a pre-activation.
    Terms,
    /// A function of a program's [own](crate::ops::fused), which has kernels for [some tiles](super::Tile::serves_fused).
    Own,
}

impl Fused {
    /// Whether it reads and stores nothing of its own but the bias.
    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Floor | Self::Activation)
    }
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Rows of x and y.
    pub m: u32,
    /// Rows of w, columns of y.
    pub n: u32,
    /// Columns of x and w.
    pub k: u32,
    /// How many products of these sizes there are.
    pub batch: u32,
    /// The inputs' type. Of 8-bit types, for which the same kernels run, any.
    pub input: DType,
    /// The output's type.
    pub output: DType,
    /// How x and w can be read.
    pub access: Access,
    /// How the inputs are to be multiplied, or more exactly.
    pub products: Products,
    /// Whether the copy engine can store y, whose rows and their length are then multiples of 16 bytes, and so are those of the residual, whose rows
    /// are of less than 2³¹ bytes, and of the pre-activation.
    pub stores_boxes: bool,
    /// What is done to the products.
    pub fused: Fused,
    /// Columns of a second pair of operands, in which the sums go on; 0 where there is none. Its rows are contiguous and start at multiples of 16 bytes.
    pub rank: u32,
}

/// What the choice needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its compute capability.
    pub compute_capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may have, in bytes.
    pub max_shared_per_block: u32,
    /// Shared memory that the blocks of a multiprocessor have together, in bytes.
    pub shared_per_multiprocessor: u32,
    /// Bytes that its memory moves in a microsecond at most, by its clock and width; 0 where these are not known.
    pub memory_bandwidth: u64,
    /// Whether its driver takes kernels that multiply 8-bit numbers by `mma.sync`: PTX 8.4, that of CUDA 12.4.
    pub takes_fp8_mma: bool,
}
