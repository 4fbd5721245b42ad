use std::collections::BTreeMap;

use half::bf16;
use safetensors::tensor::TensorView;

use super::{BlockConfig, BlockNames};
use crate::layers::differences::{bits, numbers};
use crate::layers::{
    Attention, AttentionConfig, AttentionNames, BlockNorm, LayerNorm, Linear, Mlp, MlpNames, RmsNorm,
    TransformerBlock,
};
use crate::ops::{Activation, Pairing, RotaryTable};
use crate::{Device, Error, Result, Tensor, Weights};

const COLUMNS: usize = 8;
const HIDDEN: usize = 12;
const PREFIX: &str = "model.layers.3";

/// Names of tensors, each with its shape.
type Shapes = Vec<(String, Vec<usize>)>;

/// Two heads of four columns with one of keys and values, and a gated perceptron.
fn of_llama() -> Shapes {
    let shapes = [
        ("input_layernorm.weight", vec![COLUMNS]),
        ("self_attn.q_proj.weight", vec![COLUMNS, COLUMNS]),
        ("self_attn.k_proj.weight", vec![COLUMNS / 2, COLUMNS]),
        ("self_attn.v_proj.weight", vec![COLUMNS / 2, COLUMNS]),
        // As Qwen has one.
        ("self_attn.v_proj.bias", vec![COLUMNS / 2]),
        ("self_attn.o_proj.weight", vec![COLUMNS, COLUMNS]),
        ("post_attention_layernorm.weight", vec![COLUMNS]),
        ("mlp.gate_proj.weight", vec![HIDDEN, COLUMNS]),
        ("mlp.up_proj.weight", vec![HIDDEN, COLUMNS]),
        ("mlp.down_proj.weight", vec![COLUMNS, HIDDEN]),
    ];
    shapes.map(|(name, shape)| (format!("{PREFIX}.{name}"), shape)).to_vec()
}

fn values(shapes: &Shapes, name: &str) -> Vec<f32> {
    let number = shapes.iter().position(|(known, _)| known == name).expect("there is such a tensor");
    numbers(shapes[number].1.iter().product(), number)
}

/// A file with all tensors but one.
fn file(shapes: &Shapes, leave_out: &str) -> Weights {
    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(name, _)| values(shapes, name).into_iter().flat_map(f32::to_le_bytes).collect())
        .collect();
    let views: BTreeMap<&str, TensorView<'_>> = shapes
        .iter()
        .zip(&bytes)
        .filter(|((name, _), _)| name != leave_out)
        .map(|((name, shape), bytes)| {
            let view = TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
            (name.as_str(), view.expect("the bytes are those of the shape"))
        })
        .collect();
    Weights::from_bytes(safetensors::serialize(views, None).expect("it serialises")).expect("it is a file")
}

/// A tensor of a file, on the CPU.
fn tensor(shapes: &Shapes, name: &str) -> Tensor<f32> {
    let (_, shape) = shapes.iter().find(|(known, _)| known == name).expect("there is such a tensor");
    Tensor::from_slice(&Device::cpu(), &values(shapes, name), shape.as_slice()).expect("it fits")
}

fn x<T: crate::Element>(of: fn(f32) -> T) -> Tensor<T> {
    let numbers: Vec<T> = numbers(2 * 5 * COLUMNS, 77).into_iter().map(of).collect();
    Tensor::from_slice(&Device::cpu(), &numbers, [2, 5, COLUMNS]).expect("it fits")
}

fn rotary() -> (RotaryTable, Pairing) {
    (RotaryTable::new(&Device::cpu(), 100.0, 4, 16).expect("it fits"), Pairing::Halves)
}

#[test]
fn a_gated_block_is_the_one_of_its_layers() -> Result<()> {
    let shapes = of_llama();
    let of = |name: &str| tensor(&shapes, &format!("{PREFIX}.{name}"));
    let linear = |name: &str| Linear::new(of(&format!("{name}.weight")), None, Activation::None);
    let attention = AttentionConfig::new(2).key_heads(1).causal();
    let (table, pairing) = rotary();
    for (offset, epsilon) in [(0.0, 1e-5), (1.0, 0.25)] {
        let norm = |name: &str| -> Result<RmsNorm<f32>> {
            let norm = RmsNorm::new(of(&format!("{name}.weight")))?;
            Ok(norm.with_epsilon(epsilon).with_weight_offset(offset))
        };
        let v =
            Linear::new(of("self_attn.v_proj.weight"), Some(of("self_attn.v_proj.bias")), Activation::None)?;
        let layers = Attention::new(
            attention,
            linear("self_attn.q_proj")?,
            linear("self_attn.k_proj")?,
            v,
            linear("self_attn.o_proj")?,
        )?
        .with_rotary(table.clone(), pairing)?;
        let [gate, up, down] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"].map(linear);
        let mlp = Mlp::gated(gate?, up?, down?, Activation::Silu)?;
        let expected =
            TransformerBlock::new(norm("input_layernorm")?, layers, norm("post_attention_layernorm")?, mlp)?
                .forward(&x(|x| x))?;

        let config =
            BlockConfig::new(attention).rms_norm_with_offset(epsilon, offset).rotary(table.clone(), pairing);
        let (weights, names) = (file(&shapes, ""), BlockNames::default());
        let block =
            TransformerBlock::<f32>::from_safetensors(&weights, PREFIX, &Device::cpu(), &config, names)?;
        assert_eq!(bits(&block.forward(&x(|x| x))?), bits(&expected));
    }
    Ok(())
}

#[test]
fn a_plain_block_with_layer_norms_and_biases_is_the_one_of_its_layers() -> Result<()> {
    let shape = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    let with_bias = |name: &str, out: usize, columns: usize| {
        [shape(&format!("{name}.weight"), &[out, columns]), shape(&format!("{name}.bias"), &[out])]
    };
    let norm = |name: &str| {
        [shape(&format!("{name}.weight"), &[COLUMNS]), shape(&format!("{name}.bias"), &[COLUMNS])]
    };
    let shapes: Shapes = [
        norm("ln_1"),
        with_bias("attn.qkv", 3 * COLUMNS, COLUMNS),
        with_bias("attn.out", COLUMNS, COLUMNS),
        norm("ln_2"),
        with_bias("fc.1", HIDDEN, COLUMNS),
        with_bias("fc.2", COLUMNS, HIDDEN),
    ]
    .concat();
    let linear = |name: &str, activation| {
        let [weight, bias] = ["weight", "bias"].map(|part| tensor(&shapes, &format!("{name}.{part}")));
        Linear::new(weight, Some(bias), activation)
    };
    let norm = |name: &str| -> Result<BlockNorm<f32>> {
        let [weight, bias] = ["weight", "bias"].map(|part| tensor(&shapes, &format!("{name}.{part}")));
        Ok(LayerNorm::new(weight, Some(bias))?.with_epsilon(1e-3).into())
    };
    let config = AttentionConfig::new(2);
    let none = Activation::None;
    let attention = Attention::fused(config, linear("attn.qkv", none)?, linear("attn.out", none)?)?;
    let mlp = Mlp::new(linear("fc.1", Activation::GeluTanh)?, linear("fc.2", none)?)?;
    let expected = TransformerBlock::new(norm("ln_1")?, attention, norm("ln_2")?, mlp)?.forward(&x(|x| x))?;

    let names = BlockNames {
        input_norm: "ln_1",
        attention: "attn",
        in_attention: AttentionNames::Fused { qkv: "qkv", output: "out" },
        mlp_norm: "ln_2",
        mlp: "fc",
        in_mlp: MlpNames::Plain { up: "1", down: "2" },
        ignored: &[],
    };
    let config = BlockConfig::new(config).layer_norm(1e-3).activation(Activation::GeluTanh);
    let weights = file(&shapes, "");
    let block = TransformerBlock::<f32>::from_safetensors(&weights, "", &Device::cpu(), &config, names)?;
    assert_eq!(bits(&block.forward(&x(|x| x))?), bits(&expected));
    Ok(())
}

#[test]
fn weights_of_another_type_are_rounded_or_refused() -> Result<()> {
    let (shapes, device) = (of_llama(), Device::cpu());
    let config = BlockConfig::new(AttentionConfig::new(2).key_heads(1));
    let (weights, names) = (file(&shapes, ""), BlockNames::default());
    let block =
        TransformerBlock::<bf16>::from_safetensors_converted(&weights, PREFIX, &device, &config, names)?;
    let up = values(&shapes, &format!("{PREFIX}.mlp.up_proj.weight"));
    let up: Vec<bf16> = up.into_iter().map(bf16::from_f32).collect();
    assert_eq!(block.mlp().projections()[1].weight().to_vec()?, up);
    assert_eq!(block.forward(&x(bf16::from_f32))?.shape(), [2, 5, COLUMNS]);
    let error = TransformerBlock::<bf16>::from_safetensors(&weights, PREFIX, &device, &config, names);
    let error = error.expect_err("the file has f32").to_string();
    assert!(error.contains("bf16") && error.contains("F32"), "{error}");
    Ok(())
}

#[test]
fn each_missing_weight_is_named_and_biases_may_be_missing() {
    let (shapes, device) = (of_llama(), Device::cpu());
    let config = BlockConfig::new(AttentionConfig::new(2).key_heads(1));
    for (name, _) in &shapes {
        let weights = file(&shapes, name);
        let block = TransformerBlock::<f32>::from_safetensors(
            &weights,
            PREFIX,
            &device,
            &config,
            BlockNames::default(),
        );
        match block {
            Ok(_) => assert!(name.ends_with(".bias"), "{name}"),
            Err(error) => {
                assert!(matches!(error, Error::Weights { .. }), "{error}");
                assert!(error.to_string().contains(name.as_str()), "{error}");
            }
        }
    }
}

#[test]
fn a_tensor_that_the_block_would_not_read_is_named_unless_it_is_ignored() -> Result<()> {
    let (shapes, device) = (of_llama(), Device::cpu());
    let config = BlockConfig::new(AttentionConfig::new(2).key_heads(1));
    let load = |name: &str, names: BlockNames<'_>| {
        let mut shapes = shapes.clone();
        shapes.push((name.to_owned(), vec![3]));
        TransformerBlock::<f32>::from_safetensors(&file(&shapes, ""), PREFIX, &device, &config, names)
    };
    let of = |name: &str| format!("{PREFIX}.{name}");
    // Norms of queries, a scale of 8-bit weights, a norm's bias, and a name that only begins like one that is ignored.
    let others = ["self_attn.q_norm.weight", "mlp.up_proj.weight_scale", "input_layernorm.bias"];
    for name in others.into_iter().chain(["self_attn.rotary_embedding"]).map(of) {
        let error = load(&name, BlockNames::default()).expect_err(&name);
        assert!(matches!(&error, Error::Weights { tensor, .. } if *tensor == name), "{error}");
        assert!(error.to_string().contains("F32 [3]"), "{error}");
    }
    load(&of("self_attn.rotary_emb.inv_freq"), BlockNames::default())?;
    // Other blocks' tensors, one of which has a name that only begins like this one's.
    for name in ["model.layers.4.mlp.more", "model.layers.30.mlp.more", "model.norm.weight"] {
        load(name, BlockNames::default())?;
    }
    let names = BlockNames { ignored: &["self_attn.q_norm", "more"], ..BlockNames::default() };
    load(&of("self_attn.q_norm.weight"), names)?;
    load(&of("more"), names)?;
    load(&of("self_attn.k_norm.weight"), names).expect_err("it is not ignored");
    Ok(())
}
