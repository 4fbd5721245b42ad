//! Gradients of rows and of experts: with all rows as of the whole tensor, to the bit; other rows stay; the same bits on every device; what is refused.

mod drawn;

use half::{bf16, f16};

use super::numbers;
use crate::error::{Error, Result};
use crate::ops::SparseRows;
use crate::ops::peer::{ExpertFormat, ExpertGradients, ExpertLayout, ExpertTable, ExpertVectors};
use crate::ops::rows::RowElement;
use crate::optim::{
    AdamW, AdamWOptions, Gradient, LossScaleOptions, ParameterOptions, Rounding, SecondMoment,
};
use crate::{DType, Device, Tensor};

fn tensor<T: RowElement>(device: &Device, values: &[f32], shape: &[usize]) -> Tensor<T> {
    let elements: Vec<T> = values.iter().copied().map(T::from_accumulator).collect();
    Tensor::from_slice(device, &elements, shape).expect("it fits")
}

/// A tensor whose first element is not aligned to a chunk.
fn apart<T: RowElement>(device: &Device, values: &[f32], shape: &[usize]) -> Tensor<T> {
    let all: Vec<f32> = std::iter::once(7.0).chain(values.iter().copied()).collect();
    let all = tensor::<T>(device, &all, &[all.len()]);
    all.slice(0, 1..1 + values.len()).and_then(|part| part.reshape(shape)).expect("it fits")
}

fn wide<T: RowElement>(tensor: &Tensor<T>) -> Vec<f32> {
    crate::ops::rows::widened(tensor).expect("it is read")
}

/// A gradient of these rows of `columns`, with room for some more.
fn sparse<R: RowElement>(device: &Device, ids: &[u32], columns: usize, seed: u64) -> SparseRows<R> {
    let mut values = numbers(seed, ids.len() * columns);
    values.extend(vec![f32::NAN; 2 * columns]);
    let room = ids.len() + 2;
    let named: Vec<u32> = ids.iter().copied().chain([0, u32::MAX]).collect();
    SparseRows {
        ids: Tensor::from_slice(device, &named, [room]).expect("it fits"),
        rows: tensor(device, &values, &[room, columns]),
        count: Tensor::from_slice(device, &[ids.len() as u32], [1]).expect("it fits"),
    }
}

fn devices() -> [Device; 2] {
    [Device::cpu(), Device::emulator()]
}

const OPTIONS: AdamWOptions = AdamWOptions {
    learning_rate: 0.01,
    betas: [0.875, 0.96],
    epsilon: 1e-6,
    weight_decay: 0.1,
    bias_correction: true,
};

/// An optimiser that clips, with its weights `w`.
fn optimizer<T: RowElement>(
    device: &Device,
    weights: &Tensor<T>,
    options: ParameterOptions,
) -> Result<AdamW> {
    let mut optimizer = AdamW::new(device, OPTIONS)?;
    optimizer.add_with("w", weights, options)?;
    optimizer.set_max_norm(Some(2.0))?;
    optimizer.set_loss_scale(Some(LossScaleOptions::constant(3.0)))?;
    Ok(optimizer)
}

/// What steps change: weights, moments, and the norm.
fn state<T: RowElement>(optimizer: &AdamW, weights: &Tensor<T>) -> Vec<Vec<f32>> {
    let moments = optimizer.moments("w").expect("weights of that name");
    let mut all = vec![wide(weights), wide(&moments[0]), wide(&moments[1])];
    all.extend(optimizer.master("w").as_ref().map(wide));
    all.push(wide(&optimizer.gradient_norm().expect("it is there")));
    all
}

fn check_all_rows<T: RowElement, G: RowElement>(device: &Device, rounding: Rounding, columns: usize) {
    let rows = 4096 / columns.max(100);
    for is_aligned in [true, false] {
        let make = || match is_aligned {
            true => tensor::<T>(device, &numbers(1, rows * columns), &[rows, columns]),
            false => apart::<T>(device, &numbers(1, rows * columns), &[rows, columns]),
        };
        let (whole, by_rows) = (make(), make());
        let options = ParameterOptions { rounding, ..ParameterOptions::default() };
        let mut of_whole = optimizer(device, &whole, options).unwrap();
        let mut of_rows = optimizer(device, &by_rows, options).unwrap();
        let ids: Vec<u32> = (0..rows as u32).collect();
        for step in 2..5 {
            let sparse = sparse::<G>(device, &ids, columns, step);
            let gradient = sparse.rows.slice(0, 0..rows).unwrap();
            of_whole.step(&[(&gradient).into()]).unwrap();
            of_rows.step(&[(&sparse).into()]).unwrap();
            let what = format!("{} {rounding:?} {rows}×{columns}, step {step}", T::DTYPE);
            assert_eq!(state(&of_whole, &whole), state(&of_rows, &by_rows), "{device}: {what}");
        }
    }
}

#[test]
fn all_rows_move_as_the_whole_tensor_does() {
    for device in devices() {
        for columns in [1, 7, 32, 130, 264] {
            check_all_rows::<f32, f32>(&device, Rounding::Master, columns);
            check_all_rows::<f32, bf16>(&device, Rounding::Master, columns);
            for rounding in [Rounding::Master, Rounding::Stochastic] {
                check_all_rows::<f16, f16>(&device, rounding, columns);
                check_all_rows::<bf16, f32>(&device, rounding, columns);
            }
        }
    }
}

#[test]
fn rows_without_a_gradient_stay() {
    for device in devices() {
        for second_moment in [SecondMoment::PerElement, SecondMoment::PerRow] {
            let w = tensor::<bf16>(&device, &numbers(1, 9 * 20), &[9, 20]);
            let options = ParameterOptions { second_moment, ..ParameterOptions::default() };
            let mut optimizer = optimizer(&device, &w, options).unwrap();
            optimizer.step(&[(&sparse::<f32>(&device, &[0, 3, 4, 8], 20, 2)).into()]).unwrap();
            let before = state(&optimizer, &w);
            optimizer.step(&[(&sparse::<f32>(&device, &[1, 3], 20, 3)).into()]).unwrap();
            let after = state(&optimizer, &w);
            for (before, after) in before.iter().zip(&after).take(4) {
                let columns = before.len() / 9;
                for row in 0..9 {
                    let range = row * columns..(row + 1) * columns;
                    let same = before[range.clone()] == after[range];
                    assert_eq!(same, row != 1 && row != 3, "{device}, {second_moment:?}, row {row}");
                }
            }
            assert_eq!(optimizer.steps().unwrap(), [2]);
            // No rows: a step that moves nothing.
            optimizer.step(&[(&sparse::<f32>(&device, &[], 20, 4)).into()]).unwrap();
            assert_eq!(state(&optimizer, &w)[..4], after[..4]);
            assert_eq!(optimizer.steps().unwrap(), [3]);
        }
    }
}

#[test]
fn a_row_that_is_not_finite_moves_nothing() {
    for device in devices() {
        let w = tensor::<f32>(&device, &numbers(1, 60), &[6, 10]);
        let mut optimizer = optimizer(&device, &w, ParameterOptions::default()).unwrap();
        let mut gradient = sparse::<f32>(&device, &[2, 5], 10, 2);
        gradient.rows.slice(0, 1..2).unwrap().write_slice(&[f32::INFINITY; 10]).unwrap();
        let before = state(&optimizer, &w);
        optimizer.step(&[(&gradient).into()]).unwrap();
        assert!(optimizer.was_skipped().unwrap());
        assert_eq!(state(&optimizer, &w)[..3], before[..3]);
        assert_eq!(optimizer.steps().unwrap(), [0]);
        gradient = sparse(&device, &[2, 5], 10, 2);
        optimizer.step(&[(&gradient).into()]).unwrap();
        assert!(!optimizer.was_skipped().unwrap());
    }
}

#[test]
fn a_row_with_one_second_moment_moves_as_the_definition_says() {
    for device in devices() {
        for columns in [1usize, 5, 128, 131, 520] {
            let (rows, start) = (4, numbers(5, 4 * columns));
            let w = tensor::<f32>(&device, &start, &[rows, columns]);
            let mut optimizer = AdamW::new(&device, OPTIONS).unwrap();
            let second_moment = SecondMoment::PerRow;
            optimizer
                .add_with("w", &w, ParameterOptions { second_moment, ..ParameterOptions::default() })
                .unwrap();
            let mut exact: Vec<[f64; 2]> = start.iter().map(|&w| [w.into(), 0.0]).collect();
            let mut squares = vec![0.0; rows];
            for step in 1..=4 {
                let gradients = numbers(step, rows * columns);
                let gradient = tensor::<f32>(&device, &gradients, &[rows, columns]);
                optimizer.step(&[(&gradient).into()]).unwrap();
                for (row, square) in squares.iter_mut().enumerate() {
                    let own = row * columns..(row + 1) * columns;
                    let of_row = &gradients[own.clone()];
                    let mean = of_row.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>() / columns as f64;
                    *square = 0.96 * *square + (1.0 - 0.96) * mean;
                    for ([w, m], &g) in exact[own].iter_mut().zip(of_row) {
                        *w -= 0.01 * 0.1 * *w;
                        *m = 0.875 * *m + 0.125 * f64::from(g);
                        let root = (*square / (1.0 - 0.96f64.powi(step as i32))).sqrt();
                        *w -= 0.01 * (*m / (1.0 - 0.875f64.powi(step as i32))) / (root + 1e-6);
                    }
                }
                // As of whole tensors, with up to 16 roundings more in the mean.
                let bound =
                    |w: f64| f64::from(step as u32) * (2.0 * w.abs() + 64.0 * 0.02) / f64::from(1 << 24);
                for (at, (got, [w, _])) in wide(&w).into_iter().zip(&exact).enumerate() {
                    let error = (f64::from(got) - w).abs();
                    assert!(error <= bound(*w), "{device}, step {step}, {columns}, {at}: {got}, exactly {w}");
                }
            }
        }
    }
}

/// Experts of drawn numbers.
fn experts(
    device: &Device,
    format: ExpertFormat,
    [count, d, hidden]: [usize; 3],
    gated: bool,
) -> ExpertTable {
    let layout = ExpertLayout::new(format, d, hidden, d + 3, gated).expect("few of them");
    let u = numbers(10, count * hidden * d);
    let w = if gated { numbers(11, count * hidden * d) } else { Vec::new() };
    let v = numbers(12, count * hidden * (d + 3));
    let mut bytes = vec![0; count * layout.row_bytes()];
    layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes).expect("they fit");
    let rows = Tensor::from_slice(device, &bytes, [count, layout.row_bytes()]).expect("it fits");
    ExpertTable::from_rows(layout, &rows).expect("they fit")
}

/// The gradient of some of them.
fn of_experts(device: &Device, table: &ExpertTable, ids: &[u32], seed: u64) -> ExpertGradients<f32> {
    let layout = table.layout();
    let of = |columns: usize, seed: u64| {
        let SparseRows { rows, .. } = sparse::<f32>(device, ids, layout.hidden() * columns, seed);
        rows.reshape([ids.len() + 2, layout.hidden(), columns]).expect("as many")
    };
    let SparseRows { ids: named, count, .. } = sparse::<f32>(device, ids, 1, seed);
    let (u, v) = (of(layout.d(), 3 * seed), of(layout.o(), 3 * seed + 2));
    ExpertGradients { ids: named, u, w: layout.is_gated().then(|| of(layout.d(), 3 * seed + 1)), v, count }
}

/// The numbers of all experts: u, w if the units are gated, and v.
fn vectors(table: &ExpertTable) -> Vec<Vec<f32>> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    let bytes = table.read_rows(0..table.count()).expect("they are read");
    for row in bytes.chunks_exact(table.layout().row_bytes()) {
        for (all, own) in all.iter_mut().zip(table.layout().unpack(row).expect("a row")) {
            all.extend(own);
        }
    }
    all.into_iter().filter(|part| !part.is_empty()).collect()
}

fn check_experts<T: RowElement>(device: &Device, sizes: [usize; 3], gated: bool, rounding: Rounding) {
    let [count, d, hidden] = sizes;
    let table = experts(device, ExpertFormat::of(T::DTYPE).expect("a format"), sizes, gated);
    let of_parts: Vec<Tensor<T>> = vectors(&table)
        .into_iter()
        .map(|part| {
            let columns = part.len() / count;
            tensor::<T>(device, &part, &[count, columns])
        })
        .collect();
    let options = ParameterOptions { rounding, ..ParameterOptions::default() };
    let names: &[&str] = if gated { &["e.u", "e.w", "e.v"] } else { &["e.u", "e.v"] };
    let (mut one, mut other) = (AdamW::new(device, OPTIONS).unwrap(), AdamW::new(device, OPTIONS).unwrap());
    one.add_with("e", &table, options).unwrap();
    for (name, part) in names.iter().zip(&of_parts) {
        other.add_with(*name, part, options).unwrap();
    }
    for (step, ids) in [&[0, 2][..], &[2, 3, 6], &[5]].into_iter().enumerate() {
        let gradients = of_experts(device, &table, ids, 20 + step as u64);
        one.step(&[(&gradients).into()]).unwrap();
        let flat = |rows: &Tensor<f32>| SparseRows {
            ids: gradients.ids.clone(),
            rows: rows
                .flatten_leading()
                .unwrap()
                .reshape([ids.len() + 2, rows.len() / (ids.len() + 2)])
                .unwrap(),
            count: gradients.count.clone(),
        };
        let parts = std::iter::once(&gradients.u).chain(&gradients.w).chain([&gradients.v]);
        let parts: Vec<_> = parts.map(flat).collect();
        other.step(&parts.iter().map(Gradient::from).collect::<Vec<_>>()).unwrap();
    }
    let what = format!("{device}: {} {sizes:?} {gated} {rounding:?}", T::DTYPE);
    assert_eq!(vectors(&table), of_parts.iter().map(wide).collect::<Vec<_>>(), "{what}");
    for name in names {
        let [a, b] = [&one, &other].map(|of| of.moments(name).unwrap().map(|moment| wide(&moment)));
        assert_eq!(a, b, "{what}: {name}");
    }
    assert_eq!((one.names().collect::<Vec<_>>(), one.steps().unwrap()), (vec!["e"], vec![3]));
    // What fills rows up is as it was.
    let layout = table.layout();
    let mut packed = vec![0; layout.row_bytes()];
    for row in table.read_rows(0..count).unwrap().chunks_exact(packed.len()) {
        let [u, w, v] = layout.unpack(row).unwrap();
        layout.pack(ExpertVectors { u: &u, w: &w, v: &v }, &mut packed).unwrap();
        assert_eq!(packed, row, "{what}, {d} {hidden}");
    }
}

#[test]
fn experts_move_as_their_vectors_do() {
    for device in devices() {
        for (sizes, gated) in [([7, 8, 1], false), ([7, 13, 1], true), ([7, 24, 3], true), ([7, 5, 2], false)]
        {
            check_experts::<f32>(&device, sizes, gated, Rounding::Master);
            for rounding in [Rounding::Master, Rounding::Stochastic] {
                check_experts::<f16>(&device, sizes, gated, rounding);
                check_experts::<bf16>(&device, sizes, gated, rounding);
            }
        }
    }
}

#[test]
fn a_captured_step_takes_what_rows_are_then() {
    for device in devices() {
        let stream = device.new_stream().unwrap();
        let make = || {
            let w = tensor::<f32>(&device, &numbers(1, 60), &[6, 10]);
            let optimizer = optimizer(&device, &w, ParameterOptions::default()).unwrap();
            (w, optimizer)
        };
        let ((w, mut one), (expected, mut other)) = (make(), make());
        let mut gradient = sparse::<f32>(&device, &[1, 2], 10, 2);
        let view = gradient.clone();
        // The first step makes the tables.
        one.step_on(&stream, &[Some((&view).into())]).unwrap();
        other.step(&[(&gradient).into()]).unwrap();
        let work = || one.step_on(&stream, &[Some((&view).into())]);
        // SAFETY: nobody else has the stream; the work borrows every tensor that it uses.
        let mut graph = unsafe { stream.capture(work) }.unwrap();
        other.step(&[(&gradient).into()]).unwrap();
        for (ids, seed) in [(&[0, 2, 5][..], 3), (&[4], 4), (&[], 5), (&[0, 1, 2, 3], 6)] {
            // As much room as the captured ones.
            let next = sparse::<f32>(&device, ids, 10, seed);
            let values = [wide(&next.rows), vec![f32::NAN; 40]].concat();
            let named = [ids, &[9; 4]].concat();
            gradient.ids.write_slice(&named[..4]).unwrap();
            gradient.rows.write_slice(&values[..40]).unwrap();
            gradient.count.write_slice(&[ids.len() as u32]).unwrap();
            graph.launch().unwrap();
            other.step(&[(&next).into()]).unwrap();
            assert_eq!(wide(&w), wide(&expected), "{device}, {ids:?}");
        }
        drop(graph);
        assert_eq!(one.steps().unwrap(), other.steps().unwrap());
    }
}

#[test]
fn more_rows_than_in_the_step_before_and_another_stream_give_the_same_bits() {
    let of = |device: &Device| {
        let w = tensor::<bf16>(device, &numbers(1, 900 * 64), &[900, 64]);
        let mut optimizer = optimizer(device, &w, ParameterOptions::default()).unwrap();
        let streams = [device.default_stream(), device.new_stream().unwrap()];
        // Fewer rows, more, and a gradient of all of them.
        for (step, count) in [3u32, 700, 50, 900].into_iter().enumerate() {
            let ids: Vec<u32> = (0..count).collect();
            let gradient = sparse::<f32>(device, &ids, 64, step as u64);
            let whole = gradient.rows.slice(0, 0..count as usize).unwrap();
            let given = if count == 900 { (&whole).into() } else { (&gradient).into() };
            optimizer.step_on(&streams[step % 2], &[Some(given)]).unwrap();
        }
        device.synchronize().unwrap();
        state(&optimizer, &w)
    };
    let [cpu, emulator] = devices().map(|device| of(&device));
    assert_eq!(cpu, emulator);
}

#[test]
fn gradients_of_rows_that_share_memory_with_what_moves_are_refused() {
    for device in devices() {
        let all = tensor::<f32>(&device, &numbers(1, 220), &[220]);
        let w = all.slice(0, 100..200).unwrap().reshape([10, 10]).unwrap();
        let mut optimizer = AdamW::new(&device, OPTIONS).unwrap();
        optimizer.add("w", &w).unwrap();
        let rows = |count: usize| SparseRows {
            ids: Tensor::from_slice(&device, &(0..count as u32).collect::<Vec<_>>(), [count]).unwrap(),
            rows: all.slice(0, 0..10 * count).unwrap().reshape([count, 10]).unwrap(),
            count: Tensor::from_slice(&device, &[2u32], [1]).unwrap(),
        };
        optimizer.step(&[(&rows(2)).into()]).unwrap();
        optimizer.step(&[(&rows(10)).into()]).unwrap();
        // From the same address on, and longer.
        let before = wide(&w);
        let refused = |optimizer: &mut AdamW, gradient: Gradient<'_>, other: &str| {
            let error = optimizer.step(&[gradient]).unwrap_err();
            let told = format!("shares memory with `{other}`");
            assert!(matches!(error, Error::Overlap { .. }) && error.to_string().contains(&told), "{error}");
        };
        refused(&mut optimizer, (&rows(12)).into(), "weights");
        let [means, squares] = optimizer.moments("w").unwrap();
        refused(&mut optimizer, (&means).into(), "moments");
        let of_squares = SparseRows { rows: squares.slice(0, 0..2).unwrap(), ..rows(2) };
        refused(&mut optimizer, (&of_squares).into(), "moments");
        assert_eq!(wide(&w), before);
        assert_eq!(optimizer.steps().unwrap(), [2]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let table = experts(&device, ExpertFormat::F32, [5, 4, 1], false);
        let w = tensor::<f32>(&device, &numbers(1, 24), &[4, 6]);
        let cube = tensor::<f32>(&device, &numbers(1, 24), &[2, 2, 6]);
        let mut optimizer = AdamW::new(&device, OPTIONS).unwrap();
        let told = |result: Result<()>, what: [&str; 2]| {
            let error = result.expect_err(what[0]).to_string();
            assert!(what.iter().all(|what| error.contains(what)), "{error}, expected {what:?}");
        };
        for (name, weights) in [("w", &w), ("cube", &cube)] {
            optimizer.add(name, weights).unwrap();
        }
        optimizer.add("e", &table).unwrap();
        told(optimizer.add("f", &table), ["`weights`", "shares memory"]);
        told(
            optimizer.add("e.u", &tensor::<f32>(&device, &[1.0], &[1])),
            ["name is e.u", "no other weights"],
        );
        let quantised = experts(&device, ExpertFormat::Int8, [5, 4, 1], false);
        told(optimizer.add("q", &quantised), ["f16, bf16 or f32", "int8"]);
        let slot_of = Tensor::from_slice(&device, &[0u32; 5], [5]).unwrap();
        let rows = Tensor::<u8>::zeros(&device, [5, table.layout().row_bytes()]).unwrap();
        let cached = ExpertTable::cached(*table.layout(), &rows, &slot_of, &rows).unwrap();
        told(optimizer.add("c", &cached), ["holds all its rows", "slots"]);

        let rows = sparse::<f32>(&device, &[1, 2], 6, 1);
        let of = of_experts(&device, &table, &[1, 2], 1);
        let mut step =
            |gradients: [Option<Gradient<'_>>; 3]| optimizer.step_on(&device.default_stream(), &gradients);
        let shorter =
            SparseRows { rows: rows.rows.slice(1, 0..5).unwrap().contiguous().unwrap(), ..rows.clone() };
        told(step([Some((&shorter).into()), None, None]), ["`rows`", "[4, 6], for `w`"]);
        let fewer = SparseRows { ids: rows.ids.slice(0, 0..3).unwrap(), ..rows.clone() };
        told(step([Some((&fewer).into()), None, None]), ["`rows`", "[3, 6], for `w`"]);
        let counts = SparseRows { count: rows.ids.slice(0, 0..2).unwrap(), ..rows.clone() };
        told(step([Some((&counts).into()), None, None]), ["`count`", "[1]"]);
        told(step([None, Some((&rows).into()), None]), ["gradient", "unless these have two axes"]);
        told(step([None, None, Some((&rows).into())]), ["that of experts, for `e`", "that of rows"]);
        told(step([Some((&of).into()), None, None]), ["that of a tensor or its rows", "that of experts"]);
        let gated = ExpertGradients { w: Some(of.u.clone()), ..of.clone() };
        told(step([None, None, Some((&gated).into())]), ["without w", "with w"]);
        let longer = ExpertGradients { u: of.v.clone(), ..of.clone() };
        told(step([None, None, Some((&longer).into())]), ["`u`", "[4, 1, 4], for `e.u`"]);
        let elsewhere = sparse::<f32>(&Device::emulator(), &[1], 6, 1);
        told(step([Some((&elsewhere).into()), None, None]), ["`ids`", "emulator"]);

        // Rows that cannot be are refused on the CPU, and count for nothing elsewhere.
        let before = wide(&w);
        let beyond = sparse::<f32>(&device, &[4, 9], 6, 1);
        let result = step([Some((&beyond).into()), None, None]);
        match device.kind() {
            crate::DeviceKind::Cpu => {
                told(result, ["ids is 4", "below 4, each once, for `w`"]);
                let twice = sparse::<f32>(&device, &[2, 2], 6, 1);
                told(step([Some((&twice).into()), None, None]), ["ids is 2 after 2", "ascending"]);
                assert_eq!(optimizer.steps().unwrap(), [0, 0, 0]);
            }
            _ => {
                result.unwrap();
                assert_eq!(optimizer.steps().unwrap(), [1, 0, 0]);
                optimizer.set_gradient_norm(true);
                optimizer.step_on(&device.default_stream(), &[Some((&beyond).into()), None, None]).unwrap();
                let norm =
                    wide(&beyond.rows.slice(0, 0..2).unwrap()).iter().map(|g| g * g).sum::<f32>().sqrt();
                let found = wide(&optimizer.gradient_norm().unwrap())[0];
                assert!((found - norm).abs() < 1e-6 * norm, "{found} {norm}");
            }
        }
        assert_eq!(wide(&w), before);
        assert!(matches!(optimizer.implementation(&[]), Err(Error::Argument { .. })));
        assert_eq!(w.dtype(), DType::F32);
    }
}
