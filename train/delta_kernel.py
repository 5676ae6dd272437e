"""Backward of the chunked gated delta rule with respect to q, k, w and the decay, in Triton.

flash-linear-attention 0.6 refuses its own kernel for this step on Hopper with Triton 3.4 to 3.7,
where transposing the result of one tensor-core product to feed the next gives wrong numbers. This
kernel never transposes a product: it computes the score gradient twice, once per orientation.
Invariant: no operand of a dot is a transposed accumulator. Everything else stays with the library.

For chunk positions i >= j with G the running sum of log2-decays inside the chunk and all sums over
one value head (S: state at chunk start, dS: gradient of the state at chunk end):
    ds_ij = scale * (do_i . v_j) 2^(G_i - G_j)
    dq_i  = scale * 2^G_i S do_i + sum_j ds_ij k_j
    dk_j  = 2^(G_last - G_j) dS v_j + sum_i ds_ij q_i
    dw_i  = -S dv_i
    dG_i  = dq_i . q_i - dk_i . k_i,  and the last position also gets the terms through G_last
Source of the method: Yang et al., Gated Delta Networks (2024), section 3.
"""

import functools
import sys

import torch
import triton
import triton.language as tl

CHUNK = 64


@triton.jit
def _delta_backward(q, k, v, g, h, do, dh, dv, dq, dk, dw, dg, scale, T,
                    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
                    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    part = tl.program_id(0)
    chunk = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    batch, head = row // HV, row % HV
    chunks = tl.cdiv(T, BT)

    t = chunk * BT + tl.arange(0, BT)
    kk = part * BK + tl.arange(0, BK)
    inside = t < T
    rows = batch * T + t
    value_rows = (rows * HV + head) * V
    key_rows = (rows * H + head // (HV // H)) * K
    out_rows = (rows * HV + head) * K
    state = ((batch * chunks + chunk) * HV + head) * K * V

    dq_acc = tl.zeros([BT, BK], dtype=tl.float32)
    dk_acc = tl.zeros([BT, BK], dtype=tl.float32)
    dw_acc = tl.zeros([BT, BK], dtype=tl.float32)
    s_ij = tl.zeros([BT, BT], dtype=tl.float32)  # query rows, key columns
    s_ji = tl.zeros([BT, BT], dtype=tl.float32)  # key rows, query columns
    through_last = 0.0
    for start in range(0, V, BV):
        vv = start + tl.arange(0, BV)
        at = value_rows[:, None] + vv[None, :]
        at_t = value_rows[None, :] + vv[:, None]
        v_c = tl.load(v + at, mask=inside[:, None], other=0.0)
        do_c = tl.load(do + at, mask=inside[:, None], other=0.0)
        dv_c = tl.load(dv + at, mask=inside[:, None], other=0.0)
        v_t = tl.load(v + at_t, mask=inside[None, :], other=0.0)
        do_t = tl.load(do + at_t, mask=inside[None, :], other=0.0)
        # h and dh are [K, V]; loaded as [BV, BK]
        h_c = tl.load(h + state + kk[None, :] * V + vv[:, None])
        dh_c = tl.load(dh + state + kk[None, :] * V + vv[:, None])
        through_last += tl.sum(h_c.to(tl.float32) * dh_c.to(tl.float32))
        s_ij = tl.dot(do_c, v_t, s_ij)
        s_ji = tl.dot(v_c, do_t, s_ji)
        dq_acc = tl.dot(do_c, h_c.to(do_c.dtype), dq_acc)
        dk_acc = tl.dot(v_c, dh_c.to(v_c.dtype), dk_acc)
        dw_acc = tl.dot(dv_c.to(v_c.dtype), h_c.to(v_c.dtype), dw_acc)

    q_c = tl.load(q + key_rows[:, None] + kk[None, :], mask=inside[:, None], other=0.0)
    k_c = tl.load(k + key_rows[:, None] + kk[None, :], mask=inside[:, None], other=0.0)
    decay = tl.load(g + rows * HV + head, mask=inside, other=0.0)
    last = tl.minimum(chunk * BT + BT, T) - 1
    decay_last = tl.load(g + (batch * T + last) * HV + head)

    dq_acc = dq_acc * tl.exp2(decay)[:, None] * scale
    dk_acc = dk_acc * tl.where(inside, tl.exp2(decay_last - decay), 0.0)[:, None]
    through_last = through_last * tl.exp2(decay_last) + tl.sum(dk_acc * k_c.to(tl.float32))

    valid = inside[:, None] & inside[None, :]
    lower = (t[:, None] >= t[None, :]) & valid
    upper = (t[:, None] <= t[None, :]) & valid
    s_ij = tl.where(lower, s_ij * tl.exp2(tl.where(lower, decay[:, None] - decay[None, :], 0.0)),
                    0.0) * scale
    s_ji = tl.where(upper, s_ji * tl.exp2(tl.where(upper, decay[None, :] - decay[:, None], 0.0)),
                    0.0) * scale
    dq_acc = tl.dot(s_ij.to(k_c.dtype), k_c, dq_acc)
    dk_acc = tl.dot(s_ji.to(q_c.dtype), q_c, dk_acc)
    dg_c = tl.sum(dq_acc * q_c.to(tl.float32), 1) - tl.sum(dk_acc * k_c.to(tl.float32), 1)
    dg_c = tl.where(t == last, dg_c + through_last, dg_c)

    out = out_rows[:, None] + kk[None, :]
    tl.store(dq + out, dq_acc.to(dq.dtype.element_ty), mask=inside[:, None])
    tl.store(dk + out, dk_acc.to(dk.dtype.element_ty), mask=inside[:, None])
    tl.store(dw + out, (-dw_acc).to(dw.dtype.element_ty), mask=inside[:, None])
    dg_at = dg + (part * tl.num_programs(2) // HV * T + rows) * HV + head
    tl.store(dg_at, dg_c, mask=inside)


def delta_backward(q, k, v, do, h, dh, w=None, g=None, g_gamma=None, dv=None, scale=None,
                   state_v_first=False, cu_seqlens=None, chunk_size=CHUNK, chunk_indices=None,
                   warps=4):
    """Drop-in for the library's `chunk_bwd_dqkwg`: q, k [B,T,H,K]; v, do, dv [B,T,HV,V] bf16.

    h, dh are states [B, chunks, HV, K, V]; g [B,T,HV] FP32 log2 decay summed inside chunks.
    Returns dq, dk [B,T,H,K], dw [B,T,HV,K] and dg [B,T,HV] FP32.
    """
    assert cu_seqlens is None and not state_v_first and g_gamma is None and g is not None
    batch, length, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    parts = triton.cdiv(key_dim, 64)
    dq = q.new_empty(batch, length, value_heads, key_dim)
    dk = torch.empty_like(dq)
    dw = torch.empty_like(w)
    dg = torch.empty(parts, *g.shape, dtype=torch.float32, device=g.device)
    grid = (parts, triton.cdiv(length, chunk_size), batch * value_heads)
    _delta_backward[grid](q, k, v, g, h, do, dh, dv, dq, dk, dw, dg, scale, length,
                          H=heads, HV=value_heads, K=key_dim, V=value_dim, BT=chunk_size,
                          BK=64, BV=64, num_warps=warps, num_stages=2)
    if heads != value_heads:
        shape = (batch, length, heads, value_heads // heads, key_dim)
        dq, dk = dq.view(shape).sum(3), dk.view(shape).sum(3)
    return dq, dk, dw, dg.sum(0)


# Kernel settings to try in turn: warps of the library's prepare_wy_repr_bwd, warps of ours.
VARIANTS = [{"wy": 2, "ours": 4}, {"wy": 4, "ours": 4}, {"wy": 2, "ours": 2},
            {"wy": 2, "ours": 8}]
# Settings kept of each autotuned library kernel. Tuning them all compiles some 140 kernels and
# takes longer than it gains in a short run; these were picked for 128-wide heads on H200.
KEPT = {
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": [dict(BV=32, w=4, s=3),
                                                       dict(BV=64, w=4, s=3)],
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64": [dict(BV=32, w=4, s=3),
                                                         dict(BV=64, w=4, s=2)],
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": [dict(BK=64, w=2), dict(BK=64, w=4)],
    "causal_conv1d_fwd_kernel": [dict(BD=64, w=4)],
    "causal_conv1d_bwd_kernel": [dict(BD=64, w=4), dict(BD=32, w=4)],
    "l2norm_fwd_kernel": [dict(BT=32, w=4)],
    "l2norm_bwd_kernel": [dict(BT=32, w=4)],
    "chunk_fwd_kernel_o": [dict(BK=64, w=4), dict(BK=128, w=8)],
}
DEFAULT = [dict(w=4, s=3), dict(w=4)]


def matches(config, wanted):
    """True if a Triton config has the wanted block sizes, warps (w) and stages (s)."""
    facts = dict(config.kwargs, w=config.num_warps, s=config.num_stages)
    return all(facts.get(k) == v for k, v in wanted.items())


def limit_tuning(wy_warps):
    """Cuts the list of settings of every autotuned kernel loaded from the library."""
    from triton.runtime.autotuner import Autotuner
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("fla."):
            continue
        for name, thing in list(vars(module).items()):
            while hasattr(thing, "fn"):
                if isinstance(thing, Autotuner):
                    if not hasattr(thing, "all_configs"):
                        thing.all_configs = list(thing.configs)
                    wanted = KEPT.get(name, DEFAULT)
                    if name == "prepare_wy_repr_bwd_kernel":
                        wanted = [dict(w=wy_warps, s=3)]
                    kept = [c for c in thing.all_configs if any(matches(c, w) for w in wanted)]
                    thing.configs = kept[:3] or thing.all_configs[:1]
                    thing.cache.clear()
                thing = thing.fn


def install(variant=VARIANTS[0]):
    """Makes the library's gated delta rule use this kernel, with few settings to tune."""
    import fla.ops.gated_delta_rule  # noqa: F401  (fills sys.modules)
    sys.modules["fla.ops.gated_delta_rule.chunk"].chunk_bwd_dqkwg = functools.partial(
        delta_backward, warps=variant["ours"])
    limit_tuning(variant["wy"])
