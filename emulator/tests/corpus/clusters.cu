// from sm_90a
// Hopper: clusters, mbarriers, bulk copies and registers that warps hand over.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/ptx>

namespace cg = cooperative_groups;
#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define CLUSTER(name, size) extern "C" __global__ void __cluster_dims__(size, 1, 1) name(const unsigned* x, unsigned* y, int n)

CLUSTER(histogram_of_a_cluster, 4) {
    __shared__ unsigned bins[32];
    auto cluster = cg::this_cluster();
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned bin = x[i] % 128;
        atomicAdd(cluster.map_shared_rank(bins, bin / 32) + bin % 32, 1);
    }
    cluster.sync();
    if (threadIdx.x < 32) atomicAdd(&y[cluster.block_rank() * 32 + threadIdx.x], bins[threadIdx.x]);
}

CLUSTER(ring_of_blocks, 2) {
    __shared__ unsigned s[64];
    auto cluster = cg::this_cluster();
    unsigned v = x[blockIdx.x * 64 + threadIdx.x];
    s[threadIdx.x] = v;
    auto token = cluster.barrier_arrive();
    v *= 3;
    cluster.barrier_wait(cuda::std::move(token));
    unsigned* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    v += other[63 - threadIdx.x] + cluster.query_shared_rank(other) + cluster.num_blocks();
    cluster.sync();
    y[blockIdx.x * 64 + threadIdx.x] = v;
}

KERNEL(bulk_copies) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ alignas(128) unsigned s[2][256];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    if (threadIdx.x == 0) cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(s[0], x + blockIdx.x * 256, cuda::aligned_size_t<16>(1024), bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, 0);
    } else {
        token = bar.arrive();
    }
    bar.wait(cuda::std::move(token));
    for (int i = threadIdx.x; i < 256; i += blockDim.x) s[1][i] = s[0][255 - i] + n;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, y + blockIdx.x * 256, s[1], 1024);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
    }
}

KERNEL(bulk_reductions) {
    __shared__ alignas(16) unsigned s[128];
    s[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x] & 0xffff;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, cuda::ptx::op_add, y, s, 512);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>());
    }
}

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait(unsigned bar, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\n"
                 "bra again;\ndone:\n}" ::"r"(bar), "r"(parity) : "memory");
}

// A ring of stages: a warp brings them, the others read them, with registers handed over on the way.
extern "C" __global__ void __launch_bounds__(256, 2) producer_and_consumers(const unsigned* x, unsigned* y, int n) {
    __shared__ alignas(128) unsigned stage[3][256];
    __shared__ alignas(8) unsigned long long full[3], empty[3];
    if (threadIdx.x == 0) {
        for (int k = 0; k < 3; k++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(full + k)));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(address(empty + k)));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 128)
            for (int k = 0; k < n; k++) {
                int slot = k % 3;
                wait(address(empty + slot), k / 3 % 2 ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(address(full + slot)) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                    ::"r"(address(stage[slot])), "l"(x + k * 256), "r"(address(full + slot)) : "memory");
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        unsigned sum = 0;
        for (int k = 0; k < n; k++) {
            int slot = k % 3;
            wait(address(full + slot), k / 3 % 2);
            sum = sum * 3 + stage[slot][threadIdx.x] + stage[slot][255 - threadIdx.x];
            // The next copy into the slot must not overtake the reads.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(empty + slot)) : "memory");
        }
        y[threadIdx.x] = sum;
    }
}

// A store into another block's shared memory that tells its mbarrier.
CLUSTER(stores_that_tell, 2) {
    __shared__ alignas(8) unsigned s[64];
    __shared__ alignas(8) unsigned long long bar;
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(address(&bar)) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    unsigned to, there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address(s + threadIdx.x)), "r"(rank ^ 1));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(&bar)), "r"(rank ^ 1));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
        ::"r"(to), "r"(x[blockIdx.x * 64 + threadIdx.x]), "r"(there) : "memory");
    wait(address(&bar), 0);
    y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x] + n;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

CLUSTER(copies_to_all_blocks, 4) {
    __shared__ alignas(128) unsigned s[256];
    __shared__ alignas(8) unsigned long long bar;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(address(&bar)) : "memory");
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        unsigned part = cluster.block_rank() * 64;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;"
            ::"r"(address(s + part)), "l"(x + part), "r"(address(&bar)), "h"((unsigned short)15) : "memory");
    }
    wait(address(&bar), 0);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) y[blockIdx.x * 256 + i] = s[255 - i] * n + blockIdx.x;
    cluster.sync();
}

KERNEL(maxima_of_sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int a = x[i], b = x[(i + 1) % n], c = x[(i + 2) % n];
    bool first;
    unsigned r = __viaddmax_s32(a >> 1, b >> 1, c) ^ __vimax3_s32_relu(a, b, c) ^ __vibmax_s32(a, b, &first) ^ (first ? 5 : 9);
    r += __viaddmin_s16x2_relu(a, b, c) ^ __vimin3_u16x2(a, b, c) ^ __viaddmax_u32(a, b, c);
    y[i] = r;
}

KERNEL(one_lane_of_the_warp) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned leader, r = 0;
    asm volatile("{\n.reg .pred p;\nelect.sync %0|p, 0xffffffff;\nselp.u32 %1, 1, 0, p;\n}" : "=r"(leader), "=r"(r));
    if (r) y[i / 32] = x[i] + leader + n;
}
