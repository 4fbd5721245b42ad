//! The operands that baselines work on: sets of x, w, bias and y in the GPU's memory, and what the result should be.
//!
//! They are drawn as ours are, evenly from [−1, 1), and are as large together, so that the level-2 cache serves neither side.

use anyhow::{Result, ensure};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rayon::prelude::*;
use warpsmith::{Stream, Tensor};
use warpsmith_lab::benchmark;

use super::case::{Case, Extra, Operation, Precision};
use crate::random::Random;

/// Device addresses of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) x: u64,
    pub(super) w: u64,
    pub(super) bias: u64,
    pub(super) y: u64,
    /// What the operation reads or stores besides: the residual, the mask or the activation's argument; 0 without one.
    pub(super) extra: u64,
}

struct Set {
    x: Tensor<u8>,
    w: Tensor<u8>,
    bias: Tensor<u8>,
    y: Tensor<u8>,
    extra: Option<Tensor<u8>>,
}

/// Operands of one case.
pub(super) struct Operands {
    pub(super) case: Case,
    sets: Vec<Set>,
    addresses: Vec<Addresses>,
    /// The scale 1 in f32, for types that want one in the GPU's memory.
    scale: Tensor<f32>,
    /// What rows and columns are multiplied with, if they are.
    scales: Option<[Tensor<f32>; 2]>,
}

impl Operands {
    pub(super) fn new(stream: &Stream, case: Case) -> Result<Self> {
        let [m, k, n] = case.shape;
        let batch = case.operation.batch;
        let device = stream.device();
        let upload = |operand: Operand, elements: usize| -> Result<Tensor<u8>> {
            let bytes = encoded(case.precision, operand, elements);
            Ok(Tensor::from_slice(device, &bytes, [bytes.len()])?)
        };
        let x = upload(Operand::X, batch * m * k)?;
        let w = upload(Operand::W, batch * n * k)?;
        let bias = upload(Operand::Bias, n)?;
        let zeros = |bytes: usize| Tensor::zeros_on(stream, [bytes]);
        let y = zeros(batch * m * n * case.precision.output_bytes())?;
        let extra = match case.operation.extra {
            Extra::None | Extra::Scales => None,
            Extra::Residual => Some(upload(Operand::Residual, m * n)?),
            Extra::Mask => Some(zeros(m * mask_bits(n) / 8)?),
            Extra::Preactivation => Some(zeros(m * n * case.precision.output_bytes())?),
        };
        let count = sets(stream, &case);
        let mut sets = vec![Set { x, w, bias, y, extra }];
        for _ in 1..count {
            let Set { x, w, bias, y, extra } = &sets[0];
            sets.push(Set {
                x: x.deep_clone()?,
                w: w.deep_clone()?,
                bias: bias.deep_clone()?,
                y: y.deep_clone()?,
                extra: extra.as_ref().map(Tensor::deep_clone).transpose()?,
            });
        }
        let of = |set: &mut Set| Addresses {
            x: set.x.arg().address(),
            w: set.w.arg().address(),
            bias: set.bias.arg().address(),
            y: set.y.arg_mut().address(),
            extra: set.extra.as_mut().map_or(0, |extra| extra.arg_mut().address()),
        };
        let addresses = sets.iter_mut().map(of).collect();
        let scale = Tensor::from_slice(device, &[1.0], [1])?;
        let drawn_scales = |operand, count: usize| {
            let scales: Vec<f32> = (0..count).map(|index| drawn(operand, index)).collect();
            Tensor::from_slice(device, &scales, [count])
        };
        let scales = match case.operation.extra {
            Extra::Scales => {
                Some([drawn_scales(Operand::RowScale, m)?, drawn_scales(Operand::ColumnScale, n)?])
            }
            _ => None,
        };
        // The baselines' streams know nothing of the tensors' home streams.
        device.synchronize()?;
        Ok(Self { case, sets, addresses, scale, scales })
    }

    /// Puts results in the place of a peer's, to be checked.
    #[cfg(test)]
    pub(super) fn set_results(&mut self, device: &warpsmith::Device, y: &[u8], extra: &[u8]) -> Result<()> {
        self.sets[0].y = Tensor::from_slice(device, y, [y.len()])?;
        if !extra.is_empty() {
            self.sets[0].extra = Some(Tensor::from_slice(device, extra, [extra.len()])?);
        }
        Ok(())
    }

    /// The addresses for work number `index`.
    pub(super) fn addresses(&self, index: usize) -> Addresses {
        self.addresses[index % self.addresses.len()]
    }

    pub(super) fn scale_address(&self) -> u64 {
        self.scale.arg().address()
    }

    /// Of what rows and columns are multiplied with, if they are.
    pub(super) fn scale_addresses(&self) -> Option<[u64; 2]> {
        let [rows, columns] = self.scales.as_ref()?;
        Some([rows.arg().address(), columns.arg().address()])
    }

    /// Rows of the first set's y, whose type is f32.
    pub(super) fn sampled(&self, rows: &[usize]) -> Result<Vec<f32>> {
        let [m, _, n] = self.case.shape;
        let y = self.sets[0].y.reshape([m, n * size_of::<f32>()])?;
        let mut found = Vec::with_capacity(rows.len() * n);
        for &row in rows {
            let bytes = y.slice(0, row..row + 1)?.to_vec()?;
            found.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        Ok(found)
    }

    /// Checks that the first set's y is what `operation` gives, in columns of the first matrix's first row and of the last one's last,
    /// and so what it stores besides. Baselines are not ours to validate; this tells whether they were asked the right question.
    pub(super) fn check(&self, operation: Operation) -> Result<()> {
        const COLUMNS: usize = 16;
        let Case { precision, shape: [m, k, n], operation: Operation { layout, batch, .. }, .. } = self.case;
        let bytes = precision.output_bytes();
        let rows = |tensor: &Tensor<u8>, bytes: usize| tensor.reshape([tensor.len() / bytes, bytes]);
        let y = rows(&self.sets[0].y, n * bytes)?;
        let stored = |extra: Extra, bytes: usize| {
            let stored = self.sets[0].extra.as_ref().filter(|_| operation.extra == extra);
            stored.map(|stored| rows(stored, bytes)).transpose()
        };
        let mask = stored(Extra::Mask, mask_bits(n) / 8)?;
        let preactivation = stored(Extra::Preactivation, n * bytes)?;
        for (matrix, row) in [(0, 0), (batch - 1, m - 1)] {
            let line = matrix * m + row;
            let of = |tensor: &Tensor<u8>| tensor.slice(0, line..line + 1).and_then(|row| row.to_vec());
            let found = of(&y)?;
            let argument = preactivation.as_ref().map(of).transpose()?;
            if let Some(mask) = &mask {
                check_mask(&of(mask)?, found.chunks_exact(bytes).map(|bytes| decode(precision, bytes)))?;
            }
            for column in (0..n).step_by(n.div_ceil(COLUMNS)) {
                let products = (0..k).map(|index| {
                    let x = if layout.transposes_x() { index * m + row } else { row * k + index };
                    let w = if layout.transposes_w() { column * k + index } else { index * n + column };
                    let x = element(precision, Operand::X, matrix * m * k + x);
                    f64::from(x) * f64::from(element(precision, Operand::W, matrix * k * n + w))
                });
                let (sum, squares) = products
                    .fold((0.0, 0.0), |(sum, squares), product| (sum + product, squares + product * product));
                let bias =
                    if operation.bias { element(precision, Operand::Bias, column).into() } else { 0.0 };
                let (product, other) = match operation.extra {
                    Extra::Residual => (sum, element(precision, Operand::Residual, row * n + column).into()),
                    Extra::Scales => {
                        let [row, column] =
                            [drawn(Operand::RowScale, row), drawn(Operand::ColumnScale, column)];
                        (sum * f64::from(row) * f64::from(column), 0.0)
                    }
                    _ => (sum, 0.0),
                };
                let z = product + bias + other;
                let expected = operation.activation.apply(z);
                // Eight standard deviations of the products' roundings; a rounding of the result, and one of the sum, which a
                // sequence of two steps has between them; and roundings of parts of the sum, which libraries may add in the
                // output's type.
                let (product, output) = roundings(precision);
                let spread = f64::sqrt(squares);
                let spread = (8.0 * product + 4.0 * output) * spread;
                let compare = |name: &str, bytes: &[u8], expected: f64| {
                    let found = decode(precision, bytes);
                    let allowed = spread + output * (sum.abs() + expected.abs());
                    ensure!(
                        (found - expected).abs() <= allowed,
                        "{name}[{row}, {column}] is {found}, where {expected} ± {allowed:.1e} is expected"
                    );
                    Ok(())
                };
                let at = column * bytes..(column + 1) * bytes;
                compare("y", &found[at.clone()], expected)?;
                if let Some(argument) = &argument {
                    compare("the activation's argument", &argument[at], z)?;
                }
            }
        }
        Ok(())
    }
}

/// Bits of a row of a peer's mask: cuBLASLt wants a multiple of 128.
pub(super) const fn mask_bits(columns: usize) -> usize {
    columns.next_multiple_of(128)
}

/// Checks that about as many bits of a mask's row are set as elements of y are above 0, or that many are not: which is which, and in
/// what order bits stand, is the peer's own affair.
fn check_mask(mask: &[u8], y: impl ExactSizeIterator<Item = f64>) -> Result<()> {
    let (bits, all) = (mask.iter().map(|byte| byte.count_ones() as usize).sum::<usize>(), y.len());
    let above = y.filter(|&y| y > 0.0).count();
    let near = |count: usize| bits.abs_diff(count) <= all.div_ceil(100);
    ensure!(
        near(above) || near(all - above),
        "{bits} of {all} bits of a mask's row are set, for {above} elements"
    );
    Ok(())
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
    Residual,
    RowScale,
    ColumnScale,
}

impl Operand {
    /// Whether it has the type of the inputs, rather than the output's.
    fn is_multiplied(self) -> bool {
        matches!(self, Self::X | Self::W)
    }
}

/// What an operand's elements are.
#[derive(Clone, Copy)]
enum Number {
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
}

impl Number {
    fn of(precision: Precision, operand: Operand) -> Self {
        match (precision, operand) {
            (Precision::Tf32 | Precision::F32, _) => Self::F32,
            (Precision::F16, _) => Self::F16,
            (Precision::Bf16, _) => Self::Bf16,
            (Precision::Bf16ToF32, operand) => {
                if operand.is_multiplied() {
                    Self::Bf16
                } else {
                    Self::F32
                }
            }
            (Precision::F8 | Precision::F8Mixed, operand) if !operand.is_multiplied() => Self::Bf16,
            (Precision::F8Mixed, Operand::W) => Self::E5m2,
            (Precision::F8 | Precision::F8Mixed, _) => Self::E4m3,
        }
    }
}

/// The inputs' and the output's relative rounding errors.
fn roundings(precision: Precision) -> (f64, f64) {
    let bits = |bits: i32| 2f64.powi(-bits);
    match precision {
        Precision::Bf16 => (bits(16), bits(8)),
        Precision::Bf16ToF32 => (bits(16), bits(23)),
        Precision::F16 => (bits(16), bits(11)),
        Precision::Tf32 => (bits(10), bits(23)),
        Precision::F32 => (bits(18), bits(23)),
        // The tensor cores add FP8 products with some 14 bits.
        Precision::F8 | Precision::F8Mixed => (bits(11), bits(8)),
    }
}

/// An element of an input as drawn.
pub(super) fn drawn(operand: Operand, index: usize) -> f32 {
    let bits = Random::new((operand as u64) << 56 ^ index as u64).next();
    // 24 random bits, so that an f32 holds each value exactly.
    ((bits >> 40) as f32 - 8_388_608.0) / 8_388_608.0
}

/// An element of an input as its type holds it.
fn element(precision: Precision, operand: Operand, index: usize) -> f32 {
    let value = drawn(operand, index);
    match Number::of(precision, operand) {
        Number::F32 => value,
        Number::F16 => f16::from_f32(value).to_f32(),
        Number::Bf16 => bf16::from_f32(value).to_f32(),
        Number::E4m3 => F8E4M3::from_f32(value).to_f32(),
        Number::E5m2 => F8E5M2::from_f32(value).to_f32(),
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
    match Number::of(precision, operand) {
        Number::F32 => collect(elements, |index| value(index).to_le_bytes()),
        Number::F16 => collect(elements, |index| f16::from_f32(value(index)).to_le_bytes()),
        Number::Bf16 => collect(elements, |index| bf16::from_f32(value(index)).to_le_bytes()),
        Number::E4m3 => collect(elements, |index| [F8E4M3::from_f32(value(index)).to_bits()]),
        Number::E5m2 => collect(elements, |index| [F8E5M2::from_f32(value(index)).to_bits()]),
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

    use super::{Operand, check_mask, element, encoded};
    use crate::bench::case::Precision;

    #[test]
    fn a_mask_has_as_many_bits_as_elements_are_positive_or_as_are_not() {
        let y = |positive: usize| (0..300).map(move |index| if index < positive { 1.0 } else { 0.0 });
        let mask: Vec<u8> = (0..48).map(|byte| if byte < 25 { 0xff } else { 0 }).collect();
        assert!(check_mask(&mask, y(200)).is_ok() && check_mask(&mask, y(100)).is_ok());
        assert!(check_mask(&mask, y(150)).is_err() && check_mask(&[0; 48], y(150)).is_err());
    }

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
