//! The attention layer: what its operations give, and decoding with a cache.

mod steps;

use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array1, Array2, Array3};
use safetensors::tensor::TensorView;
use warpsmith::layers::{Attention, AttentionConfig, AttentionNames, KvCache, Linear};
use warpsmith::ops::attention::{Alignment, AttentionInput};
use warpsmith::ops::linear::LinearInput;
use warpsmith::weights::FloatElement;
use warpsmith::{DType, Device, Error, Tensor, Weights, ops};

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    an_attention_layer_is_its_operations,
    an_attention_layer_decodes_what_it_computes_at_once,
    steps::drawn_attention_layers_are_their_operations_step_by_step,
    a_cached_sequence_does_not_depend_on_others,
    a_cache_that_is_shortened_goes_on_from_there,
    a_cache_refuses_more_than_its_capacity,
    sequences_of_an_attention_layer_are_computed_apart,
    an_attention_layer_reads_its_weights_by_name,
    a_captured_attention_layer_runs_again_on_what_is_there_then,
    an_attention_layer_names_what_does_not_fit,
];

/// A type of layers.
trait Number: AttentionInput + LinearInput + FloatElement {}
impl<T: AttentionInput + LinearInput + FloatElement> Number for T {}

/// Runs a generic case with the types that the device has attention of.
macro_rules! of_each_type {
    ($device:expr, $case:ident) => {{
        $case::<f16>($device)?;
        $case::<bf16>($device)?;
        $case::<f32>($device)?;
    }};
}

/// Numbers from [−size, size), without a pattern.
fn numbers<T: Number>(device: &Device, shape: &[usize], size: f64, seed: usize) -> Result<Tensor<T>, Failed> {
    let mut state = seed * 77_777 + 12_345;
    let elements: Vec<T> = (0..shape.iter().product())
        .map(|_| {
            state = (state * 7919 + 104_729) % 1_000_003;
            T::round((state as f64 / 500_001.5 - 1.0) * size)
        })
        .collect();
    Ok(Tensor::from_slice(device, &elements, shape)?)
}

fn linear<T: Number>(device: &Device, [out, columns]: [usize; 2], seed: usize) -> Result<Linear<T>, Failed> {
    let weight = numbers(device, &[out, columns], 1.5 / (columns as f64).sqrt(), seed)?;
    let bias = numbers(device, &[out], 0.5, seed + 1)?;
    Ok(Linear::new(weight, Some(bias), ops::Activation::None)?)
}

/// The columns of x.
const INPUT: usize = 40;
/// Columns of heads.
const WIDTH: usize = 16;

/// A layer of 6 heads of queries and 2 of keys and values.
fn layer<T: Number>(device: &Device, config: AttentionConfig) -> Result<Attention<T>, Failed> {
    let rows = (6 + 2 * 2) * WIDTH;
    let (qkv, output) = (linear(device, [rows, INPUT], 1)?, linear(device, [24, 6 * WIDTH], 3)?);
    Ok(Attention::fused(config.key_heads(2), qkv, output)?)
}

fn wide<T: Number>(tensor: &Tensor<T>) -> Result<Vec<f64>, Failed> {
    Ok(tensor.to_vec()?.into_iter().map(|element| f64::from(element.to_f32())).collect())
}

/// Of results of numbers of a magnitude of about 1, by kernels that add up in another order.
fn expect_close<T: Number>(got: &Tensor<T>, expected: &Tensor<T>, what: &str) -> Result<(), Failed> {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let unit = match T::DTYPE {
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => 2f64.powi(-18),
    };
    for (index, (got, expected)) in wide(got)?.into_iter().zip(wide(expected)?).enumerate() {
        let bound = 4.0 * unit * (1.0 + expected.abs());
        assert!((got - expected).abs() <= bound, "{what}, {index}: {got}, expected {expected}");
    }
    Ok(())
}

fn an_attention_layer_is_its_operations(device: &Device) -> Result<(), Failed> {
    fn of_type<T: Number>(device: &Device) -> Result<(), Failed> {
        let (q, k) = (linear::<T>(device, [4 * 24, INPUT], 1)?, linear::<T>(device, [2 * 24, INPUT], 3)?);
        let (v, output) = (linear::<T>(device, [2 * 8, INPUT], 5)?, linear::<T>(device, [30, 4 * 8], 7)?);
        let slopes = Tensor::from_slice(device, &[0.5f32, 0.25, 0.125, 0.0625], [4])?;
        let sinks = Tensor::from_slice(device, &[0.5f32, -1.0, 0.0, 2.0], [4])?;
        let config = AttentionConfig::new(4).key_heads(2).window(Some(9), Some(2)).scale(0.3).soft_cap(4.0);
        let layer = Attention::new(config, q.clone(), k.clone(), v.clone(), output.clone())?
            .with_alibi(slopes.clone())?
            .with_sinks(sinks.clone())?;
        assert_eq!((layer.heads(), layer.widths(), layer.input()), (4, [24, 8], INPUT));

        let x = numbers::<T>(device, &[2, 21, INPUT], 1.0, 11)?;
        let heads = |linear: &Linear<T>, shape: [usize; 4]| linear.forward(&x)?.reshape(shape);
        let (q, k) = (heads(&q, [2, 21, 4, 24])?, heads(&k, [2, 21, 2, 24])?);
        let v = heads(&v, [2, 21, 2, 8])?;
        let attended = ops::attention(&q, &k, &v)
            .window(Some(9), Some(2), Alignment::BottomRight)
            .scale(0.3)
            .soft_cap(4.0)
            .alibi(&slopes)
            .sinks(&sinks)
            .run()?;
        let expected = output.forward(&attended.reshape([2, 21, 32])?)?.to_vec()?;
        assert!(layer.forward(&x)?.to_vec()? == expected);
        let stream = device.new_stream()?;
        assert!(layer.forward_on(&x, &stream)?.to_vec()? == expected);
        // A part of wider rows.
        let mut y = Tensor::<T>::zeros(device, [2, 21, 40])?.slice(2, 4..34)?;
        layer.forward_into(&x, &mut y, &stream)?;
        assert!(y.to_vec()? == expected);

        // One weight with the same rows.
        let config = AttentionConfig::new(6).causal();
        let fused = self::layer::<T>(device, config)?;
        let whole = linear::<T>(device, [10 * WIDTH, INPUT], 1)?;
        let part = |from: usize, to: usize| -> Result<Linear<T>, Failed> {
            let rows = from * WIDTH..to * WIDTH;
            let bias = whole.bias().map(|bias| bias.slice(0, rows.clone())).transpose()?;
            Ok(Linear::new(whole.weight().slice(0, rows)?, bias, ops::Activation::None)?)
        };
        let output = linear(device, [24, 6 * WIDTH], 3)?;
        let (q, k, v) = (part(0, 6)?, part(6, 8)?, part(8, 10)?);
        let separate = Attention::new(config.key_heads(2), q, k, v, output)?;
        expect_close(&fused.forward(&x)?, &separate.forward(&x)?, "fused")
    }
    of_each_type!(device, of_type);
    Ok(())
}

/// A layer with which each token has the value of another one, exactly: of one head, whose keys are the numbers of tokens in digits −1 and 1.
fn exact_layer<T: Number>(device: &Device) -> Result<Attention<T>, Failed> {
    let eye = |[out, first]: [usize; 2], factor: f64| -> Result<Linear<T>, Failed> {
        let weight = Array2::from_shape_fn((out, 24), |(row, column)| {
            T::round(if column == row + first { factor } else { 0.0 })
        });
        Ok(Linear::new(Tensor::from_array(device, &weight)?, None, ops::Activation::None)?)
    };
    let output =
        Array2::from_shape_fn((8, 8), |(row, column)| T::round(((row + 2 * column) % 5) as f64 - 2.0));
    let output = Linear::new(Tensor::from_array(device, &output)?, None, ops::Activation::None)?;
    let config = AttentionConfig::new(1).causal().scale(256.0);
    Ok(Attention::new(config, eye([8, 0], 1.0)?, eye([8, 8], 1.0)?, eye([8, 16], 2.0)?, output)?)
}

/// Tokens for it: of each, which it looks for, which it is, and its value.
fn exact_tokens<T: Number>(device: &Device, batch: usize, rows: usize) -> Result<Tensor<T>, Failed> {
    let digit = |number: usize, place: usize| if number >> place & 1 == 0 { -1.0 } else { 1.0 };
    let tokens = Array3::from_shape_fn((batch, rows, 24), |(b, s, column)| {
        let target = (s * 7 + b * 3) % (s + 1);
        T::round(match column / 8 {
            0 => digit(target, column),
            1 => digit(s, column - 8),
            _ => ((b * 5 + s * 3 + column) % 17) as f64 - 8.0,
        })
    });
    Ok(Tensor::from_array(device, &tokens)?)
}

fn an_attention_layer_decodes_what_it_computes_at_once(device: &Device) -> Result<(), Failed> {
    /// Steps of these many tokens, one after the other.
    fn in_steps<T: Number>(
        layer: &Attention<T>,
        x: &Tensor<T>,
        steps: &[usize],
        close: impl Fn(&Tensor<T>, &Tensor<T>) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let (expected, batch) = (layer.forward(x)?, x.shape()[0]);
        let mut cache = layer.new_cache(batch, 64)?;
        let stream = x.device().new_stream()?;
        let mut first = 0;
        for (step, &count) in steps.iter().enumerate() {
            let tokens = x.slice(1, first..first + count)?;
            let y = match step % 2 {
                0 => layer.forward_with_cache(&tokens, &mut cache)?,
                _ => layer.operation(&tokens).cache(&mut cache).on(&stream).run()?,
            };
            first += count;
            assert_eq!(cache.lengths()?, vec![first; batch]);
            close(&y, &expected.slice(1, first - count..first)?)?;
        }
        Ok(())
    }
    fn of_type<T: Number>(device: &Device) -> Result<(), Failed> {
        let x = exact_tokens::<T>(device, 2, 40)?;
        in_steps(&exact_layer(device)?, &x, &[25, 1, 1, 0, 5, 1, 1, 1, 4, 1], |y, expected| {
            assert!(y.to_vec()? == expected.to_vec()?, "it is exact");
            Ok(())
        })?;
        let x = numbers::<T>(device, &[2, 30, INPUT], 1.0, 21)?;
        let slopes = Tensor::from_slice(device, &[0.5f32, 0.25, 0.125, 0.5, 0.25, 0.125], [6])?;
        for config in [AttentionConfig::new(6).causal(), AttentionConfig::new(6).window(Some(6), Some(0))] {
            let layer = layer::<T>(device, config)?.with_alibi(slopes.clone())?;
            in_steps(&layer, &x, &[20, 1, 1, 7, 1], |y, expected| expect_close(y, expected, "decoded"))?;
        }
        Ok(())
    }
    of_each_type!(device, of_type);
    Ok(())
}

/// Prompts of different lengths, and sequences that pause: each has the bits that it has alone.
fn a_cached_sequence_does_not_depend_on_others(device: &Device) -> Result<(), Failed> {
    fn of_type<T: Number>(device: &Device) -> Result<(), Failed> {
        let (layer, x) = (exact_layer::<T>(device)?, exact_tokens::<T>(device, 3, 30)?);
        let expected = layer.forward(&x)?.to_vec()?;
        let mut cache = layer.new_cache(3, 30)?;
        // Of steps of so many rows, how many of each sequence count.
        let steps: [(usize, [usize; 3]); 9] = [
            (9, [9, 4, 0]),
            (1, [1, 1, 1]),
            (1, [1, 1, 1]),
            (1, [1, 0, 1]),
            (1, [1, 0, 1]),
            (1, [1, 1, 1]),
            (3, [0, 3, 2]),
            (2, [2, 2, 2]),
            (13, [13, 0, 12]),
        ];
        for (in_order, rows) in steps {
            let before = cache.lengths()?;
            // What does not count is not there, too.
            let tokens = numbers::<T>(device, &[3, in_order, 24], 1.0, 5)?;
            for b in 0..3 {
                let new = x.slice(0, b..b + 1)?.slice(1, before[b]..before[b] + rows[b])?;
                tokens.slice(0, b..b + 1)?.slice(1, 0..rows[b])?.copy_from(&new)?;
            }
            let mut y = numbers::<T>(device, &[3, in_order, 8], 1.0, 6)?;
            layer.operation(&tokens).cache(&mut cache).rows(&rows[..]).run_into(&mut y)?;
            let y = y.to_vec()?;
            for b in 0..3 {
                assert_eq!(cache.lengths()?[b], before[b] + rows[b]);
                for row in 0..in_order {
                    let got = &y[(b * in_order + row) * 8..][..8];
                    let alone = &expected[(b * 30 + (before[b] + row).min(29)) * 8..][..8];
                    let is_right = if row < rows[b] {
                        got == alone
                    } else {
                        got.iter().all(|element| element.to_f32() == 0.0)
                    };
                    assert!(is_right, "{rows:?} of {in_order}: row {row} of {b}");
                }
            }
        }
        Ok(())
    }
    of_each_type!(device, of_type);
    Ok(())
}

fn a_cache_that_is_shortened_goes_on_from_there(device: &Device) -> Result<(), Failed> {
    let (layer, x) = (exact_layer::<bf16>(device)?, exact_tokens::<bf16>(device, 2, 20)?);
    let expected = layer.forward(&x)?;
    let mut cache = layer.new_cache(2, 20)?;
    layer.forward_with_cache(&x, &mut cache)?;
    let error = cache.truncate(2, 0).expect_err("there are two").to_string();
    assert_eq!(error, "KvCache::truncate: sequence is 2, expected less than 2, the number of sequences");
    let error = cache.truncate(1, 21).expect_err("it has 20").to_string();
    assert_eq!(error, "KvCache::truncate: length is 21, expected at most 20, the keys of sequence 1");
    cache.truncate(0, 15)?;
    cache.truncate(1, 15)?;
    let y = layer.forward_with_cache(&x.slice(1, 15..18)?, &mut cache)?;
    assert_eq!(y.to_vec()?, expected.slice(1, 15..18)?.to_vec()?);
    // A sequence begins anew beside one that goes on.
    cache.truncate(1, 0)?;
    for step in 0..2 {
        let mut tokens = Tensor::<bf16>::zeros(device, [2, 1, 24])?;
        for (b, at) in [(0, 18 + step), (1, step)] {
            tokens.slice(0, b..b + 1)?.copy_from(&x.slice(0, b..b + 1)?.slice(1, at..at + 1)?)?;
        }
        let y = layer.forward_with_cache(&tokens, &mut cache)?.to_vec()?;
        for (b, at) in [(0, 18 + step), (1, step)] {
            let alone = expected.slice(0, b..b + 1)?.slice(1, at..at + 1)?.to_vec()?;
            assert_eq!(y[b * 8..][..8], alone);
        }
        tokens.write_slice(&[bf16::ZERO; 48])?;
    }
    cache.reset()?;
    assert_eq!(cache.lengths()?, [0, 0]);
    let y = layer.forward_with_cache(&x.slice(1, 0..7)?, &mut cache)?;
    assert_eq!(y.to_vec()?, expected.slice(1, 0..7)?.to_vec()?);
    Ok(())
}

fn a_cache_refuses_more_than_its_capacity(device: &Device) -> Result<(), Failed> {
    let (layer, x) = (exact_layer::<f16>(device)?, exact_tokens::<f16>(device, 2, 9)?);
    let mut cache = layer.new_cache(2, 8)?;
    let text = |error: Error| {
        assert!(matches!(error, Error::SizeLimit { operand: "cache", .. }), "{error}");
        error.to_string()
    };
    let error = text(layer.forward_with_cache(&x, &mut cache).expect_err("it is full"));
    assert!(error.contains("0 and 9 more of sequence 0") && error.contains("at most 8"), "{error}");
    layer.operation(&x.slice(1, 0..8)?).cache(&mut cache).rows(&[3, 8][..]).run()?;
    let next = x.slice(1, 8..9)?;
    let error = text(layer.forward_with_cache(&next, &mut cache).expect_err("it is full"));
    assert!(error.contains("8 and 1 more of sequence 1"), "{error}");
    assert_eq!(cache.lengths()?, [3, 8]);
    // An output that does not fit leaves the cache as it is.
    let mut y = Tensor::<f16>::zeros(device, [2, 1, 7])?;
    let refused = layer.operation(&next).cache(&mut cache).rows(&[1, 0][..]).run_into(&mut y);
    assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    assert_eq!(cache.lengths()?, [3, 8]);
    layer.operation(&next).cache(&mut cache).rows(&[1, 0][..]).run()?;
    assert_eq!(cache.lengths()?, [4, 8]);

    let k = Tensor::<f16>::zeros(device, [2, 3, 1, 8])?;
    let error = text(cache.append(&k, &k).expect_err("it is full"));
    assert!(error.starts_with("KvCache::append: "), "{error}");
    cache.append_rows(&k, &k, &[3, 0])?;
    assert_eq!((cache.lengths()?, cache.capacity(), cache.batch()), (vec![7, 8], 8, 2));
    let error = |result: warpsmith::Result<()>| result.expect_err("it does not fit").to_string();
    let expected = "KvCache::append: `rows` has shape [1], expected [2], one for each sequence";
    assert_eq!(error(cache.append_rows(&k, &k, &[0])), expected);
    let expected = "KvCache::append: rows is 4 of sequence 0, expected at most 3";
    assert_eq!(error(cache.append_rows(&k, &k, &[4, 0])), expected);
    let other = Tensor::<f16>::zeros(device, [2, 2, 1, 8])?;
    assert!(error(cache.append(&k, &other)).contains("`v` has shape [2, 2, 1, 8]"));
    assert!(error(cache.append(&k.reshape([2, 3, 8])?, &k)).contains("`k` has shape [2, 3, 8]"));
    let [own, _] = cache.stored::<f16>().ok_or("it stores keys as they are")?;
    let own = own.slice(1, 0..1)?;
    let expected = "KvCache::append: `k` shares memory with `cache`, expected separate memory";
    assert_eq!(error(cache.append(&own, &own.deep_clone()?)), expected);
    let huge = KvCache::<f16>::new(device, 0, 1 << 31, 1, 8).map(drop).expect_err("it is too large");
    assert!(matches!(huge, Error::SizeLimit { quantity: "capacity", .. }), "{huge}");
    Ok(())
}

/// As an encoder reads them: padded, and packed.
fn sequences_of_an_attention_layer_are_computed_apart(device: &Device) -> Result<(), Failed> {
    fn of_type<T: Number>(device: &Device) -> Result<(), Failed> {
        let layer = layer::<T>(device, AttentionConfig::new(6))?;
        let (x, lengths) = (numbers::<T>(device, &[3, 20, INPUT], 1.0, 31)?, [20usize, 1, 13]);
        let of_device = Tensor::from_array(device, &Array1::from_iter(lengths.map(|length| length as u32)))?;
        let padded = layer.operation(&x).lengths(&of_device).run()?;
        let sequence = |b: usize| x.slice(0, b..b + 1)?.slice(1, 0..lengths[b])?.contiguous();
        let mut tokens = Vec::new();
        for b in 0..3 {
            tokens.extend(sequence(b)?.to_vec()?);
        }
        let packed = Tensor::from_slice(device, &tokens, [34, INPUT])?;
        let offsets = Tensor::from_slice(device, &[0u32, 20, 21, 34], [4])?;
        let packed = layer.operation(&packed).packed(&offsets).run()?;
        let bias = linear::<T>(device, [24, 6 * WIDTH], 3)?.bias().map(Tensor::to_vec).transpose()?;
        for (b, first) in [0, 20, 21].into_iter().enumerate() {
            let (alone, length) = (layer.forward(&sequence(b)?)?.reshape([lengths[b], 24])?, lengths[b]);
            let of_padded = padded.slice(0, b..b + 1)?.reshape([20, 24])?;
            expect_close(&of_padded.slice(0, 0..length)?, &alone, "padded")?;
            expect_close(&packed.slice(0, first..first + length)?, &alone, "packed")?;
            for row in length..20 {
                assert!(Some(of_padded.slice(0, row..row + 1)?.to_vec()?) == bias, "no attention");
            }
        }
        Ok(())
    }
    of_each_type!(device, of_type);
    Ok(())
}

fn an_attention_layer_reads_its_weights_by_name(device: &Device) -> Result<(), Failed> {
    let shapes = [
        ("block.0.q_proj.weight", vec![32, 12]),
        ("block.0.q_proj.bias", vec![32]),
        ("block.0.k_proj.weight", vec![16, 12]),
        ("block.0.v_proj.weight", vec![16, 12]),
        ("block.0.v_proj.bias", vec![16]),
        ("block.0.o_proj.weight", vec![12, 32]),
        ("block.1.self.qkv.weight", vec![64, 12]),
        ("block.1.dense.weight", vec![12, 32]),
        ("block.1.dense.bias", vec![12]),
    ];
    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .enumerate()
        .map(|(seed, (_, shape))| {
            let number = |index: usize| bf16::from_f32(((index * 7 + seed * 5) % 9) as f32 / 16.0 - 0.25);
            (0..shape.iter().product()).flat_map(|index| number(index).to_le_bytes()).collect()
        })
        .collect();
    let views = shapes.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (*name, TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes).expect("the shape fits"))
    });
    let weights = Weights::from_bytes(safetensors::serialize(views, None)?)?;
    let (config, names) = (AttentionConfig::new(4).key_heads(2).causal(), AttentionNames::default());
    let x = numbers::<bf16>(device, &[2, 5, 12], 1.0, 41)?;

    let of_file = |name: &str| Linear::from_safetensors(&weights, name, device, ops::Activation::None);
    let [q, k] = [of_file("block.0.q_proj")?, of_file("block.0.k_proj")?];
    let [v, output] = [of_file("block.0.v_proj")?, of_file("block.0.o_proj")?];
    let expected = Attention::<bf16>::new(config, q, k, v, output)?.forward(&x)?;
    let read = Attention::from_safetensors(&weights, "block.0", device, config, names)?;
    assert_eq!(read.forward(&x)?.to_vec()?, expected.to_vec()?);
    assert_eq!((read.widths(), read.input(), read.config()), ([8, 8], 12, &config));

    let names = AttentionNames::Fused { qkv: "self.qkv", output: "dense" };
    let read = Attention::from_safetensors(&weights, "block.1", device, config, names)?;
    let fused = Attention::<bf16>::fused(config, of_file("block.1.self.qkv")?, of_file("block.1.dense")?)?;
    let expected = fused.forward(&x)?.to_vec()?;
    assert_eq!(read.forward(&x)?.to_vec()?, expected);
    let names = AttentionNames::Fused { qkv: "block.1.self.qkv", output: "block.1.dense" };
    let read = Attention::from_safetensors(&weights, "", device, config, names)?;
    assert_eq!(read.forward(&x)?.to_vec()?, expected);
    let read = Attention::<f16>::from_safetensors_converted(&weights, "", device, config, names)?;
    assert_eq!(read.forward(&numbers::<f16>(device, &[2, 5, 12], 1.0, 41)?)?.shape(), [2, 5, 12]);

    let missing =
        Attention::<bf16>::from_safetensors(&weights, "block.1", device, config, Default::default());
    let missing = missing.map(drop).expect_err("it is not there").to_string();
    assert!(missing.contains("block.1.q_proj.weight"), "{missing}");
    let other = Attention::<f16>::from_safetensors(&weights, "", device, config, names).map(drop);
    assert!(matches!(other, Err(Error::Weights { .. })), "{other:?}");
    Ok(())
}

fn a_captured_attention_layer_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let layer = layer::<bf16>(device, AttentionConfig::new(6).causal())?;
    let stream = device.new_stream()?;
    let (mut x, mut lengths) =
        (Tensor::<bf16>::zeros(device, [2, 9, INPUT])?, Tensor::<u32>::zeros(device, [2])?);
    let y = Tensor::<bf16>::zeros_on(&stream, [2, 9, 24])?;
    let (read_x, read_lengths, mut to_y) = (x.clone(), lengths.clone(), y.clone());
    let work = || layer.operation(&read_x).lengths(&read_lengths).on(&stream).run_into(&mut to_y);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for (seed, of_sequences) in [(1, [9u32, 4]), (2, [1, 8])] {
        x.write_slice(&numbers::<bf16>(device, &[2, 9, INPUT], 1.0, seed)?.to_vec()?)?;
        lengths.write_slice(&of_sequences)?;
        graph.launch()?;
        let expected = layer.operation(&x).lengths(&lengths).run()?;
        assert_eq!(y.to_vec()?, expected.to_vec()?);
    }
    // The host decides where a cache's rows go.
    let mut cache = layer.new_cache(2, 20)?;
    // SAFETY: nothing is captured.
    let refused =
        unsafe { stream.capture(|| layer.operation(&x).cache(&mut cache).on(&stream).run().map(drop)) };
    let refused = refused.map(drop).expect_err("it cannot be captured");
    assert!(refused.to_string().contains("expected one that is not being captured"), "{refused}");
    assert_eq!(cache.lengths()?, [0, 0]);
    Ok(())
}

fn an_attention_layer_names_what_does_not_fit(device: &Device) -> Result<(), Failed> {
    let plain = |shape: [usize; 2]| -> Result<Linear<bf16>, Failed> {
        Ok(Linear::new(Tensor::zeros(device, shape)?, None, ops::Activation::None)?)
    };
    let text = |made: warpsmith::Result<Attention<bf16>>| made.map(drop).expect_err("no layer").to_string();
    let config = AttentionConfig::new(4).key_heads(2);
    let (q, k, v, output) = (plain([32, 12])?, plain([16, 12])?, plain([12, 12])?, plain([12, 24])?);
    let new = |config, q: &Linear<bf16>, k: &Linear<bf16>, v: &Linear<bf16>, output: &Linear<bf16>| {
        Attention::new(config, q.clone(), k.clone(), v.clone(), output.clone())
    };
    let layer = new(config, &q, &k, &v, &output)?;
    let relu = Linear::new(Tensor::zeros(device, [12, 24])?, None, ops::Activation::Relu)?;
    let given = "as the other weights and the heads give";
    for (made, expected) in [
        (new(AttentionConfig::new(0), &q, &k, &v, &output), "heads is 0, expected at least 1 and".to_owned()),
        (
            new(config.key_heads(3), &q, &k, &v, &output),
            "key_heads is 3, expected a divisor of the 4 heads".to_owned(),
        ),
        (
            new(config.scale(f32::NAN), &q, &k, &v, &output),
            "scale is NaN, expected a finite number".to_owned(),
        ),
        (
            new(config.soft_cap(0.0), &q, &k, &v, &output),
            "soft_cap is 0, expected a finite number above 0".to_owned(),
        ),
        (
            new(config, &plain([30, 12])?, &k, &v, &output),
            "`q` has shape [30, 12], expected [a multiple of 4, 12]".to_owned(),
        ),
        (new(config, &q, &v, &v, &output), format!("`k` has shape [12, 12], expected [16, 12], {given}")),
        (
            new(config, &q, &k, &plain([16, 11])?, &output),
            format!("`v` has shape [16, 11], expected [16, 12], {given}"),
        ),
        (
            new(config, &q, &k, &v, &plain([12, 32])?),
            format!("`output` has shape [12, 32], expected [12, 24], {given}"),
        ),
        (
            new(config, &q, &k, &v, &relu),
            "output is one with Relu, expected a linear layer without an activation".to_owned(),
        ),
        (
            Attention::fused(config, q.clone(), output.clone()),
            format!("`output` has shape [12, 24], expected [12, 16], {given}"),
        ),
    ] {
        let error = text(made);
        assert!(error.starts_with(&format!("Attention::new: {expected}")), "{error}");
    }
    let few = Tensor::<f32>::zeros(device, [2])?;
    let error = text(layer.clone().with_sinks(few.clone()));
    assert_eq!(error, "Attention::with_sinks: `sinks` has shape [2], expected [4], one for each head");
    let error = text(layer.clone().with_alibi(few));
    assert_eq!(error, "Attention::with_alibi: `slopes` has shape [2], expected [4], one for each head");

    let x = Tensor::<bf16>::zeros(device, [2, 3, 12])?;
    let (mut cache, mut other) = (layer.new_cache(2, 9)?, KvCache::new(device, 2, 9, 2, 8)?);
    let (two, three) = (Tensor::<u32>::zeros(device, [2])?, Tensor::<u32>::zeros(device, [3])?);
    let run = |operation: warpsmith::layers::AttentionForward<'_, bf16>| {
        operation.run().map(drop).expect_err("it does not fit").to_string()
    };
    let flat = x.flatten_leading()?;
    let narrow = x.slice(2, 0..11)?;
    for (error, expected) in [
        (run(layer.operation(&flat)), "`x` has shape [6, 12], expected [B, S, 12], three axes"),
        (run(layer.operation(&narrow)), "`x` has shape [2, 3, 11], expected [B, S, 12], three axes"),
        (
            run(layer.operation(&x).packed(&two)),
            "`x` has shape [2, 3, 12], expected [T, 12], two axes for packed sequences",
        ),
        (run(layer.operation(&x).rows(&[1, 1][..])), "rows is 2 of them, expected none without a cache"),
        (
            run(layer.operation(&x).cache(&mut cache).lengths(&two)),
            "lengths is a tensor of shape [2], expected none with a cache whose lengths the host has; `rows` has them there",
        ),
        (
            run(layer.operation(&x).cache(&mut other)),
            "`cache` has shape [2, 9, 2, 8], expected [2, 9, 2, 6], as x and the layer give",
        ),
        (
            run(layer.operation(&x).cache(&mut cache).rows(&[1][..])),
            "`rows` has shape [1], expected [2], one for each sequence",
        ),
    ] {
        assert_eq!(error, format!("Attention::forward: {expected}"));
    }
    let error = run(layer.operation(&x).lengths(&three));
    assert_eq!(
        error,
        "Attention::forward: `lengths` has shape [3], expected [2], one for each sequence of x"
    );
    Ok(())
}
