//! Validation of experts that are evaluated where their rows are.
//!
//! Write u for 2⁻²⁴. A product of x and a vector of D numbers passes through at most `n = min(D + 1, D/8 + D/2048 + 104)`
//! roundings. A lane adds up at least every eighth chunk one after the other, at most 32 numbers more than its share. Lanes are
//! added up in 5 steps, and groups that share a vector in at most 32. Parts of x that do not fit into shared memory are added
//! one after the other. (Zeros lose nothing, so no sum has more roundings than
//! it has terms.) With a scale s and a bias b it is `s · Σ xᵢqᵢ + b · Σ xᵢ`, with two roundings more: so z is off by at most
//! `(n + 2) u S` with `S = Σ |xᵢ| (|s qᵢ| + |b|)`. The activation magnifies that by at most its Lipschitz constant, and adds its own error; the gate's
//! product, that of a gated unit and that with the scale of v add a rounding each.
//!
//! Of `y = Σ h (s q + b)` each term then passes through at most twice as many roundings as there are hidden units, and the sum is rounded
//! to the output's type. What the format's rounding does to a number, `|w − ŵ|`, is at most half a scale for integers, half a
//! unit in the last place for floating-point types. Where results are compared with those of the numbers before rounding, z is
//! off by `Σ |xᵢ| |wᵢ − ŵᵢ|` more and a term of y by `|h| |v − v̂|`.

mod gradient;

use std::ops::Range;

use ndarray::{Array2, s};
use rayon::prelude::*;
use warpsmith::cpu::{self, TokenExperts};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{
    ExpertFormat, ExpertInput, ExpertLayout, ExpertTable, ExpertVectors, Part, Routing, expert_mlp,
};
use warpsmith::ops::{Activation, Implementation};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use super::{Outcome, of_type};
use crate::bound::{Judgement, Rounding, U};
use crate::cases::Placement;
use crate::cases::{Data, filled};
use crate::cases::{ExpertCase, Residence, RoutingKind};
use crate::reference::sampled;

pub(super) use gradient::prepare as prepare_gradients;
pub use gradient::{expert_gradient_bits, expert_gradients};

/// The operation's name in errors.
const OPERATION: &str = "validate::experts";
/// What the memory beside an output is filled with: a number that no validated result is.
const SENTINEL: f64 = -24576.0;
/// Numbers of experts, token by token, above which only some tokens are compared.
const FULL_WORK: usize = 1 << 28;
/// Numbers of x that are not zero with integer data.
const INTEGERS_OF_X: usize = 4;
/// The sum of magnitudes up to which sums of integers are exact in f32.
const EXACT: f64 = (1 << 24) as f64;
/// Second-order terms of the bounds.
const SLACK: f64 = 1.01;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if the host cannot
/// hold its operands; otherwise whatever the operation returns.
pub fn experts(device: &Device, case: &ExpertCase) -> Result<Outcome> {
    of_type!(OPERATION, case, check(device, case))
}

/// The result of a case as its bits, which do not depend on where rows are.
///
/// # Errors
///
/// As [`experts`].
pub fn expert_bits(device: &Device, case: &ExpertCase) -> Result<Vec<u8>> {
    fn bits<T: ExpertInput + FloatElement>(device: &Device, case: &ExpertCase) -> Result<Vec<u8>> {
        let (y, _) = run_case(device, case, &Operands::<T>::draw(case)?)?;
        Ok(bytemuck::cast_slice(&y.into_raw_vec_and_offset().0).to_vec())
    }
    of_type!(OPERATION, case, bits(device, case))
}

/// The operands of a case on the host.
struct Operands<T> {
    layout: ExpertLayout,
    x: Array2<T>,
    ids: Vec<u32>,
    gates: Vec<f32>,
    /// u, w and v of all experts.
    vectors: [Vec<f32>; 3],
    /// Their rows.
    rows: Vec<u8>,
}

impl<T: ExpertInput + FloatElement> Operands<T> {
    fn draw(case: &ExpertCase) -> Result<Self> {
        let ExpertCase { tokens, d, o, experts, hidden, gated, data, seed, .. } = *case;
        let layout = ExpertLayout::new(case.format, d, hidden, o, gated)?;
        let uniform = |stream, rows, columns| Data::Uniform.draw(seed, stream, (rows, columns), 1, f64::from);
        let of_token = case.heads * case.k;
        let x = match data {
            Data::Integers => sparse(&uniform(0, tokens, INTEGERS_OF_X)?, d)?.mapv(T::round),
            _ => uniform(0, tokens, d)?.mapv(T::round),
        };
        let gates = uniform(1, tokens, of_token)?.into_iter().map(|gate| match data {
            Data::Integers => gate.signum() as f32,
            _ => gate as f32,
        });
        let chosen = uniform(2, tokens, 2 * of_token)?;
        let ids = (0..tokens * of_token).map(|index| {
            let (token, pair) = (index / of_token, index % of_token);
            let [which, often] = [chosen[[token, 2 * pair]], chosen[[token, 2 * pair + 1]]];
            let most = match case.routing {
                RoutingKind::Uniform => experts,
                RoutingKind::Skewed if often < 0.0 => experts,
                RoutingKind::Skewed => experts.div_ceil(16),
                RoutingKind::Same => 1,
            };
            (((which + 1.0) / 2.0 * most as f64) as usize).min(experts.saturating_sub(1)) as u32
        });
        let part = |stream, length: usize| -> Result<Vec<f32>> {
            let drawn = uniform(stream, experts * hidden, length)?;
            let mut values: Vec<f32> = drawn.into_iter().map(|value| value as f32).collect();
            if data == Data::Integers {
                values.iter_mut().for_each(|value| *value = (*value * 8.0).floor().max(-7.0));
                for vector in values.chunks_exact_mut(length.max(1)) {
                    with_range_of(case.format, vector);
                }
            }
            Ok(values)
        };
        let vectors = [part(3, d)?, if gated { part(4, d)? } else { Vec::new() }, part(5, o)?];
        let mut rows = vec![0; experts * layout.row_bytes()];
        let [u, w, v] = &vectors;
        layout.pack_rows(ExpertVectors { u, w, v }, &mut rows)?;
        Ok(Self { layout, x, ids: ids.collect(), gates: gates.collect(), vectors, rows })
    }

    fn row(&self, id: u32) -> Option<&[u8]> {
        self.rows.chunks_exact(self.layout.row_bytes()).nth(id as usize)
    }
}

/// Gives a vector the numbers with which the scale of a format of integers becomes 1.
fn with_range_of(format: ExpertFormat, vector: &mut [f32]) {
    let (smallest, largest) = match format {
        ExpertFormat::Int8 => (-64.0, 191.0),
        ExpertFormat::Int4 => (-8.0, 7.0),
        _ => return,
    };
    if let [first, second, ..] = vector {
        (*first, *second) = (smallest, largest);
    }
}

/// Rows of zeros, with a few elements 1 or −1.
fn sparse(places: &Array2<f64>, columns: usize) -> Result<Array2<f64>> {
    let mut matrix = filled((places.nrows(), columns), 0.0)?;
    if columns > 0 {
        for ((row, index), place) in places.indexed_iter() {
            let column = ((place + 1.0) / 2.0 * columns as f64) as usize;
            matrix[[row, column.min(columns - 1)]] = if index % 2 == 0 { 1.0 } else { -1.0 };
        }
    }
    Ok(matrix)
}

/// The table of a case.
fn table<T>(device: &Device, case: &ExpertCase, operands: &Operands<T>) -> Result<ExpertTable> {
    let (layout, count) = (operands.layout, case.experts);
    let [u, w, v] = &operands.vectors;
    let bytes = layout.row_bytes();
    if case.residence == Residence::Resident {
        // Of tensors, as most tables are; with an axis for the hidden units, if there are several or by chance.
        let axes = |length: usize| match case.hidden {
            1 if case.seed.is_multiple_of(2) => vec![count, length],
            hidden => vec![count, hidden, length],
        };
        let u = Tensor::from_slice(device, u, axes(case.d))?;
        let w = case.gated.then(|| Tensor::from_slice(device, w, axes(case.d))).transpose()?;
        let v = Tensor::from_slice(device, v, axes(case.o))?;
        return ExpertTable::from_tensors(case.format, &u, w.as_ref(), &v);
    }
    // A slot for each row and some more, in an order that is not theirs; every other row has none if not all have.
    let slots = count + 3;
    let step = (slots / 2..).find(|&step| gcd(step.max(1), slots) == 1).unwrap_or(1).max(1);
    let mut slot_of = vec![u32::MAX; count];
    let (mut in_slots, mut in_host) = (vec![0xff; slots * bytes], operands.rows.clone());
    for (row, slot_of) in slot_of.iter_mut().enumerate() {
        if case.residence == Residence::Mixed && row % 2 == 1 {
            continue;
        }
        let slot = (row * step + 1) % slots;
        *slot_of = slot as u32;
        let range = row * bytes..(row + 1) * bytes;
        in_slots[slot * bytes..][..bytes].copy_from_slice(&in_host[range.clone()]);
        in_host[range].fill(0xff);
    }
    let tensor = |rows: &[u8], count: usize| Tensor::from_slice(device, rows, [count, bytes]);
    let slot_of = Tensor::from_slice(device, &slot_of, [count])?;
    ExpertTable::cached(layout, &tensor(&in_slots, slots)?, &slot_of, &tensor(&in_host, count)?)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The operands of a case on its device, in the default stream's order.
struct Uploaded<T: Element> {
    x: Tensor<T>,
    routing: Routing,
    table: ExpertTable,
}

/// What a case writes: the matrix that y is columns of, and y.
struct Outputs<T: Element> {
    surrounding: Tensor<T>,
    y: Tensor<T>,
}

/// A matrix of `columns` columns and those beside them, filled with a number; and where the columns are.
fn within<T: FloatElement>(
    case: &ExpertCase,
    placement: Placement,
    columns: usize,
    fill: f64,
) -> Result<(Array2<T>, Range<usize>)> {
    let range = placement.before..placement.before + columns;
    Ok((filled((case.tokens, range.end + placement.after), T::round(fill))?, range))
}

impl<T: ExpertInput + FloatElement> Outputs<T> {
    fn new(device: &Device, case: &ExpertCase) -> Result<Self> {
        let (filler, columns) = within::<T>(case, case.y, case.o, SENTINEL)?;
        let surrounding = Tensor::from_array(device, &filler)?;
        let y = surrounding.slice(1, columns)?;
        Ok(Self { surrounding, y })
    }

    fn memory(&self) -> Result<Vec<Output>> {
        Ok(vec![Output::new("y", &self.surrounding)?])
    }
}

impl<T: ExpertInput + FloatElement> Uploaded<T> {
    fn new(device: &Device, case: &ExpertCase, operands: &Operands<T>) -> Result<Self> {
        let (mut x, columns) = within::<T>(case, case.x, case.d, f64::NAN)?;
        x.slice_mut(s![.., columns.clone()]).assign(&operands.x);
        let shape = [case.tokens, case.heads, case.k];
        let routing = Routing {
            ids: Tensor::from_slice(device, &operands.ids, shape)?,
            gates: Tensor::from_slice(device, &operands.gates, shape)?,
        };
        let x = Tensor::from_array(device, &x)?.slice(1, columns)?;
        Ok(Self { x, routing, table: table(device, case, operands)? })
    }

    /// Takes a step of the operation on these operands.
    fn step(&self, case: &ExpertCase, outputs: &mut Outputs<T>, step: Step) -> Result<Implementation> {
        let Self { x, routing, table } = self;
        let op = expert_mlp(x, routing, table).activation(case.activation).blocks(case.blocks);
        match step {
            Step::Ask => op.implementation(),
            Step::Run => op.run_into(&mut outputs.y).map(|()| Implementation::Empty),
        }
    }
}

/// The matrix that holds y, and what ran.
fn run_case<T>(
    device: &Device,
    case: &ExpertCase,
    operands: &Operands<T>,
) -> Result<(Array2<T>, Implementation)>
where
    T: ExpertInput + FloatElement,
{
    let uploaded = Uploaded::new(device, case, operands)?;
    let mut outputs = Outputs::new(device, case)?;
    let implementation = uploaded.step(case, &mut outputs, Step::Ask)?;
    uploaded.step(case, &mut outputs, Step::Run)?;
    let shape = (case.tokens, case.y.before + case.o + case.y.after);
    let array = Array2::from_shape_vec(shape, outputs.surrounding.to_vec()?);
    let array = array.map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })?;
    Ok((array, implementation))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &ExpertCase, slots: usize) -> Result<Prepared> {
    fn prepared<T: ExpertInput + FloatElement>(
        device: &Device,
        case: &ExpertCase,
        slots: usize,
    ) -> Result<Prepared> {
        let uploaded = Uploaded::new(device, case, &Operands::<T>::draw(case)?)?;
        let of_slots = (0..slots).map(|_| Outputs::new(device, case)).collect::<Result<Vec<_>>>()?;
        let case = case.clone();
        Prepared::of_slots(of_slots, Outputs::memory, move |outputs, step| {
            uploaded.step(&case, outputs, step)
        })
    }
    of_type!(OPERATION, case, prepared(device, case, slots))
}

fn check<T: ExpertInput + FloatElement>(device: &Device, case: &ExpertCase) -> Result<Outcome> {
    let operands = Operands::<T>::draw(case)?;
    let (surrounding, implementation) = run_case(device, case, &operands)?;
    let y = surrounding.slice(s![.., case.y.before..case.y.before + case.o]);
    let of_token = case.heads * case.k * case.hidden * (2 * case.d + case.o).max(1);
    let tokens: Vec<_> = match case.tokens.saturating_mul(of_token) <= FULL_WORK {
        true => (0..case.tokens).collect(),
        false => sampled(case.tokens),
    };
    let expected: Vec<_> = tokens
        .par_iter()
        .map(|&token| Ok((token, Expected::new(case, &operands, token)?)))
        .collect::<Result<_>>()?;
    let keeps_integers = matches!(case.activation, Activation::None | Activation::Relu);
    let exact = case.data == Data::Integers
        && keeps_integers
        && !case.before_rounding
        && expected.iter().all(|(_, expected)| expected.magnitude < EXACT);
    let rounding = Rounding::of(case.dtype);
    let mut tally = Tally::new(implementation, exact);
    for (token, Expected { y: expected, error, .. }) in &expected {
        for (column, (&expected, &error)) in expected.iter().zip(error).enumerate() {
            tally.outcome.compared += 1;
            let got = f64::from(y[[*token, column]].to_f32());
            let rounded = f64::from(T::round(expected).to_f32());
            tally.add([*token, column], got, [expected, rounded], |got| {
                let bound = error + (rounding.relative * (expected.abs() + error)).max(rounding.absolute);
                let error = (got - expected).abs();
                Judgement { error, bound, within: error <= bound }
            });
        }
    }
    let sentinel = T::round(SENTINEL);
    let end = case.y.before + case.o;
    let beside = surrounding.slice(s![.., ..case.y.before]);
    let behind = surrounding.slice(s![.., end..]);
    tally.outcome.stray_writes = beside.iter().chain(behind).filter(|&&value| value != sentinel).count();
    Ok(tally.finish())
}

/// What is expected of a token.
struct Expected {
    y: Vec<f64>,
    /// How far each may be off before it is rounded to the output's type.
    error: Vec<f64>,
    /// The largest of all sums' magnitudes.
    magnitude: f64,
}

impl Expected {
    fn new<T: ExpertInput + FloatElement>(
        case: &ExpertCase,
        operands: &Operands<T>,
        token: usize,
    ) -> Result<Self> {
        let layout = &operands.layout;
        let of_token = case.heads * case.k;
        let own = token * of_token..(token + 1) * of_token;
        let (ids, gates) = (&operands.ids[own.clone()], &operands.gates[own]);
        let experts = TokenExperts { ids, gates, activation: case.activation };
        let x = operands.x.slice(s![token..token + 1, ..]);
        let mut y = Array2::<f64>::zeros((1, case.o));
        if case.before_rounding {
            // Rows of f32 hold the numbers as they were.
            let whole = ExpertLayout::new(ExpertFormat::F32, case.d, case.hidden, case.o, case.gated)?;
            let mut rows = vec![0; case.experts * whole.row_bytes()];
            let [u, w, v] = &operands.vectors;
            whole.pack_rows(ExpertVectors { u, w, v }, &mut rows)?;
            let row = |id: u32| rows.chunks_exact(whole.row_bytes()).nth(id as usize);
            cpu::expert_mlp::<f64, T, f64>(x, experts, &whole, row, y.view_mut())?;
        } else {
            cpu::expert_mlp::<f64, T, f64>(x, experts, layout, |id| operands.row(id), y.view_mut())?;
        }
        let x: Vec<f64> = x.iter().map(|value| f64::from(value.to_f32())).collect();
        let mut expected = Self {
            y: y.into_raw_vec_and_offset().0,
            error: vec![0.0; case.o],
            magnitude: x.iter().map(|x| x.abs()).sum(),
        };
        let mut magnitude = vec![0.0; case.o];
        for (&id, &gate) in ids.iter().zip(gates) {
            let Some(row) = operands.row(id) else { continue };
            for unit in 0..case.hidden {
                expected.add_unit(case, layout, row, unit, f64::from(gate), &x, &mut magnitude);
            }
        }
        let roundings = (2 * of_token * case.hidden + 2) as f64;
        for (error, magnitude) in expected.error.iter_mut().zip(magnitude) {
            *error = SLACK * (*error + roundings * U * magnitude);
            expected.magnitude = expected.magnitude.max(magnitude);
        }
        Ok(expected)
    }

    /// Adds what a hidden unit may be off by, and its terms' magnitudes.
    #[allow(clippy::too_many_arguments, reason = "one step of a loop")]
    fn add_unit(
        &mut self,
        case: &ExpertCase,
        layout: &ExpertLayout,
        row: &[u8],
        unit: usize,
        gate: f64,
        x: &[f64],
        magnitude: &mut [f64],
    ) {
        let mut numbers = vec![0.0; case.d.max(case.o)];
        let roundings = (case.d + 1).min(case.d.div_ceil(8) + case.d / 2048 + 104) as f64 + 2.0;
        let tiny = f64::from(f32::MIN_POSITIVE);
        // The product with x, and how far it may be off.
        let mut product = |part| {
            let scales = layout.decode(row, unit, part, &mut numbers[..case.d]);
            let [scale, bias] = scales.map(f64::from);
            let (mut sum, mut size, mut rounded) = (0.0, 0.0, 0.0);
            for (&x, &code) in x.iter().zip(&numbers) {
                let code = f64::from(code);
                sum += x * (scale * code + bias);
                size += x.abs() * ((scale * code).abs() + bias.abs());
                rounded += x.abs() * rounded_by(case.format, scale, code);
            }
            self.magnitude = self.magnitude.max(size);
            let of_format = if case.before_rounding { rounded } else { 0.0 };
            (sum, SLACK * roundings * U * size + of_format + tiny * (x.len() + 2) as f64)
        };
        let (z, z_error) = product(Part::U);
        let mut h = case.activation.apply(z);
        let mut error = case.activation.lipschitz() * z_error
            + case.activation.evaluation_ulps() * U * (z.abs() + z_error)
            + tiny * (1.0 + z.abs());
        if case.gated {
            let (w, w_error) = product(Part::W);
            error = error * (w.abs() + w_error) + h.abs() * w_error;
            h *= w;
        }
        h *= gate;
        error = error * gate.abs() + 4.0 * U * (h.abs() + error * gate.abs()) + tiny;
        let scales = layout.decode(row, unit, Part::V, &mut numbers[..case.o]);
        let [scale, bias] = scales.map(f64::from);
        for (column, &code) in numbers[..case.o].iter().enumerate() {
            let code = f64::from(code);
            let size = (scale * code).abs() + bias.abs();
            let of_format = match case.before_rounding {
                true => rounded_by(case.format, scale, code),
                false => 0.0,
            };
            self.error[column] += error * (size + of_format) + h.abs() * of_format + tiny * (1.0 + size);
            magnitude[column] += (h.abs() + error) * size;
        }
    }
}

/// How far a number may be from the one that a code stands for.
fn rounded_by(format: ExpertFormat, scale: f64, code: f64) -> f64 {
    let half_ulp = |dtype| {
        let rounding = Rounding::of(dtype);
        // Of the number before rounding, which is a little more than the rounded one at most.
        (rounding.relative * code.abs() * 1.01).max(rounding.absolute)
    };
    match format {
        ExpertFormat::Int8 | ExpertFormat::Int4 => scale / 2.0,
        ExpertFormat::F8E4M3 => scale * (code.abs() / 16.0 * 1.07).max(2f64.powi(-10)),
        ExpertFormat::F16 => half_ulp(DType::F16),
        ExpertFormat::Bf16 => half_ulp(DType::Bf16),
        // f32 is exact, and so must be a format whose rounding is not known here.
        _ => 0.0,
    }
}
