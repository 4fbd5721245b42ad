//! Embeds sentences with a published model, all-MiniLM-L6-v2, and compares with the embeddings that PyTorch computes.
//!
//! `cargo run --release --example minilm -- --model DIR [--device auto|cuda:N|emulator|cpu] [--expect FILE] [SENTENCES]`
//!
//! The model is a BERT encoder of 6 layers, 384 columns and 12 heads. `host/examples/minilm.py` fetches its weights and its tokenizer.
//! The sentences are one padded batch, in f32. An embedding is the mean over the tokens of a sentence, scaled to length 1.
//!
//! `--expect host/data/minilm/expected.json` compares every number with PyTorch's (`host/data/minilm` says how they were computed).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use ndarray::{Array2, Axis, Ix3, s};
use serde::Deserialize;
use tokenizers::{Tokenizer, TruncationParams};
use warpsmith::layers::{Attention, AttentionConfig, AttentionNames, Embedding, LayerNorm, Linear};
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Tensor, Weights};

const LAYERS: usize = 6;
const HEADS: usize = 12;
/// Columns of a token and of an embedding.
const COLUMNS: usize = 384;
/// What layer norms add to the variance.
const EPSILON: f32 = 1e-12;
/// The most tokens of a sentence, as the model's authors set it; the rest of a longer one is cut off.
const MOST_TOKENS: usize = 256;
/// How far a number of an embedding may be from the expected one.
const MOST_DIFFERENCE: f32 = 1e-4;
/// Numbers of an embedding, and characters of its sentence, that are printed.
const PRINTED_NUMBERS: usize = 6;
const PRINTED_CHARACTERS: usize = 60;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Embed sentences with all-MiniLM-L6-v2.
#[derive(Parser)]
struct Arguments {
    /// The folder with `model.safetensors` and `tokenizer.json`.
    #[arg(long)]
    model: PathBuf,
    /// Where it runs.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Compare with the embeddings in this file, and fail where one is off by more than 1e-4.
    #[arg(long)]
    expect: Option<PathBuf>,
    /// The sentences; by default those of the file to compare with, or three others.
    sentences: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let device: Device = arguments.device.parse()?;
    let expected = arguments.expect.as_deref().map(Expected::load).transpose()?;
    let sentences = sentences(&arguments.sentences, expected.as_ref());
    let tokens = tokenize(&arguments.model.join("tokenizer.json"), &sentences)?;
    let model = Model::load(&Weights::load(arguments.model.join("model.safetensors"))?, &device)?;

    let count: usize = tokens.iter().map(Vec::len).sum();
    println!("sentences: {}, tokens: {count}, on {device} ({})", sentences.len(), device.name());
    let start = Instant::now();
    let embeddings = model.embed(&device, &tokens)?;
    let time = start.elapsed().as_secs_f64();
    for (index, (embedding, sentence)) in embeddings.rows().into_iter().zip(&sentences).enumerate() {
        let numbers: Vec<_> =
            embedding.iter().take(PRINTED_NUMBERS).map(|number| format!("{number:8.5}")).collect();
        let beginning: String = sentence.chars().take(PRINTED_CHARACTERS).collect();
        println!("{index}: {} …  {beginning:?}", numbers.join(" "));
    }
    println!("cosine similarities:");
    // The embeddings have length 1, so that products are cosines.
    for row in embeddings.dot(&embeddings.t()).rows() {
        println!("  {}", row.iter().map(|cosine| format!("{cosine:7.3}")).collect::<String>());
    }
    println!("{:.1} ms, kernels being loaded and the host's part included", time * 1e3);
    match (expected, &arguments.expect) {
        (Some(expected), Some(file)) => expected.compare(file, &sentences, &tokens, &embeddings),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn sentences(given: &[String], expected: Option<&Expected>) -> Vec<String> {
    match expected {
        _ if !given.is_empty() => given.to_vec(),
        Some(expected) => expected.sentences.iter().map(|sentence| sentence.text.clone()).collect(),
        None => {
            ["How do I bake bread?", "A recipe for a loaf", "The bridge is closed"].map(String::from).into()
        }
    }
}

/// The ids of each sentence's tokens, with those that stand for its beginning and its end.
fn tokenize(file: &Path, sentences: &[String]) -> Result<Vec<Vec<u32>>> {
    let named = |error: tokenizers::Error| format!("{}: {error}", file.display());
    let mut tokenizer = Tokenizer::from_file(file).map_err(named)?;
    // The file asks for 128 tokens of every sentence, cut off or padded.
    tokenizer.with_padding(None);
    let truncation = TruncationParams { max_length: MOST_TOKENS, ..Default::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(named)?;
    let mut tokens = Vec::new();
    for sentence in sentences {
        tokens.push(tokenizer.encode(sentence.as_str(), true).map_err(named)?.get_ids().to_vec());
    }
    Ok(tokens)
}

/// The encoder. Pooling is no operation of the library, so tokens are copied to the host for it.
struct Model {
    words: Embedding<f32>,
    positions: Embedding<f32>,
    token_types: Embedding<f32>,
    norm: LayerNorm<f32>,
    layers: Vec<Layer>,
}

impl Model {
    fn load(weights: &Weights, device: &Device) -> Result<Self> {
        let table = |name: &str| -> Result<Embedding<f32>> {
            let name = format!("embeddings.{name}_embeddings");
            let table = Embedding::from_safetensors(weights, &name, device)?;
            expect_columns(table.table(), &name)?;
            Ok(table)
        };
        Ok(Self {
            words: table("word")?,
            positions: table("position")?,
            token_types: table("token_type")?,
            norm: norm(weights, "embeddings.LayerNorm", device)?,
            layers: (0..LAYERS).map(|layer| Layer::load(weights, layer, device)).collect::<Result<_>>()?,
        })
    }

    /// The embeddings `[B, columns]` of sentences with these tokens.
    fn embed(&self, device: &Device, sentences: &[Vec<u32>]) -> Result<Array2<f32>> {
        let lengths: Vec<u32> = sentences.iter().map(|ids| ids.len() as u32).collect();
        let lengths = Tensor::from_slice(device, &lengths, [sentences.len()])?;
        let mut x = self.look_up(device, sentences)?;
        for layer in &self.layers {
            x = layer.forward(&x, &lengths)?;
        }
        let x = x.to_array()?.into_dimensionality::<Ix3>()?;
        let mut embeddings = Array2::zeros([sentences.len(), COLUMNS]);
        for ((x, ids), mut embedding) in x.outer_iter().zip(sentences).zip(embeddings.rows_mut()) {
            let sum = x.slice(s![..ids.len(), ..]).mapv(f64::from).sum_axis(Axis(0));
            // The sum has the direction of the mean.
            let length = sum.dot(&sum).sqrt();
            embedding.assign(&sum.mapv(|sum| (sum / length) as f32));
        }
        Ok(embeddings)
    }

    /// What the first layer reads: `[B, S, columns]`, where S is the length of the longest sentence.
    fn look_up(&self, device: &Device, sentences: &[Vec<u32>]) -> Result<Tensor<f32>> {
        let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
        let words = self.words.table().shape()[0];
        if let Some(id) = sentences.iter().flatten().find(|&&id| id as usize >= words) {
            return Err(format!("there is no word {id}, but {words} of them").into());
        }
        // No sentence reads the padding behind its end, so any word will do.
        let id = |at: usize| sentences[at / longest].get(at % longest).copied().unwrap_or(0);
        let shape = [sentences.len(), longest];
        let count = sentences.len() * longest;
        let ids: Vec<u32> = (0..count).map(id).collect();
        let positions: Vec<u32> = (0..count).map(|at| (at % longest) as u32).collect();
        let words = self.words.forward(&Tensor::from_slice(device, &ids, shape)?)?;
        let positions = self.positions.forward(&Tensor::from_slice(device, &positions, shape)?)?;
        // That of the first sentence of a pair, as which a single one counts.
        let token_type = self.token_types.table().slice(0, 0..1)?.reshape([COLUMNS])?;
        let x = ops::add(&ops::add(&words, &positions).run()?, &token_type).run()?;
        Ok(self.norm.forward(&x)?)
    }
}

/// One layer of the encoder: attention and an MLP, a layer norm behind each.
struct Layer {
    attention: Attention<f32>,
    attention_norm: LayerNorm<f32>,
    up: Linear<f32>,
    down: Linear<f32>,
    mlp_norm: LayerNorm<f32>,
}

impl Layer {
    fn load(weights: &Weights, layer: usize, device: &Device) -> Result<Self> {
        let prefix = format!("encoder.layer.{layer}");
        let names = AttentionNames::Separate {
            q: "self.query",
            k: "self.key",
            v: "self.value",
            output: "output.dense",
        };
        let linear = |name: &str, activation| {
            Linear::from_safetensors(weights, &format!("{prefix}.{name}.dense"), device, activation)
        };
        let config = AttentionConfig::new(HEADS);
        let prefix_of_attention = format!("{prefix}.attention");
        let attention = Attention::from_safetensors(weights, &prefix_of_attention, device, config, names)?;
        if attention.output().weight().shape()[0] != COLUMNS {
            return Err(format!("{prefix_of_attention} gives other than {COLUMNS} columns").into());
        }
        Ok(Self {
            attention,
            attention_norm: norm(weights, &format!("{prefix_of_attention}.output.LayerNorm"), device)?,
            up: linear("intermediate", Activation::GeluErf)?,
            down: linear("output", Activation::None)?,
            mlp_norm: norm(weights, &format!("{prefix}.output.LayerNorm"), device)?,
        })
    }

    fn forward(&self, x: &Tensor<f32>, lengths: &Tensor<u32>) -> Result<Tensor<f32>> {
        let attended = self.attention.operation(x).lengths(lengths).run()?;
        let x = self.attention_norm.operation(&attended).residual(x).run()?;
        let hidden = self.up.forward(&x)?;
        let x = self.down.operation(&hidden).residual(&x, 1.0).run()?;
        Ok(self.mlp_norm.forward(&x)?)
    }
}

fn norm(weights: &Weights, prefix: &str, device: &Device) -> Result<LayerNorm<f32>> {
    let norm = LayerNorm::from_safetensors(weights, prefix, device)?.with_epsilon(EPSILON);
    expect_columns(norm.weight(), prefix)?;
    Ok(norm)
}

fn expect_columns(tensor: &Tensor<f32>, name: &str) -> Result<()> {
    match tensor.shape().last() {
        Some(&COLUMNS) => Ok(()),
        _ => Err(format!("`{name}` has shape {:?}, expected {COLUMNS} columns", tensor.shape()).into()),
    }
}

/// Embeddings that another implementation computed.
#[derive(Deserialize)]
struct Expected {
    computed_by: String,
    sentences: Vec<ExpectedSentence>,
}

#[derive(Deserialize)]
struct ExpectedSentence {
    text: String,
    tokens: usize,
    embedding: Vec<f32>,
}

impl Expected {
    fn load(file: &Path) -> Result<Self> {
        let error = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| error(&e))?;
        let expected: Self = serde_json::from_str(&text).map_err(|e| error(&e))?;
        if expected.sentences.is_empty() {
            return Err(error(&"it has no sentences").into());
        }
        for sentence in &expected.sentences {
            let count = sentence.embedding.len();
            if count != COLUMNS {
                let what =
                    format!("an embedding of {count} numbers for {:?}, expected {COLUMNS}", sentence.text);
                return Err(error(&what).into());
            }
        }
        Ok(expected)
    }

    /// Says how far the embeddings are from these at most, and whether that is near enough.
    fn compare(
        &self,
        file: &Path,
        sentences: &[String],
        tokens: &[Vec<u32>],
        embeddings: &Array2<f32>,
    ) -> Result<ExitCode> {
        let mut largest = 0.0;
        for ((text, ids), embedding) in sentences.iter().zip(tokens).zip(embeddings.rows()) {
            let expected = self.sentences.iter().find(|sentence| sentence.text == *text);
            let expected =
                expected.ok_or_else(|| format!("{} has no embedding of {text:?}", file.display()))?;
            if ids.len() != expected.tokens {
                return Err(format!("{text:?} has {} tokens, expected {}", ids.len(), expected.tokens).into());
            }
            for (ours, theirs) in embedding.iter().zip(&expected.embedding) {
                let difference = (ours - theirs).abs();
                // A NaN must not look like agreement, as it would to `f32::max`.
                if difference.is_nan() || difference > largest {
                    largest = difference;
                }
            }
        }
        println!("within {largest:.1e} of {} ({})", file.display(), self.computed_by);
        if largest <= MOST_DIFFERENCE {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("error: the embeddings are not within {MOST_DIFFERENCE:e} of the expected ones");
        Ok(ExitCode::FAILURE)
    }
}
