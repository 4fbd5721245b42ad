//! A warp's accumulators on their way to the output without a detour: an epilogue that is cheap enough to stand once for every
//! accumulator is applied in registers, and only whole tiles are stored.

use crate::epilogue::{ColumnState, Epilogue};
use crate::float::{Bf16, Element, F16, HalfElement};
use crate::layout::{
    CHUNK_BYTES, ChunkIndex, STRIP_COLUMNS, accumulator_coord, store_fragment_chunk, swizzled_chunk,
};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// Columns of an accumulator fragment.
const FRAGMENT_COLUMNS: u32 = 8;
/// Fragments of so many columns.
pub(super) const STRIP_FRAGMENTS: usize = (STRIP_COLUMNS / FRAGMENT_COLUMNS) as usize;
/// Rows of a warp's accumulators.
const ROWS: u32 = 16;
/// Bytes of a row of a strip of a 16-bit type.
const STRIP_BYTES: u32 = 2 * STRIP_COLUMNS;

/// What an epilogue knows of up to 256 columns, spread over the lanes of a warp: lane l has columns l, l + 32, …
pub struct ColumnCache<K>([K; 8]);

impl<K: ColumnState> ColumnCache<K> {
    /// What `epilogue` knows of the `columns` columns from `first` on, at most 256; it is a constant after inlining.
    ///
    /// # Safety
    ///
    /// As [`Epilogue::column`].
    #[inline(always)]
    pub unsafe fn load<E: Epilogue<Column = K>>(epilogue: &E, first: u32, columns: u32) -> Self {
        let lane = warp::lane_id();
        let mut cache = [K::default(); 8];
        for (i, state) in cache.iter_mut().enumerate() {
            let column = i as u32 * warp::SIZE;
            if column < columns {
                // SAFETY: the caller's promise.
                *state = unsafe { epilogue.column(first + column + lane) };
            }
        }
        Self(cache)
    }

    /// Applies `epilogue` to the accumulators of strip `strip`, of which `fragment` gives each fragment's.
    ///
    /// The result of a fragment is two neighbouring columns of the lane's row, and of the row eight further on.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its own `lane`. `scratch` is 2048 bytes of shared memory, aligned to eight, that
    /// nothing else uses; of two calls, all lanes of the warp have synchronised after the first.
    #[inline(always)]
    pub unsafe fn apply<E: Epilogue<Column = K>>(
        &self,
        epilogue: &E,
        scratch: SharedAddress,
        lane: u32,
        strip: usize,
        fragment: impl Fn(usize) -> [f32; 4],
    ) -> Strip {
        const { assert!(STRIP_COLUMNS * K::BYTES <= 2048, "the states fit the scratch") };
        // SAFETY: each lane puts its own states, and reads after all have.
        unsafe {
            self.0[2 * strip].put(scratch, lane);
            self.0[2 * strip + 1].put(scratch, lane + warp::SIZE);
            warp::sync_warp();
        }
        let mut results = [[[0.0; 2]; 2]; STRIP_FRAGMENTS];
        for (index, result) in results.iter_mut().enumerate() {
            let column = index as u32 * FRAGMENT_COLUMNS + accumulator_coord(lane, 0).column;
            // SAFETY: as above.
            let columns = unsafe { K::get_pair(scratch, column) };
            let c = fragment(index);
            *result = [epilogue.apply(columns, [c[0], c[1]]), epilogue.apply(columns, [c[2], c[3]])];
        }
        results
    }
}

/// A lane's part of a strip: of each fragment two neighbouring columns of its row, and of the row eight further on.
pub type Strip = [[[f32; 2]; 2]; STRIP_FRAGMENTS];

/// A type that a warp can store its accumulators as.
pub trait OutputElement: Element {
    /// Whether the rows of `output` are aligned as [`store_strip`](Self::store_strip) asks.
    fn is_strip_aligned(output: &Output<Self>) -> bool;

    /// Rounds and stores 16 rows × 64 columns of `output`, from (`row`, `column`) on. It synchronises the warp.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its own `lane`. The strip lies within the output, which is valid for writes and
    /// [aligned](Self::is_strip_aligned), and no other thread touches it; `column` is a multiple of 64. `staging` is 2048 bytes of
    /// shared memory, aligned to 1024, that nothing else uses; of two calls with the same staging, all lanes of the warp have
    /// synchronised since the first.
    unsafe fn store_strip(
        strip: Strip,
        lane: u32,
        staging: SharedAddress,
        output: &Output<Self>,
        row: u32,
        column: u32,
    );
}

impl OutputElement for f32 {
    #[inline(always)]
    fn is_strip_aligned(output: &Output<Self>) -> bool {
        output.is_aligned_to(8)
    }

    #[inline(always)]
    unsafe fn store_strip(
        strip: Strip,
        lane: u32,
        _: SharedAddress,
        output: &Output<Self>,
        row: u32,
        column: u32,
    ) {
        let at = accumulator_coord(lane, 0);
        let upper = output.at(row + at.row, column + at.column);
        let lower = output.at(row + at.row + ROWS / 2, column + at.column);
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        for (index, &[first, second]) in strip.iter().enumerate() {
            let along = index as u64 * FRAGMENT_COLUMNS as u64;
            // SAFETY: the caller's promise; a quad of lanes writes 32 bytes of each row.
            unsafe {
                Self::store_rounded_2(upper.offset(along), first);
                Self::store_rounded_2(lower.offset(along), second);
            }
        }
    }
}

/// By way of shared memory, so that each instruction writes 128 bytes of a row.
#[inline(always)]
unsafe fn store_half_strip<T: HalfElement>(
    strip: Strip,
    lane: u32,
    staging: SharedAddress,
    output: &Output<T>,
    row: u32,
    column: u32,
) {
    let place = |row, chunk| staging.offset(swizzled_chunk(STRIP_BYTES, row, chunk)).get();
    let own = store_fragment_chunk(lane);
    for pair in 0..STRIP_FRAGMENTS / 2 {
        let [[a, b], [c, d]] = [strip[2 * pair], strip[2 * pair + 1]];
        let chunk = 2 * pair as u32 + own.chunk;
        // SAFETY: all lanes of the warp are here; within the staging buffer.
        unsafe { ptx::stmatrix_x4(place(own.row, chunk), [T::pack(a), T::pack(b), T::pack(c), T::pack(d)]) };
    }
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::sync_warp() };
    const LANES_PER_ROW: u32 = STRIP_BYTES / CHUNK_BYTES;
    const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;
    let from = ChunkIndex { row: lane / LANES_PER_ROW, chunk: lane % LANES_PER_ROW };
    for pass in 0..ROWS / ROWS_PER_PASS {
        let strip_row = pass * ROWS_PER_PASS + from.row;
        let to = output.at(row + strip_row, column + from.chunk * (CHUNK_BYTES / T::BYTES));
        // SAFETY: written before the barrier; the caller's promise.
        unsafe { ptx::st_global_v4_b32(to.address(), ptx::ld_shared_v4_b32(place(strip_row, from.chunk))) };
    }
}

macro_rules! half_output {
    ($element:ident) => {
        impl OutputElement for $element {
            #[inline(always)]
            fn is_strip_aligned(output: &Output<Self>) -> bool {
                output.is_aligned_to(CHUNK_BYTES)
            }

            #[inline(always)]
            unsafe fn store_strip(
                strip: Strip,
                lane: u32,
                staging: SharedAddress,
                output: &Output<Self>,
                row: u32,
                column: u32,
            ) {
                // SAFETY: the caller's promise.
                unsafe { store_half_strip(strip, lane, staging, output, row, column) }
            }
        }
    };
}
half_output!(F16);
half_output!(Bf16);
