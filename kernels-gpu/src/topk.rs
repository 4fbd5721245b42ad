//! The k largest of each row of a matrix: a warp reads a row, or a part of it, and keeps the best in its registers.

use core::num::NonZeroU32;

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::topk::{BestOfWarp, EMPTY, order_key};
use warpsmith_dsl::{KernelParam, kernel, ptx, thread, warp};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Warps of a block, each of which has a part of a row.
pub const WARPS: u32 = THREADS / warp::SIZE;
/// Elements of a lane that are loaded together: what hides the memory's latency, since a warp waits for all of them.
pub const LOADED: usize = 8;

/// The sizes of a selection. A row is cut into `parts` parts of about the same length, which have at least `k` elements each.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct TopkParams {
    /// Elements from one row of the source to the next.
    pub row_stride: u64,
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Parts of a row, at least 1.
    pub parts: u32,
    /// How many are selected of each part: 1 to 32 · `SLOTS`.
    pub k: u32,
}

/// Selects the `k` largest elements of each part of each row, best first, of equal ones the one that comes first; see
/// [`order_key`](fn@order_key) for the order. Writes them and their ids: their places in the row, or what `from` has there.
///
/// The grid has, along x, a block for each [`WARPS`] parts of all rows.
///
/// # Safety
///
/// The pointers are valid for what `p` describes: `values` and `ids` for rows · parts · k elements, `from`, if it is not null, for
/// rows · columns. What is written overlaps nothing else; `p.parts` is not 0.
#[kernel(
    family = topk,
    block = [THREADS, 1, 1],
    instances = [
        topk_f16_32 = <F16, 1>,
        topk_f16_64 = <F16, 2>,
        topk_bf16_32 = <Bf16, 1>,
        topk_bf16_64 = <Bf16, 2>,
        topk_f32_32 = <f32, 1>,
        topk_f32_64 = <f32, 2>,
    ],
)]
pub unsafe fn topk<T: Element, const SLOTS: usize>(
    x: Global<T>,
    from: Global<u32>,
    values: GlobalMut<T>,
    ids: GlobalMut<u32>,
    p: TopkParams,
) {
    let lane = warp::lane_id();
    let item = thread::block_idx_x() * WARPS + warp::warp_id();
    // SAFETY: the caller's promise.
    let parts = unsafe { NonZeroU32::new_unchecked(p.parts) };
    let (row, part) = (item / parts, item % parts);
    if row >= p.rows {
        return;
    }
    let bound = |part: u32| (part as u64 * p.columns as u64 / parts.get() as u64) as u32;
    let (begin, end) = (bound(part), bound(part + 1));
    let x = x.offset(row as u64 * p.row_stride);

    let mut best = BestOfWarp::<SLOTS>::new(p.k);
    let mut first = begin;
    while first < end {
        let mut keys = [EMPTY; LOADED];
        for (step, key) in keys.iter_mut().enumerate() {
            let at = first + step as u32 * warp::SIZE + lane;
            // SAFETY: within the row, or not read.
            let element = unsafe { T::load_read_only_if(x.offset(at as u64), at < end) };
            *key = if at < end { order_key(element) } else { EMPTY };
        }
        for (step, &key) in keys.iter().enumerate() {
            // SAFETY: the whole warp has the same row and part.
            unsafe { best.offer(key, first + step as u32 * warp::SIZE) }
        }
        first += LOADED as u32 * warp::SIZE;
    }

    let to = item as u64 * p.k as u64;
    for slot in 0..SLOTS {
        let place = slot as u32 * warp::SIZE + lane;
        if place >= p.k {
            continue;
        }
        let at = best.ids()[slot];
        // SAFETY: every part has k elements, so the place is taken by one of the row; it is this lane's to write.
        unsafe {
            let (value, to_value) =
                (x.offset(at as u64).address(), values.offset(to + place as u64).address());
            // The bits as they are, those of a NaN too.
            if T::BYTES == 2 {
                ptx::st_global_b16(to_value, ptx::ld_global_nc_b16(value));
            } else {
                ptx::st_global_b32(to_value, ptx::ld_global_nc_f32(value).to_bits());
            }
            let id = if from.is_null() {
                at
            } else {
                let from = from.offset(row as u64 * p.columns as u64 + at as u64);
                ptx::ld_global_nc_f32(from.address()).to_bits()
            };
            ptx::st_global_b32(ids.offset(to + place as u64).address(), id);
        }
    }
}
