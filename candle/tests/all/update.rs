//! Generated low-rank updates, alone and added to a linear layer.

use candle_core::{DType, Result, Tensor};
use proptest::prelude::*;
use warpsmith_candle::{Activation, generated_update, linear_with_update};

use crate::activated;
use crate::inputs::{
    Numbers, Operand, View, backward, devices, is_for, judge_gradients, sizes, sizes_from_1, types, views,
};
use crate::linear::{activate, gradient_of_argument};
use crate::near::Near;

#[derive(Clone, Debug)]
struct Case {
    m: usize,
    k: usize,
    n: usize,
    ranks: Vec<usize>,
    /// Whether there is a linear layer, with a bias, and this activation.
    base: Option<(bool, Activation)>,
    /// Whether all rows share a row of codes.
    shares_codes: bool,
    dtype: DType,
    view: View,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let ranks = prop::collection::vec(prop_oneof![Just(1usize), Just(3), Just(8), Just(17)], 1..3);
    let base = prop::option::of((any::<bool>(), (0usize..5).prop_map(|index| Activation::ALL[index])));
    let sizes = (sizes(), sizes_from_1(), sizes_from_1());
    (sizes, ranks, base, any::<bool>(), types(), views(), any::<u64>()).prop_map(
        |((m, k, n), ranks, base, shares_codes, dtype, view, seed)| Case {
            m,
            k,
            n,
            ranks,
            base,
            shares_codes,
            dtype,
            view,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn updates_and_all_their_gradients_are_within_their_bounds(case in cases()) {
        check(&case).unwrap();
    }
}

const SCALINGS: [f32; 2] = [0.5, -2.0];

/// The operands of a case.
struct Operands {
    x: Operand,
    w: Operand,
    bias: Operand,
    /// v, codes and u of each update.
    updates: Vec<[Operand; 3]>,
}

fn check(case: &Case) -> Result<()> {
    let Case { m, k, n, ranks, base, shares_codes, dtype, view, seed } = case;
    for device in devices() {
        if !is_for(&device, &[*m]) {
            continue;
        }
        let mut numbers = Numbers::new(*seed, &device, *dtype);
        let updates = ranks.iter().map(|&rank| {
            let codes = if *shares_codes { vec![rank] } else { vec![*m, rank] };
            let codes_view = if *shares_codes { View::Plain } else { View::Narrowed };
            Ok([
                numbers.operand(&[*k, rank], View::Plain)?,
                numbers.operand(&codes, codes_view)?,
                numbers.operand(&[rank, *n], *view)?,
            ])
        });
        let updates = updates.collect::<Result<Vec<_>>>()?;
        let all = Operands {
            x: numbers.operand(&[*m, *k], *view)?,
            w: numbers.operand(&[*n, *k], *view)?,
            bias: numbers.operand(&[*n], View::Plain)?,
            updates,
        };
        let dy = numbers.tensor(&[*m, *n])?;
        let y = forward(&all, *base)?;
        judge(case, &numbers, &all, &y, &dy)?;
    }
    Ok(())
}

fn forward(all: &Operands, base: Option<(bool, Activation)>) -> Result<Tensor> {
    let [v, codes, u] = all.updates[0].each_ref().map(|operand| &operand.tensor);
    let x = &all.x.tensor;
    let second = all.updates.get(1).map(|update| update.each_ref().map(|operand| &operand.tensor));
    Ok(match base {
        None => {
            let mut update = generated_update(x, v, codes, u, SCALINGS[0]);
            if let Some([v, codes, u]) = second {
                update = update.and(v, codes, u, SCALINGS[1]);
            }
            update.run()?
        }
        Some((has_bias, activation)) => {
            let mut layer = linear_with_update(x, &all.w.tensor, v, codes, u, SCALINGS[0]);
            if let Some([v, codes, u]) = second {
                layer = layer.and(v, codes, u, SCALINGS[1]);
            }
            layer.bias(has_bias.then_some(&all.bias.tensor)).activation(activation).run()?
        }
    })
}

fn judge(case: &Case, numbers: &Numbers, all: &Operands, y: &Tensor, dy: &Tensor) -> Result<()> {
    let Case { m, n, base, dtype, .. } = case;
    let sums = numbers.sums();
    let (x, dy_near) = (all.x.near()?, Near::input(dy)?);
    let activation = base.map_or(Activation::None, |(_, activation)| activation);

    // What is between the products of an update may be rounded to the operands' type on the way, and an update
    // before it is added to another or to the layer.
    let mut z = Near::input(&Tensor::zeros((*m, *n), DType::F64, &candle_core::Device::Cpu)?)?;
    let mut between = Vec::new();
    for ([v, codes, u], scaling) in all.updates.iter().zip(SCALINGS) {
        let factors = codes.near()?.times(f64::from(scaling))?;
        let h = x.matmul(&v.near()?, sums)?;
        let g = h.mul(&factors)?.rounded(*dtype)?;
        z = z.add(&g.matmul(&u.near()?, sums)?)?.rounded(*dtype)?;
        between.push((factors, h, g));
    }
    if let Some((has_bias, _)) = base {
        z = z.add(&x.matmul(&all.w.near()?.t()?, sums)?.times(1.0)?)?;
        if *has_bias {
            z = z.add(&all.bias.near()?)?;
        }
    }
    activate(&z, activation)?.judge("y", y)?;

    let dz = gradient_of_argument(&dy_near, &z, activation, *dtype)?;
    let mut dx = Near::input(&all.x.tensor.zeros_like()?)?;
    let (xv, wv, bv) = (all.x.wide()?, all.w.wide()?, all.bias.wide()?);
    let mut variables = Vec::new();
    for [v, codes, u] in &all.updates {
        variables.push([v.wide()?, codes.wide()?, u.wide()?]);
    }
    let mut expected = Vec::new();
    for (index, ([v, codes, u], (factors, h, g))) in all.updates.iter().zip(&between).enumerate() {
        let p = dz.matmul(&u.near()?.t()?, sums)?;
        let dh = p.mul(factors)?.rounded(*dtype)?;
        dx = dx.add(&dh.matmul(&v.near()?.t()?, sums)?)?.rounded(*dtype)?;
        let products = p.mul(h)?.times(f64::from(SCALINGS[index]))?;
        let shape = codes.tensor.dims().to_vec();
        let dcodes =
            if shape.len() == 1 { products.sum(0)?.view(|x| x.reshape(&shape[..]))? } else { products };
        let [vv, cv, uv] = &variables[index];
        expected.push(("dv", v, vv, x.t()?.matmul(&dh, sums)?.times(1.0)?));
        expected.push(("dcodes", codes, cv, dcodes));
        expected.push(("du", u, uv, g.t()?.matmul(&dz, sums)?.times(1.0)?));
    }
    if let Some((has_bias, _)) = base {
        dx = dx.add(&dz.matmul(&all.w.near()?, sums)?)?;
        expected.push(("dw", &all.w, &wv, dz.t()?.matmul(&x, sums)?.times(1.0)?));
        if *has_bias {
            expected.push(("dbias", &all.bias, &bv, dz.sum(0)?.view(|x| x.reshape(*n))?));
        }
    }
    expected.push(("dx", &all.x, &xv, dx));

    let of = backward(y, dy)?;
    // candle multiplies no matrices of no elements.
    let wide = if *m == 0 {
        Tensor::zeros((), DType::F64, &candle_core::Device::Cpu)?.backward()?
    } else {
        let mut z = Tensor::zeros((*m, *n), DType::F64, &candle_core::Device::Cpu)?;
        for ([v, codes, u], scaling) in variables.iter().zip(SCALINGS) {
            let update = xv.matmul(v)?.broadcast_mul(codes)?.matmul(u)?;
            z = (z + (update * f64::from(scaling))?)?;
        }
        if let Some((has_bias, _)) = base {
            z = (z + xv.matmul(&wv.t()?)?)?;
            if *has_bias {
                z = z.broadcast_add(&bv)?;
            }
        }
        backward(&activated(&z, activation)?, &dy_near.exact)?
    };
    judge_gradients(&of, &wide, &expected)
}
