#!/usr/bin/env python3
"""Writes tests/data/tiny-*: small random models of each family and what transformers computes on them.

Each folder is a complete model folder (config.json, safetensors in one of the published layouts)
plus golden.safetensors: a prompt, the FP32 logits of transformers at every position of it, and the
logits of an MTP head written here from transformers' own decoder layer. Everything that the class
initialises to 0 or 1 (norm weights, dt_bias) is drawn at random, so that a missing term shows.

Central rule: the goldens are computed on exactly the numbers that the files hold (BF16, or FP8
times its scale), in float32, eager attention and eager experts, with the torch functions bound. A
seed is refused when a router decision is so close that rounding could turn it.

    python tools/make_fixtures.py            # rewrites tests/data (needs torch, transformers 5.17)
    python tools/make_fixtures.py --only tiny-coder
"""

import argparse
import copy
import json
import os
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_moe import modeling_qwen3_moe as hf_moe
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

PROMPT_TOKENS = 200
MTP_POSITIONS = [0, 1, 62, 63, 64, 65, 128, 150, 197, 198]
DRAFTS = 3
ROUTER_MARGIN = 5e-4  # logits between the last expert taken and the first left out
BLOCK = 128
F8_MAX = 448.0

# model_type -> config class, model class, router class.
FAMILIES = {
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, hf.Qwen3_5MoeForCausalLM, hf.Qwen3_5MoeTopKRouter),
    "qwen3_moe": (Qwen3MoeConfig, hf_moe.Qwen3MoeForCausalLM, hf_moe.Qwen3MoeTopKRouter),
}

# What the fixtures of a family cover between them: nesting and prefix, expert layout, weight format, MTP
# present or promised only, head ratios, shapes that no block size divides.
FIXTURES = {
    "tiny-fused": dict(
        layout="fused", fp8=False, wrapped=True, mtp="present",
        config=dict(
            vocab_size=128, hidden_size=64, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=16,
            num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=24, shared_expert_intermediate_size=40,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
            rope=dict(rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]),
        ),
    ),
    "tiny-experts": dict(
        layout="experts", fp8=False, wrapped=False, mtp="promised",
        config=dict(
            vocab_size=320, hidden_size=48, num_hidden_layers=5,
            num_attention_heads=6, num_key_value_heads=2, head_dim=32,
            linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=32,
            num_experts=5, num_experts_per_tok=3,
            moe_intermediate_size=16, shared_expert_intermediate_size=16,
            layer_types=["linear_attention", "full_attention", "linear_attention",
                         "linear_attention", "full_attention"],
            rope=dict(rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[4, 2, 2]),
        ),
        tokenizer=True,
    ),
    "tiny-fp8": dict(
        layout="experts", fp8=True, wrapped=True, mtp="present",
        config=dict(
            vocab_size=128, hidden_size=144, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=32, linear_value_head_dim=32,
            num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=40, shared_expert_intermediate_size=24,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
            rope=dict(rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]),
        ),
    ),
    "tiny-coder": dict(
        family="qwen3_moe", layout="experts", fp8=False, wrapped=False, mtp="none",
        config=dict(
            vocab_size=48, hidden_size=32, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, head_dim=16,
            num_experts=5, num_experts_per_tok=2, moe_intermediate_size=16,
            rope=dict(rope_theta=1e7),
        ),
    ),
    "tiny-coder-fp8": dict(
        family="qwen3_moe", layout="experts", fp8=True, wrapped=False, mtp="none",
        config=dict(
            vocab_size=32, hidden_size=144, num_hidden_layers=2,
            num_attention_heads=5, num_key_value_heads=1, head_dim=32,
            num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
            rope=dict(rope_theta=1e6),
        ),
    ),
}


def family_of(fixture):
    return fixture.get("family", "qwen3_5_moe")


def check_environment():
    """The oracle is transformers' plain torch path; anything else bound at import is refused."""
    for name in ("fla", "causal_conv1d", "kernels"):
        try:
            __import__(name)
        except ImportError:
            continue
        raise SystemExit(f"package {name} is installed: found, expected an environment without it")
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule",
                 "causal_conv1d_fn", "causal_conv1d_update"):
        bound = getattr(hf, name)
        inner = getattr(bound, "__wrapped__", bound)
        if not inner.__module__.startswith("transformers.models.qwen3_5_moe"):
            raise SystemExit(f"{name}: bound to {inner.__module__}, expected the torch function")


def provenance(**facts):
    """Metadata of a golden file: one entry, since writers shuffle several."""
    facts |= {"transformers": transformers.__version__, "torch": torch.__version__}
    return {"provenance": json.dumps(facts, sort_keys=True)}


def rope_parameters(fixture):
    interleaved = {"mrope_interleaved": True} if family_of(fixture) == "qwen3_5_moe" else {}
    return {"rope_type": "default", **interleaved, **fixture["config"]["rope"]}


def text_config(fixture):
    """The family's config from one FIXTURES entry."""
    fields = {k: v for k, v in fixture["config"].items() if k != "rope"}
    if family_of(fixture) == "qwen3_moe":
        fields["norm_topk_prob"] = True  # the class's default is False, the public files' is True
    config = FAMILIES[family_of(fixture)][0](
        **fields, rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=False,
        rope_parameters=rope_parameters(fixture))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


class MtpHead(torch.nn.Module):
    """The multi-token-prediction head: fc over (embedding, hidden), one attention layer, one norm.

    forward(hidden [T,H], tokens [T]) -> (own hidden [T,H], logits [T,V]) where hidden[t] is the
    trunk's hidden after its final norm at t (or the head's own, for chained drafts) and tokens[t]
    is token t+1. Rows attend to all earlier rows; row t sits at rotary position t.
    """

    def __init__(self, config, trunk):
        super().__init__()
        hidden = config.hidden_size
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = hf.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)
        self.pre_fc_norm_hidden = hf.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)
        self.norm = hf.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)
        full = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([hf.Qwen3_5MoeDecoderLayer(config, full)])
        self.trunk = [trunk]  # a list hides it from state_dict

    def forward(self, hidden, tokens):
        trunk = self.trunk[0]
        rows = hidden.shape[0]
        embedding = self.pre_fc_norm_embedding(trunk.model.embed_tokens(tokens))
        u = self.fc(torch.cat([embedding, self.pre_fc_norm_hidden(hidden)], dim=-1))[None]
        positions = torch.arange(rows).view(1, 1, -1).expand(3, 1, -1)
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        out = self.layers[0](u, position_embeddings=trunk.model.rotary_emb(u, positions),
                             attention_mask=mask)
        own = self.norm(out[0])
        return own, trunk.lm_head(own)


def randomise(module, generator, norm_centre):
    """Draws every parameter so that activations stay near 1 and no term is neutral.

    norm_centre: 0 where a norm's weight is applied as 1 + w, 1 where as w.
    """
    def normal(shape, std):
        return torch.randn(shape, generator=generator) * std

    for name, p in module.named_parameters():
        last = name.split(".")[-1]
        if name.endswith("linear_attn.norm.weight"):
            value = 1 + normal(p.shape, 0.3)
        elif "norm" in name:
            value = norm_centre + normal(p.shape, 0.3)
        elif last == "dt_bias":
            value = normal(p.shape, 1.0)
        elif last == "A_log":
            value = torch.empty(p.shape).uniform_(0.05, 2.0, generator=generator).log()
        elif name.endswith("conv1d.weight"):
            value = normal(p.shape, 0.6)
        elif name.endswith("embed_tokens.weight"):
            value = normal(p.shape, 1.0)
        elif name.endswith(("mlp.gate.weight", "lm_head.weight")):
            value = normal(p.shape, 2.0 * p.shape[-1] ** -0.5)
        else:
            value = normal(p.shape, 1.2 * p.shape[-1] ** -0.5)
        with torch.no_grad():
            p.copy_(value)


def is_quantised(name):
    """Whether official FP8 repositories hold this matrix in FP8 (name without prefix)."""
    kept = ("mlp.gate.weight", "shared_expert_gate.weight", "in_proj_a.weight", "in_proj_b.weight",
            "conv1d.weight", "embed_tokens.weight", "lm_head.weight", "fc.weight")
    return name.endswith(("_proj.weight", "_proj", "in_proj_qkv.weight", "in_proj_z.weight")) \
        and not name.endswith(kept)


def quantise(weight):
    """[N, K] float32 -> (E4M3 [N, K], BF16 scales [ceil(N/128), ceil(K/128)], what they stand for).

    Scale = amax / 448 of each 128 x 128 block, rounded to BF16; W = fp8 * scale. Blocks are given
    very different magnitudes first, so that a scale in the wrong place is seen.
    """
    rows, cols = weight.shape
    scale_rows, scale_cols = -(-rows // BLOCK), -(-cols // BLOCK)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    scales = torch.empty(scale_rows, scale_cols, dtype=torch.bfloat16)
    exact = torch.empty(rows, cols)
    for i in range(scale_rows):
        for j in range(scale_cols):
            at = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            block = weight[at] * (0.5 + 0.75 * ((i + 2 * j) % 3))
            scale = (block.abs().max() / F8_MAX).to(torch.bfloat16)
            code = (block / scale.float()).clamp(-F8_MAX, F8_MAX).to(torch.float8_e4m3fn)
            codes[at], scales[i, j], exact[at] = code, scale, code.float() * scale.float()
    return codes, scales, exact


def unfuse(name, value):
    """Names and matrices as per-expert checkpoints have them: experts.N.{gate,up,down}_proj."""
    if not name.endswith(("mlp.experts.gate_up_proj", "mlp.experts.down_proj")):
        return [(name, value, None)]
    stem = name.rsplit(".", 1)[0]
    parts = []
    for e in range(value.shape[0]):
        if name.endswith("down_proj"):
            parts.append((f"{stem}.{e}.down_proj.weight", value[e], (e, slice(None))))
        else:
            half = value.shape[1] // 2
            parts.append((f"{stem}.{e}.gate_proj.weight", value[e, :half], (e, slice(0, half))))
            parts.append((f"{stem}.{e}.up_proj.weight", value[e, half:], (e, slice(half, None))))
    return parts


def store(module, prefix, fixture, tensors):
    """Rounds the module's parameters to what the file will hold, and adds that to `tensors`."""
    fp32_kept = ("linear_attn.A_log", "linear_attn.norm.weight")
    for name, p in module.named_parameters():
        parts = unfuse(name, p.data) if fixture["layout"] == "experts" else [(name, p.data, None)]
        for part_name, value, place in parts:
            full_name = prefix(part_name)
            if fixture["fp8"] and is_quantised(part_name):
                codes, scales, exact = quantise(value)
                tensors[full_name] = codes
                tensors[full_name + "_scale_inv"] = scales
            elif part_name.endswith(fp32_kept):
                exact = value.clone()
                tensors[full_name] = exact
            else:
                tensors[full_name] = value.to(torch.bfloat16)
                exact = tensors[full_name].float()
            target = p.data if place is None else p.data[place[0]][place[1]]
            target.copy_(exact)


def quantisation_json(prefix, layers, kept, modules):
    return {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head", f"{prefix}.embed_tokens", *kept]
        + [f"{prefix}.layers.{i}.{m}" for i in range(layers) for m in modules],
    }


def flat_config_json(fixture):
    """config.json as the public qwen3_moe files spell it: flat, rotary settings beside the rest."""
    fields = {k: v for k, v in fixture["config"].items() if k != "rope"}
    whole = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16", "hidden_act": "silu", **fields,
        **fixture["config"]["rope"], "rope_scaling": None, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "intermediate_size": 64, "attention_bias": False,
        "use_sliding_window": False, "tie_word_embeddings": False, "eos_token_id": 0,
    }
    if fixture["fp8"]:
        whole["quantization_config"] = quantisation_json(
            "model", fields["num_hidden_layers"], [], ["mlp.gate"])
    return whole


def config_json(fixture):
    """config.json in the published spelling: nested under text_config for the wrapped ones."""
    if family_of(fixture) == "qwen3_moe":
        return flat_config_json(fixture)
    fields = dict(fixture["config"])
    rope = fields.pop("rope")
    text = {
        "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "hidden_act": "silu",
        **fields,
        "rope_parameters": rope_parameters(fixture),
        "partial_rotary_factor": rope["partial_rotary_factor"],
        "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "linear_conv_kernel_dim": 4,
        "attention_bias": False, "attn_output_gate": True, "tie_word_embeddings": False,
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "eos_token_id": 0,
    }
    if not fixture["wrapped"]:
        return {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    whole = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False, "text_config": text,
        "vision_config": {"model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 8},
    }
    if fixture["fp8"]:
        whole["quantization_config"] = quantisation_json(
            "model.language_model", fields["num_hidden_layers"], ["mtp.fc"],
            ["mlp.gate", "mlp.shared_expert_gate"])
    return whole


ADDED_TOKENS = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
                ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False),
                ("<|fim_pad|>", False), ("<|repo_name|>", False), ("<|file_sep|>", False),
                ("<tool_call>", False), ("</tool_call>", False), ("<tool_response>", False),
                ("</tool_response>", False), ("<think>", False), ("</think>", False)]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
           r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = """{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def write_tokenizer(folder, vocab_rows):
    """A byte-level BPE of 256 bytes, a few merges and the family's added tokens: 300 of 320 ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Regex, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=285, show_progress=False, min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(["def add(a, b):\n    return a + b\n\nfor i in range(10):\n"] * 9,
                                  trainer)
    tokenizer.add_tokens([AddedToken(t, special=s, normalized=False) for t, s in ADDED_TOKENS])
    count = tokenizer.get_vocab_size()
    if count >= vocab_rows:
        raise SystemExit(f"tokenizer: {count} tokens, expected fewer than {vocab_rows}")
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps(
        {"eos_token_id": [tokenizer.token_to_id("<|im_end|>"), end]}) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
         "pad_token": "<|endoftext|>", "add_bos_token": False}) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def router_margin(model, mtp, router, run):
    """Smallest distance, in logits, between taken and left-out experts while `run` runs."""
    margins = []

    def hook(module, _, output):
        top = output[0].float().topk(module.top_k + 1, dim=-1).values
        margins.append((top[:, -2] - top[:, -1]).min().item())

    routers = [m for root in (model, mtp) if root is not None for m in root.modules()
               if isinstance(m, router)]
    handles = [m.register_forward_hook(hook) for m in routers]
    result = run()
    for handle in handles:
        handle.remove()
    return min(margins), result


@torch.no_grad()
def compute_golden(model, mtp, tokens):
    """Prompt, logits of every position, the MTP head along the prompt and for chained drafts."""
    out = model.model(tokens[None])
    hidden = out.last_hidden_state[0]
    logits = model.lm_head(hidden)
    golden = {"tokens": tokens.int(), "logits": logits, "hidden_last": hidden[-1:].clone()}
    if mtp is None:
        return golden
    own, mtp_logits = mtp(hidden[:-1], tokens[1:])
    golden["mtp_positions"] = torch.tensor(MTP_POSITIONS, dtype=torch.int32)
    golden["mtp_logits"] = mtp_logits[MTP_POSITIONS].clone()
    # Drafts: the first pairs the trunk's last hidden with the token it predicts; each further one
    # feeds the head's own hidden and its own token back. Tokens are argmaxes.
    inputs, fed = hidden, torch.cat([tokens[1:], logits[-1:].argmax(-1)])
    draft_logits = []
    for _ in range(DRAFTS):
        own, all_logits = mtp(inputs, fed)
        draft_logits.append(all_logits[-1])
        inputs = torch.cat([inputs, own[-1:]])
        fed = torch.cat([fed, all_logits[-1:].argmax(-1)])
    golden["draft_tokens"] = fed[-DRAFTS - 1:].int()  # the trunk's, then the head's
    golden["draft_logits"] = torch.stack(draft_logits)
    return golden


@torch.no_grad()
def bfloat16_kl(model, golden):
    """KL(golden || transformers in BF16) at each position: what 16-bit activations cost anyhow."""
    tokens = golden["tokens"].long()[None]
    rounded = copy.deepcopy(model).to(torch.bfloat16)(tokens).logits[0].float().log_softmax(-1)
    exact = golden["logits"].log_softmax(-1)
    return (exact.exp() * (exact - rounded)).sum(-1)


@torch.no_grad()
def check_golden(model, golden):
    """The golden logits hold for prefixes and for cached decoding too, as far as FP32 goes."""
    tokens = golden["tokens"].long()
    worst = 0.0
    for count in (1, 63, 64, 65, 130):
        part = model(tokens[None, :count]).logits[0]
        worst = max(worst, (part - golden["logits"][:count]).abs().max().item())
    cache = model(tokens[None, :-1], use_cache=True).past_key_values
    step = model(tokens[None, -1:], past_key_values=cache, use_cache=True).logits[0]
    worst = max(worst, (step - golden["logits"][-1:]).abs().max().item())
    scale = golden["logits"].abs().amax(-1).min().item()
    if worst > 2e-5 * scale:
        raise SystemExit(f"transformers disagrees with itself by {worst} (logits to {scale})")
    return worst / scale


def build(name, fixture, first_seed):
    """The first seed whose router decisions are all clear -> (tensors, golden, seed, margin)."""
    config = text_config(fixture)
    _, model_class, router = FAMILIES[family_of(fixture)]
    norm_centre = 1 if family_of(fixture) == "qwen3_moe" else 0
    has_mtp = fixture["mtp"] == "present"
    trunk_prefix = "model.language_model." if fixture["wrapped"] else "model."
    for seed in range(first_seed, first_seed + 200):
        generator = torch.Generator().manual_seed(seed)
        model = model_class(config).float().eval()
        mtp = MtpHead(config, model).float().eval() if has_mtp else None
        tensors = {}
        for module, prefix in ((model, lambda n: n.replace("model.", trunk_prefix, 1)
                                if n.startswith("model.") else n), (mtp, lambda n: "mtp." + n)):
            if module is not None:
                randomise(module, generator, norm_centre)
                store(module, prefix, fixture, tensors)
        tokens = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
        margin, golden = router_margin(model, mtp, router,
                                       lambda: compute_golden(model, mtp, tokens))
        if margin >= ROUTER_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: no seed with a router margin of {ROUTER_MARGIN}")
    golden["bfloat16_kl"] = bfloat16_kl(model, golden)
    if fixture["wrapped"]:
        tensors["model.visual.pos_embed.weight"] = torch.zeros(2, 4, dtype=torch.bfloat16)
    drift = check_golden(model, golden)
    print(f"{name}: seed {seed}, router margin {margin:.1e}, self-consistent to {drift:.1e}, "
          f"KL of BF16 {golden['bfloat16_kl'].mean():.1e}")
    return model, tensors, golden, seed


def check_reload(folder, fixture, golden):
    """Unquantised folders also load through AutoModelForCausalLM and give the same logits."""
    if fixture["fp8"]:
        return
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        logits = model.eval()(golden["tokens"].long()[None]).logits[0]
    worst = (logits - golden["logits"]).abs().max().item()
    if worst > 1e-4:
        raise SystemExit(f"{folder}: transformers reads logits {worst} away from the golden ones")


def write(folder, fixture, tensors, golden, seed):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json(fixture), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0]}) + "\n")
    if fixture.get("tokenizer"):
        write_tokenizer(folder, fixture["config"]["vocab_size"])
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in golden.items()}, folder / "golden.safetensors",
              metadata=provenance(script="tools/make_fixtures.py", dtype="float32", seed=seed,
                                  attention="eager", experts="eager"))
    for path in folder.iterdir():
        os.chmod(path, 0o644)


# Rotary settings of public models, plain and with YaRN: (theta, head_dim, rotary share, scaling).
ROPES = {
    "default_1e7_64": (1e7, 256, 0.25, None),
    "default_5e6_64": (5e6, 256, 0.25, None),
    "default_1e6_128": (1e6, 128, 1.0, None),
    "yarn4_1e7_64": (1e7, 256, 0.25, {"factor": 4.0, "original_max_position_embeddings": 262144}),
    "yarn2_1e4_16": (1e4, 32, 0.5, {"factor": 2.0, "original_max_position_embeddings": 2048,
                                    "beta_fast": 16.0, "beta_slow": 2.0,
                                    "attention_factor": 1.25}),
}


def write_ropes(path):
    """inv_freq and the factor on cos and sin, by name, as transformers computes them."""
    tensors = {}
    for name, (theta, head_dim, share, yarn) in ROPES.items():
        rope = {"rope_type": "yarn" if yarn else "default", "rope_theta": theta,
                "partial_rotary_factor": share, **(yarn or {})}
        config = Qwen3_5MoeTextConfig(head_dim=head_dim, rope_parameters=rope,
                                      max_position_embeddings=1010000 if yarn else 262144)
        rotary = hf.Qwen3_5MoeTextRotaryEmbedding(config)
        tensors[name] = rotary.inv_freq.clone()
        tensors[name + ".scale"] = torch.tensor([float(rotary.attention_scaling)])
    save_file(tensors, path, metadata=provenance(script="tools/make_fixtures.py"))
    os.chmod(path, 0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=FIXTURES, help="write this folder and nothing else")
    options = parser.parse_args()
    check_environment()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, fixture in FIXTURES.items():
        if options.only not in (None, name):
            continue
        _, tensors, golden, seed = build(name, fixture, options.seed)
        write(options.out / name, fixture, tensors, golden, seed)
        check_reload(options.out / name, fixture, golden)
    if options.only is None:
        write_ropes(options.out / "rope.safetensors")


if __name__ == "__main__":
    main()
