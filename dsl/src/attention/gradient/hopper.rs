//! The gradients of attention on Hopper: the copy engine fills rings, warpgroups multiply with `wgmma`; sm_90a.
//!
//! What a tile adds up is what [the portable one](super::portable) does, and so are the orders. Each of two warpgroups has 64 rows of its own, and computes their products with a block
//! of others. P and dS stay in registers, where the sums' products read them. One thread of a third warpgroup has the copy engine bring the rows of both and then block
//! after block of others.
//!
//! What is behind the end of a sequence has no part in a sum: others arrive as zeros where tensors [end](HopperTensors::ends) with sequences.
//! What belongs to no pair of a row and a key is zero, whatever came of it.

use core::marker::PhantomData;

use super::output::store;
use super::{Gives, ROW_NUMBERS};
use crate::KernelParam;
use crate::attention::hopper::Rows;
use crate::attention::portable::Strided;
use crate::attention::scores::{self, Place};
use crate::attention::work::{Sequences, Sizes, Tiles, Work};
use crate::float::HalfElement;
use crate::gemm::OutputElement;
use crate::launch::{Global, TensorMap};
use crate::layout::accumulator_coord;
use crate::pipeline::{self, AsyncProxy, GenericProxy, Loaded, Operand, Pipeline};
use crate::ptx::{self, Accumulators, Wgmma, WgmmaHalfRegisters};
use crate::shared::SharedAddress;
use crate::tile::registers::{Fragment, ROWS};
use crate::warpgroup::{self, BOX_COLUMNS, Boxed, RegisterOperand, WARP_ROWS};
use crate::{thread, warp};

/// Warpgroups that have rows.
const WARPGROUPS: u32 = 2;
/// Rows of a tile.
pub const BLOCK_ROWS: u32 = WARPGROUPS * warpgroup::ROWS;
/// Threads of a block.
pub const THREADS: u32 = (1 + WARPGROUPS) * warpgroup::THREADS;
/// Blocks of others that a ring holds.
const STAGES: u32 = 2;
/// Bytes of the numbers of a row.
const ROW_BYTES: u32 = ROW_NUMBERS * 4;
/// Where they have the log-sum-exp as that of powers of 2, and Δ behind it.
const POWER_AT: u32 = 8;

/// The sizes of a tile.
pub trait HopperShape: 'static {
    /// A warpgroup's scores: 64 rows, and a block of others.
    type Scores: Accumulators;
    /// Its weights, rounded.
    type Weights: RegisterOperand + Loaded;
    /// A warpgroup's sums: 64 rows, and the columns of Q and K, or of V.
    type Sums: Accumulators;
}

/// A type of elements that a tile of shape `S` multiplies.
pub trait HopperElement<S: HopperShape>:
    Wgmma<S::Scores> + WgmmaHalfRegisters<S::Sums> + HalfElement + OutputElement
{
}

impl<S: HopperShape, T> HopperElement<S> for T where
    T: Wgmma<S::Scores> + WgmmaHalfRegisters<S::Sums> + HalfElement + OutputElement
{
}

/// The tensors that a launch reads, as [`Rows`] says: boxes of 64 rows of the tiles' own, and of a block of others.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    /// The tiles' rows: of Q, or of K.
    pub own: &'a TensorMap,
    /// Of the same rows dY, or V.
    pub second: &'a TensorMap,
    /// The others: of K, or of Q.
    pub others: &'a TensorMap,
    /// Of the same others V, or dY.
    pub second_others: &'a TensorMap,
}

/// What else a launch is told.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct HopperTensors {
    /// The gradient of the tiles' rows: dQ, or dK. Null if it is not asked for.
    pub own: Strided,
    /// dV. Null if it is not asked for.
    pub dv: Strided,
    /// [`ROW_NUMBERS`] of each row of Q, in the order of log-sum-exps; behind the last row those of a block of others more.
    pub rows: Global<f32>,
    /// Columns of Q and K.
    pub columns: u32,
    /// Columns of V and dY.
    pub value_columns: u32,
    /// What dQ or dK is multiplied by.
    pub scale: f32,
    /// What products of Q and K are multiplied by to be exponents of 2.
    pub factor: f32,
    /// 1 if both tensors of others end where sequences do, else 0.
    pub ends: u32,
    /// Rows from one sequence to the next of the others, where they end and sequences are padded.
    pub others_sequence: u32,
    /// The same of the second others.
    pub second_sequence: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// A tile of shape `S` that gives `G`.
pub struct HopperTile<S, G>(PhantomData<(S, G)>);

/// What a block of a launch works on.
#[derive(Clone, Copy)]
struct Problem<'a> {
    tensors: &'a HopperTensors,
    sizes: &'a Sizes,
    tiles: &'a Tiles,
    /// The tile's place in the order.
    index: u32,
}

impl Problem<'_> {
    /// The tile's rows, if there are any. Each time anew, so that nobody keeps them in registers.
    ///
    /// # Safety
    ///
    /// As [`Tiles::work`].
    #[inline(always)]
    unsafe fn work(&self) -> Option<Work> {
        // SAFETY: the caller's promise.
        unsafe { self.tiles.work(ptx::opaque(self.index)) }
    }

    /// The heads of others: the first, and the one behind the last.
    #[inline(always)]
    fn heads<G: Gives>(&self, work: &Work) -> [u32; 2] {
        if G::OF_KEYS {
            let group = self.sizes.group.max(1);
            [work.head * group, (work.head + 1) * group]
        } else {
            let head = self.sizes.key_head(work);
            [head, head + 1]
        }
    }

    /// The blocks of so many others: the first, and the one behind the last.
    #[inline(always)]
    fn blocks(&self, work: &Work, of_block: u32) -> [u32; 2] {
        let [first, end] = work.within;
        [first / of_block, end.div_ceil(of_block)]
    }

    /// Where the numbers of row `row` of a head of Q are.
    #[inline(always)]
    fn numbers(&self, head: u32, work: &Work, row: u32) -> u64 {
        let sizes = self.sizes;
        let number = sizes.lse_batch * work.place.batch as u64 + sizes.lse_head * head as u64 + row as u64;
        self.tensors.rows.offset(number * ROW_NUMBERS as u64).address()
    }
}

/// A warpgroup that has rows.
struct Consumer {
    own: pipeline::Consumer<1, 1, AsyncProxy>,
    others: pipeline::Consumer<STAGES, 1, GenericProxy>,
    second: pipeline::Consumer<STAGES, 1, AsyncProxy>,
    /// Its number among those that have rows.
    index: u32,
}

/// A warpgroup's sums.
struct Summed<C> {
    own: Fragment<C>,
    values: Fragment<C>,
}

/// The log-sum-exp of a row as that of powers of 2, and Δ.
type RowTerms = [f32; 2];

/// The numbers of others, where these are queries: in shared memory, of the thread's first column.
#[derive(Clone, Copy)]
struct OtherTerms(SharedAddress);

impl OtherTerms {
    /// Number `number` of the thread's two columns of a fragment.
    ///
    /// # Safety
    ///
    /// They have come.
    #[inline(always)]
    unsafe fn of(self, fragment: usize, number: u32) -> [f32; 2] {
        let at = self.0.offset(fragment as u32 * 8 * ROW_BYTES + POWER_AT + number * 4);
        // SAFETY: the caller's promise.
        [0, 1]
            .map(|column| unsafe { f32::from_bits(ptx::ld_shared_b32(at.offset(column * ROW_BYTES).get())) })
    }
}

impl<S: HopperShape, G: Gives> HopperTile<S, G> {
    /// Others of a block.
    pub const OTHERS: u32 = {
        assert!(S::Weights::STEPS * warpgroup::STEP == S::Scores::COLUMNS, "weights for all others");
        S::Scores::COLUMNS
    };
    const STEPS: u32 = {
        assert!(S::Sums::COLUMNS.is_multiple_of(warpgroup::STEP), "whole steps");
        S::Sums::COLUMNS / warpgroup::STEP
    };
    const BOXES: u32 = S::Sums::COLUMNS.div_ceil(BOX_COLUMNS);
    /// Bytes of a warpgroup's rows of one of two matrices.
    const OWN_BYTES: u32 = Boxed::bytes(warpgroup::ROWS, Self::BOXES);
    /// Matrices of the tile's rows: dV needs no product of V.
    const OWN: u32 = if G::OWN { 2 } else { 1 };
    /// Bytes of a block of others of one of two matrices.
    const OTHER_BYTES: u32 = Boxed::bytes(Self::OTHERS, Self::BOXES);
    /// Bytes of their numbers, where they are queries.
    const NUMBER_BYTES: u32 = if G::OF_KEYS { Self::OTHERS * ROW_BYTES } else { 0 };
    const SECOND_OWN_AT: u32 = WARPGROUPS * Self::OWN_BYTES;
    const OTHERS_AT: u32 = Self::OWN * WARPGROUPS * Self::OWN_BYTES;
    const SECOND_AT: u32 = Self::OTHERS_AT + STAGES * Self::OTHER_BYTES;
    const NUMBERS_AT: u32 = Self::SECOND_AT + STAGES * Self::OTHER_BYTES;
    const OWN_BARRIERS_AT: u32 = Self::NUMBERS_AT + STAGES * Self::NUMBER_BYTES;
    const OTHER_BARRIERS_AT: u32 = Self::OWN_BARRIERS_AT + Pipeline::<1, 1>::BYTES;
    const SECOND_BARRIERS_AT: u32 = Self::OTHER_BARRIERS_AT + Pipeline::<STAGES, 1>::BYTES;
    /// Shared memory of a block.
    pub const SHARED_BYTES: u32 = Self::SECOND_BARRIERS_AT + Pipeline::<STAGES, 1>::BYTES;

    #[inline(always)]
    fn at(bytes: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(bytes)
    }

    #[inline(always)]
    fn own_ring() -> Pipeline<1, 1> {
        Pipeline::at(Self::at(Self::OWN_BARRIERS_AT))
    }

    #[inline(always)]
    fn other_ring() -> Pipeline<STAGES, 1> {
        Pipeline::at(Self::at(Self::OTHER_BARRIERS_AT))
    }

    #[inline(always)]
    fn second_ring() -> Pipeline<STAGES, 1> {
        Pipeline::at(Self::at(Self::SECOND_BARRIERS_AT))
    }

    /// Computes the gradients of a tile's rows.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, on a one-dimensional grid of a block for each tile. The maps are as [`Maps`] says, the pointers valid for what the arguments describe, and what
    /// is written overlaps nothing else.
    #[inline(always)]
    pub unsafe fn run<T: HopperElement<S>>(
        maps: Maps<'_>,
        tensors: &HopperTensors,
        (sizes, sequences): (&Sizes, Sequences),
    ) {
        let tiles = Tiles::new(*sizes, sequences, BLOCK_ROWS);
        let block = thread::block_idx_x();
        // The longest come first: of a causal attention the last queries, and the first keys.
        let index = if G::OF_KEYS { sizes.tiles * sizes.rows_of_heads - 1 - block } else { block };
        let of = Problem { tensors, sizes, tiles: &tiles, index };
        // SAFETY: the caller's promise; one thread makes the barriers, and the others wait for it. 24 · 128 + 240 · 256 are the registers of all threads. Each row
        // belongs to one warpgroup.
        unsafe {
            if thread::thread_idx_x() == 0 {
                Self::own_ring().init(4 * WARPGROUPS);
                Self::other_ring().init(4 * WARPGROUPS);
                Self::second_ring().init(4 * WARPGROUPS);
            }
            thread::sync_threads();
            let warpgroup = warpgroup::index();
            if warpgroup == 0 {
                ptx::setmaxnreg_dec::<24>();
                if thread::thread_idx_x() == 0 {
                    Self::load(maps, of);
                }
            } else {
                ptx::setmaxnreg_inc::<240>();
                let consumer = Consumer {
                    own: Self::own_ring().consumer(),
                    others: Self::other_ring().consumer(),
                    second: Self::second_ring().consumer(),
                    index: warpgroup - 1,
                };
                // The first turn is warpgroup 0's, and the last one, too.
                let index = consumer.index;
                if index == WARPGROUPS - 1 {
                    warpgroup::pass_turn(index, WARPGROUPS);
                }
                Self::find::<T>(consumer, of);
                if index == 0 {
                    warpgroup::wait_for_turn(index);
                }
            }
        }
    }

    /// Finds the gradients of the warpgroup's rows of a tile.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it. The rest is as of [`run`](Self::run).
    #[inline(always)]
    unsafe fn find<T: HopperElement<S>>(consumer: Consumer, of: Problem<'_>) {
        // SAFETY: the caller's promise.
        unsafe {
            let summed = Self::sum::<T>(consumer, of);
            let Some(work) = of.work() else { return };
            let row = work.row + (warp::warp_id() - 4) * WARP_ROWS;
            let HopperTensors { own, dv, columns, value_columns, scale, .. } = *of.tensors;
            if G::OWN {
                store::<T, _>(&summed.own, own, [0, columns], scale, &work, row);
            }
            if G::VALUES {
                store::<T, _>(&summed.values, dv, [0, value_columns], 1.0, &work, row);
            }
        }
    }

    /// Has the tile's rows and all others copied.
    ///
    /// # Safety
    ///
    /// One thread calls it. The rest is as of [`run`](Self::run).
    #[inline(always)]
    unsafe fn load(maps: Maps<'_>, of: Problem<'_>) {
        // SAFETY: the caller's promise.
        let Some(work) = (unsafe { of.work() }) else { return };
        let batch = work.place.batch;
        let [first, end] = of.blocks(&work, Self::OTHERS);
        if first >= end {
            return;
        }
        let (mut others, mut second) = (Self::other_ring().producer(), Self::second_ring().producer());
        // SAFETY: a stage's bytes are those of its boxes; nothing touches it before it is full. The rest is the caller's promise.
        unsafe {
            let own = Self::own_ring().producer().acquire(Self::OTHERS_AT);
            for warpgroup in 0..WARPGROUPS {
                let row = work.row + warpgroup * warpgroup::ROWS;
                let first = work.place.row + row;
                let rows = Rows::in_tensor(first, warpgroup::ROWS, work.head, batch);
                let to = Self::at(warpgroup * Self::OWN_BYTES);
                rows.load(maps.own, to, own.full.address(), Self::BOXES);
                if G::OWN {
                    rows.load(maps.second, to.offset(Self::SECOND_OWN_AT), own.full.address(), Self::BOXES);
                }
            }
            let [mut head, last_head] = of.heads::<G>(&work);
            while head < last_head {
                let mut block = first;
                while block < end {
                    let row = block * Self::OTHERS;
                    let in_tensor = work.place.key + row;
                    let rows = |sequence: u32| {
                        if of.tensors.ends != 0 {
                            let count = work.keys.saturating_sub(row);
                            Rows::in_sequence(in_tensor + batch * sequence, count, Self::OTHERS, head)
                        } else {
                            Rows::in_tensor(in_tensor, Self::OTHERS, head, batch)
                        }
                    };
                    let stage = others.acquire(Self::OTHER_BYTES + Self::NUMBER_BYTES);
                    let to = Self::at(Self::OTHERS_AT + stage.index * Self::OTHER_BYTES);
                    rows(of.tensors.others_sequence).load(maps.others, to, stage.full.address(), Self::BOXES);
                    if G::OF_KEYS {
                        let to = Self::at(Self::NUMBERS_AT + stage.index * Self::NUMBER_BYTES);
                        let from = of.numbers(head, &work, in_tensor);
                        ptx::cp_async_bulk_load(to.get(), from, Self::NUMBER_BYTES, stage.full.address());
                    }
                    let stage = second.acquire(Self::OTHER_BYTES);
                    let (to, full) =
                        (Self::at(Self::SECOND_AT + stage.index * Self::OTHER_BYTES), stage.full.address());
                    rows(of.tensors.second_sequence).load(maps.second_others, to, full, Self::BOXES);
                    // Opaque: what follows from it is worth no registers.
                    block = ptx::opaque(block + 1);
                }
                head = ptx::opaque(head + 1);
            }
        }
    }

    /// The sums of the warpgroup's rows over all others.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it; one thread [has](Self::load) the same tile copied.
    #[inline(always)]
    unsafe fn sum<T: HopperElement<S>>(mut consumer: Consumer, of: Problem<'_>) -> Summed<S::Sums> {
        let mut summed = Summed { own: Fragment(S::Sums::zero()), values: Fragment(S::Sums::zero()) };
        // SAFETY: stages are full when they are read, and given back when the products that read them have completed; nothing touches a
        // product's registers before. The rest is the caller's promise.
        unsafe {
            let Some(work) = of.work() else { return summed };
            let [first, end] = of.blocks(&work, Self::OTHERS);
            if first >= end {
                return summed;
            }
            let [begin, stop] = Self::others_of_all(consumer.index, of.sizes, &work);
            let terms = if G::OF_KEYS { [[0.0; 2]; ROWS] } else { Self::own_terms(of, &work) };
            let mut heads = if G::OF_KEYS { of.sizes.group.max(1) } else { 1 };
            let mut block = first;
            let own_stage = consumer.own.wait();
            while heads != 0 {
                let mut scores = Fragment(S::Scores::arbitrary());
                let mut gradient = Fragment(S::Scores::arbitrary());
                let stage = consumer.others.wait();
                let others = Self::others(
                    stage.operand(|index| Self::at(Self::OTHERS_AT + index * Self::OTHER_BYTES)),
                );
                // Each time anew: it is worth no registers from block to block.
                let own = own_stage.operand(|_| Self::at(ptx::opaque(consumer.index) * Self::OWN_BYTES));
                let second_own = Boxed::at(own.offset(Self::SECOND_OWN_AT), warpgroup::ROWS);
                let own = Boxed::at(own, warpgroup::ROWS);
                // The warpgroups take turns, so that the products of one run under the exponentials of the other.
                warpgroup::wait_for_turn(consumer.index);
                warpgroup::begin_product::<T, _>(&mut scores.0, own, others, Self::STEPS);
                let second_stage = consumer.second.wait();
                let second = Self::others(
                    second_stage.operand(|index| Self::at(Self::SECOND_AT + index * Self::OTHER_BYTES)),
                );
                if G::OWN {
                    warpgroup::begin_product::<T, _>(&mut gradient.0, second_own, second, Self::STEPS);
                    warpgroup::pass_turn(consumer.index, WARPGROUPS);
                    ptx::wgmma_wait_group::<1>();
                } else {
                    warpgroup::pass_turn(consumer.index, WARPGROUPS);
                    ptx::wgmma_wait_group::<0>();
                }
                scores.0.hold();
                let column = accumulator_coord(warp::lane_id(), 0).column;
                let of_others = OtherTerms(
                    stage
                        .address(|index| Self::at(Self::NUMBERS_AT + index * Self::NUMBER_BYTES))
                        .offset(column * ROW_BYTES),
                );
                let is_whole =
                    (block * Self::OTHERS) as i32 >= begin && ((block + 1) * Self::OTHERS) as i32 <= stop;
                Self::weigh(&mut scores, (terms, of_others), of.tensors.factor);
                if !is_whole {
                    Self::keep_within(&mut scores, of, block);
                }
                scores.map(|score, _, _| ptx::ex2_approx_ftz(score));
                let mut weights: S::Weights = scores.packed::<T, _>();
                let mut changes = weights;
                if G::VALUES {
                    warpgroup::begin_sum::<T, _, _>(&mut summed.values.0, &mut weights, second);
                }
                if G::OWN {
                    if G::VALUES {
                        ptx::wgmma_wait_group::<1>();
                    } else {
                        ptx::wgmma_wait_group::<0>();
                        consumer.second.release(second_stage);
                    }
                    gradient.0.hold();
                    Self::differentiate(&mut gradient, &scores, (terms, of_others), is_whole);
                    changes = gradient.packed::<T, _>();
                }
                // Before a sum reads the registers that the numbers have become.
                let stage = if G::OF_KEYS { stage.end_loads(&mut changes) } else { stage.without_loads() };
                if G::OWN {
                    warpgroup::begin_sum::<T, _, _>(&mut summed.own.0, &mut changes, others);
                }
                ptx::wgmma_wait_group::<0>();
                if G::VALUES {
                    warpgroup::end_sum(&mut summed.values.0, &mut weights);
                    consumer.second.release(second_stage);
                }
                if G::OWN {
                    warpgroup::end_sum(&mut summed.own.0, &mut changes);
                }
                consumer.others.release(stage);
                block += 1;
                if block == end {
                    heads -= 1;
                    // Again, so that the register is free meanwhile.
                    if let Some(work) = of.work() {
                        block = of.blocks(&work, Self::OTHERS)[0];
                    }
                }
            }
        }
        summed
    }

    #[inline(always)]
    fn others(first: Operand) -> Boxed {
        Boxed::at(first, Self::OTHERS)
    }

    /// The others that all of the warpgroup's rows have by their places: the first, and the one behind the last.
    #[inline(always)]
    fn others_of_all(index: u32, sizes: &Sizes, work: &Work) -> [i32; 2] {
        let row = work.row + index * warpgroup::ROWS;
        let last = (row + warpgroup::ROWS).min(work.rows).max(1) - 1;
        let [begin, _] = sizes.window.keys_of(last, work.offset, work.keys);
        let [_, end] = sizes.window.keys_of(row, work.offset, work.keys);
        [begin, end]
    }

    /// The first of the thread's two rows.
    #[inline(always)]
    fn own_row(work: &Work) -> u32 {
        let thread = ptx::opaque(thread::thread_idx_x());
        let (warp, at) = (thread / warp::SIZE - 4, accumulator_coord(thread % warp::SIZE, 0));
        work.row + warp * WARP_ROWS + at.row
    }

    /// The terms of the thread's two rows of queries.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run).
    #[inline(always)]
    unsafe fn own_terms(of: Problem<'_>, work: &Work) -> [RowTerms; ROWS] {
        let row = Self::own_row(work);
        [row, row + 8].map(|row| {
            let from = of.numbers(work.head, work, work.place.row + row) + POWER_AT as u64;
            // SAFETY: the caller's promise, of rows that are there.
            unsafe { ptx::ld_global_nc_v2_f32_if(from, row < work.rows) }
        })
    }

    /// Makes exponents of 2 of products of Q and K.
    ///
    /// # Safety
    ///
    /// Numbers of others have come.
    #[inline(always)]
    unsafe fn weigh(
        scores: &mut Fragment<S::Scores>,
        (own, others): ([RowTerms; ROWS], OtherTerms),
        factor: f32,
    ) {
        for fragment in 0..S::Scores::COLUMNS as usize / 8 {
            let terms = if G::OF_KEYS {
                // SAFETY: the caller's promise.
                let [even, odd] = unsafe { others.of(fragment, 0) };
                [even, odd, even, odd]
            } else {
                [own[0][0], own[0][0], own[1][0], own[1][0]]
            };
            for (index, term) in terms.into_iter().enumerate() {
                let score = &mut scores.0.as_mut()[4 * fragment + index];
                *score = ptx::fma(*score, factor, -term);
            }
        }
    }

    /// Makes scores −∞ that are of no row, or of none that it attends to.
    ///
    /// # Safety
    ///
    /// As [`Tiles::work`].
    #[inline(always)]
    unsafe fn keep_within(scores: &mut Fragment<S::Scores>, of: Problem<'_>, block: u32) {
        // Again, so that the registers are free otherwise.
        // SAFETY: the caller's promise.
        let Some(work) = (unsafe { of.work() }) else { return };
        let row = Self::own_row(&work);
        let column = accumulator_coord(warp::lane_id(), 0).column;
        let place = Place { rows: [row, row + 8], heads: [0; ROWS], key: block * Self::OTHERS + column };
        scores::keep_within(scores, of.sizes.window, &work, place, [0, work.keys]);
    }

    /// Makes dS of the products of dY and V.
    ///
    /// # Safety
    ///
    /// As [`weigh`](Self::weigh). `weights` are as they were rounded from.
    #[inline(always)]
    unsafe fn differentiate(
        gradient: &mut Fragment<S::Scores>,
        weights: &Fragment<S::Scores>,
        (own, others): ([RowTerms; ROWS], OtherTerms),
        is_whole: bool,
    ) {
        for fragment in 0..S::Scores::COLUMNS as usize / 8 {
            let terms = if G::OF_KEYS {
                // SAFETY: the caller's promise.
                let [even, odd] = unsafe { others.of(fragment, 1) };
                [even, odd, even, odd]
            } else {
                [own[0][1], own[0][1], own[1][1], own[1][1]]
            };
            for (index, term) in terms.into_iter().enumerate() {
                let index = 4 * fragment + index;
                let gradient = &mut gradient.0.as_mut()[index];
                *gradient = (*gradient - term) * weights.0.as_ref()[index];
            }
        }
        if !is_whole {
            // Not a product with zero: what is behind a sequence may be no numbers.
            for (gradient, &weight) in gradient.0.as_mut().iter_mut().zip(weights.0.as_ref()) {
                *gradient = if weight == 0.0 { 0.0 } else { *gradient };
            }
        }
    }
}
