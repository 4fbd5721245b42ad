//! The epilogue in registers, for accumulators that leave through boxes of shared memory.

use core::marker::PhantomData;

use super::chunks::{
    CHUNK_FRAGMENTS, GROUP_CHUNKS, GROUP_COLUMNS, MAX_CHUNKS, WARP_COLUMNS, chunk_in_turn, chunks,
    first_of_chunk, groups_overlap,
};
use super::staged::{BoxOutput, OutputElement, Staged, buffer_of, chunks_of_box, store_chunks};
use super::{BLOCK_ROWS, ColumnCache, ROWS, STAGED_BOXES, WarpRows, wait_for_stores};
use crate::epilogue::{ColumnState, Epilogue};
use crate::layout::{Coord, FRAGMENT_COLUMNS, accumulator_coord};
use crate::ptx::{self, Accumulators};
use crate::warp;

/// Applies `epilogue` to a warp's accumulators of several times 64 rows in their registers, rounds them, and stores them or has the copy
/// engine do so, as `output` says. If `UNROLLED`, the epilogue's code stands once for every accumulator: for the cheapest. Else it stands once for 32
/// accumulators of a lane, or for 16 if there are no registers for more, which are moved to where it is.
///
/// If the epilogue has an [input](Epilogue::input), [`fetch_boxes`](super::fetch_boxes) has been called for it.
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
                    chunk.finish_and_store::<C, O, E, BLOCKS>(epilogue, &rows, output, at, [turn, owned]);
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
    // Opaque, so that the loop stays one; and of a long epilogue however few its turns: each after the first finds its instructions in the cache.
    let mut turn = ptx::opaque(0);
    let turns = owned / CHUNKS as u32;
    let turns = if E::IS_LONG { ptx::opaque(turns) } else { turns };
    while turn < turns {
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
            values.finish_and_store::<C, O, E, BLOCKS>(epilogue, rows, output, at, [first, owned]);
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
    /// Each box has one chunk or two, and these are one, or both of a box; of an epilogue with an input, all. `owned` chunks are stored in all.
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
        [turn, owned]: [u32; 2],
    ) where
        C: Accumulators,
        O: OutputElement,
        E: Epilogue<Column = K>,
    {
        let chunks = const { chunks(C::COLUMNS) };
        let all = at;
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
        let (index, buffer) = (turn / parts, buffer_of(all, turn / parts));
        let has_input = epilogue.input().is_some();
        let first = Coord { row: at.row, column: at.column - part * WARP_COLUMNS };
        // Those that the staging buffer has room for have been fetched before, which may be all.
        let next = index + 1;
        let are_more = BLOCKS as u32 * chunks / parts > STAGED_BOXES;
        let next = (are_more && has_input && next >= STAGED_BOXES && next * parts < owned).then_some(next);
        // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
        unsafe {
            if has_input {
                ptx::cp_async_wait_all();
                warp::sync_warp();
            } else if part == 0 {
                // The store that took this buffer last has read it; the lane that issued it knows.
                if at.staged_boxes > 1 {
                    ptx::cp_async_bulk_wait_group_read::<1>();
                } else {
                    ptx::cp_async_bulk_wait_group_read::<0>();
                }
                warp::sync_warp();
            }
            let columns = C::COLUMNS;
            let staged = Staged { at, buffer, part, first, next, all, columns, output: PhantomData::<O> };
            epilogue.finish_fragments(place, rows, &self.states, &mut self.values, &staged);
            if last + 1 == parts {
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
