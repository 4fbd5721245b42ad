//! The table of variants: what each is called, and what its kernels say of themselves and serve.

use warpsmith_dsl::gemm::strided::StridedTile;
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile, TileShape, dots, narrow};
use warpsmith_kernels::linear::{
    Tf32Tile16x64, Tf32Tile64x64, Tf32Tile128x128, Tile16x64, Tile64x64, Tile128x64, Tile128x128,
};
use warpsmith_kernels::linear_fp8::Fp8Portable64x64;
use warpsmith_kernels::linear_fp8_ada::{Fp8Ada16x64, Fp8Ada64x64, Fp8Ada128x128};
use warpsmith_kernels::linear_fp8_hopper::{
    Fp8Hopper64x64, Fp8Hopper64x128, Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128,
};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176, HopperCooperative256x176,
    HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{Split64x64, Split64x128, Split128x128, Split128x256};
use warpsmith_kernels::linear_skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, Skinny64x64Split8Deep,
};

use crate::ops::Products;
use crate::ops::gemm::Access;
use crate::ops::gemm::problem::{ADA, AMPERE, TURING};
#[cfg(doc)]
use crate::ops::gemm::{Fused, Problem};

/// Rows that start at multiples of 16 bytes.
const ALIGNED: &[Access] = &[Access::Aligned];
/// Also those that start at multiples of 4 bytes.
const WORDS: &[Access] = &[Access::Aligned, Access::Words];
/// Also w along its columns.
const TRANSPOSED_W: &[Access] = &[Access::Aligned, Access::WAcross];
/// Also both.
const TRANSPOSED: &[Access] = &[Access::Aligned, Access::Across, Access::WAcross];

macro_rules! variants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $facts:expr;)*) => {
        /// The tile of the output that one block computes at a time, rows × columns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Tile {
            $($(#[$doc])* $variant,)*
        }

        impl Tile {
            /// Every tile; of 16-bit types and f32, and of 8-bit types, those for Hopper before the portable ones of the same shapes.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name in tables and on command lines.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub(super) const fn facts(self) -> Facts {
                match self {
                    $(Self::$variant => const { $facts },)*
                }
            }
        }
    };
}
variants! {
    /// 128 × 128 on Hopper, persistent, by two warpgroups in turn; f32 is rounded to TF32.
    HopperPingPong128x128 = "hopper-pingpong-128x128", Facts::persistent::<HopperPingPong128x128>().halves(TRANSPOSED).wide().tf32(ALIGNED).passes();
    /// 128 × 192 on Hopper, persistent, by two warpgroups in turn, two blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperPingPong128x192 = "hopper-pingpong-128x192", Facts::persistent::<HopperPingPong128x192>().halves(ALIGNED);
    /// 128 × 256 on Hopper, persistent, by two warpgroups together, two blocks to a cluster; f32 is rounded to TF32.
    HopperCooperative128x256 = "hopper-cooperative-128x256", Facts::persistent::<HopperCooperative128x256>().halves(TRANSPOSED).wide().tf32(ALIGNED).passes();
    /// The same, the last tiles in halves where they would leave multiprocessors idle.
    HopperCooperative128x256Halves = "hopper-cooperative-128x256-halves", Facts::persistent::<HopperCooperative128x256>().halves(TRANSPOSED).wide().tf32(ALIGNED);
    /// 128 × 192 on Hopper, persistent, by two warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative128x192 = "hopper-cooperative-128x192", Facts::persistent::<HopperCooperative128x192>().halves(ALIGNED).wide().passes();
    /// 128 × 128 on Hopper, persistent, by two warpgroups together, two blocks to a cluster; f32 is rounded to TF32.
    HopperCooperative128x128 = "hopper-cooperative-128x128", Facts::persistent::<HopperCooperative128x128>().halves(TRANSPOSED).tf32(ALIGNED);
    /// 64 × 128 on Hopper, persistent, by one warpgroup; for 16-bit types and outputs that are [stored as boxes](Problem::stores_boxes) only.
    HopperCooperative64x128 = "hopper-cooperative-64x128", Facts::persistent::<HopperCooperative64x128>().halves(TRANSPOSED);
    /// 64 × 160 on Hopper, persistent, by one warpgroup, four blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative64x160 = "hopper-cooperative-64x160", Facts::persistent::<HopperCooperative64x160>().halves(ALIGNED);
    /// 128 × 160 on Hopper, persistent, by two warpgroups together, two by two blocks to a cluster; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative128x160 = "hopper-cooperative-128x160", Facts::persistent::<HopperCooperative128x160>().halves(ALIGNED);
    /// 256 × 176 on Hopper, persistent, by two warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative256x176 = "hopper-cooperative-256x176", Facts::persistent::<HopperCooperative256x176>().halves(ALIGNED);
    /// 192 × 176 on Hopper, persistent, by three warpgroups together, two blocks to a cluster, along N; for 16-bit types and outputs that are
    /// [stored as boxes](Problem::stores_boxes), without [terms](Fused::Terms), only.
    HopperCooperative192x176 = "hopper-cooperative-192x176", Facts::persistent::<HopperCooperative192x176>().halves(ALIGNED);
    /// 128 × 256 on Hopper, for f32 as three TF32 products, two blocks to a cluster.
    HopperSplit128x256 = "hopper-split-128x256", Facts::split::<Split128x256>().f32(ALIGNED);
    /// 128 × 128 on Hopper, for f32 as three TF32 products.
    HopperSplit128x128 = "hopper-split-128x128", Facts::split::<Split128x128>().f32(ALIGNED);
    /// 64 × 128 on Hopper, for f32 as three TF32 products, two blocks to a multiprocessor.
    HopperSplit64x128 = "hopper-split-64x128", Facts::split::<Split64x128>().f32(ALIGNED);
    /// 64 × 64 on Hopper, for f32 as three TF32 products, two blocks to a multiprocessor.
    HopperSplit64x64 = "hopper-split-64x64", Facts::split::<Split64x64>().f32(ALIGNED);
    /// 64 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny64x64 = "skinny-64x64", Facts::skinny::<Skinny64x64>().halves(TRANSPOSED_W).tf32(ALIGNED);
    /// 64 × 64 on Hopper by a cluster of two blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny64x64Split2 = "skinny-64x64-split2", Facts::skinny::<Skinny64x64Split2>().halves(TRANSPOSED_W).tf32(ALIGNED);
    /// 64 × 64 on Hopper by a cluster of eight blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny64x64Split8 = "skinny-64x64-split8", Facts::skinny::<Skinny64x64Split8>().halves(ALIGNED).tf32(ALIGNED);
    /// The same with rings that leave a multiprocessor no room for a second block.
    Skinny64x64Split8Deep = "skinny-64x64-split8-deep", Facts::skinny::<Skinny64x64Split8Deep>().halves(ALIGNED).tf32(ALIGNED);
    /// 32 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny32x64 = "skinny-32x64", Facts::skinny::<Skinny32x64>().halves(TRANSPOSED_W).tf32(ALIGNED);
    /// 16 × 64 on Hopper by one block; f32 is rounded to TF32.
    Skinny16x64 = "skinny-16x64", Facts::skinny::<Skinny16x64>().halves(TRANSPOSED_W).wide().tf32(ALIGNED);
    /// 16 × 64 on Hopper by a cluster of two blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny16x64Split2 = "skinny-16x64-split2", Facts::skinny::<Skinny16x64Split2>().halves(TRANSPOSED_W).tf32(ALIGNED);
    /// 16 × 64 on Hopper by a cluster of four blocks, which share the sum over K; f32 is rounded to TF32.
    Skinny16x64Split4 = "skinny-16x64-split4", Facts::skinny::<Skinny16x64Split4>().halves(TRANSPOSED_W).wide().tf32(ALIGNED);
    /// 16 × 256 on Hopper by one warp, of rows that follow each other [without gaps](Access::Dense); for 16-bit types, few columns of x and
    /// at most 256 of y.
    Narrow16x256 = "narrow-16x256", Facts::narrow().halves(&[Access::Dense]);
    /// 8 × 2 by some warps, for a few rows of x, in f32 without the tensor cores.
    Dots8x2 = "dots-8x2", Facts::dots().f32(WORDS);
    /// 32 × 32 on Hopper, of operands that are in [any way](Access::Strided); 16-bit types only.
    Strided32x32 = "strided-32x32", Facts::strided().halves(&[Access::Strided]);
    /// 128 × 128; 16-bit types only.
    T128x128 = "128x128", Facts::portable::<Tile128x128>().halves(ALIGNED).wide();
    /// 128 × 64.
    T128x64 = "128x64", Facts::portable::<Tile128x64>().halves(ALIGNED).wide().f32(ALIGNED);
    /// 64 × 64.
    T64x64 = "64x64", Facts::portable::<Tile64x64>().halves(WORDS).wide().f32(WORDS).since(TURING);
    /// 16 × 64, for a few rows of x.
    T16x64 = "16x64", Facts::portable::<Tile16x64>().halves(WORDS).wide().f32(WORDS);
    /// 128 × 128; f32 is rounded to TF32.
    Tf32T128x128 = "tf32-128x128", Facts::portable::<Tf32Tile128x128>().tf32(ALIGNED);
    /// 64 × 64; f32 is rounded to TF32.
    Tf32T64x64 = "tf32-64x64", Facts::portable::<Tf32Tile64x64>().tf32(WORDS);
    /// 16 × 64, for a few rows of x; f32 is rounded to TF32.
    Tf32T16x64 = "tf32-16x64", Facts::portable::<Tf32Tile16x64>().tf32(WORDS);
    /// 256 × 128 on Hopper, persistent, in clusters of two along N; 8-bit types.
    Fp8Hopper256x128 = "hopper-256x128", Facts::fp8_hopper::<Fp8Hopper256x128>();
    /// 128 × 192 on Hopper, persistent, in clusters of two along M; 8-bit types.
    Fp8Hopper128x192 = "hopper-128x192", Facts::fp8_hopper::<Fp8Hopper128x192>();
    /// 128 × 128 on Hopper, persistent, in clusters of two along M; 8-bit types.
    Fp8Hopper128x128 = "hopper-128x128", Facts::fp8_hopper::<Fp8Hopper128x128>();
    /// 64 × 128 on Hopper, persistent, in clusters of two along M; 8-bit types.
    Fp8Hopper64x128 = "hopper-64x128", Facts::fp8_hopper::<Fp8Hopper64x128>();
    /// 64 × 64 on Hopper, persistent, in clusters of two along M; 8-bit types.
    Fp8Hopper64x64 = "hopper-64x64", Facts::fp8_hopper::<Fp8Hopper64x64>();
    /// 128 × 128 of 8-bit types, by `mma.sync`.
    Fp8Ada128x128 = "ada-128x128", Facts::fp8_portable::<Fp8Ada128x128>("linear_fp8_ada").since(ADA);
    /// 64 × 64 of 8-bit types, by `mma.sync`.
    Fp8Ada64x64 = "ada-64x64", Facts::fp8_portable::<Fp8Ada64x64>("linear_fp8_ada").since(ADA);
    /// 16 × 64 of 8-bit types, by `mma.sync`, for a few rows of x.
    Fp8Ada16x64 = "ada-16x64", Facts::fp8_portable::<Fp8Ada16x64>("linear_fp8_ada").since(ADA);
    /// 64 × 64 of 8-bit types, by way of f16.
    Fp8Portable64x64 = "fp8-64x64", Facts::fp8_portable::<Fp8Portable64x64>("linear_fp8").since(TURING);
}

/// What a variant's kernels say of themselves, and what they serve.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// The kernel family.
    pub(super) family: &'static str,
    /// Rows and columns.
    pub(super) shape: (u32, u32),
    pub(super) shared_bytes: u32,
    pub(super) schedule: Schedule,
    /// The first compute capability that it runs on, if not on Hopper alone.
    pub(super) since: (u32, u32),
    /// How it reads 16-bit types, f32 and 8-bit types; empty where it has no kernels for them.
    pub(super) halves: &'static [Access],
    pub(super) f32: &'static [Access],
    pub(super) fp8: &'static [Access],
    /// Whether there are kernels for f32 outputs of 16-bit types. They are rarely asked for, and a few tiles are never far from the fastest.
    pub(super) is_wide: bool,
    /// How it multiplies f32.
    pub(super) of_f32: Products,
    /// Whether sums along K can be split into parts that a second pass adds.
    pub(super) has_passes: bool,
    /// Whether it does nothing to the products that is not [plain](Fused).
    pub(super) is_plain: bool,
    /// Whether a launch of it computes one product.
    pub(super) is_single: bool,
}

/// How the blocks of a launch share the tiles.
#[derive(Clone, Copy)]
pub(super) enum Schedule {
    /// A block for each tile, or several that share it, if they can, which take steps of so many bytes of each row, on any device.
    Portable { step_bytes: u32, shares: bool },
    /// Blocks that work through several tiles, on Hopper. The numbers are blocks of a cluster along M and along N, blocks that
    /// a multiprocessor holds, and bytes of each row that a step takes. Then come whether they can store an output row by row,
    /// whether further epilogue operands can pass by TMA, and whether a mask is stored beside them.
    Persistent {
        cluster: [u32; 2],
        resident: u32,
        step_bytes: u32,
        stores_rows: bool,
        passes_boxes: bool,
        stores_masks: bool,
    },
    /// Blocks whose warps work through several tiles, on any device; a multiprocessor holds `resident` of them.
    Teams { resident: u32 },
    /// A cluster of `parts` blocks for each tile, on Hopper.
    Split { parts: u32 },
}

impl Facts {
    /// Those of a family's kernels that serve nothing yet.
    const fn new(family: &'static str, shape: (u32, u32), shared_bytes: u32, schedule: Schedule) -> Self {
        Self {
            family,
            shape,
            shared_bytes,
            schedule,
            since: AMPERE,
            halves: &[],
            f32: &[],
            fp8: &[],
            is_wide: false,
            of_f32: Products::ThreeTf32,
            has_passes: false,
            is_plain: false,
            is_single: false,
        }
    }

    const fn portable<S: TileShape>() -> Self {
        let schedule = Schedule::Portable { step_bytes: S::ROW_BYTES, shares: S::SHARES };
        Self::new("linear", (S::BLOCK_M, S::BLOCK_N), S::SHARED_BYTES, schedule)
    }

    /// Those of a portable tile for 8-bit types, whose sums blocks do not share.
    const fn fp8_portable<S: TileShape>(family: &'static str) -> Self {
        let schedule = Schedule::Portable { step_bytes: S::ROW_BYTES, shares: false };
        Self::new(family, (S::BLOCK_M, S::BLOCK_N), S::SHARED_BYTES, schedule).fp8()
    }

    const fn split<S: SplitTile>() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [S::CLUSTER_M, 1],
            resident: S::MIN_BLOCKS,
            step_bytes: 1,
            stores_rows: true,
            passes_boxes: false,
            stores_masks: true,
        };
        Self::new("linear_hopper_f32", (S::BLOCK_M, S::BLOCK_N), S::SHARED_BYTES, schedule)
    }

    const fn persistent<S: PersistentTile>() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [S::CLUSTER_M, S::CLUSTER_N],
            resident: S::MIN_BLOCKS,
            step_bytes: S::ROW_BYTES,
            stores_rows: S::STORES_ROWS,
            passes_boxes: S::PASSES_BOXES,
            stores_masks: S::STORES_MASKS,
        };
        Self::new("linear_hopper", (S::BLOCK_M, S::BLOCK_N), S::SHARED_BYTES, schedule)
    }

    /// Those of a tile for 8-bit types, whose kernels have an epilogue of their own, for any output.
    const fn fp8_hopper<S: PersistentTile>() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [S::CLUSTER_M, S::CLUSTER_N],
            resident: S::MIN_BLOCKS,
            step_bytes: S::ROW_BYTES,
            stores_rows: true,
            passes_boxes: false,
            stores_masks: true,
        };
        let shape = (S::BLOCK_M, S::BLOCK_N);
        Self::new("linear_fp8_hopper", shape, S::SHARED_BYTES, schedule).fp8().passes()
    }

    const fn narrow() -> Self {
        let schedule = Schedule::Persistent {
            cluster: [1, 1],
            resident: 1,
            step_bytes: 1,
            stores_rows: true,
            passes_boxes: false,
            stores_masks: false,
        };
        let shape = (narrow::ROWS, narrow::MAX_COLUMNS);
        Self {
            is_plain: true,
            is_single: true,
            ..Self::new("linear_narrow", shape, narrow::SHARED_BYTES, schedule)
        }
    }

    const fn dots() -> Self {
        let schedule = Schedule::Teams { resident: dots::RESIDENT };
        let shape = (dots::ROWS, dots::COLUMNS);
        Self { is_plain: true, ..Self::new("linear_dots", shape, dots::SHARED_BYTES, schedule) }
    }

    const fn strided() -> Self {
        let shape = (StridedTile::BLOCK_M, StridedTile::BLOCK_N);
        Self::new("linear_strided", shape, StridedTile::SHARED_BYTES, Schedule::Split { parts: 1 })
    }

    const fn skinny<S: SplitKTile>() -> Self {
        let schedule = Schedule::Split { parts: S::SPLIT };
        Self::new("linear_skinny", (S::BLOCK_M, S::BLOCK_N), S::SHARED_BYTES, schedule)
    }

    /// Serves 16-bit types with these accesses.
    const fn halves(self, halves: &'static [Access]) -> Self {
        Self { halves, ..self }
    }

    /// Serves f32 outputs of 16-bit types, too.
    const fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }

    /// Serves f32 at f32 accuracy with these accesses.
    const fn f32(self, f32: &'static [Access]) -> Self {
        Self { f32, ..self }
    }

    /// Serves f32, rounded to TF32, with these accesses.
    const fn tf32(self, f32: &'static [Access]) -> Self {
        Self { f32, of_f32: Products::Tf32, ..self }
    }

    /// Serves 8-bit types, one product at a time.
    const fn fp8(self) -> Self {
        Self { fp8: ALIGNED, is_single: true, ..self }
    }

    /// Splits sums along K into parts that a second pass adds.
    const fn passes(self) -> Self {
        Self { has_passes: true, ..self }
    }

    /// Runs from this compute capability on.
    const fn since(self, since: (u32, u32)) -> Self {
        Self { since, ..self }
    }
}
