// from sm_80
// More of the CUDA C++ standard library: orders and scopes, queues, locks, partitioned pipelines and functions.

#include <cuda/annotated_ptr>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/std/bitset>
#include <cuda/std/cmath>
#include <cuda/std/complex>
#include <cuda/std/functional>
#include <cuda/std/utility>
#include <cuda/std/mdspan>
#include <cuda/std/span>
#include <cuda/std/variant>
#include <cuda/std/limits>
#include <cuda/std/numeric>
#include <cooperative_groups.h>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

KERNEL(atomics_of_all_sizes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::atomic_ref<unsigned char, cuda::thread_scope_device> byte(*(unsigned char*)y);
    byte.fetch_add(1, cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned short, cuda::thread_scope_device> narrow(*((unsigned short*)y + 1));
    narrow.fetch_xor(x[i] & 0xffff);
    cuda::atomic_ref<double, cuda::thread_scope_device> real(*((double*)y + 1));
    real.fetch_add(x[i] % 1024 * 0.25, cuda::memory_order_relaxed);
    cuda::atomic_ref<float, cuda::thread_scope_device> most(*((float*)y + 4));
    most.fetch_max((float)(x[i] >> 8), cuda::memory_order_acq_rel);
    cuda::atomic_ref<long long, cuda::thread_scope_system> wide(*((long long*)y + 3));
    long long old = wide.load(cuda::memory_order_relaxed);
    while (!wide.compare_exchange_weak(old, old + (int)x[i], cuda::memory_order_release, cuda::memory_order_relaxed)) ;
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> least(y[8]);
    least.fetch_min(x[i] | 1, cuda::memory_order_seq_cst);
}

struct Cell { unsigned value; cuda::atomic<unsigned, cuda::thread_scope_device> full; };
__device__ Cell queue[16];

// The first block brings values through a ring of cells to the second.
KERNEL(queue_between_blocks) {
    if (threadIdx.x != 0) return;
    unsigned sum = 0;
    for (int k = 0; k < n; k++) {
        Cell& cell = queue[k % 16];
        if (blockIdx.x == 0) {
            while (cell.full.load(cuda::memory_order_acquire)) __nanosleep(20);
            cell.value = x[k];
            cell.full.store(1, cuda::memory_order_release);
        } else {
            while (!cell.full.load(cuda::memory_order_acquire)) __nanosleep(20);
            sum = sum * 3 + cell.value;
            cell.full.store(0, cuda::memory_order_release);
        }
    }
    if (blockIdx.x == 1) y[0] = sum;
}

// A message by fences and relaxed flags, and one by waiting on an atomic.
KERNEL(messages) {
    __shared__ unsigned value[2];
    __shared__ cuda::atomic<unsigned, cuda::thread_scope_block> flag, turn;
    if (threadIdx.x == 0) { flag = 0; turn = 0; }
    __syncthreads();
    if (threadIdx.x == 0) {
        value[0] = x[n];
        cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_block);
        flag.store(1, cuda::memory_order_relaxed);
        turn.wait(0);
        y[0] = value[1];
    } else if (threadIdx.x == 32) {
        while (flag.load(cuda::memory_order_relaxed) == 0) ;
        cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_block);
        value[1] = value[0] + 1;
        turn.store(1);
        turn.notify_all();
    }
}

KERNEL(latches_and_semaphores) {
    using Latch = cuda::latch<cuda::thread_scope_block>;
    using Places = cuda::counting_semaphore<cuda::thread_scope_block, 4>;
    __shared__ alignas(Latch) unsigned char memory[2][64];
    Latch& latch = *(Latch*)memory[0];
    Places& places = *(Places*)memory[1];
    __shared__ cuda::atomic<int, cuda::thread_scope_block> inside, most;
    __shared__ unsigned s[64];
    if (threadIdx.x == 0) {
        new (&latch) Latch(64);
        new (&places) Places(2);
        inside = 0; most = 0;
    }
    __syncthreads();
    s[threadIdx.x] = x[threadIdx.x];
    latch.arrive_and_wait();
    unsigned v = s[63 - threadIdx.x];
    if (threadIdx.x % 16 == 0) {
        places.acquire();
        int now = inside.fetch_add(1) + 1;
        most.fetch_max(now);
        inside.fetch_sub(1);
        places.release();
    }
    __syncthreads();
    y[threadIdx.x] = v + (most.load() <= 2) + n;
}

KERNEL(partitioned_pipeline) {
    __shared__ unsigned stage[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cooperative_groups::this_thread_block();
    auto role = threadIdx.x < 64 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    unsigned sum = 0;
    for (int k = 0; k < n; k++) {
        if (role == cuda::pipeline_role::producer) {
            pipe.producer_acquire();
            cuda::memcpy_async(&stage[k % 2][threadIdx.x], x + k * 64 + threadIdx.x, sizeof(unsigned), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            sum = sum * 3 + stage[k % 2][127 - threadIdx.x];
            pipe.consumer_release();
        }
    }
    if (threadIdx.x >= 64) y[threadIdx.x - 64] = sum;
}

KERNEL(barriers_with_a_function) {
    struct Add { unsigned* to; __device__ void operator()() const noexcept { *to += 5; } };
    __shared__ unsigned count;
    __shared__ alignas(cuda::barrier<cuda::thread_scope_block, Add>) unsigned char place[sizeof(cuda::barrier<cuda::thread_scope_block, Add>)];
    auto& bar = *(cuda::barrier<cuda::thread_scope_block, Add>*)place;
    if (threadIdx.x == 0) { count = 0; new (&bar) cuda::barrier<cuda::thread_scope_block, Add>(blockDim.x, Add{&count}); }
    __syncthreads();
    for (int k = 0; k < 3; k++) {
        bar.arrive_and_wait();
        y[k * blockDim.x + threadIdx.x] = count + x[threadIdx.x] + n;
        bar.arrive_and_wait();
    }
}

KERNEL(functions_of_complex_numbers) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::std::complex<double> z((int)(x[i] % 65) / 16.0 - 2, (int)(x[i] % 33) / 16.0 - 1);
    auto r = cuda::std::exp(z) / (z * z + cuda::std::complex<double>(7, 1)) + cuda::std::sqrt(z) * cuda::std::conj(z);
    ((double*)y)[2 * i] = r.real();
    ((double*)y)[2 * i + 1] = r.imag() + cuda::std::abs(z) + cuda::std::arg(z + 3.0);
}

KERNEL(views_and_algorithms) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned local[12];
    cuda::std::span<unsigned, 12> view(local);
    int k = 0;
    for (auto& v : view) v = x[(i + k++) % n] % 1000;
    cuda::std::mdspan<unsigned, cuda::std::extents<int, 3, 4>> grid(local);
    unsigned r = grid(2, 1) * 3 + grid(i % 3, i % 4);
    for (int p = 1; p < 12; p++) for (int q = p; q && local[q] < local[q - 1]; q--) cuda::std::swap(view[q], view[q - 1]);
    r += cuda::std::accumulate(view.begin(), view.end(), 0u, [](unsigned s, unsigned v) { return s + (v < 500); }) * 13;
    r += cuda::std::accumulate(view.begin(), view.begin() + 5, 0u);
    cuda::std::variant<int, unsigned, float> some;
    if (x[i] & 1) some = x[i] >> 3; else some = (float)(x[i] >> 20);
    r += cuda::std::visit([](auto v) { return (unsigned)(v * 2); }, some);
    cuda::std::bitset<96> bits(x[i]);
    bits <<= 40; bits.flip(50);
    r += bits.count() * 9 + bits.test(41) + cuda::std::gcd(x[i] | 1, 9999u) + cuda::std::numeric_limits<short>::max();
    y[i] = r;
}
