//! Linear layers that read or store more than x, w, a bias and y.

use anyhow::Result;
use warpsmith::ops;
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::linear::LinearInput;
use warpsmith::{Element, Error, Stream, Tensor};
use warpsmith_lab::benchmark::Subject;

use super::super::case::{Case, Extra, Operation};
use super::super::operands::{self, Operand};
use super::{Ours, scales, tensor};

/// A linear layer that reads or stores more than x, w, a bias and y.
pub(super) struct Extended<T: Element> {
    case: Case,
    stream: Stream,
    tile: Option<Tile>,
    parts: Option<u32>,
    pub(super) sets: Vec<ExtendedSet<T>>,
}

/// Operands of one launch. Clones share their memory.
#[derive(Clone)]
pub(super) struct ExtendedSet<T: Element> {
    x: Tensor<T>,
    w: Tensor<T>,
    bias: Option<Tensor<T>>,
    residual: Option<Tensor<T>>,
    /// Of the rows, and of the columns.
    scales: Option<[Tensor<f32>; 2]>,
    pub(super) mask: Option<Tensor<u32>>,
    pub(super) preactivation: Option<Tensor<T>>,
    pub(super) y: Tensor<T>,
}

impl<T: Element> ExtendedSet<T> {
    fn new(stream: &Stream, case: &Case) -> Result<Self> {
        let ([m, k, n], Operation { bias, extra, .. }) = (case.shape, case.operation);
        let drawn = |operand, shape: &[usize]| tensor::<T>(stream, case, operand, shape);
        let scales = || -> Result<_> {
            Ok([scales(stream, Operand::RowScale, m)?, scales(stream, Operand::ColumnScale, n)?])
        };
        let mask = || Tensor::zeros_on(stream, [m, n.div_ceil(32)]);
        Ok(Self {
            x: drawn(Operand::X, &[m, k])?,
            w: drawn(Operand::W, &[n, k])?,
            bias: bias.then(|| drawn(Operand::Bias, &[n])).transpose()?,
            residual: (extra == Extra::Residual).then(|| drawn(Operand::Residual, &[m, n])).transpose()?,
            scales: (extra == Extra::Scales).then(scales).transpose()?,
            mask: (extra == Extra::Mask).then(mask).transpose()?,
            preactivation: (extra == Extra::Preactivation)
                .then(|| Tensor::zeros_on(stream, [m, n]))
                .transpose()?,
            y: Tensor::zeros_on(stream, [m, n])?,
        })
    }

    /// The same in memory of its own; scales, which are small, stay where they are.
    fn copy(&self) -> Result<Self> {
        let copied = |tensor: &Option<Tensor<T>>| tensor.as_ref().map(Tensor::deep_clone).transpose();
        Ok(Self {
            x: self.x.deep_clone()?,
            w: self.w.deep_clone()?,
            bias: copied(&self.bias)?,
            residual: copied(&self.residual)?,
            scales: self.scales.clone(),
            mask: self.mask.as_ref().map(Tensor::deep_clone).transpose()?,
            preactivation: copied(&self.preactivation)?,
            y: self.y.deep_clone()?,
        })
    }
}

impl<T: LinearInput> Extended<T> {
    pub(super) fn new(stream: &Stream, case: Case) -> Result<Self> {
        let mut sets = vec![ExtendedSet::new(stream, &case)?];
        for _ in 1..operands::sets(stream, &case) {
            sets.push(sets[0].copy()?);
        }
        Ok(Self { case, stream: stream.clone(), tile: None, parts: None, sets })
    }

    /// The same operation on the same operands, by another tile.
    pub(super) fn with_tile(&self, tile: Option<Tile>, parts: Option<u32>) -> Self {
        Self { case: self.case, stream: self.stream.clone(), tile, parts, sets: self.sets.clone() }
    }

    /// What `run` makes of the operation on set number `index` and its output.
    fn with_op<R>(
        &self,
        index: usize,
        run: impl FnOnce(ops::linear::LinearOp<'_, T, T>, &mut Tensor<T>) -> R,
    ) -> R {
        let set = &self.sets[index % self.sets.len()];
        let (mut mask, mut preactivation, mut y) =
            (set.mask.clone(), set.preactivation.clone(), set.y.clone());
        let mut op = ops::linear(&set.x, &set.w)
            .bias(&set.bias)
            .activation(self.case.operation.activation)
            .precision(self.case.precision.asked())
            .tile(self.tile)
            .parts(self.parts)
            .on(&self.stream);
        if let Some(residual) = &set.residual {
            op = op.residual(residual, 1.0);
        }
        if let Some([rows, columns]) = &set.scales {
            op = op.row_scale(rows).column_scale(columns);
        }
        if let Some(mask) = &mut mask {
            op = op.relu_mask(mask);
        }
        if let Some(preactivation) = &mut preactivation {
            op = op.preactivation(preactivation);
        }
        run(op, &mut y)
    }
}

impl<T: LinearInput> Subject for Extended<T> {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        self.with_op(index, |op, y| op.run_into(y))
    }
}

impl<T: LinearInput> Ours for Extended<T> {
    fn implementation(&self) -> Result<String> {
        Ok(self.with_op(0, |op, _| op.implementation())?.to_string())
    }
}
