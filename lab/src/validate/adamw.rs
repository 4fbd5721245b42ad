//! Validation of steps of AdamW.

use half::{bf16, f16};
use warpsmith::cpu::{AdamWScalars, Operand as CpuOperand};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{ExpertFormat, ExpertGradients, ExpertLayout, ExpertTable, ExpertVectors};
use warpsmith::ops::rows::RowElement;
use warpsmith::ops::{Implementation, SparseRows};
use warpsmith::optim::{
    AdamW, AdamWOptions, AnyWeights, Gradient, LossScaleOptions, ParameterOptions, Rounding, SecondMoment,
};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::elementwise::judged;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::adamw as bound;
use crate::cases::{AdamWCase, AdamWRows, Data};

/// The operation's name in errors.
const OPERATION: &str = "validate::adamw";
/// Elements of a piece, of which the kernels add up the squares.
const PIECE: usize = 4096;
/// Rows that a gradient has room for and does not have.
const SPARE: usize = 3;
/// What is beside weights.
const BESIDE: f64 = 77.0;

trait Elements: RowElement + FloatElement {}
impl<T: RowElement + FloatElement> Elements for T {}

/// Runs `$f::<T, G>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.dtype, $case.gradient) {
            (DType::F16, DType::F16) => $f::<f16, f16>($($argument),*),
            (DType::F16, DType::Bf16) => $f::<f16, bf16>($($argument),*),
            (DType::F16, DType::F32) => $f::<f16, f32>($($argument),*),
            (DType::Bf16, DType::F16) => $f::<bf16, f16>($($argument),*),
            (DType::Bf16, DType::Bf16) => $f::<bf16, bf16>($($argument),*),
            (DType::Bf16, DType::F32) => $f::<bf16, f32>($($argument),*),
            (DType::F32, DType::F16) => $f::<f32, f16>($($argument),*),
            (DType::F32, DType::Bf16) => $f::<f32, bf16>($($argument),*),
            (DType::F32, DType::F32) => $f::<f32, f32>($($argument),*),
            (dtype, gradient) => {
                let is_known = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32);
                let (operand, actual) = if is_known { ("gradient", gradient) } else { ("weights", dtype) };
                Err(Error::Type { operation: OPERATION, operand, expected: "f16, bf16 or f32".into(), actual })
            }
        }
    };
}

/// Runs one case on `device`. Every step's results are compared with the exact ones of what was there before it, and all bits with those of the CPU.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not f16, bf16 or f32; otherwise whatever the optimiser returns.
pub fn adamw(device: &Device, case: &AdamWCase) -> Result<Outcome> {
    of_types!(case, check(device, case))
}

/// The bits of all that the steps change: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`adamw`].
pub fn adamw_bits(device: &Device, case: &AdamWCase) -> Result<Vec<u32>> {
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &AdamWCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// Drawn numbers of a tensor.
fn drawn<T: FloatElement>(case: &AdamWCase, stream: usize, length: usize, size: f64) -> Result<Vec<T>> {
    let numbers = Data::Uniform.draw(case.seed, stream as u64, (1, length), 1, f64::from)?;
    Ok(numbers.into_iter().map(|number| T::round(size * number)).collect())
}

/// A tensor in larger memory, and that memory.
fn placed<T: Elements>(device: &Device, elements: &[T], before: usize) -> Result<(Tensor<T>, Tensor<T>)> {
    let beside = T::round(BESIDE);
    let all: Vec<T> =
        std::iter::repeat_n(beside, before).chain(elements.iter().copied()).chain([beside; 9]).collect();
    let all = Tensor::from_slice(device, &all, [all.len()])?;
    Ok((all.slice(0, before..before + elements.len())?, all))
}

/// Weights of an optimiser.
#[allow(clippy::large_enum_variant)] // there are few
enum Held<T: Elements> {
    /// A tensor, and the memory that it is in.
    Tensor(Tensor<T>, Tensor<T>),
    /// A table of experts, and its rows.
    Experts(ExpertTable, Tensor<u8>),
}

impl<T: Elements> Held<T> {
    fn new(device: &Device, case: &AdamWCase, number: usize) -> Result<Self> {
        let length = case.length + number;
        let draw = |part: usize, count: usize| drawn::<T>(case, 3 * number + part, count, 2.0);
        match case.rows {
            AdamWRows::All => {
                let (tensor, all) = placed(device, &draw(0, length)?, case.before[0])?;
                Ok(Self::Tensor(tensor, all))
            }
            AdamWRows::Some { columns, .. } => {
                let (tensor, all) = placed(device, &draw(0, length * columns)?, case.before[0])?;
                Ok(Self::Tensor(tensor.reshape([length, columns])?, all))
            }
            AdamWRows::Experts { .. } => {
                let layout = layout_of::<T>(case)?;
                let [u, w, v] = lengths_of(&layout);
                let wide = |part: usize, of_expert: usize| -> Result<Vec<f32>> {
                    Ok(draw(part, length * of_expert)?.into_iter().map(CpuOperand::to_f32).collect())
                };
                let (u, w, v) = (wide(0, u)?, wide(1, w)?, wide(2, v)?);
                let mut bytes = vec![0; length * layout.row_bytes()];
                layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
                let rows = Tensor::from_slice(device, &bytes, [length, layout.row_bytes()])?;
                Ok(Self::Experts(ExpertTable::from_rows(layout, &rows)?, rows))
            }
        }
    }

    fn weights(&self) -> AnyWeights<'_> {
        match self {
            Self::Tensor(tensor, _) => tensor.into(),
            Self::Experts(table, _) => table.into(),
        }
    }

    /// The tensors that it is, by the ends of their names.
    fn parts(&self) -> Vec<&'static str> {
        match self {
            Self::Tensor(..) => vec![""],
            Self::Experts(table, _) if table.layout().is_gated() => vec![".u", ".w", ".v"],
            Self::Experts(..) => vec![".u", ".v"],
        }
    }

    /// The numbers of each of its tensors.
    fn numbers(&self) -> Result<Vec<Vec<f64>>> {
        match self {
            Self::Tensor(tensor, _) => {
                Ok(vec![tensor.to_vec()?.into_iter().map(|w| f64::from(CpuOperand::to_f32(w))).collect()])
            }
            Self::Experts(table, _) => {
                let mut all = [Vec::new(), Vec::new(), Vec::new()];
                for row in table.read_rows(0..table.count())?.chunks_exact(table.layout().row_bytes()) {
                    for (all, of_row) in all.iter_mut().zip(table.layout().unpack(row)?) {
                        all.extend(of_row.into_iter().map(f64::from));
                    }
                }
                let [u, w, v] = all;
                Ok(if table.layout().is_gated() { vec![u, w, v] } else { vec![u, v] })
            }
        }
    }

    /// Elements, or bytes, beside weights that were written.
    fn strays(&self, before: usize) -> Result<usize> {
        match self {
            Self::Tensor(tensor, all) => {
                let (all, end) = (all.to_vec()?, before + tensor.len());
                let beside = all[..before].iter().chain(&all[end..]);
                Ok(beside.filter(|&&element| element != T::round(BESIDE)).count())
            }
            Self::Experts(table, rows) => {
                let mut strays = 0;
                let mut packed = vec![0; table.layout().row_bytes()];
                for row in rows.to_vec()?.chunks_exact(packed.len()) {
                    let [u, w, v] = table.layout().unpack(row)?;
                    table.layout().pack(ExpertVectors { u: &u, w: &w, v: &v }, &mut packed)?;
                    strays += packed.iter().zip(row).filter(|(packed, byte)| packed != byte).count();
                }
                Ok(strays)
            }
        }
    }
}

/// The layout of a case's experts.
fn layout_of<T: Elements>(case: &AdamWCase) -> Result<ExpertLayout> {
    let AdamWRows::Experts { inputs, hidden, gated, .. } = case.rows else {
        return Err(unknown("rows", "those of experts", &format!("{:?}", case.rows)));
    };
    let format = ExpertFormat::of(T::DTYPE)
        .ok_or_else(|| unknown("dtype", "a format of experts", &T::DTYPE.to_string()))?;
    ExpertLayout::new(format, inputs, hidden, inputs + 3, gated)
}

/// Numbers of u, w and v of an expert.
fn lengths_of(layout: &ExpertLayout) -> [usize; 3] {
    let input = layout.hidden() * layout.d();
    [input, if layout.is_gated() { input } else { 0 }, layout.hidden() * layout.o()]
}

fn unknown(argument: &'static str, expected: &str, actual: &str) -> Error {
    Error::Argument { operation: OPERATION, argument, expected: expected.into(), actual: actual.into() }
}

/// A gradient of weights.
enum Given<G: Elements> {
    Tensor(Tensor<G>),
    Rows(SparseRows<G>),
    Experts(ExpertGradients<G>),
}

/// The rows that a gradient has, if it does not have all; and its numbers, of each tensor.
type Numbers = (Option<Vec<u32>>, Vec<Vec<f64>>);

impl<G: Elements> Given<G> {
    /// A gradient of the weights `number` in a step. Behind the rows that there are, numbers are none and ids name no row.
    fn new(device: &Device, case: &AdamWCase, number: usize, step: usize) -> Result<Self> {
        let (size, length) = (f64::from(case.loss_scale.unwrap_or(1.0)), case.length + number);
        let draw = |part: usize, count: usize| {
            drawn::<G>(case, 3 * ((step + 1) * case.tensors + number) + part, count, size)
        };
        let ids = case.ids(number, step);
        let room = ids.len() + SPARE;
        let rows = |part: usize, shape: &[usize]| -> Result<Tensor<G>> {
            let columns: usize = shape.iter().product();
            let mut elements = draw(part, ids.len() * columns)?;
            elements.resize(room * columns, G::round(f64::NAN));
            let shape: Vec<usize> = std::iter::once(room).chain(shape.iter().copied()).collect();
            placed(device, &elements, case.before[1])?.0.reshape(shape)
        };
        let of_ids = || -> Result<(Tensor<u32>, Tensor<u32>)> {
            let named: Vec<u32> = ids.iter().copied().chain([u32::MAX; SPARE]).collect();
            Ok((
                Tensor::from_slice(device, &named, [room])?,
                Tensor::from_slice(device, &[ids.len() as u32], [1])?,
            ))
        };
        Ok(match case.rows {
            AdamWRows::All => Self::Tensor(placed(device, &draw(0, length)?, case.before[1])?.0),
            AdamWRows::Some { columns, .. } => {
                let (ids, count) = of_ids()?;
                Self::Rows(SparseRows { ids, rows: rows(0, &[columns])?, count })
            }
            AdamWRows::Experts { inputs, hidden, gated, .. } => {
                let (ids, count) = of_ids()?;
                let u = rows(0, &[hidden, inputs])?;
                let w = gated.then(|| rows(1, &[hidden, inputs])).transpose()?;
                Self::Experts(ExpertGradients { ids, u, w, v: rows(2, &[hidden, inputs + 3])?, count })
            }
        })
    }

    fn gradient(&self) -> Gradient<'_> {
        match self {
            Self::Tensor(tensor) => tensor.into(),
            Self::Rows(rows) => rows.into(),
            Self::Experts(experts) => experts.into(),
        }
    }

    /// The numbers of those rows that it has.
    fn numbers(&self) -> Result<Numbers> {
        let wide =
            |of: Vec<G>| of.into_iter().map(|g| f64::from(CpuOperand::to_f32(g))).collect::<Vec<f64>>();
        Ok(match self {
            Self::Tensor(tensor) => (None, vec![wide(tensor.to_vec()?)]),
            Self::Rows(rows) => {
                let (ids, rows) = rows.read()?;
                (Some(ids), vec![wide(rows)])
            }
            Self::Experts(experts) => {
                let (ids, [u, w, v]) = experts.read()?;
                let all = if experts.w.is_some() { vec![u, w, v] } else { vec![u, v] };
                (Some(ids), all.into_iter().map(wide).collect())
            }
        })
    }
}

/// An optimiser with its weights.
struct Run<T: Elements> {
    case: AdamWCase,
    optimizer: AdamW,
    held: Vec<Held<T>>,
}

fn name(number: usize) -> String {
    format!("w{number}")
}

/// What is known of a tensor's elements: weights that move and first moments, and second moments.
struct State {
    moved: Vec<[f64; 2]>,
    squares: Vec<f64>,
}

impl<T: Elements> Run<T> {
    fn new(device: &Device, case: &AdamWCase, options: AdamWOptions) -> Result<Self> {
        let mut optimizer = AdamW::new(device, options)?;
        let of_weights = ParameterOptions {
            rounding: case.rounding,
            second_moment: case.second_moment,
            ..ParameterOptions::default()
        };
        let mut held = Vec::new();
        for number in 0..case.tensors {
            let weights = Held::<T>::new(device, case, number)?;
            optimizer.add_with(name(number), weights.weights(), of_weights)?;
            held.push(weights);
        }
        optimizer.set_max_norm(case.max_norm)?;
        optimizer.set_loss_scale(case.loss_scale.map(LossScaleOptions::constant))?;
        optimizer.set_seed(case.seed);
        Ok(Self { case: *case, optimizer, held })
    }

    fn gradients<G: Elements>(&self, device: &Device, step: usize) -> Result<Vec<Given<G>>> {
        (0..self.case.tensors).map(|number| Given::new(device, &self.case, number, step)).collect()
    }

    fn step<G: Elements>(&mut self, gradients: &[Given<G>]) -> Result<()> {
        let gradients: Vec<Gradient<'_>> = gradients.iter().map(Given::gradient).collect();
        self.optimizer.step(&gradients)
    }

    fn implementation<G: Elements>(&self, gradients: &[Given<G>]) -> Result<Implementation> {
        let gradients: Vec<_> = gradients.iter().map(|given| Some(given.gradient())).collect();
        self.optimizer.implementation(&gradients)
    }

    /// Of each tensor, in the order of their names: its state, and the weights themselves.
    fn states(&self) -> Result<Vec<(State, Vec<f64>)>> {
        let mut all = Vec::new();
        for (number, held) in self.held.iter().enumerate() {
            for (part, numbers) in held.parts().into_iter().zip(held.numbers()?) {
                let name = format!("{}{part}", name(number));
                let missing = || unknown("name", "weights of the optimiser", &name);
                let [means, squares] = self.optimizer.moments(&name).ok_or_else(missing)?;
                let moving = match self.optimizer.master(&name) {
                    Some(master) => master.to_vec()?.into_iter().map(f64::from).collect(),
                    None => numbers.clone(),
                };
                let moved = moving.into_iter().zip(means.to_vec()?).map(|(w, m)| [w, m.into()]).collect();
                let squares = squares.to_vec()?.into_iter().map(f64::from).collect();
                all.push((State { moved, squares }, numbers));
            }
        }
        Ok(all)
    }

    /// Elements beside weights that were written.
    fn strays(&self) -> Result<usize> {
        self.held.iter().map(|held| held.strays(self.case.before[0])).sum()
    }

    /// All numbers that steps change, as f32's bits.
    fn bits(&self) -> Result<Vec<u32>> {
        let mut bits = Vec::new();
        for (state, numbers) in self.states()? {
            let all = state.moved.into_iter().flatten().chain(state.squares).chain(numbers);
            bits.extend(all.map(|number| (number as f32).to_bits()));
        }
        for number in [self.optimizer.gradient_norm()?, self.optimizer.loss_scale()?] {
            bits.extend(number.to_vec()?.into_iter().map(f32::to_bits));
        }
        bits.extend(self.optimizer.steps()?);
        Ok(bits)
    }
}

fn bits<T: Elements, G: Elements>(device: &Device, case: &AdamWCase) -> Result<Vec<u32>> {
    let mut run = Run::<T>::new(device, case, OPTIONS)?;
    for step in 0..case.steps {
        let gradients = run.gradients::<G>(device, step)?;
        run.step(&gradients)?;
    }
    run.bits()
}

/// Options of which none is without effect.
const OPTIONS: AdamWOptions = AdamWOptions {
    learning_rate: 0.01,
    betas: [0.875, 0.96],
    epsilon: 1e-6,
    weight_decay: 0.1,
    bias_correction: true,
};

fn check<T: Elements, G: Elements>(device: &Device, case: &AdamWCase) -> Result<Outcome> {
    let mut run = Run::<T>::new(device, case, OPTIONS)?;
    let mut tally = Tally::new(Implementation::Empty, false);
    let (is_16, is_random) = (T::DTYPE != DType::F32, case.rounding == Rounding::Stochastic);
    for step in 0..case.steps {
        let gradients = run.gradients::<G>(device, step)?;
        tally.outcome.implementation = run.implementation(&gradients)?;
        let before = run.states()?;
        run.step(&gradients)?;
        let power = |beta: f64| beta.powi(step as i32 + 1);
        let scalars = AdamWScalars::<f64>::new(
            OPTIONS.learning_rate,
            OPTIONS.betas,
            OPTIONS.epsilon,
            OPTIONS.weight_decay,
            Some(OPTIONS.betas.map(power)),
        );
        let unscale = 1.0 / f64::from(case.loss_scale.unwrap_or(1.0));
        // Of each tensor: its rows, those that have a gradient, and the numbers of these.
        let (mut known, mut pieces) = (Vec::new(), 0);
        for (number, given) in gradients.iter().enumerate() {
            let (ids, of_tensors) = given.numbers()?;
            let rows = if ids.is_some() { case.length + number } else { 1 };
            for numbers in of_tensors {
                // At most a piece more for the rows that are not there.
                pieces += numbers.len().div_ceil(PIECE) + usize::from(ids.is_some());
                let numbers: Vec<f64> = numbers.into_iter().map(|g| unscale * g).collect();
                known.push((rows, ids.clone().unwrap_or_else(|| vec![0]), numbers));
            }
        }
        let norm = known.iter().flat_map(|(_, _, numbers)| numbers).map(|g| g * g).sum::<f64>().sqrt();
        let of_norm = norm * bound::norm_error(pieces);
        let has_norm = case.max_norm.is_some() || case.loss_scale.is_some();
        if has_norm && pieces > 0 {
            let got = run.optimizer.gradient_norm()?.to_vec()?.first().copied().map_or(f64::NAN, f64::from);
            tally.add([step, 0], got, [norm; 2], judged((norm, of_norm)));
        }
        // Two products, of which the first may have a rounded factor; the limit's factor has two roundings, and those of the norm.
        let clip = case.max_norm.map_or(1.0, |max_norm| (f64::from(max_norm) / (norm + 1e-6)).min(1.0));
        let of_clip = if case.max_norm.is_some() {
            of_norm / norm.max(1e-30) + 3.0 * f64::from(f32::EPSILON)
        } else {
            0.0
        };
        let relative = 1.5 * f64::from(f32::EPSILON) + of_clip;
        let after = run.states()?;
        for (number, (((old, old_weights), (new, weights)), (rows, ids, gradients))) in
            before.iter().zip(&after).zip(&known).enumerate()
        {
            let elements = old.moved.len();
            let (of_row, of_moment) = (elements / (*rows).max(1), elements / old.squares.len().max(1));
            let mut gradients = gradients.chunks_exact(of_row.max(1));
            let mut is_used = vec![false; *rows];
            for &id in ids {
                is_used[id as usize] = true;
            }
            let mut own = None;
            for at in 0..elements {
                let (row, place) = (at / of_row, at % of_row);
                if place == 0 {
                    own = is_used[row].then(|| gradients.next()).flatten();
                }
                let ([weight, mean], square) = (old.moved[at], old.squares[at / of_moment]);
                let got = [new.moved[at][0], new.moved[at][1], new.squares[at / of_moment], weights[at]];
                let Some(own) = own else {
                    for (got, same) in got.into_iter().zip([weight, mean, square, old_weights[at]]) {
                        tally.add([number, at], got, [same; 2], judged((same, 0.0)));
                    }
                    continue;
                };
                let gradient = own[place] * clip;
                let [w, m, v] = if of_moment == 1 && case.second_moment == SecondMoment::PerElement {
                    bound::adamw(&scalars, (gradient, relative), [weight, mean, square])
                } else {
                    let first = place / of_moment * of_moment;
                    let all: Vec<f64> = own[first..first + of_moment].iter().map(|g| g * clip).collect();
                    let v = bound::row_moment(&scalars, (&all, relative), square);
                    let [w, m] = bound::of_row(&scalars, (gradient, relative), v, [weight, mean]);
                    [w, m, v]
                };
                let of_weight = if is_16 { bound::rounded(w, case.dtype, is_random) } else { w };
                let moving = if is_16 && is_random { of_weight } else { w };
                for (got, bounded) in got.into_iter().zip([moving, m, v, of_weight]) {
                    tally.add([number, at], got, [bounded.0; 2], judged(bounded));
                }
            }
            tally.outcome.compared += elements;
        }
    }
    tally.outcome.stray_writes = run.strays()?;
    // The same bits as on the CPU; each that is not counts as a failure.
    let expected = bits::<T, G>(&Device::cpu(), case)?;
    tally.outcome.failures +=
        run.bits()?.iter().zip(&expected).filter(|(got, expected)| got != expected).count();
    Ok(tally.finish())
}

fn prepared<T: Elements, G: Elements>(device: &Device, case: &AdamWCase, slots: usize) -> Result<Prepared> {
    struct Slot<T: Elements, G: Elements> {
        run: Run<T>,
        gradients: Vec<Given<G>>,
        /// What the step changes, and what it was: f32, weights, and rows of tables.
        of_f32: Vec<(Tensor<f32>, Tensor<f32>)>,
        weights: Vec<(Tensor<T>, Tensor<T>)>,
        tables: Vec<(Tensor<u8>, Tensor<u8>)>,
    }
    // Without corrections of the bias a step does not depend on its number, unless weights are rounded randomly.
    let options = AdamWOptions { bias_correction: false, ..OPTIONS };
    let case = AdamWCase { rounding: Rounding::Master, ..*case };
    let slot = |_| {
        let mut run = Run::<T>::new(device, &case, options)?;
        let gradients = run.gradients::<G>(device, 0)?;
        let (mut of_f32, mut weights, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for (number, held) in run.held.iter().enumerate() {
            for part in held.parts() {
                let name = format!("{}{part}", name(number));
                let moments = run.optimizer.moments(&name).into_iter().flatten();
                for tensor in moments.chain(run.optimizer.master(&name)) {
                    of_f32.push((tensor.clone(), tensor.deep_clone()?));
                }
            }
            match held {
                Held::Tensor(tensor, _) => weights.push((tensor.clone(), tensor.deep_clone()?)),
                Held::Experts(_, rows) => tables.push((rows.clone(), rows.deep_clone()?)),
            }
        }
        // The first step makes the tables.
        run.step(&gradients)?;
        Ok(Slot { run, gradients, of_f32, weights, tables })
    };
    let of_slots = (0..slots).map(slot).collect::<Result<Vec<_>>>()?;
    let memory = |slot: &Slot<T, G>| {
        let mut outputs = Vec::new();
        for (tensor, _) in &slot.of_f32 {
            outputs.push(Output::new("state", tensor)?);
        }
        for (tensor, _) in &slot.weights {
            outputs.push(Output::new("weights", tensor)?);
        }
        for (rows, _) in &slot.tables {
            outputs.push(Output::new("experts", rows)?);
        }
        Ok(outputs)
    };
    Prepared::of_slots(of_slots, memory, |slot, step| {
        let implementation = slot.run.implementation(&slot.gradients)?;
        if step == Step::Run {
            for (tensor, start) in &mut slot.of_f32 {
                tensor.copy_from(start)?;
            }
            for (tensor, start) in &mut slot.weights {
                tensor.copy_from(start)?;
            }
            for (rows, start) in &mut slot.tables {
                rows.copy_from(start)?;
            }
            slot.run.step(&slot.gradients)?;
        }
        Ok(implementation)
    })
}
