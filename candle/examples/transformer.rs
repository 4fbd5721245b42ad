//! A small transformer of candle's, and the same with its linear layers, norms, embedding, attention and loss
//! replaced by warpsmith's.
//!
//! The model is written once, as the macro `model`. The two differ by the `use` line and by the function for
//! attention, which candle has no layer for. Both have the same
//! variables. The program prints the largest differences of the logits and of all gradients to the model in f64,
//! beside a bound, and what a step takes. It fails if warpsmith
//! is beyond the bound.
//!
//! ```sh
//! cargo run --release --example transformer                     # on the CPU
//! cargo run --release --features cuda --example transformer -- --cuda --type bf16
//! ```
//!
//! # The bound
//!
//! A rounded operation gives what an exact one gives of operands that are off a little: relatively by η, one
//! rounding to the type and what the longest sum of products is off by.
//! So the model in f64 is run again with every weight off by ±η, for several drawn signs. The largest change of a
//! number is how sensitive it is. On a path through a block there
//! are up to four roundings for each weight: the product's, a norm's or an activation's, the residual sum's, and
//! that of the gradient. Going back doubles them. So the bound is
//! eight times that change.

use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    vocabulary: usize,
    width: usize,
    heads: usize,
    blocks: usize,
    batch: usize,
    tokens: usize,
}

/// A model `$name` of the layers that the `use` lines name, with a function for causal attention, `[B, S, H, D]`.
macro_rules! model {
    ($name:ident, $attention:path, { $($use:item)* }) => {
        mod $name {
            $($use)*
            use super::{Module, Result, Sizes, Tensor, VarBuilder};

            struct Block {
                norms: [RmsNorm; 2],
                qkv: Linear,
                output: Linear,
                up: Linear,
                down: Linear,
                heads: usize,
            }

            impl Block {
                fn forward(&self, x: &Tensor) -> Result<Tensor> {
                    let (b, s, width) = x.dims3()?;
                    let qkv = self.qkv.forward(&self.norms[0].forward_diff(x)?)?;
                    let qkv = qkv.reshape((b, s, 3 * self.heads, width / self.heads))?;
                    let part = |index: usize| qkv.narrow(2, index * self.heads, self.heads);
                    let heads = $attention(&part(0)?, &part(1)?, &part(2)?)?;
                    let x = (x + self.output.forward(&heads.reshape((b, s, width))?)?)?;
                    let hidden = self.up.forward(&self.norms[1].forward_diff(&x)?)?.gelu()?;
                    x + self.down.forward(&hidden)?
                }
            }

            pub(crate) struct Model {
                table: Embedding,
                blocks: Vec<Block>,
                norm: RmsNorm,
                head: Linear,
            }

            impl Model {
                pub(crate) fn new(sizes: Sizes, vb: VarBuilder) -> Result<Self> {
                    let Sizes { vocabulary, width, heads, .. } = sizes;
                    let block = |index: usize| {
                        let vb = vb.pp(format!("block.{index}"));
                        Ok(Block {
                            norms: [rms_norm(width, 1e-5, vb.pp("norm.0"))?, rms_norm(width, 1e-5, vb.pp("norm.1"))?],
                            qkv: linear_no_bias(width, 3 * width, vb.pp("qkv"))?,
                            output: linear(width, width, vb.pp("output"))?,
                            up: linear(width, 4 * width, vb.pp("up"))?,
                            down: linear(4 * width, width, vb.pp("down"))?,
                            heads,
                        })
                    };
                    Ok(Self {
                        table: embedding(vocabulary, width, vb.pp("table"))?,
                        blocks: (0..sizes.blocks).map(block).collect::<Result<_>>()?,
                        norm: rms_norm(width, 1e-5, vb.pp("norm"))?,
                        head: linear_no_bias(width, vocabulary, vb.pp("head"))?,
                    })
                }

                /// The logits `[tokens, vocabulary]` and the loss.
                pub(crate) fn forward(&self, ids: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
                    let mut x = self.table.forward(ids)?;
                    for block in &self.blocks {
                        x = block.forward(&x)?;
                    }
                    let logits = self.head.forward(&self.norm.forward_diff(&x)?)?.flatten_to(1)?;
                    let loss = cross_entropy(&logits, labels)?;
                    Ok((logits, loss))
                }
            }
        }
    };
}

model!(by_candle, super::candle_attention, {
    use candle_nn::loss::cross_entropy;
    use candle_nn::{Embedding, Linear, RmsNorm, embedding, linear, linear_no_bias, rms_norm};
});
model!(by_warpsmith, super::warpsmith_attention, {
    use warpsmith_candle::nn::loss::cross_entropy;
    use warpsmith_candle::nn::{Embedding, Linear, RmsNorm, embedding, linear, linear_no_bias, rms_norm};
});

fn warpsmith_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    Ok(warpsmith_candle::attention(q, k, v).causal(warpsmith_candle::Alignment::BottomRight).run()?)
}

fn candle_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?);
    let (_, _, tokens, width) = q.dims4()?;
    let scores = (q.matmul(&k.t()?)? * (1.0 / (width as f64).sqrt()))?;
    let future: Vec<f32> = (0..tokens)
        .flat_map(|i| (0..tokens).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    let future = Tensor::from_vec(future, (tokens, tokens), q.device())?.to_dtype(q.dtype())?;
    let weights = candle_nn::ops::softmax(&scores.broadcast_add(&future)?, D::Minus1)?;
    weights.matmul(&v)?.transpose(1, 2)?.contiguous()
}

/// A model of either library.
enum Model {
    Candle(by_candle::Model),
    Warpsmith(by_warpsmith::Model),
}

/// What a step computes.
struct Step {
    logits: Tensor,
    gradients: GradStore,
}

impl Model {
    fn step(&self, (ids, labels): &(Tensor, Tensor)) -> Result<Step> {
        let (logits, loss) = match self {
            Self::Candle(model) => model.forward(ids, labels)?,
            Self::Warpsmith(model) => model.forward(ids, labels)?,
        };
        Ok(Step { logits, gradients: loss.backward()? })
    }
}

/// Variables by their names, in order, and models of them.
struct Weights {
    map: VarMap,
    dtype: DType,
    device: Device,
}

impl Weights {
    fn new(dtype: DType, device: &Device) -> Self {
        Self { map: VarMap::new(), dtype, device: device.clone() }
    }

    fn vb(&self) -> VarBuilder<'_> {
        VarBuilder::from_varmap(&self.map, self.dtype, &self.device)
    }

    fn named(&self) -> Vec<(String, Var)> {
        let all = self.map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut named: Vec<_> = all.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named
    }

    /// The same in f64 on the CPU, each number changed by `change`.
    fn wide(&self, mut change: impl FnMut(f64) -> f64) -> Result<Self> {
        let wide = Self::new(DType::F64, &Device::Cpu);
        for (name, variable) in self.named() {
            let numbers = variable.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
            let numbers: Vec<f64> = numbers.into_iter().map(&mut change).collect();
            let variable = Var::from_tensor(&Tensor::from_vec(numbers, variable.shape(), &Device::Cpu)?)?;
            wide.map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name, variable);
        }
        Ok(wide)
    }
}

/// The logits and all gradients, as numbers: first the logits.
fn numbers(step: &Step, weights: &Weights) -> Result<Vec<(String, Vec<f64>)>> {
    let wide = |x: &Tensor| x.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let mut all = vec![("logits".to_owned(), wide(&step.logits)?)];
    for (name, variable) in weights.named() {
        let gradient = step
            .gradients
            .get(&variable)
            .ok_or_else(|| candle_core::Error::msg(format!("no gradient of {name}")))?;
        all.push((name, wide(gradient)?));
    }
    Ok(all)
}

fn most(a: &[f64], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, off| if off.is_nan() { f64::INFINITY } else { most.max(off) })
}

/// Ids and labels that are the same every time.
fn data(sizes: Sizes, device: &Device) -> Result<(Tensor, Tensor)> {
    let count = sizes.batch * sizes.tokens;
    let ids: Vec<u32> = (0..=count).map(|i| ((i * 7919 + i * i * 31) % sizes.vocabulary) as u32).collect();
    let ids_of = |start: usize| Tensor::from_slice(&ids[start..start + count], count, device);
    Ok((ids_of(0)?.reshape((sizes.batch, sizes.tokens))?, ids_of(1)?))
}

fn compare(sizes: Sizes, dtype: DType, device: &Device) -> Result<bool> {
    let weights = Weights::new(dtype, device);
    let models = [
        Model::Candle(by_candle::Model::new(sizes, weights.vb())?),
        Model::Warpsmith(by_warpsmith::Model::new(sizes, weights.vb())?),
    ];
    let input = data(sizes, device)?;
    let wide_input = data(sizes, &Device::Cpu)?;
    let wide_step = |weights: &Weights| -> Result<_> {
        numbers(&Model::Candle(by_candle::Model::new(sizes, weights.vb())?).step(&wide_input)?, weights)
    };
    let exact = wide_step(&weights.wide(|x| x)?)?;

    let rounding = match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    // Of sums of 4 · width products. The CPU adds blocks of 128. Tensor cores round each group of 8; of f32 products
    // they drop 2⁻¹⁹.
    let k = 4 * sizes.width;
    let sums = match (device.is_cuda(), dtype) {
        (false, _) => (k.min(128) + k.div_ceil(128)) as f64 * 2f64.powi(-24),
        (true, DType::F32) => 2f64.powi(-19) + (k / 8 + 42) as f64 * 2f64.powi(-24),
        (true, _) => (k + 8) as f64 * 2f64.powi(-23),
    };
    let eta = rounding + sums;
    let mut sensitivity = vec![0f64; exact.len()];
    let mut bits = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..4 {
        let changed = weights.wide(|x| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if bits >> 63 == 0 { x * (1.0 + eta) } else { x * (1.0 - eta) }
        })?;
        for (most_of, (changed, exact)) in sensitivity.iter_mut().zip(wide_step(&changed)?.iter().zip(&exact))
        {
            *most_of = most_of.max(most(&changed.1, &exact.1));
        }
    }
    let got = [numbers(&models[0].step(&input)?, &weights)?, numbers(&models[1].step(&input)?, &weights)?];
    println!("{:<24} {:>12} {:>12} {:>12} {:>12}", "", "largest", "candle off", "ours off", "bound");
    let mut is_within = true;
    for (index, (name, exact)) in exact.iter().enumerate() {
        let bound = 8.0 * sensitivity[index];
        let [theirs, ours] = [most(&got[0][index].1, exact), most(&got[1][index].1, exact)];
        is_within &= ours <= bound;
        let largest = exact.iter().fold(0f64, |most, x| most.max(x.abs()));
        println!("{name:<24} {largest:>12.3e} {theirs:>12.3e} {ours:>12.3e} {bound:>12.3e}");
    }
    println!("warpsmith is {} the bound everywhere", if is_within { "within" } else { "NOT within" });
    Ok(is_within)
}

/// The least time of a step, of several.
fn time(model: &Model, input: &(Tensor, Tensor), device: &Device) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..6 {
        device.synchronize()?;
        let start = Instant::now();
        let step = model.step(input)?;
        device.synchronize()?;
        least = least.min(start.elapsed());
        drop(step);
    }
    Ok(least)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_cuda = arguments.iter().any(|argument| argument == "--cuda");
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let dtype = match value("--type").as_deref() {
        None | Some("f32") => DType::F32,
        Some("bf16") => DType::BF16,
        Some("f16") => DType::F16,
        Some(other) => {
            return Err(candle_core::Error::msg(format!("--type {other}: expected f32, bf16 or f16")));
        }
    };
    let device = if is_cuda { Device::new_cuda(0)? } else { Device::Cpu };
    let small = Sizes { vocabulary: 61, width: 64, heads: 4, blocks: 2, batch: 2, tokens: 33 };
    println!("{dtype:?} on {:?}, {small:?}", device.location());
    let is_within = compare(small, dtype, &device)?;

    let sizes = match is_cuda {
        true => Sizes { vocabulary: 8192, width: 1024, heads: 16, blocks: 4, batch: 4, tokens: 1024 },
        false => Sizes { vocabulary: 256, width: 128, heads: 4, blocks: 2, batch: 2, tokens: 64 },
    };
    let weights = Weights::new(dtype, &device);
    let models = [
        ("candle", Model::Candle(by_candle::Model::new(sizes, weights.vb())?)),
        ("warpsmith", Model::Warpsmith(by_warpsmith::Model::new(sizes, weights.vb())?)),
    ];
    let input = data(sizes, &device)?;
    println!("a step forwards and backwards, {sizes:?}:");
    for (name, model) in &models {
        println!("{name:<12} {:>10.3} ms", time(model, &input, &device)?.as_secs_f64() * 1e3);
    }
    let forward = |model: &Model| match model {
        Model::Candle(model) => model.forward(&input.0, &input.1),
        Model::Warpsmith(model) => model.forward(&input.0, &input.1),
    };
    println!("forwards alone:");
    for (name, model) in &models {
        let mut least = Duration::MAX;
        for _ in 0..6 {
            device.synchronize()?;
            let start = Instant::now();
            let result = forward(model)?;
            device.synchronize()?;
            least = least.min(start.elapsed());
            drop(result);
        }
        println!("{name:<12} {:>10.3} ms", least.as_secs_f64() * 1e3);
    }
    if is_within { Ok(()) } else { Err(candle_core::Error::msg("beyond the bound")) }
}
