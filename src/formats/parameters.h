// How many parameters a configuration promises, part by part.
//
// Parts follow tensor names: q_norm and k_norm count as attention, the delta net's own norm as
// delta net, everything else that normalises as norms. Block scales are not parameters.
#pragma once

#include <cstdint>

#include "src/formats/model_config.h"

namespace moray {

struct ParameterCounts {
  int64_t embedding = 0;
  int64_t attention = 0;
  int64_t delta_net = 0;
  int64_t router = 0;
  int64_t routed_experts = 0;
  int64_t shared_expert = 0;
  int64_t norms = 0;
  int64_t head = 0;           // 0 when tied to the embedding
  int64_t mtp = 0;            // not in total()
  int64_t active_routed = 0;  // routed experts a token uses
  int64_t head_product = 0;   // parameters the head multiplies with, tied or not

  int64_t total() const;
  int64_t active() const;
};

ParameterCounts count_parameters(const ModelConfig& config);

}  // namespace moray
