//! Rotary position embedding of a head on the CPU.

use super::number::Accumulator;

/// Which elements of a head are a pair that is turned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Element i and element i + d/2, of d that are turned: as GPT-NeoX and Llama have it.
    #[default]
    Halves,
    /// Elements 2i and 2i + 1: as GPT-J has it.
    Neighbours,
}

impl Pairing {
    /// The elements of pair `pair`, of `pairs`.
    #[must_use]
    pub const fn elements(self, pair: usize, pairs: usize) -> [usize; 2] {
        match self {
            Self::Halves => [pair, pair + pairs],
            Self::Neighbours => [2 * pair, 2 * pair + 1],
        }
    }
}

/// Turns the pairs of a head: `y = (a cos − b sin, b cos + a sin)` of each pair (a, b), whose angle's cosine and sine `angles` has. `x` and `y` have two elements
/// for each of these.
pub fn rotate<A: Accumulator>(pairing: Pairing, x: &[f32], angles: &[[A; 2]], y: &mut [A]) {
    for (pair, &[cosine, sine]) in angles.iter().enumerate() {
        let [first, second] = pairing.elements(pair, angles.len());
        let (a, b) = (A::from_f32(x[first]), A::from_f32(x[second]));
        y[first] = a * cosine - b * sine;
        y[second] = b * cosine + a * sine;
    }
}
