//! Tensors one after the other in one vector.

use std::ops::Range;

use warpsmith::{Element, Tensor};

use crate::error::{Result, argument};

/// Each tensor begins at a multiple of so many elements, so that kernels read it fast. Also the columns of a vector as a matrix.
pub(super) const ALIGNMENT: usize = 64;

/// Where tensors are in a vector.
#[derive(Clone, Debug, Default)]
pub(super) struct Packed {
    places: Vec<(Vec<usize>, Range<usize>)>,
    len: usize,
}

impl Packed {
    /// Adds a tensor after the others.
    pub(super) fn add(&mut self, shape: &[usize]) -> Result<()> {
        let count = shape.iter().try_fold(1usize, |count, &axis| count.checked_mul(axis));
        let end = count.and_then(|count| self.len.checked_add(count.checked_next_multiple_of(ALIGNMENT)?));
        let (Some(count), Some(end)) = (count, end) else {
            return Err(argument(
                "packing tensors",
                "shape",
                "elements that can be counted",
                format!("{shape:?}"),
            ));
        };
        self.places.push((shape.to_vec(), self.len..self.len + count));
        self.len = end;
        Ok(())
    }

    /// How many tensors there are.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Elements of the vector, a multiple of the alignment.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Tensor number `index` as a view of a vector.
    pub(super) fn view<T: Element>(&self, vector: &Tensor<T>, index: usize) -> Result<Tensor<T>> {
        let (shape, range) = &self.places[index];
        Ok(vector.slice(0, range.clone())?.reshape(shape)?)
    }

    /// All tensors as views of a vector.
    pub(super) fn views<T: Element>(&self, vector: &Tensor<T>) -> Result<Vec<Tensor<T>>> {
        (0..self.count()).map(|index| self.view(vector, index)).collect()
    }
}

/// A vector as rows, as operations on rows take it.
pub(super) fn as_rows<T: Element>(vector: &Tensor<T>) -> Result<Tensor<T>> {
    Ok(vector.reshape([vector.len() / ALIGNMENT, ALIGNMENT])?)
}
