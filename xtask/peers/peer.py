"""Times PyTorch's PEER layers for `cargo xtask bench --operation peer`.

It answers as `linear.py` beside it does, and measures as that does. The table of
experts is made once for each configuration and stays; only the tokens rotate, so that every launch gathers other rows.
"""

import gc
import math

import torch
import torch.nn.functional as F

import linear


class Weights:
    """The weights of a layer: experts of one hidden unit, sub-keys for each head."""

    def __init__(self, request):
        self.dtype = linear.TYPES[request["precision"]][0]
        self.n, self.heads, self.k = request["sub_keys"], request["heads"], request["top_k"]
        self.d, self.d_q = request["input"], request["query"]
        experts = self.n * self.n
        self.u = self.draw(experts, self.d, scale=1 / math.sqrt(self.d))
        self.v = self.draw(experts, request["output"], scale=1)
        self.w_q = self.draw(self.heads * self.d_q, self.d, scale=1 / math.sqrt(self.d))
        self.keys = [self.draw(self.heads, self.n, self.d_q // 2, scale=1) for _ in range(2)]

    def draw(self, *shape, scale):
        # By parts: a table in f32 would be twice as large as itself.
        values = torch.empty(*shape, device="cuda", dtype=self.dtype)
        for part in values.split(1 << 16):
            part.copy_(torch.randn(part.shape, device="cuda") * scale)
        return values


class Operands:
    """Sets of tokens."""

    weights = None
    made_for = None

    def __init__(self, request):
        wanted = {name: request[name] for name in ("precision", "sub_keys", "heads", "top_k", "input", "output", "query")}
        if Operands.made_for != wanted:
            Operands.weights = None
            gc.collect()
            torch.cuda.empty_cache()
            # Not in inference mode, whose tensors have no gradients.
            with torch.inference_mode(False):
                Operands.weights, Operands.made_for = Weights(request), wanted
        weights, tokens = Operands.weights, request["tokens"]
        element = torch.empty((), dtype=weights.dtype).element_size()
        gathered = tokens * weights.heads * weights.k * (request["input"] + request["output"]) * element
        cache = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = min(max(-(-cache // gathered), 2), linear.MOST_SETS)
        with torch.inference_mode(False):
            self.sets = [(weights.draw(tokens, weights.d, scale=1),) for _ in range(count)]
            self.dy = weights.draw(tokens, request["output"], scale=1)


def route(weights, x):
    """Gates and ids, [tokens, heads, k]."""
    tokens, heads, half, k = x.shape[0], weights.heads, weights.d_q // 2, weights.k
    q = F.layer_norm(F.linear(x, weights.w_q).view(tokens, heads, weights.d_q), (weights.d_q,))
    q = q.view(tokens, heads, 2, half)
    found = [torch.einsum("thd,hnd->thn", q[:, :, i], weights.keys[i]).topk(k, -1) for i in range(2)]
    (first, i), (second, j) = found
    scores, place = (first[..., :, None] + second[..., None, :]).flatten(-2).topk(k, -1)
    ids = (i[..., :, None] * weights.n + j[..., None, :]).flatten(-2).gather(-1, place)
    return torch.softmax(scores.float(), -1).to(x.dtype), ids


def evaluate(x, gates, u, v):
    """The outputs of experts whose vectors these are, [tokens, heads * k, columns]."""
    hidden = F.gelu(torch.bmm(u, x[:, :, None]).squeeze(-1)) * gates.flatten(1)
    return torch.bmm(hidden[:, None], v).squeeze(1)


def gradients(weights, dy):
    """A step of training without its optimiser. Gradients of experts are rows, of which there are several where an expert is used again."""

    def step(x):
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().requires_grad_()
            parameters = (weights.w_q, *weights.keys, weights.u, weights.v)
            for parameter in parameters:
                parameter.requires_grad_()
            gates, ids = route(weights, x)
            ids = ids.flatten(1)
            u, v = (F.embedding(ids, table, sparse=True) for table in (weights.u, weights.v))
            found = torch.autograd.grad(evaluate(x, gates, u, v), (x, *parameters), dy)
            for parameter in parameters:
                parameter.requires_grad_(False)
            return found

    return step


def variants(request, operands):
    """The functions of x to time, by name."""
    weights = operands.weights

    def by_head(x):
        gates, ids = route(weights, x)
        out = torch.zeros(x.shape[0], weights.v.shape[1], device="cuda", dtype=x.dtype)
        for head in range(weights.heads):
            hidden = F.gelu(torch.einsum("td,tkd->tk", x, weights.u[ids[:, head]])) * gates[:, head]
            out += torch.einsum("tk,tkd->td", hidden, weights.v[ids[:, head]])
        return out

    def bag(x):
        gates, ids = route(weights, x)
        ids = ids.flatten(1)
        hidden = F.gelu(torch.bmm(weights.u[ids], x[:, :, None]).squeeze(-1)) * gates.flatten(1)
        return F.embedding_bag(ids, weights.v, per_sample_weights=hidden, mode="sum")

    if request["part"] == "routing":
        return {"torch-routing": lambda x: route(weights, x)}
    if request["part"] == "training":
        return {"torch-sparse": gradients(weights, operands.dy)}
    return {"torch-by-head": by_head, "torch-embedding-bag": bag}


def check(name, request, operands, result):
    """Whether the first token's result is what was asked for."""
    weights, x = operands.weights, operands.sets[0][0][:1]
    gates, ids = route(weights, x)
    if request["part"] == "routing":
        sums = result[0][:1].float().sum(-1)
        if not (sums - 1).abs().max().item() <= 0.02:
            raise RuntimeError(f"{name} has gates that add up to {sums.flatten().tolist()}")
        return
    if request["part"] == "training":
        # The gradient of the experts' rows, which is in the order of their uses.
        of_v = result[-1]._values()[: ids.numel()].double()
        hidden = F.gelu(weights.u[ids.flatten()].double() @ x[0].double()) * gates.flatten().double()
        wanted = hidden[:, None] * operands.dy[0].double()
        error = (of_v - wanted).abs().max().item()
        if not error <= 0.05 * wanted.abs().max().item() + 0.02 or not result[0].isfinite().all():
            raise RuntimeError(f"{name} has gradients that are off by {error}")
        return
    ids, gates = ids.flatten(), gates.flatten().double()
    hidden = F.gelu(weights.u[ids].double() @ x[0].double()) * gates
    wanted = hidden @ weights.v[ids].double()
    error = (result[0].double() - wanted).abs().max().item()
    allowed = 0.05 * wanted.abs().max().item() + 0.02
    if not error <= allowed:
        raise RuntimeError(f"{name} is off by {error}, more than {allowed}")


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
