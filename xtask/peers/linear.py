"""Times PyTorch's linear layers for `cargo xtask bench`, by the bench's own rules.

Requests and answers are lines of JSON. `{"prepare": …}` makes ready what is to be measured, and is answered with `{"variants": […], "absent":
{…}}`: the names of what can be, and why the rest cannot. Then the bench asks for samples one by one, in whatever order its own come: `{"sample":
NAME}` is answered with `{"us": …}`, the microseconds of one launch. `{}` gives the memory back.

A variant is a CUDA graph of many launches whose operands rotate through more memory than the level-2 cache holds; for a sample it is
enqueued behind a copy that keeps the GPU busy meanwhile.
"""

import ctypes
import functools
import gc
import json
import sys

import torch
import torch.nn.functional as F

CACHE_MULTIPLE = 3
MOST_SETS = 512
MOST_LAUNCHES = 512
PLUG_BYTES = 256 << 20

TYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "f16": (torch.float16, torch.float16),
    "tf32": (torch.float32, torch.float32),
    "f32": (torch.float32, torch.float32),
    "f8e4m3": (torch.float8_e4m3fn, torch.bfloat16),
    "bf16-to-f32": (torch.bfloat16, torch.float32),
    "f8e4m3-by-e5m2": (torch.float8_e4m3fn, torch.bfloat16),
}
# The type of w, where it is not that of x.
OTHER_WEIGHTS = {"f8e4m3-by-e5m2": torch.float8_e5m2}

ACTIVATIONS = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu-erf": F.gelu,
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}


class Operands:
    """Sets of x, w, bias, and what is read besides: a residual, or the scales of rows and columns."""

    def __init__(self, request):
        m, k, n = request["m"], request["k"], request["n"]
        self.input, self.output = TYPES[request["precision"]]
        self.m, self.k, self.n = m, k, n
        batch = request["batch"]
        several = (batch,) if batch > 1 else ()
        weight = OTHER_WEIGHTS.get(request["precision"], self.input)
        read = batch * (m * k + n * k) * torch.empty((), dtype=self.input).element_size()
        matrices = 2 if request["extra"] in ("residual", "preactivation") else 1
        written = (matrices * batch * m * n + n) * torch.empty((), dtype=self.output).element_size()
        wanted = CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = min(max(-(-wanted // (read + written)), 2), MOST_SETS)
        turned_x, turned_w = request["layout"][0] == "t", request["layout"][1] == "n"
        x = self.draw(*several, *((k, m) if turned_x else (m, k)))
        w = self.draw(*several, *((k, n) if turned_w else (n, k)), dtype=weight)
        bias = self.draw(n, dtype=self.output)
        more = ()
        if request["extra"] == "residual":
            more = (self.draw(m, n, dtype=self.output),)
        elif request["extra"] == "scales":
            more = (self.draw(m, 1, dtype=torch.float32), self.draw(1, n, dtype=torch.float32))
        one = (x, w, bias, *more)
        sets = [tuple(tensor.clone() for tensor in one) for _ in range(count - 1)] + [one]
        # As M × K and N × K, whichever way they lie.
        self.sets = [(x.mT if turned_x else x, w.mT if turned_w else w, *rest) for x, w, *rest in sets]
        self.scale = torch.ones((), device="cuda")

    def draw(self, *shape, dtype=None):
        values = torch.empty(shape, device="cuda", dtype=torch.float32).uniform_(-1, 1)
        return values.to(dtype or self.input)


def variants(request, operands):
    """The functions of a set to time, by name."""
    activation = ACTIVATIONS[request["activation"]]
    scale = operands.scale
    extra = request["extra"]

    is_f8 = request["precision"].startswith("f8")

    if is_f8:

        def scaled(x, w, bias, rows=scale, columns=scale, fast=False):
            return torch._scaled_mm(
                x, w.t(), scale_a=rows, scale_b=columns, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        def eager(x, w, bias, *more, fast=False):
            if extra not in ("none", "scales"):
                raise NotImplementedError(f"a scaled product with {extra} is not one function of PyTorch's")
            scales = more if extra == "scales" else ()
            return activation(scaled(x, w, bias if request["bias"] else None, *scales, fast=fast))

        def matmul(x, w, *_):
            return scaled(x, w, None)

    elif request["precision"] == "bf16-to-f32":

        def matmul(x, w, *_):
            return torch.mm(x, w.t(), out_dtype=torch.float32)

        def eager(x, w, bias, *_):
            z = matmul(x, w)
            return activation(z + bias if request["bias"] else z)

    elif request["batch"] > 1:

        def matmul(x, w, *_):
            return torch.matmul(x, w.mT)

        eager = matmul

    else:

        def eager(x, w, bias, *more):
            z = F.linear(x, w, bias if request["bias"] else None)
            if extra == "residual":
                z = z + more[0]
            elif extra == "scales":
                z = (z * more[0] * more[1]).to(z.dtype)
            y = activation(z)
            # A mask of bits would take operations of its own; a framework has one of bytes, if any.
            return (y, z > 0) if extra == "mask" else (y, z) if extra == "preactivation" else y

        def matmul(x, w, *_):
            return torch.matmul(x, w.t())

    names = ["torch-eager", "torch-compiled"]
    if is_f8:
        # Which function it is, since that one has two ways to sum.
        names = ["torch-scaled-mm", "torch-scaled-mm-compiled"]
    found = {"torch-matmul": matmul, names[0]: eager}
    if is_f8:
        # Sums that stay in the tensor cores, which keep fewer bits of them: faster, and not the same as what the others compute.
        found["torch-scaled-mm-fast-accumulation"] = functools.partial(eager, fast=True)
    fused = {"relu": False, "gelu-tanh": True}.get(request["activation"])
    if request["bias"] and fused is not None and extra == "none" and not is_f8 and request["precision"] != "bf16-to-f32":
        found["torch-addmm-activation"] = lambda x, w, bias: torch._addmm_activation(bias, x, w.t(), use_gelu=fused)
    if request["compile"]:
        torch._dynamo.reset()
        found[names[1]] = torch.compile(eager, dynamic=False, mode=request["compile"])
    return found


def check(name, request, operands, result):
    """Whether the first row is what was asked for."""
    x, w, bias, *more = operands.sets[0]
    y, besides = result if isinstance(result, tuple) else (result, None)
    if request["batch"] > 1:
        x, w, y = x[-1], w[-1], y[-1]
    z = x[:1].double() @ w.double().t()
    if name != "torch-matmul":
        if request["extra"] == "scales":
            z = z * more[0][:1].double() * more[1].double()
        z = z + bias.double() if request["bias"] else z
        if request["extra"] == "residual":
            z = z + more[0][:1].double()
        if request["extra"] == "preactivation":
            near(f"{name}'s argument of the activation", besides, z)
        z = ACTIVATIONS[request["activation"]](z)
    near(name, y, z)


def near(name, result, expected):
    """Refuses a result whose first row is not the expected one."""
    error = (result[:1].double() - expected).abs().max().item()
    allowed = 0.02 * expected.abs().max().item() + 0.05
    if not error <= allowed:
        raise RuntimeError(f"{name} is off by {error}, more than {allowed}")


class Graph:
    """A variant's launches, recorded."""

    def __init__(self, function, operands, batch_us, plug):
        # A graph reads the memory of its operands, and does not keep it.
        self.operands = operands
        sets = operands.sets
        self.results = [None] * len(sets)
        self.first = function(*sets[0])
        torch.cuda.synchronize()
        self.copies = 1
        # How many fill a batch is seen from a few.
        self.record(function, sets, 4)
        self.record(function, sets, int(min(max(batch_us / max(self.sample(plug), 0.1), 1), MOST_LAUNCHES)))

    def record(self, function, sets, launches):
        self.launches = launches
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for index in range(launches):
                self.results[index % len(sets)] = function(*sets[index % len(sets)])

    def sample(self, plug):
        """Microseconds of one launch."""
        while True:
            for _ in range(self.copies):
                plug[0].copy_(plug[1])
            start, end = event(), event()
            start.record()
            self.graph.replay()
            end.record()
            ahead = not start.query()
            end.synchronize()
            if ahead or self.copies > 1024:
                return 1e3 * start.elapsed_time(end) / self.launches
            self.copies *= 2


def event():
    return torch.cuda.Event(enable_timing=True)


def prepare(request, plug, operands_of, variants_of, check_of):
    """The graphs of a request's variants, by their names, and why those are absent that are."""
    torch.set_float32_matmul_precision("highest" if request["precision"] == "f32" else "high")
    operands = operands_of(request)
    graphs, absent = {}, {}
    for name, function in variants_of(request, operands).items():
        try:
            graph = Graph(function, operands, request["batch_us"], plug)
            check_of(name, request, operands, graph.first)
            graphs[name] = graph
        except Exception as error:  # A variant that these sizes and types do not have is absent; the others are measured.
            absent[name] = why(error)
    return graphs, absent


def why(error):
    """The beginning of what an exception says."""
    return (str(error).splitlines() or [repr(error)])[0][:200]


def cublas_version():
    """The version of the library that PyTorch has loaded, as it counts them."""
    torch.ones(16, 16, device="cuda") @ torch.ones(16, 16, device="cuda")
    for line in open("/proc/self/maps"):
        if "libcublasLt.so" in line:
            library = ctypes.CDLL(line.split()[-1])
            library.cublasLtGetVersion.restype = ctypes.c_size_t
            return library.cublasLtGetVersion()
    return 0


def answer(ready_of):
    """Answers the requests that come in. `ready_of` gives for one: functions that take a sample, by name, and why others are absent."""
    say = lambda line: print(json.dumps(line), flush=True)
    say({"torch": torch.__version__, "cublas": cublas_version()})
    ready = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "sample" in request:
            say({"us": ready[request["sample"]]()})
            continue
        ready = {}
        gc.collect()
        torch.cuda.empty_cache()
        if "prepare" not in request:
            say({"variants": [], "absent": {}})
            continue
        try:
            ready, absent = ready_of(request["prepare"])
        except Exception as error:  # As where there is no memory for the operands: the next request may be smaller.
            ready, absent = {}, {"PyTorch": why(error)}
        # Nothing of a request is left to do when it is answered.
        torch.cuda.synchronize()
        say({"variants": list(ready), "absent": absent})


def serve(operands_of, variants_of, check_of):
    """Answers requests with what these give for one: its operands, its functions by name, and whether a result is right."""
    with torch.inference_mode():
        plug = [torch.zeros(PLUG_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2)]

        def ready_of(request):
            graphs, absent = prepare(request, plug, operands_of, variants_of, check_of)
            return {name: functools.partial(graph.sample, plug) for name, graph in graphs.items()}, absent

        answer(ready_of)


if __name__ == "__main__":
    serve(Operands, variants, check)
