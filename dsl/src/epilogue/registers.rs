//! The epilogues of the shipped products for accumulators in registers.

use super::{Activation, ColumnState, Epilogue, Floor, Function, FusedLinear, InputRows, Sink, mask};
use crate::float::Element;
use crate::layout::{Coord, FRAGMENT_COLUMNS as COLUMNS, FRAGMENT_ROWS};
use crate::ptx;
use crate::warp;

/// The part of [`FusedLinear`] that needs no memory but for the bias: `function(alpha · Σ + bias)`.
#[derive(Clone, Copy)]
pub struct InRegisters<'a, B, O, F = Activation> {
    pub(super) fused: FusedLinear<'a, B, O>,
    pub(super) function: F,
}

impl<'a, B, O> InRegisters<'a, B, O> {
    /// The same, and the mask.
    #[inline(always)]
    #[must_use]
    pub fn with_mask(self) -> MaskedInRegisters<'a, B, O> {
        MaskedInRegisters { plain: self }
    }

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

impl<B: Element, O: Element> FusedLinear<'_, B, O> {
    /// Stores whether each number is above 0, as bits: the four lanes that have a row's columns give each other their bits, and each stores
    /// one of the words that come of it.
    ///
    /// # Safety
    ///
    /// As [`Epilogue::finish_fragments`].
    #[inline(always)]
    unsafe fn store_mask_of_fragments<const N: usize>(&self, at: Coord, fragments: &[[[f32; 4]; N]]) {
        const { assert!(N as u32 * COLUMNS == u32::BITS, "fragments of a word") };
        let fused = self.computed_late();
        // Which of the lanes that have these rows, of four.
        let own = at.column % COLUMNS / 2;
        let bits = mask::bits_above_zero(fragments);
        // SAFETY: all lanes of the warp are here.
        let others = unsafe { [1, 2, 3].map(|distance| ptx::shfl_sync_bfly(bits, distance)) };
        let word = mask::word(own, [bits, others[0], others[1], others[2]]);
        let (row, index) = (at.row + own % 2 * (FRAGMENT_ROWS / 2), at.column / u32::BITS + own / 2);
        let is_own = own < 2 * fragments.len() as u32;
        // Columns outside the matrix have sums of zeros and no bias: no number above 0.
        if is_own && row < fused.rows && index < fused.columns.div_ceil(u32::BITS) {
            // SAFETY: within the row's words; no other lane has this one.
            unsafe { ptx::st_global_b32(fused.mask_row(row).offset(index as u64).address(), word) };
        }
    }
}

/// As [`InRegisters`], and the mask of what is above 0, if there is one. What the mask's words are made of is the lanes' own.
#[derive(Clone, Copy)]
pub struct MaskedInRegisters<'a, B, O> {
    plain: InRegisters<'a, B, O>,
}

impl<B: Element, O: Element> Epilogue for MaskedInRegisters<'_, B, O> {
    /// The bias.
    type Column = f32;
    type Row = ();

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.plain.column(column) }
    }

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, at: Coord, (): (), _: [f32; N], sums: [f32; N]) -> [f32; N] {
        let fused = self.plain.fused;
        // SAFETY: the caller's promise.
        unsafe { fused.apply(at, fused.row(at.row), fused.columns(at.column), sums) }
    }

    #[inline(always)]
    unsafe fn begin_fragments<const N: usize>(
        &self,
        rows: [(); 2],
        bias: &[[f32; 2]; N],
        sums: &mut [[f32; 4]; N],
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.plain.begin_fragments(rows, bias, sums) }
    }

    #[inline(always)]
    unsafe fn finish_fragments<const N: usize>(
        &self,
        at: Coord,
        rows: [(); 2],
        bias: &[[[f32; 2]; N]],
        values: &mut [[[f32; 4]; N]],
        sink: &impl Sink<N>,
    ) {
        // SAFETY: the caller's promise; a mask that is not null is valid.
        unsafe {
            if !self.plain.fused.params.mask.is_null() {
                self.plain.fused.store_mask_of_fragments(at, values);
            }
            self.plain.finish_fragments(at, rows, bias, values, sink);
        }
    }
}

/// As [`InRegisters`], with the scales of rows and columns: `function(alpha · row_scale · column_scale · Σ + bias)`.
#[derive(Clone, Copy)]
pub struct ScaledInRegisters<'a, B, O, F = Activation> {
    pub(super) fused: FusedLinear<'a, B, O>,
    pub(super) function: F,
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

/// All that [`FusedLinear`] says, for accumulators that leave through boxes: what it reads and stores beside the output goes through them as
/// well, in rows that are whole chunks of 16 bytes, at multiples of as many.
#[derive(Clone, Copy)]
pub struct ThroughBoxes<'a, B, O> {
    pub(super) fused: FusedLinear<'a, B, O>,
}

impl<B: Element, O: Element> ThroughBoxes<'_, B, O> {
    /// Whether rows or columns have scales. Then alpha and the bias come with them, and not before.
    #[inline(always)]
    fn has_scales(&self) -> bool {
        let p = self.fused.params;
        !(p.row_scale.is_null() && p.column_scale.is_null())
    }

    /// Multiplies by the scales and adds the biases, for neighbouring fragments from `at` on.
    ///
    /// # Safety
    ///
    /// As [`Epilogue::finish_fragments`].
    #[inline(always)]
    unsafe fn scale<const N: usize>(&self, at: Coord, fragments: &mut [[[f32; 4]; N]]) {
        const { assert!(N as u32 * COLUMNS == warp::SIZE, "each lane reads a column") };
        let lane = warp::lane_id();
        let own = at.column % COLUMNS;
        // SAFETY: the caller's promise.
        let rows = unsafe { [self.fused.row(at.row), self.fused.row(at.row + FRAGMENT_ROWS / 2)] };
        for (i, fragments) in fragments.iter_mut().enumerate() {
            let first = at.column - own + i as u32 * warp::SIZE;
            // SAFETY: the caller's promise; all lanes of the warp are here.
            let known = unsafe { self.fused.column(first + lane) };
            for (i, fragment) in fragments.iter_mut().enumerate() {
                let column = i as u32 * COLUMNS + own;
                // SAFETY: as above.
                let columns = unsafe { [known.of_lane(column), known.of_lane(column + 1)] };
                for (i, value) in fragment.iter_mut().enumerate() {
                    let (scale, bias) = columns[i % 2];
                    *value = ptx::fma(*value * rows[i / 2], scale, bias);
                }
            }
        }
    }
}

impl<B: Element, O: Element> Epilogue for ThroughBoxes<'_, B, O> {
    /// The bias, or 0 if it comes with scales.
    type Column = f32;
    type Row = ();

    const IS_LONG: bool = true;

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> f32 {
        // SAFETY: the caller's promise.
        let bias = unsafe { self.fused.bias(column) };
        if self.has_scales() { 0.0 } else { bias }
    }

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, at: Coord, (): (), _: [f32; N], sums: [f32; N]) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { self.fused.apply(at, self.fused.row(at.row), self.fused.columns(at.column), sums) }
    }

    #[inline(always)]
    unsafe fn begin_fragments<const N: usize>(
        &self,
        _: [(); 2],
        bias: &[[f32; 2]; N],
        sums: &mut [[f32; 4]; N],
    ) {
        let alpha = if self.has_scales() { 1.0 } else { self.fused.params.alpha };
        for (values, bias) in sums.iter_mut().zip(bias) {
            for (i, value) in values.iter_mut().enumerate() {
                *value = ptx::fma(*value, alpha, bias[i % 2]);
            }
        }
    }

    /// Each choice stands once for all fragments.
    #[inline(always)]
    unsafe fn finish_fragments<const N: usize>(
        &self,
        at: Coord,
        _: [(); 2],
        _: &[[[f32; 2]; N]],
        values: &mut [[[f32; 4]; N]],
        sink: &impl Sink<N>,
    ) {
        let p = self.fused.params;
        // SAFETY: pointers that are not null are valid, for which the caller vouches.
        unsafe {
            if self.has_scales() {
                self.scale(at, values);
            }
            if let Some(input) = self.input() {
                for (i, values) in values.iter_mut().enumerate() {
                    for (values, residuals) in values.iter_mut().zip(&sink.take(i)) {
                        for (value, residual) in values.iter_mut().zip(residuals) {
                            *value = ptx::fma(p.beta, *residual, *value);
                        }
                    }
                }
                sink.end_input(&input);
            }
            if !p.preactivation.is_null() {
                for (i, values) in values.iter().enumerate() {
                    sink.put(i, values);
                }
                sink.store(&self.fused.computed_late().preactivation());
            }
            if !p.mask.is_null() {
                self.fused.store_mask_of_fragments(at, values);
            }
            p.activation.hand_over(values, sink);
        }
    }

    /// The residual.
    #[inline(always)]
    fn input(&self) -> Option<InputRows> {
        let p = self.fused.params;
        let late = self.fused.computed_late();
        (!p.residual.is_null()).then(|| InputRows {
            base: late.residual(Coord { row: 0, column: 0 }).address(),
            stride_bytes: p.residual_stride * O::BYTES as u64,
            rows: late.rows,
            row_bytes: late.columns * O::BYTES,
        })
    }
}
