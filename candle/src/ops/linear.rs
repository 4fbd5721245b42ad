//! Linear layers: `y = act(x wᵀ + bias)`.

use candle_core::Tensor;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::{self, Activation, Precision};

use super::{tracked, with_columns};
use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Shared, finished, open, with_element};

/// The operation's name in errors.
const OPERATION: &str = "linear";

/// The linear operation on `x` `[.., K]` and `w` `[N, K]`: `y = act(x wᵀ + bias)`, `[.., N]`.
///
/// Sums are in f32; f32 operands are multiplied at f32 accuracy unless [`LinearOp::precision`] allows less. The
/// result is rounded once, after the
/// activation. x, w and the bias have gradients.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use warpsmith_candle::{Activation, linear};
///
/// let x = Tensor::new(&[[1.0f32, 2.0]], &Device::Cpu)?;
/// let w = Var::new(&[[3.0f32, 4.0], [-5.0, 0.0]], &Device::Cpu)?;
/// let bias = Var::new(&[0.5f32, 1.0], &Device::Cpu)?;
/// let y = linear(&x, &w).bias(&*bias).activation(Activation::Relu).run()?;
/// assert_eq!(y.to_vec2::<f32>()?, [[11.5, 0.0]]);
///
/// let gradients = y.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&w).unwrap().to_vec2::<f32>()?, [[1.0, 2.0], [0.0, 0.0]]);
/// assert_eq!(gradients.get(&bias).unwrap().to_vec1::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn linear<'a>(x: &'a Tensor, w: &'a Tensor) -> LinearOp<'a> {
    LinearOp { x, w, bias: None, activation: Activation::None, precision: Precision::default() }
}

/// A linear operation that has yet to run; see [`linear`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct LinearOp<'a> {
    x: &'a Tensor,
    w: &'a Tensor,
    bias: Option<&'a Tensor>,
    activation: Activation,
    precision: Precision,
}

impl<'a> LinearOp<'a> {
    /// Adds `bias` `[N]` to every row; `None` adds nothing.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        self.bias = bias.into();
        self
    }

    /// Applies `activation` last, before rounding.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// How exact products have to be, also those of the gradients; the accuracy of the operands' type unless it is set.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] unless all operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`] if they
    /// are on different devices; [`Error::Warpsmith`] if a
    /// shape does not fit.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let mut operands = vec![("x", self.x), ("w", self.w)];
        operands.extend(self.bias.map(|bias| ("bias", bias)));
        let call = Call::new(OPERATION, &operands)?;
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: LinearElement>(&self, call: Call) -> Result<Tensor> {
        let wanted = tracked([Some(self.x), Some(self.w), self.bias]);
        let shape = with_columns(self.x, self.w.dims().first().copied().unwrap_or_default());
        let mut y = call.fresh::<T>(shape.clone())?;
        // The slopes of ReLU are known from the output.
        let saves = wanted != [false; 3] && !matches!(self.activation, Activation::None | Activation::Relu);
        let mut preactivation = call.wanted::<T>(saves, shape)?;
        {
            let locked = call.lock();
            let (x, w) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
            let bias = self.bias.map(|_| locked.view::<T>(2)).transpose()?;
            let mut z = open(&mut preactivation)?;
            let mut operation = ops::linear(&x, &w)
                .bias(bias.as_deref())
                .activation(self.activation)
                .precision(self.precision)
                .on(call.stream());
            if let Some(z) = &mut z {
                operation = operation.preactivation(z);
            }
            operation.run_into(&mut *y.open()?)?;
        }
        let backward = Backward {
            call,
            activation: self.activation,
            precision: self.precision,
            preactivation: finished(preactivation),
            wanted,
        };
        let mut operands = vec![self.x, self.w];
        operands.extend(self.bias);
        attach(OPERATION, y.finish(), &operands, move |y, dy| backward.run::<T>(y, dy))
    }
}

/// What linear layers take here.
pub(super) trait LinearElement:
    Shared
    + ops::linear::LinearInput
    + ops::linear::LinearTypes<Self>
    + ops::linear::LinearGradientElement
    + ops::column_sums::SumElement
    + warpsmith::cpu::FromAccumulator<f32>
{
}

impl<T> LinearElement for T where
    T: Shared
        + ops::linear::LinearInput
        + ops::linear::LinearTypes<T>
        + ops::linear::LinearGradientElement
        + ops::column_sums::SumElement
        + warpsmith::cpu::FromAccumulator<f32>
{
}

/// What the gradients are computed from.
struct Backward {
    call: Call,
    activation: Activation,
    precision: Precision,
    preactivation: Option<Tensor>,
    wanted: [bool; 3],
}

impl Backward {
    fn run<T: LinearElement>(&self, y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, w) = (self.call.operand(0), self.call.operand(1));
        let mut operands = vec![("x", x), ("w", w), ("dy", dy)];
        let z = self.preactivation.as_ref().or((self.activation == Activation::Relu).then_some(y));
        operands.extend(z.map(|z| ("z", z)));
        let call = Call::new("linear_backward", &operands)?;
        let [has_dx, has_dw, has_db] = self.wanted;
        let mut dx = call.wanted::<T>(has_dx, x.shape())?;
        let mut dw = call.wanted::<T>(has_dw, w.shape())?;
        let mut db = call.wanted::<T>(has_db, w.dims()[0])?;
        {
            let locked = call.lock();
            let (x, w, dy) = (locked.view::<T>(0)?, locked.view::<T>(1)?, locked.view::<T>(2)?);
            let z = z.map(|_| locked.view::<T>(3)).transpose()?;
            let mut operation = ops::linear_backward(&x, &w, &dy)
                .activation(self.activation)
                .precision(self.precision)
                .on(call.stream());
            operation = match self.activation {
                Activation::Relu => operation.output(z.as_deref()),
                _ => operation.preactivation(z.as_deref()),
            };
            let (mut dx, mut dw, mut db) = (open(&mut dx)?, open(&mut dw)?, open(&mut db)?);
            operation.run_into(LinearGradientOutputs {
                dx: dx.as_deref_mut(),
                dw: dw.as_deref_mut(),
                db: db.as_deref_mut(),
                ..LinearGradientOutputs::default()
            })?;
        }
        Ok(vec![finished(dx), finished(dw), finished(db)])
    }
}
