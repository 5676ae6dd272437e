#!/usr/bin/env python3
"""Compares Moray's logits on a real text with Hugging Face transformers on the same weights.

transformers runs in FP32 on exactly the numbers the folder holds (FP8 codes times scales, which
FP32 represents without rounding), eager experts, torch functions bound. Printed for each range of
positions: mean and largest KL(transformers || Moray) in nats and the share of equal top-1 tokens;
beside it the same for transformers' own BF16 run on the BF16 twin, as a yardstick.

    tools/compare_transformers.py --model models/moray-nano --text FILE [--tokens 8192]
        [--dump build/tests/model/logits_dump] [--precision bfloat16|float32] [--yardstick]
        [--golden tests/data/moray-nano-golden.safetensors]

Needs torch, transformers, tokenizers and a built `logits_dump` (ninja -C build logits_dump).
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from make_fixtures import check_environment, provenance

BLOCK = 128
CHUNK = 1024  # tokens a cached transformers pass; a multiple of its delta chunk of 64
FIRST, LAST = 512, 64
GOLDEN_TOP = 32
LISTED = 8  # differing positions spelled out
EXPERT = re.compile(r"(.*experts)\.(\d+)\.(gate|up|down)_proj\.weight$")


def read_exact(folder):
    """{name: FP32 tensor} of the trunk, FP8 multiplied out, experts fused as the class wants."""
    stored = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored.update(load_file(shard))
    exact, experts = {}, {}
    for name, value in stored.items():
        if name.startswith(("mtp.", "model.visual.")) or name.endswith("_scale_inv"):
            continue
        value_f = value.float()
        if value.dtype == torch.float8_e4m3fn:
            scale = stored[name + "_scale_inv"].float()
            rows = scale.repeat_interleave(BLOCK, 0)[: value.shape[0]]
            value_f *= rows.repeat_interleave(BLOCK, 1)[:, : value.shape[1]]
        name = name.replace("model.language_model.", "model.")
        found = EXPERT.match(name)
        if found:
            experts.setdefault(found[1], {})[int(found[2]), found[3]] = value_f
        else:
            exact[name] = value_f
    for stem, parts in experts.items():
        count = len(parts) // 3
        exact[stem + ".gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in range(count)])
        exact[stem + ".down_proj"] = torch.stack([parts[e, "down"] for e in range(count)])
    return exact


def load_reference(folder):
    """The transformers model of a folder, FP32."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    config.pop("quantization_config", None)
    config = Qwen3_5MoeTextConfig(**{k: v for k, v in config.items() if k != "architectures"})
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model = hf.Qwen3_5MoeForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(read_exact(folder), strict=False)
    if missing or unexpected:
        raise SystemExit(f"{folder}: missing {missing[:3]}, unexpected {unexpected[:3]}")
    return model


@torch.no_grad()
def reference_logits(model, tokens, positions):
    """FP32 log-probabilities [positions, V], the text fed in cached chunks."""
    cache, rows = None, []
    for begin in range(0, len(tokens), CHUNK):
        part = tokens[begin:begin + CHUNK]
        out = model.model(part[None], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        wanted = [p - begin for p in positions if begin <= p < begin + len(part)]
        if wanted:
            rows.append(model.lm_head(out.last_hidden_state[0, wanted]).float())
    return torch.cat(rows).log_softmax(-1)


def moray_logits(options, tokens, positions, vocab):
    """Log-probabilities [positions, V] of the engine; positions are two contiguous ranges."""
    with tempfile.TemporaryDirectory() as temp:
        source, out = pathlib.Path(temp) / "tokens.i32", pathlib.Path(temp) / "logits.f32"
        tokens.numpy().astype(np.int32).tofile(source)
        ranges, start = [], positions[0]
        for a, b in zip(positions, positions[1:] + [None]):
            if b != a + 1:
                ranges += [str(start), str(a + 1)]
                start = b
        subprocess.run([options.dump, options.model, source, out, options.precision,
                        str(options.threads), *ranges], check=True)
        rows = torch.from_numpy(np.fromfile(out, dtype=np.float32).reshape(-1, vocab))
    return rows.log_softmax(-1)


def report(label, golden, found, positions):
    """Prints KL and top-1 over the first and the last positions."""
    kl = (golden.exp() * (golden - found)).sum(-1)
    same = golden.argmax(-1) == found.argmax(-1)
    last = positions[-1] + 1 - LAST
    for name, rows in ((f"0..{FIRST - 1}", [i for i, p in enumerate(positions) if p < FIRST]),
                       (f"last {LAST}", [i for i, p in enumerate(positions) if p >= last])):
        print(f"{label:28} {name:9} KL mean {kl[rows].mean():.2e} max {kl[rows].max():.2e}  "
              f"top-1 {100 * same[rows].float().mean():.2f} %", flush=True)
        for i in [i for i in rows if not same[i]][:LISTED]:
            top = golden[i].topk(2).values.exp()
            print(f"    differs at {positions[i]}: probabilities {top[0]:.4f} {top[1]:.4f}, "
                  f"KL {kl[i]:.1e}")


def weights_hash(folder):
    """SHA-256 over all shards in name order: which weights a golden file belongs to."""
    digest = hashlib.sha256()
    for shard in sorted(folder.glob("*.safetensors")):
        digest.update(shard.read_bytes())
    return digest.hexdigest()


def write_golden(path, tokens, positions, golden, folder, text):
    """Token ids and the most likely tokens with their log-probabilities at some positions."""
    rows = [i for i, p in enumerate(positions) if p % 8 == 7 or p >= len(tokens) - LAST]
    top = golden[rows].topk(GOLDEN_TOP)
    save_file({"tokens": tokens.int(),
               "positions": torch.tensor([positions[i] for i in rows]).int(),
               "top_ids": top.indices.int(), "top_log_probabilities": top.values}, path,
              metadata=provenance(script="tools/compare_transformers.py", dtype="float32",
                                  model=folder.name, weights_sha256=weights_hash(folder),
                                  text=pathlib.Path(text).name))
    pathlib.Path(path).chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--dump", default="build/tests/model/logits_dump")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--yardstick", action="store_true", help="also transformers in BF16")
    parser.add_argument("--golden", help="write a compact golden file here")
    options = parser.parse_args()
    check_environment()
    transformers.logging.set_verbosity_error()
    folder = pathlib.Path(options.model)
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    if len(ids) < options.tokens:
        raise SystemExit(f"{options.text}: {len(ids)} tokens, expected at least {options.tokens}")
    tokens = torch.tensor(ids[:options.tokens])
    positions = sorted({*range(min(FIRST, len(tokens))),
                        *range(len(tokens) - LAST, len(tokens))})
    model = load_reference(folder)
    golden = reference_logits(model, tokens, positions)
    known = positions[:-1]
    chosen = golden[torch.arange(len(known)), [int(tokens[p + 1]) for p in known]]
    print(f"transformers {transformers.__version__} FP32: {len(tokens)} tokens, "
          f"mean log-probability {chosen.mean():.3f}")
    if options.golden:
        write_golden(options.golden, tokens, positions, golden, folder, options.text)
    found = moray_logits(options, tokens, positions, golden.shape[-1])
    report(f"Moray {options.precision}", golden, found, positions)
    if options.yardstick:
        report("transformers bfloat16", golden,
               reference_logits(model.to(torch.bfloat16), tokens, positions), positions)


if __name__ == "__main__":
    main()
