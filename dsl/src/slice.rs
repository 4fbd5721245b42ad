//! Slices and matrices of global memory: pointers that know how far they go.
//!
//! An access outside ends the kernel (`trap`), or gives nothing where the function returns an `Option`. What a thread writes is
//! safe where the thread's own index names the place: no other thread has it. Everything else is an `unsafe` function.
//!
//! A launch makes them of tensors. To make one of a pointer is `unsafe`: everything that is safe relies on it.
//!
//! | type | who may do what |
//! |---|---|
//! | [`GlobalSlice`], [`GlobalMatrix`] | everyone reads, nobody writes while the kernel runs |
//! | [`GlobalSliceMut`], [`GlobalMatrixMut`] | each thread reads and writes its own elements |
//! | [`GlobalAtomics`](crate::atomic::GlobalAtomics) | everyone, by atomics |

use core::marker::PhantomData;

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::ptx;
use crate::scalar::Scalar;
use crate::thread::{ThreadIndex, ThreadIndex2d};

/// Ends the kernel with an error.
#[cold]
#[inline(always)]
fn out_of_bounds() -> ! {
    // SAFETY: no precondition.
    unsafe { ptx::trap() }
}

/// Ends the kernel with an error unless an index is inside.
#[inline(always)]
pub(crate) fn end_unless(is_inside: bool) {
    if !is_inside {
        out_of_bounds();
    }
}

/// Elements in a row that nothing writes while the kernel runs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalSlice<T> {
    base: Global<T>,
    length: u64,
}

/// Elements in a row of which each thread reads and writes its own.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalSliceMut<T> {
    base: GlobalMut<T>,
    length: u64,
}

/// Rows of elements that nothing writes while the kernel runs. Elements of a row are neighbours.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalMatrix<T> {
    base: Global<T>,
    stride: u64,
    rows: u32,
    columns: u32,
}

/// Rows of elements of which each thread reads and writes its own. Elements of a row are neighbours.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalMatrixMut<T> {
    base: GlobalMut<T>,
    stride: u64,
    rows: u32,
    columns: u32,
}

macro_rules! kernel_param {
    ($($slice:ident),*) => { $(
        // SAFETY: `repr(C)`, fields of 8 bytes and two of 4 at the end: no padding, one layout on every 64-bit target.
        unsafe impl<T: Copy + 'static> KernelParam for $slice<T> {}
    )* };
}
kernel_param!(GlobalSlice, GlobalSliceMut, GlobalMatrix, GlobalMatrixMut);

/// What a pointer and a length have in common, whoever may touch the elements.
macro_rules! slice {
    ($slice:ident, $pointer:ident, $promise:literal) => {
        impl<T: Copy> $slice<T> {
            /// `length` elements from `base` on.
            ///
            /// # Safety
            ///
            /// While the kernel runs, the elements are there, each aligned to its type.
            #[doc = $promise]
            #[inline(always)]
            #[must_use]
            pub const unsafe fn new(base: $pointer<T>, length: u64) -> Self {
                Self { base, length }
            }

            /// The number of elements.
            #[inline(always)]
            #[must_use]
            pub const fn len(self) -> usize {
                self.length as usize
            }

            /// Whether there are none.
            #[inline(always)]
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.length == 0
            }

            /// The first element's address.
            #[inline(always)]
            #[must_use]
            pub const fn base(self) -> $pointer<T> {
                self.base
            }
        }
    };
}
pub(crate) use slice;

slice!(GlobalSlice, Global, "Nothing writes them.");
slice!(
    GlobalSliceMut,
    GlobalMut,
    "Nothing touches them but the kernel's threads through this slice and copies of it."
);

macro_rules! matrix {
    ($matrix:ident, $pointer:ident, $promise:literal) => {
        impl<T: Copy> $matrix<T> {
            /// `rows` times `columns` elements from `base` on; a row begins `stride` elements behind the last one.
            ///
            /// # Safety
            ///
            /// While the kernel runs, the elements are there, each aligned to its type, and rows do not overlap.
            #[doc = $promise]
            #[inline(always)]
            #[must_use]
            pub const unsafe fn new(base: $pointer<T>, rows: u32, columns: u32, stride: u64) -> Self {
                Self { base, stride, rows, columns }
            }

            /// The number of rows.
            #[inline(always)]
            #[must_use]
            pub const fn rows(self) -> usize {
                self.rows as usize
            }

            /// The number of columns.
            #[inline(always)]
            #[must_use]
            pub const fn columns(self) -> usize {
                self.columns as usize
            }

            /// Elements from one row to the next.
            #[inline(always)]
            #[must_use]
            pub const fn stride(self) -> usize {
                self.stride as usize
            }

            /// The first element's address.
            #[inline(always)]
            #[must_use]
            pub const fn base(self) -> $pointer<T> {
                self.base
            }

            #[inline(always)]
            const fn contains(self, row: usize, column: usize) -> bool {
                row < self.rows as usize && column < self.columns as usize
            }

            #[inline(always)]
            fn address(self, row: usize, column: usize) -> u64 {
                self.base.offset(row as u64 * self.stride + column as u64).address()
            }
        }
    };
}
matrix!(GlobalMatrix, Global, "Nothing writes them.");
matrix!(
    GlobalMatrixMut,
    GlobalMut,
    "Nothing touches them but the kernel's threads through this matrix and copies of it."
);

impl<T: Scalar> GlobalSlice<T> {
    /// Element `index`; outside the slice the kernel ends with an error.
    #[inline(always)]
    #[must_use]
    pub fn at(self, index: usize) -> T {
        match self.get(index) {
            Some(element) => element,
            None => out_of_bounds(),
        }
    }

    /// Element `index`, if there is one.
    #[inline(always)]
    #[must_use]
    pub fn get(self, index: usize) -> Option<T> {
        // SAFETY: it is inside, as was just checked.
        (index < self.len()).then(|| unsafe { self.get_unchecked(index) })
    }

    /// Element `index`.
    ///
    /// # Safety
    ///
    /// `index` is less than the length.
    #[inline(always)]
    #[must_use]
    pub unsafe fn get_unchecked(self, index: usize) -> T {
        // SAFETY: the caller's promise; nothing writes the elements, as who made this promised.
        unsafe { T::load_global_read_only(self.base.offset(index as u64).address()) }
    }
}

impl<T: Scalar> GlobalMatrix<T> {
    /// The element; outside the matrix the kernel ends with an error.
    #[inline(always)]
    #[must_use]
    pub fn at(self, row: usize, column: usize) -> T {
        match self.get(row, column) {
            Some(element) => element,
            None => out_of_bounds(),
        }
    }

    /// The element, if there is one.
    #[inline(always)]
    #[must_use]
    pub fn get(self, row: usize, column: usize) -> Option<T> {
        // SAFETY: it is inside, as was just checked.
        self.contains(row, column).then(|| unsafe { self.get_unchecked(row, column) })
    }

    /// The element.
    ///
    /// # Safety
    ///
    /// `row` and `column` are less than the numbers of these.
    #[inline(always)]
    #[must_use]
    pub unsafe fn get_unchecked(self, row: usize, column: usize) -> T {
        // SAFETY: the caller's promise; nothing writes the elements, as who made this promised.
        unsafe { T::load_global_read_only(self.address(row, column)) }
    }
}

/// An element that one thread alone has.
pub struct OwnElement<'s, T> {
    address: u64,
    of: PhantomData<&'s mut T>,
}

impl<T: Scalar> OwnElement<'_, T> {
    /// What is there.
    #[inline(always)]
    #[must_use]
    pub fn read(&self) -> T {
        // SAFETY: inside the slice, and no other thread has the element.
        unsafe { T::load_global(self.address) }
    }

    /// Puts `value` there.
    #[inline(always)]
    pub fn write(&mut self, value: T) {
        // SAFETY: inside the slice, and no other thread has the element.
        unsafe { T::store_global(self.address, value) }
    }
}

impl<T: Scalar> GlobalSliceMut<T> {
    /// The element that this index, which no other thread has, names; nothing beyond the slice.
    #[inline(always)]
    #[must_use]
    pub fn get_mut(&mut self, index: ThreadIndex) -> Option<OwnElement<'_, T>> {
        let address = self.base.offset(index.get() as u64).address();
        (index.get() < self.len()).then_some(OwnElement { address, of: PhantomData })
    }

    /// Element `index`; outside the slice the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread writes the element meanwhile.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, index: usize) -> T {
        end_unless(index < self.len());
        // SAFETY: it is inside, and the caller's promise.
        unsafe { self.read_unchecked(index) }
    }

    /// As [`read`](Self::read), unchecked.
    ///
    /// # Safety
    ///
    /// As [`read`](Self::read), and `index` is less than the length.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read_unchecked(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_global(self.base.offset(index as u64).address()) }
    }

    /// Puts `value` at `index`; outside the slice the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread touches the element meanwhile.
    #[inline(always)]
    pub unsafe fn write(self, index: usize, value: T) {
        end_unless(index < self.len());
        // SAFETY: it is inside, and the caller's promise.
        unsafe { self.write_unchecked(index, value) }
    }

    /// As [`write`](Self::write), unchecked.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write), and `index` is less than the length.
    #[inline(always)]
    pub unsafe fn write_unchecked(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { T::store_global(self.base.offset(index as u64).address(), value) }
    }
}

impl<T: Scalar> GlobalMatrixMut<T> {
    /// The element that this index, which no other thread has, names; nothing outside the matrix.
    #[inline(always)]
    #[must_use]
    pub fn get_mut(&mut self, index: ThreadIndex2d) -> Option<OwnElement<'_, T>> {
        let (row, column) = (index.row(), index.column());
        let address = self.address(row, column);
        self.contains(row, column).then_some(OwnElement { address, of: PhantomData })
    }

    /// The element; outside the matrix the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread writes the element meanwhile.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, row: usize, column: usize) -> T {
        end_unless(self.contains(row, column));
        // SAFETY: it is inside, and the caller's promise.
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
        unsafe { T::load_global(self.address(row, column)) }
    }

    /// Puts `value` there; outside the matrix the kernel ends with an error.
    ///
    /// # Safety
    ///
    /// No other thread touches the element meanwhile.
    #[inline(always)]
    pub unsafe fn write(self, row: usize, column: usize, value: T) {
        end_unless(self.contains(row, column));
        // SAFETY: it is inside, and the caller's promise.
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
        unsafe { T::store_global(self.address(row, column), value) }
    }
}

impl<T: Scalar> Global<T> {
    /// Element `index`, which is not checked.
    ///
    /// # Safety
    ///
    /// The element is valid for a read, and nothing writes it while the kernel runs.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_global_read_only(self.offset(index as u64).address()) }
    }
}

impl<T: Scalar> GlobalMut<T> {
    /// Element `index`, which is not checked.
    ///
    /// # Safety
    ///
    /// The element is valid for a read, and no other thread writes it meanwhile.
    #[inline(always)]
    #[must_use]
    pub unsafe fn read(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load_global(self.offset(index as u64).address()) }
    }

    /// Puts `value` at `index`, which is not checked.
    ///
    /// # Safety
    ///
    /// The element is valid for a write, and no other thread touches it meanwhile.
    #[inline(always)]
    pub unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { T::store_global(self.offset(index as u64).address(), value) }
    }
}
