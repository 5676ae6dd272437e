"""Checks an exported folder against what the design promises of it.

Invariant: every check names the tensor or field it looked at; the twin must load through
transformers without missing or unexpected tensors other than `mtp.*`.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import dequantise
import export


def check_tensors(folder):
    """Dtypes, scales, index and shard sizes."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    seen = {}
    for path in sorted(folder.glob("*.safetensors")):
        assert path.stat().st_size <= 15 << 20, f"{path.name}: over 15 MiB"
        with safe_open(path, "pt") as shard:
            for name in shard.keys():
                assert index[name] == path.name, f"{name}: index says {index[name]}"
                seen[name] = shard.get_tensor(name)
    assert seen.keys() == index.keys(), "index and shards name different tensors"
    for name, tensor in seen.items():
        if name.endswith(export.QUANTISED):
            blocks = tuple(-(-n // 128) for n in tensor.shape)
            scale = seen[name + "_scale_inv"]
            assert tensor.dtype == torch.float8_e4m3fn and tensor.ndim == 2, name
            assert tuple(scale.shape) == blocks and scale.dtype == torch.bfloat16, name
        elif name.endswith(export.KEPT_FP32):
            assert tensor.dtype == torch.float32, name
        else:
            assert tensor.dtype == torch.bfloat16, name
        assert torch.isfinite(tensor.float()).all(), f"{name}: not finite"
    return seen


def check_load(folder):
    """The twin through AutoModelForCausalLM, the tokenizer through AutoTokenizer."""
    with tempfile.TemporaryDirectory() as twin:
        dequantise.write_twin(folder, twin)
        model, info = AutoModelForCausalLM.from_pretrained(
            twin, dtype=torch.float32, output_loading_info=True)
        assert not info["missing_keys"], info["missing_keys"]
        unexpected = [k for k in info["unexpected_keys"] if not k.startswith("mtp.")]
        assert not unexpected, unexpected
        tokenizer = AutoTokenizer.from_pretrained(twin)
        text = "def f(x):\n    return x + 1  # caf\u00e9 \u0915\u093f\n"
        ids = tokenizer(text)["input_ids"]
        raw = json.loads((folder / "tokenizer.json").read_text())
        assert tokenizer.decode(ids) == text, "tokenizer does not round-trip"
        logits = model(torch.tensor([ids])).logits
        assert torch.isfinite(logits).all() and logits.shape[-1] == model.config.vocab_size
        assert len(raw["model"]["vocab"]) + len(raw["added_tokens"]) <= model.config.vocab_size
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}],
                                               add_generation_prompt=True, tokenize=False,
                                               enable_thinking=False)
        assert re.search(r"assistant\n<think>\n\n</think>\n\n$", prompt), prompt


def main():
    folder = Path(sys.argv[1])
    tensors = check_tensors(folder)
    check_load(folder)
    total = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{folder}: {len(tensors)} tensors, {total / 2**20:.2f} MiB, loads through transformers")


if __name__ == "__main__":
    main()
