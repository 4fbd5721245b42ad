//! Tiles in registers: a warpgroup's accumulators as a value, of which each thread has parts of two rows.

use crate::float::HalfElement;
use crate::ptx::Accumulators;
use crate::reduce::quad_max;
use crate::warpgroup::{RegisterOperand, STEP};

/// A warpgroup's 64 rows of accumulators. A thread has columns of two rows, eight apart, and shares them with the other three lanes of its
/// quad; [`accumulator_coord`](crate::layout::accumulator_coord) says which.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Fragment<C>(pub C);

/// Rows of which a thread has elements.
pub const ROWS: usize = 2;

/// Which of the thread's rows accumulator `index` is in.
#[inline(always)]
const fn row_of(index: usize) -> usize {
    index % 4 / 2
}

/// The column of accumulator `index`, counted from the thread's first.
#[inline(always)]
const fn column_of(index: usize) -> u32 {
    (index / 4 * 8 + index % 2) as u32
}

impl<C: Accumulators> Fragment<C> {
    /// Changes each element to what `f` makes of it, of its row (0 or 1), and of its column, counted from the thread's first.
    #[inline(always)]
    pub fn map(&mut self, f: impl Fn(f32, usize, u32) -> f32) {
        for (index, element) in self.0.as_mut().iter_mut().enumerate() {
            *element = f(*element, row_of(index), column_of(index));
        }
    }

    /// Multiplies each row by its factor.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: [f32; ROWS]) {
        self.map(|element, row, _| element * factors[row]);
    }

    /// The largest number of each row, and of `least`.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    pub unsafe fn max_of_rows(&self, least: [f32; ROWS]) -> [f32; ROWS] {
        // Two chains a row: each comparison waits for the one before.
        let mut largest = [least; 2];
        for (index, &element) in self.0.as_ref().iter().enumerate() {
            let (chain, row) = (index % 2, row_of(index));
            largest[chain][row] = largest[chain][row].max(element);
        }
        let [first, second] = largest;
        // SAFETY: the caller's promise.
        unsafe { [quad_max(first[0].max(second[0])), quad_max(first[1].max(second[1]))] }
    }

    /// The sum of this thread's elements of each row.
    #[inline(always)]
    pub fn partial_sums(&self) -> [f32; ROWS] {
        let mut sums = [[0.0; ROWS]; 2];
        for (index, &element) in self.0.as_ref().iter().enumerate() {
            sums[index % 2][row_of(index)] += element;
        }
        let [first, second] = sums;
        [first[0] + second[0], first[1] + second[1]]
    }

    /// The elements, rounded to `T`, as an operand A in registers.
    #[inline(always)]
    pub fn packed<T: HalfElement, A: RegisterOperand>(&self) -> A {
        const { assert!(A::STEPS * STEP == C::COLUMNS, "registers for all columns") };
        let all = self.0.as_ref();
        A::from_fn(|step, register| {
            let index = 8 * step + 2 * register;
            T::pack([all[index], all[index + 1]])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::accumulator_coord;

    #[test]
    fn elements_are_where_the_layout_says() {
        for lane in 0..32 {
            let first = accumulator_coord(lane, 0);
            for index in 0..64 {
                let at = accumulator_coord(lane, index as u32 % 4);
                assert_eq!(at.row, first.row + 8 * row_of(index) as u32);
                assert_eq!(at.column + index as u32 / 4 * 8, first.column + column_of(index));
            }
        }
    }
}
