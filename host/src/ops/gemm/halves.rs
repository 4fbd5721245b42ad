//! Which tiles of a launch are halved, so that the last ones keep all clusters busy.
//!
//! The blocks of a cluster have a tile each, so the tiles of a launch are dealt out in groups of two. Where the last groups are
//! fewer than the clusters, some of these have nothing to do. If each cluster works on one tile instead, half by half, there are
//! twice as many pieces of half the time. The last column of tiles is halved anyway if no more than half of it is within the output.

use warpsmith_dsl::gemm::PersistentTile;

/// Blocks of a cluster that works on halves.
const CLUSTER: u64 = 2;

/// How a launch is dealt out to its clusters: first whole groups of tiles, then pieces of half a tile for each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Halves {
    /// Groups of tiles that are computed whole.
    pub(crate) whole: u64,
    /// What comes after them, in pieces for a cluster.
    pub(crate) pieces: u64,
    /// Whether the last column of tiles is among the pieces as the first halves of its tiles.
    pub(crate) narrow: bool,
    /// Clusters of the launch.
    pub(crate) clusters: u64,
}

impl Halves {
    /// How to deal out `batch` outputs of `m` × `n` in tiles of `rows` × `columns` to `clusters` clusters, at least one.
    pub(super) const fn of([m, n, batch]: [u32; 3], (rows, columns): (u32, u32), clusters: u64) -> Self {
        let groups_m = (m.div_ceil(rows) as u64).div_ceil(CLUSTER).saturating_mul(batch as u64);
        let tiles_n = n.div_ceil(columns) as u64;
        let narrow = n > 0 && (n - 1) % columns < columns / 2;
        let groups = groups_m.saturating_mul(tiles_n);
        let plain = Self { whole: groups, pieces: 0, narrow: false, clusters };
        let (full, narrow_groups) =
            if narrow { (groups.saturating_sub(groups_m), groups_m) } else { (groups, 0) };
        let all_whole = Self { whole: full, pieces: narrow_groups, narrow, clusters };
        let rest = full % clusters;
        let halved = Self { whole: full - rest, pieces: CLUSTER * rest + narrow_groups, ..all_whole };
        // The fewer pieces the better, if the time is the same.
        let first = if all_whole.time() < plain.time() { all_whole } else { plain };
        let best = if halved.time() < first.time() { halved } else { first };
        let positions = best.whole.saturating_add(best.pieces);
        Self { clusters: if positions < clusters { positions } else { clusters }, ..best }
    }

    /// The whole groups of the cluster that has most to do, and its pieces.
    pub(super) const fn rounds(self) -> (u64, u64) {
        let clusters = if self.clusters == 0 { 1 } else { self.clusters };
        let whole = self.whole.div_ceil(clusters);
        (whole, self.whole.saturating_add(self.pieces).div_ceil(clusters) - whole)
    }

    /// Its time, where a piece takes 1.
    const fn time(self) -> u64 {
        let (whole, pieces) = self.rounds();
        whole.saturating_mul(2).saturating_add(pieces)
    }
}

/// How a launch of tile `S` is dealt out, with halves if that is sooner done.
pub(crate) const fn halves_of<S: PersistentTile>(sizes: [u32; 3], multiprocessors: u32) -> Halves {
    let clusters = multiprocessors as u64 * S::MIN_BLOCKS as u64 / CLUSTER;
    Halves::of(sizes, (S::BLOCK_M, S::BLOCK_N), if clusters == 0 { 1 } else { clusters })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: (u32, u32) = (128, 256);

    #[test]
    fn no_launch_takes_longer_with_halves_and_all_groups_are_computed() {
        for m in [1, 128, 129, 1000, 4104, 5000, 100_000] {
            for n in [1, 128, 129, 256, 257, 1032, 4096, 4104] {
                for batch in [1, 3] {
                    for clusters in [1, 2, 7, 66] {
                        let halves = Halves::of([m, n, batch], TILE, clusters);
                        let groups_m = u64::from(batch) * u64::from(m.div_ceil(128).div_ceil(2));
                        let groups = groups_m * u64::from(n.div_ceil(256));
                        assert!(halves.time() <= 2 * groups.div_ceil(clusters), "{m} x {n}: {halves:?}");
                        let narrow = if halves.narrow { groups_m } else { 0 };
                        assert_eq!(2 * halves.whole + halves.pieces + narrow, 2 * groups, "{m} x {n}");
                        assert!(halves.clusters >= 1 && halves.clusters <= clusters);
                        assert!(!halves.narrow || (n - 1) % 256 < 128);
                    }
                }
            }
        }
    }

    #[test]
    fn a_last_wave_of_few_tiles_takes_half_the_time() {
        let rounds = |m, n| Halves::of([m, n, 1], TILE, 66).rounds();
        // 289 groups, of which 17 are narrow: 8 groups are left of the others.
        assert_eq!(rounds(4104, 4104), (4, 1));
        // 256 groups: more than half of the clusters have one in the last wave.
        assert_eq!(rounds(4096, 4096), (4, 0));
        assert_eq!(rounds(3000, 3000), (2, 1));
        assert_eq!(rounds(5000, 1032), (1, 1));
    }

    #[test]
    fn a_launch_that_gains_nothing_is_left_alone() {
        for (m, n) in [(8192, 8192), (128 * 132, 256), (4096, 4096)] {
            let halves = Halves::of([m, n, 1], TILE, 66);
            assert_eq!((halves.pieces, halves.narrow), (0, false), "{m} x {n}: {halves:?}");
        }
    }
}
