//! How each element type goes through the tensor cores.
//!
//! A k-step is 32 bytes of every row: 32 elements of an 8-bit type, 16 of a 16-bit type, 8 of f32. The fragments of all types are loaded
//! alike, by `ldmatrix`; they differ in what is done with the loaded words.

use crate::float::{Bf16, Element, F16};
use crate::gemm::turing::TuringElement;
use crate::ptx;

/// A type that the tensor cores multiply, with accumulation in f32.
pub trait MmaElement: Element + TuringElement + MmaProducts {
    /// The products of which there is one a step, whatever the elements have to be rounded to.
    type Single: MmaProducts;
}

/// How the loaded words of a k-step are multiplied.
pub trait MmaProducts {
    /// A 16-row fragment of A, ready for the product.
    type A: Copy;
    /// An 8-column fragment of B, ready for the product.
    type B: Copy;

    /// Whether products are made of parts of the elements, so that sums which are not finite are [added up again](super::again).
    const IS_SPLIT: bool;
    /// Whether a slot of the ring is summed from zero, and its sums are added to the accumulators outside the tensor cores.
    const IS_PROMOTED: bool = false;

    /// Prepares a loaded fragment of A.
    fn prepare_a(words: [u32; 4]) -> Self::A;
    /// Prepares a loaded fragment of B.
    fn prepare_b(words: [u32; 2]) -> Self::B;

    /// `c += a · b` over one k-step.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    unsafe fn multiply_add(c: &mut [f32; 4], a: Self::A, b: Self::B);
}

/// Products whose instruction takes the loaded words as they are.
macro_rules! products_of_words {
    ($products:ty, $mma:ident, is_promoted = $is_promoted:literal) => {
        impl MmaProducts for $products {
            type A = [u32; 4];
            type B = [u32; 2];

            const IS_SPLIT: bool = false;
            const IS_PROMOTED: bool = $is_promoted;

            #[inline(always)]
            fn prepare_a(words: [u32; 4]) -> Self::A {
                words
            }

            #[inline(always)]
            fn prepare_b(words: [u32; 2]) -> Self::B {
                words
            }

            #[inline(always)]
            unsafe fn multiply_add(c: &mut [f32; 4], a: Self::A, b: Self::B) {
                // SAFETY: the caller's promise.
                unsafe { ptx::$mma(c, a, b) }
            }
        }
    };
}
pub(super) use products_of_words;

macro_rules! half_mma {
    ($element:ident, $mma:ident) => {
        impl MmaElement for $element {
            type Single = Self;
        }

        products_of_words!($element, $mma, is_promoted = false);
    };
}
half_mma!(F16, mma_m16n8k16_f16);
half_mma!(Bf16, mma_m16n8k16_bf16);

/// f32 words as the sum of two TF32 words: `big` keeps the upper 11 bits of the significand, `small` the next 11.
///
/// `big` is cut off rather than rounded, so it never overflows; the remainder is exact, and bringing it to 11 bits leaves an
/// error of at most 2⁻²¹ of the number. Of a NaN, `small` at least is one; of an infinity too.
#[derive(Clone, Copy)]
pub struct Split<const WORDS: usize> {
    big: [u32; WORDS],
    small: [u32; WORDS],
}

/// The bits of an f32 that TF32 keeps.
const TF32_MASK: u32 = 0xffff_e000;
/// Rounds a number whose low 13 bits the tensor cores then ignore: what they cut off of the product differs from the number by at
/// most 2⁻¹¹ of it, and not at all from one that TF32 holds exactly. A multiplication costs less than `cvt.rna.tf32`, and unlike an
/// integer addition to the bits it keeps every NaN.
const ROUNDING: f32 = 1.0 + 1.0 / 2048.0;

impl<const WORDS: usize> Split<WORDS> {
    #[inline(always)]
    fn new(words: [u32; WORDS]) -> Self {
        let big = words.map(|word| word & TF32_MASK);
        Self { big, small: small_parts(words) }
    }
}

/// The small parts of f32 words.
#[inline(always)]
pub(super) fn small_parts<const WORDS: usize>(words: [u32; WORDS]) -> [u32; WORDS] {
    words.map(|word| {
        let rest = f32::from_bits(word) - f32::from_bits(word & TF32_MASK);
        (rest * ROUNDING).to_bits()
    })
}

impl MmaElement for f32 {
    type Single = Tf32;
}

/// f32 to f32 accuracy: three products of TF32 parts, the fourth (small · small) being below f32's own rounding.
///
/// The tensor cores cut their sums off, always towards zero, which over a long K adds up to more than f32's error. So a
/// k-step is summed from zero, and added to the accumulator with ordinary, rounding additions.
impl MmaProducts for f32 {
    type A = Split<4>;
    type B = Split<2>;

    // Not on sm_75, where f32 is multiplied outside the tensor cores.
    const IS_SPLIT: bool = !cfg!(feature = "turing");

    #[inline(always)]
    fn prepare_a(words: [u32; 4]) -> Self::A {
        Split::new(words)
    }

    #[inline(always)]
    fn prepare_b(words: [u32; 2]) -> Self::B {
        Split::new(words)
    }

    #[inline(always)]
    unsafe fn multiply_add(c: &mut [f32; 4], a: Self::A, b: Self::B) {
        let mut step = [0.0; 4];
        // SAFETY: the caller's promise.
        unsafe {
            ptx::mma_m16n8k8_tf32(&mut step, a.small, b.big);
            ptx::mma_m16n8k8_tf32(&mut step, a.big, b.small);
            ptx::mma_m16n8k8_tf32(&mut step, a.big, b.big);
        }
        for i in 0..4 {
            c[i] += step[i];
        }
    }
}

/// f32 rounded to TF32, one product a step.
///
/// A number beyond the largest that TF32 holds becomes an infinity.
#[derive(Clone, Copy, Debug)]
pub enum Tf32 {}

impl MmaProducts for Tf32 {
    type A = [u32; 4];
    type B = [u32; 2];

    const IS_SPLIT: bool = false;

    #[inline(always)]
    fn prepare_a(words: [u32; 4]) -> Self::A {
        rounded(words)
    }

    #[inline(always)]
    fn prepare_b(words: [u32; 2]) -> Self::B {
        rounded(words)
    }

    #[inline(always)]
    unsafe fn multiply_add(c: &mut [f32; 4], a: Self::A, b: Self::B) {
        // SAFETY: the caller's promise.
        unsafe { ptx::mma_m16n8k8_tf32(c, a, b) }
    }
}

/// f32 words that the tensor cores take for the nearest TF32 numbers, or nearly.
#[inline(always)]
fn rounded<const WORDS: usize>(words: [u32; WORDS]) -> [u32; WORDS] {
    words.map(|word| (f32::from_bits(word) * ROUNDING).to_bits())
}

/// Which products a tile makes of its elements.
pub trait Rule: 'static {
    /// The products of elements `T`.
    type Of<T: MmaElement>: MmaProducts;
}

/// Products to the accuracy of the elements.
#[derive(Debug)]
pub enum Exact {}
/// One product a step: f32 is rounded to TF32.
#[derive(Debug)]
pub enum Single {}

impl Rule for Exact {
    type Of<T: MmaElement> = T;
}

impl Rule for Single {
    type Of<T: MmaElement> = T::Single;
}
