// Binding call arguments to parameter names. See jinja_builtins.h.
#include <algorithm>

#include "src/text/jinja_builtins.h"

namespace moray::jinja {

Result<std::vector<const Value*>> bind_arguments(const CallArguments& arguments,
                                                 std::string_view callee,
                                                 std::initializer_list<std::string_view> names,
                                                 size_t required) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    return template_error(std::string(callee) + " takes at most " + std::to_string(names.size()) +
                          " arguments, found " + std::to_string(arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return template_error(std::string(callee) + " has no argument named '" + name + "'");
    }
    const Value*& slot = bound[static_cast<size_t>(found - names.begin())];
    if (slot != nullptr) {
      return template_error(std::string(callee) + " got its argument '" + name + "' twice");
    }
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      return template_error(std::string(callee) + " needs its argument '" +
                            std::string(names.begin()[i]) + "'");
    }
  }
  return bound;
}

}  // namespace moray::jinja
