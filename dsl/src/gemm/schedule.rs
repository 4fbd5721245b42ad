//! The tile scheduler of a persistent launch: fewer blocks than tiles, each of which works through several.

use crate::layout::{self, TileIndex};
use crate::thread;

/// The tiles that a block works on, in the raster order of [`layout::raster`].
///
/// The blocks of a cluster work on tiles that are neighbours along M, so that they need the same rows of B, and each
/// gets the same number of tiles: a tile may lie wholly outside the output.
pub struct PersistentTiles {
    cluster: u32,
    rank: u32,
    next: u32,
    stride: u32,
    groups_m: u32,
    tiles_n: u32,
    matrices: u32,
    /// Groups along M that the order visits before it steps along N.
    height: u32,
}

impl PersistentTiles {
    /// The tiles of this block, of `tiles_m` · `tiles_n` in each of `matrices` matrices, for a grid of clusters of `cluster` blocks that
    /// extends along x only.
    #[inline(always)]
    #[must_use]
    pub fn new(tiles_m: u32, tiles_n: u32, matrices: u32, cluster: u32) -> Self {
        Self::of_block(thread::block_idx_x(), thread::grid_dim_x(), [tiles_m, tiles_n, matrices], cluster)
    }

    /// The same of block `block` in a grid of `blocks` blocks, whole clusters of them. There are fewer than 2³² − `blocks` groups of
    /// tiles.
    #[inline(always)]
    #[must_use]
    pub const fn of_block(
        block: u32,
        blocks: u32,
        [tiles_m, tiles_n, matrices]: [u32; 3],
        cluster: u32,
    ) -> Self {
        Self {
            matrices,
            height: layout::RASTER_GROUP,
            cluster,
            rank: block % cluster,
            next: block / cluster,
            stride: blocks / cluster,
            groups_m: tiles_m.div_ceil(cluster),
            tiles_n,
        }
    }

    /// The same tiles in an order that visits `height` clusters' tiles along M, at least 1, before it steps along N.
    #[inline(always)]
    #[must_use]
    pub const fn in_groups_of(self, height: u32) -> Self {
        Self { height, ..self }
    }

    /// The next tile, if there is one. Blocks of a cluster have as many each.
    #[inline(always)]
    pub const fn next_tile(&mut self) -> Option<TileIndex> {
        if self.next >= self.groups_m * self.tiles_n * self.matrices {
            return None;
        }
        let group = layout::raster_in_groups(self.next, self.groups_m, self.tiles_n, self.height);
        self.next += self.stride;
        Some(TileIndex { m: group.m * self.cluster + self.rank, ..group })
    }

    /// Passes over the next tile.
    #[inline(always)]
    pub const fn skip_tile(&mut self) {
        self.next += self.stride;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn tiles(block: u32, blocks: u32, tiles: [u32; 3], cluster: u32) -> Vec<TileIndex> {
        let mut tiles = PersistentTiles::of_block(block, blocks, tiles, cluster);
        std::iter::from_fn(|| tiles.next_tile()).collect()
    }

    #[test]
    fn all_blocks_together_work_on_every_tile_once() {
        for cluster in [1, 2, 4] {
            for [tiles_m, tiles_n, matrices] in [[1, 1, 1], [5, 3, 2], [16, 9, 1], [23, 40, 3]] {
                for blocks in [cluster, 3 * cluster, 132, 1000] {
                    let all: Vec<_> = (0..blocks)
                        .flat_map(|block| tiles(block, blocks, [tiles_m, tiles_n, matrices], cluster))
                        .map(|tile| (tile.batch, tile.m, tile.n))
                        .collect();
                    let distinct: HashSet<_> = all.iter().copied().collect();
                    assert_eq!(all.len(), distinct.len());
                    for batch in 0..matrices {
                        for tile in (0..tiles_m).flat_map(|m| (0..tiles_n).map(move |n| (batch, m, n))) {
                            assert!(distinct.contains(&tile), "{tile:?} of {tiles_m} x {tiles_n}, {blocks}");
                        }
                    }
                }
            }
        }
    }

    /// Else a block would wait for a share of B that its neighbour does not fetch.
    #[test]
    fn blocks_of_a_cluster_are_at_tiles_with_the_same_columns_at_the_same_time() {
        for shape in [[1, 1, 1], [7, 5, 3], [16, 9, 2]] {
            for first in (0..12).step_by(2) {
                let [upper, lower] = [first, first + 1].map(|block| tiles(block, 12, shape, 2));
                assert_eq!(upper.len(), lower.len());
                for (upper, lower) in upper.iter().zip(&lower) {
                    assert_eq!((upper.n, upper.m + 1, upper.m % 2), (lower.n, lower.m, 0));
                    assert_eq!(upper.batch, lower.batch);
                }
            }
        }
    }
}
