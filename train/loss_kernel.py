"""Softmax cross-entropy over a slice of logits, overwriting them with their gradient (Triton).

Invariant: after `softmax_gradient`, row i of the logits holds (softmax - one_hot) * scales[i] and
losses hold logsumexp - logit[target]; each row is read once and written once.
"""

import triton
import triton.language as tl


@triton.jit
def _softmax_gradient(logits, targets, losses, scales, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    here = logits + row * stride + at
    x = tl.load(here, mask=inside, other=float("-inf")).to(tl.float32)
    target = tl.load(targets + row)
    scale = tl.load(scales + row)
    peak = tl.max(x, 0)
    e = tl.exp(x - peak)
    total = tl.sum(e, 0)
    picked = tl.sum(tl.where(at == target, x, 0.0), 0)
    tl.store(losses + row, peak + tl.log(total) - picked)
    gradient = (e / total - tl.where(at == target, 1.0, 0.0)) * scale
    tl.store(here, gradient.to(logits.dtype.element_ty), mask=inside)


def softmax_gradient(logits, targets, losses, scales):
    """logits [M, V] BF16 row-major, targets [M] int64, scales [M] FP32, losses [M] FP32 out."""
    rows, columns = logits.shape
    _softmax_gradient[(rows,)](logits, targets, losses, scales, logits.stride(0), columns,
                               BLOCK=triton.next_power_of_2(columns), num_warps=8)
