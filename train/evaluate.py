"""Measures what an exported folder writes on held-out packages, through transformers or Moray.

Invariant: the model measured is the dequantised twin of the FP8 folder that ships; each figure is
saved as soon as it exists, with how many cases it rests on. Cases are drawn with a fixed seed from
held-out packages only.
Elsewhere: whole-file figures (measure.py), choosing the cases (cases.py), drafts (drafts.py).
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import time
from pathlib import Path

import tokenizers
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

import cases
import dequantise
import drafts
import export
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
def greedy(model, prompts, count, stops, pad, penalty):
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
                              temperature=None, top_p=None, top_k=None,
                              repetition_penalty=penalty)
        for row, i in enumerate(group):
            tokens = made[row, longest:].tolist()
            cut = next((n for n, t in enumerate(tokens) if t in stops), len(tokens))
            results[i] = tokens[:cut]
    return results


class TorchWriter:
    """Writes greedy continuations through the stock class: quick on a GPU, slow on a CPU."""

    def __init__(self, model, tokenizer, ids):
        self.model, self.tokenizer, self.ids = model, tokenizer, ids

    def write(self, prompts, count, penalty=1.0):
        """Returns [(text, number of tokens)] for prompt texts, special tokens spelled out."""
        encoded = [self.tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
        made = greedy(self.model, encoded, count, self.ids["stops"], self.ids["end"], penalty)
        return [(self.tokenizer.decode(t, skip_special_tokens=False), len(t)) for t in made]


class EngineWriter:
    """Writes greedy continuations with Moray itself, which is minutes where transformers on a CPU
    takes an hour; its logits are held to transformers' by the engine's own tests."""

    def __init__(self, binary, folder, tokenizer):
        self.command = [str(binary), "run", str(folder), "--quiet", "--temperature", "0",
                        "--threads", "2", "--control-tokens", "--max-tokens"]
        self.tokenizer = tokenizer

    def write_one(self, prompt, count, penalty):
        command = [*self.command, str(count), "--repetition-penalty", str(penalty)]
        done = subprocess.run(command, input=prompt.encode(), capture_output=True, timeout=300,
                              check=True)
        text = done.stdout.decode("utf-8", "replace")
        tokens = len(self.tokenizer.encode(text, add_special_tokens=False).ids)
        # Encoding again can merge a few tokens; at the limit the text is counted as cut off.
        return text, count if tokens >= count - 6 else tokens

    def write(self, prompts, count, penalty=1.0):
        """Returns [(text, number of tokens)]; the number is that of the text encoded again."""
        with concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // 2)) as pool:
            made = pool.map(lambda prompt: self.write_one(prompt, count, penalty), prompts)
            return list(tqdm(made, total=len(prompts), unit="case"))


def measure_completions(writer, documents, results, count, penalty=1.0):
    """Greedy function bodies, graded by cases.grade; a penalty is a figure of its own name."""
    name = "completions" if penalty == 1.0 else "completions_penalised"
    chosen = cases.function_cases(documents, count)
    made = writer.write([c.prompt for c in chosen], cases.COMPLETION_TOKENS, penalty)
    graded = [cases.grade(case, text, tokens) for case, (text, tokens) in zip(chosen, made)]
    good = [g for g in graded if g["good"]]
    reasons = {}
    for g in graded:
        reasons[g["reason"]] = reasons.get(g["reason"], 0) + 1
    results.save(name, {"repetition_penalty": penalty,
        "good_percent": round(100 * len(good) / max(1, len(graded)), 2), "cases": len(graded),
        "mean_body_lines": round(sum(g["lines"] for g in good) / max(1, len(good)), 2),
        "mean_body_characters": round(sum(g["characters"] for g in good) / max(1, len(good)), 1),
        "reasons": reasons})
    (results.path.parent / f"{name}.json").write_text(json.dumps(graded, indent=1))


def measure_fim(writer, documents, results, count):
    """Single lines taken out of files, filled in from prefix and suffix."""
    chosen = cases.line_cases(documents, count)
    made = writer.write([f"<|fim_prefix|>{c.before}<|fim_suffix|>{c.after}<|fim_middle|>"
                         for c in chosen], 80)
    texts = [text for text, _ in made]
    right = [t.rstrip() == c.middle.rstrip() for t, c in zip(texts, chosen)]
    first = [t.split("\n")[0].rstrip() == c.middle.rstrip() for t, c in zip(texts, chosen)]
    results.save("fim_single_line", {
        "exact_match_percent": round(100 * sum(right) / max(1, len(right)), 2),
        "first_line_match_percent": round(100 * sum(first) / max(1, len(first)), 2),
        "cases": len(right),
        "mean_line_characters": round(sum(len(c.middle) for c in chosen) / len(chosen), 1)})
    (results.path.parent / "fim.json").write_text(json.dumps(
        [{"expected": c.middle, "found": t} for c, t in zip(chosen, texts)], indent=1))


def measure_drafts(model, tokenizer, documents, end, results, count, length=1000):
    """Accepted drafts over the beginnings of the first `count` long enough Python files."""
    texts = [d.text for d in documents if d.language == "python" and len(d.text) > 4 * length]
    encoded = tokenizer.encode_batch(texts[:count], add_special_tokens=False)
    results.save("mtp", drafts.acceptance(model, [e.ids[:length] for e in encoded], end))


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
    parser.add_argument("--only", default="functions,fim,drafts")
    parser.add_argument("--moray", type=Path, help="the engine's binary, to write with it")
    parser.add_argument("--documents", type=int, default=0, help="first so many files; 0 is all")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "cuda":
        import delta_kernel
        delta_kernel.install()
    results = Results(args.out / f"eval-{args.only.replace(',', '-')}.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    ids = special_ids(tokenizer)
    twin = args.out / "twin"
    dequantise.write_twin(args.folder, twin)
    model = load(twin, args.device)
    writer = (EngineWriter(args.moray, args.folder, tokenizer) if args.moray
              else TorchWriter(model, tokenizer, ids))
    documents = cases.shuffled(list(pack.read_stream(args.heldout)))
    documents = documents[:args.documents] if args.documents else documents
    wanted = args.only.split(",")
    if "drafts" in wanted:
        measure_drafts(model, tokenizer, documents, ids["end"], results, args.cases // 5 + 1)
    if "functions" in wanted:
        measure_completions(writer, documents, results, args.cases)
        measure_completions(writer, documents, results, args.cases, export.REPETITION_PENALTY)
    if "fim" in wanted:
        measure_fim(writer, documents, results, args.cases)


if __name__ == "__main__":
    main()
