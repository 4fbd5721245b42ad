//! Trains a transformer of bytes on this repository's own documents and sources, with nothing but this library.
//!
//! `cargo run --release --example train_text [-- --device auto|cuda:N|emulator|cpu] [--dtype f32|bf16|both] [--steps N] [--seed N]
//! [--svg FILE] [--save FOLDER] [--resume FOLDER]`
//!
//! Embedding, blocks of norm, causal attention with rotary positions and a gated perceptron, a norm, and logits by the embedding's table. Bytes are predicted from those
//! before them, in f32 and in bf16 with a copy of the weights in f32, and judged by files that were not trained with. Before that gradients are compared with
//! differences of a loss in f64. After it some steps are repeated, with the state saved and loaded half way: they must give the same bits. On devices other than the CPU
//! losses and gradients are compared with the CPU's. In the end the model writes.

mod model;
mod reference;
mod text;
#[path = "../training/mod.rs"]
mod training;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use half::bf16;
use indicatif::ProgressBar;
use ndarray::Array2;
use warpsmith::ops::rows::AnyTensor;
use warpsmith::optim::AdamW;
use warpsmith::{Device, DeviceKind, Tensor};

use model::{LEARNING_RATE, Model, Sizes, Trained, WARMUP};
use text::{Text, Windows};
use training::{Random, Result, Worst, draw, exit, numbers, progress, rate, scale};

/// What part of the entropy of single bytes the loss of a whole run may be.
const MOST_OF_ENTROPY: f64 = 0.75;
/// Windows that were not trained with and judge the model.
const JUDGED: usize = 32;
/// Steps of which bits are compared.
const REPEATED: usize = 6;
/// Numbers of each tensor whose gradient is compared with a difference of the loss.
const COMPARED: usize = 12;
/// What the model's own text follows.
const PROMPT: &str = "/// The ";

/// Train a transformer on this repository's text.
#[derive(Parser)]
struct Arguments {
    /// Where it is trained.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The type of weights.
    #[arg(long, value_enum, default_value_t = Types::Both)]
    dtype: Types,
    /// How many steps. [default: 400, in the emulator 4]
    #[arg(long)]
    steps: Option<usize>,
    /// Windows of a step. [default: 8, in the emulator 2]
    #[arg(long)]
    batch: Option<usize>,
    #[command(flatten)]
    sizes: Sizes,
    /// What the first weights, the order of the text and the bytes that the model writes follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder whose Markdown and Rust files are the text. [default: this repository]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Bytes that the model writes. [default: 300, in the emulator 20]
    #[arg(long)]
    write: Option<usize>,
    /// How freely: 0 always takes the most probable byte.
    #[arg(long, default_value_t = 0.7)]
    temperature: f64,
    /// Draw the losses into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write weights and the optimiser's state into this folder, in the end.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Begin with what `--save` has written there, and train on to the step `--steps`.
    #[arg(long)]
    resume: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Types {
    F32,
    Bf16,
    Both,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

/// What is trained, and how.
struct Plan<'a> {
    device: Device,
    arguments: &'a Arguments,
    text: Text,
    sizes: Sizes,
    batch: usize,
    steps: usize,
}

fn run(arguments: &Arguments) -> Result<bool> {
    let device: Device = arguments.device.parse()?;
    let is_emulator = device.kind() == DeviceKind::Emulator;
    let sizes = arguments.sizes.or(if is_emulator { Sizes::SMALL } else { Sizes::WHOLE });
    sizes.check()?;
    if !(arguments.temperature >= 0.0 && arguments.temperature.is_finite()) {
        let actual = arguments.temperature;
        return Err(format!("--temperature: expected a finite number of at least 0, found {actual}").into());
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = arguments.text.as_deref().unwrap_or(&repository);
    let text = Text::load(folder)?;
    text.expect(folder, sizes.context.max(Sizes::TINY.context))?;
    let steps = arguments.steps.unwrap_or(if is_emulator { 4 } else { 400 });
    let batch = arguments.batch.unwrap_or(if is_emulator { 2 } else { 8 }).max(1);
    println!(
        "{} bytes of {} files to train with and {} bytes of {} others, on {device} ({})",
        text.train.len(),
        text.files[0],
        text.held_out.len(),
        text.files[1],
        device.name()
    );
    let plan = Plan { device, arguments, text, sizes, batch, steps };
    let mut holds = compare_gradients(&plan)?;
    let mut curves = Vec::new();
    let types = [("f32", Types::F32, train::<f32> as Train), ("bf16", Types::Bf16, train::<bf16>)];
    for (name, of, train) in types {
        if arguments.dtype == of || arguments.dtype == Types::Both {
            let (losses, held) = train(&plan, name)?;
            holds &= held;
            curves.push((name, losses));
        }
    }
    if let Some(path) = &arguments.svg {
        draw(path, &curves)?;
    }
    Ok(holds)
}

/// A model and its optimiser, and how many steps they have had.
struct State<T: Trained> {
    model: Model<T>,
    optimizer: AdamW,
    step: usize,
}

impl<T: Trained> State<T> {
    fn new(plan: &Plan<'_>, sizes: Sizes) -> Result<Self> {
        let model = Model::new(&plan.device, sizes, plan.arguments.seed)?;
        let optimizer = model.optimizer(&plan.device)?;
        Ok(Self { model, optimizer, step: 0 })
    }

    /// Trains up to a step, and returns what the losses are of.
    fn train(&mut self, plan: &Plan<'_>, to: usize, progress: &ProgressBar) -> Result<Vec<Tensor<f32>>> {
        let mut losses = Vec::new();
        while self.step < to {
            let (step, shape) = (self.step as u64, [plan.batch, self.model.sizes.context]);
            let windows = Windows::of_step(&plan.text.train, plan.arguments.seed, step, shape);
            let (loss, gradients) = self.model.gradients(&windows.on(&plan.device)?)?;
            self.optimizer.set_learning_rate(rate(LEARNING_RATE, WARMUP, step, plan.steps))?;
            let gradients: Vec<_> = self.model.list(&gradients).into_iter().map(Into::into).collect();
            self.optimizer.step(&gradients)?;
            losses.push(loss);
            self.step += 1;
            progress.inc(1);
        }
        Ok(losses)
    }

    fn paths(folder: &Path) -> [PathBuf; 2] {
        ["model", "optimizer"].map(|part| folder.join(format!("{part}-{}.safetensors", T::DTYPE)))
    }

    fn save(&self, folder: &Path) -> Result<()> {
        let [model, optimizer] = Self::paths(folder);
        self.model.save(&model)?;
        Ok(self.optimizer.save(optimizer)?)
    }

    fn load(plan: &Plan<'_>, sizes: Sizes, folder: &Path) -> Result<Self> {
        let [of_model, of_optimizer] = Self::paths(folder);
        let model = Model::load(&plan.device, sizes, &of_model)?;
        let mut optimizer = model.optimizer(&plan.device)?;
        optimizer.load(of_optimizer)?;
        let step = optimizer.steps()?.first().map_or(0, |&step| step as usize);
        Ok(Self { model, optimizer, step })
    }
}

type Train = fn(&Plan<'_>, &str) -> Result<(Vec<f32>, bool)>;

/// Trains, judges and lets the model write. The losses, and whether all is as it should be.
fn train<T: Trained>(plan: &Plan<'_>, name: &str) -> Result<(Vec<f32>, bool)> {
    let &Plan { ref device, arguments, ref text, sizes, steps, .. } = plan;
    let mut state = match &arguments.resume {
        Some(folder) => State::<T>::load(plan, sizes, folder)?,
        None => State::<T>::new(plan, sizes)?,
    };
    let mut holds = true;
    if device.kind() != DeviceKind::Cpu && T::DTYPE == warpsmith::DType::F32 {
        holds &= compare_devices(plan, &state.model, "of the first weights")?;
    }
    let first = state.step;
    let progress = progress(steps.saturating_sub(first), name)?;
    let start = Instant::now();
    let losses = numbers(&state.train(plan, steps, &progress)?)?;
    let seconds = start.elapsed().as_secs_f64();
    progress.finish_and_clear();

    let judged = Windows::spread(&text.held_out, [JUDGED, sizes.context]);
    let loss = f64::from(state.model.loss(&judged.on(device)?)?.to_vec()?[0]);
    let entropy = text.unigram_entropy();
    println!(
        "{name:>4}: {} numbers, steps {first} to {steps}, loss {:.3} to {:.3}, {loss:.3} on held-out text, whose single bytes have {entropy:.3}; {seconds:.1} s",
        state.model.len(),
        losses.first().copied().unwrap_or(f32::NAN),
        losses.last().copied().unwrap_or(f32::NAN),
    );
    let is_whole = arguments.steps.is_none() && device.kind() != DeviceKind::Emulator;
    if is_whole && (loss.is_nan() || loss > MOST_OF_ENTROPY * entropy) {
        eprintln!("{name}: expected at most {:.3} on held-out text", MOST_OF_ENTROPY * entropy);
        holds = false;
    }
    if device.kind() != DeviceKind::Cpu && T::DTYPE == warpsmith::DType::F32 {
        holds &= compare_devices(plan, &state.model, "of the trained weights")?;
    }
    holds &= repeats::<T>(plan, name)?;
    let count = arguments.write.unwrap_or(if device.kind() == DeviceKind::Emulator { 20 } else { 300 });
    if count > 0 {
        let written = state.model.write(PROMPT.as_bytes(), count, arguments.temperature, arguments.seed)?;
        println!("{name:>4} writes: {}", String::from_utf8_lossy(&written).escape_debug());
    }
    if let Some(folder) = &arguments.save {
        std::fs::create_dir_all(folder)?;
        state.save(folder)?;
    }
    Ok((losses, holds))
}

/// Whether the same steps give the same bits, and so with the state saved and loaded half way.
fn repeats<T: Trained>(plan: &Plan<'_>, name: &str) -> Result<bool> {
    let steps = REPEATED.min(plan.steps);
    let bits = |state: &State<T>| -> Result<Vec<Vec<f32>>> {
        state.model.parameters().into_iter().map(|(_, weights)| widened(weights)).collect()
    };
    let hidden = ProgressBar::hidden();
    let mut whole = State::<T>::new(plan, plan.sizes)?;
    whole.train(plan, steps, &hidden)?;
    let mut halves = State::<T>::new(plan, plan.sizes)?;
    halves.train(plan, steps / 2, &hidden)?;
    let folder = tempfile::tempdir()?;
    halves.save(folder.path())?;
    drop(halves);
    let mut halves = State::<T>::load(plan, plan.sizes, folder.path())?;
    if halves.step != steps / 2 {
        eprintln!("{name}: expected {} steps in the file, found {}", steps / 2, halves.step);
        return Ok(false);
    }
    halves.train(plan, steps, &hidden)?;
    let holds = bits(&whole)? == bits(&halves)?;
    if holds {
        println!("{name:>4}: {steps} steps gave the same bits with the state saved and loaded half way");
    } else {
        eprintln!(
            "{name}: {steps} steps from the same seed, with the state saved and loaded half way, gave other bits"
        );
    }
    Ok(holds)
}

fn widened(weights: AnyTensor<'_>) -> Result<Vec<f32>> {
    Ok(match weights {
        AnyTensor::F16(tensor) => tensor.to_vec()?.into_iter().map(f32::from).collect(),
        AnyTensor::Bf16(tensor) => tensor.to_vec()?.into_iter().map(f32::from).collect(),
        AnyTensor::F32(tensor) => tensor.to_vec()?,
    })
}

/// Compares loss and gradients of a model with those of the same weights on the CPU.
fn compare_devices<T: Trained>(plan: &Plan<'_>, model: &Model<T>, which: &str) -> Result<bool> {
    let windows = Windows::of_step(
        &plan.text.train,
        plan.arguments.seed,
        plan.steps as u64,
        [plan.batch, plan.sizes.context],
    );
    let cpu = Device::cpu();
    let on_cpu = model.copy(&cpu)?;
    let (loss, gradients) = model.gradients(&windows.on(&plan.device)?)?;
    let (expected_loss, expected) = on_cpu.gradients(&windows.on(&cpu)?)?;
    let (loss, expected_loss) = (f64::from(loss.to_vec()?[0]), f64::from(expected_loss.to_vec()?[0]));
    let mut worst = Worst::default();
    worst.compare(loss, expected_loss, expected_loss);
    for (found, expected) in model.list(&gradients).into_iter().zip(on_cpu.list(&expected)) {
        let (found, expected) = (widened(found)?, widened(expected)?);
        let scale = scale(&expected);
        for (&found, &expected) in found.iter().zip(&expected) {
            worst.compare(found.into(), expected.into(), scale);
        }
    }
    println!(
        "loss and gradients {which} are within {:.1e} of the CPU's, relative to the largest of their tensor",
        worst.0
    );
    Ok(worst.holds())
}

/// Compares gradients of a tiny model with differences of a loss in f64: of some numbers of each tensor.
fn compare_gradients(plan: &Plan<'_>) -> Result<bool> {
    let (sizes, seed) = (Sizes::TINY, plan.arguments.seed);
    let model = Model::<f32>::new(&plan.device, sizes, seed)?;
    let windows = Windows::of_step(&plan.text.train, seed, 0, [2, sizes.context]);
    let (_, gradients) = model.gradients(&windows.on(&plan.device)?)?;
    let mut weights = reference::Numbers::new();
    let mut names = Vec::new();
    for (name, tensor) in model.parameters() {
        let columns = tensor.shape().last().copied().unwrap_or(1);
        let numbers: Vec<f64> = widened(tensor)?.into_iter().map(f64::from).collect();
        weights.insert(name.clone(), Array2::from_shape_vec((numbers.len() / columns, columns), numbers)?);
        names.push(name);
    }
    let mut random = Random(seed);
    let mut worst = Worst::default();
    for (name, gradient) in names.iter().zip(model.list(&gradients)) {
        let found = widened(gradient)?;
        let scale = scale(&found);
        for _ in 0..COMPARED {
            let at = (random.next() % found.len() as u64) as usize;
            let loss_at = |by: f64| {
                let mut moved = weights.clone();
                let of_name = moved.get_mut(name).and_then(Array2::as_slice_mut).ok_or("no such weights")?;
                of_name[at] += by;
                Ok::<f64, &str>(reference::loss(&moved, sizes, &windows))
            };
            let by = 1e-5;
            let difference = (loss_at(by)? - loss_at(-by)?) / (2.0 * by);
            worst.compare(found[at].into(), difference, scale);
        }
    }
    println!(
        "{} gradients of a model of {} numbers are within {:.1e} of differences of the loss, relative to the largest of their tensor",
        COMPARED * names.len(),
        model.len(),
        worst.0,
    );
    Ok(worst.holds())
}
