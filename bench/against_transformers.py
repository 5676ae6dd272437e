#!/usr/bin/env python3
"""Times greedy decoding and prefill of Moray beside Hugging Face transformers, in one run.

Both use the same weights (transformers the dequantised twin, in its faster of BF16 and FP32), the
same number of threads, batch 1 and a KV cache. Runs are interleaved, the median is kept, and one
JSON object a test is written, so that the ratio is of one machine at one time.

    bench/against_transformers.py --moray build/moray --model models/moray-nano --twin TWIN_FOLDER

TWIN_FOLDER is made by train/dequantise.py. Needs torch, transformers and tqdm; neither ./quickstart
nor ./test does.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
import transformers
from tqdm import tqdm


def moray_tokens_per_s(arguments, prompt, generate):
    """Tokens/s of one `moray bench` test: pp<prompt> when generate is 0, else tg<generate>."""
    command = [arguments.moray, "bench", arguments.model, "-o", "jsonl", "-r", "1",
               "-p", str(prompt if generate == 0 else 0), "-n", str(generate),
               "--threads", str(arguments.threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wanted = f"tg{generate}" if generate else f"pp{prompt}"
    for line in output.splitlines():
        row = json.loads(line)
        if row["test"] == wanted:
            return row["tokens_per_s"], row["backend"]
    raise SystemExit(f"error: moray bench: found no test {wanted} in its output")


def load(twin, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(twin, dtype=dtype)
    return model.eval()


@torch.inference_mode()
def peer_tokens_per_s(model, prompt, generate):
    """The same two tests with the model's own cache; the prompt of a decode test is one token."""
    vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary // 2, (1, prompt if generate == 0 else 1))
    if generate == 0:
        start = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        return prompt / (time.perf_counter() - start)
    out = model(ids, use_cache=True)
    cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
    start = time.perf_counter()
    for _ in range(generate):
        out = model(token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
    return generate / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moray", default="build/moray")
    parser.add_argument("--model", default="models/moray-nano")
    parser.add_argument("--twin", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    models = {"FP32": load(arguments.twin, torch.float32), "BF16": load(arguments.twin, torch.bfloat16)}
    tests = [("pp512", 512, 0), ("tg128", 0, 128)]
    steps = tqdm(total=len(tests) * arguments.runs * (len(models) + 1))
    for name, prompt, generate in tests:
        ours, peers, backend = [], {kind: [] for kind in models}, ""
        for _ in range(arguments.runs):
            speed, backend = moray_tokens_per_s(arguments, prompt, generate)
            ours.append(speed)
            steps.update()
            for kind, model in models.items():
                peers[kind].append(peer_tokens_per_s(model, prompt, generate))
                steps.update()
        medians = {kind: statistics.median(values) for kind, values in peers.items()}
        best = max(medians, key=medians.get)
        print(json.dumps({
            "test": name, "threads": arguments.threads, "runs": arguments.runs,
            "backend": backend, "moray_tokens_per_s": round(statistics.median(ours), 1),
            "transformers": transformers.__version__, "torch": torch.__version__,
            "transformers_dtype": best,
            "transformers_tokens_per_s": {k: round(v, 1) for k, v in medians.items()},
            "ratio": round(statistics.median(ours) / medians[best], 2)}))
    steps.close()


if __name__ == "__main__":
    main()
