//! What is checked of the gradients of updates before anything runs.

use super::{OPERATION, UpdateBackwardOp, UpdateGradientElement, UpdateGradientOutputs};
use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::linear::{LinearGradientOutputs, LinearTypes};
use crate::ops::rows::{expect_rows, expect_shape};
use crate::ops::update::MAX_UPDATES;
use crate::ops::update::check::Checked;
use crate::tensor::{Element, Span, Tensor};

/// The gradients' names in errors, update by update: of V, the codes, U.
const NAMES: [[&str; 3]; MAX_UPDATES] = [
    ["dv", "dcodes", "du"],
    ["dv of update 2", "dcodes of update 2", "du of update 2"],
    ["dv of update 3", "dcodes of update 3", "du of update 3"],
    ["dv of update 4", "dcodes of update 4", "du of update 4"],
    ["dv of update 5", "dcodes of update 5", "du of update 5"],
    ["dv of update 6", "dcodes of update 6", "du of update 6"],
    ["dv of update 7", "dcodes of update 7", "du of update 7"],
    ["dv of update 8", "dcodes of update 8", "du of update 8"],
];

impl<T: UpdateGradientElement> UpdateBackwardOp<'_, T> {
    /// Checks devices, shapes and strides of all operands.
    pub(super) fn check(&self) -> Result<Checked<T>> {
        let operation = self.operation;
        let checked = Checked::new(operation, self.x, &self.updates)?;
        checked.check_sizes()?;
        let device = self.x.device();
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        device.expect_same(operation, "dy", self.dy.device())?;
        expect_shape(operation, "dy", self.dy.shape(), &checked.output_shape(), "the result")?;
        let Some(w) = self.w else {
            return self.check_alone().map(|()| checked);
        };
        if w.shape() != [checked.n, checked.k] {
            return Err(Error::Shape {
                operation,
                operand: "w",
                expected: format!(
                    "[{}, {}], since x has {} columns and u has {}",
                    checked.n, checked.k, checked.k, checked.n
                ),
                actual: w.shape().to_vec(),
            });
        }
        if let Some(base) = self.base() {
            base.check()?;
        }
        Ok(checked)
    }

    /// The error for an option that an update alone has not.
    fn check_alone(&self) -> Result<()> {
        let given = [
            ("activation", self.activation != crate::ops::Activation::None),
            ("preactivation", self.preactivation.is_some()),
            ("output", self.output.is_some()),
            ("relu_mask", self.mask.is_some()),
            ("residual", self.beta.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((argument, _)) => Err(alone(argument)),
            None => Ok(()),
        }
    }

    pub(super) fn check_outputs<W, C>(
        &self,
        checked: &Checked<T>,
        outputs: &UpdateGradientOutputs<'_, T, W, C>,
    ) -> Result<()>
    where
        T: LinearTypes<W>,
        W: SumElement + FromAccumulator<f32>,
        C: SumElement,
    {
        let (operation, device) = (self.operation, self.x.device());
        let UpdateGradientOutputs { dx, updates, db, dresidual, dz, .. } = outputs;
        if !updates.is_empty() && updates.len() != checked.codes.len() {
            return Err(Error::Argument {
                operation,
                argument: "number of places for updates",
                expected: format!("{}, one for each update, or none", checked.codes.len()),
                actual: updates.len().to_string(),
            });
        }
        match self.base() {
            // Those of the linear operation's gradients, with x, w, dy and what tells the slopes.
            Some(base) => {
                let (sizes, mut dz_is) = (base.check()?.sizes, LinearGradientOutputs::<T, T, W>::default());
                let mut held = Held::of(dx, db, dresidual, dz);
                dz_is.dx = held.dx.as_mut();
                dz_is.db = held.db.as_mut();
                dz_is.dresidual = held.dresidual.as_mut();
                dz_is.dz = held.dz.as_mut();
                base.check_outputs(sizes, &dz_is)?;
            }
            None => {
                let given = [("db", db.is_some()), ("dresidual", dresidual.is_some()), ("dz", dz.is_some())];
                if let Some((argument, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                    return Err(alone(argument));
                }
                if let Some(dx) = dx {
                    expect_rows(operation, "dx", *dx, device, (self.x.shape(), "x"))?;
                    self.expect_apart(checked, "dx", *dx)?;
                }
            }
        }
        let mut others: Vec<(&'static str, Span<'_>)> = Vec::new();
        others.extend(dx.as_deref().map(|dx| ("dx", dx.span())));
        others.extend(db.as_deref().map(|db| ("db", db.span())));
        others.extend(dresidual.as_deref().map(|of| ("dresidual", of.span())));
        others.extend(dz.as_deref().map(|dz| ("dz", dz.span())));
        for (name, span) in &others {
            checked.expect_span_apart(name, span)?;
        }
        let codes = self.codes();
        for (index, (places, [v_name, _, u_name])) in updates.iter().zip(NAMES).enumerate() {
            let [of_v, of_u] = self.weight_shapes(checked, index);
            if let Some(dv) = &places.dv {
                expect_rows(operation, v_name, *dv, device, (&of_v, "v"))?;
                self.expect_result(checked, v_name, *dv, &mut others)?;
            }
            if let Some(du) = &places.du {
                expect_rows(operation, u_name, *du, device, (&of_u, "u"))?;
                self.expect_result(checked, u_name, *du, &mut others)?;
            }
        }
        for (index, (places, [_, operand, _])) in updates.iter().zip(NAMES).enumerate() {
            let Some(dcodes) = &places.dcodes else { continue };
            expect_rows(operation, operand, *dcodes, device, (codes[index].shape(), "the codes"))?;
            // Those of several updates may be columns of one matrix.
            self.expect_result(checked, operand, *dcodes, &mut others)?;
        }
        Ok(())
    }

    /// The error for a result that shares memory with an operand or with `others`, of which it becomes one.
    fn expect_result<'o, Y: Element>(
        &self,
        checked: &Checked<T>,
        operand: &'static str,
        result: &'o Tensor<Y>,
        others: &mut Vec<(&'static str, Span<'o>)>,
    ) -> Result<()> {
        self.expect_apart(checked, operand, result)?;
        let span = result.span();
        if let Some(&(other, _)) = others.iter().find(|(_, other)| span.meets(other)) {
            return Err(Error::Overlap { operation: self.operation, operand, other });
        }
        others.push((operand, span));
        Ok(())
    }

    /// The error for a result that shares memory with an operand.
    fn expect_apart<Y: Element>(
        &self,
        checked: &Checked<T>,
        operand: &'static str,
        result: &Tensor<Y>,
    ) -> Result<()> {
        let operands = [
            ("dy", Some(self.dy.span())),
            ("w", self.w.map(Tensor::span)),
            ("preactivation", self.preactivation.map(Tensor::span)),
            ("output", self.output.map(Tensor::span)),
            ("relu_mask", self.mask.map(Tensor::span)),
        ];
        let span = result.span();
        let meets = |other: &Option<Span<'_>>| other.as_ref().is_some_and(|other| span.meets(other));
        match operands.iter().find(|(_, other)| meets(other)) {
            Some(&(other, _)) => Err(Error::Overlap { operation: self.operation, operand, other }),
            None => checked.expect_span_apart(operand, &span),
        }
    }
}

/// The error for something that an update alone has not.
fn alone(argument: &'static str) -> Error {
    Error::Argument {
        operation: OPERATION,
        argument,
        expected: "none, since an update alone has no linear operation".into(),
        actual: "one".into(),
    }
}

/// Views of results, to be checked as another operation's.
struct Held<T: Element, W: Element> {
    dx: Option<Tensor<T>>,
    db: Option<Tensor<W>>,
    dresidual: Option<Tensor<T>>,
    dz: Option<Tensor<T>>,
}

impl<T: Element, W: Element> Held<T, W> {
    fn of(
        dx: &Option<&mut Tensor<T>>,
        db: &Option<&mut Tensor<W>>,
        dresidual: &Option<&mut Tensor<T>>,
        dz: &Option<&mut Tensor<T>>,
    ) -> Self {
        fn view<Y: Element>(of: &Option<&mut Tensor<Y>>) -> Option<Tensor<Y>> {
            of.as_deref().cloned()
        }
        Self { dx: view(dx), db: view(db), dresidual: view(dresidual), dz: view(dz) }
    }
}
