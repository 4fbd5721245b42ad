//! Barriers, exchanges between lanes and between blocks, and traps.

/// `bar.sync 0`: waits until every thread of the block has come here; memory accesses before it are visible after it.
///
/// # Safety
///
/// Every thread of the block that has not exited reaches it the same number of times.
#[inline(always)]
pub unsafe fn bar_sync() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("bar.sync 0;", options(nostack)) }
}

/// `bar.sync BARRIER, threads`: waits until `threads` threads of the block have come to barrier `BARRIER` (0 to 15); memory
/// accesses before it are visible to them after it.
///
/// # Safety
///
/// `threads` is a multiple of 32, the same for all who come; so many come, by whole warps.
#[inline(always)]
pub unsafe fn bar_sync_some<const BARRIER: u32>(threads: u32) {
    const { assert!(BARRIER < 16, "a block has 16 barriers") };
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("bar.sync {}, {};", const BARRIER, in(reg32) threads, options(nostack)) }
}

/// `bar.sync barrier, threads`, with a barrier (0 to 15) that is known when the kernel runs; as [`bar_sync_some`].
///
/// # Safety
///
/// As [`bar_sync_some`]; `barrier` is the same for all lanes of the warp.
#[inline(always)]
pub unsafe fn bar_sync_at(barrier: u32, threads: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("bar.sync {}, {};", in(reg32) barrier, in(reg32) threads, options(nostack)) }
}

/// `bar.arrive barrier, threads`: comes to the barrier as [`bar_sync_at`] does, and does not wait.
///
/// # Safety
///
/// As [`bar_sync_at`].
#[inline(always)]
pub unsafe fn bar_arrive_at(barrier: u32, threads: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("bar.arrive {}, {};", in(reg32) barrier, in(reg32) threads, options(nostack)) }
}

/// `bar.warp.sync`: waits for the lanes of `mask`; memory accesses before it are visible to those lanes after it.
///
/// # Safety
///
/// Every lane of `mask` executes it with the same mask, the calling lane among them.
#[inline(always)]
pub unsafe fn bar_warp_sync(mask: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("bar.warp.sync {};", in(reg32) mask, options(nostack)) }
}

/// `red.release.gpu.global.add.u32`: adds to a number in global memory. What this thread did before, and what it knows that others did,
/// is visible to those whose [`ld_acquire_gpu_u32`] finds the sum.
///
/// # Safety
///
/// The address is valid for reads and writes of four bytes, aligned to them; all who touch the place meanwhile do it atomically.
#[inline(always)]
pub unsafe fn red_release_gpu_add_u32(address: u64, value: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("red.release.gpu.global.add.u32 [{0}], {1};", in(reg64) address, in(reg32) value, options(nostack))
    }
}

macro_rules! reduction {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The address is valid for reads and writes of four bytes, aligned to them; all who touch the place meanwhile do it atomically.
        #[inline(always)]
        pub unsafe fn $name(address: u64, value: u32) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe { instruction!(concat!($text, " [{0}], {1};"), in(reg64) address, in(reg32) value, options(nostack)) }
        }
    };
}

reduction!(
    /// `red.relaxed.gpu.global.add.u32`: adds to a number in global memory. It orders nothing else.
    red_gpu_add_u32, "red.relaxed.gpu.global.add.u32"
);
reduction!(
    /// `red.relaxed.gpu.global.max.u32`: makes a number in global memory at least so large. It orders nothing else.
    red_gpu_max_u32, "red.relaxed.gpu.global.max.u32"
);
reduction!(
    /// `red.relaxed.gpu.global.or.b32`: sets bits in global memory. It orders nothing else.
    red_gpu_or_b32, "red.relaxed.gpu.global.or.b32"
);

/// `ld.relaxed.gpu.global.u32`: a number in global memory that others may change atomically. It orders nothing else.
///
/// # Safety
///
/// The address is valid for reads of four bytes, aligned to them; all who write the place meanwhile do it atomically.
#[inline(always)]
#[must_use]
pub unsafe fn ld_relaxed_gpu_u32(address: u64) -> u32 {
    let value: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.relaxed.gpu.global.u32 {0}, [{1}];", out(reg32) value, in(reg64) address, options(nostack))
    };
    value
}

/// `ld.acquire.gpu.global.u32`: a number in global memory that others may write; see [`red_release_gpu_add_u32`].
///
/// # Safety
///
/// The address is valid for reads of four bytes, aligned to them; all who write the place meanwhile do it atomically.
#[inline(always)]
#[must_use]
pub unsafe fn ld_acquire_gpu_u32(address: u64) -> u32 {
    let value: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.acquire.gpu.global.u32 {0}, [{1}];", out(reg32) value, in(reg64) address, options(nostack))
    };
    value
}

/// `atom.acq_rel.gpu.global.inc.u32`: adds 1 to a number in global memory, which becomes 0 where it is `last` or more, and returns what it was. What this
/// thread did before, and what it knows that others did, is visible to those that find a later number, and theirs to this thread.
///
/// # Safety
///
/// The address is valid for reads and writes of four bytes, aligned to them; all who touch the place meanwhile do it atomically.
#[inline(always)]
#[must_use]
pub unsafe fn atom_acq_rel_gpu_inc_u32(address: u64, last: u32) -> u32 {
    let before: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("atom.acq_rel.gpu.global.inc.u32 {0}, [{1}], {2};", out(reg32) before, in(reg64) address, in(reg32) last, options(nostack))
    };
    before
}

/// `atom.shared.add.u32`: adds to a number in shared memory, and returns what it was.
///
/// # Safety
///
/// The address is valid for reads and writes of four bytes, aligned to them; all who touch the place meanwhile do it atomically.
#[inline(always)]
#[must_use]
pub unsafe fn atom_shared_add_u32(address: u32, value: u32) -> u32 {
    let before: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("atom.shared.add.u32 {0}, [{1}], {2};", out(reg32) before, in(reg32) address, in(reg32) value, options(nostack))
    };
    before
}

/// `shfl.sync.bfly.b32` among all lanes: `value` as the lane has it whose number differs in the bits of `mask`.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
#[must_use]
pub unsafe fn shfl_sync_bfly(value: u32, mask: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("shfl.sync.bfly.b32 {0}, {1}, {2}, 0x1f, 0xffffffff;", out(reg32) result, in(reg32) value, in(reg32) mask, options(nostack))
    };
    result
}

/// `shfl.sync.idx.b32` among all lanes: `value` as lane `lane` has it.
///
/// # Safety
///
/// All lanes of the warp execute it; `lane` is less than 32.
#[inline(always)]
#[must_use]
pub unsafe fn shfl_sync_idx(value: u32, lane: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("shfl.sync.idx.b32 {0}, {1}, {2}, 0x1f, 0xffffffff;", out(reg32) result, in(reg32) value, in(reg32) lane, options(nostack))
    };
    result
}

/// `shfl.sync.up.b32` among all lanes: `value` as the lane `distance` below has it; the first `distance` lanes get their own.
///
/// # Safety
///
/// All lanes of the warp execute it; `distance` is less than 32.
#[inline(always)]
#[must_use]
pub unsafe fn shfl_sync_up(value: u32, distance: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("shfl.sync.up.b32 {0}, {1}, {2}, 0, 0xffffffff;", out(reg32) result, in(reg32) value, in(reg32) distance, options(nostack))
    };
    result
}

/// `redux.sync.or.b32` among all lanes: the bits that any of them has set.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
#[must_use]
pub unsafe fn redux_sync_or(value: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("redux.sync.or.b32 {0}, {1}, 0xffffffff;", out(reg32) result, in(reg32) value, options(nostack))
    };
    result
}

/// `redux.sync.max.u32` among all lanes: the largest of their numbers.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
#[must_use]
pub unsafe fn redux_sync_max(value: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("redux.sync.max.u32 {0}, {1}, 0xffffffff;", out(reg32) result, in(reg32) value, options(nostack))
    };
    result
}

/// `vote.sync.ballot.b32` among all lanes: a bit for each lane, set where `condition` holds.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
#[must_use]
pub unsafe fn vote_sync_ballot(condition: bool) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {1}, 0; vote.sync.ballot.b32 {0}, holds, 0xffffffff; }}",
            out(reg32) result, in(reg32) u32::from(condition), options(nostack)
        )
    };
    result
}

/// `trap`: ends the kernel with an error.
///
/// # Safety
///
/// It has no precondition; it is unsafe as every instruction is that ends more than the calling function.
#[inline(always)]
pub unsafe fn trap() -> ! {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no precondition.
    unsafe {
        core::arch::nvptx::trap()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: no precondition.
    unsafe {
        crate::ptx::not_on_the_host()
    }
}
