"""How many tokens the MTP head drafts right, as an engine that verifies greedily would see it.

Invariant: a draft is right exactly when verification would accept it, that is when it equals the
trunk's greedy choice; draft 2 and 3 see the keys of earlier positions made from the trunk's hidden,
and their own chain's keys, as a cache that is repaired after each verification holds them.
"""

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as stock


def project(attention, x, rotary):
    """Returns q, k [heads, T, d] normed and rotated, v [kv heads, T, d] and the output gate."""
    d, time = attention.head_dim, x.shape[1]
    q, gate = attention.q_proj(x).view(1, time, -1, 2 * d).chunk(2, dim=-1)
    k = attention.k_proj(x).view(1, time, -1, d)
    v = attention.v_proj(x).view(1, time, -1, d)
    q, k = attention.q_norm(q).transpose(1, 2), attention.k_norm(k).transpose(1, 2)
    q, k = stock.apply_rotary_pos_emb(q, k, *rotary)
    repeat = attention.num_key_value_groups
    k, v = (t.repeat_interleave(repeat, 1) for t in (k, v.transpose(1, 2)))
    return q[0], k[0], v[0], gate.reshape(1, time, -1)


def attend(q, first, chain, scale):
    """Attention of each position over causal keys of pass one and its own chain's later keys."""
    k1, v1 = first
    scores = (q @ k1.transpose(1, 2)).float() * scale
    time = q.shape[1]
    future = torch.ones(time, time, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    own = [(q * k).sum(-1, keepdim=True).float() * scale for k, _ in chain]
    weights = torch.softmax(torch.cat([scores, *own], -1), -1).to(q.dtype)
    out = weights[..., :time] @ v1
    for i, (_, v) in enumerate(chain):
        out = out + weights[..., time + i:time + i + 1] * v
    return out


def chain(model, tokens, hidden, count=3):
    """Returns draft token ids [count, T]: entry s, t predicts tokens[t + s + 2], all right so far.

    tokens [T] are the text; hidden [1, T, H] the trunk's hidden after its norm.
    """
    mtp, layer = model.mtp, model.mtp.layers[0]
    attention = layer.self_attn
    found, later, first = [], [], None
    for step in range(count):
        shifted = torch.roll(tokens, -1 - step)[None]
        u = mtp.fc(torch.cat([mtp.pre_fc_norm_embedding(model.model.embed_tokens(shifted)),
                              mtp.pre_fc_norm_hidden(hidden)], -1))
        positions = (torch.arange(len(tokens), device=tokens.device) + step).view(1, 1, -1)
        rotary = model.model.rotary_emb(u, positions.expand(3, 1, -1))
        q, k, v, gate = project(attention, layer.input_layernorm(u), rotary)
        if step == 0:
            first = (k, v)
        else:
            later.append((k, v))
        o = attend(q, first, later, attention.scaling).transpose(0, 1).reshape(gate.shape)
        h = u + attention.o_proj(o * torch.sigmoid(gate))
        h = h + layer.mlp(layer.post_attention_layernorm(h))
        hidden = mtp.norm(h)
        found.append(model.lm_head(hidden)[0].argmax(-1))
    return torch.stack(found)


@torch.no_grad()
def acceptance(model, sequences, end, skip=100):
    """Shares of right drafts at all positions of token lists of written text, end-of-text first.

    A draft is right when it equals the trunk's own greedy choice there. The chain at a position is
    followed only as far as that choice is also what the text says, since the trunk's state is
    known only for the text: `draft n` is right given that drafts before it were accepted.
    """
    right, seen = [0, 0, 0], [0, 0, 0]
    for ids in sequences:
        tokens = torch.tensor([end, *ids], device=model.device)
        hidden = model.model(input_ids=tokens[None], use_cache=False).last_hidden_state
        greedy = model.lm_head(hidden)[0].argmax(-1).tolist()
        found, tokens = chain(model, tokens, hidden).tolist(), tokens.tolist()
        for t in range(skip, len(tokens) - 4):
            for s in range(3):
                choice = greedy[t + 1 + s]
                seen[s] += 1
                if found[s][t] != choice:
                    break
                right[s] += 1
                if choice != tokens[t + 2 + s]:
                    break
    shares = [r / max(1, n) for r, n in zip(right, seen)]
    result = {f"draft{s + 1}_percent": round(100 * share, 2) for s, share in enumerate(shares)}
    expected = shares[0] * (1 + shares[1] * (1 + shares[2]))
    return result | {"mean_accepted": round(expected, 3), "positions": seen[0]}
