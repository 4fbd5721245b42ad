//! How far a correct result may be from the exact one: bounds derived from the types and the length of the sum.
//!
//! Let `s = Σ xₖwₖ` over the K products of one output element and `S = Σ |xₖwₖ|`, the entry of `|X| |W|ᵀ`. The inputs are taken
//! as they are, already rounded to their type, so no error of theirs counts. Write u for 2⁻²⁴, half a unit in the last place of
//! an f32 near 1, f for `alpha · row scale · column scale`, and z for `f · s + b + beta · r`.
//!
//! **Sums on tensor cores, f16 and bf16.** Products are exact. A group of 8 products (on later architectures 16) and the
//! accumulator are aligned to the largest of them and truncated to at least 24 fraction bits, added, and the sum truncated to
//! f32. No term exceeds S, so a group of 8 loses less than 9 · u · S by alignment and 2u · S by the final truncation. ⌈K/8⌉
//! groups lose less than 11/8 · (K + 7) · u · S, which `(K + 8) · 2u · S` covers. Steps of zeros past the end of K lose nothing.
//!
//! **Sums on tensor cores, f32.** An operand is split as `x = big + small + δ`: `big` is x without its low 13 bits, so
//! `|x − big| < 2⁻¹⁰|x|`; `small` is that exact difference rounded to the 11 bits of a TF32, so `|small| ≤ 2⁻¹⁰|x|` and
//! `|δ| ≤ 2⁻²¹|x|`. Of the product, `small·small` (at most 2⁻²⁰ of it) and the δ terms (2⁻²¹ each) are dropped: together
//! less than 2⁻¹⁹ S. The three products that remain are added in groups of 4 or 8 by one step of 8 of K, starting from zero. At
//! most 6 groups that lose less than `(5 + 2) u` each of that step's part of S, so 42 u · S over all steps. Each step's sum is
//! then added to an f32 with rounding to nearest: at most u · S a step, ⌈K/8⌉ steps.
//!
//! With `wgmma` the groups are of 8 products, 6 of them one after the other from zero over 16 of K, those with small parts first. The
//! first four see terms of at most 2⁻⁹ S, so all but the last two lose next to nothing. Less than `(2 · (9 + 2) + 1) u` of the
//! part of S, and one rounded addition for each 16 of K: within the bound of the former.
//!
//! **Sums on Turing.** f16 is added in groups of 8 products, or of 4 with 7u of S/⌈K/4⌉ each: within the bound of the former. bf16
//! and f32 are multiplied in f32, a row of 128 bytes (32 products or 64) by fused multiply-adds from zero, whose sum is then
//! added with rounding. At most `(64 + ⌈K/64⌉) u · S` for bf16 and `(32 + ⌈K/32⌉) u · S` for f32, which is below what tensor
//! cores may lose.
//!
//! **Sums on tensor cores, TF32.** Each operand is rounded to 11 significant bits by the copy engine, to nearest: a relative error of
//! at most 2⁻¹¹ each, together at most 2⁻¹⁰ + 2⁻²² of a product. Sums are as those of 16-bit types, in groups of 8. (Where a kernel
//! is more exact than it has to be, the bound is still that of what was asked for.) A number beyond TF32's range becomes
//! infinite: such a number is above 2¹²⁷, where any result is accepted.
//!
//! **Sums of 8-bit numbers on tensor cores.** An instruction takes 32 products, which are exact, and the sum so far: Hopper's `wgmma` all
//! at once, Ada's `mma` in two groups of 16. All of a group are aligned to the largest exponent E among them, cut to multiples of the unit 2^(E−13), added, and the sum is cut to 13 bits
//! behind its leading one. The exponent of a product is the sum of its factors' exponents, where a subnormal number has the
//! smallest normal exponent of its type. So let S here be the sum of the products' sizes with factors made as large as the
//! smallest normal number where they are smaller, but not zero. Then E is at most that of S, and the unit at most 2⁻¹³ S. Each
//! term loses less
//! than a unit, and so does the sum. Of Ada's eight groups of the 128 products that are added up so, the first begins from zero and loses 17
//! units, each of the others 18: 143 · 2⁻¹³ S. Hopper's four instructions lose less, 33 units and three times 34. These sums are added to an
//! f32 with rounding to nearest, at most u · S a time, ⌈K/128⌉ times. (One long sum would lose 34 units of all of S every 32 products.)
//! `mma` on Hopper adds 8-bit numbers as those of f16, which is within the same bound. Two more roundings belong to
//! the scales: a factor is put together of those of x and of w, and the sum is multiplied twice.
//!
//! **Sums on the CPU.** [`warpsmith::cpu`] adds blocks of 128 products, then the blocks: an element passes through at most
//! `min(K, 128) + ⌈K/128⌉` roundings of u, one more where a product is rounded before it is added.
//!
//! **The claim for f32.** For K up to 4096, f32 results also have to be within 10⁻⁵ of S. The CPU's bound guarantees it (166 u
//! with scales and residual is 0.99 · 10⁻⁵). On tensor cores the bound above allows 3.5 · 10⁻⁵ if all roundings conspire, so there it is a claim that
//! every validation tests.
//!
//! **Scales, bias and residual.** f has two roundings, its product with the sum one, that of the residual one, and each addition one:
//! no term passes through more than five, at most `5u · (|f| S + |b| + |beta · r|)`.
//!
//! **Activation.** An error of z is magnified by at most the activation's Lipschitz constant; its own evaluation adds
//! [`Activation::evaluation_ulps`] · u · |z|.
//!
//! **Output.** The result is rounded once, to nearest: relative 2⁻¹¹ (f16), 2⁻⁸ (bf16) or 2⁻²⁴ (f32), or half the distance of
//! subnormal numbers, whichever is larger.
//!
//! **Near zero.** A TF32 is a multiple of 2⁻¹³⁶, and what an f32 has below that is lost. The other factor multiplies it: a sum loses at most
//! 2⁻¹³⁶ · Σ (|xₖ| + |wₖ|). Factors of 2⁻¹¹⁵ and above lose no more than their parts do in any case. A subnormal f32 keeps at most 10 of
//! its bits. This holds for TF32 alike; Turing and the CPU lose nothing here.
//!
//! Terms of second order in u are below the slack of the constants for every K that a launch takes (K < 2³⁰). Underflow of
//! products and sums adds at most 2⁻¹²⁶ for each of the K products.

pub mod adamw;
pub(crate) mod attention;
pub(crate) mod attention_gradient;
pub mod backward;
pub mod elementwise;
pub(crate) mod norm;
pub mod softmax;
pub(crate) mod update;

use warpsmith::DType;
use warpsmith::ops::{Activation, Precision, Products};

/// How an implementation adds up, which decides how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// `mma` instructions, on a GPU or in the emulator.
    TensorCore,
    /// Tensor cores, with operands of f32 that may be rounded to TF32.
    Tf32,
    /// `wgmma` or `mma` instructions on 8-bit operands, whose sums are promoted to f32 every 128 products.
    Promoted,
    /// The CPU implementation.
    Cpu,
}

impl Arithmetic {
    /// What tensor cores may do to inputs of type `input` and sums of `k` products where `precision` is asked for.
    pub(crate) fn on_tensor_cores(input: DType, k: usize, precision: Precision) -> Self {
        match Products::choose(input, k, precision, true) {
            Products::Tf32 => Self::Tf32,
            _ => Self::TensorCore,
        }
    }
}

/// Half a unit in the last place of an f32 near 1.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Products of 8-bit numbers that are added up before they are added to an f32.
const PROMOTED_SUM: usize = 128;
/// What such a sum keeps: bits behind the leading one of its largest term.
const PROMOTED_UNIT: f64 = 1.0 / (1 << 13) as f64;
/// Units that the eight groups of such a sum lose at most: the first of its 16 terms and its result, the others of one term more.
const PROMOTED_UNITS: u32 = 17 + 7 * 18;
/// The largest error of an f32 result relative to S, for K up to [`F32_CLAIM_K`].
const F32_CLAIM: f64 = 1e-5;
/// The longest sum for which [`F32_CLAIM`] is claimed.
const F32_CLAIM_K: usize = 4096;

/// What rounding to a type does to a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    /// The largest relative error of a normal number.
    pub(crate) relative: f64,
    /// The largest error of a subnormal number.
    pub(crate) absolute: f64,
    /// The smallest magnitude that becomes infinite.
    overflow: f64,
}

impl Rounding {
    /// For a binary floating-point type with `precision` significant bits and the largest exponent `exponent`.
    fn new(precision: i32, exponent: i32) -> Self {
        Self {
            relative: 2f64.powi(-precision),
            absolute: 2f64.powi(1 - exponent - precision),
            overflow: 2f64.powi(exponent) * (2.0 - 2f64.powi(-precision)),
        }
    }

    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::new(11, 15),
            DType::Bf16 => Self::new(8, 127),
            DType::F32 => Self::new(24, 127),
            _ => Self::new(53, 1023),
        }
    }
}

/// One element of the reference, all in f64.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// `f · s + b + beta · r`.
    pub z: f64,
    /// `act(z)`.
    pub y: f64,
    /// `S`, the sum of the products' magnitudes.
    pub magnitude: f64,
    /// What else the product is multiplied with, beside the model's scale: the product of the row's and the column's. 1 without.
    pub factor: f64,
    /// What is added to the product, in magnitude: `|b| + |beta · r|`.
    pub added: f64,
    /// How far the terms of the sum may be off before they are added up, together. 0 for products of inputs.
    pub inner: f64,
    /// What the sum may lose because the factors' parts are near zero. 0 where factors have no parts.
    pub lost: f64,
}

/// What factors of type `input` may be off by near zero, where a part is less than the smallest TF32.
pub(crate) fn lost_near_zero(input: DType) -> f64 {
    if input == DType::F32 { 2f64.powi(-136) } else { 0.0 }
}

/// What is known of one result beside its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// `|ŷ − y|`; 0 where both are the same infinity or NaN, infinite where only one is finite.
    pub error: f64,
    /// The largest error that is allowed.
    pub bound: f64,
    /// Whether the result is acceptable.
    pub within: bool,
}

/// The error bound of one linear operation; the module's text derives it.
#[derive(Clone, Copy, Debug)]
pub struct ErrorModel {
    k: usize,
    scale: f64,
    activation: Activation,
    accumulation: f64,
    claim: f64,
    rounding: Rounding,
}

impl ErrorModel {
    /// The bound for sums of `k` products of elements of type `input`.
    #[must_use]
    pub fn new(
        arithmetic: Arithmetic,
        input: DType,
        output: DType,
        k: usize,
        scale: f32,
        activation: Activation,
    ) -> Self {
        let accumulation = match (arithmetic, input) {
            (Arithmetic::Cpu, _) => {
                let block = warpsmith::cpu::SUM_BLOCK;
                (k.min(block) + k.div_ceil(block) + 1) as f64 * U
            }
            (Arithmetic::Promoted, _) => {
                f64::from(PROMOTED_UNITS) * PROMOTED_UNIT + (k.div_ceil(PROMOTED_SUM) + 2) as f64 * U
            }
            (Arithmetic::Tf32, _) => Products::Tf32.error(k),
            (Arithmetic::TensorCore, _) => Products::choose(input, k, Precision::Full, true).error(k),
        };
        let full = arithmetic != Arithmetic::Tf32;
        let claim = if input == DType::F32 && full && k <= F32_CLAIM_K { F32_CLAIM } else { f64::INFINITY };
        let scale = f64::from(scale).abs();
        Self { k, scale, activation, accumulation, claim, rounding: Rounding::of(output) }
    }

    /// The same without the claim for f32, of sums whose terms are off themselves.
    pub(crate) fn without_claim(self) -> Self {
        Self { claim: f64::INFINITY, ..self }
    }

    /// The same for another error of the sums, relative to their magnitude.
    pub(crate) fn with_accumulation(self, accumulation: f64) -> Self {
        Self { accumulation, ..self }
    }

    /// How far the value before rounding may be from `expected.y`.
    fn before_rounding(&self, expected: Expected) -> f64 {
        let scale = self.scale * expected.factor.abs();
        let size = scale * expected.magnitude + expected.added;
        let relative = (self.accumulation * expected.magnitude + expected.inner) * scale + 5.0 * U * size;
        // Of the products' sum, of f, of what is added.
        let underflow =
            (self.k as f64 * scale + 2.0 * expected.magnitude + 4.0) * f64::from(f32::MIN_POSITIVE);
        let argument = relative.min(self.claim * size) + underflow + expected.lost * scale;
        self.activation.lipschitz() * argument
            + self.activation.evaluation_ulps() * U * (expected.z.abs() + argument)
            + f64::from(f32::MIN_POSITIVE)
    }

    /// The largest error allowed of a result whose reference is `expected`, if nothing overflows.
    #[must_use]
    pub fn bound(&self, expected: Expected) -> f64 {
        let error = self.before_rounding(expected);
        error + (self.rounding.relative * (expected.y.abs() + error)).max(self.rounding.absolute)
    }

    /// How far z may be from the reference's before it is rounded; of a sum that overflows it says nothing.
    pub(crate) fn argument_error(&self, expected: Expected) -> f64 {
        Self { activation: Activation::None, ..*self }.before_rounding(expected)
    }

    /// Compares the stored argument of the activation with its reference, as [`judge`](Self::judge) does a result.
    pub(crate) fn judge_argument(&self, got: f64, expected: Expected) -> Judgement {
        Self { activation: Activation::None, ..*self }.judge(got, Expected { y: expected.z, ..expected })
    }

    /// Compares a result with its reference.
    ///
    /// An input that is NaN or infinite must show: where the exact result is infinite or NaN, so is this one, and alike. (An activation may be
    /// NaN at −∞ where it is a product of −∞ and zero.) Where a sum of magnitudes exceeds f32's range, partial
    /// sums may overflow in any order, and any result is accepted. A result beyond the output type's range must be infinite.
    #[must_use]
    pub fn judge(&self, got: f64, expected: Expected) -> Judgement {
        let bound = self.bound(expected);
        let (z, y) = (expected.z, expected.y);
        let error = if got == y || (got.is_nan() && y.is_nan()) { 0.0 } else { (got - y).abs() };
        let error = if error.is_nan() { f64::INFINITY } else { error };
        let within = if z.is_nan() {
            got.is_nan()
        } else if z.is_infinite() {
            let is_product = matches!(self.activation, Activation::GeluTanh | Activation::Silu);
            got == y || z < 0.0 && is_product && got.is_nan()
        } else if expected.magnitude * (self.scale * expected.factor.abs()).max(self.scale).max(1.0)
            + expected.added
            >= 2f64.powi(127)
        {
            true
        } else {
            let slack = self.before_rounding(expected);
            let may_overflow = y.abs() + slack >= self.rounding.overflow;
            let must_overflow = y.abs() - slack >= self.rounding.overflow;
            let overflowed = got.is_infinite() && got.signum() == y.signum();
            if must_overflow { overflowed } else { (may_overflow && overflowed) || error <= bound }
        };
        Judgement { error, bound, within }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use warpsmith::DType;
    use warpsmith::ops::Activation;

    use super::{Arithmetic, ErrorModel, Expected, Rounding, U};

    fn model(input: DType, output: DType, k: usize) -> ErrorModel {
        ErrorModel::new(Arithmetic::TensorCore, input, output, k, 1.0, Activation::None)
    }

    fn plain(y: f64, magnitude: f64) -> Expected {
        Expected { z: y, y, magnitude, factor: 1.0, added: 0.0, inner: 0.0, lost: 0.0 }
    }

    #[test]
    fn rounding_constants_are_those_of_the_types() {
        let f = Rounding::of(DType::F16);
        assert_eq!(f.overflow, 65520.0);
        assert_eq!(f.absolute, f64::from(f16::from_bits(1).to_f32()) / 2.0);
        let b = Rounding::of(DType::Bf16);
        assert_eq!(b.relative, 1.0 / 256.0);
        assert_eq!(b.absolute, f64::from(bf16::from_bits(1).to_f32()) / 2.0);
        assert_eq!(Rounding::of(DType::F32).absolute, f64::from(f32::from_bits(1)) / 2.0);
    }

    #[test]
    fn rounding_alone_passes_and_one_unit_more_fails() {
        let model = model(DType::F16, DType::F16, 1);
        for bits in 0x0001..0x7bffu16 {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let halfway = low.midpoint(high);
            assert!(model.judge(low, plain(halfway, halfway)).within);
            assert!(model.judge(high, plain(halfway, halfway)).within);
            let beyond = high + (high - low) * 0.6;
            assert!(!model.judge(low, plain(beyond, beyond)).within, "{low} for {beyond}");
        }
    }

    #[test]
    fn the_f32_bound_at_4096_is_the_claim() {
        let bound = model(DType::F32, DType::F32, 4096).bound(plain(0.0, 1.0));
        assert!((bound - 1e-5).abs() < 1e-10, "{bound}");
        let cpu = ErrorModel::new(Arithmetic::Cpu, DType::F32, DType::F32, 4096, 1.0, Activation::None);
        assert!(cpu.accumulation + 5.0 * U < 1e-5);
    }

    /// Rounding two factors in the same direction is the worst that TF32 does; cutting them off would be twice as far off.
    #[test]
    fn the_tf32_bound_allows_rounded_factors_and_not_cut_ones() {
        let tf32 = Arithmetic::Tf32;
        let model = ErrorModel::new(tf32, DType::F32, DType::F32, 1, 1.0, Activation::None);
        let factor = 1.0 + 2f64.powi(-11);
        let exact = plain(factor * factor, factor * factor);
        assert!(model.judge(1.0, exact).within);
        let factor = 1.0 + 2f64.powi(-10) * (1.0 - 2f64.powi(-12));
        assert!(!model.judge(1.0, plain(factor * factor, factor * factor)).within);
    }

    #[test]
    fn overflow_is_required_where_it_must_happen_and_refused_where_it_may_not() {
        let model = model(DType::F16, DType::F16, 16);
        assert!(model.judge(f64::INFINITY, plain(70_000.0, 70_000.0)).within);
        assert!(!model.judge(65504.0, plain(70_000.0, 70_000.0)).within);
        assert!(!model.judge(f64::NEG_INFINITY, plain(70_000.0, 70_000.0)).within);
        assert!(!model.judge(f64::INFINITY, plain(60_000.0, 60_000.0)).within);
        assert!(model.judge(f64::INFINITY, plain(65519.99, 65519.99)).within);
        assert!(model.judge(65504.0, plain(65519.99, 65519.99)).within);
    }

    #[test]
    fn nan_and_infinity_must_show() {
        let model = model(DType::F32, DType::F32, 16);
        let nan = Expected { magnitude: f64::NAN, ..plain(f64::NAN, f64::NAN) };
        assert!(model.judge(f64::NAN, nan).within);
        assert!(!model.judge(0.0, nan).within);
        let infinite = plain(f64::INFINITY, f64::INFINITY);
        assert!(model.judge(f64::INFINITY, infinite).within);
        for wrong in [f64::NAN, f64::NEG_INFINITY, 3e38] {
            assert!(!model.judge(wrong, infinite).within, "{wrong}");
        }
        let clipped = Expected { z: f64::NEG_INFINITY, ..plain(0.0, f64::INFINITY) };
        assert!(model.judge(0.0, clipped).within && !model.judge(1.0, clipped).within);
        assert!(!model.judge(f64::NAN, plain(1.0, 1.0)).within);
    }
}
