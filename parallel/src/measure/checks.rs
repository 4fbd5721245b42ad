//! Results of several ranks, compared with what they should be.

use crate::data::{self, GradientOptions, Gradients, Wire};
use crate::experts::SplitExperts;
use crate::tensor::{ColumnLinear, RowLinear};
use crate::{Error, Reduction, Result};
use half::{bf16, f16};
use warpsmith::layers::Linear;
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertTable, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{Element, Tensor};

use super::Rank;

/// Elements of a rank: none, one, tails, more than a block has.
const COUNTS: [usize; 6] = [0, 1, 3, 1000, 4097, 1_000_003];

/// The error of a check that failed.
pub(super) fn wrong(what: &'static str, expected: String, actual: String) -> Error {
    warpsmith::Error::Argument { operation: "check", argument: what, expected, actual }.into()
}

fn expect<T: Element>(what: &'static str, found: &Tensor<T>, expected: impl Fn(usize) -> T) -> Result<()> {
    for (at, found) in found.to_vec()?.into_iter().enumerate() {
        if found != expected(at) {
            return Err(wrong(what, format!("{:?} at {at}", expected(at)), format!("{found:?}")));
        }
    }
    Ok(())
}

pub(super) fn all(rank: &Rank) -> Result<()> {
    let of = |name: &str, result: Result<()>| -> Result<()> {
        result?;
        rank.say(&format!("as it should be: {name}"));
        Ok(())
    };
    of("collectives of f32", collectives::<f32>(rank, |number| number as f32, true))?;
    of("collectives of f64", collectives::<f64>(rank, |number| number as f64, true))?;
    of("collectives of f16", collectives::<f16>(rank, |number| f16::from_f32(number as f32), true))?;
    of("collectives of bf16", collectives::<bf16>(rank, |number| bf16::from_f32(number as f32), true))?;
    of("collectives of u8", collectives::<u8>(rank, |number| number as u8, false))?;
    of("collectives of i32", collectives::<i32>(rank, |number| number as i32, false))?;
    of("collectives of u32", collectives::<u32>(rank, |number| number as u32, false))?;
    of("collectives of i64", collectives::<i64>(rank, |number| number as i64, false))?;
    of("averages in buckets", averages(rank))?;
    of("layers that are split", layers(rank))?;
    of("experts that are split", experts(rank))
}

/// A small whole number of a rank's element: sums of eight ranks are exact in every type.
fn number(rank: usize, at: usize) -> usize {
    (3 * rank + at) % 8
}

fn collectives<T: Element>(rank: &Rank, of: impl Fn(usize) -> T, has_mean: bool) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let (own, size) = (communicator.rank(), communicator.size());
    let sum = |at: usize| (0..size).map(|other| number(other, at)).sum::<usize>();
    for count in COUNTS {
        let numbers = |count: usize| (0..count).map(|at| of(number(own, at))).collect::<Vec<T>>();
        let tensor = |count: usize| Tensor::from_slice(device, &numbers(count), [count]);
        let extreme = |at: usize, largest: bool| {
            let all = (0..size).map(|other| number(other, at));
            if largest { all.max() } else { all.min() }.unwrap_or(0)
        };
        let mut reduced = tensor(count)?;
        communicator.all_reduce(&mut reduced, Reduction::Sum)?;
        expect("all_reduce, sum", &reduced, |at| of(sum(at)))?;
        for (reduction, largest) in [(Reduction::Max, true), (Reduction::Min, false)] {
            let mut reduced = tensor(count)?;
            communicator.all_reduce(&mut reduced, reduction)?;
            expect("all_reduce, max and min", &reduced, |at| of(extreme(at, largest)))?;
        }
        if has_mean && size.is_power_of_two() {
            // Multiples of the size, so that the mean is a whole number.
            let numbers: Vec<T> = (0..count).map(|at| of(size * number(own, at) % 64)).collect();
            let mut reduced = Tensor::from_slice(device, &numbers, [count])?;
            communicator.all_reduce(&mut reduced, Reduction::Mean)?;
            let mean = |at: usize| (0..size).map(|other| size * number(other, at) % 64).sum::<usize>() / size;
            expect("all_reduce, mean", &reduced, |at| of(mean(at)))?;
        }
        let whole = tensor(count * size)?;
        let mut part = tensor(count)?;
        communicator.reduce_scatter(&whole, &mut part, Reduction::Sum)?;
        expect("reduce_scatter", &part, |at| of(sum(own * count + at)))?;
        let mut gathered = tensor(count * size)?;
        communicator.all_gather(&tensor(count)?, &mut gathered)?;
        expect("all_gather", &gathered, |at| of(number(at / count, at % count)))?;
        let mut exchanged = tensor(count * size)?;
        communicator.all_to_all(&whole, &mut exchanged)?;
        expect("all_to_all", &exchanged, |at| of(number(at / count, own * count + at % count)))?;
        for root in 0..size {
            let mut tensor = tensor(count)?;
            communicator.broadcast(&mut tensor, root)?;
            expect("broadcast", &tensor, |at| of(number(root, at)))?;
        }
        if size > 1 {
            let (next, last) = ((own + 1) % size, (own + size - 1) % size);
            let mut received = tensor(count)?;
            communicator.send_recv((&tensor(count)?, next), (&mut received, last))?;
            expect("send_recv", &received, |at| of(number(last, at)))?;
            let mut received = Tensor::zeros(device, [count])?;
            match own % 2 {
                0 if own + 1 < size => communicator.send(&tensor(count)?, own + 1)?,
                1 => {
                    communicator.recv(&mut received, own - 1)?;
                    expect("send and recv", &received, |at| of(number(own - 1, at)))?;
                }
                _ => {}
            }
        }
    }
    let count = |from: usize, to: usize| 5 * from + 3 * to;
    let sends: Vec<usize> = (0..size).map(|to| count(own, to)).collect();
    let receives: Vec<usize> = (0..size).map(|from| count(from, own)).collect();
    let input: Vec<T> =
        sends.iter().enumerate().flat_map(|(to, &count)| vec![of((own + 2 * to) % 8); count]).collect();
    let expected: Vec<T> = receives
        .iter()
        .enumerate()
        .flat_map(|(from, &count)| vec![of((from + 2 * own) % 8); count])
        .collect();
    let mut output = Tensor::zeros(device, [expected.len()])?;
    communicator.all_to_all_v(
        &Tensor::from_slice(device, &input, [input.len()])?,
        &sends,
        &mut output,
        &receives,
    )?;
    expect("all_to_all_v", &output, |at| expected[at])?;
    communicator.barrier(device)
}

/// Whole numbers from −2 to 2.
pub(super) fn whole_numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1009 % 5) as f32 - 2.0).collect()
}

fn averages(rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let (own, size) = (communicator.rank(), communicator.size());
    for wire in [Wire::F32, Wire::Bf16] {
        let options = GradientOptions { bucket_bytes: 1 << 16, wire, ..GradientOptions::default() };
        let shapes: [&[usize]; 4] = [&[100, 300], &[7], &[33, 1000], &[]];
        let mut gradients = Gradients::new(communicator, device, &shapes, options)?;
        for pass in 0..3 {
            for index in (0..shapes.len()).rev() {
                let mut gradient = gradients.tensor(index)?;
                // Times the size, so that means are exact.
                let numbers = whole_numbers(own + 10 * pass + index, gradient.len());
                gradient
                    .write_slice(&numbers.iter().map(|number| number * size as f32).collect::<Vec<_>>())?;
                gradients.ready(index)?;
            }
            gradients.finish()?;
            let all = gradients.tensors()?;
            for (index, gradient) in all.iter().enumerate() {
                let all: Vec<_> =
                    (0..size).map(|other| whole_numbers(other + 10 * pass + index, gradient.len())).collect();
                expect("averages", gradient, |at| all.iter().map(|numbers| numbers[at]).sum())?;
            }
            data::expect_same_bits(communicator, &all)?;
        }
    }
    Ok(())
}

/// A multilayer perceptron of whole numbers, split and whole: the same bits.
fn layers(rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let [m, k, hidden, n] = [37, 16, 56, 24];
    let tensor = |seed, shape: [usize; 2]| {
        Tensor::from_slice(device, &whole_numbers(seed, shape[0] * shape[1]), shape)
    };
    let (x, dy) = (tensor(1, [m, k])?, tensor(2, [m, n])?);
    let (up, down) = (tensor(3, [hidden, k])?, tensor(4, [n, hidden])?);
    let whole_up = Linear::new(up.clone(), None, Activation::Relu)?;
    let whole_down = Linear::new(down.clone(), None, Activation::None)?;
    let (h, saved_up) = whole_up.forward_train(&x)?;
    let (y, saved_down) = whole_down.forward_train(&h)?;
    let of_down = whole_down.backward(&saved_down, &dy)?;
    let of_up = whole_up.backward(&saved_up, &of_down.dx)?;
    for pieces in [1, 4] {
        let up = ColumnLinear::shard(communicator, &up, None, Activation::Relu)?.pieces(pieces);
        let down = RowLinear::shard(communicator, &down, None)?.pieces(pieces);
        let (h, saved_up) = up.forward_train(&x)?;
        let (split_y, saved_down) = down.forward_train(&h)?;
        let split_down = down.backward(&saved_down, &dy)?;
        let split_up = up.backward(&saved_up, &split_down.dx)?;
        let dw = of_up.dw.slice(0, up.range())?.to_vec()?;
        let [expected_y, expected_dx] = [y.to_vec()?, of_up.dx.to_vec()?];
        expect("output of split layers", &split_y, |at| expected_y[at])?;
        expect("gradient of their input", &split_up.dx, |at| expected_dx[at])?;
        expect("gradient of their weights", &split_up.dw, |at| dw[at])?;
    }
    Ok(())
}

fn experts(rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let [tokens, d, o, count] = [9, 8, 8, 40];
    let layout = ExpertLayout::new(ExpertFormat::F32, d, 1, o, false)?;
    let (u, v) = (whole_numbers(1, count * d), whole_numbers(2, count * o));
    let rows = |all: &[f32], width: usize, ids: &[usize]| {
        ids.iter().flat_map(|&id| all[id * width..(id + 1) * width].to_vec()).collect::<Vec<_>>()
    };
    let split = SplitExperts::new(communicator, device, layout, count, |ids| {
        Ok([rows(&u, d, ids), vec![], rows(&v, o, ids)])
    })?
    .activation(Activation::Relu);
    let (u, v) = (Tensor::from_slice(device, &u, [count, d])?, Tensor::from_slice(device, &v, [count, o])?);
    let table = ExpertTable::from_tensors(ExpertFormat::F32, &u, None, &v)?;
    let own = communicator.rank();
    let ids: Vec<u32> = (0..tokens * 6).map(|at| ((at * 31 + own * 17) % count) as u32).collect();
    let routing = Routing {
        ids: Tensor::from_slice(device, &ids, [tokens, 2, 3])?,
        gates: Tensor::from_slice(device, &whole_numbers(own + 3, ids.len()), [tokens, 2, 3])?,
    };
    let x = Tensor::from_slice(device, &whole_numbers(own + 4, tokens * d), [tokens, d])?;
    let expected = ops::expert_mlp(&x, &routing, &table).activation(Activation::Relu).run()?.to_vec()?;
    expect("outputs of split experts", &split.forward(&x, &routing)?, |at| expected[at])
}
