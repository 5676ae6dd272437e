// Functions every template can call without a value before them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "src/text/jinja_builtins.h"

namespace moray::jinja {

// range, dict, namespace, raise_exception and strftime_now.
std::optional<GlobalFunction> find_global(std::string_view name);

// `namespaces` owns what namespace() makes. Errors: raise_exception gives the template's own text.
Result<Value> call_global(GlobalFunction function, const CallArguments& arguments,
                          int64_t now_unix_s, std::vector<std::unique_ptr<Namespace>>& namespaces,
                          Budget& budget);

}  // namespace moray::jinja
