//! The low-rank update of a problem: V, U and the codes of two updates, as bytes and as what they add to a row of products.

use warpsmith_kernels::codes::{Codes, MAX_UPDATES};

use super::numbers::Float;
use super::size::Size;
use warpsmith_dsl::launch::Global;

/// What the updates are multiplied with.
const SCALING: [f32; 2] = [1.0, 2.0];

/// The operands of an update, followed by NaNs as those of the product.
pub(super) struct Update {
    of: Float,
    ranks: [u32; 2],
    /// Vᵀ, U and the codes of each update.
    pub(super) bytes: [Vec<u8>; 4],
    /// Elements from row to row of each.
    pub(super) strides: [u64; 4],
}

/// V's element (index along K, rank). Most are zero, so that `H ⊙ codes` stays among the integers that all types hold.
fn v(k: u32, rank: u32) -> f32 {
    if (k * 3 + rank * 5).is_multiple_of(7) { [1.0, -1.0][(k + rank / 2) as usize % 2] } else { 0.0 }
}

fn u(size: &Size, rank: u32, column: u32) -> f32 {
    // The sum's sign is that of one rank coordinate.
    if size.infinite && column % 4 == 1 && rank == column % (size.ranks[0] + size.ranks[1]) {
        return f32::INFINITY;
    }
    ((rank * 5 + column * 3 + rank * column) % 5) as f32 - 2.0
}

fn code(update: usize, row: u32, rank: u32) -> f32 {
    let step = [3, 4][update];
    ((row * step + rank * 5 + row * rank) % 4) as f32 - 1.0
}

impl Update {
    pub(super) fn new(of: Float, size: &Size) -> Self {
        let ranks = size.ranks;
        let total = ranks[0] + ranks[1];
        let matrix = |rows: u32, columns: u32, value: &dyn Fn(u32, u32) -> f32| {
            let stride = columns.next_multiple_of(of.chunk()) + of.chunk();
            let length = if rows * columns == 0 { 0 } else { (rows - 1) * stride + columns };
            let mut bytes = vec![0; (length * of.bytes()) as usize];
            for at in 0..length {
                let (row, column) = (at / stride, at % stride);
                let value = if column < columns { value(row, column) } else { f32::NAN };
                of.put(value, at as usize, &mut bytes);
            }
            (bytes, u64::from(stride))
        };
        let codes_rows = |update: usize| size.m.div_ceil(size.code_rows[update]);
        let all = [
            matrix(total, size.k, &|rank, k| v(k, rank)),
            matrix(total, size.n, &|rank, column| u(size, rank, column)),
            matrix(codes_rows(0), ranks[0], &|row, rank| code(0, row, rank)),
            matrix(codes_rows(1), ranks[1], &|row, rank| code(1, row, rank)),
        ];
        let strides = [all[0].1, all[1].1, all[2].1, all[3].1];
        Self { of, ranks, bytes: all.map(|(bytes, _)| bytes), strides }
    }

    /// A row of `(X V) ⊙ codes`, for a row of X, rounded.
    pub(super) fn hidden(&self, size: &Size, row: u32, x: impl Fn(u32) -> f32) -> Vec<f32> {
        let total = self.ranks[0] + self.ranks[1];
        let scaled = |rank: u32| {
            let sum: f32 = (0..size.k).map(|k| x(k) * v(k, rank)).sum();
            let (update, own) = if rank < self.ranks[0] { (0, rank) } else { (1, rank - self.ranks[0]) };
            sum * code(update, row / size.code_rows[update], own) * SCALING[update]
        };
        let mut rounded = vec![0; self.of.bytes() as usize];
        let round = |value: f32| {
            self.of.put(value, 0, &mut rounded);
            self.of.get(0, &rounded)
        };
        (0..total).map(scaled).map(round).collect()
    }

    /// What is added to the product in column `column` of a row.
    pub(super) fn added(&self, size: &Size, hidden: &[f32], column: u32) -> f32 {
        hidden.iter().zip(0..).map(|(hidden, rank)| hidden * u(size, rank, column)).sum()
    }

    /// The codes at these addresses, as kernels take them.
    pub(super) fn codes(&self, size: &Size, addresses: [u64; 2]) -> Codes<u8> {
        let total = self.ranks[0] + self.ranks[1];
        let mut codes = Codes {
            codes: [Global::new(addresses[0]); MAX_UPDATES],
            strides: [self.strides[2]; MAX_UPDATES],
            ends: [total; MAX_UPDATES],
            rows: size.code_rows.map(|rows| [rows; MAX_UPDATES])[0],
            scaling: [SCALING[0]; MAX_UPDATES],
        };
        codes.ends[0] = self.ranks[0];
        codes.codes[1] = Global::new(addresses[1]);
        codes.strides[1] = self.strides[3];
        codes.rows[1] = size.code_rows[1];
        codes.scaling[1] = SCALING[1];
        codes
    }
}
