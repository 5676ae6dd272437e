"""Writes a trained model as an official FP8 repository would be laid out.

Invariant: names, shapes, dtypes and layout follow the published Qwen3.5-MoE FP8 folders: 2-D FP8
weights per expert with `weight_scale_inv` multipliers per 128 x 128 block, everything else BF16,
A_log and the delta net's norm FP32. `scale = amax / 448`, rounded to BF16 before it is used.
Elsewhere: the way back to BF16 (dequantise.py).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

BLOCK = 128
FP8_MAX = 448.0
QUANTISED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
             "in_proj_qkv.weight", "in_proj_z.weight", "out_proj.weight", "gate_proj.weight",
             "up_proj.weight", "down_proj.weight")
KEPT_FP32 = ("linear_attn.A_log", "linear_attn.norm.weight")
SHARDS = 3
REPETITION_PENALTY = 1.25  # a model this small repeats itself without one (the card has both figures)


def quantise(weight):
    """Returns (E4M3 weight, BF16 scale per block) of a [rows, columns] matrix; edges are partial.

    A block of zeros gets scale 1.
    """
    rows, columns = weight.shape
    row_blocks, column_blocks = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(row_blocks * BLOCK, column_blocks * BLOCK)
    padded[:rows, :columns] = weight.float()
    blocks = padded.view(row_blocks, BLOCK, column_blocks, BLOCK)
    peak = blocks.abs().amax(dim=(1, 3))
    scale = torch.where(peak > 0, peak / FP8_MAX, torch.ones_like(peak)).to(torch.bfloat16)
    scaled = blocks / scale.float()[:, None, :, None]
    scaled = scaled.clamp(-FP8_MAX, FP8_MAX).reshape(padded.shape)[:rows, :columns]
    return scaled.contiguous().to(torch.float8_e4m3fn), scale


def split_experts(state):
    """Yields (name, tensor) with fused experts cut into one matrix per expert and projection."""
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            base = name.removesuffix("gate_up_proj")
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2)
                yield f"{base}{e}.gate_proj.weight", gate
                yield f"{base}{e}.up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            base = name.removesuffix("down_proj")
            for e, down in enumerate(tensor):
                yield f"{base}{e}.down_proj.weight", down
        else:
            yield name, tensor


def file_tensors(state):
    """Returns {name: tensor} as they go on disk."""
    tensors = {}
    for name, tensor in split_experts(state):
        if name.endswith(QUANTISED):
            quantised, scale = quantise(tensor)
            tensors[name] = quantised
            tensors[name + "_scale_inv"] = scale
        elif name.endswith(KEPT_FP32):
            tensors[name] = tensor.float()
        else:
            tensors[name] = tensor.to(torch.bfloat16)
    return {name: t.contiguous() for name, t in tensors.items()}


def shard_names(tensors, shards=SHARDS):
    """Returns lists of names, in order, whose sizes are about equal."""
    total = sum(t.nbytes for t in tensors.values())
    lists, size = [[]], 0
    for name, t in tensors.items():
        if size + t.nbytes / 2 > total * len(lists) / shards and len(lists) < shards:
            lists.append([])
        lists[-1].append(name)
        size += t.nbytes
    return lists


def unconverted_modules(config):
    """Returns the names of the linear modules that stay BF16, for quantization_config."""
    names = ["lm_head", "model.embed_tokens"]
    for i, kind in enumerate(config.layer_types):
        base = f"model.layers.{i}."
        if kind == "linear_attention":
            names += [base + "linear_attn." + n for n in ("conv1d", "in_proj_a", "in_proj_b")]
        names += [base + "mlp.gate", base + "mlp.shared_expert_gate"]
    return names + ["mtp.fc", "mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"]


def config_json(config):
    """Returns the config.json object, with the fields official files carry."""
    full = config.to_dict()
    kept = ["attention_bias", "attention_dropout", "bos_token_id", "eos_token_id", "head_dim",
            "hidden_act", "hidden_size", "initializer_range", "layer_types",
            "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
            "linear_num_value_heads", "linear_value_head_dim", "max_position_embeddings",
            "moe_intermediate_size", "num_attention_heads", "num_experts",
            "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
            "rope_parameters", "router_aux_loss_coef", "shared_expert_intermediate_size",
            "tie_word_embeddings", "use_cache", "vocab_size"]
    result = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
    result |= {key: full[key] for key in kept}
    return result | {
        "attn_output_gate": True, "dtype": "bfloat16", "full_attention_interval": 4,
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "output_router_logits": False,
        "pad_token_id": config.eos_token_id,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": unconverted_modules(config)},
        "transformers_version": full.get("transformers_version")}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def export(state, config, tokenizer, out):
    """Writes the whole folder: shards with index, configs, and the tokenizer's files copied."""
    out, tokenizer = Path(out), Path(tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    tensors = file_tensors(state)
    names = shard_names(tensors)
    weight_map = {}
    for i, part in enumerate(names, 1):
        file = f"model-{i:05d}-of-{len(names):05d}.safetensors"
        save_file({n: tensors[n] for n in part}, out / file, metadata={"format": "pt"})
        weight_map |= {n: file for n in part}
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(out / "model.safetensors.index.json", index)
    settings = config_json(config)
    write_json(out / "config.json", settings)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (out / file).write_bytes((tokenizer / file).read_bytes())
    added = json.loads((out / "tokenizer.json").read_text())["added_tokens"]
    ids = {t["content"]: t["id"] for t in added}
    write_json(out / "generation_config.json", {
        "bos_token_id": ids["<|endoftext|>"], "do_sample": True,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"], "repetition_penalty": REPETITION_PENALTY,
        "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "transformers_version": settings["transformers_version"]})
