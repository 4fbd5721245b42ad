// from sm_80
// PTX within CUDA C++: products of fragments, asynchronous copies, barriers with numbers, and policies.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ float small(unsigned word) { return (int)(word % 5) - 2.0f; }

// 16 by 16 times 16 by 8, A and B brought by ldmatrix from rows that are swizzled.
KERNEL(products_of_halves) {
    __shared__ alignas(128) half a[16 * 16], b[16 * 8];
    int t = threadIdx.x;
    for (int k = t; k < 256; k += 32) a[k / 16 * 16 + ((k % 16 / 8) ^ (k / 64 & 1)) * 8 + k % 8] = __float2half(small(x[k]));
    for (int k = t; k < 128; k += 32) b[k] = __float2half(small(x[256 + k]));
    __syncwarp();
    unsigned fa[4], fb[2];
    int row = t % 16, part = t / 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
        : "r"(address(a + row * 16 + (part ^ (row / 4 & 1)) * 8)));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(address(b + t % 16 * 8)));
    float d[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    for (int k = 0; k < 4; k++) ((float*)y)[(t / 4 + k / 2 * 8) * 8 + t % 4 * 2 + k % 2] = d[k];
}

KERNEL(products_of_bytes) {
    // A is 16 by 32 by rows, B 32 by 8 by columns: each thread takes four bytes at once.
    int t = threadIdx.x, g = t / 4, q = t % 4, d[4] = {0, 0, 0, 0};
    const unsigned *a = x, *b = x + 128;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[g * 8 + q]), "r"(a[(g + 8) * 8 + q]), "r"(a[g * 8 + q + 4]), "r"(a[(g + 8) * 8 + q + 4]), "r"(b[g * 8 + q]), "r"(b[g * 8 + q + 4]));
    for (int k = 0; k < 4; k++) y[(g + k / 2 * 8) * 8 + q * 2 + k % 2] = d[k];
}

KERNEL(products_of_doubles) {
    int t = threadIdx.x, g = t / 4, q = t % 4;
    double c[2] = {0.5, 0.25}, a = small(x[g * 4 + q]), b = small(x[32 + g * 4 + q]);
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(c[0]), "+d"(c[1]) : "d"(a), "d"(b));
    ((double*)y)[g * 8 + q * 2] = c[0];
    ((double*)y)[g * 8 + q * 2 + 1] = c[1];
}

// Two halves of a block, one that brings and one that takes, by barriers with numbers.
KERNEL(barriers_with_numbers) {
    __shared__ unsigned stage[2][64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int k = 0; k < n; k++) {
            if (k >= 2) asm volatile("bar.sync %0, 128;" ::"r"(3 + k % 2) : "memory");
            stage[k % 2][t] = x[k * 64 + t];
            __threadfence_block();
            asm volatile("barrier.arrive %0, 128;" ::"r"(1 + k % 2) : "memory");
        }
    } else {
        unsigned sum = 0;
        for (int k = 0; k < n; k++) {
            asm volatile("barrier.sync %0, 128;" ::"r"(1 + k % 2) : "memory");
            sum = sum * 3 + stage[k % 2][63 - t];
            if (k + 2 < n) asm volatile("bar.arrive %0, 128;" ::"r"(3 + k % 2) : "memory");
        }
        y[t] = sum;
    }
}

// Four stages of cp.async, the last of them partly beyond the end and filled with zeros.
KERNEL(stages_of_copies) {
    extern __shared__ __align__(16) unsigned s[];
    int t = threadIdx.x, steps = (n + 255) / 256;
    unsigned sum = 0;
    auto bring = [&](int k) {
        int at = k * 256 + t * 4, bytes = at >= n ? 0 : min(16, (n - at) * 4);
        if (k < steps)
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address(s + k % 4 * 256 + t * 4)), "l"(x + (bytes ? at : 0)), "r"(bytes) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int k = 0; k < 3; k++) bring(k);
    for (int k = 0; k < steps; k++) {
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        __syncthreads();
        bring(k + 3);
        for (int j = 0; j < 4; j++) sum = sum * 3 + s[k % 4 * 256 + (t * 5 + j * 64) % 256];
    }
    y[t] = sum;
}

KERNEL(copies_by_primitives) {
    __shared__ uint2 s[64];
    __pipeline_memcpy_async(s + threadIdx.x, (const uint2*)x + threadIdx.x, 8);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x].x + s[threadIdx.x ^ 5].y + n;
}

KERNEL(loads_with_policies) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    unsigned a, b, c, d, e, f;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(x + i * 4));
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(e) : "l"(x + i), "l"(policy));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i));
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u32 %0, [%1];" : "=r"(f) : "l"(x + i + 1));
    asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(y + i), "r"(a + b * 3 + c * 5 + d * 7 + e * 9 + f + n), "l"(policy) : "memory");
}

KERNEL(registers_of_the_machine) {
    unsigned lane, less, warps, grid, shared, total;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(less));
    asm("mov.u32 %0, %%nctaid.x;" : "=r"(warps));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(grid));
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared));
    asm("mov.u32 %0, %%total_smem_size;" : "=r"(total));
    long long then = clock64();
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool good = clock64() >= then && grid < 1024 && total >= shared && __isShared(y) == false && __isGlobal(y) && time + 1 > 0;
    y[i] = x[i] + lane + less * 3 + warps * 5 + shared * 7 + good + n;
}

KERNEL(narrow_floats) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = ((int)(x[i] % 513) - 256) / 8.0f;
    __nv_fp8_e4m3 a(v);
    __nv_fp8_e5m2 b(v * 3);
    __nv_bfloat162 p = __floats2bfloat162_rn(v, v + 1), q = __hfma2(p, p, __float2bfloat162_rn(0.5f));
    __nv_bfloat162 r = __hmax2(__hfma2_relu(p, q, p), __hneg2(q));
    half2 h = __hfma2_sat(__float2half2_rn(v / 64), __float2half2_rn(0.5f), __float2half2_rn(0.25f));
    half2 m = __hmul2(h, __hadd2_rn(h, h));
    unsigned sum = __float_as_uint((float)a + (float)b) + (*(unsigned*)&r >> 3) + *(unsigned*)&m * 3 + __hbeq2(p, p);
    half e = hrint(hsqrt(__float2half(fabsf(v))));
    y[i] = sum + __half2uint_rn(e) + __half2int_rz(__float2half(v)) * 7 + __bfloat16_as_ushort(__float2bfloat16_rz(v * 1.01f));
}

KERNEL(integers_of_all_kinds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned inside = __ballot_sync(0xffffffffu, i < n);
    if (i >= n) return;
    unsigned a = x[i], b = x[(i + 1) % n], c = x[(i + 2) % n], r;
    r = __dp4a((int)a, (int)b, (int)c) + __dp2a_lo(a, b, c) + __dp2a_hi((int)a, (int)b, (int)c) * 3;
    r ^= __funnelshift_l(a, b, c) ^ __funnelshift_rc(a, b, c >> 20) * 3 ^ __byte_perm(a, b, c);
    r += __vaddus4(a, b) + __vsubss2(a, b) + __vabsdiffs4(a, b) + __vcmpgtu4(a, b) + __vavgu4(b, c) + __vmaxs2(a, c) + __vsadu4(a, b);
    r += __reduce_add_sync(inside, a >> 3) + __reduce_xor_sync(inside, b) * 3;
    r += (unsigned)__reduce_min_sync(inside, (int)c) + __mulhi((int)a, (int)b) + __umul24(a, b) + __mul24((int)a, (int)b) + __usad(a, b, c);
    r += __brev(a) + __clzll((long long)a << 13 | 1) + __ffs(b & 0xff0);
    y[i] = r;
}
