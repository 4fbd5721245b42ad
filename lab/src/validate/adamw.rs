//! Validation of steps of AdamW.

use half::{bf16, f16};
use warpsmith::cpu::{AdamWScalars, Operand as CpuOperand};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::rows::{AnyTensor, RowElement};
use warpsmith::optim::{AdamW, AdamWOptions, LossScaleOptions, ParameterOptions, Rounding};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::elementwise::judged;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::adamw as bound;
use crate::cases::{AdamWCase, Data};

/// The operation's name in errors.
const OPERATION: &str = "validate::adamw";
/// Elements of a piece, of which the kernels add up the squares.
const PIECE: usize = 4096;
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

/// An optimiser with its weights.
struct Run<T: Elements> {
    case: AdamWCase,
    optimizer: AdamW,
    /// Weights, and the memory that they are in.
    weights: Vec<(Tensor<T>, Tensor<T>)>,
}

fn name(number: usize) -> String {
    format!("w{number}")
}

/// What is known of a tensor's elements: weights that move, and moments.
type State = Vec<[f64; 3]>;

impl<T: Elements> Run<T> {
    fn new(device: &Device, case: &AdamWCase, options: AdamWOptions) -> Result<Self> {
        let mut optimizer = AdamW::new(device, options)?;
        let of_weights = ParameterOptions { rounding: case.rounding, ..ParameterOptions::default() };
        let mut weights = Vec::new();
        for number in 0..case.tensors {
            let placed =
                placed(device, &drawn::<T>(case, number, case.length + number, 2.0)?, case.before[0])?;
            optimizer.add_with(name(number), T::any(&placed.0), of_weights)?;
            weights.push(placed);
        }
        optimizer.set_max_norm(case.max_norm)?;
        optimizer.set_loss_scale(case.loss_scale.map(LossScaleOptions::constant))?;
        optimizer.set_seed(case.seed);
        Ok(Self { case: *case, optimizer, weights })
    }

    fn gradients<G: Elements>(&self, step: usize) -> Result<Vec<Tensor<G>>> {
        let case = &self.case;
        let size = f64::from(case.loss_scale.unwrap_or(1.0));
        let of_tensor = |number: usize| {
            let stream = (step + 1) * case.tensors + number;
            let elements = drawn::<G>(case, stream, case.length + number, size)?;
            Ok(placed(self.weights[number].0.device(), &elements, case.before[1])?.0)
        };
        (0..case.tensors).map(of_tensor).collect()
    }

    fn step<G: Elements>(&mut self, gradients: &[Tensor<G>]) -> Result<()> {
        let gradients: Vec<AnyTensor<'_>> = gradients.iter().map(G::any).collect();
        self.optimizer.step(&gradients)
    }

    fn state(&self, number: usize) -> Result<State> {
        let missing = || Error::Argument {
            operation: OPERATION,
            argument: "name",
            expected: "weights of the optimiser".into(),
            actual: name(number),
        };
        let [means, squares] = self.optimizer.moments(&name(number)).ok_or_else(missing)?;
        let weights = match self.optimizer.master(&name(number)) {
            Some(master) => master.to_vec()?.into_iter().map(f64::from).collect(),
            None => self.numbers(number)?,
        };
        let (means, squares) = (means.to_vec()?, squares.to_vec()?);
        let rest = means.into_iter().zip(squares);
        Ok(weights.into_iter().zip(rest).map(|(w, (m, v))| [w, m.into(), v.into()]).collect())
    }

    /// The weights themselves.
    fn numbers(&self, number: usize) -> Result<Vec<f64>> {
        Ok(self.weights[number].0.to_vec()?.into_iter().map(|w| f64::from(CpuOperand::to_f32(w))).collect())
    }

    /// Elements beside weights that were written.
    fn strays(&self) -> Result<usize> {
        let mut strays = 0;
        for (weights, all) in &self.weights {
            let (before, end) = (self.case.before[0], self.case.before[0] + weights.len());
            let all = all.to_vec()?;
            let beside = all[..before].iter().chain(&all[end..]);
            strays += beside.filter(|&&element| element != T::round(BESIDE)).count();
        }
        Ok(strays)
    }

    /// All numbers that steps change, as f32's bits.
    fn bits(&self) -> Result<Vec<u32>> {
        let mut bits = Vec::new();
        for number in 0..self.case.tensors {
            let state = self.state(number)?.into_iter().flatten().chain(self.numbers(number)?);
            bits.extend(state.map(|number| (number as f32).to_bits()));
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
        let gradients = run.gradients::<G>(step)?;
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
    let mut tally = Tally::new(run.optimizer.implementation(), false);
    let (is_16, is_random) = (T::DTYPE != DType::F32, case.rounding == Rounding::Stochastic);
    let pieces: usize = (0..case.tensors).map(|number| (case.length + number).div_ceil(PIECE)).sum();
    for step in 0..case.steps {
        let gradients = run.gradients::<G>(step)?;
        let before = (0..case.tensors).map(|number| run.state(number)).collect::<Result<Vec<_>>>()?;
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
        let gradients: Vec<Vec<f64>> = gradients
            .iter()
            .map(|gradient| {
                let elements = gradient.to_vec()?.into_iter();
                Ok(elements.map(|g| unscale * f64::from(CpuOperand::to_f32(g))).collect())
            })
            .collect::<Result<_>>()?;
        let norm = gradients.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
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
        for (number, (before, gradients)) in before.iter().zip(&gradients).enumerate() {
            let (after, weights) = (run.state(number)?, run.numbers(number)?);
            for (at, ((&before, &gradient), (after, &weight))) in
                before.iter().zip(gradients).zip(after.iter().zip(&weights)).enumerate()
            {
                let [w, m, v] = bound::adamw(&scalars, (gradient * clip, relative), before);
                let of_weight = if is_16 { bound::rounded(w, case.dtype, is_random) } else { w };
                let moving = if is_16 && is_random { of_weight } else { w };
                for (got, bounded) in after.iter().zip([moving, m, v]).map(|(&got, bounded)| (got, bounded)) {
                    tally.add([number, at], got, [bounded.0; 2], judged(bounded));
                }
                tally.add([number, at], weight, [of_weight.0; 2], judged(of_weight));
            }
            tally.outcome.compared += before.len();
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
        gradients: Vec<Tensor<G>>,
        /// What the step changes, and what it was: f32, and of 16 bits.
        of_f32: Vec<(Tensor<f32>, Tensor<f32>)>,
        weights: Vec<(Tensor<T>, Tensor<T>)>,
    }
    // Without corrections of the bias a step does not depend on its number, unless weights are rounded randomly.
    let options = AdamWOptions { bias_correction: false, ..OPTIONS };
    let case = AdamWCase { rounding: Rounding::Master, ..*case };
    let slot = |_| {
        let mut run = Run::<T>::new(device, &case, options)?;
        let gradients = run.gradients::<G>(0)?;
        let mut of_f32 = Vec::new();
        for number in 0..case.tensors {
            let moments = run.optimizer.moments(&name(number)).into_iter().flatten();
            for tensor in moments.chain(run.optimizer.master(&name(number))) {
                of_f32.push((tensor.clone(), tensor.deep_clone()?));
            }
        }
        let weights = run.weights.iter().map(|(weights, _)| Ok((weights.clone(), weights.deep_clone()?)));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        // The first step makes the tables.
        run.step(&gradients)?;
        Ok(Slot { run, gradients, of_f32, weights })
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
        Ok(outputs)
    };
    Prepared::of_slots(of_slots, memory, |slot, step| {
        let implementation = slot.run.optimizer.implementation();
        if step == Step::Run {
            for (tensor, start) in &mut slot.of_f32 {
                tensor.copy_from(start)?;
            }
            for (tensor, start) in &mut slot.weights {
                tensor.copy_from(start)?;
            }
            slot.run.step(&slot.gradients)?;
        }
        Ok(implementation)
    })
}
