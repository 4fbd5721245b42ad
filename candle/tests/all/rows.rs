//! Operations on rows: norms, softmax, cross-entropy, rotary position embedding, tables.

use candle_core::{D, DType, Result, Tensor};
use proptest::prelude::*;
use warpsmith_candle::{RotaryTable, cross_entropy, embedding, layer_norm, rms_norm, rotary, softmax};

use crate::inputs::{
    Numbers, View, backward, devices, is_for, judge_gradients, sizes, sizes_from_1, types, views,
};
use crate::near::{Near, U};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn norms_and_their_gradients_are_within_their_bounds(
        [m, n] in [sizes(), sizes()],
        dtype in types(),
        view in views(),
        is_centered in any::<bool>(),
        [has_weight, has_bias] in [any::<bool>(), any::<bool>()],
        seed in any::<u64>(),
    ) {
        check_norm([m, n], dtype, view, is_centered, [has_weight, has_bias], seed).unwrap();
    }

    #[test]
    fn softmax_and_its_gradient_are_within_their_bounds(
        [m, n] in [sizes(), sizes()],
        dtype in types(),
        view in views(),
        has_mask in any::<bool>(),
        seed in any::<u64>(),
    ) {
        check_softmax([m, n], dtype, view, has_mask, seed).unwrap();
    }

    #[test]
    fn cross_entropy_and_its_gradient_are_within_their_bounds(
        [m, n] in [sizes_from_1(), sizes_from_1()],
        dtype in types(),
        view in views(),
        seed in any::<u64>(),
    ) {
        check_cross_entropy([m, n], dtype, view, seed).unwrap();
    }

    #[test]
    fn rows_of_tables_are_exact_and_their_gradients_within_their_bounds(
        (v, d) in (sizes_from_1(), sizes()),
        ids in sizes(),
        dtype in types(),
        view in views(),
        has_i64 in any::<bool>(),
        seed in any::<u64>(),
    ) {
        check_embedding([v, d, ids], dtype, view, has_i64, seed).unwrap();
    }

    #[test]
    fn rotations_and_their_gradients_are_within_their_bounds(
        (s, h) in (sizes(), sizes_from_1()),
        half in 1usize..9,
        rest in 0usize..4,
        dtype in types(),
        view in prop_oneof![Just(View::Plain), Just(View::Narrowed)],
        seed in any::<u64>(),
    ) {
        check_rotary([s, h.min(5), half, rest], dtype, view, seed).unwrap();
    }
}

fn check_norm(
    [m, n]: [usize; 2],
    dtype: DType,
    view: View,
    is_centered: bool,
    [has_weight, has_bias]: [bool; 2],
    seed: u64,
) -> Result<()> {
    let epsilon = 1e-3f32;
    for device in devices() {
        if !is_for(&device, &[m, n]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let x = numbers.operand(&[m, n], view)?;
        let (weight, bias) = (numbers.operand(&[n], view)?, numbers.operand(&[n], View::Transposed)?);
        let dy = numbers.tensor(&[m, n])?;
        let norm = if is_centered { layer_norm(&x.tensor) } else { rms_norm(&x.tensor) };
        let norm = norm.weight(has_weight.then_some(&weight.tensor)).bias(has_bias.then_some(&bias.tensor));
        let y = norm.epsilon(epsilon).run()?;
        let of = backward(&y, &dy)?;
        if n == 0 {
            assert_eq!(y.dims(), [m, 0]);
            continue;
        }

        let epsilon = f64::from(epsilon);
        let (xn, wn, bn, dyn_) = (x.near()?, weight.near()?, bias.near()?, Near::input(&dy)?);
        let d = if is_centered { xn.sub(&xn.mean_last()?)? } else { xn.clone() };
        let inverse = d.mul(&d)?.mean_last()?.inverse_root(epsilon)?;
        let normed = d.mul(&inverse)?;
        let weighted = if has_weight { normed.mul(&wn)? } else { normed.clone() };
        let yn = if has_bias { weighted.add(&bn)? } else { weighted };
        yn.judge("y", &y)?;

        let g = if has_weight { dyn_.mul(&wn)? } else { dyn_.clone() };
        let along = normed.mul(&normed.mul(&g)?.mean_last()?)?;
        let across = if is_centered { g.sub(&g.mean_last()?)? } else { g };
        let dx = across.sub(&along)?.mul(&inverse)?;
        let columns = |sums: Near| sums.view(|x| x.reshape(n));
        let variables = [x.wide()?, weight.wide()?, bias.wide()?];
        let [xv, wv, bv] = &variables;
        let mut all = vec![("dx", &x, xv, dx)];
        if has_weight {
            all.push(("dweight", &weight, wv, columns(dyn_.mul(&normed)?.sum(0)?)?));
        }
        if has_bias {
            all.push(("dbias", &bias, bv, columns(dyn_.sum(0)?)?));
        }
        let mut z = xv.as_tensor().clone();
        if is_centered {
            z = z.broadcast_sub(&(z.sum_keepdim(D::Minus1)? / n as f64)?)?;
        }
        let variance = (z.sqr()?.sum_keepdim(D::Minus1)? / n as f64)?;
        let mut wide = z.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
        if has_weight {
            wide = wide.broadcast_mul(wv)?;
        }
        if has_bias {
            wide = wide.broadcast_add(bv)?;
        }
        judge_gradients(&of, &backward(&wide, &dyn_.exact)?, &all)?;
    }
    Ok(())
}

fn check_softmax([m, n]: [usize; 2], dtype: DType, view: View, has_mask: bool, seed: u64) -> Result<()> {
    for device in devices() {
        if !is_for(&device, &[m, n]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let x = numbers.operand(&[m, n], view)?;
        let dy = numbers.tensor(&[m, n])?;
        let scale = 1.75f32;
        // Every row has a column that counts: its first.
        let mask: Vec<u8> =
            (0..m * n).map(|i| u8::from(i % n == 0 || !numbers.next().is_multiple_of(3))).collect();
        let mask = Tensor::from_vec(mask, (m, n), &device)?;
        let y = softmax(&x.tensor).scale(scale).mask(has_mask.then_some(&mask)).run()?;
        let of = backward(&y, &dy)?;
        if m * n == 0 {
            assert_eq!(y.dims(), [m, n]);
            continue;
        }
        let scale = f64::from(scale);
        let least = if has_mask { -1e4 } else { 0.0 };
        let left_out =
            mask.to_device(&candle_core::Device::Cpu)?.to_dtype(DType::F64)?.affine(-least, least)?;
        let left_out = Near { error: left_out.zeros_like()?, exact: left_out };
        // A column that is left out has the weight 0, as has one of −10⁴, whose error does not count.
        let mut logits = x.near()?.times(scale)?;
        logits.exact = (logits.exact + &left_out.exact)?;
        let yn = logits.softmax()?;
        yn.judge("y", &y)?;
        // The gradient is of y as it was rounded.
        let (stored, dyn_) = (yn.rounded(dtype)?, Near::input(&dy)?);
        let dx = dyn_.sub(&dyn_.mul(&stored)?.sum_last()?)?.mul(&stored)?.times(scale)?;
        let xv = x.wide()?;
        let wide = candle_nn::ops::softmax(&((xv.as_tensor() * scale)? + &left_out.exact)?, D::Minus1)?;
        judge_gradients(&of, &backward(&wide, &dyn_.exact)?, &[("dx", &x, &xv, dx)])?;
    }
    Ok(())
}

fn check_cross_entropy([m, n]: [usize; 2], dtype: DType, view: View, seed: u64) -> Result<()> {
    for device in devices() {
        let mut numbers = Numbers::new(seed, &device, dtype);
        let x = numbers.operand(&[m, n], view)?;
        let labels = numbers.ids(&[m], n)?;
        let loss = cross_entropy(&x.tensor, &labels).run()?;
        let factor = Tensor::new(0.75f32, &device)?;
        let of = backward(&loss, &factor)?;

        let xn = x.near()?;
        let most = xn.exact.max_keepdim(D::Minus1)?;
        let shifted = xn.sub(&Near { error: most.zeros_like()?, exact: most })?;
        let exponentials = shifted.exp()?;
        let sum = exponentials.sum_last()?;
        let least = (&sum.exact - &sum.error)?;
        // The logarithm of a number of at least 1 is off by a few units of itself, and of 1 where it is near 0.
        let mut lse = sum.map(sum.exact.log()?, &least.recip()?, 8.0)?;
        lse.error = (lse.error + 8.0 * U)?;
        let labels_here = labels.to_device(&candle_core::Device::Cpu)?.unsqueeze(1)?;
        let of_label = shifted.view(|x| x.gather(&labels_here, 1))?;
        let losses = lse.sub(&of_label)?.sum(0)?.times(1.0 / m as f64)?;
        losses.view(|x| x.reshape(()))?.judge("loss", &loss)?;

        let hot = shifted.exact.zeros_like()?.scatter_add(
            &labels_here,
            &labels_here.ones_like()?.to_dtype(DType::F64)?,
            1,
        )?;
        let p = xn.softmax()?;
        let dx = p.sub(&Near { error: hot.zeros_like()?, exact: hot })?.times(0.75)?.times(1.0 / m as f64)?;
        let xv = x.wide()?;
        let wide = candle_nn::loss::cross_entropy(&xv, &labels.to_device(&candle_core::Device::Cpu)?)?;
        let wide = backward(&wide, &Tensor::new(0.75f64, &candle_core::Device::Cpu)?)?;
        judge_gradients(&of, &wide, &[("dx", &x, &xv, dx)])?;
    }
    Ok(())
}

fn check_embedding(
    [v, d, count]: [usize; 3],
    dtype: DType,
    view: View,
    has_i64: bool,
    seed: u64,
) -> Result<()> {
    for device in devices() {
        if !is_for(&device, &[d, count]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let table = numbers.operand(&[v, d], view)?;
        let ids = numbers.ids(&[count], v)?;
        let dy = numbers.tensor(&[count, d])?;
        let y = embedding(&table.tensor, &if has_i64 { ids.to_dtype(DType::I64)? } else { ids.clone() })?;
        let of = backward(&y, &dy)?;
        if d * count == 0 {
            assert_eq!(y.dims(), [count, d]);
            continue;
        }
        let ids = ids.to_device(&candle_core::Device::Cpu)?;
        let (tn, dyn_) = (table.near()?, Near::input(&dy)?);
        assert_eq!(
            Near::input(&y)?.exact.to_vec2::<f64>()?,
            tn.exact.index_select(&ids, 0)?.to_vec2::<f64>()?
        );
        // Each row of the gradient is a sum of at most as many rows as there are ids.
        let sums = |x: &Tensor| tn.exact.zeros_like()?.index_add(&ids, x, 0);
        let exact = sums(&dyn_.exact)?;
        let error = sums(&dyn_.exact.abs()?)?.affine(count as f64 * U, 0.0)?;
        let tv = table.wide()?;
        let wide = backward(&tv.index_select(&ids, 0)?, &dyn_.exact)?;
        judge_gradients(&of, &wide, &[("dtable", &table, &tv, Near { exact, error })])?;
    }
    Ok(())
}

fn check_rotary([s, h, half, rest]: [usize; 4], dtype: DType, view: View, seed: u64) -> Result<()> {
    let (base, offset) = (100.0, 2);
    for device in devices() {
        if !is_for(&device, &[s]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let x = numbers.operand(&[s, h, 2 * half + rest], view)?;
        let dy = numbers.tensor(&[s, h, 2 * half + rest])?;
        let table = RotaryTable::new(&device, base, 2 * half, s + offset)?;
        let y = rotary(&x.tensor, &table).offset(offset).run()?;
        let of = backward(&y, &dy)?;
        if s == 0 {
            assert_eq!(y.dims(), x.tensor.dims());
            continue;
        }
        let angles: Vec<f64> = (0..s)
            .flat_map(|i| (0..half).map(move |j| (i + offset) as f64 * base.powf(-(j as f64) / half as f64)))
            .collect();
        let angles = Tensor::from_vec(angles, (s, 1, half), &candle_core::Device::Cpu)?;
        // Angles are rounded once, or their sines and cosines are; these are then off by two units.
        let error = (angles.abs()?.affine(2.0 * U, 4.0 * U)?).broadcast_as((s, 1, half))?.contiguous()?;
        let cos = Near { exact: angles.cos()?, error: error.clone() };
        let sin = Near { exact: angles.sin()?, error };
        let turned = |x: &Near, sin: &Near| -> Result<Near> {
            let part = |start: usize, length: usize| x.view(|x| x.narrow(D::Minus1, start, length));
            let (first, second, others) = (part(0, half)?, part(half, half)?, part(2 * half, rest)?);
            let parts =
                [first.mul(&cos)?.sub(&second.mul(sin)?)?, second.mul(&cos)?.add(&first.mul(sin)?)?, others];
            let joined = |of: fn(&Near) -> &Tensor| {
                Tensor::cat(&[of(&parts[0]), of(&parts[1]), of(&parts[2])], D::Minus1)
            };
            Ok(Near { exact: joined(|near| &near.exact)?, error: joined(|near| &near.error)? })
        };
        let yn = turned(&x.near()?, &sin)?;
        yn.judge("y", &y)?;
        let back = Near { exact: sin.exact.neg()?, error: sin.error.clone() };
        let dx = turned(&Near::input(&dy)?, &back)?;
        let xv = x.wide()?;
        let (a, b) = (xv.narrow(2, 0, half)?, xv.narrow(2, half, half)?);
        let (c, d) = (cos.exact.broadcast_as(a.shape())?, sin.exact.broadcast_as(a.shape())?);
        let wide = Tensor::cat(
            &[((&a * &c)? - (&b * &d)?)?, ((&b * &c)? + (&a * &d)?)?, xv.narrow(2, 2 * half, rest)?],
            2,
        )?;
        let wide = backward(&wide, &Near::input(&dy)?.exact)?;
        judge_gradients(&of, &wide, &[("dx", &x, &xv, dx)])?;
    }
    Ok(())
}
