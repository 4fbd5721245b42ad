//! Operands of matrix products as bits: of all kinds that tensor cores treat differently, made from counters.

/// The kinds of operands.
pub(crate) const KINDS: u64 = 7;

/// Bits of the exponent and of the significand.
fn format(name: &str) -> (u32, u32) {
    match name {
        "f16" => (5, 10),
        "bf16" => (8, 7),
        "e4m3" => (4, 3),
        "e5m2" => (5, 2),
        _ => (8, 23),
    }
}

/// Bytes of an element.
pub(crate) fn width(name: &str) -> usize {
    match name {
        "f16" | "bf16" => 2,
        "tf32" | "f32" | "s32" => 4,
        _ => 1,
    }
}

/// The random number that belongs to a place in a stream (SplitMix64's finaliser of a counter).
pub(crate) fn random(key: u64, index: u64) -> u64 {
    let value = index.wrapping_add((key << 32).wrapping_add(0x9e37_79b9_7f4a_7c15));
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The exponent field of an element: moderate, of all sizes, as the first, subnormal, special now and then, any, wide.
fn exponent(kind: u64, r: u64, bits: u32) -> u64 {
    let (bias, top) = ((1 << (bits - 1)) - 1, (1 << bits) - 1);
    let (e, choose) = (r >> 32 & 0xffff, r >> 56 & 15);
    let near = bias - 3 + e % 6;
    match kind {
        0 | 2 => near,
        1 => e % top,
        3 if choose < 8 => 0,
        3 => 1 + e % 3,
        4 if choose == 0 => top,
        4 => near,
        5 => e % (top + 1),
        _ => (bias - 10u64.min(bias - 1) + e % 20).min(top - 1),
    }
}

/// Infinity half of the time that an element is special.
fn significand(kind: u64, r: u64, exponent: u64, bits: (u32, u32)) -> u64 {
    let infinite = kind == 4 && exponent == (1 << bits.0) - 1 && r >> 52 & 1 == 0;
    if infinite { 0 } else { r >> 1 & ((1 << bits.1) - 1) }
}

/// The elements of A (even keys) or B (odd ones) as bytes. In kind 2, neighbours all but cancel each other.
pub(crate) fn elements(ty: &str, kind: u64, key: u64, count: u64) -> Vec<u8> {
    let (e, m) = format(ty);
    let element = |i: u64| {
        let r = random(key, i);
        match ty {
            "s8" | "u8" => return r & 0xff,
            "s32" => return r & 0xffff_ffff,
            _ => {}
        }
        let r = if kind == 2 { random(key, i & !1) } else { r };
        let flip = if kind == 2 && key & 1 == 0 { i & 1 } else { 0 };
        let exponent = exponent(kind, r, e);
        let significand = significand(kind, r, exponent, (e, m)) ^ flip;
        ((r & 1) ^ flip) << (e + m) | exponent << m | significand
    };
    (0..count).flat_map(|i| element(i).to_le_bytes()[..width(ty)].to_vec()).collect()
}

/// The elements of C as bytes.
pub(crate) fn addends(ty: &str, kind: u64, key: u64, count: u64) -> Vec<u8> {
    if ty != "f32" {
        return elements(ty, kind, key, count);
    }
    let element = |i: u64| {
        let r = random(key, i);
        let (e, choose) = (r >> 32 & 0xffff, r >> 56 & 15);
        let exponent = match kind {
            1 => 97 + e % 60,
            3 if choose < 4 => 0,
            3 => 79 + e % 24,
            6 => 112 + e % 30,
            4 | 5 => exponent(kind, r, 8),
            _ => exponent(0, r, 8),
        };
        ((r & 1) << 31 | exponent << 23 | significand(kind, r, exponent, (8, 23))) as u32
    };
    (0..count).flat_map(|i| element(i).to_le_bytes()).collect()
}

/// Bytes of which every element is 0, ±1 or ±2.
pub(crate) fn small(ty: &str, bytes: u64) -> Vec<u8> {
    let values: [u32; 5] = match ty {
        "f16" => [0, 0x3c00, 0xbc00, 0x4000, 0xc000],
        "bf16" => [0, 0x3f80, 0xbf80, 0x4000, 0xc000],
        "e4m3" => [0, 0x38, 0xb8, 0x40, 0xc0],
        _ => [0, 0x3f80_0000, 0xbf80_0000, 0x4000_0000, 0xc000_0000],
    };
    let width = width(ty);
    (0..bytes / width as u64)
        .flat_map(|i| values[(random(77, i) % 5) as usize].to_le_bytes()[..width].to_vec())
        .collect()
}
