// What the language has: bit fields, unions, wide integers, tables of constants, inheritance, and hints for caches.

#include <cuda_fp16.h>

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define ID const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return

struct Fields {
    unsigned a : 3, b : 13;
    int c : 5;
    unsigned long long d : 40;
    bool e : 1;
};

KERNEL(bit_fields) {
    ID;
    Fields f{};
    f.a = x[i];
    f.b = x[i] >> 7;
    f.c = (int)x[i] >> 9;
    f.d = (unsigned long long)x[i] * 1000;
    f.e = x[i] & 64;
    f.c += f.a;
    f.b ^= f.c;
    y[i] = f.a + f.b * 8 + (unsigned)f.c * 3 + (unsigned)(f.d >> 8) + f.e;
}

union Word { unsigned word; float real; unsigned char bytes[4]; short halves[2]; struct { unsigned low : 12, high : 20; }; };

KERNEL(unions) {
    ID;
    Word w[3];
    w[0].word = x[i];
    w[1].real = (float)(x[i] >> 12);
    for (int k = 0; k < 4; k++) w[2].bytes[k] = w[i % 2].bytes[3 - k];
    w[x[i] % 3].halves[1] = 77;
    y[i] = w[0].word + w[1].word * 3 + w[2].low * 5 + w[2].high;
}

KERNEL(wide_integers) {
    ID;
    unsigned __int128 a = (unsigned __int128)x[i] << 77 | x[(i + 1) % n], b = (unsigned __int128)x[(i + 2) % n] << 20 | 1;
    __int128 c = -(__int128)a;
    unsigned __int128 q = a / b, r = a % b, p = a * b;
    __int128 s = c / (__int128)12345 + (c >> 50);
    y[i] = (unsigned)q ^ (unsigned)(r >> 13) ^ (unsigned)(p >> 90) * 3 ^ (unsigned)(s >> 33) * 5 ^ (a > b);
}

__constant__ unsigned table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__device__ unsigned squares[16] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225};
__device__ const unsigned* const tables[2] = {squares, squares + 8};
__constant__ const char* names[3] = {"alpha", "be", "gamma"};
__constant__ struct { short a; double b; signed char c; } mixed[2] = {{1, 2.5, -3}, {-4, 5.25, 6}};

KERNEL(tables_of_constants) {
    ID;
    unsigned v = table[x[i] % 16] * 100 + tables[x[i] >> 31][x[i] >> 4 & 7];
    const char* name = names[x[i] % 3];
    for (; *name; name++) v = v * 31 + *name;
    auto& m = mixed[i % 2];
    y[i] = v + m.a + (int)(m.b * 4) + m.c;
}

typedef unsigned (*Step)(unsigned, unsigned);
__device__ unsigned step_add(unsigned a, unsigned b) { return a + b; }
__device__ unsigned step_xor(unsigned a, unsigned b) { return a ^ b * 3; }
__device__ __noinline__ unsigned step_loop(unsigned a, unsigned b) {
    for (unsigned k = 0; k < b % 5; k++) a = a * 5 + k;
    return a;
}
__device__ Step steps[4] = {step_add, step_xor, step_loop, step_add};

KERNEL(table_of_functions) {
    ID;
    unsigned v = x[i];
    for (int k = 0; k < 6; k++) v = steps[v >> (k * 3) & 3](v, x[(i + k) % n]);
    y[i] = v;
}

struct Named { int id; __device__ Named(int id) : id(id) {} __device__ virtual unsigned name() const { return id; } __device__ virtual ~Named() {} };
struct Sized { unsigned size = 7; __device__ virtual unsigned weight(unsigned v) const = 0; };
struct Box : Named, Sized {
    __device__ Box(int id) : Named(id) {}
    __device__ unsigned name() const override { return id * 100; }
    __device__ unsigned weight(unsigned v) const override { return v * size + id; }
};
struct Crate : Box {
    unsigned more[3];
    __device__ Crate(int id, unsigned v) : Box(id) { for (int k = 0; k < 3; k++) more[k] = v >> k; }
    __device__ unsigned weight(unsigned v) const override { return Box::weight(v) + more[v % 3]; }
};
__device__ __noinline__ unsigned weigh(const Sized& s, unsigned v) { return s.weight(v); }

KERNEL(two_bases) {
    ID;
    Box box(i % 8);
    Crate crate(i % 5, x[i]);
    const Named* named = x[i] & 1 ? (const Named*)&box : &crate;
    const Sized& sized = x[i] & 2 ? (const Sized&)box : crate;
    y[i] = named->name() + weigh(sized, x[i] >> 3);
}

KERNEL(hints_for_caches) {
    ID;
    unsigned a = __ldg(x + i), b = __ldcs(x + (i + 1) % n), c = __ldca(x + (i + 2) % n), d = __ldcv(x + (i + 3) % n);
    uint2 pair = __ldlu((const uint2*)x + i / 2);
    uint4 four = __ldcg((const uint4*)x + i / 4);
    unsigned char byte = __ldg((const unsigned char*)x + i);
    a += b * 3 + c * 5 + d * 7 + pair.y + four.z * 9 + byte;
    if (i & 1) __stcs(y + i, a); else if (i & 2) __stcg(y + i, a); else if (i & 4) __stwt(y + i, a); else __stwb(y + i, a);
}

KERNEL(many_arrays_at_once) {
    extern __shared__ double reals[];
    float4* fours = (float4*)(reals + blockDim.x);
    unsigned short* narrow = (unsigned short*)(fours + blockDim.x);
    bool* flags = (bool*)(narrow + blockDim.x);
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    unsigned v = x[i % n];
    reals[t] = v * 0.5;
    fours[t] = make_float4(v & 255, v >> 8 & 255, v >> 16 & 255, v >> 24);
    narrow[t] = v >> 5;
    flags[t] = v & 8;
    __syncthreads();
    int u = blockDim.x - 1 - t;
    float4 f = fours[u];
    y[i] = (unsigned)(long long)reals[u] + (unsigned)(f.x + f.y * 2 + f.z * 3 + f.w * 4) + narrow[u] + (flags[u] ? 1000 : 0);
}

KERNEL(packed_structs) {
    ID;
#pragma pack(push, 1)
    struct Packed { unsigned char tag; unsigned value; unsigned short tail; };
#pragma pack(pop)
    Packed p[3];
    for (int k = 0; k < 3; k++) { p[k].tag = x[i] >> k; p[k].value = x[(i + k) % n]; p[k].tail = k * 1000; }
    Packed q;
    memcpy(&q, (char*)p + x[i] % 3 * sizeof(Packed), sizeof(Packed));
    unsigned any;
    memcpy(&any, (char*)p + 3, 4);
    y[i] = q.tag + q.value + q.tail + any;
}

struct Large { unsigned v[40]; };
__device__ __noinline__ Large spread(Large a, unsigned by) {
    for (int k = 0; k < 40; k++) a.v[k] = a.v[(k * 7 + by) % 40] + k;
    return a;
}

KERNEL(large_structs) {
    ID;
    Large a;
    for (int k = 0; k < 40; k++) a.v[k] = x[(i + k) % n];
    a = spread(a, x[i] % 40);
    y[i] = a.v[x[i] >> 5 & 31] + a.v[39];
}

KERNEL(gotos_and_fall_through) {
    ID;
    unsigned v = x[i], r = 0;
again:
    switch (v % 11) {
        case 0: r += 1; break;
        case 1: r += 5;
        case 2: r ^= v; break;
        case 3: v /= 3; goto again;
        case 4: v += 7; if (r++ < 9) goto again; break;
        case 5: r = r * 3 + 1; break;
        case 6: r -= 2;
        case 7: { unsigned t = r; while (t) { t &= t - 1; r += 3; } break; }
        case 8: if (v > 100) { v -= 99; v /= 2; goto again; }
        default: r += 17;
    }
    y[i] = r + v;
}

__device__ unsigned long long total_of_words;
__device__ int largest_word = -2147483647;

KERNEL(other_atomics) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd((unsigned long long*)y, (unsigned long long)x[i]);
    atomicMax((long long*)y + 1, (long long)(int)x[i] * 3);
    atomicInc(y + 4, 99);
    atomicDec(y + 5, 49);
    atomicCAS((unsigned short*)(y + 6), (unsigned short)0, (unsigned short)9);
    atomicAdd_block(y + 7, 1);
    atomicAdd_system(y + 8, 2);
    atomicSub(y + 9, 3);
    atomicMin((int*)y + 10, (int)x[i]);
    atomicOr((unsigned long long*)y + 6, 1ull << (x[i] % 64));
    atomicExch((float*)y + 14, 2.5f);
}

KERNEL(sums_of_the_warp) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = x[i % n], r = 0;
    unsigned long long wide = (unsigned long long)v << 20 | i;
    double real = __shfl_xor_sync(0xffffffffu, (double)v, 5);
    wide = __shfl_sync(0xffffffffu, wide, v % 32);
    int same;
    unsigned peers = __match_any_sync(0xffffffffu, (unsigned long long)(v % 3) << 40);
    unsigned all = __match_all_sync(0xffffffffu, v & 0, &same);
    unsigned odd = __ballot_sync(0xffffffffu, v & 1);
    if (v & 1) r = __ballot_sync(odd, v & 2) != 0;
    __syncwarp();
    half2 h = __shfl_down_sync(0xffffffffu, __floats2half2_rn(v % 100, 1), 3, 8);
    r += __syncthreads_count(v & 4) * 3 + __syncthreads_or(v == 5) + __syncthreads_and(v != 5) * 7;
    y[i] = r + (unsigned)(wide >> 13) + (unsigned)(long long)real + __popc(peers) * 11 + __popc(all) + same + (unsigned)__low2float(h) + (unsigned)__high2float(h);
}

// A lock that waits longer from round to round, with a ticket.
__device__ unsigned tickets, serving;

KERNEL(ticket_lock) {
    if (threadIdx.x % 32 == 0) {
        unsigned ticket = atomicAdd(&tickets, 1), wait = 8;
        while (*(volatile unsigned*)&serving != ticket) {
            __nanosleep(wait);
            if (wait < 256) wait *= 2;
        }
        __threadfence();
        y[0] = y[0] * 3 + ticket;
        y[1] += x[blockIdx.x * blockDim.x + threadIdx.x] % 100 + n;
        __threadfence();
        atomicAdd(&serving, 1);
    }
}

KERNEL(printed_formats) {
    if (threadIdx.x == 37) {
        printf("%5d|%-6u|%08x|%+.3f|%e|%g|%c|%s|%%|%lld|%llu\n", -42, 17u, 0xbeefu, 3.14159, 12345.678, 0.0001, 'q', "text",
            -1234567890123ll, 18446744073709551615ull);
        printf("%*d %.*f %hhd %#o %i %X\n", 6, n, 2, 2.71828, (signed char)-3, 8, 5, 0xabc);
    }
    if (threadIdx.x - 37 < 2) y[threadIdx.x - 37] = printf("%d\n", 7);
}
