//! Data parallelism: averages of gradients, and training on several ranks beside one.

use half::bf16;
use warpsmith::layers::Linear;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::{self, Activation};
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::data::{self, GradientOptions, Gradients, Pass, Sharded, Wire};
use warpsmith_parallel::launch;
use warpsmith_parallel::{Communicator, Reduction, Result};

use crate::support::{F32_UNIT, LIMIT, Random, expect_close, vector};

/// Columns of each layer's input, and of the output: none divides by the number of ranks.
const WIDTHS: [usize; 4] = [5, 11, 7, 3];

/// Weights and biases, the same on all ranks.
fn weights(device: &Device) -> Vec<Tensor<f32>> {
    let mut random = Random(1);
    let mut all = Vec::new();
    for widths in WIDTHS.windows(2) {
        let weight = random.numbers(widths[0] * widths[1]);
        all.push(Tensor::from_slice(device, &weight, [widths[1], widths[0]]).expect("it fits"));
        all.push(Tensor::from_slice(device, &random.numbers(widths[1]), [widths[1]]).expect("it fits"));
    }
    all
}

/// Examples of one step and rank.
fn batch(device: &Device, step: usize, rank: usize, rows: usize) -> (Tensor<f32>, Tensor<i64>) {
    let mut random = Random((1000 * step + rank) as u64 + 7);
    let x = Tensor::from_slice(device, &random.numbers(rows * WIDTHS[0]), [rows, WIDTHS[0]]);
    let labels: Vec<i64> = (0..rows).map(|_| (random.next() % WIDTHS[3] as u64) as i64).collect();
    (x.expect("it fits"), Tensor::from_slice(device, &labels, [rows]).expect("it fits"))
}

fn layer(index: usize, pair: &[Tensor<f32>]) -> warpsmith::Result<Linear<f32>> {
    let activation = if index + 2 < WIDTHS.len() { Activation::Relu } else { Activation::None };
    Linear::new(pair[0].clone(), Some(pair[1].clone()), activation)
}

/// Writes the gradients of a weight and a bias.
type Write<'a> = &'a mut dyn FnMut(&mut Tensor<f32>, &mut Tensor<f32>) -> Result<()>;

/// A forward and a backward pass; `weights` gives a layer's weight and bias, `gradient` takes what writes theirs.
fn pass(
    (x, labels): &(Tensor<f32>, Tensor<i64>),
    weights: &mut dyn FnMut(usize, Pass) -> Result<Vec<Tensor<f32>>>,
    gradient: &mut dyn FnMut(usize, Write<'_>) -> Result<()>,
) -> Result<()> {
    let (mut y, mut saved) = (x.clone(), Vec::new());
    for index in 0..WIDTHS.len() - 1 {
        let (next, of_layer) = layer(index, &weights(index, Pass::Forward)?)?.forward_train(&y)?;
        saved.push(of_layer);
        y = next;
    }
    let mut dy = ops::cross_entropy(&y, labels).run_with_gradient()?.gradient;
    for (index, saved) in saved.iter().enumerate().rev() {
        let layer = layer(index, &weights(index, Pass::Backward)?)?;
        let mut dx = Tensor::uninit(dy.device(), saved.x().shape())?;
        gradient(index, &mut |dw, db| {
            Ok(layer.backward_operation(saved, &dy).run_into(LinearGradientOutputs {
                dx: Some(&mut dx),
                dw: Some(dw),
                db: Some(db),
                ..LinearGradientOutputs::default()
            })?)
        })?;
        dy = dx;
    }
    Ok(())
}

fn optimizer(device: &Device) -> Result<AdamW> {
    Ok(AdamW::new(device, AdamWOptions { learning_rate: 0.05, ..AdamWOptions::default() })?)
}

/// The weights' bits after some steps of replicas.
fn train_replicas(
    communicator: &Communicator,
    device: &Device,
    steps: usize,
    options: GradientOptions,
) -> Result<Vec<Vec<u32>>> {
    let mut all = weights(device);
    data::replicate(communicator, &mut all)?;
    let shapes: Vec<&[usize]> = all.iter().map(Tensor::shape).collect();
    let mut gradients = Gradients::new(communicator, device, &shapes, options)?;
    let mut optimizer = optimizer(device)?;
    for (index, tensor) in all.iter().enumerate() {
        optimizer.add(index.to_string(), tensor)?;
    }
    for step in 0..steps {
        let batch = batch(device, step, communicator.rank(), 4);
        pass(&batch, &mut |index, _| Ok(all[2 * index..2 * index + 2].to_vec()), &mut |index, write| {
            let (mut dw, mut db) = (gradients.tensor(2 * index)?, gradients.tensor(2 * index + 1)?);
            write(&mut dw, &mut db)?;
            gradients.ready(2 * index + 1)?;
            gradients.ready(2 * index)
        })?;
        gradients.finish()?;
        let tensors = gradients.tensors()?;
        optimizer.step(&tensors.iter().map(Into::into).collect::<Vec<_>>())?;
    }
    data::expect_same_bits(communicator, &all)?;
    Ok(all.iter().map(bits).collect())
}

/// The same of a model that is split.
fn train_sharded(communicator: &Communicator, device: &Device, steps: usize) -> Result<Vec<Vec<u32>>> {
    let all = weights(device);
    let mut model = Sharded::new(communicator, device)?;
    for (index, pair) in all.chunks(2).enumerate() {
        model.add(index.to_string(), &pair.iter().collect::<Vec<_>>())?;
    }
    let mut optimizer = optimizer(device)?;
    model.add_to(&mut optimizer)?;
    for step in 0..steps {
        let batch = batch(device, step, communicator.rank(), 4);
        let model = std::cell::RefCell::new(&mut model);
        pass(
            &batch,
            &mut |index, direction| {
                let mut model = model.borrow_mut();
                let weights = model.weights(index, direction);
                if direction == Pass::Forward {
                    model.release(index)?;
                }
                weights
            },
            &mut |index, write| {
                let mut model = model.borrow_mut();
                let mut pair = model.gradients(index)?;
                let [dw, db] = &mut pair[..] else { panic!("there are two") };
                write(dw, db)?;
                model.reduce(index)
            },
        )?;
        model.into_inner().step(&mut optimizer)?;
    }
    let mut bits_of_all = Vec::new();
    for index in 0..model.count() {
        bits_of_all.extend(model.weights(index, Pass::Forward)?.iter().map(bits));
    }
    Ok(bits_of_all)
}

fn bits(tensor: &Tensor<f32>) -> Vec<u32> {
    tensor.to_vec().expect("it is read").into_iter().map(f32::to_bits).collect()
}

#[test]
fn replicas_and_split_models_get_the_same_bits_whatever_the_buckets() -> Result<()> {
    for size in [1, 2, 3, 4, 8] {
        let with = |bucket_bytes| {
            launch::threads_within(LIMIT, size, move |communicator| {
                let options = GradientOptions { bucket_bytes, ..GradientOptions::default() };
                train_replicas(&communicator, &Device::cpu(), 5, options)
            })
        };
        let expected = with(1)?;
        assert!(expected.iter().all(|weights| *weights == expected[0]));
        for bucket_bytes in [1000, 1 << 20] {
            assert_eq!(with(bucket_bytes)?, expected, "{size} ranks, buckets of {bucket_bytes}");
        }
        let sharded = launch::threads_within(LIMIT, size, |communicator| {
            train_sharded(&communicator, &Device::cpu(), 5)
        })?;
        assert_eq!(sharded, expected, "{size} ranks");
    }
    Ok(())
}

#[test]
fn emulated_devices_train_replicas_and_split_models_alike() -> Result<()> {
    let replicas = launch::threads_within(LIMIT, 2, |communicator| {
        train_replicas(&communicator, &Device::emulator(), 1, GradientOptions::default())
    })?;
    let sharded = launch::threads_within(LIMIT, 2, |communicator| {
        train_sharded(&communicator, &Device::emulator(), 1)
    })?;
    assert_eq!(replicas[0], replicas[1]);
    assert_eq!(replicas, sharded);
    Ok(())
}

/// The averaged gradient of `x Wᵀ` for whole numbers.
fn whole_gradient(size: usize, wire: Wire) -> Result<Vec<f32>> {
    let (rows, inputs, outputs) = (24 / size, 5, 7);
    let results = launch::threads_within(LIMIT, size, |communicator| {
        let device = Device::cpu();
        // The ranks' rows follow each other in the whole batch.
        let (x, dy) = (Random(3).whole(24 * inputs), Random(4).whole(24 * outputs));
        let of = |all: &[f32], columns: usize| {
            let start = communicator.rank() * rows * columns;
            Tensor::from_slice(&device, &all[start..start + rows * columns], [rows, columns])
        };
        let (x, dy) = (of(&x, inputs)?, of(&dy, outputs)?);
        let w = Tensor::zeros(&device, [outputs, inputs])?;
        let options = GradientOptions { wire, ..GradientOptions::default() };
        let mut gradients = Gradients::new(&communicator, &device, &[&[outputs, inputs]], options)?;
        let mut dw = gradients.tensor(0)?;
        ops::linear_backward(&x, &w, &dy)
            .run_into(LinearGradientOutputs { dw: Some(&mut dw), ..Default::default() })?;
        gradients.ready(0)?;
        gradients.finish()?;
        Ok(dw.to_vec()?)
    })?;
    assert!(results.iter().all(|result| *result == results[0]));
    Ok(results.into_iter().next().expect("there is a rank"))
}

#[test]
fn several_ranks_have_the_gradient_of_one_with_the_whole_batch() -> Result<()> {
    // Sums of whole numbers are exact, and so is a power of two as a divisor.
    let one = whole_gradient(1, Wire::F32)?;
    for size in [2, 4, 8] {
        let mean: Vec<f32> = whole_gradient(size, Wire::F32)?.iter().map(|of| of * size as f32).collect();
        assert_eq!(mean, one, "{size} ranks");
    }
    // Thirds are rounded once.
    let exact: Vec<_> = one.iter().map(|&sum| (f64::from(sum) / 3.0, 0.0)).collect();
    expect_close(&whole_gradient(3, Wire::F32)?, &exact, F32_UNIT, 0.0, "3 ranks");
    Ok(())
}

#[test]
fn gradients_travel_in_bf16_within_two_roundings() -> Result<()> {
    let unit = 1.0 / 256.0;
    for size in [1, 2, 3] {
        let results = launch::threads_within(LIMIT, size, |communicator| {
            let options = GradientOptions { wire: Wire::Bf16, ..GradientOptions::default() };
            let mut gradients = Gradients::new(&communicator, &Device::cpu(), &[&[70], &[3, 5]], options)?;
            for index in 0..2 {
                let mut tensor = gradients.tensor(index)?;
                let own = Random((10 * index + communicator.rank()) as u64).numbers(tensor.len());
                tensor.write_slice(&own)?;
                gradients.ready(index)?;
            }
            gradients.finish()?;
            Ok((gradients.tensor(0)?.to_vec()?, gradients.tensor(1)?.to_vec()?))
        })?;
        for (first, second) in results {
            for (index, found) in [first, second].into_iter().enumerate() {
                let of = |rank: usize| Random((10 * index + rank) as u64).numbers(found.len());
                let exact: Vec<_> = (0..found.len())
                    .map(|at| {
                        let all = (0..size).map(|rank| f64::from(of(rank)[at]) / size as f64);
                        (all.clone().sum(), all.map(f64::abs).sum())
                    })
                    .collect();
                // Each rank's is rounded, the sum of at most 3 in f32 and its division are, and the mean is.
                let absolute = (unit + 4.0 * F32_UNIT) * (1.0 + unit);
                expect_close(&found, &exact, unit, absolute, &format!("{size} ranks"));
                assert!(found.iter().all(|&number| bf16::from_f32(number).to_f32() == number));
            }
        }
    }
    Ok(())
}

#[test]
fn what_a_rank_keeps_shrinks_with_the_number_of_ranks() -> Result<()> {
    let bytes = |size| -> Result<usize> {
        let all = launch::threads_within(LIMIT, size, |communicator| {
            let device = Device::cpu();
            let mut model = Sharded::new(&communicator, &device)?;
            model.add("one", &[&Tensor::<f32>::zeros(&device, [1000, 33])?])?;
            model.add("two", &[&Tensor::<f32>::zeros(&device, [77])?, &Tensor::zeros(&device, [5000])?])?;
            Ok(model.bytes())
        })?;
        assert!(all.iter().all(|bytes| *bytes == all[0]));
        Ok(all[0])
    };
    let one = bytes(1)?;
    for size in 2..=8 {
        // Each of the two units is rounded up to whole groups of 64 numbers, of 8 bytes with their gradients.
        assert!(bytes(size)? <= one / size + 2 * 2 * 64 * 8, "{size} ranks");
    }
    Ok(())
}

#[test]
fn a_split_model_limits_the_norm_of_all_its_gradients() -> Result<()> {
    for size in [1, 3] {
        let results = launch::threads_within(LIMIT, size, |communicator| {
            let device = Device::cpu();
            let mut model = Sharded::new(&communicator, &device)?;
            model.add("one", &[&vector(&[0f32; 100])])?;
            model.add("two", &[&vector(&[0f32; 300])])?;
            let mut fill = || -> Result<()> {
                for unit in 0..2 {
                    let mut gradient = model.gradients(unit)?.remove(0);
                    gradient.write_slice(&vec![0.5; gradient.len()])?;
                    model.reduce(unit)?;
                }
                Ok(())
            };
            fill()?;
            let norms = [model.clip(100.0)?, model.clip(1.0)?, model.clip(1.0)?];
            assert!(model.clip(0.0).is_err() && model.clip(f32::NAN).is_err());
            Ok(norms)
        })?;
        for [first, second, third] in results {
            // 400 gradients of 0.5.
            assert_eq!([first, second], [10.0, 10.0]);
            assert!((third - 1.0).abs() < 1e-5, "{third}");
        }
    }
    Ok(())
}

#[test]
fn mistakes_with_gradients_are_errors() -> Result<()> {
    let communicator = Communicator::local(1, LIMIT)?.remove(0);
    let device = Device::cpu();
    let expect = |result: Result<()>, words: &str| {
        let error = result.expect_err("it is a mistake").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    };
    let mut gradients = Gradients::new(&communicator, &device, &[&[2], &[3]], GradientOptions::default())?;
    assert_eq!((gradients.count(), gradients.bucket_count()), (2, 1));
    gradients.ready(1)?;
    expect(gradients.ready(1), "expected a gradient that is not ready");
    expect(gradients.ready(2), "index is 2, expected below 2");
    expect(gradients.tensor(2).map(drop), "index is 2");
    expect(gradients.finish(), "not for number 0");
    gradients.ready(0)?;
    gradients.finish()?;
    gradients.ready(0)?;
    let none = GradientOptions { bucket_bytes: 0, ..GradientOptions::default() };
    expect(Gradients::new(&communicator, &device, &[], none).map(drop), "at least 1");
    let mut empty = Gradients::new(&communicator, &device, &[], GradientOptions::default())?;
    empty.finish()?;
    let mut model = Sharded::<f32>::new(&communicator, &device)?;
    model.add("a", &[])?;
    expect(model.add("a", &[]), "a name that no other unit has");
    expect(model.weights(1, Pass::Forward).map(drop), "unit is 1, expected below 1");
    expect(model.reduce(0), "after `gradients`");
    model.gradients(0)?;
    model.reduce(0)
}

#[test]
fn weights_of_other_bits_are_found() {
    let results = launch::all_threads(LIMIT, 3, |communicator| {
        let of_rank = if communicator.rank() == 2 { -0.0f32 } else { 0.0 };
        let mut tensors = [vector(&[1.0f32, 2.0, 3.0]), vector(&[of_rank])];
        data::expect_same_bits(&communicator, &tensors[..1])?;
        let different = data::expect_same_bits(&communicator, &tensors);
        data::replicate(&communicator, &mut tensors)?;
        data::expect_same_bits(&communicator, &tensors)?;
        communicator.all_reduce(&mut tensors[0], Reduction::Max)?;
        different
    });
    for result in results.expect("there are ranks") {
        let error = result.expect_err("one differs").to_string();
        assert!(error.contains("others on rank 2"), "{error}");
    }
}

#[test]
fn averages_start_in_one_order_whatever_the_order_of_the_passes() -> Result<()> {
    // A bucket for each gradient. The ranks have theirs ready in orders of their own.
    let options = GradientOptions { bucket_bytes: 1, ..GradientOptions::default() };
    let means = launch::threads_within(LIMIT, 3, |communicator| {
        let shapes: [&[usize]; 3] = [&[2], &[2], &[2]];
        let mut gradients = Gradients::new(&communicator, &Device::cpu(), &shapes, options)?;
        for _ in 0..2 {
            for turn in 0..3 {
                let index = (turn + communicator.rank()) % 3;
                gradients.tensor(index)?.write_slice(&[(10 * index + communicator.rank()) as f32; 2])?;
                gradients.ready(index)?;
            }
            gradients.finish()?;
        }
        (0..3).map(|index| Ok(gradients.tensor(index)?.to_vec()?[0])).collect::<Result<Vec<f32>>>()
    })?;
    assert_eq!(means, vec![vec![1.0, 11.0, 21.0]; 3]);
    Ok(())
}
