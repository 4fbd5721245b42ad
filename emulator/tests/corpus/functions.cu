// Functions that are called: recursion, pointers, classes, templates; local memory, texts, what the driver brings.

#define KERNEL(name) extern "C" __global__ void name(const unsigned* x, unsigned* y, int n)
#define ID const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return

__device__ __noinline__ unsigned fibonacci_of(unsigned n) { return n < 2 ? n : fibonacci_of(n - 1)
    + fibonacci_of(n - 2); }
KERNEL(fibonacci) { ID; y[i] = fibonacci_of(x[i] % 12); }

__device__ __noinline__ int ackermann_of(int m, int n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann_of(m - 1, 1);
    return ackermann_of(m - 1, ackermann_of(m, n - 1));
}
KERNEL(ackermann) { ID; y[i] = ackermann_of(x[i] % 3, x[i] / 3 % 4); }

__device__ __noinline__ int odd(unsigned n);
__device__ __noinline__ int even(unsigned n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(unsigned n) { return n == 0 ? 0 : even(n - 1); }
KERNEL(mutual_recursion) { ID; y[i] = even(x[i] % 30); }

__device__ __noinline__ void hanoi_moves(int n, int from, int to, unsigned* hash) {
    if (n == 0) return;
    hanoi_moves(n - 1, from, 3 - from - to, hash);
    *hash = *hash * 31 + from * 3 + to;
    hanoi_moves(n - 1, 3 - from - to, to, hash);
}
KERNEL(hanoi) { ID; unsigned hash = 7; hanoi_moves(x[i] % 6, 0, 2, &hash); y[i] = hash; }

__device__ __noinline__ void quick(int* a, int low, int high) {
    if (low >= high) return;
    int pivot = a[(low + high) / 2], l = low, h = high;
    while (l <= h) {
        while (a[l] < pivot) l++;
        while (a[h] > pivot) h--;
        if (l <= h) { int v = a[l]; a[l++] = a[h]; a[h--] = v; }
    }
    quick(a, low, h);
    quick(a, l, high);
}
KERNEL(quicksort) {
    ID;
    int a[12];
    for (int k = 0; k < 12; k++) a[k] = (int)(x[(i + k) % n] >> 20);
    quick(a, 0, 11);
    unsigned hash = 0;
    for (int k = 0; k < 12; k++) hash = hash * 4099 + a[k];
    y[i] = hash;
}

typedef unsigned (*Function)(unsigned);
__device__ unsigned twice(unsigned v) { return 2 * v; }
__device__ unsigned plus_nine(unsigned v) { return v + 9; }
__device__ unsigned inverted(unsigned v) { return ~v; }
__device__ Function table[3] = {twice, plus_nine, inverted};
KERNEL(pointers_to_functions) { ID; y[i] = table[x[i] % 3](x[i]); }

struct Shape {
    __device__ virtual ~Shape() {}
    __device__ virtual unsigned area() const { return 1; }
};
struct Square : Shape {
    unsigned side;
    __device__ Square(unsigned s) : side(s) {}
    __device__ unsigned area() const override { return side * side; }
};
struct Box : Square {
    unsigned height;
    __device__ Box(unsigned s, unsigned h) : Square(s), height(h) {}
    __device__ unsigned area() const override { return Square::area() * 2 + 4 * side * height; }
};
KERNEL(virtual_functions) {
    ID;
    Shape plain;
    Square square(x[i] & 0xff);
    Box box(x[i] & 0xff, x[i] >> 8 & 0xff);
    const Shape* shapes[3] = {&plain, &square, &box};
    unsigned sum = 0;
    for (unsigned k = 0; k < 3; k++) sum = sum * 3 + shapes[(k + x[i]) % 3]->area();
    y[i] = sum;
}

struct Record { unsigned key; unsigned char tag[5]; double weight; };
__device__ __noinline__ Record changed(Record r, short by) {
    r.key += by;
    r.tag[r.key % 5] ^= (unsigned char)by;
    r.weight *= 0.5;
    return r;
}
KERNEL(structs_by_value) {
    ID;
    Record r;
    r.key = x[i];
    for (int k = 0; k < 5; k++) r.tag[k] = (unsigned char)(x[i] >> k);
    r.weight = x[i] & 0xffff;
    r = changed(changed(r, 7), -300);
    y[i] = r.key + r.tag[0] + r.tag[1] * 3 + r.tag[2] * 5 + r.tag[3] * 7 + r.tag[4] * 11 + (unsigned)(r.weight * 4);
}

template <typename T, int N> struct Vec {
    T v[N];
    __device__ T& operator[](int k) { return v[k]; }
    __device__ Vec operator+(const Vec& o) const { Vec r; for (int k = 0; k < N; k++) r.v[k] = v[k] + o.v[k];
        return r; }
    template <typename F> __device__ T fold(F f) const { T r = v[0]; for (int k = 1; k < N; k++) r = f(r, v[k]);
        return r; }
};
template <typename... Ts> __device__ unsigned total(Ts... values) { unsigned sum = 0; ((sum = sum * 5 + values),
    ...); return sum; }
KERNEL(templates_and_lambdas) {
    ID;
    Vec<unsigned, 5> a, b;
    for (int k = 0; k < 5; k++) { a[k] = x[i] >> k; b[k] = i * k; }
    unsigned factor = x[i] & 7;
    y[i] = total((a + b).fold([=](unsigned p, unsigned q) { return p * factor + q; }), a.fold([](unsigned p,
        unsigned q) { return p > q ? p : q; }), 3u);
}

KERNEL(local_arrays) {
    ID;
    unsigned a[16];
    for (int k = 0; k < 16; k++) a[k] = x[(i * 3 + k) % n] & 0xff;
    for (int p = 0; p < 16; p++)
        for (int q = 0; q + 1 < 16 - p; q++)
            if (a[q] > a[q + 1]) { unsigned v = a[q]; a[q] = a[q + 1]; a[q + 1] = v; }
    y[i] = a[x[i] & 15] + 256 * a[8];
}

KERNEL(eight_queens) {
    ID;
    int place[8], row = 0, found = 0, size = 4 + x[i] % 3;
    place[0] = -1;
    while (row >= 0) {
        if (++place[row] == size) { row--; continue; }
        bool free = true;
        for (int k = 0; k < row && free; k++) free = place[k] != place[row] && abs(place[k] - place[row]) != row - k;
        if (!free) continue;
        if (row == size - 1) found++; else place[++row] = -1;
    }
    y[i] = found;
}

__device__ const char sentence[] = "the quick brown fox jumps over the lazy dog";
__device__ __noinline__ unsigned length_of(const char* s) { unsigned l = 0; while (*s++) l++; return l; }
KERNEL(texts) {
    ID;
    char text[64];
    unsigned length = length_of(sentence), words = 0;
    for (unsigned k = 0; k <= length; k++) text[k] = sentence[k];
    for (unsigned k = 0; k < length / 2; k++) { char c = text[k]; text[k] = text[length - 1 - k];
        text[length - 1 - k] = c; }
    for (unsigned k = 0; k < length; k++) {
        if (text[k] == ' ') words++;
        else if ((k + x[i]) % 3 == 0) text[k] -= 32;
    }
    unsigned hash = words;
    for (unsigned k = 0; k < length; k++) hash = hash * 131 + (unsigned char)text[k];
    y[i] = hash;
}

KERNEL(edit_distance) {
    ID;
    unsigned char a[8], b[8];
    for (int k = 0; k < 8; k++) { a[k] = x[i] >> (4 * k) & 3; b[k] = x[(i + 1) % n] >> (4 * k) & 3; }
    unsigned row[9];
    for (int k = 0; k <= 8; k++) row[k] = k;
    for (int p = 1; p <= 8; p++) {
        unsigned diagonal = row[0];
        row[0] = p;
        for (int q = 1; q <= 8; q++) {
            unsigned best = min(min(row[q], row[q - 1]) + 1, diagonal + (a[p - 1] != b[q - 1]));
            diagonal = row[q];
            row[q] = best;
        }
    }
    y[i] = row[8];
}

KERNEL(sha256_block) {
    ID;
    unsigned w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
        0x5be0cd19}, s[8];
    // The round constants are the fractions of cube roots of primes: bits of an integer cube root.
    unsigned k[64], count = 0;
    for (unsigned p = 2; count < 64; p++) {
        bool prime = true;
        for (unsigned d = 2; d * d <= p; d++) prime &= p % d != 0;
        if (!prime) continue;
        unsigned long long root = 0;
        for (int bit = 34; bit >= 0; bit--) {
            unsigned long long t = root | 1ull << bit;
            unsigned __int128 cube = (unsigned __int128)t * t * t;
            if (cube <= (unsigned __int128)p << 96) root = t;
        }
        k[count++] = (unsigned)root;
    }
    for (int t = 0; t < 16; t++) w[t] = x[(i + t) % n];
#define R(v, c) __funnelshift_r(v, v, c)
    for (int t = 16; t < 64; t++)
        w[t] = w[t - 16] + (R(w[t - 15], 7) ^ R(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 7] + (R(w[t - 2], 17)
            ^ R(w[t - 2], 19) ^ w[t - 2] >> 10);
    for (int t = 0; t < 8; t++) s[t] = h[t];
    for (int t = 0; t < 64; t++) {
        unsigned a = s[7] + (R(s[4], 6) ^ R(s[4], 11) ^ R(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[t] + w[t];
        unsigned b = (R(s[0], 2) ^ R(s[0], 13) ^ R(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int u = 7; u > 0; u--) s[u] = s[u - 1];
        s[4] += a;
        s[0] = a + b;
    }
    unsigned hash = 0;
    for (int t = 0; t < 8; t++) hash ^= h[t] + s[t];
    y[i] = hash;
}

extern "C" __device__ unsigned calls = 3;
KERNEL(variables_of_the_module) { ID; y[i] = atomicAdd(&calls, 0) + i; }

KERNEL(printing) {
    ID;
    if (i < 3) printf("%d: %u %s %5.2f %lld%c\n", i, x[i], i == 1 ? "one" : "other", i * 0.5, -5000000000ll, '!');
    y[i] = i;
}

KERNEL(asserting) { ID; assert(x[i] != 12345u || n < 0); y[i] = 1; }

struct Node { unsigned value; Node* next; };
KERNEL(lists_on_the_heap) {
    ID;
    Node* head = nullptr;
    for (unsigned k = 0; k < 4; k++) {
        Node* node = (Node*)malloc(sizeof(Node));
        node->value = x[i] >> (8 * k) & 0xff;
        node->next = head;
        head = node;
    }
    unsigned hash = 1;
    while (head) { Node* node = head; hash = hash * 257 + node->value; head = node->next; free(node); }
    y[i] = hash;
}

KERNEL(objects_on_the_heap) {
    ID;
    Shape* shape = x[i] & 1 ? new Square(x[i] & 0xf) : new Shape();
    y[i] = shape->area();
    delete shape;
}

KERNEL(binary_search) {
    ID;
    // The sequence k², k < 1000.
    unsigned wanted = x[i] % 1000000, low = 0, high = 1000;
    while (low < high) { unsigned middle = (low + high) / 2; if (middle * middle < wanted) low = middle + 1;
        else high = middle; }
    y[i] = low;
}
