"""Times PyTorch's attention for `cargo xtask bench --operation attention`.

It answers as `linear.py` beside it does, and measures as that does. Queries, keys, values and results lie as ours do: the heads of a row one after the
other. `scaled_dot_product_attention` gets views of them, and each of its backends is a variant of its own.
"""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import linear

# What lets a row attend, of numbers evenly from -1 to 1, as in our own masks.
ATTENDS_BELOW = 0.8


class Operands:
    """Sets of q, k, v and, where there is one, a bias or a mask."""

    def __init__(self, request):
        batch, rows, keys, width = (request[name] for name in ("batch", "rows", "keys", "width"))
        self.dtype = linear.TYPES[request["precision"]][0]
        wanted = linear.CACHE_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
        count = int(min(max(-(-wanted // request["bytes"]), 2), linear.MOST_SETS))
        # The compiler takes no tensors of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            one = [
                self.draw(batch, rows, request["heads"], width),
                self.draw(batch, keys, request["key_heads"], width),
                self.draw(batch, keys, request["key_heads"], width),
            ]
            if request["extra"].startswith("packed"):
                one = [tensor.flatten(0, 1) for tensor in one]
            elif request["extra"] == "bias":
                one.append(self.draw(batch, 1, rows, keys))
            elif request["extra"] == "mask":
                one.append(torch.empty(batch, 1, rows, keys, device="cuda").uniform_(-1, 1) < ATTENDS_BELOW)
            self.sets = [tuple(tensor.clone() for tensor in one) for _ in range(count - 1)] + [tuple(one)]
            self.lengths = torch.tensor(request["lengths"], device="cuda", dtype=torch.int32)
            self.slopes = 2.0 ** -(1.0 + torch.arange(request["heads"], device="cuda") % 8)

    def draw(self, *shape):
        values = torch.empty(shape, device="cuda", dtype=self.dtype)
        # By parts: in f32 all would be twice as large as itself.
        for part in values.view(-1).split(1 << 28):
            part.copy_(torch.empty(part.shape, device="cuda").uniform_(-1, 1))
        return values


def variants(request, operands):
    """The functions of a set to time, by name."""
    extra = request["extra"]
    if request["backward"]:
        return gradients(request, operands)
    if extra.startswith("packed"):
        found = {"torch-flash-varlen": varlen(request, operands)}
    else:
        found = backends(request, operands)
    if request["compile"]:
        try:
            found["torch-flex"] = flex(request, operands)
        except Exception as error:  # Absent as any other variant that cannot be made; linear.py says so.
            found["torch-flex"] = raising(error)
    return found


def raising(error):
    def function(*_):
        raise error

    return function


def backends(request, operands):
    """`scaled_dot_product_attention` by each of its backends that may take the request."""
    extra = request["extra"]
    is_lower_right = request["causal"] and request["rows"] != request["keys"]
    lengths = operands.lengths
    with torch.inference_mode(False), torch.no_grad():
        own_mask = None
        if extra == "padded":
            own_mask = (torch.arange(request["keys"], device="cuda") < lengths[:, None])[:, None, None, :]
        elif extra == "window":
            i = torch.arange(request["rows"], device="cuda")[:, None]
            j = torch.arange(request["keys"], device="cuda")
            own_mask = ((j <= i) & (i - j < request["window"]))[None, None]
        elif extra == "alibi":
            i = torch.arange(request["rows"], device="cuda")[:, None]
            j = torch.arange(request["keys"], device="cuda")
            own_mask = (-operands.slopes[:, None, None] * (i - j).abs())[None].to(operands.dtype)

    def by(backend):
        def attend(q, k, v, mask=None):
            with sdpa_kernel(backend):
                y = F.scaled_dot_product_attention(
                    q.transpose(1, 2),
                    k.transpose(1, 2),
                    v.transpose(1, 2),
                    attn_mask=own_mask if mask is None else mask,
                    is_causal=request["causal"] and own_mask is None,
                    enable_gqa=request["heads"] != request["key_heads"],
                )
            return y.transpose(1, 2)

        return attend

    def lower_right(q, k, v):
        # This function's own causal alignment is the top left; the kernel's is the bottom right.
        y = torch.ops.aten._scaled_dot_product_flash_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, True
        )[0]
        return y.transpose(1, 2)

    if extra == "soft cap":
        return {}
    if is_lower_right:
        return {"torch-flash": lower_right}
    found = {"torch-cudnn": by(SDPBackend.CUDNN_ATTENTION)}
    if extra in ("", "causal", "decode"):
        found["torch-flash"] = by(SDPBackend.FLASH_ATTENTION)
    else:
        # What takes masks beside cuDNN.
        found["torch-efficient"] = by(SDPBackend.EFFICIENT_ATTENTION)
    return found


def gradients(request, operands):
    """The kernels of gradients, called directly: a graph cannot record what the tape does. The forward passes have run before."""
    causal, found = request["causal"], {}
    scaled_dot_product = "_scaled_dot_product_%s_attention"
    heads_first = lambda tensor: tensor.transpose(1, 2)
    group = request["heads"] // request["key_heads"]

    def flash(q, k, v):
        # This function has as many heads of keys as of queries.
        k, v = (tensor.repeat_interleave(group, 1) if group > 1 else tensor for tensor in (k, v))
        forward = getattr(torch.ops.aten, scaled_dot_product % "flash")
        y, lse, ends_q, ends_k, most_q, most_k, seed, offset, _ = forward(q, k, v, 0.0, causal)
        return k, v, (y, lse, ends_q, ends_k, most_q, most_k, 0.0, causal, seed, offset)

    def cudnn(q, k, v):
        forward = getattr(torch.ops.aten, scaled_dot_product % "cudnn")
        y, lse, ends_q, ends_k, most_q, most_k, seed, offset, _ = forward(q, k, v, None, True, 0.0, causal)
        return k, v, (y, lse, seed, offset, None, ends_q, ends_k, most_q, most_k, 0.0, causal)

    def by(name, forward):
        backward = getattr(torch.ops.aten, scaled_dot_product % name + "_backward")
        saved = {}
        for q, k, v in operands.sets:
            of = [heads_first(tensor) for tensor in (q, k, v)]
            k_of, v_of, rest = forward(*of)
            saved[q.data_ptr()] = (rest[0].clone(), of[0], k_of, v_of, rest)

        def differentiate(q, *_):
            dy, q, k, v, rest = saved[q.data_ptr()]
            return [heads_first(gradient) for gradient in backward(dy, q, k, v, *rest)[:3]]

        return differentiate

    for name, forward in (("cudnn", cudnn), ("flash", flash)):
        try:
            with torch.inference_mode(False), torch.no_grad():
                found["torch-" + name] = by(name, forward)
        except Exception as error:  # Absent as any other variant that cannot be made; linear.py says so.
            found["torch-" + name] = raising(error)
    return found


def varlen(request, operands):
    """The kernel for sequences one after the other."""
    with torch.inference_mode(False), torch.no_grad():
        ends = operands.lengths.cumsum(0, dtype=torch.int32)
        offsets = torch.cat([torch.zeros_like(ends[:1]), ends])
    longest = max(request["lengths"])

    def attend(q, k, v):
        flash = torch.ops.aten._flash_attention_forward
        return flash(q, k, v, offsets, offsets, longest, longest, 0.0, request["causal"], False)[0]

    return attend


def flex(request, operands):
    """Attention that the compiler makes of what is done to scores."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    extra, is_packed = request["extra"], request["extra"].startswith("packed")
    slopes, lengths, window, cap = operands.slopes, operands.lengths, request["window"], request["soft_cap"]
    is_grouped = request["heads"] != request["key_heads"]
    rows, keys, masked = request["rows"], request["keys"], None
    with torch.inference_mode(False), torch.no_grad():
        if extra == "padded":
            masked = create_block_mask(
                lambda b, h, i, j: j < lengths[b], request["batch"], None, rows, keys, device="cuda"
            )
        elif extra == "window":
            masked = create_block_mask(
                lambda b, h, i, j: (j <= i) & (i - j < window), None, None, rows, keys, device="cuda"
            )
        elif is_packed:
            sequence = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), lengths)
            masked = create_block_mask(
                lambda b, h, i, j: (sequence[i] == sequence[j]) & (j <= i),
                None,
                None,
                len(sequence),
                len(sequence),
                device="cuda",
            )

    def attend(q, k, v, block_mask, more=None):
        change = None
        if extra == "bias":
            change = lambda score, b, h, i, j: score + more[b, 0, i, j]
        elif extra == "mask":
            change = lambda score, b, h, i, j: torch.where(more[b, 0, i, j], score, -float("inf"))
        elif extra == "alibi":
            change = lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()
        elif extra == "soft cap":
            change = lambda score, b, h, i, j: cap * torch.tanh(score / cap)
        return flex_attention(q, k, v, score_mod=change, block_mask=block_mask, enable_gqa=is_grouped)

    compiled = torch.compile(attend, dynamic=False, mode=request["compile"])

    def function(q, k, v, *more):
        with torch.inference_mode(False), torch.no_grad():
            if is_packed:
                q, k, v = (tensor[None] for tensor in (q, k, v))
            y = compiled(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), masked, *more)
            y = y.transpose(1, 2)
            return y[0] if is_packed else y

    return function


def check(name, request, operands, result):
    """Whether a row of the first sequence and one of the last are what was asked for."""
    if request["backward"]:
        check_gradients(name, request, operands, result)
        return
    lengths = request["lengths"]
    sequences = len(lengths) or request["batch"]
    for b, which in ((0, -1), (sequences - 1, -1), (sequences - 1, 0)):
        rows, keys = (lengths[b], lengths[b]) if lengths else (request["rows"], request["keys"])
        q, k, v, *more = operands.sets[0]
        if request["extra"].startswith("packed"):
            start = sum(lengths[:b])
            of = lambda tensor: tensor[start : start + rows]
        else:
            of = lambda tensor: tensor[b]
        i = rows - 1 if which == -1 else rows // 2
        expected = row(request, operands, of(q)[i], of(k)[:keys], of(v)[:keys], [it[b, 0, i, :keys] for it in more], i, rows)
        error = (of(result)[i].double() - expected).abs().max().item()
        allowed = 0.02 * expected.abs().max().item() + 0.002
        if not error <= allowed:
            raise RuntimeError(f"{name} is off by {error} at row {i} of sequence {b}, more than {allowed}")


def check_gradients(name, request, operands, result):
    """Whether the gradients of a row of queries are what was asked for, where the gradient of a result is the result itself."""
    q, k, v = (tensor[-1].double() for tensor in operands.sets[0])
    group, i = request["heads"] // request["key_heads"], request["rows"] // 2
    k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = torch.einsum("hd,jhd->hj", q[i], k) * scale
    if request["causal"]:
        beside = i + request["keys"] - request["rows"]
        scores = scores.masked_fill(torch.arange(k.shape[0], device="cuda") > beside, -math.inf)
    weights = scores.softmax(-1)
    y = torch.einsum("hj,jhd->hd", weights, v)
    of_weights = torch.einsum("hd,jhd->hj", y, v)
    of_scores = weights * (of_weights - (y * y).sum(-1, keepdim=True))
    expected = torch.einsum("hj,jhd->hd", of_scores, k) * scale
    error = (result[0][-1, i].double() - expected).abs().max().item()
    allowed = 0.05 * expected.abs().max().item() + 0.002
    if not error <= allowed:
        raise RuntimeError(f"{name} is off by {error} in the gradient of row {i}, more than {allowed}")


def row(request, operands, q, k, v, more, i, rows):
    """The right result of a row: [heads, columns]."""
    keys, group = k.shape[0], request["heads"] // request["key_heads"]
    q, k, v = q.double(), *(tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
    scores = torch.einsum("hd,jhd->hj", q, k) / math.sqrt(q.shape[-1])
    j = torch.arange(keys, device="cuda")
    beside = i + keys - rows
    if request["soft_cap"] is not None:
        scores = request["soft_cap"] * torch.tanh(scores / request["soft_cap"])
    if request["extra"] == "bias":
        scores = scores + more[0].double()
    if request["extra"] == "alibi":
        scores = scores - operands.slopes.double()[:, None] * (beside - j).abs()
    attends = torch.ones(keys, dtype=torch.bool, device="cuda")
    if request["extra"] == "mask":
        attends = more[0]
    if request["causal"]:
        attends = attends & (j <= beside)
    if request["window"] is not None:
        attends = attends & (beside - j < request["window"])
    weights = scores.masked_fill(~attends, -math.inf).softmax(-1)
    return torch.einsum("hj,jhd->hd", weights, v)


if __name__ == "__main__":
    linear.serve(Operands, variants, check)
