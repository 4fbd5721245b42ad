//! Arithmetic that Rust's own operators do not reach: approximations, conversions, NaN-propagating maxima.

macro_rules! unary {
    ($(#[$doc:meta])* $name:ident, $text:literal, $in_class:ident $input:ty => $out_class:ident $output:ty) => {
        $(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $name(value: $input) -> $output {
            let result: $output;
            // SAFETY: arithmetic on registers.
            unsafe {
                instruction!(concat!($text, " {0}, {1};"), out($out_class) result, in($in_class) value, options(pure, nomem, nostack))
            };
            result
        }
    };
}

unary!(
    /// `ex2.approx.ftz.f32`: 2 to the power of `value`, to 2 ulp; subnormal results are zero.
    ex2_approx_ftz, "ex2.approx.ftz.f32", reg32 f32 => reg32 f32
);
unary!(
    /// `lg2.approx.ftz.f32`: the logarithm to base 2, to 2⁻²² absolutely between 1/2 and 2 and relatively elsewhere; of a subnormal number −∞.
    lg2_approx_ftz, "lg2.approx.ftz.f32", reg32 f32 => reg32 f32
);
unary!(
    /// `rcp.approx.ftz.f32`: the reciprocal, to 1 ulp; of a subnormal number infinity, and subnormal results are zero.
    rcp_approx_ftz, "rcp.approx.ftz.f32", reg32 f32 => reg32 f32
);
unary!(
    /// `rsqrt.approx.ftz.f32`: 1 over the square root, to 2⁻²²·⁹; of a subnormal number infinity.
    rsqrt_approx_ftz, "rsqrt.approx.ftz.f32", reg32 f32 => reg32 f32
);
unary!(
    /// `sqrt.rn.f32`: the square root, rounded to the nearest, ties to even.
    sqrt_rn, "sqrt.rn.f32", reg32 f32 => reg32 f32
);
unary!(
    /// `sqrt.rn.f64`: the same of 64 bits.
    sqrt_rn_f64, "sqrt.rn.f64", reg64 f64 => reg64 f64
);
unary!(
    /// `cvt.rn.f16.f32`: rounds to the nearest half-precision number, ties to even.
    cvt_f16_f32, "cvt.rn.f16.f32", reg32 f32 => reg16 u16
);
#[cfg(not(feature = "turing"))]
unary!(
    /// `cvt.rn.bf16.f32`: rounds to the nearest bfloat16, ties to even.
    cvt_bf16_f32, "cvt.rn.bf16.f32", reg32 f32 => reg16 u16
);
unary!(
    /// `cvt.f32.f16`: widens a half-precision number, exactly.
    cvt_f32_f16, "cvt.f32.f16", reg16 u16 => reg32 f32
);

#[cfg(not(feature = "turing"))]
macro_rules! binary {
    ($(#[$doc:meta])* $name:ident, $text:literal, $output:ty) => {
        $(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $name(a: f32, b: f32) -> $output {
            let result: $output;
            // SAFETY: arithmetic on registers.
            unsafe {
                instruction!(concat!($text, " {0}, {1}, {2};"), out(reg32) result, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
            };
            result
        }
    };
}

#[cfg(not(feature = "turing"))]
binary!(
    /// `max.NaN.f32`: the larger number; NaN if either is NaN.
    max_nan, "max.NaN.f32", f32
);
macro_rules! packed {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $name(a: u32, b: u32) -> u32 {
            let result: u32;
            // SAFETY: arithmetic on registers.
            unsafe {
                instruction!(concat!($text, " {0}, {1}, {2};"), out(reg32) result, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
            };
            result
        }
    };
}
packed!(
    /// `max.NaN.f16x2`: the larger number of each half; NaN if either is NaN. From sm_80 on.
    max_nan_f16x2, "max.NaN.f16x2"
);
packed!(
    /// `max.NaN.bf16x2`: the larger number of each half; NaN if either is NaN. From sm_80 on.
    max_nan_bf16x2, "max.NaN.bf16x2"
);
#[cfg(not(feature = "turing"))]
binary!(
    /// `cvt.rn.f16x2.f32`: both rounded to half precision, `a` in the upper half of the result.
    cvt_f16x2_f32, "cvt.rn.f16x2.f32", u32
);
#[cfg(not(feature = "turing"))]
binary!(
    /// `cvt.rn.bf16x2.f32`: both rounded to bfloat16, `a` in the upper half of the result.
    cvt_bf16x2_f32, "cvt.rn.bf16x2.f32", u32
);

packed!(
    /// `mul.rn.f16x2`: the product of each half, rounded once. From sm_53 on.
    mul_f16x2, "mul.rn.f16x2"
);
unary!(
    /// `cvt.rn.f16x2.e4m3x2`: widens two e4m3 numbers, exactly. From sm_89 on.
    cvt_f16x2_e4m3x2, "cvt.rn.f16x2.e4m3x2", reg16 u16 => reg32 u32
);
unary!(
    /// `cvt.rn.f16x2.e5m2x2`: widens two e5m2 numbers, exactly. From sm_89 on.
    cvt_f16x2_e5m2x2, "cvt.rn.f16x2.e5m2x2", reg16 u16 => reg32 u32
);

/// `fma.rn.f32`: `a · b + c`, rounded once.
#[inline(always)]
#[must_use]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let result: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        instruction!("fma.rn.f32 {0}, {1}, {2}, {3};", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    };
    result
}

/// `fma.rn.bf16x2`: `a · b + c` of each half, rounded once. From sm_80 on.
#[inline(always)]
#[must_use]
pub fn fma_bf16x2(a: u32, b: u32, c: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        instruction!("fma.rn.bf16x2 {0}, {1}, {2}, {3};", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    };
    result
}

/// `fma.rn.sat.f32`: `a · b + c`, rounded once, and 0 or 1 if it is less or more than these; 0 for NaN.
#[inline(always)]
#[must_use]
pub fn fma_sat(a: f32, b: f32, c: f32) -> f32 {
    let result: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        instruction!("fma.rn.sat.f32 {0}, {1}, {2}, {3};", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    };
    result
}

/// `prmt.b32`: four of the eight bytes of `a` (0 to 3) and `b` (4 to 7), which `selector` numbers with four bits each, the result's lowest
/// byte first.
#[inline(always)]
#[must_use]
pub fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        instruction!("prmt.b32 {0}, {1}, {2}, {3};", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) selector, options(pure, nomem, nostack))
    };
    result
}

/// `lop3.b32` of `(a & b) | c`.
#[inline(always)]
#[must_use]
pub fn lop3_and_or(a: u32, b: u32, c: u32) -> u32 {
    let result: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        instruction!("lop3.b32 {0}, {1}, {2}, {3}, 0xea;", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    };
    result
}

/// `mov.b32`: the same value, of which the compiler no longer knows that it is a constant.
///
/// A loop with such a bound is not unrolled.
#[inline(always)]
#[must_use]
pub fn opaque(value: u32) -> u32 {
    let result: u32;
    // SAFETY: a copy between registers.
    unsafe { instruction!("mov.b32 {0}, {1};", out(reg32) result, in(reg32) value, options(nomem, nostack)) };
    result
}

/// Two halves as a word: `mov.b32` of a pair. Shifts would take an instruction more, for bits that are not there.
#[inline(always)]
#[must_use]
pub fn word_of(low: u16, high: u16) -> u32 {
    let word: u32;
    // SAFETY: a copy between registers.
    unsafe {
        instruction!("mov.b32 {0}, {{{1}, {2}}};", out(reg32) word, in(reg16) low, in(reg16) high, options(pure, nomem, nostack))
    };
    word
}

/// Has the assembler keep the loop of which a round begins here, rather than unroll it.
#[inline(always)]
pub fn keep_loop() {
    // SAFETY: a directive, which computes nothing.
    unsafe { instruction!(".pragma \"nounroll\";", options(nostack)) }
}

/// As [`opaque`], of 64 bits.
#[inline(always)]
#[must_use]
pub fn opaque_u64(value: u64) -> u64 {
    let result: u64;
    // SAFETY: a copy between registers.
    unsafe { instruction!("mov.b64 {0}, {1};", out(reg64) result, in(reg64) value, options(nomem, nostack)) };
    result
}
