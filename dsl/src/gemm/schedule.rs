//! The tile scheduler of a persistent launch: fewer blocks than tiles, each of which works through several.

use crate::layout::{self, TileIndex};
use crate::{ptx, thread};

/// What a block computes at a time: a tile, or half of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePart {
    /// The tile.
    pub tile: TileIndex,
    /// How much of it, and with whom.
    pub extent: Extent,
}

/// How much of a tile a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it; the blocks of a cluster have neighbouring tiles: those along M share the rows of B, those along N the rows of A.
    Whole,
    /// Half of its columns, in a cluster of two blocks: the one of rank 0 the first half and the other the second, and they share
    /// the rows of A.
    Half,
    /// The first half of its columns, since the others are outside the output; shared as a whole one.
    Narrow,
}

impl TilePart {
    /// All of a tile.
    #[inline(always)]
    #[must_use]
    pub const fn whole(tile: TileIndex) -> Self {
        Self { tile, extent: Extent::Whole }
    }

    /// Whether it is half of a tile's columns.
    #[inline(always)]
    #[must_use]
    pub const fn is_half(self) -> bool {
        !matches!(self.extent, Extent::Whole)
    }
}

/// The tiles that a block works on, in the raster order of [`layout::raster`].
///
/// The blocks of a cluster work on tiles that are neighbours along M, N or both. Along M they need the same rows of B,
/// along N the same rows of A. Each block gets the same number of tiles: one may be wholly outside the output.
///
/// The last ones may be halves ([`with_halves`](Self::with_halves)). Where the last tiles are too few for all clusters, those with a
/// tile for each of their blocks would work while the others are idle; of halves there are twice as many, which take half the time.
pub struct PersistentTiles {
    /// Blocks of a cluster along M and along N.
    cluster: [u32; 2],
    /// This block's place among them.
    rank: [u32; 2],
    next: u32,
    stride: u32,
    groups_m: u32,
    groups_n: u32,
    matrices: u32,
    /// Groups along M that the order visits before it steps along N.
    height: u32,
    /// Groups that clusters work on whole, of those in the raster order.
    whole: u32,
    /// Columns of tiles that follow the raster order, of which the first half is computed: at most one.
    narrow: u32,
}

impl PersistentTiles {
    /// The tiles of this block, of `tiles_m` · `tiles_n` in each of `matrices` matrices, for a grid that extends along x only,
    /// of clusters of `cluster` blocks along M and along N.
    #[inline(always)]
    #[must_use]
    pub fn new(tiles_m: u32, tiles_n: u32, matrices: u32, cluster: [u32; 2]) -> Self {
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
        cluster: [u32; 2],
    ) -> Self {
        let [along_m, along_n] = cluster;
        let all = along_m * along_n;
        let rank = block % all;
        Self {
            matrices,
            height: layout::RASTER_GROUP,
            cluster,
            rank: if along_n == 1 { [rank, 0] } else { [rank % along_m, rank / along_m] },
            next: block / all,
            stride: blocks / all,
            groups_m: tiles_m.div_ceil(along_m),
            groups_n: tiles_n.div_ceil(along_n),
            whole: u32::MAX,
            narrow: 0,
        }
    }

    /// The same tiles in an order that visits `height` clusters' tiles along M, at least 1, before it steps along N.
    #[inline(always)]
    #[must_use]
    pub const fn in_groups_of(self, height: u32) -> Self {
        Self { height, ..self }
    }

    /// The same tiles with halves at the end, for [`next_part`](Self::next_part). The first `whole` groups of tiles along M in the
    /// order are computed by a cluster each, as before. A cluster of two blocks computes each tile of the others, half by half. If
    /// `narrow` is 1 and not 0, the last column of tiles comes after them, and only the first half of its columns is computed.
    ///
    /// There are fewer than 2³² − the number of blocks such tiles and groups.
    #[inline(always)]
    #[must_use]
    pub const fn with_halves(self, whole: u32, narrow: u32) -> Self {
        Self { whole, narrow, groups_n: self.groups_n - narrow, ..self }
    }

    /// Whether no block of the launch has more than one tile, where all are whole.
    #[inline(always)]
    #[must_use]
    pub const fn are_only(&self) -> bool {
        self.stride >= self.groups_m * self.groups_n * self.matrices
    }

    /// The first tile of the block, if no block of the launch has more than one and it is a whole one, and how many clusters need the same
    /// rows of A, and how many the same rows of B.
    #[inline(always)]
    pub const fn only_tile(&mut self) -> Option<(TileIndex, [u32; 2])> {
        let groups = self.groups_m * self.groups_n * self.matrices;
        if !self.are_only() || self.whole < groups || self.narrow > 0 {
            return None;
        }
        match self.next_tile() {
            Some(tile) => Some((tile, [self.groups_n, self.groups_m])),
            None => None,
        }
    }

    /// The next tile or half, if there is one, in clusters that extend along M. Blocks of a cluster have as many each, of the same
    /// extent.
    #[inline(always)]
    pub const fn next_part(&mut self) -> Option<TilePart> {
        let groups = self.groups_m * self.groups_n * self.matrices;
        let whole = if self.whole < groups { self.whole } else { groups };
        let halves = (groups - whole) * self.cluster[0];
        let next = self.next;
        if next >= whole + halves {
            let group = next - whole - halves;
            if group >= self.narrow * self.groups_m * self.matrices {
                return None;
            }
            self.next += self.stride;
            let TileIndex { batch, m, .. } = layout::raster_in_groups(group, self.groups_m, 1, self.height);
            let tile = TileIndex { batch, m: m * self.cluster[0] + self.rank[0], n: self.groups_n };
            return Some(TilePart { tile, extent: Extent::Narrow });
        }
        let (group, index, extent) = if next < whole {
            (next, self.rank[0], Extent::Whole)
        } else {
            (whole + (next - whole) / self.cluster[0], (next - whole) % self.cluster[0], Extent::Half)
        };
        self.next += self.stride;
        let group = layout::raster_in_groups(group, self.groups_m, self.groups_n, self.height);
        Some(TilePart { tile: TileIndex { m: group.m * self.cluster[0] + index, ..group }, extent })
    }

    /// The next tile, if there is one. Blocks of a cluster have as many each.
    #[inline(always)]
    pub const fn next_tile(&mut self) -> Option<TileIndex> {
        if self.next >= self.groups_m * self.groups_n * self.matrices {
            return None;
        }
        let group = layout::raster_in_groups(self.next, self.groups_m, self.groups_n, self.height);
        self.next += self.stride;
        let [along_m, along_n] = self.cluster;
        let [rank_m, rank_n] = self.rank;
        Some(TileIndex { m: group.m * along_m + rank_m, n: group.n * along_n + rank_n, ..group })
    }

    /// Tells ptxas that all lanes of a warp are at the same tile, so that branches on what follows from it do not part them.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, at the same tile.
    #[inline(always)]
    pub unsafe fn agree(&mut self) {
        // SAFETY: the caller's promise.
        self.next = unsafe { ptx::shfl_sync_idx(self.next, 0) };
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

    fn tiles(block: u32, blocks: u32, tiles: [u32; 3], cluster: [u32; 2]) -> Vec<TileIndex> {
        let mut tiles = PersistentTiles::of_block(block, blocks, tiles, cluster);
        std::iter::from_fn(|| tiles.next_tile()).collect()
    }

    #[test]
    fn all_blocks_together_work_on_every_tile_once() {
        for cluster in [[1, 1], [2, 1], [4, 1], [1, 2], [2, 2], [4, 2]] {
            for [tiles_m, tiles_n, matrices] in [[1, 1, 1], [5, 3, 2], [16, 9, 1], [23, 40, 3]] {
                for blocks in [1, 3, 16, 125].map(|clusters| clusters * cluster[0] * cluster[1]) {
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

    fn parts(block: u32, blocks: u32, tiles: [u32; 3], whole: u32, narrow: u32) -> Vec<TilePart> {
        let mut tiles = PersistentTiles::of_block(block, blocks, tiles, [2, 1]).with_halves(whole, narrow);
        std::iter::from_fn(|| tiles.next_part()).collect()
    }

    /// Both halves of every tile, but of the last column's only the first if it is narrow: each by one block.
    #[test]
    fn all_blocks_together_work_on_every_half_once() {
        for [tiles_m, tiles_n, matrices] in [[1u32, 1, 1], [5, 3, 2], [2, 1, 3], [23, 17, 1]] {
            let groups = tiles_m.div_ceil(2) * tiles_n * matrices;
            for (narrow, whole) in
                (0..2).flat_map(|narrow| [0, 1, groups / 2, groups, u32::MAX].map(|w| (narrow, w)))
            {
                for blocks in [2, 6, 132, 1000] {
                    let halves: Vec<_> = (0..blocks)
                        .flat_map(|block| {
                            parts(block, blocks, [tiles_m, tiles_n, matrices], whole, narrow)
                                .into_iter()
                                .map(move |part| (block, part))
                        })
                        .flat_map(|(block, TilePart { tile, extent })| {
                            let own = match extent {
                                Extent::Whole => 0..2,
                                Extent::Half => block % 2..block % 2 + 1,
                                Extent::Narrow => 0..1,
                            };
                            own.map(move |half| (tile.batch, tile.m, tile.n, half))
                        })
                        .collect();
                    let distinct: HashSet<_> = halves.iter().copied().collect();
                    assert_eq!(
                        halves.len(),
                        distinct.len(),
                        "{tiles_m} x {tiles_n}, {blocks}, {whole}, {narrow}"
                    );
                    let columns = 2 * tiles_n - narrow;
                    for batch in 0..matrices {
                        for (m, half) in (0..tiles_m).flat_map(|m| (0..columns).map(move |half| (m, half))) {
                            assert!(
                                distinct.contains(&(batch, m, half / 2, half % 2)),
                                "{m}, {half} of {tiles_m}"
                            );
                        }
                    }
                    let all = matrices * tiles_m.next_multiple_of(2) * columns;
                    assert_eq!(distinct.len() as u32, all, "nothing else");
                }
            }
        }
    }

    /// Blocks fetch their share of A's rows of each `clusters[0]`-th step from the column of their cluster on, and their share of B's rows of
    /// each `clusters[1]`-th from the row of their cluster on.
    #[test]
    fn blocks_with_an_only_tile_fetch_the_rows_of_each_step_once() {
        for ([tiles_m, tiles_n, matrices], steps) in
            [([8, 8, 1], 4), ([7, 3, 1], 4), ([16, 2, 2], 9), ([2, 1, 1], 4)]
        {
            for [along_m, along_n] in [[2, 1], [1, 2], [2, 2]] {
                let (groups_m, groups_n) = (u32::div_ceil(tiles_m, along_m), u32::div_ceil(tiles_n, along_n));
                let blocks = groups_m * groups_n * matrices * along_m * along_n;
                let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
                for block in 0..blocks {
                    let all = [tiles_m, tiles_n, matrices];
                    let mut tiles = PersistentTiles::of_block(block, blocks, all, [along_m, along_n]);
                    let (TileIndex { batch, m, n }, clusters) = tiles.only_tile().expect("one tile for each");
                    assert_eq!(tiles.next_tile(), None);
                    let [every_a, every_b] = clusters.map(|clusters| clusters as usize);
                    let steps_a = (n / along_n..steps).step_by(every_a);
                    let steps_b = (m / along_m..steps).step_by(every_b);
                    of_a.extend(steps_a.map(|step| (batch, m, n % along_n, step)));
                    of_b.extend(steps_b.map(|step| (batch, n, m % along_m, step)));
                }
                let shares = matrices * along_m * along_n * steps;
                for (fetched, groups) in [(of_a, groups_m), (of_b, groups_n)] {
                    assert_eq!(fetched.len() as u32, groups * shares);
                    assert_eq!(fetched.iter().collect::<HashSet<_>>().len(), fetched.len());
                }
            }
        }
    }

    #[test]
    fn a_launch_of_several_tiles_for_a_block_or_of_halves_has_no_only_ones() {
        let launch = |blocks| PersistentTiles::of_block(0, blocks, [8, 8, 1], [2, 1]);
        assert!(launch(64).are_only() && launch(64).only_tile().is_some());
        assert!(!launch(62).are_only());
        assert_eq!(launch(62).only_tile(), None);
        assert_eq!(launch(128).with_halves(31, 0).only_tile(), None);
        assert_eq!(launch(128).with_halves(u32::MAX, 1).only_tile(), None);
    }

    /// Else a block would wait for rows that its neighbour does not fetch.
    #[test]
    fn blocks_of_a_cluster_are_at_the_same_rows_or_columns_of_halves() {
        for (whole, narrow) in [(0, 0), (0, 1), (3, 0), (3, 1), (8, 1)] {
            for first in (0..12).step_by(2) {
                let [upper, lower] =
                    [first, first + 1].map(|block| parts(block, 12, [7, 5, 3], whole, narrow));
                assert_eq!(upper.len(), lower.len());
                for (upper, lower) in upper.iter().zip(&lower) {
                    assert_eq!(upper.extent, lower.extent);
                    let apart = u32::from(upper.extent != Extent::Half);
                    let TileIndex { batch, m, n } = upper.tile;
                    assert_eq!(lower.tile, TileIndex { batch, m: m + apart, n });
                }
            }
        }
    }

    /// Else a block would wait for a share of B that its neighbour does not fetch.
    #[test]
    fn blocks_of_a_cluster_are_at_tiles_with_the_same_columns_at_the_same_time() {
        for shape in [[1, 1, 1], [7, 5, 3], [16, 9, 2]] {
            for first in (0..12).step_by(2) {
                let [upper, lower] = [first, first + 1].map(|block| tiles(block, 12, shape, [2, 1]));
                assert_eq!(upper.len(), lower.len());
                for (upper, lower) in upper.iter().zip(&lower) {
                    assert_eq!((upper.n, upper.m + 1, upper.m % 2), (lower.n, lower.m, 0));
                    assert_eq!(upper.batch, lower.batch);
                }
            }
        }
    }

    /// Else one would wait for rows of A or of B that its neighbour does not fetch.
    #[test]
    fn blocks_of_a_cluster_along_n_are_at_tiles_that_share_rows_and_columns() {
        for (shape, [along_m, along_n]) in [[1, 1, 1], [7, 5, 3], [16, 9, 2]]
            .into_iter()
            .flat_map(|shape| [[1, 2], [2, 2], [4, 2]].map(|c| (shape, c)))
        {
            let cluster = along_m * along_n;
            for first in (0..3 * cluster).step_by(cluster as usize) {
                let of = |block| tiles(block, 3 * cluster, shape, [along_m, along_n]);
                let corner = of(first);
                for rank in 0..cluster {
                    let own = of(first + rank);
                    assert_eq!(own.len(), corner.len());
                    for (own, corner) in own.iter().zip(&corner) {
                        assert_eq!((corner.m % along_m, corner.n % along_n), (0, 0));
                        let (m, n) = (corner.m + rank % along_m, corner.n + rank / along_m);
                        assert_eq!(*own, TileIndex { m, n, ..*corner });
                    }
                }
            }
        }
    }
}
