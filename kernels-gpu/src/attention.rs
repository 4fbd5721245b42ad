//! Attention on sm_80 and later, and of few rows anywhere: `O = softmax(scale · Q Kᵀ + …) V`, where scores live in registers only.

use warpsmith_dsl::attention::portable::{
    Parts, PortableElement, PortableShape, PortableTile, Scoring, THREADS, Tensors,
};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::softmax::LOG2_E;
use warpsmith_dsl::attention::work::{Sequences, Sizes, Tiles};
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{KernelParam, kernel, ptx, reduce, thread, warp};

macro_rules! shape {
    ($(#[$doc:meta])* $name:ident, $columns:literal, $values:literal, $keys:literal, $key_warps:literal, $stages:literal, $blocks:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl PortableShape for $name {
            type Scores = [f32; $keys / 2];
            type Sums = [f32; $values / 2];
            const COLUMNS: u32 = $columns;
            const KEY_WARPS: u32 = $key_warps;
            const STAGES: u32 = $stages;
            const MIN_BLOCKS: u32 = $blocks;
        }
    };
}
shape!(
    /// Heads of up to 64 columns: 64 rows, and blocks of 64 keys.
    Rows64, 64, 64, 64, 1, 3, 1
);
shape!(
    /// Heads of up to 96 columns: 64 rows, and blocks of 64 keys.
    Rows96, 96, 96, 64, 1, 2, 1
);
shape!(
    /// Heads of up to 128 columns: 64 rows, and blocks of 64 keys.
    Rows128, 128, 128, 64, 1, 2, 1
);
shape!(
    /// Heads of up to 192 columns: 64 rows, and blocks of 32 keys.
    Rows192, 192, 192, 32, 1, 2, 1
);
shape!(
    /// Heads of up to 256 columns: 64 rows, and blocks of 16 keys.
    Rows256, 256, 256, 16, 1, 3, 1
);
shape!(
    /// Heads of up to 64 columns: 16 rows, and blocks of 128 keys, 32 for each warp.
    Few64, 64, 64, 32, 4, 2, 3
);
shape!(
    /// Heads of up to 96 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few96, 96, 96, 16, 4, 2, 3
);
shape!(
    /// Heads of up to 128 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few128, 128, 128, 16, 4, 2, 3
);
shape!(
    /// Heads of up to 192 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few192, 192, 192, 16, 4, 2, 2
);
shape!(
    /// Heads of up to 256 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few256, 256, 256, 16, 4, 2, 1
);

shape!(
    /// Heads of up to 64 columns of f32: 64 rows, and blocks of 32 keys.
    Single64, 64, 64, 32, 1, 4, 1
);
shape!(
    /// Heads of up to 128 columns of f32: 64 rows, and blocks of 16 keys.
    Single128, 128, 128, 16, 1, 4, 1
);
shape!(
    /// Heads of up to 256 columns of f32, of which 128 values at a time: 64 rows, and blocks of 16 keys.
    Single256, 256, 128, 16, 1, 2, 1
);

/// What a launch is told beside its operands.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct AttentionParams {
    /// Sequences, heads, rows and keys.
    pub sizes: Sizes,
    /// Where sequences begin, and how long they are.
    pub sequences: Sequences,
}

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
    let scoring = Scoring { window: p.sizes.window, operands };
    let tiles = Tiles::new(p.sizes, p.sequences, PortableTile::<T, S>::BLOCK_ROWS);
    let count = parts.count.max(1);
    let (tile, part) = (thread::block_idx_x() / count, thread::block_idx_x() % count);
    // SAFETY: the whole block is here; the caller vouches for pointers, and each part of each row belongs to one block.
    unsafe {
        let Some(work) = tiles.work(tile) else { return };
        let attended = PortableTile::<T, S>::attend(&tensors, &p.sizes, &scoring, &parts, part, &work);
        // Again, so that the registers are free meanwhile.
        let Some(work) = tiles.work(ptx::opaque(tile)) else { return };
        PortableTile::<T, S>::store(&attended, &tensors, &p.sizes, lse, &parts, part, &work);
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
