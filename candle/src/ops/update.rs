//! Generated low-rank updates, alone and added to a linear layer.

mod backward;

use candle_core::Tensor;
use warpsmith::ops::{self, Activation};

use super::linear::LinearElement;
use super::with_columns;
use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Locked, View, finished, open, with_element};

use backward::Backward;

/// The generated low-rank update of `x` `[.., K]`: `y = ((x v) ⊙ codes) u · scaling`, `[.., N]`, with v `[K, R]` and
/// u `[R, N]`.
///
/// `codes` are `[.., R]`: a row for each row of x, or a row for all rows with the same indices of the first axes of
/// x. All operands have gradients.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::generated_update;
///
/// let x = Tensor::new(&[[1.0f32, 2.0], [3.0, -1.0]], &Device::Cpu)?;
/// let v = Tensor::new(&[[1.0f32], [1.0]], &Device::Cpu)?;
/// let codes = Tensor::new(&[[1.0f32], [0.5]], &Device::Cpu)?;
/// let u = Tensor::new(&[[10.0f32, 20.0]], &Device::Cpu)?;
/// let y = generated_update(&x, &v, &codes, &u, 2.0).run()?;
/// assert_eq!(y.to_vec2::<f32>()?, [[60.0, 120.0], [20.0, 40.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn generated_update<'a>(
    x: &'a Tensor,
    v: &'a Tensor,
    codes: &'a Tensor,
    u: &'a Tensor,
    scaling: f32,
) -> UpdateOp<'a, Alone> {
    let updates = vec![Update { v, codes, u, scaling }];
    UpdateOp { x, base: None, updates, kind: std::marker::PhantomData }
}

/// The linear operation on `x` `[.., K]` and `w` `[N, K]` with a generated low-rank update: `y = act(x wᵀ + ((x v) ⊙
/// codes) u · scaling + bias)`, `[.., N]`.
///
/// v is `[K, R]`, u `[R, N]`; codes are as [`generated_update`] takes them. All operands have gradients. That of `w`
/// is computed only if it is tracked, which the weight
/// of a layer with updates seldom is.
pub fn linear_with_update<'a>(
    x: &'a Tensor,
    w: &'a Tensor,
    v: &'a Tensor,
    codes: &'a Tensor,
    u: &'a Tensor,
    scaling: f32,
) -> UpdateOp<'a, WithLinear> {
    let base = Some(Base { w, bias: None, activation: Activation::None });
    let updates = vec![Update { v, codes, u, scaling }];
    UpdateOp { x, base, updates, kind: std::marker::PhantomData }
}

/// Updates by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

/// Updates that are added to a linear operation.
#[derive(Clone, Copy, Debug)]
pub struct WithLinear;

/// Generated updates that have yet to run; see [`generated_update`] and [`linear_with_update`].
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct UpdateOp<'a, Kind> {
    x: &'a Tensor,
    base: Option<Base<'a>>,
    updates: Vec<Update<'a>>,
    kind: std::marker::PhantomData<Kind>,
}

/// The linear operation that updates are added to.
#[derive(Clone, Copy, Debug)]
struct Base<'a> {
    w: &'a Tensor,
    bias: Option<&'a Tensor>,
    activation: Activation,
}

#[derive(Clone, Copy, Debug)]
struct Update<'a> {
    v: &'a Tensor,
    codes: &'a Tensor,
    u: &'a Tensor,
    scaling: f32,
}

impl<'a> UpdateOp<'a, WithLinear> {
    /// Adds `bias` `[N]` to every row; `None` adds nothing.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        let bias = bias.into();
        self.base = self.base.map(|base| Base { bias, ..base });
        self
    }

    /// Applies `activation` last, before rounding.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.base = self.base.map(|base| Base { activation, ..base });
        self
    }
}

impl<'a, Kind> UpdateOp<'a, Kind> {
    /// Adds another update. There are limits to their number and to their ranks together, which are those of
    /// [`warpsmith::ops::generated_update`].
    pub fn and(mut self, v: &'a Tensor, codes: &'a Tensor, u: &'a Tensor, scaling: f32) -> Self {
        self.updates.push(Update { v, codes, u, scaling });
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] unless all operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`] if they
    /// are on different devices; [`Error::Warpsmith`] if a
    /// shape does not fit, or there are too many updates.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let operation = if self.base.is_some() { "linear_with_update" } else { "generated_update" };
        let operands = self.operands();
        let call = Call::new(operation, &operands)?.with_contiguous_rows()?;
        let layout = Layout {
            has_base: self.base.is_some(),
            has_bias: self.base.is_some_and(|base| base.bias.is_some()),
            activation: self.base.map_or(Activation::None, |base| base.activation),
            scalings: self.updates.iter().map(|update| update.scaling).collect(),
        };
        let tensors: Vec<&Tensor> = operands.iter().map(|&(_, tensor)| tensor).collect();
        with_element!(call, T => self.run_as::<T>(call, layout, &tensors))
    }

    /// The operands in their order: x, w, the bias, and v, codes and u of each update.
    fn operands(&self) -> Vec<(&'static str, &'a Tensor)> {
        let mut operands = vec![("x", self.x)];
        operands.extend(self.base.map(|base| ("w", base.w)));
        operands.extend(self.base.and_then(|base| base.bias).map(|bias| ("bias", bias)));
        for update in &self.updates {
            operands.extend([("v", update.v), ("codes", update.codes), ("u", update.u)]);
        }
        operands
    }

    fn run_as<T: UpdateElement>(&self, call: Call, layout: Layout, tensors: &[&Tensor]) -> Result<Tensor> {
        let columns = match (self.base, &self.updates[..]) {
            (Some(base), _) => base.w.dims().first().copied(),
            (None, [update, ..]) => update.u.dims().get(1).copied(),
            (None, []) => None,
        };
        let shape = with_columns(self.x, columns.unwrap_or_default());
        let wanted: Vec<bool> = tensors.iter().map(|tensor| tensor.track_op()).collect();
        let has_slopes = !matches!(layout.activation, Activation::None | Activation::Relu);
        let mut y = call.fresh::<T>(shape.clone())?;
        let mut preactivation = call.wanted::<T>(has_slopes && wanted.contains(&true), shape)?;
        {
            let locked = call.lock();
            let views = Views::<T>::new(&locked, &layout)?;
            let mut z = open(&mut preactivation)?;
            let mut y = y.open()?;
            views.forward(&layout, call.stream(), z.as_deref_mut(), &mut y)?;
        }
        let backward = Backward { call, layout, preactivation: finished(preactivation), wanted };
        let operation = backward.call.operation;
        attach(operation, y.finish(), tensors, move |y, dy| backward.run::<T>(y, dy))
    }
}

/// What updates take here.
trait UpdateElement: LinearElement + ops::update::UpdateInput + ops::update::UpdateGradientElement {}

impl<T: LinearElement + ops::update::UpdateInput + ops::update::UpdateGradientElement> UpdateElement for T {}

/// Which operands there are, and the options.
#[derive(Clone, Debug)]
struct Layout {
    has_base: bool,
    has_bias: bool,
    activation: Activation,
    /// One for each update.
    scalings: Vec<f32>,
}

impl Layout {
    /// The place of the first update's v.
    fn first(&self) -> usize {
        1 + usize::from(self.has_base) + usize::from(self.has_bias)
    }
}

/// The operands here.
struct Views<'g, T: LinearElement> {
    x: View<'g, T>,
    w: Option<View<'g, T>>,
    bias: Option<View<'g, T>>,
    /// v, codes and u of each update.
    updates: Vec<[View<'g, T>; 3]>,
}

impl<'g, T: UpdateElement> Views<'g, T> {
    /// The first operands of a call.
    fn new(locked: &'g Locked<'_>, layout: &Layout) -> Result<Self> {
        let first = layout.first();
        let of_update = |index: usize| -> Result<[View<'g, T>; 3]> {
            let at = first + 3 * index;
            Ok([locked.view(at)?, locked.view(at + 1)?, locked.view(at + 2)?])
        };
        Ok(Self {
            x: locked.view(0)?,
            w: layout.has_base.then(|| locked.view(1)).transpose()?,
            bias: layout.has_bias.then(|| locked.view(2)).transpose()?,
            updates: (0..layout.scalings.len()).map(of_update).collect::<Result<_>>()?,
        })
    }

    fn forward(
        &self,
        layout: &Layout,
        stream: &warpsmith::Stream,
        preactivation: Option<&mut warpsmith::Tensor<T>>,
        y: &mut warpsmith::Tensor<T>,
    ) -> Result<()> {
        let Some(([v, codes, u], others)) = self.updates.split_first() else { return Ok(()) };
        let scaling = layout.scalings[0];
        let others = others.iter().zip(&layout.scalings[1..]);
        let Some(w) = &self.w else {
            let first = ops::generated_update(&self.x, v, codes, u, scaling);
            let all = others.fold(first, |all, ([v, codes, u], &scaling)| all.and(v, codes, u, scaling));
            return Ok(all.on(stream).run_into(y)?);
        };
        let first = ops::linear_with_update(&self.x, w, v, codes, u, scaling);
        let all = others.fold(first, |all, ([v, codes, u], &scaling)| all.and(v, codes, u, scaling));
        let all = all.bias(self.bias.as_deref()).activation(layout.activation).on(stream);
        match preactivation {
            Some(z) => all.preactivation(z).run_into(y)?,
            None => all.run_into(y)?,
        }
        Ok(())
    }
}
