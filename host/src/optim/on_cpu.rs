//! A step on the CPU: the operations of the kernels, in their order.

use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;
use warpsmith_dsl::adamw::{CHUNK, HISTORY_WORDS, KIND_BF16, KIND_F16, StepFlags, status};

use super::adamw::{AdamW, Parameter, STEP};
use super::on_device::RowsLaunch;
use super::operands::{OfTensor, Weights};
use super::options::SecondMoment;
use crate::cpu::AdamWScalars;
use crate::cpu::adamw::{mean_of_squares, philox_4x32, round_randomly, square_sums, sum_of_pieces};
use crate::error::{Error, Result};
use crate::ops::rows::{RowElement, rounded, widened, with_tensor};
use crate::tensor::{Element, Tensor};

/// Elements that one task moves, a multiple of those that share random bits.
const PART: usize = 1 << 12;

/// A gradient's numbers, and which rows of the tensor they are: ranges of them, one after the other.
struct Numbers {
    numbers: Vec<f32>,
    runs: Vec<Range<usize>>,
}

impl Numbers {
    /// How many rows there are.
    fn rows(&self) -> usize {
        self.runs.iter().map(Range::len).sum()
    }

    fn of(parameter: &Parameter, gradient: &OfTensor<'_>) -> Result<Self> {
        let mut numbers = gradient.elements.to_f32()?;
        let [rows, vectors, columns] = parameter.sizes();
        let Some([ids, count]) = gradient.rows else {
            let all = 0..rows;
            return Ok(Self { numbers, runs: std::iter::once(all).collect() });
        };
        let mut ids = ids.to_vec()?;
        ids.truncate(count.to_vec()?.first().map_or(0, |&count| count as usize));
        numbers.truncate(ids.len() * vectors * columns);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for id in ids {
            let place = id as usize;
            let end = runs.last().map_or(0, |run| run.end);
            if place < end || place >= rows {
                return Err(Error::Argument {
                    operation: STEP,
                    argument: "ids",
                    expected: format!("ascending ones below {rows}, each once, for `{}`", parameter.name),
                    actual: if place < rows { format!("{id} after {}", end - 1) } else { id.to_string() },
                });
            }
            match runs.last_mut() {
                Some(run) if run.end == place => run.end += 1,
                _ => runs.push(place..place + 1),
            }
        }
        Ok(Self { numbers, runs })
    }
}

/// Some rows of a tensor that are next to each other; the tensor itself if they are all.
fn rows_of<T: Element>(tensor: &Tensor<T>, rows: usize, run: &Range<usize>) -> Result<Tensor<T>> {
    if run.len() == rows { Ok(tensor.clone()) } else { tensor.slice(0, run.clone()) }
}

/// The numbers of these rows, one after the other.
fn gathered<T: RowElement>(tensor: &Tensor<T>, rows: usize, runs: &[Range<usize>]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for run in runs {
        all.extend(widened(&rows_of(tensor, rows, run)?)?);
    }
    Ok(all)
}

/// Writes these rows.
fn scatter<T: Element>(
    tensor: &mut Tensor<T>,
    rows: usize,
    runs: &[Range<usize>],
    elements: &[T],
) -> Result<()> {
    let mut left = elements;
    for run in runs {
        let mut own = rows_of(tensor, rows, run)?;
        let (elements, rest) = left.split_at(own.len());
        own.write_slice(elements)?;
        left = rest;
    }
    Ok(())
}

impl AdamW {
    /// Steps that have been checked.
    pub(super) fn step_on_cpu(&mut self, gradients: &[Option<OfTensor<'_>>]) -> Result<()> {
        let flags = self.flags();
        let mut words = self.status.to_vec()?;
        let scale = words[status::SCALE];
        let unscale = if flags.has(StepFlags::SCALES) { 1.0 / scale } else { 1.0 };
        let (mut all, mut sums, mut sums_of_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (parameter, gradient) in self.parameters.iter().zip(gradients) {
            let launch = RowsLaunch::of(parameter, gradient.as_ref())?;
            let numbers = gradient.as_ref().map(|gradient| Numbers::of(parameter, gradient)).transpose()?;
            if flags.has(StepFlags::HAS_SUMS) {
                let of = numbers.as_ref().map_or(&[][..], |of| &of.numbers);
                let (sums, pieces) = match launch {
                    Some(launch) => (&mut sums_of_rows, launch.pieces),
                    None => (&mut sums, parameter.pieces()),
                };
                let end = sums.len() + pieces;
                sums.extend(square_sums(of, unscale));
                sums.resize(end, 0.0);
            }
            all.push(numbers);
        }
        sums.extend(sums_of_rows);
        let norm = sum_of_pieces(&sums).sqrt();
        let found = flags.has(StepFlags::SCALES) && norm.is_nan();
        let ratio = self.max_norm.map_or(1.0, |max_norm| max_norm / (norm + 1e-6));
        // NaN stays NaN.
        let clip = if ratio >= 1.0 { 1.0 } else { ratio };
        if let Some(options) = self.loss_scale {
            let mut good = if found { 0 } else { words[status::GOOD_STEPS].to_bits().wrapping_add(1) };
            if found {
                words[status::SCALE] = scale * options.backoff;
            } else if good >= options.growth_interval {
                let grown = scale * options.growth;
                words[status::SCALE] = if grown < f32::INFINITY { grown } else { scale };
                good = 0;
            }
            words[status::GOOD_STEPS] = f32::from_bits(good);
        }
        words[status::FOUND_INF] = f32::from_bits(u32::from(found));
        words[status::NORM] = norm;
        words[status::UNSCALE] = unscale;
        words[status::CLIP] = clip;
        self.status.write_slice(&words)?;
        if found {
            return Ok(());
        }
        let mut history = self.history.to_vec()?;
        for (number, numbers) in all.into_iter().enumerate() {
            let Some(numbers) = numbers else { continue };
            let of_tensor = &mut history[number * HISTORY_WORDS..][..HISTORY_WORDS];
            let options = self.groups[self.parameters[number].group];
            let mut powers = [0.0; 2];
            for (i, power) in powers.iter_mut().enumerate() {
                let [low, high] = [of_tensor[2 + 2 * i], of_tensor[3 + 2 * i]].map(u64::from);
                *power = f64::from_bits(low | high << 32) * options.betas[i];
                let bits = power.to_bits();
                (of_tensor[2 + 2 * i], of_tensor[3 + 2 * i]) = (bits as u32, (bits >> 32) as u32);
            }
            of_tensor[0] = of_tensor[0].wrapping_add(1);
            let step = CpuStep {
                scalars: AdamWScalars::<f32>::new(
                    options.learning_rate,
                    options.betas,
                    options.epsilon,
                    options.weight_decay,
                    options.bias_correction.then_some(powers),
                ),
                factors: [unscale, clip],
                counter: [of_tensor[0], number as u32],
                key: [self.seed as u32, (self.seed >> 32) as u32],
            };
            step.move_rows(&mut self.parameters[number], &numbers)?;
        }
        self.history.write_slice(&history)
    }
}

/// What a step does to a tensor.
struct CpuStep {
    scalars: AdamWScalars<f32>,
    factors: [f32; 2],
    /// What random bits are made from, but for the chunk.
    counter: [u32; 2],
    key: [u32; 2],
}

impl CpuStep {
    /// Moves the rows that the gradient has.
    fn move_rows(&self, parameter: &mut Parameter, gradient: &Numbers) -> Result<()> {
        let [rows, _, columns] = parameter.sizes();
        let runs = &gradient.runs;
        let mut weights = match &parameter.master {
            Some(master) => gathered(master, rows, runs)?,
            None => with_tensor!(parameter.weights.any(), tensor => gathered(tensor, rows, runs)?),
        };
        let [mut means, mut squares] =
            [gathered(&parameter.moments[0], rows, runs)?, gathered(&parameter.moments[1], rows, runs)?];
        match parameter.second_moment {
            SecondMoment::PerElement => weights
                .par_chunks_mut(PART)
                .zip(means.par_chunks_mut(PART).zip(squares.par_chunks_mut(PART)))
                .zip(gradient.numbers.par_chunks(PART))
                .for_each(|((weights, (means, squares)), gradients)| {
                    for (((weight, mean), square), &gradient) in
                        weights.iter_mut().zip(means).zip(squares).zip(gradients)
                    {
                        [*weight, *mean, *square] =
                            self.scalars.element(gradient, self.factors, [*weight, *mean, *square]);
                    }
                }),
            SecondMoment::PerRow => weights
                .par_chunks_mut(columns.max(1))
                .zip(means.par_chunks_mut(columns.max(1)).zip(&mut squares))
                .zip(gradient.numbers.par_chunks(columns.max(1)))
                .for_each(|((weights, (means, square)), gradients)| {
                    let gradients: Vec<f32> = gradients
                        .iter()
                        .map(|gradient| gradient * self.factors[0] * self.factors[1])
                        .collect();
                    *square = self.scalars.square(mean_of_squares(&gradients), *square);
                    let divisor = self.scalars.divisor(*square);
                    for ((weight, mean), gradient) in weights.iter_mut().zip(means).zip(gradients) {
                        [*weight, *mean] = self.scalars.moved(gradient, divisor, [*weight, *mean]);
                    }
                }),
        }
        let [of_means, of_squares] = &mut parameter.moments;
        scatter(of_means, rows, runs, &means)?;
        scatter(of_squares, rows, runs, &squares)?;
        if let Some(master) = &mut parameter.master {
            scatter(master, rows, runs, &weights)?;
            return match &mut parameter.weights {
                Weights::F16(tensor) => scatter(tensor, rows, runs, &rounded::<f16>(&weights)),
                Weights::Bf16(tensor) => scatter(tensor, rows, runs, &rounded::<bf16>(&weights)),
                Weights::F32(tensor) => scatter(tensor, rows, runs, &weights),
            };
        }
        let of_row = weights.len() / gradient.rows().max(1);
        match &mut parameter.weights {
            Weights::F32(tensor) => scatter(tensor, rows, runs, &weights),
            Weights::F16(tensor) => {
                let bits = self.rounded_randomly(KIND_F16, gradient, of_row, &weights);
                scatter(tensor, rows, runs, &bits.into_iter().map(f16::from_bits).collect::<Vec<_>>())
            }
            Weights::Bf16(tensor) => {
                let bits = self.rounded_randomly(KIND_BF16, gradient, of_row, &weights);
                scatter(tensor, rows, runs, &bits.into_iter().map(bf16::from_bits).collect::<Vec<_>>())
            }
        }
    }

    /// Weights rounded randomly, of those rows of `of_row` elements that the gradient has.
    fn rounded_randomly(&self, kind: u32, gradient: &Numbers, of_row: usize, weights: &[f32]) -> Vec<u16> {
        let ([step, tensor], per) = (self.counter, CHUNK as usize);
        let mut first = 0;
        // Parts of runs: where each begins among these weights, and among all of the tensor.
        let parts = gradient.runs.iter().flat_map(|run| {
            let (own, length) = (first, run.len() * of_row);
            first += length;
            let parts = (0..length).step_by(PART);
            parts.map(move |part| (own + part..own + length.min(part + PART), run.start * of_row + part))
        });
        let parts: Vec<(Range<usize>, usize)> = parts.collect();
        let of_parts = parts.into_par_iter().flat_map_iter(|(range, first)| {
            let mut known: Option<(usize, [u32; CHUNK as usize])> = None;
            weights[range].iter().enumerate().map(move |(at, &weight)| {
                let (chunk, place) = ((first + at) / per, (first + at) % per);
                let random = match known {
                    Some((of, random)) if of == chunk => random,
                    _ => {
                        let counter = [chunk as u32, (chunk as u64 >> 32) as u32, step, tensor];
                        philox_4x32(counter, self.key)
                    }
                };
                known = Some((chunk, random));
                round_randomly(weight, kind, random[place])
            })
        });
        of_parts.collect()
    }
}
