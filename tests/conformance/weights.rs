//! Damaged files of weights: whatever the bytes are, loading them ends in an error or in tensors that can be read.

use libtest_mimic::{Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use warpsmith::layers::Linear;
use warpsmith::ops::Activation;
use warpsmith::{Device, Error, Weights};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        crate::timed::trial("weights::damaged_files_never_panic", damaged_files_never_panic),
        crate::timed::trial("weights::random_bytes_never_panic", random_bytes_never_panic),
        crate::timed::trial("weights::what_a_layer_lacks_is_named", what_a_layer_lacks_is_named),
    ]
}

fn file() -> Vec<u8> {
    let bytes: Vec<u8> = (0..48u8).collect();
    let view = |dtype, shape: &[usize], length: usize| {
        TensorView::new(dtype, shape.to_vec(), &bytes[..length]).expect("the shape fits the data")
    };
    let tensors = [
        ("layer.weight", view(Dtype::F32, &[3, 4], 48)),
        ("layer.bias", view(Dtype::F32, &[3], 12)),
        ("half", view(Dtype::F16, &[2, 5], 20)),
        ("labels", view(Dtype::I64, &[4], 32)),
        ("empty", view(Dtype::BF16, &[0, 7], 0)),
    ];
    safetensors::serialize(tensors, None).expect("the tensors serialise")
}

/// Reads everything that a file says it has.
fn read_all(bytes: Vec<u8>) -> Result<usize, Error> {
    let weights = Weights::from_bytes(bytes)?;
    let mut elements = 0;
    for name in weights.names() {
        elements += weights.array_converted::<half::f16>(name).map_or(0, |array| array.len());
        elements += weights.array::<f32>(name).map_or(0, |array| array.len());
        elements += weights.array::<i64>(name).map_or(0, |array| array.len());
        let _ = Linear::<f32>::from_safetensors(&weights, name, &Device::cpu(), Activation::None);
    }
    let _ = Linear::<f32>::from_safetensors(&weights, "layer", &Device::cpu(), Activation::None);
    Ok(elements)
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn damaged_files_never_panic() -> Result<(), Failed> {
    let sound = file();
    assert_eq!(read_all(sound.clone())?, 12 + 12 + 3 + 3 + 10 + 4);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5);
    let length = prop_oneof![3 => Just(sound.len()), 1 => 0..sound.len()];
    Ok(runner(5000).run(&(damage, length), |(damage, length)| {
        let mut bytes = sound.clone();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length);
        let _ = read_all(bytes);
        Ok(())
    })?)
}

fn random_bytes_never_panic() -> Result<(), Failed> {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    Ok(runner(2000).run(&bytes, |bytes| {
        prop_assert!(read_all(bytes).is_err());
        Ok(())
    })?)
}

fn what_a_layer_lacks_is_named() -> Result<(), Failed> {
    let weights = Weights::from_bytes(file())?;
    let device = Device::cpu();
    let layer = Linear::<f32>::from_safetensors(&weights, "layer", &device, Activation::Relu)?;
    assert_eq!((layer.weight().shape(), layer.bias().map(|bias| bias.len())), (&[3, 4][..], Some(3)));
    let text =
        |result: warpsmith::Result<Linear<f32>>| result.map(|_| ()).expect_err("it is not there").to_string();
    let missing = text(Linear::from_safetensors(&weights, "other", &device, Activation::Relu));
    assert!(missing.contains("other.weight") && missing.contains("layer.weight"), "{missing}");
    let wrong = Linear::<half::f16>::from_safetensors(&weights, "layer", &device, Activation::Relu);
    let wrong = wrong.map(|_| ()).expect_err("it is f32").to_string();
    assert!(wrong.contains("f16") && wrong.contains("F32"), "{wrong}");
    let absent = Weights::load("/nonexistent/weights.safetensors").map(|_| ()).expect_err("no such file");
    assert!(matches!(absent, Error::Io { .. }) && absent.to_string().contains("nonexistent"), "{absent}");
    Ok(())
}
