//! What an optimiser moves, and what it moves it by.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::experts::{ExpertFormat, Part};
use crate::ops::embedding::SparseRows;
use crate::ops::peer::{ExpertGradients, ExpertTable};
use crate::ops::rows::{AnyTensor, RowElement};
use crate::tensor::{Element, Tensor};

/// Weights of a model: a tensor of f16, bf16 or f32, or a table of experts.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AnyWeights<'a> {
    /// A tensor.
    Tensor(AnyTensor<'a>),
    /// The vectors u, w and v of a table's experts.
    Experts(&'a ExpertTable),
}

impl<'a> AnyWeights<'a> {
    /// The tensor, if they are one.
    #[must_use]
    pub fn tensor(&self) -> Option<AnyTensor<'a>> {
        match *self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Experts(_) => None,
        }
    }
}

impl<'a> From<AnyTensor<'a>> for AnyWeights<'a> {
    fn from(tensor: AnyTensor<'a>) -> Self {
        Self::Tensor(tensor)
    }
}

impl<'a, T: RowElement> From<&'a Tensor<T>> for AnyWeights<'a> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self::Tensor(tensor.into())
    }
}

impl<'a> From<&'a ExpertTable> for AnyWeights<'a> {
    fn from(table: &'a ExpertTable) -> Self {
        Self::Experts(table)
    }
}

/// The gradient of weights: of all of them, or of some rows. Rows without one stay as they are, as do their moments: they do not decay either.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Gradient<'a> {
    /// Of all weights, of their shape.
    Tensor(AnyTensor<'a>),
    /// Of rows of weights `[V, D]`, as [`SparseRows`] has them.
    Rows {
        /// The rows' places, `[n]`.
        ids: &'a Tensor<u32>,
        /// The rows, `[n, D]`.
        rows: AnyTensor<'a>,
        /// How many there are, `[1]`.
        count: &'a Tensor<u32>,
    },
    /// Of experts of a table, as [`ExpertGradients`] has them.
    Experts {
        /// The experts' numbers, `[n]`.
        ids: &'a Tensor<u32>,
        /// Those of u, `[n, hidden, D]`.
        u: AnyTensor<'a>,
        /// Those of w likewise, if the units are gated.
        w: Option<AnyTensor<'a>>,
        /// Those of v, `[n, hidden, O]`.
        v: AnyTensor<'a>,
        /// How many experts there are, `[1]`.
        count: &'a Tensor<u32>,
    },
}

impl<'a> Gradient<'a> {
    /// The tensor, if it is one of all weights.
    #[must_use]
    pub fn tensor(&self) -> Option<AnyTensor<'a>> {
        match *self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Rows { .. } | Self::Experts { .. } => None,
        }
    }
}

impl<'a> From<AnyTensor<'a>> for Gradient<'a> {
    fn from(tensor: AnyTensor<'a>) -> Self {
        Self::Tensor(tensor)
    }
}

impl<'a, T: RowElement> From<&'a Tensor<T>> for Gradient<'a> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self::Tensor(tensor.into())
    }
}

impl<'a, R: RowElement> From<&'a SparseRows<R>> for Gradient<'a> {
    fn from(SparseRows { ids, rows, count }: &'a SparseRows<R>) -> Self {
        Self::Rows { ids, rows: rows.into(), count }
    }
}

impl<'a, R: RowElement> From<&'a ExpertGradients<R>> for Gradient<'a> {
    fn from(ExpertGradients { ids, u, w, v, count }: &'a ExpertGradients<R>) -> Self {
        Self::Experts { ids, u: u.into(), w: w.as_ref().map(AnyTensor::from), v: v.into(), count }
    }
}

#[cfg(test)]
impl<'a> Gradient<'a> {
    /// The tensor of all weights.
    pub(crate) fn whole(self) -> AnyTensor<'a> {
        self.tensor().expect("a gradient of all weights")
    }
}

/// A tensor of any type that an optimiser moves: a view of the memory that the model has.
#[derive(Clone, Debug)]
pub(super) enum Weights {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

impl Weights {
    pub(super) fn of(tensor: AnyTensor<'_>) -> Self {
        match tensor {
            AnyTensor::F16(tensor) => Self::F16(tensor.clone()),
            AnyTensor::Bf16(tensor) => Self::Bf16(tensor.clone()),
            AnyTensor::F32(tensor) => Self::F32(tensor.clone()),
        }
    }

    pub(super) fn any(&self) -> AnyTensor<'_> {
        match self {
            Self::F16(tensor) => tensor.into(),
            Self::Bf16(tensor) => tensor.into(),
            Self::F32(tensor) => tensor.into(),
        }
    }
}

/// The vectors of a table's experts as tensors `[N, hidden, D]` or `[N, hidden, O]`, each with its name: u, v, and w if the units are gated.
pub(super) fn vectors_of(
    operation: &'static str,
    table: &ExpertTable,
) -> Result<Vec<(&'static str, Weights)>> {
    let layout = table.layout();
    let all = [("u", Part::U), ("w", Part::W), ("v", Part::V)];
    let there = all.into_iter().filter(|&(_, part)| part != Part::W || layout.is_gated());
    there
        .map(|(name, part)| {
            let vectors = match layout.format() {
                ExpertFormat::F16 => Weights::F16(table.vectors(operation, part)?),
                ExpertFormat::Bf16 => Weights::Bf16(table.vectors(operation, part)?),
                ExpertFormat::F32 => Weights::F32(table.vectors(operation, part)?),
                format => {
                    return Err(Error::Argument {
                        operation,
                        argument: "experts",
                        expected: "numbers of f16, bf16 or f32".into(),
                        actual: format.to_string(),
                    });
                }
            };
            Ok((name, vectors))
        })
        .collect()
}

/// The gradient of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfTensor<'a> {
    pub(super) elements: AnyTensor<'a>,
    /// The rows that it has, and how many; without them it has all, in their order.
    pub(super) rows: Option<[&'a Tensor<u32>; 2]>,
}

impl OfTensor<'_> {
    /// How many rows it has, at most.
    pub(super) fn room(&self) -> usize {
        self.elements.shape().first().copied().unwrap_or(1)
    }
}

/// The bytes from a tensor's first element to its last one's end.
pub(super) fn place_of<T: Element>(tensor: &Tensor<T>) -> [u64; 2] {
    let start = tensor.device_address();
    [start, start + (tensor.span_elements() * size_of::<T>()) as u64]
}
