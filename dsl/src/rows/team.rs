//! The threads that share a row.

use crate::rows::THREADS;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// The most blocks of a cluster.
const MAX_BLOCKS: u32 = 16;
const WARPS: u32 = THREADS / warp::SIZE;
/// Bytes of a warp's numbers.
const SLOT: u32 = 16;
/// Bytes of the numbers of all warps of a cluster. Every other time they are in another place, so that no warp has to wait until all have read.
const PLACE: u32 = WARPS * MAX_BLOCKS * SLOT;
/// Shared memory of a block, in bytes.
pub const SHARED_BYTES: u32 = 2 * PLACE;
/// The most numbers that are summed at once.
const MOST: usize = 4;

/// The threads that share a row: a power of two of a block's, or, if `CLUSTER`, all threads of a cluster's blocks. All blocks of a grid have [`THREADS`]
/// threads.
pub struct Team<const CLUSTER: bool> {
    /// This thread's place in its team.
    pub rank: u32,
    /// How many threads a team has.
    pub threads: u32,
    /// Rows that the grid has at a time.
    pub step: u32,
    /// The row that the first team of this block begins with.
    pub first: u32,
    /// This team's place among the block's.
    pub index: u32,
    /// Threads of this block in a team.
    in_block: u32,
    place: u32,
}

impl<const CLUSTER: bool> Team<CLUSTER> {
    /// The team of this thread, where `threads` of a block share a row; of a cluster all do.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it, with the same power of two up to [`THREADS`]. The block has [`SHARED_BYTES`] of shared memory for it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(threads: u32) -> Self {
        let (block, grid, id) = (thread::block_idx_x(), thread::grid_dim_x(), thread::thread_idx_x());
        if CLUSTER {
            // SAFETY: all threads come here; no block may write to another that has not begun.
            unsafe {
                ptx::barrier_cluster_arrive_relaxed();
                ptx::barrier_cluster_wait();
            }
            let (blocks, of_cluster) = (ptx::cluster_nctarank(), ptx::cluster_ctarank());
            return Self {
                rank: of_cluster * THREADS + id,
                threads: blocks * THREADS,
                step: ptx::nclusterid_x(),
                first: ptx::clusterid_x(),
                index: 0,
                in_block: THREADS,
                place: 0,
            };
        }
        // A power of two, which the compiler cannot know.
        let shift = threads.trailing_zeros();
        let teams = THREADS >> shift;
        Self {
            rank: id & (threads - 1),
            threads,
            step: grid * teams,
            first: block * teams,
            index: id >> shift,
            in_block: threads,
            place: 0,
        }
    }

    /// How many of this block's threads have the same row.
    #[inline(always)]
    #[must_use]
    pub fn in_block(&self) -> u32 {
        self.in_block
    }

    /// The sums of the threads' numbers, the same bits in all of them.
    ///
    /// # Safety
    ///
    /// All threads of the block, or of the cluster, call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn sum<const N: usize>(&mut self, values: [f32; N]) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { self.reduce(values, 0.0, |a, b| a + b) }
    }

    /// The largest of the threads' numbers; NaN if any is NaN.
    ///
    /// # Safety
    ///
    /// All threads of the block, or of the cluster, call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn max(&mut self, value: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.reduce([value], f32::NEG_INFINITY, ptx::max_nan)[0] }
    }

    #[inline(always)]
    unsafe fn reduce<const N: usize>(
        &mut self,
        mut values: [f32; N],
        nothing: f32,
        f: impl Fn(f32, f32) -> f32 + Copy,
    ) -> [f32; N] {
        const { assert!(N <= MOST, "a slot has four numbers") };
        let lanes = if self.in_block < warp::SIZE { self.in_block } else { warp::SIZE };
        // SAFETY: the caller's promise.
        unsafe { over_lanes(&mut values, lanes, f) };
        if !CLUSTER && self.in_block <= warp::SIZE {
            return values;
        }
        let (lane, warp) = (warp::lane_id(), warp::warp_id());
        let place = SharedAddress::dynamic().offset(self.place);
        self.place ^= PLACE;
        let mut slot = [0.0; 4];
        for i in 0..N {
            slot[i] = values[i];
        }
        let (first, slots);
        if CLUSTER {
            let (blocks, own) = (ptx::cluster_nctarank(), ptx::cluster_ctarank() * WARPS + warp);
            (first, slots) = (0, blocks * WARPS);
            // SAFETY: the place is this warp's in each block; whoever read it last has come to the barrier since.
            unsafe {
                if lane < blocks {
                    ptx::st_shared_cluster_v4_f32(ptx::mapa(place.offset(own * SLOT).get(), lane), slot);
                }
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            }
        } else {
            slots = self.in_block / warp::SIZE;
            first = self.index * slots;
            // SAFETY: as above. A block has at most four teams of several warps, each of which has a barrier.
            unsafe {
                if lane == 0 {
                    ptx::st_shared_v4_f32(place.offset(warp * SLOT).get(), slot);
                }
                ptx::bar_sync_at(1 + self.index, self.in_block);
            }
        }
        for i in 0..N {
            values[i] = nothing;
        }
        let mut at = lane;
        while at < slots {
            // SAFETY: written before the barrier.
            let slot = unsafe { ptx::ld_shared_v4_f32(place.offset((first + at) * SLOT).get()) };
            for i in 0..N {
                values[i] = f(values[i], slot[i]);
            }
            at += warp::SIZE;
        }
        // SAFETY: the caller's promise.
        unsafe { over_lanes(&mut values, warp::SIZE, f) };
        values
    }
}

/// What `f` makes of the numbers of `lanes` neighbouring lanes, a power of two.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_lanes<const N: usize>(values: &mut [f32; N], lanes: u32, f: impl Fn(f32, f32) -> f32) {
    let mut mask = 1;
    while mask < lanes {
        for i in 0..N {
            // SAFETY: the caller's promise.
            let other = f32::from_bits(unsafe { ptx::shfl_sync_bfly(values[i].to_bits(), mask) });
            values[i] = f(values[i], other);
        }
        mask *= 2;
    }
}
