"""Times what a call of PyTorch's costs its caller for `cargo xtask bench --operation calls`.

It answers as `linear.py` beside it does. A sample is the mean time of calls until they return, with an idle GPU before them.
"""

import functools
import time

import torch
import torch.nn.functional as F

import linear

CALLS = 64


def ones(*shape, dtype=torch.bfloat16):
    return torch.ones(shape, device="cuda", dtype=dtype)


def calls(request):
    """The functions to time, by name; `-out` writes into an output that is there."""
    call, shape = request["call"], request["shape"]
    dtype = linear.TYPES[request["precision"]][0]
    if call == "linear":
        m, k, n = shape
        x, w, y = ones(m, k, dtype=dtype), ones(n, k, dtype=dtype), ones(m, n, dtype=dtype)
        return {"torch": lambda: F.linear(x, w), "torch-out": lambda: torch.mm(x, w.t(), out=y)}
    if call == "linear bias relu":
        m, k, n = shape
        x, w, bias, y = ones(m, k), ones(n, k), ones(n), ones(m, n)

        def into():
            torch.addmm(bias, x, w.t(), out=y)
            y.relu_()

        return {"torch": lambda: F.relu(F.linear(x, w, bias)), "torch-out": into}
    if call == "linear bias relu residual":
        m, k, n = shape
        x, w, bias, residual = ones(m, k), ones(n, k), ones(n), ones(m, n)
        return {"torch": lambda: F.relu(F.linear(x, w, bias) + residual)}
    if call == "linear scaled":
        m, k, n = shape
        x, w = ones(m, k).to(torch.float8_e4m3fn), ones(n, k).to(torch.float8_e4m3fn)
        scale = torch.ones((), device="cuda")
        return {"torch": lambda: torch._scaled_mm(x, w.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)}
    if call == "matmul":
        batch, m, k, n = shape
        a, b, y = ones(batch, m, k), ones(batch, k, n), ones(batch, m, n)
        return {"torch": lambda: torch.matmul(a, b), "torch-out": lambda: torch.bmm(a, b, out=y)}
    if call == "topk":
        rows, columns, k = shape
        x = ones(rows, columns)
        return {"torch": lambda: x.topk(k, -1)}
    return {}


def sample(function):
    """The mean microseconds of calls."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    end = time.perf_counter()
    torch.cuda.synchronize()
    return (end - start) / CALLS * 1e6


def ready_of(request):
    """What can be sampled, and why the rest cannot."""
    ready, absent = {}, {}
    for name, function in calls(request).items():
        try:
            sample(function)
            ready[name] = functools.partial(sample, function)
        except Exception as error:
            absent[name] = linear.why(error)
    return ready, absent


if __name__ == "__main__":
    with torch.inference_mode():
        linear.answer(ready_of)
