//! Gradients of experts on the CPU: of x, of the gates, and what those of the experts are made of.

use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use super::experts::{TokenExperts, dot, expect_shape, row_of};
use super::number::{Accumulator, FromAccumulator, Operand};
use crate::error::Result;
use crate::experts::{ExpertLayout, Part};

/// The operation's name in errors.
const OPERATION: &str = "expert_mlp_backward";

/// What the gradients of gates and experts are, or are made of, for each use of an expert.
///
/// The gradient of a unit's u is the sum of its `u` times x over all uses, that of w the same with `w`, that of v the sum of
/// its `v` times dy.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertFactors<A> {
    /// The gradients of the gates, `[T · experts]`.
    pub dgates: Vec<A>,
    /// A number for each use of a hidden unit, `[T · experts · hidden]`.
    pub u: Vec<A>,
    /// As many if the units are gated, else none.
    pub w: Vec<A>,
    /// As many.
    pub v: Vec<A>,
}

/// The gradients for the rows of `x` `[T, D]`, from those of the outputs, `dy` `[T, O]`, in `A`. `dx` `[T, D]` is rounded once. `row` gives the row of an expert, in the
/// layout `layout`; none if there is no such expert.
///
/// # Errors
///
/// [`Error::Shape`](crate::Error::Shape) if the shapes do not fit together, [`Error::Argument`](crate::Error::Argument) if an id is no expert's.
pub fn expert_mlp_backward<'r, A, T, O>(
    x: ArrayView2<'_, T>,
    experts: TokenExperts<'_>,
    layout: &ExpertLayout,
    row: impl Fn(u32) -> Option<&'r [u8]> + Sync,
    dy: ArrayView2<'_, T>,
    mut dx: ArrayViewMut2<'_, O>,
) -> Result<ExpertFactors<A>>
where
    A: Accumulator,
    T: Operand,
    O: FromAccumulator<A>,
{
    let TokenExperts { ids, gates, activation } = experts;
    let tokens = x.nrows();
    expect_shape(OPERATION, "x", x.shape(), &[tokens, layout.d()])?;
    expect_shape(OPERATION, "dy", dy.shape(), &[tokens, layout.o()])?;
    expect_shape(OPERATION, "dx", dx.shape(), x.shape())?;
    expect_shape(OPERATION, "gates", &[gates.len()], &[ids.len()])?;
    let count = ids.len().checked_div(tokens).unwrap_or(0);
    expect_shape(OPERATION, "ids", &[ids.len()], &[tokens * count])?;
    let mut rows: Vec<_> = dx.rows_mut().into_iter().enumerate().collect();
    let of_tokens = rows.par_iter_mut().map(|(token, dx)| {
        let own = *token * count..(*token + 1) * count;
        let experts = TokenExperts { ids: &ids[own.clone()], gates: &gates[own], activation };
        let wide = |values: ndarray::ArrayView1<'_, T>| -> Vec<A> {
            values.iter().map(|value| A::from_f32(value.to_f32())).collect()
        };
        let (sums, factors) = of_token(&wide(x.row(*token)), &wide(dy.row(*token)), experts, layout, &row)?;
        for (target, &value) in dx.iter_mut().zip(&sums) {
            *target = O::from_accumulator(value);
        }
        Ok(factors)
    });
    let of_tokens = of_tokens.collect::<Result<Vec<ExpertFactors<A>>>>()?;
    let joined = |part: fn(&ExpertFactors<A>) -> &Vec<A>| of_tokens.iter().flat_map(part).copied().collect();
    Ok(ExpertFactors {
        dgates: joined(|of| &of.dgates),
        u: joined(|of| &of.u),
        w: joined(|of| &of.w),
        v: joined(|of| &of.v),
    })
}

/// dx of a token, and its factors.
fn of_token<'r, A: Accumulator>(
    x: &[A],
    dy: &[A],
    TokenExperts { ids, gates, activation }: TokenExperts<'_>,
    layout: &ExpertLayout,
    row: &impl Fn(u32) -> Option<&'r [u8]>,
) -> Result<(Vec<A>, ExpertFactors<A>)> {
    let (mut dx, mut numbers) = (vec![A::zero(); x.len()], vec![0.0; x.len().max(dy.len())]);
    let mut bias_of_dx = A::zero();
    let mut factors = ExpertFactors { dgates: Vec::new(), u: Vec::new(), w: Vec::new(), v: Vec::new() };
    let sums = [x, dy].map(|values| dot(values, |_| A::one()));
    for (&id, &gate) in ids.iter().zip(gates) {
        let bytes = row_of(OPERATION, row, layout, id)?;
        let (gate, mut dgate) = (A::from_f32(gate), A::zero());
        for unit in 0..layout.hidden() {
            let mut times = |values: &[A], sum: A, part| {
                let [scale, bias] = layout.decode(bytes, unit, part, &mut numbers[..values.len()]);
                let product = dot(values, |i| A::from_f32(numbers[i]));
                if !layout.format().is_scaled() {
                    return product;
                }
                A::from_f32(scale) * product + A::from_f32(bias) * sum
            };
            let z = times(x, sums[0], Part::U);
            let other = if layout.is_gated() { times(x, sums[0], Part::W) } else { A::one() };
            let t = times(dy, sums[1], Part::V);
            let activated = activation.apply(z);
            let h = activated * other;
            dgate += h * t;
            let of_t = gate * t;
            let of_u = of_t * other * activation.derivative(z);
            let mut add = |factor: A, part| {
                let [scale, bias] = layout.decode(bytes, unit, part, &mut numbers[..dx.len()]);
                for (dx, &number) in dx.iter_mut().zip(&numbers) {
                    *dx += factor * A::from_f32(scale) * A::from_f32(number);
                }
                if layout.format().is_scaled() {
                    bias_of_dx += factor * A::from_f32(bias);
                }
            };
            add(of_u, Part::U);
            if layout.is_gated() {
                add(of_t * activated, Part::W);
                factors.w.push(of_t * activated);
            }
            factors.u.push(of_u);
            factors.v.push(gate * h);
        }
        factors.dgates.push(dgate);
    }
    if layout.format().is_scaled() {
        dx.iter_mut().for_each(|dx| *dx += bias_of_dx);
    }
    Ok((dx, factors))
}

/// Adds rows times weights to `sum`, which has as many columns, one use after the other: row `use / uses` times `weight(use)`.
pub(crate) fn add_weighted_rows<A: Accumulator>(
    rows: &[f32],
    which: &[usize],
    uses: usize,
    weight: impl Fn(usize) -> A,
    sum: &mut [A],
) {
    let columns = sum.len();
    for &of in which {
        let weight = weight(of);
        for (sum, &value) in sum.iter_mut().zip(&rows[of / uses * columns..]) {
            *sum += weight * A::from_f32(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;
    use crate::cpu::{Activation, expert_mlp};
    use crate::experts::{ExpertFormat, ExpertVectors};

    /// Every gradient against differences of the loss Σ y ⊙ dy, in f64.
    #[test]
    fn gradients_are_those_of_finite_differences() {
        for (activation, hidden, gated) in
            [(Activation::GeluErf, 1, false), (Activation::Silu, 3, true), (Activation::GeluTanh, 2, false)]
        {
            let (d, o, count) = (5, 3, 4);
            let layout = ExpertLayout::new(ExpertFormat::F32, d, hidden, o, gated).expect("sizes are fine");
            let mut state = 5u32;
            let mut draw = |length: usize| -> Vec<f32> {
                let mut next = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) as f32 / 32768.0 - 1.0
                };
                (0..length).map(|_| next()).collect()
            };
            let w_of = |length: usize| if gated { length } else { 0 };
            let parts: Vec<[Vec<f32>; 3]> =
                (0..count).map(|_| [draw(hidden * d), draw(w_of(hidden * d)), draw(hidden * o)]).collect();
            let (ids, gates) = ([2u32, 0, 3, 3, 1, 2], draw(6));
            let x = Array2::from_shape_vec((2, d), draw(2 * d)).expect("its size");
            let dy = Array2::from_shape_vec((2, o), draw(2 * o)).expect("its size");
            let packed = |parts: &[[Vec<f32>; 3]]| -> Vec<Vec<u8>> {
                let pack = |[u, w, v]: &[Vec<f32>; 3]| {
                    let mut row = vec![0; layout.row_bytes()];
                    layout.pack(ExpertVectors { u, w, v }, &mut row).expect("it fits");
                    row
                };
                parts.iter().map(pack).collect()
            };
            let loss = |x: &Array2<f32>, gates: &[f32], parts: &[[Vec<f32>; 3]]| -> f64 {
                let rows = packed(parts);
                let mut y = Array2::<f64>::zeros((2, o));
                let experts = TokenExperts { ids: &ids, gates, activation };
                let row = |id: u32| rows.get(id as usize).map(|row| &row[..]);
                expert_mlp::<f64, f32, f64>(x.view(), experts, &layout, row, y.view_mut()).expect("all fits");
                y.iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum()
            };
            let rows = packed(&parts);
            let row = |id: u32| rows.get(id as usize).map(|row| &row[..]);
            let mut dx = Array2::<f64>::zeros((2, d));
            let experts = TokenExperts { ids: &ids, gates: &gates, activation };
            let factors = expert_mlp_backward::<f64, f32, f64>(
                x.view(),
                experts,
                &layout,
                row,
                dy.view(),
                dx.view_mut(),
            )
            .expect("all fits");
            // A step that f32 holds, for which differences of second order are small enough.
            const STEP: f32 = 1.0 / 1024.0;
            let near = |name: &str, got: f64, of: &dyn Fn(f32) -> f64, value: f32| {
                let (above, below) = (value + STEP, value - STEP);
                let expected = (of(above) - of(below)) / (f64::from(above) - f64::from(below));
                assert!((got - expected).abs() <= 1e-5, "{activation} {name}: {got} for {expected}");
            };
            for ((token, column), &got) in dx.indexed_iter() {
                let of = |value: f32| {
                    let mut moved = x.clone();
                    moved[[token, column]] = value;
                    loss(&moved, &gates, &parts)
                };
                near("dx", got, &of, x[[token, column]]);
            }
            for (at, &got) in factors.dgates.iter().enumerate() {
                let of = |value: f32| {
                    let mut moved = gates.clone();
                    moved[at] = value;
                    loss(&x, &moved, &parts)
                };
                near("dgates", got, &of, gates[at]);
            }
            let tokens = crate::cpu::tokens_of_ids(&ids.map(|id| Some(id as usize)));
            for (expert, uses) in tokens {
                for (part, (factors, rows, columns)) in
                    [(&factors.u, &x, d), (&factors.w, &x, if gated { d } else { 0 }), (&factors.v, &dy, o)]
                        .into_iter()
                        .enumerate()
                {
                    for unit in 0..hidden {
                        let mut sum = vec![0.0f64; columns];
                        let rows = rows.as_slice().expect("it has no gaps");
                        if columns > 0 {
                            add_weighted_rows(rows, &uses, 3, |of| factors[of * hidden + unit], &mut sum);
                        }
                        for (column, &got) in sum.iter().enumerate() {
                            let of = |value: f32| {
                                let mut moved = parts.clone();
                                moved[expert][part][unit * columns + column] = value;
                                loss(&x, &gates, &moved)
                            };
                            let name = ["u", "w", "v"][part];
                            near(name, got, &of, parts[expert][part][unit * columns + column]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let layout = ExpertLayout::new(ExpertFormat::F32, 1, 1, 1, false).expect("sizes are fine");
        let row = vec![0; layout.row_bytes()];
        let run = |ids: &[u32], gates: &[f32], dy: &Array2<f32>| {
            let experts = TokenExperts { ids, gates, activation: Activation::None };
            let rows = |id| (id == 7).then_some(&row[..]);
            let mut dx = array![[0.0f32]];
            expert_mlp_backward::<f32, f32, f32>(
                array![[5.0f32]].view(),
                experts,
                &layout,
                rows,
                dy.view(),
                dx.view_mut(),
            )
            .map(|_| ())
        };
        use crate::error::Error;
        assert!(run(&[7], &[1.0], &array![[1.0]]).is_ok());
        assert!(matches!(run(&[6], &[1.0], &array![[1.0]]), Err(Error::Argument { argument: "an id", .. })));
        assert!(matches!(run(&[7], &[1.0], &array![[1.0, 2.0]]), Err(Error::Shape { operand: "dy", .. })));
        assert!(matches!(run(&[7], &[], &array![[1.0]]), Err(Error::Shape { operand: "gates", .. })));
    }
}
