//! Functions of the elements of tensors of one shape on the CPU.

use rayon::prelude::*;

use super::activation::Activation;
use super::number::Accumulator;

/// What is made of the elements a, b and c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elementwise {
    /// act(a).
    Activation(Activation),
    /// a + b.
    Add,
    /// a · b.
    Multiply,
    /// act(a) · b.
    Gated(Activation),
    /// act′(a) · b.
    ActivationGradient(Activation),
    /// act′(a) · b · c, and act(a) · c.
    GatedGradient(Activation),
}

impl Elementwise {
    /// The value, and the second one of an operation that has two, else 0.
    #[must_use]
    pub fn apply<A: Accumulator>(self, a: A, b: A, c: A) -> [A; 2] {
        match self {
            Self::Activation(activation) => [activation.apply(a), A::zero()],
            Self::Add => [a + b, A::zero()],
            Self::Multiply => [a * b, A::zero()],
            Self::Gated(activation) => [activation.apply(a) * b, A::zero()],
            Self::ActivationGradient(activation) => [activation.derivative(a) * b, A::zero()],
            Self::GatedGradient(activation) => [activation.derivative(a) * b * c, activation.apply(a) * c],
        }
    }
}

/// Elements that one task computes.
const PART: usize = 1 << 12;

/// Applies an operation to all elements of `a`, and those of `b` and `c` in the same places; of fewer, the first follows the last. Operands that the operation has not
/// are empty.
pub fn elementwise<A: Accumulator>(operation: Elementwise, [a, b, c]: [&[f32]; 3], y: &mut [A], z: &mut [A]) {
    let of = |from: &[f32], at: usize| match from.len() {
        0 => A::zero(),
        length => A::from_f32(from[at % length]),
    };
    let value = |at: usize| operation.apply(of(a, at), of(b, at), of(c, at));
    if z.is_empty() {
        y.par_chunks_mut(PART).enumerate().for_each(|(part, y)| {
            for (i, y) in y.iter_mut().enumerate() {
                *y = value(part * PART + i)[0];
            }
        });
        return;
    }
    y.par_chunks_mut(PART).zip(z.par_chunks_mut(PART)).enumerate().for_each(|(part, (y, z))| {
        for (i, (y, z)) in y.iter_mut().zip(z).enumerate() {
            [*y, *z] = value(part * PART + i);
        }
    });
}
