//! Layer norm and RMS norm of a row, and their gradients, on the CPU.

use super::number::Accumulator;

/// What a row is normed with.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// What each column is multiplied with; ones if there is none.
    pub weight: Option<&'a [f32]>,
    /// What is added to each column then.
    pub bias: Option<&'a [f32]>,
    /// What is added to the weight before: 0, or 1 where weights are stored as differences to 1.
    pub weight_offset: f32,
    /// What is added to the variance.
    pub epsilon: f32,
    /// Whether the mean is taken off (layer norm), or not (RMS norm).
    pub is_centered: bool,
}

/// The mean of a row, 0 of an RMS norm, and 1 over the square root of its variance and ε.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics<A> {
    /// The mean.
    pub mean: A,
    /// The inverse deviation.
    pub inverse_deviation: A,
}

impl Norm<'_> {
    fn weight_of<A: Accumulator>(&self, column: usize) -> A {
        self.weight.map_or(A::one(), |weight| A::from_f32(weight[column]) + A::from_f32(self.weight_offset))
    }
}

fn from_usize<A: Accumulator>(count: usize) -> A {
    A::from_f64(count as f64)
}

/// Norms a row: `y = (x − mean) · inverse deviation · weight + bias`. All slices have the row's length.
pub fn norm<A: Accumulator>(x: &[f32], norm: &Norm<'_>, y: &mut [A]) -> Statistics<A> {
    let count = from_usize::<A>(x.len());
    let sum = |of: &dyn Fn(A) -> A| -> A {
        x.iter().map(|&x| of(A::from_f32(x))).fold(A::zero(), |sum, x| sum + x)
    };
    let rounded_mean = if norm.is_centered { sum(&|x| x) / count } else { A::zero() };
    // The rounded mean's error, which differences to it show.
    let rest = if norm.is_centered { sum(&|x| x - rounded_mean) / count } else { A::zero() };
    let variance = sum(&|x| (x - rounded_mean - rest) * (x - rounded_mean - rest)) / count;
    let inverse_deviation = (variance + A::from_f32(norm.epsilon)).sqrt().recip();
    for (column, (y, &x)) in y.iter_mut().zip(x).enumerate() {
        let normed = (A::from_f32(x) - rounded_mean - rest) * inverse_deviation;
        let scaled = normed * norm.weight_of(column);
        // Without a bias nothing is added, so that a zero keeps its sign.
        *y = norm.bias.map_or(scaled, |bias| scaled + A::from_f32(bias[column]));
    }
    Statistics { mean: rounded_mean + rest, inverse_deviation }
}

/// The gradient of a row that was normed, and what it adds to those of the weight and the bias.
///
/// With x̂ the normed row and `g = dy · weight`: `dx = inverse deviation · (g − mean(g) − x̂ · mean(g x̂)) + dsum`, without the mean of g for an RMS norm. All
/// slices have the row's length.
pub fn norm_gradient<A: Accumulator>(
    [x, dy]: [&[f32]; 2],
    dsum: Option<&[f32]>,
    statistics: Statistics<A>,
    norm: &Norm<'_>,
    dx: &mut [A],
    [dweight, dbias]: [&mut [A]; 2],
) {
    let count = from_usize::<A>(x.len());
    let normed = |column: usize| (A::from_f32(x[column]) - statistics.mean) * statistics.inverse_deviation;
    let gradient = |column: usize| A::from_f32(dy[column]) * norm.weight_of(column);
    let sum = |of: &dyn Fn(usize) -> A| (0..x.len()).map(of).fold(A::zero(), |sum, x| sum + x);
    let of_mean = if norm.is_centered { sum(&gradient) / count } else { A::zero() };
    let of_deviation = sum(&|column| gradient(column) * normed(column)) / count;
    for column in 0..x.len() {
        let (normed, dy) = (normed(column), A::from_f32(dy[column]));
        let rest = gradient(column) - of_mean - normed * of_deviation;
        dx[column] =
            rest * statistics.inverse_deviation + dsum.map_or(A::zero(), |dsum| A::from_f32(dsum[column]));
        dweight[column] += dy * normed;
        dbias[column] += dy;
    }
}

#[cfg(test)]
mod tests {
    use super::{Norm, norm, norm_gradient};

    const LAYER: Norm<'_> =
        Norm { weight: None, bias: None, weight_offset: 0.0, epsilon: 1e-5, is_centered: true };

    #[test]
    fn a_far_mean_cancels_nothing_but_what_the_row_itself_lacks() {
        let x: Vec<f32> = (0..16).map(|i| 100.0 + i as f32 * 1e-3).collect();
        let mut y = vec![0.0f32; 16];
        norm(&x, &LAYER, &mut y);
        assert!((y[0] + 1.3415).abs() < 2e-3, "{}", y[0]);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let x: Vec<f32> = (0..7).map(|i| ((i * 37 % 11) as f32 - 5.0) / 4.0).collect();
        let dy: Vec<f32> = (0..7).map(|i| ((i * 23 % 13) as f32 - 6.0) / 8.0).collect();
        let weight: Vec<f32> = (0..7).map(|i| 0.5 + i as f32 / 8.0).collect();
        for is_centered in [false, true] {
            let options = Norm { weight: Some(&weight), is_centered, ..LAYER };
            let loss = |x: &[f32]| {
                let mut y = vec![0.0f64; 7];
                norm(x, &options, &mut y);
                y.iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum::<f64>()
            };
            let statistics = norm(&x, &options, &mut [0.0f64; 7]);
            let (mut dx, mut sums) = ([0.0f64; 7], [[0.0f64; 7]; 2]);
            let [dweight, dbias] = &mut sums;
            norm_gradient([&x, &dy], None, statistics, &options, &mut dx, [dweight, dbias]);
            for column in 0..7 {
                let step = 1.0 / 64.0;
                let moved = |by: f32| {
                    let mut x = x.clone();
                    x[column] += by;
                    loss(&x)
                };
                let slope = |step: f32| (moved(step) - moved(-step)) / f64::from(2.0 * step);
                // Richardson's extrapolation.
                let expected = (4.0 * slope(step) - slope(2.0 * step)) / 3.0;
                assert!((dx[column] - expected).abs() < 1e-4, "{column}: {} {expected}", dx[column]);
            }
        }
    }
}
