//! Trains a network to read handwritten digits on several ranks, and beside that on one.
//!
//! `cargo run --release -p warpsmith-parallel --example train_digits_parallel -- --ranks N [--device cpu|emulator|cuda]
//! [--epochs N] [--sharded] [--svg FILE]`
//!
//! Ranks are threads of this process, or the processes that `cargo xtask spawn N --` or another launcher starts. Each step's
//! images are split over the ranks, whose gradients are averaged while the backward pass goes on. With `--sharded` weights and
//! moments are split, too. The losses on several ranks have to be those on one, all ranks have to have weights of the same
//! bits, and after all epochs the network has to read digits that it was not trained with.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::ProgressBar;
use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::{self, Activation};
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::data::{self, GradientOptions, Gradients, Pass, Sharded};
use warpsmith_parallel::ranges::even_range;
use warpsmith_parallel::{Communicator, Launch, NcclOptions, Reduction, launch};

use digits::{BATCH, Digits, LEARNING_RATE, Network, count_correct, draw, for_batches, learning_rate};

#[allow(dead_code, unused_imports, reason = "the example on one device uses what this one does not")]
#[path = "../../host/examples/train_digits/digits.rs"]
mod digits;

/// Part of the images that were not trained with and have to be right after all epochs.
const LEAST_ACCURACY: f64 = 0.97;
/// How far the mean losses of the first and of the last steps on several ranks may be from those on one, relative to the
/// largest loss. Sums in another order differ in their last bits, and training makes that more.
const MOST_APART: [f32; 2] = [1e-5, 5e-2];
/// Steps whose mean loss is compared.
const COMPARED: usize = 10;
/// How long a rank waits for the others.
const LIMIT: Duration = Duration::from_secs(120);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Train a network on handwritten digits, on several ranks.
#[derive(Parser)]
struct Arguments {
    /// How many ranks, where no launcher says.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Where: `cpu`, `emulator`, or `cuda` for a GPU of each rank.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How often each image is used.
    #[arg(long, default_value_t = 30)]
    epochs: usize,
    /// Steps, in place of epochs.
    #[arg(long)]
    steps: Option<usize>,
    /// What the first weights and the order of the images follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Split weights, gradients and moments over the ranks.
    #[arg(long)]
    sharded: bool,
    /// Draw the losses into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What became of training.
struct Report {
    losses: Vec<f32>,
    correct: usize,
    seconds: f64,
}

fn run(arguments: &Arguments) -> Result<bool> {
    if std::env::var_os("RANK").is_some() {
        let launch = Launch::from_environment()?;
        let communicator = Communicator::connect(&launch, LIMIT)?;
        return rank(arguments, communicator, launch.local_rank);
    }
    let holds = launch::threads_within(LIMIT, arguments.ranks, |communicator| {
        let local_rank = communicator.rank();
        let holds = rank(arguments, communicator, local_rank);
        // Errors of this example's own become those of a rank.
        holds.map_err(|error| match error.downcast::<warpsmith_parallel::Error>() {
            Ok(error) => *error,
            Err(error) => as_device_error(&*error).into(),
        })
    })?;
    Ok(holds.into_iter().all(|holds| holds))
}

/// Trains as one of the ranks. Rank 0 trains alone, too, and compares.
fn rank(arguments: &Arguments, host: Communicator, local_rank: usize) -> Result<bool> {
    let device: Device = match arguments.device.as_str() {
        "cuda" => Device::cuda(local_rank)?,
        other => other.parse()?,
    };
    let communicator = match arguments.device.as_str() {
        "cuda" => Communicator::nccl(&host, &device, NcclOptions::default())?,
        _ => host,
    };
    let digits = Digits::load()?;
    let steps = arguments.steps.unwrap_or(arguments.epochs.max(1) * (digits.train.nrows() / BATCH));
    let report = train(arguments, &communicator, &device, &digits, steps)?;
    if communicator.rank() > 0 {
        return Ok(true);
    }
    let size = communicator.size();
    drop(communicator);
    let alone = Communicator::local(1, LIMIT)?.remove(0);
    let one = train(arguments, &alone, &device, &digits, steps)?;
    for (ranks, report) in [(size, &report), (1, &one)] {
        println!(
            "{ranks} × {device}: {steps} steps, loss {:.3} to {:.4}, {}/{} right, {:.2} s",
            mean(&report.losses[..1]),
            mean(&report.losses[steps.saturating_sub(COMPARED)..]),
            report.correct,
            digits.test.nrows(),
            report.seconds,
        );
    }
    if let Some(path) = &arguments.svg {
        let name = format!("{size} ranks");
        draw(path, &[("1 rank", one.losses.clone()), (&name, report.losses.clone())])?;
    }
    let accuracy = report.correct as f64 / digits.test.nrows() as f64;
    let is_whole = arguments.steps.is_none() && arguments.epochs >= 30;
    if is_whole && accuracy < LEAST_ACCURACY {
        eprintln!("expected at least {:.0} % right", 100.0 * LEAST_ACCURACY);
        return Ok(false);
    }
    Ok(agree(&report.losses, &one.losses))
}

fn mean(numbers: &[f32]) -> f32 {
    numbers.iter().sum::<f32>() / numbers.len().max(1) as f32
}

/// Whether the losses are those on one rank.
fn agree(several: &[f32], one: &[f32]) -> bool {
    let largest = one.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let count = COMPARED.min(one.len());
    let ends = [
        [&several[..1.min(count)], &one[..1.min(count)]],
        [&several[several.len() - count..], &one[one.len() - count..]],
    ];
    let mut holds = true;
    for ([several, one], most) in ends.into_iter().zip(MOST_APART) {
        let apart = (mean(several) - mean(one)).abs() / largest;
        if apart.is_nan() || apart > most {
            eprintln!("losses are {apart:e} of the largest from those on one rank, expected {most:e}");
            holds = false;
        }
    }
    holds
}

/// A network whose weights each rank has, or some of them.
enum Model {
    Replica { network: Box<Network<f32>>, gradients: Gradients },
    Sharded { model: Sharded<f32> },
}

fn activation(layer: usize) -> Activation {
    if layer < 2 { Activation::Relu } else { Activation::None }
}

impl Model {
    fn new(
        communicator: &Communicator,
        device: &Device,
        seed: u64,
        is_sharded: bool,
    ) -> Result<(Self, AdamW)> {
        let network = Network::<f32>::new(device, seed)?;
        if is_sharded {
            let mut model = Sharded::new(communicator, device)?;
            for (index, layer) in network.layers.iter().enumerate() {
                let weights: Vec<_> = std::iter::once(layer.weight()).chain(layer.bias()).collect();
                model.add(format!("layers.{index}"), &weights)?;
            }
            let options = AdamWOptions { learning_rate: LEARNING_RATE, ..AdamWOptions::default() };
            let mut optimizer = AdamW::new(device, options)?;
            model.add_to(&mut optimizer)?;
            return Ok((Self::Sharded { model }, optimizer));
        }
        let optimizer = network.optimizer(device)?;
        let shapes: Vec<&[usize]> = network
            .layers
            .iter()
            .flat_map(|layer| [Some(layer.weight().shape()), layer.bias().map(Tensor::shape)])
            .flatten()
            .collect();
        // Three layers have three buckets, so that the averages of two run beside the rest of the backward pass.
        let options = GradientOptions { bucket_bytes: 4096, ..GradientOptions::default() };
        let gradients = Gradients::new(communicator, device, &shapes, options)?;
        Ok((Self::Replica { network: Box::new(network), gradients }, optimizer))
    }

    /// A layer for a pass over it.
    fn layer(&mut self, index: usize, pass: Pass) -> Result<Linear<f32>> {
        match self {
            Self::Replica { network, .. } => Ok(network.layers[index].clone()),
            Self::Sharded { model } => {
                let weights = model.weights(index, pass)?;
                model.release(index)?;
                let [weight, bias] = <[_; 2]>::try_from(weights).map_err(|_| "a layer has two tensors")?;
                Ok(Linear::new(weight, Some(bias), activation(index))?)
            }
        }
    }

    /// The backward pass of a layer, whose gradients are averaged from then on.
    fn backward(&mut self, index: usize, saved: &LinearSaved<f32>, dy: &Tensor<f32>) -> Result<Tensor<f32>> {
        let layer = self.layer(index, Pass::Backward)?;
        let mut dx = Tensor::uninit(dy.device(), saved.x().shape())?;
        let [mut dw, mut db] = match self {
            Self::Replica { gradients, .. } => {
                [gradients.tensor(2 * index)?, gradients.tensor(2 * index + 1)?]
            }
            Self::Sharded { model } => {
                <[_; 2]>::try_from(model.gradients(index)?).map_err(|_| "a layer has two tensors")?
            }
        };
        layer.backward_operation(saved, dy).run_into(LinearGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            db: Some(&mut db),
            ..LinearGradientOutputs::default()
        })?;
        match self {
            Self::Replica { gradients, .. } => {
                gradients.ready(2 * index)?;
                gradients.ready(2 * index + 1)?;
            }
            Self::Sharded { model } => model.reduce(index)?,
        }
        Ok(dx)
    }

    fn step(&mut self, optimizer: &mut AdamW) -> Result<()> {
        match self {
            Self::Replica { gradients, .. } => {
                gradients.finish()?;
                let tensors = gradients.tensors()?;
                optimizer.step(&tensors.iter().map(Into::into).collect::<Vec<_>>())?;
            }
            Self::Sharded { model } => {
                model.clip(1.0)?;
                model.step(optimizer)?;
            }
        }
        Ok(())
    }

    /// A forward pass of this rank's images, and a backward pass. Returns this rank's mean loss.
    fn pass(&mut self, images: &Tensor<f32>, labels: &Tensor<i64>, weight: f32) -> Result<Tensor<f32>> {
        let (mut y, mut saved) = (images.clone(), Vec::new());
        for index in 0..3 {
            let (next, of_layer) = self.layer(index, Pass::Forward)?.forward_train(&y)?;
            saved.push(of_layer);
            y = next;
        }
        let losses = ops::cross_entropy(&y, labels).run_with_gradient()?;
        // The mean over the ranks is that over all images, also where ranks have more of them than others.
        let columns = losses.gradient.shape()[1];
        let weight = Tensor::from_slice(y.device(), &vec![weight; columns], [columns])?;
        let mut dy = ops::mul(&losses.gradient, &weight).run()?;
        for (index, saved) in saved.iter().enumerate().rev() {
            dy = self.backward(index, saved, &dy)?;
        }
        Ok(losses.loss)
    }
}

fn train(
    arguments: &Arguments,
    communicator: &Communicator,
    device: &Device,
    digits: &Digits,
    steps: usize,
) -> Result<Report> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let rows = even_range(BATCH, size, rank);
    let weight = (rows.len() * size) as f32 / BATCH as f32;
    let (mut model, mut optimizer) = Model::new(communicator, device, arguments.seed, arguments.sharded)?;
    let progress = if rank == 0 { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
    let start = Instant::now();
    let batches = (&digits.train, &digits.labels);
    let losses = for_batches(device, batches, arguments.seed, steps, |images, labels, step| {
        let (images, labels) = (images.slice(0, rows.clone())?, labels.slice(0, rows.clone())?);
        optimizer.set_learning_rate(learning_rate(step, steps))?;
        let loss = model.pass(&images, &labels, weight);
        let loss = loss.and_then(|loss| model.step(&mut optimizer).map(|()| loss));
        progress.inc(1);
        loss.map_err(|error| as_device_error(&*error))
    })?;
    let own = losses.iter().map(|loss| Ok(weight * loss.to_vec()?[0])).collect::<Result<Vec<f32>>>()?;
    let mut losses = Tensor::from_slice(device, &own, [steps])?;
    communicator.all_reduce(&mut losses, Reduction::Mean)?;
    let seconds = start.elapsed().as_secs_f64();
    progress.finish_and_clear();

    let layers = (0..3).map(|index| model.layer(index, Pass::Forward)).collect::<Result<Vec<_>>>()?;
    let weights: Vec<_> = layers.iter().map(|layer| layer.weight().clone()).collect();
    data::expect_same_bits(communicator, &weights)?;
    let mut y = Tensor::from_array(device, &digits.test)?;
    for layer in &layers {
        y = layer.forward(&y)?;
    }
    Ok(Report {
        losses: losses.to_vec()?,
        correct: count_correct(&y.to_vec()?, &digits.test_labels),
        seconds,
    })
}

/// An error of ranks as one that the loop over batches can return.
fn as_device_error(error: &(dyn std::error::Error + 'static)) -> warpsmith::Error {
    warpsmith::Error::Argument {
        operation: "training",
        argument: "step",
        expected: "to be done on all ranks".into(),
        actual: error.to_string(),
    }
}
