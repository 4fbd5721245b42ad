// Floating point: exact where the values are small multiples of powers of two, within a bound elsewhere.

#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define ID const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return

// A multiple of 1/16 between -64 and 64.
__device__ float value(unsigned word) { return (int)(word % 2049) / 16.0f - 64.0f; }

KERNEL(axpy_of_floats) { ID; ((float*)y)[i] = fmaf(2.5f, value(x[i]), value(x[(i + 1) % n])); }

KERNEL(axpy_of_doubles) { ID; ((double*)y)[i] = 2.5 * value(x[i]) - 1e9 * value(x[(i + 1) % n]); }

KERNEL(sum_of_floats) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += value(x[i]);
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) atomicAdd((float*)y, sum);
}

KERNEL(sum_of_doubles) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)value(x[i]) * 1048576.0 + 0.125;
    atomicAdd((double*)y, sum);
}

KERNEL(halves) {
    ID;
    __half2 a = __floats2half2_rn(value(x[i]) * 0.25f, value(x[i] >> 7) * 0.25f), b = __float2half2_rn(0.5f);
    __half2 r = __hfma2(a, b, __hsub2(b, a));
    r = __hgt2(a, b).x == __float2half(1.0f) ? r : __hneg2(r);
    r = __hadd2(r, __hmax2(a, b));
    y[i] = *(unsigned*)&r + (__hbgt2(a, b) ? 1u : 0u) + (__hlt(__low2half(a), __high2half(a)) ? 2u : 0u);
}

KERNEL(brains) {
    ID;
    __nv_bfloat16 a = __float2bfloat16(value(x[i])), b = __float2bfloat16(1.5f);
    float sum = __bfloat162float(a) + __bfloat162float(b);
    __nv_bfloat16 r = __float2bfloat16(sum * 3.0f);
    y[i] = *(unsigned short*)&r;
}

KERNEL(atomics_on_halves) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd((__half2*)y, __floats2half2_rn((float)(x[i] & 1), (float)(x[i] >> 1 & 1)));
    if (i < n) atomicAdd((__half*)(y + 1), __float2half((float)(x[i] >> 2 & 1)));
}

KERNEL(roundings) {
    ID;
    float a = __uint_as_float(x[i] & 0x007fffff | 0x3f800000), b = __uint_as_float(x[(i
        + 1) % n] & 0x007fffff | 0x3f000000);
    double c = a * 1.1, d = b * 0.3;
    unsigned r = __float_as_uint(__fadd_rd(a, b)) ^ __float_as_uint(__fmul_ru(a, b)) * 3
        ^ __float_as_uint(__fmaf_rz(a, b, a)) * 5
        ^ __float_as_uint(__fdiv_rd(a, b)) * 7 ^ __float_as_uint(__fsqrt_ru(b)) * 9
            ^ __float_as_uint(__frcp_rz(a)) * 11;
    unsigned long long w = __double_as_longlong(__dadd_ru(c, d)) ^ __double_as_longlong(__dmul_rd(c, d)) * 3
        ^ __double_as_longlong(__fma_rz(c, d, c)) * 5 ^ __double_as_longlong(__ddiv_ru(c, d)) * 7
            ^ __double_as_longlong(__dsqrt_rd(d)) * 9;
    y[i] = r ^ (unsigned)w ^ (unsigned)(w >> 32);
}

KERNEL(conversions) {
    ID;
    float v = value(x[i]) * 1.37f;
    y[i] = __float2int_rn(v) + 3 * __float2int_rz(v) + 5 * __float2int_ru(v) + 7 * __float2int_rd(v)
        + (unsigned)(long long)(v * 1e6f)
        + (unsigned)__float_as_uint(__int2float_rz((int)x[i])) + (unsigned)__double2int_rn(v * 0.5)
            + (unsigned)(unsigned char)(fabsf(v))
        + (unsigned)__float_as_uint((float)(unsigned long long)x[i]) + __half_as_ushort(__float2half_rz(v))
            + (int)rintf(v) + (int)floorf(v)
        + (int)ceilf(v) + (int)truncf(v) + (int)roundf(v);
}

KERNEL(classes_of_floats) {
    ID;
    float v = __uint_as_float(x[i] << 1 ^ (x[i] & 3) * 0x7f800000u);
    double w = v;
    y[i] = isnan(v) + 2 * isinf(v) + 4 * (isfinite(v) != 0) + 8 * (signbit(v) != 0) + 16 * isnan(w)
        + 32 * (fminf(v, 1.0f) < 0.5f)
        + 64 * (fmaxf(v, -1.0f) > 0.5f) + 128 * (copysignf(1.0f, v) < 0) + 256 * (v == v);
}

KERNEL(complex_products) {
    ID;
    cuFloatComplex a = make_cuFloatComplex(value(x[i]), value(x[i] >> 5)),
        b = make_cuFloatComplex(value(x[i] >> 9), 0.5f);
    cuFloatComplex r = cuCaddf(cuCmulf(a, b), cuConjf(a));
    ((float*)y)[2 * i] = cuCrealf(r);
    ((float*)y)[2 * i + 1] = cuCimagf(r);
}

KERNEL(mandelbrot) {
    ID;
    double cr = (int)(x[i] % 257) / 128.0 - 1.5, ci = (int)(x[i] / 257 % 129) / 64.0 - 1.0, r = 0, m = 0;
    int steps = 0;
    while (steps < 50 && __dadd_rn(__dmul_rn(r, r), __dmul_rn(m, m)) < 4) {
        double t = __dadd_rn(__dsub_rn(__dmul_rn(r, r), __dmul_rn(m, m)), cr);
        m = __dadd_rn(__dmul_rn(2 * r, m), ci);
        r = t;
        steps++;
    }
    y[i] = steps;
}

KERNEL(n_body) {
    ID;
    float px = value(x[i]), py = value(x[i] >> 4), fx = 0, fy = 0;
    for (int j = 0; j < n; j++) {
        float dx = value(x[j]) - px, dy = value(x[j] >> 4) - py, r = rsqrtf(dx * dx + dy * dy + 1.0f);
        fx += dx * r * r * r;
        fy += dy * r * r * r;
    }
    ((float*)y)[2 * i] = fx;
    ((float*)y)[2 * i + 1] = fy;
}

// One block solves a system of n unknowns by elimination; the matrix is diagonal-dominant.
KERNEL(elimination) {
    extern __shared__ double a[];
    int w = n + 1, t = threadIdx.x;
    for (int k = t; k < n * w; k += blockDim.x) {
        int r = k / w, c = k % w;
        a[k] = (int)(x[k] % 17) - 8 + (r == c ? 16 * n : 0);
    }
    __syncthreads();
    for (int p = 0; p < n; p++) {
        for (int r = t; r < n; r += blockDim.x) {
            if (r == p) continue;
            double f = a[r * w + p] / a[p * w + p];
            for (int c = p; c < w; c++) a[r * w + c] -= f * a[p * w + c];
        }
        __syncthreads();
    }
    for (int r = t; r < n; r += blockDim.x) ((double*)y)[r] = a[r * w + n] / a[r * w + r];
}

// Cholesky's decomposition of L·Lᵀ for an L of small integers gives L.
KERNEL(cholesky) {
    __shared__ double a[16][16];
    int r = threadIdx.x, c = threadIdx.y;
    double sum = 0;
    for (int k = 0; k <= min(r, c); k++) {
        double p = k == r ? 4 : (int)(x[r * 16 + k] % 7) - 3, q = k == c ? 4 : (int)(x[c * 16 + k] % 7) - 3;
        sum += p * q;
    }
    a[r][c] = sum;
    __syncthreads();
    for (int k = 0; k < n; k++) {
        if (r == k && c == k) a[k][k] = sqrt(a[k][k]);
        __syncthreads();
        if (c == k && r > k) a[r][k] /= a[k][k];
        __syncthreads();
        if (r > k && c > k && c <= r) a[r][c] -= a[r][k] * a[c][k];
        __syncthreads();
    }
    ((double*)y)[r * 16 + c] = c <= r ? a[r][c] : 0;
}

KERNEL(horner) {
    ID;
    float v = value(x[i]) / 64, r = 0;
    for (int k = 7; k >= 0; k--) r = fmaf(r, v, (float)(k * k - 9));
    ((float*)y)[i] = r;
}

#define FUNCTION(name, of, expression) KERNEL(name) { ID; of v = value(x[i]); ((of*)y)[i] = expression; }
FUNCTION(sine, float, sinf(v))
FUNCTION(cosine, float, cosf(v))
FUNCTION(tangent, float, tanf(v / 64))
FUNCTION(exponential, float, expf(v / 4))
FUNCTION(logarithm, float, logf(fabsf(v) + 0.0625f))
FUNCTION(power, float, powf(fabsf(v) + 0.5f, 1.75f))
FUNCTION(cube_root, float, cbrtf(v))
FUNCTION(error_function, float, erff(v / 16))
FUNCTION(gamma_function, float, tgammaf(fabsf(v) / 8 + 0.5f))
FUNCTION(arc_tangent, float, atan2f(v, 3.0f))
FUNCTION(hyperbolic, float, tanhf(v / 16))
FUNCTION(fast_exponential, float, __expf(v / 16))
FUNCTION(remainder_of, float, fmodf(v, 2.75f))
FUNCTION(sine_of_double, double, sin(v))
FUNCTION(exponential_of_double, double, exp(v / 4))
FUNCTION(logarithm_of_double, double, log(fabs(v) + 0.0625))
FUNCTION(power_of_double, double, pow(fabs(v) + 0.5, -1.75))
FUNCTION(reciprocal_root_of_double, double, rsqrt(fabs(v) + 0.5))
FUNCTION(hypotenuse_of_double, double, hypot(v, 3.0))
