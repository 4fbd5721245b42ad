//! The model: a transformer of bytes, its gradients, and what it writes.

use std::path::Path;

use clap::Args;
use warpsmith::layers::{
    Attention, AttentionConfig, BlockGradients, Embedding, KvCache, Linear, Mlp, Parameters, RmsNorm,
    TransformerBlock, TransformerInput,
};
use warpsmith::ops::cross_entropy::LogitElement;
use warpsmith::ops::embedding::EmbeddingElement;
use warpsmith::ops::norm::NormGradients;
use warpsmith::ops::rows::AnyTensor;
use warpsmith::ops::{self, Activation, Pairing, RotaryTable};
use warpsmith::optim::{AdamW, AdamWOptions, ParameterOptions};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, Tensor, Weights};

use crate::training::{Random, Result};

/// How many bytes there are.
pub(crate) const BYTES: usize = 256;
/// The base of the angles that queries and keys are turned by.
pub(crate) const ROTARY_BASE: f64 = 10_000.0;
/// ε of the norms.
pub(crate) const EPSILON: f32 = 1e-5;
/// Bounds of the first numbers of the table, which gives logits, too.
const EMBEDDING_LIMIT: f64 = 0.07;
/// The highest learning rate.
pub(crate) const LEARNING_RATE: f64 = 3e-3;
/// Steps that it rises for.
pub(crate) const WARMUP: u64 = 20;
/// What part of matrices, times the learning rate, each step takes off. Norms do not decay.
const WEIGHT_DECAY: f64 = 0.1;
/// The largest norm of all gradients.
const MAX_NORM: f32 = 1.0;

/// Element types that the model can be trained in.
pub(crate) trait Trained: TransformerInput + EmbeddingElement + LogitElement + FloatElement {}

impl<T: TransformerInput + EmbeddingElement + LogitElement + FloatElement> Trained for T {}

/// Sizes of a model.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Columns of a byte's row. [default: 64, in the emulator 32]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) columns: usize,
    /// Heads of the attention. On GPUs f32 has gradients for heads of at most 64 columns. [default: 2]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) heads: usize,
    /// Blocks. [default: 2, in the emulator 1]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) blocks: usize,
    /// Hidden numbers of a perceptron. [default: 160, in the emulator 64]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) hidden: usize,
    /// Bytes of a window. [default: 64, in the emulator 16]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) context: usize,
}

impl Sizes {
    pub(crate) const WHOLE: Self = Self { columns: 64, heads: 2, blocks: 2, hidden: 160, context: 64 };
    pub(crate) const SMALL: Self = Self { columns: 32, heads: 2, blocks: 1, hidden: 64, context: 16 };
    /// What a loss in f64 is computed of.
    pub(crate) const TINY: Self = Self { columns: 16, heads: 2, blocks: 2, hidden: 24, context: 8 };

    /// With others where there is none.
    pub(crate) fn or(self, other: Self) -> Self {
        let or = |size: usize, other: usize| if size == 0 { other } else { size };
        Self {
            columns: or(self.columns, other.columns),
            heads: or(self.heads, other.heads),
            blocks: or(self.blocks, other.blocks),
            hidden: or(self.hidden, other.hidden),
            context: or(self.context, other.context),
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        if self.columns.is_multiple_of(2 * self.heads) {
            return Ok(());
        }
        let Self { columns, heads, .. } = self;
        Err(format!("--columns: expected a multiple of twice the {heads} heads, found {columns}").into())
    }
}

/// The gradients of a model.
pub(crate) struct Gradients<T: Trained> {
    table: Tensor<f32>,
    blocks: Vec<BlockGradients<T>>,
    norm: NormGradients<T>,
}

/// A transformer of bytes, whose table of rows gives the logits, too.
pub(crate) struct Model<T: Trained> {
    pub(crate) sizes: Sizes,
    embedding: Embedding<T>,
    blocks: Vec<TransformerBlock<T>>,
    norm: RmsNorm<T>,
    output: Linear<T>,
}

impl<T: Trained> Model<T> {
    /// Weights as `weight` gives them for a name and a shape.
    fn with(
        device: &Device,
        sizes: Sizes,
        mut weight: impl FnMut(&str, &[usize]) -> warpsmith::Result<Tensor<T>>,
    ) -> warpsmith::Result<Self> {
        let Sizes { columns, heads, hidden, context, .. } = sizes;
        let table = RotaryTable::new(device, ROTARY_BASE, columns / heads, context)?;
        let embedding = Embedding::new(weight("embedding.weight", &[BYTES, columns])?)?;
        let mut blocks = Vec::new();
        for block in 0..sizes.blocks {
            let mut of =
                |name: &str, shape: &[usize]| weight(&format!("blocks.{block}.{name}.weight"), shape);
            let linear = |weight| Linear::new(weight, None, Activation::None);
            let input_norm = RmsNorm::new(of("input_norm", &[columns])?)?.with_epsilon(EPSILON);
            let attention = Attention::fused(
                AttentionConfig::new(heads).causal(),
                linear(of("attention.qkv_proj", &[3 * columns, columns])?)?,
                linear(of("attention.o_proj", &[columns, columns])?)?,
            )?;
            let attention = attention.with_rotary(table.clone(), Pairing::Halves)?;
            let mlp_norm = RmsNorm::new(of("mlp_norm", &[columns])?)?.with_epsilon(EPSILON);
            let mlp = Mlp::gated_fused(
                linear(of("mlp.gate_up_proj", &[2 * hidden, columns])?)?,
                linear(of("mlp.down_proj", &[columns, hidden])?)?,
                Activation::Silu,
            )?;
            blocks.push(TransformerBlock::new(input_norm, attention, mlp_norm, mlp)?);
        }
        let norm = RmsNorm::new(weight("norm.weight", &[columns])?)?.with_epsilon(EPSILON);
        let output = embedding.tied_output()?;
        Ok(Self { sizes, embedding, blocks, norm, output })
    }

    /// Random weights: what is added to rows is smaller the more blocks there are.
    pub(crate) fn new(device: &Device, sizes: Sizes, seed: u64) -> warpsmith::Result<Self> {
        let mut random = Random(seed);
        let added = 1.0 / (2.0 * sizes.blocks.max(1) as f64).sqrt();
        Self::with(device, sizes, |name, shape| {
            let limit = match *shape {
                [_, _] if name.starts_with("embedding") => EMBEDDING_LIMIT,
                [_, columns] => {
                    let is_added = name.contains("o_proj") || name.contains("down_proj");
                    (3.0 / columns as f64).sqrt() * if is_added { added } else { 1.0 }
                }
                _ => return Tensor::from_slice(device, &vec![T::round(1.0); shape.iter().product()], shape),
            };
            let count = shape.iter().product();
            let numbers: Vec<T> = (0..count).map(|_| T::round((2.0 * random.unit() - 1.0) * limit)).collect();
            Tensor::from_slice(device, &numbers, shape)
        })
    }

    /// The weights of a file that [`save`](Self::save) has written.
    pub(crate) fn load(device: &Device, sizes: Sizes, path: &Path) -> Result<Self> {
        let file = Weights::load(path)?;
        Ok(Self::with(device, sizes, |name, shape| {
            let tensor = file.tensor(name, device)?;
            if tensor.shape() == shape {
                return Ok(tensor);
            }
            Err(warpsmith::Error::Weights {
                source_name: path.display().to_string(),
                tensor: name.into(),
                expected: format!("shape {shape:?}, as the sizes give"),
                actual: format!("it has {:?}", tensor.shape()),
            })
        })?)
    }

    /// A copy on another device.
    pub(crate) fn copy(&self, device: &Device) -> Result<Self> {
        let weights = self.parameters().into_iter().map(|(_, weights)| elements::<T>(weights));
        let mut weights = weights.collect::<Result<Vec<_>>>()?.into_iter();
        Ok(Self::with(device, self.sizes, |_, shape| {
            Tensor::from_slice(device, &weights.next().unwrap_or_default(), shape)
        })?)
    }

    /// Writes the weights into a safetensors file.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let all = self.parameters().into_iter().map(|(name, weights)| {
            let bytes = bytemuck::cast_slice(&elements::<T>(weights)?).to_vec();
            Ok((name, weights.shape().to_vec(), bytes))
        });
        let all = all.collect::<Result<Vec<_>>>()?;
        let dtype = match T::DTYPE {
            warpsmith::DType::F32 => safetensors::Dtype::F32,
            warpsmith::DType::Bf16 => safetensors::Dtype::BF16,
            other => return Err(format!("weights to save: expected f32 or bf16, found {other}").into()),
        };
        let views = all.iter().map(|(name, shape, bytes)| {
            Ok((name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        Ok(safetensors::serialize_to_file(views, None, path)?)
    }

    /// The weights by name, all of them tensors.
    pub(crate) fn parameters(&self) -> Vec<(String, AnyTensor<'_>)> {
        let mut all = self.embedding.parameters("embedding");
        for (index, block) in self.blocks.iter().enumerate() {
            all.extend(block.parameters(&format!("blocks.{index}")));
        }
        all.extend(self.norm.parameters("norm"));
        all.into_iter().filter_map(|(name, weights)| Some((name, weights.tensor()?))).collect()
    }

    /// Their gradients, in the same order.
    pub(crate) fn list<'g>(&self, gradients: &'g Gradients<T>) -> Vec<AnyTensor<'g>> {
        let mut all = self.embedding.gradients(&gradients.table);
        for (block, gradients) in self.blocks.iter().zip(&gradients.blocks) {
            all.extend(block.gradients(gradients));
        }
        all.extend(self.norm.gradients(&gradients.norm));
        all.into_iter().filter_map(|gradient| gradient.tensor()).collect()
    }

    /// How many numbers there are to train.
    pub(crate) fn len(&self) -> usize {
        self.parameters().iter().map(|(_, weights)| weights.shape().iter().product::<usize>()).sum()
    }

    /// The mean loss of windows `[B, S]`.
    pub(crate) fn loss(&self, [ids, labels]: &[Tensor<u32>; 2]) -> warpsmith::Result<Tensor<f32>> {
        let mut x = self.embedding.forward(ids)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        ops::cross_entropy(&self.output.forward(&self.norm.forward(&x)?)?, labels).run()
    }

    /// The mean loss of windows, and the gradients of all weights.
    pub(crate) fn gradients(
        &self,
        [ids, labels]: &[Tensor<u32>; 2],
    ) -> warpsmith::Result<(Tensor<f32>, Gradients<T>)> {
        let (mut x, of_ids) = self.embedding.forward_train(ids)?;
        let mut saved = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let (y, of_block) = block.forward_train(&x)?;
            saved.push(of_block);
            x = y;
        }
        let (normed, of_norm) = self.norm.forward_train(&x)?;
        let (logits, of_output) = self.output.forward_train(&normed)?;
        let losses = ops::cross_entropy(&logits, labels).run_with_gradient()?;

        let output = self.output.backward(&of_output, &losses.gradient)?;
        let norm = self.norm.backward(&of_norm, &output.dx)?;
        let mut dx = norm.dx.clone();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (block, saved) in self.blocks.iter().zip(&saved).rev() {
            let gradients = block.backward(saved, &dx)?;
            dx = gradients.dx().clone();
            blocks.push(gradients);
        }
        blocks.reverse();
        // The table has two uses, and one gradient.
        let mut table = output.dw;
        self.embedding.accumulate(&of_ids, &dx, &mut table)?;
        Ok((losses.loss, Gradients { table, blocks, norm }))
    }

    /// An optimiser of all weights.
    pub(crate) fn optimizer(&self, device: &Device) -> warpsmith::Result<AdamW> {
        let decaying = AdamWOptions {
            learning_rate: LEARNING_RATE,
            betas: [0.9, 0.99],
            weight_decay: WEIGHT_DECAY,
            ..AdamWOptions::default()
        };
        let mut optimizer = AdamW::new(device, decaying)?;
        let others = optimizer.add_group(AdamWOptions { weight_decay: 0.0, ..decaying })?;
        for (name, weights) in self.parameters() {
            let options = match weights.shape() {
                [_, _] => ParameterOptions::default(),
                _ => ParameterOptions { group: others, ..ParameterOptions::default() },
            };
            optimizer.add_with(name, weights, options)?;
        }
        optimizer.set_max_norm(Some(MAX_NORM))?;
        Ok(optimizer)
    }

    /// The logits of the byte after `bytes`, which follow those that the caches have.
    fn next(&self, bytes: &[u8], caches: &mut [KvCache<T>]) -> Result<Vec<f32>> {
        let ids: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
        let ids = Tensor::from_slice(self.embedding.table().device(), &ids, [1, ids.len()])?;
        let mut x = self.embedding.forward(&ids)?;
        for (block, cache) in self.blocks.iter().zip(caches) {
            x = block.forward_with_cache(&x, cache)?;
        }
        let last = x.slice(1, bytes.len() - 1..bytes.len())?;
        let logits = self.output.forward(&self.norm.forward(&last)?)?;
        Ok(ops::cast::<f32>(&logits).run()?.to_vec()?)
    }

    /// So many bytes that follow a prompt. Each is drawn from the model's probabilities, with logits over `temperature`; at 0 it is the most probable one.
    pub(crate) fn write(&self, prompt: &[u8], count: usize, temperature: f64, seed: u64) -> Result<Vec<u8>> {
        let context = self.sizes.context;
        let caches = self.blocks.iter().map(|block| block.new_cache(1, context));
        let mut caches = caches.collect::<warpsmith::Result<Vec<_>>>()?;
        let mut random = Random(seed);
        let mut text = prompt.to_vec();
        let (mut cached, mut fed) = (0, text.len().saturating_sub(context));
        for _ in 0..count {
            if cached + (text.len() - fed) > context {
                // The caches are full: they begin again with the later half of what they had.
                for cache in &mut caches {
                    cache.reset()?;
                }
                (cached, fed) = (0, text.len() - context.div_ceil(2));
            }
            let logits = self.next(&text[fed..], &mut caches)?;
            (cached, fed) = (cached + text.len() - fed, text.len());
            text.push(choose(&logits, temperature, &mut random));
        }
        Ok(text)
    }
}

/// The elements of weights that are of type `T`, as all of a model are.
fn elements<T: Trained>(weights: AnyTensor<'_>) -> Result<Vec<T>> {
    let numbers = match weights {
        AnyTensor::F16(tensor) => tensor.to_vec()?.into_iter().map(f64::from).collect::<Vec<_>>(),
        AnyTensor::Bf16(tensor) => tensor.to_vec()?.into_iter().map(f64::from).collect(),
        AnyTensor::F32(tensor) => tensor.to_vec()?.into_iter().map(f64::from).collect(),
    };
    Ok(numbers.into_iter().map(T::round).collect())
}

/// A byte, drawn as its logit says.
fn choose(logits: &[f32], temperature: f64, random: &mut Random) -> u8 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if temperature == 0.0 {
        return logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u8;
    }
    let weights: Vec<f64> =
        logits.iter().map(|&logit| (f64::from(logit - largest) / temperature).exp()).collect();
    let mut left = random.unit() * weights.iter().sum::<f64>();
    for (byte, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return byte as u8;
        }
    }
    (BYTES - 1) as u8
}
