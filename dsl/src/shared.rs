//! Shared memory: a kernel's buffers laid out at compile time in the block's dynamic shared memory.

use crate::ptx;

/// Alignment in bytes that the block's dynamic shared memory starts at.
pub const ALIGNMENT: u32 = 1024;

/// A place in the block's shared memory, as a 32-bit address.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SharedAddress(u32);

impl SharedAddress {
    /// The start of the block's dynamic shared memory, aligned to [`ALIGNMENT`] bytes.
    #[inline(always)]
    #[must_use]
    pub fn dynamic() -> Self {
        Self(ptx::dynamic_shared())
    }

    /// The same place, as lane 0 has it: an address that the compiler keeps in a register, where it would compute this one again at each
    /// use.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, with the same address.
    #[inline(always)]
    #[must_use]
    pub unsafe fn kept(self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { ptx::shfl_sync_idx(self.0, 0) })
    }

    /// The place `bytes` further on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + bytes)
    }

    /// The address.
    #[inline(always)]
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

use core::marker::PhantomData;

use crate::scalar::Scalar;
use crate::slice::end_unless;

/// `N` numbers in the block's shared memory, which all its threads see.
///
/// Nobody initialises shared memory. Reads and atomics are instructions, and every bit pattern is a value of a [`Scalar`]: an element that
/// nobody has written since the block began has an arbitrary value, and to use it is no undefined behaviour. The emulator reports it as a
/// defect.
#[derive(Clone, Copy)]
pub struct SharedArray<T, const N: usize> {
    base: SharedAddress,
    elements: PhantomData<[T; N]>,
}

/// `ROWS` times `COLUMNS` numbers in the block's shared memory, row after row.
///
/// Threads that read a column wait less where `COLUMNS` is odd: then the elements of a column are in different banks. Elements that nobody
/// has written are as those of a [`SharedArray`].
#[derive(Clone, Copy)]
pub struct SharedMatrix<T, const ROWS: usize, const COLUMNS: usize> {
    base: SharedAddress,
    elements: PhantomData<[[T; COLUMNS]; ROWS]>,
}

/// What [`shared_memory!`](crate::shared_memory) lays out.
pub trait InShared: Copy {
    /// Its size in bytes.
    const BYTES: u32;

    /// The one at this address.
    ///
    /// # Safety
    ///
    /// The address is a multiple of 16, and the block has `BYTES` of shared memory from there on.
    unsafe fn at(base: SharedAddress) -> Self;
}

impl<T: Scalar, const N: usize> InShared for SharedArray<T, N> {
    const BYTES: u32 = (N * size_of::<T>()) as u32;

    #[inline(always)]
    unsafe fn at(base: SharedAddress) -> Self {
        Self { base, elements: PhantomData }
    }
}

impl<T: Scalar, const ROWS: usize, const COLUMNS: usize> InShared for SharedMatrix<T, ROWS, COLUMNS> {
    const BYTES: u32 = (ROWS * COLUMNS * size_of::<T>()) as u32;

    #[inline(always)]
    unsafe fn at(base: SharedAddress) -> Self {
        Self { base, elements: PhantomData }
    }
}

/// Declares a kernel's shared memory: a struct of [`SharedArray`]s and [`SharedMatrix`]es, each at a multiple of 16 bytes.
///
/// `BYTES` is what the kernel states as `shared = …`, and `new()` gives the arrays, whose elements are not initialised. `new()` is `unsafe`:
/// a kernel that states less has no memory for them.
///
/// ```
/// use warpsmith_dsl::shared::{SharedArray, SharedMatrix};
///
/// warpsmith_dsl::shared_memory! {
///     struct Buffers {
///         tile: SharedMatrix<f32, 32, 33>,
///         counts: SharedArray<u32, 256>,
///     }
/// }
/// assert_eq!(Buffers::BYTES, 32 * 33 * 4 + 256 * 4);
/// ```
#[macro_export]
macro_rules! shared_memory {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        $visibility struct $name {
            $($(#[$doc])* $visibility $field: $type,)*
        }

        impl $name {
            /// Bytes of shared memory that a block has.
            $visibility const BYTES: u32 = 0 $(+ <$type as $crate::shared::InShared>::BYTES.next_multiple_of(16))*;

            /// The block's arrays.
            ///
            /// # Safety
            ///
            /// The kernel states `shared = …` of `BYTES` at least.
            #[inline(always)]
            #[must_use]
            #[allow(dead_code, unused_mut, unused_variables, unused_assignments)]
            $visibility unsafe fn new() -> Self {
                let mut next = $crate::shared::SharedAddress::dynamic();
                $(
                    // SAFETY: one behind the other, at multiples of 16; the caller's promise.
                    let $field = unsafe { <$type as $crate::shared::InShared>::at(next) };
                    next = next.offset(<$type as $crate::shared::InShared>::BYTES.next_multiple_of(16));
                )*
                Self { $($field),* }
            }
        }
    };
}

impl<T: Scalar, const N: usize> SharedArray<T, N> {
    /// The first element's address.
    #[inline(always)]
    #[must_use]
    pub fn base(self) -> SharedAddress {
        self.base
    }

    /// The address of element `index`, which is not checked.
    #[inline(always)]
    #[must_use]
    pub fn address_of(self, index: usize) -> u32 {
        self.base.get() + (index * size_of::<T>()) as u32
    }

    /// Element `index`; outside the array the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread writes the element between the barriers around this read.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, index: usize) -> T {
        end_unless(index < N);
        // SAFETY: inside, and the caller's promise.
        unsafe { self.read_unchecked(index) }
    }

    /// As [`read`](Self::read), unchecked.
    ///
    /// # Safety
    ///
    /// As [`read`](Self::read), and `index` is less than `N`.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read_unchecked(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_shared(self.address_of(index)) }
    }

    /// Puts `value` at `index`; outside the array the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread touches the element between the barriers around this write.
    #[inline(always)]
    pub unsafe fn write(self, index: usize, value: T) {
        end_unless(index < N);
        // SAFETY: inside, and the caller's promise.
        unsafe { self.write_unchecked(index, value) }
    }

    /// As [`write`](Self::write), unchecked.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write), and `index` is less than `N`.
    #[inline(always)]
    pub unsafe fn write_unchecked(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { T::store_shared(self.address_of(index), value) }
    }
}

impl<T: Scalar, const ROWS: usize, const COLUMNS: usize> SharedMatrix<T, ROWS, COLUMNS> {
    /// The first element's address.
    #[inline(always)]
    #[must_use]
    pub fn base(self) -> SharedAddress {
        self.base
    }

    /// The address of an element, which is not checked.
    #[inline(always)]
    #[must_use]
    pub fn address_of(self, row: usize, column: usize) -> u32 {
        self.base.get() + ((row * COLUMNS + column) * size_of::<T>()) as u32
    }

    /// The element; outside the matrix the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// As [`SharedArray::read`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, row: usize, column: usize) -> T {
        end_unless(row < ROWS && column < COLUMNS);
        // SAFETY: inside, and the caller's promise.
        unsafe { self.read_unchecked(row, column) }
    }

    /// As [`read`](Self::read), unchecked.
    ///
    /// # Safety
    ///
    /// As [`read`](Self::read), and the element is inside the matrix.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read_unchecked(self, row: usize, column: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_shared(self.address_of(row, column)) }
    }

    /// Puts `value` there; outside the matrix the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// As [`SharedArray::write`].
    #[inline(always)]
    pub unsafe fn write(self, row: usize, column: usize, value: T) {
        end_unless(row < ROWS && column < COLUMNS);
        // SAFETY: inside, and the caller's promise.
        unsafe { self.write_unchecked(row, column, value) }
    }

    /// As [`write`](Self::write), unchecked.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write), and the element is inside the matrix.
    #[inline(always)]
    pub unsafe fn write_unchecked(self, row: usize, column: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { T::store_shared(self.address_of(row, column), value) }
    }
}
