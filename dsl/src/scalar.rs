//! The numbers that kernels load and store one at a time.

use crate::float::{Bf16, F8E4M3, F8E5M2, F16};
use crate::ptx;

mod sealed {
    pub trait Sealed {}
}

/// A number of 1, 2, 4 or 8 bytes that a register holds; every bit pattern of that size is one.
pub trait Scalar: Copy + 'static + sealed::Sealed {
    /// Loads from global memory that the kernel may write (`ld.global`).
    ///
    /// # Safety
    ///
    /// The address is valid for a read, aligned to the type, and no other thread writes there unordered.
    unsafe fn load_global(address: u64) -> Self;

    /// Loads from global memory that nothing writes while the kernel runs (`ld.global.nc`).
    ///
    /// # Safety
    ///
    /// The address is valid for a read, aligned to the type.
    unsafe fn load_global_read_only(address: u64) -> Self;

    /// Stores to global memory (`st.global`).
    ///
    /// # Safety
    ///
    /// The address is valid for a write, aligned to the type, and no other thread touches the place unordered.
    unsafe fn store_global(address: u64, value: Self);

    /// Loads from shared memory (`ld.shared`).
    ///
    /// # Safety
    ///
    /// As [`load_global`](Self::load_global).
    unsafe fn load_shared(address: u32) -> Self;

    /// Stores to shared memory (`st.shared`).
    ///
    /// # Safety
    ///
    /// As [`store_global`](Self::store_global).
    unsafe fn store_shared(address: u32, value: Self);
}

macro_rules! scalar {
    ($(
        $scalar:ty: $load:ident $load_nc:ident $store:ident $load_shared:ident $store_shared:ident,
        $from:expr, $to:expr;
    )*) => { $(
        impl sealed::Sealed for $scalar {}
        impl Scalar for $scalar {
            #[inline(always)]
            unsafe fn load_global(address: u64) -> Self {
                // SAFETY: the caller's promise.
                $from(unsafe { ptx::$load(address) })
            }
            #[inline(always)]
            unsafe fn load_global_read_only(address: u64) -> Self {
                // SAFETY: the caller's promise.
                $from(unsafe { ptx::$load_nc(address) })
            }
            #[inline(always)]
            unsafe fn store_global(address: u64, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { ptx::$store(address, $to(value)) }
            }
            #[inline(always)]
            unsafe fn load_shared(address: u32) -> Self {
                // SAFETY: the caller's promise.
                $from(unsafe { ptx::$load_shared(address) })
            }
            #[inline(always)]
            unsafe fn store_shared(address: u32, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { ptx::$store_shared(address, $to(value)) }
            }
        }
    )* };
}
macro_rules! scalars {
    ($($size:ident { $($scalar:ty, $from:expr, $to:expr;)* })*) => { $($(scalars!(@ $size $scalar, $from, $to);)*)* };
    (@ b8 $scalar:ty, $from:expr, $to:expr) => {
        scalar!($scalar: load_global_b8 load_global_nc_b8 store_global_b8 load_shared_b8 store_shared_b8, $from, $to;);
    };
    (@ b16 $scalar:ty, $from:expr, $to:expr) => {
        scalar!($scalar: load_global_b16 load_global_nc_b16 store_global_b16 load_shared_b16 store_shared_b16, $from, $to;);
    };
    (@ b32 $scalar:ty, $from:expr, $to:expr) => {
        scalar!($scalar: load_global_b32 load_global_nc_b32 store_global_b32 load_shared_b32 store_shared_b32, $from, $to;);
    };
    (@ b64 $scalar:ty, $from:expr, $to:expr) => {
        scalar!($scalar: load_global_b64 load_global_nc_b64 store_global_b64 load_shared_b64 store_shared_b64, $from, $to;);
    };
}
scalars! {
    b8 {
        u8, |bits: u16| bits as u8, |value: u8| value as u16;
        i8, |bits: u16| bits as i8, |value: i8| value as u16;
        F8E4M3, |bits: u16| F8E4M3(bits as u8), |value: F8E4M3| value.0 as u16;
        F8E5M2, |bits: u16| F8E5M2(bits as u8), |value: F8E5M2| value.0 as u16;
    }
    b16 {
        u16, |bits: u16| bits, |value: u16| value;
        i16, |bits: u16| bits as i16, |value: i16| value as u16;
        F16, F16, |value: F16| value.0;
        Bf16, Bf16, |value: Bf16| value.0;
    }
    b32 {
        u32, |bits: u32| bits, |value: u32| value;
        i32, |bits: u32| bits as i32, |value: i32| value as u32;
        f32, f32::from_bits, f32::to_bits;
    }
    b64 {
        u64, |bits: u64| bits, |value: u64| value;
        i64, |bits: u64| bits as i64, |value: i64| value as u64;
        f64, f64::from_bits, f64::to_bits;
    }
}

/// A number that lanes exchange, add and compare: f32, u32, i32.
pub trait Number: Scalar + PartialOrd {
    /// Nothing added.
    const ZERO: Self;

    /// The number's bits.
    fn to_word(self) -> u32;
    /// The number of these bits.
    fn from_word(word: u32) -> Self;
    /// The sum; integers wrap around.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// The larger one; of an f32 the one that is a number.
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// The smaller one; of an f32 the one that is a number.
    #[must_use]
    fn smaller(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($integer:ty),*) => { $(
        impl Number for $integer {
            const ZERO: Self = 0;

            #[inline(always)]
            fn to_word(self) -> u32 {
                self as u32
            }
            #[inline(always)]
            fn from_word(word: u32) -> Self {
                word as Self
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self < other { other } else { self }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
        }
    )* };
}
integer!(u32, i32);

impl Number for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        Self::from_bits(word)
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.max(other)
    }
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.min(other)
    }
}

/// A floating-point number with its conversions: f32, f16, bf16.
pub trait Float: crate::float::Element + Scalar {
    /// The number nearest to `value`, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}
impl Float for F16 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(ptx::cvt_f16_f32(value))
    }
}
impl Float for Bf16 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(ptx::cvt_bf16_f32(value))
    }
}
