//! The layout of an expert's row: bytes that kernels, the CPU implementation and a cache of rows read alike.
//!
//! A row is the expert's hidden units one after the other, filled up with zeros to a multiple of 32 bytes, 32 at least. A unit
//! is its vectors u, w if the units are gated, and v, each filled up with zeros to a multiple of 16 bytes. Then, for formats
//! that scale, 16 bytes with a word for each of u, v and w, in this order: the scale and the bias as two f16, or of 8-bit
//! floats the scale as f32.

mod quantize;

use float8::F8E4M3;
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::sizes::{CHUNK_BYTES, ROW_LIMIT};
use crate::tensor::DType;
use quantize::Codes;

/// What rows start at multiples of, and are a multiple of: a sector of the GPU's memory.
const ROW_ALIGNMENT: usize = 32;
/// The most hidden units of one expert.
const HIDDEN_LIMIT: usize = 1 << 16;

/// How a table of experts holds its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpertFormat {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Codes of 8 bits. Each vector has a scale and a bias, f16 both: a number is `scale · code + bias`.
    Int8,
    /// Codes of 4 bits, likewise.
    Int4,
    /// 8-bit floating point (OCP's E4M3). Each vector has a scale, a power of two.
    F8E4M3,
}

impl ExpertFormat {
    /// Every format.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::Int8, Self::Int4, Self::F8E4M3];

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::F8E4M3 => "f8e4m3",
        }
    }

    /// The format that holds numbers of a type as they are; none for types that are no format.
    #[must_use]
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::Bf16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Bits of a number.
    #[must_use]
    pub const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Int8 | Self::F8E4M3 => 8,
            Self::Int4 => 4,
        }
    }

    /// Whether each vector has a scale.
    #[must_use]
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4 | Self::F8E4M3)
    }

    /// Numbers of a chunk of 16 bytes.
    pub(crate) const fn chunk(self) -> usize {
        CHUNK_BYTES * 8 / self.bits()
    }
}

impl core::fmt::Display for ExpertFormat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// The sizes of experts, and the layout of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    format: ExpertFormat,
    d: usize,
    hidden: usize,
    o: usize,
    gated: bool,
}

/// The vectors of an expert: u `[hidden, d]`, w likewise or empty, v `[hidden, o]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertVectors<'a> {
    /// What x is multiplied with.
    pub u: &'a [f32],
    /// What x is multiplied with for the gate of a gated linear unit; empty without.
    pub w: &'a [f32],
    /// What the hidden units contribute to y.
    pub v: &'a [f32],
}

/// One of a unit's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What x is multiplied with.
    U,
    /// What the unit contributes to y.
    V,
    /// What x is multiplied with for the gate.
    W,
}

impl ExpertLayout {
    /// Experts of `hidden` hidden units from `d` inputs to `o` outputs, whose units are gated (`act(x·u) · (x·w)`) if `gated`.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if there are no hidden units or more than 65536, or if a vector has 2³¹ bytes or more.
    pub fn new(format: ExpertFormat, d: usize, hidden: usize, o: usize, gated: bool) -> Result<Self> {
        let limit = |quantity, limit: String, actual: usize| {
            let (operation, operand, actual) = ("ExpertLayout::new", "experts", actual.to_string());
            Err(Error::SizeLimit { operation, operand, quantity, limit, actual })
        };
        if !(1..=HIDDEN_LIMIT).contains(&hidden) {
            return limit("number of hidden units", format!("1 to {HIDDEN_LIMIT}"), hidden);
        }
        for (quantity, length) in [("number of inputs", d), ("number of outputs", o)] {
            // Kernels count numbers with 32 bits, with room for what they add.
            if length as u64 >= ROW_LIMIT / 4 {
                return limit(quantity, format!("less than {}", ROW_LIMIT / 4), length);
            }
        }
        let layout = Self { format, d, hidden, o, gated };
        if layout.unit_bytes() as u64 > u64::from(u32::MAX) {
            return limit(
                "number of bytes of a hidden unit",
                format!("at most {}", u32::MAX),
                layout.unit_bytes(),
            );
        }
        Ok(layout)
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> ExpertFormat {
        self.format
    }

    /// Inputs of an expert.
    #[must_use]
    pub fn d(&self) -> usize {
        self.d
    }

    /// Hidden units of an expert.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Outputs of an expert.
    #[must_use]
    pub fn o(&self) -> usize {
        self.o
    }

    /// Whether the hidden units are gated.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// Chunks of u, and of w.
    pub(super) fn input_chunks(&self) -> usize {
        self.d.div_ceil(self.format.chunk())
    }

    /// Chunks of v.
    pub(super) fn output_chunks(&self) -> usize {
        self.o.div_ceil(self.format.chunk())
    }

    /// Bytes of u, and of w.
    pub(crate) fn input_bytes(&self) -> usize {
        self.input_chunks() * CHUNK_BYTES
    }

    /// Where a unit's v begins.
    pub(crate) fn v_at(&self) -> usize {
        self.input_bytes() * if self.gated { 2 } else { 1 }
    }

    /// Where a unit's scales begin, of formats that have them.
    pub(crate) fn scales_at(&self) -> usize {
        self.v_at() + self.output_chunks() * CHUNK_BYTES
    }

    /// Bytes of a hidden unit.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.scales_at() + if self.format.is_scaled() { CHUNK_BYTES } else { 0 }
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        // Rows of no numbers are counted by their bytes too.
        (self.hidden * self.unit_bytes()).max(1).next_multiple_of(ROW_ALIGNMENT)
    }

    /// Numbers of an expert's u, w and v.
    pub(super) fn lengths(&self) -> [usize; 3] {
        let input = self.hidden * self.d;
        [input, if self.gated { input } else { 0 }, self.hidden * self.o]
    }

    /// Where a vector begins in its unit, and how many numbers it has.
    pub(crate) fn place(&self, part: Part) -> (usize, usize) {
        match part {
            Part::U => (0, self.d),
            Part::W => (self.input_bytes(), self.d),
            Part::V => (self.v_at(), self.o),
        }
    }

    /// Where the word of a vector's scale and bias is in its unit.
    fn word(&self, part: Part) -> usize {
        self.scales_at()
            + match part {
                Part::U => 0,
                Part::V => 4,
                Part::W => 8,
            }
    }

    /// Writes an expert to its row, all of which is overwritten. Numbers are rounded to the nearest that the format has; of formats that
    /// scale, each vector gets the scale (and bias) that its largest and smallest number ask for.
    ///
    /// Of [`Int8`](ExpertFormat::Int8) and [`Int4`](ExpertFormat::Int4) the bias is the smallest number rounded down, the scale the 255th
    /// or 15th part of what it takes from there to the largest, rounded up: no number is off by more than half a scale. Of
    /// [`F8E4M3`](ExpertFormat::F8E4M3) the scale is the smallest power of two with which the largest magnitude is at most 448: a number is off
    /// by at most a 16th of itself, or 2⁻¹⁰ of the scale if that is more.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if a vector or the row has another length than the layout says, [`Error::Argument`] if the format scales and a number is not
    /// finite or beyond what scale and bias hold.
    pub fn pack(&self, expert: ExpertVectors<'_>, row: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "ExpertLayout::pack";
        self.expect_lengths(OPERATION, expert, row.len())?;
        row.fill(0);
        let (d, o) = (self.d, self.o);
        for (index, unit) in row.chunks_exact_mut(self.unit_bytes().max(1)).take(self.hidden).enumerate() {
            self.pack_vector(&expert.u[index * d..][..d], unit, Part::U)?;
            if self.gated {
                self.pack_vector(&expert.w[index * d..][..d], unit, Part::W)?;
            }
            self.pack_vector(&expert.v[index * o..][..o], unit, Part::V)?;
        }
        Ok(())
    }

    fn pack_vector(&self, values: &[f32], unit: &mut [u8], part: Part) -> Result<()> {
        let (at, _) = self.place(part);
        let word = self.word(part);
        let target = &mut unit[at..];
        let codes = match self.format {
            ExpertFormat::F32 => {
                for (target, value) in target.chunks_exact_mut(4).zip(values) {
                    target.copy_from_slice(&value.to_le_bytes());
                }
                return Ok(());
            }
            ExpertFormat::F16 => {
                for (target, &value) in target.chunks_exact_mut(2).zip(values) {
                    target.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
                return Ok(());
            }
            ExpertFormat::Bf16 => {
                for (target, &value) in target.chunks_exact_mut(2).zip(values) {
                    target.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
                }
                return Ok(());
            }
            ExpertFormat::Int8 => Codes::of_integers(values, 255)?,
            ExpertFormat::Int4 => Codes::of_integers(values, 15)?,
            ExpertFormat::F8E4M3 => Codes::of_floats(values)?,
        };
        for (index, &value) in values.iter().enumerate() {
            let code = codes.code(value);
            match self.format {
                ExpertFormat::Int4 => target[index / 2] |= code << (index % 2 * 4),
                _ => target[index] = code,
            }
        }
        unit[word..word + 4].copy_from_slice(&codes.word().to_le_bytes());
        Ok(())
    }

    /// The numbers that a row stands for, rounded to f32 where that does not hold them: u, w and v of all hidden units, as
    /// [`pack`](Self::pack) takes them.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the row has another length than the layout says.
    pub fn unpack(&self, row: &[u8]) -> Result<[Vec<f32>; 3]> {
        self.expect_row("ExpertLayout::unpack", row.len())?;
        let mut vectors = [Vec::new(), Vec::new(), Vec::new()];
        for index in 0..self.hidden {
            for (part, vector) in [Part::U, Part::W, Part::V].into_iter().zip(&mut vectors) {
                if part == Part::W && !self.gated {
                    continue;
                }
                let start = vector.len();
                vector.resize(start + self.place(part).1, 0.0);
                let [scale, bias] = self.decode(row, index, part, &mut vector[start..]);
                if self.format.is_scaled() {
                    for value in &mut vector[start..] {
                        *value = (f64::from(scale) * f64::from(*value) + f64::from(bias)) as f32;
                    }
                }
            }
        }
        Ok(vectors)
    }

    /// The numbers of a vector, or their codes, and the scale and the bias that make numbers of codes: 1 and 0 of formats without.
    #[doc(hidden)]
    pub fn decode(&self, row: &[u8], unit: usize, part: Part, target: &mut [f32]) -> [f32; 2] {
        let unit = &row[unit * self.unit_bytes()..][..self.unit_bytes()];
        let (at, _) = self.place(part);
        let source = &unit[at..];
        match self.format {
            ExpertFormat::F32 => {
                for (target, bytes) in target.iter_mut().zip(source.chunks_exact(4)) {
                    *target = bytemuck::pod_read_unaligned(bytes);
                }
            }
            ExpertFormat::F16 => {
                for (target, bytes) in target.iter_mut().zip(source.chunks_exact(2)) {
                    *target = bytemuck::pod_read_unaligned::<f16>(bytes).to_f32();
                }
            }
            ExpertFormat::Bf16 => {
                for (target, bytes) in target.iter_mut().zip(source.chunks_exact(2)) {
                    *target = bytemuck::pod_read_unaligned::<bf16>(bytes).to_f32();
                }
            }
            ExpertFormat::Int8 => {
                for (target, &code) in target.iter_mut().zip(source) {
                    *target = code.into();
                }
            }
            ExpertFormat::Int4 => {
                for (index, target) in target.iter_mut().enumerate() {
                    *target = (source[index / 2] >> (index % 2 * 4) & 0xf).into();
                }
            }
            ExpertFormat::F8E4M3 => {
                for (target, &code) in target.iter_mut().zip(source) {
                    *target = F8E4M3::from_bits(code).to_f32();
                }
            }
        }
        let word = || u32::from_le_bytes(bytemuck::pod_read_unaligned(&unit[self.word(part)..][..4]));
        match self.format {
            ExpertFormat::Int8 | ExpertFormat::Int4 => {
                let word = word();
                [word as u16, (word >> 16) as u16].map(|bits| f16::from_bits(bits).to_f32())
            }
            ExpertFormat::F8E4M3 => [f32::from_bits(word()), 0.0],
            _ => [1.0, 0.0],
        }
    }

    pub(crate) fn expect_row(&self, operation: &'static str, length: usize) -> Result<()> {
        expect_length(operation, "row", self.row_bytes(), length)
    }

    fn expect_lengths(&self, operation: &'static str, expert: ExpertVectors<'_>, row: usize) -> Result<()> {
        let [u, w, v] = self.lengths();
        expect_length(operation, "u", u, expert.u.len())?;
        expect_length(operation, "w", w, expert.w.len())?;
        expect_length(operation, "v", v, expert.v.len())?;
        self.expect_row(operation, row)
    }
}

fn expect_length(
    operation: &'static str,
    operand: &'static str,
    expected: usize,
    actual: usize,
) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    let expected = format!("[{expected}], as the layout says");
    Err(Error::Shape { operation, operand, expected, actual: vec![actual] })
}

#[cfg(test)]
mod tests;
