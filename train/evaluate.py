"""Measures what an exported folder generates on held-out packages, through the stock class.

Invariant: the model measured is the dequantised twin of the FP8 folder that ships; each figure is
saved as soon as it exists, with how many cases it rests on. Cases are drawn with a fixed seed from
held-out packages only.
Elsewhere: whole-file figures (measure.py), choosing the cases (cases.py), drafts (drafts.py).
"""

import argparse
import json
import time
from pathlib import Path

import tokenizers
import torch
from transformers import AutoModelForCausalLM

import cases
import dequantise
import drafts
import model as models
import pack

TOKENS_AT_ONCE = 1 << 16


class Results:
    """eval-*.json, written again after every figure."""

    def __init__(self, path):
        self.path = path
        self.values = json.loads(path.read_text()) if path.exists() else {}
        self.clock = time.time()

    def save(self, name, value):
        self.values[name] = value
        self.path.write_text(json.dumps(self.values, indent=1) + "\n")
        shown = json.dumps(value)
        print(f"{name}: {shown[:300]}  ({time.time() - self.clock:.0f} s)", flush=True)
        self.clock = time.time()


def load(folder, device):
    """Loads a BF16 folder through transformers, with its MTP head.

    On a CPU the same weights are computed with in FP32, which is faster there.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    model.config._experts_implementation = "grouped_mm"
    models.attach_mtp(model)
    state = dequantise.read_folder(folder)
    mtp = {k.removeprefix("mtp."): v for k, v in state.items() if k.startswith("mtp.")}
    model.mtp.load_state_dict(mtp)
    return model


def batches(sequences, limit):
    """Groups indices of sequences by length so that a padded batch stays within limit tokens."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    group = []
    for i in order:
        if group and (len(group) + 1) * len(sequences[i]) > limit:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


@torch.no_grad()
def token_losses(model, sequences, end):
    """Yields (index, nats [n]) for token lists, the first token given only end-of-text.

    Padding is on the right, where a causal model cannot see it.
    """
    for group in batches(sequences, TOKENS_AT_ONCE):
        longest = max(len(sequences[i]) for i in group)
        inputs = torch.full((len(group), longest), end)
        for row, i in enumerate(group):
            inputs[row, 1:len(sequences[i])] = torch.tensor(sequences[i][:-1])
        hidden = model.model(input_ids=inputs.to(model.device), use_cache=False).last_hidden_state
        for row, i in enumerate(group):
            targets = torch.tensor(sequences[i], device=model.device)
            parts = []
            for at in range(0, len(targets), 8192):
                part = hidden[row, at:at + 8192][:len(targets) - at]
                logits = model.lm_head(part).float()
                parts.append(torch.nn.functional.cross_entropy(
                    logits, targets[at:at + 8192], reduction="none"))
            yield i, torch.cat(parts)


def bits_per_byte(model, tokenizer, texts, end):
    """Returns (bits per byte over all texts, [bits of each text], tokens)."""
    sequences = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    bits = [0.0] * len(texts)
    for i, nats in token_losses(model, sequences, end):
        bits[i] = float(nats.double().sum()) / 0.6931471805599453
    total = sum(len(t.encode()) for t in texts)
    return sum(bits) / total, bits, sum(map(len, sequences))


@torch.no_grad()
def greedy(model, prompts, count, stops, pad):
    """Greedy continuations of token lists, prompts padded on the left. Returns token lists.

    A sequence ends before the first token of `stops`.
    """
    results = [None] * len(prompts)
    limit = TOKENS_AT_ONCE * 4 if model.device.type == "cuda" else TOKENS_AT_ONCE // 2
    for group in batches(prompts, limit):
        longest = max(len(prompts[i]) for i in group)
        ids = torch.full((len(group), longest), pad)
        mask = torch.zeros(len(group), longest, dtype=torch.long)
        for row, i in enumerate(group):
            ids[row, longest - len(prompts[i]):] = torch.tensor(prompts[i])
            mask[row, longest - len(prompts[i]):] = 1
        made = model.generate(input_ids=ids.to(model.device),
                              attention_mask=mask.to(model.device), do_sample=False,
                              max_new_tokens=count, eos_token_id=stops, pad_token_id=pad,
                              temperature=None, top_p=None, top_k=None)
        for row, i in enumerate(group):
            tokens = made[row, longest:].tolist()
            cut = next((n for n, t in enumerate(tokens) if t in stops), len(tokens))
            results[i] = tokens[:cut]
    return results


def measure_completions(model, tokenizer, documents, ids, results, count):
    """Greedy function bodies. Returns (prompt ids, continuation ids) for the draft figures."""
    chosen = cases.function_cases(documents, count)
    prompts = [tokenizer.encode(c.prompt, add_special_tokens=False).ids for c in chosen]
    made = greedy(model, prompts, cases.COMPLETION_TOKENS, ids["stops"], ids["end"])
    graded = []
    for case, prompt, tokens in zip(chosen, prompts, made):
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        graded.append(cases.grade(case, text, len(tokens)))
    good = [g for g in graded if g["good"]]
    reasons = {}
    for g in graded:
        reasons[g["reason"]] = reasons.get(g["reason"], 0) + 1
    results.save("completions", {
        "good_percent": round(100 * len(good) / max(1, len(graded)), 2), "cases": len(graded),
        "mean_body_lines": round(sum(g["lines"] for g in good) / max(1, len(good)), 2),
        "mean_body_characters": round(sum(g["characters"] for g in good) / max(1, len(good)), 1),
        "reasons": reasons})
    (results.path.parent / "completions.json").write_text(json.dumps(graded, indent=1))
    return prompts, made


def measure_fim(model, tokenizer, documents, ids, results, count):
    chosen = cases.line_cases(documents, count)
    prompts = []
    for c in chosen:
        before, after = (e.ids for e in tokenizer.encode_batch(
            [c.before, c.after], add_special_tokens=False))
        prompts.append([ids["prefix"], *before, ids["suffix"], *after, ids["middle"]])
    made = greedy(model, prompts, 80, ids["stops"], ids["end"])
    texts = [tokenizer.decode(t, skip_special_tokens=False) for t in made]
    right = [t.rstrip() == c.middle.rstrip() for t, c in zip(texts, chosen)]
    results.save("fim_single_line", {
        "exact_match_percent": round(100 * sum(right) / max(1, len(right)), 2),
        "cases": len(right),
        "mean_line_characters": round(sum(len(c.middle) for c in chosen) / len(chosen), 1)})
    (results.path.parent / "fim.json").write_text(json.dumps(
        [{"expected": c.middle, "found": t} for c, t in zip(chosen, texts)], indent=1))


def special_ids(tokenizer):
    names = {"end": "<|endoftext|>", "prefix": "<|fim_prefix|>", "suffix": "<|fim_suffix|>",
             "middle": "<|fim_middle|>", "turn": "<|im_end|>"}
    ids = {k: tokenizer.token_to_id(v) for k, v in names.items()}
    return ids | {"stops": [ids["end"], ids["turn"]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="exported FP8 folder")
    parser.add_argument("heldout", type=Path)
    parser.add_argument("out", type=Path, help="folder for eval.json")
    parser.add_argument("--text", type=Path, help="fixed text whose figure the engine must match")
    parser.add_argument("--only", default="functions,fim")
    parser.add_argument("--documents", type=int, default=0, help="first so many files; 0 is all")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "cuda":
        import delta_kernel
        delta_kernel.install()
    results = Results(args.out / f"eval-{args.only.replace(',', '-')}.json")
    twin = args.out / "twin"
    dequantise.write_twin(args.folder, twin)
    tokenizer = tokenizers.Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    ids = special_ids(tokenizer)
    model = load(twin, args.device)
    documents = cases.shuffled(list(pack.read_stream(args.heldout)))
    documents = documents[:args.documents] if args.documents else documents
    wanted = args.only.split(",")
    if args.text:
        value, _, count = bits_per_byte(model, tokenizer, [args.text.read_text()], ids["end"])
        results.save("fixed_text_stock_class", {"bits_per_byte": round(value, 6), "tokens": count,
                                    "file": args.text.name})
    if "functions" in wanted:
        prompts, made = measure_completions(model, tokenizer, documents, ids, results, args.cases)
        results.save("mtp", drafts.acceptance(model, prompts, made))
    if "fim" in wanted:
        measure_fim(model, tokenizer, documents, ids, results, 2 * args.cases)


if __name__ == "__main__":
    main()
