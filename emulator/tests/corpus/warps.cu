// Lanes of a warp and threads of a block that work together: sums, scans, votes, atomic operations, shared memory.

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define ALL 0xffffffffu

__device__ unsigned global(int) { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ unsigned warp_sum(unsigned v) {
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(ALL, v, d);
    return v;
}

KERNEL(sum_by_shuffles) {
    __shared__ unsigned part[32];
    unsigned v = 0;
    for (int i = global(0); i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        v = warp_sum(v);
        if (threadIdx.x == 0) atomicAdd(y, v);
    }
}

KERNEL(sum_by_tree) {
    __shared__ unsigned part[256];
    unsigned t = threadIdx.x, i = global(0);
    part[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned d = blockDim.x / 2; d; d /= 2) {
        if (t < d) part[t] += part[t + d];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = part[0];
}

KERNEL(largest_and_place) {
    __shared__ unsigned long long best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicMax(&best, (unsigned long long)x[i] << 32 | (n - i));
    __syncthreads();
    if (threadIdx.x == 0) { y[0] = (unsigned)(best >> 32); y[1] = n - (unsigned)best; }
}

KERNEL(scan_of_warps) {
    int i = global(0);
    unsigned v = i < n ? x[i] : 0, lane = threadIdx.x % 32;
    for (int d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(ALL, v, d);
        if (lane >= d) v += other;
    }
    if (i < n) y[i] = v;
}

KERNEL(scan_of_block) {
    __shared__ unsigned a[2][1024];
    int t = threadIdx.x, from = 0;
    a[0][t] = t < n ? x[t] : 0;
    __syncthreads();
    for (int d = 1; d < blockDim.x; d *= 2) {
        a[1 - from][t] = t >= d ? a[from][t] + a[from][t - d] : a[from][t];
        from = 1 - from;
        __syncthreads();
    }
    if (t < n) y[t] = a[from][t];
}

KERNEL(scan_by_sweeps) {
    extern __shared__ unsigned a[];
    int t = threadIdx.x, size = 2 * blockDim.x;
    a[2 * t] = 2 * t < n ? x[2 * t] : 0;
    a[2 * t + 1] = 2 * t + 1 < n ? x[2 * t + 1] : 0;
    int offset = 1;
    for (int d = size / 2; d; d /= 2, offset *= 2) {
        __syncthreads();
        if (t < d) a[offset * (2 * t + 2) - 1] += a[offset * (2 * t + 1) - 1];
    }
    if (t == 0) a[size - 1] = 0;
    for (int d = 1; d < size; d *= 2) {
        offset /= 2;
        __syncthreads();
        if (t < d) {
            int p = offset * (2 * t + 1) - 1, q = offset * (2 * t + 2) - 1;
            unsigned v = a[p];
            a[p] = a[q];
            a[q] += v;
        }
    }
    __syncthreads();
    if (2 * t < n) y[2 * t] = a[2 * t];
    if (2 * t + 1 < n) y[2 * t + 1] = a[2 * t + 1];
}

KERNEL(histogram) {
    __shared__ unsigned bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = global(0); i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i] % 64], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&y[threadIdx.x], bins[threadIdx.x]);
}

KERNEL(votes) {
    int i = global(0);
    unsigned v = i < n ? x[i] : 0;
    unsigned odd = __ballot_sync(ALL, v & 1);
    int any = __any_sync(ALL, v % 97 == 0), all = __all_sync(ALL, v > 1000);
    if (i < n) y[i] = odd + any * 3 + all * 5;
}

KERNEL(equal_lanes) {
    int i = global(0);
    unsigned v = i < n ? x[i] % 5 : 9;
    unsigned peers = __match_any_sync(ALL, v);
    int same;
    unsigned everyone = __match_all_sync(ALL, v / 8, &same);
    if (i < n) y[i] = peers + same + __popc(everyone);
}

KERNEL(compaction) {
    __shared__ unsigned base;
    if (threadIdx.x == 0) base = 0;
    __syncthreads();
    // One warp keeps the order.
    for (int first = 0; first < n; first += 32) {
        int i = first + threadIdx.x;
        bool keep = i < n && x[i] % 3 == 0;
        unsigned mask = __ballot_sync(ALL, keep);
        unsigned place = base + __popc(mask & ((1u << threadIdx.x) - 1));
        __syncwarp();
        if (keep) y[1 + place] = x[i];
        if (threadIdx.x == 0) base += __popc(mask);
        __syncwarp();
    }
    if (threadIdx.x == 0) y[0] = base;
}

KERNEL(shuffles) {
    int i = global(0);
    unsigned v = x[i % n];
    unsigned r = __shfl_sync(ALL, v, (threadIdx.x * 7) % 32) + __shfl_xor_sync(ALL, v, 5) + __shfl_up_sync(ALL, v,
        3, 8)
        + __shfl_down_sync(ALL, v, 2, 16) + __shfl_sync(ALL, v, 3, 4);
    unsigned long long wide = __shfl_xor_sync(ALL, (unsigned long long)v * v, 9);
    if (i < n) y[i] = r + (unsigned)(wide >> 11);
}

KERNEL(atomics_of_all_kinds) {
    for (int i = global(0); i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&y[0], x[i]);
        atomicSub(&y[1], x[i]);
        atomicMin((int*)&y[2], (int)x[i]);
        atomicMax((int*)&y[3], (int)x[i]);
        atomicAnd(&y[4], x[i] | 0xff);
        atomicOr(&y[5], x[i] & 0xff00);
        atomicXor(&y[6], x[i]);
        atomicInc(&y[7], 100);
        atomicDec(&y[8], 1000);
        atomicAdd((unsigned long long*)&y[10], (unsigned long long)x[i] << 8);
        atomicMin(&y[12], x[i]);
        atomicMax(&y[13], x[i]);
        atomicAdd_block(&y[14], 1);
        atomicAdd_system(&y[15], 2);
    }
}

KERNEL(compare_and_swap) {
    for (int i = global(0); i < n; i += gridDim.x * blockDim.x) {
        unsigned old = *(volatile unsigned*)y, seen;
        do {
            seen = old;
            old = atomicCAS(&y[0], seen, seen + (x[i] & 0xff));
        } while (old != seen);
        unsigned short* half = (unsigned short*)&y[1];
        unsigned short before = *(volatile unsigned short*)half, was;
        do {
            was = before;
            before = atomicCAS(half, was, (unsigned short)(was + 1));
        } while (before != was);
    }
}

KERNEL(last_block_sums) {
    __shared__ unsigned part, last;
    if (threadIdx.x == 0) part = 0;
    __syncthreads();
    unsigned i = global(0);
    if (i < n) atomicAdd(&part, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        y[2 + blockIdx.x] = part;
        __threadfence();
        last = atomicAdd(&y[1], 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        unsigned sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += ((volatile unsigned*)y)[2 + b];
        y[0] = sum;
    }
}

KERNEL(transpose) {
    __shared__ unsigned tile[16][17];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int column = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty;
    if (row < n && column < n) tile[ty][tx] = x[row * n + column];
    __syncthreads();
    column = blockIdx.y * 16 + tx;
    row = blockIdx.x * 16 + ty;
    if (row < n && column < n) y[row * n + column] = tile[tx][ty];
}

KERNEL(product_of_tiles) {
    __shared__ unsigned a[16][16], b[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    unsigned sum = 0;
    for (int k = 0; k < n; k += 16) {
        a[ty][tx] = row < n && k + tx < n ? x[row * n + k + tx] : 0;
        b[ty][tx] = k + ty < n && column < n ? x[(k + ty) * n + column] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) sum += a[ty][i] * b[i][tx];
        __syncthreads();
    }
    if (row < n && column < n) y[row * n + column] = sum;
}

KERNEL(stencil) {
    __shared__ unsigned s[256 + 6];
    int i = global(0), t = threadIdx.x + 3;
    s[t] = i < n ? x[i] : 0;
    if (threadIdx.x < 3) {
        s[threadIdx.x] = i >= 3 && i - 3 < n ? x[i - 3] : 0;
        s[t + 256] = i + 256 < n ? x[i + 256] : 0;
    }
    __syncthreads();
    unsigned sum = 0;
    for (int d = -3; d <= 3; d++) sum += s[t + d] * (4 - abs(d));
    if (i < n) y[i] = sum;
}

__constant__ int weights[9] = {1, -2, 1, 3, 7, 3, -1, 2, -1};

KERNEL(convolution) {
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= n || column >= n) return;
    int sum = 0;
    for (int r = -1; r <= 1; r++)
        for (int c = -1; c <= 1; c++)
            if (row + r >= 0 && row + r < n && column + c >= 0 && column + c < n)
                sum += weights[3 * (r + 1) + c + 1] * (int)(x[(row + r) * n + column + c] & 0xff);
    y[row * n + column] = sum;
}

KERNEL(game_of_life) {
    extern __shared__ unsigned char cells[];
    unsigned char* next = cells + n * n;
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) cells[i] = x[i] & 1;
    __syncthreads();
    for (int round = 0; round < 5; round++) {
        for (int i = threadIdx.x; i < n * n; i += blockDim.x) {
            int r = i / n, c = i % n, alive = 0;
            for (int k = 0; k < 9; k++) if (k != 4) alive += cells[(r + k / 3 - 1 + n) % n * n + (c + k % 3 - 1
                + n) % n];
            next[i] = alive == 3 || (alive == 2 && cells[i]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < n * n; i += blockDim.x) cells[i] = next[i];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) y[i] = cells[i];
}

KERNEL(bitonic_sort) {
    __shared__ unsigned s[512];
    int t = threadIdx.x;
    s[t] = t < n ? x[t] : ~0u;
    __syncthreads();
    for (int k = 2; k <= 512; k *= 2)
        for (int j = k / 2; j; j /= 2) {
            int other = t ^ j;
            if (other > t && ((t & k) == 0) == (s[t] > s[other])) { unsigned v = s[t]; s[t] = s[other];
                s[other] = v; }
            __syncthreads();
        }
    if (t < n) y[t] = s[t];
}

KERNEL(odd_even_sort) {
    extern __shared__ unsigned s[];
    int t = threadIdx.x;
    if (t < n) s[t] = x[t];
    __syncthreads();
    for (int round = 0; round < n; round++) {
        int i = 2 * t + (round & 1);
        if (i + 1 < n && s[i] > s[i + 1]) { unsigned v = s[i]; s[i] = s[i + 1]; s[i + 1] = v; }
        __syncthreads();
    }
    if (t < n) y[t] = s[t];
}

KERNEL(rank_sort) {
    int i = global(0);
    if (i >= n) return;
    int rank = 0;
    for (int j = 0; j < n; j++) rank += x[j] < x[i] || (x[j] == x[i] && j < i);
    y[rank] = x[i];
}

KERNEL(barrier_reductions) {
    unsigned v = x[threadIdx.x % n];
    int count = __syncthreads_count(v & 1), both = __syncthreads_and(v != 0), any = __syncthreads_or(v % 101 == 0);
    y[threadIdx.x] = count + 1000 * (both != 0) + 2000 * (any != 0);
}

KERNEL(breadth_first) {
    // The graph has edges from i to 2i+1, 2i+2 and x[i] mod n.
    __shared__ int changed;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = i == 0 ? 0 : ~0u;
    __syncthreads();
    for (int level = 0;; level++) {
        if (threadIdx.x == 0) changed = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            if (((volatile unsigned*)y)[i] != level) continue;
            int edges[3] = {2 * i + 1, 2 * i + 2, (int)(x[i] % n)};
            for (int e = 0; e < 3; e++)
                if (edges[e] < n && atomicCAS(&y[edges[e]], ~0u, level + 1) == ~0u) atomicOr(&changed, 1);
        }
        __syncthreads();
        int go_on = changed;
        __syncthreads();
        if (!go_on) return;
    }
}
