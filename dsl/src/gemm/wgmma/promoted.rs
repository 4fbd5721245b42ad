//! Products of 8-bit floating-point types, whose sums keep f32's accuracy.
//!
//! The tensor cores keep 13 bits of such a sum, so a long one would lose what is added to it. They add up no more than a stage of
//! the ring at a time, 128 elements along K, each time from zero; ordinary additions add that to accumulators in f32
//! (*promotion*). Of a consumer's rows 64 are worked on at a time, so that beside the accumulators registers are taken by the sums
//! of 64 rows only.
//!
//! While one consumer adds, the tensor cores work for the other. They are kept busy by two consumers only if what each does from the end
//! of its products to the next ones takes less time than the other's products. So nothing is done in between but the additions:
//! the next stage is waited for, and found, while the products run.

use super::{
    BLOCK_ROWS, Consumer, ROW_BYTES, STAGED_BOXES, STEP_BYTES, STEPS, STRIP_COLUMNS, Schedule, WARPGROUP,
    WgmmaTile,
};
use crate::gemm::{Layouts, PersistentTile, PersistentTiles};
use crate::launch::TensorMap;
use crate::layout::TileIndex;
use crate::pipeline::{AsyncProxy, FullStage, Pipeline};
use crate::ptx::{self, Accumulators, MatrixDescriptor, WgmmaFp8};
use crate::shared::SharedAddress;

/// Elements of a row in a stage.
const ROW_ELEMENTS: u32 = ROW_BYTES;
/// The barrier at which the first of two consumers waits for its turn; the second waits at the next.
const FIRST_TURN: u32 = 1;
/// Products of a stage that have completed when the turn is given: those after them take as long as the other consumer takes to issue.
const TURN_AFTER: u32 = STEPS / 2;

/// A tile whose products are of 8-bit types.
///
/// The operands' maps are as [`PersistentTile`] says, of elements of one byte, K-major. Kernels may call
/// [`store_rows`](PersistentTile::store_rows) of any such tile, whatever [`STORES_ROWS`](PersistentTile::STORES_ROWS) says: they do not store in
/// boxes what has an input beside scales.
pub trait PromotedTile: PersistentTile {
    /// Copies the rows of A and of B that output tile `tile` needs, `steps` × 128 elements of each. Both are K-major, whatever `layouts` says.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`], with [`multiply_promoted`](Self::multiply_promoted) for `multiply`.
    unsafe fn load_bytes(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tile: TileIndex,
    );

    /// As [`PersistentTile::prefetch`].
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::prefetch`].
    unsafe fn prefetch_bytes(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tiles: &mut PersistentTiles,
    );

    /// Gives consumer 0 the first turn. The turns go on from tile to tile: each is given when the one before it has been taken, or a
    /// fast warp would be counted twice.
    ///
    /// # Safety
    ///
    /// All threads of each consumer call it once, before its first product.
    unsafe fn begin_turns(consumer: &Self::Consumer);

    /// Takes the last turn, which nobody needs any more.
    ///
    /// # Safety
    ///
    /// All threads of each consumer call it once, after its last product.
    unsafe fn end_turns(consumer: &Self::Consumer);

    /// The product of the rows that [`load_bytes`](Self::load_bytes) has copied, `steps` × 128 elements of each, which are of types `A`
    /// and `B`.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`], between [`begin_turns`](Self::begin_turns) and [`end_turns`](Self::end_turns); `steps` is at least 1.
    unsafe fn multiply_promoted<A: WgmmaFp8<B, Self::Fragment>, B>(
        consumer: &mut Self::Consumer,
        steps: u32,
    ) -> Self::Accumulators;
}

/// Sums that can be added to accumulators.
pub trait Promote: Accumulators {
    /// Adds `sums`, with ordinary additions in f32.
    fn promote(&mut self, sums: &Self);
}

impl<const N: usize> Promote for [f32; N]
where
    Self: Accumulators,
{
    #[inline(always)]
    fn promote(&mut self, sums: &Self) {
        for (accumulator, sum) in self.iter_mut().zip(sums) {
            *accumulator += sum;
        }
    }
}

/// What a consumer of a tile keeps in registers to find its stages. The compiler would otherwise compute it again for each stage, between one
/// stage's products and the next ones.
#[derive(Clone, Copy)]
struct Place {
    /// The consumer's number.
    index: u32,
    /// Its rows of A in the first stage.
    a: SharedAddress,
    /// The rows of B there.
    b: SharedAddress,
}

/// The operands of a stage.
#[derive(Clone, Copy)]
struct Operands {
    a: MatrixDescriptor,
    b: MatrixDescriptor,
}

impl<C: Promote, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    /// Whether two consumers of the same tile take turns to issue products: else the tensor cores take theirs in any order. Measured on an
    /// H100, turns are worth it for products of 192 columns; where they are shorter, handing over takes longer than it saves.
    const ALTERNATES: bool = {
        assert!(
            !Self::TAKES_TURNS,
            "consumers with tiles of their own would not add up under each other's products"
        );
        S::CONSUMERS == 2 && C::COLUMNS >= 192
    };

    /// Waits until consumer `index`, this one, may issue.
    ///
    /// # Safety
    ///
    /// All lanes of the consumer call it, as often as those of the other call [`let_issue`](Self::let_issue) for it.
    #[inline(always)]
    unsafe fn await_issue(index: u32) {
        if Self::ALTERNATES {
            // SAFETY: the caller's promise.
            unsafe { ptx::bar_sync_at(FIRST_TURN + index, 2 * WARPGROUP) }
        }
    }

    /// Lets consumer `index`, the other one, issue.
    ///
    /// # Safety
    ///
    /// As [`await_issue`](Self::await_issue).
    #[inline(always)]
    unsafe fn let_issue(index: u32) {
        if Self::ALTERNATES {
            // SAFETY: the caller's promise.
            unsafe { ptx::bar_arrive_at(FIRST_TURN + index, 2 * WARPGROUP) }
        }
    }

    /// This warp's place, and its ring found from there.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    unsafe fn place(consumer: &mut Consumer<STAGES, CLUSTER>) -> Place {
        // SAFETY: the caller's promise; lanes agree.
        let (start, index) =
            unsafe { (SharedAddress::dynamic().kept(), ptx::shfl_sync_idx(consumer.index, 0)) };
        consumer.ring.move_to(Pipeline::at(start.offset(Self::BARRIERS_AT)));
        let a = start.offset(index * Self::CONSUMER_ROWS * ROW_BYTES);
        Place { index, a, b: start.offset(Self::A_BYTES) }
    }

    /// Waits for the next stage.
    ///
    /// # Safety
    ///
    /// As [`PromotedTile::multiply_promoted`].
    #[inline(always)]
    unsafe fn next_stage(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        place: Place,
    ) -> (FullStage<AsyncProxy>, Operands) {
        // SAFETY: the caller's promise.
        let stage = unsafe { consumer.ring.wait() };
        let of = |rows: SharedAddress| {
            stage.operand(|index| rows.offset(index * Self::STAGE_BYTES)).rows_of_128_bytes()
        };
        (stage, Operands { a: of(place.a), b: of(place.b) })
    }

    /// Issues the products of 64 rows with a stage's rows of B, in this consumer's turn.
    ///
    /// # Safety
    ///
    /// As [`PromotedTile::multiply_promoted`]; nothing is under way that touches `sums`.
    #[inline(always)]
    unsafe fn issue<A: WgmmaFp8<B, C>, B>(sums: &mut C, place: Place, operands: Operands, block: usize) {
        let Operands { a, b } = operands;
        let a = a.advance(block as u32 * BLOCK_ROWS * ROW_BYTES);
        // SAFETY: the caller's promise.
        unsafe {
            Self::await_issue(place.index);
            ptx::wgmma_fence();
            A::wgmma::<false>(sums, a, b);
            for step in 1..STEPS {
                if Self::ALTERNATES && step == TURN_AFTER {
                    ptx::wgmma_commit_group();
                }
                let along_k = step * STEP_BYTES;
                A::wgmma::<true>(sums, a.advance(along_k), b.advance(along_k));
            }
            ptx::wgmma_commit_group();
        }
    }

    /// Waits for the products that were [issued](Self::issue), and gives the turn to the other consumer when half of them have completed.
    ///
    /// # Safety
    ///
    /// As [`PromotedTile::multiply_promoted`].
    #[inline(always)]
    unsafe fn await_sums(sums: &mut C, place: Place) {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::ALTERNATES {
                ptx::wgmma_wait_group::<1>();
                Self::let_issue(1 - place.index);
            }
            ptx::wgmma_wait_group::<0>();
        }
        sums.hold();
    }

    /// The product of one of two consumers.
    ///
    /// # Safety
    ///
    /// As [`PromotedTile::multiply_promoted`].
    #[inline(always)]
    unsafe fn multiply_together<A: WgmmaFp8<B, C>, B>(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        steps: u32,
    ) -> [C; BLOCKS] {
        // SAFETY: all-zero bits are numbers.
        let mut accumulators: [C; BLOCKS] = unsafe { core::mem::zeroed() };
        let mut sums = C::arbitrary();
        // SAFETY: all warps of the warpgroup run this alike; a stage is full when it is read, and is given back when the products
        // that read it have completed. One consumer waits for its turn as often as the other gives it.
        unsafe {
            let place = Self::place(consumer);
            let (mut stage, mut operands) = Self::next_stage(consumer, place);
            let mut left = steps;
            while left > 0 {
                left -= 1;
                let current = stage;
                for (block, accumulators) in accumulators.iter_mut().enumerate() {
                    let is_last = block + 1 == BLOCKS;
                    Self::issue::<A, B>(&mut sums, place, operands, block);
                    if is_last && left > 0 {
                        (stage, operands) = Self::next_stage(consumer, place);
                    }
                    Self::await_sums(&mut sums, place);
                    if is_last {
                        consumer.ring.release(current);
                    }
                    accumulators.promote(&sums);
                    accumulators.hold();
                }
            }
        }
        accumulators
    }

    /// The product of an only consumer, of 64 rows. It issues a stage's products in the same block of instructions as the additions before
    /// them, among which the compiler then places what finds their operands.
    ///
    /// # Safety
    ///
    /// As [`PromotedTile::multiply_promoted`].
    #[inline(always)]
    unsafe fn multiply_alone<A: WgmmaFp8<B, C>, B>(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        steps: u32,
    ) -> [C; BLOCKS] {
        const { assert!(S::CONSUMERS > 1 || BLOCKS == 1, "other rows' products would come in between") };
        // SAFETY: all-zero bits are numbers.
        let mut accumulators: [C; BLOCKS] = unsafe { core::mem::zeroed() };
        let mut sums = C::arbitrary();
        // SAFETY: as in `multiply_together`.
        unsafe {
            let place = Self::place(consumer);
            let (mut stage, operands) = Self::next_stage(consumer, place);
            Self::issue::<A, B>(&mut sums, place, operands, 0);
            for _ in 1..steps {
                let (next, operands) = Self::next_stage(consumer, place);
                Self::await_sums(&mut sums, place);
                consumer.ring.release(stage);
                accumulators[0].promote(&sums);
                accumulators[0].hold();
                Self::issue::<A, B>(&mut sums, place, operands, 0);
                stage = next;
            }
            Self::await_sums(&mut sums, place);
            consumer.ring.release(stage);
            accumulators[0].promote(&sums);
        }
        accumulators
    }
}

impl<C: Promote, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32> PromotedTile
    for WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    #[inline(always)]
    unsafe fn load_bytes(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tile: TileIndex,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Self::load_rows(producer, a, b, layouts.without_mn(), ROW_ELEMENTS, steps, tile) }
    }

    #[inline(always)]
    unsafe fn prefetch_bytes(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tiles: &mut PersistentTiles,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Self::prefetch_first(a, b, layouts.without_mn(), ROW_ELEMENTS, steps, tiles) }
    }

    #[inline(always)]
    unsafe fn begin_turns(consumer: &Self::Consumer) {
        if consumer.index == 1 {
            // SAFETY: consumer 0 waits before its first product, or at the end.
            unsafe { Self::let_issue(0) };
        }
    }

    #[inline(always)]
    unsafe fn end_turns(consumer: &Self::Consumer) {
        if consumer.index == 0 {
            // SAFETY: consumer 1 has given one turn more than consumer 0 had products.
            unsafe { Self::await_issue(0) };
        }
    }

    #[inline(always)]
    unsafe fn multiply_promoted<A: WgmmaFp8<B, C>, B>(
        consumer: &mut Self::Consumer,
        steps: u32,
    ) -> [C; BLOCKS] {
        const {
            assert!(
                Self::STAGED.0 == STAGED_BOXES && C::COLUMNS.is_multiple_of(STRIP_COLUMNS),
                "rows are stored by way of two boxes, in strips"
            );
        }
        // SAFETY: the caller's promise.
        unsafe {
            if S::CONSUMERS == 1 {
                Self::multiply_alone::<A, B>(consumer, steps)
            } else {
                Self::multiply_together::<A, B>(consumer, steps)
            }
        }
    }
}
