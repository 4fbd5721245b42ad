//! What the kernels for few rows on Hopper do, whether their operands are two matrices or pairs of them.

pub use warpsmith_dsl::gemm::product::{Skinny16x64, Skinny16x64Split4, SkinnyParams};
use warpsmith_dsl::gemm::split_k::TransposedTile;

#[cfg(any(feature = "linear_skinny", feature = "linear_joined", not(target_arch = "nvptx64")))]
pub(crate) use body::few_rows;

/// 64 × 64 outputs by one block.
pub type Skinny64x64 = TransposedTile<[f32; 32], 1, 1, 8, 14, 1, 1>;
/// 64 × 64 outputs by two blocks.
pub type Skinny64x64Split2 = TransposedTile<[f32; 32], 1, 1, 8, 14, 2, 1>;
/// 64 × 64 outputs by eight blocks.
pub type Skinny64x64Split8 = TransposedTile<[f32; 32], 1, 1, 5, 6, 8, 2>;
/// The same with rings as deep as a multiprocessor's shared memory, which holds no second block then.
pub type Skinny64x64Split8Deep = TransposedTile<[f32; 32], 1, 1, 11, 13, 8, 1>;
/// 32 × 64 outputs by one block.
pub type Skinny32x64 = TransposedTile<[f32; 16], 1, 2, 5, 9, 1, 1>;
/// 16 × 64 outputs by two blocks.
pub type Skinny16x64Split2 = TransposedTile<[f32; 8], 1, 2, 4, 5, 2, 2>;

/// What every kernel does. The families that have one are features, and device builds have one at a time.
#[cfg(any(feature = "linear_skinny", feature = "linear_joined", not(target_arch = "nvptx64")))]
mod body {
    use warpsmith_dsl::epilogue::LinearEpilogue;
    use warpsmith_dsl::float::Element;
    use warpsmith_dsl::gemm::{Layouts, SplitKTile};
    use warpsmith_dsl::grid;
    use warpsmith_dsl::launch::{GlobalMut, TensorMap};
    use warpsmith_dsl::ptx::Wgmma;
    use warpsmith_dsl::tile::Output;

    use super::SkinnyParams;
    use crate::hopper::Joined;

    /// `Y = activation(alpha · X Wᵀ + …)`, where X and W have more columns in the `PAIRS` pairs of other matrices, none or one. K-major are all where there
    /// is one.
    ///
    /// # Safety
    ///
    /// As [`linear_skinny`](fn@crate::linear_skinny::linear_skinny), and for `joined` as for X and W.
    #[inline(always)]
    pub(crate) unsafe fn few_rows<
        T: Wgmma<S::Accumulators>,
        O: Element,
        S: SplitKTile,
        const PAIRS: usize,
    >(
        x: &TensorMap,
        w: &TensorMap,
        joined: [Joined<'_>; PAIRS],
        y: GlobalMut<O>,
        epilogue: LinearEpilogue<T, O>,
        p: SkinnyParams,
    ) {
        const { assert!(PAIRS <= 1, "X and W, and one pair more") };
        // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
        // vouches for maps and pointers, and each tile of Y belongs to one cluster.
        unsafe {
            S::start(x, w);
            // Behind the start, under which its divisions run, and before what else waits for other launches.
            let first = (p.k * T::BYTES).div_ceil(S::STEP_BYTES);
            let row_bytes = match joined.as_slice() {
                [] => p.k * T::BYTES,
                [Joined { rank, .. }, ..] => first * S::STEP_BYTES + rank * T::BYTES,
            };
            let share = S::share(p.m, p.n, row_bytes);
            let tile = share.tile;
            if PAIRS == 0 {
                grid::wait_for_earlier_launches();
            } else {
                grid::let_next_launch_begin();
            }
            if S::is_producer() {
                match joined.as_slice() {
                    [] => S::load::<T>(x, w, p.layouts, share),
                    [Joined { g, ut, .. }, ..] => S::load_joined::<T>([x, w], [g, ut], first, share),
                }
            } else {
                let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);
                let columns = S::columns(&epilogue, tile);
                let accumulators =
                    S::multiply::<T>(if PAIRS == 0 { p.layouts } else { Layouts::K_MAJOR }, share);
                if PAIRS != 0 {
                    // The launch before, which makes G, may be under way until here.
                    grid::wait();
                }
                S::exchange(accumulators);
                let base = y.offset(tile.batch as u64 * p.batch_y);
                let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
                S::store_linear(&epilogue, columns, &y, tile);
            }
        }
    }
}
