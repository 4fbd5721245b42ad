//! The linear operation whose sums go on in two more matrices: `Y = act([X | G] [W | Uᵀ]ᵀ + …)`.
//!
//! Another product and the codes make G before ([`products`](super::products)). So the updates cost the linear operation no more than as many
//! columns of X as they have ranks. The planner of products chooses the variant, as it does for the linear operation alone.

use super::operands::Problem;
use super::{UpdateInput, Way, no_way};
use crate::device::Device;
use crate::error::Result;
use crate::ops::Implementation;
use crate::ops::gemm::{self, Access, Division, Fused, Kernels, Limits, Operands, Tile, estimate, select};
use crate::stream::Stream;
use crate::tensor::DType;

/// How a linear operation is computed whose sums go on in G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    tile: Tile,
    division: Division,
}

impl Choice {
    /// Blocks of the first launch.
    pub(super) fn blocks(self) -> u32 {
        self.division.blocks
    }

    #[cfg(test)]
    pub(super) fn tile(self) -> Tile {
        self.tile
    }

    #[cfg(test)]
    pub(super) fn parts(self) -> u32 {
        self.division.parts
    }
}

/// The variant that is the fastest once G is there, and its time in picoseconds; `None` if none can. `fused` is what is done to the sums,
/// `tile` the only one that will do, and `parts` how many parts of each sum it computes instead of as many as are fastest.
pub(super) fn choose(
    problem: &Problem,
    fused: Fused,
    tile: Option<Tile>,
    parts: Option<u32>,
    limits: &Limits,
) -> Option<(Choice, u128)> {
    let &Problem { k, rank, dtype, .. } = problem;
    if problem.access != Access::Aligned || dtype == DType::F32 || k == 0 {
        return None;
    }
    let product = gemm::Problem { fused, rank, ..problem.linear(limits) };
    let tile = tile.or_else(|| select(&product, limits))?;
    let time = estimate(Some(tile), &product, limits)?;
    let division = Division::of(tile, &product, parts, limits, i32::MAX as u32).ok()?;
    (parts.is_none_or(|parts| parts == division.parts)).then_some((Choice { tile, division }, time))
}

/// The kernels of a choice.
fn kernels<T: UpdateInput>(choice: Choice) -> Result<Kernels<T, T>> {
    let kernels = Kernels::joined(choice.tile, choice.division.parts);
    kernels.ok_or_else(|| no_way("linear_with_update", Way::Joined(choice.tile)))
}

/// What runs for an output of `sizes`, rows and columns, after `copies` copies.
pub(super) fn implementation<T: UpdateInput>(
    device: &Device,
    choice: Choice,
    [m, n]: [u32; 2],
    copies: usize,
) -> Result<Implementation> {
    let (first, sums) = kernels::<T>(choice)?.names();
    let first = Implementation::kernel(device, first, choice.division.blocks).with_copies(copies);
    let Some(sums) = sums else { return Ok(first) };
    let blocks = gemm::sums_blocks([m, n, 1]) as u32;
    Ok(first.then(Implementation::kernel(device, sums, blocks)))
}

/// Launches a choice for `operands`, for which it was made, all but how the sums are split.
///
/// # Safety
///
/// The operands are valid for what the kernels do with them, and live until the stream's work is done.
pub(super) unsafe fn launch<T: UpdateInput>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: Operands<'_, T, T>,
) -> Result<()> {
    let Division { parts, k, blocks } = choice.division;
    // SAFETY: the caller's promise.
    unsafe { kernels(choice)?.launch(device, stream, blocks, &Operands { parts, k, ..operands }) }
}
