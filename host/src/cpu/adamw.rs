//! AdamW on the CPU: the update of an element, and the sum of squares of gradients. In f32 they give the bits that the kernels do.

use rayon::prelude::*;
use warpsmith_dsl::adamw::{CHUNK, CHUNKS, PIECE, PREPARE_THREADS, THREADS};
pub use warpsmith_dsl::adamw::{philox_4x32, round_randomly};

use super::number::Accumulator;

/// Lanes of a warp.
const LANES: usize = 32;

/// The scalars of a step of one tensor, the same for all its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWScalars<A> {
    /// The learning rate over the correction of the first moment's bias.
    pub step_size: A,
    /// 1 over the root of the correction of the second moment's bias.
    pub inverse_root: A,
    /// The learning rate times the weight decay.
    pub decay: A,
    /// 1 − β₁ and 1 − β₂.
    pub shares: [A; 2],
    /// ε.
    pub epsilon: A,
}

impl<A: Accumulator> AdamWScalars<A> {
    /// Those of a step after which the decay rates β have these powers, computed in f64; without corrections if `powers` is `None`.
    #[must_use]
    pub fn new(
        learning_rate: f64,
        betas: [f64; 2],
        epsilon: f64,
        weight_decay: f64,
        powers: Option<[f64; 2]>,
    ) -> Self {
        let corrections = powers.map_or([1.0; 2], |powers| powers.map(|power| 1.0 - power));
        Self {
            step_size: A::from_f64(learning_rate / corrections[0]),
            inverse_root: A::from_f64(1.0 / corrections[1].sqrt()),
            decay: A::from_f64(learning_rate * weight_decay),
            shares: betas.map(|beta| A::from_f64(1.0 - beta)),
            epsilon: A::from_f64(epsilon),
        }
    }

    /// The weight and both moments of an element after a step, of its gradient times both factors, one after the other.
    #[must_use]
    pub fn element(&self, gradient: A, factors: [A; 2], [weight, mean, square]: [A; 3]) -> [A; 3] {
        let gradient = gradient * factors[0] * factors[1];
        let square = self.shares[1].mul_add(gradient.mul_add(gradient, -square), square);
        let [weight, mean] = self.moved(gradient, self.divisor(square), [weight, mean]);
        [weight, mean, square]
    }

    /// The second moment of a row after a step, of the mean of its gradients' squares.
    #[must_use]
    pub fn square(&self, mean_of_squares: A, square: A) -> A {
        self.shares[1].mul_add(mean_of_squares - square, square)
    }

    /// What the first moment is divided by, of the second one after a step.
    #[must_use]
    pub fn divisor(&self, square: A) -> A {
        square.sqrt().mul_add(self.inverse_root, self.epsilon)
    }

    /// The weight and the first moment of an element after a step, of its gradient times both factors.
    #[must_use]
    pub fn moved(&self, gradient: A, divisor: A, [weight, mean]: [A; 2]) -> [A; 2] {
        let decayed = (-self.decay).mul_add(weight, weight);
        let mean = self.shares[0].mul_add(gradient - mean, mean);
        [(-self.step_size).mul_add(mean / divisor, decayed), mean]
    }
}

/// The sum of squares of each piece of a tensor's gradients times `unscale`, in the kernels' order; NaN of a piece with a gradient that is not finite.
#[must_use]
pub fn square_sums(gradients: &[f32], unscale: f32) -> Vec<f32> {
    gradients.par_chunks(PIECE as usize).map(|piece| square_sum(piece, unscale)).collect()
}

fn square_sum(piece: &[f32], unscale: f32) -> f32 {
    let (threads, chunk) = (THREADS as usize, CHUNK as usize);
    let mut of_threads = vec![0.0; threads];
    for (thread, of_thread) in of_threads.iter_mut().enumerate() {
        let (mut sums, mut not_finite) = ([0.0f32; CHUNK as usize], 0.0f32);
        for c in 0..CHUNKS as usize {
            for (j, sum) in sums.iter_mut().enumerate() {
                let at = (c * threads + thread) * chunk + j;
                let value = piece.get(at).map_or(0.0, |&gradient| gradient * unscale);
                *sum = value.mul_add(value, *sum);
                not_finite = value.mul_add(0.0, not_finite);
            }
        }
        sums[0] += not_finite;
        *of_thread = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    of_block(&of_threads)
}

/// The mean of the squares of a row's gradients, in the kernels' order.
#[must_use]
pub fn mean_of_squares(gradients: &[f32]) -> f32 {
    let chunk = CHUNK as usize;
    let mut of_lanes = vec![0.0; LANES];
    for (lane, of_lane) in of_lanes.iter_mut().enumerate() {
        let mut sums = [0.0f32; CHUNK as usize];
        for chunk in gradients.chunks(chunk).skip(lane).step_by(LANES) {
            for (sum, gradient) in sums.iter_mut().zip(chunk) {
                *sum = gradient.mul_add(*gradient, *sum);
            }
        }
        *of_lane = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    of_block(&of_lanes) / gradients.len() as f32
}

/// The sum of the sums of all pieces, in the kernels' order.
#[must_use]
pub fn sum_of_pieces(pieces: &[f32]) -> f32 {
    let threads = PREPARE_THREADS as usize;
    let of_threads: Vec<f32> = (0..threads)
        .map(|thread| pieces.iter().skip(thread).step_by(threads).fold(0.0, |sum, &piece| sum + piece))
        .collect();
    of_block(&of_threads)
}

/// The sum of what the threads of a block have: of each warp by exchanges between lanes, then of the warps.
fn of_block(threads: &[f32]) -> f32 {
    let warps = threads.chunks(LANES).map(|lanes| {
        let mut sums = lanes.to_vec();
        while sums.len() > 1 {
            sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
        }
        sums[0]
    });
    warps.reduce(|sum, warp| sum + warp).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_square_is_added_once() {
        for length in [0usize, 1, 3, 4095, 4096, 4097, 12_289] {
            // Small integers, whose squares have sums without rounding.
            let gradients: Vec<f32> = (0..length).map(|i| (i % 7) as f32).collect();
            let exact: f64 = gradients.iter().map(|&g| f64::from(g * g)).sum();
            let sums = square_sums(&gradients, 2.0);
            assert_eq!(sums.len(), length.div_ceil(4096));
            assert_eq!(f64::from(sum_of_pieces(&sums)), 4.0 * exact, "{length}");
        }
        let many: Vec<f32> = (0..5000).map(|i| (i % 3) as f32).collect();
        assert_eq!(sum_of_pieces(&many), many.iter().sum::<f32>());
    }

    #[test]
    fn a_gradient_that_is_not_finite_shows_and_a_large_one_does_not() {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut gradients = vec![1.0; 5000];
            gradients[4999] = bad;
            let sums = square_sums(&gradients, 1.0);
            assert!(sums[0] == 4096.0 && sums[1].is_nan() && sum_of_pieces(&sums).is_nan());
        }
        assert_eq!(sum_of_pieces(&square_sums(&[1e30, 1e30], 1.0)), f32::INFINITY);
    }
}
