//! How exact products of f32 operands are: ours and the library's on the same operands, beside sums in f64 of exact products.

use anyhow::{Result, ensure};
use rayon::prelude::*;
use warpsmith::{Stream, Tensor, ops};

use super::case::{Case, Operation, Precision};
use super::operands::{Operand, drawn};
use super::suites::Suite;
use crate::measurement::{Accuracy, Measurement};
use crate::provenance::Provenance;

/// Rows of y that are compared, spread over all of it.
const ROWS: usize = 64;
/// The most products that sums are made of, which takes the host a second or so.
const MOST: usize = 8192 * 4096 * 4096;

/// Whether the results of a case are compared: those of the main sizes, up to a limit, whose operands are f32.
pub(super) fn is_compared(case: &Case) -> bool {
    let precise = matches!(case.precision, Precision::F32 | Precision::Tf32);
    let size = case.shape.iter().try_fold(1usize, |product, &side| product.checked_mul(side));
    let fits = size.is_some_and(|size| size <= MOST);
    precise && fits && case.suite == Suite::Main && case.operation == Operation::BIAS_RELU
}

/// Some rows of y, summed in f64.
pub(super) struct Reference {
    case: Case,
    pub(super) rows: Vec<usize>,
    /// Row by row, before the activation.
    z: Vec<f64>,
}

impl Reference {
    /// Of a case that [is compared](is_compared).
    pub(super) fn new(case: &Case) -> Self {
        let [m, k, n] = case.shape;
        let count = ROWS.min(m);
        let rows: Vec<usize> = (0..count).map(|index| index * m / count).collect();
        let of = |operand, first: usize| -> Vec<f64> {
            (first * k..(first + 1) * k).map(|index| drawn(operand, index).into()).collect()
        };
        let x: Vec<Vec<f64>> = rows.iter().map(|&row| of(Operand::X, row)).collect();
        let columns = (0..n).into_par_iter().map(|column| -> Vec<f64> {
            let w = of(Operand::W, column);
            let bias = f64::from(drawn(Operand::Bias, column));
            let dot = |x: &Vec<f64>| x.iter().zip(&w).map(|(x, w)| x * w).sum::<f64>() + bias;
            x.iter().map(dot).collect()
        });
        let columns: Vec<Vec<f64>> = columns.collect();
        let z = (0..count).flat_map(|row| columns.iter().map(move |column| column[row])).collect();
        Self { case: *case, rows, z }
    }

    /// What our operation gives for the rows.
    pub(super) fn ours(&self, stream: &Stream) -> Result<Vec<f32>> {
        let [m, k, n] = self.case.shape;
        let tensor = |operand, shape: &[usize]| {
            let elements: Vec<f32> =
                (0..shape.iter().product()).into_par_iter().map(|index| drawn(operand, index)).collect();
            Tensor::from_slice(stream.device(), &elements, shape)
        };
        let (x, w) = (tensor(Operand::X, &[m, k])?, tensor(Operand::W, &[n, k])?);
        let bias = tensor(Operand::Bias, &[n])?;
        let op = ops::linear(&x, &w).bias(&bias).activation(self.case.operation.activation);
        let y = op.precision(self.case.precision.asked()).on(stream).run()?;
        let mut found = Vec::with_capacity(self.z.len());
        for &row in &self.rows {
            found.extend(y.slice(0, row..row + 1)?.to_vec()?);
        }
        Ok(found)
    }

    /// The largest and the root-mean-square error of the rows, both as shares of the root mean square of what is right; where ReLU gives
    /// zero there is nothing to compare.
    pub(super) fn errors(&self, found: &[f32]) -> Result<[f64; 2]> {
        ensure!(found.len() == self.z.len(), "{} elements, where {} are expected", found.len(), self.z.len());
        let (mut count, mut squares, mut largest, mut errors) = (0usize, 0.0, 0f64, 0.0);
        for (&found, &expected) in found.iter().zip(&self.z).filter(|&(_, &expected)| expected > 0.0) {
            let error = f64::from(found) - expected;
            ensure!(error.is_finite(), "{found} where {expected} is expected");
            count += 1;
            squares += expected * expected;
            errors += error * error;
            largest = largest.max(error.abs());
        }
        ensure!(count > 0, "no element is above 0");
        let root = |sum: f64| (sum / count as f64).sqrt();
        Ok([largest / root(squares), root(errors) / root(squares)])
    }
}

/// The errors of a case, by whose they are.
pub(super) struct Compared {
    case: Case,
    /// Name, largest and root-mean-square error.
    results: Vec<(&'static str, [f64; 2])>,
}

impl Compared {
    /// Compares ours and what a peer, if there is one, gives for the rows of the reference.
    pub(super) fn new(
        stream: &Stream,
        reference: &Reference,
        peer: Option<(&'static str, Vec<f32>)>,
    ) -> Result<Self> {
        let mut results = vec![("warpsmith", reference.errors(&reference.ours(stream)?)?)];
        if let Some((name, found)) = peer {
            results.push((name, reference.errors(&found)?));
        }
        Ok(Self { case: reference.case, results })
    }

    pub(super) fn print(&self) {
        for (name, [largest, mean]) in &self.results {
            println!("Error of {name}, {}: at most {largest:.2e}, {mean:.2e} in the mean square", self.case);
        }
    }

    /// Rows for a file of errors.
    pub(super) fn rows(&self, provenance: &Provenance) -> impl Iterator<Item = Accuracy> {
        let [m, k, n] = self.case.shape;
        let of = Measurement::of(provenance, "");
        self.results.iter().map(move |&(name, [max_error, rms_error])| Accuracy {
            operation: self.case.operation.to_string(),
            dtype: self.case.precision.name().into(),
            shape: format!("{m}x{k}x{n}"),
            variant: name.into(),
            max_error,
            rms_error,
            gpu: of.gpu.clone(),
            driver: of.driver.clone(),
            commit: of.commit.clone(),
            command: of.command.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::Device;

    use super::{Case, Compared, Operation, Precision, Reference, Suite, is_compared};
    use crate::bench::operands::Operands;
    use crate::provenance::Provenance;

    fn case(precision: Precision, shape: [usize; 3]) -> Case {
        Case { suite: Suite::Main, operation: Operation::BIAS_RELU, precision, shape }
    }

    #[test]
    fn f32_results_up_to_a_size_are_compared() {
        assert!(is_compared(&case(Precision::F32, [8192, 4096, 4096])));
        assert!(!is_compared(&case(Precision::F32, [8192; 3])));
        assert!(!is_compared(&case(Precision::Bf16, [8; 3])));
        assert!(!is_compared(&Case { suite: Suite::Odd, ..case(Precision::F32, [8; 3]) }));
    }

    #[test]
    fn errors_are_those_of_the_arithmetic() {
        let device: Device = "emulator:9.0".parse().expect("a device");
        let stream = device.default_stream();
        let case = case(Precision::F32, [130, 96, 64]);
        let reference = Reference::new(&case);
        assert_eq!((reference.rows.len(), reference.rows[63]), (64, 127));
        let found = reference.ours(&stream).expect("no finding");
        let [largest, mean] = reference.errors(&found).expect("finite");
        assert!(largest < 1e-6 && mean < largest, "{largest} {mean}");
        // The library's operands are the same, and its results are read row by row.
        let mut operands = Operands::new(&stream, case).expect("memory");
        let y: Vec<u8> = (0..130u16 * 64).flat_map(|index| f32::from(index).to_le_bytes()).collect();
        operands.set_results(&device, &y, &[]).expect("memory");
        assert_eq!(operands.sampled(&[0, 3]).expect("copied")[63..66], [63.0, 192.0, 193.0]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let reference = Reference::new(&case(Precision::F32, [3, 8, 5]));
        let mut found: Vec<f32> = reference.z.iter().map(|&z| z.max(0.0) as f32).collect();
        assert!(reference.errors(&found).expect("finite")[0] < 1e-7);
        let above = found.iter().position(|&y| y > 0.0).expect("half of them are");
        found[above] *= 1.5;
        let [largest, mean] = reference.errors(&found).expect("finite");
        assert!(largest > 1e-3 && mean > 1e-3, "{largest} {mean}");
        found[above] = f32::NAN;
        assert!(reference.errors(&found).is_err() && reference.errors(&found[1..]).is_err());
        let compared = Compared { case: reference.case, results: vec![("a", [1.0, 0.5]), ("b", [2.0, 1.0])] };
        let rows: Vec<_> = compared.rows(&Provenance::default()).collect();
        assert_eq!((rows.len(), rows[1].variant.as_str(), rows[1].max_error), (2, "b", 2.0));
        assert_eq!((rows[0].shape.as_str(), rows[0].dtype.as_str()), ("3x8x5", "f32"));
    }
}
