//! What an optimiser is told.

use crate::error::{Error, Result};

/// How AdamW moves weights.
///
/// ```
/// use warpsmith::optim::AdamWOptions;
///
/// let options = AdamWOptions { learning_rate: 3e-4, weight_decay: 0.1, ..AdamWOptions::default() };
/// assert_eq!(options.betas, [0.9, 0.999]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The learning rate, at least 0. 10⁻³ unless it is set.
    pub learning_rate: f64,
    /// How much of the first and the second moment each step keeps, from 0 to less than 1. 0.9 and 0.999.
    pub betas: [f64; 2],
    /// ε, what is added to the root of the second moment, at least 0. 10⁻⁸.
    pub epsilon: f64,
    /// What part of a weight, times the learning rate, each step takes off, at least 0. 10⁻².
    pub weight_decay: f64,
    /// Whether moments are corrected for their beginning at 0. They are.
    pub bias_correction: bool,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 1e-2,
            bias_correction: true,
        }
    }
}

/// An option within its range, or the error.
fn expect(
    operation: &'static str,
    argument: &'static str,
    value: f64,
    fits: bool,
    expected: &str,
) -> Result<()> {
    if fits {
        return Ok(());
    }
    Err(Error::Argument { operation, argument, expected: expected.into(), actual: value.to_string() })
}

impl AdamWOptions {
    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let not_negative = |value: f64| value >= 0.0 && value < f64::from(f32::MAX);
        for (argument, value) in [
            ("learning_rate", self.learning_rate),
            ("epsilon", self.epsilon),
            ("weight_decay", self.weight_decay),
        ] {
            expect(operation, argument, value, not_negative(value), "a finite number of at least 0")?;
        }
        for value in self.betas {
            expect(operation, "betas", value, (0.0..1.0).contains(&value), "from 0 to less than 1")?;
        }
        Ok(())
    }
}

/// A group of weights that have their own [`AdamWOptions`]; see [`AdamW::add_group`](super::AdamW::add_group).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Group(pub(super) usize);

/// How weights of 16 bits move by less than the distance of two of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// The optimiser has a copy in f32, which moves; the weights are that copy, rounded to the nearest.
    #[default]
    Master,
    /// There is no copy: a weight is rounded to one of its two neighbours, so that the mean is what it would be. The random bits follow from the
    /// [seed](super::AdamW::seed), the tensor's place, its step and the element's.
    Stochastic,
}

/// How many second moments weights have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondMoment {
    /// One for each weight.
    #[default]
    PerElement,
    /// One for each row along the last axis: that of the mean of the row's squared gradients. So large tables take half the memory for their moments. It is meant for many
    /// rows, since a warp of a GPU has one of them.
    PerRow,
}

/// What weights are told when they are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterOptions {
    /// The group whose options they have; the first one unless it is set.
    pub group: Group,
    /// How weights of 16 bits are rounded; f32 is not.
    pub rounding: Rounding,
    /// How many second moments they have.
    pub second_moment: SecondMoment,
}

/// How the loss is scaled, so that gradients of 16 bits neither vanish nor overflow; as PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaleOptions {
    /// The first scale, above 0. 65536 unless it is set.
    pub initial: f32,
    /// What the scale is multiplied with after `growth_interval` steps in a row whose gradients were finite, at least 1. 2.
    pub growth: f32,
    /// What it is multiplied with after a step with gradients that were not, above 0 and at most 1. 0.5.
    pub backoff: f32,
    /// Steps until the scale grows, at least 1. 2000.
    pub growth_interval: u32,
}

impl Default for LossScaleOptions {
    fn default() -> Self {
        Self { initial: 65_536.0, growth: 2.0, backoff: 0.5, growth_interval: 2000 }
    }
}

impl LossScaleOptions {
    /// A scale that stays what it is, unless gradients overflow.
    #[must_use]
    pub fn constant(scale: f32) -> Self {
        Self { initial: scale, growth: 1.0, ..Self::default() }
    }

    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let of = |value: f32| f64::from(value);
        let is_finite = |value: f32| value.is_finite();
        let &Self { initial, growth, backoff, growth_interval } = self;
        let fits = initial > 0.0 && is_finite(initial);
        expect(operation, "initial", of(initial), fits, "a finite number above 0")?;
        let fits = growth >= 1.0 && is_finite(growth);
        expect(operation, "growth", of(growth), fits, "a finite number of at least 1")?;
        expect(operation, "backoff", of(backoff), backoff > 0.0 && backoff <= 1.0, "above 0 and at most 1")?;
        expect(operation, "growth_interval", growth_interval.into(), growth_interval > 0, "at least 1")
    }
}

/// The error for a norm that gradients cannot be limited to.
pub(super) fn check_norm(operation: &'static str, norm: f32) -> Result<()> {
    expect(operation, "max_norm", norm.into(), norm > 0.0 && norm.is_finite(), "a finite number above 0")
}
