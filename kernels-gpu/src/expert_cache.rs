//! Filling a cache of rows: rows of a table in host memory are copied to slots in the device's memory, and the map from rows to slots
//! is brought up to date.
//!
//! Which row goes where are two lists in host memory as well, so that a launch is all that a step of the cache takes. Reads over the link to the
//! host take microseconds: a warp has a whole row of 4 KiB under way at a time, and a few blocks saturate the link.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout::CHUNK_BYTES;
use warpsmith_dsl::{KernelParam, kernel, ptx, thread};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Warps of a block.
pub const WARPS: u32 = THREADS / LANES;
const LANES: u32 = 32;
/// Chunks of 16 bytes that a thread has under way at a time.
const IN_FLIGHT: u32 = 8;

/// How much there is to do.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct FillParams {
    /// Bytes of a row, a multiple of 16.
    pub row_bytes: u32,
    /// How many rows are copied.
    pub loads: u32,
    /// How many entries of the map change.
    pub changes: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// Copies, for each of `loads` pairs of a row and a slot, the row to the slot; and sets, for each of `changes` pairs of a row and a slot, the
/// row's entry in `slot_of`. Any grid along x does it.
///
/// # Safety
///
/// `rows` and `slots` are multiples of 16 and valid for the rows and slots in the list, `slot_of` for the rows in the other list; no slot is
/// in the first list twice, no row in the second. Nothing else uses what is written, and nothing writes what is read.
#[kernel(family = expert_cache, block = [THREADS, 1, 1])]
pub unsafe fn fill_slots(
    rows: Global<u8>,
    slots: GlobalMut<u8>,
    slot_of: GlobalMut<u32>,
    loads: Global<u32>,
    changes: Global<u32>,
    p: FillParams,
) {
    let thread = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    let threads = thread::grid_dim_x() * THREADS;
    let (warp, lane) = (thread / LANES, thread % LANES);
    let row_chunks = p.row_bytes / CHUNK_BYTES;

    let mut index = warp;
    while index < p.loads {
        // SAFETY: there are so many pairs, which nothing writes.
        let [row, slot] = unsafe { ptx::ld_global_v2_b32(loads.offset(2 * index as u64).address()) };
        let from = rows.address() + row as u64 * p.row_bytes as u64;
        let to = slots.address() + slot as u64 * p.row_bytes as u64;
        let mut first = lane;
        while first < row_chunks {
            let mut chunks = [[0; 4]; IN_FLIGHT as usize];
            for (i, chunk) in chunks.iter_mut().enumerate() {
                let at = first + i as u32 * LANES;
                // SAFETY: the chunk is one of the row's, if it is read.
                *chunk = unsafe {
                    ptx::ld_global_v4_b32_if(from + at as u64 * CHUNK_BYTES as u64, at < row_chunks)
                };
            }
            for (i, chunk) in chunks.iter().enumerate() {
                let at = first + i as u32 * LANES;
                if at < row_chunks {
                    // SAFETY: the chunk is one of the slot's, which this warp alone writes.
                    unsafe { ptx::st_global_v4_b32(to + at as u64 * CHUNK_BYTES as u64, *chunk) }
                }
            }
            first += IN_FLIGHT * LANES;
        }
        index += threads / LANES;
    }

    let mut index = thread;
    while index < p.changes {
        // SAFETY: there are so many pairs, which nothing writes; this thread alone writes the row's entry.
        unsafe {
            let [row, slot] = ptx::ld_global_v2_b32(changes.offset(2 * index as u64).address());
            ptx::st_global_b32(slot_of.offset(row as u64).address(), slot);
        }
        index += threads;
    }
}
