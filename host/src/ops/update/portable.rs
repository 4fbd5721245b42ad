//! The launches of the kernels that compute a linear operation with its updates on every architecture from sm_80 on, and of those for
//! Turing, which without a W compute the updates alone.
//!
//! A block computes one tile of Y, or several in a row: the by-product that the updates need is made with the first and kept for the
//! others. [`choose`] weighs that against blocks that have nothing to do at the end.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::turing_update::TuringUpdateTile;
use warpsmith_dsl::gemm::update::{UpdateElement, UpdateShape};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::codes::Codes;
use warpsmith_kernels::linear_update::{LinearUpdateParams, Update64x64, Update128x128, linear_update};

use super::operands::{BoltOn, Problem};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::gemm::{self, Access, Limits, TURING};
use crate::ops::matrix::row_stride;
use crate::ops::{Precision, Products};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor};

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
    /// That for sm_80 and later.
    #[doc(hidden)]
    type LinearUpdate: Kernel<Args = Args<Self::Device>>;
    /// That for Turing.
    #[doc(hidden)]
    type TuringUpdate: Kernel<Args = Args<Self::Device>>;
}

impl Kernels for f16 {
    type LinearUpdate = linear_update<F16, F16, Update128x128<F16>>;
    type TuringUpdate = linear_update<F16, F16, TuringUpdateTile<F16>>;
}
impl Kernels for bf16 {
    type LinearUpdate = linear_update<Bf16, Bf16, Update128x128<Bf16>>;
    type TuringUpdate = linear_update<Bf16, Bf16, TuringUpdateTile<Bf16>>;
}
impl Kernels for f32 {
    type LinearUpdate = linear_update<f32, f32, Update64x64<f32>>;
    type TuringUpdate = linear_update<f32, f32, TuringUpdateTile<f32>>;
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Blocks of the launch.
    pub(super) blocks: u32,
    /// Tiles of Y that a block computes.
    tiles: u32,
    /// Whether the kernel is that for Turing.
    is_turing: bool,
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
    const fn of<T: UpdateElement, S: UpdateShape<T>>() -> Self {
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
    const fn for_type(dtype: DType, is_turing: bool) -> Option<Self> {
        match (dtype, is_turing) {
            (DType::F16, false) => Some(Self::of::<F16, Update128x128<F16>>()),
            (DType::Bf16, false) => Some(Self::of::<Bf16, Update128x128<Bf16>>()),
            (DType::F32, false) => Some(Self::of::<f32, Update64x64<f32>>()),
            (DType::F16, true) => Some(Self::of::<F16, TuringUpdateTile<F16>>()),
            (DType::Bf16, true) => Some(Self::of::<Bf16, TuringUpdateTile<Bf16>>()),
            (DType::F32, true) => Some(Self::of::<f32, TuringUpdateTile<f32>>()),
            _ => None,
        }
    }

    /// Blocks that a multiprocessor holds at a time.
    fn resident(&self, limits: &Limits) -> u32 {
        let by_shared = limits.shared_per_multiprocessor / (self.shared_bytes + RESERVED_SHARED);
        by_shared.min(REGISTERS[0] / (REGISTERS[1] * self.threads)).max(1)
    }

    /// What the updates cost a block, in hundredths of a tile's products. Their share of the columns, and for the ranks that
    /// have a pass of their own the rows of X once more, which are half of what a tile reads.
    fn cost(&self, rank: u32) -> u64 {
        let columns = 100 * u64::from(rank.next_multiple_of(8)) / u64::from(self.n);
        columns + if rank > self.ride { 50 } else { 0 }
    }
}

/// The kernel that computes a linear operation with updates; `None` if none can.
///
/// Of the numbers of tiles that a block may have, that with which the last of all blocks is done first; of equals the smallest.
pub(super) fn choose(problem: &Problem, limits: &Limits) -> Option<Choice> {
    let is_turing = limits.compute_capability < (8, 0);
    let tile = Tile::for_type(problem.dtype, is_turing)?;
    // There a product of its own makes H, as long as that of a tile for every width of a tile.
    let before = if is_turing { 100 * passes(&tile, problem) } else { tile.cost(problem.rank) };
    choice(&tile, problem, limits, [before, 100])
}

/// How long the launch of a choice takes, in picoseconds on an H100, by the model of the linear operation's kernel with the same tile.
pub(super) fn picoseconds(choice: Choice, problem: &Problem, limits: &Limits) -> Option<u128> {
    let &Problem { k, dtype, y_is_chunked, .. } = problem;
    let tile = Tile::for_type(dtype, choice.is_turing)?;
    let of_linear = match (dtype, choice.is_turing) {
        (DType::F32, _) | (_, true) => gemm::Tile::T64x64,
        _ => gemm::Tile::T128x128,
    };
    let product = gemm::Problem {
        products: Products::choose(dtype, k as usize, Precision::default(), false),
        stores_boxes: y_is_chunked,
        ..problem.linear(limits)
    };
    // The updates' share of what a block does, and of what is left over at the end where blocks have several tiles.
    let share = 100 * u64::from(choice.tiles) + tile.cost(problem.rank);
    let time = gemm::estimate_of_launch(of_linear, &product, limits)?;
    Some(time * u128::from(share) / u128::from(100 * choice.tiles))
}

/// The kernel for Turing that computes updates alone; `None` on another GPU, or where it cannot.
pub(super) fn choose_alone(problem: &Problem, limits: &Limits) -> Option<Choice> {
    if limits.compute_capability >= (8, 0) {
        return None;
    }
    let tile = Tile::for_type(problem.dtype, true)?;
    // In products along K, and for storing a tile what its products along as many elements as it has columns take.
    let before = passes(&tile, problem) * u64::from(problem.k);
    choice(&tile, problem, limits, [before, u64::from(problem.rank + tile.n)])
}

/// Products of its own that H takes.
fn passes(tile: &Tile, problem: &Problem) -> u64 {
    problem.rank.div_ceil(tile.n).into()
}

/// The launch of a tile for `problem`, whose blocks take the first of `costs`, and the second for every tile.
fn choice(tile: &Tile, problem: &Problem, limits: &Limits, costs: [u64; 2]) -> Option<Choice> {
    let is_turing = limits.compute_capability < (8, 0);
    let is_read = problem.access == Access::Aligned && problem.u_is_chunked && problem.rank <= tile.max_rank;
    let fits = is_built("linear_update")
        && limits.compute_capability >= TURING
        && tile.shared_bytes <= limits.max_shared_per_block;
    if !(is_read && fits) {
        return None;
    }
    let (rows, columns) = (problem.m.div_ceil(tile.m), problem.n.div_ceil(tile.n));
    let resident = u64::from(tile.resident(limits) * limits.multiprocessors).max(1);
    let [before, each] = costs;
    let blocks = |tiles: u32| u64::from(rows) * u64::from(columns.div_ceil(tiles));
    let time = |tiles: u32| blocks(tiles).div_ceil(resident) * (each * u64::from(tiles) + before);
    // Of numbers that make as many blocks, the smallest is the most even.
    let tiles = (1..=columns.clamp(1, MAX_TILES)).min_by_key(|&tiles| (time(tiles), tiles))?;
    let blocks = u32::try_from(blocks(tiles)).ok().filter(|&blocks| blocks <= i32::MAX as u32)?;
    Some(Choice { blocks, tiles, is_turing })
}

/// The most tiles of a block. With so many the updates cost next to nothing.
const MAX_TILES: u32 = 64;

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(choice: Choice) -> &'static str {
    const fn declaration<K: Kernel>() -> Declaration {
        K::DECLARATION
    }
    if choice.is_turing {
        declaration::<T::TuringUpdate>().name
    } else {
        declaration::<T::LinearUpdate>().name
    }
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
    // SAFETY: the caller's promise is the kernel's.
    unsafe {
        if choice.is_turing {
            launch_kernel::<T, T::TuringUpdate>(device, stream, choice, operands)
        } else {
            launch_kernel::<T, T::LinearUpdate>(device, stream, choice, operands)
        }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_kernel<T: Kernels, K: Kernel<Args = Args<T::Device>>>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &BoltOn<'_, T>,
) -> Result<()> {
    let &BoltOn { x, w, vt, u, y, y_arg, codes, epilogue, m, n, k } = operands;
    let params = LinearUpdateParams {
        stride_x: row_stride(x),
        stride_w: w.map_or(0, row_stride),
        stride_vt: row_stride(vt),
        stride_u: row_stride(u),
        stride_y: row_stride(y),
        m,
        n,
        k,
        tiles: choice.tiles,
    };
    let kernel = device.kernel::<K>()?;
    let w = w.map_or(Global::new(0), Tensor::arg);
    let arguments = (x.arg(), w, vt.arg(), u.arg(), y_arg, codes, epilogue, params);
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
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    };
    const A40: Limits = Limits {
        compute_capability: (8, 6),
        multiprocessors: 84,
        max_shared_per_block: 99 << 10,
        shared_per_multiprocessor: 100 << 10,
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    };

    const T4: Limits = Limits {
        compute_capability: (7, 5),
        multiprocessors: 40,
        max_shared_per_block: 64 << 10,
        shared_per_multiprocessor: 64 << 10,
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    };

    fn problem(m: u32, k: u32, n: u32, rank: u32, dtype: DType) -> Problem {
        Problem {
            m,
            k,
            n,
            rank,
            dtype,
            access: Access::Aligned,
            x_is_chunked: true,
            u_is_chunked: true,
            y_is_chunked: true,
            fits_registers: true,
        }
    }

    #[test]
    fn all_tiles_of_y_have_a_block_and_no_block_is_without() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let tile = Tile::for_type(dtype, false).unwrap();
            for (m, n) in [(1, 1), (128, 768), (4096, 768), (16384, 4096), (100_000, 1000), (7, 131_072)] {
                for rank in [1, 16, 64, 128] {
                    let Choice { blocks, tiles, .. } =
                        choose(&problem(m, 512, n, rank, dtype), &A100).unwrap();
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
            let tile = Tile::for_type(DType::F16, false).unwrap();
            let Choice { blocks, tiles, .. } = choose(&problem, &A100).unwrap();
            let resident = u64::from(tile.resident(&A100) * A100.multiprocessors);
            let time = |blocks: u64, tiles: u64| blocks.div_ceil(resident) * (100 * tiles + tile.cost(rank));
            let single = u64::from(m.div_ceil(tile.m)) * u64::from(n.div_ceil(tile.n));
            assert!(time(blocks.into(), tiles.into()) <= time(single, 1), "{m} {n} {rank}");
        }
    }

    #[test]
    fn every_gpu_from_8_0_on_has_room_for_the_tiles_and_none_before_7_5() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let problem = problem(4096, 768, 768, 128, dtype);
            assert!(choose(&problem, &A40).is_some(), "{dtype}");
            assert_eq!(choose(&problem, &Limits { compute_capability: (7, 0), ..A40 }), None);
            assert_eq!(choose(&problem, &Limits { max_shared_per_block: 64 << 10, ..A40 }), None);
        }
        assert_eq!(choose(&problem(4096, 768, 768, 8, DType::U8), &A100), None);
    }

    #[test]
    fn turing_has_kernels_of_its_own_that_fit_it_and_alone_takes_more_tiles_a_block() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            for (m, n, rank) in [(1, 1, 1), (4096, 768, 8), (16384, 4096, 128), (100_000, 1000, 100)] {
                let problem = problem(m, 768, n, rank, dtype);
                let both = choose(&problem, &T4).unwrap();
                let alone = choose_alone(&problem, &T4).unwrap();
                assert!(both.is_turing && alone.is_turing && alone.tiles >= both.tiles, "{m} {n} {rank}");
                assert_eq!(choose_alone(&problem, &A100), None);
                assert!(!choose(&problem, &A100).unwrap().is_turing);
            }
        }
        assert_eq!(choose_alone(&problem(1, 1, 1, 129, DType::F16), &T4), None);
    }

    #[test]
    fn rows_that_are_not_aligned_have_no_kernel() {
        let aligned = problem(4096, 768, 768, 8, DType::F16);
        assert!(choose(&aligned, &A100).is_some());
        assert_eq!(choose(&Problem { access: Access::Words, ..aligned }, &A100), None);
        assert_eq!(choose(&Problem { u_is_chunked: false, ..aligned }, &A100), None);
    }
}
