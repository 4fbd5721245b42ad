//! Queries, keys, values and results of attention in memory that has more than them.

use ndarray::{Array4, ArrayViewMut4, ShapeError, s};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::tensor::{Element, Tensor};

use super::OPERATION;
use crate::cases::{self, AttentionLayout};

/// Elements before and after each row of [`AttentionLayout::Among`]: rows that start at multiples of 16 bytes stay so.
const BESIDE: usize = 8;

/// An array of `shape` with every element `value`.
pub(super) fn filled<U: Clone>(shape: [usize; 4], value: U) -> Result<Array4<U>> {
    let [batch, rows, heads, width] = shape;
    let elements = cases::filled((batch * rows, heads * width), value)?;
    elements.into_shape_with_order(shape).map_err(|error| other_shape(shape, &error))
}

fn other_shape(shape: [usize; 4], error: &ShapeError) -> Error {
    let (expected, actual) = (format!("{shape:?}"), error.to_string());
    Error::Argument { operation: OPERATION, argument: "shape", expected, actual }
}

/// A tensor `[B, S, H, D]`, or `[S, H, D]` of packed sequences, that is a part of other memory.
pub(super) struct Placed<U: Element> {
    all: Tensor<U>,
    view: Tensor<U>,
    shape: [usize; 4],
    layout: AttentionLayout,
    filler: U,
}

impl<U: Element> Placed<U> {
    /// Of these elements, with `filler` beside them.
    pub(super) fn new(
        device: &Device,
        elements: &Array4<U>,
        layout: AttentionLayout,
        filler: U,
        is_packed: bool,
    ) -> Result<Self> {
        let shape: [usize; 4] = elements.dim().into();
        let mut memory = filled(memory_shape(shape, layout), filler)?;
        part(&mut memory, shape, layout).assign(elements);
        let all = Tensor::from_array(device, &memory)?;
        let [_, rows, heads, width] = shape;
        let view = match layout {
            AttentionLayout::Rows => all.clone(),
            AttentionLayout::Heads => all.swap_axes(1, 2)?,
            AttentionLayout::Among => all.slice(2, 1..heads + 1)?.slice(3, BESIDE..BESIDE + width)?,
        };
        let view = if is_packed { view.reshape([rows, heads, width])? } else { view };
        Ok(Self { all, view, shape, layout, filler })
    }

    pub(super) fn view(&self) -> &Tensor<U> {
        &self.view
    }

    pub(super) fn view_mut(&mut self) -> &mut Tensor<U> {
        &mut self.view
    }

    /// All of the memory.
    pub(super) fn all(&self) -> &Tensor<U> {
        &self.all
    }

    /// The elements, and how many of those beside them no longer hold the filler.
    pub(super) fn read(self) -> Result<(Array4<U>, usize)> {
        let shape = memory_shape(self.shape, self.layout);
        let memory = Array4::from_shape_vec(shape, self.all.to_vec()?);
        let mut memory = memory.map_err(|error| other_shape(shape, &error))?;
        let mut inside = part(&mut memory, self.shape, self.layout);
        let elements = inside.to_owned();
        inside.fill(self.filler);
        Ok((elements, memory.iter().filter(|&&element| element != self.filler).count()))
    }
}

fn memory_shape([batch, rows, heads, width]: [usize; 4], layout: AttentionLayout) -> [usize; 4] {
    match layout {
        AttentionLayout::Rows => [batch, rows, heads, width],
        AttentionLayout::Heads => [batch, heads, rows, width],
        AttentionLayout::Among => [batch, rows, heads + 2, width + 2 * BESIDE],
    }
}

/// The elements in their memory.
fn part<U>(memory: &mut Array4<U>, shape: [usize; 4], layout: AttentionLayout) -> ArrayViewMut4<'_, U> {
    match layout {
        AttentionLayout::Rows => memory.view_mut(),
        AttentionLayout::Heads => memory.view_mut().permuted_axes([0, 2, 1, 3]),
        AttentionLayout::Among => memory.slice_mut(s![.., .., 1..=shape[2], BESIDE..BESIDE + shape[3]]),
    }
}
