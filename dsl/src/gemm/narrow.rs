//! Narrow products: many rows of A, few columns of A and few rows of B, such that the time goes into reading A and writing the output.
//!
//! Rows of A follow each other without gaps, and so do those of the output. So whatever the rows' length, [`ROWS`] rows are one piece of
//! memory that begins at a multiple of 16 bytes. The copy engine moves it at once. B is in shared memory all the time, in the order in
//! which lanes have fragments of it. From there on the warps of a block know nothing of each other. Each has a ring of its own for its
//! tiles of A, and holds one tile in registers while it multiplies. It puts the results together where the copy engine stores them from.

use crate::barrier::Barrier;
use crate::epilogue::{ColumnState, Epilogue};
use crate::float::HalfElement;
use crate::gemm::MmaElement;
use crate::launch::{Global, GlobalMut};
use crate::layout::{CHUNK_BYTES, Coord, FRAGMENT_COLUMNS, FRAGMENT_ROWS};
use crate::pipeline::end_loads;
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::warp;

/// Rows of a tile, which a warp computes.
pub const ROWS: u32 = FRAGMENTS as u32 * FRAGMENT_ROWS;
/// Threads of a block.
pub const THREADS: u32 = WARPS * warp::SIZE;
/// The largest number of columns of A, which a warp holds in registers.
pub const MAX_K: u32 = STEPS as u32 * STEP;
/// The largest number of rows of B.
pub const MAX_COLUMNS: u32 = 256;
/// Dynamic shared memory of a block, in bytes: what the largest K needs with as many rows of B, which is nearly all that there is.
pub const SHARED_BYTES: u32 = shared_bytes(MAX_K, MAX_K);

/// Warps of a block, which each have tiles of their own.
pub const WARPS: u32 = 16;
/// Fragments of a tile of A below each other.
const FRAGMENTS: usize = 1;
/// k-steps of a tile of A.
const STEPS: usize = 8;
/// Columns of A of a k-step.
const STEP: u32 = 16;
/// Tiles of a warp's ring.
const STAGES: u32 = 2;
/// Fragments of B whose products a warp has in registers.
const AT_A_TIME: usize = 4;
/// Columns of the output of so many.
const GROUP: u32 = AT_A_TIME as u32 * FRAGMENT_COLUMNS;
/// Groups of such of one k-step each that a warp copies at a time.
const AT_ONCE: usize = 2;
/// Bytes of a lane's part of two fragments of B.
const PAIR_BYTES: u32 = 16;
/// Bytes of a k-step of a group of fragments of B.
const GROUP_BYTES: u32 = AT_A_TIME as u32 / 2 * PAIR_BYTES * warp::SIZE;
/// Bytes of an element of a matrix.
const BYTES: u32 = 2;
/// Where B begins, after the barriers.
const WEIGHTS_AT: u32 = (WARPS * STAGES * Barrier::BYTES).next_multiple_of(CHUNK_BYTES);

/// Bytes of B in shared memory.
const fn weight_bytes(k: u32, columns: u32) -> u32 {
    columns.div_ceil(GROUP) * k.div_ceil(STEP) * GROUP_BYTES
}

/// Bytes of a warp's ring and of its part of the output.
const fn warp_bytes(k: u32, columns: u32) -> u32 {
    ROWS * (STAGES * k + columns) * BYTES
}

/// Shared memory that a product needs.
const fn shared_bytes(k: u32, columns: u32) -> u32 {
    WEIGHTS_AT + weight_bytes(k, columns) + WARPS * warp_bytes(k, columns)
}

/// Whether a product of so many columns of A and rows of B is one that [`run`] computes.
#[must_use]
pub const fn fits(k: u32, columns: u32) -> bool {
    let small = 0 < k && k <= MAX_K && columns <= MAX_COLUMNS;
    small && shared_bytes(k, columns) <= SHARED_BYTES
}

/// What is computed: `A [M, K]`, `B [N, K]` and the output `[M, N]`.
#[derive(Clone, Copy)]
pub struct NarrowProblem<T> {
    /// A, without gaps.
    pub a: Global<T>,
    /// B.
    pub b: Global<T>,
    /// Elements from one row of B to the next, and from one column to the next.
    pub strides_b: [u64; 2],
    /// The output, without gaps.
    pub output: GlobalMut<T>,
    /// M.
    pub m: u32,
    /// N.
    pub n: u32,
    /// K.
    pub k: u32,
}

/// A warp's tile of A in registers: a lane's words of each k-step's fragments.
type Tile = [[[u32; 4]; FRAGMENTS]; STEPS];

/// A warp's place in shared memory.
#[derive(Clone, Copy)]
struct Places {
    barriers: SharedAddress,
    ring: SharedAddress,
    results: SharedAddress,
}

impl<T: MmaElement + HalfElement> NarrowProblem<T> {
    /// k-steps of a sum.
    #[inline(always)]
    fn steps(&self) -> u32 {
        self.k.div_ceil(STEP)
    }

    #[inline(always)]
    fn places(&self) -> Places {
        let (base, warp) = (SharedAddress::dynamic(), warp::warp_id());
        let ring = base.offset(WEIGHTS_AT + weight_bytes(self.k, self.n) + warp * warp_bytes(self.k, self.n));
        Places {
            barriers: base.offset(warp * (STAGES * Barrier::BYTES)),
            ring,
            results: ring.offset(STAGES * self.stage_bytes()),
        }
    }

    /// Bytes of a tile of A.
    #[inline(always)]
    fn stage_bytes(&self) -> u32 {
        ROWS * BYTES * self.k
    }

    /// Rows of a tile that there is.
    #[inline(always)]
    fn rows(&self, tile: u32) -> u32 {
        (self.m - tile * ROWS).min(ROWS)
    }

    /// Where a tile of A begins.
    #[inline(always)]
    fn tile_of_a(&self, tile: u32) -> Global<T> {
        self.a.offset((tile * ROWS) as u64 * self.k as u64)
    }

    /// Has tile `tile` of A, if there is one, copied to a stage of the ring.
    ///
    /// # Safety
    ///
    /// One lane of the warp calls it, and no lane reads the stage any more.
    #[inline(always)]
    unsafe fn fill(&self, places: Places, tile: u32, stage: u32) {
        if tile >= self.m.div_ceil(ROWS) {
            return;
        }
        // What remains of the last tile is less than a chunk, and the lanes copy it.
        let bytes = whole_chunks(self.rows(tile) * self.k);
        let barrier = places.barrier(stage);
        // SAFETY: the barrier is made; so many bytes lie within A and within the stage.
        unsafe {
            barrier.arrive_and_expect(bytes);
            if bytes > 0 {
                let to = places.ring.offset(stage * self.stage_bytes()).get();
                ptx::cp_async_bulk_load(to, self.tile_of_a(tile).address(), bytes, barrier.address());
            }
        }
    }

    /// Copies what [`fill`](Self::fill) leaves of the last tile, and zeros up to the next multiple of 16 bytes.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the tile has been copied to `stage`, and A is valid for reads.
    #[inline(always)]
    unsafe fn fill_rest(&self, tile: u32, stage: u32) {
        let (lane, elements) = (warp::lane_id(), self.rows(tile) * self.k);
        let bytes = whole_chunks(elements);
        let index = bytes / BYTES + lane;
        // SAFETY: the chunk lies within the stage: rows that are missing, or the stage ends with it.
        unsafe {
            if bytes < elements * BYTES && lane < CHUNK_BYTES / BYTES {
                let from = self.tile_of_a(tile).offset(index as u64).address();
                let bits = ptx::ld_global_nc_b16_if(from, index < elements);
                ptx::st_shared_b16(stage + index * BYTES, bits);
            }
            warp::sync_warp();
        }
    }

    /// Copies B to shared memory, with zeros in rows and columns that it lacks.
    ///
    /// A group of fragments has a k-step after another; of each, every lane has its words of a pair of fragments, then those of the other.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and synchronise before B is used. B is valid for reads.
    #[inline(always)]
    unsafe fn load_b(&self) {
        let [row_stride, column_stride] = self.strides_b;
        let starts = self.b.address() | (row_stride * BYTES as u64);
        // SAFETY: the caller's promise. Words lie within a row's elements, of which there is an even number.
        unsafe {
            if column_stride == 1 && starts.is_multiple_of(4) && self.k.is_multiple_of(2) {
                self.load_b_by(|row, column| {
                    let from = self.b.offset(row as u64 * row_stride + column as u64);
                    ptx::ld_global_nc_f32_if(from.address(), row < self.n && column < self.k).to_bits()
                });
            } else {
                self.load_b_by(|row, column| {
                    let element = |column: u32| {
                        let from = self.b.offset(row as u64 * row_stride + column as u64 * column_stride);
                        let is_there = row < self.n && column < self.k;
                        ptx::ld_global_nc_b16_if(from.address(), is_there) as u32
                    };
                    element(column) | (element(column + 1) << 16)
                });
            }
        }
    }

    /// [`load_b`](Self::load_b), with a function that gives two neighbouring elements of a row, zeros where there are none.
    ///
    /// # Safety
    ///
    /// As [`load_b`](Self::load_b).
    #[inline(always)]
    unsafe fn load_b_by(&self, pair: impl Fn(u32, u32) -> u32) {
        let (lane, steps) = (warp::lane_id(), self.steps());
        let count = self.n.div_ceil(GROUP) * steps;
        // A division by what might be zero could trap.
        let steps = steps.max(1);
        let at = SharedAddress::dynamic().offset(WEIGHTS_AT + lane * PAIR_BYTES);
        let mut index = warp::warp_id();
        while index < count {
            // Several at once, all of whose loads are on their way before the first is stored.
            let words: [[[u32; 4]; AT_A_TIME / 2]; AT_ONCE] = core::array::from_fn(|i| {
                let index = index + i as u32 * WARPS;
                let row = index / steps * GROUP + lane / 4;
                let column = index % steps * STEP + lane % 4 * 2;
                core::array::from_fn(|i| {
                    core::array::from_fn(|word| {
                        let fragment = (2 * i + word / 2) as u32;
                        pair(row + fragment * FRAGMENT_COLUMNS, column + word as u32 % 2 * (STEP / 2))
                    })
                })
            });
            for (i, pairs) in words.into_iter().enumerate() {
                let index = index + i as u32 * WARPS;
                if index < count {
                    for (i, words) in pairs.into_iter().enumerate() {
                        let at = at.offset(index * GROUP_BYTES + i as u32 * (PAIR_BYTES * warp::SIZE));
                        // SAFETY: this lane's place.
                        unsafe { ptx::st_shared_v4_b32(at.get(), words) }
                    }
                }
            }
            index += AT_ONCE as u32 * WARPS;
        }
    }

    /// The lane's words of the tile at `stage`, zeros in columns that A lacks; rows that it lacks are the last one again. `ODD` is whether
    /// rows have an odd number of elements, so that every other one begins within a word.
    ///
    /// # Safety
    ///
    /// The tile has arrived.
    #[inline(always)]
    unsafe fn load_a<const ODD: bool>(&self, stage: u32, rows: u32) -> Tile {
        let lane = warp::lane_id();
        // SAFETY: all-zero bits are integers. (An array literal of this length would be filled by a loop with a variable index and so live
        // in local memory.)
        let (mut tile, mut starts): (Tile, [[u32; 2]; FRAGMENTS]) = unsafe { core::mem::zeroed() };
        for (i, start) in starts.as_flattened_mut().iter_mut().enumerate() {
            let row = lane / 4 + i as u32 * (FRAGMENT_ROWS / 2);
            *start = stage + row.min(rows - 1) * self.k * BYTES;
        }
        // Written out: a loop that the compiler leaves one would index registers.
        let [a0, a1, a2, a3, a4, a5, a6, a7] = &mut tile;
        // SAFETY: the caller's promise.
        unsafe {
            self.load_step::<ODD>(a0, &starts, 0);
            self.load_step::<ODD>(a1, &starts, 1);
            self.load_step::<ODD>(a2, &starts, 2);
            self.load_step::<ODD>(a3, &starts, 3);
            self.load_step::<ODD>(a4, &starts, 4);
            self.load_step::<ODD>(a5, &starts, 5);
            self.load_step::<ODD>(a6, &starts, 6);
            self.load_step::<ODD>(a7, &starts, 7);
        }
        tile
    }

    /// The part of [`load_a`](Self::load_a) for k-step `step`, if there is one, of the rows that begin at `starts`.
    ///
    /// # Safety
    ///
    /// As [`load_a`](Self::load_a).
    #[inline(always)]
    unsafe fn load_step<const ODD: bool>(
        &self,
        words: &mut [[u32; 4]; FRAGMENTS],
        starts: &[[u32; 2]; FRAGMENTS],
        step: u32,
    ) {
        if step >= self.steps() {
            return;
        }
        for half in 0..2 {
            let column = step * STEP + half as u32 * (STEP / 2) + warp::lane_id() % 4 * 2;
            // What follows the row is another, or not there: of a pair beyond it the row's first is read, and both are masked.
            let left = self.k.saturating_sub(column);
            let offset = if left > 0 { column * BYTES } else { 0 };
            let mask = if left > 1 { u32::MAX } else { left * 0xffff };
            for (words, starts) in words.iter_mut().zip(starts) {
                for (below, start) in starts.iter().enumerate() {
                    let at = start + offset;
                    // SAFETY: within the row, and aligned.
                    let word = unsafe {
                        if ODD {
                            let (at, apart) = (at & !3, at & 2);
                            let second = if left > 1 { at + 2 * apart } else { at };
                            let (low, high) = (ptx::ld_shared_b32(at), ptx::ld_shared_b32(second));
                            // Bytes 0 to 3 of the two words, or 2 to 5.
                            ptx::prmt(low, high, 0x3210 + apart * 0x1111)
                        } else {
                            ptx::ld_shared_b32(at)
                        }
                    };
                    words[2 * half + below] = word & mask;
                }
            }
        }
    }

    /// Rounds the lane's results of a group of columns, of which its first is `column`, and puts them in their places among the tile's.
    ///
    /// # Safety
    ///
    /// Nothing else touches these.
    #[inline(always)]
    unsafe fn put(&self, results: SharedAddress, column: u32, sums: &[[[f32; 4]; AT_A_TIME]; FRAGMENTS]) {
        let row_bytes = self.n * BYTES;
        let first = results.offset(warp::lane_id() / 4 * row_bytes + column * BYTES).get();
        let each = |put: &dyn Fn(u32, u32, u32)| {
            for (i, sums) in sums.iter().enumerate() {
                for (j, &[a, b, c, d]) in sums.iter().enumerate() {
                    let column = j as u32 * FRAGMENT_COLUMNS;
                    let upper = first + i as u32 * FRAGMENT_ROWS * row_bytes + column * BYTES;
                    put(upper, column, T::pack([a, b]));
                    put(upper + FRAGMENT_ROWS / 2 * row_bytes, column, T::pack([c, d]));
                }
            }
        };
        // SAFETY: within the row. Where rows have an even number of elements, pairs are words, of which all is there or nothing.
        unsafe {
            if self.n.is_multiple_of(2) {
                each(&|to, at, word| ptx::st_shared_b32_if(to, word, column + at < self.n));
            } else {
                each(&|to, at, word| {
                    ptx::st_shared_b16_if(to, word as u16, column + at < self.n);
                    ptx::st_shared_b16_if(to + BYTES, (word >> 16) as u16, column + at + 1 < self.n);
                });
            }
        }
    }

    /// The tile's product, as its results.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it. B has been copied; nothing else uses `results`; `epilogue` may be asked for every column.
    #[inline(always)]
    unsafe fn multiply<E: Epilogue>(&self, a: &Tile, results: SharedAddress, tile: u32, epilogue: &E) {
        let lane = warp::lane_id();
        let own = Coord { row: lane / 4, column: lane % 4 * 2 };
        let (mut group, mut first) = (WEIGHTS_AT + lane * PAIR_BYTES, 0);
        while first < self.n {
            // SAFETY: the caller's promise. (As in `load_a`.)
            unsafe {
                let state = epilogue.column(first + lane);
                let mut sums: [[[f32; 4]; AT_A_TIME]; FRAGMENTS] = core::mem::zeroed();
                // Written out: a loop that the compiler leaves one would index registers.
                let mut step = |index: u32, a: &[[u32; 4]; FRAGMENTS]| {
                    if index >= self.steps() {
                        return;
                    }
                    let b = fragments_b(group + index * GROUP_BYTES).map(T::prepare_b);
                    for (sums, &a) in sums.iter_mut().zip(a) {
                        let a = T::prepare_a(a);
                        for (sums, &b) in sums.iter_mut().zip(&b) {
                            T::multiply_add(sums, a, b);
                        }
                    }
                };
                let [a0, a1, a2, a3, a4, a5, a6, a7] = a;
                step(0, a0);
                step(1, a1);
                step(2, a2);
                step(3, a3);
                step(4, a4);
                step(5, a5);
                step(6, a6);
                step(7, a7);
                let mut states = [[E::Column::default(); 2]; AT_A_TIME];
                for (i, states) in states.iter_mut().enumerate() {
                    let column = i as u32 * FRAGMENT_COLUMNS + own.column;
                    *states = [state.of_lane(column), state.of_lane(column + 1)];
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let row = tile * ROWS + i as u32 * FRAGMENT_ROWS + own.row;
                    let at = Coord { row, column: first + own.column };
                    let rows = [epilogue.row(at.row), epilogue.row(at.row + FRAGMENT_ROWS / 2)];
                    epilogue.apply_fragments(at, rows, &states, sums);
                }
                self.put(results, first + own.column, &sums);
            }
            group += self.steps() * GROUP_BYTES;
            first += GROUP;
        }
    }

    /// Stores the results of a tile.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, after they have put them there. The output is valid for writes, and no other warp has the tile.
    #[inline(always)]
    unsafe fn store(&self, results: SharedAddress, tile: u32) {
        let (lane, elements) = (warp::lane_id(), self.rows(tile) * self.n);
        let to = self.output.offset((tile * ROWS) as u64 * self.n as u64);
        let bytes = whole_chunks(elements);
        ptx::fence_proxy_async_shared();
        // SAFETY: the caller's promise: so many bytes of the output are this tile's.
        unsafe {
            warp::sync_warp();
            if lane == 0 && bytes > 0 {
                ptx::cp_async_bulk_store(to.address(), results.get(), bytes);
                ptx::cp_async_bulk_commit_group();
            }
            // Of the last tile, less than a chunk remains: at most an element for each of seven lanes.
            let index = bytes / BYTES + lane;
            if index < elements {
                let bits = ptx::ld_shared_b16(results.offset(index * BYTES).get());
                ptx::st_global_b16(to.offset(index as u64).address(), bits);
            }
        }
    }
}

/// A lane's fragments of B of the k-step whose words it has from `at` of the block's shared memory on.
///
/// # Safety
///
/// B has been copied.
#[inline(always)]
unsafe fn fragments_b(at: u32) -> [[u32; 2]; AT_A_TIME] {
    let at = SharedAddress::dynamic().offset(at).get();
    // SAFETY: the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) =
        unsafe { (ptx::ld_shared_v4_b32(at), ptx::ld_shared_v4_b32(at + PAIR_BYTES * warp::SIZE)) };
    [[a, b], [c, d], [e, f], [g, h]]
}

impl Places {
    #[inline(always)]
    fn barrier(self, stage: u32) -> Barrier {
        Barrier::at(self.barriers.offset(stage * Barrier::BYTES))
    }
}

/// The bytes of so many elements, without those that are less than a chunk.
#[inline(always)]
const fn whole_chunks(elements: u32) -> u32 {
    elements * BYTES / CHUNK_BYTES * CHUNK_BYTES
}

/// Computes `epilogue(A Bᵀ)`. The warps of the grid take turns with the tiles.
///
/// # Safety
///
/// All threads of the grid call it, in blocks of [`THREADS`] threads with [`SHARED_BYTES`] bytes of dynamic shared memory, and the sizes
/// [`fits`]. A and the output begin at multiples of 16 bytes. A and B are valid for reads, and nothing writes them while the kernel runs;
/// the output is valid for writes, and nothing else touches it; `epilogue` may be asked for every column of it.
#[inline(always)]
pub unsafe fn run<T: MmaElement + HalfElement, E: Epilogue>(problem: &NarrowProblem<T>, epilogue: &E) {
    let p = *problem;
    let (places, is_first_lane) = (p.places(), warp::lane_id() == 0);
    let turn = thread::grid_dim_x() * WARPS;
    // Warps of different blocks first, so that few tiles are spread over the multiprocessors.
    let mut tile = thread::block_idx_x() + warp::warp_id() * thread::grid_dim_x();
    // SAFETY: the warp's own barriers and stages, of which nothing is read yet; all threads of the block are here.
    unsafe {
        if is_first_lane {
            for stage in 0..STAGES {
                places.barrier(stage).init(1);
            }
            ptx::fence_mbarrier_init();
            for stage in 0..STAGES {
                p.fill(places, tile + stage * turn, stage);
            }
        }
        p.load_b();
        thread::sync_threads();
    }
    let (mut stage, mut parity) = (0, 0);
    while tile < p.m.div_ceil(ROWS) {
        let (rows, at) = (p.rows(tile), places.ring.offset(stage * p.stage_bytes()).get());
        // SAFETY: the warp's own barriers, stages and results; each stage is filled once in each phase of its barrier. All lanes of the
        // warp are here.
        unsafe {
            places.barrier(stage).wait(parity);
            if rows < ROWS {
                p.fill_rest(tile, at);
            }
            let mut a =
                if p.k.is_multiple_of(2) { p.load_a::<false>(at, rows) } else { p.load_a::<true>(at, rows) };
            if is_first_lane {
                // The copy engine has read the last tile's results.
                ptx::cp_async_bulk_wait_group_read::<0>();
            }
            end_loads(&mut a);
            if is_first_lane {
                p.fill(places, tile + STAGES * turn, stage);
            }
            p.multiply(&a, places.results, tile, epilogue);
            p.store(places.results, tile);
        }
        tile += turn;
        stage += 1;
        if stage == STAGES {
            (stage, parity) = (0, parity ^ 1);
        }
    }
    if is_first_lane {
        // Shared memory is read until then.
        ptx::cp_async_bulk_wait_group_read::<0>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_bounded_by_registers_and_shared_memory() {
        assert!(fits(100, 100) && fits(128, 128) && fits(1, 256) && fits(64, 256));
        assert!(!fits(0, 8) && !fits(129, 8) && !fits(8, 257) && !fits(128, 256));
        const { assert!(SHARED_BYTES <= 227 << 10, "what a block of Hopper can have") };
    }

    /// The copy engine's addresses and lengths are multiples of 16 bytes: of all tiles but the last, whatever their rows' length.
    #[test]
    fn tiles_are_whole_chunks() {
        for columns in 1..=MAX_K {
            assert_eq!(whole_chunks(ROWS * columns), ROWS * columns * BYTES);
            assert!(warp_bytes(columns, 1).is_multiple_of(CHUNK_BYTES));
        }
    }
}
