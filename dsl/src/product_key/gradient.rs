//! Gradients of retrieval: those of queries, and what the gradients of sub-keys and of the norm are made of.
//!
//! The choice of experts has no gradient: those of the gates go to the scores of the experts that were found. With the
//! gradient s of the score of expert `i · n + j`, that of the query's halves is the sum of s times sub-keys `i` and `j`, and
//! the gradients of these have s times the halves as a term.
//!
//! A warp has a row. Its lanes know the scores' gradients, and put them where all see them. Then each lane adds up some of the
//! query's features over the experts, and leads them back through the norm.

use core::num::NonZeroU32;

use super::params::{
    GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE, ProductKeyParams,
    QueryNormParams,
};
use super::queries::Queries;
use crate::float::Element;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::reduce::warp_sum;
use crate::shared::SharedAddress;
use crate::{math, ptx, thread, warp};

/// Warps of a block, each with a row.
pub const GRADIENT_ROWS: u32 = 4;
/// Threads of a block.
pub const GRADIENT_THREADS: u32 = GRADIENT_ROWS * warp::SIZE;
/// Bytes of its shared memory.
pub const GRADIENT_BYTES: u32 = GRADIENT_ROWS * ROW_BYTES;

/// Experts of a row, at most.
const MOST: u32 = 2 * warp::SIZE;
/// Bytes of what is known of an expert: both sub-keys, and the gradient of its score.
const RECORD_BYTES: u32 = 16;
/// Bytes of what is known of those of a row.
const ROW_BYTES: u32 = MOST * RECORD_BYTES;
/// Features of a lane at a time, and experts whose sub-keys it loads together.
const FEATURES: usize = 4;
const LOADED: usize = 4;
/// Features of a warp at a time.
const AT_A_TIME: u32 = FEATURES as u32 * warp::SIZE;

/// What is read beside queries and sub-keys, and what is written. A kernel parameter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProductKeyGradientParams {
    /// The experts of each row, k of them.
    pub ids: Global<u32>,
    /// Their gates.
    pub gates: Global<f32>,
    /// The gradients of these.
    pub dgates: Global<f32>,
    /// The gradients of the queries before they are normalised.
    pub dq: GlobalMut<f32>,
    /// The queries as scores are made of them; null if no gradients of sub-keys are wanted, as the next three.
    pub normalised: GlobalMut<f32>,
    /// The gradients of the experts' scores, k of each row.
    pub dscores: GlobalMut<f32>,
    /// For each of these the place of the first half's sub-key among the sums.
    pub places_1: GlobalMut<u32>,
    /// The same of the second half's.
    pub places_2: GlobalMut<u32>,
    /// What the gradient of the norm's weight is a sum of over rows; null if it is not wanted.
    pub of_weight: GlobalMut<f32>,
    /// The same of the norm's bias.
    pub of_bias: GlobalMut<f32>,
    /// Sub-keys of a half of one head, where each has its own; else 0.
    pub of_head: u32,
    /// Sub-keys of a half in all.
    pub sub_keys: u32,
    /// Experts of rows, one after the other, whose terms are added up together: the others' sums have other places.
    pub part: u32,
    /// Nothing.
    pub reserved: u32,
}

// SAFETY: ten fields of eight bytes, four of four: no padding.
unsafe impl KernelParam for ProductKeyGradientParams {}

/// A row of a gradient.
struct Row<'p, T> {
    queries: Queries,
    g: &'p ProductKeyGradientParams,
    /// Where the sub-keys of the row's head begin, of both halves, and bytes from one to the next.
    keys: [Global<T>; 2],
    strides: [u64; 2],
    row: u32,
    /// What is known of its experts.
    records: u32,
}

/// The gradient of a score from a gate and its gradient; `sum` is that of their products over the row.
#[inline(always)]
fn slope(p: &ProductKeyParams, gate: f32, dgate: f32, sum: f32) -> f32 {
    let of_score = match p.gate {
        GATE_SOFTMAX => gate * (dgate - sum),
        GATE_SIGMOID => dgate * (gate * (1.0 - gate)),
        GATE_RELU if gate <= 0.0 => 0.0,
        _ => dgate,
    };
    of_score * p.inverse_temperature
}

impl<T: Element> Row<'_, T> {
    /// Puts the experts' records into shared memory, and writes their scores' gradients and places. Whether all of them are experts.
    #[inline(always)]
    unsafe fn describe(&self) -> bool {
        let (p, g) = (&self.queries.p, self.g);
        let first = self.row as u64 * p.k as u64;
        // SAFETY: the caller of the kernel promises that there are sub-keys, and terms in a part.
        let (n, part) = unsafe { (NonZeroU32::new_unchecked(p.n), NonZeroU32::new_unchecked(g.part)) };
        let load = |from: u64, own: u32| {
            let address = from + (first + own as u64) * 4;
            // SAFETY: the caller's promise: the row has k of them.
            unsafe { ptx::ld_global_nc_f32_if(address, own < p.k) }
        };
        let own = [warp::lane_id(), warp::lane_id() + warp::SIZE];
        let gates = own.map(|own| load(g.gates.address(), own));
        let dgates = own.map(|own| load(g.dgates.address(), own));
        let mut sum = 0.0;
        if p.gate == GATE_SOFTMAX {
            // SAFETY: all lanes are here.
            sum = unsafe { warp_sum(ptx::fma(gates[1], dgates[1], gates[0] * dgates[0])) };
        }
        let (head, mut is_bad) = (self.head(), false);
        for i in 0..2 {
            let (own, id) = (own[i], load(g.ids.address(), own[i]).to_bits());
            let (one, other) = (id / n, id % n);
            is_bad |= one >= p.n;
            let dscore = slope(p, gates[i], dgates[i], sum);
            let at = first + own as u64;
            // SAFETY: the place is this lane's, and the row has k experts.
            unsafe {
                let record = [one, other, dscore.to_bits(), 0];
                ptx::st_shared_v4_b32(self.records + own * RECORD_BYTES, record);
                if own < p.k && !g.dscores.is_null() {
                    ptx::st_global_b32(g.dscores.offset(at).address(), dscore.to_bits());
                    let begin = (at as u32 / part) * g.sub_keys + head * g.of_head;
                    // An expert that is none has no place.
                    let [one, other] = [one, other].map(|key| if one < p.n { begin + key } else { u32::MAX });
                    ptx::st_global_b32(g.places_1.offset(at).address(), one);
                    ptx::st_global_b32(g.places_2.offset(at).address(), other);
                }
            }
        }
        // SAFETY: all lanes are here.
        unsafe {
            warp::sync_warp();
            ptx::vote_sync_ballot(is_bad) == 0
        }
    }

    /// The row's head.
    #[inline(always)]
    fn head(&self) -> u32 {
        // SAFETY: the caller of the kernel promises that there is a head.
        self.row % unsafe { NonZeroU32::new_unchecked(self.queries.p.heads) }
    }

    /// The gradients of the lane's features from `first` on, of the query as scores are made of it.
    #[inline(always)]
    unsafe fn sums(&self, first: u32) -> [f32; FEATURES] {
        let p = &self.queries.p;
        let (mut from, mut is_second, mut is_there) = ([0; FEATURES], [false; FEATURES], [false; FEATURES]);
        for f in 0..FEATURES {
            let feature = first + f as u32 * warp::SIZE;
            is_there[f] = feature < 2 * p.half;
            is_second[f] = feature >= p.half;
            let keys = if is_second[f] { self.keys[1] } else { self.keys[0] };
            from[f] = keys.offset((feature - if is_second[f] { p.half } else { 0 }) as u64).address();
        }
        let (mut sums, mut expert) = ([0.0; FEATURES], 0);
        while expert < p.k {
            let (mut values, mut dscores) = ([[0.0; FEATURES]; LOADED], [0.0; LOADED]);
            for i in 0..LOADED {
                let own = expert + i as u32;
                // SAFETY: there is a record for whole groups of experts, and a sub-key for each expert that there is.
                unsafe {
                    let [one, other, dscore, _] = ptx::ld_shared_v4_b32(self.records + own * RECORD_BYTES);
                    dscores[i] = f32::from_bits(dscore);
                    let offsets = [one as u64 * self.strides[0], other as u64 * self.strides[1]];
                    for f in 0..FEATURES {
                        let at = from[f] + if is_second[f] { offsets[1] } else { offsets[0] };
                        let number = T::load_read_only_if(Global::new(at), is_there[f] & (own < p.k));
                        values[i][f] = number.to_f32();
                    }
                }
            }
            for i in 0..LOADED {
                for f in 0..FEATURES {
                    let sum = ptx::fma(dscores[i], values[i][f], sums[f]);
                    sums[f] = if expert + (i as u32) < p.k { sum } else { sums[f] };
                }
            }
            expert = ptx::opaque(expert + LOADED as u32);
        }
        sums
    }

    /// The factor that a feature is normalised with, where it is the feature's own.
    #[inline(always)]
    unsafe fn of_feature(&self, from: Global<f32>, begin: u32, feature: u32, is_there: bool) -> f32 {
        // SAFETY: there are numbers for every feature.
        unsafe { ptx::ld_global_nc_f32_if(from.offset((begin + feature) as u64).address(), is_there) }
    }

    /// Writes the gradients of the row.
    #[inline(always)]
    unsafe fn write(&self) {
        let (p, g, norm, row) = (&self.queries.p, self.g, &self.queries.norm, self.row);
        let (d, kind) = (2 * p.half, norm.kind);
        // SAFETY: the caller's promise; a lane reads of dq what it has written.
        unsafe {
            let are_experts = self.describe();
            let [[mean, factor], _] = self.queries.moments([row, p.rows], p.rows);
            let of_head = self.queries.of_head(row);
            let begin = row as u64 * d as u64;
            let is_direct = kind == NORM_NONE || kind == NORM_BATCH;
            let (mut sum, mut product, mut base) = (0.0, 0.0, 0);
            while base < d {
                let first = base + warp::lane_id();
                let sums = if are_experts { self.sums(first) } else { [f32::NAN; FEATURES] };
                for f in 0..FEATURES {
                    let feature = first + f as u32 * warp::SIZE;
                    let (is_there, at) = (feature < d, begin + feature as u64);
                    let raw = ptx::ld_global_nc_f32_if(self.queries.first.offset(at).address(), is_there);
                    let (mut hat, mut own) = ((raw - mean) * factor, 1.0);
                    if kind == NORM_BATCH {
                        let variance = self.of_feature(norm.variance, of_head[1], feature, is_there);
                        own = math::rsqrt(variance + norm.epsilon);
                        hat = (raw - self.of_feature(norm.mean, of_head[1], feature, is_there)) * own;
                    }
                    let mut dhat = sums[f];
                    if !norm.weight.is_null() {
                        dhat *= self.of_feature(norm.weight, of_head[0], feature, is_there);
                    }
                    if is_there {
                        let store = |to: GlobalMut<f32>, value: f32| {
                            ptx::st_global_b32(to.offset(at).address(), value.to_bits());
                        };
                        sum += dhat;
                        product = ptx::fma(dhat, hat, product);
                        store(g.dq, dhat * own);
                        if !g.normalised.is_null() {
                            let moments = [mean, factor];
                            let value = self.queries.normalised(raw, of_head, feature, true, moments);
                            store(g.normalised, value);
                        }
                        if !g.of_weight.is_null() {
                            store(g.of_weight, sums[f] * hat);
                        }
                        if !g.of_bias.is_null() {
                            store(g.of_bias, sums[f]);
                        }
                    }
                }
                base = ptx::opaque(base + AT_A_TIME);
            }
            if is_direct {
                return;
            }
            let count = 1.0 / d as f32;
            let mean_of = if kind == NORM_LAYER { warp_sum(sum) * count } else { 0.0 };
            let product = warp_sum(product);
            let along = match kind {
                // A length below the least is no length that is divided by.
                NORM_L2 if factor >= norm.epsilon => 0.0,
                NORM_L2 => product,
                _ => product * count,
            };
            let mut base = 0;
            while base < d {
                let first = base + warp::lane_id();
                let (mut raw, mut dhat) = ([0.0; FEATURES], [0.0; FEATURES]);
                for f in 0..FEATURES {
                    let feature = first + f as u32 * warp::SIZE;
                    let at = begin + feature as u64;
                    raw[f] = ptx::ld_global_nc_f32_if(self.queries.first.offset(at).address(), feature < d);
                    dhat[f] = ptx::ld_global_f32_if(g.dq.offset(at).address(), feature < d);
                }
                for f in 0..FEATURES {
                    let feature = first + f as u32 * warp::SIZE;
                    let hat = (raw[f] - mean) * factor;
                    let value = factor * ((dhat[f] - mean_of) - hat * along);
                    if feature < d {
                        ptx::st_global_b32(g.dq.offset(begin + feature as u64).address(), value.to_bits());
                    }
                }
                base = ptx::opaque(base + AT_A_TIME);
            }
        }
    }
}

/// Writes the gradients of the rows' queries before these are normalised, and what the gradients of sub-keys and of the norm's weight and bias are sums of.
///
/// An id of no expert makes no numbers of its row's gradients, and counts for no sub-key.
///
/// # Safety
///
/// Every thread of a one-dimensional grid with a block of [`GRADIENT_THREADS`] for [`GRADIENT_ROWS`] rows calls it. The
/// queries `q` are valid for reads of `p.rows` rows of two halves, sub-keys and the norm's numbers as
/// [`retrieve`](super::ProductKeyShape::retrieve) says but of any alignment, and `g` of what it says. There are heads, sub-keys, at most 64 experts of a row, and terms in a part. What
/// is written overlaps nothing else, and nothing else writes what is read meanwhile.
#[inline(always)]
pub unsafe fn gradients<T: Element>(
    q: Global<f32>,
    keys: [Global<T>; 2],
    norm: QueryNormParams,
    g: &ProductKeyGradientParams,
    p: ProductKeyParams,
) {
    let row = thread::block_idx_x() * GRADIENT_ROWS + warp::warp_id();
    if row >= p.rows {
        return;
    }
    let records = SharedAddress::dynamic().get() + warp::warp_id() * ROW_BYTES;
    let strides = [p.key_stride_1, p.key_stride_2].map(|stride| stride * T::BYTES as u64);
    let queries = Queries { first: q, norm, first_row: 0, p };
    let row = Row { queries, g, keys, strides, row, records };
    let head = row.head() as u64;
    let keys = [keys[0].offset(head * p.head_stride_1), keys[1].offset(head * p.head_stride_2)];
    // SAFETY: the caller's promise.
    unsafe { Row { keys, ..row }.write() }
}
