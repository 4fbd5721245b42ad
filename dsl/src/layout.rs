//! Which element is where: swizzles, fragments and raster order, as pure functions.
//!
//! Nothing here touches the device, so the tests below can prove each layout on the host. They prove that it is a
//! bijection, that its accesses are free of bank conflicts, and that registers hold what the instruction expects.
//!
//! # Rows in shared memory
//!
//! A tile's row is 64 or 128 bytes of one operand row, in 16-byte chunks. `ldmatrix` reads the same chunk of eight
//! consecutive rows at once; stored plainly these eight chunks would share banks. A [`Swizzle`] exchanges the chunks of a
//! row by the row's number, so that any eight consecutive rows hold the same logical chunk in eight different places of
//! the 128 bytes that the 32 banks serve at a time.

/// Bytes of a chunk, the unit of swizzles and of asynchronous copies.
pub const CHUNK_BYTES: u32 = 16;

/// The permutation of 16-byte chunks within a shared-memory tile.
///
/// Both are the hardware's own patterns, an exclusive or of address bits 4.. with address bits 7..
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// For rows of 64 bytes: bits 4–5 with bits 7–8.
    Bytes64,
    /// For rows of 128 bytes: bits 4–6 with bits 7–9.
    Bytes128,
}

impl Swizzle {
    /// The swizzle for rows of `row_bytes` bytes.
    ///
    /// # Panics
    ///
    /// If `row_bytes` is neither 64 nor 128. In a constant this is a compile error.
    #[must_use]
    pub const fn for_row(row_bytes: u32) -> Self {
        match row_bytes {
            64 => Self::Bytes64,
            128 => Self::Bytes128,
            _ => panic!("a shared-memory tile has rows of 64 or 128 bytes"),
        }
    }

    /// Where the byte at `offset` of the plain tile is in the swizzled one.
    ///
    /// The tile must start at a multiple of 1024 bytes for this to agree with addresses.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, offset: u32) -> u32 {
        match self {
            Self::Bytes64 => offset ^ (((offset >> 7) & 3) << 4),
            Self::Bytes128 => offset ^ (((offset >> 7) & 7) << 4),
        }
    }
}

/// The byte offset of chunk `chunk` of row `row` in a swizzled tile with rows of `row_bytes` bytes, 64 or 128.
#[inline(always)]
#[must_use]
pub const fn swizzled_chunk(row_bytes: u32, row: u32, chunk: u32) -> u32 {
    Swizzle::for_row(row_bytes).apply(row * row_bytes + chunk * CHUNK_BYTES)
}

/// Rows of a fragment of accumulators.
pub const FRAGMENT_ROWS: u32 = 16;
/// Columns of a fragment of accumulators.
pub const FRAGMENT_COLUMNS: u32 = 8;

/// Row and 16-byte chunk, relative to a fragment's origin, that a lane addresses in an `ldmatrix.x4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkIndex {
    /// The row.
    pub row: u32,
    /// The chunk within the row: 0 or 1.
    pub chunk: u32,
}

/// The chunk that `lane` addresses to load an A fragment of `mma`: 16 rows × 32 bytes.
///
/// Matrices 0 to 3 are (rows 0–7, chunk 0), (rows 8–15, chunk 0), (rows 0–7, chunk 1), (rows 8–15, chunk 1), which are
/// registers 0 to 3 of the fragment.
#[inline(always)]
#[must_use]
pub const fn a_fragment_chunk(lane: u32) -> ChunkIndex {
    ChunkIndex { row: lane % 16, chunk: lane / 16 }
}

/// The chunk that `lane` addresses to store two neighbouring accumulator fragments of `mma`, rounded to 16 bits, with
/// `stmatrix.x4`: 16 rows × 16 columns.
///
/// Matrices 0 to 3 are (rows 0–7, chunk 0), (rows 8–15, chunk 0), (rows 0–7, chunk 1), (rows 8–15, chunk 1): the lane's two
/// columns of the first fragment in both its rows, then of the second.
#[inline(always)]
#[must_use]
pub const fn store_fragment_chunk(lane: u32) -> ChunkIndex {
    a_fragment_chunk(lane)
}

/// The chunk that `lane` addresses to load two neighbouring B fragments of `mma`: 2 × 8 columns × 32 bytes, with B stored
/// column by column (so that a column of B is a row in memory).
///
/// Matrices 0 to 3 are (columns 0–7, chunk 0), (columns 0–7, chunk 1), (columns 8–15, chunk 0), (columns 8–15, chunk 1):
/// registers 0 and 1 of the first fragment, then of the second.
#[inline(always)]
#[must_use]
pub const fn b_fragment_chunk(lane: u32) -> ChunkIndex {
    ChunkIndex { row: lane % 8 + (lane / 16) * 8, chunk: (lane / 8) % 2 }
}

/// The chunk that `lane` addresses to load two neighbouring B fragments of `mma` with a transposing `ldmatrix.x4`, where B is stored row by
/// row: 16 rows (along k) × 2 · 8 columns of 16 bits.
///
/// Matrices 0 to 3 are (rows 0–7, chunk 0), (rows 8–15, chunk 0), (rows 0–7, chunk 1), (rows 8–15, chunk 1): registers 0 and 1 of the
/// first fragment, then of the second.
#[inline(always)]
#[must_use]
pub const fn across_chunk(lane: u32) -> ChunkIndex {
    a_fragment_chunk(lane)
}

/// Row and column of a matrix element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coord {
    /// The row.
    pub row: u32,
    /// The column.
    pub column: u32,
}

/// The element of the 16×8 accumulator of `mma` that register `index` (0 to 3) of `lane` holds.
#[inline(always)]
#[must_use]
pub const fn accumulator_coord(lane: u32, index: u32) -> Coord {
    Coord { row: lane / 4 + 8 * (index / 2), column: 2 * (lane % 4) + index % 2 }
}

/// Which output tile: of which matrix of a batch, and its index along M and along N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileIndex {
    /// The matrix.
    pub batch: u32,
    /// Index along M.
    pub m: u32,
    /// Index along N.
    pub n: u32,
}

/// Tiles along M that [`raster`] visits before it steps along N.
pub const RASTER_GROUP: u32 = 8;

/// The tile that block `block` works on, where each matrix has `tiles_m · tiles_n` tiles.
///
/// Blocks that run at the same time should share rows of A and of B in the L2 cache, so the order goes through groups of
/// [`RASTER_GROUP`] tiles along M: down a group, one step along N, down again.
#[inline(always)]
#[must_use]
pub const fn raster(block: u32, tiles_m: u32, tiles_n: u32) -> TileIndex {
    raster_in_groups(block, tiles_m, tiles_n, RASTER_GROUP)
}

/// As [`raster`], in groups of `group` tiles along M, at least 1.
#[inline(always)]
#[must_use]
pub const fn raster_in_groups(block: u32, tiles_m: u32, tiles_n: u32, group: u32) -> TileIndex {
    // At least 1: a division that could trap would keep the GPU's compiler from giving warpgroups registers of their own.
    let per_matrix = at_least_1(tiles_m * tiles_n);
    let batch = block / per_matrix;
    let block = block % per_matrix;
    let per_group = at_least_1(group * tiles_n);
    let index = block / per_group;
    let first = index * group;
    let left = tiles_m - first;
    let height = at_least_1(if left < group { left } else { group });
    let within = block - index * per_group;
    TileIndex { batch, m: first + within % height, n: within / height }
}

#[inline(always)]
const fn at_least_1(number: u32) -> u32 {
    if number == 0 { 1 } else { number }
}

/// Words by which a row of the staging buffer of the epilogue exceeds its data, so that the rows that a half-warp writes
/// at a time fall into different banks.
pub const STAGING_PAD_WORDS: u32 = 8;

/// The word offset of `(row, column)` in an epilogue's staging buffer for `columns` columns of f32.
#[inline(always)]
#[must_use]
pub const fn staging_word(columns: u32, row: u32, column: u32) -> u32 {
    row * (columns + STAGING_PAD_WORDS) + column
}

/// Columns of a strip, which a warp stores at a time: 128 bytes of a row for 16-bit types.
pub const STRIP_COLUMNS: u32 = 64;

/// The word offset of `(row, column)` in an epilogue's staging buffer of [`STRIP_COLUMNS`] columns of f32, without padding.
///
/// The rows that a half-warp writes at a time are kept apart by exchanging 32-byte parts of a row by the row's number.
#[inline(always)]
#[must_use]
pub const fn swizzled_staging_word(row: u32, column: u32) -> u32 {
    row * STRIP_COLUMNS + (column ^ ((row % 4) * 8))
}

/// The word offset of `(row, column)` in a buffer of 8 rows × 16 columns of f32, through which a warp transposes an accumulator
/// fragment of 16 × 8.
///
/// The two pairs of registers that a quad of lanes has are in rows of the buffer that would share banks. They are kept apart by
/// exchanging halves of a row, and rows, by the bits of the row's number above the lowest.
#[inline(always)]
#[must_use]
pub const fn transposed_fragment_word(row: u32, column: u32) -> u32 {
    (row * 16 + column) ^ ((row >> 1 & 1) * 8) ^ ((row >> 2 & 1) * 16)
}

/// Columns of a panel.
pub const PANEL_COLUMNS: u32 = 8;

/// Where chunk `chunk` of row `row` is in a matrix of `rows` rows that is stored in panels of [`PANEL_COLUMNS`]
/// columns. Elements have `element_bytes` bytes, 2 or 4. The number of rows is a multiple of eight.
///
/// A panel holds its rows one after the other: eight of them of a 16-bit type are the 128 bytes of an 8×8 matrix, which `ldmatrix`
/// reads transposed as a B fragment whose columns are the panel's. Panels begin at the same bank, so rows are exchanged by the
/// panel's number: those who write the chunks of one row write to different banks.
///
/// `mma` on f32 takes two elements of B from each lane: row t and row t + 4 of eight, with t = lane mod 4. With `paired` rows, rows 2t and
/// 2t + 1 are stored there: the two columns of an accumulator that the lane has, so that these are a fragment of A without
/// an exchange between lanes.
#[inline(always)]
#[must_use]
pub const fn panel_chunk(element_bytes: u32, rows: u32, row: u32, chunk: u32, paired: bool) -> u32 {
    let row_bytes = PANEL_COLUMNS * element_bytes;
    let (panel, of_row) = (chunk * CHUNK_BYTES / row_bytes, chunk * CHUNK_BYTES % row_bytes);
    let within = row % 8;
    let exchanged = match element_bytes {
        2 => within ^ (panel % 8),
        _ if paired => (within / 2 + within % 2 * 4) ^ (panel % 4),
        _ => within ^ (panel % 4),
    };
    (panel * rows + row - within + exchanged) * row_bytes + of_row
}

/// Where chunk `chunk` of row `row` is in a buffer of 16 rows of 128 bytes. A warp puts accumulator fragments there,
/// rounded to elements of `element_bytes` bytes, 2 or 4, and reads chunks of rows, or the other way round.
#[inline(always)]
#[must_use]
pub const fn staged_chunk(element_bytes: u32, row: u32, chunk: u32) -> u32 {
    let exchanged = if element_bytes == 2 { chunk ^ (row % 8) } else { chunk ^ (row % 4 * 2) };
    row * 128 + exchanged * CHUNK_BYTES
}

/// Where a lane's two columns of row `row` (0 to 15) of accumulator fragment `fragment` are in such a buffer.
#[inline(always)]
#[must_use]
pub const fn staged_fragment(element_bytes: u32, lane: u32, row: u32, fragment: u32) -> u32 {
    let column_bytes = (fragment * 8 + 2 * (lane % 4)) * element_bytes;
    staged_chunk(element_bytes, row, column_bytes / CHUNK_BYTES) + column_bytes % CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn banks_of(address: u32, bytes: u32) -> impl Iterator<Item = u32> {
        (address / 4..(address + bytes) / 4).map(|word| word % 32)
    }

    fn swizzle_is_a_bijection_that_keeps_bytes_of_a_chunk_together(row_bytes: u32) {
        let swizzle = Swizzle::for_row(row_bytes);
        let size = 256 * row_bytes;
        let mut seen = HashSet::new();
        for offset in 0..size {
            let at = swizzle.apply(offset);
            assert!(at < size && seen.insert(at));
            assert_eq!(at % CHUNK_BYTES, offset % CHUNK_BYTES);
            assert_eq!(at / 128, offset / 128, "a chunk stays within its 128 bytes");
        }
    }

    #[test]
    fn swizzles_are_bijections() {
        swizzle_is_a_bijection_that_keeps_bytes_of_a_chunk_together(64);
        swizzle_is_a_bijection_that_keeps_bytes_of_a_chunk_together(128);
    }

    /// Each quarter of an `ldmatrix.x4` reads eight rows of 16 bytes: all 32 banks, each once.
    fn ldmatrix_is_conflict_free(row_bytes: u32, lane_chunk: fn(u32) -> ChunkIndex) {
        for step in 0..row_bytes / 32 {
            for matrix in 0..4 {
                let banks: HashSet<u32> = (8 * matrix..8 * matrix + 8)
                    .flat_map(|lane| {
                        let ChunkIndex { row, chunk } = lane_chunk(lane);
                        banks_of(swizzled_chunk(row_bytes, row, chunk + 2 * step), CHUNK_BYTES)
                    })
                    .collect();
                assert_eq!(banks.len(), 32, "rows of {row_bytes} bytes, step {step}, matrix {matrix}");
            }
        }
    }

    #[test]
    fn fragment_loads_have_no_bank_conflicts() {
        for lane_chunk in [a_fragment_chunk as fn(u32) -> ChunkIndex, b_fragment_chunk] {
            ldmatrix_is_conflict_free(64, lane_chunk);
            ldmatrix_is_conflict_free(128, lane_chunk);
        }
    }

    /// Eight consecutive threads store their 16-byte chunks at a time.
    #[test]
    fn tile_stores_have_no_bank_conflicts() {
        fn check(row_bytes: u32) {
            let per_row = row_bytes / CHUNK_BYTES;
            for first in (0..256).step_by(8) {
                let banks: HashSet<u32> = (first..first + 8)
                    .flat_map(|i| banks_of(swizzled_chunk(row_bytes, i / per_row, i % per_row), CHUNK_BYTES))
                    .collect();
                assert_eq!(banks.len(), 32);
            }
        }
        check(64);
        check(128);
    }

    /// The k-step enters a fragment's address by an exclusive or, for it only changes bits that the chunk index leaves 0.
    #[test]
    fn a_k_step_is_an_exclusive_or() {
        fn check(row_bytes: u32) {
            for row in 0..64 {
                for chunk in 0..2 {
                    for step in 0..row_bytes / 32 {
                        let direct = swizzled_chunk(row_bytes, row, chunk + 2 * step);
                        assert_eq!(direct, swizzled_chunk(row_bytes, row, chunk) ^ (step * 32));
                    }
                    // Sixteen rows further on, the pattern repeats.
                    assert_eq!(
                        swizzled_chunk(row_bytes, row + 16, chunk),
                        swizzled_chunk(row_bytes, row, chunk) + 16 * row_bytes
                    );
                }
            }
        }
        check(64);
        check(128);
    }

    /// `ldmatrix` gives register i of lane l the elements 2(l mod 4), +1 of row l / 4 of matrix i. With g = l / 4, t =
    /// l mod 4, `mma` m16n8k16 wants A at row g + 8(r & 1), k = 2t + 8(r >> 1) and B at k = 2t + 8r, column g.
    #[test]
    fn fragments_hold_what_mma_expects() {
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for register in 0..4 {
                // The lane that gave the address of the row this register was read from.
                let source = 8 * register + g;
                let a = a_fragment_chunk(source);
                assert_eq!(a.row, g + 8 * (register & 1));
                assert_eq!(a.chunk * 8 + 2 * t, 2 * t + 8 * (register >> 1));
                let b = b_fragment_chunk(source);
                assert_eq!(b.row, g + 8 * (register / 2));
                assert_eq!(b.chunk * 8 + 2 * t, 2 * t + 8 * (register % 2));
            }
        }
    }

    /// `ldmatrix` with `.trans` gives register i of lane l rows 2(l mod 4), +1 of column l / 4 of matrix i; `mma` m16n8k16 wants B at
    /// k = 2t + 8r, column g.
    #[test]
    fn transposed_fragments_hold_what_mma_expects() {
        for lane in 0..32 {
            let t = lane % 4;
            for register in 0..4 {
                // The lanes that gave the addresses of rows 2t and 2t + 1 of this register's matrix.
                for i in 0..2 {
                    let ChunkIndex { row, chunk } = across_chunk(8 * register + 2 * t + i);
                    assert_eq!((row, chunk), (2 * t + i + 8 * (register % 2), register / 2));
                }
            }
        }
    }

    /// `mma` gives register i of lane l the element at row g + 8(i >> 1), column 2t + (i & 1), with g = l / 4, t = l mod 4.
    #[test]
    fn accumulators_are_where_mma_puts_them_and_cover_the_tile() {
        let mut all = HashSet::new();
        for lane in 0..32 {
            for i in 0..4 {
                let Coord { row, column } = accumulator_coord(lane, i);
                assert_eq!((row, column), (lane / 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1)));
                assert!(row < 16 && column < 8 && all.insert((row, column)));
            }
        }
    }

    /// `stmatrix` puts register i of lane l, two elements, at elements 2(l mod 4), +1 of row l / 4 of matrix i, whose rows start
    /// where lanes 8i to 8i + 7 say.
    #[test]
    fn stored_fragments_land_where_their_accumulators_belong() {
        for lane in 0..32 {
            for (register, index) in [(0, 0), (1, 2), (2, 0), (3, 2)] {
                let fragment = register / 2;
                let Coord { row, column } = accumulator_coord(lane, index);
                let start = store_fragment_chunk(8 * register + lane / 4);
                assert_eq!((start.row, start.chunk), (row, fragment), "lane {lane}, register {register}");
                assert_eq!(column, 2 * (lane % 4));
            }
        }
    }

    #[test]
    fn raster_visits_every_tile_once() {
        for (tiles_m, tiles_n) in (1..40).flat_map(|m| (1..20).map(move |n| (m, n))) {
            for group in [1, 3, RASTER_GROUP] {
                let all: HashSet<(u32, u32)> = (0..tiles_m * tiles_n)
                    .map(|block| raster_in_groups(block, tiles_m, tiles_n, group))
                    .map(|TileIndex { m, n, .. }| (m, n))
                    .collect();
                assert_eq!(all.len() as u32, tiles_m * tiles_n);
                assert!(all.iter().all(|&(m, n)| m < tiles_m && n < tiles_n));
            }
        }
    }

    #[test]
    fn staging_writes_have_no_bank_conflicts() {
        for columns in [16, 32, 64] {
            // Eight-byte stores are served a half-warp at a time.
            for half in 0..2 {
                let banks: Vec<u32> = (16 * half..16 * half + 16)
                    .flat_map(|lane| {
                        let Coord { row, column } = accumulator_coord(lane, 0);
                        banks_of(4 * staging_word(columns, row, column), 8)
                    })
                    .collect();
                assert_eq!(banks.iter().collect::<HashSet<_>>().len(), 32, "{columns} columns");
            }
        }
    }

    #[test]
    fn swizzled_staging_is_a_bijection_that_keeps_four_columns_together() {
        let all: HashSet<u32> =
            (0..16).flat_map(|row| (0..64).map(move |column| swizzled_staging_word(row, column))).collect();
        assert!(all.len() == 16 * 64 && all.iter().all(|&word| word < 16 * 64));
        for (row, column) in (0..16).flat_map(|row| (0..64).step_by(4).map(move |column| (row, column))) {
            let first = swizzled_staging_word(row, column);
            assert!(first.is_multiple_of(4), "a 16-byte load is aligned");
            assert!((1..4).all(|i| swizzled_staging_word(row, column + i) == first + i));
        }
    }

    #[test]
    fn swizzled_staging_has_no_bank_conflicts() {
        let distinct = |words: Vec<u32>, bytes: u32| {
            let banks: HashSet<u32> = words.iter().flat_map(|word| banks_of(4 * word, bytes)).collect();
            banks.len() == 32
        };
        for fragment in 0..8 {
            // Eight-byte stores are served a half-warp at a time.
            for half in 0..2 {
                let words = (16 * half..16 * half + 16).map(|lane| {
                    let Coord { row, column } = accumulator_coord(lane, 0);
                    swizzled_staging_word(row, 8 * fragment + column)
                });
                assert!(distinct(words.collect(), 8), "fragment {fragment}");
            }
        }
        // Sixteen-byte loads are served eight lanes at a time.
        for (row, first) in [(0, 0), (1, 0), (2, 32), (3, 32), (7, 0)] {
            let words = (0..8).map(|lane| swizzled_staging_word(row, first + 4 * lane));
            assert!(distinct(words.collect(), 16), "row {row}");
        }
    }

    #[test]
    fn transposed_fragments_are_a_bijection_that_keeps_four_columns_together() {
        let all: HashSet<u32> =
            (0..8).flat_map(|row| (0..16).map(move |column| transposed_fragment_word(row, column))).collect();
        assert!(all.len() == 8 * 16 && all.iter().all(|&word| word < 8 * 16));
        for (row, column) in (0..8).flat_map(|row| (0..16).step_by(4).map(move |column| (row, column))) {
            let first = transposed_fragment_word(row, column);
            assert!(first.is_multiple_of(4), "a 16-byte load is aligned");
            assert!((1..4).all(|i| transposed_fragment_word(row, column + i) == first + i));
        }
    }

    #[test]
    fn transposing_a_fragment_has_no_bank_conflicts() {
        for register in 0..4 {
            let words = (0..32).map(|lane| {
                let Coord { row, column } = accumulator_coord(lane, register);
                transposed_fragment_word(column, row)
            });
            assert_eq!(words.map(|word| word % 32).collect::<HashSet<_>>().len(), 32, "register {register}");
        }
        // Sixteen-byte loads are served eight lanes at a time.
        for first in (0..32).step_by(8) {
            let banks: HashSet<u32> = (first..first + 8)
                .flat_map(|lane| banks_of(4 * transposed_fragment_word(lane / 4, 4 * (lane % 4)), 16))
                .collect();
            assert_eq!(banks.len(), 32);
        }
    }

    #[test]
    fn panels_and_staged_rows_are_bijections() {
        for bytes in [2, 4] {
            for (rows, chunks) in [(8, 32), (64, 1 << bytes), (256, bytes / 2)] {
                for paired in [false, true] {
                    let all: HashSet<u32> = (0..rows)
                        .flat_map(|row| {
                            (0..chunks).map(move |chunk| panel_chunk(bytes, rows, row, chunk, paired))
                        })
                        .collect();
                    assert_eq!(all.len() as u32, rows * chunks);
                    assert!(all.iter().all(|&at| at < rows * chunks * 16 && at.is_multiple_of(16)));
                }
            }
            let staged: HashSet<u32> =
                (0..16).flat_map(|row| (0..8).map(move |chunk| staged_chunk(bytes, row, chunk))).collect();
            assert!(staged.len() == 128 && staged.iter().all(|&at| at < 2048));
        }
    }

    /// Eight rows of a panel are read at a time as a matrix of 16-bit elements; of f32, four rows and eight columns.
    #[test]
    fn fragments_are_read_from_panels_without_bank_conflicts() {
        for panel in 0..8 {
            let banks: HashSet<u32> =
                (0..8).flat_map(|row| banks_of(panel_chunk(2, 64, 16 + row, panel, false), 16)).collect();
            assert_eq!(banks.len(), 32);
            for (paired, rows) in
                [(false, [0, 1, 2, 3]), (false, [4, 5, 6, 7]), (true, [0, 2, 4, 6]), (true, [1, 3, 5, 7])]
            {
                let banks: HashSet<u32> = rows
                    .iter()
                    .flat_map(|&row| {
                        (0..2).flat_map(move |half| {
                            banks_of(panel_chunk(4, 64, 8 + row, 2 * panel + half, paired), 16)
                        })
                    })
                    .collect();
                assert_eq!(banks.len(), 32);
            }
        }
    }

    #[test]
    fn staged_rows_and_fragments_have_no_bank_conflicts() {
        for row in 0..16 {
            for first in [0, 4] {
                // Eight lanes read a row of 128 bytes.
                let banks: HashSet<u32> = (0..8)
                    .flat_map(|chunk| banks_of(staged_chunk(if first == 0 { 2 } else { 4 }, row, chunk), 16))
                    .collect();
                assert_eq!(banks.len(), 32);
            }
        }
        for fragment in 0..8 {
            let banks: HashSet<u32> =
                (0..32).flat_map(|lane| banks_of(staged_fragment(2, lane, lane / 4, fragment), 4)).collect();
            assert_eq!(banks.len(), 32);
        }
        for fragment in 0..4 {
            // Eight-byte accesses are served a half-warp at a time.
            for half in 0..2 {
                let banks: HashSet<u32> = (16 * half..16 * half + 16)
                    .flat_map(|lane| banks_of(staged_fragment(4, lane, lane / 4, fragment), 8))
                    .collect();
                assert_eq!(banks.len(), 32);
            }
        }
    }
}
