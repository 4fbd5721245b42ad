//! What the tests share: operands worth trying, and comparing each result with the same computation in Rust.

use crate::common::evaluate;

/// Interesting 64-bit operands: small, extreme, and spread by a generator.
pub(crate) fn inputs() -> Vec<[u64; 4]> {
    let mut values: Vec<u64> = vec![0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 0x8000, 0xffff];
    values.extend([0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX, 1 << 63, (1 << 63) - 1]);
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut inputs: Vec<[u64; 4]> =
        values.iter().flat_map(|&a| values.iter().map(move |&b| [a, b, a ^ b, b >> 3])).collect();
    inputs.extend((0..400).map(|i| [next(), next() >> (i % 60), next() >> (i % 7), next() >> 58]));
    inputs
}

/// f32 operands in the low half of each value: special ones and many exponents.
pub(crate) fn floats() -> Vec<[u64; 4]> {
    let special = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        1e-40,
        -1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        1e10,
        -1e10,
        65504.0,
        65520.0,
        1e-8,
        0.1,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        255.5,
        2147483648.0,
    ];
    let bits = |v: f32| u64::from(v.to_bits());
    let mut inputs: Vec<[u64; 4]> = special
        .iter()
        .flat_map(|&a| special.iter().map(move |&b| [bits(a), bits(b), bits(a - b * 0.5), bits(b)]))
        .collect();
    let mut state = 77u64;
    inputs.extend((0..400).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = |shift: u32| {
            let bits = (state >> shift) as u32;
            u64::from(bits & 0x83ff_ffff | 0x3c00_0000)
        };
        [value(0), value(9), value(17), value(30)]
    }));
    inputs
}

pub(crate) fn doubles() -> Vec<[u64; 4]> {
    let special =
        [0.0, -0.0, 1.0, -1.5, 0.1, 1e300, -1e300, 1e-310, 2.5, -3.5, 4e9, -4e9, 1e19, f64::INFINITY];
    let mut inputs: Vec<[u64; 4]> = special
        .iter()
        .flat_map(|a: &f64| {
            special.iter().map(move |b: &f64| [a.to_bits(), b.to_bits(), (a * 0.7 + b).to_bits(), 0])
        })
        .collect();
    inputs.extend((1..300u64).map(|n| {
        let bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = |b: u64| b & 0x8fff_ffff_ffff_ffff | 0x3000_0000_0000_0000 | (n % 16) << 52;
        [value(bits), value(bits.rotate_left(17)), value(bits.rotate_left(31)), 0]
    }));
    inputs
}

pub(crate) fn check(body: &str, result: &str, inputs: &[[u64; 4]], expected: impl Fn([u64; 4]) -> u64) {
    for (input, got) in inputs.iter().zip(evaluate(body, result, inputs)) {
        let expected = expected(*input);
        assert_eq!(got, expected, "`{body}` of {input:x?} gave {got:#x}, expected {expected:#x}");
    }
}

macro_rules! word {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "32", &$inputs, |[$a, $b, $c, _]| {
            let ($a, $b, $c) = ($a as u32, $b as u32, $c as u32);
            let _ = ($a, $b, $c);
            u64::from(($e) as u32)
        });
    )*};
}

macro_rules! double {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "64", &$inputs, |[$a, $b, $c, _]| { let _ = ($a, $b, $c); ($e) as u64 });
    )*};
}

macro_rules! short {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "16", &$inputs, |[$a, $b, $c, _]| {
            let ($a, $b, $c) = ($a as u16, $b as u16, $c as u16);
            let _ = ($a, $b, $c);
            u64::from(($e) as u16)
        });
    )*};
}

/// The bits of an f32 as the GPU writes it.
pub(crate) fn bits(value: f32) -> u64 {
    if value.is_nan() { 0x7fff_ffff } else { u64::from(value.to_bits()) }
}

pub(crate) fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

pub(crate) use {double, short, word};
