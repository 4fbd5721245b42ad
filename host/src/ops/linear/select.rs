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

use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile, TileShape};
use warpsmith_kernels::linear::{Tile16x64, Tile64x64, Tile128x64, Tile128x128};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative128x128, HopperCooperative128x256, HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{Split64x64, Split64x128, Split128x128, Split128x256};
use warpsmith_kernels::linear_skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny32x64Split2, Skinny64x64,
    Skinny64x64Split2, Skinny128x64Split2, Skinny128x128Split2,
};

use crate::DType;
use crate::ops::{Precision, Products};

/// The tile of the output that one block computes at a time, rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tile {
    /// 128 × 128 with Hopper's copy engine and `wgmma`, by two warpgroups in turn; f32 is rounded to TF32.
    HopperPingPong128x128,
    /// 128 × 192, as the former, two blocks to a cluster; for outputs that are [stored as boxes](Problem::stores_boxes) only.
    HopperPingPong128x192,
    /// 128 × 256, as the former, by two warpgroups together, two blocks to a cluster.
    HopperCooperative128x256,
    /// 128 × 128, as the former, by two warpgroups together.
    HopperCooperative128x128,
    /// 128 × 256, for f32 as three TF32 products, two blocks to a cluster.
    HopperSplit128x256,
    /// 128 × 128, the same without clusters.
    HopperSplit128x128,
    /// 64 × 128, the same, two blocks to a multiprocessor.
    HopperSplit64x128,
    /// 64 × 64, the same, two blocks to a multiprocessor.
    HopperSplit64x64,
    /// 128 × 128 on Hopper by two blocks, which share the sum over K; 16-bit types only.
    Skinny128x128Split2,
    /// 128 × 64, as the former.
    Skinny128x64Split2,
    /// 64 × 64, as the former, by one block.
    Skinny64x64,
    /// 64 × 64, as the former, by two blocks.
    Skinny64x64Split2,
    /// 32 × 64, as the former, by one block.
    Skinny32x64,
    /// 32 × 64, as the former, by two blocks.
    Skinny32x64Split2,
    /// 16 × 64, as the former, by one block.
    Skinny16x64,
    /// 16 × 64, as the former, by two blocks.
    Skinny16x64Split2,
    /// 16 × 64, as the former, by four blocks.
    Skinny16x64Split4,
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
    pub const ALL: [Self; 21] = [
        Self::HopperPingPong128x128,
        Self::HopperPingPong128x192,
        Self::HopperCooperative128x256,
        Self::HopperCooperative128x128,
        Self::HopperSplit128x256,
        Self::HopperSplit128x128,
        Self::HopperSplit64x128,
        Self::HopperSplit64x64,
        Self::Skinny128x128Split2,
        Self::Skinny128x64Split2,
        Self::Skinny64x64,
        Self::Skinny64x64Split2,
        Self::Skinny32x64,
        Self::Skinny32x64Split2,
        Self::Skinny16x64,
        Self::Skinny16x64Split2,
        Self::Skinny16x64Split4,
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
            Self::HopperPingPong128x192 => "hopper-pingpong-128x192",
            Self::HopperCooperative128x256 => "hopper-cooperative-128x256",
            Self::HopperCooperative128x128 => "hopper-cooperative-128x128",
            Self::HopperSplit128x256 => "hopper-split-128x256",
            Self::HopperSplit128x128 => "hopper-split-128x128",
            Self::HopperSplit64x128 => "hopper-split-64x128",
            Self::HopperSplit64x64 => "hopper-split-64x64",
            Self::Skinny128x128Split2 => "skinny-128x128-split2",
            Self::Skinny128x64Split2 => "skinny-128x64-split2",
            Self::Skinny64x64 => "skinny-64x64",
            Self::Skinny64x64Split2 => "skinny-64x64-split2",
            Self::Skinny32x64 => "skinny-32x64",
            Self::Skinny32x64Split2 => "skinny-32x64-split2",
            Self::Skinny16x64 => "skinny-16x64",
            Self::Skinny16x64Split2 => "skinny-16x64-split2",
            Self::Skinny16x64Split4 => "skinny-16x64-split4",
            Self::T128x128 => "128x128",
            Self::T128x64 => "128x64",
            Self::T64x64 => "64x64",
            Self::T16x64 => "16x64",
        }
    }

    const fn facts(self) -> Facts {
        match self {
            Self::HopperPingPong128x128 => Facts::of_hopper::<HopperPingPong128x128>(),
            Self::HopperPingPong128x192 => Facts::of_hopper::<HopperPingPong128x192>(),
            Self::HopperCooperative128x256 => Facts::of_hopper::<HopperCooperative128x256>(),
            Self::HopperCooperative128x128 => Facts::of_hopper::<HopperCooperative128x128>(),
            Self::HopperSplit128x256 => Facts::of_split::<Split128x256>(),
            Self::HopperSplit128x128 => Facts::of_split::<Split128x128>(),
            Self::HopperSplit64x128 => Facts::of_split::<Split64x128>(),
            Self::HopperSplit64x64 => Facts::of_split::<Split64x64>(),
            Self::Skinny128x128Split2 => Facts::of_skinny::<Skinny128x128Split2>(),
            Self::Skinny128x64Split2 => Facts::of_skinny::<Skinny128x64Split2>(),
            Self::Skinny64x64 => Facts::of_skinny::<Skinny64x64>(),
            Self::Skinny64x64Split2 => Facts::of_skinny::<Skinny64x64Split2>(),
            Self::Skinny32x64 => Facts::of_skinny::<Skinny32x64>(),
            Self::Skinny32x64Split2 => Facts::of_skinny::<Skinny32x64Split2>(),
            Self::Skinny16x64 => Facts::of_skinny::<Skinny16x64>(),
            Self::Skinny16x64Split2 => Facts::of_skinny::<Skinny16x64Split2>(),
            Self::Skinny16x64Split4 => Facts::of_skinny::<Skinny16x64Split4>(),
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
        !matches!(self.facts().schedule, Schedule::Portable)
    }

    /// Blocks of a cluster.
    #[must_use]
    pub const fn cluster(self) -> u32 {
        match self.facts().schedule {
            Schedule::Portable => 1,
            Schedule::Persistent { cluster, .. } => cluster,
            Schedule::Split { parts } => parts,
        }
    }

    /// Blocks that share the sum over K of a tile.
    #[must_use]
    pub const fn split(self) -> u32 {
        match self.facts().schedule {
            Schedule::Split { parts } => parts,
            _ => 1,
        }
    }

    /// Whether a block works through several tiles.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        matches!(self.facts().schedule, Schedule::Persistent { .. })
    }

    /// Whether its kernels serve only outputs that are [stored as boxes](Problem::stores_boxes).
    #[must_use]
    pub const fn needs_boxes(self) -> bool {
        matches!(self, Self::HopperPingPong128x192)
    }

    /// Whether there is a kernel with this tile for inputs of type `input`, read with `access`.
    #[must_use]
    pub fn serves(self, input: DType, access: Access) -> bool {
        match self {
            Self::HopperPingPong128x128 | Self::HopperCooperative128x128 | Self::HopperCooperative128x256 => {
                access == Access::Aligned || (access == Access::Across && input != DType::F32)
            }
            Self::HopperSplit128x256
            | Self::HopperSplit128x128
            | Self::HopperSplit64x128
            | Self::HopperSplit64x64 => input == DType::F32 && access == Access::Aligned,
            Self::T128x128 => input != DType::F32 && access == Access::Aligned,
            Self::T128x64 => access == Access::Aligned,
            Self::T64x64 | Self::T16x64 => access != Access::Across,
            _ => input != DType::F32 && access == Access::Aligned,
        }
    }

    /// How its kernels multiply inputs of type `input`.
    #[must_use]
    pub fn products(self, input: DType) -> Products {
        match self {
            _ if input != DType::F32 => Products::Direct,
            Self::HopperPingPong128x128 | Self::HopperCooperative128x128 | Self::HopperCooperative128x256 => {
                Products::Tf32
            }
            _ => Products::ThreeTf32,
        }
    }

    /// The least exact precision that its kernels are for, with inputs of type `input`.
    #[must_use]
    pub fn precision(self, input: DType) -> Precision {
        if self.products(input) == Products::Tf32 { Precision::Tf32 } else { Precision::Full }
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
        // The tiles of a cluster are neighbours along M, unless its blocks share one.
        let along_m = m.div_ceil(rows).next_multiple_of(self.cluster() / self.split());
        u64::from(along_m) * u64::from(n.div_ceil(columns))
    }

    /// The blocks of a launch for `batch` outputs of `m` × `n`: one for each tile, or at most as many as the multiprocessors hold
    /// where a block works through several, or as many for each as share it.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32, batch: u32, multiprocessors: u32) -> u64 {
        let tiles = self.tiles(m, n).saturating_mul(batch.into());
        match self.facts().schedule {
            Schedule::Portable => tiles,
            Schedule::Persistent { cluster, resident } => {
                let most = u64::from(multiprocessors) * u64::from(resident) / u64::from(cluster);
                tiles.min(most.max(1) * u64::from(cluster))
            }
            Schedule::Split { parts } => tiles.saturating_mul(parts.into()),
        }
    }
}

impl Tile {
    /// Whether a device has a kernel with this tile for a problem.
    fn computes(self, problem: &Problem, limits: &Limits) -> bool {
        self.runs_on(limits.compute_capability)
            && self.serves(problem.input, problem.access)
            && self.products(problem.input).is_at_least(problem.products)
            // There is no tensor map of a matrix without columns.
            && (problem.k > 0 || !self.is_hopper())
            && (problem.stores_boxes || !self.needs_boxes())
            && self.shared_bytes() <= limits.max_shared_per_block
    }
}

/// The compute capability of Hopper's kernels, which run on no other.
const HOPPER: (u32, u32) = (9, 0);

/// Whether Hopper's kernels run on a device of this compute capability.
pub(crate) fn is_hopper(compute_capability: (u32, u32)) -> bool {
    compute_capability == HOPPER
}

/// What a tile's kernel says of itself.
#[derive(Clone, Copy)]
struct Facts {
    shape: (u32, u32),
    shared_bytes: u32,
    schedule: Schedule,
}

/// How the blocks of a launch share the tiles.
#[derive(Clone, Copy)]
enum Schedule {
    /// A block for each tile, on any device.
    Portable,
    /// Blocks that work through several tiles, on Hopper: those of a cluster, and those that a multiprocessor holds.
    Persistent { cluster: u32, resident: u32 },
    /// A cluster of `parts` blocks for each tile, on Hopper.
    Split { parts: u32 },
}

impl Facts {
    const fn of<S: TileShape>() -> Self {
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule: Schedule::Portable }
    }

    const fn of_split<S: SplitTile>() -> Self {
        let schedule = Schedule::Persistent { cluster: S::CLUSTER_M, resident: S::MIN_BLOCKS };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
    }

    const fn of_hopper<S: PersistentTile>() -> Self {
        let schedule = Schedule::Persistent { cluster: S::CLUSTER_M, resident: S::MIN_BLOCKS };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
    }

    const fn of_skinny<S: SplitKTile>() -> Self {
        let schedule = Schedule::Split { parts: S::SPLIT };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
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
    /// How the inputs are to be multiplied, or more exactly.
    pub products: Products,
    /// Whether the copy engine can store y, whose rows and their length are then multiples of 16 bytes, and nothing is done to the
    /// products but scaling by one number, a bias and ReLU.
    pub stores_boxes: bool,
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
            (Tile::HopperSplit128x256, _) => (61_500, 61_500, 70_000, 143, 1),
            (Tile::HopperSplit128x128, _) => (32_400, 32_400, 36_300, 177, 1),
            (Tile::HopperSplit64x128, _) => (24_300, 17_800, 19_500, 235, 2),
            (Tile::HopperSplit64x64, _) => (15_300, 10_300, 12_300, 202, 2),
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
        let of_blocks = by_rounds.max(by_chip) * u128::from(u64::from(problem.k) + self.overhead);
        // Where reading x and w takes longest, some of the rest is not hidden under it.
        LAUNCH + of_blocks.max(bytes(problem) * 1_000_000 / BANDWIDTH + of_blocks / 8)
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
    const fn of(tile: Tile, input: DType) -> Option<Self> {
        let (launch, alone, crowded, straddling, tile) = match (tile, input) {
            (Tile::HopperPingPong128x128, DType::F32) => (4_400_000, 9_000, 10_400, 21_800, 100_000),
            (Tile::HopperCooperative128x256, DType::F32) => (6_000_000, 19_700, 20_300, 25_600, 700_000),
            (Tile::HopperCooperative128x128, DType::F32) => (4_300_000, 9_400, 11_000, 21_800, 500_000),
            (Tile::HopperPingPong128x128, _) => (4_400_000, 5_480, 5_690, 10_900, 100_000),
            (Tile::HopperPingPong128x192, _) => (5_600_000, 7_750, 8_450, 9_300, 150_000),
            (Tile::HopperCooperative128x256, _) => (4_900_000, 10_600, 11_600, 12_800, 730_000),
            (Tile::HopperCooperative128x128, _) => (4_100_000, 5_500, 5_600, 10_900, 730_000),
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
        let of_tiles = u128::from(rounds) * u128::from(of_tile);
        u128::from(self.launch) + of_tiles.max(bytes(problem) * 1_000_000 / BANDWIDTH)
    }
}

/// What a launch for few rows of x costs, in picoseconds on an H100. It waits for the GPU's memory most of the time.
#[derive(Clone, Copy, Debug)]
struct SkinnyCost {
    /// A block for each column of K that it sums, with the memory to itself.
    alone: u64,
    /// The same divided by the multiprocessors, where all of them ask for w and x.
    crowded: u64,
    /// Blocks that a multiprocessor holds.
    resident: u64,
}

impl SkinnyCost {
    /// From the launch to the first products.
    const LAUNCH: u64 = 3_500_000;
    /// For the blocks of a cluster to wait for each other.
    const EXCHANGE: u64 = 400_000;
    /// For exchanging and storing the sums, an element of the tile.
    const ELEMENT: u64 = 134;
    /// Bytes in a microsecond that the level-2 cache gives.
    const CACHE: u128 = 6_500_000;
    /// Until the memory gives all it can.
    const RAMP: u64 = 1_100_000;
    /// Then, bytes in a microsecond.
    const BANDWIDTH: u128 = 3_070_000;

    const fn of(tile: Tile) -> Option<Self> {
        let (alone, crowded, resident) = match tile {
            Tile::Skinny128x128Split2 => (8_000, 12_100, 1),
            Tile::Skinny128x64Split2 => (5_500, 7_400, 1),
            Tile::Skinny64x64 => (3_600, 5_950, 1),
            Tile::Skinny64x64Split2 => (3_300, 5_950, 1),
            Tile::Skinny32x64 => (3_250, 5_600, 1),
            Tile::Skinny32x64Split2 => (2_700, 5_600, 1),
            Tile::Skinny16x64 => (3_000, 5_500, 2),
            Tile::Skinny16x64Split2 => (2_200, 5_500, 2),
            Tile::Skinny16x64Split4 => (1_600, 6_500, 2),
            _ => return None,
        };
        Some(Self { alone, crowded, resident })
    }

    fn picoseconds(self, tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        let blocks = tile.blocks(problem.m, problem.n, problem.batch, limits.multiprocessors);
        let columns = u128::from(problem.k.div_ceil(tile.split()));
        let rounds = blocks.div_ceil(multiprocessors * self.resident);
        let by_rounds = u128::from(rounds * self.alone) * columns;
        // Tiles that are neighbours along M read the same rows of w, all but the first from the level-2 cache.
        let (rows_of_tile, columns_of_tile) = tile.shape();
        let along_m = u64::from(problem.m.div_ceil(rows_of_tile)).max(1);
        let reading = u128::from(blocks) * u128::from(along_m + 3) / u128::from(4 * along_m);
        let by_chip = reading * u128::from(self.crowded) * columns / u128::from(multiprocessors);
        let by_memory = by_chip.max(bytes(problem) * 1_000_000 / Self::BANDWIDTH);
        let of_memory = by_memory + (by_memory / 4).min(u128::from(Self::RAMP));
        let elements = u64::from(rows_of_tile * columns_of_tile);
        let copied = u128::from(blocks) * u128::from(rows_of_tile + columns_of_tile) * columns;
        let by_cache = copied * problem.input.size() as u128 * 1_000_000 / Self::CACHE;
        let exchange = if tile.split() > 1 { Self::EXCHANGE } else { 0 };
        u128::from(Self::LAUNCH + exchange + Self::ELEMENT * elements)
            + by_rounds.max(by_cache).max(of_memory)
    }
}

/// Bytes of x and w that kernels read in a microsecond at most, those aside that are for few rows of x.
const BANDWIDTH: u128 = 2_600_000;

/// Bytes of x and w.
fn bytes(problem: &Problem) -> u128 {
    let rows = u128::from(problem.m) + u128::from(problem.n);
    rows * u128::from(problem.k) * u128::from(problem.batch) * problem.input.size() as u128
}

/// Half the times that reading element by element takes as long as in chunks: for f32, which is copied asynchronously, and for
/// 16-bit types, which go through registers. An estimate from the instructions of a chunk.
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
    if let Some(cost) = PersistentCost::of(tile, problem.input) {
        return cost.picoseconds(tile, problem, limits);
    }
    if let Some(cost) = SkinnyCost::of(tile) {
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
    use crate::ops::{Precision, Products};

    /// One product at the accuracy of its inputs' type.
    fn full(input: DType, access: Access) -> Problem {
        let products = Products::choose(input, 1, Precision::Full, true);
        Problem { m: 1, n: 1, k: 1, batch: 1, input, access, products, stores_boxes: true }
    }

    const H100: Limits = Limits {
        compute_capability: (9, 0),
        multiprocessors: 132,
        max_shared_per_block: 232_448,
        shared_per_multiprocessor: 233_472,
    };
    /// An H100 that runs what its predecessors run.
    const PORTABLE: Limits = Limits { compute_capability: (8, 0), ..H100 };

    fn tile_on(limits: &Limits, m: u32, k: u32, n: u32, input: DType) -> Tile {
        select(&Problem { m, n, k, ..full(input, Access::Aligned) }, limits).expect("all tiles fit an H100")
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
            assert_eq!(tile_on(&H100, size, size, size, DType::F32), Tile::HopperSplit128x256);
        }
        let problem = Problem { m: 4096, n: 4096, k: 4096, ..full(DType::F16, Access::Unaligned) };
        assert!(select(&problem, &H100).is_some_and(|tile| !tile.is_hopper()), "rows that are not aligned");
        let empty = Problem { k: 0, access: Access::Aligned, ..problem };
        assert!(select(&empty, &H100).is_some_and(|tile| !tile.is_hopper()), "no columns");
        let later = Limits { compute_capability: (10, 0), ..H100 };
        let problem = Problem { access: Access::Aligned, ..problem };
        assert!(select(&problem, &later).is_some_and(|tile| !tile.is_hopper()), "another architecture");
    }

    /// M, K, N, and microseconds of each tile in the order of [`Tile::ALL`].
    type Measured<const TILES: usize> = ((u32, u32, u32), [f64; TILES]);

    /// Checks choices against what was measured of the tiles that are as exact as `products`.
    fn check_choices<const TILES: usize>(input: DType, products: Products, measured: &[Measured<TILES>]) {
        let serves =
            |tile: &Tile| tile.serves(input, Access::Aligned) && tile.products(input).is_at_least(products);
        let tiles: Vec<_> = Tile::ALL.into_iter().filter(serves).collect();
        assert_eq!(tiles.len(), TILES);
        for &((m, k, n), times) in measured {
            let problem = Problem { m, n, k, products, ..full(input, Access::Aligned) };
            let choice = select(&problem, &H100).expect("all tiles fit an H100");
            let of = |tile| times[tiles.iter().position(|&other| other == tile).expect("a tile")];
            let fastest = times.into_iter().fold(f64::INFINITY, f64::min);
            assert!(of(choice) <= 1.05 * fastest, "{m}x{k}x{n}: {choice} takes {}, {fastest}", of(choice));
        }
    }

    /// Microseconds of tiles for few rows of x on an H100, bf16 with bias and ReLU: M, K, N first.
    const SKINNY: [((u32, u32, u32), &[(Tile, f64)]); 14] = {
        use Tile::*;
        [
            (
                (1, 4096, 4096),
                &[(Skinny16x64, 15.54), (Skinny16x64Split2, 15.31), (Skinny16x64Split4, 17.16)],
            ),
            ((1, 8192, 8192), &[(Skinny16x64, 48.1), (Skinny16x64Split2, 48.31), (Skinny16x64Split4, 49.49)]),
            ((1, 4096, 1024), &[(Skinny16x64, 10.15), (Skinny16x64Split2, 8.83), (Skinny16x64Split4, 7.5)]),
            (
                (16, 4096, 4096),
                &[(Skinny16x64, 16.45), (Skinny16x64Split2, 15.68), (Skinny16x64Split4, 17.7)],
            ),
            ((32, 4096, 4096), &[(Skinny32x64, 16.84), (Skinny32x64Split2, 16.32)]),
            ((32, 8192, 8192), &[(Skinny32x64, 49.04), (Skinny32x64Split2, 52.03)]),
            ((64, 4096, 4096), &[(Skinny64x64, 18.31), (Skinny64x64Split2, 17.26)]),
            ((64, 8192, 8192), &[(Skinny64x64, 50.86), (Skinny64x64Split2, 54.87)]),
            (
                (64, 4096, 1024),
                &[(Skinny64x64Split2, 10.45), (Skinny32x64, 10.84), (Skinny32x64Split2, 9.36)],
            ),
            ((64, 4096, 11008), &[(Skinny64x64, 41.61), (Skinny64x64Split2, 43.67)]),
            ((128, 4096, 4096), &[(Skinny128x128Split2, 22.36), (Skinny128x64Split2, 20.17)]),
            ((128, 11008, 4096), &[(Skinny128x128Split2, 48.39), (Skinny128x64Split2, 41.82)]),
            ((256, 256, 512), &[(Skinny64x64, 5.24), (Skinny32x64, 4.3), (Skinny16x64, 3.95)]),
            ((512, 512, 512), &[(Skinny64x64, 6.04), (Skinny32x64, 5.07), (Skinny16x64, 4.93)]),
        ]
    };

    #[test]
    fn the_choice_for_few_rows_is_within_a_twentieth_of_the_fastest_measured() {
        for ((m, k, n), times) in SKINNY {
            let choice = tile_on(&H100, m, k, n, DType::Bf16);
            let fastest = times.iter().map(|&(_, time)| time).fold(f64::INFINITY, f64::min);
            let time = times.iter().find(|&&(tile, _)| tile == choice).map(|&(_, time)| time);
            assert!(
                time.is_some_and(|time| time <= 1.05 * fastest),
                "{m}x{k}x{n}: {choice}, {time:?}, {fastest}"
            );
        }
    }

    /// Microseconds of each tile in the order of `tiles`, bf16 with bias and ReLU on an H100: M, K, N first.
    #[test]
    fn the_choice_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
        use Tile::*;
        let tiles = [
            HopperPingPong128x128,
            HopperPingPong128x192,
            HopperCooperative128x256,
            HopperCooperative128x128,
            T128x128,
            T128x64,
            T64x64,
            T16x64,
        ];
        let measured: [((u32, u32, u32), [f64; 8]); 8] = [
            ((1024, 784, 2048), [10.38, 12.69, 14.4, 10.17, 20.16, 18.48, 25.43, 42.67]),
            ((2048, 2048, 2048), [26.08, 35.21, 27.01, 26.74, 44.92, 79.01, 70.82, 140.58]),
            ((16384, 768, 768), [32.01, 32.41, 33.7, 35.12, 66.44, 75.19, 85.98, 169.47]),
            ((4096, 4096, 4096), [187.06, 211.28, 192.01, 195.39, 376.58, 477.94, 530.14, 1144.46]),
            ((8192, 4096, 4096), [380.28, 388.83, 398.56, 410.12, 775.87, 952.6, 1079.07, 2309.18]),
            ((8192, 8192, 8192), [1498.94, 1470.69, 1574.35, 1559.09, 2931.23, 3632.38, 4194.02, 9566.46]),
            ((16384, 4096, 4096), [756.89, 782.55, 795.22, 796.75, 1579.46, 1916.19, 2203.82, 4717.12]),
            ((4096, 1024, 4096), [50.03, 53.27, 52.64, 55.05, 106.18, 131.4, 140.47, 285.25]),
        ];
        for ((m, k, n), times) in measured {
            let choice = tile_on(&H100, m, k, n, DType::Bf16);
            let fastest = times.into_iter().fold(f64::INFINITY, f64::min);
            let time = tiles.iter().position(|&tile| tile == choice).map(|index| times[index]);
            assert!(
                time.is_some_and(|time| time <= 1.05 * fastest),
                "{m}x{k}x{n}: {choice}, {time:?}, {fastest}"
            );
        }
    }

    /// f32 on an H100.
    #[test]
    fn the_choice_for_f32_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
        let measured: [Measured<7>; 18] = [
            ((1, 4096, 4096), [253.84, 134.07, 101.27, 63.9, 154.55, 83.72, 32.6]),
            ((16, 4096, 4096), [254.19, 134.16, 101.42, 63.98, 154.59, 83.77, 32.88]),
            ((64, 4096, 4096), [254.65, 134.38, 101.63, 64.12, 154.94, 84.01, 50.19]),
            ((128, 4096, 4096), [258.52, 136.42, 103.21, 65.88, 157.58, 85.43, 100.56]),
            ((256, 4096, 4096), [263.6, 139.15, 105.8, 98.76, 160.87, 153.59, 196.28]),
            ((512, 4096, 4096), [272.46, 145.17, 165.92, 203.54, 278.85, 318.23, 410.33]),
            ((256, 256, 512), [22.79, 12.53, 10.27, 7.02, 12.73, 7.53, 3.86]),
            ((512, 512, 512), [38.35, 20.68, 16.42, 10.91, 22.29, 12.71, 8.13]),
            ((1024, 784, 2048), [57.59, 31.14, 34.69, 41.06, 53.6, 61.79, 79.86]),
            ((1024, 1024, 1024), [69.74, 37.25, 29.05, 26.77, 41.63, 39.5, 50.16]),
            ((1536, 1536, 1536), [104.35, 111.11, 104.35, 97.58, 173.74, 143.92, 167.12]),
            ((2048, 2048, 2048), [143.39, 149.5, 169.15, 205.16, 284.39, 320.14, 416.11]),
            ((3072, 3072, 3072), [622.2, 543.89, 616.56, 679.97, 1029.42, 1038.87, 1330.23]),
            ((4096, 1024, 1024), [74.71, 77.01, 86.88, 104.48, 144.04, 160.8, 207.0]),
            ((16384, 768, 768), [171.24, 178.12, 199.82, 237.09, 331.14, 365.1, 469.55]),
            ((4096, 4096, 4096), [1141.77, 1198.58, 1358.27, 1672.58, 2298.27, 2567.62, 3285.15]),
            ((8192, 4096, 4096), [2275.71, 2370.88, 2674.75, 3202.43, 4587.58, 5042.3, 6535.36]),
            ((8192, 8192, 8192), [8638.56, 9227.78, 10696.54, 13168.51, 20105.35, 21133.82, 26020.35]),
        ];
        check_choices(DType::F32, Products::ThreeTf32, &measured);
    }

    /// TF32 on an H100.
    #[test]
    fn the_choice_for_tf32_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
        let measured: [Measured<10>; 9] = [
            ((1024, 784, 2048), [13.29, 20.86, 13.22, 57.59, 31.14, 34.69, 41.06, 53.6, 61.79, 79.86]),
            ((1024, 1024, 1024), [13.32, 24.31, 13.0, 69.74, 37.25, 29.05, 26.77, 41.63, 39.5, 50.16]),
            (
                (1536, 1536, 1536),
                [32.85, 34.55, 34.47, 104.35, 111.11, 104.35, 97.58, 173.74, 143.92, 167.12],
            ),
            (
                (2048, 2048, 2048),
                [46.74, 47.16, 49.12, 143.39, 149.5, 169.15, 205.16, 284.39, 320.14, 416.11],
            ),
            (
                (3072, 3072, 3072),
                [170.62, 195.02, 177.74, 622.2, 543.89, 616.56, 679.97, 1029.42, 1038.87, 1330.23],
            ),
            ((4096, 1024, 1024), [26.34, 27.02, 28.24, 74.71, 77.01, 86.88, 104.48, 144.04, 160.8, 207.0]),
            ((16384, 768, 768), [61.22, 61.93, 65.9, 171.24, 178.12, 199.82, 237.09, 331.14, 365.1, 469.55]),
            (
                (4096, 4096, 4096),
                [366.21, 346.49, 381.02, 1141.77, 1198.58, 1358.27, 1672.58, 2298.27, 2567.62, 3285.15],
            ),
            (
                (8192, 4096, 4096),
                [757.93, 683.99, 780.29, 2275.71, 2370.88, 2674.75, 3202.43, 4587.58, 5042.3, 6535.36],
            ),
        ];
        check_choices(DType::F32, Products::Tf32, &measured);
    }

    #[test]
    fn f32_is_rounded_to_tf32_only_where_that_is_asked_for() {
        for size in [1, 100, 4096, 8192] {
            let problem = Problem { m: size, n: size, k: size, ..full(DType::F32, Access::Aligned) };
            let tile = select(&problem, &H100).expect("all tiles fit an H100");
            assert_eq!(tile.products(DType::F32), Products::ThreeTf32, "{size}");
        }
        let problem = Problem {
            m: 4096,
            n: 4096,
            k: 4096,
            products: Products::Tf32,
            ..full(DType::F32, Access::Aligned)
        };
        assert!(select(&problem, &H100).is_some_and(|tile| tile.products(DType::F32) == Products::Tf32));
        let tile = select(&problem, &PORTABLE).expect("tiles fit");
        assert_eq!(tile.products(DType::F32), Products::ThreeTf32, "what other devices have is more exact");
    }

    #[test]
    fn a_persistent_launch_is_of_whole_clusters_and_no_larger_than_the_device() {
        for tile in Tile::ALL.into_iter().filter(|tile| tile.is_persistent()) {
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
                        let problem = Problem { m: size, n: size, k: size, ..full(input, access) };
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
        let problem = full(DType::F16, Access::Aligned);
        assert_eq!(select(&problem, &limits), None);
    }

    #[test]
    fn more_multiprocessors_never_ask_for_larger_tiles() {
        let area = |multiprocessors| {
            let problem = Problem { m: 2048, n: 2048, k: 2048, ..full(DType::F16, Access::Aligned) };
            let (rows, columns) =
                select(&problem, &Limits { multiprocessors, ..PORTABLE }).expect("tiles fit").shape();
            rows * columns
        };
        assert!(area(8) >= area(132) && area(132) >= area(100_000));
    }
}
