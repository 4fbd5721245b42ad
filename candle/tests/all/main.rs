//! Every operation against candle's own operations in f64, within bounds that follow from types and lengths of sums.

mod attention;
mod errors;
mod experts;
mod inputs;
mod layers;
mod linear;
mod near;
mod rows;
mod update;

use candle_core::{Result, Tensor};
use warpsmith_candle::Activation;

/// An activation by candle's operations.
pub(crate) fn activated(z: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        // The gradient of candle's own ReLU passes at 0.
        Activation::Relu => z.mul(&z.gt(0.0)?.to_dtype(z.dtype())?),
        // The gradients of candle's own GELUs have constants of a few digits.
        Activation::GeluErf => z.mul(&(z * std::f64::consts::FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?),
        Activation::GeluTanh => {
            let cube = z.mul(z)?.mul(z)?.affine(0.044715, 0.0)?;
            let argument = (z + cube)?.affine((2.0 / std::f64::consts::PI).sqrt(), 0.0)?;
            z.mul(&argument.tanh()?.affine(0.5, 0.5)?)
        }
        Activation::Silu => z.silu(),
        _ => Ok(z.clone()),
    }
}

/// Its slopes, element by element.
pub(crate) fn slopes(z: &Tensor, activation: Activation) -> Result<Tensor> {
    let slopes: Vec<f64> =
        z.flatten_all()?.to_vec1::<f64>()?.into_iter().map(|z| activation.derivative(z)).collect();
    Tensor::from_vec(slopes, z.shape(), z.device())
}
