"""Whole-file figures with the training forward, right after training and on the same GPU.

Invariant: files of every length are measured with their whole text as context, the first token
given only end-of-text; rows of any length keep batch * time fixed, so nothing is compiled again.
The weights measured are the ones exported: FP8 dequantised; BF16 beside them.
Elsewhere: the same figures through the stock class (evaluate.py), generation (evaluate.py).
"""

import json
import os

import torch
import torch.nn.functional as F

import dequantise
import export

SLICE = 16384
BITS = 0.6931471805599453


def rows_of(sequences, tokens_at_once, shortest):
    """Yields (indices, time): files grouped by the shortest doubling of `shortest` they fit in.

    tokens_at_once is `shortest` times a power of two and no less than the longest sequence.
    """
    buckets = {}
    for i, ids in enumerate(sequences):
        time = shortest
        while time < len(ids):
            time *= 2
        buckets.setdefault(time, []).append(i)
    for time, indices in sorted(buckets.items()):
        rows = tokens_at_once // time
        for at in range(0, len(indices), rows):
            yield indices[at:at + rows], time


def nats_of(hidden, weight, targets):
    """Cross-entropy of each row of hidden [M, H], in slices, FP32."""
    parts = [F.cross_entropy((hidden[a:a + SLICE] @ weight.t()).float(), targets[a:a + SLICE],
                             reduction="none") for a in range(0, len(hidden), SLICE)]
    return torch.cat(parts)


def divergence(first, second, weight):
    """Sum of KL(first || second) and of equal top choices over rows of two hiddens."""
    total, same = 0.0, 0
    for a in range(0, len(first), SLICE):
        p = torch.log_softmax((first[a:a + SLICE] @ weight.t()).float(), -1)
        q = torch.log_softmax((second[a:a + SLICE] @ weight.t()).float(), -1)
        total += float((p.exp() * (p - q)).sum())
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
    return total, same


class Pass:
    """One reading of all files with the weights in place."""

    def __init__(self, trainer, sequences, end, tokens_at_once, shortest, keep):
        self.trainer, self.sequences, self.end = trainer, sequences, end
        self.kept, self.keep = [], keep
        self.bits = [0.0] * len(sequences)
        layers = len(trainer.model.model.layers)
        self.use = torch.zeros(layers, trainer.experts, device=trainer.model.device)
        for indices, time in rows_of(sequences, tokens_at_once, shortest):
            self.read(indices, time, tokens_at_once // time)

    def read(self, indices, time, rows):
        device = self.trainer.model.device
        inputs = torch.full((rows, time), self.end)
        targets = torch.zeros((rows, time), dtype=torch.long)
        valid = torch.zeros((rows, time), dtype=torch.bool)
        for row, i in enumerate(indices):
            ids = torch.tensor(self.sequences[i])
            inputs[row, 1:len(ids)] = ids[:-1]
            targets[row, :len(ids)] = ids
            valid[row, :len(ids)] = True
        self.trainer.record, self.trainer.balance, self.trainer.use = [], [], []
        hidden = self.trainer.trunk(inputs.to(device)).detach()
        at = valid.view(-1).nonzero().view(-1).to(device)
        for layer, chosen in enumerate(self.trainer.record):
            self.use[layer] += torch.bincount(chosen[at].view(-1), minlength=self.use.shape[1])
        self.trainer.record = None
        weight = self.trainer.model.lm_head.weight.detach().to(hidden.dtype)
        hidden = hidden[at]
        nats = nats_of(hidden, weight, targets.to(device).view(-1)[at]).double().cpu()
        for i, part in zip(indices, nats.split(valid.sum(1).tolist())):
            self.bits[i] = float(part.sum()) / BITS
        if len(self.kept) < self.keep:
            self.kept.append(hidden)


def expert_figures(use):
    """Per layer and worst: spread of expert use over all assignments."""
    layers = []
    for counts in use:
        share = counts / counts.sum()
        layers.append({"cv": round(float(share.std(correction=0) / share.mean()), 4),
                       "least_over_mean": round(float(share.min() / share.mean()), 4),
                       "most_over_mean": round(float(share.max() / share.mean()), 4),
                       "share_deviation_points": round(100 * float(share.std(correction=0)), 3)})
    return {"layers": layers, "assignments": int(use[0].sum()),
            "worst_cv": max(x["cv"] for x in layers),
            "worst_least_over_mean": min(x["least_over_mean"] for x in layers),
            "worst_share_deviation_points": max(x["share_deviation_points"] for x in layers)}


def text_figures(documents, bits, tokens):
    """Bits per byte over all files and by language and package."""
    sizes = [len(d.text.encode()) for d in documents]
    result = {"all": round(sum(bits) / sum(sizes), 5), "files": len(documents),
              "bytes": sum(sizes), "tokens": tokens}
    for kind in ("language", "package"):
        result[kind] = {}
        for name in sorted({getattr(d, kind) for d in documents}):
            at = [i for i, d in enumerate(documents) if getattr(d, kind) == name]
            size = sum(sizes[i] for i in at)
            result[kind][name] = {"bits_per_byte": round(sum(bits[i] for i in at) / size, 4),
                                  "files": len(at), "bytes": size}
    return result


def load_exported(model, folder):
    """Puts the dequantised weights of an exported folder into the model, in its own dtype."""
    state = dequantise.twin(dequantise.read_folder(folder))
    model.load_state_dict({k: v.to(model.dtype) for k, v in state.items()})


def measure(trainer, folder, documents, fixed_path, tokenizer, out, tokens_at_once, shortest):
    """Writes eval-text.json: bits per byte, experts, the fixed text, and the cost of FP8."""
    end = tokenizer.token_to_id("<|endoftext|>")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    fixed, fixed_name = fixed_path.read_text(), fixed_path.name
    texts = [d.text for d in documents] + [fixed]
    sequences = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    while tokens_at_once < max(map(len, sequences)):
        tokens_at_once *= 2
    trained = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
    trainer.noise.fill_(0.0)

    def save(values):
        (out / "eval-text.json").write_text(json.dumps(values, indent=1) + "\n")
        print({k: v if k != "bits_per_byte" else v["all"] for k, v in values.items()
               if k != "experts"}, flush=True)

    load_exported(trainer.model, folder)
    fp8 = Pass(trainer, sequences, end, tokens_at_once, shortest, 6)
    values = {"bits_per_byte": text_figures(documents, fp8.bits[:-1],
                                            sum(map(len, sequences[:-1]))),
              "experts": expert_figures(fp8.use),
              "fixed_text": {"bits_per_byte": round(fp8.bits[-1] / len(fixed.encode()), 6),
                             "tokens": len(sequences[-1]), "file": fixed_name}}
    save(values)
    (out / "bits.json").write_text(json.dumps(
        {f"{d.package}|{d.path}": round(b, 2) for d, b in zip(documents, fp8.bits)}))

    trainer.model.load_state_dict(trained)
    bf16 = Pass(trainer, sequences, end, tokens_at_once, shortest, 6)
    weight = trainer.model.lm_head.weight.detach().to(bf16.kept[0].dtype)
    sums = [divergence(a, b, weight) for a, b in zip(bf16.kept, fp8.kept)]
    count = sum(len(h) for h in bf16.kept)
    size = sum(len(t.encode()) for t in texts[:-1])
    values["fp8_cost"] = {
        "kl_nats": round(sum(k for k, _ in sums) / count, 6),
        "top1_same_percent": round(100 * sum(s for _, s in sums) / count, 3),
        "bits_per_byte_bf16": round(sum(bf16.bits[:-1]) / size, 5),
        "bits_per_byte_fp8": round(sum(fp8.bits[:-1]) / size, 5), "tokens": count, "bytes": size}
    save(values)
