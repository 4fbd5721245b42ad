//! Which kernel a linear operation runs: one pure function of the problem and the device.
//!
//! The model is the time of the fullest multiprocessor. A block walks along K, so its time is a cost per column of K, times K
//! and some columns more for filling its pipeline and storing its tile. A block that is alone on a multiprocessor waits for its
//! own instructions; several overlap. With B = ⌈tiles / multiprocessors⌉ blocks to work through, R of them at a time, that is
//! ⌊B / R⌋ full rounds and one of the rest. A chip that is full everywhere is slower still, since all share the level-2 cache
//! and the power: the time is at least the tiles' share at that rate. So a large problem gets the largest tile, which reads least
//! for each product, and a small one gets tiles that spread over all multiprocessors. Each choice gives the same answer within
//! the operation's error bound.
//!
//! The costs were fitted to measurements on an H100 of sizes from 1 × 4096 × 4096 to 8192³. Only their ratios matter here.

use warpsmith_dsl::gemm::{PersistentTile, TileShape};
use warpsmith_kernels::linear::{Tile16x64, Tile64x64, Tile128x64, Tile128x128};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative128x128, HopperCooperative128x256, HopperPingPong128x128,
};

use crate::DType;

/// The tile of the output that one block computes at a time, rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tile {
    /// 128 × 128 with Hopper's copy engine and `wgmma`, by two warpgroups in turn; 16-bit types only.
    HopperPingPong128x128,
    /// 128 × 256, as the former, by two warpgroups together, two blocks to a cluster.
    HopperCooperative128x256,
    /// 128 × 128, as the former, by two warpgroups together.
    HopperCooperative128x128,
    /// 128 × 128; 16-bit types only.
    T128x128,
    /// 128 × 64.
    T128x64,
    /// 64 × 64.
    T64x64,
    /// 16 × 64, for a few rows of x.
    T16x64,
}

impl Tile {
    /// Every tile, largest first; those for Hopper before the portable ones.
    pub const ALL: [Self; 7] = [
        Self::HopperPingPong128x128,
        Self::HopperCooperative128x256,
        Self::HopperCooperative128x128,
        Self::T128x128,
        Self::T128x64,
        Self::T64x64,
        Self::T16x64,
    ];

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HopperPingPong128x128 => "hopper-pingpong-128x128",
            Self::HopperCooperative128x256 => "hopper-cooperative-128x256",
            Self::HopperCooperative128x128 => "hopper-cooperative-128x128",
            Self::T128x128 => "128x128",
            Self::T128x64 => "128x64",
            Self::T64x64 => "64x64",
            Self::T16x64 => "16x64",
        }
    }

    const fn facts(self) -> Facts {
        match self {
            Self::HopperPingPong128x128 => Facts::of_hopper::<HopperPingPong128x128>(),
            Self::HopperCooperative128x256 => Facts::of_hopper::<HopperCooperative128x256>(),
            Self::HopperCooperative128x128 => Facts::of_hopper::<HopperCooperative128x128>(),
            Self::T128x128 => Facts::of::<Tile128x128>(),
            Self::T128x64 => Facts::of::<Tile128x64>(),
            Self::T64x64 => Facts::of::<Tile64x64>(),
            Self::T16x64 => Facts::of::<Tile16x64>(),
        }
    }

    /// Rows and columns of the tile.
    #[must_use]
    pub const fn shape(self) -> (u32, u32) {
        self.facts().shape
    }

    /// Shared memory that a block of it takes, in bytes.
    #[must_use]
    pub const fn shared_bytes(self) -> u32 {
        self.facts().shared_bytes
    }

    /// Whether it runs on Hopper only.
    #[must_use]
    pub const fn is_hopper(self) -> bool {
        self.facts().hopper.is_some()
    }

    /// Blocks of a cluster.
    #[must_use]
    pub const fn cluster(self) -> u32 {
        match self.facts().hopper {
            Some(hopper) => hopper.cluster,
            None => 1,
        }
    }

    /// Whether there is a kernel with this tile for inputs of type `input`, read with `access`.
    #[must_use]
    pub fn serves(self, input: DType, access: Access) -> bool {
        match self {
            Self::HopperPingPong128x128 | Self::HopperCooperative128x128 | Self::HopperCooperative128x256 => {
                input != DType::F32 && access != Access::Unaligned
            }
            Self::T128x128 => input != DType::F32 && access == Access::Aligned,
            Self::T128x64 => access == Access::Aligned,
            Self::T64x64 | Self::T16x64 => access != Access::Across,
        }
    }

    /// Whether its kernels run on a device of this compute capability.
    #[must_use]
    pub fn runs_on(self, compute_capability: (u32, u32)) -> bool {
        if self.is_hopper() { compute_capability == HOPPER } else { compute_capability >= (8, 0) }
    }

    /// The tiles that cover an output of `m` × `n`, whole clusters of them; each side below 2³¹.
    #[must_use]
    pub fn tiles(self, m: u32, n: u32) -> u64 {
        let (rows, columns) = self.shape();
        let along_m = m.div_ceil(rows).next_multiple_of(self.cluster());
        u64::from(along_m) * u64::from(n.div_ceil(columns))
    }

    /// The blocks of a launch for `batch` outputs of `m` × `n`: one for each tile, or at most as many as the multiprocessors hold
    /// where a block works through several.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32, batch: u32, multiprocessors: u32) -> u64 {
        let tiles = self.tiles(m, n).saturating_mul(batch.into());
        let Some(Hopper { cluster, resident }) = self.facts().hopper else { return tiles };
        let most = u64::from(multiprocessors) * u64::from(resident) / u64::from(cluster);
        tiles.min(most.max(1) * u64::from(cluster))
    }
}

impl Tile {
    /// Whether a device has a kernel with this tile for a problem.
    fn computes(self, problem: &Problem, limits: &Limits) -> bool {
        self.runs_on(limits.compute_capability)
            && self.serves(problem.input, problem.access)
            // There is no tensor map of a matrix without columns.
            && (problem.k > 0 || !self.is_hopper())
            && self.shared_bytes() <= limits.max_shared_per_block
    }
}

/// The compute capability of Hopper's kernels, which run on no other.
const HOPPER: (u32, u32) = (9, 0);

/// What a tile's kernel says of itself.
#[derive(Clone, Copy)]
struct Facts {
    shape: (u32, u32),
    shared_bytes: u32,
    hopper: Option<Hopper>,
}

/// The same, of a persistent kernel for Hopper.
#[derive(Clone, Copy)]
struct Hopper {
    /// Blocks of a cluster.
    cluster: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
}

impl Facts {
    const fn of<S: TileShape>() -> Self {
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, hopper: None }
    }

    const fn of_hopper<S: PersistentTile>() -> Self {
        let hopper = Hopper { cluster: S::CLUSTER_M, resident: S::MIN_BLOCKS };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, hopper: Some(hopper) }
    }
}

impl std::fmt::Display for Tile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl std::str::FromStr for Tile {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|tile| tile.name() == text).ok_or_else(|| crate::Error::Argument {
            operation: "linear",
            argument: "tile",
            expected: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
            actual: format!("`{text}`"),
        })
    }
}

/// How a kernel reads x and w.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// In chunks of 16 bytes along K: base addresses and row strides are multiples of 16 bytes.
    Aligned,
    /// In chunks of 16 bytes, of at least one of them along its rows: x lies as K × M, or w as K × N.
    Across,
    /// Element by element: any address and stride.
    Unaligned,
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Rows of x and y.
    pub m: u32,
    /// Rows of w, columns of y.
    pub n: u32,
    /// Columns of x and w.
    pub k: u32,
    /// How many products of these sizes there are.
    pub batch: u32,
    /// The inputs' type.
    pub input: DType,
    /// How x and w can be read.
    pub access: Access,
}

/// What the choice needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its compute capability.
    pub compute_capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may have, in bytes.
    pub max_shared_per_block: u32,
    /// Shared memory that the blocks of a multiprocessor have together, in bytes.
    pub shared_per_multiprocessor: u32,
}

/// What one block of a tile costs for each column of K, in picoseconds on an H100.
#[derive(Clone, Copy, Debug)]
struct Cost {
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
            (Tile::T128x128, _) => (13_600, 8_000, 9_400, 340, 2),
            (Tile::T128x64, DType::F32) => (37_000, 31_000, 31_100, 100, 2),
            (Tile::T128x64, _) => (10_900, 5_000, 6_700, 220, 3),
            (Tile::T64x64, DType::F32) => (19_600, 17_600, 17_600, 100, 2),
            (Tile::T64x64, _) => (6_600, 3_000, 3_670, 200, 4),
            (Tile::T16x64, DType::F32) => (7_800, 5_600, 5_600, 100, 5),
            (Tile::T16x64, _) => (4_600, 1_900, 2_140, 250, 8),
            // These have costs of their own.
            _ => return None,
        };
        Some(Self { alone, together, crowded, overhead, resident })
    }

    /// The time of the fullest multiprocessor, in picoseconds.
    fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        let blocks = tile.tiles(problem.m, problem.n).saturating_mul(problem.batch.into());
        let shared = limits.shared_per_multiprocessor / (tile.shared_bytes() + RESERVED_SHARED);
        let resident = self.resident.min(u64::from(shared)).max(1);

        let round = |blocks: u64| self.alone.max(blocks * self.together);
        let fullest = blocks.div_ceil(multiprocessors);
        let (rounds, rest) = (fullest / resident, fullest % resident);
        let last = if rest > 0 { round(rest) } else { 0 };
        let by_rounds = u128::from(rounds) * u128::from(round(resident)) + u128::from(last);
        let by_chip = u128::from(blocks) * u128::from(self.crowded) / u128::from(multiprocessors);
        LAUNCH + by_rounds.max(by_chip) * u128::from(u64::from(problem.k) + self.overhead)
    }
}

/// What a persistent launch costs, in picoseconds on an H100.
#[derive(Clone, Copy, Debug)]
struct PersistentCost {
    /// For launching, filling the pipeline and storing the last tile.
    launch: u64,
    /// A tile for each column of K, where each block has one.
    alone: u64,
    /// The same, where blocks have several: all share the level-2 cache and the power.
    crowded: u64,
    /// The same, where rows do not start at the cache's lines, so that a row's part of a box takes two of them.
    straddling: u64,
    /// What a tile takes beside: of the epilogue, what is not hidden under another tile's products.
    tile: u64,
}

impl PersistentCost {
    const fn of(tile: Tile) -> Option<Self> {
        let (launch, alone, crowded, straddling, tile) = match tile {
            Tile::HopperPingPong128x128 => (4_400_000, 5_480, 5_690, 10_900, 100_000),
            Tile::HopperCooperative128x256 => (4_900_000, 10_600, 11_600, 12_800, 730_000),
            Tile::HopperCooperative128x128 => (4_100_000, 5_500, 5_600, 10_900, 730_000),
            _ => return None,
        };
        Some(Self { launch, alone, crowded, straddling, tile })
    }

    fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        let Problem { m, n, batch, .. } = *problem;
        let blocks = tile.blocks(m, n, batch, limits.multiprocessors).max(1);
        let rounds = tile.tiles(m, n).saturating_mul(batch.into()).div_ceil(blocks);
        let row_bytes = u64::from(problem.k) * problem.input.size() as u64;
        let column = match rounds {
            1 => self.alone,
            _ if row_bytes.is_multiple_of(CACHE_LINE) => self.crowded,
            _ => self.straddling,
        };
        let of_tile = u64::from(problem.k).saturating_mul(column) + self.tile;
        u128::from(self.launch) + u128::from(rounds) * u128::from(of_tile)
    }
}

/// Half the times that reading element by element takes as long as in chunks: for f32, which is copied asynchronously (an estimate
/// from the instructions of a chunk), and for 16-bit types, which go through registers (measured: 7 to 10 times as long).
const UNALIGNED_WORDS: u128 = 3;
const UNALIGNED_HALVES: u128 = 16;

/// What a launch of blocks with one tile each takes beside them, in picoseconds on an H100.
const LAUNCH: u128 = 2_600_000;
/// Bytes of a line of the level-2 cache.
const CACHE_LINE: u64 = 128;
/// Shared memory that the driver keeps for itself in every block, in bytes.
const RESERVED_SHARED: u32 = 1024;

/// The tile to compute `problem` with; `None` if no tile fits the device's shared memory.
#[must_use]
pub fn select(problem: &Problem, limits: &Limits) -> Option<Tile> {
    candidates(problem, limits).min_by_key(|tile| picoseconds(*tile, problem, limits))
}

/// The tiles that compute `problem` on a device with these limits.
pub fn candidates(problem: &Problem, limits: &Limits) -> impl Iterator<Item = Tile> {
    Tile::ALL.into_iter().filter(|tile| tile.computes(problem, limits))
}

/// The time of `problem` with `tile`, or with the tile that [`select`] chooses, in picoseconds; `None` if there is no kernel for it.
pub(crate) fn estimate(tile: Option<Tile>, problem: &Problem, limits: &Limits) -> Option<u128> {
    let tile = match tile {
        Some(tile) => Some(tile).filter(|tile| tile.computes(problem, limits)),
        None => select(problem, limits),
    };
    tile.map(|tile| picoseconds(tile, problem, limits))
}

/// How long it takes, in picoseconds on an H100.
fn picoseconds(tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
    if let Some(cost) = PersistentCost::of(tile) {
        return cost.picoseconds(tile, problem, limits);
    }
    let aligned =
        Cost::of(tile, problem.input).map_or(u128::MAX, |cost| cost.picoseconds(tile, problem, limits));
    match (problem.access, problem.input) {
        (Access::Aligned | Access::Across, _) => aligned,
        (Access::Unaligned, DType::F32) => aligned.saturating_mul(UNALIGNED_WORDS) / 2,
        (Access::Unaligned, _) => aligned.saturating_mul(UNALIGNED_HALVES) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Limits, Problem, Tile, select};
    use crate::DType;

    const H100: Limits = Limits {
        compute_capability: (9, 0),
        multiprocessors: 132,
        max_shared_per_block: 232_448,
        shared_per_multiprocessor: 233_472,
    };
    /// An H100 that runs what its predecessors run.
    const PORTABLE: Limits = Limits { compute_capability: (8, 0), ..H100 };

    fn tile_on(limits: &Limits, m: u32, k: u32, n: u32, input: DType) -> Tile {
        select(&Problem { m, n, k, batch: 1, input, access: Access::Aligned }, limits)
            .expect("all tiles fit an H100")
    }

    fn tile(m: u32, k: u32, n: u32, input: DType) -> Tile {
        tile_on(&PORTABLE, m, k, n, input)
    }

    #[test]
    fn large_problems_get_the_tile_that_reads_least() {
        for size in [4096, 8192, 16384] {
            assert_eq!(tile(size, size, size, DType::Bf16), Tile::T128x128);
            assert_eq!(tile(size, size, size, DType::F32), Tile::T128x64);
        }
    }

    #[test]
    fn hopper_gets_its_own_tiles_for_what_its_copy_engine_can_read() {
        for size in [4096, 8192, 16384] {
            assert!(tile_on(&H100, size, size, size, DType::Bf16).is_hopper());
            assert_eq!(tile_on(&H100, size, size, size, DType::F32), Tile::T128x64);
        }
        let problem =
            Problem { m: 4096, n: 4096, k: 4096, batch: 1, input: DType::F16, access: Access::Unaligned };
        assert!(select(&problem, &H100).is_some_and(|tile| !tile.is_hopper()), "rows that are not aligned");
        let empty = Problem { k: 0, access: Access::Aligned, ..problem };
        assert!(select(&empty, &H100).is_some_and(|tile| !tile.is_hopper()), "no columns");
        let later = Limits { compute_capability: (10, 0), ..H100 };
        let problem = Problem { access: Access::Aligned, ..problem };
        assert!(select(&problem, &later).is_some_and(|tile| !tile.is_hopper()), "another architecture");
    }

    /// Microseconds of each tile in the order of [`Tile::ALL`], bf16 with bias and ReLU on an H100: M, K, N first.
    #[test]
    fn the_choice_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
        let measured: [((u32, u32, u32), [f64; 7]); 10] = [
            ((256, 256, 512), [5.8, 7.93, 5.53, 12.34, 8.86, 6.47, 4.94]),
            ((512, 512, 512), [7.2, 10.44, 6.94, 15.47, 11.4, 7.91, 6.4]),
            ((1024, 784, 2048), [10.38, 14.4, 10.17, 20.16, 18.48, 25.43, 42.67]),
            ((2048, 2048, 2048), [26.08, 27.01, 26.74, 44.92, 79.01, 70.82, 140.58]),
            ((16384, 768, 768), [32.01, 33.7, 35.12, 66.44, 75.19, 85.98, 169.47]),
            ((4096, 4096, 4096), [187.06, 192.01, 195.39, 376.58, 477.94, 530.14, 1144.46]),
            ((8192, 4096, 4096), [380.28, 398.56, 410.12, 775.87, 952.6, 1079.07, 2309.18]),
            ((8192, 8192, 8192), [1498.94, 1574.35, 1559.09, 2931.23, 3632.38, 4194.02, 9566.46]),
            ((16384, 4096, 4096), [756.89, 795.22, 796.75, 1579.46, 1916.19, 2203.82, 4717.12]),
            ((4096, 1024, 4096), [50.03, 52.64, 55.05, 106.18, 131.4, 140.47, 285.25]),
        ];
        for ((m, k, n), times) in measured {
            let choice = tile_on(&H100, m, k, n, DType::Bf16);
            let of = |tile| times[Tile::ALL.iter().position(|&other| other == tile).expect("a tile")];
            let fastest = times.into_iter().fold(f64::INFINITY, f64::min);
            assert!(of(choice) <= 1.05 * fastest, "{m}x{k}x{n}: {choice} takes {}, {fastest}", of(choice));
        }
    }

    #[test]
    fn a_persistent_launch_is_of_whole_clusters_and_no_larger_than_the_device() {
        for tile in Tile::ALL.into_iter().filter(|tile| tile.is_hopper()) {
            let (rows, columns) = tile.shape();
            for multiprocessors in [1, 7, 132] {
                for (m, n) in [(1, 1), (rows + 1, columns + 1), (5000, 3000), (1 << 20, 1 << 20)] {
                    let blocks = tile.blocks(m, n, 1, multiprocessors);
                    assert!(blocks > 0 && blocks.is_multiple_of(u64::from(tile.cluster())));
                    assert!(blocks <= tile.tiles(m, n));
                    assert!(blocks <= u64::from((2 * multiprocessors).max(tile.cluster())));
                }
            }
        }
    }

    #[test]
    fn small_problems_are_spread_over_the_multiprocessors() {
        assert_eq!(tile(256, 256, 512, DType::F16), Tile::T16x64);
        assert_eq!(tile(1, 4096, 4096, DType::F16), Tile::T16x64);
        assert_eq!(tile(16, 4096, 11008, DType::Bf16), Tile::T16x64);
    }

    /// The tile that was fastest on an H100, for each size that was measured.
    #[test]
    fn the_choice_is_the_fastest_measured() {
        let measured = [
            (DType::Bf16, 1, 4096, 4096, Tile::T16x64),
            (DType::Bf16, 16, 4096, 4096, Tile::T16x64),
            (DType::Bf16, 64, 4096, 4096, Tile::T16x64),
            (DType::Bf16, 128, 4096, 4096, Tile::T64x64),
            (DType::Bf16, 256, 4096, 4096, Tile::T64x64),
            (DType::Bf16, 256, 256, 512, Tile::T16x64),
            (DType::Bf16, 512, 512, 512, Tile::T16x64),
            (DType::Bf16, 1024, 784, 2048, Tile::T128x64),
            (DType::Bf16, 1024, 1024, 1024, Tile::T64x64),
            (DType::Bf16, 1536, 1536, 1536, Tile::T128x64),
            (DType::Bf16, 2048, 2048, 2048, Tile::T128x128),
            (DType::Bf16, 3072, 3072, 3072, Tile::T128x128),
            (DType::Bf16, 4096, 1024, 1024, Tile::T128x128),
            (DType::Bf16, 4096, 4096, 4096, Tile::T128x128),
            (DType::Bf16, 16384, 768, 768, Tile::T128x128),
            (DType::F32, 1, 4096, 4096, Tile::T16x64),
            (DType::F32, 128, 4096, 4096, Tile::T64x64),
            (DType::F32, 256, 256, 512, Tile::T16x64),
            (DType::F32, 512, 512, 512, Tile::T16x64),
            (DType::F32, 1024, 784, 2048, Tile::T128x64),
            (DType::F32, 2048, 2048, 2048, Tile::T128x64),
        ];
        for (input, m, k, n, fastest) in measured {
            assert_eq!(tile(m, k, n, input), fastest, "{input} {m}x{k}x{n}");
        }
    }

    #[test]
    fn every_choice_has_a_kernel_that_fits_the_device() {
        for input in [DType::F16, DType::Bf16, DType::F32] {
            for access in [Access::Aligned, Access::Unaligned] {
                for shared in [49_152, 101_376, 166_912, 232_448] {
                    let limits = Limits {
                        compute_capability: (9, 0),
                        multiprocessors: 46,
                        max_shared_per_block: shared,
                        shared_per_multiprocessor: shared + 1024,
                    };
                    for size in [1, 15, 64, 100, 1000, 5000, i32::MAX as u32] {
                        let problem = Problem { m: size, n: size, k: size, batch: 1, input, access };
                        let Some(tile) = select(&problem, &limits) else { continue };
                        assert!(tile.serves(input, access) && tile.shared_bytes() <= shared);
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_with_too_little_shared_memory_is_told_so() {
        let limits = Limits {
            multiprocessors: 10,
            max_shared_per_block: 1024,
            shared_per_multiprocessor: 2048,
            ..PORTABLE
        };
        let problem = Problem { m: 1, n: 1, k: 1, batch: 1, input: DType::F16, access: Access::Aligned };
        assert_eq!(select(&problem, &limits), None);
    }

    #[test]
    fn more_multiprocessors_never_ask_for_larger_tiles() {
        let area = |multiprocessors| {
            let problem =
                Problem { m: 2048, n: 2048, k: 2048, batch: 1, input: DType::F16, access: Access::Aligned };
            let (rows, columns) =
                select(&problem, &Limits { multiprocessors, ..PORTABLE }).expect("tiles fit").shape();
            rows * columns
        };
        assert!(area(8) >= area(132) && area(132) >= area(100_000));
    }
}
