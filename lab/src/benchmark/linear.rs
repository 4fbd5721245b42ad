//! Measuring products: the linear operation, and matrix products in any layout and in batches.

use half::{bf16, f16};
use warpsmith::cpu::FromAccumulator;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::linear::LinearTypes;
use warpsmith::ops::{self, Implementation};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::{Options, Subject, Timing, interleaved, sets_beyond_cache};
use crate::cases::{LinearCase, MatmulCase, Scales};

/// What a measurement of a linear operation found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinearMeasurement {
    /// What ran.
    pub implementation: Implementation,
    /// The time of one operation.
    pub timing: Timing,
    /// Floating-point operations of one operation: 2 · M · N · K.
    pub flops: f64,
    /// Bytes that one operation must read and write.
    pub bytes: f64,
}

impl LinearMeasurement {
    /// 10¹² floating-point operations a second.
    #[must_use]
    pub fn tflops(&self) -> f64 {
        self.timing.tera_per_second(self.flops)
    }

    /// 10¹² bytes a second.
    #[must_use]
    pub fn terabytes_per_second(&self) -> f64 {
        self.timing.tera_per_second(self.bytes)
    }
}

/// A product ready to be measured: sets of operands in the device's memory, through which the launches rotate.
pub trait LinearSubject: Subject {
    /// What runs.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::implementation`](warpsmith::ops::linear::LinearOp::implementation).
    fn implementation(&self) -> Result<Implementation>;

    /// The same operation on the same operands, by another tile; `None` for the one that would be chosen.
    fn with_tile(&self, tile: Option<Tile>) -> Box<dyn LinearSubject> {
        self.with_parts(tile, None)
    }

    /// The same, with so many blocks sharing sums as [`LinearCase::parts`] says.
    fn with_parts(&self, tile: Option<Tile>, parts: Option<u32>) -> Box<dyn LinearSubject>;

    /// The same operation on copies of x, of w or of both, whose rows start at multiples of 16 bytes.
    ///
    /// # Errors
    ///
    /// Whatever allocating and copying return.
    fn with_aligned_rows(&self, copied: [bool; 2]) -> Result<Box<dyn LinearSubject>>;

    /// Floating-point operations of one operation: 2 · M · N · K for each matrix.
    fn flops(&self) -> f64;

    /// Bytes that one operation must read and write.
    fn bytes(&self) -> f64;
}

/// Measures one linear operation on `device`. Placement in larger matrices does not apply here.
///
/// # Errors
///
/// [`Error::Type`] if there is no linear operation for the case's types, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if
/// the host cannot hold its operands; otherwise whatever it returns.
pub fn linear(device: &Device, case: &LinearCase, options: &Options) -> Result<LinearMeasurement> {
    let stream = device.default_stream();
    let mut subject = linear_subject(&stream, case)?;
    let timings = interleaved(&stream, &mut [&mut *subject], options)?;
    Ok(LinearMeasurement {
        implementation: subject.implementation()?,
        timing: timings[0],
        flops: subject.flops(),
        bytes: subject.bytes(),
    })
}

/// Places the operands of `case` on the stream's device.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_subject(stream: &Stream, case: &LinearCase) -> Result<Box<dyn LinearSubject>> {
    const OPERATION: &str = "benchmark::linear";
    case.check_sizes(OPERATION)?;
    subject(OPERATION, stream, &MatmulCase::new(case.clone()), Kind::Linear)
}

/// Places the operands of matrix products on the stream's device.
///
/// # Errors
///
/// As [`linear`], and [`Error::Argument`] if the case's batches do not fit together.
pub fn matmul_subject(stream: &Stream, case: &MatmulCase) -> Result<Box<dyn LinearSubject>> {
    const OPERATION: &str = "benchmark::matmul";
    case.check_sizes(OPERATION)?;
    subject(OPERATION, stream, case, Kind::Matmul)
}

/// Which operation a case is run with.
#[derive(Clone, Copy)]
enum Kind {
    Linear,
    Matmul,
}

fn subject(
    operation: &'static str,
    stream: &Stream,
    case: &MatmulCase,
    kind: Kind,
) -> Result<Box<dyn LinearSubject>> {
    Ok(match (case.product.input, case.product.output) {
        (DType::F16, DType::F16) => Box::new(Operands::<f16, f16>::new(stream, case, kind)?),
        (DType::F16, DType::F32) => Box::new(Operands::<f16, f32>::new(stream, case, kind)?),
        (DType::Bf16, DType::Bf16) => Box::new(Operands::<bf16, bf16>::new(stream, case, kind)?),
        (DType::Bf16, DType::F32) => Box::new(Operands::<bf16, f32>::new(stream, case, kind)?),
        (DType::F32, DType::F32) => Box::new(Operands::<f32, f32>::new(stream, case, kind)?),
        (input, output) => {
            return Err(Error::Type {
                operation,
                operand: "y",
                expected: format!(
                    "f16, bf16 or f32 inputs and an output of their type or f32, for {input} inputs"
                ),
                actual: output,
            });
        }
    })
}

struct Operands<T: Element, O: Element> {
    stream: Stream,
    case: MatmulCase,
    kind: Kind,
    sets: Vec<Set<T, O>>,
}

/// Operands of one launch. Clones share their memory.
#[derive(Clone)]
struct Set<T: Element, O: Element> {
    /// `[.., M, K]`, in place.
    x: Tensor<T>,
    /// `[.., N, K]`, in place.
    w: Tensor<T>,
    bias: Option<Tensor<T>>,
    residual: Option<Tensor<O>>,
    row_scale: Option<Tensor<f32>>,
    column_scale: Option<Tensor<f32>>,
    mask: Option<Tensor<u32>>,
    preactivation: Option<Tensor<O>>,
    y: Tensor<O>,
}

/// Bytes that one operation of `case` must read and write.
fn bytes<T, O>(case: &MatmulCase) -> usize {
    let LinearCase { m, k, n, bias, terms, .. } = case.product;
    let results = case.matrices() * m * n;
    let scales = |scales: Scales, each: usize| match scales {
        Scales::None => 0,
        Scales::One => 1,
        Scales::Each => each,
    };
    let inputs = case.batch[0] * m * k + case.batch[1] * n * k + usize::from(bias) * n;
    let outputs = results * (1 + usize::from(terms.beta != 0.0) + usize::from(terms.preactivation));
    let mask = if terms.mask { case.matrices() * m * n.div_ceil(32) } else { 0 };
    let vectors = scales(terms.row_scale, m) + scales(terms.column_scale, n);
    inputs * size_of::<T>() + outputs * size_of::<O>() + (mask + vectors) * size_of::<f32>()
}

impl<T, O> Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32>,
{
    fn new(stream: &Stream, case: &MatmulCase, kind: Kind) -> Result<Self> {
        let LinearCase { m, k, n, data, seed, bias, terms, .. } = case.product;
        let device = stream.device();
        let several = |count: usize, [rows, columns]: [usize; 2]| {
            if case.batch == [1; 2] { vec![rows, columns] } else { vec![count, rows, columns] }
        };
        // One draw for all sets: values decide nothing about time, except that zeros would be faster.
        let drawn = |number: u64, index: usize, rows: usize| -> Result<Tensor<T>> {
            let matrix = if case.across[index] { [k, rows] } else { [rows, k] };
            let shape = several(case.batch[index], matrix);
            let all = (case.batch[index] * matrix[0], matrix[1]);
            let drawn = data.draw(seed, number, all, k, |value| T::round(value.into()))?;
            Tensor::from_array(device, &drawn)?.reshape(shape)
        };
        let vector = |number: u64, scales: Scales, each: usize| -> Result<Option<Tensor<f32>>> {
            let count = match scales {
                Scales::None => return Ok(None),
                Scales::One => 1,
                Scales::Each => each,
            };
            let drawn = data.draw(seed, number, (1, count), k, |value| value)?;
            Tensor::from_array(device, &drawn)?.reshape([count]).map(Some)
        };
        let (x, w) = (drawn(0, 0, m)?, drawn(1, 1, n)?);
        let of_bias = || -> Result<_> {
            let drawn = data.draw(seed, 2, (1, n), k, |value| T::round(value.into()))?;
            Tensor::from_array(device, &drawn)?.reshape([n])
        };
        let bias = bias.then(of_bias).transpose()?;
        let results = several(case.matrices(), [m, n]);
        let of_residual = || -> Result<_> {
            let drawn = data.draw(seed, 3, (case.matrices() * m, n), k, |value| O::round(value.into()))?;
            Tensor::from_array(device, &drawn)?.reshape(&results)
        };
        let has_residual = terms.beta != 0.0;
        let residual = (has_residual && !terms.in_place).then(of_residual).transpose()?;
        let (row_scale, column_scale) = (vector(4, terms.row_scale, m)?, vector(5, terms.column_scale, n)?);
        let words = several(case.matrices(), [m, n.div_ceil(32)]);

        let turned = |stored: Tensor<T>, index: usize| {
            let rank = stored.rank();
            if case.across[index] { stored.swap_axes(rank - 2, rank - 1) } else { Ok(stored) }
        };
        let mut sets = Vec::new();
        for index in 0..sets_beyond_cache(device, bytes::<T, O>(case) as u64) {
            let y: Tensor<O> = Tensor::zeros_on(stream, &results)?;
            let in_place = (has_residual && terms.in_place).then(|| y.clone());
            sets.push(Set {
                x: turned(copy(index, &x)?, 0)?,
                w: turned(copy(index, &w)?, 1)?,
                bias: bias.as_ref().map(|bias| copy(index, bias)).transpose()?,
                residual: residual.as_ref().map(|it| copy(index, it)).transpose()?.or(in_place),
                row_scale: row_scale.as_ref().map(|scale| copy(index, scale)).transpose()?,
                column_scale: column_scale.as_ref().map(|scale| copy(index, scale)).transpose()?,
                mask: terms.mask.then(|| Tensor::zeros_on(stream, &words)).transpose()?,
                preactivation: terms.preactivation.then(|| Tensor::zeros_on(stream, &results)).transpose()?,
                y,
            });
        }
        Ok(Self { stream: stream.clone(), case: case.clone(), kind, sets })
    }
}

/// The tensor itself for the first set, one with the same elements in memory of its own for every other.
pub(super) fn copy<E: Element>(index: usize, tensor: &Tensor<E>) -> Result<Tensor<E>> {
    if index == 0 { Ok(tensor.clone()) } else { tensor.deep_clone() }
}

/// What `$work` makes of operation `$op` on set number `$index`, whose output is `$y`.
macro_rules! with_op {
    ($operands:expr, $index:expr, |$op:ident, $y:ident| $work:expr) => {{
        let operands: &Operands<T, O> = $operands;
        let (case, set) = (&operands.case.product, &operands.sets[$index % operands.sets.len()]);
        let (mut mask, mut preactivation) = (set.mask.clone(), set.preactivation.clone());
        #[allow(unused_mut, reason = "not all work writes")]
        let mut $y = set.y.clone();
        macro_rules! with_options {
            ($bare:expr) => {{
                let mut $op = $bare
                    .bias(&set.bias)
                    .row_scale(&set.row_scale)
                    .column_scale(&set.column_scale)
                    .activation(case.activation)
                    .alpha(case.scale)
                    .precision(case.precision)
                    .tile(case.tile)
                    .parts(case.parts)
                    .on(&operands.stream);
                if let Some(residual) = &set.residual {
                    $op = $op.residual(residual, case.terms.beta);
                }
                if let Some(mask) = &mut mask {
                    $op = $op.relu_mask(mask);
                }
                if let Some(preactivation) = &mut preactivation {
                    $op = $op.preactivation(preactivation);
                }
                $work
            }};
        }
        match operands.kind {
            Kind::Linear => with_options!(ops::linear::with_output::<T, O>(&set.x, &set.w)),
            Kind::Matmul => {
                with_options!(ops::matmul::with_output::<T, O>(&set.x, &set.w).transpose_b())
            }
        }
    }};
}

impl<T, O> Subject for Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32>,
{
    fn enqueue(&mut self, index: usize) -> Result<()> {
        with_op!(self, index, |op, y| op.run_into(&mut y))
    }
}

impl<T, O> LinearSubject for Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32>,
{
    fn implementation(&self) -> Result<Implementation> {
        with_op!(self, 0, |op, _y| op.implementation())
    }

    fn with_parts(&self, tile: Option<Tile>, parts: Option<u32>) -> Box<dyn LinearSubject> {
        let product = LinearCase { tile, parts, ..self.case.product.clone() };
        let case = MatmulCase { product, ..self.case.clone() };
        Box::new(Self { stream: self.stream.clone(), case, kind: self.kind, sets: self.sets.clone() })
    }

    fn with_aligned_rows(&self, [x, w]: [bool; 2]) -> Result<Box<dyn LinearSubject>> {
        let aligned = |tensor: &Tensor<T>, copied: bool| {
            if copied { ops::repack(tensor).on(&self.stream).run() } else { Ok(tensor.clone()) }
        };
        let sets = self.sets.iter().map(|set| -> Result<Set<T, O>> {
            Ok(Set { x: aligned(&set.x, x)?, w: aligned(&set.w, w)?, ..set.clone() })
        });
        let sets = sets.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(Self { stream: self.stream.clone(), case: self.case.clone(), kind: self.kind, sets }))
    }

    fn flops(&self) -> f64 {
        let LinearCase { m, k, n, .. } = self.case.product;
        2.0 * self.case.matrices() as f64 * m as f64 * n as f64 * k as f64
    }

    fn bytes(&self) -> f64 {
        bytes::<T, O>(&self.case) as f64
    }
}
