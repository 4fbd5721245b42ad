//! What happens to a product before it is rounded and stored.
//!
//! An epilogue sees f32 accumulators, four neighbouring columns of one row at a time, and gives f32 back. Epilogues compose
//! with [`Epilogue::then`], left to right:
//!
//! ```ignore
//! let epilogue = Scale(p.scale).then(Bias::new(bias, p.n)).then(p.activation);
//! ```

use crate::float::Element;
use crate::launch::Global;
use crate::math;

/// Columns that an epilogue transforms at a time.
pub const COLUMNS: usize = 4;

/// A transformation of the accumulators, applied before they are rounded.
pub trait Epilogue: Copy {
    /// What the epilogue knows of four columns, read once and used for every row.
    type Columns: Copy;

    /// Reads what it needs for the columns from `first` on.
    ///
    /// # Safety
    ///
    /// The pointers that the epilogue was made with are valid for every column below the number of columns it was told.
    unsafe fn columns(&self, first: u32) -> Self::Columns;

    /// Transforms four accumulators of one row.
    fn apply(&self, columns: Self::Columns, accumulators: [f32; COLUMNS]) -> [f32; COLUMNS];

    /// This epilogue, and `next` on its result.
    #[inline(always)]
    fn then<E: Epilogue>(self, next: E) -> Then<Self, E> {
        Then(self, next)
    }
}

/// Two epilogues, one after the other.
#[derive(Clone, Copy)]
pub struct Then<A, B>(A, B);

impl<A: Epilogue, B: Epilogue> Epilogue for Then<A, B> {
    type Columns = (A::Columns, B::Columns);

    #[inline(always)]
    unsafe fn columns(&self, first: u32) -> Self::Columns {
        // SAFETY: the caller's promise covers both.
        unsafe { (self.0.columns(first), self.1.columns(first)) }
    }

    #[inline(always)]
    fn apply(&self, columns: Self::Columns, accumulators: [f32; COLUMNS]) -> [f32; COLUMNS] {
        self.1.apply(columns.1, self.0.apply(columns.0, accumulators))
    }
}

/// Multiplies by one number.
#[derive(Clone, Copy)]
pub struct Scale(pub f32);

impl Epilogue for Scale {
    type Columns = ();

    #[inline(always)]
    unsafe fn columns(&self, _: u32) {}

    #[inline(always)]
    fn apply(&self, (): (), a: [f32; COLUMNS]) -> [f32; COLUMNS] {
        [a[0] * self.0, a[1] * self.0, a[2] * self.0, a[3] * self.0]
    }
}

/// Adds a vector along the columns, or nothing if the pointer is null.
#[derive(Clone, Copy)]
pub struct Bias<T> {
    vector: Global<T>,
    columns: u32,
}

impl<T> Bias<T> {
    /// The vector of `columns` elements at `vector`.
    #[inline(always)]
    #[must_use]
    pub fn new(vector: Global<T>, columns: u32) -> Self {
        Self { vector, columns }
    }
}

impl<T: Element> Epilogue for Bias<T> {
    type Columns = [f32; COLUMNS];

    #[inline(always)]
    unsafe fn columns(&self, first: u32) -> Self::Columns {
        let at = |column: u32| {
            if self.vector.is_null() || column >= self.columns {
                0.0
            } else {
                // SAFETY: below `columns`, for which the caller vouches.
                unsafe { T::load_read_only(self.vector.offset(column as u64)).to_f32() }
            }
        };
        [at(first), at(first + 1), at(first + 2), at(first + 3)]
    }

    #[inline(always)]
    fn apply(&self, b: Self::Columns, a: [f32; COLUMNS]) -> [f32; COLUMNS] {
        [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
    }
}

/// An element-wise function, chosen when the kernel is launched.
///
/// The choice is the same for all threads, so it costs a branch for every four elements and no instance of the kernel.
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
}

// SAFETY: transparent over a `u32`.
unsafe impl crate::launch::KernelParam for Activation {}

impl Epilogue for Activation {
    type Columns = ();

    #[inline(always)]
    unsafe fn columns(&self, _: u32) {}

    #[inline(always)]
    fn apply(&self, (): (), a: [f32; COLUMNS]) -> [f32; COLUMNS] {
        #[inline(always)]
        fn each(a: [f32; COLUMNS], f: impl Fn(f32) -> f32) -> [f32; COLUMNS] {
            [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
        }
        match *self {
            Self::RELU => each(a, math::relu),
            Self::GELU_ERF => each(a, math::gelu_erf),
            Self::GELU_TANH => each(a, math::gelu_tanh),
            Self::SILU => each(a, math::silu),
            _ => a,
        }
    }
}
