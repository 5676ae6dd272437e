"""Makes the BF16 twin of an FP8 folder, in the layout of official BF16 repositories.

Invariant: each BF16 weight is fp8 * scale computed in FP32 and rounded once, so the twin's weights
differ from what an FP8 engine uses by at most one BF16 rounding; experts are fused to 3-D.
The twin is what transformers loads as the reference for the FP8 folder.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$")


def read_folder(folder):
    """Returns {name: tensor} of all shards."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def dequantise(weight, scale, dtype=torch.bfloat16):
    """Multiplies each 128 x 128 block by its scale in FP32, then rounds to dtype."""
    rows, columns = weight.shape
    full = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (weight.float() * full[:rows, :columns]).to(dtype)


def twin(tensors, dtype=torch.bfloat16):
    """Returns the BF16 state: dequantised, experts fused, under the names transformers uses."""
    state, experts = {}, {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if tensor.dtype == torch.float8_e4m3fn:
            tensor = dequantise(tensor, tensors[name + "_scale_inv"], dtype)
        found = EXPERT.match(name)
        if found:
            experts.setdefault(found.group(1), {})[int(found.group(2)), found.group(3)] = tensor
        else:
            state[name] = tensor
    for base, parts in experts.items():
        count = 1 + max(e for e, _ in parts)
        state[f"{base}.gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in range(count)])
        state[f"{base}.down_proj"] = torch.stack([parts[e, "down"] for e in range(count)])
    return state


def write_twin(folder, out):
    folder, out = Path(folder), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save_file(twin(read_folder(folder)), out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                 "generation_config.json"):
        shutil.copy(folder / name, out / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    write_twin(args.folder, args.out)


if __name__ == "__main__":
    main()
