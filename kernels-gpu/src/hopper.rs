//! What the kernels of a product on Hopper do, whether its operands are two matrices or pairs of them.

pub use warpsmith_dsl::gemm::product::{
    HopperCooperative128x192, HopperCooperative128x256, HopperParams, HopperPingPong128x128,
};
use warpsmith_dsl::gemm::wgmma::{AlongN, Cooperative, PingPong, WgmmaTile};
use warpsmith_dsl::launch::TensorMap;

#[cfg(any(feature = "linear_hopper", feature = "linear_joined", not(target_arch = "nvptx64")))]
pub(crate) use body::product;

/// 128 × 192 outputs by each of two warpgroups in turn, in clusters of two blocks: for epilogues that need no memory, and aligned rows only.
pub type HopperPingPong128x192 = WgmmaTile<[f32; 96], 2, PingPong, 4, 2>;
/// 128 × 128 outputs by two warpgroups together, in clusters of two blocks: the sooner done where a block has but one tile.
pub type HopperCooperative128x128 = WgmmaTile<[f32; 64], 1, Cooperative<2>, 6, 2>;
/// 64 × 128 outputs by one warpgroup: for as many blocks as there are multiprocessors where Y is small, for a small K, and for long sums. Not in
/// clusters: what several blocks ask for at the same time is read once from the level-2 cache, more of it than a cluster's blocks could send each other. For
/// aligned rows only.
pub type HopperCooperative64x128 = WgmmaTile<[f32; 64], 1, Cooperative<1>, 8, 1>;
/// 64 × 160 outputs by one warpgroup, in clusters of four blocks along M, whose copies to each other are what reads least where blocks are not
/// in step: for a small Y, and sums that are not long. For epilogues that need no memory, and aligned rows only.
pub type HopperCooperative64x160 = WgmmaTile<[f32; 80], 1, Cooperative<1>, 7, 4>;
/// 128 × 160 outputs by two warpgroups together, in clusters of two by two blocks: for a Y that a tile for each of nearly all multiprocessors
/// covers, and no smaller tiles do. For epilogues that need no memory, and aligned rows only.
pub type HopperCooperative128x160 = WgmmaTile<[f32; 80], 1, AlongN<Cooperative<2>, 2>, 5, 4>;
/// 256 × 176 outputs by two warpgroups together, in clusters of two blocks along N, which share the longer side of the tile: for a Y that
/// a tile for each multiprocessor covers, and no smaller tiles do. For epilogues that need no memory, and aligned rows only.
pub type HopperCooperative256x176 = WgmmaTile<[f32; 88], 2, AlongN<Cooperative<2>, 2>, 4, 2>;
/// 192 × 176 outputs by three warpgroups together, in clusters of two blocks along N, which share the longer side of the tile. For operands that
/// are slow to load, and a Y of which other tiles compute more that is outside of it. For epilogues that need no memory, and aligned rows only.
pub type HopperCooperative192x176 = WgmmaTile<[f32; 88], 1, AlongN<Cooperative<3>, 2>, 4, 2>;

/// Matrices whose columns follow those of X and W.
#[derive(Clone, Copy)]
pub(crate) struct Joined<'a> {
    /// What follows X.
    pub(crate) g: &'a TensorMap,
    /// What follows W.
    pub(crate) ut: &'a TensorMap,
    /// Columns of both.
    pub(crate) rank: u32,
}

/// What every kernel does. The families that have one are features, and device builds have one at a time.
#[cfg(any(feature = "linear_hopper", feature = "linear_joined", not(target_arch = "nvptx64")))]
mod body {
    use warpsmith_dsl::epilogue::LinearEpilogue;
    use warpsmith_dsl::gemm::{BoxOutput, HalfFragment, Layouts, OutputElement, PersistentTile};
    use warpsmith_dsl::grid;
    use warpsmith_dsl::launch::{GlobalMut, TensorMap};
    use warpsmith_dsl::ptx::{self, Wgmma};
    use warpsmith_dsl::tile::Output;

    use super::{HopperParams, Joined};

    /// `Y = activation(alpha · X Wᵀ + …)`, where X and W have more columns in the `PAIRS` pairs of other matrices, none or one. K-major are all where there
    /// is one.
    ///
    /// # Safety
    ///
    /// As [`linear_hopper`](fn@crate::linear_hopper::linear_hopper), and for `joined` as for X and W.
    #[inline(always)]
    pub(crate) unsafe fn product<T, O: OutputElement, S: PersistentTile, const PAIRS: usize>(
        x: &TensorMap,
        w: &TensorMap,
        joined: [Joined<'_>; PAIRS],
        y_boxes: &TensorMap,
        y: GlobalMut<O>,
        epilogue: LinearEpilogue<T, O>,
        p: HopperParams,
    ) where
        T: Wgmma<S::Fragment> + Wgmma<HalfFragment<S>>,
    {
        const { assert!(PAIRS <= 1, "X and W, and one pair more") };
        let layouts = if PAIRS == 0 { p.layouts } else { p.layouts.without_mn() };
        let first_steps = (p.k * T::BYTES).div_ceil(S::ROW_BYTES);
        let first_products = (p.k * T::BYTES).div_ceil(S::PRODUCT_BYTES);
        // Opaque, here and below: what follows from the sizes is computed where it is needed, rather than kept in registers by all warps.
        let products = || match joined.as_slice() {
            [] => first_products,
            [Joined { rank, .. }, ..] => {
                let first_steps = (ptx::opaque(p.k) * T::BYTES).div_ceil(S::ROW_BYTES);
                let more = (ptx::opaque(*rank) * T::BYTES).div_ceil(S::PRODUCT_BYTES);
                first_steps * (S::ROW_BYTES / S::PRODUCT_BYTES) + more
            }
        };
        let steps =
            || if PAIRS == 0 { first_steps } else { products().div_ceil(S::ROW_BYTES / S::PRODUCT_BYTES) };
        let tiles = || {
            let tiles = S::tiles(ptx::opaque(p.m), ptx::opaque(p.n), p.batch);
            if S::HALVES { tiles.with_halves(p.whole, p.narrow) } else { tiles }
        };

        // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
        // vouches for maps and pointers, and each tile of Y belongs to one block.
        unsafe {
            S::start();
            if S::is_producer() {
                let mut tiles = tiles();
                if let Some(mut producer) = S::producer() {
                    let mut next = S::next_part(&mut tiles);
                    // Behind the start and the first tile's divisions, which depend on no other launch.
                    if PAIRS == 0 {
                        grid::wait_for_earlier_launches();
                    } else {
                        grid::let_next_launch_begin();
                    }
                    while let Some(part) = next {
                        S::load::<T>(&mut producer, x, w, layouts, first_steps, part);
                        if let [Joined { g, ut, .. }, ..] = joined.as_slice() {
                            // Of the launches before this one, only the last is still under way, which makes G.
                            grid::wait();
                            // There is one matrix of each, so that those of later parts of the sums are beyond it and read as zeros.
                            S::load::<T>(&mut producer, g, ut, Layouts::K_MAJOR, steps() - first_steps, part);
                        }
                        next = S::next_part(&mut tiles);
                    }
                    S::finish(producer);
                } else {
                    // Before earlier launches have ended, and whatever they write.
                    S::prefetch::<T>(x, w, layouts, first_steps, &mut tiles);
                }
            } else {
                let mut consumer = S::consumer();
                let mut tiles = tiles();
                let mut next = S::next_tile(&mut consumer, &mut tiles, steps());
                if PAIRS == 0 {
                    grid::wait_for_earlier_launches();
                }
                while let Some(part) = next {
                    let epilogue = epilogue.of_matrix(part.tile.batch, p.m, p.n);
                    let (in_registers, through_boxes) = (epilogue.in_registers(), epilogue.through_boxes());
                    let columns = S::columns(&through_boxes, part);
                    if S::PASSES_BOXES && p.has_boxes != 0 {
                        S::fetch_boxes::<O, _>(&through_boxes, part);
                    } else {
                        S::prefetch_rows::<O, _>(&epilogue, part);
                    }
                    let accumulators = if S::HALVES && part.is_half() {
                        S::multiply_half::<T>(&mut consumer, layouts, products())
                    } else {
                        S::multiply::<T>(&mut consumer, layouts, products())
                    };
                    if PAIRS != 0 {
                        // Whoever waits for this launch relies on G's having ended, too.
                        grid::wait();
                    }
                    let base = y.offset(part.tile.batch as u64 * p.batch_y);
                    let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
                    if !S::STORES_ROWS || p.has_boxes != 0 {
                        let by_lanes = S::LANES_STORE && p.has_boxes == HopperParams::LANES_STORE;
                        let boxes = BoxOutput { map: y_boxes, rows: by_lanes.then_some(y) };
                        let floor =
                            in_registers.with_floor().filter(|_| S::UNROLLS && epilogue.fits_registers());
                        if let Some(e) = floor {
                            S::store_boxes::<O, _, true>(&accumulators, &e, &columns, &boxes, part);
                        } else if S::PASSES_BOXES {
                            S::store_boxes::<O, _, false>(
                                &accumulators,
                                &through_boxes,
                                &columns,
                                &boxes,
                                part,
                            );
                        } else if S::STORES_MASKS {
                            let masked = in_registers.with_mask();
                            S::store_boxes::<O, _, false>(&accumulators, &masked, &columns, &boxes, part);
                        } else {
                            S::store_boxes::<O, _, false>(
                                &accumulators,
                                &in_registers,
                                &columns,
                                &boxes,
                                part,
                            );
                        }
                    } else {
                        S::store_rows(&accumulators, &epilogue, &y, part);
                    }
                    next = S::next_tile(&mut consumer, &mut tiles, steps());
                }
                S::finish_stores();
            }
        }
    }
}
