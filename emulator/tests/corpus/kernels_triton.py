"""Triton kernels, and how they are compiled where there is no GPU.

Each takes the words of the input, the output, and n, as the CUDA kernels do; one program a block of elements.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WORD, FLOAT, HALF = "*u32", "*fp32", "*fp16"


@triton.jit
def triton_axpy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.store(y + i, v * 3 + 7, mask=i < n)


@triton.jit
def triton_sums(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.store(y + tl.program_id(0), tl.sum(v, axis=0))


@triton.jit
def triton_atomic_sum(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(y, tl.sum(v, axis=0))


@triton.jit
def triton_scan(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.store(y + i, tl.cumsum(v, axis=0), mask=i < n)


@triton.jit
def triton_sort(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + i, tl.sort(v))


@triton.jit
def triton_transpose(x, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (r[:, None] < n) & (c[None, :] < n)
    v = tl.load(x + r[:, None] * n + c[None, :], mask=inside, other=0)
    tl.store(y + c[None, :] * n + r[:, None], v, mask=inside)


@triton.jit
def triton_histogram(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i).to(tl.int32, bitcast=True) & 63
    bins = tl.histogram(v, 64)
    tl.atomic_add(y + tl.arange(0, 64), bins.to(tl.uint32))


@triton.jit
def triton_collatz(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = (tl.load(x + i, mask=i < n, other=0) % 1000 + 1).to(tl.uint64)
    steps = tl.zeros([BLOCK], dtype=tl.uint32)
    while tl.max((v != 1).to(tl.int32), axis=0) == 1:
        steps += (v != 1).to(tl.uint32)
        v = tl.where(v == 1, v, tl.where(v % 2 == 1, 3 * v + 1, v // 2))
    tl.store(y + i, steps, mask=i < n)


@triton.jit
def triton_softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = (tl.load(x + row * n + i, mask=i < n, other=0) % 17).to(tl.float32)
    v = tl.where(i < n, v, float("-inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


@triton.jit
def triton_layer_norm(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = (tl.load(x + row * n + i, mask=i < n, other=0) % 17).to(tl.float32)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(i < n, v - mean, 0.0)
    tl.store(y + row * n + i, d / tl.sqrt(tl.sum(d * d, axis=0) / n + 1.0), mask=i < n)


@triton.jit
def small(word):
    return ((word % 5).to(tl.int32) - 2).to(tl.float16)


@triton.jit
def triton_product(x, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    sum = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        a = small(tl.load(x + r[:, None] * n + first + k[None, :]))
        b = small(tl.load(x + n * n + (first + k[:, None]) * n + c[None, :]))
        sum = tl.dot(a, b, sum)
    tl.store(y + r[:, None] * n + c[None, :], sum)


@triton.jit
def triton_random(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(1234, i)
    tl.store(y + i, (a ^ b ^ c ^ d).to(tl.uint32, bitcast=True), mask=i < n)


KERNELS = [
    (triton_axpy, WORD, 256),
    (triton_sums, WORD, 256),
    (triton_atomic_sum, WORD, 256),
    (triton_scan, WORD, 256),
    (triton_sort, WORD, 256),
    (triton_transpose, WORD, 32),
    (triton_histogram, WORD, 256),
    (triton_collatz, WORD, 256),
    (triton_softmax, FLOAT, 256),
    (triton_layer_norm, FLOAT, 256),
    (triton_product, FLOAT, 32),
    (triton_random, WORD, 256),
]


def version():
    return triton.__version__


def compile_all(kernels):
    """The kernels' names and their PTX, for sm_80 and sm_90."""
    for kernel, output, block in kernels:
        for number in (80, 90):
            signature = {"x": WORD, "y": output, "n": "i32", "BLOCK": "constexpr"}
            source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": block})
            compiled = triton.compile(source, target=GPUTarget("cuda", number, 32), options={"num_warps": 4})
            yield f"{kernel.__name__}.sm_{number}", compiled.asm["ptx"]
