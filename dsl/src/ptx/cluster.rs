//! Clusters: blocks that run at the same time and reach each other's shared memory. PTX ISA 7.8, sm_90.

special_register!(cluster_ctarank, "%cluster_ctarank", "rank of the block within its cluster");
special_register!(cluster_nctarank, "%cluster_nctarank", "number of blocks in the cluster");
special_register!(clusterid_x, "%clusterid.x", "cluster index within the grid, along x");
special_register!(nclusterid_x, "%nclusterid.x", "number of clusters in the grid, along x");

/// `mapa.shared::cluster.u32`: the address in the cluster's shared memory of the place in block `rank` that `address` is in the
/// own block.
#[inline(always)]
#[must_use]
pub fn mapa(address: u32, rank: u32) -> u32 {
    let mapped: u32;
    // SAFETY: arithmetic on an address.
    unsafe {
        instruction!("mapa.shared::cluster.u32 {0}, {1}, {2};", out(reg32) mapped, in(reg32) address, in(reg32) rank, options(pure, nomem, nostack))
    };
    mapped
}

/// `st.shared::cluster.v4.f32`: four numbers, to shared memory of any block of the cluster, by its address from [`mapa`].
///
/// # Safety
///
/// The address is valid for a store of 16 bytes, aligned to it, in a block that has started and has not ended; no other thread
/// touches the place unordered.
#[inline(always)]
pub unsafe fn st_shared_cluster_v4_f32(address: u32, value: [f32; 4]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "st.shared::cluster.v4.f32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3],
            options(nostack)
        )
    }
}

/// `st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32`: four numbers, to shared memory of any block of the cluster, some time after. The mbarrier at
/// `barrier`, in the same block, counts their 16 bytes then. Both addresses are [`mapa`]'s.
///
/// It waits for none of the thread's stores to global memory, as a [release at the cluster's barrier](barrier_cluster_arrive) does. PTX ISA 8.1.
///
/// # Safety
///
/// As [`st_shared_cluster_v4_f32`], until the barrier's phase has completed; the barrier has been initialised, and the block does not end before.
#[inline(always)]
pub unsafe fn st_async_v4_f32(address: u32, value: [f32; 4], barrier: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [{0}], {{{1}, {2}, {3}, {4}}}, [{5}];",
            in(reg32) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3], in(reg32) barrier,
            options(nostack)
        )
    }
}

/// `barrier.cluster.arrive.release.aligned`: arrives at the cluster's barrier; memory accesses before it are visible to the cluster
/// after [`barrier_cluster_wait`].
///
/// # Safety
///
/// All lanes of the warp execute it, and a [`barrier_cluster_wait`] before the next one.
#[inline(always)]
pub unsafe fn barrier_cluster_arrive() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("barrier.cluster.arrive.release.aligned;", options(nostack)) }
}

/// `barrier.cluster.arrive.relaxed.aligned`: arrives at the cluster's barrier, and says nothing of memory accesses but initialisations of
/// mbarriers that a [fence](super::fence_mbarrier_init) follows.
///
/// # Safety
///
/// As [`barrier_cluster_arrive`].
#[inline(always)]
pub unsafe fn barrier_cluster_arrive_relaxed() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("barrier.cluster.arrive.relaxed.aligned;", options(nostack)) }
}

/// `barrier.cluster.wait.acquire.aligned`: waits until every thread of the cluster that has not exited has arrived.
///
/// # Safety
///
/// All lanes of the warp execute it, after a [`barrier_cluster_arrive`].
#[inline(always)]
pub unsafe fn barrier_cluster_wait() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("barrier.cluster.wait.acquire.aligned;", options(nostack)) }
}
