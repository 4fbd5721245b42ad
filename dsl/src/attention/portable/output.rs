//! Where rows of the result go.

use super::tensors::{Parts, Tensors};
use crate::attention::work::{Sizes, Work};
use crate::float::Element;
use crate::launch::GlobalMut;
use crate::ptx;

/// Where a row of the result goes.
#[derive(Clone, Copy)]
pub(in crate::attention) struct OutputRow {
    /// Whether it is written.
    is_written: bool,
    /// Whether it is one of those that count.
    pub(in crate::attention) counts: bool,
    /// Its place among the log-sum-exps.
    number: u64,
    /// The place of its first element: in O, or among its parts.
    first: u64,
}

impl OutputRow {
    /// Row `row` of the work's rows.
    #[inline(always)]
    pub(in crate::attention) fn of(
        tensors: &Tensors,
        sizes: &Sizes,
        parts: &Parts,
        part: u32,
        work: &Work,
        row: u32,
    ) -> Self {
        let [row, head] = sizes.row_and_head(work, row);
        let in_tensor = (work.place.row + row) as u64;
        let batch = work.place.batch as u64;
        let number = batch * sizes.lse_batch + head as u64 * sizes.lse_head + in_tensor;
        let first = if parts.count > 1 {
            (number * parts.count as u64 + part as u64) * Parts::columns(tensors.value_columns) as u64
        } else {
            let o = tensors.o;
            batch * o.sequence + in_tensor * o.row + head as u64 * o.head
        };
        Self { is_written: row < work.written, counts: row < work.rows, number, first }
    }

    /// # Safety
    ///
    /// As [`PortableTile::store`](super::PortableTile::store).
    #[inline(always)]
    pub(in crate::attention) unsafe fn store_lse(
        &self,
        lse: GlobalMut<f32>,
        parts: &Parts,
        part: u32,
        value: f32,
    ) {
        let to = if parts.count > 1 {
            parts.lse.offset(self.number * parts.count as u64 + part as u64)
        } else if lse.is_null() {
            return;
        } else {
            lse.offset(self.number)
        };
        if self.is_written {
            // SAFETY: the caller's promise.
            unsafe { ptx::st_global_b32(to.address(), value.to_bits()) };
        }
    }

    /// Stores two neighbouring columns, times `scale`. Of a part without weights nothing is stored: what adds parts up does not ask for it.
    ///
    /// # Safety
    ///
    /// As [`PortableTile::store`](super::PortableTile::store).
    #[inline(always)]
    pub(in crate::attention) unsafe fn store<T: Element>(
        &self,
        tensors: &Tensors,
        parts: &Parts,
        column: u32,
        values: [f32; 2],
        scale: f32,
    ) {
        let columns = tensors.value_columns;
        let columns = if parts.count > 1 { Parts::columns(columns) } else { columns };
        if !self.is_written || column >= columns || parts.count > 1 && scale == 0.0 {
            return;
        }
        // Not a product with zero: rows that do not count may be no numbers.
        let values = values.map(|value| if scale == 0.0 { 0.0 } else { value * scale });
        let to = self.first + column as u64;
        // SAFETY: the caller's promise.
        unsafe {
            if parts.count > 1 {
                ptx::st_global_v2_b32(parts.sums.offset(to).address(), values.map(f32::to_bits));
                return;
            }
            let to = tensors.o.first::<T>().offset(to);
            let has_next = column + 1 < tensors.value_columns;
            if has_next && to.address().is_multiple_of(2 * T::BYTES as u64) {
                T::store_rounded_2(to, values);
            } else {
                T::store_rounded(to, values[0]);
                if has_next {
                    T::store_rounded(to.offset(1), values[1]);
                }
            }
        }
    }
}
