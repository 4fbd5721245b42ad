//! A and B as numbers, in the order in which the kernels want them, and which of them were written.

use crate::ir::types::Ty;
use crate::memory::local::Bytes;
use crate::numeric::half::{bf16_to_f32, f16_to_f32};
use crate::numeric::narrow::{E4M3, e5m2_to_f32};

/// The most terms that a sum has.
pub(super) const K: usize = 32;

/// What sums are made of: f32, which holds every value of the narrower floats, or i32.
pub(crate) trait Number: Copy + Default + Send + Sync + 'static {
    /// The numbers in the 32 bytes of a row of A or a column of B.
    fn convert(ty: Ty, bytes: &[u8; 32], to: &mut [Self; K]);
    fn negative(self) -> Self;
    /// `self · b + c`.
    fn multiply_add(self, b: Self, c: Self) -> Self;
    fn from_bits(bits: u32) -> Self;
    fn to_bits(self) -> u32;
    /// As f32, where it is one.
    fn single(self) -> f32;
}

impl Number for f32 {
    #[inline(always)]
    fn convert(ty: Ty, bytes: &[u8; 32], to: &mut [Self; K]) {
        let halves = bytes.as_chunks::<2>().0;
        match ty {
            Ty::F16 => {
                for (value, half) in to.iter_mut().zip(halves) {
                    *value = f16_to_f32(u16::from_le_bytes(*half));
                }
            }
            Ty::Bf16 => {
                for (value, half) in to.iter_mut().zip(halves) {
                    *value = bf16_to_f32(u16::from_le_bytes(*half));
                }
            }
            Ty::Tf32 => {
                for (value, word) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    // The low 13 bits do not count.
                    *value = f32::from_bits(u32::from_le_bytes(*word) & !0x1fff);
                }
            }
            Ty::E4m3 => {
                for (value, &byte) in to.iter_mut().zip(bytes) {
                    *value = E4M3[usize::from(byte)];
                }
            }
            _ => {
                for (value, &byte) in to.iter_mut().zip(bytes) {
                    *value = e5m2_to_f32(byte);
                }
            }
        }
    }
    #[inline(always)]
    fn negative(self) -> Self {
        -self
    }
    #[inline(always)]
    fn multiply_add(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn single(self) -> f32 {
        self
    }
}

impl Number for i32 {
    #[inline(always)]
    fn convert(ty: Ty, bytes: &[u8; 32], to: &mut [Self; K]) {
        for (value, &byte) in to.iter_mut().zip(bytes) {
            *value = if ty == Ty::S8 { i32::from(byte.cast_signed()) } else { i32::from(byte) };
        }
    }
    #[inline(always)]
    fn negative(self) -> Self {
        -self
    }
    #[inline(always)]
    fn multiply_add(self, b: Self, c: Self) -> Self {
        self.wrapping_mul(b).wrapping_add(c)
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits.cast_signed()
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        self.cast_unsigned()
    }
    #[inline(always)]
    fn single(self) -> f32 {
        self as f32
    }
}

/// Bytes of a matrix in shared memory, row by row of 32 (of A) or column by column (of B), and a bit for each that was
/// written.
#[derive(Default)]
pub(crate) struct Raw {
    lines: Vec<[u8; 32]>,
    written: Vec<u32>,
}

impl Raw {
    /// Reads the units at these offsets, which are inside; see
    /// [`Descriptor::units`](super::descriptor::Descriptor::units) for their order.
    pub(crate) fn read(&mut self, shared: &Bytes, units: &[u32], transposed: bool) {
        let lines = units.len() / 2;
        self.lines.clear();
        self.lines.resize(lines, [0; 32]);
        self.written.clear();
        self.written.resize(lines, 0);
        if transposed {
            // A unit has 8 halves, one of each of 8 lines.
            for (i, &unit) in units.iter().enumerate() {
                let (k, first) = (i / (lines / 8), i % (lines / 8) * 8);
                let (bytes, bits) = block(shared, unit);
                for line in 0..8 {
                    self.lines[first + line][2 * k..2 * k + 2]
                        .copy_from_slice(&bytes[2 * line..2 * line + 2]);
                    self.written[first + line] |= (bits >> (2 * line) & 3) << (2 * k);
                }
            }
        } else {
            for (i, [low, high]) in units.as_chunks::<2>().0.iter().enumerate() {
                let (bytes, bits) = block(shared, *low);
                self.lines[i][..16].copy_from_slice(&bytes);
                let (bytes, more) = block(shared, *high);
                self.lines[i][16..].copy_from_slice(&bytes);
                self.written[i] = bits | more << 16;
            }
        }
    }

    /// The 16 rows that the four registers of A hold.
    pub(crate) fn gather(&mut self, registers: [(&[u32; 32], u32); 4]) {
        self.lines.clear();
        self.lines.resize(16, [0; 32]);
        self.written.clear();
        self.written.resize(16, 0);
        for (r, (register, written)) in registers.into_iter().enumerate() {
            for lane in 0..32 {
                let (row, at) = (lane / 4 + r % 2 * 8, lane % 4 * 4 + r / 2 * 16);
                self.lines[row][at..at + 4].copy_from_slice(&register[lane].to_le_bytes());
                self.written[row] |= ((written >> lane & 1) * 0xf) << at;
            }
        }
    }

    /// The lines of which every byte was written; `None` says all.
    fn known(&self) -> Option<[u64; 4]> {
        if self.written.iter().all(|&w| w == u32::MAX) {
            return None;
        }
        let mut known = [0; 4];
        for (line, &written) in self.written.iter().enumerate() {
            known[line / 64] |= u64::from(written == u32::MAX) << (line % 64);
        }
        Some(known)
    }
}

/// A unit; one outside of shared memory, which the launch has allowed, is of zeros.
#[inline(always)]
fn block(shared: &Bytes, unit: u32) -> ([u8; 16], u32) {
    if unit as usize + 16 <= shared.len() { shared.load_block(unit as usize) } else { ([0; 16], 0xffff) }
}

/// The 16 rows of A that a warp has.
pub(crate) struct Rows<T> {
    /// For each k and each half of the rows, the value of every lane's row: lane / 4, or 8 more in the second half.
    pub(super) values: Vec<[[T; 32]; 2]>,
    /// The rows that were written as a whole.
    known: Option<[u64; 4]>,
}

impl<T: Number> Rows<T> {
    #[cfg(test)]
    pub(super) fn from_fn(k: usize, value: impl Fn(usize, usize) -> T) -> Self {
        let half = |k: usize, half: usize| std::array::from_fn(|lane| value(lane / 4 + 8 * half, k));
        Self { values: (0..k).map(|k| [half(k, 0), half(k, 1)]).collect(), known: None }
    }

    pub(crate) fn new(raw: &Raw, ty: Ty, negate: bool) -> Self {
        let mut values = vec![[[T::default(); 32]; 2]; 32 / ty.bytes() as usize];
        let mut row = [T::default(); K];
        for (i, line) in raw.lines.iter().enumerate() {
            T::convert(ty, line, &mut row);
            for (k, values) in values.iter_mut().enumerate() {
                let value = if negate { row[k].negative() } else { row[k] };
                values[i / 8][i % 8 * 4..i % 8 * 4 + 4].fill(value);
            }
        }
        Self { values, known: raw.known() }
    }
}

/// B, whose columns all warps of the warpgroup share.
pub(crate) struct Columns<T> {
    /// For each 8 columns, for each k: the even columns, then the odd ones.
    pub(super) values: Vec<[T; 8]>,
    pub(super) k: usize,
    known: Option<[u64; 4]>,
}

impl<T: Number> Columns<T> {
    #[cfg(test)]
    pub(super) fn from_fn(n: usize, k: usize, value: impl Fn(usize, usize) -> T) -> Self {
        let column = |at: usize, i: usize| at / k * 8 + i % 4 * 2 + i / 4;
        let values = (0..n / 8 * k).map(|at| std::array::from_fn(|i| value(column(at, i), at % k))).collect();
        Self { values, k, known: None }
    }

    pub(crate) fn new(raw: &Raw, ty: Ty, negate: bool) -> Self {
        let k_size = 32 / ty.bytes() as usize;
        let mut values = vec![[T::default(); 8]; raw.lines.len() / 8 * k_size];
        let mut columns = [[T::default(); K]; 8];
        for (lines, values) in raw.lines.as_chunks::<8>().0.iter().zip(values.chunks_exact_mut(k_size)) {
            for (column, line) in columns.iter_mut().zip(lines) {
                T::convert(ty, line, column);
            }
            for (k, values) in values.iter_mut().enumerate() {
                for (i, value) in values.iter_mut().enumerate() {
                    let given = columns[i % 4 * 2 + i / 4][k];
                    *value = if negate { given.negative() } else { given };
                }
            }
        }
        Self { values, k: k_size, known: raw.known() }
    }
}

/// The lanes of each register of the result that depend on written values only, apart from the old result.
pub(crate) fn known_results<T>(a: &Rows<T>, b: &Columns<T>, halves: bool, register: usize) -> u32 {
    if a.known.is_none() && b.known.is_none() {
        return u32::MAX;
    }
    let row = |row: usize| a.known.is_none_or(|known| known[0] >> row & 1 == 1);
    let column = |column: usize| b.known.is_none_or(|known| known[column / 64] >> (column % 64) & 1 == 1);
    (0..32).fold(0, |lanes, lane| {
        let (g, t) = (lane / 4, lane % 4);
        let known = if halves {
            let first = register / 2 * 8 + 2 * t;
            row(g + register % 2 * 8) && column(first) && column(first + 1)
        } else {
            row(g + register / 2 % 2 * 8) && column(register / 4 * 8 + 2 * t + register % 2)
        };
        lanes | u32::from(known) << lane
    })
}
