//! The queries of a block: normalised, and put into shared memory as the tensor cores take them.

use core::num::NonZeroU32;

use warpsmith_dsl::gemm::query::QueryElement;
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::{KernelParam, math, ptx, warp};

use super::{PIECE, Places, ProductKeyParams, ROW_BYTES, WARP_ROWS};

/// No normalisation.
pub const NORM_NONE: u32 = 0;
/// By mean and variance of the row.
pub const NORM_LAYER: u32 = 1;
/// By the mean square of the row.
pub const NORM_RMS: u32 = 2;
/// By the length of the row.
pub const NORM_L2: u32 = 3;
/// By mean and variance of the feature, which are given.
pub const NORM_BATCH: u32 = 4;

/// How queries are normalised. Of each pointer, there are numbers for a head's features, or for those of all heads, one head after the
/// other.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct QueryNormParams {
    /// What is multiplied with, if it is not null.
    pub weight: Global<f32>,
    /// What is added then, if it is not null.
    pub bias: Global<f32>,
    /// For [`NORM_BATCH`], the means.
    pub mean: Global<f32>,
    /// For [`NORM_BATCH`], the variances.
    pub variance: Global<f32>,
    /// One of the constants.
    pub kind: u32,
    /// What is added to a variance or mean square; for [`NORM_L2`] the largest factor.
    pub epsilon: f32,
    /// Elements of weight and bias from the features of one head to those of the next: 0 if all heads have the same.
    pub weight_stride: u32,
    /// The same of means and variances.
    pub mean_stride: u32,
}

/// A sum over the lanes of the warp, the same in all of them.
#[inline(always)]
pub(super) unsafe fn warp_sum(mut value: f32) -> f32 {
    for step in 0..5 {
        // SAFETY: the caller's promise: all lanes are here.
        value += f32::from_bits(unsafe { ptx::shfl_sync_bfly(value.to_bits(), 1 << step) });
    }
    value
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

impl Queries {
    /// Number of row `row` of the block among all queries.
    #[inline(always)]
    pub(super) fn number(&self, row: u32) -> u32 {
        self.first_row + row * self.p.row_step
    }

    /// Feature `feature` of row `row` of the block; 0 if `valid` is false.
    #[inline(always)]
    unsafe fn raw(&self, row: u32, feature: u32, valid: bool) -> f32 {
        let at = self.number(row) as u64 * (2 * self.p.half) as u64 + feature as u64;
        // SAFETY: the caller's promise: if it is valid, it is a feature of a row that there is.
        unsafe { ptx::ld_global_nc_f32_if(self.first.offset(at).address(), valid) }
    }

    /// Where the numbers of the head of a row begin, those of the weights and those of the means.
    #[inline(always)]
    pub(super) fn of_head(&self, row: u32) -> [u32; 2] {
        // SAFETY: the caller of the kernel promises that there is a head.
        let heads = unsafe { NonZeroU32::new_unchecked(self.p.heads) };
        let head = self.number(row) % heads;
        [head * self.norm.weight_stride, head * self.norm.mean_stride]
    }

    /// The same, normalised with the row's mean and factor.
    #[inline(always)]
    pub(super) unsafe fn normalised(
        &self,
        row: u32,
        of_head: [u32; 2],
        feature: u32,
        valid: bool,
        [mean, factor]: [f32; 2],
    ) -> f32 {
        // SAFETY: the caller's promise.
        let raw = unsafe { self.raw(row, feature, valid) };
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

    /// Mean and factor of a row.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, for the same row, which is one that there is.
    #[inline(always)]
    pub(super) unsafe fn moments(&self, row: u32) -> [f32; 2] {
        let (d, lane) = (2 * self.p.half, warp::lane_id());
        let kind = self.norm.kind;
        if kind == NORM_NONE || kind == NORM_BATCH {
            return [0.0, 1.0];
        }
        let count = 1.0 / d as f32;
        let mut mean = 0.0;
        if kind == NORM_LAYER {
            let (mut sum, mut feature) = (0.0, lane);
            while feature < d {
                // SAFETY: the caller's promise.
                sum += unsafe { self.raw(row, feature, true) };
                feature += warp::SIZE;
            }
            // SAFETY: the caller's promise.
            mean = unsafe { warp_sum(sum) } * count;
        }
        let (mut sum, mut feature) = (0.0, lane);
        while feature < d {
            // SAFETY: the caller's promise.
            let value = unsafe { self.raw(row, feature, true) } - mean;
            sum = ptx::fma(value, value, sum);
            feature += warp::SIZE;
        }
        // SAFETY: the caller's promise.
        let squares = unsafe { warp_sum(sum) };
        if kind == NORM_L2 {
            let factor = math::rsqrt(squares);
            return [0.0, if factor < self.norm.epsilon { factor } else { self.norm.epsilon }];
        }
        [mean, math::rsqrt(ptx::fma(squares, count, self.norm.epsilon))]
    }

    /// The power of two that brings the largest number of a row to 2¹⁰ and above, and its reciprocal.
    ///
    /// # Safety
    ///
    /// As [`moments`](Self::moments).
    #[inline(always)]
    pub(super) unsafe fn scales(&self, row: u32, moments: [f32; 2]) -> [f32; 2] {
        let of_head = self.of_head(row);
        let (mut largest, mut feature) = (0u32, warp::lane_id());
        while feature < 2 * self.p.half {
            // SAFETY: the caller's promise.
            let value = unsafe { self.normalised(row, of_head, feature, true, moments) };
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

/// Puts columns `first` to `first` + [`PIECE`] of a half of the queries into shared memory, normalised, zeros where there are none.
///
/// # Safety
///
/// All threads of the block call it, and nothing else touches the place.
#[inline(always)]
pub(super) unsafe fn put_queries<T: QueryElement>(
    queries: &Queries,
    places: &Places,
    half: u32,
    rows: u32,
    first: u32,
) {
    let own_row = warp::warp_id() * WARP_ROWS;
    let columns = queries.p.half;
    for row in own_row..own_row + ptx::opaque(WARP_ROWS) {
        // SAFETY: this warp has written it.
        let [mean, factor, scale, _] = unsafe { ptx::ld_shared_v4_f32(places.rows + row * ROW_BYTES) };
        let of_head = queries.of_head(row);
        for pass in 0..ptx::opaque(PIECE / (2 * warp::SIZE)) {
            let at = 2 * (pass * warp::SIZE + warp::lane_id());
            let value = |column: u32| {
                let valid = row < rows && first + column < columns;
                let feature = half * columns + first + column;
                // SAFETY: the row and the column are there, or not read.
                scale * unsafe { queries.normalised(row, of_head, feature, valid, [mean, factor]) }
            };
            let values = [value(at), value(at + 1)];
            // SAFETY: the caller's promise.
            unsafe { T::put_query(places.query, row, at, values) }
        }
    }
}
