//! Gradients against their definitions in f64, drawn; those against finite differences; what is refused; edges.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::pass::Plan;
use super::{UpdateBackwardOp, UpdateGradientElement, UpdateGradientOutputs, UpdateGradientPlaces};
use crate::cpu::{FromAccumulator, UpdateGradient};
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::elementwise::tests::{Rounding, bound, numbers, placed};
use crate::ops::linear::LinearTypes;
use crate::ops::linear::backward::tests::{Near, drawn, near, sums_error};
use crate::ops::rows::{rounded, widened};
use crate::ops::update::MAX_RANK;
use crate::ops::{self, Activation};
use crate::{Device, Tensor};

const U: f64 = 1.0 / (1u64 << 24) as f64;
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Which rows share codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Per {
    Token,
    Sequence,
    All,
}

#[derive(Clone, Debug)]
struct Drawn {
    /// Sequences, and rows of each.
    leading: [usize; 2],
    n: usize,
    k: usize,
    ranks: Vec<usize>,
    per: Vec<Per>,
    scaling: f32,
    /// Whether they are onto a linear operation, with this activation.
    base: Option<Activation>,
    beta: f32,
    adds: [bool; 3],
    /// Whether dX, dV, dcodes, dU and dZ are wanted.
    wanted: [bool; 5],
    v_across: bool,
    /// How X, dY, the codes, their gradients and dX are.
    places: [[usize; 2]; 5],
    seed: u64,
}

fn cases() -> impl Strategy<Value = Drawn> {
    let rows = prop_oneof![4 => 1usize..20, 1 => prop::sample::select(vec![0usize, 32, 65])];
    let batch = prop_oneof![4 => 1usize..5, 1 => Just(0)];
    let leading = prop_oneof![
        6 => (batch, rows).prop_map(|(batch, rows)| [batch, rows]),
        // Groups of several strips.
        1 => prop::sample::select(vec![[1usize, 300], [2, 270], [1, 1100]]),
    ];
    let side = || prop_oneof![4 => 1usize..40, 1 => prop::sample::select(vec![0usize, 64, 72])];
    let rank = prop_oneof![3 => 1usize..10, 2 => prop::sample::select(vec![8usize, 16, 17, 24, 40])];
    let per = || prop::sample::select(vec![Per::Token, Per::Sequence, Per::All]);
    let activation = prop_oneof![
        2 => Just(None),
        3 => prop::sample::select(Activation::ALL.to_vec()).prop_map(Some),
    ];
    let place = prop_oneof![2 => Just([0, 0]), 1 => Just([8, 16]), 1 => [0usize..9, 0usize..9]];
    let factor = || prop::sample::select(vec![1.0f32, 0.5, -1.75]);
    let wanted = prop_oneof![1 => Just([true; 5]), 2 => any::<[bool; 5]>()];
    (
        (leading, side(), side(), prop::collection::vec((rank, per()), 1..4)),
        (factor(), activation, factor(), any::<[bool; 3]>(), wanted, any::<bool>()),
        (prop::array::uniform5(place), any::<u64>()),
    )
        .prop_map(
            |((leading, n, k, updates), (scaling, base, beta, adds, wanted, v_across), (places, seed))| {
                let (ranks, per) = updates.into_iter().unzip();
                Drawn { leading, n, k, ranks, per, scaling, base, beta, adds, wanted, v_across, places, seed }
            },
        )
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// One update, as numbers.
#[derive(Clone, Debug)]
struct Numbers {
    rank: usize,
    /// Rows that share codes.
    rows: usize,
    v: Vec<f32>,
    codes: Vec<f32>,
    u: Vec<f32>,
    scaling: f32,
}

/// What the gradients are of.
struct Problem<'a> {
    sizes: [usize; 3],
    x: &'a [f32],
    w: Option<&'a [f32]>,
    dz: &'a [Near],
    updates: &'a [Numbers],
    /// How far off sums of so many products are.
    sums: &'a dyn Fn(usize) -> f64,
    /// How far off a number is that has been rounded to the operands' type.
    rounding: &'a dyn Fn(Near) -> f64,
}

/// Σ a · b, of which both may be off, on to what is there.
fn sum_of(pairs: impl Iterator<Item = (Near, Near)>, sums: f64, before: Near) -> Near {
    let (mut exact, mut inner, mut magnitude, mut count) = (0.0, 0.0, 0.0, 0.0);
    for (a, b) in pairs {
        let most = (a.exact.abs() + a.error) * (b.exact.abs() + b.error);
        exact += a.exact * b.exact;
        inner += most - (a.exact * b.exact).abs();
        magnitude += most;
        count += 1.0;
    }
    let before_size = before.exact.abs() + before.error;
    let tiny = (TINY + 2f64.powi(-130)) * (count + 4.0);
    Near {
        exact: exact + before.exact,
        error: inner + before.error + sums * magnitude + 5.0 * U * (magnitude + before_size) + tiny,
    }
}

fn exactly(number: f32) -> Near {
    Near { exact: number.into(), error: 0.0 }
}

/// A number times an exact one, with so many roundings.
fn times(Near { exact, error }: Near, factor: f64, roundings: f64) -> Near {
    let (exact, error) = (exact * factor, error * factor.abs());
    Near { exact, error: error + (exact.abs() + error) * (roundings + U) * U + 3.0 * TINY }
}

/// H or P, A or dH of it, and the gradient of the codes.
impl Problem<'_> {
    /// `[M, R]`: X V and dZ Uᵀ.
    fn sides(&self, of: &Numbers) -> [Vec<Near>; 2] {
        let [m, n, k] = self.sizes;
        let at = |at: usize| (at / of.rank, at % of.rank);
        let h = (0..m * of.rank).map(at).map(|(row, r)| {
            let pairs = (0..k).map(|i| (exactly(self.x[row * k + i]), exactly(of.v[i * of.rank + r])));
            sum_of(pairs, (self.sums)(k), Near::default())
        });
        let p = (0..m * of.rank).map(at).map(|(row, r)| {
            let pairs = (0..n).map(|j| (self.dz[row * n + j], exactly(of.u[r * n + j])));
            sum_of(pairs, (self.sums)(n), Near::default())
        });
        [h.collect(), p.collect()]
    }

    /// `scaling · side ⊙ codes`, rounded.
    fn modulated(&self, of: &Numbers, side: &[Near]) -> Vec<Near> {
        let code = |at: usize| of.codes[at / of.rank / of.rows * of.rank + at % of.rank];
        let factor = |at: usize| f64::from(of.scaling) * f64::from(code(at));
        let number = |(at, &side): (usize, &Near)| times(side, factor(at), 2.0);
        let rounded = |near: Near| Near { error: (self.rounding)(near), ..near };
        side.iter().enumerate().map(number).map(rounded).collect()
    }

    fn of_codes(&self, of: &Numbers, [h, p]: &[Vec<Near>; 2], before: impl Fn(usize) -> f64) -> Vec<Near> {
        let term = |at: usize| {
            let (h, p) = (h[at], p[at]);
            let exact = h.exact * p.exact;
            let most = (h.exact.abs() + h.error) * (p.exact.abs() + p.error);
            times(Near { exact, error: most - exact.abs() }, of.scaling.into(), 2.0)
        };
        (0..of.codes.len())
            .map(|at| {
                let (group, r) = (at / of.rank, at % of.rank);
                let before = before(at);
                let (mut sum, mut size) = (Near { exact: before, error: 0.0 }, before.abs());
                for row in group * of.rows..(group + 1) * of.rows {
                    let term = term(row * of.rank + r);
                    sum.exact += term.exact;
                    sum.error += term.error;
                    size += term.exact.abs() + term.error;
                }
                Near { error: sum.error + (of.rows as f64 + 1.0) * U * size, ..sum }
            })
            .collect()
    }

    fn of_u(&self, of: &Numbers, a: &[Near], before: impl Fn(usize) -> f64) -> Vec<Near> {
        let [m, n, _] = self.sizes;
        let at = |at: usize| {
            let pairs = (0..m).map(|row| (a[row * of.rank + at / n], self.dz[row * n + at % n]));
            sum_of(pairs, (self.sums)(m), Near { exact: before(at), error: 0.0 })
        };
        (0..of.rank * n).map(at).collect()
    }

    fn of_v(&self, of: &Numbers, dh: &[Near], before: impl Fn(usize) -> f64) -> Vec<Near> {
        let [m, _, k] = self.sizes;
        let at = |at: usize| {
            let (i, r) = (at / of.rank, at % of.rank);
            let pairs = (0..m).map(|row| (dh[row * of.rank + r], exactly(self.x[row * k + i])));
            sum_of(pairs, (self.sums)(m), Near { exact: before(at), error: 0.0 })
        };
        (0..k * of.rank).map(at).collect()
    }

    fn of_x(&self, dh: &[Vec<Near>], before: impl Fn(usize) -> f64) -> Vec<Near> {
        let [m, n, k] = self.sizes;
        let ranks: usize = self.updates.iter().map(|of| of.rank).sum();
        let at = |at: usize| {
            let (row, i) = (at / k, at % k);
            let parts = self.updates.iter().zip(dh);
            let pairs = parts.flat_map(|(of, dh)| {
                (0..of.rank).map(move |r| (dh[row * of.rank + r], exactly(of.v[i * of.rank + r])))
            });
            let of_updates = sum_of(pairs, (self.sums)(ranks), Near { exact: before(at), error: 0.0 });
            let Some(w) = self.w else { return of_updates };
            let between = Near { error: (self.rounding)(of_updates), ..of_updates };
            let pairs = (0..n).map(|j| (self.dz[row * n + j], exactly(w[j * k + i])));
            sum_of(pairs, (self.sums)(n), between)
        };
        (0..m * k).map(at).collect()
    }
}

/// Where results of an update go.
struct Results<W: SumElement, C: SumElement> {
    dv: Tensor<W>,
    dcodes: Tensor<C>,
    du: Tensor<W>,
}

fn check<T, W, C>(device: &Device, case: &Drawn) -> Result<(), TestCaseError>
where
    T: UpdateGradientElement + LinearTypes<W> + Rounding,
    W: SumElement + FromAccumulator<f32> + Rounding,
    C: SumElement + Rounding,
{
    let Drawn { leading: [batch, length], n, k, seed, .. } = *case;
    let m = batch * length;
    let [adds, adds_dcodes, adds_dx] = case.adds;
    let [want_dx, want_dv, want_dcodes, want_du, want_dz] = case.wanted;
    let shape = |columns: usize| [batch, length, columns];
    let stream = |of: usize, index: usize| seed ^ ((16 * index + of) as u64 + 1);
    let (x, w, dy) = (drawn::<T>(seed, m * k), drawn::<T>(seed ^ 1, n * k), drawn::<T>(seed ^ 2, m * n));
    let z: Vec<f32> = rounded::<T>(&numbers(seed ^ 3, m * n)).into_iter().map(T::to_f32).collect();
    let updates: Vec<Numbers> = case
        .ranks
        .iter()
        .zip(&case.per)
        .enumerate()
        .map(|(index, (&rank, per))| {
            let (groups, rows) = match per {
                Per::Token => (m, 1),
                Per::Sequence => (batch, length),
                Per::All => (1, m),
            };
            Numbers {
                rank,
                rows,
                v: drawn::<T>(stream(4, index), k * rank),
                codes: drawn::<T>(stream(5, index), groups * rank),
                u: drawn::<T>(stream(6, index), rank * n),
                scaling: case.scaling / (1 + index) as f32,
            }
        })
        .collect();

    let rows_of = |numbers: &[f32], columns: usize, place| {
        placed::<T>(device, numbers, [m, columns], place).and_then(|rows| rows.reshape(shape(columns)))
    };
    let of_x = rows_of(&x, k, case.places[0]).map_err(fail)?;
    let of_dy = rows_of(&dy, n, case.places[1]).map_err(fail)?;
    let of_z = rows_of(&z, n, [0, 0]).map_err(fail)?;
    let of_w = placed::<T>(device, &w, [n, k], [0, 0]).map_err(fail)?;
    let tensors = updates.iter().zip(&case.per).map(|(of, per)| -> Result<[Tensor<T>; 3]> {
        let rank = of.rank;
        let v = if case.v_across {
            let across: Vec<f32> = (0..rank * k).map(|at| of.v[at % k * rank + at / k]).collect();
            placed::<T>(device, &across, [rank, k], case.places[2])?.swap_axes(0, 1)?
        } else {
            placed::<T>(device, &of.v, [k, rank], case.places[2])?
        };
        let groups = of.codes.len() / rank;
        let codes = placed::<T>(device, &of.codes, [groups, rank], case.places[2])?;
        let codes = codes.reshape(match per {
            Per::Token => vec![batch, length, rank],
            Per::Sequence => vec![batch, 1, rank],
            Per::All => vec![rank],
        })?;
        Ok([v, codes, placed::<T>(device, &of.u, [rank, n], [0, 0])?])
    });
    let tensors = tensors.collect::<Result<Vec<_>>>().map_err(fail)?;
    let [v, codes, u] = &tensors[0];
    let mut operation = match case.base {
        None => ops::generated_update_backward(&of_x, v, codes, u, updates[0].scaling, &of_dy),
        Some(activation) => {
            ops::linear_with_update_backward(&of_x, &of_w, v, codes, u, updates[0].scaling, &of_dy)
                .activation(activation)
                .preactivation(&of_z)
                .residual(case.beta)
        }
    };
    for ([v, codes, u], of) in tensors.iter().zip(&updates).skip(1) {
        operation = operation.and(v, codes, u, of.scaling);
    }

    // NaNs where nothing is added, which must not show.
    fn before<Y: Rounding>(adds: bool, seed: u64, count: usize) -> Vec<f32> {
        if adds { drawn::<Y>(seed, count) } else { vec![f32::NAN; count] }
    }
    let dx0 = before::<T>(adds_dx, seed ^ 7, m * k);
    let db0 = before::<W>(adds, seed ^ 8, n);
    let mut dx = rows_of(&dx0, k, case.places[4]).map_err(fail)?;
    let mut db = Tensor::from_slice(device, &rounded::<W>(&db0), [n]).map_err(fail)?;
    let mut dresidual = rows_of(&vec![f32::NAN; m * n], n, [0, 0]).map_err(fail)?;
    let mut dz = rows_of(&vec![f32::NAN; m * n], n, [0, 0]).map_err(fail)?;
    let befores: Vec<[Vec<f32>; 3]> = updates
        .iter()
        .enumerate()
        .map(|(index, of)| {
            [
                before::<W>(adds, stream(9, index), of.v.len()),
                before::<C>(adds_dcodes, stream(10, index), of.codes.len()),
                before::<W>(adds, stream(11, index), of.u.len()),
            ]
        })
        .collect();
    let results = updates.iter().zip(&befores).zip(&tensors);
    let results = results.map(|((of, [dv0, dcodes0, du0]), [_, codes, _])| -> Result<Results<W, C>> {
        let groups = of.codes.len() / of.rank;
        let dcodes = placed::<C>(device, dcodes0, [groups, of.rank], case.places[3])?;
        Ok(Results {
            dv: placed::<W>(device, dv0, [k, of.rank], [0, 0])?,
            dcodes: dcodes.reshape(codes.shape())?,
            du: placed::<W>(device, du0, [of.rank, n], [0, 0])?,
        })
    });
    let mut results = results.collect::<Result<Vec<_>>>().map_err(fail)?;
    let places = results.iter_mut().map(|Results { dv, dcodes, du }| UpdateGradientPlaces {
        dv: want_dv.then_some(dv),
        dcodes: want_dcodes.then_some(dcodes),
        du: want_du.then_some(du),
    });
    let is_based = case.base.is_some();
    operation.implementation().map_err(fail)?;
    operation
        .run_into(UpdateGradientOutputs {
            dx: want_dx.then_some(&mut dx),
            updates: places.collect(),
            db: is_based.then_some(&mut db),
            dresidual: is_based.then_some(&mut dresidual),
            dz: (want_dz && is_based).then_some(&mut dz),
            adds,
            adds_dcodes,
            adds_dx,
        })
        .map_err(fail)?;

    let activation = case.base.unwrap_or(Activation::None);
    let rounding = |near: Near| bound::<T>(near.exact, near.error + U * near.exact.abs());
    let of_z = |at: usize| {
        if activation == Activation::None {
            return exactly(dy[at]);
        }
        let slope: f64 = activation.derivative(z[at].into());
        let (exact, dy) = (f64::from(dy[at]) * slope, f64::from(dy[at]).abs());
        let error = (activation.derivative_ulps() * U + TINY) * dy;
        Near { exact, error: error + (exact.abs() + error) * U + TINY }
    };
    let gradient: Vec<Near> = (0..m * n).map(of_z).collect();
    let read: Vec<Near> = match activation {
        Activation::None => gradient.clone(),
        _ => gradient.iter().map(|&near| Near { error: rounding(near), ..near }).collect(),
    };
    if is_based {
        let of_residual: Vec<Near> =
            gradient.iter().map(|&near| times(near, case.beta.into(), 1.0)).collect();
        near::<T>(&widened(&dresidual).map_err(fail)?, &of_residual, "dresidual")?;
        let of_bias = (0..n).map(|column| {
            let before = if adds { f64::from(db0[column]) } else { 0.0 };
            let (mut sum, mut size) = (Near { exact: before, error: 0.0 }, before.abs());
            for row in 0..m {
                let near = gradient[row * n + column];
                sum = Near { exact: sum.exact + near.exact, error: sum.error + near.error };
                size += near.exact.abs() + near.error;
            }
            Near { error: sum.error + (m as f64 + 1.0) * U * size, ..sum }
        });
        near::<W>(&widened(&db).map_err(fail)?, &of_bias.collect::<Vec<_>>(), "db")?;
        if want_dz {
            near::<T>(&widened(&dz).map_err(fail)?, &gradient, "dz")?;
        }
    }

    let sums = |length: usize| sums_error::<T>(device, length);
    let problem = Problem {
        sizes: [m, n, k],
        x: &x,
        w: is_based.then_some(&w),
        dz: &read,
        updates: &updates,
        sums: &sums,
        rounding: &rounding,
    };
    let mut all_dh = Vec::new();
    for ((of, result), [dv0, dcodes0, du0]) in updates.iter().zip(&results).zip(&befores) {
        let sides = problem.sides(of);
        let [a, dh] = sides.each_ref().map(|side| problem.modulated(of, side));
        let there = |adds: bool, numbers: &[f32], at: usize| if adds { f64::from(numbers[at]) } else { 0.0 };
        if want_dv {
            let of_v = problem.of_v(of, &dh, |at| there(adds, dv0, at));
            near::<W>(&widened(&result.dv).map_err(fail)?, &of_v, "dv")?;
        }
        if want_dcodes {
            let of_codes = problem.of_codes(of, &sides, |at| there(adds_dcodes, dcodes0, at));
            near::<C>(&widened(&result.dcodes).map_err(fail)?, &of_codes, "dcodes")?;
        }
        if want_du {
            let of_u = problem.of_u(of, &a, |at| there(adds, du0, at));
            near::<W>(&widened(&result.du).map_err(fail)?, &of_u, "du")?;
        }
        all_dh.push(dh);
    }
    if want_dx {
        let of_x = problem.of_x(&all_dh, |at| if adds_dx { f64::from(dx0[at]) } else { 0.0 });
        near::<T>(&widened(&dx).map_err(fail)?, &of_x, "dx")?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn kernels_compute_what_the_definitions_say(case in cases()) {
        let device: Device = ["emulator:9.0", "emulator:8.0"][case.seed as usize % 2].parse().expect("a device");
        check::<f16, f16, f32>(&device, &case)?;
        check::<bf16, f32, bf16>(&device, &case)?;
        check::<f32, f32, f32>(&device, &case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_computes_what_the_definitions_say(case in cases()) {
        check::<f16, f32, f16>(&Device::cpu(), &case)?;
        check::<bf16, bf16, f32>(&Device::cpu(), &case)?;
        check::<f32, f32, bf16>(&Device::cpu(), &case)?;
    }
}

/// What the drawn tests compare with, and what the CPU computes, by the functions that they take.
#[test]
fn definitions_are_those_of_finite_differences() {
    let [m, n, k] = [6, 5, 4];
    let of = |seed: u64, count: usize| -> Vec<f32> {
        numbers(seed, count)
            .into_iter()
            .map(|number| ((number * 4.0).round() / 8.0).clamp(-2.0, 2.0))
            .collect()
    };
    let (x, w, dy) = (of(1, m * k), of(2, n * k), of(3, m * n));
    let updates: Vec<Numbers> = [(2, 1, 0.5), (3, 3, -1.25), (1, m, 2.0)]
        .into_iter()
        .enumerate()
        .map(|(index, (rank, rows, scaling))| {
            let seed = 10 * (1 + index as u64);
            let (v, u) = (of(seed, k * rank), of(seed + 1, rank * n));
            Numbers { rank, rows, v, codes: of(seed + 2, m / rows * rank), u, scaling }
        })
        .collect();
    // Σ y · dy in f64, of the linear operation with its updates.
    let loss = |x: &[f64], updates: &[[Vec<f64>; 3]], scalings: &[(usize, usize, f64)]| -> f64 {
        let element = |row: usize, column: usize| {
            let base: f64 = (0..k).map(|i| x[row * k + i] * f64::from(w[column * k + i])).sum();
            let of_updates = updates.iter().zip(scalings).map(|([v, codes, u], &(rank, rows, scaling))| {
                let of_rank = |r: usize| {
                    let h: f64 = (0..k).map(|i| x[row * k + i] * v[i * rank + r]).sum();
                    h * codes[row / rows * rank + r] * u[r * n + column]
                };
                scaling * (0..rank).map(of_rank).sum::<f64>()
            });
            base + of_updates.sum::<f64>()
        };
        (0..m * n).map(|at| element(at / n, at % n) * f64::from(dy[at])).sum()
    };
    let wide = |numbers: &[f32]| numbers.iter().map(|&number| f64::from(number)).collect::<Vec<f64>>();
    let all: Vec<[Vec<f64>; 3]> =
        updates.iter().map(|of| [wide(&of.v), wide(&of.codes), wide(&of.u)]).collect();
    let scalings: Vec<_> = updates.iter().map(|of| (of.rank, of.rows, f64::from(of.scaling))).collect();
    let dz: Vec<Near> = dy.iter().map(|&dy| exactly(dy)).collect();
    let problem = Problem {
        sizes: [m, n, k],
        x: &x,
        w: Some(&w),
        dz: &dz,
        updates: &updates,
        sums: &|_| 0.0,
        rounding: &|_| 0.0,
    };
    let step = 1e-4;
    let compare = |what: &str, at: usize, gradient: f64, moved: &dyn Fn(f64) -> f64| {
        let difference = (moved(step) - moved(-step)) / (2.0 * step);
        // It is a cubic at most, with a third derivative of at most 6 · 2⁵ · 120; sums are below 2¹⁴.
        assert!((difference - gradient).abs() <= 1e-4, "{what} at {at}: {difference}, {gradient}");
    };
    let mut all_dh = Vec::new();
    for (index, of) in updates.iter().enumerate() {
        let sides = problem.sides(of);
        let [a, dh] = sides.each_ref().map(|side| problem.modulated(of, side));
        let gradients = [
            ("dv", problem.of_v(of, &dh, |_| 0.0)),
            ("dcodes", problem.of_codes(of, &sides, |_| 0.0)),
            ("du", problem.of_u(of, &a, |_| 0.0)),
        ];
        for (operand, (what, gradient)) in gradients.iter().enumerate() {
            for (at, gradient) in gradient.iter().enumerate() {
                compare(what, at, gradient.exact, &|by| {
                    let mut moved = all.clone();
                    moved[index][operand][at] += by;
                    loss(&wide(&x), &moved, &scalings)
                });
            }
        }
        // The CPU implementation in f64.
        let [h, p] = sides.each_ref().map(|side| side.iter().map(|near| near.exact).collect::<Vec<f64>>());
        let Numbers { rank, rows, ref codes, scaling, .. } = *of;
        let on_cpu = UpdateGradient { h: &h, p: &p, codes, rows, rank, scaling };
        let same = |got: Vec<f64>, expected: &[Near]| {
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected.exact).abs() <= 1e-9, "{got}, {expected:?}");
            }
        };
        same(on_cpu.modulated(&h), &a);
        same(on_cpu.modulated(&p), &dh);
        same(on_cpu.of_codes(), &gradients[1].1);
        all_dh.push(dh);
    }
    for (at, gradient) in problem.of_x(&all_dh, |_| 0.0).iter().enumerate() {
        compare("dx", at, gradient.exact, &|by| {
            let mut moved = wide(&x);
            moved[at] += by;
            loss(&moved, &all, &scalings)
        });
    }
}

#[test]
fn strips_have_all_rows_of_a_group_and_every_group_has_teams() {
    for rank in 1..=MAX_RANK {
        for shared in [1, 2, 3, 4, 5, 17, 64, 127, 256, 1000, 4096, 1 << 20] {
            for groups in [1usize, 2, 3, 7, 33, 1000, 5000] {
                let m = shared * groups;
                if m >= 1 << 31 {
                    continue;
                }
                let plan = Plan::of_sizes(rank, shared, m);
                let case = format!("rank {rank}, {groups} × {shared}: {plan:?}");
                assert!(plan.threads.is_power_of_two() && plan.teams.is_power_of_two(), "{case}");
                assert!(plan.threads as usize >= rank && plan.threads * plan.teams <= 256, "{case}");
                let (group, strip, strips) = (plan.group as usize, plan.strip as usize, plan.strips as usize);
                assert!(strip * strips >= group && strip * (strips - 1) < group, "{case}");
                let all = plan.groups as usize;
                assert!(all * group >= m && (all - 1) * group < m, "{case}");
                assert_eq!(plan.own, shared == 1, "{case}");
                if !plan.own {
                    assert_eq!([all, group], [groups, shared], "{case}");
                }
                let per_block = (256 / (plan.threads * plan.teams)) as usize;
                assert!(plan.across() as usize * per_block >= all, "{case}");
                assert!(strips <= 1024 && (strips == 1 || all * strips <= 2048), "{case}");
            }
        }
    }
}

fn matrix(device: &Device, seed: u64, shape: &[usize]) -> Tensor<f32> {
    Tensor::from_slice(device, &drawn::<f32>(seed, shape.iter().product()), shape).expect("it fits")
}

fn read(tensor: &Tensor<f32>) -> Vec<f32> {
    tensor.to_vec().expect("it is read")
}

/// Each gradient alone is that of all together, and several updates that of each.
#[test]
fn gradients_alone_are_those_of_all() {
    for device in [Device::cpu(), Device::emulator()] {
        let (x, dy) = (matrix(&device, 1, &[2, 5, 12]), matrix(&device, 2, &[2, 5, 20]));
        let (v, u) = (matrix(&device, 3, &[12, 4]), matrix(&device, 4, &[4, 20]));
        let codes = matrix(&device, 5, &[2, 4]);
        let backward = || ops::generated_update_backward(&x, &v, &codes, &u, 0.5, &dy);
        let all = backward().run().expect("it runs");
        assert!(all.db.is_none() && all.dresidual.is_none() && all.updates.len() == 1);
        assert_eq!(all.updates[0].dcodes.shape(), [2, 4]);
        assert_eq!(read(&backward().dx().expect("it runs")), read(&all.dx));
        let one = |which: usize| {
            let mut to = matrix(&device, 9, [&[12, 4], &[2, 4], &[4, 20]][which]);
            let mut places = UpdateGradientPlaces::default();
            *[&mut places.dv, &mut places.dcodes, &mut places.du][which] = Some(&mut to);
            let outputs =
                UpdateGradientOutputs::<f32, f32, f32> { updates: vec![places], ..Default::default() };
            backward().run_into(outputs).expect("it runs");
            read(&to)
        };
        let of = &all.updates[0];
        assert_eq!(one(0), read(&of.dv));
        assert_eq!(one(1), read(&of.dcodes));
        assert_eq!(one(2), read(&of.du));
        // Nothing is asked for.
        backward().run_into(UpdateGradientOutputs::<f32, f32, f32>::default()).expect("it runs");

        let (v2, u2) = (matrix(&device, 6, &[12, 3]), matrix(&device, 7, &[3, 20]));
        let codes2 = matrix(&device, 8, &[3]);
        let both = backward().and(&v2, &codes2, &u2, -2.0).run().expect("it runs");
        let second = ops::generated_update_backward(&x, &v2, &codes2, &u2, -2.0, &dy).run().expect("it runs");
        for (got, expected) in both.updates.iter().zip([of, &second.updates[0]]) {
            let same = |got: &Tensor<f32>, expected: &Tensor<f32>| {
                let pairs = read(got).into_iter().zip(read(expected));
                // Sums may be grouped otherwise in kernels for other sizes.
                pairs
                    .for_each(|(got, expected)| assert!((got - expected).abs() <= 1e-4, "{got}, {expected}"));
            };
            same(&got.dv, &expected.dv);
            same(&got.dcodes, &expected.dcodes);
            same(&got.du, &expected.du);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (device, other) = (Device::cpu(), Device::emulator());
    let (x, w, dy) = (matrix(&device, 1, &[6, 4]), matrix(&device, 2, &[5, 4]), matrix(&device, 3, &[6, 5]));
    let (v, codes, u) =
        (matrix(&device, 4, &[4, 2]), matrix(&device, 5, &[6, 2]), matrix(&device, 6, &[2, 5]));
    let shape_of = |operation: &UpdateBackwardOp<'_, f32>| match operation.run().map(drop) {
        Err(Error::Shape { operation, operand, .. }) => (operation, operand),
        other => panic!("{other:?}"),
    };
    let alone = |v, codes, u, dy| ops::generated_update_backward(&x, v, codes, u, 1.0, dy);
    let onto = |w, dy| ops::linear_with_update_backward(&x, w, &v, &codes, &u, 1.0, dy);
    let (of_alone, of_linear) = ("generated_update_backward", "linear_with_update_backward");
    assert_eq!(shape_of(&alone(&u, &codes, &u, &dy)), (of_alone, "v"));
    assert_eq!(shape_of(&alone(&v, &u, &u, &dy)), (of_alone, "codes"));
    assert_eq!(shape_of(&alone(&v, &codes, &v, &dy)), (of_alone, "u"));
    assert_eq!(shape_of(&alone(&v, &codes, &u, &x)), (of_alone, "dy"));
    assert_eq!(shape_of(&onto(&u, &dy)), (of_linear, "w"));
    assert_eq!(shape_of(&onto(&w, &x)), (of_linear, "dy"));
    let relu = || onto(&w, &dy).activation(Activation::Relu);
    assert_eq!(shape_of(&relu().preactivation(&x)), (of_linear, "preactivation"));
    let argument_of = |operation: UpdateBackwardOp<'_, f32>| match operation.run().map(drop) {
        Err(Error::Argument { operation, argument, .. }) => (operation, argument),
        other => panic!("{other:?}"),
    };
    assert_eq!(argument_of(relu()), (of_linear, "activation"));
    let plain = || alone(&v, &codes, &u, &dy);
    let mask = Tensor::<u32>::zeros(&device, [6, 1]).expect("it fits");
    for (operation, argument) in [
        (plain().activation(Activation::Relu), "activation"),
        (plain().preactivation(&dy), "preactivation"),
        (plain().output(&dy), "output"),
        (plain().relu_mask(&mask), "relu_mask"),
        (plain().residual(1.0), "residual"),
    ] {
        assert_eq!(argument_of(operation), (of_alone, argument));
    }
    let elsewhere = matrix(&other, 3, &[6, 5]);
    for result in [alone(&v, &codes, &u, &elsewhere).run(), plain().on(&other.default_stream()).run()] {
        assert!(matches!(result, Err(Error::DeviceMismatch { .. })), "{result:?}");
    }
    let (wide_v, wide_u) = (matrix(&device, 4, &[4, 129]), matrix(&device, 4, &[129, 5]));
    let wide_codes = matrix(&device, 4, &[129]);
    let wide = alone(&wide_v, &wide_codes, &wide_u, &dy).run();
    assert!(matches!(wide, Err(Error::SizeLimit { quantity: "rank", .. })), "{wide:?}");

    type Outputs<'o> = UpdateGradientOutputs<'o, f32, f32, f32>;
    type To<'o> = Option<&'o mut Tensor<f32>>;
    fn places<'o>(dv: To<'o>, dcodes: To<'o>, du: To<'o>) -> Vec<UpdateGradientPlaces<'o, f32, f32>> {
        vec![UpdateGradientPlaces { dv, dcodes, du }]
    }
    let (mut of_v, mut of_codes) = (matrix(&device, 7, &[4, 2]), matrix(&device, 8, &[6, 2]));
    let run = |outputs: Outputs<'_>| plain().run_into(outputs);
    let wrong = run(Outputs { updates: places(Some(&mut of_codes), None, None), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dv", .. })), "{wrong:?}");
    let wrong = run(Outputs { updates: places(None, Some(&mut of_v), None), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dcodes", .. })), "{wrong:?}");
    let wrong = run(Outputs { updates: places(None, None, Some(&mut of_v)), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "du", .. })), "{wrong:?}");
    let wrong = run(Outputs { dx: Some(&mut of_v), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dx", .. })), "{wrong:?}");
    let [mut over_v, mut over_codes, mut over_x, mut over_dy] =
        [v.clone(), codes.clone(), x.clone(), dy.clone()];
    let wrong = run(Outputs { updates: places(Some(&mut over_v), None, None), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dv", other: "v", .. })), "{wrong:?}");
    let wrong = run(Outputs { updates: places(None, Some(&mut over_codes), None), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dcodes", other: "codes", .. })), "{wrong:?}");
    let wrong = run(Outputs { dx: Some(&mut over_x), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dx", other: "x", .. })), "{wrong:?}");
    let mut twice = of_v.clone();
    let wrong = run(Outputs {
        updates: vec![
            UpdateGradientPlaces { dv: Some(&mut twice), dcodes: None, du: None },
            UpdateGradientPlaces::default(),
        ],
        ..Default::default()
    });
    assert!(
        matches!(wrong, Err(Error::Argument { argument: "number of places for updates", .. })),
        "{wrong:?}"
    );
    let wrong = run(Outputs { dz: Some(&mut over_dy), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Argument { argument: "dz", .. })), "{wrong:?}");
    // Two results in one place.
    let (v2, codes2, u2) = (v.clone(), codes.clone(), u.clone());
    let two = plain().and(&v2, &codes2, &u2, 1.0);
    let mut alias = of_v.clone();
    let wrong = two.run_into(Outputs {
        updates: vec![
            UpdateGradientPlaces { dv: Some(&mut of_v), dcodes: None, du: None },
            UpdateGradientPlaces { dv: Some(&mut alias), dcodes: None, du: None },
        ],
        ..Default::default()
    });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dv of update 2", other: "dv", .. })), "{wrong:?}");
}
