//! Attention on sm_80 and later, and of few rows anywhere: `O = softmax(scale · Q Kᵀ + …) V`, where scores live in registers only.

use warpsmith_dsl::attention::portable::{
    Fp8Keys, Parts, PortableElement, PortableShape, PortableTile, THREADS, Tensors,
};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::softmax::LOG2_E;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{KernelParam, kernel, ptx, reduce, thread, warp};

use crate::attention_shapes::{
    AttentionParams, Few64, Few96, Few128, Few192, Few256, Rows64, Rows96, Rows128, Rows192, Rows256,
    Single64, Single128, Single256,
};

/// Attention of rows of Q to keys, or to a part of them, on a one-dimensional grid of a block for each part of each tile. An instance's name tells the type, the columns of a
/// head at most, and whether it is for few rows.
///
/// # Safety
///
/// The pointers are valid for what `p` and `tensors` describe: `lse`, if it is not null, `operands`, and the parts' results, if there are several. What is written overlaps nothing
/// else.
#[kernel(
    family = attention,
    block = [THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = PortableTile::<T, S>::SHARED_BYTES,
    instances = [
        attention_f16_64 = <F16, Rows64>,
        attention_f16_96 = <F16, Rows96>,
        attention_f16_128 = <F16, Rows128>,
        attention_f16_192 = <F16, Rows192>,
        attention_f16_256 = <F16, Rows256>,
        attention_f16_64_few = <F16, Few64>,
        attention_f16_96_few = <F16, Few96>,
        attention_f16_128_few = <F16, Few128>,
        attention_f16_192_few = <F16, Few192>,
        attention_f16_256_few = <F16, Few256>,
        attention_bf16_64 = <Bf16, Rows64>,
        attention_bf16_96 = <Bf16, Rows96>,
        attention_bf16_128 = <Bf16, Rows128>,
        attention_bf16_192 = <Bf16, Rows192>,
        attention_bf16_256 = <Bf16, Rows256>,
        attention_bf16_64_few = <Bf16, Few64>,
        attention_bf16_96_few = <Bf16, Few96>,
        attention_bf16_128_few = <Bf16, Few128>,
        attention_bf16_192_few = <Bf16, Few192>,
        attention_bf16_256_few = <Bf16, Few256>,
        attention_f32_64 = <f32, Single64>,
        attention_f32_128 = <f32, Single128>,
        attention_f32_256 = <f32, Single256>,
    ],
)]
pub unsafe fn attention<T, S>(
    tensors: Tensors,
    lse: GlobalMut<f32>,
    parts: Parts,
    operands: ScoreOperands,
    p: AttentionParams,
) where
    T: PortableElement,
    S: PortableShape,
{
    // SAFETY: the whole block is here; the caller's promise.
    unsafe {
        let what = (&p.sizes, p.sequences);
        PortableTile::<T, S>::run(&tensors, lse, &parts, operands, &Fp8Keys::NONE, what);
    }
}

/// What adds up the parts of rows is told.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct CombineParams {
    /// Elements of O from one sequence to the next.
    pub stride_sequence: u64,
    /// Elements of O from one row to the next.
    pub stride_row: u64,
    /// Elements of O from one head to the next.
    pub stride_head: u64,
    /// Rows of all heads and sequences.
    pub rows: u64,
    /// Rows of a head: of one sequence, or of all packed sequences together.
    pub rows_of_head: u32,
    /// Heads of a sequence.
    pub heads: u32,
    /// Columns of O.
    pub columns: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// Neighbouring columns of a lane.
const LANE_COLUMNS: u32 = 4;
/// Parts that a lane loads together: what hides the memory's latency.
const AT_ONCE: u32 = 8;

/// Adds up the parts of rows, in their order, and what sinks add to the denominator. A block has a row for each of its warps.
///
/// # Safety
///
/// The pointers are valid for what `p` describes; `lse` and `sinks` may be null. What is written overlaps nothing else.
#[kernel(
    family = attention,
    block = [THREADS, 1, 1],
    instances = [
        attention_combine_f16 = <F16>,
        attention_combine_bf16 = <Bf16>,
        attention_combine_f32 = <f32>,
    ],
)]
pub unsafe fn attention_combine<T: Element>(
    parts: Parts,
    o: GlobalMut<T>,
    lse: GlobalMut<f32>,
    sinks: Global<f32>,
    p: CombineParams,
) {
    let row = thread::block_idx_x() as u64 * (THREADS / warp::SIZE) as u64 + warp::warp_id() as u64;
    if row >= p.rows {
        return;
    }
    let (of_head, heads) = (p.rows_of_head.max(1) as u64, p.heads.max(1) as u64);
    let (head, in_head) = (row / of_head % heads, row % of_head);
    let lane = warp::lane_id();
    // SAFETY: the caller vouches for the pointers; each row belongs to one warp, whose lanes are all here.
    unsafe {
        let first = row * parts.count as u64;
        // Each lane has the part of its number.
        let has_part = lane < parts.count;
        let own = ptx::ld_global_f32_if(parts.lse.offset(first + lane as u64).address(), has_part);
        let own = if has_part { own } else { f32::NEG_INFINITY };
        let sink = if sinks.is_null() {
            f32::NEG_INFINITY
        } else {
            ptx::ld_global_nc_f32(sinks.offset(head).address())
        };
        let largest = reduce::warp_max(own);
        let counts = largest != Parts::NO_ROW;
        let largest = largest.max(sink);
        let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let weight = |lse: f32| if counts { ptx::ex2_approx_ftz((lse - base) * LOG2_E) } else { 0.0 };
        let own = weight(own);
        let total = reduce::warp_sum(own) + weight(sink);
        if lane == 0 && !lse.is_null() {
            let all = if total == 0.0 {
                f32::NEG_INFINITY
            } else {
                base + ptx::lg2_approx_ftz(total) * core::f32::consts::LN_2
            };
            ptx::st_global_b32(lse.offset(row).address(), all.to_bits());
        }
        let to_row =
            row / of_head / heads * p.stride_sequence + in_head * p.stride_row + head * p.stride_head;
        let columns = Parts::columns(p.columns);
        let mut begin = 0;
        while begin < p.columns {
            let column = begin + lane * LANE_COLUMNS;
            let mut sums = [0.0; LANE_COLUMNS as usize];
            let mut part = 0;
            while part < parts.count {
                let mut loaded = [[0; LANE_COLUMNS as usize]; AT_ONCE as usize];
                let mut weights = [0.0; AT_ONCE as usize];
                for index in 0..AT_ONCE as usize {
                    let part = part + index as u32;
                    weights[index] = f32::from_bits(ptx::shfl_sync_idx(own.to_bits(), part));
                    // A part without keys has stored nothing but that it has none.
                    let is_there = part < parts.count && weights[index] != 0.0 && column < columns;
                    let at = (first + part as u64) * columns as u64 + column as u64;
                    loaded[index] = ptx::ld_global_v4_b32_if(parts.sums.offset(at).address(), is_there);
                }
                for index in 0..AT_ONCE as usize {
                    for column in 0..LANE_COLUMNS as usize {
                        let value = f32::from_bits(loaded[index][column]);
                        sums[column] = ptx::fma(weights[index], value, sums[column]);
                    }
                }
                part += AT_ONCE;
            }
            let results = sums.map(|sum| if total == 0.0 { 0.0 } else { sum / total });
            let to = o.offset(to_row + column as u64);
            if column + LANE_COLUMNS <= p.columns
                && to.address().is_multiple_of(u64::from(LANE_COLUMNS * T::BYTES))
            {
                T::store_rounded_4(to, results);
            } else {
                for (index, result) in results.into_iter().enumerate() {
                    if column + (index as u32) < p.columns {
                        T::store_rounded(to.offset(index as u64), result);
                    }
                }
            }
            begin += warp::SIZE * LANE_COLUMNS;
        }
    }
}
