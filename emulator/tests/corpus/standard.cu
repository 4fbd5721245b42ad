// from sm_80
// The CUDA C++ standard library: atomics, barriers, pipelines, and what the host's library has, too.

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/optional>
#include <cuda/std/tuple>
#include <cooperative_groups.h>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

KERNEL(atomic_references) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> sum(y[0]), most(y[1]), bits(y[2]);
    sum.fetch_add(x[i], cuda::memory_order_relaxed);
    most.fetch_max(x[i]);
    bits.fetch_xor(x[i], cuda::memory_order_acq_rel);
    cuda::atomic_ref<unsigned, cuda::thread_scope_system> counter(y[3]);
    unsigned seen = counter.load();
    while (!counter.compare_exchange_weak(seen, seen + 2)) {}
}

KERNEL(atomics_of_blocks) {
    __shared__ cuda::atomic<unsigned, cuda::thread_scope_block> count;
    if (threadIdx.x == 0) new (&count) cuda::atomic<unsigned, cuda::thread_scope_block>(0);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) count.fetch_add(x[i] & 0xff, cuda::memory_order_relaxed);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = count.load();
}

KERNEL(spin_lock) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> lock(y[0]);
    // One lane of a warp at a time, so that a lane that spins cannot keep its neighbours from the unlock.
    for (int lane = 0; lane < 32; lane++) {
        if (threadIdx.x % 32 == lane) {
            while (lock.exchange(1, cuda::memory_order_acquire)) {}
            ((volatile unsigned*)y)[1] = y[1] + x[threadIdx.x % n] % 7;
            lock.store(0, cuda::memory_order_release);
        }
        __syncwarp();
    }
}

KERNEL(barriers) {
    __shared__ unsigned s[128];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    unsigned v = x[threadIdx.x % n];
    for (int round = 0; round < 3; round++) {
        s[threadIdx.x] = v;
        bar.arrive_and_wait();
        v = v * 3 + s[(threadIdx.x + 1) % blockDim.x];
        auto token = bar.arrive();
        bar.wait(cuda::std::move(token));
    }
    y[threadIdx.x] = v;
}

KERNEL(pipelines) {
    __shared__ unsigned stage[2][128];
    auto block = cooperative_groups::this_thread_block();
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
    int steps = n / 128;
    unsigned sum = 0;
    for (int fetch = 0, step = 0; step < steps; step++) {
        for (; fetch < steps && fetch < step + 2; fetch++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stage[fetch % 2], x + fetch * 128, cuda::aligned_size_t<16>(512), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = sum * 3 + stage[step % 2][(threadIdx.x * 5 + step) % 128];
        pipe.consumer_release();
    }
    y[threadIdx.x] = sum;
}

KERNEL(copies_of_a_thread) {
    __shared__ alignas(16) unsigned s[4 * 64];
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&s[4 * threadIdx.x], &x[4 * threadIdx.x], cuda::aligned_size_t<16>(16), pipe);
    pipe.producer_commit();
    cuda::pipeline_consumer_wait_prior<0>(pipe);
    __syncthreads();
    y[threadIdx.x] = s[4 * (63 - threadIdx.x)] + s[4 * (63 - threadIdx.x) + 3];
    pipe.consumer_release();
}

KERNEL(library_types) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::std::array<unsigned, 6> a;
    for (int k = 0; k < 6; k++) a[k] = x[(i + k) % n] >> 16;
    for (int p = 0; p < 6; p++)
        for (int q = 0; q < 5; q++)
            if (a[q] > a[q + 1]) cuda::std::swap(a[q], a[q + 1]);
    auto pair = cuda::std::make_tuple(a[2], cuda::std::popcount(x[i]), cuda::std::rotl(x[i], 7));
    cuda::std::optional<unsigned> some;
    if (x[i] & 1) some = a[5];
    cuda::std::complex<float> c(i % 16, 2);
    c *= c;
    y[i] = cuda::std::get<0>(pair) + cuda::std::get<1>(pair) * 3 + cuda::std::get<2>(pair) + some.value_or(17)
        + (unsigned)(int)c.real() + (unsigned)c.imag();
}
