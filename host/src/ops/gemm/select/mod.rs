//! Which kernel computes a problem: one pure function of the problem and the device.
//!
//! The model of the kernels' times is in [`cost`](super::cost). Each choice gives the same answer within the operation's error bound.

#[cfg(test)]
mod tests;

use super::cost::{picoseconds, picoseconds_of_launch};
use super::{Fused, Limits, Problem, Tile, is_hopper};
use crate::kernel::is_built;

/// The family of kernels whose sums go on in a second pair of operands.
const JOINED: &str = "linear_joined";

/// The tile to compute `problem` with; `None` if no tile fits the device's shared memory.
#[must_use]
pub fn select(problem: &Problem, limits: &Limits) -> Option<Tile> {
    // Hopper multiplies 8-bit numbers by `mma.sync` as numbers of f16. That is enough for few rows, which wait for memory.
    let is_choice = |tile: &Tile| {
        let is_enough = *tile == Tile::Fp8Ada16x64 || !is_hopper(limits.compute_capability);
        !tile.is_ada() || limits.takes_fp8_mma && is_enough
    };
    // Where memory takes longest, halves are estimated to take the time of whole tiles, but leave multiprocessors for others.
    candidates(problem, limits).filter(is_choice).min_by_key(|tile| {
        (picoseconds(*tile, problem, limits), *tile != Tile::HopperCooperative128x256Halves)
    })
}

/// The tiles that compute `problem` on a device with these limits, and whose kernels this program has.
pub fn candidates(problem: &Problem, limits: &Limits) -> impl Iterator<Item = Tile> {
    let is_own = problem.fused == Fused::Own;
    let has_kernels =
        move |tile: &Tile| is_own || (is_built(tile.family()) && (problem.rank == 0 || is_built(JOINED)));
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
