//! Which kernel a linear operation runs: one pure function of the problem and the device.
//!
//! The model is a sum of cycles. A block that computes a tile of `TM × TN` outputs spends, for each of the K products,
//! `TM · TN / 1024` cycles in the tensor cores (1024 f16 products a cycle and multiprocessor; f32 takes three products at half
//! the rate, six times as long) and reads `(TM + TN)` elements, at 64 bytes a cycle and multiprocessor from the level-2 cache,
//! half of which the copies in flight hide. The fullest multiprocessor works through `⌈tiles / multiprocessors⌉` blocks. So a large
//! problem gets the largest tile, which reads least for each product, and a small one gets tiles that spread over all
//! multiprocessors. Each choice gives the same answer within the operation's error bound.

use warpsmith_dsl::gemm::TileShape;
use warpsmith_kernels::linear::{Tile16x64, Tile64x64, Tile128x64, Tile128x128, Tile128x256};

use crate::DType;

/// The tile of the output that one block computes, rows × columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tile {
    /// 128 × 256; 16-bit types only.
    T128x256,
    /// 128 × 128; 16-bit types only.
    T128x128,
    /// 128 × 64; f32 only.
    T128x64,
    /// 64 × 64.
    T64x64,
    /// 16 × 64, for a few rows of x.
    T16x64,
}

impl Tile {
    /// Every tile, largest first.
    pub const ALL: [Self; 5] = [Self::T128x256, Self::T128x128, Self::T128x64, Self::T64x64, Self::T16x64];

    /// Its name in tables and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::T128x256 => "128x256",
            Self::T128x128 => "128x128",
            Self::T128x64 => "128x64",
            Self::T64x64 => "64x64",
            Self::T16x64 => "16x64",
        }
    }

    /// Rows and columns of the tile.
    #[must_use]
    pub const fn shape(self) -> (u32, u32) {
        const fn of<S: TileShape>() -> (u32, u32) {
            (S::BLOCK_M, S::BLOCK_N)
        }
        match self {
            Self::T128x256 => of::<Tile128x256>(),
            Self::T128x128 => of::<Tile128x128>(),
            Self::T128x64 => of::<Tile128x64>(),
            Self::T64x64 => of::<Tile64x64>(),
            Self::T16x64 => of::<Tile16x64>(),
        }
    }

    /// Shared memory that a block of it takes, in bytes.
    #[must_use]
    pub const fn shared_bytes(self) -> u32 {
        match self {
            Self::T128x256 => Tile128x256::SHARED_BYTES,
            Self::T128x128 => Tile128x128::SHARED_BYTES,
            Self::T128x64 => Tile128x64::SHARED_BYTES,
            Self::T64x64 => Tile64x64::SHARED_BYTES,
            Self::T16x64 => Tile16x64::SHARED_BYTES,
        }
    }

    /// Whether there is a kernel with this tile for inputs of type `input`, read with `access`.
    #[must_use]
    pub fn serves(self, input: DType, access: Access) -> bool {
        match self {
            Self::T128x256 | Self::T128x128 => input != DType::F32 && access == Access::Aligned,
            Self::T128x64 => input == DType::F32 && access == Access::Aligned,
            Self::T64x64 | Self::T16x64 => true,
        }
    }

    /// The blocks that cover an output of `m` × `n`; each side below 2³¹.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32) -> u64 {
        let (rows, columns) = self.shape();
        u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns))
    }
}

impl std::fmt::Display for Tile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl std::str::FromStr for Tile {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|tile| tile.name() == text).ok_or_else(|| crate::Error::Argument {
            operation: "linear",
            argument: "tile",
            expected: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
            actual: format!("`{text}`"),
        })
    }
}

/// How a kernel reads x and w.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// In chunks of 16 bytes: base addresses and row strides are multiples of 16 bytes.
    Aligned,
    /// Element by element: any address and stride.
    Unaligned,
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Rows of x and y.
    pub m: u32,
    /// Rows of w, columns of y.
    pub n: u32,
    /// Columns of x and w.
    pub k: u32,
    /// The inputs' type.
    pub input: DType,
    /// How x and w can be read.
    pub access: Access,
}

/// What the choice needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may have, in bytes.
    pub max_shared_per_block: u32,
}

/// Products that the tensor cores of a multiprocessor make in a cycle from 16-bit operands.
const PRODUCTS_PER_CYCLE: u64 = 1024;
/// Bytes that a multiprocessor reads from the level-2 cache in a cycle.
const BYTES_PER_CYCLE: u64 = 64;
/// Of the reads, one in this many is not hidden behind the products.
const EXPOSED_READS: u64 = 2;
/// Columns of K that a block pays for filling its pipeline and storing its tile, whatever K is.
const OVERHEAD_K: u64 = 64;

/// The tile to compute `problem` with; `None` if no tile fits the device's shared memory.
#[must_use]
pub fn select(problem: &Problem, limits: &Limits) -> Option<Tile> {
    Tile::ALL
        .into_iter()
        .filter(|tile| tile.serves(problem.input, problem.access))
        .filter(|tile| tile.shared_bytes() <= limits.max_shared_per_block)
        .min_by_key(|tile| cycles(*tile, problem, limits))
}

/// The cycles of the fullest multiprocessor, in units of 1 / (1024 · 64 · 2) cycle so that nothing is rounded.
fn cycles(tile: Tile, problem: &Problem, limits: &Limits) -> u128 {
    let (rows, columns) = tile.shape();
    let (rows, columns) = (u64::from(rows), u64::from(columns));
    let slowdown = if problem.input == DType::F32 { 6 } else { 1 };
    let products = rows * columns * slowdown * (BYTES_PER_CYCLE * EXPOSED_READS);
    let reads = (rows + columns) * problem.input.size() as u64 * PRODUCTS_PER_CYCLE;
    let blocks = tile.blocks(problem.m, problem.n).div_ceil(u64::from(limits.multiprocessors.max(1)));
    u128::from(blocks) * u128::from(u64::from(problem.k) + OVERHEAD_K) * u128::from(products + reads)
}

#[cfg(test)]
mod tests {
    use super::{Access, Limits, Problem, Tile, select};
    use crate::DType;

    const H100: Limits = Limits { multiprocessors: 132, max_shared_per_block: 232_448 };

    fn tile(m: u32, k: u32, n: u32, input: DType) -> Tile {
        select(&Problem { m, n, k, input, access: Access::Aligned }, &H100).expect("all tiles fit an H100")
    }

    #[test]
    fn large_problems_get_the_tile_that_reads_least() {
        for size in [4096, 8192, 16384] {
            assert_eq!(tile(size, size, size, DType::Bf16), Tile::T128x256);
            assert_eq!(tile(size, size, size, DType::F32), Tile::T128x64);
        }
    }

    #[test]
    fn small_problems_are_spread_over_the_multiprocessors() {
        assert_eq!(tile(1024, 784, 2048, DType::Bf16), Tile::T128x128);
        assert_eq!(tile(256, 256, 512, DType::F16), Tile::T16x64);
        assert_eq!(tile(1, 4096, 4096, DType::F16), Tile::T16x64);
        assert_eq!(tile(16, 4096, 11008, DType::Bf16), Tile::T16x64);
    }

    #[test]
    fn every_choice_has_a_kernel_that_fits_the_device() {
        for input in [DType::F16, DType::Bf16, DType::F32] {
            for access in [Access::Aligned, Access::Unaligned] {
                for shared in [49_152, 101_376, 166_912, 232_448] {
                    let limits = Limits { multiprocessors: 46, max_shared_per_block: shared };
                    for size in [1, 15, 64, 100, 1000, 5000, i32::MAX as u32] {
                        let problem = Problem { m: size, n: size, k: size, input, access };
                        let Some(tile) = select(&problem, &limits) else { continue };
                        assert!(tile.serves(input, access) && tile.shared_bytes() <= shared);
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_with_too_little_shared_memory_is_told_so() {
        let limits = Limits { multiprocessors: 10, max_shared_per_block: 1024 };
        let problem = Problem { m: 1, n: 1, k: 1, input: DType::F16, access: Access::Aligned };
        assert_eq!(select(&problem, &limits), None);
    }

    #[test]
    fn more_multiprocessors_never_ask_for_larger_tiles() {
        let area = |multiprocessors| {
            let problem = Problem { m: 2048, n: 2048, k: 2048, input: DType::F16, access: Access::Aligned };
            let (rows, columns) =
                select(&problem, &Limits { multiprocessors, ..H100 }).expect("tiles fit").shape();
            rows * columns
        };
        assert!(area(8) >= area(132) && area(132) >= area(100_000));
    }
}
