#include "src/formats/text_file.h"

#include <fmt/format.h>

#include "src/base/mapped_file.h"

namespace moray {

Result<std::string> read_text_file(const std::string& path, size_t bytes_max) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.data();
  if (bytes.size() > bytes_max) {
    return Status(StatusCode::kInvalidFile, fmt::format("{}: found {} bytes, expected at most {}",
                                                        path, bytes.size(), bytes_max));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace moray
