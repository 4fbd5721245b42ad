//! A warpgroup's accumulators on their way to the output, warp by warp: each warp has 16 of 64 rows.
//!
//! There are two ways. [`store_boxes`] applies the epilogue in registers, rounds into shared memory, and leaves the rest to the copy
//! engine: for an epilogue that is cheap enough to stand once for every two accumulators, and rows that are aligned.
//! [`store_rows`] stages f32 and goes along the rows in a loop: for every epilogue and any alignment.

use crate::epilogue::{ColumnState, Epilogue};
use crate::float::{Bf16, Element, F16, HalfElement};
use crate::launch::TensorMap;
use crate::layout::{
    Coord, FRAGMENT_COLUMNS, FRAGMENT_ROWS, STRIP_COLUMNS, Swizzle, accumulator_coord, store_fragment_chunk,
    swizzled_chunk, swizzled_staging_word,
};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// Rows of a warp's accumulators of one block.
const ROWS: u32 = FRAGMENT_ROWS;
/// Rows of a block of accumulators, which four warps share.
const BLOCK_ROWS: u32 = 64;
/// Bytes of a row of a box.
const BOX_ROW_BYTES: u32 = 128;
/// Bytes of a box of the output: 16 rows of 128 bytes.
pub const BOX_BYTES: u32 = ROWS * BOX_ROW_BYTES;
/// Fragments of a strip.
const STRIP_FRAGMENTS: usize = (STRIP_COLUMNS / FRAGMENT_COLUMNS) as usize;
/// Columns that a lane transforms and stores at a time, of what is staged.
const COLUMNS: usize = 4;
/// Columns that the lanes of a warp have one each of.
const WARP_COLUMNS: u32 = warp::SIZE;
/// The most chunks of as many columns, by 16 rows, that a warp stores in a loop.
const MAX_CHUNKS: u32 = 12;
/// Fragments of as many columns.
const CHUNK_FRAGMENTS: usize = (WARP_COLUMNS / FRAGMENT_COLUMNS) as usize;

/// Boxes of a warp's staging buffer in which one is filled while the other is stored.
pub const STAGED_BOXES: u32 = 2;
/// Bytes of such a buffer, which are as many as a strip of f32 takes.
pub const STAGING_BYTES: u32 = {
    assert!(STAGED_BOXES * BOX_BYTES == ROWS * STRIP_COLUMNS * 4);
    STAGED_BOXES * BOX_BYTES
};

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
            let column = i as u32 * WARP_COLUMNS;
            if column < columns {
                // SAFETY: the caller's promise.
                *state = unsafe { epilogue.column(first + column + lane) };
            }
        }
        Self(cache)
    }
}

/// Where a warp's accumulators belong.
#[derive(Clone, Copy)]
pub struct WarpRows {
    /// The thread's lane.
    pub lane: u32,
    /// The matrix.
    pub batch: u32,
    /// The warp's first row.
    pub row: u32,
    /// The first column.
    pub column: u32,
    /// Columns, from the accumulators' first on: all, or of accumulators of 64 rows the first half.
    pub columns: u32,
    /// The warp's staging buffer: as many boxes of shared memory, aligned to 1024.
    pub staging: SharedAddress,
    /// Boxes of the staging buffer: one or [`STAGED_BOXES`]; a constant after inlining. [`store_rows`] takes the latter.
    pub staged_boxes: u32,
}

/// A lane's part of two neighbouring fragments: of each, two neighbouring columns of its row, and of the row eight further on.
pub type FragmentPair = [[[f32; 2]; 2]; 2];

/// A type that a warp can store its accumulators as.
pub trait OutputElement: Element {
    /// Columns of a box of the output: 128 bytes.
    const BOX_COLUMNS: u32 = BOX_ROW_BYTES / Self::BYTES;

    /// Rounds fragments 2 · `index` and 2 · `index` + 1 of a box and puts them into shared memory, where the box is in the 128-byte
    /// swizzle.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its own `lane`; `to` is the box: 2048 bytes of shared memory, aligned to 1024.
    /// Nothing else uses the fragments' places.
    unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress);
}

impl OutputElement for f32 {
    #[inline(always)]
    unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress) {
        let at = accumulator_coord(lane, 0);
        let place = |row: u32, column: u32| {
            to.offset(Swizzle::Bytes128.apply(row * BOX_ROW_BYTES + 4 * column)).get()
        };
        for (i, &[upper, lower]) in pair.iter().enumerate() {
            let column = (2 * index + i as u32) * FRAGMENT_COLUMNS + at.column;
            // SAFETY: within the box.
            unsafe {
                ptx::st_shared_v2_f32(place(at.row, column), upper);
                ptx::st_shared_v2_f32(place(at.row + ROWS / 2, column), lower);
            }
        }
    }
}

macro_rules! half_output {
    ($element:ident) => {
        impl OutputElement for $element {
            #[inline(always)]
            unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress) {
                let own = store_fragment_chunk(lane);
                let [[a, b], [c, d]] = pair;
                let place = to.offset(swizzled_chunk(BOX_ROW_BYTES, own.row, 2 * index + own.chunk)).get();
                let rows = [Self::pack(a), Self::pack(b), Self::pack(c), Self::pack(d)];
                // SAFETY: all lanes of the warp are here; within the box.
                unsafe { ptx::stmatrix_x4(place, rows) };
            }
        }
    };
}
half_output!(F16);
half_output!(Bf16);

/// Applies `epilogue` to a warp's accumulators of several times 64 rows in their registers, rounds them, and has the copy engine
/// store them. If `UNROLLED`, the epilogue's code stands once for every accumulator: for the cheapest. Else it stands once for 16
/// accumulators of a lane, which are moved to where it is.
///
/// The stores run on when this returns: before the staging buffer is used for anything else, or the block ends,
/// [`wait_for_stores`].
///
/// # Safety
///
/// All lanes of the warp call it, with the same accumulators' owner, `at` and `output`, a map of rank 3 (columns, rows, matrices) with
/// boxes of 128 bytes × 16 rows × 1 in the 128-byte swizzle, valid for writes; no other warp has these places. Block i of the
/// accumulators belongs 64 · i rows further down. `columns` is what `epilogue` knows of the columns from `at.column` on.
#[inline(always)]
pub unsafe fn store_boxes<C, O, E, const BLOCKS: usize, const UNROLLED: bool>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    columns: &ColumnCache<E::Column>,
    output: &TensorMap,
    at: WarpRows,
) where
    C: Accumulators,
    O: OutputElement,
    E: Epilogue,
{
    // A chunk is as many columns as a warp has lanes, each of which knows one of them.
    let count = const {
        assert!(BLOCKS as u32 * C::COLUMNS / WARP_COLUMNS <= MAX_CHUNKS, "chunks that can be told apart");
        BLOCKS as u32 * C::COLUMNS / WARP_COLUMNS
    };
    let first = at.row + accumulator_coord(at.lane, 0).row;
    // All before the first is used: what the epilogue reads has a long way.
    // SAFETY: the caller's promise.
    let mut rows = [unsafe { rows_of(epilogue, first) }; BLOCKS];
    for (block, rows) in rows.iter_mut().enumerate().skip(1) {
        // SAFETY: the caller's promise.
        *rows = unsafe { rows_of(epilogue, first + block as u32 * BLOCK_ROWS) };
    }
    let may_be_half = const { BLOCKS == 1 && C::Half::COLUMNS < C::COLUMNS };
    let owned = if may_be_half { at.columns / WARP_COLUMNS } else { count };
    // The staging buffer's boxes take turns, so after an odd number of them the next tile begins with the one used last.
    if !(count / (O::BOX_COLUMNS / WARP_COLUMNS)).is_multiple_of(at.staged_boxes) {
        // SAFETY: all lanes of the warp are here.
        unsafe { wait_for_stores() };
    }
    if UNROLLED {
        for index in 0..count {
            // All of it, or the first half.
            if !may_be_half || index < count / 2 || owned == count {
                let (mut values, state) = chunk(accumulators, columns, index);
                let rows = rows[(index / const { C::COLUMNS / WARP_COLUMNS }) as usize];
                // SAFETY: the caller's promise.
                unsafe { store_chunk::<C, O, E>(&mut values, rows, state, epilogue, output, at, index) };
            }
        }
    } else {
        // Opaque, so that the loop stays one.
        let mut index = ptx::opaque(0);
        while index < owned {
            // Registers have no index: each chunk has its own moves. A branch for each would be taken apart into selections.
            let (mut values, state) = match index {
                0 => chunk(accumulators, columns, 0),
                1 => chunk(accumulators, columns, 1),
                2 => chunk(accumulators, columns, 2),
                3 => chunk(accumulators, columns, 3),
                4 if 4 < count => chunk(accumulators, columns, 4),
                5 if 4 < count => chunk(accumulators, columns, 5),
                6 if 6 < count => chunk(accumulators, columns, 6),
                7 if 6 < count => chunk(accumulators, columns, 7),
                8 if 8 < count => chunk(accumulators, columns, 8),
                9 if 8 < count => chunk(accumulators, columns, 9),
                10 if 8 < count => chunk(accumulators, columns, 10),
                _ => chunk(accumulators, columns, count - 1),
            };
            let mut of_chunk = rows[0];
            for (block, &rows) in rows.iter().enumerate().skip(1) {
                if index / const { C::COLUMNS / WARP_COLUMNS } == block as u32 {
                    of_chunk = rows;
                }
            }
            // SAFETY: the caller's promise.
            unsafe { store_chunk::<C, O, E>(&mut values, of_chunk, state, epilogue, output, at, index) };
            index += 1;
        }
    }
}

/// The accumulators that a lane has in chunk `index`, and what it knows of a column there.
///
/// A function and not a closure: one that several kernels call is not always inlined, and accumulators cannot be passed.
#[inline(always)]
fn chunk<C: Accumulators, K: ColumnState, const BLOCKS: usize>(
    accumulators: &[C; BLOCKS],
    columns: &ColumnCache<K>,
    index: u32,
) -> ([[f32; 4]; CHUNK_FRAGMENTS], K) {
    let chunks = const { C::COLUMNS / WARP_COLUMNS };
    let (block, of_block) = (index / chunks % BLOCKS as u32, index % chunks);
    let mut values = [[0.0; 4]; CHUNK_FRAGMENTS];
    for (i, values) in values.iter_mut().enumerate() {
        *values = accumulators[block as usize].fragment(of_block as usize * CHUNK_FRAGMENTS + i);
    }
    (values, columns.0[of_block as usize])
}

/// What `epilogue` knows of a lane's two rows of a block of accumulators, of which the first is `row`.
///
/// # Safety
///
/// As [`Epilogue::row`].
#[inline(always)]
unsafe fn rows_of<E: Epilogue>(epilogue: &E, row: u32) -> [E::Row; 2] {
    // SAFETY: the caller's promise.
    unsafe { [epilogue.row(row), epilogue.row(row + ROWS / 2)] }
}

/// The part of [`store_boxes`] for 16 accumulators of each lane, in 32 columns; `rows` is what the epilogue knows of the lane's two
/// rows, `state` what it knows of the one of these columns that has the lane's number. `index` counts the chunks of the tile, whose boxes have one or two.
///
/// # Safety
///
/// As [`store_boxes`], for each chunk in order, with `at` as the tile's place.
#[inline(always)]
unsafe fn store_chunk<C: Accumulators, O: OutputElement, E: Epilogue>(
    values: &mut [[f32; 4]; CHUNK_FRAGMENTS],
    rows: [E::Row; 2],
    state: E::Column,
    epilogue: &E,
    output: &TensorMap,
    at: WarpRows,
    index: u32,
) {
    let (chunks, parts) = const { (C::COLUMNS / WARP_COLUMNS, O::BOX_COLUMNS / WARP_COLUMNS) };
    let part = index % parts;
    let at = WarpRows {
        row: at.row + index / chunks * BLOCK_ROWS,
        column: at.column + index % chunks * WARP_COLUMNS,
        ..at
    };
    let own = accumulator_coord(at.lane, 0);
    let buffer = at.staging.offset(index / parts % at.staged_boxes * BOX_BYTES);
    let place = Coord { row: at.row + own.row, column: at.column + own.column };
    // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
    unsafe {
        let mut states = [[E::Column::default(); 2]; CHUNK_FRAGMENTS];
        for (i, states) in states.iter_mut().enumerate() {
            let first = i as u32 * FRAGMENT_COLUMNS + own.column;
            *states = [state.of_lane(first), state.of_lane(first + 1)];
        }
        epilogue.apply_fragments(place, rows, &states, values);
        if part == 0 {
            // The store that took this buffer last has read it; the lane that issued it knows.
            if at.staged_boxes > 1 {
                ptx::cp_async_bulk_wait_group_read::<1>();
            } else {
                ptx::cp_async_bulk_wait_group_read::<0>();
            }
            warp::sync_warp();
        }
        O::put_pair([split(values[0]), split(values[1])], 2 * part, at.lane, buffer);
        O::put_pair([split(values[2]), split(values[3])], 2 * part + 1, at.lane, buffer);
        if part + 1 == parts {
            ptx::fence_proxy_async_shared();
            warp::sync_warp();
            if at.lane == 0 {
                let first = [at.column - part * WARP_COLUMNS, at.row, at.batch];
                ptx::tma_store_3d(output.address(), first.map(|index| index as i32), buffer.get());
                ptx::cp_async_bulk_commit_group();
            }
        }
    }
}

/// A lane's accumulators of a fragment, row by row.
#[inline(always)]
fn split([a, b, c, d]: [f32; 4]) -> [[f32; 2]; 2] {
    [[a, b], [c, d]]
}

/// Waits until the copy engine has read what [`store_boxes`] gave it.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
pub unsafe fn wait_for_stores() {
    ptx::cp_async_bulk_wait_group_read::<0>();
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::sync_warp() };
}

/// Applies `epilogue` to a warp's accumulators of several times 64 rows, rounds them, and stores those that lie within the
/// output. The epilogue's code stands once.
///
/// # Safety
///
/// All lanes of the warp call it, with the same `at`; block i of the accumulators belongs 64 · i rows further down. The output is
/// valid for writes, and no other warp has these places; `epilogue` may be asked for every row and column of it.
#[inline(always)]
pub unsafe fn store_rows<C: Accumulators, O: Element, E: Epilogue, const BLOCKS: usize>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    output: &Output<O>,
    at: WarpRows,
) {
    const LANES_PER_ROW: u32 = STRIP_COLUMNS / COLUMNS as u32;
    const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;
    let strips = const { C::COLUMNS / STRIP_COLUMNS };
    let place = |row: u32, column: u32| at.staging.offset(4 * swizzled_staging_word(row, column)).get();
    let own = accumulator_coord(at.lane, 0);
    let (first_row, column) = (at.lane / LANES_PER_ROW, (at.lane % LANES_PER_ROW) * COLUMNS as u32);
    let vector_aligned = output.is_vector_aligned();

    // SAFETY: all lanes of the warp are here.
    unsafe { wait_for_stores() };
    // Opaque numbers keep the loops as they are: the epilogue's code is larger than their overhead.
    let may_be_half = const { BLOCKS == 1 && C::Half::COLUMNS < C::COLUMNS };
    let count = ptx::opaque(if may_be_half { at.columns / STRIP_COLUMNS } else { strips * BLOCKS as u32 });
    let mut strip = 0;
    while strip < count {
        let output_row = at.row + strip / strips * BLOCK_ROWS;
        let output_column = at.column + strip % strips * STRIP_COLUMNS + column;
        for candidate in 0..strips * BLOCKS as u32 {
            // Registers have no index: each strip has its own stores.
            if strip == ptx::opaque(candidate) {
                for fragment in 0..STRIP_FRAGMENTS {
                    let of_block = (candidate % strips) as usize * STRIP_FRAGMENTS + fragment;
                    let [c0, c1, c2, c3] = accumulators[(candidate / strips) as usize].fragment(of_block);
                    let column = fragment as u32 * FRAGMENT_COLUMNS + own.column;
                    // SAFETY: within this warp's staging buffer, which no other warp touches.
                    unsafe {
                        ptx::st_shared_v2_f32(place(own.row, column), [c0, c1]);
                        ptx::st_shared_v2_f32(place(own.row + ROWS / 2, column), [c2, c3]);
                    }
                }
            }
        }
        // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
        let columns = unsafe {
            warp::sync_warp();
            epilogue.columns::<COLUMNS>(output_column)
        };
        let rows = ptx::opaque(ROWS);
        let mut row = first_row;
        while row < rows {
            let at = Coord { row: output_row + row, column: output_column };
            // SAFETY: written before the barrier, by this warp; the caller's promise. Every element of the tile belongs to one
            // lane of one warp, and the lanes of a row have four neighbouring columns each.
            unsafe {
                let staged = ptx::ld_shared_v4_f32(place(row, column));
                let result = epilogue.apply(at, epilogue.row(at.row), columns, staged);
                output.store_4(at.row, at.column, result, vector_aligned);
            }
            row += ROWS_PER_PASS;
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        strip += 1;
    }
}
