//! The softmax of a row, and its gradient, on the CPU.

use super::number::Accumulator;
use super::sums::{max_nan, pairwise};

/// The softmax of a row: `y = exp(scale · x) / Σ exp(scale · x)` over the columns whose mask is not 0; all if there is none. The others have 0, and so has −∞.
///
/// A row of which no column counts has zeros. All slices have the row's length.
pub fn softmax<A: Accumulator>(x: &[f32], mask: Option<&[u8]>, scale: f32, y: &mut [A]) {
    let number = |column: usize| match mask {
        Some(mask) if mask[column] == 0 => A::neg_infinity(),
        _ => A::from_f32(x[column]),
    };
    let max = (0..x.len()).map(number).fold(A::neg_infinity(), max_nan);
    // −∞ taken off −∞ would be NaN.
    let base = if max == A::neg_infinity() { A::zero() } else { max };
    let power = |column: usize| ((number(column) - base) * A::from_f32(scale)).exp();
    let sum = pairwise(0..x.len(), &power);
    for (column, y) in y.iter_mut().enumerate() {
        *y = if number(column) == A::neg_infinity() { A::zero() } else { power(column) / sum };
    }
}

/// The gradient of a row's softmax y: `dx = scale · y ⊙ (dy − Σ dy ⊙ y)`. Where y is 0 so is dx, whatever dy is there. All slices have the row's length.
pub fn softmax_gradient<A: Accumulator>(y: &[f32], dy: &[f32], scale: f32, dx: &mut [A]) {
    let share = |column: usize| {
        if y[column] == 0.0 { A::zero() } else { A::from_f32(y[column]) * A::from_f32(dy[column]) }
    };
    let sum = pairwise(0..y.len(), &share);
    for (column, dx) in dx.iter_mut().enumerate() {
        let gradient = A::from_f32(y[column]) * (A::from_f32(dy[column]) - sum) * A::from_f32(scale);
        *dx = if y[column] == 0.0 { A::zero() } else { gradient };
    }
}

#[cfg(test)]
mod tests {
    use super::{softmax, softmax_gradient};

    #[test]
    fn shares_add_up_to_one_and_masked_columns_have_none() {
        let (x, mask) = ([1.0, f32::NAN, 3.0, f32::NEG_INFINITY, 2.0], [1u8, 0, 7, 1, 1]);
        let mut y = [9.0f64; 5];
        softmax(&x, Some(&mask), 1.0, &mut y);
        let all = 1f64.exp() + 3f64.exp() + 2f64.exp();
        for (y, expected) in y.iter().zip([1f64.exp(), 0.0, 3f64.exp(), 0.0, 2f64.exp()]) {
            assert!((y - expected / all).abs() < 1e-15);
        }
        softmax(&x, Some(&[0; 5]), 1.0, &mut y);
        assert_eq!(y, [0.0; 5]);
        softmax(&[f32::NEG_INFINITY; 5], None, 1.0, &mut y);
        assert_eq!(y, [0.0; 5]);
        softmax(&x, None, 1.0, &mut y);
        assert!(y[0].is_nan() && y[3] == 0.0);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let x: Vec<f32> = (0..9).map(|i| ((i * 37 % 11) as f32 - 5.0) / 4.0).collect();
        let dy: Vec<f32> = (0..9).map(|i| ((i * 23 % 13) as f32 - 6.0) / 8.0).collect();
        let mask = [1u8, 1, 1, 0, 1, 1, 1, 1, 0];
        let scale = 0.75;
        let of = |x: &[f32]| {
            let mut y = [0.0f64; 9];
            softmax(x, Some(&mask), scale, &mut y);
            y
        };
        let y = of(&x).map(|y| y as f32);
        let mut dx = [0.0f64; 9];
        softmax_gradient(&y, &dy, scale, &mut dx);
        for column in 0..9 {
            let slope = |step: f32| {
                let moved = |by: f32| {
                    let mut x = x.clone();
                    x[column] += by;
                    of(&x).iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum::<f64>()
                };
                (moved(step) - moved(-step)) / f64::from(2.0 * step)
            };
            // Richardson's extrapolation; the rest is of the fourth order in 2⁻⁵, and of y's rounding to f32.
            let expected = (4.0 * slope(1.0 / 64.0) - slope(1.0 / 32.0)) / 3.0;
            assert!((dx[column] - expected).abs() < 1e-6, "{column}: {} {expected}", dx[column]);
        }
    }
}
