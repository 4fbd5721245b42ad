//! Keeping a cache of rows in step with what its users read: noting which rows a step reads, and copying rows of a table in host memory to slots
//! in the device's memory.
//!
//! [`note_rows`](fn@note_rows) makes of a step's ids, which are on the device, a bit for each row of the table: what the host plans by. The host reads that many
//! bits and no ids. [`settle_notes`](fn@settle_notes) counts the noted rows once the step is planned, and clears the notes for the next one.
//!
//! [`fill_slots`](fn@fill_slots) does what was planned. Which row goes where is a list in host memory, so that a launch is all that a step of the cache takes.
//! Reads over the link to the host take microseconds: a warp reads its part of the list at once and has a whole row of 4 KiB under way at a time,
//! and a few blocks saturate the link.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout::CHUNK_BYTES;
use warpsmith_dsl::{KernelParam, kernel, ptx, thread};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Warps of a block.
pub const WARPS: u32 = THREADS / LANES;
/// Entries of a list that a warp reads at once, at most.
pub const LANES: u32 = 32;
/// Chunks of 16 bytes that a thread has under way at a time.
const IN_FLIGHT: u32 = 8;

/// Words of notes before the first row's: how many ids were of rows with a slot, what the first id of no row is, two that stay 0.
pub const HEADER: u32 = 4;
/// The word that counts the ids of rows with a slot.
pub const HITS: u32 = 0;
/// The word of the first id of no row: 2³² - 1 less its position, 0 if there is none.
pub const STRAY: u32 = 1;
/// Words of a load: row, slot, and the row that loses the slot or [`NONE`].
pub const LOAD_WORDS: u32 = 3;
/// Stands for no slot and for no row.
pub const NONE: u32 = u32::MAX;

/// What is noted.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct NoteParams {
    /// How many ids there are, less than 2³¹: each is looked at, whether it is a row's.
    pub ids: u32,
    /// How many of them, from the first on, are the step's. The others are not noted.
    pub noted: u32,
    /// Rows of the table.
    pub rows: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// What is settled.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct SettleParams {
    /// Words of the notes behind the header: one for 32 rows.
    pub words: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// How much there is to copy.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct FillParams {
    /// Bytes of a row, a multiple of 16; 0 if only the map is to be changed.
    pub row_bytes: u32,
    /// How many loads there are.
    pub loads: u32,
    /// How many of them a warp takes at a time, from 1 to [`LANES`].
    pub batch: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// Notes the first `noted` of `ids` ids: sets the bit of each one's row in `notes`, behind the [`HEADER`], and adds up how many of them are rows
/// whose bit is set in `resident`. Of all `ids` ids the first that is no row's is noted as [`STRAY`]. Any grid along x does it.
///
/// Ids are as often the same as their users like: a word is read first, and changed only if the bit is not set yet.
///
/// # Safety
///
/// `ids` is valid for as many numbers, `resident` and, behind its header, `notes` for a word for 32 rows each. Nothing else uses `notes`, and
/// nothing writes what is read.
#[kernel(family = expert_cache, block = [THREADS, 1, 1])]
pub unsafe fn note_rows(ids: Global<u32>, resident: Global<u32>, notes: GlobalMut<u32>, p: NoteParams) {
    let lane = thread::thread_idx_x() % LANES;
    let threads = thread::grid_dim_x() * THREADS;
    // Of the warp's first lane, so that its lanes stay together.
    let mut first = thread::block_idx_x() * THREADS + thread::thread_idx_x() - lane;
    let mut hits = 0;
    while first < p.ids {
        let index = first + lane;
        let mut is_hit = false;
        if index < p.ids {
            // SAFETY: there are so many ids.
            let id = unsafe { ptx::ld_global_b32(ids.offset(index as u64).address()) };
            if id >= p.rows {
                // SAFETY: a word of the header, which all change atomically.
                unsafe { ptx::red_gpu_max_u32(notes.offset(STRAY as u64).address(), NONE - index) }
            } else if index < p.noted {
                let (word, bit) = (id / 32, 1 << (id % 32));
                let place = notes.offset((HEADER + word) as u64).address();
                // SAFETY: the row has a bit in both; while this runs, nothing writes the one, and all change the other atomically.
                unsafe {
                    is_hit = ptx::ld_global_b32(resident.offset(word as u64).address()) & bit != 0;
                    if ptx::ld_relaxed_gpu_u32(place) & bit == 0 {
                        ptx::red_gpu_or_b32(place, bit);
                    }
                }
            }
        }
        // SAFETY: the whole warp is here: what it loops by is the same for its lanes.
        hits += unsafe { ptx::vote_sync_ballot(is_hit) }.count_ones();
        first += threads;
    }
    if lane == 0 && hits != 0 {
        // SAFETY: as above.
        unsafe { ptx::red_gpu_add_u32(notes.offset(HITS as u64).address(), hits) }
    }
}

/// Adds 1 to the `heat` of every row whose bit is set in `notes`, up to 2³² - 1, and clears the notes with their header. Any grid along x does it.
///
/// # Safety
///
/// `notes` is valid for its header and `words` words, `heat` for the rows whose bits are set. Nothing else uses either.
#[kernel(family = expert_cache, block = [THREADS, 1, 1])]
pub unsafe fn settle_notes(notes: GlobalMut<u32>, heat: GlobalMut<u32>, p: SettleParams) {
    let thread = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    let threads = thread::grid_dim_x() * THREADS;
    if thread < HEADER {
        // SAFETY: a word of the header, which this thread alone writes.
        unsafe { ptx::st_global_b32(notes.offset(thread as u64).address(), 0) }
    }
    let mut word = thread;
    while word < p.words {
        let place = notes.offset((HEADER + word) as u64).address();
        // SAFETY: there are so many words, and this thread alone uses this one.
        let mut bits = unsafe { ptx::ld_global_b32(place) };
        if bits != 0 {
            // SAFETY: as above.
            unsafe { ptx::st_global_b32(place, 0) }
        }
        while bits != 0 {
            let row = word * 32 + bits.trailing_zeros();
            let place = heat.offset(row as u64).address();
            // SAFETY: the row's bit is set; the thread with its word alone uses its heat.
            unsafe {
                let heat = ptx::ld_global_b32(place);
                ptx::st_global_b32(place, heat.saturating_add(1));
            }
            bits &= bits - 1;
        }
        word += threads;
    }
}

/// Enters each load of the list into `slot_of`: its row has its slot, and the row that was there has none any more. With `row_bytes`, it also copies the
/// row to the slot. Any grid along x does it.
///
/// # Safety
///
/// `rows` and `slots` are multiples of 16 and valid for the rows and slots in the list, `slot_of` for all rows in it; no slot is in the list twice, and
/// no row, whether it gets or loses a slot. Nothing else uses what is written, and nothing writes what is read.
#[kernel(family = expert_cache, block = [THREADS, 1, 1])]
pub unsafe fn fill_slots(
    rows: Global<u8>,
    slots: GlobalMut<u8>,
    slot_of: GlobalMut<u32>,
    loads: Global<u32>,
    p: FillParams,
) {
    let lane = thread::thread_idx_x() % LANES;
    let warp = (thread::block_idx_x() * THREADS + thread::thread_idx_x()) / LANES;
    let row_chunks = p.row_bytes / CHUNK_BYTES;

    let mut first = warp * p.batch;
    while first < p.loads {
        let count = p.batch.min(p.loads - first);
        let (mut row, mut slot) = (0, 0);
        if lane < count {
            let load = loads.offset((first + lane) as u64 * LOAD_WORDS as u64).address();
            // SAFETY: there are so many loads, which nothing writes; this thread alone writes the entries of its rows.
            unsafe {
                row = ptx::ld_global_b32(load);
                slot = ptx::ld_global_b32(load + 4);
                let evicted = ptx::ld_global_b32(load + 8);
                ptx::st_global_b32(slot_of.offset(row as u64).address(), slot);
                if evicted != NONE {
                    ptx::st_global_b32(slot_of.offset(evicted as u64).address(), NONE);
                }
            }
        }
        let mut index = 0;
        while row_chunks != 0 && index < count {
            // SAFETY: the whole warp is here: what it loops by is the same for its lanes.
            let (row, slot) = unsafe { (ptx::shfl_sync_idx(row, index), ptx::shfl_sync_idx(slot, index)) };
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
            index += 1;
        }
        first += thread::grid_dim_x() * WARPS * p.batch;
    }
}
