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
use ndarray::{Array1, Array2, Array3, ArrayD, ArrayView1, Axis, Ix1, Ix2, Ix3, s};
use serde::Deserialize;
use tokenizers::{Tokenizer, TruncationParams};
use warpsmith::layers::{Attention, AttentionConfig, AttentionNames, Linear};
use warpsmith::ops::Activation;
use warpsmith::{Device, Tensor, Weights};

const LAYERS: usize = 6;
const HEADS: usize = 12;
/// Columns of a token and of an embedding.
const COLUMNS: usize = 384;
/// What layer norms add to the variance.
const EPSILON: f64 = 1e-12;
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
    /// Where linear layers and attention run.
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

/// The encoder. Embedding lookup, layer norms and pooling are no operations of the library, so tokens are copied to the host and back for them.
struct Model {
    words: Array2<f32>,
    positions: Array2<f32>,
    /// That of the first sentence of a pair, as which a single one counts.
    token_type: Array1<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Model {
    fn load(weights: &Weights, device: &Device) -> Result<Self> {
        let token_types = table(weights, "embeddings.token_type_embeddings.weight")?;
        Ok(Self {
            words: table(weights, "embeddings.word_embeddings.weight")?,
            positions: table(weights, "embeddings.position_embeddings.weight")?,
            token_type: row(&token_types, 0, "token type")?.to_owned(),
            norm: LayerNorm::load(weights, "embeddings.LayerNorm")?,
            layers: (0..LAYERS).map(|layer| Layer::load(weights, layer, device)).collect::<Result<_>>()?,
        })
    }

    /// The embeddings `[B, columns]` of sentences with these tokens.
    fn embed(&self, device: &Device, sentences: &[Vec<u32>]) -> Result<Array2<f32>> {
        let lengths: Vec<u32> = sentences.iter().map(|ids| ids.len() as u32).collect();
        let lengths = Tensor::from_slice(device, &lengths, [sentences.len()])?;
        let mut x = self.look_up(sentences)?;
        for layer in &self.layers {
            x = layer.forward(device, x, &lengths)?;
        }
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
    fn look_up(&self, sentences: &[Vec<u32>]) -> Result<Array3<f32>> {
        let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
        // No sentence reads the padding behind its end, so zeros will do.
        let mut x = Array3::zeros([sentences.len(), longest, COLUMNS]);
        for (mut x, ids) in x.outer_iter_mut().zip(sentences) {
            for (position, (mut x, &id)) in x.rows_mut().into_iter().zip(ids).enumerate() {
                let word = row(&self.words, id as usize, "word")?;
                let position = row(&self.positions, position, "position")?;
                x.assign(&(&word + &position + &self.token_type));
            }
        }
        self.norm.apply(&mut x);
        Ok(x)
    }
}

/// One layer of the encoder: attention and an MLP, a layer norm behind each.
struct Layer {
    attention: Attention<f32>,
    attention_norm: LayerNorm,
    up: Linear<f32>,
    down: Linear<f32>,
    mlp_norm: LayerNorm,
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
        let attention = Attention::from_safetensors(config, weights, &prefix_of_attention, names, device)?;
        if attention.output().weight().shape()[0] != COLUMNS {
            return Err(format!("{prefix_of_attention} gives other than {COLUMNS} columns").into());
        }
        Ok(Self {
            attention,
            attention_norm: LayerNorm::load(weights, &format!("{prefix_of_attention}.output.LayerNorm"))?,
            up: linear("intermediate", Activation::GeluErf)?,
            down: linear("output", Activation::None)?,
            mlp_norm: LayerNorm::load(weights, &format!("{prefix}.output.LayerNorm"))?,
        })
    }

    fn forward(&self, device: &Device, x: Array3<f32>, lengths: &Tensor<u32>) -> Result<Array3<f32>> {
        let tokens = Tensor::from_array(device, &x)?;
        let attended = self.attention.operation(&tokens).lengths(lengths).run()?;
        let mut x = x + download(&attended)?;
        self.attention_norm.apply(&mut x);

        let tokens = Tensor::from_array(device, &x)?;
        let hidden = self.up.forward(&tokens)?;
        let mut x = download(&self.down.operation(&hidden).residual(&tokens, 1.0).run()?)?;
        self.mlp_norm.apply(&mut x);
        Ok(x)
    }
}

/// Scales each token to mean 0 and variance 1, and then by learned weights.
struct LayerNorm {
    weight: Array1<f32>,
    bias: Array1<f32>,
}

impl LayerNorm {
    fn load(weights: &Weights, prefix: &str) -> Result<Self> {
        let vector = |name: &str| -> Result<Array1<f32>> {
            let name = format!("{prefix}.{name}");
            Ok(expect_columns(weights.array(&name)?, &name)?.into_dimensionality::<Ix1>()?)
        };
        Ok(Self { weight: vector("weight")?, bias: vector("bias")? })
    }

    fn apply(&self, tokens: &mut Array3<f32>) {
        for mut token in tokens.rows_mut() {
            let count = token.len() as f64;
            let mean = token.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
            let variance = token.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
            let scale = (variance + EPSILON).sqrt().recip();
            for ((x, weight), bias) in token.iter_mut().zip(&self.weight).zip(&self.bias) {
                *x = ((f64::from(*x) - mean) * scale) as f32 * weight + bias;
            }
        }
    }
}

/// A table of vectors, one in each row.
fn table(weights: &Weights, name: &str) -> Result<Array2<f32>> {
    Ok(expect_columns(weights.array(name)?, name)?.into_dimensionality::<Ix2>()?)
}

fn expect_columns(array: ArrayD<f32>, name: &str) -> Result<ArrayD<f32>> {
    match array.shape().last() {
        Some(&COLUMNS) => Ok(array),
        _ => Err(format!("`{name}` has shape {:?}, expected {COLUMNS} columns", array.shape()).into()),
    }
}

fn row<'a>(table: &'a Array2<f32>, index: usize, name: &str) -> Result<ArrayView1<'a, f32>> {
    if index < table.nrows() {
        return Ok(table.row(index));
    }
    Err(format!("there is no {name} {index}, but {} of them", table.nrows()).into())
}

fn download(tensor: &Tensor<f32>) -> Result<Array3<f32>> {
    Ok(tensor.to_array()?.into_dimensionality::<Ix3>()?)
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
