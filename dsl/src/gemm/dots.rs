//! Dot products of f32: few rows of A, such that the time goes into reading B.
//!
//! There is no tile in shared memory and nothing for tensor cores. A team of warps takes [`ROWS`] rows of A and [`COLUMNS`] rows of B, its lanes
//! share their columns, and each of them multiplies what it loads. At the end the lanes' sums are added up, and then those of the team's warps.
//! Rows may begin at any number.

use crate::epilogue::Epilogue;
use crate::gemm::again::is_not_finite;
use crate::launch::{Global, GlobalMut};
use crate::layout::{CHUNK_BYTES, Coord};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::warp;

/// Rows of a team's outputs.
pub const ROWS: u32 = 8;
/// Columns of a team's outputs.
pub const COLUMNS: u32 = 2;
/// Threads of a block.
pub const THREADS: u32 = WARPS * warp::SIZE;
/// The most warps that a team may have: those of a block.
pub const WARPS: u32 = 8;
/// Blocks that a multiprocessor is to hold at least.
pub const RESIDENT: u32 = 2;
/// Columns of B that the warps of a team multiply at a time are so many bytes of a row for each warp.
pub const STEP_BYTES: u32 = CHUNK_BYTES * warp::SIZE;
/// Dynamic shared memory of a block: the sums of each warp, of two rounds.
pub const SHARED_BYTES: u32 = 2 * ROUND_BYTES;

/// Outputs of a team.
const SUMS: usize = (ROWS * COLUMNS) as usize;
/// A lane's share of them: each row's, one after the other.
type Sums = [[[f32; COLUMNS as usize]; GROUP]; GROUPS];
/// Steps whose rows of B a warp asks for at a time.
const AT_ONCE: usize = 4;
/// Rows of A whose words a lane has at a time.
const GROUP: usize = 2;
/// Groups of these.
const GROUPS: usize = ROWS as usize / GROUP;
/// Bytes of a line of the level-2 cache.
const LINE_BYTES: u32 = 128;
/// Bytes of a word.
const WORD: u32 = 4;
/// Words of a row in a step.
const STEP_WORDS: u32 = STEP_BYTES / WORD;
/// Words that a lane has of them.
const WORDS: usize = (CHUNK_BYTES / WORD) as usize;
/// Bytes of a warp's sums.
const WARP_BYTES: u32 = SUMS as u32 * WORD;
/// Bytes of the sums of a block's warps.
const ROUND_BYTES: u32 = WARPS * WARP_BYTES;

/// What is computed: `A [M, K]`, `B [N, K]` and the output `[M, N]`, of each matrix of a batch. Strides are in numbers; rows are
/// contiguous.
#[derive(Clone, Copy)]
pub struct DotsProblem {
    /// The matrices A.
    pub a: Global<f32>,
    /// The matrices B.
    pub b: Global<f32>,
    /// The outputs.
    pub output: GlobalMut<f32>,
    /// From one row of A, of B and of the output to the next.
    pub rows: [u64; 3],
    /// From one matrix A, B and output to the next; 0 where all products have the same.
    pub matrices: [u64; 3],
    /// M.
    pub m: u32,
    /// N.
    pub n: u32,
    /// K.
    pub k: u32,
    /// Products.
    pub batch: u32,
    /// The logarithm to base two of the warps of a team, which are at most [`WARPS`].
    pub log2_warps: u32,
}

/// What a team computes at a time.
#[derive(Clone, Copy)]
struct Tile {
    /// Where its first rows of A and of B begin.
    from: [u64; 2],
    /// How many of these there are.
    count: [u32; 2],
    /// Where it is in the output.
    at: Coord,
    batch: u32,
}

impl Tile {
    /// The column of the output that this lane has at the end.
    #[inline(always)]
    fn column(&self) -> u32 {
        self.at.column + warp::lane_id() / 2 % COLUMNS
    }
}

impl DotsProblem {
    /// Teams' tiles of an output, one below the other and beside each other.
    #[inline(always)]
    fn tiles(&self) -> [u32; 2] {
        [self.m.div_ceil(ROWS), self.n.div_ceil(COLUMNS)]
    }

    /// Tile `index`, of which neighbours have the same rows of A.
    #[inline(always)]
    fn tile(&self, index: u32) -> Tile {
        // A division by what might be zero could trap.
        let [below, beside] = self.tiles().map(|count| count.max(1));
        let (mut row, mut column, mut batch) = (0, index, 0);
        if index >= beside {
            (row, column) = (index / beside, index % beside);
            (batch, row) = (row / below, row % below);
        }
        let at = Coord { row: row * ROWS, column: column * COLUMNS };
        let from = |base: Global<f32>, i: usize, row: u32| {
            base.offset(batch as u64 * self.matrices[i] + row as u64 * self.rows[i]).address()
        };
        Tile {
            from: [from(self.a, 0, at.row), from(self.b, 1, at.column)],
            count: [self.m.saturating_sub(at.row), self.n.saturating_sub(at.column)],
            at,
            batch,
        }
    }

    /// Has the level-2 cache get A, if that is a few rows, a line for each thread: warps ask for it when they have waited for as much of B.
    #[inline(always)]
    fn prefetch(&self) {
        let lines = (self.k * WORD).div_ceil(LINE_BYTES).max(1);
        let index = thread::block_idx_x() * THREADS + thread::thread_idx_x();
        let row = index / lines;
        if self.m <= ROWS && row < self.m {
            let from = self.a.address() + row as u64 * (self.rows[0] * WORD as u64);
            ptx::prefetch_global_l2(from + (index % lines * LINE_BYTES) as u64);
        }
    }

    /// Whether all rows of A and B begin at multiples of 16 bytes.
    #[inline(always)]
    fn has_chunks(&self) -> bool {
        let elements = self.rows[0] | self.rows[1] | self.matrices[0] | self.matrices[1];
        (self.a.address() | self.b.address() | (elements * WORD as u64)).is_multiple_of(CHUNK_BYTES as u64)
    }

    /// The lane's share of a tile's sums, of the columns of K that part `part` of the team has.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it. A and B are valid for reads; their rows begin at multiples of 16 bytes if `has_chunks`.
    #[inline(always)]
    unsafe fn multiply(&self, tile: &Tile, part: u32, has_chunks: bool) -> Sums {
        let lane = warp::lane_id();
        let steps = self.k.div_ceil(STEP_WORDS);
        let whole = if has_chunks { self.k / STEP_WORDS } else { 0 };
        // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a variable index and so live
        // in local memory.)
        let mut sums: Sums = unsafe { core::mem::zeroed() };
        let mut step = part;
        while step < steps {
            let next = |i: usize| step + ((i as u32) << self.log2_warps);
            // What a lane has of a step is a chunk, or words as far apart as there are lanes.
            let is_whole = next(AT_ONCE - 1) < whole;
            // SAFETY: as above; places within rows that there are, or not read.
            unsafe {
                let mut b: [[[u32; WORDS]; COLUMNS as usize]; AT_ONCE] = core::mem::zeroed();
                if is_whole {
                    for (i, columns) in b.iter_mut().enumerate() {
                        for (column, words) in columns.iter_mut().enumerate() {
                            let from =
                                self.row::<1>(tile, column as u32) + place(next(i), lane * CHUNK_BYTES);
                            *words = ptx::ld_global_v4_b32_once_if(from, (column as u32) < tile.count[1]);
                        }
                    }
                } else {
                    for (i, columns) in b.iter_mut().enumerate() {
                        if next(i) >= steps {
                            break;
                        }
                        for (column, words) in columns.iter_mut().enumerate() {
                            *words = self.words::<1>(tile, column as u32, next(i));
                        }
                    }
                }
                for (group, sums) in sums.iter_mut().enumerate() {
                    let first = (group * GROUP) as u32;
                    if first >= tile.count[0] {
                        break;
                    }
                    let mut a: [[[u32; WORDS]; GROUP]; AT_ONCE] = core::mem::zeroed();
                    for (i, rows) in a.iter_mut().enumerate() {
                        if is_whole {
                            for (row, words) in rows.iter_mut().enumerate() {
                                let row = first + row as u32;
                                let from = self.row::<0>(tile, row) + place(next(i), lane * CHUNK_BYTES);
                                *words = ptx::ld_global_v4_b32_if(from, row < tile.count[0]);
                            }
                        } else if next(i) < steps {
                            for (row, words) in rows.iter_mut().enumerate() {
                                *words = self.words::<0>(tile, first + row as u32, next(i));
                            }
                        }
                    }
                    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                        if next(i) >= steps {
                            break;
                        }
                        add(sums, a, b);
                    }
                }
            }
            step += (AT_ONCE as u32) << self.log2_warps;
        }
        sums
    }

    /// Where row `row` of the tile's of A, or of B if `OF` is 1, begins.
    #[inline(always)]
    fn row<const OF: usize>(&self, tile: &Tile, row: u32) -> u64 {
        tile.from[OF] + row as u64 * (self.rows[OF] * WORD as u64)
    }

    /// The lane's words of a step of a row, as far apart as there are lanes; zeros behind the row's end, and if there is no such row.
    ///
    /// # Safety
    ///
    /// The row is valid for reads if it is there.
    #[inline(always)]
    unsafe fn words<const OF: usize>(&self, tile: &Tile, row: u32, step: u32) -> [u32; WORDS] {
        let (is_there, lane) = (row < tile.count[OF], warp::lane_id());
        let from = self.row::<OF>(tile, row) + place(step, lane * WORD);
        let mut words = [0; WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            let at = from + (i as u32 * (warp::SIZE * WORD)) as u64;
            let column = step * STEP_WORDS + i as u32 * warp::SIZE + lane;
            // SAFETY: within the row, or not read.
            *word = unsafe { ptx::ld_global_f32_if(at, is_there && column < self.k) }.to_bits();
        }
        words
    }

    /// The sum of index `index` of a tile, of products one after the other along K: parts of a sum may overflow where the sum does not.
    ///
    /// # Safety
    ///
    /// The tile has such an output. A and B are valid for reads.
    #[inline(always)]
    unsafe fn again(&self, tile: &Tile, index: u32) -> f32 {
        let (mut a, mut b) = (self.row::<0>(tile, index / COLUMNS), self.row::<1>(tile, index % COLUMNS));
        let (mut sum, mut k) = (0.0, 0);
        while k < self.k {
            // SAFETY: within the rows.
            sum = unsafe { ptx::fma(ptx::ld_global_f32_if(a, true), ptx::ld_global_f32_if(b, true), sum) };
            (a, b) = (a + WORD as u64, b + WORD as u64);
            // Opaque: the loop would be unrolled.
            k = ptx::opaque(k + 1);
        }
        sum
    }

    /// Stores the output that this lane has of the tile, the one of an even lane; `column` is what the epilogue knows of its [column](Tile::column).
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, with the sum of index `lane / 2`. The output is valid for writes, and nothing else touches the tile.
    #[inline(always)]
    unsafe fn store<E: Epilogue>(&self, tile: &Tile, mut sum: f32, epilogue: &E, column: E::Column) {
        let index = warp::lane_id() / 2;
        let at = Coord { row: tile.at.row + index / COLUMNS, column: tile.column() };
        // SAFETY: the caller's promise. What is not there would be read again behind the matrices.
        unsafe {
            if is_not_finite(sum) && at.row < self.m && at.column < self.n {
                sum = self.again(tile, index);
            }
            let [value] = epilogue.apply(at, epilogue.row(at.row), [column], [sum]);
            if at.row < self.m && at.column < self.n && warp::lane_id().is_multiple_of(2) {
                let place =
                    tile.batch as u64 * self.matrices[2] + at.row as u64 * self.rows[2] + at.column as u64;
                ptx::st_global_b32(self.output.offset(place).address(), value.to_bits());
            }
        }
    }
}

/// Bytes from the beginning of a row to those of a step that lanes have from `first` on.
#[inline(always)]
fn place(step: u32, first: u32) -> u64 {
    step as u64 * STEP_BYTES as u64 + first as u64
}

/// Adds the products of a lane's words.
#[inline(always)]
fn add(
    sums: &mut [[f32; COLUMNS as usize]; GROUP],
    a: &[[u32; WORDS]; GROUP],
    b: &[[u32; WORDS]; COLUMNS as usize],
) {
    for (sums, a) in sums.iter_mut().zip(a) {
        for (sum, b) in sums.iter_mut().zip(b) {
            for (&a, &b) in a.iter().zip(b) {
                *sum = ptx::fma(f32::from_bits(a), f32::from_bits(b), *sum);
            }
        }
    }
}

/// Half of the values, each with what the lane at distance `mask` has of it: the upper half in lanes that have the bit of `mask`.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn halve<const N: usize, const HALF: usize>(values: [f32; N], mask: u32) -> [f32; HALF] {
    const { assert!(2 * HALF == N, "half of the values") };
    let is_upper = warp::lane_id() & mask != 0;
    let mut halves = [0.0; HALF];
    for (i, half) in halves.iter_mut().enumerate() {
        let (lower, upper) = (values[i], values[HALF + i]);
        let (own, other) = if is_upper { (upper, lower) } else { (lower, upper) };
        // SAFETY: the caller's promise.
        *half = own + f32::from_bits(unsafe { ptx::shfl_sync_bfly(other.to_bits(), mask) });
    }
    halves
}

/// The sum over the lanes of value `lane / 2`.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_lanes(sums: Sums) -> f32 {
    let [[[a, b], [c, d]], [[e, f], [g, h]], [[i, j], [k, l]], [[m, n], [o, p]]] = sums;
    let values = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
    // SAFETY: the caller's promise.
    unsafe {
        let values: [f32; 8] = halve(values, 16);
        let values: [f32; 4] = halve(values, 8);
        let values: [f32; 2] = halve(values, 4);
        let [value]: [f32; 1] = halve(values, 2);
        value + f32::from_bits(ptx::shfl_sync_bfly(value.to_bits(), 1))
    }
}

/// Computes `epilogue(A Bᵀ)`. The teams of the grid take turns with the tiles, of which there are fewer than 2³¹.
///
/// # Safety
///
/// All threads of the grid call it, in blocks of [`THREADS`] threads with [`SHARED_BYTES`] bytes of dynamic shared memory. A and B are valid for
/// reads, and nothing writes them while the kernel runs; the output is valid for writes, and nothing else touches it; `epilogue` may be asked for
/// every column of it.
#[inline(always)]
pub unsafe fn run<E: Epilogue>(problem: &DotsProblem, epilogue: &E) {
    let p = *problem;
    let (warp, lane) = (warp::warp_id(), warp::lane_id());
    let teams = WARPS >> p.log2_warps;
    let (team, part) = (warp >> p.log2_warps, warp & ((1 << p.log2_warps) - 1));
    let [below, beside] = p.tiles();
    let count = below * beside * p.batch;
    let has_chunks = p.has_chunks();
    p.prefetch();
    // Teams of different blocks first, so that few tiles are spread over the multiprocessors.
    let (mut first, mut round) = (thread::block_idx_x(), SharedAddress::dynamic());
    let mut is_odd = false;
    while first < count {
        let index = first + team * thread::grid_dim_x();
        let is_there = index < count;
        let tile = p.tile(index);
        let (mut sum, mut column) = (0.0, E::Column::default());
        if is_there {
            // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
            unsafe {
                let sums = p.multiply(&tile, part, has_chunks);
                // On its way while the lanes' sums are added up.
                column = epilogue.column(tile.column());
                sum = over_lanes(sums);
            }
        }
        if p.log2_warps > 0 {
            let at = round.offset(warp * WARP_BYTES + lane / 2 * WORD);
            // SAFETY: the warp's own place, which was last read before the barrier of the round between; all threads of the block are here.
            unsafe {
                if lane.is_multiple_of(2) {
                    ptx::st_shared_f32(at.get(), sum);
                }
                thread::sync_threads();
                if part == 0 {
                    for other in 1..1 << p.log2_warps {
                        sum += ptx::ld_shared_f32(at.offset(other * WARP_BYTES).get());
                    }
                }
            }
            is_odd = !is_odd;
            round = SharedAddress::dynamic().offset(if is_odd { ROUND_BYTES } else { 0 });
        }
        if part == 0 && is_there {
            // SAFETY: the team's first warp has all sums of the tile, and no other team has it.
            unsafe { p.store(&tile, sum, epilogue, column) }
        }
        first += thread::grid_dim_x() * teams;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_has_an_output_for_every_two_lanes() {
        assert_eq!(2 * SUMS as u32, warp::SIZE);
        assert!(WARPS.is_power_of_two() && STEP_BYTES == 512);
    }
}
