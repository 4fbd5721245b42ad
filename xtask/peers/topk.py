"""Times PyTorch's selection of the largest elements of rows for `cargo xtask bench --operation topk`.

It answers as `linear.py` beside it does, and measures as that does.
"""

import torch

import linear


class Operands:
    """Sets of x."""

    def __init__(self, request):
        rows, columns, k = request["rows"], request["columns"], request["k"]
        self.dtype = linear.TYPES[request["precision"]][0]
        element = torch.empty((), dtype=self.dtype).element_size()
        # Ids of 32 bits, as ours are, so that both rotate through as many sets.
        bytes_each = rows * columns * element + rows * k * (element + 4)
        wanted = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = min(max(-(-wanted // bytes_each), 2), linear.MOST_SETS)
        draw = lambda: torch.empty(rows, columns, device="cuda", dtype=torch.float32).uniform_(-1, 1).to(self.dtype)
        self.sets = [(draw(),) for _ in range(count)]


def variants(request, operands):
    """The functions of x to time, by name."""
    k = request["k"]
    return {"torch-topk": lambda x: x.topk(k, -1)}


def check(name, request, operands, result):
    """Whether the first row's values are the largest, best first."""
    wanted = operands.sets[0][0][0].sort(descending=True).values[: request["k"]]
    if not torch.equal(result[0][0], wanted):
        raise RuntimeError(f"{name} selects {result[0][0].tolist()}, not {wanted.tolist()}")


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
