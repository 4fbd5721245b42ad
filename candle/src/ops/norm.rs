//! Layer norm and RMS norm of rows.

use candle_core::{DType, Tensor};
use warpsmith::ops;
use warpsmith::ops::column_sums::SumElement;
use warpsmith::ops::norm::{NormElement, NormGradientOutputs, NormOp as Norm, NormOutputs};

use super::tracked;
use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Locked, Shared, View, finished, open, with_element};

/// The layer norm of each row of `x` `[.., N]`: `y = (x − mean) / √(variance + ε) ⊙ weight + bias`.
///
/// Everything is computed in f32 and rounded once. The variance is the mean of squared differences to the mean, so
/// it does not cancel where the mean is
/// large. x, weight and bias have gradients, which are computed from the statistics that the norm saves.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::layer_norm;
///
/// let x = Tensor::new(&[[1.0f32, 3.0], [-2.0, -2.0]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1.0f32, 2.0], &Device::Cpu)?;
/// let y = layer_norm(&x).weight(&weight).epsilon(0.0).run()?;
/// assert_eq!(y.get(0)?.to_vec1::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm(x: &Tensor) -> NormOp<'_> {
    NormOp { operation: "layer_norm", x, weight: None, bias: None, epsilon: 1e-5, is_centered: true }
}

/// The RMS norm of each row of `x` `[.., N]`: `y = x / √(mean of x² + ε) ⊙ weight + bias`.
///
/// As [`layer_norm`], without a mean that is taken off.
pub fn rms_norm(x: &Tensor) -> NormOp<'_> {
    NormOp { operation: "rms_norm", is_centered: false, ..layer_norm(x) }
}

/// A norm that has yet to run; see [`layer_norm`] and [`rms_norm`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct NormOp<'a> {
    operation: &'static str,
    x: &'a Tensor,
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    epsilon: f32,
    is_centered: bool,
}

impl<'a> NormOp<'a> {
    /// Multiplies the columns of normed rows by `weight` `[N]`; by ones unless it is set.
    pub fn weight(mut self, weight: impl Into<Option<&'a Tensor>>) -> Self {
        self.weight = weight.into();
        self
    }

    /// Adds `bias` `[N]` to the columns.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        self.bias = bias.into();
        self
    }

    /// What is added to the variance, 10⁻⁵ unless it is set.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Norms the rows.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] unless all operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`] if they
    /// are on different devices; [`Error::Warpsmith`] if a
    /// shape does not fit, or ε is negative or no number.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let mut operands = vec![("x", self.x)];
        operands.extend(self.weight.map(|weight| ("weight", weight)));
        operands.extend(self.bias.map(|bias| ("bias", bias)));
        let call = Call::new(self.operation, &operands)?;
        let kind = Kind {
            is_centered: self.is_centered,
            has_weight: self.weight.is_some(),
            has_bias: self.bias.is_some(),
            epsilon: self.epsilon,
            wanted: tracked([Some(self.x), self.weight, self.bias]),
        };
        with_element!(call, T => self.run_as::<T>(call, kind))
    }

    fn run_as<T: Shared + NormElement + SumElement>(&self, call: Call, kind: Kind) -> Result<Tensor> {
        let saves = kind.wanted != [false; 3];
        let rows = &self.x.dims()[..self.x.rank().saturating_sub(1)];
        let mut y = call.fresh::<T>(self.x.shape())?;
        let mut mean = call.wanted::<f32>(saves && self.is_centered, rows)?;
        let mut inverse_deviation = call.wanted::<f32>(saves, rows)?;
        {
            let locked = call.lock();
            let operands = Operands::<T>::new(&locked, kind)?;
            let mut y = y.open()?;
            let (mut mean, mut inverse_deviation) = (open(&mut mean)?, open(&mut inverse_deviation)?);
            operands.norm(kind).on(call.stream()).run_into(NormOutputs {
                y: Some(&mut *y),
                sum: None,
                mean: mean.as_deref_mut(),
                inverse_deviation: inverse_deviation.as_deref_mut(),
            })?;
        }
        let saved = [finished(mean), finished(inverse_deviation)];
        let mut operands = vec![self.x];
        operands.extend(self.weight);
        operands.extend(self.bias);
        attach(self.operation, y.finish(), &operands, move |_, dy| backward::<T>(&call, kind, &saved, dy))
    }
}

/// What a norm is, apart from its operands.
#[derive(Clone, Copy)]
struct Kind {
    is_centered: bool,
    has_weight: bool,
    has_bias: bool,
    epsilon: f32,
    /// Whether x, weight and bias are tracked.
    wanted: [bool; 3],
}

/// The operands here: x, weight and bias.
struct Operands<'g, T: Shared> {
    x: View<'g, T>,
    weight: Option<View<'g, T>>,
    bias: Option<View<'g, T>>,
}

impl<'g, T: Shared + NormElement> Operands<'g, T> {
    /// The first operands of a call.
    fn new(locked: &'g Locked<'_>, kind: Kind) -> Result<Self> {
        let weight = kind.has_weight.then(|| locked.view(1)).transpose()?;
        let bias = kind.has_bias.then(|| locked.view(1 + usize::from(kind.has_weight))).transpose()?;
        Ok(Self { x: locked.view(0)?, weight, bias })
    }

    fn norm(&self, kind: Kind) -> Norm<'_, T> {
        let norm = if kind.is_centered { ops::layer_norm(&self.x) } else { ops::rms_norm(&self.x) };
        let norm = norm.epsilon(kind.epsilon);
        let norm = match &self.weight {
            Some(weight) => norm.weight(&**weight),
            None => norm,
        };
        match &self.bias {
            Some(bias) => norm.bias(&**bias),
            None => norm,
        }
    }
}

/// The gradients of x, and of weight and bias if they are there.
fn backward<T: Shared + NormElement + SumElement>(
    forward: &Call,
    kind: Kind,
    [mean, inverse_deviation]: &[Option<Tensor>; 2],
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let operation = if kind.is_centered { "layer_norm_backward" } else { "rms_norm_backward" };
    let count = 1 + usize::from(kind.has_weight) + usize::from(kind.has_bias);
    let mut operands: Vec<_> =
        ["x", "weight", "bias"].into_iter().zip((0..count).map(|index| forward.operand(index))).collect();
    operands.push(("dy", dy));
    let mut call = Call::new(operation, &operands)?;
    for saved in [mean, inverse_deviation].into_iter().flatten() {
        call = call.with(("statistics", saved), &[DType::F32])?;
    }
    let x = forward.operand(0);
    let columns = x.dims().last().copied().unwrap_or_default();
    let [has_dx, has_dweight, has_dbias] = kind.wanted;
    let mut dx = call.wanted::<T>(has_dx, x.shape())?;
    let mut dweight = call.wanted::<T>(has_dweight, columns)?;
    let mut dbias = call.wanted::<T>(has_dbias, columns)?;
    {
        let locked = call.lock();
        let operands = Operands::<T>::new(&locked, kind)?;
        let dy = locked.view::<T>(count)?;
        let mean = mean.as_ref().map(|_| locked.view::<f32>(count + 1)).transpose()?;
        let inverse_deviation = locked.view::<f32>(count + 1 + usize::from(mean.is_some()))?;
        let (mut dx, mut dweight, mut dbias) = (open(&mut dx)?, open(&mut dweight)?, open(&mut dbias)?);
        let norm = operands.norm(kind);
        norm.backward(&dy).statistics(mean.as_deref(), &inverse_deviation).on(call.stream()).run_into(
            NormGradientOutputs {
                dx: dx.as_deref_mut(),
                dweight: dweight.as_deref_mut(),
                dbias: dbias.as_deref_mut(),
                adds: false,
            },
        )?;
    }
    let mut all = vec![finished(dx)];
    all.extend(kind.has_weight.then(|| finished(dweight)));
    all.extend(kind.has_bias.then(|| finished(dbias)));
    Ok(all)
}
