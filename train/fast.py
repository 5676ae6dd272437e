"""The training forward: the stock model's mathematics over the stock parameters, fused.

Invariant: given the same weights, `Trainer model` losses equal those of the stock forward up to
rounding (checked by tests in dryrun.py and at the start of every GPU run); parameters are read
from the stock modules, never copied. Activations are BF16 on a GPU, FP32 on a CPU.
What makes it fast: tokens flattened to [N, H] so that compiled pieces keep one shape, one sort
per layer and grouped GEMMs for experts, flash-linear-attention for the delta rule, and a loss
that never holds more than a slice of the logits.
Elsewhere: the classes themselves (model.py), the optimiser (optimise.py).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as stock

import stutter

ON_GPU = torch.cuda.is_available()
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
LOSS_SLICE = 16384  # rows of logits held at once: 16384 x 7680 BF16 = 252 MB


def fused(function):
    """Compiles a small pure function on a GPU; leaves it alone on a CPU, where dry runs go."""
    return torch.compile(function, dynamic=False) if ON_GPU else function


if ON_GPU:
    import delta_kernel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as delta_rule
    delta_kernel.install()
    from loss_kernel import softmax_gradient
else:
    delta_rule = stock.torch_chunk_gated_delta_rule


@fused
def norm(x, weight):
    """Zero-centred RMSNorm over the last dimension, FP32 inside, one rounding."""
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x32 * scale * (1 + weight)).to(x.dtype)


@fused
def add_norm(residual, update, weight):
    """Returns residual + update and its zero-centred RMSNorm."""
    h = residual + update
    x32 = h.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return h, (x32 * scale * (1 + weight)).to(h.dtype)


@fused
def decay_gates(b, a, a_log, dt_bias):
    """Returns beta = sigmoid(b) and g = -exp(A_log) softplus(a + dt_bias), FP32 [N, heads]."""
    return torch.sigmoid(b.float()), -a_log.exp() * F.softplus(a.float() + dt_bias)


@fused
def gated_norm(o, z, weight):
    """RMSNorm over one value head, times silu(z): the delta net's output gate."""
    o32 = o.float()
    scale = torch.rsqrt(o32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (o32 * scale * weight * F.silu(z.float())).to(o.dtype)


@fused
def rotate_norm(x, weight, cos, sin):
    """Per-head RMSNorm, then rotary embedding of the first cos.shape[-1] dimensions."""
    x32 = x.float()
    x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight)
    half = cos.shape[-1] // 2
    first, second, rest = x32[..., :half], x32[..., half:2 * half], x32[..., 2 * half:]
    c, s = cos[:, None, :half], sin[:, None, :half]
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1).to(x.dtype)


@fused
def gate_attention(o, gate):
    return o * torch.sigmoid(gate)


@fused
def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@fused
def route_scores(logits, noise):
    """Gumbel-perturbed scores for choosing experts and clean probabilities for the balance."""
    uniform = torch.rand_like(logits, dtype=torch.float32).clamp_(1e-9, 1 - 1e-7)
    gumbel = -torch.log(-torch.log(uniform))
    logits = logits.float()
    return logits + noise * gumbel, torch.softmax(logits, -1)


@fused
def route_weights(probabilities, chosen):
    """Returns the chosen experts' probabilities, renormalised: [N, k] FP32."""
    picked = probabilities.gather(1, chosen)
    return picked / picked.sum(-1, keepdim=True)


@fused
def spread_rows(x, perm, k):
    return x[torch.div(perm, k, rounding_mode="floor")]


@fused
def collect_rows(y, inverse, k):
    return y[inverse].view(-1, k, y.shape[-1]).float().sum(1).to(y.dtype)


@fused
def weigh_rows(y, weights, inverse):
    rows = y[inverse].view(weights.shape[0], weights.shape[1], -1)
    return (rows.float() * weights[:, :, None]).sum(1).to(y.dtype)


@fused
def weigh_rows_backward(grad, y, weights, perm, inverse):
    k = weights.shape[1]
    flat = weights.reshape(-1)[perm]
    grad_y = (grad[torch.div(perm, k, rounding_mode="floor")].float() * flat[:, None])
    rows = y[inverse].view(weights.shape[0], k, -1)
    return grad_y.to(y.dtype), (rows.float() * grad[:, None, :].float()).sum(-1)


@fused
def merge(residual, routed, shared, gate):
    return residual + (routed + torch.sigmoid(gate) * shared)


class Dispatch(torch.autograd.Function):
    """Copies each token's row once per chosen expert, sorted by expert: [N, H] -> [N k, H]."""

    @staticmethod
    def forward(ctx, x, perm, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return spread_rows(x, perm, k)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return collect_rows(grad.contiguous(), inverse, ctx.k), None, None, None


class Combine(torch.autograd.Function):
    """Adds each token's expert outputs, weighted: [N k, H] and [N, k] -> [N, H]."""

    @staticmethod
    def forward(ctx, y, weights, perm, inverse):
        ctx.save_for_backward(y, weights, perm, inverse)
        return weigh_rows(y, weights, inverse)

    @staticmethod
    def backward(ctx, grad):
        y, weights, perm, inverse = ctx.saved_tensors
        grad_y, grad_w = weigh_rows_backward(grad.contiguous(), y, weights, perm, inverse)
        return grad_y, grad_w, None, None


class SlicedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of softmax(h W^T) against targets, gradients made in the forward.

    h [M, H] and W [V, H] in DTYPE, targets [M] int64. The value is the plain mean; the gradient is
    that of the mean weighted by scales [M] (FP32, sum 1). Each slice of logits is overwritten by
    its gradient, so memory is one slice. The gradient of W is accumulated in FP32.
    """

    @staticmethod
    def forward(ctx, h, weight, targets, scales):
        grad_h = torch.empty_like(h)
        grad_w = torch.zeros_like(weight, dtype=torch.float32)
        losses = torch.empty(h.shape[0], dtype=torch.float32, device=h.device)
        for start in range(0, h.shape[0], LOSS_SLICE):
            part = slice(start, min(start + LOSS_SLICE, h.shape[0]))
            logits = h[part] @ weight.t()
            if ON_GPU:
                softmax_gradient(logits, targets[part], losses[part], scales[part])
            else:
                losses[part] = F.cross_entropy(logits.float(), targets[part], reduction="none")
                logits = torch.softmax(logits.float(), -1)
                logits[torch.arange(len(logits)), targets[part]] -= 1.0
                logits = (logits * scales[part, None]).to(h.dtype)
            grad_h[part] = logits @ weight
            grad_w += (logits.t() @ h[part]).float()
        ctx.save_for_backward(grad_h, grad_w.to(weight.dtype))
        return losses.mean()

    @staticmethod
    def backward(ctx, grad):
        grad_h, grad_w = ctx.saved_tensors
        return grad_h * grad.to(grad_h.dtype), grad_w * grad.to(grad_w.dtype), None, None


@dataclass
class Shape:
    """Batch and time of the step in hand, and the rotary tables [N, rotary] that go with them."""
    batch: int
    time: int
    cos: torch.Tensor
    sin: torch.Tensor


@dataclass
class Filling:
    """The special tokens around a fill-in-the-middle answer and how much an answer's token counts.

    One line of an answer is a hundredth of its sample, so that at weight 1 hardly any of the
    training says where to stop.
    """
    middle: int
    end: int
    weight: float

    def weights(self, tokens):
        """Weights [B, T] FP32 of tokens [B, T] as targets: answers, with the end that closes them."""
        at = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        opened = torch.where(tokens == self.middle, at, -1).cummax(1).values
        closed = torch.where(tokens == self.end, at, -1).cummax(1).values
        inside = torch.zeros_like(tokens, dtype=torch.bool)
        inside[:, 1:] = opened[:, :-1] > closed[:, :-1]
        return torch.where(inside, self.weight, 1.0)


class TrainModel:
    """Runs a stock model with MTP head over token rows and returns the parts of the loss."""

    def __init__(self, model, filling=None):
        self.model = model
        self.filling = filling  # a Filling, or None: every token counts the same
        self.k = model.config.num_experts_per_tok
        self.experts = model.config.num_experts
        self.tables = {}
        self.noise = torch.zeros((), device=model.device)  # a tensor: a number would recompile
        self.balance = []  # balance terms of the layers run in this step
        self.use = []      # expert counts of the layers run in this step, [E] FP32
        self.record = None  # when a list: the chosen experts [N, k] of each layer run

    def shape_of(self, batch, time):
        """Returns the Shape of a step; rotary tables are made once a shape."""
        if (batch, time) not in self.tables:
            device = self.model.device
            rotary = self.model.model.rotary_emb
            positions = torch.arange(time, device=device).view(1, 1, -1).expand(3, 1, -1)
            cos, sin = rotary(torch.zeros(1, dtype=torch.float32, device=device), positions)
            cos, sin = (t[0].repeat(batch, 1).contiguous() for t in (cos, sin))
            self.tables[batch, time] = Shape(batch, time, cos, sin)
        return self.tables[batch, time]

    def delta_net(self, m, x, shape):
        qkv = x @ m.in_proj_qkv.weight.to(DTYPE).t()
        rest = torch.cat([m.in_proj_z.weight, m.in_proj_b.weight, m.in_proj_a.weight]).to(DTYPE)
        rest = x @ rest.t()
        qkv = qkv.view(shape.batch, shape.time, -1)
        taps = m.conv1d.weight.squeeze(1).to(DTYPE)
        if ON_GPU:
            qkv, _ = causal_conv1d(qkv, taps, activation="silu")
        else:
            qkv = stock.causal_conv1d_fn(qkv.transpose(1, 2), taps, None, "silu").transpose(1, 2)
        heads, rows = m.num_v_heads, shape.batch * shape.time
        b, a = rest[:, m.value_dim:m.value_dim + heads], rest[:, m.value_dim + heads:]
        beta, g = decay_gates(b, a, m.A_log, m.dt_bias)
        q, k, v = qkv.split([m.key_dim, m.key_dim, m.value_dim], dim=-1)
        split = (shape.batch, shape.time, -1, m.head_k_dim)
        q, k, v = (t.reshape(split) for t in (q, k, v))
        if not ON_GPU:
            q, k = (t.repeat_interleave(heads // m.num_k_heads, 2) for t in (q, k))
        beta, g = (t.view(shape.batch, shape.time, heads) for t in (beta, g))
        o, _ = delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
        z = rest[:, :m.value_dim].reshape(rows, heads, m.head_v_dim)
        o = gated_norm(o.reshape(rows, heads, m.head_v_dim), z, m.norm.weight)
        return o.reshape(rows, -1) @ m.out_proj.weight.to(DTYPE).t()

    def attention(self, m, x, shape):
        rows, d = x.shape[0], m.head_dim
        qg = (x @ m.q_proj.weight.to(DTYPE).t()).view(rows, -1, 2 * d)
        kv = x @ torch.cat([m.k_proj.weight, m.v_proj.weight]).to(DTYPE).t()
        k, v = kv.view(rows, 2, -1, d).unbind(1)
        q = rotate_norm(qg[..., :d], m.q_norm.weight, shape.cos, shape.sin)
        k = rotate_norm(k, m.k_norm.weight, shape.cos, shape.sin)
        q, k, v = (t.reshape(shape.batch, shape.time, -1, d).transpose(1, 2) for t in (q, k, v))
        o = causal_attention(q, k, v)
        o = o.transpose(1, 2).reshape(rows, -1, d)
        o = gate_attention(o, qg[..., d:])
        return o.reshape(rows, -1) @ m.o_proj.weight.to(DTYPE).t()

    def experts_of(self, m, x):
        """Routes and runs the experts. Returns their weighted sum [N, H]."""
        scores, probabilities = route_scores(x @ m.gate.weight.to(DTYPE).t(), self.noise)
        chosen = torch.topk(scores.detach(), self.k, dim=-1, sorted=False).indices
        if self.record is not None:
            self.record.append(chosen)
        weights = route_weights(probabilities, chosen)
        flat = chosen.view(-1)
        ordered, perm = torch.sort(flat.to(torch.uint8), stable=True)
        inverse = torch.empty_like(perm)
        inverse[perm] = torch.arange(perm.numel(), device=perm.device)
        edges = torch.arange(self.experts, device=perm.device, dtype=torch.uint8)
        ends = torch.searchsorted(ordered, edges, right=True).to(torch.int32)
        use = torch.diff(ends, prepend=ends.new_zeros(1)).float()
        self.use.append(use)
        share = use * (self.experts / flat.numel())
        mean_probability = probabilities.mean(0) * self.experts
        self.balance.append(((share - 1) * (mean_probability - 1)).mean())

        rows = Dispatch.apply(x, perm, inverse, self.k)
        up = grouped(rows, m.experts.gate_up_proj.to(DTYPE), ends)
        down = grouped(swiglu(up), m.experts.down_proj.to(DTYPE), ends)
        return Combine.apply(down, weights, perm, inverse)

    def moe(self, m, residual, x):
        """Returns residual + routed experts + gated shared expert, for normed input x."""
        routed = self.experts_of(m, x)
        e = m.shared_expert
        up = x @ torch.cat([e.gate_proj.weight, e.up_proj.weight]).to(DTYPE).t()
        shared = swiglu(up) @ e.down_proj.weight.to(DTYPE).t()
        gate = x @ m.shared_expert_gate.weight.to(DTYPE).t()
        return merge(residual, routed, shared, gate)

    def layer(self, m, h, shape):
        x = norm(h, m.input_layernorm.weight)
        if m.block_type == "linear_attention":
            update = self.delta_net(m.linear_attn, x, shape)
        else:
            update = self.attention(m.self_attn, x, shape)
        h, x = add_norm(h, update, m.post_attention_layernorm.weight)
        return self.moe(m.mlp, h, x)

    def trunk(self, tokens):
        """Returns the hidden after the final norm for tokens [B, T], flattened to [B T, H]."""
        shape = self.shape_of(*tokens.shape)
        h = F.embedding(tokens.reshape(-1), self.model.model.embed_tokens.weight).to(DTYPE)
        for m in self.model.model.layers:
            h = self.layer(m, h, shape)
        return norm(h, self.model.model.norm.weight)

    def draft(self, hidden, tokens):
        """One MTP step for all positions: hidden [N, H], tokens [B, T] that follow them."""
        m = self.model.mtp
        e = F.embedding(tokens.reshape(-1), self.model.model.embed_tokens.weight).to(DTYPE)
        e = norm(e, m.pre_fc_norm_embedding.weight)
        u = torch.cat([e, norm(hidden, m.pre_fc_norm_hidden.weight)], -1)
        u = u @ m.fc.weight.to(DTYPE).t()
        return norm(self.layer(m.layers[0], u, self.shape_of(*tokens.shape)), m.norm.weight)

    def loss(self, hidden, targets, weights):
        """Cross-entropy of hidden [N, H] against targets [B, T], weighted by weights [B, T]."""
        head = self.model.lm_head.weight.to(DTYPE)
        weights = weights.reshape(-1) / weights.sum()
        return SlicedCrossEntropy.apply(hidden, head, targets.reshape(-1), weights)

    def losses(self, rows, noise, drafts):
        """Returns (next-token loss, [draft losses], balance) for rows [B, T + 4] of token ids.

        The first draft sees the trunk's hidden, each later one the hidden of the one before it.
        Targets that stutter.py muted weigh nothing, in the drafts too.
        """
        counts = (rows < stutter.MUTED).float()
        rows = rows & (stutter.MUTED - 1)
        self.balance, self.use = [], []
        self.noise.fill_(noise)
        time = rows.shape[1] - 4
        hidden = self.trunk(rows[:, :time])
        weights = counts[:, 1:time + 1]
        if self.filling:
            weights = weights * self.filling.weights(rows[:, :time + 1])[:, 1:]
        main = self.loss(hidden, rows[:, 1:time + 1], weights)
        extra = []
        for step in range(1, drafts + 1):
            hidden = self.draft(hidden, rows[:, step:time + step])
            after = slice(step + 1, time + step + 1)
            extra.append(self.loss(hidden, rows[:, after], counts[:, after]))
        return main, extra, torch.stack(self.balance).mean()


def causal_attention(q, k, v):
    """Flash attention; cuDNN's is 1.6 times faster than PyTorch's own at head size 256 on H200."""
    if not ON_GPU:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped(rows, weight, ends):
    """Rows sorted by expert times each expert's own [out, in] matrix."""
    if ON_GPU:
        return F.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    return torch.cat([r @ w.t() for r, w in zip(rows.split(counts), weight)])
