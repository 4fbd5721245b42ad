//! The tile scheduler of a persistent launch: fewer blocks than tiles, each of which works through several.

use crate::layout::{self, TileIndex};
use crate::{ptx, thread};

/// The tiles that a block works on, in the raster order of [`layout::raster`].
///
/// The blocks of a cluster work on tiles that are neighbours along M, so that they need the same rows of B, and each
/// gets the same number of tiles: a tile may lie wholly outside the output.
pub struct PersistentTiles {
    cluster: u32,
    next: u32,
    stride: u32,
    groups_m: u32,
    tiles_n: u32,
}

impl PersistentTiles {
    /// The tiles of this block, of `tiles_m` · `tiles_n` in all, for a grid of clusters of `cluster` blocks that extends along x only.
    #[inline(always)]
    #[must_use]
    pub fn new(tiles_m: u32, tiles_n: u32, cluster: u32) -> Self {
        Self {
            cluster,
            next: thread::block_idx_x() / cluster,
            stride: thread::grid_dim_x() / cluster,
            groups_m: tiles_m.div_ceil(cluster),
            tiles_n,
        }
    }

    /// The next tile, if there is one. Blocks of a cluster have as many each.
    #[inline(always)]
    pub fn next_tile(&mut self) -> Option<TileIndex> {
        if self.next >= self.groups_m * self.tiles_n {
            return None;
        }
        let group = layout::raster(self.next, self.groups_m, self.tiles_n);
        self.next += self.stride;
        let rank = if self.cluster > 1 { ptx::cluster_ctarank() } else { 0 };
        Some(TileIndex { m: group.m * self.cluster + rank, n: group.n })
    }
}
