// from sm_80
// Cooperative groups beyond tiles: copies, groups of diverged lanes, and tiles of more than a warp.

#include <cuda/barrier>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;
#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

KERNEL(copies_of_groups) {
    extern __shared__ __align__(16) unsigned s[];
    auto block = cg::this_thread_block();
    unsigned sum = 0;
    cg::memcpy_async(block, s, x, cuda::aligned_size_t<16>(512));
    for (int step = 0; step < n; step++) {
        if (step + 1 < n)
            cg::memcpy_async(block, s + (step + 1) % 2 * 128, x + (step + 1) * 128, cuda::aligned_size_t<16>(512));
        if (step + 1 < n) cg::wait_prior<1>(block); else cg::wait(block);
        sum = sum * 3 + s[step % 2 * 128 + (threadIdx.x * 7 + step) % 128];
        block.sync();
    }
    y[threadIdx.x] = sum;
}

KERNEL(copies_that_are_not_aligned) {
    __shared__ unsigned s[160];
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int at = tile.meta_group_rank() * 37;
    cg::memcpy_async(tile, s + at, x + at + 1, sizeof(unsigned) * 37);
    cg::wait(tile);
    for (int k = tile.thread_rank(); k < 37; k += 32) y[at + k] = s[at + 36 - k] + n;
}

KERNEL(groups_of_diverged_lanes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i], r = 0;
    if (v & 1) {
        auto group = cg::coalesced_threads();
        r = group.shfl_down(v, 1) + group.ballot(v & 2) * 3 + group.shfl_up(v, 2) + group.any(v % 7 == 0);
        r += cg::reduce(group, v & 0xffff, cg::plus<unsigned>()) + group.match_any((int)(v >> 1 & 3));
        if (v & 4) {
            auto inner = cg::coalesced_threads();
            r += cg::exclusive_scan(inner, v >> 8, cg::plus<unsigned>());
        }
    } else {
        auto parts = cg::binary_partition(cg::coalesced_threads(), (v & 2) != 0);
        r = cg::reduce(parts, v, cg::less<unsigned>()) ^ parts.size();
    }
    y[i] = r;
}

KERNEL(tiles_of_two_warps) {
    __shared__ cg::block_tile_memory<128> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? x[i] : 0;
    unsigned sum = cg::reduce(tile, v, cg::plus<unsigned>());
    tile.sync();
    unsigned first = tile.shfl(v, 3);
    unsigned any = tile.any(v % 64 == 0);
    // Each lane reads its result from where the next call writes; a vote of the warp alone does not order the two.
    tile.sync();
    unsigned all = tile.all(v != 1);
    tile.sync();
    unsigned scan = cg::inclusive_scan(tile, v, cg::plus<unsigned>());
    if (i < n) y[i] = sum + first * 3 + any * 5 + all * 7 + scan * 9;
}

struct Pair { float value; int place; };

KERNEL(reductions_of_other_types) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned word = x[i % n];
    float f = (int)(word % 2049) / 16.0f;
    double d = cg::reduce(warp, (double)f * 0.5, cg::plus<double>());
    float most = cg::reduce(warp, f, cg::greater<float>());
    long long sum = cg::reduce(warp, (long long)(int)word, cg::plus<long long>());
    unsigned bits = cg::reduce(warp, word, cg::bit_and<unsigned>()) | cg::reduce(warp, word & 0xff00, cg::bit_or<unsigned>());
    Pair best = cg::reduce(warp, Pair{f, (int)warp.thread_rank()}, [](Pair a, Pair b) {
        return a.value > b.value || a.value == b.value && a.place < b.place ? a : b;
    });
    y[i] = __float2uint_rn((float)d) + __float_as_uint(most) * 3 + (unsigned)(sum >> 4) * 5 + bits * 7 + best.place * 9;
}

KERNEL(scans_that_update) {
    __shared__ unsigned total;
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<32>(block);
    if (block.thread_rank() == 0) total = 0;
    block.sync();
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> shared(total);
    unsigned v = x[block.thread_rank()] % 8;
    unsigned at = cg::exclusive_scan_update(tile, shared, v, cg::plus<unsigned>());
    for (unsigned k = 0; k < v; k++) atomicAdd(&y[at + k], 1);
    block.sync();
    cg::reduce_update_async(tile, shared, 1u, cg::plus<unsigned>());
    block.sync();
    cg::invoke_one(block, [&] { y[1023] = total + n; });
}

KERNEL(sync_of_the_grid_by_hand) {
    // The barrier of a grid as libraries write it: the first block adds so much that the sign flips.
    unsigned* arrived = y;
    for (int round = 0; round < 3; round++) {
        y[1 + (round % 2) * 256 + blockIdx.x * 64 + threadIdx.x] =
            round ? y[1 + (1 - round % 2) * 256 + ((blockIdx.x + 1) % gridDim.x) * 64 + threadIdx.x] * 3 + 1 : x[blockIdx.x * 64 + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned add = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
            __threadfence();
            unsigned old = atomicAdd(arrived, add);
            while (((old ^ *(volatile unsigned*)arrived) & 0x80000000u) == 0) ;
            __threadfence();
        }
        __syncthreads();
    }
}

// What a cooperative launch is for.
KERNEL(sync_of_the_grid) {
    auto grid = cg::this_grid();
    int i = grid.thread_rank();
    unsigned v = x[i];
    for (int k = 0; k < n; k++) {
        y[k % 2 * grid.size() + i] = v;
        grid.sync();
        v = v * 3 + y[k % 2 * grid.size() + (i + 77) % grid.size()];
    }
    auto token = grid.barrier_arrive();
    v += grid.is_valid();
    grid.barrier_wait((decltype(token)&&)token);
    y[i] = v;
}
