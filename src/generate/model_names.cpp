#include "src/generate/model_names.h"

#include <filesystem>

namespace moray {

std::string model_display_name(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr std::string_view kHubPrefix = "models--";
  fs::path path = fs::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a trailing slash
  for (const fs::path& part : path) {
    std::string name = part.string();
    if (!name.starts_with(kHubPrefix)) continue;
    name.erase(0, kHubPrefix.size());
    if (const size_t dashes = name.find("--"); dashes != std::string::npos) {
      name.erase(dashes, 1);
      name[dashes] = '/';
    }
    return name;
  }
  return path.filename() == "." ? fs::path(folder).string() : path.filename().string();
}

}  // namespace moray
