//! Products of 8-bit floating-point types, whose sums keep f32's accuracy.
//!
//! The tensor cores keep 13 bits of such a sum, so a long one would lose what is added to it. They add up no more than a stage of
//! the ring at a time, 128 elements along K, each time from zero; ordinary additions add that to accumulators in f32
//! (*promotion*). Of a consumer's rows 64 are worked on at a time, so that beside the accumulators registers are taken by the sums
//! of 64 rows only.
//!
//! While one consumer adds, the tensor cores work for the other: of two, each issues the products of 64 rows in turn.

use super::{BLOCK_ROWS, ROW_BYTES, STEP_BYTES, STEPS, Schedule, WARPGROUP, WgmmaTile};
use crate::gemm::PersistentTile;
use crate::launch::TensorMap;
use crate::layout::TileIndex;
use crate::ptx::{self, Accumulators, MatrixDescriptor, WgmmaFp8};

/// Elements of a row in a stage.
const ROW_ELEMENTS: u32 = ROW_BYTES;
/// The barrier at which the first of two consumers waits for its turn; the second waits at the next.
const FIRST_TURN: u32 = 1;

/// A tile whose products are of 8-bit types.
///
/// The operands' maps are as [`PersistentTile`] says, of elements of one byte, K-major.
pub trait PromotedTile: PersistentTile {
    /// Copies the rows of A and of B that output tile `tile` needs, `steps` × 128 elements of each.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`], with [`multiply_promoted`](Self::multiply_promoted) for `multiply`.
    unsafe fn load_bytes(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        steps: u32,
        tile: TileIndex,
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

    /// The product of the rows that [`load_bytes`](Self::load_bytes) has copied, which are of types `A` and `B`.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`], between [`begin_turns`](Self::begin_turns) and [`end_turns`](Self::end_turns).
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

impl<C: Accumulators, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    /// Whether two consumers of the same tile take turns to issue products.
    const ALTERNATES: bool = {
        assert!(
            !Self::TAKES_TURNS,
            "consumers with tiles of their own would not add up under each other's products"
        );
        S::CONSUMERS == 2
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
}

impl<C: Promote, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32> PromotedTile
    for WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    #[inline(always)]
    unsafe fn load_bytes(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        steps: u32,
        tile: TileIndex,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Self::load_rows(producer, a, b, Default::default(), ROW_ELEMENTS, steps, tile) }
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
        // SAFETY: all-zero bits are numbers.
        let mut accumulators: [C; BLOCKS] = unsafe { core::mem::zeroed() };
        let mut sums = C::arbitrary();
        let own = consumer.index;
        // SAFETY: all warps of the warpgroup run this alike; a stage is full when it is read, and is given back when the products
        // that read it have completed. One consumer waits for its turn as often as the other gives it.
        unsafe {
            for _ in 0..steps {
                let stage = consumer.ring.wait();
                let rows = Self::stage(stage.index);
                let a = rows.offset(own * Self::CONSUMER_ROWS * ROW_BYTES);
                let a = MatrixDescriptor::rows_of_128_bytes(a.get());
                let b = MatrixDescriptor::rows_of_128_bytes(rows.offset(Self::A_BYTES).get());
                for (block, accumulators) in accumulators.iter_mut().enumerate() {
                    let a = a.advance(block as u32 * BLOCK_ROWS * ROW_BYTES);
                    Self::await_issue(own);
                    ptx::wgmma_fence();
                    A::wgmma::<false>(&mut sums, a, b);
                    for step in 1..STEPS {
                        let along_k = step * STEP_BYTES;
                        A::wgmma::<true>(&mut sums, a.advance(along_k), b.advance(along_k));
                    }
                    ptx::wgmma_commit_group();
                    Self::let_issue(1 - own);
                    ptx::wgmma_wait_group::<0>();
                    sums.hold();
                    if block + 1 == BLOCKS {
                        consumer.ring.release(stage);
                    }
                    accumulators.promote(&sums);
                    accumulators.hold();
                }
            }
        }
        accumulators
    }
}
