//! The gradient of a linear layer's sums on the CPU.

use rayon::prelude::*;

use super::activation::Activation;
use super::number::Accumulator;
use super::sums::pairwise;

/// Where the slopes of an activation are known from.
#[derive(Clone, Copy, Debug)]
pub enum Slopes<'a> {
    /// They are all 1.
    Ones,
    /// Of an activation at these numbers, as many as there are elements.
    At(Activation, &'a [f32]),
    /// 1 where a bit is set, else 0: column n is bit n mod 32 of word ⌊n / 32⌋ of its row, of which each has ⌈N / 32⌉.
    Bits(&'a [u32]),
}

impl Slopes<'_> {
    /// The slope for an element of a matrix with so many columns.
    #[must_use]
    pub fn of<A: Accumulator>(&self, row: usize, column: usize, columns: usize) -> A {
        match *self {
            Self::Ones => A::one(),
            Self::At(activation, z) => activation.derivative(A::from_f32(z[row * columns + column])),
            Self::Bits(words) => {
                let word = words[row * columns.div_ceil(32) + column / 32];
                if word >> (column % 32) & 1 == 1 { A::one() } else { A::zero() }
            }
        }
    }
}

/// dZ = dY ⊙ slopes, of rows with so many columns, and the sums of its columns. Both matrices have as many elements.
pub fn linear_gradient<A: Accumulator>(
    columns: usize,
    dy: &[f32],
    slopes: Slopes<'_>,
    dz: &mut [A],
    sums: &mut [A],
) {
    if columns == 0 {
        return;
    }
    dz.par_chunks_mut(columns).zip(dy.par_chunks(columns)).enumerate().for_each(|(row, (dz, dy))| {
        for (column, (dz, &dy)) in dz.iter_mut().zip(dy).enumerate() {
            *dz = A::from_f32(dy) * slopes.of(row, column, columns);
        }
    });
    let (dz, rows) = (&*dz, dy.len() / columns);
    sums.par_iter_mut().enumerate().for_each(|(column, sum)| {
        *sum = pairwise(0..rows, &|row| dz[row * columns + column]);
    });
}

#[cfg(test)]
mod tests {
    use super::{Slopes, linear_gradient};
    use crate::cpu::Activation;

    #[test]
    fn bits_are_those_of_the_numbers_above_zero() {
        let z: Vec<f32> = (0..70).map(|i| (i * 37 % 11) as f32 - 5.0).collect();
        let dy: Vec<f32> = (0..70).map(|i| (i * 23 % 13) as f32 - 6.0).collect();
        let mut words = [0u32; 4];
        for (at, &z) in z.iter().enumerate() {
            words[at / 35 * 2 + at % 35 / 32] |= u32::from(z > 0.0) << (at % 35 % 32);
        }
        let of = |slopes| {
            let (mut dz, mut sums) = ([0.0f64; 70], [0.0f64; 35]);
            linear_gradient(35, &dy, slopes, &mut dz, &mut sums);
            (dz, sums)
        };
        let (dz, sums) = of(Slopes::Bits(&words));
        assert_eq!((dz, sums), of(Slopes::At(Activation::Relu, &z)));
        assert!((0..35).all(|column| sums[column] == dz[column] + dz[35 + column]));
        assert!(dz.contains(&-6.0) && dz.iter().filter(|&&dz| dz == 0.0).count() > 30);
    }
}
