use crate::layers::differences::{along, bits, direction, moved, numbers, tensor};
use crate::layers::{Attention, AttentionConfig, Linear};
use crate::ops::{self, Activation, Pairing, RotaryTable};
use crate::{Device, Error, Tensor};

const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 8;
const INPUT: usize = 12;

/// The weights of a layer: of queries, of keys, of values and of results, and the biases of all four.
struct Weights {
    all: [Vec<f32>; 4],
    biases: [Vec<f32>; 4],
    sinks: Vec<f32>,
}

const OUTPUTS: [usize; 4] = [HEADS * WIDTH, KEY_HEADS * WIDTH, KEY_HEADS * WIDTH, INPUT];

impl Weights {
    fn new() -> Self {
        let columns = [INPUT, INPUT, INPUT, HEADS * WIDTH];
        Self {
            all: std::array::from_fn(|which| numbers(OUTPUTS[which] * columns[which], which)),
            biases: std::array::from_fn(|which| numbers(OUTPUTS[which], which + 4)),
            sinks: numbers(HEADS, 8),
        }
    }

    fn layer(&self, device: &Device, is_fused: bool) -> Attention<f32> {
        let linear = |which: &[usize]| {
            let of =
                |all: &[Vec<f32>; 4]| which.iter().flat_map(|&which| all[which].clone()).collect::<Vec<_>>();
            let (weight, bias) = (of(&self.all), of(&self.biases));
            let columns = weight.len() / bias.len();
            let weight = Tensor::from_slice(device, &weight, [bias.len(), columns]).expect("it fits");
            let bias = Tensor::from_slice(device, &bias, [bias.len()]).expect("it fits");
            Linear::new(weight, Some(bias), Activation::None).expect("it fits")
        };
        let config = AttentionConfig::new(HEADS).key_heads(KEY_HEADS).causal();
        let layer = if is_fused {
            Attention::fused(config, linear(&[0, 1, 2]), linear(&[3]))
        } else {
            Attention::new(config, linear(&[0]), linear(&[1]), linear(&[2]), linear(&[3]))
        };
        let table = RotaryTable::new(device, 100.0, WIDTH, 50).expect("it fits");
        let sinks = Tensor::from_slice(device, &self.sinks, [HEADS]).expect("it fits");
        let layer = layer.and_then(|layer| layer.with_rotary(table, Pairing::Halves));
        layer.and_then(|layer| layer.with_sinks(sinks)).expect("it fits")
    }
}

/// The sum of dy ∘ y in f64.
fn value(layer: &Attention<f32>, x: &Tensor<f32>, dy: &Tensor<f32>) -> f64 {
    let y = layer.forward(x).expect("it fits");
    bits(&y).into_iter().zip(bits(dy)).map(|(y, dy)| f64::from(y) * f64::from(dy)).sum()
}

#[test]
fn gradients_are_those_of_differences() {
    let device = Device::cpu();
    let weights = Weights::new;
    let (x, dy) = (tensor(&device, &[2, 9, INPUT], 20), tensor(&device, &[2, 9, INPUT], 21));
    let layer = weights().layer(&device, false);
    let (y, saved) = layer.forward_train(&x).expect("it fits");
    assert_eq!(bits(&y), bits(&layer.forward(&x).expect("it fits")));
    let gradients = layer.backward(&saved, &dy).expect("it fits");

    let size = bits(&y).into_iter().zip(bits(&dy)).map(|(y, dy)| f64::from((y * dy).abs())).sum();
    let of = direction;
    let dx = bits(&gradients.dx);
    along(&of(&dx), &dx, size, |step| {
        let mut numbers = bits(&x);
        moved(&mut numbers, &of(&dx), step);
        let x = Tensor::from_slice(&device, &numbers, x.shape()).expect("it fits");
        value(&layer, &x, &dy)
    });
    for which in 0..4 {
        let of_projection = if which == 3 { &gradients.output } else { &gradients.projections[which] };
        let (dw, db) = (bits(&of_projection.dw), bits(&of_projection.db));
        along(&of(&dw), &dw, size, |step| {
            let mut weights = weights();
            moved(&mut weights.all[which], &of(&dw), step);
            value(&weights.layer(&device, false), &x, &dy)
        });
        along(&of(&db), &db, size, |step| {
            let mut weights = weights();
            moved(&mut weights.biases[which], &of(&db), step);
            value(&weights.layer(&device, false), &x, &dy)
        });
    }
    let dsinks = bits(gradients.dsinks.as_ref().expect("there are sinks"));
    along(&of(&dsinks), &dsinks, size, |step| {
        let mut weights = weights();
        moved(&mut weights.sinks, &of(&dsinks), step);
        value(&weights.layer(&device, false), &x, &dy)
    });
}

#[test]
fn one_projection_has_the_gradients_of_three() {
    for name in ["cpu", "emulator:8.0"] {
        let device: Device = name.parse().expect("a device");
        let (x, dy) = (tensor(&device, &[2, 9, INPUT], 20), tensor(&device, &[2, 9, INPUT], 21));
        let [separate, fused] = [false, true].map(|is_fused| {
            let layer = Weights::new().layer(&device, is_fused);
            let (_, saved) = layer.forward_train(&x).expect("it fits");
            let mut gradients = layer.backward(&saved, &dy).expect("it fits");
            let once = bits(&gradients.output.dw);
            layer.accumulate(&saved, &dy, &mut gradients).expect("it fits");
            let twice: Vec<f32> = once.iter().map(|dw| 2.0 * dw).collect();
            assert_eq!(bits(&gradients.output.dw), twice, "{name}: added once");
            gradients
        });
        let joined: Vec<f32> = separate.projections.iter().flat_map(|of| bits(&of.dw)).collect();
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5);
        assert!(close(&joined, &bits(&fused.projections[0].dw)), "{name}");
        assert!(close(&bits(&separate.dx), &bits(&fused.dx)), "{name}");
        assert!(joined.iter().any(|dw| dw.abs() > 1e-2));
    }
}

#[test]
fn packed_and_padded_sequences_have_the_gradients_of_single_ones() {
    for name in ["cpu", "emulator:8.0"] {
        let device: Device = name.parse().expect("a device");
        let layer = Weights::new().layer(&device, true);
        let lengths = [5usize, 8];
        let padded = tensor(&device, &[2, 8, INPUT], 20);
        let dy = tensor(&device, &[2, 8, INPUT], 21);
        let of_lengths =
            Tensor::from_slice(&device, &lengths.map(|length| length as u32), [2]).expect("it fits");
        let (_, saved) = layer.operation(&padded).lengths(&of_lengths).run_train().expect("it fits");
        let of_padded = layer.backward(&saved, &dy).expect("it fits");

        let part = |x: &Tensor<f32>, b: usize| {
            let part = x.slice(0, b..b + 1).and_then(|x| x.slice(1, 0..lengths[b]));
            part.and_then(|x| x.contiguous()).expect("it is there")
        };
        let packed = |x: &Tensor<f32>| {
            let numbers: Vec<f32> = (0..2).flat_map(|b| bits(&part(x, b))).collect();
            Tensor::from_slice(&device, &numbers, [13, INPUT]).expect("it fits")
        };
        let offsets = Tensor::from_slice(&device, &[0u32, 5, 13], [3]).expect("it fits");
        let (x, of_x) = (packed(&padded), packed(&dy));
        let (_, saved) = layer.operation(&x).packed(&offsets).run_train().expect("it fits");
        let of_packed = layer.backward(&saved, &of_x).expect("it fits");

        let mut singles = Vec::new();
        for b in 0..2 {
            let (x, dy) = (part(&padded, b), part(&dy, b));
            let (_, saved) = layer.forward_train(&x).expect("it fits");
            singles.extend(bits(&layer.backward(&saved, &dy).expect("it fits").dx));
        }
        let close =
            |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5);
        assert!(close(&bits(&of_packed.dx), &singles), "{name}");
        let of_counted: Vec<f32> = (0..2).flat_map(|b| bits(&part(&of_padded.dx, b))).collect();
        assert!(close(&of_counted, &singles), "{name}");
        assert!(close(&bits(&of_padded.projections[0].dw), &bits(&of_packed.projections[0].dw)), "{name}");
        // Rows that do not count have no gradient.
        let rest = of_padded.dx.slice(0, 0..1).and_then(|dx| dx.slice(1, 5..8)).expect("it is there");
        assert!(bits(&rest).iter().all(|&dx| dx == 0.0), "{name}");
    }
}

#[test]
fn heads_without_gradients_are_refused_before_the_forward_pass() {
    let device: Device = "emulator:8.0".parse().expect("a device");
    for (width, rows, is_refused) in [(128, 3, false), (136, 3, true), (136, 0, false)] {
        for device in [&device, &Device::cpu()] {
            let weight = |shape: [usize; 2]| tensor(device, &shape, 3);
            let linear = |shape| Linear::new(weight(shape), None, Activation::None).expect("it fits");
            let config = AttentionConfig::new(1);
            let layer = Attention::fused(config, linear([3 * width, INPUT]), linear([INPUT, width]));
            let (layer, x) = (layer.expect("it fits"), tensor(device, &[1, rows, INPUT], 4));
            let trained = layer.forward_train(&x);
            if !is_refused || *device == Device::cpu() {
                let (_, saved) = trained.expect("gradients can be computed");
                layer.backward(&saved, &x).expect("as the forward pass says");
                continue;
            }
            let q = tensor(device, &[1, rows, 1, width], 5);
            let (y, lse) = ops::attention(&q, &q, &q).run_with_lse().expect("without gradients it runs");
            let expected =
                ops::attention(&q, &q, &q).backward(&y, &lse, &q).run().expect_err("no kernel does");
            let error = trained.expect_err("no kernel computes gradients");
            assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");
            assert_eq!(error.to_string(), expected.to_string());
            layer.forward(&x).expect("without gradients it runs");
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let device = Device::cpu();
    let (fused, separate) = (Weights::new().layer(&device, true), Weights::new().layer(&device, false));
    let x = tensor(&device, &[2, 9, INPUT], 20);
    let mut cache = fused.new_cache(2, 20).expect("it fits");
    let error = fused.operation(&x).cache(&mut cache).run_train().expect_err("a cache has no gradients");
    assert!(matches!(error, Error::Argument { argument: "cache", .. }), "{error}");
    let (_, saved) = fused.forward_train(&x).expect("it fits");
    let mut gradients = fused.backward(&saved, &x).expect("it fits");
    let error = separate.accumulate(&saved, &x, &mut gradients).expect_err("they are another layer's");
    assert!(matches!(error, Error::Argument { argument: "gradients", .. }), "{error}");
    let wide = tensor(&device, &[2, 9, INPUT + 1], 20);
    let error = fused.forward_train(&wide).expect_err("it does not fit");
    assert!(matches!(error, Error::Shape { operand: "x", .. }), "{error}");
    let error = fused.backward(&saved, &wide).expect_err("it does not fit");
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    // Queries, keys, values, results of heads and x, and a number of each row of each head.
    let elements = 2 * 9 * ((HEADS + 2 * KEY_HEADS + HEADS) * WIDTH + INPUT + HEADS);
    assert_eq!(saved.bytes(), 4 * elements);
}
