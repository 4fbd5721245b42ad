//! Sub-keys that a model normalises: constants once it is trained, so it is done once, when they are loaded.

use rayon::prelude::*;

use super::options::{Kind, QueryNorm};
use crate::cpu::{Normalization, Operand, product_key};
use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor};
use crate::weights::FloatElement;

/// The operation's name in errors.
const OPERATION: &str = "normalized_keys";

/// Sub-keys `[n, d / 2]` or `[H, n, d / 2]`, each normalised over its d / 2 numbers as a query is, on their device.
///
/// It is computed on the host in f64 and rounded once, and meant for when a model is loaded: it waits for the device. Tensors of the norm
/// have `[d / 2]` or `[H, d / 2]` numbers.
///
/// ```
/// use ndarray::array;
/// use warpsmith::ops::peer::{QueryNorm, normalized_keys};
/// use warpsmith::{Device, Tensor};
///
/// let keys = Tensor::from_array(&Device::cpu(), &array![[3.0f32, 4.0], [0.0, -2.0]])?;
/// assert_eq!(normalized_keys(&keys, QueryNorm::l2(1e-12))?.to_vec()?, [0.6, 0.8, 0.0, -1.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Shape`] if an operand does not fit, [`Error::Argument`] if the norm's epsilon is not a number from 0 up; whatever copying from the device and to it may return.
pub fn normalized_keys<T>(keys: &Tensor<T>, norm: QueryNorm<'_>) -> Result<Tensor<T>>
where
    T: Element + Operand + FloatElement,
{
    let (groups, n, half) = match *keys.shape() {
        [n, half] => (1, n, half),
        [groups, n, half] => (groups, n, half),
        _ => {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "keys",
                expected: "[n, d / 2] or [H, n, d / 2]".into(),
                actual: keys.shape().to_vec(),
            });
        }
    };
    let values = |operand, tensor: &Tensor<f32>| {
        if tensor.shape() == [half] || tensor.shape() == [groups, half] {
            return tensor.to_vec();
        }
        let expected = format!("[{half}], or [{groups}, {half}]");
        Err(Error::Shape { operation: OPERATION, operand, expected, actual: tensor.shape().to_vec() })
    };
    let weight = norm.weight.map(|weight| values("weight of the norm", weight)).transpose()?;
    let bias = norm.bias.map(|bias| values("bias of the norm", bias)).transpose()?;
    let (mean, variance) = match norm.kind {
        Kind::Batch { mean, variance } => (values("mean", mean)?, values("variance", variance)?),
        _ => (Vec::new(), Vec::new()),
    };
    let epsilon = norm.epsilon;
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        return Err(Error::Argument {
            operation: OPERATION,
            argument: "epsilon",
            expected: "0 or above".into(),
            actual: epsilon.to_string(),
        });
    }
    let kind = match norm.kind {
        Kind::None => Normalization::None,
        Kind::Layer => Normalization::Layer { epsilon },
        Kind::Rms => Normalization::Rms { epsilon },
        Kind::L2 => Normalization::L2 { epsilon },
        Kind::Batch { .. } => Normalization::Batch { mean: &mean, variance: &variance, epsilon },
    };
    let mut elements = keys.to_vec()?;
    if half > 0 {
        elements.par_chunks_mut(half).enumerate().for_each(|(row, key)| {
            let mut numbers: Vec<f64> = key.iter().map(|value| f64::from(Operand::to_f32(*value))).collect();
            product_key::normalise(&mut numbers, row / n, kind, [weight.as_deref(), bias.as_deref()]);
            for (key, number) in key.iter_mut().zip(numbers) {
                *key = T::round(number);
            }
        });
    }
    Tensor::from_slice(keys.device(), &elements, keys.shape())
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::{QueryNorm, normalized_keys};
    use crate::{Device, Error, Tensor};

    #[test]
    fn each_sub_key_is_normalised_with_the_numbers_of_its_head() {
        let device = Device::cpu();
        let keys: Vec<f16> = [1.0, 3.0, 2.0, -2.0, 5.0, 5.0, 0.0, 4.0].map(f16::from_f32).to_vec();
        let keys = Tensor::from_slice(&device, &keys, [2, 2, 2]).unwrap();
        let weight = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let bias = Tensor::from_slice(&device, &[0.5f32, 0.0, 0.0, 0.0], [2, 2]).unwrap();
        let norm = QueryNorm::layer(0.0).weight(&weight).bias(&bias);
        let flat = keys.slice(1, 1..2).unwrap();
        let normalised = normalized_keys(&flat, norm).unwrap();
        assert_eq!(normalised.shape(), [2, 1, 2]);
        let values: Vec<f32> = normalised.to_vec().unwrap().into_iter().map(f16::to_f32).collect();
        assert_eq!(values, [1.5, -2.0, -3.0, 4.0]);
        let mean = Tensor::from_slice(&device, &[1.0f32, 2.0], [2]).unwrap();
        let variance = Tensor::from_slice(&device, &[4.0f32, 16.0], [2]).unwrap();
        let batch = normalized_keys(&keys, QueryNorm::batch(&mean, &variance, 0.0)).unwrap();
        let values: Vec<f32> = batch.to_vec().unwrap().into_iter().map(f16::to_f32).collect();
        assert_eq!(values[..4], [0.0, 0.25, 0.5, -1.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::cpu();
        let keys = Tensor::<f32>::zeros(&device, [4, 3]).unwrap();
        let weight = Tensor::zeros(&device, [4]).unwrap();
        let refused = normalized_keys(&keys, QueryNorm::rms(1.0).weight(&weight));
        assert!(matches!(refused, Err(Error::Shape { operand: "weight of the norm", .. })));
        for epsilon in [-1.0, f32::NAN, f32::INFINITY] {
            let refused = normalized_keys(&keys, QueryNorm::rms(epsilon));
            assert!(matches!(refused, Err(Error::Argument { argument: "epsilon", .. })));
        }
        let vector = Tensor::<f32>::zeros(&device, [4]).unwrap();
        assert!(matches!(
            normalized_keys(&vector, QueryNorm::none()),
            Err(Error::Shape { operand: "keys", .. })
        ));
        let none = Tensor::<f32>::zeros(&device, [0, 3]).unwrap();
        assert_eq!(normalized_keys(&none, QueryNorm::l2(1.0)).unwrap().shape(), [0, 3]);
    }
}
