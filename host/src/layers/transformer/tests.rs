use crate::layers::differences::{along, bits, direction, moved, numbers, tensor};
use crate::layers::{
    Attention, AttentionConfig, BlockNorm, LayerNorm, Linear, Mlp, Parameters, RmsNorm, TransformerBlock,
};
use crate::ops::{Activation, Pairing, RotaryTable};
use crate::optim::{AdamW, AdamWOptions, Gradient};
use crate::{Device, Error, Result, Tensor};

const COLUMNS: usize = 16;
const HEADS: usize = 2;
const HIDDEN: usize = 12;
const POSITIONS: usize = 32;

/// Two blocks: with layer norms, biases and a plain perceptron, and with RMS norms, no bias and a gated one.
const KINDS: [bool; 2] = [false, true];

/// The shapes of a block's weights, as [`Parameters`] lists them.
fn shapes(is_gated: bool) -> Vec<Vec<usize>> {
    let projections = vec![vec![3 * COLUMNS, COLUMNS], vec![COLUMNS, COLUMNS]];
    let norm = vec![COLUMNS];
    let all = |norms: &[Vec<usize>], up: usize| {
        let mlp = vec![vec![up, COLUMNS], vec![COLUMNS, HIDDEN]];
        [norms.to_vec(), projections.clone(), norms.to_vec(), mlp].concat()
    };
    if is_gated {
        return all(&[norm], 2 * HIDDEN);
    }
    // Each matrix has a bias.
    let with_bias = |shape: Vec<usize>| {
        let bias = (shape.len() == 2).then(|| vec![shape[0]]);
        std::iter::once(shape).chain(bias)
    };
    all(&[norm.clone(), norm], HIDDEN).into_iter().flat_map(with_bias).collect()
}

fn weights(is_gated: bool) -> Vec<Vec<f32>> {
    let shapes = shapes(is_gated).into_iter().enumerate();
    shapes.map(|(seed, shape)| numbers(shape.iter().product(), seed)).collect()
}

fn block(device: &Device, is_gated: bool, weights: &[Vec<f32>]) -> TransformerBlock<f32> {
    let shapes = shapes(is_gated);
    let tensors = weights.iter().zip(&shapes);
    let tensors = tensors.map(|(numbers, shape)| Tensor::from_slice(device, numbers, shape.as_slice()));
    let mut tensors = tensors.collect::<Result<Vec<_>>>().expect("they fit").into_iter();
    let mut next = || tensors.next().expect("there is one");
    let norm = |next: &mut dyn FnMut() -> Tensor<f32>| -> BlockNorm<f32> {
        match is_gated {
            true => RmsNorm::new(next()).expect("it fits").into(),
            false => LayerNorm::new(next(), Some(next())).expect("it fits").into(),
        }
    };
    let linear = |next: &mut dyn FnMut() -> Tensor<f32>, activation| {
        Linear::new(next(), (!is_gated).then(&mut *next), activation).expect("it fits")
    };
    let input_norm = norm(&mut next);
    let config = AttentionConfig::new(HEADS).causal();
    let attention =
        Attention::fused(config, linear(&mut next, Activation::None), linear(&mut next, Activation::None));
    let table = RotaryTable::new(device, 100.0, COLUMNS / HEADS, POSITIONS).expect("it fits");
    let attention = attention.and_then(|layer| layer.with_rotary(table, Pairing::Halves)).expect("it fits");
    let mlp_norm = norm(&mut next);
    let mlp = if is_gated {
        let up = linear(&mut next, Activation::None);
        Mlp::gated_fused(up, linear(&mut next, Activation::None), Activation::Silu)
    } else {
        let up = linear(&mut next, Activation::Silu);
        Mlp::new(up, linear(&mut next, Activation::None))
    };
    TransformerBlock::new(input_norm, attention, mlp_norm, mlp.expect("it fits")).expect("it fits")
}

fn product(y: &Tensor<f32>, dy: &Tensor<f32>) -> f64 {
    bits(y).into_iter().zip(bits(dy)).map(|(y, dy)| f64::from(y) * f64::from(dy)).sum()
}

#[test]
fn gradients_are_those_of_differences() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        for is_gated in KINDS {
            let weights = weights(is_gated);
            let block_of = |weights: &[Vec<f32>]| block(&device, is_gated, weights);
            let layer = block_of(&weights);
            let (x, dy) = (tensor(&device, &[2, 5, COLUMNS], 20), tensor(&device, &[2, 5, COLUMNS], 21));
            let (y, saved) = layer.forward_train(&x)?;
            assert_eq!(bits(&y), bits(&layer.forward(&x)?));
            let gradients = layer.backward(&saved, &dy)?;
            // Each of the two sums that the block adds to x has roundings of its own.
            let size: f64 =
                bits(&y).into_iter().zip(bits(&dy)).map(|(y, dy)| 2.0 * f64::from((y * dy).abs())).sum();

            let dx = bits(gradients.dx());
            along(&direction(&dx), &dx, size, |step| {
                let mut numbers = bits(&x);
                moved(&mut numbers, &direction(&dx), step);
                let x = Tensor::from_slice(&device, &numbers, x.shape()).expect("it fits");
                product(&layer.forward(&x).expect("it fits"), &dy)
            });
            let of_weights = layer.gradients(&gradients);
            assert_eq!(of_weights.len(), weights.len());
            for (which, gradient) in of_weights.into_iter().enumerate() {
                let gradient = gradient.whole().to_f32()?;
                along(&direction(&gradient), &gradient, size, |step| {
                    let mut weights = weights.clone();
                    moved(&mut weights[which], &direction(&gradient), step);
                    product(&block_of(&weights).forward(&x).expect("it fits"), &dy)
                });
            }
        }
    }
    Ok(())
}

#[test]
fn weights_are_listed_by_name_and_gradients_have_their_order() -> Result<()> {
    let device = Device::cpu();
    let of = |is_gated| block(&device, is_gated, &weights(is_gated));
    let names =
        |is_gated| of(is_gated).parameters("blocks.3").into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let gated = [
        "input_norm.weight",
        "attention.qkv_proj.weight",
        "attention.o_proj.weight",
        "mlp_norm.weight",
        "mlp.gate_up_proj.weight",
        "mlp.down_proj.weight",
    ];
    assert_eq!(names(true), gated.map(|name| format!("blocks.3.{name}")));
    assert!(names(false).contains(&"blocks.3.attention.o_proj.bias".to_owned()));
    assert_eq!(of(true).parameters("")[0].0, "input_norm.weight");

    let x = tensor(&device, &[1, 4, COLUMNS], 1);
    for is_gated in KINDS {
        let layer = of(is_gated);
        let (y, saved) = layer.forward_train(&x)?;
        let gradients = layer.backward(&saved, &y)?;
        let shapes_of = |all: Vec<crate::ops::rows::AnyTensor<'_>>| {
            all.iter().map(|tensor| tensor.shape().to_vec()).collect::<Vec<_>>()
        };
        let parameters =
            layer.parameters("").into_iter().filter_map(|(_, weights)| weights.tensor()).collect();
        assert_eq!(shapes_of(parameters), shapes(is_gated));
        let gradients = layer.gradients(&gradients).into_iter().map(Gradient::whole).collect();
        assert_eq!(shapes_of(gradients), shapes(is_gated));
    }
    Ok(())
}

#[test]
fn gradients_of_two_passes_are_added_and_what_is_kept_is_counted() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let layer = block(&device, true, &weights(true));
        let (x, dy) = (tensor(&device, &[2, 6, COLUMNS], 3), tensor(&device, &[2, 6, COLUMNS], 4));
        let (_, saved) = layer.forward_train(&x)?;
        // x, the attention's x, queries, keys, values and results, h, the perceptron's x, gates, values and hidden numbers; of each row two statistics and of each head
        // a logarithm.
        assert_eq!(saved.bytes(), 4 * 12 * (8 * COLUMNS + 3 * HIDDEN + 2 + HEADS));
        let once = layer.backward(&saved, &dy)?;
        let mut twice = layer.backward(&saved, &dy)?;
        layer.accumulate(&saved, &dy, &mut twice)?;
        assert_eq!(bits(once.dx()), bits(twice.dx()));
        for (once, twice) in layer.gradients(&once).into_iter().zip(layer.gradients(&twice)) {
            let doubled: Vec<f32> = once.whole().to_f32()?.into_iter().map(|number| 2.0 * number).collect();
            assert_eq!(doubled, twice.whole().to_f32()?);
        }
    }
    Ok(())
}

#[test]
fn the_same_steps_give_the_same_bits_on_a_device() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let trained = || -> Result<(Vec<f64>, Vec<Vec<f32>>)> {
            let layer = block(&device, true, &weights(true));
            let options = AdamWOptions { learning_rate: 1e-2, ..AdamWOptions::default() };
            let mut optimizer = AdamW::new(&device, options)?;
            for (name, weights) in layer.parameters("block") {
                optimizer.add(name, weights)?;
            }
            let (x, dy) = (tensor(&device, &[2, 5, COLUMNS], 5), tensor(&device, &[2, 5, COLUMNS], 6));
            let mut values = Vec::new();
            for _ in 0..4 {
                let (y, saved) = layer.forward_train(&x)?;
                values.push(product(&y, &dy));
                let gradients = layer.backward(&saved, &dy)?;
                optimizer.step(&layer.gradients(&gradients))?;
            }
            let all = layer.parameters("");
            let numbers = all.into_iter().filter_map(|(_, weights)| weights.tensor()).map(|of| of.to_f32());
            Ok((values, numbers.collect::<Result<Vec<_>>>()?))
        };
        let (values, all) = trained()?;
        assert_eq!((&values, &all), (&trained()?.0, &trained()?.1));
        assert!(values.windows(2).all(|pair| pair[1] < pair[0]), "each step makes it less: {values:?}");
    }
    Ok(())
}

#[test]
fn tokens_one_after_the_other_give_what_all_together_give() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let layer = block(&device, true, &weights(true));
        let x = tensor(&device, &[2, 6, COLUMNS], 7);
        let all = layer.forward(&x)?;
        let mut cache = layer.new_cache(2, POSITIONS)?;
        for token in 0..6 {
            let range = token..token + 1;
            let y = layer.forward_with_cache(&x.slice(1, range.clone())?, &mut cache)?;
            let expected = all.slice(1, range)?.to_vec()?;
            let largest = expected.iter().fold(0f32, |largest, y| largest.max(y.abs()));
            for (y, expected) in y.to_vec()?.into_iter().zip(expected) {
                // As in the gradients' test: so many roundings of sums of some tens of terms.
                assert!((y - expected).abs() <= 128.0 * f32::EPSILON * largest, "{y} {expected}");
            }
        }
        assert_eq!(cache.lengths()?, [6, 6]);
        let refused = layer.operation(&x).cache(&mut cache).run_train();
        assert!(matches!(refused, Err(Error::Argument { argument: "cache", .. })), "{refused:?}");
    }
    Ok(())
}

#[test]
fn sequences_of_a_batch_do_not_know_of_each_other() -> Result<()> {
    let device = Device::cpu();
    let layer = block(&device, false, &weights(false));
    let x = tensor(&device, &[7, COLUMNS], 8);
    let offsets = Tensor::from_slice(&device, &[0u32, 3, 7], [3])?;
    let (packed, saved) = layer.operation(&x).packed(&offsets).run_train()?;
    let gradients = layer.backward(&saved, &packed)?;
    for rows in [0..3, 3..7] {
        let alone = x.slice(0, rows.clone())?.reshape([1, rows.len(), COLUMNS])?;
        let (y, saved) = layer.forward_train(&alone)?;
        assert_eq!(packed.slice(0, rows.clone())?.to_vec()?, bits(&y));
        assert_eq!(gradients.dx().slice(0, rows)?.to_vec()?, bits(layer.backward(&saved, &y)?.dx()));
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let device = Device::cpu();
    let linear = |rows, columns| {
        Linear::new(tensor(&device, &[rows, columns], 0), None, Activation::None).expect("it fits")
    };
    let norm = |columns| RmsNorm::new(tensor(&device, &[columns], 0)).expect("it fits");
    let attention = |out| {
        let config = AttentionConfig::new(HEADS);
        Attention::fused(config, linear(3 * COLUMNS, COLUMNS), linear(out, COLUMNS)).expect("it fits")
    };
    let mlp = |input, out| Mlp::new(linear(HIDDEN, input), linear(out, HIDDEN)).expect("it fits");
    let fits = || attention(COLUMNS);
    let (columns, wrong) = (COLUMNS, COLUMNS + 1);
    for (refused, name) in [
        (TransformerBlock::new(norm(wrong), fits(), norm(columns), mlp(columns, columns)), "input_norm"),
        (
            TransformerBlock::new(norm(columns), attention(wrong), norm(columns), mlp(columns, columns)),
            "attention.output",
        ),
        (TransformerBlock::new(norm(columns), fits(), norm(wrong), mlp(columns, columns)), "mlp_norm"),
        (TransformerBlock::new(norm(columns), fits(), norm(columns), mlp(wrong, columns)), "mlp.up"),
        (TransformerBlock::new(norm(columns), fits(), norm(columns), mlp(columns, wrong)), "mlp.down"),
    ] {
        assert!(matches!(refused, Err(Error::Shape { operand, .. }) if operand == name), "{name}");
    }

    // Gradients of another block, or a dy of another shape: nothing is added.
    let [one, other] = KINDS.map(|is_gated| block(&device, is_gated, &weights(is_gated)));
    let x = tensor(&device, &[1, 3, COLUMNS], 1);
    let (y, saved) = one.forward_train(&x).expect("it fits");
    let (_, of_other) = other.forward_train(&x).expect("it fits");
    let mut gradients = other.backward(&of_other, &y).expect("it fits");
    let before = bits(&gradients.mlp_norm.dweight);
    let refused = one.accumulate(&saved, &y, &mut gradients);
    assert!(matches!(refused, Err(Error::Argument { argument: "gradients", .. })), "{refused:?}");
    let short = tensor(&device, &[1, 2, COLUMNS], 1);
    let refused = other.accumulate(&of_other, &short, &mut gradients);
    assert!(matches!(refused, Err(Error::Shape { operand: "dy", .. })), "{refused:?}");
    assert_eq!(bits(&gradients.mlp_norm.dweight), before);
    let stream = device.default_stream();
    let refused = one.operation(&x).on(&stream).run_train();
    assert!(matches!(refused, Err(Error::Argument { argument: "stream", .. })), "{refused:?}");
}
