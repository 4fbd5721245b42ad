//! Validation of product-key retrieval: the experts found, and their gates.
//!
//! Scores are computed with rounding, so two experts whose scores are nearly equal may change places. What is allowed follows from how far
//! a score may be off. Let δ₁ and δ₂ bound the errors of any score of a sub-key of the halves, and u be 2⁻²⁴. The p-th best computed
//! score of a half is at least the p-th best exact one less δ, since the p best exact ones are computed so high or higher. So
//! of the computed sums, the r-th best is at least the r-th best exact sum less δ₁ + δ₂ and the rounding of a sum. The expert
//! that has it has an exact score that is not lower than what was computed less δ₁ + δ₂ and that rounding. Likewise upwards. So
//! **the exact
//! score of the expert of rank r is within 2(δ₁ + δ₂) + 2u · |s| of the r-th best exact score**, and the experts are those of the
//! reference wherever scores are further apart than that. With integers every score is exact, and so are the ids, those of ties too.
//!
//! **Queries.** A feature q of the projection is off by at most e, by the bound of linear operations ([`bound`](crate::bound)). Let
//! z be the normalised feature, f the factor that it has been multiplied with and d the length of a query. The error becomes at
//! most `f · (|e| + mean |e|) + |z| · f · rms(e)` where the mean is subtracted. (The factor changes by `σ · rms(e) / (σ² + ε)`
//! of itself, and σ ≤ 1/f.) Elsewhere the mean is left out. Where the length is what is divided by, the root of Σe² takes the
//! place of rms(e). The second order is below a tenth of that for the errors that there are. Normalising itself rounds: d
//! additions
//! for a sum, half of it in
//! a square root, and the reciprocal root to 4u: `f · (d + 8) u · mean |q| + |z| · ((d + 8) / 2 + 12) u`, and 2u of what weight and bias give.
//!
//! **Scores.** A query is the sum of two bf16 numbers to 2⁻¹⁷ of it, of two f16 numbers to 2⁻²² of it and 2⁻³⁵ of the largest of its
//! row. Both parts are added up as f16 and bf16 are: `(d/2 + 8) · 4.1 u` of Σ|q||c|. f32 is as in products of f32.
//!
//! **Gates** are compared with those that the experts found have by the reference. Scores are off by ε = δ₁ + δ₂ + u |s|, and for a softmax
//! their differences by twice that: a factor of at most exp(2ε / temperature); an exponent x costs 6u |x|, the rest `(k + 24) u`.

mod gradient;

pub(super) use gradient::prepare as prepare_gradient;
pub use gradient::{product_key_gradient_bits, product_key_topk_backward};

use half::{bf16, f16};
use ndarray::{Array2, Array3, Axis};
use rayon::prelude::*;
use warpsmith::cpu::product_key::{Found, Widened, find, gates, of_head, queries};
use warpsmith::cpu::{Normalization, Operand as CpuOperand, ProductKeys};
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{Gate, ProductKeyOp, QueryNorm, Routing, RoutingInput};
use warpsmith::ops::{self, Activation, Precision, Products};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::{Arithmetic, ErrorModel, Expected, Judgement, U};
use crate::cases::Data;
use crate::cases::{NormKind, RoutingCase};

/// The operation's name in errors.
const OPERATION: &str = "validate::product_key_topk";
/// A length of sums for which integers are −1, 0 or 1.
const UNIT_INTEGERS: usize = 1 << 21;
/// Sub-keys that are longer than the others with skewed data.
const FAVOURITES: usize = 3;

/// What a validation of retrieval found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RoutingOutcome {
    /// The scores of the experts found beside the best scores, and the gates.
    pub outcome: Outcome,
    /// The share of the reference's experts that were found; 1 if there are none.
    pub recall: f64,
    /// Tokens and heads of which the last expert and the next best have scores closer than rounding may move them.
    pub near_ties: usize,
}

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32; otherwise whatever the operation returns.
pub fn product_key_topk(device: &Device, case: &RoutingCase) -> Result<RoutingOutcome> {
    match case.dtype {
        DType::F16 => check::<f16>(device, case),
        DType::Bf16 => check::<bf16>(device, case),
        DType::F32 => check::<f32>(device, case),
        actual => {
            let expected = "f16, bf16 or f32".into();
            Err(Error::Type { operation: OPERATION, operand: "x", expected, actual })
        }
    }
}

fn misshapen(error: &ndarray::ShapeError) -> Error {
    Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: "one that has as many numbers".into(),
        actual: error.to_string(),
    }
}

/// The operands of a case on the host.
struct Operands<T> {
    x: Array2<T>,
    w: Array2<T>,
    bias: Option<Vec<T>>,
    keys: [Array3<T>; 2],
    /// Weight and bias of the norm, mean and variance.
    of_features: [Option<Array2<f32>>; 4],
}

impl<T: FloatElement + CpuOperand> Operands<T> {
    fn draw(case: &RoutingCase) -> Result<Self> {
        let &RoutingCase { tokens, columns, n, half, heads, seed, data, .. } = case;
        let draw = |stream: u64, shape: (usize, usize), factor: f64| -> Result<Array2<T>> {
            let drawn = data.draw(seed, stream, shape, UNIT_INTEGERS, f64::from)?;
            let factor = if data == Data::Integers { 1.0 } else { factor };
            Ok(drawn.mapv(|value| T::round(value * factor)))
        };
        let projected = heads * 2 * half;
        let x = draw(0, (tokens, columns), 1.0)?;
        let w = draw(1, (projected, columns), (3.0 / columns.max(1) as f64).sqrt())?;
        let bias =
            if case.bias { Some(draw(2, (1, projected), 1.0)?.into_raw_vec_and_offset().0) } else { None };
        let groups = if case.per_head { heads } else { 1 };
        let keys = |stream: u64| -> Result<Array3<T>> {
            let drawn = draw(stream, (groups * n, half), (3.0 / half.max(1) as f64).sqrt())?;
            let mut keys =
                drawn.into_shape_with_order((groups, n, half)).map_err(|error| misshapen(&error))?;
            for mut group in keys.axis_iter_mut(Axis(0)) {
                if case.duplicates {
                    for key in n.div_ceil(2)..n {
                        let (first, mut second) = group.view_mut().split_at(Axis(0), key);
                        second.row_mut(0).assign(&first.row(key - n.div_ceil(2)));
                    }
                }
                if case.skewed {
                    for mut key in group.rows_mut().into_iter().take(FAVOURITES) {
                        key.mapv_inplace(|value| T::round(4.0 * f64::from(value.to_f32())));
                    }
                }
            }
            Ok(keys)
        };
        let keys = [keys(3)?, keys(4)?];
        let of_all = if case.per_head_norm { heads } else { 1 };
        let features = |stream: u64, offset: f32, is_there: bool| -> Result<Option<Array2<f32>>> {
            if !is_there {
                return Ok(None);
            }
            let drawn = Data::Uniform.draw(seed, stream, (of_all, 2 * half), 1, |value| value)?;
            Ok(Some(drawn.mapv(|value| offset + 0.5 * value)))
        };
        let batch = case.norm == NormKind::Batch;
        let of_features = [
            features(5, 1.0, case.affine)?,
            features(6, 0.0, case.affine)?,
            features(7, 0.0, batch)?,
            features(8, 1.0, batch)?,
        ];
        Ok(Self { x, w, bias, keys, of_features })
    }

    fn features(&self, which: usize) -> Option<&[f32]> {
        self.of_features[which].as_ref().and_then(|numbers| numbers.as_slice())
    }
}

/// The same operands for the CPU.
fn retrieval<'a, T>(case: &RoutingCase, operands: &'a Operands<T>) -> ProductKeys<'a, T>
where
    T: RoutingInput + FloatElement,
{
    let epsilon = case.norm.epsilon();
    ProductKeys {
        w: operands.w.view(),
        bias: operands.bias.as_deref(),
        keys_1: operands.keys[0].view(),
        keys_2: operands.keys[1].view(),
        heads: case.heads,
        k: case.k,
        norm: match case.norm {
            NormKind::None => Normalization::None,
            NormKind::Layer => Normalization::Layer { epsilon },
            NormKind::Rms => Normalization::Rms { epsilon },
            NormKind::L2 | NormKind::ShortL2 => Normalization::L2 { epsilon },
            NormKind::Batch => Normalization::Batch {
                mean: operands.features(2).unwrap_or_default(),
                variance: operands.features(3).unwrap_or_default(),
                epsilon,
            },
        },
        weight: operands.features(0),
        shift: operands.features(1),
        gate: case.gate,
        temperature: case.temperature,
    }
}

/// Sub-keys on a device: of rows that are not chunks of 16 bytes if `apart`.
fn upload_keys<T: RoutingInput>(device: &Device, case: &RoutingCase, keys: &Array3<T>) -> Result<Tensor<T>> {
    let (groups, n, half) = keys.dim();
    let width = half + if case.unaligned { 3 } else { 0 };
    let wide =
        Array3::from_shape_fn(
            (groups, n, width),
            |(g, i, c)| if c < half { keys[[g, i, c]] } else { T::zeroed() },
        );
    let tensor = Tensor::from_array(device, &wide)?.slice(2, 0..half)?;
    if case.per_head { Ok(tensor) } else { tensor.slice(0, 0..1)?.reshape([n, half]) }
}

/// The operands of a case on its device, in the default stream's order.
struct Uploaded<T: Element> {
    x: Tensor<T>,
    w: Tensor<T>,
    bias: Option<Tensor<T>>,
    keys: [Tensor<T>; 2],
    /// As [`Operands::of_features`].
    of_features: [Option<Tensor<f32>>; 4],
}

impl<T: RoutingInput + FloatElement> Uploaded<T> {
    fn new(device: &Device, case: &RoutingCase, operands: &Operands<T>) -> Result<Self> {
        let bias = operands.bias.as_ref();
        let feature = |which: usize| -> Result<Option<Tensor<f32>>> {
            let Some(numbers) = &operands.of_features[which] else { return Ok(None) };
            let tensor = Tensor::from_array(device, numbers)?;
            if case.per_head_norm { Ok(Some(tensor)) } else { tensor.reshape([2 * case.half]).map(Some) }
        };
        Ok(Self {
            x: Tensor::from_array(device, &operands.x)?,
            w: Tensor::from_array(device, &operands.w)?,
            bias: bias.map(|bias| Tensor::from_slice(device, bias, [bias.len()])).transpose()?,
            keys: [
                upload_keys(device, case, &operands.keys[0])?,
                upload_keys(device, case, &operands.keys[1])?,
            ],
            of_features: [feature(0)?, feature(1)?, feature(2)?, feature(3)?],
        })
    }

    /// The operation on these operands.
    fn operation(&self, case: &RoutingCase) -> ProductKeyOp<'_, T> {
        let [weight, shift, mean, variance] = &self.of_features;
        let epsilon = case.norm.epsilon();
        let mut norm = match (case.norm, mean, variance) {
            (NormKind::Layer, ..) => QueryNorm::layer(epsilon),
            (NormKind::Rms, ..) => QueryNorm::rms(epsilon),
            (NormKind::L2 | NormKind::ShortL2, ..) => QueryNorm::l2(epsilon),
            (NormKind::Batch, Some(mean), Some(variance)) => QueryNorm::batch(mean, variance, epsilon),
            _ => QueryNorm::none(),
        };
        if let Some(weight) = weight {
            norm = norm.weight(weight);
        }
        if let Some(shift) = shift {
            norm = norm.bias(shift);
        }
        let operation =
            ops::product_key_topk(&self.x, &self.w, &self.keys[0], &self.keys[1], case.heads, case.k)
                .query_norm(norm)
                .gate(case.gate)
                .temperature(case.temperature)
                .blocks(case.blocks);
        match &self.bias {
            Some(bias) => operation.bias(bias),
            None => operation,
        }
    }
}

/// Runs the operation.
fn run<T>(
    device: &Device,
    case: &RoutingCase,
    operands: &Operands<T>,
) -> Result<(Routing, ops::Implementation)>
where
    T: RoutingInput + FloatElement,
{
    let uploaded = Uploaded::new(device, case, operands)?;
    let operation = uploaded.operation(case);
    let implementation = operation.implementation()?;
    Ok((operation.run()?, implementation))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &RoutingCase, slots: usize) -> Result<Prepared> {
    fn of_type<T: RoutingInput + FloatElement>(
        device: &Device,
        case: &RoutingCase,
        slots: usize,
    ) -> Result<Prepared> {
        let uploaded = Uploaded::new(device, case, &Operands::<T>::draw(case)?)?;
        let shape = [case.tokens, case.heads, case.k];
        let of_slots = (0..slots)
            .map(|_| Ok(Routing { ids: Tensor::zeros(device, shape)?, gates: Tensor::zeros(device, shape)? }))
            .collect::<Result<Vec<_>>>()?;
        let memory = |routing: &Routing| {
            Ok(vec![Output::new("ids", &routing.ids)?, Output::new("gates", &routing.gates)?])
        };
        let case = case.clone();
        Prepared::of_slots(of_slots, memory, move |routing, step| {
            let operation = uploaded.operation(&case);
            match step {
                Step::Ask => operation.implementation(),
                Step::Run => operation.run_into(routing).map(|()| ops::Implementation::Empty),
            }
        })
    }
    match case.dtype {
        DType::F16 => of_type::<f16>(device, case, slots),
        DType::Bf16 => of_type::<bf16>(device, case, slots),
        DType::F32 => of_type::<f32>(device, case, slots),
        actual => Err(Error::Type {
            operation: "validate::load::Work::product_key_topk",
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

fn check<T: RoutingInput + FloatElement>(device: &Device, case: &RoutingCase) -> Result<RoutingOutcome> {
    let operands = Operands::<T>::draw(case)?;
    let (routing, implementation) = run(device, case, &operands)?;
    let (ids, got_gates) = (routing.ids.to_vec()?, routing.gates.to_vec()?);
    let keys = retrieval(case, &operands);
    let q = queries::<f64, T>(operands.x.view(), &keys)?;
    let magnitudes = absolute::<T>(&operands, &keys)?;
    let widened = Widened::<f64>::new(&keys);
    let model = Model::new(device, case);
    let width = 2 * case.half;
    let rows: Vec<Row> = (0..case.tokens * case.heads)
        .into_par_iter()
        .map(|row| {
            let head = row % case.heads;
            let query = &q[row * width..][..width];
            let found = find(&keys, &widened, query, head);
            let added = |feature: usize| {
                operands
                    .bias
                    .as_ref()
                    .map_or(0.0, |bias| f64::from(bias[head * width + feature].to_f32()).abs())
            };
            let errors: Vec<f64> = (0..width)
                .map(|feature| {
                    model.projected(query[feature], magnitudes[row * width + feature], added(feature))
                })
                .collect();
            let errors = model.normalised(&keys, head, query, &found.query, &errors);
            let delta = [0, 1].map(|half| model.of_scores(&widened, half, head, &found.query, &errors));
            Row { found, delta: delta[0] + delta[1] }
        })
        .collect();

    let exact = case.is_exact();
    let mut tally = Tally::new(implementation, exact);
    tally.outcome.compared = ids.len();
    let (k, n) = (case.k, case.n);
    let (mut hits, mut near_ties) = (0, 0);
    for (row, Row { found, delta }) in rows.iter().enumerate() {
        let (ids, got_gates) = (&ids[row * k..][..k], &got_gates[row * k..][..k]);
        let score = |id: u32| {
            let (i, j) = (id as usize / n, id as usize % n);
            found.scores[0].get(i).zip(found.scores[1].get(j)).map_or(f64::NAN, |(a, b)| a + b)
        };
        let mut distinct = ids.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        hits += distinct.iter().filter(|id| found.ids.contains(id)).count();
        // Experts found twice, and others than the only right ones.
        tally.outcome.failures += k - distinct.len();
        if case.has_exact_ids() {
            tally.outcome.failures +=
                ids.iter().zip(&found.ids).filter(|(got, expected)| got != expected).count();
        }
        near_ties += usize::from(gap(found, n) <= 2.0 * delta);
        let largest = found.ids.iter().map(|&id| score(id).abs()).fold(0.0, f64::max);
        for (rank, (&id, &expected)) in ids.iter().zip(&found.ids).enumerate() {
            let (got, expected) = (score(id), score(expected));
            let bound = 2.0 * (delta + U * largest);
            tally.add([row, rank], got, [expected; 2], |got| judge(got, expected, bound));
        }
        let scores: Vec<f64> = ids.iter().map(|&id| score(id)).collect();
        let expected = gates::<f64>(case.gate, case.temperature, &scores);
        for (rank, (&got, &expected)) in got_gates.iter().zip(&expected).enumerate() {
            let bound = gate_bound(case, &scores, rank, expected, delta + U * largest);
            tally.add([row, rank], got.into(), [expected; 2], |got| judge(got, expected, bound));
        }
    }
    let recall = if ids.is_empty() { 1.0 } else { hits as f64 / ids.len() as f64 };
    Ok(RoutingOutcome { outcome: tally.finish(), recall, near_ties })
}

/// The reference of a token and head.
struct Row {
    found: Found<f64>,
    /// What bounds the error of a score.
    delta: f64,
}

/// How far the last expert's score is above that of the best one not found; infinite if there is none.
fn gap(found: &Found<f64>, n: usize) -> f64 {
    let k = found.ids.len();
    let best = |scores: &[f64]| {
        let mut sorted = scores.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(k + 1);
        sorted
    };
    let [first, second] = [best(&found.scores[0]), best(&found.scores[1])];
    // Those that k others at most are better than.
    let mut sums: Vec<f64> = Vec::new();
    for (a, one) in first.iter().enumerate() {
        sums.extend(second.iter().take((k + 1) / (a + 1)).map(|other| one + other));
    }
    sums.sort_by(|a, b| b.total_cmp(a));
    match (sums.get(k.wrapping_sub(1)), sums.get(k)) {
        (Some(last), Some(next)) if n > 0 => last - next,
        _ => f64::INFINITY,
    }
}

fn judge(got: f64, expected: f64, bound: f64) -> Judgement {
    let error = (got - expected).abs();
    Judgement { error, bound, within: error <= bound }
}

/// How far a gate may be off whose score may be by `delta`.
fn gate_bound(case: &RoutingCase, scores: &[f64], rank: usize, expected: f64, delta: f64) -> f64 {
    let temperature = f64::from(case.temperature);
    let delta = delta / temperature;
    let size = scores[rank].abs() / temperature;
    match case.gate {
        Gate::Softmax => {
            let (least, most) =
                scores.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &score| {
                    (least.min(score), most.max(score))
                });
            let rounding = (6.0 * (most - least) / temperature + case.k as f64 + 24.0) * U;
            expected * ((2.0 * delta + rounding).exp() - 1.0) + 2f64.powi(-120)
        }
        Gate::Sigmoid => delta / 4.0 + (8.0 + 4.0 * size) * U * expected + 2f64.powi(-120),
        _ => delta + 3.0 * U * size,
    }
}

/// Σ|x||w| for every element of the projection.
fn absolute<T: RoutingInput + FloatElement>(
    operands: &Operands<T>,
    keys: &ProductKeys<'_, T>,
) -> Result<Vec<f64>> {
    let size = |value: &T| T::round(f64::from(value.to_f32()).abs());
    let (x, w) = (operands.x.map(size), operands.w.map(size));
    queries::<f64, T>(x.view(), &ProductKeys { w: w.view(), bias: None, ..keys.clone() })
}

/// How far queries and scores may be off.
struct Model {
    projection: ErrorModel,
    /// What adding up costs a score, relative to the sum of its products' magnitudes.
    accumulation: f64,
    /// What a query's number loses when it is split, of itself and of the largest of its row.
    split: [f64; 2],
}

impl Model {
    fn new(device: &Device, case: &RoutingCase) -> Self {
        let on_cpu = device.kind() == DeviceKind::Cpu;
        let arithmetic = if on_cpu { Arithmetic::Cpu } else { Arithmetic::TensorCore };
        let projection =
            ErrorModel::new(arithmetic, case.dtype, DType::F32, case.columns, 1.0, Activation::None);
        let half = case.half as f64;
        let (accumulation, split) = match case.dtype {
            _ if on_cpu => ((half + 18.0) * U, [0.0; 2]),
            DType::F16 => ((half + 8.0) * 4.1 * U, [2f64.powi(-22), 2f64.powi(-35)]),
            DType::Bf16 => ((half + 8.0) * 4.1 * U, [2f64.powi(-17), 0.0]),
            _ => (Products::choose(DType::F32, case.half, Precision::Full, true).error(case.half), [0.0; 2]),
        };
        Self { projection, accumulation, split }
    }

    /// The error of an element of the projection.
    fn projected(&self, value: f64, magnitude: f64, added: f64) -> f64 {
        self.projection.bound(Expected {
            z: value,
            y: value,
            magnitude,
            factor: 1.0,
            added,
            inner: 0.0,
            lost: 0.0,
        })
    }

    /// The errors of a normalised query.
    fn normalised<T: CpuOperand>(
        &self,
        keys: &ProductKeys<'_, T>,
        head: usize,
        raw: &[f64],
        normalised: &[f64],
        errors: &[f64],
    ) -> Vec<f64> {
        let d = raw.len() as f64;
        let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / d;
        let mean_error = mean_of(&mut errors.iter().copied());
        let rms = mean_of(&mut errors.iter().map(|e| e * e)).sqrt();
        let mean = mean_of(&mut raw.iter().copied());
        let mean_size = mean_of(&mut raw.iter().map(|q| q.abs()));
        let variance = mean_of(&mut raw.iter().map(|q| (q - mean) * (q - mean)));
        let square = mean_of(&mut raw.iter().map(|q| q * q));
        let length = d + 8.0;
        (0..raw.len())
            .map(|feature| {
                let number = |numbers: Option<&[f32]>, otherwise: f64| {
                    numbers.map_or(otherwise, |numbers| f64::from(of_head(numbers, raw.len(), head, feature)))
                };
                let (weight, shift) = (number(keys.weight, 1.0), number(keys.shift, 0.0));
                let e = errors[feature];
                let relative = (length / 2.0 + 12.0) * U;
                let error = match keys.norm {
                    Normalization::None => e,
                    Normalization::Layer { epsilon } => {
                        let f = 1.0 / (variance + f64::from(epsilon)).sqrt();
                        let z = ((raw[feature] - mean) * f).abs();
                        1.1 * f * (e + mean_error + z * rms + length * U * mean_size) + z * relative
                    }
                    Normalization::Rms { epsilon } => {
                        let f = 1.0 / (square + f64::from(epsilon)).sqrt();
                        let z = (raw[feature] * f).abs();
                        1.1 * f * (e + z * rms) + z * relative
                    }
                    Normalization::L2 { epsilon } => {
                        let f = 1.0 / (square * d).sqrt().max(f64::from(epsilon));
                        let z = (raw[feature] * f).abs();
                        1.1 * f * (e + z * rms * d.sqrt()) + z * relative
                    }
                    Normalization::Batch { mean, variance, epsilon } => {
                        let f = 1.0 / (number(Some(variance), 1.0) + f64::from(epsilon)).sqrt();
                        let z = ((raw[feature] - number(Some(mean), 0.0)) * f).abs();
                        f * e + z * 12.0 * U
                    }
                };
                weight.abs() * error + 2.0 * U * (normalised[feature].abs() + 2.0 * shift.abs())
            })
            .collect()
    }

    /// The largest error of a score of a half.
    fn of_scores(&self, keys: &Widened<f64>, half: usize, head: usize, query: &[f64], errors: &[f64]) -> f64 {
        let columns = query.len() / 2;
        let of_half = half * columns..(half + 1) * columns;
        let largest = query.iter().fold(0.0f64, |largest, q| largest.max(q.abs()));
        let weights: Vec<f64> = query[of_half.clone()]
            .iter()
            .zip(&errors[of_half])
            .map(|(q, e)| e + (self.split[0] + self.accumulation) * (q.abs() + e) + self.split[1] * largest)
            .collect();
        let error =
            |key: &[f64]| key.iter().zip(&weights).map(|(key, weight)| key.abs() * weight).sum::<f64>();
        let errors = keys.of_head(half, head).chunks_exact(columns).map(error);
        errors.fold(0.0, f64::max)
    }
}
