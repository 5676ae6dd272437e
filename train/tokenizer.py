"""Trains the byte-level BPE tokenizer and writes tokenizer.json and tokenizer_config.json.

Invariant: normalizer (NFC), pre-tokenizer pattern, decoder and the layout of tokenizer.json are
those of Qwen3.5 and later; only the merges are ours. Added tokens follow the merges without a
gap, so ids below `base_vocabulary` are BPE and the rest are added tokens, then padding rows.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import pack

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
           r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BASE_VOCABULARY = 7600
# (text, special): special tokens are skipped when text is decoded for a person.
ADDED = [
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False), ("<|repo_name|>", False), ("<|file_sep|>", False),
    ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False),
]


def sample(streams, bytes_wanted, seed):
    """Yields about bytes_wanted of text drawn document by document from all streams."""
    total = sum(path.stat().st_size for path in streams) * 6.5  # xz ratio on source code
    share = min(1.0, bytes_wanted / total)
    rng = random.Random(seed)
    for path in streams:
        for document in pack.read_stream(path):
            if rng.random() < share:
                yield document.text


def train(texts):
    """Returns a Tokenizer with BASE_VOCABULARY BPE tokens and the ADDED ones after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=BASE_VOCABULARY, show_progress=True,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  max_token_length=32)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenizer_json(tokenizer):
    """Returns the tokenizer.json object: what `tokenizers` writes, with our added tokens."""
    spec = json.loads(tokenizer.to_str())
    spec["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False,
                              "trim_offsets": False, "use_regex": False}
    first = len(spec["model"]["vocab"])
    spec["added_tokens"] = [
        {"id": first + i, "content": text, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": special}
        for i, (text, special) in enumerate(ADDED)]
    return spec


def tokenizer_config(spec, template):
    """Returns the tokenizer_config.json object."""
    decoder = {str(t["id"]): {k: v for k, v in t.items() if k != "id"}
               for t in spec["added_tokens"]}
    return {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
        "chat_template": template, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 262144,
        "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen3_5Tokenizer", "unk_token": None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("streams", type=Path, nargs="+")
    parser.add_argument("--sample-mb", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = train(sample(args.streams, args.sample_mb * 1e6, args.seed))
    template = (Path(__file__).parent / "chat_template.jinja").read_text()
    spec = tokenizer_json(tokenizer)
    args.out.mkdir(parents=True, exist_ok=True)
    compact = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    (args.out / "tokenizer.json").write_text(compact)
    config = json.dumps(tokenizer_config(spec, template), indent=2, ensure_ascii=False)
    (args.out / "tokenizer_config.json").write_text(config + "\n")
    (args.out / "chat_template.jinja").write_text(template)
    print(f"{len(spec['model']['vocab'])} tokens + {len(ADDED)} added, {len(compact)} bytes")


if __name__ == "__main__":
    main()
