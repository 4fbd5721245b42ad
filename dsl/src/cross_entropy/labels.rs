//! Labels, how many of them count, and the sum of their rows' losses.

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{THREADS, Team};
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// The most parts that rows are counted or summed in: each lane has two of them.
pub const MAX_PARTS: u32 = 64;
const WARPS: u32 = THREADS / warp::SIZE;

/// The integer type of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LabelKind(u32);

impl LabelKind {
    /// i64.
    pub const I64: Self = Self(0);
    /// i32.
    pub const I32: Self = Self(1);
    /// u32.
    pub const U32: Self = Self(2);
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for LabelKind {}

/// The labels of rows, one after the other.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Labels {
    /// The device address of the first.
    pub base: u64,
    /// The label of rows that do not count.
    pub ignored: i64,
    /// Their type.
    pub kind: LabelKind,
    /// Whether there is such a label.
    pub ignores: u32,
}

// SAFETY: fields of 8, 8, 4 and 4 bytes, without padding.
unsafe impl KernelParam for Labels {}

impl Labels {
    /// The words of the label of a row; of the last of `rows` if there are no more. It is [`value`](Self::value) that waits for them.
    ///
    /// # Safety
    ///
    /// There are so many rows, and at least one; nothing writes their labels.
    #[inline(always)]
    #[must_use]
    pub unsafe fn load(&self, row: u32, rows: u32) -> [u32; 2] {
        let row = if row < rows { row } else { rows - 1 };
        let bytes: u32 = if self.kind == LabelKind::I64 { 8 } else { 4 };
        let at = self.base + row as u64 * bytes as u64;
        // SAFETY: the caller's promise.
        unsafe { [ptx::ld_global_b32(at), ptx::ld_global_b32(at + bytes as u64 - 4)] }
    }

    /// The label that words stand for.
    #[inline(always)]
    #[must_use]
    pub fn value(&self, [low, high]: [u32; 2]) -> i64 {
        let signed = if self.kind == LabelKind::I32 { (low as i32 >> 31) as u32 } else { 0 };
        let high = if self.kind == LabelKind::I64 { high } else { signed };
        (high as i64) << 32 | low as i64
    }

    /// Whether rows of this label do not count.
    #[inline(always)]
    #[must_use]
    pub fn ignore(&self, label: i64) -> bool {
        self.ignores != 0 && label == self.ignored
    }
}

/// The sum of the lanes' numbers, in all of them.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_lanes(mut count: u32) -> u32 {
    let mut mask = 1;
    while mask < warp::SIZE {
        // SAFETY: the caller's promise.
        count += unsafe { ptx::shfl_sync_bfly(count, mask) };
        mask *= 2;
    }
    count
}

/// The sum of counts, in all lanes.
///
/// # Safety
///
/// All lanes of the warp call it; there are `parts` counts, and nothing writes them.
#[inline(always)]
pub(super) unsafe fn total(counts: Global<u32>, parts: u32) -> u32 {
    let (mut sum, mut at) = (0, warp::lane_id());
    // SAFETY: the caller's promise.
    unsafe {
        while at < parts {
            sum += ptx::ld_global_b32(counts.offset(at as u64).address());
            at += warp::SIZE;
        }
        over_lanes(sum)
    }
}

/// How many of the labels of each part of the rows are not to be ignored. A block has a part, of `part` rows.
///
/// # Safety
///
/// There are labels for `rows` rows and a count for each block, which overlaps nothing else. The block has a word of shared memory for each warp.
#[inline(always)]
pub unsafe fn count_labels(labels: &Labels, counts: GlobalMut<u32>, rows: u32, part: u32) {
    let (block, id) = (thread::block_idx_x(), thread::thread_idx_x());
    let first = block * part;
    let end = if rows - first < part { rows } else { first + part };
    let (mut count, mut row) = (0, first + id);
    while row < end {
        // SAFETY: there is such a row.
        let label = labels.value(unsafe { labels.load(row, rows) });
        count += !labels.ignore(label) as u32;
        row += THREADS;
    }
    let place = |warp: u32| SharedAddress::dynamic().offset(warp * 4).get();
    // SAFETY: all threads come here; each warp has its place, and the barrier is between writing and reading.
    unsafe {
        count = over_lanes(count);
        if warp::lane_id() == 0 {
            ptx::st_shared_b32(place(warp::warp_id()), count);
        }
        thread::sync_threads();
        if id == 0 {
            for other in 1..WARPS {
                count += ptx::ld_shared_b32(place(other));
            }
            ptx::st_global_b32(counts.offset(block as u64).address(), count);
        }
    }
}

/// The sum of the losses of each part of the rows, divided by the sum of `parts` counts if there are any: 0 if that is 0. A block has a part, of `part` rows.
///
/// # Safety
///
/// There are `rows` losses, `parts` counts unless they are null, and a sum for each block, which overlaps nothing else. The block has
/// [`SHARED_BYTES`](crate::rows::SHARED_BYTES) of shared memory.
#[inline(always)]
pub unsafe fn sum_losses(
    losses: Global<f32>,
    counts: Global<u32>,
    sums: GlobalMut<f32>,
    rows: u32,
    part: u32,
    parts: u32,
) {
    let (block, id) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: all threads come here.
    let mut team = unsafe { Team::<false>::new(THREADS) };
    let first = block * part;
    let end = if rows - first < part { rows } else { first + part };
    let (mut sum, mut row) = (0.0, first + id);
    while row < end {
        // SAFETY: there is such a row.
        sum += f32::from_bits(unsafe { ptx::ld_global_b32(losses.offset(row as u64).address()) });
        row += THREADS;
    }
    // SAFETY: the caller's promise; all threads come here.
    unsafe {
        [sum] = team.sum([sum]);
        if !counts.is_null() {
            let count = total(counts, parts);
            let mean = sum * ptx::rcp_approx_ftz(count as f32);
            sum = if count == 0 { 0.0 } else { mean };
        }
        if id == 0 {
            ptx::st_global_b32(sums.offset(block as u64).address(), sum.to_bits());
        }
    }
}
