//! The matrix product: a block multiplies a tile of rows of A with a tile of rows of B and stores `epilogue(A Bᵀ)`. Rows are contiguous along
//! K; [`wgmma`] also reads 16-bit operands that are contiguous along the other index ([`Layouts`]), and [`strided`] such as have any strides.
//!
//! There are several main loops. What happens between the rows in global memory and the accumulators is their business.
//!
//! | main loop | for | a kernel names | and calls |
//! |---|---|---|---|
//! | [`mma_sync`] | sm_80 and every later architecture | a [`TileShape`] | [`multiply`](TileShape::multiply), [`store`](TileShape::store) |
//! | [`fp8`] | sm_89 and later: `mma_sync`'s loop on operands of 8-bit types | an [`Fp8Shape`](fp8::Fp8Shape) | [`multiply_bytes`](fp8::Fp8Shape::multiply_bytes), [`store`](TileShape::store) |
//! | [`update`] | the same as `mma_sync`, with a low-rank update of the product | an [`UpdateShape`](update::UpdateShape) | `run` |
//! | [`turing`] | sm_75, in the place of `mma_sync` | the same | the same |
//! | [`turing_update`] | sm_75, in the place of `update` | an [`UpdateShape`](update::UpdateShape) | `run` |
//! | [`strided`] | operands of 16-bit types with any strides | the [`Readers`](strided::Readers) of a tile | [`multiply`](strided::Readers::multiply), [`store`](strided::store) |
//! | [`wgmma`] | sm_90a | a [`PersistentTile`] | [`load`](PersistentTile::load) in one thread, [`multiply`](PersistentTile::multiply) and a store in others |
//! | [`split_k`] | sm_90a, few rows of A or few tiles | a [`SplitKTile`] | [`load`](SplitKTile::load) in one warp, [`multiply`](SplitKTile::multiply), [`exchange`](SplitKTile::exchange) and [`store`](SplitKTile::store) in others |
//! | [`narrow`] | sm_90, many rows of A, few columns of both | – | [`run`](narrow::run) |
//! | [`dots`] | sm_80 and later, few rows of A | – | [`run`](dots::run) |
//! | [`wgmma_f32`] | sm_90a, f32 at f32 accuracy | a [`SplitTile`](wgmma_f32::SplitTile) | `load`, `split` and `multiply`, each in other warps, and `store` |
//!
//! [`product`] makes whole kernels of them. [`parts`] is how blocks of portable kernels share the sums of a tile. [`again`] is what f32 products do about infinities. [`low_rank`] multiplies three matrices: a low-rank update alone, whose first product stays in registers.

pub mod again;
pub mod dots;
mod element;
pub mod fp8;
mod fragments;
pub mod low_rank;
pub mod mma_sync;
pub mod narrow;
pub mod parts;
mod persistent;
pub mod product;
mod schedule;
pub mod split_k;
pub mod strided;
pub mod turing;
pub mod turing_update;
mod two_slots;
pub mod update;
pub mod wgmma;
pub mod wgmma_f32;

pub use element::{Exact, MmaElement, MmaProducts, Rule, Single};
pub use fragments::{
    BOX_BYTES, BoxOutput, ColumnCache, FragmentPair, OutputElement, STAGED_BOXES, STAGING_BYTES, WarpRows,
    fetch_boxes, store_boxes, store_rows, wait_for_stores,
};
pub use persistent::{HalfFragment, Layouts, PersistentTile};
pub use schedule::{Extent, PersistentTiles, TilePart};
pub use split_k::SplitKTile;

use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::layout::TileIndex;
use crate::tile::{Access, Operand, Output};
use again::Sums;
use parts::Quads;

/// The shape of a block's tile, and how its warps, its shared memory and its main loop are arranged.
pub trait TileShape: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Bytes of each row that are copied at a time: a step along K.
    const ROW_BYTES: u32;
    /// Whether blocks may [share](parts) the sums of a tile: of tiles for few rows, whose time is that of reading B. The main loops of larger ones take longer
    /// where K is not the operands' own.
    const SHARES: bool;
    /// Which products it makes.
    type Rule: Rule;

    /// The block's accumulators: each thread's share, in registers.
    type Accumulators: Copy + Quads;

    /// The product of the rows of `a` and of `b` that output tile `tile` needs.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, with the same arguments, in a block of `THREADS` threads with `SHARED_BYTES`
    /// bytes of dynamic shared memory. The operands are valid for reads and aligned as `A` asks, and nothing writes
    /// them while the kernel runs. A row has less than 2³¹ bytes. `tile` is within the output.
    unsafe fn multiply<T: MmaElement, A: Access>(
        a: Operand<T>,
        b: Operand<T>,
        tile: TileIndex,
    ) -> Self::Accumulators;

    /// Applies `epilogue` to the accumulators, rounds them, and stores those that are within the output. Those that are not finite are
    /// added up again before, as `sums` says.
    ///
    /// # Safety
    ///
    /// As [`multiply`](Self::multiply), whose result `accumulators` is for the same `tile`; the output is valid for writes
    /// and no other block touches this tile of it; `epilogue` may be asked for every column of the output, `sums` for every element.
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: Self::Accumulators,
        sums: &impl Sums,
        epilogue: E,
        output: Output<O>,
        tile: TileIndex,
    );
}
