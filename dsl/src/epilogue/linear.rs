//! What the shipped products do to their sums, chosen at each launch.

use super::registers::{InRegisters, ScaledInRegisters, ThroughBoxes};
use super::{Activation, ColumnWords, Epilogue, Function, RowWords};
use crate::float::Element;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::layout::Coord;
use crate::ptx;
use crate::tile::Output;

/// `y[m, n] = activation(z)` with `z = alpha · row_scale[m] · column_scale[n] · Σ + bias[n] + beta · residual[m, n]`.
///
/// A kernel parameter. Any pointer may be null, which leaves its term out. Beside y, z is stored as `preactivation`, and
/// whether z > 0 as bits of `mask`, if these are there. `B` is the type of the bias, `O` that of y.
#[repr(C)]
pub struct LinearEpilogue<B, O> {
    /// N elements.
    pub bias: Global<B>,
    /// M × N elements for each matrix.
    pub residual: Global<O>,
    /// M numbers, or one.
    pub row_scale: Global<f32>,
    /// N numbers, or one.
    pub column_scale: Global<f32>,
    /// M × ⌈N / 32⌉ words for each matrix: column n is bit n mod 32 of word ⌊n / 32⌋. Bits past N are zero.
    pub mask: GlobalMut<u32>,
    /// M × N elements for each matrix.
    pub preactivation: GlobalMut<O>,
    /// Elements of `residual` from one row to the next.
    pub residual_stride: u64,
    /// Elements of `residual` from one matrix to the next.
    pub residual_batch: u64,
    /// Words of `mask` from one row to the next.
    pub mask_stride: u64,
    /// Words of `mask` from one matrix to the next.
    pub mask_batch: u64,
    /// Elements of `preactivation` from one row to the next.
    pub preactivation_stride: u64,
    /// Elements of `preactivation` from one matrix to the next.
    pub preactivation_batch: u64,
    /// 1, or 0 where all rows have the same scale.
    pub row_scale_stride: u32,
    /// 1, or 0 where all columns have the same scale.
    pub column_scale_stride: u32,
    /// What the sums are multiplied with.
    pub alpha: f32,
    /// What `residual` is multiplied with.
    pub beta: f32,
    /// The function applied last.
    pub activation: Activation,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

// A derived `Clone` would ask for it of the elements' types.
impl<B, O> Clone for LinearEpilogue<B, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B, O> Copy for LinearEpilogue<B, O> {}

// SAFETY: a fixed layout of kernel parameters, without padding: twelve fields of eight bytes, then six of four.
unsafe impl<B: 'static, O: 'static> KernelParam for LinearEpilogue<B, O> {
    const PARAM_ALIGN: usize = {
        assert!(size_of::<Self>() == 12 * 8 + 6 * 4, "no padding");
        align_of::<Self>()
    };
}

impl<B: Element, O: Element> LinearEpilogue<B, O> {
    /// The epilogue for matrix `batch` of the output, of `rows` × `columns`.
    #[inline(always)]
    #[must_use]
    pub fn of_matrix(&self, batch: u32, rows: u32, columns: u32) -> FusedLinear<'_, B, O> {
        FusedLinear { params: self, batch, rows, columns }
    }
}

/// [`LinearEpilogue`] for one matrix.
#[derive(Clone, Copy)]
pub struct FusedLinear<'a, B, O> {
    pub(super) params: &'a LinearEpilogue<B, O>,
    batch: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
}

impl<'a, B: Element, O: Element> FusedLinear<'a, B, O> {
    /// The part that needs no memory: alpha, bias, activation.
    #[inline(always)]
    #[must_use]
    pub fn in_registers(&self) -> InRegisters<'a, B, O, Activation> {
        InRegisters { fused: *self, function: self.params.activation }
    }

    /// The same; what follows from the matrix's number is computed where it is needed, rather than kept in registers.
    #[inline(always)]
    pub(super) fn computed_late(self) -> Self {
        Self { batch: ptx::opaque(self.batch), ..self }
    }

    /// Whether [`in_registers`](Self::in_registers) is all that this launch asks for.
    #[inline(always)]
    #[must_use]
    pub fn fits_registers(&self) -> bool {
        self.fits_registers_scaled() && self.params.row_scale.is_null() && self.params.column_scale.is_null()
    }

    /// All of it, for accumulators that leave through boxes.
    #[inline(always)]
    #[must_use]
    pub fn through_boxes(&self) -> ThroughBoxes<'a, B, O> {
        ThroughBoxes { fused: *self }
    }

    /// As [`in_registers`](Self::in_registers), with the scales of rows and columns.
    #[inline(always)]
    #[must_use]
    pub fn in_registers_scaled(&self) -> ScaledInRegisters<'a, B, O, Activation> {
        ScaledInRegisters { fused: *self, function: self.params.activation }
    }

    /// Whether [`in_registers_scaled`](Self::in_registers_scaled) is all that this launch asks for.
    #[inline(always)]
    #[must_use]
    pub fn fits_registers_scaled(&self) -> bool {
        let p = self.params;
        p.residual.is_null() && p.mask.is_null() && p.preactivation.is_null()
    }

    /// The bias of a column, 0 if there is none.
    ///
    /// # Safety
    ///
    /// The bias is valid for reads of every column within the matrix.
    #[inline(always)]
    pub(super) unsafe fn bias(&self, column: u32) -> f32 {
        let p = self.params;
        let inside = column < self.columns && !p.bias.is_null();
        // SAFETY: within the matrix, and not null.
        unsafe { B::load_read_only_if(p.bias.offset(column as u64), inside).to_f32_where_used() }
    }

    /// Whether all of the `N` columns from `at` on are within the matrix.
    #[inline(always)]
    fn is_inside<const N: usize>(&self, at: Coord) -> bool {
        at.row < self.rows && at.column + (N as u32) <= self.columns
    }

    /// Whether column `at.column + i` is within the matrix.
    #[inline(always)]
    fn has(&self, at: Coord, i: usize) -> bool {
        at.row < self.rows && at.column + (i as u32) < self.columns
    }

    /// The residual's place.
    #[inline(always)]
    pub(super) fn residual(&self, at: Coord) -> Global<O> {
        let p = self.params;
        p.residual.offset(
            self.batch as u64 * p.residual_batch + at.row as u64 * p.residual_stride + at.column as u64,
        )
    }

    /// Whether the residual's rows start at multiples of `N` elements' size, counted from `from`, a place of it.
    #[inline(always)]
    fn is_residual_aligned<const N: usize>(&self, from: Global<O>) -> bool {
        let stride = self.params.residual_stride * O::BYTES as u64;
        (from.address() | stride).is_multiple_of(N as u64 * O::BYTES as u64)
    }

    /// `z += beta · residual`.
    ///
    /// # Safety
    ///
    /// `residual` is valid for reads within the matrix.
    #[inline(always)]
    unsafe fn add_residual<const N: usize>(&self, at: Coord, z: &mut [f32; N]) {
        let p = self.params;
        let from = self.residual(at);
        if N == 4 && self.is_residual_aligned::<N>(from) && self.is_inside::<N>(at) {
            // SAFETY: four elements within the matrix.
            let values = unsafe { O::load_4(from) };
            for (z, value) in z.iter_mut().zip(&values) {
                *z += p.beta * value;
            }
        } else {
            for (i, z) in z.iter_mut().enumerate() {
                // SAFETY: within the matrix, or not read.
                let value = unsafe { O::load_if(from.offset(i as u64), self.has(at, i)) };
                *z += p.beta * value.to_f32();
            }
        }
    }

    /// The matrix that z is stored as.
    #[inline(always)]
    pub(super) fn preactivation(&self) -> Output<O> {
        let p = self.params;
        Output {
            base: p.preactivation.offset(self.batch as u64 * p.preactivation_batch),
            stride: p.preactivation_stride,
            rows: self.rows,
            columns: self.columns,
        }
    }

    /// Stores z, as far as it is within the matrix.
    ///
    /// # Safety
    ///
    /// `preactivation` is valid for writes within the matrix, and no other thread has these places.
    #[inline(always)]
    unsafe fn store_preactivation<const N: usize>(&self, at: Coord, z: &[f32; N]) {
        let output = self.preactivation();
        if let [a, b, c, d] = z[..] {
            // SAFETY: the caller's promise.
            unsafe { output.store_4(at.row, at.column, [a, b, c, d], output.is_vector_aligned()) };
        } else {
            for (i, &z) in z.iter().enumerate() {
                if self.has(at, i) {
                    // SAFETY: the caller's promise.
                    unsafe { O::store_rounded(output.at(at.row, at.column + i as u32), z) };
                }
            }
        }
    }

    /// The words of a row of the mask.
    #[inline(always)]
    pub(super) fn mask_row(&self, row: u32) -> GlobalMut<u32> {
        let p = self.params;
        p.mask.offset(self.batch as u64 * p.mask_batch + row as u64 * p.mask_stride)
    }

    /// Stores whether z > 0 for some rows, from column `column` on: two lanes put their bits together in a byte of each, which the even
    /// one stores.
    ///
    /// # Safety
    ///
    /// `mask` is valid for writes, and the lanes have their places as [`Epilogue::apply`] says.
    #[inline(always)]
    unsafe fn store_mask<const N: usize, const R: usize>(
        &self,
        rows: [u32; R],
        column: u32,
        z: &[[f32; N]; R],
    ) {
        const { assert!(N == 4, "masks are stored by lanes that have four columns each") };
        const { assert!(R <= 4, "a register has a byte of each row") };
        let mut bits = 0;
        for (r, (&row, z)) in rows.iter().zip(z).enumerate() {
            for (i, &z) in z.iter().enumerate() {
                if z > 0.0 && self.has(Coord { row, column }, i) {
                    bits |= 1 << (8 * r + i);
                }
            }
        }
        // SAFETY: all lanes of the warp are here.
        let bytes = bits | (unsafe { ptx::shfl_sync_bfly(bits, 1) } << 4);
        let byte = column / 8;
        // Whole words are written, the bits past N as zeros.
        if column.is_multiple_of(8) && byte < self.columns.div_ceil(32) * 4 {
            for (r, &row) in rows.iter().enumerate() {
                if row < self.rows {
                    let to = self.mask_row(row).address() + byte as u64;
                    // SAFETY: within the row's words; the odd lane stores nothing.
                    unsafe { ptx::st_global_b8(to, bytes >> (8 * r)) };
                }
            }
        }
    }
}

impl<B: Element, O: Element> Epilogue for FusedLinear<'_, B, O> {
    /// Scale and bias.
    type Column = (f32, f32);
    /// Alpha times the row's scale.
    type Row = f32;

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> (f32, f32) {
        let p = self.params;
        let inside = column < self.columns;
        // SAFETY: null pointers are not read, and no column outside the matrix, for which the caller vouches.
        unsafe {
            let scaled = !p.column_scale.is_null();
            let from = p.column_scale.offset(column as u64 * p.column_scale_stride as u64);
            let scale = f32::load_read_only_if(from, inside && scaled);
            // Without a branch, of which the compiler would make two kernels in one.
            let scale = if scaled { scale } else { 1.0 };
            (scale, self.bias(column))
        }
    }

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> f32 {
        let p = self.params;
        let scaled = !p.row_scale.is_null();
        let from = p.row_scale.offset(row as u64 * p.row_scale_stride as u64);
        // SAFETY: within the matrix, for which the caller vouches, and not null.
        let scale = unsafe { f32::load_read_only_if(from, row < self.rows && scaled) };
        // Without a branch: several rows' scales are on their way at once.
        p.alpha * if scaled { scale } else { 1.0 }
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(
        &self,
        at: Coord,
        row: f32,
        columns: [(f32, f32); N],
        accumulators: [f32; N],
    ) -> [f32; N] {
        let p = self.params;
        let mut z = accumulators;
        for (z, (scale, bias)) in z.iter_mut().zip(&columns) {
            *z = ptx::fma(*z * row, *scale, *bias);
        }
        // SAFETY: pointers that are not null are valid, for which the caller vouches.
        unsafe {
            if !p.residual.is_null() {
                self.add_residual(at, &mut z);
            }
            if !p.preactivation.is_null() {
                self.store_preactivation(at, &z);
            }
            if !p.mask.is_null() {
                self.store_mask([at.row], at.column, &[z]);
            }
        }
        p.activation.of(z)
    }

    /// Four words of scales, then the biases.
    #[inline(always)]
    unsafe fn read_columns(&self, column: u32) -> ColumnWords {
        let p = self.params;
        let mut words = [0; 8];
        for (i, word) in words[..4].iter_mut().enumerate() {
            let column = column + i as u32;
            let inside = column < self.columns && !p.column_scale.is_null();
            let from = p.column_scale.offset(column as u64 * p.column_scale_stride as u64);
            // SAFETY: null pointers are not read, and no column outside the matrix.
            *word = unsafe { f32::load_read_only_if(from, inside) }.to_bits();
        }
        let from = p.bias.offset(column as u64);
        let is_aligned = from.address().is_multiple_of(4 * B::BYTES as u64);
        // SAFETY: as above.
        let biases = unsafe {
            if is_aligned && column + 4 <= self.columns {
                B::load_words_if(from, !p.bias.is_null())
            } else {
                let bias = |i: u32| {
                    let inside = column + i < self.columns && !p.bias.is_null();
                    B::load_read_only_if(from.offset(i as u64), inside)
                };
                B::to_words([bias(0), bias(1), bias(2), bias(3)])
            }
        };
        [words[4], words[5], words[6], words[7]] = biases;
        words
    }

    /// The residual, and the row's scale.
    #[inline(always)]
    unsafe fn read_rows<const R: usize>(&self, rows: [u32; R], column: u32) -> [RowWords; R] {
        let p = self.params;
        let mut words = [[0; 5]; R];
        for (words, &row) in words.iter_mut().zip(&rows) {
            let from = p.row_scale.offset(row as u64 * p.row_scale_stride as u64);
            let inside = row < self.rows && !p.row_scale.is_null();
            // SAFETY: a null pointer is not read, and no row outside the matrix.
            words[4] = unsafe { f32::load_read_only_if(from, inside) }.to_bits();
        }
        if !p.residual.is_null() {
            let late = self.computed_late();
            let is_whole = late.is_residual_aligned::<4>(late.residual(Coord { row: 0, column }))
                && column + 4 <= self.columns;
            for (words, &row) in words.iter_mut().zip(&rows) {
                let at = Coord { row, column };
                let from = late.residual(at);
                // SAFETY: within the matrix, or not read.
                let residuals = unsafe {
                    if is_whole {
                        O::load_words_if(from, row < self.rows)
                    } else {
                        let element = |i: usize| O::load_if(from.offset(i as u64), self.has(at, i));
                        O::to_words([element(0), element(1), element(2), element(3)])
                    }
                };
                [words[0], words[1], words[2], words[3]] = residuals;
            }
        }
        words
    }

    #[inline(always)]
    fn prefetch(&self, at: Coord) {
        if !self.params.residual.is_null() {
            ptx::prefetch_global_l2(self.residual(at).address());
        }
    }

    #[inline(always)]
    unsafe fn begin_rows<const R: usize>(
        &self,
        columns: &ColumnWords,
        rows: &[RowWords; R],
        z: &mut [[f32; 4]; R],
    ) {
        let p = self.params;
        let scale = |word: u32, is_null: bool| if is_null { 1.0 } else { f32::from_bits(word) };
        let biases = B::words_to_f32([columns[4], columns[5], columns[6], columns[7]]);
        for (z, row) in z.iter_mut().zip(rows) {
            let row = p.alpha * scale(row[4], p.row_scale.is_null());
            for (i, z) in z.iter_mut().enumerate() {
                *z = ptx::fma(*z * row, scale(columns[i], p.column_scale.is_null()), biases[i]);
            }
        }
        if !p.residual.is_null() {
            for (z, row) in z.iter_mut().zip(rows) {
                for (z, value) in z.iter_mut().zip(&O::words_to_f32([row[0], row[1], row[2], row[3]])) {
                    *z += p.beta * value;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish_rows<const R: usize>(&self, rows: [u32; R], column: u32, z: &mut [[f32; 4]; R]) {
        let p = self.params;
        // SAFETY: pointers that are not null are valid, for which the caller vouches.
        unsafe {
            if !p.preactivation.is_null() {
                let output = self.computed_late().preactivation();
                output.store_4_of_rows(rows, column, z, output.is_vector_aligned());
            }
            if !p.mask.is_null() {
                self.computed_late().store_mask(rows, column, z);
            }
        }
        p.activation.apply_to(z);
    }
}

impl<B, O> LinearEpilogue<B, O> {
    /// y = Σ: no pointers, and strides of 0.
    #[must_use]
    pub const fn plain() -> Self {
        Self {
            bias: Global::new(0),
            residual: Global::new(0),
            row_scale: Global::new(0),
            column_scale: Global::new(0),
            mask: GlobalMut::new(0),
            preactivation: GlobalMut::new(0),
            residual_stride: 0,
            residual_batch: 0,
            mask_stride: 0,
            mask_batch: 0,
            preactivation_stride: 0,
            preactivation_batch: 0,
            row_scale_stride: 0,
            column_scale_stride: 0,
            alpha: 1.0,
            beta: 0.0,
            activation: Activation::NONE,
            reserved: 0,
        }
    }
}
