//! Matrices that an operation reads or writes, as columns of larger ones: what is written beside them is found.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, s};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::tensor::{Element, Tensor};

use crate::cases::Placement;
use crate::cases::filled;

/// Matrices on the device, one below the other: columns of larger ones.
pub(super) struct Placed<U: Element> {
    all: Tensor<U>,
    shape: (usize, usize),
    columns: Range<usize>,
    filler: U,
}

impl<U: Element> Placed<U> {
    /// Of `shape` with the elements of `held`, or all of them `filler`, as everything beside them.
    pub(super) fn new(
        device: &Device,
        held: Option<&Array2<U>>,
        shape: (usize, usize),
        filler: U,
        placement: Placement,
    ) -> Result<Self> {
        let columns = placement.before..placement.before + shape.1;
        let shape = (shape.0, columns.end + placement.after);
        let mut all = filled(shape, filler)?;
        if let Some(held) = held {
            all.slice_mut(s![.., columns.clone()]).assign(held);
        }
        Ok(Self { all: Tensor::from_array(device, &all)?, shape, columns, filler })
    }

    /// The matrices, in the shape that `full` gives for so many columns.
    pub(super) fn tensor(&self, full: &impl Fn(usize) -> Vec<usize>) -> Result<Tensor<U>> {
        let shape = full(self.shape.1);
        let last = shape.len() - 1;
        self.all.reshape(shape)?.slice(last, self.columns.clone())
    }

    /// All of their memory, with what is beside them.
    pub(super) fn all(&self) -> &Tensor<U> {
        &self.all
    }

    pub(super) fn read(self) -> Result<Written<U>> {
        let all = matrix(self.shape, self.all.to_vec()?)?;
        Ok(Written { all, columns: self.columns, filler: self.filler })
    }
}

/// Matrices that an operation has written, one below the other: columns of larger ones.
pub(super) struct Written<U> {
    all: Array2<U>,
    columns: Range<usize>,
    /// What the other columns were filled with.
    filler: U,
}

impl<U: PartialEq> Written<U> {
    pub(super) fn inside(&self) -> ArrayView2<'_, U> {
        self.all.slice(s![.., self.columns.clone()])
    }

    /// How many of the other elements no longer hold what they were filled with.
    pub(super) fn strays(&self) -> usize {
        let beside =
            [self.all.slice(s![.., ..self.columns.start]), self.all.slice(s![.., self.columns.end..])];
        beside.iter().flatten().filter(|&value| *value != self.filler).count()
    }
}

fn matrix<U>(shape: (usize, usize), elements: Vec<U>) -> Result<Array2<U>> {
    Array2::from_shape_vec(shape, elements).map_err(|error| Error::Argument {
        operation: "validate",
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::Written;

    #[test]
    fn what_is_written_beside_the_columns_is_counted_and_nothing_else() {
        let all = array![[7, 1, 2, 7, 7], [9, 7, 3, 7, 8]];
        let written = Written { all, columns: 1..3, filler: 7 };
        assert_eq!(written.strays(), 2);
        assert_eq!(written.inside(), array![[1, 2], [7, 3]]);
    }
}
