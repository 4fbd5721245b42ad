"""Uses the library of `dlpack.rs` on tensors of NumPy's, and of PyTorch's on a GPU: python dlpack.py LIBRARY [--gpu]"""

import ctypes
import sys

NEW = b"dltensor_versioned"
USED = b"used_dltensor_versioned"

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def taken(tensor, **asked):
    """A pointer to the tensor in DLPack's form, which whoever gets it has to give back."""
    capsule = tensor.__dlpack__(max_version=(1, 0), **asked)
    pointer = python.PyCapsule_GetPointer(capsule, NEW)
    python.PyCapsule_SetName(capsule, USED)
    return ctypes.c_void_p(pointer)


class Given:
    """A tensor in DLPack's form for `from_dlpack`."""

    def __init__(self, pointer, device):
        self.pointer, self.device = pointer, device

    def __dlpack__(self, **asked):
        return python.PyCapsule_New(self.pointer, NEW, None)

    def __dlpack_device__(self):
        return self.device


def check(outcome):
    if outcome != 0:
        raise RuntimeError("the library refuses; see the standard error stream")


def on_the_cpu(library):
    import numpy

    x = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    # Every other row of a larger array.
    w = numpy.arange(40, dtype=numpy.float32).reshape(10, 4)[::2]
    y = ctypes.c_void_p()
    check(library.example_linear(-1, None, taken(x), taken(w), ctypes.byref(y)))
    result = numpy.from_dlpack(Given(y, (1, 0)))
    assert (result == x @ w.T).all(), result

    y = numpy.ones((3, 5), dtype=numpy.float32)
    check(library.example_linear_add(-1, None, taken(x), taken(w), taken(y)))
    assert (y == x @ w.T + 1).all(), y
    # One of another type is refused, and given back.
    assert library.example_linear_add(-1, None, taken(x.astype("float64")), taken(w), taken(y)) == 1
    print("NumPy: as it should be")


def on_a_gpu(library, repeats=1000):
    import torch

    torch.manual_seed(1)
    random = lambda *shape: torch.randint(-4, 5, shape, device="cuda").float()
    stream = torch.cuda.Stream()
    handle = ctypes.c_void_p(stream.cuda_stream)
    asked = {"stream": stream.cuda_stream}
    shape = lambda: (65, 130, 70)
    rows, inputs, outputs = shape()

    # Operands are dropped right after the call, and their memory is used again: nothing waits for the GPU.
    wrong = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(repeats):
            x, w = random(rows, inputs), random(outputs, inputs * 2)[:, ::2].contiguous()
            expected = x @ w.T
            y = ctypes.c_void_p()
            check(library.example_linear(0, handle, taken(x, **asked), taken(w, **asked), ctypes.byref(y)))
            del x, w
            result = torch.from_dlpack(Given(y, (2, 0)))
            wrong += (result != expected).any()
            total = torch.ones(rows, outputs, device="cuda")
            x, w = random(rows, inputs), random(outputs, inputs)
            expected = x @ w.T + 1
            check(library.example_linear_add(0, handle, taken(x, **asked), taken(w, **asked), taken(total, **asked)))
            del x, w
            wrong += (total != expected).any()
    torch.cuda.synchronize()
    assert wrong.item() == 0, f"{wrong.item()} of {2 * repeats} results are wrong"
    print(f"PyTorch, {repeats} repeats without waiting: as it should be")

    # In a graph of PyTorch's, whose user keeps the tensors.
    x, w, total = random(rows, inputs), random(outputs, inputs), torch.zeros(rows, outputs, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        # While a graph is recorded, the stream's own work needs no order with the tensors'.
        asked = {"stream": -1}
        check(library.example_linear_add(0, handle, taken(x, **asked), taken(w, **asked), taken(total, **asked)))
    torch.cuda.synchronize()
    assert (total == 0).all()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (total == 3 * (x @ w.T)).all()
    print("PyTorch, in a graph: as it should be")


if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1])
    on_the_cpu(library)
    if "--gpu" in sys.argv[2:]:
        import torch

        # So that integers come out exact.
        torch.backends.cuda.matmul.allow_tf32 = False
        on_a_gpu(library)
