//! The queries of a block: normalised, and put into shared memory as the tensor cores take them.

use core::num::NonZeroU32;

use super::element::{QUERY_ROWS, QueryElement};
use super::params::{NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE, ProductKeyParams, QueryNormParams};
use super::{PIECE, Places, QUERY_BYTES, ROW_BYTES};
use crate::launch::Global;
use crate::{math, ptx, warp};

/// Sums over the lanes of the warp, the same in all of them.
#[inline(always)]
unsafe fn warp_sums<const N: usize>(values: &mut [f32; N]) {
    for step in 0..5 {
        for value in values.iter_mut() {
            // SAFETY: the caller's promise: all lanes are here.
            *value += f32::from_bits(unsafe { ptx::shfl_sync_bfly(value.to_bits(), 1 << step) });
        }
    }
}

/// The queries of a block.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    pub(super) first: Global<f32>,
    pub(super) norm: QueryNormParams,
    /// Number of the first row among all queries.
    pub(super) first_row: u32,
    pub(super) p: ProductKeyParams,
}

/// Rows that a warp reads at a time, and passes over their features: so many loads are on their way.
const TOGETHER: usize = 2;
const PASSES: usize = 8;
/// Features of a lane: of each row, one in 32.
type Features = [[f32; PASSES]; TOGETHER];

impl Queries {
    /// Number of row `row` of the block among all queries.
    #[inline(always)]
    pub(super) fn number(&self, row: u32) -> u32 {
        self.first_row + row * self.p.row_step
    }

    /// Where feature `feature` of row `row` of the block is.
    #[inline(always)]
    fn address(&self, row: u32, feature: u32) -> u64 {
        let at = self.number(row) as u64 * (2 * self.p.half) as u64 + feature as u64;
        self.first.offset(at).address()
    }

    /// Where the numbers of the head of a row begin, those of the weights and those of the means.
    #[inline(always)]
    pub(super) fn of_head(&self, row: u32) -> [u32; 2] {
        // SAFETY: the caller of the kernel promises that there is a head.
        let heads = unsafe { NonZeroU32::new_unchecked(self.p.heads) };
        let head = self.number(row) % heads;
        [head * self.norm.weight_stride, head * self.norm.mean_stride]
    }

    /// A feature, normalised with the row's mean and factor.
    #[inline(always)]
    pub(super) unsafe fn normalised(
        &self,
        raw: f32,
        of_head: [u32; 2],
        feature: u32,
        valid: bool,
        [mean, factor]: [f32; 2],
    ) -> f32 {
        let mut value = (raw - mean) * factor;
        let load = |from: Global<f32>, begin: u32| {
            let from = from.offset((begin + feature) as u64);
            // SAFETY: there are numbers for every feature.
            unsafe { ptx::ld_global_nc_f32_if(from.address(), valid) }
        };
        if self.norm.kind == NORM_BATCH {
            let variance = load(self.norm.variance, of_head[1]);
            value = (raw - load(self.norm.mean, of_head[1])) * math::rsqrt(variance + self.norm.epsilon);
        }
        if !self.norm.weight.is_null() {
            value *= load(self.norm.weight, of_head[0]);
        }
        if !self.norm.bias.is_null() {
            value += load(self.norm.bias, of_head[0]);
        }
        if valid { value } else { 0.0 }
    }

    /// The number in column `column` of a half of row `row` of the block, as [`put_queries`] puts it.
    ///
    /// # Safety
    ///
    /// Row and column are there, and the row has been [described](describe_rows), visibly to the warp.
    #[inline(always)]
    pub(super) unsafe fn feature(&self, places: &Places, row: u32, half: u32, column: u32) -> f32 {
        let feature = half * self.p.half + column;
        // SAFETY: the caller's promise.
        unsafe {
            let [mean, factor, scale, _] = ptx::ld_shared_v4_f32(places.rows + row * ROW_BYTES);
            let raw = ptx::ld_global_nc_f32(self.address(row, feature));
            scale * self.normalised(raw, self.of_head(row), feature, true, [mean, factor])
        }
    }

    /// The lane's features of rows: those from `first` on, [`PASSES`] of them, 0 where there is none.
    ///
    /// # Safety
    ///
    /// The rows below `end` are there.
    #[inline(always)]
    unsafe fn load(&self, rows: [u32; TOGETHER], end: u32, first: u32) -> Features {
        let mut loaded = [[0.0; PASSES]; TOGETHER];
        for row in 0..TOGETHER {
            // Features that there are from the lane's first on.
            let count = if rows[row] < end { (2 * self.p.half).saturating_sub(first) } else { 0 };
            let from = self.address(rows[row], first);
            for pass in 0..PASSES {
                let distance = pass as u32 * warp::SIZE;
                // SAFETY: the caller's promise.
                loaded[row][pass] =
                    unsafe { ptx::ld_global_nc_f32_if(from + distance as u64 * 4, distance < count) };
            }
        }
        loaded
    }

    /// The lane's sums over all features of rows. `add` adds a feature, or a 0 where there is none; `begin` has the first.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn sums(
        &self,
        rows: [u32; TOGETHER],
        end: u32,
        begin: &Features,
        add: impl Fn(usize, f32, f32, bool) -> f32,
    ) -> [f32; TOGETHER] {
        let (d, mut first) = (2 * self.p.half, warp::lane_id());
        let mut sums = [0.0; TOGETHER];
        let add_all = |sums: &mut [f32; TOGETHER], loaded: &Features, first: u32| {
            for row in 0..TOGETHER {
                for pass in 0..PASSES {
                    let is_there = first + (pass as u32 * warp::SIZE) < d;
                    sums[row] = add(row, sums[row], loaded[row][pass], is_there);
                }
            }
        };
        add_all(&mut sums, begin, first);
        loop {
            // Opaque: the compiler would copy the loop.
            first = ptx::opaque(first + PASSES as u32 * warp::SIZE);
            if first - warp::lane_id() >= d {
                return sums;
            }
            // SAFETY: the caller's promise.
            let loaded = unsafe { self.load(rows, end, first) };
            add_all(&mut sums, &loaded, first);
        }
    }

    /// Mean and factor of rows.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, for the same rows, of which those below `end` are there.
    #[inline(always)]
    pub(super) unsafe fn moments(&self, rows: [u32; TOGETHER], end: u32) -> [[f32; 2]; TOGETHER] {
        let kind = self.norm.kind;
        let mut moments = [[0.0, 1.0]; TOGETHER];
        if kind == NORM_NONE || kind == NORM_BATCH {
            return moments;
        }
        let count = 1.0 / (2 * self.p.half) as f32;
        // SAFETY: the caller's promise.
        unsafe {
            let begin = self.load(rows, end, warp::lane_id());
            let mut means = [0.0; TOGETHER];
            if kind == NORM_LAYER {
                means = self.sums(rows, end, &begin, |_, sum, value, _| sum + value);
                warp_sums(&mut means);
                for mean in &mut means {
                    *mean *= count;
                }
            }
            let mut squares = self.sums(rows, end, &begin, |row, sum, value, is_there| {
                let value = if is_there { value - means[row] } else { 0.0 };
                ptx::fma(value, value, sum)
            });
            warp_sums(&mut squares);
            for row in 0..TOGETHER {
                let epsilon = self.norm.epsilon;
                moments[row] = if kind == NORM_L2 {
                    let factor = math::rsqrt(squares[row]);
                    [0.0, if factor < epsilon { factor } else { epsilon }]
                } else {
                    [means[row], math::rsqrt(ptx::fma(squares[row], count, epsilon))]
                };
            }
        }
        moments
    }

    /// The power of two that brings the largest number of a row to 2¹⁰ and above, and its reciprocal.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, for the same row, which is one that there is.
    #[inline(always)]
    unsafe fn scales(&self, row: u32, moments: [f32; 2]) -> [f32; 2] {
        let of_head = self.of_head(row);
        let (mut largest, mut feature) = (0u32, warp::lane_id());
        while feature < 2 * self.p.half {
            // SAFETY: the caller's promise.
            let value = unsafe {
                let raw = ptx::ld_global_nc_f32(self.address(row, feature));
                self.normalised(raw, of_head, feature, true, moments)
            };
            largest = largest.max(value.to_bits() & 0x7fff_ffff);
            feature += warp::SIZE;
        }
        for step in 0..5 {
            // SAFETY: the caller's promise.
            largest = largest.max(unsafe { ptx::shfl_sync_bfly(largest, 1 << step) });
        }
        // Within what the reciprocal of a power of two is a normal number of.
        let exponent = (largest >> 23).clamp(11, 253);
        [f32::from_bits((264 - exponent) << 23), f32::from_bits((exponent - 10) << 23)]
    }
}

/// Writes what is known of each row of the block: of those below `rows`, which are there, what [`Queries::moments`] and
/// [`Queries::scales`] say.
///
/// # Safety
///
/// All threads of the block call it, and nothing else touches the place before a barrier.
#[inline(always)]
pub(super) unsafe fn describe_rows<T: QueryElement>(queries: &Queries, places: &Places, rows: u32) {
    let mut first = warp::warp_id();
    while first < rows.next_multiple_of(QUERY_ROWS) {
        let pair = [first, first + places.warps];
        // SAFETY: the caller's promise.
        let moments = unsafe { queries.moments(pair, rows) };
        for i in 0..TOGETHER {
            let mut scales = [1.0; 2];
            if T::IS_SCALED && pair[i] < rows {
                // SAFETY: the caller's promise.
                scales = unsafe { queries.scales(pair[i], moments[i]) };
            }
            if warp::lane_id() == 0 {
                let known = [moments[i][0], moments[i][1], scales[0], scales[1]];
                // SAFETY: the caller's promise.
                unsafe { ptx::st_shared_v4_f32(places.rows + pair[i] * ROW_BYTES, known) }
            }
        }
        first = ptx::opaque(first + TOGETHER as u32 * places.warps);
    }
    // SAFETY: the caller's promise: all lanes are here.
    unsafe { warp::sync_warp() }
}

/// Puts columns `first` to `first` + [`PIECE`] of a half of the queries into shared memory, normalised, zeros where there are none.
///
/// # Safety
///
/// All threads of the block call it, and nothing else touches the place; the rows have been [described](describe_rows).
#[inline(always)]
pub(super) unsafe fn put_queries<T: QueryElement>(
    queries: &Queries,
    places: &Places,
    half: u32,
    rows: u32,
    first: u32,
) {
    const PAIRS: usize = (PIECE / (2 * warp::SIZE)) as usize;
    let columns = queries.p.half;
    let mut row = warp::warp_id();
    while row < rows.next_multiple_of(QUERY_ROWS) {
        let pair = [row, row + places.warps];
        let column_of = |pass: usize| 2 * (pass as u32 * warp::SIZE + warp::lane_id());
        let mut raw = [[[0.0; 2]; PAIRS]; TOGETHER];
        for i in 0..TOGETHER {
            let column = first + column_of(0);
            // Columns that there are from the lane's first on.
            let count = if pair[i] < rows { columns.saturating_sub(column) } else { 0 };
            let from = queries.address(pair[i], half * columns + column);
            for pass in 0..PAIRS {
                for j in 0..2 {
                    let distance = pass as u32 * 2 * warp::SIZE + j as u32;
                    let at = from + distance as u64 * 4;
                    // SAFETY: the row and the column are there, or not read.
                    raw[i][pass][j] = unsafe { ptx::ld_global_nc_f32_if(at, distance < count) };
                }
            }
        }
        for i in 0..TOGETHER {
            // SAFETY: this warp has written it.
            let [mean, factor, scale, _] =
                unsafe { ptx::ld_shared_v4_f32(places.rows + pair[i] * ROW_BYTES) };
            let of_head = queries.of_head(pair[i]);
            let panels = places.query + pair[i] / QUERY_ROWS * QUERY_BYTES;
            let norm = &queries.norm;
            let is_plain = norm.kind != NORM_BATCH && norm.weight.is_null() && norm.bias.is_null();
            for pass in 0..PAIRS {
                let mut values = [0.0; 2];
                for j in 0..2 {
                    let column = first + column_of(pass) + j as u32;
                    let valid = pair[i] < rows && column < columns;
                    let (raw, feature) = (raw[i][pass][j], half * columns + column);
                    values[j] = scale
                        * if is_plain {
                            if valid { (raw - mean) * factor } else { 0.0 }
                        } else {
                            // SAFETY: the column is there, or nothing is read of it.
                            unsafe { queries.normalised(raw, of_head, feature, valid, [mean, factor]) }
                        };
                }
                // SAFETY: the caller's promise.
                unsafe { T::put_query(panels, pair[i] % QUERY_ROWS, column_of(pass), values) }
            }
        }
        row = ptx::opaque(row + TOGETHER as u32 * places.warps);
    }
}
