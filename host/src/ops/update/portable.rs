//! The launches of the kernels that compute a linear operation with its updates on every architecture from sm_80 on.
//!
//! A block computes one tile of Y, or several in a row: the by-product that the updates need is made with the first and kept for the
//! others. [`choose`] weighs that against blocks that have nothing to do at the end.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::update::UpdateShape;
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::codes::Codes;
use warpsmith_kernels::linear_update::{LinearUpdateParams, Update64x64, Update128x128, linear_update};

use super::operands::{BoltOn, Problem, row_stride};
use crate::device::Device;
use crate::error::Result;
use crate::ops::linear::select::{Access, Limits};
use crate::stream::Stream;
use crate::tensor::{DType, Element};

/// Shared memory that the driver keeps of each block's.
const RESERVED_SHARED: u32 = 1024;
/// Registers of a multiprocessor, and what a thread of these kernels has at most.
const REGISTERS: [u32; 2] = [64 * 1024, 256];

/// The arguments of a kernel.
type Args<D> = (
    Global<D>,
    Global<D>,
    Global<D>,
    Global<D>,
    GlobalMut<D>,
    Codes<D>,
    LinearEpilogue<D, D>,
    LinearUpdateParams,
);

/// The kernels of an element type.
pub trait Kernels: Element {
    /// The only one.
    #[doc(hidden)]
    type LinearUpdate: Kernel<Args = Args<Self::Device>>;
}

impl Kernels for f16 {
    type LinearUpdate = linear_update<F16, F16, Update128x128<F16>>;
}
impl Kernels for bf16 {
    type LinearUpdate = linear_update<Bf16, Bf16, Update128x128<Bf16>>;
}
impl Kernels for f32 {
    type LinearUpdate = linear_update<f32, f32, Update64x64<f32>>;
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Blocks of the launch.
    pub(super) blocks: u32,
    /// Tiles of Y that a block computes.
    tiles: u32,
}

/// A tile, as far as the choice goes.
struct Tile {
    m: u32,
    n: u32,
    /// Ranks that ride along with a tile; more take a pass of their own.
    ride: u32,
    max_rank: u32,
    threads: u32,
    shared_bytes: u32,
}

impl Tile {
    const fn of<T: warpsmith_dsl::gemm::update::UpdateElement, S: UpdateShape<T>>() -> Self {
        Self {
            m: S::BLOCK_M,
            n: S::BLOCK_N,
            ride: S::RIDE_RANKS,
            max_rank: S::MAX_RANK,
            threads: S::THREADS,
            shared_bytes: S::SHARED_BYTES,
        }
    }

    /// The tile of the kernel for a type.
    const fn for_type(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::of::<F16, Update128x128<F16>>()),
            DType::Bf16 => Some(Self::of::<Bf16, Update128x128<Bf16>>()),
            DType::F32 => Some(Self::of::<f32, Update64x64<f32>>()),
            _ => None,
        }
    }

    /// Blocks that a multiprocessor holds at a time.
    fn resident(&self, limits: &Limits) -> u32 {
        let by_shared = limits.shared_per_multiprocessor / (self.shared_bytes + RESERVED_SHARED);
        by_shared.min(REGISTERS[0] / (REGISTERS[1] * self.threads)).max(1)
    }

    /// What the updates cost a block, in hundredths of a tile's products: their share of the columns, and for the ranks that have a pass
    /// of their own the rows of X once more, which are half of what a tile reads.
    fn cost(&self, rank: u32) -> u64 {
        let columns = 100 * u64::from(rank.next_multiple_of(8)) / u64::from(self.n);
        columns + if rank > self.ride { 50 } else { 0 }
    }
}

/// The kernel that computes a linear operation with updates; `None` if none can.
///
/// Of the numbers of tiles that a block may have, that with which the last of all blocks is done first; of equals the smallest.
pub(super) fn choose(problem: &Problem, limits: &Limits) -> Option<Choice> {
    let tile = Tile::for_type(problem.dtype)?;
    let is_read = problem.access == Access::Aligned && problem.u_is_chunked && problem.rank <= tile.max_rank;
    let fits = limits.compute_capability >= (8, 0) && tile.shared_bytes <= limits.max_shared_per_block;
    if !(is_read && fits) {
        return None;
    }
    let (rows, columns) = (problem.m.div_ceil(tile.m), problem.n.div_ceil(tile.n));
    let resident = u64::from(tile.resident(limits) * limits.multiprocessors).max(1);
    let cost = tile.cost(problem.rank);
    let blocks = |tiles: u32| u64::from(rows) * u64::from(columns.div_ceil(tiles));
    let time = |tiles: u32| blocks(tiles).div_ceil(resident) * (100 * u64::from(tiles) + cost);
    // Of numbers that make as many blocks, the smallest is the most even.
    let tiles = (1..=columns.clamp(1, MAX_TILES)).min_by_key(|&tiles| (time(tiles), tiles))?;
    let blocks = u32::try_from(blocks(tiles)).ok().filter(|&blocks| blocks <= i32::MAX as u32)?;
    Some(Choice { blocks, tiles })
}

/// The most tiles of a block. With so many the updates cost next to nothing.
const MAX_TILES: u32 = 64;

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(_choice: Choice) -> &'static str {
    const fn declaration<K: Kernel>() -> Declaration {
        K::DECLARATION
    }
    declaration::<T::LinearUpdate>().name
}

/// Launches a choice for `operands`, for which it was made.
///
/// # Safety
///
/// The operands are valid for what the kernel does with them, and live until the stream's work is done.
pub(super) unsafe fn launch<T: Kernels>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &BoltOn<'_, T>,
) -> Result<()> {
    let &BoltOn { x, w, vt, u, y, y_arg, codes, epilogue, m, n, k } = operands;
    let params = LinearUpdateParams {
        stride_x: row_stride(x),
        stride_w: row_stride(w),
        stride_vt: row_stride(vt),
        stride_u: row_stride(u),
        stride_y: row_stride(y),
        m,
        n,
        k,
        tiles: choice.tiles,
    };
    let kernel = device.kernel::<T::LinearUpdate>()?;
    let arguments = (x.arg(), w.arg(), vt.arg(), u.arg(), y_arg, codes, epilogue, params);
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [choice.blocks, 1, 1], arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Limits = Limits {
        compute_capability: (8, 0),
        multiprocessors: 108,
        max_shared_per_block: 163 << 10,
        shared_per_multiprocessor: 164 << 10,
    };
    const A40: Limits = Limits {
        compute_capability: (8, 6),
        multiprocessors: 84,
        max_shared_per_block: 99 << 10,
        shared_per_multiprocessor: 100 << 10,
    };

    fn problem(m: u32, k: u32, n: u32, rank: u32, dtype: DType) -> Problem {
        Problem {
            m,
            k,
            n,
            rank,
            dtype,
            access: Access::Aligned,
            u_is_chunked: true,
            y_is_chunked: true,
            fits_registers: true,
        }
    }

    #[test]
    fn all_tiles_of_y_have_a_block_and_no_block_is_without() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let tile = Tile::for_type(dtype).unwrap();
            for (m, n) in [(1, 1), (128, 768), (4096, 768), (16384, 4096), (100_000, 1000), (7, 131_072)] {
                for rank in [1, 16, 64, 128] {
                    let Choice { blocks, tiles } = choose(&problem(m, 512, n, rank, dtype), &A100).unwrap();
                    let columns = n.div_ceil(tile.n);
                    let in_a_row = blocks / m.div_ceil(tile.m);
                    assert!(
                        in_a_row * tiles >= columns && (in_a_row - 1) * tiles < columns,
                        "{m} {n} {rank}"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_have_one_tile_where_there_are_too_few_and_several_where_ranks_are_many() {
        let tiles = |m, n, rank| choose(&problem(m, 4096, n, rank, DType::Bf16), &A100).unwrap().tiles;
        assert_eq!(tiles(128, 768, 8), 1, "six tiles");
        assert_eq!(tiles(1024, 1024, 128), 1, "fewer tiles than multiprocessors");
        assert!(tiles(16384, 4096, 64) > 1 && tiles(16384, 4096, 128) > 1);
    }

    #[test]
    fn the_last_block_is_done_no_later_than_with_a_tile_each() {
        for (m, n, rank) in [(16384, 768, 8), (16384, 4096, 16), (16384, 4096, 64), (5000, 3000, 100)] {
            let problem = problem(m, 512, n, rank, DType::F16);
            let tile = Tile::for_type(DType::F16).unwrap();
            let Choice { blocks, tiles } = choose(&problem, &A100).unwrap();
            let resident = u64::from(tile.resident(&A100) * A100.multiprocessors);
            let time = |blocks: u64, tiles: u64| blocks.div_ceil(resident) * (100 * tiles + tile.cost(rank));
            let single = u64::from(m.div_ceil(tile.m)) * u64::from(n.div_ceil(tile.n));
            assert!(time(blocks.into(), tiles.into()) <= time(single, 1), "{m} {n} {rank}");
        }
    }

    #[test]
    fn every_gpu_from_8_0_on_has_room_for_the_tiles_and_none_before() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let problem = problem(4096, 768, 768, 128, dtype);
            assert!(choose(&problem, &A40).is_some(), "{dtype}");
            assert_eq!(choose(&problem, &Limits { compute_capability: (7, 5), ..A40 }), None);
            assert_eq!(choose(&problem, &Limits { max_shared_per_block: 64 << 10, ..A40 }), None);
        }
        assert_eq!(choose(&problem(4096, 768, 768, 8, DType::U8), &A100), None);
    }

    #[test]
    fn rows_that_are_not_aligned_have_no_kernel() {
        let aligned = problem(4096, 768, 768, 8, DType::F16);
        assert!(choose(&aligned, &A100).is_some());
        assert_eq!(choose(&Problem { access: Access::Words, ..aligned }, &A100), None);
        assert_eq!(choose(&Problem { u_is_chunked: false, ..aligned }, &A100), None);
    }
}
