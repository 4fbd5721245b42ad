//! Barriers in shared memory that asynchronous copies arrive at too: `mbarrier`, sm_90.

use crate::ptx;
use crate::shared::SharedAddress;

/// A barrier in the block's shared memory.
///
/// A phase completes when the arrivals it was made for have come and the bytes that were announced have arrived.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Barrier(SharedAddress);

impl Barrier {
    /// Bytes of a barrier, and its alignment.
    pub const BYTES: u32 = 8;

    /// The barrier at `at`.
    #[inline(always)]
    #[must_use]
    pub fn at(at: SharedAddress) -> Self {
        Self(at)
    }

    /// Makes a barrier whose phases expect `arrivals` arrivals.
    ///
    /// # Safety
    ///
    /// As [`ptx::mbarrier_init`].
    #[inline(always)]
    pub unsafe fn init(self, arrivals: u32) {
        // SAFETY: the caller's promise.
        unsafe { ptx::mbarrier_init(self.0.get(), arrivals) }
    }

    /// Arrives, and announces `bytes` bytes of copies.
    ///
    /// # Safety
    ///
    /// As [`ptx::mbarrier_arrive_expect_tx`].
    #[inline(always)]
    pub unsafe fn arrive_and_expect(self, bytes: u32) {
        // SAFETY: the caller's promise.
        unsafe { ptx::mbarrier_arrive_expect_tx(self.0.get(), bytes) }
    }

    /// Arrives.
    ///
    /// # Safety
    ///
    /// As [`ptx::mbarrier_arrive`].
    #[inline(always)]
    pub unsafe fn arrive(self) {
        // SAFETY: the caller's promise.
        unsafe { ptx::mbarrier_arrive(self.0.get()) }
    }

    /// Arrives at the barrier in the same place of block `rank` of the cluster.
    ///
    /// # Safety
    ///
    /// As [`ptx::mbarrier_arrive_cluster`].
    #[inline(always)]
    pub unsafe fn arrive_at_block(self, rank: u32) {
        // SAFETY: the caller's promise.
        unsafe { ptx::mbarrier_arrive_cluster(ptx::mapa(self.0.get(), rank)) }
    }

    /// Waits until the phase of parity `parity` has completed. What this block's threads did before they arrived, and the
    /// copies, are then visible.
    ///
    /// # Safety
    ///
    /// It is a barrier, and no two phases have passed since the one that is waited for.
    #[inline(always)]
    pub unsafe fn wait(self, parity: u32) {
        // SAFETY: the caller's promise.
        while !unsafe { ptx::mbarrier_try_wait_parity(self.0.get(), parity) } {}
    }

    /// The address.
    #[inline(always)]
    #[must_use]
    pub fn address(self) -> u32 {
        self.0.get()
    }
}
