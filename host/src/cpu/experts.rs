//! Experts on the CPU: `y = Σ gate · act(x·u) [· (x·w)] · v` over the hidden units of the experts that a token uses.
//!
//! Tokens are shared by the threads. A token's units are taken one after the other: a vector's codes are added up first, in 16 sums side by side,
//! and its scale and bias put in after that, as kernels do.

use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use super::number::{Accumulator, FromAccumulator, Operand};
use crate::cpu::Activation;
use crate::error::{Error, Result};
use crate::experts::{ExpertLayout, Part};

/// The operation's name in errors.
const OPERATION: &str = "expert_mlp";
/// Sums of a product side by side.
const LANES: usize = 16;

/// Which experts tokens use, and how.
#[derive(Clone, Copy, Debug)]
pub struct TokenExperts<'a> {
    /// The experts' numbers, those of each token one after the other.
    pub ids: &'a [u32],
    /// What each expert's output is multiplied with.
    pub gates: &'a [f32],
    /// What the hidden units do to x·u.
    pub activation: Activation,
}

/// Evaluates the experts of each row of `x`, adding up in `A` and rounding once to `O`. `row` gives the row of an expert, in the layout
/// `layout`; none if there is no such expert.
///
/// `x` is `[T, D]`, `y` `[T, O]`; any strides, any sizes.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::Argument`] if an id is no expert's.
pub fn expert_mlp<'r, A, T, O>(
    x: ArrayView2<'_, T>,
    experts: TokenExperts<'_>,
    layout: &ExpertLayout,
    row: impl Fn(u32) -> Option<&'r [u8]> + Sync,
    mut y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    O: FromAccumulator<A>,
{
    let TokenExperts { ids, gates, activation } = experts;
    let tokens = x.nrows();
    expect_shape(OPERATION, "x", x.shape(), &[tokens, layout.d()])?;
    expect_shape(OPERATION, "y", y.shape(), &[tokens, layout.o()])?;
    expect_shape(OPERATION, "gates", &[gates.len()], &[ids.len()])?;
    if tokens == 0 {
        return expect_shape(OPERATION, "ids", &[ids.len()], &[0]);
    }
    let count = ids.len() / tokens;
    expect_shape(OPERATION, "ids", &[ids.len()], &[tokens * count])?;
    let mut rows: Vec<_> = y.rows_mut().into_iter().enumerate().collect();
    rows.par_iter_mut().try_for_each_init(
        || Scratch::new(layout),
        |scratch, (token, y)| {
            let own = *token * count..(*token + 1) * count;
            for (target, value) in scratch.x.iter_mut().zip(x.row(*token)) {
                *target = A::from_f32(value.to_f32());
            }
            scratch.token(layout, &ids[own.clone()], &gates[own], activation, &row)?;
            for (target, &value) in y.iter_mut().zip(&scratch.y) {
                *target = O::from_accumulator(value);
            }
            Ok(())
        },
    )
}

/// What a thread needs for its tokens.
struct Scratch<A> {
    x: Vec<A>,
    y: Vec<A>,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl<A: Accumulator> Scratch<A> {
    fn new(layout: &ExpertLayout) -> Self {
        let (d, o) = (layout.d(), layout.o());
        Self { x: vec![A::zero(); d], y: vec![A::zero(); o], input: vec![0.0; d], output: vec![0.0; o] }
    }

    fn token<'r>(
        &mut self,
        layout: &ExpertLayout,
        ids: &[u32],
        gates: &[f32],
        activation: Activation,
        row: &impl Fn(u32) -> Option<&'r [u8]>,
    ) -> Result<()> {
        let mut sum_of_x = A::zero();
        if layout.format().is_scaled() {
            sum_of_x = dot(&self.x, |_| A::one());
        }
        self.y.fill(A::zero());
        let mut bias_of_y = A::zero();
        for (&id, &gate) in ids.iter().zip(gates) {
            let bytes = row_of(OPERATION, row, layout, id)?;
            for unit in 0..layout.hidden() {
                let mut input = |part| {
                    let [scale, bias] = layout.decode(bytes, unit, part, &mut self.input);
                    let sum = dot(&self.x, |i| A::from_f32(self.input[i]));
                    if !layout.format().is_scaled() {
                        return sum;
                    }
                    A::from_f32(scale) * sum + A::from_f32(bias) * sum_of_x
                };
                let mut h = activation.apply(input(Part::U));
                if layout.is_gated() {
                    h = h * input(Part::W);
                }
                h = h * A::from_f32(gate);
                let [scale, bias] = layout.decode(bytes, unit, Part::V, &mut self.output);
                if layout.format().is_scaled() {
                    bias_of_y += h * A::from_f32(bias);
                    h = h * A::from_f32(scale);
                }
                for (y, &v) in self.y.iter_mut().zip(&self.output) {
                    *y += h * A::from_f32(v);
                }
            }
        }
        if layout.format().is_scaled() {
            self.y.iter_mut().for_each(|y| *y += bias_of_y);
        }
        Ok(())
    }
}

/// The row of expert `id`.
pub(super) fn row_of<'r>(
    operation: &'static str,
    row: &impl Fn(u32) -> Option<&'r [u8]>,
    layout: &ExpertLayout,
    id: u32,
) -> Result<&'r [u8]> {
    let bytes = row(id).ok_or_else(|| Error::Argument {
        operation,
        argument: "an id",
        expected: "that of an expert of the table".into(),
        actual: id.to_string(),
    })?;
    layout.expect_row(operation, bytes.len())?;
    Ok(bytes)
}

/// `Σ xᵢ · fᵢ`, in [`LANES`] sums.
pub(super) fn dot<A: Accumulator>(x: &[A], factor: impl Fn(usize) -> A) -> A {
    let mut lanes = [A::zero(); LANES];
    let whole = x.len() / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += x[first + lane] * factor(first + lane);
        }
    }
    for (sum, i) in lanes.iter_mut().zip(whole..x.len()) {
        *sum += x[i] * factor(i);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let upper = lanes[lane + width];
            lanes[lane] += upper;
        }
    }
    lanes[0]
}

pub(super) fn expect_shape(
    operation: &'static str,
    operand: &'static str,
    actual: &[usize],
    expected: &[usize],
) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    let expected = format!("{expected:?}, as the other operands give");
    Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::{TokenExperts, expert_mlp};
    use crate::cpu::Activation;
    use crate::error::Error;
    use crate::experts::{ExpertFormat, ExpertLayout, ExpertVectors};

    /// Integers, so that every sum is exact; of formats of integers with the range of their codes.
    #[test]
    fn outputs_are_the_sums_that_define_them() {
        let number = |i: usize, seed: usize| ((i * 31 + seed * 17) % 16) as f32 - 5.0;
        for format in ExpertFormat::ALL {
            for (d, hidden, o, gated) in [(40, 1, 33, false), (19, 3, 21, true), (16, 2, 16, false)] {
                let layout = ExpertLayout::new(format, d, hidden, o, gated).expect("sizes are fine");
                let experts = 5;
                let make = |length: usize, seed: usize| -> Vec<f32> {
                    (0..length * hidden).map(|i| number(i, seed)).collect()
                };
                let mut rows = Vec::new();
                let mut tables = Vec::new();
                for expert in 0..experts {
                    let (u, v) = (make(d, expert), make(o, expert + 9));
                    let w = if gated { make(d, expert + 5) } else { Vec::new() };
                    let mut row = vec![0; layout.row_bytes()];
                    layout.pack(ExpertVectors { u: &u, w: &w, v: &v }, &mut row).expect("it fits");
                    // What the row stands for: of int8, not quite the same.
                    tables.push(layout.unpack(&row).expect("it is a row"));
                    rows.push(row);
                }
                let x = Array2::from_shape_fn((3, d), |(t, i)| number(t + i, 3) * 0.5);
                let (ids, gates) = ([4, 0, 4, 1, 2, 2u32], [1.0, -2.0, 0.5, 1.0, 1.0, 3.0f32]);
                let experts = TokenExperts { ids: &ids, gates: &gates, activation: Activation::Relu };
                let mut y = Array2::<f64>::zeros((3, o));
                let row = |id: u32| rows.get(id as usize).map(|row| &row[..]);
                expert_mlp::<f64, f32, f64>(x.view(), experts, &layout, row, y.view_mut()).expect("all fits");
                for ((token, column), &got) in y.indexed_iter() {
                    let mut expected = 0.0;
                    for pair in 2 * token..2 * token + 2 {
                        let [u, w, v] = &tables[ids[pair] as usize];
                        for unit in 0..hidden {
                            let dot = |part: &[f32]| -> f64 {
                                let part = &part[unit * d..][..d];
                                x.row(token)
                                    .iter()
                                    .zip(part)
                                    .map(|(&x, &p)| f64::from(x) * f64::from(p))
                                    .sum()
                            };
                            let gate = if gated { dot(w) } else { 1.0 };
                            let h = dot(u).max(0.0) * gate * f64::from(gates[pair]);
                            expected += h * f64::from(v[unit * o + column]);
                        }
                    }
                    assert!(
                        (got - expected).abs() <= 1e-4 * (1.0 + expected.abs()),
                        "{format}: {got} {expected}"
                    );
                    if !format.is_scaled() {
                        assert_eq!(got, expected, "{format}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_id_of_no_expert_and_other_shapes_are_errors() {
        let layout = ExpertLayout::new(ExpertFormat::F32, 1, 1, 1, false).expect("sizes are fine");
        let mut row = vec![0; layout.row_bytes()];
        layout.pack(ExpertVectors { u: &[2.0], w: &[], v: &[3.0] }, &mut row).expect("it fits");
        let run = |ids: &[u32], gates: &[f32]| {
            let mut y = array![[0.0f32]];
            let experts = TokenExperts { ids, gates, activation: Activation::None };
            let rows = |id| (id == 7).then_some(&row[..]);
            expert_mlp::<f32, f32, f32>(array![[5.0f32]].view(), experts, &layout, rows, y.view_mut())?;
            Ok(y[[0, 0]])
        };
        assert_eq!(run(&[7, 7], &[1.0, 0.5]).expect("they fit"), 45.0);
        assert!(matches!(run(&[6], &[1.0]), Err(Error::Argument { argument: "an id", .. })));
        assert!(matches!(run(&[7], &[1.0, 1.0]), Err(Error::Shape { operand: "gates", .. })));
    }
}
