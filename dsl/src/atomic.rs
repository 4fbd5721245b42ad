//! Atomics on elements of global and of shared memory. They order no other access (`relaxed`), and are seen by the whole
//! GPU or block.
//!
//! Sums of floating-point numbers depend on the order of the threads, so that they may differ between runs in their last bits.
//! Integers, maxima and minima do not.

use crate::float::{Bf16, F16};
use crate::launch::{GlobalMut, KernelParam};
use crate::ptx;
use crate::scalar::{Float as _, Scalar};
use crate::shared::SharedArray;
use crate::slice::end_unless;

/// Elements in a row of global memory that every thread touches, by atomics alone. An index outside ends the kernel with an
/// error.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalAtomics<T> {
    base: GlobalMut<T>,
    length: u64,
}

// SAFETY: `repr(C)`, two fields of 8 bytes.
unsafe impl<T: Copy + 'static> KernelParam for GlobalAtomics<T> {}

crate::slice::slice!(GlobalAtomics, GlobalMut, "While the kernel runs, they are touched by atomics alone.");

impl<T: Copy> GlobalAtomics<T> {
    #[inline(always)]
    fn address(self, index: usize) -> u64 {
        end_unless(index < self.len());
        self.base.offset(index as u64).address()
    }
}

impl<T: Scalar, const N: usize> SharedArray<T, N> {
    #[inline(always)]
    fn checked(self, index: usize) -> u32 {
        end_unless(index < N);
        self.address_of(index)
    }
}

/// The functions of one type, on elements of both memories: a method of [`GlobalAtomics`], and an unsafe one of
/// [`SharedArray`], whose other accesses are not atomic.
macro_rules! atomics {
    ($scalar:ty: $($(#[$doc:meta])* $name:ident($($argument:ident),*) = $global:ident, $shared:ident, $to:expr, $from:expr;)*) => {
        impl GlobalAtomics<$scalar> { $(
            $(#[$doc])*
            /// Returns what was there.
            #[inline(always)]
            pub fn $name(self, index: usize, $($argument: $scalar),*) -> $scalar {
                let address = self.address(index);
                // SAFETY: inside the slice, as was just checked; all accesses are atomic.
                $from(unsafe { $global(address, $($to($argument)),*) })
            }
        )* }
        impl<const N: usize> SharedArray<$scalar, N> { $(
            $(#[$doc])*
            /// Returns what was there.
            ///
            /// # Safety
            ///
            /// All threads that touch the element between the barriers around this call do it by atomics.
            #[inline(always)]
            pub unsafe fn $name(self, index: usize, $($argument: $scalar),*) -> $scalar {
                let address = self.checked(index);
                // SAFETY: inside the array, as was just checked; the caller's promise.
                $from(unsafe { $shared(address, $($to($argument)),*) })
            }
        )* }
    };
}

/// The same bits.
#[inline(always)]
fn same<T>(value: T) -> T {
    value
}
#[inline(always)]
fn word(value: i32) -> u32 {
    value as u32
}
#[inline(always)]
fn int(value: u32) -> i32 {
    value as i32
}

use ptx::{
    atom_global_add_f16, atom_global_add_f32, atom_global_add_u32, atom_global_and_b32, atom_global_cas_b16,
    atom_global_cas_b32, atom_global_exch_b32, atom_global_max_s32, atom_global_max_u32, atom_global_min_s32,
    atom_global_min_u32, atom_global_or_b32, atom_global_xor_b32, atom_shared_add_f16, atom_shared_add_f32,
    atom_shared_and_b32, atom_shared_cas_b16, atom_shared_cas_b32, atom_shared_exch_b32, atom_shared_max_s32,
    atom_shared_max_u32, atom_shared_min_s32, atom_shared_min_u32, atom_shared_or_b32,
    atom_shared_relaxed_add_u32, atom_shared_xor_b32,
};

atomics! { u32:
    /// Adds `value`, wrapping around.
    fetch_add(value) = atom_global_add_u32, atom_shared_relaxed_add_u32, same, same;
    /// Puts the larger of `value` and what is there.
    fetch_max(value) = atom_global_max_u32, atom_shared_max_u32, same, same;
    /// Puts the smaller of `value` and what is there.
    fetch_min(value) = atom_global_min_u32, atom_shared_min_u32, same, same;
    /// Clears the bits that `value` has not set.
    fetch_and(value) = atom_global_and_b32, atom_shared_and_b32, same, same;
    /// Sets the bits that `value` has set.
    fetch_or(value) = atom_global_or_b32, atom_shared_or_b32, same, same;
    /// Flips the bits that `value` has set.
    fetch_xor(value) = atom_global_xor_b32, atom_shared_xor_b32, same, same;
    /// Puts `value`.
    exchange(value) = atom_global_exch_b32, atom_shared_exch_b32, same, same;
    /// Puts `new` if `expected` is there.
    compare_exchange(expected, new) = atom_global_cas_b32, atom_shared_cas_b32, same, same;
}
atomics! { i32:
    /// Adds `value`, wrapping around.
    fetch_add(value) = atom_global_add_u32, atom_shared_relaxed_add_u32, word, int;
    /// Puts the larger of `value` and what is there.
    fetch_max(value) = atom_global_max_s32, atom_shared_max_s32, same, same;
    /// Puts the smaller of `value` and what is there.
    fetch_min(value) = atom_global_min_s32, atom_shared_min_s32, same, same;
    /// Puts `value`.
    exchange(value) = atom_global_exch_b32, atom_shared_exch_b32, word, int;
    /// Puts `new` if `expected` is there.
    compare_exchange(expected, new) = atom_global_cas_b32, atom_shared_cas_b32, word, int;
}
atomics! { f32:
    /// Adds `value`, rounding to the nearest; in global memory subnormal numbers are kept, in shared memory they may be.
    fetch_add(value) = atom_global_add_f32, atom_shared_add_f32, same, same;
    /// Puts the larger of `value` and what is there; of zeros, the positive one is larger. Neither is NaN.
    fetch_max(value) = global_max_f32, shared_max_f32, same, same;
    /// Puts the smaller of `value` and what is there; of zeros, the negative one is smaller. Neither is NaN.
    fetch_min(value) = global_min_f32, shared_min_f32, same, same;
    /// Puts `value`.
    exchange(value) = atom_global_exch_b32, atom_shared_exch_b32, f32::to_bits, f32::from_bits;
    /// Puts `new` if `expected` is there, compared by their bits.
    compare_exchange(expected, new) = atom_global_cas_b32, atom_shared_cas_b32, f32::to_bits, f32::from_bits;
}
atomics! { F16:
    /// Adds `value`, rounding to the nearest.
    fetch_add(value) = atom_global_add_f16, atom_shared_add_f16, f16_bits, F16;
    /// Puts `new` if `expected` is there, compared by their bits.
    compare_exchange(expected, new) = atom_global_cas_b16, atom_shared_cas_b16, f16_bits, F16;
}
atomics! { Bf16:
    /// Adds `value`, rounding to the nearest, by as many comparisons as others come between.
    fetch_add(value) = global_add_bf16, shared_add_bf16, same, same;
    /// Puts `new` if `expected` is there, compared by their bits.
    compare_exchange(expected, new) = atom_global_cas_b16, atom_shared_cas_b16, bf16_bits, Bf16;
}

#[inline(always)]
fn f16_bits(value: F16) -> u16 {
    value.0
}
#[inline(always)]
fn bf16_bits(value: Bf16) -> u16 {
    value.0
}

/// Positive numbers are ordered as their bits are as signed integers, negative ones the other way round, as unsigned integers.
macro_rules! of_f32_by_bits {
    ($($name:ident($address:ty) = $positive:ident, $negative:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(address: $address, value: f32) -> f32 {
            let bits = value.to_bits();
            // SAFETY: the caller's promise.
            unsafe {
                if bits >> 31 == 0 {
                    f32::from_bits($positive(address, bits as i32) as u32)
                } else {
                    f32::from_bits($negative(address, bits))
                }
            }
        }
    )* };
}
of_f32_by_bits! {
    global_max_f32(u64) = atom_global_max_s32, atom_global_min_u32;
    global_min_f32(u64) = atom_global_min_s32, atom_global_max_u32;
    shared_max_f32(u32) = atom_shared_max_s32, atom_shared_min_u32;
    shared_min_f32(u32) = atom_shared_min_s32, atom_shared_max_u32;
}

macro_rules! add_bf16 {
    ($($name:ident($address:ty) = $swap:ident;)*) => { $(
        #[inline(always)]
        unsafe fn $name(address: $address, value: Bf16) -> Bf16 {
            use crate::float::Element as _;
            // SAFETY: the caller's promise. A swap of equal bits only reads.
            let mut before = unsafe { $swap(address, 0, 0) };
            loop {
                let sum = Bf16::from_f32(Bf16(before).to_f32() + value.to_f32());
                // SAFETY: the caller's promise.
                let found = unsafe { $swap(address, before, sum.0) };
                if found == before {
                    return Bf16(before);
                }
                before = found;
            }
        }
    )* };
}
add_bf16! {
    global_add_bf16(u64) = atom_global_cas_b16;
    shared_add_bf16(u32) = atom_shared_cas_b16;
}

macro_rules! load {
    ($($scalar:ty, $from:expr;)*) => { $(
        impl GlobalAtomics<$scalar> {
            /// What is there.
            #[inline(always)]
            #[must_use]
            pub fn load(self, index: usize) -> $scalar {
                let address = self.address(index);
                // SAFETY: inside the slice, as was just checked; all accesses are atomic.
                $from(unsafe { ptx::ld_relaxed_gpu_u32(address) })
            }
        }
    )* };
}
load! {
    u32, same;
    i32, int;
    f32, f32::from_bits;
}
