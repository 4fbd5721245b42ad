// Cooperative groups.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;
#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

KERNEL(sums_of_tiles) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int i = blockIdx.x * blockDim.x + block.thread_rank();
    unsigned v = i < n ? x[i] : 0;
    for (int d = tile.size() / 2; d; d /= 2) v += tile.shfl_xor(v, d);
    if (i < n) y[i] = v + tile.thread_rank() + 100 * tile.meta_group_rank();
}

KERNEL(reductions_of_tiles) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? x[i] : 0;
    unsigned sum = cg::reduce(warp, v, cg::plus<unsigned>()), most = cg::reduce(warp, v, cg::greater<unsigned>());
    if (i < n) y[i] = sum ^ most;
}

KERNEL(scans_of_tiles) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? x[i] : 0;
    unsigned r = cg::inclusive_scan(tile, v, cg::plus<unsigned>()) + 3 * cg::exclusive_scan(tile, v,
        cg::bit_xor<unsigned>());
    if (i < n) y[i] = r;
}

KERNEL(one_atomic_for_a_group) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] % 3 == 0) {
        auto group = cg::coalesced_threads();
        unsigned base;
        if (group.thread_rank() == 0) base = atomicAdd(&y[0], group.size());
        base = group.shfl(base, 0);
        y[1 + base + group.thread_rank()] = 1;
    }
}

KERNEL(labelled_groups) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    unsigned v = i < n ? x[i] : 0;
    auto group = cg::labeled_partition(warp, (int)(v % 4));
    unsigned sum = cg::reduce(group, v, cg::plus<unsigned>());
    if (i < n) y[i] = sum + group.size();
}

KERNEL(synchronised_blocks) {
    __shared__ unsigned s[128];
    cg::thread_block block = cg::this_thread_block();
    s[block.thread_rank()] = x[(blockIdx.x * 128 + block.thread_rank()) % n];
    cg::sync(block);
    y[blockIdx.x * 128 + block.thread_rank()] = s[127 - block.thread_rank()] + block.group_index().x * 7
        + block.dim_threads().x;
}
