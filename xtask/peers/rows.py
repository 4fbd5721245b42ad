"""Times PyTorch's operations on rows for `cargo xtask bench --operation rows`.

It answers as `linear.py` beside it does, and measures as that does. Each operation runs as the framework has it, and as its compiler makes it.
"""

import torch
import torch.nn.functional as F

import linear


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x, weight, _):
    return F.rms_norm(x, x.shape[-1:], weight)


def rms_norm_of_sum(x, residual, weight, _):
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight), total


def softmax(x, *_):
    return F.softmax(x, -1)


def cross_entropy(x, labels):
    return F.cross_entropy(x, labels)


HEAD = 128


def rotary(x, table, _):
    """The halves of each head, turned."""
    rows, columns = x.shape
    positions = table.shape[0]
    whole = rows // positions * positions
    heads = x[:whole].view(whole // positions, positions, columns // HEAD, HEAD)
    a, b = heads.float().chunk(2, -1)
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def gated_silu(x, other, *_):
    return F.silu(x) * other


def add(x, other, *_):
    return x + other


FORWARD = {
    "layer-norm": (layer_norm, 1),
    "rms-norm": (rms_norm, 1),
    "rms-norm-residual": (rms_norm_of_sum, 2),
    "softmax": (softmax, 1),
    "rotary": (rotary, 1),
    "gated-silu": (gated_silu, 2),
    "add": (add, 2),
}
# How many of the vectors have gradients, and whether the result's gradient is given.
TRAINING = {
    "layer-norm-training": (layer_norm, 2),
    "rms-norm-training": (rms_norm, 1),
    "softmax-training": (softmax, 0),
    "cross-entropy-training": (cross_entropy, 0),
}


class Operands:
    """Sets of rows, and what all of them share."""

    def __init__(self, request):
        rows, columns = request["rows"], request["columns"]
        operation = request["operation"]
        self.dtype = linear.TYPES[request["precision"]][0]
        wanted = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = int(min(max(-(-wanted // request["bytes"]), 2), linear.MOST_SETS))
        is_loss = operation == "cross-entropy-training"
        matrices = 1 if is_loss else 2 if operation in TRAINING else FORWARD[operation][1]
        draw = lambda *shape: torch.empty(shape, device="cuda").uniform_(-1, 1).to(self.dtype)
        # The compiler, and gradients, take no tensors of inference mode.
        with torch.inference_mode(False):
            first = [draw(rows, columns) for _ in range(matrices)]
            self.sets = [tuple(tensor.clone() for tensor in first) for _ in range(count)]
            self.shared = [draw(columns), draw(columns)]
            if is_loss:
                self.shared = [torch.arange(rows, device="cuda") * 7919 % columns]
            elif operation == "rotary":
                self.shared = [draw(min(rows, 1 << 14), HEAD // 2, 2).float(), None]
            if operation in TRAINING:
                for x, *_ in self.sets:
                    x.requires_grad_()
                for vector in self.shared[: TRAINING[operation][1]]:
                    vector.requires_grad_()


def variants(request, operands):
    """The functions of a set to time, by name."""
    operation, shared = request["operation"], operands.shared
    function, vectors = FORWARD.get(operation) or TRAINING[operation]
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)

    def forward(f):
        def run(*rows):
            with torch.inference_mode(False), torch.no_grad():
                return f(*rows, *shared)

        return run

    def training(f):
        def run(x, dy=None):
            with torch.inference_mode(False), torch.enable_grad():
                return torch.autograd.grad(f(x, *shared), [x, *shared[:vectors]], dy)

        return run

    of = training if operation in TRAINING else forward
    found = {"torch": of(function)}
    if request["compile"]:
        found["torch-compiled"] = of(compiled)
    return found


def check(name, request, operands, result):
    """Whether the first row is as computed in double precision."""
    operation = request["operation"]
    if operation in TRAINING or operation == "rotary":
        return
    x = operands.sets[0][0][:1].double()
    shared = [vector.double() for vector in operands.shared]
    others = [tensor[:1].double() for tensor in operands.sets[0][1:]]
    wanted = FORWARD[operation][0](x, *others, *shared)
    got, wanted = (value[0] if isinstance(value, tuple) else value for value in (result, wanted))
    if not torch.allclose(got[:1].double(), wanted, rtol=2e-2, atol=2e-2):
        raise RuntimeError(f"{name} is off by {(got[:1].double() - wanted).abs().max()}")


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
