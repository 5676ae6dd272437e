"""The model that ships: transformers' own Qwen3.5-MoE class plus a multi-token-prediction head.

Invariant: parameters live in the stock modules under the stock names; MtpHead adds what
transformers leaves out, under the names that official repositories use (`mtp.*`). The stock
forward functions stay untouched, so the same object is both what is trained and the oracle.
Elsewhere: the fused forward used for training (fast.py), files on disk (export.py).
"""

import torch
from torch import nn
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as stock


def make_config(vocab_size, end_of_text, toy=False):
    """Returns the text config of moray-nano, or of a toy of the same shape for dry runs."""
    sizes = dict(hidden_size=256, num_hidden_layers=8, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=256, linear_num_key_heads=2,
                 linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
                 num_experts=32, num_experts_per_tok=4, moe_intermediate_size=128,
                 shared_expert_intermediate_size=128)
    sections = [11, 11, 10]
    if toy:
        sizes |= dict(hidden_size=64, num_hidden_layers=4, head_dim=32, linear_key_head_dim=16,
                      linear_value_head_dim=16, num_experts=8, moe_intermediate_size=32,
                      shared_expert_intermediate_size=32)
        sections = [2, 1, 1]
    layers = sizes["num_hidden_layers"]
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    return Qwen3_5MoeTextConfig(
        vocab_size=vocab_size, max_position_embeddings=262144, layer_types=kinds,
        linear_conv_kernel_dim=4, rms_norm_eps=1e-6, hidden_act="silu",
        tie_word_embeddings=False, bos_token_id=end_of_text, eos_token_id=end_of_text,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000_000,
                         "partial_rotary_factor": 0.25, "mrope_section": sections,
                         "mrope_interleaved": True},
        **sizes)


class MtpHead(nn.Module):
    """One extra full-attention layer that predicts the token after next.

    u = fc([norm(embedding of the next token) ; norm(trunk hidden after its final norm)]), then a
    stock decoder layer, then a norm. lm_head and the embedding are the trunk's. More drafts re-run
    the layer on its own output (chaining).
    """

    def __init__(self, config):
        super().__init__()
        hidden = config.hidden_size
        layer = config.layer_types.index("full_attention")
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = stock.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)
        self.pre_fc_norm_hidden = stock.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList([stock.Qwen3_5MoeDecoderLayer(config, layer)])
        self.norm = stock.Qwen3_5MoeRMSNorm(hidden, config.rms_norm_eps)

    def forward(self, embedding, hidden, position_embeddings, mask):
        """Returns the normed hidden [batch, time, H] that lm_head turns into draft logits."""
        u = self.fc(torch.cat([self.pre_fc_norm_embedding(embedding),
                               self.pre_fc_norm_hidden(hidden)], dim=-1))
        return self.norm(self.layers[0](u, position_embeddings=position_embeddings,
                                        attention_mask=mask))


def attach_mtp(model):
    """Gives a loaded or new stock model its `mtp` module, in the model's dtype and device."""
    model.mtp = MtpHead(model.config).to(model.dtype).to(model.device)
    return model


def build(config, seed=1, experts="grouped_mm"):
    """Returns a freshly initialised FP32 model with MTP head; the same for the same seed.

    Changes to the stock initialisation: matrices that write to the residual stream are shrunk by
    sqrt(2 * layers); decay rates start spread over two to a few thousand tokens, as in Mamba-2
    (dt log-uniform in [1e-3, 0.1], A uniform in [1, 16]), instead of all dt_bias equal to one.
    """
    torch.manual_seed(seed)
    config._attn_implementation = "sdpa"
    model = Qwen3_5MoeForCausalLM(config)
    model.config._experts_implementation = experts
    attach_mtp(model)
    shrink = (2 * config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("mtp.") and p.ndim >= 2:
                nn.init.normal_(p, std=config.initializer_range)
            if p.ndim >= 2 and "conv1d" not in name:
                if "embed" not in name and "lm_head" not in name:
                    p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5 * 0.7)
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight",
                                  "down_proj")):
                    p.mul_(shrink)
                if name.endswith("mlp.gate.weight"):
                    p.mul_(0.3)
            if name.endswith("A_log"):
                p.copy_(torch.empty_like(p).uniform_(1, 16).log())
            if name.endswith("dt_bias"):
                dt = torch.exp(torch.empty_like(p).uniform_(-6.9078, -2.3026))
                p.copy_(dt + torch.log(-torch.expm1(-dt)))
    return model
