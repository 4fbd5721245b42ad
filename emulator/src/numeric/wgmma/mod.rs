//! The products of `wgmma.mma_async`, for the 16 rows that one warp of the warpgroup has.
//!
//! | module | what it does |
//! |---|---|
//! | `descriptor` | where a matrix is in shared memory |
//! | `operand` | A and B as numbers, in the order in which the kernels want them |
//! | `kernel` | the product in plain f32, and that of integers |
//! | `exact` | the product as the tensor cores add |
//!
//! With g = lane / 4 and t = lane % 4, register i of the result holds row g + 8·(i / 2 mod 2), column 8·(i / 4) + 2t + i mod 2
//! of the warp's rows. Of f16 results, register i holds row g + 8·(i mod 2), columns 8·(i / 2) + 2t and the next. A in
//! registers is held as by `mma.sync`.

pub(crate) mod descriptor;
mod exact;
mod kernel;
pub(crate) mod operand;

use self::operand::{Columns, Number, Rows};
use super::half::{NAN32, f16_to_f32, f32_to_f16};
use super::mma::{Model, exact_half};
use crate::exec::code::Level;
use crate::ir::op::Wgmma;
use crate::ir::types::Ty;

/// Adds the product to the registers of the result, or with `fresh` puts it there.
pub(crate) fn product<T: Number>(
    a: &Rows<T>,
    b: &Columns<T>,
    shape: Wgmma,
    fresh: bool,
    model: Option<Model>,
    level: Level,
    registers: &mut Vec<[u32; 32]>,
) {
    let halves = shape.accumulator == Ty::F16;
    if fresh {
        registers.clear();
        registers.resize(shape.n as usize / 2, [0; 32]);
    } else if halves {
        widen(registers);
    }
    match model {
        Some(model) if shape.accumulator != Ty::S32 => exact::product(a, b, shape, model, level, registers),
        _ => kernel::product(a, b, shape.satfinite, level, registers),
    }
    if halves {
        narrow(registers, model.is_some());
    } else if shape.accumulator == Ty::F32 {
        for register in registers {
            for value in register {
                let nan = *value & 0x7fff_ffff > 0x7f80_0000;
                *value = if nan { NAN32 } else { *value };
            }
        }
    }
}

/// Registers of pairs of f16 to twice as many of f32.
fn widen(registers: &mut Vec<[u32; 32]>) {
    let wide = |register: &[u32; 32], half: u32| {
        register.map(|pair| f16_to_f32((pair >> (16 * half)) as u16).to_bits())
    };
    *registers = registers.iter().flat_map(|r| [wide(r, 0), wide(r, 1)]).collect();
}

/// The inverse of [`widen`].
fn narrow(registers: &mut Vec<[u32; 32]>, exact: bool) {
    let half = |bits: u32| {
        let sum = f32::from_bits(bits);
        u32::from(if exact { exact_half(sum) } else { f32_to_f16(sum) })
    };
    let pairs = registers.as_chunks::<2>().0;
    *registers =
        pairs.iter().map(|[low, high]| std::array::from_fn(|l| half(high[l]) << 16 | half(low[l]))).collect();
}

#[cfg(test)]
mod tests;
