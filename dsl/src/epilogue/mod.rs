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

mod activation;
mod linear;
mod mask;
mod registers;

pub use activation::{Activation, Floor, Function};
pub use linear::{FusedLinear, LinearEpilogue};
pub use registers::{InRegisters, ScaledInRegisters, ThroughBoxes};

use crate::float::Element;
use crate::launch::Global;
use crate::layout::{Coord, FRAGMENT_COLUMNS, FRAGMENT_ROWS};
use crate::ptx;
use crate::tile::Output;

/// What an epilogue [reads](Epilogue::read_columns) of four columns, in registers; those that it does not need are zero.
pub type ColumnWords = [u32; 8];

/// What an epilogue [reads](Epilogue::read_rows) of a row and of four places in it.
pub type RowWords = [u32; 5];

/// A transformation of the accumulators, applied before they are rounded.
pub trait Epilogue: Copy {
    /// What the epilogue knows of a column, read once and used for every row.
    type Column: ColumnState;
    /// What it knows of a row, read once for the columns that a thread has of it.
    type Row: Copy;

    /// Whether its code is so long that it should stand in one place, and take turns there.
    const IS_LONG: bool = false;

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
    /// All lanes of the warp call it, with `row` and `columns` of the places of their accumulators. If `N` is 4, each
    /// even lane and the one after it have eight neighbouring columns of one row, the first a multiple of 8. No other
    /// thread has these places. What the epilogue reads and writes is valid for the matrix that it was told.
    unsafe fn apply<const N: usize>(
        &self,
        at: Coord,
        row: Self::Row,
        columns: [Self::Column; N],
        accumulators: [f32; N],
    ) -> [f32; N];

    /// Transforms neighbouring fragments: 8 columns each, of which a lane has two neighbouring ones in its row, and the same two eight
    /// rows further down. `at` is the lane's first place, `rows` is about its two rows, `columns` about its columns of each fragment.
    ///
    /// # Safety
    ///
    /// As [`apply`](Self::apply).
    #[inline(always)]
    unsafe fn apply_fragments<const N: usize>(
        &self,
        at: Coord,
        rows: [Self::Row; 2],
        columns: &[[Self::Column; 2]; N],
        fragments: &mut [[f32; 4]; N],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.begin_fragments(rows, columns, fragments);
            self.finish_fragments(
                at,
                rows,
                core::slice::from_ref(columns),
                core::slice::from_mut(fragments),
                &Kept,
            );
        }
    }

    /// The part of [`apply_fragments`](Self::apply_fragments) that costs no more than moving each accumulator, and comes first.
    ///
    /// # Safety
    ///
    /// As [`apply_fragments`](Self::apply_fragments).
    #[inline(always)]
    unsafe fn begin_fragments<const N: usize>(
        &self,
        _rows: [Self::Row; 2],
        _columns: &[[Self::Column; 2]; N],
        _fragments: &mut [[f32; 4]; N],
    ) {
    }

    /// The rest of [`apply_fragments`](Self::apply_fragments), for `N` fragments after `N`, each of which it hands to `sink`.
    ///
    /// # Safety
    ///
    /// As [`apply_fragments`](Self::apply_fragments), for what [`begin_fragments`](Self::begin_fragments) has begun; and the sink
    /// may be called, once for each `N` fragments in order.
    #[inline(always)]
    unsafe fn finish_fragments<const N: usize>(
        &self,
        at: Coord,
        rows: [Self::Row; 2],
        columns: &[[[Self::Column; 2]; N]],
        fragments: &mut [[[f32; 4]; N]],
        sink: &impl Sink<N>,
    ) {
        let mut place = at;
        for (i, (fragments, columns)) in fragments.iter_mut().zip(columns).enumerate() {
            for (fragment, columns) in fragments.iter_mut().zip(columns) {
                let below = Coord { row: place.row + FRAGMENT_ROWS / 2, ..place };
                let [a, b, c, d] = *fragment;
                // SAFETY: the caller's promise.
                unsafe {
                    let [a, b] = self.apply(place, rows[0], *columns, [a, b]);
                    let [c, d] = self.apply(below, rows[1], *columns, [c, d]);
                    *fragment = [a, b, c, d];
                }
                place.column += FRAGMENT_COLUMNS;
            }
            // SAFETY: the caller's promise.
            unsafe { sink.put(i, fragments) };
        }
    }

    /// The matrix of which [`finish_fragments`](Self::finish_fragments) takes a part from its sink, if there is one. It
    /// has the layout of the output. Its rows are whole chunks of 16 bytes, at multiples of as many.
    #[inline(always)]
    fn input(&self) -> Option<InputRows> {
        None
    }

    /// Reads what [`begin_rows`](Self::begin_rows) needs to know of the four columns from column `column` on, as it is in memory. Who
    /// asks for it before it is used need not wait for it. An epilogue that leaves all to [`apply`](Self::apply) has nothing to tell.
    ///
    /// # Safety
    ///
    /// As [`column`](Self::column) for each of them.
    #[inline(always)]
    unsafe fn read_columns(&self, _column: u32) -> ColumnWords {
        [0; 8]
    }

    /// The same of some rows, and of their four columns from column `column` on. The memory that it reads may be the
    /// output's. Places outside the matrix may be asked for.
    ///
    /// # Safety
    ///
    /// The pointers that the epilogue was made with are valid for the matrix that it was told.
    #[inline(always)]
    unsafe fn read_rows<const R: usize>(&self, _rows: [u32; R], _column: u32) -> [RowWords; R] {
        [[0; 5]; R]
    }

    /// Has the level-2 cache get the line of what [`read_rows`](Self::read_rows) reads at a place.
    #[inline(always)]
    fn prefetch(&self, _at: Coord) {}

    /// The part of [`apply`](Self::apply) that needs what was read, for four columns of some rows; the rest is
    /// [`finish_rows`](Self::finish_rows).
    ///
    /// # Safety
    ///
    /// As [`apply`](Self::apply) for each of the rows; `columns` and `rows` are what [`read_columns`](Self::read_columns) and
    /// [`read_rows`](Self::read_rows) read of them, and nothing has written their places since.
    #[inline(always)]
    unsafe fn begin_rows<const R: usize>(
        &self,
        _columns: &ColumnWords,
        _rows: &[RowWords; R],
        _values: &mut [[f32; 4]; R],
    ) {
    }

    /// The rest of [`apply`](Self::apply), for the four columns from column `column` on of some rows: choices that are the same for all
    /// stand once.
    ///
    /// # Safety
    ///
    /// As [`apply`](Self::apply) for each of the rows, for what [`begin_rows`](Self::begin_rows) has begun.
    #[inline(always)]
    unsafe fn finish_rows<const R: usize>(&self, rows: [u32; R], column: u32, values: &mut [[f32; 4]; R]) {
        // SAFETY: the caller's promise.
        let columns = unsafe { self.columns::<4>(column) };
        for (values, &row) in values.iter_mut().zip(&rows) {
            // SAFETY: the caller's promise.
            *values = unsafe { self.apply(Coord { row, column }, self.row(row), columns, *values) };
        }
    }

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

/// The part of a matrix that an epilogue has copied to where its results will be put.
#[derive(Clone, Copy)]
pub struct InputRows {
    /// The address of the first element.
    pub base: u64,
    /// Bytes from one row to the next.
    pub stride_bytes: u64,
    /// The number of rows.
    pub rows: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
}

/// Where the results of an epilogue are put: as many places as it is given fragments for, through which other matrices go before.
pub trait Sink<const N: usize> {
    /// Rounds the `N` fragments with number `index` and puts them into their places.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, and what else the sink asks.
    unsafe fn put(&self, index: usize, fragments: &[[f32; 4]; N]);

    /// What the places of the `N` fragments with number `index` hold of the epilogue's [input](Epilogue::input).
    ///
    /// # Safety
    ///
    /// As [`put`](Self::put), before anything has been put.
    unsafe fn take(&self, index: usize) -> [[f32; 4]; N];

    /// Says that all has been taken, of `input`: the places may be written, and what is taken next can be copied.
    ///
    /// # Safety
    ///
    /// As [`put`](Self::put).
    unsafe fn end_input(&self, input: &InputRows);

    /// Stores what all places hold in `output` too, and lets them be written again.
    ///
    /// # Safety
    ///
    /// As [`put`](Self::put), when everything has been put; `output` has elements of the size of the places', its rows are whole chunks of 16
    /// bytes, at multiples of as many, and it is valid for writes.
    unsafe fn store<P: Element>(&self, output: &Output<P>);
}

/// Leaves the results where they are.
struct Kept;

impl<const N: usize> Sink<N> for Kept {
    #[inline(always)]
    unsafe fn put(&self, _: usize, _: &[[f32; 4]; N]) {}

    #[inline(always)]
    unsafe fn take(&self, _: usize) -> [[f32; 4]; N] {
        [[0.0; 4]; N]
    }

    #[inline(always)]
    unsafe fn end_input(&self, _: &InputRows) {}

    #[inline(always)]
    unsafe fn store<P: Element>(&self, _: &Output<P>) {}
}

/// What an epilogue knows of a column, in a form that lanes of a warp can hand to each other.
pub trait ColumnState: Copy + Default {
    /// What lane `lane` knows.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; `lane` is less than 32.
    unsafe fn of_lane(self, lane: u32) -> Self;
}

impl ColumnState for () {
    #[inline(always)]
    unsafe fn of_lane(self, _: u32) {}
}

impl ColumnState for f32 {
    #[inline(always)]
    unsafe fn of_lane(self, lane: u32) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_bits(unsafe { ptx::shfl_sync_idx(self.to_bits(), lane) })
    }
}

impl<A: ColumnState, B: ColumnState> ColumnState for (A, B) {
    #[inline(always)]
    unsafe fn of_lane(self, lane: u32) -> Self {
        // SAFETY: the caller's promise covers both.
        unsafe { (self.0.of_lane(lane), self.1.of_lane(lane)) }
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
