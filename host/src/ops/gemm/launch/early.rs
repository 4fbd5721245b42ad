//! When the launch of a persistent kernel begins: before the one ahead of it has ended, or after.

use warpsmith_dsl::gemm::PersistentTile;

/// The tiles that cover an output of `m` × `n`, whole clusters of them.
pub(crate) fn tiles<S: PersistentTile>(m: u32, n: u32) -> u64 {
    let rows = m.div_ceil(S::BLOCK_M).next_multiple_of(S::CLUSTER_M);
    let columns = n.div_ceil(S::BLOCK_N).next_multiple_of(S::CLUSTER_N);
    u64::from(rows) * u64::from(columns)
}

/// Whether no block of a launch of `blocks` blocks has more than one of `tiles` tiles.
pub(crate) const fn has_only_tiles(tiles: u64, blocks: u32) -> bool {
    tiles <= blocks as u64
}

/// Whether to use programmatic dependent launch (PDL) for a Hopper kernel on `blocks` blocks, of a single wave if `are_only`,
/// for rows of `row_bytes` bytes and outputs of `m` × `n`: [`PersistentTile::EARLY_STEPS`] and
/// [`PersistentTile::EARLY_STEPS_OF_SEVERAL`]. Or, of a single wave, any number of steps in two more cases.
///
/// If there are blocks for no more than half of the multiprocessors, the level-2 cache can serve them wherever they are. If tiles are all beside or
/// all below each other, what several blocks read is the same for all. Then 128 × 128 in ping-pong was 2 to 8 % sooner done
/// with 64 blocks and with 128 on the 132 multiprocessors of an H100, in bf16 and f16, and 8 % later with 86, at
/// 100x4096x11008. Those that find no room before the others have ended are close together.
pub(crate) fn is_early<S: PersistentTile>(
    row_bytes: u64,
    [m, n]: [u32; 2],
    blocks: u32,
    are_only: bool,
    multiprocessors: u32,
) -> bool {
    let early_steps = if are_only { S::EARLY_STEPS } else { S::EARLY_STEPS_OF_SEVERAL };
    let are_few = blocks <= multiprocessors / 2;
    let is_line = m <= S::BLOCK_M || n <= S::BLOCK_N;
    let fill = are_few || blocks >= multiprocessors - multiprocessors / 16;
    row_bytes.div_ceil(S::ROW_BYTES.into()) <= u64::from(early_steps)
        || (are_only && (is_line && fill || early_steps > 0 && are_few))
}

#[cfg(test)]
mod tests {
    use warpsmith_kernels::linear_hopper::{
        HopperCooperative64x128, HopperCooperative128x128, HopperCooperative128x256, HopperPingPong128x128,
        HopperPingPong128x192,
    };

    use super::{has_only_tiles, is_early};

    #[test]
    fn a_launch_has_only_tiles_if_no_block_has_two() {
        assert!(has_only_tiles(132, 132) && has_only_tiles(1, 132));
        assert!(!has_only_tiles(133, 132) && !has_only_tiles(u64::MAX, u32::MAX));
    }

    #[test]
    fn launches_without_clusters_are_early_for_short_sums_or_few_blocks() {
        let size = [1024, 1024];
        let early =
            |row_bytes, blocks| is_early::<HopperCooperative64x128>(row_bytes, size, blocks, true, 132);
        assert!(early(18 * 128, 132) && early(1, 1));
        assert!(!early(18 * 128 + 1, 132) && !early(18 * 128 + 1, 67));
        assert!(early(18 * 128 + 1, 66) && early(1 << 30, 66));
        // Those of clusters always are, those in ping-pong only where Y is a line of tiles.
        assert!(is_early::<HopperCooperative128x128>(1 << 30, size, 132, true, 132));
        assert!(!is_early::<HopperPingPong128x128>(1, size, 1, true, 132));
    }

    #[test]
    fn launches_of_a_line_of_only_tiles_are_early() {
        let early =
            |size, blocks, are_only| is_early::<HopperPingPong128x128>(1 << 13, size, blocks, are_only, 132);
        assert!(early([100, 1 << 14], 128, true) && early([1 << 14, 128], 128, true));
        assert!(early([128, 1 << 13], 64, true) && !early([100, 11_008], 86, true));
        assert!(!early([129, 1 << 13], 128, true) && !early([100, 1 << 15], 132, false));
    }

    #[test]
    fn launches_of_several_tiles_are_early_in_clusters_and_for_short_sums() {
        let size = [1 << 14, 1024];
        assert!(is_early::<HopperCooperative128x256>(1 << 30, size, 132, false, 132));
        let by_blocks = |row_bytes| is_early::<HopperCooperative64x128>(row_bytes, size, 132, false, 132);
        assert!(by_blocks(4 * 128) && !by_blocks(4 * 128 + 1));
        let in_turns = |row_bytes| is_early::<HopperPingPong128x128>(row_bytes, size, 132, false, 132);
        assert!(in_turns(128) && !in_turns(129));
        assert!(!is_early::<HopperPingPong128x192>(1 << 13, size, 132, false, 132));
        // Few blocks are early for their only tiles' sake alone.
        assert!(!is_early::<HopperCooperative64x128>(1 << 13, size, 1, false, 132));
    }
}
