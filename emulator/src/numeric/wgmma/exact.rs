//! The product as the tensor cores add: see [`mma::Model`](crate::numeric::mma::Model).

use super::operand::{Columns, Number, Rows};
use crate::exec::code::Level;
use crate::ir::op::Wgmma;
use crate::numeric::mma::{Matrices, Model, Rules, exact_product};

/// Adds the product to the result's registers, eight columns at a time.
pub(super) fn product<T: Number>(
    a: &Rows<T>,
    b: &Columns<T>,
    shape: Wgmma,
    model: Model,
    level: Level,
    registers: &mut [[u32; 32]],
) {
    let rules = Rules::new(model, shape.a, shape.b, shape.accumulator);
    match shape.k() {
        8 | 16 => dispatch::<T, 16>(a, b, rules, level, registers),
        _ => dispatch::<T, 32>(a, b, rules, level, registers),
    }
}

fn dispatch<T: Number, const K: usize>(
    a: &Rows<T>,
    b: &Columns<T>,
    rules: Rules,
    level: Level,
    registers: &mut [[u32; 32]],
) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain {
        // SAFETY: the level says that the host has these instructions.
        return unsafe { vector::<T, K>(a, b, rules, registers) };
    }
    let _ = level;
    columns::<T, K>(a, b, rules, registers);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn vector<T: Number, const K: usize>(a: &Rows<T>, b: &Columns<T>, rules: Rules, registers: &mut [[u32; 32]]) {
    columns::<T, K>(a, b, rules, registers);
}

#[inline(always)]
fn columns<T: Number, const K: usize>(
    a: &Rows<T>,
    b: &Columns<T>,
    rules: Rules,
    registers: &mut [[u32; 32]],
) {
    let mut m = Matrices::<K> { a: [[0.0; K]; 16], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] };
    for (k, values) in a.values.iter().enumerate() {
        for row in 0..16 {
            m.a[row][k] = values[row / 8][row % 8 * 4].single();
        }
    }
    // Where the sum of a row and a column stands among four registers.
    let place = |row: usize, column: usize| (row / 8 * 2 + column % 2, row % 8 * 4 + column / 2);
    for (sums, columns) in registers.as_chunks_mut::<4>().0.iter_mut().zip(b.values.chunks_exact(b.k)) {
        for (k, values) in columns.iter().enumerate() {
            for column in 0..8 {
                m.b[k][column] = values[column / 2 + column % 2 * 4].single();
            }
        }
        for row in 0..16 {
            for column in 0..8 {
                let (register, lane) = place(row, column);
                m.c[row][column] = f32::from_bits(sums[register][lane]);
            }
        }
        let d = exact_product(&m, b.k, rules);
        for row in 0..16 {
            for column in 0..8 {
                let (register, lane) = place(row, column);
                sums[register][lane] = d[row][column].to_bits();
            }
        }
    }
}
