//! Functions of the elements of tensors of one shape: sums, products, activations, conversions, and gradients of these.
//!
//! Which function it is, a kernel is told when it is launched: a branch that all threads take the same way. All arithmetic is in f32, and a result is rounded once.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::epilogue::Activation;
use crate::launch::{Global, KernelParam};
use crate::rows::{AnyRows, Columns, RowElement, THREADS, unpack_any};
use crate::{ptx, thread};

/// What is made of the elements a, b and c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Operation(u32);

impl Operation {
    /// act(a).
    pub const ACTIVATION: Self = Self(0);
    /// a + b.
    pub const ADD: Self = Self(1);
    /// a · b.
    pub const MULTIPLY: Self = Self(2);
    /// act(a) · b.
    pub const GATED: Self = Self(3);
    /// act′(a) · b.
    pub const ACTIVATION_GRADIENT: Self = Self(4);
    /// act′(a) · b · c, and act(a) · c.
    pub const GATED_GRADIENT: Self = Self(5);
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for Operation {}

/// Operands of an operation on elements; its results.
#[repr(C)]
pub struct ElementwiseParams<T> {
    /// The first operand.
    pub a: Global<T>,
    /// Elements from one row of it to the next.
    pub a_stride: u64,
    /// The second operand, if there is one.
    pub b: AnyRows,
    /// The third.
    pub c: AnyRows,
    /// The result.
    pub y: AnyRows,
    /// The second result of an operation that has two.
    pub z: AnyRows,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// What is made of the elements.
    pub operation: Operation,
    /// The function in it.
    pub activation: Activation,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for ElementwiseParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ElementwiseParams<T> {}

// SAFETY: two fields of eight bytes, four operands of 24, six fields of four: no padding.
unsafe impl<T: 'static> KernelParam for ElementwiseParams<T> {}

/// Chunks of a thread that are loaded together, of operations with so many operands.
#[must_use]
pub const fn chunks_of(operands: usize) -> u32 {
    match operands {
        1 => 4,
        2 => 2,
        _ => 1,
    }
}

/// Applies an operation of `OPERANDS` operands, of which threads load `CHUNKS` chunks together. Along x the grid has blocks for the columns, along y for the rows,
/// as many as it likes.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`; it has the operands and results of its operation. What is written overlaps nothing else, but each
/// result may be an operand of its type if their rows are the same. `p.threads` is a power of two up to [`THREADS`].
#[inline(always)]
pub unsafe fn apply_to_elements<
    T: RowElement,
    const PER: usize,
    const VECTOR: bool,
    const CHUNKS: usize,
    const OPERANDS: usize,
>(
    p: &ElementwiseParams<T>,
) {
    const { assert!(chunks_of(OPERANDS) == CHUNKS as u32) };
    // A power of two, which the compiler cannot know.
    let (id, shift) = (thread::thread_idx_x(), p.threads.trailing_zeros());
    let teams = THREADS >> shift;
    let mine = Columns::<PER, VECTOR>::new(id & (p.threads - 1), p.threads, p.columns);
    let is = |operation: Operation| ptx::opaque(p.operation.0) == operation.0;
    // SAFETY: the caller's promise; a thread stores where it has loaded.
    unsafe {
        let mut row = thread::block_idx_y() * teams + (id >> shift);
        while row < p.rows {
            let from = p.a.address() + row as u64 * p.a_stride * T::BYTES as u64;
            let mut first = thread::block_idx_x() * CHUNKS as u32;
            while mine.has(first, 0) {
                let (mut a, mut b, mut c) = ([[0; 4]; CHUNKS], [[0; PER]; CHUNKS], [[0; PER]; CHUNKS]);
                for i in 0..CHUNKS {
                    a[i] = mine.load_words::<T>(from, first + i as u32);
                }
                if OPERANDS > 1 {
                    b = mine.load_any::<CHUNKS>(&p.b, row, first);
                }
                if OPERANDS > 2 {
                    c = mine.load_any::<CHUNKS>(&p.c, row, first);
                }
                // A loop that is not unrolled: the functions stand once for all chunks. They take turns in the first place, so that none of them is the same in
                // later rounds, for which the compiler would unroll it.
                let mut i = 0;
                while i < CHUNKS as u32 {
                    let chunk = first + i;
                    i = ptx::opaque(i + 1);
                    let mut words = (a[0], b[0], c[0]);
                    for next in 1..CHUNKS {
                        a[next - 1] = a[next];
                        b[next - 1] = b[next];
                        c[next - 1] = c[next];
                    }
                    a[CHUNKS - 1] = words.0;
                    b[CHUNKS - 1] = words.1;
                    c[CHUNKS - 1] = words.2;
                    // Opaque, or all would be widened before the loop.
                    for word in words.0.iter_mut() {
                        *word = ptx::opaque(*word);
                    }
                    for j in 0..PER {
                        words.1[j] = if OPERANDS > 1 { ptx::opaque(words.1[j]) } else { 0 };
                        words.2[j] = if OPERANDS > 2 { ptx::opaque(words.2[j]) } else { 0 };
                    }
                    let values: [f32; PER] = T::unpack(words.0);
                    let mut result = [values];
                    if OPERANDS == 1 {
                        p.activation.apply_in_place(&mut result);
                        mine.store(&p.y, row, chunk, result[0]);
                        continue;
                    }
                    let others = unpack_any::<PER, VECTOR>(p.b.kind, words.1);
                    if OPERANDS == 3 {
                        let dy = unpack_any::<PER, VECTOR>(p.c.kind, words.2);
                        p.activation.apply_in_place(&mut result);
                        for j in 0..PER {
                            result[0][j] *= dy[j];
                        }
                        let mut of_gate = values;
                        p.activation.slopes(&mut of_gate);
                        for j in 0..PER {
                            of_gate[j] = of_gate[j] * others[j] * dy[j];
                        }
                        mine.store(&p.y, row, chunk, of_gate);
                        mine.store(&p.z, row, chunk, result[0]);
                        continue;
                    }
                    if is(Operation::ADD) {
                        for j in 0..PER {
                            result[0][j] += others[j];
                        }
                    } else {
                        if is(Operation::GATED) {
                            p.activation.apply_in_place(&mut result);
                        } else if is(Operation::ACTIVATION_GRADIENT) {
                            p.activation.slopes(&mut result[0]);
                        }
                        for j in 0..PER {
                            result[0][j] *= others[j];
                        }
                    }
                    mine.store(&p.y, row, chunk, result[0]);
                }
                first += thread::grid_dim_x() * CHUNKS as u32;
            }
            row += thread::grid_dim_y() * teams;
        }
    }
}
