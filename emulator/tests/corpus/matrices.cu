// wmma: products of halves and of bytes; the words of the input are small integers.

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;
#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)

// y = x[0..n·n] · x[n·n..]ᵀ for n a multiple of 16, values from -2 to 2; one warp a block and a tile.
KERNEL(wmma_of_halves) {
    __shared__ __align__(32) __half a[16 * 16], b[16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            a[i] = __int2half_rn((int)(x[(blockIdx.y * 16 + i / 16) * n + k + i % 16] % 5) - 2);
            b[i] = __int2half_rn((int)(x[n * n + (blockIdx.x * 16 + i / 16) * n + k + i % 16] % 5) - 2);
        }
        __syncwarp();
        wmma::load_matrix_sync(fa, a, 16);
        wmma::load_matrix_sync(fb, b, 16);
        wmma::mma_sync(sum, fa, fb, sum);
        __syncwarp();
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2;
    wmma::store_matrix_sync((float*)y + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}

template <int M, int N> __device__ void bytes(const unsigned* x, unsigned* y) {
    __shared__ __align__(32) signed char a[M * 16];
    __shared__ __align__(32) signed char b[16 * N];
    for (int i = threadIdx.x; i < M * 16; i += 32) a[i] = (signed char)x[i];
    for (int i = threadIdx.x; i < 16 * N; i += 32) b[i] = (signed char)(x[M * 16 + i] >> 8);
    __syncwarp();
    wmma::fragment<wmma::matrix_a, M, N, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, M, N, 16, signed char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, M, N, 16, int> sum;
    wmma::fill_fragment(sum, -3);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, N);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync((int*)y, sum, M, wmma::mem_col_major);
}

KERNEL(wmma_of_bytes) { bytes<16, 16>(x, y); }
KERNEL(wmma_of_bytes_wide) { bytes<8, 32>(x, y); }
KERNEL(wmma_of_bytes_tall) { bytes<32, 8>(x, y); }
