//! Forward passes that keep what the backward pass needs, and backward passes of layers.

mod update;

pub use update::UpdateSaved;

use super::{Embedding, LayerNorm, Linear, RmsNorm};
use crate::error::Result;
use crate::ops::embedding::{EmbeddingBackwardOp, EmbeddingElement, EmbeddingId, SparseRows};
use crate::ops::linear::{
    LinearBackwardOp, LinearGradientElement, LinearGradientOutputs, LinearGradients, LinearInput,
};
use crate::ops::norm::{NormElement, NormGradientOp, NormGradientOutputs, NormGradients, NormOp, Normed};
use crate::ops::{self, Activation};
use crate::tensor::{Element, Tensor};

fn bytes_of<T: Element>(tensor: &Tensor<T>) -> usize {
    tensor.len() * size_of::<T>()
}

/// What [`Linear::forward_train`] keeps for [`Linear::backward`].
///
/// It shares the memory of x, which has to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct LinearSaved<T: Element> {
    x: Tensor<T>,
    slopes: SavedSlopes<T>,
}

/// What an activation's slopes are known from.
#[derive(Clone, Debug)]
enum SavedSlopes<T: Element> {
    /// There is no activation.
    None,
    /// Where the argument of ReLU is above 0: one bit an element.
    Mask(Tensor<u32>),
    /// The activation's argument.
    Preactivation(Tensor<T>),
}

impl<T: LinearInput> SavedSlopes<T> {
    /// A place for those of a layer's activation.
    fn new(layer: &Linear<T>, x: &Tensor<T>) -> Result<Self> {
        let columns = layer.weight().shape()[0];
        let stream = x.device().default_stream();
        let shape = |last: usize| {
            let mut shape = x.shape().to_vec();
            if let Some(length) = shape.last_mut() {
                *length = last;
            }
            shape
        };
        Ok(match layer.activation() {
            Activation::None => Self::None,
            Activation::Relu => Self::Mask(Tensor::uninit_on(&stream, shape(columns.div_ceil(32)))?),
            _ => Self::Preactivation(Tensor::uninit_on(&stream, shape(columns))?),
        })
    }
}

impl<T: Element> SavedSlopes<T> {
    fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Mask(mask) => bytes_of(mask),
            Self::Preactivation(z) => bytes_of(z),
        }
    }
}

impl<T: Element> LinearSaved<T> {
    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        bytes_of(&self.x) + self.slopes.bytes()
    }
}

impl<T: LinearInput + LinearGradientElement> Linear<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, and of ReLU a bit for each element of the output, of other activations their
    /// argument.
    ///
    /// ```
    /// use ndarray::array;
    /// use warpsmith::layers::Linear;
    /// use warpsmith::ops::Activation;
    /// use warpsmith::{Device, Tensor};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device = Device::cpu();
    /// let weight = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, -1.0]])?;
    /// let layer = Linear::new(weight, None, Activation::Relu)?;
    /// let x = Tensor::from_array(&device, &array![[3.0f32, 4.0]])?;
    /// let (y, saved) = layer.forward_train(&x)?;
    /// assert_eq!(y.to_vec()?, [3.0, 0.0]);
    /// assert_eq!(saved.bytes(), 8 + 4);
    ///
    /// let dy = Tensor::from_array(&device, &array![[10.0f32, 10.0]])?;
    /// let mut gradients = layer.backward(&saved, &dy)?;
    /// assert_eq!(gradients.dx.to_vec()?, [10.0, 0.0]);
    /// assert_eq!(gradients.dw.to_vec()?, [30.0, 40.0, 0.0, 0.0]);
    ///
    /// // Another pass, whose gradients of the weights are added.
    /// layer.accumulate(&saved, &dy, &mut gradients)?;
    /// assert_eq!(gradients.dw.to_vec()?, [60.0, 80.0, 0.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, LinearSaved<T>)> {
        let (y, slopes) = match SavedSlopes::new(self, x)? {
            SavedSlopes::None => (self.operation(x).run()?, SavedSlopes::None),
            SavedSlopes::Mask(mut mask) => {
                (self.operation(x).relu_mask(&mut mask).run()?, SavedSlopes::Mask(mask))
            }
            SavedSlopes::Preactivation(mut z) => {
                (self.operation(x).preactivation(&mut z).run()?, SavedSlopes::Preactivation(z))
            }
        };
        Ok((y, LinearSaved { x: x.clone(), slopes }))
    }

    /// The gradients of x, of the weight and of the bias, these in f32, for the gradient of the output.
    ///
    /// # Errors
    ///
    /// As [`LinearBackwardOp::run`].
    pub fn backward(&self, saved: &LinearSaved<T>, dy: &Tensor<T>) -> Result<LinearGradients<T, T>> {
        self.backward_operation(saved, dy).run()
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of the weight and of the bias. That of x is written over.
    ///
    /// # Errors
    ///
    /// As [`LinearBackwardOp::run_into`].
    pub fn accumulate(
        &self,
        saved: &LinearSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut LinearGradients<T, T>,
    ) -> Result<()> {
        let LinearGradients { dx, dw, db, .. } = gradients;
        self.backward_operation(saved, dy).run_into(LinearGradientOutputs {
            dx: Some(dx),
            dw: Some(dw),
            db: Some(db),
            adds: true,
            ..LinearGradientOutputs::default()
        })
    }

    /// The backward pass as an operation, for what else it can do: some of the gradients, into existing tensors, on a stream.
    pub fn backward_operation<'a>(
        &'a self,
        saved: &'a LinearSaved<T>,
        dy: &'a Tensor<T>,
    ) -> LinearBackwardOp<'a, T, T> {
        let operation = ops::linear_backward(&saved.x, self.weight(), dy)
            .activation(self.activation())
            .precision(self.precision());
        match &saved.slopes {
            SavedSlopes::None => operation,
            SavedSlopes::Mask(mask) => operation.relu_mask(mask),
            SavedSlopes::Preactivation(z) => operation.preactivation(z),
        }
    }
}

/// What [`LayerNorm::forward_train`] and [`RmsNorm::forward_train`] keep for the backward pass.
///
/// It shares the memory of x, which has to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct NormSaved<T: Element> {
    x: Tensor<T>,
    /// Of each row; an RMS norm has none.
    mean: Option<Tensor<f32>>,
    inverse_deviation: Tensor<f32>,
}

impl<T: NormElement> NormSaved<T> {
    /// Runs a norm of `x`, and keeps its statistics, and what was normed: x, or with a residual the sum.
    pub(super) fn of(x: &Tensor<T>, norm: NormOp<'_, T>) -> Result<(Tensor<T>, Self)> {
        let Normed { y, sum, mean, inverse_deviation, .. } = norm.run_saving()?;
        Ok((y, Self { x: sum.unwrap_or_else(|| x.clone()), mean, inverse_deviation }))
    }

    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        bytes_of(&self.x) + self.mean.as_ref().map_or(0, bytes_of) + bytes_of(&self.inverse_deviation)
    }
}

/// The backward passes of a layer that norms rows.
macro_rules! norm_training {
    ($layer:ident) => {
        impl<T: NormElement> $layer<T> {
            /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, and the statistics of its rows.
            ///
            /// # Errors
            ///
            /// As [`forward`](Self::forward).
            pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, NormSaved<T>)> {
                NormSaved::of(x, self.operation(x))
            }

            /// The gradients of x, of the weight and of the bias, these in f32, for the gradient of the output.
            ///
            /// # Errors
            ///
            /// As [`NormGradientOp::run`].
            pub fn backward(&self, saved: &NormSaved<T>, dy: &Tensor<T>) -> Result<NormGradients<T>> {
                self.backward_operation(saved, dy).run()
            }

            /// As [`backward`](Self::backward), adding to the existing gradients of the weight and of the bias. That of x is written over.
            ///
            /// # Errors
            ///
            /// As [`NormGradientOp::run_into`].
            pub fn accumulate(
                &self,
                saved: &NormSaved<T>,
                dy: &Tensor<T>,
                gradients: &mut NormGradients<T>,
            ) -> Result<()> {
                let NormGradients { dx, dweight, dbias, .. } = gradients;
                self.backward_operation(saved, dy).run_into(NormGradientOutputs {
                    dx: Some(dx),
                    dweight: Some(dweight),
                    dbias: Some(dbias),
                    adds: true,
                })
            }

            /// The backward pass as an operation, for what else it can do.
            pub fn backward_operation<'a>(
                &'a self,
                saved: &'a NormSaved<T>,
                dy: &'a Tensor<T>,
            ) -> NormGradientOp<'a, T> {
                self.operation(&saved.x).backward(dy).statistics(&saved.mean, &saved.inverse_deviation)
            }
        }
    };
}
norm_training!(LayerNorm);
norm_training!(RmsNorm);

/// What [`Embedding::forward_train`] keeps for [`Embedding::backward`]: the ids, whose memory it shares.
#[derive(Clone, Debug)]
pub struct EmbeddingSaved<I: Element> {
    ids: Tensor<I>,
}

impl<I: Element> EmbeddingSaved<I> {
    /// The ids.
    #[must_use]
    pub fn ids(&self) -> &Tensor<I> {
        &self.ids
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        bytes_of(&self.ids)
    }
}

impl<T: EmbeddingElement> Embedding<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: the ids.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train<I: EmbeddingId>(&self, ids: &Tensor<I>) -> Result<(Tensor<T>, EmbeddingSaved<I>)> {
        Ok((self.forward(ids)?, EmbeddingSaved { ids: ids.clone() }))
    }

    /// The rows of the table's gradient that are not zero, in f32.
    ///
    /// # Errors
    ///
    /// As [`EmbeddingBackwardOp::run`].
    pub fn backward<I: EmbeddingId>(
        &self,
        saved: &EmbeddingSaved<I>,
        dy: &Tensor<T>,
    ) -> Result<SparseRows<f32>> {
        self.backward_operation(saved, dy).run()
    }

    /// Adds the gradient to that of the whole table, `[V, N]`.
    ///
    /// # Errors
    ///
    /// As [`EmbeddingBackwardOp::accumulate`].
    pub fn accumulate<I: EmbeddingId>(
        &self,
        saved: &EmbeddingSaved<I>,
        dy: &Tensor<T>,
        gradient: &mut Tensor<f32>,
    ) -> Result<()> {
        self.backward_operation(saved, dy).accumulate(gradient)
    }

    /// The backward pass as an operation, for what else it can do.
    pub fn backward_operation<'a, I: EmbeddingId>(
        &'a self,
        saved: &'a EmbeddingSaved<I>,
        dy: &'a Tensor<T>,
    ) -> EmbeddingBackwardOp<'a, T, I> {
        ops::embedding_backward(dy, &saved.ids, self.table().shape()[0])
    }
}

#[cfg(test)]
mod tests {
    use crate::layers::{Embedding, LayerNorm, Linear, RmsNorm};
    use crate::ops::elementwise::tests::numbers;
    use crate::ops::{self, Activation};
    use crate::{Device, Error, Result, Tensor};

    pub(super) fn tensor(device: &Device, seed: u64, shape: &[usize]) -> Tensor<f32> {
        let numbers = numbers(seed, shape.iter().product());
        Tensor::from_slice(device, &numbers, shape).expect("it fits")
    }

    pub(super) fn vector(tensor: &Tensor<f32>) -> Vec<f32> {
        tensor.to_vec().expect("it is read")
    }

    /// Twice the numbers, where a sum of two equal ones is rounded as each is.
    pub(super) fn doubled(tensor: &Tensor<f32>) -> Vec<f32> {
        vector(tensor).into_iter().map(|number| 2.0 * number).collect()
    }

    #[test]
    fn linear_layers_give_the_gradients_of_their_operation_and_say_what_they_keep() -> Result<()> {
        for device in [Device::cpu(), Device::emulator()] {
            let (x, dy) = (tensor(&device, 1, &[2, 5, 8]), tensor(&device, 2, &[2, 5, 40]));
            for (activation, kept) in
                [(Activation::None, 0), (Activation::Relu, 2 * 5 * 2 * 4), (Activation::Silu, 2 * 5 * 40 * 4)]
            {
                let (weight, bias) = (tensor(&device, 3, &[40, 8]), tensor(&device, 4, &[40]));
                let layer = Linear::new(weight, Some(bias), activation)?;
                let (y, saved) = layer.forward_train(&x)?;
                assert_eq!(vector(&y), vector(&layer.forward(&x)?));
                assert_eq!(saved.bytes(), 2 * 5 * 8 * 4 + kept);
                let mut gradients = layer.backward(&saved, &dy)?;

                let mut z = Tensor::<f32>::zeros(&device, [2, 5, 40])?;
                layer.operation(&x).preactivation(&mut z).run()?;
                let expected = ops::linear_backward(&x, layer.weight(), &dy);
                let expected = expected.activation(activation).preactivation(&z).run()?;
                assert_eq!(vector(&gradients.dx), vector(&expected.dx), "{activation}");
                assert_eq!(vector(&gradients.dw), vector(&expected.dw), "{activation}");
                assert_eq!(vector(&gradients.db), vector(&expected.db), "{activation}");

                layer.accumulate(&saved, &dy, &mut gradients)?;
                assert_eq!(vector(&gradients.dx), vector(&expected.dx), "{activation}");
                assert_eq!(vector(&gradients.dw), doubled(&expected.dw), "{activation}");
                assert_eq!(vector(&gradients.db), doubled(&expected.db), "{activation}");
            }
        }
        Ok(())
    }

    #[test]
    fn norms_give_the_gradients_of_their_operation() -> Result<()> {
        for device in [Device::cpu(), Device::emulator()] {
            let (x, dy) = (tensor(&device, 1, &[3, 4, 24]), tensor(&device, 2, &[3, 4, 24]));
            let (weight, bias) = (tensor(&device, 3, &[24]), tensor(&device, 4, &[24]));
            let layer = LayerNorm::new(weight.clone(), Some(bias))?;
            let (y, saved) = layer.forward_train(&x)?;
            assert_eq!(vector(&y), vector(&layer.forward(&x)?));
            assert_eq!(saved.bytes(), 4 * (3 * 4 * 24 + 2 * 12));
            let mut gradients = layer.backward(&saved, &dy)?;
            let expected = layer.operation(&x).backward(&dy).run()?;
            assert_eq!(vector(&gradients.dx), vector(&expected.dx));
            layer.accumulate(&saved, &dy, &mut gradients)?;
            assert_eq!(vector(&gradients.dweight), doubled(&expected.dweight));
            assert_eq!(vector(&gradients.dbias), doubled(&expected.dbias));

            let layer = RmsNorm::new(weight)?;
            let (y, saved) = layer.forward_train(&x)?;
            assert_eq!(vector(&y), vector(&layer.forward(&x)?));
            assert_eq!(saved.bytes(), 4 * (3 * 4 * 24 + 12));
            let mut gradients = layer.backward(&saved, &dy)?;
            let expected = layer.operation(&x).backward(&dy).run()?;
            assert_eq!(vector(&gradients.dx), vector(&expected.dx));
            layer.accumulate(&saved, &dy, &mut gradients)?;
            assert_eq!(vector(&gradients.dweight), doubled(&expected.dweight));
        }
        Ok(())
    }

    #[test]
    fn embeddings_add_rows_to_the_gradient_of_their_table() -> Result<()> {
        for device in [Device::cpu(), Device::emulator()] {
            let layer = Embedding::new(tensor(&device, 1, &[7, 8]))?;
            let ids = Tensor::from_slice(&device, &[3u32, 6, 3], [3])?;
            let (y, saved) = layer.forward_train(&ids)?;
            assert_eq!(vector(&y), vector(&layer.forward(&ids)?));
            assert_eq!(saved.bytes(), 12);
            let dy = tensor(&device, 2, &[3, 8]);
            let (of_ids, rows) = layer.backward(&saved, &dy)?.read()?;
            assert_eq!(of_ids, [3, 6]);
            let mut gradient = Tensor::<f32>::zeros(&device, [7, 8])?;
            layer.accumulate(&saved, &dy, &mut gradient)?;
            let dense = vector(&gradient);
            assert_eq!(dense[3 * 8..4 * 8], rows[..8]);
            assert_eq!(dense[6 * 8..], rows[8..]);
            assert!(dense[..3 * 8].iter().all(|&number| number == 0.0));
        }
        Ok(())
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused() -> Result<()> {
        let device = Device::cpu();
        let layer = Linear::new(tensor(&device, 1, &[4, 3]), None, Activation::Relu)?;
        let scalar = Tensor::<f32>::zeros(&device, [])?;
        assert!(matches!(layer.forward_train(&scalar), Err(Error::Shape { operand: "x", .. })));
        let (_, saved) = layer.forward_train(&tensor(&device, 2, &[2, 3]))?;
        let wrong = layer.backward(&saved, &tensor(&device, 3, &[2, 3]));
        assert!(matches!(wrong, Err(Error::Shape { operand: "dy", .. })), "{wrong:?}");
        let norm = LayerNorm::new(tensor(&device, 1, &[4]), None)?;
        assert!(matches!(norm.forward_train(&scalar), Err(Error::Shape { .. })));
        Ok(())
    }
}
