use std::collections::BTreeSet;

use super::super::{Norm, Peer, PeerConfig, PeerRouter};
use crate::layers::Parameters;
use crate::layers::differences::{along, bits, direction, moved, numbers, tensor};
use crate::ops::Activation;
use crate::ops::peer::{ExpertFormat, Gate};
use crate::optim::{AdamW, AdamWOptions};
use crate::peer::{CacheOptions, ExpertMemory};
use crate::{Device, Error, Result, Tensor};

const HEADS: usize = 3;
const COLUMNS: usize = 8;
const QUERY: usize = 6;

/// One expert: whatever moves, it is chosen.
fn config() -> PeerConfig {
    PeerConfig::default()
        .input(COLUMNS)
        .output(COLUMNS)
        .sub_keys(1)
        .heads(HEADS)
        .experts_per_head(1)
        .query(QUERY)
        .gate(Gate::Sigmoid)
        .activation(Activation::Silu)
}

/// The shapes of the router's weights in the order of their names, and of u and v of the expert.
const SHAPES: [&[usize]; 8] = [
    &[HEADS * QUERY, COLUMNS],
    &[HEADS * QUERY],
    &[HEADS, 1, QUERY / 2],
    &[HEADS, 1, QUERY / 2],
    &[QUERY],
    &[QUERY],
    &[1, COLUMNS],
    &[1, COLUMNS],
];

fn weights() -> Vec<Vec<f32>> {
    SHAPES.iter().enumerate().map(|(seed, shape)| numbers(shape.iter().product(), seed)).collect()
}

fn layer(device: &Device, weights: &[Vec<f32>]) -> Peer<f32> {
    let new = |which: usize| Tensor::from_slice(device, &weights[which], SHAPES[which]).expect("it fits");
    let router = PeerRouter {
        query_bias: Some(new(1)),
        query_norm_weight: Some(new(4)),
        query_norm_bias: Some(new(5)),
        ..PeerRouter::new(new(0), [new(2), new(3)])
    };
    let experts = |_| Ok([weights[6].clone(), Vec::new(), weights[7].clone()]);
    Peer::new(device, &config(), router, experts).expect("a small layer")
}

fn product(y: &Tensor<f32>, dy: &Tensor<f32>) -> f64 {
    bits(y).into_iter().zip(bits(dy)).map(|(y, dy)| f64::from(y) * f64::from(dy)).sum()
}

#[test]
fn gradients_are_those_of_differences() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let weights = weights();
        let of = |weights: &[Vec<f32>]| layer(&device, weights);
        let layer = of(&weights);
        let (x, dy) = (tensor(&device, &[2, 4, COLUMNS], 20), tensor(&device, &[2, 4, COLUMNS], 21));
        let (y, saved) = layer.forward_train(&x)?;
        assert_eq!(bits(&y), bits(&layer.forward(&x)?));
        assert_eq!(saved.bytes(), 4 * 8 * (COLUMNS + 2 * HEADS));
        let gradients = layer.backward(&saved, &dy)?;
        let size: f64 =
            bits(&y).into_iter().zip(bits(&dy)).map(|(y, dy)| 2.0 * f64::from((y * dy).abs())).sum();

        let dx = bits(&gradients.dx);
        along(&direction(&dx), &dx, size, |step| {
            let mut numbers = bits(&x);
            moved(&mut numbers, &direction(&dx), step);
            let x = Tensor::from_slice(&device, &numbers, x.shape()).expect("it fits");
            product(&layer.forward(&x).expect("it fits"), &dy)
        });
        let of_router = layer.gradients(&gradients).into_iter().filter_map(|of| of.tensor());
        let mut all = of_router.map(|of| of.to_f32()).collect::<Result<Vec<_>>>()?;
        let (ids, [du, _, dv]) = gradients.experts.read()?;
        assert_eq!(ids, [0]);
        all.extend([du, dv]);
        assert_eq!(all.len(), weights.len());
        for (which, gradient) in all.iter().enumerate() {
            along(&direction(gradient), gradient, size, |step| {
                let mut weights = weights.clone();
                moved(&mut weights[which], &direction(gradient), step);
                product(&of(&weights).forward(&x).expect("it fits"), &dy)
            });
        }
    }
    Ok(())
}

#[test]
fn gradients_of_a_second_pass_are_added_to_those_of_the_router() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let layer = layer(&device, &weights());
        let (x, dy) = (tensor(&device, &[5, COLUMNS], 20), tensor(&device, &[5, COLUMNS], 21));
        let (_, saved) = layer.forward_train(&x)?;
        let once = layer.backward(&saved, &dy)?;
        let mut twice = layer.backward(&saved, &dy)?;
        layer.accumulate_on(&saved, &dy, &mut twice, &device.new_stream()?)?;
        assert_eq!(bits(&twice.dx), bits(&once.dx));
        assert_eq!(twice.experts.read()?, once.experts.read()?);
        for (twice, once) in layer.gradients(&twice).into_iter().zip(layer.gradients(&once)) {
            let (Some(twice), Some(once)) = (twice.tensor(), once.tensor()) else { continue };
            let (twice, once) = (twice.to_f32()?, once.to_f32()?);
            let largest = once.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
            assert!(largest > 0.0);
            for (twice, once) in twice.into_iter().zip(once) {
                // Terms are added one by one onto what is there.
                assert!((twice - 2.0 * once).abs() <= 64.0 * f32::EPSILON * largest, "{twice} {once}");
            }
        }
    }
    Ok(())
}

/// Tokens of which each uses two of a hundred experts.
#[test]
fn an_optimiser_moves_the_router_and_the_experts_in_use() -> Result<()> {
    const SUB_KEYS: usize = 10;
    let config = config().sub_keys(SUB_KEYS).heads(1).experts_per_head(2);
    for device in [Device::cpu(), Device::emulator()] {
        let make = |format: ExpertFormat| {
            let new = |seed: usize, shape: &[usize]| tensor(&device, shape, seed);
            let keys = [new(2, &[SUB_KEYS, QUERY / 2]), new(3, &[SUB_KEYS, QUERY / 2])];
            let router = PeerRouter::new(new(1, &[QUERY, COLUMNS]), keys);
            Peer::new(&device, &config.format(format), router, |range| {
                let part = |seed: usize| numbers(COLUMNS * SUB_KEYS * SUB_KEYS, seed);
                assert_eq!(range, 0..SUB_KEYS * SUB_KEYS);
                Ok([part(4), Vec::new(), part(5)])
            })
        };
        let (layer, x) = (make(ExpertFormat::F32)?, tensor(&device, &[6, COLUMNS], 6));
        let target = bits(&tensor(&device, &[6, COLUMNS], 7));
        let rows = || layer.experts().table().expect("it is on the device").read_rows(0..100);
        let before = rows()?;
        let options = AdamWOptions { learning_rate: 0.03, weight_decay: 0.0, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(&device, options)?;
        for (name, weights) in layer.parameters("peer") {
            optimizer.add(name, weights)?;
        }
        let names: Vec<_> = optimizer.names().collect();
        assert_eq!(names, ["peer.query.weight", "peer.keys_1", "peer.keys_2", "peer.experts"]);
        let (mut losses, mut used) = (Vec::new(), BTreeSet::new());
        for _ in 0..30 {
            let (y, saved) = layer.forward_train(&x)?;
            let dy: Vec<f32> = bits(&y).into_iter().zip(&target).map(|(y, target)| y - target).collect();
            losses.push(dy.iter().map(|d| d * d).sum::<f32>());
            used.extend(saved.routing().ids.to_vec()?);
            let gradients = layer.backward(&saved, &Tensor::from_slice(&device, &dy, [6, COLUMNS])?)?;
            optimizer.step(&layer.gradients(&gradients))?;
        }
        assert!(losses[29] < 0.1 * losses[0], "{device}: {losses:?}");
        assert!(used.len() < 60, "some are not used");
        let (after, row) = (rows()?, before.len() / 100);
        for (id, (before, after)) in before.chunks(row).zip(after.chunks(row)).enumerate() {
            assert_eq!(before != after, used.contains(&(id as u32)), "{device}: expert {id}");
        }
        // Of a quantised table the router alone is trained.
        let frozen = make(ExpertFormat::Int8)?;
        let (y, saved) = frozen.forward_train(&x)?;
        let gradients = frozen.backward(&saved, &y)?;
        assert_eq!((frozen.parameters("").len(), frozen.gradients(&gradients).len()), (3, 3));
    }
    Ok(())
}

#[test]
fn layers_that_cannot_be_trained_say_why() -> Result<()> {
    let device = Device::cpu();
    let x = tensor(&device, &[2, COLUMNS], 1);
    let make = |config: &PeerConfig| {
        let new = |which: usize| tensor(&device, SHAPES[which], which);
        let router = PeerRouter::new(new(0), [new(2), new(3)]);
        Peer::new(&device, config, router, |_| Ok([numbers(COLUMNS, 1), Vec::new(), numbers(COLUMNS, 2)]))
    };
    let message = |config: &PeerConfig| -> Result<String> {
        match make(config)?.forward_train(&x) {
            Err(error @ Error::Argument { argument: "layer", .. }) => Ok(error.to_string()),
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    let cached = config().memory(ExpertMemory::Cached).cache(CacheOptions::default().slots(1));
    assert!(message(&cached)?.contains("behind a cache"));
    assert!(message(&config().key_norm(Norm::L2 { epsilon: 1e-6 }))?.contains("were normalised"));
    let other = Device::emulator();
    let layer = make(&config())?;
    let (y, saved) = layer.forward_train(&x)?;
    let refused = layer.backward_on(&saved, &y, &other.default_stream());
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "stream", .. })));
    let mut gradients = layer.backward(&saved, &y)?;
    let refused = layer.accumulate_on(&saved, &y, &mut gradients, &other.default_stream());
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "stream", .. })));
    Ok(())
}
