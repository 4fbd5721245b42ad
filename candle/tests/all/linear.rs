//! Linear layers and matrix products.

use candle_core::{DType, Result, Tensor};
use proptest::prelude::*;
use warpsmith_candle::{Activation, linear, matmul};

use crate::inputs::{
    Numbers, View, backward, devices, is_for, judge_gradients, sizes, sizes_from_1, types, views,
};
use crate::near::{Near, U};
use crate::{activated, slopes};

/// z after an activation.
pub(crate) fn activate(z: &Near, activation: Activation) -> Result<Near> {
    let slope = z.exact.ones_like()?.affine(activation.lipschitz(), 0.0)?;
    // Evaluation is off by units of |z|, not of the value.
    let own = (z.exact.abs()? + &z.error)?.affine(activation.evaluation_ulps() * U, 0.0)?;
    let mut y = z.map(activated(&z.exact, activation)?, &slope, 0.0)?;
    y.error = (y.error + own)?;
    Ok(y)
}

/// dz = dy · act′(z), rounded to the operands' type unless it is dy itself.
pub(crate) fn gradient_of_argument(
    dy: &Near,
    z: &Near,
    activation: Activation,
    dtype: DType,
) -> Result<Near> {
    if activation == Activation::None {
        return Ok(dy.clone());
    }
    // The slopes of GELU and SiLU change by less than 0.8 for each unit of z: at 0 by √(2/π) and 1/2. That of ReLU
    // changes by 1 where the sign of z is not known.
    let z = z.clone().rounded(dtype)?;
    let change = match activation {
        Activation::Relu => z.exact.abs()?.le(&z.error)?.to_dtype(DType::F64)?,
        _ => z.error.affine(0.8, 0.0)?,
    };
    let error = (change + activation.derivative_ulps() * U)?;
    dy.mul(&Near { exact: slopes(&z.exact, activation)?, error })?.rounded(dtype)
}

#[derive(Clone, Debug)]
struct Case {
    leading: Vec<usize>,
    k: usize,
    n: usize,
    dtype: DType,
    views: [View; 2],
    has_bias: bool,
    activation: Activation,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let leading = prop_oneof![
        Just(vec![]),
        sizes().prop_map(|m| vec![m]),
        (sizes_from_1(), 0usize..4).prop_map(|(m, b)| vec![b, m])
    ];
    let views = [views(), views()];
    (leading, sizes(), sizes(), types(), views, any::<bool>(), 0usize..5, any::<u64>()).prop_map(
        |(leading, k, n, dtype, views, has_bias, activation, seed)| Case {
            leading,
            k,
            n,
            dtype,
            views,
            has_bias,
            activation: Activation::ALL[activation],
            seed,
        },
    )
}

fn check(case: &Case) -> Result<()> {
    for device in devices() {
        let Case { leading, k, n, dtype, views, has_bias, activation, seed } = case;
        if !is_for(&device, &[&leading[..], &[*k, *n]].concat()) {
            continue;
        }
        let mut numbers = Numbers::new(*seed, &device, *dtype);
        let x = numbers.operand(&[&leading[..], &[*k]].concat(), views[0])?;
        let w = numbers.operand(&[*n, *k], views[1])?;
        let bias = numbers.operand(&[*n], views[1])?;
        let dy = numbers.tensor(&[&leading[..], &[*n]].concat())?;
        let has_bias = *has_bias;
        let y = linear(&x.tensor, &w.tensor)
            .bias(has_bias.then_some(&bias.tensor))
            .activation(*activation)
            .run()?;

        // As matrices.
        let m = leading.iter().product::<usize>();
        let matrix = |near: Near, columns: usize| near.view(|x| x.reshape((m, columns)));
        let (xn, wn, bn) = (matrix(x.near()?, *k)?, w.near()?, bias.near()?);
        let mut z = xn.matmul(&wn.t()?, numbers.sums())?.times(1.0)?;
        if has_bias {
            z = z.add(&bn)?;
        }
        let yn = activate(&z, *activation)?;
        yn.view(|y| y.reshape(dy.shape()))?.judge("y", &y)?;

        let [xv, wv, bv] = [x.wide()?, w.wide()?, bias.wide()?];
        let dyn_ = matrix(Near::input(&dy)?, *n)?;
        let dz = gradient_of_argument(&dyn_, &z, *activation, *dtype)?;
        let dx = dz.matmul(&wn, numbers.sums())?.times(1.0)?.view(|x| x.reshape(xv.shape()))?;
        let dw = dz.t()?.matmul(&xn, numbers.sums())?.times(1.0)?;
        let mut all = vec![("dx", &x, &xv, dx), ("dw", &w, &wv, dw)];
        if has_bias {
            // The sum is of dz before it is rounded, which is nearer.
            all.push(("db", &bias, &bv, dz.sum(0)?.view(|x| x.reshape(*n))?));
        }
        let of = backward(&y, &dy)?;
        // candle multiplies no matrices of no elements.
        let wide = match m * k * n {
            0 => Tensor::zeros((), DType::F64, &candle_core::Device::Cpu)?.backward()?,
            _ => {
                let mut z = xv.reshape((m, *k))?.matmul(&wv.t()?)?;
                if has_bias {
                    z = z.broadcast_add(&bv)?;
                }
                backward(&activated(&z, *activation)?, &dyn_.exact)?
            }
        };
        judge_gradients(&of, &wide, &all)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn linear_layers_and_their_gradients_are_within_their_bounds(case in cases()) {
        check(&case).unwrap();
    }

    #[test]
    fn products_and_their_gradients_are_within_their_bounds(
        [m, k, n] in [sizes(), sizes(), sizes()],
        batch in prop_oneof![Just([None, None]), Just([Some(3), Some(3)]), Just([Some(1), Some(3)]), Just([Some(2), None])],
        dtype in types(),
        views in [views(), views()],
        seed in any::<u64>(),
    ) {
        check_product([m, k, n], batch, dtype, views, seed).unwrap();
    }

    #[test]
    fn sums_of_integers_are_exact(
        [m, k, n] in [sizes_from_1(), sizes_from_1(), sizes_from_1()],
        dtype in types(),
        seed in any::<u64>(),
    ) {
        check_integers([m, k, n], dtype, seed).unwrap();
    }
}

/// Some of its sums of two products are exactly zero.
#[test]
fn relu_passes_no_gradient_where_its_argument_is_zero() {
    let case = Case {
        leading: vec![3, 65],
        k: 2,
        n: 31,
        dtype: DType::BF16,
        views: [View::Narrowed, View::Plain],
        has_bias: false,
        activation: Activation::Relu,
        seed: 10034831279879263293,
    };
    check(&case).unwrap();
}

fn check_product(
    [m, k, n]: [usize; 3],
    batch: [Option<usize>; 2],
    dtype: DType,
    views: [View; 2],
    seed: u64,
) -> Result<()> {
    for device in devices() {
        if !is_for(&device, &[m, k, n]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let shape =
            |batch: Option<usize>, sides: [usize; 2]| batch.into_iter().chain(sides).collect::<Vec<_>>();
        let a = numbers.operand(&shape(batch[0], [m, k]), views[0])?;
        let b = numbers.operand(&shape(batch[1], [k, n]), views[1])?;
        let joined = batch.iter().flatten().max().copied();
        let dy = numbers.tensor(&shape(joined, [m, n]))?;
        let y = matmul(&a.tensor, &b.tensor).alpha(0.5).run()?;

        let count = joined.unwrap_or(1);
        let wide = |near: Near| near.view(|x| x.broadcast_as(shape_of(count, x)));
        let (an, bn, dyn_) = (wide(a.near()?)?, wide(b.near()?)?, wide(Near::input(&dy)?)?);
        let yn = an.matmul(&bn, numbers.sums())?.times(0.5)?;
        yn.view(|y| y.reshape(dy.shape()))?.judge("y", &y)?;

        let [av, bv] = [a.wide()?, b.wide()?];
        // An operand that serves several matrices has the sum of their gradients: each part may be rounded before it
        // is added.
        let gradient = |product: Near, of: &candle_core::Var, batch: Option<usize>| -> Result<Near> {
            let product = product.times(0.5)?;
            let sums = if batch.unwrap_or(1) == count { product } else { product.rounded(dtype)?.sum(0)? };
            sums.view(|x| x.reshape(of.shape()))
        };
        let da = gradient(dyn_.matmul(&bn.t()?, numbers.sums())?, &av, batch[0])?;
        let db = gradient(an.t()?.matmul(&dyn_, numbers.sums())?, &bv, batch[1])?;
        let of = backward(&y, &dy)?;
        let of_candle = match m * k * n {
            0 => Tensor::zeros((), DType::F64, &candle_core::Device::Cpu)?.backward()?,
            _ => backward(&(av.broadcast_matmul(&bv)? * 0.5)?, &Near::input(&dy)?.exact)?,
        };
        judge_gradients(&of, &of_candle, &[("da", &a, &av, da), ("db", &b, &bv, db)])?;
    }
    Ok(())
}

fn shape_of(count: usize, matrix: &Tensor) -> Vec<usize> {
    let sides = &matrix.dims()[matrix.rank() - 2..];
    vec![count, sides[0], sides[1]]
}

/// Products of whole numbers up to 3, of which 65 add up to less than 2⁸ · 3: what each type holds of them is exact
/// where it fits into its bits.
fn check_integers([m, k, n]: [usize; 3], dtype: DType, seed: u64) -> Result<()> {
    for device in devices() {
        let mut numbers = Numbers::new(seed, &device, dtype);
        let k = if dtype == DType::BF16 { k.min(28) } else { k };
        let (x, w) = (numbers.integers(&[m, k])?, numbers.integers(&[n, k])?);
        let exact = Near::input(&x)?.exact.matmul(&Near::input(&w)?.exact.t()?)?;
        for y in [linear(&x, &w).run()?, matmul(&x, &w.t()?).run()?] {
            assert_eq!(Near::input(&y)?.exact.to_vec2::<f64>()?, exact.to_vec2::<f64>()?);
        }
    }
    Ok(())
}
