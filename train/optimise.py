"""Muon for matrices, AdamW for the rest, and the learning-rate curve.

Invariant: every trainable parameter is in exactly one of the two groups. Matrices of one shape,
all experts of all layers among them, are orthogonalised as one batch.
Source of the method: Jordan et al., Muon (2024); decay and warm-up by share of the time budget.
"""

import torch

ADAM_RATES = {"embed_tokens": 3.0, "lm_head": 1.0, "other": 1.0}  # times the Adam base rate
NOT_MUON = ("embed_tokens", "lm_head", "mlp.gate.", "shared_expert_gate", "in_proj_a",
            "in_proj_b", "conv1d")


def orthogonalise(x, steps=5):
    """Nearest semi-orthogonal matrices of x [n, rows, columns], roughly, by Newton-Schulz.

    The quintic's coefficients maximise the slope at zero; singular values land in [0.7, 1.2].
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    x = x.bfloat16() if x.is_cuda else x.float()
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.transpose(1, 2) if tall else x


def as_matrices(name, p):
    """Views a parameter (or its gradient) as [n, rows, columns]; gate and up are two matrices."""
    if name.endswith("experts.gate_up_proj"):
        return p.view(2 * p.shape[0], p.shape[1] // 2, p.shape[2])
    return p.view(-1, p.shape[-2], p.shape[-1])


class Muon:
    """Momentum, orthogonalised: p -= rate * sqrt(max(1, rows / columns)) * O(momentum)."""

    def __init__(self, named, momentum=0.95, weight_decay=0.01):
        self.groups = {}
        for name, p in named:
            shape = tuple(as_matrices(name, p).shape[1:])
            key = (min(shape), max(shape))
            self.groups.setdefault(key, []).append((name, p, torch.zeros_like(p)))
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, rate, momentum):
        for key, group in self.groups.items():
            grads = [p.grad for _, p, _ in group]
            moments = [m for _, _, m in group]
            torch._foreach_lerp_(moments, grads, 1 - momentum)
            ahead = torch._foreach_lerp(grads, moments, momentum)
            wide = []
            for (name, _, _), g in zip(group, ahead):
                g = as_matrices(name, g)
                wide.append(g.transpose(1, 2) if g.shape[1] > g.shape[2] else g)
            update = orthogonalise(torch.cat(wide))
            torch._foreach_mul_([p for _, p, _ in group], 1 - rate * self.weight_decay)
            for (name, p, _), part in zip(group, update.split([len(w) for w in wide])):
                view = as_matrices(name, p)
                rows, columns = view.shape[1:]
                part = part.transpose(1, 2) if rows > columns else part
                view.add_(part.to(p.dtype), alpha=-rate * max(1.0, rows / columns) ** 0.5)


class Optimiser:
    """Both optimisers over one model; `step(share)` takes the share of the budget used."""

    def __init__(self, model, muon_rate=0.02, adam_rate=2e-3, warm_steps=100, decay_from=0.45):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [(n, p) for n, p in named
                    if p.ndim >= 2 and not any(part in n for part in NOT_MUON)]
        chosen = {n for n, _ in matrices}
        self.muon = Muon(matrices)
        groups = {}
        for n, p in named:
            if n not in chosen:
                kind = next((k for k in ADAM_RATES if k in n), "other")
                groups.setdefault(kind, []).append(p)
        self.adam = torch.optim.AdamW(
            [{"params": ps, "rate": ADAM_RATES[kind]} for kind, ps in groups.items()],
            lr=adam_rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0,
            fused=torch.cuda.is_available())
        self.parameters = [p for _, p in named]
        self.muon_rate, self.adam_rate = muon_rate, adam_rate
        self.warm_steps, self.decay_from = warm_steps, decay_from
        self.steps = 0

    def scale(self, share):
        """Warm-up over the first steps, flat, then linear to 2 % at the end of the budget."""
        warm = min(1.0, (self.steps + 1) / self.warm_steps)
        left = (1 - min(share, 1.0)) / (1 - self.decay_from)
        return warm * max(0.02, min(1.0, left))

    def step(self, share):
        """Applies gradients and clears them. Returns the learning-rate scale used."""
        scale = self.scale(share)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * group["rate"] * scale
        self.adam.step()
        self.muon.step(self.muon_rate * scale, min(0.95, 0.85 + 0.1 * self.steps / 300))
        for p in self.parameters:
            p.grad = None
        self.steps += 1
        return scale
