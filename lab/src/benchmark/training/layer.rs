//! A linear layer whose passes write into memory that stays, so that they can be captured.

use warpsmith::error::Result;
use warpsmith::ops::linear::{LinearBackwardOp, LinearGradientOutputs, LinearOp};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::stream::Stream;
use warpsmith::tensor::Tensor;

use super::{Trained, draw};

/// Weights `[N, K]` and a bias.
pub(super) struct Layer<T: Trained> {
    pub(super) weight: Tensor<T>,
    pub(super) bias: Tensor<T>,
    activation: Activation,
}

/// What the activation's slopes are known from.
#[derive(Clone)]
enum Kept<T: Trained> {
    Nothing,
    Mask(Tensor<u32>),
    Argument(Tensor<T>),
}

/// What the passes of a batch write.
pub(super) struct Gradients<T: Trained> {
    pub(super) y: Tensor<T>,
    kept: Kept<T>,
    /// Without an activation there is none: the products read dY.
    dz: Option<Tensor<T>>,
    pub(super) dw: Tensor<f32>,
    pub(super) db: Tensor<f32>,
}

/// Bytes that a pass and its gradients must read and write: both x and w twice, and what is kept.
pub(super) fn bytes<T>(activation: Activation, [m, k, n]: [usize; 3], has_dx: bool) -> f64 {
    let [m, k, n, size] = [m, k, n, size_of::<T>()].map(|it| it as f64);
    let kept = match activation {
        Activation::None => 0.0,
        Activation::Relu => m * n / 8.0,
        _ => m * n * size,
    };
    let forward = (m * k + n * k + n + m * n) * size + kept;
    // Of dX alone the weight is read.
    let of_dx = if has_dx { (n * k + m * k) * size } else { 0.0 };
    forward + (m * n + m * k) * size + kept + of_dx + 4.0 * (n * k + n)
}

impl<T: Trained> Layer<T> {
    /// Of drawn weights, evenly between ± `limit`, from K to N columns.
    pub(super) fn new(
        stream: &Stream,
        activation: Activation,
        [k, n]: [usize; 2],
        limit: f64,
    ) -> Result<Self> {
        let bias = draw::<T>(stream, 1, [1, n], limit)?.reshape([n])?;
        Ok(Self { weight: draw(stream, 0, [n, k], limit)?, bias, activation })
    }

    pub(super) fn deep_clone(&self) -> Result<Self> {
        Ok(Self { weight: self.weight.deep_clone()?, bias: self.bias.deep_clone()?, ..*self })
    }

    fn operation<'a>(&'a self, x: &'a Tensor<T>, kept: &'a mut Kept<T>) -> LinearOp<'a, T, T> {
        let operation = ops::linear(x, &self.weight).bias(&self.bias).activation(self.activation);
        match kept {
            Kept::Nothing => operation,
            Kept::Mask(mask) => operation.relu_mask(mask),
            Kept::Argument(z) => operation.preactivation(z),
        }
    }

    /// Which implementation the forward pass takes.
    pub(super) fn forward_implementation(
        &self,
        gradients: &Gradients<T>,
        x: &Tensor<T>,
    ) -> Result<Implementation> {
        self.operation(x, &mut gradients.kept.clone()).implementation_into(&gradients.y)
    }

    /// The forward pass.
    pub(super) fn run(&self, stream: &Stream, gradients: &Gradients<T>, x: &Tensor<T>) -> Result<()> {
        // Views: results are written through them.
        let (mut y, mut kept) = (gradients.y.clone(), gradients.kept.clone());
        self.operation(x, &mut kept).on(stream).run_into(&mut y)
    }

    pub(super) fn backward<'a>(
        &'a self,
        gradients: &'a Gradients<T>,
        x: &'a Tensor<T>,
        dy: &'a Tensor<T>,
    ) -> LinearBackwardOp<'a, T, T> {
        let operation = ops::linear_backward(x, &self.weight, dy).activation(self.activation);
        match &gradients.kept {
            Kept::Nothing => operation,
            Kept::Mask(mask) => operation.relu_mask(mask),
            Kept::Argument(z) => operation.preactivation(z),
        }
    }

    /// The backward pass; without a place for dX that is not computed.
    pub(super) fn run_backward(
        &self,
        stream: &Stream,
        gradients: &Gradients<T>,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: Option<&Tensor<T>>,
    ) -> Result<()> {
        let (mut dx, mut dz) = (dx.cloned(), gradients.dz.clone());
        let (mut dw, mut db) = (gradients.dw.clone(), gradients.db.clone());
        self.backward(gradients, x, dy).on(stream).run_into(LinearGradientOutputs {
            dx: dx.as_mut(),
            dw: Some(&mut dw),
            db: Some(&mut db),
            dz: dz.as_mut(),
            ..LinearGradientOutputs::default()
        })
    }
}

impl<T: Trained> Gradients<T> {
    /// Room for a batch of `rows` rows.
    pub(super) fn new(stream: &Stream, layer: &Layer<T>, rows: usize) -> Result<Self> {
        let (columns, of_y) = (layer.bias.len(), [rows, layer.bias.len()]);
        let kept = match layer.activation {
            Activation::None => Kept::Nothing,
            Activation::Relu => Kept::Mask(Tensor::zeros_on(stream, [rows, columns.div_ceil(32)])?),
            _ => Kept::Argument(Tensor::zeros_on(stream, of_y)?),
        };
        let has_dz = !matches!(kept, Kept::Nothing);
        Ok(Self {
            y: Tensor::zeros_on(stream, of_y)?,
            kept,
            dz: has_dz.then(|| Tensor::zeros_on(stream, of_y)).transpose()?,
            dw: Tensor::zeros_on(stream, layer.weight.shape())?,
            db: Tensor::zeros_on(stream, [columns])?,
        })
    }
}
