//! Products with few rows of A that a generated low-rank update of at most eight ranks is added to.
//!
//! One warp more than the product has sums `H = A V`, of 16 rows by eight ranks, from the same boxes of A and a ring of its own for Vᵀ. It
//! multiplies its sums by the codes and rounds them: so they have the layout of an operand B of `mma`. It hands them to the warps
//! that have summed the product, each of which adds `Uᵀ H'ᵀ` to its accumulators, with rows of U that it has read before.
//!
//! Every block computes the H of its rows; V comes from the level-2 cache.

use super::{FRAGMENT_ROWS, MADE, ROW_BYTES, STEP_BYTES, TransposedTile, WARP_COLUMNS, WARPGROUP_ROWS};
use crate::epilogue::{Epilogue, FusedLinear};
use crate::float::{Element, HalfElement};
use crate::gemm::MmaElement;
use crate::gemm::split_k::{COLUMNS, Share, SplitKTile};
use crate::gemm::wgmma::CHUNK;
use crate::launch::{Global, TensorMap};
use crate::layout::{ChunkIndex, TileIndex, a_fragment_chunk, accumulator_coord, swizzled_chunk};
use crate::pipeline::{FullStage, GenericProxy, Pipeline};
use crate::ptx::{self, Accumulators, Wgmma};
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// Boxes of a step.
const BOXES: u32 = 2;
/// Stages of the rings of A and of Vᵀ.
const A_STAGES: u32 = 4;
/// Stages of the ring of B.
const B_STAGES: u32 = 5;
/// Warps that sum the product.
const WARPS: u32 = 4;
/// Bytes of a box of Vᵀ.
const V_BYTES: u32 = CHUNK * ROW_BYTES;
/// Bytes of H' in shared memory: two words of each lane.
const H_BYTES: u32 = 2 * 4 * warp::SIZE;
/// The barrier at which H' is handed over.
const HANDED: u32 = 1;

/// 16 rows of A by 64 of B.
type Base = TransposedTile<[f32; 8], 1, BOXES, A_STAGES, B_STAGES, 1, 2>;

/// The rows of a lane's operand of `mma` that U is, packed: two ranks of each of two columns of U.
pub type URegisters = [u32; 2];

/// A product of 16 rows of A and 64 of B, and an update of at most eight ranks.
///
/// The maps of A and B are as [`SplitKTile`] asks, both K-major; that of Vᵀ is as B's, with boxes of [`CHUNK`] rows.
pub enum TransposedUpdate {}

impl TransposedUpdate {
    /// Rows of the output tile.
    pub const BLOCK_M: u32 = Base::BLOCK_M;
    /// Columns of the output tile.
    pub const BLOCK_N: u32 = Base::BLOCK_N;
    /// Threads of a block: the warps of the product, one that has the operands copied, and one that sums H.
    pub const THREADS: u32 = Base::THREADS + warp::SIZE;
    /// Blocks that a multiprocessor holds at a time.
    pub const MIN_BLOCKS: u32 = Base::MIN_BLOCKS;
    /// Where the ring of Vᵀ follows what the product has, at a multiple of what the swizzle repeats after.
    const V_AT: u32 = Base::SHARED_BYTES.next_multiple_of(1024);
    /// Where H' follows it.
    const H_AT: u32 = Self::V_AT + A_STAGES * BOXES * V_BYTES;
    /// Where the ring's barriers follow that.
    const V_BARRIERS_AT: u32 = Self::H_AT + H_BYTES;
    /// Dynamic shared memory of a block, in bytes.
    pub const SHARED_BYTES: u32 = Self::V_BARRIERS_AT + Pipeline::<A_STAGES, 1>::BYTES;
    /// Bytes of each row that are copied at a time.
    pub const ROW_BYTES: u32 = ROW_BYTES;
    /// Rows of A that are copied at a time.
    pub const A_BOX_ROWS: u32 = Base::A_BOX_ROWS;
    /// Rows of B that are copied at a time.
    pub const B_BOX_ROWS: u32 = Base::B_BOX_ROWS;

    #[inline(always)]
    fn ring_v() -> Pipeline<A_STAGES, 1> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::V_BARRIERS_AT))
    }

    /// Where the boxes of Vᵀ of a stage are.
    #[inline(always)]
    fn stage_v(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(Self::V_AT + index * BOXES * V_BYTES)
    }

    /// Where this lane's part of H' is.
    #[inline(always)]
    fn handed() -> SharedAddress {
        SharedAddress::dynamic().offset(Self::H_AT + warp::lane_id() * 8)
    }

    /// Prepares the block's shared memory, and fetches the maps.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else, in blocks of `THREADS` threads with `SHARED_BYTES` bytes of
    /// dynamic shared memory.
    #[inline(always)]
    pub unsafe fn start(a: &TensorMap, b: &TensorMap, vt: &TensorMap) {
        // SAFETY: all threads of the block are here. The first warp makes the barriers, and the others wait for it, the one that has the
        // operands copied in `load`: until then it finds out what to copy.
        unsafe {
            if Self::is_producer() {
                if warp::lane_id() == 0 {
                    ptx::prefetch_tensormap(b.address());
                    ptx::prefetch_tensormap(a.address());
                    ptx::prefetch_tensormap(vt.address());
                }
            } else if warp::warp_id() == 0 {
                if warp::lane_id() == 0 {
                    Base::ring_a().init(WARPS + 1);
                    Base::ring_b().init(WARPS);
                    Self::ring_v().init(1);
                }
                warp::sync_warp();
                ptx::bar_arrive_at(MADE, Self::THREADS);
            } else {
                ptx::bar_sync_at(MADE, Self::THREADS);
            }
        }
    }

    /// Whether this thread belongs to the warp that has the operands copied.
    #[inline(always)]
    #[must_use]
    pub fn is_producer() -> bool {
        warp::warp_id() == WARPS
    }

    /// Whether this thread belongs to the warp that sums H.
    #[inline(always)]
    #[must_use]
    pub fn sums_h() -> bool {
        warp::warp_id() > WARPS
    }

    /// Copies the rows of A, B and Vᵀ.
    ///
    /// # Safety
    ///
    /// All threads for which [`is_producer`](Self::is_producer) holds call it once, after [`start`](Self::start), and then end. The
    /// maps describe tensors of type `T` as the type says, valid for reads, and nothing writes them while the kernel runs.
    #[inline(always)]
    pub unsafe fn load<T: Element>(a: &TensorMap, b: &TensorMap, vt: &TensorMap, share: Share) {
        // SAFETY: all lanes of the warp are here, and the other warps have come to the barrier, or will, in `start`.
        unsafe { ptx::bar_sync_at(MADE, Self::THREADS) };
        if warp::lane_id() != 0 {
            return;
        }
        let (mut producer_a, mut producer_b) = (Base::ring_a().producer(), Base::ring_b().producer());
        let mut producer_v = Self::ring_v().producer();
        let rows_a = [share.tile.m * Self::BLOCK_M, Self::BLOCK_M, 0];
        let rows_b = [share.tile.n * Self::BLOCK_N, Self::BLOCK_N, 0];
        // As in a product alone.
        let ahead = share.steps.min(ptx::opaque(B_STAGES - A_STAGES));
        for index in 0..ahead {
            // SAFETY: the caller's promise.
            unsafe { Base::copy::<T, _>(&mut producer_b, b.address(), false, Base::stage_b, rows_b, index) };
        }
        for index in 0..share.steps {
            // SAFETY: the caller's promise.
            unsafe {
                if index + ahead < share.steps {
                    Base::copy::<T, _>(
                        &mut producer_b,
                        b.address(),
                        false,
                        Base::stage_b,
                        rows_b,
                        index + ahead,
                    );
                }
                Base::copy::<T, _>(&mut producer_a, a.address(), false, Base::stage_a, rows_a, index);
                Base::copy::<T, _>(&mut producer_v, vt.address(), false, Self::stage_v, [0, CHUNK, 0], index);
            }
        }
    }

    /// The first of the two neighbouring ranks that this lane has sums of.
    #[inline(always)]
    #[must_use]
    pub fn rank() -> u32 {
        accumulator_coord(warp::lane_id(), 0).column
    }

    /// Has the codes brought that [`sum_h`](Self::sum_h) needs: `put` puts those of a row and of this lane's [ranks](Self::rank), packed, into
    /// a word of shared memory, or begins to copy them there by `cp.async`; zeros where there are none.
    ///
    /// # Safety
    ///
    /// All threads for which [`sums_h`](Self::sums_h) holds call it once, before `sum_h`.
    #[inline(always)]
    pub unsafe fn put_codes(share: Share, put: impl Fn(u32, SharedAddress)) {
        let first = share.tile.m * Self::BLOCK_M + accumulator_coord(warp::lane_id(), 0).row;
        for half in 0..2 {
            put(first + half * FRAGMENT_ROWS, Self::handed().offset(4 * half));
        }
    }

    /// Sums H for the tile's rows, and hands it over, times the codes and their `scaling`.
    ///
    /// # Safety
    ///
    /// All threads for which [`sums_h`](Self::sums_h) holds call it once, after [`start`](Self::start) and
    /// [`put_codes`](Self::put_codes), and then end.
    #[inline(always)]
    pub unsafe fn sum_h<T: MmaElement + HalfElement>(share: Share, ranks: u32, scaling: [f32; 2]) {
        let lane = warp::lane_id();
        let own = accumulator_coord(lane, 0);
        let mut consumer_a = Base::ring_a().consumer::<GenericProxy>();
        let mut consumer_v = Self::ring_v().consumer::<GenericProxy>();
        // Two sums, so that a product need not wait for the one before it.
        let mut sums = [[0.0; 4]; 2];
        let of_a = a_fragment_chunk(lane);
        // Of Vᵀ, four chunks of eight rows at a time: two products' part.
        let of_v = ChunkIndex { row: lane % CHUNK, chunk: lane / CHUNK };
        let mut left = share.steps;
        while left > 0 {
            left -= 1;
            // SAFETY: all lanes of the warp run this loop alike; the stages are full, and those that are filled again are given back once
            // their loads have ended.
            unsafe {
                let (stage_a, stage_v) = (consumer_a.wait(), consumer_v.wait());
                for index in 0..BOXES {
                    let a = stage_a.address(Base::stage_a).offset(index * Self::BLOCK_M * ROW_BYTES);
                    let v = stage_v.address(Self::stage_v).offset(index * V_BYTES);
                    for pair in 0..ROW_BYTES / STEP_BYTES / 2 {
                        let chunk = 4 * pair;
                        let v = ptx::ldmatrix_x4(
                            v.offset(swizzled_chunk(ROW_BYTES, of_v.row, chunk + of_v.chunk)).get(),
                        );
                        for (half, sums) in sums.iter_mut().enumerate() {
                            let half = half as u32;
                            let at = swizzled_chunk(ROW_BYTES, of_a.row, chunk + 2 * half + of_a.chunk);
                            let a = T::prepare_a(ptx::ldmatrix_x4(a.offset(at).get()));
                            let v = [v[2 * half as usize], v[2 * half as usize + 1]];
                            T::multiply_add(sums, a, T::prepare_b(v));
                        }
                    }
                }
                // Of the others nothing is asked, and the fence takes time.
                if consumer_a.is_filled_again(left) {
                    let [stage_a, stage_v] = FullStage::end_loads_of_both([stage_a, stage_v], &mut sums);
                    consumer_a.release(stage_a);
                    consumer_v.release(stage_v);
                }
            }
        }
        ptx::cp_async_wait_all();
        // SAFETY: this lane has put them there, or had them copied, and has waited.
        let codes = unsafe { ptx::ld_shared_v2_f32(Self::handed().get()) };
        let codes = [T::unpack(codes[0].to_bits()), T::unpack(codes[1].to_bits())];
        let scaled = |half: usize, column: usize| {
            let index = 2 * half + column;
            // A sum of what is not there may be infinite times zero.
            let inside = own.column + (column as u32) < ranks;
            let factor = scaling[column] * codes[half][column];
            if inside { (sums[0][index] + sums[1][index]) * factor } else { 0.0 }
        };
        let packed = [T::pack([scaled(0, 0), scaled(0, 1)]), T::pack([scaled(1, 0), scaled(1, 1)])];
        // SAFETY: a place of this lane's own, which others read behind the barrier.
        unsafe {
            ptx::st_shared_v2_f32(Self::handed().get(), packed.map(f32::from_bits));
            ptx::bar_arrive_at(HANDED, (WARPS + 1) * warp::SIZE);
        }
    }

    /// The thread's part of U, rows of `columns` elements `stride` apart, of which there are `ranks`.
    ///
    /// # Safety
    ///
    /// U is valid for reads of these elements, and nothing writes them while the kernel runs.
    #[inline(always)]
    #[must_use]
    pub unsafe fn rows_of_u<T: HalfElement>(
        u: Global<T>,
        stride: u64,
        ranks: u32,
        columns: u32,
        tile: TileIndex,
    ) -> URegisters {
        let own = accumulator_coord(warp::lane_id(), 0);
        // The accumulators are transposed: the product's columns are their rows.
        let first = tile.n * Self::BLOCK_N + warp::warp_id() * WARP_COLUMNS + own.row;
        let element = |column: u32, rank: u32| {
            let from = u.offset(rank as u64 * stride + column as u64);
            // SAFETY: within U.
            unsafe { T::load_read_only_if(from, rank < ranks && column < columns).to_f32() }
        };
        // As they were: rounding what has been widened changes nothing.
        let pair = |column: u32| T::pack([element(column, own.column), element(column, own.column + 1)]);
        [pair(first), pair(first + FRAGMENT_ROWS)]
    }

    /// The product of the rows that are copied and the update of it, transposed.
    ///
    /// # Safety
    ///
    /// All other threads call it once, after [`start`](Self::start), with what [`rows_of_u`](Self::rows_of_u) returned.
    #[inline(always)]
    pub unsafe fn multiply<T: Wgmma<[f32; 8]> + MmaElement>(share: Share, u: URegisters) -> [f32; 8] {
        // SAFETY: the caller's promise; the warp that sums H arrives at the barrier.
        unsafe {
            let accumulators = Base::multiply_as::<T, false>(share);
            ptx::bar_sync_at(HANDED, (WARPS + 1) * warp::SIZE);
            let h = ptx::ld_shared_v2_f32(Self::handed().get()).map(f32::to_bits);
            let mut fragments = [accumulators.fragment(0), accumulators.fragment(1)];
            let u = T::prepare_a([u[0], u[1], 0, 0]);
            T::multiply_add(&mut fragments[0], u, T::prepare_b([h[0], 0]));
            T::multiply_add(&mut fragments[1], u, T::prepare_b([h[1], 0]));
            let [[a, b, c, d], [e, f, g, h]] = fragments;
            [a, b, c, d, e, f, g, h]
        }
    }

    /// This block's share of outputs of `rows` × `columns`, for operands whose rows have `row_bytes` bytes, fewer than 2³¹.
    #[inline(always)]
    #[must_use]
    pub fn share(rows: u32, columns: u32, row_bytes: u32) -> Share {
        Base::share(rows, columns, row_bytes)
    }

    /// As [`SplitKTile::columns`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> [E::Column; COLUMNS] {
        // SAFETY: the caller's promise.
        unsafe { Base::columns(epilogue, tile) }
    }

    /// As [`SplitKTile::exchange`], of what [`multiply`](Self::multiply) returned.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub unsafe fn exchange(accumulators: [f32; 8]) {
        // SAFETY: the caller's promise.
        unsafe { Base::exchange(accumulators) }
    }

    /// As [`SplitKTile::store_linear`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub unsafe fn store_linear<B: Element, O: Element>(
        epilogue: &FusedLinear<'_, B, O>,
        columns: [(f32, f32); COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Base::store_linear(epilogue, columns, output, tile) }
    }
}

const _: () = assert!(WARPGROUP_ROWS == WARPS * WARP_COLUMNS, "one warpgroup sums the product");
