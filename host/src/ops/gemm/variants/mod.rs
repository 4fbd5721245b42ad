//! The tiles: what each is called, which operands and outputs its kernels serve, and how many blocks a launch has.

mod instances;
mod refusal;

pub use instances::{LinearInput, LinearTypes};
pub(crate) use refusal::Refusal;

use warpsmith_dsl::gemm::strided::StridedTile;
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile, TileShape, narrow};
use warpsmith_kernels::linear::{
    Tf32Tile16x64, Tf32Tile64x64, Tf32Tile128x128, Tile16x64, Tile64x64, Tile128x64, Tile128x128,
};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176,
    HopperCooperative192x192AlongN, HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{Split64x64, Split64x128, Split128x128, Split128x256};
use warpsmith_kernels::linear_skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, Skinny64x64Split8Deep,
};

use super::halves::{Halves, halves_of};
use super::problem::{AMPERE, HOPPER, TURING};
use super::{Access, Fused, Limits, Problem};
use crate::DType;
use crate::ops::{Precision, Products};

/// The tile of the output that one block computes at a time, rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tile {
    /// 128 × 128 on Hopper, persistent, by two warpgroups in turn; f32 is rounded to TF32.
    HopperPingPong128x128,
    /// 128 × 192 on Hopper, persistent, by two warpgroups in turn, two blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperPingPong128x192,
    /// 128 × 256 on Hopper, persistent, by two warpgroups together, two blocks to a cluster; f32 is rounded to TF32.
    HopperCooperative128x256,
    /// The same, the last tiles in halves where they would leave multiprocessors idle.
    HopperCooperative128x256Halves,
    /// 128 × 192 on Hopper, persistent, by two warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative128x192,
    /// 128 × 128 on Hopper, persistent, by two warpgroups together, two blocks to a cluster; f32 is rounded to TF32.
    HopperCooperative128x128,
    /// 64 × 128 on Hopper, persistent, by one warpgroup; for 16-bit types and outputs that are [stored as boxes](super::Problem::stores_boxes) only.
    HopperCooperative64x128,
    /// 64 × 160 on Hopper, persistent, by one warpgroup, four blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative64x160,
    /// 128 × 160 on Hopper, persistent, by two warpgroups together, two by two blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative128x160,
    /// 192 × 192 on Hopper, persistent, by three warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative192x192AlongN,
    /// 192 × 176 on Hopper, persistent, by three warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](super::Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative192x176,
    /// 128 × 256 on Hopper, for f32 as three TF32 products, two blocks to a cluster.
    HopperSplit128x256,
    /// 128 × 128 on Hopper, for f32 as three TF32 products.
    HopperSplit128x128,
    /// 64 × 128 on Hopper, for f32 as three TF32 products, two blocks to a multiprocessor.
    HopperSplit64x128,
    /// 64 × 64 on Hopper, for f32 as three TF32 products, two blocks to a multiprocessor.
    HopperSplit64x64,
    /// 64 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny64x64,
    /// 64 × 64 on Hopper by a cluster of two blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny64x64Split2,
    /// 64 × 64 on Hopper by a cluster of eight blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny64x64Split8,
    /// The same with rings that leave a multiprocessor no room for a second block.
    Skinny64x64Split8Deep,
    /// 32 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny32x64,
    /// 16 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny16x64,
    /// 16 × 64 on Hopper by a cluster of two blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny16x64Split2,
    /// 16 × 64 on Hopper by a cluster of four blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny16x64Split4,
    /// 16 × 256 on Hopper by one warp, of rows that follow each other [without gaps](Access::Dense); for 16-bit types, few columns of x and
    /// at most 256 of y.
    Narrow16x256,
    /// 32 × 32 on Hopper, of operands that lie in [any way](Access::Strided); 16-bit types only.
    Strided32x32,
    /// 128 × 128; 16-bit types only.
    T128x128,
    /// 128 × 64.
    T128x64,
    /// 64 × 64.
    T64x64,
    /// 16 × 64, for a few rows of x.
    T16x64,
    /// 128 × 128; f32 is rounded to TF32.
    Tf32T128x128,
    /// 64 × 64; f32 is rounded to TF32.
    Tf32T64x64,
    /// 16 × 64, for a few rows of x; f32 is rounded to TF32.
    Tf32T16x64,
}

impl Tile {
    /// Every tile; those for Hopper before the portable ones.
    pub const ALL: [Self; 32] = [
        Self::HopperPingPong128x128,
        Self::HopperPingPong128x192,
        Self::HopperCooperative128x256,
        Self::HopperCooperative128x256Halves,
        Self::HopperCooperative128x192,
        Self::HopperCooperative128x128,
        Self::HopperCooperative64x128,
        Self::HopperCooperative64x160,
        Self::HopperCooperative128x160,
        Self::HopperCooperative192x192AlongN,
        Self::HopperCooperative192x176,
        Self::HopperSplit128x256,
        Self::HopperSplit128x128,
        Self::HopperSplit64x128,
        Self::HopperSplit64x64,
        Self::Skinny64x64,
        Self::Skinny64x64Split2,
        Self::Skinny64x64Split8,
        Self::Skinny64x64Split8Deep,
        Self::Skinny32x64,
        Self::Skinny16x64,
        Self::Skinny16x64Split2,
        Self::Skinny16x64Split4,
        Self::Narrow16x256,
        Self::Strided32x32,
        Self::T128x128,
        Self::T128x64,
        Self::T64x64,
        Self::T16x64,
        Self::Tf32T128x128,
        Self::Tf32T64x64,
        Self::Tf32T16x64,
    ];

    /// The one whose family has kernels where no other has, for inputs of type `input`.
    pub(super) const fn least(_input: DType) -> Self {
        Self::T16x64
    }

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HopperPingPong128x128 => "hopper-pingpong-128x128",
            Self::HopperPingPong128x192 => "hopper-pingpong-128x192",
            Self::HopperCooperative128x256 => "hopper-cooperative-128x256",
            Self::HopperCooperative128x256Halves => "hopper-cooperative-128x256-halves",
            Self::HopperCooperative128x192 => "hopper-cooperative-128x192",
            Self::HopperCooperative128x128 => "hopper-cooperative-128x128",
            Self::HopperCooperative64x128 => "hopper-cooperative-64x128",
            Self::HopperCooperative64x160 => "hopper-cooperative-64x160",
            Self::HopperCooperative128x160 => "hopper-cooperative-128x160",
            Self::HopperCooperative192x192AlongN => "hopper-cooperative-192x192-along-n",
            Self::HopperCooperative192x176 => "hopper-cooperative-192x176",
            Self::HopperSplit128x256 => "hopper-split-128x256",
            Self::HopperSplit128x128 => "hopper-split-128x128",
            Self::HopperSplit64x128 => "hopper-split-64x128",
            Self::HopperSplit64x64 => "hopper-split-64x64",
            Self::Skinny64x64 => "skinny-64x64",
            Self::Skinny64x64Split2 => "skinny-64x64-split2",
            Self::Skinny64x64Split8 => "skinny-64x64-split8",
            Self::Skinny64x64Split8Deep => "skinny-64x64-split8-deep",
            Self::Skinny32x64 => "skinny-32x64",
            Self::Skinny16x64 => "skinny-16x64",
            Self::Skinny16x64Split2 => "skinny-16x64-split2",
            Self::Skinny16x64Split4 => "skinny-16x64-split4",
            Self::Narrow16x256 => "narrow-16x256",
            Self::Strided32x32 => "strided-32x32",
            Self::T128x128 => "128x128",
            Self::T128x64 => "128x64",
            Self::T64x64 => "64x64",
            Self::T16x64 => "16x64",
            Self::Tf32T128x128 => "tf32-128x128",
            Self::Tf32T64x64 => "tf32-64x64",
            Self::Tf32T16x64 => "tf32-16x64",
        }
    }

    const fn facts(self) -> Facts {
        match self {
            Self::HopperPingPong128x128 => Facts::of_hopper::<HopperPingPong128x128>(),
            Self::HopperPingPong128x192 => Facts::of_hopper::<HopperPingPong128x192>(),
            Self::HopperCooperative128x256 | Self::HopperCooperative128x256Halves => {
                Facts::of_hopper::<HopperCooperative128x256>()
            }
            Self::HopperCooperative128x192 => Facts::of_hopper::<HopperCooperative128x192>(),
            Self::HopperCooperative128x128 => Facts::of_hopper::<HopperCooperative128x128>(),
            Self::HopperCooperative64x128 => Facts::of_hopper::<HopperCooperative64x128>(),
            Self::HopperCooperative64x160 => Facts::of_hopper::<HopperCooperative64x160>(),
            Self::HopperCooperative128x160 => Facts::of_hopper::<HopperCooperative128x160>(),
            Self::HopperCooperative192x192AlongN => Facts::of_hopper::<HopperCooperative192x192AlongN>(),
            Self::HopperCooperative192x176 => Facts::of_hopper::<HopperCooperative192x176>(),
            Self::HopperSplit128x256 => Facts::of_split::<Split128x256>(),
            Self::HopperSplit128x128 => Facts::of_split::<Split128x128>(),
            Self::HopperSplit64x128 => Facts::of_split::<Split64x128>(),
            Self::HopperSplit64x64 => Facts::of_split::<Split64x64>(),
            Self::Skinny64x64 => Facts::of_skinny::<Skinny64x64>(),
            Self::Skinny64x64Split2 => Facts::of_skinny::<Skinny64x64Split2>(),
            Self::Skinny64x64Split8 => Facts::of_skinny::<Skinny64x64Split8>(),
            Self::Skinny64x64Split8Deep => Facts::of_skinny::<Skinny64x64Split8Deep>(),
            Self::Skinny32x64 => Facts::of_skinny::<Skinny32x64>(),
            Self::Skinny16x64 => Facts::of_skinny::<Skinny16x64>(),
            Self::Skinny16x64Split2 => Facts::of_skinny::<Skinny16x64Split2>(),
            Self::Skinny16x64Split4 => Facts::of_skinny::<Skinny16x64Split4>(),
            Self::Narrow16x256 => Facts::of_narrow(),
            Self::Strided32x32 => Facts::of_strided(),
            Self::T128x128 => Facts::of::<Tile128x128>(),
            Self::T128x64 => Facts::of::<Tile128x64>(),
            Self::T64x64 => Facts::of::<Tile64x64>(),
            Self::T16x64 => Facts::of::<Tile16x64>(),
            Self::Tf32T128x128 => Facts::of::<Tf32Tile128x128>(),
            Self::Tf32T64x64 => Facts::of::<Tf32Tile64x64>(),
            Self::Tf32T16x64 => Facts::of::<Tf32Tile16x64>(),
        }
    }

    /// The kernel family of the linear operation's kernels with it.
    #[must_use]
    pub const fn family(self) -> &'static str {
        match self {
            Self::HopperSplit128x256
            | Self::HopperSplit128x128
            | Self::HopperSplit64x128
            | Self::HopperSplit64x64 => "linear_hopper_f32",
            Self::Narrow16x256 => "linear_narrow",
            Self::Strided32x32 => "linear_strided",
            _ => match self.facts().schedule {
                Schedule::Portable { .. } => "linear",
                Schedule::Persistent { .. } => "linear_hopper",
                Schedule::Split { .. } => "linear_skinny",
            },
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
        !matches!(self.facts().schedule, Schedule::Portable { .. })
    }

    /// Blocks of a cluster.
    #[must_use]
    pub const fn cluster(self) -> u32 {
        match self.facts().schedule {
            Schedule::Portable { .. } => 1,
            Schedule::Persistent { cluster: [along_m, along_n], .. } => along_m * along_n,
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

    /// Whether as many blocks share the sum over K of a tile as a launch says: by themselves, or in [two passes](Self::has_passes).
    #[must_use]
    pub const fn shares(self) -> bool {
        matches!(self.facts().schedule, Schedule::Portable { shares: true, .. }) || self.has_passes()
    }

    /// Whether sums along K can be split into parts that a second pass adds: of tiles that have kernels for f32 outputs.
    #[must_use]
    pub const fn has_passes(self) -> bool {
        matches!(
            self,
            Self::HopperPingPong128x128 | Self::HopperCooperative128x256 | Self::HopperCooperative128x192
        )
    }

    /// Bytes of each row that a step along K takes, of a tile whose sums blocks can [share](Self::shares).
    const fn step_bytes(self) -> u64 {
        match self.facts().schedule {
            Schedule::Portable { step_bytes, .. } | Schedule::Persistent { step_bytes, .. } => {
                step_bytes as u64
            }
            Schedule::Split { .. } => 1,
        }
    }

    /// Steps along K of rows of so many bytes, of a tile whose sums blocks can [share](Self::shares).
    pub(super) const fn steps(self, row_bytes: u64) -> u64 {
        row_bytes.div_ceil(self.step_bytes())
    }

    /// How sums over `k` elements of `bytes` bytes are split into at most `parts` parts that a [second pass](Self::has_passes) adds: how many parts there
    /// are, none of them empty, and elements of each, which are whole steps.
    pub(crate) fn split_evenly(self, k: u32, bytes: usize, parts: u32) -> (u32, u32) {
        let steps = self.steps(u64::from(k) * bytes as u64).max(1);
        let of_part = steps.div_ceil(u64::from(parts.max(1)));
        let elements = of_part * self.step_bytes() / bytes as u64;
        // No more than `parts`, and no more than a step beyond K, whose rows have less than 2³¹ bytes.
        (steps.div_ceil(of_part) as u32, elements as u32)
    }

    /// Whether a block works through several tiles.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        matches!(self.facts().schedule, Schedule::Persistent { .. })
    }

    /// Whether its kernels serve only outputs that are [stored as boxes](super::Problem::stores_boxes).
    #[must_use]
    pub const fn needs_boxes(self) -> bool {
        match self.facts().schedule {
            Schedule::Persistent { stores_rows, .. } => !stores_rows,
            _ => false,
        }
    }

    /// Whether its kernels do this to the products.
    #[must_use]
    pub const fn serves_fused(self, fused: Fused) -> bool {
        match (fused, self.facts().schedule) {
            (Fused::Floor | Fused::Activation, _) => true,
            _ if matches!(self, Self::Narrow16x256) => false,
            (_, Schedule::Persistent { stores_rows, passes_boxes, stores_masks, .. }) => {
                stores_rows || passes_boxes || (stores_masks && matches!(fused, Fused::Mask))
            }
            _ => true,
        }
    }

    /// Whether there is a kernel with this tile for inputs of type `input`, read with `access`.
    #[must_use]
    pub fn serves(self, input: DType, access: Access) -> bool {
        match self {
            Self::HopperPingPong128x128
            | Self::HopperCooperative128x128
            | Self::HopperCooperative128x256
            | Self::HopperCooperative128x256Halves => {
                access == Access::Aligned
                    || (matches!(access, Access::Across | Access::WAcross) && input != DType::F32)
            }
            Self::HopperCooperative64x128 => {
                input != DType::F32 && matches!(access, Access::Aligned | Access::Across | Access::WAcross)
            }
            Self::Skinny64x64
            | Self::Skinny64x64Split2
            | Self::Skinny32x64
            | Self::Skinny16x64
            | Self::Skinny16x64Split2
            | Self::Skinny16x64Split4 => {
                access == Access::Aligned || (access == Access::WAcross && input != DType::F32)
            }
            Self::Skinny64x64Split8 | Self::Skinny64x64Split8Deep => access == Access::Aligned,
            Self::HopperSplit128x256
            | Self::HopperSplit128x128
            | Self::HopperSplit64x128
            | Self::HopperSplit64x64 => input == DType::F32 && access == Access::Aligned,
            Self::T128x128 => input != DType::F32 && access == Access::Aligned,
            Self::T128x64 => access == Access::Aligned,
            Self::T64x64 | Self::T16x64 => matches!(access, Access::Aligned | Access::Words),
            Self::Tf32T128x128 => input == DType::F32 && access == Access::Aligned,
            Self::Tf32T64x64 | Self::Tf32T16x64 => {
                input == DType::F32 && matches!(access, Access::Aligned | Access::Words)
            }
            Self::Narrow16x256 => input != DType::F32 && access == Access::Dense,
            Self::Strided32x32 => input != DType::F32 && access == Access::Strided,
            _ => input != DType::F32 && access == Access::Aligned,
        }
    }

    /// Whether a tile that [serves](Self::serves) inputs of type `input` has a kernel for outputs of type `output`.
    #[must_use]
    pub fn serves_output(self, input: DType, output: DType) -> bool {
        // A wider output is rarely asked for, and a few tiles are never far from the fastest.
        let is_for_inputs_type = matches!(
            self,
            Self::HopperPingPong128x192
                | Self::HopperCooperative128x128
                | Self::HopperCooperative64x128
                | Self::HopperCooperative64x160
                | Self::HopperCooperative128x160
                | Self::HopperCooperative192x192AlongN
                | Self::HopperCooperative192x176
                | Self::Skinny64x64
                | Self::Skinny64x64Split2
                | Self::Skinny64x64Split8
                | Self::Skinny64x64Split8Deep
                | Self::Skinny32x64
                | Self::Skinny16x64Split2
                | Self::Narrow16x256
                | Self::Strided32x32
        );
        output == input || (output == DType::F32 && !is_for_inputs_type)
    }

    /// How its kernels multiply inputs of type `input`.
    #[must_use]
    pub fn products(self, input: DType) -> Products {
        match self {
            _ if input != DType::F32 => Products::Direct,
            Self::HopperPingPong128x128
            | Self::HopperCooperative128x128
            | Self::HopperCooperative128x256
            | Self::HopperCooperative128x256Halves
            | Self::Skinny64x64
            | Self::Skinny64x64Split2
            | Self::Skinny64x64Split8
            | Self::Skinny64x64Split8Deep
            | Self::Skinny32x64
            | Self::Skinny16x64
            | Self::Skinny16x64Split2
            | Self::Skinny16x64Split4
            | Self::Tf32T128x128
            | Self::Tf32T64x64
            | Self::Tf32T16x64 => Products::Tf32,
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
        match self {
            _ if self.is_hopper() => compute_capability == HOPPER,
            Self::T64x64 => compute_capability >= TURING,
            _ => compute_capability >= AMPERE,
        }
    }

    /// How its launch for these rows, columns and matrices is dealt out, if it may have halves.
    pub(super) fn halves(self, sizes: [u32; 3], multiprocessors: u32) -> Option<Halves> {
        let has_halves = self == Self::HopperCooperative128x256Halves;
        has_halves.then(|| halves_of::<HopperCooperative128x256>(sizes, multiprocessors))
    }

    /// Whether its launch differs from those of all tiles before it: one with halves may have none.
    pub(super) fn is_distinct(self, problem: &Problem, limits: &Limits) -> bool {
        let halves = self.halves([problem.m, problem.n, problem.batch], limits.multiprocessors);
        halves.is_none_or(|halves| halves.pieces > 0)
    }

    /// The tiles that cover an output of `m` × `n`, whole clusters of them; each side below 2³¹.
    #[must_use]
    pub fn tiles(self, m: u32, n: u32) -> u64 {
        let (rows, columns) = self.shape();
        // The tiles of a cluster are neighbours, unless its blocks share one.
        let [along_m, along_n] = match self.facts().schedule {
            Schedule::Persistent { cluster, .. } => cluster,
            _ => [1, 1],
        };
        let along_m = m.div_ceil(rows).next_multiple_of(along_m);
        u64::from(along_m) * u64::from(n.div_ceil(columns).next_multiple_of(along_n))
    }

    /// The blocks of a launch, of the first if there are two, where each `parts` blocks share the sums of a tile.
    #[must_use]
    pub fn blocks_of_parts(self, [m, n, batch]: [u32; 3], parts: u32, multiprocessors: u32) -> u64 {
        if self.has_passes() {
            self.blocks(m, n, batch.saturating_mul(parts), multiprocessors)
        } else {
            self.blocks(m, n, batch, multiprocessors).saturating_mul(parts.into())
        }
    }

    /// The blocks of a launch for `batch` outputs of `m` × `n`: one for each tile, or at most as many as the multiprocessors hold
    /// where a block works through several, or as many for each as share it.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32, batch: u32, multiprocessors: u32) -> u64 {
        if let Some(halves) = self.halves([m, n, batch], multiprocessors) {
            return halves.clusters * u64::from(self.cluster());
        }
        let tiles = self.tiles(m, n).saturating_mul(batch.into());
        match self.facts().schedule {
            Schedule::Portable { .. } => tiles,
            Schedule::Persistent { resident, .. } => {
                let cluster = u64::from(self.cluster());
                let all = u64::from(multiprocessors) * u64::from(resident) / cluster;
                // Clusters of four do not fill every part of a GPU in which they have to be: 30 of them run at a time on the 132
                // multiprocessors of an H100.
                let most = if cluster > 2 { all - all / 11 } else { all };
                tiles.min(most.max(1) * cluster)
            }
            Schedule::Split { parts } => tiles.saturating_mul(parts.into()),
        }
    }
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
    /// A block for each tile, or several that share it, if they can, which take steps of so many bytes of each row, on any device.
    Portable { step_bytes: u32, shares: bool },
    /// Blocks that work through several tiles, on Hopper: those of a cluster along M and along N, those that a multiprocessor holds, bytes of each row that
    /// a step takes, whether they can store an output row by row, whether what more than a plain epilogue reads and stores can pass through boxes, and
    /// whether a mask is stored beside them.
    Persistent {
        cluster: [u32; 2],
        resident: u32,
        step_bytes: u32,
        stores_rows: bool,
        passes_boxes: bool,
        stores_masks: bool,
    },
    /// A cluster of `parts` blocks for each tile, on Hopper.
    Split { parts: u32 },
}

impl Facts {
    const fn of<S: TileShape>() -> Self {
        let schedule = Schedule::Portable { step_bytes: S::ROW_BYTES, shares: S::SHARES };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
    }

    const fn of_split<S: SplitTile>() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [S::CLUSTER_M, 1],
            resident: S::MIN_BLOCKS,
            step_bytes: 1,
            stores_rows: true,
            passes_boxes: false,
            stores_masks: true,
        };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
    }

    const fn of_hopper<S: PersistentTile>() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [S::CLUSTER_M, S::CLUSTER_N],
            resident: S::MIN_BLOCKS,
            step_bytes: S::ROW_BYTES,
            stores_rows: S::STORES_ROWS,
            passes_boxes: S::PASSES_BOXES,
            stores_masks: S::STORES_MASKS,
        };
        Self { shape: (S::BLOCK_M, S::BLOCK_N), shared_bytes: S::SHARED_BYTES, schedule }
    }

    const fn of_narrow() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [1, 1],
            resident: 1,
            step_bytes: 1,
            stores_rows: true,
            passes_boxes: false,
            stores_masks: false,
        };
        Self { shape: (narrow::ROWS, narrow::MAX_COLUMNS), shared_bytes: narrow::SHARED_BYTES, schedule }
    }

    const fn of_strided() -> Self {
        let schedule = Schedule::Split { parts: 1 };
        let shape = (StridedTile::BLOCK_M, StridedTile::BLOCK_N);
        Self { shape, shared_bytes: StridedTile::SHARED_BYTES, schedule }
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
