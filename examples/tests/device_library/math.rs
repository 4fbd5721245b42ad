//! Elementary functions against f64.

use warpsmith::{Result, Tensor};
use warpsmith_dsl::launch::SafeKernel;
use warpsmith_dsl::slice::{GlobalSlice, GlobalSliceMut};

use crate::{kernels, module, vector};

/// Half a unit in the last place of 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Numbers of all magnitudes and both signs, and those that functions have cases for.
fn arguments() -> Vec<f32> {
    // A prime, so that the lower bits differ too.
    let all = (0..=u32::MAX).step_by(200_003).map(f32::from_bits);
    let near = (0..4000).map(|i| (i as f32 - 2000.0) * 0.051_7);
    let near_one = (0..400).map(|i| f32::from_bits(0x3f80_0000 - 200 + i));
    let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    let turns = (1..200).map(|i| i as f32 * std::f32::consts::FRAC_PI_2);
    all.chain(near).chain(near_one).chain(special).chain(turns).collect()
}

/// Whether `actual` is within `bound` of u relatively, or of the smallest number, of `exact`.
fn is_within(actual: f32, exact: f64, bound: f64) -> bool {
    if exact.is_nan() {
        return actual.is_nan();
    }
    let allowed = bound * U * exact.abs() + f64::from(f32::from_bits(1));
    let most = f64::from(f32::MAX);
    if actual.is_infinite() {
        return exact.is_infinite() && exact.is_sign_positive() == actual.is_sign_positive()
            || exact.abs() + allowed > most && exact.signum() == f64::from(actual.signum());
    }
    exact.is_finite() && (f64::from(actual) - exact).abs() <= allowed
}

fn check<K>(bound: f64, valid: impl Fn(f32) -> bool, exact: impl Fn(f64) -> f64) -> Result<()>
where
    K: SafeKernel<Args = (GlobalSlice<f32>, GlobalSliceMut<f32>)>,
{
    let (device, module) = module()?;
    let x: Vec<f32> = arguments().into_iter().filter(|&x| valid(x)).collect();
    let mut y = Tensor::<f32>::zeros(&device, [x.len()])?;
    module.kernel::<K>()?.run_over(&device.default_stream(), x.len(), (&vector(&device, &x)?, &mut y))?;
    for (&x, y) in x.iter().zip(y.to_vec()?) {
        let exact = exact(f64::from(x));
        assert!(is_within(y, exact, bound), "of {x:e}: {y:e} instead of {exact:e}, bound {bound} u");
    }
    Ok(())
}

macro_rules! functions {
    ($($test:ident: $kernel:ident, $bound:literal, $valid:expr, $exact:expr;)*) => { $(
        #[test]
        fn $test() -> Result<()> {
            check::<kernels::$kernel>($bound, $valid, $exact)
        }
    )* };
}
functions! {
    exp_is_within_8_u: exp, 8.0, |_| true, f64::exp;
    exp2_is_within_6_u: exp2, 6.0, |_| true, f64::exp2;
    ln_is_within_5_u: ln, 5.0, |_| true, f64::ln;
    log2_is_within_5_u: log2, 5.0, |_| true, f64::log2;
    log10_is_within_7_u: log10, 7.0, |_| true, f64::log10;
    sqrt_is_rounded: sqrt, 1.0, |_| true, f64::sqrt;
    sin_is_within_5_u: sin, 5.0, |_| true, f64::sin;
    cos_is_within_5_u: cos, 5.0, |_| true, f64::cos;
    tan_is_within_12_u: tan, 12.0, |_| true, f64::tan;
    tanh_is_within_8_u: tanh, 8.0, |_| true, f64::tanh;
    rsqrt_is_within_4_u: rsqrt, 4.0, |x| (f32::MIN_POSITIVE..f32::INFINITY).contains(&x), |x| 1.0 / x.sqrt();
}

#[test]
fn pow_is_within_1_01_u_and_has_the_cases_of_ieee_754() -> Result<()> {
    let (device, module) = module()?;
    let special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, 16_777_215.0, 16_777_216.0, 3e38, 1e-40];
    let mut bases: Vec<f32> = special.to_vec();
    bases.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-44, -3e-41]);
    let mut pairs: Vec<(f32, f32)> = bases.iter().flat_map(|&x| bases.iter().map(move |&y| (x, y))).collect();
    let drawn = arguments().into_iter().step_by(2).map(f32::abs);
    pairs.extend(drawn.enumerate().map(|(i, x)| (x, (i % 211) as f32 * 0.37 - 39.0)));
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
    let mut z = Tensor::<f32>::zeros(&device, [x.len()])?;
    let args = (&vector(&device, &x)?, &vector(&device, &y)?, &mut z);
    module.kernel::<kernels::pow>()?.run_over(&device.default_stream(), x.len(), args)?;
    for ((&x, &y), z) in x.iter().zip(&y).zip(z.to_vec()?) {
        let exact = f64::from(x).powf(f64::from(y));
        assert!(is_within(z, exact, 1.01), "of {x:e} and {y:e}: {z:e} instead of {exact:e}");
        assert_eq!(
            z.is_sign_negative() && !z.is_nan(),
            exact.is_sign_negative() && !exact.is_nan(),
            "of {x:e} and {y:e}"
        );
    }
    Ok(())
}

#[test]
fn sigmoid_is_within_8_u_of_1_and_8_u_and_2_u_for_each_unit_of_x_of_itself() -> Result<()> {
    let (device, module) = module()?;
    let x = arguments();
    let mut y = Tensor::<f32>::zeros(&device, [x.len()])?;
    let args = (&vector(&device, &x)?, &mut y);
    module.kernel::<kernels::sigmoid>()?.run_over(&device.default_stream(), x.len(), args)?;
    for (&x, y) in x.iter().zip(y.to_vec()?) {
        let exact = 1.0 / (1.0 + f64::from(-x).exp());
        let error = (f64::from(y) - exact).abs();
        // Behind that it is zero.
        let relative = 8.0 + 2.0 * f64::from(x).clamp(-200.0, 0.0).abs();
        let is_close = error <= 8.0 * U && error <= relative * U * exact + f64::from(f32::MIN_POSITIVE);
        assert!(is_close || (y.is_nan() && x.is_nan()), "of {x:e}: {y:e} instead of {exact:e}");
    }
    Ok(())
}

#[test]
fn zeros_keep_their_sign() -> Result<()> {
    let (device, module) = module()?;
    let mut y = Tensor::<f32>::zeros(&device, [2])?;
    let args = (&vector(&device, &[0.0f32, -0.0])?, &mut y);
    module.kernel::<kernels::sin>()?.run_over(&device.default_stream(), 2, args)?;
    assert_eq!(y.to_vec()?.iter().map(|y| y.to_bits()).collect::<Vec<_>>(), [0, 0x8000_0000]);
    Ok(())
}
