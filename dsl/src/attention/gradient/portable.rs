//! The gradients of attention by `mma.sync`, on sm_80 and later.
//!
//! A block has 64 rows of its own, 16 for each warp: each sum is one warp's.
//!
//! Where registers do not hold the sums of all columns, blocks have slices of them: each computes all scores, and adds up its slice.

use core::marker::PhantomData;

use super::output::store;
use super::{BLOCK_ROWS, Gives, ROW_NUMBERS};
use crate::attention::portable::copies::copy_strided;
use crate::attention::portable::products::{add_weighted, multiply_rows};
use crate::attention::portable::{PortableElement, Strided, WARPS};
use crate::attention::scores::{self, Place, ScoreOperands, tanh};
use crate::attention::softmax::LOG2_E;
use crate::attention::work::{Sequences, Sizes, Tiles, Work};
use crate::launch::Global;
use crate::layout::accumulator_coord;
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::registers::{Fragment, ROWS};
use crate::warpgroup::{BOX_ROW_BYTES, WARP_ROWS};
use crate::{KernelParam, thread, warp};

/// Blocks of others that shared memory holds: one that is multiplied, and the next one.
const STAGES: u32 = 2;
/// Bytes of the numbers of a row.
const ROW_BYTES: u32 = ROW_NUMBERS * 4;

/// The sizes of a tile.
pub trait GradientShape: 'static {
    /// A warp's scores: 16 rows, and a block of others.
    type Scores: Accumulators;
    /// A warp's sums: 16 rows, and a slice of the columns of Q and K, or of V.
    type Sums: Accumulators;
    /// Columns of Q and K, and of V, at most: whole slices.
    const COLUMNS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
}

/// The tensors of a launch. Rows of those that are read start at multiples of 16 bytes.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct GradientTensors {
    /// Q.
    pub q: Strided,
    /// K.
    pub k: Strided,
    /// V.
    pub v: Strided,
    /// dY.
    pub dy: Strided,
    /// The gradient of the tile's rows: dQ, or dK. Null if it is not asked for.
    pub own: Strided,
    /// dV. Null if it is not asked for.
    pub dv: Strided,
    /// [`ROW_NUMBERS`] of each row of Q, in the order of log-sum-exps.
    pub rows: Global<f32>,
    /// Columns of Q and K.
    pub columns: u32,
    /// Columns of V and dY.
    pub value_columns: u32,
}

/// A tile of shape `S` of elements `T` that gives `G`.
pub struct GradientTile<T, S, G>(PhantomData<(T, S, G)>);

/// A block of others, of a head.
#[derive(Clone, Copy)]
struct Others {
    /// The number of the head, of those whose others the tile has, times [`STAGES`], and the stage: one register for both.
    head_and_stage: u32,
    block: u32,
}

impl Others {
    #[inline(always)]
    const fn head(self) -> u32 {
        self.head_and_stage / STAGES
    }

    #[inline(always)]
    const fn stage(self) -> u32 {
        self.head_and_stage % STAGES
    }
}

/// What a block of a launch works on.
struct Problem<'a> {
    tensors: &'a GradientTensors,
    operands: &'a ScoreOperands,
    sizes: &'a Sizes,
    work: &'a Work,
    /// Of tiles of queries the head of K.
    key_head: u32,
    /// Which of the slices of columns the block adds up.
    slice: u32,
}

impl Problem<'_> {
    /// Heads whose others the tile has.
    #[inline(always)]
    fn heads<G: Gives>(&self) -> u32 {
        if G::OF_KEYS { self.sizes.group.max(1) } else { 1 }
    }

    /// The head of others: of Q, or, where they are keys, of K.
    #[inline(always)]
    fn other_head<G: Gives>(&self, at: Others) -> u32 {
        if G::OF_KEYS { self.work.head * self.sizes.group.max(1) + at.head() } else { self.key_head }
    }

    /// The head of Q.
    #[inline(always)]
    fn query_head<G: Gives>(&self, at: Others) -> u32 {
        if G::OF_KEYS { self.other_head::<G>(at) } else { self.work.head }
    }
}

/// A warp's sums.
struct Summed<C> {
    own: Fragment<C>,
    values: Fragment<C>,
}

/// The log-sum-exp and Δ of a row.
type RowTerms = [f32; 2];

impl<T: PortableElement, S: GradientShape, G: Gives> GradientTile<T, S, G> {
    /// Rows of a tile.
    const ROWS: u32 = {
        assert!(WARPS * WARP_ROWS == BLOCK_ROWS, "16 for each warp");
        BLOCK_ROWS
    };
    /// Others of a block.
    const OTHERS: u32 = S::Scores::COLUMNS;
    const SLICE_COLUMNS: u32 = S::Sums::COLUMNS;
    /// Slices of columns. Each has blocks of its own, and those of a tile are next to each other.
    pub const SLICES: u32 = {
        assert!(S::COLUMNS.is_multiple_of(Self::SLICE_COLUMNS), "whole slices");
        S::COLUMNS / Self::SLICE_COLUMNS
    };
    /// Steps of a slice.
    const STEPS: u32 = {
        assert!(
            Self::SLICE_COLUMNS.is_multiple_of(T::STEP) && Self::OTHERS.is_multiple_of(16),
            "whole steps"
        );
        Self::SLICE_COLUMNS / T::STEP
    };
    const BOXES: u32 = (S::COLUMNS * T::BYTES).div_ceil(BOX_ROW_BYTES);
    const SLICE_BOXES: u32 = {
        assert!(Self::BOXES.is_multiple_of(Self::SLICES), "whole boxes");
        Self::BOXES / Self::SLICES
    };
    /// Of one of the two matrices of the tile's rows.
    const OWN_BYTES: u32 = Self::BOXES * Self::ROWS * BOX_ROW_BYTES;
    /// Of one of the two matrices of a block of others.
    const OTHER_BYTES: u32 = Self::BOXES * Self::OTHERS * BOX_ROW_BYTES;
    const STAGE_BYTES: u32 = 2 * Self::OTHER_BYTES + if G::OF_KEYS { Self::OTHERS * ROW_BYTES } else { 0 };
    /// Shared memory of a block.
    pub const SHARED_BYTES: u32 = 2 * Self::OWN_BYTES + STAGES * Self::STAGE_BYTES;

    /// A stage of the ring: others of Q or K, those of dY or V, and, of queries, their numbers.
    #[inline(always)]
    fn stage(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(2 * Self::OWN_BYTES + index * Self::STAGE_BYTES)
    }

    /// The first row of the warp, among the tile's.
    #[inline(always)]
    fn warp_row() -> u32 {
        warp::warp_id() * WARP_ROWS
    }

    /// The first of the thread's two rows. Opaque: it is worth no register from block to block.
    #[inline(always)]
    fn own_row(work: &Work) -> u32 {
        ptx::opaque(work.row) + Self::warp_row() + accumulator_coord(Self::opaque_lane(), 0).row
    }

    /// Computes the gradients of a tile's rows.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, on a one-dimensional grid of [`SLICES`](Self::SLICES) blocks for each tile. The pointers are valid for what the arguments describe, and what is written
    /// overlaps nothing else.
    #[inline(always)]
    pub unsafe fn run(
        tensors: &GradientTensors,
        operands: &ScoreOperands,
        (sizes, sequences): (&Sizes, Sequences),
    ) {
        let tiles = Tiles::new(*sizes, sequences, Self::ROWS);
        let (block, slice) = (thread::block_idx_x() / Self::SLICES, thread::block_idx_x() % Self::SLICES);
        let first_column = slice * Self::SLICE_COLUMNS;
        let own_columns = if G::OWN { tensors.columns } else { 0 };
        let value_columns = if G::VALUES { tensors.value_columns } else { 0 };
        // Heads of few columns have fewer slices.
        if Self::SLICES > 1 && first_column >= own_columns.max(value_columns) {
            return;
        }
        // The longest come first: of a causal attention the last queries, and the first keys.
        let index = if G::OF_KEYS { sizes.tiles * sizes.rows_of_heads - 1 - block } else { block };
        // SAFETY: the caller's promise; each row belongs to one block.
        unsafe {
            let Some(work) = tiles.work(index) else { return };
            let key_head = if G::OF_KEYS { 0 } else { sizes.key_head(&work) };
            let summed = Self::sum(&Problem { tensors, operands, sizes, work: &work, key_head, slice });
            // Again, so that the registers are free meanwhile.
            let Some(work) = tiles.work(ptx::opaque(index)) else { return };
            let first_column = ptx::opaque(slice) * Self::SLICE_COLUMNS;
            let row = work.row + Self::warp_row();
            if G::OWN {
                let columns = [first_column, tensors.columns];
                store::<T, _>(&summed.own, tensors.own, columns, operands.scale, &work, row);
            }
            if G::VALUES {
                let columns = [first_column, tensors.value_columns];
                store::<T, _>(&summed.values, tensors.dv, columns, 1.0, &work, row);
            }
        }
    }

    /// The sums of the warp's rows over all others.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), and nothing else of the block touches shared memory.
    #[inline(always)]
    unsafe fn sum(of: &Problem<'_>) -> Summed<S::Sums> {
        let mut summed = Summed { own: Fragment(S::Sums::zero()), values: Fragment(S::Sums::zero()) };
        let (tensors, work) = (of.tensors, of.work);
        let [first, end] = work.within;
        if first >= end {
            return summed;
        }
        let first_block = first / Self::OTHERS;
        let next = |at: Others| {
            let is_last = (at.block + 1) * Self::OTHERS >= end;
            let block = if is_last { first_block } else { at.block + 1 };
            let stage = (at.stage() + 1) % STAGES;
            Others { head_and_stage: (at.head() + u32::from(is_last)) * STAGES + stage, block }
        };
        // SAFETY: a stage is filled when all have read what it held before, and read when its copies have come; the rest is the caller's promise.
        unsafe {
            let [own, second] = if G::OF_KEYS { [tensors.k, tensors.v] } else { [tensors.q, tensors.dy] };
            let count = work.rows.saturating_sub(work.row);
            let to = SharedAddress::dynamic();
            Self::load_one(
                own,
                (work.place.row + work.row, work.head),
                work,
                (to, Self::ROWS, count),
                tensors.columns,
            );
            if G::OWN {
                let to = to.offset(Self::OWN_BYTES);
                let columns = tensors.value_columns;
                Self::load_one(
                    second,
                    (work.place.row + work.row, work.head),
                    work,
                    (to, Self::ROWS, count),
                    columns,
                );
            }
            let mut at = Others { head_and_stage: 0, block: first_block };
            Self::load(of, at);
            // Where registers are short they are worth none from block to block.
            let keeps_terms = !G::OF_KEYS && !T::IS_SPLIT;
            let terms = if keeps_terms { Self::terms_of(of, Self::own_row(work)) } else { [[0.0; 2]; ROWS] };
            while at.head() < of.heads::<G>() {
                ptx::cp_async_wait_group(0);
                thread::sync_threads();
                Self::load(of, next(at));
                if Self::has_any(of, at) {
                    let stage = Self::stage(at.stage());
                    let mut scores = Fragment(S::Scores::zero());
                    Self::multiply_others(&mut scores, (SharedAddress::dynamic(), stage), tensors.columns);
                    let mut gradient = Fragment(S::Scores::zero());
                    if G::OWN {
                        let own = SharedAddress::dynamic().offset(Self::OWN_BYTES);
                        let values = (own, stage.offset(Self::OTHER_BYTES));
                        Self::multiply_others(&mut gradient, values, tensors.value_columns);
                    }
                    let row = Self::own_row(work);
                    let terms = if keeps_terms || G::OF_KEYS { terms } else { Self::terms_of(of, row) };
                    let all = [&mut scores, &mut gradient];
                    Self::differentiate(all, of, at, row, (terms, stage));
                    if G::VALUES {
                        let others = Self::slice_of(stage.offset(Self::OTHER_BYTES), of.slice);
                        Self::add_others(&mut summed.values, &scores, others);
                    }
                    if G::OWN {
                        Self::add_others(&mut summed.own, &gradient, Self::slice_of(stage, of.slice));
                    }
                }
                // Opaque: what comes next is worth no registers meanwhile, and copies of the loop are worth nothing.
                let Others { head_and_stage, block } = at;
                let again = Others { head_and_stage: ptx::opaque(head_and_stage), block: ptx::opaque(block) };
                at = next(again);
            }
            ptx::cp_async_wait_all();
        }
        summed
    }

    /// Has the block's threads copy rows of a head, of which the first `count` are there, to boxes of `rows` rows at `to`.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run); nobody reads what the boxes hold.
    #[inline(always)]
    unsafe fn load_one(
        tensor: Strided,
        (row, head): (u32, u32),
        work: &Work,
        (to, rows, count): (SharedAddress, u32, u32),
        columns: u32,
    ) {
        let at =
            work.place.batch as u64 * tensor.sequence + row as u64 * tensor.row + head as u64 * tensor.head;
        let rows_of = (tensor.first::<T>().offset(at), tensor.row);
        // SAFETY: the caller's promise.
        unsafe { copy_strided::<T>(to, Self::BOXES, rows, count, columns, rows_of) };
    }

    /// Has the block's threads copy a block of others to its stage, if there is one; a group of copies of its own.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), and nobody reads the stage.
    #[inline(always)]
    unsafe fn load(of: &Problem<'_>, at: Others) {
        let (tensors, work) = (of.tensors, of.work);
        if at.head() < of.heads::<G>() {
            let head = of.other_head::<G>(at);
            let first = at.block * Self::OTHERS;
            let count = work.keys - first;
            let to = Self::stage(at.stage());
            let place = (work.place.key + first, head);
            let [others, second] = if G::OF_KEYS { [tensors.q, tensors.dy] } else { [tensors.k, tensors.v] };
            // SAFETY: the caller's promise; the rest is within the stage, and a row has its numbers.
            unsafe {
                Self::load_one(others, place, work, (to, Self::OTHERS, count), tensors.columns);
                let second_to = to.offset(Self::OTHER_BYTES);
                Self::load_one(second, place, work, (second_to, Self::OTHERS, count), tensors.value_columns);
                if G::OF_KEYS {
                    let row = thread::thread_idx_x();
                    let number = of.sizes.lse_batch * work.place.batch as u64
                        + of.sizes.lse_head * head as u64
                        + (work.place.key + first + row) as u64;
                    let from = tensors.rows.offset(number * ROW_NUMBERS as u64).address();
                    let bytes = if row < count { ROW_BYTES } else { 0 };
                    let to = to.offset(2 * Self::OTHER_BYTES + row * ROW_BYTES);
                    if row < Self::OTHERS {
                        ptx::cp_async_cg_16(to.get(), from, bytes);
                    }
                }
            }
        }
        ptx::cp_async_commit_group();
    }

    /// The terms of the thread's two rows of queries.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run).
    #[inline(always)]
    unsafe fn terms_of(of: &Problem<'_>, own_row: u32) -> [RowTerms; ROWS] {
        let (sizes, work) = (of.sizes, of.work);
        let first = sizes.lse_batch * work.place.batch as u64 + sizes.lse_head * work.head as u64;
        [own_row, own_row + 8].map(|row| {
            let number = first + (work.place.row + row) as u64;
            let from = of.tensors.rows.offset(number * ROW_NUMBERS as u64).address();
            // SAFETY: the caller's promise, of rows that are there.
            unsafe { ptx::ld_global_nc_v2_f32_if(from, row < work.rows) }
        })
    }

    /// The others that all of the warp's rows have by their places: the first, and the one behind the last.
    #[inline(always)]
    fn others_of_all(of: &Problem<'_>) -> [i32; 2] {
        let (work, window) = (of.work, of.sizes.window);
        let first = ptx::opaque(work.row) + Self::warp_row();
        let last = (first + WARP_ROWS - 1).min(work.rows.max(1) - 1);
        let [begin, _] = window.keys_of(last, work.offset, work.keys);
        let [_, stop] = window.keys_of(first, work.offset, work.keys);
        [begin, stop]
    }

    /// Whether any of the warp's rows has any of a block of others, by the mask of blocks.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run).
    #[inline(always)]
    unsafe fn has_any(of: &Problem<'_>, at: Others) -> bool {
        if of.operands.blocks.is_null() {
            return true;
        }
        let work = of.work;
        let head = of.query_head::<G>(at);
        let range = |first: u32, count: u32, end: u32| [first, end.min(first + count)];
        let rows = range(work.row + Self::warp_row(), WARP_ROWS, work.rows);
        let others = range(at.block * Self::OTHERS, Self::OTHERS, work.keys);
        // SAFETY: the caller's promise.
        unsafe { of.operands.has_any(work, [head, head + 1], rows, others) }
    }

    /// The lane, below a warp's: what follows from it is worth no registers from block to block.
    #[inline(always)]
    fn opaque_lane() -> u32 {
        ptx::opaque(warp::lane_id()) % warp::SIZE
    }

    /// A slice's columns of a matrix of others.
    #[inline(always)]
    fn slice_of(others: SharedAddress, slice: u32) -> SharedAddress {
        if Self::SLICES == 1 {
            return others;
        }
        others.offset(slice * Self::SLICE_BOXES * Self::OTHERS * BOX_ROW_BYTES)
    }

    /// Adds the products of the warp's rows of the matrix at `own` and others of the one at `others`, both of so many columns.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; both have come.
    #[inline(always)]
    unsafe fn multiply_others(
        products: &mut Fragment<S::Scores>,
        (own, others): (SharedAddress, SharedAddress),
        columns: u32,
    ) {
        // A warp's rows, and each pair's others, are whole units of the swizzle.
        let own = own.offset(Self::warp_row() * BOX_ROW_BYTES);
        let slices = if Self::SLICES == 1 { 1 } else { columns.div_ceil(Self::SLICE_COLUMNS) };
        let mut slice = 0;
        while slice < slices {
            let own = own.offset(slice * Self::SLICE_BOXES * Self::ROWS * BOX_ROW_BYTES);
            let others = (Self::slice_of(others, slice), Self::OTHERS);
            // SAFETY: the caller's promise.
            unsafe { multiply_rows::<T, _>(products, (own, Self::ROWS), others, Self::STEPS) };
            slice += 1;
        }
    }

    /// Adds others of the matrix at `others`, with these weights.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; others have come.
    #[inline(always)]
    unsafe fn add_others(sums: &mut Fragment<S::Sums>, weights: &Fragment<S::Scores>, others: SharedAddress) {
        // SAFETY: the caller's promise; steps are whole units of the swizzle.
        unsafe { add_weighted::<T, _, _>(sums, weights, (others, Self::OTHERS), Self::OTHERS) }
    }

    /// Makes weights P of the products of Q and K, and dS of those of dY and V.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the operands' pointers are valid, and numbers of queries have come.
    #[inline(always)]
    unsafe fn differentiate(
        [scores, gradient]: [&mut Fragment<S::Scores>; 2],
        of: &Problem<'_>,
        at: Others,
        own_row: u32,
        (own_terms, stage): ([RowTerms; ROWS], SharedAddress),
    ) {
        let (work, operands) = (of.work, of.operands);
        let column = accumulator_coord(warp::lane_id(), 0).column;
        let first = at.block * Self::OTHERS;
        let head = of.query_head::<G>(at);
        let place = Place { rows: [own_row, own_row + 8], heads: [head; ROWS], key: first + column };
        let of_columns = stage.offset(2 * Self::OTHER_BYTES + column * ROW_BYTES);
        // Of the four accumulators of a fragment.
        let terms = |fragment: usize| -> [RowTerms; 4] {
            if !G::OF_KEYS {
                return [own_terms[0], own_terms[0], own_terms[1], own_terms[1]];
            }
            let of_fragment = of_columns.offset(fragment as u32 * 8 * ROW_BYTES);
            // SAFETY: within the stage.
            let of =
                |column: u32| unsafe { ptx::ld_shared_v2_f32(of_fragment.offset(column * ROW_BYTES).get()) };
            let [even, odd] = [of(0), of(1)];
            [even, odd, even, odd]
        };
        let only_scale = operands.only_scale();
        if only_scale {
            for fragment in 0..S::Scores::COLUMNS as usize / 8 {
                let terms = terms(fragment);
                for (index, [lse, delta]) in terms.into_iter().enumerate() {
                    let index = 4 * fragment + index;
                    let score = &mut scores.0.as_mut()[index];
                    *score = ptx::fma(*score, operands.scale, -lse);
                    if G::OWN {
                        gradient.0.as_mut()[index] -= delta;
                    }
                }
            }
        } else {
            let (factor, is_capped) = (operands.scale / operands.cap, operands.cap != 0.0);
            if G::OWN {
                for fragment in 0..S::Scores::COLUMNS as usize / 8 {
                    for (index, [_, delta]) in terms(fragment).into_iter().enumerate() {
                        let index = 4 * fragment + index;
                        let gradient = &mut gradient.0.as_mut()[index];
                        *gradient -= delta;
                        if is_capped {
                            // The slope of the cap: the square is at most 1.
                            let capped = tanh(scores.0.as_ref()[index] * factor);
                            *gradient *= (1.0 - capped) * (1.0 + capped);
                        }
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { operands.apply::<T, _>(scores, None, work, place) };
            for fragment in 0..S::Scores::COLUMNS as usize / 8 {
                for (index, [lse, _]) in terms(fragment).into_iter().enumerate() {
                    scores.0.as_mut()[4 * fragment + index] -= lse;
                }
            }
        }
        // Again for each block: from one to the next it is worth no registers.
        let [begin, stop] = Self::others_of_all(of);
        if (first as i32) < begin || (first + Self::OTHERS) as i32 > stop {
            scores::keep_within(scores, of.sizes.window, work, place, [0, i32::MAX as u32]);
        }
        for (score, gradient) in scores.0.as_mut().iter_mut().zip(gradient.0.as_mut()) {
            *score = ptx::ex2_approx_ftz(*score * LOG2_E);
            if G::OWN {
                *gradient *= *score;
            }
        }
    }
}
