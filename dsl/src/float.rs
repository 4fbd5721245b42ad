//! The element types of tensors: f32, and the 16-bit types that travel as their bits.

use crate::launch::{Global, GlobalMut};
use crate::ptx;

/// An IEEE 754 half-precision number, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A bfloat16 number (the upper half of an f32), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// An 8-bit floating-point number of 4 exponent and 3 fraction bits without infinities (OCP's E4M3), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// An 8-bit floating-point number of 5 exponent and 2 fraction bits (OCP's E5M2), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// An 8-bit floating-point type.
pub trait Float8: Copy + 'static {
    /// The number of these bits, in f32. It is one of f16, too.
    fn to_f32(bits: u8) -> f32;
}

impl Float8 for F8E4M3 {
    /// The bits stand seven exponents too low for an f32 of their fields, 120 for the numbers: a multiplication puts both right, and
    /// subnormal numbers as well.
    #[inline(always)]
    fn to_f32(bits: u8) -> f32 {
        const REBIAS: f32 = f32::from_bits((127 + 127 - 7) << 23);
        let (sign, magnitude) = ((bits as u32 & 0x80) << 24, bits as u32 & 0x7f);
        let number = f32::from_bits(sign | (magnitude << 20)) * REBIAS;
        if magnitude == 0x7f { f32::NAN } else { number }
    }
}

impl Float8 for F8E5M2 {
    /// e5m2 is the upper half of an f16.
    #[inline(always)]
    fn to_f32(bits: u8) -> f32 {
        ptx::cvt_f32_f16((bits as u16) << 8)
    }
}

/// The e4m3 number nearest to `value`, ties to even, as its bits: ±448 for what is beyond, also for infinities, and NaN for NaN.
#[inline(always)]
#[must_use]
pub fn e4m3_from_f32(value: f32) -> u32 {
    narrowed::<3, 7>(value, 0x7e, 0x7f)
}

/// The e5m2 number nearest to `value`, ties to even, as its bits: ±57344 for what is beyond, also for infinities, and NaN for NaN.
#[inline(always)]
#[must_use]
pub fn e5m2_from_f32(value: f32) -> u32 {
    narrowed::<2, 15>(value, 0x7b, 0x7f)
}

/// The nearest number of so many fraction bits and such an exponent bias, at most `largest`.
#[inline(always)]
fn narrowed<const FRACTION: u32, const BIAS: u32>(value: f32, largest: u32, nan: u32) -> u32 {
    let (sign, magnitude) = (value.to_bits() >> 24 & 0x80, value.to_bits() & 0x7fff_ffff);
    let dropped = 23 - FRACTION;
    // To even: half a unit, less the least bit unless the unit is odd. A carry goes into the exponent, where it belongs.
    let rounded = magnitude + (1 << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
    let normal = (rounded >> dropped).wrapping_sub((127 - BIAS) << FRACTION);
    // A sum of such a number is rounded to the least subnormal number, in whose units its last bits count.
    let unit = f32::from_bits((127 + 1 - BIAS - FRACTION + 23) << 23);
    let subnormal = (f32::from_bits(magnitude) + unit).to_bits().wrapping_sub(unit.to_bits());
    let is_normal = magnitude >= (127 + 1 - BIAS) << 23;
    let number = if is_normal { normal } else { subnormal };
    let number = if number < largest { number } else { largest };
    sign | if magnitude > 0x7f80_0000 { nan } else { number }
}

/// What the rows of an operand consist of, as copies to shared memory see it.
pub trait Stored: Copy + 'static {
    /// Its size in bytes: 1, 2 or 4.
    const BYTES: u32;
}

/// An 8-bit number of either type, whose type the product knows.
impl Stored for u8 {
    const BYTES: u32 = 1;
}

/// A number that tensors hold: how it is loaded, stored and converted.
pub trait Element: Stored {
    /// Loads an element from memory that nothing writes while the kernel runs.
    ///
    /// # Safety
    ///
    /// The pointer is valid for a read of one element, aligned to it.
    unsafe fn load_read_only(from: Global<Self>) -> Self;

    /// As [`load_read_only`](Self::load_read_only) if `condition` holds; else zero, without a branch.
    ///
    /// # Safety
    ///
    /// As [`load_read_only`](Self::load_read_only), if `condition` holds.
    unsafe fn load_read_only_if(from: Global<Self>, condition: bool) -> Self;

    /// As [`load_read_only_if`](Self::load_read_only_if), two elements in one instruction, in f32.
    ///
    /// # Safety
    ///
    /// As [`load_read_only`](Self::load_read_only) for two elements, if `condition` holds, and the address is a multiple of their size.
    unsafe fn load_pair_if(from: Global<Self>, condition: bool) -> [f32; 2];

    /// Loads an element from memory that this thread may write later, if `condition` holds; else zero, without a branch.
    ///
    /// # Safety
    ///
    /// The pointer is valid for a read of one element, aligned to it, if `condition` holds.
    unsafe fn load_if(from: Global<Self>, condition: bool) -> Self;

    /// As [`load_if`](Self::load_if), four elements in one instruction, in f32.
    ///
    /// # Safety
    ///
    /// The pointer is valid for a read of four elements, and the address is a multiple of their size.
    unsafe fn load_4(from: Global<Self>) -> [f32; 4];

    /// As [`load_4`](Self::load_4) if `condition` holds, else zeros, without a branch; in as few registers as they take, as
    /// [`words_to_f32`](Self::words_to_f32) takes them.
    ///
    /// # Safety
    ///
    /// As [`load_4`](Self::load_4), if `condition` holds.
    unsafe fn load_words_if(from: Global<Self>, condition: bool) -> [u32; 4];

    /// Four elements as [`load_words_if`](Self::load_words_if) has them.
    fn to_words(elements: [Self; 4]) -> [u32; 4];

    /// Four elements in f32.
    fn words_to_f32(words: [u32; 4]) -> [f32; 4];

    /// The same number in f32.
    fn to_f32(self) -> f32;

    /// As [`to_f32`](Self::to_f32), by what the compiler moves to where the number is used: nobody waits for an element that was loaded long
    /// before. (It moves no instruction that is given to it as text.)
    fn to_f32_where_used(self) -> f32;

    /// Rounds to the nearest element, ties to even, and stores it.
    ///
    /// # Safety
    ///
    /// The pointer is valid for a write of one element, aligned to it, and no other thread touches it.
    unsafe fn store_rounded(to: GlobalMut<Self>, value: f32);

    /// Rounds two numbers to the nearest elements, ties to even, and stores them in one instruction.
    ///
    /// # Safety
    ///
    /// As [`store_rounded`](Self::store_rounded) for two elements, and the address is a multiple of their size.
    unsafe fn store_rounded_2(to: GlobalMut<Self>, values: [f32; 2]);

    /// Rounds four numbers to the nearest elements, ties to even, and stores them in one instruction.
    ///
    /// # Safety
    ///
    /// As [`store_rounded`](Self::store_rounded) for four elements, and the address is a multiple of their size.
    unsafe fn store_rounded_4(to: GlobalMut<Self>, values: [f32; 4]);
}

macro_rules! half_element {
    ($element:ident, $from_f32:ident, $pack:ident, $to_f32:expr, $to_f32_where_used:expr) => {
        impl HalfElement for $element {
            #[inline(always)]
            fn pack(values: [f32; 2]) -> u32 {
                ptx::$pack(values[1], values[0])
            }

            #[inline(always)]
            fn unpack(word: u32) -> [f32; 2] {
                [word, word >> 16].map(|bits| Self(bits as u16).to_f32())
            }
        }

        impl Stored for $element {
            const BYTES: u32 = 2;
        }

        impl Element for $element {
            #[inline(always)]
            unsafe fn load_read_only(from: Global<Self>) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { ptx::ld_global_nc_b16(from.address()) })
            }

            #[inline(always)]
            unsafe fn load_read_only_if(from: Global<Self>, condition: bool) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { ptx::ld_global_nc_b16_if(from.address(), condition) })
            }

            #[inline(always)]
            unsafe fn load_pair_if(from: Global<Self>, condition: bool) -> [f32; 2] {
                // SAFETY: the caller's promise.
                let word = unsafe { ptx::ld_global_nc_f32_if(from.address(), condition) }.to_bits();
                [word, word >> 16].map(|bits| Self(bits as u16).to_f32_where_used())
            }

            #[inline(always)]
            unsafe fn load_if(from: Global<Self>, condition: bool) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { ptx::ld_global_b16_if(from.address(), condition) })
            }

            #[inline(always)]
            unsafe fn load_4(from: Global<Self>) -> [f32; 4] {
                // SAFETY: the caller's promise.
                let [low, high] = unsafe { ptx::ld_global_v2_b32(from.address()) };
                [low, low >> 16, high, high >> 16].map(|bits| Self(bits as u16).to_f32())
            }

            /// Two words have all.
            #[inline(always)]
            unsafe fn load_words_if(from: Global<Self>, condition: bool) -> [u32; 4] {
                // SAFETY: the caller's promise.
                let [low, high] = unsafe { ptx::ld_global_v2_b32_if(from.address(), condition) };
                [low, high, 0, 0]
            }

            #[inline(always)]
            fn to_words([a, b, c, d]: [Self; 4]) -> [u32; 4] {
                let pair = |low: Self, high: Self| low.0 as u32 | (high.0 as u32) << 16;
                [pair(a, b), pair(c, d), 0, 0]
            }

            #[inline(always)]
            fn words_to_f32([low, high, _, _]: [u32; 4]) -> [f32; 4] {
                let ([a, b], [c, d]) = (Self::unpack(low), Self::unpack(high));
                [a, b, c, d]
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self.0)
            }

            #[inline(always)]
            fn to_f32_where_used(self) -> f32 {
                $to_f32_where_used(self.0)
            }

            #[inline(always)]
            unsafe fn store_rounded(to: GlobalMut<Self>, value: f32) {
                // SAFETY: the caller's promise.
                unsafe { ptx::st_global_b16(to.address(), ptx::$from_f32(value)) }
            }

            #[inline(always)]
            unsafe fn store_rounded_2(to: GlobalMut<Self>, v: [f32; 2]) {
                // SAFETY: the caller's promise.
                unsafe { ptx::st_global_b32(to.address(), Self::pack(v)) }
            }

            #[inline(always)]
            unsafe fn store_rounded_4(to: GlobalMut<Self>, v: [f32; 4]) {
                // SAFETY: the caller's promise.
                unsafe {
                    ptx::st_global_v2_b32(to.address(), [Self::pack([v[0], v[1]]), Self::pack([v[2], v[3]])])
                }
            }
        }
    };
}
half_element!(F16, cvt_f16_f32, cvt_f16x2_f32, ptx::cvt_f32_f16, widened_f16);
half_element!(Bf16, cvt_bf16_f32, cvt_bf16x2_f32, widened_bf16, widened_bf16);

/// The bf16 of these bits, in f32.
#[inline(always)]
fn widened_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The f16 of these bits, in f32.
#[inline(always)]
fn widened_f16(bits: u16) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        f16::from_bits(bits) as f32
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        ptx::cvt_f32_f16(bits)
    }
}

/// An element of 16 bits, of which a register holds two.
pub trait HalfElement: Element {
    /// Rounds two numbers to the nearest elements, ties to even; the first is in the lower half.
    fn pack(values: [f32; 2]) -> u32;

    /// The two elements of a register in f32, the lower half's first.
    fn unpack(word: u32) -> [f32; 2];
}

impl Stored for f32 {
    const BYTES: u32 = 4;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load_read_only(from: Global<Self>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_nc_f32(from.address()) }
    }

    #[inline(always)]
    unsafe fn load_read_only_if(from: Global<Self>, condition: bool) -> Self {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_nc_f32_if(from.address(), condition) }
    }

    #[inline(always)]
    unsafe fn load_pair_if(from: Global<Self>, condition: bool) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_nc_v2_f32_if(from.address(), condition) }
    }

    #[inline(always)]
    unsafe fn load_if(from: Global<Self>, condition: bool) -> Self {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_f32_if(from.address(), condition) }
    }

    #[inline(always)]
    unsafe fn load_4(from: Global<Self>) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_v4_b32(from.address()) }.map(f32::from_bits)
    }

    #[inline(always)]
    unsafe fn load_words_if(from: Global<Self>, condition: bool) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_v4_b32_if(from.address(), condition) }
    }

    #[inline(always)]
    fn to_words(elements: [Self; 4]) -> [u32; 4] {
        elements.map(f32::to_bits)
    }

    #[inline(always)]
    fn words_to_f32(words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn to_f32_where_used(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn store_rounded(to: GlobalMut<Self>, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_global_b32(to.address(), value.to_bits()) }
    }

    #[inline(always)]
    unsafe fn store_rounded_2(to: GlobalMut<Self>, v: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_global_v2_b32(to.address(), v.map(f32::to_bits)) }
    }

    #[inline(always)]
    unsafe fn store_rounded_4(to: GlobalMut<Self>, v: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_global_v4_b32(to.address(), v.map(f32::to_bits)) }
    }
}
