//! Arithmetic inside a lane: integers, bits, floating point, comparison, conversion.

use super::*;

pub(super) static ROWS: &[Form] = rows! {
    // Integer arithmetic.
    "add", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Add);
    "add", "sat s32", "=t t t", |c| binary(c, B::Add);
    "add", "cc u32|s32|u64|s64", "=t t t", |c| carry(c, Carry::Add { carry_in: false });
    "addc", "cc? u32|s32|u64|s64", "=t t t", |c| carry(c, Carry::Add { carry_in: true });
    "sub", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Sub);
    "sub", "sat s32", "=t t t", |c| binary(c, B::Sub);
    "sub", "cc u32|s32|u64|s64", "=t t t", |c| carry(c, Carry::Sub { carry_in: false });
    "subc", "cc? u32|s32|u64|s64", "=t t t", |c| carry(c, Carry::Sub { carry_in: true });
    "mul", "lo u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Mul);
    "mul", "hi u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::MulHi);
    "mul", "wide u16|s16|u32|s32", "=w t t", |c| binary(c, B::MulWide);
    "mul24", "lo u32|s32", "=t t t", |c| binary(c, B::Mul24);
    "mad", "lo u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::Mad);
    "mad", "hi u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::MadHi);
    "mad", "wide u16|s16|u32|s32", "=w t t w", |c| ternary(c, T::MadWide);
    "mad24", "lo u32|s32", "=t t t t", |c| ternary(c, T::Mad24);
    "mad", "lo cc u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: false, carry_in: false });
    "mad", "hi cc u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: true, carry_in: false });
    "madc", "lo cc? u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: false, carry_in: true });
    "madc", "hi cc? u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: true, carry_in: true });
    "sad", "u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::Sad);
    "div", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Div);
    "rem", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Rem);
    "abs", "s16|s32|s64", "=t t", |c| unary(c, U::Abs);
    "neg", "s16|s32|s64", "=t t", |c| unary(c, U::Neg);
    "min", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Min);
    "max", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Max);
    "add", "u16x2|s16x2", "=t t t", |c| binary(c, B::Add);
    "min", "relu? s16x2|s32", "=t t t", |c| binary(c, B::Min);
    "max", "relu? s16x2|s32", "=t t t", |c| binary(c, B::Max);
    "min", "u16x2", "=t t t", |c| binary(c, B::Min);
    "max", "u16x2", "=t t t", |c| binary(c, B::Max);
    "mul24", "hi u32|s32", "=t t t", |c| binary(c, B::Mul24High);
    "mad24", "hi u32|s32", "=t t t t", |c| ternary(c, T::Mad24High { sat: false });
    "mad24", "hi sat s32", "=t t t t", |c| ternary(c, T::Mad24High { sat: true });
    "mad", "hi sat s32", "=t t t t", |c| ternary(c, T::MadHiSat);
    "dp2a", "lo|hi u32|s32 u32|s32", "=b32 b32 b32 b32", |c| {
        let (a_signed, b_signed) = (c.ty(0).is_signed(), c.ty(1).is_signed());
        ternary(c, T::Dp2a { a_signed, b_signed, high: c.has("hi") })
    };
    "dp4a", "u32|s32 u32|s32", "=b32 b32 b32 b32",
        |c| ternary(c, T::Dp4a { a_signed: c.ty(0).is_signed(), b_signed: c.ty(1).is_signed() });

    // Bits.
    "and", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::And);
    "or", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::Or);
    "xor", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::Xor);
    "not", "pred|b16|b32|b64", "=t t", |c| unary(c, U::Not);
    "cnot", "b16|b32|b64", "=t t", |c| unary(c, U::Cnot);
    "shl", "b16|b32|b64", "=t t b32", |c| binary(c, B::Shl);
    "shr", "b16|b32|b64|u16|u32|u64|s16|s32|s64", "=t t b32", |c| binary(c, B::Shr);
    "shf", "l|r wrap|clamp b32", "=b32 b32 b32 b32",
        |c| ternary(c, T::Shf { left: c.has("l"), wrap: c.has("wrap") });
    "popc", "b32|b64", "=b32 t", |c| unary(c, U::Popc);
    "clz", "b32|b64", "=b32 t", |c| unary(c, U::Clz);
    "brev", "b32|b64", "=t t", |c| unary(c, U::Brev);
    "bfind", "shiftamt? u32|s32|u64|s64", "=b32 t", |c| unary(c, U::Bfind { shift: c.has("shiftamt") });
    "bfe", "u32|s32|u64|s64", "=t t b32 b32", |c| ternary(c, T::Bfe);
    "bfi", "b32|b64", "=t t t b32 b32", |c| Op::Bfi(c.ty(0));
    "bmsk", "clamp|wrap b32", "=b32 b32 b32", |c| binary(c, B::Bmsk { wrap: c.has("wrap") });
    "szext", "clamp|wrap u32|s32", "=t t b32", |c| binary(c, B::Szext { wrap: c.has("wrap") });
    "fns", "b32", "=b32 b32 b32 b32", |c| ternary(c, T::Fns);
    "lop3", "and|or b32", "=b32|pred b32 b32 b32 # pred", |c| {
        Op::Lop3Test(if c.has("and") { Combine::And } else { Combine::Or })
    };
    "lop3", "b32", "=b32 b32 b32 b32 #", |_| Op::Lop3;
    "prmt", "b32", "=b32 b32 b32 b32", |c| ternary(c, T::Prmt(Permute::Index));
    "prmt", "b32 f4e|b4e|rc8|ecl|ecr|rc16", "=b32 b32 b32 b32", |c| {
        let modes = [
            ("f4e", Permute::Forward4),
            ("b4e", Permute::Backward4),
            ("rc8", Permute::Replicate8),
            ("ecl", Permute::EdgeClampLeft),
            ("ecr", Permute::EdgeClampRight),
            ("rc16", Permute::Replicate16),
        ];
        ternary(c, T::Prmt(c.pick(&modes, Permute::Index)))
    };

    // Floating point.
    "add", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Add);
    "sub", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn|rz|rm|rp ftz? sat? f32", "=t t t t", |c| ternary(c, T::Fma);
    "mad", "rn|rz|rm|rp ftz? sat? f32", "=t t t t", |c| ternary(c, T::Fma);
    "add", "rz|rm|rp f64", "=t t t", |c| binary(c, B::Add);
    "sub", "rz|rm|rp f64", "=t t t", |c| binary(c, B::Sub);
    "mul", "rz|rm|rp f64", "=t t t", |c| binary(c, B::Mul);
    "fma", "rz|rm|rp f64", "=t t t t", |c| ternary(c, T::Fma);
    "mad", "rz|rm|rp f64", "=t t t t", |c| ternary(c, T::Fma);
    "div", "rz|rm|rp ftz? f32", "=t t t", |c| binary(c, B::Div);
    "div", "rz|rm|rp f64", "=t t t", |c| binary(c, B::Div);
    "rcp", "rz|rm|rp ftz? f32", "=t t", |c| unary(c, U::Rcp);
    "rcp", "rz|rm|rp f64", "=t t", |c| unary(c, U::Rcp);
    "rcp", "approx ftz f64", "=t t", |c| unary(c, U::RcpCoarse);
    "rsqrt", "approx ftz f64", "=t t", |c| unary(c, U::RsqrtCoarse);
    "sqrt", "rz|rm|rp ftz? f32", "=t t", |c| unary(c, U::Sqrt);
    "sqrt", "rz|rm|rp f64", "=t t", |c| unary(c, U::Sqrt);
    "add", "rn? f64", "=t t t", |c| binary(c, B::Add);
    "sub", "rn? f64", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn? f64", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn f64", "=t t t t", |c| ternary(c, T::Fma);
    "mad", "rn f64", "=t t t t", |c| ternary(c, T::Fma);
    "add", "rn? ftz? sat? f16|f16x2", "=t t t", |c| binary(c, B::Add);
    "add", "rn? bf16|bf16x2", "=t t t", |c| binary(c, B::Add);
    "sub", "rn? ftz? sat? f16|f16x2", "=t t t", |c| binary(c, B::Sub);
    "sub", "rn? bf16|bf16x2", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn? ftz? sat? f16|f16x2", "=t t t", |c| binary(c, B::Mul);
    "mul", "rn? bf16|bf16x2", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn ftz? sat|relu? f16|f16x2", "=t t t t", |c| ternary(c, T::Fma);
    "fma", "rn relu? bf16|bf16x2", "=t t t t", |c| ternary(c, T::Fma);
    "div", "rn|approx|full ftz? f32", "=t t t", |c| binary(c, B::Div);
    "div", "rn f64", "=t t t", |c| binary(c, B::Div);
    "rcp", "rn|approx ftz? f32", "=t t", |c| unary(c, U::Rcp);
    "rcp", "rn f64", "=t t", |c| unary(c, U::Rcp);
    "sqrt", "rn|approx ftz? f32", "=t t", |c| unary(c, U::Sqrt);
    "sqrt", "rn f64", "=t t", |c| unary(c, U::Sqrt);
    "rsqrt", "approx ftz? f32|f64", "=t t", |c| unary(c, U::Rsqrt);
    "sin", "approx ftz? f32", "=t t", |c| unary(c, U::Sin);
    "cos", "approx ftz? f32", "=t t", |c| unary(c, U::Cos);
    "lg2", "approx ftz? f32", "=t t", |c| unary(c, U::Lg2);
    "ex2", "approx ftz? f32", "=t t", |c| unary(c, U::Ex2);
    "ex2", "approx f16|f16x2", "=t t", |c| unary(c, U::Ex2);
    "ex2", "approx ftz bf16|bf16x2", "=t t", |c| unary(c, U::Ex2);
    "tanh", "approx f32|f16|f16x2|bf16|bf16x2", "=t t", |c| unary(c, U::Tanh);
    "neg", "ftz? f32|f16|f16x2", "=t t", |c| unary(c, U::Neg);
    "neg", "f64|bf16|bf16x2", "=t t", |c| unary(c, U::Neg);
    "abs", "ftz? f32|f16|f16x2", "=t t", |c| unary(c, U::Abs);
    "abs", "f64|bf16|bf16x2", "=t t", |c| unary(c, U::Abs);
    "min", "ftz? NaN? f32|f16|f16x2", "=t t t", |c| binary(c, B::Min);
    "min", "ftz? NaN? xorsign abs f32|f16|f16x2", "=t t t", |c| binary(c, B::Min);
    "min", "NaN? bf16|bf16x2", "=t t t", |c| binary(c, B::Min);
    "min", "NaN? xorsign abs bf16|bf16x2", "=t t t", |c| binary(c, B::Min);
    "min", "f64", "=t t t", |c| binary(c, B::Min);
    "max", "ftz? NaN? f32|f16|f16x2", "=t t t", |c| binary(c, B::Max);
    "max", "ftz? NaN? xorsign abs f32|f16|f16x2", "=t t t", |c| binary(c, B::Max);
    "max", "NaN? bf16|bf16x2", "=t t t", |c| binary(c, B::Max);
    "max", "NaN? xorsign abs bf16|bf16x2", "=t t t", |c| binary(c, B::Max);
    "max", "f64", "=t t t", |c| binary(c, B::Max);
    "copysign", "f32|f64", "=t t t", |c| binary(c, B::Copysign);
    "testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64", "=pred t", |c| {
        let names = [
            ("finite", Property::Finite),
            ("infinite", Property::Infinite),
            ("number", Property::Number),
            ("notanumber", Property::NotANumber),
            ("normal", Property::Normal),
            ("subnormal", Property::Subnormal),
        ];
        unary(c, U::Testp(c.pick(&names, Property::Finite)))
    };

    // Comparison and selection.
    "setp", relations::BITS[0], "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::BITS[1], "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::BITS[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::BITS[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::UNSIGNED[0], "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::UNSIGNED[1], "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::UNSIGNED[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::UNSIGNED[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::SIGNED[0], "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::SIGNED[1], "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::SIGNED[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::SIGNED[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::SINGLES[0], "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::SINGLES[1], "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::SINGLES[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::SINGLES[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::DOUBLES[0], "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::DOUBLES[1], "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::DOUBLES[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::DOUBLES[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::HALVES[0], "=pred| t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::HALVES[1], "=pred| t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::HALVES[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::HALVES[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "setp", relations::BRAINS[0], "=pred| t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::BRAINS[1], "=pred| t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::BRAINS[2], "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::BRAINS[3], "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan ftz? f16|u16|s16 f16", "=t u u", |c| set(c, 1, false);
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor ftz? f16|u16|s16 f16",
        "=t u u pred", |c| set(c, 1, true);
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan u16|s16 bf16", "=t u u", |c| set(c, 1, false);
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan bf16 bf16", "=t u u", |c| set(c, 0, false);
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan ftz? f16x2|u32|s32 f16x2", "=t u u",
        |c| Op::SetHalves(compare(c, c.ty(1), false), c.ty(0));
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan bf16x2|u32|s32 bf16x2", "=t u u",
        |c| Op::SetHalves(compare(c, c.ty(1), false), c.ty(0));
    "set", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan f16 f32", "=t u u", |c| set(c, 1, false);
    "setp", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan ftz? f16x2", "=pred|pred t t",
        |c| Op::SetpHalves(compare(c, c.ty(0), false));
    "setp", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan bf16x2", "=pred|pred t t",
        |c| Op::SetpHalves(compare(c, c.ty(0), false));
    "selp", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64", "=t t t pred", |c| ternary(c, T::Selp);
    "slct", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 s32",
        "=t t t u", |c| ternary(c, T::Slct { float: false, ftz: false });
    "slct", "ftz? b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 f32", "=t t t u",
        |c| ternary(c, T::Slct { float: true, ftz: c.has("ftz") });

    // Conversion.
    "cvt", "u8|s8|u16|s16|u32|s32|u64|s64 u8|s8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    // Saturation is there where a value may lie outside.
    "cvt", "sat u8 s8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "sat s8 u8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "sat u16 s8|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "sat s16 u16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "sat u32 s8|s16|s32|u64|s64", "=~t ~u", convert;
    "cvt", "sat s32 u32|u64|s64", "=~t ~u", convert;
    "cvt", "sat u64 s8|s16|s32|s64", "=~t ~u", convert;
    "cvt", "sat s64 u64", "=~t ~u", convert;
    "cvt", "rn|rz|rm|rp f16|f32|f64 u8|s8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "rn|rz|rm|rp bf16 u16|s16|u32|s32|u64|s64", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi ftz? sat? u8|s8|u16|s16|u32|s32|u64|s64 f32", "=~t ~u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? u8|s8|u16|s16|u32|s32|u64|s64 f16|f64", "=~t ~u", convert;
    "cvt", "rni|rzi|rmi|rpi u16|s16|u32|s32|u64|s64 bf16", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi ftz? sat? f32 f32", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? f64 f64", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? f16 f16", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi bf16 bf16", "=t u", convert;
    "cvt", "ftz? sat? f32 f16|f32", "=t u", convert;
    "cvt", "ftz? f32 bf16", "=t u", convert;
    "cvt", "ftz? sat? f64 f32", "=t u", convert;
    "cvt", "sat? f64 f16|f64", "=t u", convert;
    "cvt", "f64 bf16", "=t u", convert;
    "cvt", "rn|rz|rm|rp ftz? sat? f32 f64", "=t u", convert;
    "cvt", "rn|rz|rm|rp ftz? sat? f16 f32", "=t u", convert;
    "cvt", "rn|rz|rm|rp sat? f16 f64", "=t u", convert;
    "cvt", "rn|rz relu satfinite? f16|bf16 f32", "=t u", convert;
    "cvt", "rn|rz satfinite? bf16 f32", "=t u", convert;
    "cvt", "rm|rp bf16 f32", "=t u", convert;
    "cvt", "rn|rz|rm|rp bf16 f64", "=t u", convert;
    "cvt", "rna satfinite? tf32 f32", "=b32 u", convert;
    "cvt", "rn|rz relu? tf32 f32", "=b32 u", convert;
    "cvt", "rn satfinite relu? e4m3x2|e5m2x2 f32", "=t u u", convert_pack;
    "cvt", "rn satfinite relu? e4m3x2|e5m2x2 f16x2", "=t u", convert;
    "cvt", "rn relu? f16x2 e4m3x2|e5m2x2", "=t u", convert;
    "cvt", "rn|rz relu? satfinite? f16x2|bf16x2 f32", "=t u u", convert_pack;
};
