// What a model is called in front of people, derived from where it lies.
#pragma once

#include <string>

namespace moray {

// "models/moray-nano/" -> "moray-nano"; a hub cache's ".../models--org--name/snapshots/1a2b" ->
// "org/name".
std::string model_display_name(const std::string& folder);

}  // namespace moray
