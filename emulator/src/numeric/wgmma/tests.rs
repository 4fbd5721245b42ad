//! The kernels against the plain sums that they stand for.

use super::*;
use crate::numeric::wgmma::operand::{Columns, Rows};

fn shape(n: u16, a: Ty, accumulator: Ty) -> Wgmma {
    Wgmma {
        n,
        a,
        b: a,
        accumulator,
        registers: false,
        negate: [false; 2],
        transpose: [false; 2],
        satfinite: false,
    }
}

fn operands<T: Number>(
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> T,
    b: impl Fn(usize, usize) -> T,
) -> (Rows<T>, Columns<T>) {
    (Rows::from_fn(k, a), Columns::from_fn(n, k, b))
}

#[test]
fn every_register_holds_its_row_and_column() {
    // A product of small integers, which every kernel computes without rounding.
    let (n, k) = (24, 16);
    let a = |row: usize, k: usize| ((row * 5 + k * 3) % 7) as f32 - 3.0;
    let b = |column: usize, k: usize| ((column * 11 + k * 2) % 5) as f32 - 2.0;
    let (rows, columns) = operands(n, k, a, b);
    for accumulator in [Ty::F32, Ty::F16] {
        for model in [None, Some(Model::Hopper)] {
            for level in Level::all() {
                let shape = shape(n as u16, Ty::F16, accumulator);
                let mut registers = vec![[0xdead_beef; 32]; shape.accumulators()];
                product(&rows, &columns, shape, true, model, level, &mut registers);
                // Once more, on top.
                product(&rows, &columns, shape, false, model, level, &mut registers);
                for (i, register) in registers.iter().enumerate() {
                    for (lane, &bits) in register.iter().enumerate() {
                        let (g, t) = (lane / 4, lane % 4);
                        let sum = |row: usize, column: usize| {
                            2.0 * (0..k).map(|k| a(row, k) * b(column, k)).sum::<f32>()
                        };
                        if accumulator == Ty::F32 {
                            let expected = sum(g + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * t + i % 2);
                            assert_eq!(f32::from_bits(bits), expected, "register {i}, lane {lane}");
                        } else {
                            let half = |h: u32| f16_to_f32((bits >> (16 * h)) as u16);
                            let (row, column) = (g + 8 * (i % 2), 8 * (i / 2) + 2 * t);
                            let expected = [sum(row, column), sum(row, column + 1)];
                            assert_eq!([half(0), half(1)], expected, "register {i}, lane {lane}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn integers_wrap_unless_they_are_to_stop() {
    let (rows, columns) = operands(8, 32, |_, _| 127, |_, _| 127);
    let mut shape = shape(8, Ty::S8, Ty::S32);
    for (satfinite, expected) in [(false, (i32::MAX - 5).wrapping_add(32 * 127 * 127)), (true, i32::MAX)] {
        shape.satfinite = satfinite;
        let mut registers = vec![[(i32::MAX - 5).cast_unsigned(); 32]; 4];
        product(&rows, &columns, shape, false, None, Level::detect(), &mut registers);
        assert_eq!(registers, vec![[expected.cast_unsigned(); 32]; 4]);
    }
}
