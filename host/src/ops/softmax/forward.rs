//! The softmax of rows.

use rayon::prelude::*;
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::rows::AnyRows;
use warpsmith_dsl::softmax::SoftmaxParams;

use super::{SoftmaxElement, SoftmaxGradientOp, expect_scale};
use crate::cpu;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::ops::matrix::{has_unit_stride, row_stride};
use crate::ops::rows::{
    Piece, Plan, RowElement, Shares, Sizes, Variant, as_result_rows, as_rows, expect_apart, expect_rows,
    is_copied, is_in_place, launch_rows, rounded, rows_of, widened,
};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "softmax";
/// Chunks that a thread of a kernel has.
const CHUNKS: u32 = 4;

/// A softmax that has yet to run; see [`softmax`](super::softmax()).
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct SoftmaxOp<'a, T: Element> {
    x: &'a Tensor<T>,
    mask: Option<&'a Tensor<u8>>,
    scale: f32,
    /// What it was given as, if it was.
    temperature: Option<f32>,
    stream: Option<&'a Stream>,
}

/// The mask as a matrix with contiguous rows, if it is one.
fn as_view(mask: &Tensor<u8>) -> Option<Tensor<u8>> {
    mask.flatten_leading().ok().filter(has_unit_stride)
}

/// Whether the chunks of a mask's rows, of `chunk` bytes, are aligned.
fn is_aligned(mask: &Tensor<u8>, chunk: u32) -> bool {
    let chunk = u64::from(chunk);
    mask.device_address().is_multiple_of(chunk) && row_stride(mask).is_multiple_of(chunk)
}

impl<'a, T: SoftmaxElement> SoftmaxOp<'a, T> {
    pub(super) fn new(x: &'a Tensor<T>) -> Self {
        Self { x, mask: None, scale: 1.0, temperature: None, stream: None }
    }

    /// Multiplies x by `scale` first, a number from 2⁻¹⁰⁰ to 2¹⁰⁰; by 1 unless it is set.
    pub fn scale(mut self, scale: f32) -> Self {
        (self.scale, self.temperature) = (scale, None);
        self
    }

    /// Divides x by `temperature` first: the same as a [scale](Self::scale) of 1 over it.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { scale: temperature.recip(), temperature: Some(temperature), ..self }
    }

    /// Leaves out the columns where `mask` is 0. It has the shape of x, or `[N]` (also with more axes of length 1) for all rows.
    pub fn mask(mut self, mask: impl Into<Option<&'a Tensor<u8>>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The gradient of this softmax, whose result was `y`, for `dy`, the gradient of that. It has the scale and the stream of this one. x is not read.
    pub fn backward<Y: SoftmaxElement, D: RowElement>(
        &self,
        y: &'a Tensor<Y>,
        dy: &'a Tensor<D>,
    ) -> SoftmaxGradientOp<'a, Y, D> {
        SoftmaxGradientOp::of(y, dy, self.scale, self.stream, Some(self.x.shape()))
    }

    /// Takes the softmax, to the type of x. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if x has no axis, or the mask does not fit it. [`Error::Argument`] if the scale is out of its range.
    /// [`Error::SizeLimit`] if x has 2³¹ rows or more, or as many columns. [`Error::DeviceMismatch`] if the mask or the stream
    /// is another device's. Otherwise whatever allocating the result, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        self.run_as()
    }

    /// Takes the softmax, to elements of type `Y`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<Y: RowElement>(&self) -> Result<Tensor<Y>> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.check()?;
        let mut y = Tensor::uninit_on(&stream, self.x.shape())?;
        self.write(sizes, &stream, &mut y)?;
        Ok(y)
    }

    /// Takes the softmax into `y`, of the shape of x, whose rows are contiguous, so that the work can be [captured](Stream::capture) with its result kept. `y` may be x
    /// itself: the same view.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if the result does not fit, or
    /// shares memory with an operand whose elements it does not replace.
    pub fn run_into<Y: RowElement>(&self, y: &mut Tensor<Y>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.check()?;
        expect_rows(OPERATION, "y", y, self.x.device(), (self.x.shape(), "x"))?;
        let others = [
            ("x", y.shares_memory(self.x) && !is_in_place(y, self.x)),
            ("mask", self.mask.is_some_and(|mask| y.shares_memory(mask))),
        ];
        expect_apart(OPERATION, "y", &others)?;
        self.write(sizes, &stream, y)
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
        let view = self.mask.and_then(as_view);
        let rows = if is_copied(self.x) { Vec::new() } else { vec![rows_of(&self.x.flatten_leading()?)] };
        let (shares, plan) = self.plan(sizes, &rows, view.as_ref());
        let name = Variant::of(shares, plan).of_four::<T::Block, T::BlockAny, T::Cluster, T::ClusterAny>();
        let copies = usize::from(is_copied(self.x)) + usize::from(self.mask.is_some() && view.is_none());
        Ok(Implementation::kernel(device, name, plan.blocks).with_copies(copies))
    }

    fn plan(&self, sizes: Sizes, rows: &[AnyRows], mask: Option<&Tensor<u8>>) -> (Shares, Plan) {
        let properties = self.x.device().properties();
        let mut shares = Shares::of::<T>(sizes.columns, rows, CHUNKS);
        if mask.is_some_and(|mask| !is_aligned(mask, shares.chunk)) {
            shares.vector = false;
        }
        (shares, Plan::new(sizes, shares, properties.max_cluster))
    }

    /// The sizes and the stream, or the first error of the operands.
    fn check(&self) -> Result<(Sizes, Stream)> {
        let (operation, device) = (OPERATION, self.x.device());
        let sizes = Sizes::of(operation, "x", self.x.shape())?;
        expect_scale(operation, self.scale, self.temperature)?;
        if let Some(mask) = self.mask {
            device.expect_same(operation, "mask", mask.device())?;
            if mask.shape() != self.x.shape() && !is_row(mask, sizes.columns) {
                return Err(Error::Shape {
                    operation,
                    operand: "mask",
                    expected: format!("{:?}, as x has, or [{}]", self.x.shape(), sizes.columns),
                    actual: mask.shape().to_vec(),
                });
            }
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    /// Writes results that have been checked, or are new.
    fn write<Y: RowElement>(&self, sizes: Sizes, stream: &Stream, y: &mut Tensor<Y>) -> Result<()> {
        if sizes.are_none() {
            return Ok(());
        }
        if self.x.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, y);
        }
        let (x, results) = (as_rows(self.x, stream)?, as_result_rows(OPERATION, "y", y)?);
        let mask = match self.mask {
            Some(mask) => Some(match as_view(mask) {
                Some(view) => view,
                None => mask.contiguous_on(stream)?.flatten_leading()?,
            }),
            None => None,
        };
        let (from, to) = (rows_of(&x), rows_of(&results));
        let (shares, plan) = self.plan(sizes, &[from, to], mask.as_ref());
        let mask_stride = mask.as_ref().map_or(0, row_stride);
        let args = |piece: Piece| {
            let params = SoftmaxParams {
                y: piece.of(to),
                x: Global::new(piece.of(from).base),
                mask: mask.as_ref().map_or(Global::new(0), |mask| piece.from(mask.arg(), mask_stride)),
                x_stride: from.stride,
                mask_stride,
                rows: piece.rows,
                columns: sizes.columns as u32,
                threads: plan.threads,
                rounds: plan.rounds,
                factor: (f64::from(self.scale) * std::f64::consts::LOG2_E) as f32,
                reserved: 0,
            };
            (params,)
        };
        let mut operands: Vec<&dyn Operand> = vec![&x, &results];
        operands.extend(mask.as_ref().map(|mask| mask as &dyn Operand));
        // SAFETY: the sizes and strides are those of the tensors; the plan has all chunks of each row, which are aligned where it says so. The result is new, or was checked to share
        // memory with nothing but an x of the same rows. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            match Variant::of(shares, plan) {
                Variant::Block => launch_rows::<T::Block>(stream, plan, sizes.rows, args),
                Variant::BlockAny => launch_rows::<T::BlockAny>(stream, plan, sizes.rows, args),
                Variant::Cluster => launch_rows::<T::Cluster>(stream, plan, sizes.rows, args),
                Variant::ClusterAny => launch_rows::<T::ClusterAny>(stream, plan, sizes.rows, args),
            }
        })
    }

    fn run_on_cpu<Y: RowElement>(&self, sizes: Sizes, y: &mut Tensor<Y>) -> Result<()> {
        let (x, mask) = (widened(self.x)?, self.mask.map(Tensor::to_vec).transpose()?);
        let mut results = vec![0.0f32; x.len()];
        softmax_rows(&x, sizes.columns, mask.as_deref(), self.scale, &mut results);
        y.write_slice(&rounded::<Y>(&results))
    }
}

/// The softmax of rows of so many columns. Without the operands' types, so that programs have this once.
fn softmax_rows(x: &[f32], columns: usize, mask: Option<&[u8]>, scale: f32, y: &mut [f32]) {
    let rows = y.par_chunks_mut(columns).zip(x.par_chunks(columns)).enumerate();
    rows.for_each(|(row, (y, x))| {
        let mask = mask.map(|mask| {
            let first = if mask.len() == columns { 0 } else { row * columns };
            &mask[first..first + columns]
        });
        cpu::softmax(x, mask, scale, y);
    });
}

/// Whether a mask is one row of so many columns.
fn is_row(mask: &Tensor<u8>, columns: usize) -> bool {
    mask.shape()
        .split_last()
        .is_some_and(|(&last, leading)| last == columns && leading.iter().all(|&length| length == 1))
}
