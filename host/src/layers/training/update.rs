//! Forward and backward passes of generated updates, and of linear layers that have some.

use super::{LinearSaved, SavedSlopes, bytes_of};
use crate::error::{Error, Result};
use crate::layers::{GeneratedUpdate, UpdatedLinear};
use crate::ops;
use crate::ops::update::{
    UpdateBackwardOp, UpdateGradientElement, UpdateGradientOutputs, UpdateGradientPlaces, UpdateGradients,
};
use crate::tensor::{Element, Tensor};

/// What [`GeneratedUpdate::forward_train`] and [`UpdatedLinear::forward_train`] keep for the backward pass.
///
/// It shares the memory of x and the codes, which have to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct UpdateSaved<T: Element> {
    x: Tensor<T>,
    codes: Vec<Tensor<T>>,
    slopes: SavedSlopes<T>,
}

impl<T: Element> UpdateSaved<T> {
    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The codes of each update.
    #[must_use]
    pub fn codes(&self) -> &[Tensor<T>] {
        &self.codes
    }

    /// The bytes of its elements, those of x and the codes among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        bytes_of(&self.x) + self.codes.iter().map(bytes_of).sum::<usize>() + self.slopes.bytes()
    }
}

impl<T: UpdateGradientElement> GeneratedUpdate<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x and the codes.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>, codes: &Tensor<T>) -> Result<(Tensor<T>, UpdateSaved<T>)> {
        let y = self.forward(x, codes)?;
        Ok((y, UpdateSaved { x: x.clone(), codes: vec![codes.clone()], slopes: SavedSlopes::None }))
    }

    /// The gradients of x, V, the codes and U, those of V and U in f32, for the gradient of the output.
    ///
    /// # Errors
    ///
    /// As [`UpdateBackwardOp::run`]; [`Error::Argument`] if `saved` is that of a layer with another number of updates.
    pub fn backward(&self, saved: &UpdateSaved<T>, dy: &Tensor<T>) -> Result<UpdateGradients<T>> {
        self.backward_operation(saved, dy)?.run()
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of V and U. Those of x and the codes are written over.
    ///
    /// # Errors
    ///
    /// As [`UpdateBackwardOp::run_into`].
    pub fn accumulate(
        &self,
        saved: &UpdateSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut UpdateGradients<T>,
    ) -> Result<()> {
        self.backward_operation(saved, dy)?.run_into(outputs_of(gradients))
    }

    /// The backward pass as an operation, for what else it can do: some of the gradients, into existing tensors, on a stream.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if `saved` is that of a layer with another number of updates.
    pub fn backward_operation<'a>(
        &'a self,
        saved: &'a UpdateSaved<T>,
        dy: &'a Tensor<T>,
    ) -> Result<UpdateBackwardOp<'a, T>> {
        let [codes] = &saved.codes[..] else {
            return Err(wrong_number("GeneratedUpdate::backward", 1, saved.codes.len()));
        };
        Ok(ops::generated_update_backward(&saved.x, self.v(), codes, self.u(), self.scaling(), dy))
    }
}

impl<T: UpdateGradientElement> UpdatedLinear<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, the codes, and of ReLU a bit for each element of the output, of other
    /// activations their argument.
    ///
    /// ```
    /// use ndarray::array;
    /// use warpsmith::layers::{GeneratedUpdate, Linear};
    /// use warpsmith::{Device, Tensor, ops::Activation};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device = Device::cpu();
    /// let weight = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
    /// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
    /// let u = Tensor::from_array(&device, &array![[1.0f32, -1.0]])?;
    /// let layer = Linear::new(weight, None, Activation::None)?.attach([GeneratedUpdate::new(v, u, 2.0)?])?;
    ///
    /// let x = Tensor::from_array(&device, &array![[3.0f32, 4.0]])?;
    /// let codes = Tensor::from_array(&device, &array![[0.5f32]])?;
    /// let (y, saved) = layer.forward_train(&x, &[&codes])?;
    /// assert_eq!(y.to_vec()?, [10.0, -3.0]);
    ///
    /// let dy = Tensor::from_array(&device, &array![[1.0f32, 0.0]])?;
    /// let gradients = layer.backward(&saved, &dy)?;
    /// assert_eq!(gradients.dx.to_vec()?, [2.0, 1.0]);
    /// assert_eq!(gradients.updates[0].dcodes.to_vec()?, [14.0]);
    /// assert_eq!(gradients.updates[0].dv.to_vec()?, [3.0, 4.0]);
    /// assert_eq!(gradients.updates[0].du.to_vec()?, [7.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>, codes: &[&Tensor<T>]) -> Result<(Tensor<T>, UpdateSaved<T>)> {
        let saved = |slopes| {
            let codes = codes.iter().map(|&codes| codes.clone()).collect();
            UpdateSaved { x: x.clone(), codes, slopes }
        };
        let Some(operation) = self.operation(x, codes)? else {
            let (y, LinearSaved { slopes, .. }) = self.base().forward_train(x)?;
            return Ok((y, saved(slopes)));
        };
        let base = self.base();
        let (y, slopes) = match SavedSlopes::new(base, x)? {
            SavedSlopes::None => (operation.run()?, SavedSlopes::None),
            SavedSlopes::Mask(mut mask) => (operation.relu_mask(&mut mask).run()?, SavedSlopes::Mask(mask)),
            SavedSlopes::Preactivation(mut z) => {
                (operation.preactivation(&mut z).run()?, SavedSlopes::Preactivation(z))
            }
        };
        Ok((y, saved(slopes)))
    }

    /// The gradients of x and the bias, and of V, the codes and U of each update, those of weights in f32, for the gradient of the output. The base layer's weight is frozen.
    ///
    /// # Errors
    ///
    /// As [`UpdateBackwardOp::run`]; [`Error::Argument`] if there are other updates than in the forward pass, or none: the backward pass is then that
    /// of [`base`](Self::base).
    pub fn backward(&self, saved: &UpdateSaved<T>, dy: &Tensor<T>) -> Result<UpdateGradients<T>> {
        self.backward_operation(saved, dy)?.run()
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of the bias, V and U. Those of x and the codes are
    /// written over.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward) and [`UpdateBackwardOp::run_into`].
    pub fn accumulate(
        &self,
        saved: &UpdateSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut UpdateGradients<T>,
    ) -> Result<()> {
        self.backward_operation(saved, dy)?.run_into(outputs_of(gradients))
    }

    /// The backward pass as an operation, for what else it can do: some of the gradients, into existing tensors, on a stream.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are other updates than in the forward pass, or none.
    pub fn backward_operation<'a>(
        &'a self,
        saved: &'a UpdateSaved<T>,
        dy: &'a Tensor<T>,
    ) -> Result<UpdateBackwardOp<'a, T>> {
        const OPERATION: &str = "UpdatedLinear::backward";
        let codes: Vec<_> = saved.codes.iter().collect();
        let packed = match self.packed() {
            Some(packed) if packed.parts.len() == codes.len() => packed,
            _ => return Err(wrong_number(OPERATION, self.updates().len().max(1), codes.len())),
        };
        let base = self.base();
        let operation = UpdateBackwardOp::of_packed(&saved.x, base.weight(), packed, codes, dy);
        let operation = operation.activation(base.activation());
        Ok(match &saved.slopes {
            SavedSlopes::None => operation,
            SavedSlopes::Mask(mask) => operation.relu_mask(mask),
            SavedSlopes::Preactivation(z) => operation.preactivation(z),
        })
    }
}

/// The error for what another layer has saved.
fn wrong_number(operation: &'static str, expected: usize, actual: usize) -> Error {
    Error::Argument {
        operation,
        argument: "number of updates",
        expected: format!("{expected}, with codes that the forward pass has kept"),
        actual: actual.to_string(),
    }
}

/// All gradients, those of weights to be added.
fn outputs_of<T: UpdateGradientElement>(
    gradients: &mut UpdateGradients<T>,
) -> UpdateGradientOutputs<'_, T, f32, T> {
    let UpdateGradients { dx, updates, db, dresidual } = gradients;
    let places = updates.iter_mut().map(|of| UpdateGradientPlaces {
        dv: Some(&mut of.dv),
        dcodes: Some(&mut of.dcodes),
        du: Some(&mut of.du),
    });
    UpdateGradientOutputs {
        dx: Some(dx),
        updates: places.collect(),
        db: db.as_mut(),
        dresidual: dresidual.as_mut(),
        adds: true,
        ..UpdateGradientOutputs::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::layers::differences::expect_near;
    use crate::layers::training::tests::{doubled, tensor, vector};
    use crate::layers::{GeneratedUpdate, Linear};
    use crate::ops::{self, Activation};
    use crate::{Device, Error, Result, Tensor};

    #[test]
    fn layers_with_updates_give_the_gradients_of_their_operation() -> Result<()> {
        for device in [Device::cpu(), Device::emulator()] {
            let (x, dy) = (tensor(&device, 1, &[2, 5, 8]), tensor(&device, 2, &[2, 5, 40]));
            let (codes, of_all) = (tensor(&device, 3, &[2, 5, 4]), tensor(&device, 4, &[2]));
            let factors = |seed, rank| -> [Tensor<f32>; 2] {
                [tensor(&device, seed, &[8, rank]), tensor(&device, seed + 1, &[rank, 40])]
            };
            let ([v, u], [v2, u2]) = (factors(5, 4), factors(7, 2));
            for (activation, kept) in [
                (Activation::None, 0),
                (Activation::Relu, 2 * 5 * 2 * 4),
                (Activation::GeluTanh, 2 * 5 * 40 * 4),
            ] {
                let (weight, bias) = (tensor(&device, 9, &[40, 8]), tensor(&device, 10, &[40]));
                let update = GeneratedUpdate::new(v.clone(), u.clone(), 2.0)?;
                let second = GeneratedUpdate::new(v2.clone(), u2.clone(), -1.0)?;
                let layer = Linear::new(weight, Some(bias), activation)?.attach([update, second])?;
                let all = [&codes, &of_all];
                let (y, saved) = layer.forward_train(&x, &all)?;
                assert_eq!(vector(&y), vector(&layer.forward(&x, &all)?));
                assert_eq!(saved.bytes(), 4 * (2 * 5 * 8 + 2 * 5 * 4 + 2) + kept);
                let mut gradients = layer.backward(&saved, &dy)?;

                let mut z = Tensor::<f32>::zeros(&device, [2, 5, 40])?;
                let forward = layer.operation(&x, &all)?.expect("there are updates");
                forward.preactivation(&mut z).run()?;
                let weight = layer.base().weight();
                let expected = ops::linear_with_update_backward(&x, weight, &v, &codes, &u, 0.5, &dy)
                    .and(&v2, &of_all, &u2, -0.5)
                    .activation(activation)
                    .preactivation(&z)
                    .run()?;
                let same = |got: &Tensor<f32>, expected: &Tensor<f32>| {
                    assert_eq!(vector(got), vector(expected), "{activation}");
                };
                same(&gradients.dx, &expected.dx);
                let db = expected.db.as_ref().expect("of a linear operation");
                same(gradients.db.as_ref().expect("of a layer"), db);
                for (got, expected) in gradients.updates.iter().zip(&expected.updates) {
                    same(&got.dv, &expected.dv);
                    same(&got.dcodes, &expected.dcodes);
                    same(&got.du, &expected.du);
                }
                layer.accumulate(&saved, &dy, &mut gradients)?;
                same(&gradients.dx, &expected.dx);
                assert_eq!(vector(gradients.db.as_ref().expect("of a layer")), doubled(db));
                for (got, expected) in gradients.updates.iter().zip(&expected.updates) {
                    expect_near(&vector(&got.dv), &doubled(&expected.dv));
                    expect_near(&vector(&got.du), &doubled(&expected.du));
                    same(&got.dcodes, &expected.dcodes);
                }

                // Another number of updates than in the forward pass.
                let mut other = layer.clone();
                other.detach(1)?;
                let wrong = other.backward(&saved, &dy).map(drop);
                assert!(
                    matches!(wrong, Err(Error::Argument { argument: "number of updates", .. })),
                    "{wrong:?}"
                );
                other.detach(0)?;
                let (y, saved) = other.forward_train(&x, &[])?;
                assert_eq!(vector(&y), vector(&other.base().forward(&x)?));
                assert!(matches!(other.backward(&saved, &dy), Err(Error::Argument { .. })));
            }
        }
        Ok(())
    }

    #[test]
    fn updates_alone_give_the_gradients_of_their_operation() -> Result<()> {
        for device in [Device::cpu(), Device::emulator()] {
            let (x, dy) = (tensor(&device, 1, &[6, 8]), tensor(&device, 2, &[6, 24]));
            let (codes, v, u) =
                (tensor(&device, 3, &[6, 4]), tensor(&device, 4, &[8, 4]), tensor(&device, 5, &[4, 24]));
            let layer = GeneratedUpdate::new(v.clone(), u.clone(), 2.0)?;
            let (y, saved) = layer.forward_train(&x, &codes)?;
            assert_eq!(vector(&y), vector(&layer.forward(&x, &codes)?));
            assert_eq!(saved.bytes(), 4 * (6 * 8 + 6 * 4));
            let mut gradients = layer.backward(&saved, &dy)?;
            let expected = ops::generated_update_backward(&x, &v, &codes, &u, 0.5, &dy).run()?;
            assert_eq!(vector(&gradients.dx), vector(&expected.dx));
            assert_eq!(vector(&gradients.updates[0].dcodes), vector(&expected.updates[0].dcodes));
            layer.accumulate(&saved, &dy, &mut gradients)?;
            expect_near(&vector(&gradients.updates[0].dv), &doubled(&expected.updates[0].dv));
            expect_near(&vector(&gradients.updates[0].du), &doubled(&expected.updates[0].du));
        }
        Ok(())
    }
}
