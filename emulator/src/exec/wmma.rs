//! Products of `wmma`, and those of `mma` that have few rows.
//!
//! The elements of a matrix are dealt out line by line: a lane has as many in a row as its registers hold. The
//! lines of A and B
//! are those in memory, of a sum its rows.

use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::registers::Slot;
use crate::config::Numerics;
use crate::ir::forms::wmma_per_lane;
use crate::ir::op::{Mma, Op, Wmma};
use crate::ir::types::Ty;
use crate::numeric::float::propagate64;
use crate::numeric::half::{f16_to_f32, f32_to_f16};
use crate::numeric::mma::{self, Fragments, Model};

/// The handler that computes where a lane's elements are in memory.
pub(crate) fn address(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::WmmaAddress(part) = inst.op else { return Flow::Next };
        if let Err(flow) = core.whole_warp("wmma") {
            return flow;
        }
        let [to, base, stride, ..] = inst.slots;
        let bases = match core.addresses(base, inst.immediates[0]) {
            Ok(bases) => bases,
            Err(flow) => return flow,
        };
        let missing = core.warp.mask & !u32::written(core, stride);
        if missing != 0 && core.launch.checks.uninitialised {
            return core.uninitialised(missing, "the stride of a matrix");
        }
        let strides = *u32::read(core, stride);
        let first = inst.immediates[1] as u64;
        let addresses = std::array::from_fn(|lane| {
            let element = (lane as u64 * u64::from(part.per_lane) + first) % u64::from(part.total);
            let (line, place) = (element / u64::from(part.line), element % u64::from(part.line));
            let stride = u64::from(strides[lane]);
            let index = if part.across { place * stride + line } else { line * stride + place };
            bases[lane].wrapping_add(index.wrapping_mul(u64::from(part.bytes)))
        });
        u64::write(core, to, &addresses, u32::MAX);
        Flow::Next
    })
}

/// The operands of an instruction, however many there are.
fn slot(inst: &Inst, index: usize) -> Slot {
    if inst.all.is_empty() { inst.slots[index] } else { inst.all[index] }
}

/// The bits of a matrix of 32-bit registers, by row and column.
struct Matrix<'c> {
    registers: Vec<&'c [u32; 32]>,
    /// Elements of a line, and whether lines are columns.
    line: usize,
    columns: bool,
    bytes: usize,
}

impl<'c> Matrix<'c> {
    fn read(
        core: &'c Core<'_>,
        inst: &Inst,
        (first, count): (usize, usize),
        (line, columns): (usize, bool),
        ty: Ty,
    ) -> Self {
        let registers = (first..first + count).map(|i| u32::read(core, slot(inst, i))).collect();
        Self { registers, line, columns, bytes: ty.bytes() as usize }
    }

    fn bits(&self, row: usize, column: usize) -> u32 {
        let element = if self.columns { column * self.line + row } else { row * self.line + column };
        let in_word = 4 / self.bytes;
        let word = element / in_word;
        let register = self.registers[word % self.registers.len()][word / self.registers.len() % 32];
        let bits = register >> (8 * self.bytes * (element % in_word));
        if self.bytes == 4 { bits } else { bits & ((1 << (8 * self.bytes)) - 1) }
    }
}

/// How many 32-bit registers hold a matrix of so many elements.
fn words(total: usize, ty: Ty) -> usize {
    usize::from(wmma_per_lane(total as u16, ty)) * ty.bytes() as usize / 4
}

/// The handler of `wmma.mma`.
pub(crate) fn product(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Wmma(shape) = inst.op else { return Flow::Next };
        if let Err(flow) = core.whole_warp("wmma") {
            return flow;
        }
        if shape.a == Ty::F64 {
            return doubles(core, inst, shape);
        }
        multiply(core, inst, shape);
        Flow::Next
    })
}

fn sums(shape: Wmma, ty: Ty) -> usize {
    usize::from(shape.m) * usize::from(shape.n) * ty.bytes() as usize / 128
}

fn multiply(core: &mut Core<'_>, inst: &Inst, shape: Wmma) {
    let (m, n, k) = (usize::from(shape.m), usize::from(shape.n), usize::from(shape.k));
    let counts = [sums(shape, shape.d), words(m * k, shape.a), words(k * n, shape.b), sums(shape, shape.c)];
    let first = [0, counts[0], counts[0] + counts[1], counts[0] + counts[1] + counts[2]];
    let known = (counts[0]..first[3] + counts[3]).all(|i| u32::written(core, slot(inst, i)) == u32::MAX);
    let line = |columns: bool, rows: usize, width: usize| (if columns { rows } else { width }, columns);
    let a = Matrix::read(core, inst, (first[1], counts[1]), line(shape.columns[0], m, k), shape.a);
    let b = Matrix::read(core, inst, (first[2], counts[2]), line(shape.columns[1], k, n), shape.b);
    let c = Matrix::read(core, inst, (first[3], counts[3]), (n, false), shape.c);
    let model = match core.launch.numerics {
        Numerics::Fast => None,
        Numerics::Exact if core.launch.hopper => Some(Model::Hopper),
        Numerics::Exact => Some(Model::Ampere),
    };
    let mut out = vec![[0u32; 32]; counts[0]];
    for (top, left) in (0..m).step_by(16).flat_map(|top| (0..n).step_by(8).map(move |left| (top, left))) {
        let sums = tile(shape, [&a, &b, &c], (top, left), (model, core.launch.level));
        for (row, column) in (top..m.min(top + 16)).flat_map(|r| (left..left + 8).map(move |c| (r, c))) {
            let bits = sums[row - top][column - left];
            let element = row * n + column;
            let in_word = 4 / shape.d.bytes() as usize;
            let word = element / in_word;
            let shift = if in_word == 2 { 16 * (element % 2) } else { 0 };
            out[word % counts[0]][word / counts[0]] |= bits << shift;
        }
    }
    let written = if known { u32::MAX } else { 0 };
    for (i, values) in out.iter().enumerate() {
        u32::write(core, slot(inst, i), values, written);
    }
}

/// The bits of 16 × 8 sums: one product of `mma`, whose fragments are put together from the matrices.
fn tile(
    shape: Wmma,
    [a, b, c]: [&Matrix<'_>; 3],
    (top, left): (usize, usize),
    (model, level): (Option<Model>, Level),
) -> [[u32; 8]; 16] {
    // A sum of f16 that starts from or ends in f32 is one of f32.
    let half = shape.c == Ty::F16 && shape.d == Ty::F16;
    let accumulator = match shape.d {
        Ty::S32 => Ty::S32,
        _ if half => Ty::F16,
        _ => Ty::F32,
    };
    let k = usize::from(shape.k);
    let (mut fa, mut fb, mut fc) = ([[0u32; 32]; 4], [[0u32; 32]; 2], [[0u32; 32]; 4]);
    let bits = 8 * shape.a.bytes() as usize;
    let width = 128 / bits;
    let at = |line: usize, k: usize| (4 * line + k % width * bits / 32, k % width * bits % 32);
    for step in 0..k {
        for row in 0..16.min(usize::from(shape.m) - top) {
            let (lane, shift) = at(row % 8, step);
            fa[2 * (step / width) + row / 8][lane] |= a.bits(top + row, step) << shift;
        }
        for column in 0..8 {
            let (lane, shift) = at(column, step);
            fb[step / width][lane] |= b.bits(step, left + column) << shift;
        }
    }
    for (row, column) in (0..16.min(usize::from(shape.m) - top)).flat_map(|r| (0..8).map(move |c| (r, c))) {
        let (lane, value) = (row % 8 * 4 + column / 2, c.bits(top + row, left + column));
        match (half, shape.c) {
            (true, _) => fc[row / 8][lane] |= value << (16 * (column % 2)),
            (_, Ty::F16) => fc[row / 8 * 2 + column % 2][lane] = f16_to_f32(value as u16).to_bits(),
            _ => fc[row / 8 * 2 + column % 2][lane] = value,
        }
    }
    let fragments = Fragments { a: fa.each_ref(), b: fb.each_ref(), c: fc.each_ref() };
    let one = Mma { k: shape.k, a: shape.a, b: shape.b, accumulator, satfinite: shape.satfinite };
    let mut out = [[0u32; 32]; 4];
    mma::product(&fragments, one, model, level, &mut out);
    std::array::from_fn(|row| {
        std::array::from_fn(|column| {
            let lane = row % 8 * 4 + column / 2;
            if half {
                return out[row / 8][lane] >> (16 * (column % 2)) & 0xffff;
            }
            let bits = out[row / 8 * 2 + column % 2][lane];
            if shape.d == Ty::F16 { u32::from(f32_to_f16(f32::from_bits(bits))) } else { bits }
        })
    })
}

/// A product of f64: 8 × 8 sums of 4 terms.
fn doubles(core: &mut Core<'_>, inst: &Inst, shape: Wmma) -> Flow {
    let known = (2..6).all(|i| u64::written(core, inst.slots[i]) == u32::MAX);
    let (a, b) = (*u64::read(core, inst.slots[2]), *u64::read(core, inst.slots[3]));
    let c = [*u64::read(core, inst.slots[4]), *u64::read(core, inst.slots[5])];
    let mut out = [[0u64; 32]; 2];
    for (row, column) in (0..8).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let element = row * 8 + column;
        let terms = (0..4).map(|k| {
            let a = a[if shape.columns[0] { k * 8 + row } else { row * 4 + k }];
            let b = b[if shape.columns[1] { column * 4 + k } else { k * 8 + column }];
            (a, b)
        });
        out[element % 2][element / 2] = sum(c[element % 2][element / 2], terms);
    }
    let written = if known { u32::MAX } else { 0 };
    for (i, values) in out.iter().enumerate() {
        u64::write(core, inst.slots[i], values, written);
    }
    Flow::Next
}

/// Fused multiply-adds in f64, on bits.
fn sum(first: u64, terms: impl Iterator<Item = (u64, u64)>) -> u64 {
    let result = terms.fold(f64::from_bits(first), |sum, (a, b)| {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        propagate64(a.mul_add(b, sum), [b, sum, a])
    });
    result.to_bits()
}

/// The handler of products of f64, and of those of integers in 8 rows. With g = lane / 4 and t = lane % 4, A's register i has
/// row g + 8·(i mod 2), column t + 4·(i / 2) of f64. Bytes 4t to 4t + 3 of row g of integers. B likewise, with the column for
/// the row. Sums are those of `mma`.
pub(crate) fn small(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::SmallMma { ty, rows, .. } = inst.op else { return Flow::Next };
        if let Err(flow) = core.whole_warp("mma") {
            return flow;
        }
        if ty == Ty::F64 {
            small_doubles(core, inst, usize::from(rows))
        } else {
            small_integers(core, inst)
        }
        Flow::Next
    })
}

fn small_doubles(core: &mut Core<'_>, inst: &Inst, rows: usize) {
    let Op::SmallMma { k, .. } = inst.op else { return };
    let (k, blocks) = (usize::from(k), rows / 8);
    let (results, of_a, of_b) = (2 * blocks, k / 4 * blocks, k / 4);
    let first = [results, results + of_a, results + of_a + of_b];
    let known = (results..first[2] + results).all(|i| u64::written(core, slot(inst, i)) == u32::MAX);
    let value = |i: usize, lane: usize| u64::read(core, slot(inst, i))[lane];
    let mut out = vec![[0u64; 32]; results];
    for (row, column) in (0..rows).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let (lane, register) = (row % 8 * 4 + column / 2, row / 8 * 2 + column % 2);
        let terms = (0..k).map(|step| {
            let a = value(first[0] + step / 4 * blocks + row / 8, row % 8 * 4 + step % 4);
            (a, value(first[1] + step / 4, column * 4 + step % 4))
        });
        out[register][lane] = sum(value(first[2] + register, lane), terms);
    }
    let written = if known { u32::MAX } else { 0 };
    for (i, values) in out.iter().enumerate() {
        u64::write(core, slot(inst, i), values, written);
    }
}

fn small_integers(core: &mut Core<'_>, inst: &Inst) {
    let Op::SmallMma { ty, b: other, satfinite, .. } = inst.op else { return };
    let [to0, to1, a, b, c0, c1, ..] = inst.slots;
    let known = [a, b, c0, c1].iter().all(|&slot| u32::written(core, slot) == u32::MAX);
    let (a, b) = (*u32::read(core, a), *u32::read(core, b));
    let c = [*u32::read(core, c0), *u32::read(core, c1)];
    let byte = |words: &[u32; 32], line: usize, k: usize, ty: Ty| {
        let byte = (words[4 * line + k / 4] >> (8 * (k % 4))) as u8;
        if ty.is_signed() { i64::from(byte.cast_signed()) } else { i64::from(byte) }
    };
    let mut out = [[0u32; 32]; 2];
    for (row, column) in (0..8).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let lane = row * 4 + column / 2;
        let products = (0..16).map(|k| byte(&a, row, k, ty) * byte(&b, column, k, other));
        let sum = i64::from(c[column % 2][lane].cast_signed()) + products.sum::<i64>();
        let sum = if satfinite { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum };
        out[column % 2][lane] = sum as u32;
    }
    let written = if known { u32::MAX } else { 0 };
    u32::write(core, to0, &out[0], written);
    u32::write(core, to1, &out[1], written);
}
