//! A step on the CPU: the operations of the kernels, in their order.

use half::{bf16, f16};
use rayon::prelude::*;
use warpsmith_dsl::adamw::{CHUNK, HISTORY_WORDS, KIND_BF16, KIND_F16, PIECE, StepFlags, status};

use super::adamw::{AdamW, Weights};
use crate::cpu::AdamWScalars;
use crate::cpu::adamw::{philox_4x32, round_randomly, square_sums, sum_of_pieces};
use crate::error::Result;
use crate::ops::rows::{AnyTensor, rounded};

/// Elements that one task moves, a multiple of those that share random bits.
const PART: usize = 1 << 12;

impl AdamW {
    /// Steps that have been checked.
    pub(super) fn step_on_cpu(&mut self, gradients: &[Option<AnyTensor<'_>>]) -> Result<()> {
        let gradients = gradients
            .iter()
            .map(|gradient| gradient.map(AnyTensor::to_f32).transpose())
            .collect::<Result<Vec<_>>>()?;
        if self.parameters.iter().all(|parameter| parameter.len() == 0) {
            return Ok(());
        }
        let flags = self.flags();
        let mut words = self.status.to_vec()?;
        let scale = words[status::SCALE];
        let unscale = if flags.has(StepFlags::SCALES) { 1.0 / scale } else { 1.0 };
        let mut norm = 0.0;
        if flags.has(StepFlags::HAS_SUMS) {
            let mut sums = Vec::new();
            for (parameter, gradient) in self.parameters.iter().zip(&gradients) {
                match gradient {
                    Some(gradient) => sums.extend(square_sums(gradient, unscale)),
                    None => sums.extend(vec![0.0; parameter.len().div_ceil(PIECE as usize)]),
                }
            }
            norm = sum_of_pieces(&sums).sqrt();
        }
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
        for (number, gradient) in gradients.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
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
            let step = of_tensor[0];
            let scalars = AdamWScalars::<f32>::new(
                options.learning_rate,
                options.betas,
                options.epsilon,
                options.weight_decay,
                options.bias_correction.then_some(powers),
            );
            self.move_tensor(number, &gradient, &scalars, [unscale, clip], step)?;
        }
        self.history.write_slice(&history)
    }

    fn move_tensor(
        &mut self,
        number: usize,
        gradients: &[f32],
        scalars: &AdamWScalars<f32>,
        factors: [f32; 2],
        step: u32,
    ) -> Result<()> {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let parameter = &mut self.parameters[number];
        let mut weights = match &parameter.master {
            Some(master) => master.to_vec()?,
            None => parameter.weights.any().to_f32()?,
        };
        let [mut means, mut squares] = [parameter.moments[0].to_vec()?, parameter.moments[1].to_vec()?];
        weights
            .par_chunks_mut(PART)
            .zip(means.par_chunks_mut(PART).zip(squares.par_chunks_mut(PART)))
            .zip(gradients.par_chunks(PART))
            .for_each(|((weights, (means, squares)), gradients)| {
                for (((weight, mean), square), &gradient) in
                    weights.iter_mut().zip(means).zip(squares).zip(gradients)
                {
                    [*weight, *mean, *square] = scalars.element(gradient, factors, [*weight, *mean, *square]);
                }
            });
        parameter.moments[0].write_slice(&means)?;
        parameter.moments[1].write_slice(&squares)?;
        if let Some(master) = &mut parameter.master {
            master.write_slice(&weights)?;
            return match &mut parameter.weights {
                Weights::F16(tensor) => tensor.write_slice(&rounded(&weights)),
                Weights::Bf16(tensor) => tensor.write_slice(&rounded(&weights)),
                Weights::F32(tensor) => tensor.write_slice(&weights),
            };
        }
        let bits = |kind: u32| -> Vec<u16> {
            let chunks = weights.par_chunks(CHUNK as usize).enumerate();
            let of_chunks = chunks.flat_map_iter(|(chunk, weights)| {
                let counter = [chunk as u32, (chunk as u64 >> 32) as u32, step, number as u32];
                let random = philox_4x32(counter, key);
                weights.iter().zip(random).map(move |(&weight, word)| round_randomly(weight, kind, word))
            });
            of_chunks.collect()
        };
        match &mut parameter.weights {
            Weights::F32(tensor) => tensor.write_slice(&weights),
            Weights::F16(tensor) => {
                let bits = bits(KIND_F16);
                tensor.write_slice(&bits.into_iter().map(f16::from_bits).collect::<Vec<_>>())
            }
            Weights::Bf16(tensor) => {
                let bits = bits(KIND_BF16);
                tensor.write_slice(&bits.into_iter().map(bf16::from_bits).collect::<Vec<_>>())
            }
        }
    }
}
