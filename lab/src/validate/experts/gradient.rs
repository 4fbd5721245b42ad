//! Validation of the gradients of experts.
//!
//! Write u for 2⁻²⁴. A product of x, or of dy, with a vector of D numbers passes through at most `n = min(D + 1, D/16 + 40)` roundings. A lane adds up
//! every 32nd chunk, of at most 32 numbers, and lanes are added up in 5 steps. The CPU adds up 16 numbers side by side. With a
//! scale and a bias there are three more. So x·u, x·w and dy·v are known with an error. What is made of them has it to first and
//! second order, with a rounding for each product. The slope of an activation changes by at most 0.8 for each unit of z, that of
//! ReLU by 1 where the sign of z is not known.
//!
//! The gradient of a gate adds up the hidden units, dx as many terms as there are vectors, with up to four more roundings for
//! scales and biases. A gradient of an expert is a sum over the uses of it, each with one rounding.

use std::collections::BTreeMap;

use ndarray::{Array2, s};
use rayon::prelude::*;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{ExpertGradients, ExpertInput, ExpertMlpGradients, Part, expert_mlp_backward};
use warpsmith::ops::{Activation, Implementation};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::super::load::{Output, Prepared, Step};
use super::super::tally::Tally;
use super::super::{Outcome, of_type};
use super::{EXACT, Operands, SENTINEL, SLACK, sparse, within};
use crate::bound::U;
use crate::bound::backward::Near;
use crate::cases::{Data, ExpertCase};

/// The operation's name in errors.
const OPERATION: &str = "validate::expert_gradients";
/// What is lost near zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;
/// How much a slope changes for each unit of its argument, at most.
const CURVATURE: f64 = 0.8;
/// Numbers of dy that are not zero with integer data.
const INTEGERS_OF_DY: usize = 3;

/// Runs the gradients of one case on `device` and compares every result with the reference. What the case says of y holds for dy, of x for dx too.
///
/// # Errors
///
/// As [`experts`](super::experts).
pub fn expert_gradients(device: &Device, case: &ExpertCase) -> Result<Outcome> {
    of_type!(OPERATION, case, check(device, case))
}

/// The results of a case as their bits, which do not depend on where rows are.
///
/// # Errors
///
/// As [`expert_gradients`].
pub fn expert_gradient_bits(device: &Device, case: &ExpertCase) -> Result<Vec<u8>> {
    of_type!(OPERATION, case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` results.
pub(in crate::validate) fn prepare(device: &Device, case: &ExpertCase, slots: usize) -> Result<Prepared> {
    of_type!(OPERATION, case, prepared(device, case, slots))
}

/// The gradient of y.
fn draw_dy<T: ExpertInput + FloatElement>(case: &ExpertCase) -> Result<Array2<T>> {
    let draw = |columns| Data::Uniform.draw(case.seed, 6, (case.tokens, columns), 1, f64::from);
    Ok(match case.data {
        Data::Integers => sparse(&draw(INTEGERS_OF_DY)?, case.o)?.mapv(T::round),
        _ => draw(case.o)?.mapv(T::round),
    })
}

/// What a case reads, on its device.
struct Uploaded<T: Element> {
    forward: super::Uploaded<T>,
    dy: Tensor<T>,
}

impl<T: ExpertInput + FloatElement> Uploaded<T> {
    fn new(device: &Device, case: &ExpertCase, operands: &Operands<T>, dy: &Array2<T>) -> Result<Self> {
        let (mut surrounding, columns) = within::<T>(case, case.y, case.o, f64::NAN)?;
        surrounding.slice_mut(s![.., columns.clone()]).assign(dy);
        let dy = Tensor::from_array(device, &surrounding)?.slice(1, columns)?;
        Ok(Self { forward: super::Uploaded::new(device, case, operands)?, dy })
    }

    fn step(&self, case: &ExpertCase, results: &mut Results<T>, step: Step) -> Result<Implementation> {
        let super::Uploaded { x, routing, table } = &self.forward;
        let op = expert_mlp_backward(x, routing, table, &self.dy).activation(case.activation);
        match step {
            Step::Ask => op.implementation(),
            Step::Run => op.run_into(&mut results.gradients).map(|()| Implementation::Empty),
        }
    }
}

/// What a case writes: the matrix that dx is columns of, and all gradients.
struct Results<T: Element> {
    surrounding: Tensor<T>,
    gradients: ExpertMlpGradients<T>,
}

impl<T: ExpertInput + FloatElement> Results<T> {
    fn new(device: &Device, case: &ExpertCase) -> Result<Self> {
        let (filler, columns) = within::<T>(case, case.x, case.d, SENTINEL)?;
        let surrounding = Tensor::from_array(device, &filler)?;
        let ExpertCase { tokens, d, o, experts, heads, k, hidden, .. } = *case;
        let room = (tokens * heads * k).min(experts);
        let of_inputs = || Tensor::zeros(device, [room, hidden, d]);
        let experts = ExpertGradients {
            ids: Tensor::zeros(device, [room])?,
            u: of_inputs()?,
            w: case.gated.then(of_inputs).transpose()?,
            v: Tensor::zeros(device, [room, hidden, o])?,
            count: Tensor::zeros(device, [1])?,
        };
        let gradients = ExpertMlpGradients {
            dx: surrounding.slice(1, columns)?,
            dgates: Tensor::zeros(device, [tokens, heads, k])?,
            experts: Some(experts),
        };
        Ok(Self { surrounding, gradients })
    }

    fn memory(&self) -> Result<Vec<Output>> {
        let ExpertMlpGradients { dgates, experts, .. } = &self.gradients;
        let mut all = vec![Output::new("dx", &self.surrounding)?, Output::new("dgates", dgates)?];
        if let Some(ExpertGradients { ids, u, w, v, count }) = experts {
            all.extend([Output::new("ids", ids)?, Output::new("count", count)?]);
            all.extend([Output::new("du", u)?, Output::new("dv", v)?]);
            all.extend(w.as_ref().map(|w| Output::new("dw", w)).transpose()?);
        }
        Ok(all)
    }
}

/// The results of a case on the host.
struct Read<T> {
    surrounding: Array2<T>,
    dgates: Vec<f32>,
    ids: Vec<u32>,
    vectors: [Vec<f32>; 3],
    implementation: Implementation,
}

fn run<T: ExpertInput + FloatElement>(
    device: &Device,
    case: &ExpertCase,
    operands: &Operands<T>,
    dy: &Array2<T>,
) -> Result<Read<T>> {
    let uploaded = Uploaded::new(device, case, operands, dy)?;
    let mut results = Results::new(device, case)?;
    let implementation = uploaded.step(case, &mut results, Step::Ask)?;
    uploaded.step(case, &mut results, Step::Run)?;
    let shape = (case.tokens, case.x.before + case.d + case.x.after);
    let surrounding = Array2::from_shape_vec(shape, results.surrounding.to_vec()?);
    let surrounding = surrounding.map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })?;
    let dgates = results.gradients.dgates.to_vec()?;
    let (ids, vectors) = match &results.gradients.experts {
        Some(experts) => experts.read()?,
        None => Default::default(),
    };
    Ok(Read { surrounding, dgates, ids, vectors, implementation })
}

fn bits<T: ExpertInput + FloatElement>(device: &Device, case: &ExpertCase) -> Result<Vec<u8>> {
    let Read { surrounding, dgates, ids, vectors, .. } =
        run(device, case, &Operands::<T>::draw(case)?, &draw_dy(case)?)?;
    let mut all = bytemuck::cast_slice(&surrounding.into_raw_vec_and_offset().0).to_vec();
    all.extend_from_slice(bytemuck::cast_slice(&dgates));
    all.extend_from_slice(bytemuck::cast_slice(&ids));
    vectors.iter().for_each(|vector| all.extend_from_slice(bytemuck::cast_slice(vector)));
    Ok(all)
}

fn prepared<T: ExpertInput + FloatElement>(
    device: &Device,
    case: &ExpertCase,
    slots: usize,
) -> Result<Prepared> {
    let uploaded = Uploaded::new(device, case, &Operands::<T>::draw(case)?, &draw_dy(case)?)?;
    let of_slots = (0..slots).map(|_| Results::new(device, case)).collect::<Result<Vec<_>>>()?;
    let case = case.clone();
    Prepared::of_slots(of_slots, Results::memory, move |results, step| uploaded.step(&case, results, step))
}

fn check<T: ExpertInput + FloatElement>(device: &Device, case: &ExpertCase) -> Result<Outcome> {
    let (operands, dy) = (Operands::<T>::draw(case)?, draw_dy::<T>(case)?);
    let Read { surrounding, dgates, ids, vectors, implementation } = run(device, case, &operands, &dy)?;
    let wide = |matrix: &Array2<T>| matrix.mapv(|value| f64::from(value.to_f32()));
    let (x, dy) = (wide(&operands.x), wide(&dy));
    let tokens: Vec<Token> = (0..case.tokens)
        .into_par_iter()
        .map(|token| {
            let rows = [&x, &dy].map(|matrix| matrix.row(token).to_vec());
            Token::new(case, &operands, token, &rows)
        })
        .collect();
    let of_token = case.heads * case.k;
    // The uses of each expert, in order.
    let mut uses: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, &id) in operands.ids.iter().enumerate() {
        uses.entry(id).or_default().push(at);
    }
    let mut vectors_expected: [Vec<(Near, f64)>; 3] = Default::default();
    let all = uses.values().flat_map(|uses| (0..case.hidden).map(move |unit| (uses, unit)));
    let parts: Vec<[Vec<(Near, f64)>; 3]> = all
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|(uses, unit)| {
            let sums = |rows: &Array2<f64>, part: usize| -> Vec<(Near, f64)> {
                let sum = |column| {
                    let (mut total, mut magnitude) = (Near::default(), 0.0);
                    for &of in uses {
                        let factor = tokens[of / of_token].factors[of % of_token * case.hidden + unit][part];
                        let row = rows[[of / of_token, column]];
                        total.exact += factor.exact * row;
                        total.error += factor.error * row.abs();
                        magnitude += (factor.exact.abs() + factor.error) * row.abs();
                    }
                    let roundings = uses.len() as f64 + 1.0;
                    total.error = SLACK * (total.error + roundings * (U * magnitude + TINY));
                    (total, magnitude)
                };
                (0..rows.ncols()).map(sum).collect()
            };
            [sums(&x, 0), if case.gated { sums(&x, 1) } else { Vec::new() }, sums(&dy, 2)]
        })
        .collect();
    for part in parts {
        for (all, part) in vectors_expected.iter_mut().zip(part) {
            all.extend(part);
        }
    }
    let of_tokens = tokens.iter().map(|token| token.magnitude);
    let of_vectors = vectors_expected.iter().flatten().map(|(_, magnitude)| *magnitude);
    let exact = case.data == Data::Integers
        && matches!(case.activation, Activation::None | Activation::Relu)
        && of_tokens.chain(of_vectors).all(|magnitude| magnitude < EXACT);
    let mut tally = Tally::new(implementation, exact);
    let mut add = |place: [usize; 2], got: f64, near: Near, dtype: DType| {
        tally.outcome.compared += 1;
        let rounded = match dtype {
            DType::F32 => near.exact,
            _ => f64::from(T::round(near.exact).to_f32()),
        };
        tally.add(place, got, [near.exact, rounded], |got| near.judge(got, dtype));
    };
    for (token, expected) in tokens.iter().enumerate() {
        for (column, &near) in expected.dx.iter().enumerate() {
            let got = surrounding[[token, case.x.before + column]].to_f32();
            add([token, column], f64::from(got), near, case.dtype);
        }
        for (index, &near) in expected.dgates.iter().enumerate() {
            add([token, index], f64::from(dgates[token * of_token + index]), near, DType::F32);
        }
    }
    let is_named = ids.iter().eq(uses.keys());
    for (part, (got, expected)) in vectors.iter().zip(&vectors_expected).enumerate() {
        if is_named && got.len() == expected.len() {
            for (index, (&got, &(near, _))) in got.iter().zip(expected).enumerate() {
                add([part, index], f64::from(got), near, DType::F32);
            }
        }
    }
    let lengths = vectors.iter().zip(&vectors_expected).filter(|(got, expected)| got.len() != expected.len());
    tally.outcome.failures += usize::from(!is_named) + lengths.count();
    let sentinel = T::round(SENTINEL);
    let beside = surrounding.slice(s![.., ..case.x.before]);
    let behind = surrounding.slice(s![.., case.x.before + case.d..]);
    tally.outcome.stray_writes = beside.iter().chain(behind).filter(|&&value| value != sentinel).count();
    Ok(tally.finish())
}

/// What is expected of a token.
struct Token {
    dx: Vec<Near>,
    dgates: Vec<Near>,
    /// For each use of a hidden unit the factors of u, w and v.
    factors: Vec<[Near; 3]>,
    /// The largest of all sums' magnitudes.
    magnitude: f64,
}

impl Token {
    fn new<T: ExpertInput + FloatElement>(
        case: &ExpertCase,
        operands: &Operands<T>,
        token: usize,
        [x, dy]: &[Vec<f64>; 2],
    ) -> Self {
        let of_token = case.heads * case.k;
        let mut of = Self {
            dx: vec![Near::default(); case.d],
            dgates: Vec::new(),
            factors: Vec::new(),
            magnitude: [x, dy]
                .map(|row| row.iter().map(|value| value.abs()).sum())
                .into_iter()
                .fold(0.0, f64::max),
        };
        let mut magnitudes = vec![0.0; case.d];
        for use_ in token * of_token..(token + 1) * of_token {
            let gate = Near { exact: f64::from(operands.gates[use_]), error: 0.0 };
            // There is a row for every id that is drawn.
            let Some(row) = operands.row(operands.ids[use_]) else { continue };
            let mut of_gate = Vec::new();
            for unit in 0..case.hidden {
                let (z, u) = of.times(case, operands, (row, unit, Part::U), x);
                let (t, _) = of.times(case, operands, (row, unit, Part::V), dy);
                let one = (Near { exact: 1.0, error: 0.0 }, Vec::new());
                let (other, w) =
                    if case.gated { of.times(case, operands, (row, unit, Part::W), x) } else { one };
                let activated = Near {
                    exact: case.activation.apply(z.exact),
                    error: case.activation.lipschitz() * z.error
                        + case.activation.evaluation_ulps() * U * (z.exact.abs() + z.error)
                        + TINY * (1.0 + z.exact.abs()),
                };
                let change = match case.activation {
                    Activation::None => 0.0,
                    Activation::Relu => f64::from(u8::from(z.error > 0.0 && z.exact.abs() <= z.error)),
                    _ => CURVATURE * z.error,
                };
                let slope = Near {
                    exact: case.activation.derivative(z.exact),
                    error: change + case.activation.derivative_ulps() * U + TINY,
                };
                let h = activated.by(other);
                of_gate.push(h.by(t));
                let of_t = gate.by(t);
                let of_u = of_t.by(other).by(slope);
                let of_w = of_t.by(activated);
                of.factors.push([of_u, of_w, gate.by(h)]);
                for (factor, numbers) in [(of_u, u), (of_w, w)] {
                    for ((dx, magnitude), (number, size)) in
                        of.dx.iter_mut().zip(&mut magnitudes).zip(numbers)
                    {
                        dx.exact += factor.exact * number;
                        dx.error += factor.error * size;
                        *magnitude += (factor.exact.abs() + factor.error) * size;
                    }
                }
            }
            let magnitude = of_gate.iter().map(|near| near.exact.abs()).sum();
            of.magnitude = of.magnitude.max(magnitude);
            of.dgates.push(Near::sum(of_gate.into_iter(), 0.0));
        }
        let terms = (of_token * case.hidden * if case.gated { 2 } else { 1 }) as f64;
        for (dx, magnitude) in of.dx.iter_mut().zip(magnitudes) {
            dx.error = SLACK * (dx.error + (terms + 4.0) * (U * magnitude + TINY));
            of.magnitude = of.magnitude.max(magnitude);
        }
        of
    }

    /// The product of a row with a vector, and the vector's numbers with their magnitudes, scale and bias each for itself.
    fn times<T: ExpertInput + FloatElement>(
        &mut self,
        case: &ExpertCase,
        operands: &Operands<T>,
        (bytes, unit, part): (&[u8], usize, Part),
        row: &[f64],
    ) -> (Near, Vec<(f64, f64)>) {
        let mut codes = vec![0.0; row.len()];
        let [scale, bias] = operands.layout.decode(bytes, unit, part, &mut codes).map(f64::from);
        let numbers: Vec<(f64, f64)> = codes
            .iter()
            .map(|&code| (scale * f64::from(code) + bias, (scale * f64::from(code)).abs() + bias.abs()))
            .collect();
        let (mut exact, mut size) = (0.0, 0.0);
        for (&value, &(number, of_number)) in row.iter().zip(&numbers) {
            exact += value * number;
            size += value.abs() * of_number;
        }
        self.magnitude = self.magnitude.max(size);
        let roundings =
            (row.len() + 1).min(row.len() / 16 + 40) as f64 + if case.format.is_scaled() { 3.0 } else { 0.0 };
        let error = SLACK * roundings * U * size + TINY * (row.len() + 2) as f64;
        (Near { exact, error }, numbers)
    }
}
