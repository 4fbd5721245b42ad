//! What the kernels of a generated low-rank update have in common: [`generated_update`](mod@crate::generated_update) and
//! [`generated_update_cluster`](mod@crate::generated_update_cluster).

use warpsmith_dsl::KernelParam;

#[cfg(any(
    feature = "generated_update",
    feature = "generated_update_cluster",
    not(target_arch = "nvptx64")
))]
pub(crate) use body::update;

/// The sizes and options of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct UpdateParams {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of V to the next.
    pub stride_v: u64,
    /// Elements from one row of U to the next.
    pub stride_u: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Columns of X, rows of V. A row of X has less than 2³¹ bytes.
    pub k1: u32,
    /// Columns of U and of Y. A row has less than 2³¹ bytes.
    pub k2: u32,
    /// Columns of Y that a block computes of its rows: a multiple of [`SLICE_BYTES`] bytes' worth.
    pub slice: u32,
    /// 1 if the update is added to what Y holds, 0 if Y becomes the update.
    pub add: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// What a slice of Y's columns is a multiple of, in bytes.
pub const SLICE_BYTES: u32 = 128;

/// What every kernel does. The families that have one are features, and device builds have one at a time.
#[cfg(any(feature = "generated_update", feature = "generated_update_cluster", not(target_arch = "nvptx64")))]
mod body {
    use warpsmith_dsl::gemm::low_rank::{LowRankElement, LowRankShape, LowRankStream, Problem};
    use warpsmith_dsl::launch::{Global, GlobalMut};
    use warpsmith_dsl::tile::{Operand, Output};

    use super::UpdateParams;
    use crate::codes::Codes;

    /// `Y (+)= Σ scaling · ((X V) ⊙ codes) U`, where the sum goes over the updates of `codes`.
    ///
    /// # Safety
    ///
    /// The pointers, those of `codes` too, are valid for what `p` describes. The rank of `codes` is that of V and U, and at most the
    /// shape's; `codes.rows` holds no zero. Y overlaps nothing else. The grid has whole clusters of `SPLIT` blocks, and of more than one, a
    /// cluster for each tile of `BLOCK_M` rows × `SPLIT` · `slice` columns.
    #[inline(always)]
    pub(crate) unsafe fn update<T: LowRankElement, S: LowRankShape>(
        x: Global<T>,
        v: Global<T>,
        codes: Codes<T>,
        u: Global<T>,
        y: GlobalMut<T>,
        p: UpdateParams,
    ) {
        let rank = codes.rank();
        let problem = move || Problem {
            x: Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k1 },
            v: Operand { base: v, stride: p.stride_v, rows: p.k1, k: rank },
            u: Operand { base: u, stride: p.stride_u, rows: rank, k: p.k2 },
            slice: p.slice,
        };
        let mut stream = LowRankStream::<T, S>::new(problem());
        let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.k2 };

        // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the shape asks for; the caller vouches
        // for the pointers, and each tile of Y belongs to one block.
        unsafe {
            let mut h = S::zero();
            let mut codes_of_tile = S::no_codes();
            while let Some(stage) = stream.next(|due| {
                // Not before: the first rows are on their way by now.
                if due.is_first {
                    S::start(&codes);
                }
                codes_of_tile = S::fetch::<T>(p.m, due.row);
            }) {
                if stage.is_first() {
                    h = S::zero();
                }
                if stage.is_of_first_product() {
                    S::project::<T>(&mut h, &stage);
                    if stage.completes_first_product() {
                        S::modulate::<T>(&mut h, codes_of_tile, &problem(), &stage);
                    }
                } else {
                    S::expand::<T>(&h, &problem(), &y, p.add != 0, &stage);
                }
            }
        }
    }
}
