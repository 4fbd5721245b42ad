//! What the shipped products do to their sums, chosen at each launch.

use super::{Activation, Epilogue, Floor, Function, Sink};
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
    params: &'a LinearEpilogue<B, O>,
    batch: u32,
    rows: u32,
    columns: u32,
}

impl<'a, B: Element, O: Element> FusedLinear<'a, B, O> {
    /// The part that needs no memory: alpha, bias, activation.
    #[inline(always)]
    #[must_use]
    pub fn in_registers(&self) -> InRegisters<'a, B, O, Activation> {
        InRegisters { fused: *self, function: self.params.activation }
    }

    /// Whether [`in_registers`](Self::in_registers) is all that this launch asks for.
    #[inline(always)]
    #[must_use]
    pub fn fits_registers(&self) -> bool {
        self.fits_registers_scaled() && self.params.row_scale.is_null() && self.params.column_scale.is_null()
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
    unsafe fn bias(&self, column: u32) -> f32 {
        let p = self.params;
        let inside = column < self.columns && !p.bias.is_null();
        // SAFETY: within the matrix, and not null.
        unsafe { B::load_read_only_if(p.bias.offset(column as u64), inside).to_f32() }
    }

    /// Whether all of the `N` columns from `at` on lie within the matrix.
    #[inline(always)]
    fn is_inside<const N: usize>(&self, at: Coord) -> bool {
        at.row < self.rows && at.column + (N as u32) <= self.columns
    }

    /// Whether column `at.column + i` lies within the matrix.
    #[inline(always)]
    fn has(&self, at: Coord, i: usize) -> bool {
        at.row < self.rows && at.column + (i as u32) < self.columns
    }

    /// `z += beta · residual`.
    ///
    /// # Safety
    ///
    /// `residual` is valid for reads within the matrix.
    #[inline(always)]
    unsafe fn add_residual<const N: usize>(&self, at: Coord, z: &mut [f32; N]) {
        let p = self.params;
        let from = p.residual.offset(
            self.batch as u64 * p.residual_batch + at.row as u64 * p.residual_stride + at.column as u64,
        );
        let chunk = N as u64 * O::BYTES as u64;
        let aligned = (from.address() | (p.residual_stride * O::BYTES as u64)).is_multiple_of(chunk);
        if N == 4 && aligned && self.is_inside::<N>(at) {
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

    /// Stores z, as far as it lies within the matrix.
    ///
    /// # Safety
    ///
    /// `preactivation` is valid for writes within the matrix, and no other thread has these places.
    #[inline(always)]
    unsafe fn store_preactivation<const N: usize>(&self, at: Coord, z: &[f32; N]) {
        let p = self.params;
        let output = Output {
            base: p.preactivation.offset(self.batch as u64 * p.preactivation_batch),
            stride: p.preactivation_stride,
            rows: self.rows,
            columns: self.columns,
        };
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

    /// Stores whether z > 0: two lanes put their bits together in a byte, which the even one stores.
    ///
    /// # Safety
    ///
    /// `mask` is valid for writes, and the lanes have their places as [`Epilogue::apply`] says.
    #[inline(always)]
    unsafe fn store_mask<const N: usize>(&self, at: Coord, z: &[f32; N]) {
        const { assert!(N == 4, "masks are stored by lanes that have four columns each") };
        let p = self.params;
        let mut bits = 0;
        for (i, &z) in z.iter().enumerate() {
            if z > 0.0 && self.has(at, i) {
                bits |= 1 << i;
            }
        }
        // SAFETY: all lanes of the warp are here.
        let others = unsafe { ptx::shfl_sync_bfly(bits, 1) };
        let byte = at.column / 8;
        // Whole words are written, the bits past N as zeros.
        if at.column.is_multiple_of(8) && at.row < self.rows && byte < self.columns.div_ceil(32) * 4 {
            let row = self.batch as u64 * p.mask_batch + at.row as u64 * p.mask_stride;
            let to = p.mask.offset(row).address() + byte as u64;
            // SAFETY: within the row's words; the odd lane stores nothing.
            unsafe { ptx::st_global_b8(to, bits | (others << 4)) };
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
                self.store_mask(at, &z);
            }
        }
        p.activation.of(z)
    }
}

/// The part of [`FusedLinear`] that needs no memory but for the bias: `function(alpha · Σ + bias)`.
#[derive(Clone, Copy)]
pub struct InRegisters<'a, B, O, F = Activation> {
    fused: FusedLinear<'a, B, O>,
    function: F,
}

impl<'a, B, O> InRegisters<'a, B, O> {
    /// The same with a function that is cheap enough to stand once for every accumulator, if the activation is one.
    #[inline(always)]
    #[must_use]
    pub fn with_floor(self) -> Option<InRegisters<'a, B, O, Floor>> {
        Some(InRegisters { fused: self.fused, function: self.function.as_floor()? })
    }
}

impl<B: Element, O: Element, F: Function> Epilogue for InRegisters<'_, B, O, F> {
    /// The bias.
    type Column = f32;
    type Row = ();

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.fused.bias(column) }
    }

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, _: Coord, (): (), bias: [f32; N], sums: [f32; N]) -> [f32; N] {
        let mut values = sums;
        for (value, bias) in values.iter_mut().zip(&bias) {
            *value = ptx::fma(*value, self.fused.params.alpha, *bias);
        }
        self.function.of(values)
    }

    #[inline(always)]
    unsafe fn begin_fragments<const N: usize>(
        &self,
        _: [(); 2],
        bias: &[[f32; 2]; N],
        sums: &mut [[f32; 4]; N],
    ) {
        for (values, bias) in sums.iter_mut().zip(bias) {
            for (i, value) in values.iter_mut().enumerate() {
                *value = ptx::fma(*value, self.fused.params.alpha, bias[i % 2]);
            }
        }
    }

    /// The choice of the function stands once for all fragments.
    #[inline(always)]
    unsafe fn finish_fragments<const N: usize>(
        &self,
        _: Coord,
        _: [(); 2],
        _: &[[[f32; 2]; N]],
        values: &mut [[[f32; 4]; N]],
        sink: &impl Sink<N>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.function.hand_over(values, sink) };
    }
}

/// As [`InRegisters`], with the scales of rows and columns: `function(alpha · row_scale · column_scale · Σ + bias)`.
#[derive(Clone, Copy)]
pub struct ScaledInRegisters<'a, B, O, F = Activation> {
    fused: FusedLinear<'a, B, O>,
    function: F,
}

impl<'a, B, O> ScaledInRegisters<'a, B, O> {
    /// As [`InRegisters::with_floor`].
    #[inline(always)]
    #[must_use]
    pub fn with_floor(self) -> Option<ScaledInRegisters<'a, B, O, Floor>> {
        Some(ScaledInRegisters { fused: self.fused, function: self.function.as_floor()? })
    }
}

impl<B: Element, O: Element, F: Function> Epilogue for ScaledInRegisters<'_, B, O, F> {
    /// Scale and bias.
    type Column = (f32, f32);
    /// Alpha times the row's scale.
    type Row = f32;

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> (f32, f32) {
        // SAFETY: the caller's promise.
        unsafe { self.fused.column(column) }
    }

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.fused.row(row) }
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(
        &self,
        _: Coord,
        row: f32,
        columns: [(f32, f32); N],
        sums: [f32; N],
    ) -> [f32; N] {
        let mut values = sums;
        for (value, (scale, bias)) in values.iter_mut().zip(&columns) {
            *value = ptx::fma(*value * row, *scale, *bias);
        }
        self.function.of(values)
    }

    #[inline(always)]
    unsafe fn begin_fragments<const N: usize>(
        &self,
        rows: [f32; 2],
        columns: &[[(f32, f32); 2]; N],
        sums: &mut [[f32; 4]; N],
    ) {
        for (values, columns) in sums.iter_mut().zip(columns) {
            for (i, value) in values.iter_mut().enumerate() {
                let (scale, bias) = columns[i % 2];
                *value = ptx::fma(*value * rows[i / 2], scale, bias);
            }
        }
    }

    /// The choice of the function stands once for all fragments.
    #[inline(always)]
    unsafe fn finish_fragments<const N: usize>(
        &self,
        _: Coord,
        _: [f32; 2],
        _: &[[[(f32, f32); 2]; N]],
        values: &mut [[[f32; 4]; N]],
        sink: &impl Sink<N>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.function.hand_over(values, sink) };
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
