// from sm_90a
// CUB's primitives for blocks and warps, and its scan of a whole array by looking back.

#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

struct Most {
    __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

KERNEL(reductions_of_blocks) {
    using Raking = cub::BlockReduce<unsigned, 128, cub::BLOCK_REDUCE_RAKING>;
    using Warps = cub::BlockReduce<unsigned, 128, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
    using Commutative = cub::BlockReduce<unsigned, 128, cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>;
    using Place = cub::BlockReduce<cub::KeyValuePair<int, unsigned>, 128>;
    __shared__ union {
        typename Raking::TempStorage raking;
        typename Warps::TempStorage warps;
        typename Commutative::TempStorage commutative;
        typename Place::TempStorage place;
    } s;
    int i = blockIdx.x * 128 + threadIdx.x, valid = min(128, n - (int)blockIdx.x * 128);
    unsigned v = i < n ? x[i] : 0;
    unsigned sum = Raking(s.raking).Sum(v, valid);
    __syncthreads();
    unsigned most = Warps(s.warps).Reduce(v, Most(), valid);
    __syncthreads();
    unsigned again = Commutative(s.commutative).Sum(v);
    __syncthreads();
    auto place = Place(s.place).Reduce(cub::KeyValuePair<int, unsigned>((int)threadIdx.x, v), cub::ArgMax());
    if (threadIdx.x == 0) {
        y[blockIdx.x * 4] = sum;
        y[blockIdx.x * 4 + 1] = most;
        y[blockIdx.x * 4 + 2] = again;
        y[blockIdx.x * 4 + 3] = place.key;
    }
}

struct Running {
    unsigned total;
    __device__ unsigned operator()(unsigned sum) {
        unsigned old = total;
        total += sum;
        return old;
    }
};

KERNEL(scans_of_blocks) {
    using Raking = cub::BlockScan<unsigned, 128, cub::BLOCK_SCAN_RAKING>;
    using Warps = cub::BlockScan<unsigned, 128, cub::BLOCK_SCAN_WARP_SCANS>;
    using Memo = cub::BlockScan<unsigned, 128, cub::BLOCK_SCAN_RAKING_MEMOIZE>;
    __shared__ union {
        typename Raking::TempStorage raking;
        typename Warps::TempStorage warps;
        typename Memo::TempStorage memo;
    } s;
    Running running{0};
    for (int base = 0; base < n; base += 256) {
        unsigned v[2], a[2], b[2], total;
        int at = base + threadIdx.x * 2;
        for (int k = 0; k < 2; k++) v[k] = at + k < n ? x[at + k] : 0;
        Raking(s.raking).ExclusiveSum(v, a, running);
        __syncthreads();
        Warps(s.warps).InclusiveScan(v, b, Most(), total);
        __syncthreads();
        unsigned c;
        Memo(s.memo).InclusiveSum(v[0], c);
        __syncthreads();
        for (int k = 0; k < 2; k++)
            if (at + k < n) y[at + k] = a[k] + 3 * b[k] + 5 * total + 7 * c;
    }
}

KERNEL(sorts_by_digits) {
    using Sort = cub::BlockRadixSort<unsigned, 128, 4, unsigned short>;
    using Floats = cub::BlockRadixSort<float, 128, 4>;
    __shared__ union {
        typename Sort::TempStorage sort;
        typename Floats::TempStorage floats;
    } s;
    unsigned keys[4];
    unsigned short values[4];
    float reals[4];
    for (int k = 0; k < 4; k++) {
        values[k] = threadIdx.x * 4 + k;
        keys[k] = x[values[k]];
        reals[k] = (float)(int)keys[k];
    }
    Sort(s.sort).SortBlockedToStriped(keys, values, 4, 20);
    __syncthreads();
    Floats(s.floats).SortDescending(reals);
    for (int k = 0; k < 4; k++) {
        y[k * 128 + threadIdx.x] = keys[k] ^ values[k];
        ((float*)y)[512 + threadIdx.x * 4 + k] = reals[k];
    }
}

KERNEL(histograms_of_blocks) {
    using Sorted = cub::BlockHistogram<unsigned char, 128, 4, 64, cub::BLOCK_HISTO_SORT>;
    using Atomic = cub::BlockHistogram<unsigned char, 128, 4, 64, cub::BLOCK_HISTO_ATOMIC>;
    __shared__ union {
        typename Sorted::TempStorage sorted;
        typename Atomic::TempStorage atomic;
    } s;
    __shared__ unsigned bins[64];
    unsigned char v[4];
    for (int k = 0; k < 4; k++) v[k] = x[threadIdx.x * 4 + k] & 63;
    Sorted(s.sorted).Histogram(v, bins);
    __syncthreads();
    if (threadIdx.x < 64) y[threadIdx.x] = bins[threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 4; k++) v[k] = x[threadIdx.x * 4 + k] >> 26;
    Atomic(s.atomic).Histogram(v, bins);
    __syncthreads();
    if (threadIdx.x < 64) y[64 + threadIdx.x] = bins[threadIdx.x];
}

KERNEL(loads_and_stores) {
    using Across = cub::BlockLoad<unsigned, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Warps = cub::BlockLoad<unsigned, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Vectors = cub::BlockLoad<unsigned, 128, 4, cub::BLOCK_LOAD_VECTORIZE>;
    using Out = cub::BlockStore<unsigned, 128, 4, cub::BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED>;
    __shared__ union {
        typename Across::TempStorage across;
        typename Warps::TempStorage warps;
        typename Vectors::TempStorage vectors;
        typename Out::TempStorage out;
    } s;
    unsigned a[4], b[4], c[4];
    int at = blockIdx.x * 512;
    Across(s.across).Load(x + at, a, n - at, 11u);
    __syncthreads();
    Warps(s.warps).Load(x + at + 1, b);
    __syncthreads();
    Vectors(s.vectors).Load(x + at, c);
    __syncthreads();
    for (int k = 0; k < 4; k++) a[k] = a[k] + 3 * b[k] + 5 * c[3 - k];
    Out(s.out).Store(y + at, a, n - at);
}

KERNEL(heads_and_differences) {
    using Heads = cub::BlockDiscontinuity<unsigned, 128>;
    using Differences = cub::BlockAdjacentDifference<unsigned, 128>;
    __shared__ union {
        typename Heads::TempStorage heads;
        typename Differences::TempStorage differences;
    } s;
    unsigned v[4], d[4];
    int head[4], tail[4];
    for (int k = 0; k < 4; k++) v[k] = x[threadIdx.x * 4 + k] & 1;
    Heads(s.heads).FlagHeadsAndTails(head, tail, v, cuda::std::not_equal_to<>());
    __syncthreads();
    for (int k = 0; k < 4; k++) v[k] = x[threadIdx.x * 4 + k];
    Differences(s.differences).SubtractLeft(v, d, cuda::std::minus<>());
    for (int k = 0; k < 4; k++) y[threadIdx.x * 4 + k] = d[k] * 4 + head[k] * 2 + tail[k];
}

struct Less {
    __device__ bool operator()(unsigned a, unsigned b) const { return a < b; }
};

KERNEL(sorts_by_merging) {
    using Block = cub::BlockMergeSort<unsigned, 128, 3, unsigned>;
    using Warp = cub::WarpMergeSort<unsigned, 4, 16>;
    __shared__ union {
        typename Block::TempStorage block;
        typename Warp::TempStorage warps[8];
    } s;
    unsigned keys[4], k3[3], v3[3];
    for (int k = 0; k < 3; k++) {
        k3[k] = x[threadIdx.x * 3 + k] % 64;
        v3[k] = threadIdx.x * 3 + k;
    }
    Block(s.block).StableSort(k3, v3, Less(), n, ~0u);
    for (int k = 0; k < 3; k++)
        if (threadIdx.x * 3 + k < n) y[threadIdx.x * 3 + k] = k3[k] * 1000 + v3[k];
    __syncthreads();
    for (int k = 0; k < 4; k++) keys[k] = x[threadIdx.x * 4 + k];
    Warp(s.warps[threadIdx.x / 16]).Sort(keys, Less());
    for (int k = 0; k < 4; k++) y[384 + threadIdx.x * 4 + k] = keys[k];
}

KERNEL(shuffles_and_exchanges) {
    using Shuffle = cub::BlockShuffle<unsigned, 128>;
    using Exchange = cub::BlockExchange<unsigned, 128, 4, true>;
    using Warp = cub::WarpExchange<unsigned, 4, 32>;
    __shared__ union {
        typename Shuffle::TempStorage shuffle;
        typename Exchange::TempStorage exchange;
        typename Warp::TempStorage warps[4];
    } s;
    unsigned v[4], w[4];
    int ranks[4];
    for (int k = 0; k < 4; k++) v[k] = x[threadIdx.x * 4 + k];
    Exchange(s.exchange).BlockedToStriped(v, w);
    __syncthreads();
    for (int k = 0; k < 4; k++) ranks[k] = (threadIdx.x * 4 + k) * 5 % 512;
    Exchange(s.exchange).ScatterToBlocked(w, ranks);
    __syncthreads();
    Warp(s.warps[threadIdx.x / 32]).StripedToBlocked(w, w);
    __syncthreads();
    unsigned up[4], one = 0;
    Shuffle(s.shuffle).Up(w, up);
    if (threadIdx.x == 0) up[0] = 0;
    __syncthreads();
    Shuffle(s.shuffle).Rotate(w[1], one, 7);
    for (int k = 0; k < 4; k++) y[threadIdx.x * 4 + k] = up[k] + one * 3;
}

KERNEL(primitives_of_warps) {
    using Reduce = cub::WarpReduce<unsigned, 16>;
    using Scan = cub::WarpScan<unsigned>;
    using Odd = cub::WarpReduce<unsigned, 11>;
    __shared__ union {
        typename Reduce::TempStorage reduce[8];
        typename Scan::TempStorage scan[4];
        typename Odd::TempStorage odd[4];
    } s;
    int warp = threadIdx.x / 32, i = blockIdx.x * 128 + threadIdx.x;
    unsigned v = x[i % n], before, total;
    unsigned sum = Reduce(s.reduce[threadIdx.x / 16]).Sum(v);
    __syncthreads();
    unsigned most = Reduce(s.reduce[threadIdx.x / 16]).HeadSegmentedReduce(v, (int)(v % 5 == 0), Most());
    __syncthreads();
    Scan(s.scan[warp]).ExclusiveSum(v, before, total);
    __syncthreads();
    unsigned odd = 0;
    if (threadIdx.x % 32 < 11) odd = Odd(s.odd[warp]).Sum(v);
    unsigned r = before + 3 * total;
    if (threadIdx.x % 16 == 0) r += 5 * sum;
    if (threadIdx.x % 16 == 0 || v % 5 == 0) r += 7 * most;
    if (threadIdx.x % 32 == 0) r += 9 * odd;
    y[i] = r;
}

KERNEL(runs_of_equal_values) {
    using Decode = cub::BlockRunLengthDecode<unsigned, 128, 2, 4>;
    __shared__ typename Decode::TempStorage s;
    unsigned values[2], lengths[2], total, out[4], within[4];
    for (int k = 0; k < 2; k++) {
        values[k] = x[threadIdx.x * 2 + k];
        lengths[k] = values[k] % 4 + 1;
    }
    Decode decode(s, values, lengths, total);
    for (unsigned from = 0; from < total; from += 512) {
        decode.RunLengthDecode(out, within, from);
        for (int k = 0; k < 4; k++) {
            unsigned at = from + threadIdx.x * 4 + k;
            if (at < total) y[at] = out[k] * 4 + within[k];
        }
        __syncthreads();
    }
}

__device__ unsigned states[2 * (32 + 64)];

// The scan of cub::DeviceScan in one launch. Its first block sets the tiles' states up, and a counter lets the
// others go.
__device__ unsigned ready;
__device__ unsigned next_tile;

KERNEL(scan_by_looking_back) {
    using State = cub::ScanTileState<unsigned>;
    using Scan = cub::BlockScan<unsigned, 128>;
    using Prefix = cub::TilePrefixCallbackOp<unsigned, cuda::std::plus<>, State>;
    __shared__ typename Scan::TempStorage scan;
    __shared__ typename Prefix::TempStorage prefix;
    __shared__ int tile;
    State state;
    state.Init(gridDim.x, states, sizeof(states));
    if (blockIdx.x == 0) {
        state.InitializeStatus(gridDim.x);
        __syncthreads();
        __threadfence();
        if (threadIdx.x == 0) atomicExch(&ready, 1);
    }
    if (threadIdx.x == 0) {
        while (atomicAdd(&ready, 0) == 0) __nanosleep(100);
        __threadfence();
        tile = atomicAdd(&next_tile, 1);
    }
    __syncthreads();
    int i = tile * 128 + threadIdx.x;
    unsigned v = i < n ? x[i] : 0, r;
    if (tile == 0) {
        unsigned total;
        Scan(scan).InclusiveSum(v, r, total);
        if (threadIdx.x == 0) state.SetInclusive(0, total);
    } else {
        Prefix op(state, prefix, cuda::std::plus<>(), tile);
        Scan(scan).InclusiveSum(v, r, op);
    }
    if (i < n) y[i] = r;
}
