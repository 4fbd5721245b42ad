//! Which columns of a row a thread has, and how it loads and stores them.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::float::{Bf16, Element, F16, HalfElement};
use crate::launch::GlobalMut;
use crate::rows::{AnyRows, Kind, RowElement, THREADS};
use crate::{ptx, warp};

/// How the threads that share a row divide its columns into chunks of `PER`.
///
/// If `VECTOR`, a chunk is `PER` neighbouring columns, and every operand has them at a multiple of their size; `PER` divides the number of columns.
/// Else the chunks of a warp's lanes are neighbours, and the columns of a chunk are as many apart as a warp has lanes. So neighbouring lanes access neighbouring
/// elements of any alignment, and what is between a chunk's places is known beforehand. Fewer threads than a warp have chunks between each other's.
/// Their number times that of chunks is the number of a warp's lanes.
#[derive(Clone, Copy)]
pub struct Columns<const PER: usize, const VECTOR: bool> {
    rank: u32,
    threads: u32,
    pub(super) columns: u32,
}

impl<const PER: usize, const VECTOR: bool> Columns<PER, VECTOR> {
    /// The share of thread `rank` of `threads` in a row of `columns` columns.
    #[inline(always)]
    #[must_use]
    pub fn new(rank: u32, threads: u32, columns: u32) -> Self {
        Self { rank, threads, columns }
    }

    /// The same share, or of nothing if the condition does not hold.
    ///
    /// The compiler does not know that it is the same: it would keep the places of all columns in registers from one use to the next.
    #[inline(always)]
    #[must_use]
    pub fn only_if(self, condition: bool) -> Self {
        let columns = if condition { self.columns } else { 0 };
        Self { rank: ptx::opaque(self.rank), threads: ptx::opaque(self.threads), columns }
    }

    /// The column of element `j` of this thread's chunk `chunk`.
    #[inline(always)]
    #[must_use]
    pub fn column(&self, chunk: u32, j: usize) -> u32 {
        if VECTOR {
            (chunk * self.threads + self.rank) * PER as u32 + j as u32
        } else {
            let (warp, lane) = (self.rank & !(warp::SIZE - 1), self.rank & (warp::SIZE - 1));
            chunk * self.stride() + warp * PER as u32 + lane + j as u32 * warp::SIZE
        }
    }

    /// From a thread's first column of a chunk to that of its next.
    #[inline(always)]
    fn stride(&self) -> u32 {
        let is_part_of_warp = !VECTOR && self.threads < warp::SIZE;
        if is_part_of_warp { self.threads } else { self.threads * PER as u32 }
    }

    /// A number where this thread has a chunk, and 0 where it does not; if chunks are neighbours.
    #[inline(always)]
    #[must_use]
    pub fn where_chunk(&self, chunk: u32, number: f32) -> f32 {
        if !VECTOR || self.has(chunk, 0) { number } else { 0.0 }
    }

    /// Whether there is such a column.
    #[inline(always)]
    #[must_use]
    pub fn has(&self, chunk: u32, j: usize) -> bool {
        if VECTOR {
            return self.column(chunk, 0) < self.columns;
        }
        // One difference for all columns of a chunk.
        j as u32 * warp::SIZE < self.columns.saturating_sub(self.column(chunk, 0))
    }

    /// Whether all threads have all columns of their chunk `chunk`: the same for all of them.
    #[inline(always)]
    #[must_use]
    pub fn is_full(&self, chunk: u32) -> bool {
        (VECTOR || self.threads >= warp::SIZE) && (chunk + 1) * self.stride() <= self.columns
    }

    /// Whether any thread has columns of its chunk `chunk`: the same for all of them.
    #[inline(always)]
    #[must_use]
    pub fn reaches(&self, chunk: u32) -> bool {
        chunk * self.stride() < self.columns
    }

    /// This thread's chunks `first` and on of a row of `T`, all on their way before any is waited for; see [`load_words`](Self::load_words).
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    pub unsafe fn load_all<T: RowElement, const CHUNKS: usize>(
        &self,
        row: u64,
        first: u32,
        words: &mut [[u32; 4]; CHUNKS],
    ) {
        for c in 0..CHUNKS {
            // No branch around it: what comes together behind one would wait for each load before the next.
            // SAFETY: the caller's promise.
            words[c] = unsafe { self.load_words::<T>(row, first + c as u32) };
        }
    }

    /// Whether column `column` is among this thread's. The row's threads are a power of two.
    #[inline(always)]
    #[must_use]
    pub fn has_column(&self, column: u32) -> bool {
        let of = if VECTOR {
            column / PER as u32
        } else {
            column / (warp::SIZE * PER as u32) * warp::SIZE + column % warp::SIZE
        };
        column < self.columns && of & (self.threads - 1) == self.rank
    }

    /// How many columns the threads of this block have of their first `chunks` chunks, where a block's have no other row.
    #[inline(always)]
    #[must_use]
    pub fn count_of_block(&self, chunks: u32) -> f32 {
        let (first, of_chunk) = ((self.rank & !(THREADS - 1)) * PER as u32, THREADS * PER as u32);
        let mut count = 0;
        for chunk in 0..chunks {
            let left = self.columns.saturating_sub(chunk * self.threads * PER as u32 + first);
            count += if left < of_chunk { left } else { of_chunk };
        }
        count as f32
    }

    /// The address of an element of a row of elements of `bytes` bytes.
    #[inline(always)]
    pub(super) fn at(&self, row: u64, bytes: u32, chunk: u32, j: usize) -> u64 {
        // What is added last the instruction has room for.
        let further = if VECTOR { j as u64 } else { j as u64 * warp::SIZE as u64 };
        row + self.column(chunk, 0) as u64 * bytes as u64 + further * bytes as u64
    }

    /// A chunk of a row of `T`, as it is: zeros where there is no column.
    ///
    /// # Safety
    ///
    /// The row is valid for reads of its columns and aligned as the type says; no other thread writes them.
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_words<T: RowElement>(&self, row: u64, chunk: u32) -> [u32; 4] {
        if VECTOR {
            // SAFETY: the caller's promise.
            return unsafe { ptx::ld_global_v4_b32_if(self.at(row, T::BYTES, chunk, 0), self.has(chunk, 0)) };
        }
        let mut bits = [0; PER];
        for j in 0..PER {
            // SAFETY: as above.
            bits[j] = unsafe { T::load_bits_if(self.at(row, T::BYTES, chunk, j), self.has(chunk, j)) };
        }
        T::join(bits)
    }

    /// As [`load_words`](Self::load_words), with −∞ where there is no column.
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_words_or_least<T: RowElement>(&self, row: u64, chunk: u32) -> [u32; 4] {
        if VECTOR {
            let at = self.at(row, T::BYTES, chunk, 0);
            // SAFETY: the caller's promise.
            return unsafe { ptx::ld_global_v4_b32_or(at, self.has(chunk, 0), T::LEAST) };
        }
        let mut bits = [0; PER];
        for j in 0..PER {
            // SAFETY: as above.
            bits[j] = unsafe { T::load_bits_or_least(self.at(row, T::BYTES, chunk, j), self.has(chunk, j)) };
        }
        T::join(bits)
    }

    /// A chunk of row `row` of an operand of any type, in f32: zeros where there is no column.
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load(&self, of: &AnyRows, row: u32, chunk: u32) -> [f32; PER] {
        let at = of.row(row);
        // SAFETY: the caller's promise.
        let mut values = unsafe {
            if of.kind == Kind::F32 {
                self.load_f32(at, chunk)
            } else if of.kind == Kind::F16 {
                self.load_half::<F16>(at, chunk)
            } else {
                self.load_half::<Bf16>(at, chunk)
            }
        };
        for value in values.iter_mut() {
            *value += of.offset;
        }
        values
    }

    #[inline(always)]
    unsafe fn load_f32(&self, row: u64, chunk: u32) -> [f32; PER] {
        let mut values = [0.0; PER];
        for j in 0..PER {
            if VECTOR && j % 4 == 0 {
                // SAFETY: the caller's promise.
                let four = unsafe { ptx::ld_global_v4_b32_if(self.at(row, 4, chunk, j), self.has(chunk, j)) };
                for i in 0..4 {
                    values[j + i] = f32::from_bits(four[i]);
                }
            } else if !VECTOR {
                // SAFETY: the caller's promise.
                values[j] = unsafe { ptx::ld_global_f32_if(self.at(row, 4, chunk, j), self.has(chunk, j)) };
            }
        }
        values
    }

    #[inline(always)]
    unsafe fn load_half<H: RowElement + HalfElement>(&self, row: u64, chunk: u32) -> [f32; PER] {
        if VECTOR && PER == 4 {
            let (at, is_there) = (self.at(row, 2, chunk, 0), self.has(chunk, 0));
            // SAFETY: the caller's promise.
            let [a, b] = unsafe { ptx::ld_global_v2_b32_if(at, is_there) };
            return <H as RowElement>::unpack([a, b, 0, 0]);
        }
        // SAFETY: the caller's promise.
        <H as RowElement>::unpack(unsafe { self.load_words::<H>(row, chunk) })
    }

    /// Stores a chunk of a row of `T` as it is.
    ///
    /// # Safety
    ///
    /// The row is valid for writes of its columns and aligned as the type says; no other thread touches them.
    #[inline(always)]
    pub unsafe fn store_words<T: RowElement>(&self, row: u64, chunk: u32, words: [u32; 4]) {
        if VECTOR {
            if self.has(chunk, 0) {
                // SAFETY: the caller's promise.
                unsafe { ptx::st_global_v4_b32(self.at(row, T::BYTES, chunk, 0), words) };
            }
            return;
        }
        let is_full = self.is_full(chunk);
        for j in 0..PER {
            // A full chunk has one branch for all threads.
            if is_full || self.has(chunk, j) {
                let at = self.at(row, T::BYTES, chunk, j);
                // SAFETY: the caller's promise.
                unsafe {
                    if T::BYTES == 2 {
                        ptx::st_global_b16(at, (words[j / 2] >> (j % 2 * 16)) as u16);
                    } else {
                        ptx::st_global_b32(at, words[j]);
                    }
                }
            }
        }
    }

    /// Rounds numbers to the type of an operand, and stores them as a chunk of its row `row`.
    ///
    /// # Safety
    ///
    /// As [`store_words`](Self::store_words).
    #[inline(always)]
    pub unsafe fn store(&self, to: &AnyRows, row: u32, chunk: u32, values: [f32; PER]) {
        // SAFETY: the caller's promise.
        unsafe { self.store_as(to.kind, to.row(row), chunk, values) }
    }

    /// Rounds numbers to a type, and stores them as a chunk of the row at `at`.
    ///
    /// # Safety
    ///
    /// As [`store_words`](Self::store_words).
    #[inline(always)]
    pub unsafe fn store_as(&self, kind: Kind, at: u64, chunk: u32, values: [f32; PER]) {
        // SAFETY: the caller's promise.
        unsafe {
            if kind == Kind::F32 {
                self.store_rounded::<f32>(at, chunk, values);
            } else if kind == Kind::F16 {
                self.store_half::<F16>(at, chunk, values);
            } else {
                self.store_half::<Bf16>(at, chunk, values);
            }
        }
    }

    /// As [`store_rounded`](Self::store_rounded), 16 bytes at a time where there are as many: two stores of eight bytes would each write half of every sector.
    ///
    /// # Safety
    ///
    /// As [`store_words`](Self::store_words).
    #[inline(always)]
    unsafe fn store_half<H: RowElement>(&self, row: u64, chunk: u32, values: [f32; PER]) {
        // SAFETY: the caller's promise.
        unsafe {
            if VECTOR && PER == 8 {
                self.store_words::<H>(row, chunk, H::pack(values));
            } else {
                self.store_rounded::<H>(row, chunk, values);
            }
        }
    }

    /// As [`store`](Self::store), of a known type.
    ///
    /// # Safety
    ///
    /// As [`store_words`](Self::store_words).
    #[inline(always)]
    pub unsafe fn store_rounded<T: Element>(&self, row: u64, chunk: u32, values: [f32; PER]) {
        for j in 0..PER {
            if !self.has(chunk, j) {
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe {
                if VECTOR && j % 4 == 0 {
                    let four = [values[j], values[j + 1], values[j + 2], values[j + 3]];
                    T::store_rounded_4(GlobalMut::new(self.at(row, T::BYTES, chunk, j)), four);
                } else if !VECTOR {
                    T::store_rounded(GlobalMut::new(self.at(row, T::BYTES, chunk, j)), values[j]);
                }
            }
        }
    }
}

/// The same words, of which the compiler does not know that it has them as numbers already: it would keep those, in twice as many registers.
#[inline(always)]
#[must_use]
pub fn hidden(words: [u32; 4]) -> [u32; 4] {
    words.map(ptx::opaque)
}

/// As [`hidden`], of all chunks.
#[inline(always)]
pub fn hide<const CHUNKS: usize>(words: &mut [[u32; 4]; CHUNKS]) {
    for chunk in words.iter_mut() {
        *chunk = hidden(*chunk);
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    /// Of rows of `columns` columns that `threads` threads share, in `chunks` chunks of each: every column is one place of one thread, and no place is beyond them.
    fn expect_all<const PER: usize, const VECTOR: bool>(threads: u32, chunks: u32, columns: u32) {
        let mut owners = vec![0; columns as usize];
        for rank in 0..threads {
            let own = Columns::<PER, VECTOR>::new(rank, threads, columns);
            for chunk in 0..chunks {
                for j in 0..PER {
                    let column = own.column(chunk, j);
                    if own.has(chunk, j) {
                        owners[column as usize] += 1;
                        assert!(own.has_column(column), "{rank} of {threads}: {column}");
                        assert!(own.reaches(chunk), "{rank} of {threads}: chunk {chunk} of {columns}");
                    } else {
                        assert!(column >= columns && !own.is_full(chunk), "{rank} of {threads}: {column}");
                    }
                }
            }
            let owned = (0..columns).filter(|&column| own.has_column(column)).count();
            let held = (0..chunks).flat_map(|chunk| (0..PER).map(move |j| own.has(chunk, j)));
            assert_eq!(owned, held.filter(|&has| has).count(), "{rank} of {threads}, {columns} columns");
        }
        assert!(owners.iter().all(|&count| count == 1), "{threads} threads, {columns} columns: {owners:?}");
    }

    #[test]
    fn every_column_is_one_threads_however_many_share_a_row() {
        for (threads, chunks) in [(8, 4), (16, 2), (32, 1), (32, 4), (64, 2), (256, 4)] {
            let most = threads.max(warp::SIZE / chunks) * chunks * 4;
            for columns in [1, 2, 3, 7, 31, 32, 33, 34, 65, 100, 127, 128, 255, 256, 1000, most - 1, most] {
                if columns <= most {
                    expect_all::<4, false>(threads, chunks, columns);
                }
                if columns <= 2 * most {
                    expect_all::<8, false>(threads, chunks, columns);
                }
            }
        }
        for threads in [4, 32, 256] {
            for columns in [8, 64, threads * 16, threads * 32] {
                expect_all::<8, true>(threads, 4, columns.min(threads * 32));
            }
        }
    }
}
