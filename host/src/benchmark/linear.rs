//! Measuring the linear operation.

use half::{bf16, f16};

use super::{Options, Subject, Timing, interleaved, sets_beyond_cache};
use crate::cpu::FromAccumulator;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::linear::{LinearTypes, Tile};
use crate::ops::{self, CHUNK_BYTES, Implementation};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor};
use crate::validate::LinearCase;
use crate::weights::FloatElement;

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

/// A linear operation ready to be measured: sets of operands in the device's memory, through which the launches rotate.
pub trait LinearSubject: Subject {
    /// What runs.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::implementation`](crate::ops::linear::LinearOp::implementation).
    fn implementation(&self) -> Result<Implementation>;

    /// The same operation on the same operands, by another tile; `None` for the one that would be chosen.
    fn with_tile(&self, tile: Option<Tile>) -> Box<dyn LinearSubject>;

    /// The same operation on copies of x and w whose rows start at multiples of 16 bytes.
    ///
    /// # Errors
    ///
    /// Whatever allocating and copying return.
    fn with_aligned_rows(&self) -> Result<Box<dyn LinearSubject>>;

    /// Floating-point operations of one operation: 2 · M · N · K.
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
    case.check_sizes("benchmark::linear")?;
    Ok(match (case.input, case.output) {
        (DType::F16, DType::F16) => Box::new(Operands::<f16, f16>::new(stream, case)?),
        (DType::F16, DType::F32) => Box::new(Operands::<f16, f32>::new(stream, case)?),
        (DType::Bf16, DType::Bf16) => Box::new(Operands::<bf16, bf16>::new(stream, case)?),
        (DType::Bf16, DType::F32) => Box::new(Operands::<bf16, f32>::new(stream, case)?),
        (DType::F32, DType::F32) => Box::new(Operands::<f32, f32>::new(stream, case)?),
        (input, output) => {
            return Err(Error::Type {
                operation: "benchmark::linear",
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
    case: LinearCase,
    sets: Vec<Set<T, O>>,
}

/// Operands of one launch. Clones share their memory.
#[derive(Clone)]
struct Set<T: Element, O: Element> {
    x: Tensor<T>,
    w: Tensor<T>,
    bias: Option<Tensor<T>>,
    y: Tensor<O>,
}

impl<T, O> Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: Element + FromAccumulator<f32>,
{
    fn new(stream: &Stream, case: &LinearCase) -> Result<Self> {
        let (m, k, n) = (case.m, case.k, case.n);
        let mut operands = Self { stream: stream.clone(), case: case.clone(), sets: Vec::new() };
        let count = sets_beyond_cache(stream.device(), operands.bytes() as u64);
        let device = stream.device();
        // One draw for all sets: values decide nothing about time, except that zeros would be faster.
        let draw = |number, shape: (usize, usize)| {
            case.data.draw(case.seed, number, shape, k, |value| T::round(value.into()))
        };
        let (x, w, bias) = (draw(0, (m, k))?, draw(1, (n, k))?, draw(2, (1, n))?);
        let (x, w) = (Tensor::from_array(device, &x)?, Tensor::from_array(device, &w)?);
        let bias = case.bias.then(|| Tensor::from_array(device, &bias)?.reshape([n])).transpose()?;
        for _ in 1..count {
            operands.sets.push(Set {
                x: x.deep_clone()?,
                w: w.deep_clone()?,
                bias: bias.as_ref().map(Tensor::deep_clone).transpose()?,
                y: Tensor::zeros_on(stream, [m, n])?,
            });
        }
        operands.sets.push(Set { x, w, bias, y: Tensor::zeros_on(stream, [m, n])? });
        Ok(operands)
    }

    fn op<'a>(case: &LinearCase, stream: &'a Stream, set: &'a Set<T, O>) -> ops::linear::LinearOp<'a, T, O> {
        ops::linear::with_output::<T, O>(&set.x, &set.w)
            .bias(&set.bias)
            .activation(case.activation)
            .alpha(case.scale)
            .precision(case.precision)
            .tile(case.tile)
            .on(stream)
    }
}

impl<T, O> Subject for Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: Element + FromAccumulator<f32>,
{
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let index = index % self.sets.len();
        let set = &self.sets[index];
        let mut y = set.y.clone();
        Self::op(&self.case, &self.stream, set).run_into(&mut y)
    }
}

impl<T, O> LinearSubject for Operands<T, O>
where
    T: LinearTypes<O> + FloatElement,
    O: Element + FromAccumulator<f32>,
{
    fn implementation(&self) -> Result<Implementation> {
        Self::op(&self.case, &self.stream, &self.sets[0]).implementation()
    }

    fn with_tile(&self, tile: Option<Tile>) -> Box<dyn LinearSubject> {
        let case = LinearCase { tile, ..self.case.clone() };
        Box::new(Self { stream: self.stream.clone(), case, sets: self.sets.clone() })
    }

    fn with_aligned_rows(&self) -> Result<Box<dyn LinearSubject>> {
        let aligned = |tensor: &Tensor<T>| -> Result<Tensor<T>> {
            let (rows, columns) = (tensor.shape()[0], tensor.shape()[1]);
            let padded = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
            let mut copy = Tensor::zeros_on(&self.stream, [rows, padded])?.slice(1, 0..columns)?;
            copy.copy_from(tensor)?;
            Ok(copy)
        };
        let sets = self.sets.iter().map(|set| -> Result<Set<T, O>> {
            Ok(Set { x: aligned(&set.x)?, w: aligned(&set.w)?, bias: set.bias.clone(), y: set.y.clone() })
        });
        let sets = sets.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(Self { stream: self.stream.clone(), case: self.case.clone(), sets }))
    }

    fn flops(&self) -> f64 {
        2.0 * self.case.m as f64 * self.case.n as f64 * self.case.k as f64
    }

    fn bytes(&self) -> f64 {
        let LinearCase { m, k, n, bias, .. } = self.case;
        let read = (m * k + n * k + usize::from(bias) * n) * size_of::<T>();
        (read + m * n * size_of::<O>()) as f64
    }
}
