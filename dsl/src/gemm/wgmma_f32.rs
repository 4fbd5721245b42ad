//! Hopper's main loop for f32 at f32 accuracy: three `wgmma` products of TF32 parts; sm_90a.
//!
//! An f32 is the sum of its *big* part, the upper 11 bits of the significand, and its *small* part, the rest brought to 11 bits.
//! `wgmma` takes the upper bits of what it is given, so the f32 numbers as they were copied are their own big parts. Of the product,
//! small · big, big · small and big · big are added; small · small is below f32's rounding.
//!
//! The warps of a block have different work. One thread has the copy engine fill a ring of stages with rows of A and of B. The
//! other three warps of its warpgroup, the *splitters*, read each stage's rows of B and write their small parts to a second, shorter
//! ring, at the same places. The other warpgroups multiply: each loads the fragments of its 64 rows of A to registers and splits
//! them there.
//!
//! The tensor cores cut their sums off, always towards zero, which over a long K adds up to more than f32's error. So the products
//! of 16 columns of K are summed from zero, the small ones first, and added to the accumulators with ordinary, rounding
//! additions. While one warpgroup adds, the other's products keep the tensor cores busy.

mod store;

use core::marker::PhantomData;

use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::again::Sums;
use crate::gemm::element::small_parts;
use crate::gemm::{Layouts, PersistentTiles};
use crate::launch::TensorMap;
use crate::layout::{CHUNK_BYTES, Coord, TileIndex, a_fragment_chunk, swizzled_chunk};
use crate::pipeline::{AsyncProxy, Consumer, GenericProxy, Loaded, Pipeline, Producer};
use crate::ptx::{self, Accumulators, MatrixDescriptor, WgmmaRegisters};
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;
use crate::warp;
use store::STAGING_BYTES;

/// Threads of a warpgroup.
const WARPGROUP: u32 = 4 * warp::SIZE;
/// Rows that a warpgroup multiplies, 16 by each warp.
const WARPGROUP_ROWS: u32 = 64;
/// Rows of A that a warp has.
const WARP_ROWS: u32 = 16;
/// Bytes of each row in a stage: the width of the widest swizzle.
const ROW_BYTES: u32 = 128;
/// Bytes of each row that one product takes.
const STEP_BYTES: u32 = 32;
/// Products along K that are summed before they are added to the accumulators.
const STEPS: usize = 2;
/// Bytes of each row that are summed so. A stage has two such sums.
const SUM_BYTES: u32 = STEPS as u32 * STEP_BYTES;
/// Warps that split B: all of the first warpgroup but the one whose thread loads.
const SPLITTERS: u32 = 3;
/// Chunks of 16 bytes that a splitter has in registers at a time.
const CHUNKS: u32 = 4;
/// Registers of a thread of the first warpgroup. With those of the others they are within the 64 Ki registers of a multiprocessor.
const REGISTERS_OF_OTHERS: u32 = 40;
/// Registers of a multiplying thread where two warpgroups multiply, in one block of a multiprocessor.
const REGISTERS_OF_TWO: u32 = 232;
/// Registers of a multiplying thread where one warpgroup multiplies, in each of two blocks.
const REGISTERS_OF_ONE: u32 = 216;

/// The accumulators of a warpgroup: of `PARTS` products side by side, each thread's share.
#[derive(Clone, Copy)]
pub struct Parts<C, const PARTS: usize>([C; PARTS]);

impl Loaded for SplitFragments {
    #[inline(always)]
    fn hold(&mut self) {
        self.big.hold();
        self.small.hold();
    }
}

impl<C: Accumulators, const PARTS: usize> Loaded for Parts<C, PARTS> {
    #[inline(always)]
    fn hold(&mut self) {
        self.0.iter_mut().for_each(Accumulators::hold);
    }
}

/// Accumulators to which others can be added.
pub trait Addend: Accumulators {
    /// `self += other`, each number rounded to nearest.
    fn add(&mut self, other: &Self);
}

macro_rules! addend {
    ($($registers:literal)*) => {
        $(
            impl Addend for [f32; $registers] {
                #[inline(always)]
                fn add(&mut self, other: &Self) {
                    for i in 0..$registers {
                        self[i] += other[i];
                    }
                }
            }
        )*
    };
}
addend!(32 64);

/// The shape of a block's tile, and how its warps and its shared memory are arranged.
///
/// Each operand is described by a tensor map of three dimensions, K, the rows and the matrices, with the 128-byte swizzle and
/// boxes of 128 bytes × [`A_BOX_ROWS`](Self::A_BOX_ROWS) or [`B_BOX_ROWS`](Self::B_BOX_ROWS) rows × 1.
pub trait SplitTile: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Blocks of a cluster, whose tiles are neighbours along M.
    const CLUSTER_M: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Columns of K that are copied at a time.
    const STAGE_K: u32 = ROW_BYTES / 4;
    /// Rows of A that are copied at a time.
    const A_BOX_ROWS: u32;
    /// Rows of B that are copied at a time.
    const B_BOX_ROWS: u32;

    /// A warpgroup's accumulators.
    type Accumulators: Copy;
    /// What the loading thread knows.
    type Loader;
    /// What a splitting thread knows.
    type Splitter;
    /// What a multiplying thread knows.
    type Multiplier;

    /// The tiles that this block works on, of an output of `matrices` matrices of `rows` × `columns`.
    fn tiles(rows: u32, columns: u32, matrices: u32) -> PersistentTiles {
        let (tiles_m, tiles_n) = (rows.div_ceil(Self::BLOCK_M), columns.div_ceil(Self::BLOCK_N));
        PersistentTiles::new(tiles_m, tiles_n, matrices, [Self::CLUSTER_M, 1])
    }

    /// Prepares the block's shared memory.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else that uses shared memory, in blocks of `THREADS` threads with
    /// `SHARED_BYTES` bytes of dynamic shared memory and in clusters of `CLUSTER_M` blocks along x.
    unsafe fn start();

    /// Whether this thread multiplies, rather than prepares operands.
    fn multiplies() -> bool;

    /// The multiplier that this thread belongs to.
    ///
    /// # Safety
    ///
    /// All threads of a warpgroup that [`multiplies`](Self::multiplies) call it once, after [`start`](Self::start).
    unsafe fn multiplier() -> Self::Multiplier;

    /// Hands registers to the multipliers.
    ///
    /// # Safety
    ///
    /// All threads of the warpgroup that does not [multiply](Self::multiplies) call it once, after [`start`](Self::start).
    unsafe fn hand_over_registers();

    /// The splitter that this thread belongs to, if it does not [multiply](Self::multiplies) and is one.
    fn splitter() -> Option<Self::Splitter>;

    /// The loader, if this thread is it: one that neither [multiplies](Self::multiplies) nor [splits](Self::splitter).
    fn loader() -> Option<Self::Loader>;

    /// Copies the rows of A and of B that output tile `tile` needs, `steps` × [`STAGE_K`](Self::STAGE_K) columns of each.
    ///
    /// # Safety
    ///
    /// The loaders of all blocks of the cluster call it, each for its own tile, and for each call the block's splitters call
    /// [`split`](Self::split) and its multipliers [`multiply`](Self::multiply) with the same number of steps. The maps describe
    /// K-major matrices of f32 as the trait and `layouts` say, valid for reads, and nothing writes them while the kernel runs.
    unsafe fn load(
        loader: &mut Self::Loader,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tile: TileIndex,
    );

    /// Writes the small parts of the rows of B that [`load`](Self::load) copies.
    ///
    /// # Safety
    ///
    /// All splitters of the block call it, for each of the loader's calls and with as many steps.
    unsafe fn split(splitter: &mut Self::Splitter, steps: u32);

    /// The product of the rows that [`load`](Self::load) has copied.
    ///
    /// # Safety
    ///
    /// All multipliers of the block call it, for each of the loader's calls and with as many steps.
    unsafe fn multiply(multiplier: &mut Self::Multiplier, steps: u32) -> Self::Accumulators;

    /// Applies `epilogue` to the accumulators, rounds them, and stores those that are within the output. Those that are not finite are
    /// added up again before, as `sums` says.
    ///
    /// # Safety
    ///
    /// All multipliers call it with what [`multiply`](Self::multiply) returned for `tile`. The output is valid for writes and no
    /// other block touches this tile of it. `epilogue` may be asked for every row and column of the output, `sums` for every element.
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: Self::Accumulators,
        sums: &impl Sums,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    );

    /// Ends the loader's work, when no block of the cluster needs this one any more.
    ///
    /// # Safety
    ///
    /// The loader calls it after its last [`load`](Self::load), and ends its thread after it.
    unsafe fn finish(loader: Self::Loader);
}

/// A tile of `CONSUMERS` warpgroups × 64 rows and `PARTS` × as many columns as the accumulators `C` are for. It has a
/// ring of `RAW` stages of A and B, and one of `SMALL` stages of the small parts of B. Clusters have `CLUSTER` blocks.
pub struct WgmmaF32Tile<
    C,
    const PARTS: usize,
    const CONSUMERS: u32,
    const RAW: u32,
    const SMALL: u32,
    const CLUSTER: u32,
>(PhantomData<C>);

/// Fragments of A over the columns of K of a sum, in two parts.
struct SplitFragments {
    big: [[u32; 4]; STEPS],
    small: [[u32; 4]; STEPS],
}

/// A splitting thread: it reads stages of one ring and writes those of the other.
pub struct Splitter<const RAW: u32, const SMALL: u32, const CLUSTER: u32> {
    raw: Consumer<RAW, CLUSTER, GenericProxy>,
    small: Producer<SMALL, 1>,
}

/// A multiplying thread: it reads stages of both rings.
pub struct Multiplier<const RAW: u32, const SMALL: u32, const CLUSTER: u32> {
    raw: Consumer<RAW, CLUSTER, GenericProxy>,
    small: Consumer<SMALL, 1, AsyncProxy>,
}

impl<
    C: Addend,
    const PARTS: usize,
    const CONSUMERS: u32,
    const RAW: u32,
    const SMALL: u32,
    const CLUSTER: u32,
> WgmmaF32Tile<C, PARTS, CONSUMERS, RAW, SMALL, CLUSTER>
{
    /// Bytes of a stage's rows of A, which its rows of B follow.
    const A_BYTES: u32 = CONSUMERS * WARPGROUP_ROWS * ROW_BYTES;
    /// Bytes of a stage's rows of B, and of their small parts.
    const B_BYTES: u32 = Self::COLUMNS * ROW_BYTES;
    /// Columns of the tile.
    const COLUMNS: u32 = PARTS as u32 * C::COLUMNS;
    /// Where the ring of small parts follows the other.
    const SMALL_AT: u32 = RAW * (Self::A_BYTES + Self::B_BYTES);
    /// Where the multipliers' staging buffers follow the rings.
    const STAGING_AT: u32 = Self::SMALL_AT + SMALL * Self::B_BYTES;
    /// Where the barriers follow the staging buffers: those of the first ring, then those of the second.
    const BARRIERS_AT: u32 = Self::STAGING_AT + 4 * CONSUMERS * STAGING_BYTES;
    /// Whether a stage's two sums are on their way at the same time, each in registers of its own, where there are enough.
    const SUMS_TOGETHER: bool = PARTS == 1 && C::COLUMNS <= 64;

    #[inline(always)]
    fn raw() -> Pipeline<RAW, CLUSTER> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::BARRIERS_AT))
    }

    #[inline(always)]
    fn small() -> Pipeline<SMALL, 1> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::BARRIERS_AT + Pipeline::<RAW, CLUSTER>::BYTES))
    }

    /// The place of a stage's rows of A.
    #[inline(always)]
    fn a_rows(stage: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(stage * (Self::A_BYTES + Self::B_BYTES))
    }

    /// The place of a stage's rows of B.
    #[inline(always)]
    fn b_rows(stage: u32) -> SharedAddress {
        Self::a_rows(stage).offset(Self::A_BYTES)
    }

    /// The place of the small parts in a stage of their ring.
    #[inline(always)]
    fn small_rows(stage: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(Self::SMALL_AT + stage * Self::B_BYTES)
    }

    /// Loads the fragments of A of the columns of K from `along_k` on, whose first is at `fragments`, and splits them.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, and the stage is full.
    #[inline(always)]
    unsafe fn load_a(fragments: u32, along_k: u32) -> SplitFragments {
        let mut big = [[0; 4]; STEPS];
        for (step, words) in big.iter_mut().enumerate() {
            // The swizzle makes a step an exclusive or: see `layout`.
            // SAFETY: the caller's promise.
            *words = unsafe { ptx::ldmatrix_x4(fragments ^ (along_k + step as u32 * STEP_BYTES)) };
        }
        let mut small = big.map(small_parts);
        // They are written before the fence that the products are issued after.
        big.iter_mut().chain(&mut small).for_each(ptx::hold_registers);
        SplitFragments { big, small }
    }

    /// Starts the products of `a` with the rows of B at `big_b`, whose small parts are at `small_b`, as a group.
    ///
    /// # Safety
    ///
    /// As [`WgmmaRegisters::wgmma_registers`].
    #[inline(always)]
    unsafe fn start_sum(a: &SplitFragments, big_b: MatrixDescriptor, small_b: MatrixDescriptor) -> C
    where
        f32: WgmmaRegisters<C>,
    {
        let along = |b: MatrixDescriptor, step: usize| b.advance(step as u32 * STEP_BYTES);
        let mut sum = C::arbitrary();
        // SAFETY: the caller's promise.
        unsafe {
            ptx::wgmma_fence();
            // The small ones first: a sum loses bits in proportion to what it already is.
            f32::wgmma_registers::<false>(&mut sum, a.small[0], big_b);
            for step in 1..STEPS {
                f32::wgmma_registers::<true>(&mut sum, a.small[step], along(big_b, step));
            }
            for step in 0..STEPS {
                f32::wgmma_registers::<true>(&mut sum, a.big[step], along(small_b, step));
            }
            for step in 0..STEPS {
                f32::wgmma_registers::<true>(&mut sum, a.big[step], along(big_b, step));
            }
            ptx::wgmma_commit_group();
        }
        sum
    }
}

impl<
    C: Addend,
    const PARTS: usize,
    const CONSUMERS: u32,
    const RAW: u32,
    const SMALL: u32,
    const CLUSTER: u32,
> SplitTile for WgmmaF32Tile<C, PARTS, CONSUMERS, RAW, SMALL, CLUSTER>
where
    f32: WgmmaRegisters<C>,
{
    const BLOCK_M: u32 = CONSUMERS * WARPGROUP_ROWS;
    const BLOCK_N: u32 = Self::COLUMNS;
    const CLUSTER_M: u32 = CLUSTER;
    const THREADS: u32 = (1 + CONSUMERS) * WARPGROUP;
    const MIN_BLOCKS: u32 = if CONSUMERS == 1 { 2 } else { 1 };
    const SHARED_BYTES: u32 =
        Self::BARRIERS_AT + Pipeline::<RAW, CLUSTER>::BYTES + Pipeline::<SMALL, 1>::BYTES;
    const A_BOX_ROWS: u32 = Self::BLOCK_M;
    const B_BOX_ROWS: u32 = {
        assert!((Self::BLOCK_N / CLUSTER).is_multiple_of(8), "a share of B is whole units of the swizzle");
        Self::BLOCK_N / CLUSTER
    };

    type Accumulators = Parts<C, PARTS>;
    type Loader = Producer<RAW, CLUSTER>;
    type Splitter = Splitter<RAW, SMALL, CLUSTER>;
    type Multiplier = Multiplier<RAW, SMALL, CLUSTER>;

    #[inline(always)]
    unsafe fn start() {
        // SAFETY: all threads of the cluster are here; one makes the barriers, and the others wait for it.
        unsafe {
            if thread::thread_idx_x() == 0 {
                Self::raw().init(4 * CONSUMERS);
                Self::small().init_between_warps(SPLITTERS, 4 * CONSUMERS);
            }
            if CLUSTER > 1 {
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            } else {
                thread::sync_threads();
            }
        }
    }

    #[inline(always)]
    fn multiplies() -> bool {
        thread::thread_idx_x() >= WARPGROUP
    }

    #[inline(always)]
    unsafe fn multiplier() -> Self::Multiplier {
        // SAFETY: the whole warpgroup is here, and the first one gives back as many registers.
        unsafe {
            if CONSUMERS == 2 {
                ptx::setmaxnreg_inc::<REGISTERS_OF_TWO>();
            } else {
                ptx::setmaxnreg_inc::<REGISTERS_OF_ONE>();
            }
        }
        Multiplier { raw: Self::raw().consumer(), small: Self::small().consumer() }
    }

    #[inline(always)]
    unsafe fn hand_over_registers() {
        // SAFETY: the whole warpgroup is here.
        unsafe { ptx::setmaxnreg_dec::<REGISTERS_OF_OTHERS>() };
    }

    #[inline(always)]
    fn splitter() -> Option<Self::Splitter> {
        let splitter = || Splitter { raw: Self::raw().consumer(), small: Self::small().producer() };
        (thread::thread_idx_x() >= warp::SIZE).then(splitter)
    }

    #[inline(always)]
    fn loader() -> Option<Self::Loader> {
        (thread::thread_idx_x() == 0).then(|| Self::raw().producer())
    }

    #[inline(always)]
    unsafe fn load(
        loader: &mut Self::Loader,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tile: TileIndex,
    ) {
        let (row_a, row_b) = ((tile.m * Self::BLOCK_M) as i32, (tile.n * Self::BLOCK_N) as i32);
        let batch_a = layouts.matrix_of_a(tile.batch) as i32;
        let batch_b = layouts.matrix_of_b(tile.batch) as i32;
        for step in 0..steps {
            let k = (step * Self::STAGE_K) as i32;
            // SAFETY: a stage's bytes come from the boxes of A and of B, in a cluster the shares of all blocks, which are
            // all at the same step; nothing touches the stage before it is full. The rest is the caller's promise.
            unsafe {
                let stage = loader.acquire(Self::A_BYTES + Self::B_BYTES);
                let (to_a, to_b) = (Self::a_rows(stage.index).get(), Self::b_rows(stage.index));
                let full = stage.full.address();
                ptx::tma_load_3d(to_a, a.address(), [k, row_a, batch_a], full);
                if CLUSTER > 1 {
                    let share = ptx::cluster_ctarank() * Self::B_BOX_ROWS;
                    let (to_b, row_b) = (to_b.offset(share * ROW_BYTES), row_b + share as i32);
                    let all = ((1u32 << CLUSTER) - 1) as u16;
                    ptx::tma_load_3d_multicast(to_b.get(), b.address(), [k, row_b, batch_b], full, all);
                } else {
                    ptx::tma_load_3d(to_b.get(), b.address(), [k, row_b, batch_b], full);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn split(splitter: &mut Self::Splitter, steps: u32) {
        const THREADS: u32 = SPLITTERS * warp::SIZE;
        let own = (thread::thread_idx_x() - warp::SIZE) * CHUNK_BYTES;
        for _ in 0..steps {
            // SAFETY: the stage read is full. The multipliers give it back, who wait for what is written here: the fence of `written` is
            // behind these loads, too. The stage written is free; each chunk of it is this thread's only.
            unsafe {
                let raw = splitter.raw.wait();
                let small = splitter.small.acquire_to_write();
                let (from, to) = (raw.address(Self::b_rows), Self::small_rows(small.index));
                let mut first = own;
                // Not unrolled: the loads of one round are enough to hide their latency.
                let end = ptx::opaque(Self::B_BYTES);
                while first < end {
                    let mut chunks = [[0; 4]; CHUNKS as usize];
                    for (i, chunk) in chunks.iter_mut().enumerate() {
                        let at = first + i as u32 * (THREADS * CHUNK_BYTES);
                        if at < end {
                            *chunk = ptx::ld_shared_v4_b32(from.offset(at).get());
                        }
                    }
                    for (i, chunk) in chunks.iter().enumerate() {
                        let at = first + i as u32 * (THREADS * CHUNK_BYTES);
                        if at < end {
                            ptx::st_shared_v4_b32(to.offset(at).get(), small_parts(*chunk));
                        }
                    }
                    first += CHUNKS * THREADS * CHUNK_BYTES;
                }
                splitter.small.written(small);
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply(multiplier: &mut Self::Multiplier, steps: u32) -> Parts<C, PARTS> {
        let own = {
            let at = a_fragment_chunk(warp::lane_id());
            let first_row = (warp::warp_id() - 4) * WARP_ROWS;
            first_row * ROW_BYTES + swizzled_chunk(ROW_BYTES, at.row, at.chunk)
        };
        let mut accumulators = Parts([C::zero(); PARTS]);
        for _ in 0..steps {
            // SAFETY: all warps of the warpgroup run this loop alike; both stages are full, and they are given back when the
            // products that read them have completed, and with them the loads of what these multiply.
            unsafe {
                let raw = multiplier.raw.wait();
                let fragments = raw.address(Self::a_rows).get() + own;
                let big_b = raw.operand(Self::b_rows).rows_of_128_bytes();
                let small = multiplier.small.wait();
                let small_b = small.operand(Self::small_rows).rows_of_128_bytes();
                let raw = if Self::SUMS_TOGETHER {
                    let mut a = [0, SUM_BYTES].map(|along_k| Self::load_a(fragments, along_k));
                    let mut first = Self::start_sum(&a[0], big_b, small_b);
                    let mut second =
                        Self::start_sum(&a[1], big_b.advance(SUM_BYTES), small_b.advance(SUM_BYTES));
                    // While the products run: the fence takes time.
                    let raw = raw.end_loads(&mut a);
                    ptx::wgmma_wait_group::<1>();
                    first.hold();
                    accumulators.0[0].add(&first);
                    ptx::wgmma_wait_group::<0>();
                    second.hold();
                    accumulators.0[0].add(&second);
                    raw
                } else {
                    // Not unrolled: the sums take the same registers every time.
                    let end = ptx::opaque(ROW_BYTES);
                    let mut along_k = 0;
                    while along_k < end {
                        let a = Self::load_a(fragments, along_k);
                        for (part, accumulators) in accumulators.0.iter_mut().enumerate() {
                            let from = part as u32 * C::COLUMNS * ROW_BYTES + along_k;
                            let mut sum = Self::start_sum(&a, big_b.advance(from), small_b.advance(from));
                            ptx::wgmma_wait_group::<0>();
                            sum.hold();
                            // Always so, but ptxas does not know it: it would put the additions off to the loop's end, and
                            // have every sum take registers of its own until then.
                            if raw.is_of_ring(RAW) {
                                accumulators.add(&sum);
                                accumulators.hold();
                            }
                        }
                        along_k += SUM_BYTES;
                    }
                    raw.end_loads(&mut accumulators)
                };
                multiplier.raw.release(raw);
                multiplier.small.release(small);
            }
        }
        accumulators
    }

    #[inline(always)]
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: Parts<C, PARTS>,
        sums: &impl Sums,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    ) {
        // Opaque: what follows from it is worth no register while the products run.
        let thread = ptx::opaque(thread::thread_idx_x());
        let warp = thread / warp::SIZE - 4;
        let staging = SharedAddress::dynamic().offset(Self::STAGING_AT + warp * STAGING_BYTES);
        let at = Coord { row: tile.m * Self::BLOCK_M + warp * WARP_ROWS, column: tile.n * Self::BLOCK_N };
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer.
        unsafe { store::store(&accumulators, sums, epilogue, output, at, thread % warp::SIZE, staging) };
    }

    #[inline(always)]
    unsafe fn finish(loader: Self::Loader) {
        if CLUSTER > 1 {
            // SAFETY: the caller's promise.
            unsafe { loader.drain() };
        }
    }
}
