//! The threads that share a row.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::rows::{Exponentials, THREADS};
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// The most blocks of a cluster.
const MAX_BLOCKS: u32 = 16;
const WARPS: u32 = THREADS / warp::SIZE;
/// The most numbers that are handed over at once.
const MOST: usize = 4;
/// Bytes of them.
const SLOT: u32 = 4 * MOST as u32;
/// Bytes of the numbers of a block's warps, and of a cluster's blocks. Every other time they are in another place, so that no warp has to wait until all have read.
const OF_WARPS: u32 = WARPS * SLOT;
const OF_BLOCKS: u32 = MAX_BLOCKS * SLOT;
/// Bytes of a block's two mbarriers, one for each place.
const OF_BARRIERS: u32 = 2 * 8;
/// Bytes of what the threads of a block hand over to each other, at most two numbers each, and where that is.
const OF_THREADS: u32 = THREADS * 8;
const FROM_THREADS: u32 = 2 * (OF_WARPS + OF_BLOCKS) + OF_BARRIERS;
/// Shared memory of a block, in bytes.
pub const SHARED_BYTES: u32 = FROM_THREADS + 2 * OF_THREADS;

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
    /// Which place numbers of warps, and of blocks, are in next: 0 or 1.
    places: [u32; 2],
    /// The parity of the phase that each place's mbarrier is in, as a bit.
    phases: u32,
    /// Whether all blocks of the cluster are known to have begun.
    have_begun: bool,
}

/// The sum of what a thread has of each of its `CHUNKS` chunks, a power of two: the upper half and the lower half of them are added first, as [`Team::sum`] goes
/// on with threads.
#[derive(Clone, Copy)]
pub struct OverChunks<const CHUNKS: usize>([f32; 2]);

impl<const CHUNKS: usize> OverChunks<CHUNKS> {
    /// Of no chunk.
    pub const NOTHING: Self = Self([-0.0; 2]);

    /// Adds what there is of chunk `chunk`; of the chunks in their order, some of which may be left out at the end.
    #[inline(always)]
    pub fn add(&mut self, chunk: usize, sum: f32) {
        const { assert!(CHUNKS == 1 || CHUNKS == 2 || CHUNKS == 4, "a thread has one, two or four chunks") };
        let place = if CHUNKS == 4 { chunk % 2 } else { 0 };
        self.0[place] += sum;
    }

    /// The sum.
    #[inline(always)]
    #[must_use]
    pub fn sum(self) -> f32 {
        self.0[0] + self.0[1]
    }
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
            // SAFETY: all threads come here, and wait before one block writes to another, which must have begun and have its mbarriers.
            unsafe {
                if id == 0 {
                    ptx::mbarrier_init(barrier(0).get(), 1);
                    ptx::mbarrier_init(barrier(1).get(), 1);
                    ptx::fence_mbarrier_init();
                }
                ptx::barrier_cluster_arrive_relaxed();
            }
            let (blocks, of_cluster) = (ptx::cluster_nctarank(), ptx::cluster_ctarank());
            return Self {
                rank: of_cluster * THREADS + id,
                threads: blocks * THREADS,
                step: ptx::nclusterid_x(),
                first: ptx::clusterid_x(),
                places: [0; 2],
                phases: 0,
                have_begun: !CLUSTER,
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
            places: [0; 2],
            phases: 0,
            have_begun: !CLUSTER,
        }
    }

    /// The row of this team, if it has only one; there may be none of that number.
    #[inline(always)]
    #[must_use]
    pub fn row(&self) -> u32 {
        self.first + self.index()
    }

    /// This team's place among the block's, found anew at each call so that it takes no register meanwhile.
    #[inline(always)]
    #[must_use]
    pub fn index(&self) -> u32 {
        if CLUSTER { 0 } else { ptx::tid_x_anew() >> self.threads.trailing_zeros() }
    }

    /// How many of this block's threads have the same row.
    #[inline(always)]
    #[must_use]
    pub fn in_block(&self) -> u32 {
        if CLUSTER { THREADS } else { self.threads }
    }

    /// The sums of the threads' numbers, the same bits in all of them.
    ///
    /// A block's are a balanced tree: those of its upper half and of its lower half are added first. If a thread's number is that [of its chunks](OverChunks), so
    /// is the whole tree, and twice as many threads with half the chunks add up the same bits.
    ///
    /// # Safety
    ///
    /// All threads of the block, or of the cluster, call it, with at most two numbers. Where a block has several teams of several warps, it is always as many.
    #[inline(always)]
    #[must_use]
    pub unsafe fn sum<const N: usize>(&mut self, values: [f32; N]) -> [f32; N] {
        // What is added to any number without changing it.
        // SAFETY: the caller's promise.
        unsafe { self.reduce(values, -0.0, |a, b| a + b) }
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

    /// What a norm asks of the numbers of a row: their mean as it is rounded, and the sums of differences to it and of their squares. `total` is the sum of this
    /// thread's numbers, `differences` gives its sums for any number in the place of the mean, and `inverse` is 1 over how many numbers there are. A cluster's
    /// block has `count` of them, as [`Columns::count_of_block`](crate::rows::Columns::count_of_block) gives.
    ///
    /// The blocks of a cluster, which wait for each other longest, meet once: each takes differences to its own mean.
    ///
    /// # Safety
    ///
    /// All threads of the block, or of the cluster, call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn moments(
        &mut self,
        total: f32,
        differences: impl FnOnce(f32) -> [f32; 2],
        inverse: f32,
        count: f32,
    ) -> (f32, [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            if !CLUSTER {
                let [total] = self.sum([total]);
                let mean = total * inverse;
                return (mean, self.sum(differences(mean)));
            }
            let add = |a: f32, b: f32| a + b;
            let [total] = self.block_reduce([total], 0.0, add);
            let own = if count == 0.0 { 0.0 } else { total * ptx::rcp_approx_ftz(count) };
            let sums = self.block_reduce(differences(own), 0.0, add);
            let [own, sum, squares, count] = self.of_block([own, sums[0], sums[1], count], [0.0; MOST]);
            let first = f32::from_bits(ptx::shfl_sync_idx(own.to_bits(), 0));
            let mut rest = [ptx::fma(count, own - first, sum)];
            over_lanes(&mut rest, warp::SIZE, add);
            let mean = ptx::fma(rest[0], inverse, first);
            let apart = own - mean;
            let sum_apart = ptx::fma(count, apart, sum);
            let mut sums = [sum_apart, ptx::fma(apart, sum_apart + sum, squares)];
            over_lanes(&mut sums, warp::SIZE, add);
            (mean, sums)
        }
    }

    /// The largest of all threads' numbers, the sum of exponentials relative to it, and the sum of another number: the same bits in all of them.
    ///
    /// Each level's threads meet once: they hand over what is relative to their own largest number.
    ///
    /// # Safety
    ///
    /// All threads of the block, or of the cluster, call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn exponentials(&mut self, own: Exponentials, other: f32, factor: f32) -> (Exponentials, f32) {
        const NOTHING: [f32; MOST] = [f32::NEG_INFINITY, 0.0, 0.0, 0.0];
        let add = |a: f32, b: f32| a + b;
        // SAFETY: the caller's promise.
        unsafe {
            let over = |[max, sum, other, _]: [f32; MOST], lanes: u32| {
                let mut most = [max];
                over_lanes(&mut most, lanes, ptx::max_nan);
                let mut sums = [sum * Exponentials::of(max, most[0], factor), other];
                over_lanes(&mut sums, lanes, add);
                [most[0], sums[0], sums[1], 0.0]
            };
            let mut all = over([own.max, own.sum, other, 0.0], self.lanes());
            if self.in_block() > warp::SIZE {
                all = over(self.of_warp(all, NOTHING), WARPS);
                for i in 0..3 {
                    all[i] = f32::from_bits(ptx::shfl_sync_idx(all[i].to_bits(), 0));
                }
            }
            if CLUSTER {
                all = over(self.of_block(all, NOTHING), warp::SIZE);
            }
            let [max, sum, other, _] = all;
            (Exponentials { max, sum }, other)
        }
    }

    /// Lanes of a warp that have the same row.
    #[inline(always)]
    fn lanes(&self) -> u32 {
        if self.in_block() < warp::SIZE { self.in_block() } else { warp::SIZE }
    }

    #[inline(always)]
    unsafe fn reduce<const N: usize>(
        &mut self,
        values: [f32; N],
        nothing: f32,
        f: impl Fn(f32, f32) -> f32 + Copy,
    ) -> [f32; N] {
        // SAFETY: the caller's promise.
        let mut values = unsafe { self.block_reduce(values, nothing, f) };
        if CLUSTER {
            // SAFETY: the caller's promise.
            values = first(unsafe { self.of_block(slot(values), [nothing; MOST]) });
            // SAFETY: the caller's promise.
            unsafe { over_lanes(&mut values, warp::SIZE, f) };
        }
        values
    }

    /// The same of this block's threads alone.
    #[inline(always)]
    unsafe fn block_reduce<const N: usize>(
        &mut self,
        mut values: [f32; N],
        nothing: f32,
        f: impl Fn(f32, f32) -> f32 + Copy,
    ) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe {
            if self.in_block() > warp::SIZE {
                self.over_warps(&mut values, nothing, f);
            }
            over_lanes(&mut values, self.lanes(), f);
        }
        values
    }

    /// What `f` makes of the numbers that the same lanes of the warps that share a row have. `f` leaves a number as it is if the other one is `nothing`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; several warps share a row.
    #[inline(always)]
    unsafe fn over_warps<const N: usize>(
        &mut self,
        values: &mut [f32; N],
        nothing: f32,
        f: impl Fn(f32, f32) -> f32 + Copy,
    ) {
        const { assert!(N <= 2, "a thread hands over two numbers at most") };
        let (bytes, id) = (4 * N as u32, ptx::tid_x_anew());
        let place = SharedAddress::dynamic().offset(FROM_THREADS + self.places[0] * OF_THREADS);
        self.places[0] ^= 1;
        let (warps, index) = (self.in_block() / warp::SIZE, self.index());
        let first = index * self.in_block() + (id & (warp::SIZE - 1));
        let mut all = [[nothing; N]; WARPS as usize];
        // SAFETY: each thread has a place of its own, since all hand over as many numbers; whoever read it last has come to the barrier since. A team has two, four or eight warps.
        unsafe {
            let own = place.offset(id * bytes).get();
            if N == 2 {
                ptx::st_shared_v2_f32(own, [values[0], values[N - 1]]);
            } else {
                ptx::st_shared_f32(own, values[0]);
            }
            ptx::bar_sync_at(1 + index, self.in_block());
            let of_warp = |warp: usize| -> [f32; N] {
                let at = place.offset((first + warp as u32 * warp::SIZE) * bytes).get();
                let mut read = [nothing; N];
                if N == 2 {
                    [read[0], read[N - 1]] = ptx::ld_shared_v2_f32(at);
                } else {
                    read[0] = ptx::ld_shared_f32(at);
                }
                read
            };
            all[0] = of_warp(0);
            all[1] = of_warp(1);
            if warps > 2 {
                all[2] = of_warp(2);
                all[3] = of_warp(3);
            }
            if warps > 4 {
                all[4] = of_warp(4);
                all[5] = of_warp(5);
                all[6] = of_warp(6);
                all[7] = of_warp(7);
            }
        }
        for i in 0..N {
            let four = |warp: usize| f(all[warp][i], all[warp + 4][i]);
            values[i] = f(f(four(0), four(2)), f(four(1), four(3)));
        }
    }

    /// What warp `lane` of those of this block that share a row has, of what each hands over; `nothing` in lanes without one.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, those of a warp with the same numbers; several warps share a row.
    #[inline(always)]
    unsafe fn of_warp(&mut self, own: [f32; MOST], nothing: [f32; MOST]) -> [f32; MOST] {
        let (lane, warp) = (warp::lane_id(), warp::warp_id());
        let place = SharedAddress::dynamic().offset(self.places[0] * OF_WARPS);
        self.places[0] ^= 1;
        let slots = self.in_block() / warp::SIZE;
        let index = self.index();
        let first = index * slots;
        // SAFETY: the slot is this warp's; whoever read it last has come to the barrier since. A block has at most four teams of several warps, each of which has a
        // barrier.
        unsafe {
            if lane == 0 {
                ptx::st_shared_v4_f32(place.offset(warp * SLOT).get(), own);
            }
            ptx::bar_sync_at(1 + index, self.in_block());
        }
        let mut slot = nothing;
        if lane < slots {
            // SAFETY: written before the barrier.
            slot = unsafe { ptx::ld_shared_v4_f32(place.offset((first + lane) * SLOT).get()) };
        }
        slot
    }

    /// What block `lane` of the cluster has, of what each block hands over; `nothing` in lanes without one.
    ///
    /// An mbarrier counts what comes. Unlike the cluster's barrier, that waits for nothing else: rows of before may still be on their way to memory.
    ///
    /// # Safety
    ///
    /// All threads of the cluster call it, those of a block with the same numbers, and come to a barrier of the block between two calls.
    #[inline(always)]
    unsafe fn of_block(&mut self, own: [f32; MOST], nothing: [f32; MOST]) -> [f32; MOST] {
        let (lane, blocks, at) = (warp::lane_id(), ptx::cluster_nctarank(), self.places[1]);
        let place = SharedAddress::dynamic().offset(2 * OF_WARPS + at * OF_BLOCKS);
        let barrier = barrier(at).get();
        let parity = self.phases >> at & 1;
        self.phases ^= 1 << at;
        self.places[1] ^= 1;
        // SAFETY: the slot is this block's in each block. All of that block's threads have read what was there two calls before: they came to a barrier of their block since, and
        // then it handed over what this one has waited for. No block ends before all have handed over to it.
        unsafe {
            if !self.have_begun {
                ptx::barrier_cluster_wait();
                self.have_begun = true;
            }
            if warp::warp_id() == 0 {
                if lane == 0 {
                    ptx::mbarrier_arrive_expect_tx(barrier, blocks * SLOT);
                }
                if lane < blocks {
                    let to = place.offset(ptx::cluster_ctarank() * SLOT).get();
                    ptx::st_async_v4_f32(ptx::mapa(to, lane), own, ptx::mapa(barrier, lane));
                }
            }
            while !ptx::mbarrier_try_wait_parity(barrier, parity) {}
        }
        let mut slot = nothing;
        if lane < blocks {
            // SAFETY: it has come.
            slot = unsafe { ptx::ld_shared_v4_f32(place.offset(lane * SLOT).get()) };
        }
        slot
    }
}

/// The mbarrier of a place for numbers of blocks.
#[inline(always)]
fn barrier(place: u32) -> SharedAddress {
    SharedAddress::dynamic().offset(2 * (OF_WARPS + OF_BLOCKS) + place * 8)
}

/// Numbers as they are handed over.
#[inline(always)]
fn slot<const N: usize>(values: [f32; N]) -> [f32; MOST] {
    const { assert!(N <= MOST, "a slot has four numbers") };
    let mut slot = [0.0; MOST];
    for i in 0..N {
        slot[i] = values[i];
    }
    slot
}

/// The first numbers that were handed over.
#[inline(always)]
fn first<const N: usize>(slot: [f32; MOST]) -> [f32; N] {
    let mut values = [0.0; N];
    for i in 0..N {
        values[i] = slot[i];
    }
    values
}

/// What `f` makes of the numbers of `lanes` neighbouring lanes, a power of two: of those of the upper half and of the lower half first.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_lanes<const N: usize>(values: &mut [f32; N], lanes: u32, f: impl Fn(f32, f32) -> f32) {
    if lanes == warp::SIZE {
        // As most often: without a loop, whose instructions are more than the sums'.
        for step in 0..warp::SIZE.ilog2() {
            // SAFETY: the caller's promise.
            unsafe { over_pairs(values, (warp::SIZE / 2) >> step, &f) };
        }
        return;
    }
    let mut mask = lanes / 2;
    while mask > 0 {
        // SAFETY: the caller's promise.
        unsafe { over_pairs(values, mask, &f) };
        mask /= 2;
    }
}

/// What `f` makes of the numbers of each two lanes whose places differ by `mask`.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_pairs<const N: usize>(values: &mut [f32; N], mask: u32, f: &impl Fn(f32, f32) -> f32) {
    for i in 0..N {
        // SAFETY: the caller's promise.
        let other = f32::from_bits(unsafe { ptx::shfl_sync_bfly(values[i].to_bits(), mask) });
        values[i] = f(values[i], other);
    }
}
