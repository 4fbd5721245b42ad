//! The rows of U: how they come to a consumer, and their product with a tile's own chunk.

use super::{PANEL_BYTES, RESIDENT_PARTS, UpdateAccumulators, UpdateConsumer, WgmmaUpdateTile};
use crate::barrier::Barrier;
use crate::gemm::wgmma::update::{PART, U_BOX_COLUMNS};
use crate::gemm::wgmma::{Schedule, WARPGROUP};
use crate::launch::TensorMap;
use crate::layout::TileIndex;
use crate::ptx::{self, Accumulators, MatrixDescriptor, WgmmaUpdate};
use crate::shared::SharedAddress;
use crate::thread;

impl<
    C: Accumulators,
    const BLOCKS: usize,
    S: Schedule,
    const STAGES: u32,
    const CLUSTER: u32,
    const IS_OWN: bool,
> WgmmaUpdateTile<C, BLOCKS, S, STAGES, CLUSTER, IS_OWN>
{
    /// Waits for all warps of consumer `index`.
    ///
    /// # Safety
    ///
    /// All its threads call it.
    #[inline(always)]
    pub(super) unsafe fn sync_consumer(index: u32) {
        // SAFETY: the caller's promise; barrier 0 is the block's.
        unsafe { ptx::bar_sync_at(1 + index, WARPGROUP) }
    }

    /// Begins to copy the parts of U from part `first` on, of `parts` parts, as many as there is room for.
    ///
    /// # Safety
    ///
    /// As [`UpdateTile::fetch`](super::UpdateTile::fetch); all threads of the consumer call it, and none uses its place before they have arrived.
    #[inline(always)]
    pub(super) unsafe fn copy_parts(index: u32, u: &TensorMap, first: u32, parts: u32, tile: TileIndex) {
        // What the threads have staged here comes before what the copy engine writes.
        ptx::fence_proxy_async_shared();
        // SAFETY: the caller's promise; the parts' bytes are those announced.
        unsafe {
            Self::sync_consumer(index);
            if thread::thread_idx_x().is_multiple_of(WARPGROUP) {
                let (arrival, area) = (Self::arrival_of(index), Self::area(index));
                let count = (parts - first).min(RESIDENT_PARTS);
                arrival.arrive_and_expect(count * Self::PART_BYTES);
                let mut part = 0;
                while part < count {
                    Self::copy_part(arrival, u, first + part, area.offset(part * Self::PART_BYTES), tile);
                    part += 1;
                }
            }
        }
    }

    /// Begins to copy part `part` of U to `to`, which is announced at `arrival`.
    ///
    /// # Safety
    ///
    /// As [`UpdateTile::fetch`](super::UpdateTile::fetch); one thread of the consumer calls it, and nothing uses the place before the part has arrived.
    #[inline(always)]
    pub(super) unsafe fn copy_part(
        arrival: Barrier,
        u: &TensorMap,
        part: u32,
        to: SharedAddress,
        tile: TileIndex,
    ) {
        for panel in 0..Self::PANELS {
            let column = tile.n * C::COLUMNS + panel * U_BOX_COLUMNS;
            let (at, to) = ([column as i32, (part * PART) as i32, 0], to.offset(panel * PANEL_BYTES));
            // SAFETY: the caller's promise.
            unsafe { ptx::tma_load_3d(to.get(), u.address(), at, arrival.address()) };
        }
    }

    /// Adds the products of the tile's own chunk `own` and the only part of U.
    ///
    /// # Safety
    ///
    /// As [`UpdateTile::update`](super::UpdateTile::update).
    #[inline(always)]
    pub(super) unsafe fn update_own<T: WgmmaUpdate<C>>(
        consumer: &mut UpdateConsumer<STAGES, CLUSTER>,
        accumulators: &mut UpdateAccumulators<C, BLOCKS>,
        own: [[u32; 2]; BLOCKS],
    ) {
        let index = consumer.tiles.index;
        let b = Self::area(index).offset(Self::ONLY_PART_AT);
        let b = MatrixDescriptor::panels_of_128_bytes(b.get(), PANEL_BYTES);
        let mut registers = own.map(|[upper, lower]| [upper, lower, 0, 0]);
        // SAFETY: the caller's promise; U has arrived.
        unsafe {
            Self::arrival_of(index).wait(consumer.parity);
            consumer.parity ^= 1;
            registers.iter_mut().for_each(ptx::hold_registers);
            ptx::wgmma_fence();
            for (outputs, a) in accumulators.outputs.iter_mut().zip(&registers) {
                T::wgmma_registers(outputs, a, b);
            }
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group::<0>();
            accumulators.outputs.iter_mut().for_each(Accumulators::hold);
        }
    }
}
