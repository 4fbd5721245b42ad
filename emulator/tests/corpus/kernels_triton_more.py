"""More Triton kernels: attention, products of narrow numbers, gathers, locks and scans of one's own.

Each takes the words of the input, the output, and n, as those of `kernels_triton.py` do.
"""

import triton
import triton.language as tl

WORD, FLOAT = "*u32", "*fp32"


@triton.jit
def tiny(word):
    return (word % 5).to(tl.int32) - 2


@triton.jit
def triton_attention(x, y, n, BLOCK: tl.constexpr):
    # Queries, keys and values of 32 columns; one program for BLOCK queries of n.
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, 32)
    q = (tiny(tl.load(x + row[:, None] * 32 + d[None, :])).to(tl.float32) * 0.25).to(tl.float16)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    out = tl.zeros([BLOCK, 32], tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        k = tiny(tl.load(x + n * 32 + at[None, :] * 32 + d[:, None])).to(tl.float16)
        v = tiny(tl.load(x + 2 * n * 32 + at[:, None] * 32 + d[None, :])).to(tl.float16)
        s = tl.dot(q, k)
        s = tl.where(at[None, :] <= row[:, None], s, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        scale = tl.exp(most - now)
        total = total * scale + tl.sum(p, 1)
        out = tl.dot(p.to(tl.float16), v, out * scale[:, None])
        most = now
    tl.store(y + row[:, None] * 32 + d[None, :], out / total[:, None])


@triton.jit
def triton_product_of_8_bits(x, y, n, BLOCK: tl.constexpr):
    # n is 2 * BLOCK; floats of 8 bits.
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    sum = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        a = tiny(tl.load(x + r[:, None] * n + first + k[None, :])).to(tl.float32).to(tl.float8e5)
        b = tiny(tl.load(x + n * n + (first + k[:, None]) * n + c[None, :])).to(tl.float32).to(tl.float8e5)
        sum = tl.dot(a, b, sum)
    tl.store(y + r[:, None] * n + c[None, :], sum)


@triton.jit
def triton_product_in_tf32(x, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    sum = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for first in tl.range(0, n, BLOCK, num_stages=3):
        a = tl.load(x + r[:, None] * n + first + k[None, :])
        b = tl.load(x + n * n + (first + k[:, None]) * n + c[None, :])
        sum = tl.dot(tiny(a).to(tl.float32), tiny(b).to(tl.float32), sum, input_precision="tf32")
    tl.store(y + r[:, None] * n + c[None, :], sum)


@triton.jit
def triton_product_in_stages(x, y, n, BLOCK: tl.constexpr):
    # Bytes straight from memory, so that copies run ahead of products.
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    p = x.to(tl.pointer_type(tl.int8), bitcast=True)
    sum = tl.zeros([BLOCK, BLOCK], dtype=tl.int32)
    for first in tl.range(0, n, BLOCK, num_stages=4):
        a = tl.load(p + r[:, None] * n + first + k[None, :])
        b = tl.load(p + n * n + (first + k[:, None]) * n + c[None, :])
        sum = tl.dot(a, b, sum, out_dtype=tl.int32)
    tl.store(y + r[:, None] * n + c[None, :], sum.to(tl.uint32, bitcast=True))


@triton.jit
def triton_gather(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    at = (v % BLOCK).to(tl.int32)
    tl.store(y + i, tl.gather(v, at, 0) + tl.flip(v, 0), mask=i < n)


@triton.jit
def later(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def triton_recurrence(x, y, n, BLOCK: tl.constexpr):
    # y[i] = a[i] y[i-1] + b[i], as a scan of pairs, in both directions.
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    a, b = tl.associative_scan((v % 7, v >> 3), 0, later)
    c, d = tl.associative_scan((v % 7, v >> 3), 0, later, reverse=True)
    tl.store(y + i, b + 3 * d)


@triton.jit
def triton_largest(x, y, n, BLOCK: tl.constexpr):
    r = tl.arange(0, 16)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + r[:, None] * BLOCK + i[None, :]) >> 1
    most, place = tl.max(v, 1, return_indices=True)
    least = tl.argmin(v, 0)
    tl.store(y + r, most + place.to(tl.uint32))
    tl.store(y + 16 + i, least.to(tl.uint32) + tl.xor_sum(v, 0))


@triton.jit
def triton_locks(x, y, n, BLOCK: tl.constexpr):
    # A lock around sums of rows, as in the gradients of layer norm.
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(y, 0, 1) == 1:
        pass
    old = tl.load(y + 16 + i)
    tl.store(y + 16 + i, old + v)
    tl.debug_barrier()
    tl.atomic_xchg(y, 0)


@triton.jit
def triton_selected(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i)
    tl.store(y + tl.program_id(0) * 16 + tl.arange(0, 16), tl.topk(v, 16))


@triton.jit
def triton_narrow_types(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    # Never halfway between two floats of 8 bits: there Triton's way for sm_80 goes up.
    f = ((v % 513).to(tl.float32) - 256.0) / 8.0 + 1.0 / 3
    a = f.to(tl.float8e5).to(tl.float32)
    b = f.to(tl.bfloat16).to(tl.float32)
    c = (v & 255).to(tl.int8).to(tl.float16).to(tl.float32)
    p = x.to(tl.pointer_type(tl.uint8), bitcast=True)
    d = tl.load(p + i * 3, mask=i < n, other=0).to(tl.float32)
    tl.store(y + i, a + b * 2 + c * 4 + d * 0.5, mask=i < n)


KERNELS = [
    (triton_attention, FLOAT, 32),
    (triton_product_of_8_bits, FLOAT, 32),
    (triton_product_in_tf32, FLOAT, 32),
    (triton_product_in_stages, WORD, 64),
    (triton_gather, WORD, 256),
    (triton_recurrence, WORD, 512),
    (triton_largest, WORD, 64),
    (triton_locks, WORD, 128),
    (triton_selected, WORD, 256),
    (triton_narrow_types, FLOAT, 256),
]
