//! Tiles: pieces of a matrix in global memory, and their copies in shared memory.
//!
//! An operand of a matrix product is stored K-major: each row is contiguous along the dimension that the product sums
//! over. A block copies `ROWS` rows × `ROW_BYTES` bytes of it at a time, in chunks of 16 bytes or smaller words spread over its
//! threads, into a swizzled tile (see [`layout`](crate::layout)). What is outside the matrix arrives as zeros, so that the product need
//! not know of edges.

pub mod registers;

use core::marker::PhantomData;

use crate::float::{Element, Stored};
use crate::launch::{Global, GlobalMut};
use crate::layout::{CHUNK_BYTES, Swizzle};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;

/// A K-major matrix in global memory: `rows` rows of `k` elements, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Operand<T> {
    /// The first element.
    pub base: Global<T>,
    /// Elements from one row to the next.
    pub stride: u64,
    /// The number of rows.
    pub rows: u32,
    /// Elements of a row.
    pub k: u32,
}

/// The matrix that a kernel writes: `rows` × `columns` elements, rows `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Output<T> {
    /// The first element.
    pub base: GlobalMut<T>,
    /// Elements from one row to the next.
    pub stride: u64,
    /// The number of rows.
    pub rows: u32,
    /// The number of columns.
    pub columns: u32,
}

impl<T: Element> Output<T> {
    /// Whether every row starts at a multiple of `bytes`, a power of two.
    #[inline(always)]
    #[must_use]
    pub fn is_aligned_to(&self, bytes: u32) -> bool {
        (self.base.address() | (self.stride * T::BYTES as u64)) & (bytes as u64 - 1) == 0
    }

    /// Whether every row starts at a multiple of four elements' size, so that four may be stored at a time.
    #[inline(always)]
    #[must_use]
    pub fn is_vector_aligned(&self) -> bool {
        self.is_aligned_to(4 * T::BYTES)
    }

    /// The place of an element.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, row: u32, column: u32) -> GlobalMut<T> {
        self.base.offset(row as u64 * self.stride + column as u64)
    }

    /// Rounds `values` to columns `column`.. of `row` and stores those that are within the matrix.
    ///
    /// # Safety
    ///
    /// The matrix is valid for writes, no other thread touches these elements, `column` is a multiple of 4, and
    /// `vector_aligned` is what [`is_vector_aligned`](Self::is_vector_aligned) says.
    #[inline(always)]
    pub unsafe fn store_4(&self, row: u32, column: u32, values: [f32; 4], vector_aligned: bool) {
        if row >= self.rows {
            return;
        }
        let at = self.at(row, column);
        if vector_aligned && column + 4 <= self.columns {
            // SAFETY: within the matrix, and aligned as the caller says.
            unsafe { T::store_rounded_4(at, values) }
        } else {
            for i in 0..4 {
                if column + i < self.columns {
                    // SAFETY: within the matrix.
                    unsafe { T::store_rounded(at.offset(i as u64), values[i as usize]) }
                }
            }
        }
    }

    /// [`store_4`](Self::store_4), for each of some rows the same columns. It asks once whether these are within the matrix.
    ///
    /// # Safety
    ///
    /// As [`store_4`](Self::store_4).
    #[inline(always)]
    pub unsafe fn store_4_of_rows<const R: usize>(
        &self,
        rows: [u32; R],
        column: u32,
        values: &[[f32; 4]; R],
        vector_aligned: bool,
    ) {
        if vector_aligned && column + 4 <= self.columns {
            for (&row, &values) in rows.iter().zip(values) {
                if row < self.rows {
                    // SAFETY: within the matrix, and aligned as the caller says.
                    unsafe { T::store_rounded_4(self.at(row, column), values) }
                }
            }
        } else {
            for (&row, &values) in rows.iter().zip(values) {
                // SAFETY: the caller's promise.
                unsafe { self.store_4(row, column, values, false) }
            }
        }
    }
}

/// How many bytes of an operand's rows are copied at a time: what their alignment allows.
pub trait Access: 'static {
    /// Whether it is always 16.
    const IS_ALIGNED: bool;

    /// The logarithm of that number.
    fn word_log2<T: Stored>(operand: &Operand<T>) -> u32;

    /// Whether these two operands can be read as [`Aligned`].
    #[inline(always)]
    fn are_aligned<T: Stored>(a: &Operand<T>, b: &Operand<T>) -> bool {
        Self::word_log2(a) == CHUNK_LOG2 && Self::word_log2(b) == CHUNK_LOG2
    }
}

/// Base address and row stride are multiples of 16 bytes, and so many are copied at a time.
pub enum Aligned {}

/// Base address and row stride are multiples of 4 bytes; 4, 8 or 16 are copied at a time, as many as both allow.
pub enum Words {}

impl Access for Aligned {
    const IS_ALIGNED: bool = true;

    #[inline(always)]
    fn word_log2<T: Stored>(_: &Operand<T>) -> u32 {
        CHUNK_LOG2
    }
}

impl Access for Words {
    const IS_ALIGNED: bool = false;

    #[inline(always)]
    fn word_log2<T: Stored>(operand: &Operand<T>) -> u32 {
        let bits = operand.base.address() | (operand.stride * T::BYTES as u64);
        match bits {
            _ if bits.is_multiple_of(16) => CHUNK_LOG2,
            _ if bits.is_multiple_of(8) => 3,
            _ => 2,
        }
    }
}

/// Words of different rows that a thread copies at most without looking whether there are more.
const WORDS_AT_ONCE: u32 = 4;
/// The logarithm of the bytes of a chunk.
const CHUNK_LOG2: u32 = CHUNK_BYTES.ilog2();

/// A tile of an operand as a block copies it to shared memory.
pub trait CopyShape: 'static {
    /// Rows of the tile.
    const ROWS: u32;
    /// Bytes of a row: 64 or 128.
    const ROW_BYTES: u32;
    /// Threads that share the copy.
    const THREADS: u32;

    /// Chunks of a row.
    const CHUNKS_PER_ROW: u32 = Self::ROW_BYTES / CHUNK_BYTES;
    /// Rows that the block copies at a time.
    const ROWS_PER_PASS: u32 = Self::THREADS / Self::CHUNKS_PER_ROW;
    /// How many times the block copies so many rows.
    const PASSES: u32 = {
        assert!(Self::THREADS.is_multiple_of(Self::CHUNKS_PER_ROW), "every pass copies whole rows");
        assert!(Self::ROWS.is_multiple_of(Self::ROWS_PER_PASS), "the passes cover the tile exactly");
        assert!(
            (Self::ROWS_PER_PASS * Self::ROW_BYTES).is_multiple_of(1024),
            "the swizzle repeats with every pass"
        );
        Self::ROWS / Self::ROWS_PER_PASS
    };
}

/// One thread's share of copying the tiles of an operand to shared memory: the same word of every pass's rows.
#[derive(Clone, Copy)]
pub struct TileLoader<T, A, S> {
    /// This thread's first word of the first tile along K.
    from: u64,
    /// Bytes between the rows of two passes.
    pass_stride: u64,
    /// Offset of the first word in the shared tile.
    to: u32,
    /// Rows of the operand from this thread's first row on; 0 if that row is outside.
    rows_left: u32,
    /// Bytes of a row.
    row_bytes: u32,
    /// Bytes of a row from this thread's word of the first tile on; negative if the word is outside.
    bytes_left: i32,
    /// The logarithm of a word's bytes.
    word_log2: u32,
    kind: PhantomData<(T, A, S)>,
}

impl<T: Stored, A: Access, S: CopyShape> TileLoader<T, A, S> {
    /// The loader of the tiles of `operand` that start at row `first_row`, which is within it.
    #[inline(always)]
    #[must_use]
    pub fn new(operand: Operand<T>, first_row: u32) -> Self {
        let word_log2 = A::word_log2(&operand);
        let (row, byte) = Self::place(thread::thread_idx_x(), word_log2);
        let row_bytes = operand.stride * T::BYTES as u64;
        let rows = operand.rows - first_row;
        let last = rows - 1;
        Self {
            from: operand.base.address() + (first_row + row.min(last)) as u64 * row_bytes + byte as u64,
            pass_stride: Self::rows_of_pass(word_log2) as u64 * row_bytes,
            to: Swizzle::for_row(S::ROW_BYTES).apply(row * S::ROW_BYTES + byte),
            rows_left: rows.saturating_sub(row),
            row_bytes: operand.k * T::BYTES,
            bytes_left: (operand.k * T::BYTES) as i32 - byte as i32,
            word_log2,
            kind: PhantomData,
        }
    }

    /// The place in the tile of a thread's first word: its row, and its byte in the row.
    #[inline(always)]
    const fn place(thread: u32, word_log2: u32) -> (u32, u32) {
        (thread >> (S::ROW_BYTES.ilog2() - word_log2), (thread << word_log2) % S::ROW_BYTES)
    }

    /// Rows that the block copies at a time.
    #[inline(always)]
    const fn rows_of_pass(word_log2: u32) -> u32 {
        S::THREADS >> (S::ROW_BYTES.ilog2() - word_log2)
    }

    /// Copies tile `step` along K to the shared tile at `to`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; `to` is a multiple of 1024 with room for the tile, which no thread touches until
    /// the copies have completed; the operand is valid for reads and aligned as `A` asks; `(`step` + 1) · `ROW_BYTES` < 2³².
    #[inline(always)]
    pub unsafe fn load(&self, to: SharedAddress, step: u32) {
        let left = self.bytes_left - (step * S::ROW_BYTES) as i32;
        let bytes = if left <= 0 { 0 } else { (left as u32).min(1 << self.word_log2) };
        let from = self.from + (step * S::ROW_BYTES) as u64;
        // SAFETY: the caller's promise.
        unsafe {
            if A::IS_ALIGNED {
                self.load_chunks(to, from, bytes);
            } else {
                let is_whole = (step + 1) * S::ROW_BYTES <= self.row_bytes;
                self.load_words(to, from, bytes, is_whole);
            }
        }
    }

    /// Copies chunks, of each `bytes` bytes, the first of which comes from `from`.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_chunks(&self, to: SharedAddress, mut from: u64, bytes: u32) {
        for pass in 0..S::PASSES {
            let bytes = if pass * S::ROWS_PER_PASS < self.rows_left { bytes } else { 0 };
            // The swizzle repeats with every pass.
            let to = to.offset(self.to + pass * (S::ROWS_PER_PASS * S::ROW_BYTES));
            // SAFETY: `bytes` counts only those within the operand; the rest is the caller's promise.
            unsafe { ptx::cp_async_cg_16(to.get(), from, bytes) }
            from += self.pass_stride;
        }
    }

    /// Copies words, of each `bytes` bytes, the first of which comes from `from`. `is_whole` says that the operand has all of the tile's
    /// columns; it is the same for all threads.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_words(&self, to: SharedAddress, from: u64, bytes: u32, is_whole: bool) {
        // SAFETY: the caller's promise; words are as long as the operand's alignment allows.
        unsafe {
            match self.word_log2 {
                CHUNK_LOG2 => self.load_chunks(to, from, bytes),
                3 if is_whole => self.load_whole_words::<3>(to, from),
                _ if is_whole => self.load_whole_words::<2>(to, from),
                _ => self.load_last_words(to, from, bytes),
            }
        }
    }

    /// Copies words of 2<sup>`LOG2`</sup> bytes, all of them within the operand's columns. For rows beyond it, a thread copies its last row within once more:
    /// nobody stores what comes of them. Zeros would take more instructions than the words.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load), for such a tile of an operand that has rows; `LOG2` is the logarithm of a word's bytes.
    #[inline(always)]
    unsafe fn load_whole_words<const LOG2: u32>(&self, to: SharedAddress, mut from: u64) {
        let rows_of_pass = const { Self::rows_of_pass(LOG2) };
        // How many words a thread copies without looking whether there are more.
        let at_once = const {
            assert!(
                ((2 * S::THREADS) << LOG2).is_multiple_of(1024),
                "the swizzle repeats with every second pass"
            );
            let passes = S::ROWS / Self::rows_of_pass(LOG2);
            let at_once = if passes < WORDS_AT_ONCE { passes } else { WORDS_AT_ONCE };
            assert!(at_once > 0 && passes.is_multiple_of(at_once), "the passes cover the tile exactly");
            at_once
        };
        let pass_bytes = rows_of_pass * S::ROW_BYTES;
        // Opaque: worked out here, it takes no register while the products run.
        let (row, byte) = Self::place(ptx::opaque(thread::thread_idx_x()), LOG2);
        let at =
            |pass| Swizzle::for_row(S::ROW_BYTES).apply((row + pass * rows_of_pass) * S::ROW_BYTES + byte);
        let (even, odd) = (to.get() + at(0), to.get() + at(1) - pass_bytes);
        let (mut first, mut begin) = (0, 0);
        // Not unrolled: the copies' code is larger than the loop's overhead.
        let rows = ptx::opaque(S::ROWS);
        while first < rows {
            ptx::keep_loop();
            for pass in 0..at_once {
                let to = if pass % 2 == 0 { even } else { odd } + begin + pass * pass_bytes;
                // SAFETY: a word is aligned in both places, and lies within the operand; the rest is the caller's promise.
                unsafe {
                    match LOG2 {
                        3 => ptx::cp_async_ca_whole_8(to, from),
                        _ => ptx::cp_async_ca_whole_4(to, from),
                    }
                }
                let next = first + (pass + 1) * rows_of_pass;
                from += if next < self.rows_left { self.pass_stride } else { 0 };
            }
            first += at_once * rows_of_pass;
            begin += at_once * pass_bytes;
        }
    }

    /// Copies words, of each `bytes` bytes, the first of which comes from `from`; what is outside the operand becomes zeros.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_last_words(&self, to: SharedAddress, mut from: u64, bytes: u32) {
        let (first, byte) = Self::place(ptx::opaque(thread::thread_idx_x()), self.word_log2);
        let rows_of_pass = Self::rows_of_pass(self.word_log2);
        let mut row = 0;
        while first + row < S::ROWS {
            let bytes = if row < self.rows_left { bytes } else { 0 };
            let at = Swizzle::for_row(S::ROW_BYTES).apply((first + row) * S::ROW_BYTES + byte);
            let to = to.offset(at).get();
            // SAFETY: `bytes` counts only those within the operand; a word is aligned in both places; the rest is the
            // caller's promise.
            unsafe {
                match self.word_log2 {
                    3 => ptx::cp_async_ca_8(to, from, bytes),
                    _ => ptx::cp_async_ca_4(to, from, bytes),
                }
            }
            from += self.pass_stride;
            row += rows_of_pass;
        }
    }
}
