// from sm_80
// wmma with the types of sm_80: bf16, TF32, f64.

#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;
#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

__device__ float small(unsigned word) { return (float)((int)(word % 9) - 4); }

KERNEL(wmma_of_brains) {
    __shared__ __align__(32) __nv_bfloat16 a[256];
    __shared__ __align__(32) __nv_bfloat16 b[256];
    for (int i = threadIdx.x; i < 256; i += 32) {
        a[i] = __float2bfloat16(small(x[i]));
        b[i] = __float2bfloat16(small(x[256 + i]));
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::col_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync((float*)y, sum, 16, wmma::mem_row_major);
}

KERNEL(wmma_of_tf32) {
    __shared__ __align__(32) float a[128];
    __shared__ __align__(32) float b[128];
    for (int i = threadIdx.x; i < 128; i += 32) { a[i] = small(x[i]) + 0x1p-20f; b[i] = small(x[128 + i]); }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.5f);
    wmma::load_matrix_sync(fa, a, 8);
    wmma::load_matrix_sync(fb, b, 16);
    for (int i = 0; i < fa.num_elements; i++) fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync((float*)y, sum, 16, wmma::mem_row_major);
}

KERNEL(wmma_of_doubles) {
    __shared__ __align__(32) double a[32];
    __shared__ __align__(32) double b[32];
    a[threadIdx.x] = small(x[threadIdx.x]) * 1e3;
    b[threadIdx.x] = small(x[32 + threadIdx.x]) + 0.25;
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> sum;
    wmma::fill_fragment(sum, 0.0);
    wmma::load_matrix_sync(fa, a, 4);
    wmma::load_matrix_sync(fb, b, 4);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync((double*)y, sum, 8, wmma::mem_row_major);
}
