//! What the gradients of a product have in common: the gradient of its sums, and the sums of that over rows.
//!
//! For y = act(z), z = alpha · r\[m\] · c\[n\] · Σ + bias\[n\] + beta · residual\[m, n\], the gradient of z is dZ = dY ⊙ act′(z). One pass over dY writes
//! dZ · r · c, which both products of the backward pass read, and beta · dZ, and sums dZ over its rows for the bias.
//!
//! A thread has one chunk of neighbouring columns and walks down a strip of rows. The strips do not depend on the GPU, so neither does the order of the sums.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::epilogue::Activation;
use crate::float::{Bf16, Element, F16};
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, Kind, RowElement, THREADS};
use crate::shared::SharedAddress;
use crate::{ptx, thread};

/// Rows whose loads a thread starts together.
pub const ROWS: u32 = 4;
/// The most threads of a block that share a row.
pub const MOST_THREADS: u32 = 32;
/// Sums of teams that a thread reads together.
const TOGETHER: u32 = THREADS / MOST_THREADS;
/// The most columns of a thread.
const MOST_COLUMNS: u32 = 8;
/// Shared memory of a block, in bytes.
pub const SHARED_BYTES: u32 = THREADS * MOST_COLUMNS * 4;

/// Operands and results of [`linear_gradients`]. `T` is the type of y, and so of dY, z and the residual.
#[repr(C)]
pub struct LinearGradientParams<T> {
    /// The gradient of y.
    pub dy: Global<T>,
    /// Elements from one row of it to the next.
    pub dy_stride: u64,
    /// The argument of the activation, or, of ReLU, its value; null if the activation is none, or if there is a mask.
    pub z: Global<T>,
    /// Elements from one row of it to the next.
    pub z_stride: u64,
    /// Where ReLU's argument is above 0: column n is bit n mod 32 of word ⌊n / 32⌋ of a row. Null if there is none.
    pub mask: Global<u32>,
    /// Words from one row of it to the next.
    pub mask_stride: u64,
    /// What rows of `dz` are multiplied with; null if there is none.
    pub row_scale: Global<f32>,
    /// What columns of `dz` are multiplied with; null if there is none.
    pub column_scale: Global<f32>,
    /// Where dZ goes, with the scales.
    pub dz: AnyRows,
    /// Where `beta` · dZ goes.
    pub dresidual: AnyRows,
    /// Where the sums over rows go: a row for each strip.
    pub sums: AnyRows,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Rows of a strip.
    pub strip: u32,
    /// Threads of a block that share a row, a power of two up to [`MOST_THREADS`].
    pub threads: u32,
    /// 1, or 0 if all rows have the same scale.
    pub row_scale_stride: u32,
    /// 1, or 0 if all columns have the same scale.
    pub column_scale_stride: u32,
    /// What `dresidual` is multiplied with.
    pub beta: f32,
    /// The function whose slopes are taken at `z`.
    pub activation: Activation,
    /// Whether sums are added to what is there: 1 or 0.
    pub adds: u32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for LinearGradientParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LinearGradientParams<T> {}

// SAFETY: eight fields of eight bytes, three operands of 24, ten fields of four: no padding.
unsafe impl<T: 'static> KernelParam for LinearGradientParams<T> {}

/// What a thread has loaded of some rows.
struct Loaded<const WORDS: usize> {
    dy: [[u32; 4]; ROWS as usize],
    z: [[u32; 4]; ROWS as usize],
    /// The words with a chunk's bits: one if its columns are neighbours, else one for each.
    mask: [[u32; WORDS]; ROWS as usize],
    scale: [f32; ROWS as usize],
}

impl<const WORDS: usize> Loaded<WORDS> {
    /// Rows from `row` on, `step` apart; zeros of those from `end` on, and of operands that are not there.
    ///
    /// # Safety
    ///
    /// What `p` describes is valid for rows below `end`.
    #[inline(always)]
    unsafe fn new<T: RowElement, const PER: usize, const VECTOR: bool>(
        p: &LinearGradientParams<T>,
        all: Columns<PER, VECTOR>,
        chunk: u32,
        [row, step, end]: [u32; 3],
    ) -> Self {
        let mut loaded = Self {
            dy: [[0; 4]; ROWS as usize],
            z: [[0; 4]; ROWS as usize],
            mask: [[0; WORDS]; ROWS as usize],
            scale: [1.0; ROWS as usize],
        };
        let [has_z, has_mask, has_scale] = [!p.z.is_null(), !p.mask.is_null(), !p.row_scale.is_null()];
        for i in 0..ROWS as usize {
            let at = row + i as u32 * step;
            // No branch around them: what comes together behind one would wait for each load before the next.
            // SAFETY: the caller's promise; what is not there is not read.
            unsafe {
                let mine = all.only_if(at < end);
                loaded.dy[i] = mine.load_words::<T>(p.dy.offset(at as u64 * p.dy_stride).address(), chunk);
                let mine = all.only_if(at < end && has_z);
                loaded.z[i] = mine.load_words::<T>(p.z.offset(at as u64 * p.z_stride).address(), chunk);
                let mine = all.only_if(at < end && has_mask);
                let words = p.mask.offset(at as u64 * p.mask_stride);
                for j in 0..WORDS {
                    let word = words.offset((mine.column(chunk, j) / 32) as u64);
                    loaded.mask[i][j] = ptx::ld_global_b32_in_order_if(word.address(), mine.has(chunk, j));
                }
                let scale = p.row_scale.offset(at as u64 * p.row_scale_stride as u64);
                loaded.scale[i] = ptx::ld_global_f32_if(scale.address(), at < end && has_scale);
            }
        }
        loaded
    }

    /// The first of the rows, which the next one takes the place of.
    #[inline(always)]
    fn take(&mut self) -> ([u32; 4], [u32; 4], [u32; WORDS], f32) {
        let first = (self.dy[0], self.z[0], self.mask[0], self.scale[0]);
        for next in 1..ROWS as usize {
            self.dy[next - 1] = self.dy[next];
            self.z[next - 1] = self.z[next];
            self.mask[next - 1] = self.mask[next];
            self.scale[next - 1] = self.scale[next];
        }
        // All take turns, so that none is the same in later rounds, for which the compiler would unroll the loop.
        let last = ROWS as usize - 1;
        self.dy[last] = first.0;
        self.z[last] = first.1;
        self.mask[last] = first.2;
        self.scale[last] = first.3;
        first
    }
}

/// dZ, and its sums over the rows of each strip. Along x the grid has a block for each `p.threads` chunks of a row, along y one for each strip.
///
/// The threads that share a row are a team; the teams of a block take turns with the rows of a strip, and their sums are added in their order. `WORDS` is 1 if
/// `VECTOR`, else `PER`.
///
/// # Safety
///
/// All threads of the block call it. What `p` describes is valid, and aligned to chunks if `VECTOR`, but for the mask, the scales and the sums. What is written
/// overlaps nothing else, but `dz` or `dresidual` may be dY or z if their rows and types are the same. `p.threads` is a power of two up to [`MOST_THREADS`],
/// and a warp's unless `VECTOR`. The grid has blocks for all columns and for all strips. If sums are added to what is there, there is one strip.
#[inline(always)]
pub unsafe fn linear_gradients<T: RowElement, const PER: usize, const WORDS: usize, const VECTOR: bool>(
    p: &LinearGradientParams<T>,
) {
    const { assert!(PER as u32 <= MOST_COLUMNS && PER as u32 * MOST_THREADS <= THREADS, "a thread sums a column") };
    const { assert!(WORDS == if VECTOR { 1 } else { PER }, "a word for neighbours, or for each column") };
    // A power of two, which the compiler cannot know.
    let (id, shift) = (thread::thread_idx_x(), p.threads.trailing_zeros());
    let (rank, team, teams) = (id & (p.threads - 1), id >> shift, THREADS >> shift);
    let (chunk, strip) = (thread::block_idx_x(), thread::block_idx_y());
    let all = Columns::<PER, VECTOR>::new(rank, p.threads, p.columns);
    let first = strip * p.strip;
    let end = if p.rows - first < p.strip { p.rows } else { first + p.strip };
    let mut column_scales = [1.0; PER];
    if !p.column_scale.is_null() {
        for j in 0..PER {
            let at = all.column(chunk, j) as u64 * p.column_scale_stride as u64;
            // SAFETY: the caller's promise.
            column_scales[j] =
                unsafe { ptx::ld_global_f32_if(p.column_scale.offset(at).address(), all.has(chunk, j)) };
        }
    }
    let mut sums = [0.0; PER];
    let mut row = first + team;
    while row < end {
        // SAFETY: the caller's promise.
        let mut loaded = unsafe { Loaded::<WORDS>::new::<T, PER, VECTOR>(p, all, chunk, [row, teams, end]) };
        // A loop that is not unrolled: the functions stand once for all rows.
        let mut i = 0;
        while i < ROWS {
            let at = row + i * teams;
            i = ptx::opaque(i + 1);
            let (dy, z, mask, scale) = loaded.take();
            // Opaque, or all would be widened before the loop.
            let mut values: [f32; PER] = T::unpack(dy.map(ptx::opaque));
            if !p.z.is_null() {
                let mut slopes: [f32; PER] = T::unpack(z.map(ptx::opaque));
                p.activation.slopes(&mut slopes);
                for j in 0..PER {
                    values[j] *= slopes[j];
                }
            }
            if !p.mask.is_null() {
                for j in 0..PER {
                    let word = mask[j % WORDS];
                    values[j] *= (word >> (all.column(chunk, j) % 32) & 1) as f32;
                }
            }
            for j in 0..PER {
                sums[j] += values[j];
            }
            let mine = all.only_if(at < end);
            // SAFETY: the caller's promise; a thread stores where it has loaded.
            unsafe {
                if p.dresidual.is_there() {
                    let mut scaled = values;
                    for j in 0..PER {
                        scaled[j] *= p.beta;
                    }
                    mine.store_words::<T>(p.dresidual.row(at), chunk, T::pack(scaled));
                }
                if p.dz.is_there() {
                    let scale = if p.row_scale.is_null() { 1.0 } else { scale };
                    for j in 0..PER {
                        values[j] *= scale * column_scales[j];
                    }
                    mine.store(&p.dz, at, chunk, values);
                }
            }
        }
        row += ROWS * teams;
    }
    if !p.sums.is_there() {
        return;
    }
    let of_team = p.threads * PER as u32;
    let place = |team: u32, number: u32| SharedAddress::dynamic().offset((team * of_team + number) * 4).get();
    // SAFETY: each thread has places of its own; the barrier is between writing and reading. The column is this thread's.
    unsafe {
        for j in 0..PER {
            ptx::st_shared_f32(place(team, j as u32 * p.threads + rank), sums[j]);
        }
        thread::sync_threads();
        let owner = Columns::<PER, VECTOR>::new(rank, p.threads, p.columns);
        let column = owner.column(chunk, (id >> shift) as usize);
        if id >= of_team || column >= p.columns {
            return;
        }
        // There are at least as many teams as are read together, and a multiple of these.
        let (mut sum, mut team) = (0.0, 0);
        loop {
            let mut numbers = [0.0; TOGETHER as usize];
            for i in 0..TOGETHER {
                numbers[i as usize] = ptx::ld_shared_f32(place(team + i, id));
            }
            for i in 0..TOGETHER as usize {
                sum += numbers[i];
            }
            team = ptx::opaque(team + TOGETHER);
            if team >= teams {
                break;
            }
        }
        let to = p.sums.row(strip) + column as u64 * p.sums.kind.bytes() as u64;
        if p.sums.kind == Kind::F32 {
            put::<f32>(to, sum, p.adds != 0);
        } else if p.sums.kind == Kind::F16 {
            put::<F16>(to, sum, p.adds != 0);
        } else {
            put::<Bf16>(to, sum, p.adds != 0);
        }
    }
}

/// Stores a sum, or adds it to what is there.
///
/// # Safety
///
/// The address is one of an element of this thread's.
#[inline(always)]
pub(crate) unsafe fn put<T: Element>(to: u64, mut sum: f32, adds: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if adds {
            sum += T::load_if(Global::new(to), true).to_f32();
        }
        T::store_rounded(GlobalMut::new(to), sum);
    }
}
