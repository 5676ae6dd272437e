// Fuzz entry: config.json, generation_config.json, the shard index and the model card's front
// matter (one input for all four). What is accepted must be consistent; what is refused has one
// line.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/model_card.h"
#include "src/formats/model_config.h"
#include "src/formats/parameters.h"
#include "src/formats/shard_index.h"
#include "tests/fuzz/fuzz_entry.h"
#include "tests/support/config_texts.h"

namespace moray {
namespace {

void check_config(const ModelConfig& config) {
  CHECK(config.hidden > 0 && config.vocab_rows > 0 && config.max_positions > 0);
  CHECK(static_cast<int64_t>(config.layer_kinds.size()) == config.num_layers, config.num_layers);
  CHECK(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0);
  CHECK(config.rotary_dim >= 2 && config.rotary_dim <= config.head_dim, config.rotary_dim);
  CHECK(config.rotary_dim % 2 == 0, config.rotary_dim);
  CHECK(config.top_k >= 1 && config.top_k <= config.num_experts, config.top_k);
  if (config.count_layers(LayerKind::kGatedDelta) > 0) {
    CHECK(config.gdn_key_heads > 0 && config.gdn_value_heads % config.gdn_key_heads == 0);
    CHECK(config.gdn_key_dim > 0 && config.gdn_value_dim > 0 && config.gdn_conv_taps > 0);
  }
  for (int32_t id : config.eos_token_ids) CHECK(id >= 0 && id < config.vocab_rows, id);
  const ParameterCounts counts = count_parameters(config);
  CHECK(counts.total() > 0 && counts.active() > 0, counts.total(), counts.active());
}

void check_message(const Status& status) {
  const std::string& message = status.message();
  CHECK(message.starts_with("fuzz.json: "), message);
  CHECK(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c < 0x7f; }),
        message);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      std::string(kQwen35Config),
      std::string(kQwen3NextConfig),
      std::string(kQwen3MoeConfig),
      std::string(kTinyConfig),
      R"({"eos_token_id": [248046, 248044], "do_sample": true, "temperature": 0.7, "top_k": 20})",
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "x.safetensors"}})",
      "---\nlicense: other\nlicense_name: [\"a\", 'b']\ntags:\n- code\n---\n",
  };
}

}  // namespace moray

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moray;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_model_config(text, "fuzz.json");
  config.ok() ? check_config(*config) : check_message(config.status());
  const auto generation = parse_generation_config(text, "fuzz.json");
  if (!generation.ok()) check_message(generation.status());
  const auto index = parse_shard_index(text, "fuzz.json");
  if (!index.ok()) {
    check_message(index.status());
  } else {
    for (const std::string& shard : index->shards) CHECK(shard.find('/') == shard.npos, shard);
  }
  CHECK(card_licence(text).size() <= size);
  return 0;
}
