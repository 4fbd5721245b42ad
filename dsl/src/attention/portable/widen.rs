//! How a block of keys and values of 8 bits is widened in shared memory.

use super::{PortableElement, PortableShape, PortableTile, StoredKeys, WARPS, place};
use crate::layout::CHUNK_BYTES;
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::{thread, warp};

/// Rows that a warp widens at a time, and their chunks: of eight lanes whose accesses are one, four have a row and four another, so that neither what they read
/// nor what they write meets in a bank.
const TASK_ROWS: u32 = 8;
const TASK_CHUNKS: u32 = 4;
/// What the numbers of these two rows differ by.
const APART: u32 = 5;

impl<T: PortableElement, S: PortableShape, K: StoredKeys<T>> PortableTile<T, S, K> {
    /// Widens the keys and values of stage `index` to [`block`](Self::block), those of the warp if warps have different keys. Afterwards they may be read.
    ///
    /// # Safety
    ///
    /// All threads of the block call it. The stage has come, and all have read what is widened before.
    #[inline(always)]
    pub(super) unsafe fn widen(index: u32, is_e5m2: bool) {
        let (from, to) = (Self::stage(index), Self::block(index));
        // SAFETY: the caller's promise; keys and values lie behind each other in both.
        unsafe {
            Self::widen_matrix(from, to, S::COLUMNS, is_e5m2);
            let (from, to) = (from.offset(Self::STORED_K_BYTES), to.offset(Self::K_BYTES));
            Self::widen_matrix(from, to, S::Sums::COLUMNS, is_e5m2);
            if S::KEY_WARPS == 1 {
                thread::sync_threads();
            } else {
                ptx::bar_warp_sync(u32::MAX);
            }
        }
    }

    /// # Safety
    ///
    /// As [`widen`](Self::widen).
    #[inline(always)]
    unsafe fn widen_matrix(from: SharedAddress, to: SharedAddress, columns: u32, is_e5m2: bool) {
        let lane = warp::lane_id();
        let (octet, of_row) = (lane / 8, lane % TASK_CHUNKS);
        let row_of_task = if lane % 8 < TASK_CHUNKS { octet } else { octet ^ APART };
        let (rows, first, task, step) = if S::KEY_WARPS == 1 {
            (Self::BLOCK_KEYS, 0, warp::warp_id(), WARPS)
        } else {
            (Self::WARP_KEYS, Self::key_warp() * Self::WARP_KEYS, 0, 1)
        };
        let groups = rows / TASK_ROWS;
        let tasks = groups * columns.div_ceil(TASK_CHUNKS * CHUNK_BYTES);
        for turn in 0..tasks.div_ceil(step) {
            let task = task + turn * step;
            let (row, chunk) = (task % groups * TASK_ROWS, task / groups * TASK_CHUNKS + of_row);
            let row = first + row + row_of_task;
            if tasks.is_multiple_of(step) || task < tasks {
                // SAFETY: within the stage and the block; the caller's promise.
                unsafe {
                    let at = place(Self::BLOCK_KEYS, row, chunk * CHUNK_BYTES);
                    let words = ptx::ld_shared_v4_b32(from.offset(at).get());
                    let wide = K::widen(words, is_e5m2);
                    for half in 0..2 {
                        let at = place(Self::BLOCK_KEYS, row, (2 * chunk + half) * CHUNK_BYTES);
                        ptx::st_shared_v4_b32(to.offset(at).get(), wide[half as usize]);
                    }
                }
            }
        }
    }
}
