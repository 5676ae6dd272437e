// What the model card's front matter says about the licence.
#pragma once

#include <string>
#include <string_view>

namespace moray {

// The licence named in the YAML block between the first two "---" lines of a README.md: the value
// of `license`, or of `license_name` when that is "other"; empty without either. Never fails: a
// card is prose, and its absence is no error.
std::string card_licence(std::string_view card);

}  // namespace moray
