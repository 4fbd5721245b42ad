//! Boxes of shared memory, through which a warp's part of a matrix goes from memory to fragments and back.

use core::marker::PhantomData;

use super::chunks::{CHUNK_FRAGMENTS, WARP_COLUMNS};
use super::{BLOCK_ROWS, BOX_ROW_BYTES, ROWS, STAGED_BOXES, WarpRows, wait_for_stores};
use crate::epilogue::{Epilogue, InputRows, Sink};
use crate::float::{Bf16, Element, F16, HalfElement};
use crate::launch::TensorMap;
use crate::layout::{
    CHUNK_BYTES, Coord, FRAGMENT_COLUMNS, Swizzle, accumulator_coord, store_fragment_chunk, swizzled_chunk,
};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// The output, of which a warp has boxes.
#[derive(Clone, Copy)]
pub struct BoxOutput<'a, O> {
    /// A map of rank 3 (columns, rows, matrices) for the copy engine, with boxes of [`WarpRows::box_row_bytes`] bytes × 16 rows × 1 in the
    /// swizzle of so many bytes.
    pub map: &'a TensorMap,
    /// If the lanes are to store the boxes: the matrix that the warp's rows are of, whose rows are whole chunks of 16 bytes, at multiples of as many.
    pub rows: Option<Output<O>>,
}

/// A lane's part of two neighbouring fragments: of each, two neighbouring columns of its row, and of the row eight further on.
pub type FragmentPair = [[[f32; 2]; 2]; 2];

/// A type that a warp can store its accumulators as.
pub trait OutputElement: Element {
    /// Rounds fragments 2 · `index` and 2 · `index` + 1 of a box with rows of `row_bytes` bytes and puts them into shared memory, where
    /// the box is in the swizzle of so many bytes: 128, or for 16-bit types 64.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its own `lane`; `to` is the box: 16 rows of shared memory, aligned to 1024.
    /// Nothing else uses the fragments' places.
    unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress, row_bytes: u32);

    /// What [`put_pair`](Self::put_pair) would have put there: fragments 2 · `index` and 2 · `index` + 1 of a box with rows of 128 bytes.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its own `lane`; `from` is the box: 16 rows of shared memory, aligned to 1024, which have been
    /// written.
    unsafe fn take_pair(index: u32, lane: u32, from: SharedAddress) -> FragmentPair;
}

impl OutputElement for f32 {
    #[inline(always)]
    unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress, _row_bytes: u32) {
        for (i, &[upper, lower]) in pair.iter().enumerate() {
            let [of_upper, of_lower] = places_of_f32(2 * index + i as u32, lane, to);
            // SAFETY: within the box.
            unsafe {
                ptx::st_shared_v2_f32(of_upper, upper);
                ptx::st_shared_v2_f32(of_lower, lower);
            }
        }
    }

    #[inline(always)]
    unsafe fn take_pair(index: u32, lane: u32, from: SharedAddress) -> FragmentPair {
        let fragment = |index: u32| {
            let [of_upper, of_lower] = places_of_f32(index, lane, from);
            // SAFETY: within the box.
            unsafe { [ptx::ld_shared_v2_f32(of_upper), ptx::ld_shared_v2_f32(of_lower)] }
        };
        [fragment(2 * index), fragment(2 * index + 1)]
    }
}

/// Where a box of f32 has a lane's values of fragment `fragment`: of its row, and of the row eight further on.
#[inline(always)]
fn places_of_f32(fragment: u32, lane: u32, boxed: SharedAddress) -> [u32; 2] {
    let at = accumulator_coord(lane, 0);
    let column = 4 * (fragment * FRAGMENT_COLUMNS + at.column);
    [at.row, at.row + ROWS / 2]
        .map(|row| boxed.offset(Swizzle::Bytes128.apply(row * BOX_ROW_BYTES + column)).get())
}

/// Where a box of a 16-bit type has the chunk that a lane addresses for fragments 2 · `index` and 2 · `index` + 1.
#[inline(always)]
fn place_of_halves(index: u32, lane: u32, boxed: SharedAddress, row_bytes: u32) -> u32 {
    let own = store_fragment_chunk(lane);
    // That of chunk 2 · `index` + `own.chunk`: the swizzle flips bits of a chunk's number, and so does the sum.
    boxed.offset(swizzled_chunk(row_bytes, own.row, own.chunk)).get() ^ (2 * index * CHUNK_BYTES)
}

macro_rules! half_output {
    ($element:ident) => {
        impl OutputElement for $element {
            #[inline(always)]
            unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress, row_bytes: u32) {
                let [[a, b], [c, d]] = pair;
                let place = place_of_halves(index, lane, to, row_bytes);
                let rows = [Self::pack(a), Self::pack(b), Self::pack(c), Self::pack(d)];
                // SAFETY: all lanes of the warp are here; within the box.
                unsafe { ptx::stmatrix_x4(place, rows) };
            }

            #[inline(always)]
            unsafe fn take_pair(index: u32, lane: u32, from: SharedAddress) -> FragmentPair {
                let place = place_of_halves(index, lane, from, BOX_ROW_BYTES);
                // SAFETY: all lanes of the warp are here; within the box.
                let [a, b, c, d] = unsafe { ptx::ldmatrix_x4(place) }.map(Self::unpack);
                [[a, b], [c, d]]
            }
        }
    };
}
half_output!(F16);
half_output!(Bf16);

/// Stores a box in shared memory at `from`, with its first element at `first` of the output: the part of it that is within.
///
/// # Safety
///
/// All lanes of the warp call it; the box has been written, the output is valid for writes, its rows are whole chunks of 16 bytes at multiples of as many, and no other warp has
/// these places.
#[inline(always)]
pub(super) unsafe fn store_chunks<O: Element>(
    output: &Output<O>,
    from: SharedAddress,
    first: Coord,
    at: WarpRows,
) {
    let chunks = at.box_row_bytes / CHUNK_BYTES;
    let rows = warp::SIZE / chunks;
    let own = Coord { row: at.lane / chunks, column: at.lane % chunks };
    let (row, column) = (first.row + own.row, first.column + own.column * (CHUNK_BYTES / O::BYTES));
    let to = output.at(row, column).address();
    let pass_bytes = rows as u64 * output.stride * O::BYTES as u64;
    for pass in 0..ROWS / rows {
        let place = from.offset(swizzled_chunk(at.box_row_bytes, pass * rows + own.row, own.column));
        // SAFETY: within the box, and within the output.
        unsafe {
            let chunk = ptx::ld_shared_v4_b32(place.get());
            if column < output.columns && row + pass * rows < output.rows {
                ptx::st_global_v4_b32(to + pass as u64 * pass_bytes, chunk);
            }
        }
    }
}

/// Has lanes copy a box of a matrix of elements `O` to shared memory at `to`, with zeros for what is outside. Its first element
/// is at `first`. When a lane's copies of its group, which this closes, and those of all lanes have completed, the box is there.
///
/// # Safety
///
/// All lanes of the warp call it; the matrix is valid for reads and its rows are as [`Epilogue::input`] says, nothing else uses the box.
#[inline(always)]
unsafe fn fetch_box<O: Element>(input: &InputRows, to: SharedAddress, first: Coord, lane: u32) {
    const CHUNKS: u32 = BOX_ROW_BYTES / CHUNK_BYTES;
    const ROWS_OF_PASS: u32 = warp::SIZE / CHUNKS;
    let own = Coord { row: lane / CHUNKS, column: lane % CHUNKS };
    let (row, byte) = (first.row + own.row, first.column * O::BYTES + own.column * CHUNK_BYTES);
    let from = input.base + row as u64 * input.stride_bytes + byte as u64;
    let is_inside = byte < input.row_bytes;
    for pass in 0..ROWS / ROWS_OF_PASS {
        let rows = pass * ROWS_OF_PASS;
        let place = to.offset(swizzled_chunk(BOX_ROW_BYTES, rows + own.row, own.column));
        let bytes = if is_inside && row + rows < input.rows { CHUNK_BYTES } else { 0 };
        // SAFETY: within the box and the matrix, or nothing is read.
        unsafe { ptx::cp_async_cg_16(place.get(), from + rows as u64 * input.stride_bytes, bytes) };
    }
    ptx::cp_async_commit_group();
}

/// The first place of a warp's box number `index`, counted through all blocks of `columns` columns.
#[inline(always)]
pub(super) fn first_of_box<O: Element>(at: WarpRows, columns: u32, index: u32) -> Coord {
    let box_columns = BOX_ROW_BYTES / O::BYTES;
    let of_block = columns / box_columns;
    Coord { row: at.row + index / of_block * BLOCK_ROWS, column: at.column + index % of_block * box_columns }
}

/// The buffer of a warp's box number `index`.
#[inline(always)]
pub(super) fn buffer_of(at: WarpRows, index: u32) -> SharedAddress {
    at.staging.offset(index % at.staged_boxes * (ROWS * at.box_row_bytes))
}

/// Has the input of `epilogue` copied to the staging buffer, as many of the first boxes as that has: [`store_boxes`](super::store_boxes) goes on with the
/// others. To be called before the products, under which it happens.
///
/// # Safety
///
/// As [`store_boxes`](super::store_boxes), which comes next and has the same epilogue and `at`.
#[inline(always)]
pub unsafe fn fetch_boxes<C: Accumulators, O: Element, E: Epilogue, const BLOCKS: usize>(
    epilogue: &E,
    at: WarpRows,
) {
    let Some(input) = epilogue.input() else { return };
    let boxes = const { BLOCKS as u32 * (C::COLUMNS / (BOX_ROW_BYTES / O::BYTES)) };
    // SAFETY: all lanes of the warp are here, and what is stored from the buffer has been read; the rest is the caller's promise.
    unsafe {
        wait_for_stores();
        for index in 0..boxes.min(STAGED_BOXES) {
            // Of half a tile there may be fewer.
            if BLOCKS == 1 && index * (BOX_ROW_BYTES / O::BYTES) >= at.columns {
                break;
            }
            fetch_box::<O>(&input, buffer_of(at, index), first_of_box::<O>(at, C::COLUMNS, index), at.lane);
        }
    }
}

/// A box on its way through an epilogue, from chunk `part` on.
pub(super) struct Staged<O> {
    pub(super) at: WarpRows,
    pub(super) buffer: SharedAddress,
    pub(super) part: u32,
    /// Its first place in the output.
    pub(super) first: Coord,
    /// Of an epilogue with an input: the number of the next box, if that has not been copied.
    pub(super) next: Option<u32>,
    /// Where all of the warp's boxes are.
    pub(super) all: WarpRows,
    /// Their columns.
    pub(super) columns: u32,
    pub(super) output: PhantomData<O>,
}

impl<O: OutputElement> Sink<CHUNK_FRAGMENTS> for Staged<O> {
    #[inline(always)]
    unsafe fn put(&self, index: usize, values: &[[f32; 4]; CHUNK_FRAGMENTS]) {
        let Self { at, buffer, part, .. } = *self;
        let pair = 2 * (part + index as u32);
        // SAFETY: the caller's promise.
        unsafe {
            O::put_pair([split(values[0]), split(values[1])], pair, at.lane, buffer, at.box_row_bytes);
            O::put_pair([split(values[2]), split(values[3])], pair + 1, at.lane, buffer, at.box_row_bytes);
        }
    }

    #[inline(always)]
    unsafe fn take(&self, index: usize) -> [[f32; 4]; CHUNK_FRAGMENTS] {
        let Self { at, buffer, part, .. } = *self;
        let pair = 2 * (part + index as u32);
        // SAFETY: the caller's promise.
        let ([a, b], [c, d]) =
            unsafe { (O::take_pair(pair, at.lane, buffer), O::take_pair(pair + 1, at.lane, buffer)) };
        [a, b, c, d].map(join)
    }

    #[inline(always)]
    unsafe fn end_input(&self, input: &InputRows) {
        // SAFETY: all lanes of the warp are here; the box before has been read, and the input is the caller's promise.
        unsafe {
            if let Some(index) = self.next {
                let (first, to) =
                    (first_of_box::<O>(self.all, self.columns, index), buffer_of(self.all, index));
                wait_for_stores();
                fetch_box::<O>(input, to, first, self.at.lane);
            } else {
                warp::sync_warp();
            }
        }
    }

    #[inline(always)]
    unsafe fn store<P: Element>(&self, output: &Output<P>) {
        // SAFETY: all lanes of the warp are here; the box has been put, and the matrix is the caller's promise.
        unsafe {
            warp::sync_warp();
            store_chunks(output, self.buffer, self.first, self.at);
            warp::sync_warp();
        }
    }
}

/// Chunks of a box.
#[inline(always)]
pub(super) const fn chunks_of_box<O: Element>(at: WarpRows) -> u32 {
    at.box_row_bytes / O::BYTES / WARP_COLUMNS
}

/// A lane's accumulators of a fragment, row by row.
#[inline(always)]
fn split([a, b, c, d]: [f32; 4]) -> [[f32; 2]; 2] {
    [[a, b], [c, d]]
}

/// The inverse of [`split`].
#[inline(always)]
fn join([[a, b], [c, d]]: [[f32; 2]; 2]) -> [f32; 4] {
    [a, b, c, d]
}
