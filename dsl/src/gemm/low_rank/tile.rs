//! What the warps of a block do with the ring's stages: the first product, its sums times the codes, and the second product.

use core::marker::PhantomData;

use super::chunks::Chunks;
use super::{LowRankElement, LowRankShape, Problem, RankCodes, RankColumn, Stage};
use crate::float::Element;
use crate::gemm::again::{Line, Seen, add_step, any_lane, is_not_finite, replace, sums_of_fragment};
use crate::layout::{PANEL_COLUMNS, a_fragment_chunk, accumulator_coord, staged_chunk, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{Operand, Output};
use crate::warp;

/// Rows of a warp's accumulators.
const ROWS: u32 = 16;
/// Bytes of a row of X in a stage, and of a row of Y, that a warp works on.
const ROW_BYTES: u32 = 128;
/// Bytes of a row that a k-step multiplies.
const STEP_BYTES: u32 = 32;
/// Bytes of a panel's rows of a k-step.
const STEP_PANEL_BYTES: u32 = 256;
/// Bytes of the buffer through which a warp's results go.
const STAGING_BYTES: u32 = ROWS * ROW_BYTES;
/// Bytes of a warp's accumulators of a fragment.
const FRAGMENT_BYTES: u32 = warp::SIZE * 16;
/// Passes of a warp over the rows of its buffer, eight lanes a row.
const PASSES: usize = 4;
/// Accumulator fragments whose codes are fetched at a time.
const GROUP: usize = 2;

/// Whether a lane's accumulators of a fragment are not finite, or those of another lane of the warp.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn any_of_fragment(&[a, b, c, d]: &[f32; 4]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { any_lane(is_not_finite(a) | is_not_finite(b) | is_not_finite(c) | is_not_finite(d)) }
}

/// How a block's warps share a tile, for up to 8 · `N` rank coordinates. There are `WARPS_M` groups of warps with 16
/// rows each. Each group has `WARPS_K` warps that share the first product's sums and the second one's columns. There is
/// a ring of `STAGES`, and room for `PANELS` stages' parts of V and U. The blocks of a cluster of `SPLIT` share the
/// sums of one tile, and each has columns of its own. `BLOCKS` blocks fit a multiprocessor.
pub struct LowRankTile<
    const N: usize,
    const WARPS_M: u32,
    const WARPS_K: u32,
    const STAGES: u32,
    const PANELS: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
>(PhantomData<()>);

impl<
    const N: usize,
    const WARPS_M: u32,
    const WARPS_K: u32,
    const STAGES: u32,
    const PANELS: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
> LowRankTile<N, WARPS_M, WARPS_K, STAGES, PANELS, SPLIT, BLOCKS>
{
    /// Bytes of the rows of X in a stage.
    const X_BYTES: u32 = WARPS_M * ROWS * WARPS_K * ROW_BYTES;
    /// Bytes of the rows of V, or of those of U, in a stage.
    const PANEL_BYTES: u32 = WARPS_K * Self::PART_BYTES;
    /// Bytes of those that a warp has: the rows of V for 128 bytes of a row of X, or 128 bytes of the rows of U.
    const PART_BYTES: u32 = ROW_BYTES * N as u32 * 8;
    /// Where the rings' buffers end.
    const STAGING_AT: u32 = {
        assert!(STAGES >= 3, "one stage is read while another is filled and a third is on its way");
        assert!(N == 1 || N.is_multiple_of(2), "fragments of B are loaded in pairs");
        assert!(PANELS >= STAGES, "every stage has room for its part of V or U");
        STAGES * Self::X_BYTES + PANELS * Self::PANEL_BYTES
    };
    /// Bytes of a tile's accumulators.
    const SUM_BYTES: u32 = WARPS_M * N as u32 * FRAGMENT_BYTES;
    /// Whether several warps share a sum.
    const SHARED_SUMS: bool = WARPS_K * SPLIT > 1;
    /// Whether each of them adds all parts up itself: one exchange less. Tiles take turns with two places for the parts, so that the next
    /// tile's need not wait for those who still read this one's.
    const ALL_ADD: bool = Self::SHARED_SUMS && SPLIT == 1 && N == 1;
    /// Where the parts of the sums follow, those of each of the warps that share them.
    const PARTS_AT: u32 = Self::STAGING_AT + WARPS_M * WARPS_K * STAGING_BYTES;
    /// Places for the parts.
    const PARTS: u32 = if Self::ALL_ADD { 2 } else { 1 };
    /// Where the parts of the blocks of the cluster follow.
    const BLOCK_PARTS_AT: u32 =
        Self::PARTS_AT + if Self::SHARED_SUMS { Self::PARTS * WARPS_K * Self::SUM_BYTES } else { 0 };
    /// Where the sums follow.
    const SUMS_AT: u32 = Self::BLOCK_PARTS_AT + if SPLIT > 1 { SPLIT * Self::SUM_BYTES } else { 0 };
    /// Where what is known of the rank coordinates' codes follows.
    const COLUMNS_AT: u32 = Self::SUMS_AT + if Self::SHARED_SUMS { Self::SUM_BYTES } else { 0 };
    /// Fragments whose sums a warp completes: that of number k among those that share them has fragments k, k + `WARPS_K`, …
    const OWNED: usize = N.div_ceil(WARPS_K as usize);
    /// The warp's group, and its number in it.
    #[inline(always)]
    fn place() -> (u32, u32) {
        (warp::warp_id() / WARPS_K, warp::warp_id() % WARPS_K)
    }

    /// The place of the lane's accumulators of a fragment, of a group of warps, among a tile's.
    #[inline(always)]
    fn of_fragment(group: u32, fragment: u32) -> u32 {
        (group * N as u32 + fragment) * FRAGMENT_BYTES + warp::lane_id() * 16
    }

    /// The place of the lane's codes of a fragment.
    #[inline(always)]
    fn of_codes<T: Element>(fragment: u32) -> u32 {
        let slot = (warp::warp_id() / WARPS_K * N as u32 + fragment) * warp::SIZE + warp::lane_id();
        SharedAddress::dynamic().offset(<Self as LowRankShape>::BASE_BYTES + slot * (4 * T::BYTES)).get()
    }

    /// The place of what is known of the codes of a rank coordinate.
    #[inline(always)]
    fn of_column(rank: u32) -> u32 {
        SharedAddress::dynamic().offset(Self::COLUMNS_AT + rank * RankColumn::BYTES).get()
    }

    /// The bits of the codes of the lane's accumulators of `fragment`, in a tile whose first row is `first_row`.
    #[inline(always)]
    unsafe fn codes_of<T: LowRankElement>(rows: u32, first_row: u32, fragment: u32) -> [u32; 4] {
        let (group, _) = Self::place();
        let at = accumulator_coord(warp::lane_id(), 0);
        let row = first_row + group * ROWS + at.row;
        let rank = fragment * 8 + at.column;
        let below = row + ROWS / 2;
        // SAFETY: the columns were written at the start, and the block has synchronised since; the caller's promise, for rows that
        // there are.
        unsafe {
            let left = RankColumn::get(Self::of_column(rank));
            let right = RankColumn::get(Self::of_column(rank + 1));
            [
                left.code_bits::<T>(row, row < rows),
                right.code_bits::<T>(row, row < rows),
                left.code_bits::<T>(below, below < rows),
                right.code_bits::<T>(below, below < rows),
            ]
        }
    }

    /// A lane's accumulators of `fragment` times their codes and scalings; zeros beyond `rank`.
    #[inline(always)]
    unsafe fn modulated(sums: [f32; 4], codes: [f32; 4], fragment: u32, rank: u32) -> [f32; 4] {
        let first = fragment * 8 + accumulator_coord(warp::lane_id(), 0).column;
        let scaling = |rank: u32| {
            // SAFETY: written at the start, and the block has synchronised since.
            unsafe { ptx::ld_shared_f32(Self::of_column(rank) + RankColumn::SCALING_AT) }
        };
        let scaling = [scaling(first), scaling(first + 1)];
        // Not a product with zero: beyond the rank, the sum of an infinite row of X is no number.
        let times = |i: usize| {
            if first + (i as u32 % 2) < rank { sums[i] * (scaling[i % 2] * codes[i]) } else { 0.0 }
        };
        [times(0), times(1), times(2), times(3)]
    }

    /// A lane's sums of `fragment`, of which those that are not finite are added up again.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the problem is as [`LowRankStream`](super::LowRankStream) asks, and the stage one of it.
    #[inline(always)]
    unsafe fn mended<T: LowRankElement>(
        mut sums: [f32; 4],
        fragment: u32,
        problem: &Problem<T>,
        stage: &Stage,
    ) -> [f32; 4] {
        // SAFETY: all lanes of the warp are here.
        if !T::IS_SPLIT || !unsafe { any_of_fragment(&sums) } {
            return sums;
        }
        let at = accumulator_coord(warp::lane_id(), 0);
        let (row, rank) = (stage.row + Self::place().0 * ROWS + at.row, fragment * 8 + at.column);
        let Problem { x, v, .. } = problem;
        // Beyond the last there are sums of zeros, so what is read for them is not used.
        let rows = [row, row + ROWS / 2].map(|row| Line::row(x, row.min(x.rows - 1)));
        let ranks = [rank, rank + 1].map(|rank| Line::column(v, rank.min(v.k - 1)));
        // SAFETY: the caller's promise.
        replace(&mut sums, unsafe { sums_of_fragment(rows, ranks, x.k) });
        sums
    }

    /// Adds those of the lane's stored results up again that are not finite, and multiplies them with the codes.
    ///
    /// # Safety
    ///
    /// As [`mended`](Self::mended); the results are stored, and `Self::HELD` does not hold.
    #[inline(always)]
    unsafe fn mend_stored<T: LowRankElement>(problem: &Problem<T>, stage: &Stage) {
        let mut fragment = ptx::opaque(0);
        while fragment < N as u32 {
            let at = Self::of_result::<T>(fragment);
            // SAFETY: this lane's place; the rest is the caller's promise.
            unsafe {
                let mut sums = ptx::ld_shared_v4_f32(at);
                if any_of_fragment(&sums) {
                    let is_due = sums.map(is_not_finite);
                    sums = Self::mended(sums, fragment, problem, stage);
                    // The results are where their codes have been.
                    let codes = Self::codes_of::<T>(problem.x.rows, stage.row, fragment);
                    let modulated = Self::modulated(sums, codes.map(T::code_of_bits), fragment, problem.v.k);
                    for i in 0..4 {
                        if is_due[i] {
                            sums[i] = modulated[i];
                        }
                    }
                    ptx::st_shared_v4_f32(at, sums);
                }
            }
            fragment = ptx::opaque(fragment + 1);
        }
    }

    /// Two rows of the first product's results, at rank coordinate `rank`: those of the lane's accumulators.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; `h` is what `modulate` left, and visible to the warp if it is stored.
    #[inline(always)]
    unsafe fn result<T: LowRankElement>(h: &[[f32; 4]; N], rank: u32) -> [f32; 2] {
        let lane = warp::lane_id();
        // The lane of those four that has the coordinate, and its neighbour, of these rows.
        let owner = lane / 4 * 4 + rank % 8 / 2;
        // SAFETY: the caller's promise.
        unsafe {
            if Self::is_stored::<T>() {
                let at = Self::of_result::<T>(rank / 8) - lane * 16 + owner * 16 + rank % 2 * 4;
                return [ptx::ld_shared_f32(at), ptx::ld_shared_f32(at + 8)];
            }
            let of = |i: usize| f32::from_bits(ptx::shfl_sync_idx(h[0][i].to_bits(), owner));
            let ([even, even_below], [odd, odd_below]) = ([of(0), of(2)], [of(1), of(3)]);
            if rank.is_multiple_of(2) { [even, even_below] } else { [odd, odd_below] }
        }
    }

    /// Adds those of a lane's sums of a fragment of the second product up again that are not finite. `column` is the first one's.
    ///
    /// # Safety
    ///
    /// As [`mended`](Self::mended); `h` is what `modulate` left.
    #[inline(always)]
    unsafe fn mend_product<T: LowRankElement>(
        sums: &mut [f32; 4],
        h: &[[f32; 4]; N],
        column: u32,
        u: &Operand<T>,
    ) {
        // SAFETY: all lanes of the warp are here.
        unsafe {
            if !any_of_fragment(sums) {
                return;
            }
            // What the other lanes have stored of the results.
            warp::sync_warp();
            // Beyond the last columns there are sums of zeros, so what is read for them is not used.
            let mut columns = [column, column + 1].map(|column| Line::column(u, column.min(u.k - 1)));
            let (mut again, mut rank) = ([0.0; 4], ptx::opaque(0));
            while rank < u.rows {
                let results = Self::result::<T>(h, rank);
                add_step(&mut again, results, [columns[0].take(), columns[1].take()]);
                rank = ptx::opaque(rank + 1);
            }
            replace(sums, again);
        }
    }

    /// The codes of fragment `fragment`, that are the warp's `owned`-th.
    #[inline(always)]
    unsafe fn codes_at<T: LowRankElement>(held: [u32; 4], fragment: u32) -> [f32; 4] {
        if <Self as LowRankShape>::HELD {
            return held.map(T::code_of_bits);
        }
        let at = Self::of_codes::<T>(fragment);
        // SAFETY: this lane wrote them.
        T::codes_of_words(unsafe {
            if T::BYTES == 2 {
                let [low, high] = ptx::ld_shared_v2_f32(at).map(f32::to_bits);
                [low, high, 0, 0]
            } else {
                ptx::ld_shared_v4_b32(at)
            }
        })
    }

    /// The sum of `parts` parts that start at `from`, `SUM_BYTES` apart, in their order.
    #[inline(always)]
    unsafe fn sum(from: u32, parts: u32) -> [f32; 4] {
        let mut sum = [0.0; 4];
        for part in 0..parts {
            // SAFETY: written, and the writers have synchronised with this thread.
            let of_part = unsafe { ptx::ld_shared_v4_f32(from + part * Self::SUM_BYTES) };
            for i in 0..4 {
                sum[i] += of_part[i];
            }
        }
        sum
    }

    /// Has the warps that share a tile's sums, and the blocks, complete them: each its own fragments, times their codes. All then
    /// have all.
    #[inline(always)]
    unsafe fn share<T: LowRankElement>(
        h: &mut [[f32; 4]; N],
        held: [u32; 4],
        problem: &Problem<T>,
        stage: &Stage,
    ) {
        let rank = problem.v.k;
        let (group, number) = Self::place();
        let base = SharedAddress::dynamic();
        let part = base.offset(Self::PARTS_AT + number * Self::SUM_BYTES).get();
        for (fragment, &sums) in h.iter().enumerate() {
            // SAFETY: this lane's place; all have read what the tile before left there.
            unsafe { ptx::st_shared_v4_f32(part + Self::of_fragment(group, fragment as u32), sums) }
        }
        let parts = base.offset(Self::PARTS_AT).get();
        let sums = base.offset(Self::SUMS_AT).get();
        // SAFETY: all threads of the block are here, and of the cluster. Sums are read by those who have synchronised with their
        // writers.
        unsafe {
            thread::sync_threads();
            if SPLIT > 1 {
                // All blocks have started, and so may be written to.
                ptx::barrier_cluster_wait();
                let own = base.offset(Self::BLOCK_PARTS_AT + ptx::cluster_ctarank() * Self::SUM_BYTES).get();
                let mut fragment = number;
                while fragment < N as u32 {
                    let at = Self::of_fragment(group, fragment);
                    let of_block = Self::sum(parts + at, WARPS_K);
                    for block in 0..SPLIT {
                        ptx::st_shared_cluster_v4_f32(ptx::mapa(own + at, block), of_block);
                    }
                    fragment += WARPS_K;
                }
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            }
            let (from, count) =
                if SPLIT > 1 { (base.offset(Self::BLOCK_PARTS_AT).get(), SPLIT) } else { (parts, WARPS_K) };
            let mut fragment = number;
            while fragment < N as u32 {
                let at = Self::of_fragment(group, fragment);
                let codes = Self::codes_at::<T>(held, fragment);
                let mut of_all = Self::sum(from + at, count);
                if T::IS_SPLIT {
                    of_all = Self::mended(of_all, fragment, problem, stage);
                }
                let modulated = Self::modulated(of_all, codes, fragment, rank);
                ptx::st_shared_v4_f32(sums + at, modulated);
                fragment += WARPS_K;
            }
            thread::sync_threads();
            if Self::is_stored::<T>() {
                return;
            }
            for (fragment, sum) in h.iter_mut().enumerate() {
                *sum = ptx::ld_shared_v4_f32(sums + Self::of_fragment(group, fragment as u32));
            }
        }
    }

    /// The pairs of panels that a warp multiplies at a time: all of its columns, or where that would be much code, one.
    #[inline(always)]
    const fn pairs_at_a_time<T: LowRankElement>() -> usize {
        if T::BYTES == 2 && N >= 16 { 1 } else { T::PANELS / 2 }
    }

    /// Whether the first product's results stay in shared memory: those of f32, whose k-steps are many and much code each.
    #[inline(always)]
    const fn is_stored<T: LowRankElement>() -> bool {
        T::BYTES == 4 && N > 1
    }

    /// The place of the lane's results of a fragment, if they are stored: among the sums, or in place of the codes.
    #[inline(always)]
    fn of_result<T: Element>(fragment: u32) -> u32 {
        if Self::SHARED_SUMS {
            SharedAddress::dynamic()
                .offset(Self::SUMS_AT + Self::of_fragment(Self::place().0, fragment))
                .get()
        } else {
            Self::of_codes::<T>(fragment)
        }
    }

    /// The products of `h` with the pairs of panels from pair `first` on of rows of U that start at `at`.
    #[inline(always)]
    unsafe fn products<T: LowRankElement>(h: &[[f32; 4]; N], at: u32, first: u32) -> [[f32; 4]; 8] {
        let stride = const { N as u32 * 8 * PANEL_COLUMNS } * T::BYTES;
        let mut sums = [[0.0; 4]; 8];
        // SAFETY: all lanes of the warp are here; the caller says that the rows have arrived.
        unsafe {
            if N == 1 {
                let a = T::prepare_a(T::fragment_a(h, 0));
                for four in 0..T::PANELS / 4 {
                    let b = T::load_four_of_eight_rows(at, 4 * four as u32, stride);
                    for i in 0..4 {
                        T::multiply_add(&mut sums[4 * four + i], a, T::prepare_b(b[i]));
                    }
                }
            } else {
                let steps = N * 8 / T::STEP as usize;
                let steps = if Self::is_stored::<T>() { ptx::opaque(steps as u32) as usize } else { steps };
                for step in 0..steps {
                    let a = if Self::is_stored::<T>() {
                        let h = ptx::ld_shared_v4_f32(Self::of_result::<T>(step as u32));
                        T::fragment_a(&[h], 0)
                    } else {
                        T::fragment_a(h, step)
                    };
                    let a = T::prepare_a(a);
                    let at = at + step as u32 * STEP_PANEL_BYTES;
                    for pair in 0..Self::pairs_at_a_time::<T>() {
                        let b = T::load_pair(at, 2 * (first + pair as u32), stride);
                        T::multiply_add(&mut sums[2 * pair], a, T::prepare_b(b[0]));
                        T::multiply_add(&mut sums[2 * pair + 1], a, T::prepare_b(b[1]));
                    }
                }
            }
        }
        sums
    }
}

impl<
    const N: usize,
    const WARPS_M: u32,
    const WARPS_K: u32,
    const STAGES: u32,
    const PANELS: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
> LowRankShape for LowRankTile<N, WARPS_M, WARPS_K, STAGES, PANELS, SPLIT, BLOCKS>
{
    const BLOCK_M: u32 = WARPS_M * ROWS;
    const MAX_RANK: u32 = N as u32 * 8;
    const THREADS: u32 = WARPS_M * WARPS_K * warp::SIZE;
    const MIN_BLOCKS: u32 = BLOCKS;
    const WARPS_K: u32 = WARPS_K;
    const IS_PRIVATE: bool = WARPS_M == 1;
    const SPLIT: u32 = SPLIT;
    const STAGES: u32 = STAGES;
    const PANELS: u32 = PANELS;
    const STAGE_ROW_BYTES: u32 = WARPS_K * ROW_BYTES;
    const CODES: u32 = if Self::HELD { 0 } else { Self::BLOCK_M * Self::MAX_RANK };
    const BASE_BYTES: u32 = Self::COLUMNS_AT + Self::MAX_RANK * RankColumn::BYTES;
    const HELD: bool = Self::OWNED == 1;

    type Accumulators = [[f32; 4]; N];
    type Codes = [u32; 4];

    #[inline(always)]
    unsafe fn start<C: RankCodes>(codes: &C) {
        let thread = thread::thread_idx_x();
        let mut rank = thread;
        while rank < Self::MAX_RANK {
            let column = codes.of_rank(rank);
            // SAFETY: one thread writes each place; those who read it synchronise before.
            unsafe { column.put(Self::of_column(rank)) }
            rank += Self::THREADS;
        }
        // SAFETY: all threads of the block are here.
        unsafe { thread::sync_threads() }
        if SPLIT > 1 {
            // SAFETY: all threads of the block are here, and wait in `share`.
            unsafe { ptx::barrier_cluster_arrive() }
        }
    }

    #[inline(always)]
    fn zero() -> Self::Accumulators {
        // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a variable index and so
        // live in local memory.)
        unsafe { core::mem::zeroed() }
    }

    #[inline(always)]
    fn no_codes() -> Self::Codes {
        [0; 4]
    }

    #[inline(always)]
    unsafe fn fetch<T: LowRankElement>(rows: u32, row: u32) -> Self::Codes {
        let (_, number) = Self::place();
        if Self::HELD {
            let fragment = if Self::ALL_ADD { 0 } else { number };
            if fragment >= N as u32 {
                return [0; 4];
            }
            // SAFETY: the caller's promise.
            let held = unsafe { Self::codes_of::<T>(rows, row, fragment) };
            // Loaded here, not where they are used.
            return [ptx::opaque(held[0]), ptx::opaque(held[1]), ptx::opaque(held[2]), ptx::opaque(held[3])];
        }
        let mut owned = 0;
        while owned < ptx::opaque(Self::OWNED as u32) {
            let mut words = [[0; 4]; GROUP];
            for (i, words) in words.iter_mut().enumerate() {
                let fragment = number + (owned + i as u32) * WARPS_K;
                // SAFETY: the caller's promise.
                *words = T::code_words(unsafe { Self::codes_of::<T>(rows, row, fragment) });
            }
            for (i, &[a, b, c, d]) in words.iter().enumerate() {
                let at = Self::of_codes::<T>(number + (owned + i as u32) * WARPS_K);
                // SAFETY: this lane's place.
                unsafe {
                    if T::BYTES == 2 {
                        ptx::st_shared_v2_f32(at, [f32::from_bits(a), f32::from_bits(b)]);
                    } else {
                        ptx::st_shared_v4_b32(at, [a, b, c, d]);
                    }
                }
            }
            owned += GROUP as u32;
        }
        [0; 4]
    }

    #[inline(always)]
    unsafe fn project<T: LowRankElement>(h: &mut Self::Accumulators, stage: &Stage) {
        let (group, number) = Self::place();
        let chunk = a_fragment_chunk(warp::lane_id());
        let rows = stage.x.offset((number * Self::BLOCK_M + group * ROWS) * ROW_BYTES);
        let own = swizzled_chunk(ROW_BYTES, chunk.row, chunk.chunk);
        let panels = stage.panels.offset(number * Self::PART_BYTES).get();
        let stride = const { ROW_BYTES * PANEL_COLUMNS };
        let steps = ROW_BYTES / STEP_BYTES;
        // Not unrolled where that would be much code.
        let steps = if N as u32 * T::BYTES >= 32 { ptx::opaque(steps) } else { steps };
        for step in 0..steps {
            let at = panels + step * STEP_PANEL_BYTES;
            // SAFETY: all lanes of the warp are here; the stage has arrived.
            unsafe {
                // The swizzle makes a k-step an exclusive or: see `layout`.
                let a = T::prepare_a(ptx::ldmatrix_x4(rows.get() + (own ^ (step * STEP_BYTES))));
                if N == 1 {
                    T::multiply_add(&mut h[0], a, T::prepare_b(T::load_first(at)));
                }
                for pair in 0..N / 2 {
                    let b = T::load_pair(at, 2 * pair as u32, stride);
                    T::multiply_add(&mut h[2 * pair], a, T::prepare_b(b[0]));
                    T::multiply_add(&mut h[2 * pair + 1], a, T::prepare_b(b[1]));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn modulate<T: LowRankElement>(
        h: &mut Self::Accumulators,
        codes: Self::Codes,
        problem: &Problem<T>,
        stage: &Stage,
    ) {
        let rank = problem.v.k;
        if Self::ALL_ADD {
            let (group, number) = Self::place();
            let parts =
                Self::PARTS_AT + stage.odd * (WARPS_K * Self::SUM_BYTES) + Self::of_fragment(group, 0);
            let parts = SharedAddress::dynamic().offset(parts).get();
            // SAFETY: this lane's place. All have read what the last tile but one left there: they have since come to the last one's
            // barrier.
            unsafe {
                ptx::st_shared_v4_f32(parts + number * Self::SUM_BYTES, h[0]);
                thread::sync_threads();
                let codes = Self::codes_at::<T>(codes, 0);
                let mut of_all = Self::sum(parts, WARPS_K);
                if T::IS_SPLIT {
                    of_all = Self::mended(of_all, 0, problem, stage);
                }
                h[0] = Self::modulated(of_all, codes, 0, rank);
            }
            return;
        }
        if Self::SHARED_SUMS {
            // SAFETY: the caller's promise.
            return unsafe { Self::share::<T>(h, codes, problem, stage) };
        }
        let mut seen = Seen::nothing();
        for (fragment, sums) in h.iter_mut().enumerate() {
            let fragment = fragment as u32;
            // SAFETY: the caller's promise.
            unsafe {
                // Those that are stored are looked at afterwards, in a loop.
                if !Self::is_stored::<T>() {
                    *sums = Self::mended(*sums, fragment, problem, stage);
                }
                let codes = Self::codes_at::<T>(codes, fragment);
                *sums = Self::modulated(*sums, codes, fragment, rank);
                if Self::is_stored::<T>() {
                    ptx::st_shared_v4_f32(Self::of_result::<T>(fragment), *sums);
                }
            }
            seen.fragment(*sums);
        }
        // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
        unsafe {
            if T::IS_SPLIT && Self::is_stored::<T>() && seen.has_infinities() {
                Self::mend_stored(problem, stage);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<T: LowRankElement>(
        h: &Self::Accumulators,
        problem: &Problem<T>,
        y: &Output<T>,
        add: bool,
        stage: &Stage,
    ) {
        let (group, number) = Self::place();
        let column = stage.column + number * (ROW_BYTES / T::BYTES);
        if column >= stage.columns {
            return;
        }
        let lane = warp::lane_id();
        let (row, chunk) = (lane / 8, lane % 8);
        let buffer =
            SharedAddress::dynamic().offset(Self::STAGING_AT + warp::warp_id() * STAGING_BYTES).get();
        let place = |pass: u32| buffer + staged_chunk(T::BYTES, row + pass * 4, chunk);
        let chunks = Chunks {
            y: *y,
            row: stage.row + group * ROWS + row,
            column: column + chunk * (16 / T::BYTES),
            columns: stage.columns,
            aligned: y.is_aligned_to(16),
        };
        let mut before = [[0; 4]; PASSES];
        if add {
            for (pass, words) in before.iter_mut().enumerate() {
                // SAFETY: the caller's promise; this lane stores the chunk later.
                *words = unsafe { chunks.load_whole(pass as u32 * 4) };
            }
        }

        let own = accumulator_coord(lane, 0).row;
        let panels = stage.panels.get() + number * Self::PART_BYTES;
        let pairs = const { T::PANELS as u32 / 2 };
        let at_a_time = Self::pairs_at_a_time::<T>();
        let pairs = if at_a_time == 1 { ptx::opaque(pairs) } else { pairs };
        let mut pair = 0;
        while pair < pairs {
            // SAFETY: all lanes of the warp are here; the stage has arrived. What the buffer holds of Y lies where the lane's sums do.
            unsafe {
                let mut sums = Self::products::<T>(h, panels, pair);
                if T::IS_SPLIT {
                    let mut seen = Seen::nothing();
                    for sums in sums.iter().take(2 * at_a_time) {
                        seen.fragment(*sums);
                    }
                    if seen.has_infinities() {
                        let first = column + 2 * pair * PANEL_COLUMNS + accumulator_coord(lane, 0).column;
                        for (i, sums) in sums.iter_mut().enumerate().take(2 * at_a_time) {
                            Self::mend_product(sums, h, first + i as u32 * PANEL_COLUMNS, &problem.u);
                        }
                    }
                }
                if add && pair == 0 {
                    for (pass, &words) in before.iter().enumerate() {
                        ptx::st_shared_v4_b32(place(pass as u32), words);
                    }
                    if !chunks.are_whole() {
                        for pass in 0..ptx::opaque(PASSES as u32) {
                            ptx::st_shared_v4_b32(place(pass), chunks.load_part(pass * 4));
                        }
                    }
                    warp::sync_warp();
                }
                if add {
                    for (i, sums) in sums.iter_mut().enumerate().take(2 * at_a_time) {
                        let fragment = 2 * pair + i as u32;
                        let [a, b] = T::get(buffer, lane, own, fragment);
                        let [c, d] = T::get(buffer, lane, own + ROWS / 2, fragment);
                        *sums = [sums[0] + a, sums[1] + b, sums[2] + c, sums[3] + d];
                    }
                }
                for (i, &[a, b, c, d]) in sums.iter().enumerate().take(2 * at_a_time) {
                    let fragment = 2 * pair + i as u32;
                    T::put(buffer, lane, own, fragment, [a, b]);
                    T::put(buffer, lane, own + ROWS / 2, fragment, [c, d]);
                }
            }
            pair += at_a_time as u32;
        }
        // SAFETY: all lanes of the warp are here; each stores chunks of its own.
        unsafe {
            warp::sync_warp();
            if chunks.are_whole() {
                for pass in 0..PASSES as u32 {
                    chunks.store_whole(pass * 4, ptx::ld_shared_v4_b32(place(pass)));
                }
            } else {
                for pass in 0..ptx::opaque(PASSES as u32) {
                    chunks.store_part(pass * 4, ptx::ld_shared_v4_b32(place(pass)));
                }
            }
            warp::sync_warp();
        }
    }
}
