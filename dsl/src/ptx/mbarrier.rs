//! `mbarrier`: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies.
//!
//! All of it needs PTX ISA 8.0 and sm_90. A barrier is eight bytes of shared memory, aligned to eight. Its phase completes when
//! all expected arrivals have come and all announced bytes have arrived; then the next phase begins, with the same number of
//! expected arrivals. A waiter names a phase by its parity.

/// `mbarrier.init.shared::cta.b64 [barrier], arrivals`: makes a barrier whose phases expect `arrivals` arrivals.
///
/// # Safety
///
/// `barrier` is eight bytes of the block's shared memory, aligned to eight, that hold no barrier and that nothing else uses
/// while they do; `arrivals` is 1 to 2²⁰ − 1. Other threads use the barrier only after they have synchronised with this one.
#[inline(always)]
pub unsafe fn mbarrier_init(barrier: u32, arrivals: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) barrier, in(reg32) arrivals, options(nostack))
    }
}

/// `fence.mbarrier_init.release.cluster`: makes the barriers that this thread has initialised known to the cluster and to the
/// copy engine, once the others have synchronised with it.
#[inline(always)]
pub fn fence_mbarrier_init() {
    // SAFETY: a fence has no precondition.
    unsafe { instruction!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

/// `mbarrier.arrive.shared::cta.b64 _, [barrier]`: arrives at a barrier of the own block.
///
/// # Safety
///
/// `barrier` is a barrier, and its current phase expects another arrival.
#[inline(always)]
pub unsafe fn mbarrier_arrive(barrier: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) barrier, options(nostack)) }
}

/// `mbarrier.arrive.shared::cluster.b64 _, [barrier]`: arrives at a barrier of any block of the cluster, by its address from
/// [`mapa`](crate::ptx::mapa).
///
/// It orders what it says of shared memory that asynchronous operations read and write. Ordinary accesses before it are
/// released to the own block only: to the whole cluster, that costs a fence of the whole GPU.
///
/// # Safety
///
/// As [`mbarrier_arrive`]; the block that the barrier is in has started and has not ended.
#[inline(always)]
pub unsafe fn mbarrier_arrive_cluster(barrier: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("mbarrier.arrive.shared::cluster.b64 _, [{0}];", in(reg32) barrier, options(nostack))
    }
}

/// `mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes`: announces `bytes` bytes of copies, then arrives.
///
/// # Safety
///
/// As [`mbarrier_arrive`]; copies of so many bytes complete at the barrier, or its phase never does.
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx(barrier: u32, bytes: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) barrier, in(reg32) bytes, options(nostack))
    }
}

/// `mbarrier.try_wait.parity.shared::cta.b64`: waits a while for the phase of parity `parity` to complete, and says whether it
/// has. Then what the block's threads did before they arrived, and the copies, are visible.
///
/// # Safety
///
/// `barrier` is a barrier of the own block.
#[inline(always)]
#[must_use]
pub unsafe fn mbarrier_try_wait_parity(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [{1}], {2}; selp.b32 {0}, 1, 0, done; }}",
            out(reg32) done, in(reg32) barrier, in(reg32) parity, options(nostack)
        )
    };
    done != 0
}
