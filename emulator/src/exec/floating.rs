//! Floating-point arithmetic. The plain forms are vector loops; forms with a rounding mode, flush to zero or saturation
//! read their mode from the instruction.

use super::code::{Flow, Handler, Level};
use super::lane::{Lane, lanes, warp};
use crate::ir::op::{Binary, Mode, Op, Property, Ternary, Unary};
use crate::ir::types::Ty;
use crate::numeric::directed;
use crate::numeric::float::{
    Round, add32, canonical, flush, fma_bf16, fma_f16, fma32, maximum, maximum64, minimum, minimum64, mul32,
    propagate64, quiet64, saturate,
};
use crate::numeric::half::{NAN16, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Applies a 16-bit operation to both halves of words, or to the low half.
macro_rules! halves {
    ($level:expr, $packed:expr, $f:expr, 1) => {
        if $packed {
            lanes!($level, |a: u32| -> u32 {
                u32::from($f((a >> 16) as u16)) << 16 | u32::from($f(a as u16))
            })
        } else {
            lanes!($level, |a: u16| -> u16 { $f(a) })
        }
    };
    ($level:expr, $packed:expr, $f:expr, 2) => {
        if $packed {
            lanes!($level, |a: u32, b: u32| -> u32 {
                u32::from($f((a >> 16) as u16, (b >> 16) as u16)) << 16 | u32::from($f(a as u16, b as u16))
            })
        } else {
            lanes!($level, |a: u16, b: u16| -> u16 { $f(a, b) })
        }
    };
}

/// As [`halves`], for an operation that is exact enough in f32 to be rounded once more.
macro_rules! through_f32 {
    ($level:expr, $ty:expr, |$a:ident| $e:expr) => {{
        let packed = matches!($ty, Ty::F16x2 | Ty::Bf16x2);
        if matches!($ty, Ty::F16 | Ty::F16x2) {
            halves!(
                $level,
                packed,
                |x: u16| {
                    let $a = f16_to_f32(x);
                    f32_to_f16($e)
                },
                1
            )
        } else {
            halves!(
                $level,
                packed,
                |x: u16| {
                    let $a = bf16_to_f32(x);
                    f32_to_bf16($e)
                },
                1
            )
        }
    }};
    ($level:expr, $ty:expr, |$a:ident, $b:ident| $e:expr) => {{
        let packed = matches!($ty, Ty::F16x2 | Ty::Bf16x2);
        if matches!($ty, Ty::F16 | Ty::F16x2) {
            halves!(
                $level,
                packed,
                |x: u16, y: u16| {
                    let ($a, $b) = (f16_to_f32(x), f16_to_f32(y));
                    f32_to_f16($e)
                },
                2
            )
        } else {
            halves!(
                $level,
                packed,
                |x: u16, y: u16| {
                    let ($a, $b) = (bf16_to_f32(x), bf16_to_f32(y));
                    f32_to_bf16($e)
                },
                2
            )
        }
    }};
}

fn input(value: f32, mode: Mode) -> f32 {
    if mode.ftz { flush(value) } else { value }
}

fn output(value: f32, mode: Mode) -> f32 {
    let value = if mode.ftz { flush(value) } else { value };
    let value = canonical(value);
    if mode.sat { saturate(value) } else { value }
}

fn is_f32(ty: Ty) -> bool {
    ty == Ty::F32
}

/// The handler of a unary floating-point operation.
pub(crate) fn unary(op: Unary, ty: Ty, mode: Mode, level: Level) -> Handler {
    match (op, ty) {
        // The sign of a NaN stays.
        (Unary::Neg, Ty::F64) => lanes!(level, |a: f64| -> f64 { if a.is_nan() { quiet64(a) } else { -a } }),
        (Unary::Abs, Ty::F64) => {
            lanes!(level, |a: f64| -> f64 { if a.is_nan() { quiet64(a) } else { a.abs() } })
        }
        (Unary::Rcp | Unary::Sqrt, Ty::F64) if mode.round != Round::Nearest => directed64(level),
        // The lower half of an approximation is zeros, and that of the operand does not count.
        (Unary::RcpCoarse, _) => lanes!(level, |a: f64| -> f64 { coarse(a, |a| 1.0 / a) }),
        (Unary::RsqrtCoarse, _) => lanes!(level, |a: f64| -> f64 { coarse(a, |a| 1.0 / a.sqrt()) }),
        (Unary::Rcp, Ty::F64) => lanes!(level, |a: f64| -> f64 { propagate64(1.0 / a, [a]) }),
        (Unary::Sqrt, Ty::F64) => lanes!(level, |a: f64| -> f64 { propagate64(a.sqrt(), [a]) }),
        (Unary::Rsqrt, Ty::F64) => lanes!(level, |a: f64| -> f64 { propagate64(1.0 / a.sqrt(), [a]) }),
        (Unary::Testp(_), Ty::F64) => testp::<f64>(level),
        (Unary::Testp(_), _) => testp::<f32>(level),
        (Unary::Neg, Ty::F32) if !mode.ftz => lanes!(level, |a: f32| -> f32 { canonical(-a) }),
        (Unary::Abs, Ty::F32) if !mode.ftz => lanes!(level, |a: f32| -> f32 { canonical(a.abs()) }),
        _ if !is_f32(ty) && mode.ftz => slow_halves(level),
        (Unary::Neg, _) if !is_f32(ty) => through_f32!(level, ty, |a| -a),
        (Unary::Abs, _) if !is_f32(ty) => through_f32!(level, ty, |a| a.abs()),
        (Unary::Ex2, _) if !is_f32(ty) => through_f32!(level, ty, |a| f64::from(a).exp2() as f32),
        (Unary::Tanh, _) if !is_f32(ty) => through_f32!(level, ty, |a| f64::from(a).tanh() as f32),
        (Unary::Sqrt, _) if mode == Mode::default() => lanes!(level, |a: f32| -> f32 { canonical(a.sqrt()) }),
        _ => warp!(level, |core, inst| {
            let Op::Unary(op, _, mode) = inst.op else { return Flow::Next };
            let a = f32::read(core, inst.slots[1]);
            let mut out = [0u32; 32];
            for lane in 0..32 {
                // Lanes that are off may hold anything, and the slow functions are slow.
                if core.warp.mask >> lane & 1 == 1 {
                    let value = input(f32::from_bits(a[lane]), mode);
                    out[lane] = output(rounded(op, value, mode.round), mode).to_bits();
                }
            }
            let written = f32::written(core, inst.slots[1]);
            f32::write(core, inst.slots[0], &out, written);
            Flow::Next
        }),
    }
}

/// The functions that a GPU approximates, rounded correctly (to within the last bit of f64).
fn approximate(op: Unary, a: f32) -> f32 {
    let wide = f64::from(a);
    match op {
        Unary::Neg => -a,
        Unary::Abs => a.abs(),
        Unary::Rcp => 1.0 / a,
        Unary::Sqrt => a.sqrt(),
        Unary::Rsqrt => (1.0 / wide.sqrt()) as f32,
        Unary::Sin => wide.sin() as f32,
        Unary::Cos => wide.cos() as f32,
        Unary::Lg2 => wide.log2() as f32,
        Unary::Ex2 => wide.exp2() as f32,
        Unary::Tanh => wide.tanh() as f32,
        _ => a,
    }
}

/// The same; reciprocals and square roots in any direction.
fn rounded(op: Unary, a: f32, round: Round) -> f32 {
    match op {
        Unary::Rcp => directed::div(1.0, a, 1.0 / a, round),
        Unary::Sqrt => directed::sqrt(a, a.sqrt(), round),
        op => approximate(op, a),
    }
}

/// A function of the upper half of an f64, of which the upper half is kept; subnormal numbers are zeros.
fn coarse(a: f64, f: impl Fn(f64) -> f64) -> f64 {
    let upper = |x: f64| {
        let kept = f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000);
        if kept.is_subnormal() { 0f64.copysign(kept) } else { kept }
    };
    if a.is_nan() { quiet64(a) } else { upper(f(upper(a))) }
}

/// Operations in f64 that round in a direction.
fn directed64(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let (count, mode) = match inst.op {
            Op::Unary(_, _, mode) => (1, mode),
            Op::Binary(_, _, mode) => (2, mode),
            Op::Ternary(_, _, mode) => (3, mode),
            _ => return Flow::Next,
        };
        let mut values = [[0u64; 32]; 3];
        let mut written = u32::MAX;
        for (i, values) in values.iter_mut().enumerate().take(count) {
            *values = *u64::read(core, inst.slots[1 + i]);
            written &= u64::written(core, inst.slots[1 + i]);
        }
        let round = mode.round;
        let mut out = [0u64; 32];
        for lane in 0..32 {
            if core.warp.mask >> lane & 1 == 0 {
                continue;
            }
            let [a, b, c] = values.map(|v| f64::from_bits(v[lane]));
            let (result, order) = match inst.op {
                Op::Unary(Unary::Rcp, ..) => (directed::div(1.0, a, 1.0 / a, round), [a, a, a]),
                Op::Unary(..) => (directed::sqrt(a, a.sqrt(), round), [a, a, a]),
                Op::Binary(Binary::Add, ..) => (directed::fma64(a, 1.0, b, round), [b, a, a]),
                Op::Binary(Binary::Sub, ..) => (directed::fma64(a, 1.0, -b, round), [b, a, a]),
                Op::Binary(Binary::Mul, ..) => (directed::mul64(a, b, round), [b, a, a]),
                Op::Binary(..) => (directed::div(a, b, a / b, round), [a, b, b]),
                _ => (directed::fma64(a, b, c, round), [b, c, a]),
            };
            out[lane] = propagate64(result, order).to_bits();
        }
        u64::write(core, inst.slots[0], &out, written);
        Flow::Next
    })
}

/// What `testp` needs to know of a type.
trait Classify: Lane {
    fn class(self) -> std::num::FpCategory;
}
impl Classify for f32 {
    fn class(self) -> std::num::FpCategory {
        self.classify()
    }
}
impl Classify for f64 {
    fn class(self) -> std::num::FpCategory {
        self.classify()
    }
}

fn testp<T: Classify>(level: Level) -> Handler {
    struct Test<T>(std::marker::PhantomData<T>);
    impl<T: Classify> super::lane::Execute for Test<T> {
        #[inline(always)]
        fn execute(core: &mut super::code::Core<'_>, inst: &super::code::Inst) -> Flow {
            use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
            let Op::Unary(Unary::Testp(property), ..) = inst.op else { return Flow::Next };
            let a = T::read(core, inst.slots[1]);
            let mut result = 0;
            for lane in 0..32 {
                let class = T::from_bits(a[lane]).class();
                let holds = match property {
                    Property::Finite => !matches!(class, Infinite | Nan),
                    Property::Infinite => class == Infinite,
                    Property::Number => class != Nan,
                    Property::NotANumber => class == Nan,
                    // Zero counts as normal.
                    Property::Normal => matches!(class, Normal | Zero),
                    Property::Subnormal => class == Subnormal,
                };
                result |= u32::from(holds) << lane;
            }
            let (mask, written) = (core.warp.mask, T::written(core, inst.slots[1]));
            core.warp.registers.set_predicate(inst.slots[0], result, mask, written);
            Flow::Next
        }
    }
    super::lane::handler::<Test<T>>(level)
}

/// The handler of a binary floating-point operation.
pub(crate) fn binary(op: Binary, ty: Ty, mode: Mode, level: Level) -> Handler {
    let plain = mode == Mode::default();
    match (op, ty) {
        (Binary::Add, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { canonical(a + b) }),
        (Binary::Sub, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { canonical(a - b) }),
        (Binary::Mul, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { canonical(a * b) }),
        (Binary::Div, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { canonical(a / b) }),
        (Binary::Min, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { minimum(a, b) }),
        (Binary::Max, Ty::F32) if plain => lanes!(level, |a: f32, b: f32| -> f32 { maximum(a, b) }),
        // The sign is that of the first operand.
        (Binary::Copysign, Ty::F32) => lanes!(level, |a: f32, b: f32| -> f32 { b.copysign(a) }),
        (Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, Ty::F64) if mode.round != Round::Nearest => {
            directed64(level)
        }
        (Binary::Add, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { propagate64(a + b, [b, a]) }),
        (Binary::Sub, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { propagate64(a - b, [b, a]) }),
        (Binary::Mul, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { propagate64(a * b, [b, a]) }),
        (Binary::Div, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { propagate64(a / b, [a, b]) }),
        (Binary::Min, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { minimum64(a, b) }),
        (Binary::Max, Ty::F64) => lanes!(level, |a: f64, b: f64| -> f64 { maximum64(a, b) }),
        (Binary::Copysign, _) => lanes!(level, |a: f64, b: f64| -> f64 { b.copysign(a) }),
        _ if !is_f32(ty) && (mode.ftz || mode.xorsign) => slow_halves(level),
        (Binary::Add, _) if !is_f32(ty) && !mode.sat => through_f32!(level, ty, |a, b| a + b),
        (Binary::Sub, _) if !is_f32(ty) && !mode.sat => through_f32!(level, ty, |a, b| a - b),
        (Binary::Mul, _) if !is_f32(ty) && !mode.sat => through_f32!(level, ty, |a, b| a * b),
        (Binary::Add, _) if !is_f32(ty) => through_f32!(level, ty, |a, b| saturate(a + b)),
        (Binary::Sub, _) if !is_f32(ty) => through_f32!(level, ty, |a, b| saturate(a - b)),
        (Binary::Mul, _) if !is_f32(ty) => through_f32!(level, ty, |a, b| saturate(a * b)),
        (Binary::Min, _) if !is_f32(ty) && !mode.nan => through_f32!(level, ty, |a, b| minimum(a, b)),
        (Binary::Max, _) if !is_f32(ty) && !mode.nan => through_f32!(level, ty, |a, b| maximum(a, b)),
        (Binary::Min, _) if !is_f32(ty) => {
            through_f32!(level, ty, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { minimum(a, b) })
        }
        (Binary::Max, _) if !is_f32(ty) => {
            through_f32!(level, ty, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { maximum(a, b) })
        }
        _ => warp!(level, |core, inst| {
            let Op::Binary(op, _, mode) = inst.op else { return Flow::Next };
            let (a, b) = (f32::read(core, inst.slots[1]), f32::read(core, inst.slots[2]));
            let mut out = [0u32; 32];
            for lane in 0..32 {
                let (a, b) = (input(f32::from_bits(a[lane]), mode), input(f32::from_bits(b[lane]), mode));
                let result = match op {
                    Binary::Add => add32(a, b, mode.round),
                    Binary::Sub => add32(a, -b, mode.round),
                    Binary::Mul => mul32(a, b, mode.round),
                    Binary::Div => directed::div(a, b, a / b, mode.round),
                    _ => extremum(op, a, b, mode),
                };
                out[lane] = output(result, mode).to_bits();
            }
            let written = f32::written(core, inst.slots[1]) & f32::written(core, inst.slots[2]);
            f32::write(core, inst.slots[0], &out, written);
            Flow::Next
        }),
    }
}

/// `min` or `max` in any mode.
fn extremum(op: Binary, a: f32, b: f32, mode: Mode) -> f32 {
    let select = |a, b| if op == Binary::Min { minimum(a, b) } else { maximum(a, b) };
    if mode.nan && (a.is_nan() || b.is_nan()) {
        f32::NAN
    } else if mode.xorsign {
        let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
        f32::from_bits(select(a.abs(), b.abs()).to_bits() ^ sign)
    } else {
        select(a, b)
    }
}

/// Operations on 16-bit floats with modes that few use: flush to zero, the sign of a product.
fn slow_halves(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let (operands, ty, mode) = match inst.op {
            Op::Unary(_, ty, mode) => (1, ty, mode),
            Op::Binary(_, ty, mode) => (2, ty, mode),
            Op::Ternary(_, ty, mode) => (3, ty, mode),
            _ => return Flow::Next,
        };
        let f16 = matches!(ty, Ty::F16 | Ty::F16x2);
        let packed = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
        let values: [[u32; 32]; 3] = std::array::from_fn(|i| match i < operands {
            true => *u32::read(core, inst.slots[1 + i]),
            false => [0; 32],
        });
        let written = (0..operands).fold(u32::MAX, |all, i| all & u32::written(core, inst.slots[1 + i]));
        let smallest: u16 = if f16 { 0x0400 } else { 0x0080 };
        let limit = if f16 { (1.0 - 2f64.powi(-12)) * 2f64.powi(-14) } else { 0.0 };
        let flushed = |half: u32| {
            let half = half as u16;
            if mode.ftz && half & 0x7fff < smallest { half & 0x8000 } else { half }
        };
        let wide = |half: u16| if f16 { f16_to_f32(half) } else { bf16_to_f32(half) };
        let narrow = |value: f32| if f16 { f32_to_f16(value) } else { f32_to_bf16(value) };
        let one = |shift: u32, lane: usize| {
            let [a, b, c] = values.map(|v| flushed(v[lane] >> shift));
            let (x, y) = (wide(a), wide(b));
            let result = match inst.op {
                Op::Unary(op, ..) => narrow(approximate(op, x)),
                Op::Binary(Binary::Add, ..) => narrow(x + y),
                Op::Binary(Binary::Sub, ..) => narrow(x - y),
                Op::Binary(Binary::Mul, ..) => narrow(x * y),
                Op::Binary(op, ..) => narrow(extremum(op, x, y, mode)),
                _ if f16 => fma_f16(a, b, c),
                _ => fma_bf16(a, b, c),
            };
            // What is flushed is what would be below the smallest normal number if it were rounded to as many bits as one has:
            // what lies less than a quarter of a step below rounds to it, and stays.
            let exact = match inst.op {
                Op::Binary(Binary::Mul, ..) => f64::from(x) * f64::from(y),
                Op::Ternary(..) => f64::from(x).mul_add(f64::from(y), f64::from(wide(c))),
                _ => f64::from(wide(result)),
            };
            let tiny = mode.ftz && exact != 0.0 && exact.abs() < limit;
            let result = if tiny { u16::from(exact.is_sign_negative()) << 15 } else { result };
            u32::from(flushed(u32::from(clamp16(result, f16, mode))))
        };
        let out: [u32; 32] =
            std::array::from_fn(
                |lane| {
                    if packed { one(16, lane) << 16 | one(0, lane) } else { one(0, lane) }
                },
            );
        u32::write(core, inst.slots[0], &out, written);
        Flow::Next
    })
}

/// The handler of a ternary floating-point operation, which is a fused multiply-add.
pub(crate) fn ternary(_: Ternary, ty: Ty, mode: Mode, level: Level) -> Handler {
    match ty {
        Ty::F64 if mode.round != Round::Nearest => directed64(level),
        Ty::F64 => {
            lanes!(level, |a: f64, b: f64, c: f64| -> f64 { propagate64(a.mul_add(b, c), [b, c, a]) })
        }
        Ty::F32 if mode == Mode::default() => {
            lanes!(level, |a: f32, b: f32, c: f32| -> f32 { canonical(a.mul_add(b, c)) })
        }
        Ty::F32 => warp!(level, |core, inst| {
            let Op::Ternary(_, _, mode) = inst.op else { return Flow::Next };
            let [to, sa, sb, sc, ..] = inst.slots;
            let (a, b, c) = (f32::read(core, sa), f32::read(core, sb), f32::read(core, sc));
            let mut out = [0u32; 32];
            for lane in 0..32 {
                let value = |x: u32| input(f32::from_bits(x), mode);
                let result = fma32(value(a[lane]), value(b[lane]), value(c[lane]), mode.round);
                out[lane] = output(result, mode).to_bits();
            }
            let written = f32::written(core, sa) & f32::written(core, sb) & f32::written(core, sc);
            f32::write(core, to, &out, written);
            Flow::Next
        }),
        _ if mode.ftz => slow_halves(level),
        _ => warp!(level, |core, inst| {
            let Op::Ternary(_, ty, mode) = inst.op else { return Flow::Next };
            let [to, sa, sb, sc, ..] = inst.slots;
            let (a, b, c) = (u32::read(core, sa), u32::read(core, sb), u32::read(core, sc));
            let f16 = matches!(ty, Ty::F16 | Ty::F16x2);
            let packed = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
            let one = |a: u32, b: u32, c: u32| {
                let (a, b, c) = (a as u16, b as u16, c as u16);
                let result = if f16 { fma_f16(a, b, c) } else { fma_bf16(a, b, c) };
                u32::from(clamp16(result, f16, mode))
            };
            let mut out = [0u32; 32];
            for lane in 0..32 {
                let (a, b, c) = (a[lane], b[lane], c[lane]);
                let upper = if packed { one(a >> 16, b >> 16, c >> 16) << 16 } else { 0 };
                out[lane] = upper | one(a, b, c);
            }
            let written = u32::written(core, sa) & u32::written(core, sb) & u32::written(core, sc);
            u32::write(core, to, &out, written);
            Flow::Next
        }),
    }
}

/// `.sat` and `.relu` on a 16-bit result.
fn clamp16(value: u16, f16: bool, mode: Mode) -> u16 {
    let one = if f16 { 0x3c00 } else { 0x3f80 };
    let infinity = if f16 { 0x7c00 } else { 0x7f80 };
    let nan = value & 0x7fff > infinity;
    match (mode.sat, mode.relu) {
        (true, _) if nan || value & 0x8000 != 0 => 0,
        (true, _) => value.min(one),
        (_, true) if nan => NAN16,
        (_, true) if value & 0x8000 != 0 => 0,
        _ => value,
    }
}
