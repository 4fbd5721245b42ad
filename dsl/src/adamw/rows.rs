//! Gradients of rows: the sums of their squares, and the update of the rows that have one.
//!
//! A row is one vector of elements, or several: those of an expert's hidden units. Rows of weights may have gaps between them, as those of a table of experts have;
//! gradients, moments and the copy in f32 have none.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use super::squares::{sum_of_piece, unscale_of};
use super::update::{Step, factors_of, load, pack, round, store, unpack};
use super::{
    CHUNK, GradientPiece, KIND_F16, KIND_F32, PIECE, Scalars, StepFlags, UPDATE_THREADS, count_of,
    philox_4x32,
};
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::reduce::warp_sum;
use crate::rows::hidden;
use crate::{ptx, thread, warp};

/// Elements of a chunk.
const PER: usize = CHUNK as usize;
/// Chunks that a lane loads together, where they are aligned.
const LOADED: u32 = 2;
/// Rows that a block of [`update_rows`] has.
pub const ROWS_OF_BLOCK: u32 = UPDATE_THREADS / warp::SIZE;

/// What the kernels are told of a tensor and of its gradient.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AdamWRowsParams {
    /// The rows' numbers, different ones; null: row i of the gradient is that of row i.
    pub ids: Global<u32>,
    /// How many rows the gradient has; null: all that there is room for.
    pub count: Global<u32>,
    /// The address of the gradient, `[room, vectors, columns]`.
    pub gradient: u64,
    /// The address of the weights that move, `[rows, vectors, columns]`.
    pub weights: u64,
    /// The distances of their rows, and of their vectors, in elements.
    pub strides: [u64; 2],
    /// The address of the first moments, `[rows, vectors, columns]` in f32.
    pub means: u64,
    /// The address of the second ones, likewise, or `[rows, vectors]`.
    pub squares: u64,
    /// The address of the weights of 16 bits, if those that move are a copy of them in f32; else 0.
    pub rounded: u64,
    /// The distances of their rows, and of their vectors, in elements.
    pub rounded_strides: [u64; 2],
    /// Scalars of this step, of each tensor.
    pub scalars: GlobalMut<u32>,
    /// The loss scale, and what comes of this step.
    pub status: GlobalMut<u32>,
    /// The sum of squares of each piece of the gradient.
    pub sums: GlobalMut<f32>,
    /// What random bits are made from.
    pub seed: u64,
    /// The tensor's number.
    pub tensor: u32,
    /// Rows that the tensor has: ids that are not less count for nothing.
    pub rows: u32,
    /// Rows that the gradient has room for.
    pub room: u32,
    /// Vectors of a row.
    pub vectors: u32,
    /// Elements of a vector.
    pub columns: u32,
    /// The types of the weights that move, of the rounded ones and of the gradient.
    pub kinds: [u32; 3],
    /// What the step does.
    pub flags: StepFlags,
    /// What is true of the operands.
    pub traits: RowsFlags,
}

// SAFETY: fifteen numbers of eight bytes, ten of four: no padding.
unsafe impl KernelParam for AdamWRowsParams {}

/// What is true of the operands of [`AdamWRowsParams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct RowsFlags(pub u32);

impl RowsFlags {
    /// A chunk of each operand is aligned to its size, and vectors have whole chunks.
    pub const ALIGNED: u32 = 1;
    /// The gradient's first element is aligned to the size of a chunk.
    pub const GRADIENT_ALIGNED: u32 = 2;
    /// There is one second moment for each vector.
    pub const SHARED_SQUARES: u32 = 4;

    /// Whether all of these are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, flags: u32) -> bool {
        self.0 & flags == flags
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for RowsFlags {}

impl AdamWRowsParams {
    /// How many rows the gradient has.
    ///
    /// # Safety
    ///
    /// The count is valid for a read, if there is one.
    #[inline(always)]
    unsafe fn rows_of_gradient(&self) -> u32 {
        if self.count.address() == 0 {
            return self.room;
        }
        // SAFETY: the caller's promise.
        let count = unsafe { ptx::ld_global_b32(self.count.address()) };
        if count < self.room { count } else { self.room }
    }
}

/// Bytes of an element.
#[inline(always)]
const fn size_of(kind: u32) -> u64 {
    if kind == KIND_F32 { 4 } else { 2 }
}

/// Adds up the squares of a piece of [`PIECE`] elements of the gradient, as [`square_sums`](super::square_sums) does: rows that are not there are zeros.
/// The grid has a block for each piece that there is room for.
///
/// # Safety
///
/// The operands are what they are said to be. The block has a warp's shared memory for four bytes each.
#[inline(always)]
pub unsafe fn row_square_sums(p: &AdamWRowsParams) {
    let piece = thread::block_idx_x();
    // SAFETY: the caller's promise.
    unsafe {
        let length = p.rows_of_gradient() as u64 * p.vectors as u64 * p.columns as u64;
        let before = piece as u64 * PIECE as u64;
        let is_there = before < length;
        let gradient = GradientPiece {
            address: p.gradient + before * size_of(p.kinds[2]),
            is_f32: p.kinds[2] == KIND_F32,
            is_f16: p.kinds[2] == KIND_F16,
            is_aligned: p.traits.has(RowsFlags::GRADIENT_ALIGNED),
            is_there,
        };
        let count = if is_there { count_of(length, piece) } else { 0 };
        let total = sum_of_piece(&gradient, count, unscale_of(p.status, p.flags));
        if thread::thread_idx_x() == 0 {
            ptx::st_global_b32(p.sums.offset(piece as u64).address(), total.to_bits());
        }
    }
}

/// Moves the rows that the gradient has, as [`update`](super::update) does; with all rows, to the same bits. All other rows and their moments stay as they are.
///
/// A warp has a row. The grid has a block for each [`ROWS_OF_BLOCK`] rows that there is room for, in its second dimension as many as vectors, or fewer.
///
/// With [one second moment](RowsFlags::SHARED_SQUARES) for each vector, it is that of the mean of the gradient's squares. A lane adds up those of the first elements of its
/// chunks, the second ones, and so on, then these four sums, the first two and the last two first; [`warp_sum`] adds up the lanes' sums.
///
/// # Safety
///
/// The operands are what they are said to be; weights, moments and copies are nobody else's.
#[inline(always)]
pub unsafe fn update_rows(p: &AdamWRowsParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let scalars = Scalars::load(p.scalars, p.tensor);
        let factors = factors_of(p.status);
        let place = thread::block_idx_x() * ROWS_OF_BLOCK + warp::warp_id();
        if !scalars.is_active || place >= p.rows_of_gradient() {
            return;
        }
        let mut row = place;
        if p.ids.address() != 0 {
            row = ptx::ld_global_b32(p.ids.offset(place as u64).address());
        }
        if row >= p.rows {
            return;
        }
        let step = Step { scalars, factors };
        let mut vector = thread::block_idx_y();
        while vector < p.vectors {
            let vector_of = |row: u32| row as u64 * p.vectors as u64 + vector as u64;
            let at = |base: u64, kind: u32, strides: [u64; 2]| {
                base + (row as u64 * strides[0] + vector as u64 * strides[1]) * size_of(kind)
            };
            let (number, columns) = (vector_of(row), p.columns as u64);
            let is_shared = p.traits.has(RowsFlags::SHARED_SQUARES);
            let own = Vector {
                weights: at(p.weights, p.kinds[0], p.strides),
                rounded: if p.rounded == 0 { 0 } else { at(p.rounded, p.kinds[1], p.rounded_strides) },
                means: p.means + number * columns * 4,
                squares: p.squares + if is_shared { number * 4 } else { number * columns * 4 },
                gradient: p.gradient + vector_of(place) * columns * size_of(p.kinds[2]),
                first: number * columns,
                is_shared,
            };
            if p.traits.has(RowsFlags::ALIGNED) {
                own.update::<true>(p, &step);
            } else {
                own.update::<false>(p, &step);
            }
            vector += thread::grid_dim_y();
        }
    }
}

/// A vector of a row, whose elements begin at these addresses.
struct Vector {
    weights: u64,
    rounded: u64,
    means: u64,
    squares: u64,
    gradient: u64,
    /// The number of its first element among those of the tensor.
    first: u64,
    is_shared: bool,
}

impl Vector {
    /// # Safety
    ///
    /// As [`update_rows`]; all lanes of the warp call it. Operands are aligned if `ALIGNED`.
    #[inline(always)]
    unsafe fn update<const ALIGNED: bool>(&self, p: &AdamWRowsParams, step: &Step) {
        let (count, lane) = (p.columns, warp::lane_id());
        let loaded = if ALIGNED { LOADED } else { 1 };
        let mut divisor = 0.0;
        // SAFETY: the caller's promise; a lane stores where it has loaded, and the shared moment is written after the lanes have read it.
        unsafe {
            if self.is_shared {
                let sum = self.sum_of_squares::<ALIGNED>(p, step);
                let square = f32::from_bits(ptx::ld_global_b32(self.squares));
                let shared = ptx::fma(step.scalars.shares[1], sum / count as f32 - square, square);
                divisor = step.divisor(shared);
                warp::sync_warp();
                if lane == 0 {
                    ptx::st_global_b32(self.squares, shared.to_bits());
                }
            }
            let mut chunk = lane;
            while chunk * CHUNK < count {
                let [mut w, mut g, mut m, mut v] = [[[0; PER]; LOADED as usize]; 4];
                for c in 0..loaded {
                    let (at, i) = ((chunk + c * warp::SIZE) * CHUNK, c as usize);
                    w[i] = load_any::<ALIGNED>(p.kinds[0], self.weights, at, count);
                    g[i] = load_any::<ALIGNED>(p.kinds[2], self.gradient, at, count);
                    m[i] = load::<true, ALIGNED>(self.means, at, count);
                    if !self.is_shared {
                        v[i] = load::<true, ALIGNED>(self.squares, at, count);
                    }
                }
                for c in 0..loaded {
                    let (at, i) = ((chunk + c * warp::SIZE) * CHUNK, c as usize);
                    // A chunk's numbers are not widened before the other's are stored.
                    let [w, g, m, v] = [hidden(w[i]), hidden(g[i]), hidden(m[i]), hidden(v[i])];
                    let mut weights = unpack_any(p.kinds[0], w);
                    let gradients = unpack_any(p.kinds[2], g);
                    let (mut means, mut squares) = (m.map(f32::from_bits), v.map(f32::from_bits));
                    for j in 0..PER {
                        if self.is_shared {
                            let gradient = step.scaled(gradients[j]);
                            (weights[j], means[j]) = step.moved(weights[j], gradient, means[j], divisor);
                        } else {
                            (weights[j], means[j], squares[j]) =
                                step.element(weights[j], gradients[j], means[j], squares[j]);
                        }
                    }
                    if at >= count {
                        continue;
                    }
                    put::<true, ALIGNED>(self.means, at, count, means.map(f32::to_bits));
                    if !self.is_shared {
                        put::<true, ALIGNED>(self.squares, at, count, squares.map(f32::to_bits));
                    }
                    if p.kinds[0] == KIND_F32 {
                        put::<true, ALIGNED>(self.weights, at, count, weights.map(f32::to_bits));
                        if self.rounded != 0 {
                            let words = pack(weights, p.kinds[1] == KIND_F16);
                            put::<false, ALIGNED>(self.rounded, at, count, words);
                        }
                    } else {
                        let words = self.rounded_randomly::<ALIGNED>(p, step, at, weights);
                        put::<false, ALIGNED>(self.weights, at, count, words);
                    }
                }
                // Not unrolled: the loads of all rounds together take more registers than there are.
                chunk = ptx::opaque(chunk + loaded * warp::SIZE);
            }
        }
    }

    /// The sum of the squares of the gradient, times the factors; the same in all lanes.
    ///
    /// # Safety
    ///
    /// As [`update`](Self::update).
    #[inline(always)]
    unsafe fn sum_of_squares<const ALIGNED: bool>(&self, p: &AdamWRowsParams, step: &Step) -> f32 {
        let (count, mut sums) = (p.columns, [0.0; PER]);
        let mut chunk = warp::lane_id();
        // SAFETY: the caller's promise.
        unsafe {
            while chunk * CHUNK < count {
                let words = load_any::<ALIGNED>(p.kinds[2], self.gradient, chunk * CHUNK, count);
                let gradients = unpack_any(p.kinds[2], words);
                for j in 0..PER {
                    let gradient = step.scaled(gradients[j]);
                    sums[j] = ptx::fma(gradient, gradient, sums[j]);
                }
                chunk += warp::SIZE;
            }
            warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]))
        }
    }

    /// A chunk of weights of 16 bits, rounded randomly, two in a word. The random bits are those that the element's number gives.
    #[inline(always)]
    fn rounded_randomly<const ALIGNED: bool>(
        &self,
        p: &AdamWRowsParams,
        step: &Step,
        at: u32,
        weights: [f32; PER],
    ) -> [u32; PER] {
        let key = [p.seed as u32, (p.seed >> 32) as u32];
        let random_of = |element: u64| {
            let chunk = element / CHUNK as u64;
            philox_4x32([chunk as u32, (chunk >> 32) as u32, step.scalars.step, p.tensor], key)
        };
        let first = self.first + at as u64;
        let own = random_of(first);
        let mut words = [0; PER];
        if ALIGNED {
            for j in 0..PER {
                words[j / 2] |= (round(weights[j], p.kinds[0], own[j]) as u32) << (j % 2 * 16);
            }
            return words;
        }
        // The elements are those of two chunks of the tensor at most.
        let (next, before) = (random_of(first + CHUNK as u64 - 1), first as u32 % CHUNK);
        for j in 0..PER {
            let place = before + j as u32;
            let of = |i: usize| if place < CHUNK { own[i] } else { next[i] };
            let (low, high) = if place & 1 == 0 { (of(0), of(2)) } else { (of(1), of(3)) };
            let random = if place & 2 == 0 { low } else { high };
            words[j / 2] |= (round(weights[j], p.kinds[0], random) as u32) << (j % 2 * 16);
        }
        words
    }
}

/// [`load`] of a type that is known when it runs.
///
/// # Safety
///
/// As [`load`].
#[inline(always)]
unsafe fn load_any<const ALIGNED: bool>(kind: u32, base: u64, at: u32, count: u32) -> [u32; PER] {
    // SAFETY: the caller's promise.
    unsafe {
        if kind == KIND_F32 {
            load::<true, ALIGNED>(base, at, count)
        } else {
            load::<false, ALIGNED>(base, at, count)
        }
    }
}

/// [`unpack`] of a type that is known when it runs.
#[inline(always)]
fn unpack_any(kind: u32, words: [u32; PER]) -> [f32; PER] {
    if kind == KIND_F32 { unpack::<true>(words, false) } else { unpack::<false>(words, kind == KIND_F16) }
}

/// Stores the elements of a chunk before `count`, as [`load`] has them.
///
/// # Safety
///
/// The elements before `count` are valid for writes and this lane's; the chunk is aligned to its size, and whole, if `ALIGNED`.
#[inline(always)]
unsafe fn put<const F32: bool, const ALIGNED: bool>(base: u64, first: u32, count: u32, words: [u32; PER]) {
    // SAFETY: the caller's promise.
    unsafe {
        if ALIGNED {
            return store::<F32>(base, first, words);
        }
        for j in 0..PER {
            let at = first + j as u32;
            if at >= count {
                continue;
            }
            if F32 {
                ptx::st_global_b32(base + at as u64 * 4, words[j]);
            } else {
                ptx::st_global_b16(base + at as u64 * 2, (words[j / 2] >> (j % 2 * 16)) as u16);
            }
        }
    }
}
