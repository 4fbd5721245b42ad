//! Which kernel a linear operation runs: one pure function of the problem and the device.
//!
//! The model of the kernels' times is in `cost`. Each choice gives the same answer within the operation's error bound.

mod cost;
mod halves;
#[cfg(test)]
mod tests;
mod tile;

use warpsmith_dsl::gemm::narrow;
use warpsmith_kernels::linear_hopper::HopperCooperative128x256;

pub(crate) use cost::{MOST_PARTS, sums_picoseconds};
use cost::{picoseconds, picoseconds_of_launch};
use halves::Halves;
pub(crate) use halves::halves_of;
pub use tile::Tile;

use crate::DType;
use crate::kernel::is_built;
use crate::ops::Products;

impl Tile {
    /// How its launch for these rows, columns and matrices is dealt out, if it may have halves.
    pub(crate) fn halves(self, sizes: [u32; 3], multiprocessors: u32) -> Option<Halves> {
        let has_halves = self == Self::HopperCooperative128x256Halves;
        has_halves.then(|| halves_of::<HopperCooperative128x256>(sizes, multiprocessors))
    }

    /// How many blocks share the sums of each tile, of those that are told at each launch.
    pub(crate) fn parts(self, problem: &Problem, limits: &Limits) -> u32 {
        cost::parts(self, problem, limits)
    }

    /// Whether its launch differs from those of all tiles before it: one with halves may have none.
    fn is_distinct(self, problem: &Problem, limits: &Limits) -> bool {
        let halves = self.halves([problem.m, problem.n, problem.batch], limits.multiprocessors);
        halves.is_none_or(|halves| halves.pieces > 0)
    }

    /// Whether a device has a kernel with this tile for a problem.
    fn computes(self, problem: &Problem, limits: &Limits) -> bool {
        self.runs_on(limits.compute_capability)
            && self.serves(problem.input, problem.access)
            && self.serves_output(problem.input, problem.output)
            && self.products(problem.input).is_at_least(problem.products)
            // There is no tensor map of a matrix without columns.
            && (problem.k > 0 || !self.is_hopper())
            && (problem.stores_boxes || !self.needs_boxes())
            && self.serves_fused(problem.fused)
            && (self != Self::Narrow16x256 || (problem.batch == 1 && narrow::fits(problem.k, problem.n)))
            // Turing's kernels read chunks.
            && (problem.access == Access::Aligned || limits.compute_capability >= AMPERE)
            && self.shared_bytes() <= limits.max_shared_per_block
    }
}

/// The first compute capability that kernels run on, of one tile.
pub(crate) const TURING: (u32, u32) = (7, 5);
/// The first compute capability with all portable tiles.
const AMPERE: (u32, u32) = (8, 0);

/// The compute capability of Hopper's kernels, which run on no other.
const HOPPER: (u32, u32) = (9, 0);

/// Whether a device of this compute capability has kernels that round f32 to TF32.
pub(crate) fn has_tf32(compute_capability: (u32, u32)) -> bool {
    compute_capability >= AMPERE
}

/// Whether Hopper's kernels run on a device of this compute capability.
pub(crate) fn is_hopper(compute_capability: (u32, u32)) -> bool {
    compute_capability == HOPPER
}

/// How a kernel reads x and w.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// In chunks of 16 bytes along K: base addresses and row strides are multiples of 16 bytes.
    Aligned,
    /// In chunks of 16 bytes, of x along its columns: x lies as K × M, and w as N × K or K × N.
    Across,
    /// In chunks of 16 bytes, of w alone along its columns: x lies as M × K, and w as K × N.
    WAcross,
    /// In words of 4, 8 or 16 bytes along K: base addresses and row strides are multiples of 4 bytes.
    Words,
    /// Of x many rows at a time, of w single elements: x and y are one matrix each, whose rows follow each other without gaps from a multiple
    /// of 16 bytes on, w is one that lies in any way, and nothing is done to the products but scaling by one number, a bias and the activation.
    Dense,
    /// One element at a time: x and w lie in any way.
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
    /// The inputs' type.
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
}

/// The tile to compute `problem` with; `None` if no tile fits the device's shared memory.
#[must_use]
pub fn select(problem: &Problem, limits: &Limits) -> Option<Tile> {
    // Where memory takes longest, halves are estimated to take the time of whole tiles, but leave multiprocessors for others.
    candidates(problem, limits).min_by_key(|tile| {
        (picoseconds(*tile, problem, limits), *tile != Tile::HopperCooperative128x256Halves)
    })
}

/// The tiles that compute `problem` on a device with these limits, and whose kernels this program has.
pub fn candidates(problem: &Problem, limits: &Limits) -> impl Iterator<Item = Tile> {
    let has_kernels = |tile: &Tile| is_built(tile.family());
    let computes = |tile: &Tile| tile.computes(problem, limits) && tile.is_distinct(problem, limits);
    Tile::ALL.into_iter().filter(has_kernels).filter(computes)
}

/// The time of `problem` with `tile`, or with the tile that [`select`] chooses, in picoseconds; `None` if there is no kernel for it. Of a `tile` that is
/// named, the kernel may be one of another family.
pub(crate) fn estimate(tile: Option<Tile>, problem: &Problem, limits: &Limits) -> Option<u128> {
    let tile = match tile {
        Some(tile) => Some(tile).filter(|tile| tile.computes(problem, limits)),
        None => select(problem, limits),
    };
    tile.map(|tile| picoseconds(tile, problem, limits))
}

/// As [`estimate`] of a tile, for kernels that are like that of the linear operation with it, but cannot have sums in parts that a second launch adds.
pub(crate) fn estimate_of_launch(tile: Tile, problem: &Problem, limits: &Limits) -> Option<u128> {
    tile.computes(problem, limits).then(|| picoseconds_of_launch(tile, problem, limits))
}
