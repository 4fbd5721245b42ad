//! The gradient of the softmax of rows.

use rayon::prelude::*;
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::rows::AnyRows;
use warpsmith_dsl::softmax::SoftmaxGradientParams;

use super::{SoftmaxElement, expect_scale};
use crate::cpu;
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::Implementation;
use crate::ops::rows::{
    Piece, Plan, RowElement, Shares, Sizes, Variant, as_result_rows, as_rows, expect_apart, expect_rows,
    expect_shape, is_copied, is_in_place, kind, launch_rows, rounded, rows_of, widened,
};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Chunks that a thread of a kernel has.
const CHUNKS: u32 = 2;

/// The operation's name in errors.
const OPERATION: &str = "softmax_gradient";

/// A gradient of a softmax that has yet to be computed; see [`softmax_gradient`](super::softmax_gradient()).
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct SoftmaxGradientOp<'a, Y: Element, D: Element> {
    y: &'a Tensor<Y>,
    dy: &'a Tensor<D>,
    scale: f32,
    /// What it was given as, if it was.
    temperature: Option<f32>,
    stream: Option<&'a Stream>,
    /// The shape of x, where it is known.
    shape: Option<&'a [usize]>,
}

impl<'a, Y: SoftmaxElement, D: RowElement> SoftmaxGradientOp<'a, Y, D> {
    pub(super) fn new(y: &'a Tensor<Y>, dy: &'a Tensor<D>) -> Self {
        Self::of(y, dy, 1.0, None, None)
    }

    pub(super) fn of(
        y: &'a Tensor<Y>,
        dy: &'a Tensor<D>,
        scale: f32,
        stream: Option<&'a Stream>,
        shape: Option<&'a [usize]>,
    ) -> Self {
        Self { y, dy, scale, temperature: None, stream, shape }
    }

    /// What the softmax has multiplied x by, a number from 2⁻¹⁰⁰ to 2¹⁰⁰; 1 unless it is set.
    pub fn scale(mut self, scale: f32) -> Self {
        (self.scale, self.temperature) = (scale, None);
        self
    }

    /// What the softmax has divided x by: the same as a [scale](Self::scale) of 1 over it.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { scale: temperature.recip(), temperature: Some(temperature), ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Computes dx, of the type of dy. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`](crate::Error::Shape) if y has no axis, or dy or x another shape.
    /// [`Error::Argument`](crate::Error::Argument) if the scale is out of its range.
    /// [`Error::SizeLimit`](crate::Error::SizeLimit) if y has 2³¹ rows or more, or as many columns.
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if dy or the stream is another device's. Otherwise whatever
    /// allocating the result, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<D>> {
        self.run_as()
    }

    /// Computes dx, of elements of type `X`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<X: RowElement>(&self) -> Result<Tensor<X>> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.check()?;
        let mut dx = Tensor::uninit_on(&stream, self.y.shape())?;
        self.write(sizes, &stream, &mut dx)?;
        Ok(dx)
    }

    /// Computes dx into a tensor of the shape of y, whose rows are contiguous. It may be y or dy itself: the same view.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`](crate::Error::Shape), [`Error::Stride`](crate::Error::Stride),
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::ReadOnly`](crate::Error::ReadOnly) and [`Error::Overlap`](crate::Error::Overlap) if
    /// the result does not fit, or shares memory with an operand whose elements it does not replace.
    pub fn run_into<X: RowElement>(&self, dx: &mut Tensor<X>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.check()?;
        expect_rows(OPERATION, "dx", dx, self.y.device(), (self.y.shape(), "y"))?;
        let others = [
            ("y", dx.shares_memory(self.y) && !is_in_place(dx, self.y)),
            ("dy", dx.shares_memory(self.dy) && !is_in_place(dx, self.dy)),
        ];
        expect_apart(OPERATION, "dx", &others)?;
        self.write(sizes, &stream, dx)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.check()?;
        let device = self.y.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        // A new result is aligned, and so is a copy.
        let mut rows = Vec::new();
        if !is_copied(self.y) {
            rows.push(rows_of(&self.y.flatten_leading()?));
        }
        if !is_copied(self.dy) {
            rows.push(rows_of(&self.dy.flatten_leading()?));
        }
        let (shares, plan) = self.plan(sizes, &rows);
        let variant = Variant::of(shares, plan);
        let name =
            variant.of_four::<Y::Gradient, Y::GradientAny, Y::GradientCluster, Y::GradientClusterAny>();
        Ok(Implementation::kernel(device, name, plan.blocks).with_copies(2 - rows.len()))
    }

    fn plan(&self, sizes: Sizes, rows: &[AnyRows]) -> (Shares, Plan) {
        let properties = self.y.device().properties();
        let shares = Shares::of::<Y>(sizes.columns, rows, CHUNKS);
        let plan = Plan::new(sizes, shares, properties.max_cluster);
        // Where types differ, the order of sums depends on the threads of a row.
        let is_one_type = kind::<D>() == kind::<Y>();
        let plan = if is_one_type { plan.spread(sizes, shares, properties.multiprocessors) } else { plan };
        (shares, plan)
    }

    fn check(&self) -> Result<(Sizes, Stream)> {
        let (operation, device) = (OPERATION, self.y.device());
        let sizes = Sizes::of(operation, "y", self.y.shape())?;
        if let Some(shape) = self.shape {
            expect_shape(operation, "y", self.y.shape(), shape, "x")?;
        }
        device.expect_same(operation, "dy", self.dy.device())?;
        expect_shape(operation, "dy", self.dy.shape(), self.y.shape(), "y")?;
        expect_scale(operation, self.scale, self.temperature)?;
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    /// Writes results that have been checked, or are new.
    fn write<X: RowElement>(&self, sizes: Sizes, stream: &Stream, dx: &mut Tensor<X>) -> Result<()> {
        if sizes.are_none() {
            return Ok(());
        }
        if self.y.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, dx);
        }
        let (y, dy) = (as_rows(self.y, stream)?, as_rows(self.dy, stream)?);
        let results = as_result_rows(OPERATION, "dx", dx)?;
        let [of_y, of_dy, to] = [rows_of(&y), rows_of(&dy), rows_of(&results)];
        let (shares, plan) = self.plan(sizes, &[of_y, of_dy, to]);
        let args = |piece: Piece| {
            let params = SoftmaxGradientParams {
                dy: piece.of(of_dy),
                dx: piece.of(to),
                y: Global::new(piece.of(of_y).base),
                y_stride: of_y.stride,
                rows: piece.rows,
                columns: sizes.columns as u32,
                threads: plan.threads,
                rounds: plan.rounds,
                scale: self.scale,
                reserved: 0,
            };
            (params,)
        };
        // SAFETY: the sizes and strides are those of the tensors; the plan has all chunks of each row, which are aligned where it says so. The result is new, or was checked to share
        // memory with nothing but operands of the same rows. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&[&y, &dy, &results], || unsafe {
            match Variant::of(shares, plan) {
                Variant::Block => launch_rows::<Y::Gradient>(stream, plan, sizes.rows, args),
                Variant::BlockAny => launch_rows::<Y::GradientAny>(stream, plan, sizes.rows, args),
                Variant::Cluster => launch_rows::<Y::GradientCluster>(stream, plan, sizes.rows, args),
                Variant::ClusterAny => launch_rows::<Y::GradientClusterAny>(stream, plan, sizes.rows, args),
            }
        })
    }

    fn run_on_cpu<X: RowElement>(&self, sizes: Sizes, dx: &mut Tensor<X>) -> Result<()> {
        let (y, dy) = (widened(self.y)?, widened(self.dy)?);
        let mut results = vec![0.0f32; y.len()];
        gradient_rows([&y, &dy], sizes.columns, self.scale, &mut results);
        dx.write_slice(&rounded::<X>(&results))
    }
}

/// The gradient of rows of so many columns. Without the operands' types, so that programs have this once.
fn gradient_rows([y, dy]: [&[f32]; 2], columns: usize, scale: f32, dx: &mut [f32]) {
    let rows = dx.par_chunks_mut(columns).zip(y.par_chunks(columns).zip(dy.par_chunks(columns)));
    rows.for_each(|(dx, (y, dy))| cpu::softmax_gradient(y, dy, scale, dx));
}
