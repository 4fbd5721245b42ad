//! TMA: the engine that copies boxes of a tensor, or neighbouring bytes, between global and shared memory.
//!
//! All of it needs PTX ISA 8.0 and sm_90. A [`TensorMap`](crate::launch::TensorMap) describes the tensor, the box and the swizzle
//! in shared memory; an instruction names the map by its address and gives the coordinates of the box's first element, the
//! innermost first. The part of a box outside the tensor is read as zeros and is not written.
//!
//! A load completes at an mbarrier, counting its bytes there, those outside the tensor too. Stores complete in groups of the
//! issuing thread, as `cp.async` does.

/// `prefetch.tensormap [map]`: fetches a tensor map that will be used soon.
///
/// # Safety
///
/// `map` is the address of a tensor map in constant, parameter or global memory.
#[inline(always)]
pub unsafe fn prefetch_tensormap(map: u64) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("prefetch.tensormap [{0}];", in(reg64) map, options(nostack)) }
}

macro_rules! tensor_copies {
    ($rank:literal, $load:ident, $multicast:ident, $store:ident, $prefetch:ident, [$($c:ident = $index:literal),*], $coordinates:literal) => {
        #[doc = concat!("`cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.mbarrier::complete_tx::bytes`: copies a box to the own block's shared memory.")]
        ///
        /// # Safety
        ///
        /// `map` is the address of a tensor map of this rank, whose tensor is valid for reads and not written meanwhile.
        /// `destination` is aligned as the map's swizzle asks and has room for the box; nothing touches it until `barrier`, a
        /// barrier of the own block to which the box's bytes are announced, has completed its phase.
        #[inline(always)]
        pub unsafe fn $load(destination: u32, map: u64, coordinates: [i32; $rank], barrier: u32) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.mbarrier::complete_tx::bytes ",
                        "[{to}], [{map}, {{", $coordinates, "}}], [{barrier}];"
                    ),
                    to = in(reg32) destination, map = in(reg64) map, $($c = in(reg32) coordinates[$index],)*
                    barrier = in(reg32) barrier, options(nostack)
                )
            }
        }

        #[doc = concat!("`cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster`: copies a box to the same place in each block of the cluster whose bit in `blocks` is set.")]
        ///
        /// # Safety
        ///
        #[doc = concat!("As [`", stringify!($load), "`] in every one of these blocks, where the bytes are counted at the barrier in the same place.")]
        #[inline(always)]
        pub unsafe fn $multicast(destination: u32, map: u64, coordinates: [i32; $rank], barrier: u32, blocks: u16) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "cp.async.bulk.tensor.", $rank,
                        "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster ",
                        "[{to}], [{map}, {{", $coordinates, "}}], [{barrier}], {blocks};"
                    ),
                    to = in(reg32) destination, map = in(reg64) map, $($c = in(reg32) coordinates[$index],)*
                    barrier = in(reg32) barrier, blocks = in(reg16) blocks, options(nostack)
                )
            }
        }

        #[doc = concat!("`cp.async.bulk.prefetch.tensor.", $rank, "d.L2.global.tile`: has the level-2 cache get a box. It brings nothing that a program could see: the tensor may be written meanwhile.")]
        ///
        /// # Safety
        ///
        /// `map` is the address of a tensor map of this rank.
        #[inline(always)]
        pub unsafe fn $prefetch(map: u64, coordinates: [i32; $rank]) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "cp.async.bulk.prefetch.tensor.", $rank, "d.L2.global.tile ",
                        "[{map}, {{", $coordinates, "}}];"
                    ),
                    map = in(reg64) map, $($c = in(reg32) coordinates[$index],)*
                    options(nostack)
                )
            }
        }

        #[doc = concat!("`cp.async.bulk.tensor.", $rank, "d.global.shared::cta.bulk_group`: copies a box from the own block's shared memory.")]
        ///
        /// # Safety
        ///
        /// `map` is the address of a tensor map of this rank, whose tensor is valid for writes; no other work touches the
        /// box. `source` is aligned as the map's swizzle asks and holds the box, visible to the async proxy; nothing writes it
        /// until a wait for the copy's group.
        #[inline(always)]
        pub unsafe fn $store(map: u64, coordinates: [i32; $rank], source: u32) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "cp.async.bulk.tensor.", $rank, "d.global.shared::cta.bulk_group ",
                        "[{map}, {{", $coordinates, "}}], [{from}];"
                    ),
                    map = in(reg64) map, $($c = in(reg32) coordinates[$index],)* from = in(reg32) source,
                    options(nostack)
                )
            }
        }
    };
}
tensor_copies!(1, tma_load_1d, tma_load_1d_multicast, tma_store_1d, tma_prefetch_1d, [c0 = 0], "{c0}");
tensor_copies!(
    2,
    tma_load_2d,
    tma_load_2d_multicast,
    tma_store_2d,
    tma_prefetch_2d,
    [c0 = 0, c1 = 1],
    "{c0}, {c1}"
);
tensor_copies!(
    3,
    tma_load_3d,
    tma_load_3d_multicast,
    tma_store_3d,
    tma_prefetch_3d,
    [c0 = 0, c1 = 1, c2 = 2],
    "{c0}, {c1}, {c2}"
);
tensor_copies!(
    4,
    tma_load_4d,
    tma_load_4d_multicast,
    tma_store_4d,
    tma_prefetch_4d,
    [c0 = 0, c1 = 1, c2 = 2, c3 = 3],
    "{c0}, {c1}, {c2}, {c3}"
);
tensor_copies!(
    5,
    tma_load_5d,
    tma_load_5d_multicast,
    tma_store_5d,
    tma_prefetch_5d,
    [c0 = 0, c1 = 1, c2 = 2, c3 = 3, c4 = 4],
    "{c0}, {c1}, {c2}, {c3}, {c4}"
);

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`: copies `bytes` neighbouring bytes to the own block's shared memory.
///
/// # Safety
///
/// Addresses and `bytes` are multiples of 16, and `bytes` is not 0. `source` (global memory) is valid for reads and not written meanwhile;
/// nothing touches the `destination` until `barrier`, a barrier of the own block to which the bytes are announced, has completed its phase.
#[inline(always)]
pub unsafe fn cp_async_bulk_load(destination: u32, source: u64, bytes: u32, barrier: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
            in(reg32) destination, in(reg64) source, in(reg32) bytes, in(reg32) barrier, options(nostack)
        )
    }
}

/// `cp.async.bulk.global.shared::cta.bulk_group`: copies `bytes` neighbouring bytes from the own block's shared memory.
///
/// # Safety
///
/// Addresses and `bytes` are multiples of 16, and `bytes` is not 0. `destination` (global memory) is valid for writes, and no other work
/// touches it. `source` is visible to the async proxy; nothing writes it until a wait for the copy's group.
#[inline(always)]
pub unsafe fn cp_async_bulk_store(destination: u64, source: u32, bytes: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "cp.async.bulk.global.shared::cta.bulk_group [{0}], [{1}], {2};",
            in(reg64) destination, in(reg32) source, in(reg32) bytes, options(nostack)
        )
    }
}

/// `cp.async.bulk.commit_group`: closes the group of the stores that this thread has issued since the last one.
#[inline(always)]
pub fn cp_async_bulk_commit_group() {
    // SAFETY: closing a group, an empty one too, has no precondition.
    unsafe { instruction!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// `cp.async.bulk.wait_group PENDING`: waits until at most `PENDING` of this thread's newest groups are unfinished.
#[inline(always)]
pub fn cp_async_bulk_wait_group<const PENDING: u32>() {
    // SAFETY: waiting has no precondition.
    unsafe { instruction!("cp.async.bulk.wait_group {};", const PENDING, options(nostack)) }
}

/// `cp.async.bulk.wait_group.read PENDING`: waits until at most `PENDING` of this thread's newest groups have yet to read their
/// sources, which may then be written again.
#[inline(always)]
pub fn cp_async_bulk_wait_group_read<const PENDING: u32>() {
    // SAFETY: waiting has no precondition.
    unsafe { instruction!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }
}

/// `fence.proxy.async.shared::cta`: orders this thread's ordinary accesses to shared memory before the accesses of the copy
/// engine and of `wgmma` that follow, its own or, after a barrier, other threads'.
#[inline(always)]
pub fn fence_proxy_async_shared() {
    // SAFETY: a fence has no precondition.
    unsafe { instruction!("fence.proxy.async.shared::cta;", options(nostack)) }
}
