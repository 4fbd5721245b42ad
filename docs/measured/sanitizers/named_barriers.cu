// What compute-sanitizer says of named barriers, on kernels of a few lines that are right by the PTX ISA.
//
//   nvcc -arch=sm_90a -lineinfo -o named_barriers named_barriers.cu
//   for kernel in 0 1 2 3 4 5; do
//       compute-sanitizer --tool racecheck ./named_barriers $kernel
//       compute-sanitizer --tool synccheck ./named_barriers $kernel
//   done
//
// Each run prints the kernel's name and whether its result is right.
#include <cstdio>
#include <cstdlib>

// One warp writes and arrives; another waits and reads: a hand-over by `bar.arrive` and `bar.sync`.
__global__ void hand_over(int *out) {
    __shared__ int words[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x >= 32) {
        words[lane] = lane + 1;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[lane] = words[lane];
    }
}

// The same, where the warp that writes waits, too.
__global__ void hand_over_by_sync(int *out) {
    __shared__ int words[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x >= 32) {
        words[lane] = lane + 1;
        asm volatile("bar.sync 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[lane] = words[lane];
    }
}

// As hand_over, where the block has a warp more that does not take part.
__global__ void hand_over_within(int *out) {
    __shared__ int words[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 2) {
        words[lane] = lane + 1;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else if (warp == 0) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[lane] = words[lane];
    }
}

// As hand_over, to two warps that read.
__global__ void hand_over_to_two(int *out) {
    __shared__ int words[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 2) {
        words[lane] = lane + 1;
        asm volatile("bar.arrive 1, 96;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 96;" ::: "memory");
        if (words[lane] == lane + 1) out[lane] = lane + 1;
    }
}

// As hand_over, behind a barrier of the block at which the reading warp only arrives.
__global__ void hand_over_behind_arrival(int *out) {
    __shared__ int words[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x >= 32) {
        asm volatile("bar.sync 0, 64;" ::: "memory");
        words[lane] = lane + 1;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.arrive 0, 64;" ::: "memory");
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[lane] = words[lane];
    }
}

// Two warps meet at one barrier in one place of the program.
__global__ void one_place(int *out) {
    __shared__ int words[64];
    words[threadIdx.x] = threadIdx.x % 32 + 1;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x % 32] = words[63 - threadIdx.x] > 0 ? threadIdx.x % 32 + 1 : 0;
}

template <class Kernel>
static void run(const char *name, Kernel kernel, int threads) {
    int *out, host[32];
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    kernel<<<1, threads>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < 32; i++) wrong += host[i] != i + 1;
    printf("%s: %s, %s\n", name, wrong ? "wrong" : "right", cudaGetErrorString(cudaGetLastError()));
    cudaFree(out);
}

// Runs the kernel whose number is the argument: a tool's finding may end the process.
int main(int argc, char **argv) {
    switch (argc > 1 ? atoi(argv[1]) : -1) {
    case 0: run("hand_over", hand_over, 64); break;
    case 1: run("hand_over_within", hand_over_within, 96); break;
    case 2: run("hand_over_to_two", hand_over_to_two, 96); break;
    case 3: run("hand_over_behind_arrival", hand_over_behind_arrival, 64); break;
    case 4: run("hand_over_by_sync", hand_over_by_sync, 64); break;
    case 5: run("one_place", one_place, 64); break;
    default: printf("usage: named_barriers 0 to 5\n"); return 2;
    }
    return 0;
}
