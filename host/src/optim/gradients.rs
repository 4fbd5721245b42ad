//! The gradients of a step, checked, and each given to its tensor.

use super::adamw::{AdamW, Entry, Parameter, STEP, expect_contiguous};
use super::operands::{Gradient, OfTensor};
use crate::error::{Error, Result};
use crate::ops::rows::{AnyTensor, with_tensor};
use crate::tensor::Tensor;

impl AdamW {
    /// The gradients of all tensors.
    pub(super) fn of_tensors<'g>(
        &self,
        gradients: &[Option<Gradient<'g>>],
    ) -> Result<Vec<Option<OfTensor<'g>>>> {
        if gradients.len() != self.entries.len() {
            let expected = format!("one of each of {} weights", self.entries.len());
            let actual = gradients.len().to_string();
            return Err(Error::Argument { operation: STEP, argument: "gradients", expected, actual });
        }
        let mut all = Vec::with_capacity(self.parameters.len());
        for (entry, gradient) in self.entries.iter().zip(gradients) {
            match *gradient {
                Some(gradient) => all.extend(self.of_entry(entry, gradient)?.into_iter().map(Some)),
                None => all.extend(entry.tensors.clone().map(|_| None)),
            }
        }
        Ok(all)
    }

    /// The gradients of the tensors of an entry.
    fn of_entry<'g>(&self, entry: &Entry, gradient: Gradient<'g>) -> Result<Vec<OfTensor<'g>>> {
        let tensors = &self.parameters[entry.tensors.clone()];
        match (gradient, tensors) {
            (Gradient::Tensor(elements), [tensor]) if !entry.is_experts => {
                let shape = tensor.weights.any().shape();
                self.expect_elements("gradient", tensor, elements, shape)?;
                Ok(vec![OfTensor { elements, rows: None }])
            }
            (Gradient::Rows { ids, rows, count }, [tensor]) if !entry.is_experts => {
                let &[_, columns] = tensor.weights.any().shape() else {
                    let actual = format!("{:?}", tensor.weights.any().shape());
                    let expected = "that of all weights, unless these have two axes".into();
                    return Err(Error::Argument { operation: STEP, argument: "gradient", expected, actual });
                };
                let room = self.expect_ids(ids, count)?;
                self.expect_elements("rows", tensor, rows, &[room, columns])?;
                Ok(vec![OfTensor { elements: rows, rows: Some([ids, count]) }])
            }
            (Gradient::Experts { ids, u, w, v, count }, tensors) if entry.is_experts => {
                let room = self.expect_ids(ids, count)?;
                if w.is_some() != (tensors.len() == 3) {
                    let told = |has: bool| if has { "with w" } else { "without w" }.to_owned();
                    let (expected, actual) = (told(w.is_none()), told(w.is_some()));
                    return Err(Error::Argument { operation: STEP, argument: "gradient", expected, actual });
                }
                let of = [("u", Some(u)), ("w", w), ("v", Some(v))];
                let there = of.into_iter().filter_map(|(name, elements)| Some((name, elements?)));
                let mut all = Vec::with_capacity(tensors.len());
                for (tensor, (name, elements)) in tensors.iter().zip(there) {
                    let [_, hidden, columns] = tensor.sizes();
                    self.expect_elements(name, tensor, elements, &[room, hidden, columns])?;
                    all.push(OfTensor { elements, rows: Some([ids, count]) });
                }
                Ok(all)
            }
            (gradient, _) => {
                let expected =
                    if entry.is_experts { "that of experts" } else { "that of a tensor or its rows" };
                let actual = match gradient {
                    Gradient::Tensor(_) => "that of a tensor",
                    Gradient::Rows { .. } => "that of rows",
                    Gradient::Experts { .. } => "that of experts",
                };
                Err(Error::Argument {
                    operation: STEP,
                    argument: "gradient",
                    expected: format!("{expected}, for `{}`", entry.name),
                    actual: actual.into(),
                })
            }
        }
    }

    /// The number of rows that there is room for.
    fn expect_ids(&self, ids: &Tensor<u32>, count: &Tensor<u32>) -> Result<usize> {
        for (operand, tensor) in [("ids", ids), ("count", count)] {
            self.device.expect_same(STEP, operand, tensor.device())?;
            expect_contiguous(STEP, operand, tensor)?;
        }
        let wrong = |operand, expected: &str, tensor: &Tensor<u32>| {
            let (expected, actual) = (expected.into(), tensor.shape().to_vec());
            Err(Error::Shape { operation: STEP, operand, expected, actual })
        };
        if count.shape() != [1] {
            return wrong("count", "[1]", count);
        }
        match *ids.shape() {
            [room] => Ok(room),
            _ => wrong("ids", "[n]", ids),
        }
    }

    fn expect_elements(
        &self,
        operand: &'static str,
        parameter: &Parameter,
        elements: AnyTensor<'_>,
        shape: &[usize],
    ) -> Result<()> {
        self.device.expect_same(STEP, operand, elements.device())?;
        if elements.shape() != shape {
            return Err(Error::Shape {
                operation: STEP,
                operand,
                expected: format!("{shape:?}, for `{}`", parameter.name),
                actual: elements.shape().to_vec(),
            });
        }
        with_tensor!(elements, tensor => expect_contiguous(STEP, operand, tensor))
    }

    /// The error for a gradient that shares memory with what a step writes.
    pub(super) fn check_apart(&self, gradients: &[Option<OfTensor<'_>>]) -> Result<()> {
        for OfTensor { elements, rows } in gradients.iter().flatten() {
            let of_rows = rows.iter().flat_map(|[ids, count]| [("ids", ids.span()), ("count", count.span())]);
            for (operand, span) in std::iter::once(("gradient", elements.span())).chain(of_rows) {
                for parameter in &self.parameters {
                    let weights = parameter.weights.any().span();
                    let moments = parameter.moments.iter().map(|moment| ("moments", moment.span()));
                    let master = parameter.master.iter().map(|master| ("the copy of weights", master.span()));
                    let mut all = std::iter::once(("weights", weights)).chain(moments).chain(master);
                    if let Some((other, _)) = all.find(|(_, written)| written.meets(&span)) {
                        return Err(Error::Overlap { operation: STEP, operand, other });
                    }
                }
            }
        }
        Ok(())
    }
}
