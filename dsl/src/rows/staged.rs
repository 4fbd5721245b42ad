//! A vector with an element for each column, in f32 in shared memory: read and converted once for all rows of a block.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::rows::{AnyRows, Columns, RowElement, THREADS, Team};
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
    /// Where a vector of the threads of a team is to be, from `at` on.
    #[inline(always)]
    #[must_use]
    pub fn at<const CLUSTER: bool>(team: &Team<CLUSTER>, at: SharedAddress) -> Self {
        let rank = thread::thread_idx_x() & (team.in_block() - 1);
        Self { own: at.offset(rank * FOUR) }
    }

    /// Reads a vector into shared memory, of ones if it is not there.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and [`thread::sync_threads`] before they read the vector. It is valid for its columns, all of which the threads have in one
    /// round; there are 4 bytes of shared memory for each element that a thread of the block has.
    #[inline(always)]
    pub unsafe fn read<
        T: RowElement,
        const PER: usize,
        const CHUNKS: usize,
        const VECTOR: bool,
        const CLUSTER: bool,
    >(
        &self,
        team: &Team<CLUSTER>,
        columns: Columns<PER, VECTOR>,
        of: &AnyRows,
    ) {
        if team.index() != 0 {
            return;
        }
        let mut words = [[0; 4]; CHUNKS];
        let of_type = columns.only_if(of.is_there() && of.kind == T::KIND);
        // SAFETY: the caller's promise.
        unsafe { of_type.load_all::<T, CHUNKS>(of.base, 0, &mut words) };
        each_chunk!(c of CHUNKS => {
            let mut values: [f32; PER] = T::unpack(words[c]);
            if !of.is_there() {
                values = [1.0; PER];
            } else if of.kind != T::KIND {
                // SAFETY: the caller's promise.
                values = unsafe { columns.load(of, 0, c as u32) };
            } else {
                for j in 0..PER {
                    values[j] += of.offset;
                }
            }
            for four in 0..PER / 4 {
                let at = self.own.offset((c * (PER / 4) + four) as u32 * STEP);
                let first = 4 * four;
                let numbers = [values[first], values[first + 1], values[first + 2], values[first + 3]];
                // SAFETY: this thread's place.
                unsafe { ptx::st_shared_v4_f32(at.get(), numbers) };
            }
        });
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
