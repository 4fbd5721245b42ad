//! Trains a PEER layer on this repository's own documents and sources: tables of which each step moves the rows that its tokens have used, and no others.
//!
//! `cargo run --release --example train_peer [-- --device auto|cuda:N|emulator|cpu] [--dtype f32|bf16] [--steps N] [--sub-keys N] [--seed N] [--svg FILE]`
//!
//! A byte is predicted from the eight before it. Each of them has a row in a table for its distance; the rows side by side are the token. `y = norm(x + peer(x))`
//! gives logits by a linear layer. Gradients of the table and of the experts are rows of those in use. Experts have one second moment for each of their vectors.
//!
//! In the end the model is judged by files that were not trained with, experts that no token has used must be as they were, and some steps are repeated: they must give
//! the same bits.

#[allow(dead_code, reason = "`train_text` takes windows with labels of their shape")]
#[path = "train_text/text.rs"]
mod text;
#[allow(dead_code, reason = "the other examples compare gradients")]
#[path = "training/mod.rs"]
mod training;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use half::bf16;
use indicatif::ProgressBar;
use warpsmith::layers::{
    Embedding, Linear, Parameters, Peer, PeerConfig, PeerGradients, PeerInput, PeerRouter, RmsNorm,
};
use warpsmith::ops::cross_entropy::LogitElement;
use warpsmith::ops::elementwise::ElementwiseElement;
use warpsmith::ops::embedding::EmbeddingElement;
use warpsmith::ops::linear::{LinearGradientElement, LinearGradients, LinearInput};
use warpsmith::ops::norm::{NormElement, NormGradients};
use warpsmith::ops::{self, Activation, SparseRows};
use warpsmith::optim::{AdamW, AdamWOptions, ParameterOptions, SecondMoment};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, DeviceKind, Tensor};

use text::{Text, Windows};
use training::{Random, Result, draw, exit, numbers, progress, rate};

/// Bytes that a token is made of, and how many bytes there are.
const CONTEXT: usize = 8;
const BYTES: usize = 256;
/// Columns of a head's query, heads, and experts of each.
const QUERY: usize = 32;
const HEADS: usize = 4;
const EXPERTS_PER_HEAD: usize = 8;
/// The highest learning rate, and the steps that it rises for.
const LEARNING_RATE: f64 = 4e-3;
const WARMUP: u64 = 20;
/// What part of the entropy of single bytes the loss of a whole run may be.
const MOST_OF_ENTROPY: f64 = 0.75;
/// Windows that were not trained with and judge the model; bytes of a window.
const JUDGED: usize = 32;
const WINDOW: usize = 64;
/// Steps of which bits are compared.
const REPEATED: usize = 4;

/// Train a PEER layer on this repository's text.
#[derive(Parser)]
struct Arguments {
    /// Where it is trained.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The type of tokens, weights and experts.
    #[arg(long, value_enum, default_value_t = Types::F32)]
    dtype: Types,
    /// How many steps. [default: 400, in the emulator 4]
    #[arg(long)]
    steps: Option<usize>,
    /// Windows of a step. [default: 8, in the emulator 1]
    #[arg(long)]
    batch: Option<usize>,
    /// Sub-keys of a half; of n there are n² experts. [default: 512 on a GPU, 64 on the CPU, 16 in the emulator]
    #[arg(long)]
    sub_keys: Option<usize>,
    /// Columns of a byte's row. [default: 32, in the emulator 8]
    #[arg(long)]
    columns: Option<usize>,
    /// What the first weights and the order of the text follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder whose Markdown and Rust files are the text. [default: this repository]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Draw the losses into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Types {
    F32,
    Bf16,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

/// What is trained, and how.
struct Plan<'a> {
    device: Device,
    arguments: &'a Arguments,
    text: Text,
    columns: usize,
    sub_keys: usize,
    batch: usize,
    steps: usize,
}

fn run(arguments: &Arguments) -> Result<bool> {
    let device: Device = arguments.device.parse()?;
    let (sub_keys, columns, batch, steps) = match device.kind() {
        DeviceKind::Cuda(_) => (512, 32, 8, 400),
        DeviceKind::Cpu => (64, 32, 8, 400),
        _ => (16, 8, 1, 4),
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = arguments.text.as_deref().unwrap_or(&repository);
    let text = Text::load(folder)?;
    text.expect(folder, WINDOW)?;
    let plan = Plan {
        device,
        arguments,
        text,
        columns: CONTEXT * arguments.columns.unwrap_or(columns),
        sub_keys: arguments.sub_keys.unwrap_or(sub_keys),
        batch: arguments.batch.unwrap_or(batch).max(1),
        steps: arguments.steps.unwrap_or(steps),
    };
    match arguments.dtype {
        Types::F32 => train::<f32>(&plan),
        Types::Bf16 => train::<bf16>(&plan),
    }
}

/// Element types that the model can be trained in.
trait Trained:
    PeerInput
    + LinearInput
    + LinearGradientElement
    + NormElement
    + EmbeddingElement
    + ElementwiseElement
    + LogitElement
    + FloatElement
{
}

impl<T> Trained for T where
    T: PeerInput
        + LinearInput
        + LinearGradientElement
        + NormElement
        + EmbeddingElement
        + ElementwiseElement
        + LogitElement
        + FloatElement
{
}

/// A predictor of bytes.
struct Model<T: Trained> {
    device: Device,
    columns: usize,
    embedding: Embedding<T>,
    peer: Peer<T>,
    norm: RmsNorm<T>,
    output: Linear<T>,
}

/// The gradients of a model.
struct Gradients<T: Trained> {
    embedding: SparseRows<f32>,
    peer: PeerGradients<T>,
    norm: NormGradients<T>,
    output: LinearGradients<T, T>,
}

impl<T: Trained> Model<T> {
    /// First weights that follow from the seed.
    fn new(plan: &Plan<'_>) -> Result<Self> {
        let &Plan { ref device, columns, sub_keys, .. } = plan;
        let mut random = Random(plan.arguments.seed);
        let mut drawn = |count: usize, limit: f64| -> Vec<f32> {
            (0..count).map(|_| (limit * (2.0 * random.unit() - 1.0)) as f32).collect()
        };
        let tensor = |numbers: Vec<f32>, shape: &[usize]| {
            let elements: Vec<T> = numbers.into_iter().map(|number| T::round(number.into())).collect();
            Tensor::from_slice(device, &elements, shape)
        };
        let unit = (3.0 / columns as f64).sqrt();
        let width = columns / CONTEXT;
        let embedding =
            Embedding::new(tensor(drawn(CONTEXT * BYTES * width, 1.0), &[CONTEXT * BYTES, width])?)?;
        let query = tensor(drawn(HEADS * QUERY * columns, unit), &[HEADS * QUERY, columns])?;
        let mut keys = || tensor(drawn(sub_keys * QUERY / 2, 1.0), &[sub_keys, QUERY / 2]);
        let router = PeerRouter::new(query, [keys()?, keys()?]);
        let config = PeerConfig::default()
            .input(columns)
            .output(columns)
            .sub_keys(sub_keys)
            .heads(HEADS)
            .experts_per_head(EXPERTS_PER_HEAD)
            .query(QUERY);
        let peer = Peer::new(device, &config, router, |range| {
            Ok([drawn(range.len() * columns, unit), Vec::new(), drawn(range.len() * columns, unit)])
        })?;
        let norm = RmsNorm::new(tensor(vec![1.0; columns], &[columns])?)?;
        let output = Linear::new(
            tensor(drawn(BYTES * columns, 0.1 * unit), &[BYTES, columns])?,
            None,
            Activation::None,
        )?;
        Ok(Self { device: device.clone(), columns, embedding, peer, norm, output })
    }

    fn optimizer(&self) -> Result<AdamW> {
        let options = AdamWOptions { betas: [0.9, 0.95], weight_decay: 0.01, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(&self.device, options)?;
        optimizer.add("embedding", self.embedding.table())?;
        for (name, weights) in self.peer.parameters("peer") {
            // The large one.
            let second_moment =
                if weights.tensor().is_none() { SecondMoment::PerRow } else { SecondMoment::PerElement };
            optimizer.add_with(name, weights, ParameterOptions { second_moment, ..Default::default() })?;
        }
        for (name, weights) in
            self.norm.parameters("norm").into_iter().chain(self.output.parameters("output"))
        {
            optimizer.add(name, weights)?;
        }
        optimizer.set_max_norm(Some(1.0))?;
        Ok(optimizer)
    }

    /// The rows of the table that tokens are made of, `[tokens, CONTEXT]`: the byte itself, the one before it, and so on.
    fn ids(&self, windows: &Windows) -> warpsmith::Result<Tensor<u32>> {
        let length = windows.shape[1];
        let of_window = |bytes: &[u32]| -> Vec<u32> {
            let of_token = |at: usize| {
                let byte = move |distance: usize| at.checked_sub(distance).map_or(0, |at| bytes[at]);
                (0..CONTEXT).map(move |distance| (distance * BYTES) as u32 + byte(distance))
            };
            (0..length).flat_map(of_token).collect()
        };
        let ids: Vec<u32> = windows.ids.chunks_exact(length).flat_map(of_window).collect();
        Tensor::from_slice(&self.device, &ids, [windows.ids.len(), CONTEXT])
    }

    /// The mean loss of windows.
    fn loss(&self, windows: &Windows) -> warpsmith::Result<Tensor<f32>> {
        let x = self.embedding.forward(&self.ids(windows)?)?.reshape([windows.ids.len(), self.columns])?;
        let sum = ops::add(&x, &self.peer.forward(&x)?).run()?;
        let logits = self.output.forward(&self.norm.forward(&sum)?)?;
        let labels = Tensor::from_slice(&self.device, &windows.labels, [windows.labels.len()])?;
        ops::cross_entropy(&logits, &labels).run()
    }

    /// The mean loss of windows, its gradients, and the experts that were used.
    fn gradients(&self, windows: &Windows) -> warpsmith::Result<(Tensor<f32>, Gradients<T>, Tensor<u32>)> {
        let tokens = windows.ids.len();
        let (rows, of_embedding) = self.embedding.forward_train(&self.ids(windows)?)?;
        let x = rows.reshape([tokens, self.columns])?;
        let (y, of_peer) = self.peer.forward_train(&x)?;
        let (normed, of_norm) = self.norm.forward_train(&ops::add(&x, &y).run()?)?;
        let (logits, of_output) = self.output.forward_train(&normed)?;
        let labels = Tensor::from_slice(&self.device, &windows.labels, [tokens])?;
        let loss = ops::cross_entropy(&logits, &labels).run_with_gradient()?;

        let output = self.output.backward(&of_output, &loss.gradient)?;
        let norm = self.norm.backward(&of_norm, &output.dx)?;
        let peer = self.peer.backward(&of_peer, &norm.dx)?;
        let dx = ops::add(&norm.dx, &peer.dx).run()?;
        let embedding = self.embedding.backward(&of_embedding, &dx.reshape(rows.shape())?)?;
        let used = of_peer.routing().ids.clone();
        Ok((loss.loss, Gradients { embedding, peer, norm, output }, used))
    }

    /// Moves the weights.
    fn step(&self, optimizer: &mut AdamW, gradients: &Gradients<T>) -> warpsmith::Result<()> {
        let mut all = vec![(&gradients.embedding).into()];
        all.extend(self.peer.gradients(&gradients.peer));
        all.extend(self.norm.gradients(&gradients.norm));
        all.extend(self.output.gradients(&gradients.output));
        optimizer.step(&all)
    }

    /// The rows of all experts.
    fn experts(&self) -> Result<Vec<u8>> {
        let table = self.peer.experts().table().ok_or("the experts are not on the device")?;
        Ok(table.read_rows(0..table.count())?)
    }
}

/// What came of a training.
struct Trace<T: Trained> {
    model: Model<T>,
    losses: Vec<f32>,
    /// The experts of each step.
    used: Vec<Tensor<u32>>,
}

fn steps<T: Trained>(plan: &Plan<'_>, steps: usize, progress: &ProgressBar) -> Result<Trace<T>> {
    let model = Model::<T>::new(plan)?;
    let mut optimizer = model.optimizer()?;
    let (mut losses, mut used) = (Vec::new(), Vec::new());
    for step in 0..steps as u64 {
        let windows = Windows::of_step(&plan.text.train, plan.arguments.seed, step, [plan.batch, WINDOW]);
        let (loss, gradients, of_step) = model.gradients(&windows)?;
        optimizer.set_learning_rate(rate(LEARNING_RATE, WARMUP, step, plan.steps))?;
        model.step(&mut optimizer, &gradients)?;
        losses.push(loss);
        used.push(of_step);
        progress.inc(1);
    }
    Ok(Trace { model, losses: numbers(&losses)?, used })
}

/// Trains and judges. Whether all is as it should be.
fn train<T: Trained>(plan: &Plan<'_>) -> Result<bool> {
    let Plan { device, arguments, text, .. } = plan;
    let first = Model::<T>::new(plan)?;
    let count = first.peer.config().expert_count();
    println!(
        "{count} experts of {} numbers, {} bytes of {} files to train with, on {device} ({})",
        2 * plan.columns,
        text.train.len(),
        text.files[0],
        device.name()
    );
    let before = first.experts()?;
    drop(first);
    let bar = progress(plan.steps, &T::DTYPE.to_string())?;
    let start = Instant::now();
    let Trace { model, losses, used } = steps::<T>(plan, plan.steps, &bar)?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();

    let judged = Windows::spread(&text.held_out, [JUDGED.min(4 * plan.batch), WINDOW]);
    let (loss, entropy) = (f64::from(model.loss(&judged)?.to_vec()?[0]), text.unigram_entropy());
    println!(
        "{}: loss {:.3} to {:.3}, {loss:.3} on held-out text, whose single bytes have {entropy:.3}; {} steps in {seconds:.1} s",
        T::DTYPE,
        losses.first().copied().unwrap_or(f32::NAN),
        losses.last().copied().unwrap_or(f32::NAN),
        plan.steps,
    );
    let mut holds = true;
    let is_whole = arguments.steps.is_none() && device.kind() != DeviceKind::Emulator;
    if is_whole && (loss.is_nan() || loss > MOST_OF_ENTROPY * entropy) {
        eprintln!("expected at most {:.3} on held-out text", MOST_OF_ENTROPY * entropy);
        holds = false;
    }
    let mut all = BTreeSet::new();
    for ids in &used {
        all.extend(ids.to_vec()?);
    }
    let (after, row) = (model.experts()?, before.len() / count);
    let mut moved = 0;
    for (id, (before, after)) in before.chunks_exact(row).zip(after.chunks_exact(row)).enumerate() {
        let is_used = all.contains(&(id as u32));
        moved += usize::from(before != after);
        if before != after && !is_used {
            eprintln!("expert {id} has moved, though no token has used it");
            holds = false;
        }
    }
    println!("{} of {count} experts were used, and {moved} have moved: no others", all.len());
    holds &= repeats::<T>(plan)?;
    if let Some(path) = &arguments.svg {
        draw(path, &[(&T::DTYPE.to_string(), losses)])?;
    }
    Ok(holds)
}

/// Whether the same steps give the same bits.
fn repeats<T: Trained>(plan: &Plan<'_>) -> Result<bool> {
    let hidden = ProgressBar::hidden();
    let count = REPEATED.min(plan.steps);
    let [first, second] = [steps::<T>(plan, count, &hidden)?, steps::<T>(plan, count, &hidden)?];
    let holds = first.losses == second.losses && first.model.experts()? == second.model.experts()?;
    if holds {
        println!("{count} steps again gave the same bits");
    } else {
        eprintln!("{count} steps from the same seed gave other bits");
    }
    Ok(holds)
}
