// Arithmetic on integers, one element a thread. Every kernel takes n words and leaves words.

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define EACH(i) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)

KERNEL(axpy) { EACH(i) y[i] = 3 * x[i] + 7; }

KERNEL(copy_by_fours) {
    const uint4* from = (const uint4*)x;
    uint4* to = (uint4*)y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        uint4 v = from[i];
        to[i] = make_uint4(v.w, v.z, v.y, v.x);
    }
}

KERNEL(reverse) { EACH(i) y[n - 1 - i] = x[i]; }

KERNEL(gather) { EACH(i) y[i] = x[x[i] % n]; }

KERNEL(quotients) { EACH(i) {
    unsigned b = x[(i + 1) % n] % 1000 + 1;
    y[i] = x[i] / b + x[i] % b + (unsigned)((int)x[i] / (int)b) + (unsigned)((int)x[i] % 7);
} }

KERNEL(quotients64) { EACH(i) {
    unsigned long long a = (unsigned long long)x[i] << 32 | x[(i + 1) % n];
    unsigned long long b = x[(i + 2) % n] | 1;
    long long c = (long long)a;
    y[i] = (unsigned)(a / b) ^ (unsigned)(a % b) ^ (unsigned)(c / 1000003) ^ (unsigned)(c % 1000003);
} }

KERNEL(products64) { EACH(i) {
    unsigned long long a = (unsigned long long)x[i] * x[(i + 1) % n];
    y[i] = (unsigned)(a >> 32) ^ (unsigned)a ^ __umulhi(x[i], 12345) ^ (unsigned)__mulhi((int)x[i], -77)
        ^ (unsigned)(__umul64hi(a, a) >> 7) ^ (unsigned)__mul64hi((long long)a, -3);
} }

KERNEL(products128) { EACH(i) {
    unsigned __int128 a = ((unsigned __int128)x[i] << 64) + x[(i + 1) % n];
    unsigned __int128 p = a * a + (a >> 3) - ((unsigned __int128)1 << 100);
    y[i] = (unsigned)p ^ (unsigned)(p >> 32) ^ (unsigned)(p >> 64) ^ (unsigned)(p >> 96);
} }

KERNEL(counting_bits) { EACH(i) {
    unsigned long long wide = (unsigned long long)x[i] << 20;
    y[i] = __popc(x[i]) + 100 * __clz(x[i] >> (x[i] & 31)) + 10000 * __ffs(x[i]) + __brev(x[i]) + __popcll(wide)
        + __clzll(wide)
        + __ffsll(wide) + (unsigned)(__brevll(wide) >> 40);
} }

KERNEL(picking_bytes) { EACH(i) {
    unsigned other = x[(i + 1) % n];
    y[i] = __byte_perm(x[i], other, 0x2537) + __funnelshift_l(x[i], other, i) + __funnelshift_r(x[i], other, i)
        + __funnelshift_lc(x[i], other, i % 40) + __funnelshift_rc(x[i], other, i % 40);
} }

KERNEL(distances) { EACH(i) {
    unsigned a = x[i], b = x[(i + 1) % n];
    y[i] = __usad(a, b, 5) + __sad((int)a, (int)b, 9) + __hadd((int)a, (int)b) + __rhadd((int)a, (int)b)
        + __uhadd(a, b) + __urhadd(a, b)
        + __mul24((int)a, (int)b) + __umul24(a, b);
} }

KERNEL(dot_of_bytes) { EACH(i) {
    int a = (int)x[i], b = (int)x[(i + 1) % n];
    y[i] = __dp4a(a, b, 1) + __dp4a((unsigned)a, (unsigned)b, 2u) + __dp2a_lo(a, b, 3) + __dp2a_hi((unsigned)a,
        (unsigned)b, 4u);
} }

KERNEL(bytes_at_once) { EACH(i) {
    unsigned a = x[i], b = x[(i + 1) % n];
    y[i] = __vadd4(a, b) ^ __vsub2(a, b) ^ __vabsdiffu4(a, b) ^ __vmaxs2(a, b) ^ __vminu4(a, b) ^ __vavgu4(a, b)
        ^ __vcmpgtu4(a, b)
        ^ __vaddus2(a, b) ^ __vsadu4(a, b) ^ __vabsss4(a) ^ __vsetleu2(a, b);
} }

KERNEL(narrow_types) { EACH(i) {
    signed char a = (signed char)x[i];
    short b = (short)(x[i] >> 8);
    unsigned char c = (unsigned char)(x[i] >> 16);
    a += c;
    b = b * a - 3;
    c = c << 1 | (b < 0);
    y[i] = (unsigned)(a / 3) + (unsigned)(b >> 2) * 31 + c * 977u;
} }

KERNEL(shifts) { EACH(i) {
    unsigned k = x[(i + 1) % n] & 31;
    y[i] = (x[i] << k) ^ (x[i] >> k) ^ (unsigned)((int)x[i] >> k) ^ (unsigned)(((long long)(int)x[i] << 16) >> k);
} }

KERNEL(choices) { EACH(i) {
    int a = (int)x[i], b = (int)x[(i + 1) % n];
    bool p = a < b, q = (a ^ b) & 4;
    y[i] = (p && q) ? max(a, b) : (p || q) ? min(a, b) : abs(a >> 1) + (p != q);
} }

KERNEL(switches) { EACH(i) {
    unsigned v = x[i];
    switch (v % 11) {
        case 0: v += 5; break;
        case 1: v *= 3;
        case 2: v ^= 0x55; break;
        case 3: v = v >> 3 | v << 29; break;
        case 4: v -= i; break;
        case 5: v = ~v; break;
        case 6: v = __popc(v); break;
        case 7: v = v * v; break;
        case 8: v = v / 3; break;
        default: v = 42;
    }
    y[i] = v;
} }

KERNEL(collatz) { EACH(i) {
    unsigned long long v = x[i] % 5000 + 1;
    unsigned steps = 0;
    while (v != 1) { v = v & 1 ? 3 * v + 1 : v / 2; steps++; }
    y[i] = steps;
} }

KERNEL(greatest_divisor) { EACH(i) {
    unsigned a = x[i], b = x[(i + 1) % n];
    while (b) { unsigned t = a % b; a = b; b = t; }
    y[i] = a;
} }

KERNEL(modular_power) { EACH(i) {
    unsigned long long base = x[i] % 1000000007u, result = 1;
    for (unsigned e = x[(i + 1) % n] & 0xffff; e; e >>= 1) {
        if (e & 1) result = result * base % 1000000007u;
        base = base * base % 1000000007u;
    }
    y[i] = (unsigned)result;
} }

KERNEL(square_roots) { EACH(i) {
    unsigned v = x[i], root = 0;
    for (int bit = 15; bit >= 0; bit--) {
        unsigned trial = root | 1u << bit;
        if (trial * trial <= v) root = trial;
    }
    y[i] = root;
} }

KERNEL(primes) { EACH(i) {
    unsigned v = x[i] % 100000, prime = v > 1;
    for (unsigned d = 2; d * d <= v; d++) if (v % d == 0) { prime = 0; break; }
    y[i] = prime;
} }

KERNEL(gray_and_morton) { EACH(i) {
    unsigned a = x[i] & 0xffff, b = x[i] >> 16, m = 0;
    for (int bit = 0; bit < 16; bit++) m |= (a >> bit & 1) << (2 * bit) | (b >> bit & 1) << (2 * bit + 1);
    y[i] = m ^ (x[i] ^ x[i] >> 1);
} }

KERNEL(xorshift) { EACH(i) {
    unsigned v = x[i] | 1;
    for (int round = 0; round < 20; round++) { v ^= v << 13; v ^= v >> 17; v ^= v << 5; }
    y[i] = v;
} }

KERNEL(philox) { EACH(i) {
    unsigned c0 = x[i], c1 = i, c2 = 0, c3 = 0, k0 = 0x12345678, k1 = 0x9abcdef0;
    for (int round = 0; round < 10; round++) {
        unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2),
            l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    y[i] = c0 ^ c1 ^ c2 ^ c3;
} }

KERNEL(checksums) { EACH(i) {
    unsigned crc = ~0u;
    for (int k = 0; k < 4; k++) {
        crc ^= x[i] >> (8 * k) & 0xff;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    unsigned hash = 2166136261u;
    for (int k = 0; k < 4; k++) hash = (hash ^ (x[i] >> (8 * k) & 0xff)) * 16777619u;
    y[i] = ~crc ^ hash;
} }
