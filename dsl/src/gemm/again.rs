//! Sums that are not finite, added up again.
//!
//! An f32 is multiplied as a sum of TF32 parts. The parts of an infinity are an infinity and a NaN, and a large number's product with
//! a part may overflow where the whole sum does not: then the sum of the parts says nothing. Whatever goes wrong so is infinite or NaN.
//!
//! So a warp looks at its accumulators when all products are added. If one is not finite, each such sum is added up again from global
//! memory: with fused multiply-adds of whole f32 numbers, one after the other along K. What comes of that is what IEEE 754 says of the
//! sum. Sums of finite numbers never become NaN: an accumulator that has overflowed stays infinite.
//!
//! The look takes one fused multiply-add for two accumulators. The second sum is slow, but few sums need one, or the matrix is lost anyway.

use core::marker::PhantomData;

use super::{MmaElement, MmaProducts};
use crate::float::Element;
use crate::layout::Coord;
use crate::ptx;
use crate::tile::Operand;
use crate::warp;

/// The numbers that a sum takes of one operand.
#[derive(Clone, Copy)]
pub struct Line {
    /// The address of the first.
    pub address: u64,
    /// Bytes from one to the next.
    pub step: u64,
}

impl Line {
    /// Row `row` of `operand`.
    #[inline(always)]
    #[must_use]
    pub fn row<T: Element>(operand: &Operand<T>, row: u32) -> Self {
        Self { address: operand.base.offset(row as u64 * operand.stride).address(), step: T::BYTES as u64 }
    }

    /// Column `column` of `operand`.
    #[inline(always)]
    #[must_use]
    pub fn column<T: Element>(operand: &Operand<T>, column: u32) -> Self {
        let step = operand.stride * T::BYTES as u64;
        Self { address: operand.base.offset(column as u64).address(), step }
    }

    /// The next number, which this moves on from.
    ///
    /// # Safety
    ///
    /// It is an f32 that is valid for reads, and nothing writes it while the kernel runs.
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self) -> f32 {
        // SAFETY: the caller's promise.
        let value = unsafe { ptx::ld_global_nc_f32(self.address) };
        self.address += self.step;
        value
    }
}

/// `start` and `count` products of f32 numbers, added one after the other.
///
/// # Safety
///
/// Both lines have so many f32 numbers, valid for reads, which nothing writes while the kernel runs.
#[inline(always)]
#[must_use]
pub unsafe fn add_products(start: f32, mut a: Line, mut b: Line, count: u32) -> f32 {
    let (mut sum, mut index) = (start, 0);
    while index < count {
        // SAFETY: the caller's promise.
        sum = unsafe { ptx::fma(a.take(), b.take(), sum) };
        // Opaque: the loop would be unrolled.
        index = ptx::opaque(index + 1);
    }
    sum
}

/// The sums of a lane's accumulators of a fragment: of both lines of A with both of B, row by row.
///
/// # Safety
///
/// As [`add_products`].
#[inline(always)]
pub(crate) unsafe fn sums_of_fragment(mut a: [Line; 2], mut b: [Line; 2], count: u32) -> [f32; 4] {
    let (mut sums, mut index) = ([0.0; 4], 0);
    while index < count {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { ([a[0].take(), a[1].take()], [b[0].take(), b[1].take()]) };
        add_step(&mut sums, a, b);
        // Opaque: the loop would be unrolled.
        index = ptx::opaque(index + 1);
    }
    sums
}

/// Adds the products of two numbers of A with two of B to a lane's accumulators of a fragment.
#[inline(always)]
pub(crate) fn add_step(sums: &mut [f32; 4], a: [f32; 2], b: [f32; 2]) {
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = ptx::fma(a[i / 2], b[i % 2], *sum);
    }
}

/// Whether a number is infinite or NaN.
#[inline(always)]
#[must_use]
pub(crate) fn is_not_finite(value: f32) -> bool {
    // Integers: a comparison of floats would be one more kind of instruction for the same work.
    value.to_bits() & INFINITY == INFINITY
}

/// The exponent of what is not finite.
const INFINITY: u32 = 0x7f80_0000;

/// Replaces those of `sums` that are not finite by what has been added up `again`.
#[inline(always)]
pub(crate) fn replace(sums: &mut [f32; 4], again: [f32; 4]) {
    for (sum, again) in sums.iter_mut().zip(&again) {
        *sum = if is_not_finite(*sum) { *again } else { *sum };
    }
}

/// What a lane has seen of its accumulators: finite as long as all of them were.
///
/// Products of neighbours are added, so half as many instructions see all. A product of large finite numbers may be infinite; then a warp
/// looks at each of its sums, finds nothing, and goes on.
#[derive(Clone, Copy)]
pub(crate) struct Seen([f32; 2]);

impl Seen {
    #[inline(always)]
    pub(crate) fn nothing() -> Self {
        Self([0.0; 2])
    }

    /// Looks at the four accumulators of a fragment.
    #[inline(always)]
    pub(crate) fn fragment(&mut self, [a, b, c, d]: [f32; 4]) {
        // Two sums: each waits for the one before it.
        self.0 = [ptx::fma(a, b, self.0[0]), ptx::fma(c, d, self.0[1])];
    }

    /// Whether a lane of the warp may have seen one that is not finite: the same for all lanes.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    pub(crate) unsafe fn has_infinities(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { any_lane(is_not_finite(self.0[0] + self.0[1])) }
    }
}

/// Whether `condition` holds for a lane of the warp.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
pub(crate) unsafe fn any_lane(condition: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ptx::vote_sync_ballot(condition) != 0 }
}

/// How the sums of an output are added up again.
pub trait Sums {
    /// Whether they may have to be.
    const ARE_SPLIT: bool;

    /// The sum at `at`.
    ///
    /// # Safety
    ///
    /// It is one of the output's. All lanes of the warp call it, each for its own.
    unsafe fn sum(&self, at: Coord) -> f32;
}

/// Sums of products that are not made of parts: they are what they are.
#[derive(Clone, Copy)]
pub struct Whole;

impl Sums for Whole {
    const ARE_SPLIT: bool = false;

    #[inline(always)]
    unsafe fn sum(&self, _: Coord) -> f32 {
        0.0
    }
}

/// Sums of products `P`, which a function adds up again.
#[derive(Clone, Copy)]
pub struct Again<P, F> {
    sum: F,
    products: PhantomData<P>,
}

impl<P: MmaProducts, F: Fn(Coord) -> f32> Again<P, F> {
    /// Those that `sum` adds up, which is asked for sums of the output only, by all lanes of a warp at a time.
    #[inline(always)]
    #[must_use]
    pub fn new(sum: F) -> Self {
        Self { sum, products: PhantomData }
    }
}

impl<P: MmaProducts, F: Fn(Coord) -> f32> Sums for Again<P, F> {
    const ARE_SPLIT: bool = P::IS_SPLIT;

    #[inline(always)]
    unsafe fn sum(&self, at: Coord) -> f32 {
        (self.sum)(at)
    }
}

/// The sums of the rows of A with the rows of B, where the products were `P`. `operands` gives both; it should do so from what takes no register in the meantime.
///
/// # Safety
///
/// The operands are valid for reads, and nothing writes them while the kernel runs.
#[inline(always)]
pub unsafe fn of_rows<T: MmaElement, P: MmaProducts>(operands: impl Fn() -> [Operand<T>; 2]) -> impl Sums {
    Again::<P, _>::new(move |at: Coord| {
        let [a, b] = operands();
        // SAFETY: the caller's promise: row and column are the output's.
        unsafe { add_products(0.0, Line::row(&a, at.row), Line::row(&b, at.column), a.k) }
    })
}

/// A part of an output that a warp has staged in shared memory. A lane has some neighbouring columns of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    /// The first element in the output.
    pub(crate) first: Coord,
    /// Rows and columns of the output.
    pub(crate) end: Coord,
    /// The lane's first row and column in the part.
    pub(crate) own: Coord,
    /// Rows from one of the lane's to the next, and past the last.
    pub(crate) rows: [u32; 2],
    /// The lane's columns of a row.
    pub(crate) columns: u32,
}

impl Staged {
    /// Has those sums added up again that are not finite; `place` says where each is.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, with the same numbers but for `own`. The part is in shared memory, visible to the warp, and no other warp
    /// touches it.
    #[inline(always)]
    pub(crate) unsafe fn mend<S: Sums>(&self, sums: &S, place: impl Fn(u32, u32) -> u32) {
        let [step, rows] = self.rows;
        let mut row = ptx::opaque(0);
        while row < rows {
            let mut column = ptx::opaque(0);
            while column < self.columns {
                let of_part = Coord { row: self.own.row + row, column: self.own.column + column };
                let place = place(of_part.row, of_part.column);
                let at =
                    Coord { row: self.first.row + of_part.row, column: self.first.column + of_part.column };
                // SAFETY: the caller's promise. All lanes go the same way: one without such a sum adds up the first, which is there, and leaves it.
                unsafe {
                    let due = is_not_finite(ptx::ld_shared_f32(place))
                        && at.row < self.end.row
                        && at.column < self.end.column;
                    if any_lane(due) {
                        let at = if due { at } else { Coord { row: 0, column: 0 } };
                        let sum = sums.sum(at);
                        ptx::st_shared_b32_if(place, sum.to_bits(), due);
                    }
                }
                column = ptx::opaque(column + 1);
            }
            row = ptx::opaque(row + step);
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() }
    }
}
