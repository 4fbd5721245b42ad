//! The operands that peers work on: sets of x, w, bias and y in the GPU's memory, and what the result should be.
//!
//! They are drawn as ours are, evenly from [−1, 1), and are as large together, so that the level-2 cache serves neither side.

use anyhow::{Result, ensure};
use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;
use warpsmith::{Stream, Tensor, benchmark};

use super::case::{Case, Operation, Precision};
use crate::random::Random;

/// Device addresses of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) x: u64,
    pub(super) w: u64,
    pub(super) bias: u64,
    pub(super) y: u64,
}

struct Set {
    x: Tensor<u8>,
    w: Tensor<u8>,
    bias: Tensor<u8>,
    y: Tensor<u8>,
}

/// Operands of one case.
pub(super) struct Operands {
    pub(super) case: Case,
    sets: Vec<Set>,
    addresses: Vec<Addresses>,
    /// The scale 1 in f32, for types that want one in the GPU's memory.
    scale: Tensor<f32>,
}

impl Operands {
    pub(super) fn new(stream: &Stream, case: Case) -> Result<Self> {
        let [m, k, n] = case.shape;
        let device = stream.device();
        let upload = |operand: Operand, elements: usize| -> Result<Tensor<u8>> {
            let bytes = encoded(case.precision, operand, elements);
            Ok(Tensor::from_slice(device, &bytes, [bytes.len()])?)
        };
        let x = upload(Operand::X, m * k)?;
        let w = upload(Operand::W, n * k)?;
        let bias = upload(Operand::Bias, n)?;
        let y = Tensor::zeros_on(stream, [m * n * case.precision.output_bytes()])?;
        let count = sets(stream, &case);
        let mut sets = vec![Set { x, w, bias, y }];
        for _ in 1..count {
            let Set { x, w, bias, y } = &sets[0];
            sets.push(Set {
                x: x.deep_clone()?,
                w: w.deep_clone()?,
                bias: bias.deep_clone()?,
                y: y.deep_clone()?,
            });
        }
        let of = |set: &mut Set| Addresses {
            x: set.x.arg().address(),
            w: set.w.arg().address(),
            bias: set.bias.arg().address(),
            y: set.y.arg_mut().address(),
        };
        let addresses = sets.iter_mut().map(of).collect();
        let scale = Tensor::from_slice(device, &[1.0], [1])?;
        // The peers' streams know nothing of the tensors' home streams.
        device.synchronize()?;
        Ok(Self { case, sets, addresses, scale })
    }

    /// The addresses for work number `index`.
    pub(super) fn addresses(&self, index: usize) -> Addresses {
        self.addresses[index % self.addresses.len()]
    }

    pub(super) fn scale_address(&self) -> u64 {
        self.scale.arg().address()
    }

    /// Checks that the first set's y is what `operation` gives, in columns of the first and the last row. Peers are not ours to
    /// validate; this tells whether they were asked the right question.
    pub(super) fn check(&self, operation: Operation) -> Result<()> {
        const COLUMNS: usize = 16;
        let Case { precision, shape: [m, k, n], operation: Operation { layout, .. }, .. } = self.case;
        let bytes = precision.output_bytes();
        let y = self.sets[0].y.reshape([m, n * bytes])?;
        for row in [0, m - 1] {
            let found = y.slice(0, row..row + 1)?.to_vec()?;
            for column in (0..n).step_by(n.div_ceil(COLUMNS)) {
                let products = (0..k).map(|index| {
                    let x = if layout.transposes_x() { index * m + row } else { row * k + index };
                    let w = if layout.transposes_w() { column * k + index } else { index * n + column };
                    let x = element(precision, Operand::X, x);
                    f64::from(x) * f64::from(element(precision, Operand::W, w))
                });
                let (sum, squares) = products
                    .fold((0.0, 0.0), |(sum, squares), product| (sum + product, squares + product * product));
                let bias =
                    if operation.bias { element(precision, Operand::Bias, column).into() } else { 0.0 };
                let expected = operation.activation.apply(sum + bias);
                let found = decode(precision, &found[column * bytes..][..bytes]);
                // Eight standard deviations of the products' roundings; a rounding of the result, and one of the sum, which a
                // sequence of two steps has between them; and roundings of parts of the sum, which libraries may add in the
                // output's type.
                let (product, output) = roundings(precision);
                let spread = f64::sqrt(squares);
                let allowed = (8.0 * product + 4.0 * output) * spread + output * (sum.abs() + expected.abs());
                ensure!(
                    (found - expected).abs() <= allowed,
                    "y[{row}, {column}] is {found}, where {expected} ± {allowed:.1e} is expected"
                );
            }
        }
        Ok(())
    }
}

/// How many sets of a case's operands together exceed the level-2 cache.
pub(super) fn sets(stream: &Stream, case: &Case) -> usize {
    benchmark::sets_beyond_cache(stream.device(), case.bytes() as u64)
}

/// One of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    X,
    W,
    Bias,
}

/// The inputs' and the output's relative rounding errors.
fn roundings(precision: Precision) -> (f64, f64) {
    let bits = |bits: i32| 2f64.powi(-bits);
    match precision {
        Precision::Bf16 => (bits(16), bits(8)),
        Precision::F16 => (bits(16), bits(11)),
        Precision::Tf32 => (bits(10), bits(23)),
        Precision::F32 => (bits(18), bits(23)),
        // The tensor cores add FP8 products with some 14 bits.
        Precision::F8 => (bits(11), bits(8)),
    }
}

/// An element of an input as drawn.
fn drawn(operand: Operand, index: usize) -> f32 {
    let bits = Random::new((operand as u64) << 56 ^ index as u64).next();
    // 24 random bits, so that an f32 holds each value exactly.
    ((bits >> 40) as f32 - 8_388_608.0) / 8_388_608.0
}

/// An element of an input as its type holds it.
fn element(precision: Precision, operand: Operand, index: usize) -> f32 {
    let value = drawn(operand, index);
    match precision {
        Precision::Bf16 => bf16::from_f32(value).to_f32(),
        Precision::F16 => f16::from_f32(value).to_f32(),
        Precision::Tf32 | Precision::F32 => value,
        Precision::F8 if operand == Operand::Bias => bf16::from_f32(value).to_f32(),
        Precision::F8 => F8E4M3::from_f32(value).to_f32(),
    }
}

/// The bytes of an input.
pub(super) fn encoded(precision: Precision, operand: Operand, elements: usize) -> Vec<u8> {
    fn collect<const BYTES: usize>(
        elements: usize,
        convert: impl Fn(usize) -> [u8; BYTES] + Sync,
    ) -> Vec<u8> {
        let mut bytes = vec![0; elements * BYTES];
        let chunks = bytes.par_chunks_exact_mut(BYTES).enumerate();
        chunks.for_each(|(index, chunk)| chunk.copy_from_slice(&convert(index)));
        bytes
    }
    let value = |index| drawn(operand, index);
    match precision {
        Precision::F8 if operand != Operand::Bias => {
            collect(elements, |index| [F8E4M3::from_f32(value(index)).to_bits()])
        }
        Precision::Bf16 | Precision::F8 => {
            collect(elements, |index| bf16::from_f32(value(index)).to_le_bytes())
        }
        Precision::F16 => collect(elements, |index| f16::from_f32(value(index)).to_le_bytes()),
        Precision::Tf32 | Precision::F32 => collect(elements, |index| value(index).to_le_bytes()),
    }
}

/// An element of y.
fn decode(precision: Precision, bytes: &[u8]) -> f64 {
    match (precision, bytes) {
        (Precision::F16, &[low, high]) => f16::from_le_bytes([low, high]).to_f64(),
        (_, &[low, high]) => bf16::from_le_bytes([low, high]).to_f64(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use float8::F8E4M3;

    use super::{Operand, element, encoded};
    use crate::bench::case::Precision;

    #[test]
    fn the_memory_holds_the_elements_that_results_are_checked_with() {
        let bytes = encoded(Precision::F8, Operand::W, 100);
        assert!(
            (0..100).all(|i| F8E4M3::from_bits(bytes[i]).to_f32() == element(Precision::F8, Operand::W, i))
        );
        let bytes = encoded(Precision::Bf16, Operand::X, 100);
        let at = |i: usize| half::bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32();
        assert!((0..100).all(|i| at(i) == element(Precision::Bf16, Operand::X, i)));
    }
}
