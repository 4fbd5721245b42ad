"""Times PyTorch's linear layers with generated low-rank updates for `cargo xtask bench --operation update`.

It answers as `linear.py` beside it does, and measures as that does.
"""

import torch
import torch.nn.functional as F

import linear


class Operands:
    """Sets of x, w, bias, v, codes and u."""

    def __init__(self, request):
        m, k, n, rank = request["m"], request["k"], request["n"], request["rank"]
        self.dtype = linear.TYPES[request["precision"]][0]
        elements = m * k + m * n + rank * (m + k + n) + (n * k + n if request["linear"] else 0)
        bytes_each = elements * torch.empty((), dtype=self.dtype).element_size()
        wanted = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = min(max(-(-wanted // bytes_each), 2), linear.MOST_SETS)
        one = (
            self.draw(m, k, 1),
            self.draw(n, k, k),
            self.draw(1, n, 1).reshape(n),
            self.draw(k, rank, k),
            self.draw(m, rank, 1),
            self.draw(rank, n, rank),
        )
        self.sets = [tuple(tensor.clone() for tensor in one) for _ in range(count - 1)] + [one]

    def draw(self, rows, columns, length):
        values = torch.empty(rows, columns, device="cuda", dtype=torch.float32).uniform_(-1, 1)
        return (values / max(length, 1) ** 0.5).to(self.dtype)


def variants(request, operands):
    """The functions of a set to time, by name."""
    scaling = request["scaling"]

    def base(x, w, bias, v, codes, u):
        return F.linear(x, w, bias)

    def update(x, w, bias, v, codes, u):
        return ((x @ v) * codes) @ u * scaling

    def both(x, w, bias, v, codes, u):
        return F.linear(x, w, bias) + ((x @ v) * codes) @ u * scaling

    def copy(x, w, bias, v, codes, u):
        return torch.neg(x)

    eager = both if request["linear"] else update
    found = {"torch-eager": eager}
    if request["linear"]:
        found["torch-base"] = base
    elif request["k"] == request["n"]:
        # What must be moved at least, by an elementwise kernel: a plain copy would be the driver's.
        found["torch-copy"] = copy
    if request["compile"]:
        torch._dynamo.reset()
        found["torch-compiled"] = torch.compile(eager, dynamic=False, mode=request["compile"])
    return found


def check(name, request, operands, result):
    """Whether the first row is what was asked for."""
    x, w, bias, v, codes, u = (tensor.double() for tensor in operands.sets[0])
    if name == "torch-copy":
        if not torch.equal(result, -operands.sets[0][0]):
            raise RuntimeError(f"{name} is not what was copied, negated")
        return
    z = torch.zeros_like(result[:1], dtype=torch.float64)
    if request["linear"]:
        z = x[:1] @ w.t() + bias
    if name != "torch-base":
        z = z + ((x[:1] @ v) * codes[:1]) @ u * request["scaling"]
    error = (result[:1].double() - z).abs().max().item()
    allowed = 0.02 * z.abs().max().item() + 0.02
    if not error <= allowed:
        raise RuntimeError(f"{name} is off by {error}, more than {allowed}")


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
