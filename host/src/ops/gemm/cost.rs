//! How long a kernel takes, by a model.
//!
//! The model is the time of the fullest multiprocessor. A block walks along K, so its time is a cost per column of K, times K
//! and some columns more for filling its pipeline and storing its tile. A block that is alone on a multiprocessor waits for its
//! own instructions; several overlap. With B = ⌈tiles / multiprocessors⌉ blocks to work through, R of them at a time, that is
//! ⌊B / R⌋ full rounds and one of the rest. A chip that is full everywhere is slower still, since all share the level-2 cache
//! and the power: the time is at least the tiles' share at that rate. So a large problem gets the largest tile, which reads least
//! for each product, and a small one gets tiles that spread over all multiprocessors.
//! Persistent launches and those for few rows have models of their own: what a tile costs for each column of K, whether all ask
//! for memory at once, and what is not hidden under something else.
//!
//! The costs were fitted to what an H100 took at sizes drawn at random and at the bench's own, so that the choices lose least: `random-h100.csv` and the
//! tuner's table. Few rows in f32 were measured on an H200: `random-f32-h200.csv`. 8-bit types have `random-fp8-h100.csv` and `fp8-h100.csv`. Only their ratios
//! matter here. GPUs with the same multiprocessors differ in their memory, whose bandwidth therefore counts. What an H200 took, `random-h200.csv`, shows
//! how good the choices are there.

mod few_rows;

use few_rows::{DotsCost, NarrowCost, SkinnyCost};

use super::passes::has_passes;
use super::problem::{is_fp8, is_hopper};
use super::{Access, Fused, Limits, Problem, Tile};
use crate::DType;
use crate::ops::CHUNK_BYTES;

/// What one block of a tile costs for each column of K, in picoseconds on an H100.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// What a launch takes beside its blocks, in picoseconds.
    launch: u128,
    /// With the multiprocessor to itself.
    alone: u64,
    /// Its share of the time that as many blocks take as fit a multiprocessor.
    together: u64,
    /// The same, with the whole chip full.
    crowded: u64,
    /// Columns of K that a block takes for filling its pipeline and storing its tile.
    overhead: u64,
    /// Blocks whose registers fit a multiprocessor.
    resident: u64,
}

impl Cost {
    const fn of(tile: Tile, input: DType) -> Option<Self> {
        let (alone, together, crowded, overhead, resident) = match (tile, input) {
            (Tile::HopperSplit128x256, _) => (60_200, 60_200, 68_500, 235, 1),
            (Tile::HopperSplit128x128, _) => (31_950, 31_950, 35_800, 230, 1),
            (Tile::HopperSplit64x128, _) => (24_300, 17_800, 19_500, 235, 2),
            (Tile::HopperSplit64x64, _) => (15_300, 10_300, 12_300, 202, 2),
            (Tile::Strided32x32, _) => (9_000, 5_750, 5_750, 160, 2),
            (Tile::T128x128, _) => (14_274, 8_057, 10_614, 359, 2),
            (Tile::T128x64, DType::F32) => (37_000, 31_000, 31_100, 115, 2),
            (Tile::T128x64, _) => (12_373, 5_001, 7_340, 234, 3),
            (Tile::T64x64, DType::F32) => (19_600, 17_600, 17_600, 100, 2),
            (Tile::T64x64, _) => (6_954, 3_000, 4_351, 227, 4),
            (Tile::T16x64, DType::F32) => (7_800, 5_600, 5_600, 100, 5),
            (Tile::T16x64, _) => (3_814, 1_951, 2_342, 263, 8),
            (Tile::Tf32T128x128, _) => (25_200, 19_900, 23_200, 224, 2),
            (Tile::Tf32T64x64, _) => (10_000, 7_300, 7_200, 156, 4),
            (Tile::Tf32T16x64, _) => (6_600, 4_300, 4_800, 108, 8),
            // These have costs of their own.
            _ => return None,
        };
        // Of this tile, launches of few and of many blocks were measured: what each block takes counts with it.
        let launch = if matches!(tile, Tile::Strided32x32) { 300_000 } else { LAUNCH };
        Some(Self { launch, alone, together, crowded, overhead, resident })
    }

    /// The time of the fullest multiprocessor, in picoseconds, with as many parts of each tile as are fastest.
    fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        self.fastest(tile, problem, limits).0
    }

    /// The least time, and how many parts of each tile it takes.
    fn fastest(self, tile: Tile, problem: &Problem, limits: &Limits) -> (u128, u32) {
        let whole = (self.of_parts(tile, problem, limits, 1), 1);
        if !tile.shares() {
            return whole;
        }
        let tiles = tile.tiles(problem.m, problem.n).saturating_mul(problem.batch.into());
        let steps = tile.steps(u64::from(problem.k) * problem.input.size() as u64);
        let most = PARTS.into_iter().take_while(|&parts| {
            u64::from(parts) * MIN_STEPS <= steps
                && tiles.saturating_mul(parts.into())
                    <= MOST_ROUNDS * u64::from(limits.multiprocessors) * self.resident
        });
        let timed = most.map(|parts| (self.of_parts(tile, problem, limits, parts), parts));
        timed.chain([whole]).min().unwrap_or(whole)
    }

    /// The time with `parts` blocks for each tile.
    fn of_parts(self, tile: Tile, problem: &Problem, limits: &Limits, parts: u32) -> u128 {
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        let tiles = tile.tiles(problem.m, problem.n).saturating_mul(problem.batch.into());
        let blocks = tiles.saturating_mul(parts.into());
        let shared = limits.shared_per_multiprocessor / (tile.shared_bytes() + RESERVED_SHARED);
        let resident = self.resident.min(u64::from(shared)).max(1);

        let round = |blocks: u64| self.alone.max(blocks * self.together);
        let fullest = blocks.div_ceil(multiprocessors);
        let (rounds, rest) = (fullest / resident, fullest % resident);
        let last = if rest > 0 { round(rest) } else { 0 };
        let by_rounds = u128::from(rounds) * u128::from(round(resident)) + u128::from(last);
        let by_chip = u128::from(blocks) * u128::from(self.crowded) / u128::from(multiprocessors);
        let columns =
            u128::from(problem.k.div_ceil(parts)) * slowness(tile, problem) / 2 + u128::from(self.overhead);
        let of_blocks = by_rounds.max(by_chip) * columns;
        // Where reading x and w takes longest, some of the rest is not hidden under it.
        let moved = bytes(problem) + stored_bytes(problem);
        self.launch
            + of_blocks.max(moved * 1_000_000 / of_memory(BANDWIDTH, limits) + of_blocks / 8)
            + Self::combining(tile, blocks, parts)
    }

    /// What `blocks` blocks take to write their sums, and the last of the `parts` of each tile to add them up.
    fn combining(tile: Tile, blocks: u64, parts: u32) -> u128 {
        if parts <= 1 {
            return 0;
        }
        let (rows, columns) = tile.shape();
        let bytes = u128::from(rows) * u128::from(columns) * 4;
        let by_all = u128::from(blocks) * bytes * 1_000_000 / PARTS_BANDWIDTH;
        MEETING + by_all + u128::from(parts) * bytes * 1_000_000 / BLOCK_BANDWIDTH
    }
}

/// What the 16 × 64 tile for Ada costs on Hopper, which multiplies 8-bit numbers by `mma.sync` as numbers of f16: as an H200 took.
const ADA_ON_HOPPER: Cost =
    Cost { launch: LAUNCH, alone: 2_400, together: 1_690, crowded: 1_690, overhead: 300, resident: 5 };

/// How many blocks may share the sums of a tile.
const PARTS: [u32; 12] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];
/// The most that anybody may ask for.
pub(super) const MOST_PARTS: u32 = 96;
/// Steps along K that a part has at least.
const MIN_STEPS: u64 = 2;
/// Rounds of blocks that sharing makes at most.
const MOST_ROUNDS: u64 = 2;
/// Into how many parts sums may be split that a second launch adds.
const SUM_PARTS: [u32; 9] = [2, 3, 4, 5, 6, 8, 10, 12, 16];
/// As much of their time parts have to save to be taken, since one launch takes what is estimated more often than two do.
const SUMS_MARGIN: u128 = 25;
/// What that launch takes beside its bytes, in picoseconds.
const SUMS_LAUNCH: u128 = 2_600_000;
/// Bytes that it reads and writes in a microsecond, by way of the level-2 cache.
const SUMS_BANDWIDTH: u128 = 3_500_000;

/// What the launch takes that adds `parts` parts of each sum, of outputs of M × N × batch.
fn sums_picoseconds(sizes: [u32; 3], output_bytes: usize, parts: u32) -> u128 {
    let elements: u128 = sizes.map(u128::from).into_iter().product();
    let bytes = elements * (u128::from(parts) * 4 + output_bytes as u128);
    SUMS_LAUNCH + bytes * 1_000_000 / SUMS_BANDWIDTH
}

/// Until a block knows that it is the last, in picoseconds.
const MEETING: u128 = 1_500_000;
/// Bytes of sums that all blocks write and read in a microsecond, by way of the level-2 cache.
const PARTS_BANDWIDTH: u128 = 2_000_000;
/// Bytes of sums that a block reads in a microsecond.
const BLOCK_BANDWIDTH: u128 = 60_000;

impl Tile {
    /// How many blocks share the sums of each tile, of those that are told at each launch, or into how many parts they are split that a second launch adds.
    pub(super) fn parts(self, problem: &Problem, limits: &Limits) -> u32 {
        if let Some(cost) = PersistentCost::of(self, problem.input) {
            return cost.fastest(self, problem, limits).1;
        }
        Cost::of(self, problem.input).map_or(1, |cost| cost.fastest(self, problem, limits).1)
    }
}

/// What a persistent launch costs, in picoseconds on an H100.
#[derive(Clone, Copy, Debug)]
struct PersistentCost {
    /// For launching, filling the pipeline and storing the last tile.
    launch: u64,
    /// A tile for each column of K, where each block has one and there are few.
    alone: u64,
    /// The same, where every multiprocessor has a block, and all read from the level-2 cache; between the two it is in proportion.
    full: u64,
    /// The same, where blocks have several: all share the level-2 cache and the power.
    crowded: u64,
    /// The same, where rows do not start at the cache's lines, so that a row's part of a box takes two of them.
    straddling: u64,
    /// What a tile takes beside: of the epilogue, what is not hidden under another tile's products.
    tile: u64,
    /// What it takes more where the copy engine does not store it, but the consumers, row by row.
    rows: u64,
    /// The same of a block's last tile, under which nothing else runs.
    last_rows: u64,
}

impl PersistentCost {
    /// Those of tiles for 8-bit types; of those for Ada, estimates of what they cost there, from the rates of instructions. On Hopper one of these has
    /// [other costs](ADA_ON_HOPPER).
    const fn of_fp8(tile: Tile) -> Option<Self> {
        let (launch, alone, full, crowded, straddling, tile) = match tile {
            Tile::Fp8Hopper256x128 => (450_000, 4_057, 5_793, 5_277, 5_798, 3_759_000),
            Tile::Fp8Hopper128x192 => (648_000, 2_648, 5_335, 4_054, 4_849, 2_702_000),
            Tile::Fp8Hopper128x128 => (929_000, 2_021, 3_784, 3_079, 3_876, 1_960_000),
            Tile::Fp8Hopper64x128 => (756_000, 1_354, 2_593, 2_046, 2_711, 1_290_000),
            Tile::Fp8Hopper64x64 => (893_000, 772, 1_981, 1_365, 1_883, 869_000),
            Tile::Fp8Ada128x128 => (2_500_000, 9_000, 9_000, 9_000, 9_000, 2_000_000),
            Tile::Fp8Ada64x64 => (2_500_000, 3_000, 3_000, 3_000, 3_000, 700_000),
            Tile::Fp8Ada16x64 => (2_500_000, 1_500, 1_500, 1_500, 1_500, 400_000),
            // By way of f16, and with copies of the operands: for where nothing else runs.
            Tile::Fp8Portable64x64 => (5_000_000, 60_000, 60_000, 60_000, 60_000, 1_000_000),
            _ => return None,
        };
        Some(Self { launch, alone, full, crowded, straddling, tile, rows: 0, last_rows: 0 })
    }

    const fn of(tile: Tile, input: DType) -> Option<Self> {
        if is_fp8(input) {
            return Self::of_fp8(tile);
        }
        let (launch, alone, full, crowded, straddling, tile, rows, last_rows) = match (tile, input) {
            (Tile::HopperPingPong128x128, DType::F32) => {
                (3_503_000, 9_628, 9_628, 11_408, 14_227, 90_000, 3_900_000, 6_600_000)
            }
            (Tile::HopperCooperative128x256 | Tile::HopperCooperative128x256Halves, DType::F32) => {
                (5_504_000, 19_386, 19_065, 19_992, 17_723, 758_000, 10_600_000, 0)
            }
            (Tile::HopperCooperative128x128, DType::F32) => {
                (2_390_000, 9_153, 12_093, 13_059, 16_778, 477_000, 5_300_000, 0)
            }
            (Tile::HopperPingPong128x128, _) => {
                (2_160_000, 4_490, 5_773, 5_161, 9_222, 819_000, 5_500_000, 2_716_000)
            }
            (Tile::HopperPingPong128x192, _) => (8_504_000, 6_512, 7_527, 7_299, 8_508, 44_000, 0, 0),
            (Tile::HopperCooperative128x256 | Tile::HopperCooperative128x256Halves, _) => {
                (2_168_000, 17_426, 9_149, 12_004, 11_801, 1_692_000, 3_000_000, 0)
            }
            (Tile::HopperCooperative128x128, _) => {
                (718_000, 5_556, 7_556, 7_067, 8_109, 1_170_000, 3_400_000, 0)
            }
            (Tile::HopperCooperative128x192, _) => (1_165_000, 5_580, 12_423, 8_631, 9_233, 2_806_000, 0, 0),
            (Tile::HopperCooperative64x128, _) => (509_000, 3_118, 4_780, 5_092, 7_299, 890_000, 0, 0),
            (Tile::HopperCooperative64x160, _) => (418_000, 6_130, 4_673, 5_644, 4_363, 1_217_000, 0, 0),
            (Tile::HopperCooperative128x160, _) => (1_737_000, 5_700, 7_992, 7_508, 7_056, 1_395_000, 0, 0),
            (Tile::HopperCooperative256x176, _) => {
                (1_886_000, 13_469, 15_622, 15_691, 14_179, 5_721_000, 0, 0)
            }
            (Tile::HopperCooperative192x176, _) => {
                (4_917_000, 9_479, 12_370, 12_044, 12_075, 1_223_000, 0, 0)
            }
            _ => return None,
        };
        Some(Self { launch, alone, full, crowded, straddling, tile, rows, last_rows })
    }

    /// The time with as many parts of each sum as are fastest, in picoseconds.
    fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        self.fastest(tile, problem, limits).0
    }

    /// The least time, and how many parts of each sum it takes.
    fn fastest(self, tile: Tile, problem: &Problem, limits: &Limits) -> (u128, u32) {
        let whole = (self.of_whole(tile, problem, row_bytes(problem), limits), 1);
        if !has_passes(tile, problem.fused) {
            return whole;
        }
        let tiles = tile.tiles(problem.m, problem.n).saturating_mul(problem.batch.into());
        let most = SUM_PARTS.into_iter().take_while(|&parts| {
            tiles.saturating_mul(u64::from(parts) - 1) <= MOST_ROUNDS * u64::from(limits.multiprocessors)
        });
        let timed = most.filter_map(|parts| {
            let (count, k) = tile.split_evenly(problem.k, problem.input.size(), parts);
            let steps = tile.steps(u64::from(k) * problem.input.size() as u64);
            (count == parts && steps >= MIN_STEPS).then(|| {
                let time = self.of_passes(tile, problem, [parts, k], limits);
                (time + time / SUMS_MARGIN, parts)
            })
        });
        timed.chain([whole]).min().unwrap_or(whole)
    }

    /// The time with `parts` parts of each sum, of `k` elements each, and of adding them.
    fn of_passes(self, tile: Tile, problem: &Problem, [parts, k]: [u32; 2], limits: &Limits) -> u128 {
        let of_parts = Problem {
            k,
            batch: problem.batch.saturating_mul(parts),
            output: DType::F32,
            stores_boxes: true,
            fused: Fused::Floor,
            ..*problem
        };
        let sizes = [problem.m, problem.n, problem.batch];
        self.of_whole(tile, &of_parts, row_bytes(problem), limits)
            + sums_picoseconds(sizes, problem.output.size(), parts)
    }

    /// The time of one launch, whose operands have so many bytes from one row to the next.
    fn of_whole(self, tile: Tile, problem: &Problem, row_bytes: u64, limits: &Limits) -> u128 {
        let Problem { m, n, k, batch, .. } = *problem;
        let blocks = tile.blocks(m, n, batch, limits.multiprocessors).max(1);
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        // Of a launch that is persistent, its blocks are what runs at a time.
        let at_a_time = if tile.is_persistent() { blocks } else { multiprocessors };
        let (rounds, halves) = match tile.halves([m, n, batch], limits.multiprocessors) {
            Some(halves) => halves.rounds(),
            None => (tile.tiles(m, n).saturating_mul(batch.into()).div_ceil(at_a_time), 0),
        };
        let busy = at_a_time.min(multiprocessors);
        let alone = (self.alone * (multiprocessors - busy) + self.full * busy) / multiprocessors;
        let column = match (rounds + halves, row_bytes.is_multiple_of(CACHE_LINE)) {
            (1, true) => alone,
            (1, false) => alone * self.straddling / self.crowded,
            (_, true) => self.crowded,
            (_, false) => self.straddling,
        };
        let (more, last) = if !problem.stores_boxes {
            (self.rows, self.last_rows)
        } else if problem.fused == Fused::Floor {
            (0, 0)
        } else {
            fused(tile, problem)
        };
        // What does not stay in the level-2 cache is read from memory again, and small tiles read most.
        let column = if tile == Tile::HopperPingPong128x128 {
            let beyond =
                u64::try_from(bytes(problem).saturating_sub(MUCH) / (MUCH / 100)).unwrap_or(u64::MAX);
            let part = u128::from(column) * u128::from(beyond.min(MOST_BEYOND)) / of_memory(1200, limits);
            column + part as u64
        } else {
            column
        };
        let of_tile = u64::from(summed(problem)).saturating_mul(column) + self.tile + more;
        let half = if problem.input == DType::F32 || rounds == 0 { READING_HALF } else { HALF };
        let tiles = u128::from(rounds) * 1000 + u128::from(halves) * half;
        let of_tiles = tiles * u128::from(of_tile) / 1000;
        // Of x, which several tiles along N read, a part has left the level-2 cache in between.
        let (rows, columns) = tile.shape();
        let again = if columns < n {
            u128::from(m) * u128::from(batch) * u128::from(k) * problem.input.size() as u128 / 2
        } else {
            0
        };
        let moved = bytes(problem) + again + stored_bytes(problem);
        // Of a cluster, blocks may have no rows or columns of their own.
        let own = u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns));
        let reading = busy.min(own.saturating_mul(batch.into())).max(1);
        let bandwidth = of_memory(BANDWIDTH, limits).min(u128::from(reading) * READ_BY_BLOCK);
        u128::from(self.launch + last) + of_tiles.max(moved * 1_000_000 / bandwidth)
    }
}

/// What a tile that is stored as boxes takes more for a longer epilogue than [`Fused::Floor`], and what a block's last tile takes on top of that, in
/// picoseconds on an H100. Where consumers take turns, only the last one's is not hidden, but for terms.
fn fused(tile: Tile, problem: &Problem) -> (u64, u64) {
    let (each, last) = match tile {
        // What is read and stored beside Y competes with the other warpgroup's operands.
        Tile::HopperPingPong128x128 if problem.fused == Fused::Terms => (950_000, 1_900_000),
        // The mask is a few instructions for each number.
        Tile::HopperCooperative128x256 | Tile::HopperCooperative128x256Halves
            if problem.fused == Fused::Mask =>
        {
            (1_700_000, 0)
        }
        Tile::HopperCooperative128x128 | Tile::HopperCooperative64x128 if problem.fused == Fused::Mask => {
            (900_000, 0)
        }
        Tile::HopperPingPong128x128 | Tile::HopperPingPong128x192 => (0, 1_900_000),
        Tile::HopperCooperative128x256
        | Tile::HopperCooperative128x256Halves
        | Tile::HopperCooperative192x176
        | Tile::HopperCooperative256x176 => (2_500_000, 0),
        // In proportion to the columns: not measured.
        Tile::HopperCooperative128x192 => (2_000_000, 0),
        Tile::HopperCooperative128x160 | Tile::HopperCooperative64x160 => (1_750_000, 0),
        Tile::HopperCooperative128x128 | Tile::HopperCooperative64x128 => (1_400_000, 0),
        _ => (0, 0),
    };
    // Of f32, a box has half as many columns.
    let boxes = if problem.output == DType::F32 { 2 } else { 1 };
    (each * boxes, last * boxes)
}

/// Bytes that kernels read and write in a microsecond at most on an H100, those aside that are for few rows of x.
const BANDWIDTH: u128 = 2_516_000;

/// Bytes that a block of a persistent launch reads from memory in a microsecond at most.
const READ_BY_BLOCK: u128 = 40_000;

/// [`Limits::memory_bandwidth`] of an H100 with HBM3.
const OF_H100: u128 = 3_352_320;

/// What a rate of an H100's memory is on a device. Only Hopper's multiprocessors have these costs. On others, and where the bandwidth is not known, memory is
/// taken to be as much faster or slower as they are.
pub(super) fn of_memory(rate: u128, limits: &Limits) -> u128 {
    let bandwidth = u128::from(limits.memory_bandwidth);
    let is_known = bandwidth > 0 && is_hopper(limits.compute_capability);
    if is_known { (rate * bandwidth / OF_H100).max(1) } else { rate }
}

/// Columns that the sums take: a second pair of operands begins with a step of its own, and ends with one.
fn summed(problem: &Problem) -> u32 {
    problem.k.saturating_add(problem.rank.next_multiple_of(JOINED_STEP))
}

/// Columns of 16-bit types in a step.
const JOINED_STEP: u32 = 64;

/// Bytes of x and w, and of a second pair.
fn bytes(problem: &Problem) -> u128 {
    let rows = u128::from(problem.m) + u128::from(problem.n);
    rows * (u128::from(problem.k) + u128::from(problem.rank))
        * u128::from(problem.batch)
        * problem.input.size() as u128
}

/// Bytes from one row of x or w to the next, where they are contiguous or copies.
fn row_bytes(problem: &Problem) -> u64 {
    (u64::from(problem.k) * problem.input.size() as u64).next_multiple_of(CHUNK_BYTES as u64)
}

/// Bytes of y that the memory has to take while a kernel runs; the rest is still in the level-2 cache at its end.
fn stored_bytes(problem: &Problem) -> u128 {
    let elements = u128::from(problem.m) * u128::from(problem.n) * u128::from(problem.batch);
    elements * problem.output.size() as u128 * 4 / 5
}

/// What half a tile takes of the time of a whole one, in thousandths. It has half the products, for which its block reads three
/// quarters of the bytes. Measured of 16-bit types where the copy engine stores y, and taken to be the same where it does not.
const HALF: u128 = 620;
/// The same where reading takes all of the time: of f32, and where a block has nothing else.
const READING_HALF: u128 = 750;
/// What a launch of blocks with one tile each takes beside them, in picoseconds on an H100.
const LAUNCH: u128 = 2_199_000;
/// Bytes of x and w from which on tiles of 128 × 128 were measured to take longer for a column, a twelfth for each as many more: several times what
/// the level-2 cache holds.
const MUCH: u128 = 128 << 20;
/// As many times so many bytes, in hundredths, cost no more: all is read from memory then.
const MOST_BEYOND: u64 = 400;
/// Bytes of a line of the level-2 cache.
const CACHE_LINE: u64 = 128;
/// Bytes of a line that are read and written together.
const SECTOR: u64 = 32;
/// Shared memory that the driver keeps for itself in every block, in bytes.
const RESERVED_SHARED: u32 = 1024;

/// As [`picoseconds`], of one launch: with sums that no second one adds.
pub(super) fn picoseconds_of_launch(tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
    match PersistentCost::of(tile, problem.input) {
        Some(cost) => cost.of_whole(tile, problem, row_bytes(problem), limits),
        None => picoseconds(tile, problem, limits),
    }
}

/// How long it takes, in picoseconds on an H100.
pub(super) fn picoseconds(tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
    if tile == Tile::Fp8Ada16x64 && is_hopper(limits.compute_capability) {
        return ADA_ON_HOPPER.picoseconds(tile, problem, limits);
    }
    if let Some(cost) = PersistentCost::of(tile, problem.input) {
        return cost.picoseconds(tile, problem, limits);
    }
    if let Some(cost) = SkinnyCost::of(tile, problem.input) {
        return cost.picoseconds(tile, problem, limits);
    }
    match tile {
        Tile::Narrow16x256 => return NarrowCost::picoseconds(problem, limits),
        Tile::Dots8x2 => return DotsCost::picoseconds(problem, limits),
        _ => {}
    }
    Cost::of(tile, problem.input).map_or(u128::MAX, |cost| cost.picoseconds(tile, problem, limits))
}

/// Half the times that a column takes as long as one that is read in chunks. What sizes in f32, TF32 and bf16 took on an H200 gives these. Where rows start at
/// multiples of 4 bytes only, copying words takes most of the time, so that they are larger where the products take less.
fn slowness(tile: Tile, problem: &Problem) -> u128 {
    // Rows of an odd K start at multiples of 4 bytes, and of nothing larger.
    let has_singles = problem.k % 2 == 1;
    match (problem.access, problem.input, tile) {
        (Access::Aligned | Access::Across | Access::WAcross | Access::Dense | Access::Strided, ..) => 2,
        (Access::Words, DType::F32, Tile::Tf32T64x64) if has_singles => 7,
        (Access::Words, DType::F32, Tile::Tf32T16x64) if has_singles => 5,
        (Access::Words, DType::F32, _) if has_singles => 4,
        (Access::Words, DType::F32, _) => 3,
        (Access::Words, ..) => 5,
    }
}
