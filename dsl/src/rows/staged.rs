//! Vectors with an element for each column, in f32 in shared memory: read and converted once for all rows of a block.

use crate::rows::{AnyRows, Columns, THREADS, Team};
use crate::shared::SharedAddress;
use crate::{ptx, thread};

/// Bytes of four numbers.
const FOUR: u32 = 16;

/// A vector whose elements are where the threads of a team have columns, four at a time: neighbouring threads' are neighbours.
#[derive(Clone, Copy)]
pub struct Staged {
    /// Where this thread's first four are.
    own: SharedAddress,
}

/// From four of a thread to its next four: known beforehand, so that no place but the first takes a register.
const STEP: u32 = THREADS * FOUR;

impl Staged {
    /// Bytes of a vector, of threads that have `elements` elements of a row.
    #[must_use]
    pub const fn bytes(elements: u32) -> u32 {
        THREADS * elements * 4
    }

    /// Reads a vector, or ones if it is not there, into shared memory at `at`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and [`thread::sync_threads`] before they read it. The vector is valid for its columns, all of which the threads have
    /// in one round; there are [`bytes`](Self::bytes) of shared memory.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new<const PER: usize, const CHUNKS: usize, const VECTOR: bool, const CLUSTER: bool>(
        team: &Team<CLUSTER>,
        columns: Columns<PER, VECTOR>,
        of: &AnyRows,
        at: SharedAddress,
    ) -> Self {
        let in_block = team.in_block();
        let rank = thread::thread_idx_x() & (in_block - 1);
        let staged = Self { own: at.offset(rank * FOUR) };
        if team.index == 0 {
            for c in 0..CHUNKS as u32 {
                let mut values = [1.0; PER];
                if of.is_there() {
                    // SAFETY: the caller's promise.
                    values = unsafe { columns.load(of, 0, c) };
                }
                for four in 0..PER / 4 {
                    let at = staged.own.offset((c * (PER / 4) as u32 + four as u32) * STEP);
                    let first = 4 * four;
                    let numbers = [values[first], values[first + 1], values[first + 2], values[first + 3]];
                    // SAFETY: this thread's place.
                    unsafe { ptx::st_shared_v4_f32(at.get(), numbers) };
                }
            }
        }
        staged
    }

    /// The elements of this thread's chunk `chunk`.
    ///
    /// # Safety
    ///
    /// The vector has been read, and all threads have come to a barrier since.
    #[inline(always)]
    #[must_use]
    pub unsafe fn chunk<const PER: usize>(&self, chunk: u32) -> [f32; PER] {
        let mut values = [0.0; PER];
        for four in 0..PER / 4 {
            let at = self.own.offset((chunk * (PER / 4) as u32 + four as u32) * STEP);
            // SAFETY: the caller's promise.
            let numbers = unsafe { ptx::ld_shared_v4_f32(at.get()) };
            for j in 0..4 {
                values[4 * four + j] = numbers[j];
            }
        }
        values
    }
}
