// Rotary position fields of config.json: newer files gather them in rope_parameters, older ones
// have rope_theta and partial_rotary_factor beside rope_scaling.
//
// Interleaved multi-axis sections (mrope_*) are read past: for text all axes carry one position.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/formats/model_config_parts.h"

namespace moray {
namespace {

YarnScaling read_yarn(const JsonFields& scaling, const ModelConfig& config) {
  YarnScaling yarn;
  yarn.factor = scaling.required_number("factor", 1, 1024);
  const auto original = scaling.integer("original_max_position_embeddings", 1, int64_t{1} << 28);
  yarn.original_max_positions = original.value_or(config.max_positions);
  yarn.beta_fast = scaling.number("beta_fast", 1e-3, 1e6).value_or(32);
  yarn.beta_slow = scaling.number("beta_slow", 1e-3, 1e6).value_or(1);
  yarn.attention_factor = scaling.number("attention_factor", 1e-3, 1e3);
  for (std::string_view name : {"mscale", "mscale_all_dim"}) {
    if (scaling.has(name)) {
      scaling.complaints().add_unsupported(fmt::format("{}: found {}, expected nothing",
                                                       scaling.full_name(name),
                                                       describe(*scaling.find(name))));
    }
  }
  return yarn;
}

void read_scaling(const JsonFields& scaling, ModelConfig& config) {
  const std::string_view name = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.string(name).value_or("default");
  if (type == "yarn") {
    config.yarn = read_yarn(scaling, config);
  } else if (type != "default" && type != "mrope") {
    scaling.complaints().add_unsupported(fmt::format("{}: found {}, expected 'default' or 'yarn'",
                                                     scaling.full_name(name), in_quotes(type)));
  }
}

// The first place that has the field, else the last.
const JsonFields& first_with(const std::vector<JsonFields>& places, std::string_view name) {
  for (const JsonFields& fields : places) {
    if (fields.has(name)) return fields;
  }
  return places.back();
}

}  // namespace

void read_rope(const JsonFields& text, ModelConfig& config) {
  // In order of preference, as transformers resolves a file that has several.
  std::vector<JsonFields> places;
  for (std::string_view name : {"rope_scaling", "rope_parameters"}) {
    if (auto fields = text.object(name)) places.push_back(std::move(*fields));
  }
  places.push_back(text);

  config.rope_theta = first_with(places, "rope_theta").required_number("rope_theta", 1, 1e12);
  for (const JsonFields& fields : places) {
    if (!fields.has("rope_type") && !fields.has("type")) continue;
    read_scaling(fields, config);
    break;
  }

  const JsonFields& factor_fields = first_with(places, "partial_rotary_factor");
  const double usual = config.family == Family::kQwen3Moe ? 1.0 : 0.25;
  const double factor = factor_fields.number("partial_rotary_factor", 1e-3, 1).value_or(usual);
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * factor);
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    factor_fields.complain(
        "partial_rotary_factor", fmt::to_string(factor),
        fmt::format("an even number of at least 2 rotary dims of head_dim {}", config.head_dim));
  }
}

}  // namespace moray
