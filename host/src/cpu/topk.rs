//! The k largest elements of each row on the CPU.

use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use super::number::Operand;
use crate::error::{Error, Result};

/// The operation's name in errors.
const OPERATION: &str = "cpu::topk";

/// An integer for each number, in the same order: a NaN of either sign is above every number, and −0 is 0.
pub(crate) fn order_key(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    // −0 + 0 is 0, and nothing else changes.
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// The best candidates so far, best first, with their ids; of equal ones the lowest id is the best.
pub(crate) struct Best {
    k: usize,
    entries: Vec<(u64, u32)>,
}

impl Best {
    /// An empty list for the `k` best.
    pub(crate) fn new(k: usize) -> Self {
        Self { k, entries: Vec::with_capacity(k + 1) }
    }

    /// Offers a number, in any order of ids.
    pub(crate) fn offer(&mut self, value: f64, id: u32) {
        let key = order_key(value);
        let beats = |&(other, other_id): &(u64, u32)| {
            (other, std::cmp::Reverse(other_id)) > (key, std::cmp::Reverse(id))
        };
        if self.entries.len() == self.k && self.entries.last().is_none_or(beats) {
            return;
        }
        let place = self.entries.partition_point(beats);
        self.entries.insert(place, (key, id));
        self.entries.truncate(self.k);
    }

    /// The ids, best first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|&(_, id)| id)
    }
}

/// Selects the k largest elements of each row of `x` `[M, N]`, best first, of equal ones the one that comes first: `values` and `ids`,
/// both `[M, k]`, are the elements and their columns.
///
/// Every NaN is above every number and equal to every other, and −0 is equal to 0.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, k exceeds N, or N the numbers of 32 bits.
pub fn topk<T: Operand>(
    x: ArrayView2<'_, T>,
    mut values: ArrayViewMut2<'_, T>,
    mut ids: ArrayViewMut2<'_, u32>,
) -> Result<()> {
    let ((rows, n), k) = (x.dim(), values.ncols());
    let shape = |operand, expected: String, actual: &[usize]| {
        Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
    };
    if values.nrows() != rows || k > n {
        return shape("values", format!("[{rows}, k] with k up to {n}, as x gives"), values.shape());
    }
    if ids.dim() != values.dim() {
        return shape("ids", format!("{:?}, as values has", values.shape()), ids.shape());
    }
    if u32::try_from(n).is_err() {
        return shape("x", "less than 2³² columns".into(), x.shape());
    }
    if k == 0 {
        return Ok(());
    }
    let written: Vec<_> = values.rows_mut().into_iter().zip(ids.rows_mut()).enumerate().collect();
    written.into_par_iter().for_each(|(row, (mut values, mut ids))| {
        let row = x.row(row);
        let mut best = Best::new(k);
        for (id, element) in row.iter().enumerate() {
            best.offer(f64::from(element.to_f32()), id as u32);
        }
        for ((value, place), id) in values.iter_mut().zip(ids.iter_mut()).zip(best.ids()) {
            (*value, *place) = (row[id as usize], id);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::f16;
    use ndarray::{Array2, array};

    use super::{Best, order_key, topk};
    use crate::error::Error;

    #[test]
    fn a_list_holds_what_sorting_gives() {
        let numbers: Vec<f64> = (0..200u32).map(|i| f64::from(i.wrapping_mul(7919) % 23) - 11.0).collect();
        let mut sorted: Vec<u32> = (0..200).collect();
        sorted.sort_by(|&a, &b| numbers[b as usize].total_cmp(&numbers[a as usize]).then(a.cmp(&b)));
        for k in [1, 2, 17, 64, 200] {
            for backwards in [false, true] {
                let mut best = Best::new(k);
                for i in 0..200u32 {
                    let id = if backwards { 199 - i } else { i };
                    best.offer(numbers[id as usize], id);
                }
                assert_eq!(best.ids().collect::<Vec<_>>(), sorted[..k], "{k}");
            }
        }
    }

    #[test]
    fn nan_is_the_largest_and_zeros_are_equal() {
        let x = array![[-0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -f32::NAN, -1.0, 1.0]];
        let (mut values, mut ids) = (Array2::zeros((1, 8)), Array2::zeros((1, 8)));
        topk(x.view(), values.view_mut(), ids.view_mut()).expect("the shapes fit");
        assert_eq!(ids, array![[4, 5, 3, 7, 0, 1, 6, 2]]);
        assert_eq!(values[[0, 4]].to_bits(), (-0.0f32).to_bits(), "elements are copied as they are");
        assert!(order_key(f64::NEG_INFINITY) < order_key(f64::MIN) && order_key(-1.0) < order_key(-0.5));
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let x = Array2::from_elem((2, 3), f16::ZERO);
        let run = |values: (usize, usize), ids: (usize, usize)| {
            let (mut values, mut ids) = (Array2::from_elem(values, f16::ZERO), Array2::zeros(ids));
            topk(x.view(), values.view_mut(), ids.view_mut())
        };
        run((2, 3), (2, 3)).expect("these fit");
        run((2, 0), (2, 0)).expect("none are none");
        for (values, ids) in [((2, 4), (2, 4)), ((1, 2), (1, 2)), ((2, 2), (2, 1))] {
            assert!(matches!(run(values, ids), Err(Error::Shape { .. })), "{values:?} {ids:?}");
        }
    }
}
