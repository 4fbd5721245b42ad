//! Norms of rows.

use rayon::prelude::*;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::norm::NormParams;
use warpsmith_dsl::rows::AnyRows;

use super::{NormElement, NormGradientOp};
use crate::cpu::{self, Norm};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::rows::{
    AnyTensor, Piece, Plan, RowElement, Shares, Sizes, Variant, as_result_rows, as_rows, expect_rows,
    expect_shape, is_copied, is_in_place, launch_rows, rounded, rows_of, widened,
};
use crate::ops::{Implementation, expect_result};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Chunks that a thread of a kernel has.
const CHUNKS: u32 = 4;
/// What rows are normed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    pub(super) operation: &'static str,
    pub(super) weight: Option<AnyTensor<'a>>,
    pub(super) bias: Option<AnyTensor<'a>>,
    pub(super) weight_offset: f32,
    pub(super) epsilon: f32,
    pub(super) is_centered: bool,
}

/// A norm that has yet to run; see [`layer_norm`](super::layer_norm()) and [`rms_norm`](super::rms_norm()). `X` is the type of x, and `T` that of the rows that are
/// normed, which is another one only with a residual.
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct NormOp<'a, X: Element, T: Element = X> {
    pub(super) x: &'a Tensor<X>,
    pub(super) residual: Option<&'a Tensor<T>>,
    pub(super) options: Options<'a>,
    pub(super) stream: Option<&'a Stream>,
}

/// What [`NormOp::run_saving`] returns: the results that gradients are computed from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Normed<Y: Element, T: Element> {
    /// The normed rows, of the shape of x.
    pub y: Tensor<Y>,
    /// x and the residual together, of the shape of x; none without a residual.
    pub sum: Option<Tensor<T>>,
    /// The mean of each row, of the shape of x without its last axis; none of an RMS norm.
    pub mean: Option<Tensor<f32>>,
    /// 1 / √(variance + ε) of each row, of the same shape.
    pub inverse_deviation: Tensor<f32>,
}

/// Where [`NormOp::run_into`] writes results; what is none is not computed.
#[derive(Debug)]
pub struct NormOutputs<'o, Y: Element, T: Element> {
    /// The normed rows, of the shape of x; any strides with contiguous rows. It may be x or the residual itself.
    pub y: Option<&'o mut Tensor<Y>>,
    /// x and the residual together; needed with a residual. It may be x or the residual itself.
    pub sum: Option<&'o mut Tensor<T>>,
    /// The mean of each row, without gaps; not for an RMS norm.
    pub mean: Option<&'o mut Tensor<f32>>,
    /// 1 / √(variance + ε) of each row, without gaps.
    pub inverse_deviation: Option<&'o mut Tensor<f32>>,
}

// A derived one would ask for it of the element types.
impl<Y: Element, T: Element> Default for NormOutputs<'_, Y, T> {
    fn default() -> Self {
        Self { y: None, sum: None, mean: None, inverse_deviation: None }
    }
}

impl<'a, X: NormElement> NormOp<'a, X> {
    pub(super) fn new(operation: &'static str, x: &'a Tensor<X>, is_centered: bool) -> Self {
        let options =
            Options { operation, weight: None, bias: None, weight_offset: 0.0, epsilon: 1e-5, is_centered };
        Self { x, residual: None, options, stream: None }
    }

    /// The gradient of this norm for `dy`, the gradient of its result. x is what was normed: the sum, if there was a residual.
    pub fn backward(self, dy: &'a Tensor<X>) -> NormGradientOp<'a, X> {
        NormGradientOp::new(self, dy)
    }
}

impl<'a, X: NormElement, T: NormElement> NormOp<'a, X, T> {
    /// Adds `residual`, of the shape of x, to x first. The sum is rounded to the residual's type, and normed as it is then.
    pub fn residual<R: NormElement>(self, residual: &'a Tensor<R>) -> NormOp<'a, X, R> {
        NormOp { x: self.x, residual: Some(residual), options: self.options, stream: self.stream }
    }

    /// Multiplies the columns of normed rows by `weight` `[N]`; by ones unless it is set.
    pub fn weight(mut self, weight: impl Into<AnyTensor<'a>>) -> Self {
        self.options.weight = Some(weight.into());
        self
    }

    /// Adds `offset` to each weight: 1 where weights are stored as differences to 1.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.options.weight_offset = offset;
        self
    }

    /// Adds `bias` `[N]` to the columns.
    pub fn bias(mut self, bias: impl Into<AnyTensor<'a>>) -> Self {
        self.options.bias = Some(bias.into());
        self
    }

    /// What is added to the variance, 10⁻⁵ unless it is set.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.options.epsilon = epsilon;
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Norms the rows, to the type of x. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if x has no axis, or an operand does not fit it. [`Error::Argument`] if ε is negative or no number.
    /// [`Error::SizeLimit`] if x has 2³¹ rows or more, or as many columns. [`Error::DeviceMismatch`] if an operand or the
    /// stream is another device's. Otherwise whatever allocating the results, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<X>> {
        self.run_as()
    }

    /// Norms the rows, to elements of type `Y`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<Y: RowElement>(&self) -> Result<Tensor<Y>> {
        let stream = self.check()?.1;
        let mut y = Tensor::uninit_on(&stream, self.x.shape())?;
        let mut sum = self.new_sum(&stream)?;
        let outputs = NormOutputs { y: Some(&mut y), sum: sum.as_mut(), mean: None, inverse_deviation: None };
        self.run_into(outputs)?;
        Ok(y)
    }

    /// Norms the rows, and keeps what the gradients are computed from.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_saving<Y: RowElement>(&self) -> Result<Normed<Y, T>> {
        let stream = self.check()?.1;
        let mut y = Tensor::uninit_on(&stream, self.x.shape())?;
        let mut sum = self.new_sum(&stream)?;
        let leading = &self.x.shape()[..self.x.rank() - 1];
        let mut mean = match self.options.is_centered {
            true => Some(Tensor::uninit_on(&stream, leading)?),
            false => None,
        };
        let mut inverse_deviation = Tensor::uninit_on(&stream, leading)?;
        self.run_into(NormOutputs {
            y: Some(&mut y),
            sum: sum.as_mut(),
            mean: mean.as_mut(),
            inverse_deviation: Some(&mut inverse_deviation),
        })?;
        Ok(Normed { y, sum, mean, inverse_deviation })
    }

    fn new_sum(&self, stream: &Stream) -> Result<Option<Tensor<T>>> {
        self.residual.map(|_| Tensor::uninit_on(stream, self.x.shape())).transpose()
    }

    /// Norms the rows into tensors of the caller's, so that the work can be [captured](Stream::capture) with its results kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). [`Error::Argument`] if there is a residual and no place for the sum, or the reverse, or a place
    /// for the mean of an RMS norm. [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and
    /// [`Error::Overlap`] if a result does not fit, or shares memory with another tensor whose elements it does not replace.
    pub fn run_into<Y: RowElement>(&self, outputs: NormOutputs<'_, Y, T>) -> Result<()> {
        let _range = trace::operation(self.options.operation);
        let (sizes, stream) = self.check()?;
        self.check_outputs(&outputs)?;
        if sizes.rows == 0
            || sizes.columns == 0 && outputs.mean.is_none() && outputs.inverse_deviation.is_none()
        {
            return Ok(());
        }
        if self.x.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, outputs);
        }
        self.launch(sizes, &stream, outputs)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.check()?;
        let device = self.x.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        // A new result is aligned, and so is a copy.
        let of = |tensor: AnyRows, is_copied: bool| (!is_copied).then_some(tensor);
        let mut rows = vec![self.options.weight_row(), self.options.bias_row()];
        if let Ok(x) = self.x.flatten_leading() {
            rows.extend(of(rows_of(&x), is_copied(self.x)));
        }
        if let Some(Ok(residual)) = self.residual.map(Tensor::flatten_leading) {
            rows.extend(of(rows_of(&residual), self.residual.is_some_and(is_copied)));
        }
        let (shares, plan) = self.plan(sizes, &rows);
        let copies = usize::from(is_copied(self.x)) + usize::from(self.residual.is_some_and(is_copied));
        Ok(Implementation::kernel(device, kernel_name::<T>(shares, plan), plan.blocks).with_copies(copies))
    }

    fn plan(&self, sizes: Sizes, rows: &[AnyRows]) -> (Shares, Plan) {
        let properties = self.x.device().properties();
        let shares = Shares::of::<T>(sizes.columns, rows, CHUNKS);
        let plan = Plan::new(sizes, shares, properties.max_cluster);
        (shares, plan.spread(sizes, shares, properties.multiprocessors))
    }

    /// The sizes and the stream, or the first error of the operands.
    pub(super) fn check(&self) -> Result<(Sizes, Stream)> {
        let Options { operation, epsilon, .. } = self.options;
        let sizes = Sizes::of(operation, "x", self.x.shape())?;
        let device = self.x.device();
        let weights = [("weight", self.options.weight), ("bias", self.options.bias)];
        for (operand, tensor) in weights.into_iter().filter_map(|(name, tensor)| Some((name, tensor?))) {
            device.expect_same(operation, operand, tensor.device())?;
            expect_shape(operation, operand, tensor.shape(), &[sizes.columns], "x")?;
        }
        if let Some(residual) = self.residual {
            device.expect_same(operation, "residual", residual.device())?;
            expect_shape(operation, "residual", residual.shape(), self.x.shape(), "x")?;
        }
        if epsilon.is_nan() || epsilon < 0.0 {
            let (expected, actual) = ("a number that is not negative".into(), epsilon.to_string());
            return Err(Error::Argument { operation, argument: "epsilon", expected, actual });
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    fn check_outputs<Y: RowElement>(&self, outputs: &NormOutputs<'_, Y, T>) -> Result<()> {
        let Options { operation, is_centered, .. } = self.options;
        let (device, shape) = (self.x.device(), self.x.shape());
        let argument = |argument, expected: &str, actual: &str| {
            Err(Error::Argument { operation, argument, expected: expected.into(), actual: actual.into() })
        };
        match (self.residual, &outputs.sum) {
            (Some(_), None) => {
                return argument("outputs.sum", "a place for it, as there is a residual", "none");
            }
            (None, Some(_)) => {
                return argument("outputs.sum", "none, as there is no residual", "a place for it");
            }
            _ => {}
        }
        if outputs.mean.is_some() && !is_centered {
            return argument("outputs.mean", "none, as an RMS norm takes off no mean", "a place for it");
        }
        for (operand, result) in [("mean", &outputs.mean), ("inverse_deviation", &outputs.inverse_deviation)]
        {
            if let Some(result) = result {
                expect_result(operation, operand, result, device, &shape[..shape.len() - 1], "x")?;
            }
        }
        if let Some(y) = &outputs.y {
            expect_rows(operation, "y", y, device, (shape, "x"))?;
        }
        if let Some(sum) = &outputs.sum {
            expect_rows(operation, "sum", sum, device, (shape, "x"))?;
        }
        self.expect_apart(outputs)
    }

    /// The error for results that share memory with something that they do not replace element by element.
    fn expect_apart<Y: RowElement>(&self, outputs: &NormOutputs<'_, Y, T>) -> Result<()> {
        let operation = self.options.operation;
        let apart = |operand, other, shares: bool| match shares {
            true => Err(Error::Overlap { operation, operand, other }),
            false => Ok(()),
        };
        let mut results = Vec::new();
        if let Some(y) = &outputs.y {
            apart("y", "x", y.shares_memory(self.x) && !is_in_place(y, self.x))?;
            if let Some(residual) = self.residual {
                apart("y", "residual", y.shares_memory(residual) && !is_in_place(y, residual))?;
            }
            results.push(("y", y.span()));
        }
        if let Some(sum) = &outputs.sum {
            apart("sum", "x", sum.shares_memory(self.x) && !is_in_place(sum, self.x))?;
            if let Some(residual) = self.residual {
                apart("sum", "residual", sum.shares_memory(residual) && !is_in_place(sum, residual))?;
            }
            results.push(("sum", sum.span()));
        }
        for (name, vector) in [("mean", &outputs.mean), ("inverse_deviation", &outputs.inverse_deviation)] {
            let Some(vector) = vector else { continue };
            apart(name, "x", vector.shares_memory(self.x))?;
            apart(name, "residual", self.residual.is_some_and(|residual| vector.shares_memory(residual)))?;
            results.push((name, vector.span()));
        }
        for (index, (operand, span)) in results.iter().enumerate() {
            for (other, other_span) in &results[..index] {
                apart(operand, other, span.meets(other_span))?;
            }
            for (other, weight) in [("weight", self.options.weight), ("bias", self.options.bias)] {
                apart(operand, other, weight.is_some_and(|weight| span.meets(&weight.span())))?;
            }
        }
        Ok(())
    }

    fn launch<Y: RowElement>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        mut outputs: NormOutputs<'_, Y, T>,
    ) -> Result<()> {
        let operation = self.options.operation;
        let x = as_rows(self.x, stream)?;
        let residual = self.residual.map(|residual| as_rows(residual, stream)).transpose()?;
        let of_result = |result: &Option<&mut Tensor<T>>| {
            result.as_ref().map(|result| as_result_rows(operation, "sum", result)).transpose()
        };
        let sum = of_result(&outputs.sum)?;
        let y = outputs.y.as_ref().map(|y| as_result_rows(operation, "y", y)).transpose()?;
        let vectors = [self.options.weight, self.options.bias].into_iter().flatten().collect::<Vec<_>>();
        let rows = |tensor: Option<AnyRows>| tensor.unwrap_or(AnyRows::NONE);
        let [x_rows, y_rows] = [rows(Some(rows_of(&x))), rows(y.as_ref().map(rows_of))];
        let [residual_rows, sum_rows] = [&residual, &sum].map(|tensor| rows(tensor.as_ref().map(rows_of)));
        let (weight, bias) = (self.options.weight_row(), self.options.bias_row());
        let all = [x_rows, y_rows, residual_rows, sum_rows, weight, bias];
        let (shares, plan) = self.plan(sizes, &all);
        let mean = outputs.mean.as_mut().map_or(GlobalMut::new(0), |mean| mean.arg_mut());
        let deviation = outputs.inverse_deviation.as_mut().map_or(GlobalMut::new(0), |to| to.arg_mut());
        let args = |piece: Piece| {
            let params = NormParams {
                x: piece.of(x_rows),
                weight,
                bias,
                y: piece.of(y_rows),
                residual: Global::new(piece.of(residual_rows).base),
                sum: GlobalMut::new(piece.of(sum_rows).base),
                residual_stride: residual_rows.stride,
                sum_stride: sum_rows.stride,
                mean: piece.of_vector(mean),
                deviation: piece.of_vector(deviation),
                rows: piece.rows,
                columns: sizes.columns as u32,
                threads: plan.threads,
                rounds: plan.rounds,
                inverse: 1.0 / sizes.columns as f32,
                epsilon: self.options.epsilon,
                is_centered: u32::from(self.options.is_centered),
                reserved: 0,
            };
            (params,)
        };
        let mut operands: Vec<&dyn Operand> = vec![&x];
        operands.extend(vectors.iter().map(AnyTensor::operand));
        for tensor in [&residual, &sum].into_iter().flatten() {
            operands.push(tensor);
        }
        operands.extend(y.as_ref().map(|y| y as &dyn Operand));
        operands.extend(outputs.mean.as_deref().map(|mean| mean as &dyn Operand));
        operands.extend(outputs.inverse_deviation.as_deref().map(|to| to as &dyn Operand));
        // SAFETY: rows, columns and strides are those of the tensors, which were checked to be this device's, of the same shape, and apart or in place. The plan's
        // threads have all chunks of a row. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            match Variant::of(shares, plan) {
                Variant::Block => launch_rows::<T::Norm>(stream, plan, sizes.rows, args),
                Variant::BlockAny => launch_rows::<T::NormAny>(stream, plan, sizes.rows, args),
                Variant::Cluster => launch_rows::<T::NormCluster>(stream, plan, sizes.rows, args),
                Variant::ClusterAny => launch_rows::<T::NormClusterAny>(stream, plan, sizes.rows, args),
            }
        })
    }

    fn run_on_cpu<Y: RowElement>(&self, sizes: Sizes, outputs: NormOutputs<'_, Y, T>) -> Result<()> {
        let mut rows = widened(self.x)?;
        if let Some(residual) = self.residual {
            for (x, residual) in rows.iter_mut().zip(widened(residual)?) {
                *x = T::from_accumulator(*x + residual).to_f32();
            }
        }
        let [weight, bias] = self.options.numbers()?;
        let norm = self.options.norm(weight.as_deref(), bias.as_deref());
        let mut y = vec![0.0f32; rows.len()];
        let statistics = norm_rows(&rows, sizes.columns, &norm, &mut y);
        if let Some(to) = outputs.y {
            to.write_slice(&rounded::<Y>(&y))?;
        }
        if let Some(sum) = outputs.sum {
            sum.write_slice(&rounded::<T>(&rows))?;
        }
        // Of rows without elements the mean of nothing.
        let of = |f: fn(&cpu::Statistics<f32>) -> f32| match sizes.columns {
            0 => vec![f32::NAN; sizes.rows],
            _ => statistics.iter().map(f).collect::<Vec<_>>(),
        };
        if let Some(mean) = outputs.mean {
            mean.write_slice(&of(|statistics| statistics.mean))?;
        }
        if let Some(deviation) = outputs.inverse_deviation {
            deviation.write_slice(&of(|statistics| statistics.inverse_deviation))?;
        }
        Ok(())
    }
}

/// Norms rows of so many columns. Without the operands' types, so that programs have this once.
fn norm_rows(rows: &[f32], columns: usize, norm: &cpu::Norm<'_>, y: &mut [f32]) -> Vec<cpu::Statistics<f32>> {
    let columns = columns.max(1);
    let rows = y.par_chunks_mut(columns).zip(rows.par_chunks(columns));
    rows.map(|(y, x)| cpu::norm(x, norm, y)).collect()
}

impl<'a> Options<'a> {
    /// The weight as a kernel takes it.
    pub(super) fn weight_row(&self) -> AnyRows {
        let weight = self.weight.map_or(AnyRows::NONE, |weight| weight.as_row());
        AnyRows { offset: self.weight_offset, ..weight }
    }

    fn bias_row(&self) -> AnyRows {
        self.bias.map_or(AnyRows::NONE, |bias| bias.as_row())
    }

    /// The weight and the bias as numbers.
    pub(super) fn numbers(&self) -> Result<[Option<Vec<f32>>; 2]> {
        let of = |tensor: Option<AnyTensor<'a>>| tensor.map(AnyTensor::to_f32).transpose();
        Ok([of(self.weight)?, of(self.bias)?])
    }

    /// What the CPU norms with.
    pub(super) fn norm<'n>(&self, weight: Option<&'n [f32]>, bias: Option<&'n [f32]>) -> Norm<'n> {
        let &Self { weight_offset, epsilon, is_centered, .. } = self;
        Norm { weight, bias, weight_offset, epsilon, is_centered }
    }
}

fn kernel_name<T: NormElement>(shares: Shares, plan: Plan) -> &'static str {
    Variant::of(shares, plan).of_four::<T::Norm, T::NormAny, T::NormCluster, T::NormClusterAny>()
}
