//! Measuring the scaled linear operation.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith::error::{Error, Result};
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::scaled::{ScaledInput, ScaledOutput};
use warpsmith::ops::{self, Scale};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::linear::copy;
use super::{Subject, sets_beyond_cache};
use crate::cases::{ScaleKind, ScaledCase};

/// What the rows of 8-bit operands start at multiples of, so that no operand is copied first.
const CHUNK_BYTES: usize = 16;

/// The operation's name in errors.
const OPERATION: &str = "benchmark::linear_scaled";

/// A scaled linear operation ready to be measured: sets of operands in the device's memory, through which the launches rotate.
pub(crate) trait ScaledSubject: Subject {
    /// The same operation on the same operands, by another tile and with other parts of sums; `None` for what would be chosen.
    fn with_parts(&self, tile: Option<Tile>, parts: Option<u32>) -> Box<dyn ScaledSubject>;
}

/// Places the operands of `case` on the stream's device. However they are stored, x and w are placed as the operation copies what it cannot read:
/// contiguous along K, rows at multiples of 16 bytes. Placement in larger matrices does not apply here.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not 8-bit inputs and an output of f16, bf16 or f32, [`Error::SizeLimit`] or
/// [`Error::OutOfMemory`] if the host cannot hold its operands; otherwise whatever allocating and copying return.
pub(crate) fn scaled_subject(stream: &Stream, case: &ScaledCase) -> Result<Box<dyn ScaledSubject>> {
    case.check(OPERATION)?;
    match (case.x_type, case.w_type) {
        (DType::F8E4M3, DType::F8E4M3) => to_output::<F8E4M3, F8E4M3>(stream, case),
        (DType::F8E4M3, DType::F8E5M2) => to_output::<F8E4M3, F8E5M2>(stream, case),
        (DType::F8E5M2, DType::F8E4M3) => to_output::<F8E5M2, F8E4M3>(stream, case),
        (DType::F8E5M2, DType::F8E5M2) => to_output::<F8E5M2, F8E5M2>(stream, case),
        (DType::F8E4M3 | DType::F8E5M2, actual) => Err(wrong_type("w", "f8e4m3 or f8e5m2", actual)),
        (actual, _) => Err(wrong_type("x", "f8e4m3 or f8e5m2", actual)),
    }
}

fn to_output<X, W>(stream: &Stream, case: &ScaledCase) -> Result<Box<dyn ScaledSubject>>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
{
    Ok(match case.output {
        DType::F16 => Box::new(Operands::<X, W, f16>::new(stream, case)?),
        DType::Bf16 => Box::new(Operands::<X, W, bf16>::new(stream, case)?),
        DType::F32 => Box::new(Operands::<X, W, f32>::new(stream, case)?),
        actual => return Err(wrong_type("y", "f16, bf16 or f32", actual)),
    })
}

fn wrong_type(operand: &'static str, expected: &str, actual: DType) -> Error {
    Error::Type { operation: OPERATION, operand, expected: expected.into(), actual }
}

struct Operands<X: ScaledInput, W: ScaledInput, O: ScaledOutput> {
    stream: Stream,
    case: ScaledCase,
    /// Of x and of w, if they are in the device's memory. They and the bias are small, and the same for all sets.
    scales: [Option<Tensor<f32>>; 2],
    bias: Option<Tensor<O>>,
    sets: Vec<Set<X, W, O>>,
}

/// Operands of one launch. Clones share their memory.
#[derive(Clone)]
struct Set<X: ScaledInput, W: ScaledInput, O: ScaledOutput> {
    x: Tensor<X>,
    w: Tensor<W>,
    residual: Option<Tensor<O>>,
    mask: Option<Tensor<u32>>,
    preactivation: Option<Tensor<O>>,
    y: Tensor<O>,
}

impl<X, W, O> Operands<X, W, O>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
{
    fn new(stream: &Stream, case: &ScaledCase) -> Result<Self> {
        let ScaledCase { m, k, n, data, seed, terms, .. } = *case;
        let device = stream.device();
        let pitch = k.next_multiple_of(CHUNK_BYTES);
        let draw_x = data.draw(seed, 0, (m, pitch), k, |value| X::round(value.into()))?;
        let draw_w = data.draw(seed, 1, (n, pitch), k, |value| W::round(value.into()))?;
        let (x, w) = (Tensor::from_array(device, &draw_x)?, Tensor::from_array(device, &draw_w)?);
        let of_bias = || -> Result<_> {
            let drawn = data.draw(seed, 2, (1, n), k, |value| O::round(value.into()))?;
            Tensor::from_array(device, &drawn)?.reshape([n])
        };
        let of_scale = |number: u64, kind: ScaleKind, rows: usize| -> Result<Option<Tensor<f32>>> {
            let count = match kind {
                ScaleKind::One | ScaleKind::Tensor => return Ok(None),
                ScaleKind::Device => 1,
                ScaleKind::Rows => rows,
            };
            let drawn = data.draw(seed, number, (1, count), k, |value| value)?;
            Tensor::from_array(device, &drawn)?.reshape([count]).map(Some)
        };
        let has_residual = terms.beta != 0.0;
        let of_residual = || {
            let drawn = data.draw(seed, 5, (m, n), k, |value| O::round(value.into()))?;
            Tensor::from_array(device, &drawn)
        };
        let residual = (has_residual && !terms.in_place).then(of_residual).transpose()?;
        let results = m * n * (1 + usize::from(has_residual) + usize::from(terms.preactivation));
        let bytes = (m * k + n * k) + results * size_of::<O>();
        let sets = (0..sets_beyond_cache(device, bytes as u64)).map(|index| -> Result<Set<X, W, O>> {
            let y: Tensor<O> = Tensor::zeros_on(stream, [m, n])?;
            let in_place = (has_residual && terms.in_place).then(|| y.clone());
            let mask = || Tensor::zeros_on(stream, [m, n.div_ceil(32)]);
            Ok(Set {
                x: copy(index, &x)?.slice(1, 0..k)?,
                w: copy(index, &w)?.slice(1, 0..k)?,
                residual: residual.as_ref().map(|it| copy(index, it)).transpose()?.or(in_place),
                mask: terms.mask.then(mask).transpose()?,
                preactivation: terms.preactivation.then(|| Tensor::zeros_on(stream, [m, n])).transpose()?,
                y,
            })
        });
        Ok(Self {
            stream: stream.clone(),
            case: case.clone(),
            scales: [of_scale(3, case.x_scale, m)?, of_scale(4, case.w_scale, n)?],
            bias: case.bias.then(of_bias).transpose()?,
            sets: sets.collect::<Result<Vec<_>>>()?,
        })
    }
}

impl<X, W, O> Subject for Operands<X, W, O>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
{
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let set = &self.sets[index % self.sets.len()];
        let (mut mask, mut preactivation) = (set.mask.clone(), set.preactivation.clone());
        let scale = |index: usize, kind: ScaleKind| match (&self.scales[index], kind) {
            (Some(scale), ScaleKind::Rows) => Scale::Rows(scale),
            (Some(scale), _) => Scale::Device(scale),
            (None, ScaleKind::Tensor) => Scale::Tensor(1.5),
            (None, _) => Scale::One,
        };
        let mut op = ops::linear_scaled(&set.x, &set.w)
            .output::<O>()
            .x_scale(scale(0, self.case.x_scale))
            .w_scale(scale(1, self.case.w_scale))
            .alpha(self.case.alpha)
            .activation(self.case.activation)
            .tile(self.case.tile)
            .parts(self.case.parts)
            .bias(&self.bias)
            .on(&self.stream);
        if let Some(residual) = &set.residual {
            op = op.residual(residual, self.case.terms.beta);
        }
        if let Some(mask) = &mut mask {
            op = op.relu_mask(mask);
        }
        if let Some(preactivation) = &mut preactivation {
            op = op.preactivation(preactivation);
        }
        op.run_into(&mut set.y.clone())
    }
}

impl<X, W, O> ScaledSubject for Operands<X, W, O>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
{
    fn with_parts(&self, tile: Option<Tile>, parts: Option<u32>) -> Box<dyn ScaledSubject> {
        Box::new(Self {
            stream: self.stream.clone(),
            case: ScaledCase { tile, parts, ..self.case.clone() },
            scales: self.scales.clone(),
            bias: self.bias.clone(),
            sets: self.sets.clone(),
        })
    }
}
