//! What keys and values are stored as: as the elements that are multiplied, or in 8 bits, with scales.
//!
//! Keys and values of 8 bits are copied as they are. What a block is about to multiply is widened in shared memory, exactly, to where keys of 16 bits would be.

use super::PortableElement;
use crate::KernelParam;
use crate::float::{Bf16, F16, HalfElement, Stored};
use crate::launch::Global;
use crate::ptx;

/// What keys and values are stored as, for products of elements `T`.
pub trait StoredKeys<T>: Stored {
    /// Whether they are widened before they are multiplied.
    const IS_WIDENED: bool;

    /// The 16 numbers of a chunk of 16 bytes, in their order.
    fn widen(words: [u32; 4], is_e5m2: bool) -> [[u32; 4]; 2];
}

impl<T: PortableElement> StoredKeys<T> for T {
    const IS_WIDENED: bool = false;

    #[inline(always)]
    fn widen(words: [u32; 4], _: bool) -> [[u32; 4]; 2] {
        [words, words]
    }
}

/// Numbers of 8 bits, e4m3 or e5m2 as a launch says; `CONVERTS` if the GPU has an instruction that widens them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Fp8<const CONVERTS: bool>(u8);

impl<const CONVERTS: bool> Stored for Fp8<CONVERTS> {
    const BYTES: u32 = 1;
}

/// An element type that all numbers of 8 bits are of.
pub trait WidenedElement: PortableElement + HalfElement {
    /// Two e4m3 numbers in the upper bytes of the halves of a word: but for NaN, which becomes 480 or −480.
    fn of_e4m3(upper_bytes: u32) -> u32;

    /// Two f16 numbers that are of this type.
    fn of_f16(pair: u32) -> u32;
}

impl WidenedElement for F16 {
    /// The fields of an e4m3 number are those of an f16 that is eight exponents too small.
    #[inline(always)]
    fn of_e4m3(upper_bytes: u32) -> u32 {
        const TWO_8: u32 = 0x5c00_5c00;
        let fields = ptx::lop3_and_or(upper_bytes, SIGNS, upper_bytes >> 1 & 0x3f80_3f80);
        ptx::mul_f16x2(fields, TWO_8)
    }

    #[inline(always)]
    fn of_f16(pair: u32) -> u32 {
        pair
    }
}

impl WidenedElement for Bf16 {
    /// The fields of an e4m3 number are those of a bf16 that is 120 exponents too small.
    #[inline(always)]
    fn of_e4m3(upper_bytes: u32) -> u32 {
        const TWO_120: u32 = 0x7b80_7b80;
        let fields = ptx::lop3_and_or(upper_bytes, SIGNS, upper_bytes >> 4 & 0x07f0_07f0);
        // What is added to −0 stays what it is.
        ptx::fma_bf16x2(fields, TWO_120, SIGNS)
    }

    #[inline(always)]
    fn of_f16(pair: u32) -> u32 {
        Self::pack(F16::unpack(pair))
    }
}

/// The signs of two numbers of 16 bits.
const SIGNS: u32 = 0x8000_8000;

impl<T: WidenedElement, const CONVERTS: bool> StoredKeys<T> for Fp8<CONVERTS> {
    const IS_WIDENED: bool = true;

    #[inline(always)]
    fn widen(words: [u32; 4], is_e5m2: bool) -> [[u32; 4]; 2] {
        let mut all = [[0; 4]; 2];
        if is_e5m2 {
            for (index, word) in words.into_iter().enumerate() {
                let pairs = if CONVERTS {
                    [word, word >> 16].map(|pair| ptx::cvt_f16x2_e5m2x2(pair as u16))
                } else {
                    // An e5m2 number is the upper half of an f16.
                    upper_bytes(word)
                };
                let [low, high] = pairs.map(T::of_f16);
                (all[index / 2][index % 2 * 2], all[index / 2][index % 2 * 2 + 1]) = (low, high);
            }
        } else {
            for (index, word) in words.into_iter().enumerate() {
                let [low, high] = if CONVERTS {
                    [word, word >> 16].map(|pair| T::of_f16(ptx::cvt_f16x2_e4m3x2(pair as u16)))
                } else {
                    of_e4m3::<T>(word)
                };
                (all[index / 2][index % 2 * 2], all[index / 2][index % 2 * 2 + 1]) = (low, high);
            }
        }
        all
    }
}

/// The bytes of a word in the upper bytes of four halves.
#[inline(always)]
fn upper_bytes(word: u32) -> [u32; 2] {
    [0x1404, 0x3424].map(|selector| ptx::prmt(word, 0, selector))
}

/// Four e4m3 numbers by integer arithmetic.
#[inline(always)]
fn of_e4m3<T: WidenedElement>(word: u32) -> [u32; 2] {
    // The highest bit of each byte: whether it is NaN, all of whose bits but the sign are 1.
    let is_nan = (word & 0x7f7f_7f7f) + 0x0101_0101;
    let [low, high] = upper_bytes(word).map(T::of_e4m3);
    // `prmt` with 8 more repeats the highest bit of a byte.
    let nans = [0x9988, 0xbbaa].map(|selector| ptx::prmt(is_nan, is_nan, selector));
    [ptx::lop3_and_or(nans[0], !SIGNS, low), ptx::lop3_and_or(nans[1], !SIGNS, high)]
}

/// The format of keys and values of 8 bits, and what the stored numbers are multiplied with. What is null is 1.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Fp8Keys {
    /// The scale of keys.
    pub k_scale: Global<f32>,
    /// The scale of values.
    pub v_scale: Global<f32>,
    /// Scales of keys from one head to the next: 0 if all heads have the same.
    pub k_head: u32,
    /// The same of values.
    pub v_head: u32,
    /// 1 if numbers are e5m2, else 0.
    pub is_e5m2: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

impl Fp8Keys {
    /// What keys and values that are not of 8 bits have.
    pub const NONE: Self = Self {
        k_scale: Global::new(0),
        v_scale: Global::new(0),
        k_head: 0,
        v_head: 0,
        is_e5m2: 0,
        reserved: 0,
    };

    /// The scale of keys of a head of theirs.
    ///
    /// # Safety
    ///
    /// The pointer is valid for the head's scale if it is not null, and nothing writes there.
    #[inline(always)]
    pub(super) unsafe fn of_keys(&self, head: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { scale(self.k_scale, self.k_head * head) }
    }

    /// The scale of values of a head of theirs.
    ///
    /// # Safety
    ///
    /// As [`of_keys`](Self::of_keys).
    #[inline(always)]
    pub(super) unsafe fn of_values(&self, head: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { scale(self.v_scale, self.v_head * head) }
    }
}

/// # Safety
///
/// As [`Fp8Keys::of_keys`].
#[inline(always)]
unsafe fn scale(of: Global<f32>, at: u32) -> f32 {
    if of.is_null() {
        return 1.0;
    }
    // SAFETY: the caller's promise.
    unsafe { ptx::ld_global_nc_f32(of.offset(at as u64).address()) }
}
