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
use warpsmith_kernels::linear_hopper::{Hopper64x128, Hopper128x128, Hopper128x256};

use crate::DType;

/// The tile of the output that one block computes at a time, rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tile {
    /// 128 × 256 with Hopper's copy engine and `wgmma`, two blocks to a cluster; 16-bit types only.
    Hopper128x256,
    /// 128 × 128, as the former, without clusters.
    Hopper128x128,
    /// 64 × 128, as the former, two blocks to a multiprocessor.
    Hopper64x128,
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
        Self::Hopper128x256,
        Self::Hopper128x128,
        Self::Hopper64x128,
        Self::T128x128,
        Self::T128x64,
        Self::T64x64,
        Self::T16x64,
    ];

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hopper128x256 => "hopper-128x256",
            Self::Hopper128x128 => "hopper-128x128",
            Self::Hopper64x128 => "hopper-64x128",
            Self::T128x128 => "128x128",
            Self::T128x64 => "128x64",
            Self::T64x64 => "64x64",
            Self::T16x64 => "16x64",
        }
    }

    const fn facts(self) -> Facts {
        match self {
            Self::Hopper128x256 => Facts::of_hopper::<Hopper128x256>(),
            Self::Hopper128x128 => Facts::of_hopper::<Hopper128x128>(),
            Self::Hopper64x128 => Facts::of_hopper::<Hopper64x128>(),
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
            Self::Hopper128x256 | Self::Hopper128x128 | Self::Hopper64x128 | Self::T128x128 => {
                input != DType::F32 && access == Access::Aligned
            }
            Self::T128x64 => access == Access::Aligned,
            Self::T64x64 | Self::T16x64 => true,
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

    /// The blocks of a launch for an output of `m` × `n`: one for each tile, or at most as many as the multiprocessors hold
    /// where a block works through several.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32, multiprocessors: u32) -> u64 {
        let tiles = self.tiles(m, n);
        let Some(Hopper { cluster, resident }) = self.facts().hopper else { return tiles };
        let most = u64::from(multiprocessors) * u64::from(resident) / u64::from(cluster);
        tiles.min(most.max(1) * u64::from(cluster))
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
    /// In chunks of 16 bytes: base addresses and row strides are multiples of 16 bytes.
    Aligned,
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
    const fn of(tile: Tile, input: DType) -> Self {
        let (alone, together, crowded, overhead, resident) = match (tile, input) {
            (Tile::Hopper128x256, _) => (10_600, 10_600, 12_400, 280, 1),
            (Tile::Hopper128x128, _) => (5_400, 5_400, 6_300, 300, 1),
            (Tile::Hopper64x128, _) => (5_650, 3_450, 4_000, 150, 2),
            (Tile::T128x128, _) => (13_600, 8_000, 9_400, 340, 2),
            (Tile::T128x64, DType::F32) => (37_000, 31_000, 31_100, 100, 2),
            (Tile::T128x64, _) => (10_900, 5_000, 6_700, 220, 3),
            (Tile::T64x64, DType::F32) => (19_600, 17_600, 17_600, 100, 2),
            (Tile::T64x64, _) => (6_600, 3_000, 3_670, 200, 4),
            (Tile::T16x64, DType::F32) => (7_800, 5_600, 5_600, 100, 5),
            (Tile::T16x64, _) => (4_600, 1_900, 2_140, 250, 8),
        };
        Self { alone, together, crowded, overhead, resident }
    }
}

/// Shared memory that the driver keeps for itself in every block, in bytes.
const RESERVED_SHARED: u32 = 1024;

/// The tile to compute `problem` with; `None` if no tile fits the device's shared memory.
#[must_use]
pub fn select(problem: &Problem, limits: &Limits) -> Option<Tile> {
    Tile::ALL
        .into_iter()
        .filter(|tile| tile.runs_on(limits.compute_capability))
        .filter(|tile| tile.serves(problem.input, problem.access))
        // There is no tensor map of a matrix without columns.
        .filter(|tile| problem.k > 0 || !tile.is_hopper())
        .filter(|tile| tile.shared_bytes() <= limits.max_shared_per_block)
        .min_by_key(|tile| picoseconds(*tile, problem, limits))
}

/// The time of the fullest multiprocessor.
fn picoseconds(tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
    let cost = Cost::of(tile, problem.input);
    let multiprocessors = u64::from(limits.multiprocessors.max(1));
    let blocks = tile.tiles(problem.m, problem.n);
    let shared = limits.shared_per_multiprocessor / (tile.shared_bytes() + RESERVED_SHARED);
    let resident = cost.resident.min(u64::from(shared)).max(1);

    let round = |blocks: u64| cost.alone.max(blocks * cost.together);
    let fullest = blocks.div_ceil(multiprocessors);
    let (rounds, rest) = (fullest / resident, fullest % resident);
    let last = if rest > 0 { round(rest) } else { 0 };
    let by_rounds = u128::from(rounds) * u128::from(round(resident)) + u128::from(last);
    let by_chip = u128::from(blocks) * u128::from(cost.crowded) / u128::from(multiprocessors);
    by_rounds.max(by_chip) * u128::from(u64::from(problem.k) + cost.overhead)
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
        select(&Problem { m, n, k, input, access: Access::Aligned }, limits).expect("all tiles fit an H100")
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
            assert_eq!(tile_on(&H100, size, size, size, DType::Bf16), Tile::Hopper128x256);
            assert_eq!(tile_on(&H100, size, size, size, DType::F32), Tile::T128x64);
        }
        let problem = Problem { m: 4096, n: 4096, k: 4096, input: DType::F16, access: Access::Unaligned };
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
        let measured: [((u32, u32, u32), [f64; 7]); 18] = [
            ((1, 4096, 4096), [44.68, 31.71, 25.68, 55.87, 42.16, 25.9, 18.73]),
            ((16, 4096, 4096), [45.12, 29.48, 25.76, 55.93, 42.41, 26.17, 18.91]),
            ((64, 4096, 4096), [45.15, 26.71, 24.48, 56.52, 43.13, 26.83, 20.66]),
            ((128, 4096, 4096), [44.57, 23.59, 24.78, 56.31, 44.77, 27.15, 43.78]),
            ((256, 4096, 4096), [42.24, 23.68, 25.5, 56.38, 45.23, 33.58, 73.6]),
            ((512, 4096, 4096), [43.84, 25.79, 30.1, 58.31, 58.05, 74.16, 137.23]),
            ((256, 256, 512), [8.08, 5.46, 4.55, 11.04, 8.1, 6.06, 4.8]),
            ((512, 512, 512), [10.64, 6.91, 6.06, 14.22, 10.63, 7.49, 6.17]),
            ((1024, 784, 2048), [14.29, 10.15, 12.21, 18.79, 17.52, 23.27, 41.2]),
            ((1024, 1024, 1024), [15.6, 9.65, 9.12, 20.55, 16.0, 12.58, 22.45]),
            ((1536, 1536, 1536), [20.16, 20.51, 19.24, 33.54, 31.38, 35.57, 61.48]),
            ((2048, 2048, 2048), [26.96, 26.61, 33.19, 43.38, 77.42, 68.87, 140.26]),
            ((3072, 3072, 3072), [102.65, 89.14, 119.2, 184.37, 184.79, 211.85, 479.1]),
            ((4096, 1024, 1024), [16.42, 16.66, 18.35, 25.63, 40.86, 37.97, 71.8]),
            ((16384, 768, 768), [34.28, 35.43, 39.92, 61.37, 70.83, 80.57, 160.85]),
            ((4096, 4096, 4096), [189.42, 191.75, 233.24, 352.49, 452.54, 510.97, 1136.3]),
            ((8192, 4096, 4096), [382.39, 390.46, 539.86, 720.71, 890.46, 1020.57, 2293.66]),
            ((8192, 8192, 8192), [1457.81, 1511.17, 2228.06, 2687.33, 3316.96, 3974.24, 9358.82]),
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
                    let blocks = tile.blocks(m, n, multiprocessors);
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
                        let problem = Problem { m: size, n: size, k: size, input, access };
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
        let problem = Problem { m: 1, n: 1, k: 1, input: DType::F16, access: Access::Aligned };
        assert_eq!(select(&problem, &limits), None);
    }

    #[test]
    fn more_multiprocessors_never_ask_for_larger_tiles() {
        let area = |multiprocessors| {
            let problem = Problem { m: 2048, n: 2048, k: 2048, input: DType::F16, access: Access::Aligned };
            let (rows, columns) =
                select(&problem, &Limits { multiprocessors, ..PORTABLE }).expect("tiles fit").shape();
            rows * columns
        };
        assert!(area(8) >= area(132) && area(132) >= area(100_000));
    }
}
