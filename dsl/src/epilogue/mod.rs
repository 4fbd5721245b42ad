//! What happens to a product before it is rounded and stored.
//!
//! An epilogue sees f32 accumulators, some neighbouring columns of one row at a time, and gives f32 back. Epilogues compose
//! with [`Epilogue::then`], left to right:
//!
//! ```ignore
//! let epilogue = Scale(p.scale).then(Bias::new(bias, p.n)).then(p.activation);
//! ```
//!
//! [`LinearEpilogue`] is the one that the shipped products take: a kernel parameter in which each launch says what it wants.

mod linear;

pub use linear::{FusedLinear, InRegisters, LinearEpilogue, ScaledInRegisters};

use crate::float::Element;
use crate::launch::Global;
use crate::layout::Coord;
use crate::shared::SharedAddress;
use crate::{math, ptx};

/// A transformation of the accumulators, applied before they are rounded.
pub trait Epilogue: Copy {
    /// What the epilogue knows of a column, read once and used for every row.
    type Column: ColumnState;
    /// What it knows of a row, read once for the columns that a thread has of it.
    type Row: Copy;

    /// Reads what it needs to know of column `column`. Columns outside the matrix may be asked for; what is returned for them
    /// means nothing.
    ///
    /// # Safety
    ///
    /// The pointers that the epilogue was made with are valid for every column below the number of columns it was told.
    unsafe fn column(&self, column: u32) -> Self::Column;

    /// Reads what it needs to know of row `row`; of rows outside the matrix, nothing that means anything.
    ///
    /// # Safety
    ///
    /// The pointers that the epilogue was made with are valid for every row below the number of rows it was told.
    unsafe fn row(&self, row: u32) -> Self::Row;

    /// Transforms accumulators of one row, in the columns that `columns` is about; `at` is where the first stands in the output.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, with `row` and `columns` of the places that their accumulators have; if `N` is 4, each
    /// even lane and the one after it have eight neighbouring columns of one row, of which the first is a multiple of 8. No
    /// other thread has these places. What the epilogue reads and writes is valid for the matrix that it was told.
    unsafe fn apply<const N: usize>(
        &self,
        at: Coord,
        row: Self::Row,
        columns: [Self::Column; N],
        accumulators: [f32; N],
    ) -> [f32; N];

    /// [`column`](Self::column), for the `N` columns from `first` on.
    ///
    /// # Safety
    ///
    /// As [`column`](Self::column).
    #[inline(always)]
    unsafe fn columns<const N: usize>(&self, first: u32) -> [Self::Column; N] {
        let mut columns = [Self::Column::default(); N];
        for (i, column) in columns.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *column = unsafe { self.column(first + i as u32) };
        }
        columns
    }

    /// This epilogue, and `next` on its result.
    #[inline(always)]
    fn then<E: Epilogue>(self, next: E) -> Then<Self, E> {
        Then(self, next)
    }
}

/// What an epilogue knows of a column, in a form that lanes of a warp can hand to each other through shared memory.
pub trait ColumnState: Copy + Default {
    /// Its size there, a multiple of 4.
    const BYTES: u32;

    /// Puts it in place `index` of an array of 64 at `array`.
    ///
    /// # Safety
    ///
    /// The array is 64 · [`BYTES`](Self::BYTES) bytes of shared memory, aligned to eight; no other thread touches the place.
    unsafe fn put(self, array: SharedAddress, index: u32);

    /// The states in places `index`, which is even, and `index` + 1.
    ///
    /// # Safety
    ///
    /// They have been put there, and the threads that put them have synchronised with this one.
    unsafe fn get_pair(array: SharedAddress, index: u32) -> [Self; 2];
}

impl ColumnState for () {
    const BYTES: u32 = 0;

    #[inline(always)]
    unsafe fn put(self, _: SharedAddress, _: u32) {}

    #[inline(always)]
    unsafe fn get_pair(_: SharedAddress, _: u32) -> [Self; 2] {
        [(); 2]
    }
}

impl ColumnState for f32 {
    const BYTES: u32 = 4;

    #[inline(always)]
    unsafe fn put(self, array: SharedAddress, index: u32) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_f32(array.offset(4 * index).get(), self) }
    }

    #[inline(always)]
    unsafe fn get_pair(array: SharedAddress, index: u32) -> [Self; 2] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_shared_v2_f32(array.offset(4 * index).get()) }
    }
}

/// An array of the first states, then one of the second.
impl<A: ColumnState, B: ColumnState> ColumnState for (A, B) {
    const BYTES: u32 = A::BYTES + B::BYTES;

    #[inline(always)]
    unsafe fn put(self, array: SharedAddress, index: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0.put(array, index);
            self.1.put(array.offset(64 * A::BYTES), index);
        }
    }

    #[inline(always)]
    unsafe fn get_pair(array: SharedAddress, index: u32) -> [Self; 2] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (A::get_pair(array, index), B::get_pair(array.offset(64 * A::BYTES), index)) };
        [(a[0], b[0]), (a[1], b[1])]
    }
}

/// Two epilogues, one after the other.
#[derive(Clone, Copy)]
pub struct Then<A, B>(A, B);

impl<A: Epilogue, B: Epilogue> Epilogue for Then<A, B> {
    type Column = (A::Column, B::Column);
    type Row = (A::Row, B::Row);

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> Self::Column {
        // SAFETY: the caller's promise covers both.
        unsafe { (self.0.column(column), self.1.column(column)) }
    }

    #[inline(always)]
    unsafe fn columns<const N: usize>(&self, first: u32) -> [Self::Column; N] {
        // SAFETY: the caller's promise covers both.
        let (a, b) = unsafe { (self.0.columns::<N>(first), self.1.columns::<N>(first)) };
        let mut columns = [Self::Column::default(); N];
        for (column, (a, b)) in columns.iter_mut().zip(a.iter().zip(&b)) {
            *column = (*a, *b);
        }
        columns
    }

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> Self::Row {
        // SAFETY: the caller's promise covers both.
        unsafe { (self.0.row(row), self.1.row(row)) }
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(
        &self,
        at: Coord,
        row: Self::Row,
        columns: [Self::Column; N],
        accumulators: [f32; N],
    ) -> [f32; N] {
        // SAFETY: the caller's promise covers both.
        unsafe {
            let first = self.0.apply(at, row.0, columns.map(|column| column.0), accumulators);
            self.1.apply(at, row.1, columns.map(|column| column.1), first)
        }
    }
}

/// Multiplies by one number.
#[derive(Clone, Copy)]
pub struct Scale(pub f32);

impl Epilogue for Scale {
    type Column = ();
    type Row = ();

    #[inline(always)]
    unsafe fn column(&self, _: u32) {}

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, _: Coord, (): (), _: [(); N], accumulators: [f32; N]) -> [f32; N] {
        accumulators.map(|value| value * self.0)
    }
}

/// Adds a vector along the columns, or nothing if the pointer is null.
#[derive(Clone, Copy)]
pub struct Bias<T> {
    vector: Global<T>,
    /// Elements that may be read: none if the pointer is null.
    columns: u32,
}

impl<T> Bias<T> {
    /// The vector of `columns` elements at `vector`.
    #[inline(always)]
    #[must_use]
    pub fn new(vector: Global<T>, columns: u32) -> Self {
        Self { vector, columns: if vector.is_null() { 0 } else { columns } }
    }
}

impl<T: Element> Epilogue for Bias<T> {
    type Column = f32;
    type Row = ();

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> f32 {
        // SAFETY: below `columns`, for which the caller vouches.
        unsafe { T::load_read_only_if(self.vector.offset(column as u64), column < self.columns).to_f32() }
    }

    /// Where a few columns are read at the end, branches leave ptxas the better main loop: f32 was 4 % slower without.
    #[inline(always)]
    unsafe fn columns<const N: usize>(&self, first: u32) -> [f32; N] {
        let mut columns = [0.0; N];
        for (i, value) in columns.iter_mut().enumerate() {
            let column = first + i as u32;
            if column < self.columns {
                // SAFETY: as in `column`.
                *value = unsafe { T::load_read_only(self.vector.offset(column as u64)).to_f32() };
            }
        }
        columns
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(
        &self,
        _: Coord,
        (): (),
        bias: [f32; N],
        mut accumulators: [f32; N],
    ) -> [f32; N] {
        for (value, bias) in accumulators.iter_mut().zip(&bias) {
            *value += bias;
        }
        accumulators
    }
}

/// An element-wise function, chosen when the kernel is launched.
///
/// The choice is the same for all threads, so it costs a branch each time it is applied and no instance of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Activation(u32);

impl Activation {
    /// The identity.
    pub const NONE: Self = Self(0);
    /// [`math::relu`].
    pub const RELU: Self = Self(1);
    /// [`math::gelu_erf`].
    pub const GELU_ERF: Self = Self(2);
    /// [`math::gelu_tanh`].
    pub const GELU_TANH: Self = Self(3);
    /// [`math::silu`].
    pub const SILU: Self = Self(4);

    /// The function's values.
    #[inline(always)]
    #[must_use]
    pub fn of<const N: usize>(self, arguments: [f32; N]) -> [f32; N] {
        match self {
            Self::RELU => arguments.map(math::relu),
            Self::GELU_ERF => arguments.map(math::gelu_erf),
            Self::GELU_TANH => arguments.map(math::gelu_tanh),
            Self::SILU => arguments.map(math::silu),
            _ => arguments,
        }
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl crate::launch::KernelParam for Activation {}

impl Epilogue for Activation {
    type Column = ();
    type Row = ();

    #[inline(always)]
    unsafe fn column(&self, _: u32) {}

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, _: Coord, (): (), _: [(); N], accumulators: [f32; N]) -> [f32; N] {
        self.of(accumulators)
    }
}
