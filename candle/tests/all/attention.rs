//! Attention, by candle's operations in f64.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use proptest::prelude::*;
use warpsmith_candle::{Alignment, attention};

use crate::inputs::{Numbers, Operand, View, backward, devices, is_for, judge_gradients, types, views};
use crate::near::{Near, Sums};

#[derive(Clone, Debug)]
struct Case {
    /// Sequences, rows, keys, heads of keys, queries of each, and elements of keys and of values.
    sizes: [usize; 7],
    dtype: DType,
    view: View,
    window: Option<(Option<u32>, Option<u32>, bool)>,
    has_mask: bool,
    has_bias: bool,
    has_slopes: bool,
    has_sinks: bool,
    soft_cap: Option<f32>,
    scale: Option<f32>,
    seed: u64,
}

impl Case {
    /// What products of queries and keys are multiplied with.
    fn factor(&self) -> f64 {
        f64::from(self.scale.unwrap_or(1.0 / (self.sizes[5] as f32).sqrt()))
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes =
        (1usize..3, 0usize..19, 0usize..19, 1usize..3, 1usize..3).prop_flat_map(|(b, sq, sk, hk, g)| {
            let widths = prop_oneof![Just([8usize, 8usize]), Just([16, 16]), Just([64, 64])];
            widths.prop_map(move |[d, dv]| [b, sq, sk, hk, g, d, dv])
        });
    let side = prop::option::of(0u32..6);
    let window = prop::option::of((side.clone(), side, any::<bool>()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (
        sizes,
        types(),
        views(),
        window,
        flags,
        [prop::option::of(Just(1.5f32)), prop::option::of(Just(0.3f32))],
        any::<u64>(),
    )
        .prop_map(
            |(
                sizes,
                dtype,
                view,
                window,
                (has_mask, has_bias, has_slopes, has_sinks),
                [soft_cap, scale],
                seed,
            )| Case {
                sizes,
                dtype,
                view,
                window,
                has_mask,
                has_bias,
                has_slopes,
                has_sinks,
                soft_cap,
                scale,
                seed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn attention_and_its_gradients_are_within_their_bounds(case in cases()) {
        check(&case).unwrap();
    }
}

/// The operands of a case.
struct Operands {
    q: Operand,
    k: Operand,
    v: Operand,
    bias: Operand,
    sinks: Operand,
    mask: Tensor,
    slopes: Tensor,
}

fn check(case: &Case) -> Result<()> {
    let &Case { sizes: [b, sq, sk, hk, g, d, dv], dtype, view, .. } = case;
    for device in devices() {
        if !is_for(&device, &[sq, sk]) {
            continue;
        }
        let mut numbers = Numbers::new(case.seed, &device, dtype);
        let h = hk * g;
        let mask: Vec<u8> = (0..b * sq * sk).map(|_| u8::from(!numbers.next().is_multiple_of(3))).collect();
        let mut wide = Numbers::new(case.seed ^ 1, &device, DType::F32);
        let all = Operands {
            q: numbers.operand(&[b, sq, h, d], view)?,
            k: numbers.operand(&[b, sk, hk, d], view)?,
            v: numbers.operand(&[b, sk, hk, dv], View::Narrowed)?,
            bias: numbers.operand(&[1, h, sq, sk], View::Plain)?,
            sinks: wide.operand(&[h], View::Plain)?,
            slopes: wide.tensor(&[h])?.abs()?,
            mask: Tensor::from_vec(mask, (b, 1, sq, sk), &device)?,
        };
        let mut operation = attention(&all.q.tensor, &all.k.tensor, &all.v.tensor)
            .mask(case.has_mask.then_some(&all.mask))
            .bias(case.has_bias.then_some(&all.bias.tensor))
            .alibi(case.has_slopes.then_some(&all.slopes))
            .sinks(case.has_sinks.then_some(&all.sinks.tensor))
            .soft_cap(case.soft_cap)
            .scale(case.scale);
        if let Some((left, right, is_top_left)) = case.window {
            operation = operation.window(left, right, alignment(is_top_left));
        }
        let y = operation.run()?;
        let dy = numbers.tensor(&[b, sq, h, dv])?;
        let of = backward(&y, &dy)?;
        if sq * sk == 0 {
            assert_eq!(Near::input(&y)?.exact.abs()?.sum_all()?.to_scalar::<f64>()?, 0.0);
            assert_eq!(all.q.gradient(&of)?.dims(), all.q.tensor.dims());
            continue;
        }
        judge(case, &numbers, &all, (&y, &dy), &of)?;
    }
    Ok(())
}

fn alignment(is_top_left: bool) -> Alignment {
    if is_top_left { Alignment::TopLeft } else { Alignment::BottomRight }
}

/// The offset of rows among keys, and a mask of the keys that rows attend to, 1 or 0, `[B, H, Sq, Sk]`.
fn attended(case: &Case, all: &Operands) -> Result<(i64, Tensor)> {
    let [b, sq, sk, hk, g, ..] = case.sizes;
    let offset = match case.window {
        Some((.., true)) => 0,
        _ => sk as i64 - sq as i64,
    };
    let (left, right) = case.window.map_or((None, None), |(left, right, _)| (left, right));
    let is_in = |row: usize, key: usize| {
        let distance = key as i64 - row as i64 - offset;
        left.is_none_or(|left| distance >= -i64::from(left))
            && right.is_none_or(|right| distance <= i64::from(right))
    };
    let in_window: Vec<f64> =
        (0..sq).flat_map(|row| (0..sk).map(move |key| f64::from(u8::from(is_in(row, key))))).collect();
    let mut mask =
        Tensor::from_vec(in_window, (1, 1, sq, sk), &Device::Cpu)?.broadcast_as((b, hk * g, sq, sk))?;
    if case.has_mask {
        mask = mask.broadcast_mul(&all.mask.to_device(&Device::Cpu)?.to_dtype(DType::F64)?)?;
    }
    Ok((offset, mask.contiguous()?))
}

/// Numbers and their bounds, `[B, H, Sq, ..]`: the weights of keys, of sinks, and the slopes of the soft cap.
struct Weights {
    p: Near,
    sink: Option<Near>,
    cap_slopes: Option<Near>,
}

fn weights(case: &Case, all: &Operands, t: Near) -> Result<Weights> {
    let (offset, mask) = attended(case, all)?;
    let [_, sq, sk, hk, g, ..] = case.sizes;
    let (mut s, mut cap_slopes) = (t, None);
    if let Some(cap) = case.soft_cap.map(f64::from) {
        let argument = s.times(1.0 / cap)?;
        let ones = argument.exact.ones_like()?;
        // tanh is evaluated within 16 units of 1.
        let tanh = argument.exact.tanh()?;
        let tanh = Near {
            error: (argument.map(tanh.clone(), &ones, 2.0)?.error + 16.0 * crate::near::U)?,
            exact: tanh,
        };
        let one = Near { error: ones.zeros_like()?, exact: ones };
        cap_slopes = Some(one.sub(&tanh.mul(&tanh)?)?);
        s = tanh.times(cap)?;
    }
    if case.has_bias {
        s = s.add(&all.bias.near()?)?;
    }
    if case.has_slopes {
        let distance = |row: usize, key: usize| (row as i64 + offset - key as i64).abs() as f64;
        let distances: Vec<f64> =
            (0..sq).flat_map(|row| (0..sk).map(move |key| distance(row, key))).collect();
        let distances = Tensor::from_vec(distances, (1, 1, sq, sk), &Device::Cpu)?;
        let slopes = Near::input(&all.slopes)?.view(|x| x.reshape((1, hk * g, 1, 1)))?;
        s = s.sub(&slopes.mul(&Near { error: distances.zeros_like()?, exact: distances })?)?;
    }
    let sinks = all.sinks.near()?.view(|x| x.reshape((1, hk * g, 1, 1)))?;
    // What is left out counts for a number that is so small that it has weight 0, and its error for none.
    let kept = |x: &Tensor, else_: f64| x.mul(&mask)?.add(&mask.affine(-else_, else_)?);
    let least = s.exact.min_all()?.to_scalar::<f64>()? - 1.0;
    let most = kept(&s.exact, least)?.max_keepdim(D::Minus1)?;
    let most = if case.has_sinks { most.broadcast_maximum(&sinks.exact)? } else { most };
    let most = Near { error: most.zeros_like()?, exact: most };
    let exponentials = s.sub(&most)?.exp()?;
    let exponentials = Near { exact: exponentials.exact.mul(&mask)?, error: exponentials.error.mul(&mask)? };
    let mut sum = exponentials.sum_last()?;
    let sink = case.has_sinks.then(|| sinks.sub(&most)?.exp()).transpose()?;
    if let Some(sink) = &sink {
        sum = sum.add(sink)?;
    }
    // A row of nothing has the sum 0, and weights of 0.
    let is_nothing = sum.exact.le(0.0)?.to_dtype(DType::F64)?;
    let divisor = Near { exact: (&sum.exact + &is_nothing)?, error: sum.error.clone() };
    let smallest = (&divisor.exact - &divisor.error)?;
    let inverse = divisor.map(divisor.exact.recip()?, &smallest.sqr()?.recip()?, 2.0)?;
    Ok(Weights {
        p: exponentials.mul(&inverse)?,
        sink: sink.map(|sink| sink.mul(&inverse)).transpose()?,
        cap_slopes,
    })
}

fn judge(
    case: &Case,
    numbers: &Numbers,
    all: &Operands,
    (y, dy): (&Tensor, &Tensor),
    of: &candle_core::backprop::GradStore,
) -> Result<()> {
    let [b, _, sk, hk, g, d, dv] = case.sizes;
    let h = hk * g;
    // Heads before tokens; those of keys once for each head of queries.
    let rows = |x: Near| x.view(|x| x.transpose(1, 2));
    let keys = |x: Near, width: usize| {
        x.view(|x| {
            x.transpose(1, 2)?
                .unsqueeze(2)?
                .broadcast_as((b, hk, g, sk, width))?
                .contiguous()?
                .reshape((b, h, sk, width))
        })
    };
    let (q, k, v) = (rows(all.q.near()?)?, keys(all.k.near()?, d)?, keys(all.v.near()?, dv)?);
    let dyn_ = rows(Near::input(dy)?)?;
    let scale = case.factor();
    let (sums, wide_sums) = (numbers.sums(), Sums { dtype: DType::F32, ..numbers.sums() });
    let scores = |sums: Sums| q.matmul(&k.t()?, sums)?.times(scale);
    // The forward pass may round weights to the type of values. It adds up and rescales partial results for blocks
    // of keys: two roundings of each.
    let forward = weights(case, all, scores(sums)?)?.p.rounded(case.dtype)?;
    let near_y = forward.matmul(&v, sums)?.times(1.0)?.times(1.0)?;
    rows(near_y.clone())?.judge("y", y)?;

    let Weights { p, sink, cap_slopes } = weights(case, all, scores(wide_sums)?)?;
    let dp = dyn_.matmul(&v.t()?, wide_sums)?;
    // A GPU's kernels, which do not run where the bias has a gradient, take the sum from y as it was stored. They round weights and the gradients of scores.
    let is_rounded = !y.device().is_cpu() && !case.has_bias;
    let along = match is_rounded {
        true => dyn_.mul(&near_y.rounded(case.dtype)?)?.sum_last()?,
        false => dp.mul(&p)?.sum_last()?,
    };
    let ds = p.mul(&dp.sub(&along)?)?;
    let dt = match &cap_slopes {
        Some(slopes) => ds.mul(slopes)?,
        None => ds.clone(),
    };
    let (p, dt) = if is_rounded { (p.rounded(case.dtype)?, dt.rounded(case.dtype)?) } else { (p, dt) };
    // The sum over the heads of a group is part of one product.
    let grouped = |x: Near, width: usize| -> Result<Near> {
        x.view(|x| x.reshape((b, hk, g, sk, width)))?
            .sum(2)?
            .view(|x| x.reshape((b, hk, sk, width))?.transpose(1, 2))
    };
    let dq = rows(dt.matmul(&k, wide_sums)?.times(scale)?)?;
    let dk = grouped(dt.t()?.matmul(&q, wide_sums)?.times(scale)?, d)?;
    let dv_near = grouped(p.t()?.matmul(&dyn_, wide_sums)?, dv)?;

    let [qv, kv, vv, bv, sv] = [&all.q, &all.k, &all.v, &all.bias, &all.sinks].map(Operand::wide);
    let [qv, kv, vv, bv, sv] = [qv?, kv?, vv?, bv?, sv?];
    let mut expected = vec![("dq", &all.q, &qv, dq), ("dk", &all.k, &kv, dk), ("dv", &all.v, &vv, dv_near)];
    if case.has_bias {
        expected.push(("dbias", &all.bias, &bv, ds.sum(0)?));
    }
    if let Some(sink) = &sink {
        let dsinks = sink.mul(&along)?.sum(2)?.sum(0)?.times(-1.0)?;
        expected.push(("dsinks", &all.sinks, &sv, dsinks.view(|x| x.reshape(h))?));
    }
    let wide = by_candle(case, all, [&qv, &kv, &vv, &bv, &sv], &dyn_.exact)?;
    judge_gradients(of, &wide, &expected)
}

/// The gradients by candle's operations.
fn by_candle(
    case: &Case,
    all: &Operands,
    [q, k, v, bias, sinks]: [&Var; 5],
    dy: &Tensor,
) -> Result<candle_core::backprop::GradStore> {
    let [b, sq, sk, hk, g, d, dv] = case.sizes;
    let h = hk * g;
    let (offset, mask) = attended(case, all)?;
    let heads = |x: &Tensor, width: usize| {
        x.transpose(1, 2)?
            .unsqueeze(2)?
            .broadcast_as((b, hk, g, sk, width))?
            .contiguous()?
            .reshape((b, h, sk, width))
    };
    let (k, v) = (heads(k, d)?, heads(v, dv)?);
    let q = q.transpose(1, 2)?.contiguous()?;
    let mut s = (q.matmul(&k.t()?)? * case.factor())?;
    if let Some(cap) = case.soft_cap.map(f64::from) {
        s = ((s / cap)?.tanh()? * cap)?;
    }
    if case.has_bias {
        s = s.broadcast_add(bias)?;
    }
    if case.has_slopes {
        let distance = |row: usize, key: usize| (row as i64 + offset - key as i64).abs() as f64;
        let distances: Vec<f64> =
            (0..sq).flat_map(|row| (0..sk).map(move |key| distance(row, key))).collect();
        let distances = Tensor::from_vec(distances, (1, 1, sq, sk), &Device::Cpu)?;
        let slopes = Near::input(&all.slopes)?.exact.reshape((1, h, 1, 1))?;
        s = s.broadcast_sub(&slopes.broadcast_mul(&distances)?)?;
    }
    // Scores here are small numbers: exponentials need no largest one subtracted.
    let exponentials = (s.exp()? * &mask)?;
    let mut sum = exponentials.sum_keepdim(D::Minus1)?;
    if case.has_sinks {
        sum = sum.broadcast_add(&sinks.reshape((1, h, 1, 1))?.exp()?)?;
    }
    let is_nothing = sum.detach().le(0.0)?.to_dtype(DType::F64)?;
    let p = exponentials.broadcast_div(&(sum + is_nothing)?)?;
    backward(&p.matmul(&v)?, dy)
}
