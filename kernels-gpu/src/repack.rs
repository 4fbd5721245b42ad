//! Repacking: a batch of matrices with any strides is copied into rows that are contiguous along K and start at multiples of
//! 16 bytes, which is how the products' kernels read their operands.
//!
//! A copy moves bits: the kernels know the size of an element and not its type. What follows a row, up to the next multiple of
//! 16 bytes, becomes zero.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout::CHUNK_BYTES;
use warpsmith_dsl::shared::SharedAddress;
use warpsmith_dsl::{KernelParam, kernel, ptx, thread};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Chunks of 16 bytes that a thread of [`repack_rows`](fn@repack_rows) copies, in rows of as many passes over the block's rows.
pub const PASSES: u32 = 4;
/// Bytes of a tile of [`repack_transpose`](fn@repack_transpose) along K, and along the rows.
pub const TILE_BYTES: u32 = 128;
/// Chunks of 16 bytes of that.
const TILE_CHUNKS: u32 = TILE_BYTES / CHUNK_BYTES;

/// The matrices of a launch, sizes in elements. Strides of the source are in elements, those of the copy in bytes.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct RepackParams {
    /// From one row of the source to the next.
    pub row_stride: u64,
    /// From one column of the source to the next.
    pub column_stride: u64,
    /// From one matrix of the source to the next.
    pub batch_stride: u64,
    /// From one row of the copy to the next: a multiple of 16.
    pub pitch: u64,
    /// From one matrix of the copy to the next: a multiple of 16.
    pub copy_batch_stride: u64,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns of a matrix: the extent along K. A row has less than 2³¹ bytes.
    pub columns: u32,
    /// Matrices.
    pub batch: u32,
    /// The base-2 logarithm of the chunks that a row of threads of [`repack_rows`](fn@repack_rows) copies at a time: at most 8, so 256 of them.
    pub lanes_log2: u32,
    /// For [`repack_transpose`](fn@repack_transpose), 1 if the source can be read in chunks of 16 bytes along its columns: the row stride is 1, the
    /// address and the other strides are multiples of 16 bytes.
    pub chunked: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

impl RepackParams {
    /// The matrix of this block, if there is one: grids count them along y and z.
    #[inline(always)]
    fn matrix(&self) -> Option<u64> {
        let index = thread::block_idx_y() + thread::block_idx_z() * thread::grid_dim_y();
        if index < self.batch { Some(index as u64) } else { None }
    }

    /// Blocks along x for the rows of a matrix, of words of so many bytes.
    #[inline(always)]
    fn row_blocks(&self, word: u32) -> u32 {
        let chunks = (self.columns * word).div_ceil(CHUNK_BYTES);
        // At least 1, as below: a division by what might be zero could trap.
        let block_rows = (PASSES * (THREADS >> self.lanes_log2)).max(1);
        self.rows.div_ceil(block_rows) * chunks.div_ceil(1 << self.lanes_log2)
    }
}

/// How many bytes are read at a time: a size of elements, or of what several of them are aligned to.
pub trait Word: 'static {
    /// Its bytes.
    const BYTES: u32;

    /// The 16 bytes that start with a word at `from`, of which words `stride` bytes apart are read; words past the first
    /// `count` are zeros.
    ///
    /// # Safety
    ///
    /// Of the 16 / [`BYTES`](Self::BYTES) words from `from` on, the first `count` are valid for reads, aligned to their size, and
    /// nothing writes them while the kernel runs.
    unsafe fn gather(from: u64, stride: u64, count: u32) -> [u32; 4];
}

/// A word of one byte.
pub enum Word1 {}
/// A word of two bytes.
pub enum Word2 {}
/// A word of four bytes.
pub enum Word4 {}
/// A word of eight bytes.
pub enum Word8 {}

impl Word for Word1 {
    const BYTES: u32 = 1;

    #[inline(always)]
    unsafe fn gather(from: u64, stride: u64, count: u32) -> [u32; 4] {
        let byte = |i: u32| {
            // SAFETY: the caller vouches for the first `count` words.
            unsafe { ptx::ld_global_nc_b8_if(from + i as u64 * stride, i < count) as u32 }
        };
        let word = |i: u32| byte(i) | (byte(i + 1) << 8) | (byte(i + 2) << 16) | (byte(i + 3) << 24);
        [word(0), word(4), word(8), word(12)]
    }
}

impl Word for Word2 {
    const BYTES: u32 = 2;

    #[inline(always)]
    unsafe fn gather(from: u64, stride: u64, count: u32) -> [u32; 4] {
        let half = |i: u32| {
            // SAFETY: the caller vouches for the first `count` words.
            unsafe { ptx::ld_global_nc_b16_if(from + i as u64 * stride, i < count) as u32 }
        };
        let word = |i: u32| half(i) | (half(i + 1) << 16);
        [word(0), word(2), word(4), word(6)]
    }
}

impl Word for Word4 {
    const BYTES: u32 = 4;

    #[inline(always)]
    unsafe fn gather(from: u64, stride: u64, count: u32) -> [u32; 4] {
        let word = |i: u32| {
            // SAFETY: the caller vouches for the first `count` words.
            unsafe { ptx::ld_global_nc_f32_if(from + i as u64 * stride, i < count).to_bits() }
        };
        [word(0), word(1), word(2), word(3)]
    }
}

impl Word for Word8 {
    const BYTES: u32 = 8;

    #[inline(always)]
    unsafe fn gather(from: u64, stride: u64, count: u32) -> [u32; 4] {
        let pair = |i: u32| {
            // SAFETY: the caller vouches for the first `count` words.
            unsafe { ptx::ld_global_nc_v2_f32_if(from + i as u64 * stride, i < count).map(f32::to_bits) }
        };
        let ([a, b], [c, d]) = (pair(0), pair(1));
        [a, b, c, d]
    }
}

/// Copies matrices whose columns are contiguous: a thread copies the chunks of one column of chunks in some rows.
///
/// The elements are counted in words of `W`, which divides the address, all strides and the length of a row. The grid has,
/// along x, a block for each 4 · 256 / 2^`lanes_log2` rows of each 2^`lanes_log2` chunks, chunks first; along y and z together a
/// block for each matrix.
///
/// # Safety
///
/// The pointers are valid for what `p` describes, `copy` is a multiple of 16 and overlaps nothing else.
#[kernel(
    family = repack,
    block = [THREADS, 1, 1],
    instances = [
        repack_rows_1 = <Word1>,
        repack_rows_2 = <Word2>,
        repack_rows_4 = <Word4>,
        repack_rows_8 = <Word8>,
    ],
)]
pub unsafe fn repack_rows<W: Word>(source: Global<u8>, copy: GlobalMut<u8>, p: RepackParams) {
    let Some(matrix) = p.matrix() else { return };
    // SAFETY: the caller's promise.
    unsafe { copy_rows::<W>(source, copy, &p, matrix, thread::block_idx_x()) }
}

/// Copies two matrices whose columns are contiguous as [`repack_rows`](fn@repack_rows) does one: first come the first one's blocks.
///
/// A grid along x; there is one matrix each.
///
/// # Safety
///
/// As [`repack_rows`](fn@repack_rows), for both.
#[kernel(
    family = repack,
    block = [THREADS, 1, 1],
    instances = [
        repack_pair_2 = <Word2>,
        repack_pair_4 = <Word4>,
        repack_pair_8 = <Word8>,
    ],
)]
pub unsafe fn repack_pair<W: Word>(
    first: Global<u8>,
    first_copy: GlobalMut<u8>,
    second: Global<u8>,
    second_copy: GlobalMut<u8>,
    first_params: RepackParams,
    second_params: RepackParams,
) {
    let (block, of_first) = (thread::block_idx_x(), first_params.row_blocks(W::BYTES));
    // SAFETY: the caller's promise.
    unsafe {
        if block < of_first {
            copy_rows::<W>(first, first_copy, &first_params, 0, block);
        } else {
            copy_rows::<W>(second, second_copy, &second_params, 0, block - of_first);
        }
    }
}

/// What block `block` of a matrix copies in [`repack_rows`](fn@repack_rows).
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn copy_rows<W: Word>(
    source: Global<u8>,
    copy: GlobalMut<u8>,
    p: &RepackParams,
    matrix: u64,
    block: u32,
) {
    let row_bytes = p.columns * W::BYTES;
    let lanes = 1 << p.lanes_log2;
    let rows_per_pass = THREADS >> p.lanes_log2;
    let across = row_bytes.div_ceil(CHUNK_BYTES).div_ceil(lanes).max(1);
    let (down, block_chunk) = (block / across, block % across);

    let thread = thread::thread_idx_x();
    let offset = (block_chunk * lanes + (thread & (lanes - 1))) * CHUNK_BYTES;
    let first_row = down * (PASSES * rows_per_pass) + (thread >> p.lanes_log2);
    if offset >= row_bytes {
        return;
    }
    let words = (row_bytes - offset) / W::BYTES;
    let from = source.address() + matrix * p.batch_stride * W::BYTES as u64 + offset as u64;
    let to = copy.address() + matrix * p.copy_batch_stride + offset as u64;
    let mut chunks = [[0; 4]; PASSES as usize];
    for (pass, chunk) in chunks.iter_mut().enumerate() {
        let row = first_row + pass as u32 * rows_per_pass;
        let present = if row < p.rows { words } else { 0 };
        let at = from + row as u64 * p.row_stride * W::BYTES as u64;
        // SAFETY: so many words of the row are left, and none of a row that is not there.
        *chunk = unsafe { W::gather(at, W::BYTES as u64, present) };
    }
    for (pass, &chunk) in chunks.iter().enumerate() {
        let row = first_row + pass as u32 * rows_per_pass;
        if row < p.rows {
            // SAFETY: this thread alone writes the chunk, which lies within the row's pitch.
            unsafe { ptx::st_global_v4_b32(to + row as u64 * p.pitch, chunk) }
        }
    }
}

/// An element size that tiles are transposed in.
pub trait Transposed: Word {
    /// An element of shared memory, in the low bits.
    ///
    /// # Safety
    ///
    /// The address is aligned to the element, which was written before.
    unsafe fn load_shared(from: SharedAddress) -> u32;

    /// Elements of a chunk.
    const PER_CHUNK: u32 = CHUNK_BYTES / Self::BYTES;
    /// Rows of a tile, and its columns.
    const TILE: u32 = TILE_BYTES / Self::BYTES;
    /// Chunks that a thread reads of a tile, and writes.
    const TILE_PASSES: u32 = Self::TILE * TILE_CHUNKS / THREADS;
    /// Shared memory of a tile.
    const SHARED_BYTES: u32 = Self::TILE * TILE_BYTES;
}

impl Transposed for Word1 {
    #[inline(always)]
    unsafe fn load_shared(from: SharedAddress) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_shared_b8(from.get()) as u32 }
    }
}

impl Transposed for Word2 {
    #[inline(always)]
    unsafe fn load_shared(from: SharedAddress) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_shared_b16(from.get()) as u32 }
    }
}

impl Transposed for Word4 {
    #[inline(always)]
    unsafe fn load_shared(from: SharedAddress) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_shared_f32(from.get()).to_bits() }
    }
}

/// Where chunk `chunk` of column `column` of a tile is in shared memory.
///
/// A tile is stored as it is read: 128 bytes of each column, which is 128 bytes of rows. A thread that writes a chunk of a row
/// reads its elements from as many columns; the eight threads that write 128 bytes of a row read in groups of columns that are a
/// chunk's elements apart. The exclusive or with the group's number puts them in different banks.
#[inline(always)]
const fn tile_chunk(per_chunk: u32, column: u32, chunk: u32) -> u32 {
    column * TILE_BYTES + (chunk ^ ((column / per_chunk) % TILE_CHUNKS)) * CHUNK_BYTES
}

/// Copies matrices whose rows are contiguous, or that have any strides: each block transposes a tile in shared memory.
///
/// The grid has a block for each tile along x, those along K first; along y and z together a block for each matrix.
///
/// # Safety
///
/// The pointers are valid for what `p` describes, `copy` is a multiple of 16 and overlaps nothing else.
#[kernel(
    family = repack,
    block = [THREADS, 1, 1],
    shared = E::SHARED_BYTES,
    instances = [
        repack_transpose_1 = <Word1>,
        repack_transpose_2 = <Word2>,
        repack_transpose_4 = <Word4>,
    ],
)]
pub unsafe fn repack_transpose<E: Transposed>(source: Global<u8>, copy: GlobalMut<u8>, p: RepackParams) {
    let Some(matrix) = p.matrix() else { return };
    let tiles_across = p.columns.div_ceil(E::TILE).max(1);
    let (down, across) = (thread::block_idx_x() / tiles_across, thread::block_idx_x() % tiles_across);
    let (first_row, first_column) = (down * E::TILE, across * E::TILE);
    let tile = SharedAddress::dynamic();
    let bytes = E::BYTES as u64;
    let source = source.address() + matrix * p.batch_stride * bytes;

    for pass in 0..E::TILE_PASSES {
        let index = thread::thread_idx_x() + pass * THREADS;
        let (column, chunk) = (index / TILE_CHUNKS, index % TILE_CHUNKS);
        let row = first_row + chunk * E::PER_CHUNK;
        let rows = if first_column + column < p.columns { p.rows.saturating_sub(row) } else { 0 };
        let at =
            source + ((first_column + column) as u64 * p.column_stride + row as u64 * p.row_stride) * bytes;
        let elements = if p.chunked != 0 && rows >= E::PER_CHUNK {
            // SAFETY: so many rows are left in the column, and the caller vouches for the alignment.
            unsafe { ptx::ld_global_nc_v4_f32(at).map(f32::to_bits) }
        } else {
            // SAFETY: so many rows are left in the column.
            unsafe { E::gather(at, p.row_stride * bytes, rows) }
        };
        // SAFETY: each chunk of the tile is one thread's.
        unsafe { ptx::st_shared_v4_b32(tile.offset(tile_chunk(E::PER_CHUNK, column, chunk)).get(), elements) }
    }
    // SAFETY: all threads of the block are here.
    unsafe { thread::sync_threads() };

    let row_bytes = p.columns * E::BYTES;
    for pass in 0..E::TILE_PASSES {
        let index = thread::thread_idx_x() + pass * THREADS;
        let (row, chunk) = (index / TILE_CHUNKS, index % TILE_CHUNKS);
        let offset = first_column * E::BYTES + chunk * CHUNK_BYTES;
        if first_row + row >= p.rows || offset >= row_bytes {
            continue;
        }
        let first = tile_chunk(E::PER_CHUNK, chunk * E::PER_CHUNK, row / E::PER_CHUNK)
            + row % E::PER_CHUNK * E::BYTES;
        let mut words = [0; 4];
        for i in 0..E::PER_CHUNK {
            // SAFETY: within the tile, which all threads have written.
            let element = unsafe { E::load_shared(tile.offset(first + i * TILE_BYTES)) };
            words[(i * E::BYTES / 4) as usize] |= element << (i * E::BYTES % 4 * 8);
        }
        let to = copy.address()
            + matrix * p.copy_batch_stride
            + (first_row + row) as u64 * p.pitch
            + offset as u64;
        // SAFETY: this thread alone writes the chunk, which lies within the row's pitch.
        unsafe { ptx::st_global_v4_b32(to, words) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashSet;

    use super::{CHUNK_BYTES, TILE_BYTES, TILE_CHUNKS, tile_chunk};

    #[test]
    fn every_chunk_of_a_tile_has_a_place_of_its_own() {
        for per_chunk in [4, 8, 16] {
            let tile = TILE_BYTES / CHUNK_BYTES * per_chunk;
            let places: HashSet<u32> = (0..tile)
                .flat_map(|column| (0..TILE_CHUNKS).map(move |chunk| tile_chunk(per_chunk, column, chunk)))
                .collect();
            assert_eq!(places.len() as u32, tile * TILE_CHUNKS);
            assert!(places.iter().all(|&at| at < tile * TILE_BYTES && at.is_multiple_of(CHUNK_BYTES)));
        }
    }

    /// A warp reads one element for each of its 32 chunks, 8 of each of 4 rows, at a time.
    #[test]
    fn a_warp_reads_its_elements_from_different_banks() {
        for per_chunk in [4, 8, 16] {
            let bytes = CHUNK_BYTES / per_chunk;
            for first_row in (0..8 * per_chunk).step_by(4) {
                for i in 0..per_chunk {
                    let words: HashSet<u32> = (0..32)
                        .map(|lane| {
                            let (row, chunk) = (first_row + lane / TILE_CHUNKS, lane % TILE_CHUNKS);
                            let column = chunk * per_chunk + i;
                            (tile_chunk(per_chunk, column, row / per_chunk) + row % per_chunk * bytes) / 4
                        })
                        .collect();
                    let banks: HashSet<u32> = words.iter().map(|word| word % 32).collect();
                    assert_eq!(banks.len(), words.len(), "lanes that share a word are served together");
                }
            }
        }
    }
}
