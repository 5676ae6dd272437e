// generation_config.json: the stop tokens and sampling defaults a model's publisher advises.
#include <utility>

#include "src/formats/json_fields.h"
#include "src/formats/model_config.h"

namespace moray {
namespace {
constexpr size_t kDepthMax = 64;
constexpr int64_t kTokenIdMax = (1 << 24) - 1;  // the largest vocabulary parse_model_config takes
}  // namespace

Result<GenerationDefaults> parse_generation_config(std::string_view json, const std::string& path) {
  ASSIGN_OR_RETURN(const auto document, parse_json_object(json, path, kDepthMax));
  Complaints complaints;
  const JsonFields fields(document->root, "", complaints);
  GenerationDefaults defaults;
  for (int64_t id : fields.integers("eos_token_id", 0, kTokenIdMax)) {
    defaults.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  defaults.do_sample = fields.boolean("do_sample");
  defaults.temperature = fields.number("temperature", 0, 100);
  defaults.top_p = fields.number("top_p", 0, 1);
  defaults.min_p = fields.number("min_p", 0, 1);
  defaults.repetition_penalty = fields.number("repetition_penalty", 0.01, 100);
  defaults.presence_penalty = fields.number("presence_penalty", -100, 100);
  defaults.top_k = fields.integer("top_k", -1, kTokenIdMax);
  RETURN_IF_ERROR(complaints.status(path));
  return defaults;
}

}  // namespace moray
