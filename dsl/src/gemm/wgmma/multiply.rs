//! The products of a tile: what consumers do with the ring's stages.

use super::{
    BLOCK_ROWS, Consumer, PANEL_BYTES, PANEL_STEP_BYTES, ROW_BYTES, STEP_BYTES, STEPS, Schedule, WgmmaTile,
};
use crate::gemm::{Layouts, PersistentTile};
use crate::pipeline::{AsyncProxy, FullStage, Operand};
use crate::ptx::{self, Accumulators, MatrixDescriptor, Wgmma};
use crate::warp;

impl<C: Accumulators, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    /// Issues the products of stage `stage`. They are added to the accumulators if `keep` is not 0, else they begin them.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`].
    #[inline(always)]
    unsafe fn multiply_stage<F: Accumulators, T: Wgmma<F>, const A_MN: bool, const B_MN: bool>(
        index: u32,
        accumulators: &mut [F; BLOCKS],
        stage: &FullStage<AsyncProxy>,
        keep: u32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            ptx::wgmma_fence();
            for part in 0..STEPS {
                for (block, accumulators) in accumulators.iter_mut().enumerate() {
                    let (a, b) = Self::operands::<A_MN, B_MN>(index, stage, block, part);
                    if part == 0 {
                        T::wgmma_if::<A_MN, B_MN>(accumulators, a, b, keep);
                    } else {
                        T::wgmma::<A_MN, B_MN>(accumulators, a, b);
                    }
                }
            }
            ptx::wgmma_commit_group();
        }
    }

    /// As [`multiply_stage`](Self::multiply_stage), only the first `rest` products: those behind the ends of the rows add nothing, and take time.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`].
    #[inline(always)]
    unsafe fn multiply_rest<F: Accumulators, T: Wgmma<F>, const A_MN: bool, const B_MN: bool>(
        index: u32,
        accumulators: &mut [F; BLOCKS],
        stage: &FullStage<AsyncProxy>,
        rest: u32,
        keep: u32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut part = 0;
            while part < rest {
                ptx::wgmma_fence();
                for (block, accumulators) in accumulators.iter_mut().enumerate() {
                    let (a, b) = Self::operands::<A_MN, B_MN>(index, stage, block, part);
                    T::wgmma_if::<A_MN, B_MN>(accumulators, a, b, keep + part);
                }
                // A group each: of one that a loop has filled, ptxas does not see that the products before it are still under way.
                ptx::wgmma_commit_group();
                // Opaque: one copy of the products is enough.
                part = ptx::opaque(part + 1);
            }
        }
    }

    /// What block `block` of consumer `index` multiplies in product `part` of a stage.
    #[inline(always)]
    fn operands<const A_MN: bool, const B_MN: bool>(
        index: u32,
        stage: &FullStage<AsyncProxy>,
        block: usize,
        part: u32,
    ) -> (MatrixDescriptor, MatrixDescriptor) {
        let own = if Self::TAKES_TURNS { 0 } else { index };
        let rows = stage.operand(Self::stage);
        // Panels and rows alike: 64 rows are as many bytes.
        let a = rows.offset(own * Self::CONSUMER_ROWS * ROW_BYTES);
        let b = rows.offset(Self::A_BYTES);
        let matrix = |is_mn, operand: Operand, behind| {
            if is_mn {
                operand.panels_of_128_bytes(PANEL_BYTES).advance(behind + part * PANEL_STEP_BYTES)
            } else {
                operand.rows_of_128_bytes().advance(behind + part * STEP_BYTES)
            }
        };
        (matrix(A_MN, a, block as u32 * BLOCK_ROWS * ROW_BYTES), matrix(B_MN, b, 0))
    }

    /// The products of one tile, or of half of one, for which accumulators `F` are: operands laid out as the constants say.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`].
    #[inline(always)]
    unsafe fn multiply_as<F: Accumulators, T: Wgmma<F>, const A_MN: bool, const B_MN: bool>(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        products: u32,
    ) -> [F; BLOCKS] {
        // SAFETY: all-zero bits are numbers. (As for `Accumulators::zero`.)
        let mut accumulators: [F; BLOCKS] = unsafe { core::mem::zeroed() };
        accumulators.iter_mut().for_each(|block| *block = F::arbitrary());
        // SAFETY: all warps of the warpgroup run this alike; each stage is full, and it is given back when the products
        // that read it have completed.
        unsafe {
            let mut previous = FullStage::none();
            let mut step = 0;
            while step < products / STEPS {
                let stage = consumer.ring.wait();
                Self::multiply_stage::<F, T, A_MN, B_MN>(consumer.index, &mut accumulators, &stage, step);
                ptx::wgmma_wait_group::<1>();
                if step > 0 {
                    consumer.ring.release(previous);
                }
                previous = stage;
                // Opaque: copies of the loop for its first steps, or for several at a time, are worth nothing.
                step = ptx::opaque(step + 1);
            }
            let rest = products % STEPS;
            if rest > 0 {
                let stage = consumer.ring.wait();
                let (index, all) = (consumer.index, &mut accumulators);
                Self::multiply_rest::<F, T, A_MN, B_MN>(index, all, &stage, rest, step);
                ptx::wgmma_wait_group::<1>();
                if step > 0 {
                    consumer.ring.release(previous);
                }
                previous = stage;
            }
            if Self::TAKES_TURNS && warp::lane_id() == 0 {
                Self::turn_of(1 - consumer.index).arrive();
            }
            ptx::wgmma_wait_group::<0>();
            accumulators.iter_mut().for_each(Accumulators::hold);
            consumer.ring.release(previous);
        }
        accumulators
    }

    /// The products of one tile, or of half of one, for which accumulators `F` are.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`].
    #[inline(always)]
    pub(super) unsafe fn multiply_layouts<F: Accumulators, T: Wgmma<F>>(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        layouts: Layouts,
        products: u32,
    ) -> [F; BLOCKS] {
        // SAFETY: the caller's promise.
        unsafe {
            if !(T::TRANSPOSES && Self::TRANSPOSES) {
                return Self::multiply_as::<F, T, false, false>(consumer, products);
            }
            match (layouts.a_is_mn(), layouts.b_is_mn()) {
                (false, false) => Self::multiply_as::<F, T, false, false>(consumer, products),
                (true, false) => Self::multiply_as::<F, T, true, false>(consumer, products),
                (false, true) => Self::multiply_as::<F, T, false, true>(consumer, products),
                (true, true) => Self::multiply_as::<F, T, true, true>(consumer, products),
            }
        }
    }
}
