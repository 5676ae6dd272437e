// config.json texts of the three families as their publishers write them, for tests.
//
// Values are those of the public models named; fields that no reader uses are left out or
// shortened.
#pragma once

#include <string>
#include <string_view>

namespace moray {

// Qwen3.5-35B-A3B, nested, BF16.
inline constexpr std::string_view kQwen35Config = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"],
  "image_token_id": 248056, "model_type": "qwen3_5_moe", "tie_word_embeddings": false,
  "text_config": {
    "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true,
    "bos_token_id": 248044, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "layer_types": [
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention",
      "linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "num_attention_heads": 16, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "vocab_size": 248320
  },
  "vision_config": {"depth": 27, "hidden_size": 1152}
})";

// Qwen3-Coder-Next, flat, no layer list.
inline constexpr std::string_view kQwen3NextConfig = R"({
  "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
  "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
  "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
  "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
  "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
  "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 5000000, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936
})";

// Qwen3-Coder-30B-A3B, flat, classic attention.
inline constexpr std::string_view kQwen3MoeConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 5472, "max_position_embeddings": 262144, "max_window_layers": 28,
  "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "qkv_bias": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
  "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936
})";

// A tiny flat qwen3_5_moe_text, two layers (delta, full), block FP8.
inline constexpr std::string_view kTinyConfig = R"({
  "architectures": ["Qwen3_5MoeForCausalLM"], "dtype": "bfloat16", "eos_token_id": 3,
  "full_attention_interval": 2, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
  "linear_num_value_heads": 4, "linear_value_head_dim": 16, "max_position_embeddings": 512,
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 32, "num_attention_heads": 4,
  "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "model.layers.0.linear_attn.in_proj_a"],
    "quant_method": "fp8", "weight_block_size": [128, 128]},
  "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000.0,
    "rope_type": "default"},
  "shared_expert_intermediate_size": 32, "tie_word_embeddings": false, "vocab_size": 256
})";

// `text` with the first `from` replaced; the test is wrong if it is not there.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out(text);
  const size_t at = out.find(from);
  if (at == std::string::npos) return "replaced(): not found: " + std::string(from);
  return out.replace(at, from.size(), to);
}

}  // namespace moray
