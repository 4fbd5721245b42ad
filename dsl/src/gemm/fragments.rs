//! A warpgroup's accumulators on their way to the output, warp by warp: each warp has 16 of 64 rows.
//!
//! There are two ways. [`store_boxes`] applies the epilogue in registers, rounds into shared memory, and leaves the rest to the copy
//! engine, or to lanes that store whole chunks: for an epilogue that is cheap enough to stand once for every two accumulators, and rows that are aligned.
//! [`store_rows`] stages f32 and goes along the rows in a loop: for every epilogue and any alignment.

use core::marker::PhantomData;

use crate::epilogue::{ColumnState, Epilogue, Sink};
use crate::float::{Bf16, Element, F16, HalfElement};
use crate::launch::TensorMap;
use crate::layout::{
    CHUNK_BYTES, Coord, FRAGMENT_COLUMNS, FRAGMENT_ROWS, STRIP_COLUMNS, Swizzle, accumulator_coord,
    store_fragment_chunk, swizzled_chunk, swizzled_staging_word,
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
pub(super) const BOX_ROW_BYTES: u32 = 128;
/// Bytes of a box of the output: 16 rows of 128 bytes.
pub const BOX_BYTES: u32 = ROWS * BOX_ROW_BYTES;
/// Fragments of a strip.
const STRIP_FRAGMENTS: usize = (STRIP_COLUMNS / FRAGMENT_COLUMNS) as usize;
/// Columns that a lane transforms and stores at a time, of what is staged.
const COLUMNS: usize = 4;
/// Bytes of a line of the level-2 cache.
const LINE_BYTES: u32 = 128;
/// Columns that the lanes of a warp have one each of.
const WARP_COLUMNS: u32 = warp::SIZE;
/// The most chunks of as many columns, by 16 rows, that a warp stores in a loop.
const MAX_CHUNKS: u32 = 12;
/// Columns that a warp stores together, in one box or in two.
const GROUP_COLUMNS: u32 = BOX_ROW_BYTES / 2;
/// Chunks of that.
const GROUP_CHUNKS: u32 = GROUP_COLUMNS / WARP_COLUMNS;
/// Fragments of as many columns.
const CHUNK_FRAGMENTS: usize = (WARP_COLUMNS / FRAGMENT_COLUMNS) as usize;

/// Boxes of a warp's staging buffer in which one is filled while the other is stored.
pub const STAGED_BOXES: u32 = 2;
/// Bytes of such a buffer, which are as many as a strip of f32 takes.
pub const STAGING_BYTES: u32 = {
    assert!(STAGED_BOXES * BOX_BYTES == ROWS * STRIP_COLUMNS * 4);
    STAGED_BOXES * BOX_BYTES
};

/// Chunks in which a warp stores 16 rows of `columns` columns, which are a multiple of 8 and at least a group.
const fn chunks(columns: u32) -> u32 {
    assert!(
        columns >= GROUP_COLUMNS && columns.is_multiple_of(FRAGMENT_COLUMNS),
        "columns that groups cover"
    );
    columns.div_ceil(GROUP_COLUMNS) * GROUP_CHUNKS
}

/// The first column of chunk `index` of `columns` columns. Where the last group would reach beyond them, it begins as much sooner, and
/// shares columns with the group before.
const fn first_of_chunk(columns: u32, index: u32) -> u32 {
    let (group, last) = (index / GROUP_CHUNKS, columns / GROUP_COLUMNS);
    if groups_overlap(columns) && group == last {
        columns - GROUP_COLUMNS + index % GROUP_CHUNKS * WARP_COLUMNS
    } else {
        index * WARP_COLUMNS
    }
}

/// Whether the last two groups of `columns` columns share some.
const fn groups_overlap(columns: u32) -> bool {
    !columns.is_multiple_of(GROUP_COLUMNS)
}

/// Which chunk of `blocks` blocks of `columns` columns is stored as number `turn`, counted through all blocks. Where groups share
/// columns, the last one of each block comes first: when the other is stored, it has long been in its place.
#[inline(always)]
const fn chunk_in_turn(columns: u32, blocks: u32, turn: u32) -> u32 {
    if !groups_overlap(columns) {
        return turn;
    }
    let (chunks, others) = (chunks(columns), chunks(columns) - GROUP_CHUNKS);
    if turn < blocks * GROUP_CHUNKS {
        turn / GROUP_CHUNKS * chunks + others + turn % GROUP_CHUNKS
    } else {
        let turn = turn - blocks * GROUP_CHUNKS;
        turn / others * chunks + turn % others
    }
}

/// What an epilogue knows of up to 256 columns, spread over the lanes of a warp: lane l has column l of each chunk.
pub struct ColumnCache<K>([K; 8]);

impl<K: ColumnState> ColumnCache<K> {
    /// What `epilogue` knows of the `columns` columns from `first` on: as many as accumulators have, a constant after inlining.
    ///
    /// # Safety
    ///
    /// As [`Epilogue::column`].
    #[inline(always)]
    pub unsafe fn load<E: Epilogue<Column = K>>(epilogue: &E, first: u32, columns: u32) -> Self {
        let lane = warp::lane_id();
        let mut cache = [K::default(); 8];
        for (i, state) in cache.iter_mut().enumerate() {
            if (i as u32) < chunks(columns) {
                // SAFETY: the caller's promise.
                *state = unsafe { epilogue.column(first + first_of_chunk(columns, i as u32) + lane) };
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
    /// Bytes of a row of a box: `BOX_ROW_BYTES`, or for 16-bit types half as many; a constant after inlining. [`store_rows`] takes the
    /// former.
    pub box_row_bytes: u32,
    /// Whether the accumulators leave registers for those of a group of columns beside them; a constant after inlining.
    pub has_registers: bool,
}

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
}

impl OutputElement for f32 {
    #[inline(always)]
    unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress, _row_bytes: u32) {
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
            unsafe fn put_pair(pair: FragmentPair, index: u32, lane: u32, to: SharedAddress, row_bytes: u32) {
                let own = store_fragment_chunk(lane);
                let [[a, b], [c, d]] = pair;
                // That of chunk 2 · `index` + `own.chunk`: the swizzle flips bits of a chunk's number, and so does the sum.
                let first = to.offset(swizzled_chunk(row_bytes, own.row, own.chunk)).get();
                let place = first ^ (2 * index * CHUNK_BYTES);
                let rows = [Self::pack(a), Self::pack(b), Self::pack(c), Self::pack(d)];
                // SAFETY: all lanes of the warp are here; within the box.
                unsafe { ptx::stmatrix_x4(place, rows) };
            }
        }
    };
}
half_output!(F16);
half_output!(Bf16);

/// Applies `epilogue` to a warp's accumulators of several times 64 rows in their registers, rounds them, and stores them or has the copy
/// engine do so, as `output` says. If `UNROLLED`, the epilogue's code stands once for every accumulator: for the cheapest. Else it stands once for 32
/// accumulators of a lane, or for 16 if there are no registers for more, which are moved to where it is.
///
/// The copy engine's stores run on when this returns: before the staging buffer is used for anything else, or the block ends,
/// [`wait_for_stores`].
///
/// # Safety
///
/// All lanes of the warp call it, with the same accumulators' owner, `at` and `output`, which is valid for writes; no other
/// warp has these places. Block i of the accumulators belongs 64 · i rows further down. `columns` is what `epilogue` knows of the columns from `at.column` on.
#[inline(always)]
pub unsafe fn store_boxes<C, O, E, const BLOCKS: usize, const UNROLLED: bool>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    columns: &ColumnCache<E::Column>,
    output: &BoxOutput<O>,
    at: WarpRows,
) where
    C: Accumulators,
    O: OutputElement,
    E: Epilogue,
{
    // A chunk is as many columns as a warp has lanes, each of which knows one of them.
    let count = const {
        assert!(BLOCKS as u32 * chunks(C::COLUMNS) <= MAX_CHUNKS, "chunks that can be told apart");
        BLOCKS as u32 * chunks(C::COLUMNS)
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
    if !(count / chunks_of_box::<O>(at)).is_multiple_of(at.staged_boxes) {
        // SAFETY: all lanes of the warp are here.
        unsafe { wait_for_stores() };
    }
    if UNROLLED {
        for turn in 0..count {
            // All of it, or the first half.
            if !may_be_half || turn < count / 2 || owned == count {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut chunk = Chunks::<_, 1>::of(accumulators, columns, turn);
                    chunk.begin(epilogue, rows[block_of_turn::<C, BLOCKS>(turn)], at.lane);
                    chunk.finish_and_store::<C, O, E, BLOCKS>(epilogue, &rows, output, at, turn);
                }
            }
        }
    } else if at.has_registers && chunks_of_box::<O>(at) == GROUP_CHUNKS {
        // SAFETY: the caller's promise.
        unsafe {
            store_in_loop::<C, O, E, BLOCKS, { GROUP_CHUNKS as usize }>(
                accumulators,
                epilogue,
                columns,
                &rows,
                output,
                at,
                owned,
            );
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe {
            store_in_loop::<C, O, E, BLOCKS, 1>(accumulators, epilogue, columns, &rows, output, at, owned);
        }
    }
}

/// The part of [`store_boxes`] that stands once for `CHUNKS` chunks, in a loop over the first `owned`: a multiple of as many, and of all
/// chunks the first half at least.
///
/// # Safety
///
/// As [`store_boxes`].
#[inline(always)]
unsafe fn store_in_loop<C, O, E, const BLOCKS: usize, const CHUNKS: usize>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    columns: &ColumnCache<E::Column>,
    rows: &[[E::Row; 2]; BLOCKS],
    output: &BoxOutput<O>,
    at: WarpRows,
    owned: u32,
) where
    C: Accumulators,
    O: OutputElement,
    E: Epilogue,
{
    let count = const { BLOCKS as u32 * chunks(C::COLUMNS) / CHUNKS as u32 };
    // Opaque, so that the loop stays one.
    let mut turn = ptx::opaque(0);
    while turn < owned / CHUNKS as u32 {
        // Opaque: what follows from it is worth no register all the time, of which the epilogue can make use.
        let lane = if at.has_registers { ptx::opaque(at.lane) } else { at.lane };
        let at = WarpRows { lane, ..at };
        // Registers have no index: each turn has its own moves. The epilogue's beginning makes use of them, but where registers are
        // scarce.
        let chunks = |turn: u32| {
            let turn = turn * CHUNKS as u32;
            let mut chunks = Chunks::<_, CHUNKS>::of(accumulators, columns, turn);
            if at.has_registers {
                // SAFETY: the caller's promise.
                unsafe { chunks.begin(epilogue, rows[block_of_turn::<C, BLOCKS>(turn)], at.lane) };
            }
            chunks
        };
        // For a few turns, branches are faster than a table of jumps; opaque, so that none is made of them.
        let is = |index: u32| ptx::opaque(turn) == index;
        let mut values = match turn {
            _ if count == 1 => chunks(0),
            _ if count == 2 => {
                if is(0) {
                    chunks(0)
                } else {
                    chunks(1)
                }
            }
            _ if count == 4 => {
                if ptx::opaque(turn) < 2 {
                    if is(0) { chunks(0) } else { chunks(1) }
                } else if is(2) {
                    chunks(2)
                } else {
                    chunks(3)
                }
            }
            0 => chunks(0),
            1 if 2 < count => chunks(1),
            2 if 2 < count => chunks(2),
            3 if 4 < count => chunks(3),
            4 if 4 < count => chunks(4),
            5 if 6 < count => chunks(5),
            6 if 6 < count => chunks(6),
            7 if 6 < count => chunks(7),
            8 if 8 < count => chunks(8),
            9 if 8 < count => chunks(9),
            10 if 8 < count => chunks(10),
            _ => chunks(count - 1),
        };
        let first = turn * CHUNKS as u32;
        // SAFETY: the caller's promise.
        unsafe {
            if !at.has_registers {
                values.begin(epilogue, rows_of_block(rows, block_of_turn::<C, BLOCKS>(first)), at.lane);
            }
            values.finish_and_store::<C, O, E, BLOCKS>(epilogue, rows, output, at, first);
        }
        turn += 1;
    }
}

/// Which block of accumulators the chunk that is stored as number `turn` is of.
#[inline(always)]
const fn block_of_turn<C: Accumulators, const BLOCKS: usize>(turn: u32) -> usize {
    (chunk_in_turn(C::COLUMNS, BLOCKS as u32, turn) / const { chunks(C::COLUMNS) }) as usize % BLOCKS
}

/// What an epilogue knows of the rows of block `block`, which no compiler knows.
#[inline(always)]
fn rows_of_block<R: Copy, const BLOCKS: usize>(rows: &[[R; 2]; BLOCKS], block: usize) -> [R; 2] {
    let mut of_block = rows[0];
    for (index, &rows) in rows.iter().enumerate().skip(1) {
        if block == index {
            of_block = rows;
        }
    }
    of_block
}

/// A lane's accumulators of chunks that are stored one after the other, on their way through an epilogue.
struct Chunks<K, const CHUNKS: usize> {
    values: [[[f32; 4]; CHUNK_FRAGMENTS]; CHUNKS],
    /// What the epilogue knows of one column of each chunk.
    known: [K; CHUNKS],
    /// What it knows of the columns of the accumulators, when it has begun.
    states: [[[K; 2]; CHUNK_FRAGMENTS]; CHUNKS],
}

impl<K: ColumnState, const CHUNKS: usize> Chunks<K, CHUNKS> {
    /// The chunk that is stored as number `turn` and those after.
    ///
    /// A function and not a closure: one that several kernels call is not always inlined, and accumulators cannot be passed.
    #[inline(always)]
    fn of<C: Accumulators, const BLOCKS: usize>(
        accumulators: &[C; BLOCKS],
        columns: &ColumnCache<K>,
        turn: u32,
    ) -> Self {
        let mut values = [[[0.0; 4]; CHUNK_FRAGMENTS]; CHUNKS];
        let mut known = [K::default(); CHUNKS];
        for (i, (values, known)) in values.iter_mut().zip(&mut known).enumerate() {
            let turn = turn + i as u32;
            let index = chunk_in_turn(C::COLUMNS, BLOCKS as u32, turn);
            let of_block = index % const { chunks(C::COLUMNS) };
            let first = first_of_chunk(C::COLUMNS, of_block) / FRAGMENT_COLUMNS;
            for (i, values) in values.iter_mut().enumerate() {
                *values = accumulators[block_of_turn::<C, BLOCKS>(turn)].fragment(first as usize + i);
            }
            *known = columns.0[of_block as usize];
        }
        Self { values, known, states: [[[K::default(); 2]; CHUNK_FRAGMENTS]; CHUNKS] }
    }

    /// Begins the epilogue; `rows` is what it knows of the lane's two rows of the chunks' block.
    ///
    /// # Safety
    ///
    /// As [`store_boxes`].
    #[inline(always)]
    unsafe fn begin<E: Epilogue<Column = K>>(&mut self, epilogue: &E, rows: [E::Row; 2], lane: u32) {
        let own = accumulator_coord(lane, 0);
        for (i, (values, states)) in self.values.iter_mut().zip(&mut self.states).enumerate() {
            let known = self.known[i];
            for (i, states) in states.iter_mut().enumerate() {
                let column = i as u32 * FRAGMENT_COLUMNS + own.column;
                // SAFETY: all lanes of the warp are here.
                *states = unsafe { [known.of_lane(column), known.of_lane(column + 1)] };
            }
            // SAFETY: the caller's promise.
            unsafe { epilogue.begin_fragments(rows, states, values) };
        }
    }

    /// Finishes the epilogue and stores the chunks, as [`store_boxes`] says: the one that is stored as number `turn` and those after.
    /// Each box has one chunk or two, and these are one, or both of a box.
    ///
    /// # Safety
    ///
    /// As [`store_boxes`], for all chunks in order.
    #[inline(always)]
    unsafe fn finish_and_store<C, O, E, const BLOCKS: usize>(
        &mut self,
        epilogue: &E,
        rows: &[[E::Row; 2]; BLOCKS],
        output: &BoxOutput<O>,
        at: WarpRows,
        turn: u32,
    ) where
        C: Accumulators,
        O: OutputElement,
        E: Epilogue<Column = K>,
    {
        let chunks = const { chunks(C::COLUMNS) };
        // They are of one group, and so of one block, and follow each other.
        let of_first = chunk_in_turn(C::COLUMNS, BLOCKS as u32, turn);
        let at = WarpRows {
            row: at.row + of_first / chunks * BLOCK_ROWS,
            column: at.column + first_of_chunk(C::COLUMNS, of_first % chunks),
            ..at
        };
        let own = accumulator_coord(at.lane, 0);
        let place = Coord { row: at.row + own.row, column: at.column + own.column };
        let rows = rows_of_block(rows, block_of_turn::<C, BLOCKS>(turn));
        let parts = chunks_of_box::<O>(at);
        let (part, last) = (of_first % parts, (of_first + CHUNKS as u32 - 1) % parts);
        let buffer = at.staging.offset(turn / parts % at.staged_boxes * (ROWS * at.box_row_bytes));
        // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
        unsafe {
            if part == 0 {
                // The store that took this buffer last has read it; the lane that issued it knows.
                if at.staged_boxes > 1 {
                    ptx::cp_async_bulk_wait_group_read::<1>();
                } else {
                    ptx::cp_async_bulk_wait_group_read::<0>();
                }
                warp::sync_warp();
            }
            let put = Put { at, buffer, part, output: PhantomData::<O> };
            epilogue.finish_fragments(place, rows, &self.states, &mut self.values, &put);
            if last + 1 == parts {
                let first = Coord { row: at.row, column: at.column - part * WARP_COLUMNS };
                if let Some(rows) = &output.rows {
                    warp::sync_warp();
                    store_chunks(rows, buffer, first, at);
                } else {
                    ptx::fence_proxy_async_shared();
                    warp::sync_warp();
                    if at.lane == 0 {
                        let of_block = (of_first + last - part) % chunks;
                        let shares = of_block / GROUP_CHUNKS + 2 == chunks / GROUP_CHUNKS
                            && (parts == GROUP_CHUNKS
                                || (of_block + 1) * WARP_COLUMNS + GROUP_COLUMNS > C::COLUMNS);
                        if groups_overlap(C::COLUMNS) && shares {
                            // What it has in common with the block's last group is in its place; other stores need not be.
                            let boxes = GROUP_CHUNKS / parts;
                            wait_for_all_but(boxes * (BLOCKS as u32 + chunks / GROUP_CHUNKS - 3));
                        }
                        let at = [first.column, first.row, at.batch].map(|index| index as i32);
                        ptx::tma_store_3d(output.map.address(), at, buffer.get());
                        ptx::cp_async_bulk_commit_group();
                    }
                }
            }
        }
    }
}

/// Stores a box that lies in shared memory at `from`, with its first element at `first` of the output: what of it lies within.
///
/// # Safety
///
/// All lanes of the warp call it; the box has been written, the output is valid for writes and as [`BoxOutput::rows`] says, and no other warp has
/// these places.
#[inline(always)]
unsafe fn store_chunks<O: Element>(output: &Output<O>, from: SharedAddress, first: Coord, at: WarpRows) {
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

/// Rounds chunks of a box, from chunk `part` on, and puts them into its buffer.
struct Put<O> {
    at: WarpRows,
    buffer: SharedAddress,
    part: u32,
    output: PhantomData<O>,
}

impl<O: OutputElement> Sink<CHUNK_FRAGMENTS> for Put<O> {
    #[inline(always)]
    unsafe fn take(&self, index: usize, values: &[[f32; 4]; CHUNK_FRAGMENTS]) {
        let Self { at, buffer, part, .. } = *self;
        let pair = 2 * (part + index as u32);
        // SAFETY: the caller's promise.
        unsafe {
            O::put_pair([split(values[0]), split(values[1])], pair, at.lane, buffer, at.box_row_bytes);
            O::put_pair([split(values[2]), split(values[3])], pair + 1, at.lane, buffer, at.box_row_bytes);
        }
    }
}

/// Chunks of a box.
#[inline(always)]
const fn chunks_of_box<O: Element>(at: WarpRows) -> u32 {
    at.box_row_bytes / O::BYTES / WARP_COLUMNS
}

/// Waits until at most so many of this thread's newest stores are unfinished, or fewer. `pending` is a constant after inlining.
#[inline(always)]
fn wait_for_all_but(pending: u32) {
    match pending {
        0 => ptx::cp_async_bulk_wait_group::<0>(),
        1 => ptx::cp_async_bulk_wait_group::<1>(),
        2 | 3 => ptx::cp_async_bulk_wait_group::<2>(),
        _ => ptx::cp_async_bulk_wait_group::<4>(),
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
/// output. The epilogue's code stands once for `BATCH` rows of a lane, and what it reads of the next ones is on its way meanwhile: 4, or 2
/// where registers are scarce.
///
/// # Safety
///
/// All lanes of the warp call it, with the same `at`; block i of the accumulators belongs 64 · i rows further down. The output is
/// valid for writes, and no other warp has these places; `epilogue` may be asked for every row and column of it.
#[inline(always)]
pub unsafe fn store_rows<
    C: Accumulators,
    O: Element,
    E: Epilogue,
    const BLOCKS: usize,
    const BATCH: usize,
>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    output: &Output<O>,
    at: WarpRows,
) {
    const LANES_PER_ROW: u32 = STRIP_COLUMNS / COLUMNS as u32;
    const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;
    // Rows of a batch of the warp's, and turns in which it has all rows of a strip.
    let batch_rows = const { BATCH as u32 * ROWS_PER_PASS };
    let turns = const {
        assert!(ROWS.is_multiple_of(BATCH as u32 * ROWS_PER_PASS), "batches cover the rows");
        ROWS / (BATCH as u32 * ROWS_PER_PASS)
    };
    let strips = const { C::COLUMNS / STRIP_COLUMNS };
    let place = |row: u32, column: u32| at.staging.offset(4 * swizzled_staging_word(row, column)).get();
    let vector_aligned = output.is_vector_aligned();
    // A lane's first row and column of a strip.
    let first_of = |lane: u32| (lane / LANES_PER_ROW, (lane % LANES_PER_ROW) * COLUMNS as u32);
    // Its rows of a batch and its first column, of the output.
    let batch_of = |lane: u32, strip: u32, turn: u32| {
        let (row, column) = first_of(lane);
        let first = at.row + strip / strips * BLOCK_ROWS + row + turn * batch_rows;
        let mut rows = [first; BATCH];
        for (i, row) in rows.iter_mut().enumerate() {
            *row += i as u32 * ROWS_PER_PASS;
        }
        (rows, at.column + strip % strips * STRIP_COLUMNS + column)
    };
    // What the epilogue reads of a batch is asked for while it is at the one before.
    let read = |(rows, column): ([u32; BATCH], u32)| {
        // SAFETY: the caller's promise. Every element of the tile belongs to one lane of one warp, which reads it before it stores it.
        unsafe { epilogue.read_rows(rows, column) }
    };
    let mut ahead = read(batch_of(at.lane, 0, 0));

    // SAFETY: all lanes of the warp are here.
    unsafe { wait_for_stores() };
    // Loops that begin with opaque numbers stay as they are: the epilogue's code is larger than their overhead.
    let may_be_half = const { BLOCKS == 1 && C::Half::COLUMNS < C::COLUMNS };
    let count = if may_be_half { at.columns / STRIP_COLUMNS } else { strips * BLOCKS as u32 };
    let mut strip = ptx::opaque(0);
    while strip < count {
        // Opaque: what follows from it is worth no register all the time.
        let lane = ptx::opaque(at.lane);
        let own = accumulator_coord(lane, 0);
        // SAFETY: the caller's promise.
        let columns = unsafe { epilogue.read_columns(batch_of(lane, strip, 0).1) };
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
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        let mut turn = ptx::opaque(0);
        while turn < turns {
            let known = ahead;
            let (first_row, column) = first_of(lane);
            let mut values = [[0.0; COLUMNS]; BATCH];
            for (i, values) in values.iter_mut().enumerate() {
                let row = first_row + turn * batch_rows + i as u32 * ROWS_PER_PASS;
                // SAFETY: written before the barrier, by this warp.
                *values = unsafe { ptx::ld_shared_v4_f32(place(row, column)) };
            }
            let (rows, column) = batch_of(lane, strip, turn);
            // SAFETY: the caller's promise; the lanes of a row have four neighbouring columns each.
            unsafe { epilogue.begin_rows(&columns, &known, &mut values) };
            // What was read is in no register any more.
            let next = if turn + 1 < turns { (strip, turn + 1) } else { (strip + 1, 0) };
            if next.0 < count {
                ahead = read(batch_of(lane, next.0, next.1));
            }
            // SAFETY: the caller's promise; the lanes of a row have four neighbouring columns each.
            unsafe {
                epilogue.finish_rows(rows, column, &mut values);
                output.store_4_of_rows(rows, column, &values, vector_aligned);
            }
            turn += 1;
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        strip += 1;
    }
}

/// Has the level-2 cache get what `epilogue` reads of a warp's part of an output of type `O`, long before [`store_rows`] asks for it.
#[inline(always)]
pub(super) fn prefetch_rows<C: Accumulators, O: Element, E: Epilogue, const BLOCKS: usize>(
    epilogue: &E,
    at: WarpRows,
) {
    // Columns of a line.
    let line = const { LINE_BYTES / O::BYTES };
    for first in 0..const { BLOCKS as u32 * ROWS * (C::COLUMNS / (LINE_BYTES / O::BYTES)) / warp::SIZE } {
        let index = first * warp::SIZE + at.lane;
        let (row, column) = (index % (BLOCKS as u32 * ROWS), index / (BLOCKS as u32 * ROWS) * line);
        if column < at.columns {
            let row = at.row + row / ROWS * BLOCK_ROWS + row % ROWS;
            epilogue.prefetch(Coord { row, column: at.column + column });
        }
    }
}
