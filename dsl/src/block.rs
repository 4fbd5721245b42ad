//! The block: which tile of the output it works on.

use crate::layout::{self, TileIndex};
use crate::thread;

/// The output tile of this block in a one-dimensional grid of `tiles_m · tiles_n` blocks for each matrix, in the raster order of
/// [`layout::raster`].
#[inline(always)]
#[must_use]
pub fn tile_index(tiles_m: u32, tiles_n: u32) -> TileIndex {
    layout::raster(thread::block_idx_x(), tiles_m, tiles_n)
}
