//! Trains a network to read handwritten digits, with nothing but this library: forward and backward passes, loss, optimiser.
//!
//! `cargo run --release --example train_digits [-- --device auto|cuda:N|emulator|cpu] [--epochs N] [--seed N] [--svg FILE]`
//!
//! The network is 64 → 256 → 128 → 10 with ReLU between. It is trained on 1437 images of the UCI digits, in f32 and in bf16 with a copy of the weights in f32, and
//! judged by 360 others. Before that its gradients are compared with differences of the loss, which is computed in f64 here. After it some steps are
//! repeated: the same seed must give the same bits. Then the network is frozen, and generated updates of low rank teach it to read the same digits lying on
//! their side.

mod digits;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use half::bf16;
use indicatif::ProgressBar;
use ndarray::Array2;
use warpsmith::layers::{GeneratedUpdate, Linear, UpdatedLinear};
use warpsmith::ops;
use warpsmith::optim::{AdamW, AdamWOptions, Gradient};
use warpsmith::{Device, DeviceKind, Tensor};

use digits::{
    BATCH, Digits, LEARNING_RATE, Network, Random, Result, Trained, Worst, count_correct, draw, exit,
    for_batches, learning_rate, numbers, progress, scale,
};

/// Part of the images that were not trained with and have to be right after all epochs.
const LEAST_ACCURACY: f64 = 0.97;
/// The same of digits that are on their side, read by the frozen network with updates.
const LEAST_ADAPTED: f64 = 0.93;
/// Pixels of a row, and of a column.
const SIDE: usize = 8;
/// The rank of updates.
const RANK: usize = 16;
/// Steps of which bits are compared.
const REPEATED: usize = 12;
/// Numbers of each layer whose gradient is compared with a difference of the loss.
const COMPARED: usize = 40;

/// Train a network on handwritten digits.
#[derive(Parser)]
struct Arguments {
    /// Where it is trained.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How often each image is used. [default: 30, in the emulator 2]
    #[arg(long)]
    epochs: Option<usize>,
    /// What the first weights and the order of the images follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the losses into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<bool> {
    let device: Device = arguments.device.parse()?;
    let is_emulator = device.kind() == DeviceKind::Emulator;
    let whole = arguments.epochs.is_none() && !is_emulator;
    let epochs = arguments.epochs.unwrap_or(if is_emulator { 2 } else { 30 });
    let digits = Digits::load()?;
    let (images, others) = (digits.train.nrows(), digits.test.nrows());
    println!("{images} digits to train with and {others} others, on {device} ({})", device.name());

    let mut holds = compare_gradients(&device, &digits, arguments.seed)?;
    let mut curves = Vec::new();
    for (name, train) in [("f32", train::<f32> as Train), ("bf16", train::<bf16>)] {
        let report = train(&device, &digits, arguments.seed, epochs, name)?;
        let accuracy = report.correct as f64 / others as f64;
        let (first, last) = (report.losses[0], report.losses[report.losses.len() - 1]);
        println!(
            "{name:>4}: {} steps, loss {first:.3} to {last:.4}, {}/{others} right ({:.2} %), {:.2} s",
            report.losses.len(),
            report.correct,
            100.0 * accuracy,
            report.seconds,
        );
        if whole && accuracy < LEAST_ACCURACY {
            eprintln!("{name}: expected at least {:.0} % right", 100.0 * LEAST_ACCURACY);
            holds = false;
        }
        if !report.repeats {
            eprintln!("{name}: {REPEATED} steps from the same seed gave other bits");
            holds = false;
        }
        curves.push((name, report.losses));
    }
    if holds {
        println!("{REPEATED} steps from the same seed gave the same bits, in both types");
    }
    let steps = epochs.max(1) * (images / BATCH);
    let (network, _) =
        train_steps::<f32>(&device, &digits, arguments.seed, steps, steps, &ProgressBar::hidden())?;
    holds &= adapt(&device, &digits, &network, arguments.seed, steps, whole)?;
    if let Some(path) = &arguments.svg {
        draw(path, &curves)?;
    }
    Ok(holds)
}

/// Trains for so many steps of `last`, and returns what the losses are of.
fn train_steps<T: Trained>(
    device: &Device,
    digits: &Digits,
    seed: u64,
    steps: usize,
    last: usize,
    progress: &ProgressBar,
) -> Result<(Network<T>, Vec<Tensor<f32>>)> {
    let network = Network::<T>::new(device, seed)?;
    let mut optimizer = network.optimizer(device)?;
    let losses =
        for_batches(device, (&digits.train, &digits.labels), seed, steps, |images, labels, step| {
            let (loss, gradients) = network.gradients(images, labels)?;
            optimizer.set_learning_rate(learning_rate(step, last))?;
            let gradients: Vec<Gradient<'_>> =
                gradients.iter().flat_map(|of| [(&of.dw).into(), (&of.db).into()]).collect();
            optimizer.step(&gradients)?;
            progress.inc(1);
            Ok(loss)
        })?;
    Ok((network, losses))
}

/// The images turned by a quarter.
fn turned(images: &Array2<f32>) -> Array2<f32> {
    Array2::from_shape_fn(images.dim(), |(image, pixel)| {
        let (row, column) = (pixel / SIDE, pixel % SIDE);
        images[[image, (SIDE - 1 - column) * SIDE + row]]
    })
}

/// An update of a layer: V, codes that all images have, and U.
struct Update {
    v: Tensor<f32>,
    codes: Tensor<f32>,
    u: Tensor<f32>,
}

impl Update {
    /// It changes nothing: U is 0.
    fn new(layer: &Linear<f32>, random: &mut Random) -> warpsmith::Result<Self> {
        let &[rows, columns] = layer.weight().shape() else { unreachable!("a weight has two axes") };
        let limit = (3.0 / columns as f64).sqrt();
        let v: Vec<f32> = (0..columns * RANK).map(|_| ((2.0 * random.unit() - 1.0) * limit) as f32).collect();
        let device = layer.weight().device();
        Ok(Self {
            v: Tensor::from_slice(device, &v, [columns, RANK])?,
            codes: Tensor::from_slice(device, &[1.0; RANK], [RANK])?,
            u: Tensor::zeros(device, [RANK, rows])?,
        })
    }

    /// The layer with the update as it is now: what is attached is a copy in the kernels' layout.
    fn on(&self, layer: &Linear<f32>) -> warpsmith::Result<UpdatedLinear<f32>> {
        layer.attach([GeneratedUpdate::new(self.v.clone(), self.u.clone(), RANK as f32)?])
    }
}

/// Teaches a frozen network to read digits that are on their side, by updates of its layers. Whether enough of them are right then.
fn adapt(
    device: &Device,
    digits: &Digits,
    network: &Network<f32>,
    seed: u64,
    steps: usize,
    whole: bool,
) -> Result<bool> {
    let (train, test) = (turned(&digits.train), turned(&digits.test));
    let mut random = Random(seed ^ 0x5eed);
    let updates = network.layers.iter().map(|layer| Update::new(layer, &mut random));
    let updates = updates.collect::<warpsmith::Result<Vec<Update>>>()?;
    let options = AdamWOptions { learning_rate: LEARNING_RATE, ..AdamWOptions::default() };
    let mut optimizer = AdamW::new(device, options)?;
    for (index, update) in updates.iter().enumerate() {
        for (name, tensor) in [("v", &update.v), ("codes", &update.codes), ("u", &update.u)] {
            optimizer.add(format!("updates.{index}.{name}"), tensor)?;
        }
    }
    let layers = || {
        let both = network.layers.iter().zip(&updates);
        both.map(|(layer, update)| update.on(layer)).collect::<warpsmith::Result<Vec<_>>>()
    };
    let correct = || -> Result<usize> {
        let mut y = Tensor::from_array(device, &test)?;
        for (layer, update) in layers()?.iter().zip(&updates) {
            y = layer.forward(&y, &[&update.codes])?;
        }
        Ok(count_correct(&y.to_vec()?, &digits.test_labels))
    };
    let (before, start) = (correct()?, Instant::now());
    for_batches(device, (&train, &digits.labels), seed, steps, |images, labels, step| {
        let layers = layers()?;
        let (mut y, mut saved) = (images.clone(), Vec::new());
        for (layer, update) in layers.iter().zip(&updates) {
            let (next, of_layer) = layer.forward_train(&y, &[&update.codes])?;
            saved.push(of_layer);
            y = next;
        }
        let losses = ops::cross_entropy(&y, labels).run_with_gradient()?;
        let (mut dy, mut gradients) = (losses.gradient, Vec::new());
        for (layer, saved) in layers.iter().zip(&saved).rev() {
            let of_layer = layer.backward(saved, &dy)?;
            dy = of_layer.dx.clone();
            gradients.push(of_layer);
        }
        optimizer.set_learning_rate(learning_rate(step, steps))?;
        let gradients: Vec<Gradient<'_>> = gradients
            .iter()
            .rev()
            .flat_map(|of| &of.updates)
            .flat_map(|of| [(&of.dv).into(), (&of.dcodes).into(), (&of.du).into()])
            .collect();
        optimizer.step(&gradients)?;
        Ok(losses.loss)
    })?;
    let (after, others) = (correct()?, digits.test.nrows());
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "on their side: {before}/{others} right, with updates of rank {RANK} of the frozen network {after}/{others} ({:.2} %), {seconds:.2} s",
        100.0 * after as f64 / others as f64
    );
    let holds = !whole || after as f64 >= LEAST_ADAPTED * others as f64;
    if !holds {
        eprintln!("expected at least {:.0} % right", 100.0 * LEAST_ADAPTED);
    }
    Ok(holds)
}

/// What became of a network.
struct Report {
    losses: Vec<f32>,
    correct: usize,
    seconds: f64,
    /// Whether some steps gave the same bits again.
    repeats: bool,
}

type Train = fn(&Device, &Digits, u64, usize, &str) -> Result<Report>;

fn train<T: Trained>(
    device: &Device,
    digits: &Digits,
    seed: u64,
    epochs: usize,
    name: &str,
) -> Result<Report> {
    let steps = epochs.max(1) * (digits.train.nrows() / BATCH);
    let progress = progress(steps, name)?;
    let start = Instant::now();
    let (network, losses) = train_steps::<T>(device, digits, seed, steps, steps, &progress)?;
    let losses = numbers(&losses)?;
    let seconds = start.elapsed().as_secs_f64();
    progress.finish_and_clear();

    let images = digits.test.mapv(|pixel| T::round(pixel.into()));
    let logits = network.forward(&Tensor::from_array(device, &images)?)?;
    let logits = ops::cast::<f32>(&logits).run()?.to_vec()?;
    let correct = count_correct(&logits, &digits.test_labels);

    let again = || -> Result<Vec<Vec<T>>> {
        let (network, _) =
            train_steps::<T>(device, digits, seed, REPEATED.min(steps), steps, &ProgressBar::hidden())?;
        Ok(network.layers.iter().map(|layer| layer.weight().to_vec()).collect::<warpsmith::Result<_>>()?)
    };
    let repeats = again()? == again()?;
    Ok(Report { losses, correct, seconds, repeats })
}

/// Compares gradients with differences of a loss in f64: of some numbers of each layer, those that have the largest gradients among them.
fn compare_gradients(device: &Device, digits: &Digits, seed: u64) -> Result<bool> {
    let network = Network::<f32>::new(device, seed)?;
    let (images, labels) =
        (digits.train.slice(ndarray::s![..BATCH, ..]), digits.labels.slice(ndarray::s![..BATCH]));
    let (_, gradients) =
        network.gradients(&Tensor::from_array(device, &images)?, &Tensor::from_array(device, &labels)?)?;
    let weights = network.layers.iter().map(|layer| {
        let weight = layer.weight().to_vec()?.into_iter().map(f64::from).collect();
        let shape = (layer.weight().shape()[0], layer.weight().shape()[1]);
        Ok(Array2::from_shape_vec(shape, weight)?)
    });
    let weights = weights.collect::<Result<Vec<Array2<f64>>>>()?;
    let images = images.mapv(f64::from);
    let mut random = Random(seed);
    let mut worst = Worst::default();
    for (index, gradients) in gradients.iter().enumerate() {
        let found = gradients.dw.to_vec()?;
        let scale = scale(&found);
        for _ in 0..COMPARED {
            let at = (random.next() % found.len() as u64) as usize;
            let loss_at = |by: f64| {
                let mut weights = weights.clone();
                let columns = weights[index].ncols();
                weights[index][[at / columns, at % columns]] += by;
                loss(&weights, &images, labels.as_slice().unwrap_or(&[]))
            };
            let by = 1e-5;
            let difference = (loss_at(by) - loss_at(-by)) / (2.0 * by);
            worst.compare(f64::from(found[at]), difference, scale);
        }
    }
    println!(
        "{} gradients of weights are within {:.1e} of differences of the loss, relative to the largest of their layer",
        COMPARED * gradients.len(),
        worst.0,
    );
    Ok(worst.holds())
}

/// The mean loss in f64, with biases of 0.
fn loss(weights: &[Array2<f64>], images: &Array2<f64>, labels: &[i64]) -> f64 {
    let mut y = images.dot(&weights[0].t());
    for weight in &weights[1..] {
        y = y.mapv(|z| z.max(0.0)).dot(&weight.t());
    }
    let losses = y.rows().into_iter().zip(labels).map(|(logits, &label)| {
        let largest = logits.fold(f64::NEG_INFINITY, |largest, &logit| largest.max(logit));
        let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        largest + sum.ln() - logits[label as usize]
    });
    losses.sum::<f64>() / labels.len() as f64
}
