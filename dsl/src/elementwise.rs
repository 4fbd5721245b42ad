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

/// Applies an operation of `OPERANDS` operands, of which each thread has a chunk. Along x the grid has blocks for the columns, along y for the rows.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`, where the last chunk of a row may be cut; it has the operands and results of its operation. What is
/// written overlaps nothing else, but each result may be an operand of its type if their rows are the same.
/// `p.threads` is a power of two up to [`THREADS`], as [`Columns`] takes them.
/// The grid has blocks for all columns and for all rows.
#[inline(always)]
pub unsafe fn apply_to_elements<
    T: RowElement,
    const PER: usize,
    const VECTOR: bool,
    const OPERANDS: usize,
>(
    p: &ElementwiseParams<T>,
) {
    // A power of two, which the compiler cannot know.
    let (id, shift) = (thread::thread_idx_x(), p.threads.trailing_zeros());
    let teams = THREADS >> shift;
    let mine = Columns::<PER, VECTOR>::new(id & (p.threads - 1), p.threads, p.columns);
    let are_alike = (OPERANDS < 2 || p.b.kind == T::KIND) && (OPERANDS < 3 || p.c.kind == T::KIND);
    let (row, chunk) = (thread::block_idx_y() * teams + (id >> shift), thread::block_idx_x());
    if row >= p.rows || !mine.has(chunk, 0) {
        return;
    }
    let from = p.a.address() + row as u64 * p.a_stride * T::BYTES as u64;
    // SAFETY: the caller's promise; a thread stores where it has loaded.
    unsafe {
        let is_cut = VECTOR && !mine.is_whole(chunk);
        // Each branch has all of its loads on their way before one is waited for.
        let a: [f32; PER];
        let (mut b, mut c) = ([0.0; PER], [0.0; PER]);
        if is_cut {
            a = mine.load_cut(T::KIND, from, chunk);
            if OPERANDS > 1 {
                b = mine.load_cut(p.b.kind, p.b.row(row), chunk);
            }
            if OPERANDS > 2 {
                c = mine.load_cut(p.c.kind, p.c.row(row), chunk);
            }
        } else if are_alike {
            let of_a = mine.load_words::<T>(from, chunk);
            let (mut of_b, mut of_c) = ([0; 4], [0; 4]);
            if OPERANDS > 1 {
                of_b = mine.load_words::<T>(p.b.row_of::<T>(row), chunk);
            }
            if OPERANDS > 2 {
                of_c = mine.load_words::<T>(p.c.row_of::<T>(row), chunk);
            }
            a = T::unpack(of_a);
            if OPERANDS > 1 {
                b = T::unpack(of_b);
            }
            if OPERANDS > 2 {
                c = T::unpack(of_c);
            }
        } else {
            let of_a = mine.load_words::<T>(from, chunk);
            let (mut of_b, mut of_c) = ([0; PER], [0; PER]);
            if OPERANDS > 1 {
                of_b = mine.load_any(&p.b, row, chunk);
            }
            if OPERANDS > 2 {
                of_c = mine.load_any(&p.c, row, chunk);
            }
            a = T::unpack(of_a);
            if OPERANDS > 1 {
                b = unpack_any::<PER, VECTOR>(p.b.kind, of_b);
            }
            if OPERANDS > 2 {
                c = unpack_any::<PER, VECTOR>(p.c.kind, of_c);
            }
        }
        let [y, z] = results::<PER, OPERANDS>(p.operation, p.activation, a, b, c);
        if is_cut {
            mine.store_cut(&p.y, row, chunk, y);
        } else {
            mine.store(&p.y, row, chunk, y);
        }
        if OPERANDS > 2 {
            if is_cut {
                mine.store_cut(&p.z, row, chunk, z);
            } else {
                mine.store(&p.z, row, chunk, z);
            }
        }
    }
}

/// The results of an operation of so many operands, of which that of three has two.
#[inline(always)]
fn results<const PER: usize, const OPERANDS: usize>(
    operation: Operation,
    activation: Activation,
    a: [f32; PER],
    mut b: [f32; PER],
    c: [f32; PER],
) -> [[f32; PER]; 2] {
    let is = |other: Operation| ptx::opaque(operation.0) == other.0;
    let mut first = [a];
    if OPERANDS == 1 {
        activation.apply_in_place(&mut first);
    } else if OPERANDS == 3 {
        let mut second = [a];
        activation.apply_in_place(&mut second);
        activation.slopes(&mut first[0]);
        for j in 0..PER {
            first[0][j] = first[0][j] * b[j] * c[j];
            b[j] = second[0][j] * c[j];
        }
    } else if is(Operation::ADD) {
        for j in 0..PER {
            first[0][j] += b[j];
        }
    } else {
        if is(Operation::GATED) {
            activation.apply_in_place(&mut first);
        } else if is(Operation::ACTIVATION_GRADIENT) {
            activation.slopes(&mut first[0]);
        }
        for j in 0..PER {
            first[0][j] *= b[j];
        }
    }
    [first[0], b]
}
