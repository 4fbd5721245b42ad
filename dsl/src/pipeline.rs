//! A ring of stages in shared memory between a thread that has them filled by asynchronous copies and warps that read them.
//!
//! The [`Producer`] waits for a free stage, announces the bytes it is about to copy there and gets the stage; each consuming
//! warp's [`Consumer`] waits for the next full stage and gives it back when the warp has read it. Each stage has two barriers, one
//! that completes when it is full and one that completes when it is free. Which phase they are in is known here and nowhere else.
//!
//! In a cluster of `BLOCKS` blocks the producers fill each other's stages, in step: a stage is free when the consumers of all
//! blocks have given it back.
//!
//! # Proxies
//!
//! The copy engine and `wgmma` access shared memory through the *async proxy*, loads and stores through the *generic proxy*. A `wgmma` has
//! read its stage when it has completed. A load may still be under way when its thread arrives at a barrier: only a proxy fence orders it
//! before the copy that fills the stage again. So a stage's type says what may read it. [`FullStage::end_loads`] is the fence, and makes of a
//! stage for loads one that can be given back.

use core::marker::PhantomData;

use crate::barrier::Barrier;
use crate::ptx::{self, MatrixDescriptor};
use crate::shared::SharedAddress;
use crate::warp;

/// The barriers of a ring of `STAGES` stages in each of `BLOCKS` blocks.
#[derive(Clone, Copy)]
pub struct Pipeline<const STAGES: u32, const BLOCKS: u32> {
    barriers: SharedAddress,
}

/// The next stage, and the parity of the phase in which to wait for it.
#[derive(Clone, Copy)]
struct Position<const STAGES: u32> {
    stage: u32,
    parity: u32,
}

impl<const STAGES: u32> Position<STAGES> {
    #[inline(always)]
    const fn step(self) -> Self {
        if self.stage + 1 == STAGES {
            Self { stage: 0, parity: self.parity ^ 1 }
        } else {
            Self { stage: self.stage + 1, parity: self.parity }
        }
    }

    #[inline(always)]
    const fn skip(self, stages: u32) -> Self {
        let stage = self.stage + stages;
        Self { stage: stage % STAGES, parity: self.parity ^ (stage / STAGES % 2) }
    }
}

/// The thread that fills stages.
pub struct Producer<const STAGES: u32, const BLOCKS: u32> {
    pipeline: Pipeline<STAGES, BLOCKS>,
    next: Position<STAGES>,
}

/// The proxy through which loads and stores access shared memory: `ld.shared`, `ldmatrix`.
pub enum GenericProxy {}

/// The proxy through which `wgmma` reads its operands in shared memory.
pub enum AsyncProxy {}

/// A warp that reads stages through proxy `P`: a [`GenericProxy`]'s may have `wgmma` read them, too.
pub struct Consumer<const STAGES: u32, const BLOCKS: u32, P> {
    pipeline: Pipeline<STAGES, BLOCKS>,
    next: Position<STAGES>,
    proxy: PhantomData<P>,
}

/// A free stage that copies may fill.
pub struct FreeStage {
    /// Its index in the ring.
    pub index: u32,
    /// Where its copies complete.
    pub full: Barrier,
}

/// A full stage that a warp may read through proxy `P`: [`GenericProxy`] until its loads have [ended](FullStage::end_loads).
pub struct FullStage<P> {
    index: u32,
    proxy: PhantomData<P>,
}

// A stage that loads read is no `Copy`: none is left behind from which they could go on when they have ended.
impl Clone for FullStage<AsyncProxy> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for FullStage<AsyncProxy> {}

impl FullStage<AsyncProxy> {
    /// A value that stands for no stage, for a loop that gives back the stage before its own. It must not be given back.
    #[inline(always)]
    #[must_use]
    pub const fn none() -> Self {
        Self { index: 0, proxy: PhantomData }
    }
}

impl<P> FullStage<P> {
    /// Whether it is one of a ring of `stages` stages. It always is, but neither compiler nor assembler knows: a branch that they cannot
    /// see through.
    #[inline(always)]
    #[must_use]
    pub fn is_of_ring(&self, stages: u32) -> bool {
        ptx::opaque(self.index) < stages
    }

    /// What `wgmma` may read of it; `place` gives the place of the stage of an index.
    #[inline(always)]
    pub fn operand(&self, place: impl FnOnce(u32) -> SharedAddress) -> Operand {
        Operand(place(self.index))
    }
}

impl FullStage<GenericProxy> {
    /// What loads may read of it; `place` gives the place of the stage of an index.
    #[inline(always)]
    pub fn address(&self, place: impl FnOnce(u32) -> SharedAddress) -> SharedAddress {
        place(self.index)
    }

    /// Ends the loads from it, of which `loaded` is what came of them. Products that read it may go on.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, after their last load from the stage.
    #[inline(always)]
    pub unsafe fn end_loads(self, loaded: &mut impl Loaded) -> FullStage<AsyncProxy> {
        // SAFETY: the caller's promise.
        unsafe { end_loads(loaded) };
        FullStage { index: self.index, proxy: PhantomData }
    }

    /// The stage for products alone: there are no loads to end, and nothing to fence.
    ///
    /// # Safety
    ///
    /// No lane of the warp loads from it.
    #[inline(always)]
    pub unsafe fn without_loads(self) -> FullStage<AsyncProxy> {
        FullStage { index: self.index, proxy: PhantomData }
    }

    /// As [`end_loads`](Self::end_loads), of stages of two rings: a single fence is enough.
    ///
    /// # Safety
    ///
    /// As there, for both.
    #[inline(always)]
    pub unsafe fn end_loads_of_both(
        stages: [Self; 2],
        loaded: &mut impl Loaded,
    ) -> [FullStage<AsyncProxy>; 2] {
        // SAFETY: the caller's promise.
        unsafe { end_loads(loaded) };
        stages.map(|stage| FullStage { index: stage.index, proxy: PhantomData })
    }
}

/// A place in a full stage that `wgmma` reads.
#[derive(Clone, Copy)]
pub struct Operand(SharedAddress);

impl Operand {
    /// A place outside of a ring that threads have written, and fenced for the tensor cores.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn written(at: SharedAddress) -> Self {
        Self(at)
    }

    /// The place `bytes` further on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0.offset(bytes))
    }

    /// As [`MatrixDescriptor::rows_of_128_bytes`].
    #[inline(always)]
    #[must_use]
    pub fn rows_of_128_bytes(self) -> MatrixDescriptor {
        MatrixDescriptor::rows_of_128_bytes(self.0.get())
    }

    /// As [`MatrixDescriptor::panels_of_128_bytes`].
    #[inline(always)]
    #[must_use]
    pub fn panels_of_128_bytes(self, panel_bytes: u32) -> MatrixDescriptor {
        MatrixDescriptor::panels_of_128_bytes(self.0.get(), panel_bytes)
    }
}

/// Registers with what has been loaded from a stage, or computed from it.
pub trait Loaded {
    /// Makes the compiler believe that it is read and written here: no load behind it goes before this place.
    fn hold(&mut self);
}

impl Loaded for [f32; 4] {
    #[inline(always)]
    fn hold(&mut self) {
        ptx::hold_sums(self);
    }
}

impl Loaded for [u32; 4] {
    #[inline(always)]
    fn hold(&mut self) {
        ptx::hold_registers(self);
    }
}

impl<L: Loaded, const N: usize> Loaded for [L; N] {
    #[inline(always)]
    fn hold(&mut self) {
        for registers in self {
            registers.hold();
        }
    }
}

/// Orders what this warp has loaded from shared memory, and stored there, before copies of the copy engine. A lane
/// starts them when this has returned, or a thread that waits at a barrier where a lane arrives afterwards.
///
/// # Safety
///
/// All lanes of the warp call it, with what they have `loaded`.
#[inline(always)]
pub unsafe fn end_loads(loaded: &mut impl Loaded) {
    loaded.hold();
    // Before the lanes meet: each lane's fence orders its own accesses.
    ptx::fence_proxy_async_shared();
    // SAFETY: the caller's promise.
    unsafe { warp::sync_warp() };
}

impl<const STAGES: u32, const BLOCKS: u32> Pipeline<STAGES, BLOCKS> {
    /// Bytes of the barriers.
    pub const BYTES: u32 = 2 * STAGES * Barrier::BYTES;

    /// The ring whose barriers are at `barriers`.
    #[inline(always)]
    #[must_use]
    pub fn at(barriers: SharedAddress) -> Self {
        Self { barriers }
    }

    #[inline(always)]
    fn full(self, stage: u32) -> Barrier {
        Barrier::at(self.barriers.offset(stage * Barrier::BYTES))
    }

    #[inline(always)]
    fn free(self, stage: u32) -> Barrier {
        Barrier::at(self.barriers.offset((STAGES + stage) * Barrier::BYTES))
    }

    /// Makes the barriers, for `warps` warps in each block that consume a stage.
    ///
    /// # Safety
    ///
    /// One thread of the block calls it, before all others use the ring: the blocks' threads synchronise in between. The
    /// barriers' place is [`BYTES`](Self::BYTES) bytes of shared memory, aligned to eight.
    #[inline(always)]
    pub unsafe fn init(self, warps: u32) {
        for stage in 0..STAGES {
            // SAFETY: the caller's promise.
            unsafe {
                self.full(stage).init(1);
                self.free(stage).init(warps * BLOCKS);
            }
        }
        ptx::fence_mbarrier_init();
    }

    /// Makes the barriers, for stages that `writers` warps of the block fill and `readers` warps of it read.
    ///
    /// # Safety
    ///
    /// As [`init`](Self::init).
    #[inline(always)]
    pub unsafe fn init_between_warps(self, writers: u32, readers: u32) {
        const { assert!(BLOCKS == 1, "a warp writes to its own block") };
        for stage in 0..STAGES {
            // SAFETY: the caller's promise.
            unsafe {
                self.full(stage).init(writers);
                self.free(stage).init(readers);
            }
        }
        ptx::fence_mbarrier_init();
    }

    /// The side that fills the stages; one thread of the block is it.
    #[inline(always)]
    #[must_use]
    pub fn producer(self) -> Producer<STAGES, BLOCKS> {
        // A new barrier is in its first phase, and so past the one before, which has parity 1: all stages are free.
        Producer { pipeline: self, next: Position { stage: 0, parity: 1 } }
    }

    /// The side that reads the stages, for one warp.
    #[inline(always)]
    #[must_use]
    pub fn consumer<P>(self) -> Consumer<STAGES, BLOCKS, P> {
        Consumer { pipeline: self, next: Position { stage: 0, parity: 0 }, proxy: PhantomData }
    }
}

impl<const STAGES: u32, const BLOCKS: u32> Producer<STAGES, BLOCKS> {
    /// Waits until the next stage is free, in all blocks of the cluster, and announces `bytes` bytes of copies to this block's.
    ///
    /// # Safety
    ///
    /// The ring is made; copies of so many bytes, from whichever block, complete at the stage's barrier.
    #[inline(always)]
    pub unsafe fn acquire(&mut self, bytes: u32) -> FreeStage {
        let Position { stage, parity } = self.next;
        let (free, full) = (self.pipeline.free(stage), self.pipeline.full(stage));
        // SAFETY: each stage is filled once in each phase of its barriers.
        unsafe {
            free.wait(parity);
            full.arrive_and_expect(bytes);
        }
        self.next = self.next.step();
        FreeStage { index: stage, full }
    }

    /// Waits until the next stage is free, for warps to write it. Each of them then says so with [`written`](Self::written).
    ///
    /// # Safety
    ///
    /// The ring is made [between warps](Pipeline::init_between_warps).
    #[inline(always)]
    pub unsafe fn acquire_to_write(&mut self) -> FreeStage {
        let Position { stage, parity } = self.next;
        // SAFETY: each stage is written once in each phase of its barriers.
        unsafe { self.pipeline.free(stage).wait(parity) };
        self.next = self.next.step();
        FreeStage { index: stage, full: self.pipeline.full(stage) }
    }

    /// Hands a stage that this warp has written its part of to the consumers, for `wgmma` to read.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, once for each stage that they [acquired](Self::acquire_to_write), after the warp's last
    /// access to it.
    #[inline(always)]
    pub unsafe fn written(&self, stage: FreeStage) {
        ptx::fence_proxy_async_shared();
        // SAFETY: the warp arrives once, when all its lanes have written.
        unsafe {
            warp::sync_warp();
            if warp::lane_id() == 0 {
                stage.full.arrive();
            }
        }
    }

    /// Waits until the consumers of all blocks have given back every stage. Until then the block must not end: others arrive
    /// at its barriers.
    ///
    /// # Safety
    ///
    /// The ring is made, and consumers give back every stage that was filled.
    #[inline(always)]
    pub unsafe fn drain(mut self) {
        for _ in 0..STAGES {
            let Position { stage, parity } = self.next;
            // SAFETY: as in `acquire`.
            unsafe { self.pipeline.free(stage).wait(parity) };
            self.next = self.next.step();
        }
    }
}

impl<const STAGES: u32, const BLOCKS: u32, P> Consumer<STAGES, BLOCKS, P> {
    /// Finds the same ring at `pipeline` from now on: its address, known in another way.
    #[inline(always)]
    pub fn move_to(&mut self, pipeline: Pipeline<STAGES, BLOCKS>) {
        self.pipeline = pipeline;
    }

    /// Waits until the next stage is full.
    ///
    /// # Safety
    ///
    /// The ring is made, and a producer fills the stage.
    #[inline(always)]
    pub unsafe fn wait(&mut self) -> FullStage<P> {
        let Position { stage, parity } = self.next;
        // SAFETY: the stage is not filled again before this warp has given it back.
        unsafe { self.pipeline.full(stage).wait(parity) };
        self.next = self.next.step();
        FullStage { index: stage, proxy: PhantomData }
    }

    /// Passes over the next `stages` stages, which another consumer reads.
    ///
    /// A wait tells two phases of a barrier apart, no more: before it next waits, this consumer has to know that the other has
    /// waited for all of them.
    #[inline(always)]
    pub fn skip(&mut self, stages: u32) {
        self.next = self.next.skip(stages);
    }

    /// Whether the stage that this warp has waited for last is filled again when `left` more are filled. One that is not need not be given
    /// back, unless the producer [drains](Producer::drain) the ring.
    #[inline(always)]
    #[must_use]
    pub const fn is_filled_again(&self, left: u32) -> bool {
        left >= STAGES
    }

    /// Gives a stage back to the producers of all blocks.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, once for each stage that they waited for and that is [filled again](Self::is_filled_again) or drained,
    /// when the products that read it have completed (`wgmma.wait_group`). No block of the cluster has ended.
    #[inline(always)]
    pub unsafe fn release(&self, stage: FullStage<AsyncProxy>) {
        let free = self.pipeline.free(stage.index);
        let lane = warp::lane_id();
        // SAFETY: one arrival of each warp at each block.
        unsafe {
            if BLOCKS == 1 {
                if lane == 0 {
                    free.arrive();
                }
            } else if lane < BLOCKS {
                free.arrive_at_block(lane);
            }
        }
    }
}

impl<const STAGES: u32> Consumer<STAGES, 1, GenericProxy> {
    /// Gives a stage that this warp has loaded from back to a thread that writes it with ordinary stores: no proxy comes between.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, after their last load from the stage, with what they have `loaded`. The ring is made
    /// [between warps](Pipeline::init_between_warps), and no copy or product touches it.
    #[inline(always)]
    pub unsafe fn release_loaded(&self, stage: FullStage<GenericProxy>, loaded: &mut impl Loaded) {
        loaded.hold();
        // SAFETY: the warp arrives once, when all its lanes have loaded.
        unsafe {
            warp::sync_warp();
            if warp::lane_id() == 0 {
                self.pipeline.free(stage.index).arrive();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Producer and consumer go around the ring in the same order, one lap of the producer ahead of the phases.
    #[test]
    fn parities_change_with_every_lap() {
        let (mut write, mut read) =
            (Position::<3> { stage: 0, parity: 1 }, Position::<3> { stage: 0, parity: 0 });
        for index in 0..20 {
            let lap = index / 3;
            assert_eq!((write.stage, write.parity), (index % 3, (lap + 1) % 2));
            assert_eq!((read.stage, read.parity), (index % 3, lap % 2));
            (write, read) = (write.step(), read.step());
        }
    }

    #[test]
    fn skipping_stages_is_as_many_steps() {
        for start in [Position::<3> { stage: 0, parity: 1 }, Position::<3> { stage: 2, parity: 0 }] {
            let mut stepped = start;
            for stages in 0..20 {
                let skipped = start.skip(stages);
                assert_eq!((skipped.stage, skipped.parity), (stepped.stage, stepped.parity), "{stages}");
                stepped = stepped.step();
            }
        }
    }
}
