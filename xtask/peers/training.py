"""Times PyTorch's training for `cargo xtask bench --operation training`.

It answers as `linear.py` beside it does, and measures as that does. A graph has the forward pass, the backward pass and what follows. Whatever fails is
absent; the rest is measured.
"""

import torch
import torch.nn.functional as F

import linear

# The same as ours: steps so short that weights stay what they are.
LEARNING_RATE = 1e-6


def draw(*shape, dtype=torch.float32, limit=1.0):
    return torch.empty(shape, device="cuda").uniform_(-limit, limit).to(dtype)


def set_count(size):
    """Sets of so many bytes that together are beyond the cache."""
    wanted = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
    return int(min(max(-(-wanted // max(int(size), 1)), 2), linear.MOST_SETS))


def training(function):
    """A function of whatever is recorded, with gradients."""

    def run(*operands):
        with torch.inference_mode(False), torch.enable_grad():
            return function(*operands)

    return run


class Operands:
    """Sets that launches rotate through, and what all of them share."""

    def __init__(self, request):
        self.dtype = linear.TYPES[request["precision"]][0]
        # Gradients, and the compiler, take no tensors of inference mode.
        with torch.inference_mode(False):
            {"linear": self.of_linear, "adamw": self.of_adamw, "mlp": self.of_mlp}[request["work"]](request)

    def of_linear(self, request):
        m, k, n = request["shape"]
        one = [draw(*shape, dtype=self.dtype) for shape in ((m, k), (n, k), (n,), (m, n))]
        self.sets = [tuple(tensor.clone() for tensor in one) for _ in range(set_count(request["bytes"]))]
        for x, w, bias, _ in self.sets:
            for tensor in (x, w, bias):
                tensor.requires_grad_()

    def of_adamw(self, request):
        lengths = request["shape"]
        count = set_count(16 * sum(lengths))
        self.sets = [(index,) for index in range(count)]
        self.parameters = [[torch.nn.Parameter(draw(length)) for length in lengths] for _ in range(count)]
        for parameters in self.parameters:
            for parameter in parameters:
                parameter.grad = draw(*parameter.shape)

    def of_mlp(self, request):
        batch, *widths = request["shape"]
        x = draw(batch, widths[0])
        labels = torch.arange(batch, device="cuda") * 7919 % widths[-1]
        count = set_count(batch * (widths[0] * torch.empty((), dtype=self.dtype).element_size() + 8))
        self.sets = [(x.to(self.dtype, copy=True), labels.clone()) for _ in range(count)]
        # In f32; each variant has a network of its own.
        self.weights = [draw(n, k, limit=(6 / k) ** 0.5) for k, n in zip(widths, widths[1:])]
        self.biases = [draw(n, limit=(6 / k) ** 0.5) for k, n in zip(widths, widths[1:])]


def variants(request, operands):
    """The functions of a set to time, by name."""
    torch._dynamo.reset()
    return {"linear": of_linear, "adamw": of_adamw, "mlp": of_mlp}[request["work"]](request, operands)


def compiled(request, function):
    return torch.compile(function, dynamic=False, mode=request["compile"])


def of_linear(request, _):
    activation = linear.ACTIVATIONS[request["activation"]]

    def forward(x, w, bias):
        return activation(F.linear(x, w, bias))

    def gradients(forward):
        def run(x, w, bias, dy):
            y = forward(x, w, bias)
            return y.detach(), *torch.autograd.grad(y, (x, w, bias), dy)

        return training(run)

    found = {"torch": gradients(forward)}
    if request["compile"]:
        found["torch-compiled"] = gradients(compiled(request, forward))
    return found


def optimizer_of(parameters, **options):
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, capturable=True, **options)


def of_adamw(request, operands):
    def steps(compile=False, **options):
        made = {}

        def run(index):
            # Each set has an optimiser of its own, made in the first launch, before anything is recorded.
            for each in range(len(operands.sets)) if not made else ():
                optimizer = optimizer_of(operands.parameters[each], **options)
                made[each] = compiled(request, optimizer.step) if compile else optimizer.step
                made[each]()
            made[index]()
            return operands.parameters[index][0].detach()

        return training(run)

    found = {"torch-fused": steps(fused=True), "torch-foreach": steps(foreach=True)}
    # Each set is compiled on its own: many of them, or many tensors, would take minutes.
    if request["compile"] and len(request["shape"]) == 1 and len(operands.sets) < 8:
        found["torch-compiled"] = steps(compile=True, foreach=True)
    return found


def of_mlp(request, operands):
    def loss(x, labels, weights, biases):
        for weight, bias in zip(weights[:-1], biases[:-1]):
            x = F.relu(F.linear(x, weight, bias))
        return F.cross_entropy(F.linear(x, weights[-1], biases[-1]), labels)

    def steps(loss, dtype, autocast):
        weights, biases = (
            [torch.nn.Parameter(tensor.detach().to(dtype, copy=True)) for tensor in tensors]
            for tensors in (operands.weights, operands.biases)
        )
        parameters = weights + biases
        optimizer = optimizer_of(parameters, fused=True)

        def run(x, labels):
            # A graph must not keep what another cast.
            with torch.autocast("cuda", operands.dtype, enabled=autocast, cache_enabled=False):
                value = loss(x, labels, weights, biases)
            for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters)):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.detach()

        return training(run)

    is_f32 = operands.dtype == torch.float32
    # As it is done most: weights and moments in f32, products in the type asked for. And all in that type, which is less to move, and less exact.
    kinds = {"torch": (torch.float32, not is_f32)}
    if not is_f32:
        kinds[f"torch-{request['precision']}-states"] = (operands.dtype, False)
    found = {}
    with torch.inference_mode(False):
        for name, kind in kinds.items():
            found[name] = steps(loss, *kind)
            if request["compile"]:
                found[f"{name}-compiled"] = steps(compiled(request, loss), *kind)
    return found


def check(name, request, operands, result):
    """Whether the first row of a layer's gradient is as computed in double precision, and everything else is finite."""
    if request["work"] != "linear":
        if not torch.isfinite(result).all():
            raise RuntimeError(f"{name} gives what is not finite")
        return
    with torch.inference_mode(False), torch.enable_grad():
        x, w, bias, dy = (tensor.detach().double() for tensor in operands.sets[0])
        x = x[:1].requires_grad_()
        y = linear.ACTIVATIONS[request["activation"]](F.linear(x, w, bias))
        (wanted,) = torch.autograd.grad(y, x, dy[:1])
        # Of y there may be few elements whose slope another order of sums turns over.
        off = (result[1][:1].double() - wanted).norm() / wanted.norm().clamp_min(1e-30)
    if not off <= 0.1:
        raise RuntimeError(f"{name} is off by {off:.3}")


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
