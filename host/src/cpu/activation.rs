//! The activations that an operation can apply to its result before rounding it, and their exact definitions.
//!
//! [`Activation::apply`] is the definition: at `f64` it is what every implementation is validated against, at `f32` it
//! is what the CPU implementation computes. The kernels approximate the same functions with the hardware's `ex2` and
//! `rcp`; [`Activation::evaluation_ulps`] says how far that may be off.

use super::Accumulator;

/// An element-wise function applied to a result before it is rounded to the output's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `z`.
    #[default]
    None,
    /// `max(z, 0)`; NaN stays NaN.
    Relu,
    /// `z · Φ(z)` with the normal distribution's exact `Φ(z) = (1 + erf(z/√2)) / 2` (Hendrycks and Gimpel, 2016).
    GeluErf,
    /// `z/2 · (1 + tanh(√(2/π) · (z + 0.044715 z³)))`, the same paper's approximation.
    GeluTanh,
    /// `z / (1 + e⁻ᶻ)`, also called swish.
    Silu,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 5] = [Self::None, Self::Relu, Self::GeluErf, Self::GeluTanh, Self::Silu];

    /// What stands for it in a kernel's parameters.
    pub(crate) const fn on_device(self) -> warpsmith_dsl::epilogue::Activation {
        use warpsmith_dsl::epilogue::Activation as Device;
        match self {
            Self::None => Device::NONE,
            Self::Relu => Device::RELU,
            Self::GeluErf => Device::GELU_ERF,
            Self::GeluTanh => Device::GELU_TANH,
            Self::Silu => Device::SILU,
        }
    }

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relu => "relu",
            Self::GeluErf => "gelu-erf",
            Self::GeluTanh => "gelu-tanh",
            Self::Silu => "silu",
        }
    }

    /// Its value at `z`. At −∞ it is the limit: 0 for every activation but `None`.
    #[must_use]
    pub fn apply<A: Accumulator>(self, z: A) -> A {
        let (one, half) = (A::one(), A::from_f32(0.5));
        match self {
            Self::None => z,
            Self::Relu if z < A::zero() => A::zero(),
            Self::Relu => z,
            _ if z == A::neg_infinity() => A::zero(),
            Self::GeluErf => half * z * (-z * A::FRAC_1_SQRT_2()).erfc(),
            // 1 + tanh(u) = 2 / (1 + e^(−2u)), which does not cancel for u far below 0.
            Self::GeluTanh => {
                let two_u = A::from_f64(2.0 * (2.0 / core::f64::consts::PI).sqrt())
                    * (z + A::from_f64(0.044715) * z * z * z);
                z / (one + (-two_u).exp())
            }
            Self::Silu => z / (one + (-z).exp()),
        }
    }

    /// An upper bound of its slope's magnitude: how much it can magnify an error of its argument.
    ///
    /// Both GELUs have their steepest slope, 1.1290 (tanh form: 1.1284), near z = √2; SiLU's, 1.0998, is at z = 2.3994.
    #[must_use]
    pub const fn lipschitz(self) -> f64 {
        match self {
            Self::None | Self::Relu => 1.0,
            Self::GeluErf | Self::GeluTanh => 1.13,
            Self::Silu => 1.10,
        }
    }

    /// Its derivative at `z`, at an infinity the limit. ReLU's is 0 at 0; that of NaN is NaN, but for `None`, which is 1 everywhere.
    #[must_use]
    pub fn derivative<A: Accumulator>(self, z: A) -> A {
        let (zero, one, half) = (A::zero(), A::one(), A::from_f32(0.5));
        // Of an odd function v ≥ 0 and z·v′ the derivative of z · σ(v): σ(v) + z·v′ · σ(v) · σ(−v).
        let by_sigmoid = |v: A, weight: A| {
            let (at, opposite) = (one / (one + (-v).exp()), one / (one + v.exp()));
            at + weight * at * opposite
        };
        match self {
            Self::None => one,
            Self::Relu if z > zero => one,
            Self::Relu if z <= zero => zero,
            Self::Relu => z,
            // From here on σ, Φ and what is added to them are 0 or 1 in f64, and the factors would be infinite further on.
            _ if z.abs() > A::from_f32(800.0) => {
                if z > zero {
                    one
                } else {
                    zero
                }
            }
            Self::GeluErf => {
                let density = A::from_f64((0.5 / core::f64::consts::PI).sqrt()) * (-half * z * z).exp();
                half * (-z * A::FRAC_1_SQRT_2()).erfc() + z * density
            }
            Self::GeluTanh => {
                let (factor, square) = (A::from_f64(2.0 * (2.0 / core::f64::consts::PI).sqrt()), z * z);
                let (cubic, three) = (A::from_f64(0.044715), A::from_f32(3.0));
                by_sigmoid(factor * (z + cubic * square * z), factor * z * (one + three * cubic * square))
            }
            Self::Silu => by_sigmoid(z, z),
        }
    }

    /// How far an f32 evaluation of the derivative may be from the true value, in units of 2⁻²⁴.
    ///
    /// What it is for kernels is derived where they have their functions, in `warpsmith_dsl::math`: 12, of the tanh form 16. On the CPU the power has a relative error of
    /// 2 units from `exp` and, of the tanh form, 6 |v| from its exponent v. There σ(v) is off by 2 + 1 + 6 · 0.279 = 4.7 units. The product, at most 0.296, is off by
    /// 16.7 units relatively, those of both factors and of five roundings, and by 6 |v| more, where |v| times it is at most 0.56: 8.3 units. Together with
    /// the last rounding that is 14.2. The other two are nearer.
    #[must_use]
    pub const fn derivative_ulps(self) -> f64 {
        match self {
            Self::None | Self::Relu => 0.0,
            Self::GeluErf | Self::Silu => 12.0,
            Self::GeluTanh => 16.0,
        }
    }

    /// How far an f32 evaluation may be from the true value, in units of `2⁻²⁴ · |z|`.
    ///
    /// Each of the three smooth ones is `z · p` with `p` in [0, 1], so an absolute error of `p` counts times `|z|`.
    /// `p = 1 / (1 + e^(−v))` is evaluated as `rcp(1 + ex2(−v · log2 e))`. An error δ of the exponent changes `p` by `p(1 − p)
    /// · ln 2 · δ`, and `|v| · p(1 − p) ≤ 0.2239`. So the roundings of the exponent and of its factors (4 at most for the tanh
    /// form) give at most 4 · 0.2239 < 0.9 units. `ex2` (2 ulp, of up to 2 units each) gives at most 4/4. The sum gives 1,
    /// `rcp` (1 ulp) 2, and the product with `z` 1: under 6 together. Where two share a reciprocal, `p = rcp(a · b) · b`, the
    /// two products are 2 units more:
    /// under 8, with room
    /// for the cut-off of exponents at 62 and the 2⁻⁶¹ that is subtracted, together at most 2⁻³⁷ units.
    /// The erf form is `max(z, 0) − |z| · Φ(−|z|)`. The tail Φ(−|z|) is 1/2 at 0, where power and reciprocal are just below 1
    /// and an ulp of theirs is one unit. Of it `ex2` is off by 2 units, the factor q · P(q) with q = rcp(1 + 0.39 |z|) by 2.1
    /// times q's 2, the polynomial by 2, two products by 2, together 10.2. Half of that, the last rounding and the polynomial's
    /// own distance from what it fits, 0.3,
    /// are under 7. From there on the tail falls faster than its relative error rises, to less than 1/8 where an ulp of the
    /// power becomes two units. The roundings of the power's exponent, which is zero at 0, add about 1.5 z² units of the tail.
    #[must_use]
    pub const fn evaluation_ulps(self) -> f64 {
        match self {
            Self::None | Self::Relu => 0.0,
            Self::GeluErf | Self::GeluTanh | Self::Silu => 8.0,
        }
    }
}

impl core::fmt::Display for Activation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Activation;

    #[test]
    fn known_values_are_met_in_f64() {
        let near = |activation: Activation, z: f64, y: f64| {
            let got = activation.apply(z);
            assert!((got - y).abs() <= 1e-15 * y.abs().max(1.0), "{activation}({z}) = {got}, not {y}");
        };
        near(Activation::GeluErf, 1.0, 0.841_344_746_068_542_9);
        near(Activation::GeluErf, -3.0, -0.004_049_694_094_890_287);
        near(Activation::GeluTanh, 1.0, 0.841_191_990_608_276_8);
        near(Activation::Silu, 1.0, 0.731_058_578_630_004_9);
        near(Activation::Silu, -20.0, -4.122_307_236_380_407e-8);
        near(Activation::Relu, -2.0, 0.0);
    }

    #[test]
    fn limits_at_infinity_and_nan_hold() {
        for activation in Activation::ALL {
            assert_eq!(activation.apply(f32::INFINITY), f32::INFINITY, "{activation}");
            assert!(activation.apply(f32::NAN).is_nan(), "{activation}");
            let below = if activation == Activation::None { f32::NEG_INFINITY } else { 0.0 };
            assert_eq!(activation.apply(f32::NEG_INFINITY), below, "{activation}");
        }
    }

    #[test]
    fn slope_never_exceeds_the_lipschitz_constant() {
        for activation in Activation::ALL {
            for step in -200_000..200_000 {
                let (a, b) = (f64::from(step) * 1e-4, f64::from(step + 1) * 1e-4);
                let slope = (activation.apply(b) - activation.apply(a)).abs() / (b - a);
                assert!(slope <= activation.lipschitz() + 1e-9, "{activation} at {a}: {slope}");
            }
        }
    }

    #[test]
    fn f32_evaluation_stays_within_its_ulps() {
        for activation in Activation::ALL {
            for step in -120_000..120_000 {
                let z = step as f32 * 1.234_5e-4;
                let error = (f64::from(activation.apply(z)) - activation.apply(f64::from(z))).abs();
                let allowed =
                    activation.evaluation_ulps() * 2f64.powi(-24) * f64::from(z).abs() + 2f64.powi(-126);
                assert!(error <= allowed, "{activation}({z}) is off by {error}, allowed {allowed}");
            }
        }
    }

    #[test]
    fn derivatives_are_those_of_finite_differences() {
        for activation in Activation::ALL {
            for step in -1_600..1_600 {
                // Never 0, where ReLU has none.
                let z = (f64::from(step) + 0.5) / 64.0;
                let slope = |h: f64| (activation.apply(z + h) - activation.apply(z - h)) / (2.0 * h);
                // Two steps of Richardson's extrapolation leave h⁶ times a seventh derivative over 5040 / 64, which is below 10³ for all of them.
                let h = 1.0 / 256.0;
                let of_two = |h: f64| (4.0 * slope(h) - slope(2.0 * h)) / 3.0;
                let expected = (16.0 * of_two(h / 2.0) - of_two(h)) / 15.0;
                let error = (activation.derivative(z) - expected).abs();
                // Rounded values of up to 26 over a step of 1/512.
                assert!(error <= 1e-10, "{activation} at {z}: {error}");
            }
        }
    }

    #[test]
    fn derivatives_have_limits_and_nan() {
        for activation in Activation::ALL {
            let of = |z: f32| (activation.derivative(z), activation.derivative(f64::from(z)));
            for large in [f32::INFINITY, f32::MAX, 900.0, 200.0] {
                assert_eq!(of(large), (1.0, 1.0), "{activation}");
                let below = if activation == Activation::None { 1.0 } else { 0.0 };
                let (single, double) = of(-large);
                assert!(single == below && (double - below as f64).abs() < 1e-80, "{activation}");
            }
            let is_nan = activation != Activation::None;
            assert_eq!(activation.derivative(f32::NAN).is_nan(), is_nan, "{activation}");
        }
        assert_eq!(Activation::Relu.derivative(0.0f32), 0.0);
        assert_eq!(Activation::Relu.derivative(-0.0f64), 0.0);
        assert_eq!(Activation::Silu.derivative(0.0f64), 0.5);
    }

    #[test]
    fn f32_derivatives_stay_within_their_ulps() {
        for activation in Activation::ALL {
            for step in -120_000..120_000 {
                let z = step as f32 * 1.234_5e-4;
                let error = (f64::from(activation.derivative(z)) - activation.derivative(f64::from(z))).abs();
                let allowed = activation.derivative_ulps() * 2f64.powi(-24) + 2f64.powi(-126);
                assert!(error <= allowed, "{activation}′({z}) is off by {error}, allowed {allowed}");
            }
        }
    }
}
