//! Validation of the gradients of product-key retrieval.
//!
//! Experts and gates are those of the reference, whatever the device would find, and are taken as they are. So the gradients of scores are off by their own
//! arithmetic only. The gradient of a query is a sum of these times sub-keys, which are exact. Queries before and after they are
//! normalised are off as [retrieval's](super) are.
//!
//! Write f for the factor of a norm, z for the normalised query, g for its gradient. Led back through a layer norm it is
//! `f · (g − mean(g) − z · mean(g z))`. Each term is known with an error, and what is made of two has both to first and second
//! order. f changes by `f · rms(e)` of itself where the query is off by e, as z does.
//!
//! The gradients of x and of the projection are a linear layer's, of a gradient that is off so far and has been rounded to the type of x.

use ndarray::Array2;
use rayon::prelude::*;
use warpsmith::cpu::product_key::{Widened, find, of_head, queries};
use warpsmith::cpu::{Normalization, ProductKeys};
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::Result;
use warpsmith::ops::peer::{
    Gate, ProductKeyBackwardOp, ProductKeyGradientOutputs, ProductKeyGradients, Routing, RoutingInput,
};
use warpsmith::ops::{Activation, Implementation};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::super::backward::Gradient;
use super::super::load::{Output, Prepared, Step};
use super::super::outputs::Bits;
use super::super::tally::Tally;
use super::super::{Outcome, of_type};
use super::{Model, Operands, Uploaded, absolute, retrieval};
use crate::bound::backward::Near;
use crate::bound::{Arithmetic, ErrorModel, U};
use crate::cases::RoutingCase;

/// The operation's name in errors.
const OPERATION: &str = "validate::product_key_topk_backward";
/// Sums of so large magnitudes are exact in f32.
const EXACT: f64 = 16_777_216.0;
/// For the second order of what is known to first order only.
const SLACK: f64 = 1.1;

/// A type of tokens.
trait Number: RoutingInput + FloatElement + Bits {}
impl<T: RoutingInput + FloatElement + Bits> Number for T {}

/// Runs the gradients of one case on `device` and compares every result with the reference.
///
/// # Errors
///
/// As [`product_key_topk`](super::product_key_topk).
pub fn product_key_topk_backward(device: &Device, case: &RoutingCase) -> Result<Outcome> {
    of_type!(OPERATION, case, check(device, case))
}

/// The results of a case as their bits.
///
/// # Errors
///
/// As [`product_key_topk_backward`].
pub fn product_key_gradient_bits(device: &Device, case: &RoutingCase) -> Result<Vec<u8>> {
    of_type!(OPERATION, case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` results.
pub(in crate::validate) fn prepare(device: &Device, case: &RoutingCase, slots: usize) -> Result<Prepared> {
    of_type!(OPERATION, case, prepared(device, case, slots))
}

/// Whether every result is exact, if no sum is too large.
fn is_exact(case: &RoutingCase) -> bool {
    case.is_exact()
}

/// What was found of the tokens, and the gradient of the gates.
struct Found {
    ids: Vec<u32>,
    gates: Vec<f32>,
    dgates: Vec<f32>,
}

impl Found {
    fn draw<T: Number>(case: &RoutingCase, operands: &Operands<T>) -> Result<Self> {
        let keys = retrieval(case, operands);
        let q = queries::<f64, T>(operands.x.view(), &keys)?;
        let widened = Widened::<f64>::new(&keys);
        let width = 2 * case.half;
        let rows = (0..case.tokens * case.heads).into_par_iter();
        let found: Vec<_> =
            rows.map(|row| find(&keys, &widened, &q[row * width..][..width], row % case.heads)).collect();
        let dgates =
            case.data.draw(case.seed, 9, (case.tokens * case.heads, case.k), 1 << 21, |value| value)?;
        Ok(Self {
            ids: found.iter().flat_map(|found| found.ids.iter().copied()).collect(),
            gates: found.iter().flat_map(|found| found.gates.iter().map(|&gate| gate as f32)).collect(),
            dgates: dgates.iter().copied().collect(),
        })
    }
}

/// What a case reads, on its device.
struct Inputs<T: Element> {
    retrieval: Uploaded<T>,
    routing: Routing,
    dgates: Tensor<f32>,
}

impl<T: Number> Inputs<T> {
    fn new(device: &Device, case: &RoutingCase, operands: &Operands<T>, found: &Found) -> Result<Self> {
        let shape = [case.tokens, case.heads, case.k];
        let routing = Routing {
            ids: Tensor::from_slice(device, &found.ids, shape)?,
            gates: Tensor::from_slice(device, &found.gates, shape)?,
        };
        let dgates = Tensor::from_slice(device, &found.dgates, shape)?;
        Ok(Self { retrieval: Uploaded::new(device, case, operands)?, routing, dgates })
    }

    fn operation<'a>(&'a self, case: &RoutingCase) -> ProductKeyBackwardOp<'a, T> {
        self.retrieval.operation(case).backward(&self.routing, &self.dgates)
    }

    fn step(
        &self,
        case: &RoutingCase,
        results: &mut ProductKeyGradients<T>,
        step: Step,
    ) -> Result<Implementation> {
        let operation = self.operation(case);
        let ProductKeyGradients { dx, dw_q, dbias, dkeys_1, dkeys_2, dnorm_weight, dnorm_bias, .. } = results;
        match step {
            Step::Ask => operation.implementation(),
            Step::Run => {
                let outputs = ProductKeyGradientOutputs {
                    dx: Some(dx),
                    dw_q: Some(dw_q),
                    dbias: dbias.as_mut(),
                    dkeys_1: Some(dkeys_1),
                    dkeys_2: Some(dkeys_2),
                    dnorm_weight: dnorm_weight.as_mut(),
                    dnorm_bias: dnorm_bias.as_mut(),
                    ..ProductKeyGradientOutputs::default()
                };
                operation.run_into(outputs).map(|()| Implementation::Empty)
            }
        }
    }
}

fn memory<T: Number>(results: &ProductKeyGradients<T>) -> Result<Vec<Output>> {
    let ProductKeyGradients { dx, dw_q, dbias, dkeys_1, dkeys_2, dnorm_weight, dnorm_bias, .. } = results;
    let mut all = vec![Output::new("dx", dx)?, Output::new("dw_q", dw_q)?];
    for (name, of) in [
        ("dbias", dbias.as_ref()),
        ("dkeys_1", Some(dkeys_1)),
        ("dkeys_2", Some(dkeys_2)),
        ("dnorm_weight", dnorm_weight.as_ref()),
        ("dnorm_bias", dnorm_bias.as_ref()),
    ] {
        all.extend(of.map(|of| Output::new(name, of)).transpose()?);
    }
    Ok(all)
}

fn prepared<T: Number>(device: &Device, case: &RoutingCase, slots: usize) -> Result<Prepared> {
    let operands = Operands::<T>::draw(case)?;
    let inputs = Inputs::new(device, case, &operands, &Found::draw(case, &operands)?)?;
    let of_slots = (0..slots).map(|_| inputs.operation(case).run()).collect::<Result<Vec<_>>>()?;
    let case = case.clone();
    Prepared::of_slots(of_slots, memory, move |results, step| inputs.step(&case, results, step))
}

/// The results of a case on the host, those that there are of dx, dw_q, dbias, dkeys_1, dkeys_2, dnorm_weight and dnorm_bias.
struct Read<T> {
    dx: Vec<T>,
    sums: [Option<Vec<f32>>; 6],
    implementation: Implementation,
}

fn run<T: Number>(
    device: &Device,
    case: &RoutingCase,
    operands: &Operands<T>,
    found: &Found,
) -> Result<Read<T>> {
    let inputs = Inputs::new(device, case, operands, found)?;
    let operation = inputs.operation(case);
    let implementation = operation.implementation()?;
    let gradients = operation.run()?;
    let read = |of: Option<&Tensor<f32>>| of.map(Tensor::to_vec).transpose();
    let sums = [
        read(Some(&gradients.dw_q))?,
        read(gradients.dbias.as_ref())?,
        read(Some(&gradients.dkeys_1))?,
        read(Some(&gradients.dkeys_2))?,
        read(gradients.dnorm_weight.as_ref())?,
        read(gradients.dnorm_bias.as_ref())?,
    ];
    Ok(Read { dx: gradients.dx.to_vec()?, sums, implementation })
}

fn bits<T: Number>(device: &Device, case: &RoutingCase) -> Result<Vec<u8>> {
    let operands = Operands::<T>::draw(case)?;
    let Read { dx, sums, .. } = run(device, case, &operands, &Found::draw(case, &operands)?)?;
    let mut all = bytemuck::cast_slice(&dx).to_vec();
    sums.iter().flatten().for_each(|sums| all.extend_from_slice(bytemuck::cast_slice(sums)));
    Ok(all)
}

/// What is expected of a query.
struct Row {
    /// The gradients of its experts' scores.
    dscores: Vec<Near>,
    /// The query as scores are made of it, and before weight and bias.
    query: Vec<Near>,
    hat: Vec<Near>,
    /// The gradient of what scores are made of, and that before it is normalised.
    dquery: Vec<Near>,
    dq: Vec<Near>,
}

/// A number that is what it is.
fn known(exact: f64) -> Near {
    Near { exact, error: 0.0 }
}

/// The difference of two numbers, rounded.
fn difference(a: Near, b: Near) -> Near {
    Near::sum([a, Near { exact: -b.exact, ..b }].into_iter(), 0.0)
}

/// The gradients of scores.
fn dscores(case: &RoutingCase, gates: &[f32], dgates: &[f32]) -> Vec<Near> {
    let both = || gates.iter().zip(dgates).map(|(&gate, &dgate)| [gate, dgate].map(|of| known(of.into())));
    let sum = Near::sum(both().map(|[gate, dgate]| gate.by(dgate)), 0.0);
    let of_score = |[gate, dgate]: [Near; 2]| match case.gate {
        Gate::Softmax => gate.by(difference(dgate, sum)),
        Gate::Sigmoid => dgate.by(gate.by(difference(known(1.0), gate))),
        Gate::Relu if gate.exact <= 0.0 => known(0.0),
        _ => dgate,
    };
    let temperature = f64::from(case.temperature);
    // The reciprocal is rounded, and the product with it, unless it is a power of two.
    let roundings = if is_exact(case) { 0.0 } else { 2.0 };
    both().map(|pair| of_score(pair).times(1.0 / temperature, roundings)).collect()
}

impl Row {
    fn new<T: Number>(
        case: &RoutingCase,
        (keys, widened, model): (&ProductKeys<'_, T>, &Widened<f64>, &Model),
        row: usize,
        found: &Found,
        (raw, errors): (&[f64], &[f64]),
    ) -> Self {
        let (k, n, half, head) = (case.k, case.n, case.half, row % case.heads);
        let width = 2 * half;
        let own = row * k..(row + 1) * k;
        let dscores = dscores(case, &found.gates[own.clone()], &found.dgates[own.clone()]);
        let ids = &found.ids[own];
        let dquery: Vec<Near> = (0..width)
            .map(|feature| {
                let term = |(&id, dscore): (&u32, &Near)| {
                    let key = [id as usize / n, id as usize % n][feature / half];
                    dscore.times(widened.of_head(feature / half, head)[key * half + feature % half], 0.0)
                };
                Near::sum(ids.iter().zip(&dscores).map(term), 0.0)
            })
            .collect();
        let plain = ProductKeys { weight: None, shift: None, ..keys.clone() };
        let normal = |keys: &ProductKeys<'_, T>| -> Vec<Near> {
            let exact = find(keys, widened, raw, head).query;
            let errors = model.normalised(keys, head, raw, &exact, errors);
            exact.into_iter().zip(errors).map(|(exact, error)| Near { exact, error }).collect()
        };
        let (query, hat) = if is_exact(case) {
            // Nothing is rounded where nothing is normalised.
            let exact: Vec<Near> = raw.iter().map(|&raw| known(raw)).collect();
            (exact.clone(), exact)
        } else {
            (normal(keys), normal(&plain))
        };
        let dhat: Vec<Near> = dquery
            .iter()
            .enumerate()
            .map(|(feature, dquery)| match keys.weight {
                Some(weight) => dquery.times(of_head(weight, width, head, feature).into(), 1.0),
                None => *dquery,
            })
            .collect();
        let dq = through_norm(keys.norm, head, (raw, errors), &hat, &dhat);
        Self { dscores, query, hat, dquery, dq }
    }
}

/// What is left of the gradient of a normalised query before that is normalised.
fn through_norm(
    norm: Normalization<'_>,
    head: usize,
    (raw, errors): (&[f64], &[f64]),
    hat: &[Near],
    dhat: &[Near],
) -> Vec<Near> {
    let width = raw.len();
    let d = width as f64;
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / d;
    let rms = mean_of(&mut errors.iter().map(|e| e * e)).sqrt();
    // As far off as the factor of a query is.
    let factor = |exact: f64, rms: f64| Near {
        exact,
        error: exact * (SLACK * exact * rms + ((d + 8.0) / 2.0 + 12.0) * U),
    };
    let along = Near::sum(dhat.iter().zip(hat).map(|(dhat, hat)| dhat.by(*hat)), 0.0);
    let all = |factor: Near, mean: Option<Near>, along: Option<Near>| -> Vec<Near> {
        let of_one = |(dhat, hat): (&Near, &Near)| {
            let mut value = *dhat;
            if let Some(mean) = mean {
                value = difference(value, mean);
            }
            if let Some(along) = along {
                value = difference(value, hat.by(along));
            }
            factor.by(value)
        };
        dhat.iter().zip(hat).map(of_one).collect()
    };
    let over_d = |sum: Near| sum.times(1.0 / d, 2.0);
    match norm {
        Normalization::None => dhat.to_vec(),
        Normalization::Layer { epsilon } => {
            let mean = mean_of(&mut raw.iter().copied());
            let variance = mean_of(&mut raw.iter().map(|q| (q - mean) * (q - mean)));
            let f = factor(1.0 / (variance + f64::from(epsilon)).sqrt(), rms);
            all(f, Some(over_d(Near::sum(dhat.iter().copied(), 0.0))), Some(over_d(along)))
        }
        Normalization::Rms { epsilon } => {
            let square = mean_of(&mut raw.iter().map(|q| q * q));
            all(factor(1.0 / (square + f64::from(epsilon)).sqrt(), rms), None, Some(over_d(along)))
        }
        Normalization::L2 { epsilon } => {
            let (length, least) = (raw.iter().map(|q| q * q).sum::<f64>().sqrt(), f64::from(epsilon));
            let divided = || all(factor(1.0 / length, rms * d.sqrt()), None, Some(along));
            let capped = || all(factor(1.0 / least, 0.0), None, None);
            let error = rms * d.sqrt() + (d + 20.0) * U * length;
            if length == 0.0 || (length - least).abs() > SLACK * error {
                return if length > least { divided() } else { capped() };
            }
            // Either may be taken.
            let both = divided().into_iter().zip(capped());
            both.map(|(one, other)| Near {
                exact: one.exact,
                error: one.error.max(other.error) + (one.exact - other.exact).abs(),
            })
            .collect()
        }
        Normalization::Batch { variance, epsilon, .. } => {
            let of_feature = |(feature, dhat): (usize, &Near)| {
                let variance = f64::from(of_head(variance, width, head, feature));
                factor(1.0 / (variance + f64::from(epsilon)).sqrt(), 0.0).by(*dhat)
            };
            dhat.iter().enumerate().map(of_feature).collect()
        }
    }
}

fn check<T: Number>(device: &Device, case: &RoutingCase) -> Result<Outcome> {
    let operands = Operands::<T>::draw(case)?;
    let found = Found::draw(case, &operands)?;
    let got = run(device, case, &operands, &found)?;
    let keys = retrieval(case, &operands);
    let q = queries::<f64, T>(operands.x.view(), &keys)?;
    let magnitudes = absolute::<T>(&operands, &keys)?;
    let (widened, model) = (Widened::<f64>::new(&keys), Model::new(device, case));
    let &RoutingCase { tokens, heads, half, n, k, .. } = case;
    let width = 2 * half;
    let rows: Vec<Row> = (0..tokens * heads)
        .into_par_iter()
        .map(|row| {
            let own = row * width..(row + 1) * width;
            let errors: Vec<f64> = own
                .clone()
                .map(|at| {
                    let feature = at % (heads * width);
                    let added =
                        operands.bias.as_ref().map_or(0.0, |bias| f64::from(bias[feature].to_f32()).abs());
                    model.projected(q[at], magnitudes[at], added)
                })
                .collect();
            Row::new(case, (&keys, &widened, &model), row, &found, (&q[own], &errors))
        })
        .collect();

    // The sums over tokens.
    let groups = if case.per_head { heads } else { 1 };
    let mut of_keys: [Vec<Near>; 2] = Default::default();
    for (which, of_keys) in of_keys.iter_mut().enumerate() {
        let mut uses = vec![Vec::new(); groups * n];
        for (at, &id) in found.ids.iter().enumerate() {
            let group = if case.per_head { at / k % heads } else { 0 };
            uses[group * n + [id as usize / n, id as usize % n][which]].push(at);
        }
        let all = uses.par_iter().flat_map_iter(|uses| {
            let rows = &rows;
            (0..half).map(move |column| {
                let term = |&at: &usize| {
                    let row: &Row = &rows[at / k];
                    row.dscores[at % k].by(row.query[which * half + column])
                };
                Near::sum(uses.iter().map(term), 0.0)
            })
        });
        *of_keys = all.collect();
    }
    let of_all = if case.per_head_norm { heads } else { 1 };
    let of_features = |term: &(dyn Fn(&Row, usize) -> Near + Sync)| -> Vec<Near> {
        (0..of_all * width)
            .map(|at| {
                let own = rows.iter().enumerate().filter(|(row, _)| of_all == 1 || row % heads == at / width);
                Near::sum(own.map(|(_, row)| term(row, at % width)), 0.0)
            })
            .collect()
    };
    let dweight = of_features(&|row, feature| row.dquery[feature].by(row.hat[feature]));
    let dshift = of_features(&|row, feature| row.dquery[feature]);
    let dq: Vec<Near> = rows.iter().flat_map(|row| row.dq.iter().copied()).collect();
    let projected = heads * width;
    let dbias: Vec<Near> = (0..projected)
        .map(|column| Near::sum((0..tokens).map(|token| dq[token * projected + column]), 0.0))
        .collect();

    // Queries are rounded where they are multiplied.
    let rounded: Vec<Near> =
        dq.iter().map(|near| if is_exact(case) { *near } else { near.rounded(case.dtype) }).collect();
    let dz =
        Array2::from_shape_vec((tokens, projected), rounded).map_err(|error| super::misshapen(&error))?;
    let wide = |matrix: &Array2<T>| matrix.mapv(|value| f64::from(value.to_f32()));
    let (x, w) = (wide(&operands.x), wide(&operands.w));
    let largest = |terms: &[Near]| terms.iter().map(|near| near.exact.abs()).fold(0.0, f64::max);
    // Everything is a multiple of the same power of two.
    let bound = (largest(&dq) * 2.0).max(1.0) * (tokens * k + projected) as f64 * (case.columns as f64 + 1.0);
    let exact = is_exact(case) && bound < EXACT && largest(&dq) < 100.0;
    let mut tally = Tally::new(got.implementation, exact);

    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::TensorCore,
    };
    let product = |sums: usize, output: DType| {
        ErrorModel::new(arithmetic, case.dtype, output, sums, 1.0, Activation::None).without_claim()
    };
    fn as_matrix<N: Clone>(shape: (usize, usize), values: Vec<N>) -> Result<Array2<N>> {
        Array2::from_shape_vec(shape, values).map_err(|error| super::misshapen(&error))
    }
    let judge =
        |tally: &mut Tally, left: &Array2<Near>, right: &Array2<f64>, got: Array2<f64>, output, round| {
            let gradient = Gradient {
                left: left.view(),
                right: right.view(),
                right_errors: None,
                alpha: 1.0,
                factors: None,
                least: [0.0; 2],
                before: None,
                between: None,
                input: case.dtype,
                model: product(left.ncols(), output),
                round,
            };
            gradient.judge(tally, got.view(), 0);
        };
    let of_dx = got.dx.iter().map(|value| f64::from(value.to_f32())).collect();
    let round: fn(f64) -> f64 = |value| f64::from(T::round(value).to_f32());
    let turned_w = w.t().as_standard_layout().to_owned();
    judge(&mut tally, &dz, &turned_w, as_matrix((tokens, case.columns), of_dx)?, case.dtype, round);
    let [dw, rest @ ..] = &got.sums;
    let of_dw = dw.iter().flatten().map(|&value| f64::from(value)).collect();
    let turned = dz.t().as_standard_layout().to_owned();
    let turned_x = x.t().as_standard_layout().to_owned();
    let same: fn(f64) -> f64 = |value| value;
    judge(&mut tally, &turned, &turned_x, as_matrix((projected, case.columns), of_dw)?, DType::F32, same);
    let [of_keys_1, of_keys_2] = of_keys;
    for (part, (got, expected)) in rest.iter().zip([dbias, of_keys_1, of_keys_2, dweight, dshift]).enumerate()
    {
        let Some(got) = got else { continue };
        if got.len() != expected.len() {
            tally.outcome.failures += 1;
            continue;
        }
        for (index, (&got, near)) in got.iter().zip(&expected).enumerate() {
            tally.outcome.compared += 1;
            tally.add([part, index], got.into(), [near.exact; 2], |got| near.judge(got, DType::F32));
        }
    }
    Ok(tally.finish())
}
