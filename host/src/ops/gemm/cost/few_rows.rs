//! How long kernels for few rows or few columns take.

use warpsmith_dsl::gemm::{dots, narrow};

use super::{
    Access, CACHE_LINE, Limits, Problem, SECTOR, Tile, bytes, of_memory, row_bytes, stored_bytes, summed,
};
use crate::DType;
use crate::ops::gemm::variants::Teams;

/// What a launch for few rows of x costs, in picoseconds on an H100. It waits for the GPU's memory most of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SkinnyCost {
    /// A block for each column of K that it sums, with the memory to itself.
    alone: u64,
    /// The same, where rows do not start at sectors of the cache's lines.
    straddling: u64,
    /// The first divided by the multiprocessors, where all of them ask for w and x.
    crowded: u64,
    /// Blocks that a multiprocessor holds.
    resident: u64,
}

impl SkinnyCost {
    /// From the launch to the first products.
    const LAUNCH: u64 = 1_361_000;
    /// For the blocks of a cluster to wait for each other.
    const EXCHANGE: u64 = 973_000;
    /// For each block more than two.
    const EXCHANGE_MORE: u64 = 149_000;
    /// For exchanging and storing the sums, an element of the tile.
    const ELEMENT: u64 = 78;
    /// The same, where it is stored by rows and other blocks of the multiprocessor wait for that.
    const SLOW_ELEMENT: u64 = 88;
    /// Bytes in a microsecond that the level-2 cache gives.
    const CACHE: u128 = 5_480_000;
    /// From the end of one block of a multiprocessor to the first products of the next.
    const ROUND: u64 = 1_840_000;
    /// Until the memory gives all it can.
    const RAMP: u64 = 287_000;
    /// Then, bytes in a microsecond.
    const BANDWIDTH: u128 = 3_865_000;

    pub(super) const fn of(tile: Tile, input: DType) -> Option<Self> {
        let (alone, straddling, crowded, resident) = match (tile, input) {
            (Tile::Skinny64x64, DType::F32) => (4_449, 3_290, 5_638, 1),
            (Tile::Skinny64x64Split2, DType::F32) => (2_990, 3_040, 5_753, 1),
            (Tile::Skinny64x64Split8, DType::F32) => (3_925, 3_300, 6_374, 2),
            (Tile::Skinny64x64Split8Deep, DType::F32) => (2_689, 2_500, 5_497, 1),
            (Tile::Skinny32x64, DType::F32) => (2_632, 5_250, 6_705, 1),
            (Tile::Skinny16x64, DType::F32) => (2_146, 4_210, 6_011, 2),
            (Tile::Skinny16x64Split2, DType::F32) => (2_672, 2_850, 5_702, 2),
            (Tile::Skinny16x64Split4, DType::F32) => (2_347, 4_000, 4_155, 2),
            (Tile::Skinny64x64, _) => (5_100, 5_795, 5_867, 1),
            (Tile::Skinny64x64Split2, _) => (3_642, 3_658, 6_028, 1),
            (Tile::Skinny64x64Split8, _) => (3_994, 3_454, 6_857, 2),
            (Tile::Skinny64x64Split8Deep, _) => (2_169, 1_703, 6_400, 1),
            (Tile::Skinny32x64, _) => (2_124, 2_984, 6_306, 1),
            (Tile::Skinny16x64, _) => (2_581, 2_540, 5_510, 2),
            (Tile::Skinny16x64Split2, _) => (3_715, 4_667, 3_749, 2),
            (Tile::Skinny16x64Split4, _) => (1_991, 1_867, 4_869, 2),
            _ => return None,
        };
        Some(Self { alone, straddling, crowded, resident })
    }

    pub(super) fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        let blocks = tile.blocks(problem.m, problem.n, problem.batch, limits.multiprocessors);
        // The costs are those of 16-bit types; a column of TF32 takes two of theirs.
        let columns = u128::from(summed(problem).div_ceil(tile.split())) * problem.input.size() as u128 / 2;
        // Clusters of eight with multiprocessors to themselves fill half of those for certain.
        let room = if tile == Tile::Skinny64x64Split8Deep { multiprocessors / 2 } else { multiprocessors };
        let rounds = blocks.div_ceil((room * self.resident).max(1));
        let straddles = !row_bytes(problem).is_multiple_of(SECTOR);
        let alone = if straddles { self.straddling } else { self.alone };
        let by_rounds = u128::from(rounds) * u128::from(alone) * columns;
        // Tiles that are neighbours along M read the same rows of w, all but the first from the level-2 cache.
        let (rows_of_tile, columns_of_tile) = tile.shape();
        let along_m = u64::from(problem.m.div_ceil(rows_of_tile)).max(1);
        let reading = u128::from(blocks) * u128::from(along_m + 3) / u128::from(4 * along_m);
        let by_chip = reading * u128::from(self.crowded) * columns / u128::from(multiprocessors);
        let by_memory = by_chip.max(bytes(problem) * 1_000_000 / of_memory(Self::BANDWIDTH, limits));
        let of_memory = by_memory + (by_memory / 4).min(u128::from(Self::RAMP));
        let elements = u64::from(rows_of_tile * columns_of_tile);
        let copied = u128::from(blocks) * u128::from(rows_of_tile + columns_of_tile) * columns;
        let by_cache = copied * 2 * 1_000_000 / Self::CACHE;
        let exchange = match u64::from(tile.split()) {
            1 => 0,
            blocks => Self::EXCHANGE + (blocks - 2) * Self::EXCHANGE_MORE,
        };
        let between = Self::ROUND.saturating_mul(rounds.saturating_sub(1));
        let storing = if problem.stores_boxes && problem.fused.is_plain() {
            u128::from(Self::ELEMENT * elements)
        } else {
            u128::from(rounds) * u128::from(Self::SLOW_ELEMENT * elements)
        };
        u128::from(Self::LAUNCH + exchange)
            + storing
            + u128::from(between)
            + by_rounds.max(by_cache).max(of_memory)
    }
}

/// What a narrow launch costs, in picoseconds on an H100, on the scale of what the model gives for other ways to read short rows: their order
/// in the test of this choice in `operands` is right.
pub(super) struct NarrowCost;

impl NarrowCost {
    /// For launching, reading w, and the first and the last tile.
    const LAUNCH: u64 = 1_900_000;
    /// What of that, 32 columns of y take more.
    const COLUMNS: u64 = 500_000;
    /// A round of tiles, one of each warp, at least.
    const ROUND: u64 = 1_450_000;
    /// Bytes in a microsecond.
    const BANDWIDTH: u128 = 2_000_000;
    /// The same, where rows of x begin at the same of shared memory's banks.
    const SLOW_BANDWIDTH: u128 = 1_500_000;

    pub(super) fn picoseconds(problem: &Problem, limits: &Limits) -> u128 {
        let tiles = Tile::Narrow16x256.tiles(problem.m, problem.n);
        let warps = u64::from(limits.multiprocessors.max(1)) * u64::from(narrow::WARPS);
        let rounds = u128::from(tiles.div_ceil(warps)) * u128::from(Self::ROUND);
        let collides = row_bytes(problem).is_multiple_of(CACHE_LINE);
        let bandwidth = if collides { Self::SLOW_BANDWIDTH } else { Self::BANDWIDTH };
        let moved = bytes(problem) + stored_bytes(problem);
        let once = Self::LAUNCH + u64::from(problem.n.div_ceil(32)) * Self::COLUMNS;
        u128::from(once) + rounds.max(moved * 1_000_000 / bandwidth)
    }
}

/// The most tiles of a launch of teams. Tiles are so small that other launches have room for what has more.
const MOST_TILES: u64 = i32::MAX as u64;

/// What a launch of teams of warps costs, in picoseconds, fitted to what an H200 took, with the bandwidth of an H100.
pub(super) struct DotsCost;

impl DotsCost {
    /// For launching.
    const LAUNCH: u128 = 950_000;
    /// A tile, from its first bytes to its output.
    const TILE: u128 = 1_300_000;
    /// A step of a warp.
    const STEP: u128 = 100_000;
    /// What each row of x adds to it.
    const ROW: u128 = 70_000;
    /// Bytes of w in a microsecond.
    const BANDWIDTH: u128 = 2_900_000;

    pub(super) fn picoseconds(problem: &Problem, limits: &Limits) -> u128 {
        let tiles = Tile::Dots8x2.tiles(problem.m, problem.n).saturating_mul(problem.batch.into());
        if tiles > MOST_TILES {
            return u128::MAX;
        }
        let row_bytes = u64::from(problem.k) * problem.input.size() as u64;
        let Teams { rounds, steps, .. } = Teams::of(tiles, row_bytes, limits.multiprocessors);
        let rows = u128::from(problem.m.min(dots::ROWS));
        let of_tile = Self::TILE + u128::from(steps) * (Self::STEP + rows * Self::ROW);
        // Tiles below each other read the same rows of w, and wait for each other.
        let of_tile = if problem.m > dots::ROWS { of_tile * 9 / 8 } else { of_tile };
        // Lanes have words of their rows one by one.
        let of_tile = if problem.access == Access::Words { of_tile * 4 / 3 } else { of_tile };
        let of_tiles = u128::from(rounds) * of_tile;
        let of_w = u128::from(tiles) * u128::from(dots::COLUMNS) * u128::from(row_bytes);
        let reading = of_w * 1_000_000 / of_memory(Self::BANDWIDTH, limits);
        // What takes less time is hidden by half.
        Self::LAUNCH + of_tiles.max(reading) + of_tiles.min(reading) / 2
    }
}
